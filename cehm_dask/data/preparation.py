"""Which columns of a table are features, and how each becomes numbers.

Below the features. Numbers, and true and false, are taken as they are; categories and text become one column of 0 and 1
per value, or their rank; dates become days if that is asked for. How a column was read is kept (:class:`Encoding`), so
that new rows are read the same way, by the names of the columns.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.names import listed, places_of
from cehm_dask.data.tables import columns_without
from cehm_dask.errors import InputError, InputTypeError
from cehm_dask.wording import option

CATEGORIES = ("one-hot", "ordinal", "drop")
DATES = ("days", "drop")

MOST_VALUES = 50
"""Of a category that is read as columns of 0 and 1: more are more likely names or free text."""

MOST_RANKS = 1 << 16
"""Of a category that is read as ranks: so many texts are held in memory."""

DAY = 86_400e6
"""Microseconds."""

Batches = Callable[[list[str]], Iterable[Sequence[Any]]]
"""Arrow columns of the names given, block by block."""


class FeatureWarning(UserWarning):
    """Something about the features that a careful user would want to know."""


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes numbers."""

    name: str
    kind: str
    """``number``, ``date``, ``one-hot`` or ``ordinal``."""
    values: tuple[str, ...] = ()
    """Of a category: what has a column of its own, or a rank."""

    @property
    def names(self) -> list[str]:
        """Of the columns of numbers."""
        return [f"{self.name}={value}" for value in self.values] if self.kind == "one-hot" else [self.name]

    def numbers(self, column: Any) -> NDArray[Any]:
        """An Arrow column as rows of numbers; what is missing or was not there at the fit is NaN, or 0 everywhere."""
        try:
            if self.kind == "number":
                return _plain(column)[:, None]
            if self.kind == "date":
                return _days(column)[:, None]
            places = self._places(column)
        except (ValueError, NotImplementedError, TypeError) as error:  # Arrow's own are among these
            raise InputTypeError(
                f"column {self.name!r} holds {column.type}, it was fitted as {self.kind}: make it one ({error})"
            ) from error
        if self.kind == "ordinal":
            return np.where(places < 0, np.nan, places)[:, None]
        found = np.zeros((len(places), len(self.values)))
        rows = np.flatnonzero(places >= 0)
        found[rows, places[rows]] = 1.0
        return found

    def _places(self, column: Any) -> NDArray[np.int64]:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.index_in(texts_of(column), pa.array(self.values, pa.string()))
        return np.asarray(pc.fill_null(found, -1), np.int64)


@dataclass(frozen=True)
class Encoding:
    """How all columns of a table become numbers, in their order."""

    columns: tuple[Column, ...]

    @classmethod
    def of_numbers(cls, names: Sequence[str]) -> "Encoding":
        """Columns that are numbers as they are."""
        return cls(tuple(Column(name, "number") for name in names))

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the columns of the table."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the columns of numbers."""
        return tuple(name for column in self.columns for name in column.names)

    @cached_property
    def indicators(self) -> NDArray[np.bool_]:
        """Which columns of numbers say 1 for one value of a category."""
        return np.array([column.kind == "one-hot" for column in self.columns for _ in column.names], bool)

    @property
    def plain(self) -> bool:
        """Whether all columns are numbers already."""
        return all(column.kind == "number" for column in self.columns)

    def numbers(self, columns: Sequence[Any]) -> NDArray[Any]:
        """Rows of numbers from Arrow columns in the order of ``columns``."""
        parts = [column.numbers(given) for column, given in zip(self.columns, columns, strict=True)]
        return np.concatenate(parts, axis=1)

    def facts(self) -> list[dict[str, Any]]:
        """As plain values, for a store."""
        return [{"name": one.name, "kind": one.kind, "values": list(one.values)} for one in self.columns]

    @classmethod
    def from_facts(cls, facts: Iterable[Mapping[str, Any]]) -> "Encoding":
        """From what :meth:`facts` gave."""
        return cls(tuple(Column(str(one["name"]), str(one["kind"]), tuple(map(str, one["values"]))) for one in facts))


