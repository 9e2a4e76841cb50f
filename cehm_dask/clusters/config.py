"""A file of cluster_configs/, read and checked: which cluster, how many workers, how large.

Below ``cluster``, which acts on it; nothing here starts, reaches or imports anything. A file that makes no sense is
refused with the key, the value and the remedy before a process or a job is started.
"""

import re
import shlex
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    field_validator,
)

from cehm_dask.data.settings import dotted, expand, explained, read_text, read_yaml, unset
from cehm_dask.errors import InputError
from cehm_dask.machine import parse_bytes
from cehm_dask.masking import HIDDEN, masked

PINNED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # glibc keeps freed memory unless this is set before the process starts; Dask would then count it as taken.
    "MALLOC_TRIM_THRESHOLD_": "65536",
}
"""What every worker finds in its environment: one thread of arithmetic per task, freed memory returned."""

SHELL = frozenset({"prologue", "directives"})
"""Keys whose values a shell or a queue reads: ``${VAR}`` in them is theirs."""

NEVER_RUN = ("pbs", "lsf")
"""Queues whose files and job scripts are tested, but in which no job was run yet; SLURM's code runs them all."""

LOOPBACK = "lo"
SKIPPED = ("Adaptive", "[key]")
"""What pydantic names in the place of an error that is no key."""

BLANK = re.compile("<[A-Z][A-Z ]*>")


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    _variables: list[str] = PrivateAttr(default_factory=list)
    """Keys of the file that hold ``${VAR}``."""


class Tls(_Config):
    """Certificate files; paths are relative to the file that names them."""

    ca: Path
    cert: Path
    key: Path


class Adaptive(_Config):
    """As many workers as there is work for, between two bounds."""

    minimum: NonNegativeInt = 1
    maximum: PositiveInt

    @field_validator("maximum")
    @classmethod
    def _ordered(cls, maximum: int, info: Any) -> int:
        if maximum < info.data.get("minimum", 1):
            raise InputError(f"less than minimum={info.data['minimum']}")
        return maximum


class Threads(_Config):
    """Threads of this process; no cluster."""

    kind: Literal["threads"]


class _Reached(_Config):
    """A cluster with a scheduler of its own."""

    wait_seconds: float = Field(120, gt=0)

    @property
    def wanted(self) -> int:
        """Workers to wait for before work starts."""
        raise NotImplementedError


class Address(_Reached):
    """A scheduler that runs already."""

    kind: Literal["address"]
    address: str = Field(pattern=r"^(tcp|tls)://.+:[0-9]+$")
    tls: Tls | None = None
    workers: PositiveInt = 1
    wait_seconds: float = Field(30, gt=0)

    @property
    def wanted(self) -> int:
        return self.workers


class _Sized(_Reached):
    """Workers whose size and surroundings are ours to say."""

    threads: PositiveInt = 1
    memory: str
    environment: dict[Annotated[str, Field(pattern="^[A-Za-z_][A-Za-z0-9_]*$")], str] = {}

    @field_validator("memory")
    @classmethod
    def _bytes(cls, memory: str) -> str:
        parse_bytes(memory)
        return memory

    @property
    def pinned(self) -> dict[str, str]:
        """The environment that workers start in."""
        return {**PINNED, **self.environment}


class _Scaled(_Sized):
    """Workers that come and go."""

    workers: PositiveInt | Adaptive = 2

    @property
    def wanted(self) -> int:
        return self.workers.minimum if isinstance(self.workers, Adaptive) else self.workers


class Processes(_Scaled):
    """Processes of this machine, on loopback."""

    kind: Literal["processes"]
    dashboard: str = "127.0.0.1:0"
    tls: Tls | None = None
    wait_seconds: float = Field(60, gt=0)


class Ssh(_Sized):
    """One worker on every host, started through SSH."""

    kind: Literal["ssh"]
    scheduler: str
    hosts: list[str] = Field(min_length=1)
    interface: str = LOOPBACK
    dashboard: str = "127.0.0.1:0"
    username: str | None = None
    port: PositiveInt = 22
    key_file: Path | None = None
    known_hosts: Path | None = None
    python: str | None = None

    @property
    def wanted(self) -> int:
        return len(self.hosts)


class _Jobs(_Scaled):
    """Every worker a job in a queue."""

    queue: str | None = None
    walltime: str = Field(pattern=r"^[0-9:-]+$")
    interface: str = LOOPBACK
    dashboard: str = "127.0.0.1:0"
    log_directory: Path
    local_directory: Path | None = None
    python: str | None = None
    directives: list[str] = []
    prologue: list[str] = []
    tls: Tls | None = None
    wait_seconds: float = Field(600, gt=0)


class Slurm(_Jobs):
    kind: Literal["slurm"]
    account: str | None = None


class Pbs(_Jobs):
    kind: Literal["pbs"]
    account: str | None = None
    resource_spec: str | None = None


class Sge(_Jobs):
    kind: Literal["sge"]
    project: str | None = None
    resource_spec: str | None = None


class Lsf(_Jobs):
    kind: Literal["lsf"]
    project: str | None = None


class Kubernetes(_Scaled):
    """Pods, made by the dask-kubernetes operator."""

    kind: Literal["kubernetes"]
    image: str
    namespace: str = "default"
    name: str = Field("cehm", pattern=r"^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$")
    volume_claim: str | None = None
    mount: str = Field("/data", pattern="^/")
    secret: str | None = None
    wait_seconds: float = Field(600, gt=0)


