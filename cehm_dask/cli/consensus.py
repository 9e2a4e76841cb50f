"""``cehm consensus`` and ``cehm demo``: base labels in, one clustering out."""

from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.markup import escape

from cehm_dask.cli.explain import Clusters, explained


@click.command()
@click.argument("labels")
@click.option("--k", "n_clusters", type=Clusters(), required=True, help="Clusters wanted: 10, or 5,8,10, or 2..15.")
@click.option("-o", "--output", help="Where the result goes: .zarr (can be resumed), .npy, .csv or .parquet.")
@click.option("--variant", default="released", show_default=True, help="'released' program or 'printed' equations.")
@click.option("--restarts", default=1, show_default=True, help="Medoid starts run side by side; the best is kept.")
@click.option("--choose", default="agreement", show_default=True, help="Keep the start by 'agreement' or by 'loss'.")
@click.option("--max-iter", default=100, show_default=True, help="Most rounds of adjustion.")
@click.option("--seed", default=0, show_default=True, help="Seed of the medoid starts.")
@click.option("--memory", help="Memory the run may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--cluster", help="A file of cluster_configs/ or a scheduler's address.  [default: threads]")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def consensus(
    labels: str,
    output: str | None,
    seed: int,
    memory: str | None,
    cluster: str | None,
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
      cehm consensus ensemble.zarr --k 10 --cluster cluster_configs/slurm.yaml -o consensus.zarr
    """
    from cehm_dask import export
    from cehm_dask.cluster import connect
    from cehm_dask.display import Rounds, Stopwatch, summary
    from cehm_dask.estimator import CEHM
    from cehm_dask.store import is_store

    stored = output is not None and is_store(output)
    if output is not None and not stored:
        export.check_path(Path(output), overwrite=overwrite)
    console, watch = Console(stderr=True), Stopwatch()
    with connect(cluster) as client, Rounds(console, quiet=quiet) as progress:
        if client is not None and not quiet:
            console.print(f"dashboard: {client.dashboard_link}", highlight=False)
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


@click.command()
@explained
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
