"""How many groups the members draw borders around, from the intersections of the hyperedges alone.

For members that are not finer than the clusters; :mod:`cehm_dask.method.choice` asks here. Such members merge some
clusters and split others. A border between two groups is real if the members that cut there cut at the same place,
however few they are; a split that lies elsewhere in every member is none.

1. Groups are hyperedges. The member that agrees most with the others gives the first ones. As long as some member's
   clusters fill a group from inside, its clusters take the place of the group; of several members, the one with the
   firmest borders. The groups may end up too small, but hardly any is part of two clusters.
2. Of two groups, a member tells j bits: the Jensen-Shannon divergence between its labels in the one and in the other.
   It could have told at most h bits, the entropy of its labels in both, or one. A border is as *firm* as Σ j / Σ h over
   the members. Members with one label for both groups do not count.
3. The two groups with the least firm border are joined, until one is left. The firmness of each border on the way tells
   where artefacts end and clusters begin.
"""

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.agreement import entropy_terms
from cehm_dask.method.intersections import Hyperedges

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

# Chosen on sets of blobs with k-means members of k, 0.5 k to 1.2 k and 2 to k clusters: 32 with one start a member and
# 19 with ten (seeds from 20,000 and from 30,000 on of tests/benchmarks/choice.py). Of the 153 ensembles 132 were right.
# With DOUBT 0.25 or 1, and the other constants chosen anew, about four fewer; NO_FIRMER from 0.1 to 0.3 serves alike.

INSIDE = 0.85
"""A hyperedge with this share of its samples in a group lies inside it; so much of the group must be filled."""

SMALLEST = 0.01
"""No group is split into hyperedges with a smaller share of the samples."""

DOUBT = 0.5
"""Members (bits) that are taken to have told nothing at every border: one or two that cut there are not enough."""

NO_FIRMER = 0.15
"""Added to what a border lacks: with 0, steps from 0.99 to 0.98 would decide."""

BEYOND = 1.1
"""So many times the clusters of the finest member are looked for."""

PRICE_BEYOND = 0.6
"""Taken off the score of more groups than any member has clusters."""

MOST_HYPEREDGES = 4096
MOST_MEMBERS = 64
"""Of more members, every second, third, ... is asked."""


@dataclass(frozen=True)
class Level:
    """A number of groups, with the least firm border between any two of them."""

    n_clusters: int
    firm: float
    finer: float
    """The firmest border that was taken away on the way to these groups; 0 if there was none."""
    beyond: bool
    """Whether no member has as many clusters."""

    @property
    def score(self) -> float:
        """Many groups, and firm borders where those taken away were not."""
        gain = log((1.0 - self.finer + NO_FIRMER) / (1.0 - self.firm + NO_FIRMER))
        return log(self.n_clusters) + gain - PRICE_BEYOND * self.beyond


def levels(hyperedges: Hyperedges) -> list[Level]:
    """From the finest groups down to two."""
    edges = _Edges(hyperedges)
    groups = edges.groups()
    widest = int(np.bincount(hyperedges.members).max(initial=0))
    found, finer = list[Level](), 0.0
    for k, firm in edges.joined(groups):
        if k <= ceil(BEYOND * widest):
            found.append(Level(k, firm, finer, k > widest))
        finer = max(finer, firm)
    return found


