"""Names from run to run: rows joined by ids in bounded memory, clusters matched, new and gone ones told apart."""

import json
from collections import Counter

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from cehm_dask import CEHM
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.synth import Synth
from cehm_dask.errors import BudgetError, InputError, StoreError
from cehm_dask.profiles.profile import Profile
from cehm_dask.results import export, shared_rows
from cehm_dask.results.describing import profile
from cehm_dask.results.matching import Matching, NamedLabels, enough, first, match, match_profiles, match_shared
from cehm_dask.results.shared_rows import Labelled, Shared, count_shared, of_table

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


def labelled(ids, clusters, n_clusters, block=7, kind=None):
    """Rows in blocks."""
    clusters = np.asarray(clusters, np.int64)
    starts = range(0, max(1, len(ids)), block)

    def blocks():
        for start in starts:
            yield pa.array(ids[start : start + block], kind), clusters[start : start + block]

    return Labelled(n_clusters, blocks)


def joined(before, now, k_before, k_now):
    """The same in plain Python."""
    table = np.zeros((k_before + 1, k_now + 1), np.int64)
    counts = [Counter(str(name) for name, _ in side if name is not None) for side in (before, now)]
    held = {str(name): cluster for name, cluster in before if name is not None and counts[0][str(name)] == 1}
    for name, cluster in now:
        if name is not None and counts[1][str(name)] == 1 and str(name) in held:
            table[held[str(name)], cluster] += 1
    return table


texts = st.one_of(st.none(), st.text("ab=é'0", max_size=3))
numbers = st.one_of(st.none(), st.integers(-20, 20))
rows = st.one_of(
    *(st.tuples(*[st.lists(st.tuples(kind, st.integers(-1, 2)), max_size=40)] * 2) for kind in (texts, numbers))
)


@given(rows, st.integers(1, 9), st.integers(1, 5))
@settings(max_examples=150)
def test_shared__are_those_of_a_plain_join_whatever_blocks_and_passes(sides, block, passes):
    with pytest.MonkeyPatch.context() as patch:
        terms = shared_rows.shared_terms
        patch.setattr(shared_rows, "shared_terms", lambda *given: (terms(*given)[0], passes))
        kinds = {type(name) for side in sides for name, _ in side} - {type(None)}
        kind = pa.int64() if kinds == {int} else pa.string()
        given = [labelled([n for n, _ in side], [c for _, c in side], 3, block, kind) for side in sides]
        found = count_shared(*given)
    wanted = joined(*([(n, c) for n, c in side] for side in sides), 3, 3)
    np.testing.assert_array_equal(found.table, wanted)
    for side, sizes in zip(sides, (found.before, found.now), strict=True):
        assert sizes.tolist() == [sum(c == own for _, c in side) for own in (0, 1, 2, -1)]


def test_shared__whole_numbers_are_the_same_whatever_their_type():
    old = labelled(["1", "2", "123456789012", "x"], [0, 1, 1, 0], 2)
    for kind in (pa.int32(), pa.uint64(), pa.float64(), pa.string()):
        values = [1, 2] if kind == pa.int32() else [1, 2, 123456789012]
        now = labelled(list(map(str, values)) if kind == pa.string() else values, [0] * len(values), 1, kind=kind)
        assert count_shared(old, now).table[:, 0].tolist() == [1, len(values) - 1, 0]
    coded = Labelled(1, lambda: iter([(pa.array(["1", "x"]).dictionary_encode(), np.zeros(2, np.int64))]))
    assert count_shared(old, coded).table[:, 0].tolist() == [2, 0, 0]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("ids", [["=1", "'x", "-5", "@x", "007", "é\n"], [5, -3, 2**60, 7, 8, 9]])
def test_table__its_rows_come_back_as_they_were_exported(tmp_path, suffix, ids):
    labels = np.array([0, 1, 7, 1, -1, 7], np.int32)
    names = export.RowIds("who", lambda: iter([pa.array(ids)]))
    export.write(tmp_path / f"labels{suffix}", labels, np.zeros(6), np.zeros(6), names)
    found = of_table(str(tmp_path / f"labels{suffix}"), [0, 1, 7])
    now = labelled(ids, range(6), 6)
    table = count_shared(found, now).table
    assert np.argwhere(table[:, :6]).tolist() == [[0, 0], [1, 1], [1, 3], [2, 2], [2, 5], [3, 4]]
    with pytest.raises(StoreError, match="cluster 7 is none of its run"):
        count_shared(of_table(str(tmp_path / f"labels{suffix}"), [0, 1]), now)


