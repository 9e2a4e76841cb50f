"""Text cells of a .csv file as numbers, a column at a time, batch by batch.

Below ``features``. A column is read as numbers or as true and false, whichever its first batch holds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.delimited import BOOLEANS, NUMBER
from cehm_dask.errors import InputTypeError
from cehm_dask.wording import option


class NumberColumn:
    """Cells of a .csv file as numbers; a cell without a value is NaN, and a column may be all true and false."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.boolean: bool | None = None
        """None: no cell so far had a value."""

    def read(self, cells: Any, first_row: int) -> NDArray[np.float64]:
        """Cells without spaces around them, null where there is no value, as numbers."""
        import pyarrow as pa

        if cells.null_count == len(cells):
            return np.full(len(cells), np.nan)
        try:
            values, boolean = np.asarray(cells.cast(pa.float64()), np.float64), False
        except pa.ArrowInvalid:  # true and false, or a number in a form that Arrow does not read, such as +1
            texts = cells.to_pylist()
            boolean = all(text is None or text in BOOLEANS for text in texts)
            if not boolean:
                for row, text in enumerate(texts):
                    if text is not None and not NUMBER.fullmatch(text):
                        raise self._refused(repr(text), first_row + row) from None
            read = BOOLEANS.__getitem__ if boolean else float
            values = np.array([np.nan if text is None else read(text) for text in texts])
        if self.boolean is not None and boolean != self.boolean:
            raise self._refused("numbers beside true and false", first_row)
        self.boolean = boolean
        return values

    def _refused(self, text: str, row: int) -> InputTypeError:
        return not_numbers(self.path, self.name, text, row)


def not_numbers(path: str, name: str, text: str, row: int) -> InputTypeError:
    """What is said of a cell that stands among numbers and is none."""
    return InputTypeError(
        f"{path}: column {name!r} holds {text} at row {row}: features are numbers, with a decimal point; correct it, "
        f"leave the column out ({option('drop', [name])}), or make all of it text, which is read as categories"
    )
