"""The text of a .csv file → whole records, checked.

Below the tables. A file is refused where a lenient reader would guess: no line of names, blank lines, quotes that are
not closed, bytes that are not UTF-8 text. Cells are taken apart by the tables above.

The separator is the comma, the semicolon, the tab or the bar, whichever the line of names uses.
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from cehm_dask.errors import InputError

BLOCK_BYTES = 1 << 19
"""Read in one go."""

LONGEST_RECORD = 1 << 24
"""Bytes of a record of a .csv file, at most; a quote that is not closed makes one of all lines that follow."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

SEPARATORS = ",;\t|"

MISSING = frozenset(
    {"", "NA", "N/A", "n/a", "<NA>", "#N/A", "#N/A N/A", "#NA", "NULL", "null", "None"}
    | {"NaN", "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
)
"""Cells of a .csv file that hold no value; the same as those of pandas."""

BOOLEANS = {"True": 1, "TRUE": 1, "true": 1, "False": 0, "FALSE": 0, "false": 0}

NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?inf(inity)?", re.IGNORECASE)
"""A whole cell that is a number."""

DEFAULT_NAMES = 4
"""From so many columns on, a first line 0,1,2,… is taken for the names that pandas gives, and not for a row."""

_BEGINNINGS = {
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
    b"\x1f\x8b": "compressed with gzip: give it a name that ends in .csv.gz",
    b"PK\x03\x04": "a spreadsheet or a zip archive: save it as .csv",
    b"PAR1": "a Parquet file: give it a name that ends in .parquet",
}


class Records:
    """The records of a file after its line of names."""

    def __init__(self, path: str) -> None:
        self.path = path
        blocks = self._blocks()
        header, body = next(blocks)
        self.separator = self._sniffed(header, body)
        self.names = self._names(header)

    def blocks(self) -> Iterator[tuple[bytes, int]]:
        """Whole records, and the number of the line that the first of them begins at."""
        line, blank = 1, 0
        for header, body in self._blocks():
            line += header.count(b"\n")
            content, blank = self._checked(body, line, blank)
            if content:
                yield content, line
            line += body.count(b"\n")

    def line_of(self, record: int, content: bytes, line: int) -> int:
        """Where a record of a block, counted from 1, ends; ``content`` and ``line`` are those of the block."""
        text = io.StringIO(content.decode(errors="replace"), newline="")
        records = csv.reader(text, delimiter=self.separator)
        for _ in range(record):
            next(records)
        return line + records.line_num - 1

    def refuse_other_bytes(self, content: bytes, line: int) -> None:
        """An error if a block is not UTF-8 text."""
        self._text(content, line)

    def _blocks(self) -> Iterator[tuple[bytes, bytes]]:
        """Whole records; with the first ones, the line of names before them."""
        filesystem, place = fsspec.core.url_to_fs(self.path)
        if filesystem.isdir(place):
            raise InputError(f"{self.path} is a folder: name a file in it, or a folder of .parquet files")
        with self._unpacked(filesystem, place) as file:
            held = file.read(max(BLOCK_BYTES, 4))
            if not held:
                raise InputError(f"{self.path} is empty (0 bytes): expected a line of names and a row per sample")
            for beginning, what in _BEGINNINGS.items():
                if held.startswith(beginning):
                    raise InputError(f"{self.path} is {what}")
            held = held.removeprefix(BYTE_ORDER_MARK)
            self._refuse_bytes(held, 1)
            while (end := _end_of_record(held, first=True)) == 0:
                more = file.read(BLOCK_BYTES)
                if not more:
                    end = len(held)
                    break
                held = self._longer(held, more)
            header, held = held[:end], held[end:]
            self._refuse_bytes(header, 1)
            pending = True
            while pending:
                more = file.read(BLOCK_BYTES)
                pending = bool(more)
                held = self._longer(held, more)
                end = _end_of_record(held) if pending else len(held)
                if end or not pending:
                    yield header, held[:end]
                    header, held = b"", held[end:]

    @contextmanager
    def _unpacked(self, filesystem: Any, place: str) -> Iterator[Any]:
        packed = "gzip" if self.path.endswith(".gz") else None
        try:
            with filesystem.open(place, "rb", compression=packed) as file:
                yield file
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(
                f"{self.path}: not compressed with gzip, or damaged ({error}): compress it again, or give it a name "
                "without .gz"
            ) from error

    def _longer(self, held: bytes, more: bytes) -> bytes:
        if len(held) > LONGEST_RECORD:
            raise InputError(
                f"{self.path}: a record is longer than {LONGEST_RECORD:,} bytes: is there a quote that is not closed?"
            )
        return held + more

    # --- the line of names ---

    def _sniffed(self, header: bytes, body: bytes) -> str:
        """The separator that the line of names uses."""
        first = body[: _end_of_record(body, first=True) or len(body)]
        bare, row = self._text(_without_quoted(header)), self._text(_without_quoted(first), 1 + header.count(b"\n"))
        found = [separator for separator in SEPARATORS if separator in bare]
        if len(found) > 1:
            alike = [separator for separator in found if bare.count(separator) == row.count(separator)]
            if len(alike) != 1:
                used = " and ".join(map(repr, found))
                raise InputError(
                    f"{self.path}: the line of names holds {used}: which of them separates the columns? "
                    "put names that hold the other one in quotes"
                )
            found = alike
        if not found:
            cells = re.split(r"[;\t| ]+", row.strip())
            if len(cells) > 1 and all(NUMBER.fullmatch(cell) for cell in cells):
                raise InputError(
                    f"{self.path}: the first line names one column, {bare.strip()!r}, and the next line holds "
                    f"{len(cells)} numbers, {row.strip()[:40]!r}: separate names and cells by commas"
                )
        return found[0] if found else ","

    def _names(self, header: bytes) -> list[str]:
        self._bare(header, 1)  # a quote inside a name would else make the lines that follow a part of it
        text = self._text(header)
        cells = next(csv.reader(io.StringIO(text, newline=""), delimiter=self.separator), [])
        names = [cell.strip() for cell in cells]
        if not any(names):
            raise InputError(f"{self.path}: line 1 is blank: expected a line of names")
        if names[0].startswith("#"):
            raise InputError(
                f"{self.path}: the first line is a comment, {names[0][:40]!r}: remove it, so that the names come first"
            )
        numbers = [str(place) for place in range(len(names))]
        default = len(names) >= DEFAULT_NAMES and names == numbers
        if all(NUMBER.fullmatch(name) for name in names) and not default:
            raise InputError(
                f"{self.path}: the first line holds numbers only, {', '.join(names)[:40]!r}: names or the first row? "
                f"put a line of names before the rows, such as m{f'{self.separator}m'.join(numbers)}"
            )
        return names

    def _text(self, content: bytes, line: int = 1) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            number = line + content.count(b"\n", 0, error.start)
            raise InputError(f"{self.path}: line {number} is not UTF-8 text: save the file as UTF-8") from error

    # --- what a lenient reader would guess at ---

    def _checked(self, body: bytes, line: int, blank: int) -> tuple[bytes, int]:
        """The rows of a block that begins at a line, and the first of the blank lines after them, if any (else 0).

        ``blank`` is that of the blocks before. Blank lines at the end of a table of several columns mean nothing; in a
        table of one column they might be missing values, so they are refused, like those between rows.
        """
        self._refuse_bytes(body, line)
        bare = self._bare(body, line)
        content, single = bare.rstrip(b"\r\n"), len(self.names) == 1
        if content:
            between = b"\n\n" in content or b"\n\r\n" in content or content.startswith((b"\n", b"\r\n"))
            if not blank and (between or single) and (found := re.search(rb"(?m)^[ \t]*\r?$", content)):
                blank = line + content.count(b"\n", 0, found.start())
            if blank:
                raise self._blank_line(blank)
        after = bare.count(b"\n", len(content))
        if after > bool(content):
            blank = blank or line + body.count(b"\n") - after + bool(content)
            if single:
                raise self._blank_line(blank)
        return body.rstrip(b"\r\n") if content else b"", blank

    def _bare(self, body: bytes, line: int) -> bytes:
        """Records without what is in quotes."""
        bare, wrong = _outside_quotes(body, self.separator.encode())
        if wrong >= 0:
            number = line + body.count(b"\n", 0, wrong)
            raise InputError(
                f"{self.path}: line {number} holds a quote that is not closed, or that is inside a cell: put such "
                'a cell in quotes and double the quotes inside ("a ""b"" c")'
            )
        return bare

    def _blank_line(self, line: int) -> InputError:
        return InputError(f"{self.path}: line {line} is blank: remove it, or write NA where a value is missing")

    def _refuse_bytes(self, body: bytes, line: int) -> None:
        if b"\0" in body:
            at = line + body.count(b"\n", 0, body.index(b"\0"))
            raise InputError(f"{self.path}: line {at} holds a NUL byte and is not UTF-8 text: save the file as UTF-8")
        if (mark := body.find(BYTE_ORDER_MARK)) >= 0:
            at = line + body.count(b"\n", 0, mark)
            raise InputError(f"{self.path}: line {at} holds a byte order mark: is it two files in one? remove the mark")
        if b"\r" in body and (lone := re.search(rb"\r(?!\n|\Z)", body)):
            at = line + body.count(b"\n", 0, lone.start())
            raise InputError(
                f"{self.path}: line {at} holds a carriage return without a line feed: end lines with a line feed"
            )


def _outside_quotes(text: bytes, separator: bytes) -> tuple[bytes, int]:
    """Whole records without what is in quotes, and where a quote is that neither opens nor closes a cell (else -1).

    >>> _outside_quotes(b'1,"a ""b"",2"', b","), _outside_quotes(b'1,2 "', b",")
    ((b'1,qqq', -1), (b'1,2 ', 4))
    """
    if b'"' not in text:
        return text, -1
    before, after = (separator, b"\n"), (separator, b"\n", b"\r\n")
    parts = (b"\n" + text + b"\n").split(b'"')
    outside = parts[::2]
    # Nothing between two quotes: they are one quote in a cell. There are many parts, and few different ones.
    odd = {part for part in set(outside) if part and not (part.startswith(after) and part.endswith(before))}
    wrong = -1
    if odd:
        place = next(i for i, part in enumerate(outside) if part in odd)
        wrong = sum(len(part) + 1 for part in parts[: 2 * place]) - 2
        if outside[place].startswith(after):
            wrong += 1 + len(outside[place])
    elif len(parts) % 2 == 0:
        wrong = text.rindex(b'"')
    return b"q".join(outside)[1 : -1 if len(parts) % 2 else None], wrong


def _without_quoted(text: bytes) -> bytes:
    return re.sub(rb'"[^"]*+"', b'""', text)


def _end_of_record(text: bytes, *, first: bool = False) -> int:
    """After the first, or the last, line feed that ends a record, not part of a cell in quotes; 0: there is none."""
    end = (text.find(b"\n") if first else text.rfind(b"\n")) + 1
    while end and text.count(b'"', 0, end) % 2:
        if first:
            end = text.find(b"\n", text.index(b'"', end)) + 1 if b'"' in text[end:] else 0
        else:
            end = text.rfind(b"\n", 0, text.rindex(b'"', 0, end)) + 1
    return end
