"""Columns of Arrow tables: what their types are to features, and the numbers, days and texts in them.

Below the preparation, which says what is made of each. pyarrow is imported when it is needed: base labels do without.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import InputTypeError
from cehm_dask.wording import option

DAY = 86_400e6
"""Microseconds."""


def sort_of(kind: Any) -> str:
    """What an Arrow type is to features."""
    import pyarrow.types as of

    if is_number(kind):
        return "number"
    if of.is_dictionary(kind) or any(test(kind) for test in (of.is_string, of.is_large_string, of.is_string_view)):
        return "category"
    return "date" if any(test(kind) for test in (of.is_date, of.is_timestamp, of.is_duration)) else "other"


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is read as numbers."""
    import pyarrow.types as of

    return any(test(kind) for test in (of.is_integer, of.is_floating, of.is_boolean, of.is_decimal, of.is_null))


def has_order(kind: Any) -> bool:
    """Whether an Arrow type is a category whose values have an order."""
    import pyarrow.types as of

    return bool(of.is_dictionary(kind) and kind.ordered)


def texts_of(column: Any) -> Any:
    """A column of categories as Arrow strings."""
    import pyarrow as pa
    import pyarrow.types as of

    if not of.is_dictionary(column.type):
        return column.cast(pa.string())
    # By hand: Arrow decodes no dictionary of string views, which polars gives.
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([one.dictionary.cast(pa.string()).take(one.indices) for one in chunks], pa.string())


def arrow_of(frame: Any) -> Any:
    """A pandas or polars frame as an Arrow table, its columns named by text."""
    import pyarrow as pa

    if not hasattr(frame, "iloc"):
        return pa.table(frame)
    try:
        named = frame.set_axis([str(name) for name in frame.columns], axis=1)
        return pa.Table.from_pandas(named.assign(**_spelled(named)), preserve_index=False)
    except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's own are among these
        raise InputTypeError(
            f"a data frame: {' '.join(map(str, error.args))}: give the column one type, or leave it out "
            f"({option('drop', ['…'])})"
        ) from error


def _spelled(frame: Any) -> dict[str, Any]:
    """Categories of a pandas frame that Arrow has no text for, such as the intervals of ``pandas.cut``, as text."""
    kinds = {name: kind for name, kind in frame.dtypes.items() if getattr(kind, "categories", None) is not None}
    odd = [name for name, kind in kinds.items() if str(kind.categories.dtype).startswith(("object", "interval"))]
    return {name: frame[name].cat.rename_categories(str) for name in odd}


def distinct(column: Any) -> list[str]:
    """The values of a category; of one with an order, all that it may have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if has_order(column.type):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in chunk.dictionary.cast(pa.string()).to_pylist()]
    return [value for value in pc.unique(texts_of(column)).to_pylist() if value is not None]


def plain_numbers(column: Any) -> NDArray[Any]:
    """A column of numbers as numpy keeps it; nulls are NaN."""
    import pyarrow as pa
    import pyarrow.types as of

    if not is_number(column.type):
        raise TypeError("not numbers")
    if of.is_decimal(column.type) or of.is_null(column.type) or (of.is_boolean(column.type) and column.null_count):
        column = column.cast(pa.float64())
    return np.asarray(column)


def days_of(column: Any) -> NDArray[np.float64]:
    """Days since 1970, or of a duration; nulls are NaN."""
    import pyarrow as pa
    import pyarrow.types as of

    kind = pa.duration("us") if of.is_duration(column.type) else pa.timestamp("us", getattr(column.type, "tz", None))
    micros = column.cast(kind, safe=False).cast(pa.int64())
    return np.asarray(micros.cast(pa.float64(), safe=False), np.float64) / DAY
