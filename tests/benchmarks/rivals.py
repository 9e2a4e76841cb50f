"""Figures of the rivals, one line each: ``python -m tests.benchmarks.rivals --folder FOLDER [PART …]``.

Blobs in ten dimensions, ten equal centres, spread 5; 30 k-means members of 10 to 50 clusters each. Every method runs in
a process of its own, all threads, code loaded and labels open before the clock starts; of methods that are linear in n,
the least seconds of five seeds count. The peak is that process's resident memory, libraries and labels included. Parts
are the numbers of samples, so that they can be run one by one; seconds are added to FOLDER/times.csv, from which part
``figure`` draws and prints the table.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import make_blobs

from cehm_dask.data.features import as_features
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import generate
from cehm_dask.method.agreement import contingency, scores
from cehm_dask.paper import compare
from cehm_dask.paper.figures import figure_of
from cehm_dask.rivals import METHODS

K = 10
SIZES = {"2000": 2_000, "10000": 10_000, "100000": 100_000, "1000000": 1_000_000}
BAR = {"seconds": 50.0, "peak": 1.9e9, "nmi": 0.8156}
"""U-SENC's consensus at 10⁶, the authors' program under Octave (NMI arithmetic, on members of its own)."""

TURNS = 5
COLOURS = 10
"""Before they come again."""

TOO_SLOW = {"ec_cms": 2_000, "pta": 2_000, "ptgp": 2_000, "drec": 2_000, "cspa": 10_000}
"""Largest part that is run; beyond, minutes to hours."""


def blobs(n: int, folder: Path) -> tuple[str, np.ndarray]:
    """An ensemble of n samples, made the first time, and the true blobs."""
    features, truth = make_blobs(n, 10, centers=K, cluster_std=5.0, random_state=7)
    url = folder / f"blobs-{n}.zarr"
    if not url.exists():
        generate(as_features(features), str(url), plan_members(30, *k_range(K, n), 0), 0, scale="none")
    return str(url), truth.astype(np.int64)


def measure(n: int, folder: Path, wanted: list[str]) -> None:
    url, truth = blobs(n, folder)
    methods = [
        name
        for name in compare.chosen(wanted or ["all"], n)
        if n <= TOO_SLOW.get(name, n) and (name not in METHODS or n <= (METHODS[name].largest_n or n))
    ]
    for name in methods:
        turns = 1 if name in METHODS and METHODS[name].largest_n else TURNS
        lines = compare.compare([url] * turns, K, [name], folder, truth=truth)
        line = {**lines.iloc[0], "seconds": lines["seconds"].min(), "peak": lines["peak"].max()}
        if isinstance(line["note"], str):
            print(f"{line['title']}, {n:,} × 30: {line['note']}", flush=True)
            continue
        found = scores(contingency(np.load(folder / f"{name}-000.npy"), truth))
        facts = f"{line['seconds']:.2f} s, peak {line['peak'] / 1e6:,.0f} MB"
        facts += f", NMI (arithmetic) {found['nmi_arithmetic']:.4f}, ARI {found['ari']:.4f}"
        print(f"{line['title']}, {n:,} × 30: {facts}", flush=True)
        if name == "usenc" and n == 10**6:
            print(f"  bars: {BAR['seconds']:g} s, {BAR['peak'] / 1e6:,.0f} MB, NMI {BAR['nmi']} ± 0.01")
        path = folder / "times.csv"
        pd.DataFrame([{"n": n, **line}]).to_csv(path, mode="a", header=not path.exists(), index=False)


def figure(folder: Path) -> None:
    lines = pd.read_csv(folder / "times.csv").drop_duplicates(["n", "method"], keep="last")
    table = lines.pivot_table(index="title", columns="n", values="seconds")
    table = table.loc[sorted(table.index, key=lambda title: (not title.startswith("CEHM"), title))]
    print("| seconds | " + " | ".join(f"{n:,}" for n in table) + " |\n|---" + "|---" * len(table.columns) + "|")
    for title, row in table.iterrows():
        print(f"| {title} | " + " | ".join("" if pd.isna(s) else f"{s:.2f}" for s in row) + " |")
    drawn, axes = figure_of(1, 1, 7.0, 4.4)
    axis = axes[0, 0]
    for number, (title, row) in enumerate(table.iterrows()):
        own = str(title).startswith("CEHM")
        style = {"ls": "-" if number < COLOURS else "--", "marker": "o" if number < COLOURS else "s", "ms": 3}
        axis.plot(row.index, row, lw=2.2 if own else 1, zorder=3 if own else 2, label=str(title), **style)
    axis.set(xscale="log", yscale="log", xlabel="samples", ylabel="seconds")
    axis.legend(fontsize=7, ncols=2)
    axis.grid(lw=0.3)
    drawn.savefig(folder / "times.png", dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--methods", default="", help="names, with commas between; default: all")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(SIZES)}, figure; default: all")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for part in given.parts or [*SIZES, "figure"]:
        if part == "figure":
            figure(given.folder)
        else:
            measure(SIZES[part], given.folder, [name for name in given.methods.split(",") if name])
