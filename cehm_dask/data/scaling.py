"""Each column's centre and spread, found in one pass over the features, and what takes the place of missing values.

Above ``features``. Statistics are summed over blocks of a fixed number of rows, counted from row 0, so no chunking of
the source can change a bit. Columns of 0 and 1 that stand for the values of a category are not scaled: two rows with
different values are then as far apart as two typical rows in one scaled column of numbers.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.features import Features, Workers
from cehm_dask.data.preparation import FeatureWarning
from cehm_dask.errors import InputError
from cehm_dask.wording import option

SCALES = ("none", "standard", "minmax", "robust")
IMPUTES = (None, "mean", "median", "most_frequent")


@dataclass(frozen=True, eq=False)
class Scaling:
    """Which columns are used and how: value → (value − centre) / spread, in float32."""

    columns: NDArray[np.intp]
    centre: NDArray[np.float64]
    spread: NDArray[np.float64]
    fill: NDArray[np.float64] | None
    """What takes the place of a value that is not finite; None: it is an error."""
    content: str = ""
    """Digest of all features that it was found from."""

    @cached_property
    def _all_columns(self) -> bool:
        return bool(np.array_equal(self.columns, np.arange(len(self.columns))))

    def apply(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> NDArray[np.float32]:
        """Scaled columns of a block of rows."""
        return ((self.filled(rows, first_row, names) - self.centre) / self.spread).astype(np.float32)

    def filled(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> NDArray[np.float64]:
        """The columns of a block of rows that are used, all values finite."""
        values = rows if self._all_columns and rows.shape[1] == len(self.columns) else rows[:, self.columns]
        values = np.asarray(values, np.float64)
        finite = np.isfinite(values)
        if self.fill is not None:
            values = np.where(finite, values, self.fill)
        elif not finite.all():
            row, column = np.argwhere(~finite)[0]
            name = names[self.columns[column]] if names else str(self.columns[column])
            _refuse_value(values[row, column], first_row + row, name)
        return values

    def numbers(self) -> list[Any]:
        """All that its result depends on."""
        return [self.columns, self.centre, self.spread, self.fill]


def _refuse_value(value: float, row: int, name: str) -> None:
    raise InputError(
        f"features hold {value} at row {row}, column {name}: correct the data, or replace such values by "
        f"{option('impute', 'mean')} (or median, or most_frequent)"
    )


def _statistics(
    block: tuple[int, int], features: Features, impute: str | None, rows: NDArray[np.int64]
) -> tuple[Any, ...]:
    """Count, mean, squares, extremes and checksum of one block, by column; and those of ``rows`` that lie in it."""
    read = features.read(*block)
    first, last = np.searchsorted(rows, block)
    picked = np.asarray(read[rows[first:last] - block[0]])
    # In row order: numpy sums a block that lies column by column in another order.
    values = np.ascontiguousarray(read, np.float64)
    finite = np.isfinite(values)
    if not finite.all() and impute is None:
        row, column = np.argwhere(~finite)[0]
        _refuse_value(values[row, column], block[0] + row, features.names[column])
    count = finite.sum(axis=0)
    mean = np.where(finite, values, 0.0).sum(axis=0) / np.maximum(count, 1)
    with np.errstate(over="ignore"):  # columns that are too large are refused by name
        squares = (np.where(finite, values - mean, 0.0) ** 2).sum(axis=0)
    low = np.where(finite, values, np.inf).min(axis=0)
    high = np.where(finite, values, -np.inf).max(axis=0)
    return count, mean, squares, low, high, google_crc32c.value(values.reshape(-1).view(np.uint8)), picked


def fit_scaling(
    features: Features,
    scale: str,
    workers: Workers,
    *,
    impute: str | None = None,
    rows: NDArray[np.int64] | None = None,
) -> tuple[Scaling, NDArray[Any]]:
    """Find each column's centre and spread in one pass; constant columns are dropped and named.

    ``rows``, ascending, are picked on the way and returned; ``robust`` takes median and quartiles from them, as does
    ``impute`` the median or the most frequent value.
    """
    if scale not in SCALES:
        raise InputError(f"scale={scale!r}: expected one of {', '.join(map(repr, SCALES))}")
    if impute not in IMPUTES:
        raise InputError(f"{option('impute', impute)}: expected one of mean, median, most_frequent, or none of them")
    chosen = np.empty(0, np.int64) if rows is None else rows
    parts = features.each_block(workers, _statistics, impute, chosen)
    count, mean, squares, low, high, checksum, own = next(parts)
    checksums, picked = [checksum], [own]
    for n, m, s, bottom, top, checksum, own in parts:
        checksums.append(checksum)
        picked.append(own)
        total = np.maximum(count + n, 1)
        squares = squares + s + (m - mean) ** 2 * count * n / total
        mean = (mean * count + m * n) / total
        count, low, high = count + n, np.minimum(low, bottom), np.maximum(high, top)
    sample = np.concatenate([own for own in picked if len(own)] or picked[:1])
    constant = ~(low < high)
    if constant.all():
        raise InputError("every feature is constant: there is nothing to cluster by")
    if constant.any():
        dropped = ", ".join(np.asarray(features.names)[constant])
        warnings.warn(f"constant columns dropped: {dropped}", FeatureWarning, stacklevel=2)
    used = np.flatnonzero(~constant)
    centre, spread = np.zeros(features.n_features), np.ones(features.n_features)
    if scale == "standard":
        centre, spread = mean, np.sqrt(squares / np.maximum(count, 1))
    elif scale == "minmax":
        centre, spread = low, high - low
    elif scale == "robust":
        quartiles = np.nanpercentile(np.where(np.isfinite(sample), sample, np.nan), [25, 50, 75], axis=0)
        centre, spread = quartiles[1], quartiles[2] - quartiles[0]
        spread = np.where(spread > 0, spread, 1.0)
    centre[features.indicators], spread[features.indicators] = 0.0, 1.0
    if not np.isfinite(spread[used]).all():
        name = features.names[used[~np.isfinite(spread[used])][0]]
        raise InputError(
            f"column {name}: values up to {high[features.names.index(name)]:.3g} are too large to scale; "
            "divide them, or leave the column out"
        )
    content = hashlib.blake2b(
        repr((features.n_samples, features.names, checksums)).encode(), digest_size=16
    ).hexdigest()
    fill = None if impute is None else _fill(impute, mean, sample)[used]
    return Scaling(used, centre[used], spread[used], fill, content), sample


def _fill(impute: str, mean: NDArray[np.float64], sample: NDArray[Any]) -> NDArray[np.float64]:
    """What takes the place of a missing value in each column; where the sample has no value, the mean of all rows."""
    from sklearn.impute import SimpleImputer

    if impute == "mean":
        return mean
    known = np.where(np.isfinite(sample), sample, np.nan).astype(np.float64)
    found = SimpleImputer(strategy=impute, keep_empty_features=True).fit(known).statistics_
    return np.where(np.isnan(known).all(axis=0), mean, found)


def draw_rows(n_samples: int, count: int, seed: int) -> NDArray[np.int64]:
    """Row numbers drawn at random without repetition, ascending."""
    if count >= n_samples:
        return np.arange(n_samples)
    return np.sort(np.random.default_rng(seed).choice(n_samples, count, replace=False, shuffle=False))
