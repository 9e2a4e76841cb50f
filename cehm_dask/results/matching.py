"""Clusters of one result matched to those of an earlier one, so that a cluster keeps its name from run to run.

After the consensus, which stays as it is: names are a list beside it, one number per cluster. Rows that both results
share decide; where they share none, the means of the features do. A number that was given once is not given again.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.attributes import place_in
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.files import read_whole
from cehm_dask.errors import InputError, StoreError
from cehm_dask.profiles.profile import Profile
from cehm_dask.results.export import RowIds
from cehm_dask.results.shared_rows import Int, Shared, count_in_order, count_shared, of_store

VERSION = 1

FEW = 5
"""A cluster that kept less than a fifth of the shared rows that its size lets expect is judged as if it had kept that
fifth: a handful of rows that stayed do not carry the name of a cluster that left."""
ROWS_PER_CLUSTER = 10
"""Shared rows for every cluster below which the means of the features are asked instead, if there are any."""
NONE = -1
"""Name of no cluster: rows without any base label."""


MATCHING = "matching.json"
"""Of a run directory: what became of the clusters of the run that it follows."""


@dataclass(frozen=True)
class Matching:
    """What became of the clusters of an earlier result.

    Attributes
    ----------
    by : str
        "ids", "rows" (the same rows in the same order), "profiles", or "nothing", for a first result.
    names : list of int or None
        Name of every cluster, by its number in the consensus; None where it has no samples.
    next_name : int
        Least number that no cluster has had so far.
    clusters : list of dict
        Of every name: ``name``, samples ``before`` and ``now`` (None: not there), ``state`` ("kept", "new", "gone",
        "split" off from ``other``, or "merged" into it) and ``other``.
    flow : list of (int, int, int)
        Name before, name now, shared samples; -1 for no cluster. Empty if matched by profiles.
    n_before, n_now, n_shared, n_moved : int or None
        Samples of both; in both; and of these, those whose name is another now.
    repeated : int
        Rows left out, because their id is missing or not theirs alone.
    """

    by: str
    names: list[int | None]
    next_name: int
    clusters: list[dict[str, Any]]
    flow: list[tuple[int, int, int]]
    n_before: int
    n_now: int
    n_shared: int | None
    n_moved: int | None
    repeated: int = 0

    @property
    def moved(self) -> float | None:
        """Share of the shared samples whose name is another now; None: no samples are shared."""
        return self.n_moved / self.n_shared if self.n_shared and self.n_moved is not None else None

    @property
    def told(self) -> list[str]:
        """What is new and what is gone, a sentence each."""
        said = {
            "new": "cluster {name} is new",
            "split": "cluster {name} is new: split off from {other}",
            "gone": "cluster {name} is gone",
            "merged": "cluster {name} is gone: merged into {other}",
        }
        return [said[own["state"]].format(**own) for own in self.clusters if own["state"] in said]

    def of(self, state: str) -> list[int]:
        """Names of the clusters that became this."""
        return [own["name"] for own in self.clusters if own["state"] == state]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"version": VERSION, **{name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Matching":
        """What :meth:`to_dict` gave; other keys are left aside."""
        if found.get("version") != VERSION:
            raise InputError(f"matching of version {found.get('version')!r}, expected {VERSION}: run it again")
        own = {name: found[name] for name in cls.__dataclass_fields__}
        return cls(**own | {"flow": [tuple(line) for line in found["flow"]]})


def match(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    *,
    old_ids: Any = None,
    new_ids: Any = None,
    memory: str | int | None = None,
) -> Matching:
    """Match the clusters of a finished consensus.zarr to those of an earlier one, whose numbers are their names.

    Parameters
    ----------
    old, new : path or URL of a consensus.zarr
    old_ids, new_ids : array, series, or blocks of them; optional
        What the rows are called; default: both results are of the same rows in the same order.
    memory : int or str, optional
        Bytes this process may take in all, such as "2GiB"; default: a share of what is free.

    Returns
    -------
    Matching
    """
    before, now = (open_consensus(os.fspath(url)) for url in (old, new))
    if (old_ids is None) != (new_ids is None):
        raise InputError("ids of one of the two results: rows are compared by ids of both, or by their order")
    if old_ids is None:
        by, shared = "rows", count_in_order(before, now)
    else:
        sides = [of_store(one, _row_ids(ids)) for one, ids in ((before, old_ids), (now, new_ids))]
        by, shared = "ids", count_shared(*sides, memory=memory)
    before.confirm()
    now.confirm()
    return match_shared(shared, list(range(int(before.facts["n_clusters"]))), by=by)


def _row_ids(ids: Any) -> RowIds:
    return ids if isinstance(ids, RowIds) else RowIds("ids", lambda: iter([ids]))


@dataclass(frozen=True, eq=False)
class NamedLabels:
    """Labels of a result with names in place of numbers, read by rows as the array behind them is."""

    array: Any
    names: Sequence[int | None]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> np.dtype[np.int32]:
        return np.dtype(np.int32)

    def __getitem__(self, rows: Any) -> NDArray[np.int32]:
        names = np.asarray([*(NONE if name is None else name for name in self.names), NONE], np.int32)
        found: NDArray[np.int32] = names[np.asarray(self.array[rows])]
        return found


def names_in(url: str, n_clusters: int) -> list[int | None] | None:
    """Names of the clusters of a run directory, by number; None: the run follows none, and they have their numbers."""
    content = read_whole(place_in(url, MATCHING))
    if content is None:
        return None
    try:
        names = json.loads(content)["names"]
        if len(names) == n_clusters and all(name is None or type(name) is int for name in names):
            return list(names)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise StoreError(f"{place_in(url, MATCHING)}: no names of {n_clusters} clusters: edited or damaged; run it again")


def first(sizes: Int) -> Matching:
    """Of a result that follows none: clusters are called by their numbers."""
    names: list[int | None] = list(range(len(sizes)))
    clusters = [_entry(c, None, size, "new") for c, size in enumerate(sizes.tolist()) if size]
    return Matching("nothing", names, len(sizes), clusters, [], 0, int(sizes.sum()), None, None)


def _entry(name: int, before: int | None, now: int | None, state: str, other: int | None = None) -> dict[str, Any]:
    return {"name": name, "before": before, "now": now, "state": state, "other": other}


def enough(shared: Shared) -> bool:
    """Whether so many rows are shared that they can tell which cluster is which."""
    n_clusters = max(shared.table.shape) - 1
    return bool(shared.table[:-1, :-1].sum() >= ROWS_PER_CLUSTER * n_clusters)


def match_shared(shared: Shared, names: Sequence[int], next_name: int = 0, *, by: str = "ids") -> Matching:
    """Match by the rows that two results share.

    A pair may match if it holds at least half of the shared rows of one of the two. Of these, as many rows as possible
    keep their name.

    Parameters
    ----------
    shared : Shared
    names : sequence of int
        Of the clusters of the earlier result.
    next_name : int
        Least number that is not taken; at least one more than all names.
    by : str
        By what rows are the same.
    """
    inner = shared.table[:-1, :-1]
    halves = _half(inner.sum(axis=1), shared.before), _half(inner.sum(axis=0), shared.now)
    allowed = (inner > 0) & ((inner >= halves[0][:, None]) | (inner >= halves[1][None, :]))
    pairs = _optimal(np.where(allowed, inner, 0))
    found = _named(pairs, names, shared.before[:-1], shared.now[:-1], next_name)
    origin = _relatives(inner.T, halves[1])
    target = _relatives(inner, halves[0])
    name_of = {place: name for place, name in enumerate(found.names) if name is not None}
    places = {name: place for place, name in enumerate(names)}
    own_place = {name: place for place, name in name_of.items()}
    clusters = []
    for own in found.clusters:
        if own["state"] == "new" and (at := origin[own_place[own["name"]]]) >= 0:
            own = own | {"state": "split", "other": names[at]}
        elif own["state"] == "gone" and (at := target[places[own["name"]]]) >= 0:
            own = own | {"state": "merged", "other": name_of[at]}
        clusters.append(own)
    left, right = [*names, NONE], [name_of.get(c, NONE) for c in range(inner.shape[1])] + [NONE]
    flow = [(left[i], right[j], int(shared.table[i, j])) for i, j in np.argwhere(shared.table).tolist()]
    n_shared = sum(count for _, _, count in flow)
    return replace(
        found,
        by=by,
        clusters=clusters,
        flow=flow,
        n_before=int(shared.before.sum()),
        n_now=int(shared.now.sum()),
        n_shared=n_shared,
        n_moved=n_shared - sum(count for one, other, count in flow if one == other),
        repeated=shared.repeated,
    )


def _half(kept: Int, sizes: Int) -> NDArray[np.float64]:
    """Rows that are half of a cluster, of those that it shares."""
    expected = sizes[:-1] * (kept.sum() / max(1, int(sizes[:-1].sum())))
    found: NDArray[np.float64] = np.maximum(kept, expected / FEW) / 2
    return found


def _relatives(inner: Int, half: NDArray[np.float64]) -> list[int]:
    """For every row of the table, the column that holds half of it; -1 where none does."""
    most = inner.argmax(axis=1) if inner.shape[1] else np.zeros(len(inner), np.intp)
    return [int(at) if (n := inner[row, at]) and n >= half[row] else -1 for row, at in enumerate(most.tolist())]


def _optimal(gain: NDArray[Any]) -> list[tuple[int, int]]:
    """One-to-one pairs with the largest sum; of gain zero, none."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(gain, maximize=True)
    return [(i, j) for i, j in zip(rows.tolist(), columns.tolist(), strict=True) if gain[i, j] > 0]


