"""Modules import in one direction, libraries stay in their packages, and importing is cheap."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dask_tiled
from dask_tiled.formats.registry import _MODULES
from dask_tiled.graphs.names import NAMES
from dask_tiled.testing import counting_frames, write_mib

pytestmark = pytest.mark.thorough

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "dask_tiled"
FILES = sorted(PACKAGE.rglob("*.py"))

# Packages import from earlier ones only; "" is the root.
ORDER = [
    "errors",
    "foreign",
    "system",
    "notebooks",
    "remote",
    "files",
    "apart",
    "model",
    "codecs",
    "formats",
    "kernels",
    "reading",
    "tiling",
    "engine",
    "plans",
    "graphs",
    "labels",
    "opened",
    "explaining",
    "opening",
    "measuring",
    "tiles",
    "showing",
    "",
    "live",
    "blocks",
    "storing",
    "checkpoints",
    "arriving",
    "export",
    "bridges",
    "virtual",
    "converting",
    "exploring",
    "training",
    "torch",
    "cataloguing",
    "batch",
    "testing",
    "samples",
    "command_line",
]
# Packages that export arrays.
OUT_AGAIN = (
    "blocks",
    "checkpoints",
    "arriving",
    "export",
    "bridges",
    "converting",
    "exploring",
    "training",
    "cataloguing",
)
# The packages that may import a library.
ONLY_IN = {
    "numba": {"kernels"},
    "llvmlite": {"kernels"},
    "anywidget": {"exploring"},
    "dask.array": {
        "tiling",
        "graphs",
        "labels",
        "opened",
        "explaining",
        "opening",
        "measuring",
        "tiles",
        "showing",
        *OUT_AGAIN,
        "testing",
    },  # tiling: dask's notation of chunks
    "cbor2": {"live", "testing"},
    "h5py": {"formats", "live", "converting", "testing"},
    "hdf5plugin": {"formats", "live"},
    "hyperspy": {"bridges"},
    "imagecodecs": {"codecs", "formats", "testing"},
    "numcodecs": {"codecs", "export", "converting", "testing"},
    "click": {"command_line"},
    "obstore": {"remote"},
    "rich": {"command_line"},
    "starlette": {"exploring"},
    "tifffile": {"formats", "converting"},
    "torch": {"training"},
    "uvicorn": {"exploring"},
    "virtualizarr": {"bridges"},
    "xarray": {"bridges"},
    "zmq": {"testing"},
}
# All imports from dask, except the private names that one module lists.
OF_DASK = {
    "dask",
    "dask.array",
    "dask.array.core.normalize_chunks",
    "dask.base.DaskMethodsMixin",
    "dask.base.annotate",
    "dask.base.compute",
    "dask.base.get_annotations",
    "dask.base.get_scheduler",
    "dask.base.persist",
    "dask.base.tokenize",
    "dask.base.unpack_collections",
    "dask.callbacks.Callback",
    "dask.config",
    "dask.highlevelgraph.HighLevelGraph",
    "dask.local.get_sync",
    "dask.system.CPU_COUNT",
    "dask.threaded",
    "dask.utils.parse_bytes",
    "dask.utils.parse_timedelta",
}
# The package that may use private names of dask, and these names.
SEAM = "dask_tiled.graphs"
PRIVATE_OF_DASK = {name for names in NAMES.values() for name in names}
# Libraries whose objects users pass, or that call the package.
# Kernels bring IPython, napari brings pint, users of a batch system bring dask-jobqueue.
BROUGHT = {"IPython", "dask_jobqueue", "icechunk", "pint"}
# Private modules of other packages, and what each module of this package imports from them.
PRIVATE = ("llvmlite", "numba.core", "numpy._core", "numpy.core", "xarray.core", "zarr.core")
FROM_PRIVATE = {
    "dask_tiled.kernels.bitshuffle": {"llvmlite.ir", "numba.core.cgutils"},
    "dask_tiled.kernels.fused_folds": {"llvmlite.ir"},  # this and cgutils: numba documents them
    "dask_tiled.kernels.gathering": {"llvmlite.ir"},
    "dask_tiled.kernels.packing": {"llvmlite.ir", "numba.core.cgutils"},
    "dask_tiled.kernels.primitives": {"llvmlite.ir"},
    "dask_tiled.kernels.products": {"llvmlite.binding", "llvmlite.ir", "numba.core.cgutils"},
    "dask_tiled.kernels.words": {"llvmlite.ir", "numba.core.cgutils"},
    "dask_tiled.storing.object_stores": {"zarr.core.sync.sync"},
    "dask_tiled.bridges.xarray_engine": {  # xarray's page on backends documents them
        "xarray.core.indexing.ExplicitIndexer",
        "xarray.core.indexing.IndexingSupport",
        "xarray.core.indexing.LazilyIndexedArray",
        "xarray.core.indexing.explicit_indexing_adapter",
    },
}
# Private attributes of objects of other packages.
OF_OTHERS = {
    "dask_tiled.batch.child": {"_exit"},  # of os, which documents it
    "dask_tiled.opened.inputs": {"_data"},  # of xarray's variables: data that is not loaded yet
    "dask_tiled.errors": {"_getframe"},
    "dask_tiled.apart.child": {"_exit"},  # of os, which documents it
    "dask_tiled.kernels.code_cache": {
        *("_cache_path", "_data_name", "_dump", "_impl", "_load_overload"),
        *("_open_for_write", "_source_stamp"),
    },
    "dask_tiled.kernels.decoding": {"_cache"},
    "dask_tiled.kernels.words": {"_getvalue"},  # of numba, which documents it
    "dask_tiled.remote.stores": {"_strip_protocol"},
    "dask_tiled.system.forks": {"_current_frames"},  # of sys, which documents it
}
# Modules that import names from all packages.
GATHERING = {"dask_tiled", "dask_tiled.__main__", "dask_tiled.public"}
# Methods of arrays look up public functions when they are called.
LOOKING_UP = {"dask_tiled.opened.verbs"}
# Modules that derive from classes of a library, and so are imported in functions themselves.
DERIVED = {
    "dask_tiled.kernels",
    "dask_tiled.tiling.figures",
    "dask_tiled.export.codecs",
    "dask_tiled.export.filters",
    "dask_tiled.export.virtual.store",
    "dask_tiled.bridges.xarray_engine",
    "dask_tiled.exploring.widget",
}
# Modules that are imported in functions, as importing takes long or they are optional.
HEAVY = {*ONLY_IN, *DERIVED, "distributed", "matplotlib", "zarr"} - {"click", "dask.array"}


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [module_of(path) for path in FILES]


def package_of(module):
    """Return the package of a module; modules beside packages belong to the root."""
    first = module.split(".")[1] if "." in module else ""
    return first if first in ORDER else ""


def required(tree):
    """List the libraries that functions import by passing their names."""
    named = {"require": slice(1), "import_module": slice(1), "require_extra": slice(1, None)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = [getattr(one.func, "attr", getattr(one.func, "id", None)) for one in calls]
    return [
        argument.value
        for call, name in zip(calls, called, strict=True)
        for argument in call.args[named.get(name, slice(0))]
        if isinstance(argument, ast.Constant)
    ]


@cache
def imports(tree, *, in_functions, for_types=False):
    """List the modules that are imported, on request also in functions and for type checkers."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.expr, ast.expr_context)):
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found += imports(node, in_functions=True) if for_types else []
        elif in_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found += imports(node, in_functions=in_functions, for_types=for_types)
    return found


