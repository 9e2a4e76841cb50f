"""Choosing k: what a scan costs, and how often its recommendation is right. One line a figure.

``python -m tests.benchmarks.choice --folder FOLDER [--part recommend | scan | trail]``
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask import job
from cehm_dask.base_labels import k_range, label_all, make_labeller, plan_members
from cehm_dask.choice import Choice, choose
from cehm_dask.engine import Engine
from cehm_dask.features import as_features
from cehm_dask.intersections import hyperedges_of, intersections
from cehm_dask.job import Outcome, Where, budget_of
from cehm_dask.labels import as_labels
from cehm_dask.plan import Params
from cehm_dask.synth import Synth

KS = range(2, 16)
Rows = NDArray[np.float64]

SIX = {
    "3 of equal size in 2 dimensions": {"k": 3, "d": 2, "n": 1000, "apart": 6.0, "sizes": 1000.0, "seed": 11},
    "4 of unequal size in 5 dimensions": {"k": 4, "d": 5, "n": 1500, "apart": 7.0, "sizes": 4.0, "seed": 12},
    "5 that overlap in 3 dimensions": {"k": 5, "d": 3, "n": 2000, "apart": 4.5, "sizes": 20.0, "seed": 13},
    "7 of unequal size in 20 dimensions": {"k": 7, "d": 20, "n": 2500, "apart": 6.0, "sizes": 4.0, "seed": 14},
    "8 in 2 dimensions": {"k": 8, "d": 2, "n": 2500, "apart": 7.0, "sizes": 20.0, "seed": 15},
    "10 that overlap in 10 dimensions": {"k": 10, "d": 10, "n": 3000, "apart": 5.0, "sizes": 20.0, "seed": 16},
}
"""Sets with a known number of clusters that no constant of the rule was chosen by."""


def blobs(*, k: int, d: int, n: int, apart: float, sizes: float, seed: int) -> Rows:
    """k round clusters, their spreads from 0.7 to 1.3, any two centres at least ``apart`` mean spreads apart.

    ``sizes`` is the concentration of their shares: 4 makes some several times as large as others; none is below 3 %.
    """
    rng = np.random.default_rng([seed, k, d])
    spreads, side = rng.uniform(0.7, 1.3, k), apart
    while True:
        centres = rng.uniform(-side, side, (k, d))
        distances = np.linalg.norm(centres[:, None] - centres[None], axis=2) / (spreads[:, None] + spreads[None]) * 2
        if distances[~np.eye(k, dtype=bool)].min() >= apart:
            break
        side *= 1.005
    shares = np.maximum(rng.dirichlet(np.full(k, sizes)), 0.03)
    cluster = rng.choice(k, n, p=shares / shares.sum())
    return np.asarray(centres[cluster] + rng.standard_normal((n, d)) * spreads[cluster][:, None])


def noise(d: int, seed: int) -> Rows:
    return np.random.default_rng([seed, d]).random((1000 + 500 * (seed % 4), d))


def members_of(rows: Rows, fewest: int = max(KS), seed: int = 0) -> NDArray[Any]:
    """Thirty k-means runs as a run for all k makes them: with as many clusters as the largest k, or more."""
    features = as_features(rows)
    low, high = fewest, k_range(max(KS), len(rows))[1]
    with ThreadPoolExecutor(2) as pool:
        labeller, _ = make_labeller(features, plan_members(30, low, high, seed), seed, pool)
        return label_all(features, labeller, pool)


def recommended(rows: Rows, fewest: int = max(KS)) -> Choice:
    """What a scan would recommend; the rule looks at the intersections alone."""
    labels = as_labels(members_of(rows, fewest))
    with Engine(labels, budget_of(labels, Params(2), (2,), Where())) as engine:
        table, n_silent = intersections(engine)
    return choose(hyperedges_of(labels, table, n_silent), dict.fromkeys(KS, 0.0))


def many(count: int) -> Iterator[tuple[int, Rows]]:
    """Random sets with 3 to 10 clusters in 2 to 20 dimensions, from overlapping to well apart."""
    for seed in range(1000, 1000 + count):
        rng = np.random.default_rng(seed)
        k, d, n = int(rng.integers(3, 11)), int(rng.integers(2, 21)), int(rng.integers(800, 3001))
        sizes = float(rng.choice([4.0, 20.0, 1000.0]))
        yield k, blobs(k=k, d=d, n=n, apart=float(rng.uniform(4.5, 9.0)), sizes=sizes, seed=seed)


def recommend(_: Path) -> None:
    for fewest in (max(KS), min(KS)):
        print(f"members with {fewest} clusters or more:")
        right = 0
        for name, shape in SIX.items():
            found = recommended(blobs(**shape), fewest)  # type: ignore[arg-type]
            right += found.clear and found.n_clusters == shape["k"]
            print(f"  {name}: {f'k = {found.n_clusters}' if found.clear else 'no clear k'}; {found.reason}", flush=True)
        print(f"  right k recommended: {right} of {len(SIX)} (bar 5)")
        unclear = [not recommended(noise(d, seed), fewest).clear for d in (2, 10) for seed in range(5)]
        print(f'  "no clear k" on uniform noise, 2 and 10 dimensions: {sum(unclear)} of {len(unclear)} (bar: all)')
        counts = {"right": 0, "unclear": 0, "wrong": 0}
        for k, rows in many(30):
            found = recommended(rows, fewest)
            counts["unclear" if not found.clear else "right" if found.n_clusters == k else "wrong"] += 1
        print(
            f"  30 random sets: {counts['right']} right, {counts['unclear']} no clear k, {counts['wrong']} wrong",
            flush=True,
        )


class Stored:
    """Consensus runs over one stored ensemble, into a store; labels are read anew in every sweep."""

    def __init__(self, folder: Path) -> None:
        self.url, self.output = folder / "scan.zarr", folder / "scan-result.zarr"
        if not self.url.exists():
            # More classes than clusters: from another start the medoids are others.
            Synth(10**6, n_members=30, n_classes=25).write(str(self.url), threads=2)
        self.run([10], 1)  # compiled, and in the page cache

    def run(self, ks: Sequence[int], restarts: int) -> tuple[float, float, Outcome]:
        """Seconds by the clock and of all threads' work (which a busy machine changes less), and the outcome."""
        where = Where(memory=MEMORY, output=str(self.output), overwrite=True)
        settle = job.budget_of
        job.budget_of = lambda *args: replace(settle(*args), keep_labels=False)
        begin, work_before = time.perf_counter(), time.process_time()
        try:
            outcome = job.cluster(as_labels(str(self.url)), Params(ks[0], restarts=restarts), 0, where, ks=ks)
        finally:
            job.budget_of = settle
        return time.perf_counter() - begin, time.process_time() - work_before, outcome


