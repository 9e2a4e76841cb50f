"""Base labels in any accepted form → checked blocks of codes.

First room of the flow: whatever the user brings (numpy array, dask array, pandas or polars frame, list of
columns, file, ensemble.zarr) is checked once, before any sweep, and read from then on as blocks of small unsigned
codes that the kernels use as sparse-matrix indices. Where the user's array already is that, nothing is copied.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cehm_dask.files import kept_columns
from cehm_dask.plan import Shape
from cehm_dask.store import Ensemble, is_store, open_ensemble

Codes = NDArray[np.unsignedinteger[Any]]

ROOMY_SLOTS = 2048
"""Up to this many slots in all, gaps in the labels cost less than closing them would."""

_SCAN_ROWS = 1 << 16


class Source(Protocol):
    """Where blocks of codes come from; small to send, safe to read from many threads."""

    @property
    def portable(self) -> bool:
        """Whether it can be sent as it is, because the rows lie elsewhere."""
        ...

    def read(self, start: int, stop: int) -> Codes:
        """Codes of the rows start to stop, one column a member."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Codes held in memory."""

    codes: Codes
    portable = False

    def read(self, start: int, stop: int) -> Codes:
        return self.codes[start:stop]


@dataclass(frozen=True, eq=False)
class SliceSource:
    """Some rows of the codes, where they were sent to."""

    codes: Codes
    first_row: int
    portable = False

    def read(self, start: int, stop: int) -> Codes:
        return self.codes[start - self.first_row : stop - self.first_row]


@dataclass(frozen=True, eq=False)
class Labels:
    """A checked label matrix: n_samples × n_members codes, each pointing at a slot.

    A member owns ``widths[j]`` slots. With ``silent``, its slot 0 means "this member says nothing";
    slots that turn out empty are not hyperedges.
    """

    source: Source
    n_samples: int
    widths: tuple[int, ...]
    silent: bool
    names: tuple[str, ...]
    values: tuple[NDArray[Any], ...] | None = None
    """The user's label behind each code of each member; None: the code itself, less 1 if silent."""
    read_rows: int | None = None
    """Rows that a store gives in one go; None: any, at no cost."""
    align_rows: int = 1
    """Rows of a shard, where there are shards."""
    itemsize: int = 1
    fingerprint: str = ""
    """Of an ensemble.zarr; what a resumed run must find unchanged."""

    @property
    def shape(self) -> Shape:
        """What the budget needs to know."""
        row_bytes = self.n_members * self.itemsize
        return Shape(self.n_samples, row_bytes, self.n_slots, self.read_rows, self.align_rows)

    @property
    def n_members(self) -> int:
        return len(self.widths)

    @property
    def n_slots(self) -> int:
        return sum(self.widths)

    @cached_property
    def offsets(self) -> NDArray[np.uint64]:
        """Slot of each member's code 0."""
        return np.concatenate(([0], np.cumsum(self.widths)[:-1])).astype(np.uint64)

    def count_hyperedges(self) -> int:
        """Base clusters of all members together, before any sweep: known to a store, counted for an array."""
        if isinstance(self.source, Ensemble):
            return int(np.count_nonzero(self.source.sizes))
        filled = np.zeros(self.n_slots, bool)
        for start in range(0, self.n_samples, _SCAN_ROWS):
            codes = self.source.read(start, min(start + _SCAN_ROWS, self.n_samples))
            for j, offset in enumerate(self.offsets.tolist()):
                filled[codes[:, j] + np.int64(offset)] = True
        if self.silent:
            filled[self.offsets.astype(np.intp)] = False
        return int(np.count_nonzero(filled))

    def values_of(self, slots: NDArray[np.intp]) -> list[NDArray[Any]]:
        """The user's labels behind occupied slots, ascending, one array a member."""
        starts = np.append(self.offsets.astype(np.intp), self.n_slots)
        found = []
        for j in range(self.n_members):
            codes = slots[(slots >= starts[j]) & (slots < starts[j + 1])] - starts[j] - int(self.silent)
            found.append(codes if self.values is None else self.values[j][codes])
        return found


