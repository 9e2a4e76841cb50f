"""A recipe → one run directory: ensemble, consensus, names, profiles, scores, labels, report.

Above the method and the stores, below the command and the schedulers, which all come through here. Each step has a
fingerprint of all that its result depends on. What is done and unchanged is not done again, what is half done is
resumed, what was made with other settings is recomputed, and everything after it. A run directory is known by its
run.json and has one writer at a time; a folder that is no run directory is never touched.
"""

import datetime
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import yaml

from cehm_dask import __version__
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.files import absolute, fingerprint, is_url, read_whole, upload, write_whole
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.transformer import warn_of_tails
from cehm_dask.errors import InputError, StoreError, exit_code_of, sentence_of
from cehm_dask.job import Where, find_consensus, machine_of, seed_of
from cehm_dask.machine import this_machine
from cehm_dask.masking import mask_error, masked
from cehm_dask.members.generate import generate
from cehm_dask.method.warm import warm_from
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.expectations import check_expected
from cehm_dask.pipeline.following import Following
from cehm_dask.pipeline.hooks import call
from cehm_dask.pipeline.inputs import (
    budget_for,
    is_ensemble,
    left_out,
    members_of,
    open_features,
    open_truth,
    require_import,
    row_ids,
    shape_of,
)
from cehm_dask.pipeline.outputs import read_profile, record_of
from cehm_dask.pipeline.recipe_model import Recipe, day_in
from cehm_dask.pipeline.result import Result, RunProgress
from cehm_dask.pipeline.retention import remove_old
from cehm_dask.pipeline.steps import complete, mark_of
from cehm_dask.profiles.sweep import require_profiles
from cehm_dask.report import write_report
from cehm_dask.report.picture import require_picture
from cehm_dask.results import export
from cehm_dask.results.matching import NamedLabels
from cehm_dask.results.scoring import evaluate
from cehm_dask.wording import speaking

log = logging.getLogger(__name__)

STEPS = ("ensemble", "consensus", "match", "profile", "evaluate", "export", "report")


def run(
    recipe: Recipe,
    *,
    date: datetime.date | None = None,
    cluster: str | None = None,
    until: str = STEPS[-1],
    overwrite: bool = False,
    progress: RunProgress | None = None,
) -> Result:
    """Run a recipe; steps that are done are skipped.

    Parameters
    ----------
    recipe : Recipe
    date : date, optional
        The value of ``{date}`` in paths; default: today.
    cluster : str, optional
        A cluster config or address, in place of the recipe's.
    until : str
        The last of STEPS that is done.
    overwrite : bool
        Start from the beginning.
    progress : RunProgress, optional
    """
    if until not in STEPS:
        raise InputError(f"until={until!r}: expected one of {', '.join(STEPS)}")
    recipe = recipe.on((date or datetime.date.today()).isoformat())
    directory = Directory(absolute(recipe.output).rstrip("/"))
    directory.check()
    try:
        with speaking("recipe"), directory.locked(), directory.logged(), ExitStack() as stack:
            job = _Run(recipe, directory, cluster or recipe.cluster, progress or RunProgress(), stack)
            try:
                result = job.go(until, overwrite)
            except BaseException as error:
                job.call_hook("failure", error, [])
                raise
            job.end(result)
            return result
    except Exception as error:
        mask_error(error)
        raise


