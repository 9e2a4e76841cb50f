"""A YAML recipe, checked: everything that a run depends on, in one file.

Below the run, beside the estimators. A recipe is read safely with the line of every key kept, values come from the
environment (``${VAR}``) and from overrides (``consensus.k=12``), and whatever is wrong is said at once: line, key,
value and what is allowed. A recipe remembers where values came from the environment, so that what a run writes down
holds ``${VAR}`` and never the value.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from cehm_dask.files import is_url
from cehm_dask.machine import parse_bytes
from cehm_dask.plan import MAX_CLUSTERS, Params, auto_clusters, parse_clusters

TABLES = (".csv", ".parquet")
Key = tuple[str | int, ...]
"""Place of a value: ("consensus", "k")."""


class RecipeError(ValueError):
    """A recipe that cannot be run; every complaint on a line of its own."""


def _no_boolean(value: Any) -> Any:
    # To pydantic true is 1.
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _memory(value: Any) -> Any:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError("expected a number with a unit, such as '2GiB' or '500MB'")
    parse_bytes(value)
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _clusters(value: Any) -> Any:
    return value if value == "auto" else parse_clusters(value)


Whole = Annotated[int, BeforeValidator(_no_boolean), Field(ge=1)]
Seed = Annotated[int, BeforeValidator(_no_boolean), Field(ge=0, lt=2**32)]
Share = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0, le=1)]
Base = Literal["kmeans", "minibatch", "mixture", "birch", "dask-ml"]
Clusters = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_CLUSTERS)]] | Literal["auto"],
    BeforeValidator(_clusters, json_schema_input_type=int | list[int] | str),
]


class Section(BaseModel):
    """Part of a recipe: nothing unknown in it, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class FeatureSource(Section):
    """Rows of numbers to be clustered."""

    path: str | None = Field(None, description="A .npy, .csv or .parquet file, or a Zarr array (path or URL).")
    sklearn: Literal["digits", "iris", "wine", "breast_cancer"] | None = Field(
        None, description="A data set that comes with scikit-learn, with its classes in the column 'target'."
    )
    id: str | None = Field(None, description="Column of a table that names the rows; no feature.")
    impute: Literal["mean"] | None = Field(None, description="What takes the place of values that are not finite.")


class LabelSource(Section):
    """Base labels brought along: one row a sample, one column a member."""

    path: str = Field(
        description="An ensemble.zarr (used where it lies), a .npy, .csv or .parquet file, a folder of .parquet files, "
        "or a Zarr array."
    )
    id: str | None = Field(None, description="Column of a table that names the rows; no member.")


class EnsembleSection(Section):
    """Base clusterings made from features."""

    members: Whole = Field(30, description="Base clusterings to make.")
    base: Annotated[list[Base], BeforeValidator(_listed, json_schema_input_type=Base | list[Base])] = Field(
        ["kmeans"], min_length=1, description="Algorithm, or several that members take in turns."
    )
    k_min: Whole | None = Field(None, description="Fewest clusters of a member; default: the (largest) k wanted.")
    k_max: Whole | None = Field(None, description="Most clusters of a member; default: max(min(√n, 50), 1.5 k).")
    fit_rows: Whole | None = Field(None, description="Rows members are fitted on; default: all up to 32768.")
    full_lloyd: bool = Field(False, description="Go on over all rows from the centres of the sample.")
    subspace: Share | None = Field(None, description="Share of the features that each member sees.")
    projection: Whole | None = Field(None, description="Dimensions of a random projection that each member sees.")
    bootstrap: bool = Field(False, description="Fit members on rows drawn with repetition.")
    seed: Seed = 0


class ConsensusSection(Section):
    """The one clustering out of many."""

    k: Clusters = Field(description="Clusters wanted: 10, or [5, 8, 10], or '2..15', or auto.")
    tries: Whole = Field(10, description="k-medoids solutions, at most, of which the best are taken.")
    restarts: Whole = Field(
        1,
        description="Medoid starts: with 'auto', further candidates; with other variants, run side by side, and the "
        "best is kept.",
    )
    variant: Literal["auto", "released", "printed", "cosine", "kmeans", "tau"] = Field(
        "auto",
        description="auto: candidates compete, and one is kept. released: the authors' program. printed: the paper's "
        "equations. cosine, kmeans, tau: one chain with that belonging.",
    )
    choose: Literal["agreement", "loss"] = Field(
        "agreement", description="By what the best start of a named variant is chosen; 'auto' has its own rule."
    )
    max_iter: Whole = Field(100, description="Most rounds of adjustion.")
    seed: Seed = 0

    def ks(self, n_samples: int) -> list[int]:
        """Numbers of clusters that are run; for "auto" the largest that may be, which costs most."""
        return [auto_clusters(n_samples)[-1]] if self.k == "auto" else self.k

    def knobs(self) -> dict[str, Any]:
        """What is computed, whatever the number of clusters and the seed."""
        return self.model_dump(include={"tries", "restarts", "variant", "choose", "max_iter"})

    def params(self, k: int) -> Params:
        """All that is computed for one number of clusters."""
        return Params(k, **self.knobs())

    def problems(self, n_samples: int) -> list[int]:
        """The number of clusters of every problem that is run over all rows; of candidates, only the kept one is."""
        starts = 1 if self.params(1).portfolio else self.restarts
        return [k for k in self.ks(n_samples) for _ in range(starts)]


