"""Members: the same from one seed whatever the chunking, threads or interruption; labels as the models give them."""

import os
from functools import partial

import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.datasets import load_iris, make_blobs
from sklearn.metrics import normalized_mutual_info_score

from cehm_dask import ClusterEnsemble
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ensemble_writer import EnsembleWriter
from cehm_dask.data.features import as_features
from cehm_dask.data.scaling import fit_scaling
from cehm_dask.engine.threads import Threads
from cehm_dask.errors import BudgetError, ReplacedError, StoreError
from cehm_dask.members import fit as members
from cehm_dask.members.fit import Labeller, Linear, MemberPlan, fit_member, k_range, plan_members
from cehm_dask.members.generate import generate, label_all, lloyd, make_labeller, plan_appended
from cehm_dask.wording import speaking
from tests.listening import Advances

ONE, THREE = Threads(1), Threads(3)

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(3000, 6, centers=5, cluster_std=2.0, random_state=0)


def test_k_range__as_in_the_paper():
    assert k_range(3, 150) == (3, 12)
    assert k_range(10, 10**6) == (10, 50)
    assert k_range(40, 10**6) == (40, 60)
    assert k_range(3, 4) == (3, 4)


def test_k_range__clusters_that_rows_cannot_have():
    with pytest.raises(ValueError, match="n_clusters=5: expected 1 to 4, the number of rows"):
        k_range(5, 4)
    with speaking("command"), pytest.raises(ValueError, match="--k 0: expected 1 to 4"):
        k_range(0, 4)
    with speaking("recipe"), pytest.raises(ValueError, match="k: 9: expected 1 to 4"):
        k_range(9, 4)
    with pytest.raises(ValueError, match="members='x': expected a whole number"):
        plan_members("x", 2, 4, 0)


def test_plan_members__each_has_its_own_seed_whoever_makes_it():
    together = plan_members(10, 3, 12, 7)
    assert together[4:] == plan_members(6, 3, 12, 7, first=4)
    assert len({plan.seed for plan in together}) == 10
    assert all(3 <= plan.k <= 12 for plan in together)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": "kmean"}, "base='kmean'"),
        ({"subspace": 1.5}, "subspace=1.5: expected a share of the features"),
        ({"projection": 0}, "projection=0: expected a whole number of at least 1"),
        ({"projection": "a"}, "projection='a': expected a whole number of at least 1"),
    ],
)
def test_plan_members__refused(options, message):
    with pytest.raises(ValueError, match=message):
        plan_members(3, 2, 5, 0, **options)


@pytest.mark.parametrize("base", ["kmeans", "minibatch", "birch"])
@pytest.mark.parametrize("view", [{}, {"subspace": 0.5}, {"projection": 3}, {"bootstrap": True}])
def test_label__nearest_centre_as_the_model_predicts(blobs, base, view):
    points, _ = blobs
    scaling, _ = fit_scaling(as_features(points), "standard", ONE)
    plan = MemberPlan(base, 7, seed=3, **view)
    member, _ = fit_member(plan, scaling.apply(points))
    assert isinstance(member, Linear)
    codes = Labeller(scaling, (member,), (int(member.names.max()) + 1,)).label(points)[:, 0]
    scores = scaling.apply(points).astype(np.float64) @ member.slopes.T + member.intercepts
    top = np.sort(scores, axis=1)
    clear = len(member.slopes) == 1 or top[:, -1] - top[:, -2] > 1e-3  # float32 may tip what is nearly a tie
    np.testing.assert_array_equal(codes[clear], member.names[scores.argmax(axis=1)][clear] + 1)


def test_label__equals_scikit_learn(blobs):
    points, _ = blobs
    scaling, _ = fit_scaling(as_features(points), "none", ONE)
    member, _ = fit_member(MemberPlan("kmeans", 9, seed=1), scaling.apply(points))
    rng = np.random.default_rng(1)
    model = KMeans(9, init="random", n_init=1, random_state=int(rng.integers(2**31))).fit(scaling.apply(points))
    codes = Labeller(scaling, (member,), (9,)).label(points)[:, 0]
    assert (codes == model.labels_ + 1).mean() > 0.999


