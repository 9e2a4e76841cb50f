"""Locks of outputs in object stores: one holder, whatever clocks say, who dies, or what lies in their place."""

import json
import logging
import threading
import time
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest

from cehm_dask.data import locks
from cehm_dask.data.consensus_store import ConsensusStore
from cehm_dask.data.files import LOCK_NAME, read_whole, write_whole
from cehm_dask.data.locks import Lock
from cehm_dask.errors import BUSY, BusyError, StoreError, exit_code_of
from tests.pretended_s3 import BUCKET


@pytest.fixture(params=["s3", "any"])
def output(request, s3, monkeypatch):
    """A place in a store with conditional writes, and in one without."""
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.05)
    name = f"{abs(hash(request.node.name))}"
    return f"s3://{BUCKET}/{name}" if request.param == "s3" else f"memory://locks/{name}"


@pytest.fixture
def in_s3(s3, request):
    return f"s3://{BUCKET}/{abs(hash(request.node.name))}"


def lock_of(url):
    return f"{url}/{LOCK_NAME}"


def is_there(url):
    filesystem, path = fsspec.core.url_to_fs(lock_of(url))
    filesystem.invalidate_cache()
    return filesystem.exists(path)


def left_by_a_dead_run(url, monkeypatch, lease=1):
    """A lock whose holder was killed longer ago than its lease."""
    with monkeypatch.context() as patch:
        patch.setattr(locks, "LEASE_SECONDS", lease)
        patch.setattr(locks, "RENEWAL_SECONDS", 1000)
        dead = Lock(url)
        dead.take()
    time.sleep(lease + 2.1)  # times in S3 are whole seconds
    return dead


def test_lock__one_holder_at_a_time(output):
    first, second = Lock(output), Lock(output)
    first.take()
    with pytest.raises(BusyError, match="being written by another run"):
        second.take()
    first.renew()
    with pytest.raises(BusyError, match="being written by another run"):
        second.take()
    first.release()
    second.take()
    with pytest.raises(BusyError):
        first.take()
    second.release()
    assert not is_there(output)


def test_lock__of_a_killed_run_says_how_long_to_wait(output):
    Lock(output).take()
    with pytest.raises(BusyError, match=r"if it is dead, its lock expires in (\d+) s, and the same command") as error:
        Lock(output).take()
    assert exit_code_of(error.value) == BUSY
    left = int(str(error.value).split("expires in ")[1].split(" s")[0])
    assert locks.LEASE_SECONDS - 5 <= left <= locks.LEASE_SECONDS + 1


def test_lock__lease_is_short_and_renewed_several_times():
    assert locks.LEASE_SECONDS <= 60
    assert locks.LEASE_SECONDS >= 3 * locks.RENEWAL_SECONDS


def test_lock__renewed_by_itself_and_gone_when_released(output, monkeypatch):
    monkeypatch.setattr(locks, "RENEWAL_SECONDS", 0.05)
    lock = Lock(output)
    lock.take()
    first, deadline = read_whole(lock_of(output)), time.monotonic() + 30
    while read_whole(lock_of(output)) == first:
        assert time.monotonic() < deadline, "no sign of life"
        time.sleep(0.05)
    lock.release()
    time.sleep(0.3)
    assert not is_there(output)  # nor does it come back


@pytest.mark.parametrize("hours", [-48, 48])
def test_lock__clocks_here_do_not_matter(output, monkeypatch, hours):
    alive = Lock(output)
    alive.take()
    # Only here: the pretended store lives in this process, and goes by the right time.
    wrong = SimpleNamespace(time=lambda: time.time() + 3600 * hours, sleep=time.sleep)
    monkeypatch.setattr(locks, "time", wrong)
    monkeypatch.setattr(locks, "datetime", None)
    with pytest.raises(BusyError, match=r"last renewed \d s ago"):
        Lock(output).take()
    alive.release()


def test_lock__taken_over_when_its_lease_is_over(output, monkeypatch, caplog):
    dead = left_by_a_dead_run(output, monkeypatch)
    heir = Lock(output)
    with caplog.at_level(logging.WARNING):
        heir.take()
    assert "took over the lock" in caplog.text
    with pytest.raises(BusyError, match="was taken over by another run"):  # not so dead after all
        dead.renew()
    dead.release()
    assert is_there(output)  # it is the heir's
    heir.renew()
    heir.release()
    assert not is_there(output)


