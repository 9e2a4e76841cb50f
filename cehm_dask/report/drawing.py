"""SVG by hand: a drawing with text that is always escaped, ticks at round numbers, colours of clusters.

Below the figures. Colours are names of the page's style sheet, so that a figure follows the page from light to dark;
what a mark means is its ``<title>``, which browsers show without scripts and the page's script shows better.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask.profiles.words import number as in_words

COLOURS = (
    *("#3366aa", "#dd8822", "#990011", "#22cccc", "#aa77ee", "#cc4455", "#99bb88", "#773377", "#eeaa33", "#005533"),
    *("#55aacc", "#ee5577", "#449988", "#776600", "#5533aa", "#cc99ff", "#7777bb", "#aa4477", "#bb7722", "#8855cc"),
)
"""Of the largest clusters, the most distinct first: chosen so that no two come near each other, to normal eyes nor to
those that lack one kind of cone, and all stand out from light and dark paper. All other clusters share a grey."""

WIDTH = 360
"""Of a figure, in units that are about a pixel on a phone: wider figures would have unreadable text there."""


def colour_classes(sizes: NDArray[np.int64]) -> list[str]:
    """Style class of each cluster: ``c0`` for the largest, and so on; ``rest`` for those beyond the palette."""
    classes = ["rest"] * len(sizes)
    for rank, cluster in enumerate(np.argsort(-sizes, kind="stable")[: len(COLOURS)].tolist()):
        classes[cluster] = f"c{rank}"
    return classes


def number(value: float) -> str:
    """A coordinate, without invisible digits.

    >>> number(12.0), number(3.14159)
    ('12', '3.1')
    """
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from low to high.

    >>> ticks(0, 150)
    [0.0, 50.0, 100.0, 150.0]
    """
    if not high > low:
        return [low]
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def short(value: float) -> str:
    """A number for a tick: 1500000 → 1.5M.

    >>> short(1500000), short(0.25), short(40000)
    ('1.5M', '0.25', '40k')
    """
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    if value and abs(value) < 1e-4:
        return in_words(value)
    return f"{value:,.6g}" if float(value).is_integer() else f"{value:.4g}"


class Drawing:
    """An SVG picture, put together mark by mark; what goes into a mark is escaped."""

    def __init__(self, height: float, says: str, *, width: float = WIDTH) -> None:
        self.width, self.height, self.says = width, height, says
        self._marks: list[Markup] = []

    def add(self, mark: str, *values: Any, **named: Any) -> None:
        """Append a mark; ``{}`` in it are filled with escaped values."""
        self._marks.append(Markup(mark).format(*values, **named))

    def text(self, x: float, y: float, text: str, *, anchor: str = "start", style: str = "tick") -> None:
        mark = '<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>'
        self.add(mark, number(x), number(y), style, anchor, text)

    def rect(self, x: float, y: float, width: float, height: float, style: str, says: str = "") -> None:
        title = Markup("<title>{}</title>").format(says) if says else Markup("")
        size = tuple(map(number, (x, y, width, height)))
        self.add('<rect x="{}" y="{}" width="{}" height="{}" class="{}" rx="1">{}</rect>', *size, style, title)

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> None:
        ends = tuple(map(number, (x1, y1, x2, y2)))
        self.add('<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>', *ends, style)

    def path(self, points: str, style: str, says: str = "") -> None:
        title = Markup("<title>{}</title>").format(says) if says else Markup("")
        self.add('<path d="{}" class="{}">{}</path>', points, style, title)

    def svg(self) -> Markup:
        return Markup(
            '<svg viewBox="0 0 {} {}" role="img" aria-label="{}" xmlns="http://www.w3.org/2000/svg">{}</svg>'
        ).format(number(self.width), number(self.height), self.says, Markup("").join(self._marks))


class Frame:
    """Axes inside a drawing: from data to units, with ticks and hairlines."""

    def __init__(
        self,
        drawing: Drawing,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        left: float = 44,
        right: float = 10,
        top: float = 10,
        bottom: float = 34,
    ) -> None:
        self.drawing, self._x, self._y = drawing, x, y
        self.left, self.right, self.top = left, drawing.width - right, top
        self.bottom = drawing.height - bottom

    def x(self, value: float) -> float:
        low, high = self._x
        return self.left + (value - low) / ((high - low) or 1) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self._y
        return self.bottom - (value - low) / ((high - low) or 1) * (self.bottom - self.top)

    def x_axis(self, name: str, at: Sequence[float], labels: Sequence[str] | None = None) -> None:
        self.drawing.line(self.left, self.bottom, self.right, self.bottom, "axis")
        for value, label in zip(at, labels or [short(v) for v in at], strict=True):
            self.drawing.text(self.x(value), self.bottom + 14, label, anchor="middle")
        middle = (self.left + self.right) / 2
        self.drawing.text(middle, self.bottom + 29, name, anchor="middle", style="name")

    def y_axis(self, at: Sequence[float], labels: Sequence[str] | None = None) -> None:
        for value, label in zip(at, labels or [short(v) for v in at], strict=True):
            y = self.y(value)
            self.drawing.line(self.left, y, self.right, y)
            self.drawing.text(self.left - 6, y + 3.5, label, anchor="end")
