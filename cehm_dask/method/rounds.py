"""A round on the rows: carries out the orders of all problems on one span, reading each label block once for them.

A block's assignment is a pure function of (label block, W, cut).

Most samples lead by more than W changes from round to round, and so keep their winner, and most of these lead by so
much that no cut can fall above them: where margins are cached, only the others are looked at (as k-means does by the
bounds of Hamerly). With labels in memory that goes on to the last round, and the margins of those that were passed over
are recomputed when the result is read; with labels in a store, which are read anyway, adjustion looks at all.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.budget import SAMPLE_ROWS
from cehm_dask.engine.span import Block, Span
from cehm_dask.method import kernels
from cehm_dask.method.cut import FLOOR_SHIFT, Cut, Int, Keys, Places
from cehm_dask.method.orders import (
    Answer,
    Foretell,
    Look,
    Made,
    Measure,
    Order,
    Passing,
    Pilot,
    Read,
    cut_of,
    lets_in_all,
    passing_of,
    reads_labels,
)
from cehm_dask.method.state import EVERYTHING, Stack, State, Waiting

FEW = 0.5
"""Share of a block's rows up to which it pays to gather their labels: half of them then take 0.6 to 0.7 of all."""


def advance(span: Span, orders: Sequence[Order]) -> list[Answer]:
    """Carry out the orders of all problems on one span; each label block is read once, if at all."""
    answers = [_blank(order, span.n_slots) for order in orders]
    if isinstance(orders[0], Pilot):
        for order, answer in zip(orders, answers, strict=True):
            _pilot(span, order, answer)
    elif span.cache.keep_state:
        _advance_kept(span, orders, answers)
    else:
        need = Need(orders, [State(0) for _ in orders])
        for block in span.blocks():
            _Rows(span, block, slice(None), [State(block.n_rows) for _ in orders]).advance(orders, answers, need)
    return answers


def _advance_kept(span: Span, orders: Sequence[Order], answers: Sequence[Answer]) -> None:
    """With the states that are cached, and into them."""
    kept = span.cache.states
    states = [kept.get(order.problem) or State(span.n_rows) for order in orders]
    kept.update({order.problem: state for order, state in zip(orders, states, strict=True)})
    settling = [one for order, state in zip(orders, states, strict=True) if (one := state.settling(order)) is not None]
    if len(settling) == len(orders):
        for one, answer in zip(settling, answers, strict=True):
            answer.assigned, answer.moved = one.settle(span, answer.delta)
        return
    need = Need(orders, states)
    for i, (order, state) in enumerate(zip(orders, states, strict=True)):
        state.begin()
        if i in need.reset:
            state.waiting = None  # of another round
        if isinstance(order, Foretell):
            state.waiting = Waiting(order.keep, span.n_rows)
    for block in span.blocks():
        _Rows(span, block, _places(span, block), states).advance(orders, answers, need)
        if reads_labels(orders[0]) and span.budget.foretell:
            _sample(span, block)
    for i, (order, state, answer) in enumerate(zip(orders, states, answers, strict=True)):
        if i in need.near or i in need.belong:
            state.exact = i in need.belong
        state.end(order, answer.assigned)


def _blank(order: Order, n_slots: int) -> Answer:
    answer = Answer()
    if isinstance(order, Pilot | Measure | Foretell) or (isinstance(order, Look) and not order.collect):
        answer.histogram = np.zeros(kernels.BINS, np.int64)
    if cut_of(order) is not None:
        answer.delta = np.zeros((n_slots, order.clusters), np.int64)
    return answer


