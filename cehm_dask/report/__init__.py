"""consensus.zarr → one page: what was run, what came out, and how far to trust it.

May import ``results`` and all below. Start at ``page``, which puts everything into one file (with page.html, page.css,
page.js): ``findings`` reads the numbers, ``picture`` and ``neighbours`` place samples in the plane, ``figures``,
``points`` and ``maps`` (with ``heatmaps``) draw, ``sections``, ``who``, ``flow`` and ``course`` write the text.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cehm_dask.errors import ExistsError, NotFoundError
from cehm_dask.profiles.profile import Profile
from cehm_dask.report.page import compose
from cehm_dask.wording import option

HEAD_BYTES = 4096
"""Where a page says what made it."""


def write_report(
    consensus: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    ensemble: Any = None,
    features: Any = None,
    coordinates: Any = None,
    truth: Any = None,
    row_ids: Any = None,
    scores: Mapping[str, Any] | None = None,
    profile: Profile | None = None,
    matching: Mapping[str, Any] | None = None,
    title: str | None = None,
    memory: str | int | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the report of a finished consensus.zarr as one HTML file.

    Parameters
    ----------
    consensus : path or URL of a consensus.zarr
    path : path of the page
    ensemble : path or URL of the ensemble.zarr, or base labels in another form, optional
        For the members' algorithms, runners-up, and a picture where neither features nor coordinates are given.
    features, coordinates : array, path or URL, optional
        For the picture: n × d, drawn by their main axes, or n × 2, drawn as they are.
    truth : array or path, optional
        Known classes, as :func:`cehm_dask.results.scoring.evaluate` takes them.
    row_ids : array, series, or blocks of them, optional
        What the samples are called.
    scores : mapping, optional
        What ``evaluate`` found before; the truth is then not needed.
    profile : Profile, optional
        Who the clusters are; default: described by the features, in a pass of its own.
    matching : mapping, optional
        What matching.json of a run directory holds: names of the clusters, and what became of those of an earlier run.
        The profile must have the same names.
    title : str, optional
    memory : int or str, optional
        Bytes this process may take in all, such as "2GiB"; default: a share of what is free.
    overwrite : bool
        Replace an existing file.

    Returns
    -------
    Path
        Of the page; under 5 MB whatever n is.
    """
    target = check_target(path, overwrite=overwrite)
    page = compose(
        consensus,
        ensemble=ensemble,
        features=features,
        coordinates=coordinates,
        truth=truth,
        row_ids=row_ids,
        scores=scores,
        profile=profile,
        matching=matching,
        title=title,
        memory=memory,
    )
    return page.write(target)


def is_page(path: Path) -> bool:
    """Whether a file is a page that this program wrote, by what it says of its generator."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'<meta name="generator" content="cehm_dask ' in file.read(HEAD_BYTES)


def check_target(path: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Refuse, before any work, a place the page could not be written to."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"report {target} is a folder: give a file name, such as {target / 'report.html'}")
    if target.exists() and not overwrite:
        raise ExistsError(f"report {target} exists: choose another name, or pass {option('overwrite')}")
    if target.suffix != ".pdf" and target.exists() and not is_page(target):
        raise ExistsError(f"report {target} exists and is no page that this program wrote: choose another name")
    if not target.parent.is_dir():
        raise NotFoundError(f"report {target}: the folder {target.parent} does not exist")
    return target
