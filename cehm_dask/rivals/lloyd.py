"""k-means of the rows of B·V, block by block, without forming B·V where it does not fit.

The last step of the spectral rivals. A row's point is the sum of V over its hyperedges, scaled to unit length; points
have few enough bits that centres, and so labels, are the same whatever the blocks and workers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.method import kernels
from cehm_dask.method.points import (
    RESTARTS,
    ROUNDS,
    Points,
    Sums,
    assigned_sums,
    centres_of,
    first_centres,
    gain,
    nearest,
    unit_points,
)
from cehm_dask.rivals.rows import Floats, Found, collect, spoken

SAMPLE_ROWS = 1 << 14
"""Rows, drawn at random, on which the starting centres are found."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """What the points are made of."""

    table: Floats
    """V, one row per slot."""
    extra: Points | None = None
    """Points that take part beside those of the rows, feature by feature."""


def bytes_a_row(n_clusters: int) -> tuple[int, int]:
    """Bytes of a point that is kept, and of one that is worked on, with its labels."""
    return 4 * n_clusters, 24 * n_clusters + 16


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
    centres = np.stack([first_centres(sample, n_clusters, int(rng.integers(2**31))) for _ in range(RESTARTS)])
    gains = np.zeros(RESTARTS)
    moving = list(range(RESTARTS))
    for _ in range(ROUNDS):
        sums, counts = engine.sweep("k-means", _round, _add, embedding, centres[moving])
        if embedding.extra is not None:
            sums, counts = _add([(sums, counts), assigned_sums(embedding.extra, centres[moving])])
        for place, start in enumerate(list(moving)):
            moved = centres_of(sums[place], counts[place], centres[start])
            gains[start] = gain(sums[place], counts[place])
            if np.array_equal(moved, centres[start]):
                moving.remove(start)
            centres[start] = moved
        if not moving:
            break
    return collect(engine, _labelled, embedding, centres[[int(np.argmax(gains))]])


def _points(span: Span, embedding: Embedding) -> Iterator[tuple[int, Points, NDArray[np.bool_] | None]]:
    """(first row, points of the rows that have labels, which those are) of each block, kept where it fits."""
    kept = span.cache.states if span.cache.keep_state else None
    for block in span.blocks():
        if kept is not None and block.start in kept:
            yield block.start, *kept[block.start]
            continue
        codes = block.codes
        sums = np.empty((block.n_rows, embedding.table.shape[1]))
        kernels.degrees(codes, span.offsets, embedding.table, sums)
        some = spoken(span, codes)
        points = unit_points(sums if some is None or some.all() else sums[some])
        if kept is not None:
            kept[block.start] = (points, some)
        yield block.start, points, some


def _pick(span: Span, embedding: Embedding, rows: NDArray[np.intp]) -> Points:
    """Points of those of the given rows that lie in this run and have labels."""
    found = [np.empty((embedding.table.shape[1], 0), np.float32)]
    for first_row, points, some in _points(span, embedding):
        height = points.shape[1] if some is None else len(some)
        low, high = np.searchsorted(rows, [first_row, first_row + height])
        places = rows[low:high] - first_row
        if some is not None:
            places = (np.cumsum(some) - 1)[places[some[places]]]
        found.append(points[:, places])
    return np.concatenate(found, axis=1)


def _stack(parts: Sequence[Points]) -> Points:
    return np.concatenate(parts, axis=1)


def _round(span: Span, embedding: Embedding, centres: NDArray[np.float32]) -> Sums:
    return _add([assigned_sums(points, centres) for _, points, _ in _points(span, embedding)])


def _add(parts: Sequence[Sums]) -> Sums:
    return np.sum([sums for sums, _ in parts], axis=0), np.sum([counts for _, counts in parts], axis=0)


def _labelled(span: Span, embedding: Embedding, centres: NDArray[np.float32]) -> Iterator[tuple[int, Found]]:
    for first_row, points, some in _points(span, embedding):
        found = (nearest(points, centres)[:, 0] - np.uint16(1)).astype(np.int16)
        if some is None:
            yield first_row, found
        else:
            labels = np.full(len(some), -1, np.int16)
            labels[some] = found
            yield first_row, labels
