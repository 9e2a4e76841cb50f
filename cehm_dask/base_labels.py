"""Stage: features → ensemble. Thirty clusterings of the same rows, made in two or three sweeps over them.

Members are drawn from one seed, fitted on all rows or on a random sample of them, side by side, and then one sweep
labels every row for all members together: each block of features is read once. Members that assign to the nearest
centre (k-means and its relatives, also in random subspaces or projections) become linear scores x·slope + intercept
and share one compiled kernel; the others label a block by their own ``predict``.
"""

import copy
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isqrt, sqrt
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cehm_dask import kernels
from cehm_dask.engine import crew
from cehm_dask.features import BLOCK_ROWS, Features, Scaling, fit_scaling, sample_rows
from cehm_dask.labels import Codes
from cehm_dask.machine import cluster_machine, this_machine
from cehm_dask.plan import threads_for_generation
from cehm_dask.store import create_ensemble, digest_of, open_ensemble, replace_store, shape_of_chunks, sole_writer

log = logging.getLogger(__name__)
T = TypeVar("T")

BASES = ("kmeans", "minibatch", "mixture", "birch", "dask-ml")
FULL_FIT_ROWS = 1 << 15
"""Up to this many rows members are fitted on all of them; beyond, on a random sample of as many."""

LLOYD_ROUNDS = 100
LLOYD_TOLERANCE = 1e-4
"""Lloyd's iteration ends for a member when its centres move, squared and summed, by less than this."""


class Fitted(Protocol):
    """A fitted member: labels rows of scaled features from 0."""

    def predict(self, rows: NDArray[np.float32]) -> NDArray[Any]: ...


@dataclass(frozen=True)
class MemberPlan:
    """One base clustering to be made: everything that its labels depend on, beside the data."""

    base: Any
    """A name of BASES, or an estimator with ``predict``."""
    k: int
    seed: int
    subspace: float | None = None
    """Share of the features it sees, drawn at random."""
    projection: int | None = None
    """Dimensions of a random projection it sees."""
    bootstrap: bool = False
    """Whether it is fitted on rows drawn with repetition."""

    def facts(self) -> dict[str, Any]:
        """For the store's provenance."""
        name = self.base if isinstance(self.base, str) else type(self.base).__name__
        parameters = {"subspace": self.subspace, "projection": self.projection, "bootstrap": self.bootstrap or None}
        return {
            "algorithm": name,
            "k": self.k,
            "seed": self.seed,
            "parameters": {key: value for key, value in parameters.items() if value is not None},
        }


def k_range(n_clusters: int, n_samples: int) -> tuple[int, int]:
    """Fewest and most clusters of a member, as in the paper.

    >>> k_range(10, 1_000_000)
    (10, 50)
    """
    return n_clusters, min(n_samples, max(min(isqrt(n_samples), 50), ceil(1.5 * n_clusters)))


def plan_members(
    count: int,
    k_min: int,
    k_max: int,
    seed: int,
    *,
    base: Any = "kmeans",
    first: int = 0,
    subspace: float | None = None,
    projection: int | None = None,
    bootstrap: bool = False,
) -> list[MemberPlan]:
    """Draw members ``first`` to ``first + count``; each has a seed of its own, whoever makes it and when.

    ``base`` may be a sequence: members take turns.
    """
    bases: Sequence[Any] = base if isinstance(base, list | tuple) else [base]
    for one in bases:
        if isinstance(one, str) and one not in BASES:
            raise ValueError(f"base={one!r}: expected one of {', '.join(map(repr, BASES))}, or an estimator")
    if count < 1:
        raise ValueError(f"members={count}: must be at least 1")
    if not 1 <= k_min <= k_max:
        raise ValueError(f"k_min={k_min}, k_max={k_max}: expected 1 <= k_min <= k_max")
    if subspace is not None and not 0 < subspace <= 1:
        raise ValueError(f"subspace={subspace}: expected a share of the features, above 0 and at most 1")
    plans = []
    for number in range(first, first + count):
        rng = np.random.default_rng([seed, number])
        k, own = int(rng.integers(k_min, k_max + 1)), int(rng.integers(2**31))
        plans.append(MemberPlan(bases[number % len(bases)], k, own, subspace, projection, bootstrap))
    return plans


