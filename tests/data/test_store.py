"""Stores: what is written is read back; what is damaged, half-made, foreign or in use is refused in plain words."""

import json
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data import attributes, ensemble_store
from cehm_dask.data.attributes import read_facts
from cehm_dask.data.consensus_store import ConsensusStore, ResultWriter, open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ensemble_writer import create_ensemble
from cehm_dask.data.locks import Lock
from cehm_dask.data.model_store import save_model, write_prediction
from cehm_dask.data.seals import sealed
from cehm_dask.data.shards import Shards
from cehm_dask.errors import BusyError, StoreError
from tests.conftest import edit_facts, without_digests

IDENTITY = {"n_clusters": [3], "seed": 0}


def write(url, codes, widths, **options):
    writer = create_ensemble(str(url), len(codes), widths, **options)
    digests = [writer.write(shard, codes[slice(*writer.rows(shard))]) for shard in range(writer.n_shards)]
    sizes = [np.bincount(column, minlength=width)[1:] for column, width in zip(codes.T, widths, strict=True)]
    writer.finish(digests, sizes)
    return open_ensemble(str(url))


@pytest.fixture
def codes():
    return np.random.default_rng(0).integers(0, 7, (100, 3)).astype(np.uint8)


@pytest.fixture
def ensemble(codes, tmp_path):
    """Ten chunks of ten rows in three shards, the last of them half full."""
    return write(tmp_path / "e.zarr", codes, [7] * 3, chunk_rows=10)


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch):
    """Waits between the tries of a read, noted instead of waited."""
    waits = []
    monkeypatch.setattr(ensemble_store.time, "sleep", waits.append)
    return waits


def shard_file(ensemble, shard):
    return Path(ensemble.url) / "labels" / "c" / str(shard) / "0"


