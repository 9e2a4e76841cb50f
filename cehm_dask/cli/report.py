"""``cehm report``: a finished consensus as one page to read and to send on."""

from typing import Any

import click
from rich.console import Console
from rich.markup import escape

from cehm_dask.cli.explain import explained


@click.command()
@click.argument("consensus")
@click.option("-o", "--output", default="report.html", show_default=True, help="The page.")
@click.option(
    "--ensemble", help="The ensemble.zarr or base labels it was made from: algorithms, runners-up, a picture."
)
@click.option("--features", help="Features for the picture: .npy, .csv, .parquet or a Zarr array.")
@click.option("--coordinates", help="Two coordinates a sample for the picture, instead of features.")
@click.option("--title", help="Heading of the page.")
@click.option("--overwrite", is_flag=True, help="Replace an existing page.")
@explained
def report(consensus: str, output: str, overwrite: bool, **given: Any) -> None:
    """Write one HTML page about a finished consensus.zarr: clusters, confidence, rounds, members, choice of k.

    The page is one file that needs no network, light or dark, readable on a phone and without scripts.

    \b
    Examples:
      cehm report consensus.zarr
      cehm report consensus.zarr --ensemble ensemble.zarr --features features.npy -o iris.html
    """
    from cehm_dask.report import write_report

    path = write_report(consensus, output, overwrite=overwrite, **given)
    Console(stderr=True).print(f"written: {escape(str(path))}", highlight=False, soft_wrap=True)
