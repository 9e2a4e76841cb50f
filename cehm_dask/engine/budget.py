"""Budget: which blocks and tasks, with how many bytes. Pure arithmetic.

Computed before the first byte is read; a run that cannot fit is refused with both numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, sqrt

import numpy as np

from cehm_dask.data.shape import Shape
from cehm_dask.errors import BudgetError
from cehm_dask.machine import format_bytes

BLOCK_ROWS = 1 << 15
"""Rows a kernel sees: a block of thirty members, its margins and winners fit the second-level cache."""

FEWEST_BLOCK_ROWS = 1 << 13
"""However many problems share a block: in smaller ones, the calls per block and problem outweigh the cache."""

MOST_COUNTED = 2**31 - 1
"""Rows that a table of int32 can count: no two hyperedges share more samples than there are."""

STATE_BYTES = 2 + 2 + 8
"""Bytes per sample and problem of assignment, winner and margin."""

WAITING_BYTES = 8 + 8 + 2 + 2
"""Bytes that a sample near a cut takes beside its labels: row number, margin, winner and the assignment before."""

SAMPLE_ROWS = (1 << 13, 1 << 20)
"""Rows, evenly spread, whose labels are kept to foretell where a cut will fall: the fewest and the most. The rows near
the cut that must be kept are n / √sample; (2 n)^⅔ makes the bytes of both together least."""

SAMPLE_BYTES = 64 << 20
"""That these rows may take, where there are many members."""

BAND_SIGMAS = 4.0
"""Half the width of the band that a cut is expected in, in standard deviations of a sample's rank: missed once in
thousands."""

BAND_ROOM = 1.5
"""Room for the rows of a band, as a multiple of what is expected, which varies by some hundredths."""

SPANS_PER_THREAD = 4
"""Enough to even out threads that are held up, few enough that summing their tables costs nothing."""

SPAN_ROWS = 1 << 17
"""A span is not split below this many rows: a shorter task costs more to hand out than it saves."""

DASK_SPAN_WORK = 3 << 30
"""Bytes of labels times columns of weights below which a span is not split for a cluster: 0.15 s of work."""

CODE_BYTES = 128 << 20
"""Compiled kernels and libraries that a process loads when it starts to work, if nothing better is known."""

WRITTEN_BYTES = 48
"""A row of a chunk of the result while it is written: label, margin and confidence, as found and as encoded."""

FAN_IN = 8
"""Tables that are added up at a time."""

TABLE_BYTES = 8
"""For every two hyperedges compared: the table of intersections that is kept."""

START_BYTES = 22
"""Beside it, while starts are found: intersections of the rows that compete (4) and two tables that a start is made of;
20 and what is done a few rows at a time."""

FREED_BYTES = 32 << 20
"""Largest block that the C library may keep when it is freed (glibc, 64 bits), in what each thread takes from."""

DIRECT_BYTES = 24
"""Beside these, where more than a tenth of the eigenvectors are wanted, which a direct solver finds in copies."""


@dataclass(frozen=True)
class Budget:
    """Blocks, spans and bytes of a consensus, settled before the first sweep.

    ``terms`` are the bytes of one process by what they are for; they add up to ``projected``.
    """

    allowed: int
    terms: Mapping[str, int] = field(hash=False)
    threads: int
    block_rows: int
    span_edges: tuple[int, ...]
    keep_state: bool
    keep_freed: bool
    """Whether there is room for blocks that are freed to stay with this process until the next sweep takes them."""
    keep_labels: bool
    state_bytes_a_row: int
    label_bytes_a_row: int
    stored: bool
    """Whether labels are read from a store."""
    sample_stride: int
    """One row of so many is in the sample that foretells cuts."""
    band_rows: int
    """Rows near a cut, of one problem, that all processes together have room for."""

    @property
    def foretell(self) -> bool:
        """Whether a sweep costs so much that it pays to foretell cuts: labels are read, or margins computed, anew."""
        return not self.keep_state or (self.stored and not self.keep_labels)

    @property
    def pass_over(self) -> bool:
        """Whether labels are in memory, so that it pays to look at some rows only, and once more at the result."""
        return self.keep_state and (self.keep_labels or not self.stored)

    @property
    def result_reads(self) -> bool:
        """Whether the labels are needed for the result."""
        return self.pass_over or not self.keep_state

    @property
    def projected(self) -> int:
        return sum(self.terms.values())

    @property
    def cached_bytes(self) -> int:
        """Bytes of labels and assignments that one process may keep between sweeps."""
        return self.terms["kept assignments"] + self.terms["kept labels"]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of samples near a cut that one process may keep in the middle of a round."""
        return self.terms["samples near a cut"]


