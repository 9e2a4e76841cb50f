"""The report: one page, right numbers, escaped text, small at any size, and alive in a browser."""

import dataclasses
import itertools
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import zarr
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from cehm_dask import CEHM, ClusterEnsemble, cli, profile
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ingest import ingest
from cehm_dask.data.synth import Synth
from cehm_dask.errors import InputError
from cehm_dask.machine import Machine
from cehm_dask.method.params import PAPER
from cehm_dask.profiles.profile import Profile
from cehm_dask.report import browser, course, neighbours, picture, points, who, write_report
from cehm_dask.report.drawing import COLOURS
from cehm_dask.report.findings import look, members_of, open_finished, runners_up
from cehm_dask.report.page import compose
from cehm_dask.results.coassociation import between_clusters, co_association
from cehm_dask.results.describing import describe
from cehm_dask.results.scoring import labels_of
from tests.browsing import chromium, drive, in_browser
from tests.conftest import edit_facts, without_digests

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

HOSTILE = "<script>alert(1)</script>"
NASTY = """</script><img src=x onerror=alert(2)>"'&"""

FIGURES = [
    *("sizes", "ridges", "consensus", "confidence", "growth", "moved", "loss", "map", "agreement", "seconds"),
]


def add_array(url, name, values):
    without_digests(url)
    zarr.open_group(url, mode="r+").create_array(name, shape=values.shape, dtype=values.dtype, overwrite=True)[...] = (
        values
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with an ensemble, one member with a hostile name, one of noise and a silent row, and its consensus."""
    folder = tmp_path_factory.mktemp("report")
    labels, truth = Synth(400, 8, n_classes=5, k_min=6, k_max=12, follow=0.72, seed=3).arrays()
    labels = labels.astype(int)
    labels[:, 3] = np.random.default_rng(0).integers(0, 6, 400)
    labels[7] = -1
    ensemble, consensus = str(folder / "ensemble.zarr"), str(folder / "consensus.zarr")
    names = [f"member {j}" for j in range(8)]
    names[2] = HOSTILE
    ingest(pd.DataFrame(labels, columns=names), ensemble)
    CEHM(5, variant="released", random_state=0).fit(ensemble, output=consensus)
    CEHM(5, random_state=0).fit(ensemble, output=str(folder / "auto.zarr"))
    np.save(folder / "truth.npy", truth)
    np.save(folder / "features.npy", np.random.default_rng(1).normal(size=(400, 3)) + truth[:, None])
    return folder


@pytest.fixture(scope="module")
def full(made):
    """All there can be in a page, with text that wants out of it."""
    return compose(
        made / "consensus.zarr",
        ensemble=made / "ensemble.zarr",
        features=made / "features.npy",
        truth=made / "truth.npy",
        row_ids=[f"{NASTY}{row}" for row in range(400)],
        title=NASTY,
    )


@pytest.fixture(scope="module")
def page(full):
    return full.html


def table_of(page, name):
    """The cells of the table in a part of the page, as text."""
    part = page[page.index(f'id="{name}"') :]
    rows = re.findall(r"<tr>(.*?)</tr>", part[: part.index("</table>")], re.DOTALL)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


def test_page__asks_the_network_for_nothing(page):
    assert "default-src 'none'" in page
    assert not re.search(r"""<[^>]*\s(?:src|href|action)\s*=\s*["'](?!#)""", page)
    assert not re.search(r"url\(|@import", page)


def test_page__has_every_figure(page, full):
    for name in FIGURES:
        assert f'id="fig-{name}"' in page, name
    for name in ("picture", "neighbours", "profiles"):
        assert f'id="fig-{name}"' in page, name
    assert {*FIGURES, "picture", "neighbours", "profiles"} == set(full.figures)


def test_page__clusters_first_then_the_evidence_then_members_then_mechanics_folded(page):
    found = re.findall(r'<section id="(\w+)"', page)
    assert found == ["profiles", "picture", "clusters", "doubtful", "truth", "members", "run"]
    folded = page[page.index('<details class="fold"') :]
    assert all(f'id="fig-{name}"' in folded for name in ("growth", "moved", "loss", "seconds"))
    assert "Settings" in folded
    assert "<details open" not in page


def test_text_of_users__is_escaped_wherever_it_stands(page):
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 1  # in the table of members, in a figure
    assert page.count("&lt;/script&gt;&lt;img src=x") > 400  # the title, and the samples of a figure and a table
    assert len(re.findall(r"<script\b", page)) == 2  # the data and the page's own
    assert page.count("</script") == 2
    assert "<img" not in page


def test_features__hostile_names_are_escaped(made):
    frame = pd.DataFrame(np.load(made / "features.npy"), columns=[HOSTILE, NASTY, "x"])
    frame["kind"] = np.where(frame["x"] > frame["x"].median(), HOSTILE, NASTY)
    found = describe(made / "consensus.zarr", frame)
    html = compose(made / "consensus.zarr", profile=found).html
    assert html.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 5
    assert len(re.findall(r"<script\b", html)) == 2
    assert html.count("</script") == 2
    assert "<img" not in html


def test_profiles__stand_first_and_are_those_of_the_features(page, made):
    found = describe(made / "consensus.zarr", made / "features.npy")
    assert page.index("<h2>The clusters</h2>") < page.index("<h2>The samples</h2>")
    for own in found.clusters:
        assert own["sentence"] in page
        assert f"Nearest: cluster {own['nearest']['cluster']}" in page
    bare = compose(made / "consensus.zarr").html
    assert "no features to describe the clusters by" in bare


def test_clusters__have_their_sizes(page, made):
    sizes = open_consensus(str(made / "consensus.zarr")).array("sizes")[:]
    for cluster, size in enumerate(sizes):
        assert f"cluster {cluster}: {size:,} samples, {size / 399:.2%}" in page


def test_least_certain__are_the_smallest_margins_lowest_row_first(page, made):
    stored = open_consensus(str(made / "consensus.zarr"))
    labels, margin = stored.array("labels")[:], stored.array("margin")[:]
    margin[labels < 0] = np.inf
    wanted = np.lexsort((np.arange(len(margin)), margin))[:50].tolist()
    rows = table_of(page, "fig-doubtful")
    assert rows[0] == ["row", "id", "margin", "cluster", "runner-up"]
    assert [int(row[0]) for row in rows[1:]] == wanted
    assert [int(row[3]) for row in rows[1:]] == labels[wanted].tolist()


@pytest.mark.parametrize("chunk", [7, 64, 400])
def test_least_certain__are_the_same_whatever_the_chunks(made, tmp_path, monkeypatch, chunk):
    labels, whole = open_consensus(str(made / "consensus.zarr")), None
    for step in (chunk, 1 << 20):
        monkeypatch.setattr("cehm_dask.report.findings.SWEEP_ROWS", step)
        url = str(tmp_path / f"{step}.zarr")
        shutil.copytree(made / "consensus.zarr", url)
        for name in ("labels", "margin"):
            # Many ties, so that their order is told by rows alone.
            values = np.round(labels.array(name)[:], 1)
            without_digests(url)
            group = zarr.open_group(url, mode="r+")
            group.create_array(name, shape=(400,), dtype=values.dtype, chunks=(chunk,), overwrite=True)[:] = values
        seen = look(open_consensus(url), np.arange(0, 400, 3))
        if whole is not None:
            for one, other in zip(vars(seen).values(), vars(whole).values(), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12)
        whole = seen


@pytest.mark.parametrize("variant", ["released", "printed", "cosine"])
def test_runner_up__is_as_far_behind_as_the_margin_says(made, tmp_path, variant):
    url = str(tmp_path / "consensus.zarr")
    ensemble = str(made / "ensemble.zarr")
    model = CEHM(5, random_state=0, variant=variant).fit(ensemble, output=url)
    stored, rows = open_consensus(url), np.array([0, 5, 200, 399])
    labels = labels_of(ensemble, stored)
    second = runners_up(stored, labels, rows, model.labels_[:][rows])
    codes = labels.source.read(0, 400)[rows].astype(int) - 1
    starts = np.cumsum([0, *(len(known) for known in model._model.values)])[:-1]
    belonging = np.array([model.weights_[starts + row].sum(axis=0) for row in codes])
    belonging[np.arange(4), model.labels_[:][rows]] = -1
    assert second.tolist() == belonging.argmax(axis=1).tolist()


@pytest.mark.parametrize("variant", ["released", "printed", "cosine"])
def test_margins__lie_between_0_and_1_whatever_the_variant(made, tmp_path, variant):
    url = str(tmp_path / "consensus.zarr")
    model = CEHM(5, random_state=0, variant=variant).fit(str(made / "ensemble.zarr"), output=url)
    labels, margin = model.labels_[:], model.margin_[:]
    if variant == "printed":
        assert margin.max() > 2
        margin = margin / margin.max()
    seen = look(open_consensus(url), np.arange(400))
    np.testing.assert_allclose(seen.margin, margin, rtol=1e-6)
    spoken = labels >= 0
    assert seen.mean_margin == pytest.approx(margin[spoken].mean())
    for cluster in range(5):
        own = margin[spoken & (labels == cluster)]
        assert seen.cluster_margin[cluster] == pytest.approx(own.mean())
        near = np.histogram(own, 50, (0, 1))[0]
        assert np.abs(near - seen.histogram[cluster]).sum() <= 4  # a margin on an edge may fall to either side
    compose(url)


def test_moves__are_recorded_round_by_round(made, tmp_path):
    events = []
    url = str(tmp_path / "consensus.zarr")
    CEHM(5, random_state=0).fit(str(made / "ensemble.zarr"), output=url, progress=events.append)
    assert open_consensus(url).facts["moves"] == [event.moved for event in events]


def test_consensus_by_cluster__is_the_mean_over_all_pairs(made):
    """Against the matrix of every two samples; one of them has no label, and one member has gaps."""
    labels = open_ensemble_labels(made)
    labels[::7, 5] = -1
    own = CEHM(5, random_state=0).fit(labels)
    found = between_clusters(own.counts_, np.repeat(np.arange(8), [len(known) for known in own._model.values]))
    pairs = co_association(labels)
    for a, b in itertools.product(range(5), repeat=2):
        block = np.ix_(own.labels_ == a, own.labels_ == b)
        apart = ~np.eye(400, dtype=bool)[block]
        wanted = pairs.together[block][apart].sum() / pairs.both[block][apart].sum()
        assert found[a, b] == pytest.approx(wanted, rel=1e-12)


def test_consensus_by_cluster__a_cluster_of_one_sample_has_no_pair():
    found = between_clusters(np.array([[1, 0], [0, 3]]), np.array([0, 0]))
    assert np.isnan(found[0, 0])
    assert found[1, 1] == 1.0
    assert found[0, 1] == 0.0


def test_profiles__the_map_has_the_effects_of_the_profile(made):
    found = describe(made / "consensus.zarr", made / "features.npy")
    telling = who.telling_map(found)
    assert sorted(telling.names) == ["column 0", "column 1", "column 2"]
    by_cluster = {str(own["cluster"]): own["effect"] for own in found.clusters}
    largest = max(found.clusters, key=lambda own: own["size"])["cluster"]
    assert [len(by_cluster), telling.clusters[0]] == [5, str(largest)]
    for name, row in zip(telling.names, telling.effects, strict=True):
        assert row.tolist() == [by_cluster[cluster][int(name.split()[1])] for cluster in telling.clusters]


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 60), st.integers(2, 12), st.integers(0, 2**32 - 1))
def test_profiles__every_cluster_has_a_feature_of_its_own_in_the_map(n_features, n_clusters, seed):
    rng = np.random.default_rng(seed)
    effects = rng.normal(size=(n_clusters, n_features)).round(1)
    clusters = [{"cluster": c, "size": 9, "effect": row.tolist()} for c, row in enumerate(effects)]
    names = tuple(f"f{j}" for j in range(n_features))
    telling = who.telling_map(Profile(names, clusters, [], []))
    assert len(set(telling.names)) == len(telling.names) <= who.MOST_FEATURES
    for row in effects:
        assert names[int(np.abs(row).argmax())] in telling.names


