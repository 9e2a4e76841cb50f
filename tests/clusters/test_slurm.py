"""A real SLURM on this machine: workers as jobs, the driver as a job, jobs that are cancelled and requeued."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from cehm_dask import CEHM
from cehm_dask.clusters.connect import connect
from cehm_dask.data.synth import Synth
from cehm_dask.errors import ClusterError
from tests.clusters.queues import labels_of, queue_of, until
from tests.conftest import cehm

pytestmark = [pytest.mark.slurm, pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")]

MANY = 400_000
"""Samples that take long enough to do something in the middle."""


@pytest.fixture(scope="module", autouse=True)
def slurm():
    """A SLURM of one node, stopped afterwards."""
    with queue_of("slurm", ("munged", "slurmctld", "slurmd"), "slurm-wlm munge"):
        yield


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("many") / "ensemble.zarr")
    Synth(MANY, 30, n_classes=10).write(url)
    return url


@pytest.fixture(scope="module")
def wanted_large(large):
    return CEHM(10, restarts=5, random_state=0).fit(large).labels_


@pytest.fixture(autouse=True)
def empty_queue(slurm):
    """No job is left behind."""
    yield
    until(lambda: queue() == [], 30, "the queue is empty")


def queue(*options):
    """Ids of the jobs that wait or run."""
    command = ["squeue", "--noheader", "--format=%A", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def config(folder, **keys):
    path = folder / "slurm.yaml"
    defaults = {"kind": "slurm", "queue": "debug", "workers": 2, "memory": "1GiB", "walltime": "00:20:00"}
    path.write_text(yaml.safe_dump({**defaults, "log_directory": str(folder / "logs"), **keys}))
    return str(path)


def recipe(folder, labels, **keys):
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"labels": {"path": labels}, "output": "run", **keys}))
    return path


def test_consensus__same_labels(folder, ensemble, wanted):
    cehm("consensus", ensemble, "--k", 5, "-o", "out.zarr", "--cluster", config(folder))
    np.testing.assert_array_equal(labels_of("out.zarr"), wanted)


def test_run__same_labels(folder, ensemble, wanted):
    cehm("run", recipe(folder, ensemble, consensus={"k": 5}), "--cluster", config(folder), "--until", "consensus")
    np.testing.assert_array_equal(labels_of("run/consensus.zarr"), wanted)


def test_workers__as_many_as_there_is_work_for(folder, slurm):
    with connect(config(folder, workers={"minimum": 1, "maximum": 2})) as client:
        assert len(queue()) == 1
        futures = client.map(time.sleep, [0.3] * 60, pure=False)
        client.wait_for_workers(2, timeout=120)
        client.cancel(futures)


def test_worker__cancelled_in_the_middle(folder, large, wanted_large):
    with connect(config(folder)) as client:
        jobs = client.run(os.getenv, "SLURM_JOB_ID")
        assert sorted(jobs.values()) == sorted(queue())
        lost = []

        def progress(event):
            if not lost:
                lost.append(next(iter(jobs.values())))
                subprocess.run(["scancel", *lost], check=True)

        model = CEHM(10, restarts=5, random_state=0)
        model.fit(large, client=client, output="out.zarr", progress=progress)
        assert lost
        assert len(client.scheduler_info()["workers"]) == 1
    np.testing.assert_array_equal(labels_of("out.zarr"), wanted_large)


def test_interrupted__takes_its_jobs_along(folder, large):
    command = [sys.executable, "-m", "cehm_dask", "consensus", large, "--k", "10", "-o", "out.zarr"]
    driver = subprocess.Popen([*command, "--cluster", config(folder)], stderr=subprocess.DEVNULL)
    until(lambda: len(queue("--states=R")) == 2, 120, "two jobs run")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 4


def test_submit__done_by_jobs_alone(folder, ensemble, wanted):
    out, _ = cehm("submit", recipe(folder, ensemble, consensus={"k": 5}), "--cluster", config(folder))
    assert out.startswith("job ")
    _, err = cehm("submit", recipe(folder, ensemble, consensus={"k": 5}), "--cluster", config(folder), code=7)
    assert "wait for it, or 'scancel" in err
    until(lambda: queue() == [], 300, "the run has ended")
    out, _ = cehm("status", "run")
    assert "COMPLETED" in out, out + Path("run/job.log").read_text()
    assert "consensus: done" in out
    assert list(Path("run/logs").glob("*.err"))
    np.testing.assert_array_equal(labels_of("run/consensus.zarr"), wanted)


def test_submit__a_requeued_job_goes_on_from_its_checkpoint(folder, large, wanted_large):
    path = recipe(folder, large, consensus={"k": 10, "restarts": 5})
    out, _ = cehm("submit", path, "--cluster", config(folder))
    job = out.split()[1].rstrip(";")
    until(Path("run/consensus.zarr/checkpoint.npz").exists, 300, "there is a checkpoint")
    subprocess.run(["scontrol", "requeue", job], check=True)
    until(lambda: queue() == [], 400, "the run has ended")
    log = Path("run/run.log").read_text()
    assert "consensus: resumes where it stopped" in log
    assert log.count("consensus: begins") == 2
    assert f"job {job} (slurm): COMPLETED" in cehm("status", "run")[0]
    np.testing.assert_array_equal(labels_of("run/consensus.zarr"), wanted_large)


# --- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"queue": "nowhere"}, "invalid partition"),
        ({"memory": "500GiB"}, "Memory specification can not be satisfied"),
    ],
)
def test_job__that_the_queue_refuses(folder, ensemble, keys, words):
    _, err = cehm("consensus", ensemble, "--k", 5, "--cluster", config(folder, **keys), code=5)
    assert "error: the slurm cluster did not start" in err
    assert words in err


def test_workers__that_never_start(folder, ensemble):
    late = config(folder, directives=["--begin=now+1hour"], wait_seconds=3)
    _, err = cehm("consensus", ensemble, "--k", 5, "-o", "out.zarr", "--cluster", late, code=5)
    assert "waited 3 s (wait_seconds) for 2 worker(s) of the slurm cluster, 0 came: see the logs in" in err
    assert not Path("out.zarr").exists()


def test_worker__that_ends_at_once(folder, ensemble):
    _, err = cehm("cluster", "check", config(folder, python="/bin/false", wait_seconds=5), code=5)
    assert "0 came" in err


def test_worker__that_does_not_see_the_store(folder, ensemble):
    # A namespace of its own hides the folder of the ensemble, as on a node without that file system.
    hidden = Path(ensemble).parent
    shadow = folder / "shadow"
    shadow.write_text(
        f'#!/bin/sh\nexec unshare -m sh -c \'mount -t tmpfs none {hidden} && exec {sys.executable} "$@"\' sh "$@"\n'
    )
    shadow.chmod(0o755)
    if subprocess.run([shadow, "-c", "pass"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespaces here")
    blind = config(folder, workers=1, python=str(shadow))
    _, err = cehm("consensus", ensemble, "--k", 5, "-o", "out.zarr", "--cluster", blind, code=5)
    assert f"does not see {ensemble} (nothing there): keep stores on a file system that all share" in err
    assert not Path("out.zarr").exists()


def test_error_inside__leaves_no_job(folder, slurm):
    with pytest.raises(ZeroDivisionError), connect(config(folder, workers=1)):
        _ = 1 / 0


def test_all_workers__cancelled(folder, slurm, monkeypatch):
    monkeypatch.setattr("cehm_dask.clusters.connect.NO_WORKERS_SECONDS", 3)

    def work():
        with connect(config(folder, workers=1)) as client:
            held = client.submit(time.sleep, 60, pure=False)
            subprocess.run(["scancel", *queue()], check=True)
            held.result()

    with pytest.raises(ClusterError, match="the cluster was lost"):
        work()
