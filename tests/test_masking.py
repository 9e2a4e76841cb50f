"""A canary through every output of every command: stdout, stderr, and every byte of every file that is written."""

import html
import json
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.parse
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from sklearn.datasets import load_iris

from cehm_dask import CEHM, cli, masking
from cehm_dask.cli import display
from cehm_dask.clusters.config import exports, read_config
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ingest import ingest
from cehm_dask.data.synth import Synth
from cehm_dask.errors import InputError
from cehm_dask.masking import LEAST, masked, masked_values, remember, remember_credentials, shown
from cehm_dask.pipeline.recipe import RecipeError, parse
from cehm_dask.pipeline.run import run

pytestmark = [
    pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning"),
    pytest.mark.filterwarnings("ignore:constant columns dropped"),
]

CANARY = "CANARY7f3a9c"
NASTY = {
    "plain": CANARY,
    "long": f"{CANARY}-" + "x" * 200 + CANARY,
    "quotes": f"""{CANARY}'s "own" {CANARY}""",
    "pattern": f"[{CANARY}](.*)+$^|?\\d {CANARY}",
    "lines": f"{CANARY} one\n{CANARY} two",
    "accents": f"é{CANARY}😀",
    "percent": f"%41{CANARY}%2F&<b>{CANARY}",
    "markup": f"[red]{CANARY}[/] [b]",
}


def ways(value):
    """A value as programs write it."""
    yield value
    yield from (repr(value), repr([value]), repr(repr(value)), repr(value.encode()), repr(f"'\"{value}"))
    yield from (json.dumps(value), json.dumps(value, ensure_ascii=False), json.dumps(json.dumps(value)))
    yield from (urllib.parse.quote(value), urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value))
    yield from (
        html.escape(value),
        shlex.quote(value),
        " ".join(value.split()),
        yaml.safe_dump({"key": value}, width=9999),
    )
    yield yaml.safe_dump({"key": value}, allow_unicode=True, width=9999)


@pytest.mark.parametrize("kind", NASTY)
def test_masked__however_it_is_written(kind):
    remember(NASTY[kind], "VAR")
    for text in ways(NASTY[kind]):
        assert CANARY not in masked(f"before {text} after"), text
        assert "before" in masked(f"before {text} after")
        assert "after" in masked(f"before {text} after")
    assert masked(NASTY[kind]) == "${VAR}"


@pytest.mark.parametrize(
    "value", ["/srv/place/deep", "/srv/place/deep/", "../up/place", "./place/deep", "s3://bucket/place/"]
)
def test_masked__paths_also_as_programs_shorten_them(value):
    remember(value, "VAR")
    for text in (value, os.path.normpath(value), os.path.abspath(value), value.rstrip("/"), value.split("://")[-1]):
        assert "place" not in masked(text), text
    assert masked("/srv/place/x") == ("${VAR}/../x" if value.startswith("/srv") else "/srv/place/x")
    assert masked("/srv") == "/srv"


@pytest.mark.parametrize(
    "value", ["", "a", "k=3", "12", "1234567", "2GiB", "1e6", "auto", "kmeans", "true", "consensus"]
)
def test_masked__what_is_no_secret(value):
    import cehm_dask.pipeline.recipe_model  # noqa: F401  the words of recipes

    remember(value, "VAR")
    assert masked(f"of {value} in all") == f"of {value} in all"
    assert len("k=3") < LEAST


def test_masked__a_number_of_eight_digits_is():
    remember("12345678", "PIN")
    assert masked("pin 12345678") == "pin ${PIN}"


def test_masked__the_longest_value_first():
    remember("data", "A")
    remember("data/set", "B")
    assert masked("data/set and data") == "${B} and ${A}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("s3://key:pass/word@bucket/x", "s3://***@bucket/x"),
        ("https://token@host/x", "https://***@host/x"),
        ("tcp://127.0.0.1:8786", "tcp://127.0.0.1:8786"),
        ("s3://bucket/a@b/c", "s3://bucket/a@b/c"),
        ("https://h/x?X-Amz-Signature=abc&part=1", "https://h/x?X-Amz-Signature=***&part=1"),
        ("https://h/x?api_key=abc;sig=d", "https://h/x?api_key=***;sig=***"),
        ("AWSAccessKeyId: k=3 key=4", "AWSAccessKeyId: k=3 key=4"),
    ],
)
def test_masked__credentials_in_urls(text, wanted):
    assert masked(text) == wanted


