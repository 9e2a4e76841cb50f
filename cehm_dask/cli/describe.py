"""``cehm describe``: who the clusters are."""

from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cehm_dask.cli.explain import Terminal, echo_values, explained

SHOWN = 3
"""Examples of a cluster in the terminal."""


@click.command()
@click.argument("result")
@click.option("--features", help="A table of the same rows: .npy, .csv, .parquet or a Zarr array.")
@click.option("--id", "id_column", help="Column of the table that names the rows; no feature.")
@click.option("--cluster", help="A file of cluster_configs/ or a scheduler's address.  [default: threads]")
@click.option("--memory", help="Memory the command may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of tables: all statistics.")
@explained
def describe(
    result: str, features: str | None, id_column: str | None, cluster: str | None, memory: str | None, as_json: bool
) -> None:
    """Say who the clusters are: size, confidence, most telling features, neighbours, examples.

    RESULT is a run directory, which holds its profiles, or a consensus.zarr. With --features, clusters are described by
    any table of the same rows, in one sweep over it; columns of texts are categories.

    \b
    Examples:
      cehm describe runs/today
      cehm describe consensus.zarr --features features.npy
      cehm describe runs/today --features customers.parquet --id customer --json
    """
    found = _profile(result, features, id_column, cluster, memory, as_json)
    if as_json:
        echo_values(found.to_dict())
    else:
        _show(Terminal(), found)


def _profile(
    result: str, table: str | None, id_column: str | None, cluster: str | None, memory: str | None, quiet: bool
) -> Any:
    from cehm_dask.cli.display import Rows
    from cehm_dask.clusters.connect import connect
    from cehm_dask.errors import InputError
    from cehm_dask.pipeline.directory import Directory
    from cehm_dask.pipeline.outputs import read_matching, read_profile
    from cehm_dask.results import describing, export

    if id_column is not None and table is None:
        raise InputError("--id names a column of the table: give the table too, with --features")
    url = result.rstrip("/")
    state = None if url.endswith(".zarr") else Directory(url).read()
    if state is not None and table is None:
        return read_profile(url, state)
    consensus = url if state is None else f"{url}/consensus.zarr"
    ids = None if table is None or id_column is None else export.column_ids(table, id_column)
    left = [] if id_column is None else [id_column]
    with connect(cluster) as client, Rows(Terminal(stderr=True), quiet=quiet) as rows:
        of: dict[str, Any] = {"row_ids": ids, "leave_out": left, "memory": memory, "client": client}
        found = describing.describe(consensus, table, **of, progress=rows)
    names = None if state is None else read_matching(url, state)
    return found if names is None else found.renamed(names["names"])


def _show(console: Console, found: Any) -> None:
    from cehm_dask.profiles.words import effect, number, percent, shortened

    for sentence in found.sentences:
        console.print(escape(sentence), highlight=False)
    table = Table(
        "cluster", "nearest", "most telling", "mean", "effect", "typical", "at the border", box=None, pad_edge=False
    )
    table.header_style = "bold"
    for own in found.clusters:
        near = own["nearest"]
        traits = own["telling"] or [None]
        examples = [
            ", ".join(str(one.get("id", one["row"])) for one in own[kind][:SHOWN]) for kind in ("prototypes", "borders")
        ]
        for place, trait in enumerate(traits):
            first = place == 0
            told = ("", "", "")
            if trait is not None:
                told = (shortened(trait["feature"]), number(trait["mean"]), effect(trait["effect"]))
            cells = [
                str(own["cluster"]) if first else "",
                f"{near['cluster']} ({near['distance']:.1f} sd)" if first and near else "",
                *told,
                *(examples if first else ("", "")),
            ]
            table.add_row(*map(escape, cells))
    console.print()
    console.print(table)
    said = [
        f"{shortened(one['feature'])} {percent(one['explained'])}"
        if one.get("explained") is not None
        else f"{shortened(one['feature'])} V = {one['cramers_v']:.2f}"
        for one in found.screen
        if one.get("explained") is not None or one.get("cramers_v") is not None
    ][:5]
    if said:
        console.print()
        words = "tell the clusters apart best (share of variance between clusters; V of categories): "
        console.print(escape(words + ", ".join(said)), highlight=False)
    if found.left_out:
        names = ", ".join(map(shortened, found.left_out))
        console.print(f"left out, with too many different values: {escape(names)}", highlight=False)
