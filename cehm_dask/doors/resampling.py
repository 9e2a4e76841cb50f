"""The picture that users of resampling expect: consensus matrices ordered by cluster, and their CDFs.

Beside the commands; drawn by matplotlib (``pip install 'cehm-dask[compare]'``).
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.files import whole
from cehm_dask.errors import InputError
from cehm_dask.paper.figures import figure_of
from cehm_dask.report.drawing import COLOURS
from cehm_dask.results.coassociation import BREAKS, Stability

FORMATS = (".png", ".svg", ".pdf")
PANELS = 4
"""Side by side."""

DRAWN_ROWS = 1000
"""Samples in a heat map at most; more are thinned out evenly, in the order of the map: a panel has fewer pixels."""


def cluster_order(found: Stability) -> NDArray[np.intp]:
    """Places of the samples, cluster by cluster from the largest; inside, those most at home in it first."""
    labels = found.labels
    sizes = np.bincount(labels[labels >= 0], minlength=int(labels.max(initial=0)) + 1)
    rank = np.append(np.argsort(np.argsort(-sizes, kind="stable")), len(sizes))
    return np.lexsort((-np.nan_to_num(found.own_consensus()), rank[labels]))


def draw(found: Sequence[Stability], path: str | os.PathLike[str]) -> None:
    """Write a heat map for each number of clusters, the CDFs and the delta areas, as .png, .svg or .pdf."""
    place = Path(path)
    if place.suffix not in FORMATS:
        raise InputError(f"picture {place}: expected a name that ends in {', '.join(FORMATS)}")
    panels = len(found) + (2 if len(found) > 1 else 1)
    columns = min(PANELS, panels)
    figure, axes = figure_of(-(-panels // columns), columns, 3.0, 3.0)
    for axis in axes.flat[panels:]:
        axis.set_visible(False)
    for axis, one in zip(axes.flat, found, strict=False):
        shown = _heat_map(axis, one)
    figure.colorbar(shown, ax=axes.flat[len(found) - 1], fraction=0.046, label="consensus")
    curves = axes.flat[len(found)]
    middles = (np.arange(BREAKS) + 0.5) / BREAKS
    for number, one in enumerate(found):
        colour = COLOURS[number % len(COLOURS)]
        curves.plot(middles, one.co.cdf(), color=colour, lw=1.2, label=f"k = {one.n_clusters}")
    curves.set(xlabel="consensus", ylabel="share of pairs", xlim=(0, 1), ylim=(0, 1.02))
    curves.set_title("CDF", fontsize=9)
    curves.legend(fontsize=7)
    if len(found) > 1:
        areas = axes.flat[len(found) + 1]
        areas.plot([one.n_clusters for one in found], [one.delta_area for one in found], "o-", color=COLOURS[0], ms=4)
        areas.set(xlabel="k", ylabel="relative growth of the area")
        areas.set_title("delta area", fontsize=9)
        areas.xaxis.get_major_locator().set_params(integer=True)
    with whole(place) as file:
        figure.savefig(file, format=place.suffix[1:], dpi=150)


def _heat_map(axis: Any, one: Stability) -> Any:
    order = cluster_order(one)
    order = order[:: max(1, -(-len(order) // DRAWN_ROWS))]
    matrix = one.co.matrix()[np.ix_(order, order)]
    shown = axis.imshow(matrix, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    for edge in np.flatnonzero(np.diff(one.labels[order])) + 0.5:
        axis.axhline(edge, color="#888888", lw=0.4)
        axis.axvline(edge, color="#888888", lw=0.4)
    axis.set_title(f"k = {one.n_clusters}: PAC {one.co.pac():.3f}", fontsize=9)
    axis.set_xticks([])
    axis.set_yticks([])
    return shown
