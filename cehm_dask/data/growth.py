"""An ensemble that grows out of another: more samples, more members, or fewer members.

Beside the ingest. The labels that are added lie in a temporary file of codes, so that no more than a shard of anything
is in memory. Widths and labels of the members that stay are those of the ensemble before, so that its slots, and all
tables by slot, stay what they are; the new store says what it grew out of. It is written a whole shard at a time and
takes the place of the one before once it is whole.
"""

import hashlib
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.encoding import Stream, survey
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.ensemble_writer import EnsembleWriter
from cehm_dask.data.ingest import label_blocks
from cehm_dask.data.labels import relabel
from cehm_dask.data.names import are_names, listed
from cehm_dask.data.sources import Codes
from cehm_dask.errors import InputError


class KeptCodes:
    """Codes in a file, read by rows: mapped, all of them would count as memory of this process."""

    def __init__(self, file: IO[bytes], dtype: Any, n_rows: int, n_members: int) -> None:
        self._file, self._dtype, self._n_rows, self._n_members = file, np.dtype(dtype), n_rows, n_members
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._n_rows

    def read(self, start: int, stop: int) -> Codes:
        """Codes of the rows start to stop; safe to call from many threads."""
        width = self._n_members * self._dtype.itemsize
        with self._lock:
            self._file.seek(start * width)
            found = self._file.read((stop - start) * width)
        return np.frombuffer(found, self._dtype).reshape(-1, self._n_members)


Shard = tuple[str, list[NDArray[np.int64]]]
"""Digest of a shard, and the sizes of its clusters by member."""


@dataclass(frozen=True, eq=False)
class Growth:
    """What an ensemble becomes; all but the rows, which :meth:`read` gives."""

    before: Ensemble
    n_samples: int
    kept: tuple[int, ...]
    """Members of the ensemble before; they come first."""
    added: KeptCodes | None = None
    """Codes of new rows, or of new members."""
    widths: tuple[int, ...] = ()
    """Of new members."""
    names: tuple[str, ...] = ()
    values: tuple[NDArray[Any], ...] = ()
    content: str = ""
    """Digest of what is added."""

    @property
    def all_widths(self) -> list[int]:
        return [*(self.before.widths[j] for j in self.kept), *self.widths]

    @property
    def all_names(self) -> list[str]:
        return [*(self.before.names[j] for j in self.kept), *self.names]

    @property
    def all_values(self) -> list[NDArray[Any]] | None:
        """None, where all members have the labels 0, 1, 2, …"""
        before = _values(self.before)
        found = [*(before[j] for j in self.kept), *self.values]
        return None if all(np.array_equal(own, np.arange(len(own))) for own in found) else found

    @property
    def all_members(self) -> list[dict[str, Any]]:
        """Provenance, where it is known of the members before."""
        known = self.before.members
        return [] if not known else [*(dict(known[j]) for j in self.kept), *({} for _ in self.names)]

    def facts(self, made_of: str) -> dict[str, Any]:
        """What the new store says of the one before, which had the fingerprint ``made_of``."""
        of = {"from": made_of, "rows": self.before.n_samples, "widths": list(self.before.widths)}
        return {**of, "members": list(self.kept), "identity": self.identity(made_of)}

    def identity(self, made_of: str) -> str:
        """Of this growth; the same for an ensemble that has it already."""
        what = [made_of, self.content, list(self.names), list(self.kept) if self.added is None else None]
        return hashlib.blake2b(json.dumps(what).encode(), digest_size=16).hexdigest()

    def read(self, start: int, stop: int) -> Codes:
        """Codes of the rows start to stop."""
        old = self.before.n_samples
        if self.added is None:
            return self.before.read(start, stop)[:, list(self.kept)]
        if self.names:
            return np.concatenate((self.before.read(start, stop), self.added.read(start, stop)), axis=1)
        parts = [self.before.read(start, min(stop, old))] if start < old else []
        if stop > old:
            parts.append(self.added.read(max(start - old, 0), stop - old))
        return np.concatenate(parts)


