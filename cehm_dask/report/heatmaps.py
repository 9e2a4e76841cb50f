"""The heat maps of the report: numbers in, SVG out.

Beside ``figures``. Cells of one shade are one mark, so a map stays small whatever it shows; what there is too much of
is left out or averaged, and the caption says so.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask.report.drawing import WIDTH, Drawing, number

LEVELS = 10
"""Shades of a heat map."""
MOST_SQUARES = 40
"""Clusters in a map of clusters, the largest."""
MOST_WRITTEN = 11
"""Columns up to which there is room for a number in every cell."""
NUMBER_WIDTH = 22.0
"""Of a cluster's number with three digits, in units."""
MOST_LETTERS = 17
"""Of a feature's name beside the map."""
FULL_SHADE = 2.5
"""Standard deviations of the fullest colour."""

Floats = NDArray[np.float64]


def cells(table: NDArray[np.float64], x: float, y: float, width: float, height: float) -> dict[int, str]:
    """Paths of a heat map's cells by level, 1 to LEVELS; equal neighbours in a column make one cell."""
    level = np.round(np.clip(table, 0, 1) * LEVELS).astype(int)
    columns = level.shape[1]
    paths: dict[int, list[str]] = {}
    for column in range(columns):
        ends = np.flatnonzero(np.diff(level[:, column], append=-1))
        begin = 0
        for end in (ends + 1).tolist():
            if level[begin, column]:
                left, upper = f"{x + column * width:.2f}", f"{y + begin * height:.2f}"
                size = f"h{width:.2f}v{(end - begin) * height:.2f}h-{width:.2f}z"
                paths.setdefault(int(level[begin, column]), []).append(f"M{left} {upper}{size}")
            begin = end
    return {key: "".join(parts) for key, parts in paths.items()}


@dataclass(frozen=True, eq=False)
class HyperedgeMap:
    """Row shares of the n_hyperedges × k counts, in an order that shows blocks."""

    shares: NDArray[np.float64]
    columns: list[int]
    """Clusters, largest first."""
    per_row: int
    """Hyperedges averaged in a row; 1: none are."""
    others: int
    """Clusters left out, the smallest."""


MOST_MAP_ROWS, MOST_MAP_COLUMNS = 400, 60


