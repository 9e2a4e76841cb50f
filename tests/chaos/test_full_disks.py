"""A disk that is full at any point of a run: a code that says try again, and with space the same result."""

import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from cehm_dask.errors import INPUT, STORAGE
from tests.chaos import evidence
from tests.chaos.command import cehm
from tests.chaos.recipes import RECIPES

ENOUGH = "64m"


def finish(folder, wanted, ended, counts, what):
    """Say of a run what came of it, give it space, and compare."""
    assert not ended.crashed, ended.err[-3000:]
    assert ended.code in (0, STORAGE), ended.err
    counts["full disks" if ended.code else "full disks: everything fitted"] += 1
    if ended.code:
        assert "Traceback" not in ended.err
        counts[f"full disks: {what}: equal, when tried again"] += 1
    yield  # space is made
    again = cehm("run", "recipe.yaml", folder=folder)
    assert again.code == 0, again.err
    differing = evidence.differences(evidence.of_run(folder / "out"), wanted)
    assert not differing, "\n".join(differing[:10])


def files_too_large(name, size, undisturbed, tmp_path, counts):
    """No file may be larger than so many bytes."""
    place, wanted, _ = undisturbed(name)
    folder = tmp_path / str(time.monotonic_ns()) / "here"
    shutil.copytree(place, folder)
    ended = cehm("run", "recipe.yaml", folder=folder, largest_file=size)
    for _ in finish(folder, wanted, ended, counts, "files that cannot grow"):
        pass
    shutil.rmtree(folder.parent)


@contextmanager
def small_disk(place, kilobytes):
    """A disk in memory, of so many kilobytes; a function that makes it larger."""
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none", place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    try:
        yield lambda: subprocess.run(["mount", "-o", f"remount,size={ENOUGH}", place], check=True)
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def disk_too_small(name, kilobytes, undisturbed, tmp_path, counts):
    """The disk holds so many kilobytes beside the inputs."""
    place, wanted, _ = undisturbed(name)
    disk = tmp_path / str(time.monotonic_ns())
    taken = sum(path.stat().st_size // 1024 + 8 for path in place.rglob("*"))
    with small_disk(disk, taken + kilobytes) as enlarge:
        folder = disk / "here"
        shutil.copytree(place, folder)
        # Notes of the command lie beside its folder: they are given a place first.
        (disk / "notes").symlink_to(tmp_path)
        ended = cehm("run", "recipe.yaml", folder=folder)
        for _ in finish(folder, wanted, ended, counts, "a disk with no space left"):
            enlarge()


SIZES = [0, 1, 50, 200, 500, 900, 1500, 3000, 6000, 12_000, 25_000, 50_000, 100_000]
KILOBYTES = [0, 8, 20, 40, 80, 120, 160, 200, 300, 400]


@pytest.mark.parametrize("size", [0, 1500])
def test_full__files_that_cannot_grow(size, undisturbed, tmp_path, counts):
    files_too_large("several k", size, undisturbed, tmp_path, counts)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_full__disk(undisturbed, tmp_path, counts):
    disk_too_small("several k", 80, undisturbed, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", RECIPES)
def test_full__files_of_any_size_that_cannot_grow(name, undisturbed, tmp_path, counts, rounds):
    rng = random.Random(name)
    for _ in range(3 * rounds):
        files_too_large(name, rng.choice(SIZES), undisturbed, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize("name", RECIPES)
def test_full__disk_of_any_size(name, undisturbed, tmp_path, counts, rounds):
    rng = random.Random(name)
    for _ in range(3 * rounds):
        disk_too_small(name, rng.choice(KILOBYTES), undisturbed, tmp_path, counts)


# --- what is printed goes to a full disk, as that of cron jobs does ----------------------------------------------


def printed_to(args, folder, *, out=os.devnull, err=os.devnull):
    with open(out, "w") as stdout, open(err, "w") as stderr:
        command = [sys.executable, "-m", "cehm_dask", *args]
        return subprocess.run(command, cwd=folder, stdout=stdout, stderr=stderr, check=False, timeout=240).returncode


@pytest.mark.parametrize(
    ("args", "streams", "code"),
    [
        (["info", "none.zarr"], {"err": "/dev/full"}, INPUT),
        (["info", "--nothing"], {"err": "/dev/full"}, INPUT),
        (["--log-format", "json", "info", "none.zarr"], {"err": "/dev/full"}, INPUT),
        (["recipe", "--schema"], {"out": "/dev/full"}, STORAGE),
        (["recipe", "--schema"], {"out": "/dev/full", "err": "/dev/full"}, STORAGE),
        (["recipe", "--schema"], {"err": "/dev/full"}, 0),
    ],
)
def test_printed__to_a_full_disk_keeps_the_exit_code(args, streams, code, tmp_path):
    assert printed_to(args, tmp_path, **streams) == code
