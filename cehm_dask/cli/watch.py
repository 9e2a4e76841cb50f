"""``cehm watch``: a run on its way, as a page that renews itself."""

import click

from cehm_dask.cli.explain import explained


@click.command()
@click.argument("run")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1.  [default: any that is free]"
)
@click.option("--every", type=click.FloatRange(1, 3600), default=2.0, show_default=True, help="Seconds between looks.")
@click.option("--write", "path", metavar="FILE", help="Rewrite a page until the run is over; no server.")
@explained
def watch(run: str, port: int, every: float, path: str | None) -> None:
    """Show the run in directory RUN while it works: step, round, time left, memory, the clusters as they grow.

    Reads the files of the run directory and nothing else: the run may be on another machine, or over. Ctrl-C ends it;
    the run goes on.

    \b
    Examples:
      cehm watch runs/today
      cehm watch runs/today --write live.html --every 5
    """
    from cehm_dask.pipeline.watch import Watch, serving, write_pages

    looking = Watch(run)
    if path is not None:
        click.echo(f"written: {write_pages(looking, path, every)}")
        return
    import threading
    from contextlib import suppress

    with serving(looking, port, every) as address, suppress(KeyboardInterrupt):
        click.echo(address)
        threading.Event().wait()
