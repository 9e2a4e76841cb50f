"""ECPCS-MC: hyperedges that walks visit alike form meta-clusters, and samples vote. Linear in n."""

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh, svd

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.spectral import jaccard
from cehm_dask.rivals.random_walk import trajectory_similarity, transitions
from cehm_dask.rivals.rows import Floats, Found, counted, shares, vote

HERE = Where()

STEPS = 20
"""Length of the walks, t."""

NEGLIGIBLE = 1e-6
REGULARISATION = 0.5
DISCRETISATION_ROUNDS = 20


def ecpcs_mc(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Cluster-wise similarity propagated by random walks, meta-clusters (Huang et al., TSMC:S 2021), t = 20.

    Walks of 1 to 20 steps between hyperedges, by Jaccard similarity; the cosine of their trajectories; a normalised
    cut of the hyperedges into k groups (regularised by 0.5, entries below 1e-6 dropped, discretised by rotation); a
    sample goes to the group with the largest share of its hyperedges. Two sweeps, no random choice: ``seed`` changes
    nothing.

    Missing labels: the sample is in none of that member's clusters. Samples without any label: -1.
    """
    with counted(labels, n_clusters, where, tables=10) as (engine, hyperedges):
        similarity = trajectory_similarity(transitions(jaccard(hyperedges)), STEPS, 0.0)
        return vote(engine, hyperedges, shares(normalised_cut(similarity, n_clusters), n_clusters))


def normalised_cut(similarity: Floats, n_clusters: int) -> NDArray[np.intp]:
    """Groups of vertices by Shi and Malik's normalised cut, discretised as by Yu and Shi."""
    weights = np.where(similarity < NEGLIGIBLE, 0.0, similarity)
    weights[np.diag_indices_from(weights)] += REGULARISATION
    scale = 1.0 / np.sqrt(weights.sum(axis=1) + REGULARISATION)
    size = len(weights)
    _, vectors = eigh(weights * scale[:, None] * scale[None, :], subset_by_index=[size - n_clusters, size - 1])
    return discretised(scale[:, None] * vectors[:, ::-1])


def discretised(vectors: Floats) -> NDArray[np.intp]:
    """The partition nearest to a rotation of the eigenvectors, found by turns: partition, rotation."""
    lengths = np.linalg.norm(vectors, axis=0)
    rows = vectors / np.where(lengths > 0, lengths, 1.0)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    size, k = rows.shape
    rotation = np.zeros((k, k))
    rotation[:, 0] = rows[size // 2]
    likeness = np.zeros(size)
    for column in range(1, k):  # rows as orthogonal to one another as can be found
        likeness += np.abs(rows @ rotation[:, column - 1])
        rotation[:, column] = rows[np.argmin(likeness)]
    last = 0.0
    for _ in range(DISCRETISATION_ROUNDS):
        groups = np.argmax(rows @ rotation, axis=1)
        left, singular, right = svd(np.eye(k)[groups].T @ rows)
        value = 2.0 * (size - singular.sum())
        if abs(value - last) < np.finfo(float).eps:
            break
        last, rotation = value, right.T @ left.T
    return np.asarray(groups)
