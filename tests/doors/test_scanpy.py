"""Leiden clusterings of the cells inside the scanpy wheel, through ``cehm_dask.tl`` and through the command.

``pytest -m scanpy`` makes a virtual environment with scanpy, or takes the one whose ``python`` CEHM_SCANPY_PYTHON
names.
"""

import json
import subprocess

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import normalized_mutual_info_score as nmi

import cehm_dask
from cehm_dask.rivals import METHODS
from tests.conftest import cehm
from tests.pipeline.test_schedulers import environment_of

anndata = pytest.importorskip("anndata", reason="needs the extra anndata")
pytestmark = pytest.mark.scanpy

LEIDEN = """
import sys
import scanpy as sc

adata = sc.datasets.pbmc68k_reduced()
for resolution in (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0):
    for seed in range(2):
        sc.tl.leiden(
            adata,
            resolution=resolution,
            random_state=seed,
            key_added=f"leiden_{resolution}_{seed}",
            flavor="igraph",
            n_iterations=2,
            directed=False,
        )
adata.write_h5ad(sys.argv[1])
"""


@pytest.fixture(scope="module")
def atlas(tmp_path_factory):
    path = tmp_path_factory.mktemp("scanpy") / "atlas.h5ad"
    python = environment_of("scanpy", "scanpy[leiden]>=1.11")
    subprocess.run([python, "-c", LEIDEN, path], check=True, timeout=600)
    return path


def test_leiden__command_and_python_give_the_same_labels(atlas, tmp_path):
    adata = anndata.read_h5ad(atlas)
    cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=10)
    cehm("consensus", atlas, "--keys", "leiden_*", "--k", 10, "-o", tmp_path / "found.csv")
    found = pd.read_csv(tmp_path / "found.csv", index_col=0)
    assert found.index.tolist() == adata.obs_names.tolist()
    np.testing.assert_array_equal(found["label"], adata.obs["consensus"].cat.codes)
    adata.write_h5ad(tmp_path / "result.h5ad")
    assert len(adata.uns["consensus"]["members"]) == 24


def test_leiden__scores_beside_the_rivals(atlas):
    """``-s`` prints the figures of docs/anndata.md."""
    adata = anndata.read_h5ad(atlas)
    known, members = adata.obs["bulk_labels"], adata.obs.filter(like="leiden_")
    each = [nmi(known, members[name]) for name in members]
    for k in (7, 10, 12):
        cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=k)
        found = {name: nmi(known, METHODS[name](members, k)) for name in ("usenc", "wct")}
        found["consensus"] = nmi(known, adata.obs["consensus"])
        print(json.dumps({"k": k, **found, "agreement": adata.uns["consensus"]["agreement"]}))
        assert found["consensus"] > max(found["usenc"], found["wct"]) - 0.01
        if k == 10:
            assert found["consensus"] > np.mean(each)
    clusters = members.nunique()
    print(
        json.dumps({"members": [clusters.min(), clusters.max()], "mean": np.mean(each), "best": max(each)}, default=int)
    )
    cehm_dask.tl.consensus(adata, use_rep="X_pca", n_clusters=10, key_added="embedded")
    print(json.dumps({"use_rep": nmi(known, adata.obs["embedded"])}))
