"""Two commands at one store at the same time: the work of one of them, whole, or a code that says try again."""

import random
import shutil
import time

import numpy as np
import pytest

from cehm_dask.errors import BUSY, INPUT, STORAGE
from tests.chaos import evidence
from tests.chaos.command import Moment, Running, cehm
from tests.chaos.recipes import noisy_labels

HOW = ("--k", "4", "--variant", "released", "--restarts", "2")
FIT = ("consensus", "ensemble.zarr", *HOW, "-o", "out.zarr")
EVALUATE = ("evaluate", "out.zarr", "--truth", "truth.npy", "--ensemble", "ensemble.zarr", "--json")
LONGEST_LEAD = 0.2
"""Seconds that one command may start before the other."""
STEPS = {"import": 45, "consensus": 200, "run": 290}
"""Of a writer, about; it may be stopped at any of them."""


class Scene:
    """Two ensembles of the same rows, results of both, and a folder for every race."""

    def __init__(self, folder, run):
        self.folder, self.made, self.run = folder, folder / "made", run
        self.made.mkdir()
        for number, name in enumerate("ab"):
            np.save(self.made / f"{name}.npy", noisy_labels(6 + number, n=800, members=6 + number))
        np.save(self.made / "truth.npy", np.arange(800) % 3)
        self.ensembles, self.results, self.scores = {}, {}, {}
        for name in "ba":  # a is the one that is there when a race begins
            for command in (self.bring(name), (*FIT, "--overwrite"), EVALUATE):
                ended = cehm(*command, folder=self.made)
                assert ended.code == 0, ended.err
            self.ensembles[name] = evidence.of_store(self.made / "ensemble.zarr")
            self.results[name] = evidence.of_store(self.made / "out.zarr")
            self.scores[name] = ended.out
        assert self.results["a"] != self.results["b"]
        assert self.scores["a"] != self.scores["b"]

    @staticmethod
    def bring(name):
        return ("import", f"{name}.npy", "ensemble.zarr", "--overwrite")

    def copy(self, *, finished=False):
        place = self.folder / str(time.monotonic_ns()) / "here"
        shutil.copytree(self.made, place)
        if not finished:
            shutil.rmtree(place / "out.zarr")
        return place

    def which(self, kind, found):
        """The one whose work it is; a mixture is nobody's."""
        return next((name for name, own in getattr(self, kind).items() if own == found), "a mixture")


@pytest.fixture(scope="session")
def scene(tmp_path_factory, undisturbed):
    return Scene(tmp_path_factory.mktemp("races"), undisturbed("several k")[:2])


def race(first, second, folder, rng, *, writers):
    """Both at the same time, or all of one within a step of the other, which writes; how they ended."""
    if rng.random() < 0.6:
        ended = _one_within_the_other(first, second, folder, rng, writers)
    else:
        running = []
        for command in rng.sample([first, second], 2):
            running.append((command, Running(command, folder)))
            time.sleep(rng.uniform(0, LONGEST_LEAD))
        ended = {command: one.end() for command, one in running}
    for one in ended.values():
        assert not one.crashed, one.err[-3000:]
    return ended[first], ended[second]


def _one_within_the_other(first, second, folder, rng, writers):
    outer = rng.choice(writers)
    inner = second if outer == first else first
    running = Running(outer, folder, watched=folder, stop_at=rng.randint(1, STEPS[outer[0]]))
    running.wait_until_stopped()
    within = cehm(*inner, folder=folder)
    if running.process.exitcode is None:
        running.go_on()
    return {outer: running.end(), inner: within}


def sound(folder, *stores):
    """Whether everything fits its digests, and no writer left a half-written store."""
    for store in stores:
        assert cehm("verify", store, folder=folder).code == 0, store
    assert not [path.name for path in folder.iterdir() if path.name.endswith(".writing")]


