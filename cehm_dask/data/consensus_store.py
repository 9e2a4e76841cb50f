"""consensus.zarr: parameters, intersections and checkpoints of a run on its way, then its result.

A run that resumes finds here what it needs; a finished store is all that ``predict`` and ``report``
need. Checkpoints are small files with a digest of their own, so that none is taken up with a byte changed.
"""

import io
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data import arrays
from cehm_dask.data.attributes import (
    FILES,
    VERSION,
    Facts,
    Held,
    is_whole,
    kind_of,
    new_facts,
    place_in,
    read_facts,
    refuse_foreign,
    require,
    start_anew,
    whole_facts,
    write_facts,
)
from cehm_dask.data.files import absolute, entries, is_url, read_whole, remove, write_whole
from cehm_dask.data.replacement import Writing, begun, beside, drop_begun, switch
from cehm_dask.data.seals import seal_of, sealed, unsealed
from cehm_dask.errors import STORAGE, InputError, StoreError, exit_code_of
from cehm_dask.wording import option

log = logging.getLogger(__name__)

KIND = "consensus"

DIMENSIONS = {
    "intersections": ("slot", "other_slot"),
    "slot_sizes": ("slot",),
    "counts": ("hyperedge", "cluster"),
    "weights": ("hyperedge", "cluster"),
    "medoids": ("cluster",),
    "sizes": ("cluster",),
    "margin_histogram": ("cluster", "bin"),
    "member_agreement": ("member", "other_member"),
    "hyperedge_member": ("hyperedge",),
    "hyperedge_weight": ("hyperedge",),
    "trail": ("round", "followed"),
    "trail_rows": ("followed",),
}
"""Names of the dimensions of the small arrays."""

RESULT = {"labels": np.int16, "margin": np.float32, "confidence": np.float32}
"""The arrays of size n."""


@dataclass(frozen=True)
class ResultWriter:
    """The arrays of a consensus.zarr that are of size n; small to send. One task writes a whole chunk."""

    url: str
    chunk_rows: int

    def write(
        self, start: int, labels: NDArray[np.int16], margin: NDArray[np.float64], confidence: NDArray[np.float64]
    ) -> arrays.Digests:
        """Write rows from the start of a chunk on; returns the digests of the chunks, for the store to record."""
        if start % self.chunk_rows:
            raise InputError(f"row {start} is not the start of a chunk of {self.chunk_rows} rows")
        digests: arrays.Digests = {}
        found: tuple[NDArray[Any], ...] = (labels, margin, confidence)
        for (name, dtype), rows in zip(RESULT.items(), found, strict=True):
            digests |= arrays.write_rows(self.url, name, start, rows.astype(dtype))
        return digests


