"""The picture of the documentation: how the consensus of thirty k-means runs grows on two-dimensional data.

``python pipelines/picture.py`` writes docs/images/picture.png; needs matplotlib.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs

from cehm_dask import CEHM

UNASSIGNED = "#c8c8c8"


def main() -> None:
    points, _ = make_blobs(
        3000,
        centers=[(0, 0), (4, 0.5), (1.5, 3.5), (6, 4), (-3, 3)],
        cluster_std=[0.9, 1.3, 0.7, 1.0, 0.8],
        random_state=4,
    )
    rng = np.random.default_rng(0)
    members = [
        KMeans(int(k), n_init=1, init="random", random_state=seed).fit_predict(points)
        for seed, k in enumerate(rng.integers(5, 40, 30))
    ]
    steps: list[tuple[str, np.ndarray]] = []
    model = CEHM(5, variant="released", random_state=0)  # the paper's way, with diffusion
    model.fit(
        np.stack(members, axis=1), record=lambda _restart, stage, _round, seen: steps.append((stage, seen.copy()))
    )
    growing = [seen for stage, seen in steps if stage == "diffusion"]
    panels = [
        ("one of the 30 members", members[3], None),
        ("start: medoids, overlaps dropped", steps[0][1], None),
        ("diffusion, halfway", growing[len(growing) // 2 - 1], None),
        ("consensus, faint = uncertain", model.labels_, model.margin_),
    ]
    colours = plt.get_cmap("tab10")
    figure, axes = plt.subplots(1, 4, figsize=(14, 2.9), layout="constrained")
    for axis, (title, labels, margin) in zip(axes, panels, strict=True):
        known = labels >= 0
        axis.scatter(*points[~known].T, s=4, color=UNASSIGNED, linewidths=0)
        if title.startswith("one"):
            axis.scatter(*points.T, s=4, c=labels, cmap="tab20", linewidths=0)
        else:
            alpha = None if margin is None else 0.12 + 0.88 * margin[known]
            axis.scatter(*points[known].T, s=4, color=colours(labels[known] % 10), alpha=alpha, linewidths=0)
        axis.set_title(title, fontsize=11)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_aspect("equal")
        axis.spines[:].set_color("#dddddd")
    figure.savefig(Path(__file__).parents[1] / "docs" / "images" / "picture.png", dpi=110)


if __name__ == "__main__":
    main()
