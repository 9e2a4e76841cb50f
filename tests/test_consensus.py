"""All stages together against the dense reference, and the invariances the method promises."""

from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cehm_dask import CEHM, diffusion, kernels
from cehm_dask.consensus import consensus
from cehm_dask.engine import Engine
from cehm_dask.evaluation import agreement
from cehm_dask.intersections import intersections
from cehm_dask.labels import as_labels
from cehm_dask.medoids import dissimilarity, medoids
from cehm_dask.plan import Params
from tests import reference

# Random ensembles are full of one-cluster members and lost clusters; the warnings have tests of their own.
pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

GOLDEN = Path(__file__).parent / "golden"
KNOBS = [(belonging, schedule) for belonging in ("share", "count") for schedule in ("fixed", "renewed")]
every_knob = pytest.mark.parametrize(("belonging", "schedule"), KNOBS)


@dataclass
class Case:
    """An ensemble and where to start from."""

    P: np.ndarray
    k: int
    medoids: list


@st.composite
def cases(draw, min_rows=1, max_rows=40):
    """Few distinct rows, repeated (so that cuts fall among ties), with gaps in the labels and missing ones."""
    n = draw(st.integers(min_rows, max_rows))
    n_members = draw(st.integers(1, 6))
    n_distinct = draw(st.integers(1, min(n, 12)))
    low = draw(st.sampled_from([-1, 0]))
    distinct = draw(arrays(np.int64, (n_distinct, n_members), elements=st.integers(low, draw(st.integers(1, 4)))))
    if draw(st.booleans()):
        distinct[0] = -1  # rows that no member speaks about: rare unless asked for
    steps = draw(arrays(np.int64, n_members, elements=st.integers(1, 25)))
    P = np.where(distinct < 0, -1, distinct * steps)[draw(arrays(np.intp, n, elements=st.integers(0, n_distinct - 1)))]
    speaking = int((P >= 0).any(axis=1).sum())
    n_hyperedges = reference.incidence(P)[0].shape[1]
    assume(speaking)
    k = draw(st.integers(1, min(speaking, n_hyperedges)))
    return Case(P, k, draw(st.permutations(range(n_hyperedges)))[:k])


def solve(P, params, *, threads=1, block_rows=1 << 15, seed=0, keep_state=True, forget=False):
    """The result, and the trace as (stage, assignment) pairs of the only problem."""
    trace = []
    with Engine(as_labels(P), threads=threads, block_rows=block_rows) as engine:
        for run in engine.runs:
            run.keep_state = keep_state

        def record(problem, stage, number, assignment):
            trace.append((stage, assignment))
            if forget:
                for run in engine.runs:
                    run.states.clear()

        return consensus(engine, params, np.random.default_rng(seed), record=record), trace


def start_from(case, belonging, schedule, max_iter=100):
    return Params(case.k, belonging=belonging, schedule=schedule, init=case.medoids, max_iter=max_iter)


def assert_same_result(found, wanted):
    """Two results of the package, bit for bit."""
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)
    np.testing.assert_array_equal(found.counts, wanted.counts)
    np.testing.assert_array_equal(found.medoids, wanted.medoids)
    np.testing.assert_array_equal(found.loss_history, wanted.loss_history)
    assert found.growth == wanted.growth
    assert found.n_rounds == wanted.n_rounds
    assert found.agreement == wanted.agreement


def assert_same_trace(found, wanted):
    assert [stage for stage, _ in found] == [stage for stage, _ in wanted]
    for (_, assignment), (_, expected) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(assignment, expected)


def assert_as_reference(found, trace, wanted, belonging):
    assert_same_trace(trace, wanted.trace)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)  # bit for bit: sums run in member order
    np.testing.assert_array_equal(found.counts, wanted.counts)
    # Counts add up exactly in any order; shares are summed over hyperedges here, over samples in the reference.
    np.testing.assert_allclose(found.loss_history, wanted.losses, rtol=0 if belonging == "count" else 1e-12, atol=0)
    assert found.converged == wanted.converged
    assert found.n_rounds == len(wanted.trace)
    assert list(found.growth) == [(a >= 0).sum() for stage, a in wanted.trace if stage != "adjustion"]
    assert found.n_clusters_found == len(set(wanted.labels.tolist()) - {-1})


