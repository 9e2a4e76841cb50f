"""What people see in a terminal: progress of the rounds, closing summaries.

Used by the command only; everything below it logs and reports events, and prints nothing.
"""

from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from cehm_dask.consensus import Event

BAR = 28
MOST_CLUSTERS = 20
"""Clusters listed one by one in a summary; the rest share a line."""


class Rounds:
    """Progress of a consensus: a live bar on a terminal, one line a round elsewhere, nothing if quiet."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._latest: dict[int, Event] = {}

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<12}"),
                BarColumn(BAR),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("intersections", total=None, state="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, event: Event) -> None:
        if self.quiet:
            return
        self._latest[event.problem] = event
        slowest = min(self._latest.values(), key=lambda latest: (latest.stage != "diffusion", latest.assigned))
        state = f"round {slowest.round}, {slowest.assigned:,} of {slowest.n_samples:,} assigned, {event.moved:,} moved"
        if event.loss is not None:
            state += f", loss {event.loss:.6g}"
        if self._bar is not None and self._task is not None:
            share = slowest.assigned / slowest.n_samples
            self._bar.update(self._task, description=slowest.stage, completed=share, total=1.0, state=state)
        else:
            restart = f" of start {event.problem}" if len(self._latest) > 1 else ""
            self.console.print(f"{event.stage}{restart}: {state}", highlight=False)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._begin


def cluster_table(labels: NDArray[Any], margin: NDArray[Any]) -> Table:
    """Clusters, largest first, with their sizes and mean margins."""
    table = Table("cluster", "samples", "", "mean margin", box=None, header_style="bold", pad_edge=False)
    for column in (0, 1, 3):
        table.columns[column].justify = "right"
    spoken = labels >= 0
    sizes = np.bincount(labels[spoken])
    sums = np.bincount(labels[spoken], weights=margin[spoken])
    order = [int(e) for e in np.argsort(-sizes, kind="stable") if sizes[e]]
    for e in order[:MOST_CLUSTERS]:
        bar = "█" * max(1, round(BAR * sizes[e] / sizes[order[0]]))
        table.add_row(str(e), f"{sizes[e]:,}", f"[cyan]{bar}[/]", f"{sums[e] / sizes[e]:.3f}")
    rest = order[MOST_CLUSTERS:]
    if rest:
        table.add_row("others", f"{sizes[rest].sum():,}", f"in {len(rest)} clusters", "")
    return table


def summary(console: Console, model: Any, seconds: float) -> None:
    """Closing words of a consensus: clusters, agreement, rounds, seconds."""
    console.print(cluster_table(model.labels_, model.margin_))
    members = model.member_agreement_
    pairs = members[~np.eye(len(members), dtype=bool)]
    between = f" (members with one another: {pairs.mean():.3f})" if pairs.size else ""
    console.print(f"agreement with the members (mean NMI): [bold]{model.agreement_:.3f}[/]{between}", highlight=False)
    if model.n_silent_:
        console.print(f"{model.n_silent_:,} samples have no base label: -1", highlight=False)
    console.print(
        f"{len(model.labels_):,} samples, {len(members)} members, {len(model.counts_):,} base clusters: "
        f"{model.n_rounds_} rounds, {model.n_sweeps_} sweeps, {seconds:.2f} s",
        highlight=False,
    )
