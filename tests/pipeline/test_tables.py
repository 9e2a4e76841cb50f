"""An ordinary table, from a .parquet file to a report: by one recipe, by a few lines of Python, and by the command."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.pipeline.recipe import RecipeError, parse
from cehm_dask.pipeline.run import run
from cehm_dask.report import write_report
from cehm_dask.results.describing import describe
from tests.conftest import cehm
from tests.data.mixed import customers

RECIPE = """
features: {path: customers.parquet, id: customer, categories: one-hot, dates: days, impute: median}
scale: quantile
ensemble: {members: 10}
consensus: {k: 4}
truth: {column: segment}
output: run
export: csv
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_described(report):
    """Every segment has a sentence with the columns that set it apart."""
    page = " ".join(re.sub("<[^>]+>", " ", Path(report).read_text()).split())
    for cluster in range(4):
        assert re.search(rf"Cluster {cluster}: [\d,]+ samples \(\d+ %\), .{{0,40}}; (higher|lower|more) [a-z_]+", page)


@pytest.mark.parametrize("n_rows", [4000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_table__to_a_report_by_recipe_and_by_python(folder, n_rows):
    table = customers(n_rows)
    assert table.shape[1] == 16
    table.to_parquet("customers.parquet")
    found = run(parse(RECIPE))
    assert found.scores["scores"]["ari"] > 0.3
    profiles = (folder / "run" / "profiles.json").read_text()
    assert_described("run/report.html")
    for name in ("amount_4", "plan=pro", "visits", "since", "spent"):
        assert f'"{name}"' in profiles
    labels = pd.read_csv("run/labels.csv")
    assert labels["customer"].tolist() == table["customer"].tolist()

    columns = {"id": "customer", "drop": "segment", "categories": "one-hot", "dates": "days"}
    model = ClusterEnsemble(4, members=10, scale="quantile", impute="median", random_state=0, **columns)
    model.fit("customers.parquet", output="ensemble.zarr")
    CEHM(4, random_state=0).fit("ensemble.zarr", output="consensus.zarr")
    who = describe("consensus.zarr", "customers.parquet", leave_out=["customer", "segment"])
    write_report("consensus.zarr", "report.html", ensemble="ensemble.zarr", profile=who)
    assert_described("report.html")
    assert adjusted_rand_score(table["segment"], model.labels_) > 0.3
    np.testing.assert_array_equal(model.predict(table[table.columns[::-1]]), model.labels_)


def test_recipe__refusals_speak_of_its_keys(folder):
    customers(100).to_parquet("customers.parquet")
    with pytest.raises(TypeError, match=r"'since' holds .*dates: days counts days, drop: \[since, seen\]"):
        run(parse(RECIPE.replace("dates: days, ", "")))
    with pytest.raises(ValueError, match=r"column amount_1.*replace such values by impute: mean"):
        run(parse(RECIPE.replace(", impute: median", "")))
    with pytest.raises(RecipeError, match=r"features\.drop: only the tables"):
        parse(RECIPE.replace("customers.parquet", "x.npy").replace("id: customer", "drop: a").replace("column", "path"))


@pytest.mark.filterwarnings("always::cehm_dask.data.preparation.FeatureWarning")
def test_generate__options_of_tables(folder):
    table = customers(300)
    table.to_csv("customers.csv.gz", index=False)
    options = ("--id", "customer", "--drop", "segment", "--impute", "most_frequent", "--scale", "rank")
    _, said = cehm("generate", "customers.csv.gz", "e.zarr", "--k", 4, *options, "--members", 3, code=2)
    assert "--dates days counts days, --drop since --drop seen" in said
    _, said = cehm("generate", "customers.csv.gz", "e.zarr", "--k", 4, *options, "--dates", "days", "--members", 3)
    assert "one column of 0 and 1 for each value of plan (4 values)" in " ".join(said.split())
    assert open_ensemble("e.zarr").n_samples == 300


def test_import__several_files_matched_by_id(folder):
    pd.DataFrame({"CellID": ["a", "b", "c", "d"], "cluster": [10, 9, 9, 10], "umi": 5}).to_csv("one.csv", index=False)
    pd.DataFrame({"CellID": ["d", "c", "e"], "cluster": ["x", None, "y"]}).to_csv("two.csv", index=False)
    pd.DataFrame({"CellID": ["e", "a"], "cluster": [1.0, np.nan]}).to_parquet("three.parquet")
    files = ("one.csv", "two.csv", "three.parquet")
    cehm("import", *files, "--id", "CellID", "--label", "cluster", "e.zarr", "--quiet")
    ensemble = open_ensemble("e.zarr")
    assert ensemble.names == ("one", "two", "three")
    assert ensemble.read(0, 5).tolist() == [[2, 0, 0], [1, 0, 0], [1, 0, 0], [2, 1, 0], [0, 2, 1]]
    _, said = cehm("import", *files, "f.zarr", code=2)
    assert "3 files: rows are matched by name, so say which column names them (--id NAME)" in said
    _, said = cehm("import", *files, "--id", "CellID", "f.zarr", code=2)
    assert "one.csv: which of the columns cluster, umi holds the labels? name it (--label NAME)" in said


def test_consensus__without_output_says_that_nothing_was_kept(folder):
    pd.DataFrame({"a": [0, 0, 1, 1] * 5, "b": [0, 1, 1, 1] * 5}).to_csv("labels.csv", index=False)
    _, said = cehm("consensus", "labels.csv", "--k", 2)
    assert "nothing was kept: name an output with -o" in said


def test_compare__features_without_ensembles(folder):
    customers(30)[["amount_0", "spent"]].to_csv("wine.csv", index=False)
    _, said = cehm("compare", "wine.csv", "--k", 3, code=2)
    assert "wine.csv holds features, say how many ensembles to draw: --ensembles 30" in said


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("empty.csv", b"", "empty.csv is empty (0 bytes): expected a line of names"),
        ("empty.npy", b"", "empty.npy"),
        ("empty.parquet", b"", "empty.parquet: no Parquet file, or a damaged one"),
        ("empty.feather", b"", "empty.feather: no Arrow file, or a damaged one"),
        ("bare.csv", b"1,2\n3,4\n", "put a line of names before the rows"),
        ("wide.csv", "x,y\n1,2\n".encode("utf-16"), "wide.csv is UTF-16 text: save it as UTF-8"),
        ("ragged.csv", b"x,y\n1,2\n3\n", "ragged.csv: line 3 has 1 cells where the line of names has 2"),
        ("packed.csv.gz", b"x,y\n1,2\n", "packed.csv.gz: not compressed with gzip"),
        ("folder.csv", None, "folder.csv is a folder"),
        ("folder", None, "folder: the folder holds no .parquet file"),
    ],
)
def test_files__that_cannot_be_read_are_named_with_the_remedy(folder, name, content, said):
    (folder / name).mkdir() if content is None else (folder / name).write_bytes(content)
    for command in (("generate", name, "e.zarr", "--k", 2), ("consensus", name, "--k", 2)):
        _, told = cehm(*command, code=2)
        assert said in told
        assert "Traceback" not in told
