"""Base labels of every form → the same ensemble.zarr, block by block, and the same consensus as in memory."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from cehm_dask import CEHM
from cehm_dask.data import delimited, encoding, ingest, tables
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ensemble_writer import EnsembleWriter
from cehm_dask.data.features import as_features
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.errors import BusyError, StoreError
from cehm_dask.machine import resident_bytes
from cehm_dask.members.fit import plan_members
from cehm_dask.members.generate import generate
from tests.listening import Advances

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

NAMES = ["a", "b", "c", "d"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a few rows make many blocks, whose borders are nowhere near those of shards, files or partitions."""
    read_in_blocks_of(monkeypatch, 7)


def read_in_blocks_of(monkeypatch, rows):
    monkeypatch.setattr(encoding, "READ_ROWS", rows)
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 8 * rows)
    monkeypatch.setattr(tables, "BLOCK_BYTES", 4 * 8 * rows)


@pytest.fixture(name="P", scope="module")
def base_labels():
    """Three groups seen by four members: gaps in the labels, missing ones, a silent row, a label that comes late."""
    rng = np.random.default_rng(0)
    truth = np.arange(60) % 3
    P = np.where(rng.random((60, 4)) < 0.8, truth[:, None], rng.integers(0, 5, (60, 4)))
    P = P * [1, 10, 3, 7] + [0, 0, 4, 1000]
    P[rng.random(P.shape) < 0.1] = -1
    P[31] = -1
    P[:, 2][P[:, 2] == 7] = 8  # an order that changes nothing
    P[58, 1] = 5
    assert 5 not in P[:58, 1]
    return P


def codes_of(P):
    """0 where nothing is said, else the rank of the label among its member's, from 1."""
    codes = np.zeros(P.shape, np.int64)
    for j, column in enumerate(P.T):
        codes[:, j] = np.where(column < 0, 0, np.searchsorted(np.unique(column[column >= 0]), column) + 1)
    return codes


def frame_of(P):
    return pd.DataFrame(P, columns=NAMES[: P.shape[1]])


def nullable(P):
    return frame_of(P).astype("Int64").mask(P < 0)


def text(P):
    """Text whose order is that of the numbers, None where nothing is said."""
    return pd.DataFrame({n: [f"{v:05d}-x" if v >= 0 else None for v in c] for n, c in zip(NAMES, P.T, strict=True)})


def saved(write, name):
    def form(P, folder):
        write(P, folder / name)
        return folder / name

    return form


def zarr_array(P, path, **options):
    zarr.create_array(path, shape=P.shape, dtype=P.dtype, **options)[:] = P


def parquet_folder(P, path):
    path.mkdir()
    for number, start in enumerate(range(0, len(P), 23)):
        nullable(P[start : start + 23]).to_parquet(path / f"part-{number}.parquet")


