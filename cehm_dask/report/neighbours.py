"""A few samples in the plane so that neighbours stay neighbours: t-SNE, the same bits for the same samples.

Below ``picture``, which hands over the samples along their main axes. The work is bounded by the number of samples and
of rounds, whatever n is.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cehm_dask.machine import one_thread_each

MOST_EMBEDDED = 1500
"""Samples; more are thinned."""
EMBEDDING_SECONDS = 3.0
"""Of one core, for so many samples: 2.1 s were measured, of the digits."""
FEWEST_EMBEDDED = 30
"""Of fewer, the main axes show all there is."""
MOST_AXES = 50
"""Main axes that distances are taken along; the usual number."""
PERPLEXITY = 30.0
ROUNDS = 500
EMBEDDING_BYTES = 24 << 20
"""Code and neighbours of the most samples: 11 MB were measured."""
SEED = 0

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Some of the sampled rows in a plane of their own."""

    places: NDArray[np.int64]
    """Which of the sampled rows."""
    coordinates: Floats


def embed(points: Floats) -> Neighbours | None:
    """Place sampled rows by their nearest neighbours.

    Parameters
    ----------
    points : (n_rows, n_axes) float64
        Rows along their main axes, the first two of which are where they start from.

    Returns
    -------
    Neighbours or None
        None where there are too few rows, or only one axis.
    """
    count = min(len(points), MOST_EMBEDDED)
    if count < FEWEST_EMBEDDED or points.shape[1] < 2:
        return None
    from sklearn.manifold import TSNE

    # Rows are drawn at random and ascend: every so many of them are a random draw too.
    places = np.unique(np.linspace(0, len(points) - 1, count).round().astype(np.int64))
    taken = points[places, :MOST_AXES]
    # The last bits of a coordinate, which may differ between machines, would be magnified round by round.
    taken = np.asarray(np.round(taken / (taken[:, 0].std() or 1.0), 6), np.float64)
    begin = taken[:, :2] * 1e-4
    how = {"perplexity": min(PERPLEXITY, (count - 1) / 3), "max_iter": ROUNDS, "random_state": SEED, "n_jobs": 1}
    # With several threads, the sum over all pairs would be added up in any order.
    with one_thread_each():
        found = TSNE(2, init=begin.astype(np.float32), **how).fit_transform(taken.astype(np.float32))
    return Neighbours(places, np.asarray(found, np.float64))
