"""Stage 3, sample view: move every sample to the cluster it belongs to most, until none moves.

A whole assignment in, a stable one out; one sweep per round, of the few samples only whose winner may be another, where
labels are in memory. The loss follows from the small tables alone.

Clusters that have lost all their samples get some back, but for the paper's own variants: the best split of another
cluster is made and adjusted; if adjustion undoes it, the bare split stays.
"""

from collections.abc import Generator
from dataclasses import replace

from cehm_dask.method.belonging import Floats, loss_of
from cehm_dask.method.cut import EVERY_ROW
from cehm_dask.method.orders import Answer, Assign, Order, Passing
from cehm_dask.method.problem import Basis, Problem
from cehm_dask.method.split import best_split, found_in


def adjustion(problem: Problem, *, pass_over: bool = True) -> Generator[Order, Answer, None]:
    """Repeat until no sample moves and no cluster is empty.

    Every step can be taken up from a checkpoint: what decides the next one is in the problem, not here.

    Parameters
    ----------
    pass_over : bool
        Whether it pays to pass over samples that are sure of their winner.
    """
    while True:
        while not problem.converged and problem.adjusted < problem.params.max_iter:
            weights = problem.belonging_weights()
            yield from _round(problem, weights, pass_over)
            problem.adjusted += 1
            problem.converged = problem.moved == 0
        if not problem.params.repairs:
            return
        if problem.bare is not None and found_in(problem.counts) < problem.bare.found:
            yield from _round(problem, problem.weights_from(problem.bare), pass_over, problem.bare)
            problem.bare, problem.converged = None, True
        split = best_split(problem.counts, problem.hyperedges)
        if split is None or split.again(problem.splits):
            return
        bare, found = Basis(problem.counts_before, (*problem.splits, split)), found_in(problem.counts)
        yield from _round(problem, problem.weights_from(bare), pass_over, bare)
        if found_in(problem.counts) > found:
            problem.bare = replace(bare, found=found_in(problem.counts))
            problem.adjusted, problem.converged = 0, False
        else:
            # Samples that were tied with a further cluster went there; the next split finds them there.
            problem.bare = None


def _round(
    problem: Problem, weights: Floats, pass_over: bool, basis: Basis | None = None
) -> Generator[Order, Answer, None]:
    """Every sample to the cluster it belongs to most by these weights."""
    drift = problem.drift(weights) if pass_over else None
    loss = loss_of(problem.belonging, problem.counts, problem.hyperedges)
    problem.set_weights(weights)
    answer = yield problem.order(Assign, cut=EVERY_ROW, passing=None if drift is None else Passing(drift))
    problem.accept(answer, EVERY_ROW, basis)
    # After the round, not before it: a checkpoint is written between rounds, and must not hold half of the next.
    problem.losses.append(loss.value)
    problem.loss_fractions.append(loss.fraction)