FORMS = {
    "numpy": lambda P, _: P,
    "numpy int16": lambda P, _: P.astype(np.int16),
    "numpy floats": lambda P, _: P.astype(float),
    "numpy by columns": lambda P, _: np.asfortranarray(P),
    "npy": saved(lambda P, path: np.save(path, P), "p.npy"),
    "npy named by text": lambda P, folder: str(saved(lambda P, path: np.save(path, P), "p.npy")(P, folder)),
    "csv": saved(lambda P, path: frame_of(P).to_csv(path, index=False), "p.csv"),
    "csv with empty cells": saved(lambda P, path: nullable(P).to_csv(path, index=False), "p.csv"),
    "csv of floats": saved(lambda P, path: frame_of(P).where(P >= 0).to_csv(path, index=False), "p.csv"),
    "csv of text": saved(lambda P, path: text(P).to_csv(path, index=False), "p.csv"),
    "parquet": saved(lambda P, path: frame_of(P).to_parquet(path), "p.parquet"),
    "parquet with nulls": saved(lambda P, path: pl.from_pandas(nullable(P)).write_parquet(path), "p.parquet"),
    "parquet of floats": saved(lambda P, path: frame_of(P).where(P >= 0).to_parquet(path), "p.parquet"),
    "parquet of text": saved(lambda P, path: text(P).to_parquet(path), "p.parquet"),
    "parquet of categories": saved(lambda P, path: text(P).astype("category").to_parquet(path), "p.parquet"),
    "folder of parquet": saved(parquet_folder, "parts"),
    "pandas": lambda P, _: frame_of(P),
    "pandas with NA": lambda P, _: nullable(P),
    "pandas of text": lambda P, _: text(P),
    "pandas of objects": lambda P, _: text(P).astype(object),
    "pandas of categories": lambda P, _: text(P).astype("category"),
    "pandas with an index of its own": lambda P, _: frame_of(P).set_index(np.arange(60)[::-1] * 0.5),
    "polars": lambda P, _: pl.DataFrame(P, schema=NAMES),
    "polars with nulls": lambda P, _: pl.from_pandas(nullable(P)),
    "polars of text": lambda P, _: pl.from_pandas(text(P)),
    "dask array": lambda P, _: da.from_array(P, chunks=(25, 2)),
    "dask data frame": lambda P, _: dd.from_pandas(nullable(P), npartitions=4),
    "dask data frame of text": lambda P, _: dd.from_pandas(text(P), npartitions=4),
    "Zarr array": saved(lambda P, path: zarr_array(P, path, chunks=(9, 4)), "p.zarr"),
    "Zarr array, sharded": saved(lambda P, path: zarr_array(P, path, chunks=(2, 2), shards=(4, 4)), "p.zarr"),
    "Zarr array by its content": saved(lambda P, path: zarr_array(P, path), "no ending"),
    "Zarr array, version 2": saved(lambda P, path: zarr_array(P, path, chunks=(9, 4), zarr_format=2), "p.zarr"),
    "opened Zarr array": lambda P, folder: zarr.open_array(FORMS["Zarr array"](P, folder), mode="r"),
    "list of columns": lambda P, _: [column.tolist() for column in P.T],
    "tuple of columns": lambda P, _: tuple(P.T),
}


@pytest.fixture(scope="module")
def wanted(P):
    return CEHM(3, restarts=2, random_state=0).fit(P)


@pytest.mark.parametrize("form", FORMS)
def test_form__same_codes_and_same_consensus(P, wanted, tmp_path, form):
    url = str(tmp_path / "e.zarr")
    ingest.ingest(FORMS[form](P, tmp_path), url, chunk_rows=4)
    ensemble = open_ensemble(url)
    np.testing.assert_array_equal(ensemble.read(0, 60), codes_of(P))
    for column, values in zip(P.T, ensemble.values, strict=True):
        known = np.unique(column[column >= 0])
        assert values.tolist() == ([f"{v:05d}-x" for v in known] if values.dtype.kind == "U" else known.tolist())
    found = CEHM(3, restarts=2, random_state=0).fit(url)
    np.testing.assert_array_equal(found.labels_, wanted.labels_)
    np.testing.assert_array_equal(found.margin_, wanted.margin_)
    np.testing.assert_array_equal(found.loss_history_, wanted.loss_history_)
    np.testing.assert_array_equal(found.counts_, wanted.counts_)
    assert found.n_silent_ == 1