# --- against the reference ---------------------------------------------------------------------------------------


@every_knob
@settings(max_examples=120, deadline=None)
@given(
    case=cases(),
    dtype=st.sampled_from([np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]),
    order=st.sampled_from("CF"),
    block_rows=st.integers(1, 40),
    threads=st.integers(1, 3),
    max_iter=st.sampled_from([1, 2, 100]),
)
def test_consensus__equals_reference(belonging, schedule, case, dtype, order, block_rows, threads, max_iter):
    assume(case.P.min() >= 0 or np.issubdtype(dtype, np.signedinteger))
    P = case.P.astype(dtype, order=order)
    found, trace = solve(P, start_from(case, belonging, schedule, max_iter), threads=threads, block_rows=block_rows)
    wanted = reference.cehm(case.P, case.k, case.medoids, belonging, schedule, max_iter)
    assert_as_reference(found, trace, wanted, belonging)


@every_knob
@settings(max_examples=60, deadline=None)
@given(case=cases(), bins=st.sampled_from([2, 4, 16]), few=st.integers(1, 4), block_rows=st.integers(1, 40))
def test_consensus__cut_narrowed_down_by_histograms(belonging, schedule, case, bins, few, block_rows):
    with pytest.MonkeyPatch.context() as patch:
        # As if millions of margins fell into one bin: only a few keys may travel, so further histograms are needed.
        patch.setattr(kernels, "BINS", bins)
        patch.setattr(diffusion, "COLLECT_AT_MOST", few)
        found, trace = solve(case.P, start_from(case, belonging, schedule), block_rows=block_rows)
    wanted = reference.cehm(case.P, case.k, case.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)


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
    found, trace = solve(P, start_from(case, belonging, schedule), threads=2, block_rows=1 << 14)
    wanted = reference.cehm(P, 3, case.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)
    if schedule == "fixed":
        assert wanted.cut_among_ties()  # or the test does not test what it says


@pytest.mark.parametrize("similarity", ["jaccard", "containment"])
@settings(max_examples=50, deadline=None)
@given(case=cases())
def test_dissimilarity__equals_reference(similarity, case):
    with Engine(as_labels(case.P)) as engine:
        hyperedges = intersections(engine)
    np.testing.assert_array_equal(hyperedges.intersections, reference.intersections(case.P))
    np.testing.assert_array_equal(dissimilarity(hyperedges, similarity), reference.dissimilarity(case.P, similarity))


@pytest.mark.parametrize("similarity", ["jaccard", "containment"])
def test_medoids__optimal_for_a_small_table(similarity):
    rng = np.random.default_rng(2)
    truth = rng.integers(3, size=60)
    P = np.where(rng.random((60, 4)) < 0.8, truth[:, None], rng.integers(3, size=(60, 4)))
    with Engine(as_labels(P)) as engine:
        hyperedges = intersections(engine)
    table = reference.dissimilarity(P, similarity)
    costs = {chosen: table[:, chosen].min(axis=1).sum() for chosen in combinations(range(len(table)), 3)}
    sets = medoids(hyperedges, similarity, 3, 20, np.random.default_rng(0))
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
@pytest.mark.parametrize("variant", ["released", "printed"])
def test_consensus__block_size_and_threads_change_nothing(ensemble, variant, block_rows, threads):
    params = Params(ensemble.k, variant=variant, init=ensemble.medoids)
    wanted, wanted_trace = solve(ensemble.P, params)
    found, trace = solve(ensemble.P, params, threads=threads, block_rows=block_rows)
    assert_same_result(found, wanted)
    assert_same_trace(trace, wanted_trace)


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases(), keep_state=st.booleans(), block_rows=st.integers(1, 40))
def test_consensus__lost_state_changes_nothing(belonging, schedule, case, keep_state, block_rows):
    params = start_from(case, belonging, schedule)
    wanted, wanted_trace = solve(case.P, params)
    found, trace = solve(case.P, params, keep_state=keep_state, forget=True, block_rows=block_rows)
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
    wanted, wanted_trace = solve(case.P, start_from(case, belonging, schedule))
    found, trace = solve(renamed, start_from(case, belonging, schedule))
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
    wanted, wanted_trace = solve(case.P, start_from(case, "count", schedule))
    found, trace = solve(other.P, start_from(other, "count", schedule))
    assert_same_trace(trace, wanted_trace)
    np.testing.assert_array_equal(found.labels, wanted.labels)
    np.testing.assert_array_equal(found.margin, wanted.margin)
    np.testing.assert_array_equal(found.loss_history, wanted.loss_history)


