"""Who the clusters are, as text for the head of the page: a card each, and which features tell them apart.

Beside ``sections``. The numbers are those of the profile; names go through the template's escaping.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.names import are_names
from cehm_dask.profiles.profile import TELLING, Profile, ranked
from cehm_dask.profiles.words import WORTH_SAYING, effect, number, percent
from cehm_dask.report.heatmaps import MOST_SQUARES
from cehm_dask.report.words import Context, count, shortened

MOST_CARDS = 60
"""Clusters with a card of their own, the largest."""
MOST_SCREENED = 100
"""Features in the table."""
FULL_BAR = 3.0
"""Standard deviations of a whole bar."""
MOST_FEATURES = 22
"""In the map of profiles."""
MOST_NAMED = 3
"""Examples of a cluster."""


def clusters(profile: Profile, styles: Mapping[str, str]) -> Context:
    """Cards of the clusters, largest first; styles by name."""
    rows = sorted(profile.clusters, key=lambda own: -own["size"])
    shown = rows[:MOST_CARDS]
    left = len(rows) - len(shown)
    words = "What sets each cluster apart from all others together, in standard deviations (sd) of all samples."
    if not profile.features and not profile.screen:
        words = "There are no features to describe the clusters by; a table of the same rows will do (cehm describe)."
    told = [f"The {left:,} smallest clusters are left out."] if left else []
    if profile.left_out:
        names = ", ".join(shortened(name) for name in profile.left_out[:5])
        told.append(f"Not counted, because nearly every row has a value of its own: {names}.")
    return {
        "profile_words": words,
        "profile_rows": [_card(own, styles[str(own["cluster"])]) for own in shown],
        "profiles_left_out": " ".join(told),
        **_screen(profile),
    }


def _card(own: Mapping[str, Any], style: str) -> Context:
    traits = [
        {
            "name": shortened(one["feature"]),
            "side": "more" if one["effect"] > 0 else "less",
            "size": round(min(1.0, abs(one["effect"]) / FULL_BAR) * 50, 1),
            "effect": effect(one["effect"]),
            "mean": number(one["mean"]),
        }
        for one in own["telling"]
    ]
    kinds = [
        f"{shortened(one['column'], 30)} = {shortened(one['value'], 30)}: {percent(one['share'])}, elsewhere "
        f"{percent(one['elsewhere'])}"
        for one in own["categories"][:MOST_NAMED]
        if one["share"] - one["elsewhere"] >= WORTH_SAYING / 3
    ]
    return {
        "style": style,
        "title": f"Cluster {own['cluster']}",
        "size": f"{count(own['size'], 'sample')}, {percent(own['share'])}",
        "share": round(100 * own["share"], 1),
        "confidence": own["confidence"],
        "traits": traits,
        "kinds": kinds,
        "average": bool(own["telling"]) and not kinds and abs(own["telling"][0]["effect"]) < WORTH_SAYING,
        "more": _more(own),
    }


@dataclass(frozen=True, eq=False)
class Telling:
    """Effects of the most telling features, features × clusters."""

    effects: NDArray[np.float64]
    names: list[str]
    clusters: list[str]
    words: str


def telling_map(profile: Profile) -> Telling | None:
    """The features that tell most of any cluster, like beside like; None without features of numbers."""
    filled = sorted(profile.clusters, key=lambda own: -own["size"])
    clusters = filled[:MOST_SQUARES]
    if not profile.features or len(filled) < 2:
        return None
    table = np.array([[np.nan if value is None else value for value in own["effect"]] for own in clusters])
    by_rank = [ranked(own)[:TELLING] for own in table]
    # In turns, the largest cluster first, so that none is left without a feature of its own.
    wanted = dict.fromkeys(int(own[rank]) for rank in range(TELLING) for own in by_rank if rank < len(own))
    known = [j for j in wanted if np.isfinite(table[:, j]).any()][:MOST_FEATURES]
    if not known:
        return None
    effects = table[:, known].T
    size = np.abs(np.nan_to_num(effects))
    order = np.lexsort((-size.max(axis=1), size.argmax(axis=1)))
    names = list(profile.features) if are_names(profile.features) else [f"column {name}" for name in profile.features]
    left = len(profile.features) - len(known)
    words = (
        "Mean of a cluster less that of all other clusters together, in standard deviations of all samples: blue "
        "above, orange below."
        + (f" The {len(known)} most telling of {len(profile.features):,} features." if left else "")
        + (f" The {len(clusters)} largest clusters." if len(clusters) < len(filled) else "")
    )
    shown = [shortened(names[known[place]]) for place in order.tolist()]
    return Telling(effects[order], shown, [str(own["cluster"]) for own in clusters], words)


def _more(own: Mapping[str, Any]) -> str:
    """Neighbour and examples."""
    said = []
    if (near := own["nearest"]) is not None:
        said.append(f"Nearest: cluster {near['cluster']}, {near['distance']:.1f} sd away.")
    for title, kind in (("Typical", "prototypes"), ("At the border", "borders")):
        if own[kind]:
            named = [shortened(one["id"], 30) if "id" in one else f"row {one['row']:,}" for one in own[kind]]
            said.append(f"{title}: {', '.join(named[:MOST_NAMED])}.")
    return " ".join(said)


def _screen(profile: Profile) -> Context:
    rows = []
    for one in profile.screen[:MOST_SCREENED]:
        value, v = one.get("explained"), one.get("cramers_v")
        told = "constant" if value is None and v is None else percent(value) if value is not None else f"V = {v:.2f}"
        rows.append({"name": shortened(one["feature"]), "value": (value or 0.0) ** 0.5 or v or 0.0, "told": told})
    words = (
        "Of a number: the share of its variance that lies between the clusters. Of categories: Cramér’s V, 0 where "
        "they have nothing to do with the clusters, 1 where each says the other."
    )
    return {"screen_rows": rows, "screen_words": words}
