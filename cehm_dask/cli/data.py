"""``cehm import``, ``generate``, ``synth`` and ``info``: what comes before a consensus, and what a store holds."""

import logging
from typing import Any

import click

from cehm_dask.cli.explain import Count, Terminal, explained
from cehm_dask.errors import STORAGE, exit_code_of

log = logging.getLogger(__name__)

ROW_ID = "Column of a table that names the rows; left out."


@click.command("import")
@click.argument("labels", nargs=-1, required=True)
@click.argument("ensemble")
@click.option("--id", "row_id", help="Column of a table that names the rows; rows of several files are matched by it.")
@click.option(
    "--label", help="Column of labels, of several files with one member each.  [default: the one beside the id]"
)
@click.option("--overwrite", is_flag=True, help="Replace an existing ensemble.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def import_(
    labels: tuple[str, ...], ensemble: str, row_id: str | None, label: str | None, overwrite: bool, quiet: bool
) -> None:
    """Write base labels to an ensemble.zarr, block by block.

    LABELS is a .npy file, a table (.csv, .tsv, .parquet, .feather, .arrow), a folder of .parquet files or a Zarr array;
    one row per sample, one column per member, -1 (or empty, in tables) where a label is missing. Several tables, or one
    with --label, hold one member each: rows are matched by --id, and a row that a file lacks is a missing label; all of
    them are held in memory. ENSEMBLE is a path or URL that ends in .zarr.

    \b
    Examples:
      cehm import labels.parquet ensemble.zarr
      cehm import labels.npy s3://bucket/ensemble.zarr
      cehm import runs/*.csv --id CellID --label cluster ensemble.zarr
    """
    from cehm_dask.cli.display import Rows
    from cehm_dask.data.alignment import joined_files
    from cehm_dask.data.ingest import ingest

    several = len(labels) > 1 or label is not None
    with Rows(Terminal(stderr=True), quiet=quiet) as rows:
        if several:
            source = f"{len(labels)} files, {labels[0]} and on"
            ingest(joined_files(labels, row_id, label), ensemble, overwrite=overwrite, source=source, progress=rows)
        else:
            left_out = [] if row_id is None else [row_id]
            ingest(labels[0], ensemble, overwrite=overwrite, leave_out=left_out, progress=rows)
    if not quiet:
        _print_written(ensemble)


