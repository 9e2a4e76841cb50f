"""A YAML recipe, read and checked: everything that a run depends on, in one file.

Below the run, beside the estimators. Values come from the file, from the environment (``${VAR}``) and from overrides
(``consensus.k=12``), and whatever is wrong is said at once: line, key, value and what is allowed.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cehm_dask.data.settings import Key, dotted, expand, explained, read_text, read_yaml, unset
from cehm_dask.errors import InputError, NotFoundError
from cehm_dask.masking import masked, shown
from cehm_dask.pipeline.recipe_model import (
    Alerts,
    ConsensusSection,
    EnsembleSection,
    Expect,
    FeatureSource,
    Hooks,
    LabelSource,
    Recipe,
    Section,
    Truth,
    across,
)

MOST_COMPLAINTS = 100
"""Reported at once; a data file that was passed by mistake would give many more."""


class RecipeError(InputError):
    """A recipe that cannot be run; every complaint on a line of its own."""


def load(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Recipe:
    """Read and check a recipe file.

    Parameters
    ----------
    path : path
    overrides : sequence of str
        Such as ``consensus.k=12``; the value is read as YAML.
    environment : mapping, optional
        Where ``${VAR}`` and ``${VAR:-default}`` come from; default: the process's.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"recipe {file}: no such file")
    try:
        text = read_text(file)
    except InputError as error:
        raise RecipeError(str(error)) from error
    return parse(text, overrides, environment, name=str(file))


def parse(
    text: str,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    name: str = "recipe",
) -> Recipe:
    """Check the text of a recipe; ``name`` is what errors call it."""
    try:
        found = read_yaml(text, name)
    except InputError as error:
        raise RecipeError(str(error)) from error
    data = found.data
    if not isinstance(data, dict):
        there = "it is empty" if data is None else f"it holds {shown(data)}"
        raise RecipeError(f"{name}: expected keys such as 'features' and 'consensus', {there}")
    check = _Check(name, found.lines)
    for key, line in found.repeated:
        check.complaints.append(f"{name}:{line}: {dotted(key)}: is there already in line {found.lines[key]}")
    for override in overrides:
        _set(data, override, check)
    expanded = expand(data, environment)
    for key, variable in expanded.missing:
        check.add(key, unset(variable))
    gone = {key for key, _ in expanded.missing}
    data, recipe = expanded.data, None
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        for one in error.errors()[:MOST_COMPLAINTS]:
            key = tuple(one["loc"])
            if key and not any(key[: len(missing)] == missing for missing in gone):
                check.add(*explained(one, _section))
        for key, message in across(data):
            if key not in gone:
                check.add(key, message)
    if recipe is None or check.complaints:
        raise RecipeError(masked("\n".join(check.complaints)))
    recipe._from_environment = expanded.written
    return recipe


@dataclass
class _Check:
    """Complaints in the order they are found, each with its line."""

    name: str
    lines: Mapping[Key, int | str]
    complaints: list[str] = field(default_factory=list)
    set_by: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, message: str) -> None:
        complaint = f"{self._place(key)}{dotted(key)}: {message}" if key else f"{self.name}: {message}"
        if complaint not in self.complaints:
            self.complaints.append(complaint)

    def _place(self, key: Key) -> str:
        for length in range(len(key), 0, -1):
            if key[:length] in self.set_by:
                return f"--set {self.set_by[key[:length]]}: "
            if key[:length] in self.lines:
                return f"{self.name}:{self.lines[key[:length]]}: "
        return f"{self.name}: "


def _set(data: dict[str, Any], override: str, check: _Check) -> None:
    """Put an override such as ``consensus.k=12`` in its place."""
    name, equals, text = override.partition("=")
    key: Key = tuple(name.strip().split("."))
    if not equals or "" in key:
        check.complaints.append(f"--set {override}: expected KEY=VALUE, such as consensus.k=12")
        return
    try:
        value = read_yaml(text, "the value").data
    except InputError as error:
        check.complaints.append(f"--set {override}: the value is {str(error).partition(': ')[2]}")
        return
    inner: Any = data
    for part in key[:-1]:
        if inner.get(part) is None:
            inner[part] = {}
        inner = inner[part]
        if not isinstance(inner, dict):
            check.complaints.append(f"--set {override}: {part!r} is a value, it has no keys in it")
            return
    inner[key[-1]] = value
    check.set_by[key] = override


def _section(key: Key) -> type[Section]:
    """The model of a section."""
    sections: dict[Key, type[Section]] = {
        ("features",): FeatureSource,
        ("labels",): LabelSource,
        ("ensemble",): EnsembleSection,
        ("consensus",): ConsensusSection,
        ("truth",): Truth,
        ("expect",): Expect,
        ("alert",): Alerts,
        ("hooks",): Hooks,
    }
    return sections.get(key, Recipe)


def example() -> str:
    """A commented recipe that runs."""
    return (files("cehm_dask") / "demo.yaml").read_text(encoding="utf-8")