def test_profiles__no_map_without_numbers(made):
    assert who.telling_map(describe(made / "consensus.zarr", None)) is None


def test_neighbours__same_bits_whatever_the_threads_and_near_stays_near():
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2], 40)
    points = rng.normal(size=(120, 6)) + 12 * np.eye(6)[group]
    found, again = neighbours.embed(points), neighbours.embed(np.asfortranarray(points))
    with threadpool_limits(2):
        third = neighbours.embed(points)
    np.testing.assert_array_equal(found.coordinates, again.coordinates)
    np.testing.assert_array_equal(found.coordinates, third.coordinates)
    apart = np.linalg.norm(found.coordinates[:, None] - found.coordinates[None], axis=2) + 1e9 * np.eye(120)
    assert (group[apart.argmin(axis=1)] == group).mean() > 0.95


def test_neighbours__many_are_thinned_and_few_have_none(monkeypatch):
    monkeypatch.setattr(neighbours, "ROUNDS", 250)
    monkeypatch.setattr(neighbours, "MOST_EMBEDDED", 50)
    found = neighbours.embed(np.random.default_rng(0).normal(size=(333, 3)))
    assert len(found.places) == len(found.coordinates) == 50
    assert neighbours.embed(np.zeros((20, 3))) is None
    assert neighbours.embed(np.zeros((99, 1))) is None
    same = neighbours.embed(np.zeros((99, 2)))  # all samples alike
    assert np.isfinite(same.coordinates).all()


