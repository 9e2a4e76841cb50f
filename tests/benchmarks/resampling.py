"""1,000 subsamples of 80 % for every k: seconds, PAC, areas under the CDF; beside ConsensusClusterPlus if R is here.

``python -m tests.benchmarks.resampling [--set breast_cancer | digits] [--members 1000] [--r 100]``

Members are made for each k as ``cehm generate --k-min K --k-max K --subsample 0.8`` makes them, then co-occurrences are
counted, and each k is clustered, as ``cehm stability`` does. With ``--r``, ConsensusClusterPlus makes so many
subsamples by R's kmeans and counts them; this package then counts the same labels. Seconds are of the clock, with those
of the CPU (all threads) beside.
"""

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits

from cehm_dask.data.features import as_features
from cehm_dask.engine.threads import Threads
from cehm_dask.machine import cores
from cehm_dask.members.fit import plan_members
from cehm_dask.members.generate import label_all, make_labeller
from cehm_dask.results.coassociation import co_association, delta_areas, stability

SCRIPT = Path(__file__).parents[1] / "results" / "consensus_cluster_plus.R"
KS = range(2, 9)
SCALE = {"breast_cancer": "standard", "digits": "none"}


def features_of(name):
    return (load_digits() if name == "digits" else load_breast_cancer()).data


class Watch:
    """Prints the seconds since the last print."""

    def __init__(self):
        self.clock, self.cpu = time.perf_counter(), time.process_time()

    def said(self, what):
        clock, cpu = time.perf_counter(), time.process_time()
        print(f"{what}: {clock - self.clock:.1f} s ({cpu - self.cpu:.1f} s of the CPU)")
        self.clock, self.cpu = clock, cpu


def subsampled(name, members):
    """Base labels, -1 where a row was not drawn: ``members`` columns for every k."""
    features, parts = as_features(features_of(name)), []
    workers = Threads(cores())
    for k in KS:
        plans = plan_members(members, k, k, k, subsample=0.8)
        labeller, _ = make_labeller(features, plans, k, workers, scale=SCALE[name])
        parts.append(label_all(features, labeller, workers).astype(np.int16) - 1)
    workers.close()
    return np.concatenate(parts, axis=1)


def ours(name, members):
    watch = Watch()
    labels = subsampled(name, members)
    watch.said(f"{name}: {labels.shape[1]:,} members of {len(labels):,} rows made")
    tables = [co_association(labels[:, i * members : (i + 1) * members]) for i in range(len(KS))]
    curves = [table.cdf() for table in tables]
    watch.said(f"{len(tables)} consensus matrices counted, with their CDFs")
    found = stability(labels, KS)
    watch.said("counted again, and clustered for each k")
    areas = [table.area() for table in tables]
    lines = {
        "PAC": [table.pac() for table in tables],
        "area under the CDF": areas,
        "delta area": delta_areas(areas),
        "CDF(0.1)": [curve[9] for curve in curves],
        "CDF(0.9)": [curve[89] for curve in curves],
        "smallest cluster consensus": [np.nanmin(one.co.cluster_consensus(one.labels)) for one in found],
    }
    for title, values in lines.items():
        print(f"{title:27}", "  ".join(f"{value:.3f}" for value in values))


def theirs(name, reps):
    """ConsensusClusterPlus on the same features, and this package on the labels that it saw."""
    values = features_of(name)
    if SCALE[name] == "standard":
        values = (values - values.mean(axis=0)) / values.std(axis=0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        np.savetxt(folder / "features.csv", values, delimiter=",")
        done = subprocess.run(
            ["Rscript", SCRIPT, str(reps), str(KS[-1])], cwd=folder, check=True, capture_output=True, text=True
        )
        clock, cpu = map(float, done.stdout.split())
        took = f"{clock:.1f} s ({cpu:.1f} s of the CPU)"
        print(f"ConsensusClusterPlus with R's kmeans, {reps} subsamples of {name} for each k: {took}")
        watch, far, pac = Watch(), 0.0, []
        for k in KS:
            labels = np.loadtxt(folder / f"labels{k}.csv", delimiter=",").astype(int)
            found = co_association(labels)
            far = max(far, abs(found.matrix() - np.loadtxt(folder / f"matrix{k}.csv", delimiter=",")).max())
            pac.append(found.pac())
        watch.said("their labels read and counted here")
        area = [co_association(np.loadtxt(folder / f"labels{k}.csv", delimiter=",").astype(int)).area() for k in KS]
        apart = abs(np.array(area) - pd.read_csv(folder / "areas.csv")["area"]).max()
    print(f"largest difference of the consensus matrices: {far:.1e}, of the areas: {apart:.1e}")
    print(f"{'PAC, both':27}", "  ".join(f"{value:.3f}" for value in pac))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=tuple(SCALE), default="breast_cancer")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--r", type=int, metavar="SUBSAMPLES")
    given = parser.parse_args()
    theirs(given.set, given.r) if given.r else ours(given.set, given.members)
