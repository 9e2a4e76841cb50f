"""Labels and margins → a file people and other programs open: .npy, .csv or .parquet.

Beside the report, after the consensus. Nothing is overwritten unless asked, and a file appears whole or not at all.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SUFFIXES = (".npy", ".csv", ".parquet")


def check_path(path: Path, *, overwrite: bool) -> None:
    """Refuse, before any work, a place the result could not be written to."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"output {path}: expected a name that ends in {', '.join(SUFFIXES)}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"output {path} exists: choose another name, or pass --overwrite")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"output {path}: the folder {path.parent} does not exist")


def write(path: Path, labels: NDArray[Any], margin: NDArray[Any]) -> None:
    """Write labels (.npy) or labels and margins (.csv, .parquet), then put the file in place."""
    half = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.suffix == ".npy":
            with half.open("wb") as file:
                np.save(file, labels, allow_pickle=False)
        else:
            import pandas as pd

            table = pd.DataFrame({"label": labels, "margin": margin})
            table.to_csv(half, index=False) if path.suffix == ".csv" else table.to_parquet(half, index=False)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)
