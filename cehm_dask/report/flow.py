"""What became of the clusters since the run that is followed: a picture of who went where, words and a table.

Beside ``sections``. The numbers are those of the matching; names are numbers, and all text is escaped like any other.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from cehm_dask.profiles.words import percent
from cehm_dask.report.drawing import Drawing, number
from cehm_dask.report.words import Context, count, sentence, shortened
from cehm_dask.results.matching import NONE, Matching

MOST_NAMES = 20
"""Clusters on either side of the picture, the largest; the others share one place."""
MOST_LINES = 400
"""Of the table."""
OTHERS = "others"
WIDTH, HEIGHT, BAR, GAP = 560.0, 340.0, 12.0, 5.0

Lines = list[tuple[str, str, int]]


def since(matching: Mapping[str, Any] | None, classes: Sequence[str], drawn: dict[str, Markup]) -> Context | None:
    """The section; None where no run is followed."""
    if not matching or matching["follows"] is None:
        return None
    found = Matching.from_dict(matching)
    styles = {str(name): classes[c] for c, name in enumerate(found.names) if name is not None}
    if found.flow:
        drawn["flow"] = sankey(found.flow, styles)
    moved = [(one, other, n) for one, other, n in sorted(found.flow, key=lambda line: -line[2]) if one != other]
    return {
        "words": _words(found, str(matching["follows"]), matching["agreement"]),
        "alerts": [sentence(alert) for alert in matching["alerts"]],
        "told": [sentence(told) for told in found.told],
        "caption": _caption(found),
        "rows": [
            {"before": _called(one), "now": _called(other), "style": styles.get(str(other), "rest"), "count": n}
            for one, other, n in moved[:MOST_LINES]
        ],
    }


def _words(found: Matching, url: str, agreement: Mapping[str, float]) -> str:
    run = shortened(os.path.basename(url.rstrip("/")))
    if found.moved is None:
        words = f"No samples are known to be in run {run} too; clusters have the names of those with the nearest means."
    else:
        words = (
            f"Run {run} is followed: {count(found.n_shared or 0, 'sample')} are in both, and {found.n_moved:,} of them "
            f"({percent(found.moved)}) are in a cluster of another name now."
        )
    kept = len(found.of("kept"))
    return (
        f"{words} {count(kept, 'cluster')} kept the name. Agreement with the members was {agreement['before']:.3f} and "
        f"is {agreement['now']:.3f}."
    )


def _caption(found: Matching) -> str:
    left, entered = found.n_before - (found.n_shared or 0), found.n_now - (found.n_shared or 0)
    words = f"Samples in both runs: left the clusters of the earlier one, right those of this one. {left:,} samples of "
    words += f"the earlier run are not here any more, {entered:,} are new."
    if found.repeated:
        words += f" {count(found.repeated, 'row')} without an id of its own are left out."
    return words


def _called(name: int) -> str:
    return "none" if name == NONE else str(name)


def sankey(flow: Sequence[tuple[int, int, int]], styles: Mapping[str, str]) -> Markup:
    """Bands from the clusters before to the clusters now, as thick as they have samples."""
    lines = _few(flow)
    totals = [_totals([(one, n) for one, _, n in lines]), _totals([(other, n) for _, other, n in lines])]
    places = max(len(own) for own in totals)
    total = sum(totals[0].values()) or 1
    scale = (HEIGHT - 24.0 - GAP * (places - 1)) / total
    drawing = Drawing(HEIGHT, "Samples of each cluster of the earlier run, by their cluster in this run", width=WIDTH)
    edges = (70.0, WIDTH - 70.0)
    tops: list[dict[str, float]] = []
    for own, title, x, anchor in zip(totals, ("before", "now"), edges, ("end", "start"), strict=True):
        drawing.text(x, 10, title, anchor=anchor, style="name")
        y, top = 20.0, {}
        for name, n in own.items():
            top[name] = y
            left = x if anchor == "start" else x - BAR
            drawing.rect(left, y, BAR, max(0.7, n * scale), _style(name, styles), f"cluster {name}, {title}: {n:,}")
            beside = x + BAR + 6 if anchor == "start" else x - BAR - 6
            drawing.text(beside, y + n * scale / 2 + 4, f"{name} ({n:,})", anchor=anchor, style="value")
            y += n * scale + GAP
        tops.append(top)
    order = [{name: place for place, name in enumerate(own)} for own in totals]
    starts: dict[str, float] = dict(tops[0])
    ends: dict[str, float] = dict(tops[1])
    for one, other, n in sorted(lines, key=lambda line: (order[0][line[0]], order[1][line[1]])):
        thick = n * scale
        band = _band(edges[0], starts[one], edges[1], ends[other], thick)
        drawing.path(band, f"flow {_style(other, styles)}", f"{one} → {other}: {count(n, 'sample')}")
        starts[one] += thick
        ends[other] += thick
    return drawing.svg()


def _style(name: str, styles: Mapping[str, str]) -> str:
    return styles.get(name, "rest")


def _few(flow: Sequence[tuple[int, int, int]]) -> Lines:
    """With the smaller clusters of either side as one."""
    kept = []
    for side in (0, 1):
        sizes = _totals([(_called(line[side]), line[2]) for line in flow])
        largest = sorted(sizes, key=lambda name: -sizes[name])
        kept.append(set(largest if len(largest) <= MOST_NAMES else largest[: MOST_NAMES - 1]))
    found: dict[tuple[str, str], int] = {}
    for before, now, n in flow:
        names = [
            _called(name) if _called(name) in own else OTHERS for name, own in zip((before, now), kept, strict=True)
        ]
        found[names[0], names[1]] = found.get((names[0], names[1]), 0) + n
    return [(one, other, n) for (one, other), n in found.items()]


def _totals(parts: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Sums by name, numbers in their order, before words."""
    found: dict[str, int] = {}
    for name, n in parts:
        found[name] = found.get(name, 0) + n
    return dict(sorted(found.items(), key=lambda item: (not item[0].isdigit(), item[0].zfill(9))))


def _band(x0: float, y0: float, x1: float, y1: float, thick: float) -> str:
    middle = number((x0 + x1) / 2)
    upper = f"M{number(x0)} {y0:.2f}C{middle} {y0:.2f} {middle} {y1:.2f} {number(x1)} {y1:.2f}"
    lower = f"L{number(x1)} {y1 + thick:.2f}C{middle} {y1 + thick:.2f} {middle} {y0 + thick:.2f} {number(x0)}"
    return f"{upper}{lower} {y0 + thick:.2f}Z"
