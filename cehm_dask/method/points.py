"""k-means of points that are all in memory, with sums that do not depend on their order.

Below the portfolio and the rivals, whose spectral steps end in it. A point is scaled to unit length and rounded to a
multiple of 2⁻²²: then sums of points are exact in double precision (up to 2·10⁹ of them), and centres, and so labels,
are the same whatever the blocks and workers.
"""

from math import log

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method import distances

GRAIN = 2.0**-22
"""Points are multiples of this; with entries up to 1 they are exact in single precision."""

ROUNDS = 100
RESTARTS = 3
"""As in U-SENC's program."""

Floats = NDArray[np.float64]
Points = NDArray[np.float32]
Sums = tuple[Floats, NDArray[np.int64]]
"""Of the points of each centre: their sum and their number."""


def unit_points(points: Floats) -> Points:
    """Rows (n, features) to unit length, rounded to the grain, feature by feature: (features, n)."""
    squares = np.zeros(len(points))
    for column in points.T:  # in a fixed order, whatever the number of rows
        squares += column * column
    scaled = points.T / (np.sqrt(squares) + 1e-10)
    return (np.rint(scaled / GRAIN) * GRAIN).astype(np.float32)


def cluster_points(points: Points, n_clusters: int, seed: int, restarts: int = RESTARTS) -> NDArray[np.int16]:
    """Labels by k-means of points (features, n); the best of several starts."""
    centres = centres_by_k_means(points, n_clusters, seed, restarts)
    return nearest(points, centres[None])[:, 0].astype(np.int16) - np.int16(1)


def centres_by_k_means(points: Points, n_clusters: int, seed: int, restarts: int = RESTARTS) -> NDArray[np.float32]:
    """Centres (k, features) of points (features, n); the best of several starts."""
    rng = np.random.default_rng(seed)
    starts = [first_centres(points, n_clusters, int(rng.integers(2**31))) for _ in range(restarts)]
    gains = [gain(sums[0], counts[0]) for sums, counts in (assigned_sums(points, one[None]) for one in starts)]
    return starts[int(np.argmax(gains))]


def first_centres(sample: Points, n_clusters: int, seed: int) -> NDArray[np.float32]:
    """Centres (k, features) from a sample: k-means++, then Lloyd's iteration."""
    rows = np.ascontiguousarray(sample.T)
    if len(rows) < n_clusters:  # rows without labels filled the sample
        rows = np.concatenate([rows] * -(-n_clusters // max(1, len(rows))))
    centres = spread_out(rows, n_clusters, seed)
    for _ in range(ROUNDS):
        sums, counts = assigned_sums(sample, centres[None])
        moved = centres_of(sums[0], counts[0], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return np.asarray(centres, np.float32)


def spread_out(rows: Points, n_clusters: int, seed: int) -> NDArray[np.float32]:
    """Greedy k-means++: rows far from one another, the best of a few drawn for every centre.

    Scikit-learn's takes ten times as long for a few hundred rows, most of it to check them.
    """
    rng = np.random.default_rng(seed)
    points = rows.astype(np.float64)
    chosen = [int(rng.integers(len(points)))]
    nearest_square = _squares_to(points, points[chosen])[0]
    trials = 2 + int(log(n_clusters))
    for _ in range(1, n_clusters):
        edges = np.cumsum(nearest_square)
        drawn = np.minimum(np.searchsorted(edges, rng.random(trials) * edges[-1], side="right"), len(points) - 1)
        after = np.minimum(nearest_square, _squares_to(points, points[drawn]))
        best = int(after.sum(axis=1).argmin())
        chosen.append(int(drawn[best]))
        nearest_square = after[best]
    return rows[chosen]


def _squares_to(points: Floats, centres: Floats) -> Floats:
    """Squared distances, (centres, points), feature by feature: no library may sum in an order of its own."""
    squares = np.zeros((len(centres), len(points)))
    for column, centre in zip(points.T, centres.T, strict=True):
        squares += (column[None, :] - centre[:, None]) ** 2
    return squares


def centres_of(sums: Floats, counts: NDArray[np.int64], before: NDArray[np.float32]) -> NDArray[np.float32]:
    means = sums / np.maximum(counts, 1)[:, None]
    return np.where(counts[:, None] > 0, means, before).astype(np.float32)


def gain(sums: Floats, counts: NDArray[np.int64]) -> float:
    """Σ‖x‖² less the inertia: the same Σ‖x‖² for all starts, so the inertia is least where this is largest."""
    return float(np.sum(sums**2 / np.maximum(counts, 1)[:, None]))


def nearest(points: Points, centres: NDArray[np.float32]) -> NDArray[np.uint16]:
    """1 + the nearest centre of each point, one column per start; ``centres`` is (starts, k, features)."""
    starts, k, features = centres.shape
    slopes = centres.reshape(starts * k, features)
    labels = np.empty((points.shape[1], starts), np.uint16)
    distances.nearest(points, slopes, -0.5 * np.sum(slopes * slopes, axis=1), np.arange(starts + 1) * k, labels)
    return labels


def assigned_sums(points: Points, centres: NDArray[np.float32]) -> Sums:
    starts, k, features = centres.shape
    sums, counts = np.zeros((starts * k, features)), np.zeros(starts * k, np.int64)
    distances.centre_sums(points.T, nearest(points, centres), np.arange(starts + 1) * k, sums, counts)
    return sums.reshape(centres.shape), counts.reshape(starts, k)
