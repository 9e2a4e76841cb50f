"""Stage 2, sample view: grow the hyperedges, most certain samples first (Eqs. 5 to 9).

First assignment in, an assignment of every sample out. A round takes one sweep where sweeps are dear, because labels
are read from a store or no assignments are kept: a sample of rows foretells a band that the cut will fall into, one
sweep computes the belonging degrees, assigns the samples above the band and keeps the few inside it, and the cut is
found among these, which are then assigned too. Where the band was missed, one more sweep does the same with the bin of
a histogram that the cut is known to fall into; or, where workers keep margins, assigns. The last round, which lets in
all, needs no cut.

After the first round, only samples that may be near the cut are looked at, where workers keep margins: no margin grows
by more than the drift of W, so the cut cannot lie higher above where the margins of the round before would have put it.
Margins are never sorted nor gathered.
"""

from collections.abc import Generator
from math import ceil, sqrt
from typing import NamedTuple

import numpy as np

from cehm_dask.engine.budget import BAND_SIGMAS, Budget
from cehm_dask.method.cut import (
    EVERY_ROW,
    Band,
    Cut,
    Int,
    Window,
    cut_of_rank,
    floor_of,
    from_above,
    from_below,
    margin_of,
    window_of_bin,
)
from cehm_dask.method.orders import Answer, Assign, Foretell, Look, Measure, Order, Passing, Pilot
from cehm_dask.method.params import next_target
from cehm_dask.method.problem import Problem

COLLECT_AT_MOST = 1 << 16
"""Keys that may travel to the coordinator for one cut; more are narrowed down by a further histogram."""


class Place(NamedTuple):
    """Where a cut is known to fall."""

    window: Window
    inside: int
    """Samples in there."""
    wanted: int
    """Of these, so many are let in."""
    band: Band | None = None
    """Only samples in there are meant."""


def diffusion(problem: Problem, budget: Budget) -> Generator[Order, Answer, None]:
    """Repeat until all samples are assigned; every round starts over from W.

    The budget tells whether it pays to spare second sweeps, and whether margins may be recomputed when the result is
    read.
    """
    params, n = problem.params, problem.hyperedges.n_speaking
    before: tuple[Int, int] | None = None  # histogram of the margins of the round before, and its floor
    while problem.assigned < n:
        target = next_target(str(params.schedule), n, params.n_clusters, problem.assigned, problem.growth[0])
        weights = problem.belonging_weights()
        drift = problem.drift(weights) if before is not None and (budget.foretell or budget.pass_over) else None
        problem.set_weights(weights)
        if target == n:
            yield from _assign(problem, EVERY_ROW, Passing(drift) if budget.pass_over and drift is not None else None)
            return
        # No belonging degree, and so no margin, exceeds this sum.
        floor = floor_of(problem.hyperedges.largest_sum(weights.max(axis=1)))
        sure = 0.0 if before is None or drift is None else _bin_end(*before, target) + drift
        band = (yield from _expected_band(problem, target, budget.band_rows)) if budget.foretell else None
        answer = yield _measuring(problem, floor, band, None if drift is None else Passing(drift, sure))
        before = answer.histogram, floor
        place = None if band is None else _place_in(band, answer, target, renewed=params.schedule == "renewed")
        if band is not None and (place is not None or budget.keep_state):
            problem.foretold(answer, band)
        if place is None:
            place = yield from _place_in_bin(problem, *before, target, budget)
        cut = yield from find_cut(problem, place)
        if params.schedule == "renewed":
            cut = Cut(cut.key, EVERY_ROW.last_row)
        yield from _assign(problem, cut)


def _measuring(problem: Problem, floor: int, band: Band | None, passing: Passing | None) -> Order:
    """An order for the margins of all samples; those above a band are assigned at once."""
    if band is None:
        return problem.order(Measure, floor=floor, passing=passing)
    if passing is not None:
        # Exact up to the end of the band: who is above it must not depend on which rows were passed over, or a worker
        # that has to recompute its assignment would make another.
        passing = Passing(passing.drift, max(passing.sure, margin_of(band.above.key)))
    return problem.order(Foretell, floor=floor, band=band, passing=passing)


def _assign(problem: Problem, cut: Cut, passing: Passing | None = None) -> Generator[Order, Answer, None]:
    """The end of a round: every sample that the cut lets in to its winner."""
    answer = yield problem.order(Assign, cut=cut, passing=passing)
    problem.accept(answer, cut)
    problem.growth.append(problem.assigned)


