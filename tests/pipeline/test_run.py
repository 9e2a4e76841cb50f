"""Runs: one directory, done once, resumed after a stop, made anew after a change, never over somebody's files."""

import datetime
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
import zarr
from sklearn.datasets import load_iris
from sklearn.metrics import normalized_mutual_info_score

from cehm_dask import CEHM, cli
from cehm_dask.clusters.connect import WORKER_BYTES
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.labels import as_labels
from cehm_dask.data.locks import Lock
from cehm_dask.data.seals import with_seal
from cehm_dask.data.synth import Synth
from cehm_dask.engine.budget import make_budget
from cehm_dask.errors import BudgetError, InputError, NotFoundError, StoreError
from cehm_dask.machine import cores, format_bytes, this_machine
from cehm_dask.pipeline import following
from cehm_dask.pipeline import run as pipeline_run
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.estimate import estimate
from cehm_dask.pipeline.inputs import require_import
from cehm_dask.pipeline.outputs import read_profile
from cehm_dask.pipeline.recipe import RecipeError, load, parse
from cehm_dask.pipeline.run import STEPS, run
from cehm_dask.report.picture import FIRST_ROWS
from cehm_dask.results import export
from tests.conftest import cehm

pytestmark = [
    pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning"),
    pytest.mark.filterwarnings("ignore:constant columns dropped"),
]

