"""What a recipe may say: its sections, their keys, and what must hold between them.

Below ``recipe``, which reads the YAML and explains what is wrong. A recipe remembers where values came from the
environment, so that what a run writes down holds ``${VAR}`` and never the value.
"""

import re
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Annotated, Any, Literal, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from cehm_dask.data.files import is_url
from cehm_dask.data.preparation import Preparation
from cehm_dask.data.settings import Key, dotted
from cehm_dask.data.tables import SUFFIXES
from cehm_dask.errors import InputError
from cehm_dask.machine import parse_bytes
from cehm_dask.masking import fill_in, masked_values, never_secret, without_credentials
from cehm_dask.method.params import MAX_CLUSTERS, Params, auto_clusters, parse_clusters


def _no_boolean(value: Any) -> Any:
    # To pydantic true is 1.
    if isinstance(value, bool):
        raise InputError("expected a number")
    return value


def _memory(value: Any) -> Any:
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise InputError("expected a number with a unit, such as '2GiB' or '500MB'")
    parse_bytes(value)
    return value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _arguments(value: Any) -> Any:
    # A text would have to be taken apart, by a shell or like one.
    if isinstance(value, str):
        raise InputError("expected a list of arguments, such as [mail, -s, done, me]")
    return value


def _clusters(value: Any) -> Any:
    return value if value == "auto" else parse_clusters(value)


Whole = Annotated[int, BeforeValidator(_no_boolean), Field(ge=1)]
Seed = Annotated[int, BeforeValidator(_no_boolean), Field(ge=0, lt=2**32)]
Weight = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0, allow_inf_nan=False)]
Limit = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0)]
Share = Annotated[float, BeforeValidator(_no_boolean), Field(gt=0, le=1)]
Most = Annotated[float, BeforeValidator(_no_boolean), Field(ge=0, le=1)]
Names = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str]), Field(min_length=1)]
Base = Literal["kmeans", "minibatch", "mixture", "birch", "dask-ml"]
Clusters = Annotated[
    list[Annotated[int, Field(ge=1, le=MAX_CLUSTERS)]] | Literal["auto"],
    BeforeValidator(_clusters, json_schema_input_type=int | list[int] | str),
]