def _expected_band(problem: Problem, target: int, room: int) -> Generator[Order, Answer, Band | None]:
    """Where the cut will fall that lets in so many samples, judged by a sample; None if that is lost.

    Cuts end at a row number, so that the band is narrow however many margins are equal. With the renewed schedule they
    let in all that are equal; where that would be too many to keep, all of them are let in at once.
    """
    n = problem.hyperedges.n_speaking
    answer = yield problem.order(Pilot)
    keys, rows, known = answer.keys, answer.rows, len(answer.keys)
    if known == 0:
        return None
    rank, share = known * target / n, target / n
    slack = 1.0 if known == n else 1.0 + BAND_SIGMAS * sqrt(known * share * (1.0 - share))
    above, below = (cut_of_rank(keys, rows, place) for place in (int(rank - slack), ceil(rank + slack)))
    if problem.params.schedule != "renewed":
        return Band(above, below)
    band = Band(Cut(above.key, EVERY_ROW.last_row), Cut(below.key, EVERY_ROW.last_row))
    if np.count_nonzero(band.inside(keys, rows)) * n <= room * known:
        return band
    middle = Cut(cut_of_rank(keys, rows, min(known, max(1, round(rank)))).key, EVERY_ROW.last_row)
    return Band(middle, middle)


def _place_in(band: Band, answer: Answer, target: int, *, renewed: bool) -> Place | None:
    """Where in the band the cut falls; None if it falls outside."""
    wanted = target - answer.assigned
    if renewed and answer.higher < target <= answer.assigned:
        wanted = 0  # among the lowest that are above the band: all of these are let in
    if not 0 <= wanted <= answer.inside:
        return None
    return Place(Window(band.below.key, band.above.key + 1), answer.inside, wanted, band)


def _place_in_bin(
    problem: Problem, histogram: Int, floor: int, target: int, budget: Budget
) -> Generator[Order, Answer, Place]:
    """The bin of a histogram of all margins that the cut falls into.

    Where no margins are kept, a sweep assigns what is above the bin and keeps what is inside, if there is room.
    """
    number, wanted = from_above(histogram, target)
    window, inside = window_of_bin(floor, number), int(histogram[number])
    if budget.keep_state or inside > budget.band_rows:
        return Place(window, inside, wanted)
    band = Band(Cut(window.high - 1, -1), Cut(window.low, EVERY_ROW.last_row))
    answer = yield _measuring(problem, floor, band, None)
    problem.foretold(answer, band)
    return Place(window, inside, wanted, band)


def find_cut(problem: Problem, place: Place) -> Generator[Order, Answer, Cut]:
    """The cut that exactly the samples wanted pass: largest margins first, lower row numbers first on a tie."""
    window, inside, wanted, band = place
    if band is not None and wanted == 0:
        return band.above
    while inside > COLLECT_AT_MOST and window.high - window.low > 1:
        answer = yield problem.order(Look, window=window, band=band)
        number, wanted = from_above(answer.histogram, wanted)
        inside = int(answer.histogram[number])
        window = window.bin(number)
    if inside <= COLLECT_AT_MOST:
        answer = yield problem.order(Look, window=window, collect=True, band=band)
        chosen = np.sort(answer.keys)[-wanted]
        key = int(chosen)
        wanted -= int(np.count_nonzero(answer.keys > chosen))
        inside = int(np.count_nonzero(answer.keys == chosen))
    else:
        key = window.low
    if wanted == inside:
        return Cut(key, EVERY_ROW.last_row if band is None else band.last_row(key))
    last_row = yield from _tied_row(problem, key, wanted, band)
    return Cut(key, last_row)


def _tied_row(problem: Problem, key: int, wanted: int, band: Band | None) -> Generator[Order, Answer, int]:
    """Row number of the ``wanted``-th sample, in row order, among those whose margin has the bits ``key``."""
    window = Window(0, problem.hyperedges.n_samples, tied=key)
    inside = problem.hyperedges.n_samples
    while inside > COLLECT_AT_MOST:
        answer = yield problem.order(Look, window=window, band=band)
        number, wanted = from_below(answer.histogram, wanted)
        inside = int(answer.histogram[number])
        window = window.bin(number)
    answer = yield problem.order(Look, window=window, collect=True, band=band)
    return int(np.sort(answer.keys)[wanted - 1])


def _bin_end(histogram: Int, floor: int, wanted: int) -> float:
    """A margin that the ``wanted``-th largest does not exceed."""
    return margin_of(window_of_bin(floor, from_above(histogram, wanted)[0]).high)
