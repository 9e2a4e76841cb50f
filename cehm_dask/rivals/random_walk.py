"""Similarity of the vertices of a graph by the random walks that start from them; for ECPCS-MC, PTA and PTGP."""

from typing import Any

import numpy as np
from scipy import sparse

from cehm_dask.rivals.rows import Floats

SPARSE = 0.05
"""Share of transitions below which a sparse product is quicker than a dense one."""


def transitions(weights: Floats) -> Floats:
    """Row-normalised weights; a row of zeros (an isolated vertex) stays so. Changes the table in place."""
    total = weights.sum(axis=1, keepdims=True)
    weights /= np.where(total > 0, total, 1.0)
    return weights


def trajectory_similarity(transition: Floats, steps: int, isolated: float) -> Floats:
    """Cosine similarity of the walks of 1 to ``steps`` steps: R = Σ_t Pᵗ (Pᵗ)ᵀ, divided by √(R_ii R_jj).

    Vertices without any way out get the similarity ``isolated`` to all.
    """
    alone = ~transition.any(axis=1)
    table = _walks(transition, steps)
    scale = np.sqrt(np.where(alone, 1.0, table.diagonal()))
    table /= scale[:, None]
    table /= scale[None, :]
    table[alone] = isolated
    table[:, alone] = isolated
    return table


def _walks(transition: Floats, steps: int) -> Floats:
    """Σ_{t=1..steps} Pᵗ (Pᵗ)ᵀ."""
    if np.count_nonzero(transition) < SPARSE * transition.size:
        step: Any = sparse.csr_array(transition)
        first = (step @ step.T).toarray()
        table = first.copy()
        for _ in range(steps - 1):  # R_t+1 = P Pᵀ + P R_t Pᵀ; R is symmetric, so both products are from the left
            table = step @ np.ascontiguousarray((step @ table).T)
            table += first
        return np.asarray(table)
    first = transition @ transition.T
    table, power = first.copy(), transition.copy()
    for bit in bin(steps)[3:]:  # R_2t = R_t + Pᵗ R_t (Pᵗ)ᵀ: a few products in place of one or two a step
        table += power @ table @ power.T
        power = power @ power
        if bit == "1":
            table = transition @ table @ transition.T + first
            power = power @ transition
    return table
