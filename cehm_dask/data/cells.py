"""Text cells of a .csv file → columns with types: numbers, dates, or text.

Between the tables and the features. A column is numbers if its first block says so, and then every other cell is
refused; the others are looked at from end to end, so that a typing error among numbers makes no category.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cehm_dask.data.delimited import BOOLEANS, MISSING, NUMBER
from cehm_dask.data.number_column import NumberColumn, not_numbers
from cehm_dask.data.tables import Csv

_DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+")


def kinds_of(table: Csv, names: Sequence[str]) -> dict[str, Any]:
    """The Arrow type of every column: float64, string, or a timestamp where all cells are dates in ISO format."""
    import pyarrow as pa

    first = next(iter(table.batches(list(names))), None)
    cells = {} if first is None else {name: first.column(j) for j, name in enumerate(names)}
    unsure = [name for name in names if name in cells and not _is_numbers(trimmed(cells[name]))]
    kinds: dict[str, Any] = dict.fromkeys(names, pa.float64())
    return kinds | (_looked_through(table, unsure) if unsure else {})


def _is_numbers(cells: Any) -> bool:
    import pyarrow as pa

    if cells.null_count == len(cells):
        return False
    try:
        cells.cast(pa.float64())
        return True
    except pa.ArrowInvalid:
        texts = [text for text in cells.unique().to_pylist() if text is not None]
        return all(text in BOOLEANS for text in texts) or all(NUMBER.fullmatch(text) for text in texts)


def _looked_through(table: Csv, names: list[str]) -> dict[str, Any]:
    import pyarrow as pa

    looks, row = [_Look() for _ in names], 0
    for batch in table.batches(names):
        for look, cells in zip(looks, batch.columns, strict=True):
            look.at(trimmed(cells), row)
        row += batch.num_rows
    kinds = {}
    for name, look in zip(names, looks, strict=True):
        if look.texts and (look.comma or look.numbers >= look.texts):
            raise not_numbers(table.path, name, repr(look.first), look.first_row)
        whole = look.texts == 0
        kinds[name] = pa.float64() if whole else pa.timestamp("us") if look.dates else pa.string()
    return kinds


class _Look:
    """What the cells of one column are, as far as they have been seen."""

    def __init__(self) -> None:
        self.numbers = self.texts = 0
        self.dates, self.comma = True, False
        self.first, self.first_row = "", 0

    def at(self, cells: Any, first_row: int) -> None:
        encoded = cells.dictionary_encode()
        values = encoded.dictionary.to_pylist()
        places = np.asarray(encoded.indices.fill_null(len(values)))
        counts = np.bincount(places, minlength=len(values) + 1)
        for place, text in enumerate(values):
            if NUMBER.fullmatch(text) or text in BOOLEANS:
                self.numbers += int(counts[place])
                continue
            if not self.texts:
                self.first, self.first_row = text, first_row + int(np.argmax(places == place))
            self.texts += int(counts[place])
            self.comma = self.comma or bool(_DECIMAL_COMMA.fullmatch(text))
        self.dates = self.dates and _are_dates(encoded.dictionary)


def _are_dates(texts: Any) -> bool:
    import pyarrow as pa

    try:
        texts.cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return False
    return True


def typed(table: Csv, names: Sequence[str], kinds: Mapping[str, Any]) -> Iterator[list[Any]]:
    """The columns as Arrow arrays of their types, block by block."""
    import pyarrow as pa

    numbers = {name: NumberColumn(table.path, name) for name in names if kinds[name] == pa.float64()}
    row = 0
    for batch in table.batches(list(names)):
        found = []
        for name, cells in zip(names, batch.columns, strict=True):
            own = trimmed(cells)
            found.append(pa.array(numbers[name].read(own, row)) if name in numbers else own.cast(kinds[name]))
        row += batch.num_rows
        yield found


def trimmed(cells: Any) -> Any:
    """Cells without spaces around them; null where there is no value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    cells = pc.utf8_trim_whitespace(cells)
    return pc.if_else(pc.is_in(cells, pa.array(sorted(MISSING))), pa.scalar(None, pa.string()), cells)