def test_lock__of_several_heirs_one_wins(in_s3, monkeypatch):
    left_by_a_dead_run(in_s3, monkeypatch)
    everybody, one_at_a_time = threading.Barrier(5), threading.Lock()
    look, put = locks._S3Object.look, locks._S3Object.put

    def look_together(self):
        seen = look(self)
        if seen is not None and seen.age > 1:
            everybody.wait(30)  # all have seen the dead lock before one takes it
        return seen

    def put_one_by_one(self, content, *, tag):
        with one_at_a_time:  # the pretended S3 compares and writes in two steps
            return put(self, content, tag=tag)

    monkeypatch.setattr(locks._S3Object, "look", look_together)
    monkeypatch.setattr(locks._S3Object, "put", put_one_by_one)
    outcomes = []

    def heir():
        try:
            Lock(in_s3).take()
            outcomes.append("won")
        except BusyError:
            outcomes.append("busy")

    threads = [threading.Thread(target=heir) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["busy"] * 4 + ["won"]


def test_lock__of_several_that_come_at_once_one_wins(in_s3, monkeypatch):
    one_at_a_time, put = threading.Lock(), locks._S3Object.put

    def put_one_by_one(self, content, *, tag):
        with one_at_a_time:
            return put(self, content, tag=tag)

    monkeypatch.setattr(locks._S3Object, "put", put_one_by_one)
    outcomes, start = [], threading.Barrier(4)

    def come():
        start.wait(30)
        try:
            Lock(in_s3).take()
            outcomes.append("won")
        except BusyError:
            outcomes.append("busy")

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["busy"] * 3 + ["won"]


GARBAGE = {
    "empty": b"",
    "not JSON": b"\xff\xfe\x00 something else",
    "a list": b"[1, 2]",
    "no owner": json.dumps({"time": 1.0}).encode(),
    "owner of another kind": json.dumps({"owner": {"a": 1}}).encode(),
    "endless lease": json.dumps({"owner": "a", "lease": 1e300}).encode(),
    "lease of another kind": json.dumps({"owner": "a", "lease": "long"}).encode(),
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_lock__garbage_in_its_place_is_explained(output, kind):
    write_whole(lock_of(output), GARBAGE[kind])
    with pytest.raises(StoreError, match=r"is no lock of this program .* delete it, then run again"):
        Lock(output).take()
    assert read_whole(lock_of(output)) == GARBAGE[kind]
    fsspec.core.url_to_fs(output)[0].rm(fsspec.core.url_to_fs(lock_of(output))[1])


def test_lock__of_an_earlier_version_is_waited_for(output):
    write_whole(lock_of(output), json.dumps({"owner": "node:1:2", "time": 0.0}).encode())
    with pytest.raises(BusyError, match="node:1:2"):
        Lock(output).take()


def test_lock__removed_by_hand_while_held(output):
    lock = Lock(output)
    lock.take()
    filesystem, path = fsspec.core.url_to_fs(lock_of(output))
    filesystem.rm(path)
    with pytest.raises(BusyError, match="its lock was removed"):
        lock.renew()
    lock.release()


def test_lock__an_answer_that_was_lost_does_not_lock_its_owner_out(in_s3, monkeypatch):
    """The store has written, the answer is lost, and the library tries again: the second try meets the first."""
    call = locks._S3Object._call

    def twice(self, method, tag, condition, **arguments):
        call(self, method, tag, condition, **arguments)
        return call(self, method, tag, condition, **arguments)

    lock = Lock(in_s3)
    with monkeypatch.context() as patch:
        patch.setattr(locks._S3Object, "_call", twice)
        lock.take()
        lock.renew()
    lock.renew()
    lock.release()
    assert not is_there(in_s3)


@pytest.mark.parametrize("how", ["ignored", "refused"])
def test_lock__store_without_conditions_is_told_and_written_with_care(in_s3, monkeypatch, caplog, how):
    monkeypatch.setattr(locks, "SETTLE_SECONDS", 0.2)
    filesystem = fsspec.core.url_to_fs(in_s3)[0]
    call = type(filesystem).call_s3

    def unconditional(self, method, **arguments):
        conditions = [arguments.pop(name) for name in ("IfMatch", "IfNoneMatch") if name in arguments]
        if how == "refused" and conditions and method == "put_object":
            error = OSError(38, "A header you provided implies functionality that is not implemented")
            error.__cause__ = Exception()
            error.__cause__.response = {"ResponseMetadata": {"HTTPStatusCode": 501}}
            raise error
        return call(self, method, **arguments)

    monkeypatch.setattr(type(filesystem), "call_s3", unconditional)
    lock, second = Lock(in_s3), Lock(in_s3)
    with caplog.at_level(logging.WARNING):
        lock.take()
    assert "has no conditional writes" in caplog.text
    if how == "refused":
        with pytest.raises(BusyError):
            second.take()
    else:  # the store lets the second one write over the first, who sees it before it goes on
        second.take()
        with pytest.raises(BusyError, match="was taken over"):
            lock.renew()
        second.release()
    lock.release()
    assert not is_there(in_s3)


def test_lock__that_cannot_be_removed_at_the_end_does_not_spoil_the_result(in_s3, monkeypatch, caplog):
    lock = Lock(in_s3)
    lock.take()

    def unreachable(self, tag):
        raise OSError("cannot be reached")

    monkeypatch.setattr(locks._S3Object, "remove", unreachable)
    with caplog.at_level(logging.WARNING):
        lock.release()
    assert "could not be removed (cannot be reached): it expires by itself" in caplog.text


def test_lock__checkpoints_are_signs_of_life(in_s3, monkeypatch):
    held = ConsensusStore(in_s3, {"seed": 0})
    held.open(overwrite=False)
    before = read_whole(lock_of(in_s3))
    held.save_checkpoint({"counts": np.arange(3)}, {"round": 1})
    assert read_whole(lock_of(in_s3)) != before
    held.close()


def test_lock__local_file_with_garbage_in_it(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK_NAME).write_bytes(b"\xff\xfe garbage \x00")
    lock = Lock(str(tmp_path / "out"))
    lock.take()
    (tmp_path / "out" / LOCK_NAME).write_bytes(b"\xff\xfe garbage \x00")
    with pytest.raises(BusyError, match="wait for it"):
        Lock((tmp_path / "out").as_uri()).take()  # a URL of the same folder is the same lock
    lock.release()
