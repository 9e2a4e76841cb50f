"""Comparison of methods: lines, tests and page, each method in a process of its own."""

import json
import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from cehm_dask import CEHM
from cehm_dask.cli import main
from cehm_dask.method.params import Params
from cehm_dask.paper import compare, comparison
from cehm_dask.progress import NO_PROGRESS

ROWS = 120


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Base labels of three classes in a file, and the classes in another."""
    folder = tmp_path_factory.mktemp("compare")
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], ROWS // 3)
    members = [np.where(rng.random(ROWS) < 0.8, truth, rng.integers(0, 3, ROWS)) for _ in range(9)]
    labels = np.stack(members, axis=1)
    labels[rng.random(labels.shape) < 0.1] = -1
    np.save(folder / "labels.npy", labels)
    np.save(folder / "truth.npy", truth)
    return folder


@pytest.fixture(scope="module")
def lines():
    """Made-up results of three methods on six ensembles; one method did not run."""
    rng = np.random.default_rng(1)
    made = [
        {"method": name, "title": compare.TITLES[name], "ensemble": i, "nmi": level + 0.01 * rng.random(),
         "ari": level, "accuracy": level, "agreement": 0.5, "clusters": 3, "seconds": 0.1, "peak": 10**8}
        for name, level in (("cehm", 0.9), ("usenc", 0.8), ("voting", 0.5))
        for i in range(6)
    ]  # fmt: skip
    made.append({"method": "cspa", "title": "CSPA", "ensemble": 0, "note": "<b>too large</b>"})
    return pd.DataFrame(made)


def run(*args):
    return CliRunner().invoke(main, ["compare", *map(str, args)])


def test_compare__scores_times_and_labels_of_each_method(source, tmp_path):
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    from cehm_dask import CEHM

    truth, labels = np.load(source / "truth.npy"), np.load(source / "labels.npy")
    found = compare.compare(
        [str(source / "labels.npy")], 3, ["cehm_plain", "usenc"], tmp_path, seed=4, truth=truth.astype(np.int64)
    )
    assert found["method"].tolist() == ["cehm_plain", "usenc"]
    own = np.load(tmp_path / "cehm_plain-000.npy")
    assert np.array_equal(own, CEHM(3, variant="released", restarts=1, random_state=4).fit_predict(labels))
    for _, line in found.iterrows():
        kept = np.load(tmp_path / f"{line['method']}-000.npy")
        assert line["nmi"] == pytest.approx(normalized_mutual_info_score(truth, kept, average_method="geometric"))
        assert line["ari"] == pytest.approx(adjusted_rand_score(truth, kept))
        agreement = [
            normalized_mutual_info_score(kept[own >= 0], own[own >= 0], average_method="geometric") for own in labels.T
        ]
        assert line["agreement"] == pytest.approx(np.mean(agreement))
        assert 0 < line["seconds"] < 60
        assert 20 << 20 < line["peak"] < 2 << 30
        assert pd.isna(line["note"])


def test_work__a_method_that_cannot_run_says_why(source, tmp_path):
    order = {"method": "usenc", "ensembles": [str(source / "labels.npy")] * 2, "k": 500, "seed": 0, "memory": None}
    said = list(compare.work({**order, "folder": str(tmp_path)}))
    assert said == [{"note": "n_clusters=500 > n_samples=120: ask for at most as many clusters as samples"}]


def test_answers__a_process_that_ends_without_a_word_is_told(source, tmp_path, monkeypatch):
    monkeypatch.setattr(compare.sys, "executable", "/bin/false")
    said = list(compare._answers("usenc", ["a", "b"], 3, 0, None, tmp_path, NO_PROGRESS))
    assert said == [{"note": "its process ended with 1"}]


def test_chosen__default_leaves_slow_methods_to_small_data():
    assert "ec_cms" in compare.chosen([], 2000)
    assert "ec_cms" not in compare.chosen([], 2001)
    assert compare.chosen([], 10**9)[:3] == ["cehm", "cehm_released", "cehm_plain"]
    assert compare.chosen(["voting", "cehm", "voting"], 10) == ["voting", "cehm"]
    with pytest.raises(ValueError, match="methods kmeans: expected names out of cehm, "):
        compare.chosen(["kmeans"], 10)


def test_summary__means_ranks_and_the_best_first(lines):
    table = compare.summary(lines)
    assert table.index.tolist() == ["cehm", "usenc", "voting"]
    assert table["rank"].tolist() == [1.0, 2.0, 3.0]
    assert table.loc["usenc", "sd"] == pytest.approx(lines.loc[lines["method"] == "usenc", "nmi"].std())


def test_dunn__equals_the_test_computed_from_ranks(lines):
    """Two groups without ties, by the formula: z of the difference of mean ranks; Holm leaves one p as it is."""
    from scipy.stats import norm, rankdata

    two = lines[lines["method"].isin(["cehm", "usenc"])]
    ranks = rankdata(two["nmi"])
    n = len(ranks)
    difference = ranks[:6].mean() - ranks[6:].mean()
    z = difference / np.sqrt(n * (n + 1) / 12 * (1 / 6 + 1 / 6))
    table = compare.dunn(two, "nmi")
    assert table.loc["cehm", "usenc"] == pytest.approx(2 * norm.sf(abs(z)))
    assert table.loc["cehm", "cehm"] == 1.0
    assert compare.kruskal_wallis(two, "nmi") == pytest.approx(2 * norm.sf(abs(z)))  # for two groups the same
    assert compare.kruskal_wallis(two.assign(nmi=0.5), "nmi") == 1.0
    assert (compare.dunn(two.assign(nmi=0.5), "nmi") == 1.0).all().all()


def test_dunn__is_asked_for_where_it_is_missing(monkeypatch, source, tmp_path):
    monkeypatch.setitem(compare.sys.modules, "scikit_posthocs", None)
    done = run(source / "labels.npy", "--k", 3, "--ensembles", 3, "-o", tmp_path / "out")
    assert done.exit_code == 2
    assert "pip install 'cehm-dask[compare]'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_page__is_one_file_with_all_methods_and_escaped_notes(lines):
    page = comparison.render(lines, {"samples": "120"}, "<script>methods</script>")
    assert "<script" not in page
    assert "&lt;b&gt;too large&lt;/b&gt;" in page
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)
    for title in ("CEHM", "U-SENC", "Voting"):
        assert f">{title}</td>" in page
    assert page.count("Kruskal–Wallis p =") == 3


def test_command__one_ensemble_to_a_folder(source, tmp_path):
    options = ("--k", 3, "--methods", "cehm,voting,eac", "--truth", source / "truth.npy", "-o", tmp_path / "out")
    done = run(source / "labels.npy", *options)
    assert done.exit_code == 0, done.stderr
    assert re.search(r"Voting +[01]\.\d{4}", done.stdout)
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert results["method"].tolist() == ["cehm", "voting", "eac"]
    assert results["nmi"].min() > 0.5
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.*"))
    assert names == ["boxes.png", "cehm-000.npy", "comparison.html", "eac-000.npy", "results.csv", "summary.csv",
                     "voting-000.npy"]  # fmt: skip
    again = run(source / "labels.npy", *options)
    assert again.exit_code == 2
    assert "--overwrite" in again.stderr
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert run(source / "labels.npy", *options, "--overwrite").exit_code == 0
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_command__never_replaces_a_folder_that_is_no_comparison(source, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = run(source / "labels.npy", "--k", 3, "--methods", "voting", "-o", tmp_path / "mine", "--overwrite")
    assert done.exit_code == 2
    assert "mine exists and is no comparison" in done.stderr.replace("\n", "")
    (tmp_path / "mine" / "comparison.html").write_text("<title>mine too</title>")
    again = run(source / "labels.npy", "--k", 3, "--methods", "voting", "-o", tmp_path / "mine", "--overwrite")
    assert again.exit_code == 2
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["comparison.html", "thesis.txt"]


def test_plain__is_the_authors_program_with_one_try(source, tmp_path):
    lines = compare.compare([str(source / "labels.npy")], 3, ["cehm_plain"], tmp_path)
    assert lines["note"].isna().all()
    wanted = CEHM(3, tries=1, random_state=0).fit(np.load(source / "labels.npy")).labels_
    np.testing.assert_array_equal(np.load(tmp_path / "cehm_plain-000.npy"), wanted)
    assert Params(3, **compare.CEHM_SETTINGS["cehm_plain"]) == Params(3, variant="released", tries=1)
    assert Params(3, **compare.CEHM_SETTINGS["cehm_released"]) == Params(3, variant="released", tries=10)
    assert Params(3, **compare.CEHM_SETTINGS["cehm"]).portfolio


def test_command__several_ensembles_of_features_with_their_classes(tmp_path):
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1], 40)
    np.savez(tmp_path / "two.npz", X=rng.normal(size=(80, 3)) + 6 * classes[:, None], y=classes)
    done = run(tmp_path / "two.npz", "--k", 2, "--ensembles", 3, "--methods", "cehm,voting", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.stderr
    assert "NMI: Kruskal–Wallis p = " in done.stdout
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert results.groupby("method")["ensemble"].apply(list).to_dict() == {"cehm": [0, 1, 2], "voting": [0, 1, 2]}
    assert (tmp_path / "out" / "dunn-nmi.csv").exists()


@pytest.fixture
def pool(tmp_path):
    """A file with twelve members of three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    labels = np.where(rng.random((60, 12)) < 0.8, y[:, None], rng.integers(0, 3, (60, 12)))
    np.savez(tmp_path / "pool.npz", labels=labels, y=y)
    return tmp_path / "pool.npz"


