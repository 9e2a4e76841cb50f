"""All stages together against the dense reference, and the invariances the method promises."""

from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cehm_dask import CEHM
from cehm_dask.data.labels import as_labels
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.sweep import Engine
from cehm_dask.method import diffusion, kernels, rounds
from cehm_dask.method.belonging import weights_of
from cehm_dask.method.consensus import consensus
from cehm_dask.method.fasterpam import fasterpam
from cehm_dask.method.intersections import hyperedges_of, intersections
from cehm_dask.method.medoids import dissimilarity, medoids
from cehm_dask.method.orders import Measure, Passing
from cehm_dask.method.params import PAPER, VARIANTS, Params
from cehm_dask.method.problem import Problem
from cehm_dask.method.result import gather, join
from cehm_dask.method.state import Stack, State
from tests import reference

# Random ensembles are full of one-cluster members and lost clusters; the warnings have tests of their own.
pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

GOLDEN = Path(__file__).parent.parent / "golden"
KNOBS = [(belonging, schedule) for belonging in ("share", "count") for schedule in ("fixed", "renewed")]
KNOBS += [("cosine", "fixed")]
CHAINS = ("released", "printed", "cosine")
"""Variants that run one problem per restart, through diffusion."""
every_knob = pytest.mark.parametrize(("belonging", "schedule"), KNOBS)


@dataclass
class Case:
    """An ensemble and where to start from."""

    P: np.ndarray
    k: int
    medoids: list


@st.composite
def cases(draw, min_rows=1):
    """Noisy copies of a truth, rows repeated (so that cuts fall among ties), gaps in the labels, missing ones.

    The contents come from a drawn seed: arrays drawn entry by entry are nearly constant, and no sample ever moves.
    """
    # Half of the cases tiny and degenerate, half large enough for several rounds of every stage.
    large = draw(st.booleans())
    n = draw(st.integers(40, 80) if large else st.integers(min_rows, 12))
    n_members = draw(st.integers(4, 9) if large else st.integers(1, 3))
    n_labels = draw(st.integers(3, 5) if large else st.integers(1, 4))
    n_distinct = min(n, draw(st.sampled_from([80, 80, 40, 8, 1])))
    noise, missing, silent = draw(st.tuples(*map(st.sampled_from, ([0.8, 0.6], [0.0, 0.0, 0.3], [0.0, 0.0, 0.2]))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape, truth = (n_distinct, n_members), rng.integers(n_labels, size=(n_distinct, 1))
    P = np.where(rng.random(shape) < noise, rng.integers(n_labels, size=shape), truth)
    P = P * rng.integers(1, 25, size=n_members)
    P[rng.random(shape) < missing] = -1
    P[rng.random(n_distinct) < silent] = -1
    P = P[rng.integers(n_distinct, size=n)]
    speaking, n_hyperedges = int((P >= 0).any(axis=1).sum()), reference.incidence(P)[0].shape[1]
    assume(speaking)
    most = min(speaking, n_hyperedges)
    k = min(most, draw(st.sampled_from([3, 2, 4, 5, 1, most])))
    return Case(P, k, rng.permutation(n_hyperedges)[:k].tolist())


@dataclass
class Found:
    """What a run of the package came to."""

    labels: np.ndarray
    margin: np.ndarray
    problem: Problem
    agreement: float
    n_clusters_found: int
    reads: int
    """Sweeps that read labels."""


def an_engine(P, k, *, problems=1, threads=1, block_rows=None, room=None, **changed):
    """With ``room``, so many bytes of rows near a cut may be kept."""
    labels = as_labels(P)
    budget = make_budget(labels.shape, [k] * problems, allowed=1 << 40, threads=threads, block_rows=block_rows)
    if room is not None:
        changed["terms"] = {**budget.terms, "samples near a cut": room}
    return Engine(labels, replace(budget, **changed))


def hyperedges_in(P):
    with an_engine(P, 1) as engine:
        return hyperedges_of(engine.labels, *intersections(engine))


def assignment_of(engine, problem):
    return engine.sweep("record", gather, join, problem.last_order(), reads=False)[:2]


def solve(P, params, *, seed=0, before_sweep=None, traces=None, **machine):
    """The result; with ``traces`` given, (stage, assignment) pairs go there by problem number."""

    def record(problem, stage, engine):
        if stage == "diffusion":
            assert problem.round <= len(P) + 1, "every round of diffusion adds a sample, and still it does not end"
        if traces is not None:
            traces.setdefault(problem.number, []).append((stage, assignment_of(engine, problem)[0]))

    with an_engine(P, params.n_clusters, problems=params.restarts, **machine) as engine:
        if before_sweep is not None:
            sweep = engine.sweep
            engine.sweep = lambda *args, **how: (before_sweep(engine), sweep(*args, **how))[1]
        result = consensus(engine, [params], seed, record=record)
        reads = engine.sweeps
        chosen = result.chosen
        labels, margin = assignment_of(engine, chosen.problem)
    margin = margin / as_labels(P).n_members
    return Found(labels, margin, chosen.problem, chosen.agreement, chosen.n_clusters_found, reads)


def solve_and_trace(P, params, **how):
    traces = {}
    return solve(P, params, traces=traces, **how), traces[0]


def start_from(case, belonging, schedule, max_iter=100):
    return Params(
        case.k, variant="released", belonging=belonging, schedule=schedule, init=case.medoids, max_iter=max_iter
    )


def assert_same_result(found, wanted):
    """Two results of the package, bit for bit."""
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)
    np.testing.assert_array_equal(found.problem.counts, wanted.problem.counts)
    np.testing.assert_array_equal(found.problem.medoids, wanted.problem.medoids)
    assert found.problem.losses == wanted.problem.losses
    assert found.problem.growth == wanted.problem.growth
    assert found.problem.moves == wanted.problem.moves
    assert found.problem.round == wanted.problem.round
    assert found.agreement == wanted.agreement


def assert_same_trace(found, wanted):
    assert [stage for stage, _ in found] == [stage for stage, _ in wanted]
    for (_, assignment), (_, expected) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(assignment, expected)


def assert_as_reference(found, trace, wanted, belonging):
    assert_same_trace(trace, wanted.trace)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)  # bit for bit: sums run in member order
    np.testing.assert_array_equal(found.problem.counts, wanted.counts)
    # Counts add up exactly in any order; shares are summed over hyperedges here, over samples in the reference.
    # The cosine's loss is small next to the sums it is the difference of.
    tolerance = {"count": (0, 0), "share": (1e-12, 0), "cosine": (0, 1e-12 * len(found.labels))}[belonging]
    np.testing.assert_allclose(found.problem.losses, wanted.losses, *tolerance)
    assert found.problem.converged == wanted.converged
    assert found.problem.round == len(wanted.trace)
    assert list(found.problem.growth) == [(a >= 0).sum() for stage, a in wanted.trace if stage != "adjustion"]
    assert found.n_clusters_found == len(set(wanted.labels.tolist()) - {-1})
    assignments = [np.full(len(found.labels), -1), *(assignment for _, assignment in wanted.trace)]
    assert found.problem.moves == [int((one != other).sum()) for one, other in pairwise(assignments)]


