"""How the problems of a run compare: mean margins, and restarts with one another.

After the last round, before the result is written. One sweep over what the workers keep (over the labels, if they
keep nothing) gives every problem's mean margin, and the contingency tables of restarts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.method import counting
from cehm_dask.method.agreement import nmi
from cehm_dask.method.orders import Read
from cehm_dask.method.problem import Problem
from cehm_dask.method.result import margin_units, unit_of
from cehm_dask.method.rounds import harvest_together

MOST_PAIRS = 45
"""Pairs of restarts compared for one k; ten restarts have as many."""

MOST_CELLS = 1 << 20
"""Cells that the tables of those pairs may have together."""

Pair = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Survey:
    """How all problems of a run ended."""

    margins: dict[int, float]
    """Mean margin by problem."""
    stability: dict[int, float]
    """Mean NMI between restarts, for the numbers of clusters that have several."""


def mean_margin(units: int, problem: Problem) -> float:
    """Mean over the samples that some member says something about."""
    return units / unit_of(problem.belonging) / problem.hyperedges.n_speaking / problem.hyperedges.n_members


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


def _compare(span: Span, orders: Sequence[Read], pairs: Sequence[Pair], belonging: Sequence[str]) -> Compared:
    place = {order.problem: i for i, order in enumerate(orders)}
    clusters = {order.problem: order.clusters for order in orders}
    units = [0] * len(orders)
    tables = [np.zeros((clusters[one], clusters[other]), np.int64) for one, other in pairs]
    for _, found in harvest_together(span, orders):
        for i, harvest in enumerate(found):
            units[i] += margin_units(harvest.margin, belonging[i])
        for table, (one, other) in zip(tables, pairs, strict=True):
            counting.contingency(found[place[one]].labels, found[place[other]].labels, table)
    return units, tables


def _add(parts: Sequence[Compared]) -> Compared:
    units = [sum(own) for own in zip(*(part[0] for part in parts), strict=True)]
    return units, [np.sum(own, axis=0) for own in zip(*(part[1] for part in parts), strict=True)]
