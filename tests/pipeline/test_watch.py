"""A run on its way: what it writes of itself, and the page made of it, from its files alone."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from cehm_dask import CEHM
from cehm_dask.data.synth import Synth
from cehm_dask.errors import InputError
from cehm_dask.pipeline import heartbeat, watch
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.heartbeat import Heartbeat
from cehm_dask.pipeline.recipe import parse
from cehm_dask.pipeline.result import RunProgress
from cehm_dask.pipeline.run import run
from cehm_dask.pipeline.watch import Watch, serving, write_pages
from cehm_dask.progress import Event
from tests.browsing import chromium, drive, in_browser
from tests.conftest import cehm

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

HOSTILE = "<script>alert(1)</script>"
RECIPE = """\
features: {sklearn: iris}
scale: none
ensemble: {members: 5, k_max: 6}
consensus: {k: 3}
output: out
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begun(path):
    """An empty run directory."""
    Path(path).mkdir()
    directory = Directory(str(path))
    directory.write({"steps": {}})
    return directory


def told(path="out"):
    return json.loads(Path(path, "progress.json").read_text())


def event(number, assigned=50, loss=None, stage="diffusion"):
    return Event(0, stage, number, assigned, 7, 100, loss, number)


# --- progress.json -----------------------------------------------------------------------------------------------


def test_run__writes_what_it_does_and_how_it_ended(here):
    seen = []

    class Looks(RunProgress):
        def begins(self, step, what):
            seen.append((step, told()["state"]))

    run(parse(RECIPE), progress=Looks())
    assert seen == [(step, "running") for step in ("ensemble", "consensus", "profile", "evaluate", "report")]
    found = told()
    assert found["state"] == "done"
    assert found["error"] == ""
    assert found["steps"]["report"] == "done"
    assert found["memory"]["peak"] >= found["memory"]["now"] > 0
    run(parse(RECIPE))
    assert set(told()["steps"].values()) == {"done before", "the recipe asks for none", "the recipe follows no run"}
    assert not list(here.glob("out/.cehm-*"))


