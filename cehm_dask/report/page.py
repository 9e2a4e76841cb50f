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
from cehm_dask.machine import format_bytes, require_memory, this_machine
from cehm_dask.masking import masked
from cehm_dask.method.params import PAPER, settings_told
from cehm_dask.report import figures
from cehm_dask.report.drawing import COLOURS, colour_classes
from cehm_dask.report.findings import (
    OUTLYING_AT_LEAST,
    OUTLYING_MADS,
    Members,
    Seen,
    look,
    members_of,
    names_of,
    open_finished,
    optional,
    page_terms,
    quantiles,
    runners_up,
    sampled_places,
)
from cehm_dask.report.picture import Plane, plane_of
from cehm_dask.results.scoring import evaluate, labels_of

HERE = Path(__file__).parent
MOST_STAGES = 24
"""Rounds the slider can show; of more, some in between are left out."""
FEWEST_STAGES = 3
"""Rounds from which there is a way to show: of two, the second is the result."""
MULTIPLES = 6
"""Small pictures for readers without scripts."""
MOST_TABLE_ROWS = 200
"""Clusters, or members, in a table."""
MOST_CLASSES = 30
"""Clusters, and classes, in the table against the truth."""
SEED = "seed of the starts, drawn"
MARGIN = 12
"""Around a figure on a page of its own."""

STARTS = {
    "medoids": "k-medoids of the base clusters, without their overlaps",
    "spectral": "spectral cut of the graph of samples and base clusters (U-SENC)",
    "links": "spectral cut, base clusters linked by common neighbours (WCT)",
    "local": "spectral cut, base clusters weighted by how far members respect them (LWGP)",
}
BELONGINGS = {
    "share": "share of a base cluster",
    "count": "number of common samples",
    "cosine": "share of a base cluster, for clusters of any size",
    "kmeans": "weighted k-means",
    "tau": "weights that raise τ",
}
"""In plain words; what is not here is called by its name."""

SCORES = {
    "nmi": "NMI",
    "ari": "ARI",
    "accuracy": "accuracy",
    "purity": "purity",
    "homogeneity": "homogeneity",
    "completeness": "completeness",
    "v_measure": "V-measure",
}

