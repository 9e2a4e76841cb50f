"""A round on the rows: the orders of problems, and what a block answers.

Stands between the engine and the problems, which live with the coordinator and give *orders*; :func:`advance` carries
out the orders of many problems on one run of rows, reading each label block once for all of them.

A block's assignment is a pure function of (label block, W, cut). What a worker keeps between rounds is a cache:
every order carries what is needed to rebuild it.

Most samples lead by more than W changes from round to round, and so keep their winner, and most of these lead by so
much that no cut can fall above them: where margins are kept, only the others are looked at (as k-means does by the
bounds of Hamerly). With labels in memory that goes on to the last round, and the margins of those that were passed over
are made good when the result is read; with labels in a store, which are read anyway, adjustion looks at all.
"""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.budget import SAMPLE_ROWS
from cehm_dask.engine.sweep import Block, Run
from cehm_dask.method import kernels
from cehm_dask.method.confidence import Gauge

Int = NDArray[np.int64]
Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Cut:
    """Which rows are assigned: margins whose bits exceed ``key``, on a tie row numbers up to ``last_row``."""

    key: int
    last_row: int


EVERY_ROW = Cut(0, np.iinfo(np.int64).max)


def key_of(margin: float) -> int:
    """Bits of a margin; ordered as margins are, because margins are never negative."""
    return int(np.float64(margin).view(np.uint64))


def margin_of(key: int) -> float:
    """The margin with these bits."""
    return float(np.uint64(key).view(np.float64))


@dataclass(frozen=True, eq=False)
class Window:
    """A range of keys (low ≤ key < high) to look into; with ``tied``, of row numbers among margins with those bits."""

    low: int
    high: int
    tied: int | None = None

    @property
    def shift(self) -> int:
        """Bits to drop so that the window fits a histogram."""
        return max(0, (self.high - self.low - 1).bit_length() - (kernels.BINS.bit_length() - 1))

    def bin(self, number: int) -> "Window":
        """The part of the window that one bin of its histogram counts."""
        low = self.low + (number << self.shift)
        return Window(low, min(self.high, low + (1 << self.shift)), self.tied)

    def keys(self, margins: Keys, spoken: NDArray[np.bool_] | None, first_row: int) -> Keys:
        """The keys inside the window, of one block; silent rows have none."""
        if self.tied is not None:
            tied = margins == np.uint64(self.tied)
            found = np.flatnonzero(tied if spoken is None else tied & spoken).astype(np.uint64) + np.uint64(first_row)
        else:
            found = margins if spoken is None else margins[spoken]
        return found[(found >= np.uint64(self.low)) & (found < np.uint64(self.high))]


@dataclass(frozen=True, eq=False)
class Order:
    """What one problem asks of every row block in one sweep."""

    problem: int
    clusters: int
    step: int
    """Number of the assignment this order works towards; it starts from the one before."""
    table: int
    """Number of the weights."""
    weights: NDArray[np.float64]
    """W, a row a slot."""
    previous: tuple[NDArray[np.float64], Cut] | None
    """How the assignment it starts from was made; None where nothing was assigned yet."""
    began: tuple[NDArray[np.float64], Cut] | None = None
    """How the assignment was made that the round began with, where this order is the second step of a round."""
    pilot: bool = False
    """Wanted: the histogram from ``floor`` on, of a sample of rows only."""
    floor: int | None = None
    """Wanted: a histogram of all margins, with bins of 2**44 from this key on."""
    window: Window | None = None
    """Wanted: a histogram of the keys inside."""
    collect: bool = False
    """Wanted instead of that histogram: the keys inside themselves."""
    cut: Cut | None = None
    """To do: assign by this cut."""
    drift: float | None = None
    """No lead has changed by more since the weights before; None: not known, or every row is to be looked at."""
    sure: float = 0.0
    """Where a drift is given: no cut will fall above this margin, so that larger ones need not be known exactly."""
    keep: Window | None = None
    """To do: keep the labels of rows with keys inside, so that a cut there can be applied without reading any."""
    lead: NDArray[np.float64] | None = None
    """To do: multiply reported margins by that of the winner; None: they are leads in shares or counts already."""
    singled: tuple[tuple[int, int], ...] = ()
    """To do with the result: rows, and the clusters they were put into one by one."""
    gauge: Gauge | None = None
    """Wanted with the result: the confidence of every sample."""

    @property
    def reads(self) -> bool:
        """Whether it needs the labels, where workers keep their state; the others are looks at that state."""
        return not self.pilot and self.window is None


