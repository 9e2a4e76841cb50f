"""The files and stores that the steps of a run wrote, by size and digest.

Below the run: a step is done only while its outputs are still what it wrote, whatever lies under their names.
"""

import hashlib
import json
from typing import Any

import fsspec

from cehm_dask.data.attributes import any_facts
from cehm_dask.data.files import exists, fingerprint, read_whole
from cehm_dask.data.seals import seal_of
from cehm_dask.data.verification import verify_store
from cehm_dask.errors import NotFoundError, StoreError
from cehm_dask.profiles.profile import Profile
from cehm_dask.progress import Count
from cehm_dask.results.matching import MATCHING

SMALL_BYTES = 64 << 20
"""Files up to this size are read and compared each time. Larger ones, and stores, are taken for unchanged while their
size and time of change are: reading a table of 10⁸ rows each time would take longer than all else a run does that has
nothing to do. ``cehm verify`` reads everything."""

OUTPUTS = "outputs"
"""Name of the records of what a step wrote, in the note of the step."""

_STEP = 1 << 20


def record_of(url: str) -> dict[str, Any]:
    """What an output is, to be compared later."""
    if _is_store(url):
        return {"store": seal_of(any_facts(url)), "stamp": fingerprint(url)}
    return {"size": _size(url), "digest": _digest(url), "stamp": fingerprint(url)}


def is_fresh(url: str, record: dict[str, Any] | None) -> bool:
    """Whether an output has the size and time of change of its record."""
    return record is not None and fingerprint(url) == record["stamp"]


def fault_of(url: str, record: dict[str, Any], *, thorough: bool = False, count: Count | None = None) -> str | None:
    """How an output differs from its record, in words; None if it does not. ``thorough``: read all of it."""
    if not exists(url):
        return f"{url} is missing"
    if _is_store(url) != ("store" in record):
        return f"{url} is not what was written"
    if "store" in record:
        return _store_fault(url, record, thorough, count)
    if _size(url) != record["size"]:
        return f"{url} has {_size(url)} bytes, {record['size']} were written"
    if record["size"] > SMALL_BYTES and not thorough and is_fresh(url, record):
        return None
    if count is not None:
        count.add(record["size"])
    return None if _digest(url) == record["digest"] else f"{url} is not what was written"


def read_profile(url: str, state: dict[str, Any]) -> Profile:
    """Who the clusters of a run directory are, as its step wrote it."""
    found = _read(url, state, "profile", "profiles.json")
    if found is None:
        raise NotFoundError(f"{url} has no profiles.json: it ended before, or is of an earlier version; run it again")
    return Profile.from_dict(found)


def read_matching(url: str, state: dict[str, Any]) -> dict[str, Any] | None:
    """What a run directory keeps of the run that it follows, names of its clusters among it; None: it follows none."""
    return _read(url, state, "match", MATCHING)


def _read(url: str, state: dict[str, Any], step: str, name: str) -> dict[str, Any] | None:
    """What a step wrote as JSON; None: it did not."""
    record = state["steps"].get(step, {}).get(OUTPUTS, {}).get(name)
    if record is None:
        return None
    if fault := fault_of(f"{url}/{name}", record):
        raise StoreError(f"{fault}: run it again")
    return dict(json.loads(read_whole(f"{url}/{name}") or b"{}"))


def _store_fault(url: str, record: dict[str, Any], thorough: bool, count: Count | None) -> str | None:
    try:
        facts = any_facts(url)
    except StoreError as error:
        return str(error)
    if facts.get("complete") is not True or seal_of(facts) != record["store"]:
        return f"{url} is not the store that was written"
    if not thorough and is_fresh(url, record):
        return None
    # Some file is newer: moved with the folder, or changed.
    faults = verify_store(url, count).faults
    return None if not faults else faults[0] if len(faults) == 1 else f"{faults[0]} (and {len(faults) - 1} more)"


def _is_store(url: str) -> bool:
    return url.endswith(".zarr")


def _size(url: str) -> int:
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.invalidate_cache()
    return int(filesystem.size(path))


def _digest(url: str) -> str:
    """Of a file, a step at a time."""
    found = hashlib.blake2b(digest_size=16)
    with fsspec.open(url, "rb") as file:
        while step := file.read(_STEP):
            found.update(step)
    return found.hexdigest()


def verify_outputs(url: str, state: dict[str, Any], count: Count) -> tuple[list[str], str]:
    """What in a run directory is not what its steps wrote, a sentence each, and a line for people."""
    notes = [{OUTPUTS: state.get("recipe", {})}, *state["steps"].values()]
    records = {name: record for note in notes for name, record in note.get(OUTPUTS, {}).items()}
    found = [fault_of(f"{url}/{name}", record, thorough=True, count=count) for name, record in records.items()]
    faults = [fault for fault in found if fault is not None]
    if faults:
        return faults, f"{url}: {len(faults)} of {len(records)} outputs are not what was written"
    if not records:
        return [], f"{url}: no digests recorded (no step is done, or an earlier version did them)"
    return [], f"{url}: {', '.join(records)} are what was written"