@pytest.mark.parametrize("belonging", ["share", "count"])
@settings(max_examples=60, deadline=None)
@given(case=cases(), data=st.data())
def test_consensus__rows_permuted_and_everything_tied_let_in(belonging, case, data):
    # With the renewed schedule no row number decides anything: exact, ties or not.
    order = np.array(data.draw(st.permutations(range(len(case.P)))))
    wanted, _ = solve(case.P, start_from(case, belonging, "renewed"))
    found, _ = solve(case.P[order], start_from(case, belonging, "renewed"))
    np.testing.assert_array_equal(found.labels, wanted.labels[order])
    np.testing.assert_array_equal(found.margin, wanted.margin[order])
    np.testing.assert_array_equal(found.counts, wanted.counts)


@pytest.mark.parametrize("belonging", ["share", "count"])
@settings(max_examples=60, deadline=None)
@given(case=cases(min_rows=6), data=st.data())
def test_consensus__rows_permuted_and_no_cut_among_ties(belonging, case, data):
    # With the fixed schedule row numbers decide at the cut: rows may be permuted only where no cut splits a tie.
    assume(not reference.cehm(case.P, case.k, case.medoids, belonging, "fixed").cut_among_ties())
    order = np.array(data.draw(st.permutations(range(len(case.P)))))
    wanted, _ = solve(case.P, start_from(case, belonging, "fixed"))
    found, _ = solve(case.P[order], start_from(case, belonging, "fixed"))
    np.testing.assert_array_equal(found.labels, wanted.labels[order])
    np.testing.assert_array_equal(found.margin, wanted.margin[order])


# --- properties of the result ------------------------------------------------------------------------------------


@every_knob
@settings(max_examples=60, deadline=None)
@given(case=cases(min_rows=10))
def test_loss__never_rises(belonging, schedule, case):
    found, _ = solve(case.P, start_from(case, belonging, schedule))
    rise = np.diff(found.loss_history)
    assert (rise <= (0 if belonging == "count" else 1e-12 * found.loss_history[0])).all()


@pytest.mark.parametrize("variant", ["released", "printed"])
def test_loss__falls_on_a_real_ensemble(variant):
    # The property above would hold if there were but one round; here adjustion really works.
    with np.load(GOLDEN / "semeion.npz") as golden:
        found, _ = solve(golden["P"], Params(10, variant=variant, init=golden[f"{variant}_medoids"]))
    assert len(found.loss_history) > 3
    assert (np.diff(found.loss_history) < 0).all()


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_consensus__column_repeated_counts_twice(belonging, schedule, case):
    twice = Case(np.hstack([case.P, case.P[:, -1:]]), case.k, case.medoids)
    found, trace = solve(twice.P, start_from(twice, belonging, schedule))
    wanted = reference.cehm(twice.P, twice.k, twice.medoids, belonging, schedule)
    assert_as_reference(found, trace, wanted, belonging)


@pytest.mark.parametrize("schedule", ["fixed", "renewed"])
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_consensus__ensemble_repeated_changes_nothing(schedule, case):
    wanted, wanted_trace = solve(case.P, start_from(case, "count", schedule))
    found, trace = solve(np.hstack([case.P, case.P]), start_from(case, "count", schedule))
    assert_same_trace(trace, wanted_trace)
    np.testing.assert_array_equal(found.margin, wanted.margin)


@every_knob
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_consensus__one_cluster_takes_every_speaking_row(belonging, schedule, case):
    found, _ = solve(case.P, start_from(Case(case.P, 1, case.medoids[:1]), belonging, schedule))
    np.testing.assert_array_equal(found.labels, np.where((case.P >= 0).any(axis=1), 0, -1))


@settings(max_examples=40, deadline=None)
@given(case=cases(), schedule=st.sampled_from(["fixed", "renewed"]))
def test_margin__from_zero_to_one_with_shares(case, schedule):
    found, _ = solve(case.P, start_from(case, "share", schedule))
    assert (found.margin >= 0).all()
    assert (found.margin <= 1 + 1e-12).all()
    assert (found.margin[found.labels < 0] == 0).all()


