"""The paper's experiments again: its protocol, on its data sets and on pools of members.

Beside the other doors. Thirty ensembles of thirty k-means members are drawn for every data set and scaling and kept
as files; every method runs on the same ensembles. Ensembles may also be drawn from pools of members that others made.
Each run is a line in a file of results: what is done is not done again, and an interrupted reproduction goes on where
it stopped. ``tables`` are made from the lines.
"""

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from cehm_dask import rivals
from cehm_dask.errors import InputError
from cehm_dask.estimator import CEHM
from cehm_dask.method.params import Params
from cehm_dask.method.solution import ConsensusWarning
from cehm_dask.paper.pools import N_MEMBERS as POOL_MEMBERS
from cehm_dask.paper.sets import SCALES, Origin, origins_of
from cehm_dask.progress import NO_PROGRESS, Progress

DRAWS = 10
"""Ensembles drawn from each pool."""

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
        for text in path.read_text(encoding="utf-8").splitlines():
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
    progress: Progress = NO_PROGRESS,
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
    progress : Progress
        Gets the runs done.
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
    progress.advanced("runs", finished, total)
    with open(path, "a", encoding="utf-8") as file:
        for lines in results(tasks, workers):
            # Begins with a line break: a line cut off by a crash does not spoil this one.
            file.write("".join(f"\n{json.dumps(line)}" for line in lines))
            file.flush()
            finished += len(lines)
            progress.advanced("runs", finished, total)
    frame = pd.DataFrame(asked_for(read_lines(path), prints, methods))
    return frame.drop_duplicates(["set", "scale", "ensemble", "method"], keep="last")
