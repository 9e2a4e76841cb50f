"""A run directory → the page of a run on its way, from its files alone; served on this machine, or written to a file.

Above the heartbeat and the stores, below the command. The run may be on another machine and need not know of it. What
cannot be read, because it is just being written, is left out until the next look.
"""

import http.server
import json
import math
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.consensus_store import trail_since
from cehm_dask.data.files import absolute, read_whole, write_whole
from cehm_dask.errors import CehmError, InputError, StorageError
from cehm_dask.machine import format_bytes
from cehm_dask.masking import masked, without_credentials
from cehm_dask.method.trail import SAMPLE
from cehm_dask.pipeline.directory import Directory
from cehm_dask.pipeline.heartbeat import FORMAT, NAME, VERSION
from cehm_dask.profiles.words import number
from cehm_dask.report import check_target
from cehm_dask.report.live import Followed, View, live_page
from cehm_dask.report.picture import Plane, code_plane
from cehm_dask.report.words import Context, count, seconds

SILENT_SECONDS = 60.0
"""Without a sign of life for so long, a run is taken for dead; or for six times as long as it lets pass between two."""
LOG_LINES = 8
LOG_BYTES = 1 << 16
"""Of the log, read from its end."""
HOSTS = ("127.0.0.1", "localhost")

STATES = {
    "done": ("Done", "done", True),
    "failed": ("Failed", "failed", False),
    "interrupted": ("Interrupted", "interrupted", False),
}


class Watch:
    """Looks at a run directory, again and again.

    Parameters
    ----------
    url : str
        Path or URL of the run directory.
    begun : bool
        Whether it must be there already; if not, what an earlier run left is not shown.
    """

    def __init__(self, url: str, *, begun: bool = True) -> None:
        self.directory = Directory(absolute(url).rstrip("/"))
        if begun and self.directory.read() is None:
            raise InputError(
                f"run {without_credentials(url)}: no run directory (it has no run.json); give the output of a recipe"
            )
        self._beat: tuple[Any, float, float] | None = None
        self._last, self._trail = "", dict[str, NDArray[Any]]()
        self._plane: Plane | None = None
        self._lock = threading.Lock()
        self._before = None if begun else (self._told() or {}).get("written")

    def page(self, every: float) -> tuple[str, bool]:
        """The page as of now, and whether the run is over."""
        with self._lock:  # two readers of the page must not look at once: a look remembers what was there
            view = self.look()
        return live_page(view, every), view.over

    def look(self) -> View:
        """The run as it is now."""
        told, steps = self._told(), self._steps()
        run = without_credentials(self.directory.url)
        if told is not None and told["written"] == self._before:
            return View(run, "Waiting", "begins", True)
        if told is None:
            done = bool(steps) and all(own["state"] == "done" for own in steps.values())
            headline, state = ("Done", "done") if done else ("Waiting", "no sign of life yet")
            shown = [_step(name, own["state"], own["seconds"]) for name, own in steps.items()]
            return View(run, headline, state, True, steps=shown, log=self._log(), over=done)
        silent = self._silent_seconds(told)
        headline, state, well, words = _state(told, silent)
        if told["state"] == "done" and told["steps"].get("report") in ("done", "done before"):
            words = f"The report: {run}/report.html"
        merged = {
            name: _step(name, became, steps.get(name, {}).get("seconds")) for name, became in told["steps"].items()
        }
        over = told["state"] in STATES
        running = not over and well
        told["left"] = told["left"] if running else None
        rounds = told["rounds"] if told.get("step") == "consensus" else []
        return View(
            run,
            headline,
            state,
            well,
            words,
            list(merged.values()),
            _work(told) if running else None,
            _tiles(told, rounds) if not over else _last_tiles(told),
            rounds if not over else [],
            self._log(),
            self._followed() if told.get("step") == "consensus" and not over else None,
            over,
        )

    def _told(self) -> Context | None:
        """What the run wrote of itself; None if nothing that can be read."""
        with suppress(ValueError, TypeError, KeyError, OSError):
            told: Context = json.loads(read_whole(self.directory.path(NAME)) or b"{}")
            if (told["format"], told["version"]) == (FORMAT, VERSION):
                return {"step": None, "what": "", "error": "", **told}
        return None

    def _steps(self) -> Context:
        try:
            return dict((self.directory.read() or {"steps": {}})["steps"])
        except CehmError:
            return {}

    def _silent_seconds(self, told: Context) -> float:
        """Since its last sign of life: by the clock of that machine at first, then by what changes while we look."""
        now = time.monotonic()
        if self._beat is None:
            self._beat = told["beat"], now, max(0.0, time.time() - told["written"])
        elif self._beat[0] != told["beat"]:
            self._beat = told["beat"], now, 0.0
        return now - self._beat[1] + self._beat[2]

    def _followed(self) -> Followed | None:
        """Where the samples of the trail stand, of the first problem; None before there is one."""
        last, new = trail_since(self.directory.path("consensus.zarr"), self._last)
        if last < self._last:  # begun anew
            self._trail, self._plane, self._last = {}, None, ""
            return None
        self._last = last
        if SAMPLE in new:
            self._plane = None
        self._trail |= new
        codes = self._trail.get(SAMPLE)
        problem, labels = _latest(self._trail)
        if codes is None or labels is None or codes.ndim != 2 or len(codes) != len(labels):
            return None
        if self._plane is None:
            widths = (codes.max(axis=0).astype(np.int64) + 1).tolist()
            self._plane, _ = code_plane(codes.astype(np.int64), widths, 2, silent=True)
        several = len({name.partition("/")[0] for name in self._trail if name != SAMPLE})
        about = f"Problem {problem + 1} of {several} that run side by side." if several > 1 else ""
        return Followed(labels.astype(np.int64), self._plane.coordinates, self._plane.axes, about)

    def _log(self) -> list[str]:
        with suppress(OSError):
            content = read_whole(self.directory.path("run.log")) or b""
            return masked(content[-LOG_BYTES:].decode(errors="replace")).splitlines()[-LOG_LINES:]
        return []