def test_command__several_draws_of_a_pool(pool, tmp_path):
    options = ("--ensembles", 3, "--pool-members", 8, "--methods", "usenc,lwgp", "-o", tmp_path / "out", "--seed", 2)
    done = run(pool, *options)
    assert done.exit_code == 0, done.stderr
    assert "NMI: Kruskal–Wallis p = " in done.stdout
    results = pd.read_csv(tmp_path / "out" / "results.csv")
    assert results.groupby("method")["ensemble"].apply(list).to_dict() == {"usenc": [0, 1, 2], "lwgp": [0, 1, 2]}
    assert results["clusters"].eq(3).all()  # k is the number of classes
    names = sorted(path.name for path in (tmp_path / "out" / "labels").iterdir())
    assert names == [f"{method}-00{number}.npy" for method in ("lwgp", "usenc") for number in range(3)]


def test_draw_from_pool__members_by_seed_and_number(pool, tmp_path):
    from cehm_dask.paper.pools import read_pool

    drawn = {}
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        urls = compare.draw_from_pool(read_pool(pool), 8, 2, seed, tmp_path / str(seed))
        drawn |= {(seed, number): np.load(url).tobytes() for number, url in enumerate(urls)}
    assert len(set(drawn.values())) == 4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "holds a pool of 12 members: say how many ensembles to draw, such as --ensembles 30"),
        (("--ensembles", 2), "pool_members=30, the pool has 12: ask for 1 to 12"),
        (("--ensembles", 2, "--pool-members", 0), "pool_members=0, the pool has 12"),
        (("--ensembles", 0, "--pool-members", 5), "ensembles=0: must be at least 1"),
    ],
)
def test_command__pools_that_cannot_be_drawn_from_are_refused(pool, options, said):
    done = run(pool, *options)
    assert done.exit_code == 2
    assert said in done.stderr


