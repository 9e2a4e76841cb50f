"""The report: one page, right numbers, escaped text, small at any size, and alive in a browser."""

import re

import numpy as np
import pytest
from click.testing import CliRunner

from cehm_dask import CEHM, cli
from cehm_dask.report import write_report
from cehm_dask.store import open_consensus
from cehm_dask.synth import Synth

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an ensemble of five groups, and its consensus."""
    folder = tmp_path_factory.mktemp("report")
    Synth(400, 8, n_classes=5, k_min=6, k_max=12).write(str(folder / "ensemble.zarr"))
    CEHM(5, random_state=0).fit(str(folder / "ensemble.zarr"), output=str(folder / "consensus.zarr"))
    return folder


@pytest.fixture(scope="module")
def page(made):
    path = write_report(made / "consensus.zarr", made / "page.html", ensemble=made / "ensemble.zarr")
    return path.read_text()


def test_page__asks_the_network_for_nothing(page):
    assert "default-src 'none'" in page
    assert not re.search(r"""(?:src|href|action)\s*=\s*["'](?!#)""", page)
    assert not re.search(r"url\(|@import", page)


def test_page__has_every_figure(page):
    for name in (
        "picture",
        "sizes",
        "ridges",
        "confidence",
        "doubtful",
        "growth",
        "loss",
        "agreement",
        "map",
        "seconds",
    ):
        assert f'id="fig-{name}"' in page, name


def test_page__says_the_sizes_of_the_clusters(page, made):
    sizes = open_consensus(str(made / "consensus.zarr")).array("sizes")[:]
    for cluster, size in enumerate(sizes):
        assert f"cluster {cluster}: {size:,} samples, {size / 400:.2%}" in page


def test_least_certain__are_the_smallest_margins_lowest_row_first(page, made):
    margin = open_consensus(str(made / "consensus.zarr")).array("margin")[:]
    wanted = np.lexsort((np.arange(len(margin)), margin))[:50].tolist()
    table = page[page.index('id="fig-doubtful"') : page.index("</table>", page.index('id="fig-doubtful"'))]
    assert [int(row) for row in re.findall(r'<tr><td data-value="(\d+)"', table)] == wanted


def test_file__is_not_replaced_unless_asked(made, page):
    with pytest.raises(FileExistsError, match="--overwrite"):
        write_report(made / "consensus.zarr", made / "page.html")
    write_report(made / "consensus.zarr", made / "page.html", overwrite=True)


def test_command__writes_a_page(made, tmp_path):
    path = tmp_path / "page.html"
    result = CliRunner().invoke(cli.main, ["report", str(made / "consensus.zarr"), "-o", str(path), "--title", "A <b>"])
    assert result.exit_code == 0, result.output
    assert "<h1>A &lt;b&gt;</h1>" in path.read_text()


def test_moves__are_recorded_round_by_round(made, tmp_path):
    events = []
    url = str(tmp_path / "consensus.zarr")
    CEHM(5, random_state=0).fit(str(made / "ensemble.zarr"), output=url, progress=events.append)
    assert open_consensus(url).facts["moves"] == [event.moved for event in events]
