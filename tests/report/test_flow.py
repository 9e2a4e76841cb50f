"""The picture of who went where: every sample has its place, however many clusters there are."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cehm_dask.report.flow import BAR, HEIGHT, MOST_NAMES, sankey, since
from cehm_dask.results.matching import first, match_shared
from tests.results.test_matching import shared_of


def bands(svg):
    """Ends of the bands: upper and lower edge on the left and on the right."""
    number = r"(-?[0-9.]+)"
    path = rf'd="M{number} {number}C[^C]*? {number} {number}L{number} {number}C[^Z]*? {number} {number}Z" class="flow'
    return [tuple(map(float, (m[1], m[7], m[3], m[5]))) for m in re.findall(path, svg)]


@given(st.lists(st.tuples(st.integers(-1, 40), st.integers(-1, 40), st.integers(1, 1000)), min_size=1, max_size=200))
def test_sankey__bands_fill_their_bars_and_do_not_overlap(lines):
    flow = [(one, other, n) for (one, other), n in {(one, other): n for one, other, n in lines}.items()]
    svg = str(sankey(flow, {"1": "c0"}))
    bars = [
        (float(x), float(y), float(y) + float(height))
        for x, y, height in re.findall(rf'<rect x="([0-9.]+)" y="([0-9.]+)" width="{BAR:g}" height="([0-9.]+)"', svg)
    ]
    sides = sorted({x for x, _, _ in bars})
    assert len(sides) == 2
    for side, at in zip(sides, (0, 2), strict=True):
        own = sorted((y, end) for x, y, end in bars if x == side)
        assert len(own) <= MOST_NAMES
        assert own[-1][1] <= HEIGHT + 1
        ends = sorted((band[at], band[at + 1]) for band in bands(svg))
        for (_, before), (start, _) in itertools.pairwise(ends):
            assert start >= before - 0.05
    assert len(bands(svg)) == svg.count('class="flow')
    titles = [int(n.replace(",", "")) for n in re.findall(r"→ [^:<]+: ([0-9,]+) sample", svg)]
    assert sum(titles) == sum(n for _, _, n in flow)


def matching(found, **more):
    return {
        **found.to_dict(),
        "follows": "/runs/<i>2026",
        "agreement": {"before": 0.5, "now": 0.6},
        "alerts": [],
        **more,
    }


def test_since__says_what_became_of_the_clusters():
    drawn = {}
    found = match_shared(shared_of([[60, 40], [0, 100]], entered=[0, 10]), [0, 7], 8)
    told = since(matching(found, alerts=["it moved"]), ["c0", "c1"], drawn)
    assert "200 samples are in both, and 40 of them (20 %) are in a cluster of another name now" in told["words"]
    assert "2 clusters kept the name" in told["words"]
    assert told["alerts"] == ["It moved."]
    assert told["rows"] == [{"before": "0", "now": "7", "style": "c1", "count": 40}]
    assert "0 samples of the earlier run are not here any more, 10 are new" in told["caption"]
    assert "0 → 7: 40 samples" in drawn["flow"]


@pytest.mark.parametrize("content", [None, {}, matching(first(np.array([3, 4])), follows=None)])
def test_since__nothing_where_no_run_is_followed(content):
    assert since(content, ["c0", "c1"], {}) is None
