"""CEHM as scikit-learn users know estimators: conventions, fitted attributes, warnings, cost of importing."""

import pickle
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import cehm_dask
from cehm_dask import CEHM, ClusterEnsemble, ConsensusWarning
from cehm_dask.errors import StoreError

KNOBS = {
    "tries": 3,
    "variant": "printed",
    "similarity": "jaccard",
    "belonging": "share",
    "schedule": "fixed",
    "restarts": 3,
    "choose": "loss",
    "init": None,
    "max_iter": 7,
    "start_rows": None,
    "weights": None,
    "random_state": 5,
}
every_variant = pytest.mark.parametrize("variant", ["released", "printed", "cosine"])


@pytest.fixture(scope="module", name="P")
def base_labels():
    """Three clusters that five members see with some noise; a tenth of the labels and two whole rows are missing."""
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=150)
    P = np.where(rng.random((150, 5)) < 0.8, truth[:, None], rng.integers(4, size=(150, 5)))
    P[rng.random(P.shape) < 0.1] = -1
    P[[4, 99]] = -1
    return P


def nmi(one, other):
    """By scikit-learn, over the samples that both speak about."""
    both = (one >= 0) & (other >= 0)
    return normalized_mutual_info_score(one[both], other[both], average_method="geometric")


# --- conventions -------------------------------------------------------------------------------------------------


def test_params__kept_as_given():
    assert CEHM(4, **KNOBS).get_params() == {"n_clusters": 4, **KNOBS}


def test_params__defaults():
    defaults = CEHM(4).get_params()
    assert defaults["variant"] == "auto"
    assert defaults["max_iter"] == 100
    assert defaults["restarts"] == 1
    assert all(defaults[knob] is None for knob in ("similarity", "belonging", "schedule", "init", "random_state"))


def test_clone__same_params_and_unfitted(P):
    model = CEHM(3, random_state=0, max_iter=50).fit(P)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    with pytest.raises(NotFittedError):
        copy.predict(P)


def test_repr__names_what_differs_from_the_defaults():
    assert repr(CEHM(n_clusters=4, variant="printed")) == "CEHM(n_clusters=4, variant='printed')"


def test_set_params__is_used_by_the_next_fit(P):
    model = CEHM(3, random_state=0)
    assert model.set_params(n_clusters=2, belonging="count") is model
    assert model.fit(P).counts_.shape[1] == 2
    with pytest.raises(ValueError, match="Invalid parameter 'clusters'"):
        model.set_params(clusters=2)


def test_params__numpy_integers_are_whole_numbers_too(P):
    same = CEHM(np.int64(3), tries=np.int32(4), random_state=0).fit(P).labels_
    np.testing.assert_array_equal(same, CEHM(3, tries=4, random_state=0).fit(P).labels_)


def test_fit__returns_self_and_counts_members(P):
    model = CEHM(3, random_state=0)
    assert model.fit(P) is model
    assert model.n_features_in_ == 5
    assert model.fit(P[:, :4]).n_features_in_ == 4


def test_fit__leaves_params_alone(P):
    model = CEHM(3, random_state=0)
    before = model.get_params()
    model.fit(P)
    assert model.get_params() == before


def test_fit_predict__is_labels(P):
    np.testing.assert_array_equal(CEHM(3, random_state=0).fit_predict(P), CEHM(3, random_state=0).fit(P).labels_)


@pytest.mark.parametrize("method", ["predict", "membership"])
def test_unfitted__says_so(P, method):
    with pytest.raises(NotFittedError):
        getattr(CEHM(3), method)(P)


def test_pickle__predicts_the_same(P):
    model = CEHM(3, random_state=0).fit(P)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(P), model.labels_)
    np.testing.assert_array_equal(again.membership(P), model.membership(P))


@pytest.mark.parametrize(
    ("knob", "value", "message"),
    [
        ("variant", "paper", "variant='paper': expected one of 'auto', 'released', 'printed'"),
        ("similarity", "dice", "similarity='dice'"),
        ("belonging", "sum", "belonging='sum'"),
        ("schedule", "slow", "schedule='slow'"),
        ("choose", "first", "choose='first'"),
        ("restarts", 0, "restarts=0: must be at least 1"),
        ("max_iter", 0, "max_iter=0: must be at least 1"),
        ("init", [0, 0, 1], "different hyperedge numbers"),
        ("init", [0, 1], "n_clusters=3"),
        ("init", [0, 1, 99], "hyperedge 99"),
        ("init", [0, 1, -1], "hyperedge -1"),
    ],
)
def test_bad_param__named_with_its_value(P, knob, value, message):
    with pytest.raises(ValueError, match=message):
        CEHM(3, **{knob: value}).fit(P)