# --- against the reference ---------------------------------------------------------------------------------------


@every_knob
@settings(max_examples=80, deadline=None)
@given(
    case=cases(),
    dtype=st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]),
    order=st.sampled_from("CF"),
    block_rows=st.integers(1, 80),
    threads=st.integers(1, 3),
    max_iter=st.sampled_from([1, 2, 100]),
)
def test_consensus__equals_reference(belonging, schedule, case, dtype, order, block_rows, threads, max_iter):
    assume(case.P.min() >= 0 or np.issubdtype(dtype, np.signedinteger))
    P = case.P.astype(dtype, order=order)
    found, trace = solve_and_trace(
        P, start_from(case, belonging, schedule, max_iter), threads=threads, block_rows=block_rows
    )
    wanted = reference.cehm(case.P, case.k, case.medoids, belonging, schedule, max_iter)
    assert_as_reference(found, trace, wanted, belonging)


@every_knob
@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    few=st.sampled_from([0.0, 0.5, 1.0]),
    stored=st.booleans(),
    block_rows=st.integers(1, 80),
    max_iter=st.sampled_from([1, 3, 100]),
)
def test_rounds__pass_over_samples_that_are_sure(belonging, schedule, case, few, stored, block_rows, max_iter):
    params = start_from(case, belonging, schedule, max_iter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "FEW", few)
        # Nobody asks for margins between the rounds.
        found = solve(case.P, params, stored=stored, block_rows=block_rows)
    wanted = reference.cehm(case.P, case.k, case.medoids, belonging, schedule, max_iter)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)
    np.testing.assert_array_equal(found.problem.counts, wanted.counts)
    assert found.problem.round == len(wanted.trace)
    moves = [(a != b).sum() for (_, a), (_, b) in pairwise(wanted.trace)]
    assert found.problem.moves[1:] == moves


