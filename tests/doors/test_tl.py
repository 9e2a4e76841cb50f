"""``cehm_dask.tl``: a consensus of columns of obs, or of an embedding, written where scanpy's users look for it."""

import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import cehm_dask
from cehm_dask import CEHM, ClusterEnsemble
from cehm_dask.doors.observations import by_size, matching
from cehm_dask.errors import InputError, InputTypeError
from tests.conftest import cehm

anndata = pytest.importorskip("anndata", reason="needs the extra anndata")

CELLS, MEMBERS, TYPES = 300, 8, 4
COLUMNS = ["consensus", "consensus_margin", "consensus_confidence"]


@pytest.fixture
def adata():
    """Cells of four types of unequal size; eight clusterings, each right four times out of five, with some gaps."""
    rng = np.random.default_rng(0)
    types = np.repeat(np.arange(TYPES), [40, 120, 60, 80])
    points = np.eye(TYPES, 5)[types] * 6 + rng.normal(size=(CELLS, 5))
    names = [f"cell{number}" for number in range(CELLS)]
    obs = pd.DataFrame({"n_genes": rng.random(CELLS), "cell_type": pd.Categorical(types.astype(str))}, index=names)
    for member in range(MEMBERS):
        seen = np.where(rng.random(CELLS) < 0.8, types, rng.integers(0, TYPES, CELLS))
        labels = pd.Series(seen, names).map("c{}".format).astype("category")
        labels[rng.random(CELLS) < 0.05] = np.nan
        obs[f"leiden_{member}"] = labels
    obs.loc["cell7", [f"leiden_{member}" for member in range(MEMBERS)]] = np.nan
    return anndata.AnnData(points, obs=obs, obsm={"X_pca": points[:, :4].copy()})


def leiden(adata):
    return adata.obs[[f"leiden_{member}" for member in range(MEMBERS)]]


# --- from columns of obs -----------------------------------------------------------------------------------------


def test_keys__give_the_labels_of_cehm_numbered_by_size(adata):
    assert cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=TYPES) is None
    model = CEHM(TYPES, random_state=0).fit(leiden(adata))
    found, sizes = by_size(model.labels_, model.cluster_sizes_)
    column = adata.obs["consensus"]
    assert list(column.cat.categories) == ["0", "1", "2", "3"]
    np.testing.assert_array_equal(column.cat.codes, found)
    np.testing.assert_array_equal(column.value_counts(sort=False), sizes)
    assert (np.diff(sizes) <= 0).all()
    assert column.isna().tolist() == (adata.obs_names == "cell7").tolist()
    np.testing.assert_array_equal(adata.obs["consensus_margin"], model.margin_)
    np.testing.assert_array_equal(adata.obs["consensus_confidence"], model.confidence_)


def test_uns__says_how_it_came_about(adata):
    cehm_dask.tl.consensus(adata, keys=["leiden_1", "leiden_[2-4]"], n_clusters=[3, 4], key_added="both", tries=2)
    facts = adata.uns["both"]
    assert facts["members"] == ["leiden_1", "leiden_2", "leiden_3", "leiden_4"]
    assert facts["params"]["tries"] == 2
    assert facts["n_clusters"] == 4
    assert facts["sizes"].sum() == adata.obs["both"].notna().sum()
    assert 0 < facts["agreement"] < 1
    assert facts["candidates"]["kept"].sum() == 1
    assert facts["candidates"]["sizes"].shape == (len(facts["candidates"]["kept"]), 4)
    assert "candidates" in facts["reason"]
    assert facts["choice"]


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
@pytest.mark.parametrize("asked", [{"keys": "leiden_*"}, {"use_rep": "X_pca", "members": 5}], ids=["keys", "use_rep"])
@pytest.mark.filterwarnings("ignore:Writing zarr v2 data")
def test_result__survives_a_file(adata, tmp_path, suffix, asked):
    cehm_dask.tl.consensus(adata, n_clusters=TYPES, random_state=3, **asked)
    path = tmp_path / f"atlas.{suffix}"
    getattr(adata, f"write_{suffix}")(path)
    again = getattr(anndata, f"read_{suffix}")(path)
    pd.testing.assert_frame_equal(again.obs[COLUMNS], adata.obs[COLUMNS])
    assert again.uns["consensus"]["reason"] == adata.uns["consensus"]["reason"]
    assert again.uns["consensus"]["params"]["random_state"] == 3
    np.testing.assert_array_equal(again.uns["consensus"]["sizes"], adata.uns["consensus"]["sizes"])


def test_keys__a_second_call_leaves_out_what_the_first_one_wrote(adata):
    for _ in range(2):
        cehm_dask.tl.consensus(adata, keys="*_[0-9]", n_clusters=TYPES, key_added="again_1")
    assert len(adata.uns["again_1"]["members"]) == MEMBERS


