"""What a run will cost, before anything runs: steps, sweeps, bytes, memory by named term, seconds.

Beside the run, for ``cehm plan``. Sweeps, bytes and memory are the arithmetic that the steps themselves are held to;
what does not fit is refused here with the same words. Seconds are an estimate: the kernels and one fit are timed
for a moment on this machine, on made-up labels and the first rows of the features, and scaled up; the threads of a
cluster's workers are taken to be as fast as those of this machine.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from cehm_dask.clusters.config import Address, Gateway, Threads, read_config
from cehm_dask.clusters.connect import WORKER_BYTES
from cehm_dask.data.encoding import survey
from cehm_dask.data.features import BLOCK_ROWS, Features
from cehm_dask.data.ingest import open_stream
from cehm_dask.data.labels import as_labels
from cehm_dask.data.scaling import Scaling
from cehm_dask.data.shape import Shape
from cehm_dask.data.synth import Synth
from cehm_dask.engine.budget import generation_terms, threads_for_generation
from cehm_dask.engine.sweep import Engine
from cehm_dask.job import RESULT_CHUNK_ROWS, Where, budget_of
from cehm_dask.machine import SHARE, Machine, parse_bytes, require_memory, this_machine
from cehm_dask.members.fit import Labeller, Linear, MemberPlan, fit_member
from cehm_dask.members.generate import FULL_FIT_ROWS
from cehm_dask.method.consensus import consensus
from cehm_dask.method.params import COMPETING_BYTES, COMPETING_ROWS, Params, expected_sweeps
from cehm_dask.method.solution import ConsensusWarning
from cehm_dask.pipeline.expectations import check_expected
from cehm_dask.pipeline.inputs import (
    budget_for,
    is_ensemble,
    left_out,
    left_out_beside,
    members_of,
    open_features,
    require_import,
    shape_of,
)
from cehm_dask.pipeline.recipe_model import Recipe
from cehm_dask.profiles.sweep import require_profiles
from cehm_dask.report.findings import page_terms
from cehm_dask.report.neighbours import EMBEDDING_SECONDS, MOST_EMBEDDED
from cehm_dask.report.picture import feature_terms, require_picture
from cehm_dask.results import export
from cehm_dask.results.describing import beside
from cehm_dask.results.matching import MATCHING
from cehm_dask.results.scoring import score_terms
from cehm_dask.results.shared_rows import shared_terms, usual_bytes
from cehm_dask.wording import speaking

TRIAL_ROWS = 1 << 19
"""Enough that all threads have a share of them."""
TRIAL_FIT_ROWS = 1 << 14
READING = 1.1
"""A sweep that reads its labels from a local store that the system has cached, in sweeps over labels in memory."""
PROFILE_SECONDS, PROFILE_ROW_SECONDS = 3e-8, 1e-7
"""Of the profiles, for a value and for a row: 2²⁰ × 32 values on two threads take 0.9 s."""
ID_BYTES, ID_SECONDS = 16, 2e-7
"""Of the id of a row in a table, and of one pass over it: 2 × 400,000 texts took 0.35 s in two passes."""
FEATURE_PASSES = 3
"""Over the features: sample and statistics, labels, and the picture of the report."""


@dataclass(frozen=True)
class StepEstimate:
    """What is expected of one step."""

    step: str
    what: str
    sweeps: int = 0
    read: int = 0
    written: int = 0
    seconds: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a process by what they are for."""
    allowed: int = 0
    """Bytes that process may take."""


@dataclass(frozen=True)
class Estimate:
    """What is expected of a run."""

    steps: Sequence[StepEstimate]
    machine: Machine
    """Where the work will be done."""
    calibration: float
    """Seconds that were spent to time this machine."""


@speaking("recipe")
def estimate(recipe: Recipe) -> Estimate:
    """Estimate the cost of a run; raises BudgetError for what does not fit the memory allowed."""
    check_expected(recipe)
    begin = perf_counter()
    machine = _workers(recipe)
    steps: list[StepEstimate] = []
    features = None
    if recipe.labels is not None:
        step, shape, widths = _brought(recipe, recipe.labels.path)
        steps.append(step)
    else:
        features = open_features(recipe)
        plans = members_of(recipe, features.n_samples)
        widths = [plan.k + 1 for plan in plans]
        # Features that only this process holds stay with its threads.
        maker = machine if features.reopen is not None else this_machine(recipe.memory)
        steps.append(_generation(recipe, features, plans, maker))
        shape = shape_of(features.n_samples, widths)
    steps.append(_consensus(recipe, shape, machine))
    a_sweep = steps[-1].seconds / max(1, steps[-1].sweeps)
    if recipe.follow is not None:
        steps.append(_matching(recipe, shape))
    steps.append(_profiles(recipe, shape, features, machine))
    steps.append(_scores(recipe, shape, widths, machine, a_sweep))
    if recipe.export is not None:
        steps.append(_export(recipe, shape))
    steps.append(_report(recipe, shape, widths, features))
    return Estimate(steps, machine, perf_counter() - begin)


