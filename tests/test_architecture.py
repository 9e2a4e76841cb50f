"""The house rule, read from the imports: they go down only, stages never meet, heavy libraries have one home."""

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "cehm_dask"

# Low to high: a folder, or a module beside the folders, imports only from lines above its own. Inside a folder, modules
# import one another without cycles.
LAYERS = [
    {"errors", "wording"},
    {"masking"},
    {"machine", "progress"},
    {"bars"},
    {"data"},
    {"engine"},
    {"method", "clusters"},
    {"members", "job", "model"},
    {"lazy", "profiles"},
    {"notebook"},
    {"estimator", "rivals"},
    {"cluster_ensemble"},
    {"results"},
    {"report"},
    {"pipeline"},
    {"paper"},
    {"doors"},
    {"cli"},
    {"__main__"},
]
STAGES = {"method.start", "method.diffusion", "method.adjustion"}

# Library: the folders and modules that may import it.
HOMES = {
    "numba": {"method.jit"},
    "zarr": {"data.arrays"},
    "distributed": {"engine.dask", "clusters.connect", "clusters.current"},
    "cryptography": {"clusters.certificates"},
    "dask_ml": {"members.whole"},
    "anndata": {"doors.observations"},
    "h5py": {"doors.observations"},
    "matplotlib": {"paper.figures"},
    "pymetis": {"rivals.metis"},
    "scikit_posthocs": {"paper.compare"},
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


def folder_of(module):
    """``data`` for data.labels; a module beside the folders stands for itself."""
    return module.partition(".")[0]


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
    found, folder = [], folder_of(module)
    for other in sorted(inner_imports(source)):
        if other not in INNER:
            found.append(f"{module} imports {other or 'the package'}, which is no module")
        elif folder_of(other) != folder and LEVEL[folder_of(other)] >= LEVEL[folder]:
            found.append(f"{module} imports {other}, which is not below it")
        if module in STAGES and other in STAGES:
            found.append(f"stage {module} imports stage {other}")
    found += [
        f"{module} imports {library}, which only {', '.join(sorted(homes))} may"
        for library, homes in HOMES.items()
        if library in libraries(source) and module not in homes
    ]
    return found


def test_layers__are_the_folders_and_modules_that_there_are():
    assert sum(map(len, LAYERS)) == len(LEVEL)
    assert set(LEVEL) == set(map(folder_of, INNER))


@every_module
def test_imports__go_down_only_and_libraries_stay_at_home(module):
    assert breaches(module, INNER[module].read_text()) == []


def test_imports__have_no_cycles():
    graph = {name: inner_imports(path.read_text()) for name, path in INNER.items()}
    list(TopologicalSorter(graph).static_order())


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


LONGEST = 400


@pytest.mark.parametrize("module", MODULES)
def test_module__is_no_longer_than_that(module):
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize(
    ("module", "source", "breach"),
    [
        ("data.labels", "from cehm_dask.engine.sweep import Engine", "data.labels imports engine.sweep"),
        ("data.labels", "import cehm_dask.method.consensus as c", "data.labels imports method.consensus"),
        ("data.labels", "from cehm_dask.method import kernels", "data.labels imports method.kernels"),
        ("data.labels", "from cehm_dask import CEHM", "is no module"),
        ("data.labels", "import cehm_dask", "is no module"),
        ("method.medoids", "from cehm_dask.clusters.connect import connect", "method.medoids imports clusters.connect"),
        (
            "method.diffusion",
            "def f():\n    from cehm_dask.method.start import start",
            "stage method.diffusion imports stage method.start",
        ),
        ("engine.sweep", "import numba", "engine.sweep imports numba"),
        ("engine.sweep", "def f():\n    from numba.core import types", "engine.sweep imports numba"),
        ("data.labels", "if True:\n    import zarr.storage", "data.labels imports zarr"),
    ],
)
def test_rule__a_breach_is_seen(module, source, breach):
    assert any(breach in found for found in breaches(module, source))


def test_rule__what_is_allowed_passes():
    allowed = "import numpy\nfrom cehm_dask import errors, __version__\nimport cehm_dask.data.labels"
    assert breaches("engine.sweep", allowed) == []


# --- words -------------------------------------------------------------------------------------------------------

ASKED_IN_THE_COMMAND = {"pipeline.recipe"}
"""Errors about ``--set``, which only the command has."""


def options_in_errors(source):
    """Options of the command that the errors and warnings of a source name by hand."""
    for node in ast.walk(ast.parse(source)):
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "attr", getattr(called, "id", ""))
        if not name.endswith(("Error", "warn", "Warning")):
            continue
        texts = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
        yield from (text for text in texts if isinstance(text, str) and re.search(r"(^|[ (])--[a-z]", text))


@pytest.mark.parametrize("module", [name for name in INNER if folder_of(name) != "cli"])
def test_errors__of_python_name_no_options_of_the_command(module):
    if module not in ASKED_IN_THE_COMMAND:
        assert list(options_in_errors(INNER[module].read_text())) == []


def test_errors__an_option_in_one_is_seen():
    assert list(options_in_errors('raise InputError(f"{x}: pass --overwrite")')) == [": pass --overwrite"]
    assert list(options_in_errors('raise InputError(f"{x}: pass {word}")\nrun("sbatch", "--parsable")')) == []
