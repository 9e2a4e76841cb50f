"""Orders and answers: all that the coordinator and the row blocks say to each other.

Each problem gives one order per sweep. An order carries the weights of its round and how the assignment before was
made, so any worker can carry it out, whatever it has cached. Answers are small and add up in any order.

============  ==========================================================  =============================
order         what a block does                                           answer
============  ==========================================================  =============================
``Pilot``     margins of a cached sample of rows                          their keys and rows
``Measure``   winners and margins of all rows                             histogram
``Look``      nothing new: looks at the margins it has                    histogram or keys of a window
``Assign``    assigns the rows that a cut lets in                         change of C, rows moved
``Foretell``  ``Measure``, assigns above a band and caches the rows       histogram, change of C
              inside it
``Read``      reads the assignment of a finished round out                (the rows themselves)
============  ==========================================================  =============================
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.confidence import Gauge
from cehm_dask.method.cut import EVERY_ROW, Band, Cut, Int, Keys, Window

Floats = NDArray[np.float64]


class Made(NamedTuple):
    """How an assignment was made: it is a pure function of the labels and these two."""

    weights: Floats
    """W, one row per slot."""
    cut: Cut


class Passing(NamedTuple):
    """Which rows may be passed over, because what they would answer is known."""

    drift: float
    """No lead has changed by more since the weights before."""
    sure: float = 0.0
    """No cut will fall above this margin, so that larger ones need not be known exactly."""


@dataclass(frozen=True, eq=False)
class Order:
    """What one problem asks of every row block in one sweep; one of the kinds below."""

    problem: int
    clusters: int
    step: int
    """Number of the assignment this order works towards; it starts from the one before."""
    table: int
    """Number of the weights."""
    weights: Floats
    """W, one row per slot."""
    previous: Made | None
    """How the assignment it starts from was made; None where nothing was assigned yet."""
    began: Made | None
    """How the assignment was made that the round began with, where this order is the second step of a round."""


@dataclass(frozen=True, eq=False)
class Pilot(Order):
    """Margins of a cached sample of rows, and which rows they are."""


@dataclass(frozen=True, eq=False)
class Measure(Order):
    """Winners and margins of all rows, and a histogram of the margins from the key ``floor`` on."""

    floor: int
    passing: Passing | None = None


@dataclass(frozen=True, eq=False)
class Look(Order):
    """A closer look into a window of the margins measured: a histogram, or with ``collect`` the keys themselves."""

    window: Window
    collect: bool = False
    band: Band | None = None
    """Only rows in there are looked at; None: all."""


@dataclass(frozen=True, eq=False)
class Assign(Order):
    """Every row that the cut lets in to its winner, all others to none."""

    cut: Cut
    passing: Passing | None = None


@dataclass(frozen=True, eq=False)
class Foretell(Order):
    """``Measure`` and ``Assign`` in one, where the cut will fall into a band: what is inside waits, cached."""

    floor: int
    band: Band
    passing: Passing | None = None


@dataclass(frozen=True, eq=False)
class Read(Order):
    """The assignment of a finished round, for the result."""

    cut: Cut
    lead: Floats | None = None
    """Reported margins are multiplied by that of the winner; None: they are leads in shares or counts already."""
    singled: tuple[tuple[int, int], ...] = ()
    """Rows, and the clusters they were put into one by one."""
    gauge: Gauge | None = None
    """For the confidence of every sample."""


def reads_labels(order: Order) -> bool:
    """Whether an order needs the labels where workers cache their state; the others only look at that state."""
    return not isinstance(order, Pilot | Look)


def passing_of(order: Order) -> Passing | None:
    """Which rows an order may pass over."""
    return order.passing if isinstance(order, Measure | Assign | Foretell) else None


def cut_of(order: Order) -> Cut | None:
    """The cut an order assigns by, if it assigns."""
    if isinstance(order, Foretell):
        return order.band.above
    return order.cut if isinstance(order, Assign | Read) else None


def lets_in_all(order: Order) -> bool:
    """Whether an order is the last step of a round that assigns every row; the first step has more to count."""
    return isinstance(order, Assign | Read) and order.cut == EVERY_ROW


def _nothing() -> Int:
    return np.zeros(0, np.int64)


@dataclass(eq=False)
class Answer:
    """What row blocks report for one order; what was not asked for is empty."""

    histogram: Int = field(default_factory=_nothing)
    keys: Keys = field(default_factory=lambda: np.zeros(0, np.uint64))
    rows: Int = field(default_factory=_nothing)
    """Row numbers that the keys belong to, where a sample is asked for."""
    delta: Int = field(default_factory=_nothing)
    """Change of C."""
    assigned: int = 0
    moved: int = 0
    higher: int = 0
    """Rows with a larger key than the cut above a band."""
    inside: int = 0
    """Rows in the band."""
    held: int = 0
    """How many of them the workers could keep."""

    def __add__(self, other: "Answer") -> "Answer":
        return Answer(
            self.histogram + other.histogram,
            np.concatenate((self.keys, other.keys)),
            np.concatenate((self.rows, other.rows)),
            self.delta + other.delta,
            self.assigned + other.assigned,
            self.moved + other.moved,
            self.higher + other.higher,
            self.inside + other.inside,
            self.held + other.held,
        )


def combine(answers: Sequence[list[Answer]]) -> list[Answer]:
    """Sum the answers of several spans, order by order; the answers themselves stay as they are."""
    return [reduce(operator.add, of_order) for of_order in zip(*answers, strict=True)]
