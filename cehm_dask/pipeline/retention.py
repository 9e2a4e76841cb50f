"""Old run directories of a recipe, removed once there are more than it keeps.

Below the run, which calls it at its end. Only what is known to be this program's is removed: a directory with a
run.json that can be read, on a path that differs from the recipe's output in its date alone, with nothing in it that no
run puts there. The run that is followed stays.
"""

import logging
import os
from pathlib import Path

from cehm_dask.data.files import TEMPORARY, entries, is_url, remove
from cehm_dask.data.locks import Lock
from cehm_dask.errors import BusyError
from cehm_dask.pipeline import heartbeat
from cehm_dask.pipeline.days import earlier_days, is_finished, on_day
from cehm_dask.pipeline.directory import STATE, Directory
from cehm_dask.pipeline.outputs import OUTPUTS

log = logging.getLogger("cehm_dask.pipeline.run")

REMOVED = "removed"
"""Name of the note in run.json of a directory that is being removed."""

OWN = {"recipe.yaml", "run.log", "cluster.yaml", "job.json", "job.log", "job.sh", "logs", heartbeat.NAME}
"""What runs and submissions put into a run directory, beside the outputs of its steps."""


def remove_old(output: str, keep: int, followed: str | None) -> list[str]:
    """Remove the oldest finished run directories of earlier days beyond so many, this one counted.

    Parameters
    ----------
    output : str
        The run directory of the day.
    keep : int
    followed : str or None
        The run directory that stays.

    Returns
    -------
    list of str
        Days whose run directories are gone.
    """
    states = earlier_days(output)
    finished = [day for day, state in states.items() if is_finished(state)]
    beyond = set(finished[: max(0, len(finished) + 1 - keep)])
    beyond |= {day for day, state in states.items() if state.get(REMOVED)}  # interrupted while it was removed
    gone = []
    for day in sorted(day for day in beyond if on_day(output, day) != followed):
        try:
            if _remove(on_day(output, day)):
                gone.append(day)
        except OSError as error:  # the run is done whatever becomes of old ones; the next one tries again
            log.warning("keep: %s could not be removed (%s)", on_day(output, day), error)
    return gone


def _remove(url: str) -> bool:
    """Remove a run directory; its run.json last, so that what is left of an interrupted removal is still known."""
    lock = Lock(url)
    try:
        lock.take()
    except BusyError as error:
        log.warning("keep: %s", error)
        return False
    try:
        state = Directory(url).read()
        if state is None or not (is_finished(state) or state.get(REMOVED)):
            return False  # another run began it anew
        own = {STATE, *OWN, *state.get(REMOVED, [])}
        own |= {name for note in state["steps"].values() for name in note.get(OUTPUTS, {})}
        there = {os.path.basename(entry.rstrip("/")): entry for entry in entries(url)}
        if why := _foreign(url, sorted(there), own):
            log.warning("keep: %s stays, because %s", url, why)
            return False
        Directory(url).write({"steps": {}, REMOVED: sorted(own)})
        for name, entry in there.items():
            if name != STATE:
                remove(entry)
        if not is_url(url):
            for leftover in Path(url).glob(f"{TEMPORARY}*"):  # of a run that was killed
                remove(str(leftover))
        remove(f"{url}/{STATE}")
    finally:
        lock.release()  # takes the empty folder along
    log.info("keep: %s is removed, because the recipe keeps fewer runs", url)
    return True


def _foreign(url: str, names: list[str], own: set[str]) -> str | None:
    """Why a directory is not to be removed; None: all in it is this program's."""
    if not is_url(url):
        if Path(url).is_symlink():
            return "it is a link"
        if links := [name for name in names if Path(url, name).is_symlink()]:
            return f"{links[0]} in it is a link"
    others = [name for name in names if name not in own]
    return f"it holds {others[0]}, which no run wrote" if others else None
