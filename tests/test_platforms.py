"""What only Linux, or only POSIX, has is not needed: the same work in a process that was robbed of it.

No macOS or Windows runs these tests. A process of its own takes away, from the package alone, what they lack, and
stands in for what Windows does otherwise: renaming onto a name that is taken, and removing an open file, are errors.
"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

WORK = """
import hashlib, os, sys, tempfile, warnings
import numpy as np

warnings.simplefilter("ignore", EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module="cehm_dask")

os.chdir(tempfile.mkdtemp())
import cehm_dask
from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.data.locks import Lock
from cehm_dask.errors import BusyError
from cehm_dask.machine import cores, forget_peak, give_back_freed, peak_bytes, this_machine
from cehm_dask.report.browser import find

rng = np.random.default_rng(0)
X = rng.normal(4.0 * rng.integers(3, size=300)[:, None], 1.0, (300, 4))
digest = hashlib.blake2b(digest_size=16)


def told(array):
    digest.update(np.ascontiguousarray(np.asarray(array), np.int64).tobytes())


model = ClusterEnsemble(3, members=5, base=["kmeans", "mixture"], random_state=0).fit(X, client=False)
told(model.labels_)
model.save("model.zarr")
told(ClusterEnsemble.load("model.zarr").predict(X))
for _ in range(2):
    found = CEHM(3, random_state=0).fit(
        model.base_labels_.astype(int), output="consensus.zarr", overwrite=True, client=False
    )
    told(found.labels_[:])
np.save("x.npy", X)
with open("recipe.yaml", "w", encoding="utf-8") as file:
    file.write("features: {path: x.npy}\\nensemble: {members: 5}\\nconsensus: {k: 3}\\noutput: run\\nexport: csv\\n")

from click.testing import CliRunner
from cehm_dask import cli

for words in (
    ["run", "recipe.yaml", "--quiet"],
    ["run", "recipe.yaml", "--quiet"],
    ["run", "recipe.yaml", "--overwrite", "--quiet"],
    ["consensus", "run/ensemble.zarr", "--k", "3", "-o", "labels.csv"],
    ["describe", "run"],
    ["verify", "run"],
):
    done = CliRunner().invoke(cli.main, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
told(np.loadtxt("labels.csv", delimiter=",", skiprows=1, usecols=1))
assert os.path.getsize("run/report.html") > 10_000

first, second = Lock("busy.zarr"), Lock("busy.zarr")
first.take()
try:
    second.take()
    raise SystemExit("two hold one lock")
except BusyError as error:
    assert str(os.getpid()) in str(error), error
first.release()
second.take()
second.release()
assert not os.path.exists("busy.zarr")

give_back_freed()
forget_peak()
assert peak_bytes() > 1 << 20 and cores() >= 1 and this_machine(None).allowed > 1 << 20
try:
    find()
except OSError:
    pass
print(digest.hexdigest())
"""

ROBBED = """
import builtins, os, pathlib, sys, types

MISSING = {modules!r}
ATTRIBUTES = {attributes!r}
LINUX = ("/proc", "/sys")
STDLIB = (os.path.dirname(os.__file__) + os.sep, "<frozen")
STAND_INS = {{}}
refused = set()


def asked_by_the_package():
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if "site-packages" in file or not file.startswith(STDLIB):
            return frame.f_globals.get("__name__", "").startswith("cehm_dask")
        frame = frame.f_back
    return False


real_import = builtins.__import__


def robbed_import(name, globals=None, *rest, **more):
    if (globals or {{}}).get("__name__", "").startswith("cehm_dask"):
        if name in STAND_INS:
            return STAND_INS[name]
        if name in MISSING:
            refused.add(name)
            raise ImportError(name)
    return real_import(name, globals, *rest, **more)


def no_linux_files(event, arguments):
    if event == "open" and str(arguments[0]).startswith(LINUX) and asked_by_the_package():
        refused.add("files of Linux")
        raise FileNotFoundError(arguments[0])


for name in ATTRIBUTES:
    module, _, attribute = name.partition(".")
    if hasattr(sys.modules.get(module) or __import__(module), attribute):
        delattr(sys.modules[module], attribute)
builtins.__import__ = robbed_import
sys.addaudithook(no_linux_files)
"""

WINDOWS = """
import fcntl

LOCKED = []
locks = types.ModuleType("msvcrt")
locks.LK_NBLCK = 2


def locking(descriptor, mode, count):
    LOCKED.append(os.lseek(descriptor, 0, os.SEEK_CUR))
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


locks.locking = locking
STAND_INS["msvcrt"] = locks
real_rename, real_unlink = os.rename, pathlib.Path.unlink


def rename(source, target):
    if os.path.exists(target):
        raise FileExistsError(target)
    real_rename(source, target)


def unlink(path, missing_ok=False):
    held = {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}
    if os.path.realpath(path) in held:
        raise PermissionError(path)
    real_unlink(path, missing_ok)


os.rename, pathlib.Path.unlink = rename, unlink
"""

MACOS = {"modules": [], "attributes": ["os.sched_getaffinity", "os.posix_fadvise", "os.posix_fallocate"]}
ON_WINDOWS = {
    "modules": ["fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "posix"],
    "attributes": [
        *MACOS["attributes"],
        *("os.fork", "os.forkpty", "os.geteuid", "os.getuid", "os.getgid", "os.getegid", "os.setsid", "os.killpg"),
        *("os.O_DIRECTORY", "os.O_NOFOLLOW", "os.mkfifo", "os.getloadavg", "os.chown"),
        *("signal.SIGKILL", "signal.SIGHUP", "signal.SIGUSR1", "signal.SIGCHLD", "signal.SIGPIPE", "signal.SIGALRM"),
        *("signal.setitimer", "signal.pthread_sigmask", "time.tzset"),
    ],
}


def worked(before="", after=""):
    """The digest of all labels, from a process of its own; text files without a named encoding are errors."""
    command = [sys.executable, "-X", "warn_default_encoding", "-c"]
    done = subprocess.run(
        [*command, f"{before}\n{WORK}\n{after}"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.split()


@pytest.fixture(scope="module")
def wanted():
    return worked()


def test_macos__nothing_of_linux_is_needed(wanted):
    digest, *refused = worked(ROBBED.format(**MACOS), "print(*refused)")
    assert [digest] == wanted
    assert "Linux" in refused  # or nothing was taken away


def test_windows__nothing_of_posix_is_needed(wanted):
    digest, *refused = worked(ROBBED.format(**ON_WINDOWS) + WINDOWS, "print(*refused)\nassert set(LOCKED) == {1 << 30}")
    assert [digest] == wanted
    assert {"fcntl", "resource", "Linux"} <= set(refused)