def test_table__of_others_is_refused(tmp_path):
    pd.DataFrame({"id": ["a"], "label": [0]}).to_csv(tmp_path / "own.csv", index=False)
    with pytest.raises(StoreError, match="columns id, label: no table of labels that this program exported"):
        of_table(str(tmp_path / "own.csv"), [0])


def test_shared__more_passes_in_less_memory_and_a_refusal_with_both_numbers():
    machine = shared_rows.this_machine("4GiB")  # this process may have taken one
    few, passes = shared_rows.shared_terms(10, 10, machine, 100 << 20)
    assert passes == 1
    assert few["ids of a pass"] == 100 << 20
    terms, passes = shared_rows.shared_terms(10, 10, machine, 100 << 30)
    assert passes > 25
    assert sum(terms.values()) <= machine.allowed
    with pytest.raises(BudgetError, match=r"memory=90.00 MiB allowed < .* projected for rows that two runs share"):
        count_shared(labelled([], [], 1), labelled([], [], 1), memory="90MiB")


# --- names ------------------------------------------------------------------------------------------------------------


def shared_of(table, entered=None):
    """From a table of clusters alone; ``entered``: rows of each new cluster that are in no old one."""
    inner = np.asarray(table, np.int64)
    whole = np.zeros(np.add(inner.shape, 1), np.int64)
    whole[:-1, :-1] = inner
    now = whole.sum(axis=0) + np.append(np.zeros(inner.shape[1], np.int64) if entered is None else entered, 0)
    return Shared(whole, whole.sum(axis=1), now, 0)


def test_match__a_permutation_is_undone():
    found = match_shared(shared_of([[0, 90, 1], [2, 0, 80], [70, 1, 0]]), [4, 9, 2], 11)
    assert found.names == [2, 4, 9]
    assert found.next_name == 11
    assert (found.n_shared, found.n_moved) == (244, 4)
    assert found.told == []
    assert found.moved == 4 / 244
    assert (4, 9, 1) in found.flow
    assert sum(count for _, _, count in found.flow) == 244


def test_match__split_merge_birth_and_end_are_told_apart():
    table = [
        # 0 splits, 1 and 2 merge, 3 leaves, 4 stays; the last cluster is of new rows, with strays of the one that left
        [60, 40, 0, 0, 0],
        [0, 0, 80, 0, 0],
        [0, 0, 50, 1, 0],
        [0, 0, 0, 0, 3],
        [0, 0, 0, 70, 0],
    ]
    shared = shared_of(table, entered=[0, 0, 0, 0, 100])
    shared.before[3] += 100
    found = match_shared(shared, [0, 1, 2, 3, 4], 5)
    assert found.names == [0, 6, 1, 4, 5]
    assert found.told == [
        "cluster 2 is gone: merged into 1",
        "cluster 3 is gone",
        "cluster 5 is new",
        "cluster 6 is new: split off from 0",
    ]
    assert [found.of(state) for state in ("kept", "new", "split", "merged", "gone")] == [[0, 1, 4], [5], [6], [2], [3]]
    assert found.n_moved == 40 + 51 + 3
    assert found.next_name == 7


def test_match__a_number_is_never_given_twice():
    shared = shared_of([[50, 0], [0, 0]], entered=[0, 50])
    shared.before[1] = 50
    found = match_shared(shared, [0, 1], 8)
    assert found.names == [0, 8]
    assert found.of("gone") == [1]


