"""What every kind of worker shares: doing one task, and adding up what tasks return."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from cehm_dask.engine.budget import FAN_IN
from cehm_dask.engine.span import Span

T = TypeVar("T")
Combine = Callable[[Sequence[T]], T]
Done = Callable[[int], None]
"""Called with the number of rows of a span when it is done."""


@dataclass(frozen=True, eq=False)
class Sweep(Generic[T]):
    """``work(span, *args)`` for every span, combined."""

    name: str
    """Of the tasks."""
    work: Callable[..., T]
    combine: Combine[T]
    spans: Sequence[Span]
    args: tuple[Any, ...]
    done: Done


class Workers(Protocol):
    """Who does the work: threads of this process, or the workers of a Dask client."""

    here: bool
    """Whether this process does the work."""

    def sweep(self, asked: Sweep[T]) -> T:
        """Do a sweep."""
        ...

    def each(
        self, work: Callable[..., T], items: Iterable[Any], *shared: Any, delayed: Sequence[Sequence[Any]] = ()
    ) -> Iterator[T]:
        """``work(item, *shared)`` for every item, in their order; items are small, what is shared is sent apart.

        With ``delayed`` objects of every item, ``work(item, computed, *shared)``: a client's workers compute them.
        """
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Dask computes collections there, within."""
        ...

    def close(self, token: str | None = None) -> None:
        """End, and forget what is cached for an engine."""
        ...


@contextmanager
def computing_on(client: Any, threads: int) -> Iterator[None]:
    """Dask computes collections on a client's workers, or on threads of this process."""
    import dask

    # Without being current, what is persisted would be computed there and brought here.
    current = nullcontext() if client is None else client.as_current()
    with current, dask.config.set(scheduler="threads" if client is None else client, num_workers=threads):
        yield


def do(work: Callable[..., T], span: Span, args: tuple[Any, ...]) -> T:
    """Do the work with nobody else at the same rows."""
    with span.cache.lock:
        return work(span, *args)


def fold(combine: Combine[T], results: Iterator[T]) -> T:
    """Combine results a few at a time, so that their tables are not all in memory at once."""
    total = [next(results)]
    while group := list(islice(results, FAN_IN - 1)):
        total = [combine([*total, *group])]
    return total[0]
