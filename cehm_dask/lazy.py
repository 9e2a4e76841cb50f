"""Labels, margins and memberships of dask collections, computed block by block when they are asked for.

A sample's cluster is a function of its base labels and the model's small tables, so nothing is computed before, and
nothing is kept. Arrays have the row chunks of the input, data frames its index and divisions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.collections import collection_of, is_collection
from cehm_dask.model import Model


def lazily(
    given: Any,
    read: Callable[..., NDArray[Any]],
    *args: Any,
    name: str,
    dtype: Any,
    columns: int | None = None,
    starts: Sequence[int] | None = None,
) -> Any:
    """``read(block, first_row, *args)`` of every block, as one collection.

    Parameters
    ----------
    given : dask array or data frame of base labels
    read : callable
        Must be importable: workers call it.
    args
        Sent once.
    name : str
        Of the series, where a data frame was given.
    columns : int, optional
        Columns of what is read; default: one entry per sample.
    starts : sequence of int, optional
        First row of every block, where they are known.
    """
    from dask import delayed

    collection = collection_of(given)
    first = tuple(starts) if starts is not None else (0,) * collection.n_blocks
    if hasattr(given, "columns"):
        parts = collection.each(_from_row, read, first, *args)
        return _frame(given, given.to_delayed(), parts, name, dtype, columns)
    shared = [delayed(arg, pure=True, traverse=False) for arg in (first, *args)]
    shape = {"drop_axis": 1} if columns is None else {"chunks": (given.chunks[0], (columns,))}
    meta = np.empty((0,) if columns is None else (0, 0), dtype)
    whole = given if given.numblocks[1] == 1 else given.rechunk({1: -1}, method="tasks")
    return whole.map_blocks(_from_row_of, read, *shared, dtype=dtype, meta=meta, token=f"cehm-{name}", **shape)


def _from_row(block: Any, number: int, read: Callable[..., NDArray[Any]], first: Sequence[int], *args: Any) -> Any:
    return read(block, first[number], *args)


def _from_row_of(
    block: Any, read: Callable[..., NDArray[Any]], first: Sequence[int], *args: Any, block_id: tuple[int, ...]
) -> Any:
    return read(block, first[block_id[0]], *args)


def like(given: Any, found: Any, name: str, rows: Sequence[int] | None = None) -> Any:
    """What was found of a collection; where that is a dask data frame, with its index and divisions.

    Parameters
    ----------
    given : any form of features
    found : array
        Of one entry or row per sample; a dask array, in the chunks of the data frame, where that is one.
    rows : sequence of int, optional
        Of the partitions of the data frame: an array has no chunks without rows.
    """
    if not (is_collection(given) and hasattr(given, "columns")):
        return found
    index = given.index.to_delayed()
    chunks = iter(found.to_delayed().ravel().tolist())
    columns = None if found.ndim == 1 else found.shape[1]
    empty = np.empty((0, *found.shape[1:]), found.dtype)
    parts = [next(chunks) if n else empty for n in rows or [1] * len(index)]
    return _frame(given, index, parts, name, found.dtype, columns)


def _frame(given: Any, blocks: Sequence[Any], parts: Sequence[Any], name: str, dtype: Any, columns: int | None) -> Any:
    import dask.dataframe as dd
    import pandas as pd
    from dask import delayed

    meta: Any = (
        pd.Series([], dtype=dtype, name=name)
        if columns is None
        else pd.DataFrame({e: pd.Series([], dtype=dtype) for e in range(columns)})
    )
    indexed = [delayed(_indexed, pure=True)(block, part, name) for block, part in zip(blocks, parts, strict=True)]
    return dd.from_delayed(indexed, meta=meta, divisions=given.divisions, verify_meta=False)


def _indexed(block: Any, values: NDArray[Any], name: str) -> Any:
    import pandas as pd

    index = getattr(block, "index", block)
    return pd.Series(values, index, name=name) if values.ndim == 1 else pd.DataFrame(values, index)


def read_field(block: Any, first_row: int, model: Model, field: str, singled: Mapping[int, int]) -> NDArray[Any]:
    """Labels, margins or confidences of a block, as the model gives them."""
    if not len(block):
        return np.zeros(0, np.int64 if field == "labels" else np.float64)
    own = {row - first_row: cluster for row, cluster in singled.items() if 0 <= row - first_row < len(block)}
    found = getattr(model.predict(block, own), field)
    return found.astype(np.int64) if field == "labels" else np.asarray(found)


def read_membership(block: Any, _first_row: int, model: Model) -> NDArray[np.float64]:
    """Memberships of a block."""
    if not len(block):
        return np.zeros((0, model.counts.shape[1]))
    return np.asarray(model.membership(block))
