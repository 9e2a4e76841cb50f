"""The page: text and figures from the findings, in the template.

Top of the report. One file that makes no network request: a policy in its head forbids it, and forbids every script
but the page's own, known by its digest. All text goes through the template's or the drawing's escaping.
"""

import base64
import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from numpy.typing import NDArray

from cehm_dask import __version__
from cehm_dask.data.consensus_store import StoredConsensus
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.files import write_whole
from cehm_dask.data.labels import Labels
from cehm_dask.errors import InputError
from cehm_dask.machine import require_memory, this_machine
from cehm_dask.masking import masked
from cehm_dask.profiles.profile import Profile
from cehm_dask.report import course, figures, flow, heatmaps, sections, who
from cehm_dask.report.drawing import COLOURS, colour_classes
from cehm_dask.report.findings import (
    Seen,
    look,
    members_of,
    open_finished,
    optional,
    page_terms,
    sampled_places,
)
from cehm_dask.report.maps import heat_maps
from cehm_dask.report.picture import Plane, plane_of
from cehm_dask.report.points import Points, multiple, on_border, picture, place_points
from cehm_dask.report.words import Context, count, shortened
from cehm_dask.results.describing import describe
from cehm_dask.results.export import names_of
from cehm_dask.results.scoring import evaluate, labels_of

