"""What people see in a terminal: progress of the rounds, closing summaries.

Used by the command only; everything below it logs and reports events, and prints nothing.
"""

from collections.abc import Sequence
from dataclasses import asdict
from time import perf_counter
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.table import Table

from cehm_dask.cli.flow import show_matching
from cehm_dask.data.attributes import read_facts
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.job import Outcome
from cehm_dask.machine import format_bytes, resident_bytes
from cehm_dask.method.choice import ONLY_ONE
from cehm_dask.method.params import settings_told
from cehm_dask.pipeline.result import Result, RunProgress
from cehm_dask.progress import Event, Progress

if TYPE_CHECKING:
    from cehm_dask.pipeline.estimate import Estimate  # loads what members are made with

BAR = 28
UNITS = {"fitted": "members", "Lloyd": "rounds", "read": "bytes"}
"""What is counted, where it is not rows."""
MOST_CLUSTERS = 20
"""Clusters listed one by one in a summary; the rest share a line."""


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
        rate = f"{done / max(now - self._sweep_began, 1e-3):,.0f} rows/s, memory {format_bytes(resident_bytes())}"
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


class Steps(RunProgress):
    """Progress of a run: a line per step, and the bars of the one that runs."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self._bars: Rows | Rounds | None = None

    def _say(self, step: str, text: str) -> None:
        if not self.quiet:
            self.console.print(f"[bold]{step:<10}[/] {escape(text)}", highlight=False, soft_wrap=True)

    def begins(self, step: str, what: str) -> None:
        self._say(step, what)
        bars = Rounds if step == "consensus" else Rows
        self._bars = bars(self.console, quiet=self.quiet).__enter__()

    def advanced(self, what: str, done: int, total: int | None) -> None:
        if self._bars is not None:
            self._bars.advanced(what, done, total)

    def round_done(self, event: Event) -> None:
        if self._bars is not None:
            self._bars.round_done(event)

    def stop(self) -> None:
        """Take the bars off the screen, whatever happened."""
        if self._bars is not None:
            self._bars.__exit__()
            self._bars = None

    def ended(self, step: str, seconds: float) -> None:
        self.stop()
        self._say(step, f"done in {seconds:.2f} s")

    def left_out(self, step: str, why: str) -> None:
        self._say(step, why)


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._begin = perf_counter()

    @property
    def seconds(self) -> float:
        return perf_counter() - self._begin


def cluster_table(sizes: NDArray[np.int64], names: Sequence[int | None] | None = None) -> Table:
    """Clusters, largest first, with their sizes; by their numbers, if they have no names."""
    table = Table("cluster", "samples", "", box=None, header_style="bold", pad_edge=False)
    for column in (0, 1):
        table.columns[column].justify = "right"
    order = [int(e) for e in np.argsort(-sizes, kind="stable") if sizes[e]]
    for e in order[:MOST_CLUSTERS]:
        bar = "█" * max(1, round(BAR * sizes[e] / sizes[order[0]]))
        table.add_row(str(e if names is None else names[e]), f"{sizes[e]:,}", f"[cyan]{bar}[/]")
    rest = order[MOST_CLUSTERS:]
    if rest:
        table.add_row("others", f"{sizes[rest].sum():,}", f"in {len(rest)} clusters")
    return table


def scan_table(scan: Sequence[dict[str, Any]], kept: int) -> Table:
    """How every number of clusters came out, the kept one marked."""
    names = ("agreement", "margin", "stability", "loss", "restarts")
    table = Table("k", *names, box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    for record in scan:
        cells = ["" if (value := record[name]) is None else f"{value:.6g}" for name in names]
        table.add_row(str(record["n_clusters"]), *cells, style="bold" if record["n_clusters"] == kept else None)
    return table


def summary(console: Console, outcome: Outcome, seconds: float) -> None:
    """Summary of a consensus: clusters, agreement, rounds, seconds."""
    result = outcome.consensus
    facts = {
        "agreement": result.chosen.agreement,
        "n_silent": result.hyperedges.n_silent,
        "n_samples": result.hyperedges.n_samples,
        "n_members": result.hyperedges.n_members,
        "n_hyperedges": result.hyperedges.n_hyperedges,
        "rounds": result.chosen.problem.round,
        "sweeps": outcome.sweeps,
        "scan": outcome.scan,
        "choice": asdict(result.choice),
        "candidate_reason": result.chosen.reason,
    }
    _closing(console, facts, outcome.sizes, result.member_agreement, f"{seconds:.2f} s")


def _closing(
    console: Console,
    facts: dict[str, Any],
    sizes: NDArray[np.int64],
    members: NDArray[np.float64],
    took: str,
    names: Sequence[int | None] | None = None,
) -> None:
    choice = facts["choice"]
    if len(facts["scan"]) > 1:
        console.print(scan_table(facts["scan"], choice["n_clusters"]))
    if choice["reason"] != ONLY_ONE:
        verdict = f"k = {choice['n_clusters']}" if choice["clear"] else "no clear k"
        console.print(f"[bold]{verdict}[/]: {escape(choice['reason'])}", highlight=False)
    if reason := facts.get("candidate_reason"):
        console.print(f"[bold]kept[/]: {escape(reason)}", highlight=False, soft_wrap=True)
    console.print(cluster_table(sizes, names))
    pairs = members[~np.eye(len(members), dtype=bool)]
    between = f" (members with one another: {pairs.mean():.3f})" if pairs.size else ""
    console.print(f"agreement with the members (mean NMI): [bold]{facts['agreement']:.3f}[/]{between}", highlight=False)
    if facts["n_silent"]:
        console.print(f"{facts['n_silent']:,} samples have no base label: -1", highlight=False)
    console.print(
        f"{facts['n_samples']:,} samples, {facts['n_members']:,} members, {facts['n_hyperedges']:,} base clusters: "
        f"{facts['rounds']} rounds, {facts['sweeps']} sweeps, {took}",
        highlight=False,
    )


def run_summary(console: Console, result: Result) -> None:
    """Summary of a run: its consensus, its scores, and where things are."""
    from cehm_dask.report.words import seconds as written_seconds  # as the page has them

    if result.facts:
        stored = open_consensus(f"{result.directory}/consensus.zarr")
        sizes, members = (np.asarray(stored.array(name)[:]) for name in ("sizes", "member_agreement"))
        facts = {**result.facts, "n_hyperedges": stored.array("counts").shape[0]}
        took = f"{written_seconds(sum(facts['seconds'].values()))}; all steps {written_seconds(result.seconds)}"
        _closing(console, facts, sizes, members, took, result.matching.get("names"))
    if result.matching:
        show_matching(console, result.matching)
    if known := result.scores.get("scores"):
        titles = {"nmi": "NMI", "ari": "ARI", "accuracy": "accuracy"}
        said = ", ".join(f"{title} {known[name]:.3f}" for name, title in titles.items())
        console.print(f"against the known classes: {said}", highlight=False)
    if "done" not in result.steps.values():
        console.print("nothing to do: everything was done before, with the same settings and data")
    places = {"run": result.directory} | {name: result.summary()[name] for name in ("labels", "report")}
    for name, place in places.items():
        if place is not None:
            console.print(f"{name + ':':<8}{escape(place)}", highlight=False, soft_wrap=True)


def show_estimate(console: Console, expected: "Estimate") -> None:
    """What a run will cost: a line per step, and the memory of each, by term."""
    table = Table("step", "sweeps", "read", "written", "about", "", box=None, header_style="bold", pad_edge=False)
    for column in (1, 2, 3, 4):
        table.columns[column].justify = "right"
    for step in expected.steps:
        table.add_row(
            step.step,
            str(step.sweeps or "–"),
            format_bytes(step.read) if step.read else "–",
            format_bytes(step.written) if step.written else "–",
            f"{step.seconds:,.1f} s" if step.seconds else "–",
            escape(step.what),
        )
    console.print(table)
    for step in expected.steps:
        if step.memory:
            terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in step.memory.items() if size)
            total = format_bytes(sum(step.memory.values()))
            text = f"memory of {step.step}: {total} of {format_bytes(step.allowed)} allowed: {terms}"
            console.print(escape(text), highlight=False, soft_wrap=True)
    seconds, who = sum(step.seconds for step in expected.steps), expected.machine
    where = "on this machine"
    if who.workers is not None:
        where = f"with {who.workers} worker(s) of {who.threads} thread(s), each as fast as one here"
    console.print(
        f"about {seconds:,.0f} s in all, {where}; an estimate from {expected.calibration:.1f} s of trials here",
        highlight=False,
    )


def describe(console: Console, url: str) -> None:
    """What a store holds, in a few lines."""
    facts = read_facts(url)
    table = Table(box=None, show_header=False, pad_edge=False)
    if facts["format"] == "ensemble":
        ensemble = open_ensemble(url)
        clusters = np.asarray(ensemble.widths) - 1
        size = ensemble.n_samples * len(clusters) * ensemble.itemsize
        rows = {
            "ensemble": url,
            "samples": f"{ensemble.n_samples:,}",
            "members": f"{len(clusters)} with {clusters.min()} to {clusters.max()} clusters, {clusters.sum():,} in all",
            "labels": f"{format_bytes(size)}, {ensemble.chunk_rows:,} rows per chunk, "
            f"{ensemble.shard_rows:,} per shard",
            "source": ensemble.source,
            "fingerprint": ensemble.fingerprint,
        }
    elif not facts["complete"]:
        rows = {"consensus": url, "state": "unfinished; the command that began it resumes it", **facts["identity"]}
    else:
        rows = {
            "consensus": url,
            "samples": f"{facts['n_samples']:,}",
            "clusters": f"{facts['n_clusters_found']} of {facts['n_clusters']}",
            "choice of k": facts["choice"]["reason"],
            **({"kept": facts["candidate_reason"]} if facts.get("candidate_reason") else {}),
            "agreement": f"{facts['agreement']:.4f} (mean NMI with the members)",
            "rounds": f"{facts['rounds']}, in {facts['sweeps']} sweeps",
            "seconds": ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in facts["seconds"].items()),
            "memory": ", ".join(f"{name} {format_bytes(size)}" for name, size in facts["memory"].items()),
            "settings": ", ".join(f"{name}={value}" for name, value in settings_told(facts["identity"]).items()),
        }
    for name, value in rows.items():
        table.add_row(f"[bold]{escape(name)}[/]", escape(str(value)))
    console.print(table)
