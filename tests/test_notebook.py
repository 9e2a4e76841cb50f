"""What estimators show: progress where it is asked for, and a table of their clusters."""

import io
import re
import sys
import threading
import types

import numpy as np
import pandas as pd
import pytest
import sklearn
from rich.console import Console
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from cehm_dask import CEHM, ClusterEnsemble, notebook
from cehm_dask.bars import Rounds
from cehm_dask.progress import NO_PROGRESS, Progress

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

HOSTILE = "<script>alert(1)</script>"
POINTS = np.random.default_rng(0).normal(size=(300, 3)) + 6 * np.repeat(np.eye(3), [150, 100, 50], axis=0)


def rows_of(html):
    """Cells of the table below scikit-learn's diagram."""
    table = html[html.rindex("<table") :]
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]


@pytest.fixture(scope="module")
def model():
    frame = pd.DataFrame(POINTS, columns=["a", HOSTILE, "c"])
    return ClusterEnsemble(3, members=5, random_state=0).fit(frame)


def test_table__clusters_with_size_confidence_and_most_telling_feature(model):
    html = model._repr_html_()
    assert "sk-top-container" in html  # scikit-learn's own
    head, *rows = rows_of(html)
    assert head == ["cluster", "samples", "share", "confidence", "most telling"]
    assert [int(row[1]) for row in rows] == [150, 100, 50]
    frame = model.profile_
    for cluster, size, _, confidence, telling in rows:
        own = model.labels_ == int(cluster)
        assert own.sum() == int(size)
        assert confidence == f"{model.confidence_[own].mean():.2f}"
        best = frame[(frame.cluster == int(cluster)) & (frame["rank"] == 0)].iloc[0]
        wanted = best.feature.replace("<", "&lt;").replace(">", "&gt;")
        assert telling.startswith(f"{wanted} (")
    assert HOSTILE not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt; (+" in html


def test_table__is_in_the_bundle_of_notebooks_unless_text_is_asked_for(model):
    assert rows_of(model._repr_mimebundle_()["text/html"])[0][0] == "cluster"
    with sklearn.config_context(display="text"):
        assert list(model._repr_mimebundle_()) == ["text/plain"]
        assert not hasattr(model, "_repr_html_")


def test_table__of_the_consensus_has_no_features_and_before_a_fit_there_is_none(model):
    assert rows_of(model.consensus_._repr_html_())[0] == ["cluster", "samples", "share", "confidence"]
    for own in (clone(model), CEHM(3), make_pipeline(StandardScaler(), CEHM(3))):
        assert ">samples<" not in own._repr_html_()


def test_table__of_a_loaded_model_is_scikit_learns(model, tmp_path):
    model.save(tmp_path / "model.zarr")
    assert ">samples<" not in ClusterEnsemble.load(tmp_path / "model.zarr")._repr_html_()


def test_table__reads_no_rows_that_are_stored_or_lazy(tmp_path):
    import dask.array as da

    stored = CEHM(3, random_state=0).fit(np.tile(np.arange(3), 20)[:, None] * [1, 1], output=str(tmp_path / "c.zarr"))
    lazy = ClusterEnsemble(3, members=4, random_state=0).fit(da.from_array(POINTS, chunks=(100, 3)))
    for own in (stored, lazy):
        assert rows_of(own._repr_html_())[0] == ["cluster", "samples", "share"]


def test_table__many_features_are_not_described_by_themselves(monkeypatch):
    monkeypatch.setattr(notebook, "MOST_VALUES", 10)
    own = ClusterEnsemble(3, members=4, random_state=0).fit(POINTS)
    assert rows_of(own._repr_html_())[0] == ["cluster", "samples", "share", "confidence"]
    assert own.profile_ is not None
    assert rows_of(own._repr_html_())[0][-1] == "most telling"


def test_table__many_clusters_are_cut():
    labels = np.arange(60)[:, None].repeat(2, axis=1) % 30
    html = CEHM(30, random_state=0).fit(labels)._repr_html_()
    assert len(rows_of(html)) == 1 + notebook.MOST_ROWS
    assert "and 10 smaller clusters" in html


# --- progress=True -----------------------------------------------------------------------------------------------


class Handle:
    def __init__(self):
        self.texts = []

    def update(self, html):
        self.texts.append(html.data)


@pytest.fixture
def kernel(monkeypatch):
    """A notebook, as far as IPython tells: what it shows."""
    handle = Handle()
    package, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")

    class HTML:
        def __init__(self, data):
            self.data = data

    def show(html, *, display_id):
        assert display_id is True
        handle.update(html)
        return handle

    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    display.HTML, display.display = HTML, show
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "EVERY_SECONDS", 0.0)
    return handle


def test_progress__in_a_notebook_members_and_rounds_are_shown_in_one_place(kernel):
    plain = ClusterEnsemble(3, members=4, variant="released", random_state=0).fit(POINTS)
    own = ClusterEnsemble(3, members=4, variant="released", random_state=0).fit(POINTS, progress=True)
    np.testing.assert_array_equal(own.labels_, plain.labels_)
    text = "\n".join(kernel.texts)
    assert "fitted 4 of 4" in text
    assert "intersections 300 of 300" in text
    assert "start, round 1" in text
    assert "<progress" not in kernel.texts[-1]
    assert sum("<progress" not in one for one in kernel.texts) == 1  # the end, once


def test_progress__a_notebook_gets_a_few_changes_a_second_from_any_thread(kernel, monkeypatch):
    monkeypatch.setattr(notebook, "EVERY_SECONDS", 60.0)
    with notebook.shown(True) as own:
        threads = [threading.Thread(target=own.advanced, args=(HOSTILE, i, 9)) for i in range(9)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(kernel.texts) <= 3
    assert HOSTILE not in "".join(kernel.texts)


def test_progress__elsewhere_on_the_terminal(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", None)
    heard = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=heard, width=200))
    CEHM(3, variant="released", random_state=0).fit(np.tile(np.arange(3), 20)[:, None] * [1, 1], progress=True)
    assert "round 1" in heard.getvalue()


def test_progress__bars_name_what_they_count():
    heard = io.StringIO()
    console = Console(file=heard, width=120, force_terminal=True)
    with Rounds(console) as own:
        own.advanced("fitted", 1, 4)
        own._bar.refresh()
    assert "members/s" in heard.getvalue()


def test_progress__what_is_no_progress_is_refused_before_any_work():
    with pytest.raises(TypeError, match="progress='yes': expected True, False"):
        CEHM(3).fit(np.zeros((9, 2), int), progress="yes")
    for given in (None, False, NO_PROGRESS):
        with notebook.shown(given) as own:
            assert own is NO_PROGRESS
    heard = Progress()
    with notebook.shown(heard) as own:
        assert own is heard
