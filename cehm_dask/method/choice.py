"""Which number of clusters to keep, from the intersections of the hyperedges alone.

A random walk goes from a hyperedge to one of its samples, and on to any hyperedge that holds the sample. It hardly
leaves a cluster that all members respect: with k clusters, k eigenvalues of the walk stand above the others. The
spectral gap behind eigenvalue k is measured on one of two scales:

- Members finer than the clusters (most have 1.5 k clusters or more) split every cluster, each in another way: k
  eigenvalues are near 1 and the next is not. The *width* of a gap is a difference of log-odds, log λ / (1 - λ).
- Coarser members merge clusters. Two clusters that only few members separate still add an eigenvalue, a small one, and
  behind the last of them there is nothing. The *drop* is a difference of log λ: it counts the clusters that any members
  separate, however few.

Null model: with the labels of every member shuffled, all eigenvalues but the first lie below (1 + √(n_hyperedges / n))²
/ n_members, the edge of the Marchenko-Pastur law. Widths count down to that edge, drops to a tenth of it: coarse
members that merge whole clusters leave less behind than shuffled labels do.

A large gap is not enough: k-means also cuts a uniform square into the same quarters every time. It counts as a clear k
if one of these holds:

- most members have 1.5 k clusters or more, so they could have split further and did so each in another way;
- eigenvalue k + 1 lies at the edge of the null model, and labels that leave their cluster may be in any other: beyond k
  clusters, the members are independent;
- the members are nested: where clusters of two members overlap, the smaller lies inside the larger. And most clusters
  that two members find have the same samples in both. Members that merge or split whole clusters are like that, members
  that cut a continuum somewhere are not, even if it is about the same place (:mod:`cehm_dask.method.overlaps`).

Nested members tell k by their borders rather than by gaps (:mod:`cehm_dask.method.borders`) if they are not finer than
the clusters, or if no gap is wide enough: k-means from one random start merges two clusters here and splits one there,
each time others, which blurs the eigenvalues but hardly the borders.

If none holds, there is no clear k, and the k with the largest gap is kept all the same. Agreement with the members
would be a bad judge: it mostly grows with k.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

from cehm_dask.machine import one_thread
from cehm_dask.method.borders import Level, levels
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.method.overlaps import Overlaps, overlaps
from cehm_dask.method.spectral import iterated_vectors

# The constants below were chosen on 40 sets of blobs, 40 of uniform noise (k-means members of one and of ten starts)
# and 40 of made-up labels, each with fine, coarse and same-k members; tests and benchmarks use other seeds.

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

FLOOR = 0.1
"""Drops count down to this share of the edge of the null model."""

DROP_TO_EDGE = 0.5
"""Least drop to the edge of the null model; independent random labels have none."""

NESTED = 0.85
"""Least containment of nested members.

Nine in ten ensembles on blobs, of coarse or same-k members, had 0.86 to 0.99; uniform noise had 0.3 to 0.84, except for
k-means with four clusters in the plane or eight in space, which finds the same quarters or octants every time.
"""

MOST_SAME = 0.4
"""Least share of clusters with the same samples, of those that two nested members find.

72 ensembles on blobs had 0.56 to 1, cuts of a uniform cube into octants 0.07 and 0.27 (seeds 60,000 on).
"""

SCATTERED = 0.25
"""Labels that are right or wrong at random leave no larger share of the pairs of clusters apart.

