"""A real Grid Engine on this machine: workers as jobs, jobs that are deleted, held and refused."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from cehm_dask import CEHM
from cehm_dask.clusters.connect import connect
from tests.clusters.queues import labels_of, queue_of, until
from tests.conftest import cehm

pytestmark = [pytest.mark.sge, pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")]

CONFIG = Path(__file__).parents[2] / "cluster_configs" / "sge.yaml"


@pytest.fixture(scope="module", autouse=True)
def sge():
    """A Grid Engine of one host, stopped afterwards."""
    with queue_of("sge", ("sge_qmaster", "sge_execd", "qsub"), "gridengine-master gridengine-exec"):
        yield


@pytest.fixture(autouse=True)
def empty_queue(sge):
    """No job is left behind."""
    yield
    until(lambda: queue() == {}, 30, "the queue is empty")


def queue():
    """Jobs that wait or run: their state, by id."""
    lines = subprocess.run(["qstat"], check=True, capture_output=True, text=True).stdout.splitlines()[2:]
    return {fields[0]: fields[4] for fields in map(str.split, lines)}


def config(folder, **keys):
    """The file of cluster_configs/ with its blanks filled in."""
    path = folder / "sge.yaml"
    text = CONFIG.read_text().replace("<QUEUE>", "debug").replace("<NETWORK>", "lo")
    path.write_text(yaml.safe_dump({**yaml.safe_load(text), "log_directory": str(folder / "logs"), **keys}))
    return str(path)


def test_consensus__same_labels(folder, ensemble, wanted):
    cehm("consensus", ensemble, "--k", 5, "-o", "out.zarr", "--cluster", config(folder))
    np.testing.assert_array_equal(labels_of("out.zarr"), wanted)
    assert len(list(Path("logs").iterdir())) == 2


def test_worker__deleted_in_the_middle(folder, ensemble, wanted):
    with connect(config(folder)) as client:
        jobs, pids = client.run(os.getenv, "JOB_ID"), client.run(os.getpid)
        assert sorted(jobs.values()) == sorted(queue())

        def lose():
            """Delete the job of a worker that has tasks in hand: stopped, it cannot end them first."""
            while True:
                for worker, tasks in client.processing().items():
                    if tasks:
                        os.kill(pids[worker], signal.SIGSTOP)
                        time.sleep(0.2)
                        if client.processing()[worker]:
                            subprocess.run(["qdel", jobs[worker]], check=True)
                            return worker
                        os.kill(pids[worker], signal.SIGCONT)

        with ThreadPoolExecutor(1) as pool:
            losing = pool.submit(lose)
            CEHM(5, random_state=0).fit(ensemble, client=client, output="out.zarr")
            lost = losing.result(timeout=60)
        (removed,) = [event for _, event in client.get_events(lost) if event["action"] == "remove-worker"]
        assert removed["processing-tasks"]
        assert list(client.scheduler_info()["workers"]) == [worker for worker in jobs if worker != lost]
    np.testing.assert_array_equal(labels_of("out.zarr"), wanted)


def test_worker__environment_of_a_queue_with_csh(folder, sge):
    with connect(config(folder, workers=1, environment={"CEHM_TEST": "a b"}, prologue=["export LATER=$(echo 1)"])) as c:
        seen = c.run(lambda: [os.getenv(name) for name in ("OMP_NUM_THREADS", "CEHM_TEST", "LATER", "QUEUE")])
    assert list(seen.values()) == [["1", "a b", "1", "debug"]]


def test_interrupted__takes_its_jobs_along(folder, ensemble):
    command = [sys.executable, "-m", "cehm_dask", "consensus", ensemble, "--k", "5", "-o", "out.zarr"]
    # Jobs that run, and no worker in them yet: the moment of the interrupt is known.
    slow = config(folder, prologue=["sleep 600"])
    driver = subprocess.Popen([*command, "--cluster", slow], stderr=subprocess.DEVNULL)
    until(lambda: list(queue().values()) == ["r", "r"], 120, "two jobs run")
    driver.send_signal(signal.SIGINT)
    assert driver.wait(120) == 4


# --- bad input ---------------------------------------------------------------------------------------------------


def test_job__that_the_queue_refuses(folder, ensemble):
    _, err = cehm("consensus", ensemble, "--k", 5, "--cluster", config(folder, queue="nowhere"), code=5)
    assert "error: the sge cluster did not start" in err
    assert 'job requests unknown queue "nowhere"' in err


def test_workers__that_never_start(folder, ensemble):
    held = config(folder, directives=["-h"], wait_seconds=3)
    _, err = cehm("consensus", ensemble, "--k", 5, "-o", "out.zarr", "--cluster", held, code=5)
    assert "waited 3 s (wait_seconds) for 2 worker(s) of the sge cluster, 0 came: see the logs in" in err
    assert not Path("out.zarr").exists()


def test_submit__refused(folder, ensemble):
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"labels": {"path": ensemble}, "output": "run", "consensus": {"k": 5}}))
    _, err = cehm("submit", recipe, "--cluster", config(folder), code=2)
    assert "kind sge cannot be submitted to; slurm and kubernetes can" in err
    assert not Path("run").exists()