def test_rounds__look_at_few_samples(monkeypatch):
    looked_at, unsure = [], rounds._unsure

    def counted(order, passing, state, rows):
        found = unsure(order, passing, state, rows)
        looked_at.append(len(found) / (rows.stop - rows.start))
        return found

    monkeypatch.setattr(rounds, "_unsure", counted)
    found = solve(rugged(), Params(10, variant="released"))
    rounds_of_diffusion = len(found.problem.growth) - 2  # not the first one, which looks at all
    diffusion, adjustion = looked_at[:rounds_of_diffusion], looked_at[rounds_of_diffusion:]
    assert len(adjustion) == len(found.problem.losses)
    for shares in (diffusion, adjustion):
        assert len(shares) > 3
        assert np.mean(shares) < 0.5
        assert min(shares) < 0.2
    looked_at.clear()
    stored = solve(rugged(), Params(10, variant="released"), stored=True)  # labels in a store: all of them in adjustion
    assert len(looked_at) == rounds_of_diffusion - 1
    assert np.mean(looked_at) < 0.5
    assert_same_result(found, stored)
    looked_at.clear()
    everyone = solve(rugged(), Params(10, variant="released"), stored=True, keep_state=False)
    assert not looked_at
    assert_same_result(found, everyone)


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 999), few=st.sampled_from([0.5, 1.0]), block_rows=st.integers(1, 80))
def test_look_again__margins_are_exact_up_to_the_sure_one_and_no_larger_beyond(case, seed, few, block_rows):
    assume(case.k > 1)  # one cluster needs no cut
    rng = np.random.default_rng(seed)
    problem = Problem(0, Params(case.k), hyperedges_in(case.P), np.arange(case.k))
    weights = rng.random((problem.hyperedges.n_hyperedges, case.k))
    with an_engine(case.P, case.k, block_rows=block_rows) as engine, pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "FEW", few)
        span = engine.spans[0]
        codes = engine.labels.source.read(span.start, span.stop)
        for turn in range(6):
            drift = problem.drift(weights)
            problem.set_weights(weights)
            sure = 0.5 * rng.random()
            passing = None if drift is None else Passing(drift, sure)
            rounds.advance(span, [problem.order(Measure, floor=0, passing=passing)])
            state, wanted = span.cache.states[0], State(len(codes))
            Stack([problem.weights]).belonging(codes, span.offsets, [wanted], slice(None))
            np.testing.assert_array_equal(state.best, wanted.best)
            exact = state.margin == wanted.margin
            assert exact.all() or (turn > 0 and not state.exact)
            assert (state.margin[~exact] > sure).all()
            assert (state.margin[~exact] < wanted.margin[~exact]).all()
            weights = np.maximum(0.0, weights * (1 + 0.01 * rng.normal(size=weights.shape)))


@settings(max_examples=60, deadline=None)
@given(case=cases(), seed=st.integers(0, 999), step=st.sampled_from([0.0, 1e-15, 1e-6, 0.1, 10.0]))
def test_drift__no_lead_changes_by_more(case, seed, step):
    rng = np.random.default_rng(seed)
    problem = Problem(0, Params(case.k), hyperedges_in(case.P), np.arange(case.k))
    before = rng.random((problem.hyperedges.n_hyperedges, case.k)) * 10.0 ** rng.integers(-3, 9)
    after = np.maximum(0.0, before * (1 + step * rng.normal(size=before.shape)))
    assert problem.drift(before) is None  # there are no weights yet
    problem.set_weights(before)
    with an_engine(case.P, 1) as engine:
        codes, offsets = engine.labels.source.read(0, len(case.P)), engine.labels.offsets
        sums = np.empty((2, len(codes), case.k))
        for weights, out in zip((before, after), sums, strict=True):
            kernels.degrees(codes, offsets, problem.hyperedges.to_slots(weights), out)
    leads = sums[:, :, :, None] - sums[:, :, None, :]
    assert np.abs(leads[1] - leads[0]).max() <= problem.drift(after)


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases(), bins=st.sampled_from([2, 4, 16]), few=st.integers(1, 4), block_rows=st.integers(1, 80))
def test_consensus__cut_narrowed_down_by_histograms(belonging, schedule, case, bins, few, block_rows):
    with pytest.MonkeyPatch.context() as patch:
        # As if millions of margins fell into one bin: only a few keys may travel, so further histograms are needed.
        patch.setattr(kernels, "BINS", bins)
        patch.setattr(diffusion, "COLLECT_AT_MOST", few)
        found, trace = solve_and_trace(case.P, start_from(case, belonging, schedule), block_rows=block_rows)
    wanted = reference.cehm(case.P, case.k, case.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)


