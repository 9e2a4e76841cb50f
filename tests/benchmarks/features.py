"""Figures from features to consensus, one line each: ``python -m tests.benchmarks.features [PART ...]``.

Times are ratios to something else measured in the same run. Files are made in --folder and kept.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from cehm_dask import ClusterEnsemble
from cehm_dask.data.features import as_features
from cehm_dask.members.fit import MemberPlan
from cehm_dask.members.generate import make_labeller
from tests.benchmarks.timing import watched


def nmi(truth: np.ndarray, found: np.ndarray) -> float:
    return float(normalized_mutual_info_score(truth, found, average_method="geometric"))


def overlapping_blobs(folder: Path, n: int, features: int = 16, centres: int = 20) -> tuple[Path, np.ndarray]:
    path = folder / f"blobs-{n}-{features}.npy"
    points, truth = datasets.make_blobs(n, features, centers=centres, cluster_std=4.5, random_state=0)
    if not path.exists():
        np.save(path, points.astype(np.float32))
    return path, truth


def against_one_kmeans(folder: Path) -> None:
    path, truth = overlapping_blobs(folder, 10**6)
    points = np.load(path)
    ClusterEnsemble(3, members=2, random_state=0).fit(points[:1000])
    ratios = []
    for seed in range(2):
        begin = time.perf_counter()
        one = KMeans(30, n_init=1, random_state=seed).fit(points)
        middle = time.perf_counter()
        model = ClusterEnsemble(10, k_min=10, k_max=50, random_state=seed).fit(path)
        ratios.append((time.perf_counter() - middle) / (middle - begin))
        print(
            f"  k-means: {one.n_iter_} iterations, {middle - begin:.1f} s, NMI {nmi(truth, one.labels_):.3f}; "
            f"30 members and consensus: NMI {nmi(truth, model.labels_):.3f}, ratio {ratios[-1]:.2f}"
        )
    print(f"generate + consensus of 30 members against one KMeans(30) fit, 10⁶ × 16: {max(ratios):.2f} (bar 2)")


def against_dask_ml(folder: Path) -> None:
    import dask.array as da
    from dask_ml.cluster import KMeans as DaskKMeans
    from distributed import Client, LocalCluster

    path, _ = overlapping_blobs(folder, 10**6)
    points = np.load(path)
    source = as_features(path)

    def inertia(centres: np.ndarray) -> float:
        scaled = points.astype(np.float64)
        return float(
            sum(
                ((part[:, None, :] - centres[None]) ** 2).sum(axis=2).min(axis=1).sum()
                for part in np.array_split(scaled, 200)
            )
        )

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0") as workers,
        Client(workers),
    ):
        begin = time.perf_counter()
        theirs = DaskKMeans(30, random_state=0).fit(da.from_array(points, chunks=(10**5, 16)))
        seconds = time.perf_counter() - begin
    wanted, ours = inertia(np.asarray(theirs.cluster_centers_)), np.inf
    spent, tries = 0.0, 0
    while ours > wanted and tries < 20:  # every try is a member with its own random start, and counts
        begin = time.perf_counter()
        plan = MemberPlan("kmeans", 30, seed=tries)
        with workers(2) as pool:
            labeller, _ = make_labeller(source, [plan], tries, pool, scale="none", full_lloyd=True)
        spent += time.perf_counter() - begin
        ours = min(ours, inertia(labeller.members[0].slopes.astype(np.float64)))
        tries += 1
    print(
        f"one member k = 30, 10⁶ × 16, against dask-ml's KMeans on two processes: {seconds / spent:.1f} times as fast "
        f"(bar 10), inertia {ours / wanted:.4f} of theirs after {tries} start(s)"
    )


def sampled_against_full(folder: Path) -> None:
    sets = {
        "digits": datasets.load_digits(return_X_y=True),
        "blobs 200,000 × 8": datasets.make_blobs(200_000, 8, centers=12, cluster_std=3.0, random_state=1),
        "blobs 200,000 × 16": datasets.make_blobs(200_000, 16, centers=8, cluster_std=6.0, random_state=2),
    }
    for name, (points, truth) in sets.items():
        k, rows = len(set(truth.tolist())), min(len(points) // 2, 1 << 15)
        scores = np.array(
            [
                [
                    nmi(truth, ClusterEnsemble(k, fit_rows=fit_rows, restarts=5, random_state=seed).fit(points).labels_)
                    for fit_rows in (rows, len(points))
                ]
                for seed in range(10 if name == "digits" else 3)
            ]
        )
        sampled, full = scores.mean(axis=0)
        print(
            f"fitted on {rows:,} of {len(points):,} rows, {name}: mean NMI {sampled:.4f} against {full:.4f}, "
            f"difference {sampled - full:+.4f} (bar 0.01)"
        )


def large(folder: Path) -> None:
    import zarr

    store, n = folder / "features-10000000.zarr", 10**7
    if not store.exists():
        array = zarr.create_array(str(store), shape=(n, 32), dtype=np.float32, chunks=(1 << 16, 32))
        rng = np.random.default_rng(0)
        centres = rng.normal(0, 3, (15, 32)).astype(np.float32)
        for start in range(0, n, 1 << 16):
            rows = min(1 << 16, n - start)
            part = rng.standard_normal((rows, 32), np.float32)
            array[start : start + rows] = part + centres[rng.integers(0, 15, rows)]
    cehm = str(Path(sys.executable).parent / "cehm")
    ensemble, output = str(folder / "large-ensemble.zarr"), str(folder / "large-consensus.zarr")
    made = watched([cehm, "generate", str(store), ensemble, "--k", "15", "--memory", "2GiB", "--overwrite", "--quiet"])
    solve = [cehm, "consensus", ensemble, "--k", "15", "--memory", "2GiB", "-o", output, "--overwrite", "--quiet"]
    solved = watched(solve)
    seconds, peak = made[0] + solved[0], max(made[1], solved[1])
    print(f"10⁷ × 32 float32 from Zarr to labels, memory 2GiB: {seconds:.0f} s, peak {peak / 2**30:.2f} GiB (bar 3)")


def bundled_sets(folder: Path) -> None:
    print("30 ensembles a set, mean NMI / ARI:  mean member     best member     consensus")
    for name in ("iris", "wine", "breast_cancer", "digits"):
        points, truth = getattr(datasets, f"load_{name}")(return_X_y=True)
        k = len(set(truth.tolist()))
        table = []
        for seed in range(30):
            model = ClusterEnsemble(k, random_state=seed).fit(points)
            members = [(nmi(truth, labels), adjusted_rand_score(truth, labels)) for labels in model.base_labels_.T]
            own = (nmi(truth, model.labels_), adjusted_rand_score(truth, model.labels_))
            table.append([*np.mean(members, axis=0), *np.max(members, axis=0), *own])
        a, b, c, d, e, f = np.mean(table, axis=0)
        print(f"  {name:<34}{a:.3f} / {b:.3f}   {c:.3f} / {d:.3f}   {e:.3f} / {f:.3f}")


PARTS = {
    "kmeans": against_one_kmeans,
    "dask-ml": against_dask_ml,
    "sampled": sampled_against_full,
    "large": large,
    "bundled": bundled_sets,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--folder", type=Path, default=Path("benchmark-stores"), help="where files are made")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    for part in options.parts or PARTS:
        PARTS[part](options.folder)
