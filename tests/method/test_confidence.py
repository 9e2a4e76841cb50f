"""The confidence of a sample: the compiled loop and the small tables against plain numpy, blocks, missing labels."""

import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM
from cehm_dask.method.confidence import LARGEST, PER_LABEL, Gauge, correlation, evidence, exponents
from cehm_dask.method.kernels import STRIP

JIT_OFF = os.environ.get("NUMBA_DISABLE_JIT") == "1"


class Case:
    """Base labels (-1: none) and a partition, with the tables that the coordinator would have."""

    def __init__(self, base_labels, clusters, k):
        self.base_labels, self.clusters, self.k = base_labels, clusters.astype(np.int16), k
        n, self.n_members = base_labels.shape
        widths = base_labels.max(axis=0, initial=0) + 2
        self.offsets = np.concatenate(([0], np.cumsum(widths)[:-1])).astype(np.uint64)
        self.codes = (base_labels + 1).astype(np.uint8)
        H = np.zeros((n, widths.sum()), np.int64)
        for j, offset in enumerate(self.offsets):
            H[np.arange(n), self.codes[:, j].astype(int) + int(offset)] = 1
        H[:, self.offsets.astype(int)] = 0
        A = np.zeros((n, k), np.int64)
        A[np.arange(n)[clusters >= 0], clusters[clusters >= 0]] = 1
        self.slots = np.flatnonzero(H.any(axis=0))
        self.members = np.repeat(np.arange(self.n_members), widths)[self.slots]
        self.incidence, self.n_slots = H[:, self.slots], H.shape[1]
        self.intersections = self.incidence.T @ self.incidence
        self.counts, self.sizes = self.incidence.T @ A, self.intersections.diagonal()

    @property
    def correlation(self):
        return correlation(self.intersections, self.counts, self.sizes, self.members)

    def gauge(self, rho):
        table = np.zeros((self.n_slots, 1 + self.k))
        table[self.slots] = evidence(self.counts, self.sizes)
        return Gauge(table, exponents(self.n_members, rho))

    def read(self, rho, rows=slice(None)):
        return self.gauge(rho).read(self.codes[rows], self.offsets, self.clusters[rows])


