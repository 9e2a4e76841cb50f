"""How loops are compiled; the only module that imports numba."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.compiler_lock import global_compiler_lock

log = logging.getLogger(__name__)

LOADED_BYTES = 64 << 20
"""That a consensus adds to a process that has imported this package, where all kernels are found compiled: numba's own
tables, LLVM, and the parts of scipy that starts need. Measured: 60 MiB, with a package that numba loads if it is
installed (sparse, 13 MiB)."""

COMPILED_BYTES = 176 << 20
"""The same where they have to be compiled; measured: 163 MiB."""


def code_bytes(*kernels: Any) -> int:
    """Bytes that compiled code is going to take, by whether these kernels have been compiled before."""
    return LOADED_BYTES if all(map(_is_kept, kernels)) else COMPILED_BYTES


def _is_kept(kernel: Any) -> bool:
    if numba.config.DISABLE_JIT:
        return True
    folder = kernel.stats.cache_path
    return folder is not None and any(Path(folder).glob(f"*.{kernel.__name__}-*.nbi"))


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