def test_copy__leaves_the_given_one_alone(adata):
    changed = cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=TYPES, copy=True)
    assert "consensus" in changed.obs
    assert "consensus" not in adata.obs
    assert "consensus" not in adata.uns


def test_keys__empty_clusters_have_no_category(adata):
    # Two members of two cells each; "released" may end with fewer clusters than asked for.
    obs = pd.DataFrame({"a_1": list("aabb"), "a_2": list("aabb")}, index=list("wxyz"))
    small = anndata.AnnData(obs=obs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cehm_dask.tl.consensus(small, keys="a_*", n_clusters=3, variant="released")
    sizes = small.uns["consensus"]["sizes"]
    assert len(small.obs["consensus"].cat.categories) == np.count_nonzero(sizes)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({}, "give one of the two"),
        ({"keys": "leiden_*", "use_rep": "X_pca"}, "give one of the two"),
        ({"keys": "louvain_*"}, "keys='louvain_\\*': no column of obs is called so; there are n_genes, cell_type"),
        ({"keys": []}, "name at least one column"),
        ({"keys": "consensus"}, "no column of obs is called so"),
        ({"keys": "n_genes"}, "member n_genes: labels are whole numbers"),
        ({"use_rep": "X_umap"}, "use_rep='X_umap': not in obsm, which has X_pca"),
    ],
)
def test_wrong_input__is_named(adata, asked, said):
    with pytest.raises(InputError, match=said):
        cehm_dask.tl.consensus(adata, n_clusters=TYPES, **asked)


def test_other_things__are_refused_with_the_class_for_them():
    with pytest.raises(InputTypeError, match=r"type ndarray: expected an AnnData.*cehm_dask\.CEHM"):
        cehm_dask.tl.consensus(np.zeros((3, 2), int), keys="a", n_clusters=2)


@pytest.mark.parametrize("model", [CEHM(TYPES), ClusterEnsemble(TYPES)], ids=["CEHM", "ClusterEnsemble"])
def test_estimators__say_how_an_anndata_goes_in(adata, model):
    with pytest.raises(InputError, match=r"an AnnData: use cehm_dask\.tl\.consensus\(adata, keys="):
        model.fit(adata)


# --- from an embedding -------------------------------------------------------------------------------------------


def test_use_rep__makes_members_of_the_embedding_without_scaling(adata):
    cehm_dask.tl.consensus(adata, use_rep="X_pca", n_clusters=TYPES, members=6, random_state=1)
    model = ClusterEnsemble(TYPES, members=6, scale="none", random_state=1).fit(adata.obsm["X_pca"])
    np.testing.assert_array_equal(
        adata.obs["consensus"].cat.codes, by_size(model.labels_, np.bincount(model.labels_))[0]
    )
    assert adata.uns["consensus"]["members"] == [f"{number}: kmeans" for number in range(6)]
    assert adata.uns["consensus"]["params"]["use_rep"] == "X_pca"


def same_as_in_memory(adata, other):
    for one in (adata, other):
        cehm_dask.tl.consensus(one, use_rep="X", n_clusters=TYPES, members=4, key_added="made")
        cehm_dask.tl.consensus(one, keys="leiden_*", n_clusters=TYPES)
    for column in ("made", *COLUMNS):
        pd.testing.assert_series_equal(other.obs[column], adata.obs[column])


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_backed__gives_the_same_labels(adata, tmp_path, form):
    adata.X = form(adata.X)
    adata.write_h5ad(tmp_path / "atlas.h5ad")
    backed = anndata.read_h5ad(tmp_path / "atlas.h5ad", backed="r")
    same_as_in_memory(adata, backed)
    backed.file.close()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_dask_backed__gives_the_same_labels(adata, form):
    import dask.array as da

    lazy = adata.copy()
    lazy.X = da.from_array(np.asarray(adata.X), chunks=(70, 5)).map_blocks(form)
    same_as_in_memory(adata, lazy)
    assert hasattr(lazy.X, "dask")


def test_lazy_obs__is_refused_with_the_remedy(adata, tmp_path):
    adata.write_h5ad(tmp_path / "atlas.h5ad")
    lazy = anndata.experimental.read_lazy(tmp_path / "atlas.h5ad")
    with pytest.raises(InputError, match=r"adata\.obs = adata\.obs\.to_memory\(\)"):
        cehm_dask.tl.consensus(lazy, keys="leiden_*", n_clusters=TYPES)
    lazy.obs = lazy.obs.to_memory()
    cehm_dask.tl.consensus(lazy, keys="leiden_*", n_clusters=TYPES)
    cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=TYPES)
    assert lazy.obs["consensus"].tolist() == adata.obs["consensus"].tolist()


