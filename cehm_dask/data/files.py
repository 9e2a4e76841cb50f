"""Small files, here or in an object store: whole writes, existence, what a folder holds.

Below the stores. Paths without ``://`` are local; anything else goes through fsspec.
"""

import errno
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, BinaryIO, TypeVar
from zipfile import BadZipFile

import fsspec
import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import STORAGE, InputError, InputTypeError, NotFoundError, exit_code_of

TEMPORARY = ".cehm-"
"""How the names begin of what is not finished; after a crash it may stay behind; it is no data."""

HALF = ".half"
"""How they end, files and folders that are written whole."""

LOCK_NAME = "writer.lock"
"""Of the lock in an output: no part of it."""

WAITS = (0.1, 0.3, 1.0, 3.0)
"""Seconds between tries to read what must be there."""

Found = TypeVar("Found")


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


def is_leftover(name: str) -> bool:
    """Whether a file or folder is one that a crash left unfinished."""
    return os.path.basename(name.rstrip("/")).startswith(TEMPORARY)


def entries(url: str) -> list[str]:
    """What a folder holds, the lock and leftovers of crashes aside; empty where there is no folder."""
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()  # Zarr writes through a file system of its own
    if not filesystem.isdir(path):
        return []
    names = filesystem.ls(path, detail=False)
    return [
        filesystem.unstrip_protocol(name) for name in names if not name.endswith(LOCK_NAME) and not is_leftover(name)
    ]


def fingerprint(url: str) -> str:
    """Changes when a file, or a file of a folder, is written: a digest of names, sizes and times of change."""
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    found = filesystem.find(path, detail=True)
    changed = ("ETag", "mtime", "LastModified")
    facts = [
        [name.removeprefix(path), entry["size"], next((str(entry[when]) for when in changed if when in entry), None)]
        for name, entry in sorted(found.items())
        if not is_leftover(name)
    ]
    if not facts:
        raise NotFoundError(f"{url}: no such file or folder")
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


@contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A new local file that takes the place of ``path`` once the block ends well; if it does not, nothing changes.

    The temporary name is random and must be free: what a crash left behind is never continued, also where process ids
    repeat, as they do in containers.
    """
    target = Path(path)
    half = _beside(target)
    try:
        with half.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(half, target)
    finally:
        half.unlink(missing_ok=True)
    sync_folder(target.parent)


def _beside(target: Path) -> Path:
    """A name in the same folder, and so on the same file system, that is not taken."""
    return target.parent / f"{TEMPORARY}{secrets.token_hex(8)}{HALF}"


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make a change of names in a folder outlive a power cut, where folders can be opened (not on Windows)."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such thing
            raise
    finally:
        os.close(descriptor)


def write_whole(url: str, content: bytes, *, new: bool = False) -> None:
    """Write a small file so that it appears whole or not at all; ``new``, for URLs: only if there is none."""
    filesystem, path = fsspec.core.url_to_fs(url)
    if "file" in filesystem.protocol and not new:
        with whole(path) as file:
            file.write(content)
        return
    # A put to an object store is atomic, and with "create" fails where another one came first.
    try:
        filesystem.pipe_file(path, content, mode="create" if new else "overwrite")
    except Exception:
        # The answer may be lost where the put was not. A caller told to try again would then find a finished store.
        if new or not _holds(filesystem, path, content):
            raise


def _holds(filesystem: Any, path: str, content: bytes) -> bool:
    try:
        return bytes(patiently(lambda: filesystem.cat_file(path))) == content
    except Exception:
        return False


def patiently(read: Callable[[], Found]) -> Found:
    """What is read, at a later try if storage fails: where a result is whole already, an error would only mislead."""
    for wait in WAITS:
        try:
            return read()
        except Exception as error:
            if exit_code_of(error) != STORAGE:
                raise
            time.sleep(wait)
    return read()


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


def open_npy(path: str | os.PathLike[str], of: str) -> NDArray[Any]:
    """The array of a .npy file, mapped; ``of`` is what it holds, for the error."""
    with npy_faults(path, of):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise InputError("a .npz archive")
        return array


@contextmanager
def npy_faults(path: str | os.PathLike[str], of: str) -> Iterator[None]:
    """Say of what numpy finds wrong in which file it is."""
    try:
        yield
    except (ValueError, EOFError, OverflowError, TokenError, BadZipFile) as error:
        empty = "it is empty" if isinstance(error, EOFError) else " ".join(str(error).split())
        raise InputError(f"{of} {path}: no whole .npy file ({empty}); write it again with numpy.save") from error


def trace(url: str) -> str | None:
    """A digest by which two machines can check whether they see the same thing at a path or URL; None: nothing there.

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


def open_remote_npy(url: str) -> tuple[tuple[int, ...], Callable[[int, int], NDArray[Any]]]:
    """Shape of an array of features in an object store, and how its rows are read: it cannot be mapped."""
    filesystem, path = fsspec.core.url_to_fs(url)
    with filesystem.open(path, "rb") as file, npy_faults(url, "features"):
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        else:  # newer ones differ in the length of the header only
            shape, by_columns, dtype = np.lib.format.read_array_header_2_0(file)
        begin = file.tell()
    if by_columns:
        raise InputError(f"features {url}: only arrays in row order can be read by rows; save them in that order")
    if dtype.kind not in "iufb":
        raise InputTypeError(f"features {url} have dtype {dtype}: expected numbers")
    row_bytes = dtype.itemsize * int(np.prod(shape[1:]))

    def read(start: int, stop: int) -> NDArray[Any]:
        content = filesystem.cat_file(path, start=begin + start * row_bytes, end=begin + stop * row_bytes)
        return np.frombuffer(content, dtype).reshape(-1, *shape[1:])

    return shape, read
