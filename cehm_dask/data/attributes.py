"""What a store says of itself: format, version, facts and digests, in the attributes of its root, under one key.

Above the files, below the arrays. A store counts as whole only once its attributes say so, and those are written last.
They carry a digest of themselves, and the digests of all other files of the store, so that a changed, swapped or
missing file is noticed; the attributes of two stores are never the same, so that a reader notices when one takes the
place of the other. Only what has such attributes is ever replaced or removed.
"""

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cehm_dask.data.files import entries, is_url, read_whole, remove, write_whole
from cehm_dask.data.replacement import recover
from cehm_dask.data.seals import is_broken, seal_of, with_seal
from cehm_dask.errors import ReplacedError, StoreError

VERSION = 1
KEY = "cehm"
ROOT = "zarr.json"
FORMATS = ("ensemble", "consensus", "model", "prediction")

FILES = "files"
"""Name of the digests of the files of a store, by their path in it."""

LOOK_SECONDS = 2.0
"""How often the attributes of a store in an object store are read again while its blocks are; on a local disk, a look
at the file is cheap and made after every block."""

REMEDIES = {
    "ensemble": "import labels with 'cehm import'",
    "consensus": "make one with 'cehm consensus'",
    "model": "make one with ClusterEnsemble.save",
}


class Facts(dict[str, Any]):
    """The attributes of a store; one that is asked for and absent is an error that names the store."""

    def __init__(self, facts: Mapping[str, Any], url: str) -> None:
        super().__init__(facts)
        self.url = url

    def __missing__(self, name: str) -> Any:
        raise StoreError(f"store {self.url}: has no attribute {name!r}; create the store again")

    def __reduce__(self) -> Any:
        return Facts, (dict(self), self.url)


def require(url: str, facts: Mapping[str, Any], types: Mapping[str, type | tuple[type, ...]]) -> None:
    """Refuse attributes that have another type than this program writes."""
    for name, kinds in types.items():
        if name in facts and (
            not isinstance(facts[name], kinds) or (isinstance(facts[name], bool) and kinds is not bool)
        ):
            raise StoreError(
                f"store {url}: attribute {name!r} is {str(facts[name])[:60]!r}, of type {type(facts[name]).__name__}: "
                "edited or damaged; create the store again"
            )


def place_in(url: str, *names: str) -> str:
    """Path or URL of something inside a store."""
    return "/".join([url.rstrip("/"), *names])


def _root(url: str) -> dict[str, Any] | None:
    """The metadata of what is at a place; None if it is no Zarr data."""
    try:
        content = read_whole(place_in(url, ROOT))
        if content is None and recover(url):
            content = read_whole(place_in(url, ROOT))
    except (NotADirectoryError, IsADirectoryError):
        return None
    if content is None:
        return None
    try:
        root = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"store {url}: zarr.json is damaged ({error}); restore it or create the store again"
        ) from error
    return root if isinstance(root, dict) else {}


def _own(url: str, *, check: bool = True) -> dict[str, Any] | None:
    """The attributes of a store of this program, whose digest is right; None if there is something else."""
    root = _root(url)
    if root is None:
        raise StoreError(f"store {url}: not found")
    if root.get("node_type") == "array":
        raise StoreError(f"store {url}: a plain Zarr array; import its labels with 'cehm import'")
    attributes = root.get("attributes")
    facts = attributes.get(KEY) if isinstance(attributes, dict) else None
    if not isinstance(facts, dict) or facts.get("format") not in FORMATS:
        return None
    if check and is_broken(facts):
        raise StoreError(f"store {url}: the attributes in zarr.json are damaged; restore it or create the store again")
    return facts


def read_facts(url: str) -> Facts:
    """The attributes of an ensemble or consensus store, finished or not."""
    facts = _own(url)
    if facts is None or facts["format"] not in ("ensemble", "consensus"):
        raise StoreError(f"store {url}: neither an ensemble nor a consensus store")
    return Facts(facts, url)


def any_facts(url: str) -> Facts:
    """The attributes of any store of this program, finished or not."""
    facts = _own(url)
    if facts is None:
        raise StoreError(f"store {url}: not one that this program wrote")
    return Facts(facts, url)


