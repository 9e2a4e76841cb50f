"""Work on threads of this process."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from cehm_dask.engine.cache import CACHES
from cehm_dask.engine.span import Span
from cehm_dask.engine.task import Sweep, T, computing_on, do, fold


class Threads:
    """Threads of this process; with one, the caller's own."""

    here = True

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count) if count > 1 else None

    def sweep(self, asked: Sweep[T]) -> T:
        def do_span(span: Span) -> T:
            result = do(asked.work, span, asked.args)
            asked.done(span.n_rows)
            return result

        if self._pool is None or len(asked.spans) == 1:
            return fold(asked.combine, map(do_span, asked.spans))
        futures = deque(self._pool.submit(do_span, span) for span in asked.spans)
        try:
            return fold(asked.combine, (futures.popleft().result() for _ in asked.spans))
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def each(
        self, work: Callable[..., T], items: Iterable[Any], *shared: Any, delayed: Sequence[Sequence[Any]] = ()
    ) -> Iterator[T]:
        import dask

        def do_item(item: Any, *own: Any) -> T:
            return work(item, *(dask.compute(*parts, scheduler="synchronous") for parts in own), *shared)

        each = (items, delayed) if delayed else (items,)
        return map(do_item, *each) if self._pool is None else self._pool.map(do_item, *each)

    def computing(self) -> AbstractContextManager[None]:
        return computing_on(None, self.count)

    def close(self, token: str | None = None) -> None:
        if token is not None:
            CACHES.drop(token)
        if self._pool is not None:
            self._pool.shutdown()
