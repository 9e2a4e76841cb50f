"""Readers and writers apart: a reader gets one store, whole, or an error; a writer that dies leaves old or new."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fsspec
import numpy as np
import pytest

from cehm_dask import CEHM, job
from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data import attributes, replacement
from cehm_dask.data.consensus_store import open_consensus
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ensemble_writer import EnsembleWriter, create_ensemble, sole_writer
from cehm_dask.data.features import as_features
from cehm_dask.data.files import is_url
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.model_store import write_prediction
from cehm_dask.data.synth import Synth
from cehm_dask.errors import BusyError, ReplacedError, StoreError
from cehm_dask.members.fit import plan_members
from cehm_dask.members.generate import generate
from cehm_dask.results.scoring import evaluate
from tests.conftest import cehm

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

MADE = [Synth(4000, 6, n_classes=3, k_min=3, k_max=7, seed=seed) for seed in (0, 1)]
LABELS = [made.arrays()[0] for made in MADE]


class PowerCut(BaseException):
    """Ends a writer where it stands."""


@pytest.fixture
def url(tmp_path):
    url = str(tmp_path / "e.zarr")
    ingest(LABELS[0], url, chunk_rows=100)
    return url


def codes_of(labels):
    return labels.astype(np.uint8) + 1


def left_over(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir() if path.name.startswith("."))


# --- readers -----------------------------------------------------------------------------------------------------


def test_reader__of_a_replaced_store_is_told(url, tmp_path):
    opened = open_ensemble(url)
    opened.read(0, 100)
    sent = pickle.dumps(opened)
    ingest(LABELS[0], url, chunk_rows=100, overwrite=True)  # the same labels, and yet another store
    for reader in (opened, pickle.loads(sent)):
        with pytest.raises(ReplacedError, match=f"store {url} was replaced while it was being read; run again"):
            reader.read(100, 200)
        with pytest.raises(ReplacedError):
            reader.confirm()
    assert left_over(tmp_path) == []
    np.testing.assert_array_equal(open_ensemble(url).read(0, 4000), codes_of(LABELS[0]))


def test_reader__of_a_removed_store_is_told(url, tmp_path):
    opened = open_ensemble(url)
    opened.read(0, 100)
    os.rename(url, tmp_path / "elsewhere.zarr")
    with pytest.raises(ReplacedError, match="was replaced while it was being read"):
        opened.read(100, 200)


def test_reader__reads_on_while_the_next_one_is_written(url):
    opened = open_ensemble(url)
    with sole_writer(url, overwrite=True):
        writer = create_ensemble(url, 4000, [9] * 6, overwrite=True, chunk_rows=100)
        writer.write(0, codes_of(LABELS[1])[:400])
        np.testing.assert_array_equal(opened.read(0, 4000), codes_of(LABELS[0]))
        np.testing.assert_array_equal(open_ensemble(url).read(0, 4000), codes_of(LABELS[0]))


def test_reader__touched_or_copied_is_not_replaced(url):
    """What counts is what the attributes say, not the file that says it."""
    opened = open_ensemble(url)
    opened.read(0, 100)
    root = Path(url) / "zarr.json"
    root.write_text(root.read_text())
    np.testing.assert_array_equal(opened.read(0, 100), codes_of(LABELS[0])[:100])


@pytest.fixture
def remote():
    """An ensemble where nothing can be renamed."""
    url = f"memory://{os.urandom(4).hex()}/e.zarr"
    ingest(LABELS[0], url, chunk_rows=100)
    yield url
    fsspec.filesystem("memory").rm(url.rsplit("/", 1)[0], recursive=True)


def test_remote__marked_incomplete_before_anything_changes(remote, monkeypatch):
    opened = open_ensemble(remote)
    opened.read(0, 100)
    seen = []
    write = EnsembleWriter.write

    def look(self, shard, codes):
        if not seen:
            with pytest.raises(StoreError, match=r"half-written"):
                open_ensemble(remote)
            with pytest.raises(ReplacedError):
                opened.confirm()
            seen.append(shard)
        return write(self, shard, codes)

    monkeypatch.setattr(EnsembleWriter, "write", look)
    ingest(LABELS[1], remote, chunk_rows=100, overwrite=True)
    assert seen
    monkeypatch.setattr(attributes, "LOOK_SECONDS", 0.0)
    with pytest.raises(ReplacedError):
        opened.read(0, 100)


def test_remote__looked_at_now_and_then_only(remote, monkeypatch):
    opened = open_ensemble(remote)
    opened.read(0, 100)
    looks, own = [], attributes._own
    monkeypatch.setattr(attributes, "_own", lambda *args, **options: (looks.append(args), own(*args, **options))[1])
    for start in range(0, 4000, 100):
        opened.read(start, start + 100)
    assert len(looks) <= 1
    opened.confirm()
    assert 1 <= len(looks) <= 2


WRITER = """
import sys
import numpy as np
from cehm_dask.errors import BusyError
from cehm_dask.data.ingest import ingest
labels = np.load(sys.argv[2])
print("begins", flush=True)
while True:
    for number in (1, 0):
        ingest(labels[number], sys.argv[1], chunk_rows=100, overwrite=True)
