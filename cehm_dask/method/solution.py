"""What the stages found, and what a careful user should know of it."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.choice import Choice, tiny_clusters
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.method.problem import Problem
from cehm_dask.method.split import found_in
from cehm_dask.method.trail import Trail


@dataclass(frozen=True, eq=False)
class Solution:
    """The kept start of one value of k."""

    problem: Problem
    agreement: float
    restarts: int
    """Starts that were run for this k."""
    margin: float | None = None
    """Its mean; None where one problem was run: the result tells."""
    stability: float | None = None
    """Mean NMI between the candidates, or between the starts; None where there was one."""

    @property
    def n_clusters(self) -> int:
        return self.problem.params.n_clusters

    @property
    def n_clusters_found(self) -> int:
        return found_in(self.problem.counts)

    @property
    def candidates(self) -> list[dict[str, Any]]:
        """What competed for the start, one record each; empty where nothing did."""
        return [] if self.problem.competition is None else list(self.problem.competition["candidates"])

    @property
    def reason(self) -> str:
        """Why that candidate was kept."""
        return "" if self.problem.competition is None else str(self.problem.competition["reason"])


@dataclass(frozen=True, eq=False)
class Consensus:
    """What the stages found: a solution a value of k, and the one chosen of them."""

    solutions: tuple[Solution, ...]
    chosen: Solution
    choice: Choice
    """Why that one."""
    hyperedges: Hyperedges
    member_agreement: NDArray[np.float64]
    trail: Trail | None
    """The way of some samples, where the result goes into a store."""
    seconds: dict[str, float] = field(default_factory=dict)
    """By stage."""
    correlation: float = 0.0
    """Of the members' votes inside the chosen partition: what confidences depend on."""
    auto: bool = False
    """Whether k was chosen before anything was run."""

    @property
    def chosen_of_several(self) -> bool:
        return self.auto or len(self.solutions) > 1


class ConsensusWarning(UserWarning):
    """Something about the members or the consensus that a careful user would want to know."""


def warn_about_members(hyperedges: Hyperedges, names: Sequence[str]) -> None:
    for j, name in enumerate(names):
        edges = hyperedges.of_member(j)
        n_clusters, speaking = edges.stop - edges.start, int(hyperedges.sizes[edges].sum())
        if n_clusters <= 1:
            _warn(f"member {name} has {n_clusters} cluster(s): it adds nothing to the consensus")
        elif n_clusters == speaking:
            _warn(f"member {name} has as many clusters as samples ({speaking}): it adds little to the consensus")


def warn_about_result(result: Consensus) -> None:
    solution = result.chosen
    params = solution.problem.params
    if not result.choice.clear:
        _warn(f"no clear k: {result.choice.reason}")
    tiny = tiny_clusters(solution.problem.counts) if result.chosen_of_several else ""
    if tiny:
        _warn(f"k={params.n_clusters}: {tiny}; look at them, or ask for fewer clusters")
    if not solution.problem.converged:
        _warn(
            f"adjustion still moved samples after max_iter={params.max_iter} rounds; raise max_iter to let it converge"
        )
    if solution.n_clusters_found < params.n_clusters:
        remedy = "the default variant, 'auto', finds as many as are asked for"
        if params.repairs:
            remedy = "there are no more samples; ask for fewer clusters"
        _warn(
            f"{solution.n_clusters_found} of n_clusters={params.n_clusters} clusters hold samples "
            f"(variant={params.variant!r}): {remedy}"
        )


def _warn(message: str) -> None:
    warnings.warn(message, ConsensusWarning, stacklevel=2)
