"""The stages in order: intersections → medoids → start → diffusion → adjustion, for all problems side by side.

Takes an engine over checked labels and parameters, gives the chosen partition with its margins and history.
Problems (one per restart and value of k) advance in step: each sweep serves all that are still running, so the
labels are read as often as the slowest one needs. With an output store, every round ends in a checkpoint.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import ConsensusStore
from cehm_dask.data.labels import Labels
from cehm_dask.data.shape import compared_members
from cehm_dask.data.sources import Codes
from cehm_dask.engine.budget import Budget
from cehm_dask.engine.sweep import Engine
from cehm_dask.method.adjustion import adjustion
from cehm_dask.method.agreement import agreement, member_agreement
from cehm_dask.method.checkpoint import check_checkpoint
from cehm_dask.method.choice import choose, recommend
from cehm_dask.method.competing import Rows
from cehm_dask.method.confidence import correlation
from cehm_dask.method.diffusion import diffusion
from cehm_dask.method.first_sweep import first_sweep
from cehm_dask.method.intersections import Hyperedges, hyperedges_of
from cehm_dask.method.medoids import medoids
from cehm_dask.method.orders import Answer, Order, Pilot, combine, reads_labels
from cehm_dask.method.params import Params, check_fit
from cehm_dask.method.portfolio import compete, representatives
from cehm_dask.method.problem import Problem
from cehm_dask.method.result import add_last_rows, last_rows
from cehm_dask.method.rounds import advance
from cehm_dask.method.sampling import Sample
from cehm_dask.method.solution import Consensus, Solution, warn_about_members, warn_about_result
from cehm_dask.method.split import found_in
from cehm_dask.method.start import start
from cehm_dask.method.survey import Survey, survey
from cehm_dask.method.trail import Trail
from cehm_dask.method.warm import Warm
from cehm_dask.method.weighting import per_hyperedge, require_as_many
from cehm_dask.progress import NO_PROGRESS, Event, Progress

Record = Callable[[Problem, str, Engine], None]


def consensus(
    engine: Engine,
    problems_of: Sequence[Params],
    seed: int,
    *,
    auto: bool = False,
    warm: Warm | None = None,
    store: ConsensusStore | None = None,
    record: Record | None = None,
    progress: Progress = NO_PROGRESS,
) -> Consensus:
    """Run all stages on the engine's labels.

    Parameters
    ----------
    engine : Engine
    problems_of : sequence of Params
        One for every value of k, alike in everything else.
    seed : int
        Of the medoid starts.
    auto : bool
        Choose a value of k from the intersections, and run that one only.
    warm : Warm, optional
        A finished consensus to start from; ``problems_of`` are then its parameters.
    store : ConsensusStore, optional
        Where checkpoints go, and come from if a run with the same settings was interrupted.
    record : callable (problem, stage, engine), optional
        Called after every round of every problem.
    progress : Progress
        Gets every finished round.
    """
    labels, watch = engine.labels, _Watch()
    recommended, all_problems = None, problems_of
    problems_of = problems_of[:1] if auto else problems_of  # before the choice, only the smallest k must be possible
    # With no label missing each member has a hyperedge at least; counting them costs as much as a small sweep.
    uncertain = labels.silent or max(params.n_clusters for params in problems_of) > labels.n_members
    n_hyperedges = labels.count_hyperedges() if uncertain else None
    for params in problems_of:
        check_fit(params, 0 if n_hyperedges == 0 else labels.n_samples, n_hyperedges)
    _check_weights(labels, problems_of[0], n_hyperedges)
    most = max(params.n_clusters for params in all_problems)
    compared = compared_members(labels.widths, labels.silent, most, seed)
    tally, trail, competing, sample = first_sweep(engine, problems_of, compared, seed, store, warm)
    n_silent = tally.n_silent
    hyperedges = hyperedges_of(labels, tally.table, n_silent, members=compared, sizes=tally.sizes)
    if isinstance(weights := problems_of[0].weights, tuple):
        hyperedges = hyperedges.weighted(per_hyperedge(weights, hyperedges.members, labels.n_members))
    del tally  # its table is as large as any that starts are found in
    if auto:
        recommended = recommend(hyperedges.judged, [params.n_clusters for params in all_problems])
        problems_of = [params for params in all_problems if params.n_clusters == recommended.n_clusters]
    for span in engine.spans:
        span.silent_rows = n_silent > 0
    for params in problems_of:
        check_fit(params, hyperedges.n_speaking, hyperedges.n_hyperedges)
    warn_about_members(hyperedges, labels.names)
    watch.lap("intersections")
    if sample is not None:
        problems = _from_sample(sample, hyperedges, problems_of, seed, watch)
        if store is not None:
            _save(store, problems)
    else:
        problems = _problems(engine, hyperedges, competing, problems_of, seed, store, warm)
    watch.lap("starts")
    _solve(engine, problems, watch, store, trail, record, progress)
    found = None
    if len(problems) > 1:
        found = survey(engine, problems)
        watch.lap("survey")
    for problem in problems:
        if problem.params.repairs and found_in(problem.counts) < problem.params.n_clusters:
            _single_out(engine, problem)
    solutions = tuple(_best(problems, params, found) for params in problems_of)
    choice = recommended or choose(hyperedges.judged, [solution.n_clusters for solution in solutions])
    chosen = next(solution for solution in solutions if solution.n_clusters == choice.n_clusters)
    result = Consensus(
        solutions,
        chosen,
        choice,
        hyperedges,
        member_agreement(hyperedges),
        trail,
        watch.seconds,
        _correlation(hyperedges, chosen.problem),
        auto,
    )
    warn_about_result(result)
    return result


def _check_weights(labels: Labels, params: Params, n_hyperedges: int | None) -> None:
    """Refuse weights for another number of members and base clusters, before any sweep if they can be counted."""
    if isinstance(params.weights, tuple) and len(params.weights) != labels.n_members:
        known = labels.count_hyperedges() if n_hyperedges is None else n_hyperedges
        if known is not None:
            require_as_many(params.weights, labels.n_members, known)


def _correlation(hyperedges: Hyperedges, problem: Problem) -> float:
    """Of the votes of the members that are compared."""
    edges = hyperedges.judged
    return correlation(edges.intersections, hyperedges.of_judged(problem.counts), edges.sizes, edges.members)


def _single_out(engine: Engine, problem: Problem) -> None:
    """Fill the clusters that are left empty because samples have the same labels: each takes one sample.

    No member tells such samples apart, so which one it is means nothing: the last of the largest cluster.
    """
    k = problem.params.n_clusters
    missing = k - found_in(problem.counts)
    sizes, last = engine.sweep("single out", last_rows, add_last_rows, problem.last_order(), missing)
    for empty in np.flatnonzero(sizes == 0).tolist():
        largest = int(np.argmax(sizes))
        if sizes[largest] < 2:
            return
        row, slots = last[largest].pop()
        problem.single_out(row, slots, largest, empty)
        sizes[largest] -= 1
        sizes[empty] += 1


class _Watch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begin = perf_counter()

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._begin
        self._begin = now


def _from_sample(
    sample: Sample, hyperedges: Hyperedges, problems_of: Sequence[Params], seed: int, watch: "_Watch"
) -> list[Problem]:
    """All stages on the sample; what they came to is where all rows start from."""
    sample.hyperedges = sample.hyperedges.weighted_by_slots(hyperedges.weight_of_slots())
    with sample.engine as engine:
        for params in problems_of:
            check_fit(params, sample.hyperedges.n_speaking, sample.hyperedges.n_hyperedges)
        problems = _problems(engine, sample.hyperedges, None, problems_of, seed, None)
        _solve(engine, problems, watch, None, None, None, NO_PROGRESS)
    return [sample.take_over(problem, hyperedges) for problem in problems]


def _problems(
    engine: Engine,
    hyperedges: Hyperedges,
    competing: Codes | None,
    problems_of: Sequence[Params],
    seed: int,
    store: ConsensusStore | None,
    warm: Warm | None = None,
) -> list[Problem]:
    saved = None if store is None else store.load_checkpoint()
    if saved is not None:
        check_checkpoint(*saved, hyperedges, [params.n_clusters for params in problems_of])
        return _restore(hyperedges, problems_of, *saved)
    if warm is not None:
        problems = [warm.problem(problems_of[0], hyperedges)]
        if store is not None:
            _save(store, problems)
        return problems
    rows = None
    if competing is not None:
        rows = Rows(engine.labels, competing, hyperedges.compared_members, hyperedges.weight_of_slots())
    if rows is not None and len(rows.codes):
        problems = [_won(number, hyperedges, rows, params, seed) for number, params in enumerate(problems_of)]
        if store is not None:
            _save(store, problems)
        return problems
    if rows is not None:  # no row of the sample has a label: a single chain from medoids, which need no rows
        problems_of = [replace(params, restarts=1) for params in problems_of]
    problems = []
    for params in problems_of:
        if params.init is not None:
            sets = [np.sort(np.asarray(params.init, np.intp))]
        else:
            # A seed of its own for every k: its starts are the same whatever other values run beside it.
            rng = np.random.default_rng([seed, params.n_clusters])
            sets = medoids(hyperedges, str(params.similarity), params.n_clusters, params.restarts, params.tries, rng)
        problems += [Problem(len(problems) + i, params, hyperedges, chosen) for i, chosen in enumerate(sets)]
    return problems


def _won(number: int, hyperedges: Hyperedges, rows: Rows, params: Params, seed: int) -> Problem:
    """The problem of one k, from the candidate that won."""
    found = compete(rows, params, seed)
    counts = found.counts[hyperedges.slots]
    competition = {
        "candidates": [candidate.facts() for candidate in found.candidates],
        "reason": found.reason,
        "stability": found.stability,
        "rows": found.rows,
    }
    own = replace(params, belonging=found.belonging)
    return Problem(number, own, hyperedges, representatives(counts, hyperedges), counts, competition)


def _restore(
    hyperedges: Hyperedges, problems_of: Sequence[Params], arrays: dict[str, NDArray[Any]], facts: dict[str, Any]
) -> list[Problem]:
    params_of = {params.n_clusters: params for params in problems_of}
    problems = []
    for number, (k, problem_facts) in enumerate(facts["problems"]):
        own = {name.split("/")[1]: array for name, array in arrays.items() if name.startswith(f"{number}/")}
        params = replace(params_of[k], belonging=problem_facts["belonging"])
        start_counts = own["start"].astype(np.int64) if "start" in own else None
        problem = Problem(number, params, hyperedges, own["medoids"], start_counts, problem_facts["competition"])
        if problem_facts["round"]:
            problem.restore(own, problem_facts)
        problems.append(problem)
    return problems


def _save(store: ConsensusStore, problems: Sequence[Problem]) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    facts = []
    for problem in problems:
        own, own_facts = problem.save()
        arrays |= {f"{problem.number}/{name}": array for name, array in own.items()}
        facts.append((problem.params.n_clusters, own_facts))
    store.save_checkpoint(arrays, {"problems": facts})


def _solve(
    engine: Engine,
    problems: Sequence[Problem],
    watch: _Watch,
    store: ConsensusStore | None,
    trail: Trail | None,
    record: Record | None,
    progress: Progress,
) -> None:
    """Take all problems through their stages in step, one sweep for all that are still running."""
    steps = {problem.number: _stages(problem, engine.budget) for problem in problems}
    orders = {number: order for number, own in steps.items() if (order := next(own, None)) is not None}
    while orders:
        batch = _next_batch(engine, list(orders.values()), problems)
        stages = {order.problem: problems[order.problem].stage for order in batch}
        name = "+".join(sorted(set(stages.values())))
        answers = engine.sweep(
            name, advance, combine, batch, reads=_reads(engine, batch[0], problems[batch[0].problem])
        )
        finished = []
        for order, answer in zip(batch, answers, strict=True):
            problem = problems[order.problem]
            before = problem.round
            following = _send(steps[order.problem], answer)
            if following is None:
                del orders[order.problem]
            else:
                orders[order.problem] = following
            if problem.round > before:
                finished.append(problem)
        watch.lap(name)
        if finished and trail is not None:
            trail.follow(finished)
            watch.lap("trail")
        if finished and store is not None:
            _save(store, problems)
            watch.lap("checkpoints")
        for problem in finished:
            stage = stages[problem.number]
            if record is not None:
                record(problem, stage, engine)
            progress.round_done(_event(engine, problem, stage))


def _stages(problem: Problem, budget: Budget) -> Generator[Order, Answer, None]:
    if problem.round == 0:
        yield from start(problem)
    yield from diffusion(problem, budget)
    yield from adjustion(problem, pass_over=budget.pass_over)


def _send(steps: Generator[Order, Answer, None], answer: Answer) -> Order | None:
    try:
        return steps.send(answer)
    except StopIteration:
        return None


def _next_batch(engine: Engine, orders: Sequence[Order], problems: Sequence[Problem]) -> list[Order]:
    """The orders of the next sweep: those that only look at kept state go first, so that the others stay in step.

    Otherwise one problem would read labels while another looks, and together they would read more often than the
    slowest of them alone.
    """
    looks = [order for order in orders if not _reads(engine, order, problems[order.problem])]
    # Orders of one kind share a look.
    return [order for order in looks if type(order) is type(looks[0])] if looks else list(orders)


def _reads(engine: Engine, order: Order, problem: Problem) -> bool:
    """Whether an order needs the labels, or only what the workers keep."""
    if isinstance(order, Pilot) or problem.foresaw(order):
        return False
    return not engine.budget.keep_state or reads_labels(order)


def _event(engine: Engine, problem: Problem, stage: str) -> Event:
    loss = problem.losses[-1] if stage == "adjustion" else None
    n = problem.hyperedges.n_speaking
    return Event(problem.number, stage, problem.round, problem.assigned, problem.moved, n, loss, engine.sweeps)


def _best(problems: Sequence[Problem], params: Params, found: Survey | None) -> Solution:
    """The preferred start of one value of k; the earlier one on a tie."""
    starts = [problem for problem in problems if problem.params.n_clusters == params.n_clusters]
    scores = [agreement(problem.hyperedges, problem.counts) for problem in starts]
    best = int(np.argmax(scores))
    if params.choose == "loss":
        # The fraction tells losses apart that are the same number in float64, as they may be from n = 10⁸ on.
        best = min(range(len(starts)), key=lambda i: (starts[i].losses[-1], starts[i].loss_fractions[-1]))
    margin = None if found is None else found.margins[starts[best].number]
    stability = None
    if (competition := starts[best].competition) is not None:
        stability = competition["stability"]
    elif params.restarts > 1:
        # One start where several were asked for: every seed led to the same medoids.
        stability = 1.0 if found is None or len(starts) == 1 else found.stability[params.n_clusters]
    return Solution(starts[best], scores[best], len(starts), margin, stability)
