"""Runs over time as one page: clusters, drift and agreement day by day, in the look of the report.

Beside the report's page, with its style sheet. Rows come from ``pipeline.history``. One file that asks the network for
nothing and runs no script.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from cehm_dask import __version__
from cehm_dask.profiles.words import percent
from cehm_dask.report.drawing import COLOURS, Drawing, Frame, number, ticks
from cehm_dask.report.page import template
from cehm_dask.report.words import count, seconds, sentence, shortened

MOST_DAYS = 400
"""In figures and table, the newest."""
MOST_SIZES = 12
"""Clusters of a day whose sizes are listed."""
WIDTH = 1000.0

Row = Mapping[str, Any]


def history_page(rows: Sequence[Row]) -> str:
    """The whole page as text; ``rows``: a mapping for each run, oldest first."""
    title = count(len(rows), "run")
    if len(rows) > 1:
        title += f", {_called(rows[0])} to {_called(rows[-1])}"
    shown = list(rows[-MOST_DAYS:])
    names = _by_total(shown)
    styles = {name: f"c{place}" if place < len(COLOURS) else "rest" for place, name in enumerate(names)}
    newest = next((row for row in reversed(shown) if row["k"] is not None), None)
    tiles = [("runs", f"{len(rows):,}"), ("with alerts", f"{sum(bool(row['alerts']) for row in rows):,}")]
    if newest is not None:
        tiles += [("samples", f"{newest['n_samples']:,}"), ("clusters", f"{newest['k']:,}")]
        tiles.append(("agreement", f"{newest['agreement']:.3f}"))
    left = len(rows) - len(shown)
    return template("history.html").render(
        title=title,
        program=__version__,
        tiles=tiles,
        colours=COLOURS,
        legend=sorted((name, styles[name]) for name in names[: len(COLOURS)]),
        sizes=_sizes(shown, names, styles) if newest is not None else None,
        drift=_drift(shown) if newest is not None else None,
        rows=[_told(row, styles) for row in reversed(shown)],
        left=f"The {left:,} oldest runs are left out." if left else "",
    )


def _by_total(rows: Sequence[Row]) -> list[int]:
    """Names of clusters, those with most samples over all runs first."""
    totals: dict[int, int] = {}
    for row in rows:
        for name, n in row["sizes"].items():
            totals[name] = totals.get(name, 0) + n
    return sorted(totals, key=lambda name: (-totals[name], name))


def _called(row: Row) -> str:
    return str(row["date"] or shortened(row["run"].rsplit("/", 1)[-1], 24))


def _axis(frame: Frame, rows: Sequence[Row]) -> None:
    step = max(1, -(-len(rows) // 7))
    at = list(range(0, len(rows), step))
    frame.x_axis("run", [place + 0.5 for place in at], [_called(rows[place]) for place in at])


def _sizes(rows: Sequence[Row], names: Sequence[int], styles: Mapping[int, str]) -> Markup:
    """A bar of stacked cluster sizes for every run."""
    drawing = Drawing(230, "Samples of every cluster in every run", width=WIDTH)
    top = max([1, *(sum(row["sizes"].values()) for row in rows)])
    frame = Frame(drawing, (0, len(rows)), (0, top))
    frame.y_axis(ticks(0, top))
    gap = 0.12 if len(rows) <= 90 else 0.0
    for place, row in enumerate(rows):
        below = 0
        x = frame.x(place + gap)
        for name in names:
            if n := row["sizes"].get(name):
                upper = frame.y(below + n)
                says = f"{_called(row)}, cluster {name}: {count(n, 'sample')}"
                width = frame.x(place + 1 - gap) - x
                drawing.rect(x, upper, width, max(0.3, frame.y(below) - upper), styles[name], says)
                below += n
    _axis(frame, rows)
    return drawing.svg()


def _drift(rows: Sequence[Row]) -> Markup:
    """Agreement and share of moved samples over the runs, with the alerts marked."""
    drawing = Drawing(230, "Agreement and share of moved samples in every run", width=WIDTH)
    frame = Frame(drawing, (0, len(rows)), (0, 1), top=26)
    frame.y_axis([0, 0.25, 0.5, 0.75, 1])
    for place, row in enumerate(rows):
        if row["alerts"]:
            drawing.line(frame.x(place + 0.5), frame.top, frame.x(place + 0.5), frame.bottom, "chosen")
    x = frame.left
    for name, style in (("agreement", "accent"), ("moved", "warn")):
        points = [(place, row[name]) for place, row in enumerate(rows) if row[name] is not None]
        if not points:
            continue
        line = "L".join(f"{number(frame.x(place + 0.5))} {number(frame.y(value))}" for place, value in points)
        drawing.path(f"M{line}", f"line {style}-line")
        for place, value in points:
            mark = '<circle cx="{}" cy="{}" r="2.5" class="{}"><title>{}</title></circle>'
            says = f"{_called(rows[place])}: {name} {value:.4f}"
            drawing.add(mark, number(frame.x(place + 0.5)), number(frame.y(value)), style, says)
        drawing.rect(x, 6, 10, 10, style)
        drawing.text(x + 16, 15, name)
        x += 100
    _axis(frame, rows)
    return drawing.svg()


def _told(row: Row, styles: Mapping[int, str]) -> dict[str, Any]:
    sizes = sorted(row["sizes"].items(), key=lambda item: -item[1])
    more = len(sizes) - MOST_SIZES
    return {
        "called": _called(row),
        "state": shortened(row["state"], 200),
        "k": "" if row["k"] is None else f"{row['k']:,}",
        "samples": "" if row["n_samples"] is None else f"{row['n_samples']:,}",
        "agreement": "" if row["agreement"] is None else f"{row['agreement']:.3f}",
        "moved": "" if row["moved"] is None else percent(row["moved"]),
        "seconds": seconds(row["seconds"]),
        "sizes": [{"name": name, "count": f"{n:,}", "style": styles[name]} for name, n in sizes[:MOST_SIZES]],
        "more": f"and {more:,} more" if more > 0 else "",
        "changes": [sentence(told) for told in row["changes"]],
        "alerts": [sentence(told) for told in row["alerts"]],
    }
