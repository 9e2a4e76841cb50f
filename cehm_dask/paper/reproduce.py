"""The paper's experiments again: its data sets, its protocol, its tables, beside the published numbers.

Beside the other doors. Thirty ensembles of thirty k-means members are drawn for every data set and scaling and kept
as files; every method runs on the same ensembles. Ensembles may also be drawn from pools of members that others made.
Each run is a line in a file of results: what is done is not done again, and an interrupted reproduction goes on where
it stopped. The tables are made from the lines.
"""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cehm_dask import rivals
from cehm_dask.data.features import FeatureWarning, as_features
from cehm_dask.data.files import open_npy, whole, write_whole
from cehm_dask.data.sources import Codes
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError, NotFoundError
from cehm_dask.estimator import CEHM
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import label_all, make_labeller
from cehm_dask.method.params import Params
from cehm_dask.method.solution import ConsensusWarning
from cehm_dask.paper.compare import dunn
from cehm_dask.paper.pools import N_MEMBERS as POOL_MEMBERS
from cehm_dask.paper.pools import Pool, arrays_of, pool_files, read_pool
from cehm_dask.results.export import no_formula

PAPER_SETS = (
    "iris",
    "wine",
    "seeds",
    "heart-hungarian",
    "soybean-train",
    "ecoli",
    "dermatology",
    "low-res-spect",
    "breast-cancer-wisc-diag",
    "energy-y1",
    "oocytes-lbp-riu-gris",
    "semeion",
    "statlog-landsat-test",
    "cardiotocography-3clases",
    "statlog-landsat-train",
    "twonorm",
    "mushroom",
    "statlog-shuttle",
    "pendigits",
    "usps",
)
"""File names, in the order of the paper's tables."""

PUBLISHED_AS = {"energy-y1": "energy", "breast_cancer": "breast-cancer-wisc-diag"}
"""Sets that the paper's table names otherwise; it does not say which of the two targets its "energy" has."""

PLANE_SETS = ("wingnut", "2d2k-standin-sd0.1", "engytime", "flame")
"""Two-dimensional sets, for the figures of the mechanism."""

BUNDLED = ("iris", "wine", "breast_cancer", "digits")
"""Sets that come with scikit-learn, for those who have no others."""

SCALES = ("standard", "minmax")
POOL = "pool"
"""In the place of a scaling: the members are drawn from a pool."""

DRAWS = 10
"""Ensembles drawn from each pool."""

N_MEMBERS = 30
SCORES = ("nmi", "ari")

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"variant": "released", "tries": 1},
    "printed": {"variant": "printed", "tries": 1},
    "released": {"variant": "released"},
    "default": {},
    "plain-10": {"variant": "released", "tries": 1, "restarts": 10},
    "cosine": {"variant": "cosine", "tries": 1},
    "cosine-10": {"variant": "cosine", "tries": 1, "restarts": 10},
}
"""CEHM by the name a table gives it: as the paper has it, in both variants; the authors' program from the best of ten
k-medoids solutions; the default, where candidates compete; and with other settings."""

USUAL = ("plain", "printed", "released", "default")
"""Methods that are run unless others are asked for."""