@dataclass(frozen=True)
class Preparation:
    """What the user says about the columns of a table."""

    columns: tuple[str, ...] | None = None
    """The features; None: all columns but those left out."""
    drop: tuple[str, ...] = ()
    id: str | None = None
    """The column that names the rows."""
    categories: str | None = None
    """One of CATEGORIES; None: one-hot, said aloud."""
    dates: str | None = None
    """One of DATES; None: they are refused."""
    fitted: Encoding | None = field(default=None, repr=False)
    """How columns were read when members were fitted; new rows are read the same way."""

    @classmethod
    def of(
        cls, columns: Any = None, drop: Any = None, id: Any = None, categories: Any = None, dates: Any = None
    ) -> "Preparation":
        """From what users write: one name or several."""
        for name, value, known in (("categories", categories, CATEGORIES), ("dates", dates, DATES)):
            if value is not None and value not in known:
                raise InputError(f"{option(name, value)}: expected one of {', '.join(known)}")
        chosen = None if columns is None else _several(columns)
        return cls(chosen, _several(drop or ()), None if id is None else str(id), categories, dates)

    def again(self, fitted: Encoding | None) -> "Preparation":
        """For new rows."""
        return replace(self, fitted=fitted)

    @property
    def left_out(self) -> list[str]:
        return [*self.drop, *([] if self.id is None else [self.id])]

    def kept(self, names: Sequence[str], index: Sequence[str], source: str, *, guess: bool = True) -> list[str]:
        """The columns that are features, in the order in which they are read.

        ``guess``: whether a column that is called an id is refused, as in files, where nobody looked at the columns.
        """
        if self.fitted is not None:
            ignored = {*self.left_out, *index}
            given = [name for name in names if name not in ignored or name in self.fitted.sources]
            places = places_of(given, self.fitted.sources, "feature")
            return given if places is None else [given[place] for place in places]
        if self.columns is None and guess:
            return columns_without(source, names, index, self.left_out, "feature")
        wanted = names if self.columns is None else self.columns
        if missing := [name for name in (*wanted, *self.left_out) if name not in {*names, *index}]:
            raise InputError(f"{source}: no column {missing[0]!r}; there are {listed([*names, *index])}")
        if len(set(wanted)) < len(wanted):
            raise InputError(f"{source}: {option('columns', list(wanted))} names a column twice")
        return [name for name in wanted if name not in self.left_out]

    def refuse_nameless(self, source: str) -> None:
        """An error if columns are chosen by name, or encoded, where they have none."""
        for name in ("columns", "drop", "id"):
            if (value := getattr(self, name)) and self.fitted is None:
                shown = list(value) if isinstance(value, tuple) else value
                raise InputError(f"{option(name, shown)}: {source} has no columns with names; give a table")
        if self.fitted is not None and not self.fitted.plain:
            encoded = [column.name for column in self.fitted.columns if column.kind != "number"]
            raise InputTypeError(
                f"X is {source} without names of columns, and {listed(encoded)} were encoded from a table: give a table"
            )

    def encoding(self, kinds: Mapping[str, Any], batches: Batches, source: str) -> Encoding:
        """How the columns of a table, with these Arrow types, become numbers; categories are found in one pass."""
        if self.fitted is not None:
            return self.fitted
        sorts = {name: _sort_of(kind) for name, kind in kinds.items()}
        self._refuse_sorts(kinds, sorts, source)
        kept = [name for name, sort in sorts.items() if getattr(self, _OPTIONS.get(sort, ""), None) != "drop"]
        if not kept:
            raise InputError(f"{source}: no column is left: {listed(list(kinds))} are dropped; keep one")
        texts = [name for name in kept if sorts[name] == "category"]
        values = self._values(texts, kinds, batches, source) if texts else {}
        way = self.categories or "one-hot"
        found = [Column(name, way, values[name]) if name in values else Column(name, sorts[name]) for name in kept]
        if texts and self.categories is None:
            said = ", ".join(f"{name} ({len(values[name])} values)" for name in texts)
            warnings.warn(
                f"{source}: one column of 0 and 1 for each value of {said}; {option('categories', 'ordinal')} gives "
                f"ranks instead, {option('categories', 'one-hot')} says that it is right",
                FeatureWarning,
                stacklevel=2,
            )
        return Encoding(tuple(found))

    def _refuse_sorts(self, kinds: Mapping[str, Any], sorts: Mapping[str, str], source: str) -> None:
        dates = [name for name, sort in sorts.items() if sort == "date"]
        if dates and self.dates is None:
            raise InputTypeError(
                f"{source}: column{_s(dates)} {_typed(dates, kinds)}, which {_is(dates)} no number: "
                f"{option('dates', 'days')} counts days, {option('drop', dates)} leaves {_it(dates)} out"
            )
        if other := [name for name, sort in sorts.items() if sort == "other"]:
            raise InputTypeError(
                f"{source}: column{_s(other)} {_typed(other, kinds)}: features are numbers, categories or dates; "
                f"{option('drop', other)} leaves {_it(other)} out"
            )

    def _values(
        self, names: list[str], kinds: Mapping[str, Any], batches: Batches, source: str
    ) -> dict[str, tuple[str, ...]]:
        """The values of every category: sorted, or in the order that the category itself has."""
        ranked = self.categories == "ordinal"
        most = MOST_RANKS if ranked else MOST_VALUES
        found: dict[str, dict[str, None]] = {name: {} for name in names}
        for columns in batches(names):
            for name, column in zip(names, columns, strict=True):
                if len(found[name]) <= most:
                    found[name].update(dict.fromkeys(_distinct(column)))
        if many := [name for name in names if len(found[name]) > most]:
            raise InputTypeError(
                f"{source}: column{_s(many)} {listed([repr(name) for name in many])}: more than {most:,} different "
                f"values, too many categories: {option('drop', many)} leaves {_it(many)} out"
                + (f", {option('id', many[0])} if it names the rows" if len(many) == 1 and self.id is None else "")
                + ("" if ranked else f", {option('categories', 'ordinal')} gives ranks")
            )
        return {name: tuple(own if _has_order(kinds[name]) else sorted(own)) for name, own in found.items()}


