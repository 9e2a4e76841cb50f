"""The same labels whatever the machine: in memory, out of core, on processes, resumed, with a worker lost."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM, job
from cehm_dask.data.consensus_store import ConsensusStore, open_consensus
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.engine import budget, dask
from cehm_dask.engine import sweep as engine
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.dask import share_out
from cehm_dask.errors import BudgetError, BusyError, StoreError
from cehm_dask.job import Where, find_consensus
from cehm_dask.method import diffusion
from cehm_dask.method.params import Params
from cehm_dask.method.result import gather, join
from cehm_dask.method.trail import rows_to_follow
from tests.conftest import worker_processes

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
PARAMS = Params(10, variant="released", restarts=2)


@pytest.fixture(scope="module")
def ensemble(hard_ensemble, tmp_path_factory):
    url = str(tmp_path_factory.mktemp("ensemble") / "ensemble.zarr")
    ingest(hard_ensemble, url, chunk_rows=128)
    return url


@pytest.fixture(scope="module")
def wanted(hard_ensemble):
    return find_consensus(as_labels(hard_ensemble), PARAMS, 0, Where(threads=1))


def knobs_of(variant):
    """To be put in the place of PARAMS' own."""
    params = Params(10, variant=variant)
    names = ("variant", "similarity", "belonging", "schedule", "portfolio")
    return {name: getattr(params, name) for name in names}


@pytest.fixture(scope="module")
def wanted_of(hard_ensemble):
    """The result of a variant in memory, computed once."""

    @cache
    def of(variant):
        return find_consensus(as_labels(hard_ensemble), replace(PARAMS, **knobs_of(variant)), 0, Where(threads=1))

    return of


def assert_same(found, wanted):
    np.testing.assert_array_equal(found.labels[:], wanted.labels)
    np.testing.assert_array_equal(found.margin[:], wanted.margin.astype(found.margin.dtype))
    assert found.consensus.chosen.problem.losses == wanted.consensus.chosen.problem.losses
    assert found.consensus.chosen.problem.growth == wanted.consensus.chosen.problem.growth
    assert found.consensus.chosen.problem.moves == wanted.consensus.chosen.problem.moves


def test_wanted__takes_several_rounds(wanted):
    problem = wanted.consensus.chosen.problem
    assert len(problem.growth) > 3
    assert len(problem.losses) > 2
    assert wanted.labels[17] == -1


@given(
    chunk_rows=st.integers(50, 7000),
    block_rows=st.integers(40, 7000),
    threads=st.integers(1, 3),
    keep_state=st.booleans(),
    keep_labels=st.booleans(),
    stored=st.booleans(),
    sample_stride=st.sampled_from([1, 3, 20, 300, 4779]),
    sigmas=st.sampled_from([0.0, 4.0]),
    room=st.sampled_from([0.0, 0.01, 1.0]),
    variant=st.sampled_from(["released", "printed", "cosine", "auto"]),
)
@settings(max_examples=30)
def test_same_labels__any_chunk_block_budget_and_foresight(
    hard_ensemble,
    wanted_of,
    tmp_path_factory,
    chunk_rows,
    block_rows,
    threads,
    keep_state,
    keep_labels,
    stored,
    sample_stride,
    sigmas,
    room,
    variant,
):
    folder = tmp_path_factory.mktemp("any")
    ingest(hard_ensemble, str(folder / "e.zarr"), chunk_rows=chunk_rows)
    where = Where(threads=threads, block_rows=block_rows, output=str(folder / "c.zarr") if stored else None)

    def budget_of(*args):
        found = budget(*args)
        terms = {**found.terms, "samples near a cut": int(room * found.terms["samples near a cut"])}
        kept = {"keep_state": keep_state, "keep_labels": keep_labels}
        return replace(found, terms=terms, sample_stride=sample_stride, **kept)

    budget = job.budget_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "budget_of", budget_of)
        patch.setattr(diffusion, "BAND_SIGMAS", sigmas)  # cuts miss narrow bands, and those of a poor sample
        found = find_consensus(as_labels(folder / "e.zarr"), replace(PARAMS, **knobs_of(variant)), 0, where)
    assert_same(found, wanted_of(variant))


@pytest.fixture(params=["a run a worker", "many runs"])
def runs(request, monkeypatch):
    """Few rows are one run a worker; as many as of large data are summed in several layers, orders fetched apart."""
    if request.param == "many runs":
        monkeypatch.setattr(budget, "DASK_SPAN_WORK", 1)
        monkeypatch.setattr(dask, "FAN_IN", 2)
        monkeypatch.setattr(dask, "SMALL_ARGUMENTS", 0)


