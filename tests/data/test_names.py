"""New data is matched with what was fitted by name: members, features, and rows of series."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.data.ingest import ingest
from cehm_dask.data.names import NameWarning, places_of

N, MEMBERS = 60, list("abcdef")


def members_of(seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(3, size=N)
    noise = rng.random((N, len(MEMBERS))) < 0.2
    labels = np.where(noise, rng.integers(3, size=noise.shape), truth[:, None])
    # Every member has names of its own for the clusters, so a member in another's place is noticed.
    return pd.DataFrame(labels + 10 * np.arange(len(MEMBERS)), columns=MEMBERS, index=[f"s{i}" for i in range(N)])


@pytest.fixture(scope="module")
def model():
    return CEHM(3, random_state=0).fit(members_of())


@settings(max_examples=10, deadline=None)
@given(order=st.permutations(MEMBERS))
def test_members__matched_by_name(model, order):
    shuffled = members_of()[order]
    for form in (shuffled, pl.from_pandas(shuffled)):
        np.testing.assert_array_equal(model.predict(form), model.labels_)
        np.testing.assert_array_equal(model.membership(form), model.membership(members_of()))
    lazy = model.predict(dd.from_pandas(shuffled, npartitions=3, sort=False))
    np.testing.assert_array_equal(lazy.compute(), model.labels_)


def test_members__missing_refused_and_extra_ignored(model):
    with pytest.raises(ValueError, match="X lacks members that were fitted: b, d; it has a, c, e, f"):
        model.predict(members_of().drop(columns=["b", "d"]))
    with pytest.warns(NameWarning, match="members that were not fitted are ignored: new"):
        found = model.predict(members_of().assign(new=1)[["new", *MEMBERS]])
    np.testing.assert_array_equal(found, model.labels_)


def test_members__by_place_where_there_are_no_names(model):
    np.testing.assert_array_equal(model.predict(members_of().to_numpy()), model.labels_)
    assert model.feature_names_in_.tolist() == MEMBERS
    plain = CEHM(3, random_state=0).fit(members_of().to_numpy())
    assert not hasattr(plain, "feature_names_in_")
    np.testing.assert_array_equal(plain.predict(members_of()), plain.labels_)
    assert not hasattr(CEHM(3, random_state=0).fit(members_of()).fit(members_of().to_numpy()), "feature_names_in_")


def test_members__by_number_where_numbers_are_shuffled():
    frame = members_of().set_axis(range(6), axis=1)
    model = CEHM(3, random_state=0).fit(frame)
    np.testing.assert_array_equal(model.predict(frame[[5, 3, 1, 0, 2, 4]]), model.labels_)


def test_members__matched_with_a_stored_model(tmp_path):
    model = CEHM(3, random_state=0).fit(members_of(), output=tmp_path / "c.zarr")
    loaded = CEHM.load(tmp_path / "c.zarr")
    assert loaded.feature_names_in_.tolist() == MEMBERS
    np.testing.assert_array_equal(loaded.predict(members_of()[MEMBERS[::-1]]), model.labels_[:])


def test_names__repeated_are_no_names():
    assert places_of(["a", "a"], ["a", "b"], "member") is None
    with pytest.raises(ValueError, match="X has 3 members, 2 were fitted"):
        places_of(["0", "1", "2"], ["a", "b"], "member")


# --- features ------------------------------------------------------------------------------------------------------


def flowers():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(90, 3)) + 8 * rng.integers(3, size=90)[:, None] * [1, -1, 2]
    return pd.DataFrame(values, columns=["length", "width", "weight"])


def test_features__matched_by_name(tmp_path):
    model = ClusterEnsemble(3, members=5, random_state=0).fit(flowers())
    shuffled = flowers()[["weight", "length", "width"]]
    shuffled.to_parquet(tmp_path / "shuffled.parquet")
    model.save(tmp_path / "model.zarr")
    loaded = ClusterEnsemble.load(tmp_path / "model.zarr")
    for fitted in (model, loaded):
        assert fitted.feature_names_in_.tolist() == ["length", "width", "weight"]
        for form in (shuffled, pl.from_pandas(shuffled), tmp_path / "shuffled.parquet"):
            np.testing.assert_array_equal(fitted.predict(form), model.labels_)
        lazy = fitted.predict(dd.from_pandas(shuffled, npartitions=3))
        np.testing.assert_array_equal(lazy.compute(), model.labels_)
    with pytest.warns(NameWarning, match="features that were not fitted are ignored: age"):
        np.testing.assert_array_equal(model.predict(shuffled.assign(age=1.0)), model.labels_)
    with pytest.raises(ValueError, match="X lacks features that were fitted: width"):
        model.predict(shuffled.drop(columns="width"))


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(["length", "width", "weight", "colour"]), kind=st.sampled_from(["pandas", "polars", "dask"])
)
def test_features__in_any_order_give_the_same_bits(coloured, order, kind):
    model, table = coloured
    shuffled = table[list(order)]
    if kind == "polars":
        shuffled = pl.from_pandas(shuffled)
    elif kind == "dask":
        shuffled = dd.from_pandas(shuffled, npartitions=2)
    np.testing.assert_array_equal(np.asarray(model.predict(shuffled)), model.labels_)
    np.testing.assert_array_equal(np.asarray(model.membership(shuffled)), model.membership(table))


@pytest.fixture(scope="module")
def coloured():
    """A model of numbers and a category, and its table."""
    table = flowers().assign(colour=np.resize(["red", "white", "blue"], 90))
    return ClusterEnsemble(3, members=5, categories="one-hot", random_state=0).fit(table), table


# --- rows ----------------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), as_dict=st.booleans(), dropped=st.integers(0, 20))
def test_series__matched_by_their_index(seed, as_dict, dropped):
    frame, rng = members_of(), np.random.default_rng(seed)
    parts = {name: frame[name].iloc[np.sort(rng.permutation(N)[dropped:])] for name in frame}
    first = parts["a"]
    parts = {name: part.sample(frac=1, random_state=seed) for name, part in parts.items()} | {"a": first}
    given_ = parts if as_dict else list(parts.values())
    model = CEHM(3, random_state=0).fit(given_)
    expected = pd.DataFrame({name: part.reindex(model.index_).fillna(-1).astype(int) for name, part in parts.items()})
    assert sorted(model.index_) == sorted(set().union(*(part.index for part in parts.values())))
    assert model.feature_names_in_.tolist() == MEMBERS
    np.testing.assert_array_equal(model.labels_, CEHM(3, random_state=0).fit(expected).labels_)


def test_series__import_reads_them_alike(tmp_path):
    frame = members_of()
    series = [frame[name].sample(frac=0.9, random_state=j) for j, name in enumerate(MEMBERS)]
    ingest(series, str(tmp_path / "e.zarr"))
    direct = CEHM(3, random_state=0).fit(series)
    np.testing.assert_array_equal(CEHM(3, random_state=0).fit(str(tmp_path / "e.zarr")).labels_, direct.labels_)


def test_series__large_numbers_keep_their_digits():
    far = 2**60
    series = [pd.Series([far, far + 1, far], index=list("xyz")), pd.Series([0, 1, 1], index=list("ywz"))]
    model = CEHM(2, random_state=0).fit([*series, pd.Series([1, 0, 1, 0], index=list("xyzw"))])
    assert model.index_.tolist() == list("xyzw")
    assert len(model.counts_) == 2 + 2 + 2


def test_dict_of_arrays__keeps_the_names_of_members():
    frame = members_of()
    wanted = CEHM(3, random_state=0).fit(frame)
    model = CEHM(3, random_state=0).fit({name: frame[name].to_numpy() for name in frame})
    assert model.feature_names_in_.tolist() == MEMBERS
    np.testing.assert_array_equal(model.labels_, wanted.labels_)
    np.testing.assert_array_equal(model.predict(frame[MEMBERS[::-1]]), wanted.labels_)
    with pytest.raises(ValueError, match="member b has 2 rows, member a has 3: they must be equal"):
        CEHM(2).fit({"a": [0, 1, 1], "b": [0, 1]})


def test_paths__in_a_list_are_refused_with_the_remedy():
    with pytest.raises(TypeError, match=r"X is a list of 2 paths: .*joined_files\(paths, row_id, label\)"):
        CEHM(2).fit(["monday.csv", "tuesday.csv"])


def test_features__given_as_labels_say_where_they_go():
    with pytest.raises(ValueError, match=r"labels are whole numbers.*; features go to ClusterEnsemble"):
        CEHM(2).fit(flowers())


def test_series__rows_named_twice_are_refused():
    twice = pd.Series([0, 1, 0], index=["x", "y", "x"])
    with pytest.raises(ValueError, match=r"member 0: row 'x' is there more than once.*reset_index"):
        CEHM(2).fit([twice, twice])
