"""FasterPAM: k-medoids by eager swaps, after Schubert and Rousseeuw, "Fast and eager k-medoids clustering" (2021).

Below the medoids of the hyperedges. A table of dissimilarities in, k of its columns out: such that no swap of a medoid
for another column lowers the loss Σ_points min_medoids table[point, medoid]. The table need not be symmetric.

For every point, the nearest and the second nearest medoid are kept. So one pass over a column says what every swap of
that column for one of the k medoids would change: removing medoid i costs its points the way to their second nearest,
and the new medoid draws points from all. The best of these swaps is made at once if it lowers the loss. The search ends
when a round over all columns has made none.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import InputError
from cehm_dask.method.jit import jit

TINY = 1e-10
"""Part of the loss that a swap must gain. Sums of 10⁵ numbers are exact to 1e-11, so that no search goes in circles."""


class Medoids(NamedTuple):
    """A local optimum."""

    columns: NDArray[np.intp]
    """Numbers of the k medoids, ascending."""
    loss: float
    """Sum over the points of the dissimilarity with the nearest medoid."""
    swaps: int


def fasterpam(table: NDArray[np.floating], n_clusters: int, rng: np.random.Generator) -> Medoids:
    """Choose ``n_clusters`` medoids, from a random start: each is drawn in proportion to the dissimilarity so far.

    Draws in proportion, as in k-means++, end in lower losses than even ones on some tables, and need fewer swaps.

    Parameters
    ----------
    table : (points, points) float32 or float64
        Dissimilarity of a point (row) with a medoid (column). In Fortran order it is used as it is, otherwise copied.
    n_clusters : int
        From 1 to the number of points.
    rng : numpy.random.Generator
        Draws the medoids to start from, and the column that the search begins at: ``n_clusters + 1`` numbers.

    >>> found = fasterpam(np.array([[0.0, 1, 9], [1, 0, 9], [9, 9, 0]]), 2, np.random.default_rng(0))
    >>> found.loss, 2 in found.columns
    (1.0, True)
    """
    n = len(table)
    if table.shape != (n, n) or not 1 <= n_clusters <= n:
        raise InputError(f"n_clusters={n_clusters}: expected 1 to n medoids of an n × n table, got shape {table.shape}")
    columns, draws = np.ascontiguousarray(table.T), rng.random(n_clusters + 1)
    sums = columns.sum(axis=1, dtype=np.float64)
    if not np.isfinite(sums).all() or columns.min() < 0:
        raise InputError(
            "table of dissimilarities: expected finite numbers from 0 on, got NaN, infinity or less than 0"
        )
    if n_clusters == 1:
        best = int(np.argmin(sums))
        return Medoids(np.array([best], np.intp), float(sums[best]), 0)
    chosen = np.empty(n_clusters, np.int64)
    loss, swaps = _search(columns, draws, chosen, TINY)
    return Medoids(np.sort(chosen).astype(np.intp), loss, swaps)


_U = np.uint64


@jit
def _search(columns, draws, medoids, tiny):  # type: ignore[no-untyped-def]
    """Draw medoids, and swap until no swap lowers the loss; the loss and the number of swaps.

    Parameters
    ----------
    columns : (points, points) float32 or float64
        Row: a medoid; column: a point.
    draws : (k + 1,) float64
        From 0 to below 1: for the medoids to start from, and for the column that is tried first.
    medoids : (k,) int64
        Out; k ≥ 2.
    tiny : float
        Part of the loss that a swap must gain.
    """
    n, k = _U(columns.shape[0]), _U(medoids.size)
    chosen = _draw(columns, draws, medoids)
    nearest, second = np.empty(n, np.uint32), np.empty(n, np.uint32)
    to_nearest, to_second = np.empty(n, columns.dtype), np.empty(n, columns.dtype)
    for p in range(n):
        _rank(columns, medoids, p, nearest, second, to_nearest, to_second)
    removal, change = np.empty(k), np.empty(k)
    loss = _removals(nearest, to_nearest, to_second, removal)
    swaps, j, since = 0, _U(draws[k] * n), _U(0)
    while since < n:  # columns since the last swap
        since += _U(1)
        if not chosen[j]:
            change[:] = removal
            gain = _changes(columns[j], nearest, to_nearest, to_second, change)
            i = _U(np.argmin(change))
            if change[i] + gain < -tiny * loss:
                chosen[medoids[i]], chosen[j] = False, True
                medoids[i] = j
                _swap(columns, medoids, i, nearest, second, to_nearest, to_second)
                loss = _removals(nearest, to_nearest, to_second, removal)
                swaps += 1
                since = _U(0)
        j = j + _U(1) if j + _U(1) < n else _U(0)
    return loss, swaps


@jit
def _draw(columns, draws, medoids):  # type: ignore[no-untyped-def]
    """Draw medoids one by one, in proportion to the dissimilarity of a point with those before; which are chosen."""
    n = _U(columns.shape[0])
    chosen, weights = np.zeros(n, np.bool_), np.ones(n)
    for i in range(_U(medoids.size)):
        left, last = draws[i] * weights.sum(), _U(0)
        for p in range(n):
            if not chosen[p] and (left >= 0.0 or chosen[last]):
                last = _U(p)
                left -= weights[p]
        medoids[i], chosen[last] = last, True
        column = columns[last]
        for p in range(n):
            near = np.float64(column[p])
            weights[p] = near if i == _U(0) else min(weights[p], near)
        for j in range(i + _U(1)):
            weights[_U(medoids[j])] = 0.0
    return chosen


@jit
def _changes(column, nearest, to_nearest, to_second, change):  # type: ignore[no-untyped-def]
    """What a new medoid changes: for each point drawn from its nearest one, and (in ``change``) if that one goes."""
    gain = 0.0
    for p in range(_U(column.size)):
        new = column[p]
        if new < to_second[p]:
            if new < to_nearest[p]:
                gain += np.float64(new) - np.float64(to_nearest[p])
                change[_U(nearest[p])] += np.float64(to_nearest[p]) - np.float64(to_second[p])
            else:
                change[_U(nearest[p])] += np.float64(new) - np.float64(to_second[p])
    return gain


@jit
def _removals(nearest, to_nearest, to_second, removal):  # type: ignore[no-untyped-def]
    """What removing each medoid would add to the loss; the loss."""
    removal[:] = 0.0
    loss = 0.0
    for p in range(_U(nearest.size)):
        loss += to_nearest[p]
        removal[_U(nearest[p])] += np.float64(to_second[p]) - np.float64(to_nearest[p])
    return loss


@jit
def _rank(columns, medoids, p, nearest, second, to_nearest, to_second):  # type: ignore[no-untyped-def]
    """Find a point's two nearest medoids among all; the earlier one on a tie."""
    one, other = columns.dtype.type(np.inf), columns.dtype.type(np.inf)
    first, next_one = _U(0), _U(0)
    for i in range(_U(medoids.size)):
        new = columns[_U(medoids[i]), p]
        if new < one:
            other, next_one = one, first
            one, first = new, _U(i)
        elif new < other:
            other, next_one = new, _U(i)
    nearest[p], second[p] = first, next_one
    to_nearest[p], to_second[p] = one, other


@jit
def _swap(columns, medoids, i, nearest, second, to_nearest, to_second):  # type: ignore[no-untyped-def]
    """Two nearest medoids of all points after medoid ``i`` was replaced."""
    column = columns[_U(medoids[i])]
    for p in range(_U(column.size)):
        new = column[p]
        if _U(nearest[p]) == i:
            if new < to_second[p]:
                to_nearest[p] = new
            else:
                _rank(columns, medoids, p, nearest, second, to_nearest, to_second)
        elif new < to_nearest[p]:
            second[p], to_second[p] = nearest[p], to_nearest[p]
            nearest[p], to_nearest[p] = i, new
        elif _U(second[p]) == i:
            _rank(columns, medoids, p, nearest, second, to_nearest, to_second)
        elif new < to_second[p]:
            second[p], to_second[p] = i, new