@pytest.fixture(scope="module")
def trees():
    return {module_of(path): ast.parse(path.read_text("utf8")) for path in FILES}


def test_imports_go_one_way(trees):
    """Packages import in the listed order; modules form no cycle, not even for type checkers."""
    for module in set(MODULES) - GATHERING:
        rank = ORDER.index(package_of(module))
        names = imports(trees[module], in_functions=True)
        used = {name for name in names if name.startswith("dask_tiled.")}
        assert {name for name in used if ORDER.index(package_of(name)) > rank} == set(), module
        above = package_of(module) in {*OUT_AGAIN, "testing", "command_line"}
        assert "dask_tiled" not in names or above or module in LOOKING_UP, module
    needs = {
        module: {*imports(tree, in_functions=module not in LOOKING_UP, for_types=True)} & {*MODULES}
        for module, tree in trees.items()
    }
    TopologicalSorter(needs).prepare()  # CycleError shows the cycle


def test_libraries_stay_in_their_packages(trees):
    for module, tree in trees.items():
        for name in imports(tree, in_functions=True):
            homes = [home for lib, home in ONLY_IN.items() if f"{name}.".startswith(f"{lib}.")]
            assert all(package_of(module) in home for home in homes), (module, name)


@pytest.mark.slow
def test_libraries_are_declared(trees):
    """The imported libraries, and no others, are dependencies or in an extra for users."""
    project = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf8"))["project"]
    extras = project["optional-dependencies"]
    users = {*Requirement(*extras["all"]).extras, "torch"}  # too large for all
    lines = [*project["dependencies"], *(line for extra in users for line in extras[extra])]
    declared = {canonicalize_name(Requirement(line).name) for line in lines}
    names = {
        name.partition(".")[0]
        for tree in trees.values()
        for name in [*imports(tree, in_functions=True), *required(tree)]
    }
    installed = packages_distributions()
    names -= {*sys.stdlib_module_names, "dask_tiled"}
    homes = {name: {*map(canonicalize_name, installed.get(name, [name]))} for name in names}
    assert {name for name, of in homes.items() if not of & declared} == BROUGHT
    assert declared - set().union(*homes.values()) == set()


