"""Labels, margins and confidences → a file that people and programs open: .npy, .csv or .parquet, with row ids.

Beside the report, after the consensus. Arrays and stores alike are written block by block. Nothing is overwritten
unless asked, and a file appears whole or not at all. Text ids that a spreadsheet would take for formulas get an
apostrophe in front, in a .csv only.
"""

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.files import whole
from cehm_dask.data.tables import Csv, open_table
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.errors import ExistsError, InputError, NotFoundError
from cehm_dask.machine import Machine, require_memory, this_machine
from cehm_dask.wording import option

SUFFIXES = (".npy", ".csv", ".parquet")
BLOCK_ROWS = 1 << 18
"""Rows in memory at a time: one row group of a .parquet file."""

ID_BYTES, CELL_BYTES = 72, 300
"""Of the id of a row, and of a row on its way to text."""

WHOLE = r"0|-?[1-9][0-9]{0,17}"
"""Text that is a number and nothing else; 007 is not."""

FORMULA = re.compile(r"[=+\-@\t\r\n](?!(?<=[+-])[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?\Z)")
"""How a cell begins that spreadsheets would execute; -5 and +1.5e3 are numbers, and harmless."""

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
    table = open_table(path, "ids")
    table.require(column)

    def blocks() -> Iterator[Any]:
        return (batch.column(0) for batch in table.batches([column]))

    numbers = isinstance(table, Csv) and all(map(_all_whole, blocks()))
    return RowIds(_id_name(column), lambda: (block.cast("int64") if numbers else block for block in blocks()))


def _id_name(column: str) -> str:
    return f"{column}_id" if column in OWN_NAMES else column


def _all_whole(cells: Any) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.match_substring_regex(cells, f"^({WHOLE})$")).as_py())


def names_of(row_ids: Any, rows: NDArray[np.int64], n_samples: int) -> dict[int, str]:
    """What some rows are called, from an array or series of ids, or from blocks of them."""
    if not hasattr(row_ids, "blocks"):
        found = len(row_ids)
        if found != n_samples:
            raise InputError(f"row ids: {found:,} of them, the consensus has {n_samples:,} samples: one each is needed")
        by_place = row_ids.iloc if hasattr(row_ids, "iloc") else row_ids
        return {row: str(by_place[row]) for row in rows.tolist()}
    names: dict[int, str] = {}
    wanted, start = np.unique(rows), 0
    for block in row_ids.blocks():
        first, last = np.searchsorted(wanted, [start, start + len(block)])
        by_place = block.iloc if hasattr(block, "iloc") else block
        names |= {row: str(by_place[row - start]) for row in wanted[first:last].tolist()}
        start += len(block)
    if start != n_samples:
        raise InputError(f"row ids: {start:,} of them, the consensus has {n_samples:,} samples: one each is needed")
    return names


def check_path(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a place the result could not be written to."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"output {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if path.exists() and not overwrite:
        raise ExistsError(f"output {path} exists: choose another name, or pass {option('overwrite')}")
    if not path.parent.is_dir():
        raise NotFoundError(f"output {path}: the folder {path.parent} does not exist")


def terms(n_samples: int, suffix: str, machine: Machine) -> dict[str, int]:
    """Bytes that writing takes, by what they are for."""
    rows = min(n_samples, BLOCK_ROWS)
    return {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "labels, margins and confidences of a block": rows * 3 * (2 + 4 + 4),
        # a .csv as the objects and the text of its cells
        "ids of a block": 0 if suffix == ".npy" else rows * (3 * ID_BYTES),
        "text of a block": rows * CELL_BYTES if suffix == ".csv" else 0,
    }


def write(
    path: Path,
    labels: Any,
    margin: Any,
    confidence: Any,
    ids: RowIds | None = None,
    *,
    memory: str | int | None = None,
) -> None:
    """Write labels (.npy) or ids, labels, margins and confidences (.csv, .parquet), then put the file in place.

    Parameters
    ----------
    path : Path
    labels, margin, confidence : (n,) arrays of numpy or Zarr
    ids : RowIds, optional
        Default: row numbers.
    memory : int or str, optional
        Bytes this process may take in all, such as "2GiB"; default: a share of what is free.
    """
    machine = this_machine(memory)
    require_memory(f"{path.name}", terms(labels.shape[0], path.suffix, machine), machine.allowed, "")
    arrays = (labels, margin, confidence)
    ids = ids or row_numbers(labels.shape[0])
    with whole(path) as file:
        if path.suffix == ".npy":
            _write_npy(file, labels)
        elif path.suffix == ".csv":
            _write_csv(file, arrays, ids)
        else:
            _write_parquet(file, arrays, ids)


def _write_npy(file: BinaryIO, labels: Any) -> None:
    shape = {"descr": np.lib.format.dtype_to_descr(np.dtype(labels.dtype)), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, {**shape, "shape": (labels.shape[0],)})
    for start in range(0, labels.shape[0], BLOCK_ROWS):
        file.write(np.ascontiguousarray(labels[start : start + BLOCK_ROWS]).data)


def _rows(arrays: Sequence[Any], ids: RowIds) -> Iterator[tuple[Any, list[Any]]]:
    """Ids and what is known of their rows, in the blocks that the ids come in."""
    start, n = 0, arrays[0].shape[0]
    for block in ids.blocks():
        stop = start + len(block)
        if stop <= n:
            yield block, [np.asarray(array[start:stop]) for array in arrays]
        start = stop
    if start != n:
        raise InputError(f"column {ids.name} names {start} rows, the result has {n}: they must be the same")


def no_formula(cell: Any) -> Any:
    """A cell of a .csv as a spreadsheet may open it.

    >>> no_formula("=1+1"), no_formula("@a"), no_formula("-5"), no_formula("-5+a"), no_formula(-5)
    ("'=1+1", "'@a", '-5', "'-5+a", -5)
    """
    return f"'{cell}" if isinstance(cell, str) and FORMULA.match(cell) else cell


def _write_csv(file: Any, arrays: Sequence[Any], ids: RowIds) -> None:
    import pandas as pd

    for number, (block, columns) in enumerate(_rows(arrays, ids)):
        # Whole numbers with gaps stay whole: as floats, large ids would lose digits.
        named = pd.Series(block.to_pandas(integer_object_nulls=True) if hasattr(block, "to_pandas") else block)
        quoting: Any = csv.QUOTE_MINIMAL
        if named.dtype.kind == "O":
            named = pd.Series([no_formula(cell) for cell in named], dtype=object)
            if any("\r" in cell for cell in named if isinstance(cell, str)):
                quoting = csv.QUOTE_NONNUMERIC  # pandas does not quote a lone carriage return, which ends a line
        table = pd.DataFrame({no_formula(ids.name): named.to_numpy(), **dict(zip(OWN_NAMES, columns, strict=True))})
        table.to_csv(file, header=number == 0, index=False, quoting=quoting)


def _write_parquet(file: BinaryIO, arrays: Sequence[Any], ids: RowIds) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    try:
        for block, columns in _rows(arrays, ids):
            column = block if isinstance(block, pa.Array) else pa.array(block)
            table = pa.table([column, *columns], names=[ids.name, *OWN_NAMES])
            writer = writer or pq.ParquetWriter(file, table.schema)
            writer.write_table(table.cast(writer.schema))
    finally:
        if writer is not None:
            writer.close()