def test_credentials__of_the_environment_and_of_arguments():
    environment = {"AWS_SECRET_ACCESS_KEY": CANARY, "MY_TOKEN": "short", "PATH": "/usr/local/bin"}
    remember_credentials(environment, ["x", "s3://key:hidden%2Fword@bucket"])
    assert masked(f"{CANARY} short /usr/local/bin") == "${AWS_SECRET_ACCESS_KEY} short /usr/local/bin"
    assert masked("bucket key:hidden%2Fword@bucket, hidden/word") == "bucket ***bucket, ***"


def test_masked__folders_that_everybody_knows_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    remember(str(tmp_path / "data"), "DATA")
    assert masked(f"{tmp_path}/data/x in {tmp_path}/runs") == f"${{DATA}}/x in {tmp_path}/runs"
    remember_credentials({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path)})
    assert masked(f"{tmp_path}/runs") == f"{tmp_path}/runs"


def test_shown__is_masked_before_it_is_cut():
    remember(f"{CANARY}{'x' * 100}", "VAR")
    assert shown([f"{CANARY}{'x' * 100}"]) == "['${VAR}']"


def test_values__keys_and_numbers_keep_their_form():
    remember("report", "VAR")
    remember("12345678", "PIN")
    assert masked_values({"report": ["a report", 12345678, None]}) == {"report": ["a ${VAR}", 12345678, None]}


# --- every command -----------------------------------------------------------------------------------------------

RECIPE = """\
features: {path: "${TOKEN}/iris.csv", id: flower}
scale: none
ensemble: {members: 4, k_max: 8}
consensus: {k: 3}
truth: {column: species}
output: "${TOKEN}/run"
export: csv
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Inputs of every command."""
    folder = tmp_path_factory.mktemp("inputs")
    iris = load_iris(as_frame=True)
    frame = iris.data.assign(species=iris.target_names[iris.target])
    frame.insert(0, "flower", [f"{number:03}" for number in range(150)])
    frame.to_csv(folder / "iris.csv", index=False)
    labels, truth = Synth(150, 6, n_classes=3, k_min=4, k_max=8).arrays()
    np.save(folder / "labels.npy", labels)
    np.save(folder / "truth.npy", truth)
    np.save(folder / "features.npy", iris.data.to_numpy())
    ingest(labels, str(folder / "e.zarr"))
    CEHM(3, random_state=0).fit(str(folder / "e.zarr"), output=str(folder / "c.zarr"))
    (folder / "cut.npy").write_bytes((folder / "labels.npy").read_bytes()[:200])
    (folder / "folder").mkdir()
    (folder / "folder" / "file").touch()
    return folder


FAKE_SBATCH = '#!/bin/sh\ncat > "$(dirname "$0")/submitted.sh"; echo "$@" >> "$(dirname "$0")/arguments"; echo 42\n'
FAKE_SQUEUE = "#!/bin/sh\necho RUNNING\n"


@pytest.fixture
def place(inputs, tmp_path, monkeypatch, request):
    """The secret folder with all inputs in it, named by a variable; the current folder is the one around it."""
    value = NASTY[getattr(request, "param", "plain")]
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(inputs, home / value)
    monkeypatch.chdir(home)
    monkeypatch.setenv("TOKEN", value)
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in {"sbatch": FAKE_SBATCH, "squeue": FAKE_SQUEUE}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    Path("recipe.yaml").write_text(RECIPE)
    common = 'memory: 1GiB\nenvironment: {KEY: "${TOKEN}"}\nworkers: 1\n'
    Path("slurm.yaml").write_text(f'kind: slurm\nwalltime: "00:10:00"\nlog_directory: logs\n{common}')
    Path("kube.yaml").write_text("kind: kubernetes\nimage: cehm:1\nmemory: 1GiB\nworkers: 1\nmount: /\n")
    Path("kube-secret.yaml").write_text(f"kind: kubernetes\nimage: cehm:1\n{common}")
    Path("processes.yaml").write_text(f"kind: processes\n{common}")
    return value


