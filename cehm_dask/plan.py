"""Parameters and budget: what is computed, in which blocks, with how many bytes. Pure arithmetic.

Stands beside the kernels, below the engine: everything above reads its choices from here, so the estimator,
the command and a recipe accept and refuse the same things with the same words, and a run that cannot fit is
refused before the first byte is read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, isqrt, log
from typing import Any

import numpy as np

from cehm_dask.errors import BudgetError, InputError, InputTypeError
from cehm_dask.masking import shown

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
    "belonging": ("share", "count", "cosine", "kmeans", "tau"),
    "schedule": ("fixed", "renewed", "direct"),
    "choose": ("agreement", "loss"),
}

MAX_CLUSTERS = int(np.iinfo(np.int16).max)
"""Assignments are kept as int16: two bytes a sample."""

BLOCK_ROWS = 1 << 15
"""Rows a kernel sees: a block of thirty members, its margins and winners fit the second-level cache."""

FEWEST_BLOCK_ROWS = 1 << 13
"""However many problems share a block: in smaller ones, the calls a block and problem outweigh the cache."""

MOST_COUNTED = 2**31 - 1
"""Rows that a table of int32 can count: no two hyperedges share more samples than there are."""

STATE_BYTES = 2 + 2 + 2 + 8
"""Bytes a sample and problem that assignment, the one before it, winner and margin take."""

WIDEST_WINDOW = 0.05
"""Share of the samples whose labels may be kept to spare a round its second sweep."""

SAMPLE_ROWS = 1 << 13
"""Rows of a run, evenly spread, whose labels are kept to foretell where a cut will fall."""

RUNS_PER_THREAD = 4
"""Enough to even out threads that are held up, few enough that summing their tables costs nothing."""

RUN_ROWS = 1 << 17
"""A run is not split below this many rows: a shorter task costs more to hand out than it saves."""

CLUSTER_RUN_WORK = 3 << 30
"""Bytes of labels times columns of weights below which a run is not split for a cluster: 0.15 s of work."""

CODE_BYTES = 128 << 20
"""Compiled kernels and libraries that a process loads when it starts to work."""

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
            object.__setattr__(self, name, int(getattr(self, name)))  # the solver of k-medoids takes no numpy integers
        if self.n_clusters > MAX_CLUSTERS:
            raise InputError(f"n_clusters={self.n_clusters}: at most {MAX_CLUSTERS} clusters are supported")
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


@dataclass(frozen=True)
class Shape:
    """What the budget needs to know of a label matrix."""

    n_samples: int
    row_bytes: int
    """Bytes of one row of labels as it is read."""
    n_slots: int
    read_rows: int | None
    """Rows read in one go from a store; None for an array in memory."""
    align_rows: int
    """Runs begin at multiples of this, so that each writes whole shards."""


@dataclass(frozen=True)
class Budget:
    """Blocks, runs and bytes of a consensus, settled before the first sweep.

    ``terms`` are the bytes of one process by what they are for; they add up to ``projected``.
    """

    allowed: int
    terms: Mapping[str, int] = field(hash=False)
    threads: int
    block_rows: int
    run_edges: tuple[int, ...]
    keep_state: bool
    keep_labels: bool
    state_bytes_a_row: int
    label_bytes_a_row: int
    stored: bool
    """Whether labels are read from a store."""

    @property
    def foretell(self) -> bool:
        """Whether a sweep costs so much that it pays to foretell cuts: labels are read anew each time."""
        return self.stored and self.keep_state and not self.keep_labels

    @property
    def pass_over(self) -> bool:
        """Whether labels are in memory, so that it pays to look at some rows only, and once more at the result."""
        return self.keep_state and (self.keep_labels or not self.stored)

    @property
    def result_reads(self) -> bool:
        """Whether the labels are needed for the result."""
        return self.pass_over or not self.keep_state

    @property
    def projected(self) -> int:
        return sum(self.terms.values())

    @property
    def resident_bytes(self) -> int:
        """Bytes of labels and assignments that one process may keep between sweeps."""
        return self.terms["kept assignments"] + self.terms["kept labels"]


def make_budget(
    shape: Shape,
    clusters: Sequence[int],
    *,
    allowed: int,
    taken: int = 0,
    workers: int | None = None,
    threads: int = 1,
    returned: bool = True,
    block_rows: int | None = None,
) -> Budget:
    """Settle blocks and runs for problems with the given numbers of clusters, and what may stay in memory.

    Parameters
    ----------
    shape : Shape
    clusters : sequence of int
        k of every problem that runs side by side.
    allowed, taken : int
        Bytes a process may take in all, and takes already.
    workers : int, optional
        Processes of a cluster that work; default: this process does.
    threads : int
        Of each process.
    returned : bool
        Whether labels and margins come back as arrays in this process.
    block_rows : int, optional
        Rows a kernel sees.
    """
    if block_rows is None:
        block_rows = min(
            shape.read_rows or BLOCK_ROWS, max(FEWEST_BLOCK_ROWS, 4 * BLOCK_ROWS // len(clusters)), shape.n_samples
        )
    block_rows = max(1, min(block_rows, shape.n_samples, MOST_COUNTED))
    columns = sum(clusters) + 12
    window = ceil(WIDEST_WINDOW * (shape.row_bytes + 8)) if shape.read_rows else 0
    state = (STATE_BYTES + window) * len(clusters)
    read_rows = shape.read_rows or 0
    edges = _run_edges(shape, workers, threads, block_rows, columns)
    share = rows_of_a_process(edges, workers)
    terms = {
        "this process": taken,
        "code to be loaded": CODE_BYTES,
        # a count a thread and a few to be added, their sum, its mirror image and the solver's table of dissimilarities
        "intersections": (4 * (threads + 8) + 40) * shape.n_slots**2,
        # W of this round and the last; a thread lays them out anew and counts the change of C
        "weights and counts": 8 * shape.n_slots * columns * (4 + 3 * threads),
        "label blocks": 2 * threads * read_rows * shape.row_bytes,
        "margins of blocks": 3 * threads * block_rows * state,
        "samples": RUNS_PER_THREAD * threads * SAMPLE_ROWS * shape.row_bytes if shape.read_rows else 0,
        "result": (2 + 8 + 8 + 8) * shape.n_samples if returned else 0,
        "kept assignments": 0,
        "kept labels": 0,
    }
    needed = sum(terms.values())
    if needed > allowed:
        largest = max(list(terms)[2:], key=terms.__getitem__)
        raise BudgetError(
            f"memory={format_bytes(allowed)} allowed < {format_bytes(needed)} projected, most of it for {largest} "
            f"({format_bytes(terms[largest])}; this process takes {format_bytes(taken)} already): "
            "allow more memory, or use fewer base clusters, restarts or values of k"
        )
    keep_state = needed + share * state <= allowed
    if keep_state:
        terms["kept assignments"] = share * state
        needed += share * state
    keep_labels = shape.read_rows is not None and needed + share * shape.row_bytes <= allowed
    if keep_labels:
        terms["kept labels"] = share * shape.row_bytes
    return Budget(
        allowed=allowed,
        terms=terms,
        threads=threads,
        block_rows=block_rows,
        run_edges=edges,
        keep_state=keep_state,
        keep_labels=keep_labels,
        state_bytes_a_row=state,
        label_bytes_a_row=shape.row_bytes,
        stored=shape.read_rows is not None,
    )


def generation_terms(
    n_features: int, n_members: int, *, fit_rows: int, block_rows: int, shard_rows: int, taken: int, threads: int
) -> dict[str, int]:
    """Bytes of a process that makes members, by what they are for.

    A thread holds a copy of the sample it fits a member on, then blocks of features on their way to codes and the
    shard these are put together in.
    """
    fitting = 3 * 4 * fit_rows * n_features
    labelling = block_rows * (n_features * (3 * 8 + 2 * 4) + 3 * n_members) + 4 * shard_rows * n_members
    return {
        "this process": taken,
        "code to be loaded": CODE_BYTES,
        "sample of rows": fit_rows * n_features * (8 + 8 + 4),
        "members being fitted, blocks being labelled": threads * max(fitting, labelling),
    }


def threads_for_generation(
    n_features: int,
    n_members: int,
    *,
    fit_rows: int,
    block_rows: int,
    shard_rows: int,
    allowed: int,
    taken: int,
    threads: int,
) -> int:
    """Threads that can make members of an ensemble side by side in the memory allowed, at most ``threads``."""
    rows = {"fit_rows": fit_rows, "block_rows": block_rows, "shard_rows": shard_rows}
    terms = generation_terms(n_features, n_members, **rows, taken=taken, threads=1)
    needed, a_thread = sum(terms.values()), terms["members being fitted, blocks being labelled"]
    if needed > allowed:
        raise BudgetError(
            f"memory={format_bytes(allowed)} allowed < {format_bytes(needed)} projected to make members "
            f"({format_bytes(terms['sample of rows'])} for a sample of {fit_rows} rows; this process takes "
            f"{format_bytes(taken)} already): allow more memory, or lower fit_rows"
        )
    return min(threads, 1 + (allowed - needed) // a_thread)


def _run_edges(shape: Shape, workers: int | None, threads: int, block_rows: int, columns: int) -> tuple[int, ...]:
    """First rows of the runs and the end: even, aligned, not too short."""
    unit = shape.align_rows if shape.align_rows > 1 else min(block_rows, RUN_ROWS)
    units = -(-shape.n_samples // unit)
    shortest = max(1, min(RUN_ROWS, BLOCK_ROWS if block_rows >= BLOCK_ROWS else block_rows) // unit)
    hands = threads * (workers or 1)
    n_runs = hands * RUNS_PER_THREAD
    if workers is not None:
        work = shape.n_samples * shape.row_bytes * columns
        n_runs = max(hands, min(n_runs, work // CLUSTER_RUN_WORK))
    n_runs = max(1, min(n_runs, units // shortest or 1))
    edges = (min(shape.n_samples, unit * (units * i // n_runs)) for i in range(n_runs + 1))
    return tuple(dict.fromkeys(edges))


def rows_of_a_process(run_edges: Sequence[int], workers: int | None) -> int:
    """Most rows of which one process has to keep anything: its runs are as many as any other's, but not as long.

    >>> rows_of_a_process((0, 4, 8, 13), 2), rows_of_a_process((0, 4, 8, 13), None)
    (10, 13)
    """
    lengths = np.diff(run_edges)
    return min(run_edges[-1], -(-len(lengths) // (workers or 1)) * int(lengths.max()))


def format_bytes(size: float) -> str:
    """A size for people.

    >>> format_bytes(2_500_000_000)
    '2.33 GiB'
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"


def expected_sweeps(params: Params, n_samples: int, budget: Budget) -> int:
    """Passes over the labels, roughly: intersections, start, rounds of diffusion, a few of adjustion, the result.

    The last round of diffusion lets in all, and takes one.
    """
    k, root = params.n_clusters, isqrt(n_samples) + 1
    rounds = (
        1
        if params.schedule == "direct"
        else k
        if params.schedule == "fixed"
        else ceil(k * log(max(2.0, n_samples / (k * root)))) + k
    )
    a_round = 1 if budget.foretell else 2 if budget.keep_state else 3
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
