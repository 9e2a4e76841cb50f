"""Dask arrays and data frames of base labels: worked on where they are, the same bits as numpy."""

import logging

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.utils import key_split
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM
from cehm_dask.engine import collection
from cehm_dask.errors import ClusterError, InputError, InputTypeError

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
        np.testing.assert_array_equal(np.asarray(getattr(found, name)), np.asarray(getattr(wanted, name)))
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


def test_current_client__is_used_and_can_be_refused(wanted, tmp_path):
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        x = client.persist(da.from_array(noisy(), chunks=(200, 12)))
        found = fit(x)
        story = {key for worker in client.run(_tasks_done).values() for key in worker}
        assert {"cehm-intersections", "cehm-start", "cehm-result"} <= story
        assert_same(found, wanted)
        # Base labels in memory go to the current client too; False keeps them here.
        before = client.run(_count_done)
        assert_same(fit(noisy(), client=False), wanted)
        assert client.run(_count_done) == before
        assert_same(fit(noisy()), wanted)
        assert client.run(_count_done) != before
        assert_same(fit(noisy(), client=cluster.scheduler_address), wanted)
        stored = fit(x, output=str(tmp_path / "c.zarr"))
        assert_same(stored, fit(noisy(), output=str(tmp_path / "d.zarr"), client=False))
    with pytest.raises(ClusterError, match="the client is closed: open a new one"):
        fit(noisy(), client=client)
    with pytest.raises(InputTypeError, match="client=int: expected a distributed"):
        fit(noisy(), client=3)


def _tasks_done(dask_worker):
    return {key_split(event[0]) for event in dask_worker.state.log}


def _count_done(dask_worker):
    """Tasks of ours that it has met; what it forgets meanwhile does not count."""
    # Any fit wakes the cluster by a small task, whoever then does the work.
    keys = {str(event[0]) for event in dask_worker.state.log}
    return len({key for key in keys if key.startswith("cehm-") and not key.startswith(("cehm-awake", "cehm-first"))})


class Heard(logging.Handler):
    """What a logger says; distributed's do not hand on to pytest's."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.mark.parametrize("columns", [12, 5])
def test_lazy_array__no_task_of_the_user_comes_back_with_other_contents(wanted, two_processes, columns):
    # Dask warns of deadlocks then, and has them: a fit hung when a worker was lost.
    parts = [da.from_delayed(dask.delayed(part), part.shape, part.dtype) for part in np.split(noisy(), 9)]
    x = da.concatenate(parts).rechunk({1: columns})
    log, heard = logging.getLogger("distributed.scheduler"), Heard()
    log.addHandler(heard)
    try:
        with dask.config.set(scheduler=two_processes):
            for _ in range(2):
                found = fit(x, client=two_processes)
                assert_same(found, wanted)
                np.testing.assert_array_equal(found.predict(x).compute(), wanted.predict(noisy()))
    finally:
        log.removeHandler(heard)
    assert [message for message in heard.messages if "run_spec" in message] == []


def test_predict__lazy_and_equal(wanted):
    new = noisy(seed=7)
    x = da.from_array(new, chunks=(250, 12))
    labels = wanted.predict(x)
    assert labels.chunks == ((250, 250, 250, 150),)
    np.testing.assert_array_equal(labels.compute(), wanted.predict(new))
    membership = wanted.membership(x)
    assert membership.chunks == ((250, 250, 250, 150), (5,))
    np.testing.assert_array_equal(membership.compute(), wanted.membership(new))


def test_nothing_is_computed_before_it_is_asked_for(wanted):
    def never(block):
        raise AssertionError("computed")

    x = da.from_array(noisy(), chunks=(300, 12)).map_blocks(never, dtype=np.int64, meta=np.empty((0, 0), np.int64))
    with pytest.raises(AssertionError, match="computed"):
        wanted.predict(x)[:5].compute()
    assert wanted.predict(x).shape == (900,)


@pytest.mark.parametrize("text", [False, True])
def test_frame__series_with_its_index_and_divisions(wanted, text):
    P = noisy()
    frame = pd.DataFrame(P, index=np.arange(100, 100 + len(P)), columns=[f"m{j}" for j in range(12)])
    if text:
        frame = frame.apply(lambda column: column.map(lambda label: None if label < 0 else f"c{label}"))
    ddf = dd.from_pandas(frame, npartitions=4)
    found = fit(ddf, client=False)
    assert found.labels_.divisions == ddf.divisions
    labels = found.labels_.compute()
    assert labels.index.equals(frame.index)
    assert labels.name == "labels"
    np.testing.assert_array_equal(labels, wanted.labels_)
    np.testing.assert_array_equal(found.confidence_.compute(), wanted.confidence_)
    np.testing.assert_array_equal(found.predict(ddf).compute(), wanted.labels_)
    np.testing.assert_array_equal(found.membership(ddf).compute(), wanted.membership(P))


def test_labels__spread_widely_are_ranked(wanted):
    P = np.where(noisy() < 0, -1, noisy() * 100_003 + 7)
    assert_same(fit(da.from_array(P, chunks=(211, 12)), client=False), wanted)


def test_scratch__codes_that_do_not_fit_go_through_a_store(wanted, two_processes, monkeypatch, tmp_path):
    stores = []
    through = collection._through_store
    monkeypatch.setattr(collection, "COPIES", 1e9)
    monkeypatch.setattr(collection, "_through_store", lambda *args: stores.append(args[-1]) or through(*args))
    x = da.from_array(noisy(), chunks=(173, 5))
    with dask.config.set({"temporary-directory": str(tmp_path)}):
        assert_same(fit(x, client=False), wanted)
        with dask.config.set(scheduler=two_processes):
            assert_same(fit(x, client=two_processes), wanted)
    assert len(stores) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([[0.0, 2.5], [1, 1]], "block 0 of the collection: base labels hold 2.5 at row 0, member 1"),
        ([[0, 2], [1, -2]], "block 1 of the collection: base labels hold -2 at row 1, member 1"),
        ([["a", "b"], ["c", "d"]], "base labels have dtype"),
    ],
)
def test_bad_blocks__are_named(values, words):
    with pytest.raises((InputError, InputTypeError), match=words):
        fit(da.from_array(np.array(values), chunks=(1, 2)), client=False)


def test_bad_shape__is_named():
    with pytest.raises(InputError, match="1 dimensions: expected two"):
        fit(da.zeros(10, dtype=int), client=False)
    with pytest.raises(InputError, match="n_samples=0"):
        fit(da.zeros((0, 3), dtype=int), client=False)


def test_single_rows__that_no_member_tells_apart(two_processes):
    P = np.zeros((40, 3), int)
    wanted = CEHM(3, random_state=0).fit(P)
    found = CEHM(3, random_state=0).fit(da.from_array(P, chunks=(7, 3)), client=False)
    np.testing.assert_array_equal(found.labels_.compute(), wanted.labels_)
    np.testing.assert_array_equal(found.margin_.compute(), wanted.margin_)
    assert len(set(wanted.labels_)) == 3
