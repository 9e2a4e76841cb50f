"""Zarr arrays: created with checksums and names of dimensions, read so that nothing is silently wrong.

The only module that knows Zarr; the stores above hand it names, tables and rows. Zarr reads a chunk that is gone as
fill values, so every chunk is written, also one of zeros, and one that is gone is an error. Each write gives the
digests of the files it wrote, which the store keeps in its attributes; each read compares them, and looks whether the
store is still the one that was opened.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from cehm_dask.data.attributes import ROOT, Held, place_in
from cehm_dask.data.files import entries, exists, is_url, read_whole
from cehm_dask.data.seals import digest_of
from cehm_dask.errors import CehmError, StoreError

Digests = dict[str, str]
"""Of the files of a store, by their path in it."""

EVERY_CHUNK: Any = {"write_empty_chunks": True}
"""So that a missing one is seen."""


def is_store(path: Any) -> bool:
    """Whether a path or URL names a Zarr store, by its ending or its content."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        return False
    return text.rstrip("/").endswith(".zarr") or (not is_url(text) and (Path(text) / ROOT).is_file())


def open_array(url: str, of: str = "base labels") -> Any:
    """A plain Zarr array that somebody else made."""
    try:
        return zarr.open_array(url, mode="r")
    except (FileNotFoundError, zarr.errors.NodeTypeValidationError, ValueError) as error:
        raise StoreError(f"store {url}: expected a Zarr array of {of}: {error}") from error


def open_group(url: str) -> Any:
    """A Zarr group that somebody else made, of any version; None where there is none."""
    try:
        return zarr.open_group(url, mode="r")
    except Exception:  # a dozen kinds; whoever opens it as something else says what is wrong with it
        return None


def _store(url: str, *, read_only: bool) -> Store:
    return FsspecStore.from_url(url, read_only=read_only) if is_url(url) else LocalStore(url, read_only=read_only)


# --- written -------------------------------------------------------------------------------------------------------


class _Recorder(WrapperStore[Store]):
    """Passes on what is written, and keeps its digests."""

    def __init__(self, store: Store, digests: Digests | None = None) -> None:
        super().__init__(store)
        self.digests: Digests = {} if digests is None else digests

    def _with_store(self, store: Store) -> "_Recorder":
        return _Recorder(store, self.digests)

    async def set(self, key: str, value: Buffer) -> None:
        self.digests[key] = digest_of(value.to_bytes())
        await super().set(key, value)


def create(
    url: str,
    name: str,
    shape: tuple[int, ...],
    dtype: Any,
    dimensions: tuple[str, ...],
    *,
    chunks: Any = "auto",
    shards: tuple[int, ...] | None = None,
    fill_value: int = 0,
    compressed: bool = True,
) -> Digests:
    """Create an array in a store, in place of one of that name; to be filled by :func:`write_rows`."""
    recorder = _Recorder(_store(url, read_only=False))
    zarr.create_array(
        recorder,
        name=name,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        shards=shards,
        compressors=[ZstdCodec(), Crc32cCodec()] if compressed else [Crc32cCodec()],
        fill_value=fill_value,
        dimension_names=dimensions,
        overwrite=True,
        config=EVERY_CHUNK,
    )
    return recorder.digests


def write_rows(url: str, name: str, start: int, rows: NDArray[Any], *, recorded: bool = True) -> Digests:
    """Write rows into an array; whole chunks or shards, because Zarr loses data where two tasks write one."""
    store = _store(url, read_only=False)
    recorder = _Recorder(store)
    # Not open_array, which takes no notice of the config.
    opened = zarr.open(recorder if recorded else store, path=name, mode="r+", zarr_format=3, config=EVERY_CHUNK)
    array = cast("zarr.Array[Any]", opened)
    array[start : start + len(rows)] = rows
    return recorder.digests


def write_table(url: str, name: str, table: NDArray[Any], dimensions: tuple[str, ...]) -> Digests:
    """Write a small array whole."""
    digests = create(url, name, table.shape, table.dtype, dimensions)
    return digests | write_rows(url, name, 0, table)


def metadata_digest(url: str, name: str) -> Digests:
    """Of what describes an array, as it is now."""
    return {f"{name}/{ROOT}": digest_of(read_whole(place_in(url, name, ROOT)) or b"")}


# --- read ----------------------------------------------------------------------------------------------------------


class _Checked(WrapperStore[Store]):
    """Passes on what is read, if it is what was written, and of the store that was opened."""

    def __init__(self, store: Store, held: Held, digests: Mapping[str, str]) -> None:
        super().__init__(store)
        self.held, self.digests = held, digests

    def _with_store(self, store: Store) -> "_Checked":
        return _Checked(store, self.held, self.digests)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        value = await super().get(key, prototype, byte_range)
        # Replaced is said before damaged: the digests are those of the store that was opened.
        if is_url(self.held.url):
            await asyncio.to_thread(self.held.glance)
        else:
            self.held.glance()
        if key in self.digests:
            if value is None:
                raise StoreError(f"store {self.held.url}: {key} is missing; restore it or create the store again")
            if byte_range is None and digest_of(value.to_bytes()) != self.digests[key]:
                raise StoreError(
                    f"store {self.held.url}: {key} is damaged: not what was written; "
                    "restore it or create the store again"
                )
        return value


def read_array(held: Held, digests: Mapping[str, str], name: str) -> Any:
    """An array of a store, read when indexed; checked against the digests, where there are any."""
    store = _Checked(_store(held.url, read_only=True), held, digests)
    try:
        return zarr.open_array(store, path=name, mode="r", zarr_format=3)
    except CehmError:
        raise
    except Exception as error:  # a dozen kinds: what Zarr says of metadata that make no sense
        held.glance()
        raise StoreError(
            f"store {held.url}: array {name} is missing or damaged ({error}); create the store again"
        ) from error


def read_table(held: Held, digests: Mapping[str, str], name: str) -> NDArray[Any]:
    """A small array of a store, whole."""
    array = read_array(held, digests, name)
    try:
        return np.asarray(array[...])
    except CehmError:
        raise
    except Exception as error:  # a dozen kinds, from the codecs
        held.glance()
        raise StoreError(f"store {held.url}: array {name} cannot be read ({error}); create the store again") from error


def has_array(url: str, digests: Mapping[str, str], name: str) -> bool:
    """Whether a store has an array of that name."""
    return f"{name}/{ROOT}" in digests or exists(place_in(url, name, ROOT))


def array_names(url: str) -> list[str]:
    """Names of the arrays that a store has."""
    names = (entry.rstrip("/").rsplit("/", 1)[-1] for entry in entries(url))
    return sorted(name for name in names if exists(place_in(url, name, ROOT)))