@given(
    data=st.data(),
    n_samples=st.integers(1, 50),
    read_rows=st.integers(1, 60),
    chunk_rows=st.integers(1, 20),
    top=st.sampled_from([2, 300, 10**6]),
)
@settings(max_examples=30)
def test_blocks__any_size_gives_the_partition_of_as_labels(
    tmp_path_factory, data, n_samples, read_rows, chunk_rows, top
):
    P = np.random.default_rng(data.draw(st.integers(0, 99))).integers(-1, top, (n_samples, 3))
    url = str(tmp_path_factory.mktemp("any") / "e.zarr")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "READ_ROWS", read_rows)
        ingest.ingest(P, url, chunk_rows=chunk_rows)
    stored, plain = as_labels(url), as_labels(P)
    np.testing.assert_array_equal(stored.source.read(0, n_samples), codes_of(P))
    for labels in (stored, plain):
        codes = labels.source.read(0, n_samples).astype(np.int64) - int(labels.silent)
        values = labels.values or [np.arange(width) for width in labels.widths]
        back = [np.where(c < 0, -1, v[c] if len(v) else -1) for c, v in zip(codes.T, values, strict=True)]
        np.testing.assert_array_equal(np.stack(back, axis=1), P)


@pytest.mark.parametrize(
    "form", ["numpy", "csv of text", "csv", "parquet with nulls", "folder of parquet", "dask array"]
)
def test_blocks__any_size_gives_the_same_store(P, tmp_path, monkeypatch, form):
    fingerprints = set()
    for read_rows in (1, 2, 59, 60, 61, 10_000):
        read_in_blocks_of(monkeypatch, read_rows)
        folder = tmp_path / str(read_rows)
        folder.mkdir()
        fingerprints.add(ingest.ingest(FORMS[form](P, folder), str(folder / "e.zarr"), chunk_rows=4))
    assert len(fingerprints) == 1


class Watched:
    """An array that remembers which rows were asked for."""

    def __init__(self, array):
        self.array, self.shape, self.asked = array, array.shape, []

    def __getitem__(self, rows):
        self.asked.append((rows.start, rows.stop))
        return self.array[rows]


def test_streamed__twice_and_never_more_than_a_block(P, tmp_path):
    watched = Watched(P)
    ingest.ingest(watched, str(tmp_path / "e.zarr"))
    once = [(start, start + 7) for start in range(0, 60, 7)]
    assert watched.asked == once * 2


def test_streamed__whole_shards_of_a_zarr_array(P, tmp_path, monkeypatch):
    monkeypatch.setattr(encoding, "READ_ROWS", 20)
    zarr_array(P, tmp_path / "p.zarr", chunks=(4, 4), shards=(8, 4))
    table = ingest.open_stream(tmp_path / "p.zarr")
    assert [len(columns[0]) for columns in table.blocks()] == [16, 16, 16, 12]


def test_streamed__npy_is_mapped_not_loaded(tmp_path):
    path = tmp_path / "p.npy"
    rows = (512 << 20) // 32  # half a gigabyte of nothing, which takes no room on the disk
    np.lib.format.open_memmap(path, "w+", np.int64, (rows, 4))[-1] = 3
    before = resident_bytes()
    first = next(ingest.open_stream(path).blocks())
    assert len(first) == 4
    assert resident_bytes() - before < 64 << 20


def test_streamed__one_partition_of_a_dask_frame_at_a_time(P, tmp_path):
    computed = []

    def part(number):
        computed.append(number)
        return frame_of(P[15 * number : 15 * number + 15])

    frame = dd.from_map(part, range(4), meta=frame_of(P[:0]))
    computed.clear()
    blocks = ingest.open_stream(frame).blocks()
    next(blocks)
    assert computed == [0]
    assert len(list(blocks)) == 4 * 3 - 1


def test_progress__rows_of_both_passes(P, tmp_path):
    done = {}

    def advanced(what, rows, total):
        assert rows > done.get(what, (0,))[0]
        done[what] = rows, total

    ingest.ingest(P, str(tmp_path / "e.zarr"), progress=Advances(advanced))
    assert done == {"checked": (60, None), "written": (60, 60)}


def test_names_and_source__kept(P, tmp_path):
    path = FORMS["parquet"](P, tmp_path)
    ingest.ingest(path, str(tmp_path / "e.zarr"))
    ensemble = open_ensemble(str(tmp_path / "e.zarr"))
    assert ensemble.names == tuple(NAMES)
    assert ensemble.source == str(path)
    assert ensemble.sizes.tolist() == np.concatenate([np.bincount(c)[1:] for c in codes_of(P).T]).tolist()