def snapshot(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- written and read back ---------------------------------------------------------------------------------------


@given(data=st.data(), n_samples=st.integers(1, 150), members=st.integers(1, 4), width=st.sampled_from([2, 256, 257]))
@settings(max_examples=50)
def test_read__any_slice_as_written_and_as_zarr_reads_it(tmp_path_factory, data, n_samples, members, width):
    chunk_rows = data.draw(st.integers(1, 40))
    first, last = sorted(data.draw(st.integers(0, n_samples)) for _ in range(2))
    codes = np.random.default_rng(n_samples).integers(0, width, (n_samples, members))
    codes[first:last] = 0  # rows that nobody says anything about: whole chunks and shards of zeros
    url = tmp_path_factory.mktemp("any") / "e.zarr"
    ensemble = write(url, codes, [width] * members, chunk_rows=chunk_rows)

    itself = zarr.open_array(url / "labels", mode="r")
    assert itself.dtype == (np.uint8 if width <= 256 else np.uint16)
    assert itself.chunks[0] == ensemble.chunk_rows == chunk_rows
    np.testing.assert_array_equal(itself[:], codes)
    for _ in range(5):
        start, stop = sorted(data.draw(st.integers(0, n_samples)) for _ in range(2))
        rows = ensemble.read(start, stop)
        assert rows.dtype == itself.dtype
        assert rows.tobytes() == itself[start:stop].tobytes()


def test_read__default_chunks_hold_as_many_rows_as_two_megabytes(tmp_path):
    codes = np.ones((90_000, 40), np.uint8)
    ensemble = write(tmp_path / "e.zarr", codes, [2] * 40)
    assert ensemble.chunk_rows == 1 << 15
    assert ensemble.shard_rows == 4 * ensemble.chunk_rows
    np.testing.assert_array_equal(ensemble.read(30_000, 70_000), codes[30_000:70_000])


@pytest.mark.parametrize("width", [200, 300, 70_000])
def test_read__local_shards_are_read_directly_and_others_left_to_zarr(tmp_path, width):
    codes = np.random.default_rng(0).integers(0, width, (90, 3))
    ensemble = write(tmp_path / "e.zarr", codes, [width] * 3, chunk_rows=10)
    assert ensemble._shards is not None
    without_digests(ensemble.url)
    array = zarr.open_array(f"{ensemble.url}/labels", mode="r")
    zarr.create_array(f"{ensemble.url}/labels", data=array[:], chunks=(10, 3), overwrite=True)  # compressed, unsharded
    other = open_ensemble(ensemble.url)
    assert other._shards is None
    np.testing.assert_array_equal(other.read(5, 77), codes[5:77])


@pytest.mark.parametrize(
    "layout",
    [
        {"compressors": [ZstdCodec(), Crc32cCodec()]},
        {"compressors": None},
        {"compressors": [Crc32cCodec()], "serializer": BytesCodec(endian="big")},
        {"compressors": [Crc32cCodec()], "fill_value": 1},
        {"compressors": [Crc32cCodec()], "chunk_key_encoding": {"name": "default", "separator": "."}},
        {"compressors": [Crc32cCodec()], "shards": {"shape": (40, 3), "index_location": "start"}},
    ],
    ids=["compressed", "no checksums", "big-endian", "other fill value", "other file names", "index first"],
)
def test_read__shards_with_other_codecs_are_left_to_zarr(tmp_path, layout):
    codes = np.random.default_rng(0).integers(0, 300, (90, 3)).astype(np.uint16)
    ensemble = write(tmp_path / "e.zarr", codes, [300] * 3, chunk_rows=10)
    without_digests(ensemble.url)
    layout = {"shards": (40, 3), "chunks": (10, 3), "fill_value": 0, **layout}
    zarr.create_array(f"{ensemble.url}/labels", data=codes, overwrite=True, **layout)
    other = open_ensemble(ensemble.url)
    assert other._shards is None
    np.testing.assert_array_equal(other.read(5, 77), codes[5:77])


def test_read__through_zarr_alone(ensemble, codes):
    """A URL is read by the Zarr library, as from an object store."""
    there = open_ensemble(f"file://{ensemble.url}")
    assert there._shards is None
    for start, stop in ((0, 100), (35, 45), (99, 100)):
        np.testing.assert_array_equal(there.read(start, stop), codes[start:stop])


def test_read__chunks_that_another_program_left_out(ensemble, codes):
    """By default, Zarr writes no chunk of zeros."""
    codes[50:60] = codes[70:80] = 0
    zarr.open_array(f"{ensemble.url}/labels", mode="r+")[40:80] = codes[40:80]
    assert shard_file(ensemble, 1).stat().st_size < shard_file(ensemble, 0).stat().st_size
    with pytest.raises(StoreError, match="chunk 5 is damaged: its shard is not the one that was written there"):
        ensemble.read(0, 100)
    without_digests(ensemble.url)
    np.testing.assert_array_equal(open_ensemble(ensemble.url).read(0, 100), codes)


def test_ensemble__facts(codes, tmp_path):
    values = [np.arange(6) * 10, np.array(list("abcdef")), np.array([0, 1, 2, 3, 4, 2**64 - 1], np.uint64)]
    facts = {"names": ["x", "y", "z"], "values": values, "members": [{"k": 6}] * 3, "source": "somewhere"}
    ensemble = write(tmp_path / "e.zarr", codes, [7] * 3, truth=True, **facts)
    assert ensemble.names == ("x", "y", "z")
    assert ensemble.members == ({"k": 6},) * 3
    assert ensemble.source == "somewhere"
    for found, known in zip(ensemble.values, values, strict=True):
        assert found.dtype.kind in (known.dtype.kind, "i", "u")
        assert found.tolist() == known.tolist()
    np.testing.assert_array_equal(ensemble.sizes, np.concatenate([np.bincount(c, minlength=7)[1:] for c in codes.T]))
    assert (ensemble.truth == 0).all()


def test_fingerprint__of_the_labels(ensemble, codes, tmp_path):
    same = write(tmp_path / "same.zarr", codes, [7] * 3, chunk_rows=10)
    codes[42, 1] ^= 1
    other = write(tmp_path / "other.zarr", codes, [7] * 3, chunk_rows=10)
    assert same.fingerprint == ensemble.fingerprint != other.fingerprint


def test_pickle__small_and_opened_anew(tmp_path):
    codes = np.random.default_rng(0).integers(0, 51, (5000, 30)).astype(np.uint8)
    names = [f"member number {j}" for j in range(30)]
    ensemble = write(tmp_path / "e.zarr", codes, [51] * 30, names=names, values=[np.arange(50) * 1000] * 30)
    sent = pickle.dumps(ensemble)
    assert len(sent) < 20_000
    ensemble.read(0, 5000)
    assert pickle.dumps(ensemble) == sent  # what it keeps open does not travel
    there = pickle.loads(sent)
    np.testing.assert_array_equal(there.read(100, 4000), codes[100:4000])
    assert there.names == ensemble.names


def test_pickle__found_from_another_folder(codes, tmp_path, monkeypatch):
    """Workers may have been started elsewhere."""
    monkeypatch.chdir(tmp_path)
    ensemble = write("e.zarr", codes, [7] * 3)
    held = ConsensusStore("c.zarr", IDENTITY)
    held.open(overwrite=False)
    sent = pickle.dumps((ensemble, create_ensemble("new.zarr", 100, [7] * 3), held.create_result(100, 50)))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    ensemble, writer, result = pickle.loads(sent)
    np.testing.assert_array_equal(ensemble.read(0, 100), codes)
    writer.write(0, codes)
    result.write(50, np.zeros(50, np.int16), np.zeros(50), np.zeros(50))
    held.close()


# --- damaged -----------------------------------------------------------------------------------------------------


def test_damaged__no_flipped_byte_goes_unseen(ensemble):
    path = shard_file(ensemble, 1)
    whole = path.read_bytes()
    assert len(whole) == 4 * (30 + 4) + 4 * 16 + 4  # chunks and index, each with its checksum
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(StoreError, match="damaged"):
            replace(ensemble).read(40, 80)


def test_damaged__chunk_is_named_and_the_others_are_read(ensemble, codes):
    path = shard_file(ensemble, 1)
    content = bytearray(path.read_bytes())
    content[34 + 7] ^= 1  # in the second chunk of the second shard
    path.write_bytes(content)
    with pytest.raises(StoreError) as error:
        ensemble.read(50, 60)
    for word in (ensemble.url, "rows 50 to 59", "chunks 5 to 5", "chunk 5 in", "damaged", "import the labels again"):
        assert word in str(error.value)
    np.testing.assert_array_equal(ensemble.read(0, 50), codes[:50])
    np.testing.assert_array_equal(ensemble.read(60, 100), codes[60:])


def test_damaged__seen_through_zarr_too(ensemble):
    path = shard_file(ensemble, 1)
    content = bytearray(path.read_bytes())
    content[34 + 7] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"rows 50 to 59 .* checksum"):
        open_ensemble(f"file://{ensemble.url}").read(50, 60)


