"""The shape of a label matrix, as far as a budget depends on it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """What the budget needs to know of a label matrix."""

    n_samples: int
    row_bytes: int
    """Bytes of one row of labels as it is read."""
    n_slots: int
    read_rows: int | None
    """Rows read in one go from a store; None for an array in memory."""
    align_rows: int
    """Spans begin at multiples of this, so that each writes whole shards."""
    edges: tuple[int, ...] | None = None
    """Spans begin at some of these, where rows lie in chunks with workers."""