def one_cluster_of_many():
    """Forty rows, twenty of them different, that all end in one cluster."""
    rows = """48 40 34 16  24 0 0 8  0 40 34 8  24 20 17 0  0 0 17 0  24 40 17 0  48 20 17 8  24 20 17 8  48 40 0 0
    48 0 34 8  48 0 17 8  0 0 17 16  48 20 0 0  48 0 34 16  24 0 34 16  0 20 17 8  24 40 17 16  48 0 0 0  0 20 0 0"""
    order = "0 1 1 2 3 4 1 5 2 1 6 1 7 8 9 10 0 11 12 13 2 2 3 1 6 3 0 14 13 10 10 13 15 16 17 16 13 0 7 18"
    return np.array(rows.split(), int).reshape(-1, 4)[np.array(order.split(), int)]


def five_kinds_of_rows():
    """Forty rows, six of them without labels, the others alike or nearly so."""
    rows = """92 6 36 0  92 8 48 48  23 8 0 36  46 2 48 24  -1 -1 -1 -1  69 4 36 24  23 8 12 24"""
    order = "0 1 0 2 2 1 1 3 4 1 5 3 4 3 2 1 6 2 3 2 1 1 1 6 3 4 2 4 5 2 0 6 4 4 1 1 3 1 3 5"
    return np.array(rows.split(), int).reshape(-1, 4)[np.array(order.split(), int)]


@every_knob
@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    stride=st.sampled_from([1, 3, 1000]),
    sigmas=st.sampled_from([-1.0, 0.0, 4.0]),
    room=st.sampled_from([0, 200, 1 << 20]),
    keep_state=st.booleans(),
    lost=st.sampled_from([0.0, 0.0, 0.3]),
    block_rows=st.integers(1, 80),
    threads=st.integers(1, 2),
)
@example(
    # A band that begins at margin 0, above which all rows are let in: they are counted all the same.
    case=Case(five_kinds_of_rows(), 4, [9, 15, 7, 13]),
    stride=1,
    sigmas=-1.0,
    room=0,
    keep_state=True,
    lost=0.0,
    block_rows=1,
    threads=1,
)
@example(
    # Rows above the window whose margins are not known exactly: a lost worker would assign others than it had.
    case=Case(one_cluster_of_many(), 5, [1, 6, 0, 8, 9]),
    stride=1000,
    sigmas=-1.0,
    room=1 << 20,
    keep_state=True,
    lost=0.3,
    block_rows=1,
    threads=2,
)
def test_consensus__cut_foretold(
    belonging, schedule, case, stride, sigmas, room, keep_state, lost, block_rows, threads
):
    rng = np.random.default_rng(len(case.P))

    def lose_some(engine):
        for span in engine.spans:
            if rng.random() < lost:
                span.cache.states.clear()
            if rng.random() < lost:
                span.cache.waiting.clear()
            if rng.random() < lost:
                span.cache.sample.clear()

    with pytest.MonkeyPatch.context() as patch:
        # Bands from whole samples, from poor ones that the cut misses, and with workers lost between any two sweeps.
        patch.setattr(diffusion, "BAND_SIGMAS", sigmas)
        found, trace = solve_and_trace(
            case.P,
            start_from(case, belonging, schedule),
            threads=threads,
            block_rows=block_rows,
            stored=True,  # labels that come from a store are worth foretelling cuts for
            keep_state=keep_state,
            sample_stride=stride,
            room=room,
            before_sweep=lose_some,
        )
    wanted = reference.cehm(case.P, case.k, case.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)


@every_knob
def test_consensus__cut_among_ties_behind_silent_rows(belonging, schedule):
    # Ties are let in by row number: that of the whole matrix, silent rows included.
    P = np.array([[-1, -1], [0, 0], [0, 0], [-1, -1], [0, 0]])
    found, trace = solve_and_trace(P, start_from(Case(P, 2, [0, 1]), belonging, schedule))
    assert_as_reference(found, trace, reference.cehm(P, 2, [0, 1], belonging, schedule), belonging)


