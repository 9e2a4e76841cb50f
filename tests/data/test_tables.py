"""Tables in files: nothing is silently misread, and ``fit`` and ``import`` see the same labels in the same file."""

import csv
import io
import random
import string
import subprocess
import sys
import textwrap
import tracemalloc
from decimal import Decimal
from functools import partial

import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cehm_dask.data import delimited, tables
from cehm_dask.data.features import as_features
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.errors import BudgetError, CehmError, InputError
from cehm_dask.results import export
from cehm_dask.results.truth import as_truth, encoded


def write(folder, content, name="p.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def users_labels(labels):
    """Names of the members, and the user's label of every row and member (None: missing)."""
    codes = labels.source.read(0, labels.n_samples).astype(np.int64) - int(labels.silent)
    values = labels.values or [np.arange(width) for width in labels.widths]
    back = [
        [None if code < 0 else known[code].item() for code in column]
        for column, known in zip(codes.T.tolist(), values, strict=True)
    ]
    return labels.names, back, codes.tolist()


def by_fit(path, **options):
    return users_labels(as_labels(path, **options))


def by_import(path, url, **options):
    ingest(path, str(url), overwrite=True, **options)
    return users_labels(as_labels(str(url)))


# --- read right ------------------------------------------------------------------------------------------------------

READ = {
    "plain": ("a,b\n1,2\n3,4\n", [[1, 3], [2, 4]]),
    "no line feed at the end": ("a,b\n1,2\n3,4", [[1, 3], [2, 4]]),
    "carriage returns": ("a,b\r\n1,2\r\n3,4\r\n", [[1, 3], [2, 4]]),
    "byte order mark": ("\ufeffa,b\n1,2\n", [[1], [2]]),
    "semicolons": ("a;b\n1;2\n3;4\n", [[1, 3], [2, 4]]),
    "tabs": ("a\tb\n1\t2\n3\t\n", [[1, 3], [2, None]]),
    "bars": ("a|b\n1|2\n", [[1], [2]]),
    "names that hold another separator": ("k;1,k;2\n1,2\n", [[1], [2]]),
    "names of pandas": ("0,1,2,3\n5,6,7,8\n", [[5], [6], [7], [8]]),
    "spaces": ("a, b\n1, 2\n 3,4 \n", [[1, 3], [2, 4]]),
    "spaces around text": ("a,b\nx , y\n x,y\n", [["x", "x"], ["y", "y"]]),
    "missing": ("a,b\n1,\n,x\n-1,NA\nnan,y\n", [[1, None, None, None], [None, "x", None, "y"]]),
    "whole floats": ("a,b\n1.0,2e0\n3.,-1.0\n", [[1, 3], [2, None]]),
    "digits that floats lose": ("a,b\n9007199254740993,1\n9007199254740992,1.0\n", [[2**53 + 1, 2**53], [1, 1]]),
    "beyond 64 signed bits": ("a,b\n18446744073709551615,1\n0,2\n", [[2**64 - 1, 0], [1, 2]]),
    "beyond 64 bits, as text": ("a,b\n18446744073709551616,1\n0,2\n", [["18446744073709551616", "0"], [1, 2]]),
    "true and false": ("a,b\nTrue,false\nFALSE,\n", [[1, 0], [0, None]]),
    "numbers and text": ("a,b\n01,1\n1,1\nx,1\n-1,1\n", [["01", "1", "x", "-1"], [1, 1, 1, 1]]),
    "quoted": ('"a","b ""c"""\n"1","x, y"\n"2","x\n\ny"\n', [[1, 2], ["x, y", "x\n\ny"]]),
    "blank lines at the end": ("a,b\n1,2\n\n\r\n\n", [[1], [2]]),
    "one column, empty cells in quotes": ('a\n1\n""\n2\n', [[1, None, 2]]),
    "colours": ("a,b\n#ff0000,1\n#00ff00,2\n", [["#ff0000", "#00ff00"], [1, 2]]),
    "a cluster's id": ("cluster_id,b\n" + "3,1\n5,2\n" * 20, [[3, 5] * 20, [1, 2] * 20]),
    "other letters": ("größe,b\nÄ,1\nß,2\n", [["Ä", "ß"], [1, 2]]),
}


@pytest.mark.parametrize("block_bytes", [1, 16, 1 << 19])
@pytest.mark.parametrize("case", READ)
def test_csv__read_right_by_fit_and_import(tmp_path, monkeypatch, case, block_bytes):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block_bytes)
    content, wanted = READ[case]
    path = write(tmp_path, content)
    _, found, codes = by_fit(path)
    assert found == wanted
    assert by_import(path, tmp_path / "e.zarr")[1:] == (found, codes)


