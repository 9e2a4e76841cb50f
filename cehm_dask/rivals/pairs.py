"""What the rivals that compare every two samples share: a refusal before work, incidence, co-association.

Their memory grows with n²; they hold all labels of all samples in this process. Some look at distinct rows of labels
only (microclusters): there, n counts those.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.labels import Labels
from cehm_dask.errors import BudgetError
from cehm_dask.job import Where, machine_of
from cehm_dask.machine import format_bytes
from cehm_dask.method.params import Params, check_fit
from cehm_dask.rivals.rows import Floats, Found


@dataclass(frozen=True, eq=False)
class Samples:
    """Labels of all samples that have some, in this process."""

    edges: NDArray[np.intp]
    """Hyperedge of each sample (or distinct row) by each member; -1 where the label is missing."""
    members: NDArray[np.intp]
    """Member of each hyperedge."""
    counts: NDArray[np.intp]
    """Samples that share each row; all 1 where rows are samples."""
    back: NDArray[np.intp]
    """Row of each sample; -1: no member says anything about it."""

    def __len__(self) -> int:
        return len(self.edges)

    @property
    def n_members(self) -> int:
        return int(self.edges.shape[1])

    def incidence(self) -> Floats:
        """B: one row per sample, one column per hyperedge."""
        table = np.zeros((len(self.edges), len(self.members)))
        row, member = np.nonzero(self.edges >= 0)
        table[row, self.edges[row, member]] = 1.0
        return table

    def co_association(self, weights: Floats | None = None) -> Floats:
        """Share of the members that put two samples into one cluster, among those that speak of both.

        With ``weights``, a cluster counts by its own. The diagonal is 1.
        """
        B = self.incidence()
        together = (B if weights is None else B * weights) @ B.T
        spoken = (self.edges >= 0).astype(np.float64)
        together /= self.n_members if spoken.all() else np.maximum(spoken @ spoken.T, 1.0)
        np.fill_diagonal(together, 1.0)
        return together

    def labels_back(self, found: NDArray[np.integer]) -> Found:
        """Labels of rows → labels of all samples."""
        return np.append(found, -1)[self.back].astype(np.int16)


def admitted(
    title: str,
    labels: Labels,
    n_clusters: int,
    where: Where,
    *,
    largest: int,
    bytes_a_pair: int,
    distinct: bool = False,
) -> Samples:
    """The samples, read and numbered; refused if there are more than ``largest`` or their pairs do not fit.

    ``distinct``: take samples with the same labels as one.
    """
    check_fit(Params(n_clusters), labels.n_samples)
    if not distinct:
        refuse(title, labels.n_samples, "samples", where, largest, bytes_a_pair)
    machine = machine_of(Where(memory=where.memory))
    held = labels.n_samples * (3 * labels.n_members * labels.itemsize + 16)
    if machine.taken + held > machine.allowed:
        raise BudgetError(
            f"{title}: memory={format_bytes(machine.allowed)} allowed < {format_bytes(machine.taken + held)} projected "
            "for all labels in one process; choose a method that is linear in n, such as usenc"
        )
    codes = np.ascontiguousarray(labels.read(0, labels.n_samples))
    known = codes.any(axis=1) if labels.silent else np.ones(len(codes), bool)
    spoken = codes[known]
    inside, counts = np.arange(len(spoken)), np.ones(len(spoken), np.intp)
    if distinct:
        keys = spoken.view(np.dtype((np.void, spoken.dtype.itemsize * spoken.shape[1])))[:, 0]
        _, first, inside, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        refuse(title, len(first), "different rows of labels", where, largest, bytes_a_pair)
        spoken = spoken[first]
    check_fit(Params(n_clusters), len(spoken))
    slots = spoken.astype(np.intp) + labels.offsets.astype(np.intp)
    filled = np.zeros(labels.n_slots, bool)
    filled[slots] = True
    if labels.silent:
        filled[labels.offsets.astype(np.intp)] = False
    numbers = np.where(filled, np.cumsum(filled) - 1, -1)
    members = np.repeat(np.arange(labels.n_members), labels.widths)[filled]
    check_fit(Params(n_clusters), len(spoken), len(members))
    back = np.full(labels.n_samples, -1)
    back[known] = inside
    return Samples(numbers[slots], members, counts, back)


def refuse(title: str, n: int, what: str, where: Where, largest: int, bytes_a_pair: int) -> None:
    """An error if tables of every two of n things are too many bytes."""
    needed = bytes_a_pair * n**2
    machine = machine_of(Where(memory=where.memory))
    if n > largest:
        raise BudgetError(
            f"{title}: {n:,} {what} > {largest:,}, the most it takes; its tables of every two of them would need "
            f"{format_bytes(needed)}; choose a method that is linear in n, such as usenc"
        )
    if machine.taken + needed > machine.allowed:
        raise BudgetError(
            f"{title}: memory={format_bytes(machine.allowed)} allowed < {format_bytes(machine.taken + needed)} "
            f"projected for tables of every two of {n:,} {what}; allow more, or choose a method that is linear in n, "
            "such as usenc"
        )
