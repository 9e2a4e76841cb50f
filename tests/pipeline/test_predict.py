"""Yesterday's run on today's rows: its own labels for its own rows, bit for bit, and refusals before any work."""

import shutil

import numpy as np
import pandas as pd
import pytest

from cehm_dask import ClusterEnsemble
from cehm_dask.data import features as features_module
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.names import NameWarning
from cehm_dask.data.preparation import FeatureWarning
from cehm_dask.errors import InputError, InputTypeError, StoreError
from cehm_dask.pipeline.recipe import parse
from cehm_dask.pipeline.run import run
from cehm_dask.results.prediction import predict
from tests.conftest import cehm, edit_facts
from tests.data.mixed import customers

RECIPE = """
features: {path: yesterday.parquet, id: customer, categories: one-hot, dates: days, impute: median}
scale: quantile
ensemble: {members: 7, base: [kmeans, mixture, birch], subspace: 0.7}
consensus: {k: 4}
truth: {column: segment}
output: run
export: parquet
"""

pytestmark = pytest.mark.filterwarnings("ignore:Number of subclusters", "ignore::cehm_dask.ConsensusWarning")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with the table of yesterday and the run of it."""
    folder = tmp_path_factory.mktemp("yesterday")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        customers(1500).to_parquet("yesterday.parquet")
        run(parse(RECIPE))
    return folder


@pytest.fixture
def folder(finished, monkeypatch):
    monkeypatch.chdir(finished)
    return finished


def test_predict__own_rows_have_the_labels_of_the_run_bit_for_bit(folder, tmp_path):
    own = pd.read_parquet("run/labels.parquet")
    cehm("predict", "run", "yesterday.parquet", "-o", tmp_path / "again.parquet", "--quiet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "again.parquet"), own, check_exact=True)
    shuffled = pd.read_parquet("yesterday.parquet").sample(frac=1, random_state=0).iloc[:, ::-1]
    shuffled.to_parquet(tmp_path / "shuffled.parquet")
    predict("run", tmp_path / "shuffled.parquet", tmp_path / "shuffled-labels.parquet")
    found = pd.read_parquet(tmp_path / "shuffled-labels.parquet").set_index("customer").loc[own["customer"]]
    assert found["label"].tolist() == own["label"].tolist()


@pytest.mark.parametrize("scale", ["none", "robust", "rank"])
@pytest.mark.parametrize("base", ["kmeans", "minibatch", "mixture", "birch", "dask-ml"])
def test_predict__every_kind_of_member_and_scaling(tmp_path, monkeypatch, base, scale):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(700, 4)) + 3 * rng.integers(0, 3, (700, 1)))
    recipe = f"ensemble: {{members: 3, base: {base}, projection: 3}}\nscale: {scale}\nconsensus: {{k: 3}}\noutput: run"
    run(parse("features: {path: x.npy}\n" + recipe), until="consensus")
    stored = open_consensus("run/consensus.zarr")
    blocks = ClusterEnsemble.load("run").predict_blocks("x.npy")
    for name, found in zip(("labels", "margin", "confidence"), next(blocks), strict=True):
        wanted = stored.array(name)[:]
        np.testing.assert_array_equal(found.astype(wanted.dtype), wanted)
    cehm("verify", "run")


def test_predict__in_any_blocks(folder, monkeypatch):
    def predicted():
        blocks = ClusterEnsemble.load("run").predict_blocks("yesterday.parquet")
        return [np.concatenate(parts) for parts in zip(*blocks, strict=True)]

    whole = predicted()
    monkeypatch.setattr(features_module, "BLOCK_ROWS", 97)
    for one, other in zip(whole, predicted(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_predict__new_columns_are_ignored_aloud_and_lost_ones_refused(folder, tmp_path):
    today = pd.read_parquet("yesterday.parquet")[:50]
    today.assign(colour="red").to_parquet(tmp_path / "more.parquet")
    with pytest.warns(NameWarning, match="not fitted are ignored: colour"):
        predict("run", tmp_path / "more.parquet", tmp_path / "more.csv")
    today.drop(columns=["visits"]).to_parquet(tmp_path / "fewer.parquet")
    with pytest.raises(InputError, match="lacks features that were fitted: visits"):
        predict("run", tmp_path / "fewer.parquet", tmp_path / "fewer.csv")
    assert not (tmp_path / "fewer.csv").exists()


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("visits", "many", r"'visits' holds (large_)?string, it was fitted as number \(.*\)"),
        ("plan", 3, r"'plan' holds int64, it was fitted as one-hot \((large_)?string\)"),
        ("since", 3.5, r"'since' holds double, it was fitted as date \(timestamp"),
        ("spent", pd.Timestamp("2026-01-01"), r"'spent' holds timestamp\[.*\], it was fitted as number \(double\)"),
    ],
)
def test_predict__another_type_is_refused_with_both(folder, tmp_path, column, value, said):
    today = pd.read_parquet("yesterday.parquet")[:50].assign(**{column: value})
    for name in ("today.parquet", "today.csv"):
        today.to_parquet(tmp_path / name) if name.endswith("t") else today.to_csv(tmp_path / name, index=False)
        with pytest.raises(InputTypeError, match=said.replace("int64", "(int64|double)")):
            predict("run", tmp_path / name, tmp_path / "out.csv")


def test_predict__whole_numbers_for_fractions_are_numbers(folder, tmp_path):
    today = pd.read_parquet("yesterday.parquet")[:50]
    today.assign(spent=today["spent"].round().fillna(0).astype(int)).to_parquet(tmp_path / "today.parquet")
    assert predict("run", tmp_path / "today.parquet", tmp_path / "out.csv") == 50


def test_predict__unseen_categories_are_counted(folder, tmp_path):
    today = pd.read_parquet("yesterday.parquet")[:50]
    plans = today["plan"].astype(object)
    plans.iloc[:7], plans.iloc[7] = "platinum", None
    today.assign(plan=plans).to_parquet(tmp_path / "today.parquet")
    with pytest.warns(FeatureWarning, match="not there at the fit: plan in 7 rows;"):
        predict("run", tmp_path / "today.parquet", tmp_path / "out.csv")


def test_predict__ids(folder, tmp_path):
    today = pd.read_parquet("yesterday.parquet")[:50]
    today.rename(columns={"customer": "number"}).to_parquet(tmp_path / "today.parquet")
    with pytest.warns() as said:
        predict("run", tmp_path / "today.parquet", tmp_path / "numbered.csv")
    assert any("no column 'customer'" in str(one.message) for one in said)
    assert pd.read_csv(tmp_path / "numbered.csv").columns[0] == "row"
    predict("run", tmp_path / "today.parquet", tmp_path / "named.csv", id="number")
    assert pd.read_csv(tmp_path / "named.csv")["number"].tolist() == today["customer"].tolist()
    with pytest.raises(InputError, match="no column 'nobody'"):
        predict("run", tmp_path / "today.parquet", tmp_path / "none.csv", id="nobody")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    with pytest.raises(InputError, match="has no columns with names"):
        predict("run", tmp_path / "x.npy", tmp_path / "none.csv", id="number")


def test_predict__memory_binds(folder, tmp_path):
    _, said = cehm("predict", "run", "yesterday.parquet", "-o", tmp_path / "o.csv", "--memory", "10MiB", code=3)
    assert "new rows" in said


def test_predict__of_a_run_that_began_with_base_labels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = pd.DataFrame(np.where(rng.random((90, 4)) < 0.9, rng.integers(0, 3, (90, 1)), 0), columns=list("abcd"))
    labels.assign(cell=[f"c{row}" for row in range(90)]).to_csv("labels.csv", index=False)
    run(parse("labels: {path: labels.csv, id: cell}\nconsensus: {k: 3}\noutput: run\nexport: csv"), until="export")
    predict("run", "labels.csv", "again.csv", id="cell")
    pd.testing.assert_frame_equal(pd.read_csv("again.csv"), pd.read_csv("run/labels.csv"))


def test_predict__members_that_were_not_stored(folder, tmp_path):
    shutil.copytree("run", tmp_path / "run")
    edit_facts(tmp_path / "run" / "ensemble.zarr", drop=("fitted",))
    with pytest.raises(InputError, match="does not hold its fitted members"):
        predict(tmp_path / "run", "yesterday.parquet", tmp_path / "out.csv")
    edit_facts(tmp_path / "run" / "ensemble.zarr", fitted={"why_not": "member 2 is Owl"})
    with pytest.raises(InputError, match="member 2 is Owl"):
        predict(tmp_path / "run", "yesterday.parquet", tmp_path / "out.csv")
    edit_facts(tmp_path / "run" / "ensemble.zarr", fingerprint="0" * 32)
    with pytest.raises(StoreError, match="of another ensemble"):
        predict(tmp_path / "run", "yesterday.parquet", tmp_path / "out.csv")


def test_verify__knows_the_fitted_members(folder, tmp_path):
    shutil.copytree("run", tmp_path / "run")
    damaged = tmp_path / "run" / "ensemble.zarr" / "fitted_slopes" / "c" / "0" / "0"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    _, said = cehm("verify", tmp_path / "run", code=2)
    assert "fitted_slopes" in said
    with pytest.raises(StoreError, match="fitted_slopes"):
        predict(tmp_path / "run", "yesterday.parquet", tmp_path / "out.csv")