def test_predict__from_a_store_as_from_memory(P, wanted, tmp_path):
    url = str(tmp_path / "e.zarr")
    ingest.ingest(text(P), url)
    model = CEHM(3, restarts=2, random_state=0).fit(url)
    np.testing.assert_array_equal(model.predict(text(P)), wanted.predict(P))


# --- labels that are hard to tell apart --------------------------------------------------------------------------


def test_labels__beyond_the_small_integers_of_a_float(tmp_path):
    """Hashes as labels, after a block of small ones; as floats, three of them would be the same."""
    column = np.array([0, 1, 2] * 5 + [2**63 + 5, 2**63 + 6, 2**63 + 7, 2**62 + 1], np.uint64)
    ingest.ingest(column[:, None], str(tmp_path / "e.zarr"))
    ensemble = open_ensemble(str(tmp_path / "e.zarr"))
    assert ensemble.values[0].tolist() == sorted(set(column.tolist()))
    np.testing.assert_array_equal(ensemble.read(0, 19)[:, 0], np.unique(column, return_inverse=True)[1] + 1)
    signed = column[[0, 1, 2] * 5 + [18]].astype(np.int64)
    signed = np.append(signed, signed[-1:] + 1)
    ingest.ingest(signed[:, None], str(tmp_path / "signed.zarr"))
    ensemble = open_ensemble(str(tmp_path / "signed.zarr"))
    assert ensemble.values[0].tolist() == [0, 1, 2, 2**62 + 1, 2**62 + 2]
    assert ensemble.read(14, 17)[:, 0].tolist() == [3, 4, 5]


def test_labels__so_many_that_a_byte_is_too_small(tmp_path):
    column = np.arange(300)[::-1]
    ingest.ingest(column[:, None], str(tmp_path / "e.zarr"))
    ensemble = open_ensemble(str(tmp_path / "e.zarr"))
    assert ensemble.itemsize == 2
    np.testing.assert_array_equal(ensemble.read(0, 300)[:, 0], column + 1)


def test_csv__text_in_a_later_block_is_text_in_all(tmp_path):
    # Read block by block, the first "01" and "1" would be one number, and "-1" a missing label.
    labels = ["01", "1", "-1", "2", "2", "01", "1", "x", "01", "-1"]
    (tmp_path / "p.csv").write_text("\n".join(["member", *labels]) + "\n")
    ingest.ingest(tmp_path / "p.csv", str(tmp_path / "e.zarr"))
    ensemble = open_ensemble(str(tmp_path / "e.zarr"))
    assert ensemble.values[0].tolist() == ["-1", "01", "1", "2", "x"]
    np.testing.assert_array_equal(ensemble.read(0, 10)[:, 0], np.unique(labels, return_inverse=True)[1] + 1)


@pytest.mark.parametrize("write", [pd.DataFrame.to_csv, pd.DataFrame.to_parquet])
def test_labels__of_true_and_false(tmp_path, write):
    column = [True, None, False, True] * 5
    path = tmp_path / f"p.{write.__name__[3:]}"
    write(pd.DataFrame({"whole": [True, False] * 10, "holed": pd.array(column, "boolean")}), path, index=False)
    ingest.ingest(path, str(tmp_path / "e.zarr"))
    expected = [[2, 1] * 10, [2, 0, 1, 2] * 5]
    np.testing.assert_array_equal(open_ensemble(str(tmp_path / "e.zarr")).read(0, 20).T, expected)


def test_csv__a_block_of_empty_cells_in_a_text_column(tmp_path):
    (tmp_path / "p.csv").write_text("m,n\nx,1\n" + 10 * ",2\n" + "y,3\n")
    ingest.ingest(tmp_path / "p.csv", str(tmp_path / "e.zarr"))
    assert open_ensemble(str(tmp_path / "e.zarr")).read(0, 12)[:, 0].tolist() == [1, *[0] * 10, 2]


