"""Columns that carry the names of their rows, put side by side by those names: series, or files of one member each.

Below the labels: a list or dict of pandas series is one table whose rows are all that any of them names. Members that
were made on other samples, or on the same in another order, are matched, never put side by side by position.
"""

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from cehm_dask.data.cells import trimmed
from cehm_dask.data.tables import SUFFIXES, Csv, open_table
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.wording import option


def joined(columns: Sequence[Any] | Mapping[Any, Any]) -> Any:
    """Series as a data frame, rows in the order in which they are first named; other columns as they are.

    A row that a series does not name is a missing label of that member.
    """
    series = list(columns.values()) if isinstance(columns, Mapping) else list(columns)
    if series and all(isinstance(one, str | os.PathLike) for one in series):
        raise InputTypeError(
            f"X is a list of {len(series)} paths: cehm_dask.data.alignment.joined_files(paths, row_id, label) makes "
            "one table of them, rows matched by the column row_id"
        )
    if not series:
        return series
    import pandas as pd

    if not all(hasattr(one, "reindex") and hasattr(one, "name") for one in series):
        flat = all(np.ndim(one) == 1 for one in series)
        return _named(columns) if flat and isinstance(columns, Mapping) else series
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


def _named(columns: Mapping[Any, Any]) -> Any:
    """Arrays, or columns of other libraries, by their names, matched by position."""
    import pandas as pd

    lengths = {str(name): len(column) for name, column in columns.items()}
    first = next(iter(lengths))
    if uneven := [name for name, length in lengths.items() if length != lengths[first]]:
        raise InputError(
            f"member {uneven[0]} has {lengths[uneven[0]]} rows, member {first} has {lengths[first]}: they must be "
            "equal; pandas series are matched by their index"
        )
    return pd.DataFrame({str(name): np.asarray(column) for name, column in columns.items()})


def joined_files(paths: Sequence[str], row_id: str | None, label: str | None) -> Any:
    """One member per file, its rows matched by their ids, as a data frame; all files are held in memory.

    ``label`` is the column of labels; None: the one beside the ids. A member is called as its file, without the ending.
    """
    if row_id is None:
        raise InputError(
            f"{len(paths)} files: rows are matched by name, so say which column names them ({option('id', 'NAME')})"
        )
    names = [_stem(path) for path in paths]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"more than one file is called {twice[0]}: members are called as their files; rename one")
    return joined({name: _series(path, row_id, label) for name, path in zip(names, paths, strict=True)})


def _stem(path: str) -> str:
    name = os.path.basename(path.rstrip("/"))
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def _series(path: str, row_id: str, label: str | None) -> Any:
    import pandas as pd
    import pyarrow as pa

    table = open_table(path, "base labels")
    table.require(row_id)
    others = [name for name in table.names if name != row_id]
    if label is None and len(others) != 1:
        raise InputError(
            f"{path}: which of the columns {', '.join(others)} holds the labels? name it ({option('label', 'NAME')})"
        )
    column = others[0] if label is None else label
    table.require(column)
    found = pa.Table.from_batches(table.batches([row_id, column]))
    ids, labels = found.column(row_id), found.column(column)
    if isinstance(table, Csv):
        labels = _read_as(trimmed(labels))
    return pd.Series(labels.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get), name=_stem(path)).set_axis(
        ids.to_pandas()
    )


def _read_as(cells: Any) -> Any:
    """Labels that are numbers in all rows as numbers, else as text."""
    import pyarrow as pa

    for kind in (pa.int64(), pa.float64()):
        try:
            return cells.cast(kind)
        except pa.ArrowInvalid:
            continue
    return cells


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
