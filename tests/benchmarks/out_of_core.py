"""Figures of the engine out of core and on processes: ``python -m tests.benchmarks.out_of_core [PART ...]``.

Prints one line a figure, as ratios of two things measured in the same run. Stores are made in --folder (10⁸ samples
take 3 GB there) and kept for the next run.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from cehm_dask import CEHM
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.sweep import Engine
from cehm_dask.job import Where, budget_of, find_consensus
from cehm_dask.machine import this_machine
from cehm_dask.method.cut import EVERY_ROW
from cehm_dask.method.intersections import hyperedges_of, intersections
from cehm_dask.method.orders import Assign, Order, combine
from cehm_dask.method.params import Params
from cehm_dask.method.problem import Problem
from cehm_dask.method.rounds import advance
from tests.benchmarks.timing import best_of, watched

K = 10
SMALL, MIDDLE, LARGE, HUGE = 10**6, 10**7, 10**8, 10**9
TURNS, REPEATS = 4, 6


def ensemble(folder: Path, n: int, classes: int = 10) -> str:
    url = folder / (f"ensemble-{n}.zarr" if classes == 10 else f"ensemble-{n}-{classes}.zarr")
    if not url.exists():
        Synth(n, n_classes=classes).write(str(url), threads=2)
    return str(url)


class Sweeps:
    """Belonging sweeps over labels, with everything before them done: what a round costs."""

    def __init__(self, labels: Labels, *, keep_labels: bool, client: Any = None, workers: int | None = None) -> None:
        machine = this_machine("20GiB", None if client is None else 1)
        budget = make_budget(labels.shape, [K], allowed=machine.allowed, threads=machine.threads, workers=workers)
        from dataclasses import replace

        self.engine = Engine(labels, replace(budget, keep_labels=keep_labels), client)
        small = labels.source.read(0, 100_000)
        with Engine(as_labels(small), make_budget(as_labels(small).shape, [K], allowed=1 << 40)) as engine:
            edges = hyperedges_of(as_labels(small), *intersections(engine))
        self.problem = Problem(0, Params(K, variant="released"), edges, np.arange(K))
        random = np.random.default_rng(0).random((labels.n_slots, K))
        self.problem.weights = random

    def __call__(self) -> None:
        self._round(lambda order: self.engine.sweep("belonging", advance, combine, [order]))

    def bare(self, share: slice) -> None:
        """The work of a sweep on some of its runs, with nobody to hand it out."""
        self._round(lambda order: combine([advance(span, [order]) for span in self.engine.spans[share]]))

    def _round(self, work: Callable[[Order], Any]) -> None:
        order = self.problem.order(Assign, cut=EVERY_ROW)
        work(order)
        # The next one is another round, with weights that workers have not seen.
        self.problem.step += 1
        self.problem.table += 1
        self.problem.previous = (order.weights, EVERY_ROW)

    def seconds(self, repeats: int = REPEATS) -> float:
        self()
        found = best_of(repeats, self)
        self.engine.close()
        return found


def against_memory(folder: Path) -> None:
    url = ensemble(folder, MIDDLE)
    stored = as_labels(url)
    codes = open_ensemble(url).read(0, MIDDLE)
    held = as_labels(codes)
    ratios = [Sweeps(stored, keep_labels=False).seconds() / Sweeps(held, keep_labels=False).seconds() for _ in range(3)]
    print(
        f"out-of-core sweep against in-memory sweep, 10⁷ × 30, page cache warm: {min(ratios):.2f} (bar 1.8, wish 1.3)"
    )


def cost_in_n(folder: Path) -> None:
    def figure(n: int, repeats: int) -> float:
        return Sweeps(as_labels(ensemble(folder, n)), keep_labels=False).seconds(repeats) / n

    small, middle, large = figure(SMALL, 10), figure(MIDDLE, 3), figure(LARGE, 1)
    small, middle = min(small, figure(SMALL, 10)), min(middle, figure(MIDDLE, 3))
    print(f"seconds per sample and sweep, 10⁷ against 10⁶: {middle / small:.2f} (bar 1.25)")
    print(f"seconds per sample and sweep, 10⁸ against 10⁷: {large / middle:.2f} (bar 1.15)")


def _bare(url: str, share: slice, ready: Any, out: Any) -> None:
    sweeps = Sweeps(as_labels(url), keep_labels=True)
    sweeps.bare(share)
    seconds = []
    for _ in range(REPEATS):
        ready.wait()
        begin = time.perf_counter()
        sweeps.bare(share)
        seconds.append(time.perf_counter() - begin)
    out.put(seconds)


def _copies(url: str, shares: list[slice]) -> float:
    """Seconds of a sweep's work, each share of its runs by a process of its own, with nothing around it."""
    context = multiprocessing.get_context("spawn")
    ready, out = context.Barrier(len(shares)), context.Queue()
    processes = [context.Process(target=_bare, args=(url, share, ready, out)) for share in shares]
    for process in processes:
        process.start()
    seconds = [out.get() for _ in processes]
    for process in processes:
        process.join()
    return float(np.max(seconds, axis=0).min())


