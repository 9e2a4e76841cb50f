"""Runs that follow others: names kept, alerts told, old runs removed, hooks called, nothing foreign touched."""

import datetime
import itertools
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.locks import Lock
from cehm_dask.data.seals import with_seal
from cehm_dask.errors import InputError, NotFoundError, ReplacedError, StoreError
from cehm_dask.pipeline.days import earlier_days, is_finished
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.following import Alerts, alerts_of
from cehm_dask.pipeline.outputs import read_profile
from cehm_dask.pipeline.recipe import RecipeError, parse
from cehm_dask.pipeline.recipe_model import day_in
from cehm_dask.pipeline.run import run
from cehm_dask.results.matching import first, match_shared
from tests.conftest import cehm
from tests.results.test_matching import shared_of

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

RECIPE = """\
features: {path: "data/{date}.csv", id: customer}
ensemble: {members: 4}
consensus: {k: 3}
output: "runs/{date}"
export: csv
follow: previous
"""
CENTRES = np.array([[0, 0], [12, 0], [0, 12], [12, 12]])
DAYS = [f"2026-11-{10 + number}" for number in range(4)]


def write_day(number, classes=3, folder="data"):
    """A day's table: a tenth of the customers are others than the day before; every day in another order."""
    rng = np.random.default_rng(number)
    who = np.concatenate([np.arange(60) + 6 * number + 1000 * c for c in range(classes)])
    values = CENTRES[who // 1000] + rng.normal(size=(len(who), 2))
    frame = pd.DataFrame(values, columns=["a", "b"]).assign(customer=[f"c{one}" for one in who])
    Path(folder).mkdir(exist_ok=True)
    frame.iloc[rng.permutation(len(frame))].to_csv(f"{folder}/{DAYS[number]}.csv", index=False)


def on(number, *overrides, **options):
    return run(parse(RECIPE, overrides), date=datetime.date.fromisoformat(DAYS[number]), **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three days, run in their order."""
    folder = tmp_path_factory.mktemp("days")
    before = os.getcwd()
    os.chdir(folder)
    try:
        for number in range(3):
            write_day(number)
            on(number)
        write_day(3, classes=4)
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def labels_of(number):
    found = pd.read_csv(f"runs/{DAYS[number]}/labels.csv")
    return dict(zip(found["customer"], found["label"], strict=True))


def matching_of(number):
    return json.loads(Path(f"runs/{DAYS[number]}/matching.json").read_text())


def test_follow__customers_keep_their_cluster_and_the_store_its_numbers(folder):
    seen = [labels_of(number) for number in range(3)]
    for before, now in itertools.pairwise(seen):
        both = set(before) & set(now)
        assert len(both) == 162
        assert all(before[one] == now[one] for one in both)
    found = matching_of(2)
    assert (found["by"], found["n_shared"], found["n_moved"], found["alerts"]) == ("ids", 162, 0, [])
    assert found["follows"].endswith(f"runs/{DAYS[1]}")
    stored = open_consensus(f"runs/{DAYS[2]}/consensus.zarr")
    raw = np.asarray(stored.array("labels")[:])
    named = pd.read_csv(f"runs/{DAYS[2]}/labels.csv")["label"].to_numpy()
    np.testing.assert_array_equal(np.asarray(found["names"])[raw], named)
    assert raw.max() == 2


@pytest.mark.parametrize("output", ["new.csv", "new.npy", "new.zarr"])
def test_follow__predictions_of_a_run_have_its_names(folder, output):
    run_of, day = f"runs/{DAYS[2]}", f"data/{DAYS[2]}.csv"
    Path(run_of, "matching.json").write_text(json.dumps({**matching_of(2), "names": [7, 5, 9]}))
    raw = np.asarray(open_consensus(f"{run_of}/consensus.zarr").array("labels")[:])
    cehm("predict", run_of, day, "-o", output, "--quiet")
    wanted = np.array([7, 5, 9])[raw]
    found = {
        "new.csv": lambda: pd.read_csv(output)["label"],
        "new.npy": lambda: np.load(output),
        "new.zarr": lambda: zarr.open_array("new.zarr/labels")[:],
    }[output]()
    np.testing.assert_array_equal(found, wanted)


def test_follow__predictions_refuse_names_that_were_edited(folder):
    Path(f"runs/{DAYS[2]}/matching.json").write_text('{"names": [1, "x"]}')
    _, err = cehm("predict", f"runs/{DAYS[2]}", f"data/{DAYS[2]}.csv", "-o", "new.csv", code=2)
    assert "matching.json: no names of 3 clusters: edited or damaged" in err


def test_follow__profiles_report_and_describe_have_the_names(folder):
    result = on(3, "consensus.k=4")
    found = matching_of(3)
    assert result.summary()["new"] == [3]
    assert sorted(found["names"]) == [0, 1, 2, 3]
    assert found["next_name"] == 4
    labels = labels_of(3)
    own = {label for customer, label in labels.items() if int(customer[1:]) >= 3000}
    assert own == {3}
    described = read_profile(result.directory, Directory(result.directory).read())
    assert [one["cluster"] for one in described.clusters] == [0, 1, 2, 3]
    for one in described.clusters:
        size = list(labels.values()).count(one["cluster"])
        assert one["size"] == size
        assert one["sentence"].startswith(f"Cluster {one['cluster']}: {size} samples")
        assert all(labels[example["id"]] == one["cluster"] for example in one["prototypes"])
    table = ["--features", f"data/{DAYS[3]}.csv", "--id", "customer", "--json"]
    again = json.loads(cehm("describe", result.directory, *table)[0])
    assert [one["mean"] for one in again["clusters"]] == [one["mean"] for one in described.clusters]
    page = Path(result.report).read_text()
    assert '<section id="flow">' in page
    assert "Cluster 3 is new." in page
    assert page.count('class="flow ') == 3


def test_follow__a_split_is_told_in_the_terminal(folder):
    out, _ = cehm("run", write_recipe(), "--date", DAYS[3], "--set", "features.path=data/split.csv")
    assert "follows " in out
    assert "moved (" in out
    assert "is new: split off from" in out
    assert "before \\ now" in out


def write_recipe():
    """A table in which one class has come apart, and the recipe."""
    frame = pd.read_csv(f"data/{DAYS[2]}.csv")
    second = frame["customer"].str.startswith("c10") & (frame["customer"].str[1:].astype(int) % 2 == 0)
    frame.loc[second, ["a", "b"]] += [30, 30]
    frame.to_csv("data/split.csv", index=False)
    Path("recipe.yaml").write_text(RECIPE.replace("k: 3", "k: 4"))
    return "recipe.yaml"


# --- which run is followed -------------------------------------------------------------------------------------------


def test_day__that_is_done_is_a_no_op_whatever_becomes_of_the_one_before(folder):
    for change in (lambda: None, lambda: shutil.rmtree(f"runs/{DAYS[1]}")):
        change()
        assert set(on(2).steps.values()) == {"skipped"}


def test_day__stays_matched_though_a_day_before_it_comes_later(folder):
    shutil.rmtree(f"runs/{DAYS[1]}")
    shutil.rmtree(f"runs/{DAYS[2]}")
    on(2)
    assert matching_of(2)["follows"].endswith(DAYS[0])
    on(1)
    assert set(on(2).steps.values()) == {"skipped"}
    assert on(2, overwrite=True).steps["match"] == "done"
    assert matching_of(2)["follows"].endswith(DAYS[1])


def test_day__is_matched_anew_if_the_run_it_follows_has_changed(folder):
    on(1, "consensus.seed=5", "ensemble.seed=5", overwrite=True)
    steps = on(2).steps
    assert (steps["consensus"], steps["match"]) == ("skipped", "done")


def test_day__whose_data_changed_follows_another_if_the_run_is_gone(folder):
    shutil.rmtree(f"runs/{DAYS[1]}")
    on(2, "ensemble.seed=1")
    assert matching_of(2)["follows"].endswith(DAYS[0])


def test_previous__is_the_newest_that_is_finished(folder):
    state = Directory(f"runs/{DAYS[2]}").read()
    state["steps"]["report"]["state"] = "failed"
    Directory(f"runs/{DAYS[2]}").write({key: state[key] for key in ("steps", "recipe", "followed")})
    Path("runs/2026-11-12x").mkdir()
    Path("runs/2026-13-77").mkdir()
    Path(f"runs/{DAYS[0]}/run.json").write_text("{")
    assert list(earlier_days(str(folder / "runs" / DAYS[3]))) == DAYS[1:3]
    on(3)
    assert matching_of(3)["follows"].endswith(DAYS[1])


def test_previous__in_the_middle_of_a_path_and_after_it_was_filled_in(folder):
    for number in (0, 1):
        on(number, "output=deep/x-{date}/{date}/out")
    found = json.loads(Path(f"deep/x-{DAYS[1]}/{DAYS[1]}/out/matching.json").read_text())
    assert found["n_shared"] == 162
    # As a job of a queue is started: by the recipe of its day.
    again = parse(Path(f"runs/{DAYS[1]}/recipe.yaml").read_text())
    assert set(run(again).steps.values()) == {"skipped"}
    assert day_in("runs/2026-11-1/x12026-11-12") is None


def test_follow__a_run_that_is_named(folder):
    result = on(2, f"follow=runs/{DAYS[0]}", "output=other")
    assert result.matching["follows"].endswith(DAYS[0])
    with pytest.raises(NotFoundError, match=r"follow .*nowhere: no run directory"):
        on(2, "follow=nowhere", "output=new")
    assert not Path("new/ensemble.zarr").exists()
    with pytest.raises(NotFoundError, match=r"follow .*nowhere: no run directory"):
        on(2, "follow=nowhere", "output=other")
    with pytest.raises(InputError, match="follow other: this is the run itself"):
        on(2, "follow=other", "output=other")
    out, _ = cehm(
        "run", write_recipe(), "--date", DAYS[2], "--follow", f"runs/{DAYS[0]}", "--set", "output=x", "--json"
    )
    assert json.loads(out)["follows"].endswith(DAYS[0])


def test_plan__counts_the_step(folder):
    Path("recipe.yaml").write_text(RECIPE)
    out, _ = cehm("plan", "recipe.yaml", "--date", DAYS[3])
    assert "matching.json" in out
    assert "memory of match: " in out
    out, _ = cehm(
        "plan", "recipe.yaml", "--date", DAYS[3], "--set", "features.id=null", "--set", "features.drop=customer"
    )
    assert "matching.json" in out
    assert "memory of match: " not in out


def test_matching__a_changed_byte_is_noticed_and_the_step_is_done_again(folder):
    path = Path(f"runs/{DAYS[2]}/matching.json")
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"n_moved": 0', b'"n_moved": 1'))
    assert "matching.json is not what was written" in cehm("verify", f"runs/{DAYS[2]}", code=2)[1]
    assert "matching.json is not what was written" in cehm("describe", *described_again(), code=2)[1]
    steps = on(2).steps
    assert {step for step, became in steps.items() if became == "done"} == {"match", "report"}  # its folder has moved
    assert json.loads(path.read_bytes()) | {"follows": ""} == json.loads(before) | {"follows": ""}


def described_again():
    return [f"runs/{DAYS[2]}", "--features", f"data/{DAYS[2]}.csv", "--id", "customer"]


def test_match__interrupted_and_given_again_finds_the_same(folder, monkeypatch):
    from cehm_dask.pipeline import following

    def stopped(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(following, "write_whole", stopped)
        with pytest.raises(KeyboardInterrupt):
            on(3, "consensus.k=4")
    assert json.loads(Path(f"runs/{DAYS[3]}/run.json").read_text())["steps"]["match"]["state"] == "interrupted"
    on(3, "consensus.k=4")
    on(3, "consensus.k=4", f"follow=runs/{DAYS[2]}", "output=whole")
    assert json.loads(Path("whole/matching.json").read_text()) == matching_of(3)
    assert Path("whole/labels.csv").read_bytes() == Path(f"runs/{DAYS[3]}/labels.csv").read_bytes()


def test_follow__a_table_that_is_replaced_meanwhile_is_read_again_later(folder, monkeypatch):
    from cehm_dask.pipeline import following

    counted = following.count_shared

    def replaced(*sides, **options):
        found = counted(*sides, **options)
        path = Path(f"runs/{DAYS[1]}/labels.csv")
        path.write_text(path.read_text().replace(",0,", ",2,"))
        return found

    monkeypatch.setattr(following, "count_shared", replaced)
    with pytest.raises(ReplacedError, match="was replaced while it was being read; run again"):
        on(2, overwrite=True)


def test_follow__a_run_without_a_table_or_with_another_one_is_refused(folder):
    on(0, "export=null", "follow=null", "output=bare")
    with pytest.raises(InputError, match=r"run .*bare has no table of labels.*'export: parquet'"):
        on(1, "follow=bare")
    path = Path(f"runs/{DAYS[1]}/labels.csv")
    path.write_text(path.read_text().replace(",0,", ",1,"))
    with pytest.raises(StoreError, match=r"labels.csv is not what was written: run it again, or follow another run"):
        on(2, overwrite=True)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["output=runs/today"], "follow: 'previous' needs a date in 'output', which is 'runs/today'"),
        (["export=null"], "follow: needs 'export'"),
        (["follow=null", "alert={moved: 0.1}"], "alert: needs 'follow'"),
        (["follow=null", "output=x", "keep=3"], "keep: needs a date in 'output'"),
        (["alert={moved: 0}"], "alert.moved: 0: must be more than 0"),
        (["alert={mooved: 0.1}"], "did you mean 'moved'?"),
        (["keep=0"], "keep: 0: must be at least 1"),
        (["hooks={success: 'rm -rf x'}"], "hooks.success: 'rm -rf x': expected a list of arguments, such as"),
        (["hooks={failure: []}"], "hooks.failure"),
        (["features=null", "labels={path: l.csv}", "ensemble=null", "scale=null"], "follow: needs 'id' in 'labels'"),
    ],
)
def test_recipe__what_does_not_go_together(overrides, said):
    with pytest.raises(RecipeError) as caught:
        parse(RECIPE, overrides)
    assert said in str(caught.value)


def test_follow__without_ids_by_the_features(folder):
    for number in (0, 1):
        frame = pd.read_csv(f"data/{DAYS[number]}.csv").drop(columns="customer")
        frame.to_csv(f"data/bare-{DAYS[number]}.csv", index=False)
        result = on(number, "features={path: 'data/bare-{date}.csv'}", "output=bare/{date}")
    assert (result.matching["by"], result.matching["n_moved"]) == ("profiles", None)
    said = [read_profile(f"bare/{day}", Directory(f"bare/{day}").read()).clusters for day in DAYS[:2]]
    for before, now in zip(*said, strict=True):
        assert before["cluster"] == now["cluster"]
        assert np.abs(np.subtract(before["mean"], now["mean"])).max() < 1
    assert "the nearest means" in Path(result.report).read_text()
    assert "rows have no ids, so clusters are matched" in Path(f"bare/{DAYS[1]}/run.log").read_text()


def test_follow__no_shared_ids(folder):
    frame = pd.read_csv(f"data/{DAYS[1]}.csv")
    frame.assign(customer=frame["customer"] + "x").to_csv("data/others.csv", index=False)
    assert on(3, "features.path=data/others.csv").matching["by"] == "profiles"


def test_follow__base_labels_with_ids_and_no_features(folder):
    for number in range(2):
        who = np.arange(90) + 9 * number
        truth = who // 9 % 3
        labels = {f"m{j}": np.where(who % 7 == j, (truth + 1) % 3, truth) for j in range(4)}
        pd.DataFrame({"who": who, **labels}).to_csv(f"data/labels-{DAYS[number]}.csv", index=False)
        text = (
            RECIPE.replace("features", "labels")
            .replace("ensemble: {members: 4}\n", "")
            .replace("data/", "data/labels-")
        )
        recipe = parse(text.replace("customer", "who"), ["output=labels/{date}"])
        result = run(recipe, date=datetime.date.fromisoformat(DAYS[number]))
    assert (result.matching["by"], result.matching["n_shared"], result.matching["n_moved"]) == ("ids", 81, 0)


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_alerts__what_changed_by_more_than_is_allowed():
    found = match_shared(shared_of([[60, 40], [0, 100]], entered=[0, 10]), [0, 1])
    limits = Alerts(moved=0.1, size=0.3, agreement=0.05)
    assert alerts_of(found, 0.8, 0.7, limits) == [
        "20 % of the samples in both runs moved, allowed are 10 %",
        "cluster 0 has 60 samples, before 100: changed by 40 %, allowed are 30 %",
        "cluster 1 has 150 samples, before 100: changed by 50 %, allowed are 30 %",
        "agreement fell from 0.800 to 0.700, allowed is a fall of 0.05",
    ]
    assert alerts_of(found, 0.8, 0.7, Alerts(moved=0.2, size=0.5, agreement=0.2)) == []
    assert alerts_of(found, 0.7, 0.8, Alerts()) == []
    assert alerts_of(first(np.array([5])), 0.8, 0.1, Alerts(moved=0.1, size=0.1)) == []


def test_alerts__in_run_json_output_log_report_and_exit_code(folder):
    Path("recipe.yaml").write_text(RECIPE)
    frame = pd.read_csv(f"data/{DAYS[2]}.csv")
    frame = frame[~frame["customer"].str.startswith("c10") | (frame["customer"].str[-1] == "7")]
    frame.to_csv(f"data/{DAYS[3]}.csv", index=False)
    command = ["run", "recipe.yaml", "--date", DAYS[3], "--set", "alert={size: 0.5}", "--json", "--quiet"]
    out, err = cehm(*command)
    (alert,) = json.loads(out)["alerts"]
    assert "changed by" in alert
    assert f"alert: {alert}" in err
    state = json.loads(Path(f"runs/{DAYS[3]}/run.json").read_text())
    assert state["alerts"] == [alert]
    assert alert in Path(f"runs/{DAYS[3]}/run.log").read_text()
    assert "changed by" in Path(f"runs/{DAYS[3]}/report.html").read_text()
    out, err = cehm(*command, "--fail-on-alert", code=8)  # the run itself is done, and stays so
    assert set(json.loads(out)["steps"].values()) == {"skipped"}
    assert "error: 1 alert(s), the run is done: " in err
    cehm(*command[:-2], "--set", "alert={size: 5}", "--fail-on-alert")
    assert json.loads(Path(f"runs/{DAYS[3]}/run.json").read_text())["alerts"] == []


# --- retention --------------------------------------------------------------------------------------------------------


def test_keep__the_oldest_go_and_nothing_else_is_touched(folder):
    Path("runs/2026-11-01").mkdir()
    Path("runs/2026-11-01/mine.txt").write_text("mine")
    Path("runs/2026-11-02").mkdir()
    Path("runs/2026-11-02/run.json").write_text('{"somebody": "else"}')
    shutil.copytree(f"runs/{DAYS[0]}", "runs/other-2026-11-03")
    Path(f"runs/{DAYS[0]}/.cehm-123.half").write_text("of a crash")
    on(3, "keep=2")
    left = {path.name for path in Path("runs").iterdir()}
    assert left == {"2026-11-01", "2026-11-02", "other-2026-11-03", DAYS[2], DAYS[3]}
    log = Path(f"runs/{DAYS[3]}/run.log").read_text()
    assert f"{DAYS[0]} is removed" in log
    assert set(on(3, "keep=2").steps.values()) == {"skipped"}


def test_keep__never_the_one_that_is_followed(folder):
    on(3, "keep=1")
    assert {path.name for path in Path("runs").iterdir()} == {DAYS[2], DAYS[3]}
    on(3, f"follow=runs/{DAYS[2]}", "keep=1")
    assert Path("runs", DAYS[2]).is_dir()


def test_keep__what_holds_foreign_things_or_is_being_written_stays(folder):
    Path(f"runs/{DAYS[0]}/notes.txt").write_text("mine")
    before = {path: path.stat().st_mtime_ns for path in Path("runs", DAYS[0]).rglob("*")}
    lock = Lock(str(folder / "runs" / DAYS[1]))
    lock.take()
    try:
        on(3, "keep=1")
    finally:
        lock.release()
    assert {path: path.stat().st_mtime_ns for path in Path("runs", DAYS[0]).rglob("*")} == before
    assert is_finished(Directory(f"runs/{DAYS[1]}").read())
    log = Path(f"runs/{DAYS[3]}/run.log").read_text()
    assert "stays, because it holds notes.txt, which no run wrote" in log
    assert "is being written by another run" in log


def test_keep__links_are_not_followed(folder):
    shutil.move(f"runs/{DAYS[0]}", "elsewhere")
    Path(f"runs/{DAYS[0]}").symlink_to(folder / "elsewhere", target_is_directory=True)
    shutil.move(f"runs/{DAYS[1]}/ensemble.zarr", "big.zarr")
    Path(f"runs/{DAYS[1]}/ensemble.zarr").symlink_to(folder / "big.zarr", target_is_directory=True)
    on(3, "keep=1")
    assert Path("elsewhere/run.json").is_file()
    assert Path("big.zarr/zarr.json").is_file()


def test_keep__an_interrupted_removal_goes_on(folder, monkeypatch):
    from cehm_dask.pipeline import retention

    def breaks(url):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(retention, "remove", breaks)
        on(3, "keep=2")
    assert Path(f"runs/{DAYS[0]}/run.json").is_file()
    assert "could not be removed" in Path(f"runs/{DAYS[3]}/run.log").read_text()
    on(3, "keep=2")
    assert not Path(f"runs/{DAYS[0]}").exists()
    assert not Path(f"runs/{DAYS[1]}").exists()


# --- hooks ------------------------------------------------------------------------------------------------------------

SAYS = "import os; print({k: v for k, v in os.environ.items() if k.startswith('CEHM_')}); open('told', 'a').write('x')"


def hook(code, name="success"):
    return f"hooks={json.dumps({name: [sys.executable, '-c', code]})}"


def test_hook__of_success_is_called_once_and_knows_the_run(folder):
    on(3, hook(SAYS), until="consensus")
    assert not Path("told").exists()
    on(3, hook(SAYS))
    on(3, hook(SAYS))
    assert Path("told").read_text() == "x"
    log = Path(f"runs/{DAYS[3]}/run.log").read_text()
    assert "'CEHM_STATUS': 'success'" in log
    assert f"'CEHM_RUN': '{folder}/runs/{DAYS[3]}'" in log
    assert f"'CEHM_DATE': '{DAYS[3]}'" in log


def test_hook__of_failure_knows_the_error_and_changes_nothing(folder):
    with pytest.raises(NotFoundError, match=r"gone\.csv"):
        on(3, hook(SAYS, "failure"), "features.path=gone.csv")
    log = Path(f"runs/{DAYS[3]}/run.log").read_text()
    assert "'CEHM_EXIT_CODE': '2'" in log
    assert "gone.csv" in log.split("CEHM_MESSAGE")[1]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([sys.executable, "-c", "print('no', flush=True); raise SystemExit(3)"], "ended with 3: no"),
        (["no-such-command"], "did not run to its end"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], "did not run to its end"),
    ],
)
def test_hook__that_fails_is_a_warning(folder, monkeypatch, command, said):
    monkeypatch.setattr("cehm_dask.pipeline.hooks.SECONDS", 2)
    result = on(3, f"hooks={json.dumps({'success': command})}")
    assert result.steps["report"] == "done"
    assert said in Path(f"runs/{DAYS[3]}/run.log").read_text()


def test_hook__its_secrets_are_masked(folder, monkeypatch):
    monkeypatch.setenv("HOOK_WORD", "very-secret-word")
    on(3, f"hooks={{success: [{sys.executable}, -c, \"print(1, '${{HOOK_WORD}}')\"]}}")
    for path in Path("runs", DAYS[3]).rglob("*"):
        assert not path.is_file() or b"very-secret" not in path.read_bytes(), path
    assert "${HOOK_WORD}" in Path(f"runs/{DAYS[3]}/run.log").read_text()


def test_run_json__of_a_run_before_names_can_be_followed(folder):
    on(0, "follow=null", overwrite=True)
    assert not Path(f"runs/{DAYS[0]}/matching.json").exists()
    assert with_seal(json.loads(Path(f"runs/{DAYS[0]}/run.json").read_text()))
    on(1, overwrite=True)
    assert matching_of(1)["n_moved"] == 0
    assert labels_of(1).keys() & labels_of(0).keys()