@every_knob
@pytest.mark.parametrize("silent_rows", [False, True])
def test_consensus__more_ties_than_may_travel(belonging, schedule, silent_rows):
    rng = np.random.default_rng(5)
    distinct = np.array([[0, 0, 0, 0], [0, 1, 0, 1], [1, 1, 1, 0], [2, 1, 1, 1], [2, 2, 0, 1], [1, 0, 2, 2]])
    rows = rng.integers(len(distinct), size=3 * diffusion.COLLECT_AT_MOST)
    P = distinct[rows].astype(np.int8)
    if silent_rows:
        P[rng.random(len(P)) < 0.1] = -1
    case = Case(P, 3, [0, 4, 8])
    found, trace = solve_and_trace(P, start_from(case, belonging, schedule), threads=2, block_rows=1 << 14)
    wanted = reference.cehm(P, 3, case.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)
    if schedule == "fixed":
        assert wanted.cut_among_ties()  # or the test does not test what it says


@pytest.mark.parametrize("similarity", ["jaccard", "containment"])
@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_dissimilarity__equals_reference(similarity, case):
    hyperedges = hyperedges_in(case.P)
    np.testing.assert_array_equal(hyperedges.intersections, reference.intersections(case.P))
    wanted = reference.dissimilarity(case.P, similarity).astype(np.float32)
    np.testing.assert_array_equal(dissimilarity(hyperedges, similarity), wanted)


@pytest.mark.parametrize("similarity", ["jaccard", "containment"])
def test_medoids__optimal_for_a_small_table(similarity):
    rng = np.random.default_rng(2)
    truth = rng.integers(3, size=60)
    P = np.where(rng.random((60, 4)) < 0.8, truth[:, None], rng.integers(3, size=(60, 4)))
    hyperedges = hyperedges_in(P)
    table = reference.dissimilarity(P, similarity)
    costs = {chosen: table[:, chosen].min(axis=1).sum() for chosen in combinations(range(len(table)), 3)}
    sets = medoids(hyperedges, similarity, 3, 20, 1, np.random.default_rng(0))
    found = [tuple(chosen.tolist()) for chosen in sets]
    assert found == sorted(set(found), key=found.index)  # different sets, each ascending:
    assert all(list(chosen) == sorted(chosen) for chosen in found)
    assert min(costs[chosen] for chosen in found) == pytest.approx(min(costs.values()))


# --- nothing about the machine changes a bit ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def ensemble():
    """Noisy copies of a truth, with missing labels and silent rows; large enough for several strips of a kernel."""
    rng = np.random.default_rng(1)
    truth = rng.integers(5, size=1300)
    P = np.where(rng.random((1300, 7)) < 0.7, truth[:, None], rng.integers(7, size=(1300, 7)))
    P[rng.random(P.shape) < 0.1] = -1
    P[::100] = -1
    return Case(P, 5, [0, 8, 16, 24, 32])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("block_rows", [17, 256, 1000, 1300, 10**6])
@pytest.mark.parametrize("variant", VARIANTS)
def test_consensus__block_size_and_threads_change_nothing(ensemble, variant, block_rows, threads):
    params = Params(ensemble.k, variant=variant, init=ensemble.medoids)
    wanted, wanted_trace = solve_and_trace(ensemble.P, params)
    found, trace = solve_and_trace(ensemble.P, params, threads=threads, block_rows=block_rows)
    assert_same_result(found, wanted)
    assert_same_trace(trace, wanted_trace)


def lose_everything(engine):
    for span in engine.spans:
        span.cache.states.clear()


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases(), keep_state=st.booleans(), block_rows=st.integers(1, 80))
def test_consensus__lost_state_changes_nothing(belonging, schedule, case, keep_state, block_rows):
    params = start_from(case, belonging, schedule)
    wanted, wanted_trace = solve_and_trace(case.P, params)
    lossy = {"keep_state": keep_state, "before_sweep": lose_everything}
    found, trace = solve_and_trace(case.P, params, block_rows=block_rows, **lossy)
    assert_same_result(found, wanted)
    assert_same_trace(trace, wanted_trace)


# --- nothing about the names of things changes the partition -----------------------------------------------------


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases(), data=st.data())
def test_consensus__labels_renamed_in_order(belonging, schedule, case, data):
    renamed = case.P.copy()
    for j in range(case.P.shape[1]):
        known = np.unique(case.P[case.P[:, j] >= 0, j])
        names = np.cumsum(data.draw(arrays(np.int64, len(known), elements=st.integers(1, 10**4)))) - 1
        for old, new in zip(known, names, strict=True):
            renamed[case.P[:, j] == old, j] = new
    wanted, wanted_trace = solve_and_trace(case.P, start_from(case, belonging, schedule))
    found, trace = solve_and_trace(renamed, start_from(case, belonging, schedule))
    assert_same_result(found, wanted)
    assert_same_trace(trace, wanted_trace)


