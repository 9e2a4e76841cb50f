"""What a fitted consensus knows of new samples: small tables, whatever the number of samples was.

Between the tables that a run ends with and the estimator. A model is sent to workers whole, and stored as plain arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.attributes import Facts, require
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.labels import Labels, relabel
from cehm_dask.data.model_store import load_model
from cehm_dask.errors import StoreError
from cehm_dask.method import kernels
from cehm_dask.method.confidence import Gauge, evidence, exponents
from cehm_dask.method.rounds import Harvest


@dataclass(frozen=True, eq=False)
class Model:
    """Tables of a consensus, and the labels of its members that they are about."""

    counts: NDArray[np.int64]
    """Samples that each hyperedge shares with each cluster."""
    weights: NDArray[np.float64]
    lead: NDArray[np.float64]
    """Factor of each cluster's lead."""
    correlation: float
    """Of the members' errors, for confidences."""
    values: Sequence[NDArray[Any]]
    """Known labels of each member, ascending: its hyperedges."""
    names: Sequence[str]
    """Of the members."""
    weight: NDArray[np.float64] | None = None
    """How much each hyperedge counts; None: all alike."""

    def predict(self, X: Any, singled: Mapping[int, int] | None = None) -> Harvest:
        """Cluster of samples, how far it leads the runner-up, and confidence; -1, 0, 0 where no label is known."""
        labels = relabel(X, self.values, self.names)
        weights = np.zeros((labels.n_slots, self.counts.shape[1]))
        weights[_known_slots(labels)] = self.weights
        table, first_column = kernels.side_by_side([weights])
        best = np.empty((1, labels.n_samples), np.int16)
        margin = np.empty((1, labels.n_samples), np.float64)
        codes = labels.read(0, labels.n_samples)
        kernels.belonging(codes, labels.offsets, table, first_column, best, margin)
        known = codes.any(axis=1)
        found = np.where(known, best[0], np.int16(-1))
        leads = np.where(known, margin[0] * self.lead[best[0]] / labels.n_members, 0.0)
        for row, cluster in (singled or {}).items():
            found[row], leads[row] = cluster, 0.0
        return Harvest(found, leads, self._gauge(labels).read(codes, labels.offsets, found))

    def membership(self, X: Any) -> NDArray[np.float64]:
        """Confidence of samples in every cluster; each row sums to 1."""
        labels = relabel(X, self.values, self.names)
        return self._gauge(labels).memberships(labels.read(0, labels.n_samples), labels.offsets)

    def _gauge(self, labels: Labels) -> Gauge:
        table = np.zeros((labels.n_slots, 1 + self.counts.shape[1]))
        sizes = self.counts.sum(axis=1)  # every sample of a hyperedge is in some cluster
        table[_known_slots(labels)] = evidence(self.counts, sizes, self.weight)
        return Gauge(table, exponents(labels.n_members, self.correlation))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """As plain arrays; for whole-number labels."""
        weighted = {} if self.weight is None else {"hyperedge_weight": self.weight}
        return weighted | {
            "counts": self.counts,
            "weights": self.weights,
            "lead": self.lead,
            "correlation": np.array([self.correlation]),
            "values": np.concatenate(self.values).astype(np.int64),
            "values_of": np.array([len(known) for known in self.values]),
        }


def _known_slots(labels: Labels) -> NDArray[np.bool_]:
    known = np.ones(labels.n_slots, bool)
    known[labels.offsets.astype(np.intp)] = False
    return known


def model_of(tables: Mapping[str, Any], values: Sequence[NDArray[Any]], names: Sequence[str], url: str) -> Model:
    """The model behind tables of a store; refused if they do not fit one another."""
    counts, weights, lead = tables["counts"], tables["weights"], tables["lead"]
    shape = (sum(map(len, values)), len(lead))
    fitting = counts.shape == weights.shape == shape and counts.dtype.kind in "iu" and weights.dtype == np.float64
    fitting = fitting and lead.ndim == 1 and lead.dtype.kind == "f" and shape[0] > 0 and shape[1] > 0
    fitting = fitting and all(known.ndim == 1 and known.dtype.kind in "iuU" for known in values)
    fitting = fitting and len(names) == len(values)
    weight = tables.get("hyperedge_weight")
    if weight is not None:
        fitting = fitting and weight.shape == shape[:1] and weight.dtype == np.float64 and bool((weight > 0).all())
    if not fitting or counts.min() < 0 or not np.isfinite(weights).all():
        raise StoreError(
            f"store {url}: counts {counts.shape}, weights {weights.shape} and lead {lead.shape} do not fit "
            f"{shape[0]} base clusters of {len(names)} members: edited or damaged; create it again"
        )
    correlation = float(tables["correlation"][0])
    return Model(counts.astype(np.int64), weights, lead, correlation, list(values), tuple(map(str, names)), weight)


def model_of_arrays(arrays: Mapping[str, NDArray[Any]], url: str) -> Model:
    """What :meth:`Model.to_arrays` gave; ``url`` names where it was stored."""
    if missing := sorted({"counts", "weights", "lead", "correlation", "values", "values_of"} - arrays.keys()):
        raise StoreError(f"store {url}: lacks {', '.join(f'consensus_{name}' for name in missing)}; create it again")
    values, lengths = arrays["values"], arrays["values_of"]
    if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.min() < 0 or lengths.sum() != len(values):
        raise StoreError(f"store {url}: values_of do not fit the values: edited or damaged; create it again")
    parts = np.split(values, np.cumsum(lengths)[:-1])
    return model_of(arrays, parts, [str(j) for j in range(len(parts))], url)


def saved_tables(url: str) -> tuple[dict[str, Any], Any, Any]:
    """Tables, facts and settings of a model that was saved by itself."""
    tables, facts = load_model(url)
    require(
        url, facts, {"n_clusters": int, "settings": dict, "correlation": float, "label_values": list, "members": list}
    )
    if missing := sorted({"counts", "weights", "lead"} - tables.keys()):
        raise StoreError(f"store {url}: lacks {', '.join(missing)}; it is no model of CEHM, or was edited")
    return tables, facts, Facts(facts["settings"], url)


def stored_tables(url: str) -> tuple[dict[str, Any], Any, Any]:
    """The same, of a consensus."""
    stored = open_consensus(url)
    if "label_values" not in stored.facts:
        raise StoreError(f"store {url}: does not say which labels its members have; create it again")
    tables = {name: stored.table(name) for name in ("counts", "weights", "hyperedge_weight") if name in stored}
    return {**tables, "lead": np.asarray(stored.facts["lead"])}, stored.facts, Facts(stored.facts["identity"], url)
