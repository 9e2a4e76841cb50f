"""What tests of a queue share: a small ensemble, the labels it should give, and a folder to work in."""

import pytest

from cehm_dask import CEHM
from cehm_dask.data.synth import Synth


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    url = str(tmp_path_factory.mktemp("few") / "ensemble.zarr")
    Synth(20_000, 10, n_classes=5, k_min=6, k_max=12).write(url)
    return url


@pytest.fixture(scope="module")
def wanted(ensemble):
    return CEHM(5, random_state=0).fit(ensemble).labels_


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path
