"""Consensus matrices: against a plain double loop, and against ConsensusClusterPlus and clue themselves (``-m r``)."""

import json
import shutil
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_breast_cancer

from cehm_dask import CEHM
from cehm_dask.doors.resampling import cluster_order, draw
from cehm_dask.errors import BudgetError, InputError
from cehm_dask.machine import this_machine
from cehm_dask.results import coassociation
from cehm_dask.results.coassociation import choose_rows, co_association, delta_areas, stability
from tests.conftest import cehm

SCRIPT = Path(__file__).with_name("consensus_cluster_plus.R")


def plain_matrix(labels):
    """The definition, pair by pair."""
    n, found = len(labels), np.zeros((len(labels), len(labels)))
    for i in range(n):
        for j in range(n):
            both = (labels[i] >= 0) & (labels[j] >= 0)
            found[i, j] = (labels[i] == labels[j])[both].mean() if both.any() else 0.0
    return found


def subsampled(n=60, members=40, ks=(2, 3, 4), share=0.8, seed=0):
    """Members of several k, each on a share of the samples; three true groups."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) * 3 // n
    columns = []
    for k in ks:
        for _ in range(members):
            seen = np.where(rng.random(n) < 0.9, truth % k, rng.integers(0, k, n))
            seen[:k] = np.arange(k)
            out = rng.random(n) > share
            out[:k] = False
            columns.append(np.where(out, -1, seen))
    return np.array(columns).T


@given(arrays(np.int64, st.tuples(st.integers(2, 9), st.integers(1, 7)), elements=st.integers(-1, 3)))
def test_matrix__is_the_share_of_members_that_label_both(labels):
    np.testing.assert_array_equal(co_association(labels).matrix(), plain_matrix(labels))


def test_counts__are_the_same_however_members_are_cut(monkeypatch):
    labels = subsampled()
    whole = co_association(labels)
    monkeypatch.setattr(coassociation, "COLUMNS", 7)
    monkeypatch.setattr(coassociation, "rows_read", lambda _members: 11)
    parts = co_association(labels)
    np.testing.assert_array_equal(parts.together, whole.together)
    np.testing.assert_array_equal(parts.both, whole.both)


def test_counts__are_the_same_from_a_store(tmp_path):
    labels = subsampled()
    np.save(tmp_path / "labels.npy", labels)
    cehm("import", tmp_path / "labels.npy", tmp_path / "ensemble.zarr", "--quiet")
    np.testing.assert_array_equal(
        co_association(str(tmp_path / "ensemble.zarr")).together, co_association(labels).together
    )


def test_rows__many_are_sampled_by_a_seed_and_the_entries_are_theirs():
    labels = subsampled()
    whole = co_association(labels).matrix()
    some, again, other = (co_association(labels, most_rows=20, seed=seed) for seed in (1, 1, 2))
    assert len(np.unique(some.rows)) == 20
    np.testing.assert_array_equal(some.rows, again.rows)
    assert (some.rows != other.rows).any()
    np.testing.assert_array_equal(some.matrix(), whole[np.ix_(some.rows, some.rows)])
    np.testing.assert_array_equal(co_association(labels, rows=[50, 3, 7]).rows, [3, 7, 50])


def test_clusters_of_members__are_counted_in_all_samples():
    labels = subsampled(ks=(2, 3, 4), members=1)
    assert choose_rows(labels, rows=[40, 41]).n_clusters.tolist() == [2, 3, 4]


@pytest.mark.parametrize("rows", [[], [-1], [60]])
def test_rows__that_are_none_are_refused(rows):
    with pytest.raises(InputError, match="expected numbers from 0 to 59"):
        choose_rows(subsampled(), rows=rows)


def test_memory__is_refused_before_work():
    with pytest.raises(BudgetError, match=r"60 samples by pairs.*or compare fewer samples"):
        co_association(subsampled(), memory=1 << 20)
    with pytest.raises(BudgetError, match="60 samples by pairs"):
        stability(subsampled(), [2, 3], memory=1 << 20)


def test_memory__peak_is_below_what_was_projected(caplog):
    labels = np.random.default_rng(0).integers(-1, 8, (1500, 100))
    chosen = choose_rows(labels)
    with caplog.at_level("INFO", "cehm_dask.machine"):
        co_association(chosen.of(np.arange(100) < 1))  # what is loaded on first use is no part of the peak
        caplog.clear()
        taken = this_machine(None).taken
        tracemalloc.start()
        found = co_association(chosen)
        found.cdf(), found.pac(), found.cluster_consensus(chosen.codes[:, 0])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    (record,) = caplog.records
    own = record.projected - taken
    assert 0.5 * own < peak < own


def test_cdf__counts_shares_on_a_step_below_it():
    # Shares of 0, 1/2 and 1, once each: of three samples and two members.
    found = co_association(np.array([[0, 0], [0, 1], [1, 1]]))
    assert sorted(found.matrix()[np.tril_indices(3, -1)]) == [0.0, 0.5, 0.5]
    curve = found.cdf(4)
    np.testing.assert_allclose(curve, [1 / 3, 1, 1, 1])
    assert found.area(4) == pytest.approx((1 / 3 + 3) / 4)
    assert found.pac() == pytest.approx(2 / 3)
    assert found.pac(0.5, 0.9) == 0
    assert found.pac(0.1, 0.5) == pytest.approx(2 / 3)


@given(arrays(np.int64, (8, 10), elements=st.integers(-1, 2)))
def test_pac__is_the_difference_of_the_cdf(labels):
    found = co_association(labels)
    curve = found.cdf()
    assert found.pac() == pytest.approx(curve[89] - curve[9], abs=1e-12)


def test_consensus_of_clusters_and_items__are_means_over_pairs():
    labels = subsampled()
    found = co_association(labels)
    matrix, clusters = found.matrix(), np.array([0] * 20 + [1] * 39 + [2])
    clusters[5] = -1
    items, of_clusters = found.item_consensus(clusters), found.cluster_consensus(clusters)
    inside = [np.flatnonzero(clusters == c) for c in range(3)]
    for c in range(2):
        pairs = [matrix[i, j] for i in inside[c] for j in inside[c] if i < j]
        assert of_clusters[c] == pytest.approx(np.mean(pairs))
        for i in (0, 5, 30, 59):
            assert items[i, c] == pytest.approx(np.mean([matrix[i, j] for j in inside[c] if j != i]))
    assert np.isnan(of_clusters[2])
    assert np.isnan(items[59, 2])


def test_stability__takes_the_members_with_k_clusters():
    labels = subsampled()
    found = stability(labels, [2, 3, 4])
    assert [one.co.n_members for one in found] == [40, 40, 40]
    np.testing.assert_array_equal(found[1].co.together, co_association(labels[:, 40:80]).together)
    np.testing.assert_array_equal(found[1].labels, CEHM(3, random_state=0).fit(labels[:, 40:80]).labels_)
    areas = [one.co.area() for one in found]
    assert [one.delta_area for one in found] == delta_areas(areas)
    assert [one.record()["pac"] for one in found] == [one.co.pac() for one in found]
    assert [one.co.n_members for one in stability(labels, [3], all_members=True)] == [120]


def test_stability__a_k_that_no_member_has_is_named():
    with pytest.raises(InputError, match=r"k=7: no member has so many clusters; they have 2, 3, 4\."):
        stability(subsampled(), [3, 7])


def test_order__goes_cluster_by_cluster_from_the_largest():
    (found,) = stability(subsampled(), [3])
    ordered = found.labels[cluster_order(found)]
    sizes = np.bincount(ordered)
    changes = np.flatnonzero(np.diff(ordered))
    assert len(changes) == 2
    assert (np.diff([sizes[ordered[place]] for place in (0, *(changes + 1))]) <= 0).all()


# --- picture and command -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_picture__is_written(tmp_path, suffix, begins):
    draw(stability(subsampled(), [2, 3]), tmp_path / f"picture{suffix}")
    assert (tmp_path / f"picture{suffix}").read_bytes().startswith(begins)


def test_picture__other_endings_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"ends in \.png, \.svg, \.pdf"):
        draw(stability(subsampled(), [3]), tmp_path / "picture.bmp")


def test_command__prints_and_writes_what_python_gives(tmp_path):
    labels = subsampled()
    np.save(tmp_path / "labels.npy", labels)
    asked = ("stability", tmp_path / "labels.npy", "--k", "2..4")
    out, _ = cehm(*asked, "--json")
    found = stability(labels, [2, 3, 4])
    records = json.loads(out)
    assert records[:2] == [one.record() for one in found[:2]]
    assert np.isnan(found[2].record()["cluster_consensus"][3])
    assert records[2]["cluster_consensus"][3] is None
    out, err = cehm(*asked, "-o", tmp_path / "items.csv", "--picture", tmp_path / "map.png")
    assert f"{found[1].co.pac():.4f}" in out
    assert "items.csv" in err
    items = pd.read_csv(tmp_path / "items.csv")
    assert items["k"].value_counts().to_dict() == {2: 60, 3: 60, 4: 60}
    np.testing.assert_allclose(items.loc[items["k"] == 3, "item_consensus"], found[1].own_consensus())
    _, err = cehm(*asked, "--picture", tmp_path / "map.png", code=2)
    assert "exists: choose another name, or pass --overwrite" in err


@pytest.mark.parametrize(
    ("more", "said"),
    [(("--k", "auto"), "such as 2..8"), (("--k", "9"), "no member has so many"), (("--k", "2", "-o", "a.npy"), ".csv")],
)
def test_command__wrong_options_are_named(tmp_path, more, said):
    np.save(tmp_path / "labels.npy", subsampled())
    _, err = cehm("stability", tmp_path / "labels.npy", *more, code=2)
    assert said in err


# --- the programs that the definitions come from -----------------------------------------------------------------


@pytest.fixture(scope="module")
def from_r(tmp_path_factory):
    """What ConsensusClusterPlus and clue say of 150 samples, 60 subsamples of 80 %, k = 2..5."""
    if shutil.which("Rscript") is None:
        pytest.skip("no R here: apt-get install r-bioc-consensusclusterplus r-cran-clue")
    folder = tmp_path_factory.mktemp("r")
    features = load_breast_cancer().data[:150]
    np.savetxt(folder / "features.csv", (features - features.mean(axis=0)) / features.std(axis=0), delimiter=",")
    subprocess.run(["Rscript", SCRIPT, "60", "5"], cwd=folder, check=True, timeout=600)
    return folder


def table(path):
    return np.loadtxt(path, delimiter=",")


@pytest.mark.r
@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_consensus_cluster_plus__has_the_same_matrix_and_consensus(from_r, k):
    found = co_association(table(from_r / f"labels{k}.csv").astype(int))
    np.testing.assert_allclose(found.matrix(), table(from_r / f"matrix{k}.csv"), rtol=0, atol=1e-12)
    classes = table(from_r / f"class{k}.csv").astype(int) - 1
    clusters = pd.read_csv(from_r / "clusters.csv").query("k == @k").sort_values("cluster")["clusterConsensus"]
    np.testing.assert_allclose(found.cluster_consensus(classes), clusters, rtol=0, atol=1e-12)
    items = pd.read_csv(from_r / "items.csv").query("k == @k")
    items["item"] = items["item"].str.removeprefix("s").astype(int)
    wanted = items.pivot_table(index="item", columns="cluster", values="itemConsensus", dropna=False)
    np.testing.assert_allclose(found.item_consensus(classes), wanted, rtol=0, atol=1e-12)


@pytest.mark.r
def test_consensus_cluster_plus__has_the_same_areas(from_r):
    areas = [co_association(table(from_r / f"labels{k}.csv").astype(int)).area() for k in range(2, 6)]
    wanted = pd.read_csv(from_r / "areas.csv")
    np.testing.assert_allclose(areas, wanted["area"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(delta_areas(areas), wanted["delta"], rtol=0, atol=1e-12)


@pytest.mark.r
def test_clue__has_the_same_co_membership_and_agreement(from_r):
    labels = table(from_r / "whole.csv").astype(int)
    np.testing.assert_allclose(co_association(labels).matrix(), table(from_r / "together.csv"), rtol=0, atol=1e-12)
    agreement = CEHM(3, random_state=0).fit(labels).member_agreement_
    np.testing.assert_allclose(agreement, table(from_r / "nmi.csv"), rtol=0, atol=1e-9)