def members_permuted(case, order):
    """The ensemble with its members in another order, and the same medoids under their new numbers."""
    _, members = reference.incidence(case.P)
    first = np.searchsorted(members, np.arange(case.P.shape[1] + 1))
    widths = np.diff(first)
    new_first = dict(zip(order, np.concatenate(([0], np.cumsum(widths[order])[:-1])).tolist(), strict=True))
    renumbered = [int(new_first[members[c]] + c - first[members[c]]) for c in case.medoids]
    return Case(case.P[:, order], case.k, renumbered)


@pytest.mark.parametrize("schedule", ["fixed", "renewed"])
@settings(max_examples=80, deadline=None)
@given(case=cases(), data=st.data())
def test_consensus__members_permuted(schedule, case, data):
    order = data.draw(st.permutations(range(case.P.shape[1])))
    # Ties go to the lower cluster number, and clusters are numbered as their medoids are: members that hold a
    # medoid keep their order among themselves, all others go anywhere.
    holders = {int(reference.incidence(case.P)[1][c]) for c in case.medoids}
    in_order = iter(sorted(holders))
    order = [next(in_order) if j in holders else j for j in order]
    other = members_permuted(case, order)
    wanted, wanted_trace = solve_and_trace(case.P, start_from(case, "count", schedule))
    found, trace = solve_and_trace(other.P, start_from(other, "count", schedule))
    assert_same_trace(trace, wanted_trace)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)
    assert found.problem.losses == wanted.problem.losses


@pytest.mark.parametrize("belonging", ["share", "count", "cosine"])
@settings(max_examples=40, deadline=None)
@given(case=cases(), data=st.data())
def test_consensus__rows_permuted_and_everything_tied_let_in(belonging, case, data):
    # With the renewed schedule no row number decides anything: exact, ties or not.
    order = np.array(data.draw(st.permutations(range(len(case.P)))))
    wanted = solve(case.P, start_from(case, belonging, "renewed"))
    found = solve(case.P[order], start_from(case, belonging, "renewed"))
    np.testing.assert_array_equal(found.labels, wanted.labels[order])
    np.testing.assert_array_equal(found.margin, wanted.margin[order])
    np.testing.assert_array_equal(found.problem.counts, wanted.problem.counts)


@pytest.mark.parametrize("belonging", ["share", "count", "cosine"])
@settings(max_examples=40, deadline=None)
@given(case=cases(min_rows=6), data=st.data())
def test_consensus__rows_permuted_and_no_cut_among_ties(belonging, case, data):
    # With the fixed schedule row numbers decide at the cut: rows may be permuted only where no cut splits a tie.
    assume(not reference.cehm(case.P, case.k, case.medoids, belonging, "fixed").cut_among_ties())
    order = np.array(data.draw(st.permutations(range(len(case.P)))))
    wanted = solve(case.P, start_from(case, belonging, "fixed"))
    found = solve(case.P[order], start_from(case, belonging, "fixed"))
    np.testing.assert_array_equal(found.labels, wanted.labels[order])
    np.testing.assert_array_equal(found.margin, wanted.margin[order])


# --- medoid starts -----------------------------------------------------------------------------------------------


def medoid_loss(P, chosen):
    return reference.dissimilarity(P, "jaccard")[:, list(chosen)].min(axis=1).sum()


def test_medoids__the_best_of_the_tries_first():
    hyperedges = hyperedges_in(rugged())
    rng = np.random.default_rng(0)
    singles = [medoids(hyperedges, "jaccard", 20, 1, 1, rng)[0] for _ in range(8)]
    losses = [medoid_loss(rugged(), one) for one in singles]
    assert len(set(losses)) > 2, "the seeds must differ for this to test anything"
    kept = medoids(hyperedges, "jaccard", 20, 2, 8, np.random.default_rng(0))
    np.testing.assert_allclose([medoid_loss(rugged(), one) for one in kept], sorted(set(losses))[:2])
    np.testing.assert_array_equal(medoids(hyperedges, "jaccard", 20, 1, 8, np.random.default_rng(0))[0], kept[0])
    np.testing.assert_array_equal(medoids(hyperedges, "jaccard", 20, 1, 1, np.random.default_rng(0))[0], singles[0])