# --- refused ---------------------------------------------------------------------------------------------------------

MANY = "\n".join(f"{row % 3},{row % 2}" for row in range(40))
REFUSED = {
    "commas at the ends of rows": ("a,b\n1,2,\n3,4,\n", "line 2 has 3 cells where the line of names has 2: remove the"),
    "commas at the ends of lines": ("a,b,\n1,2,\n", "column 3 of 3 has no name"),
    "row numbers of pandas": (",a,b\n0,1,2\n1,2,3\n", r"column 1 of 3 has no name.*index=False"),
    "row numbers, saved twice": ("Unnamed: 0,a\n0,1\n1,2\n", "'Unnamed: 0' names the rows and is no member: leave it"),
    "id": ("id,a\n7,1\n7,2\n", r"column 'id' names the rows and is no member: leave it out, or rename"),
    "some id": (
        "customer_id,a\n" + "".join(f"{row},1\n" for row in range(30)),
        "'customer_id' has 30 different values in 30 rows, so it names the rows",
    ),
    "names of people": (
        "who,a\n" + "".join(f"p{row},1\n" for row in range(30)),
        "'who' has 30 different values in 30 rows, so it names the rows and is no member",
    ),
    "numbers of the rows": (
        "key,a\n" + "".join(f"{1000 + 7 * row % 30},{row % 3}\n" for row in range(30)),
        r"'key' has 30 different values in 30 rows, so it names the rows and is no member: leave it out$",
    ),
    "no line of names": ("4,2\n1,2\n", "the first line holds numbers only, '4, 2'.*such as m0,m1"),
    "no line of names, like row numbers": ("0,1\n1,2\n", "the first line holds numbers only"),
    "no line of names, text": ("x,y\ny,x\nx,y\n", "the first line, 'x, y', is found among the rows again"),
    "two files in one": ("a,b\n1,2\na,b\n3,4\n", "the first line, 'a, b', is found among the rows again"),
    "the same name twice": ("a,b,a\n1,2,3\n", "more than one column is called 'a'"),
    "the same name twice, but for spaces": ("a,b, a\n1,2,3\n", "more than one column is called 'a'"),
    "too few cells": ("a,b\n1,2\n3\n", "line 3 has 1 cells where the line of names has 2: give every column a cell"),
    "too many cells": ("a,b\n1,2\n3,4,5\n", "line 3 has 3 cells .* put cells that hold the separator in quotes"),
    "a few lines down": ("a,b\n" + MANY + "\n1\n", "line 42 has 1 cells"),
    "after line feeds in quotes": ('a,b\n"x\n\ny",1\n1\n', "line 5 has 1 cells"),
    "two separators": ("a;b,c\n1;2,5\n", r"the line of names holds ',' and ';': which of them"),
    "spaces between cells": ("a b\n1 2\n", "names one column, 'a b', and the next line holds 2 numbers"),
    "another separator in the rows": ("m\n1;2\n", "names one column, 'm', and the next line holds 2 numbers"),
    "nothing": ("", r"is empty \(0 bytes\)"),
    "names only": ("a,b\n", "n_samples=0"),
    "names only, no line feed": ("a,b", "n_samples=0"),
    "UTF-16": ("a,b\n1,2\n".encode("utf-16"), "is UTF-16 text: save it as UTF-8"),
    "UTF-16 without a mark": ("a,b\n1,2\n".encode("utf-16-le"), "line 1 holds a NUL byte"),
    "Latin-1": ("a,b\n1,ä\n".encode("latin-1"), "line 2 is not UTF-8 text: save the file as UTF-8"),
    "Latin-1, further down": (f"a,b\n{MANY}\n1,ä\n".encode("latin-1"), "line 42 is not UTF-8 text"),
    "NUL": (b"a,b\n1,2\n3,\0\n", "line 3 holds a NUL byte"),
    "a byte order mark inside": ("a,b\n1,2\n\ufeff3,4\n", "line 3 holds a byte order mark"),
    "gzip": (b"\x1f\x8b\x08\x00rest", "compressed with gzip: give it a name that ends in .csv.gz"),
    "spreadsheet": (b"PK\x03\x04rest", "a spreadsheet or a zip archive"),
    "Parquet": (b"PAR1rest", "a Parquet file"),
    "a quote left open": ('a,b\n1,"2\n3,4\n5,6\n', "line 2 holds a quote that is not closed"),
    "a quote inside a cell": (
        'a,b\n1,2\n3,5" disk\n',
        "line 3 holds a quote that is not closed, or that is inside",
    ),
    "a quote inside a name": ('a"\n1\n"2\n"3"\n', "line 1 holds a quote that is not closed, or that is inside"),
    "text after a quote": ('a,b\n1,"x"y\n', "line 2 holds a quote"),
    "two quotes left open": ('a,b\n1,"2\n3,"4\n5,6\n', "holds a quote that is not closed"),
    "a blank line": ("a,b\n1,2\n\n3,4\n", "line 3 is blank: remove it"),
    "a blank line first": ("\na,b\n1,2\n", "line 1 is blank: expected a line of names"),
    "a blank line in one column": ("a\n1\n\n2\n", "line 3 is blank: remove it, or write NA"),
    "a blank line at the end of one column": ("a\n1\n2\n\n", "line 4 is blank"),
    "a line of spaces in one column": ("a\n1\n  \n2\n", "line 3 is blank"),
    "comment before the names": ("# made by hand\na,b\n1,2\n", "the first line is a comment"),
    "comment among the rows": ("a,b\n1,2\n# so far\n3,4\n", "line 3 has 1 cells"),
    "comment in one column": ("a\n1\n# so far\n3\n", "hold '# so far' at row 1, member a, among numbers"),
    "carriage returns only": ("a,b\r1,2\r3,4\r", "line 1 holds a carriage return without a line feed"),
    "not whole": ("a,b\n1,2\n1,2.5\n", "base labels hold 2.5 at row 1, member b: labels are whole numbers"),
    "infinite": ("a,b\n1,2\n1,inf\n", "base labels hold inf at row 1, member b"),
    "negative": ("a,b\n-7,2\n1,2\n", "base labels hold -7 at row 0, member a: labels start at 0"),
}


