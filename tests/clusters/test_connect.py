"""Clusters: files that are checked, workers that are waited for, and nothing left running, whatever happens."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from cehm_dask import CEHM
from cehm_dask.clusters import connect as cluster
from cehm_dask.clusters import workers
from cehm_dask.clusters.certificates import make_certificates
from cehm_dask.clusters.config import KINDS, NEVER_RUN, PINNED, read_config
from cehm_dask.clusters.connect import connect
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ingest import ingest
from cehm_dask.data.synth import Synth
from cehm_dask.errors import BudgetError, ClusterError
from tests.conftest import cehm, worker_processes

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

CONFIGS = Path(__file__).parents[2] / "cluster_configs"


@pytest.fixture(scope="module")
def base_labels():
    labels, _ = Synth(2000, 8, n_classes=5, k_min=6, k_max=12).arrays()
    return labels


@pytest.fixture(scope="module")
def wanted(base_labels):
    return CEHM(5, random_state=0).fit(base_labels).labels_


@pytest.fixture
def folder(base_labels, tmp_path, monkeypatch):
    """The current folder, with an ensemble of several shards."""
    monkeypatch.chdir(tmp_path)
    ingest(base_labels, "labels.zarr", chunk_rows=100)
    return tmp_path


def config_file(folder, **keys):
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(keys))
    return str(path)


def processes(folder, **keys):
    return config_file(folder, **{"kind": "processes", "workers": 1, "memory": "1GiB", **keys})


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def answers(port):
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def children():
    """Processes started here that still run, the helper of multiprocessing aside."""
    found = psutil.Process().children(recursive=True)
    return [child for child in found if "resource_tracker" not in " ".join(child.cmdline())]


@pytest.fixture
def nothing_left():
    """Nothing runs afterwards that did not run before, nor was started by what did: others' workers may come late."""
    before = set(children())
    yield
    _, alive = psutil.wait_procs(set(children()) - before, timeout=10)
    assert [process for process in alive if before.isdisjoint(process.parents())] == []


# --- files -------------------------------------------------------------------------------------------------------

FILLED = {
    "<HOST>": "127.0.0.1",
    "<NETWORK>": "lo",
    "<PARTITION>": "debug",
    "<QUEUE>": "debug",
    "<IMAGE>": "registry/cehm:1",
    "<URL>": "http://127.0.0.1:8000",
}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_file__is_valid_once_its_blanks_are_filled(path, tmp_path):
    make_certificates(tmp_path / "certs")
    text = path.read_text()
    used = [blank for blank in FILLED if blank in text]
    for blank in used:
        text = text.replace(blank, FILLED[blank])
    (tmp_path / path.name).write_text(text)
    read_config(str(tmp_path / path.name))
    if used:
        with pytest.raises(ValueError, match=re.escape(used[0])):
            read_config(str(path))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_file__what_it_offers_in_comments_is_valid_too(path, tmp_path):
    make_certificates(tmp_path / "certs")
    text = re.sub(r"^# ([a-z_]+: )", r"\1", path.read_text(), flags=re.MULTILINE)
    for blank, value in FILLED.items():
        text = text.replace(blank, value)
    (tmp_path / path.name).write_text(text)
    read_config(str(tmp_path / path.name))


def test_shipped_files__cover_every_kind():
    kinds = {yaml.safe_load(path.read_text())["kind"] for path in CONFIGS.glob("*.yaml")}
    assert kinds == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_configs__say_which_queues_were_never_run(kind):
    texts = [path.read_text() for path in CONFIGS.glob("*.yaml")]
    said = [f"\nkind: {kind}" in text for text in texts if "\n# Never run yet: " in text]
    assert any(said) == (kind in NEVER_RUN)


