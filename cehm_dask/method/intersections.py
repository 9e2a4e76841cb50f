"""Stage 0: how many samples every two hyperedges share.

Ensemble in, the n_hyperedges × n_hyperedges table I = HᵀH out, in one sweep; sizes are its diagonal, and which
slots are hyperedges at all follows from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from cehm_dask.method import counting


@dataclass(frozen=True, eq=False)
class Hyperedges:
    """All base clusters, numbered member by member, inside a member by ascending label."""

    slots: NDArray[np.intp]
    """Slot of each hyperedge."""
    members: NDArray[np.intp]
    """Member each hyperedge belongs to."""
    intersections: NDArray[np.int64]
    n_slots: int
    n_members: int
    n_samples: int
    n_silent: int
    """Rows that no member says anything about."""

    @property
    def n_speaking(self) -> int:
        """Samples that take part: the n of the method."""
        return self.n_samples - self.n_silent

    @property
    def n_hyperedges(self) -> int:
        return len(self.slots)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self.intersections.diagonal()

    @cached_property
    def volumes(self) -> NDArray[np.int64]:
        """Labels of the samples of each hyperedge: row sums of the intersections."""
        return np.asarray(self.intersections.sum(axis=1))

    @cached_property
    def walk(self) -> NDArray[np.float64]:
        """From a hyperedge to one of its samples, at random, and on to a hyperedge of that sample: rows sum to 1."""
        return np.asarray(self.intersections / self.volumes[:, None])

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


Tally = tuple[NDArray[Any], int, list[Codes]]


def _count(span: Span, sample: NDArray[np.int64]) -> Tally:
    table = np.zeros((span.n_slots, span.n_slots), np.int32)
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
        counting.intersections(block.codes, span.offsets, table)
        if span.labels.silent:
            silent += int(np.count_nonzero(~block.codes.any(axis=1)))
    return table if isinstance(earlier, int) else earlier + table, silent, sampled


def _add(tallies: Sequence[Tally]) -> Tally:
    # int32 holds the counts of one span, or of a part of it; the sum may exceed it.
    total = tallies[0][0].astype(np.int64)
    for table, _, _ in tallies[1:]:
        total += table
    return total, sum(silent for _, silent, _ in tallies), [codes for _, _, own in tallies for codes in own]


def intersections(engine: Engine) -> tuple[NDArray[np.int64], int]:
    """Count all intersections of slots in one sweep: the table I = HᵀH, and the number of silent rows."""
    table, n_silent, _ = intersections_and_sample(engine, np.empty(0, np.int64))
    return table, n_silent


def intersections_and_sample(engine: Engine, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], int, Codes]:
    """:func:`intersections`, and from the same sweep the codes of some rows, given in ascending order."""
    upper, n_silent, sampled = engine.sweep("intersections", _count, _add, rows)
    table = (upper + upper.T).astype(np.int64, copy=False)  # one span alone counts in int32
    np.fill_diagonal(table, upper.diagonal())
    return table, n_silent, np.concatenate(sampled) if sampled else np.empty((0, 0), np.uint8)


def check_table(labels: Labels, table: NDArray[np.int64], n_silent: int) -> None:
    """Refuse intersections that cannot be those of the labels: counted by another run, or from shards of another store.

    Every sample has one slot of each member, and an ensemble.zarr knows the size of each of its base clusters.
    """
    n, slots = labels.n_samples, labels.n_slots
    if table.shape != (slots, slots) or table.dtype.kind != "i":
        raise StoreError(
            f"intersections have shape {table.shape} and dtype {table.dtype}, expected {slots} × {slots}; "
            "start again with --overwrite"
        )
    sizes = table.diagonal()
    of_members = np.add.reduceat(sizes, labels.offsets.astype(np.intp))
    if table.min() < 0 or table.max() > n or (of_members != n).any() or (table != table.T).any():
        raise StoreError(f"intersections are not those of {n} samples: start again with --overwrite")
    if not 0 <= n_silent <= n:
        raise StoreError(f"intersections: {n_silent} of {n} samples without a label; start again with --overwrite")
    if isinstance(labels.source, Ensemble):
        counted = np.delete(sizes, labels.offsets.astype(np.intp))
        if wrong := int(np.count_nonzero(counted != labels.source.sizes)):
            raise StoreError(
                f"store {labels.source.url}: {wrong} of {len(counted)} base clusters do not have their recorded size: "
                "labels were edited, or shards belong to another store; 'cehm verify' says which"
            )


def hyperedges_of(labels: Labels, table: NDArray[np.int64], n_silent: int, n_samples: int | None = None) -> Hyperedges:
    """The slots that turned out to be hyperedges, with their part of the table; of some rows only, if so many."""
    member_of_slot = np.repeat(np.arange(labels.n_members), labels.widths)
    occupied = table.diagonal() > 0
    if labels.silent:
        occupied[labels.offsets.astype(np.intp)] = False
    slots = np.flatnonzero(occupied)
    return Hyperedges(
        slots,
        member_of_slot[slots],
        table[np.ix_(slots, slots)],
        labels.n_slots,
        labels.n_members,
        labels.n_samples if n_samples is None else n_samples,
        n_silent,
    )
