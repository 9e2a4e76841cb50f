"""CSPA: METIS on the graph of samples weighted by co-association. Quadratic in n."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.rivals.metis import balanced_parts
from cehm_dask.rivals.pairs import admitted
from cehm_dask.rivals.rows import Found

HERE = Where()
LARGEST = 10_000
BYTES_A_PAIR = 60
"""Counts, the sparse graph, and METIS's own levels of it."""


def cspa(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Cluster-based similarity partitioning (Strehl and Ghosh, JMLR 2002): METIS on B·Bᵀ.

    METIS makes parts of nearly equal size, whatever the data.

    Missing labels: not together. Samples without any: -1.
    """
    samples = admitted("CSPA", labels, n_clusters, where, largest=LARGEST, bytes_a_pair=BYTES_A_PAIR)
    B = samples.incidence().astype(np.float32)
    return samples.labels_back(balanced_parts((B @ B.T).astype(np.int32), n_clusters, seed))