def _workers(recipe: Recipe) -> Machine:
    """Where work will be done: in this process, or by the workers of the recipe's cluster as its file describes them.

    A scheduler that runs already, or a gateway, sizes its workers itself: each is taken to be like this process.
    """
    here = this_machine(recipe.memory)
    config = None if recipe.cluster is None else read_config(recipe.cluster)
    match config:
        case None | Threads():
            return here
        case Address() | Gateway():
            return replace(here, workers=config.wanted)
    limit = int(SHARE * parse_bytes(config.memory))
    return Machine(config.wanted, config.threads, limit if recipe.memory is None else here.allowed, WORKER_BYTES)


def _generation(recipe: Recipe, features: Features, plans: Sequence[MemberPlan], machine: Machine) -> StepEstimate:
    n, d, wanted = features.n_samples, features.n_features, recipe.ensemble
    shape = shape_of(n, [plan.k + 1 for plan in plans])
    rows = {
        "fit_rows": min(n, wanted.fit_rows or FULL_FIT_ROWS),
        "block_rows": min(n, BLOCK_ROWS),
        "shard_rows": min(n, shape.align_rows),
    }
    given = {"allowed": machine.allowed, "taken": machine.taken, "threads": machine.threads}
    threads = threads_for_generation(d, len(plans), **rows, **given)
    begin = perf_counter()
    block = np.nan_to_num(np.asarray(features.read(0, rows["block_rows"]), np.float64))
    reading = (perf_counter() - begin) / len(block)
    fitting = _fit_seconds(plans, block.astype(np.float32), rows["fit_rows"])
    labelling = _label_seconds(plans, block)
    hands = threads * (machine.workers or 1)
    seconds = n * (FEATURE_PASSES * reading / (machine.workers or 1) + labelling / hands) + fitting / hands
    size = n * d * 8
    more = ", then k-means over all rows" if wanted.full_lloyd else ""
    return StepEstimate(
        "ensemble",
        f"{len(plans)} members from {n:,} × {d} features, fitted on {rows['fit_rows']:,} rows{more}",
        FEATURE_PASSES,
        FEATURE_PASSES * size,
        n * shape.row_bytes,
        seconds,
        generation_terms(d, len(plans), **rows, taken=machine.taken, threads=threads),
        machine.allowed,
    )