PIPELINES = Path(__file__).parents[2] / "pipelines"
COMMAND = Path(sys.executable).parent / "cehm"
RECIPE = """\
features: {path: iris.csv, id: flower}
scale: none
ensemble: {members: 8, k_max: 12}
consensus: {k: 3, restarts: 2}
truth: {column: species}
output: out
export: csv
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a table, a recipe, and the recipe run once."""
    folder = tmp_path_factory.mktemp("run")
    iris = load_iris(as_frame=True)
    frame = iris.data.assign(species=iris.target_names[iris.target])
    frame.insert(0, "flower", [f"{number:03}" for number in range(150)])
    frame.to_csv(folder / "iris.csv", index=False)
    (folder / "recipe.yaml").write_text(RECIPE)
    before = os.getcwd()
    os.chdir(folder)
    try:
        run(parse(RECIPE))
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    """The current folder: a copy of it, times of change included."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def again(*overrides, **options):
    """What became of the steps."""
    return run(parse(Path("recipe.yaml").read_text(), overrides), **options).steps


def labels_in(directory):
    return open_consensus(f"{directory}/consensus.zarr").array("labels")[:]


def stamps(directory):
    """Times of change of all that steps made."""
    kept = ("run.log", "run.json", "recipe.yaml", "writer.lock")
    return {p: p.stat().st_mtime_ns for p in Path(directory).rglob("*") if p.is_file() and p.name not in kept}


# --- what a run makes --------------------------------------------------------------------------------------------


def test_run__makes_all_that_it_promises(folder):
    names = {path.name for path in Path("out").iterdir()}
    assert {
        "recipe.yaml",
        "ensemble.zarr",
        "consensus.zarr",
        "labels.csv",
        "report.html",
        "profiles.json",
        "scores.json",
        "run.json",
        "run.log",
    } <= names
    state = json.loads(Path("out/run.json").read_text())
    assert all(step["state"] == "done" for step in state["steps"].values())
    assert parse(Path("out/recipe.yaml").read_text()).model_dump() == parse(RECIPE).model_dump()
    log = Path("out/run.log").read_text()
    for step in STEPS:
        assert f"{step}: " in log


def test_run__same_labels_as_the_two_commands(folder):
    pd.read_csv("iris.csv").drop(columns=["flower", "species"]).to_csv("plain.csv", index=False)
    cehm("generate", "plain.csv", "e.zarr", "--k", 3, "--k-max", 12, "--members", 8, "--scale", "none", "--quiet")
    cehm("consensus", "e.zarr", "--k", 3, "--restarts", 2, "-o", "c.zarr", "--quiet")
    np.testing.assert_array_equal(labels_in("out"), open_consensus("c.zarr").array("labels")[:])


def test_run__ids_and_classes_are_no_features(folder):
    frame = pd.read_csv("out/labels.csv", dtype={"flower": str})
    assert list(frame.columns) == ["flower", "label", "margin", "confidence"]
    assert frame["flower"].tolist() == [f"{number:03}" for number in range(150)]
    np.testing.assert_array_equal(frame["label"], labels_in("out"))


def test_run__brought_labels_in_every_form(folder):
    labels, truth = Synth(300, 6, n_classes=4, k_min=4, k_max=9).arrays()
    frame = pd.DataFrame(labels).rename(columns=str)
    np.save("labels.npy", labels)
    frame.assign(name=[f"n{i}" for i in range(300)], truth=truth).to_parquet("labels.parquet")
    Synth(300, 6, n_classes=4, k_min=4, k_max=9).write("e.zarr")
    base = "consensus: {k: 4}\n"
    wanted = CEHM(4, random_state=0).fit(labels).labels_
    for number, text in enumerate(
        ["labels: {path: labels.npy}", "labels: {path: labels.parquet, id: name}\ntruth: {column: truth}"]
    ):
        run(parse(f"{text}\n{base}output: run{number}\nexport: parquet\n"))
        np.testing.assert_array_equal(labels_in(f"run{number}"), wanted)
    table = pd.read_parquet("run1/labels.parquet")
    assert table["name"].tolist() == [f"n{i}" for i in range(300)]
    assert pd.read_parquet("run0/labels.parquet")["row"].tolist() == list(range(300))
    run(parse(f"labels: {{path: e.zarr}}\ntruth: {{path: e.zarr}}\n{base}output: in-place\n"))
    assert not Path("in-place/ensemble.zarr").exists()
    np.testing.assert_array_equal(labels_in("in-place"), wanted)
    scores = [
        json.loads(Path(f"{name}/scores.json").read_text()).get("scores") for name in ("run0", "run1", "in-place")
    ]
    assert scores[0] is None
    assert scores[1] == scores[2]


def test_run__several_k(folder):
    result = run(parse(RECIPE, ["consensus.k=2..4", "output=scan"]))
    assert [one["n_clusters"] for one in result.facts["scan"]] == [2, 3, 4]
    assert result.summary()["k"] in (2, 3, 4)


def test_run__k_auto(folder):
    result = run(parse(RECIPE, ["consensus.k=auto", "output=auto"]))
    assert len(result.facts["scan"]) == 1
    assert result.summary()["k"] == result.facts["choice"]["n_clusters"]
    assert "k: auto" in Path("auto/recipe.yaml").read_text()


def test_run__a_cluster_gives_the_same_labels(folder, two_processes):
    address = two_processes.scheduler.address
    steps = again(f"features={{path: {folder}/iris.csv, id: flower}}", "output=new", cluster=address)
    assert steps["consensus"] == steps["evaluate"] == "done"
    np.testing.assert_array_equal(labels_in("new"), labels_in("out"))


def test_run__until_a_step_and_then_the_rest(folder):
    assert again("output=new", until="ensemble") == {"ensemble": "done"}
    assert not Path("new/consensus.zarr").exists()
    assert again("output=new")["ensemble"] == "skipped"
    np.testing.assert_array_equal(labels_in("new"), labels_in("out"))
    with pytest.raises(ValueError, match="until='x': expected one of ensemble"):
        again(until="x")


# --- again -------------------------------------------------------------------------------------------------------


def test_again__does_nothing_and_says_so(folder):
    before = stamps("out")
    out, err = cehm("run", "recipe.yaml")
    assert "nothing to do: everything was done before" in out
    assert err.count("done before") >= 4
    assert stamps("out") == before
    assert "nothing to do" in Path("out/run.log").read_text()


def test_again__settings_of_the_consensus_leave_the_ensemble_alone(folder):
    before = {path: time for path, time in stamps("out").items() if "ensemble.zarr" in path.parts}
    steps = again("consensus.restarts=1")
    assert steps["ensemble"] == "skipped"
    assert steps["consensus"] == steps["export"] == steps["report"] == "done"
    assert {path: time for path, time in stamps("out").items() if "ensemble.zarr" in path.parts} == before
    assert open_consensus("out/consensus.zarr").facts["identity"]["restarts"] == 1
    assert "consensus: settings or data have changed, so it is recomputed" in Path("out/run.log").read_text()


@pytest.mark.parametrize("change", ["ensemble.seed=1", "scale=standard", "ensemble.members=9", "ensemble.k_max=11"])
def test_again__settings_of_the_ensemble_redo_everything(folder, change):
    steps = again(change)
    assert steps["ensemble"] == steps["consensus"] == steps["report"] == "done"
    assert again(change)["ensemble"] == "skipped"


def test_again__changed_data_redo_everything(folder):
    frame = pd.read_csv("iris.csv", dtype={"flower": str})
    frame.iloc[:140].to_csv("iris.csv", index=False)
    steps = again()
    assert steps["ensemble"] == steps["consensus"] == steps["export"] == "done"
    assert len(pd.read_csv("out/labels.csv")) == 140


def test_again__another_form_of_the_table_replaces_the_first(folder):
    steps = again("export=parquet")
    assert (steps["consensus"], steps["export"]) == ("skipped", "done")
    assert Path("out/labels.parquet").exists()
    assert not Path("out/labels.csv").exists()
    assert again("export=null")["export"] == "none"
    assert not Path("out/labels.parquet").exists()


@pytest.mark.parametrize(
    "gone", ["labels.csv", "report.html", "scores.json", "profiles.json", "consensus.zarr", "ensemble.zarr"]
)
def test_again__what_is_gone_is_made_anew_and_no_more(folder, gone):
    labels = labels_in("out")
    path = Path("out") / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    steps = again()
    assert [name for name, became in steps.items() if became == "done"] == [
        {"labels.csv": "export", "report.html": "report", "scores.json": "evaluate", "profiles.json": "profile"}.get(
            gone, gone.removesuffix(".zarr")
        )
    ]
    np.testing.assert_array_equal(labels_in("out"), labels)


def test_profile__by_the_features_with_ids(folder):
    found = read_profile("out", Directory("out").read())
    table = pd.read_csv("iris.csv", dtype={"flower": str})
    assert found.features == tuple(table.columns[1:5])
    labels = labels_in("out")
    for own in found.clusters:
        assert own["size"] == np.count_nonzero(labels == own["cluster"])
        for one in (*own["prototypes"], *own["borders"]):
            assert one["id"] == table["flower"][one["row"]]
            assert labels[one["row"]] == own["cluster"]
    said, _ = cehm("describe", "out")
    page = Path("out/report.html").read_text()
    for sentence in found.sentences:
        assert sentence in " ".join(said.split())
        assert sentence in page
    assert page.index('id="profiles"') < page.index('id="picture"')


def test_profile__of_brought_labels_by_a_table_beside_them(folder):
    np.save("labels.npy", Synth(150, 6, n_classes=3, k_min=3, k_max=6).arrays()[0])
    text = "labels: {path: labels.npy}\nconsensus: {k: 3}\noutput: own\n"
    assert run(parse(text)).steps["profile"] == "done"
    assert read_profile("own", Directory("own").read()).features == ()
    pd.read_csv("iris.csv").drop(columns="flower").to_csv("beside.csv", index=False)
    steps = run(parse(text + "profile: beside.csv\n")).steps
    assert [name for name, became in steps.items() if became == "done"] == ["profile", "report"]
    found = read_profile("own", Directory("own").read())
    assert len(found.features) == 4
    assert "species" in {one["feature"] for one in found.screen}
    with pytest.raises(NotFoundError):
        run(parse(text + "profile: gone.csv\n"))


def test_describe__of_a_run_that_ended_before_or_was_damaged(folder):
    Path("out/profiles.json").write_text("{}")
    _, err = cehm("describe", "out", code=2)
    assert "run it again" in err
    again("output=half", until="consensus")
    _, err = cehm("describe", "half", code=2)
    assert "has no profiles.json" in err


def test_again__overwrite_does_everything_anew(folder):
    steps = again(overwrite=True)
    assert {steps[name] for name in ("ensemble", "consensus", "export", "report")} == {"done"}


def test_again__note_lost_after_the_last_byte(folder):
    # As if the process had died between writing the store and noting it.
    state = json.loads(Path("out/run.json").read_text())
    state["steps"]["consensus"] |= {"state": "running"}
    del state["steps"]["consensus"]["outputs"]
    Path("out/run.json").write_text(json.dumps(with_seal(state)))
    before = stamps("out")
    assert again()["consensus"] == "skipped"
    assert stamps("out") == before


def test_again__old_result_of_other_settings_is_never_taken_for_the_new(folder, monkeypatch):
    class PowerCut(BaseException):
        pass

    def fit(*_, **__):
        monkeypatch.setattr(Directory, "write", lambda *_: None)  # nothing is noted after it
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr("cehm_dask.pipeline.run.find_consensus", fit)
        patch.setattr(Directory, "write", Directory.write)  # put back afterwards
        with pytest.raises(PowerCut):
            again("consensus.k=4")
    assert json.loads(Path("out/run.json").read_text())["steps"]["consensus"]["state"] == "running"
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert again("consensus.k=4")["consensus"] == "done"
    assert open_consensus("out/consensus.zarr").facts["n_clusters"] == 4


# --- what is refused ---------------------------------------------------------------------------------------------


def test_refused__a_folder_that_is_no_run_directory(folder):
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("years")
    for options in ((), ("--overwrite",)):
        _, err = cehm("run", "recipe.yaml", "--set", "output=mine", *options, code=2)
        assert "mine holds other things and is no run directory" in err
    assert [path.name for path in Path("mine").iterdir()] == ["thesis.txt"]
    _, err = cehm("run", "recipe.yaml", "--set", "output=recipe.yaml", code=2)
    assert "is a file" in err


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"format": "other", "version": 1}', "\x00"])
def test_refused__a_run_json_of_somebody_else(folder, content):
    Path("mine").mkdir()
    Path("mine/run.json").write_text(content)
    cehm("run", "recipe.yaml", "--set", "output=mine", code=2)
    assert Path("mine/run.json").read_text() == content


def test_refused__a_second_run_at_the_same_time(folder):
    lock = Lock("out")
    lock.take()
    try:
        _, err = cehm("run", "recipe.yaml", code=7)
    finally:
        lock.release()
    assert "is being written by another run" in err


def test_refused__column_that_is_not_there(folder):
    _, err = cehm("run", "recipe.yaml", "--set", "features.id=nome", "--set", "output=new", "--quiet", code=2)
    assert "iris.csv: no column 'nome'; there are flower" in err
    state = json.loads(Path("new/run.json").read_text())
    assert state["steps"]["ensemble"]["state"] == "failed"


# --- dates and environment ---------------------------------------------------------------------------------------


def test_date__one_directory_a_day_and_a_day_done_is_left_alone(folder):
    args = ("run", "recipe.yaml", "--set", "output=runs/{date}", "--json", "--quiet", "--date")
    first = json.loads(cehm(*args, "2026-11-15")[0])
    assert first["run"].endswith("runs/2026-11-15")
    assert first["steps"]["consensus"] == "done"
    assert json.loads(cehm(*args, "2026-11-15")[0])["steps"]["consensus"] == "skipped"
    assert json.loads(cehm(*args, "2026-11-16")[0])["steps"]["consensus"] == "done"
    assert sorted(path.name for path in Path("runs").iterdir()) == ["2026-11-15", "2026-11-16"]
    _, err = cehm(*args, "yesterday", code=2)
    assert "yesterday" in err


def test_environment__its_values_are_nowhere_in_the_run_directory(folder, monkeypatch):
    monkeypatch.setenv("PLACE", "s3cr3t-place")
    Path("s3cr3t-place").mkdir()
    for name in ("iris.csv",):
        shutil.copy(name, f"s3cr3t-place/{name}")
    run(parse(RECIPE, ["features.path=${PLACE}/iris.csv", "output=new"]))
    for path in Path("new").rglob("*"):
        assert not path.is_file() or b"s3cr3t" not in path.read_bytes(), path
    assert yaml.safe_load(Path("new/recipe.yaml").read_text())["features"]["path"] == "${PLACE}/iris.csv"
    assert open_ensemble("new/ensemble.zarr").source == "${PLACE}/iris.csv"


def test_environment__its_values_are_not_in_errors(folder, monkeypatch):
    monkeypatch.setenv("PLACE", "s3cr3t-place")
    _, err = cehm("run", "recipe.yaml", "--set", "features.path=${PLACE}/none.csv", code=2)
    assert "${PLACE}/none.csv: no such file" in err
    assert "s3cr3t" not in err


# --- the command -------------------------------------------------------------------------------------------------


def test_json__one_line_that_says_it_all(folder):
    out, _ = cehm("run", "recipe.yaml", "--json")
    assert out.count("\n") == 1
    said = json.loads(out)
    names = (
        "run labels report k agreement margin stability scores follows names moved new gone alerts sweeps seconds steps"
    )
    assert set(said) == set(names.split())
    assert said["run"] == str(folder / "out")
    assert Path(said["labels"]) == folder / "out/labels.csv"
    assert Path(said["report"]).is_file()
    assert said["k"] == 3
    assert said["agreement"] == open_consensus("out/consensus.zarr").facts["agreement"]
    wanted = normalized_mutual_info_score(load_iris().target, labels_in("out"), average_method="geometric")
    assert said["scores"]["nmi"] == pytest.approx(wanted)


def test_recipe__example_check_schema(folder):
    out, _ = cehm("recipe", "--example")
    Path("example.yaml").write_text(out)
    out, _ = cehm("recipe", "--check", "example.yaml", "--set", "consensus.k=2..3")
    assert yaml.safe_load(out)["consensus"]["k"] == [2, 3]
    assert json.loads(cehm("recipe", "--schema")[0])["title"] == "Recipe"
    _, err = cehm("recipe", code=2)
    assert "expected one of --schema, --example and --check FILE" in err
    _, err = cehm("recipe", "--check", "example.yaml", "--set", "consensus.kk=2", code=2)
    assert "did you mean 'k'?" in err


def test_run_directory__of_an_earlier_format_is_refused_as_such(folder):
    Path("old").mkdir()
    Path("old/run.json").write_text('{"format": "cehm run", "version": 1, "stages": {}}')
    with pytest.raises(StoreError, match=r"run\.json is 'cehm run', version 1; expected .* 2: choose another output"):
        again("output=old")


def test_until__knows_the_steps():
    assert cli.run.STEPS == STEPS


# --- the pipelines folder ----------------------------------------------------------------------------------------


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """The current folder, with small inputs of all kinds."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(600, 4)) + 6 * rng.integers(0, 2, (600, 4))
    np.save("features.npy", features)
    Synth(600, 8).write("ensemble.zarr")
    labels, _ = Synth(600, 8).arrays()
    names = [f"c{n}" for n in range(600)]
    pd.DataFrame(labels).rename(columns=str).assign(customer=names).to_parquet("labels.parquet")
    Path("data").mkdir()
    table = pd.DataFrame(features).rename(columns=str).assign(customer=names)
    table.to_parquet(f"data/{datetime.date.today()}.parquet")
    return tmp_path


