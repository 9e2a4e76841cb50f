"""Recipes and label files that nobody would write: taken or refused in a line; ``fit`` and ``import`` see the same.

In processes of their own, so that a crash is a failure and not the end of the tests; none may take long.
"""

import json
import random
import shutil
import signal
import tempfile
import time
import traceback
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.chaos.command import FORKS
from tests.fuzzing import mutated

ROOT = Path(__file__).parent.parent.parent
BATCH = 250
LONGEST_SECONDS = 20
"""For one input, on a machine that does other things too."""


# --- in a process of its own -------------------------------------------------------------------------------------


class HangError(BaseException):
    """An input has taken too long."""


@contextmanager
def in_time():
    def too_long(*_):
        raise HangError

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def recipe(seed, folder):
    """One fuzzed recipe, read and checked by the command."""
    from click.testing import CliRunner

    from cehm_dask import cli
    from cehm_dask.pipeline.recipe import example

    rng = random.Random(f"recipe {seed}")
    seeds = [example(), *(path.read_text() for path in sorted((ROOT / "pipelines").glob("*.yaml")))]
    text = mutated(rng.choice(seeds), rng)
    overrides = [mutated("consensus.k=3", rng)] if rng.random() < 0.2 else []
    path = folder / "r.yaml"
    path.write_text(text, errors="surrogatepass")
    given = [part for override in overrides for part in ("--set", override)]
    variables = {"BUCKET": "b", "DATA": "/data", "X": "1"}
    result = CliRunner().invoke(cli.main, ["recipe", "--check", str(path), *given], env=variables)
    assert result.exit_code in (0, 2), (result.exit_code, result.stderr)
    assert "Traceback" not in result.stderr
    return "refused" if result.exit_code else "taken"


def csv(seed, folder):
    """One fuzzed .csv file, read in blocks of any size; a third reader agrees."""
    from cehm_dask.data import delimited
    from tests.data.test_tables import assert_as_the_csv_module_reads, fuzzed

    delimited.BLOCK_BYTES = random.Random(seed).choice([7, 64, 1 << 19])
    path = folder / "p.csv"
    path.write_bytes(fuzzed(f"csv {seed}"))
    found = alike(path, folder)
    if not isinstance(found, str):
        assert_as_the_csv_module_reads(path.read_bytes(), *found[:2])
    return "refused" if isinstance(found, str) else "taken"


def npy(seed, folder):
    """One .npy file of any dtype and shape, some of its bytes changed."""
    rng = random.Random(f"npy {seed}")
    path = folder / "p.npy"
    np.save(path, _array(rng))
    damage(path, rng)
    # Arrays are told apart from files by both, in sentences and with codes of their own.
    found = alike(path, folder, lambda one: "refused" if isinstance(one, str) else one[:2])
    return "refused" if found == "refused" else "taken"


def parquet(seed, folder):
    """One .parquet file, some of its bytes changed."""
    rng = random.Random(f"parquet {seed}")
    names = ["m0", "m1", "é", " c", "id"][: rng.choice([1, 2, 3, 3, 4, 5])]
    columns = {name: _column(rng, 30) for name in names}
    path = folder / "p.parquet"
    pd.DataFrame(columns).to_parquet(path, index=False)
    damage(path, rng)
    return "refused" if isinstance(alike(path, folder), str) else "taken"


def _array(rng):
    own = np.random.default_rng(rng.randrange(1 << 32))
    shape = rng.choice([*[(20, 3)] * 12, (20,), (0, 3), (20, 0), (2, 3, 4), ()])
    kind = rng.choice([*["i1", "<i4", ">i8", "f4", "f8", "?"] * 3, "u8", "U3", "S2", "c8", "M8[D]"])
    labels = own.integers(-1, 4, shape)
    if kind in ("f4", "f8") and rng.random() < 0.5:
        labels = np.where(own.random(shape) < 0.2, rng.choice([np.nan, np.inf, 0.5, 1e300]), labels)
    with np.errstate(all="ignore"):
        return np.asarray(labels).astype(kind, order=rng.choice("CF"))


