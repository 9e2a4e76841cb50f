"""Dask collections in and out: ``python -m tests.benchmarks.collections --folder FOLDER --part PART``.

Parts: ``labels`` (a persisted array of base labels against an ensemble.zarr on the same two worker processes, and the
driver's memory), ``features`` (a dask array of features against ``generate`` from Zarr on the same workers), ``kill``
(a worker with two threads killed in mid-sweep, many times), ``adaptive`` (``adapt(minimum=0, maximum=2)``), ``larger``
(an array larger than the workers' memory). ``--scale 0.1`` does the timed parts at a tenth of the size. Stores are made
in --folder and kept for the next run.
"""

import argparse
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster, wait
from sklearn.datasets import make_blobs

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.features import as_features
from cehm_dask.data.synth import Synth
from cehm_dask.machine import forget_peak, format_bytes, peak_bytes, resident_bytes
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import generate

TURNS = 3
MIB = 1 << 20


@contextmanager
def processes(count: int = 2, threads: int = 1, memory: str | None = None) -> Iterator[tuple[Any, Any]]:
    options: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    if memory is not None:
        options["memory_limit"] = memory
    with (
        LocalCluster(n_workers=count, threads_per_worker=threads, **options) as cluster,
        Client(cluster) as client,
    ):
        yield cluster, client


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    found = work()
    return time.perf_counter() - begin, found


def synthetic(folder: Path, n: int, members: int = 30) -> str:
    url = str(folder / f"ensemble-{n}-{members}.zarr")
    if not Path(url).exists():
        Synth(n, members).write(url, threads=2)
    return url


def _read(url: str, start: int, stop: int) -> np.ndarray:
    """Labels from 0 of some rows of a store; -1 is a missing one."""
    return open_ensemble(url).read(start, stop).astype(np.int16) - np.int16(1)


def labels_of(url: str, rows: int = 1 << 20) -> Any:
    """A dask array of the base labels of a store, which workers read."""
    ensemble = open_ensemble(url)
    n, members = ensemble.n_samples, len(ensemble.widths)
    edges = [*range(0, n, rows), n]
    read = dask.delayed(_read, pure=True)
    parts = [da.from_delayed(read(url, a, b), (b - a, members), np.int16) for a, b in pairwise(edges)]
    return da.concatenate(parts)


def part_labels(folder: Path, scale: float) -> None:
    """2·10⁷ × 30, k = 10."""
    n = int(2e7 * scale)
    url = synthetic(folder, n)
    at_import = resident_bytes()
    forget_peak()
    with processes() as (_, client):
        x = client.persist(labels_of(url))
        wait(x)
        CEHM(10, random_state=0).fit(x[: 1 << 18])  # compiles
        collection, store, output = [], [], str(folder / "consensus.zarr")
        for turn in range(TURNS):
            spent, model = timed(lambda: CEHM(10, random_state=0).fit(x))
            collection.append(spent)
            if turn == 0:
                above = (peak_bytes() - at_import) / MIB
            spent, stored = timed(lambda: CEHM(10, random_state=0).fit(url, output=output, overwrite=True))
            store.append(spent)
            print(f"  turn {turn + 1}: array {collection[-1]:.1f} s, store {store[-1]:.1f} s", flush=True)
        same = all(
            np.array_equal(model.labels_[a : a + (1 << 20)].compute(), stored.labels_[a : a + (1 << 20)])
            for a in range(0, n, 1 << 20)
        )
    print(f"persisted array of {n:,} × 30 against the store: {min(collection) / min(store):.2f} (bar 1.2)")
    print(f"driver's peak above import: {above:.0f} MiB (bar 150); same labels: {same}")


def _blobs(number: int, rows: int) -> np.ndarray:
    centres = make_blobs(20, 16, centers=20, random_state=0)[0]
    rng = np.random.default_rng(number)
    return (centres[rng.integers(20, size=rows)] + rng.normal(0, 3, (rows, 16))).astype(np.float32)


