"""Base labels in any accepted form → checked blocks of codes.

First step of the flow: whatever the user passes (numpy array, dask array, pandas or polars frame, list of
columns, file, ensemble.zarr) is checked once, before any sweep, and read from then on as blocks of small unsigned
codes that the kernels use as sparse-matrix indices. Where the user's array already is that, nothing is copied.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.alignment import joined
from cehm_dask.data.arrays import is_store
from cehm_dask.data.bounds import fault_in
from cehm_dask.data.columns import (
    columns_of,
    encode_column,
    read_number_block,
    refuse_annotated,
    refuse_negative,
    refuse_type,
    whole_numbers,
)
from cehm_dask.data.encoding import Stream, array_stream, survey, table_stream
from cehm_dask.data.ensemble_store import Ensemble, open_ensemble
from cehm_dask.data.files import open_npy
from cehm_dask.data.mapped import mapped_rows
from cehm_dask.data.names import places_of
from cehm_dask.data.shape import Shape
from cehm_dask.data.sources import ArraySource, ChunkSource, Codes, Source
from cehm_dask.data.tables import SUFFIXES, TypedTable, is_table
from cehm_dask.errors import BudgetError, InputError, NotFoundError
from cehm_dask.machine import Machine, format_bytes, this_machine

ROOMY_SLOTS = 2048
"""Up to this many slots in all, gaps in the labels cost less than closing them would."""

READING_BYTES = 64 << 20
"""That reading a table takes, beside its codes: blocks as text and as columns, and the code of the reader."""

_SCAN_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Labels:
    """A checked label matrix: n_samples × n_members codes, each pointing at a slot.

    A member owns ``widths[j]`` slots. With ``silent``, its slot 0 means that the label is missing;
    slots that turn out empty are not hyperedges.
    """

    source: Source
    n_samples: int
    widths: tuple[int, ...]
    silent: bool
    names: tuple[str, ...]
    values: tuple[NDArray[Any], ...] | None = None
    """The user's label behind each code of each member; None: the code itself, less 1 if silent."""
    read_rows: int | None = None
    """Rows that a store gives in one go; None: any, at no cost."""
    align_rows: int = 1
    """Rows of a shard, where there are shards."""
    itemsize: int = 1
    fingerprint: str = ""
    """Of an ensemble.zarr or a dask collection; what a resumed run must find unchanged."""

    @property
    def shape(self) -> Shape:
        """What the budget needs to know."""
        row_bytes = self.n_members * self.itemsize
        place = (self.read_rows, self.align_rows, self.edges)
        return Shape(self.n_samples, row_bytes, self.n_slots, *place, self.widths, self.silent)

    def of_members(self, members: NDArray[np.intp]) -> "Labels":
        """The same rows, as if there were only these members; for tables of slots, not to be read."""
        widths, names = (tuple(own[j] for j in members.tolist()) for own in (self.widths, self.names))
        return replace(self, widths=widths, names=names, values=None)

    @property
    def edges(self) -> tuple[int, ...] | None:
        """Where the rows are cut into chunks that lie with workers; None: they can be cut anywhere."""
        return self.source.edges if isinstance(self.source, ChunkSource) and self.source.remote else None

    @property
    def n_members(self) -> int:
        return len(self.widths)

    @property
    def n_slots(self) -> int:
        return sum(self.widths)

    @cached_property
    def offsets(self) -> NDArray[np.uint64]:
        """Slot of each member's code 0."""
        return np.concatenate(([0], np.cumsum(self.widths)[:-1])).astype(np.uint64)

    def read(self, start: int, stop: int) -> Codes:
        """Codes of the rows start to stop, each inside its member's slots: safe as indices of a compiled loop."""
        codes = self.source.read(start, stop)
        if not self.source.checked and (fault := fault_in(codes, self.widths, start, self.names)):
            raise InputError(f"base labels: {fault}: they changed while they were being read, or the file was edited")
        return codes

    def count_hyperedges(self) -> int | None:
        """Base clusters of all members together, before any sweep: known to a store, counted for an array.

        None where the rows lie with workers: the first sweep counts them.
        """
        if isinstance(self.source, Ensemble):
            return int(np.count_nonzero(self.source.sizes))
        if self.edges is not None:
            return None
        filled = np.zeros(self.n_slots, bool)
        for start in range(0, self.n_samples, _SCAN_ROWS):
            codes = self.read(start, min(start + _SCAN_ROWS, self.n_samples))
            for j, offset in enumerate(self.offsets.tolist()):
                filled[codes[:, j] + np.int64(offset)] = True
        if self.silent:
            filled[self.offsets.astype(np.intp)] = False
        return int(np.count_nonzero(filled))

    def values_of(self, slots: NDArray[np.intp]) -> list[NDArray[Any]]:
        """The user's labels behind occupied slots, ascending, one array per member."""
        starts = np.append(self.offsets.astype(np.intp), self.n_slots)
        found = []
        for j in range(self.n_members):
            codes = slots[(slots >= starts[j]) & (slots < starts[j + 1])] - starts[j] - int(self.silent)
            found.append(codes if self.values is None else self.values[j][codes])
        return found


