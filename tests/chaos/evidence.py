"""All that a run leaves behind, without what may differ between two runs: times, and how the work was shared out."""

import json
import re
from pathlib import Path

import numpy as np
import yaml
import zarr

# Seconds and sweeps are those of the process that finished; a store has a generation of its own, and digests of that.
TIMES = {"seconds", "sweeps", "bytes_read", "memory", "versions", "generation", "digest", "files", "outputs", "stamp"}


def timeless(facts):
    """Plain facts without times."""
    if isinstance(facts, dict):
        return {name: timeless(value) for name, value in facts.items() if name not in TIMES}
    return [timeless(value) for value in facts] if isinstance(facts, list) else facts


def of_store(url):
    """Arrays and facts of a store, whoever wrote it."""
    names = sorted(path.parent.name for path in Path(url).glob("*/zarr.json"))
    arrays = {name: zarr.open_array(str(Path(url) / name), mode="r") for name in names}
    facts = json.loads((Path(url) / "zarr.json").read_text())["attributes"]["cehm"]
    return {name: _content(array[...]) for name, array in arrays.items()}, timeless(facts)


def _content(array):
    array = np.asarray(array)
    return array.dtype.str, array.shape, array.tobytes()


def of_report(path):
    """The words and figures of a page, but for the part on times and the place where it lies."""
    page = re.sub(r"(?:s3:/)?/[^\s<>\"']*/(?=[\w.-]+\.zarr)", "", Path(path).read_text())
    page = re.sub(r'<figure id="fig-seconds">.*?</figure>', "", page, flags=re.DOTALL)
    page = re.sub(r"[\d.,]+ (?:ms|s|min|h) in all, .*? read; memory a process: [^<]*", "", page)
    return re.sub(r"<div><dt>time</dt>.*?</div>", "", page)


def of_run(directory):
    """All of a run directory."""
    directory = Path(directory)
    found = {"names": sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))}
    for path in directory.iterdir():
        if path.suffix == ".zarr":
            found[path.name] = of_store(path)
        elif path.name == "scores.json" or path.name == "run.json":
            found[path.name] = timeless(json.loads(path.read_text()))
        elif path.name == "recipe.yaml":
            found[path.name] = yaml.safe_load(path.read_text())
        elif path.name == "report.html":
            found[path.name] = of_report(path)
        elif path.name in ("labels.csv", "labels.parquet", "profiles.json"):
            found[path.name] = path.read_bytes()
    return found


def differences(found, wanted, place=""):
    """Where two pieces of evidence differ, in a few lines."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        names = sorted({*found, *wanted}, key=str)
        return [
            line
            for name in names
            for line in (
                differences(found[name], wanted[name], f"{place}/{name}")
                if name in found and name in wanted
                else [f"{place}/{name}: only in {'the first' if name in found else 'the second'}"]
            )
        ]
    if isinstance(found, list | tuple) and isinstance(wanted, list | tuple) and len(found) == len(wanted):
        pairs = enumerate(zip(found, wanted, strict=True))
        return [line for i, (one, other) in pairs for line in differences(one, other, f"{place}[{i}]")]
    return [] if found == wanted else [f"{place}: {_short(found, wanted)}"]


def _short(found, wanted):
    if isinstance(found, str | bytes) and isinstance(wanted, type(found)):
        at = next(
            (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
        )
        return f"from {at} on {found[max(0, at - 40) : at + 60]!r}, not {wanted[max(0, at - 40) : at + 60]!r}"
    return f"{str(found)[:120]}, not {str(wanted)[:120]}"
