"""Labels, margins and memberships of dask collections, computed block by block when they are asked for.

A sample's cluster is a function of its base labels and the model's small tables, so nothing is computed before, and
nothing is kept. Arrays have the row chunks of the input, data frames its index and divisions.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.collections import collection_of
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
    first = list(starts) if starts is not None else [0] * len(collection.blocks)
    shared = [delayed(arg, pure=True) for arg in args]
    parts = [delayed(read, pure=True)(block, row, *shared) for block, row in zip(collection.blocks, first, strict=True)]
    if hasattr(given, "columns"):
        return _frame(given, collection.blocks, parts, name, dtype, columns)
    import dask.array as da

    width = () if columns is None else (columns,)
    rows = given.chunks[0]
    arrays = [da.from_delayed(part, (n, *width), dtype) for part, n in zip(parts, rows, strict=True)]
    return da.concatenate(arrays)


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

    return pd.Series(values, block.index, name=name) if values.ndim == 1 else pd.DataFrame(values, block.index)


def read_field(block: Any, first_row: int, model: Model, field: str, singled: Mapping[int, int]) -> NDArray[Any]:
    """Labels, margins or confidences of a block, as the model gives them."""
    if not len(block):
        return np.zeros(0, np.int16 if field == "labels" else np.float64)
    own = {row - first_row: cluster for row, cluster in singled.items() if 0 <= row - first_row < len(block)}
    return np.asarray(getattr(model.predict(block, own), field))


def read_membership(block: Any, _first_row: int, model: Model) -> NDArray[np.float64]:
    """Memberships of a block."""
    if not len(block):
        return np.zeros((0, model.counts.shape[1]))
    return np.asarray(model.membership(block))
