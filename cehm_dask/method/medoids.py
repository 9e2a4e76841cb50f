"""Stage 1, clustering view: k-medoids over the hyperedges.

The small table of intersections in, the numbers of k hyperedges out, once for every restart. Of very many hyperedges,
medoids are found among those that are compared with one another. Runs with the coordinator; the solver is
:mod:`cehm_dask.method.fasterpam`.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.fasterpam import fasterpam
from cehm_dask.method.intersections import Hyperedges

TRIES_PER_START = 5
"""Tries for every start wanted, before fewer different ones are accepted."""

ENOUGH = 3
"""Times the best solution comes up until it is believed: on the paper's sets, the best of ten in 97 of 100 cases."""


BLOCK = 1 << 17
"""Entries of the table that are computed at a time, in float64 and so that they stay in the cache."""


def dissimilarity(hyperedges: Hyperedges, similarity: str) -> NDArray[np.float32]:
    """1 − sim(e, c) with row c and column e: Jaccard, or containment |e ∩ c| / |c| (Eq. 4); in Fortran order.

    A hyperedge that counts ω times has its row times ω.
    """
    shared, sizes = hyperedges.intersections, hyperedges.sizes
    columns = np.empty(shared.shape, np.float32)
    step = max(1, BLOCK // max(1, len(sizes)))
    for first in range(0, len(sizes), step):
        some = slice(first, first + step)
        whole = sizes[some, None] + sizes[None, :] - shared[some] if similarity == "jaccard" else sizes[None, :]
        apart = 1.0 - shared[some] / whole
        columns[some] = apart if hyperedges.weight is None else apart * hyperedges.weight
    return columns.T


def medoids(
    hyperedges: Hyperedges, similarity: str, n_clusters: int, restarts: int, tries: int, rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Up to ``restarts`` different sets of k medoids, each in ascending order: the best of ``tries`` solutions.

    Solutions differ by their random starts, and those of lower k-medoids loss grow into better clusters; finding
    them costs no sweep. One set is wanted most of the time: then a best solution that comes up again and again ends
    the search. The same set found twice would give the same result twice, so further starts are tried where sets are
    missing; a table with few local optima may still yield fewer than asked for.
    """
    if hyperedges.compared is not None:
        found_there = medoids(hyperedges.judged, similarity, n_clusters, restarts, tries, rng)
        return [hyperedges.compared[chosen] for chosen in found_there]
    if n_clusters == hyperedges.n_hyperedges:
        return [np.arange(n_clusters)]
    table = dissimilarity(hyperedges, similarity)
    found: dict[tuple[int, ...], float] = {}
    times: Counter[tuple[int, ...]] = Counter()
    for done in range(max(tries, 1 if restarts == 1 else TRIES_PER_START * restarts)):
        if done >= tries and len(found) >= restarts:
            break
        solution = fasterpam(table, n_clusters, rng)
        chosen = tuple(solution.columns.tolist())
        found.setdefault(chosen, solution.loss)
        times[chosen] += 1
        if restarts == 1 and times[min(found, key=found.__getitem__)] == ENOUGH:
            break
    best = sorted(found, key=found.__getitem__)[:restarts]
    return [np.array(numbers, np.intp) for numbers in best]
