"""Killed at any step and run again: the same result as if nothing had happened, in everything that is compared."""

import random
import shutil
import time
from collections import Counter

import pytest

from tests.chaos import evidence
from tests.chaos.command import Moment, Running, cehm
from tests.chaos.recipes import RECIPES

MOST_KILLS = 6
"""In one storm: every try of the same run is killed, further on each time."""


def is_checkpoint(step):
    return step.startswith("os.rename") and "checkpoint" in step


def moments(steps):
    """The moment right before every step."""
    seen = Counter()
    for step in steps:
        seen[step] += 1
        yield Moment(step, seen[step])


def at_checkpoints(steps):
    """The moments right before and right after every checkpoint."""
    return [
        Moment(one.step, one.nth, after) for one in moments(steps) if is_checkpoint(one.step) for after in (False, True)
    ]


def elsewhere(steps, count, seed):
    """Some of the other moments."""
    others = [one for one in moments(steps) if not is_checkpoint(one.step)]
    return random.Random(seed).sample(others, min(count, len(others)))


def copy_of(place, tmp_path):
    folder = tmp_path / str(time.monotonic_ns()) / "run"
    shutil.copytree(place, folder)  # with the times of change, which fingerprints of inputs are made of
    return folder


def finish_and_compare(folder, wanted, counts):
    """The same command once more; what it leaves must be what was wanted."""
    ended = cehm("run", "recipe.yaml", folder=folder)
    assert ended.code == 0, ended.err
    found = evidence.differences(evidence.of_run(folder / "out"), wanted)
    assert not found, "\n".join(found[:20])
    counts["kills: runs resumed, equal in everything"] += 1
    shutil.rmtree(folder.parent)


def kill_at(name, moment, undisturbed, tmp_path, counts):
    place, wanted, _ = undisturbed(name)
    folder = copy_of(place, tmp_path)
    ended = cehm("run", "recipe.yaml", folder=folder, watched=folder / "out", kill_at=moment)
    # Two threads that make the same folder take one step or two, so others than checkpoints may not come.
    assert ended.killed or (ended.code == 0 and not is_checkpoint(moment.step)), (moment, ended.code, ended.err)
    counts["kills" if ended.killed else "kills that came too late"] += 1
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
    steps = undisturbed(name)[2]
    for moment in [random.Random(name).choice(at_checkpoints(steps)), *elsewhere(steps, 1, seed=name)]:
        kill_at(name, moment, undisturbed, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", RECIPES)
def test_kill__at_every_checkpoint_and_many_other_steps(name, undisturbed, tmp_path, counts, rounds):
    steps = undisturbed(name)[2]
    for moment in [*at_checkpoints(steps), *elsewhere(steps, 12 * rounds, seed=0)]:
        kill_at(name, moment, undisturbed, tmp_path, counts)


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