Context = dict[str, Any]


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
    title: str | None = None,
    memory: str | int | None = None,
) -> Page:
    """Read a finished consensus and write its page; for the parameters, see :func:`cehm_dask.report.write_report`."""
    store = open_finished(os.fspath(consensus))
    facts = store.facts
    machine = this_machine(memory)
    require_memory("the report", page_terms(store, machine), machine.allowed, "")
    places, rows = sampled_places(store)
    labels = None if ensemble is None else labels_of(ensemble, store)
    if truth is not None and scores is None:
        scores = evaluate(store.url, truth, ensemble=labels, memory=memory)
    given = {"coordinates": coordinates, "features": features, "labels": labels}
    plane = plane_of(rows, facts["n_samples"], **given, memory=memory)
    seen, members = look(store, rows), members_of(store)
    names = {} if row_ids is None else names_of(row_ids, np.concatenate([rows, seen.doubtful]), facts["n_samples"])
    sizes, counts = (np.asarray(store.array(own)[...]) for own in ("sizes", "counts"))
    classes = colour_classes(sizes)
    clusters = figures.clusters_of(sizes, seen.histogram, classes)
    found_map = figures.hyperedge_map(counts)
    source = labels.source if labels is not None and isinstance(labels.source, Ensemble) else None
    drawn = {
        "sizes": figures.sizes(clusters),
        "ridges": figures.ridges(clusters),
        "confidence": figures.confidence(seen.histogram),
        "map": figures.map_figure(found_map, classes),
        "seconds": figures.seconds(facts["seconds"]),
    }
    if len(facts["growth"]) > 1:
        drawn["growth"] = figures.growth(facts["growth"], facts["n_samples"] - facts["n_silent"])
    if any(facts.get("moves", [])[1:]):
        drawn["moved"] = figures.moved(facts["moves"], _stages(facts))
    if len(facts["losses"]) > 1:
        # As fractions, which keep their digits; stores of earlier versions have none.
        drawn["loss"] = figures.loss(facts.get("loss_fractions") or facts["losses"])
    grids = {"map": _grid(found_map.shares, _map_rows(found_map), [f"cluster {c}" for c in found_map.columns])}
    if len(members.shown) > 1:
        shown = members.shown
        table = np.asarray(store.array("member_agreement")[...])
        drawn["agreement"] = figures.agreement(table, shown, members.outlying.tolist(), members.names)
        own = [_shortened(members.names[j]) for j in shown]
        grids["agreement"] = _grid(table[np.ix_(shown, shown)], own, own)
    choice = _choice(facts, drawn)
    stages = [] if plane is None else _trail(store, places, seen)
    picture = None if plane is None else _picture(plane, seen, names, stages, classes, facts["n_samples"], drawn)
    script = (HERE / "page.js").read_text()
    context: Context = {
        "title": title or f"Consensus of {_count(facts['n_members'], 'clustering')}",
        "program": __version__,
        "lead": _lead(facts, source),
        "tiles": _tiles(facts, seen, scores),
        "notes": _notes(facts),
        "picture": picture,
        "clusters": clusters,
        "margin_words": _margin_words(seen),
        "confidence_words": _confidence_words(seen),
        **_cluster_table(store, sizes, seen, classes, members),
        **_doubtful(store, labels, seen, names, classes),
        "candidates": _candidates(facts),
        **_rounds(facts),
        **_members(members, source, scores),
        "map_words": _map_words(found_map, counts),
        "choice": choice,
        "truth": _truth(scores, classes),
        **_run(store, source),
        "figures": drawn,
        "colours": COLOURS,
        "script": Markup(script),
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": {
            "stages": [{"name": stage["name"], "labels": stage["labels"].tolist()} for stage in stages],
            "classes": classes if stages else [],
            "grids": grids,
        },
    }
    context["sections"] = _sections(context)
    store.confirm()
    if labels is not None:
        labels.source.confirm()
    return Page(_template("page.html").render(context), {name: _alone(svg) for name, svg in drawn.items()})


def _template(name: str) -> Template:
    options: Context = {"autoescape": True, "undefined": StrictUndefined, "finalize": _told}
    return Environment(loader=FileSystemLoader(HERE), **options).get_template(name)


def _told(value: Any) -> Any:
    """Masked: a page is sent on. What is markup already was made by the program."""
    return masked(value) if type(value) is str else value


def _alone(svg: Markup) -> Figure:
    size = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', svg)
    assert size is not None
    return Figure(svg, math.ceil(float(size[1])) + 2 * MARGIN, math.ceil(float(size[2])) + 2 * MARGIN)


def alone(figure: Figure) -> str:
    """A page with one figure and nothing else, as large as the figure."""
    style = _template("page.css").render(colours=COLOURS)
    body = f"body {{ background: #fff; padding: {MARGIN}px; }} svg {{ display: block; overflow: visible; }}"
    return f"<!doctype html><meta charset='utf-8'><style>{style}{body}</style>{figure.svg}"


def _count(number: int, thing: str, things: str | None = None) -> str:
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def _shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _lead(facts: Context, ensemble: Ensemble | None) -> str:
    told = "" if ensemble is None or not ensemble.source else f" ({_shortened(os.path.basename(ensemble.source))})"
    return (
        f"{_count(facts['n_members'], 'clustering')} of {_count(facts['n_samples'], 'sample')}{told} went in, one "
        f"clustering with {_count(facts['n_clusters_found'], 'cluster')} came out, with a confidence for every sample."
    )


def _tile(name: str, value: str, about: str = "") -> Context:
    return {"name": name, "value": value, "about": about}


