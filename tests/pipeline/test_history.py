"""Runs over time: a row for every run, whatever state it is in, and metrics that scrapers can read."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cehm_dask.errors import NotFoundError
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.history import Day, metrics, read_days
from cehm_dask.pipeline.recipe import parse
from cehm_dask.pipeline.run import run
from cehm_dask.report.history import history_page
from tests.conftest import cehm
from tests.pipeline.test_following import DAYS, folder, made, on  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")


def test_days__are_those_of_a_folder_of_names_or_of_a_pattern(folder):  # noqa: F811
    days = read_days(["runs"])
    assert [day.date for day in days] == DAYS[:3]
    assert read_days([f"runs/{DAYS[1]}", f"runs/{DAYS[0]}/"]) == days[:2]
    assert read_days([f"runs/*{DAYS[0][-2:]}", "runs/2026-11-1?"]) == days
    for day in days:
        assert (day.state, day.k, day.n_samples, sum(day.sizes.values())) == ("finished", 3, 180, 180)
        assert day.seconds > 0
    assert [day.moved for day in days] == [None, 0.0, 0.0]
    assert days[0].changes == []
    with pytest.raises(NotFoundError, match="nowhere: no run directory"):
        read_days(["runs", "nowhere"])
    Path("empty").mkdir()
    with pytest.raises(NotFoundError, match="nor a folder of them"):
        read_days(["empty"])


def test_days__unfinished_damaged_and_foreign_ones(folder):  # noqa: F811
    on(3, until="ensemble")
    Path("runs/notes").mkdir()
    Path("runs/file.txt").write_text("mine")
    Path(f"runs/{DAYS[0]}/run.json").write_text("{")
    Path(f"runs/{DAYS[1]}/matching.json").write_text("{}")
    state = Directory(f"runs/{DAYS[2]}").read()
    state["steps"]["report"]["state"] = "failed"
    Directory(f"runs/{DAYS[2]}").write({key: state[key] for key in ("steps", "recipe")})
    days = read_days(["runs"])
    assert [day.date for day in days] == DAYS[1:]
    assert days[0].state.startswith("damaged: ")
    assert (days[1].state, days[1].k) == ("report failed", 3)
    assert (days[2].state, days[2].k, days[2].sizes) == ("unfinished", None, {})
    out, _ = cehm("history", "runs")
    assert f"{DAYS[2]}: report failed" in out
    assert "matching.json" in history_page([day.to_dict() for day in days])


def test_days__of_a_run_without_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(parse("features: {sklearn: iris}\nensemble: {members: 4}\nconsensus: {k: 3}\noutput: out\n"))
    (day,) = read_days(["out"])
    assert (day.date, day.k, day.follows, sorted(day.sizes)) == (None, 3, None, [0, 1, 2])
    assert "cehm_run_date_seconds" not in metrics([day])


def test_command__table_json_page(folder):  # noqa: F811
    on(3, "consensus.k=4", "alert={moved: 0.9, size: 0.01}")
    out, err = cehm("history", "runs", "-o", "history.html")
    for day in DAYS:
        assert day in out
    assert f"{DAYS[3]}: cluster 3 is new" in out
    assert "written: history.html" in err
    page = Path("history.html").read_text()
    assert page.count("<tr>") == 1 + len(DAYS)
    assert "Cluster 3 is new." in page
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)
    assert "exists: choose another name" in cehm("history", "runs", "-o", "history.html", code=2)[1]
    cehm("history", "runs", "-o", "history.html", "--overwrite")
    rows = json.loads(cehm("history", "runs", "--json")[0])
    assert [row["date"] for row in rows] == DAYS
    assert rows[3]["sizes"]["3"] == 60
    assert "expected one of --json and --metrics" in cehm("history", "runs", "--json", "--metrics", code=2)[1]


def test_command__what_is_foreign_is_not_replaced(folder):  # noqa: F811
    Path("mine.html").write_text("mine")
    assert "no page that this program wrote" in cehm("history", "runs", "-o", "mine.html", "--overwrite", code=2)[1]
    assert Path("mine.html").read_text() == "mine"


def test_page__escapes_what_it_is_told():
    day = Day("/runs/<b>x", None, "damaged: <script>", 1.0, 5, 1, 0.5, {0: 5}, changes=["<i>"], alerts=["<u>&"])
    page = history_page([day.to_dict()])
    for bad in ("<b>x", "<script>", "<i>.", "<u>&"):
        assert bad not in page
    assert "&lt;b&gt;x" in page


def test_page__many_runs_stay_small():
    rng = np.random.default_rng(0)
    days = [
        Day(f"/r/{n}", f"{2000 + n // 360}-{n // 30 % 12 + 1:02}-{n % 28 + 1:02}", "finished", 1.0, 900, 30, 0.5, sizes)
        for n in range(1000)
        for sizes in [{int(c): 30 for c in rng.choice(60, 30, replace=False)}]
    ]
    page = history_page([day.to_dict() for day in days])
    assert "The 600 oldest runs are left out." in page
    assert len(page) < 5e6


LINE = re.compile(r'(# (TYPE|HELP) [a-z_]+ .+|[a-z_]+(\{cluster="[0-9]+"\})? -?[0-9.e+-]+|# EOF)')


def test_metrics__are_open_metrics(folder):  # noqa: F811
    out, _ = cehm("history", "runs", "--metrics")
    lines = out.splitlines()
    assert lines[-1] == "# EOF"
    assert all(LINE.fullmatch(line) for line in lines)
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(typed) == len(set(typed))
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert values["cehm_runs"] == "3"
    assert values["cehm_run_samples"] == "180"
    assert values['cehm_cluster_samples{cluster="0"}'] == "60"
    assert float(values["cehm_run_date_seconds"]) % 86400 == 0
    shutil.rmtree(f"runs/{DAYS[2]}/consensus.zarr")
    on(3, until="ensemble")
    values = metrics(read_days(["runs"]))
    assert "cehm_run_finished 0" in values
    assert "cehm_run_samples 180" in values
