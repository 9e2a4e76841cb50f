"""One consensus from labels to result: budget, engine, stages, output.

Between the stages and the doors (estimator, command, recipe), which all come through here and so get the same
labels. The result comes back as arrays, or goes into a consensus.zarr that grows round by round and can be
resumed.
"""

import hashlib
import importlib.metadata
import logging
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.collections import is_collection
from cehm_dask.data.consensus_store import ConsensusStore, open_consensus
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.files import patiently
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.data.sources import ChunkSource
from cehm_dask.engine.budget import CODE_BYTES, Budget, make_budget
from cehm_dask.engine.collection import Held, labels_of_collection
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import BudgetError, ClusterError
from cehm_dask.machine import Machine, cluster_machine, format_bytes, give_back_freed, peak_bytes, this_machine
from cehm_dask.method import counting, kernels
from cehm_dask.method.confidence import gauge_of
from cehm_dask.method.consensus import Record, consensus
from cehm_dask.method.jit import code_bytes
from cehm_dask.method.orders import Read
from cehm_dask.method.params import Params, auto_clusters, expected_sweeps
from cehm_dask.method.result import (
    MARGIN_BINS,
    add_summaries,
    add_written,
    fill,
    gather,
    join,
    margin_units,
    pieces_of,
    summarise,
    write_chunk,
    write_piece,
    write_span,
)
from cehm_dask.method.rounds import Harvest
from cehm_dask.method.solution import Consensus
from cehm_dask.method.survey import mean_margin
from cehm_dask.method.trail import stages_of
from cehm_dask.method.warm import Warm
from cehm_dask.method.weighting import in_order
from cehm_dask.progress import ProgressLike, as_progress

log = logging.getLogger(__name__)

KERNELS = (counting.intersections, counting.weighted_intersections, kernels.belonging, kernels.count)
"""Loops whose being compiled already stands for that of all."""

RESULT_CHUNK_ROWS = 1 << 18
"""Rows of a chunk of the result where the labels do not come from a store with shards of its own."""


@dataclass(frozen=True)
class Where:
    """Who does the work and where the result goes; nothing here changes a label."""

    memory: str | int | None = None
    """Bytes a process may take in all, such as "2GiB"; default: a share of what is free."""
    threads: int | None = None
    client: Any = None
    """A distributed.Client; default: threads of this process."""
    output: str | None = None
    """Path or URL of a consensus.zarr."""
    overwrite: bool = False
    block_rows: int | None = None
    lazy: bool = False
    """Whether labels and margins are left to be computed from the tables, block by block."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A consensus with the labels and margins of all samples: numpy arrays, or Zarr arrays if they were stored.

    None where they are left to be computed (``Where.lazy``).
    """

    consensus: Consensus
    labels: Any
    margin: Any
    confidence: Any
    sizes: NDArray[np.int64]
    scan: list[dict[str, Any]]
    """A record for every number of clusters that was run: how its kept start came out."""
    sweeps: int
    budget: Budget


def seed_of(random_state: Any) -> int:
    """The number that a run draws from, for a seed in any form that scikit-learn takes."""
    if isinstance(random_state, int):  # the command has no other, and need not load scikit-learn for it
        return int(np.random.RandomState(random_state).randint(2**31))
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31))


def machine_of(where: Where) -> Machine:
    """Processes, threads and memory of those who do the work."""
    if where.client is None:
        return this_machine(where.memory, where.threads)
    return cluster_machine(where.client, where.memory)


@contextmanager
def opened(base_labels: Any, client: Any, memory: str | int | None) -> Iterator[Held]:
    """Base labels in any form, ready to be swept over; the blocks of a dask collection stay where they are."""
    if isinstance(base_labels, Held):
        yield base_labels
    elif is_collection(base_labels):
        with labels_of_collection(base_labels, client, machine_of(Where(memory=memory, client=client))) as held:
            yield held
    else:
        yield Held(as_labels(base_labels, memory=memory))


