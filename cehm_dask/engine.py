"""One verb, sweep(): every row block once, small tables summed.

Between the label blocks and the stages; the only place that decides who works on which rows. A sweep hands runs
of rows to threads of this process or to the workers of a Dask cluster: the same function on the same rows either
way. Tables are integers, so the order in which they are summed cannot matter.

What a process keeps between sweeps (label blocks, assignments) is a cache. A run that lands on another worker
finds it empty and rebuilds it from the labels and the order it carries out.
"""

import logging
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import CehmError, ClusterError
from cehm_dask.labels import Codes, Labels, SliceSource
from cehm_dask.plan import Budget

log = logging.getLogger(__name__)
T = TypeVar("T")
Combine = Callable[[Sequence[T]], T]

_NO_ROWS = np.empty((0, 0), np.uint8)

FAN_IN = 8
"""Tables that one task of a cluster, or the coordinator, adds up."""

SMALL_ORDERS = 4 << 20
"""Bytes of orders that may travel inside the tasks of a sweep, through the scheduler; more come from a worker."""

CLUSTER_TRIES = 3
"""Times a sweep is handed out before the cluster is given up for lost."""

RETRY_SECONDS = 1.0
"""Before a sweep is handed out a second time; before the third, twice that."""

HEED_SECONDS = 5.0
"""Between looks at whether a sweep has lost all the workers that it was handed to."""

WAIT_FOR_WORKERS = 60
"""Seconds that a sweep waits for a first worker."""

CLOSED_ENGINES = 1000
"""Ended engines that a process remembers, so that a late task of one of them leaves nothing behind."""


class Resident:
    """What a process keeps of one run of rows between sweeps."""

    def __init__(self, *, keep_state: bool, keep_labels: bool) -> None:
        self.lock = threading.Lock()
        """Held by whoever works on these rows.

        A sweep that is handed out again may find a task of its first attempt still at work in another thread; both
        must not change the same assignment. One after the other they may: an order that finds the state of another
        round makes its own again.
        """
        self.keep_state = keep_state
        self.states: dict[int, Any] = {}
        self.sample: dict[int, Codes] = {}
        """Labels of a few rows of each block, by the block's first row."""
        self.codes: dict[int, Codes] | None = {} if keep_labels else None


