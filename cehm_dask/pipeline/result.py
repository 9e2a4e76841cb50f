"""What a run tells: its progress to whoever watches, and at the end where things are and what was found.

Below the run, which tells it, and the command, which shows it.
"""

from dataclasses import dataclass, field
from typing import Any

from cehm_dask.data.files import exists
from cehm_dask.progress import Progress
from cehm_dask.results.matching import Matching


class RunProgress(Progress):
    """Receives the progress of a run; this one ignores it."""

    def begins(self, step: str, what: str) -> None:
        """A step starts."""

    def ended(self, step: str, seconds: float) -> None:
        """A step is done."""

    def left_out(self, step: str, why: str) -> None:
        """A step is not done, because it was before or there is nothing to do."""


@dataclass(frozen=True)
class Result:
    """Where a run put things and what it found."""

    directory: str
    steps: dict[str, str]
    """What became of each step: "done", "skipped" (it was done before) or "none" (the recipe has no use for it)."""
    seconds: float
    facts: dict[str, Any]
    """Of the consensus; empty if the run ended before it."""
    scores: dict[str, Any]
    """What :func:`scoring.evaluate` found; empty if the run ended before it."""
    matching: dict[str, Any] = field(default_factory=dict)
    """What matching.json holds; empty if the recipe follows no run, or the run ended before it."""

    @property
    def labels(self) -> str:
        """The table of labels, or the store that holds them."""
        for name in ("labels.parquet", "labels.csv"):
            if exists(path := f"{self.directory}/{name}"):
                return path
        return f"{self.directory}/consensus.zarr"

    @property
    def report(self) -> str:
        return f"{self.directory}/report.html"

    @property
    def alerts(self) -> list[str]:
        """What changed since the run that is followed by more than the recipe allows, a sentence each."""
        return list(self.matching.get("alerts", []))

    def summary(self) -> dict[str, Any]:
        """For machines: one flat record."""
        return {
            "run": self.directory,
            "labels": self.labels if self.facts else None,
            "report": self.report if self.steps.get("report") in ("done", "skipped") else None,
            "k": self.facts.get("n_clusters"),
            "agreement": self.facts.get("agreement"),
            "margin": self.scores.get("margin"),
            "stability": self.scores.get("stability"),
            "scores": self.scores.get("scores", {}),
            **self._followed(),
            "sweeps": self.facts.get("sweeps"),
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
        }

    def _followed(self) -> dict[str, Any]:
        if not self.matching:
            return {"follows": None, "names": None, "moved": None, "new": [], "gone": [], "alerts": []}
        found = Matching.from_dict(self.matching)
        return {
            "follows": self.matching["follows"],
            "names": found.names,
            "moved": found.moved,
            "new": sorted(found.of("new") + found.of("split")) if self.matching["follows"] else [],
            "gone": sorted(found.of("gone") + found.of("merged")),
            "alerts": self.alerts,
        }
