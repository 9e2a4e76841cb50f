"""Base labels in every accepted form give the same consensus; bad ones are refused before any sweep, by name."""

import re

import dask.array as da
import numpy as np
import pandas as pd
import polars as pl
import pytest

from cehm_dask import CEHM, ConsensusWarning
from cehm_dask.data.labels import as_labels
from cehm_dask.engine.sweep import Engine

INTEGERS = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"]


@pytest.fixture(scope="module", name="P")
def base_labels():
    """Three clusters that four members see with some noise."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=90)
    return np.where(rng.random((90, 4)) < 0.85, truth[:, None], rng.integers(3, size=(90, 4)))


@pytest.fixture(scope="module")
def with_gaps(P):
    """The same with a tenth of the entries missing, and two rows altogether."""
    rng = np.random.default_rng(1)
    P = np.where(rng.random(P.shape) < 0.1, -1, P)
    P[[10, 60]] = -1
    return P


@pytest.fixture
def no_sweep(monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("swept over labels that should have been refused")

    monkeypatch.setattr(Engine, "sweep", fail)


def fit(base_labels, k=3, **knobs):
    return CEHM(n_clusters=k, random_state=0, **knobs).fit(base_labels)


def assert_same_fit(one, other):
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_array_equal(one.margin_, other.margin_)
    np.testing.assert_array_equal(one.medoids_, other.medoids_)
    np.testing.assert_array_equal(one.counts_, other.counts_)


def as_text(P):
    """Labels as text whose alphabetical order is the numbers' order; None where a member says nothing."""
    return [[None if label < 0 else "abcdefgh"[label] for label in column] for column in P.T.tolist()]


# --- accepted forms ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("byte_order", ["<", ">"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_array__any_integer_type(P, dtype, byte_order, order):
    assert_same_fit(fit(P.astype(byte_order + dtype, order=order)), fit(P))


@pytest.mark.parametrize("dtype", ["i1", "i2", "i4", "i8", "f2", "f4", "f8"])
def test_array__missing_labels_in_any_signed_type(with_gaps, dtype):
    assert_same_fit(fit(with_gaps.astype(dtype)), fit(with_gaps))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g"])
def test_array__whole_floats(P, dtype):
    assert_same_fit(fit(P.astype(dtype)), fit(P))


def test_array__bool(P):
    assert_same_fit(fit(P > 0, k=2), fit((P > 0).astype(int), k=2))
    assert_same_fit(fit(np.asfortranarray(P > 0), k=2), fit((P > 0).astype(int), k=2))


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2"])
def test_array__largest_label_of_the_type(P, dtype):
    # With a missing label every code moves up by one: the largest must not wrap around.
    largest = np.where(P == 2, np.iinfo(dtype).max, P)
    assert_same_fit(fit(largest.astype(dtype)), fit(P))
    if dtype.startswith("i"):
        largest, plain = largest.copy(), P.copy()
        largest[5, 0] = plain[5, 0] = -1
        assert_same_fit(fit(largest.astype(dtype)), fit(plain))


def test_array__view_with_strides(P):
    wide = np.repeat(np.repeat(P.astype(np.uint8), 2, axis=0), 3, axis=1)
    assert_same_fit(fit(wide[::2, ::3]), fit(P))


def test_array__read_only(P):
    frozen = P.astype(np.uint8)
    frozen.flags.writeable = False
    assert_same_fit(fit(frozen), fit(P))


def test_array__left_as_it_was(with_gaps):
    before = with_gaps.copy()
    fit(with_gaps)
    np.testing.assert_array_equal(with_gaps, before)


@pytest.mark.parametrize("largest", [10**9, 2**40, 2**62])
def test_array__large_sparse_labels(with_gaps, largest):
    sparse = np.where(with_gaps == 2, largest, with_gaps)
    assert_same_fit(fit(sparse), fit(with_gaps))


def test_array__largest_unsigned_label(P):
    assert_same_fit(fit(np.where(P == 2, np.uint64(2**64 - 1), P.astype(np.uint64))), fit(P))