PROCESSES = {"kind": "processes", "memory": "1GiB"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "no kind; expected one of threads, processes"),
        ({"kind": "cloud"}, "kind: cloud; expected one of threads, processes"),
        ({**PROCESSES, "worker": 3}, r"worker: unknown key; did you mean 'workers'\?"),
        ({**PROCESSES, "colour": 3}, "colour: unknown key; expected one of dashboard, "),
        ({"kind": "processes"}, "memory: is missing"),
        ({**PROCESSES, "workers": 0}, "workers: 0: must be more than 0"),
        ({**PROCESSES, "workers": {"minimum": 3, "maximum": 2}}, "workers.maximum: 2: less than minimum=3"),
        ({**PROCESSES, "workers": {"least": 3, "maximum": 4}}, "workers.least: unknown key"),
        ({**PROCESSES, "environment": {"A;B": "1"}}, "environment.A;B"),
        ({**PROCESSES, "memory": "many"}, "memory='many': expected a number with a unit"),
        ({"kind": "address", "address": "127.0.0.1:8786"}, "address: '127.0.0.1:8786': expected text of the form"),
        ({"kind": "address", "address": "tls://<HOST>:8786"}, r"fill in address \(<HOST>\)"),
        ({"kind": "ssh", "memory": "1GB", "scheduler": "a", "hosts": ["a", "<B>"]}, r"fill in hosts\[1\] \(<B>\)"),
        ({"kind": "address", "address": "tls://h:1", "tls": dict.fromkeys(("ca", "cert", "key"), "x")}, "no file .*/x"),
    ],
)
def test_file__what_is_wrong_is_named(tmp_path, keys, words):
    path = config_file(tmp_path, **keys)
    with pytest.raises(ValueError, match=words):
        read_config(path)
    assert "error: " in cehm("cluster", "check", path, code=2)[1]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere.yaml", "neither a file nor an address"),
        ("http://127.0.0.1:8786", "expected tcp://HOST:PORT"),
        ("tcp://127.0.0.1", "expected tcp://HOST:PORT"),
    ],
)
def test_spec__that_names_no_cluster(spec, words):
    with pytest.raises(ValueError, match=words):
        read_config(spec)


def test_file__is_data_and_nothing_else(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text("kind: !!python/object/apply:os.system ['touch gone']")
    with pytest.raises(ValueError, match="not YAML"):
        read_config(str(path))


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [
        ("slurm", "dask_jobqueue", "slurm"),
        ("lsf", "dask_jobqueue", "lsf"),
        ("ssh", "asyncssh", "ssh"),
        ("kubernetes", "dask_kubernetes.operator", "kubernetes"),
        ("gateway", "dask_gateway", "gateway"),
    ],
)
def test_missing_extra__is_named(tmp_path, monkeypatch, kind, module, extra):
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    keys = {"kind": kind, "memory": "1GiB"}
    keys |= {"walltime": "1:00", "log_directory": str(tmp_path)} if kind in ("slurm", "lsf") else {}
    keys |= {"scheduler": "127.0.0.1", "hosts": ["127.0.0.1"]} if kind == "ssh" else {}
    keys |= {"image": "x"} if kind == "kubernetes" else {}
    if kind == "gateway":
        keys = {"kind": kind, "address": "http://127.0.0.1:1"}
    _, err = cehm("cluster", "check", config_file(tmp_path, **keys), code=2)
    assert f"pip install 'cehm-dask[{extra}]'" in err