FLOOR_SHIFT = 44
"""Sixteen octaves below the largest possible margin in 4096 bins of equal bits."""


@dataclass(eq=False)
class Answer:
    """What row blocks report for one order; adds up in any order."""

    histogram: Int | None = None
    keys: Keys | None = None
    delta: Int | None = None
    assigned: int = 0
    moved: int = 0

    def __add__(self, other: "Answer") -> "Answer":
        keys = None
        if self.keys is not None and other.keys is not None:
            keys = np.concatenate((self.keys, other.keys))
        return Answer(
            _sum(self.histogram, other.histogram),
            keys,
            _sum(self.delta, other.delta),
            self.assigned + other.assigned,
            self.moved + other.moved,
        )


def _sum(one: Int | None, other: Int | None) -> Int | None:
    return None if one is None or other is None else one + other


def combine(answers: Sequence[list[Answer]]) -> list[Answer]:
    """Sum the answers of several runs of rows, order by order; the answers themselves stay as they are."""
    return [reduce(operator.add, of_order) for of_order in zip(*answers, strict=True)]


FEW = 0.5
"""Share of a block's rows up to which it pays to gather their labels: half of them then take 0.6 to 0.7 of all."""

EVERYTHING = (np.uint64(EVERY_ROW.key), np.int64(0), np.int64(EVERY_ROW.last_row))
"""The cut that all rows pass, as the kernel takes it."""


class State:
    """One problem's rows in a run: a cache of (assignment, winner, margin), stamped with the rounds they belong to."""

    def __init__(self, rows: int) -> None:
        self.assignment = np.full(rows, kernels.UNASSIGNED, np.int16)
        self.best = np.empty(rows, np.int16)
        self.margin = np.empty(rows, np.float64)
        self.exact = True
        """Whether all margins are; otherwise, those of rows that were passed over are no larger than they should be."""
        self.step = -1
        """Which assignment this is."""
        self.table = -1
        """Which weights the winners and margins come from."""
        self.assigned = 0
        self.kept: Kept | None = None
        self.before: NDArray[np.int16] | None = None
        """The assignment that a foretold round began with."""