def make_budget(
    shape: Shape,
    clusters: Sequence[int],
    *,
    allowed: int,
    taken: int = 0,
    workers: int | None = None,
    threads: int = 1,
    returned: bool = True,
    diffuses: bool = True,
    start_rows: int | None = None,
    block_rows: int | None = None,
    code_bytes: int = CODE_BYTES,
) -> Budget:
    """Settle blocks and spans for problems with the given numbers of clusters, and what may stay in memory.

    Parameters
    ----------
    shape : Shape
    clusters : sequence of int
        k of every problem that runs side by side.
    allowed, taken : int
        Bytes a process may take in all, and takes already.
    workers : int, optional
        Processes of a cluster that work; default: this process does.
    threads : int
        Of each process.
    returned : bool
        Whether labels and margins come back as arrays in this process.
    diffuses : bool
        Whether there are rounds that let in some samples only, so that cuts must be found.
    start_rows : int, optional
        Rows of a sample that this process takes through all stages before the others.
    block_rows : int, optional
        Rows a kernel sees.
    code_bytes : int
        Of code that a process has yet to load.
    """
    if block_rows is None:
        block_rows = min(
            shape.read_rows or BLOCK_ROWS, max(FEWEST_BLOCK_ROWS, 4 * BLOCK_ROWS // len(clusters)), shape.n_samples
        )
    block_rows = max(1, min(block_rows, shape.n_samples, MOST_COUNTED))
    columns = sum(clusters) + 12
    state = STATE_BYTES * len(clusters)
    on_start = min(start_rows or 0, shape.n_samples)
    sample_rows, band_rows = _foresight(shape) if diffuses else (0, 0)
    read_rows = shape.read_rows or 0
    edges = _span_edges(shape, workers, threads, block_rows, columns)
    share = rows_of_a_process(edges, workers)
    label_blocks = 2 * threads * read_rows * shape.row_bytes
    margins = 3 * threads * block_rows * state
    written = 0 if returned else WRITTEN_BYTES * threads * min(shape.align_rows, shape.n_samples)
    terms = {
        "this process": taken,
        "code to be loaded": code_bytes,
        "intersections": intersection_bytes(
            shape.compared_slots(max(clusters)),
            threads,
            spans=len(edges) - 1,
            n_clusters=max(clusters),
            not_counting=margins + written,
            not_starting=label_blocks + margins + written,
        ),
        # W of this round and the last; a thread lays them out anew and counts the change of C
        "weights and counts": 8 * shape.n_slots * columns * (4 + 3 * threads),
        "label blocks": label_blocks,
        "margins of blocks": margins,
        # workers keep a part each, and the coordinator looks at the margins of all
        "sample of rows": sample_rows * (shape.row_bytes + 5 * 8),
        "samples near a cut": ceil(band_rows * share / shape.n_samples)
        * (shape.row_bytes + WAITING_BYTES)
        * len(clusters),
        # as gathered, put together and picked out; row numbers
        "rows of the start": on_start * (3 * shape.row_bytes + 3 * 8 + state),
        # labels as computed and as handed out, margins, confidences, and what they are made from
        "result": (2 + 8 + 8 + 8 + 8) * shape.n_samples if returned else written,
        "kept assignments": 0,
        "kept free": 0,
        "kept labels": 0,
    }
    needed = sum(terms.values())
    passing = [terms[name] for name in ("intersections", "weights and counts", "label blocks", "margins of blocks")]
    freed = min(sum(passing) + written, threads * FREED_BYTES)
    if needed > allowed:
        largest = max(list(terms)[2:], key=terms.__getitem__)
        raise BudgetError(
            f"memory={format_bytes(allowed)} allowed < {format_bytes(needed)} projected, most of it for {largest} "
            f"({format_bytes(terms[largest])}; this process takes {format_bytes(taken)} already): "
            "allow more memory, or use fewer base clusters, restarts or values of k"
        )
    keep_state = needed + share * state <= allowed
    if keep_state:
        terms["kept assignments"] = share * state
        needed += share * state
    # To take blocks anew in every sweep costs a third of it, to read labels that the page cache has a tenth.
    keep_freed = needed + freed <= allowed
    if keep_freed:
        terms["kept free"] = freed
        needed += freed
    keep_labels = shape.read_rows is not None and needed + share * shape.row_bytes <= allowed
    if keep_labels:
        terms["kept labels"] = share * shape.row_bytes
    return Budget(
        allowed=allowed,
        terms=terms,
        threads=threads,
        block_rows=block_rows,
        span_edges=edges,
        keep_state=keep_state,
        keep_freed=keep_freed,
        keep_labels=keep_labels,
        state_bytes_a_row=state,
        label_bytes_a_row=shape.row_bytes,
        stored=shape.read_rows is not None,
        sample_stride=-(-shape.n_samples // max(1, sample_rows)),
        band_rows=band_rows,
    )


def _foresight(shape: Shape) -> tuple[int, int]:
    """Rows of the sample that foretells cuts, and rows near a cut that there must be room for."""
    fewest, most = SAMPLE_ROWS
    wanted = min(most, max(fewest, int((2 * shape.n_samples) ** (2 / 3))))
    rows = max(1, min(shape.n_samples, wanted, max(1 << 10, SAMPLE_BYTES // shape.row_bytes)))
    share = (2 + BAND_SIGMAS * sqrt(rows)) / rows
    return rows, min(shape.n_samples, ceil(BAND_ROOM * share * shape.n_samples))


def intersection_bytes(
    slots: int, threads: int, *, spans: int, n_clusters: int, not_counting: int = 0, not_starting: int = 0
) -> int:
    """Of tables of every two slots: those being counted and their sum, or those that starts are found in.

    Both are gone when the rounds begin. Bytes that other terms have for later, but that are not taken while
    intersections are counted or starts are found, serve these tables too.
    """
    counting = 4 * min(spans, threads + FAN_IN) + 8 + TABLE_BYTES
    starting = TABLE_BYTES + START_BYTES + (DIRECT_BYTES if 10 * n_clusters >= slots else 0)
    needed = (TABLE_BYTES * slots**2, counting * slots**2 - not_counting, starting * slots**2 - not_starting)
    return max(needed)


def generation_terms(
    n_features: int, n_members: int, *, fit_rows: int, block_rows: int, shard_rows: int, taken: int, threads: int
) -> dict[str, int]:
    """Bytes of a process that makes members, by what they are for.

    A thread holds a copy of the sample it fits a member on, then blocks of features on their way to codes and the
    shard these are put together in.
    """
    fitting = 3 * 4 * fit_rows * n_features
    labelling = block_rows * (n_features * (3 * 8 + 2 * 4) + 3 * n_members) + 4 * shard_rows * n_members
    return {
        "this process": taken,
        "code to be loaded": CODE_BYTES,
        "sample of rows": fit_rows * n_features * (8 + 8 + 4),
        "members being fitted, blocks being labelled": threads * max(fitting, labelling),
    }


def threads_for_generation(
    n_features: int,
    n_members: int,
    *,
    fit_rows: int,
    block_rows: int,
    shard_rows: int,
    allowed: int,
    taken: int,
    threads: int,
) -> int:
    """Threads that can make members of an ensemble side by side in the memory allowed, at most ``threads``."""
    rows = {"fit_rows": fit_rows, "block_rows": block_rows, "shard_rows": shard_rows}
    terms = generation_terms(n_features, n_members, **rows, taken=taken, threads=1)
    needed, a_thread = sum(terms.values()), terms["members being fitted, blocks being labelled"]
    if needed > allowed:
        raise BudgetError(
            f"memory={format_bytes(allowed)} allowed < {format_bytes(needed)} projected to make members "
            f"({format_bytes(terms['sample of rows'])} for a sample of {fit_rows} rows; this process takes "
            f"{format_bytes(taken)} already): allow more memory, or lower fit_rows"
        )
    return min(threads, 1 + (allowed - needed) // a_thread)


def _span_edges(shape: Shape, workers: int | None, threads: int, block_rows: int, columns: int) -> tuple[int, ...]:
    """First rows of the spans and the end: even, aligned, not too short."""
    unit = shape.align_rows if shape.align_rows > 1 else min(block_rows, SPAN_ROWS)
    units = -(-shape.n_samples // unit)
    shortest = max(1, min(SPAN_ROWS, BLOCK_ROWS if block_rows >= BLOCK_ROWS else block_rows) // unit)
    hands = threads * (workers or 1)
    n_spans = hands * SPANS_PER_THREAD
    if workers is not None:
        work = shape.n_samples * shape.row_bytes * columns
        n_spans = max(hands, min(n_spans, work // DASK_SPAN_WORK))
    n_spans = max(1, min(n_spans, units // shortest or 1))
    if shape.edges is not None:
        wanted = np.linspace(0, shape.n_samples, min(n_spans, len(shape.edges) - 1) + 1)
        places = np.abs(np.subtract.outer(wanted, shape.edges)).argmin(axis=1)
        return tuple(sorted({shape.edges[place] for place in places.tolist()}))
    edges = (min(shape.n_samples, unit * (units * i // n_spans)) for i in range(n_spans + 1))
    return tuple(dict.fromkeys(edges))


def rows_of_a_process(span_edges: Sequence[int], workers: int | None) -> int:
    """Most rows of which one process has to keep anything: its spans are as many as any other's, but not as long.

    >>> rows_of_a_process((0, 4, 8, 13), 2), rows_of_a_process((0, 4, 8, 13), None)
    (10, 13)
    """
    lengths = np.diff(span_edges)
    return min(span_edges[-1], -(-len(lengths) // (workers or 1)) * int(lengths.max()))
