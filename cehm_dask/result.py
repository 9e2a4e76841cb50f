"""Labels and margins of all rows, once the rounds are over: as arrays, or written into a store chunk by chunk.

Stands beside the stages, above the rounds whose state it reads. Workers come here last; nothing heavy is imported, for
every worker would pay for it in seconds and memory.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cehm_dask.engine import Run
from cehm_dask.rounds import Order, harvest_blocks
from cehm_dask.store import ResultWriter

MARGIN_BINS = 50
SHARE_UNIT = 2**32
"""Margins are summed as whole multiples of 1/2³²: whole numbers add up alike in any order."""

Found = tuple[NDArray[np.int16], NDArray[np.float64]]


def gather(run: Run, order: Order) -> Found:
    """Labels and margins of a run of rows."""
    blocks = list(harvest_blocks(run, order))
    return np.concatenate([labels for _, labels, _ in blocks]), np.concatenate([margin for _, _, margin in blocks])


def join(parts: Sequence[Found]) -> Found:
    """Those of several runs."""
    return np.concatenate([labels for labels, _ in parts]), np.concatenate([margin for _, margin in parts])


def fill(run: Run, order: Order, found: Found) -> int:
    """:func:`gather` into arrays of all rows, for threads that share them."""
    for first_row, labels, margin in harvest_blocks(run, order):
        found[0][first_row : first_row + len(labels)] = labels
        found[1][first_row : first_row + len(labels)] = margin
    return 0


def margin_units(margin: NDArray[np.float64], belonging: str | None) -> int:
    """Sum of margins in whole units; margins of plain counts are whole as they are."""
    unit = 1 if belonging == "count" else SHARE_UNIT
    return int(np.rint(margin * unit).astype(np.int64).sum())


Written = tuple[NDArray[np.int64], int]
"""Histogram of the margins by cluster, and their sum in whole units."""


def write_run(run: Run, order: Order, writer: ResultWriter, n_members: int, belonging: str) -> Written:
    """Write a run's labels and margins chunk by chunk."""
    histogram, units = np.zeros((order.clusters, MARGIN_BINS), np.int64), 0
    labels: list[NDArray[np.int16]] = []
    margins: list[NDArray[np.float64]] = []
    start, held = run.first_row, 0
    for _, found, margin in harvest_blocks(run, order):
        labels.append(found)
        margins.append(margin / n_members)
        units += margin_units(margin, belonging)
        held += len(found)
        # Blocks divide the chunks of the store they are read from, and those the chunks of the result.
        if held == min(writer.chunk_rows, run.last_row - start):
            histogram += write_chunk(writer, start, np.concatenate(labels), np.concatenate(margins), order.clusters)
            start, held = start + held, 0
            labels, margins = [], []
    return histogram, units


def write_chunk(
    writer: ResultWriter, start: int, labels: NDArray[np.int16], margin: NDArray[np.float64], clusters: int
) -> NDArray[np.int64]:
    """Write rows from the start of a chunk on; the histogram of their margins."""
    writer.write(start, labels, margin)
    spoken = labels >= 0
    bins = np.clip((margin[spoken] * MARGIN_BINS).astype(np.int64), 0, MARGIN_BINS - 1)
    counts = np.bincount(labels[spoken] * np.int64(MARGIN_BINS) + bins, minlength=clusters * MARGIN_BINS)
    return counts.reshape(clusters, MARGIN_BINS)


def add_written(parts: Sequence[Written]) -> Written:
    """What several runs have written, together."""
    return np.sum([histogram for histogram, _ in parts], axis=0), sum(units for _, units in parts)
