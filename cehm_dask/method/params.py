"""Parameters of a consensus, checked; what follows from them without looking at any label.

The estimator, the command and a recipe accept and refuse the same values with the same words.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isqrt, log
from typing import Any

import numpy as np

from cehm_dask.engine.budget import Budget
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.masking import shown
from cehm_dask.method.belonging import BELONGINGS
from cehm_dask.method.weighting import Weights, checked_weights

VARIANTS = {
    "auto": {"similarity": "jaccard", "belonging": "cosine", "schedule": "direct"},
    "released": {"similarity": "jaccard", "belonging": "share", "schedule": "fixed"},
    "printed": {"similarity": "containment", "belonging": "count", "schedule": "renewed"},
    "cosine": {"similarity": "jaccard", "belonging": "cosine", "schedule": "fixed"},
    "kmeans": {"similarity": "jaccard", "belonging": "kmeans", "schedule": "direct"},
    "tau": {"similarity": "jaccard", "belonging": "tau", "schedule": "direct"},
}
"""A portfolio of candidates (its knobs are those of a single chain, where one of them is set); the authors' released
program; the equations as printed in the paper; and chains with other kinds of belonging."""

PAPER = ("released", "printed")
"""Variants that are the paper's to the letter, and so may end with fewer clusters than asked for."""

CHOICES = {
    "variant": tuple(VARIANTS),
    "similarity": ("jaccard", "containment"),
    "belonging": tuple(BELONGINGS),
    "schedule": ("fixed", "renewed", "direct"),
    "choose": ("agreement", "loss"),
}

MAX_CLUSTERS = int(np.iinfo(np.int16).max)
"""Assignments are kept as int16: two bytes per sample."""

COMPETING_ROWS = 20_000
"""Rows that candidates compete on at most; of more samples, a seeded sample competes."""

COMPETING_BYTES = 64 << 20
"""Bytes of labels that these rows may take, where there are many members."""

USUAL_ADJUSTION = 4
"""Rounds of adjustion that most ensembles need."""


@dataclass(frozen=True)
class Params:
    """What is to be computed; ``None`` for a knob means "as the variant has it"."""

    n_clusters: int
    variant: str = "auto"
    similarity: str | None = None
    belonging: str | None = None
    schedule: str | None = None
    tries: int = 10
    restarts: int = 1
    choose: str = "agreement"
    init: Sequence[int] | None = None
    max_iter: int = 100
    start_rows: int | None = None
    """Rows of a seeded sample that the start is found on; None: all."""
    weights: Weights | None = None
    """How much each member or hyperedge counts; None: all alike."""
    portfolio: bool | None = None
    """Whether candidates compete; None: with the variant "auto", unless a knob or a start is given."""

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value is None and name in VARIANTS["auto"]:
                continue
            if value not in allowed:
                raise InputError(f"{name}={value!r}: expected one of {', '.join(map(repr, allowed))}")
        for name, low in (("n_clusters", 1), ("tries", 1), ("restarts", 1), ("max_iter", 1)):
            _whole_number(name, getattr(self, name), low)
            # Stores keep them as JSON, which has no numpy integers.
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.start_rows is not None:
            _whole_number("start_rows", self.start_rows, 1)
            object.__setattr__(self, "start_rows", int(self.start_rows))
        if self.n_clusters > MAX_CLUSTERS:
            raise InputError(f"n_clusters={self.n_clusters}: at most {MAX_CLUSTERS} clusters are supported")
        object.__setattr__(self, "weights", checked_weights(self.weights))
        if self.portfolio is None:
            single = self.init is not None or any(getattr(self, knob) is not None for knob in VARIANTS["auto"])
            object.__setattr__(self, "portfolio", self.variant == "auto" and not single)
        if self.portfolio and self.choose == "loss":
            raise InputError("choose='loss': losses of different kinds of belonging cannot be compared; name a variant")
        for knob, value in VARIANTS[self.variant].items():
            if getattr(self, knob) is None:
                object.__setattr__(self, knob, value)
        if self.init is not None:
            for number in self.init:
                _whole_number("init", number, None)
            self._check_init(tuple(int(number) for number in self.init))

    @property
    def repairs(self) -> bool:
        """Whether a cluster that loses all its samples gets some back."""
        return self.variant not in PAPER

    def _check_init(self, init: tuple[int, ...]) -> None:
        if len(init) != self.n_clusters or len(set(init)) != self.n_clusters:
            raise InputError(f"init={list(init)}: expected n_clusters={self.n_clusters} different hyperedge numbers")
        if self.restarts != 1:
            raise InputError(f"restarts={self.restarts}: with init given there is one start; leave restarts at 1")
        if self.start_rows is not None:
            raise InputError(f"start_rows={self.start_rows}: with init given, no start is looked for; leave one out")
        object.__setattr__(self, "init", init)


