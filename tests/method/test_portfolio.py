"""The default variant: k clusters whatever the ensemble, one answer whatever the machine, a choice that can be read.

Which rule is good is measured elsewhere; here is what it promises on any ensemble.
"""

import time
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM, ConsensusWarning
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.job import Where, find_consensus
from cehm_dask.machine import one_thread
from cehm_dask.method import competing as competing_module
from cehm_dask.method import portfolio
from cehm_dask.method.agreement import contingency, nmi
from cehm_dask.method.competing import Rows
from cehm_dask.method.params import Params
from cehm_dask.method.spectral import jaccard, likeness_of_walks
from cehm_dask.method.split import found_in
from tests import reference
from tests.method.test_belonging import random_labels

# Random ensembles are full of one-cluster members; the warnings have tests of their own.
pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

RECORD = {
    "start",
    "belonging",
    "tau",
    "evenness",
    "score",
    "agreement",
    "explained",
    "sizes",
    "repaired",
    "kept",
}


@dataclass
class Case:
    """An ensemble and how many clusters to look for."""

    P: np.ndarray
    k: int


@st.composite
def cases(draw, missing=(0.0,)):
    """Tiny and larger ensembles: repeated rows and columns, members with one cluster, silent rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    large = draw(st.booleans())
    n = draw(st.integers(30, 90) if large else st.integers(1, 12))
    n_members = draw(st.integers(3, 10) if large else st.integers(1, 4))
    n_labels = draw(st.sampled_from([2, 3, 12]) if large else st.integers(1, 5))
    P = random_labels(
        rng, n, n_members, n_labels, draw(st.sampled_from([0.1, 0.5, 1.0])), draw(st.sampled_from(missing))
    )
    if draw(st.booleans()):
        P = P[rng.integers(n, size=n)]
    if draw(st.booleans()):
        P = np.hstack([P, P[:, rng.integers(n_members, size=2)]])
    if draw(st.booleans()):
        P = np.hstack([P, np.zeros((n, 1), P.dtype)])
    if draw(st.booleans()):
        P[rng.random(n) < 0.2] = -1
    most = min(distinct_rows(P), reference.incidence(P)[0].shape[1])
    assume(most)
    return Case(P, draw(st.sampled_from([most, 1, min(2, most), min(4, most), 1 + most // 2])))


def distinct_rows(P):
    """Different label rows, those without any label left out."""
    return len(np.unique(P[(P >= 0).any(axis=1)], axis=0))


def easy(n=20_000, **changed):
    return Synth(n, **{"n_members": 12, "k_max": 30, **changed}).arrays()


# --- k clusters --------------------------------------------------------------------------------------------------


@settings(max_examples=120)
@given(case=cases())
def test_clusters__as_many_as_asked_for(case):
    found = CEHM(case.k, random_state=0).fit(case.P)
    silent = (case.P < 0).all(axis=1)
    assert set(found.labels_[~silent].tolist()) == set(range(case.k))
    assert (found.labels_[silent] == -1).all()
    assert found.n_clusters_found_ == case.k
    assert (found.cluster_sizes_ > 0).all()


@settings(max_examples=80)
@given(case=cases(missing=(0.2, 0.5)))
@example(case=Case(np.array([[-1, 0, -1, -1], [0, -1, -1, -1], [-1, 1, -1, 1]]), 2))  # a member without labels
def test_clusters__as_many_as_asked_for_with_missing_labels(case):
    found = CEHM(case.k, random_state=0).fit(case.P)
    assert found.n_clusters_found_ == case.k
    assert len(np.unique(found.labels_[found.labels_ >= 0])) == case.k


@pytest.mark.parametrize("P", [[[0, 0], [0, -1]], [[0, 1]] * 3, [[0, 0]] * 2 + [[1, 1]]])
@pytest.mark.parametrize("block_rows", [1, 100])
def test_clusters__samples_that_no_member_tells_apart(P, block_rows):
    labels = as_labels(np.array(P))
    k = min(len(P), labels.count_hyperedges())
    found = find_consensus(labels, Params(k), 0, Where(block_rows=block_rows, threads=1))
    assert sorted(found.sizes.tolist()) == sorted(np.bincount(found.labels, minlength=k).tolist())
    assert (found.sizes > 0).all()
    counts = found.consensus.chosen.problem.counts
    assert counts[0].tolist() == [int((found.labels[np.array(P)[:, 0] == 0] == e).sum()) for e in range(k)]


def test_clusters__many_more_than_the_ensemble_has():
    # Every further cluster is a split that adjustion undoes: all of them stand on the same weights.
    P = random_labels(np.random.default_rng(5), 90, 20, 3, 0.6)
    assert distinct_rows(P) > 55
    assert CEHM(55, random_state=0).fit(P).n_clusters_found_ == 55


def test_clusters__a_graph_in_many_parts():
    # All leading eigenvalues of the spectral starts are equal.
    P = random_labels(np.random.default_rng(0), 21, 2, 30, 0.6)
    for k in (2, 5, 12):
        assert CEHM(k, random_state=0).fit(P).n_clusters_found_ == k


@settings(max_examples=40)
@given(case=cases(missing=(0.0, 0.3)))
def test_margin__between_0_and_1(case):
    found = CEHM(case.k, random_state=0).fit(case.P)
    assert (found.margin_ >= 0).all()
    if case.k > 1:  # the only cluster leads by all it has
        assert (found.margin_ <= 1 + 1e-9).all()


def test_easy_classes__are_all_found():
    P, truth = easy(n_members=30, k_max=50)
    found = CEHM(10, random_state=0).fit(P)
    assert found.n_clusters_found_ == 10
    assert nmi(contingency(found.labels_, truth)) == pytest.approx(1.0, abs=1e-3)


# --- the same answer ---------------------------------------------------------------------------------------------


def assert_same(found, wanted):
    """Two outcomes, bit for bit."""
    one, other = found.consensus.chosen, wanted.consensus.chosen
    np.testing.assert_array_equal(found.labels[:], wanted.labels[:])
    np.testing.assert_array_equal(found.margin[:], wanted.margin[:].astype(found.margin.dtype))
    assert one.candidates == other.candidates
    assert one.reason == other.reason
    assert one.stability == other.stability
    for name in ("losses", "growth", "moves", "round", "belonging", "converged"):
        assert getattr(one.problem, name) == getattr(other.problem, name)


@cache
def noisy():
    """Eight classes, missing labels, silent rows: adjustion has work to do."""
    P = random_labels(np.random.default_rng(7), 1500, 10, 8, 0.6, 0.1)
    P[[3, 700]] = -1
    return P


@pytest.fixture(params=[None, 200], ids=["all rows", "a sample"])
def competing(request, monkeypatch):
    """How many rows compete."""
    if request.param is not None:
        monkeypatch.setattr(competing_module, "COMPETING_ROWS", request.param)
    return request.param


@pytest.mark.parametrize("k", [1, 8, 20])
def test_same_answer__whatever_the_blocks(k, competing, tmp_path):
    wanted = find_consensus(as_labels(noisy()), Params(k), 0, Where(threads=1))
    assert wanted.consensus.chosen.problem.competition["rows"] == (1498 if competing is None else 199)  # a silent row
    assert set(wanted.labels.tolist()) == {-1, *range(k)}
    for block_rows, threads in ((1500, 2), (64, 1), (333, 3)):
        where = Where(block_rows=block_rows, threads=threads)
        assert_same(find_consensus(as_labels(noisy()), Params(k), 0, where), wanted)
    ingest(noisy(), str(tmp_path / "e.zarr"), chunk_rows=128)
    stored = as_labels(tmp_path / "e.zarr")
    for block_rows, threads in ((None, 1), (64, 2)):
        assert_same(find_consensus(stored, Params(k), 0, Where(block_rows=block_rows, threads=threads)), wanted)
    output = Where(output=str(tmp_path / "c.zarr"), threads=2)
    assert_same(find_consensus(stored, Params(k), 0, output), wanted)
    facts = open_consensus(str(tmp_path / "c.zarr")).facts
    assert facts["candidate_reason"] == wanted.consensus.chosen.reason
    assert facts["candidates"] == wanted.consensus.chosen.candidates


@settings(max_examples=25)
@given(case=cases(missing=(0.0, 0.3)), block_rows=st.integers(1, 90), threads=st.integers(1, 3))
def test_same_answer__any_ensemble(case, block_rows, threads):
    wanted = find_consensus(as_labels(case.P), Params(case.k), 0, Where(threads=1))
    where = Where(block_rows=block_rows, threads=threads)
    assert_same(find_consensus(as_labels(case.P), Params(case.k), 0, where), wanted)


@settings(max_examples=60)
@given(case=cases(), rows=st.sampled_from([1, 3, 10]), block_rows=st.integers(1, 90))
def test_sample__any_ensemble_gets_its_clusters(case, rows, block_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(competing_module, "COMPETING_ROWS", rows)
        wanted = find_consensus(as_labels(case.P), Params(case.k), 0, Where(threads=1))
        assert_same(
            find_consensus(as_labels(case.P), Params(case.k), 0, Where(threads=2, block_rows=block_rows)), wanted
        )
    assert set(wanted.labels.tolist()) - {-1} == set(range(case.k))


def test_sample__without_any_label(monkeypatch, tmp_path):
    monkeypatch.setattr(competing_module, "COMPETING_ROWS", 2)
    P = np.full((400, 3), -1)
    P[[7, 9, 100, 101]] = [[0, 0, 0], [1, 1, 1], [0, 0, 1], [1, 1, 1]]
    assert not np.isin([7, 9, 100, 101], competing_module.competing_rows(as_labels(P), 0)).any()
    wanted = find_consensus(as_labels(P), Params(3, restarts=3), 0, Where(threads=1))
    assert wanted.sizes.tolist() in ([1, 2, 1], [1, 1, 2], [2, 1, 1])
    assert wanted.consensus.chosen.candidates == []
    output = Where(threads=1, output=str(tmp_path / "c.zarr"))
    with pytest.raises(StopError):
        find_consensus(as_labels(P), Params(3, restarts=3), 0, output, progress=stop_after(2))
    assert_same(find_consensus(as_labels(P), Params(3, restarts=3), 0, output), wanted)


def test_sample__seed_and_size_decide_it(monkeypatch):
    monkeypatch.setattr(competing_module, "COMPETING_ROWS", 200)
    labels = as_labels(noisy())
    first, again, other = (competing_module.competing_rows(labels, seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert len(set(first.tolist())) == 200
    assert (np.diff(first) > 0).all()
    assert first[0] >= 0
    assert first[-1] < 1500
    assert set(first.tolist()) != set(other.tolist())
    monkeypatch.setattr(competing_module, "COMPETING_BYTES", 500)
    assert len(competing_module.competing_rows(labels, 0)) == 500 // (labels.n_members * labels.itemsize)


# --- the choice --------------------------------------------------------------------------------------------------


def assert_complete(candidates, k, n):
    for one in candidates:
        assert set(one) == RECORD
        assert one["score"] == 2 * one["tau"] + one["evenness"]
        assert 0 <= one["tau"] <= 1
        assert 0 < one["evenness"] <= 1 + 1e-12
        assert 0 <= one["repaired"] < k or k == 1
        assert len(one["sizes"]) == k
        assert sum(one["sizes"]) == n
    scores = [one["score"] for one in candidates]
    assert [one["kept"] for one in candidates] == [i == int(np.argmax(scores)) for i in range(len(scores))]


def starts(found):
    return [(one["start"], one["belonging"]) for one in found.candidates_]


CANDIDATES = [
    ("medoids", "cosine"),
    ("medoids", "tau"),
    ("spectral", "cosine"),
    ("links", "cosine"),
    ("links", "kmeans"),
    ("local", "cosine"),
    ("walks", "kmeans"),
]


def test_candidates__all_and_why_one_was_kept():
    found = CEHM(8, random_state=0).fit(noisy())
    assert starts(found) == CANDIDATES
    assert_complete(found.candidates_, 8, 1498)
    kept = next(one for one in found.candidates_ if one["kept"])
    assert found.candidate_reason_.startswith(f"{kept['start']}, {kept['belonging']}: largest 2τ + evenness of 7")


@settings(max_examples=40)
@given(case=cases())
def test_candidates__complete_on_any_ensemble(case):
    found = CEHM(case.k, random_state=0).fit(case.P)
    assert_complete(found.candidates_, case.k, (case.P >= 0).any(axis=1).sum())
    assert all(min(one["sizes"]) > 0 for one in found.candidates_)


def test_candidates__first_on_a_tie():
    P = np.repeat([[0, 0, 0], [1, 1, 1]], 5, axis=0)
    found = CEHM(2, random_state=0).fit(P)
    assert len({one["score"] for one in found.candidates_}) == 1
    assert [one["kept"] for one in found.candidates_] == [True, *[False] * (len(found.candidates_) - 1)]


def test_candidates__restarts_add_medoids():
    P = random_labels(np.random.default_rng(0), 300, 10, 8, 1.0)  # nothing to find: every seed has other medoids
    found = CEHM(8, random_state=0, restarts=3).fit(P)
    more = [(f"medoids {i}", belonging) for i in (2, 3) for belonging in ("cosine", "tau")]
    assert starts(found) == [*CANDIDATES[:2], *more, *CANDIDATES[2:]]
    assert_complete(found.candidates_, 8, 300)


@pytest.mark.parametrize(
    "given_",
    [
        {"belonging": "cosine"},
        {"schedule": "fixed"},
        {"similarity": "containment"},
        {"init": range(8)},
        {"variant": "tau"},
    ],
    ids=str,
)
def test_candidates__none_where_a_knob_or_a_start_is_given(given_):
    found = CEHM(8, random_state=0, **given_).fit(noisy())
    assert found.candidates_ == []
    assert found.candidate_reason_ == ""
    assert found.n_clusters_found_ == 8  # a single chain is repaired all the same


def lopsided():
    """A large class and a small one, which shares and counts swallow."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], [100, 20])
    return np.stack([np.where(rng.random(120) < 0.75, truth, rng.integers(2, size=120)) for _ in range(9)], axis=1)


