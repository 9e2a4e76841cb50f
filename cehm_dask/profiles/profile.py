"""What sets every cluster apart, from the sums of a sweep: numbers by cluster and feature, neighbours, examples.

Between the sweep and the words. An effect is the mean of a cluster less that of all other clusters together, in
standard deviations of all samples that have a cluster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.names import are_names
from cehm_dask.errors import InputError
from cehm_dask.profiles.blocks import Counted, Examples, Moments, Scale, Sums
from cehm_dask.profiles.kernels import bin_edges
from cehm_dask.profiles.words import sentence

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
STATISTICS = ("mean", "sd", *(f"q{round(100 * q):02}" for q in QUANTILES), "min", "max", "missing", "effect")
"""Of a cluster and a feature, in the order in which they are shown."""
TELLING = 5
"""Features, and categories, that are named of a cluster, most telling first."""
VERSION = 1

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Profile:
    """Who the clusters are.

    Attributes
    ----------
    features : tuple of str
        Columns of numbers.
    clusters : list of dict
        Of every cluster with samples, in order: ``cluster``, ``size``, ``share``, means of ``confidence`` and
        ``margin``, ``sentence``, ``telling`` (features of largest effect), ``categories``, ``nearest`` (the cluster
        whose means are nearest, and how far away), ``prototypes`` and ``borders`` (rows of highest and of lowest
        margin), and a list by feature for each statistic.
    screen : list of dict
        Every column, most telling first: ``explained``, the share of its variance that lies between the clusters, or
        ``cramers_v`` of a column of categories.
    left_out : list of str
        Columns with too many categories to be counted.
    """

    features: tuple[str, ...]
    clusters: list[dict[str, Any]]
    screen: list[dict[str, Any]]
    left_out: list[str]

    @property
    def sentences(self) -> list[str]:
        """One sentence per cluster."""
        return [str(cluster["sentence"]) for cluster in self.clusters]

    def frame(self) -> Any:
        """A pandas data frame: a row per cluster and feature, the most telling features of each cluster first."""
        import pandas as pd

        names, rows = np.asarray(self.features, object), []
        for cluster in self.clusters:
            own = pd.DataFrame({name: pd.Series(cluster[name], dtype=np.float64) for name in STATISTICS})
            order = ranked(own["effect"].to_numpy())
            own = own.iloc[order].assign(feature=names[order], cluster=cluster["cluster"], rank=np.arange(len(order)))
            rows.append(own)
        table = pd.concat(rows, ignore_index=True)
        return table[["cluster", "rank", "feature", *STATISTICS]].rename(columns={"q50": "median"})

    def named(self, ids: Mapping[int, str]) -> "Profile":
        """With what the example rows are called."""
        clusters = [
            cluster
            | {
                kind: [one | {"id": ids[one["row"]]} if one["row"] in ids else one for one in cluster[kind]]
                for kind in ("prototypes", "borders")
            }
            for cluster in self.clusters
        ]
        return Profile(self.features, clusters, self.screen, self.left_out)

    def renamed(self, names: Sequence[int | None]) -> "Profile":
        """With other names for the clusters, by their number, and in the order of these."""
        clusters = []
        for own in self.clusters:
            near = own["nearest"]
            called = own | {
                "cluster": names[own["cluster"]],
                "nearest": near and near | {"cluster": names[near["cluster"]]},
            }
            clusters.append(called | {"sentence": sentence(called)})
        clusters.sort(key=lambda one: one["cluster"])
        return Profile(self.features, clusters, self.screen, self.left_out)

    def example_rows(self) -> list[int]:
        """Rows that stand for a cluster or lie at its border, ascending."""
        found = {one["row"] for own in self.clusters for kind in ("prototypes", "borders") for one in own[kind]}
        return sorted(found)

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {"version": VERSION, **{name: getattr(self, name) for name in self.__dataclass_fields__}}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "Profile":
        """What :meth:`to_dict` gave."""
        if found.get("version") != VERSION:
            raise InputError(f"profiles of version {found.get('version')!r}, expected {VERSION}: make them again")
        return cls(tuple(found["features"]), found["clusters"], found["screen"], found["left_out"])


def ranked(effects: Float) -> NDArray[np.intp]:
    """Places of the effects, largest first; on a tie the first column; unknown ones last."""
    return np.argsort(np.where(np.isnan(effects), np.inf, -np.abs(effects)), kind="stable")


def make_profile(
    features: Sequence[str],
    sums: Sums,
    moments: Sequence[Moments],
    scale: Scale,
    groups: Sequence[slice],
    categories: Sequence[str],
    names: Sequence[str] | None,
) -> Profile:
    """Put together what a sweep found; ``moments`` are those of the columns in ``groups``."""
    k, total = len(sums.sizes), int(sums.sizes.sum())
    numbers = [_statistics(own, scale.part(part), sums.sizes) for own, part in zip(moments, groups, strict=True)]
    table = {
        name: np.concatenate([one[name] for one in numbers], axis=1) if numbers else np.empty((k, 0))
        for name in (*STATISTICS, "standard")
    }
    explained = np.concatenate([_explained(own) for own in moments]) if moments else np.empty(0)
    counted = {name: own for name, own in zip(categories, sums.categories, strict=True) if not own.too_many}
    nearest = _nearest(table["standard"], sums.sizes)
    shown = list(features) if are_names(features) else [f"column {name}" for name in features]
    clusters = []
    for c in np.flatnonzero(sums.sizes).tolist():
        size = int(sums.sizes[c])
        own: dict[str, Any] = {
            "cluster": c if names is None else names[c],
            "size": size,
            "share": size / total,
            "confidence": None if sums.confidence is None else float(sums.confidence[c] / size),
            "margin": None if sums.margin is None else float(sums.margin[c] / size),
            "telling": _telling(shown, table, c),
            "categories": _apart(counted, c),
            "nearest": None,
            "prototypes": _rows(sums.prototypes, c),
            "borders": _rows(sums.borders, c),
        }
        if (near := nearest[c]) is not None:
            other, distance = near
            own["nearest"] = {"cluster": other if names is None else names[other], "distance": distance}
        own["sentence"] = sentence(own)
        clusters.append(own | {name: _plain(table[name][c]) for name in STATISTICS})
    screen: list[dict[str, Any]] = [
        {"feature": name, "explained": value} for name, value in zip(features, _plain(explained), strict=True)
    ]
    screen += [{"feature": name, "cramers_v": _cramers_v(own.table)} for name, own in counted.items()]
    # A share of variance is the square of a correlation, as V is one.
    screen.sort(key=lambda one: -(one.get("cramers_v") or (one.get("explained") or 0.0) ** 0.5))
    left_out = [name for name, own in zip(categories, sums.categories, strict=True) if own.too_many]
    return Profile(tuple(features), clusters, screen, left_out)


def _plain(values: Float) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _overall(own: Moments) -> tuple[Float, Float]:
    """Mean of all clusters' values, and the sum of squares about it, by column."""
    count = np.maximum(own.counts.sum(axis=0), 1)
    mean = (own.counts / count * own.means).sum(axis=0)
    return mean, own.squares.sum(axis=0) + (own.counts * (own.means - mean) ** 2).sum(axis=0)


