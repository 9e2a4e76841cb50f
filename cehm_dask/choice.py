"""How the problems of a run compare, and which number of clusters to keep.

After the last round, before the result is written. One sweep over what the workers keep (over the labels, if they
keep nothing) gives every problem's mean margin, and the contingency tables of restarts with one another.

The number of clusters is read from the intersections alone. A walk that goes from a hyperedge to one of its samples,
and on to any hyperedge that holds the sample, hardly leaves a cluster that all members respect: with k clusters, k
eigenvalues of the walk are near 1 and the next one is not. Agreement cannot tell: it mostly grows with k.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from cehm_dask import kernels
from cehm_dask.engine import Engine, Run
from cehm_dask.evaluation import nmi
from cehm_dask.intersections import Hyperedges
from cehm_dask.problem import Problem
from cehm_dask.result import SHARE_UNIT, margin_units
from cehm_dask.rounds import Order, harvest_together

MOST_PAIRS = 45
"""Pairs of restarts compared for one k; ten restarts have as many."""

MOST_CELLS = 1 << 20
"""Cells that the tables of those pairs may have together."""

FINER = 1.5
"""Members testify about k with at least this many times k clusters: a coarser one could not have split them further."""

FEWEST_MEMBERS = 0.2
"""Share of the members that must be able to testify, and at least three of them."""

MOST_JUDGED = 64
"""Numbers of clusters beyond this are not judged: the eigenvalues would cost more than the consensus."""

LONG_STAY = 2.2
"""Least ratio of 1.05 - eigenvalue across the gap: the walk stays so much longer in a cluster than in parts of one.

Chosen on 99 ensembles of blobs and 181 of noise, none of them in the tests: noise, round or long, stayed below 2.1.
"""

NEXT_GAP = 1.25
"""Least ratio of the widest gap to the next."""

ITERATIONS = 40
"""Of the subspace; fixed, so that nothing depends on when it would have been good enough."""

UPRIGHT = 5
"""Iterations after which the subspace's vectors are made upright again."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Gap:
    """Two neighbouring eigenvalues of the walk on the hyperedges of members that are fine enough for k clusters."""

    n_clusters: int
    inside: float
    """Eigenvalue k: how rarely the walk leaves the least separate of k clusters."""
    beyond: float
    """Eigenvalue k + 1."""
    n_members: int

    @property
    def width(self) -> float:
        return self.inside - self.beyond

    @property
    def stay(self) -> float:
        return (1.05 - self.beyond) / (1.05 - self.inside)


@dataclass(frozen=True)
class Choice:
    """The number of clusters that is kept, and why."""

    n_clusters: int
    clear: bool
    reason: str


def gaps(hyperedges: Hyperedges, n_clusters: int) -> list[Gap]:
    """The gap behind every number of clusters from 2 on that members are fine enough to testify about."""
    clusters_of = np.bincount(hyperedges.members, minlength=hyperedges.n_members)
    fewest = max(3, ceil(FEWEST_MEMBERS * hyperedges.n_members))
    with threadpool_limits(1):  # threads that wait for one another cost more than these small products
        return _gaps(hyperedges, n_clusters, clusters_of, fewest)


def _gaps(hyperedges: Hyperedges, n_clusters: int, clusters_of: NDArray[np.intp], fewest: int) -> list[Gap]:
    found: list[Gap] = []
    latest: tuple[int, NDArray[np.float64]] | None = None
    for k in range(2, min(n_clusters, MOST_JUDGED) + 1):
        testify = clusters_of >= max(FINER * k, k + 1)
        count = int(np.count_nonzero(testify))
        if count < fewest:
            break
        if latest is None or latest[0] != count:
            latest = count, _eigenvalues(hyperedges, testify, min(n_clusters, MOST_JUDGED) + 1)
        found.append(Gap(k, float(latest[1][k - 1]), float(latest[1][k]), count))
    return found


def _eigenvalues(hyperedges: Hyperedges, testify: NDArray[np.bool_], count: int) -> NDArray[np.float64]:
    """The largest eigenvalues of the walk on some members' hyperedges, the first one scaled to 1.

    By iteration of a subspace: eigenvalues near 1 come as many times over as there are clusters, which it does not
    mind, and it takes matrix products only.
    """
    chosen = testify[hyperedges.members]
    scale = 1.0 / np.sqrt(hyperedges.sizes[chosen])
    walk = (
        hyperedges.intersections[np.ix_(chosen, chosen)] * scale[:, None] * scale[None, :] / np.count_nonzero(testify)
    )
    width = min(len(walk), count + 12)
    basis = np.random.default_rng(0).standard_normal((len(walk), width))
    for iteration in range(1, ITERATIONS + 1):
        basis = walk @ basis
        if iteration % UPRIGHT == 0:
            basis, _ = np.linalg.qr(basis)
    values = np.linalg.eigvalsh(basis.T @ walk @ basis)[::-1]
    return np.pad(values / values[0], (0, max(0, count - width)))[:count]