def _between(members: Members) -> float:
    """Mean NMI of two different members."""
    return float(members.with_others.mean())


def _tiles(facts: Context, seen: Seen, scores: Mapping[str, Any] | None) -> list[Context]:
    tiles = [
        _tile("samples", f"{facts['n_samples']:,}"),
        _tile("members", f"{facts['n_members']:,}"),
        _tile("clusters", f"{facts['n_clusters_found']:,}", f"of k = {facts['n_clusters']:,} asked for"),
        _tile("agreement", f"{facts['agreement']:.3f}", "mean NMI with the members"),
        _tile("margin", f"{seen.mean_margin:.3f}", "mean of the samples"),
    ]
    if scores is not None and "scores" in scores:
        tiles += [_tile(SCORES[key], f"{scores['scores'][key]:.3f}", "against the truth") for key in ("nmi", "ari")]
    tiles.append(_tile("time", _seconds(sum(facts["seconds"].values())), _count(facts["sweeps"], "sweep")))
    return tiles


def _seconds(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s"


def _notes(facts: Context) -> list[str]:
    """What a careful reader would want to know first."""
    notes = []
    if not facts["converged"]:
        notes.append("Adjustion still moved samples when it was stopped; raise max_iter to let it end.")
    if facts["n_clusters_found"] < facts["n_clusters"]:
        lost = facts["n_clusters"] - facts["n_clusters_found"]
        notes.append(f"{_count(lost, 'cluster')} of the {facts['n_clusters']:,} asked for lost all samples.")
    if facts["n_silent"]:
        notes.append(f"{_count(facts['n_silent'], 'sample')} without any base label: label -1, in no cluster.")
    if not facts.get("choice", {}).get("clear", True):
        notes.append(f"No clear number of clusters: {facts['choice']['reason']}")
    return notes


def _confidence_words(seen: Seen) -> str:
    low, middle = quantiles(seen.histogram, [0.05, 0.5])
    return (
        f"Half of the samples lead with a margin of {middle:.2f} or more, on average it is {seen.mean_margin:.3f}; "
        f"one sample in twenty stays below {low:.2f}."
    )


def _margin_words(seen: Seen) -> str:
    words = "The margin is how far a sample’s cluster leads the runner-up, "
    if seen.unit == 1.0:
        return words + "as a share of what the members could give: 0 a tie, 1 unanimous."
    return words + f"as a share of the largest lead ({seen.unit:,.6g} of the counts in Eq. 5, per member): 0 a tie."


def _cluster_table(
    store: StoredConsensus,
    sizes: NDArray[np.int64],
    seen: Seen,
    classes: Sequence[str],
    members: Members,
) -> Context:
    medoids = optional(store, "medoids")
    owner = np.asarray(store.array("hyperedge_member")[...])
    edge_sizes = np.asarray(store.array("counts")[...]).sum(axis=1)
    order = np.argsort(-sizes, kind="stable").tolist()
    rows = []
    for cluster in order[:MOST_TABLE_ROWS]:
        grew = None
        if medoids is not None:
            edge = int(medoids[cluster])
            first = int(np.searchsorted(owner, owner[edge]))
            grew = (
                f"cluster {edge - first} of member {_shortened(members.names[owner[edge]], 40)}, "
                f"{_count(int(edge_sizes[edge]), 'sample')}"
            )
        rows.append(
            {
                "number": cluster,
                "style": classes[cluster],
                "size": int(sizes[cluster]),
                "share": float(sizes[cluster] / max(1, sizes.sum())),
                "margin": float(seen.cluster_margin[cluster]),
                "medoid": grew,
            }
        )
    title = "base cluster most like it at the start" if store.facts.get("candidates") else "grew from"
    return {"cluster_rows": rows, "clusters_left_out": len(order) - len(rows), "medoid_title": title}


def _doubtful(
    store: StoredConsensus, labels: Labels | None, seen: Seen, names: Mapping[int, str], classes: Sequence[str]
) -> Context:
    second = None if labels is None else runners_up(store, labels, seen.doubtful, seen.doubtful_labels)
    rows = []
    for place, (row, label) in enumerate(zip(seen.doubtful.tolist(), seen.doubtful_labels.tolist(), strict=True)):
        runner_up = -1 if second is None else int(second[place])
        rows.append(
            {
                "row": row,
                "id": _shortened(names.get(row, "")),
                "cluster": label,
                "style": classes[label],
                "runner_up": runner_up if runner_up >= 0 else "",
                "runner_style": classes[runner_up] if runner_up >= 0 else "",
                "margin": float(seen.doubtful_margin[place]),
            }
        )
    words = f"The {_count(len(rows), 'sample')} with the smallest margins, the least certain first; rows count from 0."
    return {
        "doubtful": rows,
        "has_ids": bool(names),
        "has_runner_up": second is not None,
        "doubtful_words": words,
    }


def _stages(facts: Context) -> list[str]:
    """Stage of every round of the chosen problem."""
    diffused = len(facts["growth"]) - 1
    return ["start", *(["diffusion"] * diffused), *(["adjustion"] * (facts["rounds"] - 1 - diffused))]


def _candidates(facts: Context) -> Context | None:
    """What competed and why one was kept; None where nothing did."""
    candidates: list[Context] = facts.get("candidates", [])
    if not candidates:
        return None
    ranked = sorted(candidates, key=lambda own: -own["score"])
    kept = next(own for own in candidates if own["kept"])
    if len(candidates) == 1:
        words = "There was one candidate."
    else:
        largest, following = (f"{own['score']:.4f}" for own in (kept, next(own for own in ranked if own is not kept)))
        rest = f"the next has {following}." if following != largest else "the next is equal to four digits."
        words = (
            f"Of {len(candidates)} candidates, the one with the largest sum of τ and evenness was kept: "
            f"{largest} (start: {_plain_start(kept['start'])}; belonging: "
            f"{BELONGINGS.get(kept['belonging'], kept['belonging'])}); {rest}"
        )
    rows, n = sum(kept["sizes"]), facts["n_samples"] - facts["n_silent"]
    if rows < n:
        words += f" They competed on {rows:,} samples drawn at random; the one kept then ran over all {n:,}."
    caption = (
        "τ (Goodman and Kruskal): how much better than chance the members predict the cluster of a sample. "
        "Evenness: agreement of the members inside the clusters, largest for clusters of equal size. Agreement: mean "
        "NMI with the members. Explained: Theil’s U, the share of the consensus’s entropy that a member explains, on "
        "average. Smallest and largest: samples of these clusters. Repaired: clusters that had lost all their samples "
        "and got some back."
    )
    return {
        "words": words,
        "caption": caption,
        "rows": [
            {
                "start": _plain_start(own["start"]),
                "belonging": BELONGINGS.get(own["belonging"], own["belonging"]),
                "scores": [own[name] for name in ("tau", "evenness", "score", "agreement", "explained")],
                "smallest": min(own["sizes"]),
                "largest": max(own["sizes"]),
                "repaired": own["repaired"],
                "kept": own["kept"],
            }
            for own in ranked
        ],
    }


def _plain_start(name: str) -> str:
    """How a candidate began; further medoid starts are "medoids 2" and so on."""
    kind, _, number = name.partition(" ")
    return STARTS.get(kind, kind) + (f", solution {number}" if number else "")


def _rounds(facts: Context) -> Context:
    stages = _stages(facts)
    grown, adjusted = stages.count("diffusion"), stages.count("adjustion")
    n = facts["n_samples"] - facts["n_silent"]
    ended = "until none moved" if facts["converged"] else "and was stopped there"
    competed = bool(facts.get("candidates"))
    rounds = f"adjustion took {_count(adjusted, 'round' if competed else 'more round')} {ended}."
    if competed:
        words = f"The kept candidate gave each of {n:,} samples a cluster at the start; {rounds}"
    else:
        words = f"The medoids alone held {facts['growth'][0]:,} of {n:,} samples. "
        if grown == 1:
            words += f"One round of diffusion assigned the others; {rounds}"
        elif grown:
            words += f"{_count(grown, 'round')} of diffusion assigned the others, the surest first; {rounds}"
        else:
            words += _sentence(rounds)
    if facts["losses"]:
        words += f" The last loss is {facts['losses'][-1]:,.8g}"
        if facts.get("loss_fractions"):
            words += f", {facts['loss_fractions'][-1]:.6g} of the largest that is possible"
        words += "."
    repairs = facts["identity"].get("variant", "released") not in PAPER
    loss_words = "Adjustion never lets it rise" + (", but where it repairs an empty cluster." if repairs else ".")
    slider = "From the start (the medoids without their overlaps; hollow: not assigned) through diffusion to adjustion."
    return {
        "rounds_title": "From the kept candidate to the result" if competed else "How it grew",
        "rounds_words": words,
        "rounds_stages": list(dict.fromkeys(stages)),
        "loss_words": loss_words,
        "slider_words": "From the kept candidate through adjustion to the result." if competed else slider,
    }


def _members(members: Members, ensemble: Ensemble | None, scores: Mapping[str, Any] | None) -> Context:
    scored = [member.get("nmi") for member in (scores or {}).get("members", [])]
    algorithms = [member.get("algorithm", "") for member in ensemble.members] if ensemble is not None else []
    has_algorithm = len(algorithms) == len(members.names) and any(algorithms)
    # Outlying ones first, then by how far they are from the others.
    order = np.lexsort((members.with_others, ~members.outlying)).tolist()
    shown = sorted(order[:MOST_TABLE_ROWS], key=lambda j: (not members.outlying[j], j))
    rows = [
        {
            "name": _shortened(members.names[j]),
            "algorithm": algorithms[j] if has_algorithm else "",
            "clusters": int(members.clusters[j]),
            "with_others": "" if math.isnan(members.with_others[j]) else f"{members.with_others[j]:.3f}",
            "with_consensus": f"{members.with_consensus[j]:.3f}",
            "with_truth": _cell(scored[j]) if scored else "",
            "outlying": bool(members.outlying[j]),
        }
        for j in shown
    ]
    low, high = int(members.clusters.min()), int(members.clusters.max())
    span = f"{low}" if low == high else f"{low} to {high}"
    edges = _count(int(members.clusters.sum()), "hyperedge")
    words = f"{_count(len(members.names), 'member')} with {span} clusters{' each' if len(members.names) > 1 else ''}, "
    words += f"{edges} in all."
    if len(members.names) > 1:
        words += f" Two of them agree with a mean NMI of {_between(members):.3f}."
    outlying = [_shortened(members.names[j]) for j in np.flatnonzero(members.outlying)]
    if outlying:
        named = ", ".join(outlying[:5]) + (f" and {len(outlying) - 5} more" if len(outlying) > 5 else "")
        words += f" Least like the others: {named}."
    left = len(members.names) - len(members.shown)
    agreement_words = (
        "The fuller the colour, the more alike two members are; similar members are neighbours. "
        f"A member is outlying (▶) if its mean NMI with the others lies below {members.limit:.3f}: the median less "
        f"{OUTLYING_MADS:g} scaled median absolute deviations, and at least {OUTLYING_AT_LEAST:g}."
        + (f" {left:,} members that are not outlying are left out." if left else "")
    )
    return {
        "member_words": words,
        "member_rows": rows,
        "members_left_out": len(members.names) - len(rows),
        "has_algorithm": has_algorithm,
        "has_truth": bool(scored),
        "agreement_words": agreement_words,
    }


def _map_words(found: figures.HyperedgeMap, counts: NDArray[np.int64]) -> str:
    words = "Each line is a base cluster, each column a cluster; the fuller the colour, the more of it is there."
    if found.per_row > 1:
        words += f" Lines are means of {found.per_row} neighbours, because there are {len(counts):,} hyperedges."
    if found.others:
        words += f" The {found.others:,} smallest clusters are left out."
    return words


def _map_rows(found: figures.HyperedgeMap) -> list[str]:
    if found.per_row == 1:
        return [f"line {i + 1}" for i in range(len(found.shares))]
    return [f"lines {i * found.per_row + 1} to {(i + 1) * found.per_row}" for i in range(len(found.shares))]


def _grid(values: NDArray[np.float64], rows: Sequence[str], columns: Sequence[str]) -> Context:
    """A heat map's values for tips, one byte each."""
    content = np.round(np.clip(values, 0, 1) * 250).astype(np.uint8).tobytes()
    return {"values": base64.b64encode(content).decode(), "rows": list(rows), "columns": list(columns)}


def _choice(facts: Context, drawn: dict[str, Markup]) -> Context | None:
    scan: list[Context] = sorted(facts.get("scan", []), key=lambda own: int(own["n_clusters"]))
    if len(scan) < 2:
        return None
    ks = [int(own["n_clusters"]) for own in scan]
    names = [name for name in ("agreement", "margin", "stability") if any(own.get(name) is not None for own in scan)]
    styles = {"agreement": "accent", "margin": "adjustion", "stability": "warn"}
    series = [figures.Series(name, styles[name], [own.get(name) for own in scan]) for name in names]
    chosen = facts.get("choice", {})
    words = f"{_count(len(ks), 'value')} of k were run side by side; k = {facts['n_clusters']} was taken."
    if chosen:
        words += f" {'' if chosen['clear'] else 'There is no clear k. '}{_sentence(chosen['reason'])}"
    keys = ["n_clusters", *names, "loss"]
    if any(own.get("n_clusters_found", own["n_clusters"]) < own["n_clusters"] for own in scan):
        keys.insert(1, "n_clusters_found")
    columns = [{"n_clusters": "k", "n_clusters_found": "found"}.get(key, key) for key in keys]
    rows = [
        {"chosen": own["n_clusters"] == facts["n_clusters"], "cells": [_cell(own.get(key)) for key in keys]}
        for own in scan
    ]
    drawn["choice"] = figures.choice(ks, series, facts["n_clusters"])
    return {"words": words, "columns": columns, "rows": rows}


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}" if value < 1e3 else f"{value:.6g}"


