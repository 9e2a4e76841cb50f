"""Members that see a share of the rows: drawn by row number, so that blocks and workers do not matter."""

from itertools import pairwise

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import AgglomerativeClustering

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.data import features
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.members import collection
from cehm_dask.members import generate as generation
from cehm_dask.members.fit import MemberPlan, fit_member, plan_members
from cehm_dask.members.subsample import drawn
from cehm_dask.results.coassociation import stability
from tests.conftest import cehm

N = 700


def points(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(4.0 * rng.integers(3, size=N)[:, None], 1.0, (N, 4))


def fit(X, **more):
    how = {"members": 6, "subsample": 0.8, "fit_rows": 300, "random_state": 0, **more}
    return ClusterEnsemble(3, **how).fit(X, client=False)


@given(seed=st.integers(0, 2**31), cuts=st.lists(st.integers(0, 500), max_size=5), share=st.floats(0.01, 1))
def test_drawn__by_the_number_of_the_row_alone(seed, cuts, share):
    whole = drawn(seed, share, np.arange(500))
    edges = [0, *sorted(cuts), 500]
    parts = [drawn(seed, share, np.arange(a, b)) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_drawn__the_share_and_independently_of_other_members():
    draws = np.array([drawn(seed, 0.8, np.arange(20_000)) for seed in range(50)])
    assert abs(draws.mean() - 0.8) < 0.002
    assert (abs(draws.mean(axis=1) - 0.8) < 0.015).all()
    together = np.cov(draws, rowvar=True) / 0.16
    assert abs(together[~np.eye(50, dtype=bool)]).max() < 0.04
    assert drawn(3, 1.0, np.arange(1000)).all()


@pytest.mark.parametrize("base", ["kmeans", "mixture"])
def test_labels__missing_where_not_drawn_and_as_fitted_where_drawn(base):
    X = points()
    model = fit(X, base=base)
    codes = model.base_labels_
    silent = codes == 0
    assert 0.15 < silent.mean() < 0.25
    for j, member in enumerate(model.members_):
        np.testing.assert_array_equal(silent[:, j], ~drawn(member["seed"], 0.8, np.arange(N)))
        assert member["parameters"]["subsample"] == 0.8
    # New rows have labels of all members, and the same where the member was not silent.
    new = np.asarray(model._codes(X))
    assert (new > 0).all()
    np.testing.assert_array_equal(new[~silent], codes[~silent])
    as_given = CEHM(3, random_state=0).fit(codes.astype(int) - 1)
    assert as_given.n_features_in_ == 6
    assert model.predict(X).shape == (N,)


def test_member__fitted_on_its_rows_alone():
    X = points().astype(np.float32)
    plan = MemberPlan("kmeans", 3, 11, subsample=0.5)
    kept = drawn(11, 0.5, np.arange(N))
    other = X.copy()
    other[~kept] = 1e6
    for rows in (X, other):
        found, _ = fit_member(plan, rows)
        np.testing.assert_array_equal(found.centres, fit_member(plan, X)[0].centres)


def test_blocks_and_workers__change_nothing(tmp_path, monkeypatch):
    X = points()
    wanted = fit(X)
    for module in (features, collection, generation):
        monkeypatch.setattr(module, "BLOCK_ROWS", 128)
    fields = ("base_labels_", "labels_", "margin_")
    found = [fit(X), ClusterEnsemble(3, members=6, subsample=0.8, fit_rows=300, random_state=0)]
    found[1].fit(X, output=tmp_path / "e.zarr", client=False)
    np.testing.assert_array_equal(open_ensemble(str(tmp_path / "e.zarr")).read(0, N), wanted.base_labels_)
    with LocalCluster(2, threads_per_worker=1, dashboard_address=None, processes=False) as cluster, Client(cluster):
        lazy = ClusterEnsemble(3, members=6, subsample=0.8, fit_rows=300, random_state=0)
        lazy.fit(da.from_array(X, chunks=(97, -1)))
        for model in (*found, lazy):
            for name in fields:
                np.testing.assert_array_equal(np.asarray(getattr(model, name)), getattr(wanted, name))


def test_no_predict__the_rows_not_drawn_are_missing():
    model = ClusterEnsemble(3, members=3, base=AgglomerativeClustering(), subsample=0.7, random_state=0).fit(points())
    for j, member in enumerate(model.members_):
        silent = ~drawn(member["seed"], 0.7, np.arange(N))
        np.testing.assert_array_equal(model.base_labels_[:, j] == 0, silent)


def test_saved__without_the_draws(tmp_path):
    X = points()
    model = fit(X)
    model.save(tmp_path / "m.zarr")
    loaded = ClusterEnsemble.load(tmp_path / "m.zarr")
    assert loaded.subsample == 0.8
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"subsample": 1.5}, r"subsample=1.5: expected a share of the rows, above 0 and at most 1"),
        ({"subsample": "most"}, "subsample='most': expected a share of the rows"),
        ({"subsample": 0.002}, r"rows were drawn for a member with \d+ clusters: raise it, or lower k_max"),
        ({"bootstrap": True}, "subsample=0.8, bootstrap=True: give one of the two"),
        ({"full_lloyd": True}, "full_lloyd=True goes over all rows: leave subsample=0.8 out"),
        ({"base": "dask-ml"}, "base='dask-ml': its members are fitted on all rows; leave bootstrap and subsample out"),
    ],
)
def test_wrong_settings__are_named(more, said):
    with pytest.raises(ValueError, match=said):
        fit(points(), **more)


def test_command_and_recipe__as_in_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = points()
    np.save("x.npy", X)
    cehm("generate", "x.npy", "e.zarr", "--k", 3, "--members", 60, "--k-min", 2, "--k-max", 4, "--subsample", 0.8)
    (tmp_path / "r.yaml").write_text(
        "features: {path: x.npy}\nensemble: {members: 60, k_min: 2, k_max: 4, subsample: 0.8}\n"
        "consensus: {k: 3}\noutput: run\n"
    )
    cehm("plan", "r.yaml", "--set", "ensemble.subsample=0.05")  # trials of a few rows are not drawn from
    cehm("run", "r.yaml", "--until", "consensus", "--quiet")
    one, two = (open_ensemble(path).read(0, N) for path in ("e.zarr", "run/ensemble.zarr"))
    np.testing.assert_array_equal(one, two)
    assert 0.18 < (one == 0).mean() < 0.22
    assert [found.n_clusters for found in stability("e.zarr", [2, 3, 4])] == [2, 3, 4]
    _, said = cehm("generate", "x.npy", "f.zarr", "--k", 3, "--subsample", 3, code=2)
    assert "--subsample 3.0: expected a share of the rows" in said


def test_a_thousand_members__have_a_consensus():
    X = pd.DataFrame(points(), columns=list("abcd"))
    model = ClusterEnsemble(3, members=1000, k_min=2, k_max=4, subsample=0.8, random_state=0).fit(X)
    assert len(model.members_) == 1000
    assert (model.labels_ >= 0).all()
    assert sorted(np.bincount(model.labels_, minlength=3))[0] > 150


def test_plan__seeds_are_those_without_a_subsample():
    assert [plan.seed for plan in plan_members(5, 2, 4, 0, subsample=0.8)] == [
        plan.seed for plan in plan_members(5, 2, 4, 0)
    ]
