"""A start from a tenth of the rows against all of them: ``python -m tests.benchmarks.start_rows [--data FOLDER]``.

On scikit-learn's digits, and on .npz files with X and y. Members: 30 k-means runs from one random start each, with k to
max(min(√n, 50), 1.5 k) clusters. Prints a row of a table a set: ARI of the labels from a sample with those of the exact
run, ARI of two exact runs with different seeds, and ARI of both with the classes.
"""

import argparse
import warnings
from collections.abc import Iterator
from math import isqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import minmax_scale

from cehm_dask import CEHM
from cehm_dask.data.synth import Synth

SETS = ("pendigits", "usps", "statlog-shuttle", "statlog-landsat-train", "twonorm", "mushroom")
VARIANTS = ("auto", "cosine", "released")


def members(X: NDArray[np.float64], k: int, count: int = 30) -> NDArray[np.int64]:
    rng = np.random.default_rng(0)
    most = max(min(isqrt(len(X)), 50), -(-3 * k // 2))
    ks = rng.integers(k, most + 1, size=count).tolist()
    return np.stack([KMeans(own, n_init=1, random_state=j).fit_predict(X) for j, own in enumerate(ks)], axis=1)


def sets(folder: Path | None) -> Iterator[tuple[str, NDArray[np.float64], NDArray[np.int64]]]:
    yield "digits", *load_digits(return_X_y=True)
    for name in SETS if folder is not None else ():
        with np.load(folder / f"{name}.npz", allow_pickle=False) as found:
            yield name, np.asarray(found["X"], float), found["y"]


def made_up(rows: int, seeds: int = 3) -> None:
    """``released`` on made-up classes: clusters found, and ARI with the exact labels and with the classes."""
    P, y = Synth(rows).arrays()[:2]
    exact = CEHM(10, variant="released", random_state=0).fit(P)
    runs = [(seed, share) for seed in range(seeds) for share in (1, 2, 10)]
    for seed, share in runs:
        found = CEHM(10, variant="released", random_state=seed, start_rows=rows // share).fit(P)
        same = len(np.intersect1d(found.medoids_, exact.medoids_))
        alike, right = (adjusted_rand_score(known, found.labels_) for known in (exact.labels_, y))
        print(
            f"made up, {rows} rows, released, seed {seed}, start from 1/{share}: {len(np.unique(found.labels_))} "
            f"clusters, {same} of {len(exact.medoids_)} medoids as in the exact run, ARI {alike:.3f} with it, "
            f"{right:.3f} with the classes",
            flush=True,
        )


def main(folder: Path | None, variants: list[str]) -> None:
    for name, X, y in sets(folder):
        k = len(np.unique(y))
        P = members(minmax_scale(X), k)
        for variant in variants:
            exact, other = (CEHM(k, variant=variant, random_state=seed).fit(P) for seed in (0, 1))
            found = CEHM(k, variant=variant, random_state=0, start_rows=len(P) // 10).fit(P)
            scores = [adjusted_rand_score(exact.labels_, model.labels_) for model in (found, other)]
            truth = [adjusted_rand_score(y, model.labels_) for model in (exact, found)]
            figures = " | ".join(f"{score:.3f}" for score in (*scores, *truth))
            print(f"| {name} | {variant} | {figures} | {exact.n_sweeps_}, {found.n_sweeps_} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of .npz files with X and y; default: digits only")
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--made-up", type=int, metavar="ROWS", help="made-up classes instead")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.made_up:
        made_up(options.made_up)
    else:
        main(options.data, options.variants)
