"""The command ``cehm``: the door for people who do not write code.

Top of the flow; parses, calls, prints. Errors of the user's making end with one line and exit code 2.
"""

import logging
import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from cehm_dask import __version__

BAD_INPUT = 2


def _explained(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors about the user's input into one line on stderr and exit code 2; show warnings as lines."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        console = Console(stderr=True)

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            console.print(f"[yellow]warning:[/] {message}", highlight=False)

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                command(*args, **kwargs)
            except (ValueError, TypeError, OSError) as error:
                if logging.getLogger().isEnabledFor(logging.DEBUG):
                    raise
                console.print(f"[red]error:[/] {error}", highlight=False, soft_wrap=True)
                sys.exit(BAD_INPUT)

    return wrapped


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
@click.argument("labels", type=click.Path(path_type=Path))
@click.option("--k", "n_clusters", type=int, required=True, help="Clusters wanted.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Where the result goes: .npy, .csv or .parquet.")
@click.option("--variant", default="released", show_default=True, help="'released' program or 'printed' equations.")
@click.option("--restarts", default=1, show_default=True, help="Medoid starts run side by side; the best is kept.")
@click.option("--choose", default="agreement", show_default=True, help="Keep the start by 'agreement' or by 'loss'.")
@click.option("--max-iter", default=100, show_default=True, help="Most rounds of adjustion.")
@click.option("--seed", default=0, show_default=True, help="Seed of the medoid starts.")
@click.option("--overwrite", is_flag=True, help="Replace an existing output.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@_explained
def consensus(labels: Path, output: Path | None, seed: int, overwrite: bool, quiet: bool, **params: Any) -> None:
    """Consensus of base labels: a .npy, .csv or .parquet file with one row a sample and one column a member.

    \b
    Examples:
      cehm consensus labels.npy --k 10 -o consensus.npy
      cehm consensus labels.csv --k 4 --restarts 10 -o consensus.csv
    """
    from cehm_dask import export
    from cehm_dask.display import Rounds, Stopwatch, summary
    from cehm_dask.estimator import CEHM

    if output is not None:
        export.check_path(output, overwrite=overwrite)
    console, watch = Console(stderr=True), Stopwatch()
    with Rounds(console, quiet=quiet) as progress:
        model = CEHM(random_state=seed, **params).fit(labels, progress=progress)
    if output is not None:
        export.write(output, model.labels_, model.margin_)
    if not quiet:
        summary(Console(), model, watch.seconds)
        if output is not None:
            console.print(f"written: {output}", highlight=False)


@main.command()
@_explained
def demo() -> None:
    """Cluster scikit-learn's handwritten digits by thirty k-means runs and by their consensus, and compare."""
    from rich.table import Table
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from cehm_dask.display import Rounds, Stopwatch, summary
    from cehm_dask.estimator import CEHM

    console = Console()
    features, truth = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    console.print(
        f"{len(features):,} images of handwritten digits, 8 × 8 pixels; 30 k-means runs with 10 to 42 clusters"
    )
    members = [
        KMeans(int(k), n_init=1, init="random", random_state=seed).fit_predict(features)
        for seed, k in enumerate(rng.integers(10, 43, 30))
    ]
    watch = Stopwatch()
    with Rounds(Console(stderr=True), quiet=not console.is_terminal) as progress:
        model = CEHM(10, restarts=10, random_state=0).fit(np.stack(members, axis=1), progress=progress)
    summary(console, model, watch.seconds)

    plain = [KMeans(10, n_init=1, init="random", random_state=seed).fit_predict(features) for seed in range(30)]
    table = Table("against the true digits", "NMI", "ARI", box=None, header_style="bold", pad_edge=False)

    def row(name: str, clusterings: list[Any]) -> None:
        nmi = [normalized_mutual_info_score(truth, c, average_method="geometric") for c in clusterings]
        ari = [adjusted_rand_score(truth, c) for c in clusterings]
        table.add_row(name, f"{np.mean(nmi):.3f}", f"{np.mean(ari):.3f}")

    row("the 30 members, mean", members)
    row("k-means with 10 clusters, mean of 30 runs", plain)
    row("consensus", [model.labels_])
    certain = model.margin_ >= np.median(model.margin_)
    table.add_row(
        "consensus, more certain half",
        f"{normalized_mutual_info_score(truth[certain], model.labels_[certain], average_method='geometric'):.3f}",
        f"{adjusted_rand_score(truth[certain], model.labels_[certain]):.3f}",
    )
    console.print()
    console.print(table)
