"""Every golden vector, both variants, every array: the package and the dense reference must reproduce them all."""

from pathlib import Path

import numpy as np
import pytest

from cehm_dask import CEHM
from cehm_dask.data.labels import as_labels
from cehm_dask.engine.budget import make_budget
from cehm_dask.engine.sweep import Engine
from cehm_dask.method.intersections import hyperedges_of, intersections
from cehm_dask.method.params import VARIANTS
from tests import reference

FILES = sorted((Path(__file__).parent.parent / "golden").glob("*.npz"))
STAGE = {"init": "start", "diffuse": "diffusion", "adjust": "adjustion"}

every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
every_variant = pytest.mark.parametrize("variant", ["released", "printed"])


@pytest.fixture
def golden(path):
    with np.load(path) as arrays:
        return dict(arrays)


def expected_trace(golden, variant):
    """The golden steps; the last adjustion round, in which nothing moves, is not in the files but is reported."""
    steps = [STAGE[step] for step in golden[f"{variant}_trace_step"].tolist()] + ["adjustion"]
    trace = golden[f"{variant}_trace"]
    return steps, np.vstack([trace, trace[-1:]])


def assert_same_trace(found, golden, variant):
    steps, assignments = expected_trace(golden, variant)
    silent = (golden["P"] == -1).all(axis=1)
    found = list(found)
    assert [stage for stage, _ in found] == steps
    for (_, assignment), wanted in zip(found, assignments, strict=True):
        np.testing.assert_array_equal(assignment[~silent], wanted)
        assert (assignment[silent] == -1).all()


def test_golden__all_files_are_there():
    assert [path.stem for path in FILES] == ["gaps", "iris", "lbp", "missing", "semeion", "soybean", "ties"]


@every_file
def test_intersections__golden(golden):
    labels = as_labels(golden["P"])
    with Engine(labels, make_budget(labels.shape, [1], allowed=1 << 40)) as engine:
        hyperedges = hyperedges_of(labels, *intersections(engine))
    np.testing.assert_array_equal(hyperedges.intersections, golden["intersections"])
    np.testing.assert_array_equal(hyperedges.sizes, golden["intersections"].diagonal())


@pytest.mark.filterwarnings("ignore::cehm_dask.ConsensusWarning")
@every_variant
@every_file
def test_fit__golden(golden, variant):
    trace = []

    def record(problem, stage, number, assignment):
        assert (problem, number) == (0, len(trace) + 1)
        trace.append((stage, assignment.copy()))

    k, medoids = int(golden["k"]), golden[f"{variant}_medoids"]
    model = CEHM(n_clusters=k, variant=variant, init=medoids).fit(golden["P"], record=record)
    np.testing.assert_array_equal(model.medoids_, np.sort(medoids.astype(int)))
    assert_same_trace(trace, golden, variant)
    np.testing.assert_array_equal(model.labels_, golden[f"{variant}_labels"])
    np.testing.assert_allclose(model.loss_history_, golden[f"{variant}_loss"], rtol=1e-12)
    assert model.n_iter_ == len(trace)
    assert model.n_clusters_found_ == len(set(model.labels_.tolist()) - {-1})
    assert model.n_silent_ == (golden["P"] == -1).all(axis=1).sum()


@every_file
def test_reference_intersections__golden(golden):
    np.testing.assert_array_equal(reference.intersections(golden["P"]), golden["intersections"])


@every_variant
@every_file
def test_reference__golden(golden, variant):
    knobs = VARIANTS[variant]
    medoids = golden[f"{variant}_medoids"].astype(int)
    result = reference.cehm(golden["P"], int(golden["k"]), medoids, knobs["belonging"], knobs["schedule"])
    assert_same_trace(result.trace, golden, variant)
    np.testing.assert_array_equal(result.labels, golden[f"{variant}_labels"])
    np.testing.assert_allclose(result.losses, golden[f"{variant}_loss"], rtol=1e-12)
    assert result.converged