@pytest.mark.parametrize("block_bytes", [8, 1 << 19])
@pytest.mark.parametrize("case", REFUSED)
def test_csv__refused_by_fit_and_import_alike(tmp_path, monkeypatch, case, block_bytes):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", block_bytes)
    content, message = REFUSED[case]
    path = write(tmp_path, content)
    with pytest.raises(InputError, match=message) as by_fit_:
        as_labels(path)
    with pytest.raises(InputError) as by_import_:
        ingest(path, str(tmp_path / "e.zarr"))
    assert str(by_fit_.value) == str(by_import_.value)
    assert not (tmp_path / "e.zarr").exists()


def test_csv__a_record_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    monkeypatch.setattr(delimited, "LONGEST_RECORD", 1000)
    path = write(tmp_path, 'a,b\n1,"2\n' + "3,4\n" * 1000)
    with pytest.raises(InputError, match=r"a record is longer than 1,000 bytes: is there a quote that is not closed\?"):
        as_labels(path)


def test_csv__more_labels_than_any_table_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("cehm_dask.data.encoding.MOST_LABELS", 100)
    path = write(tmp_path, "a,b\n" + "".join(f"{row},1\n" for row in range(200)))
    with pytest.raises(InputError, match=r"member a has .* different labels in .* rows, at most 100 are supported"):
        as_labels(path)


def test_csv__that_changes_between_the_passes(tmp_path, monkeypatch):
    path = write(tmp_path, "a,b\n1,2\n3,4\n")
    for content in ("a,b\n1,2\n3,5\n", "a,b\n1,2\n", "a,b\n1,2\n3,4\n1,2\n"):
        path.write_text("a,b\n1,2\n3,4\n")
        with monkeypatch.context() as patch:
            patch.setattr("cehm_dask.data.labels._refuse_large", lambda *_, now=content: path.write_text(now))
            with pytest.raises(InputError, match="run again"):
                as_labels(path)