def budget_of(labels: Labels, params: Params, ks: Sequence[int], where: Where) -> Budget:
    """Settle blocks, spans and bytes, or refuse."""
    machine = machine_of(where)
    settle = partial(
        make_budget,
        labels.shape,
        [k for k in ks for _ in range(1 if params.portfolio else params.restarts)],
        allowed=machine.allowed,
        taken=machine.taken,
        workers=machine.workers,
        returned=where.output is None and not where.lazy,
        diffuses=params.schedule != "direct",
        start_rows=params.start_rows,
        block_rows=where.block_rows,
        code_bytes=CODE_BYTES if where.client is not None else code_bytes(*KERNELS),
    )
    if where.client is None and machine.threads > 1:
        with suppress(BudgetError):
            return settle(threads=machine.threads)
        return settle(threads=1)  # one has blocks of its own only: slower, but it may fit
    return settle(threads=machine.threads)


def find_consensus(
    labels: Labels,
    params: Params,
    seed: int,
    where: Where,
    *,
    ks: Sequence[int] = (),
    auto: bool = False,
    warm: Warm | None = None,
    record: Record | None = None,
    progress: ProgressLike | None = None,
) -> Outcome:
    """Consensus of base labels, for one value of k or for several side by side.

    With ``auto``, one of :func:`auto_clusters` is chosen from the intersections and run; memory is set aside for the
    largest. With ``warm``, the run starts from a finished consensus, with its parameters.

    ``progress`` gets every finished round and, if it is a ``Progress``, the rows done inside a sweep.
    """
    params = replace(params, weights=in_order(params.weights, labels.names))
    ks = tuple(auto_clusters(labels.n_samples)) if auto else tuple(ks) or (params.n_clusters,)
    problems_of, told = [replace(params, n_clusters=k) for k in ks], as_progress(progress)
    budget = budget_of(labels, params, ks[-1:] if auto else ks, where)
    if where.client is None and not budget.keep_freed:
        give_back_freed()
    _log_budget(labels, problems_of, budget)
    if where.client is not None:
        from cehm_dask.clusters.workers import require_access

        try:
            require_access(where.client, *_urls_on_workers(labels, where.output))
        except ClusterError:
            labels.source.confirm()  # workers see another store than was opened also if it has just been replaced
            raise
    store = None
    if where.output is not None:
        grows = {} if warm is None else {"grown_from": warm.mark}
        store = ConsensusStore(where.output, identity(labels, params, ks, seed, auto=auto) | grows)
        store.open(overwrite=where.overwrite)
    try:
        with _told_when_lost(where.client), Engine(labels, budget, where.client, told) as engine:
            how: dict[str, Any] = {"auto": auto, "warm": warm, "store": store, "record": record}
            result = consensus(engine, problems_of, seed, progress=told, **how)
            problem = result.chosen.problem
            gauge = gauge_of(result.hyperedges, problem.counts, result.correlation)
            order = replace(problem.last_order(), gauge=gauge)
            if store is not None:
                return _store_result(engine, store, result, order)
            if where.lazy:
                sizes, units = engine.sweep("result", summarise, add_summaries, order, problem.belonging)
                scan = _scan(result, mean_margin(units, problem))
                return Outcome(result, None, None, None, sizes, scan, engine.sweeps, budget)
            found = _result(engine, order)
            mean = mean_margin(margin_units(found.margin, problem.belonging), problem)
            sizes = np.bincount(found.labels[found.labels >= 0], minlength=order.clusters)
            margin = found.margin / labels.n_members
            scan = _scan(result, mean)
            return Outcome(result, found.labels, margin, found.confidence, sizes, scan, engine.sweeps, budget)
    finally:
        if store is not None:
            store.close()


