"""The default answer: are all clusters found, and what does it cost? One line a figure.

``python -m tests.benchmarks.answer [--part synthetic | resampled | cost] [--sets 120]``

Scores on the paper's sets and on pools of members come from ``cehm reproduce``.
"""

import argparse
import time
import warnings
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_iris, load_wine
from sklearn.metrics import normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler

from cehm_dask import CEHM
from cehm_dask.data.synth import Synth
from cehm_dask.rivals import METHODS

WIDTHS = {"coarse": (0.5, 1.5), "fine": (1.0, 5.0), "any": (0.5, 6.0), "same": (1.0, 1.0)}
"""Clusters of a member, in times of the number of classes."""


@dataclass(frozen=True)
class Family:
    """A made-up ensemble with known classes."""

    seed: int

    def draw(self):
        """Labels (n × 30), classes, whether classes are of one size, and a name."""
        rng = np.random.default_rng([2026, self.seed])
        k, n = int(rng.integers(5, 21)), int(rng.integers(2000, 6001))
        ratio = (1.0, 1.5, 2.0)[self.seed % 3]  # the largest class is ratio⁴ times the smallest
        sizes = ratio ** (-4.0 * np.arange(k) / (k - 1))
        truth = rng.choice(k, n, p=sizes / sizes.sum())
        right, missing = rng.uniform(0.5, 0.9), (0.0, 0.15)[self.seed // 3 % 2]
        kind = list(WIDTHS)[self.seed // 6 % 4]
        labels = np.stack([self._member(rng, truth, k, right, WIDTHS[kind]) for _ in range(30)], axis=1)
        labels[rng.random(labels.shape) < missing] = -1
        return labels, truth, ratio == 1.0, f"k={k} ratio={ratio} right={right:.2f} {kind} missing={missing}"

    @staticmethod
    def _member(rng, truth, k, right, widths):
        """Classes merged at random, or split at random; each label right with a probability, else anything."""
        width = max(2, round(k * rng.uniform(*widths)))
        order = rng.permutation(k)
        pieces = -(-(width - order) // k) if width > k else np.ones(k, int)
        own = order[truth] % width + k * (rng.random(len(truth)) * pieces[truth]).astype(int) * (width > k)
        return np.where(rng.random(len(truth)) < right, own, rng.integers(0, width, len(truth)))


def synthetic(sets: int) -> None:
    methods = ("default", "released", "wct", "usenc", "lwgp")
    scores = {name: {True: [], False: []} for name in methods}
    fewer = dict.fromkeys(methods, 0)
    for seed in range(sets):
        labels, truth, balanced, name = Family(seed).draw()
        k = int(truth.max()) + 1
        for method in methods:
            if method in METHODS:
                found = METHODS[method](labels, k)
            else:
                variant = "auto" if method == "default" else method
                found = CEHM(k, variant=variant, random_state=0).fit(labels).labels_
            spoken = found >= 0
            score = normalized_mutual_info_score(truth[spoken], found[spoken])
            scores[method][balanced].append(score)
            fewer[method] += len(np.unique(found[spoken])) < k
            if method == "default" and score < 0.99:
                print(f"  default {score:.3f} on {name}", flush=True)
    for method in methods:
        even, uneven = scores[method][True], scores[method][False]
        print(
            f"{method}: mean NMI {np.mean(even):.4f} on {len(even)} balanced, {np.mean(uneven):.4f} on {len(uneven)} "
            f"unbalanced families (bar 0.99, default), worst {min(even + uneven):.3f}; fewer than k clusters: "
            f"{fewer[method]} of {sets} (bar 0)"
        )


def resampled(members: int = 1000) -> None:
    """k-means members of subsamples, as resampling consensus makes them."""
    for name, load in (("wine", load_wine), ("breast cancer", load_breast_cancer)):
        rows = StandardScaler().fit_transform(load().data)
        for k in range(2, 9):
            rng = np.random.default_rng(k)
            labels = np.full((len(rows), members), -1)
            for j in range(members):
                some = rng.choice(len(rows), int(0.8 * len(rows)), replace=False)
                fitted = KMeans(k, n_init=1, random_state=int(rng.integers(2**31))).fit(rows[some])
                labels[some, j] = fitted.labels_
            begin = time.perf_counter()
            model = CEHM(k, random_state=0).fit(labels)
            sizes = sorted(model.cluster_sizes_.tolist(), reverse=True)
            print(
                f"{name}, {members} members, k={k}: {model.n_clusters_found_} clusters (bar {k}), "
                f"{time.perf_counter() - begin:.1f} s, sizes {sizes}",
                flush=True,
            )


def cost(turns: int = 5) -> None:
    labels, _ = Synth(10**6, n_members=30).arrays()
    seconds = {"auto": [], "released": []}
    sweeps = {}
    for variant in seconds:
        CEHM(10, variant=variant, random_state=0).fit(labels[:50_000])
    for _ in range(turns):
        for variant, taken in seconds.items():
            begin = time.perf_counter()
            sweeps[variant] = CEHM(10, variant=variant, random_state=0).fit(labels).n_sweeps_
            taken.append(time.perf_counter() - begin)
    ours, theirs = (min(taken) for taken in seconds.values())
    print(f"default against released, 10⁶ × 30, k = 10: {ours / theirs:.2f} ({ours:.2f} s, {theirs:.2f} s; bar 2)")
    print(f"sweeps: {sweeps['auto']} against {sweeps['released']} (bar 1.5 times)")
    rows, rng = load_iris().data, np.random.default_rng(0)
    widths = rng.integers(3, 13, 30)  # as the paper draws them for 150 samples
    members = [KMeans(k, init="random", n_init=1, random_state=i).fit(rows).labels_ for i, k in enumerate(widths)]
    small = np.stack(members, axis=1)
    least = min(_seconds(small) for _ in range(20))
    print(f"iris, 150 × 30, k = 3, after the first call: {1000 * least:.0f} ms (bar 40)")


def _seconds(labels) -> float:
    begin = time.perf_counter()
    CEHM(3, random_state=0).fit(labels)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("synthetic", "resampled", "cost"))
    parser.add_argument("--sets", type=int, default=120)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    parts = {"synthetic": lambda: synthetic(chosen.sets), "resampled": resampled, "cost": cost}
    for part in [chosen.part] if chosen.part else parts:
        parts[part]()


if __name__ == "__main__":
    main()
