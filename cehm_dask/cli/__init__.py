"""The command ``cehm``: clustering without writing code.

May import everything; start at ``run``. Parses, calls, prints. Every error ends with one line and an exit code
(``cehm_dask.errors``). Commands are defined in the modules of this folder and import what they need when they are
called, so that ``cehm --help`` is quick.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from cehm_dask import __version__
from cehm_dask.cli import (
    cluster,
    compare,
    consensus,
    data,
    describe,
    evaluate,
    grow,
    history,
    report,
    reproduce,
    run,
    stability,
    verify,
)
from cehm_dask.cli.completion import complete
from cehm_dask.cli.explain import Commands, JsonLines, TextLines


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cehm")
@click.option("--verbose", is_flag=True, help="Log every sweep, and show tracebacks.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: steps, sweeps, warnings and errors as lines of JSON on stderr, and no progress or summary.",
)
@click.pass_context
def main(context: click.Context, verbose: bool, log_format: str) -> None:
    """Consensus clustering: many clusterings of the same samples in, one better clustering out."""
    context.with_resource(_logged(verbose, log_format == "json"))


@contextmanager
def _logged(verbose: bool, lines: bool) -> Iterator[None]:
    """Log to stderr while a command runs."""
    # The formatters mask: done once more on the way through stderr, JSON would lose its form.
    stream: Any = sys.stderr
    handler = logging.StreamHandler(getattr(stream, "raw", stream))
    handler.setLevel(logging.DEBUG if verbose else logging.INFO if lines else logging.WARNING)
    handler.setFormatter(JsonLines() if lines else TextLines("%(asctime)s %(name)s %(message)s"))
    levels = {"": logging.DEBUG if verbose else logging.WARNING}
    if lines and not verbose:
        levels["cehm_dask"] = logging.INFO
    if verbose:
        levels["numba"] = logging.WARNING  # every step of every compilation
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


for _command in (
    data.import_,
    data.generate,
    data.synth,
    data.info,
    verify.verify,
    consensus.consensus,
    grow.grow,
    run.run,
    run.plan,
    run.recipe,
    run.demo,
    report.report,
    reproduce.reproduce,
    compare.compare,
    describe.describe,
    history.history,
    evaluate.evaluate,
    evaluate.predict,
    stability.stability,
    cluster.cluster,
    cluster.submit,
    cluster.status,
):
    main.add_command(complete(_command))