@pytest.mark.parametrize("length", [0, 3, 67, 68, 100, 203])
def test_damaged__shard_cut_short(ensemble, length):
    os.truncate(shard_file(ensemble, 0), length)
    with pytest.raises(StoreError, match="rows 0 to 9 of labels"):
        ensemble.read(0, 10)


def test_damaged__shard_cut_short_after_its_index_was_read(ensemble):
    ensemble.read(0, 10)
    os.truncate(shard_file(ensemble, 0), 34 + 20)
    with pytest.raises(StoreError, match=r"chunk 1 in .* is cut short"):
        ensemble.read(10, 20)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_damaged__shard_missing(ensemble, codes, scheme):
    # Zarr itself would read it as zeros: "nobody says anything".
    shard_file(ensemble, 1).unlink()
    there = open_ensemble(scheme + ensemble.url)
    for start, stop in ((40, 50), (30, 90), (0, 100)):
        with pytest.raises(StoreError, match=r"No such file|shard 1 is missing"):
            there.read(start, stop)
    np.testing.assert_array_equal(there.read(20, 40), codes[20:40])


def failing(monkeypatch, times):
    read, calls = Shards.read, []

    def fail(self, *rows):
        calls.append(rows)
        if len(calls) <= times:
            raise OSError(5, "Input/output error")
        return read(self, *rows)

    monkeypatch.setattr(Shards, "read", fail)
    return calls