@pytest.mark.parametrize("variant", ["released", "printed"])
def test_variant__of_the_paper_warns_of_lost_clusters(variant):
    with pytest.warns(ConsensusWarning, match="the default variant, 'auto', finds as many as are asked for"):
        found = CEHM(2, variant=variant, random_state=0).fit(lopsided())
    assert found.n_clusters_found_ == 1
    assert CEHM(2, random_state=0).fit(lopsided()).n_clusters_found_ == 2


def test_choose__losses_of_different_kinds_are_not_compared():
    with pytest.raises(ValueError, match=r"choose='loss'.*name a variant"):
        CEHM(3, choose="loss").fit(noisy())
    CEHM(3, variant="cosine", restarts=2, choose="loss").fit(noisy())


# --- interrupted and resumed -------------------------------------------------------------------------------------


class StopError(Exception):
    """What a test stops a run with."""


def stop_after(number):
    def progress(event):
        if event.round == number:
            raise StopError

    return progress


RESUMED = {
    # Name: labels, k, rows that compete.
    "plain": (lambda: noisy(), 8, 200),
    "splits that stay": (lambda: random_labels(np.random.default_rng(2), 400, 8, 6, 0.5), 12, 9),
    "splits that adjustion undoes": (lambda: random_labels(np.random.default_rng(0), 40, 4, 3, 0.4, 0.4), 8, 15),
    "splits that ties undo": (lambda: random_labels(np.random.default_rng(0), 30, 3, 3, 0.4, 0.6), 8, 15),
    "splits that do not suffice": (lambda: random_labels(np.random.default_rng(11), 30, 3, 3, 0.4, 0.6), 8, 15),
}