def two_imports(scene, rng):
    """Writer and writer, with different content."""
    folder = scene.copy()
    both = scene.bring("a"), scene.bring("b")
    ended = race(*both, folder, rng, writers=both)
    codes = [one.code for one in ended]
    assert 0 in codes, codes
    assert set(codes) <= {0, BUSY}, [one.err for one in ended]
    found = scene.which("ensembles", evidence.of_store(folder / "ensemble.zarr"))
    assert found in [name for name, code in zip("ab", codes, strict=True) if code == 0]
    sound(folder, "ensemble.zarr")
    return folder, "one after the other" if codes == [0, 0] else "one whole, the other told to wait"


def two_consensus(scene, rng):
    """Writer and writer, with the same content."""
    folder = scene.copy()
    both = FIT, (*FIT, "--quiet")
    ended = race(*both, folder, rng, writers=both)
    for one in ended:
        finished = one.code == INPUT and "is finished" in one.err  # the other was done before it began
        assert one.code in (0, BUSY) or finished, one.err
    assert 0 in [one.code for one in ended]
    assert scene.which("results", evidence.of_store(folder / "out.zarr")) == "a"
    sound(folder, "out.zarr")
    waits = BUSY in [one.code for one in ended]
    return folder, "one whole, the other told to wait" if waits else "one after the other"


def two_runs(scene, rng):
    """Writer and writer of a run directory."""
    inputs, wanted = scene.run
    folder = scene.folder / str(time.monotonic_ns()) / "here"
    shutil.copytree(inputs, folder)
    both = ("run", "recipe.yaml"), ("run", "recipe.yaml", "--quiet")
    ended = race(*both, folder, rng, writers=both)
    assert {0} <= {one.code for one in ended} <= {0, BUSY}, [one.err for one in ended]
    differing = evidence.differences(evidence.of_run(folder / "out"), wanted)
    assert not differing, "\n".join(differing[:10])
    sound(folder, "out")
    return folder, "one whole, the other told to wait" if ended[0].code != ended[1].code else "one after the other"


def import_under_a_consensus(scene, rng):
    """Writer and reader, at any moment."""
    folder = scene.copy()
    fit, brought = race(FIT, scene.bring("b"), folder, rng, writers=[FIT, scene.bring("b")])
    assert brought.code == 0, brought.err
    assert fit.code in (0, STORAGE), fit.err
    if fit.code == 0:
        assert scene.which("results", evidence.of_store(folder / "out.zarr")) in ("a", "b")
    sound(folder, "ensemble.zarr")
    return folder, "reader whole" if fit.code == 0 else "reader told to try again"


def consensus_under_an_evaluation(scene, rng):
    """Writer and reader of a result."""
    folder = scene.copy(finished=True)
    other = ("consensus", "ensemble.zarr", "--k", "3", "--variant", "released", "-o", "out.zarr", "--overwrite")
    reading, writing = race(EVALUATE, other, folder, rng, writers=[other])
    assert writing.code == 0, writing.err
    assert reading.code in (0, STORAGE), reading.err
    if reading.code == 0:
        after = cehm(*EVALUATE, folder=folder)
        assert reading.out in (scene.scores["a"], after.out), "a mixture"
    sound(folder, "out.zarr")
    return folder, "reader whole" if reading.code == 0 else "reader told to try again"


def import_under_a_consensus_that_stands_still(scene, rng):
    """Overwrite right at a checkpoint of a running consensus."""
    folder = scene.copy()
    moment = Moment("os.rename checkpoint.npz", rng.randint(1, 6), rng.random() < 0.5)
    running = Running(FIT, folder, watched=folder / "out.zarr", stop_at=moment)
    assert running.wait_until_stopped(), running.end().err
    brought = cehm(*scene.bring("b"), folder=folder)
    running.go_on()
    fit = running.end()
    assert brought.code == 0, brought.err
    assert not fit.crashed, fit.err
    # It may not declare finished what is left of a store that is no longer there.
    assert fit.code == STORAGE, (fit.code, fit.err)
    again = cehm(*FIT, "--overwrite", folder=folder)
    assert again.code == 0, again.err
    assert scene.which("results", evidence.of_store(folder / "out.zarr")) == "b"
    sound(folder, "ensemble.zarr", "out.zarr")
    return folder, "reader told to try again"


