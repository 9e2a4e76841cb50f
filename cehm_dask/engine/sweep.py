"""One verb, sweep(): every row block once, small tables summed.

The only place that decides who works on which rows. A sweep hands spans of rows to threads of this process or to the
workers of a Dask client: the same function on the same rows either way. Tables are integers, so the order in which they
are summed cannot matter.
"""

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from cehm_dask.data.labels import Labels
from cehm_dask.engine.budget import Budget
from cehm_dask.engine.dask import DaskWorkers
from cehm_dask.engine.span import Span
from cehm_dask.engine.task import Combine, Sweep, T, Workers
from cehm_dask.engine.threads import Threads
from cehm_dask.progress import NO_PROGRESS, Count, Progress

log = logging.getLogger(__name__)


@contextmanager
def workers(threads: int, client: Any = None) -> Iterator[Workers]:
    """Whoever does the work: a client's workers, or threads of this process."""
    found: Workers = Threads(threads) if client is None else DaskWorkers(client)
    try:
        yield found
    finally:
        found.close()


@dataclass(eq=False)
class Engine:
    """Sweeps over one label matrix, within a budget.

    Parameters
    ----------
    labels : Labels
    budget : Budget
        Blocks, spans and what may stay in memory; changes speed, never a label.
    client : distributed.Client, optional
        Whose workers do the sweeps; default: threads of this process.
    progress : Progress
        Gets the rows done inside a sweep.
    """

    labels: Labels
    budget: Budget
    client: Any = None
    progress: Progress = NO_PROGRESS
    sweeps: int = 0
    """Passes over the labels so far."""
    looks: int = 0
    """Passes over what the workers keep, without reading labels."""
    spans: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        token = uuid.uuid4().hex
        edges = self.budget.span_edges
        # A span travels with its budget: with the edges of all, messages would grow with the square of their number.
        own = replace(self.budget, span_edges=())
        self.spans = [Span(self.labels, own, token, i, a, b) for i, (a, b) in enumerate(pairwise(edges))]
        self._workers: Workers = Threads(self.budget.threads) if self.client is None else DaskWorkers(self.client)

    def sweep(
        self,
        name: str,
        work: Callable[..., T],
        combine: Combine[T],
        *args: Any,
        reads: bool = True,
        first_row: int = 0,
    ) -> T:
        """Do ``work(span, *args)`` for every span of rows and combine the results.

        ``reads`` says whether the work reads labels; without, it is a look at what the workers keep. Only rows from
        ``first_row`` on are looked at; of such a part, nothing is cached.
        """
        begin = time.perf_counter()
        count = Count(self.progress, name, self.labels.n_samples - first_row)
        spans = self.spans
        if first_row:
            ahead = [span for span in spans if span.stop > first_row]
            spans = [replace(span, start=max(span.start, first_row), token="") for span in ahead]
        result = self._workers.sweep(Sweep(name, work, combine, spans, args, count.add))
        self.labels.source.confirm()  # before a checkpoint or a result is made of what was read
        if reads:
            self.sweeps += 1
        else:
            self.looks += 1
        kind = f"sweep {self.sweeps}" if reads else f"look {self.looks}"
        log.debug("%s (%s): %.4f s", kind, name, time.perf_counter() - begin)
        return result

    def each(
        self, work: Callable[..., T], items: Iterable[Any], *shared: Any, delayed: Sequence[Sequence[Any]] = ()
    ) -> Iterator[T]:
        """``work(item, *shared)`` for every item, by whoever does the sweeps."""
        return self._workers.each(work, items, *shared, delayed=delayed)

    def close(self) -> None:
        self._workers.close(self.spans[0].token)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
