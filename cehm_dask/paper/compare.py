"""CEHM and its rivals side by side, on one ensemble or on several of the same data.

Above the estimator and the rivals, below the command. Every method runs in a process of its own, one after the other,
so that its peak is its own and times can be compared: this module run as a program is that process
(``python -m cehm_dask.paper.compare``, an order as JSON in, a line of JSON an ensemble on stdout).
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import IO, Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cehm_dask.data.features import as_features
from cehm_dask.data.labels import Labels, as_labels
from cehm_dask.data.sources import ArraySource
from cehm_dask.errors import BUG, InputError, MissingExtraError, exit_code_of, sentence_of
from cehm_dask.estimator import CEHM
from cehm_dask.job import Where
from cehm_dask.machine import forget_peak, peak_bytes
from cehm_dask.masking import MaskedStream, remember_credentials
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import generate
from cehm_dask.method.agreement import block_nmi, contingency, scores
from cehm_dask.method.params import Params, check_fit
from cehm_dask.paper.pools import Pool
from cehm_dask.progress import NO_PROGRESS, Progress
from cehm_dask.rivals import METHODS

CEHM_SETTINGS: dict[str, dict[str, Any]] = {
    "cehm": {},
    "cehm_released": {"variant": "released"},
    "cehm_plain": {"variant": "released", "tries": 1},
}
"""CEHM's default, where candidates compete; the authors' program from the best of ten k-medoids solutions; and that
program to the letter, with one solution."""

TITLES = {"cehm": "CEHM", "cehm_released": "CEHM, released", "cehm_plain": "CEHM, plain"} | {
    name: method.title for name, method in METHODS.items()
}
SCORES = ("nmi", "ari", "accuracy")
"""Against known classes."""

MEMBERS = 30
QUICK_SAMPLES = 2000
"""Up to this many samples all methods run unless told otherwise; beyond, those that are linear in n."""

FEWEST_TO_TEST = 3
"""Ensembles from which the methods' scores are tested for differences."""

WARM_ROWS = 200
STEP_ROWS = 1 << 20


def chosen(wanted: Sequence[str], n_samples: int) -> list[str]:
    """Methods to run: those wanted, else CEHM and what is quick for so many samples."""
    if list(wanted) == ["all"]:
        return list(TITLES)
    unknown = [name for name in wanted if name not in TITLES]
    if unknown:
        raise InputError(f"methods {', '.join(unknown)}: expected names out of {', '.join(TITLES)}, or all")
    quick = [name for name, method in METHODS.items() if method.largest_n is None or n_samples <= QUICK_SAMPLES]
    return list(dict.fromkeys(wanted)) or [*CEHM_SETTINGS, *quick]


def draw_ensembles(features: Any, n_clusters: int, count: int, seed: int, folder: Path) -> list[str]:
    """Ensembles of thirty k-means members each, k_j drawn as in the paper, standardised features."""
    rows = as_features(features)
    check_fit(Params(n_clusters), rows.n_samples)
    urls = []
    for number in range(count):
        own = int(np.random.default_rng([seed, number]).integers(2**31))
        urls.append(str(folder / f"{number:03d}.zarr"))
        generate(rows, urls[-1], plan_members(MEMBERS, *k_range(n_clusters, rows.n_samples), own), own)
    return urls


def draw_from_pool(pool: Pool, n_members: int, count: int, seed: int, folder: Path) -> list[str]:
    """Ensembles of some members of a pool each, drawn at random."""
    urls = []
    for number in range(count):
        own = int(np.random.default_rng([seed, number]).integers(2**31))
        urls.append(str(folder / f"{number:03d}.npy"))
        np.save(urls[-1], pool.draw(n_members, own))
    return urls


