"""Features that are dask collections: held while members are made of them, and labelled where they lie.

Beside ``generate``, which writes base labels to a store. Here they stay with the workers, as a dask array with the row
chunks of the features.
"""

import logging
import uuid
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from cehm_dask.data.collections import is_collection
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.feature_blocks import Chunks, as_given, feature_blocks_of, fixed_blocks
from cehm_dask.data.features import AS_IS, BLOCK_ROWS, Features, as_features
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.data.names import places_of
from cehm_dask.data.preparation import Encoding, Preparation
from cehm_dask.data.sources import ArraySource, ChunkSource, Codes
from cehm_dask.engine.collection import COPIES, Held
from cehm_dask.engine.task import Workers, computing_on
from cehm_dask.errors import BudgetError, InputError
from cehm_dask.machine import Machine, format_bytes
from cehm_dask.members.fit import Given, Labeller, Linear
from cehm_dask.members.generate import label_all

log = logging.getLogger(__name__)

HELD = 2
"""Times the bytes of the features that must be free for them to be held: as chunks, and as the blocks cut from them."""


def features_on(X: Any, client: Any, machine: Machine, prepare: Preparation = AS_IS) -> Features:
    """Features in any form; blocks of a dask collection are computed once, and held, if they fit in memory.

    Otherwise they are computed again in every pass over them, some at a time.
    """
    if not is_collection(X):
        return as_features(X, prepare)
    import dask

    with computing_on(client, machine.threads):
        features = as_features(X, prepare)
        size = 8 * features.n_samples * features.n_features
        if features.chunks is None or HELD * size > _room(machine):
            log.info("features take %s: they are computed again in every pass", format_bytes(size))
            return features
        chunks = replace(features.chunks, parts=dask.persist(*features.chunks.parts))
    return replace(features, chunks=chunks, read=chunks.read)


def _room(machine: Machine) -> int:
    """Bytes that are free with all who work."""
    return (machine.workers or 1) * max(0, machine.allowed - machine.taken)


def base_labels_of(
    features: Features, labeller: Labeller, workers: Workers, client: Any, machine: Machine
) -> tuple[Held, Any]:
    """Base labels of all rows, for the consensus, and as an array: a dask array if the features are a collection."""
    names = tuple(map(str, range(len(labeller.members))))
    size = features.n_samples * len(names) * labeller.dtype.itemsize
    if features.chunks is not None and COPIES * size > _room(machine):
        raise BudgetError(
            f"base labels take {format_bytes(size)}, {format_bytes(_room(machine))} are free in the memory allowed: "
            "allow more memory, or pass output=, the path of an ensemble.zarr to write that all workers can see"
        )
    if features.chunks is None or client is None:
        codes = label_all(features, labeller, workers)
        labels = _labels(ArraySource(codes), features.n_samples, labeller, names)
        return _held(labels, features, codes)
    futures = client.compute(_label_chunks(features.chunks, features.names, labeller))
    given = features.chunks.given_rows
    filled = [future for future, n in zip(futures, given, strict=True) if n]
    edges = tuple(np.cumsum([0, *(n for n in given if n)]).tolist())
    labels = _labels(ChunkSource(filled, edges, remote=True), features.n_samples, labeller, names)
    return _held(labels, features, _array(futures, given, labeller))


def stored_labels_of(features: Features, labeller: Labeller, url: str) -> tuple[Held, Any]:
    """The same, of base labels that were written to an ensemble.zarr: a dask array that reads it."""
    from dask import delayed

    labels = as_labels(url)
    given = features.blocks() if features.chunks is None else _spans(features.chunks.given_rows)
    read = delayed(_read, pure=True)
    rows = [stop - start for start, stop in given]
    array = _array([read(labels.source, start, stop) for start, stop in given], rows, labeller)
    held, _ = _held(replace(labels, values=_values(labeller)), features, array)
    return held, array


