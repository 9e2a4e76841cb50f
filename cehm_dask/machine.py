"""What the machine has: cores and memory, of this process or of a cluster's workers.

Beside the plan, which is pure arithmetic on these numbers.
"""

import logging
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from cehm_dask.errors import BudgetError, ClusterError, InputError
from cehm_dask.masking import shown

log = logging.getLogger(__name__)

SHARE = 0.6
"""Of the memory that is free, or of a worker's limit, that a run takes unless told otherwise."""


WORKER_SECONDS = 300
"""How long a cluster without workers is waited for: a job in a queue may take minutes to start."""


@dataclass(frozen=True)
class Machine:
    """Where work is done: processes, threads, and bytes a process may take in all, with what it takes already."""

    workers: int | None
    """Processes of a cluster; None: this process."""
    threads: int
    allowed: int
    taken: int


def parse_bytes(text: str | int) -> int:
    """Bytes of a size with a unit, as Dask reads it.

    >>> parse_bytes("2GiB"), parse_bytes("500 MB"), parse_bytes(1024)
    (2147483648, 500000000, 1024)
    """
    from dask.utils import parse_bytes as parse

    if isinstance(text, int):
        return text
    try:
        size = parse(text) if text.strip()[:1] in set("0123456789.") else -1
    except (ValueError, OverflowError):  # OverflowError: 1e999
        size = -1
    if size < 0:
        raise InputError(f"memory={shown(text)}: expected a number with a unit, such as '2GiB' or '500MB'")
    if size >= 1 << 63:
        raise InputError(f"memory={shown(text)}: more than any machine has; write a number such as '2GiB'")
    return size


def format_bytes(size: float) -> str:
    """A size for people.

    >>> format_bytes(2_500_000_000)
    '2.33 GiB'
    """
    from dask.utils import format_bytes as written

    return str(written(int(size)))


def cores() -> int:
    """Cores that this process may use: of the machine, or of the container around it."""
    from dask.system import cpu_count

    return int(cpu_count())


def this_machine(memory: str | int | None, threads: int | None = None) -> Machine:
    """This process and its threads."""
    taken, memory = resident_bytes(), _setting(memory)
    allowed = parse_bytes(memory) if memory is not None else taken + int(SHARE * _free_bytes())
    return Machine(None, threads or cores(), allowed, taken)


def cluster_machine(client: Any, memory: str | int | None) -> Machine:
    """The workers of a Dask cluster; the smallest of them sets the bounds."""
    workers, memory = client.scheduler_info(n_workers=-1)["workers"].values(), _setting(memory)
    if not workers:
        await_worker(client)
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
    limit = min(limits) if limits else _free_bytes()
    allowed = parse_bytes(memory) if memory is not None else int(SHARE * limit)
    taken = max((worker.get("metrics") or {}).get("memory") or 0 for worker in workers)
    return Machine(len(workers), max(worker["nthreads"] for worker in workers), allowed, taken)


def _setting(memory: str | int | None) -> str | int | None:
    """Memory that is allowed: as given, or by Dask's setting ``cehm.memory``, if there is one."""
    import dask

    found: str | int | None = dask.config.get("cehm.memory", None) if memory is None else memory
    return found


@contextmanager
def kept_awake(client: Any) -> Iterator[None]:
    """Keep a worker of an adaptive cluster, once it has one, until the end: the one that holds a small result.

    Else it would stop its workers whenever this process takes longer between two sweeps.
    """
    held = client.submit(int, key=f"cehm-awake-{uuid.uuid4().hex}")
    try:
        yield
    finally:
        with suppress(Exception):  # the cluster is lost
            held.release()


