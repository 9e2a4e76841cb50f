"""Uncompressed local shards, read straight from their files.

Below the store, which hands it the label array of an ensemble on a local disk. Zarr's own pipeline takes three
times as long for the same bytes, as long as the arithmetic of a sweep; the layout is that of the Zarr v3
sharding codec, so the store stays readable by any Zarr library.
"""

import json
import os
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.bounds import FOLD, largest

PIECE_BYTES = 1 << 18
"""Read, summed and checked in one go: less than the second-level cache of any processor in use holds."""


class Shards:
    """The shards of one array (rows × members), read by rows.

    A shard is its inner chunks, each followed by its CRC-32C, then an index of (offset, length) pairs and the
    index's own CRC-32C, as the Zarr v3 sharding codec lays them out.

    Every chunk is summed whenever it is read. Its largest codes are looked for when it is first read, and again when
    the file has changed: the same bytes hold the same codes. That halves what the checks cost.

    Parameters
    ----------
    array : zarr.Array
    folder : Path
        Where the array lies.
    widths : sequence of int
        Slots of each member: codes lie below.
    """

    def __init__(self, array: Any, folder: Path, widths: Sequence[int]) -> None:
        self.folder = folder
        self.limits = np.asarray(widths, np.int64)
        self.n_samples, self.members = array.shape
        self.dtype = array.dtype
        self.chunk_rows = array.chunks[0]
        self.shard_rows = (array.shards or array.chunks)[0]
        self.chunk_bytes = self.chunk_rows * self.members * self.dtype.itemsize
        self.piece_rows = max(1, PIECE_BYTES // max(1, self.members * self.dtype.itemsize * FOLD)) * FOLD
        self._indices: dict[int, NDArray[np.uint64]] = {}
        self._seen: dict[int, tuple[tuple[int, ...], int]] = {}
        """Chunks whose codes all lay inside their slots: the stamp of the file before it was read, their checksum."""

    @staticmethod
    def fit(array: Any) -> bool:
        """Whether an array is laid out as this class reads it; others are left to Zarr."""
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        layout = {
            "chunk_shape": array.chunks,
            "codecs": [{"name": "bytes"} if array.dtype.itemsize == 1 else little, {"name": "crc32c"}],
            "index_codecs": [little, {"name": "crc32c"}],
            "index_location": "end",
        }
        facts = array.metadata.to_dict()
        found = [facts["codecs"], facts["chunk_key_encoding"], facts["fill_value"]]
        keys = {"name": "default", "configuration": {"separator": "/"}}
        wanted = [[{"name": "sharding_indexed", "configuration": layout}], keys, 0]
        return json.dumps(found, sort_keys=True, default=str) == json.dumps(wanted, sort_keys=True)

    def read(self, start: int, stop: int) -> tuple[NDArray[Any], list[tuple[int, int]], bool]:
        """Rows start to stop; number and checksum of the chunks they lie in; whether all codes lie inside their slots.

        Chunks are read piece by piece, so that checksum and largest code are taken while a piece is in the cache.
        """
        checksums, inside = [], True
        first, last = start // self.chunk_rows, -(-stop // self.chunk_rows)
        out = np.empty(((last - first) * self.chunk_rows, self.members), self.dtype)
        for number in range(first, last):
            at = (number - first) * self.chunk_rows
            checksum, own = self._read_chunk(number, out[at : at + self.chunk_rows])
            checksums.append((number, checksum))
            inside &= own
        return out[start - first * self.chunk_rows : stop - first * self.chunk_rows], checksums, inside

    def _read_chunk(self, number: int, out: NDArray[Any]) -> tuple[int, bool]:
        """Fill in a chunk; its checksum, and whether all its codes lie inside their slots."""
        shard, inner = divmod(number * self.chunk_rows, self.shard_rows)
        path = self.folder / "c" / str(shard) / "0"
        with path.open("rb", buffering=0) as file:
            offset, length = (int(part) for part in self._index(file, shard)[inner // self.chunk_rows])
            if offset == 2**64 - 1:  # never written: all zeros
                out[:] = 0
                return int(google_crc32c.value(out.reshape(-1).view(np.uint8))), True
            if length != self.chunk_bytes + 4:
                raise ValueError(f"chunk {number} in {path} has {length} bytes, expected {self.chunk_bytes + 4}")
            file.seek(offset)
            stamp, seen = _stamp(file), self._seen.get(number)
            top = np.zeros(self.members, self.dtype)
            found = self._fill(file, out, top if seen is None else None)
            if found is None:
                raise ValueError(f"chunk {number} in {path} is cut short")
            if found != int.from_bytes(file.read(4), "little"):
                raise ValueError(f"chunk {number} in {path} is damaged: its checksum is wrong")
            if seen == (_stamp(file), found):
                return found, True
        if seen is not None:
            top = largest(out)
        inside = bool((top < self.limits).all())
        if inside:
            self._seen[number] = stamp, found
        return found, inside

    def _fill(self, file: FileIO, out: NDArray[Any], top: NDArray[Any] | None) -> int | None:
        """Read the rows of a chunk; their checksum, or None if the file ends before.

        ``top``, where it is asked for, becomes the largest code of each member.
        """
        found = 0
        for begin in range(0, len(out), self.piece_rows):
            piece = out[begin : begin + self.piece_rows]
            raw = piece.reshape(-1).view(np.uint8)
            done = 0
            while done < len(raw):
                got = file.readinto(raw.data[done:])
                if not got:
                    return None
                done += got
            found = google_crc32c.extend(found, raw)
            if top is not None:
                np.maximum(top, largest(piece), out=top)
        return int(found)

    def _index(self, file: FileIO, shard: int) -> NDArray[np.uint64]:
        if shard not in self._indices:
            length = 16 * (self.shard_rows // self.chunk_rows)
            file.seek(-(length + 4), os.SEEK_END)
            raw = file.read(length + 4)
            if google_crc32c.value(raw[:length]) != int.from_bytes(raw[length:], "little"):
                raise ValueError(f"the index of shard {shard} is damaged: its checksum is wrong")
            self._indices[shard] = np.frombuffer(raw[:length], "<u8").reshape(-1, 2)
        return self._indices[shard]


def _stamp(file: FileIO) -> tuple[int, ...]:
    """Changes whenever the file is written; whoever sets the time of a change back changes the second one."""
    found = os.fstat(file.fileno())
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
