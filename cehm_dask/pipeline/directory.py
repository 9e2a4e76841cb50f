"""A run directory: its names, state, lock and log.

Below the run, which fills it, and the submission, which prepares one for a job. It is known by its run.json; a folder
that is no run directory is never touched.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cehm_dask.data.files import HALF, TEMPORARY, entries, is_url, read_whole, write_whole
from cehm_dask.data.locks import Lock
from cehm_dask.data.seals import is_broken, with_seal
from cehm_dask.errors import StoreError
from cehm_dask.masking import masked

STATE = "run.json"
FORMAT = "cehm run"
VERSION = 2


@dataclass(frozen=True)
class Directory:
    """A run directory: names, state, lock and log."""

    url: str

    def path(self, name: str) -> str:
        return f"{self.url}/{name}"

    def check(self) -> None:
        """Refuse a folder that is somebody else's, before anything is written."""
        if Path(self.url).is_file():
            raise StoreError(f"output {self.url} is a file: choose another name for the run directory")
        if self.read() is None and entries(self.url):
            raise StoreError(
                f"output {self.url} holds other things and is no run directory (it has no {STATE}): "
                "choose another name, or an empty folder"
            )

    def read(self) -> dict[str, Any] | None:
        """The state of the run that is there."""
        content = read_whole(self.path(STATE))
        if content is None:
            return None
        try:
            state = json.loads(content)
            found = state["format"], state["version"]
            if found != (FORMAT, VERSION):
                raise StoreError(
                    f"{self.path(STATE)} is {found[0]!r}, version {found[1]}; expected {FORMAT!r}, version {VERSION}: "
                    "choose another output"
                )
            for note in state["steps"].values():
                note["state"], note["seconds"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"{self.path(STATE)} is damaged ({error}): remove the run directory") from error
        if is_broken(state):
            raise StoreError(
                f"{self.path(STATE)} is damaged (its digest is wrong): restore it, or remove the run directory"
            )
        return dict(state)

    def write(self, state: dict[str, Any]) -> None:
        sealed = with_seal({"format": FORMAT, "version": VERSION, **state})
        write_whole(self.path(STATE), json.dumps(sealed, indent=1).encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer: a second run of the same directory is refused."""
        lock = Lock(self.url)
        lock.take()
        try:
            if not is_url(self.url):
                for leftover in Path(self.url).glob(f"{TEMPORARY}*{HALF}"):  # of a run that was killed; now nobody's
                    leftover.unlink()
            yield
        finally:
            lock.release()

    @contextmanager
    def logged(self) -> Iterator[None]:
        """What the package logs goes to run.log too."""
        handler = _LogFile(self.path("run.log"))
        package = logging.getLogger("cehm_dask")
        before = package.level
        package.addHandler(handler)
        package.setLevel(min(before or logging.INFO, logging.INFO))
        try:
            yield
        finally:
            package.removeHandler(handler)
            package.setLevel(before)
            handler.close()


class _LogFile(logging.Handler):
    """run.log, masked; in an object store it is put there when the run ends."""

    def __init__(self, url: str) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        self._url = url
        self._remote = is_url(url)
        self._lines: list[str] = [(read_whole(url) or b"").decode()] if self._remote else []

    def emit(self, record: logging.LogRecord) -> None:
        line = masked(self.format(record)) + "\n"
        if self._remote:
            self._lines.append(line)
            return
        with (
            suppress(OSError),
            open(self._url, "a", encoding="utf-8") as file,
        ):  # a full disk stops the run, not its log
            file.write(line)

    def close(self) -> None:
        if self._remote:
            write_whole(self._url, "".join(self._lines).encode())
        super().close()
