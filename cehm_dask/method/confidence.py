"""The confidence of a sample in its cluster, from 0 to 1, out of its base labels and small tables.

Beside the rounds, above the kernels: the coordinator makes the small tables once, whoever has a block of codes and the
clusters of its rows reads confidences off them. Any partition will do, whatever method made it.

The share of a cluster is the mean, over the labels that a sample has, of the part of each base cluster that lies in
it. Shares rank samples well but are no probabilities: thirty independent members that are right half of the time leave
no doubt together, and thirty copies of one member know no more than that one. Members that err together show it in the
table of intersections: inside the clusters of the consensus, their votes are correlated. From that correlation follows
how many independent labels those of a sample are worth, and shares are raised to half that number before they are
scaled to add up to 1. ``docs/confidence.md`` has the figures.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method import kernels
from cehm_dask.method.intersections import Hyperedges

Float = NDArray[np.float64]
Int = NDArray[np.int64]

PER_LABEL = 0.5
"""Exponent for each independent label; chosen on made-up ensembles."""
LARGEST = 8
"""Largest exponent: beyond it, samples that are nearly certain could not be told apart any more."""


def correlation(intersections: Int, counts: Int, sizes: Int, members: NDArray[np.intp]) -> float:
    """Correlation of the votes of two members inside the clusters, on average; from 0 to 1.

    The vote of a base cluster is the vector of its shares. Inside the clusters, the covariance of two members' votes is
    the mean product of the two less the product of their means, and both follow from counts of samples alone.

    Parameters
    ----------
    intersections : (n_hyperedges, n_hyperedges) int64
        Samples that every two base clusters share.
    counts : (n_hyperedges, n_clusters) int64
        Samples that each base cluster shares with each cluster of the partition.
    sizes : (n_hyperedges,) int64
    members : (n_hyperedges,) int
        Member of each base cluster, ascending.
    """
    first = np.flatnonzero(np.diff(members, prepend=-1))
    if len(first) < 2:
        return 0.0
    votes = counts / sizes[:, None]
    present = np.add.reduceat(counts, first, axis=0)
    share = present.sum(axis=0) / present.sum()
    last = np.append(first[1:], len(members))
    spans = [slice(int(begin), int(end)) for begin, end in zip(first, last, strict=True)]
    # Mean vote of each member in each cluster, weighted so that products add up over the clusters.
    means = np.stack([counts[span].T @ votes[span] for span in spans])
    means *= (np.sqrt(share) / np.maximum(present, 1))[:, :, None]
    together, alone = 0.0, 0.0
    for i, span in enumerate(spans):  # one member's rows at a time: the whole table of products may be large
        both = intersections[span]
        product = np.add.reduceat((both * (votes[span] @ votes.T)).sum(axis=0), first)
        shared = np.add.reduceat(both.sum(axis=0), first)
        covariance = product / np.maximum(shared, 1) - np.einsum("ef,jef->j", means[i], means)
        # Two members that share no sample cannot be compared.
        together += float(covariance[shared > 0].sum())
        alone += float(covariance[i])
    if alone <= 1e-9 * len(first):
        return 1.0  # every base cluster votes as its cluster does: nothing tells the members from copies of one
    return float(np.clip((together / alone - 1) / (len(first) - 1), 0.0, 1.0))


def exponents(n_members: int, correlation: float) -> Int:
    """Four times the exponent of a sample with 0, 1, …, n_members labels; 0 for none, else from 4 on.

    So many labels with that correlation have a mean as precise as labels / (1 + (labels - 1) · correlation)
    independent ones.
    """
    labels = np.arange(n_members + 1)
    independent = labels / (1 + np.maximum(labels - 1, 0) * correlation)
    quarters = np.clip(np.rint(4 * PER_LABEL * independent), 4, 4 * LARGEST).astype(np.int64)
    quarters[0] = 0
    return quarters


def evidence(counts: Int, sizes: Int, weight: Float | None = None) -> Float:
    """A column of ones, then the share of each base cluster that lies in each cluster: (n_hyperedges, 1 + k).

    Shares are times what the base cluster counts, where they do not all count alike: confidences depend on their
    ratios only. Spread over the slots with zeros for missing labels, it is what :class:`Gauge` takes.
    """
    shares = counts / sizes[:, None]
    return np.column_stack([np.ones(len(counts)), shares if weight is None else shares * weight[:, None]])


def gauge_of(hyperedges: Hyperedges, counts: Int, correlation: float) -> "Gauge":
    """What reads confidences in the partition with these counts."""
    table = hyperedges.to_slots(evidence(counts, hyperedges.sizes, hyperedges.weight))
    return Gauge(table, exponents(hyperedges.n_members, correlation))


class Gauge:
    """Reads confidences off blocks of codes; made once for many blocks.

    Parameters
    ----------
    table : (n_slots, 1 + k) float64
        :func:`evidence`, one row per slot, zero for missing and unknown labels.
    quarters : (n_members + 1,) int64
        Of :func:`exponents`.
    """

    def __init__(self, table: Float, quarters: Int) -> None:
        self._table = table
        self.weights, _ = kernels.side_by_side([table])
        self.columns = table.shape[1]
        self.quarters = quarters

    def memberships(self, codes: Any, offsets: NDArray[np.uint64]) -> Float:
        """Confidence of each row in every cluster, (rows, k): sums to 1, all alike without a label."""
        sums = np.empty((len(codes), self.columns))
        kernels.degrees(codes, offsets, self._table, sums)
        labels = np.rint(sums[:, 0]).astype(np.intp)
        shares = sums[:, 1:] / np.maximum(labels, 1)[:, None]
        raised = (shares / np.maximum(shares.max(axis=1, keepdims=True), 1e-300)) ** (
            self.quarters[labels][:, None] / 4.0
        )
        return np.asarray(raised / raised.sum(axis=1, keepdims=True))

    def read(self, codes: Any, offsets: NDArray[np.uint64], labels: NDArray[np.int16]) -> Float:
        """Confidence of each row of a block in the cluster it has; 0 without a label or a cluster."""
        found = np.empty(len(codes))
        kernels.confidence(codes, offsets, self.weights, self.columns, self.quarters, labels, found)
        return found
