"""Members, one by one: what is drawn for each from the seed, how it is fitted, and how it labels rows.

Between the features and the ensemble. Members that assign to the nearest centre (k-means and its relatives, also in
random subspaces or projections) become linear scores x·slope + intercept and share one compiled kernel; the others
label a block by their own ``predict``.

k-means members are the same, bit for bit, on every x86-64 CPU. The others are fitted by libraries whose sums depend on
the CPU and on versions: what they depended on is kept beside them (:func:`numerics`).
"""

import copy
import hashlib
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import ceil, isqrt, sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.scaling import Scaling
from cehm_dask.data.sources import Codes
from cehm_dask.data.transformer import Transformed
from cehm_dask.engine.task import Workers
from cehm_dask.errors import InputError
from cehm_dask.machine import one_thread_each
from cehm_dask.members.kmeans import fit_centres, through
from cehm_dask.members.subsample import Subsample, drawn
from cehm_dask.method import distances
from cehm_dask.progress import NO_PROGRESS, Count, Progress
from cehm_dask.wording import option, spoken

T = TypeVar("T")

BASES = ("kmeans", "minibatch", "mixture", "birch", "dask-ml")


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
    subsample: float | None = None
    """Share of the rows that it is fitted on and labels; it is silent about the others."""

    def facts(self) -> dict[str, Any]:
        """For the store's provenance."""
        name = self.base if isinstance(self.base, str) else type(self.base).__name__
        parameters = {
            "subspace": self.subspace,
            "projection": self.projection,
            "bootstrap": self.bootstrap or None,
            "subsample": self.subsample,
        }
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
    if isinstance(n_clusters, int | np.integer) and not 1 <= n_clusters <= n_samples:
        asked = option("n_clusters" if spoken() == "python" else "k", n_clusters)
        raise InputError(f"{asked}: expected 1 to {n_samples}, the number of rows")
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
    subsample: float | None = None,
) -> list[MemberPlan]:
    """Draw members ``first`` to ``first + count``; each has a seed of its own, whoever makes it and when.

    ``base`` may be a sequence: members take turns.
    """
    bases: Sequence[Any] = base if isinstance(base, list | tuple) else [base]
    for one in bases:
        if isinstance(one, str) and one not in BASES:
            raise InputError(f"{option('base', one)}: expected one of {', '.join(BASES)}, or an estimator in Python")
    for name, value in {"members": count, "k_min": k_min, "k_max": k_max, "projection": projection}.items():
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise InputError(f"{option(name, value)}: expected a whole number of at least 1")
    if k_min > k_max:
        raise InputError(f"{option('k_min', k_min)}, {option('k_max', k_max)}: expected at least as many as k_min")
    for name, share in {"subspace": subspace, "subsample": subsample}.items():
        if share is not None and not (isinstance(share, int | float | np.number) and 0 < share <= 1):
            of = "features" if name == "subspace" else "rows"
            raise InputError(f"{option(name, share)}: expected a share of the {of}, above 0 and at most 1")
    if subsample is not None and bootstrap:
        raise InputError(f"{option('subsample', subsample)}, {option('bootstrap')}: give one of the two")
    plans = []
    for number in range(first, first + count):
        rng = np.random.default_rng([seed, number])
        k, own = int(rng.integers(k_min, k_max + 1)), int(rng.integers(2**31))
        plans.append(MemberPlan(bases[number % len(bases)], k, own, subspace, projection, bootstrap, subsample))
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
class Centred(Linear):
    """A member as it was fitted, with its centres; to label rows, its scores are enough."""

    centres: NDArray[np.float64] = field(kw_only=True)
    """In what it sees of the features."""


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


