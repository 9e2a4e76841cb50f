"""Every kind of belonging against a dense statement of its objective, and that no round of adjustion lowers it.

The oracles work on the dense incidence matrix H and kernels of all pairs of samples; nothing of the package is in them.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cehm_dask.method.belonging import BELONGINGS, evenness, lead_of, loss_of, tau, weights_of
from cehm_dask.method.intersections import Hyperedges
from tests import reference

every_kind = pytest.mark.parametrize("kind", BELONGINGS)


def random_labels(rng, n, n_members, n_labels, noise=0.5, missing=0.0):
    """Noisy copies of a truth; -1 where a label is missing."""
    shape, truth = (n, n_members), rng.integers(n_labels, size=(n, 1))
    P = np.where(rng.random(shape) < noise, rng.integers(n_labels, size=shape), truth)
    P[rng.random(shape) < missing] = -1
    return P


@dataclass
class Case:
    """Samples with at least one label each, and an assignment of all of them."""

    P: np.ndarray
    assignment: np.ndarray
    k: int

    @property
    def incidence(self):
        return reference.incidence(self.P)[0]

    @property
    def counts(self):
        return counts_of(self.incidence, self.assignment, self.k)

    @property
    def hyperedges(self):
        return hyperedges_in(self.P)


def counts_of(H, assignment, k):
    """Samples with -1 are in no cluster."""
    return H.T @ (assignment[:, None] == np.arange(k)).astype(np.int64)


def hyperedges_in(P):
    H, members = reference.incidence(P)
    return Hyperedges(np.arange(len(members)), members, H.T @ H, len(members), P.shape[1], len(P), 0)


@st.composite
def cases(draw, missing=None):
    """Random assignments too leave clusters empty: k may exceed the number of samples."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.one_of(st.integers(1, 10), st.integers(20, 60)))
    missing = draw(st.sampled_from([0.0, 0.3, 0.7])) if missing is None else missing
    P = random_labels(
        rng, n, draw(st.integers(1, 8)), draw(st.integers(1, 5)), draw(st.sampled_from([0.0, 0.4, 1.0])), missing
    )
    P = P[(P >= 0).any(axis=1)]
    assume(len(P))
    k = draw(st.integers(1, 7))
    return Case(P, rng.integers(draw(st.integers(1, k)), size=len(P)), k)


# --- oracles -----------------------------------------------------------------------------------------------------


def similarity_of_shares(P):
    """φ(x)·φ(y) of all pairs of samples."""
    H, _ = reference.incidence(P)
    return (H / H.sum(axis=0)) @ H.T


def similarity_of_walk(P):
    """K = H T² V⁻¹ Hᵀ of all pairs of samples."""
    H, _ = reference.incidence(P)
    shared = H.T @ H
    V = np.diag(shared.sum(axis=1).astype(float))
    T = np.linalg.inv(V) @ shared
    return H @ T @ T @ np.linalg.inv(V) @ H.T


def tau_from(K, assignment, k):
    """Goodman and Kruskal's τ of the table whose cells are the sums of K between clusters."""
    Z = (assignment[:, None] == np.arange(k)).astype(float)
    table = Z.T @ K @ Z / K.sum()
    chance = (table.sum(axis=1) ** 2).sum()
    return 0.0 if (Z.any(axis=0)).sum() < 2 else (np.trace(table) - chance) / (1 - chance)


def objective(kind, P, assignment, k):
    """The quantity that a kind climbs, from all pairs of samples."""
    Z = (assignment[:, None] == np.arange(k)).astype(np.int64)
    H, _ = reference.incidence(P)
    if kind == "count":
        return int(np.trace(Z.T @ (H @ H.T) @ Z))
    if kind == "tau":
        return tau_from(similarity_of_walk(P), assignment, k)
    squares = np.diag(Z.T @ similarity_of_shares(P) @ Z)
    if kind == "share":
        return squares.sum()
    if kind == "cosine":
        return np.sqrt(squares).sum()
    volumes = Z.T @ H.sum(axis=1)
    return (squares[volumes > 0] / volumes[volumes > 0]).sum()


def dense_kernel_k_means(P, assignment, k):
    """Squared distances, times the weights, of the points φ(x)/l_x with weights l_x to the centres of the clusters.

    Up to a term for each sample; infinite for a cluster without samples.
    """
    H, _ = reference.incidence(P)
    lengths = H.sum(axis=1)
    kernel = similarity_of_shares(P) / np.outer(lengths, lengths)
    distances = np.full((len(P), k), np.inf)
    for e in range(k):
        inside = np.flatnonzero(assignment == e)
        if len(inside):
            weights = lengths[inside] / lengths[inside].sum()
            spread = weights @ kernel[np.ix_(inside, inside)] @ weights
            distances[:, e] = lengths * (kernel.diagonal() - 2 * kernel[:, inside] @ weights + spread)
    return distances


