"""How much each member, or each hyperedge, counts: the weights of the paper's hypergraph, given by the user.

Below the parameters. Weights are as users write them until the labels are known, then numbers per member or per
hyperedge. A member of weight 2 counts as much as two copies of it; only ratios matter.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.masking import shown

Weights = tuple[float, ...] | dict[str, float]

RATIO = 1e6
"""Largest ratio of two weights: beyond it, belonging degrees would lose the lighter ones in rounding."""


def checked_weights(weights: Any) -> Weights | None:
    """Weights by name or in order, as plain numbers; None: all members count alike.

    >>> checked_weights([2, 1]), checked_weights({"a": 2}), checked_weights(None)
    ((2.0, 1.0), {'a': 2.0}, None)
    """
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        found = {str(name): _weight(value, f"of member {name}") for name, value in weights.items()}
        return found or None
    if isinstance(weights, str) or not isinstance(weights, Sequence | np.ndarray) or np.ndim(weights) != 1:
        raise InputTypeError(
            f"weights={shown(weights)}: expected a number per member, a number per base cluster, or numbers by the "
            "names of members"
        )
    if len(weights) == 0:
        raise InputError("weights=[]: expected a number per member, or per base cluster")
    return tuple(_weight(value, f"number {i}") for i, value in enumerate(weights))


def _weight(value: Any, of: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputTypeError(f"weights, {of}: {value!r} is no number")
    number = float(value)
    if not (isfinite(number) and number > 0):
        raise InputError(f"weights, {of}: {value}; expected a number above 0 (leave out a member that is not to count)")
    return number


def parse_weights(text: str) -> Weights | None:
    """Weights as the command takes them: numbers, or names with numbers, with commas between.

    >>> parse_weights("1,2.5,1"), parse_weights("leiden=2, kmeans=0.5")
    ((1.0, 2.5, 1.0), {'leiden': 2.0, 'kmeans': 0.5})
    """
    parts = [part.strip() for part in text.split(",")]
    try:
        if all("=" in part for part in parts):
            pairs = [part.rsplit("=", 1) for part in parts]
            return checked_weights({name.strip(): float(value) for name, value in pairs})
        return checked_weights([float(part) for part in parts])
    except InputError:
        raise
    except ValueError:
        raise InputError(
            f"{shown(text)}: expected numbers (1,2,1) or names of members with numbers (leiden=2,kmeans=1)"
        ) from None


def in_order(weights: Weights | None, names: Sequence[str]) -> tuple[float, ...] | None:
    """Weights by name put in the order of the members; one that is not named has 1. None if all are equal."""
    if isinstance(weights, dict):
        unknown = [name for name in weights if name not in names]
        if unknown:
            known = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
            raise InputError(f"weights: there is no member {unknown[0]!r}; members are {known}")
        weights = tuple(weights.get(name, 1.0) for name in names)
    if weights is None or (len(set(weights)) == 1 and len(weights) == len(names)):
        return None
    if max(weights) > RATIO * min(weights):
        raise InputError(f"weights from {min(weights):g} to {max(weights):g}: their ratio may be {RATIO:g} at most")
    return weights


def require_as_many(weights: Sequence[float], n_members: int, n_hyperedges: int) -> None:
    """Refuse weights that are neither one per member nor one per hyperedge."""
    if len(weights) not in (n_members, n_hyperedges):
        raise InputError(
            f"weights: {len(weights):,} numbers, but there are {n_members:,} members and {n_hyperedges:,} base "
            "clusters; expected one for each of either"
        )


def per_hyperedge(weights: Sequence[float], members: NDArray[np.intp], n_members: int) -> NDArray[np.float64]:
    """One number per hyperedge; ``members`` are theirs."""
    require_as_many(weights, n_members, len(members))
    given = np.asarray(weights, np.float64)
    return given[members] if len(given) == n_members else given
