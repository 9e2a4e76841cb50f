"""A problem: one start on its way to a partition, as the coordinator sees it.

It gives orders and adds up the answers; the stages decide which order comes next. It holds small tables only: all of it
fits a checkpoint, whatever the number of samples.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from cehm_dask.method.belonging import lead_of, weights_of
from cehm_dask.method.cut import EVERY_ROW, Band, Cut, Int
from cehm_dask.method.intersections import Hyperedges
from cehm_dask.method.orders import Answer, Assign, Floats, Look, Made, Order, Read
from cehm_dask.method.params import Params
from cehm_dask.method.split import Split, split_weights

Kind = TypeVar("Kind", bound=Order)


@dataclass(frozen=True, eq=False)
class Basis:
    """What weights are made from: counts, and splits of clusters on top."""

    counts: Int
    splits: tuple[Split, ...]
    found: int = 0
    """Clusters that the assignment by these weights has."""


@dataclass(eq=False)
class Problem:
    """One start on its way to a partition, as the coordinator sees it."""

    number: int
    params: Params
    hyperedges: Hyperedges
    medoids: NDArray[np.intp]
    start: Int | None = None
    """Counts whose weights give the first assignment; None: the medoids without their overlaps do."""
    competition: dict[str, Any] | None = None
    """The candidates that the start was chosen from, as plain facts."""
    counts: Int = field(init=False)
    """C of the assignment reached."""
    counts_before: Int = field(init=False)
    """C of the round before, from which the assignment reached can be made again."""
    cut: Cut = EVERY_ROW
    """Cut of the assignment reached."""
    assigned: int = 0
    moved: int = 0
    round: int = 0
    """Rounds finished; 0 = nothing assigned."""
    step: int = 0
    """Assignments made; a round of diffusion may take two."""
    table: int = 0
    """Weights taken up."""
    losses: list[float] = field(default_factory=list)
    loss_fractions: list[float] = field(default_factory=list)
    """The same as shares of the largest that is possible, which keep their digits whatever n is."""
    growth: list[int] = field(default_factory=list)
    """Samples assigned after the start and after each diffusion round."""
    moves: list[int] = field(default_factory=list)
    """Samples that got, lost or changed their cluster in each round."""
    converged: bool = False
    adjusted: int = 0
    """Rounds of adjustion since the start, or since a cluster was split."""
    splits: tuple[Split, ...] = ()
    """Splits in the weights of the assignment reached."""
    singled: dict[int, int] = field(default_factory=dict)
    """Clusters of rows that were put there one by one, because no label tells them from others."""
    bare: Basis | None = None
    """The last split as it was made, to go back to if adjustion undoes it."""
    weights: Floats = field(init=False)
    """W of the round to come, one row per slot; set by the stage."""
    previous: Made | None = None
    """How the assignment reached was made."""
    _began: Made | None = None
    """How the assignment was made that a round of two steps began with."""
    _counts_at_guess: Int | None = None
    _kept: Band | None = None

    def __post_init__(self) -> None:
        self.counts = np.zeros((self.hyperedges.n_hyperedges, self.params.n_clusters), np.int64)
        self.counts_before = self.counts
        self.weights = np.zeros((self.hyperedges.n_slots, self.params.n_clusters))

    @property
    def stage(self) -> str:
        """The stage of the round to come."""
        if self.round == 0:
            return "start"
        return "diffusion" if self.assigned < self.hyperedges.n_speaking else "adjustion"

    @property
    def belonging(self) -> str:
        return str(self.params.belonging)

    @property
    def indicator(self) -> Floats:
        """W of the start: which hyperedge is which medoid."""
        table = np.zeros(self.counts.shape)
        table[self.medoids, np.arange(len(self.medoids))] = 1.0
        return table

    def belonging_weights(self) -> Floats:
        """W from the counts reached."""
        return weights_of(self.belonging, self.counts, self.hyperedges)

    def weights_from(self, basis: Basis) -> Floats:
        """W from given counts and splits."""
        weights = weights_of(self.belonging, basis.counts, self.hyperedges)
        return split_weights(weights, basis.splits, self.hyperedges.members)

    def first_weights(self) -> Floats:
        """W of the first assignment."""
        return self.indicator if self.start is None else weights_of(self.belonging, self.start, self.hyperedges)

    def set_weights(self, weights: Floats) -> None:
        """Take up W (n_hyperedges × k) for the round to come."""
        self.weights = self.hyperedges.to_slots(weights)
        self.table += 1

    def drift(self, weights: Floats) -> float | None:
        """By how much any sample's lead can be less with these weights than with those set last.

        With a hyperedge, a rival gains at most the range of that row of the change, and a sample has one hyperedge per
        member. The sums themselves are rounded, by less than the number of members in units of their last digit.
        """
        if self.table == 0:
            return None
        edges, before = self.hyperedges, self.weights[self.hyperedges.slots]
        change = weights - before
        largest = edges.largest_sum(weights.max(axis=1)) + edges.largest_sum(before.max(axis=1))
        rounding = 8 * (edges.n_members + 2) * np.finfo(np.float64).eps * largest
        return edges.largest_sum(np.ptp(change, axis=1)) + float(rounding)

    def order(self, kind: type[Kind], **wishes: Any) -> Kind:
        """An order for the round to come, with the weights set last."""
        place = (self.number, self.params.n_clusters, self.step + 1, self.table)
        return kind(*place, self.weights, self.previous, self._began, **wishes)

    def foretold(self, answer: Answer, band: Band) -> None:
        """The blocks have assigned what lies above a band, and kept the rows that lie inside, unless they are many."""
        self._kept = band if answer.held == answer.inside else None
        self._began, self._counts_at_guess = self.previous, self.counts
        self._take(answer, band.above)

    def foresaw(self, order: Order) -> bool:
        """Whether an order is about rows that the workers kept."""
        if self._kept is None:
            return False
        if isinstance(order, Look):
            return order.band == self._kept
        return isinstance(order, Assign) and self._kept.covers(order.cut)

    def accept(self, answer: Answer, cut: Cut, basis: Basis | None = None) -> None:
        """The blocks have assigned by ``cut``: the round is over.

        ``basis`` is what the weights came from, where that is not the counts reached before.
        """
        self._kept = None
        before = self.counts if self._counts_at_guess is None else self._counts_at_guess
        self.counts_before, self.splits = (before, ()) if basis is None else (basis.counts, basis.splits)
        self._began = self._counts_at_guess = None
        self._take(answer, cut)
        self.assigned, self.moved, self.cut = answer.assigned, answer.moved, cut
        self.moves.append(answer.moved)
        self.round += 1

    def _take(self, answer: Answer, cut: Cut) -> None:
        self.counts = self.counts + answer.delta[self.hyperedges.slots]
        self.previous = Made(self.weights, cut)
        self.step += 1

    def single_out(self, row: int, slots: NDArray[np.int64], cluster: int, into: int) -> None:
        """Put one row, with labels at these slots, from a cluster into an empty one."""
        own = np.flatnonzero(np.isin(self.hyperedges.slots, slots))
        self.counts = self.counts.copy()
        self.counts[own, cluster] -= 1
        self.counts[own, into] += 1
        self.singled[row] = into

    @property
    def final_weights(self) -> Floats:
        """W (n_hyperedges × k) that the assignment reached follows from."""
        return self._reached.weights[self.hyperedges.slots]

    @property
    def final_lead(self) -> Floats:
        """By what leads in those weights are multiplied, by winner, to be margins."""
        lead = lead_of(self.belonging, self.counts_before, self.hyperedges)
        return np.ones(self.params.n_clusters) if lead is None else lead

    @property
    def _reached(self) -> Made:
        """How the assignment reached was made."""
        if self.previous is None:
            raise RuntimeError(f"problem {self.number}: nothing is assigned yet")
        return self.previous

    def last_order(self) -> Read:
        """An order that asks for nothing but the assignment reached."""
        weights, cut = self._reached
        lead = lead_of(self.belonging, self.counts_before, self.hyperedges)
        place = (self.number, self.params.n_clusters, self.step, self.table)
        return Read(*place, weights, None, None, cut, lead, tuple(sorted(self.singled.items())))

    def save(self) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """Everything a resumed run needs: small arrays and plain facts, whatever n is."""
        # Half the bytes where counts are small enough; compressing them would take longer than writing them.
        width = np.min_scalar_type(-self.hyperedges.n_samples)
        arrays = {
            "medoids": self.medoids,
            "counts": self.counts.astype(width),
            "counts_before": self.counts_before.astype(width),
        }
        if self.start is not None:
            arrays["start"] = self.start.astype(width)
        facts = {name: getattr(self, name) for name in PLAIN}
        if self.bare is not None:
            arrays["bare"] = self.bare.counts.astype(width)
            facts["bare"] = {"splits": [asdict(split) for split in self.bare.splits], "found": self.bare.found}
        splits = [asdict(split) for split in self.splits]
        place = {"cut": [self.cut.key, self.cut.last_row], "splits": splits, "belonging": self.belonging}
        return arrays, {**facts, **place, "competition": self.competition}

    def restore(self, arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        """Take up what :meth:`save` gave."""
        self.medoids = arrays["medoids"]
        for name in PLAIN:
            setattr(self, name, facts[name])
        self.cut, self.step = Cut(*facts["cut"]), self.round
        self.splits = _splits(facts["splits"])
        if "bare" in facts:
            bare = facts["bare"]
            self.bare = Basis(arrays["bare"].astype(np.int64), _splits(bare["splits"]), bare["found"])
        self.counts_before, self.counts = arrays["counts_before"].astype(np.int64), arrays["counts"].astype(np.int64)
        basis = Basis(self.counts_before, self.splits)
        self.set_weights(self.first_weights() if self.round == 1 else self.weights_from(basis))
        self.previous = Made(self.weights, self.cut)


PLAIN = ("assigned", "moved", "moves", "round", "losses", "loss_fractions", "growth", "converged", "adjusted")
"""What a checkpoint holds as it is."""


def _splits(facts: list[dict[str, int]]) -> tuple[Split, ...]:
    return tuple(Split(**split) for split in facts)
