"""Base labels of any size and form → ensemble.zarr, streamed.

The first stage for a user's own base labels: arrays, .npy, .csv, .parquet (a file, or a folder of files),
Zarr arrays, dask arrays and data frames. Two passes: one finds every member's labels, one writes their codes, a
whole shard at a time. No more than a few blocks are ever in memory.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.alignment import joined
from cehm_dask.data.arrays import is_store, open_array
from cehm_dask.data.attributes import format_of
from cehm_dask.data.columns import columns_of
from cehm_dask.data.encoding import Columns, Stream, Survey, array_stream, rows_read, survey, table_stream
from cehm_dask.data.ensemble_writer import EnsembleWriter, create_ensemble, sole_writer
from cehm_dask.data.files import open_npy
from cehm_dask.data.labels import Labels, as_labels, labels_of_columns
from cehm_dask.data.sources import ArraySource
from cehm_dask.data.tables import SUFFIXES, is_table
from cehm_dask.errors import InputError, NotFoundError
from cehm_dask.progress import NO_PROGRESS, Count, Progress


def ingest(
    base_labels: Any,
    url: str,
    *,
    overwrite: bool = False,
    chunk_rows: int | None = None,
    leave_out: Sequence[str] = (),
    source: str | None = None,
    progress: Progress = NO_PROGRESS,
) -> str:
    """Write base labels to an ensemble.zarr; returns its fingerprint.

    ``leave_out`` names columns of a table that are no members, ``source`` what the store says its labels came from.
    """
    stream = open_stream(base_labels, leave_out)
    with sole_writer(url, overwrite=overwrite):
        found = survey(stream, progress)
        identity = all(np.array_equal(known, np.arange(len(known))) for known in found.values)
        writer = create_ensemble(
            url,
            found.n_samples,
            found.widths,
            names=stream.names,
            values=None if identity else found.values,
            source=stream.source if source is None else source,
            overwrite=overwrite,
            chunk_rows=chunk_rows,
        )
        sizes = [np.zeros(width, np.int64) for width in found.widths]
        digests = []
        count = Count(progress, "written", found.n_samples)
        for shard, codes in enumerate(_shards(found, writer)):
            digests.append(writer.write(shard, codes))
            for j, size in enumerate(sizes):
                size += np.bincount(codes[:, j], minlength=len(size))
            count.add(len(codes))
        return writer.finish(digests, [size[1:] for size in sizes])


def _shards(found: Survey, writer: EnsembleWriter) -> Iterator[NDArray[Any]]:
    """Codes, one whole shard after the other."""
    held = np.empty((writer.shard_rows, writer.n_members), found.dtype)
    filled = 0
    for block in found.codes():
        codes = block
        while len(codes):
            taken = min(len(codes), writer.shard_rows - filled)
            held[filled : filled + taken] = codes[:taken]
            codes, filled = codes[taken:], filled + taken
            if filled == writer.shard_rows:
                yield held
                filled = 0
    if filled:
        yield held[:filled]


def label_blocks(base_labels: Any, leave_out: Sequence[str] = ()) -> Iterator[Labels]:
    """Base labels in any accepted form as checked labels of some rows at a time, an ensemble.zarr among them.

    ``leave_out`` names columns of a table that are no members.
    """
    if is_store(base_labels) and format_of(os.fspath(base_labels)) == "ensemble":
        labels = as_labels(base_labels)
        step = rows_read(labels.n_members)
        for start in range(0, labels.n_samples, step):
            rows = labels.read(start, min(start + step, labels.n_samples))
            yield replace(labels, source=ArraySource(rows), n_samples=len(rows), fingerprint="")
        labels.source.confirm()
        return
    stream = open_stream(base_labels, leave_out)
    if stream.table is not None:  # what a column holds is known at the end of the file
        found = survey(stream)
        for codes in found.codes():
            source = ArraySource(codes)
            yield Labels(
                source, len(codes), found.widths, True, stream.names, found.values, itemsize=codes.dtype.itemsize
            )
        return
    first_row = 0
    for columns in stream.blocks():
        yield labels_of_columns(columns, stream.names, first_row)
        first_row += len(columns[0])


def open_stream(base_labels: Any, leave_out: Sequence[str] = ()) -> Stream:
    """Any accepted form of base labels as blocks of columns."""
    if isinstance(base_labels, str | os.PathLike):
        return _open_path(os.fspath(base_labels), leave_out)
    if isinstance(base_labels, list | tuple | Mapping):
        base_labels = joined(base_labels)
    if isinstance(base_labels, list):
        base_labels = _stacked(base_labels)
    if hasattr(base_labels, "columns"):
        return _from_frame(base_labels, "a data frame")
    if not hasattr(base_labels, "shape"):
        base_labels = np.asarray(base_labels)
    return array_stream(base_labels, type(base_labels).__name__)


def _stacked(columns: Sequence[Any]) -> NDArray[Any]:
    arrays = [np.asarray(column) for column in columns]
    for j, array in enumerate(arrays):
        if array.shape != arrays[0].shape:
            raise InputError(f"member {j} has shape {array.shape}, member 0 has {arrays[0].shape}: they must be equal")
    return np.stack(arrays, axis=1) if arrays else np.empty((0, 0), np.int64)


def _open_path(path: str, leave_out: Sequence[str]) -> Stream:
    if is_store(path):
        return array_stream(open_array(path), path)
    local = Path(path)
    if is_table(path):
        return table_stream(path, leave_out)
    if not local.exists():
        raise NotFoundError(f"base labels {path}: no such file or folder")
    if local.suffix == ".npy":
        return array_stream(open_npy(local, "base labels"), path)
    raise InputError(f"base labels {path}: expected .npy, {', '.join(SUFFIXES)}, a folder of .parquet files, or .zarr")


def _from_frame(frame: Any, source: str) -> Stream:
    """pandas, polars and dask data frames; those of dask one partition at a time."""

    def blocks() -> Iterator[Columns]:
        step = rows_read(len(frame.columns))
        parts = (part.compute() for part in frame.partitions) if hasattr(frame, "partitions") else [frame]
        for part in parts:
            # By place: pandas before 3 takes a slice of rows under an index of floats by label.
            rows = part.iloc if hasattr(part, "iloc") else part
            for start in range(0, len(part), step):
                yield columns_of(rows[start : start + step])

    return Stream(tuple(str(name) for name in frame.columns), blocks, source)