SMALLER = {
    "demo": ["ensemble.members=5", "consensus.restarts=2"],
    "labels": [],
    "million": ["ensemble.members=5"],
    "cluster": ["cluster=null"],
    "scan": ["features.sklearn=iris", "consensus.k=2..4", "ensemble={members: 5, k_min: 5, k_max: 9}"],
    "daily": ["ensemble.members=5"],
}


@pytest.mark.parametrize("name", SMALLER)
def test_pipelines__run_at_reduced_size(inputs, name):
    result = run(load(PIPELINES / f"{name}.yaml", SMALLER[name]))
    assert result.steps["consensus"] == result.steps["report"] == "done"
    assert Path(result.report).is_file()
    if name in ("labels", "daily"):
        assert pd.read_parquet(result.labels)["customer"].tolist() == [f"c{n}" for n in range(600)]
    assert set(run(load(PIPELINES / f"{name}.yaml", SMALLER[name])).steps.values()) <= {"skipped", "none"}


def test_pipelines__all_are_run_by_a_test():
    assert {path.stem for path in PIPELINES.glob("*.yaml")} == {*SMALLER, "s3"}  # s3: tests/data/test_s3.py


# --- plan --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["features={path: iris.csv, id: flower}", "sklearn", "labels.npy", "e.zarr"])
def test_plan__says_what_will_be_done_and_writes_nothing(folder, source):
    labels, _ = Synth(300, 6, n_classes=4, k_min=4, k_max=9).arrays()
    np.save("labels.npy", labels)
    Synth(300, 6, n_classes=4, k_min=4, k_max=9).write("e.zarr")
    if source == "sklearn":
        Path("recipe.yaml").write_text("features: {sklearn: iris}\nconsensus: {k: 3}\noutput: new\n")
    elif not source.startswith("features"):
        Path("recipe.yaml").write_text(f"labels: {{path: {source}}}\nconsensus: {{k: 3}}\noutput: new\n")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    out, _ = cehm("plan", "recipe.yaml", "--set", "output=new")
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    for step in ("ensemble", "consensus", "profile", "evaluate", "report"):
        assert re.search(rf"^{step} ", out, re.MULTILINE)
    assert re.search(r"memory of consensus: .* allowed: this process .* intersections ", out)
    assert re.search(r"memory of report: .* allowed: this process .* code to be loaded ", out)
    assert ("memory of ensemble: " in out) == (source != "e.zarr")
    assert re.search(r"^about \d+ s in all", out, re.MULTILINE)