def write_shard(shard: int, growth: Growth, writer: EnsembleWriter) -> Shard:
    """Write one shard of what an ensemble becomes, unless a run before this one did."""
    codes = writer.written(shard)
    if codes is None:
        codes = growth.read(*writer.rows(shard))
        digest = writer.write(shard, codes)
    else:
        digest = writer.digest(codes)
    return digest, [np.bincount(codes[:, j], minlength=width)[1:] for j, width in enumerate(writer.widths)]


def _values(ensemble: Ensemble) -> Sequence[NDArray[Any]]:
    return ensemble.values or tuple(np.arange(width - 1) for width in ensemble.widths)


def more_samples(before: Ensemble, blocks: Iterable[Codes], file: IO[bytes]) -> Growth:
    """New rows, given as blocks of codes of the same members; ``file`` keeps them, open as long as they are read."""
    codes, content = _kept(blocks, file, np.min_scalar_type(max(before.widths) - 1), len(before.widths))
    n_samples = before.n_samples + len(codes)
    return Growth(before, n_samples, tuple(range(len(before.widths))), codes, content=content)


def codes_of_samples(before: Ensemble, new: Any, leave_out: Sequence[str], unseen: list[int]) -> Iterator[Codes]:
    """Codes of base labels of new rows, block by block; ``unseen`` gets the number of labels that no row had before.

    Those count as missing.
    """
    for labels in label_blocks(new, leave_out):
        found = relabel(labels, _values(before), before.names)
        codes = found.read(0, found.n_samples)
        if labels.n_members == len(before.names):
            given = labels.read(0, labels.n_samples)
            spoken = np.count_nonzero(given) if labels.silent else given.size
            unseen.append(int(spoken) - int(np.count_nonzero(codes)))
        yield codes


def more_members(before: Ensemble, stream: Stream, first: int, file: IO[bytes]) -> Growth:
    """New members, given by their labels of all rows; ``first`` is the number of one that has no name.

    ``file`` as for :func:`more_samples`.
    """
    names = stream.names
    if not are_names(names):
        names = tuple(str(first + j) for j in range(len(names)))
    if twice := [name for name in names if name in before.names[:first]]:
        raise InputError(f"members {listed(twice)} are in the ensemble {before.url} already: give them other names")
    found = survey(stream)
    if found.n_samples != before.n_samples:
        raise InputError(
            f"{stream.source} has {found.n_samples} rows, the ensemble {before.url} has {before.n_samples}: new "
            "members label the same rows"
        )
    codes, content = _kept(found.codes(), file, found.dtype, len(names))
    known = json.dumps([own.tolist() for own in found.values])
    content = hashlib.blake2b(f"{content}{known}".encode(), digest_size=16).hexdigest()
    added = (codes, found.widths, names, found.values, content)
    return Growth(before, before.n_samples, tuple(range(len(before.widths))), *added)


def fewer_members(before: Ensemble, drop: Sequence[str]) -> Growth:
    """Without some members, by name."""
    if unknown := [name for name in drop if name not in before.names]:
        raise InputError(f"member {unknown[0]!r} is not in {before.url}; there are {listed(before.names)}")
    kept = tuple(j for j, name in enumerate(before.names) if name not in drop)
    if not kept:
        raise InputError(f"drop_members={list(drop)}: no member is left of {before.url}; keep one")
    return Growth(before, before.n_samples, kept)


def _kept(blocks: Iterable[Codes], file: IO[bytes], dtype: Any, n_members: int) -> tuple[KeptCodes, str]:
    """Blocks of codes one after the other in a file, and their digest."""
    rows, digest = 0, hashlib.blake2b(digest_size=16)
    for block in blocks:
        codes = np.ascontiguousarray(block, dtype)
        digest.update(codes.data)
        file.write(codes.data)
        rows += len(codes)
    if not rows:
        raise InputError("n_samples=0: there are no new rows")
    file.flush()
    return KeptCodes(file, dtype, rows, n_members), digest.hexdigest()