KNOBS = ("similarity", "belonging", "schedule", "tries", "restarts", "choose", "max_iter")
"""What a result of CEHM depends on beside the ensemble, the number of clusters and the seed, and beside whether
candidates compete and whether clusters are repaired."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Features and true classes of one data set."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[np.int64]

    @property
    def n_clusters(self) -> int:
        return len(np.unique(self.y))

    @cached_property
    def fingerprint(self) -> str:
        """Of what the members depend on: the features and the number of classes."""
        digest = hashlib.blake2b(repr((self.X.shape, self.n_clusters)).encode(), digest_size=4)
        digest.update(np.ascontiguousarray(self.X, np.float64).data)
        return digest.hexdigest()


@lru_cache(maxsize=2)
def load(name: str, data: Path | None) -> Dataset:
    """A data set by name: ``NAME.npz`` with X and y in a folder, or one that comes with scikit-learn."""
    if data is None:
        from sklearn import datasets

        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        return Dataset(name, X, y)
    path = data / f"{name}.npz"
    with arrays_of(path) as arrays:
        if not {"X", "y"} <= set(arrays):
            raise InputError(f"{path} holds {', '.join(sorted(arrays))}: expected X (n × d) and y (n)")
        X, y = arrays["X"], arrays["y"]
    if X.ndim != 2 or y.shape != X.shape[:1]:
        raise InputError(f"{path}: X has shape {X.shape} and y {y.shape}: expected n × d and n")
    return Dataset(name, X, np.unique(y, return_inverse=True)[1])


def available(data: Path | None, wanted: Sequence[str] = ()) -> list[str]:
    """The sets to be run: those wanted, else those of the paper that are there."""
    if data is None:
        there: Sequence[str] = BUNDLED
    elif not data.is_dir():
        raise NotFoundError(f"data {data}: no such folder")
    else:
        there = sorted(path.stem for path in data.glob("*.npz"))
    missing = [name for name in wanted if name not in there]
    if missing:
        where = "with scikit-learn" if data is None else f"in {data}"
        raise InputError(f"sets {', '.join(missing)} are not {where}: there are {', '.join(there) or 'none'}")
    chosen = list(wanted) or [name for name in (BUNDLED if data is None else PAPER_SETS) if name in there]
    if not chosen:
        raise InputError(f"data {data}: none of the paper's sets is there; expected files such as {PAPER_SETS[0]}.npz")
    return chosen


def draw_members(dataset: Dataset, scale: str, ensemble: int) -> Codes:
    """Labels (from 0) of thirty k-means runs, one random start each, k_j uniform in the paper's range."""
    plans = plan_members(N_MEMBERS, *k_range(dataset.n_clusters, len(dataset.X)), ensemble)
    features = as_features(dataset.X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FeatureWarning)  # constant columns are the data set's own
        with workers(1) as pool:
            labeller, _ = make_labeller(features, plans, ensemble, pool, scale=scale, fit_rows=len(dataset.X))
            codes = label_all(features, labeller, pool)
    return codes - codes.dtype.type(1)


def members(dataset: Dataset, scale: str, ensemble: int, folder: Path) -> NDArray[Any]:
    """The members of one ensemble, drawn the first time and read from ``folder`` from then on."""
    path = folder / f"{dataset.name}-{scale}-{dataset.fingerprint}" / f"{ensemble:02d}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        drawn = draw_members(dataset, scale, ensemble)
        with whole(path) as file:
            np.save(file, drawn)
    return np.array(open_npy(path, "members"))


@dataclass(frozen=True)
class Origin:
    """Where ensembles come from: a data set in one scaling, or a pool of members."""

    name: str
    scale: str
    """Or POOL."""
    data: Path | None
    """Folder of the data set or pool."""
    ensembles: int
    n_members: int = N_MEMBERS

    def open(self) -> Dataset | Pool:
        if self.scale == POOL and self.data is not None:
            return load_pool(self.data / f"{self.name}.npz")
        return load(self.name, self.data)

    def fingerprint(self) -> str:
        """Of what the ensembles depend on; lines of results with another one do not count."""
        own = self.open().fingerprint
        return f"{own}-{self.n_members}" if self.scale == POOL else own

    def members(self, ensemble: int, folder: Path) -> NDArray[Any]:
        """Labels of one ensemble; those of a pool are drawn again each time, with the ensemble's number as seed."""
        source = self.open()
        if isinstance(source, Pool):
            return source.draw(self.n_members, ensemble)
        return members(source, self.scale, ensemble, folder)


load_pool = lru_cache(maxsize=2)(read_pool)


