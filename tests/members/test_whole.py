"""What dask-ml fits on all rows, and transformers of the user's in the place of the named scalings."""

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import normalized_mutual_info_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer
from sklearn.preprocessing import StandardScaler as LocalScaler

from cehm_dask import ClusterEnsemble
from cehm_dask.errors import InputError, InputTypeError

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

N = 400


@pytest.fixture(scope="module")
def blobs():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=N)
    return rng.normal(6.0 * truth[:, None], 1.0, (N, 3)), truth


def model(**how):
    return ClusterEnsemble(3, members=3, random_state=0, **how)


def test_base__k_means_of_dask_ml_sees_all_rows(blobs):
    points, truth = blobs
    found = model(base="dask-ml", fit_rows=50).fit(da.from_array(points, chunks=(130, 3)), client=False)
    assert [made["fit_rows"] for made in found.members_] == [N] * 3
    assert normalized_mutual_info_score(truth, found.labels_.compute()) > 0.95
    np.testing.assert_array_equal(found.labels_.compute(), model(base="dask-ml").fit(points, client=False).labels_)


def test_base__dask_ml_on_workers(blobs, two_processes):
    points, _ = blobs
    x = two_processes.persist(da.from_array(points, chunks=(130, 3)))
    here = model(base=["dask-ml", "kmeans"], subspace=0.7).fit(points, client=False)
    there = model(base=["dask-ml", "kmeans"], subspace=0.7).fit(x, client=two_processes)
    codes = two_processes.compute(there.base_labels_).result()
    assert normalized_mutual_info_score(codes[:, 0], here.base_labels_[:, 0]) > 0.95
    np.testing.assert_array_equal(codes[:, 1], here.base_labels_[:, 1])


def test_base__dask_ml_draws_no_rows_twice(blobs):
    with pytest.raises(InputError, match="leave bootstrap and subsample out"):
        model(base="dask-ml", bootstrap=True).fit(blobs[0], client=False)


def test_scale__any_transformer_same_bits_for_numpy_and_dask(blobs):
    points, _ = blobs
    wanted = model(scale=PowerTransformer()).fit(points, client=False)
    found = model(scale=PowerTransformer()).fit(da.from_array(points, chunks=(170, 2)), client=False)
    np.testing.assert_array_equal(found.base_labels_.compute(), wanted.base_labels_)
    np.testing.assert_array_equal(found.predict(points), wanted.labels_)
    assert wanted.members_[0]["scale"] == "PowerTransformer()"


def test_scale__transformer_is_cloned_and_used(blobs):
    points, _ = blobs
    given = LocalScaler()
    wide = points * [1.0, 1.0, 1e-6] + [0.0, 0.0, 5.0]
    found = model(scale=given).fit(wide, client=False)
    assert not hasattr(given, "mean_")
    np.testing.assert_allclose(found._labeller.scaling.apply(wide).std(axis=0), 1, rtol=1e-4)


def test_scale__that_works_in_place_leaves_the_features_alone(blobs):
    from dask_ml.preprocessing import StandardScaler

    points = blobs[0].copy()
    found = model(scale=StandardScaler()).fit(points, client=False)
    np.testing.assert_array_equal(points, blobs[0])
    np.testing.assert_array_equal(found.predict(points), found.labels_)
    np.testing.assert_array_equal(points, blobs[0])


def test_scale__transformer_of_dask_ml_is_fitted_on_all_rows(blobs):
    from dask_ml.preprocessing import QuantileTransformer

    points, truth = blobs
    scale = QuantileTransformer(n_quantiles=50)
    found = model(scale=scale, fit_rows=60).fit(da.from_array(points, chunks=(170, 3)), client=False)
    fitted = found._labeller.scaling.model
    np.testing.assert_allclose(fitted.quantiles_[-1], points.max(axis=0), rtol=1e-5)
    assert normalized_mutual_info_score(truth, found.labels_.compute()) > 0.9


@pytest.mark.parametrize(
    ("scale", "error", "words"),
    [
        (3, InputTypeError, "scale=3: expected a name, or an object with fit and transform"),
        ("standart", InputError, "scale='standart': expected one of"),
    ],
)
def test_scale__refused(blobs, scale, error, words):
    with pytest.raises(error, match=words):
        model(scale=scale).fit(blobs[0], client=False)


def test_scale__that_gives_nonsense_is_named(blobs):
    class Shorter:
        def fit(self, rows):
            return self

        def transform(self, rows):
            return rows[:1]

    with pytest.raises(InputError, match=r"scale=Shorter: gives shape \(1, 3\)"):
        model(scale=Shorter()).fit(blobs[0], client=False)


def test_save__named_scalings_only(blobs, tmp_path):
    with pytest.raises(InputError, match="only named scalings can be stored"):
        model(scale=LocalScaler()).fit(blobs[0], client=False).save(tmp_path / "m.zarr")


def test_pipeline__on_a_dask_frame(blobs):
    from dask_ml.preprocessing import StandardScaler

    points, _ = blobs
    ddf = dd.from_pandas(pd.DataFrame(points, columns=list("abc"), index=np.arange(9, 9 + N)), npartitions=3)
    scaled = StandardScaler().fit(ddf).transform(ddf).compute()
    pipe = make_pipeline(StandardScaler(), model(scale="none")).fit(ddf)
    labels = pipe.predict(ddf)
    assert isinstance(labels, dd.Series)
    assert labels.divisions == ddf.divisions
    np.testing.assert_array_equal(labels.compute(), model(scale="none").fit(scaled, client=False).labels_)
