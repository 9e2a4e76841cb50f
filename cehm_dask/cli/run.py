"""``cehm run``, ``plan``, ``recipe`` and ``demo``: a recipe in, a run directory out."""

import json
from typing import Any

import click
import numpy as np

from cehm_dask.cli.explain import Terminal, echo_masked, echo_values, explained
from cehm_dask.errors import AlertError

STEPS = ("ensemble", "consensus", "match", "profile", "evaluate", "export", "report")
"""Those of ``pipeline.run``, which is slow to import."""


@click.command()
@click.argument("recipe")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value; may be repeated.")
@click.option("--cluster", help="A file of cluster_configs/, or a scheduler's address, in place of the recipe's.")
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="The value of {date} in paths.  [default: today]")
@click.option("--until", type=click.Choice(STEPS), default=STEPS[-1], show_default=True, help="Last step to do.")
@click.option("--overwrite", is_flag=True, help="Start from the beginning.")
@click.option("--follow", metavar="RUN", help="Keep the cluster names of this run directory; or 'previous'.")
@click.option("--fail-on-alert", is_flag=True, help="End with exit code 8 if more changed than the recipe allows.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON on stdout, and nothing else there.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def run(
    recipe: str,
    overrides: tuple[str, ...],
    cluster: str | None,
    date: Any,
    until: str,
    overwrite: bool,
    follow: str | None,
    fail_on_alert: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a recipe: base clusterings, consensus, names, profiles, scores, report, in one run directory.

    Steps that are done and unchanged are skipped, interrupted ones resume, and from the first change on all are
    recomputed. A run directory has one writer at a time.

    \b
    Examples:
      cehm run recipe.yaml
      cehm run recipe.yaml --set consensus.k=12 --set output=runs/twelve
      cehm run recipe.yaml --date 2026-11-16 --json --quiet
      cehm run recipe.yaml --follow runs/2026-11-15 --fail-on-alert
    """
    from cehm_dask.pipeline.recipe import load

    if follow is not None:
        overrides = (*overrides, f"follow={json.dumps(follow)}")
    wanted = load(recipe, overrides)  # what is wrong with it is said before anything heavy is loaded
    from cehm_dask.cli.display import Steps, run_summary
    from cehm_dask.pipeline.run import run as do

    progress = Steps(Terminal(stderr=True), quiet=quiet)
    try:
        result = do(
            wanted, date=date and date.date(), cluster=cluster, until=until, overwrite=overwrite, progress=progress
        )
    finally:
        progress.stop()
    if as_json:
        echo_values(result.summary())
    elif not quiet:
        run_summary(Terminal(), result)
    if fail_on_alert and result.alerts:
        raise AlertError(f"{len(result.alerts)} alert(s), the run is done: {'; '.join(result.alerts)}")


@click.command()
@click.argument("recipe")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value; may be repeated.")
@click.option("--date", type=click.DateTime(["%Y-%m-%d"]), help="The value of {date} in paths.  [default: today]")
@explained
def plan(recipe: str, overrides: tuple[str, ...], date: Any) -> None:
    """Estimate the cost of a run before anything runs: steps, sweeps, bytes, memory by named term, about how long.

    Nothing is written. Times are an estimate, from a few seconds of trials on this machine. What does not fit the
    memory allowed is refused as the run would refuse it, with exit code 3.

    \b
    Examples:
      cehm plan recipe.yaml
      cehm plan recipe.yaml --set memory=2GiB --set consensus.restarts=10
    """
    import datetime

    from cehm_dask.pipeline.recipe import load

    wanted = load(recipe, overrides).on((date.date() if date else datetime.date.today()).isoformat())
    from cehm_dask.cli.display import show_estimate
    from cehm_dask.pipeline.estimate import estimate

    show_estimate(Terminal(soft_wrap=True), estimate(wanted))


@click.command()
@click.option("--schema", is_flag=True, help="Print the JSON schema, for editors.")
@click.option("--example", is_flag=True, help="Print a commented recipe that runs.")
@click.option("--check", metavar="FILE", help="Say what is wrong with a recipe, or print it with its defaults.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a value before --check.")
@explained
def recipe(schema: bool, example: bool, check: str | None, overrides: tuple[str, ...]) -> None:
    """Help with writing recipes.

    \b
    Examples:
      cehm recipe --example
      cehm recipe --check recipe.yaml
      cehm recipe --schema
    """
    import yaml

    from cehm_dask.pipeline import recipe as recipes
    from cehm_dask.pipeline.recipe_model import Recipe

    if schema + example + (check is not None) != 1:
        raise click.UsageError("expected one of --schema, --example and --check FILE")
    if schema:
        click.echo(json.dumps(Recipe.model_json_schema(), indent=2))
    elif example:
        click.echo(recipes.example(), nl=False)
    elif check is not None:
        checked = recipes.load(check, overrides)
        echo_masked(yaml.safe_dump(checked.written(), sort_keys=False, allow_unicode=True))


@click.command()
@click.option("--output", default="cehm-demo", show_default=True, help="The run directory.")
@explained
def demo(output: str) -> None:
    """Cluster scikit-learn's handwritten digits by thirty k-means runs and by their consensus, and compare.

    \b
    Example:
      cehm demo --output digits
    """
    from rich.table import Table
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from cehm_dask.cli.display import Steps, run_summary
    from cehm_dask.data.ensemble_store import open_ensemble
    from cehm_dask.pipeline.recipe import example, parse
    from cehm_dask.pipeline.run import run as do

    console = Terminal()
    features, truth = load_digits(return_X_y=True)
    console.print(f"{len(features):,} images of handwritten digits, 8 × 8 pixels: 30 k-means runs and their consensus")
    errors = Terminal(stderr=True)
    progress = Steps(errors, quiet=not errors.is_terminal)
    try:
        result = do(parse(example(), [f"output={json.dumps(output)}"]), progress=progress)
    finally:
        progress.stop()
    ensemble = open_ensemble(f"{result.directory}/ensemble.zarr")
    table = Table("against the true digits", "NMI", "ARI", box=None, header_style="bold", pad_edge=False)

    def row(name: str, clusterings: list[Any]) -> None:
        nmi = [normalized_mutual_info_score(truth, found, average_method="geometric") for found in clusterings]
        ari = [adjusted_rand_score(truth, found) for found in clusterings]
        table.add_row(name, f"{np.mean(nmi):.3f}", f"{np.mean(ari):.3f}")

    row("the 30 members, mean", list(ensemble.read(0, ensemble.n_samples).T))
    plain = [KMeans(10, n_init=1, init="random", random_state=seed).fit_predict(features) for seed in range(30)]
    row("k-means with 10 clusters, mean of 30 runs", plain)
    # As scored for the report, so that both show the same numbers.
    known = {"consensus": "scores", "consensus, its more certain half": "certain_half"}
    for name, part in known.items():
        table.add_row(name, *(f"{result.scores[part][score]:.3f}" for score in ("nmi", "ari")))
    console.print(table)
    console.print()
    run_summary(console, result)