def test_read__that_fails_once_is_tried_again(ensemble, codes, no_sleep, monkeypatch):
    calls = failing(monkeypatch, times=ensemble_store.READ_TRIES - 1)
    np.testing.assert_array_equal(ensemble.read(20, 40), codes[20:40])
    assert len(calls) == ensemble_store.READ_TRIES
    assert no_sleep == sorted(no_sleep)  # each wait longer than the one before
    assert no_sleep[0] > 0


def test_read__that_fails_for_good_is_named(ensemble, monkeypatch):
    calls = failing(monkeypatch, times=99)
    with pytest.raises(StoreError, match=r"rows 20 to 39 .* after 3 tries: .*Input/output error"):
        ensemble.read(20, 40)
    assert len(calls) == ensemble_store.READ_TRIES == 3


# --- refused -----------------------------------------------------------------------------------------------------


def test_open__half_written(codes, tmp_path):
    url = str(tmp_path / "e.zarr")
    create_ensemble(url, 100, [7] * 3, chunk_rows=10).write(0, codes[:40])
    with pytest.raises(StoreError, match=r"half-written; start the command that made it again"):
        open_ensemble(url)
    assert read_facts(url)["complete"] is False


def test_open__another_version(ensemble):
    edit_facts(ensemble.url, version=99)
    with pytest.raises(StoreError, match="version 99, this program reads version 1; create it again"):
        open_ensemble(ensemble.url)


def test_open__another_kind(ensemble, tmp_path):
    with pytest.raises(StoreError, match="holds ensemble, expected consensus"):
        open_consensus(ensemble.url)
    held = ConsensusStore(str(tmp_path / "c.zarr"), IDENTITY)
    held.open(overwrite=False)
    held.close()
    with pytest.raises(StoreError, match="holds consensus, expected ensemble; import labels with 'cehm import'"):
        open_ensemble(held.url)


@pytest.mark.parametrize("opened", [open_ensemble, open_consensus, read_facts])
def test_open__nothing_or_something_else(tmp_path, opened):
    with pytest.raises(StoreError, match=r"nothing\.zarr: not found"):
        opened(str(tmp_path / "nothing.zarr"))
    (tmp_path / "folder.zarr").mkdir()
    with pytest.raises(StoreError, match=r"folder\.zarr: not found"):
        opened(str(tmp_path / "folder.zarr"))
    zarr.create_array(tmp_path / "array.zarr", shape=(3, 2), dtype=int)
    with pytest.raises(StoreError, match="a plain Zarr array; import its labels"):
        opened(str(tmp_path / "array.zarr"))
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    with pytest.raises(StoreError, match=r"another kind of Zarr data|neither an ensemble nor a consensus"):
        opened(str(tmp_path / "group.zarr"))
    (tmp_path / "group.zarr" / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match=r"zarr.json is damaged .* create the store again"):
        opened(str(tmp_path / "group.zarr"))


@pytest.mark.parametrize(
    ("shard", "shape"),
    [(0, (39, 3)), (0, (41, 3)), (0, (40, 2)), (0, (120,)), (2, (40, 3)), (3, (0, 3))],
    ids=["short", "long", "narrow", "flat", "beyond the end", "no such shard"],
)
def test_write__refuses_what_is_not_a_whole_shard(tmp_path, shard, shape):
    writer = create_ensemble(str(tmp_path / "e.zarr"), 100, [7] * 3, chunk_rows=10)
    with pytest.raises(ValueError, match=rf"shard {shard} "):
        writer.write(shard, np.ones(shape, np.uint8))
    assert not list((tmp_path / "e.zarr" / "labels").glob("c/**/*"))


def test_result__refuses_a_start_inside_a_chunk(tmp_path):
    held = ConsensusStore(str(tmp_path / "c.zarr"), IDENTITY)
    held.open(overwrite=False)
    writer = held.create_result(100, 40)
    with pytest.raises(ValueError, match="row 20 is not the start of a chunk of 40 rows"):
        writer.write(20, np.zeros(20, np.int16), np.zeros(20), np.zeros(20))
    writer.write(40, np.arange(40, dtype=np.int16), np.full(40, 0.25), np.full(40, 0.5))
    held.finish({})
    held.close()
    found = open_consensus(held.url)
    expected = np.full(100, -1)
    expected[40:80] = np.arange(40)
    np.testing.assert_array_equal(found.array("labels")[:], expected)
    assert found.array("margin")[41] == 0.25