def settings_told(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a finished consensus for people: those that played no part are left out.

    Where candidates compete, each has a belonging of its own, and none diffuses.
    """
    idle = ("belonging", "schedule", "choose") if identity.get("portfolio") else ()
    return {name: value for name, value in identity.items() if value is not None and name not in (*idle, "portfolio")}


def _whole_number(name: str, value: Any, low: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise InputTypeError(f"{name}={value!r}: expected a whole number, got {type(value).__name__}")
    if low is not None and value < low:
        raise InputError(f"{name}={value}: must be at least {low}")


def check_fit(params: Params, n_samples: int, n_hyperedges: int | None = None) -> None:
    """Refuse numbers of clusters, hyperedges and samples that do not go together."""
    k = params.n_clusters
    if n_samples == 0:
        raise InputError(f"n_clusters={k} > n_samples=0: no sample has a base label, all are missing (-1 or NaN)")
    if k > n_samples:
        raise InputError(f"n_clusters={k} > n_samples={n_samples}: ask for at most as many clusters as samples")
    if n_hyperedges is None:
        return
    if k > n_hyperedges:
        raise InputError(
            f"n_clusters={k} > n_hyperedges={n_hyperedges} (base clusters of all members together): "
            "ask for fewer clusters or bring finer base clusterings"
        )
    for number in params.init or ():
        if not 0 <= number < n_hyperedges:
            raise InputError(f"init: hyperedge {number} is not one of 0..{n_hyperedges - 1}")


def next_target(schedule: str, n: int, k: int, assigned: int, assigned_at_start: int) -> int:
    """How many samples the next diffusion round assigns."""
    if schedule == "direct":
        return n
    if schedule == "fixed":
        step = max(isqrt(n), ceil((n - assigned_at_start) / k))
    else:
        step = max(ceil((n - assigned) / k), isqrt(n - 1) + 1)
    return min(n, assigned + step)


def expected_sweeps(params: Params, n_samples: int, budget: Budget) -> int:
    """Passes over the labels, roughly: intersections, start, rounds of diffusion, a few of adjustion, the result.

    The last round of diffusion lets in all, and takes one.
    """
    k, root = params.n_clusters, isqrt(n_samples) + 1
    if params.start_rows is not None and params.start_rows < n_samples and not params.portfolio:
        return 2 + USUAL_ADJUSTION + 1  # the sample, the first assignment
    rounds = (
        1
        if params.schedule == "direct"
        else k
        if params.schedule == "fixed"
        else ceil(k * log(max(2.0, n_samples / (k * root)))) + k
    )
    a_round = 1 if budget.foretell else 2
    return 3 + a_round * (rounds - 1) + USUAL_ADJUSTION + 1


AUTO_MEMBERS = 20
"""Clusters that members are made for where k is "auto": about the largest k that they can tell from smaller ones."""

MOST_AUTO = 30
"""Largest number of clusters that "auto" looks at."""


def auto_clusters(n_samples: int) -> range:
    """Numbers of clusters that "auto" looks at: from 2 to 30, but no more than √n.

    The choice looks at fewer where no member has as many clusters.

    >>> auto_clusters(150), auto_clusters(10**6)
    (range(2, 13), range(2, 31))
    """
    return range(2, max(2, min(MOST_AUTO, isqrt(n_samples))) + 1)


def auto_members(n_samples: int) -> int:
    """The k that members are made for where k is "auto"."""
    return max(2, min(AUTO_MEMBERS, isqrt(n_samples)))


def made_for(n_clusters: Any, n_samples: int) -> int:
    """The k that members are made for: the largest of those wanted."""
    if isinstance(n_clusters, str):
        return auto_members(n_samples)
    if isinstance(n_clusters, list | tuple | range | np.ndarray):
        return int(max(n_clusters, default=1))
    wanted: int = n_clusters  # what it is not is refused where it is used
    return wanted


def parse_clusters(wanted: Any) -> list[int]:
    """Numbers of clusters as people write them.

    >>> parse_clusters(10), parse_clusters("5,8,10"), parse_clusters("2..5"), parse_clusters([5, 8])
    ([10], [5, 8, 10], [2, 3, 4, 5], [5, 8])
    """
    try:
        if isinstance(wanted, str) and ".." in wanted:
            first, last = (int(part) for part in wanted.split(".."))
            if last - first >= MAX_CLUSTERS:
                count = last - first + 1
                raise InputError(f"{shown(wanted)}: {count:,} numbers of clusters, expected at most {MAX_CLUSTERS:,}")
            ks = list(range(first, last + 1))
        else:
            parts = wanted.split(",") if isinstance(wanted, str) else wanted if isinstance(wanted, list) else [wanted]
            ks = [int(part) for part in parts if isinstance(part, int | str) and not isinstance(part, bool)]
            ks = ks if len(ks) == len(parts) else []
    except InputError:
        raise
    except ValueError:
        ks = []
    if not ks:
        raise InputError(f"{shown(wanted)} is neither a number (10) nor a list (5,8,10) nor a range (2..15)")
    return ks