def test_private_names_of_dask_are_in_one_package(trees):
    """One module looks the names up, so that a missing name is no error."""
    for module, tree in trees.items():
        names = {
            name for name in imports(tree, in_functions=True) if f"{name}.".startswith("dask.")
        }
        modules = {name.rpartition(".")[0] for name in OF_DASK}
        assert names <= OF_DASK | modules, module
        if not module.startswith(SEAM):
            seam = {name for name in imports(tree, in_functions=True) if name.startswith(SEAM)}
            assert not {name.rpartition(".")[2] for name in seam} & PRIVATE_OF_DASK, module


def test_private_names_of_others_are_listed(trees):
    for module, tree in trees.items():
        names = {
            name
            for name in imports(tree, in_functions=True)
            if f"{name}.".startswith(tuple(f"{one}." for one in PRIVATE))
            or (not name.startswith(("dask_tiled", "__future__")) and "._" in f".{name}")
        }
        listed = FROM_PRIVATE.get(module, set())
        assert names - {name.rpartition(".")[0] for name in listed} == listed, module


def test_private_attributes_of_others_are_listed(trees):
    """Private attributes of others are those that no module of the package defines."""
    own, used = {"_asdict", "_fields", "_replace"}, {}  # of named tuples
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                own.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                own.add(node.value)  # of __slots__
            elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
                if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) in {"self", "cls"}:
                    own.add(node.attr)
                else:
                    used.setdefault(module, set()).add(node.attr)
    found = {module: names - own for module, names in used.items() if names - own}
    assert found == OF_OTHERS


def test_heavy_modules_are_imported_in_functions(trees):
    for module, tree in trees.items():
        names = imports(tree, in_functions=False)
        heavy = {name for name in names if any(f"{name}.".startswith(f"{h}.") for h in HEAVY)}
        derived = any(f"{module}.".startswith(f"{name}.") for name in DERIVED)
        assert not heavy or derived, module


