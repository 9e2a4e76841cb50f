"""A start from a sample of rows: close to the exact answer, in few sweeps, and the same whoever does the work."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from cehm_dask import CEHM, job
from cehm_dask.data.consensus_store import ConsensusStore
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.synth import Synth
from cehm_dask.errors import InputError
from cehm_dask.job import Where, find_consensus
from cehm_dask.method.params import PAPER, Params

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
CHAINS = ("released", "printed", "cosine", "kmeans", "tau")


@pytest.fixture(scope="module")
def made_up():
    return Synth(20_000, 20, n_classes=6).arrays()


@pytest.mark.parametrize("variant", [*CHAINS, "auto"])
def test_start_rows__close_to_the_exact_answer_in_few_sweeps(made_up, variant):
    P, truth = made_up
    exact, found = (CEHM(6, variant=variant, random_state=0, start_rows=rows).fit(P) for rows in (None, 4000))
    right = [adjusted_rand_score(truth, model.labels_) for model in (exact, found)]
    assert right[1] == pytest.approx(right[0], abs=0.01)
    if variant not in PAPER:  # those lose a cluster here, and not the same one from other medoids
        assert adjusted_rand_score(exact.labels_, found.labels_) >= 0.999
    assert found.n_sweeps_ <= 6
    np.testing.assert_array_equal(found.counts_.sum(axis=1), exact.counts_.sum(axis=1))  # sizes are exact
    np.testing.assert_allclose(
        found.member_agreement_, exact.member_agreement_, atol=0.1
    )  # a smaller sample looks more alike
    if variant == "auto":  # candidates compete on the same rows either way
        np.testing.assert_array_equal(found.labels_, exact.labels_)


def test_start_rows__real_digits():
    X = load_digits().data
    rng = np.random.default_rng(0)
    P = np.stack([KMeans(int(rng.integers(10, 40)), n_init=1, random_state=j).fit_predict(X) for j in range(20)], 1)
    exact, found = (CEHM(10, variant="cosine", random_state=0, start_rows=rows).fit(P) for rows in (None, 900))
    assert adjusted_rand_score(exact.labels_, found.labels_) > 0.8


@pytest.mark.parametrize("variant", ["released", "printed", "auto"])
def test_start_rows__same_bits_for_any_blocks_budget_and_workers(
    hard_ensemble, tmp_path, monkeypatch, two_processes, variant
):
    params = Params(10, variant=variant, start_rows=1500, restarts=2)
    wanted = find_consensus(as_labels(hard_ensemble), params, 0, Where(threads=1))
    ingest(hard_ensemble, str(tmp_path / "e.zarr"), chunk_rows=200)
    budget, stored = job.budget_of, as_labels(tmp_path / "e.zarr")
    for keep_state, client in ((True, None), (False, None), (True, two_processes)):
        monkeypatch.setattr(
            job, "budget_of", lambda *args, kept=keep_state: replace(budget(*args), keep_state=kept, keep_labels=False)
        )
        found = find_consensus(stored, params, 0, Where(threads=2, block_rows=130, client=client))
        np.testing.assert_array_equal(found.labels, wanted.labels)
        np.testing.assert_array_equal(found.margin, wanted.margin)
        assert found.consensus.chosen.problem.moves == wanted.consensus.chosen.problem.moves


def test_start_rows__resumed_at_any_round(hard_ensemble, tmp_path, monkeypatch):
    params = Params(10, variant="released", start_rows=1500)
    labels = as_labels(hard_ensemble)
    wanted = find_consensus(labels, params, 0, Where(output=str(tmp_path / "whole.zarr")))
    save, left = ConsensusStore.save_checkpoint, [0]

    def interrupted(self, *args):
        save(self, *args)
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(ConsensusStore, "save_checkpoint", interrupted)
    for rounds in (1, 2, 3):
        output = Where(output=str(tmp_path / f"{rounds}.zarr"))
        left[0] = rounds
        with pytest.raises(KeyboardInterrupt):
            find_consensus(labels, params, 0, output)
        found = find_consensus(labels, params, 0, output)
        np.testing.assert_array_equal(found.labels[:], wanted.labels[:])
        assert found.consensus.chosen.problem.losses == wanted.consensus.chosen.problem.losses


def test_start_rows__as_many_as_there_are_is_exact(hard_ensemble):
    exact = CEHM(5, variant="released", random_state=0).fit(hard_ensemble)
    found = CEHM(5, variant="released", random_state=0, start_rows=len(hard_ensemble)).fit(hard_ensemble)
    np.testing.assert_array_equal(found.margin_, exact.margin_)
    assert found.n_sweeps_ == exact.n_sweeps_


@pytest.mark.parametrize("variant", ["cosine", "auto"])
def test_start_rows__sample_of_rows_without_any_label(variant):
    P = np.full((5000, 3), -1)
    P[:100] = np.arange(100)[:, None] % 4
    found = CEHM(4, variant=variant, random_state=0, start_rows=400).fit(P)
    assert found.n_silent_ == 4900
    assert (found.labels_[100:] == -1).all()
    assert adjusted_rand_score(found.labels_[:100], P[:100, 0]) == 1.0


def test_start_rows__refused():
    for given, message in (
        ({"start_rows": 0}, "start_rows=0: must be at least 1"),
        ({"start_rows": 5, "init": [0, 1]}, "no start"),
    ):
        with pytest.raises(InputError, match=message):
            Params(2, **given)