96 ensembles of made-up labels had 0.18 at most. Of 72 on uniform noise two would have passed for independent beyond k:
both had 0.36 or more.
"""

FIRM = 0.6
"""Least firmness of borders between clusters of nested members; of 132 ensembles with the right k, 130 had it."""

SMALL_DROP = 0.35
"""Fine members leave no larger drop than this: their eigenvalues fall evenly behind the clusters."""

NEXT_GAP = 1.1
"""Least ratio of the largest gap to the next, except down to the edge of the null model."""

NEXT_SCORE = 0.05
"""Least lead of the score of borders over the next. Of 240 ensembles (seeds 90,000 on), one of the 216 with the right k
led by less, and four of the 24 with a wrong one; with 0.15 it would be nine and fourteen."""

TINY = 0.005
"""A cluster with a smaller share of the samples is worth a warning."""

ONLY_ONE = "the only number of clusters that was run"
"""Reason where there was nothing to choose."""

ITERATIONS = 40
"""Towards the eigenvalues."""


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
    def drop(self) -> float:
        """Difference of logarithms; 0 where both lie below the floor."""
        floor = FLOOR * self.edge
        return log(max(self.inside, floor) / max(self.beyond, floor))

    @property
    def to_edge(self) -> bool:
        """Whether nothing but independent labels is left beyond k clusters."""
        return self.beyond <= AT_EDGE * self.edge < self.inside


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
    with one_thread():
        values = _eigenvalues(hyperedges, last + 1)
    edge = (1.0 + sqrt(hyperedges.n_hyperedges / hyperedges.n_speaking)) ** 2 / _alike(hyperedges)
    return [
        Gap(k, float(values[k - 1]), float(values[k]), min(edge, 1.0), float(np.mean(clusters_of >= FINER * k)))
        for k in range(2, last + 1)
    ]


def _alike(hyperedges: Hyperedges) -> float:
    """So many members that count alike are worth as much."""
    if hyperedges.weight is None:
        return float(hyperedges.n_members)
    of_label = hyperedges.weight * hyperedges.sizes
    return float(hyperedges.n_members * of_label.sum() ** 2 / (hyperedges.sizes.sum() * (of_label @ hyperedges.weight)))


def _eigenvalues(hyperedges: Hyperedges, count: int) -> NDArray[np.float64]:
    """The largest eigenvalues of the walk, the first one scaled to 1."""
    scale = 1.0 / np.sqrt(hyperedges.sizes)
    if hyperedges.weight is not None:
        scale = scale * np.sqrt(hyperedges.weight)
    walk = hyperedges.intersections * scale[:, None] * scale[None, :] / hyperedges.n_members
    values, _ = iterated_vectors(walk, count + 12, ITERATIONS)
    return np.pad(values / values[0], (0, max(0, count - len(values))))[:count]


def choose(hyperedges: Hyperedges, n_clusters: Iterable[int]) -> Choice:
    """The number of clusters to keep, of those that were run or may be."""
    ks = sorted(set(n_clusters))
    if len(ks) == 1:
        return Choice(ks[0], True, ONLY_ONE)
    found = gaps(hyperedges, max(ks))
    scale = _scale(found)
    lie = overlaps(hyperedges)
    ranked = sorted(found, key=lambda gap: -scale(gap))
    if not _independent(found) and _by_cuts(lie) and (scale is _drop or _problem_of(lie, ranked, scale)):
        drawn = levels(hyperedges)
        if any(level.n_clusters in ks for level in drawn):
            return _by_borders(drawn, ks)
    why_not = _unclear(lie, ranked, ks, scale)
    possible = [gap for gap in found if gap.n_clusters in ks]
    if not possible or max(map(scale, possible)) <= 0.0:
        return Choice(ks[0], False, f"{why_not}; kept is k={ks[0]}, the smallest")
    largest = max(possible, key=scale)
    k = largest.n_clusters
    if why_not:
        return Choice(k, False, f"{why_not}; kept is k={k}, with the largest spectral gap ({scale(largest):.2f})")
    reason = f"the members separate {k} groups and no more: the spectral gap behind k={k} is {scale(largest):.2f}, "
    return Choice(k, True, f"{reason}the largest up to k={max(ks)}")


def _by_borders(drawn: list[Level], ks: list[int]) -> Choice:
    """The choice where members merge and split each other's clusters: one of the levels has a k that may be kept."""
    best, *others = sorted(drawn, key=_score, reverse=True)
    k = best.n_clusters
    alike = bool(others) and best.score < others[0].score + NEXT_SCORE
    if k in ks and best.firm >= FIRM and not alike:
        reason = f"the members separate {k} groups: those that cut between two of them cut at the same place"
        finer = f"; on borders between more groups, on {best.finer:.0%} at most" if best.finer > 0.0 else ""
        return Choice(k, True, f"{reason} (they agree on {best.firm:.0%} at least{finer})")
    why_not = f"k={k} stands out, which was not run"
    if k in ks and best.firm >= FIRM:
        why_not = f"k={k} and k={others[0].n_clusters} stand out alike"
    elif k in ks:
        why_not = (
            f"members that cut between two of {k} groups cut at different places (they agree on {best.firm:.0%} only)"
        )
    kept = max((level for level in drawn if level.n_clusters in ks), key=_score).n_clusters
    return Choice(kept, False, f"{why_not}; kept is k={kept}, with the clearest borders of those that may be kept")


