"""``cehm consensus``: base labels in, one clustering out."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from cehm_dask.cli.explain import Clusters, Terminal, explained
from cehm_dask.errors import InputError

VARIANTS = ("auto", "released", "printed", "cosine", "kmeans", "tau")
"""Those of ``method.params``, which is slow to import; it also refuses others, in one line."""
RESTARTS = "Medoid starts. auto: more starts are more candidates; other variants: all run side by side, one is kept."


@click.command()
@click.argument("labels")
@click.option(
    "--k", "n_clusters", type=Clusters(), required=True, help="Clusters wanted: 10, or 5,8, or 2..15, or auto."
)
@click.option("-o", "--output", help="Where the result goes: .zarr (can be resumed), .npy, .csv or .parquet.")
@click.option("--id", "row_id", help="Column of a table that names the rows; kept in the output.")
@click.option("--keys", multiple=True, help="Columns of obs of an AnnData: a name, or a pattern such as 'leiden_*'.")
@click.option(
    "--variant",
    default="auto",
    metavar=f"[{'|'.join(VARIANTS)}]",
    shell_complete=lambda _context, _option, begun: [name for name in VARIANTS if name.startswith(begun)],
    show_default=True,
    help="auto: candidates compete; kept is the one that the members predict best and cover most evenly. released: the "
    "authors' program; printed: the paper's equations; these two may lose clusters. cosine, kmeans, tau: one start, "
    "with that kind of belonging.",
)
@click.option("--tries", default=10, show_default=True, help="Most k-medoids solutions to look for; the best are used.")
@click.option("--restarts", default=1, show_default=True, help=RESTARTS)
@click.option(
    "--choose",
    default="agreement",
    show_default=True,
    help="Keep the start of a named variant by 'agreement' or 'loss'.",
)
@click.option(
    "--max-iter", default=100, show_default=True, help="Most rounds of adjustion, the stage that moves single samples."
)
@click.option("--start-rows", type=int, help="Find the start on a sample of so many rows.  [default: all rows]")
@click.option(
    "--weights",
    help="How much members count: 1,2,1 in their order, or leiden=2,kmeans=0.5 by name.  [default: all alike]",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the medoid starts.")
@click.option("--memory", help="Memory the run may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--cluster", help="A file of cluster_configs/ or a scheduler's address.  [default: threads]")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def consensus(
    labels: str,
    n_clusters: int | list[int] | str,
    output: str | None,
    row_id: str | None,
    keys: tuple[str, ...],
    weights: str | None,
    seed: int,
    memory: str | None,
    cluster: str | None,
    overwrite: bool,
    quiet: bool,
    **params: Any,
) -> None:
    """Consensus of base labels: one row per sample, one column per member.

    LABELS is a .npy file, a table (.csv, .tsv, .parquet, .feather, .arrow), or an ensemble.zarr (path or URL), which is
    read block by block and may be larger than memory; or an AnnData (.h5ad, or its .zarr), of which only columns of obs
    are read: name them with --keys. An interrupted run with a .zarr output resumes: give the same command.

    \b
    Examples:
      cehm consensus labels.npy --k 10 -o consensus.npy
      cehm consensus labels.csv --k 4 --restarts 10 --id customer -o consensus.csv
      cehm consensus ensemble.zarr --k 10 --memory 2GiB -o consensus.zarr
      cehm consensus atlas.h5ad --keys 'leiden_*' --k 12 -o consensus.csv
      cehm consensus ensemble.zarr --k 10 --cluster cluster_configs/slurm.yaml -o consensus.zarr
    """
    # Not the estimator: scikit-learn and what it loads would take 150 MiB of the memory that the run may take.
    from cehm_dask.bars import Rounds, Stopwatch
    from cehm_dask.cli.display import summary
    from cehm_dask.clusters.current import client_of
    from cehm_dask.data.arrays import is_store
    from cehm_dask.data.labels import as_labels
    from cehm_dask.data.tables import SUFFIXES
    from cehm_dask.doors.observations import by_size, is_annotated, read_observations
    from cehm_dask.job import Where, find_consensus, seed_of
    from cehm_dask.method.params import Params
    from cehm_dask.method.weighting import parse_weights
    from cehm_dask.results import export

    cells = read_observations(labels, keys) if is_annotated(labels) else None
    if keys and cells is None:
        raise InputError(
            f"--keys {keys[0]}: {labels} is no AnnData; give a .h5ad file, or the .zarr store of an AnnData"
        )
    if row_id is not None and not labels.endswith(SUFFIXES):
        raise InputError(f"--id {row_id}: {labels} has no columns with names; only {', '.join(SUFFIXES)} files have")
    stored = output is not None and is_store(output)
    if output is not None and not stored:
        export.check_path(Path(output), overwrite=overwrite)
    console, watch = Terminal(stderr=True), Stopwatch()
    auto = isinstance(n_clusters, str)
    ks = [2] if isinstance(n_clusters, str) else n_clusters if isinstance(n_clusters, list) else [n_clusters]
    checked = Params(ks[0], **params, weights=None if weights is None else parse_weights(weights))
    with started_on(cluster) as started, client_of(started) as client, Rounds(console, quiet=quiet) as progress:
        if started is not None and not quiet:
            console.print(f"dashboard: {client.dashboard_link}", highlight=False)
        given: Any = labels if cells is None else cells.frame
        base = as_labels(given, leave_out=[] if row_id is None else [row_id], memory=memory)
        where = Where(memory=memory, client=client, output=output if stored else None, overwrite=overwrite)
        outcome = find_consensus(base, checked, seed_of(seed), where, ks=ks, auto=auto, progress=progress)
    if output is not None and not stored:
        ids = None if row_id is None else export.column_ids(labels, row_id)
        if cells is not None:  # as cehm_dask.tl.consensus writes them
            ids = cells.ids
            found, sizes = by_size(outcome.labels, outcome.sizes)
            outcome = replace(outcome, labels=found, sizes=sizes)
        export.write(Path(output), outcome.labels, outcome.margin, outcome.confidence, ids, memory=memory)
    if not quiet:
        summary(Terminal(), outcome, watch.seconds)
        if output is None:
            console.print("nothing was kept: name an output with -o to have the labels", highlight=False)
        else:
            console.print(f"written: {escape(output)}", highlight=False, soft_wrap=True)


def started_on(cluster: str | None) -> AbstractContextManager[Any]:
    """A client of the cluster that is named; None for threads, for which nothing of clusters is loaded."""
    if cluster is None:
        return nullcontext()
    from cehm_dask.clusters.connect import connect

    return connect(cluster)