def test_medoids__the_search_ends_when_the_best_came_up_three_times(monkeypatch):
    losses = []

    def counted(*args):
        solution = fasterpam(*args)
        losses.append(solution.loss)
        return solution

    monkeypatch.setattr("cehm_dask.method.medoids.fasterpam", counted)
    medoids(hyperedges_in(rugged()), "jaccard", 2, 1, 50, np.random.default_rng(0))
    assert len(losses) < 50, "the best must be found often for this to test anything"
    assert losses.count(losses[-1]) == 3
    assert losses[-1] == min(losses)
    losses.clear()
    medoids(hyperedges_in(rugged()), "jaccard", 2, 2, 50, np.random.default_rng(0))
    assert len(losses) == 50  # for the second best, all are looked at


# --- belonging by cosine -----------------------------------------------------------------------------------------


def test_weights__cosine_by_hand():
    edges = hyperedges_in(np.array([[0, 0], [0, 0], [1, 0], [1, 1]]))
    counts = np.array([[2, 0], [0, 2], [2, 1], [0, 1]])  # of the first two rows against the others
    shares = np.array([[1, 0], [0, 1], [2 / 3, 1 / 3], [0, 1]])
    np.testing.assert_allclose(weights_of("cosine", counts, edges), shares / np.sqrt([2 + 4 / 3, 2 + 1 / 3 + 1]))
    assert (weights_of("cosine", counts * [1, 0], edges)[:, 1] == 0).all()  # an empty one draws nothing


@settings(max_examples=60, deadline=None)
@given(case=cases())
def test_margin__of_the_cosine_lies_between_0_and_1(case):
    found = solve(case.P, start_from(case, "cosine", "fixed"))
    assert (found.margin >= 0).all()
    assert (found.margin <= 1 + 1e-12).all()


def test_margin__of_the_cosine_is_1_where_all_members_agree():
    P = np.repeat([[0, 0, 0], [1, 1, 1], [2, 2, 2]], [50, 7, 2], axis=0)
    np.testing.assert_allclose(solve(P, Params(3, variant="cosine")).margin, 1.0)


def test_cosine__a_large_cluster_does_not_swallow_a_small_one():
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], [100, 20])
    P = np.stack([np.where(rng.random(120) < 0.75, truth, rng.integers(2, size=120)) for _ in range(9)], axis=1)
    cosine, share = (solve(P, Params(2, variant=variant)).labels for variant in ("cosine", "released"))
    assert len(set(share)) == 1
    assert (cosine == truth).mean() > 0.95 or (cosine != truth).mean() > 0.95


# --- properties of the result ------------------------------------------------------------------------------------


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases(min_rows=10))
def test_loss__never_rises(belonging, schedule, case):
    found = solve(case.P, start_from(case, belonging, schedule))
    rise = np.diff(found.problem.losses)
    assert (rise <= (0 if belonging == "count" else 1e-12 * len(case.P) ** 2)).all()


@pytest.mark.parametrize("variant", CHAINS)
def test_loss__falls_on_a_real_ensemble(variant):
    # The property above would hold if there were but one round; here adjustion really works.
    with np.load(GOLDEN / "semeion.npz") as golden:
        # Ten of the first member's clusters are a poor start, from which the other variants too have some way to go.
        medoids = golden[f"{variant}_medoids"] if variant in PAPER else range(10)
        found = solve(golden["P"], Params(10, variant=variant, init=medoids))
    assert len(found.problem.losses) > 3
    assert (np.diff(found.problem.losses) < 0).all()


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_consensus__column_repeated_counts_twice(belonging, schedule, case):
    twice = Case(np.hstack([case.P, case.P[:, -1:]]), case.k, case.medoids)
    found, trace = solve_and_trace(twice.P, start_from(twice, belonging, schedule))
    wanted = reference.cehm(twice.P, twice.k, twice.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)


@pytest.mark.parametrize("schedule", ["fixed", "renewed"])
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_consensus__ensemble_repeated_changes_nothing(schedule, case):
    wanted, wanted_trace = solve_and_trace(case.P, start_from(case, "count", schedule))
    found, trace = solve_and_trace(np.hstack([case.P, case.P]), start_from(case, "count", schedule))
    assert_same_trace(trace, wanted_trace)
    np.testing.assert_array_equal(found.margin, wanted.margin)


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_consensus__one_cluster_takes_every_speaking_row(belonging, schedule, case):
    found = solve(case.P, start_from(Case(case.P, 1, case.medoids[:1]), belonging, schedule))
    np.testing.assert_array_equal(found.labels, np.where((case.P >= 0).any(axis=1), 0, -1))