def test_picture__of_base_labels_has_the_same_bits_whatever_the_threads():
    labels, _ = Synth(300, 12, n_classes=4, k_min=4, k_max=9, seed=2).arrays()
    codes, widths = labels.astype(np.int64) + 1, (labels.max(axis=0) + 2).tolist()
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            plane, along = picture.code_plane(codes, widths, 50, silent=True)
        found.append(along)
        np.testing.assert_array_equal(plane.coordinates, along[:, :2])
    np.testing.assert_array_equal(*found)
    assert found[0].shape == (300, 50)


def test_picture__the_number_of_a_cluster_sits_on_one_of_its_points():
    angle = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    ring = np.column_stack([np.cos(angle), np.sin(angle)])  # its median lies in the middle, where none of it is
    coordinates = np.concatenate([ring, 0.1 * ring])
    labels = np.repeat([0, 1], 60)
    placed = points.Points(*points.place_points(coordinates), [""] * 120)
    svg = points.picture(placed, labels, np.ones(120), ["c0", "c1"], ["0", "1"])
    for text, cluster in re.findall(r'<text (x="[-0-9.]+" y="[-0-9.]+") class="number"[^>]*>(\d)<', svg):
        x, y = (float(value) for value in re.findall(r'"([-0-9.]+)"', text))
        own = np.hypot(placed.x[labels == int(cluster)] - x, placed.y[labels == int(cluster)] - (y - 4))
        assert own.min() < 0.2
    assert svg.count('class="number"') == 2


