"""Submitted runs: the driver of a run as a job of the cluster itself, and its state.

Above the run, which the job does by the same command as a person would; so a job that was requeued or preempted
resumes from its checkpoint. SLURM: all that the job needs and says lies in the run directory. Kubernetes: a manifest.
Neither holds the value of a ``${VAR}``: the job has it from its environment.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import yaml

from cehm_dask.clusters.config import SHELL, Kubernetes, Slurm, exports, in_shell, read_config
from cehm_dask.clusters.manifests import FILES_MOUNT, dask_job, refuse_secrets, scheduler_address
from cehm_dask.data.files import absolute, is_url, read_whole, write_whole
from cehm_dask.errors import BusyError, ClusterError, InputError, NotFoundError, StoreError
from cehm_dask.machine import parse_bytes
from cehm_dask.masking import HIDDEN, masked, masked_values
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.recipe_model import Recipe

JOB = "job.json"
JOB_LOG = "job.log"
ENDED = ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "gone")


@dataclass(frozen=True)
class Status:
    """State of a run."""

    directory: str
    steps: dict[str, Any]
    job: dict[str, Any] | None
    """Kind, id and state of the job that was submitted for it."""
    log: list[str]
    """The last lines that the run wrote."""


def submit(recipe: Recipe, spec: str, day: date) -> str:
    """Hand a run to the queue of a SLURM cluster; returns the job's id.

    Parameters
    ----------
    recipe : Recipe
    spec : str
        A cluster file of kind slurm; the job's workers come from it too.
    day : date
        The value of ``{date}`` in paths.
    """
    config = read_config(spec)
    if not isinstance(config, Slurm):
        raise InputError(f"cluster file {spec}: kind {config.kind} cannot be submitted to; slurm and kubernetes can")
    recipe = recipe.on(day.isoformat())
    if is_url(recipe.output):
        raise InputError(f"output {recipe.output}: a SLURM job needs a run directory on a file system that nodes share")
    directory = Directory(absolute(recipe.output).rstrip("/"))
    directory.check()
    before = _job(directory)
    if before is not None and before["state"] not in ENDED:
        raise BusyError(
            f"run {directory.url} has job {before['id']} ({before['state']}): wait for it, or 'scancel {before['id']}'"
        )
    Path(directory.url).mkdir(parents=True, exist_ok=True)
    if directory.read() is None:
        directory.write({"steps": {}})
    # Queues show the paths of logs to everybody, and expand no variables in them.
    logs = config.log_directory.absolute() if _is_secret(directory.url) else Path(directory.path("logs"))
    home = config.model_copy(update={"log_directory": logs, "python": config.python or sys.executable})
    write_whole(directory.path("recipe.yaml"), _recipe_text(recipe).encode())
    settings = masked_values(home.model_dump(mode="json", exclude_none=True))
    # A shell reads these, so they stay as they are written.
    settings |= {key: getattr(home, key) for key in SHELL}
    write_whole(directory.path("cluster.yaml"), _yaml(settings).encode())
    script = _script(home, directory)
    path = directory.path("job.sh")
    write_whole(path, script.encode())
    # Handed over on stdin where lists of processes and jobs may not show its path.
    secret = _is_secret(path)
    job = _call("sbatch", "--parsable", *([] if secret else [path]), text=script if secret else None)
    job = job.split(";")[0].strip()
    submitted = datetime.now(UTC).isoformat(timespec="seconds")
    write_whole(directory.path(JOB), json.dumps({"kind": "slurm", "id": job, "submitted": submitted}).encode())
    return job


def _is_secret(text: str) -> bool:
    return masked(text) != text


def _yaml(content: Any) -> str:
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _recipe_text(recipe: Recipe) -> str:
    """The recipe for the job, which reads variables from its own environment."""
    text = _yaml(recipe.written())
    if HIDDEN in text:
        raise InputError("a password in a URL would be in files of the job: write ${VAR} there, and set the variable")
    return text


def _script(config: Slurm, directory: Directory) -> str:
    """The driver's job: started again by the queue if its node fails or it is preempted."""
    log, hidden = directory.path(JOB_LOG), _is_secret(directory.url)
    options = {
        "job-name": f"cehm-{_slug(directory.url)}",
        "output": "/dev/null" if hidden else log,
        "open-mode": "append",
        "time": config.walltime,
        "ntasks": 1,
        "cpus-per-task": 1,
        "mem": f"{-(-parse_bytes(config.memory) // 1024)}K",
        "partition": config.queue,
        "account": config.account,
        # A minute before its time is over the run gets a signal, saves its state and cancels its workers' jobs.
        "signal": "B:TERM@60",
    }
    command = [
        *(str(config.python), "-m", "cehm_dask", "run", directory.path("recipe.yaml")),
        *("--cluster", directory.path("cluster.yaml"), "--quiet"),
    ]
    redirect = [f"exec >>{in_shell(log)} 2>&1"] if hidden else []  # the queue would show the path to everybody
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in options.items() if value is not None),
        "#SBATCH --requeue",
        *(f"#SBATCH {directive}" for directive in config.directives),
        *redirect,
        *exports(config.pinned),
        *config.prologue,
        f"exec {' '.join(map(in_shell, command))}",
    ]
    return "\n".join(lines) + "\n"


