"""No input corrupts memory: stores and files that were edited, or change under a run, are refused in a sentence."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr

from cehm_dask import CEHM
from cehm_dask.cluster_ensemble import ClusterEnsemble
from cehm_dask.data import labels, shards
from cehm_dask.data.bounds import fault_in
from cehm_dask.data.consensus_store import ConsensusStore
from cehm_dask.data.ensemble_store import open_ensemble
from cehm_dask.data.ingest import ingest
from cehm_dask.data.labels import as_labels
from cehm_dask.data.mapped import MappedRows, mapped_rows
from cehm_dask.data.seals import sealed
from cehm_dask.data.synth import Synth
from cehm_dask.engine.sweep import Engine
from cehm_dask.errors import InputError, ReplacedError, StoreError
from cehm_dask.job import Where, budget_of, find_consensus
from cehm_dask.method.checkpoint import check_checkpoint
from cehm_dask.method.intersections import check_table, hyperedges_of, intersections
from cehm_dask.method.params import Params
from tests.conftest import edit_facts, without_digests

pytestmark = pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")

MADE = Synth(600, 5, n_classes=3, k_min=3, k_max=6)


@pytest.fixture
def ensemble(tmp_path):
    """Of the version before, without digests: what an edit changes is not noticed by them."""
    url = str(tmp_path / "e.zarr")
    ingest(MADE.arrays()[0], url, chunk_rows=50)
    without_digests(url)
    return url


def facts_of(url):
    return json.loads((Path(url) / "zarr.json").read_text())["attributes"]["cehm"]


def array_of(url, name="labels"):
    return zarr.open_array(f"{url}/{name}", mode="r+")


def labels_beyond(url):
    array_of(url)[400:410, 2] = 200


def labels_of_another_dtype(url):
    zarr.create_array(f"{url}/labels", shape=(600, 5), dtype="int64", chunks=(50, 5), overwrite=True)[:] = 1


def labels_below_zero(url):
    zarr.create_array(f"{url}/labels", shape=(600, 5), dtype="int8", chunks=(50, 5), overwrite=True)[:] = -1


def too_few_members(url):
    edit_facts(url, widths=facts_of(url)["widths"][:-1])


def too_many_members(url):
    facts = facts_of(url)
    edit_facts(url, widths=[*facts["widths"], 4], names=[*facts["names"], "x"], n_members=6)


def too_many_samples(url):
    edit_facts(url, n_samples=6000)


def no_samples(url):
    edit_facts(url, n_samples=0)


def negative_widths(url):
    edit_facts(url, widths=[-width for width in facts_of(url)["widths"]])


def zero_widths(url):
    edit_facts(url, widths=[0] * 5)


def small_widths(url):
    edit_facts(url, widths=[2] * 5)
    array_of(url, "sizes").resize(5)


def huge_widths(url):
    edit_facts(url, widths=[1 << 40] * 5)


def widths_of_text(url):
    edit_facts(url, widths=["7"] * 5)


def truncated_sizes(url):
    array_of(url, "sizes").resize(3)


def negative_sizes(url):
    sizes = array_of(url, "sizes")
    sizes[:] = -sizes[:]


def other_sizes(url):
    sizes = array_of(url, "sizes")
    sizes[:] = np.roll(sizes[:], 1)


def no_sizes(url):
    (Path(url) / "sizes" / "zarr.json").unlink()


def no_labels(url):
    (Path(url) / "labels" / "zarr.json").unlink()


def no_fingerprint(url):
    edit_facts(url, drop=["fingerprint"])


def no_widths(url):
    edit_facts(url, drop=["widths"])


def names_of_others(url):
    edit_facts(url, names=["a"])


def values_of_others(url):
    edit_facts(url, values=[[1, 2]] * 5)


def values_out_of_order(url):
    edit_facts(url, values=[list(range(width - 1))[::-1] for width in facts_of(url)["widths"]])


def members_cut_apart(url):
    zarr.create_array(f"{url}/labels", shape=(600, 5), dtype="uint8", chunks=(50, 2), overwrite=True)[:] = 1


EDITS = [
    labels_beyond,
    labels_of_another_dtype,
    labels_below_zero,
    too_few_members,
    too_many_members,
    too_many_samples,
    no_samples,
    negative_widths,
    zero_widths,
    small_widths,
    huge_widths,
    widths_of_text,
    truncated_sizes,
    negative_sizes,
    other_sizes,
    no_sizes,
    no_labels,
    no_fingerprint,
    no_widths,
    names_of_others,
    values_of_others,
    values_out_of_order,
    members_cut_apart,
]


@pytest.mark.parametrize("edit", EDITS)
def test_edited__refused_in_a_sentence(ensemble, edit):
    """In this process: on open, or before the first kernel."""
    edit(ensemble)
    with pytest.raises(StoreError, match=ensemble):
        CEHM(3, random_state=0).fit(ensemble)


CRASHED_BEFORE = [labels_beyond, too_few_members, too_many_samples, negative_widths, truncated_sizes]


COMMANDS = """
import sys
from click.testing import CliRunner
from cehm_dask import cli
for ensemble in sys.argv[1:]:
    done = CliRunner().invoke(cli.main, ["consensus", ensemble, "--k", "3", "-o", ensemble + "-c.zarr", "--quiet"])
    print(done.exit_code, done.stderr.replace("\\n", " "), flush=True)
