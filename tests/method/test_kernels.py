"""Every compiled loop against the numpy formula it stands for, compiled and as plain Python."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cehm_dask.method import counting, jit, kernels

JIT_OFF = os.environ.get("NUMBA_DISABLE_JIT") == "1"
CODES = [np.uint8, np.uint16, np.uint32]
every_code_type = pytest.mark.parametrize("dtype", CODES)


def ensemble(seed, rows, widths, dtype=np.uint8):
    """Random codes and the slot of every code 0."""
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(width, size=rows) for width in widths], axis=1).astype(dtype)
    return codes, np.concatenate(([0], np.cumsum(widths)[:-1])).astype(np.uint64)


def incidence(codes, offsets, slots):
    H = np.zeros((len(codes), slots), np.int64)
    for j, offset in enumerate(offsets):
        H[np.arange(len(codes)), codes[:, j].astype(int) + int(offset)] = 1
    return H


def sums_in_member_order(codes, offsets, weights):
    total = np.zeros((len(codes), weights.shape[1]))
    for j, offset in enumerate(offsets):
        total = total + weights[codes[:, j].astype(int) + int(offset)]
    return total


def belonging(codes, offsets, tables):
    weights, first_column = kernels.side_by_side(tables)
    best = np.full((len(tables), len(codes)), -9, np.int16)
    margin = np.full((len(tables), len(codes)), np.nan)
    kernels.belonging(codes, offsets, weights, first_column, best, margin)
    return best, margin


def winner_and_lead(sums):
    ascending = np.sort(sums, axis=1)
    second = ascending[:, -2] if sums.shape[1] > 1 else 0.0
    return sums.argmax(axis=1), ascending[:, -1] - second


# --- intersections -----------------------------------------------------------------------------------------------


@every_code_type
@pytest.mark.parametrize(("rows", "widths"), [(1, [3]), (40, [2, 5, 3]), (2500, [3, 2, 4, 2, 3, 2, 4, 3, 2, 3])])
def test_intersections__upper_triangle(rows, widths, dtype):
    # More rows than a strip and more members than a group of counters, in the largest case.
    if JIT_OFF:
        rows = min(rows, 300)
    codes, offsets = ensemble(0, rows, widths, dtype)
    table = np.zeros((sum(widths), sum(widths)), np.int32)
    counting.intersections(codes, offsets, table)
    H = incidence(codes, offsets, sum(widths))
    np.testing.assert_array_equal(table, np.triu(H.T @ H))


def test_intersections__adds_to_what_is_there():
    codes, offsets = ensemble(1, 30, [3, 4])
    table, halves = np.zeros((7, 7), np.int32), np.zeros((7, 7), np.int32)
    counting.intersections(codes, offsets, table)
    counting.intersections(codes[:11], offsets, halves)
    counting.intersections(codes[11:], offsets, halves)
    np.testing.assert_array_equal(halves, table)


@pytest.mark.parametrize("known", [1, 3, 9, 10])
def test_intersections__members_that_are_known_are_not_compared(known):
    widths = [3, 2, 4, 2, 3, 2, 4, 3, 2, 3]
    codes, offsets = ensemble(2, 60, widths)
    whole, part = np.zeros((2, sum(widths), sum(widths)), np.int32)
    counting.intersections(codes, offsets, whole)
    counting.intersections(codes, offsets, part, known)
    slots = sum(widths[:known])
    whole[:slots, :slots] = np.diag(np.diag(whole[:slots, :slots]))
    np.testing.assert_array_equal(part, whole)


# --- belonging ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [*range(1, 31)])
def test_belonging__winner_and_lead(k):
    codes, offsets = ensemble(k, 70, [4, 3, 5, 2])
    weights = np.random.default_rng(k).random((14, k))
    best, margin = belonging(codes, offsets, [weights])
    wanted_best, wanted_margin = winner_and_lead(sums_in_member_order(codes, offsets, weights))
    np.testing.assert_array_equal(best[0], wanted_best)
    np.testing.assert_array_equal(margin[0], wanted_margin)


@pytest.mark.parametrize("k", [2, 4, 5, 12, 13, 29])
def test_belonging__lowest_number_on_a_tie(k):
    # Few different weights: most rows have several largest sums, in every pair of column groups.
    codes, offsets = ensemble(k, 200, [4, 3, 5])
    weights = np.random.default_rng(k).integers(2, size=(12, k)).astype(float)
    best, margin = belonging(codes, offsets, [weights])
    sums = sums_in_member_order(codes, offsets, weights)
    wanted_best, wanted_margin = winner_and_lead(sums)
    assert (np.sort(sums, axis=1)[:, -1] == np.sort(sums, axis=1)[:, -2]).any()
    np.testing.assert_array_equal(best[0], wanted_best)
    np.testing.assert_array_equal(margin[0], wanted_margin)


@pytest.mark.parametrize("k", [1, 3, 4, 9])
def test_belonging__nothing_but_zeros(k):
    codes, offsets = ensemble(0, 20, [2, 3])
    best, margin = belonging(codes, offsets, [np.zeros((5, k))])
    assert (best == 0).all()
    assert (margin == 0).all()


@pytest.mark.parametrize("rows", [1, kernels.STRIP - 1, kernels.STRIP, kernels.STRIP + 1, 2 * kernels.STRIP + 3])
def test_belonging__rows_of_every_strip(rows):
    codes, offsets = ensemble(rows, rows, [4, 3])
    weights = np.random.default_rng(0).random((7, 5))
    best, margin = belonging(codes, offsets, [weights])
    wanted_best, wanted_margin = winner_and_lead(sums_in_member_order(codes, offsets, weights))
    np.testing.assert_array_equal(best[0], wanted_best)
    np.testing.assert_array_equal(margin[0], wanted_margin)


@every_code_type
def test_belonging__problems_side_by_side_as_one_at_a_time(dtype):
    rows = 40 if JIT_OFF else 300
    codes, offsets = ensemble(3, rows, [4, 3, 5, 2, 6], dtype)
    rng = np.random.default_rng(3)
    ks = rng.permutation(np.arange(1, 31))
    tables = [rng.random((20, k)) if k % 3 else rng.integers(3, size=(20, k)).astype(float) for k in ks]
    best, margin = belonging(codes, offsets, tables)
    for p, table in enumerate(tables):
        one_best, one_margin = belonging(codes, offsets, [table])
        np.testing.assert_array_equal(best[p], one_best[0])
        np.testing.assert_array_equal(margin[p], one_margin[0])
        wanted_best, wanted_margin = winner_and_lead(sums_in_member_order(codes, offsets, table))
        np.testing.assert_array_equal(best[p], wanted_best)
        np.testing.assert_array_equal(margin[p], wanted_margin)


def test_belonging__sums_in_member_order():
    # In any other order these do not cancel: 1e16 + 1 loses the 1.
    codes, offsets = np.zeros((1, 3), np.uint8), np.arange(3, dtype=np.uint64)
    weights = np.array([[1.0, 0.0], [1e16, 1e16], [2.0, 2.0]])
    _, margin = belonging(codes, offsets, [weights])
    assert margin[0, 0] == ((1.0 + 1e16) + 2.0) - ((0.0 + 1e16) + 2.0)


# --- degrees -----------------------------------------------------------------------------------------------------


@every_code_type
@pytest.mark.parametrize("k", [1, 7])
def test_degrees__sums_in_member_order(k, dtype):
    codes, offsets = ensemble(k, 50, [4, 3, 5, 2], dtype)
    weights = np.random.default_rng(k).random((14, k))
    out = np.full((50, k), np.nan)
    kernels.degrees(codes, offsets, weights, out)
    np.testing.assert_array_equal(out, sums_in_member_order(codes, offsets, weights))


# --- tally -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "shift"), [(0, 0), (5, 0), (3, 2), (1 << 62, 44), (10**6, 3)])
@pytest.mark.parametrize("bins", [1, 8, kernels.BINS])
def test_tally__bins_from_low_on_and_the_last_takes_the_rest(low, shift, bins):
    rng = np.random.default_rng(0)
    keys = np.concatenate((rng.integers(low + (20 << shift), size=200), [0, low, low + 1, low + (bins << shift)]))
    keys = keys.astype(np.uint64)
    histogram = np.ones(bins, np.int64)
    kernels.tally(keys, np.uint64(low), np.uint64(shift), histogram)
    wanted = np.ones(bins, np.int64)
    for key in keys.tolist():
        wanted[min(max(key - low, 0) >> shift, bins - 1)] += 1
    np.testing.assert_array_equal(histogram, wanted)


def test_tally__keys_are_ordered_as_margins_are():
    margins = np.sort(np.concatenate(([0.0, 5e-324, 1.0, 30.0], np.random.default_rng(0).random(50) * 30)))
    keys = margins.view(np.uint64)
    assert (np.diff(keys.astype(object)) > 0).all()


# --- assign ------------------------------------------------------------------------------------------------------


def assign_plainly(codes, offsets, best, keys, cut, first_row, last_row, assignment, slots, k):
    inside = (keys > cut) | ((keys == cut) & (first_row + np.arange(len(keys)) <= last_row))
    speaks = assignment != kernels.SILENT
    after = np.where(speaks, np.where(inside, best, kernels.UNASSIGNED), kernels.SILENT)
    H = incidence(codes, offsets, slots)
    one_hot = [(a[:, None] == np.arange(k)).astype(np.int64) for a in (after, assignment)]
    moved = (after != assignment).sum()
    return after, H.T @ one_hot[0] - H.T @ one_hot[1], (inside & speaks).sum(), moved


@every_code_type
@pytest.mark.parametrize(("cut", "last_row"), [(0, 10**9), (5, 10**9), (5, 1020), (5, -1), (9, 10**9), (10, 0)])
def test_assign__cut_ties_and_change_of_counts(dtype, cut, last_row):
    rng = np.random.default_rng(7)
    codes, offsets = ensemble(7, 60, [4, 3, 5], dtype)
    best = rng.integers(4, size=60).astype(np.int16)
    keys = rng.integers(10, size=60).astype(np.uint64)
    before = rng.choice([kernels.SILENT, kernels.UNASSIGNED, 0, 1, 2, 3], size=60).astype(np.int16)
    keys[15:26], before[15:26] = 5, kernels.UNASSIGNED  # ties on both sides of row 1020, and there
    after, change, assigned, moved = assign_plainly(
        codes, offsets, best, keys, cut, 1000, last_row, before, slots=12, k=4
    )
    found, delta = before.copy(), np.full((12, 4), 100, np.int64)
    counted = kernels.assign(
        codes, offsets, best, keys, np.uint64(cut), np.int64(1000), np.int64(last_row), found, delta
    )
    np.testing.assert_array_equal(found, after)
    np.testing.assert_array_equal(delta - 100, change)
    assert tuple(map(int, counted)) == (assigned, moved)


def test_assign__twice_moves_nothing():
    codes, offsets = ensemble(8, 30, [4, 3])
    best, keys = np.random.default_rng(8).integers(3, size=30).astype(np.int16), np.ones(30, np.uint64)
    assignment, delta = np.full(30, kernels.UNASSIGNED, np.int16), np.zeros((7, 3), np.int64)
    args = codes, offsets, best, keys, np.uint64(0), np.int64(0), np.int64(0), assignment, delta
    assert tuple(map(int, kernels.assign(*args))) == (30, 30)
    after = delta.copy()
    assert tuple(map(int, kernels.assign(*args))) == (30, 0)
    np.testing.assert_array_equal(delta, after)


# --- side_by_side ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ks", "shape"), [([1], (1, 4)), ([5], (1, 8)), ([12], (1, 12)), ([13], (2, 12)), ([10, 10, 10], (3, 12))]
)
def test_side_by_side__columns_without_a_gap(ks, shape):
    tables = [np.random.default_rng(k).random((6, k)) for k in ks]
    weights, first_column = kernels.side_by_side(tables)
    assert weights.shape == (shape[0], 6, shape[1])
    assert first_column.tolist() == np.cumsum([0, *ks]).tolist()
    laid_out = np.concatenate(list(weights), axis=1)
    np.testing.assert_array_equal(laid_out[:, : sum(ks)], np.concatenate(tables, axis=1))
    assert (laid_out[:, sum(ks) :] == 0).all()


# --- without the compiler ----------------------------------------------------------------------------------------


def test_contingency__counts_samples_that_are_in_both():
    labels = np.random.default_rng(0).integers(-2, 6, (2, 500)).astype(np.int16)
    table = np.ones((6, 6), np.int64)
    counting.contingency(*labels, table)
    np.testing.assert_array_equal(
        table - 1, [[((labels[0] == i) & (labels[1] == j)).sum() for j in range(6)] for i in range(6)]
    )


@pytest.mark.skipif(JIT_OFF, reason="this is the inner run")
def test_jit_off__plain_python_passes_the_same_tests():
    # Plain Python checks every index, which compiled code does not: reading past an array would show here.
    root = Path(__file__).parents[2]
    golden = [f"tests/method/test_golden.py::test_fit__golden[{case}]" for case in ("ties-released", "missing-printed")]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "tests/method/test_kernels.py",
        *golden,
    ]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.skipif(JIT_OFF, reason="nothing is compiled")
def test_compilation__leaves_the_settings_of_the_process(monkeypatch):
    inside = []
    monkeypatch.setattr(jit.numba.config, "SLP_VECTORIZE", 0)
    compiled = jit._vectorised(lambda _signature: inside.append(jit.numba.config.SLP_VECTORIZE), "loop")
    compiled(())
    kernels.degrees.compile("void(uint8[:, :], uint64[:], float64[:, :], float64[:, :])")
    assert inside == [1]
    assert jit.numba.config.SLP_VECTORIZE == 0
