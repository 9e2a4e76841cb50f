"""What the rivals that are linear in n ask of the rows: counts, votes, labels, block by block on the engine.

Below the methods, above the engine: a method is arithmetic on small tables between two or three of these sweeps.
Every table is a sum of whole numbers and every row's label a function of that row alone, so neither blocks nor
workers change a label, as with CEHM itself.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.labels import Labels
from cehm_dask.data.sources import Codes
from cehm_dask.engine.budget import Budget, intersection_bytes, make_budget, rows_of_a_process
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import BudgetError
from cehm_dask.job import Where, machine_of
from cehm_dask.machine import format_bytes
from cehm_dask.method import counting, kernels
from cehm_dask.method.intersections import Hyperedges, hyperedges_of, intersections
from cehm_dask.method.params import Params, check_fit

Floats = NDArray[np.float64]
Found = NDArray[np.int16]
Pieces = Callable[..., Iterator[tuple[int, Found]]]
"""Labels of a span, a block at a time: (first row, labels)."""

WEIGHT = 1 << 30
"""Weights of rows are counted in units of 1/WEIGHT: whole numbers, which add up the same in any order."""

LARGEST_SUM = 1 << 62
"""What sums of counted weights stay below."""


def settle(labels: Labels, n_clusters: int, where: Where, *, kept: int, scratch: int, tables: int) -> Budget:
    """The budget of a method that is linear in n, or a refusal.

    Parameters
    ----------
    kept : int
        Bytes a row worth keeping between sweeps; computed again where they do not fit.
    scratch : int
        Bytes a row of a block that is being worked on.
    tables : int
        Numbers (eight bytes each) for every two hyperedges.
    """
    check_fit(Params(n_clusters), labels.n_samples)
    machine = machine_of(where)
    budget = make_budget(
        labels.shape,
        [n_clusters],
        allowed=machine.allowed,
        taken=machine.taken,
        workers=machine.workers,
        threads=machine.threads,
        diffuses=False,
        block_rows=where.block_rows,
    )
    terms = {**budget.terms, "kept assignments": 0, "kept labels": 0}
    spans = len(budget.span_edges) - 1
    terms["intersections"] = intersection_bytes(  # of all, whatever their number
        labels.n_slots, machine.threads, spans=spans, n_clusters=n_clusters
    )
    terms["scratch of blocks"] = machine.threads * budget.block_rows * scratch
    terms["tables of hyperedges"] = 8 * tables * labels.n_slots**2
    needed = sum(terms.values())
    if needed > machine.allowed:
        raise BudgetError(
            f"memory={format_bytes(machine.allowed)} allowed < {format_bytes(needed)} projected, of which "
            f"{format_bytes(terms['tables of hyperedges'])} for tables of {labels.n_slots} base clusters: "
            "allow more memory, or use fewer base clusters"
        )
    share = rows_of_a_process(budget.span_edges, machine.workers)
    keep_state = needed + share * kept <= machine.allowed
    terms["kept assignments"] = share * kept if keep_state else 0
    needed += terms["kept assignments"]
    keep_labels = budget.stored and needed + share * budget.label_bytes_a_row <= machine.allowed
    terms["kept labels"] = share * budget.label_bytes_a_row if keep_labels else 0
    return replace(budget, terms=terms, keep_state=keep_state, state_bytes_a_row=kept, keep_labels=keep_labels)


@contextmanager
def counted(
    labels: Labels, n_clusters: int, where: Where, *, kept: int = 0, scratch: int = 0, tables: int = 8
) -> Iterator[tuple[Engine, Hyperedges]]:
    """An engine for the labels, and what its first sweep counts: the hyperedges and their intersections."""
    budget = settle(labels, n_clusters, where, kept=kept, scratch=scratch, tables=tables)
    with Engine(labels, budget, where.client) as engine:
        hyperedges = hyperedges_of(labels, *intersections(engine))
        check_fit(Params(n_clusters), hyperedges.n_speaking, hyperedges.n_hyperedges)
        yield engine, hyperedges


def spoken(span: Span, codes: Codes) -> NDArray[np.bool_] | None:
    """Rows that some member says something about; None: all."""
    return np.asarray(codes.any(axis=1)) if span.labels.silent else None


def weighted_table(engine: Engine, hyperedges: Hyperedges, degrees: Floats) -> Floats:
    """Bᵀ diag(1/d) B, where the degree d of a row is the sum of ``degrees`` over its hyperedges. One sweep."""
    # Below 1, degrees may be so small that sums in the usual units exceed 64 bits: then units that just fit.
    least = float(degrees.min())
    units = WEIGHT if least >= 1 else least * LARGEST_SUM / hyperedges.n_samples
    column = hyperedges.to_slots(degrees[:, None])
    upper = engine.sweep("weighted intersections", _weigh, _add, column, units)
    table = (upper + np.triu(upper, 1).T)[np.ix_(hyperedges.slots, hyperedges.slots)]
    return table / units


def _weigh(span: Span, column: Floats, units: float) -> NDArray[np.int64]:
    table = np.zeros((span.n_slots, span.n_slots), np.int64)
    for block in span.blocks():
        degree = np.empty((block.n_rows, 1))
        kernels.degrees(block.codes, span.offsets, column, degree)
        weights = np.rint(units / np.where(degree > 0, degree, np.inf)).astype(np.int64)
        counting.weighted_intersections(block.codes, span.offsets, weights[:, 0], table)
    return table


def _add(tables: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.asarray(np.sum(tables, axis=0))


def shares(groups: NDArray[np.intp], n_clusters: int) -> Floats:
    """Votes (P × k) of the hyperedges of each group: together one whole vote a group."""
    counts = np.bincount(groups, minlength=n_clusters)
    votes = np.zeros((len(groups), n_clusters))
    votes[np.arange(len(groups)), groups] = 1.0 / counts[groups]
    return votes


def vote(engine: Engine, hyperedges: Hyperedges, votes: Floats) -> Found:
    """Each row to the cluster with the largest sum of votes (n_hyperedges × k, none negative); ties: the lowest."""
    return collect(engine, _voted, *kernels.side_by_side([hyperedges.to_slots(votes)]))


def _voted(span: Span, weights: Floats, first_column: NDArray[np.int64]) -> Iterator[tuple[int, Found]]:
    for block in span.blocks():
        best, margin = np.empty((1, block.n_rows), np.int16), np.empty((1, block.n_rows))
        kernels.belonging(block.codes, span.offsets, weights, first_column, best, margin)
        some = spoken(span, block.codes)
        yield block.start, best[0] if some is None else np.where(some, best[0], np.int16(-1))


def collect(engine: Engine, pieces: Pieces, *args: Any) -> Found:
    """Labels of all rows in one sweep; threads of this process fill the array in place."""
    if engine.client is not None:
        return engine.sweep("result", _gather, _join, pieces, args)
    found = np.empty(engine.labels.n_samples, np.int16)
    engine.sweep("result", _fill, len, pieces, args, found)
    return found


def _gather(span: Span, pieces: Pieces, args: tuple[Any, ...]) -> Found:
    return np.concatenate([labels for _, labels in pieces(span, *args)])


def _join(parts: Sequence[Found]) -> Found:
    return np.concatenate(parts)


def _fill(span: Span, pieces: Pieces, args: tuple[Any, ...], found: Found) -> int:
    for first_row, labels in pieces(span, *args):
        found[first_row : first_row + len(labels)] = labels
    return 0
