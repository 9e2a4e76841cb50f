"""The cut: which samples a round assigns, found from histograms of the bits of their margins. Pure.

Margins are never negative, so their bits, read as integers (*keys*), are ordered as they are. A *window* is a range of
keys whose histogram is looked at more closely until the cut is one key, and on a tie one row number.
"""

from dataclasses import dataclass

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


EVERY_ROW = Cut(0, np.iinfo(np.int64).max)


def key_of(margin: float) -> int:
    """Bits of a margin."""
    return int(np.float64(margin).view(np.uint64))


def margin_of(key: int) -> float:
    """The margin with these bits."""
    return float(np.uint64(key).view(np.float64))


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

    def covers(self, cut: Cut) -> bool:
        return self.low <= cut.key < self.high

    def inside(self, keys: Keys) -> Places:
        """Which keys lie in the window."""
        return (keys >= np.uint64(self.low)) & (keys < np.uint64(self.high))

    def keys(self, margins: Keys, spoken: Places | None, first_row: int) -> Keys:
        """The keys inside the window, of one block; rows without any label have none."""
        if self.tied is not None:
            tied = margins == np.uint64(self.tied)
            found = np.flatnonzero(tied if spoken is None else tied & spoken).astype(np.uint64) + np.uint64(first_row)
        else:
            found = margins if spoken is None else margins[spoken]
        return found[self.inside(found)]


def window_of_bin(floor: int, number: int) -> Window:
    """The window that one bin of a histogram of all margins counts; its lowest bin reaches down to 0."""
    return windows_of_bins(floor, number, number)


def windows_of_bins(floor: int, low: int, high: int) -> Window:
    """The window of several neighbouring bins, ``high`` included."""
    return Window(floor + (low << FLOOR_SHIFT) if low else 0, floor + ((high + 1) << FLOOR_SHIFT))


def floor_of(largest: float) -> int:
    """The first key of a histogram of all margins, if none exceeds ``largest``."""
    return max(0, key_of(largest) - ((kernels.BINS - 1) << FLOOR_SHIFT))


def from_above(histogram: Int, wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th largest, and its rank from above inside that bin."""
    above = np.cumsum(histogram[::-1])
    place = int(np.searchsorted(above, wanted))
    number = len(histogram) - 1 - place
    return number, wanted - int(above[place] - histogram[number])


def from_below(histogram: Int, wanted: int) -> tuple[int, int]:
    """The bin that holds the ``wanted``-th smallest, and its rank inside that bin."""
    below = np.cumsum(histogram)
    number = int(np.searchsorted(below, wanted))
    return number, wanted - int(below[number] - histogram[number])
