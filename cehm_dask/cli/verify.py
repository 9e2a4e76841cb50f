"""``cehm verify``: whether a store, or a run directory, is still what was written."""

import click

from cehm_dask.cli.explain import Terminal, explained


@click.command()
@click.argument("place")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def verify(place: str, quiet: bool) -> None:
    """Read all of a store or run directory and compare it with the digests that were recorded when it was written.

    PLACE is an ensemble.zarr, consensus.zarr, saved model or prediction, or a run directory (paths or URLs). Each shard
    or file that is missing, damaged or another's is named, and the exit code is 2.

    \b
    Examples:
      cehm verify ensemble.zarr
      cehm verify runs/today
    """
    from cehm_dask.bars import Rows
    from cehm_dask.data.files import exists
    from cehm_dask.data.verification import verify_store
    from cehm_dask.errors import StoreError
    from cehm_dask.pipeline.directory import STATE, Directory
    from cehm_dask.pipeline.outputs import verify_outputs
    from cehm_dask.progress import Count

    with Rows(Terminal(stderr=True), quiet=quiet) as rows:
        count = Count(rows, "read")
        directory = Directory(place.rstrip("/"))
        if exists(directory.path(STATE)) and (state := directory.read()) is not None:
            faults, summary = verify_outputs(directory.url, state, count)
        else:
            found = verify_store(place, count)
            faults, summary = found.faults, found.summary()
    if faults:
        raise StoreError("\n".join([summary, *faults]))
    if not quiet:
        click.echo(summary)
