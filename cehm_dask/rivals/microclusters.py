"""Walks between microclusters, the distinct rows of labels: what PTA and PTGP share. Cubic in their number."""

from math import sqrt

import numpy as np

from cehm_dask.rivals.pairs import Samples
from cehm_dask.rivals.random_walk import trajectory_similarity, transitions
from cehm_dask.rivals.rows import Floats

LARGEST = 12_000
BYTES_A_PAIR = 48
"""Co-association, transitions, walks, their power and two products on the way."""

ISOLATED = 1e-20


def probability_trajectories(samples: Samples) -> Floats:
    """Similarity of microclusters by random walks on the graph of their elite neighbours.

    K = T = min(20, ⌊√ñ/2⌋), at least 1: a row keeps what is not below its K-th largest co-association, the graph is
    made symmetric, microclusters draw walks in proportion to their samples, and walks have up to T steps.
    """
    n = len(samples)
    reach = max(1, min(20, int(sqrt(n) / 2)))
    similarity = samples.co_association()
    np.fill_diagonal(similarity, 0.0)
    if n > 1:
        least = np.partition(similarity, n - reach, axis=1)[:, n - reach]
        similarity[similarity < least[:, None]] = 0.0
    similarity = np.maximum(similarity, similarity.T)
    similarity *= samples.counts[None, :]
    return trajectory_similarity(transitions(similarity), reach, ISOLATED)
