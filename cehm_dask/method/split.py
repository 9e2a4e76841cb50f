"""Splitting a cluster in two, so that one that has lost all its samples gets some back.

Below the stages. Everything is read from the small tables: the intersections I and the counts C. A split takes the
samples of one hyperedge out of one cluster; it is written as weights W in which two clusters belong alike but for a
trifle, so that the assignment stays a pure function of (labels, W).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.belonging import Floats, Int
from cehm_dask.method.intersections import Hyperedges

TRIFLE = 2.0**-10
"""Lead of one half of a split over the other, as a share of the largest weight."""

COLUMNS = 256
"""Hyperedges judged at a time: bounds the table that estimates take."""


@dataclass(frozen=True)
class Split:
    """The samples of ``hyperedge`` that are in ``cluster`` go to the cluster ``into``, which is empty."""

    hyperedge: int
    cluster: int
    into: int

    def again(self, before: "Sequence[Split]") -> bool:
        """Whether the hyperedge was split off the cluster before; then rounding, not weights, decides who is there."""
        return any((one.hyperedge, one.cluster) == (self.hyperedge, self.cluster) for one in before)


def found_in(counts: Int) -> int:
    """Clusters that hold samples."""
    return int(np.count_nonzero(counts.any(axis=0)))


def best_split(counts: Int, hyperedges: Hyperedges) -> Split | None:
    """The split that raises the normalised association most, the lowest hyperedge on a tie; None: none is possible.

    The objective is that of ``kmeans`` belonging, Σ_e ‖m_e‖² / vol_e. How many samples a further hyperedge has in the
    part split off is estimated: as many as if the cluster were spread evenly over the hyperedge. Hyperedges that have
    most of their samples in the cluster, and two samples or more on either side, are preferred. Where only some
    hyperedges are compared with one another, one of these is split off.
    """
    empty = np.flatnonzero(~counts.any(axis=0))
    numbers, counts, hyperedges = hyperedges.compared, hyperedges.of_judged(counts), hyperedges.judged
    # Samples of the cluster that the hyperedge's own member puts elsewhere: they stay behind.
    first = np.flatnonzero(np.diff(hyperedges.members, prepend=-1))
    of_member = np.add.reduceat(counts, first, axis=0)[np.searchsorted(hyperedges.members[first], hyperedges.members)]
    behind = of_member - counts
    home = np.where(behind > 0, counts, 0).argmax(axis=1)
    every = np.arange(len(counts))
    inside, left = counts[every, home], behind[every, home]
    sound = (2 * inside > hyperedges.sizes) & (inside >= 2) & (left >= 2)
    possible = np.flatnonzero(sound if sound.any() else (inside > 0) & (left > 0))
    if not len(empty) or not len(possible):
        return None
    gains = np.concatenate(
        [
            _gains(counts, hyperedges, possible[start : start + COLUMNS], home)
            for start in range(0, len(possible), COLUMNS)
        ]
    )
    chosen = int(possible[int(np.argmax(gains))])
    return Split(chosen if numbers is None else int(numbers[chosen]), int(home[chosen]), int(empty[0]))


def _gains(counts: Int, hyperedges: Hyperedges, chosen: NDArray[np.intp], home: NDArray[np.intp]) -> Floats:
    """What splitting each of the chosen hyperedges off its cluster adds to Σ_e ‖m_e‖² / vol_e."""
    sizes = hyperedges.sizes
    whole = counts[:, home[chosen]].astype(np.float64)
    share = counts[chosen, home[chosen]] / sizes[chosen]
    part = np.minimum(hyperedges.intersections[:, chosen] * share, whole)
    halves = _association(part, hyperedges) + _association(whole - part, hyperedges)
    return halves - _association(whole, hyperedges)


def _association(part: Floats, hyperedges: Hyperedges) -> Floats:
    volume = hyperedges.weighed(part).sum(axis=0)
    squares = hyperedges.weighed(part * part / hyperedges.sizes[:, None]).sum(axis=0)
    return np.asarray(squares / np.where(volume > 0, volume, 1.0))


def split_weights(weights: Floats, splits: Sequence[Split], members: NDArray[np.intp]) -> Floats:
    """W with clusters split, one after the other.

    The new half belongs as the old one does; of the samples that the hyperedge's member labels, those in the hyperedge
    belong to the old half by a trifle less, the others to the new one. Weights are lowered only: a sample has one part
    of the split cluster in which it loses nothing, however many splits there are, and no other cluster loses a sample.
    At the end all weights of a hyperedge are raised alike if one is negative, which changes no winner and no lead.
    """
    table = weights.copy()
    trifle = TRIFLE * float(weights.max())
    for split in splits:
        table[:, split.into] = table[:, split.cluster]
        others = members == members[split.hyperedge]
        others[split.hyperedge] = False
        table[others, split.into] -= trifle
        table[split.hyperedge, split.cluster] -= trifle
    return np.asarray(table - np.minimum(table.min(axis=1, keepdims=True), 0.0))
