"""Progress: one protocol from the first row read to the last round."""

import threading

import numpy as np
import pytest

from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.progress import NO_PROGRESS, Count, Progress, as_progress
from tests.listening import Advances

POINTS = np.random.default_rng(0).normal(size=(300, 3)) + 6 * np.repeat(np.eye(3), 100, axis=0)


class Heard(Progress):
    def __init__(self):
        self.advances, self.rounds = [], []

    def advanced(self, what, done, total):
        self.advances.append((what, done, total))

    def round_done(self, event):
        self.rounds.append(event)


@pytest.fixture(scope="module")
def base_labels():
    rng = np.random.default_rng(0)
    classes = np.repeat(np.arange(3), [70, 70, 60])
    return np.where(rng.random((200, 5)) < 0.8, classes[:, None], rng.integers(0, 3, (200, 5)))


def test_fit__a_progress_gets_rows_and_the_rounds_that_a_function_gets(base_labels):
    heard, events = Heard(), []
    CEHM(3, variant="released", random_state=0).fit(base_labels, progress=heard)
    CEHM(3, variant="released", random_state=0).fit(base_labels, progress=events.append)
    assert heard.rounds == events != []
    assert {"intersections", "start", "diffusion"} <= {what for what, _, _ in heard.advances}
    assert all(0 < done <= total == 200 for _, done, total in heard.advances)


def test_cluster_ensemble__members_too():
    heard = Heard()
    ClusterEnsemble(3, members=4, random_state=0).fit(POINTS, progress=heard)
    assert [one for one in heard.advances if one[0] == "fitted"] == [("fitted", i, 4) for i in (1, 2, 3, 4)]
    assert heard.rounds


def test_nothing_given__is_ignored():
    assert as_progress(None) is NO_PROGRESS
    assert as_progress(NO_PROGRESS) is NO_PROGRESS


def test_count__threads_share_it_and_it_never_exceeds_the_total():
    seen = []
    count = Count(Advances(lambda what, done, total: seen.append((what, done, total))), "rows", 100)
    threads = [threading.Thread(target=lambda: [count.add(1) for _ in range(30)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [("rows", min(i, 100), 100) for i in range(1, 121)]
