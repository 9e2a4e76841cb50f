"""Profiles: right by an independent computation, the same bits for any blocks, and in plain words."""

import json
import pickle
import re

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats.contingency import association
from sklearn.datasets import load_breast_cancer, load_digits, load_iris

from cehm_dask import CEHM, ClusterEnsemble, profile
from cehm_dask.data import features as feature_blocks
from cehm_dask.data.features import as_features
from cehm_dask.errors import BudgetError, InputError
from cehm_dask.job import Where
from cehm_dask.machine import Machine
from cehm_dask.profiles.blocks import MOST_CATEGORIES, HeldClusters
from cehm_dask.profiles.profile import Profile
from cehm_dask.profiles.sweep import make_plan, profile_clusters
from cehm_dask.results.describing import describe
from tests.conftest import cehm

pytestmark = [
    pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning"),
    pytest.mark.filterwarnings("ignore:constant columns dropped"),
]

BITS = ("mean", "sd", "q05", "q25", "q50", "q75", "q95", "min", "max", "missing", "effect")


def direct_effects(frame, labels):
    """Clusters × features, without the package."""
    return pd.DataFrame(
        {c: (frame[labels == c].mean() - frame[labels != c].mean()) / frame.std(ddof=0) for c in np.unique(labels)}
    ).T


# --- right -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("load", "k"), [(load_digits, 10), (load_breast_cancer, 2)])
def test_telling__the_five_of_a_direct_computation(load, k):
    frame = load(as_frame=True).data
    model = ClusterEnsemble(k, members=10, random_state=0).fit(frame)
    effects = direct_effects(frame, model.labels_)
    table = model.profile_
    for cluster in effects.index:
        five = effects.loc[cluster].abs().sort_values(ascending=False, kind="stable")[:5]
        found = table[table["cluster"] == cluster].sort_values("rank")[:5]
        assert list(found["feature"]) == list(five.index)
        np.testing.assert_allclose(found["effect"], effects.loc[cluster, five.index], rtol=1e-9)


def test_statistics__are_those_of_pandas():
    frame = load_breast_cancer(as_frame=True).data
    frame = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
    labels = np.random.default_rng(1).integers(-1, 3, len(frame))
    table = profile(frame, labels).frame().set_index(["cluster", "feature"])
    for c in range(3):
        own = frame[labels == c]
        for name in frame.columns:
            found = table.loc[str(c), name]
            np.testing.assert_allclose(
                found[["mean", "sd", "min", "max", "missing"]].to_numpy(float),
                [own[name].mean(), own[name].std(ddof=0), own[name].min(), own[name].max(), own[name].isna().mean()],
                rtol=1e-9,
                atol=1e-12,
            )
            for q, column in ((0.05, "q05"), (0.25, "q25"), (0.5, "median"), (0.75, "q75"), (0.95, "q95")):
                near, step = 0.1 * frame[name].std(), 1 / own[name].count()
                low = own[name].quantile(max(0, q - step), "lower")
                high = own[name].quantile(min(1, q + step), "higher")
                assert low - near <= found[column] <= high + near, (name, q)


@pytest.mark.parametrize("far", [0.0, 1e9])
def test_statistics__far_from_zero_and_sorted_keep_their_digits(far):
    values = np.sort(np.random.default_rng(0).normal(size=(200_000, 1)), axis=0) + far
    own = profile(values, np.zeros(len(values), int)).clusters[0]
    np.testing.assert_allclose(own["sd"][0], values.std(), rtol=1e-9)
    # The first rows lie at one end of all, which widens the bins at the other.
    for name, q in (("q05", 5), ("q50", 50), ("q95", 95)):
        assert abs(own[name][0] - np.percentile(values, q)) < 0.15


def test_explained__is_the_share_of_variance_between_clusters():
    iris = load_iris(as_frame=True)
    found = {one["feature"]: one["explained"] for one in profile(iris.data, iris.target).screen}
    for name, column in iris.data.items():
        within = column.groupby(iris.target).var(ddof=0) * 50
        assert found[name] == pytest.approx(1 - within.sum() / (150 * column.var(ddof=0)))
    assert next(iter(found)) == "petal length (cm)"


