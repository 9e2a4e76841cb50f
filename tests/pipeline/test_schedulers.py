"""Airflow, Dagster, cron and systemd: thin hand-overs to the same run, tried on the real programs.

``pytest -m airflow`` and ``pytest -m dagster`` make a virtual environment for each, or take the one whose ``python``
CEHM_AIRFLOW_PYTHON or CEHM_DAGSTER_PYTHON names.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.pipeline.recipe import load
from cehm_dask.pipeline.run import run

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

PIPELINES = Path(__file__).parents[2] / "pipelines"
COMMAND = Path(sys.executable).parent / "cehm"
DAY = "2026-11-14"
SETTINGS = ["ensemble.members=6", "ensemble.k_max=30", "consensus.k=10", "consensus.restarts=2"]
ROWS = 300_000

KILLER = """\
#!/bin/sh
# The first time it is to do the consensus, the run is killed with no warning once there is a checkpoint.
case "$*" in *"--until consensus"*) ;; *) exec {cehm} "$@";; esac
[ -e killed ] && exec {cehm} "$@"
{cehm} "$@" & run=$!
while kill -0 $run 2>/dev/null; do
  if [ -n "$(find runs -name 'checkpoint*')" ]; then kill -9 $run; touch killed; break; fi
  sleep 0.01
done
wait $run
"""


def environment_of(name, package):
    """A python that has a scheduler installed."""
    given = os.environ.get(f"CEHM_{name.upper()}_PYTHON")
    if given:
        return Path(given)
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "cehm-tests" / name
    if not (folder / "bin" / name).exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([folder / "bin/pip", "install", "--quiet", package], check=True, timeout=600)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    """A day's input, and the labels of a run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("wanted")
    rng = np.random.default_rng(0)
    values = rng.normal(size=(ROWS, 5)) + 1.5 * rng.integers(0, 2, (ROWS, 5))
    frame = pd.DataFrame(values).rename(columns=str).assign(customer=np.arange(ROWS))
    (folder / "data").mkdir()
    frame.to_parquet(folder / f"data/{DAY}.parquet")
    places = [f"features.path={folder}/data/{{date}}.parquet", f"output={folder}/run", "follow=null"]
    run(load(PIPELINES / "daily.yaml", [*SETTINGS, *places]), date=date.fromisoformat(DAY))
    return folder


@pytest.fixture
def folder(wanted, tmp_path):
    """A working folder with the day's input and a command that is killed once."""
    shutil.copytree(wanted / "data", tmp_path / "data")
    (tmp_path / "cehm").write_text(KILLER.format(cehm=COMMAND))
    (tmp_path / "cehm").chmod(0o755)
    return tmp_path


def same_labels(folder, wanted):
    found = open_consensus(str(folder / "runs" / DAY / "consensus.zarr")).array("labels")[:]
    np.testing.assert_array_equal(found, open_consensus(str(wanted / "run/consensus.zarr")).array("labels")[:])
    assert (folder / "killed").exists()
    assert "consensus: resumes where it stopped (running)" in (folder / "runs" / DAY / "run.log").read_text()


@pytest.mark.airflow
def test_airflow__a_killed_task_resumes_to_the_same_labels_and_a_day_done_is_a_no_op(folder, wanted):
    python = environment_of("airflow", "apache-airflow==3.3.2")
    home = folder / "home"
    settings = {
        **os.environ,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(PIPELINES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "CEHM_COMMAND": str(folder / "cehm"),
    }

    def airflow(*args):
        command = [python.parent / "airflow", *args]
        return subprocess.run(
            command, cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=900
        )

    assert airflow("db", "migrate").returncode == 0
    conf = json.dumps({"set": SETTINGS})
    done = airflow("dags", "test", "cehm_daily", DAY, "--conf", conf)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-5000:]
    assert "state=success" in said or "successful" in said
    assert re.search(r"exit code 137; the next try resumes from here", said)
    same_labels(folder, wanted)
    record = re.findall(r"Returned value was: (\{'run'.*?\}\})", said)[-1]
    for name in ("agreement", "report", "sweeps"):
        assert f"'{name}'" in record
    before = (folder / "runs" / DAY / "report.html").stat().st_mtime_ns
    assert airflow("dags", "test", "cehm_daily", DAY, "--conf", conf).returncode == 0
    assert (folder / "runs" / DAY / "report.html").stat().st_mtime_ns == before


