"""Known classes in any accepted form: arrays, files, columns of tables, Zarr arrays; read by rows, as names and places.

Below the scores, which count them; comparisons read them too.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.arrays import is_store, open_array
from cehm_dask.data.files import absolute, is_url, open_npy
from cehm_dask.data.tables import Parquet, Table, is_table, open_table
from cehm_dask.errors import InputError, NotFoundError

UNKNOWN = ("-1", "")
"""Classes that say "not known", as empty cells and NaN do."""


class Truth(Protocol):
    """Known classes that can be read by rows; safe to read from many threads."""

    @property
    def n_rows(self) -> int: ...

    def read(self, start: int, stop: int) -> Any:
        """Classes of the rows start to stop: numbers or texts."""
        ...


@dataclass(frozen=True, eq=False)
class ArrayTruth:
    """Classes held in memory, or in a temporary file mapped into it."""

    classes: Any
    names: NDArray[np.str_] | None = None
    """The text behind each code, where ``classes`` are codes (-1 = not known)."""

    @property
    def n_rows(self) -> int:
        return len(self.classes)

    def read(self, start: int, stop: int) -> Any:
        part = self.classes[start:stop]
        return part if self.names is None else np.append(self.names, "")[part]


@dataclass(frozen=True, eq=False)
class FileTruth:
    """Classes in a .npy file or a Zarr array; opened where it is read."""

    path: str

    @cached_property
    def _array(self) -> Any:
        array = open_npy(self.path, "truth") if self.path.endswith(".npy") else open_array(self.path, "known classes")
        if len(array.shape) != 1:
            raise InputError(f"truth {self.path} has shape {tuple(array.shape)}: expected one class per sample")
        return array

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    @property
    def n_rows(self) -> int:
        return int(self._array.shape[0])

    def read(self, start: int, stop: int) -> Any:
        return np.asarray(self._array[start:stop])


@dataclass(frozen=True, eq=False)
class ParquetTruth:
    """One column of a .parquet file, read by row groups; opened where it is read."""

    path: str
    column: str

    @cached_property
    def _table(self) -> Parquet:
        return Parquet(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "column": self.column}

    @property
    def n_rows(self) -> int:
        return self._table.n_rows

    def read(self, start: int, stop: int) -> Any:
        return self._table.rows(start, stop, [self.column]).column(0).to_pandas()


def as_truth(truth: Any, n_samples: int, column: str | None = None) -> Truth:
    """Known classes in any accepted form; their number is checked before anything is counted."""
    known = _open(os.fspath(truth), column) if isinstance(truth, str | os.PathLike) else _held(truth)
    if known.n_rows != n_samples:
        raise InputError(
            f"truth has {known.n_rows} rows, the consensus {n_samples}: give one class per sample, in the same order"
        )
    return known


def _held(truth: Any) -> Truth:
    if isinstance(truth, list | tuple):
        truth = np.asarray(truth)
    if len(truth.shape) != 1:
        raise InputError(f"truth has shape {tuple(truth.shape)}: expected one class per sample")
    return ArrayTruth(truth.to_numpy() if hasattr(truth, "to_numpy") else truth)


def _open(path: str, column: str | None) -> Truth:
    if not is_store(path) and is_table(path):
        table = open_table(path, "truth")
        name = _column(table, column)
        return ParquetTruth(absolute(path), name) if isinstance(table, Parquet) else _from_csv(table, name)
    if not is_store(path) and not is_url(path):
        if not path.endswith(".npy"):
            raise InputError(f"truth {path}: expected a name that ends in .npy, .csv, .parquet or .zarr")
        if not Path(path).is_file():
            raise NotFoundError(f"truth {path}: no such file")
    return FileTruth(absolute(path))


def _column(table: Table, wanted: str | None) -> str:
    if wanted is None and len(table.names) == 1:
        return table.names[0]
    if wanted is None or wanted not in table.names:
        asked = "" if wanted is None else f"there is no {wanted!r}; "
        raise InputError(
            f"truth {table.path} has columns {', '.join(map(repr, table.names))}: {asked}name the one with the classes"
        )
    return wanted


def _from_csv(table: Table, name: str) -> Truth:
    """Text cannot be read from the middle: its classes are turned once into a temporary file of codes."""
    number_of: dict[str, int] = dict.fromkeys(UNKNOWN, -1)
    n_classes = 0
    # The file has no name: it goes when the last array that maps it does.
    with tempfile.TemporaryFile() as file:
        # All as text: a block of numbers among blocks of text would else be other classes.
        for batch in table.batches([name]):
            encoded = batch.column(0).dictionary_encode()
            classes = [text.strip() for text in encoded.dictionary.to_pylist()]
            for text in classes:
                if text not in number_of:
                    number_of[text] = n_classes
                    n_classes += 1
            file.write(np.array([number_of[text] for text in classes], np.int32)[encoded.indices.to_numpy()])
        file.flush()
        if not file.tell():
            return ArrayTruth(np.empty(0, np.int32))
        found = np.memmap(file, np.int32, "r")
    if name in number_of:
        raise InputError(
            f"truth {table.path}: the name of column {name!r} is found among its classes again: put a line of names "
            "before the rows, and only there"
        )
    return ArrayTruth(found, np.array([text for text, number in number_of.items() if number >= 0], np.str_))


def encoded(classes: Any, first_row: int) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
    """Names of the classes in a block of rows, and each row's place among them (-1 = not known)."""
    import pandas as pd

    codes, found = pd.factorize(classes)
    if getattr(found.dtype, "kind", "") == "f":
        wrong = np.flatnonzero(~np.isin(codes, np.append(np.flatnonzero(found == np.rint(found)), -1)))
        if len(wrong):
            value = found[codes[wrong[0]]]
            raise InputError(f"truth holds {value} at row {first_row + wrong[0]}: classes are whole numbers or texts")
        found = found.astype(np.int64)
    names = np.asarray([str(name).strip() for name in found], np.str_)
    known = ~np.isin(names, UNKNOWN)
    places = np.append(np.where(known, known.cumsum() - 1, -1), -1)
    return names[known], places[codes]
