"""What the checks of every block cost: checksums, and codes inside their members' slots. One line per figure.

``python -m tests.benchmarks.checks --folder FOLDER [--rows 1e8] [--memory 2GiB] [--turns 2]`` (3 GB of disk at 10⁸)

The same consensus of one stored ensemble, by turns with all checks and without any; the least of each.
"""

import argparse
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

from cehm_dask.data.labels import as_labels
from cehm_dask.data.shards import Shards
from cehm_dask.data.synth import Synth
from cehm_dask.job import Where, find_consensus
from cehm_dask.machine import cores
from cehm_dask.method.params import Params


def read_unchecked(self: Shards, number: int, out: Any, _top: Any) -> int:
    """A chunk as it is on disk."""
    shard, inner = divmod(number * self.chunk_rows, self.shard_rows)
    with (self.folder / "c" / str(shard) / "0").open("rb", buffering=0) as file:
        file.seek(int(self._index(file, shard)[inner // self.chunk_rows][0]))
        file.readinto(out.reshape(-1).view("u1").data)
        return int.from_bytes(file.read(4), "little")


def seconds(url: str, memory: str, *, checked: bool) -> float:
    """Of one consensus with the default variant."""
    without = nullcontext() if checked else mock.patch.object(Shards, "_read_chunk", read_unchecked)
    with without:
        begin = time.perf_counter()
        find_consensus(as_labels(url), Params(10), 0, Where(memory=memory, lazy=True))
        return time.perf_counter() - begin


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
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(chosen.turns):
        for checked, times in found.items():
            times.append(seconds(str(url), chosen.memory, checked=checked))
    best = {checked: min(times) for checked, times in found.items()}
    with_, without = best[True], best[False]
    what = f"{chosen.rows:g} × 30 in {chosen.memory}: {with_:.1f} s with all checks, {without:.1f} s without any"
    print(f"{what}: {100 * (with_ / without - 1):.1f} % (bar 3 %)")


if __name__ == "__main__":
    main()
