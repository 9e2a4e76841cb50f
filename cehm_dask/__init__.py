"""Consensus clustering for data that does not fit in memory: k-HyperEdge Medoids (CEHM) on Dask and Zarr.

The public names; each is imported when first used, so that ``import cehm_dask`` loads nothing heavy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cehm_dask.cluster_ensemble import ClusterEnsemble
    from cehm_dask.doors import tl
    from cehm_dask.estimator import CEHM
    from cehm_dask.method.solution import ConsensusWarning
    from cehm_dask.results.describing import profile

__version__ = "0.1.0"

_HOME = {
    "CEHM": "cehm_dask.estimator",
    "ClusterEnsemble": "cehm_dask.cluster_ensemble",
    "ConsensusWarning": "cehm_dask.method.solution",
    "profile": "cehm_dask.results.describing",
}

__all__ = ["CEHM", "ClusterEnsemble", "ConsensusWarning", "profile", "tl"]


def __getattr__(name: str) -> Any:
    if name == "tl":
        return import_module("cehm_dask.doors.tl")
    if name not in _HOME:
        raise AttributeError(f"module 'cehm_dask' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