"""


@pytest.fixture
def replaced_all_the_time(url, tmp_path):
    """An ensemble that another process replaces by the other one, and back, as fast as it can."""
    np.save(tmp_path / "both.npy", LABELS)
    command = [sys.executable, "-c", WRITER, url, str(tmp_path / "both.npy")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "begins\n"
        yield url
        assert writer.poll() is None, "the writer ended by itself"
        writer.kill()


@pytest.fixture(scope="module")
def wanted():
    return [CEHM(3, variant="released", random_state=0).fit(labels).labels_ for labels in LABELS]


def outcomes(runs, fit, wanted):
    """How runs against a store under replacement end."""
    found = {"equal": 0, "refused": 0}
    for _ in range(runs):
        try:
            labels = fit()
        except ReplacedError:
            found["refused"] += 1
        else:
            assert any(np.array_equal(labels, one) for one in wanted), "a mixture"
            found["equal"] += 1
    return found


def test_race__labels_of_exactly_one_store_or_an_error(replaced_all_the_time, wanted, monkeypatch, tmp_path):
    budget_of = job.budget_of
    # Without labels in memory, every sweep reads the store.
    monkeypatch.setattr(job, "budget_of", lambda *args: replace(budget_of(*args), keep_labels=False))

    def fit():
        output = tmp_path / f"c{os.urandom(4).hex()}.zarr"
        CEHM(3, variant="released", random_state=0).fit(replaced_all_the_time, output=output)
        return open_consensus(str(output)).array("labels")[:]

    found = outcomes(15, fit, wanted)
    assert found["refused"] > 0
    # In memory after the first sweep: some get through.
    monkeypatch.undo()
    found = outcomes(15, lambda: CEHM(3, random_state=0, variant="released").fit(replaced_all_the_time).labels_, wanted)
    assert sum(found.values()) == 15


def test_race__workers_of_a_cluster(replaced_all_the_time, wanted, two_processes):
    fit = CEHM(3, variant="released", random_state=0).fit
    found = outcomes(5, lambda: fit(replaced_all_the_time, client=two_processes).labels_, wanted)
    assert sum(found.values()) == 5


def test_race__no_checkpoint_is_made_of_a_mixture(remote, tmp_path, wanted, monkeypatch):
    """An object store is looked at only now and then, but always between a sweep and its checkpoint."""
    output = str(tmp_path / "c.zarr")
    budget_of = job.budget_of
    monkeypatch.setattr(job, "budget_of", lambda *args: replace(budget_of(*args), keep_labels=False))

    def replace_it(event):
        if event.round == 2:
            ingest(LABELS[1], remote, chunk_rows=100, overwrite=True)

    with pytest.raises(ReplacedError):
        CEHM(3, variant="released", random_state=0).fit(remote, output=output, progress=replace_it)
    ingest(LABELS[0], remote, chunk_rows=100, overwrite=True)
    found = CEHM(3, variant="released", random_state=0).fit(remote, output=output)  # goes on
    np.testing.assert_array_equal(found.labels_[:], wanted[0])


def test_command__replaced_while_it_ran_can_be_tried_again(url, monkeypatch, tmp_path):
    sweep = job.Engine.sweep

    def replaced(self, *args, **options):
        result = sweep(self, *args, **options)
        ingest(LABELS[1], url, chunk_rows=100, overwrite=True)
        return result

    monkeypatch.setattr(job.Engine, "sweep", replaced)
    _, err = cehm("consensus", url, "--k", 3, "-o", tmp_path / "c.zarr", "--quiet", code=6)
    assert "was replaced while it was being read; run again" in err


# --- writers that end where they stand ---------------------------------------------------------------------------


def cut_off_at(monkeypatch, number):
    """End the writer at its so-many-th rename."""
    rename, calls = os.rename, []

    def renamed(*paths):
        calls.append(paths)
        if len(calls) == number:
            raise PowerCut
        rename(*paths)

    monkeypatch.setattr(replacement.os, "rename", renamed)


@pytest.mark.parametrize(("rename", "survivor"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("next_comer", ["reader", "writer"])
def test_switch__cut_off_leaves_the_old_or_the_new(url, tmp_path, monkeypatch, rename, survivor, next_comer):
    with monkeypatch.context() as patch:
        cut_off_at(patch, rename)
        patch.setattr(replacement.Writing, "release", lambda self: self._lock._lock._file.close())  # as the kernel does
        with pytest.raises(PowerCut):
            ingest(LABELS[1], url, chunk_rows=100, overwrite=True)
    assert Path(url).exists() == (rename == 1)
    if next_comer == "writer":
        with sole_writer(url, overwrite=True):
            pass
    np.testing.assert_array_equal(open_ensemble(url).read(0, 4000), codes_of(LABELS[survivor]))
    ingest(LABELS[0], url, chunk_rows=100, overwrite=True)
    assert left_over(tmp_path) == []


def test_switch__old_one_goes_even_if_its_writer_died_before_it_could(url, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(replacement, "_drop", lambda _old: None)
        ingest(LABELS[1], url, chunk_rows=100, overwrite=True)
    assert left_over(tmp_path) == [".e.zarr.writing"]
    np.testing.assert_array_equal(open_ensemble(url).read(0, 4000), codes_of(LABELS[1]))
    ingest(LABELS[0], url, chunk_rows=100, overwrite=True)
    assert left_over(tmp_path) == []


def test_switch__through_a_link_to_another_disk(url, tmp_path):
    (tmp_path / "here").mkdir()
    link = tmp_path / "here" / "e.zarr"
    link.symlink_to(url)
    ingest(LABELS[1], str(link), chunk_rows=100, overwrite=True)
    assert link.is_symlink()
    np.testing.assert_array_equal(open_ensemble(url).read(0, 4000), codes_of(LABELS[1]))


def features():
    return as_features(np.random.default_rng(0).normal(size=(3000, 3)))


def members(count, first=0):
    return plan_members(count, 3, 6, 0, first=first)


def killed_after(shards, monkeypatch):
    """End the writer after so many shards."""
    written, write = [], EnsembleWriter.write

    def writing(self, shard, codes):
        if len(written) == shards:
            raise PowerCut
        written.append(shard)
        return write(self, shard, codes)

    monkeypatch.setattr(EnsembleWriter, "write", writing)
    return written


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr("cehm_dask.data.ensemble_writer.CHUNK_BYTES", 1000)


@pytest.fixture(params=["local", "remote"])
def place(request, tmp_path):
    return request.getfixturevalue("remote") if request.param == "remote" else str(tmp_path / "e.zarr")


def test_generate__cut_off_while_it_replaces_goes_on(tmp_path, monkeypatch, small_shards, place):
    url, scheme = place, is_url(place)
    generate(features(), url, members(2), 1, threads=1, overwrite=True)
    wanted = generate(features(), str(tmp_path / "wanted.zarr"), members(4), 0, threads=1)
    with monkeypatch.context() as patch:
        killed_after(2, patch)
        with pytest.raises(PowerCut):
            generate(features(), url, members(4), 0, overwrite=True, threads=1)
    if not scheme:
        assert len(open_ensemble(url).widths) == 2  # what was there is as it was
    with monkeypatch.context() as patch:
        written = killed_after(10**6, patch)
        again = {"overwrite": True} if not scheme else {}  # an object store holds the beginning in its place
        assert generate(features(), url, members(4), 0, threads=1, **again) == wanted
        assert open_ensemble(url).n_shards > 3
        assert len(written) == open_ensemble(url).n_shards - 2
    assert left_over(tmp_path) == []


def test_append__cut_off_anywhere_goes_on(tmp_path, monkeypatch, small_shards, place):
    url, scheme, wanted = place, is_url(place), str(tmp_path / "wanted.zarr")
    for one in (url, wanted):
        generate(features(), one, members(2), 0, threads=1, overwrite=True)
    generate(features(), wanted, members(2, 2), 0, append=True, threads=1)
    with monkeypatch.context() as patch:
        killed_after(2, patch)
        with pytest.raises(PowerCut):
            generate(features(), url, members(2, 2), 0, append=True, threads=1)
    assert len(open_ensemble(url).widths) == 2
    with monkeypatch.context() as patch:
        # In the middle of the switch: between the renames, or among the copies.
        removed, calls = replacement.remove, []

        def cut(entry):
            calls.append(entry)
            if len(calls) == 2:
                raise PowerCut
            removed(entry)

        if scheme:
            patch.setattr(replacement, "remove", cut)
        else:
            cut_off_at(patch, 2)
        with pytest.raises(PowerCut):
            generate(features(), url, members(2, 2), 0, append=True, threads=1)
    found = open_ensemble(url)
    assert found.fingerprint == open_ensemble(wanted).fingerprint
    np.testing.assert_array_equal(found.read(0, 3000), open_ensemble(wanted).read(0, 3000))


def test_resumed__shard_that_was_damaged_meanwhile_is_written_again(tmp_path, monkeypatch, small_shards):
    url, wanted = str(tmp_path / "e.zarr"), str(tmp_path / "wanted.zarr")
    generate(features(), wanted, members(4), 0, threads=1)
    with monkeypatch.context() as patch:
        killed_after(3, patch)
        with pytest.raises(PowerCut):
            generate(features(), url, members(4), 0, threads=1)
    shard = Path(url) / "labels" / "c" / "1" / "0"
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(content)
    generate(features(), url, members(4), 0, threads=1)
    assert open_ensemble(url).fingerprint == open_ensemble(wanted).fingerprint


# --- results -----------------------------------------------------------------------------------------------------


def test_consensus__old_result_stays_until_the_new_one_is_finished(url, tmp_path, wanted):
    output = str(tmp_path / "c.zarr")
    fit = CEHM(3, variant="released", random_state=0).fit
    fit(url, output=output)
    before = open_consensus(output)

    def look(event):
        np.testing.assert_array_equal(before.array("labels")[:], wanted[0])
        if event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(url, output=output, overwrite=True, progress=look)
    np.testing.assert_array_equal(open_consensus(output).array("labels")[:], wanted[0])
    rounds = []
    fit(url, output=output, overwrite=True, progress=lambda event: rounds.append(event.round))
    assert min(rounds) > 1  # it went on
    with pytest.raises(ReplacedError, match="was replaced while it was being read"):
        before.array("labels")[:]
    assert left_over(tmp_path) == []


def test_evaluate__of_a_result_that_is_replaced(url, tmp_path, monkeypatch):
    output = str(tmp_path / "c.zarr")
    fit = CEHM(3, variant="released", random_state=0).fit
    fit(url, output=output)
    sweep = job.Engine.sweep

    def replaced(self, name, *args, **options):
        if name == "evaluate":
            monkeypatch.undo()
            fit(url, output=output, overwrite=True)
        return sweep(self, name, *args, **options)

    monkeypatch.setattr(job.Engine, "sweep", replaced)
    with pytest.raises(ReplacedError):
        evaluate(output, MADE[0].arrays()[1], ensemble=url)


def test_model_and_prediction__written_beside_and_switched(tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 3))
    model = ClusterEnsemble(3, members=4, random_state=0).fit(rows)
    url = str(tmp_path / "m.zarr")
    model.save(url)
    model.save(url, overwrite=True)
    np.testing.assert_array_equal(ClusterEnsemble.load(url).predict(rows), model.predict(rows))
    labels = np.arange(5, dtype=np.int16)
    for _ in range(2):
        write_prediction(str(tmp_path / "p.zarr"), labels, labels, labels, overwrite=True)
    with pytest.raises(AttributeError):
        write_prediction(str(tmp_path / "p.zarr"), labels, None, labels, overwrite=True)
    assert json.loads((tmp_path / "p.zarr" / "zarr.json").read_text())["attributes"]["cehm"]["complete"] is True
    assert left_over(tmp_path) == []


def test_busy__names_the_output_and_not_where_its_lock_lies(url):
    with sole_writer(url, overwrite=True), pytest.raises(BusyError) as error:
        ingest(LABELS[1], url, overwrite=True)
    assert f"output {url} is being written by another run" in str(error.value)
    assert as_labels(url).n_samples == 4000
