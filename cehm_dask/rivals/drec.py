"""DREC: a dense representation of the microclusters, clustered spectrally. Quadratic in the number of distinct rows."""

import numpy as np
from scipy.linalg import eigh

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.points import cluster_points, unit_points
from cehm_dask.method.spectral import leading_vectors
from cehm_dask.rivals.pairs import admitted
from cehm_dask.rivals.rows import Floats, Found

HERE = Where()
LARGEST = 12_000
BYTES_A_PAIR = 32
"""Similarities, their normalised copies, and what the eigensolver works on."""

LAMBDA = 100.0
ROUNDS = 5
RESTARTS = 100
NEGLIGIBLE = 1e-4
"""Of the largest singular value; smaller ones are dropped."""


def drec(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Dense representation ensemble clustering (Zhou et al., Neurocomputing 2019), λ = 100.

    Z of least ‖X − XZ‖₂,₁ + λ‖Z‖², X the incidence of the microclusters, by five reweighted rounds; similarity (UUᵀ)⁴,
    element by element, of Z's scaled left singular vectors; spectral clustering, k-means with 100 starts. Exact but
    cheaper than the Sylvester equations of the paper: the weights are diagonal, so all rounds share one
    eigendecomposition of XXᵀ (P × P). Microclusters count alike, whatever their size.

    Missing labels: zeros in X; rows are the same only if they miss the same labels. Samples without any label: -1.
    """
    samples = admitted("DREC", labels, n_clusters, where, largest=LARGEST, bytes_a_pair=BYTES_A_PAIR, distinct=True)
    vectors = representation(samples.incidence())
    similarity = (vectors @ vectors.T) ** 4
    _, leading, _ = leading_vectors(similarity, n_clusters)
    return samples.labels_back(cluster_points(unit_points(leading), n_clusters, seed, restarts=RESTARTS))


def representation(rows: Floats) -> Floats:
    """Left singular vectors of Z, times the roots of its singular values, rows to unit length.

    ``rows`` is Xᵀ: one row a microcluster. With XᵀX = V Λ Vᵀ, column i of Z is V (Λ/(Λ + λ/d_i)) Vᵀ e_i.
    """
    values, left = eigh(rows.T @ rows)
    kept = values > 1e-10 * values[-1]
    values, basis = values[kept], rows @ (left[:, kept] / np.sqrt(values[kept]))
    penalty = np.full(len(rows), LAMBDA)
    for number in range(ROUNDS):
        shrunk = values / (values + penalty[:, None]) * basis  # row i: the coordinates of column i of Z
        if number < ROUNDS - 1:
            residual = np.sqrt(np.sum(values * (shrunk - basis) ** 2, axis=1))
            penalty = LAMBDA * 2.0 * np.maximum(residual, 1e-10)
    squares, inner = eigh(shrunk.T @ shrunk)
    singular = np.sqrt(np.maximum(squares, 0.0))
    large = singular > NEGLIGIBLE * singular[-1]
    scaled = basis @ inner[:, large] * np.sqrt(singular[large])
    return np.asarray(scaled / np.maximum(np.linalg.norm(scaled, axis=1, keepdims=True), 1e-300))