def test_numbers__are_in_words_people_read(made, tmp_path):
    url = str(tmp_path / "large.zarr")
    shutil.copytree(made / "consensus.zarr", url)
    edit_facts(url, losses=[4.5e10, 3.99998e10], loss_fractions=[0.5, 0.0100001])
    html = compose(url).html
    assert "The last loss is 40 billion, 1 % of the largest that is possible." in html
    assert not re.search(r"\de[+-]\d", re.sub(r"<(style|script).*?</\1>", "", html, flags=re.DOTALL))


def test_members__an_outlying_one_is_marked_and_an_ordinary_one_is_not(page, made):
    members = members_of(open_consensus(str(made / "consensus.zarr")))
    assert np.flatnonzero(members.outlying).tolist() == [3]
    assert "Least like the others: member 3." in page
    assert page.count('<span class="flag">outlying</span>') == 1


def test_members__an_outlying_one_is_no_alarm(page):
    notes = re.search(r'<ul class="notes">.*?</ul>', page, re.DOTALL)
    assert "member 3" not in notes[0]
    marks = re.findall(r'class="(\w+)"><title>outlying member', page)
    assert set(marks) == {"accent"}
    flag = re.search(r"\.flag \{.*?\}", page)[0]
    assert "warn" not in flag
    assert "agrees with the members less" not in page


@pytest.fixture(scope="module")
def of_candidates(made):
    return compose(made / "auto.zarr", ensemble=made / "ensemble.zarr", features=made / "features.npy").html


def test_candidates__one_line_each_the_best_first_the_kept_one_marked(of_candidates, made):
    facts = open_consensus(str(made / "auto.zarr")).facts
    wanted = sorted(facts["candidates"], key=lambda own: -own["score"])
    part = of_candidates[of_candidates.index('id="fig-candidates"') :]
    rows = re.findall(r"<tr( class=\"taken\")?><td(.*?)</tr>", part[: part.index("</table>")], re.DOTALL)
    assert len(rows) == len(wanted) > 1
    for (taken, row), own in zip(rows, wanted, strict=True):
        cells = [re.sub("<[^>]*>", "", cell) for cell in re.findall(r">(.*?)</td>", row)]
        assert course.plain_start(own["start"]) in cells[0]
        assert course.BELONGINGS[own["belonging"]] in cells[0]
        assert cells[1:6] == [f"{own[key]:.3f}" for key in ("tau", "evenness", "score", "agreement", "explained")]
        assert cells[6:] == [*map(str, (min(own["sizes"]), max(own["sizes"]), own["repaired"])), "kept" * own["kept"]]
        assert bool(taken) == own["kept"]
    words = of_candidates[of_candidates.index('id="candidates"') :]
    assert f"Of {len(wanted)} candidates, the one with the largest 2τ + evenness was kept" in words


def test_candidates__a_sample_of_rows_is_told(made, tmp_path):
    url = str(tmp_path / "auto.zarr")
    shutil.copytree(made / "auto.zarr", url)
    candidates = [{**own, "sizes": [10, 20, 30, 40, 50]} for own in open_consensus(url).facts["candidates"]]
    edit_facts(url, candidates=candidates)
    assert "They competed on 150 samples drawn at random; the one kept then ran over all 399." in compose(url).html


def test_candidates__a_tie_is_told(made, tmp_path):
    url = str(tmp_path / "auto.zarr")
    shutil.copytree(made / "auto.zarr", url)
    edit_facts(url, candidates=[{**own, "score": 1.25} for own in open_consensus(url).facts["candidates"]])
    words = compose(url).html
    assert "was kept: 1.2500 (start: " in words
    assert "the next is equal to four digits." in words


def test_candidates__none_with_a_named_variant(page):
    assert 'id="candidates"' not in page
    assert "How it grew" in page
    assert "grew from" in page


def test_candidates__the_page_does_not_talk_of_growth(of_candidates, made):
    facts = open_consensus(str(made / "auto.zarr")).facts
    assert len(facts["growth"]) == 1
    for name in ("fig-growth", "diffusion", "grew from", "How it grew", "The medoids alone"):
        assert name not in re.sub(r"<(style|script).*?</\1>", "", of_candidates, flags=re.DOTALL), name
    assert "The kept candidate gave each of 399 samples a cluster at the start" in of_candidates
    assert ('<div class="slide card">' in of_candidates) == (len(facts["trail_stages"]) >= 3)
    assert ('id="fig-moved"' in of_candidates) == any(facts["moves"][1:])