@pytest.mark.parametrize("write", [pd.DataFrame.to_csv, pd.DataFrame.to_parquet, None])
def test_labels__member_that_never_says_anything(P, tmp_path, write):
    frame = nullable(P).assign(b=pd.array([pd.NA] * 60, "Int64"))
    path = tmp_path / f"p.{write.__name__[3:] if write else ''}"
    if write:
        write(frame, path, index=False)
    ingest.ingest(path if write else frame, str(tmp_path / "e.zarr"))
    ensemble = open_ensemble(str(tmp_path / "e.zarr"))
    assert ensemble.widths[1] == 1
    assert not ensemble.read(0, 60)[:, 1].any()


def test_parquet__null_among_floats_is_missing(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1.0, None, 2.0])}), tmp_path / "null.parquet")
    ingest.ingest(tmp_path / "null.parquet", str(tmp_path / "e.zarr"))
    assert open_ensemble(str(tmp_path / "e.zarr")).read(0, 3)[:, 0].tolist() == [1, 0, 2]


def test_column_repeated__counts_twice(P, tmp_path):
    frame = pd.DataFrame(P[:, [0, 1, 1]], columns=["a", "b", "b"])
    ingest.ingest(frame, str(tmp_path / "e.zarr"))
    np.testing.assert_array_equal(open_ensemble(str(tmp_path / "e.zarr")).read(0, 60), codes_of(P[:, [0, 1, 1]]))


def test_numbers_and_text__in_one_member_are_refused(tmp_path):
    frame = pd.DataFrame({"a": [1] * 20, "b": [1] * 10 + ["x"] * 10})
    with pytest.raises(TypeError, match="member b holds numbers in some rows and text in others, from row 7 on"):
        ingest.ingest(frame, str(tmp_path / "e.zarr"))


# --- refused -----------------------------------------------------------------------------------------------------


def broken(P, value):
    P = P.astype(float)
    P[39, 2] = value
    return P


def broken_files(P, path):
    path.mkdir()
    for number in range(3):
        frame_of(P[20 * number : 20 * number + 20]).to_parquet(path / f"{number}.parquet")


BROKEN = {
    "numpy": lambda P, _: P,
    "npy": saved(lambda P, path: np.save(path, P), "p.npy"),
    "csv": saved(lambda P, path: frame_of(P).to_csv(path, index=False), "p.csv"),
    "parquet": saved(lambda P, path: frame_of(P).to_parquet(path), "p.parquet"),
    "folder": saved(broken_files, "parts"),
    "pandas": lambda P, _: frame_of(P),
    "polars": lambda P, _: pl.DataFrame(P, schema=NAMES),
    "dask array": lambda P, _: da.from_array(P, chunks=(25, 4)),
    "dask data frame": lambda P, _: dd.from_pandas(frame_of(P), npartitions=4),
    "Zarr array": saved(lambda P, path: zarr_array(P, path, chunks=(9, 4)), "p.zarr"),
    "list": lambda P, _: list(P.T),
}


@pytest.mark.parametrize("form", BROKEN)
@pytest.mark.parametrize("value", [2.5, -7, np.inf])
def test_broken_label__named_by_row_of_the_data_and_member(P, tmp_path, form, value):
    member = "c" if form in ("csv", "parquet", "folder", "pandas", "polars", "dask data frame") else "2"
    with pytest.raises(ValueError, match=rf"hold {value}(\.0)? at row 39, member {member}:"):
        ingest.ingest(BROKEN[form](broken(P, value), tmp_path), str(tmp_path / "e.zarr"))
    assert not (tmp_path / "e.zarr").exists()


