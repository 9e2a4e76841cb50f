"""What profiles cost: ``python -m tests.benchmarks.profiles --folder FOLDER [--rows 1e7]`` (1.3 GB of disk).

The profile of ten clusters by 32 features, against one pass over the same features that finds centre and spread of
every column, as a run makes before its members. Both by the same threads, in turns; the least of each.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import zarr

from cehm_dask.data.features import as_features
from cehm_dask.data.scaling import fit_scaling
from cehm_dask.engine.sweep import workers
from cehm_dask.machine import cores
from cehm_dask.profiles.blocks import HeldClusters
from cehm_dask.profiles.sweep import profile_clusters

FEATURES, CLUSTERS, TURNS, CHUNK_ROWS = 32, 10, 3, 1 << 16


def made(folder: Path, n: int) -> Path:
    store = folder / f"profile-features-{n}.zarr"
    if not store.exists():
        array = zarr.create_array(str(store), shape=(n, FEATURES), dtype=np.float32, chunks=(CHUNK_ROWS, FEATURES))
        for start in range(0, n, CHUNK_ROWS):
            rng = np.random.default_rng(start)
            stop = min(n, start + CHUNK_ROWS)
            array[start:stop] = rng.standard_normal((stop - start, FEATURES), np.float32)
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the features may lie")
    parser.add_argument("--rows", type=float, default=1e7)
    chosen = parser.parse_args()
    n = int(chosen.rows)
    features = as_features(str(made(chosen.folder, n)))
    labels = np.random.default_rng(0).integers(CLUSTERS, size=n).astype(np.int16)
    ways = {"profile": [], "pass": []}
    for _ in range(TURNS + 1):  # the first compiles, and fills the page cache
        begin = time.perf_counter()
        profile_clusters(features, HeldClusters(labels, CLUSTERS))
        middle = time.perf_counter()
        with workers(cores()) as pool:
            fit_scaling(features, "standard", pool)
        ways["profile"].append(middle - begin)
        ways["pass"].append(time.perf_counter() - middle)
    profile, once = (min(seconds[1:]) for seconds in ways.values())
    print(f"profiles of {n:,} × {FEATURES}: {profile:.1f} s, one pass {once:.1f} s: {profile / once:.2f} (bar 1.2)")


if __name__ == "__main__":
    main()