def consensus_at_a_read_of_an_evaluation(scene, rng):
    """Overwrite right before or after a reader opens one of the arrays."""
    folder = scene.copy(finished=True)
    moment = Moment(f"read {rng.choice(['labels', 'margin'])}/c/0", after=rng.random() < 0.5)
    running = Running(EVALUATE, folder, watched=folder / "out.zarr", stop_at=moment)
    assert running.wait_until_stopped(), running.end().err
    writing = cehm("consensus", "ensemble.zarr", "--k", "3", *FIT[4:], "--overwrite", folder=folder)
    running.go_on()
    reading = running.end()
    assert writing.code == 0, writing.err
    assert not reading.crashed, reading.err
    assert reading.code == STORAGE, (reading.code, reading.out, reading.err)
    assert not reading.out
    again = cehm(*EVALUATE, folder=folder)
    assert again.code == 0, again.err
    sound(folder, "out.zarr")
    return folder, "reader told to try again"


def npy_changed_under_a_consensus(scene, rng):
    """A file whose codes were made and kept when it was read, so that it is needed no more."""
    folder, fit = _with_changed_npy(scene, rng, np.load(scene.made / "a.npy"))
    assert fit.code == 0, fit.err
    arrays = evidence.of_store(folder / "out.zarr")[0]
    assert arrays["labels"] == scene.results["a"][0]["labels"], "a mixture"
    return folder, "reader whole"


def mapped_npy_changed_under_a_consensus(scene, rng):
    """A file that holds codes as they are, and is read in every sweep."""
    folder, fit = _with_changed_npy(scene, rng, np.load(scene.made / "a.npy").clip(0).astype(np.uint8))
    assert fit.code == STORAGE, (fit.code, fit.err)
    return folder, "reader told to try again"


def _with_changed_npy(scene, rng, labels):
    """A consensus whose file is written anew, in place or not, right before a checkpoint."""
    folder = scene.copy()
    command = ("consensus", "labels.npy", *HOW, "-o", "out.zarr")
    np.save(folder / "labels.npy", labels)
    moment = Moment("os.rename checkpoint.npz", rng.randint(1, 6))
    running = Running(command, folder, watched=folder / "out.zarr", stop_at=moment)
    assert running.wait_until_stopped(), running.end().err
    if rng.random() < 0.5:
        mapped = np.load(folder / "labels.npy", mmap_mode="r+")
        mapped[:] = labels[::-1]
        mapped.flush()
    else:
        np.save(folder / "new.npy", labels[::-1])
        (folder / "new.npy").rename(folder / "labels.npy")
    running.go_on()
    fit = running.end()
    assert not fit.crashed, fit.err
    return folder, fit


RACES = {
    "import and import": two_imports,
    "consensus and consensus": two_consensus,
    "run and run": two_runs,
    "import under a consensus": import_under_a_consensus,
    "import at a checkpoint of a consensus": import_under_a_consensus_that_stands_still,
    "consensus under an evaluation": consensus_under_an_evaluation,
    "consensus at a read of an evaluation": consensus_at_a_read_of_an_evaluation,
    ".npy changed under a consensus": npy_changed_under_a_consensus,
    ".npy that is mapped changed under a consensus": mapped_npy_changed_under_a_consensus,
}


def hold(name, seed, scene, counts):
    folder, became = RACES[name](scene, random.Random(seed))
    counts["races"] += 1
    counts[f"races: {name}: {became}"] += 1
    shutil.rmtree(folder.parent)


@pytest.mark.parametrize("name", RACES)
def test_race__once(name, scene, counts):
    hold(name, f"{name} once", scene, counts)


@pytest.mark.chaos
@pytest.mark.parametrize("name", RACES)
def test_race__often(name, scene, counts, rounds):
    for number in range(9 * rounds):
        hold(name, f"{name} {number}", scene, counts)
