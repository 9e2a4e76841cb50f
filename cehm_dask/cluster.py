"""A file of cluster_configs/, or an address, → a Dask client; the only room that starts a cluster or opens a client.

Beside the engine, which hands its sweeps to the client. ``connect`` starts or reaches the cluster, waits for the
workers it was promised, and refuses workers whose software differs from the driver's; when it is left, by whatever
way, nothing that it started runs on and no job is left in a queue. Everything listens on loopback unless the file
says otherwise: whoever reaches a Dask scheduler without TLS can run code as its user.
"""

import importlib
import logging
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cehm_dask.cluster_config import (
    PINNED,
    Adaptive,
    Address,
    Clustered,
    Gateway,
    Jobs,
    Kubernetes,
    Lsf,
    Pbs,
    Processes,
    Sge,
    Slurm,
    Ssh,
    Threads,
    Tls,
    exports,
    read_config,
)
from cehm_dask.files import absolute, is_url, read_whole, remove, trace, write_whole
from cehm_dask.machine import parse_bytes
from cehm_dask.plan import BudgetError, format_bytes

MATCHED = ("python", "dask", "distributed", "numpy", "numba", "cehm_dask")
"""Software that must be the same on workers as here, so that labels are the same, bit for bit."""

WORKER_BYTES = 300 << 20
"""What a worker takes before it holds any data, roughly; with less it is killed and started again without end."""

NO_WORKERS_SECONDS = 300
"""How long a run stays without a single worker, before it gives up."""

BANDWIDTH_BYTES = 32 << 20

_DOORS: list[Any] = []
"""Clients of gateways, closed or not: one that is collected after it was closed complains on stderr."""


class ClusterError(RuntimeError):
    """A cluster that cannot be reached, does not start, or cannot do the work asked of it."""


@contextmanager
def connect(spec: str | None) -> Iterator[Any]:
    """A client of the cluster that a file or an address names; None for threads of this process.

    Parameters
    ----------
    spec : str, optional
        Path of a YAML file as in cluster_configs/, or a tcp:// or tls:// address; default: threads.

    Raises
    ------
    ClusterError
        No cluster, too few workers within the time allowed, other versions than here; later: the cluster was lost.
    BudgetError
        Workers too small to hold even the program.
    """
    config = Threads(kind="threads") if spec is None else read_config(spec)
    if isinstance(config, Threads):
        yield None
        return
    import dask
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

    # Distributed tells of every connection and worker at level INFO.
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger("distributed").setLevel(logging.WARNING)
    _refuse_small(config)
    settings: dict[str, Any] = {"distributed.scheduler.no-workers-timeout": f"{NO_WORKERS_SECONDS}s"}
    if not isinstance(config, Address | Gateway):
        settings["distributed.nanny.pre-spawn-environ"] = config.pinned
    with dask.config.set(settings), ExitStack() as stack:
        client = _client(config, stack)
        _wait(client, config)
        check_versions(client)
        try:
            yield client
        except KilledWorker as error:
            raise ClusterError(
                f"a task lost its worker {error.allowed_failures + 1} times ({error.last_worker.address}), most likely "
                "for want of memory: give workers more, or lower --memory; the same command goes on from here"
            ) from error
        except (FutureCancelledError, CommClosedError, NoValidWorkerError, NoWorkerError, TimeoutError) as error:
            raise ClusterError(f"the cluster was lost: {error}; the same command goes on from here") from error


def _refuse_small(config: Clustered) -> None:
    memory = getattr(config, "memory", None)
    if memory is not None and parse_bytes(memory) < WORKER_BYTES:
        raise BudgetError(
            f"memory={memory} a worker < {format_bytes(WORKER_BYTES)} that Python and the libraries take: allow more"
        )


# --- starting ----------------------------------------------------------------------------------------------------