@pytest.mark.parametrize("variant", ["released", "printed", "cosine", "kmeans", "tau"])
def test_rounds__told_as_they_were(made, tmp_path, variant):
    url = str(tmp_path / "consensus.zarr")
    CEHM(5, random_state=0, variant=variant).fit(str(made / "ensemble.zarr"), output=url)
    html, grown = compose(url).html, len(open_consensus(url).facts["growth"]) - 1
    said = "One round of diffusion" if grown == 1 else f"{grown} rounds of diffusion"
    assert f"{said} assigned the others" in html
    assert ("repairs an empty cluster" in html) == (variant not in PAPER and 'id="fig-loss"' in html)


def test_members__nmi_with_the_consensus_is_scikit_learns(made):
    stored = open_consensus(str(made / "consensus.zarr"))
    members, found = members_of(stored), stored.array("labels")[:]
    base = np.asarray(open_ensemble_labels(made))
    for j in range(8):
        both = (base[:, j] >= 0) & (found >= 0)
        wanted = normalized_mutual_info_score(base[both, j], found[both], average_method="geometric")
        assert members.with_consensus[j] == pytest.approx(wanted)


def open_ensemble_labels(folder):
    return zarr.open_group(str(folder / "ensemble.zarr"), mode="r")["labels"][:].astype(int) - 1


def test_iris__figures_are_right(tmp_path):
    """Sizes, scores and contingency table of the page against scikit-learn's, on labels anybody can make again."""
    features, truth = load_iris(return_X_y=True)
    members = ClusterEnsemble(3, random_state=0).fit(features).base_labels_
    url = str(tmp_path / "consensus.zarr")
    found = CEHM(3, restarts=5, random_state=0).fit(members, output=url).labels_[:]
    names = np.array(["setosa", "versicolor", "virginica"])[truth]
    page = compose(url, ensemble=members, features=features, truth=names).html
    order = np.argsort(-np.bincount(found), kind="stable")
    wanted = contingency_matrix(truth, found)[:, order]
    rows = table_of(page, "fig-contingency")
    assert rows[0] == ["class", *map(str, order)]
    shown = {row[0]: [0 if cell == "·" else int(cell) for cell in row[1:]] for row in rows[1:]}
    assert shown == dict(zip(["setosa", "versicolor", "virginica"], wanted.tolist(), strict=True))
    scores = dict(zip(*table_of(page, "fig-scores")[:2], strict=True))
    assert scores["NMI"] == f"{normalized_mutual_info_score(truth, found, average_method='geometric'):.3f}"
    assert scores["ARI"] == f"{adjusted_rand_score(truth, found):.3f}"
    for cluster, size in enumerate(np.bincount(found)):
        assert f"cluster {cluster}: {size} samples, {size / 150:.2%}" in page


def test_store_without_extras__still_has_a_page(made, tmp_path):
    """Made by an earlier program: no moves, no medoids, no choice, no trail; and nothing else is given."""
    url = str(tmp_path / "old.zarr")
    shutil.copytree(made / "consensus.zarr", url)
    without_digests(url)
    scan = [{name: open_consensus(url).facts["scan"][0][name] for name in ("n_clusters", "agreement", "loss")}]
    edit_facts(url, drop=("moves", "choice", "trail_stages"), scan=scan)
    group = zarr.open_group(url, mode="r+")
    for name in ("medoids", "trail", "trail_rows"):
        if name in group:
            del group[name]
    page = compose(url).html
    assert 'id="fig-sizes"' in page
    assert 'id="fig-picture"' not in page
    assert 'id="fig-moved"' not in page
    assert 'id="choice"' not in page


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"features": np.zeros((3, 2))}, "features have 3 rows, the consensus 400"),
        ({"coordinates": np.zeros((400, 3))}, "coordinates have 3 columns"),
        ({"ensemble": np.zeros((400, 2), int)}, "400 samples and 2 members, the consensus was made of 400 and 8"),
        ({"row_ids": ["a", "b"]}, "2 of them, the consensus has 400"),
    ],
)
def test_wrong_input__is_named(made, given, complaint):
    with pytest.raises(ValueError, match=complaint):
        compose(made / "consensus.zarr", **given)


def test_other_ensemble__is_refused(made, tmp_path):
    other = str(tmp_path / "other.zarr")
    Synth(400, 8, n_classes=5, k_min=6, k_max=12, seed=9).write(other)
    with pytest.raises(OSError, match="give the ensemble it was made of"):
        compose(made / "consensus.zarr", ensemble=other)


