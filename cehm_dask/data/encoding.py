"""Columns of labels → codes, one member at a time: what a label is, and which ones are refused.

Between the tables and the labels. A member's labels are found in one pass over blocks of rows and turned into codes in
a second one; ``fit`` and ``import`` both come through here, so a file means the same to either. Code 0 is a missing
label, the others count the member's labels in ascending order, from 1.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.columns import below_minus_one, columns_of, encode_column, no_label, read_number_block
from cehm_dask.data.delimited import BOOLEANS, MISSING, NUMBER
from cehm_dask.data.tables import Csv, TypedTable, id_option, open_table
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.progress import NO_PROGRESS, Progress

Columns = list[Any]
"""One array or column of a frame per member."""

READ_ROWS = 1 << 16
READ_BYTES = 16 << 20
"""Of an array or frame, in one go: no more than either."""

MOST_LABELS = 1 << 17
"""Of one member; tables of as many hyperedges times as many would take 68 GB."""

FEWEST_IDS = 20
"""Rows from which on values that are nearly all different are taken for names of the rows."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Rows of base labels that can be gone through more than once: names of the members, and blocks of columns."""

    names: tuple[str, ...]
    blocks: Callable[[], Iterator[Columns]]
    source: str
    table: Csv | TypedTable | None = None
    """The file, if the columns are those of one."""


def table_stream(path: str, leave_out: Sequence[str] = ()) -> Stream:
    """The columns of a .csv or .parquet file, or of a folder of .parquet files, as members."""
    table = open_table(path, "base labels")
    names = table.without(leave_out, "member")
    if isinstance(table, Csv):
        return Stream(tuple(names), lambda: (batch.columns for batch in table.batches(names)), path, table)
    import pandas as pd
    import pyarrow as pa

    kinds = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32", "Float64")
    nullable = {getattr(pa, kind.lower())(): getattr(pd, f"{kind}Dtype")() for kind in kinds}
    table.refuse_types(names, _may_hold_labels, "labels are whole numbers, texts, categories, or true and false")

    def blocks() -> Iterator[Columns]:
        for batch in table.batches(names):
            yield columns_of(batch.to_pandas(types_mapper=nullable.get))

    return Stream(tuple(names), blocks, path, table)


