"""The paper's experiments on sets that come with scikit-learn: protocol, resuming, tables, figures, the command."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.stats import norm
from sklearn.datasets import load_iris, make_blobs
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from cehm_dask import CEHM
from cehm_dask.cli import main
from cehm_dask.paper import figures as paper_figures
from cehm_dask.paper import reproduce as paper
from cehm_dask.paper import sets, tables
from cehm_dask.paper.pools import read_pool
from cehm_dask.rivals import METHODS

COLUMNS = ["set", "scale", "ensemble", "method", "nmi", "ari", "agreement"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results"


@pytest.fixture
def data(tmp_path):
    """A folder with two sets: one of the paper's names, one of points in the plane."""
    there = tmp_path / "data"
    there.mkdir()
    X, y = load_iris(return_X_y=True)
    np.savez(there / "iris.npz", X=X, y=y)
    X, y = make_blobs(200, centers=3, random_state=0)
    np.savez(there / "flame.npz", X=X, y=y)
    return there


def run(folder, **wishes):
    wishes = {"sets": ["iris"], "scales": ["standard"], "ensembles": 2, "methods": ["plain"], **wishes}
    return paper.reproduce(None, folder, **wishes)


def same(one, other):
    one, other = (frame[COLUMNS].sort_values(COLUMNS[:4]).reset_index(drop=True) for frame in (one, other))
    pd.testing.assert_frame_equal(one, other)


@pytest.fixture
def pools(tmp_path):
    """A folder with two pools of twelve members, of two and of three classes."""
    there = tmp_path / "pools"
    there.mkdir()
    sets.load_pool.cache_clear()
    write_pool(there / "two.npz", 2)
    write_pool(there / "iris.npz", 3)  # named as a data set is
    return there


