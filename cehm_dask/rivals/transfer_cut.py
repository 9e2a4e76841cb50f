"""Spectral partition of a bipartite graph samples–hyperedges, by an eigenproblem of the hyperedges alone.

Serves U-SENC, LWGP, HBGF, WCT and WTQ. The graph has the weights B·S, where B is the n × P incidence matrix and S a
P × P table; neither B nor B·S is formed.
"""

import numpy as np
from scipy.sparse import csr_array

from cehm_dask.engine.sweep import Engine
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.method.spectral import link
from cehm_dask.rivals.rows import Floats, weighted_table


def affinity(engine: Engine, hyperedges: Hyperedges, mix: Floats | csr_array | None = None) -> Floats:
    """(B·S)ᵀ diag(1/d) (B·S), d the row sums of B·S; S = ``mix``, or its diagonal; default the identity.

    One sweep, or none where every row has the same degree: then the intersections say it all.
    """
    if mix is None and hyperedges.sizes.sum() == hyperedges.n_samples * hyperedges.n_members:
        return hyperedges.intersections / hyperedges.n_members
    if mix is None:
        return weighted_table(engine, hyperedges, np.ones(hyperedges.n_hyperedges))
    if mix.ndim == 1:
        return weighted_table(engine, hyperedges, mix) * mix[:, None] * mix[None, :]
    table = weighted_table(engine, hyperedges, mix.sum(axis=1))
    link(table, mix, hyperedges)
    return table