def as_labels(base_labels: Any, *, leave_out: Sequence[str] = (), memory: str | int | None = None) -> Labels:
    """Check base labels and make them readable as codes.

    Parameters
    ----------
    base_labels : array of integers (n_samples, n_members), dask array, data frame, list or dict of columns, or a file
        One column per member; -1 and NaN are missing labels. Series in a list or dict are matched by their index.
        Frames may hold strings. Files: .npy (mapped into memory, not loaded), .csv with a line of names, .parquet or a
        folder of such files; tables are read block by block.
    leave_out : sequence of str
        Columns of a .csv or .parquet file that are no members: names of the rows, known classes.
    memory : str or int, optional
        Bytes that this process may take in all; a table whose codes do not fit is refused. Default: a share of what
        is free.
    """
    if isinstance(base_labels, Labels):
        return base_labels
    if is_store(base_labels):
        return _from_store(os.fspath(base_labels))
    if isinstance(base_labels, str | os.PathLike):
        path = os.fspath(base_labels)
        machine = this_machine(memory)
        if is_table(path):
            return _from_stream(table_stream(path, leave_out), machine)
        return _from_npy(_open_npy(Path(path)), path, machine)
    if isinstance(base_labels, list | tuple | Mapping):
        base_labels = joined(base_labels)
    refuse_annotated(base_labels, "base labels")
    if hasattr(base_labels, "columns"):
        return _from_frame(base_labels.compute() if hasattr(base_labels, "compute") else base_labels)
    if isinstance(base_labels, list):
        return _from_columns(base_labels)
    if hasattr(base_labels, "dask") and hasattr(base_labels, "compute"):
        base_labels = base_labels.compute()
    return _from_array(np.asarray(base_labels))


def _from_store(url: str) -> Labels:
    ensemble = open_ensemble(url)
    return Labels(
        ensemble,
        ensemble.n_samples,
        ensemble.widths,
        True,
        ensemble.names,
        ensemble.values,
        read_rows=ensemble.chunk_rows,
        align_rows=ensemble.shard_rows,
        itemsize=ensemble.itemsize,
        fingerprint=ensemble.fingerprint,
    )


def _open_npy(path: Path) -> Any:
    if path.suffix != ".npy":
        raise InputError(
            f"base labels {path}: expected .npy, {', '.join(SUFFIXES)}, a folder of .parquet files, or .zarr"
        )
    if not path.is_file():
        raise NotFoundError(f"base labels {path}: no such file")
    return open_npy(path, "base labels")


def _from_npy(array: NDArray[Any], path: str, machine: Machine) -> Labels:
    """Whole numbers in a .npy file are codes, or become some; other forms are streamed, so that no copy is made."""
    if array.ndim != 2 or not array.size or array.dtype.kind not in "fiu":
        return _from_array(array)
    if array.dtype.kind == "f":
        return _from_stream(array_stream(mapped_rows(array) or array, path), machine)
    _refuse_large(path, len(array), array.shape[1], 1, machine)
    return _from_array(array, machine)


