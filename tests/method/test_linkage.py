"""Average linkage: scipy's groups, with scipy's numbers, ties included."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from cehm_dask.method.linkage import linked_groups


@given(st.integers(3, 40), st.sampled_from([3, 6, 1000]), st.data())
def test_linked_groups__are_scipys(n, values, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    table = rng.integers(0, values, (n, n)) / values
    table += table.T
    np.fill_diagonal(table, 0.0)
    k = data.draw(st.integers(1, n - 2))  # for n - 1, scipy may make two joins
    expected = fcluster(linkage(squareform(table), "average"), k, "maxclust") - 1
    np.testing.assert_array_equal(linked_groups(table, k), expected)


def test_linked_groups__as_many_as_rows():
    table = 1.0 - np.eye(3)
    assert sorted(linked_groups(table, 3)) == [0, 1, 2]
