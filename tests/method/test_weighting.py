"""Members and hyperedges that count more than others: as if they were there more often."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from cehm_dask import CEHM
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.job import Where, find_consensus
from cehm_dask.method.agreement import agreement, explained
from cehm_dask.method.belonging import BELONGINGS, evenness, loss_of, tau, weights_of
from cehm_dask.method.competing import Rows, first_alike
from cehm_dask.method.medoids import dissimilarity
from cehm_dask.method.params import Params
from cehm_dask.method.split import best_split
from cehm_dask.pipeline.recipe import load
from tests import reference
from tests.conftest import cehm
from tests.method.test_belonging import cases, counts_of, hyperedges_in

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

every_kind = pytest.mark.parametrize("kind", BELONGINGS)


@st.composite
def weighted_cases(draw):
    """A case, and how many times each member is there."""
    case = draw(cases())
    times = draw(st.lists(st.integers(1, 4), min_size=case.P.shape[1], max_size=case.P.shape[1]))
    return case, np.array(times)


def both_ways(case, times):
    """Hyperedges and counts with members that weigh, and with members that are repeated."""
    H, members = reference.incidence(case.P)
    repeated = np.repeat(case.P, times, axis=1)
    again, _ = reference.incidence(repeated)
    weighing = hyperedges_in(case.P).weighted(times[members].astype(np.float64))
    return (H, weighing, counts_of(H, case.assignment, case.k)), (
        again,
        hyperedges_in(repeated),
        counts_of(again, case.assignment, case.k),
    )


@every_kind
@given(found=weighted_cases())
def test_belonging__as_if_members_were_repeated(kind, found):
    """Belonging degrees of every sample agree up to a factor, and what is added to all clusters of a sample alike."""
    (H, weighing, counts), (again, repeated, counts_again) = both_ways(*found)
    degrees = H @ weights_of(kind, counts, weighing)
    wanted = again @ weights_of(kind, counts_again, repeated)
    filled = counts.any(axis=0)
    if filled.sum() < 2:
        return
    leads = degrees[:, filled] - degrees[:, filled].mean(axis=1, keepdims=True)
    leads_wanted = wanted[:, filled] - wanted[:, filled].mean(axis=1, keepdims=True)
    largest = np.abs(leads_wanted).max()
    factor = np.vdot(leads, leads_wanted) / max(np.vdot(leads, leads), 1e-300)
    np.testing.assert_allclose(factor * leads, leads_wanted, atol=1e-9 * max(largest, 1e-9) + 1e-12)


@given(found=weighted_cases())
def test_scores__as_if_members_were_repeated(found):
    case, times = found
    (_, weighing, counts), (_, repeated, counts_again) = both_ways(case, times)
    speaks = len(np.unique(weighing.members)) == case.P.shape[1]  # members without labels count 0, weighted or not
    for score in (tau, evenness) + (() if not speaks else (_agreement, _explained)):
        assert score(counts, weighing) == pytest.approx(score(counts_again, repeated), abs=1e-9)


def _agreement(counts, hyperedges):
    return agreement(hyperedges, counts)


def _explained(counts, hyperedges):
    return explained(hyperedges, counts)


@given(found=weighted_cases(), similarity=st.sampled_from(["jaccard", "containment"]))
def test_medoids__loss_as_if_members_were_repeated(found, similarity):
    case, times = found
    (_, weighing, _), (_, repeated, _) = both_ways(case, times)
    table, again = dissimilarity(weighing, similarity), dissimilarity(repeated, similarity)
    _, members = reference.incidence(case.P)
    _, first = np.unique(np.repeat(np.arange(case.P.shape[1]), times), return_index=True)
    starts = np.searchsorted(repeated.members, first)
    own = np.concatenate([starts[j] + np.arange(np.sum(members == j)) for j in range(case.P.shape[1])]).astype(int)
    some = np.random.default_rng(0).permutation(len(members))[: max(1, len(members) // 2)]
    loss, wanted = table[:, some].min(axis=1).sum(), again[:, own[some]].min(axis=1).sum()
    scale = weighing.sizes.sum() / float(weighing.sizes @ times[members])
    assert loss == pytest.approx(scale * wanted, rel=1e-4, abs=1e-4)


@every_kind
@given(found=weighted_cases())
def test_rounds__never_lower_the_objective(kind, found):
    (H, weighing, counts), _ = both_ways(*found)
    before = loss_of(kind, counts, weighing).fraction
    for _ in range(4):
        counts = counts_of(H, (H @ weights_of(kind, counts, weighing)).argmax(axis=1), counts.shape[1])
        now = loss_of(kind, counts, weighing).fraction
        assert now <= before + 1e-9
        before = now


@given(found=weighted_cases())
def test_split__takes_a_hyperedge_whose_weight_counts(found):
    (_, weighing, counts), (_, repeated, counts_again) = both_ways(*found)
    one, other = best_split(counts, weighing), best_split(counts_again, repeated)
    assert (one is None) == (other is None)


# --- the whole way ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base_labels():
    labels = Synth(900, 9, n_classes=4, k_min=4, k_max=9).arrays()[0].astype(np.int64)
    labels[np.random.default_rng(0).random(labels.shape) < 0.1] = -1
    labels[5] = -1
    return labels


WEIGHTS = [0.5, 1, 3, 1, 1, 2.25, 1, 0.1, 1]


@settings(max_examples=15)
@given(
    block_rows=st.integers(1, 950),
    variant=st.sampled_from(["auto", "released", "printed", "kmeans"]),
    per_hyperedge=st.booleans(),
)
def test_same_bits__whatever_the_blocks(base_labels, block_rows, variant, per_hyperedge):
    labels = as_labels(base_labels)
    weights = np.random.default_rng(3).uniform(0.5, 2, labels.count_hyperedges()) if per_hyperedge else WEIGHTS
    params = Params(4, variant=variant, weights=weights)
    one = find_consensus(labels, params, 0, Where())
    other = find_consensus(labels, params, 0, Where(block_rows=block_rows, threads=2))
    for name in ("labels", "margin", "confidence"):
        assert np.array_equal(getattr(one, name), getattr(other, name))
    assert one.consensus.chosen.problem.losses == other.consensus.chosen.problem.losses


@pytest.mark.parametrize("variant", ["auto", "released"])
def test_same_bits__store_workers_and_saved_model(base_labels, variant, tmp_path, two_processes):
    wanted = CEHM(4, variant=variant, weights=WEIGHTS, random_state=0).fit(base_labels)
    ingest(base_labels, str(tmp_path / "e.zarr"), chunk_rows=64)
    model = CEHM(4, variant=variant, weights=WEIGHTS, random_state=0)
    model.fit(tmp_path / "e.zarr", output=tmp_path / "c.zarr", client=two_processes)
    assert np.array_equal(model.labels_[:], wanted.labels_)
    assert np.array_equal(model.margin_[:], wanted.margin_.astype(np.float32))
    assert np.array_equal(model.confidence_[:], wanted.confidence_.astype(np.float32))
    wanted.save(tmp_path / "m.zarr")
    for again in (wanted, CEHM.load(tmp_path / "c.zarr"), CEHM.load(tmp_path / "m.zarr")):
        found = again.predict_details(base_labels)
        assert np.array_equal(found.labels, wanted.labels_)
        np.testing.assert_allclose(found.confidence, wanted.confidence_)
        assert np.array_equal(again.membership(base_labels), wanted.membership(base_labels))
    assert cehm("verify", tmp_path / "c.zarr")


def test_weights__decide_between_members_that_disagree():
    rng = np.random.default_rng(0)
    one, other = rng.integers(2, size=400), rng.integers(2, size=400)
    base_labels = np.column_stack([one, one, one, other, other, other])
    for heavy, wanted in ((0, one), (3, other)):
        weights = np.ones(6)
        weights[heavy : heavy + 3] = 3
        found = CEHM(2, weights=weights, random_state=0).fit_predict(base_labels)
        assert adjusted_rand_score(found, wanted) == 1.0


def test_weights__by_name_in_order_and_all_equal(base_labels):
    names = [f"m{j}" for j in range(9)]
    frame = pd.DataFrame(base_labels, columns=names)
    ordered = CEHM(4, weights=[1, 1, 5, 1, 1, 1, 1, 1, 1], random_state=0).fit(frame)
    named = CEHM(4, weights={"m2": 5}, random_state=0).fit(frame)
    assert np.array_equal(named.margin_, ordered.margin_)
    alike, plain = (CEHM(4, weights=own, random_state=0).fit(frame) for own in ([7] * 9, None))
    assert np.array_equal(alike.margin_, plain.margin_)
    assert not np.array_equal(alike.margin_, ordered.margin_)


@pytest.mark.parametrize(
    ("weights", "error", "said"),
    [
        ([1, 2], InputError, r"weights: 2 numbers, but there are 9 members and \d+ base clusters"),
        ([1.0] * 8 + [0], InputError, "weights, number 8: 0; expected a number above 0"),
        ([1.0] * 8 + [np.nan], InputError, "weights, number 8: nan; expected"),
        ([1.0] * 8 + ["a"], InputTypeError, "weights, number 8: 'a' is no number"),
        ([1e-9] + [1.0] * 8, InputError, "their ratio may be 1e.06 at most"),
        ({"absent": 2}, InputError, "weights: there is no member 'absent'; members are 0, 1, 2"),
        ("2", InputTypeError, "expected a number per member"),
        ([], InputError, "expected a number per member"),
        (np.ones((3, 3)), InputTypeError, "expected a number per member"),
    ],
)
def test_weights__that_cannot_be(base_labels, weights, error, said):
    with pytest.raises(error, match=said):
        CEHM(4, weights=weights).fit(base_labels)


def test_command_and_recipe(base_labels, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"m{j}" for j in range(9)]
    pd.DataFrame(base_labels, columns=names).to_csv("labels.csv", index=False)
    wanted = CEHM(4, weights={"m2": 5, "m7": 0.5}, random_state=0).fit(base_labels_frame(base_labels, names))
    cehm("consensus", "labels.csv", "--k", 4, "--weights", "m2=5,m7=0.5", "-o", "out.csv")
    assert np.array_equal(pd.read_csv("out.csv")["label"], wanted.labels_)
    (tmp_path / "r.yaml").write_text(
        "labels: {path: labels.csv}\nconsensus: {k: 4, weights: {m2: 5, m7: 0.5}}\noutput: run\nexport: csv\n"
    )
    assert load("r.yaml").consensus.weights == {"m2": 5.0, "m7": 0.5}
    cehm("run", "r.yaml")
    assert np.array_equal(pd.read_csv("run/labels.csv")["label"], wanted.labels_)
    _, err = cehm("consensus", "labels.csv", "--k", 4, "--weights", "1,two", "-o", "no.csv", code=2)
    assert "expected numbers (1,2,1) or names" in err


def base_labels_frame(base_labels, names):
    return pd.DataFrame(base_labels, columns=names)


# --- identical members ---------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32 - 1), missing=st.sampled_from([0.0, 0.3]))
def test_identical_members__are_found_whatever_their_labels_are_called(seed, missing):
    rng = np.random.default_rng(seed)
    P = rng.integers(4, size=(40, 3))
    P[rng.random(P.shape) < missing] = -1
    renamed = np.append(rng.permutation(4) + 10, -1)
    doubled = np.column_stack([P, renamed[P[:, 1]], P[:, 0]])
    rows = Rows(as_labels(doubled), as_labels(doubled).read(0, 40))
    alone = Rows(as_labels(P), as_labels(P).read(0, 40))
    if len(np.unique(first_alike(alone.hyperedges))) < 3:
        return  # two random columns are the same partition
    assert np.array_equal(rows.codes, alone.codes)
    of_member = [rows.hyperedges.weight[rows.hyperedges.of_member(j)] for j in range(3)]
    scale = of_member[2][0] if len(of_member[2]) else 1.0
    for own, times in zip(of_member, (2, 2, 1), strict=True):
        np.testing.assert_allclose(own / scale, times)


def test_identical_members__answer_as_without_merging(monkeypatch):
    labels, truth = Synth(600, 12, n_classes=5, k_min=5, k_max=12).arrays()
    P = np.column_stack([labels, labels[:, :4], labels[:, :4]])
    found = CEHM(5, random_state=0).fit(P)
    monkeypatch.setattr("cehm_dask.method.competing.first_alike", lambda edges: np.arange(edges.n_members))
    apart = CEHM(5, random_state=0).fit(P)
    assert adjusted_rand_score(found.labels_, apart.labels_) == 1.0
    assert found.agreement_ == pytest.approx(apart.agreement_)
    for one, other in zip(found.candidates_, apart.candidates_, strict=True):
        if one["start"] != "medoids":  # those are drawn from fewer hyperedges
            assert one["tau"] == pytest.approx(other["tau"], abs=1e-6)
    assert adjusted_rand_score(found.labels_, truth) == 1.0
