"""ensemble.zarr and consensus.zarr: names, dtypes, chunks, provenance, checkpoints, locks.

The only room that knows Zarr, files and object stores; the rooms above read rows and write shards through it.
Labels are stored uncompressed with a checksum a chunk: they hardly compress, every sweep reads them all, and
decompression would take as long as the arithmetic. All writes are whole shards to arrays created beforehand,
one task a shard, because Zarr loses data silently when two tasks write one shard. A store counts as whole only
once its attributes say so, and those are written last.
"""

import hashlib
import io
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from cehm_dask.files import Lock, StoreError, absolute, entries, exists, is_url, read_whole, remove, write_whole
from cehm_dask.shards import Shards

log = logging.getLogger(__name__)

VERSION = 1
KEY = "cehm"
CHUNK_BYTES = 2 << 20
"""One inner chunk of labels: read in one go, large enough that opening costs nothing, small enough for a cache."""
CHUNKS_PER_SHARD = 4
READ_TRIES = 3
PREDICTION_CHUNK_ROWS = 1 << 18


def is_store(path: Any) -> bool:
    """Whether a path or URL names a Zarr store, by its ending or its content."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        return False
    return text.rstrip("/").endswith(".zarr") or (not is_url(text) and (Path(text) / "zarr.json").is_file())


def open_array(url: str, of: str = "base labels") -> Any:
    """A plain Zarr array that somebody else made."""
    try:
        return zarr.open_array(url, mode="r")
    except (FileNotFoundError, zarr.errors.NodeTypeValidationError, ValueError) as error:
        raise StoreError(f"store {url}: expected a Zarr array of {of}: {error}") from error


def _group(url: str, mode: Any) -> zarr.Group:
    try:
        return zarr.open_group(url, mode=mode, zarr_format=3, use_consolidated=False)
    except FileNotFoundError as error:
        raise StoreError(f"store {url}: not found") from error
    except zarr.errors.ContainsArrayError as error:
        raise StoreError(f"store {url}: a plain Zarr array; import its labels with 'cehm import'") from error
    except json.JSONDecodeError as error:
        raise StoreError(f"store {url}: zarr.json is damaged ({error}); restore it or make the store anew") from error


def _kind(url: str) -> str | None:
    """What is at a place: "ensemble", "consensus", "other", or None for nothing (or an empty folder)."""
    if not exists(f"{url.rstrip('/')}/zarr.json"):
        return "other" if entries(url) or Path(url).is_file() else None
    try:
        return str(read_facts(url)["format"])
    except StoreError:
        return "other"


def read_facts(url: str) -> dict[str, Any]:
    """The attributes of an ensemble or consensus store, finished or not."""
    attributes: Any = _group(url, "r").attrs.asdict().get(KEY)
    if not isinstance(attributes, dict) or attributes.get("format") not in ("ensemble", "consensus"):
        raise StoreError(f"store {url}: neither an ensemble nor a consensus store")
    return attributes


def format_of(url: str) -> str:
    """What a store of this program holds: "ensemble", "consensus", "model" or "prediction"."""
    attributes: Any = _group(url, "r").attrs.asdict().get(KEY)
    if not isinstance(attributes, dict) or "format" not in attributes:
        raise StoreError(f"store {url}: not one that this program wrote")
    return str(attributes["format"])


def _attributes(url: str, kind: str) -> dict[str, Any]:
    """The attributes of a whole store of the right kind and version, or an error that says what to do."""
    attributes: Any = _group(url, "r").attrs.asdict().get(KEY)
    if not isinstance(attributes, dict) or attributes.get("format") != kind:
        found = attributes.get("format") if isinstance(attributes, dict) else "another kind of Zarr data"
        remedy = "import labels with 'cehm import'" if kind == "ensemble" else "make one with 'cehm consensus'"
        raise StoreError(f"store {url}: holds {found}, expected {kind}; {remedy}")
    if attributes.get("version") != VERSION:
        raise StoreError(
            f"store {url}: version {attributes.get('version')}, this program reads version {VERSION}; make it anew"
        )
    if not attributes.get("complete"):
        raise StoreError(f"store {url}: half-written; start the command that made it again to finish it")
    return attributes


@dataclass(frozen=True, eq=False)
class Ensemble:
    """An ensemble.zarr opened for reading; small to send, opened anew where it arrives."""

    url: str
    n_samples: int
    widths: tuple[int, ...]
    """Slots of each member: its clusters and slot 0, "says nothing"."""
    names: tuple[str, ...]
    values: tuple[NDArray[Any], ...] | None
    """The user's label behind each cluster of each member; None: 0, 1, 2, …"""
    fingerprint: str
    chunk_rows: int
    shard_rows: int
    itemsize: int
    members: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    portable = True

    @cached_property
    def _array(self) -> zarr.Array[Any]:
        array = _group(self.url, "r")["labels"]
        assert isinstance(array, zarr.Array)
        return array

    @cached_property
    def _shards(self) -> Shards | None:
        """Direct access to the shard files, where they are local files."""
        return None if is_url(self.url) else Shards(self._array, Path(self.url) / "labels")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_array", "_shards")}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Codes of the rows start to stop; a read that fails is tried again, then named."""
        for attempt in range(1, READ_TRIES + 1):
            try:
                if self._shards is not None:
                    return self._shards.read(start, stop)
                rows = np.asarray(self._array[start:stop])
                self._refuse_lost_shards(start, rows)
                return rows
            except (OSError, ValueError, RuntimeError) as error:
                if attempt == READ_TRIES:
                    first, last = start // self.chunk_rows, (stop - 1) // self.chunk_rows
                    raise StoreError(
                        f"store {self.url}: rows {start} to {stop - 1} of labels (chunks {first} to {last}) cannot be "
                        f"read after {READ_TRIES} tries: {error}; restore the file or import the labels again"
                    ) from error
                time.sleep(0.05 * 4**attempt)
        raise AssertionError

    def _refuse_lost_shards(self, start: int, rows: NDArray[Any]) -> None:
        """Zarr reads a shard that is gone as zeros, "says nothing"; every shard of an ensemble was written."""
        for shard in range(start // self.shard_rows, -(-(start + len(rows)) // self.shard_rows)):
            part = rows[max(0, shard * self.shard_rows - start) : (shard + 1) * self.shard_rows - start]
            if not part.any() and not exists(f"{self.url.rstrip('/')}/labels/c/{shard}/0"):
                raise FileNotFoundError(f"shard {shard} is missing")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Size of every hyperedge."""
        return np.asarray(_group(self.url, "r")["sizes"][:])  # type: ignore[index]

    @property
    def truth(self) -> NDArray[Any] | None:
        """The known classes of a made-up ensemble."""
        group = _group(self.url, "r")
        return np.asarray(group["truth"][:]) if "truth" in group else None  # type: ignore[index]


@dataclass(frozen=True)
class EnsembleWriter:
    """An ensemble.zarr being written; small to send. ``write`` takes whole shards, ``finish`` makes it count."""

    url: str
    n_samples: int
    n_members: int
    shard_rows: int

    @property
    def n_shards(self) -> int:
        return -(-self.n_samples // self.shard_rows)

    def rows(self, shard: int) -> tuple[int, int]:
        """First row of a shard and the row after its last."""
        return shard * self.shard_rows, min(self.n_samples, (shard + 1) * self.shard_rows)

    def write(self, shard: int, codes: NDArray[Any], truth: NDArray[Any] | None = None) -> str:
        """Write one whole shard and return its digest."""
        start, stop = self.rows(shard)
        if codes.shape != (stop - start, self.n_members):
            raise ValueError(f"shard {shard} has shape {(stop - start, self.n_members)}, got {codes.shape}")
        # An all-zero shard (nobody says anything) is written like any other, so that a missing one is seen.
        array = zarr.open(self.url, path="labels", mode="r+", config={"write_empty_chunks": True})
        array[start:stop] = codes  # type: ignore[index]
        if truth is not None:
            _group(self.url, "r+")["truth"][start:stop] = truth  # type: ignore[index]
        return digest_of(codes)

    def written(self, shard: int) -> NDArray[Any] | None:
        """The codes of a shard that a run before this one wrote; shards appear whole or not at all."""
        start, stop = self.rows(shard)
        codes = np.asarray(_group(self.url, "r")["labels"][start:stop])  # type: ignore[index]
        return codes if codes.any() else None

    def finish(self, digests: Sequence[str], sizes: Sequence[NDArray[np.int64]]) -> str:
        """Record sizes and fingerprint and mark the store whole."""
        group = _group(self.url, "r+")
        whole = np.concatenate(sizes).astype(np.int64)
        array = group.create_array("sizes", shape=whole.shape, dtype=np.int64, overwrite=True)
        array[:] = whole
        attributes: Any = group.attrs.asdict()[KEY]
        identity = json.dumps([attributes["n_samples"], attributes["widths"], list(digests)])
        fingerprint = hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()
        group.attrs[KEY] = {**attributes, "fingerprint": fingerprint, "complete": True}
        return fingerprint


def digest_of(codes: NDArray[Any]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(codes), digest_size=16).hexdigest()


def shape_of_chunks(n_samples: int, n_members: int, itemsize: int, chunk_rows: int | None = None) -> tuple[int, int]:
    """Rows of an inner chunk and of a shard."""
    if chunk_rows is None:
        fitting = max(1, CHUNK_BYTES // (n_members * itemsize))
        chunk_rows = min(1 << (fitting.bit_length() - 1), max(1, n_samples))
    return chunk_rows, chunk_rows * CHUNKS_PER_SHARD


@contextmanager
def sole_writer(url: str, *, overwrite: bool) -> Iterator[None]:
    """Keep other processes from writing an ensemble to the same place meanwhile; refuse one that stays as it is."""
    _refuse_foreign(url, "ensemble")
    # Before the lock, which would change the folder of a store that is only looked at; and again once nobody else can.
    _refuse_finished(url, overwrite)
    lock = Lock(url)
    lock.take()
    try:
        _refuse_finished(url, overwrite)
        yield
    finally:
        lock.release()


def _refuse_finished(url: str, overwrite: bool) -> None:
    """An error if there is an ensemble that no run can go on with, and that may not be replaced."""
    if not overwrite and _kind(url) is not None:
        _refuse_existing(url, read_facts(url).get("identity"))


def _refuse_existing(url: str, identity: str | None) -> None:
    """An error unless the ensemble that is there is a half-written one with this identity."""
    found = read_facts(url)
    if identity is None or found["complete"] or found.get("identity") != identity:
        state = "" if found["complete"] else ", half-written"
        raise StoreError(f"store {url} exists{state}: choose another name, or pass --overwrite")


def _refuse_foreign(url: str, kind: str) -> None:
    """An error if there is anything at a place that is no store of that kind: not even a lock may go there."""
    if _kind(url) not in (None, kind):
        raise StoreError(f"{url} exists and is no {kind} store: choose another name, or remove it first")


def _start_anew(url: str, facts: Mapping[str, Any]) -> zarr.Group:
    """A store with nothing but the facts, and the lock that is held on it.

    In this order, whenever it is cut off, what is left is never taken for a whole store or another run's state.
    """
    group = zarr.open_group(url, mode="a", zarr_format=3, attributes={KEY: dict(facts)})
    group.attrs[KEY] = dict(facts)
    for entry in entries(url):
        if not entry.endswith("/zarr.json"):
            remove(entry)
    return group


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
) -> EnsembleWriter:
    """Create the arrays of an ensemble.zarr, to be filled shard by shard.

    With an ``identity``, a half-written store that has the same one is taken up where it was left.
    """
    dtype = np.min_scalar_type(max(widths) - 1)
    chunk, shard = shape_of_chunks(n_samples, len(widths), dtype.itemsize, chunk_rows)
    _refuse_foreign(url, "ensemble")
    if not overwrite and _kind(url) is not None:
        _refuse_existing(url, identity)
        if "labels" in _group(url, "r"):  # else it was left before the first shard could be
            return EnsembleWriter(absolute(url), n_samples, len(widths), shard)
    attributes: Any = {
        "format": "ensemble",
        "version": VERSION,
        "n_samples": n_samples,
        "n_members": len(widths),
        "widths": [int(width) for width in widths],
        "names": [str(name) for name in (names or range(len(widths)))],
        "values": None if values is None else [known.tolist() for known in values],
        "members": [dict(member) for member in members],
        "source": source,
        "identity": identity,
        "complete": False,
    }
    # Without identity until nothing of another ensemble is left that a resumed run could take for its own.
    group = _start_anew(url, {**attributes, "identity": None})
    group.attrs[KEY] = attributes
    group.create_array(
        "labels",
        shape=(n_samples, len(widths)),
        dtype=dtype,
        chunks=(chunk, len(widths)),
        shards=(shard, len(widths)),
        compressors=[Crc32cCodec()],
    )
    if truth:
        group.create_array("truth", shape=(n_samples,), dtype=np.int16, chunks=(shard,))
    return EnsembleWriter(absolute(url), n_samples, len(widths), shard)


def open_ensemble(url: str) -> Ensemble:
    """Open a whole ensemble.zarr for reading."""
    attributes = _attributes(url, "ensemble")
    array = _group(url, "r")["labels"]
    assert isinstance(array, zarr.Array)
    values = attributes["values"]
    return Ensemble(
        url=absolute(url),
        n_samples=attributes["n_samples"],
        widths=tuple(attributes["widths"]),
        names=tuple(attributes["names"]),
        values=None if values is None else tuple(known_labels(own) for own in values),
        fingerprint=attributes["fingerprint"],
        chunk_rows=array.chunks[0],
        shard_rows=(array.shards or array.chunks)[0],
        itemsize=array.dtype.itemsize,
        members=tuple(attributes["members"]),
        source=attributes["source"],
    )


def known_labels(values: list[Any]) -> NDArray[Any]:
    """Labels of one member, as written in attributes; numpy would take a list of numbers beyond int64 for floats."""
    known = np.asarray(values)
    return np.asarray(values, np.uint64) if known.dtype.kind == "f" else known


@dataclass(frozen=True)
class ResultWriter:
    """The arrays of a consensus.zarr that are of size n; small to send. One task writes a whole chunk."""

    url: str
    chunk_rows: int

    def write(
        self, start: int, labels: NDArray[np.int16], margin: NDArray[np.float64], confidence: NDArray[np.float64]
    ) -> None:
        if start % self.chunk_rows:
            raise ValueError(f"row {start} is not the start of a chunk of {self.chunk_rows} rows")
        group = _group(self.url, "r+")
        group["labels"][start : start + len(labels)] = labels  # type: ignore[index]
        group["margin"][start : start + len(labels)] = margin.astype(np.float32)  # type: ignore[index]
        group["confidence"][start : start + len(labels)] = confidence.astype(np.float32)  # type: ignore[index]


@dataclass(eq=False)
class ConsensusStore:
    """A consensus.zarr on its way: parameters, intersections, checkpoint, result.

    Held under a lock while open, so that two runs never write to one output.
    """

    url: str
    identity: dict[str, Any]
    """What the result depends on; a checkpoint with another identity is refused."""
    _lock: Lock = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._lock = Lock(self.url)

    @property
    def _checkpoint(self) -> str:
        return f"{self.url.rstrip('/')}/checkpoint.npz"

    def open(self, *, overwrite: bool) -> None:
        """Take the lock; start anew, or go on with what a run with the same identity left."""
        _refuse_foreign(self.url, "consensus")
        self._lock.take()
        try:
            self._open(overwrite)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, overwrite: bool) -> None:
        if _kind(self.url) == "consensus" and not overwrite:
            self._check_same(read_facts(self.url))
            return
        # The checkpoint first: with the new identity beside it, it would be taken for this run's.
        remove(self._checkpoint)
        facts = {"format": "consensus", "version": VERSION, "identity": self.identity, "complete": False}
        _start_anew(self.url, facts)

    def _check_same(self, found: Mapping[str, Any]) -> None:
        """Refuse to go on with a run that is finished, or was another one."""
        if found.get("complete"):
            raise StoreError(f"output {self.url} is finished: choose another name, or pass --overwrite")
        differing = [
            f"{name}={self.identity.get(name)!r} (there: {found['identity'].get(name)!r})"
            for name in sorted({*self.identity, *found["identity"]})
            if self.identity.get(name) != found["identity"].get(name)
        ]
        if found.get("version") != VERSION:
            differing.append(f"version={VERSION} (there: {found.get('version')})")
        if differing:
            raise StoreError(
                f"output {self.url} holds an unfinished run with other settings: {', '.join(differing)}; "
                "use the same settings to go on, another name, or --overwrite to start anew"
            )

    def save_table(self, name: str, table: NDArray[Any]) -> None:
        """Keep a small array."""
        array = _group(self.url, "r+").create_array(name, shape=table.shape, dtype=table.dtype, overwrite=True)
        array[...] = table

    def load_intersections(self) -> tuple[NDArray[np.int64], int] | None:
        """The intersections a run before this one counted, and its number of silent rows."""
        group = _group(self.url, "r")
        attributes: Any = group.attrs.asdict()[KEY]
        if "n_silent" not in attributes:
            return None
        return np.asarray(group["intersections"][...]), int(attributes["n_silent"])  # type: ignore[index]

    def save_intersections(self, table: NDArray[np.int64], n_silent: int) -> None:
        self.save_table("intersections", table)
        group = _group(self.url, "r+")
        attributes: Any = group.attrs.asdict()[KEY]
        group.attrs[KEY] = {**attributes, "n_silent": n_silent}

    def save_checkpoint(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> int:
        """Write the state of the run, whole or not at all; returns its bytes."""
        buffer = io.BytesIO()
        np.savez(buffer, facts=np.array(json.dumps(facts)), **arrays)  # type: ignore[arg-type]
        self._lock.renew()
        write_whole(self._checkpoint, buffer.getvalue())
        return buffer.tell()

    def load_checkpoint(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]] | None:
        content = read_whole(self._checkpoint)
        if content is None:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files if name != "facts"}
                return arrays, json.loads(str(saved["facts"]))
        except Exception as error:  # a dozen kinds, from zipfile, zlib, numpy and json
            raise StoreError(
                f"{self._checkpoint} is damaged ({error}): remove it, and the run starts over from the intersections"
            ) from error

    def save_trail(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Add arrays to the trail, in a file of their own: what grows by a round is not written anew every round."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # type: ignore[arg-type]
        write_whole(f"{self._trail}{time.time_ns():020d}.npz", buffer.getvalue())

    def load_trail(self) -> dict[str, NDArray[Any]]:
        """All that was added to the trail, the latest of what was added twice; a damaged file is left out."""
        found: dict[str, NDArray[Any]] = {}
        for entry in self._trail_files():
            try:
                with np.load(io.BytesIO(read_whole(entry) or b""), allow_pickle=False) as saved:
                    found |= {name: saved[name] for name in saved.files}
            except Exception as error:  # a dozen kinds, from zipfile, zlib and numpy
                log.warning("%s is damaged (%s): the result will have no trail", entry, error)
        return found

    @property
    def _trail(self) -> str:
        return f"{self.url.rstrip('/')}/trail-"

    def _trail_files(self) -> list[str]:
        return sorted(entry for entry in entries(self.url) if "/trail-" in entry and entry.endswith(".npz"))

    def create_result(self, n_samples: int, chunk_rows: int) -> ResultWriter:
        """Create the arrays of size n, to be filled chunk by chunk."""
        group = _group(self.url, "r+")
        group.create_array(
            "labels", shape=(n_samples,), dtype=np.int16, chunks=(chunk_rows,), fill_value=-1, overwrite=True
        )
        for name in ("margin", "confidence"):
            group.create_array(name, shape=(n_samples,), dtype=np.float32, chunks=(chunk_rows,), overwrite=True)
        return ResultWriter(absolute(self.url), chunk_rows)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Record how the result came about, mark the store whole and drop what only a resumed run needs."""
        group = _group(self.url, "r+")
        attributes: Any = group.attrs.asdict()[KEY]
        group.attrs[KEY] = {**attributes, **facts, "complete": True}
        for file in (self._checkpoint, *self._trail_files()):
            remove(file)

    def close(self) -> None:
        self._lock.release()


@dataclass(frozen=True, eq=False)
class StoredConsensus:
    """A finished consensus.zarr, opened for reading."""

    url: str
    facts: dict[str, Any]

    def array(self, name: str) -> Any:
        """labels, margin, confidence, counts, weights or another table, as a Zarr array that is read when indexed."""
        return _group(self.url, "r")[name]

    def __contains__(self, name: str) -> bool:
        return name in _group(self.url, "r")


def open_consensus(url: str) -> StoredConsensus:
    """Open a finished consensus.zarr."""
    return StoredConsensus(url, _attributes(url, "consensus"))


def save_model(url: str, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], *, overwrite: bool) -> None:
    """Write a fitted model: small arrays and plain facts."""
    if exists(url):
        if not overwrite:
            raise StoreError(f"model {url} exists: choose another name, or pass overwrite=True")
        remove(url)
    group = zarr.open_group(url, mode="w", zarr_format=3)
    for name, table in arrays.items():
        group.create_array(name, shape=table.shape, dtype=table.dtype)[...] = table
    group.attrs[KEY] = {"format": "model", "version": VERSION, "complete": True, **facts}


