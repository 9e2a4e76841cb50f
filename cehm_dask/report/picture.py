"""The samples of the picture in the plane: given coordinates, the features' main axes, or the members' agreement.

Between the sources (features, base labels) and the figures. Rows are read block by block; only the sampled ones are
kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.features import BLOCK_ROWS as FEATURE_ROWS
from cehm_dask.data.features import Features, as_features
from cehm_dask.data.labels import Labels
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError
from cehm_dask.machine import Machine, one_thread, one_thread_each, require_memory, this_machine
from cehm_dask.report.neighbours import EMBEDDING_BYTES, MOST_AXES, Neighbours, embed

BLOCK_ROWS = 1 << 16
MOST_POINTS = 3000
"""Samples that are drawn."""

PART_VALUES = 1 << 20
"""Numbers whose products are summed in one go: 8 MB."""

FIRST_ROWS = 1 << 10

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Plane:
    """Two coordinates per sampled row, and what the axes are."""

    coordinates: NDArray[np.float64]
    axes: str
    neighbours: Neighbours | None = None
    """The same samples, or some of them, placed by their nearest neighbours."""


def plane_of(
    rows: NDArray[np.int64],
    n_samples: int,
    *,
    coordinates: Any,
    features: Any,
    labels: Labels | None,
    memory: str | int | None = None,
) -> Plane | None:
    """Where to draw the sampled rows; None if no source was given."""
    if coordinates is not None:
        given = as_features(coordinates)
        check_rows("coordinates", given.n_samples, n_samples)
        if given.n_features != 2:
            raise InputError(f"coordinates have {given.n_features} columns: expected two, x and y")
        return Plane(pick(given.read, rows, n_samples).astype(np.float64), "the given coordinates")
    if features is not None:
        given = as_features(features)
        check_rows("features", given.n_samples, n_samples)
        return _feature_plane(given, rows, memory)
    return None if labels is None else _label_plane(labels, rows)


def check_rows(what: str, found: int, n_samples: int) -> None:
    if found != n_samples:
        raise InputError(f"{what} have {found:,} rows, the consensus {n_samples:,}: they must be of the same samples")


def pick(read: Callable[[int, int], NDArray[Any]], rows: NDArray[np.int64], n_samples: int) -> NDArray[Any]:
    """Some rows, ascending, from a source that is read in blocks; blocks without any are skipped."""
    parts = []
    for start in range(0, n_samples, BLOCK_ROWS):
        first, last = np.searchsorted(rows, [start, start + BLOCK_ROWS])
        if first < last:
            block = read(start, min(start + BLOCK_ROWS, n_samples))
            parts.append(np.asarray(block)[rows[first:last] - start])
    return np.concatenate(parts)


def feature_terms(n_samples: int, n_features: int, machine: Machine) -> dict[str, int]:
    """Bytes of the pass over all features, by what they are for; as many threads as fit, one at least."""
    rows = min(n_samples, FEATURE_ROWS)
    table = 8 * n_features**2
    # A block as it is read and as it was stored; of a part of it, values, centred values and which are finite.
    thread = 2 * 8 * rows * n_features + 3 * 8 * _part_rows(n_features) * n_features + 5 * table
    terms = {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "samples of the picture": 3 * 8 * MOST_POINTS * n_features,
        "covariance and its axes": 9 * table + 3 * 8 * MOST_AXES * n_features,
        "neighbour embedding": EMBEDDING_BYTES,
    }
    room = machine.allowed - sum(terms.values())
    return terms | {"blocks of features": thread * max(1, min(machine.threads, room // max(1, thread)))}


def require_picture(features: Features, machine: Machine) -> int:
    """Threads that can go through features side by side, or a refusal."""
    terms = feature_terms(features.n_samples, features.n_features, machine)
    require_memory("the picture of the features", terms, machine.allowed, ", or give coordinates instead")
    one = feature_terms(features.n_samples, features.n_features, replace(machine, threads=1))
    return terms["blocks of features"] // one["blocks of features"]


def _part_rows(n_features: int) -> int:
    """Rows whose products are summed in one go; by the features alone, because sums of floats depend on it."""
    return max(1, min(FEATURE_ROWS, PART_VALUES // n_features))


@dataclass(eq=False)
class _Moments:
    """Sums over some rows of values less ``centre``; what is not finite counts nowhere."""

    sums: Float
    counts: Float
    products: Float
    """Of every two columns."""
    sums_beside: Float
    """Of a column, over the rows in which the other has a value."""
    counts_beside: Float
    """Rows in which both have a value."""
    sampled: list[Float]

    def add(self, values: NDArray[Any], centre: Float) -> None:
        shifted = values - centre
        finite = np.isfinite(shifted)
        if finite.all():
            sums, rows = shifted.sum(axis=0), float(len(values))
            self.sums_beside += sums[:, None]
            self.counts_beside += rows
            self.counts += rows
        else:
            shifted[~finite] = 0.0
            given = finite.astype(np.float64)
            sums = shifted.sum(axis=0)
            self.sums_beside += shifted.T @ given
            self.counts_beside += given.T @ given
            self.counts += given.sum(axis=0)
        self.sums += sums
        self.products += shifted.T @ shifted

    def join(self, later: "_Moments") -> None:
        for name in ("sums", "counts", "products", "sums_beside", "counts_beside"):
            getattr(self, name)[...] += getattr(later, name)
        self.sampled += later.sampled

    def means_and_covariance(self) -> tuple[Float, Float]:
        """Means, less the centre, and products about them, of values of which a missing one is its column's mean."""
        means = self.sums / np.maximum(self.counts, 1)
        beside = self.sums_beside * means
        return means, self.products - beside - beside.T + self.counts_beside * np.outer(means, means)


