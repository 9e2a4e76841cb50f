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


@dataclass(frozen=True, eq=False)
class Points:
    """Samples in the plane, in units of the picture."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    says: Sequence[str]


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
) -> Markup:
    """All sampled points, coloured by cluster, faint where uncertain; cluster names at the medians."""
    drawing = Drawing(SIDE, "Sampled samples in the plane, coloured by cluster", width=SIDE)
    radius = 3.4 if len(labels) <= 600 else 2.6 if len(labels) <= 1500 else 2.1
    drawing.add('<g id="points" data-r="{}">', radius)
    mark = '<circle cx="{}" cy="{}" r="{}" class="{}" fill-opacity="{}"><title>{}</title></circle>'
    for i, (x, y) in enumerate(zip(points.x.tolist(), points.y.tolist(), strict=True)):
        style = classes[labels[i]] if labels[i] >= 0 else "none"
        drawing.add(mark, number(x), number(y), radius, style, opacity(margin[i]), points.says[i])
    drawing.add("</g>")
    drawing.add('<g id="numbers">')
    placed: list[tuple[float, float]] = []
    for cluster in np.argsort(-np.bincount(labels[labels >= 0], minlength=1), kind="stable").tolist():
        own = labels == cluster
        if not own.any() or classes[cluster] == "rest":
            continue
        x, y = float(np.median(points.x[own])), float(np.median(points.y[own]))
        # A number that would cover another one is left out; colours and tips still show it.
        if all(abs(x - a) > 16 or abs(y - b) > 13 for a, b in placed):
            drawing.text(x, y + 4, called[cluster], anchor="middle", style="number")
            placed.append((x, y))
    drawing.add("</g>")
    return drawing.svg()


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
