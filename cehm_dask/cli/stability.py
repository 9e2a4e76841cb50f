"""``cehm stability``: consensus matrices of base labels, and what they say of each number of clusters."""

import math
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from cehm_dask.cli.explain import Clusters, Count, Terminal, echo_values, explained
from cehm_dask.errors import ExistsError, InputError


@click.command()
@click.argument("labels")
@click.option("--k", "n_clusters", type=Clusters(), required=True, help="Numbers of clusters: 4, or 2,4, or 2..8.")
@click.option("--all-members", is_flag=True, help="All members for every k.  [default: those with k clusters]")
@click.option("--rows", "most_rows", type=Count(), default=4000, show_default=True, help="Samples compared, at most.")
@click.option("--seed", default=0, show_default=True, help="Seed of the samples and of the clusterings.")
@click.option("--picture", help="Where heat maps, CDFs and delta areas go: .png, .svg or .pdf (extra compare).")
@click.option("-o", "--output", help="Where each sample's cluster and item consensus go: .csv or .parquet.")
@click.option("--memory", help="Memory the command may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--overwrite", is_flag=True, help="Replace existing outputs.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of a table.")
@explained
def stability(
    labels: str,
    n_clusters: Any,
    all_members: bool,
    most_rows: int,
    seed: int,
    picture: str | None,
    output: str | None,
    memory: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Consensus matrix, CDF, delta area, PAC, cluster and item consensus of base labels.

    LABELS is a .npy, .csv or .parquet file, or an ensemble.zarr, with members of all the numbers of clusters side by
    side. The definitions are those of ConsensusClusterPlus: of the members that label both of two samples, the share
    that puts them together. Beyond --rows samples, a seeded sample of them is compared.

    \b
    Examples:
      cehm stability labels.npy --k 2..8
      cehm stability ensemble.zarr --k 10 --all-members --picture stability.png -o items.csv
    """
    from cehm_dask.results.coassociation import stability as measured

    if n_clusters == "auto":
        raise InputError("--k auto: give the numbers of clusters to look at, such as 2..8")
    for place in (picture, output):
        if place is not None and Path(place).exists() and not overwrite:
            raise ExistsError(f"output {place} exists: choose another name, or pass --overwrite")
    if output is not None and not output.endswith((".csv", ".parquet")):
        raise InputError(f"output {output}: expected a name that ends in .csv or .parquet")
    ks = [n_clusters] if isinstance(n_clusters, int) else n_clusters
    options: dict[str, Any] = {"all_members": all_members, "most_rows": most_rows, "seed": seed, "memory": memory}
    found = measured(labels, ks, **options)
    if picture is not None:
        from cehm_dask.doors.resampling import draw

        draw(found, picture)
    if output is not None:
        _write_items(Path(output), found)
    records = [one.record() for one in found]
    if as_json:
        echo_values([{name: _plain(value) for name, value in record.items()} for record in records])
        return
    _show(records)
    for place in (picture, output):
        if place is not None:
            Terminal(stderr=True).print(f"written: {escape(place)}", highlight=False, soft_wrap=True)


def _plain(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _show(records: list[dict[str, Any]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("k", "members", "samples", "area", "delta area", "PAC", "cluster consensus"):
        table.add_column(name, justify="left" if name.startswith("cluster") else "right")
    for record in records:
        consensus = ", ".join("–" if math.isnan(value) else f"{value:.3f}" for value in record["cluster_consensus"])
        counts = (f"{record[name]:,}" for name in ("n_clusters", "n_members", "n_rows"))
        table.add_row(*counts, *(f"{record[name]:.4f}" for name in ("area", "delta_area", "pac")), consensus)
    Terminal().print(table)


def _write_items(path: Path, found: Any) -> None:
    import pandas as pd

    from cehm_dask.data.files import whole

    parts = [
        pd.DataFrame(
            {"k": one.n_clusters, "row": one.co.rows, "label": one.labels, "item_consensus": one.own_consensus()}
        )
        for one in found
    ]
    table = pd.concat(parts, ignore_index=True)
    with whole(path) as file:
        table.to_csv(file, index=False) if path.suffix == ".csv" else table.to_parquet(file, index=False)