@pytest.mark.parametrize(
    ("kind", "named", "header"),
    [
        (
            "slurm",
            {"account": "project"},
            ["#SBATCH -p short", "#SBATCH -A project", "#SBATCH -t 00:30:00", "#SBATCH -x n1"],
        ),
        (
            "pbs",
            {"account": "project"},
            ["#PBS -q short", "#PBS -A project", "#PBS -l walltime=00:30:00", "#PBS -x n1"],
        ),
        (
            "sge",
            {"project": "project"},
            ["#$ -q short", "#$ -P project", "#$ -l h_rt=00:30:00", "#$ -S /bin/bash", "#$ -x n1"],
        ),
        ("lsf", {"project": "project"}, ["#BSUB -q short", '#BSUB -P "project"', "#BSUB -W 00:30", "#BSUB -x n1"]),
    ],
)
def test_job_script__says_what_the_file_says(tmp_path, kind, named, header):
    pytest.importorskip("dask_jobqueue", reason="the extra slurm is not installed")
    keys = {"queue": "short", "walltime": "00:30" if kind == "lsf" else "00:30:00", "directives": ["-x n1"], **named}
    keys |= {"memory": "2GiB", "threads": 3, "log_directory": str(tmp_path), "prologue": ["module load python"]}
    spec = config_file(tmp_path, kind=kind, environment={"NAME": "it's"}, **keys)
    with cluster._start(read_config(spec)) as queue:
        script = queue.job_script().splitlines()
    for line in [*header, "export OMP_NUM_THREADS=1", "module load python", "export NAME='it'\"'\"'s'"]:
        assert line in script
    worker = script[-1]
    assert worker.startswith(f"{sys.executable} -m distributed.cli.dask_worker tcp://127.0.0.1:")
    for words in ("--nthreads 3", "--memory-limit 2.00GiB", "--interface lo", "--no-dashboard"):
        assert words in worker


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """Commands of a queue: takes as many jobs as ``taken`` says and starts none; notes what it is told to cancel."""
    pytest.importorskip("dask_jobqueue", reason="the extra slurm is not installed")
    folder = tmp_path / "queue"
    folder.mkdir()
    # Jobs are handed in side by side: making a folder is what only one of them can do.
    count = "i=1; until mkdir job$i 2>/dev/null; do i=$((i + 1)); done"
    refuse = 'if [ $i -gt "$(cat taken)" ]; then echo "no such partition" >&2; exit 1; fi'
    (folder / "sbatch").write_text(f'#!/bin/sh\ncd {folder}\n{count}\n{refuse}\necho "Submitted batch job $i"\n')
    (folder / "scancel").write_text(f'#!/bin/sh\necho "$1" >> {folder}/cancelled\n')
    for name in ("sbatch", "scancel"):
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def queued(folder, **keys):
    return config_file(
        folder, kind="slurm", memory="1GiB", walltime="1:00", log_directory=str(folder), workers=2, **keys
    )


@pytest.mark.parametrize("taken", [0, 1])
def test_queue__that_refuses_a_job_is_heard_at_once(folder, queue, taken, nothing_left):
    (queue / "taken").write_text(str(taken))
    began = time.perf_counter()
    _, err = cehm("cluster", "check", queued(folder, wait_seconds=60), code=5)
    assert time.perf_counter() - began < 30
    assert "error: the slurm cluster did not start" in err
    assert "no such partition" in err
    assert "Traceback" not in err
    assert (queue / "cancelled").exists() == (taken == 1)


def test_queue__jobs_that_never_start_are_cancelled(folder, queue, nothing_left):
    (queue / "taken").write_text("2")
    _, err = cehm("cluster", "check", queued(folder, wait_seconds=2), code=5)
    assert "waited 2 s (wait_seconds) for 2 worker(s) of the slurm cluster, 0 came" in err
    assert sorted((queue / "cancelled").read_text().split()) == ["1", "2"]


# --- threads and processes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [None, str(CONFIGS / "local-threads.yaml")])
def test_threads__are_no_cluster(spec):
    with connect(spec) as client:
        assert client is None


def test_check__threads(folder):
    out, _ = cehm("cluster", "check", CONFIGS / "local-threads.yaml")
    assert "threads of this process" in out