class Kept:
    """Rows of a run whose keys fell into a window, with their labels."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self._places: list[NDArray[np.intp]] = []
        self._codes: list[Any] = []

    def add(self, block: Block, rows: slice, keys: Keys, spoken: NDArray[np.bool_] | None) -> None:
        inside = (keys >= np.uint64(self.window.low)) & (keys < np.uint64(self.window.high))
        found = np.flatnonzero(inside if spoken is None else inside & spoken)
        self._places.append(found + rows.start)
        self._codes.append(block.codes.take(found, axis=0))

    def covers(self, cut: Cut) -> bool:
        return self.window.low <= cut.key < self.window.high

    def apply(self, run: Run, state: State, cut: Cut, delta: Int | None) -> int:
        """Assign the kept rows that the cut lets in; all others are as a cut above the window left them."""
        places, codes = np.concatenate(self._places), np.concatenate(self._codes)
        keys = state.margin[places].view(np.uint64)
        let_in = (keys > np.uint64(cut.key)) | ((keys == np.uint64(cut.key)) & (places + run.first_row <= cut.last_row))
        chosen = places[let_in]
        assignment = state.assignment[chosen]
        kernels.assign(codes[let_in], run.offsets, state.best[chosen], keys[let_in], *EVERYTHING, assignment, delta)
        state.assignment[chosen] = assignment
        return len(chosen)


class Stack:
    """The weights of several orders side by side, made once a run of rows."""

    def __init__(self, tables: Sequence[NDArray[np.float64]]) -> None:
        self.weights, self.first_column = kernels.side_by_side(tables)

    def belonging(self, codes: Any, offsets: NDArray[np.uint64], states: Sequence[State], rows: slice) -> None:
        """Winner and margin of the rows, into the states."""
        if len(states) == 1:
            best, margin = states[0].best[None, rows], states[0].margin[None, rows]
        else:
            shape = (len(states), len(codes))
            best, margin = np.empty(shape, np.int16), np.empty(shape, np.float64)
        kernels.belonging(codes, offsets, self.weights, self.first_column, best, margin)
        if len(states) > 1:
            for state, one_best, one_margin in zip(states, best, margin, strict=True):
                state.best[rows] = one_best
                state.margin[rows] = one_margin


def advance(run: Run, orders: Sequence[Order]) -> list[Answer]:
    """Carry out the orders of all problems on one run of rows; each label block is read once, if at all."""
    answers = [_blank(order, run.n_slots) for order in orders]
    resident = run.resident
    if orders[0].pilot:
        for order, answer in zip(orders, answers, strict=True):
            _pilot(run, order, answer)
        return answers
    if not resident.keep_state:
        plan = Plan(orders, [State(0) for _ in orders])
        for block in run.blocks():
            _advance_block(block, slice(None), run, orders, [State(block.n_rows) for _ in orders], answers, plan)
        return answers
    states = [resident.states.get(order.problem) or State(run.n_rows) for order in orders]
    resident.states.update({order.problem: state for order, state in zip(orders, states, strict=True)})
    if all(_known(order, state) for order, state in zip(orders, states, strict=True)):
        for order, state, answer in zip(orders, states, answers, strict=True):
            _apply_kept(run, order, state, answer)
        return answers
    plan = Plan(orders, states)
    for i, (order, state) in enumerate(zip(orders, states, strict=True)):
        state.step = state.table = -1  # valid again only when every block went through
        if i in plan.reset:
            state.kept = state.before = None  # of another round
        if order.keep is not None:
            state.kept, state.before = Kept(order.keep), np.empty(run.n_rows, np.int16)
    for block in run.blocks():
        _advance_block(block, _rows(run, block), run, orders, states, answers, plan)
        if orders[0].reads and run.budget.foretell:
            _sample(run, block)
    for i, (order, state, answer) in enumerate(zip(orders, states, answers, strict=True)):
        state.table = order.table
        state.step = order.step if order.cut is not None else order.step - 1
        if i in plan.near or i in plan.belong:
            state.exact = i in plan.belong
        if order.cut is not None:
            state.assigned = answer.assigned
        if order.cut is not None and order.keep is None:
            state.kept = state.before = None  # the round is over
    return answers


def _known(order: Order, state: State) -> bool:
    """Whether a cut can be applied to rows whose labels were kept, without reading any."""
    if order.cut is None or order.keep is not None or state.kept is None or not state.kept.covers(order.cut):
        return False
    return state.step == order.step - 1 and state.table == order.table


def _apply_kept(run: Run, order: Order, state: State, answer: Answer) -> None:
    assert state.kept is not None
    assert order.cut is not None
    state.step = -1
    answer.assigned = state.assigned = state.assigned + state.kept.apply(run, state, order.cut, answer.delta)
    answer.moved = int(np.count_nonzero(state.assignment != state.before))
    state.kept = state.before = None
    state.step = order.step


def _sample(run: Run, block: Block) -> None:
    """Keep the labels of every so many rows of the block, the first time it is read."""
    sample = run.resident.sample
    if block.first_row not in sample:
        stride = -(-run.n_rows // SAMPLE_ROWS)
        sample[block.first_row] = block.codes[-(block.first_row - run.first_row) % stride :: stride].copy()


def _pilot(run: Run, order: Order, answer: Answer) -> None:
    """Histogram of the sample's margins; a run whose sample is lost has nothing to say."""
    parts = list(run.resident.sample.values())
    if not parts:
        return
    codes = np.concatenate(parts)
    state = State(len(codes))
    Stack([order.weights]).belonging(codes, run.offsets, [state], slice(None))
    spoken = np.asarray(codes.any(axis=1)) if run.silent_rows else None
    _look(order, state.margin.view(np.uint64), spoken, 0, answer)


def _rows(run: Run, block: Block) -> slice:
    return slice(block.first_row - run.first_row, block.first_row - run.first_row + block.n_rows)


class Plan:
    """Which of a run's states must be rebuilt, and which need this round's belonging degrees, of all rows or of few."""

    def __init__(self, orders: Sequence[Order], states: Sequence[State]) -> None:
        rows = range(len(orders))
        self.reset = [i for i in rows if states[i].step != orders[i].step - 1]
        self.rebuild = [i for i in self.reset if orders[i].previous is not None]
        self.near = [
            i
            for i in rows
            if orders[i].drift is not None and i not in self.reset and states[i].table == orders[i].table - 1
        ]
        self.belong = [
            i for i in rows if (states[i].table != orders[i].table or i in self.rebuild) and i not in self.near
        ]
        self._orders = orders
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self.past = Stack([orders[i].previous[0] for i in self.rebuild]) if self.rebuild else None  # type: ignore[index]
        self.begun = [i for i in self.rebuild if orders[i].began is not None]
        self.origin = Stack([orders[i].began[0] for i in self.begun]) if self.begun else None  # type: ignore[index]

    def present(self, chosen: Sequence[int]) -> Stack:
        """The weights of this round, of some problems."""
        if (key := tuple(chosen)) not in self._stacks:
            self._stacks[key] = Stack([self._orders[i].weights for i in chosen])
        return self._stacks[key]


