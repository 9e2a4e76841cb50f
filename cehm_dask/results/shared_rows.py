"""Rows that two results share, counted by the cluster that each had in the one and has in the other.

Below the matching. Rows are the same if their ids are: whole numbers, or texts. Ids are read in blocks. Where those of
both results do not fit in memory together, they are taken in several passes, each with the ids of one bucket of a hash:
a pass holds all rows of its ids, so the counts are exact whatever the number of passes.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import StoredConsensus
from cehm_dask.data.tables import open_table
from cehm_dask.engine.budget import CODE_BYTES
from cehm_dask.errors import InputError, StoreError
from cehm_dask.machine import Machine, require_memory, this_machine
from cehm_dask.results.export import BLOCK_ROWS, FORMULA, OWN_NAMES, RowIds, column_ids

log = logging.getLogger(__name__)

Int = NDArray[np.int64]

ROW_BYTES, ID_TIMES = 96, 5
"""Of a row in a pass: what it takes whatever its id, and how often its id is held (blocks, one array of them, the table
that they are looked up in)."""
NUMBER_LETTERS = 20
"""Of a whole number as text, at most."""
BLOCK_BYTES = 32 << 20
"""Of a block on its way: read, decoded, as keys and as texts for the hash."""
MOST_PASSES = 4096


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows with their ids and their clusters, 0 to n_clusters - 1, or -1 for none."""

    n_clusters: int
    blocks: Callable[[], Iterator[tuple[Any, Int]]]
    """Of ids, as Arrow arrays, and clusters."""


@dataclass(frozen=True, eq=False)
class Shared:
    """How many rows went from which cluster to which; the last row and column stand for no cluster."""

    table: Int
    before: Int
    """Rows of each cluster of the earlier result, shared or not."""
    now: Int
    repeated: int
    """Rows left out, because their id is missing or not theirs alone."""


def of_store(stored: StoredConsensus, ids: RowIds) -> Labelled:
    """The rows of a consensus, called by ids."""
    labels = stored.array("labels")
    n_samples = int(labels.shape[0])

    def blocks() -> Iterator[tuple[Any, Int]]:
        start = 0
        for block in ids.blocks():
            stop = start + len(block)
            if stop <= n_samples:
                yield _arrow(block), np.asarray(labels[start:stop]).astype(np.int64)
            start = stop
        if start != n_samples:
            raise InputError(f"column {ids.name} names {start} rows, the result has {n_samples}: they must be the same")

    return Labelled(int(stored.facts["n_clusters"]), blocks)


def of_table(path: str, names: Sequence[int]) -> Labelled:
    """The rows of an exported table of labels, .csv or .parquet, in which clusters have the names given."""
    table = open_table(path, "labels")
    if tuple(table.names[1:]) != OWN_NAMES:
        raise StoreError(f"{path}: columns {', '.join(table.names)}: no table of labels that this program exported")
    ids, places = column_ids(path, table.names[0]), {name: place for place, name in enumerate(names)}
    known = np.sort(np.asarray([*names, -1], np.int64))
    place_of = np.asarray([places.get(name, -1) for name in known.tolist()], np.int64)
    escaped = path.endswith(".csv")

    def labels() -> Iterator[Int]:
        for batch in table.batches(["label"]):
            found = batch.column(0).cast("int64").to_numpy(zero_copy_only=False)
            at = np.searchsorted(known, found).clip(max=len(known) - 1)
            if (known[at] != found).any():
                wrong = int(found[known[at] != found][0])
                raise StoreError(f"{path}: cluster {wrong} is none of its run: restore it, or run it again")
            yield place_of[at]

    def blocks() -> Iterator[tuple[Any, Int]]:
        for block, clusters in _in_step(ids.blocks(), labels()):
            yield _without_escapes(block) if escaped else block, clusters

    return Labelled(len(names), blocks)


def _arrow(block: Any) -> Any:
    import pyarrow as pa

    found = block if isinstance(block, pa.Array | pa.ChunkedArray) else pa.array(block)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _in_step(ids: Iterator[Any], clusters: Iterator[Int]) -> Iterator[tuple[Any, Int]]:
    """Ids with as many clusters beside them, whatever blocks each come in."""
    held = np.empty(0, np.int64)
    for block in ids:
        parts = [held]
        while sum(map(len, parts)) < len(block):
            parts.append(next(clusters))
        held = np.concatenate(parts)
        yield _arrow(block), held[: len(block)]
        held = held[len(block) :]


