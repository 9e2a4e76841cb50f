"""Voting: every member's clusters are mapped onto those of a reference, and samples go where most votes point."""

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist
from scipy.special import xlogy

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.rivals.rows import Floats, Found, counted, vote
from cehm_dask.rivals.tree import cut

HERE = Where()


def voting(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Cumulative voting over members with unequal numbers of clusters (after Ayad and Kamel, TPAMI 2008).

    Which voting the CEHM paper compares with is not known. Chosen: the adaptive scheme. The reference is the member
    with the fewest clusters among those with k or more (else the one with the most; on a tie the highest entropy);
    what it has beyond k is joined by average linkage of the Jensen–Shannon distances between its clusters' shares in
    all hyperedges. The others follow by falling entropy: each of their clusters votes for the reference's clusters
    in proportion to what its samples have got so far. Two sweeps, no random choice: ``seed`` changes nothing. With
    no member of k or more clusters there are fewer than k.

    Missing labels: no vote. Samples without any: -1.
    """
    with counted(labels, n_clusters, where) as (engine, hyperedges):
        return vote(engine, hyperedges, cumulative_votes(hyperedges, n_clusters))


def cumulative_votes(hyperedges: Hyperedges, n_clusters: int) -> Floats:
    """Votes (P × k) of every hyperedge; a sample's memberships are the sum over its hyperedges."""
    sizes = hyperedges.sizes.astype(np.float64)
    spoken = np.bincount(hyperedges.members, sizes, hyperedges.n_members)
    shares = sizes / spoken[hyperedges.members]
    entropy = np.bincount(hyperedges.members, -xlogy(shares, shares), hyperedges.n_members)
    clusters = np.bincount(hyperedges.members, minlength=hyperedges.n_members)
    enough = clusters >= n_clusters
    if enough.any():
        reference = min(np.flatnonzero(enough), key=lambda j: (clusters[j], -entropy[j]))
    else:
        reference = max(np.arange(len(clusters)), key=lambda j: (clusters[j], entropy[j]))
    own = hyperedges.of_member(int(reference))
    votes = np.zeros((hyperedges.n_hyperedges, n_clusters))
    votes[np.arange(own.start, own.stop), joined(hyperedges, own, n_clusters)] = 1.0
    shared = hyperedges.intersections
    for member in np.argsort(-entropy, kind="stable"):
        rows = hyperedges.of_member(int(member))
        if member != reference and clusters[member]:
            got = shared[rows] @ votes
            total = got.sum(axis=1, keepdims=True)
            votes[rows] = got / np.where(total > 0, total, 1.0)
    return votes


def joined(hyperedges: Hyperedges, own: slice, n_clusters: int) -> NDArray[np.intp]:
    """One of at most k groups for each cluster of one member."""
    count = own.stop - own.start
    if count <= n_clusters:
        return np.arange(count)
    profiles = hyperedges.intersections[own].astype(np.float64)
    profiles[:, own] = 0.0
    profiles += 1e-12  # a lone member has no others to be told apart by
    tree = linkage(pdist(profiles, "jensenshannon"), "average")
    return cut(tree, n_clusters)