def _blank(order: Order, n_slots: int) -> Answer:
    answer = Answer()
    if order.floor is not None or (order.window is not None and not order.collect):
        answer.histogram = np.zeros(kernels.BINS, np.int64)
    if order.collect:
        answer.keys = np.empty(0, np.uint64)
    if order.cut is not None:
        answer.delta = np.zeros((n_slots, order.clusters), np.int64)
    return answer


def _advance_block(
    block: Block,
    rows: slice,
    run: Run,
    orders: Sequence[Order],
    states: Sequence[State],
    answers: Sequence[Answer],
    plan: Plan,
) -> None:
    offsets = run.offsets
    if plan.reset:
        start: Any = kernels.UNASSIGNED
        if run.silent_rows:
            start = np.where(block.codes.any(axis=1), kernels.UNASSIGNED, kernels.SILENT)
        for i in plan.reset:
            states[i].assignment[rows] = start
    if plan.origin is not None:
        # What the whole round moves is counted from the assignment it began with, not from that of its first step.
        plan.origin.belonging(block.codes, offsets, [states[i] for i in plan.begun], rows)
        for i in plan.begun:
            state = states[i]
            scratch = np.zeros((run.n_slots, orders[i].clusters), np.int64)
            _apply(block, rows, offsets, state, orders[i].began[1], scratch)  # type: ignore[index]
            if state.before is None:
                state.before = np.empty_like(state.assignment)
            state.before[rows] = state.assignment[rows]
            state.assignment[rows] = start
    if plan.past is not None:
        plan.past.belonging(block.codes, offsets, [states[i] for i in plan.rebuild], rows)
        for i in plan.rebuild:
            scratch = np.zeros((run.n_slots, orders[i].clusters), np.int64)
            _apply(block, rows, offsets, states[i], orders[i].previous[1], scratch)  # type: ignore[index]
    unsure = {i: _unsure(orders[i], states[i], rows) for i in plan.near}
    few = {i: found for i, found in unsure.items() if len(found) <= FEW * block.n_rows}
    if everyone := [*plan.belong, *(i for i in unsure if i not in few)]:
        plan.present(everyone).belonging(block.codes, offsets, [states[i] for i in everyone], rows)
    for i, (order, state, answer) in enumerate(zip(orders, states, answers, strict=True)):
        if i in few:
            places, codes = few[i] + rows.start, block.codes.take(few[i], axis=0)  # indexing is four times slower
            _look_again(places, codes, run, plan.present([i]), state)
            if order.cut == EVERY_ROW:
                _adjust(places, codes, run, state, answer)
                answer.assigned += block.n_rows - len(places)
                continue
        if order.floor is not None or order.window is not None:
            spoken = state.assignment[rows] != kernels.SILENT if run.silent_rows else None
            _look(order, state.margin[rows].view(np.uint64), spoken, block.first_row, answer)
        if state.kept is not None and state.before is not None and order.keep is not None:
            state.before[rows] = state.assignment[rows]
            spoken = state.assignment[rows] != kernels.SILENT if run.silent_rows else None
            state.kept.add(block, rows, state.margin[rows].view(np.uint64), spoken)
        if order.cut is not None:
            assigned, moved = _apply(block, rows, offsets, state, order.cut, answer.delta)
            if order.keep is None and state.before is not None:
                moved = int(np.count_nonzero(state.assignment[rows] != state.before[rows]))
            answer.assigned += assigned
            answer.moved += moved


def _unsure(order: Order, state: State, rows: slice) -> NDArray[np.intp]:
    """Rows of a block that may have another winner now, or a margin that matters; the others lose what they may."""
    assert order.drift is not None
    margin = state.margin[rows]
    margin -= order.drift
    unsure = margin <= order.sure
    if order.cut == EVERY_ROW:
        unsure |= state.assignment[rows] == kernels.UNASSIGNED
    return np.flatnonzero(unsure)


def _look_again(places: NDArray[np.intp], codes: Any, run: Run, stack: Stack, state: State) -> None:
    """Winner and margin of some rows of a run, whose labels were gathered."""
    best, margin = np.empty((1, len(codes)), np.int16), np.empty((1, len(codes)))
    kernels.belonging(codes, run.offsets, stack.weights, stack.first_column, best, margin)
    state.best[places], state.margin[places] = best[0], margin[0]


