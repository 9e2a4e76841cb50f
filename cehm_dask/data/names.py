"""Columns of new data in the order of those that were fitted: by name wherever both have names.

Below the labels and the features, which both match their columns here. Columns of an array have no names and are
numbered; numbers that only count the columns are not names.
"""

import warnings
from collections.abc import Sequence

from cehm_dask.errors import InputError


class NameWarning(UserWarning):
    """Columns that were given and are not used."""


def are_names(names: Sequence[str]) -> bool:
    """Whether columns are told apart by name: not numbered from 0 in their order, and each name given once."""
    return len(set(names)) == len(names) and list(names) != [str(j) for j in range(len(names))]


def places_of(given: Sequence[str], fitted: Sequence[str], what: str) -> list[int] | None:
    """Where each fitted column stands among the given ones; None: in the same places.

    ``what`` a column is, in errors. Without names on either side the number of columns must be the same.

    >>> places_of(["b", "a"], ["a", "b"], "feature")
    [1, 0]
    """
    if list(given) == list(fitted):
        return None
    by_name = are_names(given) and (are_names(fitted) or set(given) == set(fitted))
    if not by_name:
        if len(given) != len(fitted):
            raise InputError(f"X has {len(given)} {what}s, {len(fitted)} were fitted: they must be the same")
        return None
    if missing := [name for name in fitted if name not in set(given)]:
        raise InputError(
            f"X lacks {what}s that were fitted: {listed(missing)}; it has {listed(given)}: add them, or fit again "
            "without them"
        )
    if extra := [name for name in given if name not in set(fitted)]:
        warnings.warn(f"{what}s that were not fitted are ignored: {listed(extra)}", NameWarning, stacklevel=2)
    place = {name: at for at, name in enumerate(given)}
    return [place[name] for name in fitted]


MOST_NAMED = 10
"""Names in one message."""


def listed(names: Sequence[str]) -> str:
    """Names in one message; of many, the first."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