def test_label__of_a_row_depends_on_that_row_alone(blobs):
    points, _ = blobs
    labeller, _ = make_labeller(as_features(points), plan_members(8, 3, 9, 0), 0, ONE)
    whole = labeller.label(points)
    for size in (1, 7, 513):
        parts = [labeller.label(points[a : a + size]) for a in range(0, 1100, size)]
        np.testing.assert_array_equal(np.concatenate(parts)[:1000], whole[:1000])


def test_members__same_for_any_number_of_threads(blobs):
    points, _ = blobs
    plans = plan_members(6, 3, 9, 0, base=["kmeans", "mixture"])

    def members(pool):
        labeller, _ = make_labeller(as_features(points), plans, 0, pool, fit_rows=500)
        return label_all(as_features(points), labeller, pool)

    np.testing.assert_array_equal(members(THREE), members(ONE))


def test_generate__same_on_worker_processes(blobs, tmp_path, monkeypatch, two_processes):
    points, _ = blobs
    np.save(tmp_path / "points.npy", points)
    plans = plan_members(6, 3, 9, 0, base=["kmeans", "mixture"])
    wanted = generate(as_features(points), str(tmp_path / "here.zarr"), plans, 0, fit_rows=500)
    there = as_features(tmp_path / "points.npy")
    assert there.reopen is not None
    assert generate(there, str(tmp_path / "there.zarr"), plans, 0, client=two_processes, fit_rows=500) == wanted
    # Rows that only this process holds are not sent about: its own threads do the work.
    held = as_features(points)
    assert generate(held, str(tmp_path / "held.zarr"), plans, 0, client=two_processes, fit_rows=500) == wanted


def test_generate__refuses_what_does_not_fit(blobs, tmp_path):
    plans = plan_members(5, 3, 9, 0)
    with pytest.raises(BudgetError, match=r"memory=1.00 MiB allowed < .* projected to make members .* lower fit_rows"):
        generate(as_features(blobs[0]), str(tmp_path / "e.zarr"), plans, 0, memory="1MiB")
    assert not (tmp_path / "e.zarr").exists()


