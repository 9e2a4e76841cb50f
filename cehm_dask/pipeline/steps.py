"""The steps of a run, whatever they do: each is done, skipped, resumed or recomputed, and noted in the run directory.

Below the run, which says what each step makes. A step has a fingerprint of all that its result depends on; run.json
has the fingerprint, the state, the seconds and the outputs of every step.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from cehm_dask.data.attributes import read_facts
from cehm_dask.data.files import exists, remove
from cehm_dask.errors import StoreError
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.outputs import OUTPUTS, fault_of, is_fresh, record_of
from cehm_dask.pipeline.result import RunProgress
from cehm_dask.results.matching import MATCHING

log = logging.getLogger("cehm_dask.pipeline.run")
"""The run's own: in run.log, its lines and those of its steps have one name."""


def mark_of(settings: Any) -> str:
    """Fingerprint of all that the result of a step depends on."""
    return hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16).hexdigest()


class Steps:
    """Does the steps of one run that are not done, and notes what became of each."""

    def __init__(self, directory: Directory, progress: RunProgress) -> None:
        self.directory, self.progress = directory, progress
        self.state: dict[str, Any] = {"steps": {}}
        self.became: dict[str, str] = {}

    def _path(self, name: str) -> str:
        return self.directory.path(name)

    def _do(
        self,
        step: str,
        settings: Any,
        output: str,
        make: Callable[[bool], Any],
        what: str,
    ) -> None:
        """Do a step unless it is done.

        Parameters
        ----------
        step : str
        settings : plain values
            All that the result depends on.
        output : str
            Name of what it writes into the run directory.
        make : callable (bool)
            Makes it; its argument says whether an unfinished output of the same settings is there.
        what : str
            For people.
        """
        wanted = mark_of(settings)
        before = self.state["steps"].get(step, {})
        same = before.get("fingerprint") == wanted
        fault = self._fault(before, output) if same else None
        if same and fault is None:
            if before["state"] != "done" or not is_fresh(self._path(output), before.get(OUTPUTS, {}).get(output)):
                # Cut off between the last byte and the note of it, noted by an earlier version, or moved since.
                self._note(step, wanted, "done", before.get("seconds", 0.0), output)
            self.became[step] = "skipped"
            self._log(step, "done before, with the same settings and data")
            self.progress.left_out(step, "done before")
            return
        if before and not same:
            self._log(
                step,
                "settings or data have changed, so it is recomputed; what was there is removed, "
                "because the run directory is this recipe's",
            )
            self._clear(step)
        elif same and before["state"] == "done":
            self._log(step, f"recomputed, because {fault}")
            self._clear(step)
            before, same = {}, False
        elif same:
            self._log(step, f"resumes where it stopped ({before['state']})")
            if not output.endswith(".zarr"):  # only stores can be resumed
                remove(self._path(output))
        self._log(step, f"begins, {what}")
        self.progress.begins(step, what)
        began = perf_counter()
        spent = before.get("seconds", 0.0) if same else 0.0
        self._note(step, wanted, "running", spent)
        try:
            make(same)
        except BaseException as error:
            state = "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
            self._log(step, f"{state} ({error or type(error).__name__})")
            with suppress(OSError):  # where the disk is full, the step stays "running" and is resumed all the same
                self._note(step, wanted, state, spent + perf_counter() - began)
            raise
        seconds = perf_counter() - began
        self._note(step, wanted, "done", spent + seconds, output)
        self.became[step] = "done"
        self._log(step, f"done in {seconds:.2f} s")
        self.progress.ended(step, seconds)

    def _log(self, step: str, text: str) -> None:
        log.info("%s: %s", step, text, extra={"step": step})

    def _note(self, step: str, wanted: str | None, state: str, seconds: float, output: str | None = None) -> None:
        note: dict[str, Any] = {"fingerprint": wanted, "state": state, "seconds": round(seconds, 3)}
        if output is not None:
            note[OUTPUTS] = {output: record_of(self._path(output))}
        self.state["steps"][step] = note
        self.directory.write(self.state)

    def _fault(self, before: dict[str, Any], output: str) -> str | None:
        """Why a step must be done or resumed although its settings are the same; None: its output is there."""
        url = self._path(output)
        if OUTPUTS in before:
            record = before[OUTPUTS].get(output)
            return f"{url} was not written" if record is None else fault_of(url, record)
        if output.endswith(".zarr"):
            return None if complete(url) else f"{url} is missing or not whole"
        # Without a record, a file counts only if an earlier version noted it as done.
        return None if before["state"] == "done" and exists(url) else f"{url} is missing or not whole"

    def _clear(self, step: str) -> None:
        """Remove what a step made; noted first, so that a remainder is never taken for the whole."""
        if step not in self.state["steps"]:
            return
        self._note(step, None, "being removed", 0.0)
        made = {
            "ensemble": ["ensemble.zarr"],
            "consensus": ["consensus.zarr"],
            "match": [MATCHING],
            "profile": ["profiles.json"],
            "evaluate": ["scores.json"],
            "export": ["labels.parquet", "labels.csv"],
            "report": ["report.html"],
        }
        for name in made[step]:
            remove(self._path(name))
        del self.state["steps"][step]
        self.directory.write(self.state)

    def _no_use(self, step: str, why: str) -> None:
        self._clear(step)
        self.became[step] = "none"
        self._log(step, why)
        self.progress.left_out(step, why)


def complete(url: str) -> bool:
    """Whether a store is there and whole."""
    try:
        return bool(read_facts(url).get("complete"))
    except StoreError:
        return False