def test_id__left_out_by_both(tmp_path):
    path = write(tmp_path, "id,a,b\n" + "".join(f"{row},{row % 3},x{row % 2}\n" for row in range(30)))
    names, found, _ = by_fit(path, leave_out=["id"])
    assert names == ("a", "b")
    assert by_import(path, tmp_path / "e.zarr", leave_out=["id"])[1] == found
    with pytest.raises(InputError, match=r"no column 'di'; there are id, a, b"):
        as_labels(path, leave_out=["di"])


# --- parquet ---------------------------------------------------------------------------------------------------------


def test_parquet__index_of_pandas_is_no_member_and_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 1], "b": [0, 0, 1]}, index=pd.Index(["x", "y", "z"], name="who"))
    frame.to_parquet(tmp_path / "named.parquet")
    frame.rename_axis(None).to_parquet(tmp_path / "nameless.parquet")
    for name in ("named.parquet", "nameless.parquet"):
        names, found, _ = by_fit(tmp_path / name)
        assert (names, found) == (("a", "b"), [[1, 2, 1], [0, 0, 1]])
        assert by_import(tmp_path / name, tmp_path / "e.zarr")[:2] == (names, found)
        assert as_features(tmp_path / name).names == ("a", "b")
    ids = export.column_ids(str(tmp_path / "named.parquet"), "who")
    assert [name for block in ids.blocks() for name in block.to_pylist()] == ["x", "y", "z"]


@pytest.mark.parametrize("broken", [b"", b"PAR1", b"no parquet at all", None])
def test_parquet__damaged(tmp_path, broken):
    path = tmp_path / "p.parquet"
    pd.DataFrame({"a": np.arange(1000) % 7}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-20] if broken is None else broken)
    for read in (
        as_labels,
        as_features,
        lambda path: as_truth(path, 3),
        lambda path: export.column_ids(str(path), "a"),
    ):
        with pytest.raises(InputError, match=r"p\.parquet: no Parquet file, or a damaged one"):
            read(path)


def test_parquet__damaged_inside(tmp_path):
    path = tmp_path / "p.parquet"
    pd.DataFrame({"a": np.arange(10_000) % 7}).to_parquet(path)
    content = bytearray(path.read_bytes())
    content[4:2000] = b"\xff" * 1996
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"p\.parquet: no Parquet file, or a damaged one"):
        as_labels(path)


def test_parquet__types_that_are_no_labels(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "when": pa.array([0, 1], pa.date32())}), tmp_path / "d.parquet")
    pq.write_table(pa.table({"a": [[1], [2]]}), tmp_path / "l.parquet")
    for name, column in (("d.parquet", "'when' holds date32"), ("l.parquet", "'a' holds list")):
        for read in (as_labels, as_features):
            with pytest.raises(TypeError, match=rf"{name}: column {column}"):
                read(tmp_path / name)


def test_parquet__column_twice(tmp_path):
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "p.parquet")
    with pytest.raises(InputError, match="more than one column is called 'a'"):
        as_labels(tmp_path / "p.parquet")


