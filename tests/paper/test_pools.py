"""Pools of members that others made: reading, drawing, and what is refused."""

import numpy as np
import pytest

from cehm_dask.paper.pools import pool_files, read_pool


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.npz"


@pytest.fixture
def labels():
    return np.random.default_rng(0).integers(-1, 4, (20, 12))


def test_read__labels_and_classes_from_zero(path, labels):
    y = np.repeat([7, 3, 5, -1], 5)
    np.savez(path, labels=labels, y=y)
    pool = read_pool(path)
    assert pool.name == "mine"
    assert pool.n_clusters == 3  # -1: not known
    np.testing.assert_array_equal(pool.labels, labels)
    assert pool.y.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [-1] * 5


def test_draw__different_members_by_seed(path, labels):
    labels[0] = np.arange(12)  # tells the members apart
    np.savez(path, labels=labels, y=np.arange(20) % 2)
    pool = read_pool(path)
    draws = [tuple(pool.draw(5, seed)[0].tolist()) for seed in range(20)]
    assert all(len(set(drawn)) == 5 for drawn in draws)
    assert len(set(draws)) > 15
    np.testing.assert_array_equal(pool.draw(5, 3), pool.draw(5, 3))
    np.testing.assert_array_equal(pool.draw(12, 0), labels)


def test_fingerprint__is_that_of_labels_and_classes(path, labels):
    prints = set()
    for some, y in ((labels, np.arange(20) % 2), (labels[:, :11], np.arange(20) % 2), (labels, np.arange(20) // 10)):
        np.savez(path, labels=some, y=y)
        prints.add(read_pool(path).fingerprint)
    assert len(prints) == 3


@pytest.mark.parametrize("members", [0, 13])
def test_draw__more_members_than_there_are_or_none_are_refused(path, labels, members):
    np.savez(path, labels=labels, y=np.arange(20) % 2)
    with pytest.raises(ValueError, match=rf"mine\.npz: pool_members={members}, the pool has 12: ask for 1 to 12"):
        read_pool(path).draw(members, 0)


TWO = np.arange(4) % 2


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"X": np.zeros((4, 2)), "y": TWO}, r"holds X, y: write labels \(n × members\)"),
        ({"labels": np.zeros((4, 2), int)}, "holds labels: write labels"),
        ({"labels": np.zeros(4, int), "y": TWO}, r"labels has shape \(4,\) and y \(4,\): expected n × members and n"),
        ({"labels": np.zeros((4, 2), int), "y": TWO[:3]}, r"labels has shape \(4, 2\) and y \(3,\)"),
        ({"labels": np.zeros((4, 0), int), "y": TWO}, "n_members=0"),
        ({"labels": np.full((4, 2), 0.5), "y": TWO}, "0.5"),
        ({"labels": np.full((4, 2), -3), "y": TWO}, "-3"),
        ({"labels": np.full((4, 2), "a"), "y": TWO}, "expected integers"),
        ({"labels": np.zeros((4, 2), int), "y": TWO + 0.5}, "truth holds 0.5 at row 0"),
        ({"labels": np.zeros((4, 2), int), "y": np.zeros(4, int)}, "y has 1 classes: at least 2"),
        ({"labels": np.zeros((4, 2), int), "y": np.array([{}] * 4)}, "no array of numbers or texts: write"),
    ],
)
def test_read__bad_pools_are_refused_by_name(path, arrays, said):
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=said) as refused:
        read_pool(path)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PK\x03\x04garbage"])
def test_read__a_file_that_is_no_npz_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.npz cannot be read as \.npz: write it with numpy\.savez"):
        read_pool(path)


def test_read__one_array_alone_is_refused(path):
    with open(path, "wb") as file:
        np.save(file, np.zeros((4, 2), int))
    with pytest.raises(ValueError, match=r"mine\.npz cannot be read as \.npz"):
        read_pool(path)


def test_read__changed_bytes_are_noticed(path):
    np.savez(path, labels=np.zeros((400, 20), int), y=np.arange(400) % 2)
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.npz: labels or y is no array"):
        read_pool(path)


def test_read__names_the_file_that_is_not_there(path):
    with pytest.raises(FileNotFoundError, match=r"mine\.npz: no such file"):
        read_pool(path)


def test_pool_files__of_a_folder_by_name(tmp_path):
    with pytest.raises(ValueError, match=r"no \.npz file is there; write labels"):
        pool_files(tmp_path)
    for name in ("b.npz", "a.npz", "c.csv"):
        (tmp_path / name).touch()
    assert [path.name for path in pool_files(tmp_path)] == ["a.npz", "b.npz"]
    with pytest.raises(FileNotFoundError, match=r"none: no such folder; name one"):
        pool_files(tmp_path / "none")
