"""Clusters of new rows → a file or store, block by block.

After the consensus: a consensus.zarr clusters new base labels of its members, a saved ``ClusterEnsemble`` or a run
directory new rows of features. Labels, margins and confidences are collected in temporary files, since the number of
rows of a table is not known before its end; no more than a block of them is ever in memory.
"""

import os
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data.arrays import is_store
from cehm_dask.data.attributes import format_of, kind_of, place_in
from cehm_dask.data.encoding import rows_read
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.features import BLOCK_ROWS as FEATURE_ROWS
from cehm_dask.data.model_store import check_new, write_prediction
from cehm_dask.data.names import NameWarning
from cehm_dask.data.tables import is_table, open_table
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.errors import InputError, StoreError
from cehm_dask.estimator import CEHM
from cehm_dask.machine import Machine, require_memory, this_machine
from cehm_dask.masking import shown
from cehm_dask.members.stored import is_run
from cehm_dask.progress import NO_PROGRESS, Progress
from cehm_dask.results import export
from cehm_dask.results.matching import NamedLabels, names_in
from cehm_dask.wording import option

LABEL_BYTES = 64
"""Of a base label in a block of rows: as read, as a number, as a code, as a rank among known labels, and copies."""

FEATURE_BYTES = 3 * 8 + 2 * 4
"""Of a feature in a block of new rows: as read and as float64, scaled as float32, and by columns."""


def load(url: str | os.PathLike[str]) -> CEHM | ClusterEnsemble:
    """The model in a consensus.zarr, in a store that ``ClusterEnsemble.save`` wrote, or in a run directory.

    That of a run which began with base labels takes base labels.
    """
    place = os.fspath(url)
    if is_run(place):
        ensemble = place_in(place, "ensemble.zarr")
        made = kind_of(ensemble) == "ensemble" and open_ensemble(ensemble).members
        return ClusterEnsemble.load(place) if made else CEHM.load(place_in(place, "consensus.zarr"))
    kind = format_of(place)
    if kind == "consensus":
        return CEHM.load(url)
    if kind == "model":
        return ClusterEnsemble.load(url)
    raise StoreError(f"store {url}: holds {kind}, expected a consensus, a saved model or a run directory")


def prediction_terms(model: CEHM | ClusterEnsemble, new: Any, machine: Machine) -> dict[str, int]:
    """Bytes that reading and labelling new rows takes, by what they are for."""
    consensus = model if isinstance(model, CEHM) else model.consensus_
    n_members, (slots, n_clusters) = consensus.n_features_in_, consensus.counts_.shape
    rows = FEATURE_ROWS if isinstance(model, ClusterEnsemble) else _rows_at_once(new, n_members)
    read = 0 if isinstance(model, CEHM) else FEATURE_BYTES * len(model.encoded_names_)
    return {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "tables of the model": 8 * 8 * slots * (n_clusters + 1),
        "new rows of a block": rows * (read + LABEL_BYTES * n_members),
        "labels, margins and confidences of a block": rows * 2 * 3 * 8,
    }


def _rows_at_once(new: Any, n_members: int) -> int:
    """Rows of base labels that are read in one go; an ensemble is read by whole chunks."""
    rows = rows_read(n_members)
    return rows + 2 * open_ensemble(os.fspath(new)).chunk_rows if is_store(new) else rows


def predict(
    model: str | os.PathLike[str],
    new: Any,
    output: str | os.PathLike[str],
    *,
    id: str | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
    progress: Progress = NO_PROGRESS,
) -> int:
    """Cluster new rows and write their labels, margins and confidences; returns their number.

    Parameters
    ----------
    model : path or URL
        Of a consensus.zarr (``new``: base labels, the same members in the same order), of a saved
        ``ClusterEnsemble`` (``new``: features), or of a run directory (``new``: what its recipe starts from). Clusters
        of a run that follows another have their names.
    new : array, data frame, path or URL
        As ``CEHM`` or ``ClusterEnsemble`` take them. Labels that no member had before count as missing. Columns of
        features are matched by name; one that is missing or has another sort of type is refused, further ones are
        ignored with a warning, and so are categories that were not there at the fit.
    output : path or URL
        .npy (labels only), .csv, .parquet or .zarr.
    id : str, optional
        Column of the table ``new`` that names the rows; written in place of row numbers. Default: that of the model's
        own features, if the table has it.
    memory : int or str, optional
        Bytes this process may take in all, such as "2GiB"; default: a share of what is free. What needs more is refused
        before a row is read.
    overwrite : bool
        Replace an output that exists.
    progress : Progress
        Gets the rows of every block.
    """
    place = os.fspath(output)
    if is_store(place):
        check_new(place, "prediction", overwrite=overwrite)
    else:
        export.check_path(Path(place), overwrite=overwrite)
    machine, fitted = this_machine(memory), load(model)
    ids = _row_ids(fitted, new, id)
    consensus = fitted if isinstance(fitted, CEHM) else fitted.consensus_
    names = names_in(os.fspath(model), consensus.n_clusters_) if is_run(os.fspath(model)) else None
    require_memory("the new rows", prediction_terms(fitted, new, machine), machine.allowed, "")
    with ExitStack() as files:
        kinds = (np.int16, np.float32, np.float32)
        held = [files.enter_context(tempfile.TemporaryFile()) for _ in kinds]
        count = 0
        left_out = () if id is None else (id,)
        blocks = fitted.predict_blocks(new, left_out) if isinstance(fitted, CEHM) else fitted.predict_blocks(new)
        for block in blocks:
            for file, kind, values in zip(held, kinds, block, strict=True):
                file.write(np.ascontiguousarray(values, kind).data)
            count += len(block.labels)
            progress.advanced("predicted", count, None)
        if not count:
            raise InputError("n_samples=0: there are no new rows")
        for file in held:
            file.flush()
        labels, margin, confidence = (np.memmap(file, kind, "r") for file, kind in zip(held, kinds, strict=True))
        found: Any = labels if names is None else NamedLabels(labels, names)
        if is_store(place):
            write_prediction(place, found, margin, confidence, overwrite=overwrite)
        else:
            export.write(Path(place), found, margin, confidence, ids, memory=memory)
    return count


def _row_ids(fitted: CEHM | ClusterEnsemble, new: Any, id: str | None) -> export.RowIds | None:
    """What the new rows are called; None: they are numbered."""
    own = None if isinstance(fitted, CEHM) else fitted.id
    if id is None and own is None:
        return None
    named = isinstance(new, str | os.PathLike) and is_table(os.fspath(new))
    if id is not None:
        if not named:
            raise InputError(f"{option('id', id)}: {shown(new)} has no columns with names; give a table")
        if isinstance(fitted, ClusterEnsemble):
            fitted.set_params(id=id)  # no feature
        return export.column_ids(os.fspath(new), id)
    if not named:
        return None
    table = open_table(os.fspath(new))
    if own in (*table.names, *table.index):
        return export.column_ids(os.fspath(new), str(own))
    warnings.warn(
        f"{os.fspath(new)}: no column {own!r}, by which the rows of the fit were named: rows are numbered; "
        f"{option('id', 'COLUMN')} names another",
        NameWarning,
        stacklevel=3,
    )
    return None
