"""The page of a run on its way: what is known of it, as text and figures in a template without scripts.

Beside ``page``, whose style sheet and figures it has; ``pipeline.watch`` finds what there is to show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask import __version__
from cehm_dask.report import figures
from cehm_dask.report.drawing import COLOURS
from cehm_dask.report.page import template
from cehm_dask.report.points import Points, picture, place_points
from cehm_dask.report.words import Context


@dataclass(frozen=True, eq=False)
class Followed:
    """Where some samples stand at the moment."""

    labels: NDArray[np.int64]
    """Cluster of each; -1: not assigned yet."""
    coordinates: NDArray[np.float64]
    axes: str
    about: str


@dataclass(frozen=True)
class View:
    """A run as it is shown."""

    run: str
    headline: str
    state: str
    well: bool
    words: str = ""
    steps: Sequence[Context] = ()
    work: Context | None = None
    tiles: Sequence[Context] = ()
    rounds: Sequence[Context] = ()
    log: Sequence[str] = ()
    followed: Followed | None = field(default=None, compare=False)
    over: bool = False
    """Whether nothing will change any more."""


def live_page(view: View, every: float) -> str:
    """The whole page; it asks for itself again every so many seconds, until the run is over."""
    drawn = _growing(view.followed) if view.followed is not None else []
    drawn += _course(view.rounds)
    refresh = None if view.over else max(1, round(every))
    return template("live.html").render(view=view, figures=drawn, refresh=refresh, program=__version__, colours=COLOURS)


def _growing(found: Followed) -> list[Context]:
    """The samples in the plane, and how many of them each cluster has; the colour of a cluster stays the same."""
    k = int(found.labels.max(initial=-1)) + 1
    styles = [f"c{cluster}" if cluster < len(COLOURS) else "rest" for cluster in range(k)]
    called = [str(cluster) for cluster in range(k)]
    names = [f"cluster {label}" if label >= 0 else "not assigned yet" for label in found.labels.tolist()]
    points = Points(*place_points(found.coordinates), names)
    drawn = picture(points, found.labels, np.ones(len(found.labels)), styles, called)
    caption = f"{len(found.labels):,} samples drawn at random, placed by {found.axes}. {found.about}"
    shown: list[Context] = [{"name": "picture", "title": "Samples", "svg": drawn, "caption": caption}]
    sizes = np.bincount(found.labels[found.labels >= 0], minlength=k)
    if sizes.any():
        bars = figures.sizes(figures.clusters_of(sizes, np.zeros((k, 1), np.int64), styles, called))
        waiting = int((found.labels < 0).sum())
        said = f"Of the same samples; {waiting:,} are not assigned yet." if waiting else "Of the same samples."
        shown.append({"name": "sizes", "title": "Samples in each cluster", "svg": bars, "caption": said})
    return shown


def _course(rounds: Sequence[Context]) -> list[Context]:
    """Samples assigned, samples moved and loss, round by round; as much as there is."""
    shown: list[tuple[str, str, Markup, str]] = []
    if len(rounds) > 1:
        moves, stages = [own["moved"] for own in rounds], [own["stage"] for own in rounds]
        if any(moves[1:]):
            drawn = figures.moved(moves, stages, rounds[0]["round"])
            shown.append(
                ("moved", "Samples moved", drawn, "Samples that got, lost or changed their cluster in a round.")
            )
    losses = [own["loss"] for own in rounds if own["loss"] is not None]
    if len(losses) > 1:
        shown.append(("loss", "Loss above its latest value", figures.loss(losses), "In each round of adjustion."))
    return [dict(zip(("name", "title", "svg", "caption"), own, strict=True)) for own in shown]
