"""``cehm grow``: a consensus of more samples, of more members, or of fewer, without starting over."""

from typing import Any

import click
from rich.markup import escape

from cehm_dask.cli.consensus import started_on
from cehm_dask.cli.explain import Terminal, explained


@click.command()
@click.argument("consensus")
@click.argument("ensemble")
@click.option("--samples", help="Base labels of new rows, by the same members.")
@click.option("--features", help="Features of new rows; the members that the ensemble holds label them.")
@click.option("--members", help="Base labels of all rows, by new members.")
@click.option("--drop-members", help="Names of members to leave out, such as 3,7; needs --into.")
@click.option("--into", help="Where the grown ensemble goes.  [default: in the place of ENSEMBLE]")
@click.option("--id", "row_id", help="Column of a table of new rows or members that names the rows; left out.")
@click.option("-o", "--output", required=True, help="Where the result goes: a .zarr, which can be resumed.")
@click.option("--memory", help="Memory the run may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option("--cluster", help="A file of cluster_configs/ or a scheduler's address.  [default: threads]")
@click.option("--overwrite", is_flag=True, help="Replace an existing output, or ensemble of --into.")
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def grow(
    consensus: str,
    ensemble: str,
    drop_members: str | None,
    row_id: str | None,
    output: str,
    memory: str | None,
    cluster: str | None,
    quiet: bool,
    **growth: Any,
) -> None:
    """Add samples or members to a consensus, or leave members out.

    CONSENSUS is a consensus.zarr, ENSEMBLE the ensemble.zarr that it was made of. The ensemble grows first; it is
    replaced once the new one is whole. Then samples move from where the consensus before has them, until none moves.
    Number of clusters and kind of belonging stay. Without any of the first four options, ENSEMBLE is taken as it is,
    grown by "cehm generate --append", say. An interrupted command resumes: give the same one.

    \b
    Examples:
      cehm grow consensus.zarr ensemble.zarr --samples new.npy -o grown.zarr
      cehm grow consensus.zarr ensemble.zarr --features today.parquet -o grown.zarr
      cehm grow consensus.zarr ensemble.zarr --members more.csv -o grown.zarr
      cehm grow consensus.zarr ensemble.zarr --drop-members 3,7 --into fewer.zarr -o grown.zarr
    """
    from cehm_dask.bars import Rounds, Stopwatch
    from cehm_dask.cli.display import summary
    from cehm_dask.clusters.current import client_of
    from cehm_dask.data.arrays import is_store
    from cehm_dask.errors import InputError
    from cehm_dask.results.growing import grow as grown

    if not is_store(output):
        raise InputError(f"output {output}: expected a name that ends in .zarr, which can be grown again")
    console, watch = Terminal(stderr=True), Stopwatch()
    dropped = None if drop_members is None else [name.strip() for name in drop_members.split(",") if name.strip()]
    with started_on(cluster) as started, client_of(started) as client, Rounds(console, quiet=quiet) as progress:
        how: dict[str, Any] = {"drop_members": dropped, "id": row_id, "memory": memory, "client": client, **growth}
        outcome = grown(consensus, ensemble, output, progress=progress, **how)
    if not quiet:
        summary(Terminal(), outcome, watch.seconds)
        console.print(f"written: {escape(output)}", highlight=False, soft_wrap=True)