class Truth(Section):
    """Known classes, to score the result by; they change no label."""

    path: str | None = Field(None, description="A .npy, .csv or .parquet file, a Zarr array, or an ensemble.zarr.")
    column: str | None = Field(None, description="Column of the file, or of the features or labels; no feature.")


class Recipe(Section):
    """All that a run depends on."""

    features: FeatureSource | None = None
    labels: LabelSource | None = None
    scale: Literal["none", "standard", "minmax", "robust"] = Field("standard", description="Of the features.")
    ensemble: EnsembleSection = EnsembleSection.model_construct()
    consensus: ConsensusSection = Field(description="With 'k', the number of clusters wanted.")
    truth: Truth | None = None
    output: str = Field(min_length=1, description="Run directory (path or URL); may hold {date}, as every path may.")
    export: Literal["parquet", "csv"] | None = Field(None, description="Also write labels with row ids to a table.")
    memory: Annotated[str | int, BeforeValidator(_memory)] | None = Field(
        None, description="What a process may take in all, such as 2GiB; default: a share of what is free."
    )
    cluster: str | None = Field(None, description="A cluster config (path), or a scheduler's tcp:// or tls:// address.")

    _from_environment: dict[Key, str] = PrivateAttr(default_factory=dict)
    """Values with ``${VAR}`` as they were written."""
    _secrets: dict[str, str] = PrivateAttr(default_factory=dict)
    """What each variable stood for."""

    @model_validator(mode="after")
    def _whole(self) -> "Recipe":
        wrong = [f"{_dotted(key)}: {message}" for key, message in across(self.model_dump(exclude_unset=True))]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def on(self, date: str) -> "Recipe":
        """The recipe of one date: ``{date}`` filled in."""

        def filled(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: filled(inner) for name, inner in value.items()}
            return value.replace("{date}", date) if isinstance(value, str) else value

        dated = Recipe.model_validate(filled(self.model_dump(exclude_unset=True)))
        dated._from_environment = {key: filled(text) for key, text in self._from_environment.items()}
        dated._secrets = self._secrets
        return dated

    def written(self) -> dict[str, Any]:
        """As plain values, defaults included, with ``${VAR}`` where a value came from the environment."""
        data = self.model_dump(exclude_none=True)
        if self.labels is not None:
            del data["ensemble"], data["scale"]
        for key, text in self._from_environment.items():
            inner = data
            for part in key[:-1]:
                inner = inner[part]  # type: ignore[index]
            inner[key[-1]] = text  # type: ignore[index]
        return data

    def masked(self, text: str) -> str:
        """A text with values from the environment put back to ``${VAR}``."""
        return _masked(text, self._secrets)


def _masked(text: str, secrets: Mapping[str, str]) -> str:
    for name, value in sorted(secrets.items(), key=lambda item: -len(item[1])):
        # A value of one or two characters, such as a k, is no secret and would be found everywhere.
        if len(value) > 2:
            text = text.replace(value, f"${{{name}}}")
    return text


