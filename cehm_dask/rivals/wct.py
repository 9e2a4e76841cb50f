"""WCT: the link-based ensemble with weighted connected triples. Linear in n."""

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.spectral import weighted_connected_triples
from cehm_dask.rivals.link import link_based
from cehm_dask.rivals.rows import Found

HERE = Where()


def wct(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Link-based ensemble with weighted connected triples (Iam-On et al., TPAMI 2011), DC = 0.9.

    Clusters x, y of one member are as similar as they have common neighbours: Σ_z min(w_xz, w_yz), w the Jaccard
    similarity (0 inside a member). Chosen where descriptions differ: the largest value, by which all are divided, is
    sought among the pairs inside members; the refined matrix is partitioned by the spectral cut of its bipartite
    graph (transfer cut and k-means, as in U-SENC).

    Missing labels: a row has no weight on any cluster of a silent member. Samples without any label: -1.
    """
    return link_based(labels, n_clusters, seed, where, weighted_connected_triples)