def test_result__writer_is_small_to_send(tmp_path):
    writer = ResultWriter(str(tmp_path / "c.zarr"), 40)
    assert len(pickle.dumps(writer)) < 1000
    assert pickle.loads(pickle.dumps(writer)) == writer


# --- what is there already ---------------------------------------------------------------------------------------


def test_create__keeps_what_exists_unless_asked(ensemble, codes):
    before = snapshot(Path(ensemble.url))
    with pytest.raises(StoreError, match="exists: choose another name, or pass overwrite=True"):
        create_ensemble(ensemble.url, 10, [2])
    assert snapshot(Path(ensemble.url)) == before
    smaller = write(ensemble.url, codes[:25, :2], [7] * 2, chunk_rows=30, overwrite=True)
    np.testing.assert_array_equal(smaller.read(0, 25), codes[:25, :2])


def foreign_folder(path):
    (path / "photos").mkdir(parents=True)
    (path / "photos" / "cat.jpg").write_text("irreplaceable")


def foreign_group(path):
    zarr.open_group(path, mode="w").create_array("x", shape=(3,), dtype=int)[:] = 7


def foreign_array(path):
    zarr.create_array(path, shape=(3, 2), dtype=int)[:] = 7


def foreign_file(path):
    path.write_text("not a folder")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("foreign", [foreign_folder, foreign_group, foreign_array, foreign_file])
def test_foreign__is_never_touched(tmp_path, foreign, overwrite):
    """Not even with overwrite: that is for stores of the same kind."""
    place = tmp_path / "mine.zarr"
    foreign(place)
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match="exists and is no ensemble store"):
        create_ensemble(str(place), 10, [2], overwrite=overwrite)
    with pytest.raises(StoreError, match="exists and is no consensus store"):
        ConsensusStore(str(place), IDENTITY).open(overwrite=overwrite)
    with pytest.raises(StoreError, match="exists and is no model store"):
        save_model(str(place), {"x": np.arange(3)}, {}, overwrite=overwrite)
    with pytest.raises(StoreError, match="exists and is no prediction store"):
        write_prediction(str(place), *[np.zeros(3, np.int16)] * 3, overwrite=overwrite)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("foreign", [foreign_folder, foreign_group, foreign_array, foreign_file])
def test_foreign__is_never_touched_by_a_saved_model(tmp_path, foreign):
    foreign(tmp_path / "mine.zarr")
    before = snapshot(tmp_path)
    model = ClusterEnsemble(2, members=3, random_state=0).fit(np.random.default_rng(0).normal(size=(40, 2)))
    with pytest.raises(StoreError, match="exists and is no model store"):
        model.save(tmp_path / "mine.zarr", overwrite=True)
    assert snapshot(tmp_path) == before


def test_foreign__attributes_that_only_look_like_ours(tmp_path):
    zarr.open_group(tmp_path / "mine.zarr", mode="w", attributes={"cehm": {"format": "photos"}})
    before = snapshot(tmp_path)
    with pytest.raises(StoreError, match="is no ensemble store"):
        create_ensemble(str(tmp_path / "mine.zarr"), 10, [2], overwrite=True)
    assert snapshot(tmp_path) == before


def test_overwrite__damaged_attributes_are_still_our_mark(ensemble, codes):
    path = Path(ensemble.url) / "zarr.json"
    path.write_text(path.read_text().replace('"7"', '"8"').replace("7,", "8,", 1))
    with pytest.raises(StoreError, match=r"attributes in zarr\.json are damaged"):
        open_ensemble(ensemble.url)
    with pytest.raises(StoreError, match=r"attributes in zarr\.json are damaged"):
        create_ensemble(ensemble.url, 100, [7] * 3)
    found = write(ensemble.url, codes, [7] * 3, overwrite=True)
    np.testing.assert_array_equal(found.read(0, 100), codes)


