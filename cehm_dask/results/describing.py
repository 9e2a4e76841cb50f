"""Clusters described by any table beside their labels: columns of numbers, and of categories.

After the consensus, or without one: ``profile`` takes labels from anywhere, ``describe`` those of a consensus.zarr.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.clusters.current import client_of
from cehm_dask.data.arrays import is_store
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.features import Features, as_features
from cehm_dask.data.files import absolute
from cehm_dask.data.number_column import NumberColumn
from cehm_dask.data.preparation import Preparation
from cehm_dask.data.tables import Csv, TypedTable, is_table, open_table
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.job import Where
from cehm_dask.profiles.blocks import Category, HeldClusters, StoredClusters
from cehm_dask.profiles.profile import Profile
from cehm_dask.profiles.sweep import no_features, profile_clusters
from cehm_dask.progress import NO_PROGRESS, Progress
from cehm_dask.results.export import names_of
from cehm_dask.results.truth import Truth, as_truth, encoded


def profile(
    table: Any,
    labels: Any,
    *,
    margin: Any = None,
    confidence: Any = None,
    row_ids: Any = None,
    leave_out: Sequence[str] = (),
    memory: str | int | None = None,
    client: Any = None,
) -> Profile:
    """Describe the clusters of any labels by any table of the same rows.

    Parameters
    ----------
    table : data frame, array, dask array or data frame, sparse matrix, path or URL; or None
        Columns of texts in a pandas data frame, a .csv or a .parquet file are categories. Values that are not finite
        count as missing. None: sizes and examples only.
    labels : (n,) whole numbers or texts
        Cluster of each row; -1, NaN or an empty text: none.
    margin, confidence : (n,) numbers, optional
        As an estimator has them; prototypes and border cases are found by the margins.
    row_ids : array, series, or blocks of them, optional
        What the rows are called.
    leave_out : sequence of str
        Columns of a .csv or .parquet file, or of a data frame, to be left out.
    memory : int or str, optional
        Bytes a process may take in all, such as "2GiB"; default: a share of what is free.
    client : distributed.Client, address, cluster file, or False; optional
        Whose workers read the table; default: the current client, if there is one.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from cehm_dask import profile
    >>> iris = load_iris(as_frame=True)
    >>> profile(iris.data, iris.target_names[iris.target]).sentences[0]
    'Cluster setosa: 50 samples (33 %); lower petal length (cm) (−2.0 sd), lower petal width (cm) (−1.9 sd), ...'
    """
    given = np.asarray(labels.compute() if hasattr(labels, "compute") else labels)
    if given.ndim != 1:
        raise InputError(f"labels have shape {given.shape}: expected one per row")
    names, places = encoded(given, 0)
    texts = [str(name) for name in names.tolist()]
    order = sorted(range(len(texts)), key=lambda at: _natural(texts[at]))
    if not order:
        raise InputError(f"none of the {len(given):,} labels names a cluster: there is nothing to describe")
    place_of = np.append(np.argsort(order), -1)
    values = [None if own is None else np.asarray(own, np.float32) for own in (margin, confidence)]
    for what, own in zip(("margin", "confidence"), values, strict=True):
        if own is not None and own.shape != given.shape:
            raise InputError(f"{what} has shape {own.shape}, the labels {given.shape}: they must be the same")
    clusters = HeldClusters(place_of[places], len(texts), *values)
    with client_of(client) as who:
        where = Where(memory=memory, client=who)
        features, categories = beside(table, len(given), leave_out)
        found = profile_clusters(features, clusters, categories, names=[texts[at] for at in order], where=where)
    return found if row_ids is None else with_ids(found, row_ids, len(given))


def describe(
    consensus: str | os.PathLike[str],
    table: Any = None,
    *,
    row_ids: Any = None,
    leave_out: Sequence[str] = (),
    memory: str | int | None = None,
    client: Any = None,
    progress: Progress = NO_PROGRESS,
) -> Profile:
    """Describe the clusters of a finished consensus.zarr; for the other parameters, see :func:`profile`."""
    stored = open_consensus(os.fspath(consensus))
    n_samples = int(stored.facts["n_samples"])
    features, categories = beside(table, n_samples, leave_out)
    clusters = StoredClusters(absolute(stored.url), stored.seal, int(stored.facts["n_clusters"]))
    where = Where(memory=memory, client=client)
    found = profile_clusters(features, clusters, categories, where=where, progress=progress)
    stored.confirm()
    return found if row_ids is None else with_ids(found, row_ids, n_samples)


def with_ids(found: Profile, row_ids: Any, n_samples: int) -> Profile:
    """With what its prototypes and border cases are called."""
    return found.named(names_of(row_ids, np.asarray(found.example_rows(), np.int64), n_samples))


def _natural(name: str) -> tuple[int, int, str]:
    """Numbers by their value, before texts."""
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of texts as categories."""

    name: str
    cells: Truth

    def read(self, start: int, stop: int) -> tuple[NDArray[np.str_], NDArray[np.int64]]:
        return encoded(self.cells.read(start, stop), start)