# --- the command -------------------------------------------------------------------------------------------------


def stored(adata, path):
    """Write as the ending says; ``.v3.zarr`` in the newer format of Zarr."""
    if path.suffix == ".h5ad":
        adata.write_h5ad(path)
    else:
        with anndata.settings.override(zarr_write_format=3 if ".v3" in path.name else 2):
            adata.write_zarr(path)
    return path


every_file = pytest.mark.parametrize("name", ["atlas.h5ad", "atlas.zarr", "atlas.v3.zarr"])
quiet = pytest.mark.filterwarnings(
    "ignore:Writing zarr v2 data", "ignore:zarr v3 autosharding", "ignore:Consolidated metadata"
)


@every_file
@quiet
def test_command__gives_the_labels_of_python(adata, tmp_path, name):
    path = stored(adata, tmp_path / name)
    out, _ = cehm("consensus", path, "--keys", "leiden_*", "--k", TYPES, "-o", tmp_path / "found.csv")
    cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=TYPES)
    found = pd.read_csv(tmp_path / "found.csv", index_col=0)
    assert found.index.name == "obs_names"
    assert found.index.tolist() == adata.obs_names.tolist()
    np.testing.assert_array_equal(found["label"], adata.obs["consensus"].cat.codes)
    np.testing.assert_allclose(found["margin"], adata.obs["consensus_margin"], rtol=0, atol=1e-15)
    assert f"{adata.uns['consensus']['agreement']:.3f}" in out


@quiet
def test_command__reads_obs_only(adata, tmp_path):
    path = stored(adata, tmp_path / "atlas.zarr")
    for other in ("X", "obsm", "uns", "var", "obs/n_genes"):
        for file in (path / other).rglob("*"):
            if file.is_file():
                file.write_bytes(b"no longer what it was")
    cehm("consensus", path, "--keys", "leiden_*", "--k", TYPES, "-o", tmp_path / "found.npy")
    cehm_dask.tl.consensus(adata, keys="leiden_*", n_clusters=TYPES)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), adata.obs["consensus"].cat.codes)


def test_command__to_a_store_keeps_the_numbers_of_the_method(adata, tmp_path):
    path = stored(adata, tmp_path / "atlas.h5ad")
    cehm("consensus", path, "--keys", "leiden_*", "--k", TYPES, "-o", tmp_path / "consensus.zarr", "--quiet")
    model = CEHM(TYPES, random_state=0).fit(leiden(adata))
    from cehm_dask.data.consensus_store import open_consensus

    np.testing.assert_array_equal(open_consensus(str(tmp_path / "consensus.zarr")).array("labels")[:], model.labels_)


@every_file
@quiet
def test_command__without_keys_lists_the_columns(adata, tmp_path, name):
    _, err = cehm("consensus", stored(adata, tmp_path / name), "--k", TYPES, code=2)
    assert "is an AnnData: say which columns of obs are the members" in err
    assert "n_genes, cell_type, leiden_0" in err


def test_command__keys_need_an_anndata(adata, tmp_path):
    np.save(tmp_path / "labels.npy", np.zeros((4, 2), int))
    cehm("import", tmp_path / "labels.npy", tmp_path / "ensemble.zarr", "--quiet")
    for name in ("labels.npy", "ensemble.zarr"):
        _, err = cehm("consensus", tmp_path / name, "--keys", "leiden_*", "--k", 2, code=2)
        assert "--keys leiden_*:" in err
        assert "is no AnnData" in err


def test_command__broken_files_are_named(tmp_path):
    (tmp_path / "broken.h5ad").write_bytes(b"not HDF5")
    _, err = cehm("consensus", tmp_path / "broken.h5ad", "--keys", "a", "--k", 2, code=2)
    assert "no .h5ad file, or a damaged one" in err
    _, err = cehm("consensus", tmp_path / "gone.h5ad", "--keys", "a", "--k", 2, code=2)
    assert "no such file" in err


# --- small things ------------------------------------------------------------------------------------------------


def test_matching__keeps_the_order_of_the_keys_and_repeats_nothing():
    names = ["a_1", "b", "a_2", "A_3"]
    assert matching(names, ["b", "a_*", "a_1"]) == ["b", "a_1", "a_2"]


def test_import__loads_nothing_heavy():
    code = """if True:
        import sys, cehm_dask
        assert "tl" in dir(cehm_dask)
        heavy = {"numpy", "pandas", "anndata", "h5py", "numba", "dask"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        cehm_dask.tl.consensus
        assert "anndata" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