def told(*args):
    """Exit code and all that is shown; runs the command in this process."""
    result = CliRunner().invoke(cli.main, list(args))
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout + "\n" + result.stderr


def hidden(*texts):
    """No canary in texts, however lines are broken, nor in any file below here or beside."""
    for text in texts:
        assert CANARY not in re.sub(r"\s+", "", text), text
    for path in Path.cwd().parent.rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert CANARY.encode() not in path.read_bytes(), path


DONE = {
    "run": ["run", "recipe.yaml"],
    "run --json": ["run", "recipe.yaml", "--json"],
    "plan": ["plan", "recipe.yaml"],
    "recipe": ["recipe", "--check", "recipe.yaml"],
    "consensus": ["consensus", "{0}/labels.npy", "--k", "3", "-o", "{0}/new.zarr"],
    "consensus csv": ["consensus", "{0}/labels.npy", "--k", "3", "-o", "{0}/new.csv"],
    "import": ["import", "{0}/labels.npy", "{0}/new.zarr"],
    "generate": ["generate", "{0}/features.npy", "{0}/new.zarr", "--k", "3", "--members", "3"],
    "synth": ["synth", "{0}/new.zarr", "--n", "100"],
    "info": ["info", "{0}/e.zarr"],
    "info consensus": ["info", "{0}/c.zarr"],
    "evaluate": ["evaluate", "{0}/c.zarr", "--truth", "{0}/truth.npy", "--ensemble", "{0}/e.zarr"],
    "evaluate --json": ["evaluate", "{0}/c.zarr", "--truth", "{0}/truth.npy", "--json"],
    "describe": ["describe", "{0}/c.zarr", "--features", "{0}/labels.npy"],
    "describe --json": ["describe", "{0}/c.zarr", "--json"],
    "stability": ["stability", "{0}/labels.npy", "--k", "3", "--all-members", "-o", "{0}/new.csv"],
    "predict": ["predict", "{0}/c.zarr", "{0}/labels.npy", "-o", "{0}/new.csv"],
    "grow": [
        *("grow", "{0}/c.zarr", "{0}/e.zarr", "--samples", "{0}/labels.npy"),
        *("--into", "{0}/larger.zarr", "-o", "{0}/new.zarr"),
    ],
    "report": ["report", "{0}/c.zarr", "--ensemble", "{0}/e.zarr", "-o", "{0}/new.html", "--title", "of {0}"],
    "submit slurm": ["submit", "recipe.yaml", "--cluster", "slurm.yaml"],
    "submit kubernetes": ["submit", "recipe.yaml", "--cluster", "kube.yaml", "--set", "output=/runs/${{TOKEN}}"],
}
FAILED = {
    "run": (2, ["run", "recipe.yaml", "--set", "features.path=${{TOKEN}}/none.csv"]),
    "run k": (2, ["run", "recipe.yaml", "--set", "consensus.k=${{TOKEN}}"]),
    "run scale": (2, ["run", "recipe.yaml", "--set", "scale=${{TOKEN}}"]),
    "run foreign": (2, ["run", "recipe.yaml", "--set", "output=${{TOKEN}}/folder"]),
    "run damaged": (
        2,
        ["run", "recipe.yaml", "--set", "features={{path: '${{TOKEN}}/cut.npy'}}", "--set", "truth=null"],
    ),
    "run memory": (3, ["run", "recipe.yaml", "--set", "memory=1MiB"]),
    "run cluster": (2, ["run", "recipe.yaml", "--set", "cluster=${{TOKEN}}/none.yaml"]),
    "plan": (2, ["plan", "recipe.yaml", "--set", "features.path=${{TOKEN}}/none.csv"]),
    "recipe": (2, ["recipe", "--check", "recipe.yaml", "--set", "memory=${{TOKEN}}"]),
    "recipe missing": (2, ["recipe", "--check", "{0}/none.yaml"]),
    "consensus": (2, ["consensus", "{0}/cut.npy", "--k", "3"]),
    "consensus foreign": (2, ["consensus", "{0}/labels.npy", "--k", "3", "-o", "{0}/folder/x/y.csv"]),
    "import": (2, ["import", "{0}/none.npy", "{0}/new.zarr"]),
    "generate": (2, ["generate", "{0}/none.npy", "{0}/new.zarr", "--k", "3"]),
    "info": (2, ["info", "{0}/none.zarr"]),
    "evaluate": (2, ["evaluate", "{0}/c.zarr", "--truth", "{0}/none.npy"]),
    "describe": (2, ["describe", "{0}/c.zarr", "--features", "{0}/none.npy"]),
    "history": (2, ["history", "{0}/none"]),
    "predict": (2, ["predict", "{0}/c.zarr", "{0}/none.npy", "-o", "{0}/new.csv"]),
    "grow": (2, ["grow", "{0}/c.zarr", "{0}/e.zarr", "--samples", "{0}/none.npy", "-o", "{0}/new.zarr"]),
    "watch": (2, ["watch", "{0}/none"]),
    "report": (2, ["report", "{0}/none.zarr", "-o", "{0}/new.html"]),
    "report --png": (2, ["report", "{0}/c.zarr", "-o", "{0}/folder"]),
    "submit": (2, ["submit", "recipe.yaml", "--cluster", "kube-secret.yaml", "--set", "output=/data/x"]),
    "status": (2, ["status", "{0}/folder"]),
    "cluster check": (2, ["cluster", "check", "{0}/none.yaml"]),
    "cluster certs": (2, ["cluster", "certs", "{0}/labels.npy"]),
    "compare": (2, ["compare", "{0}/none.npy", "--k", "3"]),
    "unknown option": (2, ["info", "{0}", "--{0}"]),
    "reproduce": (2, ["reproduce", "--data", "{0}/none", "-o", "{0}/new", "--sets", "{0}", "--methods", "plain"]),
    "url": (6, ["info", "http://user:CANARY7f3a9c@127.0.0.1:9/e.zarr?token=CANARY7f3a9c"]),
}
MODES = {
    "plain": [],
    "verbose": ["--verbose"],
    "json": ["--log-format", "json"],
    "both": ["--verbose", "--log-format", "json"],
}