MATERIALISE = """\
import datetime, json, sys
import dagster as dg
sys.path.insert(0, {pipelines!r})
import dagster_defs as d

def go():
    cehm = d.Cehm(overrides={settings!r})
    done = dg.materialize(d.defs.assets, partition_key={day!r}, resources={{"cehm": cehm}}, raise_on_error=False)
    events = [e for e in done.all_events if e.is_step_materialization]
    return done, {{
        e.asset_key.to_user_string(): {{k: v.value for k, v in e.materialization.metadata.items()}} for e in events
    }}

if __name__ == "__main__":
    first, metadata = go()
    retried = sum(e.event_type_value == "STEP_RESTARTED" for e in first.all_events)
    second, again = go()
    when = datetime.datetime(2026, 11, 15, 3, tzinfo=datetime.timezone.utc)
    schedule = d.defs.resolve_schedule_def(d.every_morning.name)
    tick = schedule.evaluate_tick(dg.build_schedule_context(scheduled_execution_time=when))
    print(json.dumps({{
        "ok": [first.success, second.success], "retried": retried, "metadata": metadata, "again": again,
        "partitions": [r.partition_key for r in tick.run_requests],
    }}))
"""


@pytest.mark.dagster
def test_dagster__a_killed_step_resumes_to_the_same_labels_and_the_schedule_asks_for_the_day(folder, wanted):
    python = environment_of("dagster", "dagster>=1.13,<1.14")
    (folder / "go.py").write_text(MATERIALISE.format(pipelines=str(PIPELINES), settings=SETTINGS, day=DAY))
    (folder / "home").mkdir()
    settings = {**os.environ, "CEHM_COMMAND": str(folder / "cehm"), "DAGSTER_HOME": str(folder / "home")}
    done = subprocess.run(
        [python, "go.py"], cwd=folder, env=settings, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr[-5000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["ok"] == [True, True]
    assert said["retried"] == 1
    same_labels(folder, wanted)
    assert set(said["metadata"]) == {"ensemble", "consensus", "report"}
    page = said["metadata"]["report"]
    assert page["agreement"] == open_consensus(str(wanted / "run/consensus.zarr")).facts["agreement"]
    assert Path(page["report"]).is_file()
    assert page["page"].startswith("file://")
    assert said["again"]["report"]["seconds"] < said["metadata"]["consensus"]["seconds"]
    assert said["partitions"] == [DAY]


# --- cron and systemd --------------------------------------------------------------------------------------------


def test_cron__its_line_runs_and_two_never_overlap(tmp_path):
    line = (PIPELINES / "crontab").read_text().splitlines()[-1]
    command = line.split(None, 5)[5].replace("\\%", "%").replace("cd /srv/cehm && ", "").replace("cehm --", "./said --")
    (tmp_path / "said").write_text('#!/bin/sh\necho "$@"; sleep 1\n')
    (tmp_path / "said").chmod(0o755)
    both = [subprocess.Popen(["sh", "-c", command], cwd=tmp_path) for _ in range(2)]
    assert sorted(one.wait(timeout=60) for one in both) == [0, 1]
    said = (tmp_path / "daily.jsonl").read_text()
    assert re.fullmatch(r"--log-format json run daily\.yaml --date \d{4}-\d\d-\d\d --json\n", said)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize("unit", ["cehm-daily.service", "cehm-daily.timer"])
def test_systemd__units_are_valid(tmp_path, unit):
    for name in ("cehm-daily.service", "cehm-daily.timer"):
        text = (PIPELINES / name).read_text().replace("/srv/cehm", str(tmp_path))
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / unit], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_systemd__the_command_is_one_that_parses():
    from cehm_dask import cli

    line = next(line for line in (PIPELINES / "cehm-daily.service").read_text().splitlines() if "ExecStart" in line)
    assert 'date "$$(date -d yesterday +%%F)"' in line
    assert "run daily.yaml --json --date" in line
    cli.main.commands["run"].make_context("run", ["daily.yaml", "--json", "--date", DAY])