def as_labels(base_labels: Any, *, leave_out: Sequence[str] = ()) -> Labels:
    """Check base labels and make them readable as codes.

    Parameters
    ----------
    base_labels : array of integers (n_samples, n_members), dask array, data frame, list of columns, or a file
        One column a member; -1 where a member says nothing about a sample. Frames may hold strings. Files: .npy
        (mapped into memory, not loaded), .csv with a line of names, .parquet.
    leave_out : sequence of str
        Columns of a .csv or .parquet file that are no members: names of the rows, known classes.
    """
    if isinstance(base_labels, Labels):
        return base_labels
    if is_store(base_labels):
        return _from_store(os.fspath(base_labels))
    if isinstance(base_labels, str | Path):
        base_labels = _read_file(Path(base_labels), leave_out)
    if hasattr(base_labels, "columns"):
        return _from_frame(base_labels.compute() if hasattr(base_labels, "compute") else base_labels)
    if isinstance(base_labels, list | tuple):
        return _from_columns(base_labels)
    if hasattr(base_labels, "dask") and hasattr(base_labels, "compute"):
        base_labels = base_labels.compute()
    return _from_array(np.asarray(base_labels))


def _from_store(url: str) -> Labels:
    ensemble = open_ensemble(url)
    return Labels(
        ensemble,
        ensemble.n_samples,
        ensemble.widths,
        True,
        ensemble.names,
        ensemble.values,
        read_rows=ensemble.chunk_rows,
        align_rows=ensemble.shard_rows,
        itemsize=ensemble.itemsize,
        fingerprint=ensemble.fingerprint,
    )


def _read_file(path: Path, leave_out: Sequence[str]) -> Any:
    if path.suffix not in (".npy", ".csv", ".parquet"):
        raise ValueError(f"base labels {path}: expected a name that ends in .npy, .csv or .parquet")
    if not path.is_file():
        raise FileNotFoundError(f"base labels {path}: no such file")
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    import pandas as pd

    # Nullable types keep whole numbers whole beside empty cells.
    if path.suffix == ".csv":
        frame = pd.read_csv(path, dtype_backend="numpy_nullable", low_memory=False)
    else:
        frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    return frame[kept_columns(list(frame.columns), leave_out, path)] if leave_out else frame


def _from_columns(columns: Sequence[Any]) -> Labels:
    if not columns:
        raise ValueError("n_members=0: the list of base clusterings is empty; give at least one column of labels")
    arrays = [np.asarray(column) for column in columns]
    for j, array in enumerate(arrays):
        if array.ndim != 1:
            raise ValueError(
                f"member {j} has {array.ndim} dimensions: a list is read as a list of columns, each the labels "
                "of all samples by one member; use numpy.asarray(...) for rows of labels"
            )
        if array.size != arrays[0].size:
            raise ValueError(f"member {j} has {array.size} rows, member 0 has {arrays[0].size}: they must be equal")
        _refuse_type(array.dtype)
    return _from_array(np.stack(arrays, axis=1))


def _from_frame(frame: Any) -> Labels:
    """One column a member, in order; text and categories are encoded, nulls mean "says nothing"."""
    names = tuple(str(name) for name in frame.columns)
    if not names:
        raise ValueError("n_members=0: the data frame has no columns; give one column of labels a member")
    return labels_of_columns(columns_of(frame), names)


def labels_of_columns(columns: Sequence[Any], names: tuple[str, ...], first_row: int = 0) -> Labels:
    """Labels of some rows from one column a member, as :func:`encode_column` takes them."""
    encoded = [encode_column(column, name, first_row) for column, name in zip(columns, names, strict=True)]
    return _encode_ranked(np.stack([ranks for _, ranks in encoded], axis=1), [known for known, _ in encoded], names)


def columns_of(frame: Any) -> list[Any]:
    """The columns of a pandas or polars frame, by place, because names may be repeated."""
    places = range(len(frame.columns))
    return [frame.iloc[:, j] for j in places] if hasattr(frame, "iloc") else [frame[:, j] for j in places]


