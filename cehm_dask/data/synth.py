"""Made-up ensembles of any size with a known truth, block by block.

Feeds tests, benchmarks and people who want to try scale before they have the data. Every block of rows has its
own seed, so an ensemble is the same whatever the order, the number of workers or the share of it that is made.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cehm_dask.data.ensemble_writer import create_ensemble, sole_writer
from cehm_dask.data.sources import Codes
from cehm_dask.errors import InputError
from cehm_dask.progress import NO_PROGRESS, Count, Progress

BLOCK_ROWS = 1 << 16
"""Rows drawn from one seed."""
MOST = int(np.iinfo(np.int16).max)
"""Classes, and clusters of a member: they are drawn in 16 bits."""


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
                raise InputError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.k_max < self.k_min:
            raise InputError(f"k_max={self.k_max} < k_min={self.k_min}")
        for name in ("n_classes", "k_max"):
            if getattr(self, name) > MOST:
                raise InputError(f"{name}={getattr(self, name)}: must be at most {MOST}")
        for name in ("follow", "missing"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"{name}={getattr(self, name)}: must lie between 0 and 1")

    @property
    def widths(self) -> tuple[int, ...]:
        """Clusters of each member."""
        rng = np.random.default_rng([self.seed, 0])
        return tuple(rng.integers(self.k_min, self.k_max + 1, self.n_members).tolist())

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the codes, with code 0 for a missing label."""
        return np.dtype(np.min_scalar_type(self.k_max))

    def block(self, number: int) -> tuple[Codes, NDArray[np.int16]]:
        """Codes (0 = missing, else label + 1) and true classes of one block of rows."""
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

    def rows(self, start: int, stop: int) -> tuple[Codes, NDArray[np.int16]]:
        """Codes and true classes of any rows."""
        first = start // BLOCK_ROWS
        blocks = [self.block(number) for number in range(first, -(-stop // BLOCK_ROWS))]
        rows = slice(start - first * BLOCK_ROWS, stop - first * BLOCK_ROWS)
        codes, truth = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
        return codes[rows], truth[rows]

    def arrays(self) -> tuple[Codes, NDArray[np.int16]]:
        """All of it in memory: labels from 0 (nothing missing: the codes less 1) or codes, and the true classes."""
        codes, truth = self.rows(0, self.n_samples)
        if not self.missing:
            codes -= codes.dtype.type(1)
        return codes, truth

    def write(self, url: str, *, overwrite: bool = False, threads: int = 1, progress: Progress = NO_PROGRESS) -> str:
        """Stream it to an ensemble.zarr with the true classes beside the labels; returns the fingerprint."""
        count = Count(progress, "made", self.n_samples)
        member = {"algorithm": "synthetic", "follow": self.follow, "seed": self.seed}
        with sole_writer(url, overwrite=overwrite):
            writer = create_ensemble(
                url,
                self.n_samples,
                [width + 1 for width in self.widths],
                members=[{**member, "k": width} for width in self.widths],
                source=f"synthetic, seed {self.seed}",
                truth=True,
                overwrite=overwrite,
            )

            def write_shard(shard: int) -> tuple[str, list[NDArray[np.int64]], dict[str, str]]:
                codes, truth = self.rows(*writer.rows(shard))
                sizes = [np.bincount(codes[:, j], minlength=width + 1)[1:] for j, width in enumerate(self.widths)]
                digest, of_truth = writer.write(shard, codes), writer.write_truth(shard, truth)
                count.add(len(codes))
                return digest, sizes, of_truth

            with ThreadPoolExecutor(threads) as pool:
                written = list(pool.map(write_shard, range(writer.n_shards)))
            digests, own_sizes, of_truth = zip(*written, strict=True)
            sizes = [np.sum(parts, axis=0) for parts in zip(*own_sizes, strict=True)]
            return writer.finish(digests, sizes, {key: own[key] for own in of_truth for key in own})
