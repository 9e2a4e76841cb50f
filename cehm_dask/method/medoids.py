"""Stage 1, clustering view: k-medoids over the hyperedges.

The small table of intersections in, the numbers of k hyperedges out, once for every restart. Runs with the
coordinator; the solver is FasterPAM of the ``kmedoids`` package.
"""

from collections import Counter

import kmedoids
import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.intersections import Hyperedges

TRIES_PER_START = 5
"""Seeds tried for every start wanted, before fewer different ones are accepted."""

ENOUGH = 3
"""Times the best solution comes up until it is believed: on the paper's sets, the best of ten in 97 of 100 cases."""


def dissimilarity(hyperedges: Hyperedges, similarity: str) -> NDArray[np.float64]:
    """1 − sim(e, c) with row c and column e: Jaccard, or containment |e ∩ c| / |c| (Eq. 4)."""
    shared, sizes = hyperedges.intersections, hyperedges.sizes
    whole = sizes[:, None] + sizes[None, :] - shared if similarity == "jaccard" else sizes[:, None]
    table = np.asarray(shared / whole)
    return np.subtract(1.0, table, out=table)


def medoids(
    hyperedges: Hyperedges, similarity: str, n_clusters: int, restarts: int, tries: int, rng: np.random.Generator
) -> list[NDArray[np.intp]]:
    """Up to ``restarts`` different sets of k medoids, each in ascending order: the best of ``tries`` solutions.

    Solutions differ by the seed, and those of lower k-medoids loss grow into better clusters; finding them costs no
    sweep. One set is wanted most of the time: then a best solution that comes up again and again ends the search.
    The same set found from two seeds would give the same result twice, so further seeds are tried where sets
    are missing; a table with few local optima may still yield fewer than asked for.
    """
    if n_clusters == hyperedges.n_hyperedges:
        return [np.arange(n_clusters)]
    table = dissimilarity(hyperedges, similarity)
    found: dict[tuple[int, ...], float] = {}
    times: Counter[tuple[int, ...]] = Counter()
    for done in range(max(tries, 1 if restarts == 1 else TRIES_PER_START * restarts)):
        if done >= tries and len(found) >= restarts:
            break
        seed = int(rng.integers(2**31))
        # One CPU: the solver's parallel variant gives the same medoids, but takes the GIL all the same.
        solution = kmedoids.fasterpam(table, n_clusters, init="random", random_state=seed, n_cpu=1)
        chosen = tuple(np.sort(solution.medoids).tolist())
        found.setdefault(chosen, float(solution.loss))
        times[chosen] += 1
        if restarts == 1 and times[min(found, key=found.__getitem__)] == ENOUGH:
            break
    best = sorted(found, key=found.__getitem__)[:restarts]
    return [np.array(numbers, np.intp) for numbers in best]
