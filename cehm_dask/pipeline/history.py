"""Runs over time: what each run directory of a folder says of itself, as rows, and as metrics for whoever scrapes.

Above the single run directory; for ``cehm history``. Reads run.json, matching.json and the small tables of a consensus;
no row of data.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import fsspec

from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.files import absolute, exists, is_url
from cehm_dask.errors import NotFoundError, StoreError
from cehm_dask.pipeline.days import is_finished, listed, state_of
from cehm_dask.pipeline.outputs import read_matching
from cehm_dask.pipeline.recipe_model import day_in
from cehm_dask.results.matching import Matching


@dataclass(frozen=True)
class Day:
    """What one run says of itself."""

    run: str
    date: str | None
    """In its path."""
    state: str
    """"finished", or what became of the first step that is not done."""
    seconds: float
    n_samples: int | None = None
    k: int | None = None
    """Clusters with samples."""
    agreement: float | None = None
    sizes: dict[int, int] = field(default_factory=dict)
    """Samples of every cluster, by name."""
    follows: str | None = None
    moved: float | None = None
    """Share of the samples that are also in the run that is followed, and whose cluster has another name now."""
    changes: list[str] = field(default_factory=list)
    """What is new, gone, split or merged."""
    alerts: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def read_days(places: Sequence[str]) -> list[Day]:
    """The runs at some places: run directories, folders of them, or patterns such as ``runs/2026-*``; oldest first."""
    found: dict[str, Day] = {}
    for place in places:
        there = False
        for url in _expanded(place):
            inner = [] if _add(found, url) else [below for below in listed(url) if _add(found, below)]
            there |= url in found or bool(inner)
        if not there:
            raise NotFoundError(f"{place}: no run directory (none has a run.json), nor a folder of them")
    return sorted(found.values(), key=lambda day: (day.date or "", day.run))


def _expanded(place: str) -> list[str]:
    url = absolute(place).rstrip("/")
    if exists(url) or not set("*?[") & set(place):
        return [url]
    filesystem, path = fsspec.core.url_to_fs(url)
    names = sorted(filesystem.glob(path))
    return [filesystem.unstrip_protocol(name) for name in names] if is_url(place) else names


def _add(found: dict[str, Day], url: str) -> bool:
    if url not in found:
        state = state_of(url)
        if state is None:
            return False
        found[url] = _day(url, state)
    return True


def _day(url: str, state: dict[str, Any]) -> Day:
    unfinished = next(
        (f"{step} {note['state']}" for step, note in state["steps"].items() if note["state"] != "done"), ""
    )
    told: dict[str, Any] = {
        "run": url,
        "date": day_in(url),
        "state": "finished" if is_finished(state) else unfinished or "unfinished",
        "seconds": round(sum(note["seconds"] for note in state["steps"].values()), 3),
        "alerts": list(state.get("alerts", [])),
    }
    try:
        return Day(**told, **_results(url, state))
    except StoreError as error:
        return Day(**told | {"state": f"damaged: {error}"})


def _results(url: str, state: dict[str, Any]) -> dict[str, Any]:
    """Of its clusters; nothing where there are none yet."""
    if state["steps"].get("consensus", {}).get("state") != "done":
        return {}
    content = read_matching(url, state)
    if content is None:
        stored = open_consensus(f"{url}/consensus.zarr")
        sizes = {c: n for c, n in enumerate(stored.table("sizes").tolist()) if n}
        return {**_of(sizes), "n_samples": int(stored.facts["n_samples"]), "agreement": stored.facts["agreement"]}
    found = Matching.from_dict(content)
    sizes = {own["name"]: own["now"] for own in found.clusters if own["now"]}
    follows = content["follows"]
    return {
        **_of(sizes),
        "n_samples": found.n_now,
        "agreement": content["agreement"]["now"],
        "follows": follows,
        "moved": found.moved,
        "changes": found.told if follows is not None else [],
    }


def _of(sizes: dict[int, int]) -> dict[str, Any]:
    return {"k": len(sizes), "sizes": sizes}


METRICS = {
    "cehm_runs": "Run directories that were found.",
    "cehm_run_finished": "Whether the newest run is finished, 1 or 0.",
    "cehm_run_date_seconds": "Date of the newest finished run, its midnight in UTC as seconds since 1970.",
    "cehm_run_seconds": "Seconds that its steps took.",
    "cehm_run_samples": "Samples.",
    "cehm_run_clusters": "Clusters with samples.",
    "cehm_run_agreement": "Agreement with the members, mean NMI.",
    "cehm_run_moved": "Share of the samples also in the run before whose cluster has another name now.",
    "cehm_run_changes": "Clusters that are new or gone.",
    "cehm_run_alerts": "Alerts.",
    "cehm_cluster_samples": "Samples of a cluster.",
}
"""All are gauges."""


def metrics(days: Sequence[Day]) -> str:
    """The newest run and the newest finished one as OpenMetrics text, which Prometheus reads too."""
    values: dict[str, list[tuple[str, float]]] = {"cehm_runs": [("", len(days))]}
    if days:
        values["cehm_run_finished"] = [("", int(days[-1].state == "finished"))]
    newest = next((day for day in reversed(days) if day.state == "finished"), None)
    if newest is not None:
        if newest.date is not None:
            midnight = datetime.fromisoformat(newest.date).replace(tzinfo=UTC)
            values["cehm_run_date_seconds"] = [("", int(midnight.timestamp()))]
        told = {
            "seconds": newest.seconds,
            "samples": newest.n_samples,
            "clusters": newest.k,
            "agreement": newest.agreement,
            "moved": newest.moved,
            "changes": len(newest.changes),
            "alerts": len(newest.alerts),
        }
        values |= {f"cehm_run_{name}": [("", value)] for name, value in told.items() if value is not None}
        values["cehm_cluster_samples"] = [(f'{{cluster="{name}"}}', n) for name, n in sorted(newest.sizes.items())]
    lines = []
    for name, about in METRICS.items():
        if values.get(name):
            lines += [f"# TYPE {name} gauge", f"# HELP {name} {about}"]
            lines += [f"{name}{labels} {value:.17g}" for labels, value in values[name]]
    return "\n".join([*lines, "# EOF"]) + "\n"
