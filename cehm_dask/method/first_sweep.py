"""The first sweep of a consensus: the intersections, and the labels of all rows that the coordinator looks at itself.

Between the intersections and the stages in order. Rows that are followed, that compete, and that a start is found on
come from the sweep that counts; what a checkpoint has, or a consensus that this one grows out of, is not counted again.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import ConsensusStore
from cehm_dask.data.sources import Codes
from cehm_dask.engine.sweep import Engine
from cehm_dask.method.competing import competing_rows
from cehm_dask.method.intersections import Tally, check_table, tally_of
from cehm_dask.method.params import Params
from cehm_dask.method.sampling import Sample, gather_rows, rows_to_start_from
from cehm_dask.method.trail import SAMPLE, Trail, rows_to_follow, sampled
from cehm_dask.method.warm import Warm


def first_sweep(
    engine: Engine,
    problems_of: Sequence[Params],
    compared: NDArray[np.intp] | None,
    seed: int,
    store: ConsensusStore | None,
    warm: Warm | None = None,
) -> tuple[Tally, Trail | None, Codes | None, Sample | None]:
    """One sweep: the table of intersections, silent rows, the rows that are followed, that compete, to start from.

    None of these is looked at again where a checkpoint has it. Where a consensus grows out of one whose intersections
    are known, only new rows are swept over, or none, and no row is followed.
    """
    labels = engine.labels
    begun = store is not None and store.load_checkpoint() is not None
    compete_on = np.empty(0, np.int64)
    if problems_of[0].portfolio and not begun:
        compete_on = competing_rows(labels, seed)
    start_from = np.empty(0, np.int64) if begun else rows_to_start_from(labels.n_samples, problems_of[0], seed)
    follow = np.empty(0, np.int64)
    if store is not None:
        n_problems = sum(1 if params.portfolio else params.restarts for params in problems_of)
        follow = rows_to_follow(labels.n_samples, n_problems, seed)
        saved = store.load_intersections()
        if saved is not None and not len(compete_on) and not len(start_from):
            before = Tally(*saved, store.load_slot_sizes())
            check_table(labels, *saved, compared, before.sizes)
            codes = sampled(store.load_trail(), labels, follow)
            trail = None if codes is None else Trail(labels, follow, codes, saved[1], store)
            return before, trail, None, None
    grown = None if warm is None or compared is not None else warm.tally(engine)
    if grown is not None:
        check_table(labels, grown.table, grown.n_silent)
        if store is not None:
            store.save_intersections(grown.table, grown.n_silent)
        return grown, None, None, None
    rows, sample = np.union1d(follow, compete_on), None
    if len(start_from):
        rows = np.union1d(rows, start_from)
        sizes, n_silent, codes = gather_rows(engine, rows)
        clusters = [params.n_clusters for params in problems_of for _ in range(params.restarts)]
        sample = Sample(engine, codes[np.searchsorted(rows, start_from)], clusters, compared)
        tally = sample.estimate(sizes, n_silent)
        if len(compete_on):  # candidates have rows of their own
            sample.engine.close()
            sample = None
    else:
        tally = tally_of(engine, rows, compared)
        codes = tally.codes
    check_table(labels, tally.table, tally.n_silent, compared, tally.sizes)
    competing = codes[np.searchsorted(rows, compete_on)] if len(compete_on) else None
    if store is None:
        return tally, None, competing, sample
    followed = codes[np.searchsorted(rows, follow)]
    store.save_trail({SAMPLE: followed})
    store.save_intersections(tally.table, tally.n_silent, tally.sizes)
    return tally, Trail(labels, follow, followed, tally.n_silent, store), competing, sample