@pytest.mark.parametrize("mode", ["verbose", "json"])
@pytest.mark.parametrize("command", DONE)
def test_canary__in_no_output_of_a_command_that_succeeds(place, command, mode):
    args = [arg.format(place) for arg in DONE[command]]
    code, said = told(*MODES[mode], *args)
    assert code == 0, said
    hidden(said)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("command", FAILED)
def test_canary__in_no_output_of_a_command_that_fails(place, command, mode):
    wanted, args = FAILED[command]
    code, said = told(*MODES[mode], *(arg.format(place) for arg in args))
    assert code == wanted, said
    hidden(said)


@pytest.mark.parametrize("place", NASTY, indirect=True)
def test_canary__of_any_kind_in_the_run_and_its_directory(place):
    code, said = told("--verbose", "run", "recipe.yaml", "--json")
    assert code == 0, said
    record = json.loads(said.splitlines()[0])
    assert record["run"] == f"{Path.cwd()}/${{TOKEN}}/run"
    assert Path(os.path.expandvars(record["report"])).is_file()
    assert yaml.safe_load(Path(place, "run", "recipe.yaml").read_text())["output"] == "${TOKEN}/run"
    assert open_ensemble(str(Path(place, "run", "ensemble.zarr"))).source == "${TOKEN}/iris.csv"
    failed = told("--verbose", "run", "recipe.yaml", "--set", "consensus.k=${TOKEN}")
    missing = told("--verbose", "run", "recipe.yaml", "--set", "features.path=${TOKEN}/none.csv")
    assert failed[0] == missing[0] == 2
    checked = told("recipe", "--check", "recipe.yaml")
    state = told("status", f"{place}/run")
    hidden(said, failed[1], missing[1], checked[1], state[1])
    assert "${TOKEN}/none.csv: no such file" in " ".join(missing[1].split())


