"""A real dask-gateway-server on loopback."""

import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import psutil
import pytest

from cehm_dask import CEHM
from cehm_dask.clusters.config import PINNED
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.synth import Synth
from tests.clusters.test_connect import config_file, free_port
from tests.conftest import cehm

pytestmark = [pytest.mark.gateway, pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")]

CONFIG = """
c.DaskGateway.backend_class = "dask_gateway_server.backends.local.UnsafeLocalBackend"
c.DaskGateway.address = "127.0.0.1:{inner}"
c.Proxy.address = "127.0.0.1:{port}"
c.UnsafeLocalBackend.clusters_directory = "{folder}"
c.ClusterConfig.scheduler_cmd = ["{dask}", "scheduler"]
c.ClusterConfig.worker_cmd = ["{dask}", "worker"]
c.ClusterConfig.worker_cores = 1
c.ClusterConfig.worker_memory = "1 G"
c.ClusterConfig.environment = {pinned}
"""


def _ready(address):
    """Whether the server behind the proxy answers; the proxy itself does before it knows of it."""
    try:
        with urlopen(f"{address}/api/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def gateway(tmp_path_factory):
    """The process and the address of a gateway server."""
    pytest.importorskip("dask_gateway", reason="the extra gateway is not installed")
    folder, programs = tmp_path_factory.mktemp("gateway"), str(Path(sys.executable).parent)
    program = shutil.which("dask-gateway-server", path=programs) or shutil.which("dask-gateway-server")
    if program is None:
        pytest.skip("dask-gateway-server is not installed")
    port, inner = free_port(), free_port()
    text = CONFIG.format(port=port, inner=inner, folder=folder / "clusters", dask=f"{programs}/dask", pinned=PINNED)
    (folder / "config.py").write_text(text)
    with open(folder / "log", "w") as log:
        server = subprocess.Popen([program, "-f", str(folder / "config.py")], stdout=log, stderr=log, cwd=folder)
    try:
        deadline = time.monotonic() + 60
        while not _ready(f"http://127.0.0.1:{port}"):
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield psutil.Process(server.pid), f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def config(gateway, tmp_path, monkeypatch):
    """Makes a cluster file; no scheduler or worker may be left."""
    server, address = gateway
    monkeypatch.chdir(tmp_path)
    yield lambda **keys: config_file(tmp_path, **{"kind": "gateway", "address": address, "workers": 2, **keys})
    started = [child for child in server.children(recursive=True) if "dask-gateway-proxy" not in child.name()]
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []


def test_consensus__same_labels(config):
    Synth(20_000, 10, n_classes=5, k_min=6, k_max=12).write("labels.zarr")
    cehm("consensus", "labels.zarr", "--k", 5, "-o", "out.zarr", "--cluster", config())
    wanted = CEHM(5, random_state=0).fit("labels.zarr").labels_
    np.testing.assert_array_equal(open_consensus("out.zarr").array("labels")[:], wanted)


def test_option__that_the_server_does_not_offer(config):
    _, err = cehm("cluster", "check", config(options={"colour": "red"}), code=5)
    assert "error: the gateway cluster did not start" in err
    assert "colour" in err


def test_gateway__that_does_not_answer(config):
    _, err = cehm("cluster", "check", config(address=f"http://127.0.0.1:{free_port()}"), code=5)
    assert "error: the gateway cluster did not start" in err
