"""Agreement of partitions, from contingency tables alone.

Beside the stages: a consensus and its members are compared through the counts the stages have made anyway,
so no score costs a sweep.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from cehm_dask.intersections import Hyperedges

Table = NDArray[np.int64]
Scores = NDArray[np.float64]

NO_ENTROPY = 1e-12
"""Below this an entropy is rounding: two clusters of 10⁹ samples, one of them a single sample, have 2e-8."""


def block_nmi(table: Table, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> Scores:
    """NMI (geometric mean of the entropies) of every two partitions whose contingency tables are blocks of ``table``.

    Parameters
    ----------
    table : (r, c) int64
    rows : (r,) int
        Partition, from 0, that each row is a cluster of.
    columns : (c,) int

    Returns
    -------
    (partitions of rows, partitions of columns) float64
        As in scikit-learn, two partitions with one cluster each agree fully (1); one against many: 0.
        Partitions that share no sample: 0.
    """
    left = (rows[None, :] == np.arange(rows.max() + 1)[:, None]).astype(np.float64)
    right = (columns[:, None] == np.arange(columns.max() + 1)[None, :]).astype(np.float64)
    counts = table.astype(np.float64)
    row_sums, column_sums = counts @ right, left @ counts
    total = left @ row_sums
    row_terms, column_terms = left @ xlogy(row_sums, row_sums), xlogy(column_sums, column_sums) @ right
    shared = left @ xlogy(counts, counts) @ right - row_terms - column_terms + xlogy(total, total)
    some = np.where(total > 0, total, 1.0)
    row_entropy, column_entropy = np.log(some) - row_terms / some, np.log(some) - column_terms / some
    row_flat, column_flat = row_entropy < NO_ENTROPY, column_entropy < NO_ENTROPY
    scale = np.sqrt(np.where(row_flat, 1.0, row_entropy) * np.where(column_flat, 1.0, column_entropy))
    scores = np.clip(shared / some / scale, 0.0, 1.0)
    scores = np.where(row_flat | column_flat, (row_flat & column_flat).astype(np.float64), scores)
    return np.where(total > 0, scores, 0.0)


def nmi(table: Table) -> float:
    """NMI of two partitions from their contingency table.

    >>> nmi(np.array([[5, 0], [0, 5]]))
    1.0
    """
    rows, columns = table.shape
    return float(block_nmi(table, np.zeros(rows, np.intp), np.zeros(columns, np.intp))[0, 0])


def agreement(hyperedges: Hyperedges, counts: Table) -> float:
    """Mean NMI of a consensus with the members, from its counts C (n_hyperedges × k)."""
    scores = block_nmi(counts, hyperedges.members, np.zeros(counts.shape[1], np.intp))
    return float(scores.sum() / hyperedges.n_members)


def member_agreement(hyperedges: Hyperedges) -> Scores:
    """NMI of every two members, n_members × n_members, from the intersections."""
    scores = np.zeros((hyperedges.n_members, hyperedges.n_members))
    found = block_nmi(hyperedges.intersections, hyperedges.members, hyperedges.members)
    scores[: len(found), : len(found)] = found
    np.fill_diagonal(scores, 1.0)
    return scores