def _fit_seconds(plans: Sequence[MemberPlan], rows: Any, fit_rows: int) -> float:
    """Of all members: one of each algorithm is fitted to a few rows, and time taken to grow with rows and k."""
    from threadpoolctl import threadpool_limits

    seconds = 0.0
    for base in dict.fromkeys(plan.base for plan in plans):
        alike = sorted((plan for plan in plans if plan.base == base), key=lambda plan: plan.k)
        one = replace(alike[len(alike) // 2], subsample=None)  # a share of a few rows may be too few for a trial
        few = rows[: max(TRIAL_FIT_ROWS, one.k)]
        if len(few) < one.k:
            continue
        with threadpool_limits(1):  # as members are fitted
            fit_member(replace(one, k=2), few[:64])  # imported before the clock runs
            _, took = fit_member(one, few)
        share = alike[0].subsample or 1.0
        seconds += took * share * fit_rows / len(few) * sum(plan.k for plan in alike) / one.k
    return seconds


def _label_seconds(plans: Sequence[MemberPlan], block: Any) -> float:
    """A row, for all members, by the kernel that finds nearest centres."""
    d = block.shape[1]
    rng = np.random.default_rng(0)
    members = tuple(
        Linear(rng.random((plan.k, d), np.float32), rng.random(plan.k, np.float32), np.arange(plan.k)) for plan in plans
    )
    scaling = Scaling(np.arange(d), np.zeros(d), np.ones(d), None)
    labeller = Labeller(scaling, members, tuple(plan.k for plan in plans))
    labeller.label(block[:64])  # compiled, or loaded, before the clock runs
    rows = block[:8192]
    begin = perf_counter()
    labeller.label(rows)
    return (perf_counter() - begin) / len(rows)


def _brought(recipe: Recipe, path: str) -> tuple[StepEstimate, Shape, Sequence[int]]:
    """The user's base labels: a store knows its shape; of other forms the labels are counted."""
    if is_ensemble(path):
        labels = as_labels(path)
        shape = labels.shape
        what = f"{shape.n_samples:,} rows of your own, used in place"
        return StepEstimate("ensemble", what), shape, labels.widths
    machine = this_machine(recipe.memory)
    terms = require_import(path, left_out(recipe), machine)
    begin = perf_counter()
    found = survey(open_stream(path, left_out(recipe)))
    n_samples, values = found.n_samples, found.values
    shape = shape_of(n_samples, found.widths)
    size = n_samples * shape.row_bytes
    what = f"{n_samples:,} rows of {len(values)} members are read and encoded"
    seconds = 3 * (perf_counter() - begin)
    return StepEstimate("ensemble", what, 2, 2 * size, size, seconds, terms, machine.allowed), shape, found.widths


def _consensus(recipe: Recipe, shape: Shape, machine: Machine) -> StepEstimate:
    wanted = recipe.consensus
    problems = len(wanted.problems(shape.n_samples))
    budget = budget_for(recipe, shape, machine)
    params = [wanted.params(k) for k in wanted.ks(shape.n_samples)]
    sweeps = max(expected_sweeps(one, shape.n_samples, budget) for one in params)
    size = shape.n_samples * shape.row_bytes
    read = size * (1 if budget.keep_labels else sweeps)
    once, a_row = _trial_seconds(shape, problems, params[-1], sweeps, in_memory=budget.pass_over)
    a_row *= this_machine(None).threads / (machine.threads * (machine.workers or 1))
    kept = "kept in memory" if budget.keep_labels else "read in each sweep"
    return StepEstimate(
        "consensus",
        f"{shape.n_samples:,} rows of {shape.row_bytes} bytes, {_at_work(params[0], shape, problems)}, labels {kept}",
        sweeps,
        read,
        6 * shape.n_samples,
        once + shape.n_samples * a_row * (1.0 if budget.keep_labels else READING),
        budget.terms,
        machine.allowed,
    )


def _matching(recipe: Recipe, shape: Shape) -> StepEstimate:
    """As if the run that is followed had as many rows and clusters, and ids of a usual length."""
    if recipe.source.id is None:
        return StepEstimate("match", "matching.json, by the means of the features")
    n, k, machine = shape.n_samples, max(recipe.consensus.ks(shape.n_samples)), this_machine(recipe.memory)
    terms, passes = shared_terms(k, k, machine, 2 * n * usual_bytes())
    require_memory("rows that two runs share", terms, machine.allowed, "")
    seconds = 2 * n * (1 + passes) * ID_SECONDS
    read = 2 * n * (1 + passes) * ID_BYTES
    return StepEstimate("match", MATCHING, 1 + passes, read, 0, seconds, terms, machine.allowed)


def _profiles(recipe: Recipe, shape: Shape, features: Features | None, machine: Machine) -> StepEstimate:
    """Of the features, or of the table that is named; without either, only labels and margins are read."""
    n, categories = shape.n_samples, 0
    if recipe.profile is not None:
        features, texts = beside(recipe.profile, n, left_out_beside(recipe))
        categories = len(texts)
    d = 0 if features is None else features.n_features
    machine = machine if features is not None and features.reopen is not None else this_machine(recipe.memory)
    plan = require_profiles(n, d, categories, max(recipe.consensus.ks(n)), machine)
    sweeps = max(1, -(-d // plan.columns))
    hands = plan.threads * (machine.workers or 1)
    seconds = n * (d * PROFILE_SECONDS + PROFILE_ROW_SECONDS) / hands
    return StepEstimate(
        "profile", "profiles.json", sweeps, n * (8 * d * sweeps + 10), 0, seconds, plan.terms, machine.allowed
    )


def _scores(recipe: Recipe, shape: Shape, widths: Sequence[int], machine: Machine, a_sweep: float) -> StepEstimate:
    if recipe.truth is None:
        return StepEstimate("evaluate", "scores.json, from what the consensus recorded")
    k = max(recipe.consensus.ks(shape.n_samples))
    beside = [k + 1, *widths]  # the consensus is counted like a member
    itemsize = np.min_scalar_type(max(beside)).itemsize
    both = replace(shape, row_bytes=len(beside) * itemsize, n_slots=sum(beside))
    terms, _ = score_terms(both, _chunk_rows(shape), k, machine)
    require_memory("scores", terms, machine.allowed, "")
    read = shape.n_samples * (shape.row_bytes + 6)
    return StepEstimate("evaluate", "scores.json", 1, read, 0, a_sweep, terms, machine.allowed)


def _export(recipe: Recipe, shape: Shape) -> StepEstimate:
    machine, name = this_machine(recipe.memory), f"labels.{recipe.export}"
    terms = export.terms(shape.n_samples, f".{recipe.export}", machine)
    require_memory(name, terms, machine.allowed, "")
    size = shape.n_samples * (14 if recipe.export == "parquet" else 24)
    return StepEstimate("export", name, 1, 6 * shape.n_samples, size, size / 50e6, terms, machine.allowed)


def _report(recipe: Recipe, shape: Shape, widths: Sequence[int], features: Features | None) -> StepEstimate:
    """The page and, before it, a pass over the features for the picture: whichever takes more is shown."""
    n, machine = shape.n_samples, this_machine(recipe.memory)
    n_hyperedges = sum(widths) - len(widths)
    terms = page_terms(n, len(widths), n_hyperedges, max(recipe.consensus.ks(n)), _chunk_rows(shape), machine)
    require_memory("the report", terms, machine.allowed, "")
    if features is not None:
        require_picture(features, machine)
        picture = feature_terms(n, features.n_features, machine)
        terms = max(terms, picture, key=lambda own: sum(own.values()))
    seconds = 2 + n / 50e6 + EMBEDDING_SECONDS * min(1.0, n / MOST_EMBEDDED)
    return StepEstimate("report", "report.html", 1, 6 * n, 1 << 20, seconds, terms, machine.allowed)


def _chunk_rows(shape: Shape) -> int:
    """Rows of a chunk of the result."""
    return shape.align_rows if shape.align_rows > 1 else RESULT_CHUNK_ROWS


def _at_work(params: Params, shape: Shape, problems: int) -> str:
    """What runs: problems over all rows, and candidates before them on a few."""
    running = f"{problems} problem{'s' * (problems > 1)} side by side"
    if not params.portfolio:
        return running
    rows = min(shape.n_samples, COMPETING_ROWS, COMPETING_BYTES // shape.row_bytes)
    return f"candidates compete on {rows:,} of them, then {running if problems > 1 else 'one runs over all'}"


def _trial_seconds(shape: Shape, problems: int, params: Params, sweeps: int, *, in_memory: bool) -> tuple[float, float]:
    """Seconds of a consensus whatever the number of rows, and for every row: from two runs on made-up labels.

    They are of the same width, with as many problems, up to four; as with labels in memory, where most rounds look at
    few rows, or as with labels in a store. Where candidates compete, there are as many, for one number of clusters.
    """
    members = max(1, shape.row_bytes)
    width = max(2, min(200, shape.n_slots // members))
    rows = min(TRIAL_ROWS, max(1000, shape.n_samples))
    k = min(params.n_clusters, width)
    made, _ = Synth(rows, min(members, 100), n_classes=k, k_min=width, k_max=width).arrays()
    starts = 1 if params.portfolio else min(4, problems)
    trial = Params(k, variant=params.variant, restarts=starts, max_iter=5)
    if params.portfolio:  # candidates are taken to the end
        trial = replace(trial, restarts=params.restarts, tries=params.tries, max_iter=params.max_iter)
    few = rows // 8
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConsensusWarning)  # it is about made-up labels
        _trial(made[:few], trial, in_memory=in_memory)  # compiled, or loaded, before the clock runs
        (first, _), (second, passes) = (_trial(made[:n], trial, in_memory=in_memory) for n in (few, rows))
    a_row = max(0.0, second - first) / (rows - few)
    once = max(0.0, first - few * a_row)
    more = problems / starts * members / min(members, 100)
    return once * more, a_row * more * sweeps / passes


def _trial(made: Any, params: Params, *, in_memory: bool) -> tuple[float, int]:
    """Seconds and sweeps of a consensus."""
    labels = as_labels(made)
    budget = replace(budget_of(labels, params, (params.n_clusters,), Where()), stored=not in_memory)
    begin = perf_counter()
    with Engine(labels, budget) as engine:
        consensus(engine, [params], 0)
        return perf_counter() - begin, engine.sweeps