def test_folder__alike_and_nested_refused(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for number in range(3):
        pd.DataFrame({"a": [number, 1], "b": [0, number]}).to_parquet(folder / f"{number}.parquet")
    names, found, codes = by_fit(folder)
    assert found == [[0, 1, 1, 1, 2, 1], [0, 0, 0, 1, 0, 2]]
    assert by_import(folder, tmp_path / "e.zarr") == (names, found, codes)
    (folder / "day=2").mkdir()
    pd.DataFrame({"a": [1], "b": [0]}).to_parquet(folder / "day=2" / "3.parquet")
    for read in (as_labels, lambda path: ingest(path, str(tmp_path / "new.zarr"))):
        with pytest.raises(InputError, match=r"3\.parquet lies in another folder"):
            read(folder)


def test_object_store__read_as_local_files_are(tmp_path):
    place = f"memory://{tmp_path.name}"
    filesystem = fsspec.filesystem("memory")
    frame = pd.DataFrame({"a": [1, 2, 1], "b": [0, 0, 1]})
    with fsspec.open(f"{place}/p.csv", "w") as file:
        file.write(frame.to_csv(index=False))
    for name in ("p.parquet", "parts/1.parquet"):
        with fsspec.open(f"{place}/{name}", "wb") as file:
            frame.to_parquet(file)
    wanted = (("a", "b"), [[1, 2, 1], [0, 0, 1]])
    for name in ("p.csv", "p.parquet"):
        assert by_fit(f"{place}/{name}")[:2] == by_import(f"{place}/{name}", tmp_path / "e.zarr")[:2] == wanted
        np.testing.assert_array_equal(as_features(f"{place}/{name}").read(0, 3), frame)
        assert encoded(as_truth(f"{place}/{name}", 3, "b").read(0, 3), 0)[1].tolist() == [0, 0, 1]
        ids = export.column_ids(f"{place}/{name}", "a")
        assert [number for block in ids.blocks() for number in block.to_pylist()] == [1, 2, 1]
    assert by_fit(f"{place}/parts")[:2] == by_import(f"{place}/parts", tmp_path / "e.zarr")[:2] == wanted
    with pytest.raises(InputError, match="no such file"):
        as_labels(f"{place}/none.csv")
    filesystem.rm(f"/{tmp_path.name}", recursive=True)


# --- features, classes, ids ------------------------------------------------------------------------------------------


def test_features__csv(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 8)
    path = write(tmp_path, "x;y;z\n1.5; +2 ;True\n0.1;1e3;false\n;inf;\n")
    wanted = [[1.5, 2.0, 1.0], [0.1, 1000.0, 0.0], [np.nan, np.inf, np.nan]]
    np.testing.assert_array_equal(as_features(path).read(0, 3), wanted)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x,y\n1,2\n1,a\n", "p.csv: column 'y' holds 'a' at row 1: features are numbers"),
        ("x;y\n1,5;2\n", "p.csv: column 'x' holds '1,5' at row 0: features are numbers, with a decimal point"),
        ("x,y\n1,2\n1,True\n", "p.csv: column 'y' holds"),
        ("5.1,3.5\n4.9,3.0\n", "the first line holds numbers only"),
        ("id,x\n1,2\n", "column 'id' names the rows and is no feature"),
        ("x,y\n1,2,\n", "line 2 has 3 cells"),
        ("x,y\n", "n_samples=0"),
    ],
)
def test_features__csv_refused(tmp_path, monkeypatch, content, message):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 4)
    with pytest.raises(InputError, match=message):
        as_features(write(tmp_path, content))


def test_features__csv_as_exact_as_an_array(tmp_path):
    values = np.random.default_rng(0).standard_normal((2000, 3)) * 10.0 ** np.arange(-150, 151, 150)
    pd.DataFrame(values, columns=list("abc")).to_csv(tmp_path / "x.csv", index=False)
    np.testing.assert_array_equal(as_features(tmp_path / "x.csv").read(0, 2000), values)


def test_truth__csv_without_a_line_of_names(tmp_path):
    with pytest.raises(InputError, match="the name of column 'setosa' is found among its classes again"):
        as_truth(write(tmp_path, "setosa\nsetosa\nvirginica\n"), 2)
    with pytest.raises(InputError, match="the first line holds numbers only, '0'"):
        as_truth(write(tmp_path, "0\n1\n2\n"), 2)


def test_truth__csv_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 8)
    path = write(tmp_path, "who,y\n" + "".join(f"{row},{'ab'[row % 2]}\n" for row in range(50)))
    assert as_truth(path, 50, "y").read(0, 50).tolist() == list("ab" * 25)


def test_ids__csv_text_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 8)
    path = write(tmp_path, 'who,n,a\n007,1,0\n x,2,0\nNA,3,0\n"a\nb",4,0\n')
    found = {
        name: [cell for block in export.column_ids(str(path), name).blocks() for cell in block.to_pylist()]
        for name in ("who", "n")
    }
    assert found == {"who": ["007", " x", "NA", "a\nb"], "n": [1, 2, 3, 4]}


# --- within the memory allowed ---------------------------------------------------------------------------------------


