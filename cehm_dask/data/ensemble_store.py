"""ensemble.zarr opened for reading: base labels, n_samples × n_members codes, block by block.

What the store says of itself is checked against its arrays when it is opened, and every block when it is read. The
attributes keep each shard's digest and the checksums of its chunks: readers, who compute those anyway, notice a shard
that belongs elsewhere.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cehm_dask.data import arrays
from cehm_dask.data.attributes import FILES, Facts, Held, place_in, require, whole_facts
from cehm_dask.data.bounds import fault_in
from cehm_dask.data.files import absolute, exists, is_url
from cehm_dask.data.seals import digest_of, seal_of
from cehm_dask.data.shards import Shards
from cehm_dask.errors import CehmError, StoreError

KIND = "ensemble"
SHARDS = "shards"
"""Name of the digests of the shards of the labels: of the codes, then the checksum of each chunk."""

GROWN = "grown"
"""Name of what the store says of the ensemble that it grew out of: its fingerprint, and what of it is in here."""

FITTED = "fitted"
"""Name of what the store says of the fitted members it holds, and beginning of the names of their arrays."""

READ_TRIES = 3
DIGEST_LETTERS, _CHECKSUM = 32, 8
"""Letters of a digest, and of a checksum."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """An ensemble.zarr opened for reading; small to send, opened again where it arrives."""

    url: str
    n_samples: int
    widths: tuple[int, ...]
    """Slots of each member: its clusters and slot 0, a missing label."""
    names: tuple[str, ...]
    values: tuple[NDArray[Any], ...] | None
    """The user's label behind each cluster of each member; None: 0, 1, 2, …"""
    fingerprint: str
    chunk_rows: int
    shard_rows: int
    itemsize: int
    seal: str
    """Of the attributes that the store had when it was opened."""
    members: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    portable = True
    checked = True

    @cached_property
    def _held(self) -> Held:
        return Held(self.url, self.seal)

    @cached_property
    def facts(self) -> Facts:
        """All that the store says of itself; read where it is needed, for digests of many shards are no small thing."""
        facts = whole_facts(self.url, KIND)
        if seal_of(facts) != self.seal:
            self._held.confirm()
        return facts

    @property
    def _digests(self) -> Mapping[str, str]:
        return dict(self.facts.get(FILES, {}))

    @cached_property
    def _array(self) -> Any:
        return arrays.read_array(self._held, self._digests, "labels")

    @cached_property
    def _shards(self) -> Shards | None:
        """Direct access to the shard files, where they are local files."""
        if is_url(self.url) or not Shards.fit(self._array):
            return None
        return Shards(self._array, Path(self.url) / "labels", self.widths)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Codes of the rows start to stop; a read that fails is tried again, then named."""
        for attempt in range(1, READ_TRIES + 1):
            try:
                rows, inside = self._rows(start, stop)
                break
            except CehmError:
                raise
            except (OSError, ValueError, RuntimeError) as error:
                self._held.glance()
                if attempt == READ_TRIES:
                    first, last = start // self.chunk_rows, (stop - 1) // self.chunk_rows
                    raise StoreError(
                        f"store {self.url}: rows {start} to {stop - 1} of labels (chunks {first} to {last}) cannot be "
                        f"read after {READ_TRIES} tries: {error}; restore the file or import the labels again"
                    ) from error
                time.sleep(0.05 * 4**attempt)
        self._held.glance()
        if not inside and (fault := fault_in(rows, self.widths, start, self.names)):
            raise StoreError(f"store {self.url}: {fault}: edited or damaged; import the labels again")
        return rows

    def _rows(self, start: int, stop: int) -> tuple[NDArray[Any], bool]:
        """Codes of the rows start to stop, and whether it is known already that all lie inside their members' slots."""
        inside = False
        if self._shards is not None:
            rows, checksums, inside = self._shards.read(start, stop)
        else:
            rows = np.asarray(self._array[start:stop])
            self._refuse_lost_shards(start, rows)
            checksums = list(self._checksums(start, rows))
        for chunk, checksum in checksums:
            if (wanted := self._wanted(chunk)) is not None and wanted != checksum:
                raise ValueError(f"chunk {chunk} is damaged: its shard is not the one that was written there")
        return rows, inside

    def _wanted(self, chunk: int) -> int | None:
        """The checksum that a chunk had when it was written; None where the store does not say."""
        shard, inner = divmod(chunk, self.shard_rows // self.chunk_rows)
        known = self.facts.get(SHARDS)
        if not known:
            return None
        return int(str(known[shard])[DIGEST_LETTERS + _CHECKSUM * inner :][:_CHECKSUM], 16)

    def _checksums(self, start: int, rows: NDArray[Any]) -> Iterator[tuple[int, int]]:
        """Number and checksum of the chunks that lie whole in some rows."""
        if self.facts.get(SHARDS):
            first, stop = -(-start // self.chunk_rows), start + len(rows)
            last = -(-stop // self.chunk_rows) if stop == self.n_samples else stop // self.chunk_rows
            for chunk in range(first, last):
                at = chunk * self.chunk_rows - start
                yield chunk, _checksum(rows[at : at + self.chunk_rows], self.chunk_rows)

    def _refuse_lost_shards(self, start: int, rows: NDArray[Any]) -> None:
        """Zarr reads a shard that is gone as zeros, missing labels; every shard of an ensemble was written."""
        for shard in range(start // self.shard_rows, -(-(start + len(rows)) // self.shard_rows)):
            part = rows[max(0, shard * self.shard_rows - start) : (shard + 1) * self.shard_rows - start]
            if not part.any() and not exists(place_in(self.url, f"labels/c/{shard}/0")):
                raise FileNotFoundError(f"shard {shard} is missing")

    def digest(self, shard: int) -> str:
        """Of a shard, as it is now, to compare with what the attributes say."""
        start, stop = shard * self.shard_rows, min(self.n_samples, (shard + 1) * self.shard_rows)
        return shard_digest(self.read(start, stop), self.chunk_rows)

    @property
    def n_shards(self) -> int:
        return -(-self.n_samples // self.shard_rows)

    def confirm(self) -> None:
        """An error if the store has been replaced since it was opened."""
        self._held.confirm()

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Size of every hyperedge."""
        sizes = arrays.read_table(self._held, self._digests, "sizes")
        expected = (sum(self.widths) - len(self.widths),)
        if sizes.shape != expected or sizes.dtype.kind not in "iu" or (sizes.size and sizes.min() < 0):
            raise StoreError(
                f"store {self.url}: sizes have shape {sizes.shape} and dtype {sizes.dtype}, expected whole numbers of "
                f"shape {expected}: edited or damaged; import the labels again"
            )
        return sizes.astype(np.int64)

    @property
    def grown(self) -> dict[str, Any]:
        """What the ensemble grew out of: ``from``, its fingerprint; ``widths`` of its members; and of these, the
        ``members`` that come first in here, with the first ``rows`` rows. Empty, if it did not grow."""
        require(self.url, self.facts, {GROWN: dict})
        found = dict(self.facts.get(GROWN, {}))
        require(self.url, found, {"from": str, "identity": str, "rows": int, "widths": list, "members": list})
        if not found:
            return {}
        whole = all(type(one) is int for name in ("widths", "members") for one in found.get(name, [None]))
        if not whole or not all(0 <= j < len(found["widths"]) for j in found["members"]) or "rows" not in found:
            raise StoreError(f"store {self.url}: what it grew out of is damaged; import the labels again")
        return found

    def fitted(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Arrays of the fitted members, and what goes with them; no arrays, where they are not stored."""
        require(self.url, self.facts, {FITTED: dict})
        facts = dict(self.facts.get(FITTED, {}))
        names = facts.pop("arrays", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise StoreError(f"store {self.url}: the names of its fitted arrays are damaged; create it again")
        return {name: arrays.read_table(self._held, self._digests, f"{FITTED}_{name}") for name in names}, facts

    @property
    def truth(self) -> NDArray[Any] | None:
        """The known classes of a made-up ensemble."""
        if not arrays.has_array(self.url, self._digests, "truth"):
            return None
        return arrays.read_table(self._held, self._digests, "truth")


def _checksum(rows: NDArray[Any], chunk_rows: int) -> int:
    """Of a chunk, the last one filled up with zeros, as it is stored."""
    if len(rows) < chunk_rows:
        rows = np.concatenate((rows, np.zeros((chunk_rows - len(rows), *rows.shape[1:]), rows.dtype)))
    return int(google_crc32c.value(np.ascontiguousarray(rows).reshape(-1).view(np.uint8)))


def shard_digest(codes: NDArray[Any], chunk_rows: int) -> str:
    """Digest of the codes of a shard, and the checksum of each of its chunks."""
    codes = np.ascontiguousarray(codes)
    chunks = (codes[start : start + chunk_rows] for start in range(0, len(codes), chunk_rows))
    return digest_of(codes) + "".join(f"{_checksum(chunk, chunk_rows):0{_CHECKSUM}x}" for chunk in chunks)


TYPES: Mapping[str, type | tuple[type, ...]] = {
    "n_samples": int,
    "n_members": int,
    "widths": list,
    "names": list,
    "values": (list, type(None)),
    "members": list,
    "source": str,
    "fingerprint": str,
    SHARDS: list,
}


def open_ensemble(url: str) -> Ensemble:
    """Open a whole ensemble.zarr for reading, if what it says of itself fits what it holds."""
    facts = whole_facts(url, KIND)
    require(url, facts, TYPES)
    held = Held(absolute(url), seal_of(facts))
    array = arrays.read_array(held, facts.get(FILES, {}), "labels")
    if fault := _fault(facts, array):
        raise StoreError(f"store {url}: {fault}: edited or damaged; import the labels again")
    values = facts["values"]
    ensemble = Ensemble(
        url=absolute(url),
        n_samples=facts["n_samples"],
        widths=tuple(facts["widths"]),
        names=tuple(facts["names"]),
        values=None if values is None else tuple(known_labels(own) for own in values),
        fingerprint=facts["fingerprint"],
        chunk_rows=array.chunks[0],
        shard_rows=(array.shards or array.chunks)[0],
        itemsize=array.dtype.itemsize,
        seal=held.seal,
        members=tuple(facts["members"]),
        source=facts["source"],
    )
    _ = ensemble.sizes  # or an error that says what is wrong with them
    return ensemble


def _fault(facts: Facts, array: Any) -> str | None:
    """What of the attributes of an ensemble does not fit its labels, in words."""
    n, widths, names, values = (facts[name] for name in ("n_samples", "widths", "names", "values"))
    if array.shape != (n, len(widths)) or facts["n_members"] != len(widths) or n < 1 or not widths:
        return f"labels have shape {array.shape}, the attributes say {n} samples and {len(widths)} members"
    if array.dtype.kind != "u" or array.dtype.itemsize > 4:
        return f"labels have dtype {array.dtype}, expected uint8, uint16 or uint32"
    most = int(np.iinfo(array.dtype).max) + 1
    for name, width in enumerate(widths):
        if type(width) is not int or not 1 <= width <= most:
            return f"member {name} has {width!r} slots, expected 1 to {most} with dtype {array.dtype}"
    if not all(isinstance(member, dict) for member in facts["members"]):
        return "members are not described by facts"
    if len(names) != len(widths) or not all(isinstance(name, str) for name in names):
        return f"{len(names)} names for {len(widths)} members"
    if array.chunks[1] != len(widths) or (array.shards or array.chunks)[1] != len(widths):
        return f"chunks of {array.chunks} and shards of {array.shards} cut members apart"
    shard_rows = (array.shards or array.chunks)[0]
    chunks = [-(-min(shard_rows, n - start) // array.chunks[0]) for start in range(0, n, shard_rows)]
    known = facts.get(SHARDS, [])
    if SHARDS in facts and [len(str(digest)) for digest in known] != [
        DIGEST_LETTERS + _CHECKSUM * count for count in chunks
    ]:
        return f"digests of {len(known)} shards, the labels have {len(chunks)}"
    if values is None:
        return None
    if len(values) != len(widths):
        return f"labels of {len(values)} members are known, there are {len(widths)}"
    for name, own, width in zip(names, values, widths, strict=True):
        if not isinstance(own, list) or len(own) != width - 1:
            return f"member {name} has {width} slots and the labels {str(own)[:60]}, expected {width - 1} labels"
        whole = all(type(value) is int and 0 <= value < 2**64 for value in own)
        if not (whole or all(isinstance(value, str) for value in own)) or any(a >= b for a, b in pairwise(own)):
            return f"the labels of member {name} are {str(own)[:60]}, expected whole numbers or texts, ascending"
    return None


def known_labels(values: list[Any]) -> NDArray[Any]:
    """Labels of one member, as written in attributes; numpy would take a list of numbers beyond int64 for floats."""
    known = np.asarray(values)
    return np.asarray(values, np.uint64) if known.dtype.kind == "f" else known