def test_same_labels__two_processes(ensemble, wanted, two_processes, tmp_path, runs):
    assert_same(find_consensus(as_labels(ensemble), PARAMS, 0, Where(client=two_processes)), wanted)
    output = Where(client=two_processes, output=str(tmp_path / "c.zarr"), block_rows=60)
    assert_same(find_consensus(as_labels(ensemble), PARAMS, 0, output), wanted)


def test_same_labels__array_sent_to_two_processes(hard_ensemble, wanted, two_processes):
    assert_same(
        find_consensus(as_labels(hard_ensemble), PARAMS, 0, Where(client=two_processes, block_rows=300)), wanted
    )


def test_same_labels__a_worker_killed_and_one_joining(ensemble, wanted, runs):
    with worker_processes() as (workers, client):
        killed = []

        def progress(event):
            if event.round == 3 and not killed:
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)
            if event.round == 5 and len(killed) == 1:
                killed.append("joined")
                workers.scale(3)

        found = find_consensus(as_labels(ensemble), PARAMS, 0, Where(client=client, block_rows=100), progress=progress)
        assert len(killed) == 2
        assert_same(found, wanted)


def test_same_labels__connection_to_the_scheduler_lost(ensemble, wanted):
    with worker_processes() as (_, client):
        cut = []

        def progress(event):
            if event.round == 3 and not cut:
                cut.append(event)
                client.loop.add_callback(client.scheduler_comm.comm.abort)

        found = find_consensus(as_labels(ensemble), PARAMS, 0, Where(client=client, block_rows=100), progress=progress)
        assert cut
        assert_same(found, wanted)


KILLED = """
import os, random, signal, sys, threading, warnings
warnings.simplefilter("ignore")
from cehm_dask import job
from cehm_dask.data.labels import as_labels
from cehm_dask.method.params import Params
from cehm_dask.data.consensus_store import ConsensusStore

ensemble, output, when = sys.argv[1], sys.argv[2], sys.argv[3]
save, done = ConsensusStore.save_checkpoint, 0

def save_and_die(self, *args):
    global done
    done += 1
    if when == f"before {done}":
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, *args)
    if when == f"after {done}":
        os.kill(os.getpid(), signal.SIGKILL)
    if when == "any" and done == 1:
        timer = threading.Timer(random.Random(os.getpid()).uniform(0, 0.1), os.kill, (os.getpid(), signal.SIGKILL))
        timer.daemon = True
        timer.start()

ConsensusStore.save_checkpoint = save_and_die
params, where = Params(10, variant="released", restarts=2), job.Where(output=output, block_rows=50)
job.find_consensus(as_labels(ensemble), params, 0, where)
"""


@pytest.mark.parametrize("when", ["before 1", "after 1", "after 4", "before 9", "any"])
def test_same_labels__resumed_after_sigkill(ensemble, wanted, tmp_path, when):
    output = str(tmp_path / "c.zarr")
    killed = subprocess.run([sys.executable, "-c", KILLED, ensemble, output, when], check=False)
    assert killed.returncode == -signal.SIGKILL or when == "any"
    if killed.returncode == 0:
        return  # the random moment came after the end
    rounds = []
    found = find_consensus(
        as_labels(ensemble), PARAMS, 0, Where(output=output), progress=lambda event: rounds.append(event.round)
    )
    assert_same(found, wanted)
    if when == "after 4":
        assert min(rounds) > 1  # it went on, and did not start anew


def test_resume__refuses_other_settings(ensemble, tmp_path):
    output = str(tmp_path / "c.zarr")
    subprocess.run([sys.executable, "-c", KILLED, ensemble, output, "after 2"], check=False)
    with pytest.raises(StoreError, match=r"seed=1 \(there: 0\)"):
        find_consensus(as_labels(ensemble), PARAMS, 1, Where(output=output))
    with pytest.raises(StoreError, match=r"restarts=3 \(there: 2\)"):
        find_consensus(as_labels(ensemble), Params(10, variant="released", restarts=3), 0, Where(output=output))
    find_consensus(as_labels(ensemble), PARAMS, 1, Where(output=output, overwrite=True))


