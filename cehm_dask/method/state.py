"""What a worker keeps of one problem's rows between sweeps, and when it is valid.

A cache: every order carries what is needed to recompute it. The state of all rows is kept where it fits; the few rows
near a cut, between the two steps of a round, always.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.span import Span
from cehm_dask.method import kernels
from cehm_dask.method.cut import EVERY_ROW, Int, Keys
from cehm_dask.method.orders import Assign, Foretell, Look, Order, Read

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

    def begin(self) -> None:
        """Not valid until every block went through."""
        self._step = self._table = -1

    def end(self, order: Order) -> None:
        """Every block went through."""
        self._table = order.table
        self._step = order.step if isinstance(order, Assign | Foretell | Read) else order.step - 1


class Part(NamedTuple):
    """The rows of one block that wait."""

    rows: Int
    """Row numbers in the whole matrix."""
    keys: Keys
    best: NDArray[np.int16]
    before: NDArray[np.int16]
    """The assignment that the round began with."""
    codes: Any

    @property
    def nbytes(self) -> int:
        return int(sum(array.nbytes for array in self))


class Waiting:
    """Rows of a span that lie in a band, with all that the second step of a foretold round needs of them."""

    def __init__(self, order: Foretell) -> None:
        self.band = order.band
        self._step, self._table = order.step, order.table
        self._assigned = 0
        """Rows above the band."""
        self._moved = 0
        """Rows outside the band that are not where they were when the round began."""
        self._parts: list[Part] = []
        self._overflown = self._whole = False

    def add(self, span: Span, part: Part, assigned: int, moved: int) -> int:
        """Take up a block, with its rows above the band and those that have moved; rows kept, or none if too many."""
        self._assigned += assigned
        # Those in the band are in no cluster for now, and were counted as moved if they had one.
        self._moved += moved - int(np.count_nonzero(part.before != kernels.UNASSIGNED))
        if self._overflown or not span.hold(part.nbytes):
            self._overflown = True
            self.let_go(span)
            return 0
        self._parts.append(part)
        return len(part.rows)

    def let_go(self, span: Span) -> None:
        """Make room."""
        span.hold(-sum(part.nbytes for part in self._parts))
        self._parts.clear()
        self._whole = False

    def end(self) -> None:
        """Every block went through."""
        self._whole = not self._overflown

    def answers(self, order: Order) -> bool:
        """Whether an order can be carried out on these rows alone, without reading any labels."""
        made = order.previous
        if not self._whole:
            return False
        if (order.step, order.table) != (self._step + 1, self._table) or made is None or made.cut != self.band.above:
            return False
        if isinstance(order, Look):
            return order.band == self.band
        return isinstance(order, Assign) and self.band.covers(order.cut)

    def looked_at(self) -> tuple[Keys, Int]:
        """Keys and row numbers."""
        keys = np.concatenate([np.empty(0, np.uint64), *(part.keys for part in self._parts)])
        return keys, np.concatenate([np.empty(0, np.int64), *(part.rows for part in self._parts)])

    def settle(self, span: Span, order: Assign, delta: Int, state: State | None) -> tuple[int, int]:
        """Assign those that the cut lets in; rows of the span assigned, and rows moved in the whole round."""
        assigned, moved = self._assigned, self._moved
        if state is not None:
            state.begin()
        for part in self._parts:
            let_in = order.cut.lets_in(part.keys, part.rows)
            found = np.where(let_in, part.best, np.int16(kernels.UNASSIGNED))
            kernels.count(part.codes, span.offsets, found, delta)
            assigned += int(np.count_nonzero(let_in))
            moved += int(np.count_nonzero(found != part.before))
            if state is not None:
                state.assignment[part.rows - span.start] = found
        if state is not None:
            state.end(order)
        return assigned, moved


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
