"""Both stores open in xarray as they are: every array names its dimensions."""

import numpy as np
import pytest
import xarray as xr

from cehm_dask import CEHM
from cehm_dask.data.ingest import ingest


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """An ensemble.zarr of 200 samples and the consensus.zarr of it."""
    folder = tmp_path_factory.mktemp("xarray")
    labels = np.random.default_rng(0).integers(-1, 3, (200, 5))
    ingest(labels, str(folder / "ensemble.zarr"))
    model = CEHM(3, random_state=0).fit(folder / "ensemble.zarr", output=folder / "consensus.zarr")
    return folder, labels, model


def test_ensemble__opens(stores):
    folder, labels, _ = stores
    opened = xr.open_zarr(folder / "ensemble.zarr", consolidated=False)
    assert opened["labels"].dims == ("sample", "member")
    np.testing.assert_array_equal(opened["labels"].astype(int) - 1, labels)
    assert opened.attrs["cehm"]["format"] == "ensemble"


def test_consensus__opens_with_all_of_its_arrays(stores):
    folder, _, model = stores
    opened = xr.open_zarr(folder / "consensus.zarr", consolidated=False).load()
    assert opened["labels"].dims == opened["margin"].dims == opened["confidence"].dims == ("sample",)
    assert opened["labels"].dtype == np.int16  # -1 is a value, not a gap
    np.testing.assert_array_equal(opened["labels"], model.labels_[:])
    np.testing.assert_array_equal(opened["counts"], model.counts_)
    assert opened["counts"].dims == ("hyperedge", "cluster")
    on_disk = {path.name for path in (folder / "consensus.zarr").iterdir() if path.is_dir()}
    assert set(opened.data_vars) == on_disk


def test_plain_call__works_and_says_only_that_metadata_are_not_consolidated(stores):
    with pytest.warns(RuntimeWarning, match="non-consolidated metadata") as said:
        opened = xr.open_zarr(stores[0] / "consensus.zarr")
    assert len(said) == 1
    assert opened.sizes["sample"] == 200
