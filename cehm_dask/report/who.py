"""Who the clusters are, as text for the head of the page: a card each, and which features tell them apart.

Beside ``sections``. The numbers are those of the profile; names go through the template's escaping.
"""

from collections.abc import Mapping
from typing import Any

from cehm_dask.profiles.profile import Profile
from cehm_dask.profiles.words import effect, percent
from cehm_dask.report.words import Context, shortened

MOST_CARDS = 60
"""Clusters with a card of their own, the largest."""
MOST_SCREENED = 100
"""Features in the table."""
FULL_BAR = 3.0
"""Standard deviations of a whole bar."""
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
        }
        for one in own["telling"]
    ]
    return {
        "style": style,
        "title": f"Cluster {own['cluster']}",
        "sentence": own["sentence"],
        "traits": traits,
        "more": _more(own),
    }


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