def test_output__finished_is_not_overwritten(ensemble, wanted, tmp_path):
    where = Where(output=str(tmp_path / "c.zarr"))
    find_consensus(as_labels(ensemble), PARAMS, 0, where)
    with pytest.raises(StoreError, match="finished"):
        find_consensus(as_labels(ensemble), PARAMS, 0, where)
    assert_same(find_consensus(as_labels(ensemble), PARAMS, 0, replace(where, overwrite=True)), wanted)


def test_output__two_runs_at_once(ensemble, tmp_path):
    output = str(tmp_path / "c.zarr")

    def progress(_event):
        with pytest.raises(BusyError, match="being written by another run"):
            find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=output))

    find_consensus(as_labels(ensemble), Params(10), 0, Where(output=output), progress=progress)


def test_output__facts(ensemble, wanted, tmp_path):
    output = str(tmp_path / "c.zarr")
    find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=output))
    stored = open_consensus(output)
    assert stored.facts["n_clusters_found"] == wanted.consensus.chosen.n_clusters_found
    assert stored.facts["losses"] == wanted.consensus.chosen.problem.losses
    np.testing.assert_array_equal(stored.array("counts")[:], wanted.consensus.chosen.problem.counts)
    np.testing.assert_array_equal(stored.array("sizes")[:], np.bincount(wanted.labels[wanted.labels >= 0]))
    assert stored.array("margin_histogram")[:].sum() == (wanted.labels >= 0).sum()
    assert not (tmp_path / "c.zarr" / "checkpoint.npz").exists()


def test_disk_full__nothing_half_written_counts(ensemble, wanted, tmp_path, monkeypatch):
    from cehm_dask.data.consensus_store import ResultWriter

    output, write, calls = str(tmp_path / "c.zarr"), ResultWriter.write, []

    def full(self, *args):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return write(self, *args)

    monkeypatch.setattr(ResultWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=output))
    with pytest.raises(StoreError, match="half-written"):
        open_consensus(output)
    assert_same(find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=output)), wanted)


def test_interrupt__goes_on(ensemble, wanted, tmp_path):
    output = str(tmp_path / "c.zarr")

    def interrupt(event):
        if event.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=output), progress=interrupt)
    assert_same(find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=output)), wanted)


def test_checkpoint__small_whatever_n(ensemble, tmp_path, monkeypatch):
    sizes, save = [], ConsensusStore.save_checkpoint

    def measured(self, *args):
        sizes.append(save(self, *args))
        return sizes[-1]

    monkeypatch.setattr(ConsensusStore, "save_checkpoint", measured)
    found = find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=str(tmp_path / "c.zarr")))
    # Two tables of counts per problem, at most four bytes per count, and a few facts: n is not in it.
    counts, problems = found.consensus.chosen.problem.counts, found.consensus.chosen.restarts
    assert 0 < max(sizes) < problems * (2 * 4 * counts.size + 4096)


