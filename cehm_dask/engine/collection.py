"""A dask array or data frame of base labels → labels whose blocks stay where they are.

With a client, blocks are encoded by its workers and stay with them. Without one, Dask's local scheduler computes
the blocks a few at a time, and this process keeps their codes. Where the codes do not fit in memory, they are written
once, whole shard by whole shard, to a scratch ensemble.zarr, and read from there.
"""

import hashlib
import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from cehm_dask.data.collections import (
    Coding,
    Collection,
    Found,
    coding_of,
    collection_of,
    encode_block,
    found_in,
    recode,
)
from cehm_dask.data.ensemble_writer import EnsembleWriter, create_ensemble
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.data.sources import ChunkSource, Codes
from cehm_dask.errors import CehmError, InputError
from cehm_dask.machine import Machine, format_bytes

log = logging.getLogger(__name__)

COPIES = 2.5
"""Bytes that a code takes on its way: as encoded by its block, by all blocks, and parts of the next."""


class Held(NamedTuple):
    """Labels that are ready to be swept over, and where they come from a dask collection, that and its blocks."""

    labels: Labels
    starts: tuple[int, ...] | None = None
    """First row of each block."""
    collection: Any = None


@contextmanager
def labels_of_collection(given: Any, client: Any, machine: Machine, scratch: str | None = None) -> Iterator[Held]:
    """Labels of a dask collection; what is held for them is released at the end.

    Parameters
    ----------
    given : dask array (n_samples × n_members) or dask data frame
    client : distributed.Client, optional
    machine : Machine
        Where the work is done, and how many bytes a process may take.
    scratch : str, optional
        Folder that the workers can see, for codes that do not fit in their memory. Default: Dask's
        ``temporary-directory``, or the system's.
    """
    collection = collection_of(given)
    n_rows = None if collection.edges is None else collection.edges[-1]
    if n_rows == 0 or not collection.n_blocks:
        raise InputError("n_samples=0: base labels need at least one row")
    room = (machine.workers or 1) * max(0, machine.allowed - machine.taken)
    members = len(collection.names)
    if n_rows is not None and COPIES * n_rows * members <= room:
        yield _in_memory(given, collection, client, machine)
        return
    found = _found(collection, client, machine)
    n_rows = sum(block.n_rows for block in found)
    if n_rows == 0:
        raise InputError("n_samples=0: base labels need at least one row")
    coding = coding_of(found, collection.names)
    size = n_rows * members * coding.dtype.itemsize
    if COPIES * size <= room:
        yield _in_memory(given, collection, client, machine)
        return
    log.info("codes of the collection take %s: they go through a scratch store", format_bytes(size))
    with _scratch_folder(scratch) as folder:
        stored = _through_store(collection, found, coding, client, f"{folder}/ensemble.zarr")
        yield Held(stored, _starts(found), given)


