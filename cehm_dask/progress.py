"""How work reports its progress: one protocol for everything that takes time.

Below everything that works. Readers, makers of members, sweeps and rounds report to a ``Progress``; the command line
shows it in a terminal. The work itself prints nothing.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """One finished round of one problem."""

    problem: int
    stage: str
    round: int
    assigned: int
    moved: int
    n_samples: int
    loss: float | None
    sweeps: int


class Progress:
    """Receives progress; this one ignores it. Both methods may be called from any thread of this process."""

    def advanced(self, what: str, done: int, total: int | None) -> None:
        """``done`` rows, members or bytes of ``total`` (None: not known) are done; ``what`` names the work."""

    def round_done(self, event: Event) -> None:
        """A round of the consensus is finished."""


NO_PROGRESS = Progress()
ProgressLike = Progress | Callable[[Event], object]
"""What users may pass: a ``Progress``, or a function that is called with every finished round."""


class _Rounds(Progress):
    def __init__(self, call: Callable[[Event], object]) -> None:
        self._call = call

    def round_done(self, event: Event) -> None:
        self._call(event)


def as_progress(given: ProgressLike | None) -> Progress:
    """What a user passed, as a ``Progress``."""
    if given is None:
        return NO_PROGRESS
    return given if isinstance(given, Progress) else _Rounds(given)


class Count:
    """Counts one piece of work, which any number of threads may share, and reports each step."""

    def __init__(self, progress: Progress, what: str, total: int | None = None) -> None:
        self._progress, self._what, self._total = progress, what, total
        self._done = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._total is not None:  # a sweep that is submitted again goes over some rows twice
                self._done = min(self._done, self._total)
            self._progress.advanced(self._what, self._done, self._total)
