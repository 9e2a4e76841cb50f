"""Stage 2, sample view: grow the hyperedges, most certain samples first (Eqs. 5 to 9).

First assignment in, an assignment of every sample out. A round takes two sweeps: one for the belonging degrees
and a histogram of the margins, one to assign by the cut; the few margins in the histogram bin that the cut
falls into are looked at in between. Margins are never sorted nor gathered.
"""

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from cehm_dask import kernels
from cehm_dask.plan import next_target
from cehm_dask.rounds import EVERY_ROW, FLOOR_SHIFT, Answer, Cut, Order, Problem, Window, key_of

COLLECT_AT_MOST = 1 << 16
"""Keys that may travel to the coordinator for one cut; more are narrowed down by a further histogram."""


def diffusion(problem: Problem) -> Generator[Order, Answer, None]:
    """Repeat until all samples are assigned; every round starts over from W."""
    params, n = problem.params, problem.hyperedges.n_speaking
    assert params.schedule is not None
    while problem.assigned < n:
        target = next_target(params.schedule, n, params.n_clusters, problem.assigned, problem.growth[0])
        weights = problem.belonging_weights()
        problem.set_weights(weights)
        cut = yield from find_cut(problem, weights, target)
        if params.schedule == "renewed":
            cut = Cut(cut.key, EVERY_ROW.last_row)
        answer = yield problem.order(cut=cut)
        problem.accept(answer, cut)
        problem.growth.append(problem.assigned)


def find_cut(problem: Problem, weights: NDArray[np.float64], target: int) -> Generator[Order, Answer, Cut]:
    """The cut that exactly ``target`` samples pass: largest margins first, lower row numbers first on a tie."""
    floor = max(0, key_of(_largest_sum(problem, weights)) - ((kernels.BINS - 1) << FLOOR_SHIFT))
    answer = yield problem.order(floor=floor)
    assert answer.histogram is not None
    number, wanted = _from_above(answer.histogram, target)
    high = floor + ((number + 1) << FLOOR_SHIFT)
    window = Window(floor + (number << FLOOR_SHIFT) if number else 0, high)
    inside = int(answer.histogram[number])
    while inside > COLLECT_AT_MOST and window.high - window.low > 1:
        answer = yield problem.order(window=window)
        assert answer.histogram is not None
        number, wanted = _from_above(answer.histogram, wanted)
        inside = int(answer.histogram[number])
        window = window.bin(number)
    if inside <= COLLECT_AT_MOST:
        answer = yield problem.order(window=window, collect=True)
        assert answer.keys is not None
        chosen = np.sort(answer.keys)[-wanted]
        key = int(chosen)
        wanted -= int(np.count_nonzero(answer.keys > chosen))
        inside = int(np.count_nonzero(answer.keys == chosen))
    else:
        key = window.low
    if wanted == inside:
        return Cut(key, EVERY_ROW.last_row)
    last_row = yield from _tied_row(problem, key, wanted)
    return Cut(key, last_row)


def _tied_row(problem: Problem, key: int, wanted: int) -> Generator[Order, Answer, int]:
    """Row number of the ``wanted``-th sample, in row order, among those whose margin has the bits ``key``."""
    window = Window(0, problem.hyperedges.n_samples, tied=key)
    inside = problem.hyperedges.n_samples
    while inside > COLLECT_AT_MOST:
        answer = yield problem.order(window=window)
        assert answer.histogram is not None
        below = np.cumsum(answer.histogram)
        number = int(np.searchsorted(below, wanted))
        inside = int(answer.histogram[number])
        wanted -= int(below[number]) - inside
        window = window.bin(number)
    answer = yield problem.order(window=window, collect=True)
    assert answer.keys is not None
    return int(np.sort(answer.keys)[wanted - 1])


def _from_above(histogram: NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th largest, and its rank from above inside that bin."""
    above = np.cumsum(histogram[::-1])
    place = int(np.searchsorted(above, wanted))
    number = len(histogram) - 1 - place
    return number, wanted - int(above[place] - histogram[number])


def _largest_sum(problem: Problem, weights: NDArray[np.float64]) -> float:
    """No belonging degree, and so no margin, exceeds the members' largest weights together."""
    edges = problem.hyperedges
    return float(sum(weights[edges.of_member(j)].max(initial=0.0) for j in range(edges.n_members)))
