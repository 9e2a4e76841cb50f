"""Stores in an object store: a pretended S3 on this machine's loopback, the same labels as in memory."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from cehm_dask import CEHM, cli, job
from cehm_dask.data import ensemble_store, files
from cehm_dask.data.attributes import read_facts
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ensemble_writer import create_ensemble
from cehm_dask.data.features import as_features
from cehm_dask.data.ingest import ingest
from cehm_dask.data.synth import Synth
from cehm_dask.errors import BusyError, ReplacedError, StoreError
from cehm_dask.members.fit import plan_members
from cehm_dask.members.generate import generate
from cehm_dask.pipeline.history import read_days
from cehm_dask.pipeline.recipe import load, parse
from cehm_dask.pipeline.run import run
from tests.listening import Advances
from tests.pretended_s3 import BUCKET, SECRET

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

PIPELINES = Path(__file__).parents[2] / "pipelines"


@pytest.fixture(scope="module")
def base_labels():
    labels, _ = Synth(400, 6, n_classes=4, k_min=4, k_max=7, follow=0.6).arrays()
    labels = labels.astype(np.int16)
    labels[np.random.default_rng(0).random(labels.shape) < 0.05] = -1
    labels[160:320] = -1  # a whole shard of silent rows
    return labels


@pytest.fixture(scope="module")
def wanted(base_labels):
    return CEHM(4, variant="released", random_state=0).fit(base_labels)


@pytest.fixture(scope="module")
def ensemble(s3, base_labels):
    url = f"s3://{BUCKET}/e.zarr"
    ingest(base_labels, url, chunk_rows=40)
    return url


@pytest.fixture
def output(s3, request):
    return f"s3://{BUCKET}/{request.node.name}.zarr"


def keys(s3, url):
    prefix = url.removeprefix(f"s3://{BUCKET}/")
    found = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix + "/").get("Contents", [])
    return {entry["Key"].removeprefix(prefix + "/") for entry in found}


def fit(ensemble, output, **options):
    return CEHM(4, variant="released", random_state=0).fit(ensemble, output=output, **options)


def assert_same(model, wanted):
    np.testing.assert_array_equal(model.labels_[:], wanted.labels_)
    np.testing.assert_array_equal(model.margin_[:], wanted.margin_.astype(np.float32))
    np.testing.assert_array_equal(model.loss_history_, wanted.loss_history_)


def test_ensemble__read_back(ensemble, base_labels):
    there = open_ensemble(ensemble)
    values = there.values or [np.arange(width - 1) for width in there.widths]
    codes = there.read(0, 400).astype(int)
    back = [np.where(c > 0, v[c - 1], -1) for c, v in zip(codes.T, values, strict=True)]
    np.testing.assert_array_equal(np.stack(back, axis=1), base_labels)
    np.testing.assert_array_equal(there.read(95, 130), codes[95:130])


def test_consensus__from_s3_to_s3(s3, ensemble, wanted, output):
    assert_same(fit(ensemble, output), wanted)
    np.testing.assert_array_equal(open_consensus(output).array("labels")[:], wanted.labels_)
    assert not keys(s3, output) & {files.LOCK_NAME, "checkpoint.npz"}
    with pytest.raises(StoreError, match="is finished: choose another name, or pass overwrite=True"):
        fit(ensemble, output)
    assert_same(fit(ensemble, output, overwrite=True), wanted)


def test_consensus__from_s3_with_too_little_memory_to_keep_labels(ensemble, wanted, monkeypatch):
    budget_of = job.budget_of
    monkeypatch.setattr(job, "budget_of", lambda *a: replace(budget_of(*a), keep_labels=False))
    np.testing.assert_array_equal(CEHM(4, variant="released", random_state=0).fit(ensemble).labels_, wanted.labels_)


def test_resume__after_an_interruption(s3, ensemble, wanted, output):
    def interrupt(event):
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(ensemble, output, progress=interrupt)
    assert "checkpoint.npz" in keys(s3, output)
    assert files.LOCK_NAME not in keys(s3, output)
    with pytest.raises(StoreError, match="half-written"):
        open_consensus(output)
    with pytest.raises(StoreError, match=r"restarts=2 \(there: 1\)"):
        CEHM(4, variant="released", restarts=2, random_state=0).fit(ensemble, output=output)
    rounds = []
    assert_same(fit(ensemble, output, progress=lambda event: rounds.append(event.round)), wanted)
    assert min(rounds) == 4  # it went on, and did not start anew


def test_lock__second_run_is_refused_while_the_first_writes(ensemble, wanted, output):
    refusals = []

    def progress(event):
        if event.round == 2:
            with pytest.raises(BusyError, match=r"being written by another run .* wait for it; if it is dead") as error:
                fit(ensemble, output, overwrite=True)
            refusals.append(str(error.value))

    assert_same(fit(ensemble, output, progress=progress), wanted)
    assert len(refusals) == 1


def test_lock__second_import_is_refused_while_the_first_writes(s3, base_labels, output):
    refusals = []

    def meddle(what, _done, _total):
        if what == "written":
            with pytest.raises(BusyError, match=r"being written by another run"):
                ingest(base_labels[::-1], output, overwrite=True)
            refusals.append(what)

    ingest(base_labels[::-1], output)
    ingest(base_labels, output, overwrite=True, progress=Advances(meddle))
    np.testing.assert_array_equal(open_ensemble(output).read(0, len(base_labels)).astype(int) - 1, base_labels)
    assert refusals
    assert files.LOCK_NAME not in keys(s3, output)


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "x.parquet"])
def test_features__files_in_the_store_are_read_by_rows(s3, name, tmp_path):
    values = np.random.default_rng(0).normal(size=(300, 3))
    frame = pd.DataFrame(values, columns=list("abc"))
    np.save(tmp_path / "x.npy", values)
    frame.to_csv(tmp_path / "x.csv", index=False)
    frame.to_parquet(tmp_path / "x.parquet", row_group_size=70)
    s3.upload_file(str(tmp_path / name), BUCKET, name)
    features = as_features(f"s3://{BUCKET}/{name}")
    assert (features.n_samples, features.n_features) == values.shape
    for start, stop in [(0, 300), (0, 1), (69, 141), (299, 300)]:
        np.testing.assert_array_equal(features.read(start, stop), values[start:stop])
    assert SECRET not in features.source


def test_features__of_the_store_that_cannot_be_read(s3, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"features s3://bucket/none.npy: no such file"):
        as_features(f"s3://{BUCKET}/none.npy")
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.ones((4, 3))))
    s3.upload_file(str(tmp_path / "columns.npy"), BUCKET, "columns.npy")
    with pytest.raises(ValueError, match=r"columns.npy: only arrays in row order"):
        as_features(f"s3://{BUCKET}/columns.npy")
    np.save(tmp_path / "text.npy", np.full((4, 3), "a"))
    s3.upload_file(str(tmp_path / "text.npy"), BUCKET, "text.npy")
    with pytest.raises(TypeError, match=r"text.npy have dtype <U1: expected numbers"):
        as_features(f"s3://{BUCKET}/text.npy")


def test_damaged__shard_lost_or_changed(s3, base_labels, output, monkeypatch):
    monkeypatch.setattr(ensemble_store.time, "sleep", lambda _: None)
    ingest(base_labels, output, chunk_rows=40)
    there = open_ensemble(output)
    prefix = output.removeprefix(f"s3://{BUCKET}/") + "/labels/c/"
    assert not there.read(160, 320).any()  # silent rows are not taken for lost ones

    whole = s3.get_object(Bucket=BUCKET, Key=f"{prefix}0/0")["Body"].read()
    s3.put_object(Bucket=BUCKET, Key=f"{prefix}0/0", Body=whole[:5] + bytes([whole[5] ^ 1]) + whole[6:])
    with pytest.raises(StoreError, match=r"rows 0 to 39 .* checksum"):
        there.read(0, 40)
    for shard in (0, 1):
        s3.delete_object(Bucket=BUCKET, Key=f"{prefix}{shard}/0")
        with pytest.raises(StoreError, match=f"shard {shard} is missing"):
            open_ensemble(output).read(0, 400)
        s3.put_object(Bucket=BUCKET, Key=f"{prefix}{shard}/0", Body=whole)


def test_existing__kept_unless_asked(s3, ensemble, output):
    create_ensemble(output, 10, [3], identity="one that can be continued")
    with pytest.raises(StoreError, match="exists"):
        create_ensemble(output, 10, [3])
    with pytest.raises(StoreError, match="is no consensus store"):
        fit(ensemble, output, overwrite=True)
    create_ensemble(output, 20, [3], overwrite=True)
    assert read_facts(output)["n_samples"] == 20


def test_missing__store_and_bucket(s3):
    with pytest.raises(StoreError, match=f"s3://{BUCKET}/nothing.zarr: not found"):
        open_ensemble(f"s3://{BUCKET}/nothing.zarr")
    with pytest.raises(OSError, match=r"no-such-bucket|not found"):
        open_ensemble("s3://no-such-bucket/nothing.zarr")


def test_secrets__are_in_no_object(s3, ensemble, output):
    fit(ensemble, output)
    for url in (ensemble, output):
        prefix = url.removeprefix(f"s3://{BUCKET}/")
        assert "zarr.json" in keys(s3, url)
        for key in keys(s3, url):
            content = s3.get_object(Bucket=BUCKET, Key=f"{prefix}/{key}")["Body"].read()
            assert SECRET.encode() not in content
            assert b"AKIA" not in content
    attributes = json.loads(s3.get_object(Bucket=BUCKET, Key=f"{prefix}/zarr.json")["Body"].read())["attributes"]
    assert attributes["cehm"]["complete"]


def test_command__import_consensus_and_info(base_labels, wanted, output, tmp_path):
    np.save(tmp_path / "labels.npy", base_labels)
    found = output.replace(".zarr", "-c.zarr")
    for args in (
        ["import", str(tmp_path / "labels.npy"), output],
        ["consensus", output, "--k", "4", "--variant", "released", "-o", found],
        ["info", found],
    ):
        result = CliRunner().invoke(cli.main, args)
        assert result.exit_code == 0, result.output
    assert "400" in result.stdout
    np.testing.assert_array_equal(open_consensus(found).array("labels")[:], wanted.labels_)


# --- a run -------------------------------------------------------------------------------------------------------


def test_run__features_and_run_directory_in_the_store(s3, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUCKET", BUCKET)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 3)) + 8 * rng.integers(0, 2, (300, 3))
    zarr = pytest.importorskip("zarr")
    zarr.create_array(f"s3://{BUCKET}/features.zarr", data=features, chunks=(100, 3), overwrite=True)
    changes = ["ensemble.members=6", "ensemble.k_max=12", "consensus.k=8"]
    recipe = load(PIPELINES / "s3.yaml", changes)
    first = run(recipe, date=date(2026, 11, 16))
    assert first.directory == f"s3://{BUCKET}/runs/2026-11-16"
    assert {step for step, became in first.steps.items() if became != "done"} == {"match"}
    names = {key["Key"].split("/")[2] for key in s3.list_objects_v2(Bucket=BUCKET, Prefix="runs/")["Contents"]}
    made = {"recipe.yaml", "ensemble.zarr", "consensus.zarr", "scores.json", "report.html", "run.json", "run.log"}
    made |= {"profiles.json"}
    assert names == made | {"labels.parquet"}
    assert set(run(recipe, date=date(2026, 11, 16)).steps.values()) == {"skipped", "none"}
    here = [*changes, "features.path=features.npy", "output=here"]
    np.save("features.npy", features)
    run(load(PIPELINES / "s3.yaml", here))
    wanted = open_consensus("here/consensus.zarr").array("labels")[:]
    np.testing.assert_array_equal(open_consensus(f"{first.directory}/consensus.zarr").array("labels")[:], wanted)
    s3.upload_file("features.npy", BUCKET, "features.npy")
    run(load(PIPELINES / "s3.yaml", [*changes, f"features.path=s3://{BUCKET}/features.npy", "output=there"]))
    np.testing.assert_array_equal(open_consensus("there/consensus.zarr").array("labels")[:], wanted)
    log = s3.get_object(Bucket=BUCKET, Key="runs/2026-11-16/run.log")["Body"].read().decode()
    assert "nothing to do" in log
    assert SECRET not in log
    again = run(load(PIPELINES / "s3.yaml", [*changes, "consensus.restarts=2"]), date=date(2026, 11, 16))
    assert (again.steps["ensemble"], again.steps["consensus"]) == ("skipped", "done")


def test_runs__follow_one_another_and_the_oldest_goes(s3, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    where = 9 * rng.integers(0, 2, (200, 2))
    output = f"s3://{BUCKET}/nightly/{{date}}"
    text = (
        "features: {path: 'day.csv', id: who}\nensemble: {members: 4}\nconsensus: {k: 4}\nfollow: previous\nkeep: 2\n"
    )
    for day in (1, 2, 3):
        rows = pd.DataFrame(where + rng.normal(size=(200, 2))).rename(columns=str).assign(who=np.arange(200))
        rows.iloc[rng.permutation(200)].to_csv("day.csv", index=False)
        result = run(parse(f"{text}output: {output}\nexport: parquet\n"), date=date(2026, 11, day))
    assert result.matching["follows"] == f"s3://{BUCKET}/nightly/2026-11-02"
    assert (result.matching["n_shared"], result.matching["n_moved"]) == (200, 0)
    assert [day.date for day in read_days([output.removesuffix("/{date}")])] == ["2026-11-02", "2026-11-03"]
    assert [day.date for day in read_days([output.replace("{date}", "2026-*-03")])] == ["2026-11-03"]
    assert not s3.list_objects_v2(Bucket=BUCKET, Prefix="nightly/2026-11-01").get("Contents")


def test_verify__names_what_changed(s3, base_labels, output):
    ingest(base_labels, output, chunk_rows=40)
    cli_says = CliRunner().invoke(cli.main, ["verify", output])
    assert cli_says.exit_code == 0, cli_says.output
    assert "are what was written" in cli_says.output
    prefix = output.removeprefix(f"s3://{BUCKET}/")
    one, other = (f"{prefix}/labels/c/{shard}/0" for shard in (0, 2))
    for first, second in ((one, other), (other, one)):
        s3.copy_object(Bucket=BUCKET, Key=f"{prefix}-{second[-3]}", CopySource={"Bucket": BUCKET, "Key": first})
    s3.copy_object(Bucket=BUCKET, Key=one, CopySource={"Bucket": BUCKET, "Key": f"{prefix}-0"})
    cli_says = CliRunner().invoke(cli.main, ["verify", output])
    assert cli_says.exit_code == 2
    assert "shard 0 of labels" in cli_says.output
    with pytest.raises(StoreError, match="its shard is not the one that was written there"):
        open_ensemble(output).read(0, 40)


def test_replaced__while_it_is_read(base_labels, output, monkeypatch):
    ingest(base_labels, output, chunk_rows=40)
    budget_of = job.budget_of
    monkeypatch.setattr(job, "budget_of", lambda *a: replace(budget_of(*a), keep_labels=False))

    def replace_it(event):
        if event.round == 2:
            ingest(base_labels[::-1], output, chunk_rows=40, overwrite=True)

    with pytest.raises(ReplacedError, match="was replaced while it was being read; run again"):
        CEHM(4, variant="released", random_state=0).fit(output, progress=replace_it)


def test_append__goes_on_after_it_was_cut_off_among_its_copies(s3, output, monkeypatch):
    rows = as_features(np.random.default_rng(0).normal(size=(300, 3)))
    generate(rows, output, plan_members(2, 3, 5, 0), 0, threads=1)
    filesystem = fsspec.core.url_to_fs(output)[0]
    copied, copy = [], filesystem.cp_file

    def cut(*paths):
        copied.append(paths)
        if len(copied) == 2:
            raise KeyboardInterrupt
        copy(*paths)

    with monkeypatch.context() as patch:
        patch.setattr(filesystem, "cp_file", cut)
        with pytest.raises(KeyboardInterrupt):
            generate(rows, output, plan_members(2, 3, 5, 0, first=2), 0, append=True, threads=1)
    assert len(open_ensemble(output).widths) == 4
    assert open_ensemble(output).read(0, 300).shape == (300, 4)
    assert not keys(s3, output.replace(output.rsplit("/", 1)[1], f".{output.rsplit('/', 1)[1]}.writing"))
