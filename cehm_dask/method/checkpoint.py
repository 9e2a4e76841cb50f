"""What a checkpoint holds, checked before a run goes on from it.

Below the consensus. A checkpoint has a digest, so accidents are noticed before; what gets here and does not fit the
labels was edited, or comes from another program, and would be used as indices of compiled loops.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.errors import StoreError
from cehm_dask.method.belonging import BELONGINGS
from cehm_dask.method.intersections import Hyperedges

TABLES = ("counts", "counts_before", "start", "bare")


def check_checkpoint(
    arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], hyperedges: Hyperedges, ks: Sequence[int]
) -> None:
    """Refuse a checkpoint that does not fit the hyperedges or the numbers of clusters of this run."""
    try:
        problems = list(facts["problems"])
        _need(problems, "no problems")
        for number, (k, own) in enumerate(problems):
            _need(k in ks, f"k={k}, which is not asked for")
            named = {name.split("/")[1]: array for name, array in arrays.items() if name.startswith(f"{number}/")}
            _check_tables(named, own, hyperedges, k)
            _check_facts(own, hyperedges, k)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(
            f"the checkpoint does not fit this run ({error}): remove checkpoint.npz, and the run starts over from the "
            "intersections"
        ) from error


def _need(holds: Any, fault: str) -> None:
    if not holds:
        raise ValueError(fault)


def _check_tables(named: Mapping[str, NDArray[Any]], facts: Mapping[str, Any], hyperedges: Hyperedges, k: int) -> None:
    shape = (hyperedges.n_hyperedges, k)
    medoids = named["medoids"]
    _need(medoids.shape == (k,) and medoids.dtype.kind in "iu", f"medoids of shape {medoids.shape} for k={k}")
    _need(medoids.min() >= 0 and medoids.max() < shape[0], f"medoids beyond the {shape[0]} hyperedges")
    for name in TABLES:
        if name not in named and (name == "start" or (name == "bare" and "bare" not in facts)):
            continue
        table = named[name]
        _need(table.shape == shape and table.dtype.kind in "iu", f"{name} of shape {table.shape}, expected {shape}")
        _need(table.min() >= 0, f"{name} below 0")
        _need((table.astype(np.int64).sum(axis=1) <= hyperedges.sizes).all(), f"{name} beyond the size of a hyperedge")


def _check_facts(facts: Mapping[str, Any], hyperedges: Hyperedges, k: int) -> None:
    for name in ("assigned", "moved", "round", "adjusted"):
        _need(type(facts[name]) is int and facts[name] >= 0, f"{name}={facts[name]!r}")
    for name in ("moves", "growth", "losses"):
        _need(all(type(item) in (int, float) for item in facts[name]), f"{name} that are no numbers")
    _need(facts["assigned"] <= hyperedges.n_speaking, f"assigned={facts['assigned']}")
    _need(type(facts["converged"]) is bool, f"converged={facts['converged']!r}")
    _need(facts["belonging"] in BELONGINGS, f"belonging={facts['belonging']!r}")
    rounds = len(facts["growth"]) + len(facts["losses"])
    _need(facts["round"] == rounds == len(facts["moves"]), f"round {facts['round']}, but the history of {rounds}")
    key, last_row = facts["cut"]
    _need(
        type(key) is int and 0 <= key < 2**64 and type(last_row) is int and -1 <= last_row < 2**63, "cut out of range"
    )
    for split in [*facts["splits"], *facts.get("bare", {"splits": []})["splits"]]:
        places = split["hyperedge"], split["cluster"], split["into"]
        _need(all(type(place) is int and place >= 0 for place in places), f"split {split}")
        _need(places[0] < hyperedges.n_hyperedges and max(places[1:]) < k, f"split {split}")
    competition = facts["competition"]
    if competition is not None:
        _need(isinstance(competition["candidates"], list) and "reason" in competition, "candidates without a reason")
        _need(isinstance(competition["stability"], float | None), "stability that is no number")
