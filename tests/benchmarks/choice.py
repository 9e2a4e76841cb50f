"""Choosing k: what a scan costs, and how often its recommendation is right. One line a figure.

``python -m tests.benchmarks.choice --folder FOLDER [--part recommend | kinds | real | scan | trail] [--sets 30]
[--pools FOLDER] [--data FOLDER]``

Part ``kinds`` draws random sets from seeds that no constant of the rule was chosen on. Part ``real`` looks at
scikit-learn's bundled sets, at the .npz files in ``--pools`` (``labels`` with a column per member, and ``y``), of which
30 members are drawn five times, and at those in ``--data`` (``X`` and ``y``).
"""

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from cehm_dask import CEHM, job
from cehm_dask.data.features import as_features
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.engine.sweep import Engine, workers
from cehm_dask.job import Outcome, Where, budget_of
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import label_all, make_labeller
from cehm_dask.method.choice import Choice, choose
from cehm_dask.method.intersections import hyperedges_of, intersections
from cehm_dask.method.params import Params

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
"""Sets with a known number of clusters; of the constants of the rule, CEILING was settled on them too."""


def blobs(*, k: int, d: int, n: int, apart: float, sizes: float, seed: int) -> Rows:
    return with_classes(k=k, d=d, n=n, apart=apart, sizes=sizes, seed=seed)[0]


def with_classes(*, k: int, d: int, n: int, apart: float, sizes: float, seed: int) -> tuple[Rows, NDArray[Any]]:
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
    return np.asarray(centres[cluster] + rng.standard_normal((n, d)) * spreads[cluster][:, None]), cluster


def noise(d: int, seed: int) -> Rows:
    return np.random.default_rng([seed, d]).random((1000 + 500 * (seed % 4), d))


def members_of(rows: Rows, fewest: int = max(KS), most: int | None = None, seed: int = 0) -> NDArray[Any]:
    """Thirty k-means runs; by default as a run for all k makes them: with as many clusters as the largest k or more."""
    features = as_features(rows)
    most = k_range(max(KS), len(rows))[1] if most is None else most
    with workers(1) as pool:
        labeller, _ = make_labeller(features, plan_members(30, fewest, most, seed), seed, pool)
        return label_all(features, labeller, pool)


def careful_members(rows: Rows, fewest: int, most: int, seed: int) -> NDArray[Any]:
    """Thirty k-means runs, each the best of ten k-means++ starts."""
    counts = np.random.default_rng(seed).integers(fewest, most + 1, 30)
    return np.stack([KMeans(k, n_init=10, random_state=seed + i).fit_predict(rows) for i, k in enumerate(counts)], 1)


def judged(base_labels: NDArray[Any], ks: Sequence[int] = KS) -> Choice:
    """What a scan would recommend; the rule looks at the intersections alone."""
    labels = as_labels(base_labels)
    with Engine(labels, budget_of(labels, Params(2), (2,), Where(threads=1))) as engine:
        table, n_silent = intersections(engine)
    return choose(hyperedges_of(labels, table, n_silent), ks)


def recommended(rows: Rows, fewest: int = max(KS)) -> Choice:
    return judged(members_of(rows, fewest))


def many(count: int) -> Iterator[tuple[int, Rows]]:
    """Random sets with 3 to 10 clusters in 2 to 20 dimensions, from overlapping to well apart."""
    for seed in range(1000, 1000 + count):
        rng = np.random.default_rng(seed)
        k, d, n = int(rng.integers(3, 11)), int(rng.integers(2, 21)), int(rng.integers(800, 3001))
        sizes = float(rng.choice([4.0, 20.0, 1000.0]))
        yield k, blobs(k=k, d=d, n=n, apart=float(rng.uniform(4.5, 9.0)), sizes=sizes, seed=seed)


def recommend(_: argparse.Namespace) -> None:
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


