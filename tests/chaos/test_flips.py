"""A flipped bit in any file of a store, a checkpoint or a run directory: harmless or noticed, never silent."""

import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from tests.chaos import evidence
from tests.chaos.command import Moment, cehm
from tests.chaos.recipes import noisy_labels

CONSENSUS = ("consensus", "ensemble.zarr", "--k", "4", "--variant", "released", "--restarts", "2")
RECIPE = """\
features: {path: flowers.csv, id: flower}
ensemble: {members: 4, k_max: 6}
consensus: {k: 3}
truth: {column: species}
output: out
export: csv
"""


@dataclass(frozen=True)
class Target:
    """What bits are flipped in, and what is made of it afterwards."""

    lay_out: Callable
    """Makes it in a folder."""
    place: str
    """Where in the folder its files are."""
    use: Callable
    """Commands that work with it: how they ended, and all that came of it."""


def lay_out_ensemble(folder):
    np.save(folder / "labels.npy", noisy_labels(3, n=400))
    assert cehm("import", "labels.npy", "ensemble.zarr", folder=folder).code == 0


def lay_out_begun(folder):
    """A consensus that was killed right after its fourth checkpoint."""
    lay_out_ensemble(folder)
    output = folder / "consensus.zarr"
    fourth = Moment("os.rename checkpoint.npz", 4, after=True)
    assert cehm(*CONSENSUS, "-o", output.name, folder=folder, watched=output, kill_at=fourth).killed


def lay_out_consensus(folder):
    lay_out_ensemble(folder)
    assert cehm(*CONSENSUS, "-o", "consensus.zarr", folder=folder).code == 0
    np.save(folder / "new.npy", noisy_labels(4, n=60))
    pd.DataFrame({"class": np.arange(400) % 3}).to_csv(folder / "classes.csv", index=False)


def lay_out_run(folder):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=150)
    features = pd.DataFrame(rng.normal(size=(150, 3)) + 2.5 * truth[:, None], columns=["a", "b", "c"])
    features.insert(0, "flower", [f"{number:03}" for number in range(150)])
    features.assign(species=[f"kind {number}" for number in truth]).to_csv(folder / "flowers.csv", index=False)
    (folder / "recipe.yaml").write_text(RECIPE)
    assert cehm("run", "recipe.yaml", folder=folder).code == 0


def lay_out_begun_run(folder):
    """A run that was killed in its consensus."""
    lay_out_run(folder)
    shutil.rmtree(folder / "out")
    second = Moment("os.rename consensus.zarr/checkpoint.npz", 2, after=True)
    assert cehm("run", "recipe.yaml", folder=folder, watched=folder / "out", kill_at=second).killed


def use_ensemble(folder):
    return [cehm(*CONSENSUS, "-o", "consensus.zarr", folder=folder)], lambda: evidence.of_store(
        folder / "consensus.zarr"
    )


def use_consensus(folder):
    commands = [
        ("evaluate", "consensus.zarr", "--truth", "classes.csv", "--ensemble", "ensemble.zarr", "--json"),
        ("predict", "consensus.zarr", "new.npy", "-o", "new.csv"),
        ("report", "consensus.zarr", "--ensemble", "ensemble.zarr", "-o", "report.html"),
    ]
    ended = [cehm(*command, folder=folder) for command in commands]

    def found():
        return [ended[0].out, (folder / "new.csv").read_bytes(), evidence.of_report(folder / "report.html")]

    return ended, found


def use_run(folder):
    return [cehm("run", "recipe.yaml", folder=folder)], lambda: evidence.of_run(folder / "out")


TARGETS = {
    "ensemble": Target(lay_out_ensemble, "ensemble.zarr", use_ensemble),
    "checkpoint": Target(lay_out_begun, "consensus.zarr", use_ensemble),
    "consensus": Target(lay_out_consensus, "consensus.zarr", use_consensus),
    "run": Target(lay_out_run, "out", use_run),
    "run that was cut off": Target(lay_out_begun_run, "out", use_run),
}


class LaidOut:
    """Targets as they are before a bit is flipped, and what comes of them then."""

    def __init__(self, folder):
        self.folder, self._known = folder, {}

    def __call__(self, name):
        if name not in self._known:
            target, place = TARGETS[name], self.folder / str(len(self._known)) / "made"
            place.mkdir(parents=True)
            target.lay_out(place)
            used = self.copy(place)
            ended, found = target.use(used)
            assert all(one.code == 0 for one in ended), [one.err for one in ended]
            self._known[name] = place, found()
            shutil.rmtree(used.parent)
        return self._known[name]

    def copy(self, place):
        folder = self.folder / "copies" / str(time.monotonic_ns()) / "here"
        shutil.copytree(place, folder)
        return folder


