"""Spectral partition of a bipartite graph samples–hyperedges, by an eigenproblem of the hyperedges alone.

Serves U-SENC, HBGF, WCT and WTQ. The graph has the weights B·S, where B is the n × P incidence matrix and S a P × P
table; neither B nor B·S is formed.
"""

import numpy as np
from scipy.linalg import eigh

from cehm_dask.engine import Engine
from cehm_dask.intersections import Hyperedges
from cehm_dask.rivals.rows import Floats, weighted_table


def affinity(engine: Engine, hyperedges: Hyperedges, mix: Floats | None = None) -> Floats:
    """(B·S)ᵀ diag(1/d) (B·S), d the row sums of B·S; S = ``mix``, default the identity.

    One sweep, or none where every row has the same degree: then the intersections say it all.
    """
    if mix is None and hyperedges.sizes.sum() == hyperedges.n_samples * hyperedges.n_members:
        return hyperedges.intersections / hyperedges.n_members
    degrees = np.ones(hyperedges.n_hyperedges) if mix is None else mix.sum(axis=1)
    table = weighted_table(engine, hyperedges, degrees)
    return table if mix is None else mix.T @ table @ mix


def leading_vectors(similarity: Floats, count: int) -> tuple[Floats, Floats, Floats]:
    """Of D^-½ S D^-½: the largest eigenvalues, descending, their vectors, and the degrees D."""
    degrees = similarity.sum(axis=1)
    scale = 1.0 / np.sqrt(np.maximum(degrees, 1e-10))
    normalised = similarity * scale[:, None] * scale[None, :]
    size = len(similarity)
    values, vectors = eigh((normalised + normalised.T) / 2, subset_by_index=[size - count, size - 1])
    return values[::-1], vectors[:, ::-1], degrees