"""


def test_edited__commands_end_with_2_and_no_crash(ensemble):
    """In a process of their own, which may crash; one for all, because it takes seconds to start."""
    copies = [shutil.copytree(ensemble, ensemble.replace("e.zarr", f"{edit.__name__}.zarr")) for edit in CRASHED_BEFORE]
    for edit, copy in zip(CRASHED_BEFORE, copies, strict=True):
        edit(copy)
    done = subprocess.run([sys.executable, "-c", COMMANDS, *copies], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == len(copies)
    for copy, line in zip(copies, said, strict=True):
        assert line.startswith(f"2 error: store {copy}: ")
        assert "Traceback" not in line


@pytest.mark.parametrize("edit", [labels_beyond, other_sizes, truncated_sizes, small_widths])
def test_edited__noticed_by_the_digests_too(tmp_path, edit):
    url = str(tmp_path / "e.zarr")
    ingest(MADE.arrays()[0], url, chunk_rows=50)
    edit(url)
    with pytest.raises(StoreError, match=r"damaged|edited"):
        CEHM(3, random_state=0).fit(url)


# --- the check itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_fault__any_code_at_its_limit_is_found(rows, dtype):
    widths = [3, 200, 256]
    names = ["a", "b", "c"]
    codes = np.zeros((rows, 3), dtype)
    codes[:] = [2, 199, 255]
    assert fault_in(codes, widths, 0, names) is None
    for row in {0, rows // 2, rows - 1}:
        for member in (0, 1):
            wrong = codes.copy()
            wrong[row, member] = widths[member]
            found = fault_in(wrong, widths, 7, names)
            assert f"row {7 + row}, member {names[member]} holds code {widths[member]}" in found


def test_fault__of_rows_that_do_not_lie_side_by_side():
    codes = np.zeros((3, 500), np.uint8).T
    assert fault_in(codes, [1, 1, 1], 0, "abc") is None
    codes[400, 1] = 1
    assert "row 400, member b" in fault_in(codes, [1, 1, 1], 0, "abc")


@pytest.mark.parametrize("codes", [np.zeros((4, 2), np.uint8), np.zeros(4, np.uint8), np.zeros((4, 3), np.int8)])
def test_fault__of_shape_and_type(codes):
    assert fault_in(codes, [2, 2, 2], 0, "abc") is not None


# --- shards that were read before ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stamp", ["new", "the same"])
def test_shard__codes_beyond_are_found_though_the_chunk_was_read_before(ensemble, monkeypatch, stamp):
    """With checksums that are right, in a store without digests: nothing else would notice."""
    if stamp == "the same":
        monkeypatch.setattr(shards, "_stamp", lambda _file: ())
    held = open_ensemble(ensemble)
    held.read(0, 600)
    labels_beyond(ensemble)
    with pytest.raises(StoreError, match=r"row 400, member 2 holds code 200"):
        held.read(400, 450)
    np.testing.assert_array_equal(held.read(450, 600), open_ensemble(ensemble).read(450, 600))


def test_shard__is_summed_at_every_read(ensemble, monkeypatch):
    monkeypatch.setattr(shards, "_stamp", lambda _file: ())  # a flip that the file system does not know of
    held = open_ensemble(ensemble)
    before = held.read(0, 600)
    path = Path(ensemble) / "labels" / "c" / "0" / "0"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(StoreError, match="its checksum is wrong"):
        held.read(0, 50)
    np.testing.assert_array_equal(held.read(50, 600), before[50:])


def test_shard__largest_codes_are_looked_for_once(ensemble, monkeypatch):
    looks, largest = [], shards.largest
    monkeypatch.setattr(shards, "largest", lambda codes: looks.append(codes) or largest(codes))
    held = open_ensemble(ensemble)
    for _ in range(3):
        held.read(0, 600)
    assert len(looks) == 12  # chunks
    path = Path(ensemble) / "labels" / "c" / "0" / "0"
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # touched: no more than the time of the change itself
    held.read(0, 600)
    assert len(looks) == 12 + 4  # those of the one shard


# --- arrays and files that change under a run --------------------------------------------------------------------


def test_array__changed_under_a_run_is_refused():
    mine = np.ascontiguousarray(MADE.arrays()[0]).astype(np.uint8)
    rounds = []

    def change(event):
        rounds.append(event)
        mine[:] = 250

    with pytest.raises(InputError, match=r"row 0, member 0 holds code 250, beyond the member's \d slots"):
        CEHM(3, variant="released", random_state=0).fit(mine, progress=change)
    assert len(rounds) == 1


def test_array__only_the_users_own_is_checked_at_every_read(monkeypatch):
    looks = []
    monkeypatch.setattr(labels, "fault_in", lambda *args: looks.append(args))
    copied, used = (as_labels(MADE.arrays()[0].astype(dtype)) for dtype in (np.int64, np.uint8))
    looks.clear()
    copied.read(0, 600)
    assert not looks
    used.read(0, 300)
    used.read(300, 600)
    assert len(looks) == 2


@pytest.fixture
def npy(tmp_path):
    """Labels that are used where they lie, without a copy."""
    path = tmp_path / "labels.npy"
    np.save(path, np.tile(MADE.arrays()[0].astype(np.uint8), (20, 1)))
    return path


def rewrite(path):
    np.save(path, np.load(path)[::-1].copy())


def write_one_byte(path):
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")


def cut_short(path):
    os.truncate(path, 5000)


def take_its_place(path):
    new = path.with_name("new.npy")
    np.save(new, np.load(path)[::-1].copy())
    os.replace(new, path)


def through_a_mapping(path):
    """Writes that need not change the time at once."""
    times = path.stat()
    mapped = np.load(path, mmap_mode="r+")
    mapped[0] = mapped[0, ::-1].copy()
    mapped.flush()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [rewrite, write_one_byte, cut_short, take_its_place, through_a_mapping])
@pytest.mark.parametrize("mapped", [False, True])
def test_npy__changed_under_a_run_is_noticed(npy, change, mapped):
    changed = []

    def progress(event):
        if not changed:
            change(npy)
            changed.append(event)

    given = np.load(npy, mmap_mode="r") if mapped else npy
    with pytest.raises(ReplacedError, match=r"labels\.npy changed while it was being read; run again"):
        CEHM(3, variant="released", random_state=0).fit(given, progress=progress)
    assert changed


def test_npy__unchanged_gives_the_same_labels(npy):
    wanted = CEHM(3, random_state=0).fit(np.load(npy)).labels_
    for given in (npy, np.load(npy, mmap_mode="r"), np.load(npy, mmap_mode="r")[:]):
        opened = as_labels(given)
        assert isinstance(opened.source, MappedRows)
        np.testing.assert_array_equal(CEHM(3, random_state=0).fit(opened).labels_, wanted)


def test_npy__part_of_a_mapped_file(npy):
    whole = np.load(npy, mmap_mode="r")
    rows = mapped_rows(np.asarray(whole[1000:2000]))
    np.testing.assert_array_equal(rows[10:700], np.load(npy)[1010:1700])
    assert mapped_rows(np.asarray(whole[:, :2])) is None  # not row after row
    assert mapped_rows(np.load(npy, mmap_mode="c")) is None  # the file does not hold what is written to it
    assert mapped_rows(np.load(npy)) is None


def test_npy__replaced_between_mapping_and_reading(npy):
    whole = np.load(npy, mmap_mode="r")
    other = npy.with_name("other.npy")
    np.save(other, np.zeros((70_000, 5), np.uint8))
    os.replace(other, npy)
    with pytest.raises(ReplacedError, match="changed while it was being read"):
        as_labels(whole)


def test_npy__written_over_and_over_never_crashes_nor_mixes(npy, tmp_path):
    """Labels of one writing, or an error; numpy's own writer cuts the file to nothing first."""
    first = np.load(npy)
    versions = [first, first[::-1].copy()]
    wanted = [CEHM(3, random_state=0).fit(version).labels_ for version in versions]
    script = (
        "import sys, time, numpy as np\n"
        "a = np.load(sys.argv[2])\n"
        "while True:\n"
        "    for b in (a[::-1].copy(), a):\n"
        "        np.save(sys.argv[1], b); time.sleep(0.03)\n"
    )
    copy = tmp_path / "copy.npy"
    np.save(copy, first)
    ended = {"equal": 0, "refused": 0}
    with subprocess.Popen([sys.executable, "-c", script, str(npy), str(copy)]) as writer:
        try:
            for _ in range(25):
                try:
                    found = CEHM(3, random_state=0).fit(npy).labels_
                except (InputError, StoreError, ValueError, EOFError):  # cut short: numpy has words of its own
                    ended["refused"] += 1
                else:
                    assert any(np.array_equal(found, one) for one in wanted)
                    ended["equal"] += 1
        finally:
            writer.kill()
    assert ended["refused"] > 0