def test_import__memory_of_a_plain_array_is_that_of_its_shards(folder):
    zarr.create_array("plain.zarr", data=np.zeros((1 << 17, 4), np.int64), chunks=(1 << 15, 4), shards=(1 << 17, 4))
    np.save("plain.npy", np.zeros((1 << 17, 4), np.int64))
    machine = this_machine("4GiB")
    blocks = [require_import(name, [], machine)["labels of a block"] for name in ("plain.zarr", "plain.npy")]
    assert blocks == [64 * 4 << 17, 64 * 4 << 16]
    with pytest.raises(BudgetError, match=r"memory=1.00 MiB allowed < .* projected for base labels"):
        require_import("plain.npy", [], this_machine("1MiB"))


def test_plan__memory_and_sweeps_are_those_of_the_run(folder):
    expected = next(one for one in estimate(parse(RECIPE)).steps if one.step == "consensus")
    facts = open_consensus("out/consensus.zarr").facts
    ensemble = open_ensemble("out/ensemble.zarr")
    assert expected.read == ensemble.n_samples * len(ensemble.widths)
    # Adjustion takes as many rounds as it takes; the rest is known.
    assert facts["sweeps"] / 2 <= expected.sweeps <= 2 * facts["sweeps"]
    here = {name: size for name, size in expected.memory.items() if name != "this process"}
    how = {"allowed": 1 << 40, "threads": cores(), "returned": False, "diffuses": False}
    ran = make_budget(as_labels("out/ensemble.zarr").shape, [3], **how)
    assert here == {name: size for name, size in ran.terms.items() if name != "this process"}


