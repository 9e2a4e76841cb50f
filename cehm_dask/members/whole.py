"""What is fitted on all rows by dask-ml, where they lie, rather than on a sample: its k-means, its transformers.

Beside ``fit``. Dask runs these fits as collections of many small tasks; this process only drives them.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.features import Features
from cehm_dask.data.scaling import Scaling
from cehm_dask.data.transformer import Transformed, curve
from cehm_dask.engine.task import Workers
from cehm_dask.errors import InputError
from cehm_dask.members.fit import Member, MemberPlan, linear, numerics, view_of
from cehm_dask.members.kmeans import through
from cehm_dask.progress import Count, Progress
from cehm_dask.wording import option

BASE = "dask-ml"


def rows_as_array(features: Features, read: Callable[..., NDArray[Any]], columns: int, *args: Any) -> Any:
    """``read(rows, first_row, names, *args)`` of every block, as a dask array of float32."""
    import dask.array as da
    from dask import delayed

    # Leaves of the graph, which do not travel with every task.
    reading = delayed(_Reading(read, features.names, args), traverse=False, pure=False)
    held = None if features.chunks else delayed(features, traverse=False, pure=False)
    arrays = []
    for start, stop in features.blocks():
        if features.chunks is None:
            part = delayed(_read_rows, pure=False)(reading, held, start, stop)
        else:
            part = delayed(_read_part, pure=False)(reading, features.chunks.between(start, stop).parts[0], start)
        arrays.append(da.from_delayed(part, (stop - start, columns), np.float32))
    return da.concatenate(arrays)


@dataclass(frozen=True)
class _Reading:
    read: Callable[..., NDArray[Any]]
    names: tuple[str, ...]
    args: tuple[Any, ...]


def _read_rows(reading: _Reading, features: Features, start: int, stop: int) -> NDArray[Any]:
    return _read_part(reading, features.read(start, stop), start)


def _read_part(reading: _Reading, rows: Any, first_row: int) -> NDArray[Any]:
    return reading.read(rows, first_row, reading.names, *reading.args)


def _scaled(rows: Any, first_row: int, names: Sequence[str], scaling: Any, view: Any) -> NDArray[np.float32]:
    scaled = scaling.apply(rows, first_row, names)
    return scaled if view is None else through(scaled, view).astype(np.float32)


def _filled(rows: Any, first_row: int, names: Sequence[str], plain: Scaling) -> NDArray[np.float32]:
    return plain.filled(rows, first_row, names).astype(np.float32)


def fit_on_all_rows(
    plans: Sequence[MemberPlan],
    features: Features,
    scaling: Scaling | Transformed,
    workers: Workers,
    progress: Progress,
) -> list[tuple[Member, dict[str, Any]]]:
    """k-means members of dask-ml, one after the other, each on all rows by whoever works."""
    if any(plan.bootstrap or plan.subsample is not None for plan in plans):
        raise InputError(
            f"{option('base', BASE)}: its members are fitted on all rows; leave bootstrap and subsample out, or use "
            f"{option('base', 'kmeans')}"
        )
    found, count = [], Count(progress, "fitted", len(plans))
    for plan in plans:
        begin = time.perf_counter()
        with workers.computing():
            member = _kmeans(plan, features, scaling)
        count.add(1)
        found.append((member, {"seconds": round(time.perf_counter() - begin, 4), "numerics": numerics()}))
    return found


def _kmeans(plan: MemberPlan, features: Features, scaling: Scaling | Transformed) -> Member:
    from dask_ml.cluster import KMeans

    rng = np.random.default_rng(plan.seed)
    n_columns = len(scaling.columns)
    view = view_of(plan, n_columns, rng)
    rows = rows_as_array(features, _scaled, n_columns if view is None else view.shape[1], scaling, view)
    model = KMeans(plan.k, random_state=int(rng.integers(2**31))).fit(rows)
    centres = np.asarray(model.cluster_centers_, np.float64)
    return linear(centres, np.arange(len(centres)), view)


def fit_transformer(
    given: Any, features: Features, plain: Scaling, sample: NDArray[Any], workers: Workers
) -> Scaling | Transformed:
    """A copy of the user's transformer, fitted: dask-ml's on all rows of a dask collection, others on the sample.

    A named one is fitted on the columns that are no 0 and 1 of a category.
    """
    if isinstance(given, str):
        passed = np.flatnonzero(features.indicators[plain.columns])
        seen = np.delete(plain.filled(sample, names=features.names), passed, axis=1)
        if not seen.shape[1]:
            return plain
        return Transformed.of(curve(given, len(seen)).fit(seen), plain, sample, passed)
    model = copy.deepcopy(given)
    if features.chunks is not None and any(kind.__module__.startswith("dask_ml") for kind in type(given).__mro__):
        with workers.computing():
            model.fit(rows_as_array(features, _filled, len(plain.columns), plain))
    else:
        model.fit(np.array(plain.filled(sample, names=features.names)))
    return Transformed.of(model, plain, sample)
