"""What all commands share: exit codes, errors in one line, numbers as people write them."""

import json
import logging
import sys
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click
from rich.console import Console
from rich.markup import escape

BAD_INPUT = 2
DOES_NOT_FIT = 3
INTERRUPTED = 4
NO_CLUSTER = 5


def explained(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors of the user's making into one line on stderr and an exit code; show warnings as lines."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        from cehm_dask.cluster import ClusterError
        from cehm_dask.plan import BudgetError

        console = Console(stderr=True, soft_wrap=True, highlight=False)
        context = click.get_current_context(silent=True)
        lines = context is not None and context.find_root().params.get("log_format") == "json"
        if lines and "quiet" in kwargs:
            kwargs["quiet"] = True

        def say(level: int, style: str, text: str) -> None:
            if lines:
                logging.getLogger("cehm_dask").log(level, text)
            else:
                name = logging.getLevelName(level).lower()
                console.print(f"[{style}]{name}:[/] {escape(text)}" if style else escape(text))

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            say(logging.WARNING, "yellow", str(message))

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                command(*args, **kwargs)
            except KeyboardInterrupt:
                where = "" if command.__name__ in ("run", "demo") else "with an output that ends in .zarr, "
                say(logging.WARNING, "", f"interrupted; {where}the same command goes on from here")
                sys.exit(INTERRUPTED)
            except (ValueError, TypeError, OSError, ImportError, ClusterError) as error:
                if logging.getLogger().isEnabledFor(logging.DEBUG):
                    raise
                say(logging.ERROR, "red", str(error))
                codes = {BudgetError: DOES_NOT_FIT, ClusterError: NO_CLUSTER}
                sys.exit(next((code for kind, code in codes.items() if isinstance(error, kind)), BAD_INPUT))

    return wrapped


class JsonLines(logging.Formatter):
    """One JSON object a log record."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        facts = {"time": when, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        if stage := getattr(record, "stage", None):
            facts["stage"] = stage
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        return json.dumps(facts)


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
        from cehm_dask.plan import parse_clusters

        if value == "auto":
            return "auto"
        try:
            ks = parse_clusters(value)
        except ValueError as error:
            self.fail(str(error))
        return ks[0] if len(ks) == 1 else ks
