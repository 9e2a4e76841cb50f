"""Stage: features → ensemble. Thirty clusterings of the same rows, made in two or three sweeps over them.

Members are fitted on all rows or on a random sample of them, side by side, and then one sweep labels every row for all
members together: each block of features is read once. What was cut off is only ever continued with the same features
and the same fitted members, to the last bit: both are part of the identity of a store that is being written.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.clusters.connect import told_when_lost
from cehm_dask.clusters.current import client_of
from cehm_dask.data.attributes import read_facts
from cehm_dask.data.ensemble_store import Ensemble, open_ensemble
from cehm_dask.data.ensemble_writer import EnsembleWriter, create_ensemble, shape_of_chunks, sole_writer
from cehm_dask.data.features import BLOCK_ROWS, Features
from cehm_dask.data.files import read_whole, remove, write_whole
from cehm_dask.data.scaling import SCALES, Scaling, draw_rows, fit_scaling
from cehm_dask.data.sources import Codes
from cehm_dask.data.transformer import Transformed, refuse_transformer, warn_of_heavy_columns
from cehm_dask.engine.budget import threads_for_generation
from cehm_dask.engine.sweep import workers
from cehm_dask.engine.task import Workers
from cehm_dask.errors import InputError, ReplacedError
from cehm_dask.machine import cluster_machine, this_machine
from cehm_dask.members.fit import (
    Centred,
    Labeller,
    Linear,
    Member,
    MemberPlan,
    Viewed,
    fit_members,
    linear,
    reported,
    width_of,
)
from cehm_dask.members.kmeans import through
from cehm_dask.members.stored import fitted_of
from cehm_dask.members.subsample import Subsample
from cehm_dask.members.whole import BASE, fit_on_all_rows, fit_transformer
from cehm_dask.method import distances
from cehm_dask.progress import NO_PROGRESS, Count, Progress
from cehm_dask.wording import option

log = logging.getLogger(__name__)

FULL_FIT_ROWS = 1 << 15
"""Up to this many rows members are fitted on all of them; beyond, on a random sample of as many."""

LLOYD_ROUNDS = 100
LLOYD_TOLERANCE = 1e-4
"""Lloyd's iteration ends for a member when its centres move, squared and summed, by less than this."""


def make_labeller(
    features: Features,
    plans: Sequence[MemberPlan],
    seed: int,
    workers: Workers,
    *,
    scale: Any = "standard",
    impute: str | None = None,
    fit_rows: int | None = None,
    full_lloyd: bool = False,
    progress: Progress = NO_PROGRESS,
) -> tuple[Labeller, list[dict[str, Any]]]:
    """Scale, sample and fit: all that comes before the one sweep that labels; and each member's provenance.

    With ``full_lloyd``, k-means members go on from the centres of the sample over all rows.
    """
    count = min(features.n_samples, fit_rows or FULL_FIT_ROWS)
    most = max(plan.k for plan in plans)
    if most > count:
        raise InputError(f"k={most} of a member > {count} rows it is fitted on: raise fit_rows or lower k_max")
    for plan in plans:
        if not isinstance(plan.base, str) and not hasattr(plan.base, "predict") and count < features.n_samples:
            raise InputError(
                f"{type(plan.base).__name__} has no predict, so it must be fitted on all rows, not on {count}: "
                f"pass fit_rows={features.n_samples} if they fit in memory"
            )
    if full_lloyd and plans[0].subsample is not None:
        without = option("subsample", plans[0].subsample)
        raise InputError(f"{option('full_lloyd')} goes over all rows: leave {without} out")
    drawn = draw_rows(features.n_samples, count, seed)
    refuse_transformer(scale)
    linear_scale = isinstance(scale, str) and scale in SCALES
    plain, sample = fit_scaling(features, scale if linear_scale else "none", workers, impute=impute, rows=drawn)
    scaling = plain if linear_scale else fit_transformer(scale, features, plain, sample, workers)
    if linear_scale:
        warn_of_heavy_columns(sample, features.names, features.indicators)
    scaled = scaling.apply(sample, names=features.names)
    fitted = _fit_all(plans, features, scaling, (scaled, drawn), workers, progress)
    members = tuple(member for member, _ in fitted)
    if full_lloyd:
        members = _all_rows(features, scaling, plans, members, workers, progress)
    silent = Subsample.of(plans[0].subsample, [plan.seed for plan in plans])
    labeller = Labeller(scaling, members, tuple(map(width_of, members, plans)), silent)
    facts = [
        {
            **plan.facts(),
            "fit_rows": features.n_samples if plan.base == BASE or (full_lloyd and plan.base in LLOYD) else count,
            "scale": scale if isinstance(scale, str) else repr(scale),
            **made,
        }
        for plan, (_, made) in zip(plans, fitted, strict=True)
    ]
    return labeller, facts


