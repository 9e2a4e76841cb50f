"""Pools of base labels that others made: many members of the same samples, and classes to score by.

Beside features as a source of ensembles, for comparisons on members that are not this package's own: an ensemble is
some members of the pool, drawn at random.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.labels import as_labels
from cehm_dask.errors import InputError, NotFoundError
from cehm_dask.results.truth import encoded

N_MEMBERS = 30
"""Members of an ensemble unless told otherwise."""

REMEDY = "write labels (n × members) and y (n classes) with numpy.savez(path, labels=labels, y=y)"
FEWEST_CLASSES = 2


@dataclass(frozen=True, eq=False)
class Pool:
    """Members of one data set, and its classes."""

    path: Path
    labels: NDArray[Any]
    """One column per member, -1 where a label is missing."""
    y: NDArray[np.int64]
    """Classes from 0 on, -1 where not known; for scores only."""

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def n_clusters(self) -> int:
        return int(self.y.max()) + 1

    @cached_property
    def fingerprint(self) -> str:
        """Of the labels and the classes."""
        digest = hashlib.blake2b(repr((self.labels.shape, self.labels.dtype.str)).encode(), digest_size=4)
        digest.update(np.ascontiguousarray(self.labels).data)
        digest.update(np.ascontiguousarray(self.y).data)
        return digest.hexdigest()

    def check(self, n_members: int) -> None:
        """Refuse to draw more members than there are, or none."""
        there = self.labels.shape[1]
        if not 1 <= n_members <= there:
            raise InputError(f"{self.path}: pool_members={n_members}, the pool has {there}: ask for 1 to {there}")

    def draw(self, n_members: int, seed: int) -> NDArray[Any]:
        """Labels by some of the members, drawn without replacement, in the order of the pool."""
        self.check(n_members)
        drawn = np.random.default_rng(seed).choice(self.labels.shape[1], n_members, replace=False)
        return np.ascontiguousarray(self.labels[:, np.sort(drawn)])


def arrays_of(path: Path) -> Any:
    """The arrays of a ``.npz`` file, not read yet."""
    if not path.is_file():
        raise NotFoundError(f"{path}: no such file; give the path of a .npz file")
    if not is_zipfile(path):
        raise InputError(f"{path} cannot be read as .npz: write it with numpy.savez")
    return np.load(path, allow_pickle=False)


def read_pool(path: Path) -> Pool:
    """A pool from a ``.npz`` file with labels (n × members) and y (n), checked."""
    with arrays_of(path) as arrays:
        if not {"labels", "y"} <= set(arrays):
            raise InputError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}: {REMEDY}")
        try:
            labels, y = arrays["labels"], arrays["y"]
        except (ValueError, BadZipFile) as error:  # objects, which are not loaded, or bytes that were changed
            raise InputError(f"{path}: labels or y is no array of numbers or texts: {REMEDY}") from error
    if labels.ndim != 2 or y.shape != labels.shape[:1]:
        raise InputError(f"{path}: labels has shape {labels.shape} and y {y.shape}: expected n × members and n")
    try:
        as_labels(labels)
        classes, places = encoded(y, 0)
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: {error}") from error
    if len(classes) < FEWEST_CLASSES:
        raise InputError(f"{path}: y has {len(classes)} classes: at least {FEWEST_CLASSES} are needed to score by")
    return Pool(path, labels, places)


def pool_files(folder: Path) -> list[Path]:
    """The pools of a folder, by name."""
    if not folder.is_dir():
        raise NotFoundError(f"pools {folder}: no such folder; name one that holds .npz files with labels and y")
    found = sorted(folder.glob("*.npz"))
    if not found:
        raise InputError(f"pools {folder}: no .npz file is there; {REMEDY}")
    return found
