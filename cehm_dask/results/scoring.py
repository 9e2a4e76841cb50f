"""A finished consensus against known classes, or on its own: scores for people and reports.

After the consensus. With known classes, one sweep over the rows counts every table that is needed: the consensus and,
with its ensemble, each member against the classes, and the consensus by margin for its more certain half. Labels,
margins and classes are read block by block and never whole. Without classes there is nothing to sweep: what the
run recorded is enough.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import StoredConsensus, open_consensus
from cehm_dask.data.files import absolute
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.data.shape import Shape
from cehm_dask.data.sources import Codes, Source
from cehm_dask.engine.budget import CODE_BYTES, make_budget
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import BudgetError, InputError, StoreError
from cehm_dask.job import Where, machine_of
from cehm_dask.machine import Machine, require_memory
from cehm_dask.method import kernels
from cehm_dask.method.agreement import scores
from cehm_dask.method.params import MAX_CLUSTERS
from cehm_dask.method.state import EVERYTHING
from cehm_dask.progress import NO_PROGRESS, Progress
from cehm_dask.results.truth import Truth, as_truth, encoded

STEP_ROWS = 1 << 17
"""Rows counted in one go."""

MOST_CELLS = 10_000
"""Clusters times classes up to which the table itself is given."""

MARGIN_SHIFT = 16
"""Bits of a float32 margin that are dropped to find the more certain half: margins a hundredth apart stay apart."""

CELLS_A_CLUSTER = 1 << 14
"""Margins that are told apart, times the classes that are found with most of them."""

CLASS_BYTES = 160
"""Of a class as text, with its place among the others."""

USUAL_CLASSES = 64
"""Memory is set aside for so many classes; more are counted if they fit, and refused if they do not."""

Int = NDArray[np.int64]


def evaluate(
    consensus: str | os.PathLike[str],
    truth: Any = None,
    *,
    ensemble: Any = None,
    column: str | None = None,
    memory: str | int | None = None,
    client: Any = None,
    progress: Progress = NO_PROGRESS,
) -> dict[str, Any]:
    """Score a finished consensus.

    Parameters
    ----------
    consensus : path or URL of a consensus.zarr
    truth : array, or path of a .npy, .csv or .parquet file or of a Zarr array, optional
        Known class of every sample, a number or a text; -1, NaN or an empty cell where it is not known.
    ensemble : path or URL of the ensemble.zarr behind it, or its base labels in another form, optional
        To score every member too.
    column : str, optional
        Of a .csv or .parquet truth with more than one column.
    memory : int or str, optional
        Bytes a process may take in all, such as "2GiB"; default: a share of what is free.
    client : distributed.Client, optional
        Whose workers do the sweep; default: threads of this process.
    progress : Progress
        Gets the rows done.

    Returns
    -------
    dict
        Plain numbers and texts. Always: n_samples, n_silent, n_clusters, n_clusters_found, agreement (mean NMI with
        the members), margin (its mean), stability (between candidates or restarts; None where there was one). With
        truth: n_scored, n_unknown, n_classes, scores (see :func:`evaluation.scores`), certain_half (the same for the
        samples of highest margin, at least half of all), classes and contingency (clusters × classes; up to 10,000
        cells) and, with an ensemble, members (one per member) and members_mean.
    """
    stored = open_consensus(os.fspath(consensus))
    found = _recorded(stored.facts)
    if truth is None:
        return found
    known = as_truth(truth, found["n_samples"], column)
    labels = _side_by_side(stored, ensemble)
    machine = machine_of(Where(memory=memory, client=client))
    chunk_rows = int(stored.array("margin").chunks[0])
    terms, most_classes = score_terms(labels.shape, chunk_rows, stored.facts["n_clusters"], machine)
    require_memory("scores", terms, machine.allowed, ", or leave the ensemble out")
    budget = make_budget(
        # No table here is n_slots² large; the rest of the plan is that of a sweep.
        replace(labels.shape, n_slots=1),
        [1],
        allowed=1 << 62,  # what this sweep takes is in the terms above
        taken=machine.taken,
        workers=machine.workers,
        threads=machine.threads,
        returned=False,
        diffuses=False,
    )
    with Engine(labels, budget, client, progress) as engine:
        tally = engine.sweep("evaluate", _count, _add, absolute(stored.url), stored.seal, known, most_classes)
    return found | _scored(tally, labels, found)


def score_terms(shape: Shape, chunk_rows: int, n_clusters: int, machine: Machine) -> tuple[dict[str, int], int]:
    """Bytes of a process that counts, by what they are for, and the most classes whose tables fit beside the rest.

    ``shape`` is that of the consensus and the members side by side, ``chunk_rows`` the rows of a chunk of the margins.
    """
    n, threads = shape.n_samples, machine.threads
    rows = min(n, STEP_ROWS + 2 * max(shape.read_rows or 0, chunk_rows))
    cells = min(n, CELLS_A_CLUSTER * n_clusters)
    terms = {
        "this process": machine.taken,
        "code to be loaded": CODE_BYTES,
        # as stored, as read, side by side; and what is counted of a row: margin, cluster, class, place
        "labels and margins of blocks": threads * rows * (3 * shape.row_bytes + 64),
        "classes of blocks": threads * min(n, STEP_ROWS) * CLASS_BYTES,
        "margins by cluster and class": 2 * 24 * (threads + 1) * cells,
    }
    # One table per thread, what it is added to, and their sum; as many again while classes are put in order.
    a_class = 8 * shape.n_slots * (4 * threads + 4)
    most = min(MAX_CLUSTERS, n, max(2, (machine.allowed - sum(terms.values())) // a_class))
    return terms | {"tables of classes": a_class * min(most, USUAL_CLASSES)}, most


def _recorded(facts: dict[str, Any]) -> dict[str, Any]:
    """What the run itself knew of its result."""
    names = ("n_samples", "n_silent", "n_clusters", "n_clusters_found", "agreement")
    chosen = next(record for record in facts["scan"] if record["n_clusters"] == facts["n_clusters"])
    return {**{name: facts[name] for name in names}, **{name: chosen[name] for name in ("margin", "stability")}}


@dataclass(frozen=True, eq=False)
class _Beside:
    """Labels of the consensus as the first member, those of the ensemble, if any, beside them."""

    url: str
    ensemble: Source | None
    dtype: np.dtype[Any]

    seal: str
    """Of the consensus that was opened."""
    checked = False

    @property
    def portable(self) -> bool:
        return self.ensemble is None or self.ensemble.portable

    @cached_property
    def consensus(self) -> StoredConsensus:
        return open_consensus(self.url, self.seal)

    @cached_property
    def _labels(self) -> Any:
        return self.consensus.array("labels")

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def confirm(self) -> None:
        """An error if the consensus, or the ensemble, has been replaced since it was opened."""
        self.consensus.confirm()
        if self.ensemble is not None:
            self.ensemble.confirm()

    def read(self, start: int, stop: int) -> Codes:
        own = (np.asarray(self._labels[start:stop]).astype(np.int32) + 1).astype(self.dtype)[:, None]
        if self.ensemble is None:
            return own
        return np.concatenate([own, self.ensemble.read(start, stop).astype(self.dtype)], axis=1)


def _side_by_side(stored: StoredConsensus, ensemble: Any) -> Labels:
    n_samples, width = stored.facts["n_samples"], stored.facts["n_clusters"] + 1
    chunk = int(stored.array("labels").chunks[0])
    if ensemble is None:
        source = _Beside(absolute(stored.url), None, np.min_scalar_type(width), stored.seal)
        return Labels(
            source, n_samples, (width,), True, ("consensus",), read_rows=chunk, itemsize=source.dtype.itemsize
        )
    members = labels_of(ensemble, stored)
    widths = (width, *members.widths)
    dtype = np.min_scalar_type(max(widths))
    source = _Beside(absolute(stored.url), members.source, dtype, stored.seal)
    names = ("consensus", *members.names)
    return replace(members, source=source, widths=widths, names=names, values=None, itemsize=dtype.itemsize)


def labels_of(ensemble: Any, store: StoredConsensus) -> Labels:
    """The base labels a consensus was made of, or an error if these are others."""
    labels, facts = as_labels(ensemble), store.facts
    found, wanted = (labels.n_samples, labels.n_members), (facts["n_samples"], facts["n_members"])
    if found != wanted:
        raise InputError(
            f"the ensemble has {found[0]:,} samples and {found[1]:,} members, the consensus was made of {wanted[0]:,} "
            f"and {wanted[1]:,}: give the ensemble it was made of"
        )
    if labels.fingerprint and labels.fingerprint != facts["identity"]["labels"]:
        raise StoreError(
            f"the ensemble has fingerprint {labels.fingerprint}, the consensus was made of "
            f"{facts['identity']['labels']}: give the ensemble it was made of"
        )
    return labels


@dataclass(eq=False)
class Tally:
    """What some rows count up to; adds up in any order."""

    names: NDArray[np.str_]
    """The classes, ascending."""
    table: Int
    """Slots of the consensus and of the members × classes."""
    places: Int
    """Margin and cluster, as one number, of the rows of an entry of ``certain``."""
    classes: Int
    counts: Int
    n_silent: int
    n_unknown: int

    def renamed(self, names: NDArray[np.str_]) -> "Tally":
        """The same in terms of a longer list of classes."""
        place = np.searchsorted(names, self.names)
        table = np.zeros((len(self.table), len(names)), np.int64)
        table[:, place] = self.table
        return replace(self, names=names, table=table, classes=place[self.classes].astype(np.int64))


def _count(span: Span, url: str, seal: str, truth: Truth, most_classes: int) -> Tally:
    """Tables of one span."""
    margins = open_consensus(url, seal).array("margin")
    parts: list[Tally] = []
    for start in range(span.start, span.stop, STEP_ROWS):
        stop = min(start + STEP_ROWS, span.stop)
        part = _count_block(span, start, span.labels.read(start, stop), truth.read(start, stop), margins)
        parts = [_add([*parts, part])]
        if (found := len(parts[0].names)) > most_classes:
            raise BudgetError(
                f"tables of {found} classes do not fit the memory allowed, of {most_classes} do: allow more"
            )
    return parts[0]


def _count_block(span: Span, start: int, codes: Codes, classes: Any, margins: Any) -> Tally:
    names, found = encoded(classes, start)
    order = np.argsort(names)
    found = np.append(np.argsort(order), -1)[found]
    if len(names) > MAX_CLUSTERS:
        _refuse_classes(len(names))
    counted = found >= 0
    assignment = np.where(counted, np.int16(kernels.UNASSIGNED), np.int16(kernels.SILENT))
    table = np.zeros((span.n_slots, len(names)), np.int64)
    keys = np.zeros(len(codes), np.uint64)
    # The classes take the place of the clusters in a round: C = HᵀA, counted by the same loop.
    kernels.assign(codes, span.offsets, found.astype(np.int16), keys, *EVERYTHING, assignment, table)
    clusters = codes[:, 0].astype(np.int64) - 1
    both = counted & (clusters >= 0)
    key = np.asarray(margins[start : start + len(codes)])[both].view(np.uint32).astype(np.int64) >> MARGIN_SHIFT
    places, counts = np.unique(
        (key * span.labels.widths[0] + clusters[both]) * max(1, len(names)) + found[both], return_counts=True
    )
    silent, unknown = np.count_nonzero(clusters < 0), np.count_nonzero(~counted)
    place, klass = np.divmod(places, max(1, len(names)))
    return Tally(names[order], table, place, klass, counts, int(silent), int(unknown))


def _add(tallies: Sequence[Tally]) -> Tally:
    names = np.unique(np.concatenate([tally.names for tally in tallies]))
    if len(names) > MAX_CLUSTERS:
        _refuse_classes(len(names))
    tallies = [tally if len(tally.names) == len(names) else tally.renamed(names) for tally in tallies]
    width = max(1, len(names))
    keys = np.concatenate([tally.places * width + tally.classes for tally in tallies])
    merged, entry = np.unique(keys, return_inverse=True)
    counts = np.zeros(len(merged), np.int64)
    np.add.at(counts, entry, np.concatenate([tally.counts for tally in tallies]))
    place, klass = np.divmod(merged, width)
    table = np.sum([tally.table for tally in tallies], axis=0)
    silent, unknown = sum(tally.n_silent for tally in tallies), sum(tally.n_unknown for tally in tallies)
    return Tally(names, table, place, klass, counts, silent, unknown)


def _refuse_classes(count: int) -> None:
    raise InputError(
        f"truth has {count} classes or more, at most {MAX_CLUSTERS} are supported: is it a column of classes?"
    )


def _scored(tally: Tally, labels: Labels, found: dict[str, Any]) -> dict[str, Any]:
    own = tally.table[1 : labels.widths[0]]
    if not own.sum():
        raise InputError(f"truth: none of the {found['n_samples']} samples has both a cluster and a known class")
    result: dict[str, Any] = {
        "n_scored": int(own.sum()),
        "n_unknown": tally.n_unknown,
        "n_classes": len(tally.names),
        "scores": scores(own),
        "certain_half": _certain_half(tally, labels.widths[0]),
    }
    if own.size <= MOST_CELLS:
        result |= {"classes": tally.names.tolist(), "contingency": own.tolist()}
    if labels.n_members > 1:
        members = []
        for j in range(1, labels.n_members):
            first = int(labels.offsets[j])
            table = tally.table[first + int(labels.silent) : first + labels.widths[j]]
            one: dict[str, Any] = {"member": labels.names[j], "n_scored": int(table.sum())}
            members.append(one | (scores(table) if table.any() else {}))
        spoken = [member for member in members if member["n_scored"]]
        result["members"] = members
        result["members_mean"] = {
            name: float(np.mean([member[name] for member in spoken])) for name in result["scores"]
        }
    return result


def _certain_half(tally: Tally, width: int) -> dict[str, Any]:
    """Scores of the samples of highest margin: as few of the steps in which margins are told apart as make a half."""
    margin, cluster = np.divmod(tally.places, width)
    steps, step_of = np.unique(margin, return_inverse=True)
    held = np.bincount(step_of, weights=tally.counts).astype(np.int64)[::-1].cumsum()
    lowest = steps[::-1][np.searchsorted(held, -(-int(held[-1]) // 2))]
    inside = margin >= lowest
    table = np.zeros((width, len(tally.names)), np.int64)
    np.add.at(table, (cluster[inside], tally.classes[inside]), tally.counts[inside])
    margin_from = float((np.uint32(lowest) << np.uint32(MARGIN_SHIFT)).view(np.float32))
    return {"n_scored": int(table.sum()), "margin_from": margin_from, **scores(table)}
