"""``cehm cluster check`` and ``certs``, ``cehm submit`` and ``status``: checks, certificates, submitted runs."""

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from cehm_dask.cli.explain import Terminal, echo_masked, echo_values, explained


@click.group()
def cluster() -> None:
    """Look at a cluster before a run, or make certificates for one."""


@cluster.command()
@click.argument("file")
@click.option("--input", "reads", multiple=True, help="Path or URL that all workers must see.")
@click.option("--output", "writes", multiple=True, help="Path or URL that all workers must be able to write.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@explained
def check(file: str, reads: tuple[str, ...], writes: tuple[str, ...], as_json: bool) -> None:
    """Start or reach the cluster of FILE (or of an address), look at its workers, and stop what was started.

    Ends with exit code 5 and the reason if the cluster could not do a run: no scheduler, too few workers, other
    versions than here, a worker that does not see an input or cannot write an output.

    \b
    Examples:
      cehm cluster check cluster_configs/local-processes.yaml
      cehm cluster check cluster_configs/slurm.yaml --input ensemble.zarr --output consensus.zarr
    """
    from cehm_dask.clusters.connect import connect
    from cehm_dask.clusters.workers import require_access, survey
    from cehm_dask.machine import this_machine

    with connect(file) as client:
        if client is None:
            machine = this_machine(None)
            found: dict[str, Any] = {"threads": machine.threads, "memory": machine.allowed}
        else:
            require_access(client, reads, writes)
            found = {**survey(client), "input": list(reads), "output": list(writes)}
    if as_json:
        echo_values(found, indent=2)
    else:
        _print(Terminal(highlight=False, soft_wrap=True), found)


def _print(console: Console, found: dict[str, Any]) -> None:
    from cehm_dask.machine import format_bytes

    if "workers" not in found:
        console.print(f"{found['threads']} threads of this process, {format_bytes(found['memory'])} allowed")
        return
    console.print(f"scheduler {escape(found['scheduler'])}, dashboard {escape(found['dashboard'] or 'none')}")
    for worker in found["workers"]:
        memory = format_bytes(worker["memory"]) if worker["memory"] else "no memory limit"
        console.print(
            f"worker {escape(worker['address'])} on {escape(worker['host'])}: {worker['threads']} threads, {memory}"
        )
        if worker["unpinned"]:
            console.print(f"  [yellow]not set in its environment:[/] {', '.join(worker['unpinned'])}")
    threads = sum(worker["threads"] for worker in found["workers"])
    memory = format_bytes(sum(worker["memory"] for worker in found["workers"]))
    console.print(f"{len(found['workers'])} workers, {threads} threads, {memory}; versions as here")
    for word, urls in (("see", found["input"]), ("can write", found["output"])):
        for url in urls:
            console.print(f"all workers {word} {escape(url)}")
    console.print(f"{format_bytes(int(found['bytes_a_second']))} per second from worker to worker")


@cluster.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--host", "hosts", multiple=True, help="Name or address of a node, beside localhost; may be repeated.")
@click.option("--days", type=click.IntRange(1), default=365, show_default=True, help="How long they are valid.")
@explained
def certs(folder: Path, hosts: tuple[str, ...], days: int) -> None:
    """Make a certificate authority and node certificates in FOLDER.

    With them, scheduler, workers and clients talk TLS, and refuse peers without a certificate of this authority.
    Give every node ca.pem, node.pem and node-key.pem; keep ca-key.pem to yourself. Nothing is overwritten.

    \b
    Example:
      cehm cluster certs certs --host login01 --host 10.0.0.5
    """
    from cehm_dask.clusters.certificates import make_certificates

    for path in make_certificates(folder, hosts, days):
        click.echo(path)


@click.command()
@click.argument("recipe")
@click.option("--cluster", "spec", required=True, help="A file of cluster_configs/ of kind slurm or kubernetes.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value; may be repeated.")
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="The value of {date} in paths.  [default: today]")
@click.option("--apply", "applied", is_flag=True, help="Kubernetes: pass the manifest to kubectl, do not print it.")
@explained
def submit(recipe: str, spec: str, overrides: tuple[str, ...], date: Any, applied: bool) -> None:
    """Put the whole run of RECIPE on the cluster, driver and workers, and return.

    SLURM: submits a job whose files and log lie in the run directory; started again after a failure or preemption,
    it resumes from its checkpoint. Kubernetes: prints a DaskJob manifest for 'kubectl apply -f -'.

    \b
    Examples:
      cehm submit recipe.yaml --cluster cluster_configs/slurm.yaml
      cehm submit recipe.yaml --cluster cluster_configs/kubernetes.yaml | kubectl apply -f -
    """
    import datetime

    from cehm_dask.clusters.config import Kubernetes, read_config
    from cehm_dask.pipeline import submission
    from cehm_dask.pipeline.recipe import load

    wanted, day = load(recipe, overrides), date.date() if date else datetime.date.today()
    config = read_config(spec)
    if isinstance(config, Kubernetes):
        manifest = submission.job_manifest(wanted, config, day)
        if applied:
            click.echo(submission.apply(manifest), nl=False)
        else:
            echo_masked(manifest)
        return
    job = submission.submit(wanted, spec, day)
    click.echo(f"job {job}; 'cehm status {wanted.on(day.isoformat()).output}' shows its state")


@click.command()
@click.argument("run")
@explained
def status(run: str) -> None:
    """Show the state of the run in directory RUN: its steps, its job in the queue, the last lines of its log.

    \b
    Example:
      cehm status runs/today
    """
    from cehm_dask.pipeline import submission

    found = submission.status(run)
    if found.job is not None:
        click.echo(f"job {found.job['id']} ({found.job['kind']}): {found.job['state']}")
    for step, facts in found.steps.items():
        click.echo(f"{step}: {facts['state']}, {facts['seconds']:.1f} s")
    if not found.steps:
        click.echo("not begun")
    for line in found.log:
        click.echo(f"  {line}")