def _from_stream(stream: Stream, machine: Machine) -> Labels:
    """Codes of a file, in two passes over it; only they are held whole."""
    if isinstance(stream.table, TypedTable):
        _refuse_large(stream.source, stream.table.n_rows, len(stream.names), 1, machine)
    found = survey(stream)
    _refuse_large(stream.source, found.n_samples, len(found.widths), found.dtype.itemsize, machine)
    codes = np.empty((found.n_samples, len(found.widths)), found.dtype)
    row = 0
    for block in found.codes():
        if fault := fault_in(block, found.widths, row, stream.names):
            raise InputError(f"{stream.source}: {fault}: it changed while it was being read; run again")
        codes[row : row + len(block)] = block
        row += len(block)
    size = codes.dtype.itemsize
    return Labels(ArraySource(codes), len(codes), found.widths, True, stream.names, found.values, itemsize=size)


def _refuse_large(path: str, n_samples: int, n_members: int, itemsize: int, machine: Machine) -> None:
    codes = n_samples * n_members * itemsize
    needed = machine.taken + codes + READING_BYTES
    if needed > machine.allowed:
        raise BudgetError(
            f"memory={format_bytes(machine.allowed)} allowed < {format_bytes(needed)} projected to hold base labels "
            f"{path} ({n_samples:,} × {n_members} of {itemsize} bytes: {format_bytes(codes)}; this process takes "
            f"{format_bytes(machine.taken)} already): allow more memory, or import them into an ensemble.zarr with "
            "'cehm import', which is read block by block"
        )


def _from_columns(columns: Sequence[Any]) -> Labels:
    if not columns:
        raise InputError("n_members=0: the list of base clusterings is empty; give at least one column of labels")
    arrays = [np.asarray(column) for column in columns]
    for j, array in enumerate(arrays):
        if array.ndim != 1:
            raise InputError(
                f"member {j} has {array.ndim} dimensions: a list is read as a list of columns, each the labels "
                "of all samples by one member; use numpy.asarray(...) for rows of labels"
            )
        if array.size != arrays[0].size:
            raise InputError(f"member {j} has {array.size} rows, member 0 has {arrays[0].size}: they must be equal")
        refuse_type(array.dtype)
    return _from_array(np.stack(arrays, axis=1))


def _from_frame(frame: Any) -> Labels:
    """One column per member, in order; text and categories are encoded, nulls are missing labels."""
    names = tuple(str(name) for name in frame.columns)
    if not names:
        raise InputError("n_members=0: the data frame has no columns; give one column of labels per member")
    return labels_of_columns(columns_of(frame), names)


def labels_of_columns(columns: Sequence[Any], names: tuple[str, ...], first_row: int = 0) -> Labels:
    """Labels of some rows from one column per member, as :func:`encode_column` takes them."""
    encoded = [encode_column(column, name, first_row) for column, name in zip(columns, names, strict=True)]
    return _encode_ranked(np.stack([ranks for _, ranks in encoded], axis=1), [known for known, _ in encoded], names)


def _from_array(array: Any, machine: Machine | None = None) -> Labels:
    mapped = mapped_rows(array)
    if mapped is not None and array.dtype.kind in "iu":
        array = mapped  # read, not mapped: it may change, or be cut short, at any moment
    if array.ndim != 2:
        raise InputError(
            f"base labels have shape {array.shape}: expected two dimensions, n_samples × n_members; "
            "one clustering alone goes in as labels.reshape(-1, 1)"
        )
    n_samples, n_members = array.shape
    if n_members == 0:
        raise InputError("n_members=0: base labels need at least one column")
    if n_samples == 0:
        raise InputError("n_samples=0: base labels need at least one row")
    names = tuple(str(j) for j in range(n_members))
    array = array if array is mapped else whole_numbers(read_number_block(array), names)
    low, high = _extremes(array)
    if low.min() < -1:
        refuse_negative(array, names)
    silent = bool(low.min() < 0)
    width = int(sum(int(top) + 1 + int(silent) for top in high))
    if width > max(ROOMY_SLOTS, 2 * n_members):
        if mapped is not None and array is mapped:
            return _from_stream(array_stream(mapped, mapped.path), machine or this_machine(None))
        values = [np.unique(array[:, j][array[:, j] >= 0]) for j in range(n_members)]
        if sum(map(len, values)) < width // 2:
            return _encode_ranked(_rank(array, values), values, names)
    widths = tuple(int(top) + 1 + int(silent) for top in high)
    ready = not silent and array.dtype.kind == "u" and array.dtype.itemsize <= 4
    ready = ready and array.dtype.isnative and (array is mapped or array.flags.c_contiguous)
    if not ready:
        source: Source = ArraySource(_shifted(array, int(silent), widths, names))
    else:
        source = mapped if array is mapped and mapped is not None else ArraySource(array, checked=False)
    itemsize = array.dtype.itemsize if ready else np.min_scalar_type(max(widths) - 1).itemsize
    return Labels(source, n_samples, widths, silent, names, itemsize=itemsize)


