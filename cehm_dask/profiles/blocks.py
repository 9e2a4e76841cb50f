"""What one block of rows adds to the profiles, and how blocks are put together.

Below the sweep. Counts are integers; sums of floats are made inside a block, row after row, and blocks, whose rows are
fixed, are joined in their order, so that neither chunks of a source nor threads nor workers change a bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import StoredConsensus, open_consensus
from cehm_dask.data.features import Features
from cehm_dask.errors import InputError
from cehm_dask.profiles import kernels

EXAMPLES = 5
"""Rows of highest, and of lowest, margin that are kept of every cluster."""

MOST_CATEGORIES = 200
"""Values of a column of categories; one with more names its rows rather than groups them, and is left out."""

Int = NDArray[np.int64]
Float = NDArray[np.float64]


class Assigned(Protocol):
    """Clusters of all rows, readable by rows from many threads."""

    @property
    def n_clusters(self) -> int: ...

    def read(self, start: int, stop: int) -> tuple[Int, Float | None, Float | None]:
        """Label (below 0: none), margin and confidence of the rows; None where they are not known."""
        ...


@dataclass(frozen=True, eq=False)
class HeldClusters:
    """Clusters in memory."""

    labels: NDArray[Any]
    n_clusters: int
    margin: NDArray[Any] | None = None
    confidence: NDArray[Any] | None = None

    def read(self, start: int, stop: int) -> tuple[Int, Float | None, Float | None]:
        known = (None if own is None else own[start:stop].astype(np.float64) for own in (self.margin, self.confidence))
        margin, confidence = known
        return self.labels[start:stop].astype(np.int64), margin, confidence


@dataclass(frozen=True, eq=False)
class StoredClusters:
    """Clusters in a consensus.zarr; opened where it is read."""

    url: str
    seal: str
    n_clusters: int

    @cached_property
    def _store(self) -> StoredConsensus:
        return open_consensus(self.url, self.seal)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def read(self, start: int, stop: int) -> tuple[Int, Float | None, Float | None]:
        store = self._store
        labels = np.asarray(store.array("labels")[start:stop]).astype(np.int64)
        if len(labels) and labels.max() >= self.n_clusters:
            raise InputError(f"store {self.url}: labels hold {labels.max()}, of {self.n_clusters} clusters")
        margin, confidence = (
            np.asarray(store.array(name)[start:stop]).astype(np.float64) if name in store else None
            for name in ("margin", "confidence")
        )
        return labels, margin, confidence


class Category(Protocol):
    """A column of categories beside the labels, readable by rows from many threads."""

    @property
    def name(self) -> str: ...

    def read(self, start: int, stop: int) -> tuple[NDArray[np.str_], Int]:
        """Names of the categories in some rows, and each row's place among them; below 0: not known."""
        ...


