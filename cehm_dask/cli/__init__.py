"""The command ``cehm``: the door for people who do not write code.

Top of the flow; parses, calls, prints. Errors of the user's making end with one line and an exit code: 2 for bad
input, 3 for what does not fit the memory allowed, 4 for an interrupted run, 5 for a cluster that cannot be had.
Commands stand in the files beside this one and import what they need when they are called, so that ``cehm --help``
is quick.
"""

import logging

import click

from cehm_dask import __version__
from cehm_dask.cli import cluster, compare, consensus, data, evaluate, report, reproduce, run
from cehm_dask.cli.explain import JsonLines


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cehm")
@click.option("--verbose", is_flag=True, help="Log every sweep, and show tracebacks.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: stages, sweeps, warnings and errors as lines of JSON on stderr, and no progress or summary.",
)
def main(verbose: bool, log_format: str) -> None:
    """Consensus clustering: many clusterings of the same samples in, one better clustering out."""
    handler = logging.StreamHandler()
    lines = log_format == "json"
    handler.setLevel(logging.DEBUG if verbose else logging.INFO if lines else logging.WARNING)
    handler.setFormatter(JsonLines() if lines else logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    if lines:
        logging.getLogger("cehm_dask").setLevel(logging.INFO)
    if verbose:
        logging.getLogger().setLevel(logging.DEBUG)
        logging.getLogger("numba").setLevel(logging.WARNING)


for _command in (
    data.import_,
    data.generate,
    data.synth,
    data.info,
    consensus.consensus,
    run.run,
    run.plan,
    run.recipe,
    run.demo,
    report.report,
    reproduce.reproduce,
    compare.compare,
    evaluate.evaluate,
    evaluate.predict,
    cluster.cluster,
    cluster.submit,
    cluster.status,
):
    main.add_command(_command)