def overhead_and_speed_up(folder: Path) -> None:
    from distributed import Client, LocalCluster

    url = ensemble(folder, MIDDLE)
    labels = as_labels(url)

    def on_processes(count: int) -> float:
        with (
            LocalCluster(
                n_workers=count, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
            ) as workers,
            Client(workers) as client,
        ):
            return Sweeps(labels, keep_labels=True, client=client, workers=count).seconds()

    ways: list[Callable[[], float]] = [
        lambda: _copies(url, [slice(None)]),
        lambda: _copies(url, [slice(0, None, 2), slice(1, None, 2)]),
        lambda: Sweeps(labels, keep_labels=True).seconds(),
        lambda: on_processes(1),
        lambda: on_processes(2),
    ]
    # By turns, the least of each: noise comes in stretches, and would fall on one of them.
    alone, both, threads, one, two = np.min([[way() for way in ways] for _ in range(TURNS)], axis=0)
    machine_speed_up = alone / both
    print(f"two processes that do a sweep's work against one, nobody handing it out: speed-up {machine_speed_up:.2f}")
    print(f"two processes against one: speed-up {one / two:.2f}, {one / two / machine_speed_up:.2f} of that (bar 0.9)")
    print(f"sweep on two threads against its bare work on two processes, 10⁷: {threads / both:.2f} (bar 1.10)")
    print(f"sweep on two worker processes against its bare work on two processes, 10⁷: {two / both:.2f} (bar 1.15)")


def restarts(folder: Path) -> None:
    # More classes than clusters: from another start the medoids are others.
    url, seconds, sweeps = ensemble(folder, MIDDLE, 25), {1: inf, 10: inf}, {}
    for count in (1, 10) * 2:
        params = Params(K, variant="released", restarts=count)
        roomy = budget_of(as_labels(url), params, (K,), Where(memory="20GiB"))
        # Room for assignments, not for labels: both read them in every sweep.
        memory = roomy.projected - roomy.terms["kept labels"] + (100 << 20)
        begin = time.perf_counter()
        outcome = find_consensus(as_labels(url), params, 0, Where(memory=memory))
        assert not outcome.budget.keep_labels
        seconds[count], sweeps[count] = min(seconds[count], time.perf_counter() - begin), outcome.sweeps
        ran = outcome.consensus.chosen.restarts
    print(
        f"ten restarts ({ran} different) against one, 10⁷ out of core: time {seconds[10] / seconds[1]:.2f} (bar 7), "
        f"sweeps {sweeps[10]} against {sweeps[1]}"
    )


def checkpoint(folder: Path) -> None:
    import shutil

    output = folder / "checkpoint-probe.zarr"
    shutil.rmtree(output, ignore_errors=True)
    sizes = []

    def look(_event: Any) -> None:
        sizes.append((output / "checkpoint.npz").stat().st_size)

    begin = time.perf_counter()
    labels, params = as_labels(ensemble(folder, MIDDLE)), Params(K, variant="released")
    outcome = find_consensus(labels, params, 0, Where(output=str(output)), progress=look)
    whole = time.perf_counter() - begin
    spent = outcome.consensus.seconds["checkpoints"]
    print(f"checkpoint, 10⁷: {max(sizes) / 1024:.0f} KiB (bar 1024), {100 * spent / whole:.2f} % of the run (bar 1)")


def large(folder: Path) -> None:
    """The command as a user gives it, watched from outside."""
    import shutil

    url, seconds = ensemble(folder, LARGE), {}
    for variant in ("auto", "released"):
        output = folder / f"consensus-large-{variant}.zarr"
        shutil.rmtree(output, ignore_errors=True)
        command = [str(Path(sys.executable).parent / "cehm"), "consensus", url, "--k", str(K), "--memory", "2GiB"]
        seconds[variant], peak = watched([*command, "--variant", variant, "-o", str(output), "--quiet"])
        facts = json.loads((output / "zarr.json").read_text())["attributes"]["cehm"]
        print(
            f"10⁸ × 30, k = 10, memory 2GiB, {variant}: {seconds[variant]:.0f} s, {facts['sweeps']} sweeps, "
            f"{facts['n_clusters_found']} clusters, peak {peak / 2**30:.2f} GiB (bar 3)"
        )
    print(f"default against released, 10⁸ × 30: {seconds['auto'] / seconds['released']:.2f} (bar 1.5)")