@pytest.mark.filterwarnings("ignore:the consensus agrees")
def test_array__more_than_256_labels():
    rng = np.random.default_rng(0)
    P = rng.integers(700, size=(1500, 3))
    compact = np.stack([np.unique(column, return_inverse=True)[1] for column in P.T], axis=1)
    assert_same_fit(fit(P.astype(np.uint16), init=[0, 5, 9]), fit(compact, init=[0, 5, 9]))


@pytest.mark.parametrize("chunks", [(90, 4), (7, 4), (20, 3)])
def test_dask_array__any_chunks(with_gaps, chunks):
    assert_same_fit(fit(da.from_array(with_gaps, chunks=chunks)), fit(with_gaps))


@pytest.mark.parametrize("sequence", [list, tuple])
def test_columns__list_of_arrays_and_lists(with_gaps, sequence):
    assert_same_fit(fit(sequence(with_gaps.T)), fit(with_gaps))
    assert_same_fit(fit(sequence(with_gaps.T.tolist())), fit(with_gaps))


def test_columns__different_types(P):
    columns = [P[:, 0].astype("u1"), P[:, 1].astype("i8"), P[:, 2].astype("f4"), P[:, 3].tolist()]
    assert_same_fit(fit(columns), fit(P))


def test_columns__series(P):
    assert_same_fit(fit([pd.Series(column) for column in P.T]), fit(P))
    assert_same_fit(fit([pl.Series(column) for column in P.T]), fit(P))


FRAMES = {
    "pandas integers": lambda P: pd.DataFrame(P),
    "pandas integers named": lambda P: pd.DataFrame(P, columns=list("abcd")),
    "pandas whole floats": lambda P: pd.DataFrame(P.astype(float)),
    "pandas nullable": lambda P: pd.DataFrame(P).astype("Int64").mask(P < 0),
    "pandas text": lambda P: pd.DataFrame(dict(enumerate(as_text(P)))),
    "pandas objects": lambda P: pd.DataFrame(dict(enumerate(as_text(P))), dtype=object),
    "pandas string": lambda P: pd.DataFrame(dict(enumerate(as_text(P))), dtype="string"),
    "pandas categories of text": lambda P: pd.DataFrame(dict(enumerate(as_text(P))), dtype="category"),
    "pandas categories of integers": lambda P: pd.DataFrame(P).astype("Int64").mask(P < 0).astype("category"),
    "polars integers": lambda P: pl.DataFrame(P),
    "polars nulls": lambda P: pl.DataFrame([pl.Series(str(j), c).replace(-1, None) for j, c in enumerate(P.T)]),
    "polars text": lambda P: pl.DataFrame({str(j): column for j, column in enumerate(as_text(P))}),
    "polars categories": lambda P: pl.DataFrame(
        {str(j): pl.Series(column, dtype=pl.Categorical) for j, column in enumerate(as_text(P))}
    ),
}


@pytest.mark.parametrize("form", FRAMES)
def test_frame__same_consensus_as_the_array(with_gaps, form):
    assert_same_fit(fit(FRAMES[form](with_gaps)), fit(with_gaps))


@pytest.mark.parametrize("form", FRAMES)
def test_frame__predicts_its_own_labels(with_gaps, form):
    frame = FRAMES[form](with_gaps)
    model = fit(frame)
    np.testing.assert_array_equal(model.predict(frame), model.labels_)


@pytest.mark.parametrize("library", [pd, pl])
def test_frame__bool(P, library):
    columns = {str(j): column for j, column in enumerate((P > 0).T)}
    assert_same_fit(fit(library.DataFrame(columns), k=2), fit(P > 0, k=2))


def test_frame__column_name_repeated(P):
    twice = P[:, [0, 1, 1, 2, 3]]
    assert_same_fit(fit(pd.DataFrame(twice, columns=list("abbcd"))), fit(twice))


def test_frame__large_integers_beside_nulls_stay_apart():
    # Through a float, these two would be the same label.
    column = [2**60, 2**60 + 1, None] * 4
    for frame in (pd.DataFrame({"a": pd.array(column, "Int64")}), pl.DataFrame({"a": column})):
        assert as_labels(frame).n_slots == 3


def test_array__contiguous_bytes_are_not_copied(P):
    codes = np.ascontiguousarray(P, np.uint8)
    assert np.shares_memory(as_labels(codes).source.read(0, 90), codes)
    assert np.shares_memory(as_labels(codes).source.read(20, 30), codes[20:30])


