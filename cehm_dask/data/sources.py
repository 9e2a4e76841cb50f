"""Where blocks of codes come from: an array in memory, or chunks that lie here or with workers.

An ensemble.zarr (``ensemble_store``) and a mapped file (``mapped``) are sources too.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.unsignedinteger[Any]]


class Source(Protocol):
    """Where blocks of codes come from; small to send, safe to read from many threads. Read through :class:`Labels`."""

    @property
    def portable(self) -> bool:
        """Whether it can be sent as it is, because the rows lie elsewhere."""
        ...

    @property
    def checked(self) -> bool:
        """Whether it gives no code beyond a member's slots, whatever happens to the data; else blocks are checked."""
        ...

    def read(self, start: int, stop: int) -> Codes:
        """Codes of the rows start to stop, one column per member."""
        ...

    def confirm(self) -> None:
        """An error if the data are not what they were when they were first read."""
        ...


@dataclass(frozen=True, eq=False)
class ArraySource:
    """Codes held in memory."""

    codes: Codes
    checked: bool = True
    """False for an array of the user's, which may change under the run."""
    portable = False

    def read(self, start: int, stop: int) -> Codes:
        return self.codes[start:stop]

    def confirm(self) -> None:
        """Nothing else to look at."""


@dataclass(frozen=True, eq=False)
class ChunkSource:
    """Codes in consecutive chunks: arrays in this process, or futures of arrays that lie with a client's workers."""

    chunks: Sequence[Any]
    edges: tuple[int, ...]
    """First row of every chunk, and the end."""
    remote: bool = False
    portable = False
    checked = True

    def between(self, start: int, stop: int) -> "ChunkSource":
        """The chunks that hold some rows."""
        first, last = bisect_right(self.edges, start) - 1, bisect_left(self.edges, stop)
        return ChunkSource(self.chunks[first:last], self.edges[first : last + 1], self.remote)

    def read(self, start: int, stop: int) -> Codes:
        if self.remote:
            raise RuntimeError("rows of a dask collection stay with the workers")
        own = self.between(start, stop)
        parts = [
            chunk[max(start - first, 0) : stop - first] for chunk, first in zip(own.chunks, own.edges, strict=False)
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def confirm(self) -> None:
        """Whoever made the chunks looks at where they came from."""