@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=6))
def test_match__names_are_unique_and_as_many_rows_as_possible_keep_theirs(table):
    shared = shared_of(table)
    names = list(range(10, 10 + len(table)))
    found = match_shared(shared, names, 100)
    given = [name for name in found.names if name is not None]
    assert len(set(given)) == len(given)
    assert [name is None for name in found.names] == (shared.now[:-1] == 0).tolist()
    assert all(name in names or name >= 100 for name in given)
    inner = np.asarray(table)
    half = inner.sum(axis=1, keepdims=True) / 2, inner.sum(axis=0, keepdims=True) / 2
    allowed = np.where((inner >= half[0]) | (inner >= half[1]), inner, 0)
    best = allowed[linear_sum_assignment(allowed, maximize=True)].sum()
    assert found.n_shared - found.n_moved == best
    again = Matching.from_dict(json.loads(json.dumps(found.to_dict())))
    assert again == found


def test_first__clusters_are_called_by_their_numbers():
    found = first(np.array([5, 0, 3]))
    assert (found.names, found.next_name, found.moved) == ([0, 1, 2], 3, None)
    with pytest.raises(InputError, match="matching of version 7, expected 1"):
        Matching.from_dict({"version": 7})


def test_enough__a_few_shared_rows_are_not():
    assert enough(shared_of([[10, 0], [0, 10]]))
    assert not enough(shared_of([[10, 0], [0, 9]]))


# --- profiles ---------------------------------------------------------------------------------------------------------


def described(centres, sizes, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(sizes)), sizes)
    values = np.asarray(centres, float)[labels] + rng.normal(size=(len(labels), 2))
    return Profile.from_dict(profile(pd.DataFrame(values, columns=["a", "b"]), labels).to_dict())


def numbered(found):
    clusters = [own | {"cluster": int(own["cluster"])} for own in found.clusters]
    return Profile(found.features, clusters, found.screen, found.left_out)


def test_profiles__match_by_means_where_no_row_is_shared():
    before = numbered(described([[0, 0], [10, 0], [0, 10]], [40, 50, 60]))
    now = numbered(described([[0.5, 10], [0, 0.5], [30, 30], [10, 1]], [60, 40, 20, 50], seed=1))
    found = match_profiles(before, now, 5, 3)
    assert found.names == [2, 0, 3, 1, None]
    assert (found.by, found.moved, found.of("new")) == ("profiles", None, [3])
    assert match_profiles(before, Profile(("c", "d"), now.clusters, [], []), 5).names == [3, 5, 6, 4, None]


def test_labels__by_name_row_by_row():
    named = NamedLabels(np.array([0, 2, -1, 1], np.int16), [7, None, 40_000])
    assert (named.shape, named.dtype) == ((4,), np.int32)
    assert named[:].tolist() == [7, 40_000, -1, -1]
    assert named[1:2].tolist() == [40_000]


# --- stores -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    labels, _ = Synth(3000, 8, n_classes=4, k_min=4, k_max=9).arrays()
    for seed, name in enumerate(("old", "new")):
        CEHM(4, random_state=seed).fit(labels[:, seed * 2 :], output=folder / f"{name}.zarr")
    return folder


def test_stores__by_rows_and_by_ids_alike(stores):
    by_rows = match(stores / "old.zarr", stores / "new.zarr")
    old, new = (np.asarray(open_consensus(str(stores / f"{name}.zarr")).array("labels")[:]) for name in ("old", "new"))
    names = np.asarray(by_rows.names)
    assert by_rows.n_moved == int((names[new] != old).sum())
    assert by_rows.n_moved < 100
    ids = np.array([f"r{n}" for n in range(3000)])
    by_ids = match(stores / "old.zarr", stores / "new.zarr", old_ids=ids, new_ids=ids)
    assert (by_ids.names, by_ids.flow, by_ids.by) == (by_rows.names, by_rows.flow, "ids")
    with pytest.raises(InputError, match="ids of one of the two results"):
        match(stores / "old.zarr", stores / "new.zarr", old_ids=ids)
    with pytest.raises(InputError, match="names 2999 rows, the result has 3000"):
        match(stores / "old.zarr", stores / "new.zarr", old_ids=ids[1:], new_ids=ids)


def test_stores__of_other_rows_need_ids(stores, tmp_path):
    CEHM(2, random_state=0).fit(np.tile([[0, 0], [1, 1]], (50, 1)), output=tmp_path / "few.zarr")
    with pytest.raises(InputError, match=r"has 3,000 samples, .* has 100: without ids"):
        match(stores / "old.zarr", tmp_path / "few.zarr")