def test_labels__pass_through():
    labels = as_labels(np.zeros((3, 1), int))
    assert as_labels(labels) is labels


# --- allowed, with a word about it -------------------------------------------------------------------------------


def test_silent_row__label_minus_one_and_margin_zero(with_gaps):
    model = fit(with_gaps)
    silent = (with_gaps < 0).all(axis=1)
    np.testing.assert_array_equal(np.flatnonzero(model.labels_ == -1), [10, 60])
    assert (model.margin_[silent] == 0).all()
    assert model.n_silent_ == 2
    assert model.growth_[-1] == 88
    # Left out of n: the others' consensus is that of the ensemble without these rows.
    without = fit(with_gaps[~silent])
    np.testing.assert_array_equal(model.labels_[~silent], without.labels_)
    np.testing.assert_array_equal(model.margin_[~silent], without.margin_)
    np.testing.assert_array_equal(model.loss_history_, without.loss_history_)


def test_hyperedge_empties__fewer_clusters_and_a_warning():
    same = np.repeat([0, 1], 10)
    with pytest.warns(ConsensusWarning, match="1 of n_clusters=2 clusters hold samples"):
        # Hyperedges 0 and 2 are the same set of samples: no sample is in exactly one of them.
        model = CEHM(n_clusters=2, variant="released", init=[0, 2]).fit(np.stack([same, same], axis=1))
    assert model.n_clusters_found_ == 1
    assert model.labels_.tolist() == [0] * 20


def test_member__with_one_cluster(P):
    with pytest.warns(ConsensusWarning, match=r"member 2 has 1 cluster.* adds nothing"):
        fit(np.insert(P, 2, 7, axis=1))


def test_member__with_as_many_clusters_as_samples(P):
    with pytest.warns(ConsensusWarning, match=r"member 4 has as many clusters as samples \(90\).* adds little"):
        fit(np.hstack([P, np.arange(90)[:, None]]))


def test_member__warned_about_by_its_name_in_the_frame(P):
    with pytest.warns(ConsensusWarning, match="member flat has 1 cluster"):
        fit(pd.DataFrame(P, columns=list("abcd")).assign(flat="x"))


@pytest.mark.filterwarnings("ignore:member . has 0 cluster")
@pytest.mark.parametrize("place", [0, 2, 4])
def test_member__that_says_nothing_at_all(P, place):
    model, without = fit(np.insert(P, place, -1, axis=1)), fit(P)
    np.testing.assert_array_equal(model.labels_, without.labels_)
    assert model.n_features_in_ == 5
    assert model.agreement_ == pytest.approx(without.agreement_ * 4 / 5)  # it agrees with nothing
    assert model.member_agreement_.shape == (5, 5)


def test_column__repeated_counts_twice(P):
    once, twice = fit(P), fit(P[:, [0, 0, 1, 2, 3]])
    assert twice.n_features_in_ == 5
    assert len(twice.counts_) == len(once.counts_) + 3


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nan__is_a_missing_label(P, dtype):
    gaps = P.copy()
    gaps[17, 2] = gaps[40, 0] = -1
    expected = fit(gaps).labels_
    floats = np.where(gaps < 0, np.nan, gaps).astype(dtype)
    for form in (floats, list(floats.T), pd.DataFrame(floats), pl.DataFrame(floats)):
        np.testing.assert_array_equal(fit(form).labels_, expected)
    np.testing.assert_array_equal(fit(da.from_array(floats, chunks=(10, 4))).labels_.compute(), expected)


# --- refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "message"),
    [(91, "n_clusters=91 > n_samples=90"), (13, "n_clusters=13 > n_hyperedges=12"), (0, "n_clusters=0")],
)
def test_refused__number_of_clusters(no_sweep, P, k, message):
    with pytest.raises(ValueError, match=message):
        fit(P, k=k)


@pytest.mark.parametrize("k", [2.0, "2", True, None])
def test_refused__number_of_clusters_that_is_no_whole_number(no_sweep, P, k):
    with pytest.raises(TypeError, match=re.escape(f"n_clusters={k!r}")):
        fit(P, k=k)


