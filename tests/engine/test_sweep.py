"""A sweep that is handed out twice: stragglers and second attempts on one worker, and what is left when a run ends."""

import pickle
import random
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from distributed.client import FutureCancelledError

from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.engine import budget, dask
from cehm_dask.engine.cache import CACHES
from cehm_dask.engine.dask import DaskWorkers, _on_worker
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.engine.task import fold
from cehm_dask.engine.threads import Threads
from cehm_dask.errors import ClusterError
from cehm_dask.job import Where, find_consensus
from cehm_dask.method.params import Params
from cehm_dask.method.problem import Problem
from cehm_dask.method.rounds import advance
from cehm_dask.method.start import start
from cehm_dask.progress import Progress
from tests.conftest import worker_processes
from tests.method.test_consensus import an_engine, assert_same_result, hyperedges_in, solve

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
PARAMS = Params(6, variant="released")


def first_order(P):
    problem = Problem(0, PARAMS, hyperedges_in(P), np.arange(6))
    return next(start(problem))


class Stragglers(Threads):
    """Every task is done by two threads at once, and now and then one of an earlier sweep comes in between."""

    def __init__(self):
        super().__init__(2)
        self.earlier, self.rng, self.met = [], random.Random(0), 0

    def sweep(self, asked):
        work, args = asked.work, asked.args

        def with_stragglers(span):
            others = [(work, span, args), *self.rng.sample(self.earlier, min(1, len(self.earlier)))]
            threads = [threading.Thread(target=_on_worker, args=(w, r, None, a)) for w, r, a in others]
            for thread in threads:
                thread.start()
            try:
                return _on_worker(work, span, None, args)
            finally:
                for thread in threads:
                    thread.join()

        self.earlier += [(work, span, args) for span in asked.spans]
        return fold(asked.combine, map(with_stragglers, asked.spans))


@pytest.mark.parametrize(("stored", "keep_state"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("variant", ["released", "printed", "cosine"])
def test_resident__attempts_that_overlap_change_nothing(hard_ensemble, monkeypatch, variant, stored, keep_state):
    P, params = hard_ensemble[:1500], Params(6, variant=variant, max_iter=10)
    wanted = solve(P, params)
    stragglers, blocks = Stragglers(), Span.blocks

    def slow(self):
        for block in blocks(self):
            yield block
            time.sleep(0.0002)  # lets the other thread in

    monkeypatch.setattr(Span, "blocks", slow)
    how = {"stored": stored, "keep_state": keep_state, "sample_stride": 3}
    found = solve(P, params, block_rows=250, before_sweep=lambda own: setattr(own, "_workers", stragglers), **how)
    assert_same_result(found, wanted)


def test_resident__a_straggler_after_the_end_leaves_nothing_behind(hard_ensemble):
    order = first_order(hard_ensemble)
    with an_engine(hard_ensemble, 6) as own:
        run = own.spans[0]
        wanted = advance(run, [order])[0]
    found = _on_worker(advance, run, None, ([order],))[0]
    np.testing.assert_array_equal(found.delta, wanted.delta)
    assert run.token not in CACHES._kept
    assert run.token not in CACHES._bytes


# --- losses in the middle of a sweep -----------------------------------------------------------------------------


class Disturbed(Progress):
    """Does something to the cluster in the middle of some sweeps, when a part of their rows is done."""

    def __init__(self, disturb, sweeps):
        self.disturb, self.sweeps = disturb, sweeps
        self.sweep, self.done, self.times = 0, 0, 0

    def advanced(self, _stage, done, total):
        self.sweep += done < self.done  # a new one has begun
        self.done = done
        if self.sweep in self.sweeps and 0 < done < total:
            self.sweeps = self.sweeps - {self.sweep}
            self.times += 1
            self.disturb()


@pytest.fixture(scope="module")
def stored(hard_ensemble, tmp_path_factory):
    url = str(tmp_path_factory.mktemp("engine") / "e.zarr")
    ingest(hard_ensemble, url, chunk_rows=64)
    return url


@pytest.fixture
def many_runs(monkeypatch):
    """Several spans per thread, so that a sweep has a middle."""
    monkeypatch.setattr(budget, "DASK_SPAN_WORK", 1)


def assert_as_on_threads(found, stored, params):
    wanted = find_consensus(as_labels(stored), params, 0, Where(threads=1))
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)
    np.testing.assert_array_equal(found.confidence, wanted.confidence)
    one, other = found.consensus.chosen.problem, wanted.consensus.chosen.problem
    assert (one.losses, one.growth, one.moves) == (other.losses, other.growth, other.moves)


def slow_from_now(pause):
    """On a worker: of the tasks that begin from now on, those of one of its two threads rest after every block."""
    if not hasattr(dask, "_blocks"):
        dask._blocks = Span.blocks
    blocks = dask._blocks

    def slow(self):
        for block in blocks(self):
            yield block
            time.sleep(pause * (self.index >= 2))  # runs 0 and 2 are one worker's, 1 and 3 the other's

    Span.blocks = slow


@pytest.mark.chaos
def test_sweep__handed_out_again_beside_its_stragglers(stored, monkeypatch):
    """Attempts are lost whose tasks go on for a second, while the second attempt and the next sweeps overtake them."""
    monkeypatch.setattr(dask, "RETRY_SECONDS", 0.0)
    hand_out, times = DaskWorkers._sweep, Counter()

    def lose_some(self, *args):
        times["attempts"] += 1
        if times["attempts"] % 3 != 0:
            return hand_out(self, *args)
        times["lost"] += 1

        def lose(_layer):
            time.sleep(0.1)  # the tasks have begun
            raise FutureCancelledError("cehm-run", "scheduler-connection-lost")

        self.client.run(slow_from_now, 0.04)
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(self.client, "gather", lose)
                return hand_out(self, *args)
        finally:
            self.client.run(slow_from_now, 0.0)

    monkeypatch.setattr(DaskWorkers, "_sweep", lose_some)
    params = Params(3, variant="released", max_iter=4)
    with worker_processes(threads=2) as (_, client):
        found = find_consensus(as_labels(stored), params, 0, Where(client=client, block_rows=64))
    assert times["lost"] >= 4
    assert_as_on_threads(found, stored, params)


def test_sweep__scheduler_lost_for_good(stored, many_runs):
    words = r"the cluster was lost \(no answer from its scheduler .*\); the same command resumes from here"
    with worker_processes(1) as (_, client):
        close = threading.Thread(target=client.close)
        lost = Disturbed(close.start, {2})
        with pytest.raises(ClusterError, match=words):
            find_consensus(as_labels(stored), PARAMS, 0, Where(client=client, block_rows=64), progress=lost)
    close.join()


def test_span__sent_without_the_edges_of_all_others():
    """Else the messages of a sweep would grow with the square of the number of spans: 4,000 of them took 136 MB."""
    labels = as_labels(np.zeros((1000, 3), np.int64))
    settled = budget.make_budget(labels.shape, [2], allowed=1 << 40)
    sizes = []
    for count in (10, 1000):
        edges = tuple(range(count + 1))
        with Engine(labels, replace(settled, span_edges=edges)) as engine:
            assert len(engine.spans) == count
            sizes.append(len(pickle.dumps(replace(engine.spans[5], labels=None))))
    assert sizes[0] == sizes[1]