@contextmanager
def _scratch_folder(scratch: str | None) -> Iterator[str]:
    import dask

    folder = tempfile.mkdtemp(prefix="cehm-scratch-", dir=scratch or dask.config.get("temporary-directory", None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _encoded(collection: Collection) -> list[Any]:
    """Delayed blocks by their own labels."""
    return collection.each(encode_block, collection.names, collection.edges)


def _found(collection: Collection, client: Any, machine: Machine) -> list[Found]:
    """What every block holds; rows are computed and not kept."""
    from dask import delayed

    found = [delayed(found_in, pure=True)(block) for block in _encoded(collection)]
    if client is not None:
        return _gathered(client, client.compute(found), collection)
    return list(_few_at_a_time(found, machine.threads))


def _gathered(client: Any, futures: Sequence[Any], collection: Collection) -> list[Found]:
    """What is known of the blocks; an error of the collection's own tasks gets the number of the block and its rows."""
    try:
        return list(client.gather(futures))
    except CehmError:
        raise
    except Exception as error:
        for number, future in enumerate(futures):
            if future.status == "error":
                edges = collection.edges
                rows = "" if edges is None else f", rows {edges[number]} to {edges[number + 1] - 1}"
                error.add_note(f"This was block {number} of the collection{rows}.")
                break
        raise


def _few_at_a_time(tasks: Sequence[Any], threads: int) -> Iterator[Any]:
    """Compute delayed objects in order, as many together as there are threads."""
    import dask

    for start in range(0, len(tasks), threads):
        yield from dask.compute(*tasks[start : start + threads])


def _in_memory(given: Any, collection: Collection, client: Any, machine: Machine) -> Held:
    """Codes held by the workers, or by this process."""
    encoded = _encoded(collection)
    if client is None:
        held = list(_few_at_a_time(encoded, machine.threads))
        found = [found_in(block) for block in held]
        coding = coding_of(found, collection.names)
        chunks: list[Any] = []
        while held:  # one by one, so that no block is held twice
            chunks.append(recode(held.pop(0), coding))
    else:
        number = uuid.uuid4().hex[:12]
        held = client.compute(encoded)
        asked = client.map(found_in, held, key=[f"cehm-found-{number}-{i}" for i in range(len(held))], pure=False)
        found = _gathered(client, asked, collection)
        coding = coding_of(found, collection.names)
        sent = client.submit(_hand_over, coding, key=f"cehm-coding-{number}", pure=False)
        keys = [f"cehm-encode-{number}-{i}" for i in range(len(held))]
        chunks = client.map(recode, held, coding=sent, key=keys, pure=False)
    labels = _labels(chunks, found, coding, collection.names, remote=client is not None)
    return Held(labels, _starts(found), given)


def _starts(found: Sequence[Found]) -> tuple[int, ...]:
    return tuple(np.cumsum([0, *(block.n_rows for block in found)]).tolist()[:-1])


def _hand_over(given: Any) -> Any:
    return given


def _labels(
    chunks: Sequence[Any], found: Sequence[Found], coding: Coding, names: tuple[str, ...], *, remote: bool
) -> Labels:
    # Empty blocks hold no rows that could be cut at.
    filled = [(chunk, block) for chunk, block in zip(chunks, found, strict=True) if block.n_rows]
    if not filled:
        raise InputError("n_samples=0: base labels need at least one row")
    edges = tuple(np.cumsum([0, *(block.n_rows for _, block in filled)]).tolist())
    source = ChunkSource([chunk for chunk, _ in filled], edges, remote)
    return Labels(
        source,
        edges[-1],
        coding.widths,
        True,
        names,
        coding.values,
        itemsize=coding.dtype.itemsize,
        fingerprint=_fingerprint(found, coding),
    )


def _fingerprint(found: Sequence[Found], coding: Coding) -> str:
    """Changes with every label, and with the cuts between blocks."""
    facts = repr([coding.widths, [(block.n_rows, block.digest) for block in found]])
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def _through_store(collection: Collection, found: Sequence[Found], coding: Coding, client: Any, url: str) -> Labels:
    """Write the codes to an ensemble.zarr, one task per shard."""
    from dask import delayed

    edges = np.cumsum([0, *(block.n_rows for block in found)]).tolist()
    identity = coding.values is None
    writer = create_ensemble(
        url,
        edges[-1],
        coding.widths,
        names=collection.names,
        values=None if identity else coding.values,
        source="a dask collection",
    )
    encoded, one_coding = _encoded(collection), delayed(coding, pure=True)
    codes = [delayed(recode, pure=True)(block, one_coding) for block in encoded]
    write = delayed(_write_shard, pure=False)
    tasks = []
    for shard in range(writer.n_shards):
        start, stop = writer.rows(shard)
        own = [i for i, (first, last) in enumerate(pairwise(edges)) if first < stop and last > start]
        tasks.append(write(writer, shard, [codes[i] for i in own], edges[own[0]]))
    done = list(_few_at_a_time(tasks, 1)) if client is None else client.gather(client.compute(tasks))
    sizes = [np.sum(parts, axis=0) for parts in zip(*(own for _, own in done), strict=True)]
    writer.finish([digest for digest, _ in done], sizes)
    return as_labels(url)


def _write_shard(
    writer: EnsembleWriter, shard: int, chunks: Sequence[Codes], first_row: int
) -> tuple[str, list[np.ndarray]]:
    start, stop = writer.rows(shard)
    edges = tuple(np.cumsum([first_row, *map(len, chunks)]).tolist())
    codes = ChunkSource(chunks, edges).read(start, stop)
    return writer.write(shard, codes), [
        np.bincount(codes[:, j], minlength=width)[1:] for j, width in enumerate(writer.widths)
    ]
