"""The way of a few samples: where each of them stood after every round of every problem.

Beside the rounds, for a result that goes into a store: reports show with it how the clusters grew. The labels of the
sampled rows come with the intersections, and an assignment is a pure function of (labels, W, cut), so the coordinator
follows the samples by itself: no sweep, no look at what workers keep, whatever they lost.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.bounds import fault_in
from cehm_dask.data.consensus_store import ConsensusStore
from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import Codes
from cehm_dask.method.problem import Problem
from cehm_dask.method.state import Stack, State

MOST_ROWS = 3000
"""Samples followed."""
MOST_PLACES = 400_000
"""Samples times problems, where there are many problems."""
FEWEST_ROWS = 300

SAMPLE = "codes"
"""Name of the labels of the followed rows, beside the assignments."""

Rows = NDArray[np.int64]


def rows_to_follow(n_samples: int, n_problems: int, seed: int) -> Rows:
    """Row numbers drawn at random, ascending; the same whenever a run is resumed."""
    count = min(n_samples, max(FEWEST_ROWS, min(MOST_ROWS, MOST_PLACES // n_problems)))
    drawn = np.random.default_rng([seed, n_samples]).choice(n_samples, count, replace=False, shuffle=False)
    return np.sort(drawn).astype(np.int64)


def sampled(found: Mapping[str, NDArray[Any]], labels: Labels, rows: Rows) -> Codes | None:
    """The labels of the followed rows, as a run before this one kept them; None if they are lost."""
    codes = found.get(SAMPLE)
    if codes is None or len(codes) != len(rows) or fault_in(codes, labels.widths, 0, labels.names):
        return None
    return codes


class Trail:
    """Assignments of the followed rows, kept round by round beside the checkpoint."""

    def __init__(self, labels: Labels, rows: Rows, codes: Codes, n_silent: int, store: ConsensusStore) -> None:
        self.rows = rows
        self._codes = codes
        self._offsets = labels.offsets
        self._spoken = codes.any(axis=1) if n_silent else np.ones(len(rows), bool)
        self._store = store
        kept = store.load_trail().items()
        self._found = {name: own for name, own in kept if own.shape == rows.shape and own.dtype == np.int16}

    def follow(self, problems: Sequence[Problem]) -> None:
        """Note where the samples stand in problems that have finished a round."""
        new = {_name(problem.number, problem.round): self._assignment(problem) for problem in problems}
        self._found |= new
        self._store.save_trail(new)

    def _assignment(self, problem: Problem) -> NDArray[np.int16]:
        order = problem.last_order()
        state = State(len(self.rows))
        Stack([order.weights]).belonging(self._codes, self._offsets, [state], slice(None))
        inside = self._spoken & order.cut.lets_in(state.margin.view(np.uint64), self.rows)
        return np.where(inside, state.best, np.int16(-1))

    def of(self, problem: Problem) -> NDArray[np.int16] | None:
        """Rounds × followed rows of a finished problem, -1 where nothing was assigned; None if a round is missing."""
        names = [_name(problem.number, number) for number in range(1, problem.round + 1)]
        return np.stack([self._found[name] for name in names]) if set(names) <= set(self._found) else None


def stages_of(problem: Problem) -> list[str]:
    """The stage of every round of a finished problem."""
    return ["start", *["diffusion"] * (len(problem.growth) - 1), *["adjustion"] * len(problem.losses)]


def _name(problem: int, number: int) -> str:
    return f"{problem}/{number}"
