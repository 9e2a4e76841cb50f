"""Every kind of failure as a user and a scheduler meet it: one sentence and the exit code that tells the truth."""

import ast
import errno
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numba
import numpy as np
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError
from click.testing import CliRunner
from distributed import Client

from cehm_dask import CEHM, cli, job
from cehm_dask.clusters import connect as cluster
from cehm_dask.clusters import workers
from cehm_dask.clusters.workers import require_access
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.locks import Lock
from cehm_dask.data.synth import Synth
from cehm_dask.errors import (
    ALERT,
    BUDGET,
    BUG,
    BUSY,
    CLUSTER,
    INPUT,
    INTERRUPTED,
    RETRYABLE,
    STORAGE,
    CehmError,
    ClusterError,
    StoreError,
    exit_code_of,
    sentence_of,
)
from cehm_dask.method.jit import jit
from cehm_dask.pipeline import run
from cehm_dask.pipeline.recipe import example, parse
from tests.conftest import cehm, worker_processes
from tests.fuzzing import mutated

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

ROOT = Path(__file__).parent.parent
RECIPE = "labels: {path: e.zarr}\nconsensus: {k: 5}\noutput: run\n"
S3_FAULT = ClientError({"Error": {"Code": "SlowDown", "Message": "reduce your rate"}}, "PutObject")


def caused(error, cause):
    error.__cause__ = cause
    return error


class FsspecError(Exception):
    __module__ = "gcsfs.retry"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("x"), BUG),
        (ValueError("x"), BUG),
        (MemoryError("x"), BUDGET),
        (KeyboardInterrupt(), INTERRUPTED),
        (FileNotFoundError(2, "x"), INPUT),
        (PermissionError(13, "x"), INPUT),
        (OSError(errno.EROFS, "Read-only file system"), INPUT),
        (OSError(errno.ENAMETOOLONG, "x"), INPUT),
        (OSError(errno.ENOSPC, "x"), STORAGE),
        (OSError(errno.EIO, "x"), STORAGE),
        (ConnectionResetError("x"), STORAGE),
        (TimeoutError("x"), STORAGE),
        (S3_FAULT, STORAGE),
        (EndpointConnectionError(endpoint_url="http://x"), STORAGE),
        (NoCredentialsError(), INPUT),
        (FsspecError("x"), STORAGE),
        (StoreError("damaged"), INPUT),
        (caused(StoreError("cannot be read"), OSError(errno.EIO, "x")), STORAGE),
        (caused(StoreError("cannot be read"), S3_FAULT), STORAGE),
        (caused(StoreError("cannot be read"), ValueError("checksum")), INPUT),
        (caused(StoreError("not found"), FileNotFoundError("x")), INPUT),
        (ClusterError("x"), CLUSTER),
    ],
    ids=repr,
)
def test_exit_code__of_every_kind(error, code):
    assert exit_code_of(error) == code
    assert sentence_of(error)


def test_exit_code__of_a_full_array():
    with pytest.raises(MemoryError) as caught:
        np.empty(1 << 60, np.uint8)
    assert exit_code_of(caught.value) == BUDGET
    assert "allow less with --memory" in sentence_of(caught.value)


# --- as users meet them ------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with an ensemble and a recipe."""
    monkeypatch.chdir(tmp_path)
    Synth(400, 6, n_classes=5, k_min=6, k_max=9).write("e.zarr")
    Path("recipe.yaml").write_text(RECIPE)
    return tmp_path


