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

from cehm_dask.engine.budget import WIDEST_WINDOW
from cehm_dask.method.cut import (
    EVERY_ROW,
    Cut,
    Int,
    Window,
    floor_of,
    from_above,
    from_below,
    margin_of,
    window_of_bin,
    windows_of_bins,
)
from cehm_dask.method.orders import Answer, Assign, Foretell, Look, Measure, Order, Passing, Pilot
from cehm_dask.method.params import next_target
from cehm_dask.method.problem import Problem

COLLECT_AT_MOST = 1 << 16
"""Keys that may travel to the coordinator for one cut; more are narrowed down by a further histogram."""


WINDOW_SIGMAS = 4.0
"""Half the width of the foretold window, in standard deviations of the sample's rank: missed once in thousands."""


def diffusion(problem: Problem, *, foretell: bool = True, pass_over: bool = False) -> Generator[Order, Answer, None]:
    """Repeat until all samples are assigned; every round starts over from W.

    ``foretell`` tells whether it pays to spare the second sweep, ``pass_over`` whether margins may be recomputed when
    the result is read.
    """
    params, n = problem.params, problem.hyperedges.n_speaking
    before: tuple[Int, int] | None = None  # histogram of the margins of the round before, and its floor
    while problem.assigned < n:
        target = next_target(str(params.schedule), n, params.n_clusters, problem.assigned, problem.growth[0])
        weights = problem.belonging_weights()
        drift = problem.drift(weights) if before is not None and (foretell or pass_over) else None
        problem.set_weights(weights)
        if target == n:
            yield from _assign(problem, EVERY_ROW, Passing(drift) if pass_over and drift is not None else None)
            return
        # No belonging degree, and so no margin, exceeds this sum.
        floor = floor_of(problem.hyperedges.largest_sum(weights.max(axis=1)))
        window = (yield from _foretold_window(problem, floor, target / n)) if foretell else None
        sure = 0.0 if before is None or drift is None else _bin_end(*before, target) + drift
        answer = yield from _measure(problem, floor, window, drift, sure)
        before = answer.histogram, floor
        cut = yield from find_cut(problem, *before, target)
        if params.schedule == "renewed":
            cut = Cut(cut.key, EVERY_ROW.last_row)
        yield from _assign(problem, cut)


def _measure(
    problem: Problem, floor: int, window: Window | None, drift: float | None, sure: float
) -> Generator[Order, Answer, Answer]:
    """Margins of all samples; those above a foretold window are assigned at once."""
    if window is None:
        return (yield problem.order(Measure, floor=floor, passing=None if drift is None else Passing(drift, sure)))
    above = Cut(window.high - 1, -1)
    # Exact up to the window's end: who is above it must not depend on which rows were passed over, or a worker that has
    # to recompute its assignment would make another.
    passing = None if drift is None else Passing(drift, max(sure, margin_of(window.high)))
    answer = yield problem.order(Foretell, floor=floor, cut=above, keep=window, passing=passing)
    problem.foretold(answer, above, window)
    return answer


def _assign(problem: Problem, cut: Cut, passing: Passing | None = None) -> Generator[Order, Answer, None]:
    """The end of a round: every sample that the cut lets in to its winner."""
    answer = yield problem.order(Assign, cut=cut, passing=passing)
    problem.accept(answer, cut)
    problem.growth.append(problem.assigned)


def _foretold_window(problem: Problem, floor: int, share: float) -> Generator[Order, Answer, Window | None]:
    """Where the cut will fall that lets in a share of the samples, judged by a sample; None if that is no use."""
    answer = yield problem.order(Pilot, floor=floor)
    histogram = answer.histogram
    rows = int(histogram.sum())
    if rows == 0:
        return None
    whole = rows == problem.hyperedges.n_speaking
    slack = 1.0 if whole else 1.0 + WINDOW_SIGMAS * sqrt(rows * share * (1.0 - share))
    high, _ = from_above(histogram, max(1, int(rows * share - slack)))
    low, _ = from_above(histogram, min(rows, ceil(rows * share + slack)))
    too_wide = histogram[low : high + 1].sum() > WIDEST_WINDOW * rows
    return None if too_wide else windows_of_bins(floor, low, high)


def find_cut(problem: Problem, histogram: Int, floor: int, target: int) -> Generator[Order, Answer, Cut]:
    """The cut that exactly ``target`` samples pass: largest margins first, lower row numbers first on a tie."""
    number, wanted = from_above(histogram, target)
    window, inside = window_of_bin(floor, number), int(histogram[number])
    while inside > COLLECT_AT_MOST and window.high - window.low > 1:
        answer = yield problem.order(Look, window=window)
        number, wanted = from_above(answer.histogram, wanted)
        inside = int(answer.histogram[number])
        window = window.bin(number)
    if inside <= COLLECT_AT_MOST:
        answer = yield problem.order(Look, window=window, collect=True)
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
        answer = yield problem.order(Look, window=window)
        number, wanted = from_below(answer.histogram, wanted)
        inside = int(answer.histogram[number])
        window = window.bin(number)
    answer = yield problem.order(Look, window=window, collect=True)
    return int(np.sort(answer.keys)[wanted - 1])


def _bin_end(histogram: Int, floor: int, wanted: int) -> float:
    """A margin that the ``wanted``-th largest does not exceed."""
    return margin_of(window_of_bin(floor, from_above(histogram, wanted)[0]).high)
