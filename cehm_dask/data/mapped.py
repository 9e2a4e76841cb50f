"""Rows of an array that is mapped from a file, read by plain reads.

Below the labels. A mapped file that another program cuts short ends this process with SIGBUS, and one that it writes
changes under a compiled loop. Rows are read into memory of their own instead; a file that changes while it is in use is
an error.
"""

import os
import threading
import weakref
from typing import Any, NoReturn

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import ReplacedError

HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""How the header of a .npy file is read, by its version."""


class MappedRows:
    """Rows of a file, as an array that gives rows when sliced; what was read once must stay as it was."""

    portable = False
    checked = False

    def __init__(self, path: str, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.offset, self.shape, self.dtype, self.ndim = path, offset, shape, dtype, len(shape)
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self._stamp = _stamp(os.fstat(self._file))
        self._checksums: dict[tuple[int, int], int] = {}
        self._lock = threading.Lock()
        self._row_bytes = int(np.prod(shape[1:])) * dtype.itemsize
        if self._stamp[1] < offset + len(self) * self._row_bytes:
            self.refuse()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        start, stop, _ = rows.indices(len(self))
        return self.read(start, stop)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Rows start to stop, in memory of their own."""
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        content, done = out.reshape(-1).view(np.uint8), 0
        while done < len(content):
            got = os.preadv(self._file, [content.data[done:]], self.offset + start * self._row_bytes + done)
            if not got:
                self.refuse()
            done += got
        checksum = google_crc32c.value(content)
        with self._lock:
            before = self._checksums.setdefault((start, stop), checksum)
        if before != checksum or _stamp(os.fstat(self._file)) != self._stamp:
            self.refuse()
        return out

    def confirm(self) -> None:
        """An error if the file has changed, or another one has taken its place, since it was first read."""
        try:
            found = os.stat(self.path)
        except OSError:
            self.refuse()
        if _stamp(found) != self._stamp or _stamp(os.fstat(self._file)) != self._stamp:
            self.refuse()

    def starts_like(self, mapped: np.memmap[Any, Any]) -> bool:
        """Whether the file is still the .npy file that was mapped, by its header; other files have none."""
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            try:
                version = np.lib.format.read_magic(file)
            except ValueError:
                return True
            if version not in HEADERS:
                return True
            shape, _, dtype = HEADERS[version](file)
            return (shape, dtype, file.tell()) == (mapped.shape, mapped.dtype, mapped.offset)

    def refuse(self) -> NoReturn:
        """The error for a file that is not what it was."""
        raise ReplacedError(f"{self.path} changed while it was being read; run again")


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def mapped_rows(array: NDArray[Any]) -> MappedRows | None:
    """The file behind an array that is mapped from one, row after row; None for any other array."""
    mapped: Any = array
    while isinstance(mapped, np.ndarray) and isinstance(mapped.base, np.ndarray):
        mapped = mapped.base
    # A file that is mapped copy-on-write does not hold what was written to the array.
    if not isinstance(mapped, np.memmap) or mapped.filename is None or mapped.mode == "c":
        return None
    if not array.flags.c_contiguous or not array.size or not array.ndim:
        return None
    into = array.__array_interface__["data"][0] - mapped.__array_interface__["data"][0]
    rows = MappedRows(str(mapped.filename), mapped.offset + into, array.shape, array.dtype)
    if not rows.starts_like(mapped):
        rows.refuse()
    return rows
