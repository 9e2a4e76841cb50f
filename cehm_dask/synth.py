"""Made-up ensembles of any size with a known truth, block by block.

Feeds tests, benchmarks and people who want to try scale before they have the data. Every block of rows has its
own seed, so an ensemble is the same whatever the order, the number of workers or the share of it that is made.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.labels import Codes

BLOCK_ROWS = 1 << 16
"""Rows drawn from one seed."""


@dataclass(frozen=True)
class Synth:
    """A made-up ensemble: each label follows the sample's true class with probability ``follow``, else is random.

    A member with k_j clusters splits the classes among them: cluster v belongs to the class v mod n_classes.
    """

    n_samples: int
    n_members: int = 30
    n_classes: int = 10
    k_min: int = 10
    k_max: int = 50
    follow: float = 0.8
    missing: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_samples", "n_members", "n_classes", "k_min"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.k_max < self.k_min:
            raise ValueError(f"k_max={self.k_max} < k_min={self.k_min}")
        for name in ("follow", "missing"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)}: must lie between 0 and 1")

    @property
    def widths(self) -> tuple[int, ...]:
        """Clusters of each member."""
        rng = np.random.default_rng([self.seed, 0])
        return tuple(rng.integers(self.k_min, self.k_max + 1, self.n_members).tolist())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the codes, with code 0 for "says nothing"."""
        return np.dtype(np.min_scalar_type(self.k_max))

    @property
    def n_blocks(self) -> int:
        return -(-self.n_samples // BLOCK_ROWS)

    def block(self, number: int) -> tuple[Codes, NDArray[np.int16]]:
        """Codes (0 = says nothing, else label + 1) and true classes of one block of rows."""
        rows = min(BLOCK_ROWS, self.n_samples - number * BLOCK_ROWS)
        rng = np.random.default_rng([self.seed, 1, number])
        truth = rng.integers(0, self.n_classes, rows, dtype=np.int16)
        codes = np.empty((rows, self.n_members), self.dtype)
        for j, width in enumerate(self.widths):
            draw = rng.integers(0, 1 << 16, rows, dtype=np.uint16).astype(np.uint32)
            anywhere = (draw * np.uint32(width)) >> np.uint32(16)
            home = truth % min(width, self.n_classes)
            pieces = (width - 1 - home) // self.n_classes + 1
            own = home + self.n_classes * ((draw * pieces.astype(np.uint32)) >> np.uint32(16))
            label = np.where(rng.random(rows, np.float32) < self.follow, own, anywhere) + 1
            if self.missing:
                label[rng.random(rows, np.float32) < self.missing] = 0
            codes[:, j] = label
        return codes, truth

    def arrays(self) -> tuple[Codes, NDArray[np.int16]]:
        """All of it in memory: labels from 0 (nothing missing: the codes less 1) or codes, and the true classes."""
        blocks = [self.block(number) for number in range(self.n_blocks)]
        codes = np.concatenate([block for block, _ in blocks])
        if not self.missing:
            codes -= codes.dtype.type(1)
        return codes, np.concatenate([truth for _, truth in blocks])
