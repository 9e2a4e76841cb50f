"""Thousands of members, and the medoids of their base clusters: one line per figure.

``python -m tests.benchmarks.members [--part medoids | large | quality] [--draws 3]``

Seconds are of the clock, with those of the CPU (all threads) beside: on a busy machine only these tell anything.
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings
from unittest import mock

import kmedoids
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.metrics import normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler

from cehm_dask import CEHM
from cehm_dask.data import shape
from cehm_dask.data.labels import as_labels
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.sweep import Engine
from cehm_dask.method.fasterpam import fasterpam
from cehm_dask.method.intersections import hyperedges_of, intersections
from cehm_dask.method.medoids import dissimilarity
from tests.benchmarks.answer import Family

TRIES = 10


def medoids(sets: int = 6) -> None:
    """The solver of this package against the package ``kmedoids``: losses and seconds of the CPU, in turns."""
    for similarity in ("jaccard", "containment"):
        seconds, best, sizes = np.zeros(2), [], []
        for seed in range(sets):
            labels, truth, _, _ = Family(6 + seed).draw()
            known, k = as_labels(labels), int(truth.max()) + 1
            with Engine(known, make_budget(known.shape, [1], allowed=1 << 40)) as engine:
                table = dissimilarity(hyperedges_of(known, *intersections(engine)), similarity)
            rows, rng = np.ascontiguousarray(table), np.random.default_rng(seed)
            fasterpam(table, k, rng)  # compiled
            losses = np.empty((TRIES, 2))
            for number in range(TRIES):
                begin = time.thread_time()
                losses[number, 0] = fasterpam(table, k, rng).loss
                between = time.thread_time()
                theirs = kmedoids.fasterpam(rows, k, init="random", random_state=number, n_cpu=1)
                seconds += between - begin, time.thread_time() - between
                losses[number, 1] = rows[:, theirs.medoids].min(axis=1).sum(dtype=np.float64)
            best.append(losses.min(axis=0))
            sizes.append(len(table))
        above = max(ours / theirs - 1.0 for ours, theirs in best)
        print(
            f"k-medoids, {similarity}, {sets} tables of {min(sizes)} to {max(sizes)} hyperedges, {TRIES} tries: "
            f"loss at most {above:.1e} above the package's (bar 0), time {seconds[0] / seconds[1]:.2f} of its "
            f"({1000 * seconds[0] / sets / TRIES:.0f} ms, {1000 * seconds[1] / sets / TRIES:.0f} ms a try; bar 1)",
            flush=True,
        )


CASES = {
    "5,000 x 1,000, k = 10, 20 % missing": (5_000, 1_000, 10, (8, 12), 0.7, 0.2, 5, 1.0),
    "178 x 7,000, k = 3": (178, 7_000, 3, (3, 7), 0.8, 0.0, 30, 2.0),
    "500 x 30, k = 100": (500, 30, 100, (100, 150), 0.95, 0.0, 15, None),
    "100,000 x 300, k = 10": (100_000, 300, 10, (20, 39), 0.8, 0.0, 10, None),
}
"""Samples, members, classes, clusters of a member, right labels, missing labels; bars: seconds and GiB."""


def large() -> None:
    """Ensembles with many members, each in a process of its own, whose peak is looked at."""
    for number in range(len(CASES)):
        subprocess.run([sys.executable, "-m", "tests.benchmarks.members", "--case", str(number)], check=True)


def case(number: int) -> None:
    name = list(CASES)[number]
    n, members, k, widths, right, missing, most_seconds, most_memory = CASES[name]
    labels, truth = _made_up(n, members, k, widths, right, missing)
    CEHM(k, random_state=0).fit(labels[:100, :20])  # kernels are loaded
    begin, cpu = time.perf_counter(), time.process_time()
    model = CEHM(k, random_state=0).fit(labels)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    spoken = model.labels_ >= 0
    score = normalized_mutual_info_score(truth[spoken], model.labels_[spoken])
    compared = members if model.compared_members_ is None else len(model.compared_members_)
    bar = "" if most_memory is None else f"; bar {most_memory} GiB"
    print(
        f"{name}: {len(model.counts_):,} hyperedges, {compared} members compared: {seconds:.1f} s, {cpu:.1f} s of CPU "
        f"(bar {most_seconds} s), peak {peak:.2f} GiB{bar}, NMI {score:.3f}",
        flush=True,
    )


def _made_up(n, members, k, widths, right, missing):
    """Members that merge or split the classes, each in another way, with errors and missing labels."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, k, n)
    labels = np.empty((n, members), np.int16)
    for j in range(members):
        width = int(rng.integers(widths[0], widths[1] + 1))
        pieces = truth * 4 + rng.integers(0, 4, n) * (width > k)
        own = rng.integers(0, width, 4 * k)[pieces]
        labels[:, j] = np.where(rng.random(n) < right, own, rng.integers(0, width, n))
    labels[rng.random(labels.shape) < missing] = -1
    return labels, truth


def quality(draws: int) -> None:
    """Starts from some members against starts from all: NMI with the classes of bundled sets, 300 k-means members."""
    differences = []
    for load in (load_iris, load_wine, load_breast_cancer, load_digits):
        known = load()
        rows, truth = StandardScaler().fit_transform(known.data), known.target
        k, n = int(truth.max()) + 1, len(truth)
        scores = []
        for draw in range(draws):
            rng = np.random.default_rng([draw, n])
            widths = rng.integers(k, max(min(int(n**0.5), 50), int(np.ceil(1.5 * k))) + 1, 300)
            fitted = [
                KMeans(int(width), init="random", n_init=1, random_state=int(rng.integers(2**31))).fit(rows)
                for width in widths
            ]
            labels = np.stack([one.labels_ for one in fitted], axis=1)
            found = []
            for most in (0, 1 << 30):
                with mock.patch.object(shape, "MOST_COMPARED", most):
                    found.append(CEHM(k, random_state=draw).fit(labels))
            scores.append([normalized_mutual_info_score(truth, model.labels_) for model in found])
        some, every = np.mean(scores, axis=0)
        differences.append(some - every)
        print(
            f"{load.__name__[5:]}, 300 members, {int(widths.sum()):,} hyperedges, {len(found[0].member_agreement_)} "
            f"members compared: mean NMI {some:.4f}, with all compared {every:.4f}, {draws} draws",
            flush=True,
        )
    print(f"starts from some members against all: mean NMI {np.mean(differences):+.4f} (bar ±0.005)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("medoids", "large", "quality"))
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--case", type=int, help="one of the large ones, in this process")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.case is not None:
        return case(chosen.case)
    parts = {"medoids": medoids, "large": large, "quality": lambda: quality(chosen.draws)}
    for part in [chosen.part] if chosen.part else parts:
        parts[part]()
    return None


if __name__ == "__main__":
    main()
