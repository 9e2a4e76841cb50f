"""What the machine has, on Linux and where Linux's own interfaces are missing."""

import subprocess
import sys
import textwrap

import pytest

from cehm_dask import machine
from cehm_dask.errors import InputError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "size"), [("2GiB", 2 << 30), (" 500 MB", 500_000_000), ("1k", 1000), ("1.5mib", 3 * MIB // 2), (7, 7)]
)
def test_parse_bytes(text, size):
    assert machine.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "lots", "-5GiB", "2 foos", "nan", "inf", "2GiB 3"])
def test_parse_bytes__refuses_and_names_the_value(text):
    with pytest.raises(InputError, match=f"memory='{text}': expected a number with a unit"):
        machine.parse_bytes(text)


@pytest.mark.parametrize("text", ["999999999999999999999GiB", "1e999"])
def test_parse_bytes__refuses_what_no_machine_has(text):
    with pytest.raises(InputError, match=f"memory='{text}': "):
        machine.parse_bytes(text)


def test_peak__follows_what_is_taken():
    machine.forget_peak()
    before = machine.peak_bytes()
    held = bytearray(64 * MIB)
    assert machine.resident_bytes() >= len(held)
    del held
    assert machine.peak_bytes() >= before + 60 * MIB


def test_free__is_what_the_container_leaves(monkeypatch):
    files = {"/sys/fs/cgroup/memory.max": f"{300 * MIB}\n", "/sys/fs/cgroup/memory.current": f"{100 * MIB}\n"}
    monkeypatch.setattr(machine, "_linux_text", files.get)
    assert machine._free_bytes() == 200 * MIB
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert machine._free_bytes() > 0


ELSEWHERE = """
import os, sys
del os.sched_getaffinity

def refuse(event, arguments, standard=os.path.dirname(os.__file__)):
    # Of what this package opens; psutil and others stay: on other systems they ask other interfaces.
    if event == "open" and str(arguments[0]).startswith(("/proc/", "/sys/")):
        frame = sys._getframe(1)
        while frame is not None and os.path.dirname(frame.f_code.co_filename) in (standard, "<frozen "):
            frame = frame.f_back
        if "site-packages" not in frame.f_code.co_filename:
            raise FileNotFoundError(arguments[0])

sys.addaudithook(refuse)
"""


def test_elsewhere__imports_fits_and_runs_a_recipe(tmp_path):
    # What macOS lacks is taken away in a process of its own.
    program = ELSEWHERE + textwrap.dedent(
        """
        from sklearn.datasets import load_iris
        from cehm_dask import ClusterEnsemble, machine
        from cehm_dask.pipeline.recipe import parse
        from cehm_dask.pipeline.run import run

        try:
            open("/proc/self/status")
        except FileNotFoundError:
            pass
        else:
            raise SystemExit("/proc can be read")
        assert machine.cores() >= 1 and machine.peak_bytes() >= machine.resident_bytes() // 2 > 0
        machine.forget_peak()
        model = ClusterEnsemble(n_clusters=3, random_state=0).fit(load_iris().data)
        assert len(set(model.labels_)) == 3
        text = "features: {sklearn: iris}\\nensemble: {members: 5}\\nconsensus: {k: 3}\\noutput: out\\n"
        assert run(parse(text)).steps["report"] == "done"
        """
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
