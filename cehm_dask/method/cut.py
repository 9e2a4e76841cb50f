"""The cut: which samples a round assigns, found from histograms of the bits of their margins. Pure.

Margins are never negative, so their bits, read as integers (*keys*), are ordered as they are. A *window* is a range of
keys whose histogram is looked at more closely until the cut is one key, and on a tie one row number. A *band* is what
lies between two cuts: where a cut is expected.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method import kernels

Int = NDArray[np.int64]
Keys = NDArray[np.uint64]
Places = NDArray[np.bool_]

FLOOR_SHIFT = 44
"""Bits dropped in a histogram of all margins: sixteen octaves below the largest possible one, in bins of equal bits."""


@dataclass(frozen=True)
class Cut:
    """Which rows are assigned: keys above ``key``, on a tie row numbers up to and including ``last_row``."""

    key: int
    last_row: int

    @property
    def as_numbers(self) -> tuple[np.uint64, np.int64]:
        """As the compiled loop takes it."""
        return np.uint64(self.key), np.int64(self.last_row)

    def lets_in(self, keys: Keys, rows: NDArray[np.integer]) -> Places:
        """Which of some rows it lets in; the compiled loop that assigns whole blocks applies the same test."""
        key, last_row = self.as_numbers
        return np.asarray((keys > key) | ((keys == key) & (rows <= last_row)))

    @property
    def order(self) -> tuple[int, int]:
        """Of two cuts, the one with the larger order lets in all that the other does."""
        return -self.key, self.last_row


EVERY_ROW = Cut(0, np.iinfo(np.int64).max)


def key_of(margin: float) -> int:
    """Bits of a margin."""
    return int(np.float64(margin).view(np.uint64))


def margin_of(key: int) -> float:
    """The margin with these bits."""
    return float(np.uint64(key).view(np.float64))


NO_ROW = Cut(key_of(inf), -1)


@dataclass(frozen=True)
class Band:
    """What lies between two cuts: rows that ``below`` lets in and ``above`` does not."""

    above: Cut
    below: Cut

    def inside(self, keys: Keys, rows: NDArray[np.integer]) -> Places:
        """Which of some rows lie in the band."""
        return self.below.lets_in(keys, rows) & ~self.above.lets_in(keys, rows)

    def covers(self, cut: Cut) -> bool:
        """Whether rows of the band are all that this cut lets in beyond those above the band."""
        return self.above.order <= cut.order <= self.below.order

    def last_row(self, key: int) -> int:
        """Of the rows with this key."""
        return self.below.last_row if key == self.below.key else EVERY_ROW.last_row


@dataclass(frozen=True, eq=False)
class Window:
    """A range of keys (low ≤ key < high); with ``tied``, of row numbers among margins with those bits."""

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

    def inside(self, keys: Keys) -> Places:
        """Which keys lie in the window."""
        return (keys >= np.uint64(self.low)) & (keys < np.uint64(self.high))

    def keys(self, margins: Keys, rows: Int) -> Keys:
        """The keys inside the window, of some rows."""
        found = margins if self.tied is None else rows[margins == np.uint64(self.tied)].view(np.uint64)
        return found[self.inside(found)]


def window_of_bin(floor: int, number: int) -> Window:
    """The window that one bin of a histogram of all margins counts; its lowest bin reaches down to 0."""
    return Window(floor + (number << FLOOR_SHIFT) if number else 0, floor + ((number + 1) << FLOOR_SHIFT))


def floor_of(largest: float) -> int:
    """The first key of a histogram of all margins, if none exceeds ``largest``."""
    return max(0, key_of(largest) - ((kernels.BINS - 1) << FLOOR_SHIFT))


def from_above(histogram: Int, wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th largest, and its rank from above inside that bin."""
    above = np.cumsum(histogram[::-1])
    place = int(np.searchsorted(above, wanted))
    number = len(histogram) - 1 - place
    return number, wanted - int(above[place] - histogram[number])


def cut_of_rank(keys: Keys, rows: Int, rank: int) -> Cut:
    """The cut that exactly ``rank`` of some rows pass: largest keys first, lower row numbers first on a tie."""
    if rank < 1:
        return NO_ROW
    if rank > len(keys):
        return EVERY_ROW
    key = np.partition(keys, len(keys) - rank)[len(keys) - rank]
    place = rank - 1 - int(np.count_nonzero(keys > key))
    return Cut(int(key), int(np.partition(rows[keys == key], place)[place]))


def from_below(histogram: Int, wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th smallest, and its rank inside that bin."""
    below = np.cumsum(histogram)
    number = int(np.searchsorted(below, wanted))
    return number, wanted - int(below[number] - histogram[number])