FRESH = 70_000
"""First seed of the random sets; the constants of the rule were chosen on seeds from 20,000, 30,000 and 60,000 on."""
WIDE = range(2, 31)
RECOVERED = 0.95


def widths(k: int, n: int, finest: int | None = None) -> dict[str, tuple[int, int]]:
    """Fewest and most clusters of the members, by kind, if there are k classes."""
    return {
        "fine, 1.5 k or more": (ceil(1.5 * k), finest or max(min(isqrt(n), 50), 2 * k)),
        "coarse, 0.5 k .. 1.2 k": (max(2, ceil(0.5 * k)), max(3, int(1.2 * k))),
        "coarse, 2 .. k": (2, k),
        "all with k": (k, k),
    }


def made_up(k: int, low: int, high: int, missing: float, seed: int) -> NDArray[Any]:
    """Labels that follow k classes, the largest up to twice the smallest, with probability 0.5 to 0.9."""
    rng = np.random.default_rng([seed, 5])
    n, ratio, follow = int(rng.integers(800, 3001)), rng.uniform(1, 2), rng.uniform(0.5, 0.9)
    codes, truth = Synth(2 * n, 30, k, low, high, follow, missing or 1e-9, seed).arrays()
    keep = rng.random(len(truth)) < ratio ** -np.linspace(0, 1, k)[truth]
    return codes[keep].astype(np.int64) - 1


