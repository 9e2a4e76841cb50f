"""Files that appear whole or not at all, whatever crashed before and whoever writes at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cehm_dask.data import files
from cehm_dask.data.files import entries, fingerprint, open_npy, read_whole, whole, write_whole
from cehm_dask.errors import InputError
from cehm_dask.results import export

COLUMNS = np.zeros(3, np.int16), np.zeros(3), np.zeros(3)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("name", ["labels.csv", "labels.npy", "labels.parquet"])
def test_export__leftovers_of_a_crash_with_the_same_process_id_are_no_part_of_it(tmp_path, name):
    # In a container every run has the same process id, and so had the temporary file of the run before.
    for leftover in (f".{name}.{os.getpid()}", f"{name}.{os.getpid()}.half", f".cehm-{'0' * 16}.half"):
        (tmp_path / leftover).write_bytes(b"row,label\n" * 1000)
    before = names(tmp_path)
    export.write(tmp_path / name, *COLUMNS)
    export.write(tmp_path / f"again{Path(name).suffix}", *COLUMNS)
    assert (tmp_path / name).read_bytes() == (tmp_path / f"again{Path(name).suffix}").read_bytes()
    assert names(tmp_path) == sorted([*before, name, f"again{Path(name).suffix}"])


KILLED = """\
import os, sys, time
import numpy as np
from pathlib import Path
from cehm_dask.results import export

class Slow:
    shape, dtype = (1000,), np.dtype(np.int16)
    def __getitem__(self, rows):
        if rows.start >= 500:
            print("half", flush=True)
            time.sleep(60)
        return np.zeros(rows.stop - rows.start, np.int16)