def _told_when_lost(client: Any) -> AbstractContextManager[None]:
    """What knows of clusters is loaded where there is one: it takes 9 MiB."""
    if client is None:
        return nullcontext()
    from cehm_dask.clusters.connect import told_when_lost

    return told_when_lost(client)


def _urls_on_workers(labels: Labels, output: str | None) -> tuple[list[str], list[str]]:
    """What workers read and write themselves; nothing, if this process hands them rows and takes their results."""
    if not isinstance(labels.source, Ensemble):
        return [], []
    return [labels.source.url], [] if output is None else [output]


def _log_budget(labels: Labels, problems_of: Sequence[Params], budget: Budget) -> None:
    sweeps = max(expected_sweeps(params, labels.n_samples, budget) for params in problems_of)
    terms = ", ".join(f"{name} {format_bytes(size)}" for name, size in budget.terms.items() if size)
    log.info(
        "budget: %d spans, blocks of %d rows, about %d sweeps of %s; memory %s of %s allowed: %s",
        len(budget.span_edges) - 1,
        budget.block_rows,
        sweeps,
        format_bytes(labels.n_samples * labels.n_members * labels.itemsize),
        format_bytes(budget.projected),
        format_bytes(budget.allowed),
        terms,
    )


def identity(labels: Labels, params: Params, ks: Sequence[int], seed: int, *, auto: bool = False) -> dict[str, Any]:
    """All that the labels of the result depend on."""
    facts = asdict(params)
    facts["init"] = None if params.init is None else list(params.init)
    if params.weights is None:
        del facts["weights"]  # as in stores that were begun before there were any
    else:
        facts["weights"] = list(params.weights)
    wanted = "auto" if auto else list(ks)
    return {**facts, "n_clusters": wanted, "seed": seed, "labels": labels.fingerprint or _fingerprint(labels)}


def _fingerprint(labels: Labels) -> str:
    digest = hashlib.blake2b(repr((labels.n_samples, labels.widths)).encode(), digest_size=16)
    for start in range(0, labels.n_samples, RESULT_CHUNK_ROWS):
        rows = labels.read(start, min(start + RESULT_CHUNK_ROWS, labels.n_samples))
        digest.update(np.ascontiguousarray(rows).data)
    return digest.hexdigest()


def _result(engine: Engine, order: Read) -> Harvest:
    """Labels, margins and confidences of all rows; threads of this process fill the arrays in place."""
    if engine.client is not None:
        return engine.sweep("result", gather, join, order)
    n = engine.labels.n_samples
    found = Harvest(np.empty(n, np.int16), np.empty(n), np.empty(n))
    engine.sweep("result", fill, len, order, found)
    return found


def _store_result(engine: Engine, store: ConsensusStore, result: Consensus, order: Read) -> Outcome:
    labels, problem = engine.labels, result.chosen.problem
    aligned = labels.align_rows > 1
    writer = store.create_result(labels.n_samples, labels.align_rows if aligned else RESULT_CHUNK_ROWS)
    belonging = problem.belonging
    if aligned:
        writing = (order, writer, labels.n_members, belonging)
        histogram, units, digests = engine.sweep("result", write_span, add_written, *writing)
    elif labels.edges is not None:
        writing = (order, writer, labels.n_members, belonging)
        empty = replace(engine.spans[0], labels=replace(labels, source=ChunkSource([], ())), token="")
        pieces = pieces_of(labels, writer.chunk_rows)
        delayed = [piece.chunks for piece in pieces]
        parts = engine.each(write_piece, [piece.place for piece in pieces], empty, *writing, delayed=delayed)
        histogram, units, digests = add_written(list(parts))
    else:
        digests = {}
        found = _result(engine, order)
        units = margin_units(found.margin, belonging)
        histogram = np.zeros((order.clusters, MARGIN_BINS), np.int64)
        for start in range(0, labels.n_samples, writer.chunk_rows):
            rows = slice(start, start + writer.chunk_rows)
            chunk = Harvest(found.labels[rows], found.margin[rows], found.confidence[rows])
            counts, written = write_chunk(writer, start, chunk, labels.n_members, order.clusters)
            histogram += counts
            digests |= written
    store.record(digests)
    sizes = histogram.sum(axis=1)
    store.save_table("counts", problem.counts)
    store.save_table("weights", problem.final_weights)
    store.save_table("medoids", problem.medoids.astype(np.int64))
    store.save_table("sizes", sizes)
    store.save_table("margin_histogram", histogram)
    store.save_table("member_agreement", result.member_agreement)
    store.save_table("hyperedge_member", result.hyperedges.members.astype(np.int64))
    if result.hyperedges.weight is not None:
        store.save_table("hyperedge_weight", result.hyperedges.weight)
    stages = _store_trail(store, result)
    scan = _scan(result, mean_margin(units, problem))
    labels.source.confirm()
    store.finish({**_facts(engine, result), "scan": scan, "choice": asdict(result.choice), "trail_stages": stages})
    stored = patiently(lambda: open_consensus(store.url))
    labels_, margin, confidence = (stored.array(name) for name in ("labels", "margin", "confidence"))
    return Outcome(result, labels_, margin, confidence, sizes, scan, engine.sweeps, engine.budget)


