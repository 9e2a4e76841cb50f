"""Killed at any step and run again: the same result as if nothing had happened, in everything that is compared."""

import random
import shutil
import time

import pytest

from tests.chaos import evidence
from tests.chaos.command import Running, cehm
from tests.chaos.recipes import RECIPES

MOST_KILLS = 6
"""In one storm: every try of the same run is killed, further on each time."""


def is_checkpoint(step):
    return step.startswith("os.rename") and "checkpoint" in step


def points(steps, count, seed):
    """Steps to be killed at: before and after every checkpoint, and as many others as are asked for."""
    after = [number + 1 for number, step in enumerate(steps) if is_checkpoint(step)]
    chosen = sorted({*after, *(number + 1 for number in after)})
    others = [number for number in range(1, len(steps) + 1) if number not in chosen]
    return chosen + random.Random(seed).sample(others, min(count, len(others)))


def copy_of(place, tmp_path):
    folder = tmp_path / str(time.monotonic_ns()) / "run"
    shutil.copytree(place, folder)  # with the times of change, which fingerprints of inputs are made of
    return folder


def finish_and_compare(folder, wanted, counts):
    """The same command, until it is done; what it leaves must be what was wanted."""
    ended = cehm("run", "recipe.yaml", folder=folder)
    assert ended.code == 0, ended.err
    found = evidence.differences(evidence.of_run(folder / "out"), wanted)
    assert not found, "\n".join(found[:20])
    counts["kills: runs resumed, equal in everything"] += 1
    shutil.rmtree(folder.parent)


def kill_at(name, step, undisturbed, tmp_path, counts):
    place, wanted, _ = undisturbed(name)
    folder = copy_of(place, tmp_path)
    ended = cehm("run", "recipe.yaml", folder=folder, watched=folder / "out", kill_at=step)
    assert ended.killed, (ended.code, ended.err)
    counts["kills"] += 1
    finish_and_compare(folder, wanted, counts)


def kill_in_time(name, seconds, undisturbed, tmp_path, counts):
    """Killed at any moment, also in the middle of a write."""
    place, wanted, _ = undisturbed(name)
    folder = copy_of(place, tmp_path)
    running = Running(["run", "recipe.yaml"], folder)
    time.sleep(seconds)
    running.kill()
    counts["kills" if running.end().killed else "kills that came too late"] += 1
    finish_and_compare(folder, wanted, counts)


def storm(name, seed, undisturbed, tmp_path, counts):
    """Several kills of one run, each after fewer or more steps than the one before."""
    place, wanted, steps = undisturbed(name)
    folder, rng = copy_of(place, tmp_path), random.Random(seed)
    for _ in range(MOST_KILLS):
        step = rng.randint(1, len(steps))
        ended = cehm("run", "recipe.yaml", folder=folder, watched=folder / "out", kill_at=step)
        assert ended.killed or ended.code == 0, ended.err
        if ended.code == 0:
            break
        counts["kills"] += 1
    finish_and_compare(folder, wanted, counts)


@pytest.mark.parametrize("name", RECIPES)
def test_kill__at_a_few_steps(name, undisturbed, tmp_path, counts):
    steps = points(undisturbed(name)[2], 5, seed=name)
    for step in random.Random(name).sample(steps, 2):
        kill_at(name, step, undisturbed, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", RECIPES)
def test_kill__at_every_checkpoint_and_many_other_steps(name, undisturbed, tmp_path, counts, rounds):
    for step in points(undisturbed(name)[2], 12 * rounds, seed=0):
        kill_at(name, step, undisturbed, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", RECIPES)
def test_kill__at_any_moment(name, undisturbed, tmp_path, counts, rounds):
    rng = random.Random(name)
    for _ in range(5 * rounds):
        kill_in_time(name, rng.uniform(0.05, 1.2), undisturbed, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", RECIPES)
def test_kill__again_and_again(name, undisturbed, tmp_path, counts, rounds):
    for seed in range(2 * rounds):
        storm(name, seed, undisturbed, tmp_path, counts)