def many_labels(folder, suffix, times=1):
    """2,000 rows of 30 members, repeated."""
    frame = pd.DataFrame(np.random.default_rng(0).integers(0, 40, (2000, 30)), columns=[f"m{j}" for j in range(30)])
    path = folder / f"p{suffix}"
    if suffix == ".csv":
        header, rows = frame.to_csv(index=False).split("\n", 1)
        path.write_text(f"{header}\n{rows * times}")
    else:
        pq.write_table(pa.concat_tables([pa.Table.from_pandas(frame)] * times), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_memory__codes_and_some_blocks_only(tmp_path, suffix):
    """300,000 × 30 take 9 MB as codes, 81 MB as the whole numbers of a frame."""
    script = """
        import sys
        import pandas, pyarrow.csv, pyarrow.parquet
        from cehm_dask.data.labels import READING_BYTES, as_labels
        from cehm_dask.machine import forget_peak, peak_bytes, resident_bytes
        before = resident_bytes()
        forget_peak()
        labels = as_labels(sys.argv[1], memory=before + labels_bytes + READING_BYTES + (8 << 20))
        assert labels.source.codes.nbytes == labels_bytes
        print(peak_bytes() - before - labels_bytes, READING_BYTES)
    """.replace("labels_bytes", str(300_000 * 30))
    command = [sys.executable, "-c", textwrap.dedent(script), str(many_labels(tmp_path, suffix, 150))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, allowed = map(int, done.stdout.split())
    assert peak < allowed


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_memory__refused_with_both_numbers(tmp_path, monkeypatch, suffix):
    path = many_labels(tmp_path, suffix)
    with pytest.raises(BudgetError, match=r"memory=1.00 MiB allowed < .* projected .*2,000 × 30 .*'cehm import'"):
        as_labels(path, memory="1MiB")


@pytest.mark.parametrize("kind", [np.float64, np.int64, "large"])
def test_memory__npy_of_any_kind(tmp_path, kind):
    """200,000 × 30 numbers of 8 bytes take 48 MB, their codes 6 MB."""
    rows = np.tile(np.random.default_rng(0).integers(-1, 40, (2000, 30)), (100, 1))
    if kind == "large":
        kind, rows = np.int64, np.where(rows < 0, -1, rows * 10**12)
    np.save(tmp_path / "p.npy", rows.astype(kind))
    np.save(tmp_path / "first.npy", rows[:100].astype(kind))
    as_labels(tmp_path / "first.npy")  # code that is loaded on first use is not what is measured
    tracemalloc.start()
    labels = as_labels(tmp_path / "p.npy")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert labels.source.codes.nbytes == rows.size
    assert peak < rows.size + 40e6
    np.testing.assert_array_equal(labels.source.codes, as_labels(rows).source.codes)
    with pytest.raises(BudgetError, match=r"memory=1.00 MiB allowed < .* projected .*200,000 × 30"):
        as_labels(tmp_path / "p.npy", memory="1MiB")


def test_memory__parquet_refused_before_a_row_is_read(tmp_path, monkeypatch):
    path = many_labels(tmp_path, ".parquet")
    monkeypatch.setattr(tables.Parquet, "batches", lambda *_: pytest.fail("read"))
    with pytest.raises(BudgetError, match="projected"):
        as_labels(path, memory="1MiB")


# --- fuzzed ----------------------------------------------------------------------------------------------------------

PIECES = [",", ";", "\t", "|", '"', '""', "\n", "\r\n", "\r", " ", "#", "\0", "\ufeff"]
PIECES += ["-1", "NA", "nan", "inf", "1.5", "é"]
NAMES = ["a", "b", "m1", "id", "index", "Unnamed: 0", "cluster_id", "0", "1", "2", "3", "", "a", " c", "k;2", "x|y"]


def cell(rng, kind):
    if kind == "number":
        return str(rng.randrange(6))
    if kind == "text":
        return rng.choice(["red", "green", "blue", "x y", "ä", "01"])
    if kind == "bool":
        return rng.choice(["True", "False"])
    if kind == "gaps":
        return rng.choice(["", "1", "2", "-1", "NA", "3.0"])
    return rng.choice(["1", "x", "-1", "", "2.5", "-3", "99999999999999999999", "7e2", "True", " 4 ", "1_0"])


def fuzzed(seed):
    """The bytes of a .csv file: valid, odd, or broken by a few edits."""
    rng = random.Random(seed)
    width, rows, separator = rng.randint(1, 5), rng.randint(0, 40), rng.choice(",,,,;\t|")
    end = rng.choice(["\n", "\n", "\r\n"])
    names = [f"m{j}" for j in range(width)]
    if rng.random() < 0.3:
        names = [rng.choice(NAMES) for _ in names]
    kinds = [rng.choice(["number", "number", "text", "bool", "gaps", "odd"]) for _ in names]
    if rng.random() < 0.1:
        kinds[0] = None
    lines = [names] * (rng.random() > 0.1)
    lines += [
        [cell(rng, kind) if kind else "".join(rng.sample(string.ascii_letters, 6)) for kind in kinds]
        for _ in range(rows)
    ]
    if rng.random() < 0.3:
        lines = [[f'"{one}"' if rng.random() < 0.5 else one for one in line] for line in lines]
    content = "".join(separator.join(line) + end for line in lines)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2, 5])):
        at = rng.randint(0, len(content))
        edit = rng.choice(["insert", "delete", "double", "swap"])
        if edit == "insert":
            content = content[:at] + rng.choice(PIECES) + content[at:]
        elif edit == "delete":
            content = content[:at] + content[at + rng.randint(1, 3) :]
        elif edit == "double":
            content = content[:at] + content[at : at + 9] + content[at:]
        else:
            content = content[at:] + content[:at]
    return content.encode(rng.choice(["utf-8"] * 20 + ["utf-16", "latin-1"]), errors="replace")


