"""WTQ: the link-based ensemble with weighted triple quality. Linear in n."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.rivals.link import link_based
from cehm_dask.rivals.rows import Floats, Found

HERE = Where()


def wtq(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Link-based ensemble with weighted triple quality (Iam-On et al., TPAMI 2011), DC = 0.9.

    As WCT, but a common neighbour z of two clusters (w_xz > 0, w_yz > 0) counts 1 / Σ_y w_zy: the fewer ties it has,
    the more it says. Written from the published definition; no program of the authors was at hand to compare with.
    The largest value is sought inside members, and the cut is that of WCT.

    Missing labels: a row has no weight on any cluster of a silent member. Samples without any label: -1.
    """
    return link_based(labels, n_clusters, seed, where, weighted_triple_quality)


def weighted_triple_quality(weights: Floats, own: slice) -> Floats:
    """Σ 1/W_z over the common neighbours z of every two clusters of one member."""
    totals = weights.sum(axis=1)
    linked = (weights[own] > 0).astype(np.float64)
    return (linked / np.where(totals > 0, totals, np.inf)) @ linked.T
