"""k-means of the rows of B·V, block by block, without forming B·V where it does not fit.

The last step of the spectral rivals. A row's point is the sum of V over its hyperedges, scaled to unit length and
rounded to a multiple of 2⁻²²: then sums of points are exact in double precision (up to 2·10⁹ rows), and centres, and
so labels, are the same whatever the blocks and workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import kmeans_plusplus

from cehm_dask import kernels
from cehm_dask.engine import Engine, Run
from cehm_dask.rivals.rows import Floats, Found, collect, spoken

GRAIN = 2.0**-22
"""Points are multiples of this; with entries up to 1 they are exact in single precision."""

ROUNDS = 100
RESTARTS = 3
"""As in U-SENC's program."""

SAMPLE_ROWS = 1 << 14
"""Rows, drawn at random, on which the starting centres are found."""

Points = NDArray[np.float32]
Sums = tuple[Floats, NDArray[np.int64]]
"""Of the points of each centre: their sum and their number."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """What the points are made of."""

    table: Floats
    """V, one row a slot."""
    extra: Points | None = None
    """Points that take part beside those of the rows, feature by feature."""


def bytes_a_row(n_clusters: int) -> tuple[int, int]:
    """Bytes of a point that is kept, and of one that is worked on, with its labels."""
    return 4 * n_clusters, 24 * n_clusters + 16


def unit_points(points: Floats) -> Points:
    """Rows (n, features) to unit length, rounded to the grain, feature by feature: (features, n)."""
    squares = np.zeros(len(points))
    for column in points.T:  # in a fixed order, whatever the number of rows
        squares += column * column
    scaled = points.T / (np.sqrt(squares) + 1e-10)
    return (np.rint(scaled / GRAIN) * GRAIN).astype(np.float32)


def k_means(engine: Engine, embedding: Embedding, n_clusters: int, seed: int) -> Found:
    """Labels of all rows by k-means of their points.

    Lloyd's iteration, three starts side by side in the same sweeps, at most 100 rounds each, until no centre moves;
    the start with the least inertia is kept. Starts are k-means++ on a random sample of rows, after Lloyd's iteration
    on that sample (MATLAB's start "cluster"). A centre that loses all its points stays where it is. Rows without any
    label take no part and get -1.
    """
    rng = np.random.default_rng(seed)
    n = engine.labels.n_samples
    rows = np.sort(rng.choice(n, min(n, SAMPLE_ROWS), replace=False)) if n > SAMPLE_ROWS else np.arange(n)
    sample = engine.sweep("sample", _pick, _stack, embedding, rows)
    centres = np.stack([_start(sample, n_clusters, int(rng.integers(2**31))) for _ in range(RESTARTS)])
    gains = np.zeros(RESTARTS)
    moving = list(range(RESTARTS))
    for _ in range(ROUNDS):
        sums, counts = engine.sweep("k-means", _round, _add, embedding, centres[moving])
        if embedding.extra is not None:
            sums, counts = _add([(sums, counts), _assigned_sums(embedding.extra, centres[moving])])
        for place, start in enumerate(list(moving)):
            moved = _centres(sums[place], counts[place], centres[start])
            gains[start] = _gain(sums[place], counts[place])
            if np.array_equal(moved, centres[start]):
                moving.remove(start)
            centres[start] = moved
        if not moving:
            break
    return collect(engine, _labelled, embedding, centres[[int(np.argmax(gains))]])


def cluster_points(points: Points, n_clusters: int, seed: int, restarts: int = RESTARTS) -> Found:
    """Labels by k-means of points (features, n) that are all in memory; the best of several starts."""
    rng = np.random.default_rng(seed)
    starts = [_start(points, n_clusters, int(rng.integers(2**31))) for _ in range(restarts)]
    gains = [_gain(sums[0], counts[0]) for sums, counts in (_assigned_sums(points, one[None]) for one in starts)]
    return _nearest(points, starts[int(np.argmax(gains))][None])[:, 0].astype(np.int16) - np.int16(1)


def _points(run: Run, embedding: Embedding) -> Iterator[tuple[int, Points, NDArray[np.bool_] | None]]:
    """(first row, points of the rows that have labels, which those are) of each block, kept where it fits."""
    kept = run.resident.states if run.resident.keep_state else None
    for block in run.blocks():
        if kept is not None and block.first_row in kept:
            yield block.first_row, *kept[block.first_row]
            continue
        codes = block.codes
        sums = np.empty((block.n_rows, embedding.table.shape[1]))
        kernels.degrees(codes, run.offsets, embedding.table, sums)
        some = spoken(run, codes)
        points = unit_points(sums if some is None or some.all() else sums[some])
        if kept is not None:
            kept[block.first_row] = (points, some)
        yield block.first_row, points, some


def _pick(run: Run, embedding: Embedding, rows: NDArray[np.intp]) -> Points:
    """Points of those of the given rows that lie in this run and have labels."""
    found = [np.empty((embedding.table.shape[1], 0), np.float32)]
    for first_row, points, some in _points(run, embedding):
        height = points.shape[1] if some is None else len(some)
        low, high = np.searchsorted(rows, [first_row, first_row + height])
        places = rows[low:high] - first_row
        if some is not None:
            places = (np.cumsum(some) - 1)[places[some[places]]]
        found.append(points[:, places])
    return np.concatenate(found, axis=1)


def _stack(parts: Sequence[Points]) -> Points:
    return np.concatenate(parts, axis=1)


def _start(sample: Points, n_clusters: int, seed: int) -> NDArray[np.float32]:
    """Centres (k, features) from a sample: k-means++, then Lloyd's iteration."""
    rows = np.ascontiguousarray(sample.T)
    if len(rows) < n_clusters:  # rows without labels filled the sample
        rows = np.concatenate([rows] * -(-n_clusters // max(1, len(rows))))
    centres, _ = kmeans_plusplus(rows, n_clusters, random_state=seed)
    for _ in range(ROUNDS):
        sums, counts = _assigned_sums(sample, centres[None])
        moved = _centres(sums[0], counts[0], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return np.asarray(centres, np.float32)


def _centres(sums: Floats, counts: NDArray[np.int64], before: NDArray[np.float32]) -> NDArray[np.float32]:
    means = sums / np.maximum(counts, 1)[:, None]
    return np.where(counts[:, None] > 0, means, before).astype(np.float32)


def _gain(sums: Floats, counts: NDArray[np.int64]) -> float:
    """Σ‖x‖² less the inertia: the same Σ‖x‖² for all starts, so the inertia is least where this is largest."""
    return float(np.sum(sums**2 / np.maximum(counts, 1)[:, None]))


def _nearest(points: Points, centres: NDArray[np.float32]) -> NDArray[np.uint16]:
    """1 + the nearest centre of each point, one column a start; ``centres`` is (starts, k, features)."""
    starts, k, features = centres.shape
    slopes = centres.reshape(starts * k, features)
    labels = np.empty((points.shape[1], starts), np.uint16)
    kernels.nearest(points, slopes, -0.5 * np.sum(slopes * slopes, axis=1), np.arange(starts + 1) * k, labels)
    return labels


def _assigned_sums(points: Points, centres: NDArray[np.float32]) -> Sums:
    starts, k, features = centres.shape
    sums, counts = np.zeros((starts * k, features)), np.zeros(starts * k, np.int64)
    kernels.centre_sums(points.T, _nearest(points, centres), np.arange(starts + 1) * k, sums, counts)
    return sums.reshape(centres.shape), counts.reshape(starts, k)


def _round(run: Run, embedding: Embedding, centres: NDArray[np.float32]) -> Sums:
    return _add([_assigned_sums(points, centres) for _, points, _ in _points(run, embedding)])


def _add(parts: Sequence[Sums]) -> Sums:
    return np.sum([sums for sums, _ in parts], axis=0), np.sum([counts for _, counts in parts], axis=0)


def _labelled(run: Run, embedding: Embedding, centres: NDArray[np.float32]) -> Iterator[tuple[int, Found]]:
    for first_row, points, some in _points(run, embedding):
        found = (_nearest(points, centres)[:, 0] - np.uint16(1)).astype(np.int16)
        if some is None:
            yield first_row, found
        else:
            labels = np.full(len(some), -1, np.int16)
            labels[some] = found
            yield first_row, labels
