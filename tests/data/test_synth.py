"""Made-up ensembles: as asked for, and the same whatever the order, the threads or the share of them that is made."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cehm_dask.data import synth
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.synth import Synth
from cehm_dask.errors import StoreError
from tests.listening import Advances


@pytest.fixture
def small_blocks(monkeypatch):
    """So that a few rows come from many seeds."""
    monkeypatch.setattr(synth, "BLOCK_ROWS", 100)


def agreeing(made):
    """Share of labels (those left out aside) that lie in a cluster of their sample's class."""
    codes, truth = made.rows(0, made.n_samples)
    return (((codes.astype(int) - 1) % made.n_classes == truth[:, None]) & (codes > 0)).sum() / (codes > 0).sum()


# --- as asked ----------------------------------------------------------------------------------------------------


@given(
    n_samples=st.integers(1, 3000),
    n_members=st.integers(1, 5),
    n_classes=st.integers(1, 12),
    k_min=st.integers(1, 300),
    more=st.integers(0, 20),
    seed=st.integers(0, 2**40),
)
def test_shape__as_asked(n_samples, n_members, n_classes, k_min, more, seed):
    made = Synth(n_samples, n_members, n_classes, k_min, k_min + more, seed=seed)
    labels, truth = made.arrays()
    assert labels.shape == (n_samples, n_members)
    assert truth.shape == (n_samples,)
    assert truth.min() >= 0
    assert truth.max() < n_classes
    assert len(made.widths) == n_members
    assert all(k_min <= width <= k_min + more for width in made.widths)
    assert (labels.max(axis=0) < made.widths).all()


def test_widths__spread_from_fewest_to_most():
    assert set(Synth(1, 500, k_min=3, k_max=6).widths) == {3, 4, 5, 6}


def test_labels__every_cluster_and_class_occurs():
    made = Synth(20_000, 4, n_classes=7, k_min=2, k_max=40)
    labels, truth = made.arrays()
    assert sorted(set(truth)) == list(range(7))
    for column, width in zip(labels.T, made.widths, strict=True):
        assert len(np.unique(column)) == width


@pytest.mark.parametrize(("k_max", "itemsize"), [(255, 1), (256, 2), (32_767, 2)])
def test_labels__of_the_smallest_type_that_fits(k_max, itemsize):
    labels, _ = Synth(2000, 2, k_min=k_max, k_max=k_max, follow=0.0).arrays()
    assert labels.dtype.itemsize == itemsize
    assert labels.max() > 0.99 * k_max  # nothing wrapped around


@pytest.mark.parametrize("follow", [0.0, 0.3, 0.8, 1.0])
def test_follow__share_as_asked(follow):
    # With as many clusters as classes, a label that does not follow still hits its class one time in ten.
    made = Synth(20_000, 5, k_min=10, k_max=10, follow=follow)
    assert agreeing(made) == pytest.approx(follow + (1 - follow) / 10, abs=0.01)


def test_classes__as_many_as_can_be():
    made = Synth(2000, 1, n_classes=32_767, k_min=32_767, k_max=32_767, follow=1.0)
    codes, truth = made.rows(0, 2000)
    np.testing.assert_array_equal(codes[:, 0] - 1, truth)


def test_follow__all_pieces_of_a_class_are_used():
    codes, truth = Synth(5000, 1, n_classes=3, k_min=8, k_max=8, follow=1.0).rows(0, 5000)
    for e, pieces in ((0, {0, 3, 6}), (1, {1, 4, 7}), (2, {2, 5})):
        assert set(codes[truth == e, 0] - 1) == pieces


def test_follow__fewer_clusters_than_classes_share_them():
    codes, truth = Synth(5000, 1, n_classes=6, k_min=4, k_max=4, follow=1.0).rows(0, 5000)
    np.testing.assert_array_equal(codes[:, 0] - 1, truth % 4)


@pytest.mark.parametrize("missing", [0.0, 0.2, 1.0])
def test_missing__share_as_asked(missing):
    codes, _ = Synth(20_000, 5, missing=missing).rows(0, 20_000)
    assert (codes == 0).mean() == pytest.approx(missing, abs=0.01)


def test_missing__changes_no_other_label_nor_follow():
    assert agreeing(Synth(20_000, 5, k_min=10, k_max=10, missing=0.5)) == pytest.approx(0.82, abs=0.01)


