"""Fitted models and predictions as Zarr stores: written in one go, whole or not at all."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data import arrays
from cehm_dask.data.attributes import (
    FILES,
    Held,
    is_whole,
    kind_of,
    new_facts,
    refuse_foreign,
    start_anew,
    whole_facts,
    write_facts,
)
from cehm_dask.data.files import is_url
from cehm_dask.data.replacement import Writing, beside, drop_begun, switch
from cehm_dask.data.seals import seal_of
from cehm_dask.errors import StoreError
from cehm_dask.wording import option

PREDICTION_CHUNK_ROWS = 1 << 18


def check_new(url: str, kind: str, *, overwrite: bool) -> None:
    """Refuse a place where a store of this kind may not go."""
    refuse_foreign(url, kind)
    if kind_of(url) is not None and not overwrite:
        raise StoreError(f"{kind} {url} exists: choose another name, or replace it ({option('overwrite')})")


@contextmanager
def _new_store(
    url: str, kind: str, facts: Mapping[str, Any], *, overwrite: bool
) -> Iterator[tuple[str, arrays.Digests]]:
    """Where to write a store, and what to fill with the digests of its files; it counts once the block ends."""
    check_new(url, kind, overwrite=overwrite)
    with Writing(url).held():
        check_new(url, kind, overwrite=overwrite)
        drop_begun(url)
        place = beside(url) if is_whole(url) and not is_url(url) else url
        started = new_facts(kind, facts)
        start_anew(place, started)
        digests: arrays.Digests = {}
        try:
            yield place, digests
        except BaseException:
            drop_begun(url)
            raise
        write_facts(place, {**started, FILES: digests, "complete": True})
        if place != url:
            switch(place, url)


def save_model(url: str, tables: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write a fitted model: small arrays and plain facts."""
    with _new_store(url, "model", facts, overwrite=overwrite) as (place, digests):
        for name, table in tables.items():
            dimensions = tuple(f"{name}_{axis}" for axis in range(table.ndim))
            digests |= arrays.write_table(place, name, table, dimensions)


def load_model(url: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what :func:`save_model` wrote."""
    facts = whole_facts(url, "model")
    held = Held(url, seal_of(facts))
    digests = facts.get(FILES, {})
    names = sorted({path.split("/")[0] for path in digests}) or arrays.array_names(url)
    return {name: arrays.read_table(held, digests, name) for name in names}, facts


def write_prediction(url: str, labels: Any, margin: Any, confidence: Any, *, overwrite: bool) -> None:
    """Write labels, margins and confidences of new rows, block by block."""
    with _new_store(url, "prediction", {"n_samples": labels.shape[0]}, overwrite=overwrite) as (place, digests):
        for name, values in (("labels", labels), ("margin", margin), ("confidence", confidence)):
            digests |= arrays.create(
                place, name, values.shape, values.dtype, ("sample",), chunks=(PREDICTION_CHUNK_ROWS,)
            )
            for start in range(0, values.shape[0], PREDICTION_CHUNK_ROWS):
                rows = np.asarray(values[start : start + PREDICTION_CHUNK_ROWS])
                digests |= arrays.write_rows(place, name, start, rows)