def _extremes(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest (0 for unsigned types) and largest label of each member, as whole numbers of any size."""
    highs, lows = [], []
    for start in range(0, len(array), _SCAN_ROWS):
        part = array[start : start + _SCAN_ROWS]
        highs.append(part.max(axis=0))
        lows.append(part.min(axis=0) if array.dtype.kind == "i" else np.zeros_like(highs[-1]))
    return np.minimum.reduce(lows).astype(object), np.maximum.reduce(highs).astype(object)


def _shifted(array: Any, shift: int, widths: Sequence[int], names: Sequence[str]) -> Codes:
    codes = np.empty(array.shape, np.min_scalar_type(max(widths) - 1))
    for start in range(0, len(array), _SCAN_ROWS):
        part = array[start : start + _SCAN_ROWS]
        own = codes[start : start + len(part)]
        own[:] = part if shift == 0 else part + part.dtype.type(shift)
        if fault := fault_in(own, widths, start, names):
            raise InputError(f"base labels: {fault}: they changed while they were being read; run again")
    return codes


def _rank(array: NDArray[Any], values: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Labels → their rank among the member's ``values``; -1 for whatever is not among them."""
    ranked = np.full(array.shape, -1, np.int64)
    for j, known in enumerate(values):
        if len(known):
            place = np.minimum(np.searchsorted(known, array[:, j]), len(known) - 1)
            ranked[:, j] = np.where(known[place] == array[:, j], place, -1)
    return ranked


def _encode_ranked(ranked: NDArray[np.int64], values: Sequence[NDArray[Any]], names: tuple[str, ...]) -> Labels:
    if len(ranked) == 0:
        raise InputError("n_samples=0: base labels need at least one row")
    widths = tuple(len(known) + 1 for known in values)
    codes = _shifted(ranked, 1, widths, names)
    return Labels(ArraySource(codes), len(ranked), widths, True, names, tuple(values), itemsize=codes.dtype.itemsize)


def relabel(base_labels: Any, values: Sequence[NDArray[Any]], names: Sequence[str]) -> Labels:
    """Base labels of new samples in terms of labels already known; unknown ones count as missing.

    Parameters
    ----------
    base_labels
        As for :func:`as_labels`, with the same members: by name where they have names, else in the same order.
    values : one array of known labels per member, ascending
    names : the members they belong to
    """
    new = as_labels(base_labels)
    places = places_of(new.names, names, "member")
    columns = list(range(len(values))) if places is None else places
    codes = new.read(0, new.n_samples).astype(np.int64)[:, columns] - int(new.silent)
    ranked = np.full(codes.shape, -1, np.int64)
    for j, (known, column) in enumerate(zip(values, columns, strict=True)):
        labels = np.arange(new.widths[column]) if new.values is None else new.values[column]
        if (labels.dtype.kind == "U") == (known.dtype.kind == "U"):
            places_in = np.append(_rank(labels[:, None], [known])[:, 0], -1)  # the last one serves code -1
            ranked[:, j] = places_in[codes[:, j]]
    return _encode_ranked(ranked, values, tuple(names))