def _client(config: Clustered, stack: ExitStack) -> Any:
    """Start or reach the cluster; what is started is closed with the stack."""
    from distributed import Client

    if isinstance(config, Address):
        return stack.enter_context(_reach(config))
    try:
        cluster = stack.enter_context(_start(config))
        client = stack.enter_context(Client(cluster, timeout=config.wait_seconds, set_as_default=False))
        if isinstance(config, Jobs):
            _queue(cluster, config.wanted)
        workers = getattr(config, "workers", None)
        if isinstance(workers, Adaptive):
            cluster.adapt(minimum=workers.minimum, maximum=workers.maximum)
        elif isinstance(config, Kubernetes | Gateway):
            cluster.scale(workers)
    except ImportError:
        raise
    except Exception as error:
        raise ClusterError(f"the {config.kind} cluster did not start: {_reason(error)}") from error
    return client


@contextmanager
def _reach(config: Address) -> Iterator[Any]:
    from distributed import Client

    # Not the default of this process: a client that is refused for want of a certificate would stay it.
    options = {"timeout": config.wait_seconds, "set_as_default": False}
    try:
        client = Client(config.address, security=_security(config.tls), **options)
    except (OSError, TypeError) as error:  # TypeError: tls:// without any certificate
        hint = "is it running, and is the address right?"
        if config.address.startswith("tcp://"):
            hint += " A scheduler with TLS answers to tls:// only."
        elif "CERTIFICATE" in (reason := _reason(error)).upper() or "ssl" in reason:
            hint = "the certificates of scheduler and client must come from the same CA (tls: in the cluster file)"
        raise ClusterError(f"no Dask scheduler at {config.address}: {_reason(error)}; {hint}") from error
    with client:
        yield client


def _start(config: Clustered) -> Any:
    """The cluster's object, a context manager that stops all it started."""
    match config:
        case Processes():
            return _processes(config)
        case Ssh():
            return _ssh(config)
        case Slurm() | Pbs() | Sge() | Lsf():
            return _jobs(config)
        case Kubernetes():
            return _kubernetes(config)
        case Gateway():
            return _gateway(config)
    raise AssertionError(config)


def _processes(config: Processes) -> Any:
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=config.wanted,
        threads_per_worker=config.threads,
        memory_limit=config.memory,
        host="127.0.0.1",
        dashboard_address=config.dashboard,
        env=config.pinned,
        **_tls_options(config.tls),
    )


def _ssh(config: Ssh) -> Any:
    _need("asyncssh", "ssh", config.kind)
    from distributed import SSHCluster

    connection: dict[str, Any] = {"port": config.port, "username": config.username}
    connection |= {"client_keys": config.key_file, "known_hosts": config.known_hosts}
    return SSHCluster(
        [config.scheduler, *config.hosts],
        connect_options={
            name: str(value) if isinstance(value, Path) else value for name, value in connection.items() if value
        },
        scheduler_options={"interface": config.interface, "port": 0, "dashboard_address": config.dashboard},
        worker_options={
            "interface": config.interface,
            "nthreads": config.threads,
            "memory_limit": parse_bytes(config.memory),
            "env": config.pinned,
        },
        remote_python=config.python,
    )


def _jobs(config: Jobs) -> Any:
    jobqueue = _need("dask_jobqueue", config.kind, config.kind)
    start = {
        "slurm": jobqueue.SLURMCluster,
        "pbs": jobqueue.PBSCluster,
        "sge": jobqueue.SGECluster,
        "lsf": jobqueue.LSFCluster,
    }[config.kind]
    named = {name: getattr(config, name, None) for name in ("account", "project", "resource_spec")}
    config.log_directory.mkdir(parents=True, exist_ok=True)
    return start(
        queue=config.queue,
        walltime=config.walltime,
        cores=config.threads,
        processes=1,
        memory=f"{parse_bytes(config.memory)} B",
        interface=config.interface,
        scheduler_options={"dashboard_address": config.dashboard},
        log_directory=str(config.log_directory.resolve()),
        local_directory=None if config.local_directory is None else str(config.local_directory),
        python=config.python,
        job_extra_directives=config.directives,
        job_script_prologue=[*exports(config.pinned), *config.prologue],
        # Without an address, the page of a worker would listen on all interfaces.
        worker_extra_args=["--no-dashboard"],
        **{name: value for name, value in named.items() if value is not None},
        **_tls_options(config.tls),
    )


