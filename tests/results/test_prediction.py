"""New rows by a stored model: the same labels as the model in memory gives, whatever form they come and go in."""

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.cli import main
from cehm_dask.data import encoding, ingest
from cehm_dask.errors import StoreError
from cehm_dask.results.prediction import load, predict
from tests.conftest import edit_facts

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


@pytest.fixture(scope="module")
def base_labels():
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 4, 700)
    labels = np.where(rng.random((700, 6)) < 0.75, classes[:, None], rng.integers(0, 5, (700, 6)))
    labels[rng.random(labels.shape) < 0.1] = -1
    return labels * 3  # labels with gaps: -1 becomes -3, put right below


@pytest.fixture(scope="module")
def old_and_new(base_labels):
    labels = np.where(base_labels < 0, -1, base_labels)
    new = labels[500:].copy()
    new[3], new[4] = -1, 99  # nobody speaks; nobody knows what was said
    return labels[:500], new


@pytest.fixture(scope="module", params=["released", "printed"])
def model(request, old_and_new, tmp_path_factory):
    output = tmp_path_factory.mktemp("model") / "c.zarr"
    return CEHM(4, variant=request.param, random_state=0).fit(old_and_new[0], output=output), output


def read(path):
    """Labels and margins of an output."""
    if path.suffix == ".npy":
        return np.load(path), None
    if path.suffix == ".zarr":
        group = zarr.open_group(path, mode="r")
        return group["labels"][:], group["margin"][:]
    table = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    return table["label"].to_numpy(), table["margin"].to_numpy()


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet", ".zarr"])
def test_predict__as_the_fitted_model_does(model, old_and_new, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(encoding, "READ_ROWS", 64)
    fitted, consensus = model
    np.save(tmp_path / "new.npy", old_and_new[1])
    assert predict(consensus, tmp_path / "new.npy", tmp_path / f"out{suffix}") == 200
    labels, margin = read(tmp_path / f"out{suffix}")
    wanted, lead, _ = fitted.predict_details(old_and_new[1])
    np.testing.assert_array_equal(labels, wanted)
    np.testing.assert_array_equal(wanted, fitted.predict(old_and_new[1]))
    assert (labels[[3, 4]] == -1).all()
    assert (np.delete(labels, [3, 4]) >= 0).mean() > 0.95
    if margin is not None:
        np.testing.assert_allclose(margin, lead, rtol=1e-6)


def test_predict__the_rows_it_was_made_of(model, old_and_new, tmp_path):
    fitted, consensus = model
    predict(consensus, old_and_new[0], tmp_path / "out.parquet")
    labels, margin = read(tmp_path / "out.parquet")
    np.testing.assert_array_equal(labels, fitted.labels_[:])
    np.testing.assert_allclose(margin, fitted.margin_[:], rtol=1e-5, atol=1e-7)


def test_predict__text_labels_and_an_ensemble(old_and_new, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "READ_ROWS", 64)
    frames = [pd.DataFrame(np.where(rows < 0, None, np.char.add("c", rows.astype(str)))) for rows in old_and_new]
    for frame in frames:
        frame.columns = list("abcdef")
    fitted = CEHM(4, random_state=0).fit(frames[0], output=tmp_path / "c.zarr")
    wanted = fitted.predict(frames[1])
    frames[1].to_csv(tmp_path / "new.csv", index=False)
    ingest.ingest(frames[1], str(tmp_path / "new.zarr"))
    for name in ("new.csv", "new.zarr"):
        predict(tmp_path / "c.zarr", tmp_path / name, tmp_path / "out.npy", overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), wanted)


def test_predict__features_with_a_saved_model(tmp_path):
    rows = np.random.default_rng(0).normal(size=(400, 3)) + np.repeat(np.eye(3) * 9, [100, 100, 200], axis=0)
    fitted = ClusterEnsemble(3, members=8, random_state=0).fit(rows[:300])
    fitted.save(tmp_path / "model.zarr")
    np.save(tmp_path / "new.npy", rows[300:])
    predict(tmp_path / "model.zarr", tmp_path / "new.npy", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), fitted.predict(rows[300:]))
    with pytest.raises(ValueError, match="X has 2 features, 3 were fitted"):
        predict(tmp_path / "model.zarr", rows[:, :2], tmp_path / "other.npy")


def test_predict__refused(model, old_and_new, tmp_path):
    _, consensus = model
    with pytest.raises(ValueError, match="5 members, 6 were fitted"):
        predict(consensus, old_and_new[1][:, :5], tmp_path / "out.npy")
    with pytest.raises(ValueError, match="expected a name that ends in"):
        predict(consensus, old_and_new[1], tmp_path / "out.txt")
    (tmp_path / "out.csv").write_text("mine")
    with pytest.raises(OSError, match="exists"):
        predict(consensus, old_and_new[1], tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "mine"
    ingest.ingest(old_and_new[1], str(tmp_path / "e.zarr"))
    with pytest.raises(StoreError, match="holds ensemble, expected a consensus, a saved model or a run directory"):
        load(tmp_path / "e.zarr")
    with pytest.raises(StoreError, match="exists"):
        predict(consensus, old_and_new[1], tmp_path / "e.zarr", overwrite=True)
    assert ingest.as_labels(tmp_path / "e.zarr").n_samples == 200


def test_predict__store_is_replaced_only_if_asked(model, old_and_new, tmp_path):
    _, consensus = model
    predict(consensus, old_and_new[1], tmp_path / "out.zarr")
    with pytest.raises(StoreError, match="exists"):
        predict(consensus, old_and_new[1][:50], tmp_path / "out.zarr")
    predict(consensus, old_and_new[1][:50], tmp_path / "out.zarr", overwrite=True)
    assert len(read(tmp_path / "out.zarr")[0]) == 50


def test_load__of_a_store_without_its_members_labels(model, tmp_path):
    import shutil

    shutil.copytree(model[1], tmp_path / "c.zarr")
    edit_facts(tmp_path / "c.zarr", drop=["label_values"])
    with pytest.raises(StoreError, match="create it again"):
        CEHM.load(tmp_path / "c.zarr")


def test_command__predict(model, old_and_new, tmp_path):
    fitted, consensus = model
    np.save(tmp_path / "new.npy", old_and_new[1])
    arguments = ["predict", str(consensus), str(tmp_path / "new.npy"), "-o", str(tmp_path / "out.csv")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "200 rows" in result.stderr
    np.testing.assert_array_equal(read(tmp_path / "out.csv")[0], fitted.predict(old_and_new[1]))
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "exists" in again.stderr