@pytest.mark.parametrize("form", ["numpy", "npy", "dask array", "Zarr array", "list", "pandas", "polars"])
def test_nan__is_a_missing_label(P, tmp_path, form):
    ingest.ingest(BROKEN[form](broken(P, np.nan), tmp_path), str(tmp_path / "e.zarr"))
    ingest.ingest(broken(P, -1), str(tmp_path / "expected.zarr"))
    found, expected = (open_ensemble(str(tmp_path / name)) for name in ("e.zarr", "expected.zarr"))
    np.testing.assert_array_equal(found.read(0, len(P)), expected.read(0, len(P)))


@pytest.mark.parametrize("value", ["-7", "2.5"])
def test_broken_label__row_counts_empty_cells_too(tmp_path, value):
    (tmp_path / "p.csv").write_text("m,n\n" + 12 * "1,\n,2\n" + f"1,{value}\n")
    with pytest.raises(ValueError, match=rf"hold {value} at row 24, member n:"):
        ingest.ingest(tmp_path / "p.csv", str(tmp_path / "e.zarr"))


def test_folder__files_with_other_columns(P, tmp_path):
    parquet_folder(P, tmp_path / "parts")
    frame_of(P).rename(columns={"c": "z"}).to_parquet(tmp_path / "parts" / "part-1.parquet")
    with pytest.raises(ValueError, match=r"part-1.parquet has columns \['a', 'b', 'z', 'd'\], .*part-0.parquet has"):
        ingest.ingest(tmp_path / "parts", str(tmp_path / "e.zarr"))


def test_folder__files_with_other_types(P, tmp_path):
    parquet_folder(P, tmp_path / "parts")
    text(P[:5]).to_parquet(tmp_path / "parts" / "part-1.parquet")
    with pytest.raises(TypeError, match="member a holds numbers in some rows and text in others, from row 23 on"):
        ingest.ingest(tmp_path / "parts", str(tmp_path / "e.zarr"))


REFUSED = {
    "no rows": (lambda _: np.empty((0, 3), int), ValueError, "n_samples=0"),
    "no columns": (lambda _: np.empty((3, 0), int), ValueError, "n_members=0"),
    "empty list": (lambda _: [], ValueError, "n_members=0"),
    "frame without columns": (lambda _: pd.DataFrame(), ValueError, "n_members=0"),
    "frame without rows": (lambda _: frame_of(np.empty((0, 4), int)), ValueError, "n_samples=0"),
    "polars without rows": (lambda _: pl.DataFrame({"a": []}), ValueError, "n_samples=0"),
    "one dimension": (lambda _: np.arange(5), ValueError, r"shape \(5,\): expected n_samples × n_members"),
    "three dimensions": (lambda _: np.zeros((2, 2, 2), int), ValueError, r"shape \(2, 2, 2\)"),
    "columns of unlike length": (lambda _: [[0, 1], [0]], ValueError, r"member 1 has shape \(1,\), member 0 .*\(2,\)"),
    "text in an array": (lambda _: np.array([["a"], ["b"]]), TypeError, "dtype <U1: expected integers"),
    "objects": (lambda _: np.array([[None], [1]]), TypeError, "dtype object: expected integers"),
    "no such file": (lambda folder: folder / "none.npy", FileNotFoundError, "none.npy: no such file"),
    "no such store": (lambda folder: folder / "none.zarr", StoreError, "none.zarr: expected a Zarr array"),
    "another ending": (lambda folder: folder / "p.txt", ValueError, r"p.txt: expected .npy, .csv, .*, a folder"),
    "folder without files": (lambda folder: folder / "empty", FileNotFoundError, "holds no .parquet file"),
    "csv of a header only": (lambda folder: folder / "header.csv", ValueError, "n_samples=0"),
    "csv of nothing": (lambda folder: folder / "empty.csv", ValueError, r"empty.csv is empty \(0 bytes\)"),
    "parquet without rows": (lambda folder: folder / "empty.parquet", ValueError, "n_samples=0"),
    "pickled objects": (lambda folder: folder / "objects.npy", ValueError, "Python objects"),
    "an ensemble": (lambda folder: folder / "ready.zarr", StoreError, "expected a Zarr array of base labels"),
}