def test_refused__more_clusters_than_speaking_rows():
    P = np.array([[0, 1], [1, 0], [-1, -1], [-1, -1]])
    with pytest.raises(ValueError, match="n_clusters=3 > n_samples=2"):
        fit(P, k=3)


def test_refused__nothing_said_at_all():
    with pytest.raises(ValueError, match="n_clusters=1 > n_samples=0: no sample has a base label"):
        fit(np.full((4, 2), -1), k=1)


@pytest.mark.parametrize(
    ("empty", "message"),
    [
        (np.empty((5, 0), int), "n_members=0"),
        (np.empty((0, 3), int), "n_samples=0"),
        ([], "n_members=0"),
        ([[], []], "n_samples=0"),
        (pd.DataFrame(index=range(5)), "n_members=0"),
        (pd.DataFrame({"a": [], "b": []}), "n_samples=0"),
        (pd.DataFrame({"a": pd.Series([], dtype="Int64")}), "n_samples=0"),
        (pl.DataFrame(), "n_members=0"),
        (pl.DataFrame({"a": pl.Series([], dtype=pl.Int64)}), "n_samples=0"),
    ],
)
def test_refused__no_members_or_no_samples(no_sweep, empty, message):
    with pytest.raises(ValueError, match=message):
        fit(empty)


BROKEN = [(np.inf, "inf"), (-np.inf, "-inf"), (2.5, "2.5")]


@pytest.mark.parametrize(("value", "written"), BROKEN)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_refused__number_that_is_not_whole(no_sweep, P, value, written, dtype):
    broken = P.astype(dtype)
    broken[17, 2] = value
    message = re.escape(f"{written} at row 17, member 2")
    with pytest.raises(ValueError, match=message):
        fit(broken)
    with pytest.raises(ValueError, match=message):
        fit(da.from_array(broken, chunks=(10, 4)))
    with pytest.raises(ValueError, match=message):
        fit(list(broken.T))


@pytest.mark.parametrize(("value", "written"), BROKEN)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("library", [pd, pl])
def test_refused__number_that_is_not_whole_in_a_frame(no_sweep, P, value, written, dtype, library):
    broken = P.astype(dtype)
    broken[17, 2] = value
    frame = library.DataFrame({name: broken[:, j] for j, name in enumerate("abcd")})
    with pytest.raises(ValueError, match=re.escape(f"{written} at row 17, member c")):
        fit(frame)


@pytest.mark.parametrize("value", [-2, -100])
@pytest.mark.parametrize("dtype", ["i1", "i8", "f8"])
def test_refused__label_below_minus_one(no_sweep, P, value, dtype):
    broken = P.astype(dtype)
    broken[3, 1] = broken[50, 0] = value
    message = rf"{value}(\.0)? at row 3, member 1"
    with pytest.raises(ValueError, match=message):
        fit(broken)
    with pytest.raises(ValueError, match=message):
        fit(list(broken[:40].T))


@pytest.mark.parametrize("library", [pd, pl])
def test_refused__label_below_minus_one_in_a_frame(no_sweep, P, library):
    broken = P.copy()
    broken[3, 1] = -7
    frame = library.DataFrame({name: broken[:, j] for j, name in enumerate("abcd")})
    with pytest.raises(ValueError, match="-7 at row 3, member b"):
        fit(frame)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"a": pd.array([None, 0, None, -5], "Int64")}),
        pl.DataFrame({"a": [None, 0, None, -5]}),
        pd.DataFrame({"a": pd.Categorical([None, 0, None, -5])}),
    ],
)
def test_refused__row_number_counts_nulls_too(no_sweep, frame):
    with pytest.raises(ValueError, match=r"-5(\.0)? at row 3, member a"):
        fit(frame, k=1)


def test_refused__far_down_a_long_array(no_sweep):
    # Long arrays are scanned piece by piece: the row number must be that of the whole.
    long = np.zeros((70_000, 2))
    long[69_999, 1] = 0.5
    with pytest.raises(ValueError, match=r"0.5 at row 69999, member 1"):
        fit(long)
    long[69_999, 1] = -3
    with pytest.raises(ValueError, match=r"-3 at row 69999, member 1"):
        fit(long.astype(int))


def test_refused__columns_of_different_length(no_sweep):
    with pytest.raises(ValueError, match="member 2 has 4 rows, member 0 has 3"):
        fit([[0, 1, 2], [0, 1, 1], [0, 1, 1, 1]])


