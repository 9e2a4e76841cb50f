"""Spectral tools on the small table of hyperedges: leading eigenvectors, link similarity, local weights.

Below the portfolio, whose spectral starts are made of these, and the rivals that published them. Nothing here sees a
row: everything comes from the intersections.
"""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import block_diag, csr_array
from scipy.sparse.linalg import ArpackError, eigsh

from cehm_dask.method.agreement import entropy_terms
from cehm_dask.method.intersections import Hyperedges

Floats = NDArray[np.float64]

DIRECT = 4000
"""Up to this size the direct solver is used; beyond, Lanczos from a fixed vector."""

DECAY = 0.9
"""DC of the link-based methods: similarity of the two most similar clusters of one member."""

STEPS = 20
"""Length of random walks between hyperedges, as in ECPCS."""

WALK_ITERATIONS = 10
"""Towards the eigenvectors that walks are made of; the leading ones, which matter, are exact by then."""

THETA = 0.4
"""How fast the weight of a hyperedge falls with its uncertainty."""


def leading_vectors(
    similarity: Floats, count: int, direct: int = DIRECT, *, overwrite: bool = False
) -> tuple[Floats, Floats, Floats]:
    """Of D^-½ S D^-½: the largest eigenvalues, descending, their vectors, and the degrees D.

    Up to ``direct`` rows the direct solver is used, beyond it Lanczos. With ``overwrite``, the table is used up.
    """
    degrees = similarity.sum(axis=1)
    scale = 1.0 / np.sqrt(np.maximum(degrees, 1e-10))
    normalised = np.multiply(similarity, scale[:, None], out=similarity if overwrite else None)
    normalised *= scale[None, :]
    size = len(similarity)
    symmetrise(normalised)
    found = _by_lanczos(normalised, count) if size > direct and count < size // 10 else None
    if found is not None:
        values, vectors = found
    else:
        values, vectors = eigh(normalised, subset_by_index=[size - count, size - 1])
        if vectors.shape[1] < count:  # LAPACK's search for some may miss equal eigenvalues: of a graph in many parts
            values, vectors = eigh(normalised, driver="evd")
            values, vectors = values[size - count :], vectors[:, size - count :]
    return values[::-1], vectors[:, ::-1], degrees


def leading_vectors_of_rows(edges: Floats, row_weights: Floats, count: int) -> tuple[Floats, Floats] | None:
    """The vectors and degrees of :func:`leading_vectors` for S = Eᵀ diag(w) E, from the rows' side.

    D^-½ S D^-½ = AᵀA, and AAᵀ, which is as large as there are rows, has the same eigenvalues: with u a vector of it,
    Aᵀu / √λ is one of AᵀA. None where one of those wanted is 0 but for rounding.

    Parameters
    ----------
    edges : (rows, hyperedges) float64
        E; used up.
    row_weights : (rows,) float64
    count : int
    """
    degrees = edges.T @ (row_weights * edges.sum(axis=1))
    edges *= np.sqrt(row_weights)[:, None]
    edges /= np.sqrt(np.maximum(degrees, 1e-10))
    size = len(edges)
    values, vectors = eigh(edges @ edges.T, subset_by_index=[size - count, size - 1])
    if len(values) < count or values[0] < LEAST * values[-1]:
        return None
    return np.asarray(edges.T @ (vectors / np.sqrt(values)))[:, ::-1], degrees


LEAST = 1e-9
"""Eigenvalues below this share of the largest one are taken for 0."""


def _by_lanczos(matrix: Floats, count: int) -> tuple[Floats, Floats] | None:
    """Largest eigenvalues, ascending, and their vectors; None if the iteration fails, as it may where many are equal.

    It starts from a fixed vector. Should the matrix map few vectors onto themselves and that one be among them, it
    tries another, with more room.
    """
    size = len(matrix)
    starts = ((np.ones(size), None), (np.random.default_rng(0).standard_normal(size), min(size, 4 * count + 20)))
    for start, room in starts:
        try:
            values, vectors = eigsh(matrix, count, which="LA", v0=start, ncv=room)
        except ArpackError:
            continue
        order = np.argsort(values)
        return values[order], vectors[:, order]
    return None


def iterated_vectors(matrix: Floats, count: int, iterations: int) -> tuple[Floats, Floats]:
    """Largest eigenvalues of a symmetric matrix, descending, and their vectors, by iteration of a subspace.

    Eigenvalues that come many times over do not slow it down, and it takes matrix products only. The number of
    iterations is fixed, so that nothing depends on when the result would have been good enough.
    """
    width = min(len(matrix), count)
    basis = np.random.default_rng(0).standard_normal((len(matrix), width))
    for iteration in range(1, iterations + 1):
        basis = matrix @ basis
        if iteration % ORTHOGONAL == 0 or iteration == iterations:
            basis, _ = np.linalg.qr(basis)
    values, turns = np.linalg.eigh(basis.T @ matrix @ basis)
    return values[::-1], np.asarray(basis @ turns[:, ::-1])


ORTHOGONAL = 5
"""Iterations after which the subspace's vectors are made orthogonal again."""


ROWS = 1 << 7
"""Of a table that are worked on at a time, where the whole would need further tables of its size."""


def some_rows(count: int) -> Iterator[slice]:
    """All rows of a table, some at a time."""
    return (slice(first, first + ROWS) for first in range(0, count, ROWS))