def _call(*command: str, text: str | None = None) -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError as error:
        raise NotFoundError(f"{command[0]} is not here: use a machine where it is installed") from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{command[0]} did not answer within {error.timeout:g} s") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
    return done.stdout


def job_manifest(recipe: Recipe, config: Kubernetes, day: date) -> str:
    """A DaskJob that does the run, with all it needs, as YAML."""
    recipe = recipe.on(day.isoformat())
    if not is_url(recipe.output) and not recipe.output.startswith(config.mount.rstrip("/") + "/"):
        raise InputError(f"output {recipe.output}: a pod keeps only what is in an object store or below {config.mount}")
    refuse_secrets(config._variables)
    name = f"{config.name}-{_slug(recipe.output)}"
    reached = {"kind": "address", "address": scheduler_address(config, name), "workers": config.wanted}
    files = {
        "recipe.yaml": _recipe_text(recipe),
        "cluster.yaml": _yaml({**reached, "wait_seconds": config.wait_seconds}),
    }
    command = ["cehm", "run", f"{FILES_MOUNT}/recipe.yaml", "--cluster", f"{FILES_MOUNT}/cluster.yaml", "--quiet"]
    return yaml.safe_dump_all(dask_job(config, name, files, command), sort_keys=False, allow_unicode=True)


def _slug(output: str) -> str:
    """The last part of a path as Kubernetes allows it in names, masked.

    >>> _slug("s3://bucket/runs/2026-11-16_B/")
    '2026-11-16-b'
    """
    last = masked(output.rstrip("/")).rsplit("/", 1)[-1].lower()
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in last)[:20].strip("-") or "run"


def apply(manifest: str) -> str:
    """Hand a manifest to Kubernetes; returns what it says."""
    return _call("kubectl", "apply", "-f", "-", text=manifest)


def status(url: str, lines: int = 10) -> Status:
    """State of a run directory and of the job submitted for it."""
    directory = Directory(absolute(url).rstrip("/"))
    state = directory.read()
    if state is None:
        raise InputError(f"run {url}: no run directory (it has no run.json)")
    log = read_whole(directory.path("run.log")) or read_whole(directory.path(JOB_LOG)) or b""
    return Status(directory.url, state["steps"], _job(directory), log.decode(errors="replace").splitlines()[-lines:])


def _job(directory: Directory) -> dict[str, Any] | None:
    note = read_whole(directory.path(JOB))
    if note is None:
        return None
    try:
        job: dict[str, Any] = dict(json.loads(note))
        number = int(job["id"])
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{directory.path(JOB)} is damaged ({error}): remove it, and see 'squeue' for the job"
        ) from error
    try:
        queued = _call("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T").strip()
    except ClusterError as error:
        if "Invalid job id" not in str(error):
            raise
        queued = ""
    return {**job, "state": queued or "gone"}