def rows_read(n_members: int) -> int:
    """Rows of an array or frame that are read in one go."""
    return max(1, min(READ_ROWS, READ_BYTES // (8 * max(1, n_members))))


def array_stream(array: Any, source: str) -> Stream:
    """Numpy, mapped, Zarr and dask arrays: anything with a shape that gives rows when sliced."""
    if len(array.shape) != 2:
        raise InputError(f"base labels have shape {tuple(array.shape)}: expected n_samples × n_members")
    rows = rows_of_array(array)

    def blocks() -> Iterator[Columns]:
        for start in range(0, array.shape[0], rows):
            part = array[start : start + rows]
            yield list(read_number_block(np.asarray(part)).T)

    return Stream(tuple(str(j) for j in range(array.shape[1])), blocks, source)


def rows_of_array(array: Any) -> int:
    """Rows of an array that are read in one go: of a Zarr array, whole shards."""
    rows = rows_read(array.shape[1])
    chunks = getattr(array, "chunks", None)
    if chunks and isinstance(chunks[0], int):  # read whole chunks of a Zarr array
        shard = (getattr(array, "shards", None) or chunks)[0]
        rows = max(1, rows // shard) * int(shard)
    return rows


def _may_hold_labels(kind: Any) -> bool:
    import pyarrow.types as of

    if of.is_dictionary(kind):
        kind = kind.value_type
    texts = (of.is_string, of.is_large_string, of.is_string_view)
    return any(test(kind) for test in (of.is_integer, of.is_floating, of.is_boolean, of.is_null, *texts))


# --- found in one pass, coded in the next ----------------------------------------------------------------------------


class Member(Protocol):
    """The labels of one member: ``look`` at all blocks, ``settle``, then ``code`` them."""

    def look(self, column: Any, first_row: int) -> None: ...

    def settle(self) -> NDArray[Any]:
        """All labels, ascending: whole numbers or texts."""
        ...

    def code(self, column: Any, first_row: int) -> NDArray[np.int64]: ...


class TypedMember:
    """A member whose column has a type: of an array, a frame or a .parquet file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.known: NDArray[Any] = np.empty(0, np.int64)

    def look(self, column: Any, first_row: int) -> None:
        known, _ = encode_column(column, self.name, first_row)
        if known.dtype.kind != "U":
            known = known.astype(np.uint64)  # of one type in all blocks: numpy joins signed with unsigned as floats
        if not len(self.known):
            self.known = known
        elif len(known):
            if known.dtype.kind != self.known.dtype.kind:
                raise InputTypeError(
                    f"member {self.name} holds numbers in some rows and text in others, from row {first_row} on: "
                    "make it one"
                )
            self.known = np.union1d(self.known, known)
        _refuse_many(self.name, len(self.known), first_row + len(column))

    def settle(self) -> NDArray[Any]:
        known = self.known
        if known.dtype.kind != "U" and (not len(known) or known[-1] < 2**63):
            known = known.astype(np.int64)
        self.known = known
        return known

    def code(self, column: Any, first_row: int) -> NDArray[np.int64]:
        known, ranks = encode_column(column, self.name, first_row)
        places = np.searchsorted(self.known, known.astype(self.known.dtype))
        found = np.append(self.known, self.known[-1:])[places] if len(self.known) else known[:0]
        if len(found) != len(known) or not np.array_equal(found.astype(known.dtype), known):
            raise _changed(self.name)
        return np.asarray(np.append(places + 1, 0)[ranks])


class TextMember:
    """A member whose column is text: numbers if every cell with a value is one, so are true and false; else text."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first_rows: dict[str, int] = {}
        """Where each cell, without spaces around it, was seen first."""
        self.codes: dict[str, int] = {}

    def look(self, column: Any, first_row: int) -> None:
        cells, places = _dictionary(column)
        # Places count the cells in the order of their first row.
        firsts = np.flatnonzero(np.diff(np.maximum.accumulate(places), prepend=-1)) + first_row
        for cell, row in zip(cells, firsts.tolist(), strict=True):
            self.first_rows.setdefault(cell, row)
        _refuse_many(self.name, len(self.first_rows), first_row + len(places))

    def settle(self) -> NDArray[Any]:
        cells = [cell for cell in self.first_rows if cell not in MISSING]
        comments = [cell for cell in cells if cell.startswith("#")]
        if comments and len(comments) < len(cells) and all(map(is_number, set(cells) - set(comments))):
            raise InputError(
                f"base labels hold {comments[0][:40]!r} at row {self.first_rows[comments[0]]}, member {self.name}, "
                "among numbers: remove comments from the file"
            )
        if all(map(is_number, cells)):
            return self._settled({cell: self._number(cell) for cell in cells})
        if all(cell in BOOLEANS for cell in cells):
            return self._settled({cell: BOOLEANS[cell] for cell in cells})
        return self._settled({cell: cell for cell in cells})

    def _settled(self, labels: dict[str, Any]) -> NDArray[Any]:
        known = sorted({label for label in labels.values() if label != -1})
        ranks = {label: rank for rank, label in enumerate(known, start=1)}
        self.codes = dict.fromkeys(self.first_rows, 0) | {cell: ranks.get(label, 0) for cell, label in labels.items()}
        if known and isinstance(known[0], str):
            return np.array(known, np.str_)
        return np.array(known, np.uint64 if known and known[-1] >= 2**63 else np.int64)

    def _number(self, cell: str) -> int:
        number = int(cell) if _INTEGER.fullmatch(cell) else float(cell)
        if isinstance(number, float):
            if not (np.isfinite(number) and number == np.rint(number) and abs(number) < 2.0**62):
                raise no_label(cell, self.first_rows[cell], self.name)
            number = int(number)
        if number < -1:
            raise below_minus_one(cell, self.first_rows[cell], self.name)
        return number

    def code(self, column: Any, first_row: int) -> NDArray[np.int64]:
        cells, places = _dictionary(column)
        try:
            codes = np.array([self.codes[cell] for cell in cells], np.int64)
        except KeyError:
            raise _changed(self.name) from None
        return np.asarray(codes[places])


_INTEGER = re.compile(r"[+-]?[0-9]+")


def is_number(cell: str) -> bool:
    """Whether a cell is a number; digits beyond 64 bits are text, so that they stay apart.

    >>> is_number("-1"), is_number("2.5e3"), is_number("7a"), is_number("9" * 30)
    (True, True, False, False)
    """
    if not NUMBER.fullmatch(cell):
        return False
    return not _INTEGER.fullmatch(cell) or (len(cell) < 40 and int(cell) < 2**64)


def _dictionary(column: Any) -> tuple[list[str], NDArray[Any]]:
    """The different cells of a text column, in the order of their first row, and the place of each row's among them."""
    encoded = column.dictionary_encode()
    return [cell.strip() for cell in encoded.dictionary.to_pylist()], encoded.indices.to_numpy()


def _refuse_many(name: str, count: int, rows: int) -> None:
    if count > MOST_LABELS:
        raise InputError(
            f"member {name} has {count:,} different labels in {rows:,} rows, at most {MOST_LABELS:,} are supported: is "
            "it a column of numbers that name the rows? leave it out"
        )


def _changed(name: str) -> InputError:
    return InputError(f"member {name} holds labels that were not there a moment ago: the input changed; run again")


@dataclass(frozen=True, eq=False)
class Survey:
    """All that a first pass over base labels finds: their number and every member's labels."""

    stream: Stream
    n_samples: int
    members: tuple[Member, ...]
    values: tuple[NDArray[Any], ...]
    """The labels of every member, ascending."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Slots of every member: its labels, and one for missing labels."""
        return tuple(len(known) + 1 for known in self.values)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest that holds every code."""
        return np.dtype(np.min_scalar_type(max(self.widths) - 1))

    def codes(self) -> Iterator[NDArray[Any]]:
        """Codes of all rows, one block after the other: the second pass."""
        row = 0
        for columns in self.stream.blocks():
            codes = np.empty((len(columns[0]), len(self.members)), self.dtype)
            for j, (member, column) in enumerate(zip(self.members, columns, strict=True)):
                codes[:, j] = member.code(column, row)
            row += len(codes)
            if row > self.n_samples:
                break
            yield codes
        if row != self.n_samples:
            raise InputError(f"{self.stream.source} had {self.n_samples} rows a moment ago: it changed; run again")


def survey(stream: Stream, progress: Progress = NO_PROGRESS) -> Survey:
    """Go through all rows once."""
    if not stream.names:
        raise InputError("n_members=0: base labels need at least one column")
    text = isinstance(stream.table, Csv)
    members = tuple(TextMember(name) if text else TypedMember(name) for name in stream.names)
    row = 0
    for columns in stream.blocks():
        for member, column in zip(members, columns, strict=True):
            member.look(column, row)
        row += len(columns[0])
        progress.advanced("checked", row, None)
    if row == 0:
        raise InputError(f"n_samples=0: base labels need at least one row; {stream.source} has none")
    if text and all(isinstance(member, TextMember) and member.name in member.first_rows for member in members):
        raise InputError(
            f"{stream.source}: the first line, {', '.join(stream.names)[:40]!r}, is found among the rows again: put a "
            "line of names before the rows, and only there"
        )
    values = tuple(member.settle() for member in members)
    if stream.table is not None:
        _refuse_ids(stream, values, row)
    return Survey(stream, row, members, values)


def _refuse_ids(stream: Stream, values: Sequence[NDArray[Any]], n_samples: int) -> None:
    """An error if a column of a file names its rows.

    It does if it is called an id and half of its values differ, if it is text and nearly all of them do, and if all do:
    clusters of one row each say nothing.
    """
    if n_samples < FEWEST_IDS:
        return
    for name, known in zip(stream.names, values, strict=True):
        share = len(known) / n_samples
        by_values = share == 1 or (known.dtype.kind == "U" and share > 0.9)
        if by_values or (_CALLED_ID.search(name) and share > 0.5):
            raise InputError(
                f"{stream.source}: column {name!r} has {len(known)} different values in {n_samples} rows, so it names "
                f"the rows and is no member: leave it out{id_option(name, 'member')}"
                + ("" if by_values else ", or rename it if it is one")
            )


_CALLED_ID = re.compile(r"(_|-| )(id|ID|Id)$|[a-z](Id|ID)$")