@settings(max_examples=40, deadline=None)
@given(case=cases(), schedule=st.sampled_from(["fixed", "renewed"]))
def test_margin__from_zero_to_one_with_shares(case, schedule):
    found = solve(case.P, start_from(case, "share", schedule))
    assert (found.margin >= 0).all()
    assert (found.margin <= 1 + 1e-12).all()
    assert (found.margin[found.labels < 0] == 0).all()


# --- restarts ----------------------------------------------------------------------------------------------------


@cache
def rugged():
    """An ensemble whose medoids have many local optima: restarts end in different partitions."""
    with np.load(GOLDEN / "semeion.npz") as golden:
        P = golden["P"].copy()
    P[[3, 77]] = -1
    return P


@cache
def singles(variant, seed):
    """Result and trace of every start that five restarts begin with, each run by itself."""
    similarity, rng = Params(10, variant=variant).similarity, np.random.default_rng([seed, 10])
    sets = medoids(hyperedges_in(rugged()), similarity, 10, 5, 10, rng)
    return [solve_and_trace(rugged(), Params(10, variant=variant, init=chosen)) for chosen in sets]


@pytest.mark.parametrize("choose", ["agreement", "loss"])
@pytest.mark.parametrize("variant", CHAINS)
def test_restarts__best_of_the_single_problems(variant, choose):
    places = []
    for seed in range(3):
        params = Params(10, variant=variant, restarts=5, choose=choose)
        found = solve(rugged(), params, seed=seed, threads=2, block_rows=300)
        alone = [one for one, _ in singles(variant, seed)]
        score = [one.agreement if choose == "agreement" else -one.problem.losses[-1] for one in alone]
        places.append(int(np.argmax(score)))
        assert_same_result(found, alone[places[-1]])
    assert max(places) > 0  # or taking the first would pass too


@pytest.mark.parametrize("variant", CHAINS)
def test_restarts__traces_and_sweeps_of_all_problems(variant):
    traces, alone = {}, singles(variant, 0)
    params = Params(10, variant=variant, restarts=5)
    found = solve(rugged(), params, seed=0, traces=traces, threads=3, block_rows=100)
    assert len(traces) == len(alone) > 1
    for number, (_, wanted) in enumerate(alone):
        assert_same_trace(traces[number], wanted)
    # Side by side, the labels are read as often as the slowest needs, and once for the margins that are compared.
    assert len({one.reads for one, _ in alone}) > 1
    assert found.reads == max(one.reads for one, _ in alone) + 1


def test_restarts__fewer_different_starts_than_asked_for():
    P = np.array([[0], [0], [1], [1]])
    found = solve(P, Params(2, variant="released", restarts=3))
    assert found.labels.tolist() == [0, 0, 1, 1]


def test_progress__events_tell_the_same_story_as_the_trace(ensemble):
    events, assignments = [], []
    CEHM(ensemble.k, variant="released", init=ensemble.medoids).fit(
        ensemble.P, record=lambda restart, stage, number, a: assignments.append((stage, a)), progress=events.append
    )
    assert [event.stage for event in events] == [stage for stage, _ in assignments]
    assert [event.assigned for event in events] == [(a >= 0).sum() for _, a in assignments]
    moves = [(a != b).sum() for (_, a), (_, b) in pairwise(assignments)]
    assert [event.moved for event in events[1:]] == moves
    assert [event.round for event in events] == list(range(1, len(events) + 1))
    assert all((event.loss is None) == (event.stage != "adjustion") for event in events)
    assert {event.n_samples for event in events} == {(ensemble.P >= 0).any(axis=1).sum()}


def test_random_state__same_seed_same_result():
    first = CEHM(n_clusters=10, random_state=3, restarts=2).fit(rugged())
    second = CEHM(n_clusters=10, random_state=np.random.RandomState(3), restarts=2).fit(rugged())
    np.testing.assert_array_equal(first.labels_, second.labels_)
    np.testing.assert_array_equal(first.margin_, second.margin_)
    np.testing.assert_array_equal(first.medoids_, second.medoids_)


def test_random_state__other_seeds_other_medoids():
    with np.load(GOLDEN / "soybean.npz") as golden:
        P = golden["P"]
    found = {tuple(CEHM(n_clusters=6, random_state=seed).fit(P).medoids_.tolist()) for seed in range(5)}
    assert len(found) > 1
