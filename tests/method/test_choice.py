"""Choosing k: how problems of a run compare, and a recommendation that knows when there is none."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from cehm_dask import CEHM, ClusterEnsemble, job
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.labels import as_labels
from cehm_dask.engine.sweep import Engine
from cehm_dask.job import Where, budget_of, find_consensus
from cehm_dask.method import choice, survey
from cehm_dask.method.borders import levels
from cehm_dask.method.choice import choose, gaps, tiny_clusters
from cehm_dask.method.intersections import hyperedges_of, intersections
from cehm_dask.method.params import Params
from cehm_dask.method.result import gather, join
from cehm_dask.method.solution import ConsensusWarning
from tests.benchmarks.choice import (
    SIX,
    WIDE,
    blobs,
    judged,
    made_up,
    members_of,
    noise,
    random_set,
    recommended,
    widths,
)


def hyperedges_in(base_labels):
    labels = as_labels(base_labels)
    with Engine(labels, budget_of(labels, Params(2), (2,), Where(threads=1))) as engine:
        return hyperedges_of(labels, *intersections(engine))


pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


@pytest.fixture(scope="module")
def three():
    """Members of three clusters that everybody sees."""
    return members_of(blobs(k=3, d=5, n=600, apart=8.0, sizes=1000.0, seed=77), fewest=2)


# --- the recommendation ------------------------------------------------------------------------------------------


def test_choose__right_on_five_of_six_sets():
    found = {name: recommended(blobs(**shape)) for name, shape in SIX.items()}
    right = [name for name, shape in SIX.items() if found[name].clear and found[name].n_clusters == shape["k"]]
    assert len(right) >= 5, found


@pytest.mark.parametrize("d", [2, 10])
@pytest.mark.parametrize("seed", [0, 1])
def test_choose__no_clear_k_on_uniform_noise(d, seed):
    found = recommended(noise(d, seed))
    assert not found.clear
    assert "no spectral gap is large enough" in found.reason


def test_choose__reason_names_the_gap(three):
    hyperedges = hyperedges_in(three)
    found = choose(hyperedges, [2, 3, 4])
    gap = next(gap for gap in gaps(hyperedges, 4) if gap.n_clusters == 3)
    assert (found.n_clusters, found.clear) == (3, True)
    assert f"the spectral gap behind k=3 is {gap.width:.2f}" in found.reason


@pytest.mark.parametrize(("low", "high"), [(6, 6), (3, 7), (2, 6), (9, 36), (3, 36)])
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_choose__same_k_coarse_and_fine_members(low, high, missing):
    found = judged(made_up(6, low, high, missing, seed=3), WIDE)
    assert (found.n_clusters, found.clear) == (6, True)


@pytest.mark.parametrize(("low", "high"), [(7, 7), (4, 8)])
def test_choose__same_k_and_coarse_kmeans_members(low, high):
    found = judged(members_of(blobs(k=7, d=8, n=1500, apart=8.0, sizes=1000.0, seed=5), low, high, 4), WIDE)
    assert (found.n_clusters, found.clear) == (7, True)


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        (20002, "all with k"),
        (20003, "all with k"),
        (20007, "coarse, 0.5 k .. 1.2 k"),
        (20007, "coarse, 2 .. k"),
        (20001, "coarse, 2 .. k"),
    ],
)
def test_choose__members_of_one_start_merge_and_split_clusters(seed, kind):
    k, rows, _, _ = random_set(seed)
    found = judged(members_of(rows, *widths(k, len(rows))[kind], seed), WIDE)
    assert (found.n_clusters, found.clear) == (k, True)
    assert "cut at the same place" in found.reason


def test_levels__borders_that_members_share_are_firm():
    truth = np.repeat(np.arange(6), 100)
    rng = np.random.default_rng(0)
    members = []
    for _ in range(30):  # each merges two of six classes, and splits another at a place of its own
        one, other, split = rng.permutation(6)[:3]
        members.append(np.where(truth == other, one, truth))
        members[-1][(truth == split) & (rng.random(600) < 0.5)] = 9
    found = {level.n_clusters: level for level in levels(hyperedges_in(np.stack(members, axis=1)))}
    assert max(found.values(), key=lambda level: level.score).n_clusters == 6
    assert found[6].firm > 0.8 > 0.5 > found[6].finer


def test_choose__members_in_doubt_whether_they_are_fine():
    """The widest gap lies behind so few clusters that all members seem fine, and is too narrow; borders tell."""
    k, rows, _, _ = random_set(60001)
    hyperedges = hyperedges_in(members_of(rows, k, k, 60001))
    widest = max(gaps(hyperedges, 30), key=lambda gap: gap.width)
    assert widest.finer == 1.0
    assert widest.width < choice.WIDE_IF_FINE
    found = choose(hyperedges, WIDE)
    assert (found.n_clusters, found.clear) == (k, True)


@pytest.mark.parametrize("d", [2, 3])
def test_choose__no_clear_k_where_a_continuum_is_cut_at_about_the_same_place(d):
    rng = np.random.default_rng(d)
    points = rng.random((2000, d))
    cuts = [points > rng.normal(0.5, 0.01, d) for _ in range(30)]
    found = judged(np.stack(cuts, axis=1) @ 2 ** np.arange(d), WIDE)
    assert not found.clear
    assert "differ in their samples, as cuts through a continuum do" in found.reason
    corners = points[(np.abs(points - 0.5) > 0.1).all(axis=1)]  # nothing where the cuts are
    found = judged(np.stack([corners > rng.normal(0.5, 0.01, d) for _ in range(30)], axis=1) @ 2 ** np.arange(d), WIDE)
    assert (found.n_clusters, found.clear) == (2**d, True)


def test_choose__no_clear_k_where_coarser_members_cut_the_continuum_elsewhere():
    """Eight octants in six members, and nothing beyond that shuffled labels have not; others cut across them."""
    k, _, _, rng = random_set(60002)
    flat = rng.random((1859, int(rng.integers(2, 11))))
    assert flat.shape[1] == 3
    found = judged(members_of(flat, 2, k, 60002), WIDE)
    assert not found.clear
    assert "cut across each other" in found.reason


def test_choose__borders_of_two_ks_alike(monkeypatch):
    k, rows, _, _ = random_set(20002)
    edges = hyperedges_in(members_of(rows, k, k, 20002))
    assert choose(edges, WIDE).clear
    lead = sorted((level.score for level in levels(edges)), reverse=True)
    monkeypatch.setattr(choice, "NEXT_SCORE", lead[0] - lead[1] + 1e-9)
    found = choose(edges, WIDE)
    assert (found.n_clusters, found.clear) == (k, False)
    assert f"k={k} and k=" in found.reason
    assert "stand out alike" in found.reason


def test_choose__borders_of_a_k_that_was_not_run():
    k, rows, _, _ = random_set(20002)
    found = choose(hyperedges_in(members_of(rows, k, k, 20002)), [2, k - 1])
    assert not found.clear
    assert f"k={k} stands out, which was not run" in found.reason
    assert found.n_clusters in (2, k - 1)


@pytest.mark.parametrize(("low", "high"), [(7, 7), (4, 8), (2, 7), (11, 30)])
def test_choose__no_clear_k_on_noise_whatever_the_members(low, high):
    assert not judged(members_of(noise(6, 1), low, high, 4), WIDE).clear
    rng = np.random.default_rng(6)
    independent = np.stack([rng.integers(0, width, 1000) for width in rng.integers(low, high + 1, 30)], axis=1)
    found = judged(independent, WIDE)
    assert (found.n_clusters, found.clear) == (2, False)
    assert "independent labels" in found.reason


def test_choose__fall_back_does_not_grow_with_k():
    flat = hyperedges_in(members_of(noise(6, 1), 20, 40, 4))
    assert len({choose(flat, range(2, last)).n_clusters for last in (12, 20, 31)}) == 1


def test_choose__clear_k_that_was_not_run(three):
    found = choose(hyperedges_in(three), [2, 4, 5])
    assert not found.clear
    assert "k=3 stands out, which was not run" in found.reason
    assert f"kept is k={found.n_clusters}, with the largest spectral gap" in found.reason


@pytest.mark.parametrize("seed", range(4))
def test_choose__members_that_only_merge(seed):
    """Most members merge clusters, so an earlier gap is wider; but a few separate all of them, and none more."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 9, 900)
    nearest = [0, 0, 1, 2, 0, 4, 5, 3, 6]  # the cluster that each one is merged into, the last one first
    members = []
    for width in rng.permutation(np.arange(30) % 8 + 2):
        group = np.arange(9)
        for last in range(8, width - 1, -1):
            group[group == last] = nearest[last]
        members.append(group[truth])
    found = choose(hyperedges_in(np.stack(members, axis=1)), range(2, 15))
    assert (found.n_clusters, found.clear) == (9, True)