def _queue(cluster: Any, count: int) -> None:
    """Hand in jobs and hear at once if the queue refuses them, which ``scale`` would only log."""
    from distributed.core import Status

    for _ in range(count):
        cluster.worker_spec.update(cluster.new_worker_spec())

    async def handed_in() -> None:
        await cluster

    try:
        cluster.sync(handed_in)
    except Exception:
        # Closing the cluster would trip over jobs that never were.
        for name, job in list(cluster.workers.items()):
            if job.status == Status.created:
                job.status = Status.closed
                del cluster.workers[name]
        raise


def _kubernetes(config: Kubernetes) -> Any:
    operator = _need("dask_kubernetes.operator", "kubernetes", config.kind)
    from cehm_dask.manifests import dask_cluster

    manifest = dask_cluster(config, name=f"{config.name}-{uuid.uuid4().hex[:8]}")
    return operator.KubeCluster(custom_cluster_spec=manifest, namespace=config.namespace, quiet=True)


@contextmanager
def _gateway(config: Gateway) -> Iterator[Any]:
    door = _need("dask_gateway", "gateway", config.kind).Gateway(address=config.address, auth=config.auth)
    _DOORS.append(door)
    with door, door.new_cluster(shutdown_on_close=True, **config.options) as cluster:
        _DOORS.append(cluster.gateway)
        yield cluster


def _need(module: str, extra: str, kind: str) -> Any:
    # Importing dask_jobqueue makes Ctrl-C a silent exit with code 0.
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"kind: {kind} needs {module}, not installed here: pip install 'cehm-dask[{extra}]'"
        ) from error
    finally:
        if signal.getsignal(signal.SIGINT) is not interrupt:
            signal.signal(signal.SIGINT, interrupt)


def _security(tls: Tls | None) -> Any:
    from distributed.security import Security

    if tls is None:
        return None
    roles = {
        f"tls_{role}_{part}": str(getattr(tls, part))
        for role in ("client", "scheduler", "worker")
        for part in ("cert", "key")
    }
    return Security(tls_ca_file=str(tls.ca), require_encryption=True, **roles)


def _tls_options(tls: Tls | None) -> dict[str, Any]:
    return {} if tls is None else {"security": _security(tls), "protocol": "tls://"}


def _reason(error: BaseException) -> str:
    """The innermost cause that has words, in one line."""
    words = ""
    cause: BaseException | None = error
    while cause is not None:
        words = " ".join(str(cause).split()) or words
        cause = cause.__cause__
    return words or type(error).__name__


# --- waiting and checking ----------------------------------------------------------------------------------------


def workers_of(client: Any) -> dict[str, Any]:
    """What the scheduler knows of its workers, by address."""
    return dict(client.scheduler_info(n_workers=-1)["workers"])


def _wait(client: Any, config: Clustered) -> None:
    try:
        client.wait_for_workers(config.wanted, timeout=config.wait_seconds)
    except TimeoutError as error:
        where = f"the logs in {config.log_directory} and the queue" if isinstance(config, Jobs) else "their logs"
        raise ClusterError(
            f"waited {config.wait_seconds:g} s (wait_seconds) for {config.wanted} worker(s) of the {config.kind} "
            f"cluster, {len(workers_of(client))} came: see {where}, or ask for fewer"
        ) from error


def check_versions(client: Any) -> None:
    """Refuse workers whose software differs from this process's."""
    found = client.get_versions(packages=["numba", "cehm_dask"])
    here = found["client"]["packages"]
    for address, worker in found["workers"].items():
        for name in MATCHED:
            theirs, ours = worker["packages"].get(name), here[name]
            if name == "python":  # as text in every field; the patch release changes nothing
                theirs, ours = (".".join(version.split(".")[:2]) for version in (theirs, ours))
            if theirs != ours:
                raise ClusterError(
                    f"worker {address} has {name} {theirs or 'not installed'}, this process {ours}: "
                    "install the same versions on both"
                )


