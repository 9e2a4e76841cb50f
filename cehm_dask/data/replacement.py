"""Putting a new store in the place of another, whole.

Below the stores. A store that replaces another is written into a hidden folder beside it, ``.NAME.writing``, and put
into place when it is whole; a reader of the old one sees that at its next look. On a local disk the folder also holds
the lock of the one writer, and the switch is two renames. In between there is no store for a moment; the next process
after a crash in that moment, writer or reader, completes the second one.

An object store cannot rename: a store is written there in place, after its attributes say that it is incomplete,
unless it is made of the one it replaces. Then it is copied object by object, its attributes last, and a switch that was
interrupted is repeated.
"""

import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import fsspec

from cehm_dask.data.files import entries, is_url, remove, sync_folder, write_whole
from cehm_dask.data.locks import Lock
from cehm_dask.errors import BusyError

_NEW, _OLD = "new-", "old-"

RENAME_SECONDS = 1.0
"""How long a reader waits for a store that is being renamed."""


def _target(url: str) -> str:
    """Where a store really lies: a link to a folder on another disk is followed."""
    return url.rstrip("/") if is_url(url) else os.path.realpath(url)


def _folder(url: str) -> str:
    parent, name = os.path.split(_target(url))
    return f"{parent}/.{name}.writing"


def _marked(url: str, mark: str) -> list[str]:
    """What lies in the hidden folder under a name that begins so."""
    names = (entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries(_folder(url)))
    return sorted(f"{_folder(url)}/{name}" for name in names if name.startswith(mark))


class Writing:
    """The one writer of a store: holds its lock, and completes what a writer before it left between two steps."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._locked = url if is_url(url) else _folder(url)
        self._lock = Lock(self._locked)

    def take(self) -> None:
        """Take the lock, or refuse if another run holds it."""
        try:
            self._lock.take()
        except BusyError as error:
            raise BusyError(str(error).replace(self._locked, self.url)) from error.__cause__
        _settle(self.url)

    def renew(self) -> None:
        """Renew the lock of an object store."""
        self._lock.renew()

    def release(self) -> None:
        self._lock.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.take()
        try:
            yield
        finally:
            self.release()


def beside(url: str) -> str:
    """A new name in the hidden folder, for a store that will replace another."""
    return f"{_folder(url)}/{_NEW}{uuid.uuid4().hex[:12]}"


def begun(url: str) -> list[str]:
    """Stores that a writer began in the hidden folder and did not finish."""
    return _marked(url, _NEW)


def drop_begun(url: str, keep: str | None = None) -> None:
    """Remove what writers before this one began; for who holds the lock."""
    for path in begun(url):
        if path != keep:
            remove(path)


def switch(place: str, url: str) -> None:
    """Put a whole store from the hidden folder into its place, and remove what was there."""
    old = place.replace(f"/{_NEW}", f"/{_OLD}")
    if is_url(url):
        write_whole(old, b"")  # a mark that the switch has begun
        _copy(place, url)
    else:
        with suppress(FileNotFoundError):
            os.rename(_target(url), old)
        os.rename(place, _target(url))
        sync_folder(os.path.dirname(_target(url)))
    _drop(old)


def _copy(place: str, url: str) -> None:
    """Copy a store object by object, its attributes last: until then there is none."""
    filesystem, source = fsspec.core.url_to_fs(place)
    _, target = fsspec.core.url_to_fs(_target(url))
    remove(f"{_target(url)}/zarr.json")
    for entry in entries(url):
        remove(entry)
    filesystem.invalidate_cache()
    for path in sorted(filesystem.find(source), key=lambda path: path == f"{source}/zarr.json"):
        filesystem.cp_file(path, target + path.removeprefix(source))
    remove(place)


def _drop(old: str) -> None:
    if is_url(old):
        remove(old)
    else:
        # A file system may keep what readers still have open; the next writer removes the rest.
        shutil.rmtree(old, ignore_errors=True)


def _settle(url: str) -> None:
    """Complete a switch that was interrupted, and remove what was replaced; for who holds the lock."""
    for old in _marked(url, _OLD):
        new = old.replace(f"/{_OLD}", f"/{_NEW}")
        if is_url(url):
            if entries(new):
                _copy(new, url)
        elif not os.path.exists(_target(url)):
            os.rename(new if os.path.exists(new) else old, _target(url))
        _drop(old)


def recover(url: str) -> bool:
    """Whether a store that was not found may be there after all: its writer was switching it, or died then."""
    switching = bool(_marked(url, _OLD))
    deadline = time.monotonic() + RENAME_SECONDS
    while switching and not is_url(url) and not os.path.exists(_target(url)) and time.monotonic() < deadline:
        time.sleep(0.01)
    if switching and (is_url(url) or not os.path.exists(_target(url))):
        with suppress(BusyError, OSError), Writing(url).held():
            pass
    return switching or not is_url(url)