def part_features(folder: Path, scale: float) -> None:
    """5·10⁶ × 16, 30 members, to lazy labels."""
    rows = 1 << 18
    blocks = max(2, int(5e6 * scale) // rows)
    url = str(folder / f"features-{blocks}.zarr")
    if not Path(url).exists():
        stored = zarr.create_array(url, shape=(blocks * rows, 16), chunks=(rows, 16), dtype="f4")
        for i in range(blocks):
            stored[i * rows : (i + 1) * rows] = _blobs(i, rows)
    n = blocks * rows
    with processes() as (_, client):
        x = client.persist(da.from_zarr(url))
        wait(x)
        ClusterEnsemble(10, members=2, random_state=0).fit(x[:rows])
        collection, store = [], []
        for turn in range(TURNS):
            spent, model = timed(lambda: ClusterEnsemble(10, random_state=0).fit(x))
            collection.append(spent)
            seed = int(np.random.RandomState(0).randint(2**31))
            plans = plan_members(30, *k_range(10, n), seed)

            def through_store(plans: Any = plans, seed: int = seed) -> Any:
                generate(as_features(url), str(folder / "made.zarr"), plans, seed, overwrite=True)
                return CEHM(10, random_state=seed).fit(
                    str(folder / "made.zarr"), output=str(folder / "made-consensus.zarr"), overwrite=True
                )

            spent, stored = timed(through_store)
            store.append(spent)
            print(f"  turn {turn + 1}: array {collection[-1]:.1f} s, Zarr {store[-1]:.1f} s", flush=True)
        same = np.array_equal(model.labels_.compute(), stored.labels_[:])
    print(
        f"features {n:,} × 16 as a dask array against generate from Zarr: {min(collection) / min(store):.2f} (bar 1.2)"
    )
    print(f"same labels: {same}")


def part_kill(folder: Path, scale: float, turns: int) -> None:
    """A worker with two threads killed in mid-sweep, on workers of its own each time: not all nannies start another."""
    url = synthetic(folder, int(2e6 * scale))
    x, rng, same, killed, fits = labels_of(url, int(2e6 * scale) // 8), random.Random(0), 0, 0, 0
    wanted = CEHM(10, random_state=0).fit(url, client=False).labels_
    while killed < turns and fits < 3 * turns:
        with processes(2, threads=2) as (_, client):
            CEHM(10, random_state=0).fit(x)  # compiles
            spent, _ = timed(lambda: CEHM(10, random_state=0).fit(x))
            victim, ended = rng.choice(sorted(client.run(os.getpid).values())), threading.Event()
            delay = rng.uniform(0.05, 0.8) * spent

            def strike(victim: int = victim, delay: float = delay, ended: threading.Event = ended) -> None:
                nonlocal killed
                if not ended.wait(delay):
                    os.kill(victim, signal.SIGKILL)
                    killed += 1

            killer = threading.Thread(target=strike)
            killer.start()
            found = CEHM(10, random_state=0).fit(x)
            ended.set()
            killer.join()
            same, fits = same + np.array_equal(found.labels_.compute(), wanted), fits + 1
        print(f"  fit {fits}: same labels {same}, workers killed {killed}", flush=True)
    print(f"a worker killed in mid-sweep: {same} of {fits} fits the same labels, {killed} killed (bar: all, {turns})")


def part_adaptive(folder: Path, scale: float) -> None:
    """Workers come for a fit, and go after it."""
    url = synthetic(folder, int(2e6 * scale))
    with processes(0) as (cluster, client):
        cluster.adapt(minimum=0, maximum=2, interval="200ms")
        seconds, model = timed(lambda: CEHM(10, random_state=0).fit(url, client=client))
        most = len(cluster.workers)
        wanted = CEHM(10, random_state=0).fit(url, client=False)
        begin = time.perf_counter()
        while cluster.workers and time.perf_counter() - begin < 120:
            time.sleep(0.2)
        left = len(cluster.workers)
    same = np.array_equal(model.labels_, wanted.labels_)
    print(
        f"adapt(minimum=0, maximum=2): {seconds:.1f} s, {most} workers at the end of the fit, {left} left "
        f"{time.perf_counter() - begin:.0f} s later (bar 0); same labels: {same}"
    )


def part_larger(folder: Path, scale: float) -> None:
    """Codes that do not fit in the workers' memory go through the scratch store."""
    n = int(4e7 * scale)
    url, limit = synthetic(folder, n), "1GiB"
    with processes(2, memory=limit) as (_, client), dask.config.set({"temporary-directory": str(folder)}):
        peaks: list[int] = []
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.5):
                workers = client.scheduler_info(n_workers=-1)["workers"].values()
                peaks.extend(worker["metrics"]["memory"] for worker in workers if worker.get("metrics"))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            seconds, model = timed(lambda: CEHM(10, random_state=0).fit(labels_of(url, 1 << 19)))
            sizes = model.cluster_sizes_.sum()
        finally:
            done.set()
            watcher.join()
    print(
        f"{n:,} × 30 ({format_bytes(30 * n)} of codes) on two workers of {limit}: {seconds:.1f} s, {sizes:,} rows "
        f"labelled, largest worker {format_bytes(max(peaks))}"
    )


PARTS = {"labels": part_labels, "features": part_features, "adaptive": part_adaptive, "larger": part_larger}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--part", choices=[*PARTS, "kill"], action="append", required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="times the rows of the full size")
    parser.add_argument("--turns", type=int, default=20, help="kills that must land, of the part kill")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    for part in options.part:
        if part == "kill":
            part_kill(options.folder, options.scale, options.turns)
        else:
            PARTS[part](options.folder, options.scale)


if __name__ == "__main__":
    main()