def _truth(scores: Mapping[str, Any] | None, classes: Sequence[str]) -> Context | None:
    if scores is None or "scores" not in scores:
        return None
    lines = [("the consensus", scores["scores"])]
    if "certain_half" in scores:
        half = scores["certain_half"]
        lines.append((f"its more certain half (margin from {half['margin_from']:.2f})", half))
    if "members_mean" in scores:
        lines.append(("the members, mean", scores["members_mean"]))
    rows = [(name, [_cell(own.get(key)) for key in SCORES]) for name, own in lines]
    words = f"{scores['n_scored']:,} samples with a known class, of {_count(scores['n_classes'], 'class', 'classes')}."
    return {"words": words, "names": list(SCORES.values()), "lines": rows, **_contingency(scores, classes)}


def _contingency(scores: Mapping[str, Any], styles: Sequence[str]) -> Context:
    """Classes × clusters, each class beside the cluster that holds most of it."""
    if "contingency" not in scores:
        return {"columns": [], "rows": []}
    table, names = np.asarray(scores["contingency"], np.int64).T, [str(name) for name in scores["classes"]]
    filled = int(np.count_nonzero(table.sum(axis=0)))
    clusters = np.argsort(-table.sum(axis=0), kind="stable")[: min(filled, MOST_CLASSES)]
    largest = np.argsort(-table.sum(axis=1), kind="stable")[:MOST_CLASSES]
    order = largest[np.argsort(table[np.ix_(largest, clusters)].argmax(axis=1), kind="stable")]
    rows = []
    for place in order.tolist():
        total = max(1, int(table[place].sum()))
        cells = [
            {"count": f"{c:,}" if c else "·", "share": round(100 * c / total)} for c in table[place][clusters].tolist()
        ]
        rows.append({"name": _shortened(names[place], 40), "cells": cells})
    columns = [{"name": int(cluster), "style": styles[cluster]} for cluster in clusters.tolist()]
    left = [
        f"{n} {what}" for n, what in ((len(names) - len(order), "classes"), (filled - len(clusters), "clusters")) if n
    ]
    about = f" The smallest {' and '.join(left)} are left out." if left else ""
    return {"columns": columns, "rows": rows, "table_words": f"Samples of each class in each cluster.{about}"}


