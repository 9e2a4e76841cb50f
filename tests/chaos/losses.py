"""A Dask cluster of forked processes, one of which is lost in the middle of its work."""

import asyncio
import os
import signal
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.command import FORKS, is_stopped

WAIT_SECONDS = {"scheduler": 3, "worker": 30}
"""How long the command tries to reach a scheduler, by what is lost.

On a busy machine a live scheduler may take several seconds to answer; one that is lost need not be waited for.
"""

READY_SECONDS = 300


class Cluster:
    """A scheduler and workers on loopback; what is started is ended by its own id."""

    def __init__(self, folder, victim):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True)
        self.workers = []
        self.scheduler, self.address = self._start("scheduler", _schedule)
        (self.folder / "cluster.yaml").write_text(
            f"kind: address\naddress: {self.address}\nworkers: 1\nwait_seconds: {WAIT_SECONDS[victim]}\n"
        )

    @property
    def spec(self):
        """The cluster file that names it."""
        return self.folder / "cluster.yaml"

    def add_worker(self, threads=1, *, at=None, number=signal.SIGKILL, victim=None):
        """Start a worker, which may lose itself, or its scheduler, at the so-many-th of its blocks and tasks.

        It has joined when this returns: a command that began with the other worker alone may be done before.
        """
        pid = self.scheduler.pid if victim == "scheduler" else None
        worker, _ = self._start(f"worker {len(self.workers)}", _work, self.address, threads, at, int(number), pid)
        self.workers.append(worker)
        return worker

    def _start(self, name, target, *args):
        """A process that has written its address down."""
        note = self.folder / name
        process = FORKS.Process(target=target, args=(str(note), *args))
        process.start()
        deadline = time.monotonic() + READY_SECONDS
        while not note.exists():
            assert time.monotonic() < deadline, f"the {name} did not start"
            time.sleep(0.02)
        return process, note.read_text()

    def close(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.join()
            process.close()


@contextmanager
def a_cluster(folder, victim):
    """A cluster of which a worker or the scheduler is going to be lost."""
    cluster = Cluster(folder, victim)
    try:
        yield cluster
    finally:
        cluster.close()


def is_lost(process):
    """Whether a process was killed, or stands still."""
    return process.exitcode is not None or is_stopped(process.pid)


def many_runs():
    """In the command: several spans per thread, so that a sweep has a middle."""
    from cehm_dask.engine import budget

    budget.DASK_SPAN_WORK = 1


# --- in the processes --------------------------------------------------------------------------------------------


def _schedule(note):
    from distributed import Scheduler

    async def serve():
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False) as scheduler:
            _write_down(note, scheduler.address)
            await scheduler.finished()

    _quietly(serve)


def _write_down(note, address):
    Path(f"{note}.half").write_text(address)
    os.rename(f"{note}.half", note)


def _work(note, address, threads, at, number, victim):
    from distributed import Worker, WorkerPlugin

    from cehm_dask.engine.span import Span

    tick = _Ticks(at, number, victim or os.getpid())
    blocks = Span.blocks

    def counted(run):
        for block in blocks(run):
            tick()
            yield block

    class Tasks(WorkerPlugin):
        def transition(self, key, start, finish, **_):
            if finish == "executing":
                tick()

    async def serve():
        with tempfile.TemporaryDirectory() as folder:
            options = {"nthreads": threads, "memory_limit": "2GiB", "local_directory": folder, "dashboard": False}
            async with Worker(address, host="127.0.0.1", plugins=[Tasks()], **options) as worker:
                _write_down(note, worker.address)
                await worker.finished()

    Span.blocks = counted
    _quietly(serve)


class _Ticks:
    """Counts what a worker does, and sends the victim its signal when it has done so much."""

    def __init__(self, at, number, victim):
        self.at, self.number, self.victim, self.count = at, number, victim, 0
        self.alone = threading.Lock()

    def __call__(self):
        with self.alone:
            self.count += 1
            if self.count == self.at:
                os.kill(self.victim, self.number)


def _quietly(serve):
    """Serve until it ends; what is said on the way is of no interest."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.setpgid(0, 0)
    asyncio.run(serve())
