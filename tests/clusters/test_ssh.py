"""Workers through a real sshd on a loopback port."""

import getpass
import os
import shutil
import subprocess
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import pytest

from cehm_dask import CEHM
from cehm_dask.clusters.connect import connect
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.synth import Synth
from tests.clusters.test_connect import answers, config_file, free_port
from tests.conftest import cehm

pytestmark = [pytest.mark.ssh, pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")]

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """Port and folder of an sshd that lets one key in; the folder has that key and the known_hosts."""
    pytest.importorskip("asyncssh", reason="the extra ssh is not installed")
    if SSHD is None or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd here (apt-get install openssh-server)")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it goes while it does not know who is there
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("host", "user", "stranger"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(command, check=True)
    port = free_port()
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    shutil.copy(folder / "user.pub", folder / "authorized")
    options = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "PermitUserEnvironment": "no",
        "MaxStartups": "50",
    }
    (folder / "sshd_config").write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not answers(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield port, folder
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def config(sshd, tmp_path, monkeypatch):
    """Makes a cluster file; no worker of it may be left."""
    port, folder = sshd
    mark = uuid.uuid4().hex
    monkeypatch.chdir(tmp_path)

    def make(**keys):
        defaults = {
            "kind": "ssh",
            "scheduler": "127.0.0.1",
            "hosts": ["127.0.0.1", "127.0.0.1"],
            "port": port,
            "username": getpass.getuser(),
            "key_file": str(folder / "user"),
            "known_hosts": str(folder / "known_hosts"),
            "memory": "1GiB",
            "environment": {"CEHM_TEST_MARK": mark},
        }
        return config_file(tmp_path, **{**defaults, **keys})

    before = set(spawned(mark))
    yield make
    _, alive = psutil.wait_procs([process for process in spawned(mark) if process not in before], timeout=30)
    assert alive == []


def spawned(mark):
    """Processes that Dask's SSH cluster starts: by their command, or by the mark in the workers' environment."""
    for process in psutil.process_iter():
        try:
            words, environment = process.cmdline(), process.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if "distributed.cli.dask_spec" in words or environment.get("CEHM_TEST_MARK") == mark:
            yield process


def test_consensus__same_labels(config):
    Synth(20_000, 10, n_classes=5, k_min=6, k_max=12).write("labels.zarr")
    cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.zarr", "--cluster", config())
    wanted = CEHM(5, random_state=0).fit("labels.zarr").labels_
    np.testing.assert_array_equal(open_consensus("out.zarr").array("labels")[:], wanted)


def test_workers__are_pinned_and_listen_on_loopback(config):
    with connect(config()) as client:
        environments = client.run(lambda: dict(os.environ)).values()
        listening = {
            connection.laddr.ip
            for process in spawned(next(iter(environments))["CEHM_TEST_MARK"])
            for connection in process.net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }
        limits = {worker["memory_limit"] for worker in client.scheduler_info()["workers"].values()}
    assert [environment["OMP_NUM_THREADS"] for environment in environments] == ["1", "1"]
    assert [environment["MALLOC_TRIM_THRESHOLD_"] for environment in environments] == ["65536", "65536"]
    assert limits == {1 << 30}
    assert listening == {"127.0.0.1"}


def test_key__that_the_host_does_not_know(config, sshd):
    _, err = cehm("cluster", "check", config(key_file=str(sshd[1] / "stranger")), code=5)
    assert "error: the ssh cluster did not start: Permission denied" in err


def test_host__that_is_not_known(config, tmp_path):
    (tmp_path / "empty").touch()
    _, err = cehm("cluster", "check", config(known_hosts=str(tmp_path / "empty")), code=5)
    assert "Host key is not trusted" in err


def test_host__that_does_not_answer(config):
    _, err = cehm("cluster", "check", config(port=1), code=5)
    assert "error: the ssh cluster did not start" in err
    assert "refused" in err.lower() or "connect call failed" in err.lower()


def test_python__that_is_not_there(config):
    _, err = cehm("cluster", "check", config(python="/nowhere/python"), code=5)
    assert "error: the ssh cluster did not start" in err
