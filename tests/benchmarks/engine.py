"""Figures of the engine in memory, one line each: ``python -m tests.benchmarks.engine``.

Times are given as ratios to one scipy product H·W of the same run, on the same machine. Needs about 3 GB.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
from scipy import sparse

from cehm_dask import CEHM
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.method import kernels
from tests.benchmarks.timing import best_of

K = 10


def peak_above(work: Callable[[], Any]) -> int:
    """Largest growth of this process's resident memory while ``work`` runs, sampled every millisecond."""
    process = psutil.Process()
    before = peak = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.001)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return peak - before


def incidence(codes: np.ndarray) -> sparse.csr_matrix:
    labels = as_labels(codes)
    n, members = codes.shape
    columns = (codes + labels.offsets.astype(np.int32)).ravel()
    return sparse.csr_matrix(
        (np.ones(n * members), columns, np.arange(0, n * members + 1, members)), (n, labels.n_slots)
    )


def speed(n: int) -> None:
    codes, _ = Synth(n).arrays()
    labels = as_labels(codes)
    weights = np.random.default_rng(0).random((labels.n_slots, K))
    H = incidence(codes)
    CEHM(K, variant="released", random_state=0).fit(codes[:1000])
    table, first_column = kernels.side_by_side([weights])
    best, margin = np.empty((1, n), np.int16), np.empty((1, n))

    def belonging() -> None:
        kernels.belonging(codes, labels.offsets, table, first_column, best, margin)

    def consensus() -> None:
        CEHM(K, variant="released", random_state=0).fit(codes)

    belonging()
    product = best_of(5, lambda: H @ weights)
    one_pass = best_of(5, belonging)
    whole = best_of(5, consensus)
    product = min(product, best_of(5, lambda: H @ weights))
    print(f"scipy product H·W, {n:,} × 30, k = {K}: {product:.3f} s")
    print(f"one belonging pass with arg-max and margin, one thread: {one_pass / product:.2f} products (bar 0.6)")
    print(f"whole consensus, all threads: {whole / product:.2f} products (bar 9, wish 5)")


def memory(n: int) -> None:
    codes, _ = Synth(n).arrays()
    CEHM(K, variant="released", random_state=0).fit(codes[:1000])
    labels = as_labels(codes)
    tables = 8 * labels.n_slots**2 * 10  # int32 counts a run, int64 sums, float dissimilarities
    grown = peak_above(lambda: CEHM(K, variant="released", random_state=0).fit(codes))
    print(
        f"memory beyond the labels, {n:,} × 30: {grown / n:.1f} bytes per sample in all (bar 25 + tables of "
        f"at most {tables / n:.1f})"
    )
    wide = codes.astype(np.int32)
    grown = peak_above(lambda: CEHM(K, variant="released", random_state=0).fit(wide))
    print(f"the same from int32 labels, which are narrowed to one byte first: {grown / n:.1f} bytes per sample")


def cost_in_n(small: int, large: int) -> None:
    def figure(n: int, repeats: int) -> float:
        codes, _ = Synth(n).arrays()
        model = CEHM(K, variant="released", random_state=0)
        return best_of(repeats, lambda: model.fit(codes)) / n / model.n_sweeps_

    figure(1000, 1)
    ratio = min(figure(large, 1), figure(large, 1)) / min(figure(small, 4), figure(small, 4))
    print(f"seconds per sample and sweep, n = {large:,} against {small:,}: ratio {ratio:.2f} (bar 1.10)")


def small_input() -> None:
    codes, _ = Synth(150, n_classes=3, k_min=3, k_max=12).arrays()
    CEHM(3, random_state=0).fit(codes)
    seconds = best_of(20, lambda: CEHM(3, random_state=0).fit(codes))
    print(f"fit of 150 × 30 after the first call: {1000 * seconds:.1f} ms (bar 20)")
    probe = "import time; t = time.perf_counter(); import cehm_dask; print(time.perf_counter() - t)"
    runs = [subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True) for _ in range(5)]
    print(f"import cehm_dask: {min(float(run.stdout) for run in runs):.3f} s (bar 0.3)")


def agreement_choice(ensembles: int = 20) -> None:
    from sklearn import datasets
    from sklearn.cluster import KMeans
    from sklearn.metrics import normalized_mutual_info_score
    from sklearn.preprocessing import StandardScaler

    print(f"mean NMI with the truth over {ensembles} ensembles: restarts=1, restarts=10 chosen by agreement")
    for name in ("iris", "wine", "breast_cancer", "digits"):
        features, truth = getattr(datasets, f"load_{name}")(return_X_y=True)
        features = StandardScaler().fit_transform(features)
        k, n = len(set(truth.tolist())), len(truth)
        scores = np.empty((ensembles, 2))
        for i in range(ensembles):
            rng = np.random.default_rng(i)
            sizes = rng.integers(k, max(min(int(n**0.5), 50), -(-3 * k // 2)) + 1, 30)
            members = np.stack(
                [
                    KMeans(int(s), n_init=1, init="random", random_state=j + 100 * i).fit_predict(features)
                    for j, s in enumerate(sizes)
                ],
                axis=1,
            )
            for column, restarts in enumerate((1, 10)):
                found = CEHM(k, variant="released", restarts=restarts, random_state=i).fit_predict(members)
                scores[i, column] = normalized_mutual_info_score(truth, found, average_method="geometric")
        one, ten = scores.mean(axis=0)
        print(f"  {name:<14}{one:.4f}  {ten:.4f}  difference {ten - one:+.4f}")


FITS = """
import sys, time, warnings
import numpy as np
from cehm_dask import CEHM
warnings.simplefilter("ignore")
codes = np.load(sys.argv[1])
for variant in ("auto", "released"):
    seconds = []
    CEHM(10, variant=variant, random_state=0).fit(codes[:1000])
    for _ in range(5):
        begin = time.perf_counter()
        CEHM(10, variant=variant, random_state=0).fit(codes)
        seconds.append(time.perf_counter() - begin)
    print(min(seconds))
"""


def against_before(n: int, turns: int = 4) -> None:
    """Whole fits of this version against those of another environment (--before), in processes by turns."""
    if OTHER is None:
        print("part before: give --before PYTHON, of an environment with the other version")
        return
    least = {"before": np.full(2, np.inf), "now": np.full(2, np.inf)}
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/codes.npy", Synth(n).arrays()[0])
        for name, python in (("before", OTHER), ("now", sys.executable)) * turns:
            command = [str(python), "-c", FITS, f"{folder}/codes.npy"]
            found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.split()
            least[name] = np.minimum(least[name], np.array(found, float))
    for variant, before, now in zip(("default", "released"), least["before"], least["now"], strict=True):
        print(f"{n:,} × 30, {variant}: {now:.2f} s, before {before:.2f} s, ratio {now / before:.2f} (bar 1.02)")


PARTS = {
    "speed": lambda: speed(10**6),
    "memory": lambda: memory(10**6),
    "cost": lambda: cost_in_n(10**6, 10**7),
    "small": small_input,
    "choice": agreement_choice,
    "before": lambda: against_before(10**6),
}
OTHER: str | None = None

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--before", metavar="PYTHON", help="of another environment, for the part before")
    options = parser.parse_args()
    OTHER = options.before
    warnings.simplefilter("ignore")
    for part in options.parts or PARTS:
        PARTS[part]()