LLOYD = ("kmeans", "minibatch", "dask-ml")


def _fit_all(
    plans: Sequence[MemberPlan],
    features: Features,
    scaling: Scaling | Transformed,
    sample: tuple[NDArray[np.float32], NDArray[np.int64]],
    workers: Workers,
    progress: Progress,
) -> list[tuple[Member, dict[str, Any]]]:
    """Fit every member, on the sample (scaled rows and their numbers) or, by dask-ml, on all rows."""
    whole = [plan for plan in plans if plan.base == BASE]
    sampled = [plan for plan in plans if plan.base != BASE]
    on_sample = iter(fit_members(sampled, *sample, workers, progress=progress) if sampled else ())
    on_all = iter(fit_on_all_rows(whole, features, scaling, workers, progress))
    return [next(on_all if plan.base == BASE else on_sample) for plan in plans]


def _all_rows(
    features: Features,
    scaling: Scaling | Transformed,
    plans: Sequence[MemberPlan],
    members: tuple[Member, ...],
    workers: Workers,
    progress: Progress,
) -> tuple[Member, ...]:
    chosen = [j for j, plan in enumerate(plans) if plan.base in LLOYD]
    if not chosen:
        raise InputError(f"full_lloyd: none of the members is one of {', '.join(LLOYD)}")
    centres = [member for member in (members[j] for j in chosen) if isinstance(member, Centred)]
    moved = dict(zip(chosen, lloyd(features, scaling, centres, workers, progress=progress), strict=True))
    return tuple(moved.get(j, member) for j, member in enumerate(members))


def lloyd(
    features: Features,
    scaling: Scaling | Transformed,
    members: Sequence[Centred],
    workers: Workers,
    *,
    progress: Progress = NO_PROGRESS,
) -> list[Centred]:
    """k-means on all rows, larger than memory or not: every sweep over the features serves all members that still move.

    Starts from the centres the members have. Sums run block by block in row order, so they do not depend on the
    number of threads or workers.
    """
    done: dict[int, Centred] = {}
    moving = dict(enumerate(members))
    for number_of_round in range(1, LLOYD_ROUNDS + 1):
        sums, counts = _centre_sums(features, scaling, list(moving.values()), workers)
        progress.advanced("Lloyd", number_of_round, None)
        edges = np.cumsum([0, *(len(member.names) for member in moving.values())])
        for (number, member), (a, b) in zip(list(moving.items()), pairwise(edges), strict=True):
            before = member.centres
            means = sums[a:b] / np.maximum(counts[a:b, None], 1)
            seen = means if member.view is None else through(means, member.view.astype(np.float64))
            # A centre that lost all its rows stays where it is.
            centres = np.where(counts[a:b, None] > 0, seen, before)
            moving[number] = linear(centres, member.names, member.view)
            if ((centres - before) ** 2).sum() < LLOYD_TOLERANCE:
                done[number] = moving.pop(number)
        if not moving:
            break
    return [(done | moving)[number] for number in range(len(members))]


