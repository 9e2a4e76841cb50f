"""Very many members: the base clusters of some are compared with one another, the counts are of all."""

from dataclasses import replace

import numpy as np
import pytest

from cehm_dask import CEHM
from cehm_dask.data import shape
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.shape import compared_members
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import BudgetError, StoreError
from cehm_dask.job import Where, find_consensus
from cehm_dask.method.agreement import contingency, nmi
from cehm_dask.method.belonging import weights_of
from cehm_dask.method.intersections import check_table, hyperedges_of, intersections, tally_of
from cehm_dask.method.params import VARIANTS, Params
from cehm_dask.method.split import best_split
from cehm_dask.report import write_report
from tests.method.test_portfolio import StopError, assert_same, stop_after

K = 4


@pytest.fixture
def few(monkeypatch):
    """As if ensembles with more than 40 base clusters were large."""
    settings = {"MOST_COMPARED": 40, "COMPARED": 40, "FEWEST_MEMBERS": 5, "FEWEST_A_CLUSTER": 2}
    for name, value in settings.items():
        monkeypatch.setattr(shape, name, value)


def made(missing=0.2, n=700, members=30, seed=0):
    """Labels of noisy members, some missing, and the classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, K, n)
    P = np.stack([np.where(rng.random(n) < 0.85, truth, rng.integers(0, K, n)) for _ in range(members)], axis=1)
    P[rng.random(P.shape) < missing] = -1
    return P, truth


def counted(P, compared):
    labels = as_labels(P)
    with Engine(labels, make_budget(labels.shape, [K], allowed=1 << 40, block_rows=97)) as engine:
        tally = tally_of(engine, np.empty(0, np.int64), compared)
        table, n_silent = intersections(engine)
    return labels, tally, hyperedges_of(labels, table, n_silent)


def some_of(P, compared):
    labels, tally, whole = counted(P, compared)
    return hyperedges_of(labels, tally.table, tally.n_silent, members=compared, sizes=tally.sizes), whole


# --- which members ----------------------------------------------------------------------------------------------------


def test_compared__all_up_to_4096_base_clusters():
    assert compared_members([8] * 512, False, 8, seed=0) is None
    assert compared_members([9] * 512, True, 8, seed=0) is None  # one of nine stands for missing labels
    assert compared_members([8] * 513, False, 8, seed=0) is not None
    assert compared_members([1000] * 30, False, 8, seed=0) is None  # few members, each with many
    assert compared_members([8] * 1000, False, 600, seed=0) is None  # more clusters than few members could tell


def test_compared__the_seed_decides():
    one, other = (compared_members([8] * 1000, False, 8, seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(one, compared_members([8] * 1000, False, 8, seed=0))
    assert len(one) == len(other) == 256
    assert set(one) != set(other)
    assert (np.diff(one) > 0).all()


@pytest.mark.parametrize("widths", [(8,) * 1000, (2,) * 900 + (500,) * 50, (3, 90) * 200])
def test_compared__never_more_slots_than_the_budget_has(widths):
    known = shape.Shape(1000, len(widths), sum(widths), None, 1, widths=widths)
    for seed in range(20):
        members = compared_members(widths, False, 8, seed)
        assert np.take(widths, members).sum() <= known.compared_slots(8) < sum(widths)


def test_budget__7000_members_of_178_samples():
    known = shape.Shape(178, 7000, 35_000, None, 1, widths=(5,) * 7000)
    budget = make_budget(known, [3], allowed=2 << 30, taken=300 << 20, threads=2)
    assert budget.projected < 1 << 30
    with pytest.raises(BudgetError, match="projected"):
        make_budget(replace(known, widths=()), [3], allowed=2 << 30, taken=300 << 20, threads=2)


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_hyperedges__part_of_the_whole_table(missing):
    P, _ = made(missing)
    P[:, 3] = 0  # a member with one cluster
    compared = np.array([0, 3, 7, 20])
    some, whole = some_of(P, compared)
    np.testing.assert_array_equal(some.slots, whole.slots)
    np.testing.assert_array_equal(some.sizes, whole.sizes)
    np.testing.assert_array_equal(some.compared_members, compared)
    np.testing.assert_array_equal(some.intersections, whole.intersections[np.ix_(some.compared, some.compared)])
    assert some.judged.n_members == 4
    assert (np.diff(some.judged.members) >= 0).all()
    assert whole.judged is whole
    assert whole.compared_members is None


def test_check_table__refuses_sizes_of_other_labels():
    compared = np.array([1, 2, 8])
    labels, tally, _ = counted(made()[0], compared)
    check_table(labels, tally.table, tally.n_silent, compared, tally.sizes)
    for sizes in (None, tally.sizes[:-1], tally.sizes * 2, np.roll(tally.sizes, 1)):
        with pytest.raises(StoreError, match="not those of 700 samples"):
            check_table(labels, tally.table, tally.n_silent, compared, sizes)


def test_tau__those_compared_decide_and_the_others_break_ties():
    P, truth = made()
    some, _ = some_of(P, np.array([0, 3, 7, 20]))
    indicator = np.stack([(label == P).astype(int) for label in range(K)], axis=2)  # n × members × labels
    counts = np.einsum("nml,nk->mlk", indicator, np.eye(K, dtype=int)[truth]).reshape(-1, K)
    weights = weights_of("tau", counts, some)
    own = weights_of("tau", counts[some.compared], some.judged)
    np.testing.assert_array_equal(weights[some.compared], own)
    others = np.setdiff1d(np.arange(len(counts)), some.compared)
    assert (weights[others].max(axis=1) > 0).all()
    assert weights[others].sum() < 1e-8 * own.max()
    np.testing.assert_array_equal(weights[others].argmax(axis=1), counts[others].argmax(axis=1))


def test_split__names_a_hyperedge_of_all():
    P, truth = made()
    some, _ = some_of(P, np.array([4, 9]))
    merged = np.where(truth == 1, 0, truth)
    indicator = np.stack([(label == P).astype(int) for label in range(K)], axis=2)
    counts = np.einsum("nml,nk->mlk", indicator, np.eye(K, dtype=int)[merged]).reshape(-1, K)
    split = best_split(counts, some)
    assert split.hyperedge in some.compared
    assert split.hyperedge % K in (0, 1)
    assert (split.cluster, split.into) == (0, 1)


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("variant", VARIANTS)
def test_fit__finds_the_classes_with_every_variant(variant):
    P, truth = made()
    model = CEHM(K, variant=variant, random_state=1).fit(P)
    assert len(model.compared_members_) == 8
    assert model.member_agreement_.shape == (8, 8)
    assert nmi(contingency(model.labels_, truth)) > 0.95
    recounted = [np.bincount(model.labels_[P[:, j] == label], minlength=K) for j in range(30) for label in range(K)]
    np.testing.assert_array_equal(model.counts_, recounted)


@pytest.mark.usefixtures("few")
def test_fit__chooses_k():
    model = CEHM("auto", random_state=0).fit(made(n=900)[0])
    assert model.choice_["n_clusters"] == K


@pytest.mark.usefixtures("few")
def test_fit__same_for_any_blocks_threads_and_interruptions(tmp_path):
    P, _ = made(n=900)
    labels = as_labels(P)
    wanted = find_consensus(labels, Params(K), 0, Where(threads=1))
    assert_same(find_consensus(labels, Params(K), 0, Where(threads=2, block_rows=37)), wanted)
    url = str(tmp_path / "e.zarr")
    ingest(P, url)
    stored = as_labels(url)
    for number in range(1, wanted.consensus.chosen.problem.round + 1):
        where = Where(threads=1, output=str(tmp_path / f"{number}.zarr"))
        with pytest.raises(StopError):
            find_consensus(stored, Params(K), 0, where, progress=stop_after(number))
        assert_same(find_consensus(stored, Params(K), 0, where), wanted)
    found = open_consensus(where.output)
    assert found.facts["compared_members"] == wanted.consensus.hyperedges.compared_members.tolist()
    page = write_report(where.output, str(tmp_path / "page.html")).read_text()
    assert "22 members are left out" in page
