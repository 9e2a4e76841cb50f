"""EC-CMS: a co-association matrix that learns from its confident pairs. Cubic in n, many rounds."""

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.linalg import inv
from scipy.spatial.distance import squareform
from scipy.special import xlogy

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.rivals.pairs import Samples, admitted
from cehm_dask.rivals.rows import Floats, Found
from cehm_dask.rivals.tree import cut

HERE = Where()
LARGEST = 10_000
BYTES_A_PAIR = 100
"""Twelve tables of every two samples."""

ALPHA = 0.8
LAMBDA = 0.4
THETA = 0.4
ROUNDS = 100
TOLERANCE = 1e-2


def ec_cms(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Ensemble clustering by co-association matrix self-enhancement (Jia et al., TNNLS 2023).

    Chosen: α = 0.8 and λ = 0.4, as the CEHM paper has it (the authors' example has 0.75 and 0.01), θ = 0.4 for the
    weights of clusters; rounds end when the relative changes of C, E, F and the residuals relative to the
    multipliers (Frobenius norms) are all below 0.01, after 100 at most. Average linkage, cut at k. No random choice:
    ``seed`` changes nothing.

    Missing labels: a pair is judged by the members that speak of both. Samples without any label: -1.
    """
    samples = admitted("EC-CMS", labels, n_clusters, where, largest=LARGEST, bytes_a_pair=BYTES_A_PAIR)
    if len(samples) == 1:
        return samples.labels_back(np.zeros(1, np.intp))
    confident = samples.co_association()
    confident[confident < ALPHA] = 0.0
    np.fill_diagonal(confident, 0.0)
    enhanced = enhance(samples.co_association(cluster_weights(samples)), confident)
    distance = 1.0 - (enhanced + enhanced.T) / 2
    np.fill_diagonal(distance, 0.0)
    tree = linkage(squareform(np.clip(distance, 0.0, None), checks=False), "average")
    return samples.labels_back(cut(tree, n_clusters))


def cluster_weights(samples: Samples) -> Floats:
    """exp(−H/(θM)): H is the entropy (base 2) of a cluster's samples over each member's clusters, summed."""
    B = samples.incidence()
    shared = B.T @ B
    members = np.eye(samples.n_members)[samples.members]
    totals = np.maximum(shared @ members, 1.0)  # samples of a cluster that a member speaks of
    shares = shared / (totals @ members.T)
    entropy = -xlogy(shares, shares).sum(axis=1) / np.log(2)
    return np.asarray(np.exp(-entropy / (THETA * samples.n_members)))


def enhance(weak: Floats, confident: Floats) -> Floats:
    """C near the co-association ``weak``, smooth over the ``confident`` pairs, by the alternating directions method."""
    fixed = confident > 0
    system = -2.0 * confident
    system[np.diag_indices_from(system)] += 2.0 * confident.sum(axis=1) + 2.0
    solve = inv(system, overwrite_a=True)
    C, E, F, second = (np.zeros_like(weak) for _ in range(4))
    first = weak.copy()
    for _ in range(ROUNDS):
        previous = C, E, F
        C = solve @ (weak - E + first + F - second)
        E = (weak - C + first) / (LAMBDA + 1.0)
        E[fixed] = 0.0
        F = C + second
        F = np.clip((F + F.T) / 2, 0.0, 1.0)
        residuals = weak - C - E, C - F
        first += residuals[0]
        second += residuals[1]
        changes = [_relative(now - then, then) for now, then in zip((C, E, F), previous, strict=True)]
        changes += [_relative(residuals[0], first), _relative(residuals[1], second)]
        if max(changes) < TOLERANCE:
            break
    return C


def _relative(change: Floats, to: Floats) -> float:
    size, whole = float(np.linalg.norm(change)), float(np.linalg.norm(to))
    return 0.0 if size == 0.0 else size / max(whole, 1e-300)