def test_generate__resumed_and_uninterrupted_alike(blobs, tmp_path, monkeypatch):
    points, _ = blobs
    plans = plan_members(5, 3, 9, 0)
    monkeypatch.setattr("cehm_dask.data.ensemble_writer.CHUNK_BYTES", 5 * 64)
    whole = generate(as_features(points), str(tmp_path / "whole.zarr"), plans, 0, threads=1)
    url, write = str(tmp_path / "half.zarr"), EnsembleWriter.write

    def interrupted(self, shard, codes):
        if shard == 4:
            raise KeyboardInterrupt
        return write(self, shard, codes)

    with monkeypatch.context() as patch:
        patch.setattr(EnsembleWriter, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generate(as_features(points), url, plans, 0, threads=1)
    labelled, label = [], Labeller.label
    monkeypatch.setattr(Labeller, "label", lambda self, *args: (labelled.append(1), label(self, *args))[1])
    assert generate(as_features(points), url, plans, 0, threads=1) == whole
    assert 0 < len(labelled) < -(-3000 // 256)


def test_generate__other_settings_do_not_resume(blobs, tmp_path, monkeypatch):
    points, _ = blobs
    url = str(tmp_path / "e.zarr")

    def interrupt(what, _done, _total):
        if what == "labelled":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(as_features(points), url, plan_members(5, 3, 9, 0), 0, progress=Advances(interrupt))
    with pytest.raises(OSError, match="exists"):
        generate(as_features(points), url, plan_members(5, 3, 9, 1), 1)
    generate(as_features(points), url, plan_members(5, 3, 9, 1), 1, overwrite=True)


def cut_off(features, url, plans, **options):
    """A generation that is interrupted when some shards are written."""

    def interrupt(what, _done, _total):
        if what == "labelled":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(features, url, plans, 0, threads=1, progress=Advances(interrupt), **options)
    with pytest.raises(StoreError, match="half-written"):
        open_ensemble(url)


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr("cehm_dask.data.ensemble_writer.CHUNK_BYTES", 5 * 64)


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("form", ["array", "npy", "csv", "parquet", "zarr"])
def test_generate__never_resumes_onto_other_features(blobs, tmp_path, form):
    """The content counts, not only size and time of change."""
    points, url, plans = blobs[0], str(tmp_path / "e.zarr"), plan_members(5, 3, 9, 0)
    path = tmp_path / f"x.{form}"

    def features(values):
        if form == "array":
            return as_features(values)
        if form == "npy":
            np.save(path, values)
        elif form == "zarr":
            zarr.create_array(path, shape=values.shape, dtype=values.dtype, overwrite=True)[:] = values
        else:
            frame = pd.DataFrame(values, columns=list("abcdef"))
            frame.to_csv(path, index=False) if form == "csv" else frame.to_parquet(path)
        for file in [path, *path.rglob("*")]:
            os.utime(file, (1, 1))
        return as_features(path)

    changed = points.copy()
    changed[1500, 2] += 0.5
    cut_off(features(points), url, plans)
    with pytest.raises(StoreError, match=r"exists, half-written.*overwrite=True"):
        generate(features(changed), url, plans, 0)
    wanted = generate(as_features(changed), str(tmp_path / "wanted.zarr"), plans, 0)
    assert generate(features(changed), url, plans, 0, overwrite=True) == wanted
    # The same content goes on, whatever the time of change.
    cut_off(features(points), str(tmp_path / "again.zarr"), plans)
    generate(features(points), str(tmp_path / "again.zarr"), plans, 0)


@pytest.mark.usefixtures("small_shards")
def test_generate__never_resumes_with_other_numbers(blobs, tmp_path, monkeypatch):
    """As another CPU, or another version of a library, would give them."""
    features, url, plans = as_features(blobs[0]), str(tmp_path / "e.zarr"), plan_members(5, 3, 9, 0)
    cut_off(features, url, plans)
    fit = members.fit_centres
    with monkeypatch.context() as patch:
        patch.setattr(members, "fit_centres", lambda *args: np.nextafter(fit(*args).astype(np.float32), np.float32(9)))
        with pytest.raises(StoreError, match="half-written"):
            generate(features, url, plans, 0)
    generate(features, url, plans, 0)


@pytest.mark.usefixtures("small_shards")
def test_generate__never_resumes_with_other_libraries_where_they_label(blobs, tmp_path, monkeypatch):
    features, url = as_features(blobs[0]), str(tmp_path / "e.zarr")
    plans = plan_members(2, 3, 5, 0, base=["kmeans", "mixture"])
    cut_off(features, url, plans, fit_rows=300)
    with monkeypatch.context() as patch:
        patch.setattr(members, "numerics", lambda: ["numpy 0.1"])
        with pytest.raises(StoreError, match="half-written"):
            generate(features, url, plans, 0, fit_rows=300)
    generate(features, url, plans, 0, fit_rows=300)
    first, second = open_ensemble(url).members
    assert "numerics" not in first
    assert any(line.startswith("openblas") for line in second["numerics"])


@pytest.mark.usefixtures("small_shards")
@pytest.mark.parametrize("options", [{"scale": "minmax"}, {"fit_rows": 500}, {"impute": "mean"}, {"full_lloyd": True}])
def test_generate__never_resumes_with_other_settings(blobs, tmp_path, options):
    features, url, plans = as_features(blobs[0]), str(tmp_path / "e.zarr"), plan_members(5, 3, 9, 0)
    cut_off(features, url, plans)
    with pytest.raises(StoreError, match="half-written"):
        generate(features, url, plans, 0, **options)


@pytest.mark.usefixtures("small_shards")
def test_generate__never_resumes_with_another_estimator(blobs, tmp_path):
    features, url = as_features(blobs[0]), str(tmp_path / "e.zarr")
    cut_off(features, url, plan_members(2, 3, 5, 0, base=KMeans(n_init=1, max_iter=2)))
    with pytest.raises(StoreError, match="half-written"):
        generate(features, url, plan_members(2, 3, 5, 0, base=KMeans(n_init=1, max_iter=3)), 0)


def test_generate__features_that_change_meanwhile(blobs, tmp_path):
    path, url = tmp_path / "x.npy", str(tmp_path / "e.zarr")
    np.save(path, blobs[0])

    def meddle(what, _done, _total):
        if what == "labelled":
            np.save(path, blobs[0] + 1)

    with pytest.raises(ReplacedError, match=r"x\.npy changed while members were made of them"):
        generate(as_features(path), url, plan_members(5, 3, 9, 0), 0, threads=1, progress=Advances(meddle))
    with pytest.raises(StoreError, match="half-written"):
        open_ensemble(url)


def test_label__more_clusters_than_asked_for(blobs):
    class Stubborn:
        def fit(self, rows):
            return self

        def predict(self, rows):
            return np.arange(len(rows)) % 60

    labeller, _ = make_labeller(as_features(blobs[0]), plan_members(1, 3, 9, 0, base=Stubborn()), 0, ONE)
    with pytest.raises(ValueError, match=r"member 0: Stubborn gives labels 0 to 59, expected 0 to"):
        label_all(as_features(blobs[0]), labeller, ONE)


def test_generate__append_puts_members_behind(blobs, tmp_path):
    points, _ = blobs
    url, both = str(tmp_path / "e.zarr"), str(tmp_path / "both.zarr")
    generate(as_features(points), url, plan_members(3, 3, 9, 0), 0)
    generate(as_features(points), url, plan_members(2, 3, 9, 0, first=3), 0, append=True)
    generate(as_features(points), both, plan_members(5, 3, 9, 0), 0)
    np.testing.assert_array_equal(open_ensemble(url).read(0, 3000), open_ensemble(both).read(0, 3000))
    assert [member["seed"] for member in open_ensemble(url).members] == [plan.seed for plan in plan_members(5, 3, 9, 0)]
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["both.zarr", "e.zarr"]


def test_generate__appended_twice_if_asked_twice(blobs, tmp_path):
    features, url = as_features(blobs[0]), str(tmp_path / "e.zarr")
    draw = partial(plan_members, 2, 3, 9, 0)
    generate(features, url, draw(), 0)
    for _ in range(2):
        generate(features, url, plan_appended(url, lambda first: draw(first=first)), 0, append=True)
    assert [member["seed"] for member in open_ensemble(url).members] == [plan.seed for plan in plan_members(6, 3, 9, 0)]


def test_generate__provenance(blobs, tmp_path):
    points, _ = blobs
    url = str(tmp_path / "e.zarr")
    generate(
        as_features(points), url, plan_members(2, 3, 9, 0, base=["kmeans", "birch"], subspace=0.5), 0, fit_rows=999
    )
    first, second = open_ensemble(url).members
    assert (first["algorithm"], second["algorithm"]) == ("kmeans", "birch")
    assert first["parameters"] == {"subspace": 0.5}
    assert first["fit_rows"] == 999
    assert first["seconds"] > 0


def test_estimator_without_predict__needs_all_rows(blobs):
    points, _ = blobs
    plans = plan_members(2, 3, 9, 0, base=AgglomerativeClustering())
    with pytest.raises(ValueError, match="has no predict"):
        make_labeller(as_features(points), plans, 0, ONE, fit_rows=100)
    labeller, _ = make_labeller(as_features(points), plans, 0, ONE)
    codes = label_all(as_features(points), labeller, ONE)
    assert codes.max(axis=0).tolist() == [plan.k for plan in plans]


def test_fit_rows__fewer_than_clusters(blobs):
    with pytest.raises(ValueError, match="rows it is fitted on"):
        make_labeller(as_features(blobs[0]), plan_members(2, 30, 40, 0), 0, ONE, fit_rows=20)


@pytest.mark.parametrize("view", [{}, {"subspace": 0.5}, {"projection": 3}])
def test_lloyd__ends_where_scikit_learn_does(blobs, view, monkeypatch):
    """From the same start, over blocks, with the same centres as k-means on all rows in memory."""
    monkeypatch.setattr("cehm_dask.members.generate.LLOYD_TOLERANCE", 1e-14)
    points, _ = blobs
    source = as_features(points)
    scaling, _ = fit_scaling(source, "standard", ONE)
    scaled = scaling.apply(points)
    start, _ = fit_member(MemberPlan("kmeans", 6, seed=2, **view), scaled[:200])
    (found,) = lloyd(source, scaling, [start], THREE)
    seen = scaled.astype(np.float64) @ (np.eye(6) if start.view is None else start.view)
    begin = start.centres
    model = KMeans(6, init=begin, n_init=1, tol=0, max_iter=300).fit(seen)
    np.testing.assert_allclose(found.centres, model.cluster_centers_, atol=0.02)


def test_lloyd__same_for_any_number_of_threads_and_lower_inertia(blobs):
    points, _ = blobs
    source, plans = as_features(points), plan_members(4, 3, 9, 0)
    sampled, _ = make_labeller(source, plans, 0, ONE, fit_rows=100)
    one, facts = make_labeller(source, plans, 0, ONE, fit_rows=100, full_lloyd=True)
    three, _ = make_labeller(source, plans, 0, THREE, fit_rows=100, full_lloyd=True)
    scaled = one.scaling.apply(points)

    def inertia(labeller, j):
        centres = labeller.members[j].slopes[labeller.nearest(scaled)[:, j] - 1]
        return ((scaled - centres) ** 2).sum()

    for j in range(4):
        np.testing.assert_array_equal(one.members[j].slopes, three.members[j].slopes)
        assert inertia(one, j) <= inertia(sampled, j)
    assert facts[0]["fit_rows"] == 3000


def test_dask_ml__is_a_base_like_any_other(blobs):
    points, _ = blobs
    labeller, facts = make_labeller(as_features(points), plan_members(1, 4, 4, 0, base="dask-ml"), 0, ONE, fit_rows=300)
    assert facts[0]["algorithm"] == "dask-ml"
    assert label_all(as_features(points), labeller, ONE).max() == 4


def test_cluster_ensemble__finds_the_blobs_and_labels_new_rows(blobs):
    points, truth = blobs
    model = ClusterEnsemble(5, members=15, random_state=0, restarts=3).fit(points[:2000])
    assert normalized_mutual_info_score(truth[:2000], model.labels_) > 0.8
    np.testing.assert_array_equal(model.predict(points[:2000]), model.labels_)
    assert normalized_mutual_info_score(truth[2000:], model.predict(points[2000:])) > 0.8
    assert len(model.members_) == 15


def test_cluster_ensemble__saved_and_loaded(blobs, tmp_path):
    points, _ = blobs
    model = ClusterEnsemble(5, members=6, base=["kmeans", "birch", "mixture"], impute="mean", random_state=0).fit(
        points
    )
    model.save(tmp_path / "model.zarr")
    again = ClusterEnsemble.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(points), model.labels_)
    assert again.get_params()["members"] == 6
    with pytest.raises(OSError, match="exists"):
        model.save(tmp_path / "model.zarr")
    other = ClusterEnsemble(3, members=2, base=AgglomerativeClustering(), random_state=0).fit(points)
    with pytest.raises(ValueError, match="member 0 is a clustering without predict: only members that assign"):
        other.save(tmp_path / "other.zarr")


@pytest.mark.parametrize("seen", [{}, {"subspace": 0.5}, {"projection": 3}])
@pytest.mark.parametrize("base", [*members.BASES, ["mixture", "kmeans", "birch"]], ids=str)
def test_save__every_kind_of_member(blobs, tmp_path, base, seen):
    points = blobs[0][:400]
    model = ClusterEnsemble(5, members=5, base=base, random_state=0, **seen).fit(points)
    model.save(tmp_path / "model.zarr")
    again = ClusterEnsemble.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again._codes(points), model._codes(points))
    np.testing.assert_array_equal(again.predict(blobs[0]), model.predict(blobs[0]))
    np.testing.assert_array_equal(again.predict(points), model.labels_)


def test_cluster_ensemble__in_a_pipeline():
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline

    points = load_iris().data
    model = make_pipeline(PCA(2, random_state=0), ClusterEnsemble(3, members=10, random_state=0)).fit(points)
    assert model.predict(points).shape == (150,)


def test_cluster_ensemble__same_seed_same_result(blobs):
    points, _ = blobs
    one, two = (ClusterEnsemble(5, members=5, random_state=3).fit(points) for _ in range(2))
    np.testing.assert_array_equal(one.base_labels_, two.base_labels_)
    np.testing.assert_array_equal(one.labels_, two.labels_)
