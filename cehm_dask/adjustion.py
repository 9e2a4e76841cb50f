"""Stage 3, sample view: move every sample to the hyperedge it belongs to most, until none moves.

A whole assignment in, a stable one out; one sweep a round. The loss follows from the small tables alone:
the belonging degrees of all samples to their own hyperedge sum to Σ W·C.
"""

from collections.abc import Generator

from cehm_dask.rounds import EVERY_ROW, Answer, Order, Problem


def adjustion(problem: Problem) -> Generator[Order, Answer, None]:
    """Repeat until no sample moves, at most ``max_iter`` rounds; the loss of each round is recorded."""
    n = problem.hyperedges.n_speaking
    while not problem.converged and len(problem.losses) < problem.params.max_iter:
        weights = problem.belonging_weights()
        problem.set_weights(weights)
        own = float((weights * problem.counts).sum())
        problem.losses.append(float(n) * n - own / problem.hyperedges.n_members)
        answer = yield problem.order(cut=EVERY_ROW)
        problem.accept(answer, EVERY_ROW)
        problem.converged = problem.moved == 0
