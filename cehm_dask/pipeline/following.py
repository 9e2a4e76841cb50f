"""The step that matches the clusters of a run to those of an earlier one, so that they keep their names.

Between the steps in general and the run, with what the run's other steps need of it. The earlier run is known by its
run directory: its table of labels has the ids and names of its rows, its matching.json the names that are taken. Which
run a day follows is noted in run.json and stays so: a day that is done is not matched anew because a day before it came
later, or is gone.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cehm_dask.clusters.connect import connect
from cehm_dask.data.consensus_store import StoredConsensus, open_consensus
from cehm_dask.data.files import absolute, exists, fingerprint, write_whole
from cehm_dask.data.seals import digest_of, seal_of
from cehm_dask.errors import InputError, NotFoundError, ReplacedError, StoreError
from cehm_dask.masking import masked_json
from cehm_dask.pipeline.days import earlier_days, is_finished, on_day
from cehm_dask.pipeline.directory import STATE, Directory
from cehm_dask.pipeline.inputs import left_out, left_out_beside, open_features, row_ids
from cehm_dask.pipeline.outputs import OUTPUTS, fault_of, read_matching, read_profile
from cehm_dask.pipeline.recipe_model import Alerts, Recipe, day_in
from cehm_dask.pipeline.result import RunProgress
from cehm_dask.pipeline.steps import Steps, mark_of
from cehm_dask.profiles.profile import Profile
from cehm_dask.profiles.words import percent
from cehm_dask.results.describing import describe
from cehm_dask.results.export import RowIds
from cehm_dask.results.matching import MATCHING, Matching, enough, first, match_profiles, match_shared
from cehm_dask.results.shared_rows import Labelled, count_shared, of_store, of_table

log = logging.getLogger("cehm_dask.pipeline.run")

PREVIOUS = "previous"
"""In a recipe: the newest earlier run of the same output."""
FOLLOWED = "followed"
"""Name of the note in run.json of the run that is followed."""


@dataclass(frozen=True)
class Earlier:
    """A run that is followed: its table of labels and what its clusters are called."""

    url: str
    state: dict[str, Any]

    def table(self) -> tuple[str, dict[str, Any]]:
        """Name and record of its table of labels; an error if it has none."""
        outputs = self.state["steps"].get("export", {}).get(OUTPUTS, {})
        found = next(((name, record) for name, record in outputs.items() if name.startswith("labels.")), None)
        if found is None:
            raise InputError(
                f"run {self.url} has no table of labels, in which its rows have names: run it again with "
                "'export: parquet' in the recipe, or follow another run"
            )
        return found

    @property
    def mark(self) -> Any:
        """What the names of a run that follows it depend on."""
        return [self.state["steps"].get("match", {}).get("fingerprint"), self.table()[1]["digest"]]

    @cached_property
    def _matching(self) -> dict[str, Any] | None:
        return read_matching(self.url, self.state)

    @cached_property
    def _consensus(self) -> StoredConsensus:
        return open_consensus(f"{self.url}/consensus.zarr")

    @cached_property
    def names(self) -> list[int]:
        """Of its clusters."""
        if self._matching is None:
            return list(range(int(self._consensus.facts["n_clusters"])))
        return [name for name in self._matching["names"] if name is not None]

    @property
    def next_name(self) -> int:
        return len(self.names) if self._matching is None else int(self._matching["next_name"])

    @property
    def agreement(self) -> float:
        return float(
            self._consensus.facts["agreement"] if self._matching is None else self._matching["agreement"]["now"]
        )

    def rows(self) -> Labelled:
        """Its rows, by id."""
        name, record = self.table()
        if fault := fault_of(f"{self.url}/{name}", record):
            raise StoreError(f"{fault}: run it again, or follow another run")
        return of_table(f"{self.url}/{name}", self.names)

    def confirm(self) -> None:
        """An error if the table was replaced since it was opened: a pass may have seen another one than the next."""
        name, record = self.table()
        if fault_of(f"{self.url}/{name}", record):
            raise ReplacedError(f"{self.url}/{name} was replaced while it was being read; run again")

    def profile(self) -> Profile:
        return read_profile(self.url, self.state)


def open_earlier(url: str) -> Earlier:
    """A run directory to follow; refused with what is wrong with it."""
    state = Directory(url).read()
    if state is None:
        raise NotFoundError(f"follow {url}: no run directory (it has no {STATE})")
    found = Earlier(url, state)
    found.table()
    return found


def newest_earlier(output: str) -> str | None:
    """The newest earlier day that is finished."""
    return next((day for day, state in reversed(earlier_days(output).items()) if is_finished(state)), None)


class Following(Steps):
    """The steps of a run, and the one that matches its clusters to those of an earlier run."""

    follows: str | None = None
    """The run that is followed, once the step has found it."""

    def __init__(
        self, recipe: Recipe, directory: Directory, cluster: str | None, progress: RunProgress, stack: ExitStack
    ) -> None:
        super().__init__(directory, progress)
        self.recipe, self.cluster, self.stack = recipe, cluster, stack

    @cached_property
    def client(self) -> Any:
        """Of the cluster that is asked for, started or reached when a step first needs it; None: threads."""
        client = self.stack.enter_context(connect(self.cluster))
        if client is not None:
            self.progress.joined(client)
        return client

    @cached_property
    def _ids_mark(self) -> Any:
        """What the names of the rows depend on."""
        source = self.recipe.source
        if source.id is None or source.path is None:
            return None
        return [source.id, fingerprint(source.path)]

    @cached_property
    def _described_by(self) -> Any:
        """What clusters are described by, and all that it depends on."""
        recipe = self.recipe
        path = recipe.profile or (recipe.features.path if recipe.features else None)
        named = recipe.features.sklearn if recipe.features and recipe.profile is None else None
        return [named, path and fingerprint(path), left_out(recipe), self._ids_mark]

    def _described(self) -> Profile:
        """The clusters by their features, called by their numbers in the consensus."""
        recipe = self.recipe
        return describe(
            self._path("consensus.zarr"),
            recipe.profile or (open_features(recipe) if recipe.features else None),
            row_ids=row_ids(recipe),
            leave_out=left_out_beside(recipe),
            memory=recipe.memory,
            client=self.client,
            progress=self.progress,
        )

    @property
    def matching(self) -> dict[str, Any] | None:
        """What the step found; None: the recipe follows no run, or the step is not done."""
        return read_matching(self.directory.url, self.state) if "match" in self.became else None

    @property
    def names(self) -> list[int | None] | None:
        """Of the clusters, by their number in the consensus; None: they are called by their numbers."""
        found = self.matching
        return None if found is None else list(found["names"])

    def _with_names(self, settings: list[Any]) -> list[Any]:
        """What a step depends on that calls clusters by their names."""
        names = self.names
        return settings if names is None else [*settings, names]

    def _matching_mark(self) -> list[Any]:
        found = self.matching
        return [] if found is None else [seal_of(found)]

    def require_followed(self) -> None:
        """Refuse a run that cannot be followed before hours go into the other steps."""
        if self.recipe.follow is not None:
            self._followed()

    def _match(self) -> None:
        recipe = self.recipe
        if recipe.follow is None:
            for name in (FOLLOWED, "alerts"):
                self.state.pop(name, None)
            self._no_use("match", "the recipe follows no run")
            return
        url, mark = self._followed()
        what = "no earlier run: clusters are called by their numbers"
        if url is not None:
            what = f"clusters keep the names of {url}"
        self.follows = url
        self.state[FOLLOWED] = {**_place(recipe.follow, url), "mark": mark}

        def make(_resume: bool) -> None:
            stored = open_consensus(self._path("consensus.zarr"))
            found = follow(
                None if url is None else open_earlier(url),
                stored,
                row_ids(recipe),
                self._described,
                recipe.alert or Alerts.model_construct(),
                memory=recipe.memory,
            )
            stored.confirm()
            write_whole(self._path(MATCHING), masked_json(found).encode())

        self._do("match", self._match_settings(mark), MATCHING, make, what)
        alerts = (self.matching or {}).get("alerts", [])
        if self.state.get("alerts", []) != alerts:
            self.state["alerts"] = alerts
            self.directory.write(self.state)

    def _match_settings(self, mark: Any) -> list[Any]:
        alert = self.recipe.alert and self.recipe.alert.model_dump()
        return [self.state["steps"]["consensus"]["fingerprint"], mark, alert, self._described_by]

    def _followed(self) -> tuple[str | None, Any]:
        """The run to follow, and what the result depends on of it."""
        output, follow = self.directory.url, str(self.recipe.follow)
        done = self.state["steps"].get("match")
        noted = self.state.get(FOLLOWED) if done is not None else None
        if follow == PREVIOUS:
            day = noted["day"] if noted is not None and "day" in noted else newest_earlier(output)
            url = None if day is None else on_day(output, day)
        else:
            url = absolute(follow).rstrip("/")
            if url == output:
                raise InputError(f"follow {follow}: this is the run itself; name an earlier one, or 'previous'")
        if noted is not None and not _place(follow, url).items() <= noted.items():
            noted = None
        if url is None:
            return None, None
        if noted is not None and not exists(f"{url}/{STATE}"):
            # Gone since: what was matched stays, unless something else has changed.
            if done is not None and done["fingerprint"] == mark_of(self._match_settings(noted["mark"])):
                return url, noted["mark"]
            if follow == PREVIOUS:
                day = newest_earlier(output)
                url = None if day is None else on_day(output, day)
        return (None, None) if url is None else (url, open_earlier(url).mark)


def _place(follow: str, url: str | None) -> dict[str, Any]:
    """How run.json says which run is followed: by its day, or by a digest of its path, of which parts may be secret."""
    if follow == PREVIOUS:
        return {"day": url and day_in(url)}
    return {"path": url and digest_of(url.encode())}


def follow(
    earlier: Earlier | None,
    stored: StoredConsensus,
    ids: RowIds | None,
    described: Callable[[], Profile],
    alert: Alerts,
    *,
    memory: str | int | None = None,
) -> dict[str, Any]:
    """What matching.json holds: the matching, the run that is followed, its agreement, and what to look at.

    Parameters
    ----------
    earlier : Earlier or None
        None: this is the first run.
    stored : StoredConsensus
    ids : RowIds or None
        What the rows are called; None: nothing, clusters are matched by their features.
    described : callable
        The clusters by their features; called only if they are needed.
    alert : Alerts
    memory : int or str, optional
        Bytes this process may take in all.
    """
    now = float(stored.facts["agreement"])
    if earlier is None:
        sizes = np.asarray(stored.array("sizes")[:], np.int64)
        return {**first(sizes).to_dict(), "follows": None, "agreement": {"before": None, "now": now}, "alerts": []}
    found = _matched(earlier, stored, ids, described, memory)
    before = earlier.agreement
    alerts = alerts_of(found, before, now, alert)
    return {
        **found.to_dict(),
        "follows": earlier.url,
        "agreement": {"before": before, "now": now},
        "alerts": alerts,
    }


def _matched(
    earlier: Earlier,
    stored: StoredConsensus,
    ids: RowIds | None,
    described: Callable[[], Profile],
    memory: str | int | None,
) -> Matching:
    shared = None
    if ids is not None:
        shared = count_shared(earlier.rows(), of_store(stored, ids), memory=memory)
        earlier.confirm()
        if enough(shared):
            return match_shared(shared, earlier.names, earlier.next_name)
    held, own = earlier.profile(), described()
    comparable = set(held.features) & set(own.features)
    if shared is not None and not comparable:
        log.warning("few or no rows have the id of a row of %s: clusters can only be matched by these", earlier.url)
        return match_shared(shared, earlier.names, earlier.next_name)
    why = "rows have no ids" if ids is None else "few or no rows have the id of a row there"
    log.info("match: %s, so clusters are matched to those of %s by %d features", why, earlier.url, len(comparable))
    return match_profiles(held, own, int(stored.facts["n_clusters"]), earlier.next_name)


def alerts_of(found: Matching, before: float, now: float, alert: Alerts) -> list[str]:
    """What changed by more than the recipe allows, a sentence each."""
    said = []
    if alert.moved is not None and found.moved is not None and found.moved > alert.moved:
        said.append(f"{percent(found.moved)} of the samples in both runs moved, allowed are {percent(alert.moved)}")
    for own in found.clusters:
        if alert.size is None or own["state"] != "kept":
            continue
        change = own["now"] / own["before"] - 1.0
        if abs(change) > alert.size:
            said.append(
                f"cluster {own['name']} has {own['now']:,} samples, before {own['before']:,}: changed by "
                f"{percent(abs(change))}, allowed are {percent(alert.size)}"
            )
    if alert.agreement is not None and before - now > alert.agreement:
        said.append(f"agreement fell from {before:.3f} to {now:.3f}, allowed is a fall of {alert.agreement:g}")
    return said
