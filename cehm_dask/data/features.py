"""Features in any accepted form → row blocks of numbers.

First stage of the flow for users who have features rather than base labels: numpy arrays, .npy (mapped), Zarr,
tables in files and in memory, dask arrays and data frames (``feature_blocks``), scipy sparse rows; local or in an
object store. Which columns of a table are features, and how they become numbers, says a ``Preparation``.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.arrays import is_store, open_array
from cehm_dask.data.arrow_columns import arrow_of
from cehm_dask.data.cells import kinds_of, typed
from cehm_dask.data.collections import is_collection
from cehm_dask.data.columns import refuse_annotated
from cehm_dask.data.feature_blocks import Chunks, feature_blocks_of, fixed_blocks, rows_of
from cehm_dask.data.files import absolute, exists, fingerprint, is_url, open_npy, open_remote_npy
from cehm_dask.data.names import places_of
from cehm_dask.data.preparation import Encoding, Preparation
from cehm_dask.data.tables import SUFFIXES, ArrowTable, Csv, TypedTable, is_table, open_table
from cehm_dask.errors import CehmError, InputError, InputTypeError, NotFoundError

BLOCK_ROWS = 1 << 16
"""Rows of a block; fixed, because sums of floats depend on where they are cut."""

AS_IS = Preparation()
"""All columns, none of them known beforehand."""

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
    encoding: Encoding | None = None
    """How the columns of a table became these; None: they had no names."""
    prepared: Preparation = AS_IS
    """What the user said about the columns."""

    def __reduce__(self) -> tuple[Any, ...]:
        if self.reopen is None:
            raise InputTypeError(
                f"features from {self.source} are held by this process: they cannot be sent to another"
            )
        return self.reopen, ()

    @property
    def n_features(self) -> int:
        return len(self.names)

    @property
    def indicators(self) -> NDArray[np.bool_]:
        """Which columns say 1 for one value of a category."""
        return np.zeros(self.n_features, bool) if self.encoding is None else self.encoding.indicators

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
        there = _OnChunks(work, self.n_samples, self.names, self.chunks.rows, self.encoding)
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

    def __init__(
        self, work: Callable[..., Any], n_samples: int, names: tuple[str, ...], rows: int, encoding: Encoding | None
    ) -> None:
        self.__name__ = work.__name__
        self._work, self._n_samples, self._names, self._rows = work, n_samples, names, rows
        self._encoding = encoding

    def __call__(self, piece: _Piece, parts: Sequence[Any], *shared: Any) -> Any:
        read = Chunks(parts, piece.first_row, self._rows).read
        own = Features(self._n_samples, self._names, read, "a dask collection", encoding=self._encoding)
        try:
            return self._work(piece.item, own, *shared)
        except CehmError as error:
            raise type(error)(f"{piece}: {error}") from None


def _selected(reopen: Callable[[], Features], names: tuple[str, ...]) -> Features:
    return reopen().select(names)


def as_features(X: Any, prepare: Preparation = AS_IS) -> Features:
    """Features in any accepted form, readable by rows.

    Parameters
    ----------
    X : array (n_samples, n_features), dask array, data frame, Arrow table, scipy sparse matrix, path or URL
        Files: .npy, .csv and .tsv (also .gz), .parquet, .feather, .arrow, .zarr (a Zarr array). Whatever exports itself
        as an Arrow stream is a table too.
    prepare : Preparation
        Which columns of a table are features, and how they become numbers.
    """
    return X if isinstance(X, Features) else replace(_opened(X, prepare), prepared=prepare)


def _opened(X: Any, prepare: Preparation) -> Features:
    if isinstance(X, str | os.PathLike):
        return _from_path(os.fspath(X), prepare)
    refuse_annotated(X, "features")
    series = hasattr(X, "to_frame") and getattr(X, "ndim", 1) == 1  # of any library
    lazy = hasattr(X, "collect_schema") and not hasattr(X, "to_numpy")  # a query of polars
    if series or lazy:
        raise _no_table(X)
    if is_collection(X):
        return _from_collection(X, prepare)
    if hasattr(X, "columns") or hasattr(X, "__arrow_c_stream__"):
        return _from_frame(X, prepare)
    if hasattr(X, "tocsr"):
        prepare.refuse_nameless("a sparse matrix")
        rows = X.tocsr()
        return _checked(rows.shape, lambda a, b: rows[a:b].toarray(), "a sparse matrix")
    if isinstance(X, Mapping):
        raise InputTypeError("X is a dict: expected rows of features; pandas.DataFrame(X) makes a table of its columns")
    if not hasattr(X, "shape"):
        X = np.asarray(X)
    prepare.refuse_nameless("an array")
    return _from_array(X, type(X).__name__)


def _from_path(path: str, prepare: Preparation) -> Features:
    reopen = partial(as_features, absolute(path), prepare)
    where: dict[str, Any] = {"reopen": reopen, "path": absolute(path)}
    store = is_store(path)
    if not store and not exists(path):
        raise NotFoundError(f"features {path}: no such file")
    if store or path.endswith(".npy"):
        prepare.refuse_nameless(path)
    if store:
        return replace(_from_array(open_array(path), path), **where)
    if path.endswith(".npy"):
        return replace(_checked(*open_remote_npy(path), path) if is_url(path) else _from_npy(path), **where)
    if is_table(path):
        table = open_table(path)
        if isinstance(table, Csv):
            return _from_csv(table, prepare)
        found = _from_typed(table, prepare)
        # Another process need not look for the categories again.
        again = partial(as_features, absolute(path), prepare.again(found.encoding))
        return replace(found, path=absolute(path), reopen=again)
    raise InputError(f"features {path}: expected a name that ends in .npy, .zarr, {', '.join(SUFFIXES)}")


def _from_npy(path: str) -> Features:
    return _from_array(open_npy(path, "features"), path)


def _from_array(array: Any, source: str) -> Features:
    """Numpy, memory-mapped and Zarr arrays."""
    if getattr(array, "dtype", None) is not None and np.dtype(array.dtype).kind not in "iufb":
        raise InputTypeError(f"features have dtype {array.dtype}: expected numbers")
    return _checked(array.shape, lambda a, b: np.asarray(array[a:b]), source)


def _from_frame(frame: Any, prepare: Preparation) -> Features:
    """pandas and polars frames, Arrow tables, and what exports itself as an Arrow stream."""
    source = "a data frame"
    if not _has_frame_columns(frame):
        return _from_typed(ArrowTable("a table", _streamed(frame)), prepare)
    names = [str(name) for name in frame.columns]
    if len(set(names)) == len(names):
        kept = prepare.kept(names, (), source, guess=False)
    else:
        kept = names
        if prepare.columns is not None or prepare.left_out:
            twice = next(name for name in names if names.count(name) > 1)
            raise InputError(f"{source}: column {twice!r} is there more than once, so none is found by name: rename it")
    if kept != names:
        places = [names.index(name) for name in kept]
        frame = frame.iloc[:, places] if hasattr(frame, "iloc") else frame[:, places]
    encoding = prepare.fitted or Encoding.of_numbers(kept)
    if encoding.plain and _is_plain(frame):
        values = np.asarray(frame.to_numpy())
        found = _checked(values.shape, lambda a, b: values[a:b], source, encoding.names)
        return replace(found, encoding=encoding)
    table = ArrowTable(source, arrow_of(frame))
    # The columns are chosen; what is left to say is how they are read.
    return _from_typed(table, replace(prepare, columns=tuple(kept), drop=(), id=None))


def _streamed(given: Any) -> Any:
    """An Arrow table of what exports itself as one; a frame that was not computed is none."""
    import pyarrow as pa

    try:
        return pa.table(given)
    except (pa.ArrowInvalid, TypeError, ValueError) as error:
        raise _no_table(given) from error


def _no_table(given: Any) -> InputTypeError:
    return InputTypeError(
        f"X is a {type(given).__name__}: expected a table of features, or n_samples × n_features numbers; put a single "
        "column into a table (to_frame()), and collect() a lazy frame"
    )


def _has_frame_columns(given: Any) -> bool:
    """Whether something is a pandas or polars frame; the ``columns`` of an Arrow table are arrays."""
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def _is_plain(frame: Any) -> bool:
    """Whether all columns of a pandas or polars frame are numbers that numpy has a type for."""
    if hasattr(frame, "iloc"):
        return all(isinstance(kind, np.dtype) and kind.kind in "iufb" for kind in frame.dtypes)
    return all(kind.is_numeric() and not kind.is_decimal() for kind in frame.dtypes)


def _from_collection(given: Any, prepare: Preparation) -> Features:
    found = feature_blocks_of(given, prepare)
    rows = rows_of(found)
    shape = (sum(rows), len(found.names))
    _refuse_shape(shape)
    chunks = fixed_blocks(found, rows, BLOCK_ROWS)
    return replace(_checked(shape, chunks.read, found.source, found.names), chunks=chunks, encoding=found.encoding)


def _from_typed(table: TypedTable, prepare: Preparation) -> Features:
    names = prepare.kept(table.names, table.index, table.path)
    kinds = {name: table.schema.field(name).type for name in names}
    encoding = prepare.encoding(kinds, lambda own: (batch.columns for batch in table.batches(own)), table.path)
    read_names = names if prepare.fitted else list(encoding.sources)

    def read(start: int, stop: int) -> NDArray[Any]:
        return encoding.numbers(table.rows(start, stop, read_names).columns, prepare.unseen)

    found = _checked((table.n_rows, len(encoding.names)), read, table.path, encoding.names)
    return replace(found, encoding=encoding)


def _from_csv(table: Csv, prepare: Preparation) -> Features:
    """Text cannot be read from the middle: it is turned once, block by block, into a temporary file of numbers."""
    names = prepare.kept(table.names, table.index, table.path)
    kinds = kinds_of(table, names)
    encoding = prepare.encoding(kinds, lambda own: typed(table, own, kinds), table.path)
    read_names = names if prepare.fitted else list(encoding.sources)
    rows, width = 0, len(encoding.names)
    # The file has no name: it goes when the last array that maps it does.
    with tempfile.TemporaryFile() as file:
        for columns in typed(table, read_names, kinds):
            values = np.ascontiguousarray(encoding.numbers(columns, prepare.unseen), np.float64)
            file.write(values.data)
            rows += len(values)
        if not rows:
            raise InputError(f"n_samples=0: {table.path} has no rows")
        file.flush()
        found = np.memmap(file, np.float64, "r", shape=(rows, width))
    features = _checked(found.shape, lambda a, b: found[a:b], table.path, encoding.names)
    return replace(features, encoding=encoding)


def _checked(shape: Sequence[int], read: Read, source: str, names: Sequence[str] | None = None) -> Features:
    _refuse_shape(shape)
    return Features(int(shape[0]), tuple(names or (str(j) for j in range(shape[1]))), read, source)


def _refuse_shape(shape: Sequence[int]) -> None:
    if len(shape) != 2:
        raise InputError(f"features have shape {tuple(shape)}: expected two dimensions, n_samples × n_features")
    if shape[0] == 0 or shape[1] == 0:
        raise InputError(f"features have shape {tuple(shape)}: at least one row and one column are needed")
