"""What a run tells: its progress to whoever watches, and at the end where things are and what was found.

Below the run, which tells it, and the command, which shows it.
"""

from dataclasses import dataclass
from typing import Any

from cehm_dask.data.files import exists


class Watch:
    """Receives the progress of a run; this one ignores it."""

    progress: Any = None
    """Called with every round of the consensus."""

    def begins(self, stage: str, what: str) -> None:
        """A stage starts."""

    def ended(self, stage: str, seconds: float) -> None:
        """A stage is done."""

    def left_out(self, stage: str, why: str) -> None:
        """A stage is not done, because it was before or there is nothing to do."""

    def rows(self, what: str, count: int) -> None:
        """Rows were gone through."""


@dataclass(frozen=True)
class Result:
    """Where a run put things and what it found."""

    directory: str
    stages: dict[str, str]
    """What became of each stage: "done", "skipped" (it was done before) or "none" (the recipe has no use for it)."""
    seconds: float
    facts: dict[str, Any]
    """Of the consensus; empty if the run ended before it."""
    scores: dict[str, Any]
    """What :func:`scoring.evaluate` found; empty if the run ended before it."""

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

    def summary(self) -> dict[str, Any]:
        """For machines: one flat record."""
        return {
            "run": self.directory,
            "labels": self.labels if self.facts else None,
            "report": self.report if self.stages.get("report") in ("done", "skipped") else None,
            "k": self.facts.get("n_clusters"),
            "agreement": self.facts.get("agreement"),
            "margin": self.scores.get("margin"),
            "stability": self.scores.get("stability"),
            "scores": self.scores.get("scores", {}),
            "sweeps": self.facts.get("sweeps"),
            "seconds": round(self.seconds, 3),
            "stages": self.stages,
        }