def origins_of(
    data: Path | None,
    sets: Sequence[str],
    scales: Sequence[str],
    ensembles: int,
    pools: Path | None,
    draws: int,
    n: int,
) -> list[Origin]:
    """All that ensembles are drawn from; with pools alone, no data sets."""
    found = []
    if pools is None or data is not None or sets:
        found += [Origin(name, scale, data, ensembles) for name in available(data, sets) for scale in scales]
    for path in pool_files(pools) if pools is not None else []:
        load_pool(path).check(n)
        found.append(Origin(path.stem, POOL, pools, draws, n))
    return found


@dataclass(frozen=True)
class Task:
    """One ensemble, and the methods to be run on it."""

    origin: Origin
    ensemble: int
    methods: tuple[str, ...]
    folder: Path


def known_methods() -> list[str]:
    return [*SETTINGS, *rivals.METHODS]


def settings_of(method: str) -> str:
    """What a method's results depend on beside the ensemble; lines of other settings do not count as done."""
    if method in rivals.METHODS:
        return method
    own = Params(2, **SETTINGS[method])
    told = [f"{name}={getattr(own, name)}" for name in KNOBS]
    # Said only where they hold, so that lines made by earlier programs, of the paper's variants, still count.
    told += [name for name in ("portfolio", "repairs") if getattr(own, name)]
    return ", ".join(told)


def run_method(method: str, base: NDArray[Any], n_clusters: int, seed: int) -> tuple[Any, dict[str, Any]]:
    """Labels that a method gives an ensemble, or None where it refuses its size; and what else is worth keeping."""
    begin = perf_counter()
    if method in rivals.METHODS:
        rival = rivals.METHODS[method]
        if rival.largest_n is not None and len(base) > rival.largest_n:
            return None, {}
        return rival(base, n_clusters, seed), {"seconds": perf_counter() - begin}
    model = CEHM(n_clusters, random_state=seed, **SETTINGS[method]).fit(base)
    seconds = perf_counter() - begin
    return model.labels_, {"seconds": seconds, "losses": model.loss_history_.tolist(), "agreement": model.agreement_}


def run_task(task: Task) -> list[dict[str, Any]]:
    """Run the methods on one ensemble; a line of results each."""
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from threadpoolctl import threadpool_limits

    source = task.origin.open()
    place = {"set": task.origin.name, "scale": task.origin.scale, "ensemble": task.ensemble}
    data = task.origin.fingerprint()
    lines = []
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConsensusWarning)
        base = task.origin.members(task.ensemble, task.folder / "members")
        for method in task.methods:
            labels, facts = run_method(method, base, source.n_clusters, task.ensemble)
            if labels is not None:
                both = (source.y >= 0) & (labels >= 0)  # of a pool, classes may be unknown and samples without labels
                classes, clusters = source.y[both], labels[both]
                facts["nmi"] = normalized_mutual_info_score(classes, clusters, average_method="geometric")
                facts["ari"] = adjusted_rand_score(classes, clusters)
            lines.append({**place, "method": method, "settings": settings_of(method), "data": data, **facts})
    return lines


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Lines of results; one cut off by a crash is left out."""
    lines = []
    if path.exists():
        for text in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
    return lines


def asked_for(
    lines: Iterable[dict[str, Any]], prints: Mapping[Origin, str], methods: Sequence[str]
) -> list[dict[str, Any]]:
    """Those lines that are of the origins and methods as they are now; ``prints`` are the origins' fingerprints."""
    settings = {method: settings_of(method) for method in methods}
    known = {(origin.name, origin.scale, own): origin.ensembles for origin, own in prints.items()}
    return [
        line
        for line in lines
        if settings.get(line["method"]) == line["settings"]
        and line["ensemble"] < known.get((line["set"], line["scale"], line["data"]), 0)
    ]


