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