def require_access(client: Any, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> None:
    """Refuse a cluster with a worker that does not see an input, or whose output would not be seen here."""
    for address, fault in access_faults(client, reads, writes):
        raise ClusterError(
            f"worker {address} {fault}: keep stores on a file system that all share, or in an object store, and see "
            "that workers have the rights to it"
        )


def access_faults(client: Any, reads: Sequence[str], writes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What keeps workers from the inputs and outputs: (address, words) pairs."""
    reads, writes = [absolute(url) for url in reads], [absolute(url) for url in writes]
    probes = [_probe(url) for url in writes]
    here = [trace(url) for url in reads]
    try:
        for address, answer in client.run(_look, reads, probes, on_error="return").items():
            if isinstance(answer, BaseException):
                yield address, f"does not answer ({_reason(answer)})"
                continue
            found, written = answer
            for url, wanted, (fault, digest) in zip(reads, here, found, strict=True):
                if fault or digest is None:
                    yield address, f"does not see {url} ({fault or 'nothing there'})"
                elif digest != wanted:
                    yield address, f"sees another {url} than this process"
            for url, probe, (fault, _) in zip(writes, probes, written, strict=True):
                if fault:
                    yield address, f"cannot write {url} ({fault})"
                elif read_whole(_mark(probe, address)) is None:
                    yield address, f"writes {url} where this process does not see it"
    finally:
        client.run(_clear, probes, on_error="ignore")


def _probe(url: str) -> str:
    """How the names of small files begin that workers leave at an output to show that they can."""
    token = f".cehm-probe-{uuid.uuid4().hex}-"
    if is_url(url):
        return url.rstrip("/") + token
    folder = Path(url).parent
    while not folder.exists():
        folder = folder.parent
    return str(folder / token)


def _mark(probe: str, worker: str) -> str:
    """The small file of one worker."""
    return probe + re.sub(r"\W+", "-", worker)


def _look(reads: list[str], probes: list[str], dask_worker: Any) -> tuple[list[Any], list[Any]]:
    """On a worker: what it finds at the inputs, and what became of the small files it tried to write."""
    marks = [_mark(probe, dask_worker.address) for probe in probes]
    return [_attempt(trace, url) for url in reads], [_attempt(write_whole, mark, b"") for mark in marks]


def _clear(probes: list[str], dask_worker: Any) -> None:
    for probe in probes:
        _attempt(remove, _mark(probe, dask_worker.address))


def _attempt(act: Any, *args: Any) -> tuple[str, Any]:
    """Words of what went wrong, or what came of it."""
    try:
        return "", act(*args)
    except Exception as error:  # of any file system
        return f"{type(error).__name__}: {error}", None


def survey(client: Any) -> dict[str, Any]:
    """Workers, their size and surroundings, and how fast data travels between them."""
    workers = workers_of(client)
    surroundings = client.run(_surroundings)
    return {
        "scheduler": client.scheduler.address,
        "dashboard": client.dashboard_link or None,
        "workers": [
            {
                "address": address,
                "host": surroundings[address]["host"],
                "threads": worker["nthreads"],
                "memory": worker["memory_limit"],
                "unpinned": surroundings[address]["unpinned"],
            }
            for address, worker in sorted(workers.items())
        ],
        "versions": client.get_versions(packages=["numba", "cehm_dask"])["client"]["packages"],
        "bytes_a_second": _bandwidth(client, sorted(workers)),
    }


def _surroundings() -> dict[str, Any]:
    unpinned = [name for name in PINNED if not os.environ.get(name)]
    return {"host": socket.gethostname(), "unpinned": unpinned}


def _bandwidth(client: Any, workers: list[str]) -> float:
    """Bytes a second from one worker to another, or from here to the only one."""
    import numpy as np

    best = 0.0
    for _ in range(2):  # the first opens the connection
        if len(workers) == 1:
            content = np.random.default_rng(0).bytes(BANDWIDTH_BYTES)
            begin = time.perf_counter()
            client.run(len, content, workers=workers)
        else:
            held = client.submit(os.urandom, BANDWIDTH_BYTES, workers=workers[:1], pure=False)
            client.submit(len, held, workers=workers[:1], pure=False).result()
            begin = time.perf_counter()
            client.submit(len, held, workers=workers[1:2], pure=False).result()
        best = max(best, BANDWIDTH_BYTES / (time.perf_counter() - begin))
    return best
