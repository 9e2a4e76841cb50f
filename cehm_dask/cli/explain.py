"""What all commands share: exit codes, errors in one line, masked output, numbers as people write them."""

import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from cehm_dask.errors import BUG, INTERRUPTED, ReaderGoneError, exit_code_of, sentence_of
from cehm_dask.masking import MaskedStream, look_away, masked, masked_json, masked_streams, remember_credentials
from cehm_dask.wording import speaking


class Terminal(Console):
    """A console that masks secrets before it breaks lines, in the middle of which they would not be found."""

    def render_str(self, text: str, **options: Any) -> Text:
        rendered = super().render_str(text, **options)
        shown = masked(rendered.plain)
        return (
            rendered if shown == rendered.plain else Text(shown, justify=rendered.justify, overflow=rendered.overflow)
        )

    def on_broken_pipe(self) -> None:
        raise ReaderGoneError("the reader of the output has gone")


class Commands(click.Group):
    """The commands, with stdout and stderr masked from the first word to the last."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        remember_credentials(os.environ, sys.argv)
        with masked_streams(), _signals():
            return super().main(*args, **kwargs)


def echo_values(data: Any, **options: Any) -> None:
    """Print values for programs as JSON: texts in them are masked, keys and numbers stay as they are."""
    echo_masked(masked_json(data, **options))


def echo_masked(text: str) -> None:
    """Print a text for programs that is masked already."""
    out: Any = sys.stdout
    write = out.write_masked if isinstance(out, MaskedStream) else out.write
    write(text if text.endswith("\n") else f"{text}\n")
    out.flush()


@contextmanager
def _signals() -> Iterator[None]:
    """Take SIGTERM, which schedulers and queues send, for Ctrl-C: state is saved, exit code 4."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def explained(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors of the user's making into one line on stderr and an exit code; show warnings as lines."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        console = Terminal(stderr=True, soft_wrap=True, highlight=False)
        context = click.get_current_context(silent=True)
        lines = context is not None and context.find_root().params.get("log_format") == "json"
        if lines and "quiet" in kwargs:
            kwargs["quiet"] = True

        def say(level: int, style: str, text: str, error: BaseException | None = None) -> None:
            """One line; with an error, its traceback too."""
            if lines:
                logging.getLogger("cehm_dask").log(level, text, exc_info=error)
                return
            if error is not None:
                sys.stderr.write("".join(traceback.format_exception(error)))
            if not style:
                console.print(escape(text))
            else:
                console.print(f"[{style}]{logging.getLevelName(level).lower()}:[/] {escape(text)}")

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            say(logging.WARNING, "yellow", str(message))

        with warnings.catch_warnings(), speaking("command"):
            warnings.showwarning = show
            try:
                command(*args, **kwargs)
                sys.stdout.flush()
            except ReaderGoneError:
                _look_away()
                sys.exit(INTERRUPTED)
            except KeyboardInterrupt:
                where = "" if command.__name__ in ("run", "demo") else "with an output that ends in .zarr, "
                say(logging.WARNING, "", f"interrupted; {where}the same command resumes from here")
                sys.exit(INTERRUPTED)
            except click.ClickException:
                raise
            except Exception as error:
                code = exit_code_of(error)
                told = code == BUG or logging.getLogger().isEnabledFor(logging.DEBUG)
                say(logging.ERROR, "red", sentence_of(error), error if told else None)
                _let_go()
                sys.exit(code)

    return wrapped


def _let_go() -> None:
    """See that nothing which cannot be printed is left for the end of the process, whose code would be another."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        look_away(sys.stdout)


def _look_away() -> None:
    """Discard what is still to be printed: its reader has gone, as ``head`` does."""
    for stream in (sys.stdout, sys.stderr):
        look_away(stream)


class TextLines(logging.Formatter):
    """One masked line per log record."""

    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object per log record, its values masked."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if step := getattr(record, "step", None):
            facts["step"] = step
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return masked_json(facts)


class Count(click.ParamType[Any]):
    """A whole number, which may be written 1e8."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = float(value)
        except ValueError:
            number = 0.5
        if not (number >= 1 and number.is_integer()):  # nor nan, nor inf
            self.fail(f"{value!r} is not a whole number of at least 1")
        return int(number)


class Clusters(click.ParamType[Any]):
    """Numbers of clusters: 10, or 5,8,10, or 2..15, or auto."""

    name = "k"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | list[int] | str:
        from cehm_dask.method.params import parse_clusters

        if value == "auto":
            return "auto"
        try:
            ks = parse_clusters(value)
        except ValueError as error:
            self.fail(str(error))
        return ks[0] if len(ks) == 1 else ks
