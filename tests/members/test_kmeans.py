"""k-means members: as good as scikit-learn's, and the same on every CPU."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits, load_wine, make_blobs

from cehm_dask.members.kmeans import fit_centres, through

OTHER_CPUS = {
    # What numpy, OpenBLAS and numba take for the features of the CPU.
    "neither AVX2 nor AVX-512": {
        "NPY_DISABLE_CPU_FEATURES": "X86_V3,X86_V4,AVX512_ICL,AVX512_SPR",
        "OPENBLAS_CORETYPE": "Nehalem",
        "NUMBA_CPU_NAME": "generic",
        "NUMBA_CPU_FEATURES": "",
    },
    "AVX2": {
        "NPY_DISABLE_CPU_FEATURES": "X86_V4,AVX512_ICL,AVX512_SPR",
        "OPENBLAS_CORETYPE": "Haswell",
        "NUMBA_CPU_NAME": "haswell",
    },
}

MEMBERS = """
    import sys, warnings
    from cehm_dask.engine.sweep import workers
    import numpy as np
    from cehm_dask.members.generate import label_all, make_labeller
    from cehm_dask.data.features import as_features
    from cehm_dask.members.fit import plan_members

    warnings.simplefilter("ignore")  # numpy: of features to disable that this CPU has not
    features, found = as_features(sys.argv[1]), []
    with workers(1) as pool:
        for kind in ({}, {"subspace": 0.6}, {"projection": 4}, {"bootstrap": True}):
            for lloyd in (False, True):
                plans = plan_members(4, 10, 40, 0, **kind)
                options = {"fit_rows": 1000, "full_lloyd": lloyd, "scale": "standard" if lloyd else "minmax"}
                labeller, _ = make_labeller(features, plans, 0, pool, **options)
                found.append(label_all(features, labeller, pool))
                print(labeller.digest())
    np.save(sys.argv[2], np.concatenate(found, axis=1))
"""

SCIKIT_LEARN = """
    import sys
    import numpy as np
    from sklearn.cluster import KMeans

    rows = np.load(sys.argv[1]).astype(np.float32)
    found = [KMeans(k, init="random", n_init=1, random_state=0).fit(rows).labels_ for k in range(10, 40, 5)]
    np.save(sys.argv[2], np.stack(found, axis=1))
"""


@pytest.fixture(scope="module")
def lattice(tmp_path_factory):
    """A lattice, rotated: many rows are as near to one centre as to another, but for rounding."""
    folder, rng = tmp_path_factory.mktemp("lattice"), np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    np.save(folder / "x.npy", rng.integers(0, 3, (2000, 8)) @ rotation)
    return folder


def made(folder, script, number, environment):
    """What a process prints and saves that takes itself to run on another CPU."""
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder / "x.npy"), str(folder / f"{number}.npy")]
    own = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")} | environment
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, np.load(folder / f"{number}.npy")


@pytest.mark.parametrize("cpu", ["neither AVX2 nor AVX-512", pytest.param("AVX2", marks=pytest.mark.slow)])
def test_members__same_bits_on_every_cpu(lattice, cpu, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["here", str(lattice / "x.npy"), str(lattice / "here.npy")])
    exec(textwrap.dedent(MEMBERS), {})
    printed, labels = made(lattice, MEMBERS, "there", OTHER_CPUS[cpu])
    assert printed == capsys.readouterr().out
    np.testing.assert_array_equal(labels, np.load(lattice / "here.npy"))


@pytest.mark.slow
def test_members__of_scikit_learn_would_not_be_the_same(lattice):
    """So the test above can fail."""
    here = made(lattice, SCIKIT_LEARN, "here", {})
    there = made(lattice, SCIKIT_LEARN, "there", OTHER_CPUS["neither AVX2 nor AVX-512"])
    assert (here[1] != there[1]).any()


def inertia(rows, centres):
    return ((rows[:, None] - centres) ** 2).sum(axis=2).min(axis=1).sum()


@pytest.mark.parametrize(
    "rows", [load_wine().data, load_digits().data, make_blobs(3000, 5, centers=12, random_state=0)[0]]
)
def test_fit_centres__as_good_as_scikit_learn(rows):
    rows = rows.astype(np.float32)
    ours = [inertia(rows, fit_centres(rows, 12, seed)) for seed in range(6)]
    theirs = [KMeans(12, init="random", n_init=1, random_state=seed).fit(rows).inertia_ for seed in range(6)]
    assert np.mean(ours) < 1.01 * np.mean(theirs)


def test_fit_centres__same_as_scikit_learn_where_nothing_is_nearly_a_tie():
    rows = make_blobs(2000, 4, centers=6, cluster_std=0.5, random_state=1)[0].astype(np.float32)
    for seed in range(5):
        theirs = KMeans(6, init="random", n_init=1, random_state=seed).fit(rows).cluster_centers_
        np.testing.assert_allclose(fit_centres(rows, 6, seed), theirs, atol=1e-4)


def test_fit_centres__a_common_offset_changes_nothing_much():
    rows = make_blobs(1000, 3, centers=5, cluster_std=0.5, random_state=2)[0].astype(np.float32)
    far = fit_centres(rows + np.float32(5000), 5, 0) - 5000
    np.testing.assert_allclose(far, fit_centres(rows, 5, 0), atol=0.01)


def test_fit_centres__one_that_loses_its_rows_gets_another():
    rows = np.repeat(np.array([[0.0], [1.0], [10.0]], np.float32), [50, 50, 1], axis=0)
    for seed in range(20):
        assert sorted(fit_centres(rows, 3, seed)[:, 0].round(3)) == [0, 1, 10]


def test_fit_centres__fewer_different_rows_than_centres():
    rows = np.repeat(np.array([[0.0], [1.0]], np.float32), 5, axis=0)
    assert set(fit_centres(rows, 4, 0)[:, 0]) == {0.0, 1.0}


def test_through__a_matrix_product():
    rng = np.random.default_rng(0)
    rows, view = rng.normal(size=(50, 7)), rng.normal(size=(7, 3))
    np.testing.assert_allclose(through(rows, view), rows @ view)
    assert through(rows.astype(np.float32), view.astype(np.float32)).dtype == np.float32
