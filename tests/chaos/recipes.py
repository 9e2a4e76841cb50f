"""Five recipes that go different ways, small enough to be run hundreds of times."""

import numpy as np
import pandas as pd

from tests.chaos.command import cehm

RECIPES = {
    "members made, restarts, classes, csv": """\
features: {path: flowers.csv, id: flower}
ensemble: {members: 5, k_max: 8}
consensus: {k: 3, variant: released, restarts: 2}
truth: {column: species}
output: out
export: csv
""",
    "k chosen, parquet": """\
labels: {path: labels.npy}
consensus: {k: auto}
output: out
export: parquet
""",
    "several k": """\
labels: {path: labels.csv}
consensus: {k: 2..4, variant: cosine, restarts: 2}
output: out
export: csv
""",
    "printed, stopped short, a store brought along": """\
labels: {path: brought.zarr}
consensus: {k: 5, variant: printed, max_iter: 1}
output: out
""",
    "clusters that have to be repaired": """\
labels: {path: few.parquet}
consensus: {k: 9, variant: tau}
output: out
export: csv
""",
}
"""By what is particular about them. The command is ``cehm run recipe.yaml``."""


def noisy_labels(seed, n=240, members=6, k=4, right=0.6, missing=0.03):
    """Base labels of clusters that members see dimly."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(k, size=n)
    labels = np.where(rng.random((n, members)) < right, truth[:, None], rng.integers(k + 2, size=(n, members)))
    labels[rng.random(labels.shape) < missing] = -1
    return labels


def lay_out(folder, name):
    """Write a recipe and all that it reads."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=150)
    features = pd.DataFrame(rng.normal(size=(150, 3)) + 2.5 * truth[:, None], columns=["a", "b", "c"])
    features.insert(0, "flower", [f"{number:03}" for number in range(150)])
    features.assign(species=[f"kind {number}" for number in truth]).to_csv(folder / "flowers.csv", index=False)
    labels = noisy_labels(1)
    np.save(folder / "labels.npy", labels)
    pd.DataFrame(labels, columns=[f"m{j}" for j in range(labels.shape[1])]).to_csv(folder / "labels.csv", index=False)
    few = pd.DataFrame(noisy_labels(2, 90, 4, 3), columns=list("wxyz"))
    few.to_parquet(folder / "few.parquet", index=False)
    (folder / "recipe.yaml").write_text(RECIPES[name])
    if "brought.zarr" in RECIPES[name]:
        made = cehm("import", "labels.npy", "brought.zarr", folder=folder)
        assert made.code == 0, made.err
