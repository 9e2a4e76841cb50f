"""The samples in the plane as SVG: the picture, and small ones of single rounds.

Beside the figures, below the page; ``picture`` finds the coordinates, here they become marks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask.report.drawing import Drawing, number

SIDE = 400.0
"""Of the picture of the samples, in units."""
BORDER = 5.0
APART = (16.0, 14.0)
"""Between two numbers, across and down."""


@dataclass(frozen=True, eq=False)
class Points:
    """Samples in the plane, in units of the picture."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    says: Sequence[str]

    def some(self, placed: tuple[NDArray[np.float64], NDArray[np.float64]], places: Sequence[int]) -> "Points":
        """Some of the samples, elsewhere."""
        return Points(*placed, [self.says[place] for place in places])


def place_points(coordinates: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates → units, on one scale; outliers are drawn on the border and do not squeeze the others together."""
    low, high = np.percentile(coordinates, [0.1, 99.9], axis=0)
    middle, span = (low + high) / 2, float((high - low).max()) or 1.0
    placed = (np.asarray(coordinates, np.float64) - middle) / span * (SIDE - 40) + SIDE / 2
    placed = np.clip(placed, BORDER, SIDE - BORDER)
    return placed[:, 0], SIDE - placed[:, 1]


def on_border(points: Points) -> bool:
    """Whether some points would lie outside."""
    both = np.concatenate([points.x, points.y])
    return bool(both.min() <= BORDER or both.max() >= SIDE - BORDER)


def picture(
    points: Points,
    labels: NDArray[np.int64],
    margin: NDArray[np.float64],
    classes: Sequence[str],
    called: Sequence[str],
    *,
    name: str = "points",
    places: Sequence[int] | None = None,
) -> Markup:
    """Sampled points, coloured by cluster, faint where uncertain, with the cluster's name on one of its points.

    ``places`` are those of the points among all that the slider moves; None: all, in order.
    """
    drawing = Drawing(SIDE, "Sampled samples in the plane, coloured by cluster", width=SIDE)
    radius = 3.4 if len(labels) <= 600 else 2.6 if len(labels) <= 1500 else 2.1
    drawing.add(
        '<g class="points" id="{}" data-places="{}">', name, "" if places is None else " ".join(map(str, places))
    )
    mark = '<circle cx="{}" cy="{}" r="{}" class="{}" fill-opacity="{}"><title>{}</title></circle>'
    for i, (x, y) in enumerate(zip(points.x.tolist(), points.y.tolist(), strict=True)):
        style = classes[labels[i]] if labels[i] >= 0 else "none"
        drawing.add(mark, number(x), number(y), radius, style, opacity(margin[i]), points.says[i])
    drawing.add("</g>")
    drawing.add('<g class="numbers">')
    placed: list[tuple[float, float]] = []
    for cluster in np.argsort(-np.bincount(labels[labels >= 0], minlength=1), kind="stable").tolist():
        own = np.flatnonzero(labels == cluster)
        if not len(own) or classes[cluster] == "rest":
            continue
        for place in _innermost(points, own):
            x, y = float(points.x[place]), float(points.y[place])
            # One that covers no other number; if there is none, colours and tips still show the cluster.
            if all(abs(x - a) > APART[0] or abs(y - b) > APART[1] for a, b in placed):
                drawing.text(x, y + 4, called[cluster], anchor="middle", style="number")
                placed.append((x, y))
                break
    drawing.add("</g>")
    return drawing.svg()


def _innermost(points: Points, own: NDArray[np.intp]) -> list[int]:
    """The half of a cluster's points that lies nearest to its median, the nearest first: a number sits on a point."""
    x, y = points.x[own].round(1), points.y[own].round(1)  # as drawn: equal ones stay equal
    apart = (x - np.median(x)) ** 2 + (y - np.median(y)) ** 2
    found: list[int] = own[np.argsort(apart, kind="stable")][: -(-len(own) // 2)].tolist()
    return found


def opacity(margin: float) -> str:
    """Faint where uncertain, never gone."""
    return f"{0.25 + 0.75 * min(1.0, max(0.0, margin)):.2f}"


def multiple(points: Points, labels: NDArray[np.int64], classes: Sequence[str], name: str) -> Markup:
    """A small picture of one round: a dot per sample, one path per colour."""
    drawing = Drawing(SIDE, f"Samples after {name}", width=SIDE)
    by_class: dict[str, list[str]] = {}
    for x, y, label in zip(points.x.tolist(), points.y.tolist(), labels.tolist(), strict=True):
        by_class.setdefault(classes[label] if label >= 0 else "none", []).append(f"M{x:.0f} {y:.0f}h0")
    for style, dots in sorted(by_class.items(), key=lambda item: item[0] != "none"):
        drawing.path("".join(dots), f"dots {style}-line")
    return drawing.svg()
