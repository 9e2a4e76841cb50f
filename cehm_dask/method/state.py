"""What a worker keeps of one problem's rows between rounds, and when it is valid.

A cache: every order carries what is needed to recompute it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.span import Block, Span
from cehm_dask.method import kernels
from cehm_dask.method.cut import EVERY_ROW, Cut, Int, Keys, Places, Window
from cehm_dask.method.orders import Assign, Foretell, Order, Read

EVERYTHING = (EVERY_ROW.as_numbers[0], np.int64(0), EVERY_ROW.as_numbers[1])
"""The cut that all rows pass, as the kernel takes it."""


class State:
    """Assignment, winner and margin of some rows, stamped with the assignment and the weights they belong to."""

    def __init__(self, rows: int) -> None:
        self.assignment = np.full(rows, kernels.UNASSIGNED, np.int16)
        self.best = np.empty(rows, np.int16)
        self.margin = np.empty(rows, np.float64)
        self.exact = True
        """Whether all margins are; otherwise, those of rows that were passed over are no larger than they should be."""
        self.assigned = 0
        self.waiting: Waiting | None = None
        """Rows that wait for the second step of a foretold round."""
        self._step = -1
        self._table = -1

    # --- validity ------------------------------------------------------------------------------------------------

    def precedes(self, order: Order) -> bool:
        """Whether this is the assignment that an order starts from."""
        return self._step == order.step - 1

    def is_measured_for(self, order: Order) -> bool:
        """Whether winners and margins are those of an order's weights."""
        return self._table == order.table

    def is_measured_before(self, order: Order) -> bool:
        """Whether winners and margins are those of the weights before."""
        return self._table == order.table - 1

    def answers(self, order: Read) -> bool:
        """Whether this is the finished assignment that is to be read."""
        return self._step == order.step and self.is_measured_for(order)

    def settling(self, order: Order) -> "Settling | None":
        """How an order can be carried out on waiting rows alone, without reading any labels; None if it cannot."""
        if not isinstance(order, Assign) or self.waiting is None or not self.waiting.window.covers(order.cut):
            return None
        return Settling(self, order, self.waiting) if self.precedes(order) and self.is_measured_for(order) else None

    def begin(self) -> None:
        """Not valid until every block went through."""
        self._step = self._table = -1

    def end(self, order: Order, assigned: int) -> None:
        """Every block went through."""
        self._table = order.table
        self._step = order.step - 1
        if isinstance(order, Assign | Foretell | Read):
            self._step, self.assigned = order.step, assigned
            if not isinstance(order, Foretell):
                self.waiting = None  # the round is over


class Settling(NamedTuple):
    """The second step of a foretold round."""

    state: State
    order: Assign
    waiting: "Waiting"

    def settle(self, span: Span, delta: Int) -> tuple[int, int]:
        """Assign the waiting rows that the cut lets in; rows assigned in all, and rows moved in the whole round."""
        state = self.state
        state.begin()
        assigned = state.assigned + self.waiting.apply(span, state, self.order.cut, delta)
        moved = int(np.count_nonzero(state.assignment != self.waiting.before))
        state.end(self.order, assigned)
        return assigned, moved


class Waiting:
    """Rows of a span whose keys fell into a window, with their labels, between the two steps of a foretold round."""

    def __init__(self, window: Window, rows: int) -> None:
        self.window = window
        self.before = np.empty(rows, np.int16)
        """The assignment that the round began with, of all rows."""
        self._places: list[NDArray[np.intp]] = []
        self._codes: list[Any] = []

    @classmethod
    def of_no_rows(cls, rows: int) -> "Waiting":
        """None waits: only the assignment before is kept, of a round whose first step was made again."""
        return cls(Window(0, 0), rows)

    def add(self, block: Block, rows: slice, keys: Keys, spoken: Places | None) -> None:
        inside = self.window.inside(keys)
        found = np.flatnonzero(inside if spoken is None else inside & spoken)
        self._places.append(found + rows.start)
        self._codes.append(block.codes.take(found, axis=0))

    def apply(self, span: Span, state: State, cut: Cut, delta: Int) -> int:
        """Assign those that the cut lets in; all others are as a cut above the window left them."""
        places, codes = np.concatenate(self._places), np.concatenate(self._codes)
        keys = state.margin[places].view(np.uint64)
        let_in = cut.lets_in(keys, places + span.start)
        chosen = places[let_in]
        assignment = state.assignment[chosen]
        kernels.assign(codes[let_in], span.offsets, state.best[chosen], keys[let_in], *EVERYTHING, assignment, delta)
        state.assignment[chosen] = assignment
        return len(chosen)


class Stack:
    """The weights of several orders side by side, laid out once per span."""

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
