"""What a recipe expects of its input, checked before any work: columns, rows, and how much may be missing.

Beside the inputs, for the run and its plan. Names and rows are looked up; missing values are counted in one pass over
the table, a block at a time, and only if the recipe says how many there may be.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from cehm_dask.data.cells import trimmed
from cehm_dask.data.encoding import Stream
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ingest import open_stream
from cehm_dask.data.names import listed
from cehm_dask.data.tables import Csv, Table, TypedTable, open_table
from cehm_dask.errors import InputError
from cehm_dask.pipeline.inputs import is_ensemble, left_out, open_features
from cehm_dask.pipeline.recipe_model import Recipe, is_table


@dataclass(frozen=True)
class Input:
    """The input of a recipe, as far as expectations go."""

    source: str
    names: Sequence[str]
    """Of all columns."""
    rows: int
    missing: Mapping[str, int]
    """Values that are missing, by column; empty if they were not asked for."""


def check_expected(recipe: Recipe) -> None:
    """An error if the input is not what the recipe expects, with the column and the numbers."""
    expect = recipe.expect
    if expect is None:
        return
    wanted = list(expect.columns or ())
    found = _input(recipe, wanted, count=expect.missing is not None)
    wrong = []
    if lost := [name for name in wanted if name not in found.names]:
        lacks = ", ".join(map(repr, lost))
        wrong.append(f"expect.columns: {found.source} has no column {lacks}; there are {listed(list(found.names))}")
    if expect.rows is not None and found.rows < expect.rows:
        wrong.append(f"expect.rows: {found.source} has {found.rows:,} rows, expected at least {expect.rows:,}")
    for name, count in found.missing.items():
        if expect.missing is not None and count > expect.missing * found.rows:
            wrong.append(
                f"expect.missing: column {name!r} of {found.source} lacks {count:,} of {found.rows:,} values "
                f"({count / max(1, found.rows):.1%}), expected at most {expect.missing:.1%}"
            )
    if wrong:
        raise InputError("; ".join(wrong) + ": correct the input, or expect less of it")


def _input(recipe: Recipe, wanted: Sequence[str], *, count: bool) -> Input:
    path = recipe.source.path
    if path is not None and is_table(path):
        return _of_table(recipe, open_table(path), wanted, count=count)
    if recipe.labels is not None and path is not None:
        if is_ensemble(path):
            ensemble = open_ensemble(path)
            edges = np.cumsum([0, *(width - 1 for width in ensemble.widths)])
            spoken = [int(ensemble.sizes[a:b].sum()) for a, b in pairwise(edges)]
            missing = {name: ensemble.n_samples - own for name, own in zip(ensemble.names, spoken, strict=True)}
            return Input(path, ensemble.names, ensemble.n_samples, missing if count else {})
        return _of_labels(open_stream(path), path)
    features = open_features(recipe)
    lacking = np.zeros(features.n_features, np.int64)
    for block in features.blocks() if count else ():
        lacking += np.isnan(np.asarray(features.read(*block), np.float64)).sum(axis=0)
    missing = dict(zip(features.names, lacking.tolist(), strict=True)) if count else {}
    return Input(features.source, features.names, features.n_samples, missing)


def _of_labels(stream: Stream, path: str) -> Input:
    """Of an array of base labels, which is gone through for its rows anyway."""
    rows, missing = 0, np.zeros(len(stream.names), np.int64)
    for columns in stream.blocks():
        rows += len(columns[0])
        missing += [int(np.count_nonzero((column == -1) | (column != column))) for column in columns]  # NaN differs
    return Input(path, stream.names, rows, dict(zip(stream.names, missing.tolist(), strict=True)))


def _of_table(recipe: Recipe, table: Table, wanted: Sequence[str], *, count: bool) -> Input:
    names = [*table.names, *table.index]
    read: list[str] = []
    if count and recipe.features is not None:
        read = recipe.features.preparation(left_out(recipe)).kept(table.names, table.index, table.path)
    elif count:
        read = table.without(left_out(recipe), "member")
    counted = [name for name in dict.fromkeys((*read, *wanted)) if name in names] if count else []
    if isinstance(table, TypedTable) and not counted:
        return Input(table.path, names, table.n_rows, {})
    rows, missing = 0, dict.fromkeys(counted, 0)
    for batch in table.batches(counted or table.names[:1]):
        rows += batch.num_rows
        lacking = _lacking(table, batch, labels=recipe.labels is not None) if counted else ()
        for name, own in zip(counted, lacking, strict=True):
            missing[name] += own
    return Input(table.path, names, rows, missing)


def _lacking(table: Table, batch: Any, *, labels: bool) -> Iterator[int]:
    """Missing values in each column of a block; of base labels, -1 is one too."""
    import pyarrow.compute as pc
    import pyarrow.types as of

    for given in batch.columns:
        column = trimmed(given) if isinstance(table, Csv) else given
        found = column.null_count
        if of.is_floating(column.type):
            found += pc.sum(pc.is_nan(column)).as_py() or 0
        if labels and (of.is_string(column.type) or of.is_signed_integer(column.type) or of.is_floating(column.type)):
            found += pc.sum(pc.equal(column, "-1" if of.is_string(column.type) else -1)).as_py() or 0
        yield found
