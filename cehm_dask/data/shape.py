"""The shape of a label matrix, as far as a budget depends on it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_COMPARED = 1 << 12
"""Base clusters up to which every two are compared. Beyond, those of some members are: the tables and the searches in
them are quadratic, and with 1,000 members a consensus took 45 s and 3.8 GB of them."""

COMPARED = 1 << 11
"""Slots of the members that are compared, where not all are."""

FEWEST_MEMBERS = 30
"""Members that are compared at least, whatever their slots."""

FEWEST_A_CLUSTER = 4
"""Slots that are compared, for every cluster wanted; with fewer, all members are."""


def compares_all(widths: Sequence[int], silent: bool, n_clusters: int) -> bool:
    """Whether every two base clusters are compared."""
    few = sum(widths) - silent * len(widths) <= MOST_COMPARED or len(widths) <= FEWEST_MEMBERS
    return few or FEWEST_A_CLUSTER * n_clusters > COMPARED


def compared_members(widths: Sequence[int], silent: bool, n_clusters: int, seed: int) -> NDArray[np.intp] | None:
    """Members whose base clusters are compared with one another, ascending; drawn by the seed. None: all.

    >>> compared_members([10] * 30, False, 10, seed=0) is None
    True
    >>> len(compared_members([10] * 1000, False, 10, seed=0))
    204
    """
    if compares_all(widths, silent, n_clusters):
        return None
    order = np.random.default_rng([seed, len(widths)]).permutation(len(widths))
    fit = int(np.searchsorted(np.cumsum(np.asarray(widths)[order]), COMPARED, side="right"))
    return np.sort(order[: max(FEWEST_MEMBERS, fit)])


@dataclass(frozen=True)
class Shape:
    """What the budget needs to know of a label matrix."""

    n_samples: int
    row_bytes: int
    """Bytes of one row of labels as it is read."""
    n_slots: int
    read_rows: int | None
    """Rows read in one go from a store; None for an array in memory."""
    align_rows: int
    """Spans begin at multiples of this, so that each writes whole shards."""
    edges: tuple[int, ...] | None = None
    """Spans begin at some of these, where rows lie in chunks with workers."""
    widths: tuple[int, ...] = ()
    """Slots of each member; none given: every two slots are compared."""
    silent: bool = False
    """Whether each member has a slot for missing labels."""

    def compared_slots(self, n_clusters: int) -> int:
        """Most slots that are compared with one another, whatever members are drawn."""
        if compares_all(self.widths, self.silent, n_clusters):
            return self.n_slots
        return min(self.n_slots, max(COMPARED, sum(sorted(self.widths)[-FEWEST_MEMBERS:])))
