"""Dask arrays and data frames of base labels: worked on where they are, the same bits as numpy."""

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

FIELDS = ("labels_", "margin_", "confidence_")
TABLES = ("counts_", "weights_", "cluster_sizes_", "loss_history_", "growth_", "medoids_")


def noisy(n=900, members=12, missing=0.1, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(5, size=n)
    labels = np.where(rng.random((n, members)) < 0.75, truth[:, None], rng.integers(5, size=(n, members)))
    labels[rng.random((n, members)) < missing] = -1
    labels[n // 3] = -1
    return labels


def fit(X, **how):
    return CEHM(5, random_state=0).fit(X, **how)


def assert_same(found, wanted):
    for name in TABLES:
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    for name in FIELDS:
        np.testing.assert_array_equal(np.asarray(getattr(found, name)), getattr(wanted, name))
    assert found.scan_ == wanted.scan_


@pytest.fixture(scope="module")
def wanted():
    return fit(noisy())


def row_chunks(n):
    return st.lists(st.integers(1, n), max_size=6).map(lambda cuts: tuple(np.diff(sorted({0, *cuts, n})).tolist()))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    columns=st.sampled_from([12, 5, 1]),
    dtype=st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.float32]),
    unknown=st.booleans(),
)
def test_array__same_bits_for_any_chunks_and_types(wanted, data, columns, dtype, unknown):
    P = noisy().astype(dtype)
    x = da.from_array(P, chunks=(data.draw(row_chunks(len(P))), columns))
    given_chunks = x.chunks[0]
    if unknown:
        x = x[da.from_array(np.ones(len(P), bool), chunks=(given_chunks,))]
        assert np.isnan(x.chunks[0]).all()
    found = fit(x, client=False)
    assert isinstance(found.labels_, da.Array)
    assert unknown or found.labels_.chunks[0] == given_chunks
    assert_same(found, wanted)


@pytest.mark.parametrize("chunks", [(100, 12), (317, 5), (900, 12)])
def test_array__same_bits_on_workers(wanted, two_processes, chunks):
    x = da.from_array(noisy(), chunks=chunks)
    with dask.config.set(scheduler=two_processes):
        found = fit(two_processes.persist(x), client=two_processes)
        assert isinstance(found.margin_, da.Array)
        assert found.margin_.chunks[0] == x.chunks[0]
        assert_same(found, wanted)