@pytest.fixture(scope="session")
def laid_out(tmp_path_factory):
    return LaidOut(tmp_path_factory.mktemp("flips"))


def files_of(place):
    return sorted(path.relative_to(place) for path in place.rglob("*") if path.is_file() and path.stat().st_size)


def flip(path, rng, *, unnoticed):
    """Flip one bit; ``unnoticed``: with the time of change as before, as a failing disk does."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    if unnoticed:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return at


def flip_and_use(name, file, seed, laid_out, counts):
    """One flip: what comes of it must be what came before, or an error that says so."""
    target = TARGETS[name]
    place, wanted = laid_out(name)
    folder, rng = laid_out.copy(place), random.Random(seed)
    at = flip(folder / target.place / file, rng, unnoticed=False)
    told = f"{name}: {file}, byte {at}"
    verified = cehm("verify", target.place, folder=folder) if name in ("ensemble", "consensus", "run") else None
    before = _read(lambda: evidence.of_store(folder / target.place)) if name in ("ensemble", "consensus") else None
    ended, found = target.use(folder)
    for one in [*ended, *([verified] if verified else [])]:
        assert not one.crashed, f"{told}: {one.err[-3000:]}"
        assert one.code in (0, 2), f"{told}: exit code {one.code}: {one.err}"
    counts["flips"] += 1
    without_trail = False
    if all(one.code == 0 for one in ended):
        differing = evidence.differences(found(), wanted)
        if file.name.startswith("trail-") and "is damaged" in ended[0].err:
            # The way of a few samples to their clusters is lost, is said to be, and nothing else is.
            differing = [line for line in differing if "trail" not in line and "report.html" not in line]
            without_trail = True
        assert not differing, f"silent, {told}: " + "\n".join(differing[:10])
    if without_trail:
        counts[f"flips: noticed, and the result made without a trail ({name})"] += 1
    elif any(one.code for one in [*ended, *([verified] if verified else [])]):
        counts[f"flips: noticed ({name})"] += 1
    else:
        counts[f"flips: harmless, or what was damaged was made again ({name})"] += 1
        if before is not None:  # nobody has noticed, so nothing may have changed that anybody can read
            assert before == evidence.of_store(place / target.place), f"verify has missed it, {told}"
    shutil.rmtree(folder.parent)


def flip_and_verify(name, file, seed, laid_out, counts):
    """A flip that no time of change tells of, in a run directory that nobody runs again: ``cehm verify`` reads all."""
    target = TARGETS[name]
    place, _ = laid_out(name)
    folder, rng = laid_out.copy(place), random.Random(seed)
    at = flip(folder / target.place / file, rng, unnoticed=True)
    verified = cehm("verify", target.place, folder=folder)
    assert not verified.crashed, verified.err[-3000:]
    counts["flips"] += 1
    if verified.code == 0:
        same = evidence.of_run(folder / "out") == evidence.of_run(place / "out")
        assert same, f"verify has missed it, {name}: {file}, byte {at}"
        counts["flips: harmless (verify)"] += 1
    else:
        assert verified.code == 2, verified.err
        counts["flips: noticed (verify)"] += 1
    shutil.rmtree(folder.parent)


def _read(reader):
    try:
        return reader()
    except Exception:  # whatever zarr finds wrong
        return None


@pytest.mark.parametrize("name", TARGETS)
def test_flip__in_a_few_files(name, laid_out, counts):
    files = files_of(laid_out(name)[0] / TARGETS[name].place)
    for number, file in enumerate(random.Random(name).sample(files, 2)):
        flip_and_use(name, file, f"{name} {number}", laid_out, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", TARGETS)
def test_flip__in_every_file(name, laid_out, counts, round_numbers):
    files = files_of(laid_out(name)[0] / TARGETS[name].place)
    for number in round_numbers:
        for file in files:
            flip_and_use(name, file, f"{file} {number}", laid_out, counts)


@pytest.mark.chaos
def test_flip__that_only_verify_can_see(laid_out, counts, round_numbers):
    files = files_of(laid_out("run")[0] / "out")
    for number in round_numbers:
        for file in files:
            flip_and_verify("run", file, f"unnoticed {file} {number}", laid_out, counts)


def test_files__every_kind_of_file_is_flipped(laid_out):
    kinds = {path.name for name in TARGETS for path in files_of(laid_out(name)[0] / TARGETS[name].place)}
    assert {"zarr.json", "checkpoint.npz", "run.json", "run.log", "recipe.yaml", "report.html", "scores.json"} <= kinds
    assert any(name.startswith("trail-") for name in kinds)
    assert "labels.csv" in kinds