def write_pool(path, classes, missing=0.0, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(60) % classes
    labels = np.where(rng.random((60, 12)) < 0.8, y[:, None], rng.integers(0, classes, (60, 12)))
    labels[rng.random(labels.shape) < missing] = -1
    np.savez(path, labels=labels, y=y)


def run_pools(pools, folder, **wishes):
    return paper.reproduce(
        None, folder, pools=pools, **{"draws": 2, "pool_members": 8, "methods": ["plain", "lwgp"], **wishes}
    )


def test_members__follow_the_papers_protocol():
    labels = sets.draw_members(sets.load("iris", None), "minmax", 3)
    clusters = labels.max(axis=0) + 1
    assert labels.shape == (150, 30)
    assert labels.min() == 0
    assert 3 <= clusters.min() < clusters.max() <= 12  # [k, max(min(√n, 50), 1.5 k)]
    assert not np.array_equal(labels, sets.draw_members(sets.load("iris", None), "minmax", 4))


def test_members__are_drawn_once_and_anew_for_other_features(tmp_path):
    iris = sets.load("iris", None)
    first = sets.members(iris, "standard", 0, tmp_path)
    (path,) = tmp_path.rglob("*.npy")
    np.save(path, first[::-1])
    np.testing.assert_array_equal(sets.members(iris, "standard", 0, tmp_path), first[::-1])
    other = sets.Dataset("iris", iris.X[:, :3], iris.y)
    assert not np.array_equal(sets.members(other, "standard", 0, tmp_path), first[::-1])


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
def test_lines__hold_the_scores_of_the_method(folder):
    lines = run(folder, methods=["plain", "printed"])
    truth = load_iris().target
    for line in lines.to_dict("records"):
        (path,) = (folder / "members").glob(f"iris-standard-*/{line['ensemble']:02d}.npy")
        model = CEHM(3, random_state=line["ensemble"], **paper.SETTINGS[line["method"]])
        labels = model.fit_predict(np.load(path))
        assert line["nmi"] == normalized_mutual_info_score(truth, labels, average_method="geometric")
        assert line["ari"] == adjusted_rand_score(truth, labels)
    assert len(lines) == 4


def test_settings__told_apart():
    told = {name: paper.settings_of(name) for name in paper.SETTINGS}
    assert len(set(told.values())) == len(told)
    assert "portfolio" in told["default"]
    assert not any("portfolio" in text for name, text in told.items() if name != "default")
    # As earlier programs wrote it: what they have done is not done again.
    knobs = "similarity=jaccard, belonging=share, schedule=fixed, tries=1, restarts=1, choose=agreement, max_iter=100"
    assert told["plain"] == knobs
    assert {"released", "default"} < set(paper.USUAL)


def test_reproduce__does_nothing_twice(folder, monkeypatch):
    first = run(folder)
    done = []
    real = paper.run_task

    def counted(task):
        done.append((task.origin.name, task.origin.scale, task.ensemble, task.methods))
        return real(task)

    monkeypatch.setattr(paper, "run_task", counted)
    same(run(folder), first)
    assert done == []
    run(folder, ensembles=3, methods=["plain", "printed"])
    assert done == [("iris", "standard", i, m) for i, m in [(0, ("printed",)), (1, ("printed",))]] + [
        ("iris", "standard", 2, ("plain", "printed"))
    ]
    same(run(folder), first)


def test_reproduce__a_line_cut_off_or_of_other_settings_is_done_again(folder):
    first = run(folder)
    path = folder / "results.jsonl"
    lines = paper.read_lines(path)
    lines[0] |= {"settings": "others", "nmi": 7.0}
    path.write_text(json.dumps(lines[0]) + "\n" + json.dumps(lines[1])[:40])
    same(run(folder), first)


def test_reproduce__lines_of_other_data_do_not_count(data, folder):
    wishes = {"sets": ["iris"], "scales": ["standard"], "ensembles": 1, "methods": ["plain"]}
    before = paper.reproduce(data, folder, **wishes)
    X, y = load_iris(return_X_y=True)
    np.savez(data / "iris.npz", X=X[:, :2], y=y)
    sets.load.cache_clear()
    after = paper.reproduce(data, folder, **wishes)
    assert len(after) == 1
    assert after["nmi"].item() < before["nmi"].item()


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
def test_pools__lines_hold_the_scores_of_methods_on_the_same_draws(pools, folder):
    lines = run_pools(pools, folder)
    assert len(lines) == 2 * 2 * 2
    assert set(lines["scale"]) == {"pool"}
    assert not (folder / "members").exists()
    for line in lines.to_dict("records"):
        pool = read_pool(pools / f"{line['set']}.npz")
        base = pool.draw(8, line["ensemble"])
        if line["method"] == "plain":
            found = CEHM(pool.n_clusters, random_state=line["ensemble"], **paper.SETTINGS["plain"]).fit_predict(base)
        else:
            found = METHODS["lwgp"](base, pool.n_clusters, line["ensemble"])
        assert line["nmi"] == normalized_mutual_info_score(pool.y, found, average_method="geometric")
        assert line["ari"] == adjusted_rand_score(pool.y, found)


def test_pools__samples_without_labels_or_class_are_not_scored(pools, folder):
    with np.load(pools / "two.npz") as arrays:
        labels, y = arrays["labels"], arrays["y"]
    labels[:10] = -1
    y[50:] = -1
    np.savez(pools / "two.npz", labels=labels, y=y)
    (pools / "iris.npz").unlink()
    lines = run_pools(pools, folder, draws=1, methods=["lwgp"])
    found = METHODS["lwgp"](read_pool(pools / "two.npz").draw(8, 0), 2, 0)
    assert lines["nmi"].item() == normalized_mutual_info_score(y[10:50], found[10:50], average_method="geometric")


def test_pools__nothing_is_done_twice_and_other_pools_do_not_count(pools, folder, monkeypatch):
    first = run_pools(pools, folder)
    done = []
    real = paper.run_task

    def counted(task):
        done.append((task.origin.name, task.ensemble, task.methods))
        return real(task)

    monkeypatch.setattr(paper, "run_task", counted)
    same(run_pools(pools, folder), first)
    assert done == []
    run_pools(pools, folder, draws=3, methods=["lwgp"])
    assert done == [("iris", 2, ("lwgp",)), ("two", 2, ("lwgp",))]
    done.clear()
    run_pools(pools, folder, pool_members=5)
    assert len(done) == 4
    done.clear()
    same(run_pools(pools, folder), first)  # lines of other members stand behind them, and do not count
    assert done == []
    write_pool(pools / "two.npz", 2, seed=1)
    sets.load_pool.cache_clear()
    run_pools(pools, folder)
    assert {name for name, _, _ in done} == {"two"}


def test_pools__beside_data_sets_in_tables_of_their_own(pools, folder):
    lines = run_pools(pools, folder, sets=["iris"], scales=["standard"], ensembles=1)
    assert sorted(set(zip(lines["set"], lines["scale"], strict=True))) == [
        ("iris", "pool"),
        ("iris", "standard"),
        ("two", "pool"),
    ]
    tables.write_tables(lines, folder)
    pooled = pd.read_csv(folder / "table_nmi_pools.csv", index_col="set")
    assert pooled.index.tolist() == ["iris", "two"]
    assert pooled.columns.tolist() == ["plain", "lwgp"]
    own = lines[(lines["set"] == "two") & (lines["method"] == "lwgp")]
    assert pooled.loc["two", "lwgp"] == pytest.approx(own["nmi"].mean())
    ranks = pd.read_csv(folder / "ranks_ari_pools.csv", index_col="method")
    assert ranks["rank"].sum() == pytest.approx(3)
    assert ranks["p"].notna().sum() == 1
    assert pd.read_csv(folder / "table_nmi.csv", index_col="set").index.tolist() == ["iris"]


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"draws": 0}, "draws=0: must be at least 1"),
        ({"pool_members": 13}, r"iris\.npz: pool_members=13, the pool has 12"),
    ],
)
def test_pools__what_cannot_be_drawn_is_refused_before_work(pools, folder, wishes, said):
    with pytest.raises(ValueError, match=said):
        run_pools(pools, folder, **wishes)
    assert not folder.exists()