def symmetrise(table: Floats) -> None:
    """The mean of a table and its transpose, in place."""
    for some in some_rows(len(table)):
        mean = (table[some, some.start :] + table[some.start :, some].T) / 2
        table[some, some.start :], table[some.start :, some] = mean, mean.T


def jaccard(hyperedges: Hyperedges) -> Floats:
    """Jaccard similarity of every two hyperedges: samples shared, of those in either. The diagonal is 0."""
    similarity = hyperedges.intersections.astype(np.float64)
    sizes = hyperedges.sizes.astype(np.float64)
    for some in some_rows(len(sizes)):
        shared = similarity[some]
        shared /= sizes[some, None] + sizes[None, :] - shared
    np.fill_diagonal(similarity, 0.0)
    return similarity


def refined(hyperedges: Hyperedges, similarity_of: Callable[[Floats, slice], Floats]) -> csr_array:
    """S (P × P, sparse: zero between members) such that the refined matrix is RM = B·S.

    ``similarity_of(w, rows)`` gives the similarity of every two clusters of one member from the table of Jaccard
    similarities. It is scaled so that the most similar two clusters of one member, over all members, get DECAY.
    """
    weights = jaccard(hyperedges)
    for member in range(hyperedges.n_members):  # clusters of one member share samples only by accident of the input
        own = hyperedges.of_member(member)
        weights[own, own] = 0.0
    spans = [hyperedges.of_member(member) for member in range(hyperedges.n_members)]
    blocks = [similarity_of(weights, own) for own in spans]
    for block in blocks:
        np.fill_diagonal(block, 0.0)
    factor = DECAY / max(max(block.max(initial=0.0) for block in blocks), 1e-300)
    for block in blocks:
        block *= factor
        np.fill_diagonal(block, 1.0)
    return csr_array(block_diag(blocks, format="csr"))


def link(table: Floats, mix: csr_array, hyperedges: Hyperedges) -> None:
    """Sᵀ·table·S for S of :func:`refined`, in place: block by block, as S is zero between members."""
    spans = [own for member in range(hyperedges.n_members) if (own := hyperedges.of_member(member)).stop > own.start]
    blocks = [mix[own, own].toarray() for own in spans]
    for own, block in zip(spans, blocks, strict=True):
        table[own] = block.T @ table[own]
    for own, block in zip(spans, blocks, strict=True):
        table[:, own] = table[:, own] @ block


def weighted_connected_triples(weights: Floats, own: slice) -> Floats:
    """Σ_z min(w_xz, w_yz) of every two clusters of one member."""
    rows = weights[own]
    if not len(rows):  # a member without labels of these samples
        return np.zeros((0, 0))
    return np.stack([np.minimum(row, rows).sum(axis=1) for row in rows])


def likeness_of_walks(hyperedges: Hyperedges, count: int) -> Floats:
    """Cosine of the trajectories of random walks from every two hyperedges, as in ECPCS.

    A step goes to another hyperedge with a probability in proportion to the Jaccard similarity: P = D⁻¹ J. The
    trajectories of 1 to STEPS steps have the inner products R = Σ_t Pᵗ (Pᵗ)ᵀ. With D^-½ J D^-½ = V Λ Vᵀ that is
    D^-½ V ((Vᵀ D V) ∘ G) Vᵀ D^-½, where G_ij is the sum of (λ_i λ_j)ᵗ; ``count`` leading eigenvectors suffice, as the
    others fade within two steps. A hyperedge that overlaps with none is like none.
    """
    table = jaccard(hyperedges)
    degrees = table.sum(axis=1)
    roots = np.where(degrees > 0, 1.0 / np.sqrt(np.maximum(degrees, 1e-300)), 0.0)
    table *= roots[:, None]
    table *= roots[None, :]
    values, vectors = iterated_vectors(table, count, WALK_ITERATIONS)
    del table
    products = np.clip(np.outer(values, values), -1.0, 1.0 - 1e-12)
    spread = products * (1.0 - products**STEPS) / (1.0 - products)
    scaled = vectors * roots[:, None]
    table = scaled @ (((vectors * degrees[:, None]).T @ vectors) * spread) @ scaled.T
    lengths = np.sqrt(np.maximum(table.diagonal(), 1e-300))
    table /= lengths[:, None]
    table /= lengths[None, :]
    return np.asarray(table)


def local_weights(hyperedges: Hyperedges) -> Floats:
    """exp(-H(c) / (theta l)) of every hyperedge c: 1 where every member has c's samples in one cluster."""
    first = np.flatnonzero(np.diff(hyperedges.members, prepend=-1))
    labelled = np.add.reduceat(hyperedges.intersections, first, axis=1)  # samples of c that a member labels
    widths = np.diff(first, append=hyperedges.n_hyperedges)
    entropies = np.empty(hyperedges.n_hyperedges)
    for some in some_rows(len(entropies)):
        shares = hyperedges.intersections[some] / np.repeat(np.maximum(labelled[some], 1), widths, axis=1)
        entropies[some] = entropy_terms(shares).sum(axis=1)
    entropies /= np.log(2.0)
    weights: Floats = np.exp(-entropies / (THETA * np.count_nonzero(labelled, axis=1)))
    return weights