def tasks_of(
    origins: Sequence[Origin], methods: Sequence[str], folder: Path, lines: Iterable[Mapping[str, Any]]
) -> list[Task]:
    """What the lines lack, the first ensembles of all origins before the second."""
    done = {(line["set"], line["scale"], line["ensemble"], line["method"]) for line in lines}
    found = []
    for ensemble in range(max(origin.ensembles for origin in origins)):
        for origin in origins:
            place = (origin.name, origin.scale, ensemble)
            left = tuple(method for method in methods if (*place, method) not in done)
            if left and ensemble < origin.ensembles:
                found.append(Task(origin, ensemble, left, folder))
    return found


def results(tasks: Sequence[Task], workers: int) -> Iterator[list[dict[str, Any]]]:
    """Results of all tasks as they come, from processes side by side; with one worker, from this process."""
    if workers == 1:
        yield from map(run_task, tasks)
        return
    # Fresh processes: a fork would copy the locks of threads that numba and BLAS have started.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        for future in as_completed([pool.submit(run_task, task) for task in tasks]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def reproduce(
    data: Path | None,
    folder: Path,
    *,
    sets: Sequence[str] = (),
    scales: Sequence[str] = SCALES,
    ensembles: int = 30,
    methods: Sequence[str] = USUAL,
    pools: Path | None = None,
    draws: int = DRAWS,
    pool_members: int = POOL_MEMBERS,
    workers: int = 1,
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> pd.DataFrame:
    """Run what is not done yet, and return every line of what was asked for.

    Parameters
    ----------
    data : Path or None
        Folder of ``NAME.npz`` files with X and y; None: the sets that come with scikit-learn.
    folder : Path
        Keeps members and results.
    sets, scales, methods : sequence of str
        Default: all.
    ensembles : int
        Of each set and scaling.
    pools : Path, optional
        Folder of ``NAME.npz`` files with labels (n × members) and y. Given without ``data`` and ``sets``, no sets are
        run beside them.
    draws, pool_members : int
        Ensembles drawn from each pool, and members of each.
    workers : int
        Processes that work side by side; seconds are only worth comparing with one.
    report : callable (runs done, runs in all)
    """
    for name, given, known in (("methods", methods, known_methods()), ("scale", scales, SCALES)):
        wrong = [one for one in given if one not in known]
        if wrong:
            raise InputError(f"{name}={', '.join(wrong)}: expected {', '.join(known)}")
    for name, number in (("ensembles", ensembles), ("draws", draws)):
        if number < 1:
            raise InputError(f"{name}={number}: must be at least 1")
    origins = origins_of(data, sets, scales, ensembles, pools, draws, pool_members)
    prints = {origin: origin.fingerprint() for origin in origins}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "results.jsonl"
    tasks = tasks_of(origins, methods, folder, asked_for(read_lines(path), prints, methods))
    total = sum(origin.ensembles for origin in origins) * len(methods)
    finished = total - sum(len(task.methods) for task in tasks)
    report(finished, total)
    with open(path, "a") as file:
        for lines in results(tasks, workers):
            # Begins with a line break: a line cut off by a crash does not spoil this one.
            file.write("".join(f"\n{json.dumps(line)}" for line in lines))
            file.flush()
            finished += len(lines)
            report(finished, total)
    frame = pd.DataFrame(asked_for(read_lines(path), prints, methods))
    return frame.drop_duplicates(["set", "scale", "ensemble", "method"], keep="last")


def published() -> pd.DataFrame:
    """The paper's two result tables: score, dataset, method, value (missing: out of memory)."""
    return pd.read_csv(Path(__file__).with_name("published.csv"))


