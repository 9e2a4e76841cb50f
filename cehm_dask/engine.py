"""One verb, sweep(): every row block once, small tables summed.

Between the label blocks and the stages; the only place that decides who works on which rows. A sweep hands
runs of rows to threads of this process. Results are combined in row order, though nothing depends on it:
tables are integers.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cehm_dask.labels import Codes, Labels

log = logging.getLogger(__name__)
T = TypeVar("T")

BLOCK_ROWS = 1 << 15
"""Rows a kernel sees: a block of thirty members, its margins and winners fit the second-level cache."""

RUNS_PER_THREAD = 4
"""Enough to even out threads that are held up, few enough that summing their tables costs nothing."""


@dataclass(frozen=True)
class Block:
    """Rows a kernel sees."""

    first_row: int
    codes: Codes


@dataclass(eq=False)
class Run:
    """A run of consecutive blocks: the share of a sweep that one task does."""

    labels: Labels
    first_row: int
    last_row: int
    block_rows: int
    silent_rows: bool = False
    """Whether some rows may have no label at all."""
    keep_state: bool = True
    states: dict[int, Any] = field(default_factory=dict)
    """What stays here between sweeps, by problem; a cache."""

    @property
    def n_rows(self) -> int:
        return self.last_row - self.first_row

    @property
    def offsets(self) -> NDArray[np.uint64]:
        return self.labels.offsets

    @property
    def n_slots(self) -> int:
        return self.labels.n_slots

    def blocks(self) -> Iterator[Block]:
        for start in range(self.first_row, self.last_row, self.block_rows):
            yield Block(start, self.labels.source.read(start, min(start + self.block_rows, self.last_row)))


class Engine:
    """Sweeps over one label matrix.

    Parameters
    ----------
    labels : Labels
    threads : int, default: all cores
    block_rows : int
        Rows a kernel sees at a time; changes speed, never a label.
    """

    def __init__(self, labels: Labels, *, threads: int | None = None, block_rows: int = BLOCK_ROWS) -> None:
        self.labels = labels
        self.threads = threads or len(os.sched_getaffinity(0))
        n_runs = max(1, min(self.threads * RUNS_PER_THREAD, -(-labels.n_samples // block_rows)))
        edges = np.linspace(0, labels.n_samples, n_runs + 1).astype(np.int64).tolist()
        self.runs = [Run(labels, a, b, block_rows) for a, b in pairwise(edges)]
        self.sweeps = 0
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 and n_runs > 1 else None

    def sweep(self, name: str, work: Callable[..., T], combine: Callable[[Sequence[T]], T], *args: Any) -> T:
        """Do ``work(run, *args)`` for every run of rows and combine the results."""
        begin = perf_counter()
        if self._pool is None:
            results = [work(run, *args) for run in self.runs]
        else:
            futures = [self._pool.submit(work, run, *args) for run in self.runs]
            try:
                results = [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()
        self.sweeps += 1
        log.debug("sweep %d (%s): %.4f s", self.sweeps, name, perf_counter() - begin)
        return combine(results)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