class _Edges:
    """Some members' hyperedges, and the borders between groups of samples."""

    def __init__(self, hyperedges: Hyperedges) -> None:
        every = max(ceil(hyperedges.n_hyperedges / MOST_HYPEREDGES), ceil(hyperedges.n_members / MOST_MEMBERS))
        asked = np.flatnonzero(hyperedges.members % every == 0)
        self._shared = hyperedges.intersections[np.ix_(asked, asked)].astype(np.float64)
        self._sizes = self._shared.diagonal()
        _, self._members = np.unique(hyperedges.members[asked], return_inverse=True)
        self._first = np.flatnonzero(np.diff(self._members, prepend=-1))
        self._widths = np.diff(self._first, append=len(asked))
        self._smallest = SMALLEST * hyperedges.n_speaking

    def _of_members(self, table: Floats) -> Floats:
        """Sums over the hyperedges of each member."""
        return np.asarray(np.add.reduceat(table, self._first, axis=-1))

    def groups(self) -> Ints:
        """Hyperedges that hardly overlap, as fine as the members tell."""
        todo = self._of(self._most_agreeing())
        found = list[int]()
        while todo:
            group = todo.pop()
            parts = self._parts(group)
            if len(parts):
                todo += parts.tolist()
            else:
                found.append(group)
        return np.array(found, np.intp)

    def _of(self, member: int) -> list[int]:
        return list(range(self._first[member], self._first[member] + self._widths[member]))

    def _most_agreeing(self) -> int:
        """The member with the largest mean NMI with the others."""
        n_members = len(self._first)
        told = np.empty((n_members, n_members))
        for member in range(n_members):
            rows = self._shared[self._of(member)]
            both = np.maximum(self._of_members(rows).sum(axis=0), 1.0)  # samples with a label of either member
            joint = rows / np.repeat(both, self._widths)
            own = self._of_members(rows) / both
            other = joint.sum(axis=0)
            told[member] = (
                entropy_terms(own).sum(axis=0)
                + self._of_members(entropy_terms(other))
                - self._of_members(entropy_terms(joint).sum(0))
            )
        roots = np.sqrt(np.maximum(told.diagonal(), 1e-9))
        return int(np.argmax((told / roots / roots[:, None]).sum(axis=1)))

    def _parts(self, group: int) -> Ints:
        """The clusters of one member that fill a group, those with the firmest borders; none if no member's do."""
        shared = self._shared[:, group]
        inside = (shared >= INSIDE * self._sizes) & (self._sizes >= self._smallest)
        inside &= self._sizes <= self._sizes[group] * SMALLER
        filled = self._of_members(np.where(inside, shared, 0.0)) >= INSIDE * self._sizes[group]
        several = self._of_members(inside.astype(np.float64)) >= 2
        best, parts = -1.0, np.empty(0, np.intp)
        for member in np.flatnonzero(filled & several):
            own = np.array(self._of(int(member)), np.intp)
            own = own[inside[own]]
            told, most = self._told(self._shared[own])
            firm = float((told / most)[~np.eye(len(own), dtype=bool)].min())
            if firm > best:
                best, parts = firm, own
        return parts

    def _told(self, counts: Floats) -> tuple[Floats, Floats]:
        """Bits that the members tell of every two groups, and could have told at most; groups given by their counts."""
        pairs = [self._told_of(counts, group) for group in range(len(counts))]
        return np.stack([told for told, _ in pairs]), np.stack([most for _, most in pairs])

    def _told_of(self, counts: Floats, group: int) -> tuple[Floats, Floats]:
        """The same of one group and every group."""
        labelled = self._of_members(counts)
        shares = counts / np.repeat(np.maximum(labelled, 1.0), self._widths, axis=1)
        own = self._of_members(entropy_terms(shares))
        mixed = self._of_members(entropy_terms((shares + shares[group]) / 2.0))
        both = (labelled > 0) & (labelled[group] > 0)  # a member without labels in one of them does not count
        told = np.where(both, np.maximum(mixed - (own + own[group]) / 2.0, 0.0), 0.0) / log(2.0)
        most = np.where(both, np.minimum(mixed / log(2.0), 1.0), 0.0)
        return told.sum(axis=1), most.sum(axis=1) + DOUBT

    def joined(self, groups: Ints) -> list[tuple[int, float]]:
        """Number of groups and the least firm border, join after join."""
        counts = self._shared[groups]
        if len(groups) < 2:
            return []
        told, most = self._told(counts)
        firm = told / most
        np.fill_diagonal(firm, np.inf)
        found = []
        while len(counts) > 1:
            one, other = sorted(divmod(int(np.argmin(firm)), len(firm)))
            found.append((len(counts), float(firm[one, other])))
            counts[one] += counts[other]
            left = np.arange(len(counts)) != other
            counts, firm = counts[left], firm[np.ix_(left, left)]
            told, most = self._told_of(counts, one)
            firm[one] = firm[:, one] = told / most
            firm[one, one] = np.inf
        return found


SMALLER = 0.95
"""A part has at most this share of the samples of the group."""