def test_choose__two_that_stand_out_alike(three, monkeypatch):
    monkeypatch.setattr(choice, "NEXT_GAP", 1e9)
    found = choose(hyperedges_in(three), [2, 3, 4])
    assert (found.n_clusters, found.clear) == (3, False)
    assert "stand out alike" in found.reason


def test_choose__members_with_one_cluster_each():
    found = choose(hyperedges_in(np.zeros((20, 3), int)), [3, 2])
    assert (found.n_clusters, found.clear) == (2, False)
    assert "no member has two clusters" in found.reason


def test_choose__one_k_is_no_question():
    assert choose(hyperedges_in(np.zeros((5, 1), int)), [7]) == choice.Choice(
        7, True, "the only number of clusters that was run"
    )


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_gaps__are_those_of_all_eigenvalues(three, missing):
    base_labels = three.astype(int)
    base_labels[np.random.default_rng(1).random(base_labels.shape) < missing] = -1
    hyperedges = hyperedges_in(base_labels)
    found = gaps(hyperedges, 9)
    assert [gap.n_clusters for gap in found] == list(range(2, 10))
    scale = np.sqrt(hyperedges.sizes)
    values = np.linalg.eigvalsh(hyperedges.intersections / scale / scale[:, None])[::-1]
    for gap in found:
        inside, beyond = values[gap.n_clusters - 1 : gap.n_clusters + 1] / values[0]
        assert gap.inside == pytest.approx(inside, abs=1e-3)
        assert gap.beyond == pytest.approx(beyond, abs=1e-3)
    if not missing:
        assert values[0] / hyperedges.n_members == pytest.approx(1.0)


