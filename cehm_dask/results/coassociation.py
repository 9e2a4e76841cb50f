"""Consensus matrices of base labels, and what users of resampling read from them: CDF, delta area, PAC, consensus of
clusters and items.

After the members, beside the scores. The definitions are those of ConsensusClusterPlus, extended to missing labels: of
the members that label both of two samples, the share that puts them together. Counts are exact integers, in any order.
A table of every two samples is made of so many samples at most; of more, a seeded sample is taken.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.encoding import rows_read
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.errors import InputError
from cehm_dask.estimator import CEHM
from cehm_dask.machine import one_thread, require_memory, this_machine

MOST_ROWS = 4000
"""Samples of which every two are compared; more are sampled. With 1,000 members of 8 clusters, one consensus matrix of
so many took 9 s of one core and 0.8 GB."""

BREAKS = 100
"""Steps of the CDF, as in ConsensusClusterPlus."""

COLUMNS = 4096
"""Base clusters in one matrix product: 64 MB for the most rows. Float32 sums of so many ones are exact up to 2²⁴."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Chosen:
    """Base labels of chosen samples by some members."""

    rows: NDArray[np.int64]
    """Sample numbers, ascending."""
    codes: NDArray[np.int64]
    """(n_rows, n_members): label of each, from 0; -1 where it is missing."""
    n_clusters: NDArray[np.int64]
    """Clusters that each member has, in all samples."""

    def of(self, members: NDArray[np.bool_]) -> "Chosen":
        """The same samples by some of the members."""
        return Chosen(self.rows, self.codes[:, members], self.n_clusters[members])


def choose_rows(
    base_labels: Any, *, rows: Sequence[int] | None = None, most_rows: int = MOST_ROWS, seed: int = 0
) -> Chosen:
    """Base labels of some samples, in one pass over all.

    Parameters
    ----------
    base_labels
        In any form that :class:`CEHM` takes.
    rows : sequence of int, optional
        Sample numbers. Default: all, or ``most_rows`` of them drawn without repetition by ``seed``.
    """
    labels = as_labels(base_labels)
    if rows is not None:
        picked = np.unique(np.asarray(rows, np.int64))
        if not picked.size or picked[0] < 0 or picked[-1] >= labels.n_samples:
            raise InputError(f"rows: expected numbers from 0 to {labels.n_samples - 1}, at least one")
    elif labels.n_samples > most_rows:
        drawn = np.random.default_rng(seed).choice(labels.n_samples, most_rows, replace=False, shuffle=False)
        picked = np.sort(drawn).astype(np.int64)
    else:
        picked = np.arange(labels.n_samples)
    codes = np.empty((len(picked), labels.n_members), np.int64)
    filled = np.zeros(labels.n_slots, bool)
    first_slot = labels.offsets.astype(np.int64)
    step = rows_read(labels.n_members)
    for start in range(0, labels.n_samples, step):
        block = labels.read(start, min(start + step, labels.n_samples)).astype(np.int64)
        filled[block + first_slot] = True
        low, high = np.searchsorted(picked, [start, start + step])
        codes[low:high] = block[picked[low:high] - start]
    return Chosen(picked, codes - int(labels.silent), _filled_slots(labels, filled))


def _filled_slots(labels: Labels, filled: NDArray[np.bool_]) -> NDArray[np.int64]:
    first_slot = labels.offsets.astype(np.intp)
    if labels.silent:
        filled[first_slot] = False
    return np.add.reduceat(filled.astype(np.int64), first_slot)


