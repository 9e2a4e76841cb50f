"""Features in any accepted form → row blocks of scaled float32.

First stage of the flow for users who have features rather than base labels: numpy arrays, .npy (mapped), Zarr,
.parquet, .csv, dask arrays and data frames (``feature_blocks``), scipy sparse rows; local or in an object store. One
pass finds each column's extremes, mean and spread; from then on a block is read, scaled and handed over. Statistics
are summed over blocks of a fixed number of rows, counted from row 0, so no chunking of the source can change a bit.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.arrays import is_store, open_array
from cehm_dask.data.collections import is_collection
from cehm_dask.data.columns import refuse_annotated
from cehm_dask.data.feature_blocks import Chunks, feature_blocks_of, fixed_blocks, rows_of
from cehm_dask.data.files import absolute, exists, fingerprint, is_url, open_npy, open_remote_npy
from cehm_dask.data.names import places_of
from cehm_dask.data.number_column import NumberColumn
from cehm_dask.data.tables import Csv, Parquet, is_table, open_table
from cehm_dask.errors import CehmError, InputError, InputTypeError, NotFoundError

BLOCK_ROWS = 1 << 16
"""Rows of a block; fixed, because sums of floats depend on where they are cut."""

SCALES = ("none", "standard", "minmax", "robust")
IMPUTES = (None, "mean")

Read = Callable[[int, int], NDArray[Any]]


class Workers(Protocol):
    """Who looks at the blocks (:mod:`cehm_dask.engine.task`)."""

    here: bool
    """Whether this process does the work."""

    def each(
        self, work: Callable[..., Any], items: Iterable[Any], *shared: Any, delayed: Sequence[Sequence[Any]] = ()
    ) -> Iterator[Any]:
        """``work(item, *shared)`` for every item, in their order, or ``work(item, computed, *shared)``."""
        ...


class FeatureWarning(UserWarning):
    """Something about the features that a careful user would want to know."""


@dataclass(frozen=True, eq=False)
class Features:
    """Rows of numbers that can be read in any order."""

    n_samples: int
    names: tuple[str, ...]
    read: Read
    source: str
    """Where they come from."""
    reopen: "Callable[[], Features] | None" = None
    """How another process opens them; None: only this one holds them."""
    path: str | None = None
    """The file that rows are read from whenever they are wanted; None: they are in memory, or were copied."""
    chunks: Chunks | None = None
    """Blocks of a dask collection, which stay where they are; None: not from one."""

    def __reduce__(self) -> tuple[Any, ...]:
        if self.reopen is None:
            raise InputTypeError(
                f"features from {self.source} are held by this process: they cannot be sent to another"
            )
        return self.reopen, ()

    @property
    def n_features(self) -> int:
        return len(self.names)

    def select(self, names: Sequence[str]) -> "Features":
        """The columns with these names, in their order; by place where either side has no names."""
        places = places_of(self.names, names, "feature")
        if places is None:
            return replace(self, names=tuple(names))
        read, reopen = self.read, self.reopen
        again = None if reopen is None else partial(_selected, reopen, tuple(names))
        return replace(self, names=tuple(names), read=lambda a, b: read(a, b)[:, places], reopen=again)

    def stamp(self) -> str | None:
        """Changes when the file that rows are read from is written; None where there is none."""
        return None if self.path is None else fingerprint(self.path)

    def blocks(self) -> list[tuple[int, int]]:
        """First row of each block and the row after its last."""
        return [(start, min(start + BLOCK_ROWS, self.n_samples)) for start in range(0, self.n_samples, BLOCK_ROWS)]

    def each(
        self, workers: Workers, work: Callable[..., Any], items: Sequence[Any], spans: Sequence[Any], *shared: Any
    ) -> Iterator[Any]:
        """``work(item, features, *shared)`` for every item; ``spans`` are the rows, start and stop, that each reads."""
        if self.chunks is None or workers.here:
            return workers.each(work, items, self, *shared)
        own = [self.chunks.between(*span) for span in spans]
        pieces = [_Piece(item, span, part.first_row) for item, span, part in zip(items, spans, own, strict=True)]
        there = _OnChunks(work, self.n_samples, self.names, self.chunks.rows)
        return workers.each(there, pieces, *shared, delayed=[part.parts for part in own])

    def each_block(self, workers: Workers, work: Callable[..., Any], *shared: Any) -> Iterator[Any]:
        """``work(block, features, *shared)`` for every block."""
        return self.each(workers, work, self.blocks(), self.blocks(), *shared)


class _Piece(NamedTuple):
    """An item, the rows that it reads, and the first row of the blocks that hold them."""

    item: Any
    span: tuple[int, int]
    first_row: int

    def __str__(self) -> str:
        return f"rows {self.span[0]} to {self.span[1] - 1} of the collection"


class _OnChunks:
    """Work on some rows of a dask collection, by the worker that was given their blocks."""

    def __init__(self, work: Callable[..., Any], n_samples: int, names: tuple[str, ...], rows: int) -> None:
        self.__name__ = work.__name__
        self._work, self._n_samples, self._names, self._rows = work, n_samples, names, rows

    def __call__(self, piece: _Piece, parts: Sequence[Any], *shared: Any) -> Any:
        read = Chunks(parts, piece.first_row, self._rows).read
        try:
            return self._work(piece.item, Features(self._n_samples, self._names, read, "a dask collection"), *shared)
        except CehmError as error:
            raise type(error)(f"{piece}: {error}") from None


def _selected(reopen: Callable[[], Features], names: tuple[str, ...]) -> Features:
    return reopen().select(names)


def as_features(X: Any, *, leave_out: Sequence[str] = ()) -> Features:
    """Features in any accepted form, readable by rows.

    Parameters
    ----------
    X : array (n_samples, n_features), dask array, data frame, scipy sparse matrix, path or URL
        Files: .npy, .csv, .parquet, .zarr (a Zarr array).
    leave_out : sequence of str
        Columns of a .csv or .parquet file that are no features: names of the rows, known classes.
    """
    if isinstance(X, Features):
        return X
    if isinstance(X, str | os.PathLike):
        return _from_path(os.fspath(X), leave_out)
    refuse_annotated(X, "features")
    if is_collection(X):
        return _from_collection(X)
    if hasattr(X, "columns"):
        return _from_frame(X)
    if hasattr(X, "tocsr"):
        rows = X.tocsr()
        return _checked(rows.shape, lambda a, b: rows[a:b].toarray(), "a sparse matrix")
    if not hasattr(X, "shape"):
        X = np.asarray(X)
    return _from_array(X, type(X).__name__)


def _from_path(path: str, leave_out: Sequence[str]) -> Features:
    reopen = partial(as_features, absolute(path), leave_out=tuple(leave_out))
    where: dict[str, Any] = {"reopen": reopen, "path": absolute(path)}
    if is_store(path):
        return replace(_from_array(open_array(path), path), **where)
    if not exists(path):
        raise NotFoundError(f"features {path}: no such file")
    if path.endswith(".npy"):
        return replace(_checked(*open_remote_npy(path), path) if is_url(path) else _from_npy(path), **where)
    if is_table(path):
        table = open_table(path)
        if isinstance(table, Parquet):
            return replace(_from_parquet(table, leave_out), **where)
        return _from_csv(table, leave_out)
    raise InputError(f"features {path}: expected a name that ends in .npy, .csv, .parquet or .zarr")


def _from_npy(path: str) -> Features:
    return _from_array(open_npy(path, "features"), path)


def _from_array(array: Any, source: str) -> Features:
    """Numpy, memory-mapped and Zarr arrays."""
    if getattr(array, "dtype", None) is not None and np.dtype(array.dtype).kind not in "iufb":
        raise InputTypeError(f"features have dtype {array.dtype}: expected numbers")
    return _checked(array.shape, lambda a, b: np.asarray(array[a:b]), source)


def _from_frame(frame: Any) -> Features:
    names = [str(name) for name in frame.columns]
    values = np.asarray(frame.to_numpy())
    if values.dtype.kind not in "iufb":
        wrong = [name for name in frame.columns if np.asarray(frame[name].to_numpy()).dtype.kind not in "iufb"]
        raise InputTypeError(f"columns {', '.join(map(str, wrong))} are not numbers: leave them out, or encode them")
    return _checked(values.shape, lambda a, b: values[a:b], "a data frame", names)


def _from_collection(given: Any) -> Features:
    found = feature_blocks_of(given)
    rows = rows_of(found)
    shape = (sum(rows), len(found.names))
    _refuse_shape(shape)
    chunks = fixed_blocks(found, rows, BLOCK_ROWS)
    return replace(_checked(shape, chunks.read, found.source, found.names), chunks=chunks)


def _from_parquet(table: Parquet, leave_out: Sequence[str]) -> Features:
    names = table.without(leave_out, "feature")
    table.refuse_types(names, _is_numeric, "features are numbers")

    def read(start: int, stop: int) -> NDArray[Any]:
        return np.stack([_numbers(column) for column in table.rows(start, stop, names).columns], axis=1)

    return _checked((table.n_rows, len(names)), read, table.path, names)


def _is_numeric(kind: Any) -> bool:
    import pyarrow.types as of

    return any(test(kind) for test in (of.is_integer, of.is_floating, of.is_boolean, of.is_decimal, of.is_null))


def _numbers(column: Any) -> NDArray[Any]:
    """A column of a .parquet file as numpy keeps it; nulls are NaN."""
    import pyarrow as pa
    import pyarrow.types as of

    if of.is_decimal(column.type) or of.is_null(column.type) or (of.is_boolean(column.type) and column.null_count):
        column = column.cast(pa.float64())
    return np.asarray(column)


def _from_csv(table: Csv, leave_out: Sequence[str]) -> Features:
    """Text cannot be read from the middle: it is turned once, block by block, into a temporary file of numbers."""
    names = table.without(leave_out, "feature")
    columns = [NumberColumn(table.path, name) for name in names]
    rows = 0
    # The file has no name: it goes when the last array that maps it does.
    with tempfile.TemporaryFile() as file:
        for batch in table.batches(names):
            values = np.empty((batch.num_rows, len(names)))
            for j, (column, cells) in enumerate(zip(columns, batch.columns, strict=True)):
                values[:, j] = column.read(cells, rows)
            file.write(values.data)
            rows += len(values)
        if not rows:
            raise InputError(f"n_samples=0: {table.path} has no rows")
        file.flush()
        found = np.memmap(file, np.float64, "r", shape=(rows, len(names)))
    return _checked(found.shape, lambda a, b: found[a:b], table.path, names)


def _checked(shape: Sequence[int], read: Read, source: str, names: Sequence[str] | None = None) -> Features:
    _refuse_shape(shape)
    return Features(int(shape[0]), tuple(names or (str(j) for j in range(shape[1]))), read, source)


def _refuse_shape(shape: Sequence[int]) -> None:
    if len(shape) != 2:
        raise InputError(f"features have shape {tuple(shape)}: expected two dimensions, n_samples × n_features")
    if shape[0] == 0 or shape[1] == 0:
        raise InputError(f"features have shape {tuple(shape)}: at least one row and one column are needed")


@dataclass(frozen=True, eq=False)
class Scaling:
    """Which columns are used and how: value → (value − centre) / spread, in float32."""

    columns: NDArray[np.intp]
    centre: NDArray[np.float64]
    spread: NDArray[np.float64]
    fill: NDArray[np.float64] | None
    """What takes the place of a value that is not finite; None: it is an error."""
    content: str = ""
    """Digest of all features that it was found from."""

    @cached_property
    def _all_columns(self) -> bool:
        return bool(np.array_equal(self.columns, np.arange(len(self.columns))))

    def apply(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> NDArray[np.float32]:
        """Scaled columns of a block of rows."""
        return ((self.filled(rows, first_row, names) - self.centre) / self.spread).astype(np.float32)

    def filled(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> NDArray[np.float64]:
        """The columns of a block of rows that are used, all values finite."""
        values = rows if self._all_columns and rows.shape[1] == len(self.columns) else rows[:, self.columns]
        values = np.asarray(values, np.float64)
        finite = np.isfinite(values)
        if self.fill is not None:
            values = np.where(finite, values, self.fill)
        elif not finite.all():
            row, column = np.argwhere(~finite)[0]
            name = names[self.columns[column]] if names else str(self.columns[column])
            _refuse_value(values[row, column], first_row + row, name)
        return values

    def numbers(self) -> list[Any]:
        """All that its result depends on."""
        return [self.columns, self.centre, self.spread, self.fill]


def _refuse_value(value: float, row: int, name: str) -> None:
    raise InputError(f"features hold {value} at row {row}, column {name}: correct the data, or ask for impute='mean'")


def _statistics(
    block: tuple[int, int], features: Features, impute: str | None, rows: NDArray[np.int64]
) -> tuple[Any, ...]:
    """Count, mean, squares, extremes and checksum of one block, by column; and those of ``rows`` that lie in it."""
    read = features.read(*block)
    first, last = np.searchsorted(rows, block)
    picked = np.asarray(read[rows[first:last] - block[0]])
    # In row order: numpy sums a block that lies column by column in another order.
    values = np.ascontiguousarray(read, np.float64)
    finite = np.isfinite(values)
    if not finite.all() and impute is None:
        row, column = np.argwhere(~finite)[0]
        _refuse_value(values[row, column], block[0] + row, features.names[column])
    count = finite.sum(axis=0)
    mean = np.where(finite, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    squares = (np.where(finite, values - mean, 0.0) ** 2).sum(axis=0)
    low = np.where(finite, values, np.inf).min(axis=0)
    high = np.where(finite, values, -np.inf).max(axis=0)
    return count, mean, squares, low, high, google_crc32c.value(values.reshape(-1).view(np.uint8)), picked


def fit_scaling(
    features: Features,
    scale: str,
    workers: Workers,
    *,
    impute: str | None = None,
    rows: NDArray[np.int64] | None = None,
) -> tuple[Scaling, NDArray[Any]]:
    """Find each column's centre and spread in one pass; constant columns are dropped and named.

    ``rows``, ascending, are picked on the way and returned; ``robust`` takes median and quartiles from them.
    """
    if scale not in SCALES:
        raise InputError(f"scale={scale!r}: expected one of {', '.join(map(repr, SCALES))}")
    if impute not in IMPUTES:
        raise InputError(f"impute={impute!r}: expected None or 'mean'")
    chosen = np.empty(0, np.int64) if rows is None else rows
    parts = features.each_block(workers, _statistics, impute, chosen)
    count, mean, squares, low, high, checksum, own = next(parts)
    checksums, picked = [checksum], [own]
    for n, m, s, bottom, top, checksum, own in parts:
        checksums.append(checksum)
        picked.append(own)
        total = np.maximum(count + n, 1)
        squares = squares + s + (m - mean) ** 2 * count * n / total
        mean = (mean * count + m * n) / total
        count, low, high = count + n, np.minimum(low, bottom), np.maximum(high, top)
    sample = np.concatenate([own for own in picked if len(own)] or picked[:1])
    constant = ~(low < high)
    if constant.all():
        raise InputError("every feature is constant: there is nothing to cluster by")
    if constant.any():
        dropped = ", ".join(np.asarray(features.names)[constant])
        warnings.warn(f"constant columns dropped: {dropped}", FeatureWarning, stacklevel=2)
    used = np.flatnonzero(~constant)
    centre, spread = np.zeros(features.n_features), np.ones(features.n_features)
    if scale == "standard":
        centre, spread = mean, np.sqrt(squares / np.maximum(count, 1))
    elif scale == "minmax":
        centre, spread = low, high - low
    elif scale == "robust":
        quartiles = np.nanpercentile(np.where(np.isfinite(sample), sample, np.nan), [25, 50, 75], axis=0)
        centre, spread = quartiles[1], quartiles[2] - quartiles[0]
        spread = np.where(spread > 0, spread, 1.0)
    content = hashlib.blake2b(
        repr((features.n_samples, features.names, checksums)).encode(), digest_size=16
    ).hexdigest()
    scaling = Scaling(used, centre[used], spread[used], mean[used] if impute == "mean" else None, content)
    return scaling, sample


def draw_rows(n_samples: int, count: int, seed: int) -> NDArray[np.int64]:
    """Row numbers drawn at random without repetition, ascending."""
    if count >= n_samples:
        return np.arange(n_samples)
    return np.sort(np.random.default_rng(seed).choice(n_samples, count, replace=False, shuffle=False))
