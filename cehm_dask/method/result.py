"""Labels, margins and confidences of all rows, once the rounds are over: as arrays, or in the chunks of a store.

Stands beside the stages, above the rounds whose state it reads. Workers come here last; nothing heavy is imported, for
every worker would pay for it in seconds and memory.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import ResultWriter
from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import ChunkSource, Codes
from cehm_dask.engine.span import Span
from cehm_dask.method.belonging import BELONGINGS
from cehm_dask.method.orders import Read
from cehm_dask.method.rounds import Harvest, harvest_blocks

MARGIN_BINS = 50
SHARE_UNIT = 2**32
"""Margins are summed as whole multiples of 1/2³²: whole numbers add up alike in any order."""
SUMMED_ROWS = 1 << 16
"""Rows summed in one go; the halves of their units stay far below 2⁶⁴."""


def gather(span: Span, order: Read) -> Harvest:
    """Labels, margins and confidences of a span."""
    return join([found for _, found in harvest_blocks(span, order)])


def join(parts: Sequence[Harvest]) -> Harvest:
    """Those of several spans."""
    labels, margins, confidences = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Harvest(labels, margins, confidences)


def fill(span: Span, order: Read, found: Harvest) -> int:
    """:func:`gather` into arrays of all rows, for threads that share them."""
    for first_row, block in harvest_blocks(span, order):
        rows = slice(first_row, first_row + len(block.labels))
        found.labels[rows], found.margin[rows], found.confidence[rows] = block
    return 0


def unit_of(belonging: str) -> int:
    """In how many parts a margin of 1 is summed."""
    return 1 if BELONGINGS[belonging].whole else SHARE_UNIT


def margin_units(margin: NDArray[np.float64], belonging: str) -> int:
    """Sum of margins in whole units; margins of plain counts are whole as they are.

    Exact whatever the number of rows: thirty members that all agree on 8·10⁷ rows are more units than int64 holds, so
    blocks are summed in two halves of 32 bits, and the blocks in Python's own integers.
    """
    unit = unit_of(belonging)
    total = 0
    for start in range(0, len(margin), SUMMED_ROWS):
        units = np.rint(margin[start : start + SUMMED_ROWS] * unit).astype(np.uint64)
        total += (int((units >> np.uint64(32)).sum()) << 32) + int((units & np.uint64(2**32 - 1)).sum())
    return total


Written = tuple[NDArray[np.int64], int, dict[str, str]]
"""Histogram of the margins by cluster, their sum in whole units, and the digests of the chunks."""


def summarise(span: Span, order: Read, belonging: str) -> tuple[NDArray[np.int64], int]:
    """Sizes of the clusters, and the sum of the margins in whole units, where the rows stay with the workers."""
    sizes, units = np.zeros(order.clusters, np.int64), 0
    for _, found in harvest_blocks(span, order):
        sizes += np.bincount(found.labels[found.labels >= 0], minlength=order.clusters)
        units += margin_units(found.margin, belonging)
    return sizes, units


def add_summaries(parts: Sequence[tuple[NDArray[np.int64], int]]) -> tuple[NDArray[np.int64], int]:
    """Those of several spans, together."""
    sizes, units = zip(*parts, strict=True)
    return np.sum(sizes, axis=0), sum(units)


class Place(NamedTuple):
    """Rows of one chunk of a result."""

    start: int
    stop: int
    edges: tuple[int, ...]
    """Of the chunks of codes that they lie in."""

    def __str__(self) -> str:
        return f"rows {self.start} to {self.stop - 1}"


class Piece(NamedTuple):
    """Rows of one chunk of a result, and the chunks of codes that lie with workers."""

    place: Place
    chunks: Sequence[Any]


def pieces_of(labels: Labels, rows: int) -> list[Piece]:
    """All rows of a collection in pieces of so many."""
    source = labels.source
    if not isinstance(source, ChunkSource):
        raise TypeError("only collections are cut into pieces")
    starts = range(0, labels.n_samples, rows)
    found = [(start, min(start + rows, labels.n_samples)) for start in starts]
    return [Piece(Place(*rows, (own := source.between(*rows)).edges), own.chunks) for rows in found]


def write_piece(place: Place, chunks: Sequence[Codes], empty: Span, *writing: Any) -> Written:
    """:func:`write_span` for a piece; ``empty`` is a span without rows."""
    labels = replace(empty.labels, source=ChunkSource(chunks, place.edges))
    return write_span(replace(empty, labels=labels, start=place.start, stop=place.stop), *writing)


def write_span(span: Span, order: Read, writer: ResultWriter, n_members: int, belonging: str) -> Written:
    """Write a span's labels, margins and confidences chunk by chunk."""
    histogram, units = np.zeros((order.clusters, MARGIN_BINS), np.int64), 0
    digests: dict[str, str] = {}
    held: list[Harvest] = []
    start, rows = span.start, 0
    for _, found in harvest_blocks(span, order):
        held.append(found)
        units += margin_units(found.margin, belonging)
        rows += len(found.labels)
        # Blocks divide the chunks of the store they are read from, and those the chunks of the result.
        if rows == min(writer.chunk_rows, span.stop - start):
            counts, written = write_chunk(writer, start, join(held), n_members, order.clusters)
            histogram += counts
            digests |= written
            start, rows, held = start + rows, 0, []
    return histogram, units, digests


def write_chunk(
    writer: ResultWriter, start: int, found: Harvest, n_members: int, clusters: int
) -> tuple[NDArray[np.int64], dict[str, str]]:
    """Write rows from the start of a chunk on, margins as a share of the members.

    Returns the histogram of their margins and the digests of what was written.
    """
    margin = found.margin / n_members
    digests = writer.write(start, found.labels, margin, found.confidence)
    spoken = found.labels >= 0
    bins = np.clip((margin[spoken] * MARGIN_BINS).astype(np.int64), 0, MARGIN_BINS - 1)
    counts = np.bincount(found.labels[spoken] * np.int64(MARGIN_BINS) + bins, minlength=clusters * MARGIN_BINS)
    return counts.reshape(clusters, MARGIN_BINS), digests


def add_written(parts: Sequence[Written]) -> Written:
    """What several spans have written, together."""
    histograms, units, digests = zip(*parts, strict=True)
    return np.sum(histograms, axis=0), sum(units), {key: own[key] for own in digests for key in own}


LastRows = tuple[NDArray[np.int64], list[list[tuple[int, NDArray[np.int64]]]]]
"""Sizes of the clusters, and of each the last few rows with the slots of their labels."""


def last_rows(span: Span, order: Read, count: int) -> LastRows:
    """The last rows of each cluster, ``count`` at most."""
    sizes = np.zeros(order.clusters, np.int64)
    last: list[list[tuple[int, NDArray[np.int64]]]] = [[] for _ in range(order.clusters)]
    offsets = span.offsets.astype(np.int64)
    for block, (first_row, found) in zip(span.blocks(), harvest_blocks(span, order), strict=True):
        sizes += np.bincount(found.labels[found.labels >= 0], minlength=order.clusters)
        for cluster in range(order.clusters):
            for place in np.flatnonzero(found.labels == cluster)[-count:].tolist():
                last[cluster].append((first_row + place, block.codes[place].astype(np.int64) + offsets))
            del last[cluster][:-count]
    return sizes, last


def add_last_rows(parts: Sequence[LastRows]) -> LastRows:
    """Those of several spans, in the order of their rows."""
    together = [
        sorted(chain.from_iterable(own), key=lambda one: one[0])
        for own in zip(*(last for _, last in parts), strict=True)
    ]
    return np.sum([sizes for sizes, _ in parts], axis=0), together
