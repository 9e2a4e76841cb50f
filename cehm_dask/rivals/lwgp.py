"""LWGP: the bipartite graph of samples and hyperedges, hyperedges weighted by how far members agree. Linear in n."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.spectral import leading_vectors, local_weights
from cehm_dask.rivals.lloyd import Embedding, bytes_a_row, k_means
from cehm_dask.rivals.rows import Found, counted
from cehm_dask.rivals.transfer_cut import affinity

HERE = Where()


def lwgp(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Locally weighted graph partitioning (Huang, Wang and Lai, IEEE Trans. Cybernetics 2018), theta = 0.4.

    A hyperedge that the other members cut into many pieces is uncertain: H(c) is the sum over the members of the
    entropy (in bits) of c's samples over that member's clusters, and its weight is exp(-H(c) / (theta l)), l the
    number of members. The graph of samples and weighted hyperedges is partitioned by transfer cut and k-means, as in
    U-SENC. The weights come from the intersections alone. Three sweeps before k-means.

    Missing labels: no edge. In H(c), a member's entropy is that of the samples of c which it labels, and l counts the
    members that label any of them: a silent member speaks neither for c nor against it. Samples without any: -1.
    """
    kept, scratch = bytes_a_row(n_clusters)
    with counted(labels, n_clusters, where, kept=kept, scratch=scratch) as (engine, hyperedges):
        weights = local_weights(hyperedges)
        weights /= weights.max()  # a common factor changes no cut, and tiny numbers would meet the guards against zero
        _, vectors, degrees = leading_vectors(affinity(engine, hyperedges, weights), n_clusters)
        table = vectors * (weights / np.sqrt(degrees))[:, None]
        return k_means(engine, Embedding(hyperedges.to_slots(table)), n_clusters, seed)