def _latest(trail: dict[str, NDArray[Any]]) -> tuple[int, NDArray[Any] | None]:
    """The first problem, and where its samples stood after its latest round."""
    rounds = sorted(tuple(map(int, name.split("/"))) for name in trail if name != SAMPLE)
    if not rounds:
        return 0, None
    problem = rounds[0][0]
    latest = max(number for own, number in rounds if own == problem)
    return problem, trail[f"{problem}/{latest}"]


def _state(told: Context, silent: float) -> tuple[str, str, bool, str]:
    """Headline, state, whether all is well, and a sentence."""
    if told["state"] in STATES:
        error = str(told["error"])
        words = error if error else "Give the same command again: it resumes." if told["state"] != "done" else ""
        return *STATES[told["state"]], words
    if silent > max(SILENT_SECONDS, 6 * told["every"]):
        words = (
            f"Its last sign of life was {seconds(round(silent))} ago: it was killed, or its machine is gone. The same "
            "command resumes it."
        )
        return "Silent", "no sign of life", False, words
    return f"Running: {told['step'] or 'begins'}", "running", True, str(told["what"])


def _step(name: str, became: str, spent: float | None) -> Context:
    style = became if became in ("running", "done") else "other"
    about = f"{seconds(spent)}" if became == "done" and spent else "" if style != "other" else became
    return {"name": name, "style": style, "about": about}


def _work(told: Context) -> Context | None:
    work = told["work"]
    if work is None:
        return None
    total = work["total"]
    percent = round(100 * work["done"] / total, 1) if total else 0
    return {
        "what": work["what"],
        "told": f"{work['done']:,} of {total:,}" if total else f"{work['done']:,}",
        "percent": percent,
    }


