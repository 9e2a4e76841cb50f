"""The confidence of a sample against the truth, and against the consensus of a fresh ensemble. One line a figure.

``python -m tests.benchmarks.confidence [--part choose | sets | speed] [--data FOLDER] [--pools FOLDER] [--figure PNG]``

FOLDERs hold .npz files: of data with ``X`` and ``y``, of pools with ``labels`` (many members) and ``y``. A sample is
*right* if its cluster, matched one to one with the classes, is its class; it is *stable* if the consensus of an
ensemble made anew in the same way puts it in the same cluster, matched one to one. ECE: mean distance of confidence and
share of such samples in ten bins. Figures are means over partitions; AUC is of those that have both kinds of samples.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist
from sklearn import datasets
from sklearn.metrics import roc_auc_score

from cehm_dask import CEHM
from cehm_dask.data.features import as_features
from cehm_dask.engine.sweep import workers
from cehm_dask.members.fit import k_range, plan_members
from cehm_dask.members.generate import label_all, make_labeller
from cehm_dask.method import confidence, counting, kernels
from cehm_dask.rivals import METHODS

Float = NDArray[np.float64]
Labels = NDArray[np.int64]
KNOWN = ("right", "stable")

CHOOSE = {"synthetic": range(40), "blobs": range(16)}
"""Made-up sets that the constants were chosen on …"""
HELD_OUT = {"synthetic": range(40, 80), "blobs": range(16, 32)}
"""… and those that were not looked at before."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Classes, base labels (-1: none) and those of a second ensemble of the same kind."""

    group: str
    name: str
    y: Labels
    labels: Labels
    fresh: Labels
    k: int
    methods: tuple[str, ...] = ("cosine",)


# --- Sets --------------------------------------------------------------------------------------------------------


