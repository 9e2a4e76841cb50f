"""Stage 1, sample view: the first assignment.

A problem in, its first assignment out, in one sweep: the medoids without their overlaps, where a sample belongs to the
one medoid that contains it (with the medoids' indicator as weights, that is a lead of exactly 1 over every other); or,
from a start that competed on some rows, every sample to the cluster it belongs to most.
"""

from collections.abc import Generator

from cehm_dask.method.cut import EVERY_ROW, Cut, key_of
from cehm_dask.method.orders import Answer, Assign, Order
from cehm_dask.method.problem import Problem


def start(problem: Problem) -> Generator[Order, Answer, None]:
    """Assign what the start can tell."""
    problem.set_weights(problem.first_weights())
    cut = Cut(key_of(1.0), EVERY_ROW.last_row) if problem.start is None else EVERY_ROW
    answer = yield problem.order(Assign, cut=cut)
    problem.accept(answer, cut)
    problem.growth.append(problem.assigned)
