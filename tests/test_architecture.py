"""The house rule, read from the imports: they go down only, stages never meet, heavy libraries have one home."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "cehm_dask"

# Low to high; a module may import only from lines above its own. A new module needs a place here.
LAYERS = [
    {"errors"},
    {"masking"},
    {"kernels", "plan", "machine", "files", "seals", "bounds", "mapped", "columns", "delimited", "settings"},
    {"locks", "tables", "kmeans", "shards"},
    {"replacement"},
    {"attributes", "encoding"},
    {"arrays"},
    {"ensemble_store", "consensus_store", "model_store", "cluster_config", "certificates"},
    {"ensemble_writer", "labels", "features", "manifests", "workers"},
    {"engine", "ingest", "synth", "cluster", "verification", "members"},
    {"base_labels", "intersections", "outputs"},
    {"confidence"},
    {"medoids", "evaluation", "rounds", "belonging", "points", "spectral", "borders"},
    {"split", "result"},
    {"problem", "portfolio", "checkpoint"},
    {"start", "diffusion", "adjustion", "choice", "survey", "trail"},
    {"consensus"},
    {"job"},
    {"rivals.rows"},
    {"rivals.lloyd", "rivals.transfer_cut", "rivals.random_walk", "rivals.pairs", "rivals.metis", "rivals.tree"},
    {"rivals.link", "rivals.microclusters"},
    {"rivals.usenc", "rivals.lwgp", "rivals.hbgf", "rivals.ecpcs_mc", "rivals.voting", "rivals.sec"},
    {"rivals.wct", "rivals.wtq"},
    {"rivals.pta", "rivals.ptgp", "rivals.drec", "rivals.ec_cms", "rivals.eac", "rivals.cspa", "rivals.mcla"},
    {"rivals"},
    {"estimator", "export", "recipe_model", "scoring"},
    {"recipe"},
    {"cluster_ensemble", "report.drawing", "pools"},
    {"compare"},
    {"prediction", "reproduce"},
    {"paper_figures"},
    {"report.figures", "report.findings", "report.picture"},
    {"report.page"},
    {"report", "report.browser"},
    {"report.comparison"},
    {"inputs", "directory"},
    {"run"},
    {"outlook", "submission"},
    {"display"},
    {"cli.explain"},
    {
        "cli.data",
        "cli.consensus",
        "cli.evaluate",
        "cli.report",
        "cli.reproduce",
        "cli.cluster",
        "cli.run",
        "cli.compare",
        "cli.verify",
    },
    {"cli"},
    {"__main__"},
]
STAGES = {"start", "diffusion", "adjustion"}

# Library: the modules that may import it.
HOMES = {
    "numba": {"kernels"},
    "zarr": {"arrays"},
    "distributed": {"engine", "cluster"},
    "cryptography": {"certificates"},
    "dask_ml": {"members", "report.picture"},
    "matplotlib": {"paper_figures"},
    "pymetis": {"rivals.metis"},
    "scikit_posthocs": {"compare"},
}

# Names that say where code was put, not what it is for.
NO_NAMES = {"utils", "common", "helpers", "base", "util", "misc"}

# The public names in __init__ are a door for users; inside, a module is imported by its own name.
FREE_NAMES = {"__version__"}


def module_name(path):
    """``cli.data`` for cli/data.py, ``cli`` for cli/__init__.py."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
INNER = {name: path for name, path in MODULES.items() if name != "__init__"}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

every_module = pytest.mark.parametrize("module", INNER)


def imports(source):
    """All that a source imports, wherever it stands: (library or "cehm_dask", name inside it) pairs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                library, _, rest = alias.name.partition(".")
                yield library, rest
        elif isinstance(node, ast.ImportFrom):
            origin = ("cehm_dask." + (node.module or "") if node.level else node.module or "").rstrip(".")
            library, _, rest = origin.partition(".")
            for alias in node.names:
                inside = f"{rest}.{alias.name}" if rest else alias.name
                yield library, inside if inside in MODULES or not rest else rest


def inner_imports(source):
    """Modules of the package that a source imports."""
    return {name for library, name in imports(source) if library == "cehm_dask" and name not in FREE_NAMES}


def libraries(source):
    return {library for library, _ in imports(source)}


def breaches(module, source):
    """What in a module's imports breaks the rule."""
    found = []
    for other in sorted(inner_imports(source)):
        if other not in LEVEL:
            found.append(f"{module} imports {other or 'the package'}, which is no module with a layer")
        elif LEVEL[other] >= LEVEL[module]:
            found.append(f"{module} imports {other}, which is not below it")
        if module in STAGES and other in STAGES:
            found.append(f"stage {module} imports stage {other}")
    found += [
        f"{module} imports {library}, which only {', '.join(sorted(homes))} may"
        for library, homes in HOMES.items()
        if library in libraries(source) and module not in homes
    ]
    return found


@every_module
def test_module__has_a_layer(module):
    assert module in LEVEL, f"{module} is new: give it a line in LAYERS"


def test_layers__name_no_module_twice_and_none_that_is_gone():
    assert sum(map(len, LAYERS)) == len(LEVEL)
    assert set(LEVEL) == set(INNER) & set(LEVEL), f"no such module: {sorted(set(LEVEL) - set(INNER))}"


@every_module
def test_imports__go_down_only_and_libraries_stay_at_home(module):
    assert breaches(module, INNER[module].read_text()) == []


def test_homes__are_lived_in():
    # Should a library's only home stop importing it, the rule about it would hold for nothing.
    for library, homes in HOMES.items():
        assert any(library in libraries(INNER[home].read_text()) for home in homes)


@every_module
def test_module__is_named_for_what_it_does(module):
    assert not NO_NAMES & set(module.split("."))


@pytest.mark.parametrize("module", MODULES)
def test_module__has_a_docstring(module):
    assert ast.get_docstring(ast.parse(MODULES[module].read_text()))


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("labels", "from cehm_dask.engine import Engine", "labels imports engine"),
        ("labels", "import cehm_dask.consensus as c", "labels imports consensus"),
        ("labels", "from cehm_dask import kernels, engine", "labels imports engine"),
        ("labels", "from .rounds import Cut", "labels imports rounds"),
        ("labels", "from . import rounds", "labels imports rounds"),
        ("labels", "from cehm_dask import CEHM", "no module with a layer"),
        ("labels", "import cehm_dask", "no module with a layer"),
        ("cli.explain", "from cehm_dask.cli import data", "cli.explain imports cli.data"),
        ("medoids", "from cehm_dask.rounds import Cut", "medoids imports rounds"),
        ("diffusion", "def f():\n    from cehm_dask.start import start", "stage diffusion imports stage start"),
        ("engine", "import numba", "engine imports numba"),
        ("engine", "def f():\n    from numba.core import types", "engine imports numba"),
        ("labels", "if True:\n    import zarr.storage", "labels imports zarr"),
    ],
)
def test_rule__a_breach_is_seen(module, source, breach):
    assert any(breach in found for found in breaches(module, source))


def test_rule__what_is_allowed_passes():
    assert breaches("engine", "import numpy\nfrom cehm_dask import kernels, __version__\nimport cehm_dask.labels") == []
