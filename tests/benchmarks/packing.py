"""Labels packed for the disk: ``python -m tests.benchmarks.packing --folder FOLDER [--rows 4e7]``.

Reads the same labels as stored now (one byte each), packed into ⌈log₂ k⌉ bits, and behind fast codecs, each from a file
that the page cache was emptied of, decoded, on two threads. One line per form: bytes a label, decoded labels a second
with the cache cold and warm, beside a plain read of the file.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numcodecs import Blosc, Zstd

from cehm_dask.data.synth import Synth
from cehm_dask.method.jit import jit

MEMBERS, CHUNK, THREADS, TURNS = 30, 1 << 16, 2, 3


@jit
def _unpack(words, bits, out):  # type: ignore[no-untyped-def]
    """Labels of ``bits`` bits each, member by member; the words of a member begin at a whole one."""
    rows, first = out.shape[0], 0
    for j in range(out.shape[1]):
        width = np.uint64(bits[j])
        mask = (np.uint64(1) << width) - np.uint64(1)
        a_word = np.uint64(64) // width
        for i in range(rows):
            number = np.uint64(i)
            word = words[first + np.int64(number // a_word)]
            out[i, j] = (word >> (number % a_word * width)) & mask
        first += (rows + np.int64(a_word) - 1) // np.int64(a_word)


def packed(codes: np.ndarray, bits: np.ndarray) -> bytes:
    """As many labels as fit into each word of 64 bits."""
    found = []
    for column, width in zip(codes.T, bits.tolist(), strict=True):
        a_word = 64 // width
        padded = np.zeros(-(-len(column) // a_word) * a_word, np.uint64)
        padded[: len(column)] = column
        shifts = np.arange(a_word, dtype=np.uint64) * np.uint64(width)
        found.append(np.bitwise_or.reduce(padded.reshape(-1, a_word) << shifts, axis=1))
    return np.concatenate(found).tobytes()


def forget(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(path: Path, places: list[tuple[int, int]], decode: Callable[[bytes], object]) -> float:
    """Seconds to read and decode all chunks, in turns by two threads."""

    def share(number: int) -> None:
        with path.open("rb", buffering=0) as file:
            for start, size in places[number * len(places) // THREADS : (number + 1) * len(places) // THREADS]:
                file.seek(start)
                decode(file.read(size))

    begin = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(share, range(THREADS)))
    return time.perf_counter() - begin


def main(folder: Path, rows: int) -> None:
    made = Synth(CHUNK * 8, MEMBERS).arrays()[0]
    widths = made.max(axis=0).astype(np.int64) + 1
    codes = made.astype(np.uint8)
    bits = np.ceil(np.log2(np.maximum(widths, 2))).astype(np.int64)
    chunks = [np.ascontiguousarray(codes[i * CHUNK : (i + 1) * CHUNK]) for i in range(8)]

    def unpacked(data: bytes) -> np.ndarray:
        out = np.empty((CHUNK, MEMBERS), np.uint8)
        _unpack(np.frombuffer(data, np.uint64), bits, out)
        return out

    lz4, zstd = Blosc("lz4", 1, Blosc.BITSHUFFLE), Zstd(1)
    forms: dict[str, tuple[Callable[[np.ndarray], bytes], Callable[[bytes], object]]] = {
        "one byte each": (np.ndarray.tobytes, lambda data: np.frombuffer(data, np.uint8)),
        f"{bits.mean():.1f} bits each": (lambda chunk: packed(chunk, bits), unpacked),
        "blosc-lz4, bits shuffled": (lz4.encode, lz4.decode),
        "zstd": (zstd.encode, zstd.decode),
    }
    np.testing.assert_array_equal(unpacked(packed(chunks[0], bits)), chunks[0])
    for name, (encode, decode) in forms.items():
        parts, path = [bytes(encode(chunk)) for chunk in chunks], folder / "packing-probe.bin"
        places, start = [], 0
        with path.open("wb") as file:
            for number in range(rows // CHUNK):
                part = parts[number % len(parts)]
                file.write(part)
                places.append((start, len(part)))
                start += len(part)
            file.flush()
            os.fsync(file.fileno())
        cold, plain = [], []
        for _ in range(TURNS):
            forget(path)
            plain.append(read(path, places, len))
            forget(path)
            cold.append(read(path, places, decode))
        warm, labels = min(read(path, places, decode) for _ in range(2)), len(places) * CHUNK * MEMBERS
        path.unlink()
        print(
            f"{name}: {start / labels:.2f} bytes a label, file of {start / 1e9:.2f} GB; cold "
            f"{labels / min(cold) / 1e6:.0f} million labels/s, warm {labels / warm / 1e6:.0f}; plain read, cold "
            f"{start / min(plain) / 1e6:.0f} MB/s",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("benchmark-stores"))
    parser.add_argument("--rows", type=float, default=4e7)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    main(options.folder, int(options.rows))
