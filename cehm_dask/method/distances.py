"""Compiled loops over features: the nearest centre of every row for all members, and sums of the rows of a centre."""

import numpy as np

from cehm_dask.method.jit import jit

_U = np.uint64


@jit
def nearest(columns, slopes, intercepts, first, labels):  # type: ignore[no-untyped-def]
    """Nearest centre of every row, for all members together: the largest x·slope + intercept of each member.

    Products are summed feature by feature, whatever the block, so the label of a row depends on that row alone;
    a matrix product of a library would not promise that.

    Parameters
    ----------
    columns : (features, rows) float32
        A block of rows, feature by feature.
    slopes : (centres, features) float32
        The centres of all members one after the other.
    intercepts : (centres,) float32
    first : (members + 1,) int64
        Member j owns the centres ``first[j]`` to ``first[j + 1]``.
    labels : (rows, members) unsigned
        Out: 1 + the winning centre inside its member, the lowest on a tie.
    """
    features, rows = columns.shape
    strip = 512
    scores = np.zeros((4, strip), np.float32)
    top = np.empty(strip, np.float32)
    winner = np.empty(strip, np.int32)
    for begin in range(0, rows, strip):
        height = _U(min(strip, rows - begin))
        for j in range(first.size - 1):
            top[:] = -np.inf
            winner[:] = 0
            for c in range(first[j], first[j + 1], 4):
                group = min(4, first[j + 1] - c)
                # Four centres share each load of a feature; of a last group of fewer, some are done twice.
                c0, c1 = c, c + min(1, group - 1)
                c2, c3 = c + min(2, group - 1), c + min(3, group - 1)
                for r in range(_U(strip)):
                    scores[_U(0), r] = intercepts[c0]
                    scores[_U(1), r] = intercepts[c1]
                    scores[_U(2), r] = intercepts[c2]
                    scores[_U(3), r] = intercepts[c3]
                for f in range(features):
                    x = columns[f, begin : begin + strip]
                    s0, s1, s2, s3 = slopes[c0, f], slopes[c1, f], slopes[c2, f], slopes[c3, f]
                    for r in range(height):
                        scores[_U(0), r] += x[r] * s0
                        scores[_U(1), r] += x[r] * s1
                        scores[_U(2), r] += x[r] * s2
                        scores[_U(3), r] += x[r] * s3
                for i in range(group):
                    number = np.int32(c + i - first[j])
                    for r in range(_U(strip)):
                        better = scores[_U(i), r] > top[r]
                        winner[r] = number if better else winner[r]
                        top[r] = scores[_U(i), r] if better else top[r]
            for r in range(height):
                labels[_U(begin) + r, j] = winner[r] + 1


@jit
def centre_sums(rows, labels, first, sums, counts):  # type: ignore[no-untyped-def]
    """Add rows (n, features) float32 to the sums of the centres they are nearest to, member by member, in row order.

    ``labels`` and ``first`` are those of :func:`nearest`; ``sums`` (centres, features) float64 and ``counts``
    (centres,) int64 are changed in place.
    """
    for r in range(rows.shape[0]):
        for j in range(labels.shape[1]):
            centre = first[j] + labels[r, j] - 1
            counts[centre] += 1
            for f in range(rows.shape[1]):
                sums[centre, f] += rows[r, f]
