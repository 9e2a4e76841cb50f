"""Belonging: the weights W of every kind, from the counts C, and the objective that its rounds never lower.

A sample belongs to a cluster e as much as W[c, e], summed over its hyperedges c, says; a round
moves every sample to the cluster it belongs to most. Written with φ(x), the vector with 1/√s_c at the hyperedges c of a
sample x and 0 elsewhere, and m_e, the sum of φ over a cluster e, each kind climbs an objective of its own:

=========  ==============================  =======================================================================
kind       objective                       why no round lowers it
=========  ==============================  =======================================================================
count      Σ_e Σ_c C[c, e]²                a convex quadratic form; a round maximises its tangent
share      Σ_e ‖m_e‖²                      the same
cosine     Σ_e ‖m_e‖                       convex too (spherical k-means)
kmeans     Σ_e ‖m_e‖² / vol_e              Lloyd's step of weighted k-means; k less the normalised cut
tau        Goodman and Kruskal's τ         Dinkelbach's step on a ratio of convex forms
=========  ==============================  =======================================================================

vol_e is the number of labels that the samples of e have. Where hyperedges do not all count alike, with ω_c what c
counts, φ has √(ω_c / s_c) there, vol_e is a sum of ω, and so on: all is as if c were there ω_c times.

Count and share are the paper's; their best partition is a single cluster, so they depend on a good start. The other
kinds are ours. ``docs/method.md`` has the proofs.

Kernels want weights that are not negative, so those of ``kmeans`` and ``tau`` are raised by a constant for each
hyperedge, which changes no winner and no lead. A cluster that has become empty has zeros, and so never wins.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import fsum, sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cehm_dask.machine import one_thread
from cehm_dask.method.intersections import Hyperedges

Floats = NDArray[np.float64]
Int = NDArray[np.int64]


class Loss(NamedTuple):
    """By how much an objective falls short of the largest value it could have."""

    value: float
    """On the scale of n; of n² for shares and counts, as in the paper."""
    fraction: float
    """As a share of that largest value, from 0 to 1.

    At n = 10⁹ the paper's loss for shares is n² less a number below n: of its sixteen digits, nine spell n². The
    fraction keeps all of them.
    """


def _no_lead(_counts: Int, _hyperedges: Hyperedges) -> None:
    return None


@dataclass(frozen=True)
class Belonging:
    """One kind of belonging: three functions of the counts C. Everything else follows from them."""

    weights: Callable[[Int, Hyperedges], Floats]
    """W, n_hyperedges × k."""
    loss: Callable[[Int, Hyperedges], Loss]
    """What the objective falls short of; never rises from round to round."""
    lead: Callable[[Int, Hyperedges], Floats | None] = _no_lead
    """Factors, by winner, that turn leads in W into leads in shares; None: none needed."""
    whole: bool = False
    """Whether W, and so every margin, is a whole number."""


# --- count and share: the paper's -------------------------------------------------------------------------------------

EXACT = 2**53
"""Whole numbers up to this are exact in float64."""


def _counts(counts: Int, hyperedges: Hyperedges) -> Floats:
    """Whole numbers below 2**53, so their sums are exact in float64 too: one kernel serves all kinds."""
    return hyperedges.weighed(counts.astype(np.float64))


def _shares(counts: Int, hyperedges: Hyperedges) -> Floats:
    return hyperedges.weighed(counts / hyperedges.sizes[:, None])


def _volumes(counts: Int, hyperedges: Hyperedges) -> NDArray[np.float64] | Int:
    """Labels of the samples of every cluster, as much as they count."""
    return np.asarray(hyperedges.weighed(counts).sum(axis=0))


def _count_loss(counts: Int, hyperedges: Hyperedges) -> Loss:
    n, n_members = hyperedges.n_speaking, hyperedges.n_members
    if n_members * n * n > EXACT and hyperedges.weight is None:
        # Python's integers and their division, which rounds once: Σ C² and n² have more digits than float64.
        most, squares = n_members * n * n, sum(count * count for count in counts.ravel().tolist())
        return Loss((most - squares) / n_members, (most - squares) / most)
    return _paper_loss(_counts(counts, hyperedges) * counts, n, n_members, n_members * n * n)


def _share_loss(counts: Int, hyperedges: Hyperedges) -> Loss:
    n, n_members = hyperedges.n_speaking, hyperedges.n_members
    return _paper_loss(_shares(counts, hyperedges) * counts, n, n_members, n_members * n)


def _paper_loss(terms: Floats, n: int, n_members: int, largest: int) -> Loss:
    return Loss(float(n) * n - float(terms.sum()) / n_members, 1.0 - _exact_sum(terms) / largest)


def _exact_sum(terms: Floats) -> float:
    """Rounded once, whatever the order of the clusters: the same partition has the same fraction."""
    return fsum(terms.ravel().tolist())


# --- cosine -----------------------------------------------------------------------------------------------------------


def _squares(counts: Int, hyperedges: Hyperedges) -> Floats:
    """‖m_e‖² of every cluster."""
    return np.asarray((_shares(counts, hyperedges) * counts).sum(axis=0))


def _lengths(counts: Int, hyperedges: Hyperedges) -> Floats:
    """‖m_e‖ of every cluster; 1 for an empty one."""
    squares = _squares(counts, hyperedges)
    return np.asarray(np.sqrt(np.where(squares > 0, squares, 1.0)))


def _cosine_weights(counts: Int, hyperedges: Hyperedges) -> Floats:
    return _shares(counts, hyperedges) / _lengths(counts, hyperedges)


def _cosine_loss(counts: Int, hyperedges: Hyperedges) -> Loss:
    n, n_members, k = hyperedges.n_speaking, hyperedges.n_members, counts.shape[1]
    terms = _cosine_weights(counts, hyperedges) * counts
    own = float(terms.sum())
    return Loss(n - own * sqrt(n / (k * n_members)), 1.0 - _exact_sum(terms) / sqrt(n * k * n_members))


def _cosine_lead(counts: Int, hyperedges: Hyperedges) -> Floats:
    return _lengths(counts, hyperedges)


# --- kmeans -----------------------------------------------------------------------------------------------------------


def _kmeans_weights(counts: Int, hyperedges: Hyperedges) -> Floats:
    volumes = _volumes(counts, hyperedges)
    raised = _bias_below_largest(counts, hyperedges)
    if hyperedges.weight is not None:  # a sample has the bias once for all its labels, as much as they count
        raised = raised * hyperedges.weight[:, None]
    return np.where(volumes > 0, 2.0 * _shares(counts, hyperedges) / _some(volumes) + raised, 0.0)


def _some(volumes: NDArray[Any]) -> NDArray[Any]:
    """Volumes to divide by; 1 for an empty cluster."""
    return np.where(volumes > 0, volumes, 1)


def _bias_below_largest(counts: Int, hyperedges: Hyperedges) -> Floats:
    """By how much the bias ‖m_e‖² / vol_e² of every cluster falls short of the largest one."""
    bias = _squares(counts, hyperedges) / _some(_volumes(counts, hyperedges)).astype(np.float64) ** 2
    return np.asarray(bias.max() - bias)


def _kmeans_loss(counts: Int, hyperedges: Hyperedges) -> Loss:
    kept = _squares(counts, hyperedges) / _some(_volumes(counts, hyperedges))
    fraction = float(1.0 - kept.sum() / counts.shape[1])
    return Loss(hyperedges.n_speaking * fraction, fraction)


def _kmeans_lead(counts: Int, hyperedges: Hyperedges) -> Floats:
    """1 is the largest weight that a hyperedge inside the cluster could have; for tau too."""
    volumes = _some(_volumes(counts, hyperedges))
    largest = 1.0 / (2.0 / volumes + _bias_below_largest(counts, hyperedges))
    return np.asarray(largest if hyperedges.weight is None else largest / hyperedges.weight.max())


TRIFLE = 2.0**-40
"""Weight of a hyperedge that is not compared with others, for τ: 10⁴ of them together stay below 1e-8."""

# --- tau --------------------------------------------------------------------------------------------------------------


class _Tau:
    """Goodman and Kruskal's τ of a partition, on the similarity of samples that a walk over hyperedges gives.

    The walk goes from a hyperedge to one of its samples and on to a hyperedge of that sample: T[c, d] = I[c, d] / v_c,
    v_c the row sum of I. The similarity of samples x and y is K(x, y) = Σ_{c∋x} (T² diag(1/v))[c, d] over d∋y:
    symmetric and positive semi-definite, whether labels are missing or not. Where only some hyperedges are compared
    with one another, these are all there is to it: τ is that of their members.
    """

    def __init__(self, counts: Int, hyperedges: Hyperedges) -> None:
        counts, hyperedges = hyperedges.of_judged(counts), hyperedges.judged
        volumes, walk = hyperedges.volumes, hyperedges.walk
        with one_thread():
            both = walk @ (walk @ (np.column_stack((counts, hyperedges.sizes)) / volumes[:, None]))
        both = hyperedges.weighed(both)
        self.reached, self.mass = both[:, :-1], both[:, -1]
        """K summed over a cluster, and over all samples, at each hyperedge."""
        everything = float(hyperedges.sizes @ self.mass)
        self.shares = self.mass @ counts / everything
        """Of every cluster; less than 1 together while samples are unassigned."""
        within = float((counts * self.reached).sum()) / everything
        self.tau = 0.0
        if np.count_nonzero(self.shares) > 1:  # one cluster is as good as chance, and 0 / 0 but for rounding
            assigned = float(self.shares.sum())
            within, chance = within / assigned**2, float(((self.shares / assigned) ** 2).sum())
            # Of assigned samples alone, the similarity within clusters may exceed what the shares allow.
            self.tau = min(1.0, max(0.0, (within - chance) / (1.0 - chance)))


def _tau_weights(counts: Int, hyperedges: Hyperedges) -> Floats:
    found = _Tau(counts, hyperedges)
    penalty = (1.0 - found.tau) * found.mass[:, None]
    weights = found.reached + penalty * (found.shares.max() - found.shares)
    if hyperedges.compared is not None:
        # The others decide where those compared leave a tie: for samples that have none of them.
        everywhere = _shares(counts, hyperedges) * (TRIFLE * float(weights.max()))
        everywhere[hyperedges.compared] = weights
        weights = everywhere
    return np.where(counts.sum(axis=0) > 0, weights, 0.0)


def _tau_loss(counts: Int, hyperedges: Hyperedges) -> Loss:
    fraction = 1.0 - tau(counts, hyperedges)
    return Loss(float(hyperedges.n_speaking * fraction), fraction)


def _tau_lead(counts: Int, hyperedges: Hyperedges) -> Floats:
    found = _Tau(counts, hyperedges)
    rarer = (1.0 - found.tau) * (found.shares.max() - found.shares)
    return np.asarray(1.0 / (found.mass.max() * (1.0 + rarer)))


def tau(counts: Int, hyperedges: Hyperedges) -> float:
    """By how much the members foretell the cluster of a sample better than chance; 0 for one cluster, at most 1."""
    return _Tau(counts, hyperedges).tau


def evenness(counts: Int, hyperedges: Hyperedges) -> float:
    """The cosine objective as a share of the largest value it can have.

    Σ_e ‖m_e‖ is at most √(k·vol), which k clusters of equal size reach whose members all agree.
    """
    volume = float(hyperedges.weighed(hyperedges.sizes).sum())
    return float(np.sqrt(_squares(counts, hyperedges)).sum()) / sqrt(counts.shape[1] * volume)


# --- all kinds --------------------------------------------------------------------------------------------------------

BELONGINGS = {
    "share": Belonging(_shares, _share_loss),
    "count": Belonging(_counts, _count_loss, whole=True),
    "cosine": Belonging(_cosine_weights, _cosine_loss, _cosine_lead),
    "kmeans": Belonging(_kmeans_weights, _kmeans_loss, _kmeans_lead),
    "tau": Belonging(_tau_weights, _tau_loss, _tau_lead),
}


def weights_of(kind: str, counts: Int, hyperedges: Hyperedges) -> Floats:
    """W (n_hyperedges × k) from C."""
    return BELONGINGS[kind].weights(counts, hyperedges)


def lead_of(kind: str, counts: Int, hyperedges: Hyperedges) -> Floats | None:
    """Factors that turn leads in the weights made from ``counts`` into leads in shares, where they need any."""
    return BELONGINGS[kind].lead(counts, hyperedges)


def loss_of(kind: str, counts: Int, hyperedges: Hyperedges) -> Loss:
    """What the objective falls short of."""
    return BELONGINGS[kind].loss(counts, hyperedges)