def compare(
    ensembles: Sequence[str],
    n_clusters: int,
    methods: Sequence[str],
    folder: Path,
    *,
    seed: int = 0,
    memory: str | None = None,
    truth: NDArray[np.int64] | None = None,
    progress: Progress = NO_PROGRESS,
) -> pd.DataFrame:
    """Run methods on ensembles and score them.

    Parameters
    ----------
    ensembles : sequence of paths or URLs
        Of base labels in any form that is a file or a store, all of the same samples.
    methods : sequence of names
    folder : Path
        Gets the labels: METHOD-ENSEMBLE.npy.
    truth : (n_samples,) int64, optional
        Classes, -1 where not known.

    Returns
    -------
    DataFrame
        One line per method and ensemble: seconds (of the method alone, labels open, code loaded), peak (resident bytes
        of its process), clusters, agreement (mean NMI with the members), nmi, ari, accuracy, and where a method did not
        run, a note that says why.
    """
    known = [as_labels(url) for url in ensembles]
    lines: list[dict[str, Any]] = []
    for name in methods:
        for number, answer in enumerate(_answers(name, ensembles, n_clusters, seed, memory, folder, progress)):
            line = {"method": name, "title": TITLES[name], "ensemble": number, **answer}
            if "note" not in answer:
                found = np.load(folder / f"{name}-{number:03d}.npy", allow_pickle=False)
                line |= {"clusters": len(np.unique(found[found >= 0])), "agreement": mean_nmi(found, known[number])}
                if truth is not None:
                    of = scores(contingency(found, truth))
                    line |= {score: of[score] for score in SCORES}
            lines.append(line)
    columns = ["method", "title", "ensemble", *SCORES, "agreement", "clusters", "seconds", "peak", "note"]
    return pd.DataFrame(lines).reindex(columns=columns)


def mean_nmi(found: NDArray[np.int16], labels: Labels) -> float:
    """Mean NMI of a clustering with the members, each over the samples it speaks of; blocks of rows at a time."""
    first = labels.offsets.astype(np.int64)
    width = int(found.max(initial=0)) + 1
    table = np.zeros((labels.n_slots, width), np.int64)
    for start in range(0, labels.n_samples, STEP_ROWS):
        codes = labels.read(start, min(start + STEP_ROWS, labels.n_samples))
        part = found[start : start + len(codes)].astype(np.int64)
        for j, own in enumerate(labels.widths):
            member = codes[:, j].astype(np.int64) - int(labels.silent)
            rows = slice(int(first[j]) + int(labels.silent), int(first[j]) + own)
            table[rows] += contingency(part, member, (width, own - int(labels.silent))).T
    members = np.repeat(np.arange(labels.n_members), labels.widths)
    return float(block_nmi(table, members, np.zeros(width, np.intp)).mean())


def _answers(
    name: str, urls: Sequence[str], n_clusters: int, seed: int, memory: str | None, folder: Path, progress: Progress
) -> Iterator[dict[str, Any]]:
    """What the process of one method says of each ensemble; the rest of its ensembles are not tried after a note."""
    order = {"method": name, "ensembles": list(urls), "k": n_clusters, "seed": seed, "memory": memory}
    command = [sys.executable, "-m", "cehm_dask.paper.compare", json.dumps({**order, "folder": str(folder)})]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    answers = cast("IO[str]", process.stdout)
    try:
        for number in range(len(urls)):
            progress.advanced(TITLES[name], number, len(urls))
            said = answers.readline()
            answer = json.loads(said) if said else {"note": f"its process ended with {process.wait()}"}
            yield answer
            if "note" in answer:
                return
    finally:
        process.kill()
        process.wait()
        answers.close()


