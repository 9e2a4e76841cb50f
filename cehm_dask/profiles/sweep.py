"""One sweep over features and labels → the profile of every cluster.

Top of the folder. Each block of rows is read once, by threads or a client's workers; tables of clusters × features
come back and are added up here in the order of the blocks. Where the tables of all columns do not fit the memory
allowed, columns are taken in groups, a sweep each: the numbers are the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.clusters.connect import told_when_lost
from cehm_dask.data.collections import is_collection
from cehm_dask.data.features import BLOCK_ROWS, Features
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError
from cehm_dask.job import Where, machine_of
from cehm_dask.machine import Machine, require_memory
from cehm_dask.profiles.blocks import (
    MOST_CATEGORIES,
    Assigned,
    Category,
    HeldClusters,
    Moments,
    Scale,
    Sums,
    moments_of,
    sums_of,
)
from cehm_dask.profiles.kernels import BINS
from cehm_dask.profiles.profile import Profile, make_profile
from cehm_dask.progress import NO_PROGRESS, Count, Progress

FIRST_ROWS = 1 << 10
"""Rows that say where the bins of the histograms lie."""

CATEGORY_BYTES = 160
"""Of a category as text, with its place among the others."""


class Plan(NamedTuple):
    """How a sweep is done within the memory allowed."""

    terms: dict[str, int]
    """Bytes by what they are for."""
    threads: int
    columns: int
    """Taken in one sweep."""


def no_features(n_samples: int) -> Features:
    """Rows without columns: clusters have sizes, confidences and examples all the same."""
    return Features(n_samples, (), lambda a, b: np.empty((b - a, 0)), "no table")


def make_plan(n_samples: int, n_features: int, n_categories: int, n_clusters: int, machine: Machine) -> Plan:
    """As many threads as leave room for all columns at a time; if none do, one, and as many columns as fit."""
    rows = min(n_samples, BLOCK_ROWS)
    a_column = n_clusters * (6 * 8 + 8 * BINS)
    # A block as it is read and as it was stored, labels, margins, confidences and their order; and, of the columns that
    # are taken together, numbers of 8 bytes.
    thread, copied = rows * (2 * 8 * n_features + 96), 8 * rows
    terms = {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "categories": n_categories * (3 * 8 * n_clusters * MOST_CATEGORIES + machine.threads * rows * CATEGORY_BYTES),
    }
    room = machine.allowed - sum(terms.values())

    def fitting(threads: int) -> int:
        """Columns that fit beside the blocks of so many threads."""
        # One table for every thread, what they are added to, and quantiles made of it.
        return max(0, room - threads * thread) // ((threads + 3) * a_column + threads * copied)

    # Fewer threads rather than more sweeps.
    threads = next((t for t in range(machine.threads, 1, -1) if fitting(t) >= n_features), 1)
    columns = max(1, min(n_features, fitting(threads)))
    tables = (threads + 3) * a_column
    blocks = threads * (thread + columns * copied)
    more = {"blocks of features and labels": blocks, "tables of profiles": columns * tables}
    return Plan(terms | more, threads, columns)


def require_profiles(n_samples: int, n_features: int, n_categories: int, n_clusters: int, machine: Machine) -> Plan:
    """The plan, or a refusal."""
    plan = make_plan(n_samples, n_features, n_categories, n_clusters, machine)
    require_memory("profiles", plan.terms, machine.allowed, "")
    return plan


def profile_clusters(
    features: Features,
    clusters: Assigned,
    categories: Sequence[Category] = (),
    *,
    names: Sequence[str] | None = None,
    where: Where | None = None,
    progress: Progress = NO_PROGRESS,
) -> Profile:
    """The profile of every cluster.

    Parameters
    ----------
    features : Features
        Columns of numbers; values that are not finite count as missing.
    clusters : Assigned
        Of the same rows.
    categories : sequence of Category
        Columns of texts.
    names : sequence of str, optional
        Of the clusters; default: their numbers.
    where : Where
        Who does the work; features that only this process holds stay with its threads.
    progress : Progress
        Gets the rows done.
    """
    where = where or Where()
    client = where.client if features.reopen is not None or features.chunks is not None else None
    machine = machine_of(Where(memory=where.memory, threads=where.threads, client=client))
    k = clusters.n_clusters
    plan = require_profiles(features.n_samples, features.n_features, len(categories), k, machine)
    scale = _scale(features)
    groups = [slice(at, at + plan.columns) for at in range(0, features.n_features, plan.columns)]
    count = Count(progress, "profiles", features.n_samples * (1 + len(groups)))
    many = plan.threads * (machine.workers or 1)
    sums = _sums(features.blocks(), clusters, categories, plan.threads, count)
    with told_when_lost(client), workers(plan.threads, client) as who:
        found = [_moments(features, clusters, scale, columns, who, many, count) for columns in groups]
    return make_profile(features.names, sums, found, scale, groups, [one.name for one in categories], names)


def profile_found(features: Features, where: Where, labels: Any, margin: Any, confidence: Any) -> Profile:
    """The profile of every cluster of a fitted model, from what it found of the same rows, lazily or not."""
    held = [np.asarray(own.compute() if is_collection(own) else own) for own in (labels, margin, confidence)]
    n_samples, n_clusters = len(held[0]), max(int(held[0].max(initial=0)) + 1, 1)
    if features.n_samples != n_samples:
        raise InputError(f"X has {features.n_samples} rows, {n_samples} were fitted: they must be the same")
    return profile_clusters(features, HeldClusters(held[0], n_clusters, *held[1:]), where=where)


def _sums(
    blocks: Sequence[tuple[int, int]], clusters: Assigned, categories: Sequence[Category], threads: int, count: Count
) -> Sums:
    """Of labels and categories, which are read here: they are narrow, and cheap beside the features."""
    total: Sums | None = None
    with workers(threads) as pool:
        for batch in _batches(blocks, threads):
            for block, part in zip(batch, pool.each(sums_of, batch, clusters, categories), strict=True):
                if total is None:
                    total = part
                else:
                    total.join(part)
                count.add(block[1] - block[0])
    if total is None:
        raise InputError("n_samples=0: there are no rows to describe")
    return total


def _moments(
    features: Features, clusters: Assigned, scale: Scale, columns: slice, who: Any, many: int, count: Count
) -> Moments:
    total: Moments | None = None
    # As many at a time as there are threads: tables that wait to be added up would take memory.
    for batch in _batches(features.blocks(), many):
        parts = features.each(who, moments_of, batch, batch, clusters, scale, columns)
        for block, part in zip(batch, parts, strict=True):
            if total is None:
                total = part
                total.bins = total.bins.astype(np.int64)
            else:
                total.join(part)
            count.add(block[1] - block[0])
    assert total is not None  # there is a block, or the labels would have been refused
    return total


def _batches(blocks: Sequence[tuple[int, int]], many: int) -> list[Sequence[tuple[int, int]]]:
    return [blocks[at : at + many] for at in range(0, len(blocks), many)]


def _scale(features: Features) -> Scale:
    """Centre and unit of each column from the first rows; bins widen with the distance, so any will do, near or far."""
    first = np.asarray(features.read(0, min(features.n_samples, FIRST_ROWS)), np.float64)
    centre, unit = np.zeros(first.shape[1]), np.ones(first.shape[1])
    for j in range(first.shape[1]):
        own: NDArray[np.float64] = first[np.isfinite(first[:, j]), j]
        if len(own):
            centre[j] = np.sort(own)[len(own) // 2]
            unit[j] = float(np.std(own)) or abs(centre[j]) or 1.0
    return Scale(centre, 1.0 / np.where(np.isfinite(unit) & (unit > 1e-300), unit, 1.0))
