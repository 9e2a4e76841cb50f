"""Codes inside the slots of their members: checked on every block, before a compiled loop uses them as indices.

Below the stores and labels. Compiled loops do not look whether an index lies inside an array, so a code beyond its
member's slots would write into memory that belongs to something else. The largest code of each member takes 0.06 ms for
a block of 65,536 × 30 bytes that is in the cache, where one belonging pass takes a hundred times as long. For shards of
a store, ``shards`` looks once, and again when the bytes have changed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLD = 128
"""Rows side by side in one vector operation; row by row, the same takes thirty times as long."""


def largest(codes: NDArray[Any]) -> NDArray[Any]:
    """Largest code of each column; there is at least one row."""
    rows, members = codes.shape
    folded = rows // FOLD * FOLD
    if not codes.flags.c_contiguous or not folded:
        return np.asarray(codes.max(axis=0))
    side_by_side = codes[:folded].reshape(-1, FOLD * members)
    top = np.maximum.reduce(side_by_side, axis=0).reshape(FOLD, members).max(axis=0)
    return np.asarray(top if folded == rows else np.maximum(top, codes[folded:].max(axis=0)))


def fault_in(codes: NDArray[Any], widths: Sequence[int], first_row: int, names: Sequence[str]) -> str | None:
    """What makes a block of codes unusable as indices, in words; None if nothing does.

    Parameters
    ----------
    codes : (rows, members) array
    widths : sequence of int
        Slots of each member: codes lie below.
    first_row : int
        Row number of the first row, for the words.
    names : sequence of str
        Of the members, for the words.
    """
    if codes.ndim != 2 or codes.shape[1] != len(widths):
        return f"rows from {first_row} on have shape {codes.shape}, expected {len(widths)} members"
    if codes.dtype.kind != "u" or codes.dtype.itemsize > 4 or not codes.dtype.isnative:
        return f"rows from {first_row} on have dtype {codes.dtype}, expected uint8, uint16 or uint32"
    if not len(codes) or min(widths) > np.iinfo(codes.dtype).max:
        return None
    limits = np.asarray(widths, np.int64)
    wrong = np.flatnonzero(largest(codes) >= limits)
    if not len(wrong):
        return None
    member = int(wrong[0])
    row = int(np.argmax(codes[:, member] >= limits[member]))
    return (
        f"row {first_row + row}, member {names[member]} holds code {codes[row, member]}, beyond the member's "
        f"{widths[member]} slots"
    )
