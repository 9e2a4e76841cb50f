"""Parameters of a consensus: names, ranges and what the two variants set. Pure arithmetic.

Stands beside the kernels, below the engine: everything above reads its choices from here, so the estimator,
the command and a recipe accept and refuse the same things with the same words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isqrt
from typing import Any

import numpy as np

VARIANTS = {
    "released": {"similarity": "jaccard", "belonging": "share", "schedule": "fixed"},
    "printed": {"similarity": "containment", "belonging": "count", "schedule": "renewed"},
}
"""The authors' released program, and the equations as printed in the paper."""

CHOICES = {
    "variant": tuple(VARIANTS),
    "similarity": ("jaccard", "containment"),
    "belonging": ("share", "count"),
    "schedule": ("fixed", "renewed"),
    "choose": ("agreement", "loss"),
}

MAX_CLUSTERS = int(np.iinfo(np.int16).max)
"""Assignments are kept as int16: two bytes a sample."""


@dataclass(frozen=True)
class Params:
    """What is to be computed; ``None`` for a knob means "as the variant has it"."""

    n_clusters: int
    variant: str = "released"
    similarity: str | None = None
    belonging: str | None = None
    schedule: str | None = None
    restarts: int = 1
    choose: str = "agreement"
    init: Sequence[int] | None = None
    max_iter: int = 100

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is None and name in VARIANTS["released"]:
                continue
            if value not in allowed:
                raise ValueError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
        for name, low in (("n_clusters", 1), ("restarts", 1), ("max_iter", 1)):
            _whole_number(name, getattr(self, name), low)
        if self.n_clusters > MAX_CLUSTERS:
            raise ValueError(f"n_clusters={self.n_clusters}: at most {MAX_CLUSTERS} clusters are supported")
        for knob, value in VARIANTS[self.variant].items():
            if getattr(self, knob) is None:
                object.__setattr__(self, knob, value)
        if self.init is not None:
            self._check_init(tuple(int(number) for number in self.init))

    def _check_init(self, init: tuple[int, ...]) -> None:
        if len(init) != self.n_clusters or len(set(init)) != self.n_clusters:
            raise ValueError(f"init={list(init)}: expected n_clusters={self.n_clusters} different hyperedge numbers")
        if self.restarts != 1:
            raise ValueError(f"restarts={self.restarts}: with init given there is one start; leave restarts at 1")
        object.__setattr__(self, "init", init)


def _whole_number(name: str, value: Any, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name}={value!r}: expected a whole number, got {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name}={value}: must be at least {low}")


def check_fit(params: Params, n_samples: int, n_hyperedges: int | None = None) -> None:
    """Refuse numbers of clusters, hyperedges and samples that do not go together."""
    k = params.n_clusters
    if k > n_samples:
        raise ValueError(f"n_clusters={k} > n_samples={n_samples}: ask for at most as many clusters as samples")
    if n_hyperedges is None:
        return
    if k > n_hyperedges:
        raise ValueError(
            f"n_clusters={k} > n_hyperedges={n_hyperedges} (base clusters of all members together): "
            "ask for fewer clusters or bring finer base clusterings"
        )
    for number in params.init or ():
        if not 0 <= number < n_hyperedges:
            raise ValueError(f"init: hyperedge {number} is not one of 0..{n_hyperedges - 1}")


def next_target(schedule: str, n: int, k: int, assigned: int, assigned_at_start: int) -> int:
    """How many samples the next diffusion round assigns."""
    if schedule == "fixed":
        step = max(isqrt(n), ceil((n - assigned_at_start) / k))
    else:
        step = max(ceil((n - assigned) / k), isqrt(n - 1) + 1)
    return min(n, assigned + step)