def work(order: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run one method on the ensembles of an order; what is said of each."""
    for number, url in enumerate(order["ensembles"]):
        try:
            labels = as_labels(url)
            if number == 0:
                with suppress(ValueError):  # so few rows may not do for a method; its code is loaded all the same
                    _consensus(order["method"], _few(labels), 2, 0, None)
            forget_peak()
            begin = perf_counter()
            found = _consensus(order["method"], labels, order["k"], order["seed"] + number, order["memory"])
            answer = {"seconds": perf_counter() - begin, "peak": peak_bytes()}
            np.save(Path(order["folder"]) / f"{order['method']}-{number:03d}.npy", found)
        except (ValueError, ImportError, OSError, MemoryError) as error:
            yield {"note": sentence_of(error) if exit_code_of(error) != BUG else str(error)}
            return
        yield answer


def _few(labels: Labels) -> Labels:
    codes = labels.read(0, min(WARM_ROWS, labels.n_samples))
    return replace(
        labels, source=ArraySource(codes), n_samples=len(codes), read_rows=None, align_rows=1, fingerprint=""
    )


def _consensus(name: str, labels: Labels, n_clusters: int, seed: int, memory: str | None) -> NDArray[np.int16]:
    if name in METHODS:
        return METHODS[name](labels, n_clusters, seed, Where(memory=memory))
    model = CEHM(n_clusters, random_state=seed, **CEHM_SETTINGS[name])
    return np.asarray(model.fit(labels, memory=memory).labels_)


def summary(lines: pd.DataFrame) -> pd.DataFrame:
    """One line per method, the best first: means over the ensembles, spread of the NMI, mean rank, most memory."""
    score = "nmi" if lines["nmi"].notna().any() else "agreement"
    done = lines[lines["note"].isna()]
    by_method = done.groupby("method", sort=False)
    table = by_method[[*SCORES, "agreement", "clusters", "seconds"]].mean()
    table.insert(0, "title", by_method["title"].first())
    table.insert(2, "sd", by_method[score].std())
    ranks = done.pivot_table(index="ensemble", columns="method", values=score).rank(axis=1, ascending=False)
    table["rank"] = ranks.mean()
    table["peak"] = by_method["peak"].max()
    return table.sort_values(score, ascending=False)


def testable(lines: pd.DataFrame) -> bool:
    """Whether there are methods to tell apart and ensembles enough to do it."""
    done = lines[lines["note"].isna()]
    return bool(done["method"].nunique() > 1 and done["ensemble"].nunique() >= FEWEST_TO_TEST)


def kruskal_wallis(lines: pd.DataFrame, score: str) -> float:
    """p of the hypothesis that all methods score alike (Kruskal and Wallis)."""
    from scipy.stats import kruskal

    groups = _groups(lines, score)
    return 1.0 if _all_alike(groups) else float(kruskal(*groups.values()).pvalue)


def dunn(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """p of the hypothesis that two methods score alike, for every two (Dunn's test, Holm's correction)."""
    groups = _groups(lines, score)
    if _all_alike(groups):
        table = np.ones((len(groups), len(groups)))
    else:
        table = posthocs().posthoc_dunn(list(groups.values()), p_adjust="holm").to_numpy()
    return pd.DataFrame(table, list(groups), list(groups))


def posthocs() -> Any:
    """The library with Dunn's test, or a word on how to get it."""
    try:
        import scikit_posthocs
    except ImportError as error:
        raise MissingExtraError("Dunn's test needs an extra package: pip install 'cehm-dask[compare]'") from error
    return scikit_posthocs


Groups = dict[str, NDArray[np.float64]]


def _groups(lines: pd.DataFrame, score: str) -> Groups:
    """Scores of each method that ran."""
    done = lines[lines["note"].isna()]
    return {str(name): group[score].to_numpy() for name, group in done.groupby("method", sort=False)}


def _all_alike(groups: Groups) -> bool:
    """Whether all scores are one number: then there are no ranks to test."""
    return len(np.unique(np.concatenate(list(groups.values())))) < 2


if __name__ == "__main__":
    remember_credentials(os.environ, sys.argv)
    sys.stderr = MaskedStream(sys.stderr)  # stdout is for the parent, which masks what it shows
    warnings.simplefilter("ignore")  # a method's own words on its result would interrupt the table
    for _answer in work(json.loads(sys.argv[1])):
        print(json.dumps(_answer), flush=True)