def _explained(own: Moments) -> Float:
    mean, squares = _overall(own)
    between = (own.counts * (own.means - mean) ** 2).sum(axis=0)
    found: Float = np.divide(between, squares, out=np.full(len(mean), np.nan), where=squares > 0)
    return found


def _statistics(own: Moments, scale: Scale, sizes: NDArray[np.int64]) -> dict[str, Float]:
    """By cluster and column; NaN where a cluster has no value."""
    known, count = own.counts > 0, own.counts.sum(axis=0)
    mean, squares = _overall(own)
    sd = np.sqrt(squares / np.maximum(count, 1))
    means = np.where(known, own.means, np.nan)
    off = np.divide(means - mean, sd, out=np.full(means.shape, np.nan), where=sd > 0)
    rest = count - own.counts
    # The mean of the rest lies as far on the other side of the mean of all as its weight is smaller.
    effect = np.where(rest > 0, off * (count / np.maximum(rest, 1)), np.nan)
    found = {
        "mean": scale.centre + means,
        "sd": np.where(known, np.sqrt(own.squares / np.maximum(own.counts, 1)), np.nan),
        "min": np.where(known, own.low, np.nan),
        "max": np.where(known, own.high, np.nan),
        "missing": 1.0 - own.counts / np.maximum(sizes, 1)[:, None],
        "effect": effect,
        "standard": off,
    }
    edges = bin_edges()
    for name, q in zip(STATISTICS[2:], QUANTILES, strict=False):
        found[name] = np.stack([_quantile(own, c, q, edges, scale) for c in range(len(sizes))])
    return found


