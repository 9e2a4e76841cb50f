"""The stages in order: intersections → medoids → start → diffusion → adjustion, for all problems side by side.

Takes checked labels and parameters, gives the chosen partition with its margins and history. Problems (one a
restart) advance in step: each sweep serves all that are still running, so the labels are read as often as
the slowest one needs.
"""

import warnings
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.adjustion import adjustion
from cehm_dask.diffusion import diffusion
from cehm_dask.engine import Engine
from cehm_dask.evaluation import agreement, member_agreement
from cehm_dask.intersections import Hyperedges, intersections
from cehm_dask.medoids import medoids
from cehm_dask.plan import Params, check_fit
from cehm_dask.rounds import Answer, Order, Problem, advance, combine, harvest
from cehm_dask.start import start


@dataclass(frozen=True)
class Event:
    """One finished round of one problem, for progress displays and logs."""

    problem: int
    stage: str
    round: int
    assigned: int
    moved: int
    n_samples: int
    loss: float | None
    sweeps: int


Record = Callable[[int, str, int, NDArray[np.int16]], None]
Progress = Callable[[Event], None]


@dataclass(frozen=True, eq=False)
class Consensus:
    """The chosen partition and how it came about."""

    labels: NDArray[np.int16]
    margin: NDArray[np.float64]
    medoids: NDArray[np.intp]
    counts: NDArray[np.int64]
    loss_history: NDArray[np.float64]
    growth: tuple[int, ...]
    n_rounds: int
    agreement: float
    member_agreement: NDArray[np.float64]
    hyperedges: Hyperedges
    converged: bool
    n_clusters_found: int
    sweeps: int


class ConsensusWarning(UserWarning):
    """Something about the members or the consensus that a careful user would want to know."""


def consensus(
    engine: Engine,
    params: Params,
    rng: np.random.Generator,
    *,
    record: Record | None = None,
    progress: Progress | None = None,
) -> Consensus:
    """Run all stages on the engine's labels and return the partition that ``params.choose`` prefers."""
    labels = engine.labels
    check_fit(params, labels.n_samples)
    hyperedges = intersections(engine)
    check_fit(params, hyperedges.n_speaking, hyperedges.n_hyperedges)
    _warn_about_members(hyperedges, labels.names)
    if params.init is not None:
        sets = [np.sort(np.asarray(params.init, np.intp))]
    else:
        assert params.similarity is not None
        sets = medoids(hyperedges, params.similarity, params.n_clusters, params.restarts, rng)
    problems = [Problem(i, params, hyperedges, chosen) for i, chosen in enumerate(sets)]
    solve(engine, problems, record, progress)
    best = _choose(problems, params.choose, hyperedges)
    found, margin = engine.sweep("harvest", harvest, _join, best.last_order())
    between = member_agreement(hyperedges)
    result = Consensus(
        labels=found,
        margin=margin / hyperedges.n_members,
        medoids=best.medoids,
        counts=best.counts,
        loss_history=np.asarray(best.losses),
        growth=tuple(best.growth),
        n_rounds=best.round,
        agreement=agreement(hyperedges, best.counts),
        member_agreement=between,
        hyperedges=hyperedges,
        converged=best.converged,
        n_clusters_found=int(np.count_nonzero(best.counts.sum(axis=0))),
        sweeps=engine.sweeps,
    )
    _warn_about_result(result, params)
    return result


def solve(
    engine: Engine, problems: Sequence[Problem], record: Record | None = None, progress: Progress | None = None
) -> None:
    """Take all problems through their stages in step, one sweep for all that are still running."""
    running = {problem.number: (problem, _stages(problem)) for problem in problems}
    orders = {number: next(steps) for number, (_, steps) in running.items()}
    while orders:
        batch = list(orders.values())
        name = "+".join(sorted({running[order.problem][0].stage for order in batch}))
        answers = engine.sweep(name, advance, combine, batch)
        for order, answer in zip(batch, answers, strict=True):
            problem, steps = running[order.problem]
            before, stage = problem.round, problem.stage
            try:
                orders[order.problem] = steps.send(answer)
            except StopIteration:
                del orders[order.problem]
            if problem.round > before:
                _report(engine, problem, stage, record, progress)


def _stages(problem: Problem) -> Generator[Order, Answer, None]:
    yield from start(problem)
    yield from diffusion(problem)
    yield from adjustion(problem)


def _report(engine: Engine, problem: Problem, stage: str, record: Record | None, progress: Progress | None) -> None:
    if record is not None:
        assignment, _ = engine.sweep("record", harvest, _join, problem.last_order())
        record(problem.number, stage, problem.round, assignment)
    if progress is not None:
        loss = problem.losses[-1] if stage == "adjustion" else None
        n = problem.hyperedges.n_speaking
        progress(Event(problem.number, stage, problem.round, problem.assigned, problem.moved, n, loss, engine.sweeps))


def _join(parts: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> tuple[NDArray[Any], NDArray[Any]]:
    return np.concatenate([labels for labels, _ in parts]), np.concatenate([margin for _, margin in parts])


def _choose(problems: Sequence[Problem], choose: str, hyperedges: Hyperedges) -> Problem:
    """The preferred problem; the earlier start on a tie."""
    if len(problems) == 1:
        return problems[0]
    if choose == "loss":
        return min(problems, key=lambda problem: problem.losses[-1])
    return max(problems, key=lambda problem: agreement(hyperedges, problem.counts))


def _warn_about_members(hyperedges: Hyperedges, names: Sequence[str]) -> None:
    for j, name in enumerate(names):
        edges = hyperedges.of_member(j)
        n_clusters, speaking = edges.stop - edges.start, int(hyperedges.sizes[edges].sum())
        if n_clusters <= 1:
            _warn(f"member {name} has {n_clusters} cluster(s): it adds nothing to the consensus")
        elif n_clusters == speaking:
            _warn(f"member {name} has as many clusters as samples ({speaking}): it adds little to the consensus")


def _warn_about_result(result: Consensus, params: Params) -> None:
    if not result.converged:
        _warn(f"adjustion still moved samples after max_iter={params.max_iter} rounds; raise max_iter to let it end")
    if result.n_clusters_found < params.n_clusters:
        _warn(
            f"{result.n_clusters_found} of n_clusters={params.n_clusters} clusters hold samples; "
            "the others lost all of theirs: ask for fewer clusters or use more restarts"
        )
    members = len(result.member_agreement)
    if members > 1:
        between = (result.member_agreement.sum() - members) / (members * (members - 1))
        if result.agreement < between:
            _warn(
                f"the consensus agrees with the members less (mean NMI {result.agreement:.3f}) than they agree with "
                f"one another ({between:.3f}): a single member may serve better, or another n_clusters"
            )


def _warn(message: str) -> None:
    warnings.warn(message, ConsensusWarning, stacklevel=2)
