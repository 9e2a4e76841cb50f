"""An object store in which every fifth request fails: a code that says try again, and in the end the same result."""

import os
import time

import numpy as np
import pytest

from cehm_dask.errors import BUSY, STORAGE
from tests.chaos import evidence
from tests.chaos.command import cehm
from tests.chaos.object_store import faulty, fetched, short_lease
from tests.chaos.recipes import noisy_labels
from tests.pretended_s3 import BUCKET

SHARE = 0.2
MOST_TRIES = 25
HOW = ("--k", "3", "--variant", "released", "--max-iter", "4")
RECIPE = """\
labels: {path: labels.npy}
consensus: {k: 3, variant: released, max_iter: 4}
output: OUT
export: csv
"""


@pytest.fixture(scope="session")
def wanted(tmp_path_factory):
    """The inputs, and what comes of them on a disk."""
    folder = tmp_path_factory.mktemp("faults") / "here"
    folder.mkdir()
    np.save(folder / "labels.npy", noisy_labels(8, n=200))
    (folder / "recipe.yaml").write_text(RECIPE.replace("OUT", "out"))
    for command in (
        ("import", "labels.npy", "ensemble.zarr"),
        ("consensus", "ensemble.zarr", *HOW, "-o", "out.zarr"),
        ("run", "recipe.yaml"),
    ):
        ended = cehm(*command, folder=folder)
        assert ended.code == 0, ended.err
    return folder


def until_done(command, folder, server, counts):
    """Give the same command until it succeeds; the exit codes on the way."""
    codes = []
    for _ in range(MOST_TRIES):
        ended = cehm(
            *command, folder=folder, environment=server.environment, prepare=["tests.chaos.object_store:short_lease"]
        )
        assert not ended.crashed, ended.err[-3000:]
        assert ended.code in (0, STORAGE, BUSY), f"{command} after {codes}: {ended.code}: {ended.err}"
        counts[f"S3 faults: exit code {ended.code}"] += 1
        codes.append(ended.code)
        if ended.code == 0:
            return codes
        if ended.code == BUSY:
            time.sleep(3.5)  # the lock of the try before, which could not be removed, expires
    raise AssertionError(f"{command} did not get through: {codes}")


def stores_with_faults(seed, s3, wanted, tmp_path, counts):
    """import and consensus, from and to the store."""
    prefix = f"faults-{os.urandom(4).hex()}"
    url = f"s3://{BUCKET}/{prefix}"
    with faulty(os.environ["AWS_ENDPOINT_URL"], SHARE, seed) as server:
        until_done(("import", "labels.npy", f"{url}/ensemble.zarr"), wanted, server, counts)
        until_done(("consensus", f"{url}/ensemble.zarr", *HOW, "-o", f"{url}/out.zarr"), wanted, server, counts)
    for name in ("ensemble.zarr", "out.zarr"):
        found = evidence.of_store(fetched(s3, f"{prefix}/{name}", tmp_path / f"{seed}" / name))
        differing = evidence.differences(found, evidence.of_store(wanted / name))
        assert not differing, "\n".join(differing[:10])
        assert cehm("verify", f"{url}/{name}", folder=wanted).code == 0
    took_note(server, counts)


def run_with_faults(seed, s3, wanted, tmp_path, counts):
    """A run directory in the store."""
    prefix = f"faults-{os.urandom(4).hex()}/out"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE.replace("OUT", f"s3://{BUCKET}/{prefix}"))
    with faulty(os.environ["AWS_ENDPOINT_URL"], SHARE, seed) as server:
        until_done(("run", recipe), wanted, server, counts)
    found, there = evidence.of_run(fetched(s3, prefix, tmp_path / f"{seed}")), evidence.of_run(wanted / "out")
    for one in (found, there):
        for name in ("recipe.yaml", "run.json"):  # these name the place
            one.pop(name)
    differing = evidence.differences(found, there)
    assert not differing, "\n".join(differing[:10])
    took_note(server, counts)


def took_note(server, counts, least=6):
    assert server.faults >= least
    counts["S3 faults: commands that got through, equal"] += 1
    counts["S3 faults: requests"] += server.requests
    counts["S3 faults"] += server.faults


def test_faults__import(s3, wanted, counts):
    url = f"s3://{BUCKET}/faults-{os.urandom(4).hex()}/ensemble.zarr"
    with faulty(os.environ["AWS_ENDPOINT_URL"], SHARE, seed=0) as server:
        until_done(("import", "labels.npy", url), wanted, server, counts)
    # Whether one gets past the retries of s3fs depends on the order of requests, which threads decide.
    took_note(server, counts, least=1)
    assert cehm("verify", url, folder=wanted).code == 0


@pytest.mark.chaos
@pytest.mark.parametrize("work", [stores_with_faults, run_with_faults])
def test_faults__again_and_again(work, s3, wanted, tmp_path, counts, rounds):
    for seed in range(1, 3 * rounds + 1):
        work(seed, s3, wanted, tmp_path, counts)


def test_lease__is_short_in_the_command(monkeypatch):
    from cehm_dask.data import locks

    monkeypatch.setattr(locks, "LEASE_SECONDS", locks.LEASE_SECONDS)
    monkeypatch.setattr(locks, "RENEWAL_SECONDS", locks.RENEWAL_SECONDS)
    short_lease()
    assert locks.RENEWAL_SECONDS * 3 < locks.LEASE_SECONDS < 3