@pytest.mark.parametrize("width", [2, 10, 40])
def test_gaps__shuffled_members_stay_below_the_edge(three, width):
    rng = np.random.default_rng(8)
    shuffled = np.stack([rng.permutation(np.arange(600) % width) for _ in range(30)], axis=1)
    for gap in gaps(hyperedges_in(shuffled), 9):
        assert gap.inside < 1.05 * gap.edge
        assert gap.width < choice.WIDE_IF_FINE
        assert not (gap.to_edge and gap.drop >= choice.DROP_TO_EDGE)


def test_tiny_clusters__named_below_half_a_percent():
    assert tiny_clusters(np.array([[995, 0, 5], [0, 0, 0]])) == ""
    assert tiny_clusters(np.array([[996, 0, 4]])) == "1 of 2 clusters hold less than 0.5% of the samples each"


# --- the scan ----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")  # members finer than the right k agree more with one another: no fault of k
def test_scan__clear_k_is_kept_and_told(three, tmp_path):
    model = CEHM(range(2, 6), restarts=3, random_state=0).fit(three, output=tmp_path / "c.zarr")
    assert model.n_clusters_ == 3
    assert model.choice_["clear"]
    stored = open_consensus(str(tmp_path / "c.zarr"))
    assert stored.facts["choice"] == model.choice_
    assert stored.facts["scan"] == model.scan_
    assert [record["n_clusters"] for record in stored.facts["scan"]] == [2, 3, 4, 5]
    assert stored.facts["n_clusters"] == 3


def test_scan__unclear_k_is_warned_about_and_the_fall_back_kept():
    flat = np.random.default_rng(3).integers(0, 12, (400, 10))
    with pytest.warns(ConsensusWarning, match="no clear k"):
        model = CEHM(range(2, 5), random_state=0).fit(flat)
    assert not model.choice_["clear"]
    assert model.n_clusters_ == 2


def test_scan__tiny_clusters_are_warned_about():
    rows = np.repeat([0, 1, 2], [600, 397, 3])
    with pytest.warns(ConsensusWarning, match="k=3: 1 of 3 clusters hold less than 0.5%"):
        CEHM([2, 3], random_state=0).fit(np.stack([rows] * 5, axis=1))


