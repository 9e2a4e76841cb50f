"""The command ``cehm`` in a process of its own, which can be killed or stopped at a chosen step.

Processes are forked from a server that has imported everything, so that hundreds of them take minutes.
"""

import multiprocessing
import os
import re
import resource
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.chaos.warm"])

LONGEST_SECONDS = 600
"""After which a command hangs. Alone it takes 1 to 15 s; with twenty processes on two cores, one of 2 s took 120 s."""


@dataclass(frozen=True)
class Moment:
    """Right before a step, or before whatever comes after it.

    A step has a name and not a number: two threads that write at once do so in any order.
    """

    step: str
    """What is done, and to which file of the watched folder: ``os.rename consensus.zarr/checkpoint.npz``.

    Files that are opened to be read count only where such a step is named: ``read zarr.json``.
    """
    nth: int = 1
    """Of the steps with this name, which one."""
    after: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; that of a signal is negative."""
    out: str
    err: str
    steps: tuple[str, ...] = ()
    """Names of what it changed in the watched folder, in order, where that was asked for."""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def crashed(self) -> bool:
        """Whether it ended with a traceback, a bug's exit code or a signal that nobody sent."""
        return self.code == 1 or "Traceback" in self.err or (self.code < 0 and not self.killed)


class Running:
    """A command that was started and goes on."""

    def __init__(
        self, args, folder, *, watched=None, kill_at=None, stop_at=None, largest_file=None, environment=None, prepare=()
    ):
        """Start it.

        Parameters
        ----------
        args : sequence of str
            What comes after ``cehm``.
        folder : Path
            Where it runs.
        watched : Path, optional
            The folder whose changes are its steps.
        kill_at : Moment or int, optional
            When it kills itself: a moment, or right before the so-many-th step.
        stop_at : Moment or int, optional
            When it stops itself, until it is told to go on.
        largest_file : int, optional
            Bytes that a file may have; a write beyond is an error of the disk.
        environment : dict, optional
        prepare : sequence of str
            Functions that the process calls first, as ``module:name``.
        """
        folder = Path(folder)
        number = secrets.token_hex(8)
        notes = folder.parent / "notes"
        notes.mkdir(exist_ok=True)
        self._files = [notes / f"{number}.{kind}" for kind in ("out", "err", "steps")]
        options = {
            "watched": None if watched is None else str(watched),
            "at": kill_at if stop_at is None else stop_at,
            "signal": signal.SIGKILL if stop_at is None else signal.SIGSTOP,
            "prepare": list(prepare),
            "largest_file": largest_file,
            "environment": {**_proxied(), **(environment or {})},
        }
        self.process = FORKS.Process(
            target=_child, args=([str(arg) for arg in args], str(folder), [str(f) for f in self._files], options)
        )
        self.process.start()

    def kill(self):
        self.process.kill()

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    @property
    def pid(self):
        return self.process.pid

    def wait_until_stopped(self, timeout=LONGEST_SECONDS):
        """Whether it has stopped itself; False: it has ended before."""
        deadline = time.monotonic() + timeout
        while self.process.exitcode is None:
            if is_stopped(self.process.pid):
                return True
            assert time.monotonic() < deadline, "the command has neither stopped nor ended"
            time.sleep(0.005)
        return False

    def end(self, timeout=LONGEST_SECONDS):
        """Wait for it; one that does not end is killed, and the test fails."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"the command did not end within {timeout} s: {self._files[1].read_text()[-2000:]}")
        out, err, steps = (file.read_text(errors="replace") if file.exists() else "" for file in self._files)
        for file in self._files:
            file.unlink(missing_ok=True)
        code = self.process.exitcode
        self.process.close()
        return Ended(code, out, err, tuple(steps.splitlines()))


def cehm(*args, folder, timeout=LONGEST_SECONDS, **how):
    """Run a command to its end."""
    return Running(args, folder, **how).end(timeout)


def is_stopped(pid):
    """Whether a process was stopped by SIGSTOP."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except (FileNotFoundError, ProcessLookupError):  # it has ended, before or while this was read
        return False


def _proxied():
    """Settings of this process that the server was started too early to have."""
    return {name: value for name, value in os.environ.items() if name.startswith("AWS_")}


# --- in the process itself ---------------------------------------------------------------------------------------


def _child(args, folder, files, options):
    os.setpgid(0, 0)
    os.chdir(folder)
    os.environ.update(options["environment"])
    for number, name in enumerate(files[:2], start=1):
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w", buffering=1) for number in (1, 2))
    if options["largest_file"] is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write that goes too far is an OSError
        resource.setrlimit(resource.RLIMIT_FSIZE, (options["largest_file"], options["largest_file"]))
    if options["watched"] is not None:
        sys.addaudithook(_Steps(options["watched"], options["at"], options["signal"], files[2]))
    for name in options["prepare"]:
        resolve_name(name)()
    from cehm_dask.cli import main

    main(args)


class _Steps:
    """Notes what is changed under a folder, and sends the process a signal at a chosen moment."""

    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    RANDOM = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{8,}")
    """Parts of names that differ from run to run."""

    def __init__(self, watched, at, number, note):
        self.watched = os.path.abspath(watched)
        self.at, self.signal = at, number
        self.reads = isinstance(at, Moment) and at.step.startswith("read ")
        self.seen, self.is_due = Counter(), False
        self.alone = threading.RLock()  # stores are written by several threads
        self.note = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, event, args):
        step = self._step(event, args)
        if step is None:
            return
        with self.alone:
            self.seen[step] += 1
            os.write(self.note, f"{step}\n".encode())
            if self._has_come(step):
                os.kill(os.getpid(), self.signal)

    def _step(self, event, args):
        """The name of what is changed; None: nothing, or nothing of the watched folder."""
        if event == "open":
            name, mode, flags = args
            if not (isinstance(flags, int) and flags & self.WRITING) and not set(str(mode or "")) & set("wax+"):
                if not self.reads:
                    return None
                event = "read"
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.truncate", "os.link"):
            name = args[1] if event == "os.rename" else args[0]
        else:
            return None
        if not isinstance(name, str | bytes | os.PathLike):
            return None
        path = os.path.abspath(os.fsdecode(name))
        if event == "os.mkdir" and os.path.isdir(path):
            return None
        if path != self.watched and not path.startswith(self.watched + os.sep):
            return None
        return f"{event} {self.RANDOM.sub('*', os.path.relpath(path, self.watched))}"

    def _has_come(self, step):
        if not isinstance(self.at, Moment):
            return sum(self.seen.values()) == self.at
        if self.is_due:
            self.is_due = False
            return True
        found = step == self.at.step and self.seen[step] == self.at.nth
        self.is_due = found and self.at.after
        return found and not self.at.after