def test_plan__starts_multiply_problems_only_where_no_candidates_compete(folder):
    def expected(*settings):
        recipe = parse(RECIPE, settings)
        return next(one for one in estimate(recipe).steps if one.step == "consensus")

    auto, released = expected(), expected("consensus.variant=released")
    assert "candidates compete on 150 of them, then one runs over all" in auto.what
    assert "2 problems side by side" in released.what
    assert sum(auto.memory.values()) < sum(released.memory.values())
    assert auto.sweeps < released.sweeps  # no diffusion
    several = expected("consensus.k=2..4")
    assert "then 3 problems side by side" in several.what


def test_plan__memory_of_scores_table_and_page_is_that_of_the_run(folder, caplog):
    def told(terms):
        return ", ".join(f"{name} {format_bytes(size)}" for name, size in list(terms.items())[1:] if size)

    planned = {one.step: told(one.memory) for one in estimate(parse(RECIPE)).steps}
    caplog.set_level(logging.INFO, "cehm_dask.machine")
    caplog.clear()
    again(overwrite=True)
    found = (re.match(r"memory of (.*): .* allowed: this process [^,]*, (.*)", one) for one in caplog.messages)
    ran = dict(one.groups() for one in found if one)
    assert ran["profiles"] == planned["profile"]
    assert ran["scores"] == planned["evaluate"]
    assert ran["labels.csv"] == planned["export"]
    assert planned["report"] in (ran["the report"], ran["the picture of the features"])


