"""Link-based ensembles: a sample belongs a little to clusters like its own. What WCT and WTQ share."""

from collections.abc import Callable

import numpy as np

from cehm_dask.intersections import Hyperedges
from cehm_dask.job import Where
from cehm_dask.labels import Labels
from cehm_dask.rivals.lloyd import Embedding, bytes_a_row, k_means
from cehm_dask.rivals.rows import Floats, Found, counted, jaccard
from cehm_dask.rivals.transfer_cut import affinity, leading_vectors

DECAY = 0.9
"""DC: similarity of the two most similar clusters of one member."""


def refined(hyperedges: Hyperedges, similarity_of: Callable[[Floats, slice], Floats]) -> Floats:
    """S (P × P, zero between members) such that the refined matrix is RM = B·S.

    ``similarity_of(w, rows)`` gives the similarity of every two clusters of one member from the table of Jaccard
    similarities. It is scaled so that the most similar two clusters of one member, over all members, get DECAY.
    """
    weights = jaccard(hyperedges)
    for member in range(hyperedges.n_members):  # clusters of one member share samples only by accident of the input
        own = hyperedges.of_member(member)
        weights[own, own] = 0.0
    mix = np.zeros_like(weights)
    for member in range(hyperedges.n_members):
        own = hyperedges.of_member(member)
        mix[own, own] = similarity_of(weights, own)
    np.fill_diagonal(mix, 0.0)
    mix *= DECAY / max(mix.max(), 1e-300)
    np.fill_diagonal(mix, 1.0)
    return mix


def link_based(
    labels: Labels, n_clusters: int, seed: int, where: Where, similarity_of: Callable[[Floats, slice], Floats]
) -> Found:
    """Consensus of RM = B·S by spectral bipartite partition, RM never formed."""
    kept, scratch = bytes_a_row(n_clusters)
    with counted(labels, n_clusters, where, kept=kept, scratch=scratch, tables=12) as (engine, hyperedges):
        mix = refined(hyperedges, similarity_of)
        _, vectors, degrees = leading_vectors(affinity(engine, hyperedges, mix), n_clusters)
        table = mix @ (vectors / np.sqrt(degrees)[:, None])
        return k_means(engine, Embedding(hyperedges.to_slots(table)), n_clusters, seed)
