"""progress.json: what a run is doing at the moment, for whoever looks at its directory.

Below the run, which tells it, and ``watch``, which reads it. A thread of its own writes the file about once a second,
so that a run that was killed is known by its silence. Nothing in it is needed to resume a run, and no fault in it stops
one.
"""

import logging
import threading
import time
from contextlib import suppress
from typing import Any, Self

from cehm_dask.clusters.workers import workers_of
from cehm_dask.data.files import is_url, write_whole
from cehm_dask.errors import sentence_of
from cehm_dask.machine import peak_bytes, resident_bytes
from cehm_dask.masking import masked_json
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.result import RunProgress
from cehm_dask.progress import Event

log = logging.getLogger(__name__)

NAME = "progress.json"
FORMAT = "cehm progress"
VERSION = 1
EVERY = 1.0
"""Seconds between two writes."""
EVERY_REMOTE = 10.0
"""The same in an object store, where each write is a request."""
EVERY_WORKERS = 5.0
"""Seconds between two questions to the scheduler."""
MOST_ROUNDS = 200
"""Rounds that are kept, the latest."""


class Heartbeat(RunProgress):
    """Hands progress on, and writes down where the run is.

    Parameters
    ----------
    directory : Directory
    shown : RunProgress
        Who else is told.
    """

    def __init__(self, directory: Directory, shown: RunProgress) -> None:
        self._url, self._shown = directory.path(NAME), shown
        self._every = EVERY_REMOTE if is_url(directory.url) else EVERY
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None
        self._client: Any = None
        self._asked = self._work_began = self._step_began = 0.0
        self._first: tuple[float, int] | None = None
        self._latest: dict[int, Event] = {}
        self._beat = 0
        self._told: dict[str, Any] = {"state": "running", "steps": {}, "rounds": [], "work": None, "workers": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, _trace: object) -> None:
        self._over.set()
        if self._thread is None:
            return
        self._thread.join()
        stopped = isinstance(error, KeyboardInterrupt | SystemExit)
        state = "done" if error is None else "interrupted" if stopped else "failed"
        said = "" if error is None or stopped else sentence_of(error)
        with self._lock:
            self._told |= {"state": state, "error": said, "work": None}
        self._write()

    # --- what the run tells ----------------------------------------------------------------------------------------

    def joined(self, client: Any) -> None:
        self._client = client
        self._shown.joined(client)

    def begins(self, step: str, what: str) -> None:
        with self._lock:
            self._told |= {"step": step, "what": what, "work": None, "rounds": []}
            self._told["steps"][step] = "running"
            self._step_began, self._first, self._latest = time.monotonic(), None, {}
        self._beats()
        self._shown.begins(step, what)

    def ended(self, step: str, seconds: float) -> None:
        with self._lock:
            self._told["steps"][step] = "done"
            self._told["work"] = None
        self._shown.ended(step, seconds)

    def left_out(self, step: str, why: str) -> None:
        with self._lock:
            self._told["steps"][step] = why
        self._beats()
        self._shown.left_out(step, why)

    def advanced(self, what: str, done: int, total: int | None) -> None:
        with self._lock:
            work = self._told["work"]
            if work is None or work["what"] != what or done < work["done"]:
                self._work_began = time.monotonic()
            self._told["work"] = {"what": what, "done": done, "total": total}
        self._shown.advanced(what, done, total)

    def round_done(self, event: Event) -> None:
        with self._lock:
            self._latest[event.problem] = event
            # Of many problems side by side, the one that is furthest behind.
            slowest = min(self._latest.values(), key=lambda one: (one.stage != "diffusion", one.assigned))
            if self._first is None:
                self._first = (time.monotonic(), slowest.assigned)
            if slowest is event:
                self._told["rounds"] = [*self._told["rounds"], vars(event)][-MOST_ROUNDS:]
        self._count_workers()
        self._shown.round_done(event)

    # --- writing ---------------------------------------------------------------------------------------------------

    def _beats(self) -> None:
        """Begin to write; not before, because a folder without a run.json is no run directory."""
        self._count_workers()
        if self._thread is None:
            self._write()
            self._thread = threading.Thread(target=self._go_on, name="heartbeat", daemon=True)
            self._thread.start()

    def _go_on(self) -> None:
        while not self._over.wait(self._every):
            self._write()

    def _write(self) -> None:
        with self._lock:
            self._beat += 1
            content = masked_json(self._content())
        try:
            write_whole(self._url, content.encode(), lasting=False)
        except Exception as error:  # a full disk stops the run, not what is told of it
            log.debug("%s could not be written (%s)", self._url, error)

    def _content(self) -> dict[str, Any]:
        told = {"format": FORMAT, "version": VERSION, "beat": self._beat, "every": self._every, "written": time.time()}
        memory = {"now": resident_bytes(), "peak": peak_bytes()}
        step_seconds = round(time.monotonic() - self._step_began, 1) if self._step_began else None
        return told | self._told | {"memory": memory, "step_seconds": step_seconds, "left": self._left()}

    def _left(self) -> dict[str, Any] | None:
        """Seconds left at the pace so far, and of what; None where that cannot be told."""
        now, rounds = time.monotonic(), self._told["rounds"]
        if rounds and rounds[-1]["stage"] == "diffusion" and self._first is not None:
            began, before = self._first
            got, n = rounds[-1]["assigned"] - before, rounds[-1]["n_samples"]
            return None if got <= 0 else _estimate(now - began, n - rounds[-1]["assigned"], got, "full assignment")
        work = self._told["work"]
        if work is None or not work["total"] or not 0 < work["done"] < work["total"]:
            return None
        return _estimate(now - self._work_began, work["total"] - work["done"], work["done"], work["what"])

    def _count_workers(self) -> None:
        if self._client is None or time.monotonic() - self._asked < EVERY_WORKERS:
            return
        self._asked = time.monotonic()
        with suppress(Exception):  # a scheduler that is gone is found by the run itself
            found = workers_of(self._client).values()
            threads = sum(int(one.get("nthreads", 0)) for one in found)
            memory = sum(int(one.get("metrics", {}).get("memory", 0)) for one in found)
            with self._lock:
                self._told["workers"] = {"workers": len(found), "threads": threads, "memory": memory}


def _estimate(spent: float, missing: float, done: float, of: str) -> dict[str, Any]:
    return {"seconds": round(spent * missing / done, 1), "of": of}