def scan(folder: Path) -> None:
    """14 values of k × 5 restarts in one go, against runs made one by one."""
    stored = Stored(folder)
    together, work, outcome = stored.run(list(KS), 5)
    starts = {record["n_clusters"]: record["restarts"] for record in outcome.scan}
    stages = sorted(outcome.consensus.seconds.items(), key=lambda stage: -stage[1])
    single = {k: stored.run([k], 1) for k in KS}
    alone, alone_work = (sum(single[k][i] * count for k, count in starts.items()) for i in (0, 1))
    print(
        f"scan of k = 2..15, {sum(starts.values())} problems, 10⁶ × 30 out of core: {together:.1f} s, "
        f"{outcome.sweeps} sweeps (single runs: {max(one[2].sweeps for one in single.values())} at most)"
    )
    print(f"  of that: {', '.join(f'{name} {seconds:.1f} s' for name, seconds in stages)}")
    print(f"one by one: {alone:.1f} s (one run of each k timed, {min(starts.values())} or more counted)")
    print(
        f"scan against runs one by one: {together / alone:.2f} by the clock, {work / alone_work:.2f} of work (bar 0.6)"
    )


def trail(folder: Path) -> None:
    """What following 3000 samples costs, with ten restarts."""
    seconds, _, outcome = Stored(folder).run([10], 10)
    share = outcome.consensus.seconds["trail"] / seconds
    print(f"trail, 10⁶ × 30, {outcome.consensus.chosen.restarts} restarts: {100 * share:.2f} % of {seconds:.1f} s")


MEMORY = "6GiB"
PARTS = {"recommend": recommend, "scan": scan, "trail": trail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the ensemble may lie")
    parser.add_argument("--part", choices=PARTS, action="append")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in chosen.part or PARTS:
        PARTS[part](chosen.folder)


if __name__ == "__main__":
    main()
