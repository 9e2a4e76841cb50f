"""The command: files in, files out, exit codes, and words a person can act on."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cehm_dask import CEHM, ConsensusWarning, __version__, cli, job
from cehm_dask.cli.consensus import VARIANTS as OFFERED
from cehm_dask.data.consensus_store import ConsensusStore, open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.method.params import VARIANTS
from tests.conftest import cehm

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

COMMAND = Path(sys.executable).parent / "cehm"


@pytest.fixture(scope="module")
def base_labels():
    """Labels of five groups by eight members."""
    labels, _ = Synth(200, 8, n_classes=5, k_min=6, k_max=12).arrays()
    return labels


@pytest.fixture(scope="module")
def wanted(base_labels):
    return CEHM(5, random_state=0).fit(base_labels)


@pytest.fixture
def folder(base_labels, tmp_path, monkeypatch):
    """The current folder, with the labels in every form."""
    monkeypatch.chdir(tmp_path)
    np.save("labels.npy", base_labels)
    frame = pd.DataFrame(base_labels, columns=list("abcdefgh"))
    frame.to_csv("labels.csv", index=False)
    frame.to_parquet("labels.parquet")
    ingest(base_labels, "labels.zarr", chunk_rows=30)
    return tmp_path


def refused(*args, code=2):
    """The one line that the command ends with."""
    out, err = cehm(*args, code=code)
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


def labels_of(path):
    path = Path(path)
    if path.suffix == ".npy":
        return np.load(path)
    if path.suffix == ".zarr":
        return open_consensus(str(path)).array("labels")[:]
    return (pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path))["label"].to_numpy()


# --- consensus ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("labels.npy", "out.npy"),
        ("labels.csv", "out.npy"),
        ("labels.parquet", "out.npy"),
        ("labels.zarr", "out.npy"),
        ("labels.npy", "out.csv"),
        ("labels.npy", "out.parquet"),
        ("labels.npy", "out.zarr"),
        ("labels.zarr", "out.zarr"),
    ],
)
def test_consensus__files_in_and_out(folder, wanted, source, output):
    out, err = cehm("consensus", source, "--k", 5, "-o", output)
    np.testing.assert_array_equal(labels_of(output), wanted.labels_)
    assert "200 samples, 8 members" in out
    assert "agreement with the members" in out
    assert "adjustion: round" in err
    assert f"written: {output}\n" in err


@pytest.mark.parametrize("output", ["out.csv", "out.parquet"])
def test_consensus__margins_beside_the_labels(folder, wanted, output):
    cehm("consensus", "labels.npy", "--k", 5, "-o", output)
    frame = pd.read_csv(output) if output.endswith("csv") else pd.read_parquet(output)
    assert list(frame.columns) == ["row", "label", "margin", "confidence"]
    assert frame["row"].tolist() == list(range(200))
    np.testing.assert_allclose(frame["margin"], wanted.margin_, rtol=1e-12)
    np.testing.assert_allclose(frame["confidence"], wanted.confidence_, rtol=1e-12)


@pytest.mark.parametrize("source", ["named.csv", "named.parquet"])
def test_consensus__row_ids_are_kept_and_are_no_member(folder, wanted, base_labels, source):
    frame = pd.DataFrame(base_labels, columns=list("abcdefgh")).assign(who=[f"{n:04}" for n in range(200)])
    frame.to_csv("named.csv", index=False)
    frame.to_parquet("named.parquet")
    cehm("consensus", source, "--k", 5, "--id", "who", "-o", "out.parquet", "--quiet")
    table = pd.read_parquet("out.parquet")
    assert table["who"].tolist() == frame["who"].tolist()
    np.testing.assert_array_equal(table["label"], wanted.labels_)
    assert "no column 'whom'" in refused("consensus", source, "--k", 5, "--id", "whom", "-o", "new.csv")
    assert "has no columns with names" in refused("consensus", "labels.npy", "--k", 5, "--id", "who")


def test_consensus__without_output_writes_nothing(folder):
    before = sorted(folder.iterdir())
    out, err = cehm("consensus", "labels.npy", "--k", 5)
    assert "200 samples" in out
    assert "written" not in err
    assert sorted(folder.iterdir()) == before


def test_consensus__quiet(folder, wanted):
    assert cehm("consensus", "labels.npy", "--k", 5, "-o", "out.npy", "--quiet") == ("", "")
    np.testing.assert_array_equal(labels_of("out.npy"), wanted.labels_)


def test_consensus__settings_reach_the_estimator(folder, base_labels):
    settings = {"variant": "printed", "restarts": 3, "choose": "loss", "max_iter": 4}
    args = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
    cehm("consensus", "labels.npy", "--k", 4, "--seed", 7, "-o", "out.zarr", *args)
    expected = CEHM(4, random_state=7, **settings).fit(base_labels)
    np.testing.assert_array_equal(labels_of("out.zarr"), expected.labels_)
    identity = open_consensus("out.zarr").facts["identity"]
    assert {name: identity[name] for name in settings} == settings


@pytest.mark.parametrize(("text", "ks"), [("5,8", [5, 8]), ("2..4", [2, 3, 4]), ("7,", None), ("3..3", [3])])
def test_consensus__several_k(folder, base_labels, text, ks):
    if ks is None:
        cehm("consensus", "labels.npy", "--k", text, code=2)
        return
    out, _ = cehm("consensus", "labels.npy", "--k", text, "-o", "out.zarr")
    stored = open_consensus("out.zarr")
    assert [solution["n_clusters"] for solution in stored.facts["scan"]] == ks
    assert (stored.facts["choice"]["reason"] in " ".join(out.split())) == (len(ks) > 1)
    np.testing.assert_array_equal(labels_of("out.zarr"), CEHM(ks, random_state=0).fit(base_labels).labels_)


def test_consensus__k_auto(folder, base_labels):
    out, _ = cehm("consensus", "labels.npy", "--k", "auto", "-o", "out.zarr")
    facts = open_consensus("out.zarr").facts
    assert [solution["n_clusters"] for solution in facts["scan"]] == [facts["choice"]["n_clusters"]]
    assert facts["choice"]["reason"] in " ".join(out.split())
    assert facts["identity"]["n_clusters"] == "auto"
    np.testing.assert_array_equal(labels_of("out.zarr"), CEHM("auto", random_state=0).fit(base_labels).labels_)


@pytest.mark.parametrize("text", ["x", "", "1.5", "5..2", "..", "2..x", "1,,2"])
def test_consensus__k_that_is_none(folder, text):
    out, err = cehm("consensus", "labels.npy", "--k", text, code=2)
    assert out == ""
    assert "is neither a number (10) nor a list (5,8,10) nor a range (2..15)" in err


def test_id__left_out_by_import_and_generate(folder):
    rows = np.random.default_rng(0).normal(size=(60, 2)).round(3)
    frame = pd.DataFrame({"id": np.arange(60), "x": rows[:, 0], "y": rows[:, 1]})
    frame.to_csv("x.csv", index=False)
    assert "column 'id' names the rows and is no feature: leave it out (--id id)" in refused(
        "generate", "x.csv", "e.zarr", "--k", 3
    )
    cehm("generate", "x.csv", "e.zarr", "--k", 3, "--id", "id", "--members", 4, "--quiet")
    pd.DataFrame({"id": np.arange(60), "a": np.arange(60) % 3}).to_csv("p.csv", index=False)
    assert "column 'id' names the rows and is no member" in refused("import", "p.csv", "p.zarr")
    cehm("import", "p.csv", "p.zarr", "--id", "id", "--quiet")
    assert open_ensemble("p.zarr").names == ("a",)


@pytest.mark.parametrize("output", ["out.npy", "out.csv", "out.parquet", "out.zarr"])
def test_consensus__overwrites_only_when_asked(folder, wanted, output):
    cehm("consensus", "labels.npy", "--k", 3, "-o", output, "--quiet")
    before = labels_of(output)
    assert "--overwrite" in refused("consensus", "labels.npy", "--k", 5, "-o", output, "--quiet")
    np.testing.assert_array_equal(labels_of(output), before)
    cehm("consensus", "labels.npy", "--k", 5, "-o", output, "--quiet", "--overwrite")
    np.testing.assert_array_equal(labels_of(output), wanted.labels_)


def test_consensus__existing_output_is_seen_before_any_work(folder, monkeypatch):
    Path("out.npy").write_text("mine")
    monkeypatch.setattr(job, "find_consensus", lambda *_, **__: pytest.fail("it began to work"))
    refused("consensus", "labels.npy", "--k", 3, "-o", "out.npy")
    assert Path("out.npy").read_text() == "mine"


def test_consensus__the_ensemble_is_not_overwritten_by_its_consensus(folder):
    assert "is no consensus store" in refused("consensus", "labels.zarr", "--k", 5, "-o", "labels.zarr", "--overwrite")
    open_ensemble("labels.zarr").read(0, 200)


@pytest.mark.parametrize(("place", "name"), [(pd.DataFrame, "to_csv"), (os, "replace"), (os, "fsync")])
def test_consensus__file_is_replaced_whole_or_not_at_all(folder, monkeypatch, place, name):
    Path("out.csv").write_text("mine")
    before = sorted(folder.iterdir())

    def full(*args, **_):
        if name == "to_csv":
            args[1].write(b"label,mar")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(place, name, full)
    _, err = cehm("consensus", "labels.npy", "--k", 3, "-o", "out.csv", "--quiet", "--overwrite", code=6)
    assert err == "error: no space left on the disk: free some, and give the same command again\n"
    assert sorted(folder.iterdir()) == before
    assert Path("out.csv").read_text() == "mine"


REFUSED = {
    "no such file": (["consensus", "none.npy", "--k", "3"], "none.npy: no such file"),
    "no such store": (["consensus", "none.zarr", "--k", "3"], "none.zarr: not found"),
    "another ending": (["consensus", "labels.txt", "--k", "3"], "labels.txt: expected .npy, .csv, .tsv"),
    "more clusters than samples": (["consensus", "labels.npy", "--k", "201"], "n_clusters=201 > n_samples=200"),
    "more clusters than hyperedges": (["consensus", "labels.npy", "--k", "150"], "n_clusters=150 > n_hyperedges="),
    "no clusters": (["consensus", "labels.npy", "--k", "0"], "n_clusters=0: must be at least 1"),
    "output of another ending": (["consensus", "labels.npy", "--k", "3", "-o", "out.txt"], "out.txt: expected a name"),
    "output in no folder": (
        ["consensus", "labels.npy", "--k", "3", "-o", "no/out.npy"],
        "the folder no does not exist",
    ),
    "variant": (["consensus", "labels.npy", "--k", "3", "--variant", "x"], "variant='x': expected one of 'auto'"),
    "memory": (["consensus", "labels.npy", "--k", "3", "--memory", "lots"], "memory='lots': expected a number with"),
    "import: no such file": (["import", "none.csv", "e.zarr"], "none.csv: no such file"),
    "import: another ending": (["import", "labels.txt", "e.zarr"], "labels.txt: expected .npy, .csv, .tsv"),
    "import: exists": (["import", "labels.npy", "labels.zarr"], "exists: choose another name, or pass --overwrite"),
    "import: onto a folder": (["import", "labels.npy", ".", "--overwrite"], "is no ensemble store"),
    "info: nothing there": (["info", "none.zarr"], "none.zarr: not found"),
    "info: no store": (["info", "."], "not found"),
    "synth: exists": (["synth", "labels.zarr", "--n", "10"], "labels.zarr exists"),
    "synth: share": (["synth", "e.zarr", "--n", "10", "--follow", "2"], "follow=2.0: must lie between 0 and 1"),
    "synth: clusters": (["synth", "e.zarr", "--n", "10", "--k-max", "2"], "k_max=2 < k_min=10"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused__one_line_and_exit_code_2(folder, case):
    Path("labels.txt").write_text("0 1\n")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    args, message = REFUSED[case]
    assert message in refused(*args)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize("command", ["consensus", "import"])
def test_refused__broken_label_by_row_and_member(folder, base_labels, command):
    broken = base_labels.astype(float)
    broken[123, 4] = 2.5
    np.save("broken.npy", broken)
    args = ["--k", 3] if command == "consensus" else ["e.zarr"]
    assert "base labels hold 2.5 at row 123, member 4" in refused(command, "broken.npy", *args)


def test_refused__does_not_fit_the_memory_exit_code_3(folder):
    err = refused("consensus", "labels.zarr", "--k", 5, "--memory", "1MiB", "-o", "out.zarr", code=3)
    assert re.search(r"memory=1.00 MiB allowed < .* projected, most of it for ", err)
    assert not Path("out.zarr").exists()


def test_refused__missing_package(folder, monkeypatch):
    def describe(*_):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("cehm_dask.cli.display.describe", describe)
    assert "Install s3fs" in refused("info", "s3://bucket/e.zarr")


def test_verbose__shows_where_it_broke(folder):
    before = cli.logging.getLogger().level, cli.logging.getLogger("numba").level
    _, err = cehm("--verbose", "consensus", "none.npy", "--k", 3, code=2)
    assert "Traceback" in err
    assert "none.npy: no such file" in err
    assert (cli.logging.getLogger().level, cli.logging.getLogger("numba").level) == before


def test_warning__is_a_line(folder, base_labels):
    warnings.simplefilter("default", ConsensusWarning)
    frame = pd.DataFrame(base_labels, columns=list("abcdefgh")).assign(lazy=0)
    frame.to_csv("lazy.csv", index=False)
    _, err = cehm("consensus", "lazy.csv", "--k", 5, "--quiet")
    assert "warning: member lazy has 1 cluster(s): it adds nothing to the consensus\n" in err


def test_cluster__its_workers_do_the_sweeps(folder, wanted, monkeypatch):
    from distributed import LocalCluster

    monkeypatch.setattr(
        "cehm_dask.engine.sweep.Threads", lambda *_: pytest.fail("threads of this process were started")
    )
    options = {"processes": False, "protocol": "tcp://", "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(1, threads_per_worker=2, **options) as workers:
        address = workers.scheduler_address
        _, err = cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.npy", "--cluster", address)
    np.testing.assert_array_equal(labels_of("out.npy"), wanted.labels_)
    assert "dashboard: " in err


# --- the other commands ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["labels.npy", "labels.csv", "labels.parquet"])
def test_import__then_consensus(folder, wanted, source):
    out, _ = cehm("import", source, "e.zarr")
    assert re.search(r"samples +200 *\n", out)
    assert re.search(rf"source +{source} *\n", out)
    cehm("consensus", "e.zarr", "--k", 5, "-o", "out.npy")
    np.testing.assert_array_equal(labels_of("out.npy"), wanted.labels_)
    assert cehm("import", source, "e.zarr", "--overwrite", "--quiet") == ("", "")


def test_import__empty_cells_say_nothing(folder):
    Path("holes.csv").write_text("a,b\n1,x\n,y\n2,\n-1,x\n")
    cehm("import", "holes.csv", "e.zarr")
    assert open_ensemble("e.zarr").read(0, 4).tolist() == [[1, 1], [0, 2], [2, 0], [0, 1]]


def test_import__folder_of_parquet_files(folder, base_labels):
    Path("parts").mkdir()
    for number in range(2):
        pd.DataFrame(base_labels[100 * number :][:100]).rename(columns=str).to_parquet(f"parts/{number}.parquet")
    cehm("import", "parts", "e.zarr")
    np.testing.assert_array_equal(open_ensemble("e.zarr").read(0, 200), open_ensemble("labels.zarr").read(0, 200))


def test_info__ensemble(folder, base_labels):
    out, _ = cehm("info", "labels.zarr")
    ensemble = open_ensemble("labels.zarr")
    assert re.search(r"ensemble +labels\.zarr *\n", out)
    assert re.search(r"members +8 with \d+ to \d+ clusters, \d+ in all *\n", out)
    assert "30 rows per chunk, 120 per shard" in out
    assert ensemble.fingerprint in out


def test_info__finished_consensus(folder, wanted):
    cehm("consensus", "labels.npy", "--k", 5, "-o", "out.zarr")
    out, _ = cehm("info", "out.zarr")
    assert re.search(r"clusters +5 of 5 *\n", out)
    assert f"{wanted.agreement_:.4f} (mean NMI with the members)" in out
    assert "variant=auto" in out
    assert "belonging=" not in out  # each candidate has its own
    kept = next(one for one in wanted.candidates_ if one["kept"])
    said = " ".join(out.split())
    assert f"kept {kept['start']}, {kept['belonging']}: largest 2τ + evenness of" in said


def test_info__named_variant_has_its_settings_and_no_candidate(folder):
    cehm("consensus", "labels.npy", "--k", 5, "--variant", "released", "-o", "out.zarr")
    out, _ = cehm("info", "out.zarr")
    said = " ".join(out.split())
    assert "variant=released, similarity=jaccard, belonging=share, schedule=fixed" in said
    assert "kept" not in said


def test_info__unfinished_consensus(folder, base_labels):
    def interrupt(_event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CEHM(5, random_state=0).fit(base_labels, output="out.zarr", progress=interrupt)
    out, _ = cehm("info", "out.zarr")
    assert "unfinished; the command that began it resumes it" in out
    assert re.search(r"variant +auto *\n", out)


def test_synth__as_asked(folder):
    args = ["--members", 4, "--classes", 3, "--k-min", 2, "--k-max", 6, "--follow", 0.5, "--missing", 0.1, "--seed", 9]
    out, _ = cehm("synth", "e.zarr", "--n", "1e4", *args)
    assert re.search(r"samples +10,000 *\n", out)
    codes, truth = Synth(10_000, 4, 3, 2, 6, 0.5, 0.1, 9).rows(0, 10_000)
    ensemble = open_ensemble("e.zarr")
    np.testing.assert_array_equal(ensemble.read(0, 10_000), codes)
    np.testing.assert_array_equal(ensemble.truth, truth)


@pytest.mark.filterwarnings("error::cehm_dask.ConsensusWarning")
@pytest.mark.parametrize("n", ["3e3", "1e5"])
def test_synth__consensus_finds_all_classes_without_a_warning(folder, n):
    cehm("synth", "e.zarr", "--n", n)
    out, err = cehm("consensus", "e.zarr", "--k", 10, "-o", "c.zarr")
    assert "warning" not in out + err
    stored = open_consensus("c.zarr")
    assert stored.facts["n_clusters_found"] == 10
    assert stored.array("sizes")[:].min() > 0
    assert out.count("kept: ") == 1


def test_consensus__one_line_with_the_candidate_kept_and_why(folder, wanted):
    out, _ = cehm("consensus", "labels.npy", "--k", 5)
    assert [line for line in out.splitlines() if "kept" in line] == [f"kept: {wanted.candidate_reason_}"]
    out, _ = cehm("consensus", "labels.npy", "--k", 5, "--variant", "released")
    assert "kept" not in out


def test_consensus__help_names_every_variant(folder):
    assert tuple(VARIANTS) == OFFERED
    out, _ = cehm("consensus", "--help")
    assert f"[{'|'.join(VARIANTS)}]" in out
    assert "more starts are more candidates" in " ".join(out.split())


def test_progress__reads_well_without_diffusion(folder):
    _, err = cehm("consensus", "labels.npy", "--k", 5)
    rounds = [line for line in err.splitlines() if "round" in line]
    assert rounds[0] == "start: round 1, all 200 assigned, 200 moved"
    assert all(
        re.match(r"adjustion: round \d+, all 200 assigned, [\d,]+ moved, loss [\d.]+$", line) for line in rounds[1:]
    )
    assert "diffusion" not in err
    _, err = cehm("consensus", "labels.npy", "--k", 5, "--variant", "released")
    assert re.search(r"diffusion: round 2, \d+ of 200 assigned", err)


@pytest.mark.parametrize("n", ["0", "-5", "1.5", "nan", "inf", "-inf", "many", ""])
def test_synth__n_that_is_none(folder, n):
    _, err = cehm("synth", "e.zarr", "--n", n, code=2)
    assert "is not a whole number of at least 1" in err


@pytest.mark.filterwarnings("ignore:constant columns dropped", "error::cehm_dask.ConsensusWarning")
def test_demo__consensus_is_better_than_its_members(tmp_path):
    out, _ = cehm("demo", "--output", tmp_path / "demo")
    nmi = {name: float(value) for name, value in re.findall(r"^(\S.*?) {2,}(0\.\d+) +0\.\d+ *$", out, re.MULTILINE)}
    assert nmi["consensus"] > nmi["the 30 members, mean"] > 0.5
    assert nmi["consensus"] > nmi["k-means with 10 clusters, mean of 30 runs"]
    assert "1,797 samples, 30 members" in out
    assert re.search(r"^kept: .*largest 2τ \+ evenness of \d+ candidates", out, re.MULTILINE)
    assert open_consensus(str(tmp_path / "demo" / "consensus.zarr")).facts["n_clusters_found"] == 10
    assert re.search(r"^report: .*demo/report\.html$", out, re.MULTILINE)
    page = re.sub(r"<[^>]+>|\s", " ", (tmp_path / "demo" / "report.html").read_text())
    page = re.sub(" +", " ", page)
    for name, told in (
        ("consensus", "the consensus"),
        ("consensus, its more certain half", r"its more certain half .*?"),
    ):
        shown = re.search(rf"^{name} +(0\.\d+) +(0\.\d+) *$", out, re.MULTILINE)
        assert re.search(rf"{told} {shown[1]} {shown[2]} ", page)
    sweeps, took = re.search(r"(\d+) sweeps, (\S+ s); all steps", " ".join(out.split())).groups()
    assert f"time {took} {sweeps} sweeps" in page


@pytest.mark.parametrize("name", cli.main.commands)
def test_help__says_what_it_does_with_examples_that_parse(name):
    out, _ = cehm(name, "--help")
    command = cli.main.commands[name]
    assert len(command.help.split("\n")[0]) > 20
    assert all(option.help or option.show_default for option in command.params if option.param_type_name == "option")
    examples = re.findall(rf"^ +(cehm {name} .*)$", out, re.MULTILINE)
    assert examples or not [param for param in command.params if param.name != "store"]
    for example in examples:
        command.make_context(name, shlex.split(example.split(" | ")[0])[2:])  # raises if an option is misspelt


def test_help__main_lists_all_commands():
    out, _ = cehm("--help")
    for name, command in cli.main.commands.items():
        assert re.search(rf"^  {name} +{re.escape(command.help.split()[0])}", out, re.MULTILINE)
    assert cehm("--version")[0] == f"cehm, version {__version__}\n"


# --- names that look like markup ---------------------------------------------------------------------------------

ODD = "[red]odd[/red] [b]"
WORSE = "odd[/]"  # closes what was never opened: an error, if taken for markup


@pytest.mark.parametrize("name", [ODD, WORSE, "with spaces: and 'quotes'", "ümläut"])
def test_names__are_printed_as_they_are(folder, base_labels, name):
    assert f"{name}.npy: no such file" in refused("consensus", f"{name}.npy", "--k", 5)
    for path in (name, f"out {name}"):  # a slash makes it a file in a folder
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.save(f"{name}.npy", base_labels)
    _, err = cehm("consensus", f"{name}.npy", "--k", 5, "-o", f"out {name}.csv")
    assert f"written: out {name}.csv\n" in err
    out, _ = cehm("import", f"{name}.npy", f"{name}.zarr")
    assert f"{name}.npy" in out
    out, _ = cehm("info", f"{name}.zarr")
    assert f"{name}.zarr" in out
    assert f"{name}.npy" in out


@pytest.mark.parametrize("name", [ODD, WORSE])
def test_members__are_printed_as_they_are(folder, base_labels, name):
    warnings.simplefilter("default", ConsensusWarning)
    frame = pd.DataFrame(base_labels).assign(**{name: 0})
    frame.to_csv("odd.csv", index=False)
    _, err = cehm("consensus", "odd.csv", "--k", 5, "--quiet")
    assert f"warning: member {name} has 1 cluster(s)" in err
    frame.assign(**{name: -7}).to_csv("odd.csv", index=False)
    assert f"hold -7 at row 0, member {name}:" in refused("import", "odd.csv", "e.zarr")


# --- as people start it ------------------------------------------------------------------------------------------


def test_process__npy_to_csv(folder, wanted):
    command = [COMMAND, "consensus", "labels.npy", "--k", "5", "-o", "out.csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(labels_of("out.csv"), wanted.labels_)
    assert "200 samples, 8 members" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr  # colours are for terminals


def test_interrupt__exit_code_4(folder, monkeypatch):
    def fit(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(job, "find_consensus", fit)
    out, err = cehm("consensus", "labels.npy", "--k", 5, code=4)
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("interrupted; ")


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Enough rows that a run takes seconds, and labels so poor that it takes many rounds."""
    folder = tmp_path_factory.mktemp("large")
    Synth(200_000, 10, follow=0.3).write(str(folder / "e.zarr"))
    return folder


