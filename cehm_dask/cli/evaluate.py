"""``cehm evaluate`` and ``cehm predict``: how good a consensus is, and where it puts new rows."""

from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cehm_dask.cli.explain import Terminal, echo_values, explained

TITLES = {
    "nmi": "NMI",
    "ari": "ARI",
    "accuracy": "accuracy",
    "purity": "purity",
    "v_measure": "V-measure",
}


@click.command()
@click.argument("consensus")
@click.option("--truth", help="Known classes: .npy, .csv, .parquet or a Zarr array; -1 or empty where not known.")
@click.option("--truth-column", help="Column with the classes, in a table with several.")
@click.option("--ensemble", help="The ensemble behind the consensus, to score its members too.")
@click.option("--cluster", help="A file of cluster_configs/ or a scheduler's address.  [default: threads]")
@click.option("--memory", help="Memory the command may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of tables.")
@explained
def evaluate(
    consensus: str,
    truth: str | None,
    truth_column: str | None,
    ensemble: str | None,
    memory: str | None,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Score a finished consensus.zarr.

    Without --truth: its agreement with the members, mean margin and stability (between candidates or restarts), as the
    run recorded them. With it: NMI, ARI, accuracy by optimal matching, purity and V-measure, of all samples and of the
    more certain half, in one sweep over the rows.

    \b
    Examples:
      cehm evaluate consensus.zarr
      cehm evaluate consensus.zarr --truth classes.npy --ensemble ensemble.zarr
      cehm evaluate consensus.zarr --truth table.parquet --truth-column species --json
    """
    from cehm_dask.bars import Rows
    from cehm_dask.clusters.connect import connect
    from cehm_dask.results import scoring

    errors = Terminal(stderr=True)
    with connect(cluster) as client, Rows(errors, quiet=as_json) as rows:
        of = {"ensemble": ensemble, "column": truth_column}
        found = scoring.evaluate(consensus, truth, **of, memory=memory, client=client, progress=rows)
    if as_json:
        echo_values(found)
    else:
        _show(Terminal(), found)


def _show(console: Console, found: dict[str, Any]) -> None:
    stability = "one start only"
    if found["stability"] is not None:
        stability = f"{found['stability']:.4f} (mean NMI between candidates or restarts)"
    facts = {
        "clusters": f"{found['n_clusters_found']} of {found['n_clusters']} hold samples",
        "agreement with the members": f"{found['agreement']:.4f} (mean NMI)",
        "mean margin": f"{found['margin']:.4f}",
        "stability": stability,
        "samples": f"{found['n_samples']:,}, {found['n_silent']:,} without any base label",
    }
    if "scores" in found:
        facts["scored"] = (
            f"{found['n_scored']:,} samples, {found['n_classes']} classes; {found['n_unknown']:,} of unknown class"
        )
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in facts.items():
        table.add_row(f"[bold]{name}[/]", value)
    console.print(table)
    if "scores" not in found:
        return
    half = found["certain_half"]
    lines = {"consensus": found["scores"], "its more certain half": half}
    if "members" in found:
        scored = [member for member in found["members"] if member["n_scored"]]
        lines[f"the {len(scored)} members, mean"] = found["members_mean"]
        best = max(scored, key=lambda member: member["nmi"])
        lines[f"best member: {best['member']}"] = best
    table = Table("", *TITLES.values(), box=None, header_style="bold", pad_edge=False)
    for name, scores in lines.items():
        table.add_row(escape(name), *(f"{scores[title]:.4f}" for title in TITLES))
    console.print()
    console.print(table)


@click.command()
@click.argument("model")
@click.argument("new")
@click.option("-o", "--output", required=True, help="Where labels and margins go: .npy, .csv, .parquet or .zarr.")
@click.option("--id", "row_id", help="Column that names the new rows; kept in the output.  [default: the model's own]")
@click.option("--memory", help="Memory the command may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def predict(
    model: str, new: str, output: str, row_id: str | None, memory: str | None, overwrite: bool, quiet: bool
) -> None:
    """Cluster new rows, block by block.

    MODEL is a run directory or a saved ClusterEnsemble, and NEW features (a table, .npy, .zarr), matched by the names
    of their columns; or MODEL is a consensus.zarr, and NEW base labels by the same members in the same order (.npy,
    .csv, .parquet, ensemble.zarr). Columns that are missing or hold another type are refused before any work, further
    ones are ignored. Labels that a member never used before count as missing; a row without any known label gets -1.

    \b
    Examples:
      cehm predict runs/2026-11-15 today.parquet -o labels.parquet
      cehm predict consensus.zarr new-labels.parquet -o new.parquet
      cehm predict model.zarr new-features.npy -o new.csv
    """
    from cehm_dask.bars import Rows, Stopwatch
    from cehm_dask.results import prediction

    console, watch = Terminal(stderr=True), Stopwatch()
    with Rows(console, quiet=quiet) as rows:
        how: dict[str, Any] = {"id": row_id, "memory": memory, "overwrite": overwrite}
        count = prediction.predict(model, new, output, progress=rows, **how)
    if not quiet:
        console.print(f"{count:,} rows in {watch.seconds:.2f} s: {escape(output)}", highlight=False, soft_wrap=True)
