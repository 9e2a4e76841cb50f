"""Features as dask arrays and data frames: worked on where they are, the same bits as from numpy in one process."""

import logging

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.utils import key_split
from distributed import Client, LocalCluster, futures_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cehm_dask import ClusterEnsemble
from cehm_dask.data import features
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.features import as_features
from cehm_dask.errors import BudgetError, InputError, InputTypeError
from cehm_dask.machine import cluster_machine
from cehm_dask.members import collection
from cehm_dask.members import generate as generation
from cehm_dask.members.fit import plan_members
from cehm_dask.members.generate import generate
from cehm_dask.rivals import METHODS

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

FIELDS = ("base_labels_", "labels_", "margin_", "confidence_")
N = 700


def points(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(4.0 * rng.integers(3, size=N)[:, None], 1.0, (N, 4))


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """Several blocks, so that a wrong cut would show; tasks carry the rows that they read, not their number."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (features, collection, generation):
            patch.setattr(module, "BLOCK_ROWS", 128)
        yield


def fit(X, base=("kmeans", "mixture"), **how):
    return ClusterEnsemble(3, members=4, base=list(base), fit_rows=300, random_state=0).fit(X, **how)


@pytest.fixture(scope="module")
def wanted():
    return fit(points(), client=False)


def assert_same(found, wanted):
    for name in FIELDS:
        np.testing.assert_array_equal(np.asarray(getattr(found, name)), np.asarray(getattr(wanted, name)))


def row_chunks(n):
    return st.lists(st.integers(1, n), max_size=6).map(lambda cuts: tuple(np.diff(sorted({0, *cuts, n})).tolist()))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=row_chunks(N), columns=st.sampled_from([4, 3, 1]), unknown=st.booleans(), held=st.booleans())
def test_array__same_bits_for_any_chunks(wanted, rows, columns, unknown, held):
    x = da.from_array(points(), chunks=(rows, columns))
    if unknown:
        x = x[da.from_array(np.ones(N, bool), chunks=(rows,))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "HELD", 2 if held else 1e12)
        found = fit(x, client=False)
    assert found.labels_.chunks == (rows,)
    assert_same(found, wanted)
    labels = found.predict(x)
    assert isinstance(labels, da.Array)
    np.testing.assert_array_equal(labels.compute(), wanted.labels_)


def test_frame__series_with_its_index_and_divisions_also_of_empty_partitions(wanted):
    frame = pd.DataFrame(points(), columns=list("abcd"), index=np.arange(50, 50 + N))
    ddf = dd.from_pandas(frame, npartitions=3)
    found = fit(ddf, client=False)
    assert found.labels_.divisions == ddf.divisions
    labels = found.labels_.compute()
    assert labels.index.equals(frame.index)
    np.testing.assert_array_equal(labels, wanted.labels_)
    np.testing.assert_array_equal(found.confidence_.compute(), wanted.confidence_)
    np.testing.assert_array_equal(found.predict(ddf).compute(), wanted.labels_)
    holes = dd.concat([ddf[ddf.a > 1e9], ddf, ddf[ddf.a > 1e9]])
    np.testing.assert_array_equal(fit(holes, client=False).labels_.compute(), wanted.labels_)


def test_workers__do_all_of_it_and_base_labels_stay_there(wanted, tmp_path, caplog):
    options = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(n_workers=2, **options) as cluster, Client(cluster) as client:
        client.run(_small_blocks)
        x = client.persist(da.from_array(points(), chunks=(150, 4)))
        with caplog.at_level(logging.INFO, "cehm_dask"):
            found = fit(x)
        assert f"dashboard: {client.dashboard_link}" in caplog.text
        done = {key for worker in client.run(_tasks_done).values() for key in worker}
        assert {"cehm-statistics", "cehm-fit", "cehm-label", "cehm-intersections", "cehm-result"} <= done
        assert all(isinstance(getattr(found, name), da.Array) for name in FIELDS)
        assert found.base_labels_.chunks[0] == x.chunks[0]
        assert_same(found, wanted)
        np.testing.assert_array_equal(found.predict(x).compute(), wanted.labels_)
        stored = fit(x, output=tmp_path / "e.zarr")
        assert_same(stored, wanted)
        assert open_ensemble(str(tmp_path / "e.zarr")).n_samples == N
        # The current client also makes ensembles and rival consensuses.
        before = client.run(_count_done)
        rivals = METHODS["voting"](found.base_labels_, 3)
        np.testing.assert_array_equal(rivals, METHODS["voting"](wanted.base_labels_, 3))
        assert client.run(_count_done) != before
        before = client.run(_count_done)
        np.save(tmp_path / "x.npy", points())
        generate(as_features(tmp_path / "x.npy"), str(tmp_path / "g.zarr"), plan_members(2, 3, 4, 0), 0)
        assert client.run(_count_done) != before
        bad = da.from_array(np.where(np.arange(N)[:, None] == 431, np.nan, points()), chunks=(150, 4))
        with pytest.raises(InputError, match="rows 384 to 511 of the collection: features hold nan at row 431"):
            fit(bad)
        broken = x.map_blocks(_broken, dtype=x.dtype, meta=np.empty((0, 0)))
        with pytest.raises(ZeroDivisionError) as caught:
            fit(broken)
        assert any("rows 0 to 127 of the collection" in note for note in caught.value.__notes__)


def _small_blocks():
    for module in (features, collection, generation):
        module.BLOCK_ROWS = 128


def _tasks_done(dask_worker):
    return {key_split(event[0]) for event in dask_worker.state.log}


def _count_done(dask_worker):
    # Any fit wakes the cluster by a small task, whoever then does the work.
    keys = {str(event[0]) for event in dask_worker.state.log}
    return len({key for key in keys if key.startswith("cehm-") and not key.startswith(("cehm-awake", "cehm-first"))})


def _broken(block):
    return block // 0 if len(block) == 0 else 1 // 0


def test_blocks__stay_with_a_client_that_is_not_the_default(two_processes):
    x = da.from_array(points(), chunks=(150, 4))
    found = collection.features_on(x, two_processes, cluster_machine(two_processes, None))
    assert len(found.chunks.parts) == -(-N // 128)
    assert all(futures_of(part) for part in found.chunks.parts)


def test_output__is_an_ensemble_store_also_without_a_client(wanted, tmp_path):
    x = da.from_array(points(), chunks=(333, 4))
    found = fit(x, client=False, output=tmp_path / "e.zarr")
    assert found.labels_.chunks == ((333, 333, 34),)
    assert_same(found, wanted)
    assert_same(fit(points(), client=False, output=tmp_path / "e.zarr", overwrite=True), wanted)
    with pytest.raises(OSError, match="exists"):
        fit(x, client=False, output=tmp_path / "e.zarr")


def test_missing_labels_of_a_member__are_missing_for_the_consensus_too():
    class Unsure:
        """Says nothing about rows below 0; the rest in two clusters."""

        def fit(self, rows):
            return self

        def predict(self, rows):
            return np.where(rows[:, 0] < 0, -1, (rows[:, 0] > 1).astype(int))

    found = ClusterEnsemble(2, members=3, base=["kmeans", Unsure()], random_state=0).fit(points(), client=False)
    assert found.base_labels_[:, 1].min() == 0
    assert len(found.consensus_._model.values[1]) == 2


def test_memory__base_labels_that_do_not_fit_are_refused_with_a_way_out(monkeypatch):
    monkeypatch.setattr(collection, "COPIES", 1e12)
    with pytest.raises(BudgetError, match=r"base labels take .* pass output="):
        fit(da.from_array(points(), chunks=(333, 4)), client=False)


def test_memory__is_a_setting_of_dask():
    with dask.config.set({"cehm.memory": "1MiB"}), pytest.raises(BudgetError, match=r"memory=1.00 MiB allowed"):
        fit(points(), client=False)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (da.zeros(5), "expected two dimensions"),
        (da.zeros((0, 3)), "at least one row"),
        (da.from_array(np.array([["a"]])), "expected numbers"),
        (
            dd.from_pandas(pd.DataFrame({"when": [pd.Timestamp(0)]}), npartitions=1),
            "'when' holds .*dates='days'",
        ),
    ],
)
def test_bad_collections__are_refused_in_words(wrong, words):
    with pytest.raises((InputError, InputTypeError), match=words):
        fit(wrong, client=False)


def test_predict__other_features(wanted):
    with pytest.raises(InputError, match="X has 3 features, 4 were fitted"):
        wanted.predict(da.zeros((10, 3)))