# --- restarts ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rugged():
    """An ensemble whose medoids have many local optima: restarts end in different partitions."""
    with np.load(GOLDEN / "soybean.npz") as golden:
        P = golden["P"].copy()
    P[[3, 77]] = -1
    return P


@pytest.mark.parametrize("choose", ["agreement", "loss"])
@pytest.mark.parametrize("variant", ["released", "printed"])
def test_restarts__best_of_the_single_problems(rugged, variant, choose):
    params = Params(6, variant=variant, restarts=5, choose=choose)
    with Engine(as_labels(rugged), threads=2, block_rows=64) as engine:
        found = consensus(engine, params, np.random.default_rng(4))
        hyperedges = intersections(engine)
    sets = medoids(hyperedges, params.similarity, 6, 5, np.random.default_rng(4))
    assert len(sets) == 5
    singles = []
    for chosen in sets:
        with Engine(as_labels(rugged)) as engine:
            params = Params(6, variant=variant, init=chosen)
            singles.append(consensus(engine, params, np.random.default_rng(0)))
    score = [agreement(hyperedges, one.counts) if choose == "agreement" else -one.loss_history[-1] for one in singles]
    assert len(set(score)) > 1  # or the choice is not tested
    assert 0 < np.argmax(score)  # nor is it by taking the first
    assert_same_result(found, singles[int(np.argmax(score))])
    assert found.sweeps == max(one.sweeps for one in singles)


@pytest.mark.parametrize("variant", ["released", "printed"])
def test_restarts__traces_of_all_problems_are_those_of_single_ones(rugged, variant):
    traces = {}
    with Engine(as_labels(rugged), threads=3, block_rows=100) as engine:
        params = Params(6, variant=variant, restarts=4)
        consensus(
            engine,
            params,
            np.random.default_rng(4),
            record=lambda problem, stage, number, a: traces.setdefault(problem, []).append((stage, a)),
        )
        sets = medoids(intersections(engine), params.similarity, 6, 4, np.random.default_rng(4))
    assert sorted(traces) == [0, 1, 2, 3]
    for number, chosen in enumerate(sets):
        _, wanted = solve(rugged, Params(6, variant=variant, init=chosen))
        assert_same_trace(traces[number], wanted)


def test_restarts__fewer_different_starts_than_asked_for():
    P = np.array([[0], [0], [1], [1]])
    found, _ = solve(P, Params(2, restarts=3))
    assert found.labels.tolist() == [0, 0, 1, 1]


def test_progress__events_tell_the_same_story_as_the_trace(ensemble):
    events, assignments = [], []
    with Engine(as_labels(ensemble.P)) as engine:
        consensus(
            engine,
            Params(ensemble.k, init=ensemble.medoids),
            np.random.default_rng(0),
            record=lambda problem, stage, number, a: assignments.append((stage, a)),
            progress=events.append,
        )
    assert [event.stage for event in events] == [stage for stage, _ in assignments]
    assert [event.assigned for event in events] == [(a >= 0).sum() for _, a in assignments]
    moves = [(a != b).sum() for (_, a), (_, b) in pairwise(assignments)]
    assert [event.moved for event in events[1:]] == moves
    assert [event.round for event in events] == list(range(1, len(events) + 1))
    assert all((event.loss is None) == (event.stage != "adjustion") for event in events)
    assert {event.n_samples for event in events} == {(ensemble.P >= 0).any(axis=1).sum()}


def test_random_state__same_seed_same_result(rugged):
    first = CEHM(n_clusters=6, random_state=3, restarts=2).fit(rugged)
    second = CEHM(n_clusters=6, random_state=np.random.RandomState(3), restarts=2).fit(rugged)
    np.testing.assert_array_equal(first.labels_, second.labels_)
    np.testing.assert_array_equal(first.margin_, second.margin_)
    np.testing.assert_array_equal(first.medoids_, second.medoids_)


def test_random_state__other_seeds_other_medoids(rugged):
    found = {tuple(CEHM(n_clusters=6, random_state=seed).fit(rugged).medoids_.tolist()) for seed in range(5)}
    assert len(found) > 1