@pytest.mark.parametrize("shape", [(), (12,), (3, 2, 2)])
def test_refused__wrong_rank(no_sweep, shape):
    with pytest.raises(ValueError, match=re.escape(f"shape {shape}: expected two dimensions")):
        fit(np.zeros(shape, int))


@pytest.mark.parametrize("columns", [[0, 1, 2], [np.zeros((3, 2), int)]])
def test_refused__list_that_is_not_of_columns(no_sweep, columns):
    with pytest.raises(ValueError, match=r"member 0 has \d dimensions"):
        fit(columns)


@pytest.mark.parametrize(
    "array",
    [
        np.array([["a", "b"], ["c", "d"]]),
        np.array([["a", 1], ["c", 2]], object),
        np.array([[0, 1], [1, 0]], object),
        np.array([[0, 1j], [1, 0]]),
        np.array([[0, 1], [1, 0]], "M8[s]"),
    ],
    ids=["text", "mixed", "objects", "complex", "times"],
)
def test_refused__array_that_holds_no_numbers(no_sweep, array):
    message = rf"dtype {re.escape(str(array.dtype))}: expected integers.*data frame"
    with pytest.raises(TypeError, match=message):
        fit(array, k=1)
    if array.dtype != object:
        with pytest.raises(TypeError, match=message):
            fit(list(array.T), k=1)


# --- new samples -------------------------------------------------------------------------------------------------


def test_predict__unknown_labels_say_nothing(P):
    model = fit(P)
    unknown = P.copy()
    unknown[:, 1] = 99
    missing = P.copy()
    missing[:, 1] = -1
    np.testing.assert_array_equal(model.predict(unknown), model.predict(missing))
    np.testing.assert_array_equal(model.predict(np.full((3, 4), 99)), [-1, -1, -1])
    np.testing.assert_array_equal(model.predict(np.full((3, 4), -1)), [-1, -1, -1])


def test_predict__unknown_label_between_known_ones(P):
    model = fit(P * 10)
    between = P * 10
    between[:, 0] += 5
    missing = P * 10
    missing[:, 0] = -1
    np.testing.assert_array_equal(model.predict(between), model.predict(missing))


def test_predict__large_sparse_labels(P):
    model = fit(P * 10**9)
    np.testing.assert_array_equal(model.predict(P * 10**9), model.labels_)
    np.testing.assert_array_equal(model.predict(P * 10**9 + 1), np.full(90, -1))
    np.testing.assert_array_equal(model.predict(P[:4] * 10**9), model.labels_[:4])


def test_predict__some_rows_only(with_gaps):
    # A part that lacks some labels altogether must still be read in the terms of the fit.
    spread = np.where(with_gaps < 0, -1, 3 * with_gaps)
    model = fit(spread)
    for label in (0, 1, 2):
        rows = np.flatnonzero(~(with_gaps == label).any(axis=1))
        assert len(rows)
        np.testing.assert_array_equal(model.predict(spread[rows]), model.labels_[rows])


def test_predict__text_labels(P):
    frame = pd.DataFrame(dict(enumerate(as_text(P))))
    model = fit(frame)
    np.testing.assert_array_equal(model.predict(frame.iloc[::-1]), model.labels_[::-1])
    np.testing.assert_array_equal(
        model.predict(frame.replace("b", "never seen")), model.predict(frame.replace("b", None))
    )


def test_predict__text_and_numbers_never_match(P):
    model = fit(pd.DataFrame(P).astype(str))
    np.testing.assert_array_equal(model.predict(P), np.full(90, -1))


def test_predict__array_after_a_frame(P):
    model = fit(pd.DataFrame(P))
    np.testing.assert_array_equal(model.predict(P), model.labels_)
    np.testing.assert_array_equal(model.predict(pl.DataFrame(P.astype(np.uint8))), model.labels_)


def test_predict__bool_array_after_a_frame(P):
    model = fit(pd.DataFrame(P > 0), k=2)
    np.testing.assert_array_equal(model.predict(P > 0), model.labels_)


def test_predict__another_number_of_members(P):
    with pytest.raises(ValueError, match="3 members, 4 were fitted"):
        fit(P).predict(P[:, :3])