def test_plan__refuses_what_does_not_fit(folder):
    _, err = cehm("plan", "recipe.yaml", "--set", "memory=1MiB", code=3)
    assert re.search(r"memory=1.00 MiB allowed < .* projected", err)


def test_plan__of_a_cluster_is_about_its_workers(folder):
    def plan(*settings, code=0):
        return cehm("plan", "recipe.yaml", "--set", "cluster=two.yaml", *settings, code=code)

    Path("two.yaml").write_text("kind: processes\nworkers: 3\nthreads: 1\nmemory: 2GiB\n")
    out, _ = plan()
    assert re.search(r"memory of consensus: .* of 1.20 GiB allowed: this process 300.00 MiB", out)
    assert "with 3 worker(s) of 1 thread(s), each as fast as one here" in out
    # A .csv stays with this process, which may take another amount.
    assert re.search(r"memory of ensemble: .* of (?!1.20 GiB)[0-9.]+ GiB allowed", out)
    shape = as_labels("out/ensemble.zarr").shape
    size = {"allowed": 1 << 30, "taken": WORKER_BYTES, "workers": 3, "threads": 1, "returned": False, "diffuses": False}
    wanted = make_budget(shape, [3], **size)
    recipe = parse(RECIPE).model_copy(update={"cluster": "two.yaml"})
    assert next(one for one in estimate(recipe).steps if one.step == "consensus").memory == wanted.terms
    assert "of 9.00 GiB allowed" in plan("--set", "memory=9GiB")[0]
    Path("two.yaml").write_text("kind: processes\nworkers: 3\nmemory: 350MiB\n")
    assert re.search(r"memory=210.00 MiB allowed < .* projected", plan(code=3)[1])
    Path("two.yaml").write_text("kind: address\naddress: tcp://127.0.0.1:1\nworkers: 4\n")  # nobody is asked
    assert f"with 4 worker(s) of {cores()} thread(s)" in plan()[0]