def _moments(block: tuple[int, int], features: Features, rows: NDArray[np.int64], centre: Float) -> _Moments:
    """Of one block, with those of its rows that are drawn."""
    d = features.n_features
    products, sums_beside, counts_beside = np.zeros((3, d, d))
    found = _Moments(np.zeros(d), np.zeros(d), products, sums_beside, counts_beside, [])
    values = features.read(*block)
    first, last = np.searchsorted(rows, block)
    found.sampled.append(np.asarray(values[rows[first:last] - block[0]], np.float64))
    step = _part_rows(d)
    with one_thread():
        for start in range(0, len(values), step):
            # In row order: numpy sums a block that lies column by column in another order.
            found.add(np.ascontiguousarray(values[start : start + step], np.float64), centre)
    return found


def _feature_plane(features: Features, rows: NDArray[np.int64], memory: str | int | None) -> Plane:
    """Main axes of all rows, the sampled rows along them; the features are read once, block by block."""
    machine = this_machine(memory)
    threads = require_picture(features, machine)
    centre = _first_values(features)
    blocks, found = features.blocks(), None
    with workers(threads) as pool:
        # As many at a time as there are threads: tables that wait to be added up would take memory.
        for at in range(0, len(blocks), threads):
            for part in pool.each(_moments, blocks[at : at + threads], features, rows, centre):
                if found is None:
                    found = part
                else:
                    found.join(part)
    if found is None:
        raise InputError("n_samples=0: there are no rows to draw")
    return _drawn(found, centre, features.n_samples)


def _first_values(features: Features) -> Float:
    """A value of each column to count from; sums of squares about 0 would lose the digits of a spread far from it."""
    first = np.asarray(features.read(0, min(features.n_samples, FIRST_ROWS)), np.float64)
    finite = np.isfinite(first)
    return np.where(finite.any(axis=0), first[finite.argmax(axis=0), np.arange(first.shape[1])], 0.0)


def _drawn(found: _Moments, centre: Float, n_samples: int) -> Plane:
    means, covariance = found.means_and_covariance()
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    used = np.flatnonzero(spread > 0)
    if not len(used):
        raise InputError("every feature is constant: there is nothing to draw by")
    sampled = np.concatenate(found.sampled)[:, used] - centre[used] - means[used]
    sampled = np.where(np.isfinite(sampled), sampled, 0.0) / (spread[used] / np.sqrt(n_samples))
    if min(len(used), n_samples) < 2:
        return _flat(sampled[:, 0], "the standardised feature")
    from scipy.linalg import eigh

    # Of standardised values: the correlations.
    correlations = covariance[np.ix_(used, used)] / np.outer(spread[used], spread[used])
    with one_thread_each():
        first = max(0, len(used) - MOST_AXES)
        variances, axes = eigh(correlations, subset_by_index=[first, len(used) - 1], overwrite_a=True)
        shares = np.maximum(variances[::-1], 0.0) / len(used)
        axes = axes[:, ::-1]
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])  # always the same of two signs
        name = f"the first two principal components of the standardised features, {_shares(shares)}"
        along = sampled @ axes
    return Plane(along[:, :2], name, embed(along))


def _shares(shares: Sequence[float]) -> str:
    first, second = shares[:2]
    return f"with {first:.0%} and {second:.0%} of the variance"


def _flat(values: NDArray[Any], axes: str) -> Plane:
    return Plane(np.column_stack([values, np.zeros(len(values))]).astype(np.float64), axes)


def _label_plane(labels: Labels, rows: NDArray[np.int64]) -> Plane:
    """Main axes of the sampled rows of H: distances there count the members that part two samples.

    That is classical scaling of the co-association, without the samples × samples table.
    """
    codes = pick(labels.read, rows, labels.n_samples).astype(np.int64)
    plane, along = code_plane(codes, labels.widths, MOST_AXES, silent=labels.silent)
    return replace(plane, neighbours=embed(along))


def code_plane(codes: NDArray[np.int64], widths: Sequence[int], axes: int, *, silent: bool) -> tuple[Plane, Float]:
    """The plane of base labels, and the samples along so many main axes; ``silent``: label 0 is a missing one."""
    from scipy.sparse import csr_array
    from sklearn.decomposition import PCA

    offsets = np.concatenate(([0], np.cumsum(widths)))
    slots = codes + offsets[:-1]
    said = codes > 0 if silent else np.ones(codes.shape, bool)
    ends = np.concatenate(([0], np.cumsum(said.sum(axis=1))))
    shape = (len(codes), int(offsets[-1]))
    incidence = csr_array((np.ones(int(said.sum())), slots[said], ends), shape=shape)
    if min(shape) < 3:  # fewer than the solver can do
        plane = _flat(codes[:, 0], "the label of the first member")
        return plane, plane.coordinates
    with one_thread_each():
        # The solver starts from a drawn vector.
        pca = PCA(min(axes, min(shape) - 1), svd_solver="arpack", random_state=0).fit(incidence)
        along = np.asarray(pca.transform(incidence), np.float64)
    name = (
        f"the base labels: near means put together by many members (main axes {_shares(pca.explained_variance_ratio_)})"
    )
    return Plane(along[:, :2], name), along