def raising(error):
    def act(*_, **__):
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (
            OSError(28, "No space left", "x.zarr"),
            6,
            "no space left on the disk for x.zarr: free some, and give the same",
        ),
        (OSError(5, "Input/output error"), 6, "storage failed ([Errno 5] Input/output error): give the same command"),
        (S3_FAULT, 6, "storage failed (An error occurred (SlowDown) when calling the PutObject operation: reduce"),
        (NoCredentialsError(), 2, "Unable to locate credentials"),
        (
            MemoryError("Unable to allocate 9 EiB"),
            3,
            "out of memory (Unable to allocate 9 EiB): allow less with --memory",
        ),
    ],
    ids=["disk", "io", "s3", "credentials", "memory"],
)
def test_run__says_what_failed_and_goes_on_when_it_is_over(folder, monkeypatch, error, code, sentence):
    with monkeypatch.context() as patch:
        patch.setattr("cehm_dask.pipeline.run.evaluate", raising(error))
        out, err = cehm("run", "recipe.yaml", "--quiet", code=code)
    assert out == ""
    assert err.startswith(f"error: {sentence}")
    assert err.count("\n") == 1
    cehm("run", "recipe.yaml", "--quiet")


def test_run__a_disk_too_full_to_note_it(folder, monkeypatch):
    find = run.find_consensus

    with monkeypatch.context() as patch:

        def find_and_fill_the_disk(*args, **kwargs):
            found = find(*args, **kwargs)
            patch.setattr(os, "fsync", raising(OSError(28, "full")))
            return found

        patch.setattr(run, "find_consensus", find_and_fill_the_disk)
        _, err = cehm("run", "recipe.yaml", "--quiet", code=6)
    assert err.count("\n") == 1
    cehm("run", "recipe.yaml", "--quiet")
    assert not list(Path("run").glob(".cehm-*"))


def test_run__of_a_directory_that_is_taken_is_7(folder):
    lock = Lock(str(folder / "run"))
    lock.take()
    try:
        _, err = cehm("run", "recipe.yaml", "--quiet", code=BUSY)
    finally:
        lock.release()
    assert "is being written by another run" in err


def test_bug__is_1_with_its_traceback_and_a_line_that_asks_to_report_it(folder, monkeypatch):
    monkeypatch.setattr("cehm_dask.pipeline.run.evaluate", raising(IndexError("list index out of range")))
    _, err = cehm("run", "recipe.yaml", "--quiet", code=BUG)
    assert err.startswith("Traceback")
    assert "IndexError: list index out of range\n" in err
    assert err.splitlines()[-1] == "error: IndexError: this is a bug of cehm; please report it with the lines above"


def test_bug__in_lines_of_json_is_one_line(folder, monkeypatch):
    monkeypatch.setattr("cehm_dask.pipeline.run.evaluate", raising(IndexError("list index out of range")))
    _, err = cehm("--log-format", "json", "run", "recipe.yaml", code=BUG)
    assert all(line.startswith('{"time"') for line in err.splitlines())
    assert "Traceback" in err.splitlines()[-1]


@pytest.mark.parametrize(
    "args",
    [
        ["consensus", "labels.npy", "--k", "3"],
        ["import", "labels.npy", "new.zarr"],
        ["generate", "labels.npy", "new.zarr", "--k", "3"],
        ["evaluate", "c.zarr", "--truth", "labels.npy"],
        ["describe", "c.zarr", "--features", "labels.npy"],
        ["predict", "c.zarr", "labels.npy", "-o", "new.csv"],
        ["report", "c.zarr", "--ids", "labels.npy"],
        ["report", "c.zarr", "--features", "labels.npy"],
        ["compare", "labels.npy", "--k", "3"],
        ["run", "recipe.yaml", "--quiet", "--set", "labels.path=labels.npy"],
        ["plan", "recipe.yaml", "--set", "labels.path=labels.npy"],
    ],
    ids=lambda args: " ".join(args[:3]),
)
@pytest.mark.parametrize("content", ["empty", "cut"])
def test_npy__that_is_no_whole_file_is_named(folder, args, content):
    CEHM(5, random_state=0).fit("e.zarr", output="c.zarr")
    np.save("labels.npy", np.zeros((400, 6), np.uint8))
    Path("labels.npy").write_bytes(b"" if content == "empty" else Path("labels.npy").read_bytes()[:-9])
    _, err = cehm(*args, code=INPUT)
    assert re.fullmatch(
        r"error: .*labels\.npy: no whole \.npy file \(.*\); write it again with numpy\.save(\. If .*--ensembles 30)?\n",
        err,
    )


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (np.int64(3), "base labels have shape ()"),
        (np.full((5, 2), -5), "base labels hold -5 at row 0, member 0"),
        (np.zeros((5, 0), int), "n_members=0"),
        (np.zeros(5, [("a", int)]), "base labels have shape (5,)"),
    ],
    ids=["scalar", "negative", "no columns", "records"],
)
@pytest.mark.parametrize("command", ["consensus", "import"])
def test_npy__that_holds_no_labels(folder, command, labels, sentence):
    np.save("labels.npy", labels)
    _, err = cehm(command, "labels.npy", *(["--k", "3"] if command == "consensus" else ["new.zarr"]), code=INPUT)
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sentence in err or command == "import"