def await_worker(client: Any, seconds: float = WORKER_SECONDS) -> None:
    """Wait until a cluster has a worker.

    By a small task, for an adaptive cluster starts workers only when there are tasks.
    """
    address = client.scheduler.address
    first, deadline = client.submit(int, key=f"cehm-first-worker-{uuid.uuid4().hex}"), time.monotonic() + seconds
    while True:
        try:
            first.result(timeout=max(0.01, min(LOOK_SECONDS, deadline - time.monotonic())))
            return
        except TimeoutError as error:
            if client.status in ("closing", "closed"):  # a result would never come, and never fail
                raise ClusterError(
                    f"the cluster was lost (no answer from its scheduler {address}); the same command resumes from here"
                ) from error
            if time.monotonic() >= deadline:
                raise ClusterError(
                    f"no worker came in {seconds:g} s to the scheduler {address}: start some; see their logs"
                ) from error


LOOK_SECONDS = 1.0
"""Between looks at whether the scheduler that a worker is awaited from is still there."""


def require_memory(step: str, terms: Mapping[str, int], allowed: int, advice: str) -> None:
    """State the bytes that a step will take at most, by what they are for; refuse it if they are more than allowed."""
    needed, largest = sum(terms.values()), max(terms, key=terms.__getitem__)
    if needed > allowed:
        raise BudgetError(
            f"memory={format_bytes(allowed)} allowed < {format_bytes(needed)} projected for {step}, most of it for "
            f"{largest} ({format_bytes(terms[largest])}): allow more memory{advice}"
        )
    log.info(
        "memory of %s: %s of %s allowed: %s",
        step,
        format_bytes(needed),
        format_bytes(allowed),
        ", ".join(f"{name} {format_bytes(size)}" for name, size in terms.items() if size),
        extra={"projected": needed, "allowed": allowed},
    )


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def _free_bytes() -> int:
    """Memory that can still be had: of the machine, or of the container around this process."""
    free = int(psutil.virtual_memory().available)
    limit, used = (_linux_text(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    return max(0, free)


def peak_bytes() -> int:
    """Largest resident memory that this process has had."""
    # getrusage of a child counts its parent's memory too on Linux: they share it until the child runs its own program.
    lines = _linux_text("/proc/self/status").splitlines()
    for line in lines:
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:  # Windows
        facts = psutil.Process().memory_info()
        return int(getattr(facts, "peak_wset", facts.rss))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def forget_peak() -> None:
    """Let :func:`peak_bytes` count from now on, where the system can do that (Linux)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


LARGE_BLOCK = 1 << 19
"""Bytes from which what is freed goes back to the system at once."""


def give_back_freed() -> None:
    """Let the C library give large blocks back to the system as soon as they are freed, if it has the choice (glibc).

    By itself it keeps them once a few have been freed, in pieces that the next table does not fit into: on a small
    machine that is a tenth of the memory of a process.
    """
    import ctypes

    with suppress(OSError, AttributeError, TypeError):  # TypeError: on Windows, None is no library
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)


M_MMAP_THRESHOLD = -3
"""Of malloc.h."""


def _linux_text(path: str) -> str:
    """What Linux alone tells in files; empty elsewhere."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


_inside = threading.local()


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold numerical libraries to one thread: how they split a product among threads must not change a bit of it.

    Within another one it costs nothing; setting the limit takes as long as a small product.
    """
    if getattr(_inside, "limited", False):
        yield
        return
    _inside.limited = True
    try:
        with _libraries().limit(limits=1):
            yield
    finally:
        _inside.limited = False


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class _SharedLimit:
    """A limit that several threads need at a time: set by the first, lifted by the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        from threadpoolctl import threadpool_limits

        with self._lock:
            if self._users == 0:
                self._limit = threadpool_limits(1, user_api="blas")
            self._users += 1

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._limit.restore_original_limits()


_one_blas_thread = _SharedLimit()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Hold the libraries that a fit uses to one thread, in threads side by side.

    OpenMP has a limit per thread, BLAS one per process. Libraries that were loaded meanwhile are found too.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1, user_api="openmp"), _one_blas_thread:
        yield
