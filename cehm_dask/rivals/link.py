"""Link-based ensembles: a sample belongs a little to clusters like its own. What WCT and WTQ share."""

from collections.abc import Callable

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.spectral import leading_vectors, refined
from cehm_dask.rivals.lloyd import Embedding, bytes_a_row, k_means
from cehm_dask.rivals.rows import Floats, Found, counted
from cehm_dask.rivals.transfer_cut import affinity


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
