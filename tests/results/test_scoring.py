"""A consensus scored in one sweep: every table as if all were in memory, whatever form the classes come in."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner

from cehm_dask import CEHM
from cehm_dask.cli import main
from cehm_dask.data.ingest import ingest
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import StoreError
from cehm_dask.method.agreement import contingency, scores
from cehm_dask.results import scoring
from cehm_dask.results.scoring import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
N, K = 1500, 4


@pytest.fixture(scope="module")
def truth():
    return np.random.default_rng(1).integers(0, K, N)


@pytest.fixture(scope="module")
def base_labels(truth):
    """Eight members that follow the classes more or less, with gaps, and two rows nobody speaks about."""
    rng = np.random.default_rng(2)
    labels = np.where(rng.random((N, 8)) < 0.7, truth[:, None], rng.integers(0, 6, (N, 8)))
    labels[rng.random((N, 8)) < 0.1] = -1
    labels[[3, 700]] = -1
    return labels


@pytest.fixture(scope="module")
def stores(base_labels, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    ensemble, consensus = str(folder / "e.zarr"), str(folder / "c.zarr")
    ingest(base_labels, ensemble, chunk_rows=128)
    CEHM(K, restarts=3, random_state=0).fit(ensemble, output=consensus)
    return ensemble, consensus


@pytest.fixture(scope="module")
def labels(stores):
    return zarr.open_group(stores[1], mode="r")["labels"][:], zarr.open_group(stores[1], mode="r")["margin"][:]


@pytest.fixture(scope="module")
def partly(truth):
    """Classes of which some are not known."""
    known = truth.copy()
    known[::7] = -1
    return known


def test_evaluate__equals_scores_of_everything_in_memory(stores, labels, base_labels, partly):
    ensemble, consensus = stores
    found = evaluate(consensus, partly, ensemble=ensemble)
    both = (partly >= 0) & (labels[0] >= 0)
    assert found["scores"] == pytest.approx(scores(contingency(labels[0], partly)), abs=1e-12)
    assert found["n_scored"] == np.count_nonzero(both)
    assert found["n_unknown"] == np.count_nonzero(partly < 0)
    assert found["n_silent"] == 2
    assert found["n_classes"] == K
    for j, member in enumerate(found["members"]):
        wanted = scores(contingency(base_labels[:, j], partly))
        assert {name: member[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)
        assert member["n_scored"] == np.count_nonzero((base_labels[:, j] >= 0) & (partly >= 0))
    assert found["members_mean"]["ari"] == pytest.approx(np.mean([m["ari"] for m in found["members"]]))


def test_evaluate__more_certain_half(stores, labels, partly):
    half = evaluate(stores[1], partly)["certain_half"]
    both = (partly >= 0) & (labels[0] >= 0)
    certain = both & (labels[1] >= half["margin_from"])
    assert half["n_scored"] == np.count_nonzero(certain) >= np.count_nonzero(both) / 2
    # One step fewer would be less than half.
    step = half["margin_from"] * (1 + 2**-7)
    assert np.count_nonzero(both & (labels[1] >= step)) < np.count_nonzero(both) / 2
    wanted = scores(contingency(labels[0][certain], partly[certain]))
    assert {name: half[name] for name in wanted} == pytest.approx(wanted, abs=1e-12)
    assert half["nmi"] > evaluate(stores[1], partly)["scores"]["nmi"]


def test_evaluate__one_sweep_and_none_without_truth(stores, truth, monkeypatch):
    swept = []
    sweep = Engine.sweep
    monkeypatch.setattr(
        Engine, "sweep", lambda self, *args, **kwargs: (swept.append(1), sweep(self, *args, **kwargs))[1]
    )
    evaluate(stores[1], truth, ensemble=stores[0])
    assert len(swept) == 1
    facts = evaluate(stores[1])
    assert len(swept) == 1
    assert "scores" not in facts
    assert facts["n_clusters"] == K
    assert 0 < facts["margin"] < 1
    assert 0 < facts["stability"] <= 1


def test_evaluate__blocks_change_nothing(stores, partly, monkeypatch):
    wanted = evaluate(stores[1], partly, ensemble=stores[0])
    monkeypatch.setattr(scoring, "STEP_ROWS", 100)
    assert evaluate(stores[1], partly, ensemble=stores[0]) == wanted


def test_evaluate__on_a_cluster(stores, partly, base_labels, two_processes, tmp_path):
    wanted = evaluate(stores[1], partly, ensemble=stores[0])
    np.save(tmp_path / "y.npy", partly)
    assert evaluate(stores[1], tmp_path / "y.npy", ensemble=base_labels, client=two_processes) == wanted


TEXTS = np.array(["oak", "ash", "yew, old", "<elm>"])


def as_npy(path, classes):
    np.save(path / "y.npy", classes)
    return path / "y.npy"


def as_csv(path, classes):
    pd.DataFrame({"y": pd.Series(classes, dtype="Int64").mask(classes < 0)}).to_csv(path / "y.csv", index=False)
    return path / "y.csv"


def as_text_csv(path, classes):
    pd.DataFrame({"y": np.where(classes < 0, "", TEXTS[classes])}).to_csv(path / "y.csv", index=False)
    return path / "y.csv"


def as_parquet(path, classes):
    frame = pd.DataFrame({"y": pd.Series(classes, dtype="Int64").mask(classes < 0)})
    frame.to_parquet(path / "y.parquet", row_group_size=400)
    return path / "y.parquet"


def as_text_parquet(path, classes):
    frame = pd.DataFrame({"y": pd.Series(TEXTS[classes], dtype="str").mask(classes < 0)})
    frame.to_parquet(path / "y.parquet", row_group_size=100)
    return path / "y.parquet"


def as_zarr(path, classes):
    zarr.create_array(path / "y.zarr", data=classes.astype(np.int8), chunks=(100,))
    return path / "y.zarr"


FORMS = [as_npy, as_csv, as_text_csv, as_parquet, as_text_parquet, as_zarr]
FORMS += [
    lambda _, classes: classes.tolist(),
    lambda _, classes: np.where(classes < 0, np.nan, classes),
    lambda _, classes: pd.Series(np.where(classes < 0, None, TEXTS[classes])),
    lambda _, classes: np.where(classes < 0, "-1", TEXTS[classes]),
]


@pytest.mark.parametrize("form", FORMS)
def test_truth__any_form(stores, partly, tmp_path, form, monkeypatch):
    monkeypatch.setattr(scoring, "STEP_ROWS", 333)
    wanted = evaluate(stores[1], partly)
    found = evaluate(stores[1], form(tmp_path, partly))
    for part in ("scores", "certain_half"):
        assert found.pop(part) == pytest.approx(wanted[part], abs=1e-12)  # sums in the order of the classes' names
    # Texts have an order of their own: the same columns, behind other names.
    own = dict(zip(found.pop("classes"), np.transpose(found.pop("contingency")).tolist(), strict=True))
    numbered = {TEXTS[int(name)] if TEXTS[0] in own else name: int(name) for name in wanted["classes"]}
    table = np.transpose(wanted["contingency"]).tolist()
    assert own == {name: table[number] for name, number in numbered.items()}
    assert found == {name: value for name, value in wanted.items() if name in found}


def test_truth__classes_that_only_some_blocks_have(stores, labels, monkeypatch):
    classes = np.where(np.arange(N) < 900, 0, np.where(np.arange(N) < 1200, 12, 7))
    monkeypatch.setattr(scoring, "STEP_ROWS", 100)
    wanted = scores(contingency(labels[0], np.searchsorted([0, 7, 12], classes)))
    assert evaluate(stores[1], classes)["scores"] == pytest.approx(wanted, abs=1e-12)


def test_truth__csv_whose_blocks_look_like_numbers_and_text(stores, truth, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "STEP_ROWS", 100)
    texts = np.where(truth == 0, "a", truth.astype(str))
    texts[:150] = np.where(truth[:150] == 0, "a", truth[:150].astype(str))
    frame = pd.DataFrame({"id": np.arange(N), "y": texts})
    frame.to_csv(tmp_path / "y.csv", index=False)
    assert evaluate(stores[1], tmp_path / "y.csv", column="y")["scores"] == pytest.approx(
        evaluate(stores[1], truth)["scores"], abs=1e-12
    )


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (np.zeros(10, int), "truth has 10 rows, the consensus 1500"),
        (np.zeros((N, 2), int), "shape"),
        (np.full(N, -1), "none of the 1500 samples"),
        (np.where(np.arange(N) == 5, 0.5, 1.0), "truth holds 0.5 at row 5"),
        ("nowhere.npy", "truth nowhere.npy: no such file"),
        ("y.txt", "expected a name that ends in"),
    ],
)
def test_truth__refused(stores, classes, message):
    with pytest.raises((ValueError, OSError), match=message):
        evaluate(stores[1], classes)


def test_truth__too_many_classes(stores, monkeypatch):
    monkeypatch.setattr(scoring, "MAX_CLUSTERS", 1000)
    with pytest.raises(ValueError, match="is it a column of classes"):
        evaluate(stores[1], np.arange(N))


def test_truth__column_must_be_named(stores, truth, tmp_path):
    pd.DataFrame({"id": np.arange(N), "y": truth}).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(ValueError, match="columns 'id', 'y': name the one"):
        evaluate(stores[1], tmp_path / "y.parquet")
    with pytest.raises(ValueError, match="there is no 'z'"):
        evaluate(stores[1], tmp_path / "y.parquet", column="z")


def test_ensemble__of_another_consensus_is_refused(stores, truth, base_labels, tmp_path):
    ingest(base_labels[:, ::-1], str(tmp_path / "other.zarr"))
    with pytest.raises(StoreError, match="give the ensemble it was made of"):
        evaluate(stores[1], truth, ensemble=str(tmp_path / "other.zarr"))
    with pytest.raises(ValueError, match="give the ensemble it was made of"):
        evaluate(stores[1], truth, ensemble=base_labels[:, :5])


# --- the command -------------------------------------------------------------------------------------------------


def run(*args, code=0):
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == code, result.output
    return result


def test_command__json_is_what_evaluate_gives(stores, partly, tmp_path):
    np.save(tmp_path / "y.npy", partly)
    args = ("evaluate", stores[1], "--truth", tmp_path / "y.npy", "--ensemble", stores[0])
    lines = run(*args, "--json").stdout.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0]) == evaluate(stores[1], partly, ensemble=stores[0])
    table = run(*args).stdout
    assert f"{evaluate(stores[1], partly)['scores']['ari']:.4f}" in table
    assert "members, mean" in table


def test_command__without_truth(stores):
    said = " ".join(run("evaluate", stores[1]).stdout.split())
    assert re.search(r"stability (one start only|[01]\.\d{4} \(mean NMI between candidates or restarts\))", said)


def test_command__refuses_in_one_line(stores, tmp_path):
    np.save(tmp_path / "y.npy", np.zeros(3))
    result = run("evaluate", stores[1], "--truth", tmp_path / "y.npy", code=2)
    assert "truth has 3 rows" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    run("evaluate", tmp_path / "none.zarr", code=2)