def fit_member(
    plan: MemberPlan, rows: NDArray[np.float32], numbers: NDArray[np.int64] | None = None
) -> tuple[Member, float]:
    """Fit one member on rows of scaled features; returns it and the seconds it took.

    ``numbers`` are those of the rows among all; default: from 0. A subsample is drawn by them.
    """
    begin = time.perf_counter()
    rng = np.random.default_rng(plan.seed)
    view = view_of(plan, rows.shape[1], rng)
    kept = _subsampled(plan, np.arange(len(rows)) if numbers is None else numbers)
    seen = rows if kept is None else rows[kept]
    seen = seen if view is None else through(seen, view)
    if plan.bootstrap:
        seen = seen[np.sort(rng.integers(0, len(seen), len(seen)))]
    seed = int(rng.integers(2**31))
    if plan.base == "kmeans":
        return linear(fit_centres(seen, plan.k, seed), np.arange(plan.k), view), time.perf_counter() - begin
    model = _estimator(plan, seed)
    if not hasattr(model, "predict"):
        found = np.unique(np.asarray(model.fit_predict(seen), np.int64), return_inverse=True)[1]
        return Given(_spread(found, kept)), time.perf_counter() - begin
    # A mixture of many components needs the digits.
    model.fit(seen.astype(np.float64) if plan.base == "mixture" else seen)
    return _linear(model, view) or Viewed(model, view), time.perf_counter() - begin


