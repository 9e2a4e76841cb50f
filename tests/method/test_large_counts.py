"""Numbers of 10⁹ samples and more, made up: sums that do not wrap, losses that keep their digits."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from cehm_dask.data.shape import Shape
from cehm_dask.engine.budget import make_budget
from cehm_dask.method import counting, intersections
from cehm_dask.method.belonging import BELONGINGS, loss_of
from cehm_dask.method.consensus import _best
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.method.params import Params
from cehm_dask.method.problem import Problem
from cehm_dask.method.result import SHARE_UNIT, margin_units
from tests.method.test_consensus import an_engine

MEMBERS = 30


def made_up(n, k=4, apart=0):
    """Thirty members of k clusters each, which agree but for some samples: hyperedges, and counts of a partition.

    ``apart`` samples more are elsewhere in the partition.
    """
    sizes = np.full(k, n // k, np.int64)
    sizes[0] += n - sizes.sum()
    mixed = np.diag(sizes)
    for e in range(k):
        moved = sizes[e] // 7 + (apart if e == 0 else 0)
        mixed[e, e] -= moved
        mixed[e, (e + 1) % k] += moved
    members = np.repeat(np.arange(MEMBERS), k)
    table = np.tile(np.diag(sizes), (MEMBERS, MEMBERS))
    hyperedges = Hyperedges(np.arange(MEMBERS * k), members, table, MEMBERS * k, MEMBERS, n, 0)
    return hyperedges, np.tile(mixed, (MEMBERS, 1))


def exact_fraction(kind, counts, hyperedges):
    """1 - Σ W·C / its largest value, in fractions."""
    n, sizes = hyperedges.n_speaking, hyperedges.sizes.tolist()
    rows = counts.tolist()
    if kind == "count":
        return 1 - Fraction(sum(c * c for row in rows for c in row), MEMBERS * n * n)
    shares = sum(Fraction(c * c, size) for row, size in zip(rows, sizes, strict=True) for c in row)
    return 1 - shares / (MEMBERS * n)


@pytest.mark.parametrize("belonging", ["share", "count"])
def test_margin_units__more_than_int64_holds(belonging):
    margin = np.full(10**6, 3000.0 if belonging == "share" else 2.0**50)
    unit = SHARE_UNIT if belonging == "share" else 1
    wanted = int(margin[0]) * unit * len(margin)
    assert wanted > 2**63
    assert margin_units(margin, belonging) == wanted


def test_margin_units__of_blocks_add_up():
    margin = np.random.default_rng(0).random(200_001) * 30
    wanted = sum(round(value * SHARE_UNIT) for value in margin.tolist())
    assert margin_units(margin, "share") == wanted
    assert margin_units(margin[:70_000], "share") + margin_units(margin[70_000:], "share") == wanted


def test_intersections__no_table_of_int32_counts_more_rows_than_it_can(hard_ensemble, monkeypatch):
    with an_engine(hard_ensemble, 3, block_rows=200) as engine:
        wanted, _ = intersections.intersections(engine)
    largest, count = [], counting.intersections

    def counted(codes, offsets, table):
        count(codes, offsets, table)
        assert table.dtype == np.int32
        largest.append(int(table.max()))

    monkeypatch.setattr(counting, "intersections", counted)
    monkeypatch.setattr(intersections, "MOST_COUNTED", 450)
    with an_engine(hard_ensemble, 3, block_rows=200) as engine:
        found, _ = intersections.intersections(engine)
    assert max(largest) <= 450
    assert wanted.max() > 450  # or the limit is not put to the test
    np.testing.assert_array_equal(found, wanted)


def test_budget__no_block_is_more_than_a_table_of_int32_can_count():
    shape = Shape(n_samples=5 * 2**31, row_bytes=1, n_slots=3, read_rows=None, align_rows=1)
    budget = make_budget(shape, [2], allowed=1 << 60, block_rows=4 * 2**31)
    assert budget.block_rows == 2**31 - 1


@pytest.mark.parametrize("kind", ["share", "count"])
@pytest.mark.parametrize("n", [10**4, 10**8, 10**9, 4 * 10**9])
def test_loss__fraction_has_all_its_digits(kind, n):
    hyperedges, counts = made_up(n)
    found = loss_of(kind, counts, hyperedges)
    assert found.fraction == pytest.approx(float(exact_fraction(kind, counts, hyperedges)), rel=1e-14)


@pytest.mark.parametrize("kind", BELONGINGS)
def test_loss__single_samples_show_at_any_size(kind):
    n, fractions = 10**9, []
    for apart in (0, 1, 2):
        hyperedges, counts = made_up(n, apart=apart)
        fractions.append(loss_of(kind, counts, hyperedges).fraction)
    assert all(one < other for one, other in pairwise(fractions))  # fewer samples apart, smaller loss


def test_loss__of_counts_is_exact_beyond_float64():
    n = 3 * 10**9
    hyperedges, counts = made_up(n)
    found = loss_of("count", counts, hyperedges).value
    wanted = exact_fraction("count", counts, hyperedges) * n * n
    assert abs(Fraction(found) - wanted) <= Fraction(np.spacing(found)) / 2


@pytest.mark.parametrize("apart", [(3, 0, 5), (0, 0, 1)])
def test_choose__by_loss_tells_starts_apart_whose_losses_are_one_float(apart):
    params = Params(4, variant="released", choose="loss", restarts=3)
    problems = []
    for number, more in enumerate(apart):
        hyperedges, counts = made_up(10**9, apart=more)
        problem = Problem(number, params, hyperedges, np.arange(4))
        problem.counts = counts
        loss = loss_of("share", counts, hyperedges)
        problem.losses, problem.loss_fractions = [loss.value], [loss.fraction]
        problems.append(problem)
    assert len({problem.losses[-1] for problem in problems}) == 1  # or fractions are not needed
    assert _best(problems, params, None).problem.number == apart.index(0)
