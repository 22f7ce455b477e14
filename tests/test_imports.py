"""How the modules depend on each other, how large they are, and what importing them costs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dask_tiled"
FILES = sorted(PACKAGE.rglob("*.py"))

# Modules import from those before them only.
ORDER = [
    {"errors", "buffers", "filesystems", "indexing", "machine"},
    {"files", "division", "stores", "correction_plans"},
    {"decoders", "corrections", "descriptors", "headers", "markup", "selection"},
    {"box_tree", "fold_names"},
    {"pieces", "overlaps"},
    {"layout", "piece_columns"},
    {"iteration", "runs", "records", "series", "boxes", "coverage"},
    {"ranges", "coded"},
    {"backends", "codecs", "compression", "file_order", "neighbours", "planning"},
    {"conversion"},
    {"reading", "description"},
    {"loader", "frames", "blocks", "pictures", "expressions"},
    {"requests", "drawing", "programs"},
    {"chunking", "tile_shapes", "veto"},
    {"tiling", "evaluation"},
    {"elementwise"},
    {"jobs"},
    {"folding"},
    {"streams"},
    {"tile_loop"},
    {"tile_layer"},
    {"job_arrays"},
    {"reductions"},
    {"graph"},
    {"tile_jobs"},
    {"tile_functions"},
    {"tiles"},
    {"formats"},
    {"opening", "export"},
    {"by_hand", "volumes"},
]
RANKS = {module: rank for rank, modules in enumerate(ORDER) for module in modules}
# What a format may know.
FOR_FORMATS = {
    "errors",
    "files",
    "headers",
    "markup",
    "compression",
    "decoders",
    "corrections",
    "selection",
    "pieces",
    "coded",
    "layout",
    "records",
    "series",
    "description",
}
# Modules of numba functions: they know no other module, but may share kernels.compiled.
KERNELS = {
    "words",
    "kernels",
    "correction_kernels",
    "folds",
    "streaming",
    "fold_functions",
    "gathering",
}
KERNELS_FOR = {
    "words": set(),
    "kernels": {"words"},
    "folds": {"words"},
    "gathering": set(),
    "streaming": {"kernels", "words"},
    "fold_functions": {"kernels", "streaming"},
}
# What is imported where it is needed, because it takes long or is optional.
HEAVY = {
    *(f"dask_tiled.{name}" for name in KERNELS),
    "distributed",
    "h5py",
    "hdf5plugin",
    "imagecodecs",
    "llvmlite",
    "matplotlib",
    "nibabel",
    "numba",
    "numcodecs",
    "tifffile",
    "xarray",
    "zarr",
}


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = [module_of(path) for path in FILES]
FORMATS = [module for module in MODULES if module.startswith("dask_tiled.formats.")]


def part_of(module):
    """Give the first name below the package: all formats are one part, and so is all testing."""
    return module.split(".")[1] if "." in module else ""


def imports(tree, *, in_functions):
    """List the modules that are imported; those for type checkers are not."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        elif in_functions or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found += imports(node, in_functions=in_functions)
    return found


def own(names):
    return {part_of(name) for name in names if name.startswith("dask_tiled.")}


@pytest.fixture(scope="module")
def trees():
    return {module_of(path): ast.parse(path.read_text("utf8")) for path in FILES}


def test_every_module_has_its_place(trees):
    parts = {part_of(module) for module in trees}
    assert parts == {*RANKS, *KERNELS, "testing", ""}


@pytest.mark.parametrize("module", MODULES)
def test_imports_go_one_way(trees, module):
    used = own(imports(trees[module], in_functions=True))
    part = part_of(module)
    if part in KERNELS:
        assert used <= KERNELS_FOR.get(part, {"kernels"}) - {part}
    elif part not in {"testing", ""}:  # the package itself gathers; testing may use all of it
        assert "testing" not in used
        assert {name for name in used - {part} if RANKS.get(name, 0) >= RANKS[part]} == set()


@pytest.mark.parametrize("module", FORMATS)
def test_formats_know_layouts_and_decoders(trees, module):
    assert own(imports(trees[module], in_functions=True)) <= {*FOR_FORMATS, "formats"}


@pytest.mark.parametrize("module", MODULES)
def test_heavy_modules_are_imported_in_functions(trees, module):
    names = imports(trees[module], in_functions=False)
    heavy = {name for name in names if any(f"{name}.".startswith(f"{h}.") for h in HEAVY)}
    assert not heavy or part_of(module) in KERNELS


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_modules_are_short(path):
    assert len(path.read_text("utf8").splitlines()) <= 300


def documented(node, name):
    """List what is public in a module or a class, and lacks a docstring."""
    missing = [] if ast.get_docstring(node) else [name]
    for child in node.body:
        if isinstance(child, (ast.ClassDef, ast.FunctionDef)) and not child.name.startswith("_"):
            setter = any(ast.unparse(d).endswith(".setter") for d in child.decorator_list)
            inner = child if isinstance(child, ast.ClassDef) else ast.Module([child.body[0]], [])
            if not setter:
                missing += documented(inner, f"{name}.{child.name}")
    return missing


@pytest.mark.parametrize("module", MODULES)
def test_public_names_have_docstrings(trees, module):
    assert documented(trees[module], module) == []


def test_public_names_exist():
    import dask_tiled
    import dask_tiled.testing

    for package in (dask_tiled, dask_tiled.testing):
        assert package.__all__ == sorted(package.__all__)
        assert all(getattr(package, name).__doc__ for name in package.__all__)


def test_importing_loads_nothing_heavy():
    """More than dask.array loads by itself, which may be numba."""
    code = """
import sys
import dask.array
before = set(sys.modules)
import dask_tiled
print(*(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "dask_tiled.graph" in loaded
    assert not loaded & (HEAVY | {"dask_tiled.testing"})