def test_process__interrupted_goes_on_to_the_same_labels(large):
    model = CEHM(10, "released", restarts=2, random_state=0).fit(large / "e.zarr", output=large / "whole.zarr")
    assert model.n_iter_ > 6
    args = [
        "consensus",
        large / "e.zarr",
        "--k",
        "10",
        "--variant",
        "released",
        "--restarts",
        "2",
        "-o",
        large / "c.zarr",
    ]
    with subprocess.Popen([COMMAND, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "round 2," in line:
                process.send_signal(signal.SIGINT)
                break
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert time.monotonic() - began < 30
    assert out == ""
    assert err.splitlines()[-1].startswith("interrupted; with an output that ends in .zarr, the same command resumes")
    assert "Traceback" not in err
    _, err = cehm(*args)
    assert "round 1," not in err  # it went on, and did not start anew
    np.testing.assert_array_equal(labels_of(large / "c.zarr"), model.labels_[:])


def test_import__whole_store_that_cannot_be_read_just_now(folder, monkeypatch, caplog):
    """Exit code 6 would ask for the same command again, which then finds a store that exists."""

    def unreachable(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("cehm_dask.cli.display.describe", unreachable)
    cehm("import", "labels.npy", "new.zarr")
    assert "new.zarr is written; it could not be read just now" in caplog.text
    assert np.array_equal(as_labels("new.zarr").read(0, 200), as_labels("labels.zarr").read(0, 200))
    assert "Input/output error" in refused("info", "new.zarr", code=6)


def test_consensus__whole_result_beside_a_checkpoint_that_stays(folder, monkeypatch, caplog):
    def unreachable(url):
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("cehm_dask.data.consensus_store.remove", unreachable)
        cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.zarr", code=6)  # before the start nothing may be left
    cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.zarr")
    with monkeypatch.context() as patch:
        finish = ConsensusStore.finish

        def finish_without(self, facts):
            patch.setattr("cehm_dask.data.consensus_store.remove", unreachable)
            finish(self, facts)

        patch.setattr(ConsensusStore, "finish", finish_without)
        cehm("consensus", "labels.zarr", "--k", 5, "-o", "other.zarr")
    assert "could not be removed (no answer)" in caplog.text
    assert np.array_equal(labels_of("other.zarr"), labels_of("out.zarr"))
    assert cehm("verify", "other.zarr")
