"""Kubernetes manifests for the dask-kubernetes operator, as plain dictionaries.

Below ``cluster``, which hands a DaskCluster to the operator, and ``submission``, which prints a DaskJob: the driver
as a pod beside the workers, so that nothing depends on the machine that submitted it.
"""

from collections.abc import Sequence
from typing import Any

from cehm_dask.clusters.config import Adaptive, Kubernetes
from cehm_dask.errors import InputError
from cehm_dask.machine import parse_bytes

API = "kubernetes.dask.org/v1"
USER = 1000
"""Whom containers run as; the Dockerfile has the same number."""

FILES_MOUNT = "/cehm"
"""Where the driver finds its recipe and cluster file."""

SCHEDULER_MEMORY = "1Gi"


def dask_cluster(config: Kubernetes, name: str) -> dict[str, Any]:
    """A DaskCluster: one scheduler and the workers of the config."""
    refuse_secrets([key for key in config._variables if key.startswith("environment.")])
    return {
        "apiVersion": API,
        "kind": "DaskCluster",
        "metadata": {"name": name, "namespace": config.namespace},
        "spec": _cluster_spec(config, name),
    }


def dask_job(config: Kubernetes, name: str, files: dict[str, str], command: list[str]) -> list[dict[str, Any]]:
    """A DaskJob that runs a command beside a cluster of its own, and what it needs.

    Parameters
    ----------
    config : Kubernetes
    name : str
        Of the job and its cluster.
    files : dict
        Text of the files that the command finds in FILES_MOUNT, by name.
    command : list of str
    """
    metadata = {"name": name, "namespace": config.namespace}
    driver = _container(config, "driver", command, memory=str(parse_bytes(config.memory)))
    driver["volumeMounts"] = [*driver.get("volumeMounts", []), {"name": "files", "mountPath": FILES_MOUNT}]
    pod = _pod(config, driver)
    # Started again where it lies if it fails or its node is taken away: the run resumes from its checkpoint.
    pod["restartPolicy"] = "OnFailure"
    pod["volumes"] = [*pod.get("volumes", []), {"name": "files", "configMap": {"name": name}}]
    manifests: list[dict[str, Any]] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": files},
        {
            "apiVersion": API,
            "kind": "DaskJob",
            "metadata": metadata,
            "spec": {"job": {"spec": pod}, "cluster": {"spec": _cluster_spec(config, name)}},
        },
    ]
    if isinstance(config.workers, Adaptive):
        bounds = {"minimum": config.workers.minimum, "maximum": config.workers.maximum}
        manifests.append(
            {"apiVersion": API, "kind": "DaskAutoscaler", "metadata": metadata, "spec": {"cluster": name, **bounds}}
        )
    return manifests


def refuse_secrets(keys: Sequence[str]) -> None:
    """An error if keys of a cluster file with ``${VAR}`` would go into a manifest, where others can read them."""
    if keys:
        raise InputError(
            f"cluster file: {', '.join(keys)}: a manifest would show the value of ${{VAR}}; write it out, or put it "
            "into a Secret of Kubernetes and name that with 'secret'"
        )


def scheduler_address(config: Kubernetes, name: str) -> str:
    """Where the scheduler of a cluster listens, for pods."""
    return f"tcp://{name}-scheduler.{config.namespace}.svc.cluster.local:8786"


def _cluster_spec(config: Kubernetes, name: str) -> dict[str, Any]:
    memory = parse_bytes(config.memory)
    worker = [
        *("dask", "worker", "--name", "$(DASK_WORKER_NAME)", "--no-dashboard"),
        *("--nthreads", str(config.threads), "--memory-limit", str(memory)),
    ]
    ports = {"tcp-comm": 8786, "http-dashboard": 8787}
    scheduler = _container(config, "scheduler", ["dask", "scheduler", "--host", "0.0.0.0"], memory=SCHEDULER_MEMORY)
    scheduler["ports"] = [{"name": port, "containerPort": number} for port, number in ports.items()]
    scheduler["readinessProbe"] = {"httpGet": {"port": "http-dashboard", "path": "/health"}, "periodSeconds": 5}
    return {
        "worker": {
            "replicas": config.wanted,
            "spec": _pod(config, _container(config, "worker", worker, memory=str(memory), cores=config.threads)),
        },
        "scheduler": {
            "spec": _pod(config, scheduler),
            # Inside the Kubernetes network only.
            "service": {
                "type": "ClusterIP",
                "selector": {"dask.org/cluster-name": name, "dask.org/component": "scheduler"},
                "ports": [
                    {"name": port, "protocol": "TCP", "port": number, "targetPort": port}
                    for port, number in ports.items()
                ],
            },
        },
    }


def _container(config: Kubernetes, name: str, args: list[str], *, memory: str, cores: int = 1) -> dict[str, Any]:
    size = {"cpu": str(cores), "memory": memory}
    container: dict[str, Any] = {
        "name": name,
        "image": config.image,
        "args": args,
        "env": [{"name": variable, "value": value} for variable, value in config.pinned.items()],
        "resources": {"requests": size, "limits": size},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    if config.secret is not None:
        container["envFrom"] = [{"secretRef": {"name": config.secret}}]
    if config.volume_claim is not None:
        container["volumeMounts"] = [{"name": "data", "mountPath": config.mount}]
    return container


def _pod(config: Kubernetes, container: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = {
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "fsGroup": USER},
        "automountServiceAccountToken": False,
    }
    if config.volume_claim is not None:
        pod["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": config.volume_claim}}]
    return pod