class Gateway(_Reached):
    """A cluster that a dask-gateway server starts; what its workers are like is up to the server's options."""

    kind: Literal["gateway"]
    address: str = Field(pattern="^https?://")
    auth: Literal["basic", "kerberos", "jupyterhub"] | None = None
    options: dict[str, Any] = {}
    workers: PositiveInt | Adaptive = 2
    wait_seconds: float = Field(300, gt=0)

    @property
    def wanted(self) -> int:
        return self.workers.minimum if isinstance(self.workers, Adaptive) else self.workers


Jobs = Slurm | Pbs | Sge | Lsf
Clustered = Processes | Ssh | Address | Slurm | Pbs | Sge | Lsf | Kubernetes | Gateway
Config = Threads | Clustered

KINDS: dict[str, type[_Config]] = {
    "threads": Threads,
    "processes": Processes,
    "ssh": Ssh,
    "address": Address,
    "slurm": Slurm,
    "pbs": Pbs,
    "sge": Sge,
    "lsf": Lsf,
    "kubernetes": Kubernetes,
    "gateway": Gateway,
}
_ADAPTER: TypeAdapter[Config] = TypeAdapter(Annotated[Config, Field(discriminator="kind")])


def exports(environment: dict[str, str]) -> list[str]:
    """Lines of a job script that set an environment; secrets come from the environment of the job.

    >>> exports({"OMP_NUM_THREADS": "1", "TITLE": "two words"})
    ['export OMP_NUM_THREADS=1', "export TITLE='two words'"]
    """
    return [f"export {name}={in_shell(value)}" for name, value in environment.items()]


def in_shell(value: str) -> str:
    """A word of a shell script: secrets in it stay ``${VAR}``, and the script ends if that is not set there."""
    told = masked(value)
    if HIDDEN in told and HIDDEN not in value:
        raise InputError(f"{told}: a job script is no place for a password; write ${{VAR}}, and set the variable")
    parts = re.split(r"\$\{(\w+)\}", told) if told != value else [value]
    quoted = [shlex.quote(part) if part else "" for part in parts[::2]]
    named = [f'"${{{name}:?is not set in this job}}"' for name in parts[1::2]]
    return "".join(part for pair in zip_longest(quoted, named, fillvalue="") for part in pair) or "''"


def read_config(spec: str) -> Config:
    """The cluster that a YAML file describes, or that a tcp:// or tls:// address names."""
    if re.match("[a-z]+://", spec):
        if not re.match("(tcp|tls)://.+:[0-9]+$", spec):
            raise InputError(
                f"cluster {spec!r}: expected tcp://HOST:PORT, tls://HOST:PORT or a file of cluster_configs/"
            )
        return Address.model_validate({"kind": "address", "address": spec})
    path = Path(spec)
    if not path.is_file():
        raise InputError(f"cluster {spec!r}: neither a file nor an address such as tcp://127.0.0.1:8786")
    found = read_yaml(read_text(path), f"cluster file {spec}")
    if found.repeated:
        twice = ", ".join(f"{dotted(key)} (line {line})" for key, line in found.repeated)
        raise InputError(f"cluster file {spec}: keys that are there twice: {twice}")
    filled = expand(found.data, leave=SHELL)
    if filled.missing:
        raise InputError(
            "; ".join(f"cluster file {spec}: {dotted(key)}: {unset(name)}" for key, name in filled.missing)
        )
    config = _resolved(_validated(spec, filled.data), path.parent)
    config._variables = [dotted(key) for key in filled.written]
    return config


def _validated(spec: str, written: Any) -> Config:
    if not isinstance(written, dict) or written.get("kind") not in KINDS:
        kind = written.get("kind") if isinstance(written, dict) else None
        found = "no kind" if kind is None else f"kind: {masked(str(kind))}"
        raise InputError(f"cluster file {spec}: {found}; expected one of {', '.join(KINDS)}")
    if blanks := list(_blanks(written)):
        raise InputError(f"cluster file {spec}: fill in {', '.join(f'{key} ({blank})' for key, blank in blanks)}")
    try:
        return _ADAPTER.validate_python(written)
    except ValidationError as error:
        model, inner = KINDS[written["kind"]], {"workers": Adaptive, "tls": Tls}
        complaints = [
            # The first part of a place is the kind.
            explained({**one, "loc": one["loc"][1:]}, lambda key: inner[str(key[0])] if key else model, SKIPPED)
            for one in error.errors()
        ]
        faults = dict.fromkeys(f"{dotted(key)}: {message}" for key, message in complaints)
        raise InputError(f"cluster file {spec}: {'; '.join(faults)}") from None


def _blanks(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Keys whose value is still a blank such as <QUEUE>."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _blanks(part, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _blanks(part, f"{key}[{index}]")
    elif isinstance(value, str) and (blank := BLANK.search(value)):
        yield key, blank[0]


def _resolved(config: Config, folder: Path) -> Config:
    """Certificates and keys found beside the file that names them, wherever the command is started."""

    def beside(path: Path) -> Path:
        return (folder / path.expanduser()).resolve()

    updates: dict[str, Any] = {}
    if (tls := getattr(config, "tls", None)) is not None:
        updates["tls"] = Tls(ca=beside(tls.ca), cert=beside(tls.cert), key=beside(tls.key))
        for name, path in updates["tls"]:
            if not path.is_file():
                raise InputError(f"tls.{name}: no file {path}; 'cehm cluster certs DIR' makes certificates")
    for name in ("key_file", "known_hosts"):
        if (path := getattr(config, name, None)) is not None:
            updates[name] = beside(path)
    return config.model_copy(update=updates)
