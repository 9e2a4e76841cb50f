"""Jobs of a queue against processes of this machine: ``python -m tests.benchmarks.clusters --folder FOLDER``.

Two SLURM workers against two local processes on 10⁷ × 30 labels: the ratio of their times, measured in turns. Starts
and stops a SLURM of its own (tests/clusters/slurm.sh: root, slurm-wlm, munge, the extra slurm). The ensemble is made in
--folder (300 MB) and kept for the next run.
"""

import argparse
import os
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import yaml

from cehm_dask import CEHM
from cehm_dask.clusters.connect import connect
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.synth import Synth

SCRIPT = Path(__file__).parents[1] / "clusters" / "slurm.sh"
SIZE = {"workers": 2, "threads": 1, "memory": "2GiB"}


def measured(spec: str, ensemble: str, output: str) -> tuple[float, float]:
    """Seconds until the workers are there, and of the consensus."""
    begin = time.perf_counter()
    with connect(spec) as client:
        # What is compiled or loaded once a process is no matter of the cluster; rows enough that every worker does it.
        CEHM(5, variant="released", random_state=0).fit(Synth(1 << 19, 8).arrays()[0], client=client)
        started = time.perf_counter()
        CEHM(10, variant="released", random_state=0).fit(ensemble, client=client, output=output, overwrite=True)
        return started - begin, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--samples", type=float, default=1e7)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.folder.mkdir(parents=True, exist_ok=True)
    ensemble = options.folder / f"ensemble-{int(options.samples)}.zarr"
    if not ensemble.exists():
        Synth(int(options.samples)).write(str(ensemble), threads=2)
    slurm = tempfile.mkdtemp(prefix="cehm-slurm-")
    specs = {
        "processes": {"kind": "processes", **SIZE},
        "slurm": {"kind": "slurm", "queue": "debug", "walltime": "01:00:00", "log_directory": f"{slurm}/logs", **SIZE},
    }
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    try:
        started = subprocess.run([SCRIPT, "start", slurm], check=True, capture_output=True, text=True).stdout
        os.environ["SLURM_CONF"] = started.strip().partition("=")[2]
        for turn in range(options.turns):
            for name, spec in specs.items():
                path = options.folder / f"{name}.yaml"
                path.write_text(yaml.safe_dump(spec))
                start, work = measured(str(path), str(ensemble), str(options.folder / f"{name}.zarr"))
                seconds[name].append(work)
                print(f"turn {turn + 1}, {name}: workers there after {start:.1f} s, consensus {work:.1f} s", flush=True)
    finally:
        subprocess.run([SCRIPT, "stop", slurm], check=True)
    found = [open_consensus(str(options.folder / f"{name}.zarr")).array("labels")[:] for name in specs]
    print(f"same labels: {np.array_equal(*found)}")
    least = {name: min(times) for name, times in seconds.items()}
    print(f"two SLURM workers against two local processes: {least['slurm'] / least['processes']:.2f} (bar 1.2)")


if __name__ == "__main__":
    main()
