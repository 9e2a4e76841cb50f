"""SEC: spectral ensemble clustering as a weighted k-means of the incidence matrix. Linear in n."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.cluster import kmeans_plusplus

from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import Codes
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.job import Where
from cehm_dask.method import kernels
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.rivals.rows import Floats, Found, counted, spoken, vote

HERE = Where()

ROUNDS = 100
RESTARTS = 3
SAMPLE_ROWS = 1 << 12
"""Rows, drawn at random, among which the starting centres are chosen."""

Counts = NDArray[np.int64]


def sec(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Spectral ensemble clustering (Liu et al., KDD 2015): k-means of b_i / w_i with weights w_i.

    w_i is the sum of the sizes of the sample's hyperedges. The centre of a cluster e is then C_e / Σ w_i, with C_e
    the samples it shares with each hyperedge, and the nearest centre has the largest sum over the sample's
    hyperedges of c_e − size·‖c_e‖²/2: whole numbers and sums by row, no matrix. Chosen: three starts side by side,
    weighted k-means++ on a sample of 4,096 rows, at most 100 rounds, the least inertia.

    Missing labels: zeros in b_i, nothing in w_i. Samples without any: -1.
    """
    with counted(labels, n_clusters, where, scratch=40 * RESTARTS) as (engine, hyperedges):
        rng = np.random.default_rng(seed)
        votes = [_votes(counts, hyperedges) for counts in _starts(engine, hyperedges, n_clusters, rng)]
        gains = np.zeros(RESTARTS)
        before = [np.empty((0, 0), np.int64)] * RESTARTS
        moving = list(range(RESTARTS))
        for _ in range(ROUNDS):
            tables = [hyperedges.to_slots(votes[start]) for start in moving]
            found = engine.sweep("k-means", _count, _add, tables, n_clusters)
            for start, slot_counts in zip(list(moving), found, strict=True):
                counts = slot_counts[hyperedges.slots]
                gains[start] = _gain(counts, hyperedges)
                if np.array_equal(counts, before[start]):
                    moving.remove(start)
                before[start], votes[start] = counts, _votes(counts, hyperedges)
            if not moving:
                break
        return vote(engine, hyperedges, votes[int(np.argmax(gains))])


def _starts(engine: Engine, hyperedges: Hyperedges, n_clusters: int, rng: np.random.Generator) -> list[Counts]:
    """Counts of k single rows, for each start."""
    n, labels = engine.labels.n_samples, engine.labels
    rows = np.sort(rng.choice(n, SAMPLE_ROWS, replace=False)) if n > SAMPLE_ROWS else np.arange(n)
    codes = engine.sweep("sample", _pick, _stack, rows)
    codes = codes[codes.any(axis=1)] if labels.silent else codes
    slots = codes.astype(np.int64) + labels.offsets.astype(np.int64)
    place = np.full(labels.n_slots, -1)
    place[hyperedges.slots] = np.arange(hyperedges.n_hyperedges)
    edges = place[slots]
    row = np.repeat(np.arange(len(codes)), labels.n_members).reshape(edges.shape)
    known = edges >= 0
    shape = (len(codes), hyperedges.n_hyperedges)
    incidence = sparse.csr_matrix((np.ones(known.sum()), (row[known], edges[known])), shape)
    weights = incidence @ hyperedges.sizes.astype(np.float64)
    points = sparse.csr_matrix(sparse.diags(1.0 / weights) @ incidence)
    chosen = []
    for _ in range(RESTARTS):
        _, picked = kmeans_plusplus(points, n_clusters, sample_weight=weights, random_state=int(rng.integers(2**31)))
        chosen.append(incidence[picked].toarray().T.astype(np.int64))
    return chosen


def _pick(span: Span, rows: NDArray[np.intp]) -> Codes:
    found = []
    for block in span.blocks():
        low, high = np.searchsorted(rows, [block.start, block.stop])
        found.append(block.codes[rows[low:high] - block.start] if low < high else block.codes[:0])
    return np.concatenate(found)


def _stack(parts: Sequence[Codes]) -> Codes:
    return np.concatenate(parts)


def _weights(counts: Counts, hyperedges: Hyperedges) -> Floats:
    """Σ w_i of each cluster, at least 1: C knows it, because w is a sum over hyperedges."""
    return np.asarray(np.maximum(hyperedges.sizes.astype(np.float64) @ counts, 1.0))


def _gain(counts: Counts, hyperedges: Hyperedges) -> float:
    """Σ_e ‖C_e‖² / Σ w: the inertia is least where this is largest."""
    return float(np.sum(np.sum(counts.astype(np.float64) ** 2, axis=0) / _weights(counts, hyperedges)))


def _votes(counts: Counts, hyperedges: Hyperedges) -> Floats:
    """What each hyperedge adds to the nearness of the centres, shifted so that none is negative."""
    centres = counts / _weights(counts, hyperedges)
    squares = np.sum(centres**2, axis=0)
    shift = hyperedges.sizes[:, None] * (squares.max() - squares) / 2
    return np.asarray(centres + shift)


def _nearest(codes: Codes, span: Span, tables: Sequence[Floats]) -> Found:
    best, margin = np.empty((len(tables), len(codes)), np.int16), np.empty((len(tables), len(codes)))
    kernels.belonging(codes, span.offsets, *kernels.side_by_side(tables), best, margin)
    return best


def _count(span: Span, tables: Sequence[Floats], n_clusters: int) -> list[Counts]:
    """C = HᵀA of each start, over all slots."""
    counts = [np.zeros((span.n_slots, n_clusters), np.int64) for _ in tables]
    every = np.iinfo(np.int64).max
    for block in span.blocks():
        codes = block.codes
        some = spoken(span, codes)
        keys = np.zeros(len(codes), np.uint64)
        for best, table in zip(_nearest(codes, span, tables), counts, strict=True):
            assignment = np.full(len(codes), kernels.UNASSIGNED, np.int16)
            if some is not None:
                assignment[~some] = kernels.SILENT
            kernels.assign(codes, span.offsets, best, keys, np.uint64(0), block.start, every, assignment, table)
    return counts


def _add(parts: Sequence[list[Counts]]) -> list[Counts]:
    return [np.sum(tables, axis=0) for tables in zip(*parts, strict=True)]