def _subsampled(plan: MemberPlan, numbers: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Which of the rows with these numbers a member is fitted on; None: all."""
    if plan.subsample is None:
        return None
    kept = drawn(plan.seed, plan.subsample, numbers)
    if kept.sum() < plan.k:
        raise InputError(
            f"{option('subsample', plan.subsample)}: {kept.sum()} of {len(numbers)} rows were drawn for a member with "
            f"{plan.k} clusters: raise it, or lower k_max"
        )
    return kept


def _spread(labels: NDArray[np.int64], kept: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    """Labels of the rows that were kept as labels of all rows; -1: no label."""
    if kept is None:
        return labels
    found = np.full(len(kept), -1)
    found[kept] = labels
    return found


def view_of(plan: MemberPlan, features: int, rng: np.random.Generator) -> NDArray[np.float32] | None:
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
    from sklearn.cluster import Birch, MiniBatchKMeans
    from sklearn.mixture import GaussianMixture

    if plan.base == "minibatch":
        return MiniBatchKMeans(plan.k, init="random", n_init=1, random_state=seed)
    if plan.base == "mixture":
        return GaussianMixture(
            plan.k, covariance_type="diag", init_params="random_from_data", reg_covar=1e-3, random_state=seed
        )
    return Birch(n_clusters=plan.k)


def _linear(model: Any, view: NDArray[np.float32] | None) -> Centred | None:
    """Nearest centre as linear scores: |x − c|² is least where x·c − |c|²/2 is largest.

    A view x → x·V changes only the slopes: (x·V)·c = x·(V·c).
    """
    centres = getattr(model, "subcluster_centers_", getattr(model, "cluster_centers_", None))
    if centres is None or np.ndim(centres) != 2:
        return None
    names = np.asarray(getattr(model, "subcluster_labels_", np.arange(len(centres))), np.int64)
    return linear(np.asarray(centres, np.float64), names, view)


def linear(centres: NDArray[np.float64], names: NDArray[np.int64], view: NDArray[np.float32] | None) -> Centred:
    """Scores whose largest is that of the nearest centre."""
    slopes = centres if view is None else through(centres, view.T.astype(np.float64))
    intercepts = -0.5 * (centres**2).sum(axis=1)
    return Centred(slopes.astype(np.float32), intercepts.astype(np.float32), names, view, centres=centres)


def fit_members(
    plans: Sequence[MemberPlan],
    rows: NDArray[np.float32],
    numbers: NDArray[np.int64],
    workers: Workers,
    *,
    progress: Progress = NO_PROGRESS,
) -> list[tuple[Member, dict[str, Any]]]:
    """Fit members side by side, each on one thread; returns each with what is to be known of its making.

    One thread, because sums inside the fits of libraries would else depend on their number.
    """
    count = Count(progress, "fitted", len(plans))
    return list(reported(workers.each(_fit, plans, rows, numbers), lambda _fitted: count.add(1)))


def _fit(plan: MemberPlan, rows: NDArray[np.float32], numbers: NDArray[np.int64]) -> tuple[Member, dict[str, Any]]:
    # k-means here calls no library whose sums depend on threads, and setting the limit takes several times as long as
    # a fit on hundreds of rows (15 ms and 2 ms): seconds, with a thousand members.
    with nullcontext() if plan.base == "kmeans" else one_thread_each():
        member, seconds = fit_member(plan, rows, numbers)
    made = {"seconds": round(seconds, 4)}
    return member, made if plan.base == "kmeans" else {**made, "numerics": numerics()}


def numerics() -> list[str]:
    """Versions and kinds of the libraries on which members other than k-means depend, to the last bit."""
    from threadpoolctl import threadpool_info

    libraries = [f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scipy", "scikit-learn")]
    blas = {
        " ".join(str(found.get(name)) for name in ("internal_api", "version", "architecture"))
        for found in threadpool_info()
        if found["user_api"] == "blas"
    }
    return [*libraries, *sorted(blas)]


def reported(results: Iterator[T], tell: Callable[[T], None]) -> Iterator[T]:
    """The same results in the same order; ``tell`` is called with each, in this process."""
    for result in results:
        tell(result)
        yield result


@dataclass(frozen=True, eq=False)
class Labeller:
    """All fitted members together: a block of raw features in, a block of codes out."""

    scaling: Scaling | Transformed
    members: tuple[Member, ...]
    widths: tuple[int, ...]
    """Most clusters of each member."""
    subsample: Subsample | None = None
    """Which rows each member is silent about; None: it labels all, as it does new ones."""

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
        distances.nearest(columns, self._slopes, self._intercepts, self._first, found)  # type: ignore[attr-defined]
        return found

    def label(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> Codes:
        """Codes (label + 1) of rows of raw features, one column per member."""
        scaled = self.scaling.apply(rows, first_row, names)
        codes = np.empty((len(scaled), len(self.members)), self.dtype)
        linear = [j for j, member in enumerate(self.members) if isinstance(member, Linear)]
        if linear:
            found = self.nearest(scaled)
            for i, j in enumerate(linear):
                codes[:, j] = self.members[j].names[found[:, i] - 1] + 1  # type: ignore[union-attr]
        for j, member in enumerate(self.members):
            if isinstance(member, Viewed):
                found = member.predict(scaled)
                if len(found) and not -1 <= found.min() <= found.max() < self.widths[j]:
                    raise InputError(
                        f"member {j}: {type(member.model).__name__} gives labels {found.min()} to {found.max()}, "
                        f"expected 0 to {self.widths[j] - 1} (-1: a missing label): it needs a parameter n_clusters"
                    )
                codes[:, j] = found + 1
            elif isinstance(member, Given):
                codes[:, j] = member.labels[first_row : first_row + len(scaled)] + 1
        if self.subsample is not None:
            self.subsample.silence(codes, first_row)
        return codes

    def digest(self) -> str:
        """Of all numbers that the labels depend on, to the last bit; members with ``predict`` aside."""
        digest = hashlib.blake2b(digest_size=16)
        arrays: list[Any] = self.scaling.numbers()
        for member in self.members:
            if isinstance(member, Linear):
                arrays += [member.slopes, member.intercepts, member.names]
            elif isinstance(member, Given):
                arrays.append(member.labels)
        for array in arrays:
            digest.update(repr(None if array is None else (array.shape, array.dtype)).encode())
            digest.update(b"" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()


def width_of(member: Member, plan: MemberPlan) -> int:
    if isinstance(member, Linear):
        return int(member.names.max()) + 1
    return int(member.labels.max()) + 1 if isinstance(member, Given) else plan.k