def encode_column(column: Any, name: str, first_row: int = 0) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The labels of one member, ascending, and each row's rank among them (-1 = says nothing).

    Parameters
    ----------
    column : array, or column of a pandas or polars frame
        Text and categories are labels too there, and nulls mean "says nothing".
    name : str
        The member, for errors.
    first_row : int
        Row number of the first entry, for errors.
    """
    spoken = _spoken(column)
    # Nulls are left out first: beside them, whole numbers would come as floats, and large ones lose digits.
    said = column if spoken.all() else column[spoken] if hasattr(column, "isna") else column.filter(spoken)
    said = np.asarray(said.to_numpy() if hasattr(said, "to_numpy") else said)
    if said.dtype.kind == "O" and all(isinstance(item, int | np.integer) for item in said):
        said = said.astype(np.int64)
    if said.dtype.kind == "b":
        said = said.view(np.uint8)
    if said.dtype.kind in "iuf":
        rows = np.flatnonzero(spoken) + first_row
        said = _whole(said[:, None], (name,), rows)
        if said.size and said.min() < -1:
            _refuse_negative(said, (name,), rows)
        said = said[:, 0]
        spoken[spoken] = said >= 0
        said = said[said >= 0]
    else:
        said = said.astype(np.str_)
    known, ranks = _distinct(said)
    full = np.full(spoken.size, -1, np.int64)
    full[spoken] = ranks
    return known, full


def _spoken(column: Any) -> NDArray[np.bool_]:
    """Where a column holds a label, or something that will be refused as one."""
    if hasattr(column, "is_null"):
        return ~np.asarray(column.is_null(), bool)
    # A plain float column cannot tell a missing label from a broken number: it is held to the array's rule.
    if not hasattr(column, "isna") or (getattr(column.dtype, "kind", "") == "f" and isinstance(column.dtype, np.dtype)):
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


def _from_array(array: NDArray[Any]) -> Labels:
    if array.ndim != 2:
        raise ValueError(
            f"base labels have shape {array.shape}: expected two dimensions, n_samples × n_members; "
            "one clustering alone goes in as labels.reshape(-1, 1)"
        )
    n_samples, n_members = array.shape
    if n_members == 0:
        raise ValueError("n_members=0: base labels need at least one column")
    if n_samples == 0:
        raise ValueError("n_samples=0: base labels need at least one row")
    names = tuple(str(j) for j in range(n_members))
    array = _whole(read_number_block(array), names)
    low, high = _extremes(array)
    if low.min() < -1:
        _refuse_negative(array, names)
    silent = bool(low.min() < 0)
    width = int(sum(int(top) + 1 + int(silent) for top in high))
    if width > max(ROOMY_SLOTS, 2 * n_members):
        values = [np.unique(array[:, j][array[:, j] >= 0]) for j in range(n_members)]
        if sum(map(len, values)) < width // 2:
            return _encode_ranked(_rank(array, values), values, names)
    widths = tuple(int(top) + 1 + int(silent) for top in high)
    ready = not silent and array.dtype.kind == "u" and array.dtype.itemsize <= 4
    ready = ready and array.dtype.isnative and array.flags.c_contiguous
    codes = array if ready else _shifted(array, int(silent), max(widths))
    return Labels(ArraySource(codes), n_samples, widths, silent, names, itemsize=codes.dtype.itemsize)


def read_number_block(block: NDArray[Any]) -> NDArray[Any]:
    """A block of an array of labels: of a type that can hold labels, or refused."""
    _refuse_type(block.dtype)
    return block.view(np.uint8) if block.dtype == np.bool_ else block


def _refuse_type(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in "iufb":
        raise TypeError(
            f"base labels have dtype {dtype}: expected integers (-1 = says nothing); "
            "text labels are accepted as columns of a pandas or polars data frame"
        )


def _whole(array: NDArray[Any], names: Sequence[str], rows: NDArray[np.intp] | None = None) -> NDArray[Any]:
    """Floats that are whole numbers become integers; anything else is named by row and member."""
    if array.dtype.kind != "f":
        return array
    out = np.empty(array.shape, np.int64)
    for start in range(0, len(array), _SCAN_ROWS):
        part = array[start : start + _SCAN_ROWS].astype(np.float64)
        wrong = ~(np.isfinite(part) & (part == np.rint(part)) & (np.abs(part) < 2.0**62))
        if wrong.any():
            row, member = np.argwhere(wrong)[0]
            raise ValueError(
                f"base labels hold {part[row, member]} at row {_row(rows, start + row)}, member {names[member]}: "
                "labels are whole numbers, and -1 where a member says nothing"
            )
        out[start : start + _SCAN_ROWS] = part
    return out


def _row(rows: NDArray[np.intp] | None, place: int) -> int:
    """Row number of an entry, where the entries are not all rows."""
    return place if rows is None else int(rows[place])


def _extremes(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Smallest (0 for unsigned types) and largest label of each member, as whole numbers of any size."""
    parts = [array[start : start + _SCAN_ROWS] for start in range(0, len(array), _SCAN_ROWS)]
    high = np.maximum.reduce([part.max(axis=0) for part in parts])
    signed = array.dtype.kind == "i"
    low = np.minimum.reduce([part.min(axis=0) for part in parts]) if signed else np.zeros_like(high)
    return low.astype(object), high.astype(object)


