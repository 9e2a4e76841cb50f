"""A real queue on this machine, started for a test module and stopped afterwards."""

import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from cehm_dask.data.consensus_store import open_consensus


@contextmanager
def queue_of(name, programs, packages):
    """Start the queue that tests/clusters/NAME.sh starts, with the environment it prints; skip where it cannot run."""
    pytest.importorskip("dask_jobqueue", reason=f"the extra {name} is not installed")
    for program in programs:
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed (apt-get install {packages})")
    if os.geteuid() != 0:
        pytest.skip("the queue starts jobs as other users: only root may")
    script, folder = Path(__file__).with_name(f"{name}.sh"), tempfile.mkdtemp(prefix=f"cehm-{name}-")
    with pytest.MonkeyPatch.context() as patch:
        try:
            started = subprocess.run([script, "start", folder], check=True, capture_output=True, text=True, timeout=120)
            for line in started.stdout.splitlines():
                patch.setenv(*line.removeprefix("export ").split("=", 1))
            yield
        finally:
            subprocess.run([script, "stop", folder], check=True, timeout=120)


def until(true, seconds, what):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"waited {seconds} s: {what}"
        time.sleep(0.1)


def labels_of(url):
    return open_consensus(str(url)).array("labels")[:]