@pytest.mark.parametrize("place", NASTY, indirect=True)
def test_canary__in_runs_that_follow_one_another_their_hooks_and_their_history(place):
    changes = [
        "output=${TOKEN}/{date}",
        "export=csv",
        "follow=previous",
        "keep=2",
        "hooks={success: [env], failure: [env]}",
    ]
    given = [part for change in changes for part in ("--set", change)]
    said = [told("run", "recipe.yaml", "--date", f"2026-11-0{day}", *given, "--json") for day in (1, 2, 3)]
    said.append(told("run", "recipe.yaml", "--date", "2026-11-04", *given, "--follow", "${TOKEN}/none"))
    assert [code for code, _ in said] == [0, 0, 0, 2], said
    assert json.loads(said[2][1].splitlines()[0])["follows"] == f"{Path.cwd()}/${{TOKEN}}/2026-11-02"
    assert "CEHM_STATUS=success" in Path(place, "2026-11-03", "run.log").read_text()
    assert not Path(place, "2026-11-01").exists()
    shown = [told("history", place, *more) for more in (["-o", "new.html"], ["--json"], ["--metrics"])]
    assert [code for code, _ in shown] == [0, 0, 0], shown
    hidden(*(text for _, text in (*said, *shown)))


def test_canary__every_command_is_tried():
    tried = {args[0] for args in (*DONE.values(), *(args for _, args in FAILED.values()))}
    assert set(cli.main.commands) - tried == {"demo", "verify"} & set(cli.main.commands)


def test_canary__a_bug_of_ours_is_masked_too(place, monkeypatch):
    def broken(path, *_, **__):
        raise KeyError(path)

    monkeypatch.setattr("cehm_dask.pipeline.inputs.as_features", broken)
    code, said = told("run", "recipe.yaml")
    assert code == 1
    assert "KeyError: '${TOKEN}/iris.csv'" in said
    assert "this is a bug of cehm; please report it with the lines above" in said
    hidden(said)


@pytest.mark.filterwarnings("default:odd")
def test_canary__warnings_are_masked(place, monkeypatch):
    monkeypatch.setattr(display, "describe", lambda _console, url: warnings.warn(f"odd {url}", stacklevel=1))
    code, said = told("info", f"{place}/e.zarr")
    assert code == 0
    assert "odd ${TOKEN}/e.zarr" in said


def test_canary__status_of_a_submitted_job(place):
    assert told("submit", "recipe.yaml", "--cluster", "slurm.yaml")[0] == 0
    code, said = told("status", f"{place}/run")
    assert code == 0
    assert "job 42 (slurm): RUNNING" in said
    code, again = told("submit", "recipe.yaml", "--cluster", "slurm.yaml")
    assert code == 7
    hidden(said, again)


def test_canary__compare(place):
    code, said = told("compare", f"{place}/e.zarr", "--k", "3", "--methods", "voting", "-o", f"{place}/new")
    assert code == 0, said
    hidden(said)


def test_canary__python_users_get_masked_errors(place):
    with pytest.raises(FileNotFoundError) as caught:
        run(parse(RECIPE, ["features.path=${TOKEN}/none.csv"]))
    assert CANARY not in repr(caught.value)
    with pytest.raises(RecipeError) as caught:
        parse(RECIPE, ["consensus.k=${TOKEN}"])
    assert CANARY not in repr(caught.value)


# --- processes ---------------------------------------------------------------------------------------------------


def test_process__a_cluster_whose_workers_fail_shows_no_canary(place):
    # Workers write to the same stderr, past the command.
    Path(place, "e.zarr", "labels", "c", "0", "0").write_bytes(b"damaged")
    args = [
        "--verbose",
        "consensus",
        f"{place}/e.zarr",
        "--k",
        "3",
        "--cluster",
        "processes.yaml",
        "-o",
        f"{place}/n.zarr",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "cehm_dask", *args], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert "Compute Failed" in done.stderr  # of a worker
    hidden(done.stdout, done.stderr)