@pytest.mark.parametrize("variant", ["released", "printed"])
@pytest.mark.parametrize("keep_state", [True, False])
def test_scan__margin_and_stability_are_those_of_the_partitions(hard_ensemble, monkeypatch, variant, keep_state):
    labels = as_labels(hard_ensemble[:1593])
    ends, budget = {}, job.budget_of

    def record(problem, stage, engine):
        ends[problem.number] = (
            problem.params.n_clusters,
            *engine.sweep("record", gather, join, problem.last_order())[:2],
        )

    monkeypatch.setattr(job, "budget_of", lambda *args: replace(budget(*args), keep_state=keep_state))
    params = Params(8, variant=variant, restarts=3)
    find_consensus(labels, params, 0, Where(threads=1), ks=(8, 10), record=record)
    found = find_consensus(labels, params, 0, Where(threads=2, block_rows=100), ks=(8, 10))
    speaking = labels.n_samples - found.consensus.hyperedges.n_silent
    for solution, told in zip(found.consensus.solutions, found.scan, strict=True):
        parts = [found for k, found, _ in ends.values() if k == solution.n_clusters]
        assert told["restarts"] == len(parts) == 3
        spoken = parts[0] >= 0
        pairs = [
            normalized_mutual_info_score(a[spoken], b[spoken], average_method="geometric")
            for a, b in combinations(parts, 2)
        ]
        assert told["stability"] == pytest.approx(np.mean(pairs), abs=1e-9)
        margin = ends[solution.problem.number][2].sum() / speaking / labels.n_members
        assert told["margin"] == pytest.approx(margin, rel=1e-6)


@pytest.mark.parametrize("stored", [False, True])
def test_scan__one_look_where_state_is_kept(hard_ensemble, monkeypatch, stored):
    swept = []
    sweep, budget = Engine.sweep, job.budget_of
    monkeypatch.setattr(job, "budget_of", lambda *args: replace(budget(*args), stored=stored))

    def noted(self, name, *args, reads=True, **how):
        swept.append((name, reads))
        return sweep(self, name, *args, reads=reads, **how)

    monkeypatch.setattr(Engine, "sweep", noted)
    find_consensus(as_labels(hard_ensemble), Params(4, variant="released", restarts=2), 0, Where(), ks=(4, 9))
    # With labels in memory, adjustion passes over samples, and one pass brings the margins of all problems up to date.
    assert [reads for name, reads in swept if name in ("survey", "result")] == [not stored, True]
    assert [name for name, _ in swept].count("intersections") == 1
    swept.clear()
    find_consensus(as_labels(hard_ensemble), Params(4), 0, Where())
    assert "survey" not in [name for name, _ in swept]
    assert [reads for name, reads in swept if name == "result"] == [True]  # confidences need the labels


def test_scan__single_start(hard_ensemble):
    found = find_consensus(as_labels(hard_ensemble), Params(4, variant="released"), 0, Where())
    (record,) = found.scan
    assert record["stability"] is None
    spoken = found.labels >= 0
    assert record["margin"] == pytest.approx(found.margin[spoken].mean(), rel=1e-6)


def test_scan__starts_that_are_all_the_same_are_stable(three):
    assert CEHM(3, restarts=3, random_state=0).fit(three).scan_[0]["stability"] == 1.0


def test_pairs__bounded_and_spread():
    assert survey._pairs(range(5), 10) == list(combinations(range(5), 2))
    many = survey._pairs(range(100), 10)
    assert len(many) == len(set(many)) == survey.MOST_PAIRS
    assert len(survey._pairs(range(100), 1000)) == 1


# --- auto --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_auto__runs_the_clear_k_only(three, tmp_path):
    model = CEHM("auto", restarts=3, random_state=0).fit(three, output=tmp_path / "c.zarr")
    alone = CEHM(3, restarts=3, random_state=0).fit(three)
    assert [record["n_clusters"] for record in model.scan_] == [3]
    assert model.choice_["clear"]
    assert "3 groups" in model.choice_["reason"]
    np.testing.assert_array_equal(model.labels_[:], alone.labels_)
    assert model.n_sweeps_ == alone.n_sweeps_
    assert CEHM.load(tmp_path / "c.zarr").n_clusters_ == 3


@pytest.mark.parametrize("n_samples", [5, 400])
def test_auto__unclear_k_is_warned_about(n_samples):
    flat = np.random.default_rng(3).integers(0, 3, (n_samples, 10))
    with pytest.warns(ConsensusWarning, match="no clear k"):
        model = CEHM("auto", random_state=0).fit(flat)
    assert model.n_clusters_ == 2
    assert not model.choice_["clear"]


def test_auto__from_features():
    model = ClusterEnsemble("auto", random_state=0).fit(blobs(k=5, d=5, n=1000, apart=8.0, sizes=1000.0, seed=2))
    assert model.consensus_.n_clusters_ == 5
    assert model.consensus_.choice_["clear"]


def test_auto__refused_with_given_medoids():
    with pytest.raises(ValueError, match="not as 'auto'"):
        CEHM("auto", init=[0, 1]).fit(np.eye(4, dtype=int))


def test_auto__other_words_are_refused():
    with pytest.raises(TypeError, match="n_clusters='many'"):
        CEHM("many").fit(np.eye(4, dtype=int))