def format_of(url: str) -> str:
    """What a store of this program holds: one of FORMATS."""
    return str(any_facts(url)["format"])


def whole_facts(url: str, kind: str) -> Facts:
    """The attributes of a whole store of the right kind and version, or an error that says what to do."""
    facts = _own(url)
    if facts is None or facts["format"] != kind:
        found = "another kind of Zarr data" if facts is None else facts["format"]
        raise StoreError(f"store {url}: holds {found}, expected {kind}; {REMEDIES.get(kind, 'give another')}")
    if facts.get("version") != VERSION:
        raise StoreError(
            f"store {url}: version {facts.get('version')}, this program reads version {VERSION}; create it again"
        )
    if facts.get("complete") is not True:
        raise StoreError(f"store {url}: half-written; start the command that made it again to finish it")
    require(url, facts, {FILES: dict})
    return Facts(facts, url)


def write_facts(url: str, facts: Mapping[str, Any]) -> None:
    """Write the attributes of a store, whole or not at all."""
    root = {"zarr_format": 3, "node_type": "group", "attributes": {KEY: with_seal(facts)}}
    write_whole(place_in(url, ROOT), json.dumps(root, indent=1).encode())


def new_facts(kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that a store starts with; no other store has the same."""
    return {"format": kind, "version": VERSION, **facts, "generation": uuid.uuid4().hex, "complete": False}


def start_anew(url: str, facts: Mapping[str, Any]) -> None:
    """A store with nothing but the facts, and the lock that is held on it.

    In this order, whenever it is interrupted, what is left is never taken for a whole store or another run's state.
    """
    if not is_url(url):
        Path(url).mkdir(parents=True, exist_ok=True)
    write_facts(url, facts)
    for entry in entries(url):
        if not entry.endswith(f"/{ROOT}"):
            remove(entry)


# --- whose it is ---------------------------------------------------------------------------------------------------


def kind_of(url: str) -> str | None:
    """What is at a place: one of FORMATS, "other", or None for nothing (or an empty folder)."""
    if (found := _marks(url)) is not None:
        return str(found["format"])
    return "other" if entries(url) or Path(url).is_file() else None


def is_whole(url: str) -> bool:
    """Whether there is a store of this program that readers may have open."""
    found = _marks(url)
    return found is not None and found.get("complete") is True


def _marks(url: str) -> dict[str, Any] | None:
    """The attributes of what this program wrote, damaged or not."""
    try:
        return _own(url, check=False)
    except StoreError:
        return None


def refuse_foreign(url: str, kind: str) -> None:
    """An error if there is anything at a place that is no store of that kind: not even a lock may go there.

    The one gate before anything is replaced or removed; with it, "overwrite" means stores of the same kind only.
    """
    if kind_of(url) not in (None, kind):
        raise StoreError(f"{url} exists and is no {kind} store: choose another name, or remove it first")


# --- held ----------------------------------------------------------------------------------------------------------


class Held:
    """Checks for a reader whether a store is still the one it opened."""

    def __init__(self, url: str, seal: str) -> None:
        self.url, self.seal = url, seal
        self._stamp: Sequence[int] | None = None
        self._looked = -LOOK_SECONDS

    def glance(self) -> None:
        """An error if the store has been replaced; cheap enough for every block.

        To be called after a block was read: what was read before the store was replaced is of the one that was opened.
        """
        if is_url(self.url):
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self.confirm()
        elif self._stamp is None or self._stamp != self._stamp_now():
            self.confirm()

    def confirm(self) -> None:
        """An error if the store has been replaced; reads the attributes again."""
        stamp = None if is_url(self.url) else self._stamp_now()
        try:
            facts = _own(self.url)
        except StoreError:
            if _root(self.url) is not None:
                raise
            facts = None
        if facts is None or seal_of(facts) != self.seal:
            raise ReplacedError(f"store {self.url} was replaced while it was being read; run again")
        self._stamp, self._looked = stamp, time.monotonic()

    def _stamp_now(self) -> Sequence[int] | None:
        """Changes when another file takes the place of the store's attributes."""
        try:
            found = os.stat(place_in(self.url, ROOT))
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
