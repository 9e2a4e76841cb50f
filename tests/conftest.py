"""What several rooms' tests share."""

from contextlib import contextmanager
from pathlib import Path

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from cehm_dask import cli

# Compilation and a loaded machine make single examples slow; that is not what these tests look for.
settings.register_profile("cehm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cehm")


@pytest.fixture(autouse=True)
def dask_as_before():
    """No run leaves its cluster behind as the place where this process computes its dask arrays."""
    before = dask.config.get("scheduler", None)
    yield
    assert dask.config.get("scheduler", None) == before


@pytest.fixture(scope="session")
def hard_ensemble():
    """Labels (-1 = says nothing) that take many rounds to settle, with missing ones, ties and a silent row."""
    with np.load(Path(__file__).parent / "golden" / "semeion.npz") as golden:
        labels = np.tile(golden["P"], (3, 1))
    labels[np.random.default_rng(0).random(labels.shape) < 0.05] = -1
    labels[17] = -1
    return labels


def cehm(*args, code=0):
    """What the command prints, out and err, if it ends with the exit code."""
    result = CliRunner().invoke(cli.main, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


@contextmanager
def worker_processes(count=2):
    """A cluster of worker processes with one thread each, on loopback, and a client of it."""
    from distributed import Client, LocalCluster

    # Port 0: any free one, so that two clusters can live side by side.
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=count, **options) as cluster, Client(cluster, set_as_default=False) as client:
        yield cluster, client


@pytest.fixture(scope="session")
def two_processes():
    """A client of a cluster with two worker processes."""
    with worker_processes() as (_, client):
        yield client