@dataclass(frozen=True, eq=False)
class Linear:
    """A member that assigns to the largest of k linear scores of the scaled features."""

    slopes: NDArray[np.float32]
    intercepts: NDArray[np.float32]
    names: NDArray[np.int64]
    """Cluster of each score; several centres may share one."""
    view: NDArray[np.float32] | None = None
    """What it sees of the features: x·view; None: all of them."""


@dataclass(frozen=True, eq=False)
class Viewed:
    """A member that sees the features through a projection and labels rows by its own ``predict``."""

    model: Any
    view: NDArray[np.float32] | None

    def predict(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        seen = rows if self.view is None else rows @ self.view
        return np.asarray(self.model.predict(seen))


@dataclass(frozen=True, eq=False)
class Given:
    """A member that cannot label rows it has not seen: its labels of all rows, and silence about any other."""

    labels: NDArray[np.int64]


Member = Linear | Viewed | Given


def fit_member(plan: MemberPlan, rows: NDArray[np.float32]) -> tuple[Member, float]:
    """Fit one member on rows of scaled features; returns it and the seconds it took."""
    begin = time.perf_counter()
    rng = np.random.default_rng(plan.seed)
    view = _view(plan, rows.shape[1], rng)
    seen = rows if view is None else rows @ view
    if plan.bootstrap:
        seen = seen[np.sort(rng.integers(0, len(seen), len(seen)))]
    model = _estimator(plan, int(rng.integers(2**31)))
    if not hasattr(model, "predict"):
        found = np.asarray(model.fit_predict(seen), np.int64)
        return Given(np.unique(found, return_inverse=True)[1]), time.perf_counter() - begin
    # A mixture of many components needs the digits.
    model.fit(seen.astype(np.float64) if plan.base == "mixture" else seen)
    return _linear(model, view) or Viewed(model, view), time.perf_counter() - begin


def _view(plan: MemberPlan, features: int, rng: np.random.Generator) -> NDArray[np.float32] | None:
    """Columns of the features, or mixtures of them, that a member sees."""
    view = np.eye(features, dtype=np.float32)
    if plan.subspace is not None:
        kept = np.sort(rng.choice(features, max(1, round(plan.subspace * features)), replace=False))
        view = view[:, kept]
    if plan.projection is not None:
        mixture = rng.standard_normal((view.shape[1], plan.projection)).astype(np.float32)
        view = view @ (mixture / np.float32(sqrt(plan.projection)))
    return None if plan.subspace is None and plan.projection is None else view


def _estimator(plan: MemberPlan, seed: int) -> Any:
    if not isinstance(plan.base, str):
        model = copy.deepcopy(plan.base)
        settable = model.get_params() if hasattr(model, "get_params") else {}
        wanted = {"n_clusters": plan.k, "n_components": plan.k, "random_state": seed}
        if settable:
            model.set_params(**{name: value for name, value in wanted.items() if name in settable})
        return model
    from sklearn.cluster import Birch, KMeans, MiniBatchKMeans
    from sklearn.mixture import GaussianMixture

    if plan.base == "kmeans":
        return KMeans(plan.k, init="random", n_init=1, random_state=seed)
    if plan.base == "minibatch":
        return MiniBatchKMeans(plan.k, init="random", n_init=1, random_state=seed)
    if plan.base == "mixture":
        return GaussianMixture(
            plan.k, covariance_type="diag", init_params="random_from_data", reg_covar=1e-3, random_state=seed
        )
    if plan.base == "birch":
        return Birch(n_clusters=plan.k)
    try:
        from dask_ml.cluster import KMeans as DaskKMeans
    except ImportError as error:
        raise ValueError("base='dask-ml' needs an extra package: pip install 'cehm-dask[dask-ml]'") from error
    return DaskKMeans(plan.k, random_state=seed)


def _linear(model: Any, view: NDArray[np.float32] | None) -> Linear | None:
    """Nearest centre as linear scores: |x − c|² is least where x·c − |c|²/2 is largest.

    A view x → x·V changes only the slopes: (x·V)·c = x·(V·c).
    """
    centres = getattr(model, "subcluster_centers_", getattr(model, "cluster_centers_", None))
    if centres is None or np.ndim(centres) != 2:
        return None
    names = np.asarray(getattr(model, "subcluster_labels_", np.arange(len(centres))), np.int64)
    return _scores(np.asarray(centres, np.float64), names, view)


def _scores(centres: NDArray[np.float64], names: NDArray[np.int64], view: NDArray[np.float32] | None) -> Linear:
    slopes = centres if view is None else centres @ view.T.astype(np.float64)
    intercepts = -0.5 * (centres**2).sum(axis=1)
    return Linear(slopes.astype(np.float32), intercepts.astype(np.float32), names, view)


def fit_members(
    plans: Sequence[MemberPlan],
    rows: NDArray[np.float32],
    pool: Executor,
    *,
    report: Callable[[str, int], None] = lambda _what, _count: None,
) -> list[tuple[Member, float]]:
    """Fit members side by side, each on one thread: sums inside a fit then do not depend on the machine."""
    from threadpoolctl import threadpool_limits

    def fit(plan: MemberPlan) -> tuple[Member, float]:
        threadpool_limits(1)  # of a worker, for good; in this process the limits outside put it back
        return fit_member(plan, rows)

    with threadpool_limits(1):
        return list(_reported(pool.map(fit, plans), lambda _fitted: report("fitted", 1)))


def _reported(results: Iterator[T], tell: Callable[[T], None]) -> Iterator[T]:
    """Results as they come, each told of in this process, whoever made it."""
    for result in results:
        tell(result)
        yield result


@dataclass(frozen=True, eq=False)
class Labeller:
    """All fitted members together: a block of raw features in, a block of codes out."""

    scaling: Scaling
    members: tuple[Member, ...]
    widths: tuple[int, ...]
    """Most clusters of each member."""

    def __post_init__(self) -> None:
        linear = [member for member in self.members if isinstance(member, Linear)]
        features = len(self.scaling.columns)
        slopes = [member.slopes for member in linear] or [np.empty((0, features), np.float32)]
        intercepts = [member.intercepts for member in linear] or [np.empty(0, np.float32)]
        object.__setattr__(self, "_slopes", np.concatenate(slopes))
        object.__setattr__(self, "_intercepts", np.concatenate(intercepts))
        object.__setattr__(self, "_first", np.cumsum([0, *(len(member.slopes) for member in linear)]))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.min_scalar_type(max(self.widths)))

    def nearest(self, scaled: NDArray[np.float32]) -> NDArray[np.uint16]:
        """1 + the nearest centre of scaled rows, for each member that has centres."""
        found = np.empty((len(scaled), len(self._first) - 1), np.uint16)  # type: ignore[attr-defined]
        columns = np.ascontiguousarray(scaled.T)
        kernels.nearest(columns, self._slopes, self._intercepts, self._first, found)  # type: ignore[attr-defined]
        return found

    def label(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> Codes:
        """Codes (label + 1) of rows of raw features, one column a member."""
        scaled = self.scaling.apply(rows, first_row, names)
        codes = np.empty((len(scaled), len(self.members)), self.dtype)
        linear = [j for j, member in enumerate(self.members) if isinstance(member, Linear)]
        if linear:
            found = self.nearest(scaled)
            for i, j in enumerate(linear):
                codes[:, j] = self.members[j].names[found[:, i] - 1] + 1  # type: ignore[union-attr]
        for j, member in enumerate(self.members):
            if isinstance(member, Viewed):
                codes[:, j] = member.predict(scaled) + 1
            elif isinstance(member, Given):
                codes[:, j] = member.labels[first_row : first_row + len(scaled)] + 1
        return codes


def make_labeller(
    features: Features,
    plans: Sequence[MemberPlan],
    seed: int,
    pool: Executor,
    *,
    scale: str = "standard",
    impute: str | None = None,
    fit_rows: int | None = None,
    full_lloyd: bool = False,
    report: Callable[[str, int], None] = lambda _what, _count: None,
) -> tuple[Labeller, list[dict[str, Any]]]:
    """Scale, sample and fit: all that comes before the one sweep that labels; and each member's provenance.

    With ``full_lloyd``, k-means members go on from the centres of the sample over all rows.
    """
    count = min(features.n_samples, fit_rows or FULL_FIT_ROWS)
    most = max(plan.k for plan in plans)
    if most > count:
        raise ValueError(f"k={most} of a member > {count} rows it is fitted on: raise fit_rows or lower k_max")
    for plan in plans:
        if not isinstance(plan.base, str) and not hasattr(plan.base, "predict") and count < features.n_samples:
            raise ValueError(
                f"{type(plan.base).__name__} has no predict, so it must be fitted on all rows, not on {count}: "
                f"pass fit_rows={features.n_samples} if they fit in memory"
            )
    _, sample = sample_rows(features, count, seed, pool)
    scaling = fit_scaling(features, scale, pool, impute=impute, sample=sample)
    fitted = fit_members(plans, scaling.apply(sample, names=features.names), pool, report=report)
    members = tuple(member for member, _ in fitted)
    if full_lloyd:
        members = _all_rows(features, scaling, plans, members, pool, report)
    labeller = Labeller(scaling, members, tuple(map(_width, members, plans)))
    facts = [
        {
            **plan.facts(),
            "fit_rows": features.n_samples if full_lloyd and plan.base in LLOYD else count,
            "scale": scale,
            "seconds": round(seconds, 4),
        }
        for plan, (_, seconds) in zip(plans, fitted, strict=True)
    ]
    return labeller, facts


LLOYD = ("kmeans", "minibatch", "dask-ml")


def _all_rows(
    features: Features,
    scaling: Scaling,
    plans: Sequence[MemberPlan],
    members: tuple[Member, ...],
    pool: Executor,
    report: Callable[[str, int], None],
) -> tuple[Member, ...]:
    chosen = [j for j, plan in enumerate(plans) if plan.base in LLOYD]
    if not chosen:
        raise ValueError(f"full_lloyd: none of the members is one of {', '.join(LLOYD)}")
    centres = [member for member in (members[j] for j in chosen) if isinstance(member, Linear)]
    moved = dict(zip(chosen, lloyd(features, scaling, centres, pool, report=report), strict=True))
    return tuple(moved.get(j, member) for j, member in enumerate(members))


def lloyd(
    features: Features,
    scaling: Scaling,
    members: Sequence[Linear],
    pool: Executor,
    *,
    report: Callable[[str, int], None] = lambda _what, _count: None,
) -> list[Linear]:
    """k-means on all rows, larger than memory or not: every sweep over the features serves all members that still move.

    Starts from the centres the members have. Sums run block by block in row order, so they do not depend on the
    number of threads or workers.
    """
    done: dict[int, Linear] = {}
    moving = dict(enumerate(members))
    for _ in range(LLOYD_ROUNDS):
        sums, counts = _centre_sums(features, scaling, list(moving.values()), pool)
        report("Lloyd", features.n_samples)
        edges = np.cumsum([0, *(len(member.names) for member in moving.values())])
        for (number, member), (a, b) in zip(list(moving.items()), pairwise(edges), strict=True):
            before = _centres(member)
            means = sums[a:b] / np.maximum(counts[a:b, None], 1)
            seen = means if member.view is None else means @ member.view.astype(np.float64)
            # A centre that lost all its rows stays where it is.
            centres = np.where(counts[a:b, None] > 0, seen, before)
            moving[number] = _scores(centres, member.names, member.view)
            if ((centres - before) ** 2).sum() < LLOYD_TOLERANCE:
                done[number] = moving.pop(number)
        if not moving:
            break
    return [(done | moving)[number] for number in range(len(members))]


def _centres(member: Linear) -> NDArray[np.float64]:
    """Centres of a member, in what it sees of the features."""
    slopes = member.slopes.astype(np.float64)
    return slopes if member.view is None else slopes @ np.linalg.pinv(member.view.T.astype(np.float64))


def _centre_sums(
    features: Features, scaling: Scaling, members: Sequence[Linear], pool: Executor
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Sum of the scaled rows nearest to each centre, and how many there are, in one sweep."""
    labeller = Labeller(scaling, tuple(members), tuple(len(member.names) for member in members))
    first = np.cumsum([0, *(len(member.names) for member in members)])

    def look(block: tuple[int, int]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        scaled = scaling.apply(features.read(*block), block[0], features.names)
        sums, counts = np.zeros((first[-1], scaled.shape[1])), np.zeros(first[-1], np.int64)
        kernels.centre_sums(scaled, labeller.nearest(scaled), first, sums, counts)
        return sums, counts

    parts = pool.map(look, features.blocks())
    sums, counts = next(parts)
    for more, rows in parts:
        sums = sums + more
        counts = counts + rows
    return sums, counts


def _width(member: Member, plan: MemberPlan) -> int:
    if isinstance(member, Linear):
        return int(member.names.max()) + 1
    return int(member.labels.max()) + 1 if isinstance(member, Given) else plan.k


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
    report: Callable[[str, int], None] = lambda _what, _count: None,
    **fitting: Any,
) -> str:
    """Make members and write their labels to an ensemble.zarr, a whole shard at a time; returns the fingerprint.

    An interrupted generation goes on with the shards that are missing. With ``append``, the members are put behind
    those of the ensemble that is there. ``memory``, ``threads`` and ``client`` say who works, and change no label: a
    client's workers read the features themselves, so features that only this process holds stay with its threads.
    """
    before = open_ensemble(url) if append else None
    if before is not None and before.n_samples != features.n_samples:
        raise ValueError(f"features have {features.n_samples} rows, the ensemble {url} has {before.n_samples}")
    if client is not None and features.reopen is None:
        log.info("features from %s cannot be opened by workers: this process makes the members", features.source)
        client = None
    machine = this_machine(memory, threads) if client is None else cluster_machine(client, memory)
    n_members = len(plans) + (len(before.widths) if before else 0)
    threads = threads_for_generation(
        features.n_features,
        n_members,
        fit_rows=min(features.n_samples, fitting.get("fit_rows") or FULL_FIT_ROWS),
        block_rows=min(features.n_samples, BLOCK_ROWS),
        shard_rows=min(features.n_samples, shape_of_chunks(features.n_samples, n_members, 1)[1]),
        allowed=machine.allowed,
        taken=machine.taken,
        threads=machine.threads,
    )
    with sole_writer(url, overwrite=overwrite or append), crew(threads, client) as pool:
        labeller, facts = make_labeller(features, plans, seed, pool, report=report, **fitting)
        widths = [*(before.widths if before else ()), *(width + 1 for width in labeller.widths)]
        target = f"{url.rstrip('/')}.growing" if append else url
        identity = [features.n_samples, features.names, seed, [plan.facts() for plan in plans], fitting]
        identity.append(before.fingerprint if before else None)
        values = None
        if before is not None and before.values is not None:
            values = [*before.values, *(np.arange(width) for width in labeller.widths)]
        writer = create_ensemble(
            target,
            features.n_samples,
            widths,
            names=[*before.names, *(str(len(before.names) + j) for j in range(len(plans)))] if before else None,
            values=values,
            members=[*(before.members if before else ()), *facts],
            source=features.source,
            overwrite=overwrite,
            identity=hashlib.blake2b(repr(identity).encode(), digest_size=16).hexdigest(),
        )

        def label_shard(shard: int) -> tuple[str, list[NDArray[np.int64]]]:
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
                digest = digest_of(codes)
            return digest, [np.bincount(codes[:, j], minlength=width)[1:] for j, width in enumerate(widths)]

        def tell(labelled: tuple[str, list[NDArray[np.int64]]]) -> None:
            report("labelled", int(labelled[1][-1].sum()))

        done = list(_reported(pool.map(label_shard, range(writer.n_shards)), tell))
        sizes = [np.sum(parts, axis=0) for parts in zip(*(own for _, own in done), strict=True)]
        fingerprint = writer.finish([digest for digest, _ in done], sizes)
        if append:
            replace_store(target, url)
    return fingerprint


def label_all(features: Features, labeller: Labeller, pool: Executor) -> Codes:
    """Codes of every row in memory, made in one sweep by threads of this process."""
    codes = np.empty((features.n_samples, len(labeller.members)), labeller.dtype)

    def label(block: tuple[int, int]) -> None:
        codes[slice(*block)] = labeller.label(features.read(*block), block[0], features.names)

    list(pool.map(label, features.blocks()))
    return codes