def dense_dinkelbach(P, assignment, k):
    """Half the gradient of a − Q − τ(1 − Q), a the sum of K within clusters and Q what chance gives, times 1ᵀK1."""
    K = similarity_of_walk(P)
    Z = (assignment[:, None] == np.arange(k)).astype(float)
    r = K.sum(axis=1)
    return K @ Z - (1 - tau_from(K, assignment, k)) * np.outer(r, r @ Z) / r.sum()


# --- the weights -------------------------------------------------------------------------------------------------


def leads(degrees, non_empty):
    """Belonging to each non-empty cluster, less that to the first of them: what decides the winner."""
    return degrees[:, non_empty] - degrees[:, non_empty][:, :1]


@given(case=cases())
def test_weights__tau_as_on_all_pairs(case):
    non_empty = case.counts.any(axis=0)
    found = case.incidence @ weights_of("tau", case.counts, case.hyperedges)
    wanted = dense_dinkelbach(case.P, case.assignment, case.k)
    np.testing.assert_allclose(leads(found, non_empty), leads(wanted, non_empty), atol=1e-11)
    wanted_tau = tau_from(similarity_of_walk(case.P), case.assignment, case.k)
    assert tau(case.counts, case.hyperedges) == pytest.approx(wanted_tau, abs=1e-9)


@given(case=cases())
def test_weights__kmeans_as_on_all_pairs(case):
    non_empty = case.counts.any(axis=0)
    found = case.incidence @ weights_of("kmeans", case.counts, case.hyperedges)
    wanted = -dense_kernel_k_means(case.P, case.assignment, case.k)
    np.testing.assert_allclose(leads(found, non_empty), leads(wanted, non_empty), atol=1e-11)


@every_kind
@given(case=cases(), assigned=st.sampled_from([1.0, 0.5, 0.1]))
def test_weights__never_negative(kind, case, assigned):
    rng = np.random.default_rng(0)
    partial = np.where(rng.random(len(case.P)) < assigned, case.assignment, -1)
    weights = weights_of(kind, counts_of(case.incidence, partial, case.k), case.hyperedges)
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()


@every_kind
@given(case=cases())
def test_weights__empty_cluster_never_wins(kind, case):
    winners = (case.incidence @ weights_of(kind, case.counts, case.hyperedges)).argmax(axis=1)
    assert case.counts.any(axis=0)[winners].all()


@every_kind
@given(case=cases())
def test_weights__from_some_of_the_rows_point_the_same_way(kind, case):
    # Each row twice, counted once: what a competition on a sample of the rows begins with.
    twice = Case(np.vstack([case.P, case.P]), np.concatenate([case.assignment, np.full(len(case.P), -1)]), case.k)
    whole = Case(twice.P, np.tile(case.assignment, 2), case.k)
    half_weights = weights_of(kind, twice.counts, twice.hyperedges)
    whole_weights = weights_of(kind, whole.counts, whole.hyperedges)
    non_empty = case.counts.any(axis=0)
    scale = 1.0 if kind in ("cosine", "kmeans") else 2.0
    np.testing.assert_allclose(
        leads(scale * (case.incidence @ half_weights), non_empty),
        leads(case.incidence @ whole_weights, non_empty),
        atol=1e-9,
    )


@every_kind
def test_lead__of_samples_whose_members_agree(kind):
    P = np.repeat(np.arange(3)[:, None], 4, axis=1).repeat([5, 2, 9], axis=0)
    whole = Case(P, P[:, 0], 3)
    degrees = whole.incidence @ weights_of(kind, whole.counts, whole.hyperedges)
    ascending = np.sort(degrees, axis=1)
    factors = lead_of(kind, whole.counts, whole.hyperedges)
    lead = (ascending[:, -1] - ascending[:, -2]) * (1.0 if factors is None else factors[degrees.argmax(axis=1)])
    assert (lead > 0).all()
    if kind != "count":
        assert (lead / P.shape[1] <= 1 + 1e-12).all()
    if kind in ("share", "cosine"):
        np.testing.assert_allclose(lead / P.shape[1], 1.0)


