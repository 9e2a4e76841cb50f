"""Nothing silently wrong on disk: a flipped byte, a swapped, foreign or missing file is named by whoever reads it."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from cehm_dask import CEHM
from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data.attributes import any_facts
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.model_store import write_prediction
from cehm_dask.data.synth import Synth
from cehm_dask.data.verification import verify_store
from cehm_dask.errors import StoreError
from cehm_dask.pipeline import outputs
from cehm_dask.pipeline.recipe import parse
from cehm_dask.pipeline.run import run
from tests.conftest import cehm, edit_facts, without_digests

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

MADE = Synth(1000, 5, n_classes=3, k_min=3, k_max=6)
RECIPE = """\
features: {sklearn: iris}
ensemble: {members: 6, k_max: 8}
consensus: {k: 3}
truth: {column: target}
output: out
export: csv
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with one of each store, of several shards, and a run directory."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cehm_dask.data.ensemble_writer.CHUNK_BYTES", 300)
        MADE.write(str(folder / "ensemble.zarr"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cehm_dask.job.RESULT_CHUNK_ROWS", 300)
        CEHM(3, variant="released", random_state=0).fit(MADE.arrays()[0], output=folder / "consensus.zarr")
    rows = np.random.default_rng(0).normal(size=(60, 3))
    ClusterEnsemble(3, members=4, random_state=0).fit(rows).save(folder / "model.zarr")
    labels = np.arange(9, dtype=np.int16)
    write_prediction(str(folder / "prediction.zarr"), labels, labels / 9, labels / 9, overwrite=False)
    before = os.getcwd()
    os.chdir(folder)
    try:
        run(parse(RECIPE))
    finally:
        os.chdir(before)
    return folder


STORES = ["ensemble.zarr", "consensus.zarr", "model.zarr", "prediction.zarr"]


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("cehm_dask.data.ensemble_store.time.sleep", lambda _seconds: None)
    return tmp_path / "here"


def flip(path, place=None, bit=1):
    content = bytearray(path.read_bytes())
    place = len(content) // 2 if place is None else place
    content[place] ^= bit
    path.write_bytes(content)


def swap(one, other):
    first, second = one.read_bytes(), other.read_bytes()
    assert first != second
    one.write_bytes(second)
    other.write_bytes(first)


def said(place, code):
    out, err = cehm("verify", place, code=code)
    return " ".join((out + err).split())


# --- stores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_verify__whole_store_in_one_line(folder, store):
    out, err = cehm("verify", store)
    assert out.endswith("shards and files are what was written\n")
    assert out.count("\n") == 1
    assert not err
    assert cehm("verify", store, "--quiet") == ("", "")


def test_arrays__all_have_checksums_and_names_of_dimensions(made):
    for store in STORES:
        for name, array in zarr.open_group(made / store, mode="r").arrays():
            metadata = json.dumps(array.metadata.to_dict(), default=str)
            assert "crc32c" in metadata, (store, name)
            names = array.metadata.dimension_names
            assert len(set(names)) == array.ndim, (store, name)
    dimensions = {}
    for name, array in zarr.open_group(made / "consensus.zarr", mode="r").arrays():
        for dimension, size in zip(array.metadata.dimension_names, array.shape, strict=True):
            assert dimensions.setdefault(dimension, size) == size, name  # or xarray would refuse the store
    assert {"sample", "cluster", "hyperedge", "member"} <= dimensions.keys()


def test_xarray__opens_what_we_write(made):
    xarray = pytest.importorskip("xarray")
    for store in STORES:
        opened = xarray.open_zarr(made / store, consolidated=False, zarr_format=3)
        assert opened["labels"].shape if "labels" in opened else store == "model.zarr"


@pytest.mark.parametrize("store", STORES)
def test_flips__every_file_of_every_store(folder, store):
    """Every flipped byte is named by verify; in the attributes, one that changes nothing they say may pass."""
    rng = random.Random(0)
    pristine = any_facts(store)
    for path in sorted(path for path in Path(store).rglob("*") if path.is_file()):
        content = path.read_bytes()
        places = range(len(content)) if len(content) < 3 else rng.sample(range(len(content)), 3)
        for place in places:
            flip(path, place, 1 << rng.randrange(8))
            found = verify_store(store)
            if not found.faults:
                assert path == Path(store) / "zarr.json"
                assert any_facts(store) == pristine
            path.write_bytes(content)
    assert verify_store(store).faults == []


@pytest.mark.parametrize("store", STORES)
def test_missing__every_file_of_every_store(folder, store):
    for path in sorted(path for path in Path(store).rglob("*") if path.is_file()):
        content = path.read_bytes()
        path.unlink()
        assert verify_store(store).faults, path
        path.write_bytes(content)


@pytest.mark.parametrize("damage", ["flipped", "missing", "swapped", "foreign"])
@pytest.mark.parametrize("scheme", ["", "file://"])
def test_ensemble__damaged_shard_is_named_by_verify_and_refused_by_a_consensus(folder, damage, scheme):
    one, other = (Path(f"ensemble.zarr/labels/c/{shard}/0") for shard in (1, 3))
    if damage == "flipped":
        flip(one, 11)
    elif damage == "missing":
        one.unlink()
    elif damage == "swapped":
        swap(one, other)
    else:
        Synth(1000, 5, n_classes=3, k_min=3, k_max=6, seed=5).write("foreign.zarr")
        ensemble = open_ensemble("ensemble.zarr")
        zarr.open_array("ensemble.zarr/labels", mode="r+")[128:256] = np.minimum(
            open_ensemble("foreign.zarr").read(128, 256), np.array(ensemble.widths) - 1
        )
    first, stop = (open_ensemble("ensemble.zarr").shard_rows * shard for shard in (1, 2))
    words = said("ensemble.zarr", 2)
    assert f"shard 1 of labels (rows {first} to {stop - 1})" in words
    assert ("shard 3 of labels" in words) == (damage == "swapped")
    assert "shard 2 of labels" not in words
    with pytest.raises(StoreError, match=r"rows \d+ to \d+ of labels .* cannot be read"):
        CEHM(3, random_state=0).fit(f"{scheme}{folder}/ensemble.zarr" if scheme else "ensemble.zarr")


def test_ensemble__without_digests_foreign_shards_show_in_the_sizes(folder):
    """Of the version before: the first sweep counts what the store says it holds."""
    without_digests("ensemble.zarr")
    Synth(1000, 5, n_classes=3, k_min=3, k_max=6, seed=5).write("foreign.zarr")
    widths = np.array(open_ensemble("ensemble.zarr").widths)
    rows = np.minimum(open_ensemble("foreign.zarr").read(128, 256), widths - 1)
    zarr.open_array("ensemble.zarr/labels", mode="r+")[128:256] = rows
    with pytest.raises(StoreError, match=r"\d+ of \d+ base clusters do not have their recorded size"):
        CEHM(3, random_state=0).fit("ensemble.zarr")
    assert "do not have their recorded sizes" in said("ensemble.zarr", 2)


@pytest.mark.parametrize("store", STORES)
def test_old__stores_without_digests_are_readable_and_verify_says_so(folder, store):
    wanted = open_consensus("consensus.zarr").array("labels")[:] if store == "consensus.zarr" else None
    without_digests(store)
    assert "no digests recorded" in said(store, 0)
    if wanted is not None:
        np.testing.assert_array_equal(open_consensus(store).array("labels")[:], wanted)
    if store == "ensemble.zarr":
        assert CEHM(3, random_state=0).fit(store).labels_.shape == (1000,)
    if store == "model.zarr":
        assert ClusterEnsemble.load(store).predict(np.zeros((2, 3))).shape == (2,)


@pytest.mark.parametrize("name", ["labels", "margin", "confidence", "counts", "weights", "medoids", "sizes"])
def test_consensus__no_flip_in_an_array_goes_unseen_by_readers(folder, name):
    for path in sorted(path for path in Path("consensus.zarr", name).rglob("*") if path.is_file()):
        for place in range(path.stat().st_size) if path.stat().st_size < 60 else range(0, path.stat().st_size, 17):
            content = path.read_bytes()
            flip(path, place, 0x10)
            with pytest.raises(StoreError, match=rf"consensus\.zarr: {path.relative_to('consensus.zarr')} is damaged"):
                open_consensus("consensus.zarr").array(name)[...]
            path.write_bytes(content)


@pytest.mark.parametrize("name", ["labels", "margin", "confidence"])
def test_consensus__swapped_foreign_and_missing_chunks_are_seen_by_readers(folder, name):
    chunks = [Path("consensus.zarr", name, "c", str(number)) for number in range(2)]
    swap(*chunks)
    with pytest.raises(StoreError, match=rf"{name}/c/1 is damaged"):
        open_consensus("consensus.zarr").array(name)[300:400]
    swap(*chunks)
    chunks[1].unlink()
    with pytest.raises(StoreError, match=rf"{name}/c/1 is missing"):
        open_consensus("consensus.zarr").array(name)[300:400]
    assert len(open_consensus("consensus.zarr").array(name)[:300]) == 300
    assert f"{name}/c/1 is missing" in said("consensus.zarr", 2)


def test_consensus__chunk_of_fill_values_is_written_and_missed(tmp_path):
    """Zarr would not write it, and read it where it is gone."""
    labels = np.full((700, 3), -1)
    labels[:300] = MADE.arrays()[0][:300, :3]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cehm_dask.job.RESULT_CHUNK_ROWS", 300)
        CEHM(2, random_state=0).fit(labels, output=tmp_path / "c.zarr")
    np.testing.assert_array_equal(open_consensus(str(tmp_path / "c.zarr")).array("labels")[300:600], -1)
    (tmp_path / "c.zarr/labels/c/1").unlink()
    with pytest.raises(StoreError, match="labels/c/1 is missing"):
        open_consensus(str(tmp_path / "c.zarr")).array("labels")[:]


def test_intersections__flipped_on_disk_are_never_gone_on_with(folder):
    def interrupt(event):
        if event.round == 2:
            raise KeyboardInterrupt

    fit = CEHM(3, variant="released", random_state=0).fit
    with pytest.raises(KeyboardInterrupt):
        fit("ensemble.zarr", output="c.zarr", progress=interrupt)
    path = Path("c.zarr/intersections/c/0/0")
    content = path.read_bytes()
    for place in range(0, len(content), 7):
        flip(path, place)
        with pytest.raises(StoreError, match="intersections/c/0/0 is damaged"):
            fit("ensemble.zarr", output="c.zarr")
        path.write_bytes(content)
    edit_facts("c.zarr", n_silent=1)  # with a digest that fits
    root = Path("c.zarr/zarr.json")
    root.write_text(root.read_text().replace('"n_silent": 1', '"n_silent": 0'))
    with pytest.raises(StoreError, match=r"attributes in zarr\.json are damaged"):
        fit("ensemble.zarr", output="c.zarr")


@pytest.mark.parametrize("place", ["nothing.zarr", "out/labels.csv", "out"])
def test_verify__of_what_is_no_store(folder, place):
    if place == "out":
        Path("out/run.json").unlink()
    assert "not found" in said(place, 2)


def test_verify__half_written(folder):
    edit_facts("ensemble.zarr", complete=False)
    assert "half-written" in said("ensemble.zarr", 2)


# --- runs --------------------------------------------------------------------------------------------------------

FILES = ["profiles.json", "scores.json", "labels.csv", "report.html", "recipe.yaml"]


def became():
    """The steps that a further run does again."""
    return {name for name, what in run(parse(RECIPE)).steps.items() if what == "done"}


def test_run__verified_in_one_line(folder):
    out, _ = cehm("verify", "out")
    names = "recipe.yaml, ensemble.zarr, consensus.zarr, profiles.json, scores.json, labels.csv, report.html"
    assert out == f"out: {names} are what was written\n"
    assert became() == set()


@pytest.mark.parametrize("name", FILES)
def test_run__changed_file_is_named(folder, name):
    times = Path("out", name).stat()
    flip(Path("out", name))
    os.utime(Path("out", name), ns=(times.st_atime_ns, times.st_mtime_ns))
    assert f"out/{name} is not what was written" in said("out", 2)


STEP_OF = {"profiles.json": "profile", "scores.json": "evaluate", "labels.csv": "export", "report.html": "report"}


@pytest.mark.parametrize("name", STEP_OF)
@pytest.mark.parametrize("change", ["flipped", "flipped at the same time", "cut short", "emptied"])
def test_run__step_whose_file_changed_is_done_again(folder, name, change):
    path = Path("out", name)
    times, content = path.stat(), path.read_bytes()
    if change.startswith("flipped"):
        flip(path)
    else:
        path.write_bytes(content[: len(content) // 2 if change == "cut short" else 0])
    if change == "flipped at the same time":
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert became() == {STEP_OF[name]}
    log = Path("out/run.log").read_text()
    assert f"{STEP_OF[name]}: recomputed, because {folder}/out/{name}" in log
    assert name == "report.html" or path.read_bytes() == content
    assert became() == set()


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("ensemble.zarr/labels/c/0/0", "ensemble"),
        ("ensemble.zarr/sizes/c/0", "ensemble"),
        ("ensemble.zarr/zarr.json", "ensemble"),
        ("consensus.zarr/margin/c/0", "consensus"),
        ("consensus.zarr/labels/zarr.json", "consensus"),
        ("consensus.zarr/zarr.json", "consensus"),
    ],
)
@pytest.mark.parametrize("change", ["flipped", "missing"])
def test_run__step_whose_store_changed_is_done_again(folder, path, step, change):
    wanted = open_consensus("out/consensus.zarr").array("labels")[:]
    flip(Path("out", path)) if change == "flipped" else Path("out", path).unlink()
    assert said("out", 2)
    assert step in became()
    assert f"{step}: recomputed, because " in Path("out/run.log").read_text()
    np.testing.assert_array_equal(open_consensus("out/consensus.zarr").array("labels")[:], wanted)
    assert became() == set()
    said("out", 0)


def test_run__replaced_store_is_not_taken_for_its_own(folder):
    shutil.rmtree("out/consensus.zarr")
    shutil.copytree("consensus.zarr", "out/consensus.zarr")
    assert "is not the store that was written" in said("out", 2)
    assert "consensus" in became()


def test_run__moved_is_looked_through_once(folder, monkeypatch):
    for path in Path("out").rglob("*"):
        os.utime(path)
    looked = []
    monkeypatch.setattr(outputs, "verify_store", lambda *args: (looked.append(args), verify_store(*args))[1])
    assert became() == set()
    assert len(looked) == 2
    assert became() == set()
    assert len(looked) == 2


def test_run__large_files_are_not_read_each_time(folder, monkeypatch):
    monkeypatch.setattr(outputs, "SMALL_BYTES", 10)
    read, digests = [], outputs._digest
    monkeypatch.setattr(outputs, "_digest", lambda url: (read.append(url), digests(url))[1])
    assert became() == set()
    assert {Path(url).name for url in read} == {"recipe.yaml"}  # written anew each time
    flip(Path("out/labels.csv"))
    assert became() == {"export"}


def test_run__json_damaged_is_said(folder):
    path = Path("out/run.json")
    content = path.read_bytes()
    rng = random.Random(1)
    state = json.loads(content)
    for place in [*rng.sample(range(len(content)), 40), content.index(b'"seconds": ') + 12]:
        flip(path, place, 1 << rng.randrange(7))
        try:
            found = json.loads(path.read_bytes())
        except ValueError:
            found = {"digest": "unreadable"}
        # One flip in the name of the digest leaves all else as it was: taken for one of an earlier version.
        if found != state and "digest" in found:
            _, err = cehm("run", "out/recipe.yaml", "--quiet", code=2)
            assert "run.json" in err
            assert "run.json" in said("out", 2)
        path.write_bytes(content)


def test_run__of_an_earlier_version_is_taken_up(folder):
    path = Path("out/run.json")
    state = json.loads(path.read_text())
    del state["digest"], state["recipe"]
    for note in state["steps"].values():
        del note["outputs"]
    path.write_text(json.dumps(state))
    assert "no digests recorded" in said("out", 0)
    assert became() == set()
    said("out", 0)
    assert "consensus.zarr" in json.loads(path.read_text())["steps"]["consensus"]["outputs"]