@pytest.mark.parametrize(("knob", "value"), [("restarts", 1.5), ("max_iter", "9"), ("init", [0.5, 1.2, 2.9])])
def test_bad_param__whole_numbers_only(P, knob, value):
    with pytest.raises(TypeError, match=knob):
        CEHM(3, **{knob: value}).fit(P)


# --- fitted attributes -------------------------------------------------------------------------------------------


@every_variant
def test_predict__training_labels_after_convergence(P, variant):
    model = CEHM(3, variant=variant, random_state=0).fit(P)
    np.testing.assert_array_equal(model.predict(P), model.labels_)
    np.testing.assert_array_equal(model.predict(P[::-3]), model.labels_[::-3])


@every_variant
def test_membership__rows_sum_to_one_and_point_at_the_label(P, variant):
    model = CEHM(3, variant=variant, random_state=0).fit(P)
    membership = model.membership(P)
    assert membership.shape == (150, 3)
    assert (membership >= 0).all()
    np.testing.assert_allclose(membership.sum(axis=1), 1)
    certain = model.margin_ > 1e-12  # scaling a row may round a lead of one bit away
    assert certain.sum() > 100
    np.testing.assert_array_equal(membership[certain].argmax(axis=1), model.predict(P)[certain])
    np.testing.assert_allclose(membership[[4, 99]], 1 / 3)


@every_variant
def test_confidence__is_the_membership_in_the_own_cluster(P, variant):
    model = CEHM(3, variant=variant, random_state=0).fit(P)
    spoken = model.labels_ >= 0
    own = model.membership(P)[np.arange(150), model.labels_]
    np.testing.assert_allclose(model.confidence_[spoken], own[spoken], atol=1e-9)
    assert (model.confidence_[~spoken] == 0).all()


@every_variant
def test_predict_details__as_fitted(P, variant):
    model = CEHM(3, variant=variant, random_state=0).fit(P)
    labels, margin, confidence = model.predict_details(P)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_allclose(margin, model.margin_, atol=1e-12)
    np.testing.assert_array_equal(confidence, model.confidence_)


@every_variant
def test_agreement__is_the_mean_nmi_with_the_members(P, variant):
    model = CEHM(3, variant=variant, random_state=0).fit(P)
    assert model.agreement_ == pytest.approx(np.mean([nmi(member, model.labels_) for member in P.T]))


def test_member_agreement__is_the_nmi_of_every_two(P):
    found = CEHM(3, random_state=0).fit(P).member_agreement_
    np.testing.assert_allclose(found, [[nmi(one, other) for other in P.T] for one in P.T], atol=1e-12)


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
def test_member_agreement__flat_members():
    # As in scikit-learn: one cluster against one is full agreement, against several none.
    P = np.stack([np.zeros(12, int), np.zeros(12, int), np.arange(12) % 3, np.arange(12)], axis=1)
    found = CEHM(3, random_state=0).fit(P).member_agreement_
    np.testing.assert_allclose(found, [[nmi(one, other) for other in P.T] for one in P.T], atol=1e-12)


def test_counts__of_hyperedges_in_clusters(P):
    model = CEHM(3, random_state=0).fit(P)
    wanted = [
        [((P[:, j] == label) & (model.labels_ == e)).sum() for e in range(3)]
        for j in range(5)
        for label in np.unique(P[P[:, j] >= 0, j])
    ]
    np.testing.assert_array_equal(model.counts_, wanted)
    np.testing.assert_array_equal(model.cluster_sizes_, np.bincount(model.labels_[model.labels_ >= 0], minlength=3))


def test_rounds__start_growth_and_losses(P):
    model = CEHM(3, random_state=0).fit(P)
    assert model.n_iter_ == len(model.growth_) + len(model.loss_history_)
    assert model.growth_[-1] == 148
    assert (np.diff(model.growth_) > 0).all()
    assert model.labels_.dtype == np.int64
    assert model.margin_.dtype == np.float64


