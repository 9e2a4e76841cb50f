"""Which rows a member is fitted on and labels, where each sees a share of them.

Below ``fit``. A row is drawn by a hash of its number and the member's seed, so every block, worker and run draws the
same rows without a list of them, whatever the number of rows. The share is met on average, not to the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.sources import Codes

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""Constants of SplitMix64 (Steele, Lea and Flood 2014)."""


def drawn(seed: int, share: float, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether the rows with these numbers are drawn: each with the probability ``share``.

    >>> int(drawn(0, 0.8, np.arange(1_000_000)).sum()) // 1000
    800
    """
    start = _mixed(np.array([seed * _STEP % 2**64], np.uint64))
    found = _mixed(start + rows.astype(np.uint64) * np.uint64(_STEP))
    return (found >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64; products wrap around."""
    state = (state ^ (state >> np.uint64(30))) * _FIRST
    state = (state ^ (state >> np.uint64(27))) * _SECOND
    return state ^ (state >> np.uint64(31))


@dataclass(frozen=True)
class Subsample:
    """The draws of all members."""

    share: float
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, share: float | None, seeds: Sequence[int]) -> "Subsample | None":
        """None where members label all rows."""
        return None if share is None else cls(share, tuple(seeds))

    def silence(self, codes: Codes, first_row: int) -> None:
        """Make the labels of rows that were not drawn missing ones, in place."""
        rows = np.arange(first_row, first_row + len(codes))
        for j, seed in enumerate(self.seeds):
            codes[~drawn(seed, self.share, rows), j] = 0
