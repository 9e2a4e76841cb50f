"""Splitting clusters: what is proposed, what it is worth, and that weights with splits do what they say."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cehm_dask.method.belonging import weights_of
from cehm_dask.method.split import Split, _gains, best_split, found_in, split_weights
from tests import reference
from tests.method.test_belonging import Case, cases, hyperedges_in, random_labels


def with_room(case):
    """The same assignment among twice as many clusters and one, so that some are empty."""
    return Case(case.P, case.assignment, 2 * case.k + 1)


def halves(case, split):
    """Samples that a split takes out of its cluster, and labelled ones that it leaves there."""
    H, members = reference.incidence(case.P)
    inside = case.assignment == split.cluster
    labelled = H[:, members == members[split.hyperedge]].any(axis=1)
    taken = H[:, split.hyperedge] == 1
    return inside & taken, inside & labelled & ~taken


def can_be_cut(case):
    """Whether some member labels two samples of one cluster differently."""
    clusters = [case.P[case.assignment == e] for e in range(case.k)]
    return any(len(set(column[column >= 0].tolist())) > 1 for rows in clusters for column in rows.T)


def association(H, inside):
    """‖m‖² / vol of some samples."""
    counts = H[inside].sum(axis=0)
    return (counts**2 / H.sum(axis=0)).sum() / max(1, counts.sum())


# --- the best split ----------------------------------------------------------------------------------------------


@given(case=cases())
def test_best_split__leaves_no_half_empty(case):
    case = with_room(case)
    split = best_split(case.counts, case.hyperedges)
    assert (split is not None) == can_be_cut(case)
    if split is not None:
        taken, left = halves(case, split)
        assert taken.any()
        assert left.any()
        assert split.into == np.flatnonzero(~case.counts.any(axis=0))[0]


@given(case=cases())
def test_best_split__none_where_no_cluster_is_empty(case):
    full = Case(case.P, np.unique(case.assignment, return_inverse=True)[1], len(set(case.assignment.tolist())))
    assert best_split(full.counts, full.hyperedges) is None


def test_best_split__rows_that_differ_by_missing_labels_only():
    for P in ([[0, 0], [0, -1]], [[0, 0], [0, -1], [-1, 0]]):
        case = Case(np.array(P), np.zeros(len(P), int), 2)
        assert best_split(case.counts, case.hyperedges) is None


def test_best_split__lowest_hyperedge_on_a_tie():
    P = np.repeat([[0], [1]], 4, axis=0).repeat(3, axis=1)  # six hyperedges, all equally good
    case = Case(P, np.zeros(8, int), 2)
    assert best_split(case.counts, case.hyperedges) == Split(0, 0, 1)


@pytest.mark.parametrize("n_pieces", [2, 3, 5])
@given(size=st.integers(2, 5), n_members=st.integers(1, 4), wide=st.booleans())
def test_best_split__largest_exact_gain_where_the_cluster_is_whole(n_pieces, size, n_members, wide):
    # All samples in one cluster: the estimate is exact, so the choice must be the best of all single hyperedges.
    rng = np.random.default_rng([n_pieces, size, n_members])
    P = random_labels(rng, n_pieces * size * 3, n_members, 40 if wide else n_pieces, 0.3)
    case = Case(P, np.zeros(len(P), int), 2)
    H, _ = reference.incidence(P)
    split = best_split(case.counts, case.hyperedges)
    gains = {}
    for c in range(H.shape[1]):
        taken, left = halves(case, Split(c, 0, 1))
        if taken.sum() >= 2 and left.sum() >= 2:
            gains[c] = association(H, taken) + association(H, left) - association(H, taken | left)
    if gains:
        assert gains[split.hyperedge] == pytest.approx(max(gains.values()), rel=1e-12)


def test_best_split__gain_is_exact_where_the_cluster_is_evenly_spread():
    # Every label combination of a member pair the same number of times in each of two clusters: any hyperedge has
    # its samples in a cluster spread as the estimate supposes.
    rows = np.array([[a, b] for a in range(2) for b in range(3)])
    P = np.tile(rows, (8, 1))
    case = Case(P, np.repeat([0, 1], 24), 3)
    H, _ = reference.incidence(P)
    gains = []
    for c in range(5):
        taken, left = halves(case, Split(c, 0, 2))
        gains.append(association(H, taken) + association(H, left) - association(H, case.assignment == 0))
    home = np.zeros(H.shape[1], np.intp)
    np.testing.assert_allclose(_gains(case.counts, case.hyperedges, np.arange(5), home), gains, rtol=1e-12)
    split = best_split(case.counts, case.hyperedges)
    assert split.cluster == 0
    assert split.hyperedge == int(np.argmax(gains))


def test_best_split__prefers_hyperedges_that_are_at_home_and_two_samples_or_more():
    # Member 0 singles out one sample of cluster 0; member 1 halves it, two and two.
    P = np.array([[0, 0], [1, 0], [1, 1], [1, 1], [2, 2], [2, 2]])
    case = Case(P, np.array([0, 0, 0, 0, 1, 1]), 3)
    split = best_split(case.counts, case.hyperedges)
    assert split == Split(3, 0, 2)


# --- weights with splits -----------------------------------------------------------------------------------------


@dataclass
class Stack:
    """Splits made one after the other on the same weights, and the assignment after each."""

    weights: np.ndarray
    splits: list
    cases: list


def assigned_by(case, weights):
    return Case(case.P, (case.incidence @ weights).argmax(axis=1), case.k)


def stack_of(case, kind, most=300):
    """Split as long as that is possible; the first assignment follows from plain weights."""
    weights = weights_of(kind, case.counts, case.hyperedges)
    found = Stack(weights, [], [assigned_by(case, weights)])
    members = case.hyperedges.members
    while len(found.splits) < most:
        now = found.cases[-1]
        split = best_split(now.counts, now.hyperedges)
        if split is None or split.again(found.splits):
            break
        found.splits.append(split)
        found.cases.append(assigned_by(now, split_weights(weights, found.splits, members)))
    return found


def clear(case, weights):
    """Samples that lead by more than rounding."""
    ascending = np.sort(case.incidence @ weights, axis=1)
    return ascending[:, -1] - ascending[:, -2] > 1e-9 * weights.max()


@pytest.mark.parametrize("kind", ["share", "cosine", "kmeans", "tau"])
@given(case=cases(missing=0.0))
def test_split_weights__others_keep_their_cluster(kind, case):
    stack = stack_of(with_room(case), kind)
    sure = clear(stack.cases[0], stack.weights)
    for split, before, after in zip(stack.splits, stack.cases, stack.cases[1:], strict=False):
        taken, _ = halves(before, split)
        wanted = np.where(taken, split.into, before.assignment)
        np.testing.assert_array_equal(after.assignment[sure], wanted[sure])


@pytest.mark.parametrize("kind", ["share", "cosine", "kmeans", "tau"])
@given(case=cases(missing=0.0))
def test_split_weights__every_split_of_a_stack_fills_a_cluster(kind, case):
    stack = stack_of(with_room(case), kind)
    assume(clear(stack.cases[0], stack.weights).all())
    found = [found_in(one.counts) for one in stack.cases]
    assert found == list(range(found[0], found[0] + len(found)))


@pytest.mark.parametrize("kind", ["share", "cosine", "kmeans", "tau"])
@given(case=cases())
def test_split_weights__a_stack_goes_on_while_a_cluster_can_be_cut(kind, case):
    # Ties, and labels missing where a cluster was split before, may undo a split; then another one is possible.
    stack = stack_of(with_room(case), kind)
    found = [found_in(one.counts) for one in stack.cases]
    assert found[-1] == stack.cases[-1].k or not can_be_cut(stack.cases[-1])
    assert (split_weights(stack.weights, stack.splits, case.hyperedges.members) >= 0).all()


def test_split_weights__as_many_splits_as_there_are_rows():
    # One cluster at first, 120 at the end: leads must not fade with the number of splits.
    P = random_labels(np.random.default_rng(0), 120, 12, 12, 1.0)
    assert len(np.unique(P, axis=0)) == 120
    stack = stack_of(Case(P, np.zeros(120, int), 120), "cosine", most=200)
    assert [found_in(one.counts) for one in stack.cases] == list(range(1, 121))
    weights = split_weights(stack.weights, stack.splits, hyperedges_in(P).members)
    ascending = np.sort(stack.cases[-1].incidence @ weights, axis=1)
    assert (ascending[:, -1] - ascending[:, -2]).min() > 0.9 * 2.0**-10 * stack.weights.max()


def test_split_weights__by_hand():
    weights = np.array([[0.5, 0.25, 0.0], [0.0, 1.0, 0.0], [1.0, 0.5, 0.0]])
    members, trifle = np.array([0, 0, 1]), 2.0**-10
    found = split_weights(weights, [Split(0, 0, 2)], members)
    # The second hyperedge's weights are raised alike, so that none is negative.
    wanted = [[0.5 - trifle, 0.25, 0.5], [trifle, 1.0 + trifle, 0.0], [1.0, 0.5, 1.0]]
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(split_weights(weights, [], members), weights)


def test_split_weights__a_sample_without_a_label_goes_to_the_lower_number():
    P = np.array([[0, 0], [0, 0], [1, 0], [1, 0], [-1, 0]])
    for home, into in ((0, 1), (1, 0)):
        case = Case(P, np.full(5, home), 2)
        weights = weights_of("cosine", case.counts, case.hyperedges)
        after = assigned_by(case, split_weights(weights, [Split(0, home, into)], case.hyperedges.members))
        assert after.assignment.tolist() == [into, into, home, home, 0]
