"""Agreement of partitions, from contingency tables alone.

Beside the stages: a consensus and its members are compared through the counts the stages have made anyway,
so no score costs a sweep.
"""

import numpy as np
from numpy.typing import NDArray

from cehm_dask.intersections import Hyperedges

Table = NDArray[np.int64]


def nmi(table: Table) -> float:
    """Normalised mutual information of two partitions, geometric mean of the entropies.

    As in scikit-learn, two partitions with one cluster each agree fully (1.0); one against many: 0.0.

    >>> nmi(np.array([[5, 0], [0, 5]]))
    1.0
    """
    total = table.sum()
    if total == 0:
        return 0.0
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    entropy_rows, entropy_columns = _entropy(rows, total), _entropy(columns, total)
    if entropy_rows == 0.0 or entropy_columns == 0.0:
        return 1.0 if entropy_rows == entropy_columns else 0.0
    filled = table > 0
    joint = table[filled] / total
    independent = (rows[:, None] / total * (columns[None, :] / total))[filled]
    shared = float((joint * np.log(joint / independent)).sum())
    return float(min(1.0, max(0.0, shared / np.sqrt(entropy_rows * entropy_columns))))


def _entropy(sizes: NDArray[np.int64], total: int) -> float:
    share = sizes[sizes > 0] / total
    return float(-(share * np.log(share)).sum()) if len(share) > 1 else 0.0


def agreement(hyperedges: Hyperedges, counts: Table) -> float:
    """Mean NMI of a consensus with the members, from its counts C (n_hyperedges × k)."""
    return float(np.mean([nmi(counts[hyperedges.of_member(j)]) for j in range(hyperedges.n_members)]))


def member_agreement(hyperedges: Hyperedges) -> NDArray[np.float64]:
    """NMI of every two members, n_members × n_members, from the intersections."""
    members = range(hyperedges.n_members)
    parts = [hyperedges.of_member(j) for j in members]
    scores = np.eye(hyperedges.n_members)
    for i in members:
        for j in members[i + 1 :]:
            scores[i, j] = scores[j, i] = nmi(hyperedges.intersections[parts[i], parts[j]])
    return scores