# --- cluster files and jobs --------------------------------------------------------------------------------------


def test_cluster_file__variables(tmp_path, monkeypatch):
    monkeypatch.setenv("QUEUE", "hidden-queue")
    path = tmp_path / "slurm.yaml"
    path.write_text(
        'kind: slurm\nqueue: "${QUEUE}"\nmemory: "${MEMORY:-2GiB}"\nwalltime: "1:00"\nlog_directory: logs\n'
        'prologue: ["source ${VENV}/bin/activate"]\n'
    )
    config = read_config(str(path))
    assert (config.queue, config.memory) == ("hidden-queue", "2GiB")
    assert config.prologue == ["source ${VENV}/bin/activate"]  # the shell's
    path.write_text('kind: slurm\nqueue: "${NOWHERE}"\nmemory: 2GiB\nwalltime: "1:00"\nlog_directory: logs\n')
    with pytest.raises(InputError, match=r"queue: variable NOWHERE is not set"):
        read_config(str(path))
    path.write_text("kind: processes\nmemory: 1GiB\nmemory: 2GiB\n")
    with pytest.raises(InputError, match=r"keys that are there twice: memory \(line 3\)"):
        read_config(str(path))


def test_exports__a_secret_comes_from_the_environment_of_the_job():
    remember("it's $HOME; `ls`", "VAR")
    lines = exports({"A": "before it's $HOME; `ls` after", "B": "plain $HOME"})
    assert "ls" not in lines[0]
    script = "\n".join([*lines, 'printf "%s|%s" "$A" "$B"'])
    done = subprocess.run(
        ["bash", "-c", script], env={"VAR": "it's $HOME; `ls`"}, capture_output=True, text=True, check=False
    )
    assert done.stdout == "before it's $HOME; `ls` after|plain $HOME"
    done = subprocess.run(["bash", "-c", script], env={}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "VAR: is not set in this job" in done.stderr


def test_submit__the_job_finds_its_run_directory_by_the_variable(place):
    assert told("submit", "recipe.yaml", "--cluster", "slurm.yaml", "--date", "2026-11-16")[0] == 0
    script = Path(place, "run", "job.sh").read_text()
    assert (Path.cwd().parent / "tools" / "submitted.sh").read_text() == script
    assert "#SBATCH --output=/dev/null" in script
    command = script.splitlines()[-1].removeprefix("exec ")
    said = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[3:5] == ["run", f"{Path.cwd()}/{place}/run/recipe.yaml"]
    config = read_config(f"{place}/run/cluster.yaml")
    assert config.environment == {"KEY": place}


def test_submit__a_password_in_a_url_is_refused(place):
    override = "features.path=s3://key:password@bucket/x.npy"
    code, said = told(
        "submit",
        "recipe.yaml",
        "--cluster",
        "slurm.yaml",
        "--set",
        override,
        "--set",
        "truth=null",
        "--set",
        "features.id=null",
    )
    assert code == 2
    assert "write ${VAR} there" in said
    assert "password@" not in said


def test_workers__are_masked_and_unmasked(two_processes):
    from cehm_dask.clusters.connect import _masked_workers

    def handlers(_worker=None):
        return [type(handler.stream).__name__ for handler in logging.getLogger("distributed").handlers]

    with _masked_workers(two_processes, {"value-of-a-secret": "${VAR}"}):
        assert set(two_processes.run(lambda: masking.masked("a value-of-a-secret")).values()) == {"a ${VAR}"}
        assert all("MaskedStream" in found for found in two_processes.run(handlers).values())
    two_processes.run(masking.forget)


def test_table__nothing_is_cut_by_the_width_of_a_terminal(place, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, said = told("info", f"{place}/e.zarr")
    assert code == 0
    assert "${TOKEN}/e.zarr" in said
    hidden(said)