@pytest.fixture(scope="module")
def odd_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("odd")
    (folder / "p.txt").write_text("a,b\n1,2\n")
    (folder / "empty").mkdir()
    (folder / "header.csv").write_text("a,b\n")
    (folder / "empty.csv").write_text("")
    frame_of(np.empty((0, 4), int)).to_parquet(folder / "empty.parquet")
    np.save(folder / "objects.npy", np.array([[None]]), allow_pickle=True)
    ingest.ingest(np.eye(3, dtype=int), str(folder / "ready.zarr"))
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_refused__before_anything_is_written(odd_files, tmp_path, case):
    given_, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        ingest.ingest(given_(odd_files), str(tmp_path / "e.zarr"))
    assert not (tmp_path / "e.zarr").exists()


def test_existing__kept_unless_asked(P, tmp_path):
    url = str(tmp_path / "e.zarr")
    first = ingest.ingest(P, url)
    with pytest.raises(StoreError, match="exists: choose another name, or pass overwrite=True"):
        ingest.ingest(P[:10], url)
    assert open_ensemble(url).fingerprint == first
    ingest.ingest(P[:10], url, overwrite=True)
    assert open_ensemble(url).n_samples == 10


@pytest.mark.parametrize("form", ["Zarr array", "folder of parquet"])
def test_existing__the_source_is_not_its_own_output(P, tmp_path, form):
    source = FORMS[form](P, tmp_path)
    with pytest.raises(StoreError, match="is no ensemble store"):
        ingest.ingest(source, str(source), overwrite=True)
    ingest.ingest(source, str(tmp_path / "e.zarr"))
    np.testing.assert_array_equal(open_ensemble(str(tmp_path / "e.zarr")).read(0, 60), codes_of(P))


def test_cut_off__does_not_count(P, tmp_path, monkeypatch):
    url, write = str(tmp_path / "e.zarr"), EnsembleWriter.write

    def full(self, shard, codes):
        if shard == 2:
            raise OSError(28, "No space left on device")
        return write(self, shard, codes)

    monkeypatch.setattr(EnsembleWriter, "write", full)
    with pytest.raises(OSError, match="No space left"):
        ingest.ingest(P, url, chunk_rows=2)
    with pytest.raises(StoreError, match="half-written"):
        open_ensemble(url)
    monkeypatch.undo()
    ingest.ingest(P, url)  # the same command again, as the error of a full disk says
    with pytest.raises(StoreError, match=r"exists: .*overwrite=True"):
        ingest.ingest(P, url)
    np.testing.assert_array_equal(open_ensemble(url).read(0, 60), codes_of(P))


MAKERS = {
    "ingest": lambda url, seed, **options: ingest.ingest(Synth(200, seed=seed).arrays()[0], url, **options),
    "synth": lambda url, seed, **options: Synth(200, seed=seed).write(url, **options),
    "generate": lambda url, seed, **options: generate(
        as_features(np.random.default_rng(seed).normal(size=(200, 2))), url, plan_members(4, 3, 9, 0), 0, **options
    ),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_writer__a_second_one_is_refused_and_harms_nothing(maker, tmp_path):
    make, url, refusals = MAKERS[maker], str(tmp_path / "e.zarr"), []
    whole = make(str(tmp_path / "whole.zarr"), 1)
    make(url, 0)

    def meddle(*_progress):
        with pytest.raises(BusyError, match="is being written by another run") as refused:
            make(url, 2, overwrite=True)
        refusals.append(refused)

    assert make(url, 1, overwrite=True, progress=Advances(meddle)) == whole == open_ensemble(url).fingerprint
    assert refusals
    make(url, 2, overwrite=True)  # the lock is gone with its holder
