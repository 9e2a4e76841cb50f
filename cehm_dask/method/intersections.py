"""Stage 0: how many samples every two hyperedges share.

Ensemble in, the n_hyperedges × n_hyperedges table I = HᵀH out, in one sweep; sizes are its diagonal, and which
slots are hyperedges at all follows from them. Of very many hyperedges, only those of some members are compared with one
another (:func:`cehm_dask.data.shape.compared_members`), and the sizes of all are counted beside.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import Codes
from cehm_dask.engine.budget import MOST_COUNTED
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import StoreError
from cehm_dask.method import counting, kernels
from cehm_dask.wording import option


@dataclass(frozen=True, eq=False)
class Hyperedges:
    """All base clusters, numbered member by member, inside a member by ascending label."""

    slots: NDArray[np.intp]
    """Slot of each hyperedge."""
    members: NDArray[np.intp]
    """Member each hyperedge belongs to."""
    intersections: NDArray[np.signedinteger[Any]]
    """Of every two hyperedges, or of every two of those ``compared``."""
    n_slots: int
    n_members: int
    n_samples: int
    n_silent: int
    """Rows that no member says anything about."""
    compared: NDArray[np.intp] | None = None
    """Hyperedges that the table of intersections is about; None: all."""
    counted: NDArray[np.int64] | None = None
    """Sizes, where the table does not have all of them."""
    weight: NDArray[np.float64] | None = None
    """How much each hyperedge counts, 1 for a label on average; None: all alike."""

    @property
    def n_speaking(self) -> int:
        """Samples that take part: the n of the method."""
        return self.n_samples - self.n_silent

    @property
    def n_hyperedges(self) -> int:
        return len(self.slots)

    @property
    def sizes(self) -> NDArray[np.int64]:
        if self.counted is not None:
            return self.counted
        return self.intersections.diagonal().astype(np.int64, copy=False)

    @property
    def judged(self) -> "Hyperedges":
        """The hyperedges that are compared with one another, as an ensemble of their own; all, in most cases."""
        # Kept with itself, it would be freed late: whenever the next cycle is looked for.
        return self if self.compared is None else self._compared

    @cached_property
    def _compared(self) -> "Hyperedges":
        kept, members = np.unique(self.members[self.compared], return_inverse=True)
        shape = (self.n_slots, len(kept), self.n_samples, self.n_silent)
        own = Hyperedges(self.slots[self.compared], members, self.intersections, *shape)
        return own if self.weight is None else own.weighted(self.weight[self.compared])

    def of_judged(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of a table (one a hyperedge) that belong to hyperedges compared."""
        return table if self.compared is None else table[self.compared]

    @property
    def compared_members(self) -> NDArray[np.intp] | None:
        """Members whose hyperedges are compared; None: all."""
        return None if self.compared is None else np.unique(self.members[self.compared])

    @cached_property
    def volumes(self) -> NDArray[Any]:
        """Labels of the samples of each hyperedge, as much as they count: row sums of the intersections."""
        return np.asarray(self.intersections.sum(axis=1) if self.weight is None else self.intersections @ self.weight)

    @cached_property
    def walk(self) -> NDArray[np.float64]:
        """From a hyperedge to one of its samples, at random, and on to a hyperedge of that sample: rows sum to 1."""
        steps = np.asarray(self.intersections / self.volumes[:, None])
        return steps if self.weight is None else np.multiply(steps, self.weight, out=steps)

    def weighted(self, weight: NDArray[np.float64]) -> "Hyperedges":
        """The same, with how much each hyperedge counts; scaled so that a label counts 1 on average."""
        return replace(self, weight=weight * (self.sizes.sum() / float(self.sizes @ weight)))

    def weighted_by_slots(self, weight: NDArray[np.float64] | None) -> "Hyperedges":
        """The same, with how much each slot counts; None: all alike."""
        return self if weight is None else self.weighted(weight[self.slots])

    def weighed(self, table: NDArray[Any]) -> NDArray[Any]:
        """A table with one row per hyperedge, each times what the hyperedge counts."""
        return table if self.weight is None else table * (self.weight if table.ndim == 1 else self.weight[:, None])

    def weight_of_slots(self) -> NDArray[np.float64] | None:
        """How much each slot counts."""
        return None if self.weight is None else self.to_slots(self.weight[:, None])[:, 0]

    def mean_over_members(self, values: NDArray[np.float64], *, present: bool = False) -> float:
        """Mean of one value per member, each as much as its labels count on average.

        ``present``: values are of the members with a label only. Without weights, one without any counts as 0.
        """
        if self.weight is None:
            return float(values.sum() / self.n_members)
        first = np.flatnonzero(np.diff(self.members, prepend=-1))
        labels, counted = (np.add.reduceat(own, first) for own in (self.sizes, self.weight * self.sizes))
        of_member = counted / labels
        return float((values if present else values[self.members[first]]) @ of_member / of_member.sum())

    def to_slots(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """Spread a table with one row per hyperedge over the slots; empty and silent slots get zeros."""
        spread = np.zeros((self.n_slots, table.shape[1]))
        spread[self.slots] = table
        return spread

    def largest_sum(self, values: NDArray[np.float64]) -> float:
        """What no sample's sum over its hyperedges exceeds: the members' largest values together."""
        first = np.flatnonzero(np.diff(self.members, prepend=-1))
        return float(np.maximum.reduceat(values, first).sum()) if len(first) else 0.0

    def of_member(self, member: int) -> slice:
        """The hyperedges of one member."""
        first, last = np.searchsorted(self.members, [member, member + 1])
        return slice(int(first), int(last))


@dataclass(frozen=True, eq=False)
class Tally:
    """What one sweep counts."""

    table: NDArray[Any]
    """Intersections of every two slots, or of every two of the members compared."""
    n_silent: int
    sizes: NDArray[np.int64] | None = None
    """Samples of every slot, where the table does not have all of them."""
    sampled: tuple[Codes, ...] = ()
    """Codes of some rows."""

    @property
    def codes(self) -> Codes:
        return np.concatenate(self.sampled) if self.sampled else np.empty((0, 0), np.uint8)


def _count(span: Span, sample: NDArray[np.int64], members: NDArray[np.intp] | None, known: int = 0) -> Tally:
    labels = span.labels if members is None else span.labels.of_members(members)
    table = np.zeros((labels.n_slots, labels.n_slots), np.int32)
    sizes = None if members is None else np.zeros((span.n_slots, 1), np.int64)
    earlier: NDArray[np.int64] | int = 0
    counted = silent = 0
    sampled: list[Codes] = []
    for block in span.blocks():
        counted += block.n_rows
        if counted > MOST_COUNTED:
            # int32 counts twice as fast, and is moved over before it could overflow.
            earlier = earlier + table.astype(np.int64)
            table[:] = 0
            counted = block.n_rows
        first, last = np.searchsorted(sample, [block.start, block.stop])
        if last > first:
            sampled.append(block.codes[sample[first:last] - block.start])
        if sizes is None:
            beside = (known,) if known else ()  # compiled apart
            counting.intersections(block.codes, labels.offsets, table, *beside)
        else:
            counting.intersections(np.ascontiguousarray(block.codes[:, members]), labels.offsets, table)
            kernels.count(block.codes, span.offsets, np.zeros(block.n_rows, np.int16), sizes)
        if span.labels.silent:
            silent += int(np.count_nonzero(~block.codes.any(axis=1)))
    whole = table if isinstance(earlier, int) else earlier + table
    return Tally(whole, silent, None if sizes is None else sizes[:, 0], tuple(sampled))


def _add(tallies: Sequence[Tally]) -> Tally:
    # int32 holds the counts of one span, or of a part of it; the sum may exceed it.
    total = tallies[0].table.astype(np.int64)
    for tally in tallies[1:]:
        total += tally.table
    sizes = [tally.sizes for tally in tallies if tally.sizes is not None]
    silent = sum(tally.n_silent for tally in tallies)
    sampled = tuple(codes for tally in tallies for codes in tally.sampled)
    return Tally(total, silent, np.sum(sizes, axis=0) if sizes else None, sampled)


def intersections(engine: Engine) -> tuple[NDArray[np.int64], int]:
    """Count all intersections of slots in one sweep: the table I = HᵀH, and the number of silent rows."""
    tally = tally_of(engine, np.empty(0, np.int64))
    return tally.table, tally.n_silent


def tally_of(
    engine: Engine,
    rows: NDArray[np.int64],
    members: NDArray[np.intp] | None = None,
    *,
    first_row: int = 0,
    known: int = 0,
) -> Tally:
    """Intersections of the slots of all or of some members, and from the same sweep the codes of some rows.

    Rows and members are given in ascending order. Only rows from ``first_row`` on are counted, and the first ``known``
    members are not compared with one another.
    """
    wanted = (rows, members, known) if known else (rows, members)
    tally: Tally = engine.sweep("intersections", _count, _add, *wanted, first_row=first_row)
    table = tally.table.astype(np.int64, copy=False)  # one span alone counts in int32
    mirror(table)
    return replace(tally, table=table)


MIRRORED = 1 << 7
"""Rows of a table that are mirrored at a time: the whole of it would be copied otherwise."""


def mirror(table: NDArray[Any]) -> None:
    """Copy what is above the diagonal below it, in place.

    >>> table = np.array([[1, 2], [0, 3]])
    >>> mirror(table)
    >>> table.tolist()
    [[1, 2], [2, 3]]
    """
    for first in range(0, len(table), MIRRORED):
        last = first + MIRRORED
        corner = table[first:last, first:last]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T
        table[last:, first:last] = table[first:last, last:].T


def part_of(table: NDArray[Any], places: NDArray[np.intp]) -> NDArray[Any]:
    """The rows and columns of a table at some ascending places, moved to its beginning: the table is used up.

    >>> part_of(np.arange(9).reshape(3, 3), np.array([0, 2])).tolist()
    [[0, 2], [6, 8]]
    """
    size = len(places)
    if size == len(table):
        return table
    flat = table.reshape(-1)
    for row, place in enumerate(places.tolist()):  # no row is written to before it was read
        flat[row * size : (row + 1) * size] = table[place, places]
    return flat[: size * size].reshape(size, size)


def check_table(
    labels: Labels,
    table: NDArray[np.int64],
    n_silent: int,
    members: NDArray[np.intp] | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> None:
    """Refuse intersections that cannot be those of the labels: counted by another run, or from shards of another store.

    Every sample has one slot of each member, and an ensemble.zarr knows the size of each of its base clusters. Where
    the table is about some ``members``, ``sizes`` are those of all slots.
    """
    own = labels if members is None else labels.of_members(members)
    n, slots = labels.n_samples, own.n_slots
    if table.shape != (slots, slots) or table.dtype.kind != "i":
        raise StoreError(
            f"intersections have shape {table.shape} and dtype {table.dtype}, expected {slots} × {slots}; "
            f"start again with {option('overwrite')}"
        )
    wrong = table.min() < 0 or table.max() > n or not _of_members(table.diagonal(), own, n) or (table != table.T).any()
    if members is not None:
        sizes = np.empty(0, np.int64) if sizes is None else sizes
        wrong |= sizes.shape != (labels.n_slots,) or not _of_members(sizes, labels, n)
        wrong = wrong or (sizes[slots_of(labels, members)] != table.diagonal()).any()
    if wrong:
        raise StoreError(f"intersections are not those of {n} samples: start again with {option('overwrite')}")
    if not 0 <= n_silent <= n:
        raise StoreError(
            f"intersections: {n_silent} of {n} samples have no label; start again with {option('overwrite')}"
        )
    if isinstance(labels.source, Ensemble):
        counted = np.delete(table.diagonal() if sizes is None else sizes, labels.offsets.astype(np.intp))
        if differ := int(np.count_nonzero(counted != labels.source.sizes)):
            raise StoreError(
                f"store {labels.source.url}: {differ} of {len(counted)} base clusters do not have their recorded size: "
                "labels were edited, or shards belong to another store; 'cehm verify' says which"
            )


def _of_members(sizes: NDArray[np.int64], labels: Labels, n: int) -> bool:
    """Whether sizes of slots could be those of n samples: of each member, all."""
    return bool((np.add.reduceat(sizes, labels.offsets.astype(np.intp)) == n).all())


def slots_of(labels: Labels, members: NDArray[np.intp]) -> NDArray[np.intp]:
    """Slots of some members, ascending."""
    return np.flatnonzero(np.isin(np.repeat(np.arange(labels.n_members), labels.widths), members))


def hyperedges_of(
    labels: Labels,
    table: NDArray[np.signedinteger[Any]],
    n_silent: int,
    n_samples: int | None = None,
    *,
    members: NDArray[np.intp] | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> Hyperedges:
    """The slots that turned out to be hyperedges, with their part of the table; of some rows only, if so many.

    ``members`` and ``sizes`` as for :func:`check_table`.
    """
    member_of_slot = np.repeat(np.arange(labels.n_members), labels.widths)
    occupied = (table.diagonal() if sizes is None else sizes) > 0
    if labels.silent:
        occupied[labels.offsets.astype(np.intp)] = False
    slots = np.flatnonzero(occupied)
    n_samples = labels.n_samples if n_samples is None else n_samples
    place = (labels.n_slots, labels.n_members, n_samples, n_silent)
    if members is None or sizes is None:
        return Hyperedges(slots, member_of_slot[slots], table[np.ix_(slots, slots)], *place)
    chosen = slots_of(labels, members)
    inside = np.flatnonzero(occupied[chosen])
    compared = np.searchsorted(slots, chosen[inside])
    return Hyperedges(slots, member_of_slot[slots], table[np.ix_(inside, inside)], *place, compared, sizes[slots])
