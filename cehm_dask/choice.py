"""Which number of clusters to keep, from the intersections of the hyperedges alone.

A random walk goes from a hyperedge to one of its samples, and on to any hyperedge that holds the sample. It hardly
leaves a cluster that all members respect: with k clusters, k eigenvalues of the walk are near 1 and the next is not.
Coarse members merge clusters: the k eigenvalues are then smaller, but still well above those that follow. So the gap
behind eigenvalue k is measured on the log-odds scale, log λ / (1 - λ), on which steps near 1 and near 0 both count.

Null model: with the labels of every member shuffled, all eigenvalues but the first lie below (1 + √(n_hyperedges / n))²
/ n_members, the edge of the Marchenko-Pastur law. Eigenvalues below that edge are taken to be equal to it.

A wide gap is not enough: k-means also cuts a uniform square into the same quarters every time. The widest gap counts as
a clear k if one of these holds:

- most members have 1.5 k clusters or more, so they could have split further and did so each in another way;
- eigenvalue k + 1 lies at the edge of the null model: beyond k clusters, the members are independent;
- the members are nested: where clusters of two members overlap, the smaller lies inside the larger. Members that merge
  or split whole clusters are like that, members that cut a continuum somewhere are not.

If none holds, there is no clear k, and the k with the widest gap is kept all the same. Agreement with the members would
be a bad judge: it mostly grows with k.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cehm_dask.intersections import Hyperedges

# The constants below were chosen on blobs and uniform noise with k-means members (40 sets each) and on made-up labels
# (30 sets), each with fine, coarse and same-k members; tests and benchmarks use other seeds.

MOST_JUDGED = 64
"""Numbers of clusters beyond this are not judged: the eigenvalues would cost more than the consensus."""

CEILING = 1.05
"""Gaps are differences of log λ / (CEILING - λ): with 1, steps from 0.99 to 0.98 would decide.

With 1.1, two of the six sets in tests/benchmarks/choice.py, whose members are very fine, were missed.
"""

FINER = 1.5
"""A member with so many times k clusters could have split k clusters further."""

MOST_FINER = 0.67
"""Share of the members that must be so fine for the gap alone to decide."""

WIDE_IF_FINE = 0.85
"""Least gap then; uniform noise stayed below 0.5, nine in ten sets of blobs had 1.0 or more."""

AT_EDGE = 1.1
"""An eigenvalue up to so many times the edge of the null model is taken to lie at it."""

WIDE_TO_EDGE = 0.35
"""Least gap down to that edge; independent random labels have none."""

NESTED = 0.85
"""Least containment of nested members.

Nine in ten ensembles on blobs, of coarse or same-k members, had 0.86 to 0.99; uniform noise had 0.3 to 0.84, except for
k-means with four clusters in the plane, which finds the same quarters every time (1.0): no rule on labels can tell.
"""

WIDE_IF_NESTED = 0.5
"""Least gap of nested members."""

NEXT_GAP = 1.1
"""Least ratio of the widest gap to the next, except down to the edge of the null model."""

TINY = 0.005
"""A cluster with a smaller share of the samples is worth a warning."""

ONLY_ONE = "the only number of clusters that was run"
"""Reason where there was nothing to choose."""

ITERATIONS = 40
"""Of the subspace; fixed, so that nothing depends on when it would have been good enough."""

ORTHOGONAL = 5
"""Iterations after which the subspace's vectors are made orthogonal again."""


@dataclass(frozen=True)
class Gap:
    """Two neighbouring eigenvalues of the walk on the hyperedges."""

    n_clusters: int
    inside: float
    """Eigenvalue k."""
    beyond: float
    """Eigenvalue k + 1."""
    edge: float
    """Largest eigenvalue, but the first, of the null model."""
    finer: float
    """Share of the members with FINER times k clusters or more."""

    @property
    def width(self) -> float:
        """Difference of log-odds; 0 where both lie below the edge."""
        return _log_odds(max(self.inside, self.edge)) - _log_odds(max(self.beyond, self.edge))

    @property
    def to_edge(self) -> bool:
        """Whether nothing but independent labels is left beyond k clusters."""
        return self.beyond <= AT_EDGE * self.edge


def _log_odds(eigenvalue: float) -> float:
    eigenvalue = min(eigenvalue, 1.0)
    return log(eigenvalue / (CEILING - eigenvalue))


@dataclass(frozen=True)
class Choice:
    """The number of clusters that is kept, and why."""

    n_clusters: int
    clear: bool
    reason: str


def gaps(hyperedges: Hyperedges, n_clusters: int) -> list[Gap]:
    """The gap behind every number of clusters from 2 to ``n_clusters``, but no more than the finest member has."""
    clusters_of = np.bincount(hyperedges.members, minlength=hyperedges.n_members)
    last = min(n_clusters, MOST_JUDGED, int(clusters_of.max(initial=0)))
    if last < 2:
        return []
    with threadpool_limits(1):  # threads that wait for one another cost more than these small products
        values = _eigenvalues(hyperedges, last + 1)
    edge = (1.0 + sqrt(hyperedges.n_hyperedges / hyperedges.n_speaking)) ** 2 / hyperedges.n_members
    return [
        Gap(k, float(values[k - 1]), float(values[k]), min(edge, 1.0), float(np.mean(clusters_of >= FINER * k)))
        for k in range(2, last + 1)
    ]