# --- export ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("ids", [["007", "8", "x"], [10, 2**59, -3], ["a,b", '"', ""], ["NA", "null", "1e5"]])
def test_export__ids_come_out_as_they_went_in(tmp_path, monkeypatch, suffix, ids):
    monkeypatch.setattr(export, "BLOCK_ROWS", 2)
    source = tmp_path / f"in{suffix}"
    frame = pd.DataFrame({"name": ids, "x": [1.0, 2.0, 3.0]})
    frame.to_csv(source, index=False) if suffix == ".csv" else frame.to_parquet(source)
    labels, margin = np.array([2, 0, 1], np.int16), np.array([0.5, 0.25, 1.0], np.float32)
    for out in (tmp_path / "out.csv", tmp_path / "out.parquet"):
        export.write(out, labels, margin, margin, export.column_ids(str(source), "name"))
        if out.suffix == ".csv":
            table = pd.read_csv(out, dtype={"name": str}, keep_default_na=False)
            assert table["name"].tolist() == [str(one) for one in ids]
        else:
            table = pd.read_parquet(out)
            assert table["name"].tolist() == ids
        assert table["label"].tolist() == [2, 0, 1]
        assert table["margin"].tolist() == [0.5, 0.25, 1.0]


@pytest.mark.parametrize("name", ["label", "margin"])
def test_export__ids_named_like_a_result_get_another_name(tmp_path, name):
    pd.DataFrame({name: ["a", "b"]}).to_parquet(tmp_path / "in.parquet")
    ids = export.column_ids(str(tmp_path / "in.parquet"), name)
    for out in (tmp_path / "out.csv", tmp_path / "out.parquet"):
        export.write(out, np.array([1, 0], np.int16), np.zeros(2), np.zeros(2), ids)
        table = pd.read_csv(out) if out.suffix == ".csv" else pd.read_parquet(out)
        assert list(table.columns) == [f"{name}_id", "label", "margin", "confidence"]
        assert table[f"{name}_id"].tolist() == ["a", "b"]


def test_export__fewer_ids_than_rows_are_refused_and_nothing_is_left(tmp_path):
    pd.DataFrame({"name": [1, 2]}).to_parquet(tmp_path / "in.parquet")
    ids = export.column_ids(str(tmp_path / "in.parquet"), "name")
    with pytest.raises(ValueError, match="column name names 2 rows, the result has 3"):
        export.write(tmp_path / "out.csv", np.zeros(3, np.int16), np.zeros(3), np.zeros(3), ids)
    assert [path.name for path in tmp_path.iterdir()] == ["in.parquet"]


# --- as people start it: exit codes ------------------------------------------------------------------------------


def started(*args, **options):
    return subprocess.run(
        [COMMAND, *map(str, args)], capture_output=True, text=True, check=False, timeout=240, **options
    )


def test_process__done_is_0_and_logs_lines_of_json(folder):
    done = started("--log-format", "json", "run", "recipe.yaml", "--set", "output=new", "--json")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stderr
    np.testing.assert_array_equal(labels_in("new"), labels_in("out"))
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    assert next(line["step"] for line in lines if "done in" in line["message"]) == "ensemble"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_process__completion(shell):
    environment = {**os.environ, "_CEHM_COMPLETE": f"{shell}_source"}
    assert "_CEHM_COMPLETE" in started(env=environment).stdout


def test_process__bad_recipe_is_2(folder):
    done = started("run", "recipe.yaml", "--set", "consensus.restart=1")
    assert done.returncode == 2
    assert done.stderr == "error: --set consensus.restart=1: consensus.restart: unknown key; did you mean 'restarts'?\n"
    done = started("--log-format", "json", "run", "none.yaml")
    assert done.returncode == 2
    assert json.loads(done.stderr)["message"] == "recipe none.yaml: no such file"


