"""Compiled loops that count samples: in two hyperedges, in the clusters of two partitions."""

import numpy as np

from cehm_dask.method.jit import jit

_U = np.uint64


@jit
def intersections(codes, offsets, table, known=0):  # type: ignore[no-untyped-def]
    """Add the block's hyperedge intersections to the upper triangle of ``table``.

    Parameters
    ----------
    codes : (rows, members) uint8, uint16 or uint32
    offsets : (members,) uint64
        Slot of each member's code 0.
    table : (slots, slots) int32
        Changed in place: ``table[c, d] += |c ∩ d|`` for slots of members i < j, and sizes on the diagonal.
    known : int
        Members that come first and are not compared with one another, because those intersections are known.
    """
    rows, members = codes.shape
    strip = 2048
    group = _U(8)  # eight columns of counters at a time stay in the first-level cache
    slots = np.empty((strip, members), np.uint32)
    for first in range(0, rows, strip):
        height = min(strip, rows - first)
        for r in range(_U(height)):
            for j in range(_U(members)):
                slot = _U(codes[_U(first) + r, j]) + offsets[j]
                slots[r, j] = slot
                table[slot, slot] += np.int32(1)
        for i in range(_U(members)):
            for j0 in range(max(i + _U(1), _U(known)), _U(members), group):
                j1 = min(_U(members), j0 + group)
                for r in range(_U(height)):
                    counters = table[_U(slots[r, i])]
                    for j in range(j0, j1):
                        counters[_U(slots[r, j])] += np.int32(1)


@jit
def weighted_intersections(codes, offsets, weights, table):  # type: ignore[no-untyped-def]
    """As :func:`intersections`, with a whole number per row in place of 1; ``table`` and ``weights`` are int64."""
    rows, members = codes.shape
    strip = 2048
    group = _U(4)
    slots = np.empty((strip, members), np.uint32)
    for first in range(0, rows, strip):
        height = min(strip, rows - first)
        for r in range(_U(height)):
            for j in range(_U(members)):
                slot = _U(codes[_U(first) + r, j]) + offsets[j]
                slots[r, j] = slot
                table[slot, slot] += weights[_U(first) + r]
        for i in range(_U(members)):
            for j0 in range(i + _U(1), _U(members), group):
                j1 = min(_U(members), j0 + group)
                for r in range(_U(height)):
                    sums = table[_U(slots[r, i])]
                    weight = weights[_U(first) + r]
                    for j in range(j0, j1):
                        sums[_U(slots[r, j])] += weight


# The three widths are written out: accumulators must be separate scalars to live in registers. An array of
# accumulators indexed in the loop is two to three times slower.


@jit
def contingency(rows, columns, table):  # type: ignore[no-untyped-def]
    """Count the samples of every two clusters into ``table`` (int64); labels (n,) int16, below 0: in none."""
    for r in range(_U(rows.size)):
        if rows[r] >= 0 and columns[r] >= 0:
            table[_U(rows[r]), _U(columns[r])] += 1