# --- tables that a run left --------------------------------------------------------------------------------------


def left_behind(ensemble, output):
    """An interrupted run."""

    def interrupt(event):
        if event.round == 2:
            raise KeyboardInterrupt

    where = Where(output=output)
    with pytest.raises(KeyboardInterrupt):
        find_consensus(as_labels(ensemble), Params(3, variant="released"), 0, where, progress=interrupt)


@pytest.mark.parametrize(
    "table",
    [
        lambda table: table[:-1],
        lambda table: table[:, :3],
        lambda table: -table,
        lambda table: table + np.eye(len(table), dtype=table.dtype),
        lambda table: np.triu(table),
        lambda table: table.astype(np.float64),
        lambda table: np.roll(np.roll(table, 1, axis=0), 1, axis=1),
    ],
)
def test_resume__intersections_of_another_shape_or_range(ensemble, tmp_path, table):
    output = str(tmp_path / "c.zarr")
    left_behind(ensemble, output)
    held = ConsensusStore(output, facts_of(output)["identity"])
    held.open(overwrite=False)
    found, n_silent = held.load_intersections()
    held.save_intersections(table(found), n_silent)
    held.close()
    with pytest.raises(StoreError, match=r"intersections|recorded size"):
        find_consensus(as_labels(ensemble), Params(3, variant="released"), 0, Where(output=output))