def _command(url: str, output: Path, memory: str, *more: str, python: Path | None = None) -> list[str]:
    """``cehm consensus`` of this environment, or of another one."""
    shutil.rmtree(output, ignore_errors=True)
    cehm = (python or Path(sys.executable)).parent / "cehm"
    return [str(cehm), "consensus", url, "--k", str(K), "--memory", memory, *more, "-o", str(output), "--quiet"]


def _facts(output: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((output / "zarr.json").read_text())["attributes"]["cehm"]
    return found


def _read_plainly(url: str) -> float:
    """Bytes a second of reading all shards one after the other, the page cache emptied of them first."""
    files = [path for path in sorted(Path(url).rglob("*")) if path.is_file()]
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    buffer, size, begin = bytearray(8 << 20), 0, time.perf_counter()
    for path in files:
        with path.open("rb", buffering=0) as file:
            while read := file.readinto(buffer):
                size += read
    return size / (time.perf_counter() - begin)


def _share_alike(one: Path, other: Path) -> float:
    """ARI of two stored results, from their contingency table."""
    from cehm_dask.data.consensus_store import open_consensus

    first, second = (open_consensus(str(url)).array("labels") for url in (one, other))
    table = np.zeros((K, K), np.int64)
    for start in range(0, first.shape[0], 1 << 24):
        rows = slice(start, start + (1 << 24))
        a, b = np.asarray(first[rows]), np.asarray(second[rows])
        table += np.bincount(a.astype(np.int64) * K + b, minlength=K * K).reshape(K, K)
    pairs = [int((x * (x - 1) // 2).sum()) for x in (table.astype(object), table.sum(1), table.sum(0))]
    n = int(table.sum())
    expected = pairs[1] * pairs[2] / (n * (n - 1) // 2)
    return (pairs[0] - expected) / ((pairs[1] + pairs[2]) / 2 - expected)


def huge(folder: Path) -> None:
    """10⁹ rows: the default, exact and from a sample, then the paper's program; 75 GB of disk."""
    url, sample = ensemble(folder, HUGE), ("--start-rows", str(min(SMALL, HUGE // 10)))
    exact = _huge_run(folder, url, "exact")
    sampled = _huge_run(folder, url, "from a sample", *sample)
    print(f"ARI of the two: {_share_alike(exact, sampled):.4f} (bar 0.999)", flush=True)
    for output in (exact, sampled):
        shutil.rmtree(output)
    _huge_run(folder, url, "released", "--variant", "released")


def _huge_run(folder: Path, url: str, name: str, *more: str) -> Path:
    output = folder / f"consensus-huge-{name.replace(' ', '-')}.zarr"
    command = _command(url, output, "4GiB", *more)
    plain = _read_plainly(url)
    seconds, peak = watched(command)
    facts = _facts(output)
    print(
        f"{HUGE:.0e} × 30, k = 10, memory 4GiB, {name}: {seconds:.0f} s, {facts['sweeps']} sweeps, "
        f"{len(facts['growth']) - 1} rounds of diffusion, {len(facts['losses'])} of adjustion, "
        f"{facts['bytes_read'] / seconds / 1e6:.0f} MB/s of labels beside {plain / 1e6:.0f} MB/s of a plain read, "
        f"peak {peak / 2**30:.2f} GiB",
        flush=True,
    )
    return output


def before(folder: Path) -> None:
    """10⁸ rows in 2 GiB against the version of another environment (--before), by turns."""
    if OTHER is None:
        print("part before: give --before PYTHON, of an environment with the other version")
        return
    url, seconds = ensemble(folder, LARGE), {"before": inf, "now": inf}
    for name in ("before", "now") * 2:
        output = folder / f"consensus-{name}.zarr"
        took, _ = watched(
            _command(url, output, "2GiB", "--variant", "released", python=OTHER if name == "before" else None)
        )
        seconds[name] = min(seconds[name], took)
        print(f"10⁸ × 30, memory 2GiB, released, {name}: {took:.0f} s, {_facts(output)['sweeps']} sweeps", flush=True)
    print(f"now against before: {seconds['now'] / seconds['before']:.2f} (bar 1)")


PARTS = {
    "memory": against_memory,
    "overhead": overhead_and_speed_up,
    "restarts": restarts,
    "checkpoint": checkpoint,
    "large": large,
    "cost": cost_in_n,
    "huge": huge,
    "before": before,
}
USUAL = [part for part in PARTS if part not in ("huge", "before")]
OTHER: Path | None = None

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: {', '.join(USUAL)}")
    parser.add_argument("--folder", type=Path, default=Path("benchmark-stores"), help="where the stores are made")
    parser.add_argument("--before", type=Path, help="python of another environment, for the part before")
    parser.add_argument("--rows", type=float, default=HUGE, help="of the part huge")
    options = parser.parse_args()
    OTHER, HUGE = options.before, int(options.rows)
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    CEHM(2, random_state=0).fit(Synth(1000).arrays()[0])
    for part in options.parts or USUAL:
        PARTS[part](options.folder)
