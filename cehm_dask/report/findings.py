"""consensus.zarr → the numbers of the report.

Reads small tables as they are, and labels and margins in one sweep, chunk by chunk: the least certain samples, the
mean margin and the samples of the picture come from it. Nothing of size n is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from cehm_dask.data.consensus_store import StoredConsensus, open_consensus
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.labels import Labels
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.errors import StoreError
from cehm_dask.machine import Machine
from cehm_dask.method.agreement import block_nmi
from cehm_dask.report.neighbours import EMBEDDING_BYTES, MOST_AXES
from cehm_dask.report.picture import MOST_POINTS

LEAST_CERTAIN = 50
SWEEP_ROWS = 1 << 18
PAGE_BYTES = 64 << 20
"""Figures, their parts and the text of the page, which is under 5 MB."""
BINS = 50
"""Of the histograms of the margin."""
OUTLYING_MADS = 3.0
OUTLYING_AT_LEAST = 0.02
"""A member is outlying if its mean NMI with the others lies so many (scaled) median absolute deviations, and at least
so much, below the median member's."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the sweep over labels and margins found."""

    rows: NDArray[np.int64]
    """The samples of the picture, ascending."""
    labels: NDArray[np.int64]
    margin: NDArray[np.float64]
    doubtful: NDArray[np.int64]
    """Rows of the least certain samples, the least certain first."""
    doubtful_labels: NDArray[np.int64]
    doubtful_margin: NDArray[np.float64]
    mean_margin: float
    cluster_margin: NDArray[np.float64]
    """Mean margin in each cluster."""
    histogram: NDArray[np.int64]
    """Margins in each cluster, in equal bins from 0 to 1."""
    unit: float
    """What a margin of 1 means, in the units of the store."""


def page_terms(
    n_samples: int, n_members: int, n_hyperedges: int, n_clusters: int, chunk_rows: int, machine: Machine
) -> dict[str, int]:
    """Bytes that a report takes, apart from the picture of features, by what they are for."""
    return {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        # labels and margins as stored and as numbers of 8 bytes, places, bins, and what sorts them
        "labels and margins of a block": 72 * min(n_samples, max(chunk_rows, SWEEP_ROWS)),
        "tables of base clusters": 8 * n_hyperedges * (6 * n_clusters + 2) + 6 * 8 * n_members**2,
        "samples of the picture": MOST_POINTS * (8 * 40 + 16 * n_members + 3 * 8 * MOST_AXES),
        "neighbour embedding": EMBEDDING_BYTES,
        "the page": PAGE_BYTES,
    }


def unit_of(store: StoredConsensus) -> float:
    """What margins are shares of: of what all members give; where belonging is a plain count, of the largest margin."""
    if store.facts["belonging"] != "count":
        return 1.0
    margin = store.array("margin")
    starts = range(0, margin.shape[0], SWEEP_ROWS)
    return max(float(np.max(margin[start : start + SWEEP_ROWS])) for start in starts) or 1.0