def _column(rng, rows):
    choices = [[0, 1, 2], ["a", "b", None], [True, False], [0.0, 1.0, None], [0.5, 1.0], [-1, 5], [b"x", b"y"]]
    kind = rng.choice([*choices[:4] * 8, *choices])
    return [rng.choice(kind) for _ in range(rows)]


def damage(path, rng):
    """Change a few bytes, or none."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice([0, 0, 1, 1, 2, 5])):
        match rng.randrange(3):
            case 0:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            case 1:
                del content[rng.randrange(len(content)) :]
                content += b"\0" * (not content)
            case _:
                at = rng.randrange(len(content))
                content[at:at] = rng.randbytes(rng.randint(1, 8))
    path.write_bytes(content)


def alike(path, folder, compared=lambda one: one):
    """The labels that ``fit`` and ``import`` read, or the sentence with which both refuse."""
    from tests.data.test_tables import by_fit, by_import

    here, there = (
        compared(said(read)) for read in (partial(by_fit, path), partial(by_import, path, folder / "e.zarr"))
    )
    assert here == there, f"fit: {str(here)[:300]}\nimport: {str(there)[:300]}"
    return here


def said(read):
    """What was read, or the sentence of an error that the user can correct; any other is ours."""
    from cehm_dask.errors import INPUT, exit_code_of, sentence_of

    try:
        return read()
    except Exception as error:
        if exit_code_of(error) != INPUT:
            raise
        return sentence_of(error)


KINDS = {"recipe": recipe, "csv": csv, "npy": npy, "parquet": parquet}


def batch(kind, seeds, note):
    """Many inputs; notes what became of each before the next is looked at."""
    import warnings

    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp())
    with open(note, "a", encoding="utf-8") as notes:
        for seed in seeds:
            print(json.dumps([seed, "begun"]), file=notes, flush=True)
            try:
                with in_time():
                    became = KINDS[kind](seed, folder)
            except BaseException:
                became = traceback.format_exc()
            print(json.dumps([seed, became]), file=notes, flush=True)
    shutil.rmtree(folder)


# --- the tests ---------------------------------------------------------------------------------------------------


def fuzz(kind, seeds, tmp_path, counts):
    note = tmp_path / f"{kind}-{time.monotonic_ns()}"
    process = FORKS.Process(target=batch, args=(kind, list(seeds), str(note)))
    process.start()
    process.join(LONGEST_SECONDS * 10 + len(seeds))
    hangs = process.exitcode is None
    if hangs:
        process.kill()
        process.join()
    lines = [json.loads(line) for line in note.read_text().splitlines()]
    assert not hangs, f"{kind}: {lines[-1]} hangs"
    assert process.exitcode == 0, f"{kind}: {lines[-1]} ended the process with {process.exitcode}"
    became = dict(lines)
    wrong = {seed: what for seed, what in became.items() if what not in ("taken", "refused")}
    assert not wrong, f"{len(wrong)} of {len(became)} {kind}: seed {next(iter(wrong))}: {next(iter(wrong.values()))}"
    for what in became.values():
        counts["fuzzed"] += 1
        counts[f"fuzzed: {kind}: {what}"] += 1
    return list(became.values())


@pytest.mark.parametrize("kind", KINDS)
def test_fuzzed__taken_or_refused_in_a_line(kind, tmp_path, counts):
    became = fuzz(kind, range(60), tmp_path, counts)
    assert {"taken", "refused"} == set(became)


@pytest.mark.chaos
@pytest.mark.parametrize(("kind", "count"), [("recipe", 4000), ("csv", 4000), ("npy", 1000), ("parquet", 1000)])
def test_fuzzed__thousands(kind, count, tmp_path, counts, rounds):
    for first in range(1000, 1000 + count * rounds, BATCH):
        fuzz(kind, range(first, first + BATCH), tmp_path, counts)
