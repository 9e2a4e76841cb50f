"""Clusters that start workers only when there are tasks, and stop them afterwards; fits from inside a task."""

import time

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from cehm_dask import CEHM
from cehm_dask.clusters.current import client_of
from cehm_dask.clusters.workers import access_faults, workers_of
from cehm_dask.errors import ClusterError, InputTypeError
from cehm_dask.machine import await_worker

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

OPTIONS = {"threads_per_worker": 1, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}


def base_labels(n=600):
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=n)
    return np.where(rng.random((n, 8)) < 0.8, truth[:, None], rng.integers(3, size=(n, 8)))


def test_adaptive__no_workers_before_and_none_after():
    P = base_labels()
    wanted = CEHM(3, random_state=0).fit(P, client=False)
    # Workers are threads of this process: they come and go at once.
    options = {"threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(n_workers=0, **options) as cluster, Client(cluster, set_as_default=False) as client:
        cluster.adapt(minimum=0, maximum=2, interval="200ms", wait_count=5)
        assert not cluster.workers
        with client_of(client):
            await_worker(client)
            time.sleep(5)  # five times as long as it takes to stop an idle worker
            assert cluster.workers
        found = CEHM(3, random_state=0).fit(P, client=client)
        np.testing.assert_array_equal(found.labels_, wanted.labels_)
        until = time.monotonic() + 120
        while cluster.workers and time.monotonic() < until:
            time.sleep(0.2)
        assert not cluster.workers


def test_access__workers_that_left_meanwhile_are_no_fault(two_processes, tmp_path, monkeypatch):
    (tmp_path / "x").write_text("1")
    real, gone = two_processes.run, {"tcp://127.0.0.1:1": OSError("gone")}
    monkeypatch.setattr(two_processes, "run", lambda *args, **how: {**real(*args, **how), **gone})
    assert list(access_faults(two_processes, [str(tmp_path / "x")], [])) == []
    # Where nobody answers, nobody is known to see the input.
    monkeypatch.setattr(two_processes, "run", lambda *_, **__: gone)
    assert len(list(access_faults(two_processes, [str(tmp_path / "x")], []))) == 1
    there = next(iter(workers_of(two_processes)))
    monkeypatch.setattr(two_processes, "run", lambda *_, **__: {there: OSError("gone")})
    assert [address for address, _ in access_faults(two_processes, [str(tmp_path / "x")], [])] == [there]


def test_no_worker__ever_comes():
    with (
        LocalCluster(n_workers=0, **OPTIONS) as cluster,
        Client(cluster, set_as_default=False) as client,
        pytest.raises(ClusterError, match=r"no worker came in 0.5 s to the scheduler tcp://"),
    ):
        await_worker(client, 0.5)


def test_inside_a_task__the_worker_stays_free():
    """With one thread in all, a fit that kept it would wait for itself."""
    P = base_labels(300)
    with LocalCluster(n_workers=1, **OPTIONS) as cluster, Client(cluster, set_as_default=False) as client:
        labels = client.submit(_fit, P).result()
    np.testing.assert_array_equal(labels, CEHM(3, random_state=0).fit(P, client=False).labels_)


def _fit(P):
    return CEHM(3, random_state=0).fit(P).labels_


def test_client__that_is_none_of_the_accepted():
    with pytest.raises(InputTypeError, match=r"client=list: expected a distributed\.Client"), client_of([1]):
        pass
    with dask.config.set({"cehm.client": 7}), pytest.raises(InputTypeError, match="client=int"), client_of(None):
        pass
    with dask.config.set({"cehm.client": False}), client_of(None) as found:
        assert found is None
