"""The default answer: a few candidates on rows in memory, and the choice of one from the labels alone.

No single start and belonging is right for every ensemble, so several are taken to the end and compared. They compete on
rows in memory, all or a seeded sample; the one that is kept then runs over all rows: a competition costs no sweep.

A candidate is a start and a belonging. Starts: the k-medoids of the paper, without their overlaps; three spectral
partitions of the rows, which differ in how hyperedges are linked: not at all, by common neighbours, or weighted by how
far the members respect them; and groups of hyperedges that random walks leave alike. Each is adjusted until nothing
moves and repaired until it has k clusters.

The candidate with the largest 2τ + evenness is kept (:mod:`cehm_dask.method.belonging`). Either alone is one-sided: τ
prefers clusters of different sizes, evenness clusters of equal size. Both come from the counts. ``docs/method.md``
tells how the rule was found, and on which ensembles.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from cehm_dask.machine import one_thread
from cehm_dask.method import counting
from cehm_dask.method.agreement import agreement, block_nmi, explained
from cehm_dask.method.belonging import Floats, Int, evenness, tau, weights_of
from cehm_dask.method.competing import Assignment, Rows
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.method.linkage import linked_groups
from cehm_dask.method.medoids import medoids
from cehm_dask.method.params import Params
from cehm_dask.method.points import centres_by_k_means, nearest, unit_points
from cehm_dask.method.spectral import (
    leading_vectors,
    leading_vectors_of_rows,
    likeness_of_walks,
    link,
    local_weights,
    refined,
    symmetrise,
    weighted_connected_triples,
)
from cehm_dask.method.split import Split, best_split, found_in, split_weights

POINTS = 1 << 12
"""Rows that a spectral start looks for centres among; adjustion makes up for what more of them would give."""

BELONGINGS = {
    "medoids": ("cosine", "tau"),
    "spectral": ("cosine",),
    "links": ("cosine", "kmeans"),
    "local": ("cosine",),
    "walks": ("kmeans",),
}
"""Starts and the belongings they are tried with. Spectral: the bipartite graph of samples and hyperedges cut as in
U-SENC; links: the same with hyperedges linked by common neighbours, as in WCT; local: or weighted by how far members
respect them, as in LWGP. Walks: hyperedges grouped by their random walks, which are ECPCS's, and average linkage."""

TAU_WEIGHT = 2.0
"""Of τ against evenness in the choice; anything from 1.5 to 3 serves alike on the ensembles it was looked for on."""


@dataclass(frozen=True)
class Candidate:
    """How a candidate was made and what it came to, on the rows it was tried on."""

    start: str
    belonging: str
    tau: float
    evenness: float
    agreement: float
    """Mean NMI with the members."""
    explained: float
    """Theil's U: the share of the consensus's entropy that a member explains, on average."""
    sizes: tuple[int, ...]
    """Samples of each cluster."""
    repaired: int
    """Clusters that had lost all their samples and got some back."""
    kept: bool = False

    @property
    def score(self) -> float:
        return TAU_WEIGHT * self.tau + self.evenness

    @property
    def name(self) -> str:
        return f"{self.start}, {self.belonging}"

    def facts(self) -> dict[str, Any]:
        """For results, stores and reports."""
        return {**vars(self), "sizes": list(self.sizes), "score": self.score}


@dataclass(frozen=True, eq=False)
class Competition:
    """The candidates of one number of clusters, and what the one kept starts from."""

    candidates: tuple[Candidate, ...]
    belonging: str
    counts: Int
    """Of the kept candidate on the rows that competed, one row per slot."""
    stability: float
    """Mean NMI between candidates."""
    rows: int
    """Rows that competed."""

    @property
    def reason(self) -> str:
        """Why that one, in a line."""
        best, *others = sorted(self.candidates, key=lambda one: -one.score)
        kept = next(one for one in self.candidates if one.kept)
        if not others:
            return f"{kept.name}: the only candidate"
        runner_up = others[0] if best is kept else best
        return (
            f"{kept.name}: largest 2τ + evenness of {len(self.candidates)} candidates "
            f"(2 × {kept.tau:.3f} + {kept.evenness:.3f}; next: {runner_up.name}, "
            f"2 × {runner_up.tau:.3f} + {runner_up.evenness:.3f})"
        )


