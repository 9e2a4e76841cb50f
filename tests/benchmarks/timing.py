"""Seconds and memory of a piece of work or of a command; shared by the benchmarks."""

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil


def best_of(repeats: int, work: Callable[[], Any]) -> float:
    """Least seconds of several tries: the machine's noise only ever adds."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def watched(command: Sequence[str]) -> tuple[float, int]:
    """Seconds of a command, and the largest resident memory of it and its children together."""
    begin, peak = time.perf_counter(), 0
    process = subprocess.Popen(command)
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak = max(peak, sum(one.memory_info().rss for one in family))
        except psutil.NoSuchProcess:
            pass  # it ended between two looks
        time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - begin, peak
