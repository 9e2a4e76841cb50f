"""The method on a dense n × n_hyperedges matrix in plain numpy: slow, obvious, and importing nothing of the package.

What the tests hold the package to. Sums over members run in member order in float64, as the contract asks, so
that even margins can be compared bit for bit.
"""

from dataclasses import dataclass, field
from math import ceil, isqrt

import numpy as np


@dataclass
class Result:
    """Everything a run passes through; rows that no member speaks about are -1 (margin 0) throughout."""

    labels: np.ndarray = None
    margin: np.ndarray = None
    losses: list = field(default_factory=list)
    trace: list = field(default_factory=list)
    """(stage, assignment) after the start, every diffusion round and every adjustion round, the last one included."""
    cuts: list = field(default_factory=list)
    """(margins, assigned) of every diffusion round, speaking rows only: shows whether a cut fell among ties."""
    counts: np.ndarray = None
    converged: bool = False

    def cut_among_ties(self):
        """Whether a diffusion round let in some rows and left out others of the same margin."""
        return any(np.isin(m[inside], m[~inside]).any() for m, inside in self.cuts)


def incidence(P):
    """H (n × n_hyperedges) and the member of each hyperedge: member by member, inside a member by ascending label."""
    P = np.asarray(P).astype(object).astype(np.int64)
    columns, members = [], []
    for j in range(P.shape[1]):
        for label in sorted(set(P[:, j].tolist()) - {-1}):
            columns.append(P[:, j] == label)
            members.append(j)
    return np.array(columns).reshape(len(columns), len(P)).T.astype(np.int64), np.array(members, int)


def intersections(P):
    H, _ = incidence(P)
    return H.T @ H


def dissimilarity(P, similarity):
    """1 − sim(e, c), row c and column e."""
    shared = intersections(P)
    n_hyperedges = len(shared)
    table = np.empty((n_hyperedges, n_hyperedges))
    for c in range(n_hyperedges):
        for e in range(n_hyperedges):
            whole = shared[c, c] + shared[e, e] - shared[c, e] if similarity == "jaccard" else shared[c, c]
            table[c, e] = 1 - shared[c, e] / whole
    return table


def degrees(H, members, W):
    """b(x, e): a row of H has at most one 1 among the columns of a member, so each product is that row of W."""
    b = np.zeros((len(H), W.shape[1]))
    for j in range(max(members, default=-1) + 1):
        b = b + H[:, members == j] @ W[members == j]
    return b


def winner_and_margin(b):
    """Largest belonging (lowest number on a tie), and its lead over the second; with one hyperedge, over nothing."""
    ascending = np.sort(b, axis=1)
    second = ascending[:, -2] if b.shape[1] > 1 else 0.0
    return b.argmax(axis=1), ascending[:, -1] - second


def one_hot(a, k):
    return (a[:, None] == np.arange(k)).astype(np.int64)


def target(schedule, n, k, n_a, n_a_start):
    if schedule == "fixed":
        return min(n, n_a + max(isqrt(n), ceil((n - n_a_start) / k)))
    root_up = isqrt(n) + (isqrt(n) ** 2 < n)
    return min(n, n_a + max(ceil((n - n_a) / k), root_up))


def inside_cut(schedule, m, n_s):
    """Which rows a diffusion round assigns."""
    inside = np.zeros(len(m), bool)
    if schedule == "fixed":
        inside[np.argsort(-m, kind="stable")[:n_s]] = True
    else:
        inside[m >= np.sort(m)[::-1][n_s - 1]] = True
    return inside


def cehm(P, k, medoids, belonging, schedule, max_iter=100):
    """Start, diffusion and adjustion from given medoids (hyperedge numbers)."""
    P = np.asarray(P)
    speaks = (P != -1).any(axis=1)
    H, members = incidence(P)
    H = H[speaks]
    n, n_members, sizes = len(H), P.shape[1], H.sum(axis=0)
    result = Result()

    def everywhere(values, silent):
        full = np.full(len(P), silent, np.asarray(values).dtype)
        full[speaks] = values
        return full

    def lengths(a):
        C = H.T @ one_hot(a, k)
        squares = (C / sizes[:, None] * C).sum(axis=0)
        return np.sqrt(np.where(squares > 0, squares, 1.0))

    def weights(a):
        C = H.T @ one_hot(a, k)
        if belonging == "count":
            return C.astype(float)
        return C / sizes[:, None] / (lengths(a) if belonging == "cosine" else 1.0)

    inside_medoid = H[:, sorted(medoids)]
    a = np.where(inside_medoid.sum(axis=1) == 1, inside_medoid.argmax(axis=1), -1)
    result.trace.append(("start", everywhere(a, -1)))

    n_a_start = (a >= 0).sum()
    while (a >= 0).sum() < n:
        best, m = winner_and_margin(degrees(H, members, weights(a)))
        inside = inside_cut(schedule, m, target(schedule, n, k, int((a >= 0).sum()), int(n_a_start)))
        a = np.where(inside, best, -1)
        result.trace.append(("diffusion", everywhere(a, -1)))
        result.cuts.append((m, inside))

    for _ in range(max_iter):
        b = degrees(H, members, weights(a))
        own = b[np.arange(n), a].sum()
        result.losses.append(
            n - own * np.sqrt(n / (k * n_members)) if belonging == "cosine" else n * n - own / n_members
        )
        best, m = winner_and_margin(b)
        if belonging == "cosine":
            m = m * lengths(a)[best]
        result.converged = bool((best == a).all())
        a = best
        result.trace.append(("adjustion", everywhere(a, -1)))
        if result.converged:
            break

    result.labels, result.margin = everywhere(a, -1), everywhere(m / n_members, 0.0)
    result.counts = H.T @ one_hot(a, k)
    return result
