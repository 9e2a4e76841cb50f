"""Tables in files, .csv, .tsv, .parquet, .feather and .arrow, and in memory → blocks of columns. The one reader of all.

Base labels, features, known classes and row ids all come through here, so that every command sees the same rows and
columns of a file. One block at a time is in memory. Names given twice, no names at all and lines of unequal length are
refused. The cells of a .csv or .tsv file stay text; what they mean is for the modules above.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import fsspec
import numpy as np

from cehm_dask.data.delimited import Records
from cehm_dask.data.files import exists
from cehm_dask.errors import InputError, InputTypeError, NotFoundError
from cehm_dask.wording import option, spoken

TEXT_SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
ARROW_SUFFIXES = (".feather", ".arrow")
SUFFIXES = (*TEXT_SUFFIXES, ".parquet", *ARROW_SUFFIXES)

BLOCK_BYTES = 1 << 20
"""Of a .parquet file, decoded, in one go."""


class Table:
    """Named columns of rows in a file."""

    path: str
    names: list[str]
    index: Sequence[str] = ()
    """Columns that the file itself says name the rows; not among ``names``."""

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        """Record batches of some columns, in the order of the rows."""
        raise NotImplementedError

    def require(self, column: str) -> None:
        """An error if there is no such column."""
        if column not in self.names and column not in self.index:
            raise InputError(f"{self.path}: no column {column!r}; there are {', '.join([*self.names, *self.index])}")

    def without(self, leave_out: Sequence[str], what: str) -> list[str]:
        """The columns but some, which must be there; one that names the rows by its name must be among those."""
        return columns_without(self.path, self.names, self.index, leave_out, what)


def columns_without(
    source: str, names: Sequence[str], index: Sequence[str], leave_out: Sequence[str], what: str
) -> list[str]:
    """The names of a table but some, which must be there; ``what`` a column is, in errors."""
    for name in leave_out:
        if name not in names and name not in index:
            raise InputError(f"{source}: no column {name!r}; there are {', '.join([*names, *index])}")
    kept = [name for name in names if name not in leave_out]
    for name in kept:
        if _ROW_NAMES.fullmatch(name):
            raise InputError(
                f"{source}: column {name!r} names the rows and is no {what}: leave it out{id_option(name, what)}, or "
                "rename it if it is one"
            )
    return kept


def id_option(name: str, what: str) -> str:
    """How to say that a column names the rows; base labels in Python are columns of a frame, without such a word."""
    return f" ({option('id', name)})" if what == "feature" or spoken() != "python" else ""


_ROW_NAMES = re.compile(
    r"id|index|idx|row[_ ]?(id|name|names|number|index)?|uuid|unnamed: ?[0-9]+|level_0", re.IGNORECASE
)


class Csv(Table):
    """A .csv or .tsv file, compressed with gzip or not; all cells are text."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._records = Records(path)
        self.names = self._records.names
        _refuse_names(path, self.names)

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.csv

        places = [str(self.names.index(name)) for name in columns]
        fields = [str(place) for place in range(len(self.names))]
        wrong: list[Any] = []

        def note(row: Any) -> str:
            wrong.append(row)
            return "error"

        parsing = pyarrow.csv.ParseOptions(
            delimiter=self._records.separator,
            newlines_in_values=True,
            ignore_empty_lines=False,
            invalid_row_handler=note,
        )
        kinds = {field: pa.string() for field in fields}
        converting = pyarrow.csv.ConvertOptions(column_types=kinds, include_columns=places)
        for content, line in self._records.blocks():
            reading = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(content) + 1, column_names=fields)
            try:
                found = pyarrow.csv.read_csv(pa.BufferReader(content), reading, parsing, converting)
            except pa.ArrowInvalid as error:
                raise self._explained(error, wrong, content, line) from error
            yield from found.rename_columns(list(columns)).to_batches()

    def _explained(self, error: Exception, wrong: Sequence[Any], content: bytes, line: int) -> InputError:
        if not wrong:
            self._records.refuse_other_bytes(content, line)
            return InputError(f"{self.path}: from line {line} on: {error}")
        row, separator = wrong[0], self._records.separator
        more = row.actual_columns > row.expected_columns
        if more and row.text.rstrip().endswith(separator):
            remedy = "remove the separator at its end"
        elif more:
            remedy = "put cells that hold the separator in quotes"
        else:
            remedy = "give every column a cell; where a value is missing, the cell is empty"
        number = self._records.line_of(row.number, content, line)
        return InputError(
            f"{self.path}: line {number} has {row.actual_columns} cells where the line of names has "
            f"{row.expected_columns}: {remedy}"
        )


