"""Recipes: what is accepted, and how everything else is refused, by line, key, value and what is allowed."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cehm_dask.masking import masked
from cehm_dask.method.params import VARIANTS, Params
from cehm_dask.pipeline.recipe import RecipeError, example, load, parse
from cehm_dask.pipeline.recipe_model import Recipe

PIPELINES = Path(__file__).parents[2] / "pipelines"
SMALL = """\
features:
  path: data.parquet
consensus:
  k: 3
output: out
"""


def complaints(text, overrides=(), environment=None):
    with pytest.raises(RecipeError) as caught:
        parse(text, overrides, environment or {}, name="r.yaml")
    return str(caught.value).splitlines()


def test_recipe__defaults():
    recipe = parse(SMALL)
    assert recipe.scale == "standard"
    assert recipe.ensemble.members == 30
    assert recipe.ensemble.base == ["kmeans"]
    assert recipe.consensus.k == [3]
    assert (recipe.consensus.restarts, recipe.consensus.variant, recipe.consensus.choose) == (
        1,
        "auto",
        "agreement",
    )
    assert recipe.labels is recipe.truth is recipe.export is recipe.memory is recipe.cluster is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_recipe__knows_every_variant(variant):
    params = parse(SMALL, [f"consensus.variant={variant}", "consensus.tries=3"]).consensus.params(3)
    assert params == Params(3, variant=variant, tries=3)


def test_recipe__candidates_are_no_problems_of_their_own():
    several = ["consensus.restarts=4", "consensus.k=[3, 5]"]
    assert parse(SMALL, several).consensus.problems(100) == [3, 5]
    assert parse(SMALL, [*several, "consensus.variant=cosine"]).consensus.problems(100) == [3] * 4 + [5] * 4


@pytest.mark.parametrize(
    ("k", "wanted"),
    [("10", [10]), ("[5, 8]", [5, 8]), ("2..5", [2, 3, 4, 5]), ("'7'", [7]), ("5,8", [5, 8]), ("auto", "auto")],
)
def test_k__one_a_list_or_a_range(k, wanted):
    assert parse(SMALL.replace("k: 3", f"k: {k}")).consensus.k == wanted


WRONG = {
    "unknown key": ("consensus.restart=3", "unknown key; did you mean 'restarts'?"),
    "unknown key, far from any": ("consensus.zzz=3", "unknown key; expected one of choose, grow_from, k, max_iter"),
    "unknown section": ("ensembel.members=3", "unknown key; did you mean 'ensemble'?"),
    "k": ("consensus.k=5..2", "'5..2' is neither a number (10) nor a list (5,8,10) nor a range (2..15)"),
    "k of nothing": ("consensus.k=[]", "[] is neither a number"),
    "k true": ("consensus.k=true", "True is neither a number"),
    "k fraction": ("consensus.k=2.5", "2.5 is neither a number"),
    "k range": ("consensus.k=1..99999999999", "'1..99999999999': 99,999,999,999 numbers of clusters, expected at most"),
    "k digits": (f"consensus.k={'9' * 5000}", "99 is no int"),
    "memory beyond": ("memory=999999999999999999999GiB", "more than any machine has"),
    "k zero": ("consensus.k=0", "0: must be at least 1"),
    "k beyond": ("consensus.k=40000", "40000: must be at most 32767"),
    "type": ("consensus.restarts=many", "'many': expected a whole number"),
    "fraction": ("ensemble.members=2.5", "2.5: expected a whole number"),
    "boolean for a number": ("ensemble.members=yes", "True: expected a number"),
    "number for a boolean": ("ensemble.bootstrap=7", "7: expected true or false"),
    "least": ("consensus.max_iter=0", "0: must be at least 1"),
    "share": ("ensemble.subspace=1.5", "1.5: must be at most 1"),
    "share of nothing": ("ensemble.subspace=0", "0: must be more than 0"),
    "choice": ("scale=standart", "did you mean 'standard'?"),
    "choice, what is allowed": ("consensus.variant=x", "'x': expected one of 'auto', 'released', 'printed'"),
    "loss of candidates": ("consensus.choose=loss", "losses of candidates cannot be compared; name a variant"),
    "base": ("ensemble.base=[kmeans, kmedoids]", "'kmedoids': expected one of 'kmeans', 'minibatch', 'mixture'"),
    "no base": ("ensemble.base=[]", "[]: expected at least one"),
    "k_max": ("ensemble={k_min: 5, k_max: 3}", "3 < k_min=5"),
    "section that is a value": ("consensus=3", "3: expected keys and values"),
    "path that is a list": ("features.path=[a, b]", "['a', 'b']: expected text"),
    "memory": ("memory=lots", "expected a number with a unit, such as '2GiB'"),
    "memory list": ("memory=[1]", "expected a number with a unit"),
    "both sources": ("labels.path=l.npy", "expected one of 'features' and 'labels', both are there"),
    "path and sklearn": ("features.sklearn=iris", "expected one of 'path' and 'sklearn'"),
    "neither path nor sklearn": ("features.path=null", "expected one of 'path' and 'sklearn'"),
    "set unknown": ("features={sklearn: mnist}", "'mnist': expected one of 'digits', 'iris'"),
    "id without columns": ("features={path: x.npy, id: name}", "only the tables .csv, .tsv"),
    "url of a file": ("truth={path: s3://b/y.npy}", "of URLs, only those ending in .zarr"),
    "truth of nothing": ("truth={}", "expected 'path' or 'column'"),
    "truth column without names": ("truth={path: t.npy, column: c}", "only the tables .csv, .tsv"),
    "braces": ("output=runs/{day}", "'runs/{day}': of braces, only {date} is known"),
    "half a brace": ("output=runs/{date", "of braces, only {date} is known"),
    "no output": ("output=", "expected text"),
    "export": ("export=xlsx", "'xlsx': expected one of 'parquet', 'csv'"),
    "seed": ("consensus.seed=-1", "-1: must be at least 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong__named_with_value_and_what_is_allowed(case):
    override, message = WRONG[case]
    found = complaints(SMALL, [override])
    assert any(message in line for line in found), found
    key = override.partition("=")[0].split(".")[0]
    assert any(key in line.partition(": ")[2] or key in line for line in found)


def test_wrong__every_complaint_at_once_with_its_line():
    text = "features:\n  paht: x.npy\nscale: big\n\nconsensus:\n  restarts: 0\noutput: ${NOWHERE}/x\nmemory: 3 apples\n"
    found = complaints(text)
    places = {line.split(": ")[0] + ": " + line.split(": ")[1] for line in found}
    assert {
        "r.yaml:2: features.paht",
        "r.yaml:1: features",  # neither path nor sklearn
        "r.yaml:3: scale",
        "r.yaml:6: consensus.restarts",
        "r.yaml:5: consensus.k",  # missing: named by the line of its section
        "r.yaml:7: output",
        "r.yaml:8: memory",
    } == places
    assert len(found) == 7


def test_wrong__override_is_named_instead_of_a_line():
    assert complaints(SMALL, ["consensus.k=x"])[0].startswith("--set consensus.k=x: consensus.k: 'x' is neither")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("consensus.k", "expected KEY=VALUE"),
        ("=3", "expected KEY=VALUE"),
        ("consensus..k=3", "expected KEY=VALUE"),
        ("consensus.k=[1", "the value is not YAML"),
        ("output.x=3", "'output' is a value, it has no keys in it"),
    ],
)
def test_override__that_is_none(override, message):
    found = complaints(SMALL, [override])
    assert found[0].startswith(f"--set {override}: ")
    assert message in found[0]


def test_override__the_last_one_counts_and_sections_are_made():
    recipe = parse(SMALL, ["consensus.k=4", "consensus.k=2..3", "truth.path=t.npy", "export=csv", "features.path=2024"])
    assert recipe.consensus.k == [2, 3]
    assert recipe.truth.path == "t.npy"
    assert recipe.features.path == "2024"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("- 1\n", "expected keys such as 'features'"),
        ("a: [\n", "r.yaml:2: not YAML"),
        ("a: b: c\n", "r.yaml:1: not YAML"),
        ("a: &x 1\nb: *x\n", "r.yaml:2: not YAML: aliases (*name) are not allowed"),
        ("a: !!python/object/apply:os.system ['true']\n", "r.yaml:1: not YAML: tag tag:yaml.org,2002:python/object"),
        ("a: !!python/name:os.system x\n", "r.yaml:1: not YAML"),
        ("a: 1\n---\nb: 2\n", "not YAML"),
        ("a: " + "[" * 5000, "not YAML"),
        ("a: \x07\n", "not YAML"),
        ("a: !!binary aGk=\n", "r.yaml:1: not YAML: tag tag:yaml.org,2002:binary is not allowed"),
        ("a: !!timestamp 2026-01-01\n", "r.yaml:1: not YAML: tag tag:yaml.org,2002:timestamp is not allowed"),
        ("a: !!timestamp x\n", "tag tag:yaml.org,2002:timestamp is not allowed"),
        ("a: !!set {x, y}\n", "tag tag:yaml.org,2002:set is not allowed"),
        ("a: !!bool maybe\n", "r.yaml:1: not YAML: 'maybe' is no bool"),
        ("a: !!int ''\n", "r.yaml:1: not YAML: '' is no int"),
        ("a: !own x\n", "tag !own is not allowed"),
        ("? [a, b]\n: c\n", "r.yaml:1: not YAML: expected a name as key"),
        ('a: "x\\0y"\n', "r.yaml:1: not YAML: a null character is not allowed"),
        ("a: " + "x" * 300_000, "300,003 characters, expected at most 262,144: is it a data file?"),
        ("".join(f"int{n}: 1\n" for n in range(20_000)), "r.yaml:1: int0: unknown key"),
        ("int: 1\n", "r.yaml:1: int: unknown key"),
        (SMALL + "output: again\n", "r.yaml:6: output: is there already in line 5"),
    ],
)
def test_text__that_is_no_recipe(text, message):
    assert any(message in line for line in complaints(text))


@given(st.text(max_size=60))
def test_text__of_any_kind_is_a_recipe_error(text):
    with pytest.raises(RecipeError):
        parse(text, environment={})


@given(st.text(max_size=30))
def test_override__of_any_kind_is_taken_or_a_recipe_error(text):
    with suppress(RecipeError):
        assert isinstance(parse(SMALL, [f"features.path={text}"], {}).features.path, str)


def test_file__missing_or_not_text(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"recipe .*none\.yaml: no such file"):
        load(tmp_path / "none.yaml")
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match="not text in UTF-8"):
        load(tmp_path / "odd.yaml")


def test_labels__have_no_scale_and_no_ensemble():
    text = "labels: {path: l.parquet, id: name}\nscale: none\nensemble: {members: 3}\nconsensus: {k: 3}\noutput: out\n"
    found = complaints(text)
    assert [line.split(": ")[1] for line in found] == ["scale", "ensemble"]
    assert "ensemble" not in parse("labels: {path: l.npy}\nconsensus: {k: 3}\noutput: out\n").written()


# --- environment -------------------------------------------------------------------------------------------------


def test_environment__values_defaults_and_types():
    text = SMALL.replace("data.parquet", "${ROOT}/${NAME:-data}.parquet").replace("k: 3", "k: ${K:-2..4}")
    recipe = parse(text, ["consensus.restarts=${R}"], {"ROOT": "/secret/place", "R": "5"})
    assert recipe.features.path == "/secret/place/data.parquet"
    assert (recipe.consensus.k, recipe.consensus.restarts) == ([2, 3, 4], 5)


def test_environment__what_is_written_keeps_the_variable():
    text = SMALL.replace("data.parquet", "${ROOT}/{date}.parquet")
    recipe = parse(text, ["consensus.k=[2, '${K}']"], {"ROOT": "/secret/place", "K": "9"}).on("2026-11-16")
    assert recipe.features.path == "/secret/place/2026-11-16.parquet"
    written = yaml.safe_dump(recipe.written())
    assert "secret" not in written
    again = parse(written, environment={"ROOT": "/other", "K": "9"})
    assert again.features.path == "/other/2026-11-16.parquet"
    assert again.consensus.k == [2, 9]


@pytest.mark.parametrize("environment", [{}, {"ROOT": ""}])
def test_environment__unset_is_named_with_its_key(environment):
    found = complaints(SMALL.replace("data", "${ROOT}/data"), environment=environment)
    assert found == [
        "r.yaml:2: features.path: variable ROOT is not set: set it, or write ${ROOT:-default}",
    ]


def test_environment__its_values_are_not_shown_in_errors():
    found = complaints(SMALL.replace("k: 3", "k: ${K}"), environment={"K": "hunter2hunter2"})
    assert "hunter2" not in "".join(found)
    assert "${K}" in found[0]


def test_environment__masked_texts():
    parse(SMALL, ["output=${A}/${B}"], {"A": "/very", "B": "/very/long"})
    assert masked("in /very/long and /very") == "in ${B} and ${A}"


def test_environment__also_with_its_date_filled_in():
    recipe = parse(SMALL, ["output=${A}"], {"A": "hidden/{date}/x"})
    assert masked(recipe.on("2026-11-16").output) == "${A}"


def test_environment__a_default_is_no_secret():
    recipe = parse(SMALL, ["output=${A:-somewhere}"], {})
    assert masked(recipe.output) == "somewhere"


def test_written__has_no_credentials_of_a_url():
    recipe = parse(SMALL, ["features.path=s3://key:hidden-password@bucket/x.npy"], {})
    assert "hidden" not in yaml.safe_dump(recipe.written())
    assert recipe.features.path == "s3://key:hidden-password@bucket/x.npy"


# --- example, schema, pipelines ----------------------------------------------------------------------------------


def test_example__is_a_recipe_and_names_every_key():
    text = example()
    recipe = parse(text, environment={})
    assert recipe.features.sklearn == "digits"
    sections = [Recipe, *(f.annotation for f in Recipe.model_fields.values() if isinstance(f.annotation, type))]
    for section in sections:
        for key in getattr(section, "model_fields", {}):
            assert f"{key}:" in text, key


def test_written__is_the_same_recipe_again():
    recipe = parse(example(), environment={})
    again = parse(yaml.safe_dump(recipe.written()), environment={})
    assert again.model_dump() == recipe.model_dump()


def test_readme__its_recipe_is_one():
    readme = (PIPELINES.parent / "README.md").read_text()
    text = readme.split("```yaml\n")[1].split("```")[0]
    recipe = parse(text, environment={}).on("2026-11-16")
    assert recipe.output == "runs/2026-11-16"
    assert recipe.features.path == "customers/2026-11-16.parquet"


def test_schema__has_every_key_and_says_what_it_is_for():
    schema = json.loads(json.dumps(Recipe.model_json_schema()))
    assert set(schema["properties"]) == set(Recipe.model_fields)
    k = schema["$defs"]["ConsensusSection"]["properties"]["k"]
    assert {option["type"] for option in k["anyOf"]} == {"integer", "array", "string"}
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("path", sorted(PIPELINES.glob("*.yaml")), ids=lambda path: path.stem)
def test_pipelines__every_recipe_is_valid(path):
    load(path, environment={"BUCKET": "b", "DATA": "/data"})
