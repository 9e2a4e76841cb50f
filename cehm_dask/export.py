"""Labels, margins and confidences → a file that people and programs open: .npy, .csv or .parquet, with row ids.

Beside the report, after the consensus. Arrays and stores alike are written block by block. Nothing is overwritten
unless asked, and a file appears whole or not at all.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cehm_dask.files import kept_columns

SUFFIXES = (".npy", ".csv", ".parquet")
BLOCK_ROWS = 1 << 18
"""Rows in memory at a time: one row group of a .parquet file."""

WHOLE = r"0|-?[1-9][0-9]{0,17}"
"""Text that is a number and nothing else; 007 is not."""

OWN_NAMES = ("label", "margin", "confidence")
"""Columns of a result; ids of such a name get another."""


@dataclass(frozen=True, eq=False)
class RowIds:
    """What the rows are called, block by block: a column of the user's table, or their numbers."""

    name: str
    blocks: Callable[[], Iterator[Any]]


def row_numbers(n_samples: int) -> RowIds:
    """0, 1, 2, …"""
    starts = range(0, n_samples, BLOCK_ROWS)
    return RowIds("row", lambda: (np.arange(start, min(start + BLOCK_ROWS, n_samples)) for start in starts))


def column_ids(path: str, column: str) -> RowIds:
    """A column of a .csv or .parquet file, or of the files of a folder; text stays as it is, zeros in front too."""
    table = Path(path)
    if table.suffix == ".csv":
        return _from_csv(table, column)
    import pyarrow.parquet as pq

    parts = sorted(table.glob("*.parquet")) if table.is_dir() else [table]
    for part in parts:
        kept_columns(pq.ParquetFile(part).schema_arrow.names, [column], part)

    def blocks() -> Iterator[Any]:
        for part in parts:
            for batch in pq.ParquetFile(part).iter_batches(BLOCK_ROWS, columns=[column]):
                yield batch.column(0)

    return RowIds(_id_name(column), blocks)


def _id_name(column: str) -> str:
    return f"{column}_id" if column in OWN_NAMES else column


def _from_csv(path: Path, column: str) -> RowIds:
    import pandas as pd

    kept_columns(list(pd.read_csv(path, nrows=0).columns), [column], path)

    def texts() -> Iterator[Any]:
        options: dict[str, Any] = {"usecols": [column], "dtype": str, "keep_default_na": False}
        with pd.read_csv(path, chunksize=BLOCK_ROWS, **options) as reader:
            for part in reader:
                yield part[column]

    numbers = all(bool(part.str.fullmatch(WHOLE).all()) for part in texts())
    return RowIds(_id_name(column), lambda: (part.astype(np.int64) if numbers else part for part in texts()))


def check_path(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a place the result could not be written to."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"output {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"output {path} exists: choose another name, or pass --overwrite")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output {path}: the folder {path.parent} does not exist")


def write(path: Path, labels: Any, margin: Any, confidence: Any, ids: RowIds | None = None) -> None:
    """Write labels (.npy) or ids, labels, margins and confidences (.csv, .parquet), then put the file in place.

    Parameters
    ----------
    path : Path
    labels, margin, confidence : (n,) arrays of numpy or Zarr
    ids : RowIds, optional
        Default: row numbers.
    """
    arrays = (labels, margin, confidence)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    ids = ids or row_numbers(labels.shape[0])
    try:
        if path.suffix == ".npy":
            _write_npy(half, labels)
        elif path.suffix == ".csv":
            _write_csv(half, arrays, ids)
        else:
            _write_parquet(half, arrays, ids)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _write_npy(path: Path, labels: Any) -> None:
    with path.open("wb") as file:
        shape = {"descr": np.lib.format.dtype_to_descr(np.dtype(labels.dtype)), "fortran_order": False}
        np.lib.format.write_array_header_1_0(file, {**shape, "shape": (labels.shape[0],)})
        for start in range(0, labels.shape[0], BLOCK_ROWS):
            file.write(np.ascontiguousarray(labels[start : start + BLOCK_ROWS]))


def _rows(arrays: Sequence[Any], ids: RowIds) -> Iterator[tuple[Any, list[Any]]]:
    """Ids and what is known of their rows, in the blocks that the ids come in."""
    start, n = 0, arrays[0].shape[0]
    for block in ids.blocks():
        stop = start + len(block)
        if stop <= n:
            yield block, [np.asarray(array[start:stop]) for array in arrays]
        start = stop
    if start != n:
        raise ValueError(f"column {ids.name} names {start} rows, the result has {n}: they must be the same")


def _write_csv(path: Path, arrays: Sequence[Any], ids: RowIds) -> None:
    import pandas as pd

    for number, (block, columns) in enumerate(_rows(arrays, ids)):
        table = pd.DataFrame({ids.name: block, **dict(zip(OWN_NAMES, columns, strict=True))})
        table.to_csv(path, mode="a", header=number == 0, index=False)


def _write_parquet(path: Path, arrays: Sequence[Any], ids: RowIds) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for block, columns in _rows(arrays, ids):
            column = block if isinstance(block, pa.Array) else pa.array(block)
            table = pa.table([column, *columns], names=[ids.name, *OWN_NAMES])
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()
