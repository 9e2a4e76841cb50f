"""Dask arrays and data frames of features: their blocks, and the same rows in blocks of a fixed size.

Below ``features``. Sums of floats depend on where they are cut, so a collection with any chunks is cut, lazily, into
blocks of a fixed number of rows counted from row 0. Rows stay where they are: a block is a delayed array.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


def feature_blocks_of(given: Any) -> FeatureBlocks:
    """The row blocks of a dask array (n_samples × n_features) or data frame of numbers."""
    if hasattr(given, "columns"):
        return _blocks_of_frame(given)
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


def _blocks_of_frame(frame: Any) -> FeatureBlocks:
    from dask import delayed
    from pandas.api.types import is_numeric_dtype

    names = tuple(map(str, frame.columns))
    if not names:
        raise InputError("features have no columns: at least one is needed")
    kinds = list(frame.dtypes)
    if wrong := [name for name, kind in zip(names, kinds, strict=True) if not is_numeric_dtype(kind)]:
        raise InputTypeError(f"columns {', '.join(wrong)} are not numbers: leave them out, or encode them")
    plain = all(isinstance(kind, np.dtype) for kind in kinds)
    dtype = np.result_type(*kinds) if plain else np.dtype(np.float64)
    blocks = [delayed(_numbers, pure=True)(part, dtype) for part in frame.to_delayed()]
    return FeatureBlocks(blocks, names, None, dtype, "a dask data frame")


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
