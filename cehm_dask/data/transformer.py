"""A transformer of the user's in the place of the named scalings.

Beside ``features``. It is any object with ``fit`` and ``transform``, as scikit-learn and dask-ml have them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.collections import is_collection
from cehm_dask.data.features import Scaling
from cehm_dask.errors import InputError, InputTypeError


def refuse_transformer(given: Any) -> None:
    """An error if an object is neither a name of a scaling nor a transformer."""
    if not isinstance(given, str) and not (hasattr(given, "fit") and hasattr(given, "transform")):
        raise InputTypeError(f"scale={given!r}: expected a name, or an object with fit and transform")


@dataclass(frozen=True, eq=False)
class Transformed:
    """Features through a fitted transformer, in float32; the same methods as :class:`Scaling`."""

    model: Any
    plain: Scaling
    """Which columns it sees, and what takes the place of a value that is not finite."""
    columns: NDArray[np.intp]
    """Of what it gives."""

    @classmethod
    def of(cls, model: Any, plain: Scaling, sample: NDArray[Any]) -> "Transformed":
        """Around a fitted transformer; a few rows tell how many columns it gives."""
        one = cls(model, plain, np.arange(0))
        return cls(model, plain, np.arange(one.apply(sample[:2]).shape[1]))

    @property
    def content(self) -> str:
        return self.plain.content

    def numbers(self) -> list[Any]:
        """All that its result depends on but the transformer, which shows in the members that were fitted behind it."""
        return self.plain.numbers()

    def apply(self, rows: NDArray[Any], first_row: int = 0, names: Sequence[str] = ()) -> NDArray[np.float32]:
        """Transformed rows."""
        # A copy: some transformers work in place, and these may be the user's own rows.
        found = self.model.transform(np.array(self.plain.filled(rows, first_row, names)))
        if is_collection(found):
            found = found.compute(scheduler="synchronous")
        found = np.asarray(found.toarray() if hasattr(found, "toarray") else found, np.float32)
        if found.ndim != 2 or len(found) != len(rows) or not np.isfinite(found).all():
            raise InputError(
                f"scale={type(self.model).__name__}: gives shape {found.shape}, or values that are not finite, for "
                f"{len(rows)} rows from row {first_row} on: expected one row of finite numbers for each"
            )
        return found
