"""How the result came about, as text and tables for the template: candidates, rounds, choice of k, settings, origin.

Between the findings and the page, beside ``sections``, which tell what came out.
"""

from markupsafe import Markup

from cehm_dask.data.consensus_store import StoredConsensus
from cehm_dask.data.ensemble_store import Ensemble
from cehm_dask.machine import format_bytes
from cehm_dask.method.params import PAPER, settings_told
from cehm_dask.profiles.words import number, percent
from cehm_dask.report import figures
from cehm_dask.report.words import Context, cell, count, seconds, sentence

SEED = "seed of the starts, drawn"

STARTS = {
    "medoids": "k-medoids of the base clusters, without their overlaps",
    "spectral": "spectral cut of the graph of samples and base clusters (U‑SENC)",
    "links": "spectral cut, base clusters linked by common neighbours (WCT)",
    "walks": "random walks between base clusters",
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


def stages_of(facts: Context) -> list[str]:
    """Stage of every round of the chosen problem."""
    diffused = len(facts["growth"]) - 1
    return ["start", *(["diffusion"] * diffused), *(["adjustion"] * (facts["rounds"] - 1 - diffused))]


def candidates(facts: Context) -> Context | None:
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
            f"Of {len(candidates)} candidates, the one with the largest 2τ + evenness was kept: "
            f"{largest} (start: {plain_start(kept['start'])}; belonging: "
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
                "start": plain_start(own["start"]),
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


def plain_start(name: str) -> str:
    """How a candidate began; further medoid starts are "medoids 2" and so on."""
    kind, _, number = name.partition(" ")
    return STARTS.get(kind, kind) + (f", solution {number}" if number else "")


def rounds(facts: Context) -> Context:
    stages = stages_of(facts)
    grown, adjusted = stages.count("diffusion"), stages.count("adjustion")
    n = facts["n_samples"] - facts["n_silent"]
    ended = "until none moved" if facts["converged"] else "and was stopped there"
    competed = bool(facts.get("candidates"))
    rounds = f"adjustion took {count(adjusted, 'round' if competed else 'more round')} {ended}."
    if competed:
        words = f"The kept candidate gave each of {n:,} samples a cluster at the start; {rounds}"
    else:
        words = f"The medoids alone held {facts['growth'][0]:,} of {n:,} samples. "
        if grown == 1:
            words += f"One round of diffusion assigned the others; {rounds}"
        elif grown:
            words += f"{count(grown, 'round')} of diffusion assigned the others, the surest first; {rounds}"
        else:
            words += sentence(rounds)
    if facts["losses"]:
        words += f" The last loss is {number(facts['losses'][-1])}"
        if facts.get("loss_fractions"):
            words += f", {percent(facts['loss_fractions'][-1])} of the largest that is possible"
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


def choice(facts: Context, drawn: dict[str, Markup]) -> Context | None:
    scan: list[Context] = sorted(facts.get("scan", []), key=lambda own: int(own["n_clusters"]))
    if len(scan) < 2:
        return None
    ks = [int(own["n_clusters"]) for own in scan]
    names = [name for name in ("agreement", "margin", "stability") if any(own.get(name) is not None for own in scan)]
    styles = {"agreement": "accent", "margin": "adjustion", "stability": "warn"}
    series = [figures.Series(name, styles[name], [own.get(name) for own in scan]) for name in names]
    chosen = facts.get("choice", {})
    words = f"{count(len(ks), 'value')} of k were run side by side; k = {facts['n_clusters']} was taken."
    if chosen:
        words += f" {'' if chosen['clear'] else 'There is no clear k. '}{sentence(chosen['reason'])}"
    keys = ["n_clusters", *names, "loss"]
    if any(own.get("n_clusters_found", own["n_clusters"]) < own["n_clusters"] for own in scan):
        keys.insert(1, "n_clusters_found")
    columns = [{"n_clusters": "k", "n_clusters_found": "found"}.get(key, key) for key in keys]
    rows = [
        {"chosen": own["n_clusters"] == facts["n_clusters"], "cells": [cell(own.get(key)) for key in keys]}
        for own in scan
    ]
    drawn["choice"] = figures.choice(ks, series, facts["n_clusters"])
    return {"words": words, "columns": columns, "rows": rows}


def run(store: StoredConsensus, ensemble: Ensemble | None) -> Context:
    facts = store.facts
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in facts["memory"].items())
    words = (
        f"{seconds(sum(facts['seconds'].values()))} in all, {count(facts['sweeps'], 'sweep')} over the labels, "
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