@click.command()
@click.argument("features")
@click.argument("ensemble")
@click.option("--k", "n_clusters", type=int, required=True, help="Clusters wanted in the end; members have k or more.")
@click.option("--id", "row_id", help=ROW_ID)
@click.option("--members", default=30, show_default=True, help="Base clusterings to make.")
@click.option(
    "--base",
    multiple=True,
    default=["kmeans"],
    show_default=True,
    help="kmeans, minibatch, mixture, birch or dask-ml; repeat it to mix.",
)
@click.option("--columns", multiple=True, help="Column of a table that is a feature; repeat it.  [default: all are]")
@click.option("--drop", multiple=True, help="Column of a table that is no feature; repeat it.")
@click.option(
    "--categories",
    help="Text and categories: one-hot (a column of 0 and 1 per value), ordinal (ranks) or drop.  [default: one-hot, "
    "with a warning]",
)
@click.option("--dates", help="Dates: days (since 1970) or drop.  [default: refused]")
@click.option(
    "--scale",
    default="standard",
    show_default=True,
    help="none, standard, minmax, robust; or log, quantile, rank, for columns with heavy tails.",
)
@click.option("--k-min", type=int, help="Fewest clusters of a member.  [default: k]")
@click.option("--k-max", type=int, help="Most clusters of a member.  [default: max(min(√n, 50), 1.5 k)]")
@click.option("--fit-rows", type=Count(), help="Rows that members are fitted on.  [default: all, at most 32768]")
@click.option("--full-lloyd", is_flag=True, help="Continue k-means over all rows, from the centres of the sample.")
@click.option("--subspace", type=float, help="Share of the features that each member sees.")
@click.option("--projection", type=int, help="Dimensions of a random projection that each member sees.")
@click.option("--bootstrap", is_flag=True, help="Fit members on rows drawn with repetition.")
@click.option(
    "--subsample", type=float, help="Share of the rows that each member is fitted on and labels, such as 0.8."
)
@click.option("--impute", help="Replace missing and infinite values by mean, median or most_frequent value.")
@click.option("--seed", default=0, show_default=True)
@click.option("--memory", help="Memory the run may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--cluster", help="A file of cluster_configs/ or a scheduler's address.  [default: threads]")
@click.option("--append", is_flag=True, help="Append the members to those of an existing ensemble.")
@click.option("--overwrite", is_flag=True, help="Replace an existing ensemble.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def generate(
    features: str,
    ensemble: str,
    n_clusters: int,
    row_id: str | None,
    columns: tuple[str, ...],
    drop: tuple[str, ...],
    categories: str | None,
    dates: str | None,
    members: int,
    base: tuple[str, ...],
    k_min: int | None,
    k_max: int | None,
    seed: int,
    memory: str | None,
    cluster: str | None,
    append: bool,
    overwrite: bool,
    quiet: bool,
    scale: str,
    impute: str | None,
    fit_rows: int | None,
    full_lloyd: bool,
    **drawn: Any,
) -> None:
    """Make an ensemble of base clusterings from features, block by block.

    FEATURES is a .npy file, a table (.csv, .tsv, .parquet, .feather, .arrow) or a Zarr array, one row per sample. An
    interrupted generation resumes where it stopped: give the same command.

    \b
    Examples:
      cehm generate features.npy ensemble.zarr --k 10
      cehm generate features.parquet ensemble.zarr --k 10 --base kmeans --base mixture --subspace 0.5
      cehm generate customers.csv ensemble.zarr --k 6 --id customer --drop note --dates days --impute median
    """
    from cehm_dask.cli.display import Rows
    from cehm_dask.clusters.connect import connect
    from cehm_dask.data.features import as_features
    from cehm_dask.data.preparation import Preparation
    from cehm_dask.members.fit import MemberPlan, k_range, plan_members
    from cehm_dask.members.generate import FULL_FIT_ROWS, plan_appended
    from cehm_dask.members.generate import generate as make

    rows = as_features(features, Preparation.of(columns or None, drop, row_id, categories, dates))
    low, high = k_range(n_clusters, rows.n_samples)
    low, high = k_min or low, k_max or max(high, k_min or 0)

    def draw(first: int) -> list[MemberPlan]:
        return plan_members(members, low, high, seed, base=base, first=first, **drawn)

    plans = plan_appended(ensemble, draw) if append else draw(0)
    console = Terminal(stderr=True)
    if not quiet:
        fitted = min(rows.n_samples, fit_rows or FULL_FIT_ROWS)
        console.print(
            f"{rows.n_samples:,} rows, {rows.n_features} features; members of {low} to {high} clusters, "
            f"fitted on {fitted:,} rows",
            highlight=False,
        )
    with connect(cluster) as client, Rows(console, quiet=quiet) as progress:
        make(
            rows,
            ensemble,
            plans,
            seed,
            append=append,
            overwrite=overwrite,
            memory=memory,
            client=client or False,
            progress=progress,
            scale=scale,
            impute=impute,
            fit_rows=fit_rows,
            full_lloyd=full_lloyd,
        )
    if not quiet:
        _print_written(ensemble)


@click.command()
@click.argument("ensemble")
@click.option("--n", "n_samples", type=Count(), required=True, help="Samples, such as 1e8.")
@click.option("--members", "n_members", default=30, show_default=True)
@click.option("--classes", "n_classes", default=10, show_default=True, help="True classes.")
@click.option("--k-min", default=10, show_default=True, help="Fewest clusters of a member.")
@click.option("--k-max", default=50, show_default=True, help="Most clusters of a member.")
@click.option("--follow", default=0.8, show_default=True, help="Share of labels that follow the true class.")
@click.option("--missing", default=0.0, show_default=True, help="Share of labels left out.")
@click.option("--seed", default=0, show_default=True)
@click.option("--overwrite", is_flag=True, help="Replace an existing ensemble.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def synth(ensemble: str, overwrite: bool, quiet: bool, **options: Any) -> None:
    """Write a made-up ensemble of any size, with its true classes, to try scale.

    \b
    Example:
      cehm synth ensemble.zarr --n 1e7
    """
    from cehm_dask.cli.display import Rows
    from cehm_dask.data.synth import Synth
    from cehm_dask.machine import cores

    made = Synth(**options)
    with Rows(Terminal(stderr=True), quiet=quiet) as rows:
        made.write(ensemble, overwrite=overwrite, threads=cores(), progress=rows)
    if not quiet:
        _print_written(ensemble)


@click.command()
@click.argument("store")
@explained
def info(store: str) -> None:
    """Show what an ensemble.zarr or a consensus.zarr holds."""
    _print_info(store)


def _print_info(url: str) -> None:
    from cehm_dask.cli.display import describe

    describe(Terminal(), url)


def _print_written(url: str) -> None:
    """The summary of a store that is whole: if it cannot be read just now, nothing needs to be done again."""
    try:
        _print_info(url)
    except Exception as error:
        if exit_code_of(error) != STORAGE:
            raise
        log.warning("%s is written; it could not be read just now for a summary (%s)", url, error)
