"""``cehm history``: runs over time."""

from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from cehm_dask.cli.explain import Terminal, echo_masked, echo_values, explained


@click.command()
@click.argument("runs", nargs=-1, required=True)
@click.option("-o", "--output", help="Also write one HTML page.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON instead of the table: a record for every run.")
@click.option("--metrics", is_flag=True, help="OpenMetrics text of the newest run instead of the table.")
@click.option("--overwrite", is_flag=True, help="Replace an existing page.")
@explained
def history(runs: tuple[str, ...], output: str | None, as_json: bool, metrics: bool, overwrite: bool) -> None:
    """Show runs over time: clusters and their sizes, agreement, drift, seconds, alerts.

    RUNS are run directories, folders of them, or patterns in quotes. No data are read, only what the runs noted.

    \b
    Examples:
      cehm history runs
      cehm history 'runs/2026-11-*' -o history.html --overwrite
      cehm history runs --metrics > cehm.prom
    """
    from cehm_dask.data.files import write_whole
    from cehm_dask.pipeline import history as histories
    from cehm_dask.report import check_target
    from cehm_dask.report.history import history_page

    if as_json and metrics:
        raise click.UsageError("expected one of --json and --metrics")
    target = None if output is None else check_target(output, overwrite=overwrite)
    days = histories.read_days(runs)
    if target is not None:
        write_whole(str(target), history_page([day.to_dict() for day in days]).encode())
        Terminal(stderr=True).print(f"written: {escape(str(target))}", highlight=False, soft_wrap=True)
    if as_json:
        echo_values([day.to_dict() for day in days])
    elif metrics:
        echo_masked(histories.metrics(days))
    else:
        console = Terminal()
        console.print(_table(days, console.width))
        for day in days:
            told = [*day.changes, *(f"alert: {alert}" for alert in day.alerts)]
            if day.state != "finished":
                told.append(day.state)
            for line in told:
                console.print(escape(f"{_called(day)}: {line}"), highlight=False, soft_wrap=True)


def _called(day: Any) -> str:
    return str(day.date or day.run.rsplit("/", 1)[-1])


def _table(days: Any, width: int) -> Table:
    from cehm_dask.profiles.words import percent
    from cehm_dask.report.words import shortened

    names = ("run", "k", "samples", "agreement", "moved", "seconds", "alerts")
    rows = [
        (
            _called(day),
            "" if day.k is None else str(day.k),
            "" if day.n_samples is None else f"{day.n_samples:,}",
            "" if day.agreement is None else f"{day.agreement:.3f}",
            "" if day.moved is None else percent(day.moved),
            f"{day.seconds:.1f}",
            str(len(day.alerts) or ""),
        )
        for day in days
    ]
    table = Table(*names, "cluster: samples", box=None, header_style="bold", pad_edge=False)
    for column in table.columns[1:-1]:
        column.justify = "right"
    # Of a narrow terminal, the sizes are cut off and nothing else.
    room = max(16, width - sum(2 + max(map(len, cells)) for cells in zip(names, *rows, strict=True)))
    for day, row in zip(days, rows, strict=True):
        sizes = sorted(day.sizes.items(), key=lambda item: -item[1])
        table.add_row(*map(escape, row), shortened(", ".join(f"{name}: {n:,}" for name, n in sizes), room))
    return table