# --- several numbers of clusters ---------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
def test_several_k__each_as_if_alone_and_the_best_kept(P):
    model = CEHM([2, 3, 4], random_state=0).fit(P)
    alone = {k: CEHM(k, random_state=0).fit(P) for k in (2, 3, 4)}
    agreement = {record["n_clusters"]: record["agreement"] for record in model.scan_}
    assert agreement == {k: one.agreement_ for k, one in alone.items()}
    assert model.n_clusters_ == model.choice_["n_clusters"]
    np.testing.assert_array_equal(model.labels_, alone[model.n_clusters_].labels_)
    np.testing.assert_array_equal(model.predict(P), model.labels_)
    assert len(set(agreement.values())) == 3
    assert model.n_clusters_ != 2  # or taking the first would pass too


# --- warnings ----------------------------------------------------------------------------------------------------


def warned(model, P):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(P)
    assert all(issubclass(warning.category, ConsensusWarning) for warning in caught)
    return [str(warning.message) for warning in caught]


def test_warning__none_for_an_ordinary_ensemble(P):
    assert warned(CEHM(3, random_state=0), P) == []


def test_warning__member_with_one_cluster(P):
    (message,) = warned(CEHM(3, random_state=0), np.insert(P, 1, 6, axis=1))
    assert message.startswith("member 1 has 1 cluster")


def test_warning__member_with_as_many_clusters_as_samples(P):
    messages = warned(CEHM(3, random_state=0), np.insert(P, 0, np.arange(150), axis=1))
    assert "member 0 has as many clusters as samples (150): it adds little to the consensus" in messages


def test_warning__fewer_clusters_found():
    same = np.repeat([0, 1], 10)
    P = np.stack([same, same], axis=1)
    (message,) = warned(CEHM(2, variant="released", init=[0, 2]), P)
    assert message.startswith("1 of n_clusters=2 clusters hold samples (variant='released')")
    assert "the default variant, 'auto'" in message
    assert warned(CEHM(2, init=[0, 2]), P) == []


def test_warning__none_for_members_finer_than_the_consensus():
    # Such members agree more with one another than with any consensus of fewer clusters: no reason to warn.
    same = np.repeat([0, 1, 2, 3], 10)
    assert warned(CEHM(2, random_state=0), np.stack([same] * 3, axis=1)) == []


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
def test_warning__max_iter_reached():
    with np.load(Path(__file__).parent / "golden" / "iris.npz") as golden:
        P, init = golden["P"], golden["printed_medoids"]
    assert len(CEHM(3, variant="printed", init=init).fit(P).loss_history_) == 4
    stopped = CEHM(3, variant="printed", init=init, max_iter=2)
    assert any("after max_iter=2 rounds" in message for message in warned(stopped, P))
    assert len(stopped.loss_history_) == 2


# --- scikit-learn's manners --------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
@pytest.mark.parametrize("text", [False, True])
def test_save__predicts_as_before(tmp_path, P, text):
    table = pd.DataFrame(P, columns=[f"run {j}" for j in range(P.shape[1])])
    table = table.map(lambda label: f"c{label}") if text else table
    model = CEHM(3, random_state=0).fit(table)
    model.save(tmp_path / "model.zarr")
    loaded = CEHM.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(table.iloc[:, ::-1]), model.labels_)
    np.testing.assert_array_equal(loaded.membership(table), model.membership(table))
    assert loaded.get_params() == {**model.get_params(), "random_state": None}
    with pytest.raises(StoreError, match="exists"):
        model.save(tmp_path / "model.zarr")
    model.save(tmp_path / "model.zarr", overwrite=True)


def test_load__model_of_another_kind_is_named(tmp_path):
    ClusterEnsemble(3, members=3, random_state=0).fit(load_iris().data).save(tmp_path / "model.zarr")
    with pytest.raises(StoreError, match="no model of CEHM"):
        CEHM.load(tmp_path / "model.zarr")


def test_transform__memberships_with_names(P):
    model = CEHM(3, random_state=0).set_output(transform="pandas")
    found = model.fit_transform(pd.DataFrame(P).rename(columns=str))
    assert found.columns.tolist() == model.get_feature_names_out().tolist() == ["cehm0", "cehm1", "cehm2"]
    np.testing.assert_array_equal(found, model.membership(P))