class _Residents:
    """All that this process keeps, by engine and run; admits no more bytes than the plan allows a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, dict[int, Resident]] = {}
        self._bytes: dict[str, int] = {}
        self._closed: deque[str] = deque(maxlen=CLOSED_ENGINES)

    def of(self, run: "Run") -> Resident:
        with self._lock:
            if run.token in self._closed:
                return Resident(keep_state=False, keep_labels=False)
            kept = self._kept.setdefault(run.token, {})
            if run.index not in kept:
                state = self._admit(run, run.budget.keep_state, run.n_rows * run.budget.state_bytes_a_row)
                codes = self._admit(run, run.budget.keep_labels, run.n_rows * run.budget.label_bytes_a_row)
                kept[run.index] = Resident(keep_state=state, keep_labels=codes)
            return kept[run.index]

    def _admit(self, run: "Run", wanted: bool, size: int) -> bool:
        held = self._bytes.get(run.token, 0)
        if not wanted or held + size > run.budget.resident_bytes:
            return False
        self._bytes[run.token] = held + size
        return True

    def drop(self, token: str) -> None:
        with self._lock:
            self._kept.pop(token, None)
            self._bytes.pop(token, None)
            self._closed.append(token)


RESIDENTS = _Residents()


class _Piece:
    """Rows read in one go, when first looked at."""

    def __init__(self, run: "Run", start: int, stop: int) -> None:
        self._run, self._start, self._stop = run, start, stop

    @cached_property
    def codes(self) -> Codes:
        kept = self._run.resident.codes
        if kept is None:
            return self._run.labels.read(self._start, self._stop)
        if self._start not in kept:
            kept[self._start] = self._run.labels.read(self._start, self._stop)
        return kept[self._start]


@dataclass(frozen=True)
class Block:
    """Rows a kernel sees; read only if looked at."""

    first_row: int
    n_rows: int
    _piece: _Piece
    _offset: int

    @property
    def codes(self) -> Codes:
        return self._piece.codes[self._offset : self._offset + self.n_rows]


@dataclass(eq=False)
class Run:
    """A run of consecutive blocks: the share of a sweep that one task does. Small to send."""

    labels: Labels
    budget: Budget
    token: str
    index: int
    first_row: int
    last_row: int
    silent_rows: bool = False
    """Whether some rows may have no label at all."""

    @property
    def n_rows(self) -> int:
        return self.last_row - self.first_row

    @property
    def offsets(self) -> NDArray[np.uint64]:
        return self.labels.offsets

    @property
    def n_slots(self) -> int:
        return self.labels.n_slots

    @property
    def resident(self) -> Resident:
        return RESIDENTS.of(self)

    def blocks(self) -> Iterator[Block]:
        read_rows = self.labels.read_rows or self.budget.block_rows
        for start in range(self.first_row, self.last_row, read_rows):
            stop = min(start + read_rows, self.last_row)
            piece = _Piece(self, start, stop)
            for first in range(start, stop, self.budget.block_rows):
                yield Block(first, min(self.budget.block_rows, stop - first), piece, first - start)


Done = Callable[[int], None]
"""Told the number of rows of a run when it is done."""


class Workers(Protocol):
    """Who does the runs of a sweep."""

    def map(
        self, work: Callable[..., T], combine: Combine[T], runs: Sequence[Run], args: tuple[Any, ...], done: Done
    ) -> T: ...

    def close(self, token: str) -> None: ...


class Threads:
    """Threads of this process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def map(
        self, work: Callable[..., T], combine: Combine[T], runs: Sequence[Run], args: tuple[Any, ...], done: Done
    ) -> T:
        def do(run: Run) -> T:
            result = _alone(work, run, args)
            done(run.n_rows)
            return result

        if self._pool is None or len(runs) == 1:
            return _fold(combine, map(do, runs))
        futures = deque(self._pool.submit(do, run) for run in runs)
        try:
            return _fold(combine, (futures.popleft().result() for _ in runs))
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def close(self, token: str) -> None:
        RESIDENTS.drop(token)
        if self._pool is not None:
            self._pool.shutdown()