def _store_trail(store: ConsensusStore, result: Consensus) -> list[str]:
    """Keep the trail of the chosen problem; the stage of each of its rounds, none if some of it was lost."""
    found = None if result.trail is None else result.trail.of(result.chosen.problem)
    if result.trail is None or found is None:
        return []
    store.save_table("trail", found)
    store.save_table("trail_rows", result.trail.rows)
    return stages_of(result.chosen.problem)


def _scan(result: Consensus, margin: float) -> list[dict[str, Any]]:
    """A record for every number of clusters; ``margin`` is that of the chosen one."""
    return [
        {
            "n_clusters": solution.n_clusters,
            "n_clusters_found": solution.n_clusters_found,
            "agreement": solution.agreement,
            "loss": solution.problem.losses[-1],
            "margin": margin if solution.margin is None else solution.margin,
            "stability": solution.stability,
            "restarts": solution.restarts,
        }
        for solution in result.solutions
    ]


def _compared(result: Consensus) -> list[int] | None:
    """Members that were compared with one another; None: all."""
    members = result.hyperedges.compared_members
    return None if members is None else members.tolist()


def _facts(engine: Engine, result: Consensus) -> dict[str, Any]:
    """How the result came about, for the store's attributes."""
    labels, budget, problem = engine.labels, engine.budget, result.chosen.problem
    read = (1 if budget.keep_labels else engine.sweeps) * labels.n_samples * labels.n_members * labels.itemsize
    return {
        "n_samples": labels.n_samples,
        "n_members": labels.n_members,
        "members": list(labels.names),
        "label_values": [known.tolist() for known in labels.values_of(result.hyperedges.slots)],
        "n_clusters": problem.params.n_clusters,
        "n_clusters_found": result.chosen.n_clusters_found,
        "n_silent": result.hyperedges.n_silent,
        "compared_members": _compared(result),
        "agreement": result.chosen.agreement,
        "belonging": problem.belonging,
        "lead": problem.final_lead.tolist(),
        "correlation": result.correlation,
        "candidates": result.chosen.candidates,
        "candidate_reason": result.chosen.reason,
        "losses": problem.losses,
        "loss_fractions": problem.loss_fractions,
        "growth": problem.growth,
        "moves": problem.moves,
        "rounds": problem.round,
        "converged": problem.converged,
        "sweeps": engine.sweeps,
        "seconds": result.seconds,
        "bytes_read": read,
        "memory": {"allowed": budget.allowed, "projected": budget.projected, "peak": peak_bytes()},
        "versions": {name: importlib.metadata.version(name) for name in ("cehm-dask", "numpy", "numba")},
    }