def _run(store: StoredConsensus, ensemble: Ensemble | None) -> Context:
    facts = store.facts
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in facts["memory"].items())
    words = (
        f"{_seconds(sum(facts['seconds'].values()))} in all, {_count(facts['sweeps'], 'sweep')} over the labels, "
        f"{format_bytes(facts['bytes_read'])} read; memory per process: {memory}."
    )
    identity = facts["identity"]
    settings = [
        # Not the seed that was given, but the one drawn with it.
        (SEED if name == "seed" else name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in settings_told(identity).items()
        if name != "labels"
    ]
    origin = [("consensus", store.url)]
    if ensemble is not None:
        origin += [("ensemble", ensemble.url), ("its source", ensemble.source)]
    origin += [("fingerprint", str(identity["labels"]))]
    origin += [(name, str(version)) for name, version in facts["versions"].items()]
    return {"run_words": words, "settings": settings, "origin": [(name, value) for name, value in origin if value]}


def _picture(
    plane: Plane,
    seen: Seen,
    names: Mapping[int, str],
    stages: Sequence[Context],
    classes: Sequence[str],
    n_samples: int,
    drawn: dict[str, Markup],
) -> Context:
    """The picture with its slider, and small pictures for readers without scripts."""
    points = figures.Points(*figures.place_points(plane.coordinates), _says(seen, names))
    drawn["picture"] = figures.picture(points, seen.labels, seen.margin, classes)
    which = "All samples" if len(seen.rows) == n_samples else f"{len(seen.rows):,} of {n_samples:,} samples"
    small = [
        {"name": stage["name"], "figure": figures.multiple(points, stage["labels"], classes, stage["name"])}
        for stage in _few(stages, MULTIPLES)
    ]
    names_only = [stage["name"] for stage in stages]
    far = " Outliers are drawn on the border." if figures.on_border(points) else ""
    return {"caption": f"{which}, placed by {plane.axes}.{far}", "stages": names_only, "multiples": small}


def _says(seen: Seen, names: Mapping[int, str]) -> list[str]:
    """What a point is."""
    said = []
    for row, label, margin in zip(seen.rows.tolist(), seen.labels.tolist(), seen.margin.tolist(), strict=True):
        name = f"{_shortened(names[row])} (row {row:,})" if names else f"row {row:,}"
        said.append(f"{name}: cluster {label}, margin {margin:.2f}" if label >= 0 else f"{name}: no base label")
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
        ("picture", "Samples"),
        ("clusters", "Clusters"),
        ("doubtful", "Least certain"),
        ("candidates", "Candidates"),
        ("rounds", "Rounds"),
        ("members", "Members"),
        ("choice", "Choice of k"),
        ("truth", "Truth"),
        ("run", "Run"),
    ]
    optional_ones = ("picture", "candidates", "choice", "truth")
    return [(key, name) for key, name in names if key not in optional_ones or context[key] is not None]