def _named(pairs: Sequence[tuple[int, int]], names: Sequence[int], before: Int, now: Int, next_name: int) -> Matching:
    """Names of all clusters: those of a pair keep theirs, the others get new ones, the largest first."""
    free = max([next_name, *(name + 1 for name in names)])
    own: list[int | None] = [None] * len(now)
    for i, j in pairs:
        own[j] = names[i]
    for j in np.argsort(-now, kind="stable").tolist():
        if own[j] is None and now[j]:
            own[j], free = free, free + 1
    sizes = {names[i]: int(size) for i, size in enumerate(before.tolist()) if size}
    clusters = [
        _entry(name, sizes.get(name), int(now[j]), "kept" if name in sizes else "new")
        for j, name in enumerate(own)
        if name is not None
    ]
    clusters += [_entry(name, size, None, "gone") for name, size in sizes.items() if name not in own]
    clusters.sort(key=lambda one: one["name"])
    return Matching("", own, free, clusters, [], int(before.sum()), int(now.sum()), None, None)


def match_profiles(before: Profile, now: Profile, n_clusters: int, next_name: int = 0) -> Matching:
    """Match by the means of the features, in standard deviations of the earlier result.

    A pair may match if it is nearer than the earlier cluster is to any other of its own. Without a feature that both
    have, none does.

    Parameters
    ----------
    before : Profile
        Of the earlier result, its clusters by name.
    now : Profile
        Of the later one, its clusters by number.
    n_clusters : int
        Of the later result, with and without samples.
    next_name : int
        Least number that is not taken.
    """
    columns = [name for name in before.features if name in now.features]
    places = [[list(own.features).index(name) for name in columns] for own in (before, now)]
    old, new = (_table(own, "mean")[:, at] for own, at in zip((before, now), places, strict=True))
    sd = _spread(before)[places[0]]
    apart = _distances(old, old, sd)
    np.fill_diagonal(apart, np.inf)
    limit = apart.min(axis=1, initial=np.inf)
    distance = _distances(old, new, sd)
    apart = np.divide(distance, limit[:, None], out=np.ones_like(distance), where=np.isfinite(distance))
    gain = np.maximum(1.0 - apart, 0.0)
    numbers = [int(own["cluster"]) for own in now.clusters]
    pairs = [(i, numbers[j]) for i, j in _optimal(gain)]
    sizes = np.zeros(n_clusters, np.int64)
    sizes[numbers] = [own["size"] for own in now.clusters]
    names = [int(own["cluster"]) for own in before.clusters]
    held = np.asarray([own["size"] for own in before.clusters], np.int64)
    return replace(_named(pairs, names, held, sizes, next_name), by="profiles")