def test_resume__more_silent_rows_than_samples(ensemble, tmp_path):
    output = str(tmp_path / "c.zarr")
    left_behind(ensemble, output)
    edit_facts(output, n_silent=601)
    with pytest.raises(StoreError, match="601 of 600 samples"):
        find_consensus(as_labels(ensemble), Params(3, variant="released"), 0, Where(output=output))


def checkpoint_of(ensemble, output):
    left_behind(ensemble, output)
    held = ConsensusStore(output, facts_of(output)["identity"])
    held.open(overwrite=False)
    return held, *held.load_checkpoint()


WRONG_ARRAYS = {
    "0/medoids": [lambda a: a + 1000, lambda a: a - 1000, lambda a: a[:1], lambda a: a.astype(float)],
    "0/counts": [lambda a: a[:-1], lambda a: a[:, :1], lambda a: a - 10_000, lambda a: a + 10_000],
    "0/counts_before": [lambda a: a.T, lambda a: a.astype(complex)],
}
WRONG_FACTS = {
    "round": [-1, 1.5, "2", 7],
    "assigned": [-1, 10**9, None],
    "cut": [[-1, 0], [2**64, 0], [0], [0, 2**63], "xx"],
    "splits": [[{"hyperedge": 10**6, "cluster": 0, "into": 1}], [{"hyperedge": 0, "cluster": -1, "into": 1}], [{}]],
    "belonging": ["other", None],
    "losses": ["a", [None]],
    "growth": [[], [1, 2, 3, 4, 5]],
    "competition": [{}, 3],
    "converged": [1],
}


