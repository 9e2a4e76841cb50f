"""Clusters of new rows → a file or store, block by block.

After the consensus: a consensus.zarr clusters new base labels of its members, a saved ``ClusterEnsemble`` new rows of
features. Labels, margins and confidences are collected in temporary files, since the number of rows of a table is not
known before its end; no more than a block of them is ever in memory.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data.arrays import is_store
from cehm_dask.data.attributes import format_of
from cehm_dask.data.model_store import check_new, write_prediction
from cehm_dask.errors import InputError, StoreError
from cehm_dask.estimator import CEHM
from cehm_dask.results import export


def load(url: str | os.PathLike[str]) -> CEHM | ClusterEnsemble:
    """The model in a consensus.zarr or in a store that ``ClusterEnsemble.save`` wrote."""
    kind = format_of(os.fspath(url))
    if kind == "consensus":
        return CEHM.load(url)
    if kind == "model":
        return ClusterEnsemble.load(url)
    raise StoreError(f"store {url}: holds {kind}, expected a consensus or a saved model")


def predict(
    model: str | os.PathLike[str],
    new: Any,
    output: str | os.PathLike[str],
    *,
    memory: str | int | None = None,
    overwrite: bool = False,
    report: Callable[[str, int], None] = lambda _what, _rows: None,
) -> int:
    """Cluster new rows and write their labels, margins and confidences; returns their number.

    Parameters
    ----------
    model : path or URL
        Of a consensus.zarr (``new``: base labels, the same members in the same order) or of a saved
        ``ClusterEnsemble`` (``new``: features).
    new : array, data frame, path or URL
        As ``CEHM`` or ``ClusterEnsemble`` take them. Labels that no member had before count as missing.
    output : path or URL
        .npy (labels only), .csv, .parquet or .zarr.
    memory : int or str, optional
        Bytes this process may take in all while it writes the file, such as "2GiB".
    overwrite : bool
        Replace an output that exists.
    report : callable (what, rows), optional
        Told the rows of every block.
    """
    place = os.fspath(output)
    if is_store(place):
        check_new(place, "prediction", overwrite=overwrite)
    else:
        export.check_path(Path(place), overwrite=overwrite)
    with ExitStack() as files:
        kinds = (np.int16, np.float32, np.float32)
        held = [files.enter_context(tempfile.TemporaryFile()) for _ in kinds]
        count = 0
        for block in load(model).predict_blocks(new):
            for file, kind, values in zip(held, kinds, block, strict=True):
                file.write(np.ascontiguousarray(values, kind).data)
            count += len(block.labels)
            report("predicted", len(block.labels))
        if not count:
            raise InputError("n_samples=0: there are no new rows")
        for file in held:
            file.flush()
        labels, margin, confidence = (np.memmap(file, kind, "r") for file, kind in zip(held, kinds, strict=True))
        if is_store(place):
            write_prediction(place, labels, margin, confidence, overwrite=overwrite)
        else:
            export.write(Path(place), labels, margin, confidence, memory=memory)
    return count
