"""Dask arrays and data frames of features: their blocks, and the same rows in blocks of a fixed size.

Below ``features``. Sums of floats depend on where they are cut, so a collection with any chunks is cut, lazily, into
blocks of a fixed number of rows counted from row 0. Rows stay where they are: a block is a delayed array.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.arrow_columns import arrow_of, texts_of
from cehm_dask.data.preparation import Encoding, Preparation
from cehm_dask.errors import InputError, InputTypeError


class FeatureBlocks(NamedTuple):
    """A dask collection of features as a list of row blocks."""

    blocks: list[Any]
    """Delayed arrays of numbers, in row order."""
    names: tuple[str, ...]
    rows: tuple[int, ...] | None
    """Of every block; None where they are not known before they are computed."""
    dtype: np.dtype[Any]
    source: str
    encoding: Encoding | None = None
    """How the columns of a data frame became numbers."""


def feature_blocks_of(given: Any, prepare: Preparation) -> FeatureBlocks:
    """The row blocks of a dask array (n_samples × n_features) or data frame."""
    if hasattr(given, "columns"):
        return _blocks_of_frame(given, prepare)
    prepare.refuse_nameless("a dask array")
    if given.ndim != 2:
        raise InputError(f"features have shape {given.shape}: expected two dimensions, n_samples × n_features")
    if np.dtype(given.dtype).kind not in "iufb":
        raise InputTypeError(f"features have dtype {given.dtype}: expected numbers")
    if np.isnan(given.shape[1]):
        raise InputError("features: the number of columns is not known; call compute_chunk_sizes() on the array")
    if given.shape[1] == 0:
        raise InputError(f"features have shape {given.shape}: at least one row and one column are needed")
    rows = given.chunks[0]
    if given.numblocks[1] > 1:
        given = given.rechunk({1: -1}, method="tasks")
    known = None if np.isnan(rows).any() else tuple(rows)
    names = tuple(map(str, range(given.shape[1])))
    return FeatureBlocks(given.to_delayed().ravel().tolist(), names, known, np.dtype(given.dtype), "a dask array")


def _blocks_of_frame(frame: Any, prepare: Preparation) -> FeatureBlocks:
    from dask import delayed
    from pandas.api.types import is_numeric_dtype

    source, names = "a dask data frame", tuple(map(str, frame.columns))
    if not names:
        raise InputError("features have no columns: at least one is needed")
    kept = prepare.kept(names, (), source, guess=False) if len(set(names)) == len(names) else list(names)
    if kept != list(names):
        frame = frame[[frame.columns[names.index(name)] for name in kept]]
    kinds = list(frame.dtypes)
    numbers = all(map(is_numeric_dtype, kinds))
    encoding = prepare.fitted or (Encoding.of_numbers(kept) if numbers else _encoding(frame, kept, prepare, source))
    if not (numbers and encoding.plain):
        read = kept if prepare.fitted else list(encoding.sources)
        blocks = [delayed(_encoded, pure=True)(part, read, encoding) for part in frame.to_delayed()]
        return FeatureBlocks(blocks, encoding.names, None, np.dtype(np.float64), source, encoding)
    plain = all(isinstance(kind, np.dtype) for kind in kinds)
    dtype = np.result_type(*kinds) if plain else np.dtype(np.float64)
    blocks = [delayed(_numbers, pure=True)(part, dtype) for part in frame.to_delayed()]
    return FeatureBlocks(blocks, encoding.names, None, dtype, source, encoding)


def _encoding(frame: Any, names: list[str], prepare: Preparation, source: str) -> Encoding:
    """How columns become numbers; values of categories are found where the rows lie."""
    import dask
    import pyarrow as pa

    schema = arrow_of(frame._meta).schema
    if any(kind == np.dtype(object) for kind in frame.dtypes):  # texts, dates, …: only rows tell
        schema = dask.delayed(_schema, pure=True)(frame.to_delayed()[0]).compute()
    kinds = {name: schema.field(j).type for j, name in enumerate(names)}
    kinds = {name: pa.string() if kind == pa.null() else kind for name, kind in kinds.items()}

    def batches(own: list[str]) -> list[list[Any]]:
        found = dask.compute(*(dask.delayed(_values_in, pure=True)(part, own) for part in frame.to_delayed()))
        return list(found)

    # The columns are chosen; what is left to say is how they are read.
    return replace(prepare, columns=tuple(names), drop=(), id=None).encoding(kinds, batches, source)


def _schema(part: Any) -> Any:
    return arrow_of(part).schema


def _values_in(part: Any, names: list[str]) -> list[Any]:
    """The values of some columns in a partition, each once: Arrow arrays."""
    import pyarrow.compute as pc

    table = arrow_of(part)
    return [pc.unique(texts_of(table.column(name))) for name in names]


def _encoded(part: Any, names: list[str], encoding: Encoding) -> NDArray[np.float64]:
    table = arrow_of(part)
    return np.asarray(encoding.numbers([table.column(name) for name in names]), np.float64)


def _numbers(part: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Rows of a data frame; a missing value is NaN."""
    plain = dtype.kind != "f"
    return np.asarray(part.to_numpy(dtype) if plain else part.to_numpy(dtype, na_value=np.nan))