@pytest.mark.parametrize(("error", "state"), [(ValueError("it broke"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_run__that_failed_says_so(here, monkeypatch, error, state):
    def fails(*_args, **_named):
        raise error

    monkeypatch.setattr("cehm_dask.pipeline.following.describe", fails)
    with pytest.raises(type(error)):
        run(parse(RECIPE))
    assert told()["state"] == state
    assert told()["step"] == "profile"


def test_run__secrets_in_errors_are_masked(here):
    directory = begun("out")
    own = Heartbeat(directory, RunProgress())
    own.begins("ensemble", "s3://key:secret@bucket/x")
    own.__exit__(None, InputError("s3://key:secret@bucket/x is missing"), None)
    text = Path("out/progress.json").read_text()
    assert "key:secret" not in text
    assert told()["error"] == "s3://***@bucket/x is missing"


def test_heartbeat__nothing_is_written_before_there_is_a_run_directory(here):
    with Heartbeat(Directory(str(here)), RunProgress()) as own:
        own.advanced("rows", 1, 2)
    assert os.listdir(here) == []


def test_heartbeat__beats_by_the_clock_whatever_happens(here, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY", 0.1)
    written = []
    monkeypatch.setattr(heartbeat, "write_whole", lambda _url, content, **_: written.append(json.loads(content)))
    with Heartbeat(begun("out"), RunProgress()) as own:
        own.begins("consensus", "")
        for done in range(20_000):
            own.advanced("rows", done, 20_000)
        began = time.monotonic()
        while len(written) < 4 and time.monotonic() - began < 30:
            time.sleep(0.05)
    times = [one["written"] for one in written]
    assert len(written) >= 5  # also while nothing was told
    assert min(np.diff(times[:-1])) >= 0.09
    assert [one["beat"] for one in written] == list(range(1, len(written) + 1))


def test_heartbeat__a_disk_that_refuses_stops_nothing(here, monkeypatch):
    def full(*_args, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(heartbeat, "write_whole", full)
    assert run(parse(RECIPE)).steps["report"] == "done"


def test_heartbeat__takes_under_a_hundredth_of_the_time(here):
    """A write each second may take 10 ms, and what is told in between a few microseconds."""
    with Heartbeat(begun("out"), RunProgress()) as own:
        own.begins("consensus", "")
        for number in range(heartbeat.MOST_ROUNDS):
            own.round_done(event(number))
        before = time.thread_time()
        for _ in range(50):
            own._write()
        a_write = (time.thread_time() - before) / 50
        before = time.thread_time()
        for done in range(10_000):
            own.advanced("rows", done, 10_000)
        a_call = (time.thread_time() - before) / 10_000
    assert a_write < 0.01 * heartbeat.EVERY
    assert a_call < 50e-6
    assert Path("out/progress.json").stat().st_size < 64 << 10


def test_heartbeat__tells_rounds_workers_and_time_left(here, monkeypatch):
    monkeypatch.setattr(heartbeat, "workers_of", lambda _: {"a": {"nthreads": 2, "metrics": {"memory": 5}}})
    with Heartbeat(begun("out"), RunProgress()) as own:
        own.joined(object())
        own.begins("consensus", "x")
        own.advanced("intersections", 30, 120)
        own._work_began -= 10
        own._write()
        assert told()["left"] == {"seconds": pytest.approx(30, abs=1), "of": "intersections"}
        own.round_done(event(1, 20, stage="start"))
        own._first = (own._first[0] - 10, 20)
        own.round_done(event(2, 60))
        own._write()
    found = told()
    assert found["workers"] == {"workers": 1, "threads": 2, "memory": 5}
    assert found["left"] == {"seconds": pytest.approx(10, abs=1), "of": "full assignment"}
    assert [one["round"] for one in found["rounds"]] == [1, 2]


# --- the page ----------------------------------------------------------------------------------------------------


def shown(own):
    return own.page(2)[0]


def test_watch__a_folder_that_is_no_run_is_refused(here):
    with pytest.raises(InputError, match=r"no run directory \(it has no run.json\)"):
        Watch(str(here))
    assert "no run directory" in cehm("watch", here, code=2)[1]


def test_watch__waiting_running_silent_done(here, monkeypatch):
    directory = begun("out")
    own = Watch("out")
    assert own.look().headline == "Waiting"
    with Heartbeat(directory, RunProgress()) as beats:
        beats.begins("consensus", "1,000 samples")
        beats.round_done(event(1, 40, stage="start"))
        beats.advanced("diffusion", 25, 100)
        beats._write()
        page, over = own.page(2)
        assert not over
        assert "<h1>Running: consensus</h1>" in page
        assert 'content="2"' in page
        assert re.search(r"<dt>assigned</dt><dd>40.0%", page)
        assert 'aria-valuenow="25.0"' in page
        monkeypatch.setattr(watch, "SILENT_SECONDS", 0.0)
        beats._over.set()
        beats._thread.join()
        beats._told["every"] = 0
        monkeypatch.setattr(beats, "_every", 0.0)
        beats._write()
        own.look()
        time.sleep(0.1)
        view = own.look()
        assert (view.headline, view.well, view.over) == ("Silent", False, False)
        assert "no sign of life" in shown(own)
        assert "left, about" not in shown(own)
    page, over = own.page(2)
    assert over
    assert "<h1>Done</h1>" in page
    assert 'http-equiv="refresh"' not in page


def test_watch__a_clock_that_is_wrong_does_not_make_a_run_silent(here):
    directory = begun("out")
    own = Watch("out")
    note = {"format": heartbeat.FORMAT, "version": 1, "every": 1, "state": "running", "steps": {}, "rounds": []}
    note |= {"work": None, "workers": None, "memory": {"now": 1, "peak": 1}, "step_seconds": 1, "left": None}
    for beat, wanted in ((1, "Silent"), (2, "Running: begins")):
        Path(directory.path("progress.json")).write_text(json.dumps(note | {"beat": beat, "written": 5.0}))
        assert own.look().headline == wanted


def test_watch__a_run_in_an_object_store(here, monkeypatch):
    monkeypatch.setattr(heartbeat, "EVERY", 0.01)  # not this one
    directory = Directory("memory://watched/run")
    directory.write({"steps": {}})
    with Heartbeat(directory, RunProgress()) as beats:
        beats.begins("ensemble", "")
        time.sleep(0.3)
        assert Watch(directory.url).look().headline == "Running: ensemble"
        assert beats._beat == 1
    assert Watch(directory.url).look().over


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "cehm progress", "version": 99}', "\x00\xff"])
def test_watch__a_damaged_file_is_waited_for(here, content):
    begun("out")
    Path("out/progress.json").write_text(content)
    assert Watch("out").look().headline == "Waiting"


def test_watch__what_an_earlier_run_left_is_not_shown_beside_a_new_one(here):
    run(parse(RECIPE))
    assert Watch("out").look().headline == "Done"
    own = Watch("out", begun=False)
    assert own.look().headline == "Waiting"
    assert not own.look().over
    run(parse(RECIPE))
    assert own.look().headline == "Done"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run directory whose consensus was stopped after some rounds, with the assignments on its way."""
    folder = tmp_path_factory.mktemp("stopped") / "out"
    directory = begun(folder)
    ensemble = str(folder.parent / "ensemble.zarr")
    Synth(500, 10, n_classes=5, k_min=5, k_max=9, follow=0.5, missing=0.1, seed=1).write(ensemble)
    steps = []

    class EnoughError(Exception):
        pass

    def follow(_restart, _stage, number, assignment):
        steps.append(assignment.copy())

    class Stops(RunProgress):
        def round_done(self, event):
            if event.round == 4:
                raise EnoughError

    beats = Heartbeat(directory, Stops())
    beats.begins("consensus", f"about {HOSTILE}")
    with pytest.raises(EnoughError):
        CEHM(5, variant="released", random_state=0).fit(
            ensemble, output=directory.path("consensus.zarr"), record=follow, progress=beats
        )
    beats._over.set()
    beats._thread.join()
    beats._write()
    Path(directory.path("run.log")).write_text(f"begins {HOSTILE}\n")
    return folder, steps


def test_watch__the_picture_is_where_the_samples_stand(stopped):
    folder, steps = stopped
    view = Watch(str(folder)).look()
    np.testing.assert_array_equal(view.followed.labels, steps[3])  # all 500 are followed
    assert view.followed.coordinates.shape == (500, 2)
    page = shown(Watch(str(folder)))
    waiting = int((steps[3] < 0).sum())
    assert waiting
    assert page.count("not assigned yet</title>") == waiting
    assert f"{waiting} are not assigned yet." in page
    for cluster, size in enumerate(np.bincount(steps[3][steps[3] >= 0])):
        assert f"cluster {cluster}: {size:,} samples" in page
    assert 'id="fig-moved"' in page


def test_watch__text_of_others_is_escaped_and_nothing_is_asked_for(stopped):
    page = shown(Watch(str(stopped[0])))
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
    assert "<script" not in page
    assert "default-src 'none'" in page
    assert not re.search(r"""\s(?:src|action)\s*=|url\(|@import""", page)


def test_watch__a_look_reads_only_what_is_new(stopped, monkeypatch):
    own = Watch(str(stopped[0]))
    own.look()
    read = []
    real = watch.trail_since

    def spy(url, seen):
        found = real(url, seen)
        read.append(set(found[1]))
        return found

    monkeypatch.setattr(watch, "trail_since", spy)
    assert own.look().followed is not None
    assert read == [set()]


# --- served and written ------------------------------------------------------------------------------------------


def ask(address, **headers):
    request = urllib.request.Request(address, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, dict(answer.headers), answer.read().decode()


def test_server__answers_those_who_know_the_address(stopped):
    with serving(Watch(str(stopped[0])), 0, 2) as address:
        status, headers, page = ask(address)
        assert status == 200
        assert "<h1>" in page
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        root = address.rsplit("/", 2)[0]
        for wrong, host in (
            (f"{root}/", None),
            (f"{root}/other/", None),
            (f"{address}x", None),
            (address, "evil.org:80"),
        ):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                ask(wrong, **({"Host": host} if host else {}))
        port = int(root.rsplit(":", 1)[1])
        with pytest.raises(OSError, match="choose another"), serving(Watch(str(stopped[0])), port, 2):
            pass
    with pytest.raises(urllib.error.URLError):
        ask(address)


def test_write__rewrites_one_page_until_the_run_is_over(here):
    directory = begun("out")
    own, pages = Watch("out"), []
    with Heartbeat(directory, RunProgress()) as beats:
        beats.begins("consensus", "")
        thread = threading.Thread(target=lambda: pages.append(write_pages(own, "page.html", 0.1)))
        thread.start()
        began = time.monotonic()
        while not Path("page.html").exists() and time.monotonic() - began < 30:
            time.sleep(0.05)
        assert "Running" in Path("page.html").read_text()
    thread.join(30)
    assert pages == [Path("page.html")]
    assert "<h1>Done</h1>" in Path("page.html").read_text()
    out, _ = cehm("watch", "out", "--write", "page.html")
    assert "written: page.html" in out
    Path("mine.html").write_text("<title>mine</title>")
    assert "no page that this program wrote" in cehm("watch", "out", "--write", "mine.html", code=2)[1]


def test_server__a_reader_who_is_there_sees_how_the_run_ended(here):
    directory, said = begun("out"), []

    def read(address):
        for _ in range(40):
            said.append(ask(address)[2])
            time.sleep(0.05)
            if "<h1>Failed</h1>" in said[-1]:
                return

    def fails():
        with serving(Watch("out"), 0, 1, to_the_end=True) as address:
            thread = threading.Thread(target=read, args=(address,))
            with Heartbeat(directory, RunProgress()) as beats:
                beats.begins("consensus", "")
                thread.start()
                while not said:
                    time.sleep(0.01)
                raise InputError("it broke")

    with pytest.raises(InputError, match="it broke"):
        fails()
    assert "<h1>Failed</h1>" in said[-1]
    assert "it broke" in said[-1]


def test_command__watch_serves_until_it_is_stopped(stopped):
    command = [sys.executable, "-m", "cehm_dask", "watch", str(stopped[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        address = process.stdout.readline().strip()
        assert ask(address)[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def test_command__run_live_says_where(here):
    Path("recipe.yaml").write_text(RECIPE)
    _, err = cehm("run", "recipe.yaml", "--live", "--quiet")
    assert re.search(r"live: http://127\.0\.0\.1:\d+/[\w-]{20,}/", err)
    assert told()["state"] == "done"


def test_command__a_run_that_was_killed_is_shown_as_such_and_resumes(here, monkeypatch):
    Path("recipe.yaml").write_text(RECIPE)
    wait = "import cehm_dask.pipeline.following as r, time; r.describe = lambda *a, **b: time.sleep(600); "
    code = f"{wait}from cehm_dask.cli import main; main(['run', 'recipe.yaml', '--quiet'])"
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code])
    try:
        began = time.monotonic()
        while time.monotonic() - began < 120 and not (
            Path("out/progress.json").exists() and told().get("step") == "profile"
        ):
            time.sleep(0.1)
        assert Watch("out").look().headline == "Running: profile"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    monkeypatch.setattr(watch, "SILENT_SECONDS", 0.0)
    time.sleep(6.5)
    assert Watch("out").look().headline == "Silent"
    run(parse(RECIPE))
    assert Watch("out").look().headline == "Done"


@pytest.fixture(scope="module")
def devtools(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as port:
        yield port


@in_browser
@pytest.mark.parametrize("width", [1280, 390])
def test_browser__shows_the_page_and_complains_of_nothing(stopped, devtools, width, monkeypatch):
    monkeypatch.setattr(watch, "SILENT_SECONDS", 3600.0)  # tests before this one may take long

    async def story(tab):
        with serving(Watch(str(stopped[0])), 0, 60) as address:
            await tab.open(address, width)
            assert "consensus" in await tab.tell("document.querySelector('h1').textContent")
            assert await tab.tell("document.querySelectorAll('#fig-picture circle').length") == 500
            assert HOSTILE in await tab.tell("document.querySelector('pre').textContent")
            assert await tab.tell("document.scripts.length") == 0
            assert await tab.tell("document.documentElement.scrollWidth") <= width

    drive(devtools, story)


@in_browser
def test_browser__the_page_renews_itself_until_the_run_is_over(here, devtools):
    directory = begun("out")

    async def story(tab):
        head = "document.querySelector('h1')?.textContent ?? ''"
        with serving(Watch("out"), 0, 1) as address:
            with Heartbeat(directory, RunProgress()) as beats:
                beats.begins("consensus", "")
                await tab.open(address)
                assert await tab.tell(head) == "Running: consensus"
            began = time.monotonic()
            while await tab.tell(head) != "Done":
                assert time.monotonic() - began < 30

    drive(devtools, story)
