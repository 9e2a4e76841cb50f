"""The samples of the picture in the plane: given coordinates, the features' main axes, or the members' agreement.

Between the sources (features, base labels) and the figures. Rows are read block by block, each block once; only the
sampled ones are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.features import as_features
from cehm_dask.labels import Labels, as_labels

BLOCK_ROWS = 1 << 16


@dataclass(frozen=True, eq=False)
class Plane:
    """Two coordinates a sampled row, and what the axes are."""

    coordinates: NDArray[np.float64]
    axes: str


def plane_of(
    rows: NDArray[np.int64], n_samples: int, *, coordinates: Any = None, features: Any = None, ensemble: Any = None
) -> Plane | None:
    """Where to draw the sampled rows; None if nothing was given to tell."""
    if coordinates is not None:
        given = as_features(coordinates)
        _same_rows("coordinates", given.n_samples, n_samples)
        if given.n_features != 2:
            raise ValueError(f"coordinates have {given.n_features} columns: expected two, x and y")
        return Plane(pick(given.read, rows, n_samples), "the given coordinates")
    if features is not None:
        return _feature_plane(features, rows, n_samples)
    if ensemble is not None:
        return _label_plane(as_labels(ensemble), rows, n_samples)
    return None


def _same_rows(what: str, found: int, n_samples: int) -> None:
    if found != n_samples:
        raise ValueError(f"{what} have {found:,} rows, the consensus {n_samples:,}: they must be of the same samples")


def pick(read: Callable[[int, int], NDArray[Any]], rows: NDArray[np.int64], n_samples: int) -> NDArray[Any]:
    """Some rows, ascending, from a source that is read in blocks; blocks without any are skipped."""
    parts = []
    for start in range(0, n_samples, BLOCK_ROWS):
        first, last = np.searchsorted(rows, [start, start + BLOCK_ROWS])
        if first < last:
            block = read(start, min(start + BLOCK_ROWS, n_samples))
            parts.append(np.asarray(block)[rows[first:last] - start])
    return np.concatenate(parts)


def _feature_plane(features: Any, rows: NDArray[np.int64], n_samples: int) -> Plane:
    from sklearn.decomposition import PCA

    given = as_features(features)
    _same_rows("features", given.n_samples, n_samples)
    values = np.asarray(pick(given.read, rows, n_samples), np.float64)
    values = np.where(np.isfinite(values), values, np.nanmean(np.where(np.isfinite(values), values, np.nan), axis=0))
    spread = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return _two(PCA(2, svd_solver="full"), values, "first two principal components of the standardised features")


def _two(pca: Any, values: Any, axes: str) -> Plane:
    if min(values.shape) < 2:
        flat = np.asarray(values.todense() if hasattr(values, "todense") else values, np.float64)[:, :1]
        return Plane(np.column_stack([flat, np.zeros(len(flat))]), axes)
    placed = pca.fit_transform(values)
    shares = " and ".join(f"{share:.0%}" for share in pca.explained_variance_ratio_)
    return Plane(np.asarray(placed, np.float64), f"{axes} ({shares} of the variance)")


def _label_plane(labels: Labels, rows: NDArray[np.int64], n_samples: int) -> Plane:
    """Main axes of the sampled rows of H: distances there count the members that part two samples.

    That is classical scaling of the co-association, without the samples × samples table.
    """
    from scipy.sparse import csr_array
    from sklearn.decomposition import PCA

    _same_rows("base labels", labels.n_samples, n_samples)
    codes = pick(labels.source.read, rows, n_samples).astype(np.int64)
    slots = codes + labels.offsets.astype(np.int64)
    said = codes > 0 if labels.silent else np.ones(codes.shape, bool)
    ends = np.concatenate(([0], np.cumsum(said.sum(axis=1))))
    shape = (len(rows), labels.n_slots)
    incidence = csr_array((np.ones(int(said.sum())), slots[said], ends), shape=shape)
    pca = PCA(2, svd_solver="arpack", random_state=0)
    return _two(pca, incidence, "main axes of the base labels: near means put together by many members")
