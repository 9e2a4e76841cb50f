"""Cutting a tree of linkage into branches, for the rivals that join samples or clusters one after the other."""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cehm_dask.rivals.rows import Floats


def cut(tree: Floats, n_clusters: int) -> NDArray[np.intp]:
    """Exactly k branches, numbered by their first leaf: the last k − 1 joins are not made.

    scipy's ``fcluster`` undoes all joins of one height together, and so gives fewer branches, down to one, where
    heights tie.

    >>> from scipy.cluster.hierarchy import linkage
    >>> cut(linkage([[0.0], [1.0], [2.0], [3.0]]), 3).tolist()
    [0, 0, 1, 2]
    """
    n_leaves = len(tree) + 1
    joins = max(0, n_leaves - n_clusters)
    joined = tree[:joins, :2].astype(np.intp).ravel()
    nodes = np.repeat(n_leaves + np.arange(joins), 2)
    graph = coo_array((np.ones(2 * joins, np.int8), (nodes, joined)), shape=(n_leaves + joins, n_leaves + joins))
    branches = connected_components(graph, directed=False)[1][:n_leaves]
    _, first, numbers = np.unique(branches, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[numbers]