def synthetic(number: int) -> Ensemble:
    """5 to 20 classes, one up to twice as large as another, 5 to 30 members that are right with probability 0.3 to 0.9.

    Some sets have samples that are hard for all members, and samples that resemble one other class; members are as fine
    as the classes or finer; up to 30 % of the labels are missing.
    """
    rng = np.random.default_rng([77, number])
    n, k, members = 4000, int(rng.integers(5, 21)), int(rng.integers(5, 31))
    ratio, follow = rng.uniform(1, 2), rng.uniform(0.3, 0.9)
    missing, spread = rng.choice([0, 0.1, 0.3]), rng.choice([0, 0, 0.3, 1.0])
    confuse, fine = rng.choice([0, 0.5]), rng.choice([1, 2, 4])
    share = np.geomspace(1, ratio, k)
    y = rng.choice(k, n, p=share / share.sum())
    right = rng.beta(follow / spread, (1 - follow) / spread, n) if spread else np.full(n, follow)
    alike = (y + 1 + rng.integers(0, k - 1, n)) % k
    both = np.empty((2, n, members), np.int64)
    for labels in both:
        for j in range(members):
            width = int(rng.integers(k, max(k + 1, fine * k) + 1))
            wrong = np.where(rng.random(n) < confuse, alike, rng.integers(0, k, n))
            home = np.where(rng.random(n) < right, y, wrong)
            labels[:, j] = home + k * rng.integers(0, (width - 1 - home) // k + 1)
        labels[rng.random((n, members)) < missing] = -1
    methods = ("usenc",) if number % 5 == 4 else ("cosine",)
    return Ensemble("synthetic", f"{number}", y, both[0], both[1], k, methods)


def kmeans(X: Float, k: int, seed: int) -> Labels:
    features = as_features(X)
    with workers(1) as pool:
        labeller, _ = make_labeller(features, plan_members(30, *k_range(k, len(X)), seed), seed, pool)
        return np.asarray(label_all(features, labeller, pool)).astype(np.int64)


def of_features(group: str, name: str, X: Float, y: Labels, methods: tuple[str, ...] = ("cosine",)) -> Ensemble:
    k, spread = len(np.unique(y)), X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return Ensemble(group, name, y, kmeans(X, k, 1), kmeans(X, k, 2), k, methods)


def blobs(number: int) -> Ensemble:
    """3 to 11 round clusters in 2 to 14 dimensions that overlap much or little."""
    rng = np.random.default_rng([9, number])
    k, d, n, apart = (
        int(rng.integers(3, 12)),
        int(rng.integers(2, 15)),
        int(rng.integers(800, 5000)),
        rng.uniform(2, 5.5),
    )
    centres = rng.standard_normal((k, d))
    centres *= apart / np.median(np.sort(pdist(centres))[:k])
    y = rng.choice(k, n, p=rng.dirichlet(np.full(k, 20.0)))
    methods = ("cosine", "wct") if number % 4 == 0 else ("cosine",)
    return of_features("blobs", f"{number}", centres[y] + rng.standard_normal((n, d)), y, methods)


def bundled() -> Iterator[Ensemble]:
    for name in ("iris", "wine", "breast_cancer", "digits"):
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        yield of_features("scikit-learn", name, X, y, ("cosine", "wct", "usenc"))


def of_data(folder: Path) -> Iterator[Ensemble]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            yield of_features("data", path.stem, arrays["X"], np.unique(arrays["y"], return_inverse=True)[1])


def of_pools(folder: Path) -> Iterator[Ensemble]:
    """Thirty members drawn from each pool, twice, and as many others for the fresh ensemble."""
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as arrays:
            labels, y = arrays["labels"].astype(np.int64), np.unique(arrays["y"], return_inverse=True)[1]
        for draw in range(2):
            order = np.random.default_rng(draw).permutation(labels.shape[1])
            m = min(30, len(order) // 2)
            drawn, fresh = labels[:, order[:m]], labels[:, order[m : 2 * m]]
            methods = ("cosine", "usenc") if draw == 0 else ("cosine",)
            yield Ensemble("pools", f"{path.stem} {draw}", y, drawn, fresh, len(np.unique(y)), methods)


# --- Scores ------------------------------------------------------------------------------------------------------


class Case:
    """A consensus of an ensemble, the small tables behind its confidences, and which samples are right and stable."""

    def __init__(self, ensemble: Ensemble, method: str) -> None:
        self.group, self.name = ensemble.group, f"{ensemble.name} {method}"
        k, labels = ensemble.k, ensemble.labels
        found, fresh = consensus(labels, k, method), consensus(ensemble.fresh, k, method)
        self.spoken = found >= 0
        classes = matched(found, ensemble.y)
        self.known = {"right": classes == ensemble.y, "stable": matched(fresh, found) == found}
        self.clusters = found.astype(np.int16)
        self.codes = (labels + 1).astype(np.min_scalar_type(labels.max() + 1))
        widths = labels.max(axis=0) + 2
        self.offsets = np.concatenate(([0], np.cumsum(widths)[:-1])).astype(np.uint64)
        upper = np.zeros((widths.sum(), widths.sum()), np.int32)
        counting.intersections(self.codes, self.offsets, upper)
        table = upper + np.triu(upper, 1).T.astype(np.int64)
        occupied = table.diagonal() > 0
        occupied[self.offsets.astype(np.intp)] = False
        self.slots, self.n_slots = np.flatnonzero(occupied), len(table)
        counts = np.zeros((len(table), k), np.int64)
        for j, offset in enumerate(self.offsets):
            np.add.at(counts, (self.codes[self.spoken, j].astype(int) + int(offset), found[self.spoken]), 1)
        self.counts, self.intersections = counts[self.slots], table[np.ix_(self.slots, self.slots)]
        self.sizes = self.intersections.diagonal()
        self.members = np.repeat(np.arange(labels.shape[1]), widths)[self.slots]
        self.n_members, self.present = labels.shape[1], (labels >= 0).sum(axis=1)
        self.correlation = confidence.correlation(self.intersections, self.counts, self.sizes, self.members)

    def to_slots(self, table: Float) -> Float:
        spread = np.zeros((self.n_slots, table.shape[1]))
        spread[self.slots] = table
        return spread

    def sums(self, table: Float) -> Float:
        """Sum of a table's rows over the labels of each sample."""
        found = np.empty((len(self.codes), table.shape[1]))
        kernels.degrees(self.codes, self.offsets, self.to_slots(table), found)
        return found

    def own(self, table: Float) -> Float:
        return table[np.arange(len(table)), self.clusters.clip(0)]

    def confidence(self, per_label: float | None = None) -> Float:
        quarters = confidence.exponents(self.n_members, self.correlation)
        if per_label is not None:
            kept, confidence.PER_LABEL = confidence.PER_LABEL, per_label
            quarters, confidence.PER_LABEL = confidence.exponents(self.n_members, self.correlation), kept
        gauge = confidence.Gauge(self.to_slots(confidence.evidence(self.counts, self.sizes)), quarters)
        return gauge.read(self.codes, self.offsets, self.clusters)

    def shares(self) -> Float:
        return np.asarray(self.sums(self.counts / self.sizes[:, None]) / np.maximum(self.present, 1)[:, None])

    def lead(self) -> Float:
        """``margin_`` of the variants that lead in shares; 0 where another cluster has the larger share."""
        shares = self.shares() * (self.present / self.n_members)[:, None]
        own = self.own(shares).copy()
        shares[np.arange(len(shares)), self.clusters.clip(0)] = -1.0
        return np.clip(own - shares.max(axis=1), 0.0, 1.0)

    def power(self, exponent: float) -> Float:
        raised = self.shares() ** exponent
        return self.own(raised / np.maximum(raised.sum(axis=1, keepdims=True), 1e-300))

    def bayes(self, temperature: float) -> Float:
        """Posterior of the cluster from labels drawn independently in it, their logarithms divided by a temperature."""
        first = np.flatnonzero(np.diff(self.members, prepend=-1))
        in_cluster = np.add.reduceat(self.counts, first, axis=0)[self.members]
        in_all = np.add.reduceat(self.sizes, first)[self.members]
        likely = (self.counts + (self.sizes / in_all)[:, None]) / (in_cluster + 1)
        size = np.bincount(self.clusters[self.spoken], minlength=self.counts.shape[1])
        score = np.log(np.maximum(size, 0.5) / size.sum()) + self.sums(np.log(likely)) / temperature
        score = np.exp(score - score.max(axis=1, keepdims=True))
        return self.own(score / score.sum(axis=1, keepdims=True))


CANDIDATES: dict[str, Callable[[Case], Float]] = {
    "lead (margin_)": Case.lead,
    "share": lambda case: case.power(1),
    "share, squared": lambda case: case.power(2),
    "share, cubed": lambda case: case.power(3),
    "naive Bayes": lambda case: case.bayes(1),
    "naive Bayes, tempered": lambda case: case.bayes(1 + (case.n_members - 1) * case.correlation),
    "confidence": Case.confidence,
}
DRAWN = {"lead (margin_)": "#999999", "share": "#d98200", "confidence": "#1f5fbf"}


def consensus(labels: Labels, k: int, method: str) -> Labels:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "cosine":
            return np.asarray(CEHM(k, variant="cosine", random_state=0).fit(labels).labels_).astype(np.int64)
        return np.asarray(METHODS[method](labels, k, seed=0)).astype(np.int64)


def matched(found: Labels, other: Labels) -> Labels:
    """Clusters renamed to those of another partition, one to one; -2 where that is not to be had."""
    both = (found >= 0) & (other >= 0)
    table = np.zeros((found.max() + 1, other.max() + 1), np.int64)
    np.add.at(table, (found[both], other[both]), 1)
    rows, columns = linear_sum_assignment(-table)
    names = np.full(len(table), -2)
    names[rows] = columns
    return np.where(found >= 0, names[found], -2)


def scores(found: Float, known: NDArray[np.bool_]) -> tuple[float, float, float]:
    """ECE, Brier score and AUC."""
    bins = np.clip((found * 10).astype(int), 0, 9)
    gaps = np.abs(np.bincount(bins, found - known, 10)) / len(found)
    both = 0 < known.sum() < len(known)
    return gaps.sum(), float(((found - known) ** 2).mean()), float(roc_auc_score(known, found)) if both else np.nan


def cases(ensembles: Iterator[Ensemble]) -> Iterator[Case]:
    for ensemble in ensembles:
        for method in ensemble.methods:
            yield Case(ensemble, method)


def made_up(numbers: dict[str, range]) -> Iterator[Ensemble]:
    yield from map(synthetic, numbers["synthetic"])
    yield from map(blobs, numbers["blobs"])


# --- Parts -------------------------------------------------------------------------------------------------------


def choose() -> None:
    """Brier scores for several exponents a label, on the sets that are there to choose by."""
    exponents = (0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.85, 1.0)
    found: dict[tuple[str, str], list[list[float]]] = {}
    for case in cases(made_up(CHOOSE)):
        tried = [case.confidence(exponent)[case.spoken] for exponent in exponents]
        for what in KNOWN:
            row = [scores(one, case.known[what][case.spoken])[1] for one in tried]
            found.setdefault((case.group, what), []).append(row)
    means = {key: np.mean(rows, axis=0) for key, rows in found.items()}
    for i, exponent in enumerate(exponents):
        parts = ", ".join(f"{group} {what} {mean[i]:.4f}" for (group, what), mean in means.items())
        print(f"choose: {exponent} a label: Brier {parts}, mean {np.mean([mean[i] for mean in means.values()]):.4f}")


def sets(ensembles: Iterator[Ensemble], figure: Path | None) -> None:
    """Scores of all candidates, by group of sets."""
    found: dict[tuple[str, str, str], list[tuple[float, float, float]]] = {}
    curves: dict[tuple[str, str, str], list[NDArray[Any]]] = {}
    for case in cases(ensembles):
        for name, candidate in CANDIDATES.items():
            values = candidate(case)[case.spoken]
            for what in KNOWN:
                known = case.known[what][case.spoken]
                found.setdefault((case.group, what, name), []).append(scores(values, known))
                bins = np.clip((values * 10).astype(int), 0, 9)
                curve = np.stack([np.bincount(bins, weights, 10) for weights in (None, values, known)]) / len(values)
                curves.setdefault((case.group, what, name), []).append(curve)
        values = case.confidence()[case.spoken]
        mean = {what: case.known[what][case.spoken].mean() for what in KNOWN}
        error = {what: found[case.group, what, "confidence"][-1][0] for what in KNOWN}
        known = ", ".join(f"{what} {mean[what]:.3f} (ECE {error[what]:.3f})" for what in KNOWN)
        about = f"correlation {case.correlation:.3f}, mean confidence {values.mean():.3f}"
        print(f"{case.group} {case.name}: {about}, {known}", flush=True)
    for (group, what, name), rows in found.items():
        ece, brier, auc = np.nanmean(rows, axis=0)
        print(f"{group}, {what}: {name}: ECE {ece:.3f}, Brier {brier:.4f}, AUC {auc:.3f} ({len(rows)} partitions)")
    if figure is not None:
        draw({key: np.sum(parts, axis=0) for key, parts in curves.items()}, figure)


def draw(curves: dict[tuple[str, str, str], NDArray[Any]], path: Path) -> None:
    """Share of right and of stable samples against confidence; every partition counts alike."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = list(dict.fromkeys(group for group, _, _ in curves))
    picture = Figure(figsize=(2.5 * len(groups), 5.4), layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots(len(KNOWN), len(groups), squeeze=False, sharex=True, sharey=True)
    for i, what in enumerate(KNOWN):
        for j, group in enumerate(groups):
            axis = axes[i, j]
            axis.plot([0, 1], [0, 1], color="#cccccc", lw=0.8)
            for name, colour in DRAWN.items():
                weight, value, known = curves[group, what, name]
                some = weight > 0.005 * weight.sum()
                x, y, area = value[some] / weight[some], known[some] / weight[some], weight[some] / weight.sum()
                axis.plot(x, y, color=colour, lw=1.2, label=name)
                axis.scatter(x, y, s=6 + 90 * area, color=colour, alpha=0.8, linewidths=0)
            axis.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
            if i == 0:
                axis.set_title(group, fontsize=9)
            if j == 0:
                axis.set_ylabel(f"share of {what} samples", fontsize=8)
            axis.tick_params(labelsize=7)
    axes[0, 0].legend(fontsize=7, loc="lower right", frameon=False)
    picture.supxlabel("what is said of a sample (mean of its bin; the larger the dot, the more samples)", fontsize=8)
    picture.savefig(path, dpi=110)


def speed() -> None:
    """One thread, 10⁶ × 30, k = 10: against a pass of belonging, in turns."""
    rng = np.random.default_rng(0)
    n, members, k = 10**6, 30, 10
    widths = rng.integers(10, 51, members)
    codes = np.stack([rng.integers(width, size=n) for width in widths], axis=1).astype(np.uint8)
    offsets = np.concatenate(([0], np.cumsum(widths)[:-1])).astype(np.uint64)
    counts = rng.integers(1, 100, (widths.sum(), k))
    sizes = counts.sum(axis=1)
    weights, first_column = kernels.side_by_side([counts / sizes[:, None]])
    best, margin = np.empty((1, n), np.int16), np.empty((1, n))
    gauge = confidence.Gauge(confidence.evidence(counts, sizes), confidence.exponents(members, 0.05))
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(10):
        begin = time.perf_counter()
        kernels.belonging(codes, offsets, weights, first_column, best, margin)
        between = time.perf_counter()
        gauge.read(codes, offsets, best[0])
        seconds[0].append(between - begin)
        seconds[1].append(time.perf_counter() - between)
    one, other = min(seconds[0]), min(seconds[1])
    print(f"speed: belonging {one:.3f} s, confidence {other:.3f} s, ratio {other / one:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("choose", "sets", "speed"), action="append")
    parser.add_argument("--data", type=Path, help="folder of .npz files with X and y")
    parser.add_argument("--pools", type=Path, help="folder of .npz files with labels and y")
    parser.add_argument("--figure", type=Path, help="calibration curves, a PNG")
    options = parser.parse_args()
    parts = options.part or ("choose", "sets", "speed")

    def ensembles() -> Iterator[Ensemble]:
        yield from made_up(HELD_OUT)
        yield from bundled()
        if options.data:
            yield from of_data(options.data)
        if options.pools:
            yield from of_pools(options.pools)

    if "choose" in parts:
        choose()
    if "sets" in parts:
        sets(ensembles(), options.figure)
    if "speed" in parts:
        speed()


if __name__ == "__main__":
    main()
