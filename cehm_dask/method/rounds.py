"""A round on the rows: carries out the orders of all problems on one span, reading each label block once for them.

A block's assignment is a pure function of (label block, W, cut).

Most samples lead by more than W changes from round to round, and so keep their winner, and most of these lead by so
much that no cut can fall above them: where margins are cached, only the others are looked at (as k-means does by the
bounds of Hamerly). With labels in memory that goes on to the last round, and the margins of those that were passed over
are recomputed when the result is read; with labels in a store, which are read anyway, adjustion looks at all.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.span import Block, Span
from cehm_dask.method import kernels
from cehm_dask.method.cut import FLOOR_SHIFT, Cut, Int, Keys
from cehm_dask.method.orders import (
    Answer,
    Assign,
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
from cehm_dask.method.state import EVERYTHING, Part, Stack, State, Waiting

FEW = 0.5
"""Share of a block's rows up to which it pays to gather their labels: half of them then take 0.6 to 0.7 of all."""


def advance(span: Span, orders: Sequence[Order]) -> list[Answer]:
    """Carry out the orders of all problems on one span; each label block is read once, if at all."""
    answers = [_blank(order, span.n_slots) for order in orders]
    if isinstance(orders[0], Pilot):
        for order, answer in zip(orders, answers, strict=True):
            _pilot(span, order, answer)
        return answers
    rest = [i for i, order in enumerate(orders) if not _settled(span, order, answers[i])]
    if rest:
        _advance(span, [orders[i] for i in rest], [answers[i] for i in rest])
    return answers


def _settled(span: Span, order: Order, answer: Answer) -> bool:
    """Whether an order was carried out on the rows that wait for it, which are let go after the round."""
    waiting: Waiting | None = span.cache.waiting.get(order.problem)
    if waiting is None or not waiting.answers(order):
        return False
    if isinstance(order, Look):
        _look(order, *waiting.looked_at(), answer)
        return True
    state: State | None = span.cache.states.get(order.problem)
    if not isinstance(order, Assign) or (state is not None and not state.precedes(order)):
        return False
    answer.assigned, answer.moved = waiting.settle(span, order, answer.delta, state)
    _let_go(span, order)
    return True


def _let_go(span: Span, order: Order) -> None:
    waiting = span.cache.waiting.pop(order.problem, None)
    if waiting is not None:
        waiting.let_go(span)


def _advance(span: Span, orders: Sequence[Order], answers: Sequence[Answer]) -> None:
    """Block by block, with the states that are cached, and into them; without, with those of one block at a time."""
    keeps, kept = span.cache.keep_state, span.cache.states
    states = [(kept.get(order.problem) or State(span.n_rows)) if keeps else State(0) for order in orders]
    if keeps:
        kept.update({order.problem: state for order, state in zip(orders, states, strict=True)})
    need = Need(orders, states, all_states=keeps)
    for order, state in zip(orders, states, strict=True):
        state.begin()
        if cut_of(order) is not None:
            _let_go(span, order)
    waiting = {order.problem: Waiting(order) for order in orders if isinstance(order, Foretell)}
    span.cache.waiting.update(waiting)
    for block in span.blocks():
        own = states if keeps else [State(block.n_rows) for _ in orders]
        places = _places(span, block) if keeps else slice(None)
        _Rows(span, block, places, own, waiting).advance(orders, answers, need)
        if reads_labels(orders[0]) and span.budget.foretell:
            _sample(span, block)
    for i, (order, state) in enumerate(zip(orders, states, strict=True)):
        if i in need.near or i in need.belong:
            state.exact = i in need.belong
        state.end(order)
    for one in waiting.values():
        one.end()


def _blank(order: Order, n_slots: int) -> Answer:
    answer = Answer()
    if isinstance(order, Measure | Foretell) or (isinstance(order, Look) and not order.collect):
        answer.histogram = np.zeros(kernels.BINS, np.int64)
    if cut_of(order) is not None:
        answer.delta = np.zeros((n_slots, order.clusters), np.int64)
    return answer


def _sample(span: Span, block: Block) -> None:
    """Cache the labels of every so many rows of the block, the first time it is read."""
    stride = span.budget.sample_stride
    skipped = -block.start % stride
    if block.start + skipped not in span.cache.sample:
        span.cache.sample[block.start + skipped] = block.codes[skipped::stride].copy()


def _pilot(span: Span, order: Order, answer: Answer) -> None:
    """Margins of the sample; a span whose sample is lost contributes nothing."""
    parts = [(first, codes) for first, codes in span.cache.sample.items() if len(codes)]
    if not parts:
        return
    codes = np.concatenate([own for _, own in parts])
    rows = np.concatenate([first + span.budget.sample_stride * np.arange(len(own)) for first, own in parts])
    state = State(len(codes))
    Stack([order.weights]).belonging(codes, span.offsets, [state], slice(None))
    answer.keys, answer.rows = state.margin.view(np.uint64), rows.astype(np.int64)
    if span.silent_rows:
        spoken = codes.any(axis=1)
        answer.keys, answer.rows = answer.keys[spoken], answer.rows[spoken]


def _places(span: Span, block: Block) -> slice:
    """Where the rows of a block stand in its span."""
    return slice(block.start - span.start, block.stop - span.start)


