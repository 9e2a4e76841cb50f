"""What the tests of several folders share."""

import json
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import dask
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings

from cehm_dask import cli, masking
from cehm_dask.data.seals import with_seal
from tests.pretended_s3 import pretended_s3

# Compilation and a loaded machine make single examples slow; that is not what these tests look for.
settings.register_profile("cehm", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cehm")


def pytest_addoption(parser):
    """How much of tests/chaos is run with ``-m chaos``."""
    parser.addoption("--chaos-rounds", type=int, default=1, help="times as much chaos as usual (with -m chaos)")
    parser.addoption("--chaos-first", type=int, default=0, help="rounds of flips that were done before")


def pytest_collection_modifyitems(items):
    """The example of ``cehm_dask.tl`` needs the extra anndata, which the tests do without: it holds pandas below 3."""
    if find_spec("anndata") is None:
        for item in items:
            if item.name == "cehm_dask.doors.tl.consensus":
                item.add_marker(pytest.mark.skip(reason="needs the extra anndata"))


@pytest.fixture(autouse=True)
def dask_as_before():
    """No run leaves its cluster behind as the place where this process computes its dask arrays."""
    before = dask.config.get("scheduler", None)
    yield
    assert dask.config.get("scheduler", None) == before


@pytest.fixture(autouse=True)
def no_secrets_left():
    """What one test takes for a secret, the next may show."""
    masking.forget()
    yield
    masking.forget()


@pytest.fixture(scope="session")
def hard_ensemble():
    """Labels (-1 = says nothing) that take many rounds to settle, with missing ones, ties and a silent row."""
    with np.load(Path(__file__).parent / "golden" / "semeion.npz") as golden:
        labels = np.tile(golden["P"], (3, 1))
    labels[np.random.default_rng(0).random(labels.shape) < 0.05] = -1
    labels[17] = -1
    return labels


def edit_facts(url, drop=(), **changes):
    """Change what a store says of itself, with a digest that fits, as another program may."""
    path = Path(url) / "zarr.json"
    root = json.loads(path.read_text())
    facts = {name: value for name, value in (root["attributes"]["cehm"] | changes).items() if name not in drop}
    root["attributes"]["cehm"] = with_seal(facts) if "digest" in facts else facts
    path.write_text(json.dumps(root))


def without_digests(url):
    """Make a store one of the version before, which kept no digests."""
    edit_facts(url, drop=("files", "shards", "digest", "generation"))


def cehm(*args, code=0):
    """What the command prints, out and err, if it ends with the exit code."""
    result = CliRunner().invoke(cli.main, [str(arg) for arg in args])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


@contextmanager
def worker_processes(count=2, threads=1):
    """A cluster of worker processes on loopback, and a client of it."""
    from distributed import Client, LocalCluster

    # Port 0: any free one, so that two clusters can live side by side.
    options = {"threads_per_worker": threads, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=count, **options) as cluster, Client(cluster, set_as_default=False) as client:
        yield cluster, client


@pytest.fixture(scope="session")
def two_processes():
    """A client of a cluster with two worker processes."""
    with worker_processes() as (_, client):
        yield client


@pytest.fixture(scope="session")
def s3():
    """A client of a pretended S3."""
    with pretended_s3() as client:
        yield client