def _table(own: Profile, statistic: str) -> NDArray[np.float64]:
    found = [[np.nan if value is None else value for value in cluster[statistic]] for cluster in own.clusters]
    return np.asarray(found, np.float64).reshape(len(own.clusters), -1)


def _spread(own: Profile) -> NDArray[np.float64]:
    """Standard deviation of every feature over all clusters, from the mean and spread of each."""
    weight = np.asarray([cluster["share"] for cluster in own.clusters], np.float64)[:, None]
    mean, sd = _table(own, "mean"), _table(own, "sd")
    known = np.isfinite(mean)
    weight = np.where(known, weight, 0.0)
    total = np.maximum(weight.sum(axis=0), np.finfo(float).tiny)
    middle = (weight * np.where(known, mean, 0.0)).sum(axis=0) / total
    around = np.where(known, sd**2 + (mean - middle) ** 2, 0.0)
    found: NDArray[np.float64] = np.sqrt((weight * around).sum(axis=0) / total)
    return found


def _distances(one: NDArray[np.float64], other: NDArray[np.float64], sd: NDArray[np.float64]) -> NDArray[np.float64]:
    """Root mean square over the features that both have; infinite where there are none."""
    found = np.full((len(one), len(other)), np.inf)
    for i, own in enumerate(one):
        squares = np.divide(other - own, sd, out=np.full(other.shape, np.nan), where=sd > 0) ** 2
        known = np.isfinite(squares)
        count = known.sum(axis=1)
        total = np.where(known, squares, 0.0).sum(axis=1)
        found[i] = np.where(count > 0, np.sqrt(total / np.maximum(count, 1)), np.inf)
    return found
