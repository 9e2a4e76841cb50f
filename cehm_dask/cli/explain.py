"""What all commands share: exit codes, errors in one line, numbers as people write them."""

import logging
import sys
import warnings
from collections.abc import Callable
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

        def show(message: Warning | str, *_: Any, **__: Any) -> None:
            console.print(f"[yellow]warning:[/] {escape(str(message))}")

        with warnings.catch_warnings():
            warnings.showwarning = show
            try:
                command(*args, **kwargs)
            except KeyboardInterrupt:
                console.print("interrupted; with an output that ends in .zarr, the same command goes on from here")
                sys.exit(INTERRUPTED)
            except (ValueError, TypeError, OSError, ImportError, ClusterError) as error:
                if logging.getLogger().isEnabledFor(logging.DEBUG):
                    raise
                console.print(f"[red]error:[/] {escape(str(error))}")
                codes = {BudgetError: DOES_NOT_FIT, ClusterError: NO_CLUSTER}
                sys.exit(next((code for kind, code in codes.items() if isinstance(error, kind)), BAD_INPUT))

    return wrapped


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
    """Numbers of clusters: 10, or 5,8,10, or 2..15."""

    name = "k"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | list[int]:
        try:
            if ".." in value:
                first, last = (int(part) for part in value.split(".."))
                ks = list(range(first, last + 1))
            else:
                ks = [int(part) for part in value.split(",")]
        except ValueError:
            ks = []
        if not ks:
            self.fail(f"{value!r} is neither a number (10) nor a list (5,8,10) nor a range (2..15)")
        return ks[0] if len(ks) == 1 else ks
