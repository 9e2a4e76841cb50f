"""Whether stores are still what was written: every shard and every file against the digests in the attributes.

Above the stores. Readers check what they read; this reads everything, and names each shard that is wrong.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from cehm_dask.data import arrays
from cehm_dask.data.attributes import FILES, Facts, Held, any_facts, place_in, require
from cehm_dask.data.ensemble_store import KIND as ENSEMBLE
from cehm_dask.data.ensemble_store import SHARDS, Ensemble, open_ensemble
from cehm_dask.data.files import read_whole
from cehm_dask.data.seals import digest_of, seal_of
from cehm_dask.errors import CehmError, StoreError
from cehm_dask.machine import cores
from cehm_dask.progress import NO_PROGRESS, Count


@dataclass
class Verified:
    """What became of the check of one store."""

    url: str
    faults: list[str] = field(default_factory=list)
    """What is wrong, one sentence each."""
    checked: int = 0
    """Shards and files that were looked at."""
    digests: bool = True
    """Whether the store has digests to compare with; without, it was only read."""

    def summary(self) -> str:
        """One line for people."""
        if self.faults:
            return f"{self.url}: {len(self.faults)} of {self.checked} shards and files are not what was written"
        if not self.digests:
            return f"{self.url}: no digests recorded (an earlier version wrote it); it can be read"
        return f"{self.url}: all {self.checked} shards and files are what was written"


def verify_store(url: str, count: Count | None = None) -> Verified:
    """Read all of a store and compare it with what it was when it was written; ``count`` gets the bytes read."""
    found, count = Verified(url), count or Count(NO_PROGRESS, "read")
    try:
        facts = any_facts(url)
        if facts.get("complete") is not True:
            raise StoreError(f"store {url}: half-written; start the command that made it again to finish it")
        found.digests = FILES in facts
        with ThreadPoolExecutor(cores()) as pool:
            for checks in (_file_checks(url, facts, count), _array_checks(url, facts, count)):
                faults = list(pool.map(lambda check: check(), checks))
                found.checked += len(faults)
                found.faults += [fault for fault in faults if fault is not None]
    except CehmError as error:
        if not found.faults:  # else the cause is named already
            found.checked += 1
            found.faults.append(str(error))
    return found


Check = Callable[[], str | None]
"""Gives what is wrong with a shard or file, in words, or None."""


def _file_checks(url: str, facts: Facts, count: Count) -> Iterator[Check]:
    require(url, facts, {FILES: dict})
    for path, digest in facts.get(FILES, {}).items():
        yield partial(_file_fault, url, path, digest, count)


def _array_checks(url: str, facts: Facts, count: Count) -> Iterator[Check]:
    """Of the labels of an ensemble, and of all arrays that have no digests."""
    if facts["format"] == ENSEMBLE:
        ensemble = open_ensemble(url)
        for shard in range(ensemble.n_shards):
            yield partial(_shard_fault, ensemble, shard, count)
        if SHARDS not in facts:
            yield partial(_sizes_fault, ensemble)
    elif FILES not in facts:
        held = Held(url, seal_of(facts))
        for name in arrays.array_names(url):
            yield partial(_table_fault, held, name)


def _file_fault(url: str, path: str, digest: str, count: Count) -> str | None:
    content = read_whole(place_in(url, path))
    count.add(len(content or b""))
    if content is None:
        return f"store {url}: {path} is missing"
    return None if digest_of(content) == digest else f"store {url}: {path} is not what was written"


def _shard_fault(ensemble: Ensemble, shard: int, count: Count) -> str | None:
    start, stop = shard * ensemble.shard_rows, min(ensemble.n_samples, (shard + 1) * ensemble.shard_rows)
    where = f"store {ensemble.url}: shard {shard} of labels (rows {start} to {stop - 1})"
    try:
        digest = ensemble.digest(shard)
    except CehmError as error:
        return f"{where} is damaged: {error}"
    count.add((stop - start) * len(ensemble.widths) * ensemble.itemsize)
    known = ensemble.facts.get(SHARDS)
    return f"{where} is not what was written" if known and known[shard] != digest else None


def _sizes_fault(ensemble: Ensemble) -> str | None:
    """For a store without digests: the sizes of the base clusters, counted again."""
    sizes = [np.zeros(width, np.int64) for width in ensemble.widths]
    for start in range(0, ensemble.n_samples, ensemble.shard_rows):
        codes = ensemble.read(start, min(ensemble.n_samples, start + ensemble.shard_rows))
        for own, column in zip(sizes, codes.T, strict=True):
            own += np.bincount(column, minlength=len(own))
    if np.array_equal(np.concatenate([own[1:] for own in sizes]), ensemble.sizes):
        return None
    return f"store {ensemble.url}: base clusters do not have their recorded sizes"


def _table_fault(held: Held, name: str) -> str | None:
    try:
        arrays.read_table(held, {}, name)
    except CehmError as error:
        return str(error)
    return None
