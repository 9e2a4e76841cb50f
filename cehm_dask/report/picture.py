"""The samples of the picture in the plane: given coordinates, the features' main axes, or the members' agreement.

Between the sources (features, base labels) and the figures. Rows are read block by block; only the sampled ones are
kept.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.features import Features, FeatureWarning, Scaling, as_features, fit_scaling
from cehm_dask.data.labels import Labels
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError, MissingExtraError
from cehm_dask.machine import this_machine

BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Plane:
    """Two coordinates per sampled row, and what the axes are."""

    coordinates: NDArray[np.float64]
    axes: str


def plane_of(
    rows: NDArray[np.int64], n_samples: int, *, coordinates: Any, features: Any, labels: Labels | None
) -> Plane | None:
    """Where to draw the sampled rows; None if no source was given."""
    if coordinates is not None:
        given = as_features(coordinates)
        check_rows("coordinates", given.n_samples, n_samples)
        if given.n_features != 2:
            raise InputError(f"coordinates have {given.n_features} columns: expected two, x and y")
        return Plane(pick(given.read, rows, n_samples).astype(np.float64), "the given coordinates")
    if features is not None:
        given = as_features(features)
        check_rows("features", given.n_samples, n_samples)
        return _feature_plane(given, rows)
    return None if labels is None else _label_plane(labels, rows)


def check_rows(what: str, found: int, n_samples: int) -> None:
    if found != n_samples:
        raise InputError(f"{what} have {found:,} rows, the consensus {n_samples:,}: they must be of the same samples")


def pick(read: Callable[[int, int], NDArray[Any]], rows: NDArray[np.int64], n_samples: int) -> NDArray[Any]:
    """Some rows, ascending, from a source that is read in blocks; blocks without any are skipped."""
    parts = []
    for start in range(0, n_samples, BLOCK_ROWS):
        first, last = np.searchsorted(rows, [start, start + BLOCK_ROWS])
        if first < last:
            block = read(start, min(start + BLOCK_ROWS, n_samples))
            parts.append(np.asarray(block)[rows[first:last] - start])
    return np.concatenate(parts)


def _feature_plane(features: Features, rows: NDArray[np.int64]) -> Plane:
    """Main axes of all rows, the sampled rows along them."""
    with warnings.catch_warnings(), workers(this_machine(None).threads) as pool:
        # The warning about constant columns was given when the members were made.
        warnings.simplefilter("ignore", FeatureWarning)
        scaling = fit_scaling(features, "standard", pool, impute="mean")

    def read(start: int, stop: int) -> NDArray[np.float32]:
        return scaling.apply(features.read(start, stop))

    sampled = pick(read, rows, features.n_samples)
    if min(len(scaling.columns), features.n_samples) < 2:
        return _flat(sampled[:, 0], "the standardised feature")
    pca = _fitted_pca(features, scaling, read)
    name = f"the first two principal components of the standardised features, {_shares(pca)}"
    return Plane(np.asarray(pca.transform(sampled), np.float64), name)


def _fitted_pca(features: Features, scaling: Scaling, read: Callable[[int, int], NDArray[np.float32]]) -> Any:
    """A PCA of all rows: scikit-learn's where they fit in memory, dask-ml's over blocks where they do not."""
    needed = 4 * features.n_samples * len(scaling.columns) * 4  # what is read, scaled, joined and centred
    if needed <= this_machine(None).allowed:
        from sklearn.decomposition import PCA

        whole = np.concatenate([read(*block) for block in features.blocks()])
        return PCA(2, svd_solver="full" if len(whole) < 3 else "covariance_eigh").fit(whole)
    try:
        from dask_ml import decomposition
    except ImportError as error:
        raise MissingExtraError(
            f"features of {features.n_samples:,} × {features.n_features} are larger than memory: their main axes need "
            "dask-ml (pip install 'cehm-dask[dask-ml]'); or give coordinates instead"
        ) from error
    import dask
    import dask.array as da

    load = dask.delayed(read)
    blocks = [
        da.from_delayed(load(start, stop), (stop - start, len(scaling.columns)), np.float32)
        for start, stop in features.blocks()
    ]
    return decomposition.PCA(2, svd_solver="tsqr").fit(da.concatenate(blocks))


def _shares(pca: Any) -> str:
    first, second = pca.explained_variance_ratio_[:2]
    return f"with {first:.0%} and {second:.0%} of the variance"


def _flat(values: NDArray[Any], axes: str) -> Plane:
    return Plane(np.column_stack([values, np.zeros(len(values))]).astype(np.float64), axes)


def _label_plane(labels: Labels, rows: NDArray[np.int64]) -> Plane:
    """Main axes of the sampled rows of H: distances there count the members that part two samples.

    That is classical scaling of the co-association, without the samples × samples table.
    """
    from scipy.sparse import csr_array
    from sklearn.decomposition import PCA

    codes = pick(labels.read, rows, labels.n_samples).astype(np.int64)
    slots = codes + labels.offsets.astype(np.int64)
    said = codes > 0 if labels.silent else np.ones(codes.shape, bool)
    ends = np.concatenate(([0], np.cumsum(said.sum(axis=1))))
    shape = (len(rows), labels.n_slots)
    incidence = csr_array((np.ones(int(said.sum())), slots[said], ends), shape=shape)
    if min(shape) < 3:  # fewer than the solver can do
        return _flat(codes[:, 0], "the label of the first member")
    # The solver starts from a drawn vector.
    pca = PCA(2, svd_solver="arpack", random_state=0).fit(incidence)
    name = f"the base labels: near means put together by many members (main axes {_shares(pca)})"
    return Plane(np.asarray(pca.transform(incidence), np.float64), name)
