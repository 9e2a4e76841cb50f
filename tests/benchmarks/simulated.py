"""Many simulated workers: ``python -m tests.benchmarks.simulated [--workers 10 100 300 1000]``.

What a sweep costs beside the workers' own work, with the real scheduler and the package's own sweep. Processes on
loopback: the coordinator, the scheduler, and one for 250 workers each, which are real ones of Dask with one thread.
Their tasks sleep for the time of the work and return a table of the right size. A thousand workers share one core here,
which they do not on a cluster; so the processor seconds of the scheduler and the coordinator are told beside the clock,
less what heartbeats take in the same time.
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, Scheduler, Worker
from distributed.comm import tcp

from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine

K, DELAY, REPEATS, ADMITTED = 10, 2.0, 2, 50
TOGETHER = 250
"""Workers in one process, which may not have more than some thousand connections."""


def work(_span: Span, weights: np.ndarray, delay: float) -> np.ndarray:
    """The answer of a span in a round, the change of C, after the time that it takes to find it."""
    time.sleep(delay)
    return np.ones(weights.shape, np.int64)


def add(tables: list[np.ndarray]) -> np.ndarray:
    return np.sum(tables, axis=0)


class Traffic:
    """Messages and bytes that this process has written, and its processor seconds."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        write = tcp.TCP.write

        async def counted(comm: Any, *args: Any, **kwargs: Any) -> int:
            size = await write(comm, *args, **kwargs)
            self.written["messages"] += 1
            self.written["bytes"] += size
            self.written[f"bytes to {comm.peer_address}"] += size
            return size

        tcp.TCP.write = counted

    def told(self) -> Counter[str]:
        return Counter({**self.written, "seconds": time.process_time()})


SETTINGS = {
    # What a thousand workers do beside their work would take the core that they share.
    "distributed.admin.system-monitor.interval": "1h",  # it counts the files of the process, ten for every worker
    "distributed.admin.tick.interval": "10s",
    "distributed.admin.tick.limit": "1h",
    "distributed.worker.profile.enabled": False,
    "distributed.scheduler.worker-ttl": None,
    "distributed.comm.timeouts.connect": "60s",
}


async def _answer(pipe: Any, traffic: Traffic) -> None:
    """Tell what was written whenever asked; end when asked to."""
    while True:
        while not pipe.poll():
            await asyncio.sleep(0.05)
        if pipe.recv() == "end":
            return
        pipe.send(traffic.told())


def run_scheduler(pipe: Any) -> None:
    async def serve() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False, dashboard_address="127.0.0.1:0") as scheduler:
            pipe.send(scheduler.address)
            await _answer(pipe, traffic)

    traffic = Traffic()
    with dask.config.set(SETTINGS):
        asyncio.run(serve())


def run_workers(pipe: Any, address: str, count: int) -> None:
    async def serve() -> None:
        with tempfile.TemporaryDirectory() as folder:
            workers = [
                Worker(address, nthreads=1, host="127.0.0.1", dashboard=False, memory_limit=0, local_directory=folder)
                for _ in range(count)
            ]
            for first in range(0, count, ADMITTED):
                await asyncio.gather(*workers[first : first + ADMITTED])
            pipe.send("ready")
            await _answer(pipe, traffic)
            os._exit(0)  # closing a thousand workers takes minutes

    traffic = Traffic()
    with dask.config.set(SETTINGS):
        asyncio.run(serve())


def sweeps(count: int, spans_each: int, url: str) -> None:
    context, traffic = multiprocessing.get_context("spawn"), Traffic()
    pipes, processes = [], []
    groups = [(run_workers, (min(TOGETHER, count - first),)) for first in range(0, count, TOGETHER)]
    for target, args in ((run_scheduler, ()), *groups):
        mine, theirs = context.Pipe()
        args = (theirs, *([pipes[0][1]] if pipes else []), *args)
        processes.append(context.Process(target=target, args=args, daemon=True))
        processes[-1].start()
        pipes.append((mine, mine.recv()))
    address = pipes[0][1]

    def ask() -> list[Counter[str]]:
        for pipe, _ in pipes:
            pipe.send("tell")
        scheduler, *workers = [pipe.recv() for pipe, _ in pipes]
        return [traffic.told(), scheduler, sum(workers, Counter())]

    labels, spans = as_labels(url), count * spans_each
    edges = tuple(range(0, (spans + 1) << 30, 1 << 30))
    budget = replace(make_budget(labels.shape, [K], allowed=1 << 40), span_edges=edges)
    weights = np.random.default_rng(0).random((labels.n_slots, K))
    delay = DELAY / spans_each
    beyond, spent = [], []
    with Client(address) as client, Engine(labels, budget, client) as engine:
        for repeat in range(1 + REPEATS):
            before, begin = ask(), time.perf_counter()
            total = engine.sweep("round", work, add, weights + repeat, delay)
            seconds = time.perf_counter() - begin
            assert (total == spans).all()
            if repeat:  # the first one opens connections
                beyond.append(seconds - DELAY)
                spent.append([after - own_before for after, own_before in zip(ask(), before, strict=True)])
            time.sleep(1.0)
        before, idle = ask(), max(DELAY, float(np.mean(beyond)) + DELAY)
        time.sleep(idle)  # heartbeats go on anyway
        resting = [after - own_before for after, own_before in zip(ask(), before, strict=True)]
        to_client = _to_client(spent)
    for (pipe, _), process in reversed(list(zip(pipes, processes, strict=True))):
        pipe.send("end")
        process.join(60)
        if process.is_alive():
            process.terminate()
    coordinator, scheduler, workers = (
        {
            name: max(0.0, float(np.mean([turn[place][name] for turn in spent])) - resting[place][name])
            for name in ("messages", "bytes", "seconds")
        }
        for place in range(3)
    )
    print(
        f"{count} workers, {spans} spans: {min(beyond):.2f} s beyond the workers' {DELAY:g} s; coordinator "
        f"{coordinator['seconds']:.2f} s of CPU, {coordinator['messages']:.0f} messages and "
        f"{coordinator['bytes'] / 1e6:.2f} MB sent, {to_client / 1e6:.2f} MB received; scheduler "
        f"{scheduler['seconds']:.2f} s of CPU, {scheduler['messages']:.0f} messages, {scheduler['bytes'] / 1e6:.2f} MB "
        f"sent; workers {workers['seconds'] / count * 1000:.1f} ms of CPU each, {workers['messages']:.0f} messages, "
        f"{workers['bytes'] / 1e6:.1f} MB sent by all",
        flush=True,
    )


def _to_client(spent: list[list[Counter[str]]]) -> float:
    """Bytes that the scheduler sent to the coordinator: the connection that most was written to is its stream."""
    per_turn = []
    for turn in spent:
        sent = {name: size for name, size in turn[1].items() if name.startswith("bytes to")}
        per_turn.append(max(sent.values()))
    return float(np.mean(per_turn))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[10, 100, 300, 1000])
    parser.add_argument("--spans-each", type=int, default=1, help="spans of a worker")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"  # read by the processes that are started
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "ensemble.zarr")
        Synth(2000).write(url)
        for count in chosen.workers:
            sweeps(count, chosen.spans_each, url)


if __name__ == "__main__":
    from tests.benchmarks.simulated import main as imported

    imported()  # functions of __main__ would be pickled by value, those of the package are not
