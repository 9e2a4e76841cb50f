"""Compiled loops of the profiles: sums, extremes and histograms of every column, by cluster, row after row.

Bins of a histogram are fixed before a row is read, and need no range: a step on either side of a centre, as wide as a
32nd of the unit beside it and wider with the distance, by the same share of it. Counts add up in any order.
"""

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.jit import jit

STEP_BITS = 5
"""Of the mantissa: so a bin is a 32nd as wide as its distance from the centre, or narrower."""
OCTAVES = 16
"""Distances of up to 65,536 units are told apart; further values count in the last bin."""
SIDE = OCTAVES << STEP_BITS
"""Bins on one side of the centre."""
BINS = 2 * SIDE

_DROPPED = np.int64(52 - STEP_BITS)
_ONE = np.int64(1023 << 52)
"""The bits of 1.0."""


@jit
def totals(values, labels, centre, counts, sums, low, high):  # type: ignore[no-untyped-def]
    """Add up how far finite values lie from the centre, by cluster and column; rows with a label below 0 are left out.

    Sums about 0 would lose the digits of values that are far from it and near one another.

    Parameters
    ----------
    values : (rows, columns) float64
    labels : (rows,) int64
    centre : (columns,) float64
    counts, sums, low, high : (clusters, columns) int64 and float64
        Changed in place.
    """
    for r in range(values.shape[0]):
        c = labels[r]
        if c < 0:
            continue
        for j in range(values.shape[1]):
            value = values[r, j]
            if np.isfinite(value):
                counts[c, j] += 1
                sums[c, j] += value - centre[j]
                low[c, j] = min(low[c, j], value)
                high[c, j] = max(high[c, j], value)


@jit
def spreads(values, labels, means, centre, per_unit, squares, bins):  # type: ignore[no-untyped-def]
    """Add up squares about the means of every cluster and column, and count values by bin.

    Means are from the centre on. ``centre`` and ``per_unit`` (1 / unit) are by column; ``squares`` and ``bins``
    (clusters, columns, BINS) are changed in place.
    """
    for r in range(values.shape[0]):
        c = labels[r]
        if c < 0:
            continue
        for j in range(values.shape[1]):
            value = values[r, j]
            if np.isfinite(value):
                off = value - centre[j]
                distance = off * per_unit[j]
                off -= means[c, j]
                squares[c, j] += off * off
                key = (np.float64(1.0 + abs(distance)).view(np.int64) - _ONE) >> _DROPPED
                key = min(key, np.int64(SIDE - 1))
                bins[c, j, SIDE + key if distance >= 0 else SIDE - 1 - key] += 1


def bin_edges() -> NDArray[np.float64]:
    """Where bins begin and end, in units from the centre: one more than there are bins."""
    steps = np.arange(SIDE + 1)
    octave, part = np.divmod(steps, 1 << STEP_BITS)
    distance = np.ldexp(1.0 + part / (1 << STEP_BITS), octave) - 1.0
    return np.concatenate([-distance[::-1], distance[1:]])