def test_process__does_not_fit_is_3(folder):
    done = started("run", "recipe.yaml", "--set", "memory=1MiB", "--set", "output=new", "--quiet")
    assert done.returncode == 3
    assert "memory=1.00 MiB allowed < " in done.stderr
    assert not Path("new/ensemble.zarr").exists()


def test_refused__a_consensus_that_will_not_fit_before_its_members_are_made(folder, monkeypatch):
    monkeypatch.setattr("cehm_dask.pipeline.run.generate", lambda *_, **__: pytest.fail("it began to work"))
    many = ["--set", "consensus={k: 2..12, restarts: 20000, variant: released}", "--set", "memory=2GiB"]
    _, err = cehm("run", "recipe.yaml", "--set", "output=new", *many, code=3)
    assert "memory=2.00 GiB allowed < " in err


def test_process__terminated_is_4_and_goes_on_to_the_same_labels(folder):  # Ctrl-C: tests/cli/test_cli.py
    Synth(200_000, 10, follow=0.3).write("e.zarr")
    Path("large.yaml").write_text("labels: {path: e.zarr}\nconsensus: {k: 10, restarts: 2}\noutput: large\n")
    with subprocess.Popen([COMMAND, "run", "large.yaml"], stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "round 2," in line:
                process.send_signal(signal.SIGTERM)
                break
        _, err = process.communicate(timeout=120)
    assert process.returncode == 4
    assert err.splitlines()[-1] == "interrupted; the same command resumes from here"
    assert json.loads(Path("large/run.json").read_text())["steps"]["consensus"]["state"] == "interrupted"
    _, err = cehm("run", "large.yaml")
    assert "round 1," not in err
    assert "consensus: resumes where it stopped (interrupted)" in Path("large/run.log").read_text()
    whole = CEHM(10, restarts=2, random_state=0).fit("e.zarr", output="whole.zarr")
    np.testing.assert_array_equal(labels_in("large"), whole.labels_[:])


def test_process__no_cluster_is_5(folder):
    Path("away.yaml").write_text("kind: address\naddress: tcp://127.0.0.1:9\nwait_seconds: 1\n")
    done = started("run", "recipe.yaml", "--set", "consensus.seed=9", "--cluster", "away.yaml", "--quiet")
    assert done.returncode == 5, done.stderr
    assert "tcp://127.0.0.1:9" in done.stderr
    assert json.loads(Path("out/run.json").read_text())["steps"]["consensus"]["state"] == "failed"


def test_features__are_read_four_times(tmp_path, monkeypatch):
    """For statistics and the sample; for the labels; for profiles and picture, after a few rows to count from."""
    n, read = 3000, []
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(n, 4)))
    opened = pipeline_run.open_features

    def counted(recipe):
        features = opened(recipe)
        return replace(features, read=lambda a, b: read.append(b - a) or features.read(a, b))

    for module in (pipeline_run, following):
        monkeypatch.setattr(module, "open_features", counted)
    monkeypatch.chdir(tmp_path)
    run(parse("features: {path: x.npy}\nensemble: {members: 4}\nconsensus: {k: 3}\noutput: out\n"))
    assert sum(read) == 4 * n + 2 * FIRST_ROWS


def test_grow_from__a_run_starts_from_an_earlier_consensus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((600, 6)) < 0.7, rng.integers(0, 3, (600, 1)), rng.integers(0, 4, (600, 6)))
    np.save("monday.npy", labels[:500])
    np.save("tuesday.npy", labels)
    recipe = "labels: {path: DAY.npy}\nconsensus: {k: 3}\noutput: runs/DAY"
    run(parse(recipe.replace("DAY", "monday")), until="consensus")
    grows = recipe.replace("DAY", "tuesday").replace("k: 3", "k: 3, grow_from: runs/monday/consensus.zarr")
    run(parse(grows), until="consensus")
    grown = CEHM(3).fit(labels, grow_from="runs/monday/consensus.zarr")
    np.testing.assert_array_equal(open_consensus("runs/tuesday/consensus.zarr").array("labels")[:], grown.labels_)
    assert run(parse(grows), until="consensus").steps["consensus"] == "skipped"
    with pytest.raises(InputError, match="n_clusters=4: the consensus it grows from has 3"):
        run(parse(grows.replace("k: 3", "k: 4")), until="consensus")
    with pytest.raises(RecipeError, match="grow_from: needs 'labels'"):
        parse("features: {path: x.npy}\nconsensus: {k: 3, grow_from: c.zarr}\noutput: run")
