"""HBGF: samples and hyperedges as vertices of one graph, partitioned together. Linear in n."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.points import unit_points
from cehm_dask.method.spectral import leading_vectors
from cehm_dask.rivals.lloyd import Embedding, bytes_a_row, k_means
from cehm_dask.rivals.rows import Found, counted
from cehm_dask.rivals.transfer_cut import affinity

HERE = Where()


def hbgf(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Hybrid bipartite graph formulation (Fern and Brodley, ICML 2004), its spectral form.

    Chosen: spectral partition, not METIS, which forces clusters of equal size and needs the whole graph in memory.
    The singular vectors of D_x^-½ B D_c^-½ come from the P × P eigenproblem; hyperedges take part in the k-means
    beside the samples, which with the columns divided by the singular values is what sets it apart from U-SENC.

    Missing labels: no edge. Samples without any: -1.
    """
    kept, scratch = bytes_a_row(n_clusters)
    with counted(labels, n_clusters, where, kept=kept, scratch=scratch) as (engine, hyperedges):
        values, vectors, degrees = leading_vectors(affinity(engine, hyperedges), n_clusters)
        singular = np.sqrt(np.maximum(values, 1e-12))
        table = vectors / np.sqrt(degrees)[:, None] / singular
        # Unit length undoes the scale of a row, D_x^-½ as well as D_c^-½.
        embedding = Embedding(hyperedges.to_slots(table), extra=unit_points(vectors))
        return k_means(engine, embedding, n_clusters, seed)
