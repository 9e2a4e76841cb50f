"""How clusters of different members lie to one another: what a cut through a continuum shows, and clusters do not.

k-means cuts a uniform cube into the same octants every time, so that members agree and borders are shared. But a cut
through a continuum goes through samples, and from another start it goes through others; a cut between clusters has
nothing to go through. Two members that find the same cluster find the same samples in it, two that find the same octant
do not. All from the intersections of the hyperedges, member by member: no second table of their size.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.intersections import Hyperedges

Floats = NDArray[np.float64]

FOUND_TWICE = 0.7
"""Two members found the same cluster if theirs have this Jaccard index; from 0.6 to 0.9 serves alike."""

SAME = 0.995
"""They have the same samples in it from this Jaccard index on."""

EMPTY = 0.05
"""Two clusters are apart if they share less than this part of what they would if the members were independent."""

FEWEST_EXPECTED = 5.0
"""Pairs of clusters with fewer samples to share are not looked at: chance would decide."""


@dataclass(frozen=True)
class Overlaps:
    """Figures from 0 to 1 on all pairs of clusters of different members."""

    containment: float
    """How much of the smaller of two clusters lies in the larger one: mean over all samples and pairs of members.

    1 if members only merge or split each other's clusters.
    """
    same: float
    """Of the clusters that two members find, the share with the same samples; 0 if no cluster is found twice."""
    apart: float
    """Share of the pairs of clusters that hold no samples in common, by the samples they would share by chance.

    0 if labels are right or wrong at random: wrong ones are anywhere. 1 - 1 / k if all members are the same.
    """


def overlaps(hyperedges: Hyperedges) -> Overlaps:
    """Of samples that only one of two members labels, ``same`` and ``apart`` know nothing."""
    first = np.flatnonzero(np.diff(hyperedges.members, prepend=-1))
    widths = np.diff(first, append=hyperedges.n_hyperedges)
    sizes = hyperedges.sizes.astype(np.float64)
    sums = np.zeros(6)
    for start, width in zip(first, widths, strict=True):
        rows = slice(start, start + width)
        shared = hyperedges.intersections[rows].astype(np.float64)
        own = np.repeat(np.add.reduceat(shared, first, axis=1), widths, axis=1)
        shared[:, rows] = own[:, rows] = 0.0
        sums += (*_contained(shared, sizes[rows], sizes), *_found_twice(shared, own), *_apart(shared, own))
    part, of = sums.reshape(3, 2).T
    return Overlaps(*(part / np.where(of > 0.0, of, 1.0)).tolist())


def _contained(shared: Floats, own: Floats, sizes: Floats) -> tuple[float, float]:
    return float((shared**2 / np.minimum(own[:, None], sizes)).sum()), float(shared.sum())


def _found_twice(shared: Floats, own: Floats) -> tuple[float, float]:
    """Pairs with the same samples, and pairs that are the same cluster; ``own`` are sizes where both have a label."""
    either = own + shared.sum(axis=0) - shared
    return float(np.sum(shared > SAME * either)), float(np.sum(shared > FOUND_TWICE * either))


def _apart(shared: Floats, own: Floats) -> tuple[float, float]:
    """Samples that pairs which are apart would share by chance, and all pairs."""
    expected = own * shared.sum(axis=0) / np.maximum(own.sum(axis=0), 1.0)
    expected[expected < FEWEST_EXPECTED] = 0.0
    return float(expected[shared < EMPTY * expected].sum()), float(expected.sum())
