"""One column of labels, whatever its type: which values are labels, and each row's rank among them.

Below the encoding of whole members. Whole numbers from 0 are labels, and text where a column has a type for it; -1 and
nulls are missing labels; anything else is refused, by row and member.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.wording import spoken

_SCAN_ROWS = 1 << 16

Rows = NDArray[np.intp] | range
"""Row numbers of entries, for errors."""


def columns_of(frame: Any) -> list[Any]:
    """The columns of a pandas or polars frame, by place, because names may be repeated."""
    places = range(len(frame.columns))
    return [frame.iloc[:, j] for j in places] if hasattr(frame, "iloc") else [frame[:, j] for j in places]


def refuse_annotated(given: Any, what: str) -> None:
    """An error if something is an AnnData: numpy would take it apart cell by cell, for hours."""
    if all(hasattr(given, name) for name in ("obs", "obsm", "uns", "obs_names")):
        raise InputTypeError(
            f"{what}: an AnnData: use cehm_dask.tl.consensus(adata, keys='leiden_*', n_clusters=…) for clusterings in "
            "its obs, or use_rep='X_pca' instead of keys to have members made from an embedding"
        )


def encode_column(column: Any, name: str, first_row: int = 0) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The labels of one member, ascending, and each row's rank among them (-1 = a missing label).

    Parameters
    ----------
    column : array, or column of a pandas or polars frame
        Text and categories are labels too there, and nulls are missing labels.
    name : str
        The member, for errors.
    first_row : int
        Row number of the first entry, for errors.
    """
    if (encoded := _encode_categories(column)) is not None:
        return encoded
    spoken = _spoken(column)
    # Nulls are left out first: beside them, whole numbers would come as floats, and large ones lose digits.
    said = column if spoken.all() else column[spoken] if hasattr(column, "isna") else column.filter(spoken)
    said = np.asarray(said.to_numpy() if hasattr(said, "to_numpy") else said)
    if said.dtype.kind == "O" and all(isinstance(item, int | np.integer) for item in said):
        try:
            said = said.astype(np.int64)
        except OverflowError as error:
            raise InputError(f"member {name} holds whole numbers beyond 64 bits: give them as text") from error
    if said.dtype.kind == "b":
        said = said.view(np.uint8)
    if said.dtype.kind in "iuf":
        rows = np.flatnonzero(spoken) + first_row
        said = whole_numbers(said[:, None], (name,), rows)
        if said.size and said.min() < -1:
            refuse_negative(said, (name,), rows)
        said = said[:, 0]
        spoken[spoken] = said >= 0
        said = said[said >= 0]
    else:
        said = said.astype(np.str_)
    known, ranks = _distinct(said)
    full = np.full(spoken.size, -1, np.int64)
    full[spoken] = ranks
    return known, full


def _encode_categories(column: Any) -> tuple[NDArray[Any], NDArray[np.int64]] | None:
    """Categories of text by their codes: a million texts take seconds to sort, their categories no time."""
    categories = getattr(getattr(column, "cat", None), "categories", None)
    if categories is None or not all(isinstance(name, str) for name in categories):
        return None
    codes = np.asarray(column.cat.codes, np.int64)
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(categories)))
    known, ranks = np.unique(np.asarray(categories)[used].astype(np.str_), return_inverse=True)
    place = np.full(len(categories) + 1, -1, np.int64)  # the last one serves code -1
    place[used] = ranks
    return known, place[codes]


def _spoken(column: Any) -> NDArray[np.bool_]:
    """Where a column holds a label, or something that will be refused as one."""
    if hasattr(column, "is_null"):
        return ~np.asarray(column.is_null(), bool)
    if not hasattr(column, "isna"):
        return np.ones(len(column), bool)
    return ~np.asarray(column.isna(), bool)


def _distinct(said: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Like numpy.unique with the inverse, without sorting where labels are small numbers."""
    if said.dtype.kind == "U" or not said.size or int(said.max()) > 16 * said.size + 1024:
        known, ranks = np.unique(said, return_inverse=True)
        return known, ranks.astype(np.int64)
    known = np.flatnonzero(np.bincount(said.astype(np.int64)))
    places = np.zeros(int(known[-1]) + 1, np.int64)
    places[known] = np.arange(len(known))
    return known, places[said]


def read_number_block(block: NDArray[Any]) -> NDArray[Any]:
    """A block of an array of labels: of a type that can hold labels, or refused."""
    refuse_type(block.dtype)
    return block.view(np.uint8) if block.dtype == np.bool_ else block


def refuse_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iufb":
        raise InputTypeError(
            f"base labels have dtype {dtype}: expected integers (-1 or NaN: a missing label); "
            "text labels are accepted as columns of a pandas or polars data frame"
        )


def whole_numbers(array: NDArray[Any], names: Sequence[str], rows: Rows | None = None) -> NDArray[Any]:
    """Floats that are whole numbers become integers, NaN a missing label; others are named by row and member."""
    if array.dtype.kind != "f":
        return array
    out = np.empty(array.shape, np.int64)
    for start in range(0, len(array), _SCAN_ROWS):
        part = array[start : start + _SCAN_ROWS].astype(np.float64)
        part[np.isnan(part)] = -1.0
        wrong = ~(np.isfinite(part) & (part == np.rint(part)) & (np.abs(part) < 2.0**62))
        if wrong.any():
            row, member = np.argwhere(wrong)[0]
            raise no_label(part[row, member], _row(rows, start + row), names[member])
        out[start : start + _SCAN_ROWS] = part
    return out


def _row(rows: Rows | None, place: int) -> int:
    """Row number of an entry, where the entries are not all rows."""
    return place if rows is None else int(rows[place])


def refuse_negative(array: NDArray[Any], names: Sequence[str], rows: Rows | None = None) -> None:
    for start in range(0, len(array), _SCAN_ROWS):
        part = array[start : start + _SCAN_ROWS]
        wrong = np.argwhere(part < -1)
        if len(wrong):
            row, member = wrong[0]
            raise below_minus_one(part[row, member], _row(rows, start + row), names[member])


def no_label(value: Any, row: int, name: str) -> InputError:
    return InputError(
        f"base labels hold {value} at row {row}, member {name}: labels are whole numbers; -1 and NaN are missing labels"
        + ("; features go to ClusterEnsemble" if spoken() == "python" else "")
    )


def below_minus_one(value: Any, row: int, name: str) -> InputError:
    return InputError(
        f"base labels hold {value} at row {row}, member {name}: labels start at 0, and only -1 (a missing label) is "
        "allowed below"
    )
