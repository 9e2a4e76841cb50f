"""U-SENC's consensus: the bipartite graph of samples and hyperedges, cut by transfer. Linear in n."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.spectral import leading_vectors
from cehm_dask.rivals.lloyd import Embedding, bytes_a_row, k_means
from cehm_dask.rivals.rows import Found, counted
from cehm_dask.rivals.transfer_cut import affinity

HERE = Where()


def usenc(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Consensus by the transfer cut of U-SENC (Huang et al., TKDE 2020).

    W = Bᵀ diag(1/d) B with d the number of labels of a row; the k leading eigenvectors of D^-½ W D^-½ times D^-½
    are carried over to the samples by diag(1/d) B, rows are scaled to unit length and clustered by k-means (at most
    100 rounds, 3 starts). The members are the ensemble's own, not U-SPEC's.

    Missing labels: no edge; d counts the labels there are. Samples without any: -1.
    """
    kept, scratch = bytes_a_row(n_clusters)
    with counted(labels, n_clusters, where, kept=kept, scratch=scratch) as (engine, hyperedges):
        _, vectors, degrees = leading_vectors(affinity(engine, hyperedges), n_clusters)
        table = vectors / np.sqrt(degrees)[:, None]
        return k_means(engine, Embedding(hyperedges.to_slots(table)), n_clusters, seed)
