"""What became of the clusters since the run that is followed, in a terminal."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cehm_dask.profiles.words import percent
from cehm_dask.results.matching import NONE, Matching

MOST_NAMES = 12
"""Clusters of either run in the table of who went where; of more, matching.json has it."""


def show_matching(console: Console, content: Mapping[str, Any]) -> None:
    """Who moved where, and what is new, gone, split or merged."""
    found = Matching.from_dict(content)
    if content["follows"] is None:
        console.print("no earlier run: clusters are called by their numbers", highlight=False)
        return
    said = f"follows {content['follows']}"
    if found.moved is None:
        said += ": no samples in both, clusters matched by the means of their features"
    else:
        said += f": {found.n_shared:,} samples in both, {found.n_moved:,} of them moved ({percent(found.moved)})"
    console.print(escape(said), highlight=False, soft_wrap=True)
    for told in found.told:
        console.print(escape(told), highlight=False)
    table = _flow_table(found)
    if table is not None:
        console.print(table)


def _flow_table(found: Matching) -> Table | None:
    """Names before × names now; None where nothing moved, or there are too many."""
    rows, columns = (sorted({line[side] for line in found.flow}) for side in (0, 1))
    if not found.n_moved or max(len(rows), len(columns)) > MOST_NAMES:
        return None
    counts = {(before, now): n for before, now, n in found.flow}
    table = Table("before \\ now", *map(_called, columns), box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for before in rows:
        cells = [f"{n:,}" if (n := counts.get((before, now), 0)) else "·" for now in columns]
        table.add_row(_called(before), *cells)
    return table


def _called(name: int) -> str:
    return "none" if name == NONE else str(name)
