"""A file of cluster_configs/, or an address, → a Dask client; the only module that starts a cluster or opens a client.

Beside the engine, which hands its sweeps to the client. ``connect`` starts or reaches the cluster, waits for the
workers it was promised, and refuses workers whose software differs from the driver's; when it is left, by whatever
way, nothing that it started runs on and no job is left in a queue. Everything listens on loopback unless the file
says otherwise: anyone who reaches a Dask scheduler without TLS can run code as its user.
"""

import importlib
import logging
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from cehm_dask.clusters.config import (
    NEVER_RUN,
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
from cehm_dask.clusters.workers import check_versions, reason_of, workers_of
from cehm_dask.errors import BudgetError, CehmError, ClusterError, MissingExtraError
from cehm_dask.machine import await_worker, format_bytes, kept_awake, parse_bytes
from cehm_dask.masking import known, mask_process

log = logging.getLogger(__name__)

WORKER_BYTES = 300 << 20
"""What a worker takes before it holds any data, roughly; with less it is killed and started again without end."""

NO_WORKERS_SECONDS = 300
"""How long a run stays without a single worker, before it gives up."""

_DOORS: list[Any] = []
"""Clients of gateways, closed or not: one that is collected after it was closed complains on stderr."""


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
    import distributed  # noqa: F401  its settings are there before they are changed, and so stay when that is undone

    _refuse_small(config)
    settings: dict[str, Any] = {"distributed.scheduler.no-workers-timeout": f"{NO_WORKERS_SECONDS}s"}
    if not isinstance(config, Address | Gateway):
        settings["distributed.nanny.pre-spawn-environ"] = config.pinned
    with dask.config.set(settings), _quiet_library() as quieter, ExitStack() as stack:
        client = _client(config, stack)
        try:
            with told_when_lost(client):
                stack.enter_context(kept_awake(client))
                _wait(client, config)
                check_versions(client)
                if secrets := known():
                    stack.enter_context(_masked_workers(client, secrets))
                yield client
        except ClusterError:
            quieter()
            raise


@contextmanager
def _quiet_library() -> Iterator[Callable[[], None]]:
    """Distributed logs every connection and worker at level INFO, and every call that a lost cluster breaks as ERROR.

    Unless everything is wanted (--verbose), only warnings are shown, and nothing after the call of what is handed out.
    """
    library = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    before, all_wanted = [logger.level for logger in library], logging.getLogger().isEnabledFor(logging.DEBUG)

    def show(*levels: int) -> None:
        for logger, level in zip(library, levels, strict=True):
            logger.setLevel(level)

    if not all_wanted:
        show(logging.WARNING, logging.WARNING)
    try:
        yield lambda: None if all_wanted else show(logging.CRITICAL, logging.CRITICAL)
    finally:
        show(*before)


@contextmanager
def told_when_lost(client: Any) -> Iterator[None]:
    """Say of an error that comes from the loss of a cluster, or of its workers, that it does; no client: no cluster."""
    if client is None:
        yield
        return
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker, NoValidWorkerError, NoWorkerError

    lost = (FutureCancelledError, CommClosedError, NoValidWorkerError, NoWorkerError, TimeoutError, CancelledError)
    try:
        yield
    except CehmError:
        raise
    except KilledWorker as error:
        raise ClusterError(
            f"a task lost its worker {error.allowed_failures + 1} times ({error.last_worker.address}), most likely "
            "because memory ran out: give workers more, or allow the run less; the same command resumes from here"
        ) from error
    except Exception as error:
        # Without a scheduler, other calls fail too, in ways that do not say why: KeyError('workers'), AttributeError.
        if isinstance(error, lost) or client.status != "running":
            why = reason_of(error) if isinstance(error, lost) else "its scheduler does not answer"
            raise ClusterError(f"the cluster was lost ({why}); the same command resumes from here") from error
        raise


@contextmanager
def _masked_workers(client: Any, secrets: dict[str, str]) -> Iterator[None]:
    """Mask secrets in what workers print and log, also of those that join later."""
    from distributed import WorkerPlugin

    class Masked(WorkerPlugin):  # type: ignore[misc]
        name = f"cehm-masked-{uuid.uuid4().hex}"

        def setup(self, worker: Any) -> None:
            mask_process(secrets)

    client.register_plugin(Masked())
    try:
        yield
    finally:
        with suppress(Exception):  # the cluster is lost, and with it the plugin
            client.unregister_worker_plugin(Masked.name)


def _refuse_small(config: Clustered) -> None:
    memory = getattr(config, "memory", None)
    if memory is not None and parse_bytes(memory) < WORKER_BYTES:
        raise BudgetError(
            f"memory={memory} per worker < {format_bytes(WORKER_BYTES)} that Python and the libraries take: allow more"
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
            _queue(cluster, config)
        workers = getattr(config, "workers", None)
        if isinstance(workers, Adaptive):
            cluster.adapt(minimum=workers.minimum, maximum=workers.maximum)
        elif isinstance(config, Kubernetes | Gateway):
            cluster.scale(workers)
    except ImportError:
        raise
    except Exception as error:
        raise ClusterError(f"the {config.kind} cluster did not start: {reason_of(error)}") from error
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
        elif "CERTIFICATE" in (reason := reason_of(error)).upper() or "ssl" in reason:
            hint = "the certificates of scheduler and client must come from the same CA (tls: in the cluster file)"
        raise ClusterError(f"no Dask scheduler at {config.address}: {reason_of(error)}; {hint}") from error
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
    if config.kind in NEVER_RUN:
        log.warning("kind: %s: no job was run in such a queue yet, only its job script is tested", config.kind)
    jobqueue = _need("dask_jobqueue", config.kind, config.kind)
    start = {
        "slurm": jobqueue.SLURMCluster,
        "pbs": jobqueue.PBSCluster,
        "sge": jobqueue.SGECluster,
        "lsf": jobqueue.LSFCluster,
    }[config.kind]
    named = {name: getattr(config, name, None) for name in ("account", "project", "resource_spec")}
    config.log_directory.mkdir(parents=True, exist_ok=True)
    # Grid Engine goes by the shell of the queue, maybe csh, and not by the first line of the script.
    shell = ["-S /bin/bash"] if config.kind == "sge" else []
    return start(
        job_cls=_heard(start.job_cls),
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
        job_extra_directives=[*shell, *config.directives],
        job_script_prologue=[*exports(config.pinned), *config.prologue],
        # Without an address, the page of a worker would listen on all interfaces.
        worker_extra_args=["--no-dashboard"],
        **{name: value for name, value in named.items() if value is not None},
        **_tls_options(config.tls),
    )


def _heard(job: Any) -> Any:
    """A job whose class keeps the queue's answer to each job handed in: None, or the error that Dask would only log."""
    from distributed.core import Status

    class Heard(job):  # type: ignore[misc]
        answers: SimpleQueue[Exception | None] = SimpleQueue()

        async def start(self) -> None:
            try:
                await super().start()
            except Exception as error:
                self.status = Status.running  # for Dask; without a job there is nothing to close
                self.answers.put(error)
            else:
                self.answers.put(None)

        async def close(self) -> None:
            await super().close()
            self.status = Status.closed

    return Heard


def _queue(cluster: Any, config: Jobs) -> None:
    """Submit jobs and report at once if the queue refuses them."""
    cluster.scale(jobs=config.wanted)
    for _ in range(config.wanted):
        try:
            refused = cluster.job_cls.answers.get(timeout=config.wait_seconds)
        except Empty:
            raise TimeoutError(f"the queue did not answer in {config.wait_seconds:g} s (wait_seconds)") from None
        if refused is not None:
            raise refused


def _kubernetes(config: Kubernetes) -> Any:
    operator = _need("dask_kubernetes.operator", "kubernetes", config.kind)
    from cehm_dask.clusters.manifests import dask_cluster

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
        raise MissingExtraError(
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


def _wait(client: Any, config: Clustered) -> None:
    if config.wanted == 0:
        await_worker(client, config.wait_seconds)
        return
    try:
        client.wait_for_workers(config.wanted, timeout=config.wait_seconds)
    except TimeoutError as error:
        where = f"the logs in {config.log_directory} and the queue" if isinstance(config, Jobs) else "their logs"
        raise ClusterError(
            f"waited {config.wait_seconds:g} s (wait_seconds) for {config.wanted} worker(s) of the {config.kind} "
            f"cluster, {len(workers_of(client))} came: see {where}, or ask for fewer"
        ) from error