def _sample(span: Span, block: Block) -> None:
    """Cache the labels of every so many rows of the block, the first time it is read."""
    sample = span.cache.sample
    if block.start not in sample:
        stride = -(-span.n_rows // SAMPLE_ROWS)
        sample[block.start] = block.codes[-(block.start - span.start) % stride :: stride].copy()


def _pilot(span: Span, order: Order, answer: Answer) -> None:
    """Histogram of the sample's margins; a span whose sample is lost contributes nothing."""
    parts = list(span.cache.sample.values())
    if not parts:
        return
    codes = np.concatenate(parts)
    state = State(len(codes))
    Stack([order.weights]).belonging(codes, span.offsets, [state], slice(None))
    spoken = np.asarray(codes.any(axis=1)) if span.silent_rows else None
    _look(order, state.margin.view(np.uint64), spoken, 0, answer)


def _places(span: Span, block: Block) -> slice:
    """Where the rows of a block stand in its span."""
    return slice(block.start - span.start, block.stop - span.start)


class Need:
    """What must be recomputed before orders can be carried out, by their place in the list."""

    def __init__(self, orders: Sequence[Order], states: Sequence[State]) -> None:
        self._orders = orders
        self._stacks: dict[tuple[int, ...], Stack] = {}
        rows = range(len(orders))
        self.reset = [i for i in rows if not states[i].precedes(orders[i])]
        """Not the assignment that the order starts from."""
        made = {i: order.previous for i, order in enumerate(orders) if i in self.reset}
        self.rebuild = {i: one for i, one in made.items() if one is not None}
        """How that is made again."""
        self.begun = {i: one for i in self.rebuild if (one := orders[i].began) is not None}
        """How the assignment is made again that the round began with."""
        self.near = {
            i: passing
            for i in rows
            if (passing := passing_of(orders[i])) is not None
            and i not in self.reset
            and states[i].is_measured_before(orders[i])
        }
        """Which rows may be passed over."""
        self.belong = [
            i for i in rows if (not states[i].is_measured_for(orders[i]) or i in self.rebuild) and i not in self.near
        ]
        """Belonging degrees of all rows."""
        self.past = Stack([one.weights for one in self.rebuild.values()]) if self.rebuild else None
        self.origin = Stack([one.weights for one in self.begun.values()]) if self.begun else None

    def present(self, chosen: Sequence[int]) -> Stack:
        """The weights of this round, of some problems."""
        if (key := tuple(chosen)) not in self._stacks:
            self._stacks[key] = Stack([self._orders[i].weights for i in chosen])
        return self._stacks[key]


class _Rows(NamedTuple):
    """The rows of one block, with the states of all problems that hold them."""

    span: Span
    block: Block
    rows: slice
    """Where in the states they stand."""
    states: Sequence[State]

    def advance(self, orders: Sequence[Order], answers: Sequence[Answer], need: Need) -> None:
        """Carry out the orders on these rows."""
        if need.reset:
            self._reset(orders, need)
        unsure = {i: _unsure(orders[i], passing, self.states[i], self.rows) for i, passing in need.near.items()}
        few = {i: found for i, found in unsure.items() if len(found) <= FEW * self.block.n_rows}
        if everyone := [*need.belong, *(i for i in unsure if i not in few)]:
            self._belong(need.present(everyone), everyone)
        for i, (order, state, answer) in enumerate(zip(orders, self.states, answers, strict=True)):
            if i in few:
                places, codes = few[i] + self.rows.start, self.block.codes.take(few[i], axis=0)  # indexing is slower
                _look_again(places, codes, self.span, need.present([i]), state)
                if lets_in_all(order):
                    _adjust(places, codes, self.span, state, answer)
                    answer.assigned += self.block.n_rows - len(places)
                    continue
            self._answer(order, state, answer)

    def _belong(self, stack: Stack, chosen: Sequence[int]) -> None:
        stack.belonging(self.block.codes, self.span.offsets, [self.states[i] for i in chosen], self.rows)

    def _reset(self, orders: Sequence[Order], need: Need) -> None:
        """Make the assignments again that orders start from."""
        blank: Any = np.int16(kernels.UNASSIGNED)
        if self.span.silent_rows:
            blank = np.where(self.block.codes.any(axis=1), blank, np.int16(kernels.SILENT))
        for i in need.reset:
            self.states[i].assignment[self.rows] = blank
        if need.origin is not None:
            # What the whole round moves is counted from the assignment it began with, not from that of its first step.
            self._belong(need.origin, list(need.begun))
            for i, made in need.begun.items():
                state = self.states[i]
                self._remake(made, state, orders[i])
                if state.waiting is None:
                    state.waiting = Waiting.of_no_rows(len(state.assignment))
                state.waiting.before[self.rows] = state.assignment[self.rows]
                state.assignment[self.rows] = blank
        if need.past is not None:
            self._belong(need.past, list(need.rebuild))
            for i, made in need.rebuild.items():
                self._remake(made, self.states[i], orders[i])

    def _remake(self, made: Made, state: State, order: Order) -> None:
        self._apply(state, made.cut, np.zeros((self.span.n_slots, order.clusters), np.int64))

    def _apply(self, state: State, cut: Cut, delta: Int) -> tuple[int, int]:
        key, last_row = cut.as_numbers
        keys, assignment = state.margin[self.rows].view(np.uint64), state.assignment[self.rows]
        place = (key, np.int64(self.block.start), last_row)
        found = kernels.assign(
            self.block.codes, self.span.offsets, state.best[self.rows], keys, *place, assignment, delta
        )
        return int(found[0]), int(found[1])

    def _answer(self, order: Order, state: State, answer: Answer) -> None:
        keys = state.margin[self.rows].view(np.uint64)
        spoken = state.assignment[self.rows] != kernels.SILENT if self.span.silent_rows else None
        _look(order, keys, spoken, self.block.start, answer)
        if isinstance(order, Foretell) and state.waiting is not None:
            state.waiting.before[self.rows] = state.assignment[self.rows]
            state.waiting.add(self.block, self.rows, keys, spoken)
        cut = cut_of(order)
        if cut is not None:
            assigned, moved = self._apply(state, cut, answer.delta)
            if state.waiting is not None and not isinstance(order, Foretell):
                moved = int(np.count_nonzero(state.assignment[self.rows] != state.waiting.before[self.rows]))
            answer.assigned += assigned
            answer.moved += moved


def _unsure(order: Order, passing: Passing, state: State, rows: slice) -> NDArray[np.intp]:
    """Rows of a block that may have another winner now, or a margin that matters; the others lose what they may."""
    margin = state.margin[rows]
    margin -= passing.drift
    unsure = margin <= passing.sure
    if lets_in_all(order):
        unsure |= state.assignment[rows] == kernels.UNASSIGNED
    return np.flatnonzero(unsure)


def _look_again(places: NDArray[np.intp], codes: Any, span: Span, stack: Stack, state: State) -> None:
    """Winner and margin of some rows of a span, whose labels were gathered."""
    best, margin = np.empty((1, len(codes)), np.int16), np.empty((1, len(codes)))
    kernels.belonging(codes, span.offsets, stack.weights, stack.first_column, best, margin)
    state.best[places], state.margin[places] = best[0], margin[0]


def _adjust(places: NDArray[np.intp], codes: Any, span: Span, state: State, answer: Answer) -> None:
    """Move those rows to their winners."""
    assignment, keys = state.assignment[places], state.margin[places].view(np.uint64)
    moving = (codes, span.offsets, state.best[places], keys, *EVERYTHING, assignment, answer.delta)
    assigned, moved = kernels.assign(*moving)
    state.assignment[places] = assignment
    answer.assigned += int(assigned)
    answer.moved += int(moved)


def _look(order: Order, keys: Keys, spoken: Places | None, first_row: int, answer: Answer) -> None:
    """Count the margins that an order asks for."""
    if isinstance(order, Pilot | Measure | Foretell):
        keys = keys if spoken is None else keys[spoken]
        kernels.tally(keys, np.uint64(order.floor), np.uint64(FLOOR_SHIFT), answer.histogram)
    elif isinstance(order, Look):
        inside = order.window.keys(keys, spoken, first_row)
        if order.collect:
            answer.keys = np.concatenate((answer.keys, inside))
        else:
            kernels.tally(inside, np.uint64(order.window.low), np.uint64(order.window.shift), answer.histogram)


class Harvest(NamedTuple):
    """The assignment that an order's cut made in its round; rows without any label have -1, 0 and 0."""

    labels: NDArray[np.int16]
    margin: NDArray[np.float64]
    confidence: NDArray[np.float64]
    """Zeros where the order has no gauge."""


def harvest_blocks(span: Span, order: Read) -> Iterator[tuple[int, Harvest]]:
    """First row of each block, and what has become of its rows."""
    for first_row, found in harvest_together(span, [order]):
        yield first_row, found[0]


def harvest_together(span: Span, orders: Sequence[Read]) -> Iterator[tuple[int, list[Harvest]]]:
    """:func:`harvest_blocks` for several problems; a block is read once, if at all."""
    states = span.cache.states
    kept: dict[int, State] = {
        i: state
        for i, order in enumerate(orders)
        if (state := states.get(order.problem)) is not None and state.answers(order)
    }
    lost = [i for i in range(len(orders)) if i not in kept]
    again = [orders[i] for i in lost]
    need = Need(again, [State(0) for _ in again])
    stale = {i: state for i, state in kept.items() if not state.exact}
    fresh = Stack([orders[i].weights for i in stale]) if stale else None
    for block in span.blocks():
        if fresh is not None:
            fresh.belonging(block.codes, span.offsets, list(stale.values()), _places(span, block))
        places = {i: (state, _places(span, block)) for i, state in kept.items()}
        if again:
            anew = [State(block.n_rows) for _ in again]
            blanks = [_blank(order, span.n_slots) for order in again]
            _Rows(span, block, slice(None), anew).advance(again, blanks, need)
            places |= {i: (state, slice(None)) for i, state in zip(lost, anew, strict=True)}
        yield block.start, [_harvest(*places[i], order, span, block) for i, order in enumerate(orders)]
    for state in stale.values():
        state.exact = True


def _harvest(state: State, rows: slice, order: Read, span: Span, block: Block) -> Harvest:
    labels, margin = state.assignment[rows], state.margin[rows]
    silent = labels == kernels.SILENT if span.silent_rows else None
    if silent is not None:
        labels = np.where(silent, np.int16(kernels.UNASSIGNED), labels)
    if order.lead is not None:
        margin = margin * order.lead[labels]
    for row, cluster in order.singled:
        if block.start <= row < block.stop:
            labels, margin = labels.copy(), margin.copy()
            labels[row - block.start], margin[row - block.start] = cluster, 0.0
    margin = margin if silent is None else np.where(silent, 0.0, margin)
    if order.gauge is None:
        return Harvest(labels, margin, np.zeros(len(labels)))
    return Harvest(labels, margin, order.gauge.read(block.codes, span.offsets, labels))
