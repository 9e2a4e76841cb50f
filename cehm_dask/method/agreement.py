"""Agreement of partitions, from contingency tables alone.

Beside the stages: a consensus and its members are compared through the counts the stages have made anyway,
so no score costs a sweep. Against known classes, one table gives all the usual scores, as scikit-learn has them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import InputError
from cehm_dask.method.intersections import Hyperedges

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
        Partition, from 0, that each row is a cluster of; ascending.
    columns : (c,) int

    Returns
    -------
    (partitions of rows, partitions of columns) float64
        As in scikit-learn, two partitions with one cluster each agree fully (1); one against many: 0.
        Partitions that share no sample: 0.
    """
    counts = table.astype(np.float64)
    row_sums, column_sums = _sums(counts, columns, 1), _sums(counts, rows, 0)
    total = _sums(row_sums, rows, 0)
    row_terms, column_terms = _sums(_x_log_x(row_sums), rows, 0), _sums(_x_log_x(column_sums), columns, 1)
    within = _sums(_sums(_x_log_x(counts), rows, 0), columns, 1)
    shared = within - row_terms - column_terms + _x_log_x(total)
    some = np.where(total > 0, total, 1.0)
    row_entropy, column_entropy = np.log(some) - row_terms / some, np.log(some) - column_terms / some
    row_flat, column_flat = row_entropy < NO_ENTROPY, column_entropy < NO_ENTROPY
    scale = np.sqrt(np.where(row_flat, 1.0, row_entropy) * np.where(column_flat, 1.0, column_entropy))
    scores = np.clip(shared / some / scale, 0.0, 1.0)
    scores = np.where(row_flat | column_flat, (row_flat & column_flat).astype(np.float64), scores)
    return np.where(total > 0, scores, 0.0)


def _sums(table: Scores, groups: NDArray[np.intp], axis: int) -> Scores:
    """Sums over the rows (or columns) of each group; groups are ascending, one without rows has zeros."""
    if groups[-1] == 0:
        return np.asarray(table.sum(axis=axis, keepdims=True))
    first = np.append(0, np.flatnonzero(groups[1:] != groups[:-1]) + 1)
    found = np.add.reduceat(table, first, axis=axis)
    if len(first) == groups[-1] + 1:
        return found
    shape = list(found.shape)
    shape[axis] = int(groups[-1]) + 1
    spread = np.zeros(shape)
    spread[(slice(None),) * axis + (groups[first],)] = found
    return spread


def _x_log_x(counts: Scores) -> Scores:
    """x·log x of whole numbers, 0 at 0; twice as fast as scipy's, which cannot rely on them."""
    terms = np.maximum(counts, 1.0)
    np.log(terms, out=terms)
    terms *= counts
    return terms


def entropy_terms(shares: Scores) -> Scores:
    """−x·log x of shares, 0 at 0: scipy's ``entr``, whose package takes 4 MiB of a small process to load."""
    terms = np.maximum(shares, np.finfo(np.float64).tiny)
    np.log(terms, out=terms)
    terms *= shares
    return np.negative(terms, out=terms)


def nmi(table: Table) -> float:
    """NMI of two partitions from their contingency table.

    >>> nmi(np.array([[5, 0], [0, 5]]))
    1.0
    """
    rows, columns = table.shape
    return float(block_nmi(table, np.zeros(rows, np.intp), np.zeros(columns, np.intp))[0, 0])


def contingency(clusters: NDArray[Any], classes: NDArray[Any], shape: tuple[int, int] | None = None) -> Table:
    """How many samples every cluster (row) shares with every class (column); codes below 0 are left out.

    ``shape`` is the number of clusters and classes; default: as many as the codes name.

    >>> contingency(np.array([0, 0, 1, -1]), np.array([1, 1, 0, 0])).tolist()
    [[0, 2], [1, 0]]
    """
    both = (clusters >= 0) & (classes >= 0)
    rows, columns = clusters[both].astype(np.int64), classes[both].astype(np.int64)
    if shape is None:
        shape = int(rows.max(initial=-1)) + 1, int(columns.max(initial=-1)) + 1
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape).astype(np.int64)


