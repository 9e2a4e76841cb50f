"""``cehm reproduce``: the paper's experiments with one command."""

from pathlib import Path

import click
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from cehm_dask.cli.explain import Terminal, explained
from cehm_dask.machine import cores
from cehm_dask.progress import Progress


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Folder with the data sets, NAME.npz with X and y.  [default: the sets that come with scikit-learn]",
)
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder for members, results, tables and figures.",
)
@click.option("--ensembles", default=30, show_default=True, help="Ensembles of each set and scaling.")
@click.option("--sets", help="Names, with commas between.  [default: those of the paper that are there]")
@click.option("--scale", default="both", show_default=True, help="standard, minmax or both.")
@click.option("--methods", help="Names, with commas between.  [default: plain,printed,released,default]")
@click.option(
    "--pools",
    type=click.Path(path_type=Path),
    help="Folder with pools of members, NAME.npz with labels (n × members) and y. Without --data and --sets, only "
    "these are run.",
)
@click.option("--draws", default=10, show_default=True, help="Ensembles drawn from each pool.")
@click.option("--pool-members", default=30, show_default=True, help="Members of an ensemble drawn from a pool.")
@click.option("--workers", type=int, help="Processes side by side.  [default: one per core; 1 for times to compare]")
@click.option("--figures/--no-figures", default=True, show_default=True)
@click.option("--quiet", is_flag=True, help="No progress, no summary.")
@explained
def reproduce(
    data: Path | None,
    folder: Path,
    ensembles: int,
    sets: str | None,
    scale: str,
    methods: str | None,
    pools: Path | None,
    draws: int,
    pool_members: int,
    workers: int | None,
    figures: bool,
    quiet: bool,
) -> None:
    """Reproduce the paper's tables and figures on its data sets.

    Thirty ensembles of thirty k-means runs are drawn for each set and scaling and kept; CEHM runs on each as the
    authors' program has it (plain), as the equations are printed (printed), as that program with the best of ten
    k-medoids solutions (released), and with its defaults, where candidates compete (default). An interrupted
    reproduction resumes where it stopped, and one with more ensembles or methods adds only what is missing: give the
    command again. Needs the extra 'compare'.

    With --pools, ensembles are also drawn from members that others made, k the number of classes; tables of their own.

    \b
    Examples:
      cehm reproduce -o results --ensembles 5
      cehm reproduce --data uci -o results
      cehm reproduce --data uci -o results --sets iris,wine --scale standard --methods plain
      cehm reproduce --pools pools -o results --methods default,usenc,lwgp
    """
    from cehm_dask.paper import figures as paper_figures
    from cehm_dask.paper import reproduce as paper
    from cehm_dask.paper.compare import posthocs
    from cehm_dask.paper.sets import POOL, SCALES
    from cehm_dask.paper.tables import write_tables

    posthocs()  # refuse before the work, not behind it
    if figures:
        paper_figures.figure_of(1, 1, 1, 1)
    console = Terminal(stderr=True)
    bar = Bar(
        TextColumn("runs"),
        BarColumn(28),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
    )
    with bar:
        progress = _Shown(bar)
        lines = paper.reproduce(
            data,
            folder,
            sets=_names(sets),
            scales=SCALES if scale == "both" else _names(scale),
            ensembles=ensembles,
            methods=_names(methods) or paper.USUAL,
            pools=pools,
            draws=draws,
            pool_members=pool_members,
            workers=workers or cores(),
            progress=progress,
        )
    tables = write_tables(lines, folder)
    of_sets = lines[lines["scale"] != POOL]
    if figures and len(of_sets):
        paper_figures.draw_all(of_sets, data, folder)
    if not quiet:
        for text in tables:
            click.echo(text)
        console.print(f"written: {escape(str(folder))}", highlight=False, soft_wrap=True)


class _Shown(Progress):
    """Runs done, in one bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar, self._runs = bar, bar.add_task("runs", total=None)

    def advanced(self, what: str, done: int, total: int | None) -> None:
        self._bar.update(self._runs, completed=done, total=total)


def _names(given: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",")) if given else ()