class TypedTable(Table):
    """A table whose columns have types, read from the start or by rows."""

    schema: Any
    n_rows: int

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        """Rows start to stop of some columns, as an Arrow table; safe to call from many threads."""
        raise NotImplementedError

    def refuse_types(self, columns: Sequence[str], accepted: Callable[[Any], bool], expected: str) -> None:
        """An error if a column has another type than accepted."""
        for name in columns:
            kind = self.schema.field(name).type
            if not accepted(kind):
                raise InputTypeError(
                    f"{self.path}: column {name!r} holds {kind}: {expected}; leave it out, or encode it"
                )

    def _name_columns(self) -> None:
        """Columns by name, without those that are the index of a pandas frame, which names its rows."""
        _refuse_names(self.path, self.schema.names)
        note = (self.schema.metadata or {}).get(b"pandas", b"{}")
        try:
            noted = json.loads(note).get("index_columns", [])
            self.index = [name for name in noted if isinstance(name, str)]
        except (ValueError, AttributeError, TypeError) as error:
            raise InputError(f"{self.path}: the pandas metadata in it is damaged ({error}): create it again") from error
        self.names = [name for name in self.schema.names if name not in self.index]


class ArrowTable(TypedTable):
    """A table in memory."""

    def __init__(self, source: str, table: Any) -> None:
        self.path, self._table = source, table
        self.schema, self.n_rows = table.schema, table.num_rows
        self._name_columns()

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        rows = max(1, BLOCK_BYTES // (8 * max(1, len(columns))))
        for batch in self._table.select(list(columns)).to_batches(rows):
            yield batch.replace_schema_metadata(None)

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        return self._table.select(list(columns)).slice(start, stop - start).replace_schema_metadata(None)


class ArrowFile(TypedTable):
    """A .feather or .arrow file, one of its record batches in memory at a time."""

    def __init__(self, path: str) -> None:
        self.path = path
        with self._opened([0]) as reader:  # of one column, the others need not be decompressed
            rows = [reader.get_batch(number).num_rows for number in range(reader.num_record_batches)]
        with self._opened(None) as reader:
            self.schema = reader.schema
        self._edges = np.cumsum([0, *rows])
        self.n_rows = int(self._edges[-1])
        self._name_columns()

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        for number in range(len(self._edges) - 1):
            yield from self._batch(number, columns).to_batches()

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        import pyarrow as pa

        first, last = (int(at) for at in np.searchsorted(self._edges, [start, stop - 1], side="right") - 1)
        parts = [self._batch(number, columns) for number in range(first, last + 1)]
        return pa.concat_tables(parts).slice(start - int(self._edges[first]), stop - start)

    def _batch(self, number: int, columns: Sequence[str]) -> Any:
        import pyarrow as pa

        # A reader of its own: one is not safe to share between threads.
        with self._opened(sorted(self.schema.get_field_index(name) for name in columns)) as reader:
            found = pa.Table.from_batches([reader.get_batch(number)])
            return found.select(list(columns)).replace_schema_metadata(None)

    @contextmanager
    def _opened(self, fields: list[int] | None) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.ipc

        filesystem, place = fsspec.core.url_to_fs(self.path)
        try:
            with pa.memory_map(place) if "file" in filesystem.protocol else filesystem.open(place, "rb") as file:
                yield pyarrow.ipc.open_file(file, options=pyarrow.ipc.IpcReadOptions(included_fields=fields))
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise InputError(
                f"{self.path}: no Arrow file, or a damaged one ({error}): create it again (pandas: to_feather; a "
                "stream of Arrow, or version 1 of Feather, is another format)"
            ) from error


class Parquet(TypedTable):
    """A .parquet file, or the files of a folder in the order of their names; read from the start or by rows."""

    def __init__(self, path: str) -> None:
        self.path = path
        filesystem, place = fsspec.core.url_to_fs(path)
        self._filesystem = filesystem
        self.files = [place]
        if filesystem.isdir(place):
            self.files = sorted(filesystem.glob(f"{place.rstrip('/')}/*.parquet"))
            if deeper := filesystem.glob(f"{place.rstrip('/')}/*/**/*.parquet"):
                raise InputError(f"{path}: {deeper[0]} lies in another folder: put all .parquet files into one")
            if not self.files:
                raise NotFoundError(f"{path}: the folder holds no .parquet file")
        self.schema: Any = None
        self._groups: list[tuple[str, int]] = []
        rows = [0]
        for file in self.files:
            with self._opened(file) as reader:
                if self.schema is None:
                    self.schema = reader.schema_arrow
                elif reader.schema_arrow.names != self.schema.names:
                    raise InputError(
                        f"{file} has columns {reader.schema_arrow.names}, {self.files[0]} has {self.schema.names}: "
                        "they must be the same"
                    )
                for group in range(reader.metadata.num_row_groups):
                    self._groups.append((file, group))
                    rows.append(reader.metadata.row_group(group).num_rows)
        self._edges = np.cumsum(rows)
        self.n_rows = int(self._edges[-1])
        self._name_columns()

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        # Without the notes of other programs, which Arrow would trust: types and names say all.
        rows = max(1, BLOCK_BYTES // (8 * max(1, len(columns))))
        for file in self.files:
            with self._opened(file) as reader:
                for batch in reader.iter_batches(rows, columns=list(columns)):
                    yield batch.replace_schema_metadata(None)

    def rows(self, start: int, stop: int, columns: Sequence[str]) -> Any:
        first, last = (int(at) for at in np.searchsorted(self._edges, [start, stop - 1], side="right") - 1)
        parts = []
        for file, group in self._groups[first : last + 1]:
            # A reader of its own: one is not safe to share between threads.
            with self._opened(file) as reader:
                part = reader.read_row_group(group, columns=list(columns))
                parts.append(part.replace_schema_metadata(None))
        import pyarrow as pa

        return pa.concat_tables(parts, promote_options="permissive").slice(
            start - int(self._edges[first]), stop - start
        )

    @contextmanager
    def _opened(self, file: str) -> Iterator[Any]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(file, filesystem=self._filesystem) as reader:
                yield reader
        except (pa.ArrowException, OSError) as error:
            # Arrow's own errors about content carry no number of the operating system.
            if isinstance(error, OSError) and (error.errno is not None or isinstance(error, FileNotFoundError)):
                raise
            raise InputError(f"{file}: no Parquet file, or a damaged one ({error}): create it again") from error


def is_table(path: str) -> bool:
    """Whether a path or URL names a table: by its ending, or because it is a folder."""
    if path.endswith(SUFFIXES):
        return True
    filesystem, place = fsspec.core.url_to_fs(path)
    return bool(filesystem.isdir(place))


def open_table(path: str, what: str = "table") -> Csv | TypedTable:
    """A file of one of SUFFIXES, or a folder of .parquet files, its names checked."""
    if not exists(path):
        raise NotFoundError(f"{what} {path}: no such file or folder")
    if path.endswith(TEXT_SUFFIXES):
        return Csv(path)
    return ArrowFile(path) if path.endswith(ARROW_SUFFIXES) else Parquet(path)


def _refuse_names(path: str, names: Sequence[str]) -> None:
    for place, name in enumerate(names, start=1):
        if not name:
            raise InputError(
                f"{path}: column {place} of {len(names)} has no name: give it one, or save the table without it "
                "(row numbers of pandas: to_csv(index=False); commas at the ends of the lines: remove them)"
            )
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(f"{path}: more than one column is called {twice[0]!r}: give each a name of its own")
