"""``generate --append`` killed at any step: the ensemble is the old or the new one, and the members come in once."""

import json
import subprocess
import sys
import textwrap

import pytest

# One process that has everything loaded and no threads yet forks a child for every kill and one for every command
# after it, so that a kill is a real one and costs no start of Python.
DRIVER = """
    import json, os, shutil, sys, warnings
    import numpy as np
    from cehm_dask.data import ensemble_writer
    from cehm_dask.members.generate import generate, plan_appended
    from cehm_dask.data.ensemble_store import open_ensemble
    from cehm_dask.data.features import as_features
    from cehm_dask.members.fit import plan_members

    warnings.simplefilter("ignore")
    folder, wanted_steps = sys.argv[1], sys.argv[2]
    ensemble_writer.CHUNK_BYTES = 5 * 64
    features = as_features(np.random.default_rng(0).normal(size=(600, 3)))
    url, note = f"{folder}/e.zarr", f"{folder}/e.zarr.appending"
    steps, last_step = 0, None

    def hook(event, args):
        "Every change of a file or folder is a step; before the last one, the process is gone."
        global steps
        if event == "open":
            changes = isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        else:
            changes = event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
        if changes and last_step is not None and folder in str(args[0]):
            steps += 1
            if steps == last_step:
                os._exit(9)

    sys.addaudithook(hook)

    def draw(first, seed=0):
        return plan_members(3, 3, 6, seed, first=first)

    def in_child(work):
        "What work gives, as JSON, in a process of its own; None if that was killed."
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.close(reader)
            try:
                os.write(writer, json.dumps(work()).encode())
                os._exit(0)
            except BaseException as error:
                os.write(writer, json.dumps(repr(error)).encode())
                os._exit(1)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            said = pipe.read()
        os.wait()
        return json.loads(said) if said else None

    def seeds_of(url):
        ensemble = open_ensemble(url)
        return [member["seed"] for member in ensemble.members], ensemble.read(0, 600).sum(axis=0).tolist()

    def append(seed=0):
        plans = plan_appended(url, lambda first: draw(first, seed))
        generate(features, url, plans, seed, append=True, threads=1)
        return seeds_of(url)

    def killed(step):
        global last_step
        last_step = step
        append()
        return steps

    in_child(lambda: generate(features, f"{folder}/before.zarr", draw(0), 0, threads=1))
    in_child(lambda: generate(features, f"{folder}/after.zarr", draw(0) + draw(3), 0, threads=1))
    old, new = in_child(lambda: seeds_of(f"{folder}/before.zarr")), in_child(lambda: seeds_of(f"{folder}/after.zarr"))

    def start_over():
        for name in os.listdir(folder):
            if name not in ("before.zarr", "after.zarr"):
                path = f"{folder}/{name}"
                shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)
        shutil.copytree(f"{folder}/before.zarr", url)

    start_over()
    total = in_child(lambda: killed(0))
    assert isinstance(total, int), total
    # The store is switched in, and the note of it removed, in the last steps.
    chosen = range(1, total + 1) if wanted_steps == "all" else range(total - 8, total, 2)
    found = {"steps": total, "old": 0, "new": 0, "wrong": []}
    for step in chosen:
        start_over()
        if in_child(lambda: killed(step)) is not None:
            found["wrong"].append(["not killed", step])
        seen = in_child(lambda: seeds_of(url))
        if seen not in (old, new):
            found["wrong"].append(["read after the kill", step, seen])
        found["old" if seen == old else "new"] += 1
        again = in_child(append)
        if again != new or os.path.exists(note):
            found["wrong"].append(["the same command again", step, again])
        if wanted_steps != "all":
            continue
        start_over()
        in_child(lambda: killed(step))
        other = in_child(lambda: append(7))
        wanted = new[0] if seen == new else old[0]
        if not isinstance(other, list) or other[0][: len(wanted)] != wanted or len(other[0]) != len(wanted) + 3:
            found["wrong"].append(["another command", step, other])
    print(json.dumps(found))
"""


@pytest.mark.parametrize("steps", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_append__killed_at_a_step_and_given_again(tmp_path, steps):
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path), steps]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    print(found)
    assert found["wrong"] == []
    assert min(found["old"], found["new"]) > 0