def test_url__is_shown_without_its_password(made):
    opened = open_finished(str(made / "consensus.zarr"))
    secret = dataclasses.replace(opened, url="s3://key:secret@bucket/consensus.zarr")
    own = course.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(course, "run", lambda _store, source: own(secret, source))
        page = compose(made / "consensus.zarr").html
    assert "s3://***@bucket/consensus.zarr" in page
    assert "key:secret" not in page


def test_profile__of_clusters_with_other_names_is_refused(made):
    store = open_finished(str(made / "consensus.zarr"))
    named = np.array([f"segment {label}" for label in store.array("labels")[...]])
    with pytest.raises(InputError, match=r"profile: it describes a cluster 'segment -?\d+'.*are called 0, 1"):
        write_report(store.url, made / "other.html", profile=profile(np.load(made / "features.npy"), named))


def test_file__is_not_replaced_unless_asked(made, tmp_path):
    path = tmp_path / "page.html"
    assert write_report(made / "consensus.zarr", path) == path
    with pytest.raises(FileExistsError, match="overwrite=True"):
        write_report(made / "consensus.zarr", path)
    write_report(made / "consensus.zarr", path, overwrite=True)
    path.write_text("<title>somebody else's</title>")
    with pytest.raises(FileExistsError, match="is no page that this program wrote"):
        write_report(made / "consensus.zarr", path, overwrite=True)
    assert "else's" in path.read_text()


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_features__axes_are_those_of_all_rows_whatever_the_blocks_and_threads(monkeypatch, missing):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(500, 6)) * [5, 4, 1, 1, 1, 1] + [1e6, 0, 0, 0, 0, 0]
    values[:, 1] += values[:, 0]
    values[rng.random(values.shape) < missing] = np.nan
    values = np.column_stack([values, np.full(500, 0.1)])  # a constant one is left out
    rows = np.arange(0, 500, 2)
    given = pd.DataFrame(values[:, :-1])
    wanted = PCA(2).fit(StandardScaler().fit_transform(given.fillna(given.mean())))
    coordinates = wanted.transform(StandardScaler().fit_transform(given.fillna(given.mean())))[rows]
    monkeypatch.setattr("cehm_dask.data.features.BLOCK_ROWS", 128)
    planes = []
    for threads in (1, 3):
        monkeypatch.setattr(
            picture, "this_machine", lambda _memory, threads=threads: Machine(None, threads, 1 << 40, 0)
        )
        planes.append(picture.plane_of(rows, 500, coordinates=None, features=values, labels=None))
    np.testing.assert_allclose(np.abs(planes[0].coordinates), np.abs(coordinates), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(planes[0].coordinates, planes[1].coordinates)
    assert "with {:.0%} and {:.0%} of".format(*wanted.explained_variance_ratio_) in planes[0].axes


def test_features__of_which_none_varies_or_one():
    rows = np.arange(5)
    with pytest.raises(InputError, match="every feature is constant"):
        picture.plane_of(rows, 5, coordinates=None, features=np.full((5, 3), 0.1), labels=None)
    one = picture.plane_of(rows, 5, coordinates=None, features=np.arange(5.0)[:, None], labels=None)
    np.testing.assert_allclose(one.coordinates[:, 0], (np.arange(5) - 2) / np.sqrt(2))


def machado(cone):
    """Colours, in linear light, as seen without one kind of cone (Machado, Oliveira and Fernandes 2009)."""
    return {
        "none": np.eye(3),
        "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
        "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
    }[cone]


@pytest.mark.parametrize("cone", ["none", "protan", "deutan", "tritan"])
def test_colours__stay_apart_for_every_kind_of_eye(cone):
    srgb = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in COLOURS]) / 255
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.transpose(machado(cone)), 0, 1)
    to_cones = [[0.4122215, 0.5363325, 0.0514460], [0.2119035, 0.6806995, 0.1073970], [0.0883025, 0.2817188, 0.6299787]]
    to_lab = [
        [0.2104543, 0.7936178, -0.0040720],
        [1.9779985, -2.4285922, 0.4505937],
        [0.0259040, 0.7827718, -0.8086758],
    ]
    lab = np.cbrt(seen @ np.transpose(to_cones)) @ np.transpose(to_lab)
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=2) + np.eye(20)
    assert apart.min() > 0.05
    assert apart[:6, :6].min() > 0.12


