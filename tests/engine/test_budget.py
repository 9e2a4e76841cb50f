"""What a budget keeps in memory, in which order."""

import pytest

from cehm_dask.data.shape import Shape
from cehm_dask.engine.budget import FREED_BYTES, Budget, make_budget
from cehm_dask.errors import BudgetError


def budget_in(mebibytes: int) -> Budget:
    shape = Shape(3_000_000, row_bytes=30, n_slots=930, read_rows=65536, align_rows=1 << 18)
    return make_budget(shape, [10], allowed=mebibytes << 20, threads=2, returned=False)


def test_make_budget__keeps_assignments_then_freed_blocks_then_labels():
    with pytest.raises(BudgetError):
        budget_in(100)
    budgets = [budget_in(mebibytes) for mebibytes in range(200, 600)]
    assert all(budget.projected <= budget.allowed for budget in budgets)
    kept = dict.fromkeys((one.keep_state, one.keep_freed, one.keep_labels) for one in budgets)
    assert [one for one in kept if one[0]] == [(True, False, False), (True, True, False), (True, True, True)]


def test_make_budget__freed_blocks_are_bounded():
    shape = Shape(100_000, row_bytes=3000, n_slots=93_000, read_rows=65536, align_rows=1 << 18)
    assert make_budget(shape, [10], allowed=1 << 50, threads=2).terms["kept free"] == 2 * FREED_BYTES
