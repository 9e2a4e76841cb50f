"""Columns of ordinary tables as features: chosen, encoded, refused in the words of the place, and read again."""

import re

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from cehm_dask import ClusterEnsemble
from cehm_dask.data.features import as_features
from cehm_dask.data.names import NameWarning
from cehm_dask.data.preparation import Encoding, FeatureWarning, Preparation
from cehm_dask.data.scaling import fit_scaling
from cehm_dask.engine.threads import Threads
from cehm_dask.wording import speaking
from tests.data.mixed import customers

PREPARE = Preparation.of(drop=["segment"], id="customer", categories="one-hot", dates="days")
SETTINGS = {"drop": "segment", "id": "customer", "categories": "one-hot", "dates": "days", "impute": "median"}


class Stream:
    """Something that only exports itself as an Arrow stream."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def forms(frame, folder):
    """The same table in every form but text, whose types are found."""
    frame.to_parquet(folder / "t.parquet", row_group_size=100)
    frame.to_feather(folder / "t.feather")
    table = pa.Table.from_pandas(frame, preserve_index=False)
    pyarrow.feather.write_feather(table, folder / "t.arrow", compression="uncompressed")
    yield from (frame, pl.from_arrow(table), table, Stream(table))
    # dask turns objects, and so dates without a time, into text
    yield dd.from_pandas(frame.assign(seen=pd.to_datetime(frame["seen"])) if "seen" in frame else frame, npartitions=3)
    yield from (folder / name for name in ("t.parquet", "t.feather", "t.arrow"))


def texts(frame, folder):
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "t.csv.gz", index=False)
    frame.to_csv(folder / "t.tsv", index=False, sep="\t")
    return [folder / name for name in ("t.csv", "t.csv.gz", "t.tsv")]


def test_every_form__the_same_numbers(tmp_path):
    frame = customers(350)
    wanted = as_features(frame, PREPARE)
    assert wanted.names[:8] == (*(f"amount_{j}" for j in range(5)), "plan=basic", "plan=free", "plan=plus")
    assert wanted.n_features == 5 + 4 + 4 + 3 + 2 + 4
    values = wanted.read(0, 350)
    np.testing.assert_array_equal(values[:, wanted.names.index("plan=pro")], frame["plan"] == "pro")
    np.testing.assert_array_equal(values[:, wanted.names.index("since")] * 86400, frame["since"].astype("int64") / 1e6)
    assert np.isnan(values[:, wanted.names.index("visits")]).sum() == frame["visits"].isna().sum() > 0
    for form in (*forms(frame, tmp_path), *texts(frame, tmp_path)):
        found = as_features(form, PREPARE)
        assert sorted(found.names) == sorted(wanted.names)
        order = [found.names.index(name) for name in wanted.names]
        np.testing.assert_array_equal(found.read(0, 350)[:, order], values)
        np.testing.assert_array_equal(found.read(90, 210)[:, order], values[90:210])


def test_ordinal__order_of_the_category_or_the_alphabet(tmp_path):
    frame = customers(50)[["size", "country"]]
    for form in (frame, *(path for path in forms(frame, tmp_path) if not hasattr(path, "shape"))):
        found = as_features(form, Preparation.of(categories="ordinal"))
        assert found.names == ("size", "country")
        if not hasattr(form, "divisions"):
            wanted = np.stack([frame["size"].cat.codes, frame["country"].cat.codes], axis=1)
            np.testing.assert_array_equal(found.read(0, 50), wanted)


def test_columns_and_drop__by_name():
    frame = customers(20)
    assert as_features(frame, Preparation.of(columns=["spent", "visits"])).names == ("spent", "visits")
    with pytest.raises(ValueError, match="no column 'spend'; there are customer"):
        as_features(frame, Preparation.of(columns="spend"))
    with pytest.raises(ValueError, match=r"drop=\['a'\]: an array has no columns with names"):
        as_features(np.zeros((3, 2)), Preparation.of(drop="a"))
    with pytest.raises(ValueError, match="categories='hot': expected one of one-hot"):
        Preparation.of(categories="hot")


def test_default__one_hot_said_aloud():
    with pytest.warns(FeatureWarning, match=r"each value of plan \(4 values\), country \(4 values\)"):
        as_features(customers(30)[["plan", "country", "spent"]])


@pytest.mark.parametrize(
    ("place", "dates", "many"),
    [
        ("python", r"dates='days' counts days, drop=\['since', 'seen'\]", r"drop=\['customer'\].*id='customer'"),
        (
            "command",
            "--dates days counts days, --drop since --drop seen",
            "--drop customer.*--id customer",
        ),
        (
            "recipe",
            r"dates: days counts days, drop: \[since, seen\]",
            r"drop: \[customer\].*id: customer",
        ),
    ],
)
def test_refusals__name_columns_and_remedy_in_the_words_of_the_place(place, dates, many):
    frame = customers(60)
    with speaking(place):
        with pytest.raises(TypeError, match=f"'since' holds timestamp.*'seen' holds date32.*{dates}"):
            as_features(frame)
        with pytest.raises(TypeError, match=f"'customer': more than 50 different values.*{many}"):
            as_features(frame, Preparation.of(dates="days"))


def test_intervals__of_pandas_cut_are_categories():
    frame = pd.DataFrame({"age": np.arange(30.0), "band": pd.cut(np.arange(30), 3, labels=None)})
    found = as_features(frame, Preparation.of(categories="one-hot"))
    assert found.names == ("age", "band=(-0.029, 9.667]", "band=(9.667, 19.333]", "band=(19.333, 29.0]")
    ranks = as_features(frame, Preparation.of(categories="ordinal")).read(0, 30)
    np.testing.assert_array_equal(ranks[:, 1], np.repeat([0, 1, 2], 10))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pd.Series([1.0, 2.0]), r"X is a Series: expected a table.*to_frame\(\)"),
        (pl.Series([1.0, 2.0]), r"X is a Series: expected a table.*to_frame\(\)"),
        (dd.from_pandas(pd.Series([1.0, 2.0]), npartitions=1), r"X is a Series: expected a table.*to_frame\(\)"),
        (pl.DataFrame({"a": [1.0]}).lazy(), r"X is a LazyFrame: expected a table.*collect\(\) a lazy frame"),
        ({"a": [1.0, 2.0]}, r"X is a dict: expected rows of features; pandas.DataFrame\(X\)"),
    ],
)
def test_no_table__says_how_to_make_one(given, said):
    with pytest.raises(TypeError, match=said):
        as_features(given)


def test_csv__a_typing_error_among_numbers_is_no_category(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,a\n2,b\n,a\n3o,b\n")
    with pytest.raises(TypeError, match="column 'x' holds '3o' at row 3: features are numbers"):
        as_features(path)


def test_impute__as_scikit_learn_and_indicators_are_not_scaled():
    frame = customers(500)
    features = as_features(frame, PREPARE)
    for impute, wanted in (("median", frame["amount_1"].median()), ("most_frequent", frame["amount_1"].min())):
        scaling, _ = fit_scaling(features, "standard", Threads(1), impute=impute, rows=np.arange(500))
        assert scaling.fill[1] == wanted
    scaled = scaling.apply(features.read(0, 500))
    assert set(np.unique(scaled[:, features.indicators])) == {0.0, 1.0}


@pytest.mark.filterwarnings("ignore:heavy tails")
@pytest.mark.parametrize("scale", ["standard", "log", "quantile", "rank"])
def test_predict__shuffled_columns_saved_and_loaded(tmp_path, scale):
    frame = customers(600)
    model = ClusterEnsemble(4, members=5, scale=scale, random_state=0, **SETTINGS).fit(frame)
    assert list(model.feature_names_in_) == [name for name in frame if name not in ("customer", "segment")]
    wanted = model.predict(frame)
    np.testing.assert_array_equal(wanted, model.labels_)
    shuffled = frame[list(np.random.default_rng(1).permutation(frame.columns))]
    model.save(tmp_path / "m.zarr")
    again = ClusterEnsemble.load(tmp_path / "m.zarr")
    for form in (shuffled, shuffled.drop(columns=["customer", "segment"]), *forms(shuffled, tmp_path)):
        for fitted in (model, again):
            found = fitted.predict(form)
            np.testing.assert_array_equal(found.compute() if hasattr(found, "compute") else found, wanted)
    for path in texts(shuffled, tmp_path):
        np.testing.assert_array_equal(again.predict(path), wanted)


@pytest.mark.parametrize("scale", ["quantile", "rank"])  # with "standard", a cluster goes to the heavy tail
def test_prepared_numbers__are_right_for_kmeans(scale):
    frame = customers(2000)
    model = ClusterEnsemble(4, members=2, scale=scale, random_state=0, **SETTINGS).fit(frame)
    features = as_features(frame, PREPARE)
    numbers = model._labeller.scaling.apply(features.read(0, 2000))
    found = KMeans(4, n_init=20, random_state=0).fit_predict(numbers)
    assert adjusted_rand_score(frame["segment"], found) > 0.9


def test_save__only_categories(tmp_path):
    frame = customers(200)[["plan", "country"]]
    model = ClusterEnsemble(2, members=3, k_max=4, categories="one-hot", scale="log", random_state=0).fit(frame)
    model.save(tmp_path / "m.zarr")
    np.testing.assert_array_equal(ClusterEnsemble.load(tmp_path / "m.zarr").predict(frame), model.labels_)


def test_predict__unknown_values_missing_and_further_columns():
    frame = customers(200)[["plan", "amount_4", "spent"]]
    model = ClusterEnsemble(3, members=3, categories="one-hot", scale="log", random_state=0).fit(frame)
    features = as_features(frame.assign(plan="gold"), Preparation.of(categories="one-hot").again(model._encoding))
    assert not features.read(0, 200)[:, :4].any()
    assert len(model.predict(frame.assign(plan="gold"))) == 200
    with pytest.raises(ValueError, match="lacks features that were fitted: plan"):
        model.predict(frame.drop(columns="plan"))
    with pytest.warns(NameWarning, match="ignored: more"):
        model.predict(frame.assign(more=1))
    with pytest.raises(TypeError, match="an array without names of columns, and plan were encoded"):
        model.predict(np.zeros((3, 3)))
    with pytest.raises(TypeError, match=r"column 'spent' holds .*string, it was fitted as number"):
        model.predict(frame.assign(spent="much"))


def test_encoding__as_facts():
    encoding = as_features(customers(50), PREPARE).encoding
    assert Encoding.from_facts(encoding.facts()) == encoding


def test_repeated_names__no_column_is_found_by_them():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=["a", "a", "b"])
    assert as_features(frame).n_features == 3
    for how in ({"drop": "a"}, {"columns": ["b"]}, {"id": "b"}):
        with pytest.raises(ValueError, match="column 'a' is there more than once, so none is found by name: rename it"):
            as_features(frame, Preparation.of(**how))


def test_scale__values_that_are_too_large_are_refused_by_name():
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.arange(30.0) * 1e300})
    with pytest.raises(ValueError, match=r"column b: values up to 2.9e\+301 are too large to scale; divide them"):
        ClusterEnsemble(2, members=3, random_state=0).fit(frame)


def test_heavy_columns__are_named_and_others_are_not():
    frame = customers(2000).drop(columns="segment")
    with pytest.warns(FeatureWarning, match="hold nearly all variance of spent, so members.*scale='log'"):
        ClusterEnsemble(4, members=3, random_state=0, **{**SETTINGS, "drop": None}).fit(frame)
    ClusterEnsemble(4, members=3, scale="log", random_state=0, **{**SETTINGS, "drop": None}).fit(frame)
    rng = np.random.default_rng(0)
    rare = np.where(rng.random(2000) < 0.002, 100.0, 0.0)
    plain = pd.DataFrame({"x": rng.exponential(size=2000), "y": rng.normal(size=2000), "rare": rare})
    ClusterEnsemble(3, members=3, random_state=0).fit(plain)


def test_heavy_tail__hint():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"spent": np.exp(rng.normal(0, 4, 3000)), "owed": np.exp(rng.normal(0, 4, 3000))})
    with pytest.warns(FeatureWarning) as said:
        ClusterEnsemble(2, members=5, k_min=2, k_max=3, random_state=0).fit(frame)
    columns, cluster = (str(one.message) for one in said)
    assert "nearly all variance of spent, owed" in columns
    assert re.search("of the rows are in one cluster.*scale='log', scale='quantile'", cluster)
    sizes = ClusterEnsemble(2, members=5, k_min=2, k_max=3, scale="log", random_state=0).fit(frame)
    assert sizes.consensus_.cluster_sizes_.max() < 2700
