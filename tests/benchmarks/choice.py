"""Choosing k: what a scan costs, and how often its recommendation is right. One line a figure.

``python -m tests.benchmarks.choice --folder FOLDER [--part recommend | scan]``
"""

import argparse
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask import CEHM
from cehm_dask.base_labels import k_range, label_all, make_labeller, plan_members
from cehm_dask.choice import Choice, choose
from cehm_dask.engine import Engine
from cehm_dask.features import as_features
from cehm_dask.intersections import hyperedges_of, intersections
from cehm_dask.job import Where, budget_of
from cehm_dask.labels import as_labels
from cehm_dask.plan import Params
from cehm_dask.synth import Synth

KS = range(2, 16)
Rows = NDArray[np.float64]

SIX = {
    "3 of equal size in 2 dimensions": {"k": 3, "d": 2, "n": 1000, "apart": 6.0, "sizes": 1000.0, "seed": 1},
    "4 of unequal size in 5 dimensions": {"k": 4, "d": 5, "n": 1500, "apart": 7.0, "sizes": 4.0, "seed": 2},
    "5 that overlap in 3 dimensions": {"k": 5, "d": 3, "n": 2000, "apart": 4.5, "sizes": 20.0, "seed": 3},
    "7 of unequal size in 20 dimensions": {"k": 7, "d": 20, "n": 2500, "apart": 6.0, "sizes": 4.0, "seed": 4},
    "8 in 2 dimensions": {"k": 8, "d": 2, "n": 2500, "apart": 7.0, "sizes": 20.0, "seed": 5},
    "10 that overlap in 10 dimensions": {"k": 10, "d": 10, "n": 3000, "apart": 5.0, "sizes": 20.0, "seed": 6},
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


def members_of(rows: Rows, seed: int = 0) -> NDArray[Any]:
    """Thirty k-means runs by the default protocol, with 2 clusters or more: the fewest that are scanned."""
    features = as_features(rows)
    low, high = min(KS), k_range(max(KS), len(rows))[1]
    with ThreadPoolExecutor(2) as pool:
        labeller, _ = make_labeller(features, plan_members(30, low, high, seed), seed, pool)
        return label_all(features, labeller, pool)


def recommended(rows: Rows) -> Choice:
    """What a scan would recommend; the rule looks at the intersections alone."""
    labels = as_labels(members_of(rows))
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
    right = 0
    for name, shape in SIX.items():
        found = recommended(blobs(**shape))  # type: ignore[arg-type]
        right += found.clear and found.n_clusters == shape["k"]
        print(f"{name}: {f'k = {found.n_clusters}' if found.clear else 'no clear k'} ({found.reason})", flush=True)
    print(f"right k recommended: {right} of {len(SIX)} (bar 5)")
    unclear = [not recommended(noise(d, seed)).clear for d in (2, 10) for seed in range(5)]
    print(f'"no clear k" on uniform noise, 2 and 10 dimensions: {sum(unclear)} of {len(unclear)} (bar: all)')
    counts = {"right": 0, "unclear": 0, "wrong": 0}
    for k, rows in many(40):
        found = recommended(rows)
        counts["unclear" if not found.clear else "right" if found.n_clusters == k else "wrong"] += 1
    print(f"40 random sets: {counts['right']} right, {counts['unclear']} no clear k, {counts['wrong']} wrong")


def scan(folder: Path) -> None:
    """14 values of k × 5 restarts, out of core, against runs made one by one."""
    url = folder / "scan.zarr"
    if not url.exists():
        Synth(n_samples=10**6, n_members=30).write(str(url), threads=2)

    def timed(ks: Any, restarts: int, init: Any = None) -> tuple[float, CEHM]:
        begin = time.perf_counter()
        model = CEHM(ks, restarts=restarts, init=init, random_state=0).fit(
            str(url), memory=MEMORY, output=folder / "scan-result.zarr", overwrite=True
        )
        return time.perf_counter() - begin, model

    timed(10, 1)  # compiled and in the page cache
    together, model = timed(list(KS), 5)
    runs = sum(record["restarts"] for record in model.scan_.values())
    single = {k: min(timed(k, 1) for _ in range(1))[0] for k in KS}
    alone = sum(single[k] * record["restarts"] for k, record in model.scan_.items())
    print(f"scan of k = 2..15 with 5 restarts, 10⁶ × 30, memory {MEMORY}: {together:.1f} s, {model.n_sweeps_} sweeps")
    print(f"{runs} runs one by one: {alone:.1f} s (one of each k timed, times its starts)")
    print(f"scan against runs one by one: {together / alone:.2f} (bar 0.6)")


MEMORY = "2GiB"
PARTS = {"recommend": recommend, "scan": scan}


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