def test_arrays__labels_from_zero_or_codes():
    made = Synth(500, 3)
    codes, truth = made.rows(0, 500)
    labels, same = made.arrays()
    np.testing.assert_array_equal(labels, codes - 1)
    np.testing.assert_array_equal(same, truth)
    holed = replace(made, missing=0.3)
    np.testing.assert_array_equal(holed.arrays()[0], holed.rows(0, 500)[0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_samples": 0}, "n_samples=0: must be at least 1"),
        ({"n_members": 0}, "n_members=0: must be at least 1"),
        ({"n_classes": 0}, "n_classes=0: must be at least 1"),
        ({"n_classes": 40_000}, "n_classes=40000: must be at most 32767"),
        ({"k_min": 0}, "k_min=0: must be at least 1"),
        ({"k_min": 9, "k_max": 8}, "k_max=8 < k_min=9"),
        ({"k_max": 32_768}, "k_max=32768: must be at most 32767"),
        ({"follow": 1.1}, r"follow=1\.1: must lie between 0 and 1"),
        ({"follow": float("nan")}, "follow=nan: must lie between 0 and 1"),
        ({"missing": -0.1}, r"missing=-0\.1: must lie between 0 and 1"),
    ],
)
def test_parameters__wrong_ones_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        Synth(**{"n_samples": 10, **wrong})


# --- the same, however it is made --------------------------------------------------------------------------------


def test_seed__same_gives_the_same_and_another_another():
    first, again, other = (Synth(1000, 3, seed=seed).arrays() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert (first[0] != other[0]).mean() > 0.5
    assert (first[1] != other[1]).mean() > 0.5


def test_blocks__differ_and_do_not_depend_on_order(small_blocks):
    made = Synth(450, 3, missing=0.1)
    backwards = [made.block(number) for number in reversed(range(5))][::-1]
    np.testing.assert_array_equal(np.concatenate([codes for codes, _ in backwards]), made.rows(0, 450)[0])
    np.testing.assert_array_equal(np.concatenate([truth for _, truth in backwards]), made.rows(0, 450)[1])
    assert not np.array_equal(backwards[0][0], backwards[1][0])


@given(rows=st.tuples(st.integers(0, 449), st.integers(0, 449)))
def test_rows__equal_the_slice_of_all(rows):
    start, stop = min(rows), max(rows) + 1
    made = Synth(450, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synth, "BLOCK_ROWS", 100)
        codes, truth = made.rows(start, stop)
        all_labels, all_truth = made.arrays()
    np.testing.assert_array_equal(codes - 1, all_labels[start:stop])
    np.testing.assert_array_equal(truth, all_truth[start:stop])


def test_rows__of_a_shorter_ensemble_begin_alike(small_blocks):
    """All blocks but the last are the same, whatever n."""
    np.testing.assert_array_equal(Synth(450, 3).rows(0, 400)[0], Synth(1000, 3).rows(0, 400)[0])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_written__equals_the_arrays(tmp_path, monkeypatch, threads, missing):
    monkeypatch.setattr(
        "cehm_dask.data.ensemble_writer.CHUNK_BYTES", 1000
    )  # many shards, whose borders are not those of the blocks
    monkeypatch.setattr(synth, "BLOCK_ROWS", 900)
    made = Synth(5000, 3, missing=missing, k_max=300)
    reported = []
    fingerprint = made.write(
        str(tmp_path / "e.zarr"), threads=threads, progress=Advances(lambda _what, done, _total: reported.append(done))
    )
    ensemble = open_ensemble(str(tmp_path / "e.zarr"))
    codes, truth = made.rows(0, 5000)
    assert len(reported) > 3
    assert reported == sorted(reported)
    assert reported[-1] == 5000
    np.testing.assert_array_equal(ensemble.read(0, 5000), codes)
    np.testing.assert_array_equal(ensemble.truth, truth)
    assert ensemble.widths == tuple(width + 1 for width in made.widths)
    sizes = [np.bincount(c, minlength=width)[1:] for c, width in zip(codes.T, ensemble.widths, strict=True)]
    np.testing.assert_array_equal(ensemble.sizes, np.concatenate(sizes))
    assert ensemble.fingerprint == fingerprint == made.write(str(tmp_path / "again.zarr"), threads=2)
    assert [member["k"] for member in ensemble.members] == list(made.widths)


def test_written__kept_unless_asked(tmp_path):
    url = str(tmp_path / "e.zarr")
    Synth(10, 2).write(url)
    with pytest.raises(StoreError, match="exists"):
        Synth(20, 2).write(url)
    Synth(20, 2).write(url, overwrite=True)
    assert open_ensemble(url).n_samples == 20