def across(data: Mapping[str, Any]) -> list[tuple[Key, str]]:
    """What is wrong between the parts of a recipe that are each right: key and complaint."""
    wrong: list[tuple[Key, str]] = []
    sections = {name: value for name, value in data.items() if isinstance(value, Mapping)}
    features, labels, truth = (sections.get(name) for name in ("features", "labels", "truth"))
    given = [name for name in ("features", "labels") if data.get(name) is not None]
    if len(given) != 1:
        there = "both are there" if given else "none is there"
        wrong.append((tuple(given[:1]), f"expected one of 'features' and 'labels', {there}"))
    if given == ["labels"]:
        wrong += [
            ((name,), "needs 'features': base labels that are brought along are neither scaled nor made")
            for name in ("scale", "ensemble")
            if data.get(name) is not None
        ]
    if features is not None and (features.get("path") is None) == (features.get("sklearn") is None):
        wrong.append((("features",), "expected one of 'path' and 'sklearn'"))
    for name in given:
        source = sections.get(name, {})
        if source.get("id") is not None and not is_table(source.get("path")):
            wrong.append(((name, "id"), f"only the tables {' and '.join(TABLES)} have columns with names"))
    for name in ("labels", "truth"):
        path = sections.get(name, {}).get("path")
        if isinstance(path, str) and is_url(path) and not path.rstrip("/").endswith(".zarr"):
            wrong.append(((name, "path"), f"{path!r}: files are read from here; of URLs, only those ending in .zarr"))
    if truth is not None:
        wrong += _about_truth(truth, features, labels)
    ensemble = sections.get("ensemble", {})
    low, high = ensemble.get("k_min"), ensemble.get("k_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        wrong.append((("ensemble", "k_max"), f"{high} < k_min={low}: expected at least as many"))
    wanted = sections.get("consensus", {})
    if wanted.get("choose") == "loss" and wanted.get("variant", "auto") == "auto":
        wrong.append((("consensus", "choose"), "'loss': losses of candidates cannot be compared; name a variant"))
    output = data.get("output")
    if isinstance(output, str) and not _only_date(output):
        wrong.append((("output",), f"{output!r}: of braces, only {{date}} is known"))
    return wrong


def _about_truth(truth: Any, features: Any, labels: Any) -> Iterable[tuple[Key, str]]:
    path, column = truth.get("path"), truth.get("column")
    if path is None and column is None:
        yield ("truth",), "expected 'path' or 'column'"
    elif path is None:
        source = features or labels or {}
        if source.get("sklearn") is not None and column != "target":
            yield ("truth", "column"), f"{column!r}: data sets of scikit-learn have their classes in 'target'"
        elif source.get("sklearn") is None and not is_table(source.get("path")):
            yield ("truth", "column"), f"only the tables {' and '.join(TABLES)} have columns with names; give 'path'"
    elif column is not None and not is_table(path):
        yield ("truth", "column"), f"only the tables {' and '.join(TABLES)} have columns with names"


def is_table(path: Any) -> bool:
    """Whether a path names a file whose columns have names."""
    return isinstance(path, str) and path.endswith(TABLES) and not is_url(path)


def _only_date(text: str) -> bool:
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError:
        return False
    return names <= {"date"}


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
        raise FileNotFoundError(f"recipe {file}: no such file")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{file}: not text in UTF-8 ({error})") from error
    return parse(text, overrides, environment, name=str(file))


def parse(
    text: str,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    *,
    name: str = "recipe",
) -> Recipe:
    """Check the text of a recipe; ``name`` is what errors call it."""
    data, lines, repeated = _read_yaml(text, name)
    check = _Check(name, lines, [*repeated])
    for override in overrides:
        _set(data, override, check)
    written: dict[Key, str] = {}
    secrets: dict[str, str] = {}
    unset: set[Key] = set()

    def expand(value: Any, key: Key) -> Any:
        if isinstance(value, dict):
            return {inner: expand(item, (*key, inner)) for inner, item in value.items()}
        if isinstance(value, list):
            return [expand(item, (*key, i)) for i, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        expanded, used, missing = _expanded(value, os.environ if environment is None else environment)
        for variable in missing:
            check.add(key, f"variable {variable} is not set: set it, or write ${{{variable}:-default}}")
            unset.add(key)
        written[key] = value
        secrets.update(used)
        return expanded

    data = expand(data, ())
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        for one in error.errors():
            key = tuple(one["loc"])
            if key and not any(key[: len(gone)] == gone for gone in unset):
                check.add(*_explained(one, data))
        for key, message in across(data):
            if key not in unset:
                check.add(key, message)
        recipe = None
    if recipe is None or check.complaints:
        raise RecipeError(_masked("\n".join(check.complaints), secrets))
    recipe._from_environment, recipe._secrets = written, secrets
    return recipe


@dataclass
class _Check:
    """Complaints in the order they are found, each with its line."""

    name: str
    lines: Mapping[Key, int | str]
    complaints: list[str] = field(default_factory=list)
    set_by: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, message: str) -> None:
        complaint = f"{self._place(key)}{_dotted(key)}: {message}" if key else f"{self.name}: {message}"
        if complaint not in self.complaints:
            self.complaints.append(complaint)

    def _place(self, key: Key) -> str:
        for length in range(len(key), 0, -1):
            if key[:length] in self.set_by:
                return f"--set {self.set_by[key[:length]]}: "
            if key[:length] in self.lines:
                return f"{self.name}:{self.lines[key[:length]]}: "
        return f"{self.name}: "


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))