_OPTIONS = {"category": "categories", "date": "dates"}


def _several(names: Any) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(map(str, names))


def _s(names: Sequence[str]) -> str:
    return "s" if len(names) > 1 else ""


def _is(names: Sequence[str]) -> str:
    return "are" if len(names) > 1 else "is"


def _it(names: Sequence[str]) -> str:
    return "them" if len(names) > 1 else "it"


def _typed(names: Sequence[str], kinds: Mapping[str, Any]) -> str:
    return listed([f"{name!r} holds {kinds[name]}" for name in names])


def _sort_of(kind: Any) -> str:
    """What an Arrow type is to features."""
    import pyarrow.types as of

    if is_number(kind):
        return "number"
    if of.is_dictionary(kind) or any(test(kind) for test in (of.is_string, of.is_large_string, of.is_string_view)):
        return "category"
    return "date" if any(test(kind) for test in (of.is_date, of.is_timestamp, of.is_duration)) else "other"


def is_number(kind: Any) -> bool:
    """Whether an Arrow type is read as numbers."""
    import pyarrow.types as of

    return any(test(kind) for test in (of.is_integer, of.is_floating, of.is_boolean, of.is_decimal, of.is_null))


def _has_order(kind: Any) -> bool:
    import pyarrow.types as of

    return bool(of.is_dictionary(kind) and kind.ordered)


def texts_of(column: Any) -> Any:
    """A column of categories as Arrow strings."""
    import pyarrow as pa
    import pyarrow.types as of

    if not of.is_dictionary(column.type):
        return column.cast(pa.string())
    # By hand: Arrow decodes no dictionary of string views, which polars gives.
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return pa.chunked_array([one.dictionary.cast(pa.string()).take(one.indices) for one in chunks], pa.string())


def arrow_of(frame: Any) -> Any:
    """A pandas or polars frame as an Arrow table, its columns named by text."""
    import pyarrow as pa

    if not hasattr(frame, "iloc"):
        return pa.table(frame)
    try:
        named = frame.set_axis([str(name) for name in frame.columns], axis=1)
        return pa.Table.from_pandas(named.assign(**_spelled(named)), preserve_index=False)
    except (ValueError, TypeError, NotImplementedError) as error:  # Arrow's own are among these
        raise InputTypeError(
            f"a data frame: {' '.join(map(str, error.args))}: give the column one type, or leave it out "
            f"({option('drop', ['…'])})"
        ) from error


def _spelled(frame: Any) -> dict[str, Any]:
    """Categories of a pandas frame that Arrow has no text for, such as the intervals of ``pandas.cut``, as text."""
    kinds = {name: kind for name, kind in frame.dtypes.items() if getattr(kind, "categories", None) is not None}
    odd = [name for name, kind in kinds.items() if str(kind.categories.dtype).startswith(("object", "interval"))]
    return {name: frame[name].cat.rename_categories(str) for name in odd}


def _distinct(column: Any) -> list[str]:
    """The values of a category; of one with an order, all that it may have."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _has_order(column.type):
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return [value for chunk in chunks for value in chunk.dictionary.cast(pa.string()).to_pylist()]
    return [value for value in pc.unique(texts_of(column)).to_pylist() if value is not None]


def _plain(column: Any) -> NDArray[Any]:
    """A column of numbers as numpy keeps it; nulls are NaN."""
    import pyarrow as pa
    import pyarrow.types as of

    if not is_number(column.type):
        raise TypeError("not numbers")
    if of.is_decimal(column.type) or of.is_null(column.type) or (of.is_boolean(column.type) and column.null_count):
        column = column.cast(pa.float64())
    return np.asarray(column)


def _days(column: Any) -> NDArray[np.float64]:
    """Days since 1970, or of a duration; nulls are NaN."""
    import pyarrow as pa
    import pyarrow.types as of

    kind = pa.duration("us") if of.is_duration(column.type) else pa.timestamp("us", getattr(column.type, "tz", None))
    micros = column.cast(kind, safe=False).cast(pa.int64())
    return np.asarray(micros.cast(pa.float64(), safe=False), np.float64) / DAY