def _without_escapes(block: Any) -> Any:
    """Texts without the apostrophe that an exported .csv puts before what looks like a formula."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_string(block.type):
        return block
    found = np.flatnonzero(pc.fill_null(pc.starts_with(block, "'"), False).to_numpy(zero_copy_only=False))
    if not len(found):
        return block
    cells = block.to_pylist()
    for at in found.tolist():
        if FORMULA.match(cells[at][1:]):
            cells[at] = cells[at][1:]
    return pa.array(cells, block.type)


# --- keys: what two ids are compared by -------------------------------------------------------------------------------


def _is_whole(kind: Any) -> bool:
    """Whether ids of an Arrow type are compared as numbers."""
    import pyarrow.types as of

    return bool(of.is_integer(kind)) and not of.is_uint64(kind)


def _texts(block: Any) -> Any:
    """Ids as texts; a whole number reads the same whatever its type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(block.type):
        block = block.dictionary_decode()
    if pa.types.is_floating(block.type):
        whole = pc.and_(pc.equal(pc.floor(block), block), pc.less(pc.abs(block), 2.0**53))
        numbers = pc.cast(pc.if_else(whole, block, 0.0), pa.int64())
        return pc.if_else(whole, numbers.cast(pa.large_string()), block.cast(pa.large_string()))
    return block.cast(pa.large_string())


def _keys(block: Any, whole: bool) -> Any:
    import pyarrow as pa

    return block.cast(pa.int64()) if whole else _texts(block)