def compete(rows: Rows, params: Params, seed: int) -> Competition:
    """Take every candidate to the end on the rows, and keep one."""
    k = params.n_clusters
    found: list[tuple[Candidate, Assignment, Int]] = []
    with one_thread():
        for start, belonging, counts in _starts(rows, params, seed):
            assignment, counts, repaired = _adjust(rows, counts, belonging, params.max_iter)
            found.append((_judge(rows, start, belonging, counts, assignment, repaired), assignment, counts))
        stability = _mean_nmi([assignment for _, assignment, _ in found], k)
    best = int(np.argmax([candidate.score for candidate, _, _ in found]))
    kept = tuple(replace(candidate, kept=i == best) for i, (candidate, _, _) in enumerate(found))
    counts = rows.count_slots(found[best][1], k)
    return Competition(kept, kept[best].belonging, counts, stability, len(rows.codes))


def _starts(rows: Rows, params: Params, seed: int) -> Iterator[tuple[str, str, Int]]:
    """Name, belonging and counts of every start, in the order that ties in the choice are broken by."""
    k, edges = params.n_clusters, rows.hyperedges
    if k >= edges.n_hyperedges:
        sets = [np.arange(edges.n_hyperedges)]
    else:
        rng = np.random.default_rng([seed, k])
        sets = medoids(edges, str(params.similarity), k, params.restarts, params.tries, rng)
    for number, chosen in enumerate(sets, 1):
        name = "medoids" if number == 1 else f"medoids {number}"
        counts = rows.count(_without_overlaps(rows, chosen, k), k)
        for belonging in BELONGINGS["medoids"]:
            yield name, belonging, counts
    if 1 < k < min(edges.n_hyperedges, len(rows.codes)):  # else no start differs from another
        for name in ("spectral", "links", "local", "walks"):
            found = _walks(rows, k) if name == "walks" else _spectral(rows, name, k, seed)
            counts = rows.count(found, k)
            for belonging in BELONGINGS[name]:
                yield name, belonging, counts


def _without_overlaps(rows: Rows, chosen: NDArray[np.intp], k: int) -> Assignment:
    """The medoid that a row is in, -1 where it is in none or in several."""
    indicator = np.zeros((rows.hyperedges.n_hyperedges, k))
    indicator[chosen, np.arange(len(chosen))] = 1.0
    inside = rows.points(indicator)
    return np.where(inside.sum(axis=1) == 1.0, inside.argmax(axis=1), -1).astype(np.int16)


def _spectral(rows: Rows, name: str, k: int, seed: int) -> Assignment:
    """A spectral partition of the rows: leading vectors of the hyperedges' graph, then k-means of the rows' points."""
    edges = rows.hyperedges
    if name == "links":
        mix = refined(edges, weighted_connected_triples)
        if edges.weight is not None:
            mix = csr_array(diags_array(edges.weight) @ mix)
    else:
        weights = edges.weighed(local_weights(edges) if name == "local" else np.ones(edges.n_hyperedges))
        weights /= weights.max()
        mix = weights[:, None]
    vectors, degrees = (_by_rows(rows, mix, k) if _fewer_rows(rows, k) else None) or _by_hyperedges(rows, mix, k)
    table = vectors / np.sqrt(np.maximum(degrees, 1e-10))[:, None]
    points = unit_points(rows.points(mix @ table if name == "links" else mix * table))
    rng = np.random.default_rng([seed, k, len(name)])
    some = np.arange(points.shape[1])
    if len(some) > POINTS:
        some = np.sort(rng.choice(len(some), POINTS, replace=False))
    centres = centres_by_k_means(np.ascontiguousarray(points[:, some]), k, int(rng.integers(2**31)))
    return (nearest(points, centres[None])[:, 0].astype(np.int64) - 1).astype(np.int16)


FEW_VECTORS = 32
"""Up to so many leading vectors of the hyperedges' graph are found in a second, however many hyperedges there are."""


def _fewer_rows(rows: Rows, k: int) -> bool:
    """Whether the graph of the rows is the cheaper one by far: with 500 rows in 3,800 hyperedges, k = 100, 50 times."""
    n_hyperedges = rows.hyperedges.n_hyperedges
    return k > FEW_VECTORS and n_hyperedges > MANY and 2 * len(rows.codes) <= n_hyperedges


MANY = 2000
"""Hyperedges from which on it is looked for."""


def _by_hyperedges(rows: Rows, mix: Floats | csr_array, k: int) -> tuple[Floats, Floats]:
    """Leading vectors and degrees of the hyperedges' graph; ``mix`` links hyperedges, or (one column) weights them."""
    similarity = rows.similarity(mix.sum(axis=1))
    if mix.shape[1] > 1:
        link(similarity, mix, rows.hyperedges)
    else:
        similarity *= mix
        similarity *= mix.T
    _, vectors, degrees = leading_vectors(similarity, k, direct=DIRECT, overwrite=True)
    return vectors, degrees