def table(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """Means over the ensembles: a row a set in the paper's order, a column a method and scaling; published beside.

    ``better`` is plain CEHM with the scaling that serves the set better, as the paper does not say which it used.
    """
    means = lines.pivot_table(index="set", columns=["method", "scale"], values=score, aggfunc="mean", sort=False)
    paper = published()
    known = paper[(paper["score"] == score.upper()) & (paper["method"] == "CEHM")].set_index("dataset")["value"]
    found = pd.DataFrame(index=by_paper(means.index))
    found["published"] = [known.get(PUBLISHED_AS.get(name, name), np.nan) for name in found.index]
    for method in known_methods():
        if method in means:
            for scale in SCALES:
                if scale in means[method]:
                    found[f"{method} {scale}"] = means[method][scale]
    if "plain" in means:
        found["better"] = found.filter(regex="^plain ").max(axis=1)
        found["difference"] = found["better"] - found["published"]
    return found


def pool_table(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """Means over the draws: a row a pool, a column a method."""
    means = lines.pivot_table(index="set", columns="method", values=score, aggfunc="mean")
    return means[[method for method in known_methods() if method in means]]


def ranking(lines: pd.DataFrame, score: str) -> pd.DataFrame:
    """Methods from the best mean rank on, over the sets and scalings that all of them have done, 1 the best.

    Ranks are those of the means over ensembles that all methods have done, so that all saw the same. Columns: the mean
    score, the mean rank, and p of Dunn's test (Holm's correction) on the ranks against CEHM's default, or against the
    best method where that was not run.
    """
    wide = lines.pivot_table(index=["set", "scale", "ensemble"], columns="method", values=score).dropna()
    means = wide.groupby(level=["set", "scale"]).mean()
    ranks = means.rank(axis=1, ascending=False)
    found = pd.DataFrame({"mean": means.mean(), "rank": ranks.mean()}).sort_values("rank")
    if len(found) > 1 and len(means) > 1:
        against = "default" if "default" in found.index else found.index[0]
        found["p"] = dunn(_as_lines(ranks), "rank")[against].drop(against)
    return found


def _as_lines(ranks: pd.DataFrame) -> pd.DataFrame:
    """Ranks in the form that tests of a comparison take."""
    return ranks.melt(value_name="rank").assign(note=None)


def by_paper(names: Iterable[str]) -> list[str]:
    """Names of sets in the order of the paper's tables, others behind them."""
    return sorted(names, key=lambda name: (PAPER_SETS.index(name) if name in PAPER_SETS else len(PAPER_SETS), name))


def markdown(found: pd.DataFrame, score: str) -> str:
    """A table for people, with the means over all sets last."""
    rows = [f"| set | {' | '.join(found.columns)} |", "|---" * (len(found.columns) + 1) + "|"]
    # A mean over sets that lack one of the columns would not compare.
    for name, values in [*found.iterrows(), (f"mean {score.upper()}", found.mean(skipna=False))]:
        cells = [
            "–" if np.isnan(value) else f"{value:+.4f}" if column == "difference" else f"{value:.4f}"
            for column, value in zip(found.columns, values, strict=True)
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def ranking_markdown(found: pd.DataFrame, score: str) -> str:
    """A ranking for people."""
    rows = [f"| method | mean {score.upper()} | mean rank | p |", "|---|---|---|---|"]
    for name, line in found.iterrows():
        p = line.get("p", np.nan)
        rows.append(f"| {name} | {line['mean']:.4f} | {line['rank']:.2f} | {'–' if np.isnan(p) else f'{p:.2g}'} |")
    return "\n".join(rows) + "\n"


def write_tables(lines: pd.DataFrame, folder: Path) -> list[str]:
    """Write tables and rankings of the methods as CSV and Markdown, those of pools apart; the tables' texts."""
    texts = []
    pooled = lines["scale"] == POOL
    for own, ending, table_of in ((lines[~pooled], "", table), (lines[pooled], "_pools", pool_table)):
        for score in SCORES if len(own) else ():
            found, ranks = table_of(own, score), ranking(own, score)
            texts.append(markdown(found, score))
            contents = {
                f"table_{score}{ending}.csv": found.rename(index=no_formula).to_csv(index_label="set"),
                f"table_{score}{ending}.md": texts[-1],
                f"ranks_{score}{ending}.csv": ranks.to_csv(index_label="method"),
                f"ranks_{score}{ending}.md": ranking_markdown(ranks, score),
            }
            for name, content in contents.items():
                write_whole(str(folder / name), content.encode())
    return texts