def _buckets(keys: Any, passes: int) -> NDArray[np.uint64]:
    """The pass that each key belongs to; the same for equal keys, on any machine."""
    from pandas.util import hash_array

    if str(keys.type) == "int64":
        numbers = keys.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
        mixed = (numbers ^ (numbers >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        rest: NDArray[np.uint64] = (mixed >> np.uint64(32)) % np.uint64(passes)
        return rest
    texts = keys.fill_null("").to_numpy(zero_copy_only=False).astype(object)
    found: NDArray[np.uint64] = hash_array(texts, categorize=False) % np.uint64(passes)
    return found


# --- counting ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Survey:
    """What a first look at one side finds."""

    whole: bool
    n_bytes: int
    sizes: Int


def _survey(side: Labelled) -> _Survey:
    import pyarrow.compute as pc

    sizes, whole, n_bytes = np.zeros(side.n_clusters + 1, np.int64), True, 0
    for block, clusters in side.blocks():
        whole = whole and _is_whole(block.type)
        sizes += np.bincount(_last_for_none(clusters, side.n_clusters), minlength=len(sizes))
        letters = NUMBER_LETTERS * len(block) if whole else int(pc.sum(pc.binary_length(_texts(block))).as_py() or 0)
        n_bytes += ROW_BYTES * len(block) + ID_TIMES * letters
    return _Survey(whole, n_bytes, sizes)


def usual_bytes() -> int:
    """Of a row in a pass whose id is as long as a whole number may be."""
    return ROW_BYTES + ID_TIMES * NUMBER_LETTERS


def _last_for_none(clusters: Int, n_clusters: int) -> Int:
    return np.where(clusters < 0, n_clusters, clusters)


def shared_terms(n_before: int, n_now: int, machine: Machine, n_bytes: int = 0) -> tuple[dict[str, int], int]:
    """Bytes that the counting takes, by what they are for, and its passes over the ids.

    Parameters
    ----------
    n_before, n_now : int
        Clusters of both results.
    machine : Machine
    n_bytes : int
        Of the ids of both, held at once.
    """
    terms = {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        "blocks of ids": 2 * BLOCK_BYTES,
        "table of clusters": 3 * 8 * (n_before + 1) * (n_now + 1),
    }
    room = max(1, machine.allowed - sum(terms.values()))
    passes = min(MOST_PASSES, -(-n_bytes // (room // 2 or 1)))
    # Buckets of a hash are not all equal: one and a half times their mean.
    share = n_bytes if passes <= 1 else 3 * n_bytes // (2 * passes)
    return {**terms, "ids of a pass": share}, max(1, passes)


def count_shared(before: Labelled, now: Labelled, *, memory: str | int | None = None) -> Shared:
    """Count the rows of two results that have the same id, by their clusters.

    Ids that are missing, or that name more than one row of a result, say nothing: these rows are left out.

    Parameters
    ----------
    before, now : Labelled
    memory : int or str, optional
        Bytes this process may take in all, such as "2GiB"; default: a share of what is free.
    """
    machine = this_machine(memory)
    require_memory(
        "rows that two runs share", shared_terms(before.n_clusters, now.n_clusters, machine)[0], machine.allowed, ""
    )
    seen = [_survey(side) for side in (before, now)]
    whole, n_bytes = all(one.whole for one in seen), sum(one.n_bytes for one in seen)
    terms, passes = shared_terms(before.n_clusters, now.n_clusters, machine, n_bytes)
    require_memory("rows that two runs share", terms, machine.allowed, "")
    table = np.zeros((before.n_clusters + 1) * (now.n_clusters + 1), np.int64)
    repeated = 0
    for number in range(passes):
        (keys, clusters), (other_keys, other_clusters) = (
            _collect(side, whole, number, passes) for side in (before, now)
        )
        (keys, clusters), left = _unique(keys, clusters)
        (other_keys, other_clusters), other_left = _unique(other_keys, other_clusters)
        repeated += left + other_left
        place = _places(other_keys, keys)
        found = place >= 0
        pairs = clusters[place[found]] * (now.n_clusters + 1) + other_clusters[found]
        table += np.bincount(pairs, minlength=len(table))
        if passes > 1:
            log.info("ids of two runs: pass %d of %d, %d shared so far", number + 1, passes, table.sum())
    return Shared(table.reshape(before.n_clusters + 1, -1), seen[0].sizes, seen[1].sizes, repeated)


def _collect(side: Labelled, whole: bool, number: int, passes: int) -> tuple[Any, Int]:
    """Keys and clusters of one pass."""
    import pyarrow as pa

    kind = pa.int64() if whole else pa.large_string()
    held, clusters = [], [np.empty(0, np.int64)]
    for block, own in side.blocks():
        keys = _keys(block, whole)
        if passes > 1:
            mask = _buckets(keys, passes) == number
            keys, own = keys.filter(pa.array(mask)), own[mask]
        held.append(keys)
        clusters.append(_last_for_none(own, side.n_clusters))
    return pa.chunked_array(held, kind).combine_chunks(), np.concatenate(clusters)


def _unique(keys: Any, clusters: Int) -> tuple[tuple[Any, Int], int]:
    """Without keys that are missing or there more than once; and how many rows that leaves out."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not keys.null_count and pc.count_distinct(keys).as_py() == len(keys):
        return (keys, clusters), 0
    counts = pc.value_counts(keys)
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    kept = pc.and_(pc.is_valid(keys), pc.invert(pc.is_in(keys, value_set=twice)))
    mask = kept.to_numpy(zero_copy_only=False)
    return (keys.filter(pa.array(mask)), clusters[mask]), int(len(mask) - mask.sum())


def _places(keys: Any, among: Any) -> Int:
    """Where each key is among others; -1 where it is not."""
    import pyarrow.compute as pc

    found: Int = pc.index_in(keys, value_set=among).fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def count_in_order(before: StoredConsensus, now: StoredConsensus) -> Shared:
    """The same for two results of the same rows in the same order."""
    n, others = (int(one.facts["n_samples"]) for one in (before, now))
    if n != others:
        raise InputError(
            f"{before.url} has {n:,} samples, {now.url} has {others:,}: without ids, both must be of the same rows in "
            "the same order; give the ids of both"
        )
    sizes = [int(one.facts["n_clusters"]) for one in (before, now)]
    table = np.zeros((sizes[0] + 1) * (sizes[1] + 1), np.int64)
    labels = [one.array("labels") for one in (before, now)]
    for start in range(0, n, BLOCK_ROWS):
        own, other = (
            _last_for_none(np.asarray(array[start : start + BLOCK_ROWS]).astype(np.int64), k)
            for array, k in zip(labels, sizes, strict=True)
        )
        table += np.bincount(own * (sizes[1] + 1) + other, minlength=len(table))
    found = table.reshape(sizes[0] + 1, -1)
    return Shared(found, found.sum(axis=1), found.sum(axis=0), 0)