def _quantile(own: Moments, c: int, q: float, edges: Float, scale: Scale) -> Float:
    """Of every column in one cluster, inside the bin that holds it in proportion; never beyond the extremes."""
    held = own.bins[c].cumsum(axis=1)
    wanted = q * own.counts[c]
    place = np.minimum((held < wanted[:, None]).sum(axis=1), held.shape[1] - 1)
    column = np.arange(len(place))
    inside = own.bins[c][column, place]
    into = (wanted - held[column, place] + inside) / np.maximum(inside, 1)
    distance = edges[place] + np.clip(into, 0.0, 1.0) * (edges[place + 1] - edges[place])
    value = np.clip(scale.centre + distance / scale.per_unit, own.low[c], own.high[c])
    return np.where(own.counts[c] > 0, value, np.nan)


def _telling(shown: Sequence[str], table: Mapping[str, Float], c: int) -> list[dict[str, Any]]:
    effects = table["effect"][c]
    order = [j for j in ranked(effects)[:TELLING].tolist() if np.isfinite(effects[j])]
    return [{"feature": shown[j], "effect": float(effects[j]), "mean": float(table["mean"][c][j])} for j in order]


def _apart(counted: Mapping[str, Counted], c: int) -> list[dict[str, Any]]:
    """Of every column of categories, the one whose share in a cluster is furthest above its share elsewhere."""
    found: list[dict[str, Any]] = []
    for name, own in counted.items():
        inside, outside = own.table[c], own.table.sum(axis=0) - own.table[c]
        if not inside.sum() or not outside.sum():
            continue
        share, elsewhere = inside / inside.sum(), outside / outside.sum()
        at = int(np.argmax(share - elsewhere))
        value = {"value": str(own.names[at]), "share": float(share[at]), "elsewhere": float(elsewhere[at])}
        found.append({"column": name, **value})
    found.sort(key=lambda one: one["elsewhere"] - one["share"])
    return found[:TELLING]


def _cramers_v(table: NDArray[np.int64]) -> float | None:
    """How far clusters and categories go together: 0 not at all, 1 each says the other."""
    table = table[table.any(axis=1)][:, table.any(axis=0)].astype(np.float64)
    degrees = min(table.shape) - 1
    if degrees < 1:
        return None
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
    return float(np.sqrt(((table - expected) ** 2 / expected).sum() / table.sum() / degrees))


def _nearest(standard: Float, sizes: NDArray[np.int64]) -> list[tuple[int, float] | None]:
    """The cluster whose means are nearest: root mean square over the features, in standard deviations of each."""
    found: list[tuple[int, float] | None] = [None] * len(sizes)
    filled = np.flatnonzero(sizes)
    for c in filled.tolist():
        others = filled[filled != c]
        apart = (standard[others] - standard[c]) ** 2
        known = np.isfinite(apart)
        if not known.any():
            continue
        compared = known.sum(axis=1)
        distance = np.sqrt(np.where(known, apart, 0.0).sum(axis=1) / np.maximum(compared, 1))
        at = int(np.argmin(np.where(compared > 0, distance, np.inf)))
        found[c] = int(others[at]), float(distance[at])
    return found


def _rows(examples: Examples | None, c: int) -> list[dict[str, Any]]:
    if examples is None:
        return []
    own = examples.clusters == c
    return [
        {"row": row, "margin": margin}
        for row, margin in zip(examples.rows[own].tolist(), examples.margin[own].tolist(), strict=True)
    ]