@pytest.mark.parametrize("name", RESUMED)
def test_resumed__as_if_never_interrupted(name, tmp_path, monkeypatch):
    make, k, rows = RESUMED[name]
    monkeypatch.setattr(competing_module, "COMPETING_ROWS", rows)
    labels, params = as_labels(make()), Params(k)
    seen = []  # splits that the weights have, and clusters found, after each round
    wanted = find_consensus(
        labels,
        params,
        0,
        Where(threads=1),
        record=lambda problem, _stage, _engine: seen.append((len(problem.splits), found_in(problem.counts))),
    )
    n_rounds, stacks = wanted.consensus.chosen.problem.round, [splits for splits, _ in seen]
    undone_by_ties = any(after[0] > before[0] and after[1] <= before[1] for before, after in pairwise(seen))
    assert any(stacks) == (name != "plain")
    assert (stacks[-1] > 1) == (name not in ("plain", "splits that stay"))
    assert undone_by_ties == (name in ("splits that ties undo", "splits that do not suffice"))
    assert (seen[-1][1] < k) == (name == "splits that do not suffice")
    for number in range(1, n_rounds + 1):
        where = Where(threads=1, output=str(tmp_path / f"{number}.zarr"))
        with pytest.raises(StopError):
            find_consensus(labels, params, 0, where, progress=stop_after(number))
        went_on = []
        found = find_consensus(
            labels, params, 0, where, progress=lambda event, went_on=went_on: went_on.append(event.round)
        )
        assert_same(found, wanted)
        assert went_on == list(range(number + 1, n_rounds + 1))


