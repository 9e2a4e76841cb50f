"""One writer per output: a file lock that dies with its process, or a lease in an object store.

Above the files, below the stores. On a local disk the kernel frees the lock of a process that ended, however it ended.
An object store knows no processes: there a lock is an object that its holder renews every few seconds, and that
may be taken over once its holder has not renewed it for the length of the lease. Three things make that safe:

- The object is only written under a condition: that there is none (If-None-Match), or that it is still the one that was
  looked at (If-Match). Of two runs that want the same lock, the store lets one have it.
- Its age is the difference of two times of the store, never of a clock here: clocks of machines differ by minutes.
- A holder that did not renew it in time, stopped or disconnected, finds at its next renewal that the lock is another's.

A store without conditional writes is recognised by a write that must fail; there, a run that starts waits a moment and
looks whether its mark is still there, which two runs that start at the same instant may both pass. The log says so.
"""

import json
import logging
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
from fsspec.implementations.local import LocalFileSystem

from cehm_dask.data.files import LOCK_NAME, is_url
from cehm_dask.errors import BusyError, StoreError

log = logging.getLogger(__name__)

LEASE_SECONDS = 60
"""A lock in an object store that its holder has not renewed for so long may be taken over."""

RENEWAL_SECONDS = 15
"""Between renewals by a holder: three may be lost on the way."""

SETTLE_SECONDS = 2.0
"""How long a lock must stay untouched to count as taken, in a store without conditional writes."""

TRIES = 5
"""How often a lock is tried for that is released, or taken over by others, at the very moment."""

LOCKED_BYTE = 1 << 30
"""Of a lock file on Windows, where nobody else can read what is locked: far behind the name of the holder."""

LONGEST_LEASE = 3600
"""Longer ones are no lease of this program."""


class Lock:
    """The right to write an output, for one run at a time."""

    def __init__(self, url: str) -> None:
        local = not is_url(url) or isinstance(fsspec.core.url_to_fs(url)[0], LocalFileSystem)
        self._lock: _FileLock | _Lease = _FileLock(url) if local else _Lease(url)

    def take(self) -> None:
        """Take it, or refuse if another run holds it."""
        self._lock.take()

    def renew(self) -> None:
        """Renew it; refused if another run has taken over."""
        self._lock.renew()

    def release(self) -> None:
        self._lock.release()


