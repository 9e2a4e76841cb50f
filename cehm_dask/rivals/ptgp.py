"""PTGP: microclusters and hyperedges cut as one graph, by probability trajectories. Cubic in the distinct rows."""

import numpy as np

from cehm_dask.data.labels import Labels
from cehm_dask.job import Where
from cehm_dask.method.points import cluster_points, unit_points
from cehm_dask.method.spectral import leading_vectors
from cehm_dask.rivals.microclusters import BYTES_A_PAIR, LARGEST, probability_trajectories
from cehm_dask.rivals.pairs import admitted
from cehm_dask.rivals.rows import Floats, Found

HERE = Where()


def ptgp(labels: Labels, n_clusters: int, seed: int = 0, where: Where = HERE) -> Found:
    """Probability trajectory based graph partitioning (Huang, Lai and Wang, TKDE 2016).

    An edge between a microcluster and a hyperedge is its mean trajectory similarity to the hyperedge's microclusters;
    the bipartite graph is partitioned by transfer cut and k-means (at most 100 rounds, 3 starts).

    Missing labels: as PTA. Samples without any label: -1.
    """
    samples = admitted("PTGP", labels, n_clusters, where, largest=LARGEST, bytes_a_pair=BYTES_A_PAIR, distinct=True)
    B = samples.incidence()
    return samples.labels_back(cut(probability_trajectories(samples) @ (B / B.sum(axis=0)), n_clusters, seed))


def cut(edges: Floats, n_clusters: int, seed: int) -> Found:
    """Transfer cut of a bipartite graph that is held in memory: labels of its rows."""
    rows = edges / np.maximum(edges.sum(axis=1, keepdims=True), 1e-10)
    _, vectors, degrees = leading_vectors(edges.T @ rows, n_clusters)
    return cluster_points(unit_points(rows @ (vectors / np.sqrt(degrees)[:, None])), n_clusters, seed)