def test_checkpoint__that_does_not_fit_is_refused(ensemble, tmp_path):
    held, arrays, facts = checkpoint_of(ensemble, str(tmp_path / "c.zarr"))
    held.close()
    opened = as_labels(ensemble)
    with Engine(opened, budget_of(opened, Params(3), [3], Where())) as engine:
        table, n_silent = intersections(engine)
    check_table(opened, table, n_silent)
    hyperedges = hyperedges_of(opened, table, n_silent)
    check_checkpoint(arrays, facts, hyperedges, [3])
    for name, changes in WRONG_ARRAYS.items():
        for change in changes:
            with pytest.raises(StoreError, match="does not fit this run"):
                check_checkpoint({**arrays, name: change(arrays[name])}, facts, hyperedges, [3])
        with pytest.raises(StoreError, match="does not fit this run"):
            check_checkpoint({key: own for key, own in arrays.items() if key != name}, facts, hyperedges, [3])
    ((k, own),) = facts["problems"]
    for name, values in WRONG_FACTS.items():
        for value in values:
            with pytest.raises(StoreError, match="does not fit this run"):
                check_checkpoint(arrays, {"problems": [[k, {**own, name: value}]]}, hyperedges, [3])
    for problems in ([], None, [[4, own]], [[k]], [[k, own], [k, own]]):
        with pytest.raises(StoreError, match="does not fit this run"):
            check_checkpoint(arrays, {"problems": problems}, hyperedges, [3])


def test_checkpoint__foreign_one_is_refused_by_the_run(ensemble, tmp_path):
    held, arrays, facts = checkpoint_of(ensemble, str(tmp_path / "c.zarr"))
    held.save_checkpoint({**arrays, "0/medoids": arrays["0/medoids"] + 10**6}, facts)
    held.close()
    with pytest.raises(StoreError, match=r"does not fit this run .*remove checkpoint\.npz"):
        find_consensus(as_labels(ensemble), Params(3, variant="released"), 0, Where(output=held.url))


def test_trail__labels_of_followed_rows_beyond_their_slots_are_left_out(ensemble, tmp_path):
    held, _, _ = checkpoint_of(ensemble, str(tmp_path / "c.zarr"))
    codes = held.load_trail()["codes"]
    held.save_trail({"codes": np.full_like(codes, 255)})
    held.close()
    found = find_consensus(as_labels(ensemble), Params(3, variant="released"), 0, Where(output=held.url))
    assert found.consensus.trail is None


