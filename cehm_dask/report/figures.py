"""The figures of the report: numbers in, SVG out.

Between the findings and the page. Each figure stays small whatever n and k are: what there is too much of is shown in
part (the largest clusters) or in bins (hyperedges), and the caption says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask.report.drawing import WIDTH, Drawing, Frame, number, short, ticks

MOST_BARS = 24
"""Clusters with a bar or a ridge of their own; the smaller ones are summed up."""
LEVELS = 10
"""Shades of a heat map."""


@dataclass(frozen=True)
class Cluster:
    """A row of the figures with one row per cluster; the last may sum up several."""

    name: str
    style: str
    size: int
    histogram: NDArray[np.int64]
    several: bool = False


def clusters_of(
    sizes: NDArray[np.int64], histogram: NDArray[np.int64], classes: Sequence[str], called: Sequence[str]
) -> list[Cluster]:
    """Clusters with samples, largest first; those beyond :data:`MOST_BARS` in one row."""
    order = [int(e) for e in np.argsort(-sizes, kind="stable") if sizes[e]]
    shown = order if len(order) <= MOST_BARS else order[: MOST_BARS - 1]
    rows = [Cluster(called[e], classes[e], int(sizes[e]), histogram[e]) for e in shown]
    others = order[len(shown) :]
    if others:
        together = int(sizes[others].sum()), histogram[others].sum(axis=0)
        rows.append(Cluster(f"{len(others):,} more", "rest", *together, several=True))
    return rows


def sizes(clusters: Sequence[Cluster]) -> Markup:
    """Bars of the cluster sizes."""
    row = 18.0
    drawing = Drawing(len(clusters) * row + 6, "Samples in each cluster")
    total = sum(cluster.size for cluster in clusters)
    left, right = 58.0, WIDTH - 92.0
    largest = max((cluster.size for cluster in clusters if not cluster.several), default=1)
    for place, cluster in enumerate(clusters):
        y = place * row + 3
        says = f"cluster {cluster.name}: {cluster.size:,} samples, {cluster.size / total:.2%}"
        drawing.text(left - 6, y + 12, cluster.name, anchor="end")
        # Several together have no bar: it would be longer than all the others.
        length = 0.0 if cluster.several else (right - left) * cluster.size / largest
        if length:
            drawing.rect(left, y + 2, max(1.0, length), row - 5, cluster.style, says)
        drawing.text(left + length + 6, y + 12, f"{cluster.size:,} ({cluster.size / total:.1%})", style="value")
    return drawing.svg()


def confidence(histogram: NDArray[np.int64]) -> Markup:
    """Histogram of the margins of all samples."""
    total = histogram.sum(axis=0)
    bins, n = len(total), max(1, int(total.sum()))
    drawing = Drawing(210, "Distribution of the margin over all samples")
    top = float(total.max() / n) or 1.0
    frame = Frame(drawing, (0, 1), (0, top))
    frame.y_axis(ticks(0, top), [f"{100 * t:.3g}%" for t in ticks(0, top)])
    for place, count in enumerate(total.tolist()):
        if count:
            low, high = place / bins, (place + 1) / bins
            x, y = frame.x(low), frame.y(count / n)
            says = f"margin {low:.2f} to {high:.2f}: {count:,} samples, {count / n:.2%}"
            drawing.rect(x + 0.4, y, frame.x(high) - x - 0.8, max(0.7, frame.bottom - y), "accent", says)
    frame.x_axis("margin", [0, 0.25, 0.5, 0.75, 1])
    return drawing.svg()


def ridges(clusters: Sequence[Cluster]) -> Markup:
    """Distribution of the margin in every cluster, one ridge each, scaled to its own peak."""
    row, rise = (26.0, 34.0) if len(clusters) <= 12 else (15.0, 22.0)
    drawing = Drawing(len(clusters) * row + rise - row + 44, "Distribution of the margin in each cluster")
    frame = Frame(drawing, (0, 1), (0, 1), left=58)
    for at in (0, 0.25, 0.5, 0.75, 1):
        drawing.line(frame.x(at), 6, frame.x(at), frame.bottom)
    for place, cluster in enumerate(clusters):
        base = rise + 4 + place * row
        bins = len(cluster.histogram)
        peak = max(1, int(cluster.histogram.max(initial=1)))
        middles = (np.arange(bins) + 0.5) / bins
        heights = cluster.histogram / peak * (rise - 4)
        line = " ".join(
            f"L{number(frame.x(x))} {number(base - h)}" for x, h in zip(middles, heights.tolist(), strict=True)
        )
        mean = float((cluster.histogram * middles).sum() / max(1, cluster.histogram.sum()))
        says = f"cluster {cluster.name}: margin about {mean:.2f} on average, {cluster.size:,} samples"
        ends = f"M{number(frame.left)} {number(base)}", f"L{number(frame.right)} {number(base)}Z"
        drawing.path(f"{ends[0]} {line} {ends[1]}", f"ridge {cluster.style}", says)
        drawing.text(frame.left - 6, base, cluster.name, anchor="end")
    frame.x_axis("margin", [0, 0.25, 0.5, 0.75, 1])
    return drawing.svg()


def _bars(
    values: Sequence[float], says: Sequence[str], styles: Sequence[str], *, about: str, top: float, first: int = 1
) -> Markup:
    """One bar per round, counted from the first."""
    drawing = Drawing(190, about)
    frame = Frame(drawing, (0, max(1, len(values))), (0, top or 1.0))
    if first == 1:
        frame.y_axis(ticks(0, top), [f"{t:.0%}" for t in ticks(0, top)])
    else:
        frame.y_axis([t for t in ticks(0, top) if float(t).is_integer()])
    gap = 0.15 if len(values) <= 60 else 0.0
    for place, (value, text, style) in enumerate(zip(values, says, styles, strict=True)):
        x, y = frame.x(place + gap), frame.y(value)
        width = frame.x(place + 1 - gap) - x
        drawing.rect(x, y, min(width, 40.0), max(0.7 if value else 0.0, frame.bottom - y), style, text)
    centre = min(0.5, gap + 20.0 / (frame.x(1) - frame.x(0)))
    shown = _whole(first, first + len(values) - 1)
    frame.x_axis("round", [t - first + centre for t in shown], [str(t) for t in shown])
    return drawing.svg()


def _whole(first: int, last: int) -> list[int]:
    """Rounds to name on an axis: all if they are few."""
    if last - first < 14:
        return list(range(first, last + 1))
    return [round(t) for t in ticks(first, last, 7) if float(t).is_integer()]


def growth(assigned: Sequence[int], n: int) -> Markup:
    """Samples assigned after the start and after each round of diffusion."""
    names = ["start", *(["diffusion"] * (len(assigned) - 1))]
    says = [
        f"round {i + 1} ({name}): {a:,} of {n:,} assigned"
        for i, (name, a) in enumerate(zip(names, assigned, strict=True))
    ]
    return _bars([a / n for a in assigned], says, names, about="Samples assigned after each round", top=1.0)


def moved(counts: Sequence[int], stages: Sequence[str]) -> Markup:
    """Samples whose assignment changed in each round after the start, which assigns from nothing."""
    says = [f"round {i + 1} ({s}): {m:,} moved" for i, (m, s) in enumerate(zip(counts, stages, strict=True))]
    top = max([1, *counts[1:]])
    return _bars(counts[1:], says[1:], stages[1:], about="Samples moved in each round", top=top, first=2)


def loss(losses: Sequence[float]) -> Markup:
    """Loss in each round of adjustion, as a fraction of the largest that is possible, above its last value."""
    above = [value - losses[-1] for value in losses]
    drawing = Drawing(190, "Loss in each round of adjustion, above its last value")
    top = max(above) or 1.0
    frame = Frame(drawing, (1, max(2, len(losses))), (0, top))
    frame.y_axis(ticks(0, top))
    points = [(frame.x(i + 1), frame.y(value)) for i, value in enumerate(above)]
    drawing.path("M" + "L".join(f"{number(x)} {number(y)}" for x, y in points), "line adjustion-line")
    for i, ((x, y), value) in enumerate(zip(points, losses, strict=True)):
        if len(points) <= 60:
            mark = '<circle cx="{}" cy="{}" r="4" class="adjustion"><title>{}</title></circle>'
            drawing.add(mark, number(x), number(y), f"round {i + 1} of adjustion: loss {value:,.8g}")
    shown = _whole(1, len(losses))
    frame.x_axis("round of adjustion", [float(t) for t in shown], [str(t) for t in shown])
    return drawing.svg()


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
    step = max(1, -(-columns // 20))
    for place, cluster in enumerate(found.columns):
        x = left + place * width
        if place % step == 0:
            drawing.text(x + width / 2, top - 6, called[cluster], anchor="middle")
        for level, path in cells(found.shares[:, [place]], x, top, width, height / rows).items():
            drawing.add('<path d="{}" class="{}" fill-opacity="{}"/>', path, f"cell {classes[cluster]}", level / LEVELS)
    drawing.add(
        '<rect x="{}" y="{}" width="{}" height="{}" class="sense" data-grid="map"/>',
        *map(number, (left, top, right - left, height)),
    )
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
    drawing.add(
        '<rect x="{}" y="{}" width="{}" height="{}" class="sense" data-grid="agreement"/>',
        *map(number, (left, top, side, side)),
    )
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


def _scale(drawing: Drawing, x: float, y: float, low: float, high: float) -> None:
    """What the shades of a heat map mean."""
    for level in range(1, LEVELS + 1):
        mark = '<rect x="{}" y="{}" width="16" height="9" class="cell accent" fill-opacity="{}"/>'
        drawing.add(mark, number(x + (level - 1) * 16), number(y), level / LEVELS)
    drawing.text(x, y + 22, f"{low:.2f}")
    drawing.text(x + LEVELS * 16, y + 22, f"{high:.2f}", anchor="end")
    drawing.text(x + LEVELS * 16 + 10, y + 9, "NMI", style="name")


@dataclass(frozen=True)
class Series:
    """A line over k; None where the figure is not known."""

    name: str
    style: str
    values: Sequence[float | None]


def choice(ks: Sequence[int], series: Sequence[Series], chosen: int) -> Markup:
    """Lines over k, each between 0 and 1, with the chosen k marked."""
    drawing = Drawing(236, "Agreement, margin and stability for every number of clusters")
    frame = Frame(drawing, (min(ks), max(ks)), (0, 1), top=26)
    frame.y_axis([0, 0.25, 0.5, 0.75, 1])
    drawing.line(frame.x(chosen), frame.top, frame.x(chosen), frame.bottom, "chosen")
    x = frame.left
    for own in series:
        found = [(k, value) for k, value in zip(ks, own.values, strict=True) if value is not None]
        if not found:
            continue
        points = "L".join(f"{number(frame.x(k))} {number(frame.y(value))}" for k, value in found)
        drawing.path(f"M{points}", f"line {own.style}-line")
        for k, value in found:
            mark = '<circle cx="{}" cy="{}" r="{}" class="{}"><title>{}</title></circle>'
            at = number(frame.x(k)), number(frame.y(value))
            drawing.add(mark, *at, "5" if k == chosen else "3", own.style, f"k = {k}: {own.name} {value:.4f}")
        drawing.rect(x, 7, 10, 10, own.style)
        drawing.text(x + 14, 16, own.name)
        x += 32 + 6.6 * len(own.name)
    shown = ks if len(ks) <= 15 else [int(t) for t in ticks(min(ks), max(ks), 9) if float(t).is_integer()]
    frame.x_axis("number of clusters k", [float(k) for k in shown], [str(k) for k in shown])
    return drawing.svg()


def seconds(parts: dict[str, float]) -> Markup:
    """Seconds per stage."""
    row = 20.0
    drawing = Drawing(len(parts) * row + 4, "Seconds of each stage")
    left, right = 132.0, WIDTH - 62.0
    longest = max(parts.values(), default=0.0) or 1.0
    for place, (stage, spent) in enumerate(parts.items()):
        y = place * row + 2
        drawing.text(left - 6, y + 13, stage, anchor="end")
        length = (right - left) * spent / longest
        drawing.rect(left, y + 3, max(1.0, length), row - 7, "accent", f"{stage}: {spent:.3f} s")
        drawing.text(left + length + 6, y + 13, f"{short(round(spent, 2 if spent < 100 else 0))} s", style="value")
    return drawing.svg()
