"""How something is asked for, in the words of the place that errors are read in.

Below everything. The same refusal reaches users of Python, of the command and of a recipe; each is told the argument,
the option or the key that helps. Whoever opens a place says so (:func:`speaking`); without it, Python is spoken.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

Place = Literal["python", "command", "recipe"]

RECIPE_KEYS = frozenset(
    {"columns", "drop", "id", "categories", "dates", "impute", "scale", "memory"}
    | {"k", "members", "base", "k_min", "k_max", "fit_rows", "full_lloyd"}
    | {"subspace", "projection", "bootstrap", "subsample"}
)
"""What a recipe can say; the rest is asked for where the recipe is run."""

_places: list[Place] = ["python"]
"""Of this process, the innermost last; not of a thread, because threads of a sweep raise errors too."""


@contextmanager
def speaking(place: Place) -> Iterator[None]:
    """Errors inside the block are in the words of this place."""
    _places.append(place)
    try:
        yield
    finally:
        _places.pop()


def spoken() -> Place:
    """The place that errors are read in."""
    return _places[-1]


def option(name: str, value: Any = True) -> str:
    """How to ask for something here.

    >>> option("impute", "mean"), option("drop", ["a", "b"])
    ("impute='mean'", "drop=['a', 'b']")
    >>> with speaking("command"):
    ...     option("fit_rows", 9), option("drop", ["a", "b"]), option("overwrite")
    ('--fit-rows 9', '--drop a --drop b', '--overwrite')
    >>> with speaking("recipe"):
    ...     option("drop", ["a", "b"])
    'drop: [a, b]'
    """
    place = _places[-1]
    if place == "recipe" and name not in RECIPE_KEYS:
        place = next(outer for outer in reversed(_places) if outer != "recipe")
    if place == "recipe":
        return f"{name}: [{', '.join(map(str, value))}]" if isinstance(value, list) else f"{name}: {value}"
    if place == "python":
        return f"{name}={value!r}"
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    return " ".join(f"{flag} {_quoted(one)}" for one in (value if isinstance(value, list) else [value]))


def _quoted(value: Any) -> str:
    text = str(value)
    return f"'{text}'" if set(text) & set(" \t'\"$&|;()<>*?") else text
