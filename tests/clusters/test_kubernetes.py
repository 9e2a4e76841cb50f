"""Manifests as the dask-kubernetes operator defines them, with everything it does not define forbidden.

No cluster is reached here: that pods start is not shown.
"""

import importlib.util
from pathlib import Path

import pytest
import yaml

from cehm_dask.clusters.config import read_config
from cehm_dask.clusters.manifests import dask_cluster
from tests.clusters.test_connect import config_file
from tests.conftest import cehm

pytestmark = pytest.mark.kubernetes

PLAIN = {"kind": "kubernetes", "image": "registry.example/cehm:1", "memory": "2GiB", "namespace": "science"}
FULL = {
    **PLAIN,
    "workers": {"minimum": 1, "maximum": 8},
    "threads": 2,
    "volume_claim": "claim",
    "mount": "/data",
    "secret": "keys",
    "environment": {"AWS_REGION": "eu-central-1"},
}


def forbid_unknown(schema):
    """The schema with every object closed that lists what it holds."""
    if isinstance(schema, list):
        return [forbid_unknown(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: forbid_unknown(part) for key, part in schema.items()}
    if isinstance(closed.get("properties"), dict) and closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.fixture(scope="module")
def schemas():
    """What the operator's definitions say of each kind."""
    spec = importlib.util.find_spec("dask_kubernetes")
    pytest.importorskip("jsonschema")
    if spec is None:
        pytest.skip("the extra kubernetes is not installed")
    found = {}
    for path in Path(spec.origin).parent.glob("operator/deployment/helm/*/crds/*.yaml"):
        for definition in yaml.safe_load_all(path.read_text()):
            schema = forbid_unknown(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
            # Said of every object by Kubernetes itself, not by the definitions.
            schema["properties"] |= {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {}}
            found[definition["spec"]["names"]["kind"]] = schema
    assert {"DaskCluster", "DaskJob", "DaskAutoscaler"} <= set(found)
    return found


def validate(manifest, schemas):
    from jsonschema import Draft202012Validator

    assert manifest["apiVersion"] == "kubernetes.dask.org/v1"
    return [error.message for error in Draft202012Validator(schemas[manifest["kind"]]).iter_errors(manifest)]


@pytest.mark.parametrize("keys", [PLAIN, FULL], ids=["plain", "full"])
def test_cluster__is_what_the_operator_defines(tmp_path, schemas, keys):
    config = read_config(config_file(tmp_path, **keys))
    manifest = dask_cluster(config, "cehm-1")
    assert validate(manifest, schemas) == []
    [worker] = manifest["spec"]["worker"]["spec"]["containers"]
    assert {"name": "OMP_NUM_THREADS", "value": "1"} in worker["env"]
    assert worker["resources"]["limits"]["memory"] == str(2 << 30)


@pytest.mark.parametrize("keys", [PLAIN, FULL], ids=["plain", "full"])
def test_submit__prints_what_the_operator_defines(tmp_path, schemas, keys):
    recipe = tmp_path / "recipe.yaml"
    content = {"labels": {"path": "s3://b/e.zarr"}, "consensus": {"k": 5}, "output": "s3://b/Runs_{date}"}
    recipe.write_text(yaml.safe_dump(content))
    spec = config_file(tmp_path, **keys)
    out, _ = cehm("submit", recipe, "--cluster", spec, "--date", "2026-11-16")
    files, *manifests = yaml.safe_load_all(out)
    assert [manifest["kind"] for manifest in manifests] == ["DaskJob", "DaskAutoscaler"][: len(manifests)]
    assert len(manifests) == (2 if keys is FULL else 1)
    for manifest in manifests:
        assert validate(manifest, schemas) == []
        assert manifest["metadata"] == {"name": "cehm-runs-2026-11-16", "namespace": "science"}
    # The driver finds its recipe and the way to the scheduler that the operator makes for the job.
    assert yaml.safe_load(files["data"]["recipe.yaml"])["output"] == "s3://b/Runs_2026-11-16"
    (tmp_path / "reached.yaml").write_text(files["data"]["cluster.yaml"])
    reached = read_config(str(tmp_path / "reached.yaml"))
    assert reached.address == "tcp://cehm-runs-2026-11-16-scheduler.science.svc.cluster.local:8786"
    [driver] = manifests[0]["spec"]["job"]["spec"]["containers"]
    assert driver["args"] == ["cehm", "run", "/cehm/recipe.yaml", "--cluster", "/cehm/cluster.yaml", "--quiet"]


def test_typo__is_seen(tmp_path, schemas):
    manifest = dask_cluster(read_config(config_file(tmp_path, **PLAIN)), "cehm-1")
    manifest["spec"]["worker"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    [message] = validate(manifest, schemas)
    assert "imagePullPolice" in message


def test_submit__an_output_that_would_die_with_its_pod(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"labels": {"path": "/data/e.zarr"}, "consensus": {"k": 5}, "output": "runs/1"}))
    _, err = cehm("submit", recipe, "--cluster", config_file(tmp_path, **FULL), code=2)
    assert "output runs/1: a pod keeps only what is in an object store or below /data" in err