class _Run(Following):
    """One run: its steps in order."""

    until = STEPS[-1]

    def go(self, until: str, overwrite: bool) -> Result:
        begin, self.until = perf_counter(), until
        self.state = self.directory.read() or self.state
        if overwrite and self.state["steps"]:
            log.info("asked to start again: everything in %s is recomputed", self.directory.url)
            for step in STEPS:
                self._clear(step)
        self.state["cehm_dask"] = __version__
        self.directory.write(self.state)
        self._check_expected()
        self._write_recipe()
        if STEPS.index(until) >= STEPS.index("match"):
            self.require_followed()
        for step in STEPS[: STEPS.index(until) + 1]:
            getattr(self, f"_{step}")()
        if all(became != "done" for became in self.became.values()):
            log.info("nothing to do: everything was done before, with the same settings and data")
        facts = open_consensus(self._path("consensus.zarr")).facts if "consensus" in self.became else {}
        found = self.matching or {}
        for alert in found.get("alerts", []):
            log.warning("alert: %s", alert)
        return Result(self.directory.url, self.became, perf_counter() - begin, facts, self._scores(), found)

    def end(self, result: Result) -> None:
        """What comes after a whole run: old runs are removed, the hook is called."""
        if self.until != STEPS[-1]:
            return
        if self.recipe.keep is not None:
            remove_old(self.directory.url, self.recipe.keep, self.follows)
        if "done" in result.steps.values():
            self.call_hook("success", None, result.alerts)

    def call_hook(self, name: Literal["success", "failure"], error: BaseException | None, alerts: list[str]) -> None:
        """Call the command that the recipe has for this end of a run, if it has one."""
        command = self.recipe.hooks and getattr(self.recipe.hooks, name)
        if not command:
            return
        told = {
            "CEHM_RUN": self.directory.url,
            "CEHM_STATUS": name,
            "CEHM_DATE": day_in(self.directory.url) or "",
            "CEHM_EXIT_CODE": str(exit_code_of(error) if error is not None else 0),
            "CEHM_MESSAGE": masked(sentence_of(error)) if error is not None else "",
            "CEHM_ALERTS": "\n".join(alerts),
        }
        call(name, command, told)

    def _check_expected(self) -> None:
        """Refuse an input that is not as expected; one that was looked at before, and has not changed, is."""
        expect, path = self.recipe.expect, self.recipe.source.path
        if expect is None:
            return
        looked_at = mark_of([expect.model_dump(), path and fingerprint(path), self.recipe.source.model_dump()])
        if self.state.get("expected") != looked_at:
            check_expected(self.recipe)
            self.state["expected"] = looked_at

    @contextmanager
    def _file(self, name: str) -> Iterator[Path]:
        """Where to write a file of the run directory; one in an object store is put there once it is whole."""
        if not is_url(self.directory.url):
            yield Path(self._path(name))
            return
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder, name)
            upload(Path(folder, name), self._path(name))

    def _write_recipe(self) -> None:
        text = yaml.safe_dump(self.recipe.written(), sort_keys=False, allow_unicode=True)
        write_whole(self._path("recipe.yaml"), f"# As run by cehm {__version__}\n{text}".encode())
        self.state["recipe"] = {"recipe.yaml": record_of(self._path("recipe.yaml"))}
        self.directory.write(self.state)

    # --- ensemble ----------------------------------------------------------------------------------------------

    @cached_property
    def ensemble_url(self) -> str:
        """Made in the run directory, or the user's own where it lies."""
        labels = self.recipe.labels
        return labels.path if labels is not None and is_ensemble(labels.path) else self._path("ensemble.zarr")

    def _ensemble(self) -> None:
        recipe = self.recipe
        if self.ensemble_url != self._path("ensemble.zarr"):
            open_ensemble(self.ensemble_url)  # or say what is wrong with it
            self._no_use("ensemble", "your own, used in place")
            return
        source = recipe.source
        of = source.model_dump() | {
            "path": source.path and fingerprint(source.path),
            "leave_out": left_out(self.recipe),
        }
        settings: list[Any] = [of]
        if recipe.features is not None:
            settings += [recipe.scale, recipe.ensemble.model_dump(), recipe.consensus.k]
        make, what = (
            (self._generate, f"{recipe.ensemble.members} base clusterings")
            if recipe.labels is None
            else (partial(self._import, recipe.labels.path), "base labels are read")
        )
        self._do("ensemble", settings, "ensemble.zarr", make, what)

    def _generate(self, resume: bool) -> None:
        recipe, wanted = self.recipe, self.recipe.ensemble
        features = open_features(recipe)
        plans = members_of(recipe, features.n_samples)
        machine = machine_of(Where(memory=recipe.memory, client=self.client))
        # What the consensus, the profiles or the report could not hold is refused before hours go into the members.
        budget_for(recipe, shape_of(features.n_samples, [plan.k + 1 for plan in plans]), machine)
        k = max(recipe.consensus.ks(features.n_samples))
        require_profiles(features.n_samples, features.n_features, 0, k, this_machine(recipe.memory))
        if self.until == "report":
            require_picture(features, this_machine(recipe.memory))

        def make(overwrite: bool) -> None:
            generate(
                features,
                self._path("ensemble.zarr"),
                plans,
                wanted.seed,
                overwrite=overwrite,
                memory=recipe.memory,
                client=self.client or False,
                progress=self.progress,
                scale=recipe.scale,
                impute=recipe.features.impute if recipe.features else None,
                fit_rows=wanted.fit_rows,
                full_lloyd=wanted.full_lloyd,
            )

        try:
            make(overwrite=not resume)
        except StoreError:
            # Interrupted before it recorded what it is made of, or begun with other features: it cannot be resumed.
            if not resume or complete(self._path("ensemble.zarr")):
                raise
            self._log("ensemble", "the unfinished ensemble cannot be continued; it is recomputed")
            make(overwrite=True)

    def _import(self, path: str, _resume: bool) -> None:
        url = self._path("ensemble.zarr")
        left = left_out(self.recipe)
        require_import(path, left, this_machine(self.recipe.memory))
        ingest(path, url, overwrite=True, leave_out=left, progress=self.progress)

    # --- consensus ---------------------------------------------------------------------------------------------

    def _consensus(self) -> None:
        wanted = self.recipe.consensus
        ensemble = open_ensemble(self.ensemble_url)
        url = self._path("consensus.zarr")
        named = "auto" if wanted.k == "auto" else ", ".join(map(str, wanted.k))
        what = f"{ensemble.n_samples:,} samples, {len(ensemble.widths)} members, k = {named}"

        def make(_resume: bool) -> None:
            auto, labels = wanted.k == "auto", as_labels(self.ensemble_url)
            ks = () if wanted.k == "auto" else tuple(wanted.k)
            params, seed = wanted.params(2 if auto else ks[0]), seed_of(wanted.seed)
            how: dict[str, Any] = {"ks": ks, "auto": auto}
            if wanted.grow_from is not None:
                warm = warm_from(open_consensus(wanted.grow_from), labels)
                params, seed, how = warm.params_for(params, ks, auto), warm.seed, {"warm": warm}
            where = Where(memory=self.recipe.memory, client=self.client, output=url)
            outcome = find_consensus(labels, params, seed, where, progress=self.progress, **how)
            if self.recipe.features is not None:
                warn_of_tails(outcome.sizes, self.recipe.scale)

        # Without keys that are not given: what was done before there were any stays done.
        later = {name for name in ("grow_from", "weights") if getattr(wanted, name) is None}
        settings = [ensemble.fingerprint, wanted.model_dump(exclude={"grow_from", *later})]
        settings += [] if wanted.grow_from is None else [fingerprint(wanted.grow_from)]
        self._do("consensus", settings, "consensus.zarr", make, what)

    # --- what is made of it ------------------------------------------------------------------------------------

    @property
    def _consensus_mark(self) -> str:
        return str(self.state["steps"]["consensus"]["fingerprint"])

    @cached_property
    def _truth_mark(self) -> Any:
        """What scores depend on, beside the consensus."""
        truth = self.recipe.truth
        if truth is None:
            return None
        path = truth.path or self.recipe.source.path
        return [truth.column, path and fingerprint(path)]

    def _profile(self) -> None:
        def make(_resume: bool) -> None:
            found = self._described()
            if (names := self.names) is not None:
                found = found.renamed(names)
            write_whole(self._path("profiles.json"), json.dumps(found.to_dict()).encode())

        by = self.recipe.profile or ("their features" if self.recipe.features else "size and confidence alone")
        what = f"clusters described by {by}"
        settings = self._with_names([self._consensus_mark, self._described_by])
        self._do("profile", settings, "profiles.json", make, what)

    def _evaluate(self) -> None:
        path = self._path("scores.json")
        truth = self.recipe.truth

        def make(_resume: bool) -> None:
            scores = evaluate(
                self._path("consensus.zarr"),
                open_truth(self.recipe),
                column=truth.column if truth else None,
                ensemble=self.ensemble_url,
                memory=self.recipe.memory,
                client=self.client,
                progress=self.progress,
            )
            write_whole(path, json.dumps(scores, indent=1).encode())

        what = "against the known classes" if truth else "from what the consensus recorded"
        self._do("evaluate", [self._consensus_mark, self._truth_mark], "scores.json", make, f"scores {what}")

    def _scores(self) -> dict[str, Any]:
        content = read_whole(self._path("scores.json")) if "evaluate" in self.became else None
        return dict(json.loads(content)) if content else {}

    def _export(self) -> None:
        if self.recipe.export is None:
            self._no_use("export", "the recipe asks for none")
            return
        name = f"labels.{self.recipe.export}"

        def make(_resume: bool) -> None:
            stored = open_consensus(self._path("consensus.zarr"))
            with self._file(name) as file:
                labels, margin, confidence = (stored.array(name) for name in ("labels", "margin", "confidence"))
                if (names := self.names) is not None:
                    labels = NamedLabels(labels, names)
                export.write(file, labels, margin, confidence, row_ids(self.recipe), memory=self.recipe.memory)
                stored.confirm()

        self._do("export", self._with_names([self._consensus_mark, name, self._ids_mark]), name, make, name)

    def _report(self) -> None:
        scores, profile = self._scores(), read_profile(self.directory.url, self.state)

        def make(_resume: bool) -> None:
            with self._file("report.html") as file:
                write_report(
                    self._path("consensus.zarr"),
                    file,
                    ensemble=self.ensemble_url,
                    features=open_features(self.recipe) if self.recipe.features else None,
                    row_ids=row_ids(self.recipe),
                    scores=scores or None,
                    profile=profile,
                    matching=self.matching,
                    memory=self.recipe.memory,
                    overwrite=True,
                )

        settings = [self._consensus_mark, scores, self._truth_mark, self._ids_mark, self._described_by]
        settings += self._matching_mark()
        self._do("report", settings, "report.html", make, "report.html")
