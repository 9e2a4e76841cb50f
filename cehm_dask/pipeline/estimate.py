"""What a run will cost, before anything runs: stages, sweeps, bytes, memory by named term, seconds.

Beside the run, for ``cehm plan``. Sweeps, bytes and memory are the arithmetic that the stages themselves are held to;
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
from cehm_dask.data.features import BLOCK_ROWS, Features, Scaling
from cehm_dask.data.ingest import open_stream
from cehm_dask.data.labels import as_labels
from cehm_dask.data.shape import Shape
from cehm_dask.data.synth import Synth
from cehm_dask.engine.budget import generation_terms, threads_for_generation
from cehm_dask.engine.sweep import Engine
from cehm_dask.job import Where, budget_of
from cehm_dask.machine import SHARE, Machine, parse_bytes, this_machine
from cehm_dask.members.fit import Labeller, Linear, MemberPlan, fit_member
from cehm_dask.members.generate import FULL_FIT_ROWS
from cehm_dask.method.consensus import consensus
from cehm_dask.method.params import COMPETING_BYTES, COMPETING_ROWS, Params, expected_sweeps
from cehm_dask.method.solution import ConsensusWarning
from cehm_dask.pipeline.inputs import budget_for, is_ensemble, left_out, members_of, open_features, shape_of
from cehm_dask.pipeline.recipe_model import Recipe

TRIAL_ROWS = 1 << 19
"""Enough that all threads have a share of them."""
TRIAL_FIT_ROWS = 1 << 14
READING = 1.1
"""A sweep that reads its labels from a local store that the system has cached, in sweeps over labels in memory."""
FEATURE_PASSES = 3
"""Over the features: sample and statistics, labels, and the picture of the report."""


@dataclass(frozen=True)
class Expected:
    """What is expected of one stage."""

    stage: str
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
class Outlook:
    """What is expected of a run."""

    stages: Sequence[Expected]
    machine: Machine
    """Who will work."""
    calibration: float
    """Seconds that were spent to time this machine."""


def outlook(recipe: Recipe) -> Outlook:
    """Look ahead; raises BudgetError for what does not fit the memory allowed."""
    begin = perf_counter()
    machine = _workers(recipe)
    stages = []
    if recipe.features is not None:
        features = open_features(recipe)
        plans = members_of(recipe, features.n_samples)
        widths = [plan.k + 1 for plan in plans]
        n_samples = features.n_samples
        # Features that only this process holds stay with its threads.
        maker = machine if features.reopen is not None else this_machine(recipe.memory)
        stages.append(_generation(recipe, features, plans, maker))
        shape = shape_of(n_samples, widths)
    else:
        assert recipe.labels is not None
        stage, shape = _brought(recipe)
        stages.append(stage)
    stages.append(_consensus(recipe, shape, machine))
    a_sweep = stages[-1].seconds / max(1, stages[-1].sweeps)
    scored = shape.n_samples * (shape.row_bytes + 6) if recipe.truth is not None else 0
    stages.append(Expected("evaluate", "scores.json", int(bool(scored)), scored, 0, a_sweep if scored else 0.0))
    if recipe.export is not None:
        size = shape.n_samples * (14 if recipe.export == "parquet" else 24)
        stages.append(Expected("export", f"labels.{recipe.export}", 1, 6 * shape.n_samples, size, size / 50e6))
    stages.append(Expected("report", "report.html", 1, 6 * shape.n_samples, 1 << 20, 2 + shape.n_samples / 50e6))
    return Outlook(stages, machine, perf_counter() - begin)


def _workers(recipe: Recipe) -> Machine:
    """Who will work: this process, or the workers of the recipe's cluster as its file describes them.

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


def _generation(recipe: Recipe, features: Features, plans: Sequence[MemberPlan], machine: Machine) -> Expected:
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
    return Expected(
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
        one = alike[len(alike) // 2]
        few = rows[: max(TRIAL_FIT_ROWS, one.k)]
        if len(few) < one.k:
            continue
        with threadpool_limits(1):  # as members are fitted
            fit_member(replace(one, k=2), few[:64])  # imported before the clock runs
            _, took = fit_member(one, few)
        seconds += took * fit_rows / len(few) * sum(plan.k for plan in alike) / one.k
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


def _brought(recipe: Recipe) -> tuple[Expected, Shape]:
    """The user's base labels: a store knows its shape; of other forms the labels are counted."""
    assert recipe.labels is not None
    path = recipe.labels.path
    if is_ensemble(path):
        shape = as_labels(path).shape
        what = f"{shape.n_samples:,} rows of your own, used in place"
        return Expected("ensemble", what), shape
    begin = perf_counter()
    found = survey(open_stream(path, left_out(recipe)))
    n_samples, values = found.n_samples, found.values
    shape = shape_of(n_samples, found.widths)
    size = n_samples * shape.row_bytes
    what = f"{n_samples:,} rows of {len(values)} members are read and encoded"
    return Expected("ensemble", what, 2, 2 * size, size, 3 * (perf_counter() - begin)), shape


def _consensus(recipe: Recipe, shape: Shape, machine: Machine) -> Expected:
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
    return Expected(
        "consensus",
        f"{shape.n_samples:,} rows of {shape.row_bytes} bytes, {_at_work(params[0], shape, problems)}, labels {kept}",
        sweeps,
        read,
        6 * shape.n_samples,
        once + shape.n_samples * a_row * (1.0 if budget.keep_labels else READING),
        budget.terms,
        machine.allowed,
    )


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