def rows_of(given: FeatureBlocks) -> tuple[int, ...]:
    """Rows of every block; computed where they are not known."""
    import dask

    if given.rows is not None:
        return given.rows
    return tuple(dask.compute(*(dask.delayed(len, pure=True)(block) for block in given.blocks)))


@dataclass(frozen=True, eq=False)
class Chunks:
    """Consecutive blocks of a fixed number of rows: delayed, or computed."""

    parts: Sequence[Any]
    first_row: int
    rows: int
    """Of every block but the last."""
    given_rows: tuple[int, ...] = ()
    """Of the blocks that the collection had."""

    def between(self, start: int, stop: int) -> "Chunks":
        """The blocks that hold some rows."""
        first, last = (start - self.first_row) // self.rows, -(-(stop - self.first_row) // self.rows)
        return Chunks(self.parts[first:last], self.first_row + first * self.rows, self.rows)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop; delayed blocks are computed by the thread that asks."""
        import dask

        own = self.between(start, stop)
        found = dask.compute(*own.parts, scheduler="synchronous")
        whole = np.asarray(found[0]) if len(found) == 1 else np.concatenate(found)
        return whole[start - own.first_row : stop - own.first_row]


def fixed_blocks(given: FeatureBlocks, rows: Sequence[int], size: int) -> Chunks:
    """The same rows in blocks of ``size`` rows, counted from row 0."""
    import dask.array as da

    filled = [(block, n) for block, n in zip(given.blocks, rows, strict=True) if n]
    arrays = [da.from_delayed(block, (n, len(given.names)), given.dtype) for block, n in filled]
    # Not by a shuffle through the workers' disks, the default with a client: only cuts are moved.
    whole = da.concatenate(arrays).rechunk({0: size}, method="tasks")
    return Chunks(whole.to_delayed().ravel().tolist(), 0, size, tuple(rows))


def as_given(chunks: Chunks) -> list[Any]:
    """Rows in the blocks that the collection had, also empty ones: delayed arrays."""
    from dask import delayed

    edges = np.cumsum([0, *chunks.given_rows]).tolist()
    cut, found = delayed(_cut, pure=True), []
    for start, stop in pairwise(edges):
        first = min(start, edges[-1] - 1)
        own = chunks.between(first, max(stop, first + 1))
        whole = _is_whole(own, start, stop, edges[-1])
        found.append(own.parts[0] if whole else cut(start, stop, own.first_row, *own.parts))
    return found


def _is_whole(own: Chunks, start: int, stop: int, end: int) -> bool:
    """Whether rows are exactly those of one block."""
    return len(own.parts) == 1 and start == own.first_row and stop == min(start + own.rows, end)


def _cut(start: int, stop: int, first_row: int, *parts: NDArray[Any]) -> NDArray[Any]:
    whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return whole[start - first_row : stop - first_row]