def _adjust(places: NDArray[np.intp], codes: Any, run: Run, state: State, answer: Answer) -> None:
    """Move those rows to their winners."""
    assignment, keys = state.assignment[places], state.margin[places].view(np.uint64)
    moving = (codes, run.offsets, state.best[places], keys, *EVERYTHING, assignment, answer.delta)
    assigned, moved = kernels.assign(*moving)
    state.assignment[places] = assignment
    answer.assigned += int(assigned)
    answer.moved += int(moved)


def _apply(
    block: Block, rows: slice, offsets: NDArray[np.uint64], state: State, cut: Cut, delta: Int | None
) -> tuple[int, int]:
    keys = state.margin[rows].view(np.uint64)
    assigned, moved = kernels.assign(
        block.codes,
        offsets,
        state.best[rows],
        keys,
        np.uint64(cut.key),
        np.int64(block.first_row),
        np.int64(cut.last_row),
        state.assignment[rows],
        delta,
    )
    return int(assigned), int(moved)


def _look(order: Order, keys: Keys, spoken: NDArray[np.bool_] | None, first_row: int, answer: Answer) -> None:
    if order.floor is not None:
        keys = keys if spoken is None else keys[spoken]
        kernels.tally(keys, np.uint64(order.floor), np.uint64(FLOOR_SHIFT), answer.histogram)
        return
    window = order.window
    assert window is not None
    inside = window.keys(keys, spoken, first_row)
    if answer.keys is not None:
        answer.keys = np.concatenate((answer.keys, inside))
    else:
        kernels.tally(inside, np.uint64(window.low), np.uint64(window.shift), answer.histogram)


class Harvest(NamedTuple):
    """The assignment that an order's cut made in its round, and what is known of it; silent rows have -1, 0 and 0."""

    labels: NDArray[np.int16]
    margin: NDArray[np.float64]
    confidence: NDArray[np.float64]
    """Zeros where the order has no gauge."""


def harvest_blocks(run: Run, order: Order) -> Iterator[tuple[int, Harvest]]:
    """First row of each block, and what has become of its rows."""
    for first_row, found in harvest_together(run, [order]):
        yield first_row, found[0]


def harvest_together(run: Run, orders: Sequence[Order]) -> Iterator[tuple[int, list[Harvest]]]:
    """:func:`harvest_blocks` for several problems; a block is read once, if at all."""
    kept = [run.resident.states.get(order.problem) for order in orders]
    lost = [
        i
        for i, (order, state) in enumerate(zip(orders, kept, strict=True))
        if state is None or not (state.step == order.step and state.table == order.table)
    ]
    again = [orders[i] for i in lost]
    plan = Plan(again, [State(0) for _ in again])
    stale = {i: state for i, state in enumerate(kept) if state is not None and not state.exact and i not in lost}
    fresh = Stack([orders[i].weights for i in stale]) if stale else None
    for block in run.blocks():
        if fresh is not None:
            fresh.belonging(block.codes, run.offsets, list(stale.values()), _rows(run, block))
        places: list[tuple[Any, slice]] = [(state, _rows(run, block)) for state in kept]
        if again:
            states = [State(block.n_rows) for _ in again]
            blanks = [_blank(order, run.n_slots) for order in again]
            _advance_block(block, slice(None), run, again, states, blanks, plan)
            for i, state in zip(lost, states, strict=True):
                places[i] = state, slice(None)
        yield (
            block.first_row,
            [_harvest(state, rows, order, run, block) for (state, rows), order in zip(places, orders, strict=True)],
        )
    for state in stale.values():
        state.exact = True


def _harvest(state: State, rows: slice, order: Order, run: Run, block: Block) -> Harvest:
    labels, margin = state.assignment[rows], state.margin[rows]
    silent = labels == kernels.SILENT if run.silent_rows else None
    if silent is not None:
        labels = np.where(silent, np.int16(kernels.UNASSIGNED), labels)
    if order.lead is not None:
        margin = margin * order.lead[labels]
    for row, cluster in order.singled:
        if block.first_row <= row < block.first_row + block.n_rows:
            labels, margin = labels.copy(), margin.copy()
            labels[row - block.first_row], margin[row - block.first_row] = cluster, 0.0
    margin = margin if silent is None else np.where(silent, 0.0, margin)
    if order.gauge is None:
        return Harvest(labels, margin, np.zeros(len(labels)))
    return Harvest(labels, margin, order.gauge.read(block.codes, run.offsets, labels))