export.BLOCK_ROWS = 500
export.write(Path(sys.argv[1]), Slow(), np.zeros(1000), np.zeros(1000))
"""


def test_export__killed_in_the_middle_then_done_again(tmp_path):
    (tmp_path / "labels.csv").write_text("mine\n")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "labels.csv"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "half\n"
        process.kill()
    assert (tmp_path / "labels.csv").read_text() == "mine\n"
    assert len(names(tmp_path)) == 2  # what was being written is there, under a name that nobody takes for a result
    zeros = np.zeros(1000, np.int16)
    export.write(tmp_path / "labels.csv", zeros, np.zeros(1000), np.zeros(1000))
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 1001


def test_whole__a_name_that_is_taken_is_not_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(files.secrets, "token_hex", lambda _n: "same")
    (tmp_path / ".cehm-same.half").write_text("of another process")
    with pytest.raises(FileExistsError):
        write_whole(str(tmp_path / "out"), b"mine")
    assert not (tmp_path / "out").exists()


def test_whole__file_and_folder_are_synced_before_and_after_the_move(tmp_path, monkeypatch):
    done = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (done.append("moved"), replace(a, b)))
    write_whole(str(tmp_path / "out"), b"content")
    assert Path(done[0]).name.startswith(".cehm-")
    assert done[1:] == ["moved", str(tmp_path)]


def test_whole__an_error_leaves_what_was_there(tmp_path):
    (tmp_path / "out").write_text("before")
    with pytest.raises(ZeroDivisionError), whole(tmp_path / "out") as file:
        file.write(b"half" * (1 // 0))
    assert names(tmp_path) == ["out"]
    assert (tmp_path / "out").read_text() == "before"


def test_whole__rights_are_those_of_any_new_file(tmp_path):
    (tmp_path / "usual").touch()
    write_whole(str(tmp_path / "out"), b"")
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_whole__a_name_as_long_as_names_may_be(tmp_path):
    write_whole(str(tmp_path / ("x" * 255)), b"content")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"content"


def test_whole__a_file_url_is_written_whole_too(tmp_path, monkeypatch):
    (tmp_path / "out").write_text("before")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write_whole(f"file://{tmp_path}/out", b"after")
    assert (tmp_path / "out").read_text() == "before"


def test_leftovers__are_no_entry_of_a_folder_and_change_no_fingerprint(tmp_path):
    (tmp_path / "part.parquet").write_bytes(b"rows")
    before = fingerprint(str(tmp_path))
    (tmp_path / f".cehm-{'1' * 16}.half").write_bytes(b"half")
    assert [os.path.basename(entry) for entry in entries(str(tmp_path))] == ["part.parquet"]
    assert fingerprint(str(tmp_path)) == before


# --- csv that spreadsheets open ----------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1+1", "-1+1", "@sum", "\ttab", "\rreturn", "=cmd|' /C calc'!A0", '="a,b"']
HARMLESS = ["-5", "+5", "-1.5e-3", "a=b", "", "x", "'=1", "é"]


@pytest.mark.parametrize("source", ["in.csv", "in.parquet"])
def test_csv__formulas_get_an_apostrophe_and_all_else_stays(tmp_path, monkeypatch, source):
    monkeypatch.setattr(export, "BLOCK_ROWS", 3)
    ids = [one for one in (*FORMULAS, *HARMLESS) if source == "in.parquet" or one[:1] not in "\t\r"]
    frame = pd.DataFrame({"=name()": ids})
    frame.to_parquet(tmp_path / source) if source == "in.parquet" else frame.to_csv(tmp_path / source, index=False)
    rows = export.column_ids(str(tmp_path / source), "=name()")
    zeros = np.zeros(len(ids), np.int16)
    for name in ("out.csv", "out.parquet"):
        export.write(tmp_path / name, zeros, zeros, zeros, rows)
    table = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert table["'=name()"].tolist() == [f"'{one}" if one in FORMULAS else one for one in ids]
    assert pd.read_parquet(tmp_path / "out.parquet")["=name()"].tolist() == ids


def test_csv__numbers_stay_numbers(tmp_path):
    pd.DataFrame({"n": pd.array([-(2**60) - 1, None, 3], "Int64")}).to_parquet(tmp_path / "in.parquet")
    export.write(tmp_path / "out.csv", *COLUMNS, export.column_ids(str(tmp_path / "in.parquet"), "n"))
    assert (tmp_path / "out.csv").read_text().splitlines()[1:] == [
        f"{-(2**60) - 1},0,0.0,0.0",
        ",0,0.0,0.0",
        "3,0,0.0,0.0",
    ]


# --- .npy files that are none ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["empty", "head", "cut", "text", "zip", "objects", "shape"])
def test_npy__that_is_damaged_is_named(tmp_path, content):
    path = tmp_path / "labels.npy"
    np.save(path, np.arange(20).reshape(10, 2))
    good = path.read_bytes()
    if content == "objects":
        np.save(path, np.array([{}]), allow_pickle=True)
    elif content == "zip":
        np.savez(tmp_path / "x.npz", a=np.zeros(3))
        path.write_bytes((tmp_path / "x.npz").read_bytes())
    else:
        path.write_bytes(
            {
                "empty": b"",
                "head": good[:20],
                "cut": good[:-8],
                "text": b"1,2\n",
                "shape": good.replace(b"(10, 2)", b"(10, ((", 1),
            }[content]
        )
    with pytest.raises(InputError, match=rf"base labels {path}: no whole \.npy file \(.+\); write it again"):
        open_npy(path, "base labels")


@pytest.mark.parametrize("written", [True, False])
def test_write_whole__answer_of_an_object_store_lost(monkeypatch, written):
    put = MemoryFileSystem.pipe_file

    def unanswered(self, path, content, **how):
        if written:
            put(self, path, content, **how)
        raise ConnectionError("no answer")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", unanswered)
    url = f"memory://lost-{written}/zarr.json"
    if written:
        write_whole(url, b"whole")
        assert read_whole(url) == b"whole"
    else:
        with pytest.raises(ConnectionError):
            write_whole(url, b"whole")


def test_patiently__storage_that_fails_twice(monkeypatch):
    monkeypatch.setattr(files, "WAITS", (0.0, 0.0))
    faults = [ConnectionError("no answer"), OSError(5, "Input/output error")]

    def read():
        if faults:
            raise faults.pop()
        return "found"

    assert files.patiently(read) == "found"
    faults = [ConnectionError("no answer")] * 3
    with pytest.raises(ConnectionError):
        files.patiently(read)
    assert not faults
    with pytest.raises(KeyError):  # no fault of storage: at once
        files.patiently(lambda: {}["absent"])
