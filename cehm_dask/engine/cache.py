"""What a process keeps of its rows between sweeps. Losing it costs time, never a label.

A task that lands on another worker finds nothing here and recomputes it from the labels and the order it carries out.
"""

import threading
from collections import deque
from typing import Any

from cehm_dask.data.sources import Codes
from cehm_dask.engine.budget import Budget

CLOSED_ENGINES = 1000
"""Ended engines that a process remembers, so that a late task of one of them leaves nothing behind."""


class SpanCache:
    """What is kept of one span."""

    def __init__(self, *, keep_state: bool, keep_labels: bool) -> None:
        self.lock = threading.Lock()
        """Held by the task that works on these rows.

        A sweep that is submitted again may find a task of its first attempt still at work in another thread; both must
        not change the same assignment. One after the other they may: an order that finds the state of another round
        recomputes its own.
        """
        self.keep_state = keep_state
        self.states: dict[int, Any] = {}
        """By problem, or by whatever the work counts by."""
        self.waiting: dict[int, Any] = {}
        """By problem: rows near a cut that is not known yet, within :meth:`_Caches.hold`."""
        self.sample: dict[int, Codes] = {}
        """Labels of a few rows of each block, by the first of these rows."""
        self.codes: dict[int, Codes] | None = {} if keep_labels else None


class _Caches:
    """All that this process keeps, by engine and span; admits no more bytes than the budget allows a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, dict[int, SpanCache]] = {}
        self._bytes: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._closed: deque[str] = deque(maxlen=CLOSED_ENGINES)

    def of(self, token: str, index: int, n_rows: int, budget: Budget) -> SpanCache:
        with self._lock:
            if not token or token in self._closed:
                return SpanCache(keep_state=False, keep_labels=False)
            kept = self._kept.setdefault(token, {})
            if index not in kept:
                state = budget.keep_state and self._admit(token, budget, n_rows * budget.state_bytes_a_row)
                codes = budget.keep_labels and self._admit(token, budget, n_rows * budget.label_bytes_a_row)
                kept[index] = SpanCache(keep_state=state, keep_labels=codes)
            return kept[index]

    def _admit(self, token: str, budget: Budget, size: int) -> bool:
        held = self._bytes.get(token, 0)
        if held + size > budget.cached_bytes:
            return False
        self._bytes[token] = held + size
        return True

    def hold(self, token: str, budget: Budget, size: int) -> bool:
        """Whether there is room for so many more bytes of rows near a cut; with a size below 0 they are let go."""
        with self._lock:
            if not token or token in self._closed:
                return False
            held = self._held.get(token, 0) + size
            if size > 0 and held > budget.waiting_bytes:
                return False
            self._held[token] = max(0, held)
            return True

    def drop(self, token: str) -> None:
        with self._lock:
            self._kept.pop(token, None)
            self._bytes.pop(token, None)
            self._held.pop(token, None)
            self._closed.append(token)


CACHES = _Caches()
