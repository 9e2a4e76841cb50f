"""Rows: a span is one task's share of a sweep, a block is what a kernel sees of it at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import Codes
from cehm_dask.engine.budget import Budget
from cehm_dask.engine.cache import CACHES, SpanCache


@dataclass(eq=False)
class Span:
    """Consecutive rows, ``start`` to ``stop`` (exclusive), cut into blocks. Small to send."""

    labels: Labels
    budget: Budget
    token: str
    """Of the engine; empty: nothing is cached."""
    index: int
    start: int
    stop: int
    silent_rows: bool = False
    """Whether some rows may have no label at all."""

    @property
    def n_rows(self) -> int:
        return self.stop - self.start

    @property
    def offsets(self) -> NDArray[np.uint64]:
        return self.labels.offsets

    @property
    def n_slots(self) -> int:
        return self.labels.n_slots

    @property
    def cache(self) -> SpanCache:
        """What this process keeps of these rows between sweeps."""
        return CACHES.of(self.token, self.index, self.n_rows, self.budget)

    def hold(self, size: int) -> bool:
        """Whether this process may keep so many more bytes of rows near a cut; below 0: they are let go."""
        return CACHES.hold(self.token, self.budget, size)

    def blocks(self) -> Iterator["Block"]:
        read_rows = self.labels.read_rows or self.budget.block_rows
        for start in range(self.start, self.stop, read_rows):
            stop = min(start + read_rows, self.stop)
            piece = _Piece(self, start, stop)
            for first in range(start, stop, self.budget.block_rows):
                yield Block(first, min(self.budget.block_rows, stop - first), piece, first - start)


class _Piece:
    """Rows that are read together, when one of them is first needed."""

    def __init__(self, span: Span, start: int, stop: int) -> None:
        self._span, self._start, self._stop = span, start, stop

    @cached_property
    def codes(self) -> Codes:
        kept = self._span.cache.codes
        if kept is None:
            return self._span.labels.read(self._start, self._stop)
        if self._start not in kept:
            kept[self._start] = self._span.labels.read(self._start, self._stop)
        return kept[self._start]


@dataclass(frozen=True)
class Block:
    """Rows that a kernel sees; read only if their codes are asked for."""

    start: int
    n_rows: int
    _piece: _Piece
    _offset: int

    @property
    def stop(self) -> int:
        return self.start + self.n_rows

    @property
    def codes(self) -> Codes:
        return self._piece.codes[self._offset : self._offset + self.n_rows]
