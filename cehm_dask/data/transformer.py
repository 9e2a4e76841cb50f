"""A transformer in the place of the plain scalings: the user's own, or one that draws heavy tails in.

Above ``scaling``. It is any object with ``fit`` and ``transform``, as scikit-learn and dask-ml have them.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.collections import is_collection
from cehm_dask.data.names import listed
from cehm_dask.data.preparation import FeatureWarning
from cehm_dask.data.scaling import SCALES, Scaling
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.wording import option

CURVES = ("log", "quantile", "rank")
"""Named transformers, for columns with heavy tails."""


def curve(name: str, n_rows: int) -> Any:
    """A named transformer, not fitted: logarithms, a normal distribution, or ranks; then standardized.

    Without the latter, true and false, or a column with many zeros, would be far wider than the others: scikit-learn
    puts the smallest and the largest value of a normal distribution at ±5.2, however many rows have them.
    """
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, QuantileTransformer, StandardScaler

    if name == "log":
        return make_pipeline(FunctionTransformer(signed_log), StandardScaler())
    # From all rows that it is fitted on: a sample of them would depend on a second seed.
    shape = "normal" if name == "quantile" else "uniform"
    ranks = QuantileTransformer(n_quantiles=min(1000, n_rows), output_distribution=shape, subsample=None)
    return make_pipeline(ranks, StandardScaler())


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(1 + |x|) with the sign of x: negative numbers have one too."""
    return np.copysign(np.log1p(np.abs(values)), values)


def curve_arrays(name: str, model: Any) -> dict[str, NDArray[Any]]:
    """All that a fitted named transformer knows, for a store."""
    found = {"curve_centre": model[-1].mean_, "curve_spread": model[-1].scale_}
    if name == "log":
        return found
    return {**found, "curve_quantiles": model[0].quantiles_, "curve_references": model[0].references_}


def curve_of(name: str, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The fitted transformer from what :func:`curve_arrays` gave."""
    centre, spread = arrays["curve_centre"], arrays["curve_spread"]
    n_rows = 1 if name == "log" else len(arrays["curve_references"])
    model = curve(name, n_rows).fit(np.zeros((n_rows, len(centre))))
    model[-1].mean_, model[-1].scale_ = centre, spread
    if name != "log":
        model[0].quantiles_, model[0].references_ = arrays["curve_quantiles"], arrays["curve_references"]
    return model


LOPSIDED = 0.99
"""Share of the rows in one cluster from which on features are suspected of heavy tails."""


def warn_of_tails(sizes: Any, scale: Any) -> None:
    """Say what may help if nearly all rows are in one cluster: a few large values had the others to themselves."""
    share = max(sizes) / max(1, sum(sizes))
    if len(sizes) > 1 and share >= LOPSIDED and scale not in CURVES:
        helps = ", ".join(option("scale", name) for name in CURVES)
        warnings.warn(
            f"{share:.1%} of the rows are in one cluster: columns with a few very large values do that; {helps} draw "
            "them in",
            FeatureWarning,
            stacklevel=3,
        )


TAIL_ROWS, TAIL_VARIANCE = 0.01, 0.9
"""A column has a heavy tail if this share of its rows holds that share of its variance; in 100,000 normal values it is
9 %, in exponential ones 22 %, in log-normal ones with σ = 1 and 2 48 % and 95 %."""


def warn_of_heavy_columns(sample: NDArray[Any], names: Sequence[str], passed: NDArray[np.bool_]) -> None:
    """Name the columns, ``passed`` ones aside, in which members would see little else than a few large values.

    Columns whose quartiles are equal, such as pixels that are mostly empty, are none: what is rare there may matter.
    """
    top = int(TAIL_ROWS * len(sample))
    if not top:
        return
    heavy = []
    for place in np.flatnonzero(~passed).tolist():
        values = np.asarray(sample[:, place], np.float64)
        values = values[np.isfinite(values)]
        if len(values) <= top or np.diff(np.percentile(values, [25, 75]))[0] <= 0:
            continue
        scaled = values / np.abs(values).max()  # squares of large values stay finite
        squares = np.sort((scaled - scaled.mean()) ** 2)
        if squares[-top:].sum() >= TAIL_VARIANCE * squares.sum():
            heavy.append(names[place])
    if heavy:
        helps = ", ".join(option("scale", name) for name in CURVES)
        warnings.warn(
            f"heavy tails: 1 % of the rows hold nearly all variance of {listed(heavy)}, so members see little else "
            f"there; {helps} draw large values in",
            FeatureWarning,
            stacklevel=2,
        )


def refuse_transformer(given: Any) -> None:
    """An error if an object is neither a name of a scaling nor a transformer."""
    if isinstance(given, str):
        if given not in (*SCALES, *CURVES):
            raise InputError(f"{option('scale', given)}: expected one of {', '.join((*SCALES, *CURVES))}")
    elif not (hasattr(given, "fit") and hasattr(given, "transform")):
        raise InputTypeError(f"scale={given!r}: expected a name, or an object with fit and transform")


@dataclass(frozen=True, eq=False)
class Transformed:
    """Features through a fitted transformer, in float32; the same methods as :class:`Scaling`."""

    model: Any
    plain: Scaling
    """Which columns it sees, and what takes the place of a value that is not finite."""
    columns: NDArray[np.intp]
    """Of what it gives."""
    passed: NDArray[np.intp] | None = None
    """Columns of 0 and 1, among those it would see, that a named transformer leaves as they are; they come last."""

    @classmethod
    def of(
        cls, model: Any, plain: Scaling, sample: NDArray[Any], passed: NDArray[np.intp] | None = None
    ) -> "Transformed":
        """Around a fitted transformer; a few rows tell how many columns it gives."""
        one = cls(model, plain, np.arange(0), passed)
        return replace(one, columns=np.arange(one.apply(sample[:2]).shape[1]))

    @property
    def content(self) -> str:
        return self.plain.content

    def numbers(self) -> list[Any]:
        """All that its result depends on but the transformer, which shows in the members that were fitted behind it."""
        return self.plain.numbers()

    def apply(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> NDArray[np.float32]:
        """Transformed rows."""
        # A copy: some transformers work in place, and these may be the user's own rows.
        given = np.array(self.plain.filled(rows, first_row, names))
        seen = given if self.passed is None else np.delete(given, self.passed, axis=1)
        found: Any = self.model.transform(seen)
        if is_collection(found):
            found = found.compute(scheduler="synchronous")
        found = np.asarray(found.toarray() if hasattr(found, "toarray") else found, np.float32)
        if self.passed is not None:
            found = np.concatenate((found, given[:, self.passed].astype(np.float32)), axis=1)
        if found.ndim != 2 or len(found) != len(rows) or not np.isfinite(found).all():
            raise InputError(
                f"scale={type(self.model).__name__}: gives shape {found.shape}, or values that are not finite, for "
                f"{len(rows)} rows from row {first_row} on: expected one row of finite numbers for each"
            )
        return cast(NDArray[np.float32], found)
