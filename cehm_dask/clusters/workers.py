"""The workers of a client: their software, what they can read and write, their size, how fast data travels.

Below ``cluster``, which refuses a cluster that does not pass, and the command, which shows what was found.
"""

import os
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cehm_dask.clusters.config import PINNED
from cehm_dask.data.files import absolute, is_url, read_whole, remove, trace, write_whole
from cehm_dask.errors import ClusterError

MATCHED = ("python", "dask", "distributed", "numpy", "numba", "cehm_dask")
"""Software that must be the same on workers as here, so that labels are the same, bit for bit."""

BANDWIDTH_BYTES = 32 << 20


def reason_of(error: BaseException) -> str:
    """The innermost cause that has words, in one line."""
    words = ""
    cause: BaseException | None = error
    while cause is not None:
        words = " ".join(str(cause).split()) or words
        cause = cause.__cause__
    return words or type(error).__name__


def workers_of(client: Any) -> dict[str, Any]:
    """What the scheduler knows of its workers, by address."""
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def check_versions(client: Any) -> None:
    """Refuse workers whose software differs from this process's."""
    found = client.get_versions(packages=["numba", "cehm_dask"])
    here = found["client"]["packages"]
    for address, worker in found["workers"].items():
        for name in MATCHED:
            theirs, ours = worker["packages"].get(name), here[name]
            if name == "python":  # as text in every field; the patch release changes nothing
                theirs, ours = (".".join(version.split(".")[:2]) for version in (theirs, ours))
            if theirs != ours:
                raise ClusterError(
                    f"worker {address} has {name} {theirs or 'not installed'}, this process {ours}: "
                    "install the same versions on both"
                )


def require_access(client: Any, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> None:
    """Refuse a cluster with a worker that does not see an input, or whose output would not be seen here."""
    for address, fault in access_faults(client, reads, writes):
        raise ClusterError(
            f"worker {address} {fault}: keep stores on a file system that all share, or in an object store, and see "
            "that workers have the rights to it"
        )


def access_faults(client: Any, reads: Sequence[str], writes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What keeps workers from the inputs and outputs: (address, words) pairs."""
    if not reads and not writes:
        return
    reads, writes = [absolute(url) for url in reads], [absolute(url) for url in writes]
    probes = [_probe(url) for url in writes]
    here = [trace(url) for url in reads]
    try:
        answers = client.run(_look, reads, probes, on_error="return")
        some_answered = any(not isinstance(answer, BaseException) for answer in answers.values())
        for address, answer in answers.items():
            if isinstance(answer, BaseException):
                if some_answered and address not in workers_of(client):
                    continue  # an adaptive cluster has let it go meanwhile
                yield address, f"does not answer ({reason_of(answer)})"
                continue
            found, written = answer
            for url, wanted, (fault, digest) in zip(reads, here, found, strict=True):
                if fault or digest is None:
                    yield address, f"does not see {url} ({fault or 'nothing there'})"
                elif digest != wanted:
                    yield address, f"sees another {url} than this process"
            for url, probe, (fault, _) in zip(writes, probes, written, strict=True):
                if fault:
                    yield address, f"cannot write {url} ({fault})"
                elif read_whole(_mark(probe, address)) is None:
                    yield address, f"writes {url} where this process does not see it"
    finally:
        client.run(_clear, probes, on_error="ignore")


def _probe(url: str) -> str:
    """How the names of small files begin that workers leave at an output to show that they can."""
    token = f".cehm-probe-{uuid.uuid4().hex}-"
    if is_url(url):
        return url.rstrip("/") + token
    folder = Path(url).parent
    while not folder.exists():
        folder = folder.parent
    return str(folder / token)


def _mark(probe: str, worker: str) -> str:
    """The small file of one worker."""
    return probe + re.sub(r"\W+", "-", worker)


def _look(reads: list[str], probes: list[str], dask_worker: Any) -> tuple[list[Any], list[Any]]:
    """On a worker: what it finds at the inputs, and what became of the small files it tried to write."""
    marks = [_mark(probe, dask_worker.address) for probe in probes]
    return [_attempt(trace, url) for url in reads], [_attempt(write_whole, mark, b"") for mark in marks]


def _clear(probes: list[str], dask_worker: Any) -> None:
    for probe in probes:
        _attempt(remove, _mark(probe, dask_worker.address))


def _attempt(act: Any, *args: Any) -> tuple[str, Any]:
    """Words of what went wrong, or what came of it."""
    try:
        return "", act(*args)
    except Exception as error:  # of any file system
        return f"{type(error).__name__}: {error}", None


def survey(client: Any) -> dict[str, Any]:
    """Workers, their size and surroundings, and how fast data travels between them."""
    workers = workers_of(client)
    surroundings = client.run(_surroundings)
    return {
        "scheduler": client.scheduler.address,
        "dashboard": client.dashboard_link or None,
        "workers": [
            {
                "address": address,
                "host": surroundings[address]["host"],
                "threads": worker["nthreads"],
                "memory": worker["memory_limit"],
                "unpinned": surroundings[address]["unpinned"],
            }
            for address, worker in sorted(workers.items())
        ],
        "versions": client.get_versions(packages=["numba", "cehm_dask"])["client"]["packages"],
        "bytes_a_second": _bandwidth(client, sorted(workers)),
    }


def _surroundings() -> dict[str, Any]:
    unpinned = [name for name in PINNED if not os.environ.get(name)]
    return {"host": socket.gethostname(), "unpinned": unpinned}


def _bandwidth(client: Any, workers: list[str]) -> float:
    """Bytes per second from one worker to another, or from here to the only one."""
    import numpy as np

    best = 0.0
    for _ in range(2):  # the first opens the connection
        if len(workers) == 1:
            content = np.random.default_rng(0).bytes(BANDWIDTH_BYTES)
            begin = time.perf_counter()
            client.run(len, content, workers=workers)
        else:
            held = client.submit(os.urandom, BANDWIDTH_BYTES, workers=workers[:1], pure=False)
            client.submit(len, held, workers=workers[:1], pure=False).result()
            begin = time.perf_counter()
            client.submit(len, held, workers=workers[1:2], pure=False).result()
        best = max(best, BANDWIDTH_BYTES / (time.perf_counter() - begin))
    return best