def _held(labels: Labels, features: Features, codes: Any) -> tuple[Held, Any]:
    if features.chunks is None:
        return Held(labels), codes
    import dask.array as da

    given = [n for n in features.chunks.given_rows if n]  # an array has no chunks without rows
    array = codes if is_collection(codes) else da.from_array(codes, chunks=(tuple(given), -1), name=False)
    return Held(labels, tuple(start for start, _ in _spans(given)), array), array


def _spans(rows: Sequence[int]) -> list[tuple[int, int]]:
    edges = np.cumsum([0, *rows]).tolist()
    return list(pairwise(edges))


def _read(ensemble: Ensemble, start: int, stop: int) -> Codes:
    return ensemble.read(start, stop) if stop > start else np.empty((0, len(ensemble.widths)), np.uint8)


def _labels(source: Any, n_samples: int, labeller: Labeller, names: tuple[str, ...]) -> Labels:
    """Codes of members as base labels from 1; code 0 is a missing one."""
    widths = tuple(width + 1 for width in labeller.widths)
    return Labels(source, n_samples, widths, True, names, _values(labeller), itemsize=labeller.dtype.itemsize)


def _values(labeller: Labeller) -> tuple[Any, ...]:
    return tuple(np.arange(1, width + 1) for width in labeller.widths)


def _label_chunks(chunks: Chunks, names: tuple[str, ...], labeller: Labeller) -> list[Any]:
    """Codes in the blocks that the collection had, from those of a fixed size: delayed arrays."""
    firsts = range(0, len(chunks.parts) * chunks.rows, chunks.rows)
    return as_given(replace(chunks, parts=_label_each(chunks.parts, firsts, names, labeller)))


def _label_each(
    blocks: Sequence[Any], first_rows: Sequence[int], names: tuple[str, ...], labeller: Labeller
) -> list[Any]:
    from dask import delayed

    number = uuid.uuid4().hex[:12]
    # A node of the graph: it does not travel with every task.
    one = delayed(labeller, name=f"cehm-members-{number}", traverse=False)
    label = delayed(_label_rows, pure=False)
    return [
        label(block, first_row, one, names, dask_key_name=f"cehm-label-{number}-{i}")
        for i, (block, first_row) in enumerate(zip(blocks, first_rows, strict=True))
    ]


def _label_rows(rows: Any, first_row: int, labeller: Labeller, names: tuple[str, ...]) -> Codes:
    """Codes of a block, some rows at a time."""
    starts = range(0, max(1, len(rows)), BLOCK_ROWS)
    parts = [labeller.label(rows[start : start + BLOCK_ROWS], first_row + start, names) for start in starts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _array(parts: Sequence[Any], rows: Sequence[float], labeller: Labeller) -> Any:
    import dask.array as da

    shape = len(labeller.members), labeller.dtype
    return da.concatenate([da.from_delayed(part, (n, shape[0]), shape[1]) for part, n in zip(parts, rows, strict=True)])


def label_lazily(X: Any, labeller: Labeller, names: Sequence[str], prepare: Preparation) -> Any:
    """Codes of a dask collection of features: a dask array with its row chunks, computed when asked for.

    ``names`` are the features that were fitted, ``prepare`` how they are read.
    """
    if hasattr(X, "columns") and prepare.fitted is None:
        prepare = prepare.again(Encoding.of_numbers(names))
    given = feature_blocks_of(X, prepare)
    places_of(given.names, names, "feature")  # refuses another number of columns
    if given.rows is not None and not all(isinstance(member, Linear) for member in labeller.members):
        # Members with a predict of their own may see other bits in other blocks.
        chunks = fixed_blocks(given, given.rows, BLOCK_ROWS)
        return _array(_label_chunks(chunks, given.names, labeller), given.rows, labeller)
    if given.rows is None and any(isinstance(member, Given) for member in labeller.members):
        raise InputError("X: members without predict go by the row number; call compute_chunk_sizes() on the array")
    rows = given.rows or (np.nan,) * len(given.blocks)
    firsts = [0 if np.isnan(start) else int(start) for start in np.cumsum([0, *rows])[:-1]]
    return _array(_label_each(given.blocks, firsts, given.names, labeller), rows, labeller)
