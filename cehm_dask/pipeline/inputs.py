"""What a recipe names, opened: features, base labels, known classes, row ids; the members it asks for, their budget.

Between the recipe and the run, which does the work, and the estimate, which only says what it will cost: both see the
same input.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cehm_dask.data.arrays import is_store, open_array
from cehm_dask.data.attributes import read_facts
from cehm_dask.data.encoding import rows_of_array, rows_read
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ensemble_writer import CHUNK_BYTES, CHUNKS_PER_SHARD, shape_of_chunks
from cehm_dask.data.features import Features, as_features
from cehm_dask.data.ingest import open_stream
from cehm_dask.data.shape import Shape
from cehm_dask.data.tables import open_table
from cehm_dask.engine.budget import CODE_BYTES, Budget, make_budget
from cehm_dask.errors import InputError, StoreError
from cehm_dask.machine import Machine, require_memory
from cehm_dask.members.fit import MemberPlan, k_range, plan_members
from cehm_dask.method.params import made_for
from cehm_dask.pipeline.recipe_model import Recipe, is_table
from cehm_dask.results import export
from cehm_dask.results.prediction import LABEL_BYTES


def is_ensemble(path: str) -> bool:
    """Whether base labels are an ensemble.zarr, and not a plain array."""
    if not is_store(path):
        return False
    try:
        return bool(read_facts(path)["format"] == "ensemble")
    except StoreError:
        return False


def left_out(recipe: Recipe) -> list[str]:
    """Columns of the input that are neither features nor members."""
    return [*_known_classes(recipe), *([] if recipe.source.id is None else [recipe.source.id])]


def _known_classes(recipe: Recipe) -> list[str]:
    """The column of the input that gives the truth away."""
    truth = recipe.truth
    return [truth.column] if truth and truth.path is None and truth.column is not None else []


def left_out_beside(recipe: Recipe) -> list[str]:
    """Columns that name the rows, in the table that clusters are described by."""
    if recipe.profile is None or recipe.source.id is None or not is_table(recipe.profile):
        return []
    table = open_table(recipe.profile)
    return [name for name in table.names if name == recipe.source.id]


def members_of(recipe: Recipe, n_samples: int) -> list[MemberPlan]:
    """The base clusterings that a recipe asks for; by default each has at least the largest k that is tried."""
    wanted = recipe.ensemble
    low, high = k_range(made_for(recipe.consensus.k, n_samples), n_samples)
    low, high = wanted.k_min or min(low, wanted.k_max or low), wanted.k_max or max(high, wanted.k_min or 0)
    drawn = wanted.model_dump(include={"subspace", "projection", "bootstrap", "subsample"})
    return plan_members(wanted.members, low, high, wanted.seed, base=wanted.base, **drawn)


def shape_of(n_samples: int, widths: Sequence[int]) -> Shape:
    """Of an ensemble.zarr that is still to be made; ``widths``: each member's clusters, and one for a missing label."""
    itemsize = np.min_scalar_type(max(widths) - 1).itemsize
    chunk, shard = shape_of_chunks(n_samples, len(widths), itemsize)
    return Shape(n_samples, len(widths) * itemsize, sum(widths), chunk, shard, widths=tuple(widths), silent=True)


def budget_for(recipe: Recipe, shape: Shape, machine: Machine) -> Budget:
    """Blocks, spans and bytes of the consensus that a recipe asks for, or a refusal."""
    return make_budget(
        shape,
        recipe.consensus.problems(shape.n_samples),
        allowed=machine.allowed,
        taken=machine.taken,
        workers=machine.workers,
        threads=machine.threads,
        returned=False,
        diffuses=recipe.consensus.params(1).schedule != "direct",
        start_rows=recipe.consensus.start_rows,
    )


def require_import(path: str, leave_out: Sequence[str], machine: Machine) -> dict[str, int]:
    """Bytes that reading and encoding base labels takes, by what they are for, or a refusal."""
    n_members = len(open_stream(path, leave_out).names)
    rows = rows_of_array(open_array(path)) if is_store(path) else rows_read(n_members)
    terms = {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "labels of a block": rows * LABEL_BYTES * n_members,
        "shard that is written": 4 * CHUNKS_PER_SHARD * CHUNK_BYTES,
    }
    require_memory("base labels", terms, machine.allowed, "")
    return terms


def open_features(recipe: Recipe) -> Features:
    """The features of a recipe, without what names the rows or gives the truth away."""
    source = recipe.features
    if source is None:
        raise InputError("the recipe starts from base labels: it has no features")
    if source.path is not None:
        return as_features(source.path, source.preparation(_known_classes(recipe)))
    data = _bundled(source.sklearn)
    names = tuple(map(str, data.feature_names))
    return replace(as_features(data.data), names=names, source=f"scikit-learn: {source.sklearn}")


def _bundled(name: str | None) -> Any:
    import sklearn.datasets

    return getattr(sklearn.datasets, f"load_{name}")()


def open_truth(recipe: Recipe) -> Any:
    """The known classes: an array, or the path of what holds them; None: they are not known."""
    truth, features = recipe.truth, recipe.features
    if truth is None:
        return None
    if truth.path is None and features is not None and features.sklearn is not None:
        return np.asarray(_bundled(features.sklearn).target)
    path = truth.path or recipe.source.path
    if path is not None and is_ensemble(path):
        known = open_ensemble(path).truth
        if known is None:
            raise InputError(f"truth {path}: the ensemble holds no known classes; name another file")
        return known
    return path


def row_ids(recipe: Recipe) -> export.RowIds | None:
    """What the user calls the rows; None: nothing, they are numbered."""
    source = recipe.source
    if source.id is None or source.path is None:
        return None
    return export.column_ids(source.path, source.id)