@pytest.fixture
def huge(made, tmp_path):
    """A store with many clusters, members, hyperedges and rounds, hand-made: nobody would wait for a real one."""
    rng = np.random.default_rng(0)
    k, members, edges = 1500, 600, 6000
    url = str(tmp_path / "huge.zarr")
    shutil.copytree(made / "consensus.zarr", url)
    n = 60_000
    counts = rng.integers(0, 3, (edges, k))
    labels = rng.integers(0, k, n).astype(np.int16)
    agreement = rng.random((members, members))
    for name, values in {
        "labels": labels,
        "margin": rng.random(n).astype(np.float32),
        "confidence": rng.random(n).astype(np.float32),
        "counts": counts,
        "sizes": np.bincount(labels, minlength=k),
        "margin_histogram": rng.integers(0, 9, (k, 50)),
        "member_agreement": (agreement + agreement.T) / 2,
        "hyperedge_member": np.sort(rng.integers(0, members, edges)),
        "medoids": rng.integers(0, edges, k),
        "trail": rng.integers(-1, k, (130, 4096)).astype(np.int16),
        "trail_rows": np.sort(rng.choice(n, 4096, replace=False)),
    }.items():
        add_array(url, name, values)
    edit_facts(
        url,
        n_samples=n,
        n_silent=0,
        n_members=members,
        members=[f"{j}{'x' * 300}" for j in range(members)],
        n_clusters=k,
        losses=rng.random(100).tolist(),
        growth=[100 * i for i in range(30)],
        moves=rng.integers(0, 99, 130).tolist(),
        rounds=130,
        trail_stages=["start", *["diffusion"] * 29, *["adjustion"] * 100],
    )
    return url, n


def test_page__stays_small(huge):
    url, n = huge
    page = compose(url, coordinates=np.random.default_rng(0).random((n, 2)), row_ids=["i" * 500] * n)
    assert len(page.html.encode()) < 5_000_000
    assert page.html.count("<circle") < 3300


def test_command__writes_a_page_with_ids_and_scores(made, tmp_path):
    path, ids = tmp_path / "page.html", tmp_path / "ids.csv"
    pd.DataFrame({"name": [f"{row:04}" for row in range(400)], "age": 1}).to_csv(ids, index=False)
    options = ["-o", path, "--title", "A <b>", "--truth", made / "truth.npy", "--ids", ids]
    command = ["report", made / "consensus.zarr", *options]
    refused = CliRunner().invoke(cli.main, [str(word) for word in command])
    assert refused.exit_code == 2
    assert "--id-column" in refused.stderr
    done = CliRunner().invoke(cli.main, [str(word) for word in [*command, "--id-column", "name"]])
    assert done.exit_code == 0, done.output
    page = path.read_text()
    assert "<h1>A &lt;b&gt;</h1>" in page
    rows = table_of(page, "fig-doubtful")[1:]
    assert all(row[1] == f"{int(row[0]):04}" for row in rows)
    assert table_of(page, "fig-scores")[1][0] == "the consensus"