def choose(hyperedges: Hyperedges, agreement: dict[int, float]) -> Choice:
    """The number of clusters to keep, of those that were run.

    ``agreement`` is the mean NMI with the members by number of clusters; it decides where the gaps do not.
    """
    best = max(agreement, key=agreement.__getitem__)
    if len(agreement) == 1:
        return Choice(best, True, "the only number of clusters that was run")
    why_not, widest = _unclear(gaps(hyperedges, max(agreement)), agreement)
    if why_not or widest is None:
        return Choice(best, False, f"{why_not}; kept is k={best}, of highest agreement with the members")
    k = widest.n_clusters
    return Choice(
        k,
        True,
        f"the members hold {k} groups apart and no more: of the walk on hyperedges, eigenvalue {k} is "
        f"{widest.inside:.3f} and eigenvalue {k + 1} is {widest.beyond:.3f}, the widest gap from 2 to {max(agreement)}",
    )


def _unclear(found: Sequence[Gap], ks: Iterable[int]) -> tuple[str, Gap | None]:
    """Why no number of clusters stands out (empty if one does), and the one with the widest gap."""
    if not found:
        return f"too few members have {FINER} times as many clusters as asked for, or more, to tell", None
    ranked = sorted(found, key=lambda gap: -gap.width)
    widest = ranked[0]
    k = widest.n_clusters
    if widest.stay < LONG_STAY:
        return (
            f"the eigenvalues of the walk on hyperedges fall evenly (widest gap {widest.width:.3f}, at k={k})",
            widest,
        )
    if len(ranked) > 1 and widest.width < NEXT_GAP * ranked[1].width:
        return f"k={k} and k={ranked[1].n_clusters} stand out alike", widest
    if k not in ks:
        return f"k={k} stands out, which was not run", widest
    return "", widest


@dataclass(frozen=True, eq=False)
class Survey:
    """What all problems of a run have come to."""

    margins: dict[int, float]
    """Mean margin by problem."""
    stability: dict[int, float]
    """Mean NMI between restarts, for the numbers of clusters that have several."""


def mean_margin(units: int, problem: Problem) -> float:
    """Mean over the samples that some member says something about."""
    unit = 1 if problem.params.belonging == "count" else SHARE_UNIT
    return units / unit / problem.hyperedges.n_speaking / problem.hyperedges.n_members


def survey(engine: Engine, problems: Sequence[Problem]) -> Survey:
    """Compare all problems in one sweep."""
    pairs = [
        pair for k in _ks(problems) for pair in _pairs([p.number for p in problems if p.params.n_clusters == k], k)
    ]
    orders = [problem.last_order() for problem in problems]
    belonging = [problem.belonging for problem in problems]
    units, tables = engine.sweep("survey", _compare, _add, orders, pairs, belonging, reads=engine.budget.result_reads)
    agreed: dict[int, list[float]] = {}
    for (one, _), table in zip(pairs, tables, strict=True):
        agreed.setdefault(problems[one].params.n_clusters, []).append(nmi(table))
    return Survey(
        {problem.number: mean_margin(total, problem) for problem, total in zip(problems, units, strict=True)},
        {k: float(np.mean(values)) for k, values in agreed.items()},
    )


def _ks(problems: Sequence[Problem]) -> list[int]:
    return list(dict.fromkeys(problem.params.n_clusters for problem in problems))


def _pairs(numbers: Sequence[int], k: int) -> list[Pair]:
    """Pairs of restarts to compare: all of them, or as many as may be, evenly spread."""
    pairs = list(combinations(numbers, 2))
    most = max(1, min(MOST_PAIRS, MOST_CELLS // k**2))
    return [pairs[i * len(pairs) // most] for i in range(most)] if len(pairs) > most else pairs


Compared = tuple[list[int], list[NDArray[Any]]]


def _compare(run: Run, orders: Sequence[Order], pairs: Sequence[Pair], belonging: Sequence[str]) -> Compared:
    place = {order.problem: i for i, order in enumerate(orders)}
    clusters = {order.problem: order.clusters for order in orders}
    units = [0] * len(orders)
    tables = [np.zeros((clusters[one], clusters[other]), np.int64) for one, other in pairs]
    for _, found in harvest_together(run, orders):
        for i, (_, margin) in enumerate(found):
            units[i] += margin_units(margin, belonging[i])
        for table, (one, other) in zip(tables, pairs, strict=True):
            kernels.contingency(found[place[one]][0], found[place[other]][0], table)
    return units, tables


def _add(parts: Sequence[Compared]) -> Compared:
    units = [sum(own) for own in zip(*(part[0] for part in parts), strict=True)]
    return units, [np.sum(own, axis=0) for own in zip(*(part[1] for part in parts), strict=True)]
