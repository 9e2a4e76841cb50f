"""Numbers and texts as the report's sentences and tables have them.

Below the sections, which fill the template with them.
"""

from typing import Any

from cehm_dask.profiles.words import number

Context = dict[str, Any]
"""What the template is given, by name."""


def count(number: int, thing: str, things: str | None = None) -> str:
    return f"{number:,} {thing if number == 1 else things or f'{thing}s'}"


def shortened(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def seconds(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.1f} h"
    return f"{value / 60:.1f} min" if value >= 120 else f"{value:.3g} s"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}" if value < 1e3 else number(value)
