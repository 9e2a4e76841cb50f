"""Completion in a shell: values and files are offered, and the values are those of the package."""

import pytest
from click.shell_completion import ShellComplete

from cehm_dask import cli
from cehm_dask.cli import completion
from cehm_dask.data import preparation, scaling, transformer
from cehm_dask.members import fit


def offered(words, begun=""):
    """What a shell offers next, as (type, value) pairs."""
    found = ShellComplete(cli.main, {}, "cehm", "_CEHM_COMPLETE").get_completions(words, begun)
    return [(item.type, item.value) for item in found]


def test_completion__values_are_those_of_the_package():
    known = {
        "generate --base": fit.BASES,
        "generate --scale": (*scaling.SCALES, *transformer.CURVES),
        "generate --impute": [name for name in scaling.IMPUTES if name],
        "generate --categories": preparation.CATEGORIES,
        "generate --dates": preparation.DATES,
        "consensus --choose": ["agreement", "loss"],
        "reproduce --scale": ["standard", "minmax", "both"],
    }
    assert {name: sorted(values) for name, values in completion.VALUES.items()} == {
        name: sorted(values) for name, values in known.items()
    }
    for place, values in completion.VALUES.items():
        command, option = place.split()
        assert offered([command, option]) == [("plain", value) for value in values]


@pytest.mark.parametrize(
    ("words", "begun", "wanted"),
    [
        (["generate", "x.csv", "e.zarr", "--scale"], "r", [("plain", "robust"), ("plain", "rank")]),
        (["consensus", "labels.csv", "--variant"], "c", [("plain", "cosine")]),
        (["run", "r.yaml", "--until"], "pro", [("plain", "profile")]),
        (["consensus"], "lab", [("file", "lab")]),
        (["import"], "runs/", [("file", "runs/")]),
        (["cluster", "check"], "", [("file", "")]),
        (["run", "r.yaml", "--cluster"], "clus", [("file", "clus")]),
        (["generate", "x.csv", "e.zarr", "--id"], "c", []),
    ],
)
def test_completion__offers(words, begun, wanted):
    assert offered(words, begun) == wanted
