"""ensemble.zarr being written, shard by shard.

Labels are stored uncompressed with a checksum per chunk: they hardly compress, every sweep reads them all, and
decompression would take as long as the arithmetic. All writes are whole shards to an array created beforehand, one task
per shard, because Zarr loses data silently when two tasks write one shard. A whole ensemble that is replaced stays as
it is until its successor is whole.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data import arrays
from cehm_dask.data.attributes import (
    FILES,
    Held,
    is_whole,
    kind_of,
    new_facts,
    place_in,
    read_facts,
    refuse_foreign,
    start_anew,
    write_facts,
)
from cehm_dask.data.bounds import fault_in
from cehm_dask.data.ensemble_store import DIGEST_LETTERS, FITTED, GROWN, KIND, SHARDS, shard_digest
from cehm_dask.data.files import absolute, exists, is_url
from cehm_dask.data.replacement import Writing, begun, beside, drop_begun, switch
from cehm_dask.data.seals import digest_of, seal_of
from cehm_dask.errors import InputError, StoreError
from cehm_dask.masking import masked
from cehm_dask.wording import option

log = logging.getLogger(__name__)

CHUNK_BYTES = 2 << 20
"""One inner chunk of labels: read in one go, large enough that opening costs nothing, small enough for a cache."""
CHUNKS_PER_SHARD = 4


@dataclass(frozen=True)
class EnsembleWriter:
    """An ensemble.zarr being written; small to send. ``write`` takes whole shards, ``finish`` makes it count."""

    url: str
    """Where it is written."""
    target: str
    """Where it is once it is whole."""
    n_samples: int
    widths: tuple[int, ...]
    chunk_rows: int
    shard_rows: int

    @property
    def n_members(self) -> int:
        return len(self.widths)

    @property
    def _names(self) -> list[str]:
        return [str(member) for member in range(self.n_members)]

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.min_scalar_type(max(self.widths) - 1))

    @property
    def n_shards(self) -> int:
        return -(-self.n_samples // self.shard_rows)

    def rows(self, shard: int) -> tuple[int, int]:
        """First row of a shard and the row after its last."""
        return shard * self.shard_rows, min(self.n_samples, (shard + 1) * self.shard_rows)

    def write(self, shard: int, codes: NDArray[Any]) -> str:
        """Write one whole shard and return its digest."""
        start, stop = self.rows(shard)
        if codes.shape != (stop - start, self.n_members):
            raise InputError(f"shard {shard} has shape {(stop - start, self.n_members)}, got {codes.shape}")
        if fault := fault_in(codes.astype(np.uint32), self.widths, start, self._names):
            raise InputError(f"base labels: {fault}: they changed while they were being read; run again")
        arrays.write_rows(self.url, "labels", start, codes, recorded=False)  # the digest is one of the codes
        return self.digest(codes)

    def write_truth(self, shard: int, truth: NDArray[Any]) -> arrays.Digests:
        """Write the known classes of the rows of a shard; their digests go to :meth:`finish`."""
        return arrays.write_rows(self.url, "truth", self.rows(shard)[0], truth)

    def digest(self, codes: NDArray[Any]) -> str:
        """Of a whole shard."""
        return shard_digest(codes.astype(self.dtype, copy=False), self.chunk_rows)

    def written(self, shard: int) -> NDArray[Any] | None:
        """The codes of a shard that a run before this one wrote; None for one that is missing or damaged."""
        start, stop = self.rows(shard)
        facts = read_facts(self.url)
        try:
            codes = arrays.read_array(Held(self.url, seal_of(facts)), {}, "labels")[start:stop]
        except (OSError, ValueError, RuntimeError) as error:
            log.warning("shard %d of %s is damaged (%s): it is written again", shard, self.url, error)
            return None
        found = np.asarray(codes)
        return found if found.any() and not fault_in(found, self.widths, start, self._names) else None

    def finish(
        self,
        digests: Sequence[str],
        sizes: Sequence[NDArray[np.int64]],
        truth: Mapping[str, str] | None = None,
        fitted: tuple[Mapping[str, NDArray[Any]], Mapping[str, Any]] | None = None,
    ) -> str:
        """Record sizes, digests and fingerprint, mark the store whole and put it into its place.

        ``fitted`` are arrays of the members that the labels come from, and what goes with them.
        """
        files = arrays.metadata_digest(self.url, "labels")
        tables, told = fitted or ({}, {})
        for name, table in tables.items():
            dimensions = tuple(f"{FITTED}_{name}_{axis}" for axis in range(table.ndim))
            files |= arrays.write_table(self.url, f"{FITTED}_{name}", table, dimensions)
        if truth is not None:
            files |= arrays.metadata_digest(self.url, "truth") | dict(truth)
        files |= arrays.write_table(self.url, "sizes", np.concatenate(sizes).astype(np.int64), ("hyperedge",))
        identity = json.dumps([self.n_samples, list(self.widths), [digest[:DIGEST_LETTERS] for digest in digests]])
        fingerprint = digest_of(identity.encode())
        marks: dict[str, Any] = {"fingerprint": fingerprint, SHARDS: list(digests), FILES: files, "complete": True}
        if told:
            marks[FITTED] = {**told, "arrays": list(tables)}
        write_facts(self.url, {**read_facts(self.url), **marks})
        if self.url != self.target:
            switch(self.url, self.target)
        return fingerprint


def shape_of_chunks(n_samples: int, n_members: int, itemsize: int, chunk_rows: int | None = None) -> tuple[int, int]:
    """Rows of an inner chunk and of a shard."""
    if chunk_rows is None:
        fitting = max(1, CHUNK_BYTES // (n_members * itemsize))
        chunk_rows = min(1 << (fitting.bit_length() - 1), max(1, n_samples))
    return chunk_rows, chunk_rows * CHUNKS_PER_SHARD


@contextmanager
def sole_writer(url: str, *, overwrite: bool) -> Iterator[None]:
    """Keep other processes from writing an ensemble to the same place meanwhile; refuse one that stays as it is."""
    refuse_foreign(url, KIND)
    # Before the lock, which would leave traces beside a store that is only looked at; and again once no other run can.
    _refuse_finished(url, overwrite)
    with Writing(url).held():
        _refuse_finished(url, overwrite)
        yield


def _refuse_finished(url: str, overwrite: bool) -> None:
    """An error if there is an ensemble that no run can resume, and that may not be replaced."""
    if not overwrite and kind_of(url) is not None:
        _refuse_existing(url, read_facts(url).get("identity"))


def _refuse_existing(url: str, identity: str | None) -> None:
    """An error unless the ensemble that is there is a half-written one with this identity, or with none.

    With none, as imports leave it, no run can resume it, and the same command starts again.
    """
    found = read_facts(url)
    if found["complete"] or found.get("identity") not in (None, identity):
        state = "" if found["complete"] else ", half-written"
        raise StoreError(f"store {url} exists{state}: choose another name, or pass {option('overwrite')}")


def create_ensemble(
    url: str,
    n_samples: int,
    widths: Sequence[int],
    *,
    names: Sequence[str] | None = None,
    values: Sequence[NDArray[Any]] | None = None,
    members: Sequence[Mapping[str, Any]] = (),
    source: str = "",
    truth: bool = False,
    chunk_rows: int | None = None,
    overwrite: bool = False,
    identity: str | None = None,
    grows: bool = False,
    grown: Mapping[str, Any] | None = None,
) -> EnsembleWriter:
    """Create the arrays of an ensemble.zarr, to be filled shard by shard.

    With an ``identity``, a half-written store that has the same one is taken up where it was left. A whole store is
    replaced when its successor is whole, and readers of it notice; until then it stays as it is. In an object store
    that is so only where the ensemble ``grows`` out of the one that is there: others are written in its place.
    ``grown`` is what the store says of the ensemble it grew out of.
    """
    dtype = np.min_scalar_type(max(widths) - 1)
    chunk, shard = shape_of_chunks(n_samples, len(widths), dtype.itemsize, chunk_rows)
    target = absolute(url)

    def writer(place: str) -> EnsembleWriter:
        return EnsembleWriter(place, target, n_samples, tuple(int(width) for width in widths), chunk, shard)

    refuse_foreign(url, KIND)
    if not overwrite and kind_of(url) is not None:
        _refuse_existing(url, identity)
        # Without an identity, or without the array, it was left before anything that could be continued.
        if _goes_on(url, identity) and exists(place_in(url, "labels", "zarr.json")):
            return writer(target)
    place = target
    if is_whole(url) and (grows or not is_url(url)):
        place = next((left for left in begun(url) if _goes_on(left, identity)), None) or beside(url)
    drop_begun(url, keep=place)
    if place != target and exists(place_in(place, "labels", "zarr.json")):
        return writer(place)
    facts = new_facts(
        KIND,
        {
            "n_samples": n_samples,
            "n_members": len(widths),
            "widths": [int(width) for width in widths],
            "names": [str(name) for name in (names or range(len(widths)))],
            "values": None if values is None else [known.tolist() for known in values],
            "members": [dict(member) for member in members],
            "source": masked(source),
            "identity": identity,
            **({} if grown is None else {GROWN: dict(grown)}),
        },
    )
    # Without identity until nothing of another ensemble is left that a resumed run could take for its own.
    start_anew(place, {**facts, "identity": None})
    write_facts(place, facts)
    shape = (n_samples, len(widths))
    layout: Any = {"chunks": (chunk, len(widths)), "shards": (shard, len(widths)), "compressed": False}
    arrays.create(place, "labels", shape, dtype, ("sample", "member"), **layout)
    if truth:
        arrays.create(place, "truth", (n_samples,), np.int16, ("sample",), chunks=(shard,))
    return writer(place)


def _goes_on(place: str, identity: str | None) -> bool:
    """Whether what a writer began is the beginning of the same."""
    try:
        return identity is not None and read_facts(place).get("identity") == identity
    except StoreError:
        return False
