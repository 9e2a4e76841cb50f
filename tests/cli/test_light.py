"""``cehm consensus`` on a store loads only what it needs: what is loaded comes off the memory that a run may take."""

import json
import subprocess
import sys

from cehm_dask.data.synth import Synth

HEAVY = ["sklearn", "pandas", "pyarrow", "distributed", "dask.array", "dask.dataframe", "matplotlib", "jinja2.sandbox"]

RUN = """
import json, sys
sys.modules["sklearn"] = None  # the k-medoids package takes it up if it is there
from cehm_dask.cli import main
try:
    main(["consensus", *sys.argv[1:], "--quiet"])
except SystemExit as end:
    assert not end.code, end.code
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""


def test_consensus__loads_nothing_heavy(tmp_path):
    url = str(tmp_path / "e.zarr")
    Synth(2000, 10).write(url)
    for more in ([], ["--variant", "released", "--start-rows", "500"]):
        command = [sys.executable, "-W", "ignore", "-c", RUN, url, "--k", "4", "--overwrite"]
        command += [*more, "-o", str(tmp_path / "c.zarr")]
        loaded = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        assert "cehm_dask.method.consensus" in loaded
        assert not set(HEAVY) & set(loaded)


def test_consensus__of_300_000_rows_in_245_mib_and_in_more(tmp_path):
    """In a fresh process, as a user starts it: measured ≤ projected ≤ allowed. In 1 GiB, freed blocks are kept."""
    url, output = str(tmp_path / "e.zarr"), tmp_path / "c.zarr"
    Synth(300_000).write(url)
    for memory in (1 << 30, 1 << 30, 245 << 20):  # the first one compiles what is not compiled yet
        command = [sys.executable, "-W", "ignore", "-m", "cehm_dask", "consensus", url, "--k", "10", "--quiet"]
        subprocess.run([*command, "--memory", str(memory), "-o", str(output), "--overwrite"], check=True)
        facts = json.loads((output / "zarr.json").read_text())["attributes"]["cehm"]
        taken = facts["memory"]
        assert facts["n_clusters_found"] == 10
        assert taken["peak"] <= taken["projected"] <= taken["allowed"] == memory


def test_consensus__floor_of_a_small_matrix(tmp_path):
    """What is left to libraries: 199 to 204 MiB measured, of which LLVM and numba take 118."""
    url, output = str(tmp_path / "e.zarr"), tmp_path / "c.zarr"
    Synth(2000, 10).write(url)
    for memory in ("1GiB", "215MiB"):
        command = [sys.executable, "-W", "ignore", "-m", "cehm_dask", "consensus", url, "--k", "10", "--quiet"]
        subprocess.run([*command, "--memory", memory, "-o", str(output), "--overwrite"], check=True)
    taken = json.loads((output / "zarr.json").read_text())["attributes"]["cehm"]["memory"]
    assert taken["peak"] <= taken["projected"] <= taken["allowed"]
