"""What came out, as text and tables for the template: key figures, clusters, doubtful samples, members, scores.

Between the findings and the page, beside ``course``, which tells how the result came about.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import StoredConsensus
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.data.labels import Labels
from cehm_dask.report import figures
from cehm_dask.report.findings import (
    OUTLYING_AT_LEAST,
    OUTLYING_MADS,
    Members,
    Seen,
    optional,
    quantiles,
    runners_up,
)
from cehm_dask.report.words import Context, cell, count, seconds, shortened

MOST_TABLE_ROWS = 200
"""Clusters, or members, in a table."""
MOST_CLASSES = 30
"""Clusters, and classes, in the table against the truth."""

SCORES = {
    "nmi": "NMI",
    "ari": "ARI",
    "accuracy": "accuracy",
    "purity": "purity",
    "homogeneity": "homogeneity",
    "completeness": "completeness",
    "v_measure": "V-measure",
}


def lead(facts: Context, ensemble: Ensemble | None) -> str:
    told = "" if ensemble is None or not ensemble.source else f" ({shortened(os.path.basename(ensemble.source))})"
    return (
        f"{count(facts['n_members'], 'clustering')} of {count(facts['n_samples'], 'sample')}{told} went in, one "
        f"clustering with {count(facts['n_clusters_found'], 'cluster')} came out, with a confidence for every sample."
    )


def _tile(name: str, value: str, about: str = "") -> Context:
    return {"name": name, "value": value, "about": about}


def _between(members: Members) -> float:
    """Mean NMI of two different members."""
    return float(np.nanmean(members.with_others))


def tiles(facts: Context, seen: Seen, scores: Mapping[str, Any] | None) -> list[Context]:
    tiles = [
        _tile("samples", f"{facts['n_samples']:,}"),
        _tile("members", f"{facts['n_members']:,}"),
        _tile("clusters", f"{facts['n_clusters_found']:,}", f"of k = {facts['n_clusters']:,} asked for"),
        _tile("agreement", f"{facts['agreement']:.3f}", "mean NMI with the members"),
        _tile("margin", f"{seen.mean_margin:.3f}", "mean of the samples"),
    ]
    if scores is not None and "scores" in scores:
        tiles += [_tile(SCORES[key], f"{scores['scores'][key]:.3f}", "against the truth") for key in ("nmi", "ari")]
    tiles.append(_tile("time", seconds(sum(facts["seconds"].values())), count(facts["sweeps"], "sweep")))
    return tiles


def notes(facts: Context) -> list[str]:
    """What a careful reader would want to know first."""
    notes = []
    if not facts["converged"]:
        notes.append("Adjustion still moved samples when it was stopped; raise max_iter to let it converge.")
    if facts["n_clusters_found"] < facts["n_clusters"]:
        lost = facts["n_clusters"] - facts["n_clusters_found"]
        notes.append(f"{count(lost, 'cluster')} of the {facts['n_clusters']:,} asked for lost all samples.")
    if facts["n_silent"]:
        notes.append(f"{count(facts['n_silent'], 'sample')} without any base label: label -1, in no cluster.")
    if not facts.get("choice", {}).get("clear", True):
        notes.append(f"No clear number of clusters: {facts['choice']['reason']}")
    return notes


def confidence_words(seen: Seen) -> str:
    low, middle = quantiles(seen.histogram, [0.05, 0.5])
    return (
        f"Half of the samples lead with a margin of {middle:.2f} or more, on average it is {seen.mean_margin:.3f}; "
        f"one sample in twenty stays below {low:.2f}."
    )


def margin_words(seen: Seen) -> str:
    words = "The margin is how far a sample’s cluster leads the runner-up, "
    if seen.unit == 1.0:
        return words + "as a share of what the members could give: 0 a tie, 1 unanimous."
    return words + f"as a share of the largest lead ({seen.unit:,.6g} of the counts in Eq. 5, per member): 0 a tie."


def cluster_table(
    store: StoredConsensus,
    sizes: NDArray[np.int64],
    seen: Seen,
    classes: Sequence[str],
    called: Sequence[str],
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
                f"cluster {edge - first} of member {shortened(members.names[owner[edge]], 40)}, "
                f"{count(int(edge_sizes[edge]), 'sample')}"
            )
        rows.append(
            {
                "number": called[cluster],
                "style": classes[cluster],
                "size": int(sizes[cluster]),
                "share": float(sizes[cluster] / max(1, sizes.sum())),
                "margin": float(seen.cluster_margin[cluster]),
                "medoid": grew,
            }
        )
    title = "base cluster most like it at the start" if store.facts.get("candidates") else "grew from"
    return {"cluster_rows": rows, "clusters_left_out": len(order) - len(rows), "medoid_title": title}


def doubtful(
    store: StoredConsensus,
    labels: Labels | None,
    seen: Seen,
    names: Mapping[int, str],
    classes: Sequence[str],
    called: Sequence[str],
) -> Context:
    second = None if labels is None else runners_up(store, labels, seen.doubtful, seen.doubtful_labels)
    rows = []
    for place, (row, label) in enumerate(zip(seen.doubtful.tolist(), seen.doubtful_labels.tolist(), strict=True)):
        runner_up = -1 if second is None else int(second[place])
        rows.append(
            {
                "row": row,
                "id": shortened(names.get(row, "")),
                "cluster": called[label],
                "style": classes[label],
                "runner_up": called[runner_up] if runner_up >= 0 else "",
                "runner_style": classes[runner_up] if runner_up >= 0 else "",
                "margin": float(seen.doubtful_margin[place]),
            }
        )
    words = f"The {count(len(rows), 'sample')} with the smallest margins, the least certain first; rows count from 0."
    return {
        "doubtful": rows,
        "has_ids": bool(names),
        "has_runner_up": second is not None,
        "doubtful_words": words,
    }


def members(members: Members, ensemble: Ensemble | None, scores: Mapping[str, Any] | None) -> Context:
    scored = [member.get("nmi") for member in (scores or {}).get("members", [])]
    algorithms = [member.get("algorithm", "") for member in ensemble.members] if ensemble is not None else []
    has_algorithm = len(algorithms) == len(members.names) and any(algorithms)
    # Outlying ones first, then by how far they are from the others.
    order = np.lexsort((members.with_others, ~members.outlying)).tolist()
    shown = sorted(order[:MOST_TABLE_ROWS], key=lambda j: (not members.outlying[j], j))
    rows = [
        {
            "name": shortened(members.names[j]),
            "algorithm": algorithms[j] if has_algorithm else "",
            "clusters": int(members.clusters[j]),
            "with_others": "" if math.isnan(members.with_others[j]) else f"{members.with_others[j]:.3f}",
            "with_consensus": f"{members.with_consensus[j]:.3f}",
            "with_truth": cell(scored[j]) if scored else "",
            "outlying": bool(members.outlying[j]),
        }
        for j in shown
    ]
    low, high = int(members.clusters.min()), int(members.clusters.max())
    span = f"{low}" if low == high else f"{low} to {high}"
    edges = count(int(members.clusters.sum()), "hyperedge")
    words = f"{count(len(members.names), 'member')} with {span} clusters{' each' if len(members.names) > 1 else ''}, "
    words += f"{edges} in all."
    if len(members.names) > 1:
        words += f" Two of them agree with a mean NMI of {_between(members):.3f}."
    outlying = [shortened(members.names[j]) for j in np.flatnonzero(members.outlying)]
    if outlying:
        named = ", ".join(outlying[:5]) + (f" and {len(outlying) - 5} more" if len(outlying) > 5 else "")
        words += f" Least like the others: {named}."
    left = len(members.names) - len(members.shown)
    agreement_words = (
        "The fuller the colour, the more alike two members are; similar members are neighbours. "
        f"A member is outlying (▶) if its mean NMI with the others lies below {members.limit:.3f}: the median less "
        f"{OUTLYING_MADS:g} scaled median absolute deviations, and at least {OUTLYING_AT_LEAST:g}."
        + (f" {left:,} members are left out: not outlying, or not compared with others." if left else "")
    )
    return {
        "member_words": words,
        "member_rows": rows,
        "members_left_out": len(members.names) - len(rows),
        "has_algorithm": has_algorithm,
        "has_truth": bool(scored),
        "agreement_words": agreement_words,
    }


def map_words(found: figures.HyperedgeMap, counts: NDArray[np.int64]) -> str:
    words = "Each line is a base cluster, each column a cluster; the fuller the colour, the more of it is there."
    if found.per_row > 1:
        words += f" Lines are means of {found.per_row} neighbours, because there are {len(counts):,} hyperedges."
    if found.others:
        words += f" The {found.others:,} smallest clusters are left out."
    return words


def map_rows(found: figures.HyperedgeMap) -> list[str]:
    if found.per_row == 1:
        return [f"line {i + 1}" for i in range(len(found.shares))]
    return [f"lines {i * found.per_row + 1} to {(i + 1) * found.per_row}" for i in range(len(found.shares))]


def truth(scores: Mapping[str, Any] | None, classes: Sequence[str], called: Sequence[str]) -> Context | None:
    if scores is None or "scores" not in scores:
        return None
    lines = [("the consensus", scores["scores"])]
    if "certain_half" in scores:
        half = scores["certain_half"]
        lines.append((f"its more certain half (margin from {half['margin_from']:.2f})", half))
    if "members_mean" in scores:
        lines.append(("the members, mean", scores["members_mean"]))
    rows = [(name, [cell(own.get(key)) for key in SCORES]) for name, own in lines]
    words = f"{scores['n_scored']:,} samples with a known class, of {count(scores['n_classes'], 'class', 'classes')}."
    return {"words": words, "names": list(SCORES.values()), "lines": rows, **_contingency(scores, classes, called)}


def _contingency(scores: Mapping[str, Any], styles: Sequence[str], called: Sequence[str]) -> Context:
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
        rows.append({"name": shortened(names[place], 40), "cells": cells})
    columns = [{"name": called[cluster], "style": styles[cluster]} for cluster in clusters.tolist()]
    left = [
        f"{n} {what}" for n, what in ((len(names) - len(order), "classes"), (filled - len(clusters), "clusters")) if n
    ]
    about = f" The smallest {' and '.join(left)} are left out." if left else ""
    return {"columns": columns, "rows": rows, "table_words": f"Samples of each class in each cluster.{about}"}
