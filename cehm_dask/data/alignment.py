"""Columns that carry the names of their rows, put side by side by those names.

Below the labels: a list or dict of pandas series is one table whose rows are all that any of them names. Members that
were made on other samples, or on the same in another order, are matched, never put side by side by position.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

from cehm_dask.errors import InputError


def joined(columns: Sequence[Any] | Mapping[Any, Any]) -> Any:
    """Series as a data frame, rows in the order in which they are first named; other columns as they are.

    A row that a series does not name is a missing label of that member.
    """
    series = list(columns.values()) if isinstance(columns, Mapping) else list(columns)
    if not series or not all(hasattr(one, "reindex") and hasattr(one, "name") for one in series):
        return series
    import pandas as pd

    if isinstance(columns, Mapping):
        names = list(map(str, columns))
    else:
        own = [one.name for one in series]
        distinct = None not in own and len(set(own)) == len(own)
        names = [str(name) for name in own] if distinct else [str(j) for j in range(len(own))]
    for name, one in zip(names, series, strict=True):
        if not one.index.is_unique:
            twice = one.index[one.index.duplicated()][0]
            raise InputError(
                f"member {name}: row {twice!r} is there more than once: rows are matched by the index of the series, "
                "so each must have its own; series.reset_index(drop=True) matches them by position"
            )
    rows = reduce(lambda known, more: known.union(more, sort=False), (one.index for one in series))
    return pd.DataFrame({name: _spread(one, rows) for name, one in zip(names, series, strict=True)}, index=rows)


def _spread(series: Any, rows: Any) -> Any:
    """The series on more rows; whole numbers stay so beside missing labels, where floats would lose digits."""
    if series.index.equals(rows):
        return series
    kind = getattr(series.dtype, "kind", "O")
    if kind in "iu" and not hasattr(series.dtype, "na_value"):
        series = series.astype("UInt64" if kind == "u" else "Int64")
    elif kind == "b":
        series = series.astype("boolean")
    return series.reindex(rows)