def test_pools__command_writes_their_tables_only(pools, folder):
    words = ["reproduce", "--pools", pools, "-o", folder, "--draws", 2, "--pool-members", 8, "--methods", "plain,lwgp"]
    done = CliRunner().invoke(main, [str(word) for word in [*words, "--workers", 1]])
    assert done.exit_code == 0, done.output
    assert "| set | plain | lwgp |" in done.output
    tables = {f"{kind}_{score}_pools.{end}" for kind in ("table", "ranks") for score in ("nmi", "ari") for end in
              ("csv", "md")}  # fmt: skip
    assert {path.name for path in folder.iterdir()} == {"results.jsonl", *tables}


def test_pools__command_names_the_folder_that_is_not_there(tmp_path):
    done = CliRunner().invoke(main, ["reproduce", "--pools", str(tmp_path / "none"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "no such folder" in done.output


@pytest.mark.slow
def test_pools__processes_give_the_same(pools, folder, tmp_path):
    same(run_pools(pools, folder, workers=2), run_pools(pools, tmp_path / "other"))


@pytest.mark.slow
def test_reproduce__processes_give_the_same(folder, tmp_path):
    same(run(folder, workers=2), run(tmp_path / "other"))


def test_table__means_beside_the_published_numbers():
    lines = pd.DataFrame(
        [
            {"set": name, "scale": scale, "method": method, "nmi": value + shift}
            for name, scale, method, value in [
                ("wine", "standard", "plain", 0.8),
                ("wine", "minmax", "plain", 0.9),
                ("iris", "standard", "plain", 0.7),
                ("iris", "minmax", "plain", 0.6),
                ("iris", "minmax", "default", 0.75),
            ]
            for shift in (-0.1, 0.1)
        ]
    )
    found = tables.table(lines, "nmi")
    assert list(found.index) == ["iris", "wine"]
    assert found["published"].tolist() == [0.7456, 0.9039]
    np.testing.assert_allclose(found["better"], [0.7, 0.9])
    np.testing.assert_allclose(found["difference"], [0.7 - 0.7456, 0.9 - 0.9039])
    np.testing.assert_allclose(found["default minmax"], [0.75, np.nan])
    text = tables.markdown(found, "nmi").splitlines()
    assert text[2].startswith("| iris | 0.7456 | 0.7000 | 0.6000 |")
    assert text[-1].startswith("| mean NMI | 0.8248 |")
    assert "| – |" in text[-1]  # a mean over some of the sets only is none


def scored(**scores):
    """Lines of results: scores of each method by set and ensemble, NaN where it was not run."""
    lines = [
        {"set": name, "scale": "standard", "ensemble": ensemble, "method": method, "nmi": score}
        for method, of_sets in scores.items()
        for name, own in of_sets.items()
        for ensemble, score in enumerate(own)
    ]
    return pd.DataFrame(lines).dropna()


def test_ranking__over_what_all_methods_have_done():
    lines = scored(
        plain={"iris": [0.5, 0.7], "wine": [np.nan, 0.9], "usps": [0.9]},
        default={"iris": [0.6, 0.9], "wine": [0.2, 0.8]},
        wct={"iris": [0.55, np.nan], "wine": [0.9, 0.1]},
    )
    found = tables.ranking(lines, "nmi")  # the first ensemble of iris, the second of wine
    assert found["rank"].to_dict() == {"default": 1.5, "plain": 2.0, "wct": 2.5}
    assert found["mean"].round(6).to_dict() == {"default": 0.7, "plain": 0.7, "wct": 0.325}
    assert np.isnan(found.loc["default", "p"])
    assert found["p"].drop("default").between(0, 1).all()


def test_ranking__p_is_that_of_dunns_test_on_the_ranks():
    rng = np.random.default_rng(0)
    sets = {f"set {i}": [rng.random()] for i in range(12)}
    lines = scored(
        default=sets,
        plain={name: [value + 0.01 * (-1) ** i] for i, (name, [value]) in enumerate(sets.items())},
        sec={name: [value - 0.5] for name, [value] in sets.items()},
    )
    found = tables.ranking(lines, "nmi")
    # Ranks 1 and 2 in turn against 3 throughout: z = (3 - 1.5) / sqrt((N(N+1)/12 - ties) (1/12 + 1/12)) on 36 ranks.
    n, ties = 36, 3 * (12**3 - 12) / (12 * 35)
    z = 12 * 1.5 / np.sqrt((n * (n + 1) / 12 - ties) * (2 / 12))
    assert found.loc["sec", "p"] == pytest.approx(3 * 2 * norm.sf(z))
    assert found.loc["plain", "p"] == pytest.approx(1.0)
    text = tables.ranking_markdown(found, "nmi").splitlines()
    assert text[0] == "| method | mean NMI | mean rank | p |"
    assert text[-1].startswith("| sec | ")


def test_published__has_both_tables_of_twenty_sets():
    counted = tables.published().groupby(["score", "method"])["dataset"].nunique()
    assert (counted == 20).all()
    assert set(counted.index.get_level_values("score")) == {"NMI", "ARI"}
    names = {tables.PUBLISHED_AS.get(name, name) for name in sets.PAPER_SETS}
    assert names == set(tables.published()["dataset"])


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        ({"methods": ["best"]}, "methods=best: expected plain"),
        ({"scales": ["robust"]}, "scale=robust: expected standard, minmax"),
        ({"sets": ["iris", "moons"]}, "sets moons are not with scikit-learn: there are iris"),
        ({"ensembles": 0}, "ensembles=0"),
    ],
)
def test_reproduce__refuses_what_it_does_not_know(folder, wishes, said):
    with pytest.raises(ValueError, match=said):
        run(folder, **wishes)
    assert not folder.exists()


def test_load__refuses_a_file_without_classes(data):
    np.savez(data / "wine.npz", X=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"wine\.npz holds X: expected X"):
        sets.load("wine", data)


@pytest.mark.parametrize(
    ("rounds", "shown"), [((4, 3), [0, 2, 3, 5, 6, 7]), ((2, 1), [0, 1, 2, 3, 3, 3]), ((0, 1), [0, 0, 0, 1, 1, 1])]
)
def test_steps_shown__start_two_of_each_stage_and_the_end(rounds, shown):
    stages = ["start", *["diffusion"] * rounds[0], *["adjustion"] * rounds[1]]
    steps = [(stage, np.array([number])) for number, stage in enumerate(stages)]
    assert [int(seen[0]) for _, seen in paper_figures.steps_shown(steps)] == shown


def test_command__writes_tables_and_figures(data, folder):
    words = ["reproduce", "--data", str(data), "-o", str(folder), "--ensembles", "1", "--workers", "1", "--quiet"]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    written = {path.name for path in folder.iterdir()}
    assert written == {
        "members",
        "results.jsonl",
        "table_nmi.csv",
        "table_nmi.md",
        "table_ari.csv",
        "table_ari.md",
        "ranks_nmi.csv",
        "ranks_nmi.md",
        "ranks_ari.csv",
        "ranks_ari.md",
        "convergence_standard.png",
        "convergence_minmax.png",
        "times.png",
        "mechanism_flame.png",
    }
    table = pd.read_csv(folder / "table_nmi.csv", index_col="set")
    assert table.index.tolist() == ["iris"]
    assert table["plain standard"].item() > 0.6


def test_command__names_the_folder_that_is_not_there(tmp_path):
    done = CliRunner().invoke(main, ["reproduce", "--data", str(tmp_path / "none"), "-o", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "no such folder" in done.output
