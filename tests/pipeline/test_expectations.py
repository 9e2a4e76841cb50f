"""What a recipe expects of its input: refused before any work, with the column and the numbers."""

import numpy as np
import pandas as pd
import pytest

from cehm_dask.data.ingest import ingest
from cehm_dask.errors import InputError
from cehm_dask.pipeline import expectations
from cehm_dask.pipeline.recipe import RecipeError, parse
from cehm_dask.pipeline.run import run
from tests.conftest import cehm
from tests.data.mixed import customers

RECIPE = """
features: {{path: {path}, id: customer, drop: segment, categories: one-hot, dates: days, impute: median}}
scale: log
ensemble: {{members: 4}}
consensus: {{k: 3}}
expect: {expect}
output: run
"""

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = customers(400)
    table.loc[:9, "spent"] = np.nan
    table.to_parquet("day.parquet")
    table.to_csv("day.csv", index=False)
    return tmp_path


@pytest.mark.parametrize("path", ["day.parquet", "day.csv"])
@pytest.mark.parametrize(
    ("expect", "said"),
    [
        (
            "{columns: [plan, colour, taste]}",
            r"expect.columns: day.* has no column 'colour', 'taste'; there are",
        ),
        ("{rows: 1000}", "expect.rows: day.* has 400 rows, expected at least 1,000"),
        ("{missing: 0.01}", r"column 'spent' of day.* lacks 10 of 400 values \(2.5%\), expected at most 1.0%"),
        (
            "{missing: 0}",
            r"column 'amount_1' of day.*; expect.missing: column 'visits' of .*'spent'",
        ),
    ],
)
def test_expect__refused_before_any_work(folder, path, expect, said):
    recipe = parse(RECIPE.format(path=path, expect=expect))
    with pytest.raises(InputError, match=said):
        run(recipe)
    assert not (folder / "run" / "ensemble.zarr").exists()
    (folder / "recipe.yaml").write_text(RECIPE.format(path=path, expect=expect))
    _, told = cehm("plan", "recipe.yaml", code=2)
    assert "expect." in told


@pytest.mark.parametrize("path", ["day.parquet", "day.csv"])
def test_expect__met_and_looked_at_once(folder, path, monkeypatch):
    recipe = parse(RECIPE.format(path=path, expect="{columns: [customer, plan], rows: 400, missing: 0.2}"))
    run(recipe, until="ensemble")
    looks = []
    monkeypatch.setattr(expectations, "_input", lambda *given, **how: looks.append(given))
    assert run(recipe, until="ensemble").steps == {"ensemble": "skipped"}
    assert looks == []


def test_expect__refused_then_corrected(folder):
    with pytest.raises(InputError, match="expected at least 500"):
        run(parse(RECIPE.format(path="day.parquet", expect="{rows: 500}")), until="ensemble")
    customers(500).to_parquet("day.parquet")
    assert run(parse(RECIPE.format(path="day.parquet", expect="{rows: 500}")), until="ensemble").steps


def test_expect__of_base_labels_in_any_form(folder):
    labels = np.random.default_rng(0).integers(0, 3, (40, 4))
    labels[:8, 2] = -1
    np.save("labels.npy", labels)
    frame = pd.DataFrame(labels).rename(columns="m{}".format)
    frame.to_csv("labels.csv", index=False)
    frame.astype("Int64").mask(frame < 0).to_parquet("labels.parquet")
    ingest(labels, "labels.zarr")
    for path, name in (("labels.npy", "2"), ("labels.csv", "m2"), ("labels.parquet", "m2"), ("labels.zarr", "2")):
        recipe = (
            f"labels: {{path: {path}}}\nconsensus: {{k: 2}}\noutput: run-{path}\nexpect: {{missing: 0.15, rows: 40}}"
        )
        with pytest.raises(InputError, match=f"column '{name}' of {path} lacks 8 of 40 values"):
            run(parse(recipe))
        run(parse(recipe.replace("0.15", "0.2")), until="consensus")


def test_expect__of_an_array(folder):
    points = np.random.default_rng(0).normal(size=(50, 3))
    points[:5, 1] = np.nan
    np.save("x.npy", points)
    recipe = "features: {path: x.npy, impute: mean}\nconsensus: {k: 2}\noutput: run\nexpect: "
    with pytest.raises(InputError, match=r"column '1' of .*x.npy lacks 5 of 50"):
        run(parse(recipe + "{missing: 0.05}"))
    with pytest.raises(RecipeError, match=r"expect\.columns: only the tables"):
        parse(recipe + "{columns: [a]}")
    for wrong in ("{missing: 1.5}", "{rows: 0}", "{colour: red}", "{missing: true}"):
        with pytest.raises(RecipeError, match="expect"):
            parse(recipe + wrong)
