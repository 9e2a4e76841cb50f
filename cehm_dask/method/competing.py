"""Rows in memory that candidates compete on: all, or a seeded sample, as an ensemble of their own.

Below the portfolio. Only small tables leave it.
"""

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import Codes
from cehm_dask.method import counting, kernels
from cehm_dask.method.belonging import Floats, Int
from cehm_dask.method.intersections import Hyperedges, hyperedges_of, mirror, part_of, slots_of
from cehm_dask.method.params import COMPETING_BYTES, COMPETING_ROWS
from cehm_dask.method.spectral import some_rows

Assignment = NDArray[np.int16]


def competing_rows(labels: Labels, seed: int) -> NDArray[np.int64]:
    """Row numbers that candidates compete on, ascending: all, or a sample that only the seed and n decide."""
    n = labels.n_samples
    most = max(1, min(COMPETING_ROWS, COMPETING_BYTES // (labels.n_members * labels.itemsize)))
    if n <= most:
        return np.arange(n)
    drawn = np.random.default_rng([seed, n, most]).choice(n, most, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


class Rows:
    """Label rows in memory, as an ensemble of their own: rows without any label are left out.

    With ``members``, of these alone; only :meth:`count_slots` is about all. Of members that are the same partition, one
    is looked at, and counts as many times.
    """

    def __init__(
        self,
        labels: Labels,
        codes: Codes,
        members: NDArray[np.intp] | None = None,
        weight_of_slots: Floats | None = None,
    ) -> None:
        self._whole = (np.ascontiguousarray(codes), labels.offsets, labels.n_slots)
        if members is not None:
            if weight_of_slots is not None:
                weight_of_slots = weight_of_slots[slots_of(labels, members)]
            labels, codes = labels.of_members(members), codes[:, members]
        self.spoken = codes.any(axis=1) if labels.silent else np.ones(len(codes), bool)
        """Which of the rows given have a label."""
        self.codes = np.ascontiguousarray(codes if self.spoken.all() else codes[self.spoken])
        self.offsets = labels.offsets
        table = np.zeros((labels.n_slots, labels.n_slots), np.int32)
        counting.intersections(self.codes, self.offsets, table)
        mirror(table)
        found = hyperedges_of(labels, table, 0, len(self.codes)).weighted_by_slots(weight_of_slots)
        first = first_alike(found)
        unique = np.unique(first)
        if len(unique) < len(first):
            weight = np.zeros(labels.n_slots)
            np.add.at(weight, found.slots[same_edges(found, first)], found.weighed(np.ones(found.n_hyperedges)))
            own = slots_of(labels, unique)
            labels, self.codes = labels.of_members(unique), np.ascontiguousarray(self.codes[:, unique])
            self.offsets = labels.offsets
            found = hyperedges_of(labels, part_of(table, own), 0, len(self.codes)).weighted_by_slots(weight[own])
        self.hyperedges: Hyperedges = found

    def assign(self, weights: Floats) -> Assignment:
        """Each row to the cluster it belongs to most."""
        table, first_column = kernels.side_by_side([self.hyperedges.to_slots(weights)])
        best = np.empty((1, len(self.codes)), np.int16)
        kernels.belonging(self.codes, self.offsets, table, first_column, best, np.empty((1, len(self.codes))))
        found: Assignment = best[0]
        return found

    def count(self, assignment: Assignment, n_clusters: int) -> Int:
        """C of an assignment; rows with -1 are in no cluster."""
        table = np.zeros((self.hyperedges.n_slots, n_clusters), np.int64)
        kernels.count(self.codes, self.offsets, assignment, table)
        return table[self.hyperedges.slots]

    def count_slots(self, assignment: Assignment, n_clusters: int) -> Int:
        """C of an assignment over the slots of all members."""
        codes, offsets, n_slots = self._whole
        everywhere = np.full(len(codes), -1, np.int16)
        everywhere[self.spoken] = assignment
        table = np.zeros((n_slots, n_clusters), np.int64)
        kernels.count(codes, offsets, everywhere, table)
        return table

    def similarity(self, degrees: Floats) -> Floats:
        """Hᵀ diag(1/d) H, where the degree d of a row is the sum of ``degrees`` over its hyperedges."""
        edges = self.hyperedges
        row_degrees = np.empty((len(self.codes), 1))
        kernels.degrees(self.codes, self.offsets, edges.to_slots(degrees[:, None]), row_degrees)
        unit = 1 << 30  # whole numbers add up alike in any order
        weights = np.rint(unit / row_degrees[:, 0]).astype(np.int64)
        upper = np.zeros((edges.n_slots, edges.n_slots), np.int64)
        counting.weighted_intersections(self.codes, self.offsets, weights, upper)
        counts = part_of(upper, edges.slots)
        table = counts.view(np.float64)  # in place: the caller holds some tables of this size already
        for some in some_rows(len(table)):
            table[some] = counts[some] / unit
        mirror(table)
        return table

    def incidence(self) -> Floats:
        """H: 1 where a row is in a hyperedge."""
        edge_of = np.full(self.hyperedges.n_slots, -1)
        edge_of[self.hyperedges.slots] = np.arange(self.hyperedges.n_hyperedges)
        edges = edge_of[self.codes + self.offsets.astype(np.intp)]
        found = np.zeros((len(edges), self.hyperedges.n_hyperedges))
        rows, columns = np.nonzero(edges >= 0)
        found[rows, edges[rows, columns]] = 1.0
        return found

    def points(self, table: Floats) -> Floats:
        """Sums of a table (n_hyperedges × d) over the hyperedges of each row."""
        sums = np.empty((len(self.codes), table.shape[1]))
        kernels.degrees(self.codes, self.offsets, self.hyperedges.to_slots(table), sums)
        return sums


def first_alike(hyperedges: Hyperedges) -> NDArray[np.intp]:
    """Of every member, the first one with the same hyperedges: itself, or one that is the same partition."""
    first = np.arange(hyperedges.n_members)
    seen: dict[bytes, list[int]] = {}
    for member in range(hyperedges.n_members):
        own = hyperedges.of_member(member)
        others = seen.setdefault(np.sort(hyperedges.sizes[own]).tobytes(), [])
        if own.stop > own.start:
            first[member] = next((other for other in others if _alike(hyperedges, other, member)), member)
        if first[member] == member:
            others.append(member)
    return first


def _alike(hyperedges: Hyperedges, one: int, other: int) -> bool:
    """Whether every hyperedge of one member is one of the other; as many of the same sizes are known to be there."""
    shared = hyperedges.intersections[hyperedges.of_member(one), hyperedges.of_member(other)]
    return bool((shared.max(axis=1) == hyperedges.sizes[hyperedges.of_member(one)]).all()) and bool(
        (shared.max(axis=0) == hyperedges.sizes[hyperedges.of_member(other)]).all()
    )


def same_edges(hyperedges: Hyperedges, first: NDArray[np.intp]) -> NDArray[np.intp]:
    """Of every hyperedge, the same one of the first member alike."""
    same = np.arange(hyperedges.n_hyperedges)
    for member in np.flatnonzero(first != np.arange(len(first))).tolist():
        own, there = hyperedges.of_member(member), hyperedges.of_member(int(first[member]))
        same[own] = there.start + hyperedges.intersections[own, there].argmax(axis=1)
    return same
