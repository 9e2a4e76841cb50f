"""``cehm report``: a finished consensus as one page."""

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from cehm_dask.cli.explain import Terminal, explained
from cehm_dask.errors import InputError


@click.command()
@click.argument("consensus")
@click.option("-o", "--output", default="report.html", show_default=True, help="The page.")
@click.option("--ensemble", help="The ensemble it was made of: algorithms, runners-up, a picture.")
@click.option("--features", help="Features for the picture: .npy, .csv, .parquet or a Zarr array.")
@click.option("--coordinates", help="Two coordinates per sample for the picture, instead of features.")
@click.option("--truth", help="Known classes: .npy, .csv, .parquet or a Zarr array; -1 or empty where not known.")
@click.option("--truth-column", help="Column with the classes, in a table with several.")
@click.option("--ids", help="What the samples are called: .npy, or a .csv or .parquet table.")
@click.option("--id-column", help="Column with the ids, in a table.")
@click.option("--title", help="Heading of the page.")
@click.option("--memory", help="Memory the command may take in all, such as 2GiB.  [default: a share of what is free]")
@click.option(
    "--png", "png", metavar="FOLDER", help="Also write the figures as .png files; needs Chromium on the PATH."
)
@click.option("--pdf", is_flag=True, help="Also write the page as .pdf beside it; needs Chromium on the PATH.")
@click.option("--overwrite", is_flag=True, help="Replace existing files.")
@explained
def report(
    consensus: str,
    output: str,
    truth: str | None,
    truth_column: str | None,
    ensemble: str | None,
    ids: str | None,
    id_column: str | None,
    memory: str | None,
    png: str | None,
    pdf: bool,
    overwrite: bool,
    **given: Any,
) -> None:
    """Write one HTML page about a finished consensus.zarr: clusters, confidence, rounds, members, choice of k.

    The page is one file that needs no network, light or dark, readable on a phone and without scripts.

    \b
    Examples:
      cehm report consensus.zarr
      cehm report consensus.zarr --ensemble ensemble.zarr --features features.npy --truth classes.npy -o iris.html
      cehm report consensus.zarr --ids people.csv --id-column name --pdf --png figures
    """
    from cehm_dask.report import browser, check_target
    from cehm_dask.report.page import compose
    from cehm_dask.results.scoring import evaluate

    page_path = check_target(output, overwrite=overwrite)
    pdf_path = check_target(page_path.with_suffix(".pdf"), overwrite=overwrite) if pdf else None
    if png is not None:
        browser.check_folder(Path(png), overwrite=overwrite)
    if pdf or png is not None:
        browser.find()
    scores = None
    if truth is not None:
        scores = evaluate(consensus, truth, ensemble=ensemble, column=truth_column, memory=memory)
    row_ids = _row_ids(ids, id_column) if ids is not None else None
    page = compose(consensus, ensemble=ensemble, scores=scores, row_ids=row_ids, memory=memory, **given)
    written = [page.write(page_path)]
    if pdf_path is not None:
        written.append(browser.write_pdf(page_path, pdf_path))
    if png is not None:
        written += browser.write_pngs(page.figures, Path(png))
    console = Terminal(stderr=True)
    for path in written:
        console.print(f"written: {escape(str(path))}", highlight=False, soft_wrap=True)


def _row_ids(path: str, column: str | None) -> Any:
    if path.endswith(".npy"):
        from cehm_dask.data.files import open_npy

        ids = open_npy(path, "ids")
        if ids.ndim != 1:
            raise InputError(f"ids {path} has shape {ids.shape}: expected one id per sample")
        return ids
    from cehm_dask.results.export import column_ids

    if column is None:
        raise InputError(f"ids {path}: a table; name the column that holds them with --id-column")
    return column_ids(path, column)
