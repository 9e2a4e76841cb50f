"""Small files, here or in an object store: whole writes, existence, and the lock of an output.

Below the stores. Paths without ``://`` are local; anything else goes through fsspec.
"""

import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec

LOCK_NAME = "writer.lock"
LOCK_SECONDS = 900
"""A lock in an object store that nobody renewed for this long is taken over."""

LOCK_RENEWAL_SECONDS = 200
"""Between signs of life of a run whose output is in an object store."""


class StoreError(OSError):
    """A store that is missing, half-written, damaged, locked, or of another kind or version."""


def is_url(path: str) -> bool:
    return "://" in path


def absolute(url: str) -> str:
    """A path that workers started in another folder understand too."""
    return url if is_url(url) else os.path.abspath(url)


def exists(url: str) -> bool:
    filesystem, path = fsspec.core.url_to_fs(url)
    return bool(filesystem.exists(path))


def remove(url: str) -> None:
    filesystem, path = fsspec.core.url_to_fs(url)
    if filesystem.exists(path):
        filesystem.rm(path, recursive=True)


def entries(url: str) -> list[str]:
    """What a folder holds, the lock aside; empty where there is no folder."""
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()  # Zarr writes through a file system of its own
    if not filesystem.isdir(path):
        return []
    names = filesystem.ls(path, detail=False)
    return [filesystem.unstrip_protocol(name) for name in names if not name.endswith(LOCK_NAME)]


def fingerprint(url: str) -> str:
    """Changes when a file, or a file of a folder, is written: a digest of names, sizes and times of change."""
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    found = filesystem.find(path, detail=True)
    changed = ("ETag", "mtime", "LastModified")
    facts = [
        [name.removeprefix(path), entry["size"], next((str(entry[when]) for when in changed if when in entry), None)]
        for name, entry in sorted(found.items())
    ]
    if not facts:
        raise FileNotFoundError(f"{url}: no such file or folder")
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def write_whole(url: str, content: bytes, *, new: bool = False) -> None:
    """Write a small file so that it appears whole or not at all; ``new``, for URLs: only if there is none."""
    filesystem, path = fsspec.core.url_to_fs(url)
    if is_url(url):
        # A put to an object store is atomic, and with "create" fails where another one came first.
        filesystem.pipe_file(path, content, mode="create" if new else "overwrite")
        return
    half = f"{path}.{os.getpid()}.half"
    try:
        with open(half, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(half)


def upload(file: Path, url: str) -> None:
    """Put a file into an object store; there it appears whole or not at all."""
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.put_file(str(file), path)


def read_whole(url: str) -> bytes | None:
    filesystem, path = fsspec.core.url_to_fs(url)
    try:
        return bytes(filesystem.cat_file(path))
    except FileNotFoundError:
        return None


def trace(url: str) -> str | None:
    """A digest by which two machines can tell whether they see the same thing at a path or URL; None: nothing there.

    Of a store's metadata, of the head of a file, or of the names in a folder.
    """
    filesystem, path = fsspec.core.url_to_fs(url)
    if filesystem.isfile(path):
        content = str(filesystem.size(path)).encode() + filesystem.cat_file(path, end=1 << 16)
    elif (metadata := read_whole(f"{url.rstrip('/')}/zarr.json")) is not None:
        content = metadata
    elif filesystem.isdir(path):
        content = json.dumps(sorted(os.path.basename(name) for name in filesystem.ls(path, detail=False))).encode()
    else:
        return None
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def kept_columns(names: Sequence[str], leave_out: Sequence[str], table: str | Path) -> list[str]:
    """Columns of a table without some that must be there."""
    for name in leave_out:
        if name not in names:
            raise ValueError(f"{table}: no column {name!r}; there are {', '.join(names)}")
    return [name for name in names if name not in leave_out]


class Lock:
    """One writer an output: a file lock that dies with its process, or a renewed mark in an object store."""

    def __init__(self, url: str) -> None:
        self.url = f"{url.rstrip('/')}/{LOCK_NAME}"
        self.remote = is_url(url)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{time.time_ns()}"
        self._file: Any = None
        self._released = threading.Event()
        self._one_at_a_time = threading.Lock()
        """So that a sign of life under way does not bring back a lock that is released."""

    def take(self) -> None:
        """Take it, or refuse if another run holds it."""
        if self.remote:
            self._take_remote()
            self._released.clear()
            threading.Thread(target=self._keep_alive, daemon=True).start()
        else:
            self._take_file()

    def _keep_alive(self) -> None:
        """Signs of life while a long sweep goes on; whether they come too late is seen at the next checkpoint."""
        while not self._released.wait(LOCK_RENEWAL_SECONDS):
            with self._one_at_a_time, suppress(Exception):  # the store cannot be reached just now
                if not self._released.is_set():
                    self.renew()

    def _take_file(self) -> None:
        import fcntl

        path = Path(self.url)
        while self._file is None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open("a+")
            except (FileExistsError, FileNotFoundError):
                if path.parent.is_file():
                    raise
                continue  # the run before this one is removing its folder
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                holder = file.read().strip()
                file.close()
                raise StoreError(
                    f"output {path.parent} is being written by another run ({holder}): wait for it"
                ) from error
            with suppress(FileNotFoundError):
                # A file that its holder removed meanwhile locks nothing: others make a new one.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    self._file = file
                    break
            file.close()
        self._file.truncate(0)
        self._file.write(self.owner)
        self._file.flush()

    def _take_remote(self) -> None:
        try:
            write_whole(self.url, self._mark(), new=True)
        except FileExistsError:
            mark = json.loads(read_whole(self.url) or '{"owner": "ended just now", "time": 0}')
            age = time.time() - mark["time"]
            if age < LOCK_SECONDS:
                raise StoreError(
                    f"output {os.path.dirname(self.url)} is being written by another run ({mark['owner']}, "
                    f"last sign of life {age:.0f} s ago): wait for it, or delete {self.url} if it is dead"
                ) from None
            write_whole(self.url, self._mark())

    def _mark(self) -> bytes:
        return json.dumps({"owner": self.owner, "time": time.time()}).encode()

    def _owner(self) -> str:
        return str(json.loads(read_whole(self.url) or '{"owner": "nobody"}')["owner"])

    def renew(self) -> None:
        """A sign of life; refused if another run took this one for dead."""
        if self.remote:
            if (owner := self._owner()) != self.owner:
                raise StoreError(f"output {os.path.dirname(self.url)} was taken over by another run ({owner})")
            write_whole(self.url, self._mark())

    def release(self) -> None:
        if self.remote:
            with self._one_at_a_time:
                self._released.set()
                if self._owner() == self.owner:
                    remove(self.url)
        elif self._file is not None:
            with suppress(FileNotFoundError):  # overwritten with all the rest
                os.unlink(self.url)
            with suppress(OSError):  # a folder made for the lock alone goes with it
                os.rmdir(os.path.dirname(self.url))
            self._file.close()
            self._file = None