# --- models ------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    url = str(tmp_path / "m.zarr")
    fitted = ClusterEnsemble(3, members=4, random_state=0).fit(np.random.default_rng(0).normal(size=(60, 3)))
    fitted.save(url)
    without_digests(url)
    return url


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("slopes", lambda a: a[:-1]),
        ("slopes", lambda a: a[:, :1]),
        ("intercepts", lambda a: a[:1]),
        ("names", lambda a: a - 50),
        ("centres_of", lambda a: a + 1000),
        ("centres_of", lambda a: a * 0),
        ("columns", lambda a: a + 10),
        ("spread", lambda a: a[:1]),
        ("consensus_counts", lambda a: a[:1]),
        ("consensus_weights", lambda a: a[:, :1]),
        ("consensus_lead", lambda a: a[:1]),
        ("consensus_values_of", lambda a: a + 1),
    ],
)
def test_model__whose_parts_do_not_fit_is_refused(model, name, change):
    array = change(zarr.open_array(f"{model}/{name}", mode="r")[...])
    zarr.create_array(f"{model}/{name}", data=array, overwrite=True)
    with pytest.raises(StoreError, match="create it again"):
        ClusterEnsemble.load(model)


@pytest.mark.parametrize("name", ["slopes", "columns", "consensus_counts", "consensus_values"])
def test_model__that_lacks_a_part_is_refused(model, name):
    (Path(model) / name / "zarr.json").unlink()
    with pytest.raises(StoreError, match=name):
        ClusterEnsemble.load(model)


def fitted_consensus(tmp_path):
    url = str(tmp_path / "c.zarr")
    CEHM(3, random_state=0).fit(MADE.arrays()[0], output=url)
    without_digests(url)
    return url


@pytest.mark.parametrize("name", ["counts", "weights"])
def test_predict__tables_that_do_not_fit_are_refused(tmp_path, name):
    url = fitted_consensus(tmp_path)
    array = zarr.open_array(f"{url}/{name}", mode="r")[...][:-2]
    zarr.create_array(f"{url}/{name}", data=array, overwrite=True)
    with pytest.raises(StoreError, match="do not fit"):
        CEHM.load(url)


@pytest.mark.parametrize(
    "changes", [{"lead": [1.0]}, {"lead": "x"}, {"label_values": [[1]]}, {"n_clusters": "3"}, {"identity": []}]
)
def test_predict__attributes_that_do_not_fit_are_refused(tmp_path, changes):
    url = fitted_consensus(tmp_path)
    edit_facts(url, **changes)
    with pytest.raises(StoreError, match=url):
        CEHM.load(url)


@pytest.mark.parametrize("name", ["lead", "correlation", "n_clusters", "identity", "label_values"])
def test_predict__absent_attributes_are_named(tmp_path, name):
    url = fitted_consensus(tmp_path)
    edit_facts(url, drop=[name])
    with pytest.raises(StoreError, match=r"create it again|create the store again"):
        CEHM.load(url)


def test_evaluate__labels_beyond_the_clusters_are_refused(tmp_path):
    from cehm_dask.results.scoring import evaluate

    url = fitted_consensus(tmp_path)
    zarr.open_array(f"{url}/labels", mode="r+")[17] = 9000
    with pytest.raises(InputError, match="row 17, member consensus holds code"):
        evaluate(url, MADE.arrays()[1])


def test_threads__see_the_refusal_too(ensemble):
    """Whoever reads, on whatever thread: the block is refused, and no other one is harmed."""
    labels_beyond(ensemble)
    opened, refused = open_ensemble(ensemble), []

    def read(start):
        try:
            opened.read(start, start + 50)
        except StoreError:
            refused.append(start)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(0, 600, 50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert refused == [400]


def test_seal__of_a_foreign_payload_alone_does_not_help(ensemble, tmp_path):
    """A digest is no signature, so what is inside is checked all the same."""
    output = str(tmp_path / "c.zarr")
    left_behind(ensemble, output)
    (Path(output) / "checkpoint.npz").write_bytes(sealed(b"PK\x05\x06" + b"\0" * 18))
    with pytest.raises(StoreError, match=r"checkpoint\.npz is damaged"):
        find_consensus(as_labels(ensemble), Params(3, variant="released"), 0, Where(output=output))
