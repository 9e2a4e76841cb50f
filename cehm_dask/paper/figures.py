"""The paper's figures from lines of results: convergence, time, and how a consensus grows on points of the plane.

Used by ``reproduce``'s door only; the one home of matplotlib (``pip install 'cehm-dask[compare]'``). Figures are drawn
without a display, and none is kept open.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cehm_dask.data.files import whole
from cehm_dask.errors import InputError, MissingExtraError
from cehm_dask.estimator import CEHM
from cehm_dask.method.solution import ConsensusWarning
from cehm_dask.paper.reproduce import SETTINGS
from cehm_dask.paper.sets import PLANE_SETS, Dataset, load, members
from cehm_dask.paper.tables import by_paper

UNASSIGNED = "#c8c8c8"
PANELS = 5
"""Sets side by side in the figure of the losses."""


def figure_of(rows: int, columns: int, width: float, height: float) -> tuple[Any, NDArray[Any]]:
    """A figure of its own with panels (rows × columns); pyplot would keep it open and look for a display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("figures need an extra package: pip install 'cehm-dask[compare]'") from error
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, np.asarray(figure.subplots(rows, columns, squeeze=False))


def _save(figure: Any, path: Path) -> None:
    with whole(path) as file:
        figure.savefig(file, format="png", dpi=100)


def convergence(lines: pd.DataFrame, path: Path) -> None:
    """Loss against round of adjustion, a panel a set, a curve an ensemble; as a share of the first loss."""
    sets = by_paper(lines["set"].unique())
    rows = -(-len(sets) // PANELS)
    figure, axes = figure_of(rows, min(PANELS, len(sets)), 2.4, 1.7)
    for axis, name in zip(axes.flat, sets, strict=False):
        for losses in lines.loc[lines["set"] == name, "losses"]:
            axis.plot(np.arange(1, len(losses) + 1), np.asarray(losses) / losses[0], color="C0", alpha=0.35, lw=0.8)
        axis.set_title(name, fontsize=8)
        axis.tick_params(labelsize=6)
        axis.ticklabel_format(axis="y", useOffset=False)
        axis.xaxis.get_major_locator().set_params(integer=True)
    for axis in axes.flat[len(sets) :]:
        axis.set_visible(False)
    figure.supxlabel("round of adjustion", fontsize=8)
    figure.supylabel("loss, as a share of the first", fontsize=8)
    _save(figure, path)


def times(lines: pd.DataFrame, path: Path) -> None:
    """Mean seconds of each method on each set."""
    means = lines.pivot_table(index="set", columns="method", values="seconds", aggfunc="mean", sort=False)
    means = means.loc[by_paper(means.index)]
    figure, axes = figure_of(1, 1, max(4.0, 0.42 * len(means) + 1.5), 3.2)
    axis = axes[0, 0]
    for method in means:
        axis.plot(range(len(means)), means[method], marker="o", ms=3, lw=1, label=str(method))
    axis.set_yscale("log")
    axis.set_ylabel("seconds, mean of the ensembles")
    axis.set_xticks(range(len(means)), means.index, rotation=60, ha="right", fontsize=7)
    axis.legend(fontsize=7, ncols=2)
    _save(figure, path)


def steps_shown(steps: list[tuple[str, NDArray[np.int16]]]) -> list[tuple[str, NDArray[np.int16]]]:
    """Start, two rounds of diffusion, two of adjustion and the end; a stage of fewer rounds shows its last again."""
    of = {stage: [seen for name, seen in steps if name == stage] for stage in ("diffusion", "adjustion")}
    diffusion = of["diffusion"] or [steps[0][1]]
    last = len(diffusion) - 1
    thirds = [diffusion[last // 3], diffusion[min(last, max(last // 3 + 1, 2 * last // 3))]]
    adjustion = [of["adjustion"][min(i, len(of["adjustion"]) - 1)] for i in (0, 1)]
    names = ("start", "diffusion, early", "diffusion, later", "adjustion, round 1", "adjustion, round 2", "end")
    return list(zip(names, [steps[0][1], *thirds, *adjustion, steps[-1][1]], strict=True))


def mechanism(dataset: Dataset, scale: str, folder: Path, path: Path, **settings: Any) -> None:
    """How the consensus of one ensemble grows, on a set of points in the plane; unassigned samples are grey."""
    if dataset.X.shape[1] != 2:
        raise InputError(f"{dataset.name} has {dataset.X.shape[1]} features: the figure needs points in the plane")
    steps: list[tuple[str, NDArray[np.int16]]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConsensusWarning)
        CEHM(dataset.n_clusters, random_state=0, **settings).fit(
            members(dataset, scale, 0, folder),
            record=lambda _restart, stage, _round, seen: steps.append((stage, seen.copy())),
        )
    figure, axes = figure_of(2, 3, 2.2, 2.0)
    size = max(1.0, 2000 / len(dataset.X))
    for axis, (title, labels) in zip(axes.flat, steps_shown(steps), strict=True):
        for label in range(-1, dataset.n_clusters):
            own = dataset.X[labels == label]
            axis.scatter(*own.T, s=size, color=UNASSIGNED if label < 0 else f"C{label % 10}", linewidths=0)
        axis.set_title(f"{title}: {np.count_nonzero(labels >= 0):,}", fontsize=8)
        axis.set_xticks([])
        axis.set_yticks([])
    _save(figure, path)


def draw_all(lines: pd.DataFrame, data: Path | None, folder: Path) -> None:
    """Write every figure that the lines and the data allow."""
    for scale, own in lines[lines["method"] == "plain"].groupby("scale", sort=False):
        convergence(own, folder / f"convergence_{scale}.png")
    times(lines, folder / "times.png")
    for name in PLANE_SETS:
        if data is not None and (data / f"{name}.npz").exists():
            mechanism(
                load(name, data), "none", folder / "members", folder / f"mechanism_{name}.png", **SETTINGS["plain"]
            )
