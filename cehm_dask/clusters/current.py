"""Which client a call uses: the one that is given, the current one, or none."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cehm_dask.errors import ClusterError, InputTypeError
from cehm_dask.machine import kept_awake

log = logging.getLogger(__name__)


@contextmanager
def client_of(given: Any) -> Iterator[Any]:
    """The client that work goes to; None for threads of this process.

    Parameters
    ----------
    given : distributed.Client, address, path of a cluster file, False or None
        None: the setting ``cehm.client`` of Dask, or the current client, if there is one. False: this process.
    """
    with _found(given) as client:
        if client is None:
            yield None
            return
        log.info("workers of %s do the work; dashboard: %s", client.scheduler.address, client.dashboard_link)
        with kept_awake(client):
            yield client


@contextmanager
def _found(given: Any) -> Iterator[Any]:
    import dask

    if given is None:
        given = dask.config.get("cehm.client", None)
    if given is None:
        with _current_client() as client:
            yield client
    elif given is False:
        yield None
    elif isinstance(given, str | os.PathLike):
        from cehm_dask.clusters.connect import connect

        with connect(os.fspath(given)) as client:
            yield client
    elif not hasattr(given, "scheduler_info") or given.asynchronous:
        raise InputTypeError(
            f"client={type(given).__name__}: expected a distributed.Client (not an asynchronous one), its scheduler's "
            "address, a file as in cluster_configs/, or False for this process"
        )
    elif given.status != "running":
        raise ClusterError(f"the client is {given.status}: open a new one, or pass client=False for this process")
    else:
        yield given


@contextmanager
def _current_client() -> Iterator[Any]:
    """The client that is current in this process, or that of the worker this is called on."""
    if "distributed" not in sys.modules:
        yield None
        return
    from distributed import default_client, get_worker, worker_client

    try:
        get_worker()
    except ValueError:
        try:
            client = default_client()
        except ValueError:
            client = None
        yield client
        return
    with worker_client() as client:  # the worker is free for other tasks meanwhile
        yield client
