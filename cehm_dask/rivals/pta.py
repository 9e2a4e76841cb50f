"""PTA: a tree of the microclusters by their probability trajectories. Cubic in the number of distinct rows."""

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.rivals.microclusters import BYTES_A_PAIR, LARGEST, probability_trajectories
from cehm_dask.rivals.pairs import admitted
from cehm_dask.rivals.rows import Found
from cehm_dask.rivals.tree import cut

HERE = Where()


def pta(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Probability trajectory accumulation (Huang, Lai and Wang, TKDE 2016), average linkage.

    Microclusters are joined by average linkage of 1 − their trajectory similarity, their sizes not counted, and the
    tree is cut at k. No random choice: ``seed`` changes nothing.

    Missing labels: rows are the same only if they miss the same labels; a pair is judged by the members that speak
    of both. Samples without any label: -1.
    """
    samples = admitted("PTA", labels, n_clusters, where, largest=LARGEST, bytes_a_pair=BYTES_A_PAIR, distinct=True)
    if len(samples) == 1:
        return samples.labels_back(np.zeros(1, np.intp))
    distance = 1.0 - probability_trajectories(samples)
    np.clip((distance + distance.T) / 2, 0.0, None, out=distance)
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(distance, checks=False), "average")
    return samples.labels_back(cut(tree, n_clusters))
