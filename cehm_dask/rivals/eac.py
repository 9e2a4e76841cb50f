"""EAC: evidence accumulation, a tree of the samples by how often members put them together. Quadratic in n."""

import numpy as np
from scipy.cluster.hierarchy import linkage

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.rivals.pairs import Samples, admitted
from cehm_dask.rivals.rows import Floats, Found
from cehm_dask.rivals.tree import cut

HERE = Where()
LARGEST = 20_000
BYTES_A_PAIR = 8
"""Distances of half the pairs, and the copy that linkage works on."""

STRIP = 512


def eac(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Evidence accumulation (Fred and Jain, TPAMI 2005) with average linkage of 1 − co-association, cut at k.

    Chosen: average linkage, which is in common use; the paper has single. No random choice: ``seed`` changes nothing.

    Missing labels: a pair is judged by the members that speak of both. Samples without any label: -1.
    """
    samples = admitted("EAC", labels, n_clusters, where, largest=LARGEST, bytes_a_pair=BYTES_A_PAIR)
    if len(samples) == 1:
        return samples.labels_back(np.zeros(1, np.intp))
    tree = linkage(distances(samples), "average")
    return samples.labels_back(cut(tree, n_clusters))


def distances(samples: Samples) -> Floats:
    """1 − co-association of the pairs i < j, row by row, without the n × n table."""
    B = samples.incidence()
    spoken = (samples.edges >= 0).astype(np.float64)
    n = len(samples)
    condensed = np.empty(n * (n - 1) // 2)
    for first in range(0, n, STRIP):
        rows = slice(first, min(first + STRIP, n))
        together = B[rows] @ B[first:].T
        together /= np.maximum(spoken[rows] @ spoken[first:].T, 1.0)
        for i in range(rows.start, rows.stop):
            start = i * n - i * (i + 1) // 2
            condensed[start : start + n - i - 1] = 1.0 - together[i - first, i - first + 1 :]
    return condensed