def test_categories__cramers_v_and_what_is_frequent(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    colour = np.where(rng.random(600) < 0.8, np.array(["red", "green", "blue"])[labels], "grey")
    frame = pd.DataFrame({"colour": colour, "noise": rng.choice(["a", "b"], 600), "x": labels + rng.normal(size=600)})
    frame["name"] = [f"row {i}" for i in range(600)]
    found = profile(frame, labels)
    v = {one["feature"]: one.get("cramers_v") for one in found.screen}
    assert v["colour"] == pytest.approx(association(pd.crosstab(labels, frame["colour"]), method="cramer"))
    assert v["noise"] == pytest.approx(association(pd.crosstab(labels, frame["noise"]), method="cramer"))
    assert found.left_out == ["name"]
    assert MOST_CATEGORIES < 600
    assert "more colour = red" in found.sentences[0]
    for suffix in ("csv", "parquet"):
        path = str(tmp_path / f"table.{suffix}")
        frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
        assert profile(path, labels).to_dict() == found.to_dict(), suffix
    without = frame[["colour", "noise"]]
    assert profile(without, labels).features == ()
    assert profile(without, labels).clusters[0]["categories"] == found.clusters[0]["categories"]


def test_nearest__by_standardised_means():
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0], [1, 0], [9, 9]])
    labels = np.repeat([0, 1, 2], 100)
    values = centres[labels] + 0.01 * rng.normal(size=(300, 2))
    found = profile(values, labels).clusters
    assert [own["nearest"]["cluster"] for own in found] == ["1", "0", "1"]
    means = np.stack([values[labels == c].mean(axis=0) for c in range(3)]) / values.std(axis=0)
    assert found[0]["nearest"]["distance"] == pytest.approx(np.sqrt(((means[0] - means[1]) ** 2).mean()))


def test_examples__highest_and_lowest_margins_ties_by_row():
    labels = np.array([0, 1] * 50)
    margin = np.round(np.random.default_rng(0).random(100), 1)
    found = profile(None, labels, margin=margin, row_ids=[f"id{i}" for i in range(100)])
    for c in (0, 1):
        rows = np.flatnonzero(labels == c)
        high, low = (rows[np.lexsort((rows, sign * margin[rows]))][:5] for sign in (-1, 1))
        assert [one["row"] for one in found.clusters[c]["prototypes"]] == high.tolist()
        assert [one["id"] for one in found.clusters[c]["borders"]] == [f"id{row}" for row in low]


# --- the same bits -----------------------------------------------------------------------------------------------

_RNG = np.random.default_rng(7)
VALUES = _RNG.normal(size=(700, 3)) * [1, 1e-6, 1e9] + [0, 5, 1e10]
VALUES[_RNG.random(VALUES.shape) < 0.05] = np.nan
VALUES[3, 0] = np.inf
LABELS = _RNG.integers(-1, 4, 700)
MARGIN = _RNG.random(700).astype(np.float32)


def bits(found):
    return [[np.array(own[name], float).tobytes() for name in BITS] for own in found.clusters]