def test_overwrite__an_ensemble_is_not_a_consensus_nor_the_other_way(ensemble, tmp_path):
    with pytest.raises(StoreError, match="is no consensus store"):
        ConsensusStore(ensemble.url, IDENTITY).open(overwrite=True)
    ensemble.read(0, 100)
    held = ConsensusStore(str(tmp_path / "c.zarr"), IDENTITY)
    held.open(overwrite=False)
    held.close()
    with pytest.raises(StoreError, match="is no ensemble store"):
        create_ensemble(held.url, 10, [2], overwrite=True)


# --- a consensus on its way --------------------------------------------------------------------------------------


@pytest.fixture
def held(tmp_path):
    held = ConsensusStore(str(tmp_path / "c.zarr"), IDENTITY)
    held.open(overwrite=False)
    yield held
    held.close()


def again(held, identity=IDENTITY):
    return ConsensusStore(held.url, identity)


def open_and_close(held):
    second = again(held)
    second.open(overwrite=False)
    second.close()


def test_lock__second_writer_is_refused_until_the_first_is_done(held):
    with pytest.raises(BusyError, match=f"being written by another run .*:{os.getpid()}:.*: wait for it"):
        again(held).open(overwrite=False)
    with pytest.raises(BusyError, match="being written by another run"):
        again(held).open(overwrite=True)
    held.close()
    open_and_close(held)


def test_lock__freed_when_opening_is_refused(held):
    held.close()
    with pytest.raises(StoreError, match="other settings"):
        again(held, {"seed": 1}).open(overwrite=False)
    open_and_close(held)


HOLDS = """
import json, sys, time
from cehm_dask.data.consensus_store import ConsensusStore
held = ConsensusStore(sys.argv[1], json.loads(sys.argv[2]))
held.open(overwrite=False)
print("held", flush=True)
time.sleep(20)
"""