class Tally:
    """Verdicts by kind of ensemble."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def add(self, what: str, base_labels: NDArray[Any], k: int | None, truth: NDArray[Any] | None = None) -> None:
        """``k`` is None for noise: the right answer is that there is none.

        With the classes given, a set counts as recovered if the default consensus at the true k has an NMI of
        RECOVERED or more with them: where it has not, these members do not tell the classes.
        """
        found = judged(base_labels, WIDE)
        right = found.n_clusters == k
        counts = self.counts.setdefault(what, Counter())
        counts.update(sets=1, unclear=not found.clear, right=found.clear and right, kept=right)
        if truth is not None and k is not None:
            model = CEHM(k, random_state=0).fit(base_labels)
            recovered = normalized_mutual_info_score(truth, model.labels_) >= RECOVERED
            counts.update(recovered=recovered, both=recovered and found.clear and right, scored=1)

    def show(self) -> None:
        for what, counts in self.counts.items():
            sets, unclear, right = counts["sets"], counts["unclear"], counts["right"]
            print(
                f"  {what}: {sets} ensembles, {right} right, {unclear} no clear k, {sets - right - unclear} wrong; "
                f"right k kept, clear or not: {counts['kept']}"
                + (
                    f"; classes recovered: {counts['recovered']}, of these right: {counts['both']}"
                    * bool(counts["scored"])
                ),
                flush=True,
            )


def random_set(seed: int) -> tuple[int, Rows, NDArray[Any], np.random.Generator]:
    """3 to 20 blobs in 2 to 20 dimensions: their number, the rows, the classes, and the generator for more."""
    rng = np.random.default_rng(seed)
    k, d, n = int(rng.integers(3, 21)), int(rng.integers(2, 21)), int(rng.integers(800, 3001))
    sizes, apart = float(rng.choice([4.0, 20.0, 1000.0])), float(rng.uniform(4.5, 9.0))
    return k, *with_classes(k=k, d=d, n=n, apart=apart, sizes=sizes, seed=seed), rng


def kinds(chosen: argparse.Namespace) -> None:
    """Random sets of 3 to 20 classes and noise, by kind of members."""
    found = Tally()
    for seed in range(FRESH, FRESH + chosen.sets):
        k, rows, truth, rng = random_set(seed)
        n = len(rows)
        flat = rng.random((n, int(rng.integers(2, 11))))
        for kind, (low, high) in widths(k, n).items():
            found.add(f"blobs, members {kind}", members_of(rows, low, high, seed), k, truth)
            if not kind.startswith("fine"):
                found.add(f"blobs, members {kind}, ten starts each", careful_members(rows, low, high, seed), k, truth)
                what = f"uniform noise, members {kind}, ten starts each"
                found.add(what, careful_members(flat, low, high, seed), None)
            found.add(f"uniform noise, members {kind}", members_of(flat, low, high, seed), None)
            random = [rng.integers(0, width, n) for width in rng.integers(low, high + 1, 30)]
            found.add(f"independent labels, members {kind}", np.stack(random, 1), None)
        for kind, (low, high) in {**widths(k, n, 6 * k), "0.5 k .. 6 k": (max(2, k // 2), 6 * k)}.items():
            for missing in (0.0, 0.15):
                what = f"made-up labels, {missing:.0%} missing, members {kind}"
                found.add(what, made_up(k, low, high, missing, seed), k)
    found.counts = dict(sorted(found.counts.items()))
    found.show()


def real(chosen: argparse.Namespace) -> None:
    """Real data, where classes need not be clusters."""
    sets = {f"scikit-learn {name}": getattr(datasets, f"load_{name}")(return_X_y=True) for name in BUNDLED}
    for path in sorted(chosen.data.glob("*.npz")) if chosen.data else []:
        with np.load(path) as file:
            sets[path.stem] = file["X"], file["y"]
    total = Tally()
    for name, (rows, truth) in sets.items():
        rng = np.random.default_rng(0)
        some = np.sort(rng.choice(len(rows), min(len(rows), 5000), replace=False))
        rows, k = np.asarray(rows[some], np.float64), len(np.unique(truth))
        for kind, (low, high) in widths(k, len(rows)).items():
            base_labels = members_of(rows, low, max(high, low), 1)
            verdict = judged(base_labels, WIDE)
            print(f"  {name} ({k} classes), {kind}: {verdict.n_clusters}{'' if verdict.clear else ' (no clear k)'}")
            total.add(f"data sets, members {kind}", base_labels, k)
    for path in sorted(chosen.pools.glob("*.npz")) if chosen.pools else []:
        with np.load(path) as file:
            pool, k = file["labels"], len(np.unique(file["y"]))
        found = Tally()
        for seed in range(5):
            members = np.random.default_rng(seed).choice(pool.shape[1], 30, replace=False)
            found.add(f"pool {path.stem} ({k} classes)", pool[:, members], k)
            total.add("all pools", pool[:, members], k)
        found.show()
    total.show()


BUNDLED = ("iris", "wine", "breast_cancer", "digits")


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
            outcome = job.find_consensus(
                as_labels(str(self.url)), Params(ks[0], variant="released", restarts=restarts), 0, where, ks=ks
            )
        finally:
            job.budget_of = settle
        return time.perf_counter() - begin, time.process_time() - work_before, outcome


def scan(chosen: argparse.Namespace) -> None:
    """14 values of k × 5 restarts in one go, against runs made one by one."""
    stored = Stored(chosen.folder)
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


def trail(chosen: argparse.Namespace) -> None:
    """What following 3000 samples costs, with ten restarts."""
    seconds, _, outcome = Stored(chosen.folder).run([10], 10)
    share = outcome.consensus.seconds["trail"] / seconds
    print(f"trail, 10⁶ × 30, {outcome.consensus.chosen.restarts} restarts: {100 * share:.2f} % of {seconds:.1f} s")


MEMORY = "6GiB"
PARTS = {"recommend": recommend, "kinds": kinds, "real": real, "scan": scan, "trail": trail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the ensemble may lie")
    parser.add_argument("--sets", type=int, default=30, help="random sets of part kinds")
    parser.add_argument("--pools", type=Path, help="folder of .npz files with labels and y")
    parser.add_argument("--data", type=Path, help="folder of .npz files with X and y")
    parser.add_argument("--part", choices=PARTS, action="append")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in chosen.part or PARTS:
        PARTS[part](chosen)


if __name__ == "__main__":
    main()