@pytest.mark.parametrize("kind", [kind for kind in BELONGINGS if kind != "count"])
@given(case=cases())
def test_lead__at_most_the_number_of_labels(kind, case):
    # Margins are leads for each member: they lie between 0 and 1.
    assume(case.k > 1)
    degrees = case.incidence @ weights_of(kind, case.counts, case.hyperedges)
    ascending = np.sort(degrees, axis=1)
    factors = lead_of(kind, case.counts, case.hyperedges)
    lead = (ascending[:, -1] - ascending[:, -2]) * (1.0 if factors is None else factors[degrees.argmax(axis=1)])
    assert (lead <= case.incidence.sum(axis=1) * (1 + 1e-12)).all()


# --- the objectives ----------------------------------------------------------------------------------------------


def one_round(kind, case):
    weights = weights_of(kind, case.counts, case.hyperedges)
    return Case(case.P, (case.incidence @ weights).argmax(axis=1), case.k)


@every_kind
@pytest.mark.parametrize("missing", [0.0, 0.4])
@given(data=st.data())
def test_objective__no_round_lowers_it(kind, missing, data):
    case = data.draw(cases(missing=missing))
    before = objective(kind, case.P, case.assignment, case.k)
    for _ in range(4):
        case = one_round(kind, case)
        after = objective(kind, case.P, case.assignment, case.k)
        assert after >= (before if kind == "count" else before - 1e-11 * max(1.0, abs(before)))
        before = after


@every_kind
def test_objective__rounds_raise_it(kind):
    # The property above would hold if no sample ever moved.
    rng = np.random.default_rng(3)
    P = random_labels(rng, 200, 10, 4, 0.4, 0.2)
    P = P[(P >= 0).any(axis=1)]
    case = Case(P, rng.integers(4, size=len(P)), 4)
    after = one_round(kind, case)
    assert (after.assignment != case.assignment).mean() > 0.2
    assert objective(kind, P, after.assignment, 4) > 1.01 * objective(kind, P, case.assignment, 4)


@every_kind
@given(case=cases())
def test_loss__never_rises(kind, case):
    losses = []
    for _ in range(5):
        losses.append(loss_of(kind, case.counts, case.hyperedges).value)
        case = one_round(kind, case)
    scale = 1e-11 * len(case.P) ** 2
    assert (np.diff(losses) <= scale).all()
    assert losses[-1] >= (-np.inf if kind == "count" else -scale)


@given(case=cases())
def test_tau__between_0_and_1(case):
    assert 0.0 <= tau(case.counts, case.hyperedges) <= 1.0


@given(case=cases(), assigned=st.sampled_from([0.7, 0.3, 0.0]))
def test_tau__between_0_and_1_while_samples_are_unassigned(case, assigned):
    partial = np.where(np.random.default_rng(0).random(len(case.P)) < assigned, case.assignment, -1)
    assert 0.0 <= tau(counts_of(case.incidence, partial, case.k), case.hyperedges) <= 1.0


@given(case=cases(), among=st.integers(1, 5), which=st.integers(0, 4))
def test_tau__one_cluster_is_as_good_as_chance(case, among, which):
    alone = np.full(len(case.P), min(which, among - 1))
    assert tau(counts_of(case.incidence, alone, among), case.hyperedges) == 0.0


def agreed(rng, sizes, n_members, missing):
    """Members that agree on everything but the names of the clusters, and the clusters."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    P = np.stack([rng.permutation(len(sizes))[truth] for _ in range(n_members)], axis=1)
    gone = rng.random(P.shape) < missing
    gone[:, 0] = False
    P[gone] = -1
    return P, truth


@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    n_members=st.integers(1, 5),
    missing=st.sampled_from([0.0, 0.4]),
    seed=st.integers(0, 1000),
)
def test_tau__1_where_members_agree(sizes, n_members, missing, seed):
    P, truth = agreed(np.random.default_rng(seed), sizes, n_members, missing)
    case = Case(P, truth, len(sizes))
    assert tau(case.counts, case.hyperedges) == pytest.approx(1.0, abs=1e-12)


@given(case=cases())
@example(case=Case(np.zeros((3, 2), np.int64), np.zeros(3, np.int64), 1))
def test_evenness__between_0_and_1(case):
    found = evenness(case.counts, case.hyperedges)
    volume = case.incidence.sum()
    assert 0.0 < found <= 1.0 + 1e-12
    assert found == pytest.approx(objective("cosine", case.P, case.assignment, case.k) / np.sqrt(case.k * volume))


@given(k=st.integers(1, 6), size=st.integers(1, 6), n_members=st.integers(1, 5))
def test_evenness__1_for_equal_clusters_that_members_agree_on(k, size, n_members):
    P, truth = agreed(np.random.default_rng(0), [size] * k, n_members, 0.0)
    case = Case(P, truth, k)
    assert evenness(case.counts, case.hyperedges) == pytest.approx(1.0, abs=1e-12)