def _by_rows(rows: Rows, mix: Floats | csr_array, k: int) -> tuple[Floats, Floats] | None:
    """The same from the graph of the rows."""
    incidence = rows.incidence()
    if mix.shape[1] > 1:
        for member in range(rows.hyperedges.n_members):
            own = rows.hyperedges.of_member(member)
            incidence[:, own] = incidence[:, own] @ mix[own, own]
    else:
        incidence *= mix.T
    return leading_vectors_of_rows(incidence, 1.0 / incidence.sum(axis=1), k)


def _walks(rows: Rows, k: int) -> Assignment:
    """Each row to the group of hyperedges that holds most of its own."""
    likeness = likeness_of_walks(rows.hyperedges, max(WALK_VECTORS, 4 * k))
    symmetrise(likeness)
    distances = np.subtract(1.0, likeness, out=likeness)
    np.clip(distances, 0.0, None, out=distances)
    groups = linked_groups(distances, k)
    inside = np.zeros((len(groups), k))
    inside[np.arange(len(groups)), groups] = 1.0
    return np.asarray(rows.points(rows.hyperedges.weighed(inside)).argmax(axis=1), np.int16)


WALK_VECTORS = 64
"""Least number of eigenvectors that trajectories are made of."""


DIRECT = 400
"""Up to this many hyperedges the direct eigensolver is the faster one."""


def _adjust(rows: Rows, counts: Int, belonging: str, max_iter: int) -> tuple[Assignment, Int, int]:
    """Adjust until nothing moves, and split while a cluster is empty: the assignment, its counts, clusters repaired."""
    edges, k = rows.hyperedges, counts.shape[1]
    assignment, counts, weights = _settle(rows, counts, belonging, max_iter)
    at_first, splits = found_in(counts), list[Split]()
    while (split := best_split(counts, edges)) is not None and not split.again(splits):
        splits.append(split)
        found, bare = found_in(counts), rows.assign(split_weights(weights, splits, edges.members))
        assignment, counts = bare, rows.count(bare, k)
        if found_in(counts) > found:
            adjusted, adjusted_counts, plain = _settle(rows, counts, belonging, max_iter)
            if found_in(adjusted_counts) >= found_in(counts):
                assignment, counts, weights, splits = adjusted, adjusted_counts, plain, []
    repaired = max(0, found_in(counts) - at_first)
    return assignment, counts, repaired


def _settle(rows: Rows, counts: Int, belonging: str, max_iter: int) -> tuple[Assignment, Int, Floats]:
    """Rounds of adjustion: the assignment, its counts, and the weights that it follows from."""
    k = counts.shape[1]
    before: Assignment | None = None
    for _ in range(max_iter + 1):
        weights = weights_of(belonging, counts, rows.hyperedges)
        assignment = rows.assign(weights)
        if before is not None and np.array_equal(assignment, before):
            break
        before, counts = assignment, rows.count(assignment, k)
    return assignment, counts, weights


def _judge(rows: Rows, start: str, belonging: str, counts: Int, assignment: Assignment, repaired: int) -> Candidate:
    edges = rows.hyperedges
    return Candidate(
        start,
        belonging,
        tau(counts, edges),
        evenness(counts, edges),
        agreement(edges, counts),
        explained(edges, counts),
        tuple(np.bincount(assignment, minlength=counts.shape[1]).tolist()),
        repaired,
    )


def _mean_nmi(assignments: list[Assignment], k: int) -> float:
    """Mean NMI of every two partitions; 1 if there is only one."""
    if len(assignments) < 2:
        return 1.0
    scores = []
    for number, one in enumerate(assignments[:-1], 1):
        others = assignments[number:]
        tables = np.zeros((len(others), k, k), np.int64)
        for other, table in zip(others, tables, strict=True):
            counting.contingency(one, other, table)
        side_by_side = tables.transpose(1, 0, 2).reshape(k, -1)  # one call for all of them: small tables cost calls
        scores.append(block_nmi(side_by_side, np.zeros(k, np.intp), np.repeat(np.arange(len(others)), k)))
    return float(np.concatenate(scores, axis=1).mean())


def representatives(counts: Int, hyperedges: Hyperedges) -> NDArray[np.intp]:
    """The hyperedge most like each cluster (Jaccard, from the counts), ascending clusters."""
    sizes = hyperedges.sizes
    volumes = counts.sum(axis=0) * (sizes.sum() / max(1, counts.sum())) / hyperedges.n_members
    scaled = counts * (sizes.sum() / max(1, counts.sum()))
    alike = scaled / np.maximum(sizes[:, None] + volumes[None, :] - scaled, 1e-300)
    return np.asarray(alike.argmax(axis=0))
