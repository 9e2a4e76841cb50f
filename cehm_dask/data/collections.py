"""Dask arrays and data frames of base labels: their blocks, each encoded where it lies.

A block is first encoded by the labels that it holds itself (:func:`encode_block`), then, once the labels of all blocks
are known, by those (:func:`recode`). Only what :func:`found_in` returns travels: no rows.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.columns import columns_of, encode_column, read_number_block, refuse_negative, whole_numbers
from cehm_dask.data.labels import ROOMY_SLOTS
from cehm_dask.data.sources import Codes
from cehm_dask.errors import CehmError, InputError, InputTypeError


def is_collection(given: Any) -> bool:
    """Whether something is a dask array or data frame."""
    return hasattr(given, "__dask_graph__") and hasattr(given, "to_delayed")


class Collection(NamedTuple):
    """A dask collection as row blocks."""

    given: Any
    names: tuple[str, ...]
    """Of the members."""
    edges: tuple[int, ...] | None
    """First row of every block and the end; None where sizes are not known before they are computed."""
    n_blocks: int

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """``work(block, number, *args)`` of every block, delayed.

        The scheduler meets the blocks of an array under names of ours only: their own names would come back with
        other contents when results are computed later, as Dask fuses tasks anew with what needs them.
        """
        from dask import delayed

        shared = [delayed(arg, pure=True, traverse=False) for arg in args]
        if hasattr(self.given, "columns"):
            return [delayed(work, pure=True)(block, i, *shared) for i, block in enumerate(self.given.to_delayed())]
        meta = np.empty(0, object)
        whole = self.given.map_blocks(_numbered, work, *shared, drop_axis=1, meta=meta, token=f"cehm-{work.__name__}")
        return list(whole.to_delayed().ravel().tolist())


def _numbered(block: Any, work: Callable[..., Any], *args: Any, block_id: tuple[int, ...]) -> Any:
    return work(block, block_id[0], *args)


def collection_of(given: Any) -> Collection:
    """The row blocks of a dask array (n_samples × n_members) or data frame."""
    if hasattr(given, "columns"):
        names = tuple(map(str, given.columns))
        if not names:
            raise InputError("n_members=0: the data frame has no columns; give one column of labels per member")
        return Collection(given, names, None, given.npartitions)
    if given.ndim != 2:
        raise InputError(f"base labels have {given.ndim} dimensions: expected two, n_samples × n_members")
    n_members = given.shape[1]
    if np.isnan(n_members):
        raise InputError("base labels: the number of columns is not known; call compute_chunk_sizes() on the array")
    if n_members == 0:
        raise InputError("n_members=0: base labels need at least one column")
    read_number_block(np.empty((0, 0), given.dtype))  # refuses a type that cannot hold labels
    rows = given.chunks[0]
    edges = None if np.isnan(rows).any() else tuple(np.cumsum([0, *rows]).tolist())
    return Collection(given, tuple(map(str, range(n_members))), edges, len(rows))


@dataclass(frozen=True, eq=False)
class Encoded:
    """One block by its own labels: code 0 is a missing label."""

    codes: Codes
    values: tuple[NDArray[Any], ...] | None
    """The label behind code 1, 2, …, by member; None: the labels are 0, 1, … themselves."""
    widths: tuple[int, ...]
    """Largest code and one, by member."""


def encode_block(block: Any, number: int, names: Sequence[str], edges: Sequence[int] | None) -> Encoded:
    """Check and encode one block; errors name it, and rows by their number in the collection where that is known."""
    start = 0 if edges is None else edges[number]
    try:
        if hasattr(block, "columns"):
            return _ranked(columns_of(block), names, start)
        block = np.asarray(block)
        if block.ndim != 2 or block.shape[1] != len(names):
            raise InputError(f"has shape {block.shape}, expected {len(names)} columns")
        rows = range(start, start + len(block))
        return _whole(whole_numbers(read_number_block(block), names, rows), names, rows)
    except CehmError as error:
        counted = "" if edges is not None else " (rows counted from its first)"
        raise type(error)(f"block {number} of the collection{counted}: {error}") from None


def _whole(block: NDArray[Any], names: Sequence[str], rows: range) -> Encoded:
    """Whole numbers: shifted by one where that leaves few gaps, else ranked."""
    if not len(block):
        return Encoded(np.zeros(block.shape, np.uint8), None, (1,) * len(names))
    if block.dtype.kind == "i" and block.min() < -1:
        refuse_negative(block, names, rows)
    widths = tuple(int(top) + 2 for top in block.max(axis=0).tolist())
    if sum(widths) > max(ROOMY_SLOTS, 2 * len(names)):
        return _ranked(list(block.T), names, rows.start)
    dtype = np.min_scalar_type(max(widths) - 1)
    return Encoded(np.add(block, 1, dtype=dtype, casting="unsafe"), None, widths)


def _ranked(columns: Sequence[Any], names: Sequence[str], first_row: int) -> Encoded:
    encoded = [encode_column(column, name, first_row) for column, name in zip(columns, names, strict=True)]
    widths = tuple(len(known) + 1 for known, _ in encoded)
    ranks = np.stack([own for _, own in encoded], axis=1)
    return Encoded(
        (ranks + 1).astype(np.min_scalar_type(max(widths) - 1)), tuple(known for known, _ in encoded), widths
    )


class Found(NamedTuple):
    """What is known of a block without its rows."""

    n_rows: int
    values: tuple[NDArray[Any], ...] | None
    widths: tuple[int, ...]
    digest: str


def found_in(encoded: Encoded) -> Found:
    """What the coordinator needs of a block."""
    digest = hashlib.blake2b(np.ascontiguousarray(encoded.codes).data, digest_size=16)
    for known in encoded.values or ():
        digest.update(repr(known.tolist()).encode())
    return Found(len(encoded.codes), encoded.values, encoded.widths, digest.hexdigest())


class Coding(NamedTuple):
    """How all blocks are encoded alike."""

    widths: tuple[int, ...]
    values: tuple[NDArray[Any], ...] | None

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.min_scalar_type(max(self.widths) - 1))


def coding_of(found: Sequence[Found], names: Sequence[str]) -> Coding:
    """One coding for all blocks, from what each holds."""
    if all(block.values is None for block in found):
        return Coding(tuple(map(max, zip(*(block.widths for block in found), strict=True))), None)
    values = []
    for j, name in enumerate(names):
        parts = [known for block in found if len(known := _values(block, j))]
        if len({known.dtype.kind == "U" for known in parts}) > 1:
            raise InputTypeError(f"member {name} holds text in some blocks and numbers in others: give it one type")
        values.append(np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64))
    return Coding(tuple(len(known) + 1 for known in values), tuple(values))


def _values(block: Found | Encoded, member: int) -> NDArray[Any]:
    return np.arange(block.widths[member] - 1) if block.values is None else block.values[member]


def recode(encoded: Encoded, coding: Coding) -> Codes:
    """The block in the coding of all blocks."""
    if coding.values is None:
        return encoded.codes.astype(coding.dtype, copy=False)
    codes = np.empty(encoded.codes.shape, coding.dtype)
    for j, known in enumerate(coding.values):
        own = _values(encoded, j)
        places = np.append(0, np.searchsorted(known, own) + 1).astype(coding.dtype)
        codes[:, j] = places[encoded.codes[:, j]]
    return codes
