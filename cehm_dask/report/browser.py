"""The page as a PDF, and its figures as PNGs: printed by a Chromium that is on the machine.

Beside the page. The page's own figures are photographed, so nothing is drawn twice; a browser is the one program that
draws them as the reader sees them.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from cehm_dask.data.files import write_whole
from cehm_dask.errors import ExistsError, NotFoundError, StorageError
from cehm_dask.masking import masked
from cehm_dask.report.page import Figure, alone
from cehm_dask.wording import option

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SCALE = 3
"""Pixels per unit of a figure: 1080 across."""
SECONDS = 120


def find() -> str:
    """Path of a Chromium, or an error that says what to do."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise NotFoundError(
        f"no browser to print with: none of {', '.join(NAMES)} is on the PATH; install Chromium, or open the page in "
        "any browser and print it from there"
    )


def check_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a folder whose pictures would be lost."""
    if folder.exists() and not folder.is_dir():
        raise ExistsError(f"figures {folder}: a file of that name exists; give a folder")
    if folder.is_dir() and any(folder.glob("*.png")) and not overwrite:
        raise ExistsError(f"figures {folder} holds .png files: choose another folder, or pass {option('overwrite')}")


def write_pdf(page: Path, target: Path) -> Path:
    """Print a page, in light colours."""
    _run(page, target, "--print-to-pdf", "--no-pdf-header-footer")
    return target


def write_pngs(figures: Mapping[str, Figure], folder: Path) -> list[Path]:
    """Photograph each figure into a folder."""
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name, figure in figures.items():
            page, target = Path(scratch) / f"{name}.html", folder / f"{name}.png"
            page.write_text(alone(figure), encoding="utf-8")
            size = f"--window-size={figure.width},{figure.height}"
            _run(page, target, "--screenshot", size, f"--force-device-scale-factor={SCALE}")
            written.append(target)
    return written


def _run(page: Path, target: Path, act: str, *options: str) -> None:
    # Chromium's own sandbox does not work for root; the page is ours and forbids all but its own script.
    sandbox = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []  # Windows has no such user
    with tempfile.TemporaryDirectory() as profile:
        made = Path(profile) / f"made{target.suffix}"
        command = [
            find(),
            *("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions"),
            *("--disable-background-networking", *sandbox),
            f"--user-data-dir={profile}",
            f"{act}={made}",
            *options,
            page.resolve().as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode or not made.is_file():
            words = masked(done.stderr).strip()[-500:] or "without a message"
            raise StorageError(f"{command[0]} could not make {target}: {words}")
        write_whole(str(target), made.read_bytes())
