"""Airflow 3: one run of a recipe per day, its steps as tasks.

Put this file into the DAG folder. Airflow and cehm_dask need not share a virtual environment: every task is the
command ``cehm run RECIPE --until STEP --date DAY``, found through the variable CEHM_COMMAND (default: ``cehm``).
Because a run is idempotent, a retry resumes where the first try stopped, even after ``kill -9``, and a day that is
done is a no-op. Recipe, input and overrides are parameters of the DAG run; the metrics of the result are the XCom of
the last task, with ``${VAR}`` where a path comes from the environment. The exit code says whether a task is tried
again: HOPELESS and RETRIED below; a run that was killed has neither, and is tried again too.
"""

import ctypes
import datetime
import json
import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, get_current_context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

FOLDER = Path(os.environ.get("CEHM_PIPELINES", Path(__file__).parent))
HOPELESS = {
    1: "a bug of cehm: please report it",
    2: "the recipe or its input is wrong",
    3: "it does not fit the memory allowed",
    8: "done, but more changed than the recipe allows",
}
RETRIED = {
    4: "interrupted",
    5: "the cluster cannot be reached, or was lost",
    6: "storage failed",
    7: "another run is writing the same output",
}
DEATH_OF_PARENT = 1
"""PR_SET_PDEATHSIG: if the task is killed, its run gets SIGTERM, saves its state and ends."""


def day() -> str:
    """The day this DAG run is for."""
    run: Any = get_current_context()["dag_run"]
    return str((run.logical_date or run.run_after).date())


def run_until(step: str) -> dict[str, Any]:
    """Do the run up to a step, from wherever it stands; its closing record."""
    params: Any = get_current_context()["params"]
    command = [*shlex.split(os.environ.get("CEHM_COMMAND", "cehm")), "run", params["recipe"]]
    command += ["--until", step, "--date", day(), "--json"]
    command += [part for override in params["set"] for part in ("--set", override)]
    command += ["--cluster", params["cluster"]] if params["cluster"] else []
    process = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: ctypes.CDLL(None).prctl(DEATH_OF_PARENT, signal.SIGTERM),
    )
    if process.returncode in HOPELESS:
        raise AirflowFailException(f"{shlex.join(command)}: {HOPELESS[process.returncode]}; see the log above")
    if process.returncode != 0:
        why = RETRIED.get(process.returncode, f"exit code {process.returncode}")
        raise AirflowException(f"{shlex.join(command)}: {why}; the next try resumes from here")
    return dict(json.loads(process.stdout))


@dag(
    dag_id="cehm_daily",
    schedule="@daily",
    start_date=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": datetime.timedelta(seconds=15)},
    params={
        "recipe": Param(str(FOLDER / "daily.yaml"), type="string", description="A recipe whose output holds {date}."),
        "input": Param("data/{date}.parquet", type="string", description="What the day waits for."),
        "set": Param([], type="array", items={"type": "string"}, description="Overrides, such as consensus.k=12."),
        "cluster": Param("", type="string", description="A file of cluster_configs/, or an address; empty: threads."),
    },
    doc_md=__doc__,
)
def cehm_daily() -> None:
    @task.sensor(poke_interval=60, timeout=12 * 3600, mode="reschedule")
    def new_input() -> bool:
        """Wait for the day's file."""
        params: Any = get_current_context()["params"]
        return Path(params["input"].replace("{date}", day())).exists()

    @task
    def ensemble() -> None:
        """Base clusterings."""
        run_until("ensemble")

    @task
    def consensus() -> float:
        """One clustering out of them; its agreement with the members."""
        return float(run_until("consensus")["agreement"])

    @task
    def evaluate() -> dict[str, float]:
        """Scores against the known classes, if the recipe names any."""
        return dict(run_until("evaluate")["scores"])

    @task
    def report() -> dict[str, Any]:
        """Table of labels and report; where they are, and the metrics."""
        return run_until("report")

    new_input() >> ensemble() >> consensus() >> evaluate() >> report()


cehm_daily()