def test_processes__same_labels_and_nothing_left(folder, wanted, nothing_left):
    spec = processes(folder, workers=2, environment={"CEHM_TRIED": "yes"})
    with connect(spec) as client:
        model = CEHM(5, random_state=0).fit("labels.zarr", client=client, output="out.zarr")
        np.testing.assert_array_equal(model.labels_[:], wanted)
        surroundings = client.run(lambda: dict(os.environ))
        workers = client.scheduler_info()["workers"]
        listening = {
            connection.laddr.ip
            for process in [psutil.Process(), *children()]
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
    assert len(surroundings) == 2
    for environment in surroundings.values():
        assert {name: environment[name] for name in PINNED} == PINNED
        assert environment["CEHM_TRIED"] == "yes"
    assert {worker["memory_limit"] for worker in workers.values()} == {1 << 30}
    assert listening == {"127.0.0.1"}
    assert not list(folder.glob(".cehm-probe*"))


def test_processes__as_many_as_there_is_work_for(folder, nothing_left):
    with connect(processes(folder, workers={"minimum": 1, "maximum": 2})) as client:
        assert len(client.scheduler_info()["workers"]) == 1
        futures = client.map(time.sleep, [0.3] * 40, pure=False)
        client.wait_for_workers(2, timeout=60)
        client.cancel(futures)


def test_error_inside__passes_and_nothing_is_left(folder, nothing_left):
    with pytest.raises(ZeroDivisionError), connect(processes(folder)):
        _ = 1 / 0


def test_check__says_what_there_is(folder, nothing_left):
    out, _ = cehm("cluster", "check", processes(folder), "--input", "labels.zarr", "--output", "o.zarr", "--json")
    found = json.loads(out)
    [worker] = found["workers"]
    assert (worker["threads"], worker["memory"], worker["unpinned"]) == (1, 1 << 30, [])
    assert found["versions"]["cehm_dask"]
    assert found["bytes_a_second"] > 0
    assert sorted(path.name for path in folder.iterdir()) == ["cluster.yaml", "labels.zarr"]


# --- what keeps a cluster from its work --------------------------------------------------------------------------


def test_memory__too_little_for_a_worker(folder, nothing_left):
    _, err = cehm("consensus", "labels.zarr", "--k", 5, "--cluster", processes(folder, memory="100MB"), code=3)
    assert "memory=100MB per worker < 300.00 MiB that Python and the libraries take" in err
    with pytest.raises(BudgetError), connect(processes(folder, memory="100MB")):
        pass


def test_address__nobody_there(folder):
    spec = config_file(folder, kind="address", address="tcp://127.0.0.1:1", wait_seconds=5)
    _, err = cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.zarr", "--cluster", spec, code=5)
    assert re.search(r"error: no Dask scheduler at tcp://127.0.0.1:1: .*(refused|Timed out).*; is it running", err)
    assert not Path("out.zarr").exists()


def test_workers__that_never_start(folder):
    from distributed import LocalCluster

    options = {"processes": False, "host": "127.0.0.1", "protocol": "tcp://", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(1, **options) as short:
        spec = config_file(folder, kind="address", address=short.scheduler_address, workers=2, wait_seconds=1)
        _, err = cehm("consensus", "labels.zarr", "--k", 5, "--cluster", spec, code=5)
    assert "error: waited 1 s (wait_seconds) for 2 worker(s) of the address cluster, 1 came" in err


def test_workers__load_nothing_that_only_the_coordinator_needs(tmp_path):
    heavy = {"sklearn", "pandas", "scipy.optimize", "matplotlib"}
    Synth(20_000, 8).write(str(tmp_path / "e.zarr"))
    with worker_processes() as (_, client):
        CEHM(5, restarts=3, random_state=0).fit(
            str(tmp_path / "e.zarr"), client=client, output=str(tmp_path / "c.zarr")
        )
        loaded = client.run(lambda: heavy & set(sys.modules))
    assert len(loaded) == 2
    assert not set().union(*loaded.values())


def test_versions__that_differ(two_processes, monkeypatch):
    workers.check_versions(two_processes)
    theirs = two_processes.get_versions(packages=["numba", "cehm_dask"])
    for package, version in (("numba", "0.0"), ("cehm_dask", "0.0"), ("python", "3.1.0.final.0")):
        changed = {**theirs, "client": {"packages": {**theirs["client"]["packages"], package: version}}}
        monkeypatch.setattr(two_processes, "get_versions", lambda changed=changed, **_: changed)
        with pytest.raises(ClusterError, match=rf"worker tcp://.* has {package} [0-9.]+, this process [0-9.]+"):
            workers.check_versions(two_processes)


def test_package__not_installed_on_workers(folder, two_processes, monkeypatch):
    theirs = two_processes.get_versions(packages=["numba", "cehm_dask"])
    for worker in theirs["workers"].values():
        worker["packages"]["cehm_dask"] = None
    monkeypatch.setattr(two_processes, "get_versions", lambda **_: theirs)
    with pytest.raises(ClusterError, match="has cehm_dask not installed"):
        workers.check_versions(two_processes)


def test_store__that_a_worker_does_not_see(folder, nothing_left):
    # Relative to a folder that this process has and its workers do not: as on a machine with disks of its own.
    spec = processes(folder)
    with connect(spec) as client:
        client.run(blind, str(folder))
        with pytest.raises(ClusterError, match=r"worker tcp://.* does not see .*labels.zarr \(nothing there\)"):
            CEHM(5).fit("labels.zarr", client=client, output="out.zarr")
        client.run(other_disk, str(folder))
        with pytest.raises(ClusterError, match=r"sees another .*labels.zarr"):
            workers.require_access(client, ["labels.zarr"])
        with pytest.raises(ClusterError, match=r"writes .*out.zarr where this process does not see it"):
            workers.require_access(client, [], ["out.zarr"])
    assert not Path("out.zarr").exists()


def blind(folder):
    """On a worker: a folder is not there."""
    workers.trace = lambda url: None if url.startswith(folder) else "digest"


def other_disk(folder):
    """On a worker: a folder is there, with other content."""
    workers.trace = lambda url: "another"
    workers.write_whole = lambda *_: None


def test_output__that_workers_cannot_write(folder, two_processes):
    Path("file").touch()
    with pytest.raises(ClusterError, match=r"cannot write .*file/out.zarr \(NotADirectoryError"):
        workers.require_access(two_processes, [], ["file/out.zarr"])


def test_budget__of_workers_too_small_for_the_problem(folder, two_processes):
    address = two_processes.scheduler.address
    _, err = cehm("consensus", "labels.zarr", "--k", 5, "--cluster", address, "--memory", "10MB", code=3)
    assert "allowed <" in err


def test_cluster__lost_in_the_middle(folder, nothing_left):
    import dask

    words = r"a task lost its worker 1 times \(tcp://.*\), most likely because memory ran out"
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        pytest.raises(ClusterError, match=words),
        connect(processes(folder)) as client,
    ):
        client.submit(os._exit, 1, pure=False).result()


# --- TLS ---------------------------------------------------------------------------------------------------------


def test_certs__modes_names_and_no_overwriting(tmp_path):
    out, _ = cehm("cluster", "certs", tmp_path / "certs", "--host", "node7", "--host", "10.1.2.3")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "certs").iterdir()}
    assert modes == {"ca.pem": 0o644, "ca-key.pem": 0o600, "node.pem": 0o644, "node-key.pem": 0o600}
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700
    assert [Path(line).name for line in out.splitlines()] == ["ca.pem", "ca-key.pem", "node.pem", "node-key.pem"]
    before = (tmp_path / "certs" / "ca.pem").read_bytes()
    _, err = cehm("cluster", "certs", tmp_path / "certs", code=2)
    assert "exists and is not empty" in err
    assert (tmp_path / "certs" / "ca.pem").read_bytes() == before


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_certs__stand_before_openssl(tmp_path):
    make_certificates(tmp_path / "certs", ["node7", "10.1.2.3"])
    for purpose in ("sslserver", "sslclient"):
        command = ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile", "ca.pem", "node.pem"]
        subprocess.run(command, cwd=tmp_path / "certs", check=True, capture_output=True)
    shown = subprocess.run(
        ["openssl", "x509", "-in", "node.pem", "-noout", "-ext", "subjectAltName"],
        cwd=tmp_path / "certs", check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert "DNS:localhost, IP Address:127.0.0.1, DNS:node7, IP Address:10.1.2.3" in shown


@contextmanager
def started(log, *args):
    """A process of its own, ended with the block."""
    with open(log, "w") as file:
        process = subprocess.Popen([sys.executable, "-m", "dask", *args], stdout=file, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """A scheduler and two workers as processes of their own, with our certificates: address and folder."""
    folder = tmp_path_factory.mktemp("tls")
    make_certificates(folder / "certs")
    ca, _, cert, key = ((folder / "certs" / name) for name in ("ca.pem", "ca-key.pem", "node.pem", "node-key.pem"))
    files = ["--tls-ca-file", str(ca), "--tls-cert", str(cert), "--tls-key", str(key)]
    note = folder / "scheduler.json"
    loopback = ["--host", "127.0.0.1", "--no-dashboard"]
    with ExitStack() as stack:
        options = ["--protocol", "tls", "--port", "0", "--scheduler-file", str(note)]
        stack.enter_context(started(folder / "scheduler.log", "scheduler", *loopback, *options, *files))
        deadline = time.monotonic() + 60
        while not note.exists():
            assert time.monotonic() < deadline, (folder / "scheduler.log").read_text()
            time.sleep(0.1)
        address = json.loads(note.read_text())["address"]
        for number in range(2):
            options = ["--nthreads", "1", "--memory-limit", "1GiB", "--death-timeout", "60"]
            log = folder / f"worker{number}.log"
            stack.enter_context(started(log, "worker", address, *loopback, *options, *files))
        yield address, folder / "certs"


def tls_config(folder, address, certs, **keys):
    files = {"ca": str(certs / "ca.pem"), "cert": str(certs / "node.pem"), "key": str(certs / "node-key.pem")}
    return config_file(folder, kind="address", address=address, tls=files, workers=2, **{"wait_seconds": 60, **keys})


def test_tls__same_labels(tls, folder, wanted):
    address, certs = tls
    assert address.startswith("tls://127.0.0.1:")
    spec = tls_config(folder, address, certs)
    cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.zarr", "--cluster", spec)
    np.testing.assert_array_equal(open_consensus("out.zarr").array("labels")[:], wanted)


def test_tls__plain_tcp_is_refused(tls, folder):
    plain = tls[0].replace("tls://", "tcp://")
    _, err = cehm("cluster", "check", config_file(folder, kind="address", address=plain, wait_seconds=2), code=5)
    assert f"no Dask scheduler at {plain}" in err
    assert "A scheduler with TLS answers to tls:// only." in err


def test_tls__a_foreign_certificate_is_refused(tls, folder):
    make_certificates(folder / "foreign")
    _, err = cehm("cluster", "check", tls_config(folder, tls[0], folder / "foreign", wait_seconds=2), code=5)
    assert "certificates of scheduler and client must come from the same CA" in err


def test_tls__no_certificate_is_refused(tls, folder):
    spec = config_file(folder, kind="address", address=tls[0], wait_seconds=2)
    _, err = cehm("cluster", "check", spec, code=5)
    assert "(tls: in the cluster file)" in err


def test_tls__of_processes_started_here(folder, nothing_left):
    make_certificates(folder / "certs")
    files = {"ca": "certs/ca.pem", "cert": "certs/node.pem", "key": "certs/node-key.pem"}
    with connect(processes(folder, tls=files)) as client:
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        assert [worker.partition("://")[0] for worker in client.run(os.getpid)] == ["tls"]