class Cluster:
    """The workers of a Dask cluster, reached through a ``distributed.Client``."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._address = client.scheduler.address
        self._homes: dict[int, str] = {}
        self._slices: dict[int, Any] = {}
        self._held: list[Any] = []

    def map(
        self, work: Callable[..., T], combine: Combine[T], runs: Sequence[Run], args: tuple[Any, ...], done: Done
    ) -> T:
        from distributed.client import FutureCancelledError
        from distributed.comm.core import CommClosedError
        from distributed.scheduler import KilledWorker

        lost = (FutureCancelledError, CommClosedError, KilledWorker, TimeoutError)
        for attempt in range(1, CLUSTER_TRIES + 1):
            try:
                return self._map(work, combine, runs, args, done)
            except CehmError:
                raise
            except Exception as error:
                if self._is_gone:
                    raise self._gone() from error
                if attempt == CLUSTER_TRIES or not isinstance(error, lost):
                    raise
                log.warning("the cluster lost a sweep (%s); handing it out again", error)
                self._slices.clear()
                self._held = []
                time.sleep(attempt * RETRY_SECONDS)
        raise AssertionError

    @property
    def _is_gone(self) -> bool:
        """Whether the client has given up on the scheduler: it does so after trying for half a minute."""
        return self.client.status in ("closing", "closed")

    def _gone(self) -> ClusterError:
        return ClusterError(
            f"the cluster was lost (no answer from its scheduler {self._address}); the same command goes on from here"
        )

    def _map(
        self, work: Callable[..., T], combine: Combine[T], runs: Sequence[Run], args: tuple[Any, ...], done: Done
    ) -> T:
        import dask

        client, sweep = self.client, uuid.uuid4().hex[:12]
        workers = self._addresses()
        if not workers:
            client.wait_for_workers(1, timeout=WAIT_FOR_WORKERS)
            workers = self._addresses()
        self._homes = share_out(self._homes, [run.index for run in runs], workers)
        orders: Any = args
        if len(runs) * _bytes_to_send(args) > SMALL_ORDERS:
            # They travel once, as the result of a task: a scattered copy could not be made again if its worker died.
            orders = client.submit(_hand_over, args, key=f"cehm-orders-{sweep}", pure=False)
        homes = {f"cehm-run-{sweep}-{run.index}": [self._homes[run.index]] for run in runs}
        parts = [(work, self._portable(run), self._slice(run), orders) for run in runs]
        # In one message, for the client holds every further one back for 10 ms; for the same reason, the results of
        # the sweep before are let go of after it.
        with dask.annotate(workers=homes.__getitem__, allow_other_workers=True, retries=2):
            layer = client.map(_on_worker, *zip(*parts, strict=True), key=list(homes), pure=False)
        self._held = layer
        for future, run in zip(layer, runs, strict=True):
            future.add_done_callback(lambda _future, rows=run.n_rows: done(rows))
        while len(layer) > FAN_IN:
            depth = len(layer)
            layer = [
                client.submit(combine, layer[i : i + FAN_IN], key=f"cehm-sum-{sweep}-{depth}-{i}", pure=False)
                for i in range(0, depth, FAN_IN)
            ]
        # The last few are added here: one more task would take ten milliseconds, a twentieth of a sweep over 10⁷ rows.
        with self._heeded([*self._held, *layer]):
            return combine(client.gather(layer))

    @contextmanager
    def _heeded(self, futures: Sequence[Any]) -> Iterator[None]:
        """Call a sweep off, so that it is handed out again, when all workers have been replaced by others.

        A task that is left without any worker, while it names one that it would like, is never run by the scheduler,
        whoever joins later.
        """
        ended, homes = threading.Event(), set(self._homes.values())

        def heed() -> None:
            while not ended.wait(HEED_SECONDS):
                with suppress(Exception):  # a cluster that does not answer is seen by who gathers
                    workers = self._addresses()
                    if workers and homes.isdisjoint(workers) and not ended.is_set():
                        self.client.cancel(futures, force=True)
                        return

        threading.Thread(target=heed, daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _addresses(self) -> list[str]:
        """Of the workers; a client without a scheduler knows of none."""
        if self._is_gone:
            raise self._gone()
        return sorted(self.client.scheduler_info(n_workers=-1).get("workers", {}))

    def _portable(self, run: Run) -> Run:
        """The run without rows held in this process; they travel apart, and once."""
        return (
            run
            if run.labels.source.portable
            else replace(run, labels=replace(run.labels, source=SliceSource(_NO_ROWS, 0)))
        )

    def _slice(self, run: Run) -> Any:
        if run.labels.source.portable:
            return None
        if run.index not in self._slices:
            rows = np.ascontiguousarray(run.labels.read(run.first_row, run.last_row))
            self._slices[run.index] = self.client.scatter(rows, workers=[self._homes[run.index]], hash=False)
        return self._slices[run.index]

    def close(self, token: str) -> None:
        self._slices.clear()
        self._held = []
        if self.client.status == "running":  # else the cluster is lost, and what its workers kept
            self.client.run(_drop, token, on_error="ignore")


def _drop(token: str) -> None:
    RESIDENTS.drop(token)


def _fold(combine: Combine[T], results: Iterator[T]) -> T:
    """Combine results a few at a time, so that their tables are not all in memory at once."""
    total = [next(results)]
    while group := list(islice(results, FAN_IN - 1)):
        total = [combine([*total, *group])]
    return total[0]


def _bytes_to_send(args: tuple[Any, ...]) -> int:
    """Bytes of the arrays among the arguments, without copying them."""
    buffers: list[pickle.PickleBuffer] = []
    pickle.dumps(args, protocol=5, buffer_callback=buffers.append)
    return sum(buffer.raw().nbytes for buffer in buffers)


def _hand_over(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return args


def _on_worker(work: Callable[..., T], run: Run, rows: Codes | None, args: tuple[Any, ...]) -> T:
    if rows is not None:
        run = replace(run, labels=replace(run.labels, source=SliceSource(rows, run.first_row)))
    return _alone(work, run, args)


def _alone(work: Callable[..., T], run: Run, args: tuple[Any, ...]) -> T:
    """Do the work with nobody else at the same rows."""
    with run.resident.lock:
        return work(run, *args)


def share_out(homes: dict[int, str], runs: Sequence[int], workers: Sequence[str]) -> dict[int, str]:
    """Give every run a home among the workers, evenly, moving as few as possible from the homes they have.

    >>> share_out({0: "a", 1: "a", 2: "b", 3: "b"}, [0, 1, 2, 3], ["a", "c"])
    {0: 'a', 1: 'a', 2: 'c', 3: 'c'}
    """
    most = -(-len(runs) // len(workers))
    load = dict.fromkeys(workers, 0)
    settled: dict[int, str] = {}
    for run in runs:
        home = homes.get(run)
        if home in load and load[home] < most:
            settled[run] = home
            load[home] += 1
    for run in runs:
        if run not in settled:
            home = min(load, key=lambda worker: (load[worker], worker))
            settled[run] = home
            load[home] += 1
    return {run: settled[run] for run in runs}


@contextmanager
def crew(threads: int, client: Any = None) -> Iterator[Executor]:
    """Whoever does the work, for stages that have no label blocks yet: threads of this process, or a cluster's workers.

    What is handed to a cluster must be small to send.
    """
    with ThreadPoolExecutor(threads) if client is None else client.get_executor(pure=False, retries=2) as executor:
        yield executor


@dataclass(eq=False)
class Engine:
    """Sweeps over one label matrix, within a budget.

    Parameters
    ----------
    labels : Labels
    budget : Budget
        Blocks, runs and what may stay in memory; changes speed, never a label.
    client : distributed.Client, optional
        Whose workers do the sweeps; default: threads of this process.
    """

    labels: Labels
    budget: Budget
    client: Any = None
    sweeps: int = 0
    """Passes over the labels so far."""
    looks: int = 0
    """Passes over what the workers keep, without reading labels."""
    watch: Callable[[str, int, int], None] | None = None
    """Told the stage, the rows done and the rows in all, as a sweep goes on."""
    runs: list[Run] = field(init=False)

    def __post_init__(self) -> None:
        token = uuid.uuid4().hex
        edges = self.budget.run_edges
        self.runs = [Run(self.labels, self.budget, token, i, a, b) for i, (a, b) in enumerate(pairwise(edges))]
        self._workers: Workers = Threads(self.budget.threads) if self.client is None else Cluster(self.client)

    def sweep(self, name: str, work: Callable[..., T], combine: Combine[T], *args: Any, reads: bool = True) -> T:
        """Do ``work(run, *args)`` for every run of rows and combine the results.

        ``reads`` says whether the work reads labels; without, it is a look at what the workers keep.
        """
        begin = time.perf_counter()
        rows_done = 0
        lock = threading.Lock()

        def done(rows: int) -> None:
            nonlocal rows_done
            if self.watch is not None:
                with lock:
                    # A sweep that is handed out again goes over some rows twice.
                    rows_done = min(rows_done + rows, self.labels.n_samples)
                    self.watch(name, rows_done, self.labels.n_samples)

        result = self._workers.map(work, combine, self.runs, args, done)
        self.labels.source.confirm()  # before a checkpoint or a result is made of what was read
        if reads:
            self.sweeps += 1
        else:
            self.looks += 1
        kind = f"sweep {self.sweeps}" if reads else f"look {self.looks}"
        log.debug("%s (%s): %.4f s", kind, name, time.perf_counter() - begin)
        return result

    def close(self) -> None:
        self._workers.close(self.runs[0].token)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
