"""Stage 2, sample view: grow the hyperedges, most certain samples first (Eqs. 5 to 9).

First assignment in, an assignment of every sample out. A round takes one sweep where labels are read from a store:
a sample of rows foretells a window that the cut will fall into, one sweep computes the belonging degrees, assigns
the samples above the window and keeps the labels of the few inside it, and once the histogram of that sweep has
told the exact cut, those are assigned too. Where the window was missed, or labels are in memory anyway, a second
sweep assigns. The last round, which lets in all, needs no cut.

After the first round, only samples that may be near the cut are looked at, where workers keep margins: no margin grows
by more than the drift of W, so the cut cannot lie higher above where the margins of the round before would have put it.
Margins are never sorted nor gathered.
"""

from collections.abc import Generator
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.budget import WIDEST_WINDOW
from cehm_dask.method import kernels
from cehm_dask.method.params import next_target
from cehm_dask.method.problem import Problem
from cehm_dask.method.rounds import EVERY_ROW, FLOOR_SHIFT, Answer, Cut, Order, Window, key_of, margin_of

COLLECT_AT_MOST = 1 << 16
"""Keys that may travel to the coordinator for one cut; more are narrowed down by a further histogram."""


WINDOW_SIGMAS = 4.0
"""Half the width of the foretold window, in standard deviations of the sample's rank: missed once in thousands."""


def diffusion(problem: Problem, *, foretell: bool = True, pass_over: bool = False) -> Generator[Order, Answer, None]:
    """Repeat until all samples are assigned; every round starts over from W.

    ``foretell`` tells whether it pays to spare the second sweep, ``pass_over`` whether margins may be left to be made
    good when the result is read.
    """
    params, n = problem.params, problem.hyperedges.n_speaking
    assert params.schedule is not None
    margins: tuple[NDArray[np.int64], int] | None = None  # of the round before: histogram and its floor
    while problem.assigned < n:
        target = next_target(params.schedule, n, params.n_clusters, problem.assigned, problem.growth[0])
        weights = problem.belonging_weights()
        drift = problem.drift(weights) if margins is not None and (foretell or pass_over) else None
        problem.set_weights(weights)
        if target == n:
            yield from _assign(problem, EVERY_ROW, drift if pass_over else None)
            return
        # No belonging degree, and so no margin, exceeds this sum.
        largest = problem.hyperedges.largest_sum(weights.max(axis=1))
        floor = max(0, key_of(largest) - ((kernels.BINS - 1) << FLOOR_SHIFT))
        window = (yield from _foretold_window(problem, floor, target / n)) if foretell else None
        sure = 0.0 if margins is None or drift is None else _bin_end(*margins, target) + drift
        if window is None:
            answer = yield problem.order(floor=floor, drift=drift, sure=sure)
        else:
            above = Cut(window.high - 1, -1)
            # Exact up to the window's end: who is above it must not depend on which rows were passed over, or a worker
            # that has to make its assignment again would make another.
            sure = max(sure, margin_of(window.high))
            answer = yield problem.order(floor=floor, cut=above, keep=window, drift=drift, sure=sure)
            problem.foretold(answer, above, window)
        assert answer.histogram is not None
        margins = answer.histogram, floor
        cut = yield from find_cut(problem, *margins, target)
        if params.schedule == "renewed":
            cut = Cut(cut.key, EVERY_ROW.last_row)
        yield from _assign(problem, cut)


def _assign(problem: Problem, cut: Cut, drift: float | None = None) -> Generator[Order, Answer, None]:
    """The end of a round: every sample that the cut lets in to its winner."""
    answer = yield problem.order(cut=cut, drift=drift)
    problem.accept(answer, cut)
    problem.growth.append(problem.assigned)


def _foretold_window(problem: Problem, floor: int, share: float) -> Generator[Order, Answer, Window | None]:
    """Where the cut will fall that lets in a share of the samples, judged by a sample; None if that is no use."""
    answer = yield problem.order(pilot=True, floor=floor)
    assert answer.histogram is not None
    histogram = answer.histogram
    rows = int(histogram.sum())
    if rows == 0:
        return None
    whole = rows == problem.hyperedges.n_speaking
    slack = 1.0 if whole else 1.0 + WINDOW_SIGMAS * sqrt(rows * share * (1.0 - share))
    high, _ = _from_above(histogram, max(1, int(rows * share - slack)))
    low, _ = _from_above(histogram, min(rows, ceil(rows * share + slack)))
    if histogram[low : high + 1].sum() > WIDEST_WINDOW * rows:
        return None
    return Window(floor + (low << FLOOR_SHIFT) if low else 0, floor + ((high + 1) << FLOOR_SHIFT))


def find_cut(problem: Problem, histogram: NDArray[np.int64], floor: int, target: int) -> Generator[Order, Answer, Cut]:
    """The cut that exactly ``target`` samples pass: largest margins first, lower row numbers first on a tie."""
    number, wanted = _from_above(histogram, target)
    high = floor + ((number + 1) << FLOOR_SHIFT)
    window = Window(floor + (number << FLOOR_SHIFT) if number else 0, high)
    inside = int(histogram[number])
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


def _bin_end(histogram: NDArray[np.int64], floor: int, wanted: int) -> float:
    """A margin that the ``wanted``-th largest does not exceed."""
    number, _ = _from_above(histogram, wanted)
    return margin_of(floor + ((number + 1) << FLOOR_SHIFT))


def _from_above(histogram: NDArray[np.int64], wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th largest, and its rank from above inside that bin."""
    above = np.cumsum(histogram[::-1])
    place = int(np.searchsorted(above, wanted))
    number = len(histogram) - 1 - place
    return number, wanted - int(above[place] - histogram[number])