def made_up(seed, n=200, members=6, k=4, missing=0.2):
    """Labels that follow a class, most of the time; whole rows may be silent, and clusters that are not the best."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    base_labels = np.where(rng.random((n, members)) < 0.6, truth[:, None], rng.integers(k + 2, size=(n, members)))
    base_labels[rng.random((n, members)) < missing] = -1
    clusters = np.where(rng.random(n) < 0.8, truth, rng.integers(k, size=n))
    return Case(base_labels, np.where((base_labels >= 0).any(axis=1), clusters, -1), k)


def in_numpy(case, rho):
    """The definition, a row at a time."""
    shares = case.counts / case.sizes[:, None]
    found = np.zeros(len(case.codes))
    for row, (edges, cluster) in enumerate(zip(case.incidence, case.clusters, strict=True)):
        m = edges.sum()
        if m == 0 or cluster < 0:
            continue
        share = shares[edges == 1].mean(axis=0)
        exponent = np.clip(np.rint(4 * PER_LABEL * m / (1 + (m - 1) * rho)) / 4, 1, LARGEST)
        found[row] = share[cluster] ** exponent / (share**exponent).sum()
    return found


@pytest.mark.parametrize("rho", [0.0, 0.07, 0.3, 1.0])
@pytest.mark.parametrize(("members", "k"), [(1, 1), (3, 2), (6, 3), (6, 7), (20, 11), (30, 12), (5, 25)])
def test_confidence__is_the_share_sharpened_and_scaled(members, k, rho):
    case = made_up(members * k, n=60 if JIT_OFF else 2 * STRIP + 17, members=members, k=k)
    np.testing.assert_allclose(case.read(rho), in_numpy(case, rho), rtol=1e-12, atol=1e-300)


@given(
    seed=st.integers(0, 10**6),
    members=st.integers(1, 12),
    k=st.integers(1, 14),
    missing=st.sampled_from([0.0, 0.3, 0.9]),
)
@settings(deadline=None, max_examples=40)
def test_confidence__lies_between_0_and_1_and_blocks_change_no_bit(seed, members, k, missing):
    case = made_up(seed, n=40 if JIT_OFF else 300, members=members, k=k, missing=missing)
    rho = case.correlation
    assert 0.0 <= rho <= 1.0
    whole = case.read(rho)
    assert ((whole >= 0) & (whole <= 1)).all()
    assert (whole[case.clusters < 0] == 0).all()
    size = seed % 70 + 1
    parts = [case.read(rho, slice(begin, begin + size)) for begin in range(0, len(whole), size)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    backwards = case.read(rho, slice(None, None, -1))
    np.testing.assert_array_equal(backwards[::-1], whole)


def test_confidence__over_all_clusters_adds_up_to_one():
    case = made_up(3, k=5)
    total = np.zeros(len(case.codes))
    for e in range(5):
        total += case.gauge(0.1).read(case.codes, case.offsets, np.full(len(case.codes), e, np.int16))
    spoken = case.clusters >= 0
    np.testing.assert_allclose(total[spoken], 1.0)
    assert (total[~spoken] == 0).all()


def test_confidence__fewer_labels_that_agree_are_less_evidence():
    case = made_up(5, n=400, members=10, k=4, missing=0.0)
    row = case.codes[(case.incidence @ (case.counts / case.sizes[:, None]))[:, 0].argmax()]
    codes = np.stack([np.where(np.arange(10) < m, row, 0) for m in (0, 1, 10)]).astype(np.uint8)
    none, one, all_ten = case.gauge(0.0).read(codes, case.offsets, np.zeros(3, np.int16))
    assert none == 0 < one < all_ten


def test_confidence__of_a_silent_block_is_0():
    case = made_up(7)
    assert (case.gauge(0.1).read(np.zeros_like(case.codes), case.offsets, case.clusters.clip(0)) == 0).all()


def test_correlation__is_that_of_the_votes_inside_the_clusters():
    case = made_up(11, n=500, members=7, missing=0.0)
    votes = (case.counts / case.sizes[:, None])[:, None, :]
    of_member = [case.incidence[:, case.members == j] @ votes[case.members == j, 0] for j in range(7)]
    for e in range(case.k):
        for vote in of_member:
            vote[case.clusters == e] -= vote[case.clusters == e].mean(axis=0)
    covariance = np.array([[(one * other).sum() for other in of_member] for one in of_member])
    expected = np.clip((covariance.sum() / np.trace(covariance) - 1) / 6, 0, 1)
    assert case.correlation == pytest.approx(expected)


def test_correlation__copies_of_a_member_have_1_and_strangers_about_0():
    rng = np.random.default_rng(0)
    truth = rng.integers(4, size=4000)
    strangers = np.where(rng.random((4000, 8)) < 0.6, truth[:, None], rng.integers(4, size=(4000, 8)))
    assert Case(strangers, truth, 4).correlation < 0.01
    assert Case(np.repeat(strangers[:, :1], 8, axis=1), truth, 4).correlation == pytest.approx(1.0)


def test_correlation__missing_labels_hardly_change_it():
    rng = np.random.default_rng(1)
    truth = rng.integers(4, size=8000)
    hard = rng.random(8000) < 0.5  # some samples are hard for every member
    right = rng.random((8000, 8)) < np.where(hard, 0.4, 0.95)[:, None]
    base_labels = np.where(right, truth[:, None], rng.integers(4, size=(8000, 8)))
    full = Case(base_labels, truth, 4).correlation
    thinned = Case(np.where(rng.random(base_labels.shape) < 0.3, -1, base_labels), truth, 4).correlation
    assert full > 0.03
    assert thinned == pytest.approx(full, rel=0.15)


@pytest.mark.parametrize("base_labels", [[[0], [1], [-1]], [[0, 0], [1, 1], [0, 0]], [[0, -1], [1, -1], [-1, 0]]])
def test_correlation__exists_for_few_members_and_pure_clusters(base_labels):
    case = Case(np.array(base_labels), np.array([0, 1, 0]), 2)
    assert 0.0 <= case.correlation <= 1.0
    assert np.isfinite(case.read(case.correlation)).all()


def test_exponents__grow_with_labels_and_fall_with_correlation():
    assert exponents(5, 0.0).tolist() == [0, 4, 4, 6, 8, 10]
    assert exponents(30, 1.0).tolist() == [0] + [4] * 30
    assert exponents(30, 0.0).max() == 4 * LARGEST < 64
    assert (exponents(30, 0.2) <= exponents(30, 0.1)).all()


@pytest.mark.skipif(JIT_OFF, reason="a whole fit")
def test_confidence__is_much_nearer_to_the_truth_than_shares_where_members_err_alone():
    rng = np.random.default_rng(2)
    truth = rng.integers(6, size=3000)
    base_labels = np.where(rng.random((3000, 10)) < 0.4, truth[:, None], rng.integers(6, size=(3000, 10)))
    model = CEHM(6, variant="cosine", random_state=0).fit(base_labels)
    case = Case(base_labels, model.labels_, 6)
    table = np.zeros((6, 6), int)
    np.add.at(table, (model.labels_, truth), 1)
    right = table.argmax(axis=1)[model.labels_] == truth
    found, share = case.read(case.correlation), case.read(1.0)  # with copies of one member, shares stay as they are
    assert abs(found.mean() - right.mean()) < abs(share.mean() - right.mean()) / 3
    assert found[right].mean() > found[~right].mean() + 0.2
