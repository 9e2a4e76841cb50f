"""k-means on rows in memory, with the same centres on every CPU.

Below the members. scikit-learn's k-means multiplies matrices by BLAS, whose sums run in another order on a CPU with
AVX2 or AVX-512 than on one without; where a row is about as near to two centres, the members then differ. Here all sums
run in a fixed order: distances feature by feature, centres row by row. Starts, rounds and the rule to stop are those of
``sklearn.cluster.KMeans(init="random", n_init=1)``, so the members are about the same as well.
"""

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method import distances

ROUNDS = 300
TOLERANCE = 1e-4
"""Times the mean variance of the features: centres that move less, squared and summed, have arrived."""


def fit_centres(rows: NDArray[np.float32], k: int, seed: int) -> NDArray[np.float64]:
    """Centres (k, features) of Lloyd's iteration from k rows drawn at random."""
    n, features = rows.shape
    middle = (rows.sum(axis=0, dtype=np.float64) / n).astype(np.float32)
    # Around the middle, where the digits of a float32 are not spent on a common offset.
    centred = rows - middle
    columns = np.ascontiguousarray(centred.T)
    drawn = np.random.RandomState(seed).choice(n, size=k, replace=False, p=np.full(n, 1 / n))
    centres = centred[drawn].astype(np.float64)
    tolerance = TOLERANCE * float(np.mean((columns.astype(np.float64) ** 2).sum(axis=1) / n))
    first = np.array([0, k])
    labels, before = np.zeros((n, 1), np.uint16), np.zeros((n, 1), np.uint16)
    for _ in range(ROUNDS):
        slopes = centres.astype(np.float32)
        intercepts = (-0.5 * (slopes.astype(np.float64) ** 2).sum(axis=1)).astype(np.float32)
        distances.nearest(columns, slopes, intercepts, first, labels)
        sums, counts = np.zeros((k, features)), np.zeros(k, np.int64)
        distances.centre_sums(centred, labels, first, sums, counts)
        _fill_empty(centred, labels[:, 0].astype(np.intp) - 1, centres, sums, counts)
        means = sums / np.maximum(counts, 1)[:, None]
        moved = float(((means - centres) ** 2).sum())
        centres = means
        if moved <= tolerance or np.array_equal(labels, before):
            break
        labels, before = before, labels
    return np.asarray(centres + middle)


def _fill_empty(
    rows: NDArray[np.float32],
    own: NDArray[np.intp],
    centres: NDArray[np.float64],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """Give each centre that lost its rows one that is farthest from its own; sums and counts are changed in place."""
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return
    distances = np.zeros(len(rows))
    for feature in range(rows.shape[1]):
        distances += (rows[:, feature] - centres[own, feature]) ** 2
    for centre, row in zip(empty, np.argsort(-distances, kind="stable"), strict=False):
        sums[own[row]] -= rows[row]
        counts[own[row]] -= 1
        sums[centre], counts[centre] = rows[row], 1


def through(rows: NDArray[np.floating], view: NDArray[np.floating]) -> NDArray[np.floating]:
    """rows · view, summed feature by feature: a matrix product of the same bits on every CPU."""
    seen = np.zeros((len(rows), view.shape[1]), np.result_type(rows, view))
    for feature in range(len(view)):
        seen += rows[:, feature, None] * view[feature]
    return seen
