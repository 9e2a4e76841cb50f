"""Which client a call uses: the one that is given, the current one, or none."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cehm_dask.clusters.connect import connect
from cehm_dask.errors import ClusterError, InputTypeError


@contextmanager
def client_of(given: Any) -> Iterator[Any]:
    """The client that work goes to; None for threads of this process.

    Parameters
    ----------
    given : distributed.Client, address, path of a cluster file, False or None
        None: the setting ``cehm.client`` of Dask, or the current client, if there is one. False: this process.
    """
    import dask

    if given is None:
        given = dask.config.get("cehm.client", None)
    if given is None:
        yield _current_client()
    elif given is False:
        yield None
    elif isinstance(given, str | os.PathLike):
        with connect(os.fspath(given)) as client:
            yield client
    elif not hasattr(given, "scheduler_info"):
        raise InputTypeError(
            f"client={type(given).__name__}: expected a distributed.Client, its scheduler's address, a file as in "
            "cluster_configs/, or False for this process"
        )
    elif given.status != "running":
        raise ClusterError(f"the client is {given.status}: open a new one, or pass client=False for this process")
    else:
        yield given


def _current_client() -> Any:
    """The client that is current in this process, or that of the worker this is called on."""
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client, get_client, get_worker

    try:
        get_worker()
    except ValueError:
        try:
            return default_client()
        except ValueError:
            return None
    return get_client()