def sampled_places(store: StoredConsensus) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The samples of the picture: their places in the trail, if there is one, and their rows."""
    n = int(store.facts["n_samples"])
    if "trail_rows" in store:
        rows = np.asarray(store.array("trail_rows")[...], np.int64)
        places = _thinned(len(rows), MOST_POINTS)
        return places, rows[places]
    if n <= MOST_POINTS:
        return np.arange(n), np.arange(n)
    rows = np.sort(np.random.default_rng(0).choice(n, MOST_POINTS, replace=False, shuffle=False))
    return np.arange(MOST_POINTS), rows


def _thinned(count: int, most: int) -> NDArray[np.int64]:
    """At most so many numbers below count, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def look(store: StoredConsensus, rows: NDArray[np.int64]) -> Seen:
    """One sweep over labels and margins; one more before it if the unit of the margins has to be found."""
    labels, margin, k, unit = store.array("labels"), store.array("margin"), store.facts["n_clusters"], unit_of(store)
    n, chunk = labels.shape[0], labels.chunks[0]
    step = max(chunk, SWEEP_ROWS // chunk * chunk)
    found_labels, found_margin = np.empty(len(rows), np.int64), np.empty(len(rows))
    doubt = np.empty(0, [("margin", np.float32), ("row", np.int64), ("label", np.int64)])
    total, stored = np.zeros(k), optional(store, "margin_histogram") if unit == 1.0 else None
    histogram = np.zeros((k, BINS), np.int64) if stored is None else stored.astype(np.int64)
    for start in range(0, n, step):
        own_labels = np.asarray(labels[start : start + step])
        own_margin = np.asarray(margin[start : start + step]) / np.float32(unit)
        first, last = np.searchsorted(rows, [start, start + len(own_labels)])
        places = rows[first:last] - start
        found_labels[first:last], found_margin[first:last] = own_labels[places], own_margin[places]
        spoken = np.flatnonzero(own_labels >= 0)
        own = own_labels[spoken].astype(np.int64)
        if len(own) and own.max() >= k:
            raise StoreError(f"store {store.url}: labels hold {own.max()}, of {k} clusters: edited or damaged")
        total += np.bincount(own, weights=own_margin[spoken], minlength=k)
        if stored is None:  # margins in other units than shares, or a store of an earlier version
            bins = np.clip((own_margin[spoken] * BINS).astype(np.int64), 0, BINS - 1)
            histogram += np.bincount(own * BINS + bins, minlength=k * BINS).reshape(k, BINS)
        if len(spoken) > LEAST_CERTAIN:
            limit = np.partition(own_margin[spoken], LEAST_CERTAIN)[LEAST_CERTAIN]
            under = spoken[own_margin[spoken] < limit]
            # On a tie the lower row numbers, as everywhere.
            spoken = np.concatenate([under, spoken[own_margin[spoken] == limit][: LEAST_CERTAIN - len(under)]])
        new = np.empty(len(spoken), doubt.dtype)
        new["margin"], new["row"], new["label"] = own_margin[spoken], spoken + start, own_labels[spoken]
        doubt = np.concatenate([doubt, new])
        doubt = doubt[np.lexsort((doubt["row"], doubt["margin"]))][:LEAST_CERTAIN]
    return Seen(
        rows,
        found_labels,
        found_margin,
        doubt["row"],
        doubt["label"],
        doubt["margin"].astype(np.float64),
        float(total.sum() / max(1, histogram.sum())),
        total / np.maximum(1, histogram.sum(axis=1)),
        histogram,
        unit,
    )


@dataclass(frozen=True, eq=False)
class Members:
    """How the members relate to one another and to the consensus."""

    names: list[str]
    clusters: NDArray[np.int64]
    with_others: NDArray[np.float64]
    """Mean NMI with the other members; nan for a single member."""
    with_consensus: NDArray[np.float64]
    outlying: NDArray[np.bool_]
    limit: float
    """Mean NMI below which a member is outlying."""
    shown: list[int]
    """Members in the heat map, like beside like."""
    agreement: NDArray[np.float64]
    """NMI of every two of those."""


MOST_MEMBERS = 120
"""Members in the heat map: outlying ones first, then the others."""


def members_of(store: StoredConsensus) -> Members:
    """Compare the members; the order of the heat map is that of a dendrogram's leaves."""
    names = [str(name) for name in store.facts["members"]]
    table = np.asarray(store.array("member_agreement")[...])
    owner = np.asarray(store.array("hyperedge_member")[...])
    counts = np.asarray(store.array("counts")[...])
    count = len(names)
    to_consensus = np.zeros(count)
    found = block_nmi(counts, owner.astype(np.intp), np.zeros(counts.shape[1], np.intp))[:, 0]
    to_consensus[: len(found)] = found
    compared = np.arange(count)
    if store.facts.get("compared_members") is not None:
        compared = np.asarray(store.facts["compared_members"], np.intp)
    mean = np.full(count, np.nan)
    if len(compared) > 1:
        mean[compared] = (table.sum(axis=1) - 1.0) / (len(compared) - 1)
    middle = float(np.median(mean[compared]))
    spread = 1.4826 * float(np.median(np.abs(mean[compared] - middle)))
    limit = middle - max(OUTLYING_MADS * spread, OUTLYING_AT_LEAST)
    # Of two members neither can be the outlier.
    outlying = (mean < limit) if count > 2 else np.zeros(count, bool)
    by_interest = np.argsort(~outlying[compared], kind="stable")[:MOST_MEMBERS]
    places = np.sort(by_interest)
    if len(places) > 2:
        distance = 1.0 - (table + table.T)[np.ix_(places, places)] / 2
        np.fill_diagonal(distance, 0.0)
        tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
        places = places[leaves_list(tree)]
    return Members(
        names,
        np.bincount(owner, minlength=count),
        mean,
        to_consensus,
        outlying,
        limit,
        compared[places].tolist(),
        table[np.ix_(places, places)],
    )


def quantiles(histogram: NDArray[np.int64], shares: Sequence[float]) -> list[float]:
    """Margins below which the given shares of samples lie, to a bin's width."""
    total = histogram.sum(axis=0)
    below = np.cumsum(total) / max(1, total.sum())
    return [float((np.searchsorted(below, share) + 1) / len(total)) for share in shares]


def open_finished(url: str) -> StoredConsensus:
    """A finished consensus, with what reports need."""
    store = open_consensus(url)
    needed = ("labels", "margin", "counts", "sizes", "member_agreement", "hyperedge_member")
    missing = [name for name in needed if name not in store]
    if missing:
        raise StoreError(f"store {url}: lacks {', '.join(missing)}; create it again with 'cehm consensus'")
    return store


def optional(store: StoredConsensus, name: str) -> Any:
    """A small array that stores made by earlier programs lack."""
    return np.asarray(store.array(name)[...]) if name in store else None


def runners_up(store: StoredConsensus, labels: Labels, rows: NDArray[np.int64], own: NDArray[np.int64]) -> Any:
    """The cluster each of a few rows belongs to most after its own, -1 if to none; None if that cannot be known."""
    counts = np.asarray(store.array("counts")[...])
    spoken = np.ones(labels.n_slots, bool)
    if labels.silent:
        spoken[labels.offsets.astype(np.intp)] = False
    if isinstance(labels.source, Ensemble):
        spoken[spoken] = labels.source.sizes > 0
    if counts.shape[1] < 2 or np.count_nonzero(spoken) != len(counts):
        return None  # one cluster, or labels with gaps, whose hyperedges only a sweep would find
    weights = np.zeros((labels.n_slots, counts.shape[1]))
    weights[spoken] = store.array("weights")[...]
    codes = np.concatenate([labels.read(int(row), int(row) + 1) for row in rows]).astype(np.int64)
    belonging = weights[codes + labels.offsets.astype(np.int64)].sum(axis=1)
    belonging[np.arange(len(rows)), own] = -1.0
    return np.where(belonging.max(axis=1) > 0, belonging.argmax(axis=1), -1)