@dataclass(frozen=True, eq=False)
class CoAssociation:
    """How often every two of some samples were put together, and labelled at all, in exact counts."""

    rows: NDArray[np.int64]
    """Sample numbers, ascending."""
    together: NDArray[np.int32]
    """Members that put two samples into one cluster."""
    both: NDArray[np.int32]
    """Members that label both."""
    n_members: int

    def matrix(self) -> Floats:
        """The consensus matrix: shares from 0 to 1; 0 where no member labels both."""
        return np.asarray(self.together / np.maximum(self.both, 1))

    def _pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Counts of every two different samples, once each."""
        if len(self.rows) < 2:
            raise InputError(f"n_rows={len(self.rows)}: at least two samples are needed to compare")
        pair = np.tri(len(self.rows), k=-1, dtype=bool)
        return self.together[pair].astype(np.int64), np.maximum(self.both[pair], 1).astype(np.int64)

    def cdf(self, breaks: int = BREAKS) -> Floats:
        """Share of the pairs whose consensus is at most 1/breaks, 2/breaks, …, 1."""
        together, both = self._pairs()
        step = np.maximum(-(-breaks * together // both) - 1, 0)  # the step (a, b] that the share lies in, exactly
        counts = np.bincount(step, minlength=breaks)
        return np.asarray(np.cumsum(counts) / counts.sum())

    def area(self, breaks: int = BREAKS) -> float:
        """Area under the CDF, as a sum of steps."""
        return float(self.cdf(breaks).sum() / breaks)

    def pac(self, lower: float = 0.1, upper: float = 0.9) -> float:
        """Proportion of ambiguous clustering: CDF(upper) − CDF(lower), the share of pairs in (lower, upper]."""
        together, both = self._pairs()
        low, high = Fraction(str(lower)), Fraction(str(upper))
        above = together * low.denominator > both * low.numerator
        below = together * high.denominator <= both * high.numerator
        return float(np.count_nonzero(above & below) / len(together))

    def item_consensus(self, labels: Any) -> Floats:
        """Mean consensus of each sample with the others of each cluster.

        Parameters
        ----------
        labels : (n_rows,) int
            Cluster of each of the chosen samples, from 0; -1: none.

        Returns
        -------
        (n_rows, n_clusters) float64
            NaN for the only sample of a cluster.
        """
        inside = self._inside(labels)
        matrix = self.matrix()
        np.fill_diagonal(matrix, 0.0)
        others = inside.sum(axis=0) - inside
        return np.asarray(np.divide(matrix @ inside, others, out=np.full(inside.shape, np.nan), where=others > 0))

    def cluster_consensus(self, labels: Any) -> Floats:
        """Mean consensus of every two samples of a cluster, by cluster; NaN for one with a single sample."""
        inside = self._inside(labels)
        matrix = self.matrix()
        np.fill_diagonal(matrix, 0.0)
        sizes = inside.sum(axis=0)
        pairs = sizes * (sizes - 1)
        sums = np.einsum("ik,ik->k", matrix @ inside, inside)
        return np.asarray(np.divide(sums, pairs, out=np.full(len(sizes), np.nan), where=pairs > 0))

    def _inside(self, labels: Any) -> Floats:
        given = np.asarray(labels)
        if given.shape != self.rows.shape or given.dtype.kind not in "iu":
            raise InputError(
                f"labels have shape {given.shape}: expected a whole number for each of {len(self.rows)} rows"
            )
        return np.asarray(given[:, None] == np.arange(max(int(given.max()) + 1, 1)), np.float64)


def co_association(
    base_labels: Any,
    *,
    rows: Sequence[int] | None = None,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    memory: str | int | None = None,
) -> CoAssociation:
    """Count how often every two samples were put together.

    Parameters
    ----------
    base_labels
        In any form that :class:`CEHM` takes, or what :func:`choose_rows` gives. -1 is a missing label.
    rows : sequence of int, optional
        Sample numbers to compare. Default: all, or ``most_rows`` of them drawn without repetition by ``seed``.
    memory : str or int, optional
        What this process may take in all, such as "2GiB"; default: a share of what is free.

    Examples
    --------
    >>> import numpy as np
    >>> from cehm_dask.results.coassociation import co_association
    >>> labels = np.array([[0, 0, -1], [0, 0, 0], [1, 0, 1], [1, -1, 1]])
    >>> co_association(labels).matrix().round(2).tolist()
    [[1.0, 1.0, 0.5, 0.0], [1.0, 1.0, 0.33, 0.0], [0.5, 0.33, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
    """
    if not isinstance(base_labels, Chosen):
        base_labels = choose_rows(base_labels, rows=rows, most_rows=most_rows, seed=seed)
    codes = base_labels.codes
    _refuse_large(codes, 1, memory)
    together, both = (np.zeros((len(codes), len(codes)), np.int32) for _ in range(2))
    width = int(codes.max(initial=0)) + 1
    step = max(1, COLUMNS // width)
    for first in range(0, codes.shape[1], step):
        part = codes[:, first : first + step]
        spoken = (part >= 0).astype(np.float32)
        both += (spoken @ spoken.T).astype(np.int32)
        ones = np.zeros((len(part), part.shape[1] * width), np.float32)
        row, member = np.nonzero(part >= 0)
        ones[row, member * width + part[row, member]] = 1.0
        together += (ones @ ones.T).astype(np.int32)
    return CoAssociation(base_labels.rows, together, both, codes.shape[1])


def between_clusters(counts: NDArray[np.int64], members: NDArray[np.int64]) -> Floats:
    """Mean consensus of the samples of every two clusters, over all pairs of samples, from the counts alone.

    Of the members that label both samples of a pair, summed over the pairs, the share that puts them together: no pair
    is looked at, whatever n is.

    Parameters
    ----------
    counts : (n_hyperedges, n_clusters) int
        Samples each base cluster shares with each cluster.
    members : (n_hyperedges,) int
        Member of each base cluster, ascending.

    Returns
    -------
    (n_clusters, n_clusters) float64
        NaN where there is no pair, as in a cluster of one sample.

    Examples
    --------
    >>> import numpy as np
    >>> between_clusters(np.array([[2, 0], [0, 2], [2, 1], [0, 1]]), np.array([0, 0, 1, 1])).tolist()
    [[1.0, 0.25], [0.25, 0.5]]
    """
    shared = counts.astype(np.float64)
    spoken = np.add.reduceat(shared, np.flatnonzero(np.diff(members, prepend=-1)), axis=0)
    with one_thread():
        together, both = shared.T @ shared, spoken.T @ spoken
    # A sample is no pair with itself.
    together[np.diag_indices_from(together)] -= shared.sum(axis=0)
    both[np.diag_indices_from(both)] -= spoken.sum(axis=0)
    return np.asarray(np.divide(together, both, out=np.full(both.shape, np.nan), where=both > 0))


def _refuse_large(codes: NDArray[np.int64], tables: int, memory: str | int | None) -> None:
    """An error if so many consensus matrices, and what is read from one at a time, do not fit."""
    machine, pairs = this_machine(memory), len(codes) ** 2
    terms = {
        "this process": machine.taken,
        "labels of the samples": 8 * codes.size,
        "counts of every two samples": 8 * pairs * tables,
        "a product": 4 * pairs + 4 * len(codes) * COLUMNS,
        "the consensus matrix": 8 * pairs,
        "shares of all pairs": 12 * pairs,
    }
    require_memory(f"{len(codes):,} samples by pairs", terms, machine.allowed, ", or compare fewer samples")


def delta_areas(areas: Sequence[float]) -> list[float]:
    """Relative growth of the area under the CDF from each k to the next; of the first k, the area itself.

    >>> delta_areas([0.5, 0.75, 0.75])
    [0.5, 0.5, 0.0]
    """
    return [*areas[:1], *((own - before) / before for before, own in pairwise(areas))]


@dataclass(frozen=True, eq=False)
class Stability:
    """One number of clusters: its consensus matrix, a clustering, and how stable they are."""

    n_clusters: int
    co: CoAssociation
    labels: NDArray[np.int16]
    """Consensus of these members for the chosen samples."""
    delta_area: float

    def record(self) -> dict[str, Any]:
        """The figures, as plain numbers."""
        consensus = self.co.cluster_consensus(self.labels)
        return {
            "n_clusters": self.n_clusters,
            "n_members": self.co.n_members,
            "n_rows": len(self.co.rows),
            "area": self.co.area(),
            "delta_area": self.delta_area,
            "pac": self.co.pac(),
            "cluster_consensus": consensus.tolist(),
            "sizes": np.bincount(self.labels[self.labels >= 0], minlength=len(consensus)).tolist(),
        }

    def own_consensus(self) -> Floats:
        """Item consensus of each sample with its own cluster; NaN where it has none, or is alone in it."""
        items = self.co.item_consensus(self.labels)
        own = np.take_along_axis(items, np.maximum(self.labels, 0).astype(np.intp)[:, None], axis=1)[:, 0]
        return np.where(self.labels >= 0, own, np.nan)


def stability(
    base_labels: Any,
    n_clusters: Sequence[int],
    *,
    all_members: bool = False,
    rows: Sequence[int] | None = None,
    most_rows: int = MOST_ROWS,
    seed: int = 0,
    memory: str | int | None = None,
) -> list[Stability]:
    """Consensus matrix and consensus clustering for several numbers of clusters.

    Parameters
    ----------
    base_labels
        In any form that :class:`CEHM` takes; members of all numbers of clusters side by side.
    n_clusters : sequence of int
        For each, the members that have so many clusters are taken, as ConsensusClusterPlus does.
    all_members : bool, default False
        Take all members for every k instead: then only the clusterings differ.
    rows, most_rows, seed, memory
        As in :func:`co_association`. The clustering is :class:`CEHM`'s, of the chosen samples.
    """
    chosen = choose_rows(base_labels, rows=rows, most_rows=most_rows, seed=seed)
    taken = {k: np.ones(len(chosen.n_clusters), bool) if all_members else chosen.n_clusters == k for k in n_clusters}
    for k, members in taken.items():
        if not members.any():
            there = ", ".join(map(str, np.unique(chosen.n_clusters)))
            raise InputError(
                f"k={k}: no member has so many clusters; they have {there}. Choose among these, or take all members "
                "for every k"
            )
    _refuse_large(chosen.codes, len(taken), memory)
    found = [(k, chosen.of(members)) for k, members in taken.items()]
    tables = [co_association(own, memory=memory) for _, own in found]
    deltas = delta_areas([table.area() for table in tables])
    return [
        Stability(k, table, np.asarray(CEHM(k, random_state=seed).fit(own.codes).labels_), delta)
        for (k, own), table, delta in zip(found, tables, deltas, strict=True)
    ]
