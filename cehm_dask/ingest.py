"""Base labels of any size and form → ensemble.zarr, streamed.

The first stage for labels that are brought along: arrays, .npy, .csv, .parquet (a file, or a folder of files),
Zarr arrays, dask arrays and data frames. Two passes: one finds every member's labels, one writes their codes, a
whole shard at a time. No more than a few blocks are ever in memory.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.files import kept_columns
from cehm_dask.labels import (
    ArraySource,
    Labels,
    as_labels,
    columns_of,
    encode_column,
    labels_of_columns,
    read_number_block,
)
from cehm_dask.store import EnsembleWriter, create_ensemble, format_of, is_store, open_array, sole_writer

READ_ROWS = 1 << 17

Columns = list[Any]
"""One array or column of a frame a member."""
Report = Callable[[str, int], None]
"""Called with what is done and the number of rows it was done to."""


class Table:
    """Rows of base labels that can be gone through more than once: names of the members, and blocks of columns."""

    def __init__(self, names: Sequence[str], blocks: Callable[[], Iterator[Columns]], source: str) -> None:
        self.names = tuple(names)
        self.blocks = blocks
        self.source = source


def ingest(
    base_labels: Any,
    url: str,
    *,
    overwrite: bool = False,
    chunk_rows: int | None = None,
    leave_out: Sequence[str] = (),
    source: str | None = None,
    report: Report = lambda _what, _rows: None,
) -> str:
    """Write base labels to an ensemble.zarr; returns its fingerprint.

    ``leave_out`` names columns of a table that are no members, ``source`` what the store says its labels came from.
    """
    table = open_table(base_labels, leave_out)
    if not table.names:
        raise ValueError("n_members=0: base labels need at least one column")
    with sole_writer(url, overwrite=overwrite):
        n_samples, values = survey(table, report)
        identity = all(np.array_equal(known, np.arange(len(known))) for known in values)
        writer = create_ensemble(
            url,
            n_samples,
            [len(known) + 1 for known in values],
            names=table.names,
            values=None if identity else values,
            source=table.source if source is None else source,
            overwrite=overwrite,
            chunk_rows=chunk_rows,
        )
        sizes = [np.zeros(len(known) + 1, np.int64) for known in values]
        digests = []
        for shard, codes in enumerate(_shards(table, values, writer)):
            digests.append(writer.write(shard, codes))
            for j, size in enumerate(sizes):
                size += np.bincount(codes[:, j], minlength=len(size))
            report("written", len(codes))
        return writer.finish(digests, [size[1:] for size in sizes])


def survey(table: Table, report: Report = lambda _what, _rows: None) -> tuple[int, list[NDArray[Any]]]:
    """Number of rows, and the labels of every member, ascending."""
    n_samples = 0
    values: list[NDArray[Any] | None] = [None] * len(table.names)
    for columns in table.blocks():
        for j, (name, column) in enumerate(zip(table.names, columns, strict=True)):
            known, _ = encode_column(column, name, n_samples)
            values[j] = _joined(values[j], known, name, n_samples)
        n_samples += len(columns[0])
        report("checked", len(columns[0]))
    if n_samples == 0:
        raise ValueError("n_samples=0: base labels need at least one row")
    return n_samples, [np.empty(0, np.int64) if known is None else known for known in values]


def _joined(before: NDArray[Any] | None, known: NDArray[Any], name: str, row: int) -> NDArray[Any]:
    """Labels seen so far and those of one more block, ascending."""
    if known.dtype.kind != "U":
        known = known.astype(np.uint64)  # of one type in all blocks: numpy joins signed with unsigned as floats
    if before is None or not len(before):
        return known
    if len(known) and known.dtype.kind != before.dtype.kind:
        raise TypeError(f"member {name} holds numbers in some rows and text in others, from row {row} on: make it one")
    return np.union1d(before, known) if len(known) else before


def _shards(table: Table, values: Sequence[NDArray[Any]], writer: EnsembleWriter) -> Iterator[NDArray[Any]]:
    """Codes (0 = says nothing, else rank among the member's labels + 1), one whole shard after the other."""
    dtype = np.min_scalar_type(max(len(known) for known in values))
    held = np.empty((writer.shard_rows, writer.n_members), dtype)
    filled, row = 0, 0
    for columns in table.blocks():
        codes = np.empty((len(columns[0]), writer.n_members), dtype)
        for j, (name, column) in enumerate(zip(table.names, columns, strict=True)):
            known, ranks = encode_column(column, name, row)
            places = np.append(np.searchsorted(values[j], known.astype(values[j].dtype)) + 1, 0)
            codes[:, j] = places[ranks]
        row += len(codes)
        while len(codes):
            taken = min(len(codes), writer.shard_rows - filled)
            held[filled : filled + taken] = codes[:taken]
            codes, filled = codes[taken:], filled + taken
            if filled == writer.shard_rows:
                yield held
                filled = 0
    if filled:
        yield held[:filled]


def label_blocks(base_labels: Any) -> Iterator[Labels]:
    """Base labels in any accepted form as checked labels of some rows at a time, an ensemble.zarr among them."""
    if is_store(base_labels) and format_of(os.fspath(base_labels)) == "ensemble":
        labels = as_labels(base_labels)
        for start in range(0, labels.n_samples, READ_ROWS):
            rows = labels.source.read(start, min(start + READ_ROWS, labels.n_samples))
            yield replace(labels, source=ArraySource(rows), n_samples=len(rows), fingerprint="")
        return
    table = open_table(base_labels)
    first_row = 0
    for columns in table.blocks():
        yield labels_of_columns(columns, table.names, first_row)
        first_row += len(columns[0])


def open_table(base_labels: Any, leave_out: Sequence[str] = ()) -> Table:
    """Any accepted form of base labels as a table that can be streamed."""
    if isinstance(base_labels, str | os.PathLike):
        return _open_path(os.fspath(base_labels), leave_out)
    if isinstance(base_labels, list | tuple):
        base_labels = _stacked(base_labels)
    if hasattr(base_labels, "columns"):
        return _from_frame(base_labels, "a data frame")
    if not hasattr(base_labels, "shape"):
        base_labels = np.asarray(base_labels)
    return _from_array(base_labels, type(base_labels).__name__)


def _stacked(columns: Sequence[Any]) -> NDArray[Any]:
    arrays = [np.asarray(column) for column in columns]
    for j, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise ValueError(f"member {j} has shape {array.shape}, member 0 has {arrays[0].shape}: they must be equal")
    return np.stack(arrays, axis=1) if arrays else np.empty((0, 0), np.int64)


def _open_path(path: str, leave_out: Sequence[str]) -> Table:
    if is_store(path):
        return _from_array(open_array(path), path)
    local = Path(path)
    if not local.exists():
        raise FileNotFoundError(f"base labels {path}: no such file or folder")
    if local.is_dir() or local.suffix == ".parquet":
        return _from_parquet(local, leave_out)
    if local.suffix == ".npy":
        return _from_array(np.load(local, mmap_mode="r", allow_pickle=False), path)
    if local.suffix == ".csv":
        return _from_csv(local, leave_out)
    raise ValueError(f"base labels {path}: expected .npy, .csv, .parquet, a folder of .parquet files, or .zarr")


def _from_array(array: Any, source: str) -> Table:
    """Numpy, memory-mapped, Zarr and dask arrays: anything with a shape that gives rows when sliced."""
    if len(array.shape) != 2:
        raise ValueError(f"base labels have shape {tuple(array.shape)}: expected n_samples × n_members")
    rows = READ_ROWS
    chunks = getattr(array, "chunks", None)
    if chunks and isinstance(chunks[0], int):  # read whole chunks of a Zarr array
        shard = (getattr(array, "shards", None) or chunks)[0]
        rows = max(1, READ_ROWS // shard) * shard

    def blocks() -> Iterator[Columns]:
        for start in range(0, array.shape[0], rows):
            part = array[start : start + rows]
            yield list(read_number_block(np.asarray(part)).T)

    return Table([str(j) for j in range(array.shape[1])], blocks, source)


def _from_frame(frame: Any, source: str) -> Table:
    """pandas, polars and dask data frames; those of dask one partition at a time."""

    def blocks() -> Iterator[Columns]:
        parts = (part.compute() for part in frame.partitions) if hasattr(frame, "partitions") else [frame]
        for part in parts:
            for start in range(0, len(part), READ_ROWS):
                yield columns_of(part[start : start + READ_ROWS])

    return Table([str(name) for name in frame.columns], blocks, source)


def _from_csv(path: Path, leave_out: Sequence[str]) -> Table:
    import pandas as pd

    kept = kept_columns(list(pd.read_csv(path, nrows=0).columns), leave_out, path)

    def parts(types: dict[str, str] | None = None) -> Iterator[Any]:
        with pd.read_csv(
            path, dtype=types, chunksize=READ_ROWS, usecols=kept, low_memory=False, dtype_backend="numpy_nullable"
        ) as reader:
            yield from reader

    # One pass more: what is text in one block is text in all, as if the file were read in one go.
    kinds: dict[str, set[str]] = {}
    for part in parts():
        for name, dtype in part.dtypes.items():
            kinds.setdefault(name, set()).add(dtype.kind)
    text = {name: "string" for name, found in kinds.items() if not (found <= {*"iuf"} or found == {"b"})}
    return Table(list(kinds), lambda: map(columns_of, parts(text)), str(path))


def _from_parquet(path: Path, leave_out: Sequence[str]) -> Table:
    """A file, or the files of a folder in the order of their names."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64")
    nullable = {getattr(pa, kind.lower())(): getattr(pd, f"{kind}Dtype")() for kind in kinds}
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"base labels {path}: the folder holds no .parquet file")
    names = pq.ParquetFile(files[0]).schema_arrow.names
    kept = kept_columns(names, leave_out, files[0])

    def blocks() -> Iterator[Columns]:
        for file in files:
            reader = pq.ParquetFile(file)
            if reader.schema_arrow.names != names:
                raise ValueError(f"{file} has columns {reader.schema_arrow.names}, {files[0]} has {names}")
            for batch in reader.iter_batches(READ_ROWS, columns=kept):
                yield columns_of(batch.to_pandas(types_mapper=nullable.get))

    return Table(kept, blocks, str(path))
