"""Scores from contingency tables: scikit-learn's numbers, exact at any size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn import metrics

from cehm_dask.method.agreement import contingency, nmi, scores

NAMES = {"nmi", "nmi_arithmetic", "ari", "accuracy", "purity", "homogeneity", "completeness", "v_measure"}


@st.composite
def labellings(draw, most=40):
    """Two labellings of the same samples, among them those of one cluster, of singletons, and equal ones."""
    n = draw(st.integers(1, most))

    def one():
        kind = draw(st.sampled_from(["any", "constant", "singletons"]))
        if kind == "any":
            return np.array(draw(st.lists(st.integers(0, draw(st.integers(0, 8))), min_size=n, max_size=n)))
        return np.zeros(n, int) if kind == "constant" else np.arange(n)

    clusters = one()
    return clusters, draw(st.sampled_from([clusters, clusters[::-1], one()]))


def by_sklearn(clusters, classes):
    homogeneity, completeness, v_measure = metrics.homogeneity_completeness_v_measure(classes, clusters)
    table = metrics.cluster.contingency_matrix(classes, clusters)
    return {
        "nmi": metrics.normalized_mutual_info_score(classes, clusters, average_method="geometric"),
        "nmi_arithmetic": metrics.normalized_mutual_info_score(classes, clusters),
        "ari": metrics.adjusted_rand_score(classes, clusters),
        "accuracy": table[linear_sum_assignment(-table)].sum() / len(classes),
        "purity": table.max(axis=0).sum() / len(classes),
        "homogeneity": homogeneity,
        "completeness": completeness,
        "v_measure": v_measure,
    }


@given(labellings())
def test_scores__equal_scikit_learns(pair):
    clusters, classes = pair
    found = scores(contingency(clusters, classes))
    assert set(found) == NAMES
    assert found == pytest.approx(by_sklearn(clusters, classes), abs=1e-9)
    assert all(isinstance(value, float) for value in found.values())


@given(labellings(), st.integers(2, 10**8))
def test_scores__do_not_depend_on_how_often_all_is_repeated(pair, times):
    # Entropies stay, pairs of samples do not: their number grows to 10¹⁹, beyond 64 bits.
    clusters, classes = pair
    table = contingency(clusters, classes)
    once, often = scores(table), scores(table * times)
    for name in NAMES - {"ari"}:
        assert often[name] == pytest.approx(once[name], abs=1e-9)
    assert -0.5 <= often["ari"] <= 1.0


def test_ari__exact_where_pairs_exceed_64_bits():
    n = 4 * 10**9
    table = np.array([[n // 2 - 1, 1], [1, n // 2 - 1]])
    together = 2 * ((n // 2 - 1) * (n // 2 - 2) // 2)
    side, everywhere = 2 * ((n // 2) * (n // 2 - 1) // 2), n * (n - 1) // 2
    wanted = (together * everywhere - side**2) / (side * everywhere - side**2)
    assert scores(table)["ari"] == wanted < 1.0


def test_scores__empty_rows_and_columns_change_nothing():
    table = np.array([[5, 1, 2], [0, 7, 1]])
    wide = np.zeros((4, 5), np.int64)
    wide[np.ix_([0, 2], [1, 2, 4])] = table
    assert scores(wide) == pytest.approx(scores(table), abs=1e-12)


def test_scores__of_nothing_are_refused():
    with pytest.raises(ValueError, match="counts no samples"):
        scores(np.zeros((2, 3), np.int64))


def test_contingency__leaves_out_what_is_unknown_on_either_side():
    clusters, classes = np.array([0, 0, 1, -1, 1]), np.array([2, -1, 0, 1, 0])
    assert contingency(clusters, classes).tolist() == [[0, 0, 1], [2, 0, 0]]
    assert contingency(clusters, classes, (3, 4)).shape == (3, 4)
    assert contingency(clusters, np.full(5, -1)).size == 0


@given(labellings())
def test_nmi__is_the_score_of_that_name(pair):
    clusters, classes = pair
    table = contingency(clusters, classes)
    assert scores(table)["nmi"] == nmi(table)
