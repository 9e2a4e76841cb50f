"""Dagster: the steps of a recipe as assets, one partition per day, with a schedule.

``dagster dev -f pipelines/dagster_defs.py``. Every asset is the command ``cehm run RECIPE --until STEP --date DAY``,
found through the variable CEHM_COMMAND (default: ``cehm``), so Dagster may live in a virtual environment of its own.
Because a run is idempotent, a retry resumes where the first try stopped, and a day that is done is a no-op. Recipe,
overrides and cluster are the resource ``cehm``; metrics and the report are attached to the assets as metadata, with
``${VAR}`` where a path comes from the environment. The exit code says whether an asset is tried again: HOPELESS and
RETRIED below; a run that was killed has neither, and is tried again too.
"""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import dagster as dg

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

days = dg.DailyPartitionsDefinition(start_date="2026-01-01")
again = dg.RetryPolicy(max_retries=3, delay=15)


class Cehm(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Which recipe is run, and how."""

    recipe: str = str(FOLDER / "daily.yaml")
    overrides: list[str] = []  # noqa: RUF012
    cluster: str = ""

    def run_until(self, step: str, day: str) -> dict[str, Any]:
        """Do the run of a day up to a step, from wherever it stands; its closing record."""
        command = [*shlex.split(os.environ.get("CEHM_COMMAND", "cehm")), "run", self.recipe]
        command += ["--until", step, "--date", day, "--json"]
        command += [part for override in self.overrides for part in ("--set", override)]
        command += ["--cluster", self.cluster] if self.cluster else []
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if process.returncode != 0:
            code = process.returncode
            why = (HOPELESS | RETRIED).get(code, f"exit code {code}")
            if code not in HOPELESS:
                why += "; the next try resumes from here"
            raise dg.Failure(f"{shlex.join(command)}: {why}", allow_retries=code not in HOPELESS)
        return dict(json.loads(process.stdout))


def told(found: dict[str, Any]) -> dg.MaterializeResult:
    """The closing record of a run as metadata."""
    metadata: dict[str, Any] = {"run": dg.MetadataValue.path(found["run"]), "seconds": found["seconds"]}
    metadata |= {name: found[name] for name in ("k", "agreement", "margin", "sweeps") if found[name] is not None}
    metadata |= {name: float(score) for name, score in found["scores"].items()}
    if found["report"]:
        metadata["report"] = dg.MetadataValue.path(found["report"])
        if "${" not in found["report"]:  # else the link would lead nowhere, or show what the variable stands for
            metadata["page"] = dg.MetadataValue.url(Path(found["report"]).absolute().as_uri())
    if found["labels"]:
        metadata["labels"] = dg.MetadataValue.path(found["labels"])
    return dg.MaterializeResult(metadata=metadata)


@dg.asset(partitions_def=days, retry_policy=again)
def ensemble(context: dg.AssetExecutionContext, cehm: Cehm) -> dg.MaterializeResult:
    """Base clusterings of the day's rows."""
    return told(cehm.run_until("ensemble", context.partition_key))


@dg.asset(partitions_def=days, retry_policy=again, deps=[ensemble])
def consensus(context: dg.AssetExecutionContext, cehm: Cehm) -> dg.MaterializeResult:
    """One clustering out of them."""
    return told(cehm.run_until("consensus", context.partition_key))


@dg.asset(partitions_def=days, retry_policy=again, deps=[consensus])
def report(context: dg.AssetExecutionContext, cehm: Cehm) -> dg.MaterializeResult:
    """Scores, the table of labels and the page about them."""
    return told(cehm.run_until("report", context.partition_key))


daily = dg.define_asset_job("cehm_daily", [ensemble, consensus, report], partitions_def=days)
every_morning = dg.build_schedule_from_partitioned_job(daily, hour_of_day=3)

defs = dg.Definitions(
    assets=[ensemble, consensus, report], jobs=[daily], schedules=[every_morning], resources={"cehm": Cehm()}
)
