"""A finished consensus as the start of another one: of more samples, of more members, or of fewer.

Beside the medoids and the candidates, which it stands in for. The counts C of the finished consensus, put at the slots
of the labels that are there now, give the first assignment in one sweep; adjustion goes on from there. Its belonging
and its number of clusters are kept. Hyperedges that were not there have no counts: they say nothing in the first
assignment, and that sweep counts them. The table of intersections is taken over as far as it is known to be that of
the same rows and members.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import StoredConsensus
from cehm_dask.data.ensemble_store import Ensemble, known_labels
from cehm_dask.data.labels import Labels
from cehm_dask.data.names import are_names, listed
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import InputError, StoreError
from cehm_dask.method.intersections import Hyperedges, Tally, tally_of
from cehm_dask.method.params import Params
from cehm_dask.method.portfolio import representatives
from cehm_dask.method.problem import Problem

Int = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Warm:
    """Where a consensus starts from that grows out of another one."""

    params: Params
    """Of the finished consensus: one chain, with the belonging that was kept."""
    seed: int
    counts: Int
    """C of the finished consensus, by the slots of the labels that are there now."""
    mark: str
    """Digest of all that the result depends on."""
    known: "Known | None" = None
    """Intersections that need not be counted; None: all are."""

    def params_for(self, wanted: Params, ks: tuple[int, ...], auto: bool) -> Params:
        """Parameters of the run; refused if another number of clusters, or another variant, is asked for."""
        k = self.params.n_clusters
        if not auto and ks != (k,):
            asked = ks[0] if len(ks) == 1 else list(ks)
            raise InputError(f"n_clusters={asked}: the consensus it grows from has {k}; ask for {k}, or fit anew")
        if wanted.variant != self.params.variant:
            raise InputError(
                f"variant={wanted.variant!r}: the consensus it grows from is of variant={self.params.variant!r}; ask "
                "for that, or fit anew"
            )
        if wanted.init is not None:
            raise InputError("init: a consensus that grows has its start; leave init out, or fit anew")
        if not wanted.portfolio and wanted.belonging != self.params.belonging:
            raise InputError(
                f"belonging={wanted.belonging!r}: the consensus it grows from has {self.params.belonging!r}; leave it "
                "out, or fit anew"
            )
        weights = self.params.weights if wanted.weights is None else wanted.weights
        return replace(self.params, max_iter=wanted.max_iter, weights=weights)

    def tally(self, engine: Engine) -> Tally | None:
        """Intersections of all rows and members; only new ones are counted, in one sweep. None: nothing is known."""
        if self.known is None:
            return None
        labels, known, nothing = engine.labels, self.known, np.empty(0, np.int64)
        slots = len(known.slots)
        if slots < labels.n_slots:
            members = int(np.searchsorted(np.cumsum(labels.widths), slots)) + 1
            more = tally_of(engine, nothing, known=members)
            more.table[:slots, :slots] = known.table()
            return more
        if known.rows == labels.n_samples:
            return Tally(known.table(), known.n_silent)
        more = tally_of(engine, nothing, first_row=known.rows)
        np.add(more.table, known.table(), out=more.table)
        return replace(more, n_silent=known.n_silent + more.n_silent)

    def problem(self, params: Params, hyperedges: Hyperedges) -> Problem:
        """The one problem, before its first assignment."""
        counts = self.counts[hyperedges.slots]
        return Problem(0, params, hyperedges, representatives(counts, hyperedges), counts)


def warm_from(stored: StoredConsensus, labels: Labels) -> Warm:
    """Start from a finished consensus; members are matched by name, hyperedges by the label of the member."""
    facts, identity = stored.facts, stored.facts["identity"]
    if "label_values" not in facts:
        raise StoreError(f"store {stored.url}: does not say which labels its members have; create it again")
    names, values = facts["members"], [known_labels(known) for known in facts["label_values"]]
    counts = stored.table("counts").astype(np.int64)
    if len(names) != len(values) or len(counts) != sum(map(len, values)) or counts.min(initial=0) < 0:
        raise StoreError(f"store {stored.url}: counts do not fit the labels of its members; create it again")
    numbered = not are_names(labels.names) and not isinstance(labels.source, Ensemble)
    if numbered and labels.n_members < len(names):
        raise InputError(
            f"X has {labels.n_members} members without names, the consensus {stored.url} has {len(names)}: name them, "
            "so that it is known which are left"
        )
    place = {name: j for j, name in enumerate(names)}
    edges = np.cumsum([0, *map(len, values)])
    start = np.zeros((labels.n_slots, counts.shape[1]), np.int64)
    for j, name in enumerate(labels.names):
        if (own := place.get(name)) is not None:
            slots = _slots(labels, j, values[own])
            start[slots[slots >= 0]] = counts[edges[own] : edges[own + 1]][slots >= 0]
    if not start.any():
        raise InputError(
            f"no base cluster of the consensus {stored.url} is among these base labels: its members are "
            f"{listed(list(names))}, here they are {listed(labels.names)}"
        )
    knobs = {name: identity.get(name) for name in ("variant", "similarity", "schedule", "choose", "max_iter")}
    knobs["weights"] = _weights(identity.get("weights"), names, labels.names)
    params = Params(facts["n_clusters"], belonging=facts["belonging"], portfolio=False, **knobs)
    digest = hashlib.blake2b(repr((facts["belonging"], start.shape)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(start).data)
    return Warm(params, int(identity.get("seed", 0)), start, digest.hexdigest(), _known(stored, labels))


def _weights(given: Sequence[float] | None, names: Sequence[str], now: Sequence[str]) -> dict[str, float] | None:
    """Weights of the members that are left, by name; new ones count 1."""
    if given is None:
        return None
    if len(given) != len(names):
        raise InputError(
            f"weights: the consensus has {len(given)}, one per base cluster; it grows only with one per member"
        )
    return {name: weight for name, weight in zip(names, given, strict=True) if name in set(now)} or None


def _slots(labels: Labels, member: int, known: NDArray[Any]) -> NDArray[np.intp]:
    """Slots of some labels of a member; -1 for those it does not have."""
    silent = int(labels.silent)
    own = np.arange(labels.widths[member] - silent) if labels.values is None else labels.values[member]
    if not len(own) or (own.dtype.kind == "U") != (known.dtype.kind == "U"):
        return np.full(len(known), -1, np.intp)
    places = np.minimum(np.searchsorted(own, known), len(own) - 1)
    return np.where(own[places] == known, places + silent + int(labels.offsets[member]), -1)


@dataclass(frozen=True, eq=False)
class Known:
    """Intersections that a finished consensus has counted, of the first rows or the first members; read when needed."""

    stored: StoredConsensus
    slots: NDArray[np.intp]
    """Slots of the consensus before, in the order in which they are the first ones now."""
    rows: int
    n_silent: int

    def table(self) -> Int:
        """Of every two of the slots."""
        table = self.stored.table("intersections").astype(np.int64, copy=False)
        return table if len(self.slots) == len(table) else table[np.ix_(self.slots, self.slots)]


def _known(stored: StoredConsensus, labels: Labels) -> Known | None:
    """What of the intersections is known: an ensemble says which rows and members of which other one it holds."""
    facts, ensemble = stored.facts, labels.source
    made_of = facts["identity"].get("labels")
    if not isinstance(ensemble, Ensemble) or "intersections" not in stored:
        return None
    if facts.get("compared_members") is not None or facts["identity"].get("start_rows") is not None:
        return None  # of some members only, or an estimate
    grown = ensemble.grown
    if ensemble.fingerprint == made_of:
        widths, kept, rows = list(ensemble.widths), list(range(len(ensemble.widths))), ensemble.n_samples
    elif grown.get("from") == made_of:
        widths, kept, rows = grown["widths"], grown["members"], grown["rows"]
    else:
        return None
    shape = stored.array("intersections").shape
    if shape != (sum(widths), sum(widths)) or [widths[j] for j in kept] != [*ensemble.widths[: len(kept)]]:
        return None
    if len(kept) < len(ensemble.widths) and rows < ensemble.n_samples:
        return None
    n_silent = int(facts["n_silent"])
    if len(kept) < len(widths):
        first = np.cumsum([0, *(width - 1 for width in ensemble.widths[:-1])])
        if (np.add.reduceat(ensemble.sizes, first) < ensemble.n_samples).all():
            return None  # each of them has missing labels: how many rows have no label at all, no table says
        n_silent = 0
    offsets = np.cumsum([0, *widths])
    slots = np.concatenate([np.arange(offsets[j], offsets[j + 1]) for j in kept])
    return Known(stored, slots, rows, n_silent)
