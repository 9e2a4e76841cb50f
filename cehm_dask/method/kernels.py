"""Compiled loops: one row block and small arrays in, small arrays out.

Every stage, on every scheduler, comes down to these functions and those of ``counting``. A block of codes *is* the
sparse incidence matrix H: row ``r`` lies in the hyperedges at the slots ``offsets[j] + codes[r, j]``. Slots of missing
labels carry zero weight, so no loop branches on them.

Sums over members run in member order inside a row and counts are integers: blocks, threads and machines cannot change a
bit of the result. ``fastmath`` would give that up, so it stays off.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.jit import jit

LANES = 4
"""Accumulators that share a vector; columns of weights are summed in one, two or three such groups."""

WIDEST = 3 * LANES
"""Columns summed in one go over the members; fixed widths keep one compiled, disk-cached kernel for every k."""

STRIP = 256
"""Rows whose sums and running top two stay in the first-level cache."""

CACHE_LINE = 64

BINS = 4096
"""Bins of a margin histogram."""

UNASSIGNED = -1
SILENT = -2
"""Assignment of a row that no member says anything about."""

_U = np.uint64


@jit
def _sum_4(codes, offsets, weights, sums):  # type: ignore[no-untyped-def]
    members = _U(codes.shape[1])
    for r in range(_U(codes.shape[0])):
        b0 = 0.0
        b1 = 0.0
        b2 = 0.0
        b3 = 0.0
        for j in range(members):
            slot = _U(codes[r, j]) + offsets[j]
            b0 += weights[slot, _U(0)]
            b1 += weights[slot, _U(1)]
            b2 += weights[slot, _U(2)]
            b3 += weights[slot, _U(3)]
        sums[_U(0), r] = b0
        sums[_U(1), r] = b1
        sums[_U(2), r] = b2
        sums[_U(3), r] = b3


@jit
def _sum_8(codes, offsets, weights, sums):  # type: ignore[no-untyped-def]
    members = _U(codes.shape[1])
    for r in range(_U(codes.shape[0])):
        b0 = 0.0
        b1 = 0.0
        b2 = 0.0
        b3 = 0.0
        b4 = 0.0
        b5 = 0.0
        b6 = 0.0
        b7 = 0.0
        for j in range(members):
            slot = _U(codes[r, j]) + offsets[j]
            b0 += weights[slot, _U(0)]
            b1 += weights[slot, _U(1)]
            b2 += weights[slot, _U(2)]
            b3 += weights[slot, _U(3)]
            b4 += weights[slot, _U(4)]
            b5 += weights[slot, _U(5)]
            b6 += weights[slot, _U(6)]
            b7 += weights[slot, _U(7)]
        sums[_U(0), r] = b0
        sums[_U(1), r] = b1
        sums[_U(2), r] = b2
        sums[_U(3), r] = b3
        sums[_U(4), r] = b4
        sums[_U(5), r] = b5
        sums[_U(6), r] = b6
        sums[_U(7), r] = b7


@jit
def _sum_12(codes, offsets, weights, sums):  # type: ignore[no-untyped-def]
    members = _U(codes.shape[1])
    for r in range(_U(codes.shape[0])):
        b0 = 0.0
        b1 = 0.0
        b2 = 0.0
        b3 = 0.0
        b4 = 0.0
        b5 = 0.0
        b6 = 0.0
        b7 = 0.0
        b8 = 0.0
        b9 = 0.0
        b10 = 0.0
        b11 = 0.0
        for j in range(members):
            slot = _U(codes[r, j]) + offsets[j]
            b0 += weights[slot, _U(0)]
            b1 += weights[slot, _U(1)]
            b2 += weights[slot, _U(2)]
            b3 += weights[slot, _U(3)]
            b4 += weights[slot, _U(4)]
            b5 += weights[slot, _U(5)]
            b6 += weights[slot, _U(6)]
            b7 += weights[slot, _U(7)]
            b8 += weights[slot, _U(8)]
            b9 += weights[slot, _U(9)]
            b10 += weights[slot, _U(10)]
            b11 += weights[slot, _U(11)]
        sums[_U(0), r] = b0
        sums[_U(1), r] = b1
        sums[_U(2), r] = b2
        sums[_U(3), r] = b3
        sums[_U(4), r] = b4
        sums[_U(5), r] = b5
        sums[_U(6), r] = b6
        sums[_U(7), r] = b7
        sums[_U(8), r] = b8
        sums[_U(9), r] = b9
        sums[_U(10), r] = b10
        sums[_U(11), r] = b11


@jit
def belonging(codes, offsets, weights, first_column, best, margin):  # type: ignore[no-untyped-def]
    """Belonging degrees of every row for several problems, reduced to the winner and its lead.

    Parameters
    ----------
    codes : (rows, members) uint8, uint16 or uint32
    offsets : (members,) uint64
    weights : (groups, slots, width) float64
    first_column : (problems + 1,) int64
        The tables W of all problems, as :func:`side_by_side` lays them out.
    best : (problems, rows) int16
        Out: the hyperedge with the largest belonging, the lowest on a tie.
    margin : (problems, rows) float64
        Out: how far it leads the second largest; how large it is, if it is the only one.
    """
    rows = codes.shape[0]
    columns = first_column[-1]
    sums = np.zeros((WIDEST, STRIP))
    top = np.empty(STRIP)
    second = np.empty(STRIP)
    winner = np.empty(STRIP, np.int64)
    for first in range(0, rows, STRIP):
        strip = codes[first : first + STRIP]
        p = 0
        for column in range(columns):
            i = column % WIDEST
            if i == 0:
                table = weights[column // WIDEST]
                width = min(WIDEST, columns - column)
                if width > 8:
                    _sum_12(strip, offsets, table, sums)
                elif width > 4:
                    _sum_8(strip, offsets, table, sums)
                else:
                    _sum_4(strip, offsets, table, sums)
            e = column - first_column[p]
            if e == 0:
                top[:] = -1.0
                second[:] = 0.0
                winner[:] = 0
            # All STRIP rows, whatever the height: a constant length is vectorised, the rest is unused.
            for r in range(_U(STRIP)):
                b = sums[_U(i), r]
                t = top[r]
                lesser = b if b < t else t
                second[r] = lesser if lesser > second[r] else second[r]
                winner[r] = e if b > t else winner[r]
                top[r] = b if b > t else t
            if column + 1 == first_column[p + 1]:
                for r in range(_U(strip.shape[0])):
                    best[p, _U(first) + r] = winner[r]
                    margin[p, _U(first) + r] = top[r] - second[r]
                p += 1


@jit
def degrees(codes, offsets, weights, out):  # type: ignore[no-untyped-def]
    """Belonging degrees themselves, ``out[r, e] = sum_j weights[slot(r, j), e]`` in member order.

    Only for results that are n × k by nature (soft membership); the stages use :func:`belonging`.
    """
    rows, members = codes.shape
    for r in range(_U(rows)):
        sums = out[r]
        sums[:] = 0.0
        for j in range(_U(members)):
            row = weights[_U(codes[r, j]) + offsets[j]]
            for e in range(_U(weights.shape[1])):
                sums[e] += row[e]


@jit
def confidence(codes, offsets, weights, columns, quarters, labels, out):  # type: ignore[no-untyped-def]
    """How likely the cluster of a row is the right one: its share of the labels, sharpened, among those of all.

    Powers are made of square roots and products, which every machine rounds alike; a ``pow`` of a library need not.

    Parameters
    ----------
    codes : (rows, members) uint8, uint16 or uint32
    offsets : (members,) uint64
    weights : (groups, slots, width) float64
        One table as :func:`side_by_side` lays it out: a column of ones where a label says something, then a column of
        shares for each cluster.
    columns : int
        1 + the number of clusters.
    quarters : (members + 1,) int64
        Four times the exponent of a row with so many labels, below 64; 0 for none.
    labels : (rows,) int16
        Cluster of each row; below 0: in none.
    out : (rows,) float64
        Out: 0 to 1; 0 for rows without labels or cluster.
    """
    rows = codes.shape[0]
    sums = np.zeros((WIDEST, STRIP))
    scale = np.zeros(STRIP)
    power = np.zeros(STRIP, np.int64)
    total = np.empty(STRIP)
    own = np.empty(STRIP)
    cluster = np.empty(STRIP, np.int64)
    for first in range(0, rows, STRIP):
        strip = codes[first : first + STRIP]
        height = strip.shape[0]
        total[:] = 0.0
        own[:] = 0.0
        cluster[:] = -1
        for r in range(height):
            cluster[r] = labels[first + r]
        for column in range(columns):
            i = column % WIDEST
            if i == 0:
                table = weights[column // WIDEST]
                width = min(WIDEST, columns - column)
                if width > 8:
                    _sum_12(strip, offsets, table, sums)
                elif width > 4:
                    _sum_8(strip, offsets, table, sums)
                else:
                    _sum_4(strip, offsets, table, sums)
            if column == 0:
                for r in range(height):
                    power[r] = quarters[np.int64(sums[0, r])]
                    scale[r] = 1.0 / max(sums[0, r], 1.0)
                continue
            # All STRIP rows, as in belonging; sums of rows beyond the height are what an earlier strip left. The six
            # bits of an exponent are written out, for straight-line code becomes vectors and a loop does not.
            e = column - 1
            for r in range(_U(STRIP)):
                q = power[r]
                b = np.sqrt(np.sqrt(sums[_U(i), r] * scale[r]))
                raised = b if q & 1 else 1.0
                b *= b
                raised *= b if q & 2 else 1.0
                b *= b
                raised *= b if q & 4 else 1.0
                b *= b
                raised *= b if q & 8 else 1.0
                b *= b
                raised *= b if q & 16 else 1.0
                b *= b
                raised *= b if q & 32 else 1.0
                total[r] += raised
                own[r] = raised if cluster[r] == e else own[r]
        for r in range(height):
            # No label: exponent 0. The shares of a label add up to 1, unless its samples are in no cluster.
            spoken = power[r] > 0 and total[r] > 0.0
            out[first + r] = own[r] / total[r] if spoken else 0.0


@jit
def tally(keys, low, shift, histogram):  # type: ignore[no-untyped-def]
    """Count ``keys`` (uint64) into ``histogram``: bin ``(key - low) >> shift``, smaller keys into bin 0."""
    last = _U(histogram.size - 1)
    for r in range(_U(keys.size)):
        key = keys[r]
        distance = (key - low) >> shift if key > low else _U(0)
        histogram[distance if distance < last else last] += 1


@jit
def assign(codes, offsets, best, keys, cut, first_row, last_row, assignment, delta):  # type: ignore[no-untyped-def]
    """Apply a cut to one problem's margins and count only what changes.

    A row is assigned if its margin's bits exceed ``cut``, or equal it and its row number is at most ``last_row``.

    Parameters
    ----------
    codes, offsets
        As in :func:`belonging`.
    best : (rows,) int16
    keys : (rows,) uint64
        The margins' bits; margins are never negative, so the bits are ordered as the margins are.
    cut : uint64
    first_row, last_row : int64
        Row number of the block's first row; last row number that is let in on a tie.
    assignment : (rows,) int16
        Changed in place; rows that are SILENT stay so.
    delta : (slots, clusters) int64
        Changed in place: the change of C = HᵀA.

    Returns
    -------
    assigned, moved : int64
        Rows assigned now; rows whose assignment differs from before.
    """
    members = codes.shape[1]
    assigned = 0
    moved = 0
    for r in range(_U(best.size)):
        old = assignment[r]
        if old == SILENT:
            continue
        inside = keys[r] > cut or (keys[r] == cut and first_row + np.int64(r) <= last_row)
        new = best[r] if inside else np.int16(UNASSIGNED)
        if inside:
            assigned += 1
        if new == old:
            continue
        moved += 1
        assignment[r] = new
        for j in range(_U(members)):
            slot = _U(codes[r, j]) + offsets[j]
            if old >= 0:
                delta[slot, _U(old)] -= 1
            if new >= 0:
                delta[slot, _U(new)] += 1
    return assigned, moved


@jit
def count(codes, offsets, assignment, table):  # type: ignore[no-untyped-def]
    """Add C = HᵀA of an assignment (rows,) int16, below 0: in no cluster, to ``table`` (slots, clusters) int64."""
    members = codes.shape[1]
    for r in range(_U(assignment.size)):
        if assignment[r] >= 0:
            e = _U(assignment[r])
            for j in range(_U(members)):
                table[_U(codes[r, j]) + offsets[j], e] += 1


def _aligned_zeros(shape: tuple[int, int, int]) -> NDArray[np.float64]:
    """Zeros that begin at a cache line; where numpy happens to put them, sums take up to a third longer."""
    size = 8 * shape[0] * shape[1] * shape[2]
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE
    return memory[begin : begin + size].view(np.float64).reshape(shape)


def side_by_side(tables: Sequence[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Lay the (slots, k) tables of several problems out as :func:`belonging` reads them.

    Columns follow one another without a gap, so that no sum is wasted on problems whose k is no multiple of LANES,
    and are cut into groups of WIDEST: what one pass over the members needs lies together.

    Returns
    -------
    weights : (groups, slots, width) float64
        Zero beyond the last column.
    first_column : (problems + 1,) int64
        Problem p owns the columns ``first_column[p]`` to ``first_column[p + 1]``.
    """
    first_column = np.cumsum([0, *(table.shape[1] for table in tables)])
    columns = int(first_column[-1])
    width = min(WIDEST, -(-columns // LANES) * LANES)
    weights = _aligned_zeros((-(-columns // WIDEST), len(tables[0]), width))
    together = tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)
    for group, begin in enumerate(range(0, columns, WIDEST)):
        part = together[:, begin : begin + WIDEST]
        weights[group, :, : part.shape[1]] = part
    return weights, first_column