class _Loader(yaml.SafeLoader):
    """Safe, and without aliases: a few lines of them can stand for more data than fits any memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not allowed", mark)
        return super().compose_node(parent, index)


PLAIN = (yaml.SafeLoader.DEFAULT_MAPPING_TAG, yaml.SafeLoader.DEFAULT_SEQUENCE_TAG)


def _read_yaml(text: str, name: str) -> tuple[dict[str, Any], dict[Key, int], list[str]]:
    """The values, the line of every key, and complaints about keys that are there twice."""
    lines: dict[Key, int] = {}
    repeated: list[str] = []

    def value_of(loader: _Loader, node: Any, key: Key) -> Any:
        if not isinstance(node, yaml.ScalarNode) and node.tag not in PLAIN:
            raise yaml.constructor.ConstructorError(None, None, f"tag {node.tag} is not allowed", node.start_mark)
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for left, right in node.value:
                inner = str(loader.construct_object(left, deep=True))
                place, line = (*key, inner), left.start_mark.line + 1
                if inner in found:
                    repeated.append(f"{name}:{line}: {_dotted(place)}: is there already in line {lines[place]}")
                lines[place] = line
                found[inner] = value_of(loader, right, place)
            return found
        if isinstance(node, yaml.SequenceNode):
            for i, item in enumerate(node.value):
                lines[(*key, i)] = item.start_mark.line + 1
            return [value_of(loader, item, (*key, i)) for i, item in enumerate(node.value)]
        return loader.construct_object(node)

    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            data = None if root is None else value_of(loader, root, ())
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise RecipeError(f"{name}{line}: not YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RecipeError(f"{name}: not YAML: {error}") from error
    if not isinstance(data, dict):
        found = "it is empty" if data is None else f"it holds {data!r:.60}"
        raise RecipeError(f"{name}: expected keys such as 'features' and 'consensus', {found}")
    return data, lines, repeated


def _set(data: dict[str, Any], override: str, check: _Check) -> None:
    """Put an override such as ``consensus.k=12`` in its place."""
    name, equals, text = override.partition("=")
    key: Key = tuple(name.strip().split("."))
    if not equals or "" in key:
        check.complaints.append(f"--set {override}: expected KEY=VALUE, such as consensus.k=12")
        return
    try:
        value = yaml.load(text, _Loader)  # safe: a subclass of SafeLoader
    except (yaml.YAMLError, ValueError) as error:
        check.complaints.append(f"--set {override}: the value is not YAML: {error}".replace("\n", " "))
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


_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


def _expanded(text: str, environment: Mapping[str, str]) -> tuple[str, dict[str, str], list[str]]:
    """A text with its variables filled in, what they stood for, and those that are not set."""
    used: dict[str, str] = {}
    missing: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if environment.get(name):
            used[name] = environment[name]
            return environment[name]
        if default is None:
            missing.append(name)
        return default or ""

    return _VARIABLE.sub(value_of, text), used, missing


def _explained(error: Any, data: Any) -> tuple[Key, str]:
    """One complaint of pydantic's in plain words: key, value, what is allowed."""
    key: Key = tuple(part for part in error["loc"] if isinstance(part, int) or _is_key(part))
    value, kind, about = error["input"], error["type"], error.get("ctx", {})
    said = f"{value!r:.60}"
    if kind == "extra_forbidden":
        known = sorted(_section(key[:-1]).model_fields)
        close = get_close_matches(str(key[-1]), known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(known)}"
        return key, f"unknown key; {hint}"
    if kind == "missing":
        return key, f"is missing: {_section(key[:-1]).model_fields[str(key[-1])].description}"
    if kind == "literal_error":
        allowed = about["expected"].replace(" or ", ", ")
        close = get_close_matches(str(value), re.findall(r"'([^']*)'", allowed), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return key, f"{said}: expected one of {allowed}{hint}"
    bounds = {"greater_than_equal": "at least {ge}", "greater_than": "more than {gt}"}
    bounds |= {"less_than_equal": "at most {le}", "less_than": "less than {lt}"}
    if kind in bounds:
        return key, f"{said}: must be {bounds[kind].format(**about)}"
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


def _section(key: Key) -> type[Section]:
    """The model of a section."""
    sections: dict[Key, type[Section]] = {
        ("features",): FeatureSource,
        ("labels",): LabelSource,
        ("ensemble",): EnsembleSection,
        ("consensus",): ConsensusSection,
        ("truth",): Truth,
    }
    return sections.get(key, Recipe)


def example() -> str:
    """A commented recipe that runs as it is."""
    return (files("cehm_dask") / "demo.yaml").read_text(encoding="utf-8")
