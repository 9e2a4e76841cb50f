"""Run directories of one recipe, day by day: those whose path differs in nothing but its date.

Above the single run directory; below the step that follows an earlier run, retention and history.
"""

import logging
import re
from datetime import date
from pathlib import Path
from typing import Any

import fsspec

from cehm_dask.data.files import is_url
from cehm_dask.errors import StoreError
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.recipe_model import day_in

log = logging.getLogger("cehm_dask.pipeline.run")


def on_day(output: str, day: str) -> str:
    """The run directory of another day."""
    own = day_in(output)
    return output if own is None else output.replace(own, day)


def earlier_days(output: str) -> dict[str, dict[str, Any]]:
    """State of the run directories of earlier days, by day, the oldest first; what is no run directory is left out."""
    own = day_in(output)
    if own is None:
        return {}
    found = {}
    for day in sorted(_days(output, own)):
        if day < own and (state := state_of(on_day(output, day))) is not None:
            found[day] = state
    return found


def state_of(url: str) -> dict[str, Any] | None:
    """State of a run directory; None: it is none, or its state cannot be read, which is logged."""
    try:
        return Directory(url).read()
    except NotADirectoryError:
        return None
    except StoreError as error:
        log.warning("left out: %s", error)
        return None


def _days(output: str, own: str) -> set[str]:
    """Days of which there may be a run directory: by the names beside the part of the path that has the date."""
    before, _, rest = output.partition(own)
    folder, _, head = before.rpartition("/")
    wanted = re.compile(re.escape(head) + "([0-9]{4}-[0-9]{2}-[0-9]{2})" + re.escape(rest.partition("/")[0]))
    names = [path.rpartition("/")[2] for path in listed(folder or ("/" if before.startswith("/") else "."))]
    found = (match[1] for name in names if (match := wanted.fullmatch(name)))
    return {day for day in found if _is_day(day)}


def listed(folder: str) -> list[str]:
    """What a folder holds, in order; empty where there is none."""
    if not is_url(folder):
        return sorted(map(str, Path(folder).iterdir())) if Path(folder).is_dir() else []
    filesystem, path = fsspec.core.url_to_fs(folder)
    filesystem.invalidate_cache()
    if not filesystem.isdir(path):
        return []
    return sorted(filesystem.unstrip_protocol(name).rstrip("/") for name in filesystem.ls(path, detail=False))


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_finished(state: dict[str, Any]) -> bool:
    """Whether every step of a run is done, the last too."""
    steps = state["steps"]
    return "report" in steps and all(note["state"] == "done" for note in steps.values())
