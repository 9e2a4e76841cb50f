"""Imported once by the server that processes are forked from: all that a command would import and compile."""

import importlib
import pkgutil

import distributed  # noqa: F401  for commands with a cluster
import numpy as np

import cehm_dask
from cehm_dask.method import counting, kernels

for _module in pkgutil.walk_packages(cehm_dask.__path__, "cehm_dask."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)

# Kernels only: no library may start threads before the fork.
_codes = np.ones((4, 2), np.uint8)
_offsets = np.array([0, 2], np.uint64)
_weights, _first = kernels.side_by_side([np.ones((4, 2))])
_best, _margin = np.zeros((1, 4), np.int16), np.zeros((1, 4))
_everything = (np.uint64(0), np.int64(0), np.int64(10))
counting.intersections(_codes, _offsets, np.zeros((4, 4), np.int32))
kernels.belonging(_codes, _offsets, _weights, _first, _best, _margin)
kernels.assign(
    _codes, _offsets, _best[0], _margin[0].view(np.uint64), *_everything, _best[0].copy(), np.zeros((4, 2), np.int64)
)
kernels.count(_codes, _offsets, _best[0], np.zeros((4, 2), np.int64))
counting.contingency(_best[0], _best[0], np.zeros((2, 2), np.int64))
kernels.degrees(_codes, _offsets, np.ones((4, 2)), np.zeros((4, 2)))