@dataclass(eq=False)
class Counted:
    """Samples of every cluster in every category of a column; adds up in any order."""

    names: NDArray[np.str_]
    table: Int
    """Clusters × categories."""
    too_many: bool = False

    def join(self, other: "Counted") -> "Counted":
        names = np.union1d(self.names, other.names)
        if self.too_many or other.too_many or len(names) > MOST_CATEGORIES:
            return Counted(names[:0], self.table[:, :0], too_many=True)
        table = np.zeros((len(self.table), len(names)), np.int64)
        for one in (self, other):
            table[:, np.searchsorted(names, one.names)] += one.table
        return Counted(names, table)


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows that stand for their clusters: at most EXAMPLES of each."""

    clusters: Int
    rows: Int
    margin: Float

    def join(self, other: "Examples", *, highest: bool) -> "Examples":
        clusters, rows, margin = (
            np.concatenate([getattr(one, name) for one in (self, other)]) for name in ("clusters", "rows", "margin")
        )
        # On a tie the lower row number, as everywhere.
        order = np.lexsort((rows, -margin if highest else margin, clusters))
        clusters, rows, margin = clusters[order], rows[order], margin[order]
        kept = np.arange(len(clusters)) - np.searchsorted(clusters, clusters) < EXAMPLES
        return Examples(clusters[kept], rows[kept], margin[kept])


@dataclass(eq=False)
class Sums:
    """Of some rows, by cluster: what does not depend on features."""

    sizes: Int
    margin: Float | None
    confidence: Float | None
    prototypes: Examples | None
    borders: Examples | None
    categories: list[Counted]

    def join(self, later: "Sums") -> None:
        self.sizes += later.sizes
        for name in ("margin", "confidence"):
            if getattr(self, name) is not None:
                getattr(self, name)[...] += getattr(later, name)
        if self.prototypes is not None and later.prototypes is not None:
            self.prototypes = self.prototypes.join(later.prototypes, highest=True)
        if self.borders is not None and later.borders is not None:
            self.borders = self.borders.join(later.borders, highest=False)
        self.categories = [a.join(b) for a, b in zip(self.categories, later.categories, strict=True)]


@dataclass(eq=False)
class Moments:
    """Of some rows: finite values of every cluster and column."""

    counts: Int
    means: Float
    """From the centre of the column on."""
    squares: Float
    """About the means."""
    low: Float
    high: Float
    bins: NDArray[Any]

    def join(self, later: "Moments") -> None:
        total = np.maximum(self.counts + later.counts, 1)
        off = later.means - self.means
        self.squares += later.squares + off**2 * (self.counts * (later.counts / total))
        self.means += off * (later.counts / total)
        self.counts += later.counts
        np.minimum(self.low, later.low, out=self.low)
        np.maximum(self.high, later.high, out=self.high)
        self.bins += later.bins


@dataclass(frozen=True, eq=False)
class Scale:
    """Where the bins of every column lie."""

    centre: Float
    per_unit: Float

    def part(self, columns: slice) -> "Scale":
        return Scale(self.centre[columns], self.per_unit[columns])


def moments_of(block: tuple[int, int], features: Features, clusters: Assigned, scale: Scale, columns: slice) -> Moments:
    """Of one block and some columns."""
    labels, _, _ = clusters.read(*block)
    values = np.ascontiguousarray(np.asarray(features.read(*block))[:, columns], np.float64)
    shape = (clusters.n_clusters, values.shape[1])
    counts, sums, squares = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape)
    low, high, bins = np.full(shape, np.inf), np.full(shape, -np.inf), np.zeros((*shape, kernels.BINS), np.int32)
    own = scale.part(columns)
    kernels.totals(values, labels, own.centre, counts, sums, low, high)
    means = sums / np.maximum(counts, 1)
    kernels.spreads(values, labels, means, own.centre, own.per_unit, squares, bins)
    return Moments(counts, means, squares, low, high, bins)


def sums_of(block: tuple[int, int], clusters: Assigned, categories: Sequence[Category]) -> Sums:
    """Of one block."""
    labels, margin, confidence = clusters.read(*block)
    k, inside = clusters.n_clusters, labels >= 0
    own = labels[inside]

    def added(values: Float | None) -> Float | None:
        return None if values is None else np.bincount(own, weights=values[inside], minlength=k).astype(np.float64)

    prototypes = None if margin is None else _examples(labels, margin, block[0], k, highest=True)
    borders = None if margin is None else _examples(labels, margin, block[0], k, highest=False)
    counted = [_counted(category, block, labels, k) for category in categories]
    sizes = np.bincount(own, minlength=k).astype(np.int64)
    return Sums(sizes, added(margin), added(confidence), prototypes, borders, counted)


def _examples(labels: Int, margin: Float, first_row: int, k: int, *, highest: bool) -> Examples:
    order = np.argsort(labels, kind="stable")
    edges = np.searchsorted(labels[order], np.arange(k + 1))
    ranked = -margin if highest else margin
    found = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rows = order[begin:end]
        if len(rows) > EXAMPLES:
            limit = np.partition(ranked[rows], EXAMPLES - 1)[EXAMPLES - 1]
            under = rows[ranked[rows] < limit]
            rows = np.concatenate([under, rows[ranked[rows] == limit][: EXAMPLES - len(under)]])
        found.append(rows)
    rows = np.concatenate(found)
    made = Examples(labels[rows], rows + first_row, margin[rows])
    nothing = Examples(made.clusters[:0], made.rows[:0], made.margin[:0])
    return made.join(nothing, highest=highest)


def _counted(category: Category, block: tuple[int, int], labels: Int, k: int) -> Counted:
    names, places = category.read(*block)
    names, place_of = np.unique(names, return_inverse=True)
    if len(names) > MOST_CATEGORIES:
        return Counted(names[:0], np.zeros((k, 0), np.int64), too_many=True)
    both = (labels >= 0) & (places >= 0)
    cells = labels[both] * len(names) + place_of[places[both]]
    table = np.bincount(cells, minlength=k * len(names)).reshape(k, len(names)).astype(np.int64)
    return Counted(names, table)
