"""A start from a sample of rows, for very many: intersections, medoids and diffusion look at these only.

Beside the intersections, which it stands in for. One sweep gathers the sample and counts the exact sizes of the
hyperedges; the coordinator takes the sample through all stages, and what comes out is where all rows start from. The
table of intersections is that of the sample, scaled up, with the exact sizes on its diagonal.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.sources import ArraySource, Codes
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.span import Span
from cehm_dask.engine.sweep import Engine
from cehm_dask.method import kernels
from cehm_dask.method.intersections import Hyperedges, Tally, hyperedges_of, slots_of, tally_of
from cehm_dask.method.params import Params
from cehm_dask.method.problem import Problem

Int = NDArray[np.int64]

Gathered = tuple[Int, int, list[Codes]]
"""Rows in every slot, rows without any label, and the codes of the rows wanted."""


def rows_to_start_from(n_samples: int, params: Params, seed: int) -> Int:
    """Row numbers drawn at random, ascending; the same whenever a run is resumed. None, if all rows take part."""
    if params.start_rows is None or params.start_rows >= n_samples:
        return np.empty(0, np.int64)
    rng = np.random.default_rng([seed, n_samples, params.start_rows])
    return np.sort(rng.choice(n_samples, params.start_rows, replace=False, shuffle=False)).astype(np.int64)


def _gather(span: Span, rows: Int) -> Gathered:
    sizes, silent, gathered = np.zeros((span.n_slots, 1), np.int64), 0, list[Codes]()
    for block in span.blocks():
        kernels.count(block.codes, span.offsets, np.zeros(block.n_rows, np.int16), sizes)
        if span.labels.silent:
            silent += int(np.count_nonzero(~block.codes.any(axis=1)))
        first, last = np.searchsorted(rows, [block.start, block.stop])
        if last > first:
            gathered.append(block.codes[rows[first:last] - block.start])
    return sizes[:, 0], silent, gathered


def _add(parts: Sequence[Gathered]) -> Gathered:
    sizes, silent, gathered = zip(*parts, strict=True)
    return np.sum(sizes, axis=0), sum(silent), [codes for own in gathered for codes in own]


def gather_rows(engine: Engine, rows: Int) -> tuple[Int, int, Codes]:
    """In one sweep: how many rows each slot has, how many rows have no label, and the codes of some rows."""
    sizes, n_silent, gathered = engine.sweep("sample", _gather, _add, rows)
    return sizes, n_silent, np.concatenate(gathered)


class Sample:
    """Rows in the coordinator's memory, as labels of their own with an engine around them."""

    def __init__(
        self, engine: Engine, codes: Codes, clusters: Sequence[int], compared: NDArray[np.intp] | None
    ) -> None:
        whole = engine.labels
        own = replace(whole, source=ArraySource(codes), n_samples=len(codes), read_rows=None, align_rows=1)
        # What it takes is a term of the whole run's budget.
        budget = make_budget(own.shape, clusters, allowed=1 << 62, threads=engine.budget.threads)
        self.engine = Engine(own, budget)
        self._compared, tally = compared, tally_of(self.engine, np.empty(0, np.int64), compared)
        self._table = tally.table
        self.hyperedges: Hyperedges = hyperedges_of(
            own, tally.table, tally.n_silent, members=compared, sizes=tally.sizes
        )
        for span in self.engine.spans:
            span.silent_rows = tally.n_silent > 0

    def estimate(self, sizes: Int, n_silent: int) -> Tally:
        """Intersections of all rows: those of the sample times what it stands for, and sizes as they are."""
        own = sizes if self._compared is None else sizes[slots_of(self.engine.labels, self._compared)]
        scale = own.sum() / max(1, int(self._table.diagonal().sum()))
        table: Int = np.rint(self._table * scale).astype(np.int64)
        np.minimum(table, np.minimum(own[:, None], own[None, :]), out=table)
        np.fill_diagonal(table, own)
        return Tally(table, n_silent, None if self._compared is None else sizes)

    def take_over(self, problem: Problem, hyperedges: Hyperedges) -> Problem:
        """A problem solved on the sample as the start of one over all rows."""
        counts = np.zeros((hyperedges.n_slots, problem.params.n_clusters), np.int64)
        counts[self.hyperedges.slots] = problem.counts
        medoids = np.searchsorted(hyperedges.slots, self.hyperedges.slots[problem.medoids])
        return Problem(problem.number, problem.params, hyperedges, medoids, counts[hyperedges.slots])
