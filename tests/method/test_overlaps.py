"""How clusters of different members lie to one another."""

import numpy as np
import pytest

from cehm_dask.method.overlaps import Overlaps, overlaps
from tests.method.test_choice import hyperedges_in


def test_overlaps__containment_from_nested_to_crossed():
    nested = np.array([[0, 0, 5], [0, 1, 5], [1, 2, 6], [1, 3, 6]])
    assert overlaps(hyperedges_in(nested)).containment == 1.0
    crossed = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert overlaps(hyperedges_in(crossed)).containment == 0.5
    assert overlaps(hyperedges_in(nested[:, :1])) == Overlaps(0.0, 0.0, 0.0)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_overlaps__members_that_are_all_the_same(missing):
    rng = np.random.default_rng(0)
    members = np.repeat(np.repeat(np.arange(4), 250)[:, None], 6, axis=1)
    members[rng.random(members.shape) < missing] = -1
    found = overlaps(hyperedges_in(members))
    assert found.same == 1.0
    assert found.apart == pytest.approx(0.75, abs=0.01)


def test_overlaps__same_counts_clusters_that_two_members_find():
    one = np.repeat(np.arange(4), 250)
    other = one.copy()
    other[:10] = 1  # 4 % fewer, 4 % more; the other two are the same
    assert overlaps(hyperedges_in(np.stack([one, other], axis=1))).same == 0.5
    merged = np.minimum(one, 2)  # the third is no longer found: half of it is another one
    assert overlaps(hyperedges_in(np.stack([one, merged], axis=1))).same == 1.0
    assert overlaps(hyperedges_in(np.stack([one // 2, one % 2], axis=1))).same == 0.0


def test_overlaps__wrong_labels_at_random_leave_nothing_apart():
    rng = np.random.default_rng(1)
    truth = np.repeat(np.arange(4), 250)
    members = [np.where(rng.random(1000) < 0.8, truth, rng.integers(0, 4, 1000)) for _ in range(5)]
    found = overlaps(hyperedges_in(np.stack(members, axis=1)))
    assert (found.same, found.apart) == (0.0, 0.0)
