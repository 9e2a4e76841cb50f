"""The command ``cehm`` in a process of its own, which can be killed at a chosen step.

Processes are forked from a server that has imported everything, so that hundreds of them take minutes.
"""

import multiprocessing
import os
import resource
import secrets
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["tests.chaos.warm"])


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    """Exit code; that of a signal is negative."""
    out: str
    err: str
    steps: tuple[str, ...] = ()
    """What it changed in the watched folder, in order, where that was asked for."""

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def crashed(self) -> bool:
        """Whether it ended with a traceback, a bug's exit code or a signal that nobody sent."""
        return self.code == 1 or "Traceback" in self.err or (self.code < 0 and not self.killed)


class Running:
    """A command that was started and goes on."""

    def __init__(self, args, folder, *, watched=None, kill_at=None, largest_file=None, environment=None):
        folder = Path(folder)
        number = secrets.token_hex(8)
        notes = folder.parent / "notes"
        notes.mkdir(exist_ok=True)
        self._files = [notes / f"{number}.{kind}" for kind in ("out", "err", "steps")]
        options = {
            "watched": None if watched is None else str(watched),
            "kill_at": kill_at,
            "largest_file": largest_file,
            "environment": {**_proxied(), **(environment or {})},
        }
        self.process = _forks.Process(
            target=_child, args=([str(arg) for arg in args], str(folder), [str(f) for f in self._files], options)
        )
        self.process.start()

    def kill(self):
        self.process.kill()

    def pause(self):
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on(self):
        os.kill(self.process.pid, signal.SIGCONT)

    def end(self, timeout=120):
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


def cehm(*args, folder, timeout=120, **how):
    """Run a command to its end."""
    return Running(args, folder, **how).end(timeout)


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
        sys.addaudithook(_Steps(options["watched"], options["kill_at"], files[2]))
    from cehm_dask.cli import main

    main(args)


class _Steps:
    """Counts what is changed under a folder, and kills the process right before a chosen step."""

    WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def __init__(self, watched, kill_at, note):
        self.watched = os.path.abspath(watched)
        self.kill_at = kill_at
        self.number = 0
        self.note = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __call__(self, event, args):
        if event == "open":
            name, mode, flags = args
            if not (isinstance(flags, int) and flags & self.WRITING) and not set(str(mode or "")) & set("wax+"):
                return
        elif event in ("os.rename", "os.remove", "os.mkdir", "os.truncate", "os.link"):
            name = args[1] if event == "os.rename" else args[0]
        else:
            return
        if not isinstance(name, str | bytes | os.PathLike):
            return
        path = os.path.abspath(os.fsdecode(name))
        if event == "os.mkdir" and os.path.isdir(path):
            return
        if path != self.watched and not path.startswith(self.watched + os.sep):
            return
        self.number += 1
        os.write(self.note, f"{event} {path}\n".encode())
        if self.number == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
