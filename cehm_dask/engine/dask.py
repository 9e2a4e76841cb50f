"""Work on the workers of a Dask client."""

import logging
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

import numpy as np

from cehm_dask.data.sources import ChunkSource, Codes
from cehm_dask.engine.budget import FAN_IN
from cehm_dask.engine.cache import CACHES
from cehm_dask.engine.span import Span
from cehm_dask.engine.task import Sweep, T, computing_on, do
from cehm_dask.errors import CehmError, ClusterError
from cehm_dask.machine import await_worker

log = logging.getLogger(__name__)

SMALL_ARGUMENTS = 4 << 20
"""Bytes of arguments that may travel inside the tasks of a sweep, through the scheduler; more come from a worker."""

TRIES = 3
"""Times a sweep is submitted before the cluster is given up for lost."""

RETRY_SECONDS = 1.0
"""Before a sweep is submitted a second time; before the third, twice that."""

CHECK_SECONDS = 5.0
"""Between checks whether a sweep has lost all the workers that it was submitted to."""


LARGE_GRAPH = "1GiB"
"""Bytes of a graph above which Dask warns: a sample of wide rows is meant to travel with it, once."""


class DaskWorkers:
    """The workers of a ``distributed.Client``."""

    here = False

    def __init__(self, client: Any) -> None:
        self.client = client
        self._address = client.scheduler.address
        self._homes: dict[int, str] = {}
        self._slices: dict[int, Any] = {}
        self._held: list[Any] = []

    def sweep(self, asked: Sweep[T]) -> T:
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        lost = (FutureCancelledError, CommClosedError, KilledWorker, TimeoutError)
        attempt = 1
        while True:
            try:
                return self._sweep(asked)
            except CehmError:
                raise
            except Exception as error:
                if self._is_gone:
                    raise self._gone() from error
                if attempt == TRIES or not isinstance(error, lost):
                    raise
                log.warning("the cluster lost a sweep (%s); submitting it again", error)
                self._slices.clear()
                self._held = []
                time.sleep(attempt * RETRY_SECONDS)
                attempt += 1

    @property
    def _is_gone(self) -> bool:
        """Whether the client has given up on the scheduler: it does so after trying for half a minute."""
        return self.client.status in ("closing", "closed")

    def _gone(self) -> ClusterError:
        return ClusterError(
            f"the cluster was lost (no answer from its scheduler {self._address}); the same command resumes from here"
        )

    def _sweep(self, asked: Sweep[T]) -> T:
        import dask

        client, sweep, name = self.client, uuid.uuid4().hex[:12], asked.name.replace(" ", "-")
        spans = asked.spans
        workers = self._addresses()
        if not workers:
            await_worker(client)
            workers = self._addresses()
        remote = spans[0].labels.edges is not None
        if not remote:  # else Dask places the tasks where the rows are
            self._homes = share_out(self._homes, [span.index for span in spans], workers)
        shared = self._shared(asked.args, len(spans), f"cehm-{name}-orders-{sweep}")
        keys = {span.index: f"cehm-{name}-{sweep}-{span.index}" for span in spans}
        homes = {} if remote else {keys[span.index]: [self._homes[span.index]] for span in spans}
        parts = [(asked.work, self._portable(span), self._rows(span), shared) for span in spans]
        # In one message, for the client holds every further one back for 10 ms; for the same reason, the results of
        # the sweep before are released after it.
        placed = {} if remote else {"workers": homes.__getitem__, "allow_other_workers": True}
        with dask.annotate(**placed, retries=2):
            layer = client.map(_on_worker, *zip(*parts, strict=True), key=list(keys.values()), pure=False)
        self._held = layer
        for future, span in zip(layer, spans, strict=True):
            future.add_done_callback(lambda _future, rows=span.n_rows: asked.done(rows))
        while len(layer) > FAN_IN:
            groups = [layer[i : i + FAN_IN] for i in range(0, len(layer), FAN_IN)]
            sums = [f"cehm-{name}-sum-{sweep}-{len(layer)}-{i}" for i in range(len(groups))]
            layer = client.map(asked.combine, groups, key=sums, pure=False)  # one message a layer, not one a sum
        # The last few are added here: one more task would take ten milliseconds, a twentieth of a sweep over 10⁷ rows.
        with self._watched([*self._held, *layer]):
            return asked.combine(client.gather(layer))

    @contextmanager
    def _watched(self, futures: Sequence[Any]) -> Iterator[None]:
        """Cancel a sweep, so that it is submitted again, when all its workers have been replaced by others.

        A task that is left without any worker, while it names one that it prefers, is never run by the scheduler,
        whoever joins later.
        """
        ended, homes = threading.Event(), set(self._homes.values())

        def check() -> None:
            while not ended.wait(CHECK_SECONDS):
                with suppress(Exception):  # a cluster that does not answer is noticed by the gathering thread
                    workers = self._addresses()
                    if homes and workers and homes.isdisjoint(workers) and not ended.is_set():
                        self.client.cancel(futures, force=True)
                        return

        threading.Thread(target=check, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def each(
        self, work: Callable[..., T], items: Iterable[Any], *shared: Any, delayed: Sequence[Sequence[Any]] = ()
    ) -> Iterator[T]:
        import dask

        items = list(items)
        number = uuid.uuid4().hex[:12]
        # A node of the graph, not a part of every task: a worker fetches it again only if it had no task left.
        sent = dask.delayed(_Shared(work, shared), name=f"cehm-shared-{number}", traverse=False)
        do_item = dask.delayed(_on_item, pure=False)
        name = f"cehm-{work.__name__.strip('_').replace('_', '-')}-{number}"
        tasks = [
            do_item(sent, item, *(parts or ()), dask_key_name=f"{name}-{i}")
            for i, (item, parts) in enumerate(zip_longest(items, delayed))
        ]
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": LARGE_GRAPH}):
            futures = deque(self.client.compute(tasks, retries=2))
        for item in items:  # let go of each future once its result is here
            try:
                yield futures.popleft().result()
            except Exception as error:
                error.add_note(f"This was {name.rpartition('-')[0]} for {item}.")
                raise

    def _shared(self, args: tuple[Any, ...], tasks: int, key: str) -> Any:
        """Arguments of many tasks; large ones as the result of a task, so that each worker fetches them once.

        A scattered copy could not be made again if its worker died.
        """
        if tasks * _bytes_to_send(args) <= SMALL_ARGUMENTS:
            return args
        return self.client.submit(_hand_over, args, key=key, pure=False)

    def _addresses(self) -> list[str]:
        """Of the workers; a client without a scheduler knows of none."""
        if self._is_gone:
            raise self._gone()
        return sorted(self.client.scheduler_info(n_workers=-1).get("workers", {}))

    def _portable(self, span: Span) -> Span:
        """The span without rows held in this process; they are sent apart, and once."""
        return (
            span
            if span.labels.source.portable
            else replace(span, labels=replace(span.labels, source=ChunkSource([], ())))
        )

    def _rows(self, span: Span) -> Any:
        """The rows of a span as futures, one or more; None where workers read them themselves."""
        source = span.labels.source
        if source.portable:
            return None
        if isinstance(source, ChunkSource) and source.remote:
            return list(source.between(span.start, span.stop).chunks)
        if span.index not in self._slices:
            rows = np.ascontiguousarray(span.labels.read(span.start, span.stop))
            self._slices[span.index] = self.client.scatter(rows, workers=[self._homes[span.index]], hash=False)
        return [self._slices[span.index]]

    def computing(self) -> AbstractContextManager[None]:
        return computing_on(self.client, 1)

    def close(self, token: str | None = None) -> None:
        self._slices.clear()
        self._held = []
        if token is not None and self.client.status == "running":  # else the cluster is lost, and what its workers kept
            self.client.run(_drop, token, on_error="ignore")


def _drop(token: str) -> None:
    CACHES.drop(token)


def _bytes_to_send(args: tuple[Any, ...]) -> int:
    """Bytes of the arrays among the arguments, without copying them."""
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(args, protocol=5, buffer_callback=buffers.append)
    return sum(buffer.raw().nbytes for buffer in buffers)


def _hand_over(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _on_worker(work: Callable[..., T], span: Span, rows: Sequence[Codes] | None, args: tuple[Any, ...]) -> T:
    if rows is not None:
        edges = tuple(np.cumsum([span.start, *map(len, rows)]).tolist())
        span = replace(span, labels=replace(span.labels, source=ChunkSource(rows, edges)))
    try:
        return do(work, span, args)
    except Exception as error:
        error.add_note(f"This was {work.__name__} of rows {span.start} to {span.stop - 1}, on a worker.")
        raise


@dataclass(frozen=True)
class _Shared:
    work: Callable[..., Any]
    args: tuple[Any, ...]


def _on_item(shared: _Shared, item: Any, *computed: Any) -> Any:
    own = (computed,) if computed else ()
    return shared.work(item, *own, *shared.args)


def share_out(homes: dict[int, str], spans: Sequence[int], workers: Sequence[str]) -> dict[int, str]:
    """Give every span a home among the workers, evenly, moving as few as possible from the homes they have.

    >>> share_out({0: "a", 1: "a", 2: "b", 3: "b"}, [0, 1, 2, 3], ["a", "c"])
    {0: 'a', 1: 'a', 2: 'c', 3: 'c'}
    """
    most = -(-len(spans) // len(workers))
    load = dict.fromkeys(workers, 0)
    settled: dict[int, str] = {}
    for span in spans:
        home = homes.get(span)
        if home in load and load[home] < most:
            settled[span] = home
            load[home] += 1
    for span in spans:
        if span not in settled:
            home = min(load, key=lambda worker: (load[worker], worker))
            settled[span] = home
            load[home] += 1
    return {span: settled[span] for span in spans}