@pytest.mark.parametrize("url", ["s3x://bucket/e.zarr", "s3://", "http://127.0.0.1:9/e.zarr"])
def test_url__of_no_place_is_said_in_a_line(folder, url):
    _, err = cehm("info", url, code=STORAGE if "127" in url else INPUT)
    assert err.startswith("error: ")
    assert "Traceback" not in err


SESSIONS = []
"""File systems that were pushed aside: one that is collected complains of its open session, in any test."""


@pytest.fixture
def s3fs_of_its_own():
    """s3fs remembers the first endpoint that it meets: neither an earlier test's, nor this one's for a later test."""
    s3fs = pytest.importorskip("s3fs")
    known = s3fs.S3FileSystem._cache
    before = dict(known)
    known.clear()
    yield s3fs
    SESSIONS.extend(known.values())
    known.clear()
    known.update(before)


@pytest.mark.parametrize(
    ("status", "name", "code", "sentence"),
    [
        (503, "SlowDown", STORAGE, "storage failed ("),
        (500, "InternalError", STORAGE, "storage failed ("),
        (403, "AccessDenied", INPUT, "access denied (Forbidden)"),
        (404, "NoSuchBucket", INPUT, "not found ("),
        (None, "", STORAGE, "storage failed (Could not connect to the endpoint URL"),
    ],
)
def test_s3__faults_are_told_apart_from_mistakes(folder, monkeypatch, s3fs_of_its_own, status, name, code, sentence):
    class Faulty(BaseHTTPRequestHandler):
        def answer(self):
            body = f"<?xml version='1.0'?><Error><Code>{name}</Code><Message>{name}</Message></Error>".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815

        def log_message(self, *_):
            pass

    keys = {"AWS_ACCESS_KEY_ID": "AKIA-test", "AWS_SECRET_ACCESS_KEY": "not-a-real-secret", "AWS_MAX_ATTEMPTS": "1"}
    for variable, value in {**keys, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setattr(s3fs_of_its_own.S3FileSystem, "retries", 1)
    with ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = 9 if status is None else server.server_port
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        np.save("labels.npy", np.zeros((20, 2), np.uint8))
        _, err = cehm("import", "labels.npy", "s3://bucket/new.zarr", code=code)
        server.shutdown()
    assert err.splitlines()[-1].startswith(f"error: {sentence}")
    assert "not-a-real-secret" not in err


def test_cluster_file__odd_tags(folder):
    for text in ("kind: !!python/name:os.system x", "kind: !!binary x", "kind: !!bool maybe", "a: *b", "[" * 5000):
        Path("c.yaml").write_text(text)
        _, err = cehm("cluster", "check", "c.yaml", code=INPUT)
        assert "not YAML" in err


def test_run_directory__leftovers_of_a_killed_run_are_removed_and_keep_nobody_out(folder):
    Path("run").mkdir()
    Path(f"run/.cehm-{'0' * 16}.half").write_bytes(b"{")
    cehm("run", "recipe.yaml", "--quiet")
    assert not list(Path("run").glob(".cehm-*"))


@pytest.mark.parametrize("content", ["{}", "[]", "x", '{"format": "cehm run", "version": 2, "steps": {"export": {}}}'])
def test_run_directory__whose_state_is_damaged(folder, content):
    Path("run").mkdir()
    Path("run/run.json").write_text(content)
    for args in (["run", "recipe.yaml"], ["status", "run"]):
        _, err = cehm(*args, code=INPUT)
        assert "run.json" in err


# --- clusters that are lost --------------------------------------------------------------------------------------

SERVER = [
    sys.executable,
    "-m",
    "distributed.cli.dask_scheduler",
    "--host",
    "127.0.0.1",
    "--port",
    "0",
    "--no-dashboard",
]
WORKER = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads", "1", "--no-dashboard", "--no-nanny"]


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler process with a worker process, and a cluster file that names it."""
    file = tmp_path / "scheduler.json"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*SERVER, "--scheduler-file", file], **quiet) as process:
        worker = subprocess.Popen([*WORKER, "--scheduler-file", file, "--death-timeout", "60"], **quiet)
        try:
            deadline = time.monotonic() + 60
            while not (file.exists() and file.read_text().endswith("}")):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            address = ast.literal_eval(re.search(r'"address": ("[^"]*")', file.read_text())[1])
            (tmp_path / "cluster.yaml").write_text(f"kind: address\naddress: {address}\nwait_seconds: 3\n")
            with Client(address, timeout=60, set_as_default=False) as client:
                client.wait_for_workers(1, timeout=60)
            yield process
        finally:
            for one in (process, worker):
                one.kill()
                one.wait()


def test_scheduler__lost_in_the_middle_is_5_and_the_run_goes_on_without_it(folder, scheduler, monkeypatch):
    began = []

    def end(self, _event):
        if not began:
            scheduler.kill()
            scheduler.wait()
            began.append(time.monotonic())

    monkeypatch.setattr("cehm_dask.cli.display.Rounds.round_done", end)
    settings = ["consensus", "e.zarr", "--k", "5", "--variant", "released", "-o", "c.zarr", "--quiet"]
    _, err = cehm(*settings, "--cluster", "cluster.yaml", code=CLUSTER)
    assert time.monotonic() - began[0] < 25
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert re.match(r"error: the cluster was lost.*; the same command resumes from here", lines[-1])
    assert "Traceback" not in err
    cehm(*settings)
    alone = CEHM(5, random_state=0, variant="released").fit("e.zarr")
    np.testing.assert_array_equal(open_consensus("c.zarr").array("labels")[:], alone.labels_)


@pytest.mark.parametrize(
    "error",
    [KeyError("workers"), AttributeError("'NoneType' object has no attribute 'broadcast'"), TimeoutError("no answer")],
    ids=repr,
)
def test_lost__whatever_call_fails_without_a_scheduler(error):
    client = type("Client", (), {"status": "connecting"})
    with pytest.raises(ClusterError, match="the cluster was lost"), cluster.told_when_lost(client):
        raise error


def test_lost__a_bug_is_not_taken_for_it():
    client = type("Client", (), {"status": "running"})
    with pytest.raises(KeyError), cluster.told_when_lost(client):
        raise KeyError("workers")


def test_worker__lost_in_the_access_check(folder, monkeypatch):
    def look(*_, **__):
        os._exit(1)

    with worker_processes(1) as (_, client):
        monkeypatch.setattr(workers, "_look", look)
        with pytest.raises(ClusterError, match=r"worker tcp://\S+ does not answer \(.+\)|the cluster was lost"):
            require_access(client, [str(folder / "e.zarr")])


# --- processes ---------------------------------------------------------------------------------------------------


def started(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "cehm_dask", *map(str, args)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=240,
        **options,
    )


@pytest.mark.parametrize("args", [["recipe", "--schema"], ["info", "e.zarr"]])
def test_pipe__that_nobody_reads_ends_the_command_quietly(folder, args):
    ours, theirs = os.pipe()
    os.close(ours)
    done = started(*args, stdout=theirs)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (INTERRUPTED, "")


@pytest.mark.parametrize("args", [["consensus", "e.zarr", "--k", "5"], ["run", "recipe.yaml", "--quiet"]])
def test_terminated__is_4_for_every_command(folder, monkeypatch, args):
    def fit(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(job, "find_consensus", fit)
    monkeypatch.setattr(run, "find_consensus", fit)
    _, err = cehm(*args, code=INTERRUPTED)
    assert err.splitlines()[-1].startswith("interrupted; ")
    assert signal.getsignal(signal.SIGTERM) is before


KERNEL = """\
import logging, sys
logging.basicConfig(level=logging.INFO)
import numpy as np
from cehm_dask.method import counting
print(counting.__file__)
table = np.zeros((4, 4), np.int32)
counting.intersections(np.array([[0, 1]], np.uint8), np.array([0, 2], np.uint64), table)
print(int(table.sum()))
"""


def test_numba__without_a_place_for_its_cache(tmp_path):
    # As in a pod whose home and packages are read-only; root may write everywhere, so files stand where folders would.
    shutil.copytree(ROOT / "cehm_dask", tmp_path / "cehm_dask", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "cehm_dask" / "method" / "__pycache__").touch()
    places = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "NUMBA_CACHE_DIR": "/dev/null/x"}
    environment = {**os.environ, **places, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KERNEL], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "cehm_dask" / "method" / "counting.py"), "3"]
    assert "intersections is compiled again in every process" in done.stderr


def test_numba__whose_cache_has_no_room_left(monkeypatch, caplog):
    # The place is there and may be written to; only then is it found to be full.
    def save(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "kernels.nbi")

    def doubled(number):
        return 2 * number

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "save", save)
    compiled = jit(doubled)
    with caplog.at_level(logging.INFO, logger="cehm_dask"):
        assert compiled(21) == 42
    assert "doubled is compiled again in every process ([Errno 28] No space left on device" in caplog.text
    assert compiled(21.5) == 43


# --- recipes that nobody would write -----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_recipe__mutated_is_taken_or_refused_in_a_line(tmp_path, seed):
    rng = random.Random(seed)
    seeds = [example(), *(path.read_text() for path in sorted((ROOT / "pipelines").glob("*.yaml")))]
    path, taken = tmp_path / "r.yaml", 0
    for _ in range(100):
        text = mutated(rng.choice(seeds), rng)
        overrides = [mutated("consensus.k=3", rng)] if rng.random() < 0.2 else []
        began = time.monotonic()
        try:
            parse(text, overrides, {"BUCKET": "b", "DATA": "/data", "X": "1"})
            taken += 1
        except CehmError:
            pass
        path.write_text(text, errors="surrogatepass")
        given = [part for override in overrides for part in ("--set", override)]
        result = CliRunner().invoke(cli.main, ["recipe", "--check", str(path), *given])
        assert result.exit_code in (0, INPUT), (text, overrides, result.stderr)
        assert time.monotonic() - began < 10, text
    assert taken


# --- whoever acts on the codes -----------------------------------------------------------------------------------


def constant(path, name):
    """A dictionary that a file assigns to a name."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == name:
            return ast.literal_eval(node.value)
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["airflow_dag.py", "dagster_defs.py"])
def test_pipelines__try_again_what_may_succeed(name):
    path = ROOT / "pipelines" / name
    assert set(constant(path, "RETRIED")) == RETRYABLE
    assert set(constant(path, "HOPELESS")) == {BUG, INPUT, BUDGET, ALERT}
    assert "cehm_dask" not in {
        part.name.partition(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        for part in node.names
    }


def test_systemd__restarts_after_what_may_succeed():
    text = (ROOT / "pipelines" / "cehm-daily.service").read_text()
    prevented = re.search(r"^RestartPreventExitStatus=(.*)$", text, re.MULTILINE)[1]
    assert set(map(int, prevented.split())) == set(range(1, 9)) - RETRYABLE


def test_docs__have_the_same_codes():
    table = re.findall(
        r"^\| (\d) \| .+ \| (yes|no)?[^|]*\|$", (ROOT / "docs" / "exit-codes.md").read_text(), re.MULTILINE
    )
    assert dict(table) == {str(code): {0: ""}.get(code, "yes" if code in RETRYABLE else "no") for code in range(9)}
