"""FasterPAM: no swap improves, whatever the table; and it is as good as the kmedoids package, in no more time."""

import time
from functools import cache
from pathlib import Path

import kmedoids
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cehm_dask.errors import InputError
from cehm_dask.method.fasterpam import fasterpam
from tests import reference

GOLDEN = Path(__file__).parent.parent / "golden"


def loss_of(table, chosen):
    return table[:, chosen].min(axis=1).sum(dtype=np.float64)


def best_swap(table, chosen):
    """The lowest loss that a single swap leads to, tried one by one."""
    others = np.setdiff1d(np.arange(len(table)), chosen)
    return min(loss_of(table, [*np.delete(chosen, i), j]) for i in range(len(chosen)) for j in others)


@st.composite
def tables(draw):
    """Tables of few values (many ties) or many, with or without symmetry, zeros on the diagonal or anything."""
    n, rng = draw(st.integers(2, 14)), np.random.default_rng(draw(st.integers(0, 2**31)))
    table = rng.integers(0, 4, (n, n)) / 4 if draw(st.booleans()) else rng.random((n, n))
    if draw(st.booleans()):
        table = (table + table.T) / 2
    if draw(st.booleans()):
        np.fill_diagonal(table, 0.0)
    order = draw(st.sampled_from("CF"))
    return np.asarray(table, draw(st.sampled_from([np.float32, np.float64])), order=order)


@settings(max_examples=200, deadline=None)
@given(table=tables(), data=st.data())
def test_fasterpam__no_single_swap_improves(table, data):
    k, seed = data.draw(st.integers(1, len(table) - 1)), data.draw(st.integers(0, 1000))
    before = table.copy()
    found = fasterpam(table, k, np.random.default_rng(seed))
    assert len(set(found.columns.tolist())) == k
    assert (np.diff(found.columns) > 0).all()
    assert found.columns.min() >= 0
    assert found.columns.max() < len(table)
    assert found.loss == pytest.approx(loss_of(table, found.columns), rel=1e-12, abs=1e-12)
    assert best_swap(table, found.columns) >= found.loss - 1e-9 * max(1.0, found.loss)
    np.testing.assert_array_equal(table, before)
    again = fasterpam(table, k, np.random.default_rng(seed))
    np.testing.assert_array_equal(again.columns, found.columns)
    assert again.loss == found.loss


def test_fasterpam__rows_are_points_and_columns_are_medoids():
    table = np.ones((4, 4), np.float32)
    table[:, 2] = 0.0  # everything is near to 2, but 2 is far from everything
    assert fasterpam(table, 1, np.random.default_rng(0)).columns.tolist() == [2]
    assert 2 in fasterpam(table, 2, np.random.default_rng(0)).columns
    assert fasterpam(table, 2, np.random.default_rng(0)).loss == 0.0


@pytest.mark.parametrize("k", [1, 5, 6])
def test_fasterpam__the_ends_of_k(k):
    table = np.abs(np.subtract.outer(np.arange(6.0), np.arange(6.0)))
    assert fasterpam(table, k, np.random.default_rng(0)).loss == {1: 9.0, 5: 1.0, 6: 0.0}[k]


def test_fasterpam__seeds_differ():
    table = tables_of("semeion")["jaccard"]
    found = {fasterpam(table, 10, np.random.default_rng(seed)).loss for seed in range(10)}
    assert len(found) > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1.0])
def test_fasterpam__refuses_what_is_no_dissimilarity(bad):
    table = np.zeros((5, 5), np.float32)
    table[3, 1] = bad
    with pytest.raises(InputError, match="expected finite numbers from 0 on"):
        fasterpam(table, 2, np.random.default_rng(0))


@pytest.mark.parametrize(("shape", "k"), [((3, 3), 0), ((3, 3), 4), ((3, 4), 2)])
def test_fasterpam__refuses_impossible_numbers(shape, k):
    with pytest.raises(InputError, match=rf"n_clusters={k}: expected 1 to n medoids"):
        fasterpam(np.zeros(shape), k, np.random.default_rng(0))


# --- against the kmedoids package, which is for tests only -----------------------------------------------------------


@cache
def tables_of(name):
    with np.load(GOLDEN / f"{name}.npz") as golden:
        P = golden["P"]
    return {
        similarity: np.asfortranarray(reference.dissimilarity(P, similarity), np.float32)
        for similarity in ("jaccard", "containment")
    }


@pytest.mark.parametrize("similarity", ["jaccard", "containment"])
@pytest.mark.parametrize(("name", "k"), [("iris", 3), ("lbp", 3), ("missing", 3), ("semeion", 10), ("soybean", 18)])
def test_fasterpam__no_higher_loss_than_the_package(name, k, similarity):
    table, rng = tables_of(name)[similarity], np.random.default_rng(0)
    ours = min(fasterpam(table, k, rng).loss for _ in range(10))
    rows = np.ascontiguousarray(table)
    theirs = min(
        loss_of(table, kmedoids.fasterpam(rows, k, init="random", random_state=seed, n_cpu=1).medoids)
        for seed in range(10)
    )
    assert ours <= theirs * (1 + 1e-9)


def test_fasterpam__takes_no_longer_than_the_package():
    table, rng = tables_of("semeion")["jaccard"], np.random.default_rng(0)
    rows = np.ascontiguousarray(table)
    fasterpam(table, 2, rng)  # compiled
    ours, theirs = [], []
    for seed in range(10):  # in turns, as others may use the machine too
        begin = time.thread_time()
        fasterpam(table, 10, rng)
        between = time.thread_time()
        kmedoids.fasterpam(rows, 10, init="random", random_state=seed, n_cpu=1)
        ours.append(between - begin)
        theirs.append(time.thread_time() - between)
    assert np.median(ours) <= np.median(theirs)