def _refuse_negative(array: NDArray[Any], names: Sequence[str], rows: NDArray[np.intp] | None = None) -> None:
    for start in range(0, len(array), _SCAN_ROWS):
        wrong = np.argwhere(array[start : start + _SCAN_ROWS] < -1)
        if len(wrong):
            row, member = wrong[0]
            raise ValueError(
                f"base labels hold {array[start + row, member]} at row {_row(rows, start + row)}, "
                f"member {names[member]}: labels start at 0, and only -1 (says nothing) is allowed below"
            )


def _shifted(array: NDArray[Any], shift: int, width: int) -> Codes:
    codes = np.empty(array.shape, np.min_scalar_type(width - 1))
    for start in range(0, len(array), _SCAN_ROWS):
        part = array[start : start + _SCAN_ROWS]
        codes[start : start + len(part)] = part if shift == 0 else part + part.dtype.type(shift)
    return codes


def _rank(array: NDArray[Any], values: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Labels → their rank among the member's ``values``; -1 for whatever is not among them."""
    ranked = np.full(array.shape, -1, np.int64)
    for j, known in enumerate(values):
        if len(known):
            place = np.minimum(np.searchsorted(known, array[:, j]), len(known) - 1)
            ranked[:, j] = np.where(known[place] == array[:, j], place, -1)
    return ranked


def _encode_ranked(ranked: NDArray[np.int64], values: Sequence[NDArray[Any]], names: tuple[str, ...]) -> Labels:
    if len(ranked) == 0:
        raise ValueError("n_samples=0: base labels need at least one row")
    widths = tuple(len(known) + 1 for known in values)
    codes = _shifted(ranked, 1, max(widths))
    return Labels(ArraySource(codes), len(ranked), widths, True, names, tuple(values), itemsize=codes.dtype.itemsize)


def relabel(base_labels: Any, values: Sequence[NDArray[Any]]) -> Labels:
    """Base labels of new samples in terms of labels already known; unknown ones count as "says nothing".

    Parameters
    ----------
    base_labels
        As for :func:`as_labels`, with the same members in the same order.
    values : one array of known labels a member, ascending
    """
    new = as_labels(base_labels)
    if new.n_members != len(values):
        raise ValueError(f"base labels have {new.n_members} members, {len(values)} were fitted: they must be the same")
    codes = new.source.read(0, new.n_samples).astype(np.int64) - int(new.silent)
    ranked = np.full(codes.shape, -1, np.int64)
    for j, known in enumerate(values):
        labels = np.arange(new.widths[j]) if new.values is None else new.values[j]
        if (labels.dtype.kind == "U") == (known.dtype.kind == "U"):
            places = np.append(_rank(labels[:, None], [known])[:, 0], -1)  # the last one serves code -1
            ranked[:, j] = places[codes[:, j]]
    return _encode_ranked(ranked, values, new.names)
