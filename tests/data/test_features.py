"""Every form of features gives the same blocks; scaling is exact whatever the chunking; bad values are named."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse
from sklearn.preprocessing import MinMaxScaler, RobustScaler, StandardScaler

from cehm_dask.data import features
from cehm_dask.data.features import as_features
from cehm_dask.data.preparation import FeatureWarning
from cehm_dask.data.scaling import draw_rows, fit_scaling
from cehm_dask.engine.threads import Threads

ONE, THREE = Threads(1), Threads(3)


@pytest.fixture
def values():
    return np.random.default_rng(0).normal(3, 2, (1000, 4))


def forms(values, folder):
    np.save(folder / "x.npy", values)
    frame = pd.DataFrame(values, columns=list("abcd"))
    frame.to_csv(folder / "x.csv", index=False)
    frame.to_parquet(folder / "x.parquet", row_group_size=130)
    stored = zarr.create_array(str(folder / "x.zarr"), shape=values.shape, dtype=values.dtype, chunks=(170, 4))
    stored[:] = values
    return [
        values,
        folder / "x.npy",
        folder / "x.csv",
        folder / "x.parquet",
        str(folder / "x.zarr"),
        da.from_array(values, chunks=(77, 2)),
        frame,
        sparse.csr_matrix(values),
        values.tolist(),
    ]


def test_as_features__every_form_reads_the_same_rows(values, tmp_path):
    for form in forms(values, tmp_path):
        found = as_features(form)
        assert (found.n_samples, found.n_features) == values.shape
        np.testing.assert_array_equal(found.read(120, 430), values[120:430])
        np.testing.assert_array_equal(found.read(999, 1000), values[999:])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.zeros(5), "shape"),
        (np.zeros((0, 3)), "at least one row"),
        (np.array([["a", "b"]]), "expected numbers"),
        (pd.DataFrame({"a": [1.0], "when": [pd.Timestamp(0)]}), "column 'when' holds timestamp.*dates='days'.*drop="),
        ("nowhere.npy", "no such file"),
    ],
)
def test_as_features__refused(wrong, message):
    with pytest.raises((ValueError, TypeError, OSError), match=message):
        as_features(wrong)


@pytest.mark.parametrize(
    ("scale", "scaler"), [("standard", StandardScaler()), ("minmax", MinMaxScaler()), ("robust", RobustScaler())]
)
def test_fit_scaling__as_scikit_learn(values, scale, scaler):
    scaling, _ = fit_scaling(as_features(values), scale, ONE, rows=np.arange(len(values)))
    np.testing.assert_allclose(scaling.apply(values), scaler.fit_transform(values), atol=1e-5)


def test_fit_scaling__same_bits_for_any_source_and_threads(values, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "BLOCK_ROWS", 128)
    wanted, _ = fit_scaling(as_features(values), "standard", ONE)
    for form in forms(values, tmp_path):
        found, _ = fit_scaling(as_features(form), "standard", THREE)
        np.testing.assert_array_equal(found.centre, wanted.centre)
        np.testing.assert_array_equal(found.spread, wanted.spread)


def test_fit_scaling__constant_columns_named_and_dropped(values):
    frame = pd.DataFrame(values, columns=list("abcd")).assign(same=7.0)
    with pytest.warns(FeatureWarning, match="same"):
        scaling, _ = fit_scaling(as_features(frame), "standard", ONE)
    assert scaling.apply(frame.to_numpy()).shape == (1000, 4)
    with pytest.raises(ValueError, match="every feature is constant"):
        fit_scaling(as_features(np.ones((5, 2))), "standard", ONE)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite__named_or_imputed(values, value, monkeypatch):
    monkeypatch.setattr(features, "BLOCK_ROWS", 100)
    values[317, 2] = value
    with pytest.raises(ValueError, match="row 317, column 2"):
        fit_scaling(as_features(values), "standard", ONE)
    scaling, _ = fit_scaling(as_features(values), "standard", ONE, impute="mean")
    assert scaling.apply(values)[317, 2] == 0.0  # the mean, scaled
    assert np.isfinite(scaling.apply(values)).all()


def test_scaling__new_rows_are_checked_too(values):
    scaling, _ = fit_scaling(as_features(values), "minmax", ONE)
    with pytest.raises(ValueError, match="row 12, column 1"):
        scaling.apply(np.array([[0.0, np.nan, 0.0, 0.0]]), first_row=12)


def test_sample__same_for_any_source(values, tmp_path, monkeypatch):
    monkeypatch.setattr(features, "BLOCK_ROWS", 64)
    chosen = draw_rows(len(values), 100, 5)
    assert len(np.unique(chosen)) == 100
    for form in (values, *forms(values, tmp_path)):
        _, rows = fit_scaling(as_features(form), "standard", THREE, rows=chosen)
        np.testing.assert_array_equal(rows, values[chosen])