def hyperedge_map(counts: NDArray[np.int64]) -> HyperedgeMap:
    """Order hyperedges by the cluster that holds most of them, the purest first; many are averaged in bins."""
    sizes = counts.sum(axis=0)
    by_size = np.argsort(-sizes, kind="stable")
    by_size = by_size[sizes[by_size] > 0]
    table = counts[:, by_size]
    table = table[table.sum(axis=1) > 0]
    shares = table / table.sum(axis=1, keepdims=True)
    order = np.lexsort((-shares.max(axis=1), shares.argmax(axis=1)))
    shares = shares[order]
    per_row = -(-len(shares) // MOST_MAP_ROWS)
    if per_row > 1:
        edges = np.arange(0, len(shares), per_row)
        shares = np.add.reduceat(shares, edges, axis=0) / np.diff(np.append(edges, len(shares)))[:, None]
    columns = by_size[:MOST_MAP_COLUMNS].tolist()
    return HyperedgeMap(shares[:, :MOST_MAP_COLUMNS], columns, per_row, len(by_size) - len(columns))


def map_figure(found: HyperedgeMap, classes: Sequence[str], called: Sequence[str]) -> Markup:
    """The hyperedge-to-cluster map, each column in its cluster's colour."""
    rows, columns = found.shares.shape
    height = float(min(420, max(160, rows * 6)))
    drawing = Drawing(height + 40, "Share of each hyperedge in each cluster")
    left, right, top = 14.0, WIDTH - 4.0, 20.0
    width = (right - left) / columns
    step = _every(width)
    for place, cluster in enumerate(found.columns):
        x = left + place * width
        if place % step == 0:
            drawing.text(x + width / 2, top - 6, called[cluster], anchor="middle")
        for level, path in cells(found.shares[:, [place]], x, top, width, height / rows).items():
            drawing.add('<path d="{}" class="{}" fill-opacity="{}"/>', path, f"cell {classes[cluster]}", level / LEVELS)
    _sense(drawing, "map", left, top, right - left, height)
    drawing.text((left + right) / 2, top + height + 15, "cluster, largest first", anchor="middle", style="name")
    drawing.add(
        '<text transform="translate(9 {}) rotate(-90)" class="name" text-anchor="middle">hyperedges</text>',
        number(top + height / 2),
    )
    return drawing.svg()


def agreement(
    ordered: NDArray[np.float64], order: Sequence[int], outlying: Sequence[bool], names: Sequence[str]
) -> Markup:
    """NMI of every two members, in the order given: like beside like, outlying ones marked."""
    count = len(order)
    left, top = 20.0, 6.0
    side = WIDTH - left - 4.0
    cell = side / count
    drawing = Drawing(side + top + 52, "Agreement (NMI) of every two members")
    between = ordered[~np.eye(count, dtype=bool)]
    low, high = float(between.min()), float(between.max())
    # The lowest keeps a tint: no cell is empty but the diagonal, which carries no information.
    shades = (ordered - low) / ((high - low) or 1.0) * (1 - 1 / LEVELS) + 1 / LEVELS
    np.fill_diagonal(shades, 0.0)
    for level, path in cells(shades, left, top, cell, cell).items():
        drawing.add('<path d="{}" class="cell accent" fill-opacity="{}"/>', path, level / LEVELS)
    _scale(drawing, left, top + side + 24, low, high)
    _sense(drawing, "agreement", left, top, side, side)
    for place, member in enumerate(order):
        if outlying[member]:
            middle = top + (place + 0.5) * cell
            mark = '<path d="M{} {}l-9 -5v10z" class="accent"><title>{}</title></path>'
            drawing.add(mark, number(left - 3), number(middle), f"outlying member {names[member]}")
            drawing.add(
                '<path d="M{} {}l-5 9h10z" class="accent"/>',
                number(left + (place + 0.5) * cell),
                number(top + side + 4),
            )
    return drawing.svg()


def _scale(drawing: Drawing, x: float, y: float, low: float, high: float, name: str = "NMI") -> None:
    """What the shades of a heat map mean."""
    for level in range(1, LEVELS + 1):
        mark = '<rect x="{}" y="{}" width="16" height="9" class="cell accent" fill-opacity="{}"/>'
        drawing.add(mark, number(x + (level - 1) * 16), number(y), level / LEVELS)
    drawing.text(x, y + 22, f"{low:.2f}")
    drawing.text(x + LEVELS * 16, y + 22, f"{high:.2f}", anchor="end")
    drawing.text(x + LEVELS * 16 + 10, y + 9, name, style="name")


def consensus(table: Floats, clusters: Sequence[str], styles: Sequence[str]) -> Markup:
    """Mean consensus of the samples of every two clusters."""
    count = len(clusters)
    left, top = 34.0, 22.0
    side = WIDTH - left - 4.0
    cell = side / count
    drawing = Drawing(side + top + 36, "Mean consensus of the samples of every two clusters")
    for level, path in cells(np.nan_to_num(table), left, top, cell, cell).items():
        drawing.add('<path d="{}" class="cell accent" fill-opacity="{}"/>', path, level / LEVELS)
    step = _every(cell)
    for place, (cluster, style) in enumerate(zip(clusters, styles, strict=True)):
        middle = (place + 0.5) * cell
        if place % step == 0:
            drawing.text(left + middle, top - 6, cluster, anchor="middle")
            drawing.text(left - 9, top + middle + 4, cluster, anchor="end")
        drawing.rect(left - 6, top + place * cell + 1, 4, max(1.0, cell - 2), style)
    if count <= MOST_WRITTEN:
        _write(drawing, table, left, top, cell, cell, [[_share(value) for value in row] for row in table.tolist()])
    _sense(drawing, "consensus", left, top, side, side)
    _scale(drawing, left, top + side + 10, 0.0, 1.0, "together")
    return drawing.svg()


def _every(width: float) -> int:
    """Of columns so wide, every how many there is room for a number above."""
    return max(1, math.ceil(NUMBER_WIDTH / width))


def _share(value: float) -> str:
    """
    >>> _share(0.256), _share(0.001), _share(1.0), _share(float("nan"))
    ('0.26', '·', '1', '')
    """
    if np.isnan(value):
        return ""
    return "·" if value < 0.005 else f"{value:.2f}" if value < 0.995 else "1"


def profiles(effects: Floats, names: Sequence[str], clusters: Sequence[str]) -> Markup:
    """Features × clusters: how far the mean of a cluster lies from that of the others, above and below."""
    rows, columns = effects.shape
    left, top, height = 112.0, 22.0, 19.0
    width = (WIDTH - left - 4.0) / columns
    drawing = Drawing(top + rows * height + 40, "Effect of the most telling features in every cluster")
    shades = np.nan_to_num(effects) / FULL_SHADE
    for style, own in (("accent", shades), ("warn", -shades)):
        for level, path in cells(own, left, top, width, height).items():
            drawing.add('<path d="{}" class="{}" fill-opacity="{}"/>', path, f"cell {style}", level / LEVELS)
    step = _every(width)
    for place, cluster in enumerate(clusters):
        if place % step == 0:
            drawing.text(left + (place + 0.5) * width, top - 6, cluster, anchor="middle")
    for place, name in enumerate(names):
        mark = '<text x="{}" y="{}" class="tick" text-anchor="end"{}>{}<title>{}</title></text>'
        at = number(left - 6), number(top + (place + 0.5) * height + 4)
        drawing.add(mark, *at, _squeezed(name, left - 8), _fitting(name), name)
    if columns <= MOST_WRITTEN:
        written = [[_signed(value) for value in row] for row in effects.tolist()]
        _write(drawing, np.abs(shades), left, top, width, height, written)
    _sense(drawing, "profiles", left, top, WIDTH - left - 4.0, rows * height)
    _two_sided(drawing, left, top + rows * height + 12)
    return drawing.svg()


def _signed(value: float) -> str:
    """
    >>> _signed(1.26), _signed(-0.5), _signed(-0.01), _signed(float("nan"))
    ('+1.3', '−0.5', '0', '')
    """
    if np.isnan(value):
        return ""
    return "0" if abs(value) < 0.05 else f"{value:+.1f}".replace("-", "−")


def _fitting(name: str) -> str:
    """A name that fits beside the map; whole in its tip."""
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


def _squeezed(name: str, room: float) -> Markup:
    """Letters of a long name are made as wide as there is room, whatever the font."""
    if len(name) < MOST_LETTERS - 3:
        return Markup("")
    return Markup(' textLength="{}" lengthAdjust="spacingAndGlyphs"').format(number(room))


def _write(
    drawing: Drawing, shades: Floats, x: float, y: float, width: float, height: float, texts: Sequence[Sequence[str]]
) -> None:
    """Numbers in the cells, light where the colour is full."""
    for row, (own, line) in enumerate(zip(np.nan_to_num(shades).tolist(), texts, strict=True)):
        for column, (shade, text) in enumerate(zip(own, line, strict=True)):
            style = "inside full" if shade > 0.7 else "inside"
            at = x + (column + 0.5) * width, y + (row + 0.5) * height + 3.5
            drawing.text(*at, text, anchor="middle", style=style)


def _sense(drawing: Drawing, grid: str, x: float, y: float, width: float, height: float) -> None:
    """Where the pointer asks for a value."""
    mark = '<rect x="{}" y="{}" width="{}" height="{}" class="sense" data-grid="{}"/>'
    drawing.add(mark, *map(number, (x, y, width, height)), grid)


def _two_sided(drawing: Drawing, x: float, y: float) -> None:
    """What the shades of effects mean."""
    for step in range(-5, 6):
        style = "cell warn" if step < 0 else "cell accent"
        mark = '<rect x="{}" y="{}" width="13" height="9" class="{}" fill-opacity="{}"/>'
        drawing.add(mark, number(x + (step + 5) * 13), number(y), style, abs(step) / 5)
    drawing.text(x, y + 22, f"−{FULL_SHADE:g}")
    drawing.text(x + 71.5, y + 22, "0", anchor="middle")
    drawing.text(x + 143, y + 22, f"+{FULL_SHADE:g}", anchor="end")
    drawing.text(x + 153, y + 9, "sd", style="name")
