"""Thousands of members, and the medoids of their base clusters: one line per figure.

``python -m tests.benchmarks.members [--part medoids]``
"""

import argparse
import time
import warnings

import kmedoids
import numpy as np

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"medoids": medoids}
    parser.add_argument("--part", choices=tuple(parts))
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    for part in [chosen.part] if chosen.part else parts:
        parts[part]()


if __name__ == "__main__":
    main()