def test_resumed__interrupted_every_round(tmp_path, monkeypatch):
    make, k, rows = RESUMED["splits that adjustion undoes"]
    monkeypatch.setattr(competing_module, "COMPETING_ROWS", rows)
    labels = as_labels(make())
    wanted = find_consensus(labels, Params(k), 0, Where(threads=1))
    where = Where(threads=1, output=str(tmp_path / "c.zarr"))
    for number in range(1, wanted.consensus.chosen.problem.round + 1):
        with pytest.raises(StopError):
            find_consensus(labels, Params(k), 0, replace(where, threads=1 + number % 2), progress=stop_after(number))
    assert_same(find_consensus(labels, Params(k), 0, where), wanted)


@pytest.mark.parametrize("missing", [0.0, 0.7])
def test_competition__many_hyperedges_are_judged_by_some_members(missing):
    """Some steps are quadratic in the hyperedges: of many members, only some compete; the counts are of all."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, 500)
    members = np.stack([np.where(rng.random(500) < 0.9, truth, rng.integers(0, 4, 500)) for _ in range(20)], 1)
    labels = as_labels(np.where(rng.random(members.shape) < missing, -1, members))
    rows = Rows(labels, labels.source.read(0, 500), np.array([2, 3, 5, 7, 11, 13, 17]))
    assert rows.hyperedges.n_hyperedges == 28
    assert rows.hyperedges.n_members == 7
    found = portfolio.compete(rows, Params(4), seed=1)
    assert found.rows == len(rows.codes) == rows.spoken.sum()
    assert found.counts.shape == (labels.n_slots, 4)
    slots = hyperedges_in_rows(labels).slots
    assert (found.counts.sum(axis=1)[slots] > 0).all()


def hyperedges_in_rows(labels):
    return Rows(labels, labels.source.read(0, labels.n_samples)).hyperedges


def test_walks__likeness_is_that_of_the_trajectories():
    """Against powers of the transition matrix, with as many eigenvectors as hyperedges."""
    rng = np.random.default_rng(1)
    labels = as_labels(rng.integers(0, 3, (60, 5)))
    edges = Rows(labels, labels.source.read(0, 60)).hyperedges
    step = jaccard(edges)
    step /= step.sum(axis=1, keepdims=True)
    power, total = np.eye(len(step)), np.zeros_like(step)
    for _ in range(20):
        power = power @ step
        total += power @ power.T
    lengths = np.sqrt(total.diagonal())
    np.testing.assert_allclose(likeness_of_walks(edges, len(step)), total / np.outer(lengths, lengths), atol=1e-9)


def test_spectral__fewer_rows_than_hyperedges_from_the_side_of_the_rows():
    """The same vectors but for their signs, in a fraction of the time."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 60, 300)
    noise = rng.random((300, 40)) < 0.1
    labels = np.where(
        noise, rng.integers(0, 60, (300, 40)), rng.permuted(np.tile(np.arange(60), (40, 1)), axis=1)[:, truth].T
    )
    known = as_labels(labels)
    rows = Rows(known, known.read(0, 300))
    assert portfolio._fewer_rows(rows, 40)
    weights = portfolio.local_weights(rows.hyperedges)[:, None]
    for mix in (weights, portfolio.refined(rows.hyperedges, portfolio.weighted_connected_triples)):
        seconds, found = [], []
        with one_thread():
            for find in (portfolio._by_hyperedges, portfolio._by_rows):
                begin = time.process_time()
                found.append(find(rows, mix, 40))
                seconds.append(time.process_time() - begin)
        (wanted, degrees), (vectors, own_degrees) = found
        np.testing.assert_allclose(own_degrees, degrees, rtol=1e-6)
        np.testing.assert_allclose(np.abs((wanted * vectors).sum(axis=0)), 1.0, atol=1e-4)
        assert seconds[1] < seconds[0] / 2