class Need:
    """What must be recomputed before orders can be carried out, by their place in the list."""

    def __init__(self, orders: Sequence[Order], states: Sequence[State], *, all_states: bool = False) -> None:
        """With ``all_states``, assignments are made again also for orders that do not change them."""
        self._orders = orders
        self._stacks: dict[tuple[int, ...], Stack] = {}
        rows = range(len(orders))
        self.reset = [i for i in rows if not states[i].precedes(orders[i])]
        """Not the assignment that the order starts from."""
        needed = [i for i in self.reset if all_states or cut_of(orders[i]) is not None]
        self.rebuild = {i: one for i in needed if (one := orders[i].previous) is not None}
        """How that is made again."""
        self.begun = {i: one for i in rows if isinstance(orders[i], Assign) and (one := orders[i].began) is not None}
        """How the assignment is made again that a round of two steps began with: it counts what the round moves."""
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
    waiting: Mapping[int, Waiting] = MappingProxyType({})
    """By problem, where its order foretells a band: the rows in there."""

    def advance(self, orders: Sequence[Order], answers: Sequence[Answer], need: Need) -> None:
        """Carry out the orders on these rows."""
        before = self._begun(orders, need)
        if need.reset:
            self._reset(need.reset, need.past, need.rebuild, orders)
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
            if isinstance(order, Foretell):
                self._foretell(order, state, answer)
            else:
                self._answer(order, state, answer, before.get(i))

    def _belong(self, stack: Stack, chosen: Sequence[int]) -> None:
        stack.belonging(self.block.codes, self.span.offsets, [self.states[i] for i in chosen], self.rows)

    def _reset(
        self, reset: Sequence[int], past: Stack | None, made: Mapping[int, Made], orders: Sequence[Order]
    ) -> None:
        """Make assignments again, where it is known how they were made; the others are blank."""
        blank: Any = np.int16(kernels.UNASSIGNED)
        if self.span.silent_rows:
            blank = np.where(self.block.codes.any(axis=1), blank, np.int16(kernels.SILENT))
        for i in reset:
            self.states[i].assignment[self.rows] = blank
        if past is not None:
            self._belong(past, list(made))
            for i, one in made.items():
                self._remake(one, self.states[i], orders[i])

    def _begun(self, orders: Sequence[Order], need: Need) -> dict[int, NDArray[np.int16]]:
        """The assignments that rounds of two steps began with, of orders that are the second step."""
        if need.origin is None:
            return {}
        states = [State(self.block.n_rows) for _ in orders]
        _Rows(self.span, self.block, slice(None), states)._reset(list(need.begun), need.origin, need.begun, orders)
        return {i: states[i].assignment for i in need.begun}

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

    def _answer(self, order: Order, state: State, answer: Answer, before: NDArray[np.int16] | None) -> None:
        """``before`` is the assignment that the round began with, where this is its second step."""
        keys, cut = state.margin[self.rows].view(np.uint64), cut_of(order)
        if cut is None:
            numbers = np.arange(self.block.start, self.block.stop)
            if self.span.silent_rows:
                spoken = state.assignment[self.rows] != kernels.SILENT
                keys, numbers = keys[spoken], numbers[spoken]
            _look(order, keys, numbers, answer)
            return
        assigned, moved = self._apply(state, cut, answer.delta)
        answer.assigned += assigned
        answer.moved += moved if before is None else int(np.count_nonzero(state.assignment[self.rows] != before))

    def _foretell(self, order: Foretell, state: State, answer: Answer) -> None:
        """Assign what lies above the band; what lies inside is kept, if there is room for it."""
        keys, numbers = state.margin[self.rows].view(np.uint64), np.arange(self.block.start, self.block.stop)
        spoken = state.assignment[self.rows] != kernels.SILENT if self.span.silent_rows else None
        _look(order, keys if spoken is None else keys[spoken], numbers, answer)
        inside = order.band.inside(keys, numbers)
        found = np.flatnonzero(inside if spoken is None else inside & spoken)
        best, before = state.best[self.rows][found], state.assignment[self.rows][found]
        part = Part(numbers[found], keys[found], best, before, self.block.codes.take(found, axis=0))
        assigned, moved = self._apply(state, order.band.above, answer.delta)
        answer.assigned += assigned
        answer.higher += int(np.count_nonzero(keys > np.uint64(order.band.above.key)))
        answer.inside += len(found)
        answer.held += self.waiting[order.problem].add(self.span, part, assigned, moved)


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


def _look(order: Order, keys: Keys, rows: Int, answer: Answer) -> None:
    """Count the margins that an order asks for, of rows that have labels."""
    if isinstance(order, Measure | Foretell):
        kernels.tally(keys, np.uint64(order.floor), np.uint64(FLOOR_SHIFT), answer.histogram)
    elif isinstance(order, Look):
        if order.band is not None:
            inside = order.band.inside(keys, rows)
            keys, rows = keys[inside], rows[inside]
        found = order.window.keys(keys, rows)
        if order.collect:
            answer.keys = np.concatenate((answer.keys, found))
        else:
            kernels.tally(found, np.uint64(order.window.low), np.uint64(order.window.shift), answer.histogram)


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
