"""Workers and schedulers that are killed or stopped in mid-sweep: the same result, or an exit code that says try again.

Workers have one thread or two: with two, another run of rows is under way where one is lost.
"""

import os
import random
import shutil
import signal
import time
from dataclasses import dataclass

import pytest
from distributed import Client

from cehm_dask.data.ingest import ingest
from cehm_dask.errors import RETRYABLE
from tests.chaos import evidence
from tests.chaos.command import Running, cehm
from tests.chaos.losses import a_cluster, is_lost
from tests.chaos.recipes import RECIPES, lay_out, noisy_labels

CONSENSUS = ("consensus", "ensemble.zarr", "--k", "4", "--variant", "released", "--restarts", "2", "-o", "out.zarr")
RUN = ("run", "recipe.yaml")
STOPPED_SECONDS = 0.5

LATEST = {"consensus": 60, "run": 4}
"""Blocks and tasks after which a worker, of two that share the work, has more to do."""


@dataclass(frozen=True)
class Loss:
    """What is lost, of which cluster."""

    victim: str
    threads: int
    number: signal.Signals = signal.SIGKILL
    comes_back: bool = False
    """Of a process that was stopped: whether it goes on; else it is killed where it stands."""
    alone: bool = False
    """Of a worker: it is the only one, and another comes when it is lost."""

    def __str__(self):
        how = "killed" if self.number == signal.SIGKILL else "stopped" if self.comes_back else "stopped, then killed"
        only = "only " if self.alone else ""
        return f"{only}{self.victim} {how}, workers of {self.threads} thread{'s' * (self.threads > 1)}"


LOSSES = [
    *(Loss("worker", threads) for threads in (1, 2)),
    *(Loss("worker", threads, alone=True) for threads in (1, 2)),
    *(Loss("worker", threads, signal.SIGSTOP, comes_back) for threads in (1, 2) for comes_back in (False, True)),
    *(Loss("scheduler", threads) for threads in (1, 2)),
    Loss("scheduler", 2, signal.SIGSTOP, comes_back=True),
]


@pytest.fixture(scope="session")
def laid_out(tmp_path_factory):
    """Where the inputs of a command lie, and what an undisturbed one leaves; by the command's name."""
    known = {}

    def of(command):
        if command[0] not in known:
            place = tmp_path_factory.mktemp("losses") / "inputs"
            if command == RUN:
                lay_out(place, next(iter(RECIPES)))  # the one that makes members, on the cluster too
            else:
                place.mkdir()
                ingest(noisy_labels(5, n=3000), str(place / "ensemble.zarr"), chunk_rows=64)
            once = place.parent / "once"
            shutil.copytree(place, once)
            ended = cehm(*command, folder=once)
            assert ended.code == 0, ended.err
            known[command[0]] = place, found(command, once)
        return known[command[0]]

    return of


def found(command, folder):
    return evidence.of_run(folder / "out") if command == RUN else evidence.of_store(folder / "out.zarr")


def lose(command, loss, at, laid_out, tmp_path, counts):
    """One loss; the result is the wanted one, at once or at a second try without the cluster."""
    place, wanted = laid_out(command)
    folder = tmp_path / str(time.monotonic_ns()) / "here"
    shutil.copytree(place, folder)
    with a_cluster(folder.parent / "cluster", loss.victim) as cluster:
        first = cluster.add_worker(loss.threads, at=at, number=loss.number, victim=loss.victim)
        if not loss.alone:
            cluster.add_worker(loss.threads)
        victim = first if loss.victim == "worker" else cluster.scheduler
        running = Running([*command, "--cluster", cluster.spec], folder, prepare=["tests.chaos.losses:many_runs"])
        was_lost = wait_for_loss(running, victim)
        if was_lost and loss.alone:
            cluster.add_worker(loss.threads)
        if was_lost and loss.number == signal.SIGSTOP:
            end_pause(victim, loss)
        ended = running.end()
    assert not ended.crashed, f"{loss} at {at}: {ended.err[-3000:]}"
    assert ended.code == 0 or ended.code in RETRYABLE, f"{loss} at {at}: {ended.code}: {ended.err}"
    if ended.code:
        ended = cehm(*command, folder=folder)
        assert ended.code == 0, f"{loss} at {at}, tried again: {ended.err}"
        became = "equal, when tried again"
    else:
        became = "equal"
    differing = evidence.differences(found(command, folder), wanted)
    assert not differing, f"{loss} at {at}: " + "\n".join(differing[:10])
    counts["losses" if was_lost else "losses that came too late"] += 1
    if was_lost:
        counts[f"losses: {loss}: {became}"] += 1
    shutil.rmtree(folder.parent)
    return was_lost


def wait_for_loss(running, victim):
    """Whether the victim is lost before the command ends."""
    while running.process.exitcode is None:
        if is_lost(victim):
            return True
        time.sleep(0.005)
    return is_lost(victim)


def end_pause(victim, loss):
    time.sleep(STOPPED_SECONDS)
    if loss.comes_back:
        os.kill(victim.pid, signal.SIGCONT)
    else:
        victim.kill()


def test_cluster__a_worker_has_joined_when_it_was_added(tmp_path):
    """Else a command that finds the other one may be done before there is anything to lose."""
    with a_cluster(tmp_path / "cluster", "worker") as cluster:
        for count in (1, 2):
            cluster.add_worker()
            with Client(cluster.address, set_as_default=False) as client:
                assert len(client.scheduler_info(n_workers=-1)["workers"]) == count


@pytest.mark.parametrize("loss", [LOSSES[1], LOSSES[2], LOSSES[-3]], ids=str)
def test_loss__in_mid_sweep(loss, laid_out, tmp_path, counts):
    assert lose(CONSENSUS, loss, 20, laid_out, tmp_path, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("command", [CONSENSUS, RUN], ids=lambda command: command[0])
@pytest.mark.parametrize("loss", LOSSES, ids=str)
def test_loss__at_any_block_or_task(loss, command, laid_out, tmp_path, counts, rounds):
    rng = random.Random(f"{loss} {command[0]}")
    lost = [
        lose(command, loss, rng.randint(1, LATEST[command[0]]), laid_out, tmp_path, counts) for _ in range(3 * rounds)
    ]
    assert any(lost), lost
