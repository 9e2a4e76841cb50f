"""MCLA: METIS groups hyperedges into meta-clusters, and samples vote. Linear in n."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.spectral import jaccard
from cehm_dask.rivals.metis import balanced_parts
from cehm_dask.rivals.rows import Found, counted, shares, vote

HERE = Where()
UNITS = 1000
"""Jaccard similarities become whole weights of edges in thousandths."""


def mcla(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Meta-clustering algorithm (Strehl and Ghosh, JMLR 2002).

    METIS cuts the graph of the hyperedges, weighted by Jaccard similarity, into k parts of nearly equal size; a
    sample goes to the part with the largest share of its hyperedges. Two sweeps.

    Missing labels: the sample is in none of that member's clusters. Samples without any label: -1.
    """
    with counted(labels, n_clusters, where) as (engine, hyperedges):
        weights = np.rint(UNITS * jaccard(hyperedges)).astype(np.int32)
        parts = balanced_parts(weights, n_clusters, seed)
        return vote(engine, hyperedges, shares(parts, n_clusters))
