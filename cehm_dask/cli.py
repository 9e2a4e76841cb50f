"""The command ``cehm``: the door for people who do not write code.

Top of the flow; parses, calls, prints. Errors of the user's making end with one line and an exit code: 2 for bad
input, 3 for what does not fit the memory allowed, 4 for an interrupted run.
"""

import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape

from cehm_dask import __version__

BAD_INPUT = 2
DOES_NOT_FIT = 3
INTERRUPTED = 4


def _explained(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors of the user's making into one line on stderr and an exit code; show warnings as lines."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from cehm_dask.plan import BudgetError

        console = Console(stderr=True, soft_wrap=True, highlight=False)

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            console.print(f"[yellow]warning:[/] {escape(str(message))}")

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                command(*args, **kwargs)
            except KeyboardInterrupt:
                console.print("interrupted; with an output that ends in .zarr, the same command goes on from here")
                sys.exit(INTERRUPTED)
            except (ValueError, TypeError, OSError, ImportError) as error:
                if logging.getLogger().isEnabledFor(logging.DEBUG):
                    raise
                console.print(f"[red]error:[/] {escape(str(error))}")
                sys.exit(DOES_NOT_FIT if isinstance(error, BudgetError) else BAD_INPUT)

    return wrapped


class Count(click.ParamType[Any]):
    """A whole number, which may be written 1e8."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
        except ValueError:
            number = 0.5
        if not (number >= 1 and number.is_integer()):  # nor nan, nor inf
            self.fail(f"{value!r} is not a whole number of at least 1")
        return int(number)


class Clusters(click.ParamType[Any]):
    """Numbers of clusters: 10, or 5,8,10, or 2..15."""

    name = "k"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | list[int]:
        try:
            if ".." in value:
                first, last = (int(part) for part in value.split(".."))
                ks = list(range(first, last + 1))
            else:
                ks = [int(part) for part in value.split(",")]
        except ValueError:
            ks = []
        if not ks:
            self.fail(f"{value!r} is neither a number (10) nor a list (5,8,10) nor a range (2..15)")
        return ks[0] if len(ks) == 1 else ks


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cehm")
@click.option("--verbose", is_flag=True, help="Log every sweep, and show tracebacks.")
def main(verbose: bool) -> None:
    """Consensus clustering: many clusterings of the same samples in, one better clustering out."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    if verbose:
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("numba").setLevel(logging.WARNING)


@main.command()
@click.argument("labels")
@click.option("--k", "n_clusters", type=Clusters(), required=True, help="Clusters wanted: 10, or 5,8,10, or 2..15.")
@click.option("-o", "--output", help="Where the result goes: .zarr (can be resumed), .npy, .csv or .parquet.")
@click.option("--variant", default="released", show_default=True, help="'released' program or 'printed' equations.")
@click.option("--restarts", default=1, show_default=True, help="Medoid starts run side by side; the best is kept.")
@click.option("--choose", default="agreement", show_default=True, help="Keep the start by 'agreement' or by 'loss'.")
@click.option("--max-iter", default=100, show_default=True, help="Most rounds of adjustion.")
@click.option("--seed", default=0, show_default=True, help="Seed of the medoid starts.")
@click.option("--memory", help="Memory the run may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--scheduler", help="Address of a Dask scheduler whose workers do the sweeps.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@_explained
def consensus(
    labels: str,
    output: str | None,
    seed: int,
    memory: str | None,
    scheduler: str | None,
    overwrite: bool,
    quiet: bool,
    **params: Any,
) -> None:
    """Consensus of base labels: one row a sample, one column a member.

    LABELS is a .npy, .csv or .parquet file, or an ensemble.zarr (path or URL), which is read block by block and may
    be larger than memory. An interrupted run with a .zarr output goes on where it stopped: give the same command.

    \b
    Examples:
      cehm consensus labels.npy --k 10 -o consensus.npy
      cehm consensus labels.csv --k 4 --restarts 10 -o consensus.csv
      cehm consensus ensemble.zarr --k 10 --memory 2GiB -o consensus.zarr
    """
    from cehm_dask import export
    from cehm_dask.display import Rounds, Stopwatch, summary
    from cehm_dask.estimator import CEHM
    from cehm_dask.store import is_store

    stored = output is not None and is_store(output)
    if output is not None and not stored:
        export.check_path(Path(output), overwrite=overwrite)
    console, watch = Console(stderr=True), Stopwatch()
    with _client(scheduler, console) as client, Rounds(console, quiet=quiet) as progress:
        model = CEHM(random_state=seed, **params).fit(
            labels,
            output=output if stored else None,
            overwrite=overwrite,
            memory=memory,
            client=client,
            progress=progress,
        )
    if output is not None and not stored:
        export.write(Path(output), model.labels_, model.margin_)
    if not quiet:
        summary(Console(), model, watch.seconds)
        if output is not None:
            console.print(f"written: {escape(output)}", highlight=False, soft_wrap=True)


@contextmanager
def _client(scheduler: str | None, console: Console) -> Iterator[Any]:
    """A client of the scheduler at an address, or None."""
    if scheduler is None:
        yield None
        return
    from distributed import Client

    with Client(scheduler, timeout=30) as client:
        console.print(f"dashboard: {client.dashboard_link}", highlight=False)
        yield client


@main.command("import")
@click.argument("labels")
@click.argument("ensemble")
@click.option("--overwrite", is_flag=True, help="Replace an existing ensemble.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@_explained
def import_(labels: str, ensemble: str, overwrite: bool, quiet: bool) -> None:
    """Write base labels to an ensemble.zarr, block by block.

    LABELS is a .npy, .csv or .parquet file, a folder of .parquet files, or a Zarr array; one row a sample, one column
    a member, -1 (or empty, in tables) where a member says nothing. ENSEMBLE is a path or URL that ends in .zarr.

    \b
    Examples:
      cehm import labels.parquet ensemble.zarr
      cehm import labels.npy s3://bucket/ensemble.zarr
    """
    from cehm_dask.display import Rows
    from cehm_dask.ingest import ingest

    with Rows(Console(stderr=True), quiet=quiet) as rows:
        ingest(labels, ensemble, overwrite=overwrite, report=rows.report)
    if not quiet:
        _print_info(ensemble)


@main.command()
@click.argument("features")
@click.argument("ensemble")
@click.option("--k", "n_clusters", type=int, required=True, help="Clusters wanted in the end; members have k or more.")
@click.option("--members", default=30, show_default=True, help="Base clusterings to make.")
@click.option(
    "--base", multiple=True, default=["kmeans"], show_default=True, help="Also minibatch, mixture, birch, dask-ml."
)
@click.option("--scale", default="standard", show_default=True, help="none, standard, minmax or robust.")
@click.option("--k-min", type=int, help="Fewest clusters of a member.  [default: k]")
@click.option("--k-max", type=int, help="Most clusters of a member.  [default: max(min(√n, 50), 1.5 k)]")
@click.option("--fit-rows", type=Count(), help="Rows members are fitted on.  [default: all up to 32768, else so many]")
@click.option("--full-lloyd", is_flag=True, help="Go on over all rows from the centres of the sample.")
@click.option("--subspace", type=float, help="Share of the features that each member sees.")
@click.option("--projection", type=int, help="Dimensions of a random projection that each member sees.")
@click.option("--bootstrap", is_flag=True, help="Fit members on rows drawn with repetition.")
@click.option("--impute", help="'mean' to replace values that are not finite.")
@click.option("--seed", default=0, show_default=True)
@click.option("--append", is_flag=True, help="Put the members behind those of an existing ensemble.")
@click.option("--overwrite", is_flag=True, help="Replace an existing ensemble.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@_explained
def generate(
    features: str,
    ensemble: str,
    n_clusters: int,
    members: int,
    base: tuple[str, ...],
    k_min: int | None,
    k_max: int | None,
    seed: int,
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

    FEATURES is a .npy, .csv or .parquet file or a Zarr array, one row a sample. An interrupted generation goes on
    where it stopped: give the same command.

    \b
    Examples:
      cehm generate features.npy ensemble.zarr --k 10
      cehm generate features.parquet ensemble.zarr --k 10 --base kmeans --base mixture --subspace 0.5
    """
    from cehm_dask.base_labels import FULL_FIT_ROWS, k_range, plan_members
    from cehm_dask.base_labels import generate as make
    from cehm_dask.display import Rows
    from cehm_dask.features import as_features
    from cehm_dask.store import open_ensemble

    rows = as_features(features)
    low, high = k_range(n_clusters, rows.n_samples)
    low, high = k_min or low, k_max or max(high, k_min or 0)
    first = len(open_ensemble(ensemble).widths) if append else 0
    plans = plan_members(members, low, high, seed, base=base, first=first, **drawn)
    console = Console(stderr=True)
    if not quiet:
        fitted = min(rows.n_samples, fit_rows or FULL_FIT_ROWS)
        console.print(
            f"{rows.n_samples:,} rows, {rows.n_features} features; members of {low} to {high} clusters, "
            f"fitted on {fitted:,} rows",
            highlight=False,
        )
    with Rows(console, quiet=quiet) as progress:
        make(
            rows,
            ensemble,
            plans,
            seed,
            append=append,
            overwrite=overwrite,
            report=progress.report,
            scale=scale,
            impute=impute,
            fit_rows=fit_rows,
            full_lloyd=full_lloyd,
        )
    if not quiet:
        _print_info(ensemble)


@main.command()
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
@_explained
def synth(ensemble: str, overwrite: bool, quiet: bool, **options: Any) -> None:
    """Write a made-up ensemble of any size, with its true classes, to try scale.

    \b
    Example:
      cehm synth ensemble.zarr --n 1e7
    """
    import os

    from cehm_dask.display import Rows
    from cehm_dask.synth import Synth

    made = Synth(**options)
    with Rows(Console(stderr=True), quiet=quiet, total=made.n_samples) as rows:
        threads = len(os.sched_getaffinity(0))
        made.write(ensemble, overwrite=overwrite, threads=threads, report=lambda count: rows.report("made", count))
    if not quiet:
        _print_info(ensemble)


@main.command()
@click.argument("store")
@_explained
def info(store: str) -> None:
    """Say what an ensemble.zarr or a consensus.zarr holds."""
    _print_info(store)


def _print_info(url: str) -> None:
    from cehm_dask.display import describe

    describe(Console(), url)


@main.command()
@_explained
def demo() -> None:
    """Cluster scikit-learn's handwritten digits by thirty k-means runs and by their consensus, and compare."""
    from rich.table import Table
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from cehm_dask.cluster_ensemble import ClusterEnsemble
    from cehm_dask.display import Rounds, Stopwatch, summary

    console = Console()
    features, truth = load_digits(return_X_y=True)
    console.print(f"{len(features):,} images of handwritten digits, 8 × 8 pixels: 30 k-means runs and their consensus")
    watch = Stopwatch()
    with Rounds(Console(stderr=True), quiet=not console.is_terminal) as progress:
        model = ClusterEnsemble(10, scale="none", restarts=10, random_state=0).fit(features, progress=progress)
    summary(console, model.consensus_, watch.seconds)

    table = Table("against the true digits", "NMI", "ARI", box=None, header_style="bold", pad_edge=False)

    def row(name: str, clusterings: list[Any], rows: Any = slice(None)) -> None:
        nmi = [normalized_mutual_info_score(truth[rows], c[rows], average_method="geometric") for c in clusterings]
        ari = [adjusted_rand_score(truth[rows], c[rows]) for c in clusterings]
        table.add_row(name, f"{np.mean(nmi):.3f}", f"{np.mean(ari):.3f}")

    row("the 30 members, mean", list(model.base_labels_.T))
    plain = [KMeans(10, n_init=1, init="random", random_state=seed).fit_predict(features) for seed in range(30)]
    row("k-means with 10 clusters, mean of 30 runs", plain)
    row("consensus", [model.labels_])
    row("consensus, its more certain half", [model.labels_], model.margin_ >= np.median(model.margin_))
    console.print()
    console.print(table)