def _tiles(told: Context, rounds: list[Context]) -> list[Context]:
    tiles = []
    if rounds:
        last = rounds[-1]
        tiles += [
            _tile("round", f"{last['round']:,}", last["stage"]),
            _tile(
                "assigned", f"{last['assigned'] / max(1, last['n_samples']):.1%}", f"of {last['n_samples']:,} samples"
            ),
            _tile("moved", f"{last['moved']:,}", "in this round"),
        ]
        if last["loss"] is not None:
            tiles.append(_tile("loss", number(last["loss"])))
        tiles.append(_tile("sweeps", f"{last['sweeps']:,}", "over the labels"))
    if told["left"] is not None:
        tiles.append(_tile("left, about", seconds(told["left"]["seconds"]), f"of {told['left']['of']}"))
    if told["step_seconds"] is not None:
        tiles.append(_tile("time", seconds(told["step_seconds"]), f"in {told['step']}"))
    return tiles + _last_tiles(told)


def _last_tiles(told: Context) -> list[Context]:
    tiles = []
    if (who := told["workers"]) is not None:
        about = f"{count(who['threads'], 'thread')}, {format_bytes(who['memory'])}"
        tiles.append(_tile("workers", f"{who['workers']:,}", about))
    tiles.append(
        _tile(
            "memory", format_bytes(told["memory"]["now"]), f"of the driver; peak {format_bytes(told['memory']['peak'])}"
        )
    )
    return tiles


def _tile(name: str, value: str, about: str = "") -> Context:
    return {"name": name, "value": value, "about": about}


def write_pages(watch: Watch, path: str, every: float) -> Path:
    """Rewrite one page until the run is over."""
    target = check_target(path, overwrite=True)
    while True:
        page, over = watch.page(every)
        write_whole(str(target), page.encode(), lasting=False)
        if over:
            return target
        time.sleep(every)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    watch: Watch
    every: float
    token: str
    asked = -math.inf
    """When the page was last asked for."""
    shown_over = False
    """Whether it said then that the run is over."""

    def see_off(self) -> None:
        """Let a reader who is there see how the run ended."""
        until = time.monotonic() + self.every + 1.0
        there = time.monotonic() - self.asked < 2 * self.every + 1.0
        while there and not self.shown_over and time.monotonic() < until:
            time.sleep(0.05)


class _Answers(http.server.BaseHTTPRequestHandler):
    server: _Server
    server_version = sys_version = "cehm"

    def do_GET(self) -> None:
        """The page, to those who know its address."""
        host = (self.headers.get("Host") or "").rpartition(":")[0]
        if host not in HOSTS or not secrets.compare_digest(self.path.encode(), f"/{self.server.token}/".encode()):
            self.send_error(404)
            return
        try:
            page, over = self.server.watch.page(self.server.every)
        except Exception as error:  # whatever it is, the next look may succeed
            self.send_error(503, explain=masked(str(error)))
            return
        content = page.encode()
        self.send_response(200)
        headers = {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.server.asked, self.server.shown_over = time.monotonic(), over

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address is known to one reader only."""


@contextmanager
def serving(watch: Watch, port: int, every: float, *, to_the_end: bool = False) -> Iterator[str]:
    """Serve the page on this machine, to those who know its address, while the block runs; gives the address.

    Others who are logged in here can reach the port too, so the address has a part that cannot be guessed. With
    ``to_the_end``, a reader who is there gets to see how the run ended.
    """
    try:
        server = _Server(("127.0.0.1", port), _Answers)
    except OSError as error:
        raise StorageError(
            f"port={port}: cannot be listened on ({error.strerror}): choose another, or 0 for any"
        ) from error
    server.watch, server.every, server.token = watch, every, secrets.token_urlsafe(16)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="live page", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/{server.token}/"
    except KeyboardInterrupt:
        to_the_end = False  # whoever stops the run does not want to wait
        raise
    finally:
        if to_the_end:
            server.see_off()
        server.shutdown()
        thread.join()
        server.server_close()