def test_command__without_a_browser_says_so_before_any_work(made, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ["report", str(made / "consensus.zarr"), "-o", str(tmp_path / "page.html"), "--pdf"]
    result = CliRunner().invoke(cli.main, command)
    assert result.exit_code == 2
    assert "install Chromium" in result.stderr
    assert not (tmp_path / "page.html").exists()


@pytest.fixture(scope="module")
def devtools(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


@pytest.fixture(scope="module")
def with_trail(made, tmp_path_factory):
    """The page of a consensus whose way was recorded, and the assignments on that way."""
    url = str(tmp_path_factory.mktemp("trail") / "consensus.zarr")
    shutil.copytree(made / "consensus.zarr", url)
    steps = []
    CEHM(5, variant="released", random_state=0).fit(
        str(made / "ensemble.zarr"), record=lambda _restart, stage, _number, a: steps.append((stage, a.copy()))
    )
    rows = np.arange(0, 400, 2)
    add_array(url, "trail", np.stack([a[rows] for _, a in steps]).astype(np.int16))
    add_array(url, "trail_rows", rows)
    scan = [
        {"n_clusters": k, "n_clusters_found": k, "agreement": 0.5, "loss": 1.0, "margin": 0.4, "stability": None}
        for k in (4, 5, 6)
    ]
    reason = f"five it is {HOSTILE}"
    edit_facts(
        url,
        trail_stages=[stage for stage, _ in steps],
        scan=scan,
        choice={"n_clusters": 5, "clear": False, "reason": reason},
    )
    options = {"ensemble": made / "ensemble.zarr", "truth": made / "truth.npy"}
    path = write_report(url, tmp_path_factory.mktemp("page") / "page.html", title=NASTY, **options)
    return path, [a[rows] for _, a in steps]


UNFOLD = "document.querySelectorAll('details').forEach((own) => { own.open = true; })"
SHOWN = "[...document.querySelectorAll('figure, .card')].filter((own) => own.offsetHeight > 40).map((own) => own.id)"


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_browser__shows_every_figure_and_complains_of_nothing(with_trail, devtools, width):
    path, _ = with_trail

    async def story(tab):
        await tab.open(path, width)
        await tab.tell(UNFOLD)
        shown = await tab.tell(SHOWN)
        for name in [*FIGURES, "picture", "neighbours", "choice", "doubtful", "scores", "contingency"]:
            assert f"fig-{name}" in shown, name
        # Nothing sticks out to the right: the page does not scroll sideways.
        assert await tab.tell("document.documentElement.scrollWidth") <= width
        assert (
            await tab.tell("""[...document.querySelectorAll("svg text")].filter((text) => {
            const box = text.getBoundingClientRect(), card = text.closest("figure").getBoundingClientRect();
            return box.left < card.left || box.right > card.right;
        }).map((text) => text.textContent)""")
            == []
        )

    drive(devtools, story)


@in_browser
def test_browser__hostile_text_is_text(with_trail, devtools):
    path, _ = with_trail

    async def story(tab):
        await tab.open(path)
        assert await tab.tell("document.querySelector('h1').textContent") == NASTY
        assert HOSTILE in await tab.tell("document.querySelector('#members table').textContent")
        assert HOSTILE in await tab.tell("document.querySelector('#choice').textContent")
        assert await tab.tell("document.scripts.length") == 2
        assert await tab.tell("document.images.length") == 0

    drive(devtools, story)


@in_browser
def test_browser__slider_goes_through_the_rounds(with_trail, devtools):
    path, steps = with_trail
    hollow = "[...document.querySelectorAll('{} circle')].map((mark) => mark.classList.contains('none'))"
    assert len({(step < 0).sum() for step in steps}) > 2

    async def story(tab):
        await tab.open(path)
        assert await tab.tell("document.getElementById('round').max") == str(len(steps) - 1)
        for at, step in enumerate(steps):
            slide = (
                f"{{ const s = document.getElementById('round'); s.value = {at}; s.dispatchEvent(new Event('input')) }}"
            )
            await tab.tell(slide)
            for name in ("#points", "#neighbours"):
                assert await tab.tell(hollow.format(name)) == (step < 0).tolist()
        await tab.tell("document.getElementById('play').click()")
        assert "start" in await tab.tell("document.getElementById('stage').textContent")

    drive(devtools, story)


@in_browser
def test_browser__tables_sort_tips_appear_theme_turns(with_trail, devtools):
    path, _ = with_trail
    first = "document.querySelector('#fig-doubtful tbody tr').cells[0].dataset.value"
    every = "[...document.querySelectorAll('#fig-doubtful tbody tr')].map((row) => Number(row.cells[0].dataset.value))"
    paper = "getComputedStyle(document.body).backgroundColor"

    async def story(tab):
        await tab.open(path)
        rows = sorted(await tab.tell(every))
        for wanted in (rows[0], rows[-1]):
            await tab.tell("document.querySelector('#fig-doubtful th button').click()")
            assert await tab.tell(first) == str(wanted)
        bar = "document.querySelector('#fig-sizes rect')"
        await tab.tell(
            f"{bar}.dispatchEvent(new PointerEvent('pointermove', {{ bubbles: true, clientX: 9, clientY: 9 }}))"
        )
        assert re.match(r"cluster \d: \d+ samples", await tab.tell("document.getElementById('tip').textContent"))
        for name, members in (("agreement", 8), ("map", None), ("consensus", None)):
            where = f"document.querySelector('[data-grid={name}]')"
            await tab.tell(
                f"{{ const b = {where}.getBoundingClientRect(); {where}.dispatchEvent(new PointerEvent('pointermove', "
                "{ bubbles: true, clientX: b.left + 3, clientY: b.top + 3 })) }"
            )
            tip = await tab.tell("document.getElementById('tip').textContent")
            assert re.search(r": [01]\.\d\d$", tip), (tip, members)
        light = await tab.tell(paper)
        await tab.tell("document.getElementById('theme').click()")
        assert await tab.tell(paper) != light

    drive(devtools, story)


@in_browser
def test_browser__is_legible_without_scripts(with_trail, devtools):
    path, steps = with_trail

    async def story(tab):
        await tab.open(path, scripts=False)
        small = (
            "[...document.querySelectorAll('.multiples svg')].filter((own) => own.getBoundingClientRect().height > 50)"
        )
        assert await tab.tell(f"{small}.length") == min(6, len(steps))
        assert await tab.tell("document.querySelector('#fig-sizes title').textContent.length") > 10
        assert await tab.tell("getComputedStyle(document.querySelector('.slide')).display") == "none"

    drive(devtools, story)


@in_browser
def test_browser__prints_a_pdf_and_figures(made, tmp_path):
    target = tmp_path / "page.html"
    command = ["report", made / "consensus.zarr", "-o", target, "--pdf"]
    done = CliRunner().invoke(cli.main, [str(word) for word in command])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    figures = compose(made / "consensus.zarr").figures
    written = browser.write_pngs({name: figures[name] for name in ("sizes", "map")}, tmp_path / "figures")
    assert [path.name for path in written] == ["sizes.png", "map.png"]
    for path, figure in zip(written, (figures["sizes"], figures["map"]), strict=True):
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG")
        size = int.from_bytes(content[16:20]), int.from_bytes(content[20:24])
        assert size == (figure.width * 3, figure.height * 3)
    with pytest.raises(FileExistsError, match=r"holds \.png files"):
        browser.check_folder(tmp_path / "figures", overwrite=False)
