"""Where the paper's ensembles come from: its data sets, or pools of members, and the members drawn of them.

Below the reproduction, which runs the methods on them. Members of a data set are drawn once for every scaling and
kept as files; those of a pool are drawn again each time.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.features import as_features
from cehm_dask.data.files import open_npy, whole
from cehm_dask.data.preparation import FeatureWarning
from cehm_dask.data.sources import Codes
from cehm_dask.engine.sweep import workers
from cehm_dask.errors import InputError, NotFoundError
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import label_all, make_labeller
from cehm_dask.paper.pools import Pool, arrays_of, pool_files, read_pool

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

PLANE_SETS = ("wingnut", "2d2k-standin-sd0.1", "engytime", "flame")
"""Two-dimensional sets, for the figures of the mechanism."""

BUNDLED = ("iris", "wine", "breast_cancer", "digits")
"""Sets that come with scikit-learn, for those who have no others."""

SCALES = ("standard", "minmax")
POOL = "pool"
"""In the place of a scaling: the members are drawn from a pool."""

N_MEMBERS = 30


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