def test_command__options_of_pools_go_with_pools_only(source, tmp_path):
    done = run(source / "labels.npy", "--k", 3, "--pool-members", 5)
    assert done.exit_code == 2
    assert "is no pool: leave --pool-members out" in done.stderr
    done = run(source / "labels.npy")
    assert done.exit_code == 2
    assert "such as --k 10" in done.stderr
    np.savez(tmp_path / "other.npz", Z=np.zeros(3))
    done = run(tmp_path / "other.npz", "--k", 2, "--ensembles", 3)
    assert done.exit_code == 2
    assert "other.npz holds Z: expected X" in done.stderr


def test_command__features_without_a_number_of_ensembles_are_refused(tmp_path):
    np.savez(tmp_path / "two.npz", X=np.zeros((3, 2)))
    done = run(tmp_path / "two.npz", "--k", 2)
    assert done.exit_code == 2
    assert "--ensembles 30" in done.stderr


def test_command__without_any_method_that_runs_it_is_an_error(source):
    done = run(source / "labels.npy", "--k", 500, "--methods", "voting")
    assert done.exit_code == 2
    assert "no method ran: n_clusters=500" in done.stderr


def test_program__takes_an_order_and_answers_in_lines(source, tmp_path):
    import subprocess
    import sys

    order = {"method": "voting", "ensembles": [str(source / "labels.npy")], "k": 3, "seed": 0, "memory": None}
    done = subprocess.run(
        [sys.executable, "-m", "cehm_dask.paper.compare", json.dumps({**order, "folder": str(tmp_path)})],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(json.loads(done.stdout)) == {"seconds", "peak"}
