"""Releases build, hold the right files, and work with nothing but their dependencies."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from configparser import ConfigParser
from importlib import resources
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

# Hides every library that is no dependency, direct or indirect.
ALONE = """
import sys, warnings
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

brought, waiting = set(), [Requirement("dask-tiled")]
for one in waiting:
    extras, name = one.extras | {""}, canonicalize_name(one.name)
    brought.add(name)
    for other in map(Requirement, requires(name) or ()):
        needed = not other.marker or any(other.marker.evaluate({"extra": x}) for x in extras)
        if needed and canonicalize_name(other.name) not in brought:
            waiting.append(other)
homes = packages_distributions().items()
hidden = {name for name, of in homes if not brought.intersection(map(canonicalize_name, of))}

class Hiding:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert {"h5py", "xarray", "pandas", "rich"} <= hidden
sys.meta_path.insert(0, Hiding())
"""
OPENED = """
import numpy as np
from dask_tiled import open_dataset
from dask_tiled.testing import counting_frames, write_mib, write_npy

frames = counting_frames((3, 4, 8, 8), "uint16")
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for path in (write_npy("scan.npy", frames), write_mib("scan.mib", frames, kind="U16")):
        arr = open_dataset(path, nav_shape=(3, 4))
        assert np.array_equal(arr.compute(), frames)
        assert np.array_equal(arr.sum(axis=(2, 3)).compute(), frames.sum(axis=(2, 3)))
print(*{str(x.message).partition(":")[0] for x in warned if issubclass(x.category, RuntimeWarning)})
"""


def run(*command, **options):
    return subprocess.run(
        [sys.executable, *command], check=True, capture_output=True, text=True, **options
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the sdist, and from that the wheel."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_twine_accepts_the_release(built):
    run("-m", "twine", "check", "--strict", *built)


def test_the_wheel_holds_only_the_package(built):
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dask_tiled").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    assert names == sources


def test_the_sdist_holds_tests_and_documents(built):
    with tarfile.open(built[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"}
    assert files | {"tests/conftest.py", "docs/developers/promises.rst"} <= names


def test_the_wheel_works(built, tmp_path):
    """The installed package is imported, and its version comes from the tags."""
    run("-m", "pip", "install", "--no-deps", "--target", tmp_path, built[1])
    script = "import numpy, dask_tiled as d; print(d.__file__, d.__version__, sep='\\n')"
    output = run("-c", script, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}).stdout
    place, version = output.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert version in built[1].name
    assert re.match(r"\d+\.\d+", version)


def test_entry_points_of_the_wheel_load(built):
    with zipfile.ZipFile(built[1]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith("/entry_points.txt"))
        config = ConfigParser(delimiters="=")
        config.optionxform = str
        config.read_string(wheel.read(name).decode())
    groups = {"console_scripts", "napari.manifest", "numcodecs.codecs", "xarray.backends"}
    assert {*config.sections()} == groups | {"zarr.codecs"}
    for group in config.sections():
        for name, value in config[group].items():
            if group == "napari.manifest":
                module, _, file = value.partition(":")
                assert resources.files(module).joinpath(file).is_file()
            else:
                assert callable(EntryPoint(name, value, group).load())


@pytest.mark.parametrize(
    ("planning", "warned"), [("False", ""), ("True", "array.query-planning is on")]
)
def test_the_dependencies_suffice(tmp_path, planning, warned):
    env = {**os.environ, "DASK_ARRAY__QUERY_PLANNING": planning}
    assert run("-c", ALONE + OPENED, cwd=tmp_path, env=env).stdout.strip() == warned
