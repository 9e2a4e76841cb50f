"""A cluster in one sentence, and numbers as people write them.

Below the profile, which holds the sentences; the report and the command use the numbers too.
"""

import math
from collections.abc import Mapping
from typing import Any

MOST_SAID = 3
"""Features in a sentence."""
WORTH_SAYING = 0.3
"""Standard deviations from the rest below which nothing is said; of shares, a third of it."""
MOST_LETTERS = 40
"""Of a name in a sentence."""

LARGE = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None) -> str:
    """A number with about three digits, in words where it is large.

    >>> number(0.123456), number(1234.5), number(3.99998e10), number(-2.5e-9), number(5.0), number(None)
    ('0.123', '1,234', '40 billion', '−2.5 × 10⁻⁹', '5', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    sign, size = "−" if value < 0 else "", abs(value)
    if size and not 1e-4 <= size < 1e15:
        digits, power = f"{size:.2e}".split("e")
        return f"{sign}{float(digits):g} × 10{str(int(power)).translate(_RAISED)}"
    for unit, word in LARGE:
        if size >= unit:
            return f"{sign}{_three(size / unit)} {word}"
    return sign + _three(size)


def _three(size: float) -> str:
    if size >= 100:
        return f"{size:,.0f}"
    digits = 2 if size == 0 else 2 - math.floor(math.log10(size))
    text = f"{size:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def effect(value: float) -> str:
    """
    >>> effect(1.84), effect(-1.2)
    ('+1.8 sd', '−1.2 sd')
    """
    return f"{'−' if value < 0 else '+'}{abs(value):.1f} sd"


def percent(share: float) -> str:
    """
    >>> percent(0.1013), percent(0.0042), percent(1e-6), percent(1.0)
    ('10 %', '0.4 %', 'under 0.1 %', '100 %')
    """
    if 0 < share < 0.001:
        return "under 0.1 %"
    return f"{100 * share:.0f} %" if share >= 0.01 or not share else f"{100 * share:.1f} %"


def shortened(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"


def sentence(cluster: Mapping[str, Any]) -> str:
    """Size, confidence and what sets a cluster apart."""
    size = cluster["size"]
    said = f"Cluster {cluster['cluster']}: {size:,} sample{'s' * (size != 1)} ({percent(cluster['share'])})"
    if cluster["confidence"] is not None:
        said += f", confidence {cluster['confidence']:.2f}"
    traits = [
        f"{'higher' if one['effect'] > 0 else 'lower'} {shortened(one['feature'])} ({effect(one['effect'])})"
        for one in cluster["telling"][:MOST_SAID]
        if abs(one["effect"]) >= WORTH_SAYING
    ]
    traits += [
        f"more {shortened(one['column'])} = {shortened(one['value'])} ({percent(one['share'])}, elsewhere "
        f"{percent(one['elsewhere'])})"
        for one in cluster["categories"][:MOST_SAID]
        if one["share"] - one["elsewhere"] >= WORTH_SAYING / 3
    ]
    if traits:
        return f"{said}; {', '.join(traits)}"
    return f"{said}; close to the average in every feature" if cluster["telling"] else said
