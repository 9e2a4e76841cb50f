"""Every snippet of the pages is run: Python and ``cehm`` commands in order, a folder per page; recipes are parsed.

A block under a comment ``<!-- not run: NAME -->`` is not run, for the reason that NOT_RUN gives; its commands and
Python must parse all the same.
"""

import shutil
import struct
import warnings

import click
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from cehm_dask import ClusterEnsemble, cli
from cehm_dask.pipeline.recipe import parse
from tests.conftest import cehm
from tests.docs.pages import PAGES, ROOT, Block, blocks, commands, inline_commands, name_of

NOT_RUN = {
    "slurm-queue": "needs SLURM; tests/clusters/test_slurm.py runs such commands",
    "running-scheduler": "needs a scheduler with certificates; tests/clusters/test_connect.py starts one",
    "comparisons": "takes minutes; tests/paper/test_compare.py runs smaller ones",
    "sketch": "part of a module; would change the package for the tests that follow",
    "experiments": "takes hours; tests/paper/test_reproduce.py runs a smaller one",
}
NEEDS = {"anndata.md": ["anndata"], "leiden.md": ["anndata", "scanpy", "igraph"]}
"""Pages about software that the other tests do without."""

PICTURES = {page.name: f"gallery-{page.stem}.png" for page in PAGES if page.parent.name == "gallery"}
"""What each page of the gallery ends with; the index has none."""

ENVIRONMENT = {"BUCKET": "bucket"}

pages_with = {
    language: pytest.mark.parametrize(
        "page", [page for page in PAGES if any(block.language in language for block in blocks(page))], ids=name_of
    )
    for language in (("python", "sh"), ("yaml",))
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """What the pages take as given: features, classes and base labels of iris in every form, a day's table."""
    folder = tmp_path_factory.mktemp("inputs")
    iris = load_iris()
    labels = ClusterEnsemble(3, members=10, random_state=0).fit(iris.data).base_labels_.astype(int)
    frame = pd.DataFrame(labels).rename(columns="member{}".format)
    names = [f"c{number}" for number in range(len(labels))]
    np.save(folder / "features.npy", iris.data)
    np.save(folder / "classes.npy", iris.target)
    np.save(folder / "labels.npy", labels)
    frame.to_parquet(folder / "labels.parquet")
    frame.to_csv(folder / "labels.csv", index=False)
    frame[:20].to_parquet(folder / "new-labels.parquet")
    pd.DataFrame({"name": names}).to_csv(folder / "people.csv", index=False)
    (folder / "data").mkdir()
    table = pd.DataFrame(iris.data, columns=list("abcd")).assign(customer=names)
    table.to_parquet(folder / "data" / "2026-11-16.parquet")
    shutil.copy(ROOT / "pipelines" / "daily.yaml", folder)
    shutil.copytree(ROOT / "cluster_configs", folder / "cluster_configs")
    return folder


def parses(words):
    """Read a command as click would, without running it; an unknown option or a missing argument is an error."""
    context = cli.main.make_context("cehm", list(words))
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def pixels(picture):
    """Width and height of a .png file."""
    return struct.unpack(">II", picture.read_bytes()[16:24])


def do(block, names):
    """Run one block; ``names`` are the variables of the page so far."""
    if block.language == "python":
        line = int(block.place.rpartition(":")[2])
        code = compile("\n" * (line - 1) + block.text, block.place, "exec")
        if block.not_run is None:
            exec(code, names)
    elif block.language == "sh":
        for words, target in commands(block.text):
            parses(words)
            if block.not_run is None:
                out, _ = cehm(*words)
                if target is not None:
                    with open(target, "w") as file:
                        file.write(out)


@pages_with["python", "sh"]
@pytest.mark.filterwarnings("ignore:constant columns dropped")  # of the digits: some pixels are never written on
def test_page__its_snippets_run(page, inputs, tmp_path, monkeypatch):
    for name in NEEDS.get(page.name, ()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries about one another
            pytest.importorskip(name, reason=f"needs {name}")
    folder = tmp_path / "folder"
    shutil.copytree(inputs, folder)
    monkeypatch.chdir(folder)
    names = {"__name__": "__main__"}
    for block in blocks(page):
        do(block, names)
    if page.name in PICTURES and page.parent.name == "gallery":
        made, kept = (folder_ / PICTURES[page.name] for folder_ in (folder, ROOT / "docs" / "images"))
        assert made.read_bytes().startswith(b"\x89PNG")
        assert kept.stat().st_size < 150_000
        assert pixels(made) == pixels(kept)


@pages_with["yaml",]
def test_page__its_recipes_parse(page):
    for block in blocks(page):
        if block.language == "yaml":
            parse(block.text, environment=ENVIRONMENT, name=block.place)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page__commands_in_its_text_exist(page):
    for words in inline_commands(page):
        command = cli.main
        options = {option for param in command.params for option in param.opts} | {"--help"}
        for word in words:
            if isinstance(command, click.Group) and word in command.commands:
                command = command.commands[word]
                options |= {option for param in command.params for option in param.opts}
            elif word.startswith("--"):
                assert word in options, f"{name_of(page)}: cehm {' '.join(words)}"
            elif command is cli.main and word.islower() and options.isdisjoint(words):
                pytest.fail(f"{name_of(page)}: cehm {' '.join(words)}: no such command")


def test_blocks__not_run_are_excluded_by_name_with_a_reason():
    excluded = {block.not_run for page in PAGES for block in blocks(page)} - {None}
    assert excluded == set(NOT_RUN)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("python", "from cehm_dask import NoSuchThing\n"),
        ("python", "assert 1 == 2\n"),
        ("sh", "cehm consensus gone.npy --k 3\n"),
        ("sh", "cehm plan --no-such-option\n"),
        ("sh", ".venv/bin/cehm no-such-command\n"),
    ],
)
def test_block__that_is_broken_fails(language, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((Exception, SystemExit)):
        do(Block("page.md:1", language, text, None), {})


def test_block__that_is_not_run_must_still_parse():
    do(Block("page.md:1", "sh", "cehm submit recipe.yaml --cluster slurm.yaml\n", "slurm-queue"), {})
    with pytest.raises(click.UsageError):
        do(Block("page.md:1", "sh", "cehm submit recipe.yaml --custer slurm.yaml\n", "slurm-queue"), {})