def test_sweeps__restarts_read_as_often_as_the_slowest(ensemble, monkeypatch):
    reads = []
    read = type(as_labels(ensemble).source).read
    monkeypatch.setattr(
        "cehm_dask.data.ensemble_store.Ensemble.read", lambda self, a, b: (reads.append(a), read(self, a, b))[1]
    )

    def budget_of(*args):
        return replace(budget(*args), keep_labels=False)

    budget = job.budget_of
    monkeypatch.setattr(job, "budget_of", budget_of)

    def blocks_read(params):
        reads.clear()
        outcome = find_consensus(as_labels(ensemble), params, 0, Where(threads=1))
        chunks = -(-4779 // 128)
        assert len(reads) == chunks * outcome.sweeps
        return outcome

    many = blocks_read(Params(10, variant="released", restarts=4))
    medoids = {}
    find_consensus(
        as_labels(ensemble),
        Params(10, variant="released", restarts=4),
        0,
        Where(threads=1),
        record=lambda problem, stage, engine: medoids.setdefault(problem.number, problem.medoids),
    )
    singles = [blocks_read(Params(10, variant="released", init=chosen.tolist())).sweeps for chosen in medoids.values()]
    assert len(set(singles)) > 1
    assert many.sweeps == max(singles)


@pytest.mark.parametrize(
    ("keep_state", "keep_labels", "sweeps_a_round"),
    [(True, False, 1), (True, True, 2), (False, False, 1), (False, True, 1)],
)
@pytest.mark.parametrize("variant", ["released", "printed", "cosine"])
def test_sweeps__counted_one_by_one(ensemble, wanted_of, monkeypatch, variant, keep_state, keep_labels, sweeps_a_round):
    budget, problem = job.budget_of, wanted_of(variant).consensus.chosen.problem
    monkeypatch.setattr(
        job, "budget_of", lambda *args: replace(budget(*args), keep_state=keep_state, keep_labels=keep_labels)
    )
    found = find_consensus(
        as_labels(ensemble), Params(10, variant=variant, init=problem.medoids.tolist()), 0, Where(threads=1)
    )
    diffused, adjusted = len(problem.growth) - 1, len(problem.losses)
    # The result reads the labels once more, for the confidences.
    least = 1 + 1 + sweeps_a_round * (diffused - 1) + 1 + adjusted + 1
    assert found.sweeps == least


def test_several_k__same_as_one_by_one(hard_ensemble):
    labels = as_labels(hard_ensemble)
    together = find_consensus(labels, Params(3), 0, Where(), ks=(3, 10, 14))
    for solution in together.consensus.solutions:
        alone = find_consensus(labels, Params(solution.problem.params.n_clusters), 0, Where())
        np.testing.assert_array_equal(solution.problem.counts, alone.consensus.chosen.problem.counts)
    assert together.consensus.chosen.n_clusters == together.consensus.choice.n_clusters
    model = CEHM([3, 10, 14], random_state=0).fit(hard_ensemble)
    assert [record["n_clusters"] for record in model.scan_] == [3, 10, 14]
    assert model.n_clusters_ == model.choice_["n_clusters"]


def test_budget__refused_with_both_numbers_before_reading(ensemble, monkeypatch):
    monkeypatch.setattr(engine.Engine, "sweep", lambda *args, **kwargs: pytest.fail("a sweep was made"))
    with pytest.raises(BudgetError, match=r"memory=100.00 MiB allowed < .* projected"):
        find_consensus(as_labels(ensemble), PARAMS, 0, Where(memory="100MiB"))


@given(
    n_samples=st.integers(1, 10**8),
    align=st.sampled_from([1, 128, 1 << 18]),
    threads=st.integers(1, 16),
    workers=st.none() | st.integers(1, 8),
    problems=st.lists(st.integers(1, 60), min_size=1, max_size=70),
)
def test_budget__runs_cover_all_rows_aligned_and_terms_add_up(n_samples, align, threads, workers, problems):
    from cehm_dask.data.shape import Shape

    shape = Shape(n_samples, 30, 900, align // 2 or None, align)
    budget = make_budget(shape, problems, allowed=2 << 40, threads=threads, workers=workers)
    edges = budget.span_edges
    assert edges[0] == 0
    assert edges[-1] == n_samples
    assert list(edges) == sorted(set(edges))
    assert all(edge % align == 0 for edge in edges[:-1])
    assert budget.projected <= budget.allowed
    assert budget.keep_state
    # What is to be kept has room wherever its run may be at home; else a worker would create it again in every sweep.
    homes = share_out({}, range(len(edges) - 1), [f"worker {i}" for i in range(workers or 1)])
    rows = Counter()
    for run, home in homes.items():
        rows[home] += edges[run + 1] - edges[run]
    a_row = budget.state_bytes_a_row + (budget.label_bytes_a_row if budget.keep_labels else 0)
    assert max(rows.values()) * a_row <= budget.cached_bytes
    hands = (workers or 1) * threads
    assert len(edges) - 1 >= hands or n_samples < hands * (1 << 18)


MEASURED = """
import json, sys, warnings
warnings.simplefilter("ignore")
from cehm_dask.job import Where, budget_of, find_consensus
from cehm_dask.data.labels import as_labels
from cehm_dask.machine import peak_bytes
from cehm_dask.method.params import Params

url, output, memory, variant = sys.argv[1:]
labels, params = as_labels(url), Params(10, variant=variant)
for _ in range(2):  # the first one loads what reads the memory
    roomy = budget_of(labels, params, (10,), Where(memory="8GiB", output=output))
if memory == "tight":
    memory = roomy.projected - roomy.cached_bytes - roomy.terms["kept free"] + (1 << 20)
outcome = find_consensus(labels, params, 0, Where(memory=memory, output=output))
budget = outcome.budget
print(json.dumps([peak_bytes(), budget.projected, budget.allowed, budget.keep_state, budget.keep_labels]))
"""


def test_memory__measured_below_projected_below_allowed(tmp_path):
    """Fresh processes, so that their peak is the run's."""
    url = str(tmp_path / "e.zarr")
    Synth(2_000_000).write(url)
    nothing, all_of_it = [False, False], [True, True]
    for memory, variant, keeps in (
        ("tight", "auto", nothing),
        ("tight", "released", nothing),
        ("2GiB", "auto", all_of_it),
    ):
        command = [sys.executable, "-c", MEASURED, url, str(tmp_path / f"{memory}-{variant}.zarr"), memory, variant]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        peak, projected, allowed, *kept = json.loads(output)
        assert peak <= projected <= allowed
        assert kept == keeps


# --- the trail ---------------------------------------------------------------------------------------------------


def trail_in(url):
    """The stored trail, its rows and the stages of its rounds."""
    stored = open_consensus(str(url))
    return stored.array("trail")[...], stored.array("trail_rows")[...], stored.facts["trail_stages"]


@pytest.fixture(scope="module")
def followed(ensemble):
    """What really was assigned, in every round of the chosen of three starts, to all rows."""
    rounds = {}

    def record(problem, stage, engine):
        found = engine.sweep("record", gather, join, problem.last_order(), reads=False).labels
        rounds.setdefault(problem.number, []).append((stage, found))

    outcome = find_consensus(as_labels(ensemble), replace(PARAMS, restarts=3), 0, Where(), record=record)
    return rounds[outcome.consensus.chosen.problem.number]


@pytest.mark.parametrize("keep_state", [True, False])
def test_trail__is_what_was_assigned_in_every_round(ensemble, followed, tmp_path, monkeypatch, keep_state):
    budget = job.budget_of
    monkeypatch.setattr(
        job, "budget_of", lambda *args: replace(budget(*args), keep_state=keep_state, keep_labels=False)
    )
    find_consensus(as_labels(ensemble), replace(PARAMS, restarts=3), 0, Where(output=str(tmp_path / "c.zarr")))
    trail, rows, stages = trail_in(tmp_path / "c.zarr")
    assert stages == [stage for stage, _ in followed]
    assert set(stages) == {"start", "diffusion", "adjustion"}
    assert len(rows) == 3000
    assert (np.diff(rows) > 0).all()
    np.testing.assert_array_equal(trail, np.stack([found[rows] for _, found in followed]))
    assert trail.dtype == np.int16
    assert (trail[0] == -1).any()
    np.testing.assert_array_equal(trail[-1], open_consensus(str(tmp_path / "c.zarr")).array("labels")[...][rows])


def test_trail__costs_no_sweep_and_no_look(ensemble, tmp_path, monkeypatch):
    names, sweep = [], engine.Engine.sweep

    def noted(self, name, *args, **kwargs):
        names.append(name)
        return sweep(self, name, *args, **kwargs)

    monkeypatch.setattr(engine.Engine, "sweep", noted)
    without = find_consensus(as_labels(ensemble), PARAMS, 0, Where())
    plain, names[:] = list(names), []
    with_trail = find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=str(tmp_path / "c.zarr")))
    assert names == plain
    assert with_trail.sweeps == without.sweeps