class Section(BaseModel):
    """Part of a recipe: nothing unknown in it, nothing changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class FeatureSource(Section):
    """Rows of numbers, categories and dates to be clustered."""

    path: str | None = Field(
        None,
        description="A .npy file, a table (.csv, .tsv, also .gz; .parquet, .feather, .arrow), or a Zarr array (path or "
        "URL).",
    )
    sklearn: Literal["digits", "iris", "wine", "breast_cancer"] | None = Field(
        None, description="A data set that comes with scikit-learn, with its classes in the column 'target'."
    )
    id: str | None = Field(None, description="Column of a table that names the rows; no feature.")
    columns: Names | None = Field(None, description="Columns of a table that are features; default: all.")
    drop: Names | None = Field(None, description="Columns of a table that are no features.")
    categories: Literal["one-hot", "ordinal", "drop"] | None = Field(
        None, description="How text and categories are read; default: a column of 0 and 1 per value, with a warning."
    )
    dates: Literal["days", "drop"] | None = Field(None, description="Dates as days since 1970, or left out.")
    impute: Literal["mean", "median", "most_frequent"] | None = Field(
        None, description="What takes the place of values that are missing or not finite."
    )

    def preparation(self, leave_out: Iterable[str] = ()) -> Preparation:
        """How the columns are read; ``leave_out`` are no features either."""
        drop = [*(self.drop or ()), *leave_out]
        return Preparation.of(self.columns, drop, self.id, self.categories, self.dates)


class LabelSource(Section):
    """The user's base labels: one row per sample, one column per member."""

    path: str = Field(
        description="An ensemble.zarr (used in place), a .npy, .csv or .parquet file, a folder of .parquet files, "
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
    full_lloyd: bool = Field(False, description="Continue over all rows from the centres of the sample.")
    subspace: Share | None = Field(None, description="Share of the features that each member sees.")
    projection: Whole | None = Field(None, description="Dimensions of a random projection that each member sees.")
    bootstrap: bool = Field(False, description="Fit members on rows drawn with repetition.")
    subsample: Share | None = Field(None, description="Share of the rows that each member is fitted on and labels.")
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
    start_rows: Whole | None = Field(None, description="Rows of a sample that the start is found on; default: all.")
    grow_from: str | None = Field(
        None, description="A consensus.zarr to start from, of fewer samples or of other members; with 'labels'."
    )
    weights: list[Weight] | dict[str, Weight] | None = Field(
        None, description="How much members count, in their order or by name (others 1); or a number per base cluster."
    )
    seed: Seed = 0

    def ks(self, n_samples: int) -> list[int]:
        """Numbers of clusters that are run; for "auto" the largest that may be, which costs most."""
        return [auto_clusters(n_samples)[-1]] if self.k == "auto" else self.k

    def knobs(self) -> dict[str, Any]:
        """What is computed, whatever the number of clusters and the seed."""
        names = {"tries", "restarts", "variant", "choose", "max_iter", "start_rows", "weights"}
        return self.model_dump(include=names)

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


class Expect(Section):
    """What the input must be like; a run that finds another is refused before any work."""

    columns: Names | None = Field(None, description="Columns of the table that must be there.")
    rows: Whole | None = Field(None, description="Rows that there must be at least.")
    missing: Most | None = Field(None, description="Largest share of missing values in a column: 0.1 is a tenth.")


class Alerts(Section):
    """How much may change from the run that is followed, before it is told."""

    moved: Limit | None = Field(None, description="Share of the samples in both runs whose cluster has another name.")
    size: Limit | None = Field(None, description="Change of a cluster's size, as a share of what it was.")
    agreement: Limit | None = Field(None, description="Fall of the agreement with the members.")


Arguments = Annotated[list[str], BeforeValidator(_arguments), Field(min_length=1)]


class Hooks(Section):
    """Commands to call when a run ends, each a list of arguments."""

    success: Arguments | None = Field(None, description="After a run that did something, and all of it.")
    failure: Arguments | None = Field(None, description="After a run that failed or was interrupted.")


class Recipe(Section):
    """All that a run depends on."""

    features: FeatureSource | None = None
    labels: LabelSource | None = None
    scale: Literal["none", "standard", "minmax", "robust", "log", "quantile", "rank"] = Field(
        "standard", description="Of the features; the last three draw heavy tails in."
    )
    ensemble: EnsembleSection = EnsembleSection.model_construct()
    consensus: ConsensusSection = Field(description="With 'k', the number of clusters wanted.")
    truth: Truth | None = None
    expect: Expect | None = None
    output: str = Field(min_length=1, description="Run directory (path or URL); may hold {date}, as every path may.")
    profile: str | None = Field(
        None, description="A table of the same rows to describe the clusters by; default: the features."
    )
    export: Literal["parquet", "csv"] | None = Field(None, description="Also write labels with row ids to a table.")
    follow: str | None = Field(
        None,
        min_length=1,
        description="Run whose cluster names are kept: 'previous' (the newest earlier one with another date in "
        "'output'), or a run directory.",
    )
    alert: Alerts | None = None
    keep: Whole | None = Field(
        None, description="Finished run directories of this 'output' that are kept; older ones are removed."
    )
    hooks: Hooks | None = None
    memory: Annotated[str | int, BeforeValidator(_memory)] | None = Field(
        None, description="What a process may take in all, such as 2GiB; default: a share of what is free."
    )
    cluster: str | None = Field(None, description="A cluster config (path), or a scheduler's tcp:// or tls:// address.")

    _from_environment: dict[Key, str] = PrivateAttr(default_factory=dict)
    """Values with ``${VAR}`` as they were written."""

    @model_validator(mode="after")
    def _whole(self) -> "Recipe":
        wrong = [f"{dotted(key)}: {message}" for key, message in across(self.model_dump(exclude_unset=True))]
        if wrong:
            raise InputError("; ".join(wrong))
        return self

    @property
    def source(self) -> FeatureSource | LabelSource:
        """What the run starts from; :func:`across` refuses a recipe without one."""
        return cast("FeatureSource | LabelSource", self.features or self.labels)

    def on(self, date: str) -> "Recipe":
        """The recipe of one date: ``{date}`` filled in."""
        fill_in("{date}", date)

        def filled(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: filled(inner) for name, inner in value.items()}
            return value.replace("{date}", date) if isinstance(value, str) else value

        dated = Recipe.model_validate(filled(self.model_dump(exclude_unset=True)))
        dated._from_environment = {key: filled(text) for key, text in self._from_environment.items()}
        return dated

    def written(self) -> dict[str, Any]:
        """As plain values, defaults included, with ``${VAR}`` where a value came from the environment."""
        data: Any = masked_values(self.model_dump(exclude_none=True), without_credentials)
        if self.labels is not None:
            del data["ensemble"], data["scale"]
        for key, text in self._from_environment.items():
            inner = data
            for part in key[:-1]:
                inner = inner[part]
            inner[key[-1]] = text
        return dict(data)


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
            ((name,), "needs 'features': your own base labels are neither scaled nor made")
            for name in ("scale", "ensemble")
            if data.get(name) is not None
        ]
    if features is not None and (features.get("path") is None) == (features.get("sklearn") is None):
        wrong.append((("features",), "expected one of 'path' and 'sklearn'"))
    for name in given:
        source = sections.get(name, {})
        for key in ("id", "columns", "drop"):
            if source.get(key) is None or is_table(source.get("path")):
                continue
            wrong.append(((name, key), f"only the tables {', '.join(SUFFIXES)} have columns with names"))
    for name in ("labels", "truth"):
        path = sections.get(name, {}).get("path")
        if isinstance(path, str) and is_url(path) and not path.rstrip("/").endswith(".zarr"):
            wrong.append(((name, "path"), f"{path!r}: files are read from here; of URLs, only those ending in .zarr"))
    named = is_table(sections.get(given[0], {}).get("path")) if len(given) == 1 else True
    if sections.get("expect", {}).get("columns") is not None and not named:
        wrong.append((("expect", "columns"), f"only the tables {', '.join(SUFFIXES)} have columns with names"))
    if truth is not None:
        wrong += _about_truth(truth, features, labels)
    ensemble = sections.get("ensemble", {})
    low, high = ensemble.get("k_min"), ensemble.get("k_max")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        wrong.append((("ensemble", "k_max"), f"{high} < k_min={low}: expected at least as many"))
    wanted = sections.get("consensus", {})
    if wanted.get("choose") == "loss" and wanted.get("variant", "auto") == "auto":
        wrong.append((("consensus", "choose"), "'loss': losses of candidates cannot be compared; name a variant"))
    if features is not None and wanted.get("grow_from") is not None:
        wrong.append((("consensus", "grow_from"), "needs 'labels': members that are made of features are others"))
    output = data.get("output")
    if isinstance(output, str) and not _only_date(output):
        wrong.append((("output",), f"{output!r}: of braces, only {{date}} is known"))
    elif isinstance(output, str):
        wrong += _about_days(data, output, sections.get(given[0], {}) if given else {})
    return wrong


