"""LWGP: the bipartite graph of samples and hyperedges, hyperedges weighted by how far members agree. Linear in n."""

import numpy as np
from scipy.special import entr

from cehm_dask.intersections import Hyperedges
from cehm_dask.job import Where
from cehm_dask.labels import Labels
from cehm_dask.rivals.lloyd import Embedding, bytes_a_row, k_means
from cehm_dask.rivals.rows import Floats, Found, counted
from cehm_dask.rivals.transfer_cut import affinity, leading_vectors

HERE = Where()

THETA = 0.4
"""How fast the weight of a hyperedge falls with its uncertainty."""


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


def local_weights(hyperedges: Hyperedges) -> Floats:
    """exp(-H(c) / (theta l)) of every hyperedge c: 1 where every member has c's samples in one cluster."""
    first = np.flatnonzero(np.diff(hyperedges.members, prepend=-1))
    labelled = np.add.reduceat(hyperedges.intersections, first, axis=1)  # samples of c that a member labels
    widths = np.diff(first, append=hyperedges.n_hyperedges)
    shares = hyperedges.intersections / np.repeat(np.maximum(labelled, 1), widths, axis=1)
    entropies = entr(shares).sum(axis=1) / np.log(2.0)
    weights: Floats = np.exp(-entropies / (THETA * np.count_nonzero(labelled, axis=1)))
    return weights