def _centre_sums(
    features: Features, scaling: Scaling | Transformed, members: Sequence[Linear], workers: Workers
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum of the scaled rows nearest to each centre, and how many there are, in one sweep."""
    labeller = Labeller(scaling, tuple(members), tuple(len(member.names) for member in members))
    first = np.cumsum([0, *(len(member.names) for member in members)])
    parts = features.each_block(workers, _sums_of_block, labeller, first)
    sums, counts = next(parts)
    for more, rows in parts:
        sums = sums + more
        counts = counts + rows
    return sums, counts


def _sums_of_block(
    block: tuple[int, int], features: Features, labeller: Labeller, first: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    scaled = labeller.scaling.apply(features.read(*block), block[0], features.names)
    sums, counts = np.zeros((first[-1], scaled.shape[1])), np.zeros(first[-1], np.int64)
    distances.centre_sums(scaled, labeller.nearest(scaled), first, sums, counts)
    return sums, counts


def generate(
    features: Features,
    url: str,
    plans: Sequence[MemberPlan],
    seed: int,
    *,
    append: bool = False,
    overwrite: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    client: Any = None,
    made: tuple[Labeller, list[dict[str, Any]]] | None = None,
    progress: Progress = NO_PROGRESS,
    **fitting: Any,
) -> str:
    """Make members and write their labels to an ensemble.zarr, a whole shard at a time; returns the fingerprint.

    An interrupted generation resumes with the shards that are missing, if features and members are the same, to the
    last bit; otherwise it refuses. With ``append``, the members are put behind those of the ensemble that is there.
    ``memory``, ``threads`` and ``client`` (default: the current one, False for none) say where the work is done, and
    change no label. ``made`` are the members and their provenance, where they are fitted.
    """
    before = open_ensemble(url) if append else None
    if before is not None and before.n_samples != features.n_samples:
        raise InputError(f"features have {features.n_samples} rows, the ensemble {url} has {before.n_samples}")
    n_members = len(plans) + (len(before.widths) if before else 0)
    with (
        client_of(client) as there,
        sole_writer(url, overwrite=overwrite or append),
        makers(features, n_members, there, memory, threads, fitting.get("fit_rows")) as who,
    ):
        if before is not None and _was_appended(url, plans):
            log.info("the members were appended to %s before the command was interrupted: nothing is left to do", url)
            remove(_note_of(url))
            return before.fingerprint
        stamp = features.stamp()
        labeller, facts = made or make_labeller(features, plans, seed, who, progress=progress, **fitting)
        identity = _identity(features, seed, plans, facts, labeller, fitting, before.fingerprint if before else None)
        widths = [*(before.widths if before else ()), *(width + 1 for width in labeller.widths)]
        values = None
        if before is not None and before.values is not None:
            values = [*before.values, *(np.arange(width) for width in labeller.widths)]
        if before is not None:
            note = {"identity": identity, "before": len(before.widths), "members": [plan.facts() for plan in plans]}
            write_whole(_note_of(url), json.dumps(note).encode())
        writer = create_ensemble(
            url,
            features.n_samples,
            widths,
            names=[*before.names, *(str(len(before.names) + j) for j in range(len(plans)))] if before else None,
            values=values,
            members=[*(before.members if before else ()), *facts],
            source=features.source,
            overwrite=overwrite or append,
            grows=append,
            identity=identity,
        )

        count, shards = Count(progress, "labelled", features.n_samples), range(writer.n_shards)
        labelled = features.each(who, _label_shard, shards, [*map(writer.rows, shards)], writer, labeller, before)
        done = list(reported(labelled, lambda made: count.add(int(made[1][-1].sum()))))
        sizes = [np.sum(parts, axis=0) for parts in zip(*(own for _, own in done), strict=True)]
        if features.stamp() != stamp:
            raise ReplacedError(
                f"features {features.source} changed while members were made of them: run again with "
                f"{option('overwrite')}"
            )
        # Appended members may be scaled otherwise than those before them.
        fitted = None if append else fitted_of(labeller, features, fitting.get("scale", "standard"))
        fingerprint = writer.finish([digest for digest, _ in done], sizes, fitted=fitted)
    if append and _note(url).get("identity") == identity:
        remove(_note_of(url))  # the very last thing: until then, the same command again does nothing
    return fingerprint


@contextmanager
def makers(
    features: Features,
    n_members: int,
    client: Any = None,
    memory: str | int | None = None,
    threads: int | None = None,
    fit_rows: int | None = None,
) -> Iterator[Workers]:
    """Who makes members of features, within the memory allowed.

    Workers read the features themselves, so features that only this process holds stay with its threads.
    """
    if client is not None and features.reopen is None and features.chunks is None:
        log.info("features from %s cannot be opened by workers: this process makes the members", features.source)
        client = None
    machine = this_machine(memory, threads) if client is None else cluster_machine(client, memory)
    threads = threads_for_generation(
        features.n_features,
        n_members,
        fit_rows=min(features.n_samples, fit_rows or FULL_FIT_ROWS),
        block_rows=min(features.n_samples, BLOCK_ROWS),
        shard_rows=min(features.n_samples, shape_of_chunks(features.n_samples, n_members, 1)[1]),
        allowed=machine.allowed,
        taken=machine.taken,
        threads=machine.threads,
    )
    with told_when_lost(client), workers(threads, client) as who:
        yield who


Labelled = tuple[str, list[NDArray[np.int64]]]
"""Digest of a shard, and the sizes of its clusters by member."""


def _label_shard(
    shard: int, features: Features, writer: EnsembleWriter, labeller: Labeller, before: Ensemble | None
) -> Labelled:
    start, stop = writer.rows(shard)
    codes = writer.written(shard)
    if codes is None:
        # In the blocks that features are always read in, counted from row 0.
        cuts = [start, *range(-(-(start + 1) // BLOCK_ROWS) * BLOCK_ROWS, stop, BLOCK_ROWS), stop]
        parts = [labeller.label(features.read(a, b), a, features.names) for a, b in pairwise(cuts)]
        codes = np.concatenate(parts)
        if before is not None:
            codes = np.concatenate((before.read(start, stop), codes), axis=1)
        digest = writer.write(shard, codes)
    else:
        digest = writer.digest(codes)
    return digest, [np.bincount(codes[:, j], minlength=width)[1:] for j, width in enumerate(writer.widths)]


def _identity(
    features: Features,
    seed: int,
    plans: Sequence[MemberPlan],
    facts: Sequence[Mapping[str, Any]],
    labeller: Labeller,
    fitting: Mapping[str, Any],
    before: str | None,
) -> str:
    """All that the labels depend on: a half-written store is continued only if it is the same.

    The fitted numbers tell whether another CPU, or another version of a library, would mix other members in; members
    with a ``predict`` of their own label rows by libraries too, so those are compared as well.
    """
    own = [isinstance(member, Viewed) for member in labeller.members]
    libraries = [made.get("numerics") for made, labels_itself in zip(facts, own, strict=True) if labels_itself]
    estimators = [repr(plan.base) for plan in plans if not isinstance(plan.base, str)]
    settings = [sorted(fitting.items()), [plan.facts() for plan in plans], estimators, seed]
    everything = [features.names, labeller.scaling.content, labeller.digest(), settings, libraries, before]
    return hashlib.blake2b(repr(everything).encode(), digest_size=16).hexdigest()


# --- appended once -------------------------------------------------------------------------------------------------


def _note_of(url: str) -> str:
    """A small file beside the ensemble while members are appended: who was cut off after that must not do it twice."""
    return f"{url.rstrip('/')}.appending"


def _note(url: str) -> dict[str, Any]:
    try:
        return dict(json.loads(read_whole(_note_of(url)) or b"{}"))
    except ValueError:
        return {}


def _was_appended(url: str, plans: Sequence[MemberPlan]) -> bool:
    """Whether a command that was cut off at its very end has appended these members."""
    note = _note(url)
    same = [plan.facts() for plan in plans] == note.get("members")
    return same and bool(read_facts(url).get("identity") == note["identity"])


def plan_appended(url: str, draw: Callable[[int], list[MemberPlan]]) -> list[MemberPlan]:
    """Members to append to an ensemble: ``draw`` is given the number of those that stand before them."""
    note = _note(url)
    if note and _was_appended(url, plans := draw(note["before"])):
        return plans
    return draw(len(open_ensemble(url).widths))


def label_all(features: Features, labeller: Labeller, workers: Workers) -> Codes:
    """Codes of every row in memory, made in one sweep."""
    codes = np.empty((features.n_samples, len(labeller.members)), labeller.dtype)
    for block, own in zip(features.blocks(), features.each_block(workers, _label_block, labeller), strict=True):
        codes[slice(*block)] = own
    return codes


def _label_block(block: tuple[int, int], features: Features, labeller: Labeller) -> Codes:
    return labeller.label(features.read(*block), block[0], features.names)
