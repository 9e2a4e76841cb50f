"""What the chaos tests share: how much of it, undisturbed runs to compare with, and the counts."""

import shutil
from collections import Counter

import pytest

from tests.chaos import evidence, recipes
from tests.chaos.command import cehm

COUNTS = Counter()


@pytest.fixture
def counts(request):
    """Counts by what was done and what became of it; printed at the end."""
    return COUNTS


@pytest.fixture
def rounds(request):
    """How many times as much as usual."""
    return request.config.getoption("--chaos-rounds")


@pytest.fixture
def round_numbers(request, rounds):
    """Numbers of the rounds; with ``--chaos-first`` others than those of a run before."""
    first = request.config.getoption("--chaos-first")
    return range(first, first + rounds)


class Undisturbed:
    """Recipes laid out and run once, with nothing in their way."""

    def __init__(self, folder):
        self.folder, self._known = folder, {}

    def __call__(self, name):
        """Where the inputs of a recipe lie, all that a run of it leaves, and the steps it takes."""
        if name not in self._known:
            place = self.folder / str(len(self._known)) / "inputs"
            recipes.lay_out(place, name)
            again = place.parent / "run"
            shutil.copytree(place, again)
            ended = cehm("run", "recipe.yaml", folder=again, watched=again / "out")
            assert ended.code == 0, ended.err
            self._known[name] = place, evidence.of_run(again / "out"), ended.steps
        return self._known[name]


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    return Undisturbed(tmp_path_factory.mktemp("undisturbed"))


def pytest_terminal_summary(terminalreporter):
    if COUNTS:
        terminalreporter.section("chaos")
        for what, count in sorted(COUNTS.items()):
            terminalreporter.write_line(f"{count:6d}  {what}")