def assert_as_the_csv_module_reads(content, names, columns):
    """Another reader of the same bytes sees the same cells behind the labels."""
    lines = list(
        csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True, **dialect_of(names, content))
    )
    rows = [line for line in lines[1:] if line]
    assert [name.strip() for name in lines[0]] == list(names)
    for place, labels in enumerate(columns):
        assert len(labels) == len(rows)
        for row, label in zip(rows, labels, strict=True):
            text = row[place].strip()
            if label is None:
                assert text in delimited.MISSING or float(text) == -1
            elif isinstance(label, str):
                assert label == text
            else:
                # As a decimal number: a float loses digits that labels keep.
                assert label == (text.lower() == "true" if text.lower() in ("true", "false") else Decimal(text))


def dialect_of(names, content):
    first = content.decode("utf-8-sig")
    for separator in delimited.SEPARATORS:
        found = next(csv.reader(io.StringIO(first, newline=""), delimiter=separator))
        if [name.strip() for name in found] == list(names):
            return {"delimiter": separator}
    raise AssertionError(names)


def outcome(read):
    """What was read, or the sentence that refused it; any other error is one of ours."""
    try:
        return read()
    except CehmError as error:
        return str(error)


def compare_fit_and_import(folder, seeds):
    """How many files were read, and how many refused; the same labels, or the same sentence, either way."""
    counts = {"read": 0, "refused": 0}
    for seed in seeds:
        path = write(folder, fuzzed(seed), "p.csv")
        here, there = outcome(partial(by_fit, path)), outcome(partial(by_import, path, folder / "e.zarr"))
        assert here == there, f"seed {seed}"
        if not isinstance(here, str):
            assert_as_the_csv_module_reads(path.read_bytes(), *here[:2])
        counts["refused" if isinstance(here, str) else "read"] += 1
    return counts


def test_fuzzed__fit_and_import_read_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    counts = compare_fit_and_import(tmp_path, range(200))
    assert min(counts.values()) > 40


@pytest.mark.slow
def test_fuzzed__thousands(tmp_path, monkeypatch):
    counts = {"read": 0, "refused": 0}
    for number, block_bytes in enumerate((1 << 19, 64, 7)):
        monkeypatch.setattr(delimited, "BLOCK_BYTES", block_bytes)
        seeds = range(1000 + 1500 * number, 2500 + 1500 * number)
        counts = {name: counts[name] + more for name, more in compare_fit_and_import(tmp_path, seeds).items()}
    print(f"{sum(counts.values())} files: {counts}")
    assert min(counts.values()) > 800
