"""A command that stands still while it holds a lock: on a disk it keeps it; in an object store it may lose it."""

import os
import random
import shutil
import time

import numpy as np
import pytest

from cehm_dask.errors import BUSY
from tests.chaos import evidence
from tests.chaos.command import Moment, Running, cehm
from tests.chaos.object_store import fetched
from tests.chaos.recipes import noisy_labels
from tests.pretended_s3 import BUCKET

HOW = ("--k", "3", "--variant", "released", "--max-iter", "4")
LEASE = "tests.chaos.object_store:short_lease"


@pytest.fixture(scope="session")
def wanted(tmp_path_factory):
    """A folder with an ensemble and its consensus."""
    folder = tmp_path_factory.mktemp("pauses") / "here"
    folder.mkdir()
    np.save(folder / "labels.npy", noisy_labels(8, n=200))
    for command in (
        ("import", "labels.npy", "ensemble.zarr"),
        ("consensus", "ensemble.zarr", *HOW, "-o", "wanted.zarr"),
    ):
        ended = cehm(*command, folder=folder)
        assert ended.code == 0, ended.err
    return folder


def equal(found, wanted):
    differing = evidence.differences(evidence.of_store(found), evidence.of_store(wanted))
    assert not differing, "\n".join(differing[:10])


def on_a_disk(moment, comes_back, wanted, tmp_path, counts):
    """Nobody else gets in while it stands still; when it is killed there, the next one goes on."""
    folder = tmp_path / str(time.monotonic_ns()) / "here"
    shutil.copytree(wanted, folder)
    command = ("consensus", "ensemble.zarr", *HOW, "-o", "out.zarr")
    first = Running(command, folder, watched=folder / "out.zarr", stop_at=moment)
    assert first.wait_until_stopped(), first.end().err
    for other in (command, (*command, "--overwrite")):
        ended = cehm(*other, folder=folder)
        assert ended.code == BUSY, (ended.code, ended.err)
    if comes_back:
        first.go_on()
        assert first.end().code == 0
    else:
        first.kill()
        assert first.end().killed
        ended = cehm(*command, folder=folder)
        assert ended.code == 0, ended.err
    equal(folder / "out.zarr", folder / "wanted.zarr")
    counts["pauses"] += 1
    counts[f"pauses: on a disk, {'went on' if comes_back else 'killed'}: others told to wait, equal"] += 1


def in_an_object_store(seconds, s3, wanted, tmp_path, counts):
    """Another takes over when the lease is over; the one that stood still sees it, and does no harm."""
    prefix = f"pauses-{os.urandom(4).hex()}/out.zarr"
    command = ("consensus", "ensemble.zarr", *HOW, "-o", f"s3://{BUCKET}/{prefix}")
    first = Running(command, wanted, prepare=[LEASE, "tests.chaos.test_pauses:slow_sweeps"])
    wait_for_lock(s3, prefix, first)
    time.sleep(seconds)
    first.pause()
    ended = until_free(command, wanted)
    first.go_on()
    late = first.end()
    assert not late.crashed, late.err[-3000:]
    # Finished by the other before it looked, or taken over: never a second result.
    assert late.code in (0, BUSY), (late.code, late.err)
    assert ended.code == 0, ended.err
    equal(fetched(s3, prefix, tmp_path / str(time.monotonic_ns())), wanted / "wanted.zarr")
    assert cehm("verify", command[-1], folder=wanted).code == 0
    counts["pauses"] += 1
    counts[f"pauses: in an object store, {'taken over' if late.code == BUSY else 'done before'}: equal"] += 1
    return late.code


def slow_sweeps():
    """In the command: every sweep takes a while, so that it can be stopped on its way."""
    from cehm_dask.engine.sweep import Engine

    sweep = Engine.sweep

    def slowly(self, *args, **options):
        time.sleep(0.4)
        return sweep(self, *args, **options)

    Engine.sweep = slowly


def wait_for_lock(s3, prefix, running, timeout=60):
    deadline = time.monotonic() + timeout
    while "Contents" not in s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/writer.lock"):
        assert time.monotonic() < deadline
        assert running.process.exitcode is None, running.end().err
        time.sleep(0.02)


def until_free(command, folder, tries=20):
    """The same command, as long as it is told to wait."""
    for _ in range(tries):
        ended = cehm(*command, folder=folder, prepare=[LEASE])
        if ended.code != BUSY:
            return ended
        assert "its lock expires in" in ended.err, ended.err
        time.sleep(0.5)
    return ended


@pytest.mark.parametrize("comes_back", [True, False])
def test_pause__at_a_checkpoint(comes_back, wanted, tmp_path, counts):
    on_a_disk(Moment("os.rename checkpoint.npz", 2), comes_back, wanted, tmp_path, counts)


def test_pause__longer_than_the_lease(s3, wanted, tmp_path, counts):
    assert in_an_object_store(0.5, s3, wanted, tmp_path, counts) == BUSY


@pytest.mark.chaos
def test_pause__at_any_checkpoint(wanted, tmp_path, counts, rounds):
    for nth in range(1, 2 * rounds + 3):
        for after in (False, True):
            on_a_disk(Moment("os.rename checkpoint.npz", nth, after), after, wanted, tmp_path, counts)


@pytest.mark.chaos
def test_pause__longer_than_the_lease_at_any_moment(s3, wanted, tmp_path, counts, rounds):
    rng = random.Random(0)
    for _ in range(5 * rounds):
        in_an_object_store(rng.uniform(0, 2.5), s3, wanted, tmp_path, counts)
