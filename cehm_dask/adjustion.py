"""Stage 3, sample view: move every sample to the hyperedge it belongs to most, until none moves.

A whole assignment in, a stable one out; one sweep a round, of the few samples only whose winner may be another, where
labels are in memory. The loss follows from the small tables alone:
the belonging degrees of all samples to their own hyperedge sum to Σ W·C.
"""

from collections.abc import Generator
from math import sqrt

from cehm_dask.problem import Problem
from cehm_dask.rounds import EVERY_ROW, Answer, Order


def adjustion(problem: Problem, *, pass_over: bool = True) -> Generator[Order, Answer, None]:
    """Repeat until no sample moves, at most ``max_iter`` rounds; the loss of each round is recorded.

    ``pass_over`` tells whether it pays to pass over samples that are sure of their winner.
    """
    while not problem.converged and len(problem.losses) < problem.params.max_iter:
        weights = problem.belonging_weights()
        drift = problem.drift(weights) if pass_over else None
        problem.set_weights(weights)
        problem.losses.append(loss(problem, float((weights * problem.counts).sum())))
        answer = yield problem.order(cut=EVERY_ROW, drift=drift)
        problem.accept(answer, EVERY_ROW)
        problem.converged = problem.moved == 0


def loss(problem: Problem, own: float) -> float:
    """What the belonging degrees of all samples to their own hyperedge, summed, fall short of.

    Shares and counts: of n for each sample and member. Cosine: ``own`` is the sum of the lengths, at most
    √(k·l·n), which members and clusters reach that are all alike and of equal size; scaled to n.
    """
    n, n_members = problem.hyperedges.n_speaking, problem.hyperedges.n_members
    if problem.params.belonging == "cosine":
        return n - own * sqrt(n / (problem.params.n_clusters * n_members))
    return float(n) * n - own / n_members
