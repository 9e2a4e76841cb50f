"""The heat maps of a page, each with the values that its tips tell.

Between ``heatmaps``, which draws them, and ``page``.
"""

import base64
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask.report import heatmaps
from cehm_dask.report.findings import Members
from cehm_dask.report.sections import Together, map_rows
from cehm_dask.report.who import Telling
from cehm_dask.report.words import Context, shortened

MOST_EFFECT = 10.0
"""Standard deviations that a tip can tell."""


def heat_maps(
    mapped: heatmaps.HyperedgeMap,
    together: Together,
    telling: Telling | None,
    members: Members,
    called: Sequence[str],
    classes: Sequence[str],
) -> tuple[dict[str, Markup], dict[str, Context]]:
    """Figures and values by name; clusters have names and colours. A map without anything to compare is left out."""
    columns = [called[c] for c in together.clusters]
    drawn = {
        "map": heatmaps.map_figure(mapped, classes, called),
        "consensus": heatmaps.consensus(together.table, columns, [classes[c] for c in together.clusters]),
    }
    grids = {
        "map": _grid(mapped.shares, map_rows(mapped), _titles([called[c] for c in mapped.columns])),
        "consensus": _grid(together.table, _titles(columns), _titles(columns)),
    }
    if telling is not None:
        effects, names, columns = telling.effects, telling.names, telling.clusters
        drawn["profiles"] = heatmaps.profiles(effects, names, columns)
        grids["profiles"] = _grid(effects, names, _titles(columns), span=(-MOST_EFFECT, MOST_EFFECT), unit=" sd")
    if len(members.shown) > 1:
        outlying = members.outlying.tolist()
        drawn["agreement"] = heatmaps.agreement(members.agreement, members.shown, outlying, members.names)
        own = [shortened(members.names[j]) for j in members.shown]
        grids["agreement"] = _grid(members.agreement, own, own)
    return drawn, grids


def _titles(clusters: Sequence[str]) -> list[str]:
    return [f"cluster {name}" for name in clusters]


def _grid(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    span: tuple[float, float] = (0.0, 1.0),
    unit: str = "",
) -> Context:
    """Values for tips, one byte each; 255 where there is none."""
    shares = np.clip((values - span[0]) / (span[1] - span[0]), 0, 1)
    content = np.where(np.isnan(shares), 255, np.round(np.nan_to_num(shares) * 250)).astype(np.uint8).tobytes()
    named = {"rows": list(rows), "columns": list(columns), "span": span, "unit": unit}
    return {"values": base64.b64encode(content).decode(), **named}