def test_cluster_ensemble__several_k_and_what_the_consensus_has():
    points, truth = make_blobs(300, centers=4, cluster_std=0.5, random_state=3)
    model = ClusterEnsemble(range(2, 7), k_min=9, k_max=17, random_state=0).fit(points)
    assert model.n_clusters_ == model.choice_["n_clusters"] == 4
    assert [record["n_clusters"] for record in model.scan_] == [2, 3, 4, 5, 6]
    assert model.agreement_ == model.consensus_.agreement_
    assert adjusted_rand_score(truth, model.labels_) == 1.0
    membership = model.membership(points)
    np.testing.assert_array_equal(membership.argmax(axis=1), model.labels_)
    np.testing.assert_array_equal(model.transform(points), membership)


# --- scikit-learn's own checks -----------------------------------------------------------------------------------

FEATURES = "feeds real-valued features; base labels are whole numbers"
OWN_WORDS = {
    "check_complex_data": "refused with a TypeError in our words: what is expected is integers",
    "check_dtype_object": "arrays of objects are refused; text labels come in a data frame",
    "check_estimators_empty_data_messages": "refused, but speaks of members instead of features",
    "check_estimators_nan_inf": "refused, but by row and member: 'nan at row 0', where the check wants 'NaN'",
    "check_n_features_in_after_fitting": "refused, but speaks of members instead of features",
    "check_fit2d_predict1d": "refused, but says what shape is expected in our words",
    "check_estimator_sparse_tag": "refused, but by its shape: a sparse matrix holds no labels",
    "check_estimator_sparse_array": "refused, but by its shape: a sparse matrix holds no labels",
    "check_estimator_sparse_matrix": "refused, but by its shape: a sparse matrix holds no labels",
}
NEEDS_FEATURES = {
    **OWN_WORDS,
    **dict.fromkeys(["check_clustering", "check_positive_only_tag_during_fit"], FEATURES),
    "check_transformer_data_not_an_array": "a list holds the columns, one per member, not the rows",
}


OF_FEATURES = {
    "check_complex_data": "refused with a TypeError in our words: what is expected is numbers",
    "check_dtype_object": "arrays of objects are refused; text comes in a data frame",
    "check_estimators_empty_data_messages": "refused, but by the shape in our words",
    "check_estimators_nan_inf": "refused, but by row and column: 'nan at row 0', where the check wants 'NaN'",
    "check_fit2d_1sample": "refused, as every feature of one sample is constant",
    "check_fit2d_predict1d": "refused, but says what shape is expected in our words",
    "check_n_features_in_after_fitting": "refused, but says both numbers in our words",
}


def binned(X):
    """Features → labels, the same whatever other samples come along."""
    X = np.asarray(X) if isinstance(X, list) else X
    is_table = isinstance(X, np.ndarray) and X.ndim == 2 and X.dtype.kind == "f"
    return np.floor(2 * X) + 500 if is_table else X


class Binned(CEHM):
    """Lets the checks that feed features reach the estimator: each feature, cut into bins, is a member."""

    def fit(self, X, y=None):
        return super().fit(binned(X))

    def predict(self, X):
        return super().predict(binned(X))

    def membership(self, X):
        return super().membership(binned(X))


def expected_failures(estimator):
    if isinstance(estimator, ClusterEnsemble):
        return OF_FEATURES
    return OWN_WORDS if isinstance(estimator, Binned) else NEEDS_FEATURES


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
@parametrize_with_checks(
    [
        CEHM(n_clusters=2, random_state=0),
        Binned(n_clusters=2, random_state=0),
        ClusterEnsemble(n_clusters=2, members=4, random_state=0),
    ],
    expected_failed_checks=expected_failures,
    xfail_strict=True,
)
def test_scikit_learn__own_checks(estimator, check):
    check(estimator)


# --- importing ---------------------------------------------------------------------------------------------------


def test_import__loads_nothing_heavy():
    heavy = {"numba", "dask", "distributed", "sklearn", "scipy", "pandas", "zarr"}
    code = f"import sys, cehm_dask; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_import__public_names_are_found_when_used():
    for name in cehm_dask.__all__:
        assert getattr(cehm_dask, name).__name__.rpartition(".")[2] == name
        assert name in dir(cehm_dask)


def test_import__unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'KMeans'"):
        _ = cehm_dask.KMeans