@pytest.fixture(scope="module")
def expected():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_blocks, "BLOCK_ROWS", 64)
        clusters = HeldClusters(LABELS, 4, MARGIN, MARGIN)
        return profile_clusters(as_features(VALUES), clusters, where=Where(threads=1))


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(1, 699), unique=True, max_size=12), threads=st.integers(1, 5))
def test_bits__any_chunks_and_threads(expected, cuts, threads):
    edges = [0, *sorted(cuts), 700]
    chunks = da.from_array(VALUES, chunks=(tuple(np.diff(edges).tolist()), 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feature_blocks, "BLOCK_ROWS", 64)  # so that there are blocks to be joined
        clusters = HeldClusters(LABELS, 4, MARGIN, MARGIN)
        found = profile_clusters(as_features(chunks), clusters, where=Where(threads=threads))
    assert bits(found) == bits(expected)
    assert found.to_dict() == expected.to_dict()


def test_bits__columns_in_groups(expected, monkeypatch):
    """Where tables of all columns do not fit, columns are taken in turns."""
    monkeypatch.setattr(feature_blocks, "BLOCK_ROWS", 64)
    taken = []
    plan = make_plan(700, 3, 0, 4, Machine(None, 1, 1 << 40, 0))

    def tight(*_):
        taken.append(1)
        return plan._replace(columns=1)

    monkeypatch.setattr("cehm_dask.profiles.sweep.require_profiles", tight)
    found = profile_clusters(as_features(VALUES), HeldClusters(LABELS, 4, MARGIN, MARGIN))
    assert taken
    assert found.to_dict() == expected.to_dict()


def test_bits__workers(tmp_path, two_processes):
    np.save(tmp_path / "x.npy", np.tile(VALUES, (200, 1)))
    labels, margin = np.tile(LABELS, 200), np.tile(MARGIN, 200)
    here, there = (
        profile(tmp_path / "x.npy", labels, margin=margin, confidence=margin, client=client)
        for client in (False, two_processes)
    )
    assert here.to_dict() == there.to_dict()
    chunks = da.from_array(np.tile(VALUES, (200, 1)), chunks=(9_999, 2))
    assert profile(chunks, labels, margin=margin, confidence=margin, client=two_processes).to_dict() == here.to_dict()


# --- in Python ---------------------------------------------------------------------------------------------------


def test_profile__of_a_model(tmp_path):
    iris = load_iris(as_frame=True)
    model = ClusterEnsemble(3, members=8, random_state=0)
    assert not hasattr(model, "profile_")
    model.fit(iris.data)
    again = pickle.loads(pickle.dumps(model))
    with pytest.raises(AttributeError, match=r"call profile\(X\)"):
        _ = again.profile_
    pd.testing.assert_frame_equal(model.profile_, again.profile(iris.data).frame())
    assert model.profile_ is model.profile_
    assert model._to_profile is None  # the features are let go of
    found = model.profile(iris.data)
    assert found.clusters[0]["confidence"] == pytest.approx(model.confidence_[model.labels_ == 0].mean(), rel=1e-6)
    assert [own["size"] for own in found.clusters] == np.bincount(model.labels_).tolist()
    with pytest.raises(InputError, match="X has 10 rows, 150 were fitted"):
        model.profile(iris.data[:10])
    first = model.profile_
    model.fit(iris.data.rename(columns=str.upper))
    assert set(model.profile_["feature"]) != set(first["feature"])


def test_profile__of_a_dask_collection():
    values = load_iris().data
    model = ClusterEnsemble(3, members=8, random_state=0).fit(da.from_array(values, chunks=(40, 2)), client=False)
    with pytest.raises(AttributeError, match=r"call profile\(X\)"):
        _ = model.profile_
    held = ClusterEnsemble(3, members=8, random_state=0).fit(values)
    pd.testing.assert_frame_equal(model.profile(da.from_array(values, chunks=(40, 2))).frame(), held.profile_)


def test_profile__clusters_by_name_and_numbers_in_order():
    found = profile(np.arange(24.0)[:, None], ["b", "a", "", "10", "9", "-1"] * 4)
    assert [own["cluster"] for own in found.clusters] == ["9", "10", "a", "b"]
    assert sum(own["share"] for own in found.clusters) == pytest.approx(1)


def test_profile__frames_of_mixed_types():
    frame = pd.DataFrame({"x": [1.5, 2, 3, 4], "yes": [True, False, True, True]})
    frame["whole"] = pd.array([1, None, 3, 4], "Int64")
    frame["kind"] = pd.Categorical(["a", "a", None, "b"])
    frame["day"] = pd.to_datetime(["2026-01-01"] * 3 + ["2026-01-02"])
    found = profile(frame, [0, 0, 1, 1])
    assert found.features == ("x", "yes", "whole")
    assert found.clusters[0]["mean"] == [1.75, 0.5, 1.0]
    assert found.clusters[0]["missing"] == [0.0, 0.0, 0.5]
    assert {one["feature"] for one in found.screen} == {*frame.columns}
    assert profile(frame, [0, 0, 1, 1], leave_out=["x"]).features == ("yes", "whole")


def test_profile__one_cluster_constant_and_empty_columns():
    values = np.column_stack([np.arange(10.0), np.full(10, 3.0), np.full(10, np.nan)])
    found = profile(values, np.zeros(10, int)).clusters[0]
    assert found["effect"] == [None] * 3
    assert found["mean"] == [4.5, 3.0, None]
    assert found["q50"][1:] == [3.0, None]
    assert found["missing"] == [0.0, 0.0, 1.0]
    assert found["telling"] == []
    assert found["nearest"] is None
    two = profile(values, np.repeat([0, 1], 5))
    assert two.clusters[0]["effect"][1:] == [None, None]
    assert Profile.from_dict(two.to_dict()).to_dict() == two.to_dict()


@pytest.mark.parametrize(
    ("table", "labels", "message"),
    [
        (np.zeros((5, 2)), [0, 1], "the table has 5 rows, there are 2 labels"),
        (np.zeros((2, 2)), [-1, -1], "none of the 2 labels names a cluster"),
        (np.zeros((2, 2)), [[0], [1]], "expected one per row"),
    ],
)
def test_profile__refused(table, labels, message):
    with pytest.raises(InputError, match=message):
        profile(table, labels)


def test_profile__memory_is_refused_with_both_numbers():
    with pytest.raises(BudgetError, match=r"memory=1.00 MiB allowed < .* projected for profiles"):
        profile(np.zeros((10, 2)), np.zeros(10, int), memory="1MiB")


def test_plan__columns_and_threads_shrink_to_what_is_allowed():
    wide = make_plan(10**6, 1000, 0, 100, Machine(None, 8, 4 << 30, 0))
    assert wide.threads == 1
    assert 100 < wide.columns < 1000
    assert sum(wide.terms.values()) <= 4 << 30
    assert make_plan(10**6, 10, 0, 10, Machine(None, 8, 4 << 30, 0))[1:] == (8, 10)


def test_sentence__in_plain_words():
    iris = load_iris(as_frame=True)
    said = profile(iris.data, iris.target, confidence=np.full(150, 0.91)).sentences[0]
    assert re.fullmatch(
        r"Cluster 0: 50 samples \(33 %\), confidence 0\.91; lower petal length \(cm\) \(−\d\.\d sd\), .*", said
    )
    assert "higher column 0 (+2.0 sd)" in profile(np.repeat([[0.0], [1]], 5, axis=0), [0] * 5 + [1] * 5).sentences[1]


# --- the command -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def consensus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("describe")
    iris = load_iris(as_frame=True)
    base = ClusterEnsemble(3, members=8, random_state=0).fit(iris.data).base_labels_
    CEHM(3, random_state=0).fit(base, output=str(folder / "c.zarr"))
    frame = iris.data.assign(species=iris.target_names[iris.target], flower=[f"f{i}" for i in range(150)])
    frame.to_csv(folder / "iris.csv", index=False)
    return folder


def test_describe__a_store_by_a_table(consensus):
    out, _ = cehm("describe", consensus / "c.zarr", "--features", consensus / "iris.csv", "--id", "flower")
    assert re.search(r"Cluster 0: \d+ samples \(\d+ %\), confidence [01]\.\d\d", out)
    assert re.search(r"\bf\d+, f\d+", out)
    assert "species V = " in out
    bare, _ = cehm("describe", consensus / "c.zarr")
    assert re.search(r"Cluster 2: \d+ samples", bare)


def test_describe__json_is_what_python_gives(consensus):
    out, _ = cehm("describe", consensus / "c.zarr", "--features", consensus / "iris.csv", "--json")
    assert json.loads(out) == json.loads(json.dumps(describe(consensus / "c.zarr", consensus / "iris.csv").to_dict()))


def test_describe__refused(consensus):
    _, err = cehm("describe", consensus / "c.zarr", "--id", "flower", code=2)
    assert "give the table too" in err
    np.save(consensus / "few.npy", np.zeros((3, 2)))
    _, err = cehm("describe", consensus / "c.zarr", "--features", consensus / "few.npy", code=2)
    assert "the table has 3 rows, there are 150 labels" in err
