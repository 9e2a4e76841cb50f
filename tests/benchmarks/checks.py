"""What the checks of every block cost: checksums, and codes inside their members' slots. One line per figure.

``python -m tests.benchmarks.checks --folder FOLDER [--rows 1e8] [--memory 2GiB] [--turns 2]`` (3 GB of disk at 10⁸)

The same consensus of one stored ensemble, by turns with all checks and without any; the least of each. Where other work
shares the machine, the seconds of the processors are the better figure.
"""

import argparse
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.job import Where, find_consensus
from cehm_dask.machine import cores
from cehm_dask.method.params import Params


def read_unchecked(self: Ensemble, start: int, stop: int) -> NDArray[Any]:
    """A chunk as it is on disk; nothing is looked at."""
    shards = self._shards
    shard, inner = divmod(start, shards.shard_rows)
    out = np.empty((shards.chunk_rows, shards.members), shards.dtype)
    with (shards.folder / "c" / str(shard) / "0").open("rb", buffering=0) as file:
        file.seek(int(shards._index(file, shard)[inner // shards.chunk_rows][0]))
        file.readinto(out.reshape(-1).view("u1").data)
    return out[: stop - start]


def seconds(url: str, memory: str, *, checked: bool) -> tuple[float, float]:
    """Of one consensus with the default variant: by the clock, and of all processors."""
    without = nullcontext() if checked else mock.patch.object(Ensemble, "read", read_unchecked)
    with without:
        begin, busy = time.perf_counter(), time.process_time()
        find_consensus(as_labels(url), Params(10), 0, Where(memory=memory, lazy=True))
        return time.perf_counter() - begin, time.process_time() - busy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where the ensemble may lie")
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--turns", type=int, default=2)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    url = chosen.folder / f"checks-{chosen.rows:g}.zarr"
    if not url.exists():
        Synth(int(chosen.rows), n_members=30, n_classes=10).write(str(url), threads=cores())
    seconds(str(url), chosen.memory, checked=True)  # compiles, and warms the page cache
    found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for turn in range(chosen.turns):
        for checked in (True, False) if turn % 2 else (False, True):
            found[checked].append(seconds(str(url), chosen.memory, checked=checked))
    for place, kind in enumerate(("by the clock", "of the processors")):
        best = {checked: min(times[place] for times in turns) for checked, turns in found.items()}
        what = f"{best[True]:.1f} s {kind} with all checks, {best[False]:.1f} s without any"
        ratio = 100 * (best[True] / best[False] - 1)
        print(f"{chosen.rows:g} × 30 in {chosen.memory}, least of {chosen.turns}: {what}: {ratio:.1f} % (bar 3 %)")


if __name__ == "__main__":
    main()