def load_model(url: str) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """Read what :func:`save_model` wrote."""
    facts = _attributes(url, "model")
    return {name: np.asarray(array[...]) for name, array in _group(url, "r").arrays()}, facts


def write_prediction(url: str, labels: Any, margin: Any, confidence: Any, *, overwrite: bool) -> None:
    """Write labels, margins and confidences of new rows, block by block."""
    if _kind(url) is not None:
        if not overwrite or format_of(url) != "prediction":
            raise StoreError(f"output {url} exists: choose another name, or pass --overwrite to replace a prediction")
        remove(url)
    attributes: Any = {"format": "prediction", "version": VERSION, "n_samples": len(labels), "complete": False}
    group = zarr.open_group(url, mode="w", zarr_format=3, attributes={KEY: attributes})
    for name, values in (("labels", labels), ("margin", margin), ("confidence", confidence)):
        array = group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=(PREDICTION_CHUNK_ROWS,))
        for start in range(0, len(values), PREDICTION_CHUNK_ROWS):
            rows = slice(start, start + PREDICTION_CHUNK_ROWS)
            array[rows] = np.asarray(values[rows])
    group.attrs[KEY] = {**attributes, "complete": True}


def replace_store(new: str, old: str) -> None:
    """Put a finished store in the place of another."""
    filesystem, target = fsspec.core.url_to_fs(old)
    aside = f"{target.rstrip('/')}.before"
    filesystem.mv(target, aside, recursive=True)
    filesystem.mv(fsspec.core.url_to_fs(new)[1], target, recursive=True)
    filesystem.rm(aside, recursive=True)