HERE = Path(__file__).parent
MOST_STAGES = 24
"""Rounds the slider can show; of more, some in between are left out."""
FEWEST_STAGES = 3
"""Rounds from which there is a way to show: of two, the second is the result."""
MULTIPLES = 6
"""Small pictures for readers without scripts."""
MARGIN = 12
"""Around a figure on a page of its own."""


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure by itself, as in the page."""

    svg: Markup
    width: int
    height: int


@dataclass(frozen=True, eq=False)
class Page:
    """A report: the whole page, and its figures by name."""

    html: str
    figures: dict[str, Figure]

    def write(self, path: Path) -> Path:
        """Write the page, whole or not at all."""
        write_whole(str(path), self.html.encode())
        return path


def compose(
    consensus: str | os.PathLike[str],
    *,
    ensemble: Any = None,
    features: Any = None,
    coordinates: Any = None,
    truth: Any = None,
    row_ids: Any = None,
    scores: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    matching: Mapping[str, Any] | None = None,
    title: str | None = None,
    memory: str | int | None = None,
) -> Page:
    """Read a finished consensus and write its page; for the parameters, see :func:`cehm_dask.report.write_report`."""
    store = open_finished(os.fspath(consensus))
    _require_room(store, memory)
    places, rows = sampled_places(store)
    labels = None if ensemble is None else labels_of(ensemble, store)
    if truth is not None and scores is None:
        scores = evaluate(store.url, truth, ensemble=labels, memory=memory)
    given = {"coordinates": coordinates, "features": features, "labels": labels}
    plane = plane_of(rows, store.facts["n_samples"], **given, memory=memory)
    called = _names_of_clusters(store, matching)
    if profile is None:
        profile = describe(store.url, features, row_ids=row_ids, memory=memory)
        profile = profile.renamed(matching["names"]) if matching else profile
    _refuse_other_names(profile, called, store.url)
    seen, sizes = look(store, rows), np.asarray(store.array("sizes")[...])
    shown = np.concatenate([rows, seen.doubtful])
    names = {} if row_ids is None else names_of(row_ids, shown, store.facts["n_samples"])
    stages = [] if plane is None else _trail(store, places, seen)
    found = _Found(
        store, labels, scores, profile, matching, called, colour_classes(sizes), sizes, seen, names, plane, stages
    )
    html, drawn = _written(found, title)
    store.confirm()
    if labels is not None:
        labels.source.confirm()
    return Page(html, {name: _alone(svg) for name, svg in drawn.items()})


@dataclass(frozen=True, eq=False)
class _Found:
    """What there is to tell."""

    store: StoredConsensus
    labels: Labels | None
    """Of the members."""
    scores: Mapping[str, Any] | None
    profile: Profile
    matching: Mapping[str, Any] | None
    called: list[str]
    """Names of the clusters."""
    classes: list[str]
    """Their colours."""
    sizes: NDArray[np.int64]
    seen: Seen
    names: Mapping[int, str]
    """What samples are called, by row."""
    plane: Plane | None
    stages: list[Context]

    @property
    def facts(self) -> Context:
        return self.store.facts

    @property
    def source(self) -> Ensemble | None:
        """The store of the members, if it is one."""
        source = None if self.labels is None else self.labels.source
        return source if isinstance(source, Ensemble) else None


def _require_room(store: StoredConsensus, memory: str | int | None) -> None:
    machine, facts = this_machine(memory), store.facts
    chunk_rows = int(store.array("labels").chunks[0])
    n_hyperedges, n_clusters = store.array("counts").shape
    terms = page_terms(facts["n_samples"], facts["n_members"], n_hyperedges, n_clusters, chunk_rows, machine)
    require_memory("the report", terms, machine.allowed, "")


def _names_of_clusters(store: StoredConsensus, matching: Mapping[str, Any] | None) -> list[str]:
    """Their numbers, or what an earlier run called them; empty for one that nobody is in."""
    names = matching["names"] if matching else range(store.facts["n_clusters"])
    return ["" if name is None else str(name) for name in names]


def _written(found: _Found, title: str | None) -> tuple[str, dict[str, Markup]]:
    """The page, and its figures by name."""
    store, facts, seen, called, classes = found.store, found.facts, found.seen, found.called, found.classes
    counts, owner = (np.asarray(store.array(own)[...]) for own in ("counts", "hyperedge_member"))
    clusters = figures.clusters_of(found.sizes, seen.histogram, classes, called)
    mapped, together = heatmaps.hyperedge_map(counts), sections.together(counts, owner, found.sizes)
    telling, members = who.telling_map(found.profile), members_of(store)
    maps, grids = heat_maps(mapped, together, telling, members, called, classes)
    drawn = _figures(facts, seen, clusters) | maps
    choice = course.choice(facts, drawn)
    script = (HERE / "page.js").read_text(encoding="utf-8")
    context: Context = {
        "title": title or f"Consensus of {count(facts['n_members'], 'clustering')}",
        "program": __version__,
        "lead": sections.lead(facts, found.source),
        "tiles": sections.tiles(facts, seen, found.scores),
        "notes": sections.notes(facts),
        **who.clusters(found.profile, dict(zip(called, classes, strict=True))),
        "flow": flow.since(found.matching, classes, drawn),
        "picture": None if found.plane is None else _picture(found, found.plane, drawn),
        "clusters": clusters,
        "margin_words": sections.margin_words(seen),
        "confidence_words": sections.confidence_words(seen),
        "together_words": together.words,
        "telling_words": telling.words if telling is not None else "",
        **sections.cluster_table(store, found.sizes, seen, classes, called, members, found.profile),
        **sections.doubtful(store, found.labels, seen, found.names, classes, called),
        "candidates": course.candidates(facts),
        **course.rounds(facts),
        **sections.members(members, found.source, found.scores),
        "map_words": sections.map_words(mapped, counts),
        "choice": choice,
        "truth": sections.truth(found.scores, classes, called),
        **course.run(store, found.source),
        "figures": drawn,
        "colours": COLOURS,
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": {
            "stages": [{"name": stage["name"], "labels": stage["labels"].tolist()} for stage in found.stages],
            "classes": classes if found.stages else [],
            "grids": grids,
        },
    }
    context["sections"] = _sections(context)
    return template("page.html").render(context), drawn


def _figures(facts: Context, seen: Seen, clusters: Sequence[figures.Cluster]) -> dict[str, Markup]:
    """What is drawn from numbers alone; a figure without any is left out."""
    drawn = {
        "sizes": figures.sizes(clusters),
        "ridges": figures.ridges(clusters),
        "confidence": figures.confidence(seen.histogram),
        "seconds": figures.seconds(facts["seconds"]),
    }
    if len(facts["growth"]) > 1:
        drawn["growth"] = figures.growth(facts["growth"], facts["n_samples"] - facts["n_silent"])
    if any(facts.get("moves", [])[1:]):
        drawn["moved"] = figures.moved(facts["moves"], course.stages_of(facts))
    if len(facts["losses"]) > 1:
        # As fractions, which keep their digits; stores of earlier versions have none.
        drawn["loss"] = figures.loss(facts.get("loss_fractions") or facts["losses"])
    return drawn


def _refuse_other_names(profile: Profile, called: Sequence[str], url: str) -> None:
    """A profile of other labels would describe other clusters."""
    other = [str(own["cluster"]) for own in profile.clusters if str(own["cluster"]) not in called]
    if other:
        raise InputError(
            f"profile: it describes a cluster {other[0]!r}, but the clusters of {url} are called "
            f"{', '.join(called[:5])}{', ...' if len(called) > 5 else ''}: profile the labels of this consensus"
        )


def template(name: str) -> Template:
    """A template of this folder, in which every text is escaped and masked."""
    options: Context = {"autoescape": True, "undefined": StrictUndefined, "finalize": _told}
    return Environment(loader=FileSystemLoader(HERE), **options).get_template(name)


def _told(value: Any) -> Any:
    """Masked: a page is sent on. What is markup already was made by the program."""
    return masked(value) if type(value) is str else value


def _alone(svg: Markup) -> Figure:
    width, height = re.findall(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)[0]
    return Figure(svg, math.ceil(float(width)) + 2 * MARGIN, math.ceil(float(height)) + 2 * MARGIN)


def alone(figure: Figure) -> str:
    """A page with one figure and nothing else, as large as the figure."""
    style = template("page.css").render(colours=COLOURS)
    body = f"body {{ background: #fff; padding: {MARGIN}px; }} svg {{ display: block; overflow: visible; }}"
    return f"<!doctype html><meta charset='utf-8'><style>{style}{body}</style>{figure.svg}"


def _picture(found: _Found, plane: Plane, drawn: dict[str, Markup]) -> Context:
    """The picture with its slider, the one by neighbours, and small pictures for readers without scripts."""
    seen, classes, called, stages = found.seen, found.classes, found.called, found.stages
    n_samples = found.facts["n_samples"]
    points = Points(*place_points(plane.coordinates), _says(seen, found.names, called))
    drawn["picture"] = picture(points, seen.labels, seen.margin, classes, called)
    which = "All samples" if len(seen.rows) == n_samples else f"{len(seen.rows):,} of {n_samples:,} samples"
    small = [
        {"name": stage["name"], "figure": multiple(points, stage["labels"], classes, stage["name"])}
        for stage in _few(stages, MULTIPLES)
    ]
    names_only = [stage["name"] for stage in stages]
    far = " Outliers are drawn on the border." if on_border(points) else ""
    near = None
    if (placed := plane.neighbours) is not None:
        places = placed.places.tolist()
        own = points.some(place_points(placed.coordinates), places)
        shown = seen.labels[placed.places], seen.margin[placed.places]
        drawn["neighbours"] = picture(own, *shown, classes, called, name="neighbours", places=places)
        near = (
            f"{'The same samples' if len(places) == len(seen.rows) else f'{len(places):,} of them'}, placed by t-SNE: "
            "near samples are near neighbours; distances and sizes of groups mean nothing."
        )
    caption = f"{which}, placed by {plane.axes}.{far}"
    return {"caption": caption, "near": near, "stages": names_only, "multiples": small}


def _says(seen: Seen, names: Mapping[int, str], called: Sequence[str]) -> list[str]:
    """What a point is."""
    said = []
    for row, label, margin in zip(seen.rows.tolist(), seen.labels.tolist(), seen.margin.tolist(), strict=True):
        name = f"{shortened(names[row])} (row {row:,})" if names else f"row {row:,}"
        said.append(f"{name}: cluster {called[label]}, margin {margin:.2f}" if label >= 0 else f"{name}: no base label")
    return said


def _trail(store: StoredConsensus, places: NDArray[np.int64], seen: Seen) -> list[Context]:
    """The rounds of the slider, with the sampled labels after each; the last is the result."""
    trail, names = optional(store, "trail"), store.facts.get("trail_stages")
    if trail is None or not names or len(names) < FEWEST_STAGES:
        return []
    own = trail[:, places].astype(np.int64)
    totals = {stage: names.count(stage) for stage in names}
    done: dict[str, int] = {}
    stages = []
    for stage, labels in zip(names, own, strict=True):
        done[stage] = done.get(stage, 0) + 1
        name = stage if totals[stage] == 1 else f"{stage}, round {done[stage]} of {totals[stage]}"
        stages.append({"name": name, "labels": labels})
    stages[-1] = {"name": f"{stages[-1]['name']}: the result", "labels": seen.labels}
    return _few(stages, MOST_STAGES)


def _few(items: Sequence[Context], most: int) -> list[Context]:
    """At most so many, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[i] for i in np.unique(np.linspace(0, len(items) - 1, most).round().astype(int)).tolist()]


def _sections(context: Context) -> list[tuple[str, str]]:
    names = [
        ("profiles", "Clusters"),
        ("flow", "Since the run before"),
        ("picture", "Samples"),
        ("clusters", "Confidence"),
        ("doubtful", "Least certain"),
        ("choice", "Choice of k"),
        ("candidates", "Candidates"),
        ("truth", "Truth"),
        ("members", "Members"),
        ("run", "Run"),
    ]
    optional_ones = ("flow", "picture", "candidates", "choice", "truth")
    return [(key, name) for key, name in names if key not in optional_ones or context[key] is not None]