def beside(table: Any, n_samples: int, leave_out: Sequence[str] = ()) -> tuple[Features, list[Category]]:
    """The numbers and the categories of a table, whose rows must be as many as the labels."""
    if table is None:
        return no_features(n_samples), []
    if isinstance(table, str | os.PathLike):
        features, texts = _in_file(os.fspath(table), n_samples, leave_out)
    elif hasattr(table, "columns") and hasattr(table, "iloc") and not hasattr(table, "to_delayed"):
        features, texts = _in_frame(table.drop(columns=list(leave_out)))
    else:
        features, texts = as_features(table), {}
    if features.n_samples != n_samples:
        raise InputError(
            f"the table has {features.n_samples:,} rows, there are {n_samples:,} labels: one row per label, in the "
            "same order, is needed"
        )
    # Each knows how many rows it has; the number of labels is what they must be.
    return features, [TextColumn(name, as_truth(cells, n_samples, column)) for name, (cells, column) in texts.items()]


Texts = dict[str, tuple[Any, str | None]]
"""Columns of texts by name: what holds each, and the column of it."""


def _in_frame(frame: Any) -> tuple[Features, Texts]:
    from pandas.api.types import is_numeric_dtype

    numbers = [is_numeric_dtype(kind) for kind in frame.dtypes]
    texts: Texts = {
        str(name): (frame.iloc[:, at].astype(object), None) for at, name in enumerate(frame.columns) if not numbers[at]
    }
    held = frame.loc[:, numbers]
    if not held.shape[1]:
        return no_features(len(frame)), texts
    if not all(isinstance(kind, np.dtype) and kind.kind in "iuf" for kind in held.dtypes):
        # True and false beside numbers, or pandas' own mark for a missing number: as they are, they would be objects.
        names = tuple(map(str, held.columns))
        return replace(as_features(held.to_numpy(np.float64, na_value=np.nan)), names=names), texts
    return as_features(held), texts


def _in_file(path: str, n_samples: int, leave_out: Sequence[str]) -> tuple[Features, Texts]:
    if is_store(path) or not is_table(path):
        return as_features(path), {}
    table = open_table(path)
    names = [name for name in table.names if name not in leave_out]
    texts = _text_columns(table, names)
    found: Texts = {name: (path, name) for name in texts}
    if len(texts) == len(names):
        return no_features(n_samples), found
    return as_features(path, Preparation.of(drop=[*leave_out, *texts])), found


def _text_columns(table: Csv | TypedTable, names: Sequence[str]) -> list[str]:
    if isinstance(table, TypedTable):
        import pyarrow.types as of

        tests = (of.is_integer, of.is_floating, of.is_boolean, of.is_decimal, of.is_null)
        kinds = {name: table.schema.field(name).type for name in names}
        return [name for name in names if not any(test(kinds[name]) for test in tests)]
    first = next(iter(table.batches(names)), None)
    if first is None:
        return []
    return [name for name, cells in zip(names, first.columns, strict=True) if not _are_numbers(table, name, cells)]


def _are_numbers(table: Csv, name: str, cells: Any) -> bool:
    """Whether the first cells of a column are numbers; what follows is held to it."""
    try:
        NumberColumn(table.path, name).read(cells, 0)
    except InputTypeError:
        return False
    return True
