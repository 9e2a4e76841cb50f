"""How loops are compiled; the only module that imports numba."""

import logging
from collections.abc import Callable
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

log = logging.getLogger(__name__)


def jit(kernel: Callable[..., Any]) -> Any:
    """Compile a kernel, and keep it on disk where there is a place to: in pods, home and packages may be read-only."""
    try:
        dispatcher = numba.njit(nogil=True, cache=True)(kernel)
    except RuntimeError as error:  # "no locator available"
        _say_uncached(kernel.__name__, error)
        dispatcher = numba.njit(nogil=True)(kernel)
    if not numba.config.DISABLE_JIT:
        dispatcher.compile = _vectorised(dispatcher.compile, kernel.__name__)
    return dispatcher


def _say_uncached(name: str, error: Exception) -> None:
    log.info("kernel %s is compiled again in every process (%s); set NUMBA_CACHE_DIR", name, error)


def _vectorised(compile_kernel: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Compile straight-line code to vectors too, which numba does for a whole process or not at all.

    Only so do four accumulators that live in registers become one vector. Other code in the process is compiled as
    its owners set it: the setting is changed under numba's own lock and put back.
    """

    def compiled(signature: Any) -> Any:
        with global_compiler_lock:
            before, numba.config.SLP_VECTORIZE = numba.config.SLP_VECTORIZE, 1
            try:
                return compile_kernel(signature)
            except OSError as error:  # compiled, but there was no room to keep it; the second call gives what is there
                _say_uncached(name, error)
                return compile_kernel(signature)
            finally:
                numba.config.SLP_VECTORIZE = before

    return compiled