def scores(table: Table) -> dict[str, float]:
    """All scores of a clustering against known classes, from their contingency table.

    Parameters
    ----------
    table : (clusters, classes) int64
        Samples that each cluster shares with each class.

    Returns
    -------
    dict
        nmi (geometric mean of the entropies), nmi_arithmetic, ari, accuracy (clusters matched with classes one to
        one as well as can be), purity, homogeneity, completeness, v_measure: as scikit-learn computes those it has.
    """
    from scipy.optimize import linear_sum_assignment  # workers compare partitions too, but do without this

    if not table.sum():
        raise InputError("the contingency table counts no samples: there is nothing to score")
    total = int(table.sum())
    by_cluster, by_class = table.sum(axis=1), table.sum(axis=0)
    cluster_entropy, class_entropy = _entropy(by_cluster), _entropy(by_class)
    shared = max(0.0, cluster_entropy + class_entropy - _entropy(table))
    homogeneity = min(1.0, shared / class_entropy) if class_entropy else 1.0
    completeness = min(1.0, shared / cluster_entropy) if cluster_entropy else 1.0
    both = homogeneity + completeness
    matched = table[linear_sum_assignment(table, maximize=True)].sum()
    v_measure = 2 * homogeneity * completeness / both if both else 0.0
    return {
        "nmi": nmi(table),
        "nmi_arithmetic": v_measure,
        "ari": _ari(table),
        "accuracy": int(matched) / total,
        "purity": int(table.max(axis=1).sum()) / total,
        "homogeneity": homogeneity,
        "completeness": completeness,
        "v_measure": v_measure,
    }


def _entropy(counts: Table) -> float:
    filled = counts[counts > 0]
    if filled.size == 1:
        return 0.0
    shares = filled / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _ari(table: Table) -> float:
    """Adjusted Rand index; pairs are counted in whole numbers of any size: 10⁹ samples have 10¹⁸ of them."""
    together = _pairs(table)
    in_clusters, in_classes = _pairs(table.sum(axis=1)), _pairs(table.sum(axis=0))
    everywhere = _pairs(table.sum(keepdims=True))
    if together == in_clusters == in_classes:
        return 1.0
    chance = in_clusters * in_classes
    return 2 * (together * everywhere - chance) / ((in_clusters + in_classes) * everywhere - 2 * chance)


def _pairs(counts: Table) -> int:
    """Pairs of samples that are counted in one cell."""
    return sum(count * (count - 1) // 2 for count in counts[counts > 1].tolist())


def explained(hyperedges: Hyperedges, counts: Table) -> float:
    """Theil's U: the share of the consensus's entropy that a member explains, mean over the members."""
    first = np.flatnonzero(np.diff(hyperedges.members, prepend=-1))
    table = counts.astype(np.float64)
    clusters = np.add.reduceat(table, first, axis=0)
    total = np.maximum(clusters.sum(axis=1), 1.0)
    entropy = np.log(total) - _x_log_x(clusters).sum(axis=1) / total
    # H(cluster | member) = Σ_c (s_c log s_c - Σ_e C log C) / n
    unknown = _x_log_x(table.sum(axis=1)) - _x_log_x(table).sum(axis=1)
    left = np.add.reduceat(unknown, first) / total
    some = entropy > NO_ENTROPY
    shares = np.where(some, 1.0 - left / np.where(some, entropy, 1.0), 0.0)
    return hyperedges.mean_over_members(np.clip(shares, 0.0, 1.0), present=True)


def agreement(hyperedges: Hyperedges, counts: Table) -> float:
    """Mean NMI of a consensus with the members, from its counts C (n_hyperedges × k)."""
    scores = block_nmi(counts, hyperedges.members, np.zeros(counts.shape[1], np.intp))
    return hyperedges.mean_over_members(scores[:, 0])


def member_agreement(hyperedges: Hyperedges) -> Scores:
    """NMI of every two members, n_members × n_members, from the intersections; of those compared, if not all are."""
    hyperedges = hyperedges.judged
    scores = np.zeros((hyperedges.n_members, hyperedges.n_members))
    found = block_nmi(hyperedges.intersections, hyperedges.members, hyperedges.members)
    scores[: len(found), : len(found)] = found
    np.fill_diagonal(scores, 1.0)
    return scores