def _about_days(data: Mapping[str, Any], output: str, source: Mapping[str, Any]) -> Iterable[tuple[Key, str]]:
    dated = "{date}" in output or day_in(output) is not None
    if data.get("follow") == "previous" and not dated:
        yield ("follow",), f"'previous' needs a date in 'output', which is {output!r}: write {{date}} there"
    if data.get("keep") is not None and not dated:
        yield ("keep",), f"needs a date in 'output', which is {output!r}: write {{date}} there"
    if data.get("alert") is not None and data.get("follow") is None:
        yield ("alert",), "needs 'follow': changes are those from the run that is followed"
    if data.get("follow") is not None and data.get("export") is None:
        yield ("follow",), "needs 'export': the next run finds the names of the rows in that table"
    described = data.get("features") is not None or data.get("profile") is not None
    if data.get("follow") is not None and source.get("id") is None and not described:
        yield ("follow",), "needs 'id' in 'labels', or 'profile': by what else should clusters be matched?"


_DAY = re.compile(r"(?<![0-9])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")


def day_in(output: str) -> str | None:
    """The date in the path of a run directory, the last of several.

    >>> day_in("s3://bucket/runs/2026-11-16"), day_in("runs/today")
    ('2026-11-16', None)
    """
    found: list[str] = _DAY.findall(output)
    return found[-1] if found else None


def _about_truth(truth: Any, features: Any, labels: Any) -> Iterable[tuple[Key, str]]:
    path, column = truth.get("path"), truth.get("column")
    if path is None and column is None:
        yield ("truth",), "expected 'path' or 'column'"
    elif path is None:
        source = features or labels or {}
        if source.get("sklearn") is not None and column != "target":
            yield ("truth", "column"), f"{column!r}: data sets of scikit-learn have their classes in 'target'"
        elif source.get("sklearn") is None and not is_table(source.get("path")):
            yield ("truth", "column"), f"only the tables {', '.join(SUFFIXES)} have columns with names; give 'path'"
    elif column is not None and not is_table(path):
        yield ("truth", "column"), f"only the tables {', '.join(SUFFIXES)} have columns with names"


def is_table(path: Any) -> bool:
    """Whether a path names a file whose columns have names."""
    return isinstance(path, str) and path.endswith(SUFFIXES) and not is_url(path)


def _only_date(text: str) -> bool:
    try:
        names = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
    except ValueError:
        return False
    return names <= {"date"}


def _words(kind: Any) -> Iterable[str]:
    """Keys and values that recipes are written in."""
    if get_origin(kind) is Literal:
        yield from map(str, get_args(kind))
    elif isinstance(kind, type) and issubclass(kind, Section):
        for name, field in kind.model_fields.items():
            yield name
            yield from _words(field.annotation)
    else:
        for part in get_args(kind):
            yield from _words(part)


never_secret([*_words(Recipe), "true", "false", "null"])