def test_lock__dies_with_its_process(tmp_path):
    url = str(tmp_path / "c.zarr")
    command = [sys.executable, "-c", HOLDS, url, json.dumps(IDENTITY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        mine = ConsensusStore(url, IDENTITY)
        with pytest.raises(BusyError, match=f"being written by another run .*:{process.pid}:"):
            mine.open(overwrite=False)
        process.send_signal(signal.SIGKILL)
    mine.open(overwrite=False)
    mine.close()


def test_checkpoint__comes_back_as_saved(held):
    assert held.load_checkpoint() is None
    arrays = {"0/counts": np.arange(12).reshape(3, 4), "0/cut": np.array(0.1), "1/none": np.empty((0, 2), np.uint64)}
    size = held.save_checkpoint(arrays, {"problems": [[3, {"round": 2, "losses": [0.1, 1e300]}]]})
    assert size == (Path(held.url) / "checkpoint.npz").stat().st_size
    found, facts = held.load_checkpoint()
    assert facts == {"problems": [[3, {"round": 2, "losses": [0.1, 1e300]}]]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_checkpoint__whole_or_not_at_all(held, monkeypatch):
    held.save_checkpoint({"counts": np.arange(3)}, {"round": 1})
    before = snapshot(Path(held.url))

    def killed(half, path):
        assert Path(half).parent == Path(path).parent  # a rename across file systems would copy
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(OSError, match="No space left"):
        held.save_checkpoint({"counts": np.arange(4)}, {"round": 2})
    assert snapshot(Path(held.url)) == before
    assert held.load_checkpoint()[1] == {"round": 1}


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"\x80\x04N."])
def test_checkpoint__damaged(held, damage):
    held.save_checkpoint({"counts": np.arange(1000)}, {"round": 1})
    path = Path(held.url) / "checkpoint.npz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StoreError, match=r"checkpoint.npz is damaged .*: remove it"):
        held.load_checkpoint()


def test_checkpoint__no_flipped_byte_goes_unseen(held):
    held.save_checkpoint({"counts": np.random.default_rng(0).integers(0, 99, 40)}, {"round": 1})
    path = Path(held.url) / "checkpoint.npz"
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(StoreError, match=r"checkpoint.npz is damaged \(its digest is wrong"):
            held.load_checkpoint()


def test_trail__no_flipped_byte_goes_unseen(held, caplog):
    held.save_trail({"codes": np.arange(40)})
    (path,) = Path(held.url).glob("trail-*.npz")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        assert held.load_trail() == {}
    assert caplog.text.count("is damaged (its digest is wrong") == len(whole)
    path.write_bytes(whole)
    assert held.load_trail()["codes"].tolist() == list(range(40))


class Exploit:
    """Unpickling it leaves a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def test_checkpoint__nothing_is_unpickled(held, tmp_path):
    mark = tmp_path / "unpickled"
    path = Path(held.url) / "checkpoint.npz"
    np.savez(path, facts=np.array("{}"), counts=np.array([Exploit(mark)], object), allow_pickle=True)
    path.write_bytes(sealed(path.read_bytes()))
    with pytest.raises(StoreError, match="allow_pickle=False"):
        held.load_checkpoint()
    path.write_bytes(sealed(pickle.dumps(Exploit(mark))))
    with pytest.raises(StoreError, match="damaged"):
        held.load_checkpoint()
    assert not mark.exists()


def test_intersections__kept_with_the_silent_rows(held):
    assert held.load_intersections() is None
    table = np.arange(9).reshape(3, 3)
    held.save_intersections(table, 5)
    found, n_silent = held.load_intersections()
    np.testing.assert_array_equal(found, table)
    assert n_silent == 5


def test_intersections__cut_off_before_they_count(held):
    """The table is there, the mark that it is whole is not: counted anew."""
    held.save_table("intersections", np.zeros((3, 3)))
    assert held.load_intersections() is None


def test_resume__keeps_what_a_run_left_and_overwrite_does_not(held):
    held.save_intersections(np.eye(3, dtype=np.int64), 0)
    held.save_checkpoint({"counts": np.arange(3)}, {"round": 1})
    held.close()
    second = again(held)
    second.open(overwrite=False)
    assert second.load_checkpoint()[1] == {"round": 1}
    assert second.load_intersections() is not None
    second.close()
    third = again(held, {"seed": 1})
    third.open(overwrite=True)
    assert third.load_checkpoint() is None
    assert third.load_intersections() is None
    assert read_facts(held.url)["identity"] == {"seed": 1}
    third.close()
    assert os.listdir(held.url) == ["zarr.json"]


def test_lock__never_two_holders_though_its_file_comes_and_goes(tmp_path):
    url, holders, held = str(tmp_path / "place"), [], []

    def contend(_number):
        times = 0
        while times < 50:
            lock = Lock(url)
            try:
                lock.take()
            except BusyError:
                continue
            holders.append(1)
            held.append(len(holders))
            holders.pop()
            lock.release()
            times += 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(contend, range(4)))
    assert held == [1] * 200
    assert not os.path.exists(url)


def test_resume__refuses_what_another_version_left(held):
    held.close()
    edit_facts(held.url, version=0)
    with pytest.raises(StoreError, match=r"version=1 \(there: 0\)"):
        again(held).open(overwrite=False)


def test_overwrite__cut_off_anywhere_leaves_no_whole_store(held, monkeypatch):
    """Removing an old result is the last step, so a kill in between cannot leave half of it marked as whole."""
    held.save_checkpoint({"counts": np.arange(3)}, {"round": 1})
    held.create_result(100, 40).write(0, np.zeros(40, np.int16), np.zeros(40), np.zeros(40))
    held.finish({})
    held.close()
    there = f"file://{held.url}"  # as in an object store, where it is written in place
    open_consensus(there)
    removed = []

    def killed(entry):
        removed.append(entry)
        if not entry.endswith("checkpoint.npz"):
            raise KeyboardInterrupt

    monkeypatch.setattr(attributes, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        ConsensusStore(there, IDENTITY).open(overwrite=True)
    assert removed
    with pytest.raises(StoreError, match="half-written"):
        open_consensus(held.url)
    monkeypatch.undo()
    second = ConsensusStore(there, IDENTITY)
    second.open(overwrite=False)
    second.close()
