"""The page of a comparison: methods, box plots and tests, in the look of the report.

Beside the report's page, with its style sheet. One file that asks the network for nothing and runs no script.
"""

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cehm_dask import __version__
from cehm_dask.machine import format_bytes
from cehm_dask.paper.compare import SCORES, TITLES, dunn, kruskal_wallis, summary, testable
from cehm_dask.paper.figures import figure_of
from cehm_dask.report.drawing import COLOURS
from cehm_dask.report.page import HERE

NAMES = {"nmi": "NMI", "ari": "ARI", "accuracy": "accuracy", "agreement": "agreement"}
SIGNIFICANT = 0.05


def scored(lines: pd.DataFrame) -> list[str]:
    """Scores that the lines hold: against known classes, else the agreement with the members."""
    return [score for score in SCORES if lines[score].notna().any()] or ["agreement"]


def box_plots(lines: pd.DataFrame, file: Any, kind: str = "svg") -> None:
    """The paper's box plots: a panel a score, a box a method over the ensembles."""
    done = lines[lines["note"].isna()]
    methods = list(done["method"].unique())
    panels = scored(lines)
    figure, axes = figure_of(1, len(panels), max(3.0, 0.42 * len(methods) + 1.0), 3.6)
    for axis, score in zip(axes.flat, panels, strict=True):
        groups = [done.loc[done["method"] == name, score].to_numpy() for name in methods]
        boxes = axis.boxplot(groups, patch_artist=True, medianprops={"color": "#1f2430"}, flierprops={"ms": 3})
        for box, name in zip(boxes["boxes"], methods, strict=True):
            box.set_facecolor("#e79a62" if name.startswith("cehm") else "#d9e7ee")
        axis.set_xticks(range(1, len(methods) + 1), [TITLES[name] for name in methods], rotation=60, ha="right")
        axis.tick_params(labelsize=8)
        axis.set_title(NAMES[score], fontsize=10)
        axis.grid(axis="y", lw=0.4)
    figure.savefig(file, format=kind, dpi=110)


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The summary as texts."""
    best = {score: table[score].max() for score in (*SCORES, "agreement")}
    rows = []
    for name, line in table.iterrows():
        numbers = {score: "" if pd.isna(line[score]) else f"{line[score]:.4f}" for score in (*SCORES, "agreement")}
        rows.append(
            {
                "name": name,
                "title": line["title"],
                **numbers,
                "best": {score for score, value in best.items() if line[score] == value},
                "spread": "" if pd.isna(line["sd"]) else f"{line['sd']:.4f}",
                "rank": f"{line['rank']:.2f}",
                "clusters": f"{line['clusters']:g}"
                if line["clusters"] == int(line["clusters"])
                else f"{line['clusters']:.1f}",
                "seconds": f"{line['seconds']:.3g}",
                "peak": format_bytes(line["peak"]),
            }
        )
    return rows


def render(lines: pd.DataFrame, facts: Mapping[str, str], title: str) -> str:
    """The whole page as text."""
    image = io.BytesIO()
    box_plots(lines, image)
    panels = scored(lines)
    tests: Sequence[dict[str, Any]] = []
    if testable(lines):
        tests = [_test(lines, score) for score in panels]
    notes = [f"{line['title']} did not run: {line['note']}" for _, line in lines[lines["note"].notna()].iterrows()]
    environment = Environment(loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined)
    return environment.get_template("comparison.html").render(
        title=title,
        program=__version__,
        facts=list(facts.items()),
        rows=rows_of(summary(lines)),
        scores=[(score, NAMES[score]) for score in (*[s for s in panels if s != "agreement"], "agreement")],
        several=lines["ensemble"].nunique() > 1,
        boxes=base64.b64encode(image.getvalue()).decode(),
        tests=tests,
        notes=notes,
        significant=SIGNIFICANT,
        colours=COLOURS,
    )


def _test(lines: pd.DataFrame, score: str) -> dict[str, Any]:
    table = dunn(lines, score)
    rows = [
        {"title": TITLES[name], "cells": [{"p": f"{p:.2g}", "differs": p < SIGNIFICANT} for p in table.loc[name]]}
        for name in table.index
    ]
    columns = [TITLES[name] for name in table.columns]
    return {"name": NAMES[score], "p": f"{kruskal_wallis(lines, score):.2g}", "columns": columns, "rows": rows}
