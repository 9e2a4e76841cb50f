"""Growing against a new run: ``python -m tests.benchmarks.growing [--rows 1e7] [--folder FOLDER]``.

Made-up base labels of 30 members, k = 10, of which a share follows the classes. A tenth of the samples, or 5 of the
members, come later; or 5 are dropped. Prints a row of a table for each: seconds to grow the ensemble and to find the
consensus, seconds of a new run on the grown ensemble, sweeps of both, and ARI of the two. Each is measured once, the
new run last, so that files are as cached for it as for the growth or more so.
"""

import argparse
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from cehm_dask import CEHM
from cehm_dask.data.ingest import ingest
from cehm_dask.data.synth import Synth
from cehm_dask.results.growing import grow

K, MEMBERS, LATER = 10, 30, 5


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def measure(folder: Path, way: str, labels: NDArray[Any], memory: str | None) -> str:
    rows = len(labels) * 10 // 11
    before, added = {
        "samples": (labels[:rows], labels[rows:]),
        "members": (labels[:, :-LATER], labels[:, -LATER:]),
        "drop_members": (labels, [str(j) for j in range(MEMBERS - LATER, MEMBERS)]),
    }[way]
    place = {name: str(folder / f"{name}.zarr") for name in ("ensemble", "old", "grown", "new", "into")}
    ingest(before, place["ensemble"])
    CEHM(K, random_state=0).fit(place["ensemble"], output=place["old"], memory=memory, client=False)
    into = {"into": place["into"]} if way == "drop_members" else {}
    how: dict[str, Any] = {way: added, **into, "memory": memory}
    _, whole = timed(lambda: grow(place["old"], place["ensemble"], place["grown"], **how))
    grown = place["into"] if into else place["ensemble"]
    # Once more on the ensemble that has grown: what is less is the time that it took to grow.
    again: dict[str, Any] = {"memory": memory, "overwrite": True}
    outcome, consensus = timed(lambda: grow(place["old"], grown, place["grown"], **again))
    fit: dict[str, Any] = {"output": place["new"], "memory": memory, "client": False}
    new, seconds = timed(lambda: CEHM(K, random_state=0).fit(grown, **fit))
    ari = adjusted_rand_score(np.asarray(new.labels_[:]), np.asarray(outcome.labels[:]))
    figures = f"{whole - consensus:.1f} s | {consensus:.1f} s | {seconds:.1f} s | {outcome.sweeps}, {new.n_sweeps_}"
    return f"| {way} | {len(labels):,} | {figures} | {ari:.4f} |"


def main(rows: int, follow: float, folder: Path | None, memory: str | None) -> None:
    labels = Synth(rows * 11 // 10, n_members=MEMBERS, follow=follow).arrays()[0]
    CEHM(K, random_state=0).fit(labels[:20_000])  # what is compiled is compiled
    print("| growth | rows | ensemble grows | consensus grows | new run | sweeps | ARI |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for way in ("samples", "members", "drop_members"):
        own = Path(tempfile.mkdtemp(dir=folder))
        try:
            given = labels if way == "samples" else labels[:rows]
            print(measure(own, way, given, memory), flush=True)
        finally:
            shutil.rmtree(own)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=1e7, help="samples before a tenth of as many is added")
    parser.add_argument("--follow", type=float, default=0.3, help="share of the labels that follow the classes")
    parser.add_argument("--folder", type=Path, help="where stores are made; default: that of temporary files")
    parser.add_argument("--memory", help="what a run may take in all")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    main(int(options.rows), options.follow, options.folder, options.memory)
