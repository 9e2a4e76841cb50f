"""Memory of what comes after the consensus: stated beforehand, held to, and refused with both numbers."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.synth import Synth
from cehm_dask.errors import BudgetError
from cehm_dask.report import write_report
from cehm_dask.results import export
from cehm_dask.results.prediction import predict
from cehm_dask.results.scoring import evaluate

N = 400_000
FEATURES = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A consensus with its ensemble, known classes as texts, ids and features: 64 MB as float32."""
    folder = tmp_path_factory.mktemp("large")
    made = Synth(N, 10, n_classes=5, k_min=6, k_max=12)
    made.write(str(folder / "ensemble.zarr"))
    CEHM(5, random_state=0).fit(str(folder / "ensemble.zarr"), output=str(folder / "consensus.zarr"))
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"id": [f"sample-{row}" for row in range(N)]})
    table["class"] = np.array(["one", "two", "three", "four", "five"])[rng.integers(5, size=N)]
    table.to_parquet(folder / "table.parquet", row_group_size=1 << 17)
    features = np.lib.format.open_memmap(folder / "features.npy", "w+", np.float32, (N, FEATURES))
    for start in range(0, N, 1 << 16):
        part = features[start : start + (1 << 16)]
        part[:] = rng.normal(size=part.shape)
    np.save(folder / "labels.npy", open_ensemble(str(folder / "ensemble.zarr")).read(0, N).astype(np.int64) - 1)
    ClusterEnsemble(5, members=10, random_state=0).fit(features[:2000]).save(folder / "model.zarr")
    return folder


MEASURED = """
import json, logging, sys
from pathlib import Path
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ingest import ingest
from cehm_dask.machine import forget_peak, peak_bytes, resident_bytes, this_machine
from cehm_dask.pipeline.inputs import require_import
from cehm_dask.report import write_report
from cehm_dask.results import export
from cehm_dask.results.describing import describe
from cehm_dask.results.growing import grow
from cehm_dask.results.prediction import predict
from cehm_dask.results.scoring import evaluate
from cehm_dask.results.shared_rows import count_shared, of_store

found = []
class Heard(logging.Handler):
    def emit(self, record):
        if hasattr(record, "projected"):
            found.append((record.projected, record.allowed))

logging.getLogger("cehm_dask").setLevel(logging.INFO)
logging.getLogger("cehm_dask").addHandler(Heard())
forget_peak()
memory = resident_bytes() + (600 << 20)
{step}
print(json.dumps([peak_bytes(), max(projected for projected, _ in found), found[0][1]]))
"""

STEPS = {
    "import": """require_import("labels.npy", [], this_machine(memory)); ingest("labels.npy", "imported.zarr")""",
    "predict": """predict("consensus.zarr", "labels.npy", "out.parquet", memory=memory)""",
    "predict from features": """predict("model.zarr", "features.npy", "out.npy", memory=memory)""",
    "scores": """evaluate("consensus.zarr", "table.parquet", column="class", ensemble="ensemble.zarr", memory=memory)
    """.strip(),
    "profiles": """describe("consensus.zarr", "features.npy", memory=memory)""",
    "profiles by categories": """describe("consensus.zarr", "table.parquet", leave_out=["id"], memory=memory)""",
    "report": """write_report("consensus.zarr", "page.html", ensemble="ensemble.zarr", features="features.npy",
        row_ids=export.column_ids("table.parquet", "id"), memory=memory)""",
}
for _way, _more in {"samples": "", "members": "[:, :4] + 0"}.items():
    STEPS[f"growth by {_way}"] = f"""
import numpy as np
new = np.load("labels.npy", mmap_mode="r"){_more}
grow("consensus.zarr", "ensemble.zarr", "g-{_way}.zarr", {_way}=new, into="e-{_way}.zarr", memory=memory)
"""
for _passes, _room in (("one pass", 600), ("several passes", 300)):
    STEPS[f"rows that two results share, {_passes}"] = f"""
stored, ids = open_consensus("consensus.zarr"), export.column_ids("table.parquet", "id")
shared = count_shared(of_store(stored, ids), of_store(stored, ids), memory=memory - ((600 - {_room}) << 20))
assert shared.table.trace() == {N}
"""
for _suffix in export.SUFFIXES:
    STEPS[_suffix] = f"""
stored = open_consensus("consensus.zarr")
columns = [stored.array(name) for name in ("labels", "margin", "confidence")]
export.write(Path("out{_suffix}"), *columns, export.column_ids("table.parquet", "id"), memory=memory)
"""


@pytest.mark.parametrize("step", STEPS)
def test_memory__peak_projected_allowed(folder, step):
    command = [sys.executable, "-c", MEASURED.format(step=STEPS[step])]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    peak, projected, allowed = json.loads(done.stdout)
    print(step, [size >> 20 for size in (peak, projected, allowed)])
    assert peak <= projected <= allowed


REFUSED = r"memory=100.00 MiB allowed < .* projected for {}, most of it for "


def test_memory__refused_with_both_numbers(folder, tmp_path):
    consensus = str(folder / "consensus.zarr")
    with pytest.raises(BudgetError, match=REFUSED.format("scores")):
        evaluate(consensus, np.zeros(N, int), memory="100MiB")
    with pytest.raises(BudgetError, match=REFUSED.format("the new rows")):
        predict(consensus, folder / "labels.npy", tmp_path / "out.csv", memory="100MiB")
    with pytest.raises(BudgetError, match=REFUSED.format("the report")):
        write_report(consensus, tmp_path / "page.html", memory="100MiB")
    stored = open_consensus(consensus)
    with pytest.raises(BudgetError, match=REFUSED.format("out.csv")):
        export.write(tmp_path / "out.csv", *[stored.array("labels")] * 3, memory="100MiB")
    assert list(tmp_path.iterdir()) == []


def test_memory__wide_features_are_refused_before_a_row_is_read(folder, tmp_path):
    wide = np.broadcast_to(np.float32(0), (N, 10_000))
    with pytest.raises(BudgetError, match=r"memory=2.00 GiB allowed < .* the picture of the features, .*coordinates"):
        write_report(str(folder / "consensus.zarr"), tmp_path / "page.html", features=wide, memory="2GiB")