def _eigenvalues(hyperedges: Hyperedges, count: int) -> NDArray[np.float64]:
    """The largest eigenvalues of the walk, the first one scaled to 1.

    By iteration of a subspace: eigenvalues near 1 come as many times over as there are clusters, which it does not
    mind, and it takes matrix products only.
    """
    scale = 1.0 / np.sqrt(hyperedges.sizes)
    walk = hyperedges.intersections * scale[:, None] * scale[None, :] / hyperedges.n_members
    width = min(len(walk), count + 12)
    basis = np.random.default_rng(0).standard_normal((len(walk), width))
    for iteration in range(1, ITERATIONS + 1):
        basis = walk @ basis
        if iteration % ORTHOGONAL == 0:
            basis, _ = np.linalg.qr(basis)
    values = np.linalg.eigvalsh(basis.T @ walk @ basis)[::-1]
    return np.pad(values / values[0], (0, max(0, count - width)))[:count]


def containment(hyperedges: Hyperedges) -> float:
    """How much of the smaller of two clusters of different members lies in the larger one.

    Mean over all samples and pairs of members; 1 if members only merge or split each other's clusters.
    """
    total = weighted = 0.0
    sizes = hyperedges.sizes.astype(np.float64)
    for member in range(hyperedges.n_members):  # row by row: no second table of the size of the intersections
        rows = hyperedges.of_member(member)
        shared = hyperedges.intersections[rows].astype(np.float64)
        shared[:, rows] = 0.0
        total += shared.sum()
        weighted += (shared**2 / np.minimum(sizes[rows, None], sizes[None, :])).sum()
    return float(weighted / total) if total else 0.0


def choose(hyperedges: Hyperedges, n_clusters: Iterable[int]) -> Choice:
    """The number of clusters to keep, of those that were run or may be."""
    ks = sorted(set(n_clusters))
    if len(ks) == 1:
        return Choice(ks[0], True, ONLY_ONE)
    found = gaps(hyperedges, max(ks))
    why_not = _unclear(hyperedges, found, ks)
    possible = [gap for gap in found if gap.n_clusters in ks]
    if not possible or max(gap.width for gap in possible) <= 0.0:
        return Choice(ks[0], False, f"{why_not}; kept is k={ks[0]}, the smallest")
    widest = max(possible, key=lambda gap: gap.width)
    k = widest.n_clusters
    values = f"of the walk on hyperedges, eigenvalue {k} is {widest.inside:.3f} and eigenvalue {k + 1} is "
    values += f"{widest.beyond:.3f}"
    if why_not:
        return Choice(k, False, f"{why_not}; kept is k={k}, with the widest gap: {values}")
    return Choice(k, True, f"the members hold {k} groups apart and no more: {values}, the widest gap up to {max(ks)}")


def recommend(hyperedges: Hyperedges, n_clusters: Iterable[int]) -> Choice:
    """:func:`choose` before anything was run, so that only the chosen number of clusters need be."""
    ks = sorted(set(n_clusters))
    if len(ks) == 1:
        return Choice(ks[0], False, f"too few samples to look at more than k={ks[0]}")
    return choose(hyperedges, ks)


def _unclear(hyperedges: Hyperedges, found: list[Gap], ks: list[int]) -> str:
    """Why no number of clusters stands out; empty if one does."""
    ranked = sorted(found, key=lambda gap: -gap.width)
    if not ranked:
        return "no member has two clusters or more"
    widest = ranked[0]
    k = widest.n_clusters
    if widest.inside <= widest.edge:
        return f"no eigenvalue of the walk on hyperedges exceeds what independent labels have ({widest.edge:.3f})"
    if widest.finer >= MOST_FINER:
        least = WIDE_IF_FINE
    elif widest.to_edge and widest.width >= WIDE_TO_EDGE:
        return "" if k in ks else f"k={k} stands out, which was not run"
    else:
        nested = containment(hyperedges)
        if nested < NESTED:
            return (
                f"too few members have {FINER} times k={k} clusters or more, and clusters of different members cut "
                f"across each other (containment {nested:.2f}; {NESTED} would do)"
            )
        least = WIDE_IF_NESTED
    if widest.width < least:
        return "the eigenvalues of the walk on hyperedges fall evenly"
    if len(ranked) > 1 and widest.width < NEXT_GAP * ranked[1].width:
        return f"k={k} and k={ranked[1].n_clusters} stand out alike"
    return "" if k in ks else f"k={k} stands out, which was not run"


def tiny_clusters(counts: NDArray[np.int64]) -> str:
    """A remark on clusters that hold few samples, from the counts C; empty if none is tiny.

    Clusters without samples are another matter. A cluster's share of the labels stands for that of the samples: it is
    the same where no label is missing.
    """
    filled = counts.sum(axis=0)[counts.any(axis=0)]
    tiny = int(np.count_nonzero(filled < TINY * filled.sum()))
    return f"{tiny} of {len(filled)} clusters hold less than {TINY:.1%} of the samples each" if tiny else ""
