"""Stage 1, sample view: the medoids without their overlaps.

Chosen hyperedges in, the first assignment out, in one sweep: a sample belongs to the one medoid that contains
it. With the medoids' indicator as weights, that is a lead of exactly 1 over every other.
"""

from collections.abc import Generator

from cehm_dask.problem import Problem
from cehm_dask.rounds import EVERY_ROW, Answer, Cut, Order, key_of


def start(problem: Problem) -> Generator[Order, Answer, None]:
    """Assign the samples that exactly one medoid contains."""
    problem.set_weights(problem.indicator)
    cut = Cut(key_of(1.0), EVERY_ROW.last_row)
    answer = yield problem.order(cut=cut)
    problem.accept(answer, cut)
    problem.growth.append(problem.assigned)