@dataclass(eq=False)
class ConsensusStore:
    """A consensus.zarr on its way: parameters, intersections, checkpoint, result.

    Held under a lock while open, so that two runs never write to one output. A finished result that is to be replaced
    stays as it is until its successor is finished.
    """

    url: str
    identity: dict[str, Any]
    """What the result depends on; a checkpoint with another identity is refused."""
    _writing: Writing = field(init=False, repr=False)
    _place: str = field(init=False, repr=False)
    """Where it is written."""
    _digests: arrays.Digests = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._writing, self._place = Writing(self.url), self.url

    @property
    def _checkpoint(self) -> str:
        return place_in(self._place, "checkpoint.npz")

    def open(self, *, overwrite: bool) -> None:
        """Take the lock; start again, or resume what a run with the same identity left."""
        refuse_foreign(self.url, KIND)
        self._writing.take()
        try:
            self._open(overwrite)
        except BaseException:
            self._writing.release()
            raise

    def _open(self, overwrite: bool) -> None:
        refuse_foreign(self.url, KIND)
        if not overwrite and kind_of(self.url) is not None:
            there = read_facts(self.url)
            self._check_same(there)
            self._digests = dict(there.get(FILES, {}))
            return
        if is_whole(self.url) and not is_url(self.url):
            left = next((place for place in begun(self.url) if self._is_same(place)), None)
            self._place = left or beside(self.url)
            drop_begun(self.url, keep=left)
            if left is not None:
                self._digests = dict(read_facts(left).get(FILES, {}))
                return
        # The checkpoint first: with the new identity beside it, it would be taken for this run's.
        remove(self._checkpoint)
        start_anew(self._place, new_facts(KIND, {"identity": self.identity}))

    def _is_same(self, place: str) -> bool:
        """Whether what was begun at a place, to replace what is finished, is this run."""
        try:
            found = read_facts(place)
        except StoreError:
            return False
        return (found.get("identity"), found.get("version")) == (json.loads(json.dumps(self.identity)), VERSION)

    def _check_same(self, found: Facts) -> None:
        """Refuse to resume a run that is finished, or was another one."""
        if found.get("complete"):
            raise StoreError(f"output {self.url} is finished: choose another name, or pass {option('overwrite')}")
        require(self.url, found, {"identity": dict, "n_silent": int, FILES: dict})
        there = found["identity"]
        differing = [
            f"{name}={self.identity.get(name)!r} (there: {there.get(name)!r})"
            for name in sorted({*self.identity, *there})
            if self.identity.get(name) != there.get(name)
        ]
        if found.get("version") != VERSION:
            differing.append(f"version={VERSION} (there: {found.get('version')})")
        if differing:
            raise StoreError(
                f"output {self.url} holds an unfinished run with other settings: {', '.join(differing)}; "
                f"use the same settings to resume, another name, or {option('overwrite')} to start again"
            )

    def save_table(self, name: str, table: NDArray[Any]) -> None:
        """Keep a small array."""
        self._digests |= arrays.write_table(self._place, name, table, DIMENSIONS[name])

    def load_intersections(self) -> tuple[NDArray[np.int64], int] | None:
        """The intersections a run before this one counted, and its number of rows without a label."""
        facts = read_facts(self._place)
        if "n_silent" not in facts:
            return None
        held = Held(self._place, seal_of(facts))
        return arrays.read_table(held, facts.get(FILES, {}), "intersections"), facts["n_silent"]

    def load_slot_sizes(self) -> NDArray[np.int64] | None:
        """Samples of every slot, where the intersections that a run before this one counted are of some slots only."""
        facts = read_facts(self._place)
        if not facts.get("some_slots"):
            return None
        return arrays.read_table(Held(self._place, seal_of(facts)), facts.get(FILES, {}), "slot_sizes")

    def save_intersections(
        self, table: NDArray[np.int64], n_silent: int, sizes: NDArray[np.int64] | None = None
    ) -> None:
        """Keep the intersections of every two slots; of some slots, if the sizes of all are given."""
        self.save_table("intersections", table)
        if sizes is not None:
            self.save_table("slot_sizes", sizes)
        told = {"n_silent": n_silent, "some_slots": sizes is not None, FILES: self._digests}
        write_facts(self._place, {**read_facts(self._place), **told})

    def save_checkpoint(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> int:
        """Write the state of the run, whole or not at all; returns its bytes."""
        content = _packed({"facts": np.array(json.dumps(facts)), **arrays})
        self._writing.renew()
        write_whole(self._checkpoint, content)
        return len(content)

    def load_checkpoint(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        content = read_whole(self._checkpoint)
        if content is None:
            return None
        try:
            found = _unpacked(content)
            facts = json.loads(str(found.pop("facts")))
        except Exception as error:  # a dozen kinds, from zipfile, zlib, numpy and json
            raise StoreError(
                f"{self._checkpoint} is damaged ({error}): remove it, and the run starts over from the intersections"
            ) from error
        return found, facts

    def save_trail(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add arrays to the trail, in a file of their own: what grows by a round is not rewritten every round."""
        write_whole(f"{self._trail}{time.time_ns():020d}.npz", _packed(arrays))

    def load_trail(self) -> dict[str, NDArray[Any]]:
        """All that was added to the trail, the latest of what was added twice; a damaged file is left out."""
        found: dict[str, NDArray[Any]] = {}
        for entry in self._trail_files():
            try:
                found |= _unpacked(read_whole(entry) or b"")
            except Exception as error:  # a dozen kinds, from zipfile, zlib and numpy
                log.warning("%s is damaged (%s): the result will have no trail", entry, error)
        return found

    @property
    def _trail(self) -> str:
        return place_in(self._place, "trail-")

    def _trail_files(self) -> list[str]:
        return _trail_files(self._place)

    def create_result(self, n_samples: int, chunk_rows: int) -> ResultWriter:
        """Create the arrays of size n, to be filled chunk by chunk."""
        for name, dtype in RESULT.items():
            fill = -1 if name == "labels" else 0
            self._digests = {key: value for key, value in self._digests.items() if not key.startswith(f"{name}/")}
            self._digests |= arrays.create(
                self._place, name, (n_samples,), dtype, ("sample",), chunks=(chunk_rows,), fill_value=fill
            )
        return ResultWriter(absolute(self._place), chunk_rows)

    def record(self, digests: Mapping[str, str]) -> None:
        """Take note of the digests of chunks that were written, here or by workers."""
        self._digests |= digests

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Record how the result came about, mark the store whole, put it into its place and drop what is not needed."""
        write_facts(self._place, {**read_facts(self._place), **facts, FILES: self._digests, "complete": True})
        try:
            for file in (self._checkpoint, *self._trail_files()):
                remove(file)
        except Exception as error:
            if exit_code_of(error) != STORAGE:
                raise
            # The result is whole: a caller told to try again would be refused, as it is finished.
            log.warning("%s is whole, but what is not needed any more could not be removed (%s)", self.url, error)
        if self._place != self.url:
            switch(self._place, self.url)
            self._place = self.url

    def close(self) -> None:
        self._writing.release()


def _trail_files(place: str) -> list[str]:
    return sorted(entry for entry in entries(place) if "/trail-" in entry and entry.endswith(".npz"))


def trail_since(url: str, seen: str) -> tuple[str, dict[str, NDArray[Any]]]:
    """What a run on its way has added to its trail after a file of it, and the last file; for those who watch.

    Files that vanish, because the run has just finished, or are damaged are left out.
    """
    files = _trail_files(url)
    found: dict[str, NDArray[Any]] = {}
    for entry in files:
        if entry > seen:
            try:
                found |= _unpacked(read_whole(entry) or b"")
            except Exception as error:  # a dozen kinds, from zipfile, zlib and numpy
                log.debug("%s cannot be read (%s)", entry, error)
    return (files[-1] if files else ""), found


def _packed(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return sealed(buffer.getvalue())


def _unpacked(content: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(unsealed(content)), allow_pickle=False) as saved:
        return {name: saved[name] for name in saved.files}


TYPES: Mapping[str, type | tuple[type, ...]] = {
    "identity": dict,
    "n_samples": int,
    "n_members": int,
    "members": list,
    "label_values": list,
    "n_clusters": int,
    "n_clusters_found": int,
    "n_silent": int,
    "agreement": (float, int),
    "belonging": str,
    "lead": list,
    "correlation": (float, int),
    "candidates": list,
    "candidate_reason": str,
    "losses": list,
    "growth": list,
    "moves": list,
    "rounds": int,
    "converged": bool,
    "sweeps": int,
    "seconds": dict,
    "bytes_read": int,
    "memory": dict,
    "versions": dict,
    "scan": list,
    "choice": dict,
    "trail_stages": list,
}


@dataclass(frozen=True, eq=False)
class StoredConsensus:
    """A finished consensus.zarr, opened for reading."""

    url: str
    facts: Facts
    """How the result came about."""
    digests: Mapping[str, str]
    """Of its files."""
    seal: str

    @cached_property
    def _held(self) -> Held:
        return Held(absolute(self.url), self.seal)

    def array(self, name: str) -> Any:
        """labels, margin, confidence, counts, weights or another table, as a Zarr array that is read when indexed."""
        array = arrays.read_array(self._held, self.digests, name)
        n, k = self.facts.get("n_samples"), self.facts.get("n_clusters")
        rows = dict.fromkeys(RESULT, (n,)) | dict.fromkeys(("sizes", "medoids"), (k,))
        tables = dict.fromkeys(("counts", "weights"), (None, k))
        wanted = (rows | tables).get(name, array.shape)
        if len(wanted) != len(array.shape) or any(
            size not in (None, found) for size, found in zip(wanted, array.shape, strict=True)
        ):
            raise StoreError(
                f"store {self.url}: {name} has shape {array.shape}, the attributes say {n} samples and {k} clusters: "
                "edited or damaged; create the store again"
            )
        return array

    def table(self, name: str) -> NDArray[Any]:
        """A small array, whole."""
        self.array(name)
        return arrays.read_table(self._held, self.digests, name)

    def __contains__(self, name: str) -> bool:
        return arrays.has_array(self.url, self.digests, name)

    def confirm(self) -> None:
        """An error if the store has been replaced since it was opened."""
        self._held.confirm()


def open_consensus(url: str, seal: str | None = None) -> StoredConsensus:
    """Open a finished consensus.zarr; with the seal of one that was opened before, that one or none."""
    if seal is not None:
        Held(url, seal).confirm()
    facts = whole_facts(url, KIND)
    require(url, facts, TYPES)
    known = Facts({name: value for name, value in facts.items() if name != FILES}, url)
    return StoredConsensus(url, known, facts.get(FILES, {}), seal or seal_of(facts))