def test_no_test_imports_from_another():
    for path in TESTS.rglob("*.py"):
        text = path.read_text("utf8")
        assert not re.search(r"^ *(from|import\b.*) test_", text, re.MULTILINE), path


def test_tests_mirror_the_package():
    """Each package has a folder of tests, and each format a file."""
    packages = {package_of(module) for module in MODULES} - {
        "",
        "errors",
        "foreign",
        "notebooks",
        "torch",
        "virtual",
    }
    assert packages <= {path.name for path in TESTS.iterdir()}
    formats = {path.name for path in (TESTS / "formats").iterdir()}
    assert {f"test_{name}.py" for name in _MODULES} <= formats


def test_public_names_exist():
    import dask_tiled.testing

    for package in (dask_tiled, dask_tiled.testing):
        assert package.__all__ == sorted(package.__all__)
        assert all(getattr(package, name).__doc__ for name in package.__all__)


PLANNING = """
import pkgutil, sys
from importlib import import_module
import dask_tiled.plans
for found in pkgutil.iter_modules(dask_tiled.plans.__path__):
    import_module(f"dask_tiled.plans.{found.name}")
print(*sys.modules)
"""


@pytest.mark.slow
def test_planning_knows_no_dask_array():
    """All modules of plans load without dask.array, and without the packages above them."""
    done = subprocess.run(
        [sys.executable, "-c", PLANNING], capture_output=True, text=True, check=True
    )
    loaded = {*done.stdout.split()}
    assert "dask_tiled.plans.recipes" in loaded
    assert not loaded & {"dask.array", "dask_tiled.graphs", "dask_tiled.opened"}


def test_classes_have_names_of_their_own(trees):
    """No two classes of the package have one name."""
    names = [
        (node.name, module)
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    several = Counter(name for name, _ in names)
    assert [one for one in names if several[one[0]] > 1] == []


LOADING = """
import sys
import dask_tiled.formats.registry, dask_tiled.formats.tools.files
print(*sys.modules)
import dask.array
before = set(sys.modules)
import dask_tiled.public
print(*(set(sys.modules) - before))
print(*dask_tiled.formats(), *dir(dask_tiled))
"""


@pytest.mark.slow
def test_importing_loads_nothing_heavy():
    """The registry loads no dask; public names load nothing heavy beyond dask.array."""
    command = [sys.executable, "-c", LOADING]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, then, names = (set(line.split()) for line in done.stdout.splitlines())
    assert not first & {"dask", "dask_tiled.public"}
    assert "dask_tiled.opened.tiled_array" in then
    assert not then & (HEAVY | {"dask_tiled.testing"})
    assert names == {*dask_tiled.formats(), *dask_tiled.__all__, "__version__"}


INFO = """
import sys
from click.testing import CliRunner
from dask_tiled.command_line.app import app
print(CliRunner().invoke(app, ["info", sys.argv[1]]).output)
print(*sys.modules)
"""


@pytest.mark.slow
def test_info_makes_no_array(tmp_path):
    """The command imports only what headers need."""
    path = write_mib(tmp_path / "scan.mib", counting_frames((2, 3, 8, 8), "uint16"))
    command = [sys.executable, "-c", INFO, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "frame headers" in done.stdout
    loaded = {*done.stdout.splitlines()[-1].split()}
    assert "dask_tiled.opening.describing" in loaded
    assert not loaded & ((HEAVY - {"rich"}) | {"dask.array"})


RESULTS = """
import sys
import dask_tiled
arr = dask_tiled.open_dataset(sys.argv[1])
arr[0, 0].compute()
arr.sum(axis=(2, 3)).compute()
arr.to_zarr(sys.argv[2])
print(*sys.modules)
"""


@pytest.mark.slow
def test_first_results_import_no_cluster(tmp_path):
    path = write_mib(tmp_path / "scan.mib", counting_frames((2, 3, 8, 8), "uint16"))
    command = [sys.executable, "-c", RESULTS, path, tmp_path / "scan.zarr"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "distributed" not in done.stdout.split()