def _score(level: Level) -> float:
    return level.score


def recommend(hyperedges: Hyperedges, n_clusters: Iterable[int]) -> Choice:
    """:func:`choose` before anything was run, so that only the chosen number of clusters need be."""
    ks = sorted(set(n_clusters))
    if len(ks) == 1:
        return Choice(ks[0], False, f"too few samples to look at more than k={ks[0]}")
    return choose(hyperedges, ks)


Scale = Callable[[Gap], float]


def _width(gap: Gap) -> float:
    return gap.width


def _drop(gap: Gap) -> float:
    return gap.drop


def _scale(found: list[Gap]) -> Scale:
    """Widths if most members are finer than the clusters that either scale singles out, else drops."""
    if not found:
        return _width
    widest, steepest = max(found, key=_width), max(found, key=_drop)
    no_drop = steepest.drop < SMALL_DROP or steepest.finer >= MOST_FINER
    return _width if widest.finer >= MOST_FINER and no_drop else _drop


def _independent(found: list[Gap]) -> bool:
    """Whether no eigenvalue stands above those of shuffled labels."""
    return not found or max(gap.inside for gap in found) <= found[0].edge


def _by_cuts(lie: Overlaps) -> bool:
    """Whether members only merge and split each other's clusters, and not just about."""
    return lie.containment >= NESTED and lie.same >= MOST_SAME


def _unclear(lie: Overlaps, ranked: list[Gap], ks: list[int], scale: Scale) -> str:
    """Why no number of clusters stands out; empty if one does. The largest gap comes first."""
    if not ranked:
        return "no member has two clusters or more"
    if _independent(ranked):
        return "the members agree no more than independent labels do"
    k = ranked[0].n_clusters
    return _problem_of(lie, ranked, scale) or ("" if k in ks else f"k={k} stands out, which was not run")


def _problem_of(lie: Overlaps, ranked: list[Gap], scale: Scale) -> str:
    """What is wrong with the largest gap; empty if nothing is."""
    largest = ranked[0]
    k = largest.n_clusters
    if scale is _drop:
        at_random = lie.apart <= SCATTERED or lie.same >= MOST_SAME
        if largest.to_edge and largest.drop >= DROP_TO_EDGE and at_random:
            return ""
        coarse = f"too few members have {FINER} times k={k} clusters or more, and "
        if lie.containment >= NESTED and lie.same < MOST_SAME:
            return (
                f"{coarse}clusters that two members find differ in their samples, as cuts through a continuum do "
                f"({lie.same:.0%} are the same, at least {MOST_SAME:.0%} is needed)"
            )
        return (
            f"{coarse}clusters of different members cut across each other (containment {lie.containment:.2f}, at "
            f"least {NESTED} is needed)"
        )
    if scale(largest) < WIDE_IF_FINE:
        return f"no spectral gap is large enough (the largest, behind k={k}, is {scale(largest):.2f} of {WIDE_IF_FINE})"
    if len(ranked) > 1 and scale(largest) < NEXT_GAP * scale(ranked[1]):
        return f"k={k} and k={ranked[1].n_clusters} stand out alike"
    return ""


def tiny_clusters(counts: NDArray[np.int64]) -> str:
    """A remark on clusters that hold few samples, from the counts C; empty if none is tiny.

    Clusters without samples are another matter. A cluster's share of the labels stands for that of the samples: it is
    the same where no label is missing.
    """
    filled = counts.sum(axis=0)[counts.any(axis=0)]
    tiny = int(np.count_nonzero(filled < TINY * filled.sum()))
    return f"{tiny} of {len(filled)} clusters hold less than {TINY:.1%} of the samples each" if tiny else ""