def test_trail__whole_after_an_interruption(ensemble, followed, tmp_path):
    output = str(tmp_path / "c.zarr")

    def interrupt(event):
        if event.round == 4:
            raise KeyboardInterrupt

    params = replace(PARAMS, restarts=3)
    with pytest.raises(KeyboardInterrupt):
        find_consensus(as_labels(ensemble), params, 0, Where(output=output), progress=interrupt)
    find_consensus(as_labels(ensemble), params, 0, Where(output=output))
    trail, rows, _ = trail_in(output)
    np.testing.assert_array_equal(trail, np.stack([found[rows] for _, found in followed]))
    assert not list((tmp_path / "c.zarr").glob("trail-*"))


def test_trail__lost_costs_the_trail_and_nothing_else(ensemble, wanted, tmp_path):
    output = tmp_path / "c.zarr"

    def interrupt(event):
        if event.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=str(output)), progress=interrupt)
    second = sorted(output.glob("trail-*"))[1]
    second.write_bytes(second.read_bytes()[:100])
    assert_same(find_consensus(as_labels(ensemble), PARAMS, 0, Where(output=str(output))), wanted)
    assert open_consensus(str(output)).facts["trail_stages"] == []
    assert not (output / "trail").exists()


def test_trail__fewer_rows_where_there_are_many_problems_or_few_samples():
    assert len(rows_to_follow(10**9, 10, 0)) == 3000
    assert len(rows_to_follow(10**9, 400, 0)) == 1000
    assert len(rows_to_follow(10**9, 10**6, 0)) == 300
    np.testing.assert_array_equal(rows_to_follow(150, 10, 0), np.arange(150))
