"""What the checks of every block cost: checksums, and codes inside their members' slots. One line per figure.

``python -m tests.benchmarks.checks --folder FOLDER [--rows 1e8] [--memory 2GiB] [--turns 2]`` (3 GB of disk at 10⁸)

First what the checks take within one consensus of a stored ensemble; then the same consensus by turns with all checks
and without any, the least of each (``--turns 0``: only the first). Where other work shares the machine, the first is
the better figure: turns then differ by more than the checks take.
"""

import argparse
import time
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data import shards
from cehm_dask.data.attributes import Held
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.job import Where, find_consensus
from cehm_dask.machine import cores
from cehm_dask.method.params import Params


def read_unchecked(self: Ensemble, start: int, stop: int) -> NDArray[Any]:
    """A chunk as it is on disk; nothing is looked at."""
    found = self._shards
    shard, inner = divmod(start, found.shard_rows)
    out = np.empty((found.chunk_rows, found.members), found.dtype)
    with (found.folder / "c" / str(shard) / "0").open("rb", buffering=0) as file:
        file.seek(int(found._index(file, shard)[inner // found.chunk_rows][0]))
        file.readinto(out.reshape(-1).view("u1").data)
    return out[: stop - start]


def seconds(url: str, memory: str, *, checked: bool) -> tuple[float, float]:
    """Of one consensus with the default variant: by the clock, and of all processors."""
    without = nullcontext() if checked else mock.patch.object(Ensemble, "read", read_unchecked)
    with without:
        begin, busy = time.perf_counter(), time.process_time()
        find_consensus(as_labels(url), Params(10), 0, Where(memory=memory, lazy=True))
        return time.perf_counter() - begin, time.process_time() - busy


def share(url: str, memory: str) -> tuple[float, float]:
    """Processor seconds of the checks within one consensus, and of all of it."""
    spent: list[float] = []

    def timed(check: Any) -> Any:
        def call(*args: Any) -> Any:
            begin = time.thread_time()
            try:
                return check(*args)
            finally:
                spent.append(time.thread_time() - begin)

        return call

    checks = [(Held, "glance"), (Held, "confirm"), (Ensemble, "_wanted"), (shards, "largest"), (shards, "_stamp")]
    with ExitStack() as patched:
        for owner, name in [*checks, (shards.google_crc32c, "extend")]:
            patched.enter_context(mock.patch.object(owner, name, timed(getattr(owner, name))))
        _, busy = seconds(url, memory, checked=True)
    return sum(spent), busy


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
    checks, busy = share(str(url), chosen.memory)  # compiles too, and warms the page cache
    part = f"{checks:.2f} of {busy:.1f} s of the processors are checks: {100 * checks / busy:.2f} % (bar 3 %)"
    print(f"{chosen.rows:g} × 30 in {chosen.memory}, within one run: {part}", flush=True)
    if not chosen.turns:
        return
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
