"""Progress as live bars of a terminal.

Above the progress that work reports, below all who show it: the command, and estimators that are asked to.
"""

from time import perf_counter
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from cehm_dask.machine import format_bytes, resident_bytes
from cehm_dask.progress import Event, Progress

BAR = 28
UNITS = {"fitted": "members", "Lloyd": "rounds", "read": "bytes"}
"""What is counted, where it is not rows."""


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._begin


class Rounds(Progress):
    """Progress of a consensus: two live bars on a terminal, one line per round elsewhere, nothing if quiet."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self._watch = Stopwatch()
        self._bar: Bar | None = None
        self._latest: dict[int, Event] = {}
        self._sweep_began = 0.0
        self._first_assigned: tuple[float, int] | None = None

    def __enter__(self) -> Self:
        if not self.quiet and self.console.is_terminal:
            self._bar = Bar(
                SpinnerColumn(),
                TextColumn("{task.description:<13}"),
                BarColumn(BAR),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
            )
            self._bar.start()
            self._sweep = self._bar.add_task("sweep", total=None, state="")
            self._rounds = self._bar.add_task("assigned", total=None, state="")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advanced(self, what: str, done: int, total: int | None) -> None:
        """Rows done inside a sweep."""
        if self._bar is None:
            return
        now = self._watch.seconds
        unit = UNITS.get(what, "rows")
        rate = f"{done / max(now - self._sweep_began, 1e-3):,.0f} {unit}/s, memory {format_bytes(resident_bytes())}"
        self._bar.update(self._sweep, description=what, completed=done, total=total, state=rate)
        if done == total:
            self._sweep_began = now
            if what == "intersections":
                # Medoids and candidates are looked for in this process, without a sweep: no rows to count.
                self._bar.update(self._sweep, description="starts", total=None, state="")

    def round_done(self, event: Event) -> None:
        if self.quiet:
            return
        self._latest[event.problem] = event
        slowest = min(self._latest.values(), key=lambda latest: (latest.stage != "diffusion", latest.assigned))
        n, assigned = slowest.n_samples, slowest.assigned
        of_all = f"all {n:,}" if assigned == n else f"{assigned:,} of {n:,}"
        state = f"round {slowest.round}, {of_all} assigned, {slowest.moved:,} moved"
        if slowest.loss is not None:
            state += f", loss {slowest.loss:.6g}"
        state += self._time_left(slowest)
        if self._bar is not None:
            # Once all are assigned, what is left to see is how few still move.
            settling = slowest.stage == "adjustion" and assigned == n
            name, done = ("settled", n - slowest.moved) if settling else ("assigned", assigned)
            self._bar.update(self._rounds, description=name, completed=done, total=n, state=state)
        elif slowest is event:
            # Of many problems side by side, one line shows how far the slowest is.
            many = f", slowest of {len(self._latest)} problems" if len(self._latest) > 1 else ""
            self.console.print(f"{event.stage}{many}: {state}", highlight=False, soft_wrap=True)

    def _time_left(self, event: Event) -> str:
        """How long diffusion will take at the pace so far; adjustion cannot be estimated."""
        now = self._watch.seconds
        if self._first_assigned is None:
            self._first_assigned = (now, event.assigned)
        began, before = self._first_assigned
        if event.stage != "diffusion" or event.assigned <= before:
            return ""
        left = (now - began) * (event.n_samples - event.assigned) / (event.assigned - before)
        return f", about {left:.0f} s to full assignment" if left >= 1 else ""


class Rows(Progress):
    """Progress of a stream of rows: a live bar on a terminal, nothing elsewhere."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._bar = Bar(
            TextColumn("{task.description:<8}"),
            BarColumn(BAR),
            TextColumn("{task.completed:,.0f} {task.fields[unit]}, {task.fields[rate]} per second"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def advanced(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(what, total=total, rate="", unit=UNITS.get(what, "rows"))
        task = self._bar.tasks[self._tasks[what]]
        rate = f"{done / max(task.elapsed or 0, 1e-3):,.0f}"
        self._bar.update(self._tasks[what], completed=done, total=total, rate=rate)
