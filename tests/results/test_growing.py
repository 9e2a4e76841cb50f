"""A consensus that grows: the same bits for any blocks, workers and interruptions; stable, with k clusters, cheap."""

import json
import shutil
import subprocess
import sys
import textwrap

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM
from cehm_dask.data import ensemble_writer, shape
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.features import as_features
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.preparation import FeatureWarning
from cehm_dask.errors import BudgetError, InputError, ReplacedError, StoreError
from cehm_dask.job import Where, find_consensus
from cehm_dask.machine import resident_bytes
from cehm_dask.members.fit import plan_members
from cehm_dask.members.generate import generate
from cehm_dask.method.warm import warm_from
from cehm_dask.results.growing import grow
from tests.conftest import cehm, edit_facts
from tests.pretended_s3 import BUCKET

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

N, OLD = 900, 800


def made_up(seed, n=N, missing=0.1, k=4, members=8):
    """Base labels that disagree, with missing ones."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, k, n)
    labels = np.where(rng.random((n, members)) < 0.45, classes[:, None], rng.integers(0, k + 2, (n, members)))
    labels[rng.random(labels.shape) < missing] = -1
    labels[:6, :] = np.arange(6)[:, None]  # every label is there in the first rows
    return labels


WAYS = ("samples", "members", "drop_members")


def grown(folder, labels, way, **how):
    """Grow a consensus to these labels, or, for members that are dropped, from them; the labels of the result."""
    before = {"samples": labels[:OLD], "members": labels[:, :6], "drop_members": labels}[way]
    added = {"samples": labels[OLD:], "members": labels[:, 6:], "drop_members": ["2", "5"]}[way]
    ingest(before, str(folder / "e.zarr"))
    CEHM(4, random_state=0).fit(folder / "e.zarr", output=folder / "old.zarr")
    into = {"into": folder / "into.zarr"} if way == "drop_members" else {}
    return grow(folder / "old.zarr", folder / "e.zarr", folder / "new.zarr", **{way: added}, **into, **how)


def expected(labels, way):
    """The base labels that the grown ensemble has."""
    return np.delete(labels, [2, 5], axis=1) if way == "drop_members" else labels


def result(url):
    stored = open_consensus(str(url))
    return [stored.array(name)[:] for name in ("labels", "margin", "confidence", "counts")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_grow__the_ensemble_has_all_labels_and_the_tables_are_exact(tmp_path, monkeypatch, way, missing):
    monkeypatch.setattr(ensemble_writer, "CHUNK_BYTES", 8 * 64)  # several shards
    labels = made_up(1, missing=missing)
    outcome = grown(tmp_path, labels, way)
    url = tmp_path / ("into.zarr" if way == "drop_members" else "e.zarr")
    ensemble = open_ensemble(str(url))
    np.testing.assert_array_equal(ensemble.read(0, ensemble.n_samples).astype(int) - 1, expected(labels, way))
    cehm("verify", url)
    anew = CEHM(4, random_state=0).fit(url, output=tmp_path / "anew.zarr")
    tables = [open_consensus(str(tmp_path / name)) for name in ("new.zarr", "anew.zarr")]
    np.testing.assert_array_equal(*(own.table("intersections") for own in tables))
    np.testing.assert_array_equal(*(own.table("member_agreement") for own in tables))
    assert tables[0].facts["n_silent"] == tables[1].facts["n_silent"]
    # A sweep for the start, one for each round of adjustion, one for the result; and for the tables: none where all of
    # them are slices, one over the new rows or one over all otherwise.
    counted = not (way == "drop_members" and missing == 0.0)
    assert outcome.sweeps == 2 + len(outcome.consensus.chosen.problem.losses) + counted
    assert outcome.consensus.chosen.n_clusters_found == 4
    assert anew.n_clusters_found_ == 4
    assert outcome.consensus.chosen.problem.converged


@pytest.mark.parametrize("way", WAYS)
def test_grow__from_itself_moves_nothing(tmp_path, way):
    labels = made_up(2)
    grown(tmp_path, labels, way)
    url = tmp_path / ("into.zarr" if way == "drop_members" else "e.zarr")
    again = CEHM(4).fit(url, grow_from=tmp_path / "new.zarr")
    found, margin, confidence, counts = result(tmp_path / "new.zarr")
    np.testing.assert_array_equal(again.labels_, found)
    np.testing.assert_array_equal(again.margin_.astype(np.float32), margin)
    np.testing.assert_array_equal(again.confidence_.astype(np.float32), confidence)
    np.testing.assert_array_equal(again.counts_, counts)
    assert again.n_sweeps_ == 3  # start, one round, result: the tables are those of the consensus


@settings(max_examples=25)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["samples", "members", "fewer"]),
    st.integers(1, 400),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(["auto", "released", "cosine"]),
)
def test_grow__same_bits_for_any_blocks_and_threads(tmp_path_factory, seed, way, block_rows, threads, missing, variant):
    folder = tmp_path_factory.mktemp("grow")
    labels = pd.DataFrame(made_up(seed, n=400, missing=missing)).rename(columns="m{}".format)
    before = {"samples": labels[:300], "members": labels.iloc[:, :6], "fewer": labels}[way]
    after = labels.drop(columns=["m1", "m4"]) if way == "fewer" else labels
    CEHM(4, variant=variant, random_state=0).fit(before, output=folder / "old.zarr")
    outcomes = []
    for where in (Where(), Where(block_rows=block_rows, threads=threads)):
        held = as_labels(after)
        warm = warm_from(open_consensus(str(folder / "old.zarr")), held)
        outcomes.append(find_consensus(held, warm.params, warm.seed, where, warm=warm))
    for name in ("labels", "margin", "confidence"):
        np.testing.assert_array_equal(*(getattr(outcome, name) for outcome in outcomes))
    one = outcomes[0].consensus.chosen
    assert variant == "released" or one.n_clusters_found == 4
    # Stable: the counts are those of the labels, and the weights of the counts give the labels again.
    for column, name in enumerate(after):
        known = [label for label in sorted(after[name].unique()) if label >= 0]
        own = one.problem.counts[one.problem.hyperedges.of_member(column)]
        for row, label in zip(own, known, strict=True):
            inside = outcomes[0].labels[(after[name] == label).to_numpy()]
            np.testing.assert_array_equal(row, np.bincount(inside, minlength=4))


@settings(max_examples=12)
@given(
    st.integers(0, 10**6),
    st.sampled_from(WAYS),
    st.integers(10, 299),
    st.integers(8 * 16, 8 * 200),
    st.sampled_from([0.0, 0.2]),
)
def test_grow__tables_that_are_taken_over_change_no_bit(tmp_path_factory, seed, way, rows, chunk_bytes, missing):
    folder = tmp_path_factory.mktemp("grow")
    labels = made_up(seed, n=300, missing=missing)
    before = {"samples": labels[:rows], "members": labels[:, :6], "drop_members": labels}[way]
    added = {"samples": labels[rows:], "members": labels[:, 6:], "drop_members": ["2", "5"]}[way]
    into = {"into": folder / "into.zarr"} if way == "drop_members" else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ensemble_writer, "CHUNK_BYTES", chunk_bytes)
        ingest(before, str(folder / "e.zarr"))
        CEHM(4, random_state=0).fit(folder / "e.zarr", output=folder / "old.zarr")
        grow(folder / "old.zarr", folder / "e.zarr", folder / "new.zarr", **{way: added}, **into)
    # A frame with the names of the members has no tables to take over: all is counted anew.
    names = [str(j) for j in range(8) if way != "drop_members" or str(j) not in added]
    anew = pd.DataFrame(expected(labels, way), columns=names)
    wanted = CEHM(4).fit(anew, grow_from=folder / "old.zarr", output=folder / "wanted.zarr")
    for one, other in zip(result(folder / "new.zarr"), result(folder / "wanted.zarr"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert wanted.n_clusters_found_ == 4


@pytest.mark.parametrize("way", WAYS)
def test_grow__on_worker_processes(tmp_path, two_processes, way):
    labels = made_up(3)
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    grown(tmp_path / "here", labels, way)
    grown(tmp_path / "there", labels, way, client=two_processes)
    for one, other in zip(result(tmp_path / "here" / "new.zarr"), result(tmp_path / "there" / "new.zarr"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stop_after", [1, 2])
def test_grow__interrupted_and_given_again(tmp_path, way, stop_after):
    labels = made_up(4)
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    grown(tmp_path / "whole", labels, way)

    def interrupt(event):
        if event.round == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grown(tmp_path / "cut", labels, way, progress=interrupt)
    folder = tmp_path / "cut"
    added = {"samples": labels[OLD:], "members": labels[:, 6:], "drop_members": ["2", "5"]}[way]
    into = {"into": folder / "into.zarr"} if way == "drop_members" else {}
    rounds = []
    grow(folder / "old.zarr", folder / "e.zarr", folder / "new.zarr", **{way: added}, **into, progress=rounds.append)
    assert all(event.round > stop_after for event in rounds)
    assert rounds or stop_after > 1
    for one, other in zip(result(tmp_path / "whole" / "new.zarr"), result(folder / "new.zarr"), strict=True):
        np.testing.assert_array_equal(one, other)
    url = folder / ("into.zarr" if way == "drop_members" else "e.zarr")
    assert open_ensemble(str(url)).n_samples == N  # it did not grow twice


def test_grow__readers_of_the_ensemble_keep_it_or_notice(tmp_path, monkeypatch):
    monkeypatch.setattr(ensemble_writer, "CHUNK_BYTES", 8 * 64)
    labels = made_up(5)
    ingest(labels[:OLD], str(tmp_path / "e.zarr"))
    CEHM(4, random_state=0).fit(tmp_path / "e.zarr", output=tmp_path / "old.zarr")
    reader, written = open_ensemble(str(tmp_path / "e.zarr")), ensemble_writer.EnsembleWriter.write

    def look(self, shard, codes):
        np.testing.assert_array_equal(reader.read(0, OLD).astype(int) - 1, labels[:OLD])
        if shard == self.n_shards - 1:
            raise OSError(28, "No space left on device")
        return written(self, shard, codes)

    monkeypatch.setattr(ensemble_writer.EnsembleWriter, "write", look)
    with pytest.raises(OSError, match="No space"):
        grow(tmp_path / "old.zarr", tmp_path / "e.zarr", tmp_path / "new.zarr", samples=labels[OLD:])
    np.testing.assert_array_equal(reader.read(0, OLD).astype(int) - 1, labels[:OLD])
    monkeypatch.setattr(ensemble_writer.EnsembleWriter, "write", written)
    grow(tmp_path / "old.zarr", tmp_path / "e.zarr", tmp_path / "new.zarr", samples=labels[OLD:])
    with pytest.raises(ReplacedError):
        reader.read(0, OLD)
    assert open_ensemble(str(tmp_path / "e.zarr")).n_samples == N


def test_grow__features_through_the_members_at_hand(tmp_path):
    rng = np.random.default_rng(0)
    points = pd.DataFrame(rng.normal(size=(N, 3)) + 5 * rng.integers(0, 3, (N, 1)), columns=list("abc"))
    points["kind"] = rng.choice(["x", "y"], N)
    points["name"] = [f"r{row}" for row in range(N)]
    points[:OLD].to_parquet(tmp_path / "old.parquet")
    points[OLD:].iloc[:, ::-1].to_csv(tmp_path / "new.csv", index=False)
    arguments = ["--k", 3, "--members", 6, "--id", "name", "--categories", "one-hot", "--base", "kmeans"]
    cehm("generate", tmp_path / "old.parquet", tmp_path / "e.zarr", *arguments, "--base", "mixture", "--quiet")
    shutil.copytree(tmp_path / "e.zarr", tmp_path / "before.zarr")
    cehm("consensus", tmp_path / "e.zarr", "--k", 3, "-o", tmp_path / "c.zarr", "--quiet")
    told = ["grow", tmp_path / "c.zarr", tmp_path / "e.zarr", "--features", tmp_path / "new.csv"]
    cehm(*told, "-o", tmp_path / "g.zarr", "--quiet")
    before, after = (open_ensemble(str(tmp_path / name)) for name in ("before.zarr", "e.zarr"))
    np.testing.assert_array_equal(after.read(0, OLD), before.read(0, OLD))
    assert after.n_samples == N
    assert after.read(OLD, N).min() > 0
    np.testing.assert_array_equal(after.fitted()[0]["slopes"], before.fitted()[0]["slopes"])
    # Fewer members hold those that are left, which label as before.
    cehm(
        *["grow", tmp_path / "g.zarr", tmp_path / "e.zarr", "--drop-members", "0,3"],
        *["--into", tmp_path / "f.zarr"],
        *["-o", tmp_path / "h.zarr", "--quiet"],
    )
    cehm(
        *["grow", tmp_path / "h.zarr", tmp_path / "f.zarr", "--features", tmp_path / "new.csv"],
        *["-o", tmp_path / "i.zarr", "--quiet"],
    )
    fewer = open_ensemble(str(tmp_path / "f.zarr"))
    np.testing.assert_array_equal(fewer.read(N, fewer.n_samples), after.read(OLD, N)[:, [1, 2, 4, 5]])
    assert open_consensus(str(tmp_path / "i.zarr")).facts["members"] == ["1", "2", "4", "5"]


def test_grow__members_that_were_appended_by_generate(tmp_path):
    points = np.random.default_rng(0).normal(size=(500, 3))
    generate(as_features(points), str(tmp_path / "e.zarr"), plan_members(5, 3, 6, 0), 0)
    CEHM(3, random_state=0).fit(tmp_path / "e.zarr", output=tmp_path / "c.zarr")
    generate(as_features(points), str(tmp_path / "e.zarr"), plan_members(2, 3, 6, 0, first=5), 0, append=True)
    outcome = grow(tmp_path / "c.zarr", tmp_path / "e.zarr", tmp_path / "g.zarr")
    assert outcome.consensus.chosen.problem.hyperedges.n_members == 7
    with pytest.raises(InputError, match="does not hold its fitted members"):
        grow(tmp_path / "g.zarr", tmp_path / "e.zarr", tmp_path / "h.zarr", features=points)


def test_grow__labels_never_seen_count_as_missing(tmp_path):
    labels = made_up(6)
    ingest(labels[:OLD], str(tmp_path / "e.zarr"))
    CEHM(4, random_state=0).fit(tmp_path / "e.zarr", output=tmp_path / "c.zarr")
    new = labels[OLD:].copy()
    new[:5, 0] = 77
    with pytest.warns(FeatureWarning, match="5 base labels of new rows are of clusters that no row had before"):
        grow(tmp_path / "c.zarr", tmp_path / "e.zarr", tmp_path / "g.zarr", samples=new)
    assert (open_ensemble(str(tmp_path / "e.zarr")).read(OLD, OLD + 5)[:, 0] == 0).all()


def test_grow__refusals(tmp_path):
    labels = made_up(7)
    place = {name: tmp_path / f"{name}.zarr" for name in ("e", "c", "g", "other")}
    ingest(labels[:OLD], str(place["e"]))
    ingest(labels[:OLD, ::-1], str(place["other"]))
    CEHM(4, random_state=0).fit(place["e"], output=place["c"])
    seal = open_ensemble(str(place["e"])).seal
    for how, said in (
        ({"samples": labels[OLD:], "members": labels}, "samples and members: one at a time"),
        ({"drop_members": ["2"]}, "would lose them"),
        ({"drop_members": ["99"], "into": tmp_path / "i.zarr"}, "member '99' is not in"),
        ({"drop_members": list("01234567"), "into": tmp_path / "i.zarr"}, "no member is left"),
        ({"samples": labels[OLD:, :5]}, "5 members, 8 were fitted"),
        ({"samples": labels[:0]}, "n_samples=0"),
        ({"members": labels[:10]}, "has 10 rows, the ensemble"),
        ({"members": pd.DataFrame({"3": labels[:OLD, 0], "x": labels[:OLD, 1]})}, "members 3 are in the ensemble"),
        ({"features": labels[OLD:]}, "does not hold its fitted members"),
        ({"into": tmp_path / "i.zarr"}, "nothing is added"),
    ):
        with pytest.raises(InputError, match=said):
            grow(place["c"], place["e"], place["g"], **how)
    with pytest.raises(StoreError, match=r"was made of .*: name that ensemble"):
        grow(place["c"], place["other"], place["g"], samples=labels[OLD:])
    assert open_ensemble(str(place["e"])).seal == seal
    assert not place["g"].exists()
    _, said = cehm("grow", place["c"], place["e"], "--samples", "x.npy", "-o", tmp_path / "g.csv", code=2)
    assert "ends in .zarr" in said
    _, said = cehm("grow", place["c"], place["e"], "-o", place["g"], "--memory", "10MiB", code=3)
    assert not place["g"].exists()
    with pytest.raises(StoreError, match="is finished"):  # before the ensemble grows
        grow(place["c"], place["e"], place["c"], samples=labels[OLD:])
    fine, memory = np.arange(OLD)[:, None].repeat(9, 1) % 700, resident_bytes() + (320 << 20)
    with pytest.raises(BudgetError, match="intersections"):  # of the consensus, and also before
        grow(place["c"], place["e"], place["g"], members=fine, memory=memory)
    assert open_ensemble(str(place["e"])).seal == seal


def test_fit__grow_from_refuses_what_does_not_fit(tmp_path):
    labels = made_up(8)
    CEHM(4, random_state=0).fit(labels, output=tmp_path / "c.zarr")
    with pytest.raises(InputError, match="n_clusters=5: the consensus it grows from has 4"):
        CEHM(5).fit(labels, grow_from=tmp_path / "c.zarr")
    with pytest.raises(InputError, match="variant='tau': the consensus it grows from is of variant='auto'"):
        CEHM(4, variant="tau").fit(labels, grow_from=tmp_path / "c.zarr")
    with pytest.raises(InputError, match="belonging='tau': the consensus it grows from has"):
        CEHM(4, belonging="tau").fit(labels, grow_from=tmp_path / "c.zarr")
    with pytest.raises(InputError, match="init: a consensus that grows has its start"):
        CEHM(4, init=[0, 1, 2, 3]).fit(labels, grow_from=tmp_path / "c.zarr")
    with pytest.raises(InputError, match="7 members without names"):
        CEHM(4).fit(labels[:, 1:], grow_from=tmp_path / "c.zarr")
    with pytest.raises(InputError, match="no base cluster of the consensus"):
        CEHM(4).fit(pd.DataFrame(labels).rename(columns="x{}".format), grow_from=tmp_path / "c.zarr")
    edit_facts(tmp_path / "c.zarr", label_values=[[0]])
    with pytest.raises(StoreError, match="counts do not fit"):
        CEHM(4).fit(labels, grow_from=tmp_path / "c.zarr")


def test_grow__an_edited_note_of_growth_is_noticed(tmp_path):
    labels = made_up(9)
    grown(tmp_path, labels, "samples")
    stored = open_ensemble(str(tmp_path / "e.zarr")).grown
    edit_facts(tmp_path / "e.zarr", grown={**stored, "rows": OLD - 10})
    with pytest.raises(StoreError, match="intersections are not those"):
        CEHM(4).fit(tmp_path / "e.zarr", grow_from=tmp_path / "old.zarr")
    edit_facts(tmp_path / "e.zarr", grown={**stored, "members": [99]})
    with pytest.raises(StoreError, match="what it grew out of is damaged"):
        CEHM(4).fit(tmp_path / "e.zarr", grow_from=tmp_path / "old.zarr")


def test_grow__weights_of_members_stay(tmp_path):
    labels = made_up(10)
    ingest(labels[:, :6], str(tmp_path / "e.zarr"))
    weights = [3.0, 1.0, 1.0, 2.0, 1.0, 0.5]
    CEHM(4, random_state=0, weights=weights).fit(tmp_path / "e.zarr", output=tmp_path / "c.zarr")
    grow(tmp_path / "c.zarr", tmp_path / "e.zarr", tmp_path / "g.zarr", members=labels[:, 6:])
    assert open_consensus(str(tmp_path / "g.zarr")).facts["identity"]["weights"] == [*weights, 1.0, 1.0]
    into = {"into": tmp_path / "f.zarr"}
    grow(tmp_path / "g.zarr", tmp_path / "e.zarr", tmp_path / "h.zarr", drop_members=["0", "7"], **into)
    assert open_consensus(str(tmp_path / "h.zarr")).facts["identity"]["weights"] == [*weights[1:], 1.0]
    by_cluster = np.linspace(1, 2, sum(len(np.unique(column[column >= 0])) for column in labels.T))
    CEHM(4, random_state=0, weights=by_cluster).fit(labels, output=tmp_path / "b.zarr")
    with pytest.raises(InputError, match="it grows only with one per member"):
        CEHM(4).fit(labels, grow_from=tmp_path / "b.zarr")


def test_grow__in_an_object_store(s3):
    labels = made_up(11, n=300)
    place = f"s3://{BUCKET}/growing"
    ingest(labels[:250], f"{place}/e.zarr", chunk_rows=40)
    CEHM(4, random_state=0).fit(f"{place}/e.zarr", output=f"{place}/c.zarr")
    for _ in range(2):  # the second time, the ensemble has grown
        grow(f"{place}/c.zarr", f"{place}/e.zarr", f"{place}/g.zarr", samples=labels[250:], overwrite=True)
        found = open_ensemble(f"{place}/e.zarr")
        np.testing.assert_array_equal(found.read(0, 300).astype(int) - 1, labels)
    wanted = CEHM(4).fit(labels, grow_from=f"{place}/c.zarr")
    np.testing.assert_array_equal(open_consensus(f"{place}/g.zarr").array("labels")[:], wanted.labels_)


def test_grow__of_very_many_members_some_are_compared(tmp_path, monkeypatch):
    for name, value in {"MOST_COMPARED": 30, "COMPARED": 20, "FEWEST_MEMBERS": 3, "FEWEST_A_CLUSTER": 1}.items():
        monkeypatch.setattr(shape, name, value)
    labels = made_up(12, members=12)
    ingest(labels[:OLD], str(tmp_path / "e.zarr"))
    CEHM(4, random_state=0).fit(tmp_path / "e.zarr", output=tmp_path / "c.zarr")
    assert open_consensus(str(tmp_path / "c.zarr")).facts["compared_members"] is not None
    grow(tmp_path / "c.zarr", tmp_path / "e.zarr", tmp_path / "g.zarr", samples=labels[OLD:])
    wanted = CEHM(4).fit(labels, grow_from=tmp_path / "c.zarr")
    np.testing.assert_array_equal(open_consensus(str(tmp_path / "g.zarr")).array("labels")[:], wanted.labels_)
    assert wanted.n_clusters_found_ == 4


def test_fit__a_dask_array_grows_where_it_is(tmp_path):
    labels = made_up(13)
    CEHM(4, random_state=0).fit(labels[:OLD], output=tmp_path / "c.zarr")
    lazy = CEHM(4).fit(da.from_array(labels, chunks=(250, -1)), grow_from=tmp_path / "c.zarr")
    np.testing.assert_array_equal(lazy.labels_.compute(), CEHM(4).fit(labels, grow_from=tmp_path / "c.zarr").labels_)


# One process that has everything loaded and no threads yet forks a child for every kill and one for the command after.
DRIVER = """
    import json, os, shutil, sys, warnings
    import numpy as np
    from cehm_dask import CEHM
    from cehm_dask.data import ensemble_writer
    from cehm_dask.data.consensus_store import open_consensus
    from cehm_dask.data.ensemble_store import open_ensemble
    from cehm_dask.data.ingest import ingest
    from cehm_dask.results.growing import grow
    from tests.results.test_growing import made_up

    warnings.simplefilter("ignore")
    folder, wanted_steps = sys.argv[1], sys.argv[2]
    ensemble_writer.CHUNK_BYTES = 8 * 64
    labels, old = made_up(14), f"{folder}/old"
    steps, last_step = 0, None
    BY_THE_CLOCK = 5  # steps that a busy machine may take more: locks and progress are renewed every few seconds

    def hook(event, args):
        "Every change of a file or folder is a step; before the last one, the process is gone."
        global steps
        if event == "open":
            changes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
        if changes and last_step is not None and folder in str(args[0]):
            steps += 1
            if steps == last_step:
                os._exit(9)

    sys.addaudithook(hook)

    def in_child(work):
        "What work gives, as JSON, in a process of its own; None if that was killed."
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            try:
                os.write(writer, json.dumps(work()).encode())
                os._exit(0)
            except BaseException as error:
                os.write(writer, json.dumps(repr(error)).encode())
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        os.wait()
        return json.loads(said) if said else None

    def begin():
        ingest(labels[:800], f"{old}/e.zarr")
        CEHM(4, random_state=0).fit(f"{old}/e.zarr", output=f"{old}/c.zarr", client=False)

    def grown():
        grow(f"{folder}/now/c.zarr", f"{folder}/now/e.zarr", f"{folder}/now/g.zarr", samples=labels[800:])

    def seen():
        ensemble = open_ensemble(f"{folder}/now/e.zarr")
        codes = ensemble.read(0, ensemble.n_samples).astype(int) - 1
        return len(codes) if np.array_equal(codes, labels[: len(codes)]) else "other labels"

    def killed(step):
        global last_step
        last_step = step
        grown()
        return steps

    def again():
        try:
            grown()
        except OSError as error:  # it was killed at the very end
            assert "is finished" in str(error), error
        return [seen(), open_consensus(f"{folder}/now/g.zarr").array("labels")[:].tolist()]

    def start_over():
        shutil.rmtree(f"{folder}/now", ignore_errors=True)
        shutil.copytree(old, f"{folder}/now")

    assert in_child(begin) is None
    start_over()
    wanted = in_child(again)
    assert wanted[0] == 900, wanted
    start_over()
    total = in_child(lambda: killed(0))
    assert isinstance(total, int), total
    chosen = range(1, total + 1) if wanted_steps == "all" else np.linspace(1, total, 10).astype(int).tolist()
    found = {"steps": total, "old": 0, "new": 0, "wrong": []}
    for step in chosen:
        start_over()
        if in_child(lambda: killed(step)) is not None and step <= total - BY_THE_CLOCK:
            found["wrong"].append(["not killed", step])
        rows = in_child(seen)
        if rows not in (800, 900):
            found["wrong"].append(["read after the kill", step, rows])
        found["old" if rows == 800 else "new"] += 1
        if (after := in_child(again)) != wanted:
            found["wrong"].append(["the same command again", step, str(after)[:300]])
    print(json.dumps(found))
"""


@pytest.mark.parametrize("steps", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_grow__killed_at_a_step_and_given_again(tmp_path, steps):
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path), steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(found)
    assert found["wrong"] == []
    assert min(found["old"], found["new"]) > 0
