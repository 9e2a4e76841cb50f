"""Nights of drifting clusters and churning customers: names stay, news come on the right day, calm nights alert nobody.

``python -m tests.benchmarks.nightly`` is the same with thirty nights and more customers.
"""

import pytest

from tests.benchmarks.nightly import World, nights, summary


def test_nights__with_drift_names_stay_and_news_come_on_their_day(tmp_path):
    world = World(60, drift=0.1)
    found = nights(tmp_path, world, 10, {3: ("split", 1), 5: ("birth",), 8: ("end", 2)}, members=8)
    told = summary(found, world)
    assert told["samples whose class stays"] > 1500
    assert told["names kept"] >= 0.99
    assert told["classes that changed their name"] == 0
    names = found[-1]["names"] | found[0]["names"]
    assert told["told"] == {
        3: [("split", names[4], names[1])],
        5: [("new", names[5], None)],
        8: [("gone", names[2], None)],
    }


def test_nights__without_drift_alert_nobody(tmp_path):
    world = World(60, drift=0.0, seed=1)
    found = nights(tmp_path, world, 10, members=8)
    told = summary(found, world)
    assert told["names kept"] >= 0.99
    assert (told["told"], told["days with alerts"]) == ({}, [])


@pytest.mark.parametrize("churn", [0.9, 1.0])
def test_nights__on_which_nearly_all_customers_are_others(tmp_path, churn):
    world = World(60, drift=0.05, churn=churn, seed=2)
    told = summary(nights(tmp_path, world, 2, members=8), world)
    assert (told["classes that changed their name"], told["told"]) == (0, {})
