"""Which columns of a table are features, and how each becomes numbers.

Below the features. Numbers, and true and false, are taken as they are; categories and text become one column of 0 and 1
per value, or their rank; dates become days if that is asked for. How a column was read is kept (:class:`Encoding`), so
that new rows are read the same way, by the names of the columns.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.arrow_columns import days_of, distinct, has_order, plain_numbers, sort_of, texts_of
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

Batches = Callable[[list[str]], Iterable[Sequence[Any]]]
"""Arrow columns of the names given, block by block."""


class FeatureWarning(UserWarning):
    """Something about the features that a careful user would want to know."""


def warn_of_unseen(unseen: Mapping[str, int]) -> None:
    """Say how many rows have categories that were not there at the fit."""
    if told := [f"{name} in {rows:,} rows" for name, rows in unseen.items() if rows]:
        warnings.warn(
            f"categories that were not there at the fit: {listed(told)}; they count as none of those known",
            FeatureWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class Column:
    """How one column of a table becomes numbers."""

    name: str
    kind: str
    """``number``, ``date``, ``one-hot`` or ``ordinal``."""
    values: tuple[str, ...] = ()
    """Of a category: what has a column of its own, or a rank."""
    type: str = ""
    """Its Arrow type when it was fitted; empty where it is not known."""

    @property
    def names(self) -> list[str]:
        """Of the columns of numbers."""
        return [f"{self.name}={value}" for value in self.values] if self.kind == "one-hot" else [self.name]

    def refuse(self, kind: Any, source: str = "") -> None:
        """An error if new rows have another sort of type here; numbers of any width are numbers."""
        import pyarrow.types as of

        wanted = {"one-hot": "category", "ordinal": "category"}.get(self.kind, self.kind)
        if not of.is_null(kind) and sort_of(kind) != wanted:
            fitted = f"{self.kind} ({self.type})" if self.type else self.kind
            raise InputTypeError(
                f"{source and f'{source}: '}column {self.name!r} holds {kind}, it was fitted as {fitted}: make it "
                f"{self.type or 'one'}, or fit again"
            )

    def numbers(self, column: Any, unseen: Counter[str] | None = None) -> NDArray[Any]:
        """An Arrow column as rows of numbers; what is missing or was not there at the fit is NaN, or 0 everywhere.

        Rows with a value that was not there at the fit are counted in ``unseen``.
        """
        self.refuse(column.type)
        try:
            if self.kind == "number":
                return plain_numbers(column)[:, None]
            if self.kind == "date":
                return days_of(column)[:, None]
            places = self._places(column)
        except (ValueError, NotImplementedError, TypeError) as error:  # Arrow's own are among these
            raise InputTypeError(
                f"column {self.name!r} holds {column.type}, it was fitted as {self.kind}: make it one ({error})"
            ) from error
        if unseen is not None:
            unseen[self.name] += int(np.count_nonzero(places < 0)) - column.null_count
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

    def numbers(self, columns: Sequence[Any], unseen: Counter[str] | None = None) -> NDArray[Any]:
        """Rows of numbers from Arrow columns in the order of ``columns``; ``unseen`` as for one of them."""
        parts = [column.numbers(given, unseen) for column, given in zip(self.columns, columns, strict=True)]
        return np.concatenate(parts, axis=1)

    def facts(self) -> list[dict[str, Any]]:
        """As plain values, for a store."""
        return [{**asdict(one), "values": list(one.values)} for one in self.columns]

    @classmethod
    def from_facts(cls, facts: Iterable[Mapping[str, Any]]) -> "Encoding":
        """From what :meth:`facts` gave."""
        return cls(
            tuple(
                Column(str(one["name"]), str(one["kind"]), tuple(map(str, one["values"])), str(one.get("type", "")))
                for one in facts
            )
        )


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
    unseen: Counter[str] | None = field(default=None, repr=False, compare=False)
    """Where to count rows, by column, whose category was not there at the fit."""

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

    def again(self, fitted: Encoding | None, unseen: Counter[str] | None = None) -> "Preparation":
        """For new rows."""
        return replace(self, fitted=fitted, unseen=unseen)

    def facts(self) -> dict[str, Any]:
        """What the user said, as plain values, for a store."""
        return {
            "columns": None if self.columns is None else list(self.columns),
            "drop": list(self.drop) or None,
            "id": self.id,
            "categories": self.categories,
            "dates": self.dates,
        }

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
            for column, kind in zip(self.fitted.columns, kinds.values(), strict=True):
                column.refuse(kind, source)
            return self.fitted
        sorts = {name: sort_of(kind) for name, kind in kinds.items()}
        self._refuse_sorts(kinds, sorts, source)
        kept = [name for name, sort in sorts.items() if getattr(self, _OPTIONS.get(sort, ""), None) != "drop"]
        if not kept:
            raise InputError(f"{source}: no column is left: {listed(list(kinds))} are dropped; keep one")
        texts = [name for name in kept if sorts[name] == "category"]
        values = self._values(texts, kinds, batches, source) if texts else {}
        way = self.categories or "one-hot"
        found = [
            Column(name, way, values[name], str(kinds[name]))
            if name in values
            else Column(name, sorts[name], type=str(kinds[name]))
            for name in kept
        ]
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
                    found[name].update(dict.fromkeys(distinct(column)))
        if many := [name for name in names if len(found[name]) > most]:
            raise InputTypeError(
                f"{source}: column{_s(many)} {listed([repr(name) for name in many])}: more than {most:,} different "
                f"values, too many categories: {option('drop', many)} leaves {_it(many)} out"
                + (f", {option('id', many[0])} if it names the rows" if len(many) == 1 and self.id is None else "")
                + ("" if ranked else f", {option('categories', 'ordinal')} gives ranks")
            )
        return {name: tuple(own if has_order(kinds[name]) else sorted(own)) for name, own in found.items()}


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