def _own_name() -> str:
    """Who a lock is held by, for people; no two are the same."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"


class _FileLock:
    """A lock on a local file."""

    def __init__(self, url: str) -> None:
        folder = fsspec.core.url_to_fs(url)[1] if is_url(url) else url
        self.path = Path(folder) / LOCK_NAME
        self._file: Any = None

    def take(self) -> None:
        path = self.path
        while self._file is None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = path.open("a+", encoding="utf-8", errors="replace")
            except (FileExistsError, FileNotFoundError):
                if path.parent.is_file():
                    raise
                continue  # the run before this one is removing its folder
            try:
                _hold(file)
            except OSError as error:
                file.seek(0)
                holder = file.read(200).strip()
                file.close()
                raise BusyError(
                    f"output {path.parent} is being written by another run ({holder}): wait for it"
                ) from error
            with suppress(FileNotFoundError):
                # A file that its holder removed meanwhile locks nothing: others make a new one.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    self._file = file
                    break
            file.close()
        self._file.truncate(0)
        self._file.write(_own_name())
        self._file.flush()

    def renew(self) -> None:
        """Nothing to do: the kernel knows."""

    def release(self) -> None:
        if self._file is None:
            return
        try:
            self.path.unlink()
        except FileNotFoundError:
            pass  # overwritten with all the rest
        except PermissionError:  # Windows removes no file that is open: another run may be first now, and keeps it
            self._file.close()
            with suppress(OSError):
                self.path.unlink()
        with suppress(OSError):  # a folder made for the lock alone goes with it
            self.path.parent.rmdir()
        self._file.close()
        self._file = None


def _hold(file: Any) -> None:
    """Lock an open file until it is closed, or its process ends; an OSError if another one holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        locking: Any = msvcrt  # types of another platform
        os.lseek(file.fileno(), LOCKED_BYTE, os.SEEK_SET)
        locking.locking(file.fileno(), locking.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


class _Lease:
    """A lock in an object store, renewed by a thread while it is held."""

    def __init__(self, url: str) -> None:
        self.output = url.rstrip("/")
        self.url = f"{self.output}/{LOCK_NAME}"
        self.owner = _own_name()
        filesystem, path = fsspec.core.url_to_fs(self.url)
        self._object = _S3Object(filesystem, path) if hasattr(filesystem, "call_s3") else _Object(filesystem, path)
        self._tag: str | None = None
        """Of the mark as this run wrote it last; None: not held."""
        self._renewals = 0
        self._released = threading.Event()
        self._alone = threading.Lock()
        """So that a renewal under way does not bring back a lock that is released."""

    def take(self) -> None:
        with self._alone:
            for _ in range(TRIES):
                try:
                    self._tag = self._object.put(self._mark(), tag=None)
                except _ConflictError:
                    self._tag = self._taken_over()
                if self._tag is not None:
                    break
            else:
                raise BusyError(f"output {self.output}: several runs want its lock {self.url} at once; run again")
            self._prove()
        self._released.clear()
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def _taken_over(self) -> str | None:
        """The tag of a lock that was not renewed for the length of its lease; None: it changed hands, look again."""
        seen = self._object.look()
        if seen is None:
            return None  # released just now
        owner, lease = self._holder(seen)
        if owner == self.owner:
            return seen.tag  # the store did write it, though its answer was lost
        # Times in a store are whole seconds: the age may be one less than it seems.
        left = lease + 1 - seen.age
        if left > 0:
            raise BusyError(
                f"output {self.output} is being written by another run ({owner}, last renewed "
                f"{seen.age:.0f} s ago): wait for it; if it is dead, its lock expires in {left:.0f} s, and the same "
                "command takes over then"
            )
        with suppress(_ConflictError):
            tag = self._object.put(self._mark(), tag=seen.tag)
            log.warning("took over the lock %s of %s, not renewed for %.0f s", self.url, owner, seen.age)
            return tag
        return None

    def _prove(self) -> None:
        """See whether the store heeds conditions: a second write where none may be must fail."""
        if self._object.conditional:
            with suppress(_ConflictError):
                self._tag = self._object.put(self._mark(), tag=None)
                self._object.conditional = False
        if self._object.conditional:
            return
        log.warning(
            "the object store of %s has no conditional writes: two runs that start at the same instant could both "
            "write there; make sure that only one is started",
            self.output,
        )
        time.sleep(SETTLE_SECONDS)
        self._renew()

    def _mark(self) -> bytes:
        # The count makes every mark, and so its tag, another one.
        return json.dumps({"owner": self.owner, "lease": LEASE_SECONDS, "renewals": self._renewals}).encode()

    def _holder(self, seen: "_Seen") -> tuple[str, float]:
        """Who wrote a mark, and for how long it holds; an error if it is none."""
        try:
            mark = json.loads(seen.content)
            owner, lease = mark["owner"], mark.get("lease", LEASE_SECONDS)
            if isinstance(owner, str) and isinstance(lease, int | float) and 0 < lease <= LONGEST_LEASE:
                return owner[:200], lease
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise StoreError(
            f"{self.url} is no lock of this program ({seen.content[:60]!r}): if no run writes to {self.output}, "
            "delete it, then run again"
        )

    def _keep_alive(self) -> None:
        """Renewals during a long sweep; whether they come too late is seen at the next checkpoint."""
        while not self._released.wait(RENEWAL_SECONDS):
            with suppress(Exception):  # the store cannot be reached just now, or the lock is lost
                self.renew()

    def renew(self) -> None:
        with self._alone:
            if not self._released.is_set():
                self._renew()

    def _renew(self) -> None:
        self._renewals += 1
        try:
            self._tag = self._object.put(self._mark(), tag=self._tag)
        except _ConflictError:
            seen = self._object.look()
            owner = "its lock was removed" if seen is None else self._holder(seen)[0]
            if seen is None or owner != self.owner:
                raise BusyError(
                    f"output {self.output} was taken over by another run ({owner}): this one did not renew "
                    f"its lock for more than {LEASE_SECONDS} s, and ends here"
                ) from None
            self._tag = seen.tag  # the store did write it, though its answer was lost

    def release(self) -> None:
        with self._alone:
            if self._released.is_set() or self._tag is None:
                return
            self._released.set()
            try:
                self._object.remove(self._tag)
            except _ConflictError:
                pass  # it is another run's by now
            except Exception as error:
                log.warning("the lock %s could not be removed (%s): it expires by itself", self.url, error)
            self._tag = None


class _ConflictError(Exception):
    """The object is not, or no longer, the one that was looked at."""


class _Seen(NamedTuple):
    content: bytes
    tag: str
    """Changes with every write."""
    age: float
    """Seconds since it was written, by the clock of the store."""


class _Object:
    """A small object in any store that fsspec knows, which has no conditions: as good as can be."""

    conditional = False

    def __init__(self, filesystem: Any, path: str) -> None:
        self.filesystem, self.path = filesystem, path

    def look(self) -> _Seen | None:
        try:
            content = bytes(self.filesystem.cat_file(self.path))
            written = self.filesystem.modified(self.path)
        except FileNotFoundError:
            return None
        return _Seen(content, content.decode(errors="replace"), (self._now() - _utc(written)).total_seconds())

    def _now(self) -> datetime:
        """The time in the store: that of something written just now."""
        probe = f"{self.path}.{secrets.token_hex(6)}"
        self.filesystem.pipe_file(probe, b"")
        try:
            return _utc(self.filesystem.modified(probe))
        finally:
            self.filesystem.rm_file(probe)

    def put(self, content: bytes, *, tag: str | None) -> str:
        """Write it if it is still as the tag says (None: if there is none), and return its new tag."""
        self._compare(tag)
        self.filesystem.pipe_file(self.path, content)
        return content.decode()

    def remove(self, tag: str) -> None:
        """Remove it if it is still as the tag says."""
        self._compare(tag)
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(self.path)

    def _compare(self, tag: str | None) -> None:
        seen = self.look()
        if (None if seen is None else seen.tag) != tag:
            raise _ConflictError


class _S3Object(_Object):
    """An object in S3, which writes and removes it under conditions."""

    def __init__(self, filesystem: Any, path: str) -> None:
        super().__init__(filesystem, path)
        self.conditional = True
        bucket, key, _ = filesystem.split_path(path)
        self._place = {"Bucket": bucket, "Key": key}

    def look(self) -> _Seen | None:
        try:
            head = self.filesystem.call_s3("head_object", **self._place)
            content = bytes(self.filesystem.cat_file(self.path))
        except FileNotFoundError:
            return None
        answered = head["ResponseMetadata"]["HTTPHeaders"].get("date")
        now = parsedate_to_datetime(answered) if answered else self._now()
        return _Seen(content, str(head["ETag"]), (now - head["LastModified"]).total_seconds())

    def put(self, content: bytes, *, tag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        return str(self._call("put_object", tag, condition, Body=content)["ETag"])

    def remove(self, tag: str) -> None:
        with suppress(FileNotFoundError):
            self._call("delete_object", tag, {"IfMatch": tag})

    def _call(self, method: str, tag: str | None, condition: dict[str, str], **arguments: Any) -> Any:
        if self.conditional:
            try:
                return self.filesystem.call_s3(method, **self._place, **arguments, **condition)
            except OSError as error:
                status = _status(error)
                if status in (409, 412) or (tag is not None and isinstance(error, FileNotFoundError)):
                    raise _ConflictError from error
                if status != 501:
                    raise
                self.conditional = method != "put_object"  # deleting under conditions is younger than writing
        self._compare(tag)
        return self.filesystem.call_s3(method, **self._place, **arguments)


def _status(error: BaseException) -> int | None:
    """The HTTP status behind an error of s3fs."""
    response = getattr(error.__cause__, "response", None) or {}
    found = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return found if isinstance(found, int) else None


def _utc(when: datetime) -> datetime:
    return when if when.tzinfo else when.replace(tzinfo=UTC)
