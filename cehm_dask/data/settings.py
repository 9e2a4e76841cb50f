"""YAML that people write → plain values, with the line of every key and ``${VAR}`` filled in.

Below recipes and cluster files, which are read the same way: safely, without aliases, without tags beyond plain values,
a key only once. The value of a variable is remembered as a secret.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import yaml

from cehm_dask.errors import InputError
from cehm_dask.masking import remember, remember_credentials, shown

Key = tuple[str | int, ...]
"""Place of a value: ("consensus", "k")."""

MOST_CHARACTERS = 1 << 18
"""Of a file; a recipe has a few thousand."""

_TAG = "tag:yaml.org,2002:"
_SCALARS = {f"{_TAG}{name}" for name in ("str", "int", "float", "bool", "null")}
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class _Loader(yaml.SafeLoader):
    """Safe, and without aliases: a few lines of them can expand to more data than fits any memory."""

    # A date is text here, as in the name of a file.
    yaml_implicit_resolvers = {  # noqa: RUF012
        letter: [(tag, pattern) for tag, pattern in found if tag != f"{_TAG}timestamp"]
        for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", self.get_mark())
        return super().compose_node(parent, index)

    def plain(self, node: Any) -> Any:
        """The value of a scalar."""
        if node.tag not in _SCALARS:
            raise yaml.constructor.ConstructorError(None, None, f"tag {node.tag} is not allowed", node.start_mark)
        if "\0" in node.value:  # no file has such a name
            raise yaml.constructor.ConstructorError(None, None, "a null character is not allowed", node.start_mark)
        try:
            return self.construct_object(node)
        except (ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            kind = node.tag.removeprefix(_TAG)
            words = f"{shown(node.value)} is no {kind}"
            raise yaml.constructor.ConstructorError(None, None, words, node.start_mark) from error


@dataclass
class Written:
    """What a text holds."""

    data: Any
    lines: dict[Key, int] = field(default_factory=dict)
    """Of every key."""
    repeated: list[tuple[Key, int]] = field(default_factory=list)
    """Keys that are there more than once, and the line of the second."""


def read_yaml(text: str, name: str) -> Written:
    """The values of a YAML text; ``name`` is what errors call it."""
    if len(text) > MOST_CHARACTERS:
        raise InputError(f"{name}: {len(text):,} characters, expected at most {MOST_CHARACTERS:,}: is it a data file?")
    found = Written(None)

    def value_of(loader: _Loader, node: Any, key: Key) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return loader.plain(node)
        if node.tag not in (loader.DEFAULT_MAPPING_TAG, loader.DEFAULT_SEQUENCE_TAG):
            raise yaml.constructor.ConstructorError(None, None, f"tag {node.tag} is not allowed", node.start_mark)
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                found.lines[(*key, i)] = item.start_mark.line + 1
            return [value_of(loader, item, (*key, i)) for i, item in enumerate(node.value)]
        values: dict[str, Any] = {}
        for left, right in node.value:
            if not isinstance(left, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "expected a name as key", left.start_mark)
            inner = str(loader.plain(left))
            place, line = (*key, inner), left.start_mark.line + 1
            if inner in values:
                found.repeated.append((place, line))
            else:
                found.lines[place] = line
            values[inner] = value_of(loader, right, place)
        return values

    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            found.data = None if root is None else value_of(loader, root, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{name}{line}: not YAML: {error.problem or error.context}") from error
    except RecursionError as error:
        raise InputError(f"{name}: not YAML: nested too deeply") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{name}: not YAML: {' '.join(str(error).split())}") from error
    return found


@dataclass
class Expanded:
    """Values with ``${VAR}`` filled in."""

    data: Any
    written: dict[Key, str] = field(default_factory=dict)
    """Texts that held variables, as they were written."""
    missing: list[tuple[Key, str]] = field(default_factory=list)
    """Variables that are not set."""


def expand(data: Any, environment: Mapping[str, str] | None = None, leave: frozenset[str] = frozenset()) -> Expanded:
    """Fill ``${VAR}`` and ``${VAR:-default}`` in, and remember the values as secrets; not below the keys ``leave``."""
    found = Expanded(None)
    values = os.environ if environment is None else environment

    def filled(value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {name: inner if name in leave else filled(inner, (*key, name)) for name, inner in value.items()}
        if isinstance(value, list):
            return [filled(inner, (*key, i)) for i, inner in enumerate(value)]
        if not isinstance(value, str):
            return value
        remember_credentials({}, [value])
        if not _VARIABLE.search(value):
            return value
        found.written[key] = value
        return _VARIABLE.sub(lambda match: one(match, key), value)

    def one(match: re.Match[str], key: Key) -> str:
        name, default = match[1], match[2]
        if value := values.get(name):
            remember(value, name)
            return value
        if default is None:
            found.missing.append((key, name))
        return default or ""

    found.data = filled(data, ())
    return found


def unset(name: str) -> str:
    """What is said of a variable that is not set."""
    return f"variable {name} is not set: set it, or write ${{{name}:-default}}"


def dotted(key: Key) -> str:
    return ".".join(map(str, key))


def read_text(path: str | os.PathLike[str]) -> str:
    """The text of a file of settings."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MOST_CHARACTERS + 1)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text in UTF-8 ({error})") from error


def explained(error: Any, section: Callable[[Key], Any], skip: Collection[str] = ()) -> tuple[Key, str]:
    """One complaint of pydantic's in plain words: key, value, what is allowed.

    Parameters
    ----------
    error : dict
        As ``ValidationError.errors`` lists them.
    section : callable (Key)
        The pydantic model of the keys below a key.
    skip : collection of str
        Names in the place of an error that are no keys: models that pydantic tried.
    """
    value, kind, about = error["input"], error["type"], error.get("ctx", {})
    named = kind in ("extra_forbidden", "missing")  # then all of it is keys
    key: Key = tuple(
        part for part in error["loc"] if part not in skip and (named or isinstance(part, int) or _is_key(part))
    )
    said = shown(value)
    if kind == "extra_forbidden":
        known = sorted(section(key[:-1]).model_fields)
        close = get_close_matches(str(key[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
        return key, f"unknown key; {hint}"
    if kind == "missing":
        meaning = section(key[:-1]).model_fields[str(key[-1])].description
        return key, f"is missing: {meaning}" if meaning else "is missing"
    if kind == "literal_error":
        allowed = about["expected"].replace(" or ", ", ")
        close = get_close_matches(str(value), re.findall(r"'([^']*)'", allowed), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return key, f"{said}: expected one of {allowed}{hint}"
    bounds = {"greater_than_equal": "at least {ge}", "greater_than": "more than {gt}"}
    bounds |= {"less_than_equal": "at most {le}", "less_than": "less than {lt}"}
    if kind in bounds:
        return key, f"{said}: must be {bounds[kind].format(**about)}"
    if kind == "string_pattern_mismatch":
        return key, f"{said}: expected text of the form {about['pattern']}"
    words = {"int": "a whole number", "float": "a number", "bool": "true or false", "string": "text"}
    words |= {"model": "keys and values", "dict": "keys and values", "list": "a list", "too": "at least one"}
    if kind != "value_error" and (found := words.get(kind.split("_")[0])):
        return key, f"{said}: expected {found}"
    message = str(about.get("error", error["msg"]))
    return key, message if said in message or str(value) in message else f"{said}: {message}"


_UNION_PARTS = re.compile(r"literal\[|list\[|constrained-|function-|int$|str$|float$|bool$")


def _is_key(part: Any) -> bool:
    """Whether part of a place that pydantic names is a key, not one of the types it tried."""
    return not _UNION_PARTS.match(str(part))
