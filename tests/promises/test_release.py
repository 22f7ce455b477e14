"""Releases build, hold the right files, and work with nothing but their dependencies."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from configparser import ConfigParser
from importlib import resources
from importlib.metadata import EntryPoint, requires, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version
from release import ReleaseError, compare, released_version

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
RECIPE = yaml.safe_load((ROOT / "recipe" / "recipe.yaml").read_text("utf8"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text("utf8")
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text("utf8"))
    for path in (ROOT / ".github" / "workflows").glob("*.yml")
}
# The packages of conda-forge without further dependencies.
IN_CONDA = {"dask": "dask-core", "hyperspy": "hyperspy-base", "matplotlib": "matplotlib-base"}

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


def test_the_wheel_holds_only_the_package(built):
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dask_tiled").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    names = {name for name in zipfile.ZipFile(built[1]).namelist() if ".dist-info/" not in name}
    assert names == sources


def test_the_sdist_holds_what_its_tests_read(built, tmp_path):
    """Tests that read files of the checkout pass in the unpacked sdist."""
    subprocess.run([shutil.which("tar"), "-xf", built[0], "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.iterdir()
    for path in ("examples/pieces.py", "examples/dask-tiled-spe/pyproject.toml"):
        assert (unpacked / path).read_bytes() == (ROOT / path).read_bytes()
    tests = "test_links_of_the_first_pages_exist", "test_each_promise_names_tests_that_exist"
    command = [f"tests/promises/test_docs.py::{name}" for name in tests]
    env = {**os.environ, "PYTHONPATH": str(unpacked)}
    run("-m", "pytest", "--numprocesses=0", *command, cwd=unpacked, env=env)


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


def test_make_test_oldest_runs_with_the_lower_bounds():
    """No library needs a later release of another one than its bound names."""
    if os.environ.get("DASK_TILED_REQUIRE_LOWEST") != "1":
        pytest.skip("the lowest versions are installed by `make test-oldest`")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the lowest versions have no wheels for later releases of Python")
    needed, waiting = {}, [Requirement("dask-tiled[test]")]
    for one in waiting:
        for other in map(Requirement, requires(one.name)):
            extras = one.extras or {""}
            if other.marker and not any(other.marker.evaluate({"extra": x}) for x in extras):
                continue
            if other.name == "dask-tiled":
                waiting.append(other)
            else:
                needed[other.name] = {bound.version for bound in other.specifier}
    assert {"numpy", "h5py", "pytest"} <= {*needed}
    installed = {name: Version(version(name)) for name in needed}
    assert installed == {name: Version(*bounds) for name, bounds in needed.items()}


# The files of services


def made(text):
    """Return the targets of make in a command."""
    return set(re.findall(r"\bmake ([\w-]+)", text))


def test_services_make_targets_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf8"), re.MULTILINE))
    jobs = [job for flow in WORKFLOWS.values() for job in flow["jobs"].values()]
    steps = [step for job in jobs for step in job["steps"]]
    in_workflows = made("\n".join(step.get("run", "") for step in steps))
    assert {"test", "test-oldest", "lint", "docs", "release-check"} <= in_workflows <= targets
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf8"))
    (local,) = config["repos"]
    in_hooks = {frozenset(made(hook["entry"])) for hook in local["hooks"]}
    assert in_hooks == {frozenset({hook["id"]}) for hook in local["hooks"]}
    assert set().union(*in_hooks) <= targets
    first = (ROOT / "CONTRIBUTING.md").read_text("utf8").split("\n\n")[1]
    assert made(first) == set().union(*in_hooks)


def test_workflows_test_each_python_and_system():
    python = "Programming Language :: Python :: "
    classifiers = PROJECT["classifiers"]
    versions = [x.removeprefix(python) for x in classifiers if x.startswith(f"{python}3.")]
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")
    posix, windows = (WORKFLOWS["checks"]["jobs"][name] for name in ("test", "windows"))
    assert posix["strategy"]["matrix"]["python"] == versions
    assert windows["strategy"]["matrix"]["python"] == versions
    assert {*posix["strategy"]["matrix"]["os"]} == {"ubuntu-latest", "macos-latest"}
    assert windows["runs-on"] == "windows-latest"


def test_other_files_name_what_exists():
    """Read the Docs an extra and a file, the issue forms commands, dependabot pinned linters."""
    extras = PROJECT["optional-dependencies"]
    docs = yaml.safe_load((ROOT / ".readthedocs.yaml").read_text("utf8"))
    (install,) = docs["python"]["install"]
    assert {*install["extra_requirements"]} <= {*extras}
    assert (ROOT / docs["sphinx"]["configuration"]).is_file()
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "file.yml").read_text("utf8"))
    asked = {*re.findall(r"`dask-tiled (\w+)", str(form["body"]))}
    assert asked == {"doctor", "info"}
    for name in asked:
        assert (ROOT / "dask_tiled" / "command_line" / f"{name}.py").is_file()
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text("utf8"))["updates"]
    (allowed,) = [one["allow"] for one in updates if one["package-ecosystem"] == "pip"]
    pinned = {one.partition("==")[0] for some in extras.values() for one in some if "==" in one}
    assert {one["dependency-name"] for one in allowed} == pinned


def in_conda(requirements):
    """Return requirements in the words of conda, without those of this package."""
    every = [Requirement(one) for one in requirements]
    assert not any(one.marker for one in every)
    return {
        f"{IN_CONDA.get(one.name, one.name)} {one.specifier}"
        for one in every
        if one.name != PROJECT["name"]
    }


def test_the_recipe_requires_what_the_package_requires():
    """The constraints are the bounds of all extras for users."""
    requirements = RECIPE["requirements"]
    python, *others = requirements["run"]
    assert python == "python >=${{ python_min }}"
    assert f">={RECIPE['context']['python_min']}" == PROJECT["requires-python"]
    assert {*others} == in_conda(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    bounds = set().union(*(in_conda(extras[name]) for name in everything.extras))
    assert {*requirements["run_constraints"]} == bounds
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["build-system"]["requires"]
    assert {*requirements["host"]} == {"python ${{ python_min }}.*", "pip", *in_conda(build)}
    (command,) = RECIPE["build"]["python"]["entry_points"]
    assert dict([command.split(" = ")]) == PROJECT["scripts"]


def test_the_recipe_is_of_the_newest_release():
    assert RECIPE["context"]["version"] == re.search(r"^## \[(\d.+?)\]", CHANGELOG, re.MULTILINE)[1]


# The check of a release

OLD = "## [0.9.1] - 2026-01-31\n\n- Text.\n"


@pytest.mark.parametrize(
    ("changelog", "tags", "version"),
    [
        ("# Changelog\n\n## [Unreleased]\n\n- Text.\n\n" + OLD, [], "0.10.0"),
        (OLD, [], "0.9.1"),
        (OLD, ["v0.9.1"], "0.9.1"),
        ("## [1.0.0] - 2026-02-28\n\n### Added\n\n- Text.\n\n" + OLD, ["v1.0.0"], "1.0.0"),
    ],
)
def test_the_changelog_names_the_version(changelog, tags, version):
    assert released_version(changelog, tags) == version


@pytest.mark.parametrize(
    ("changelog", "tags", "reason"),
    [
        ("", [], "no section"),
        ("## [Unreleased]\n\n- Text.\n", [], "no section such as"),
        ("## [Unreleased]\n\n" + OLD, [], r"no entry in its first section, \[Unreleased\]"),
        ("## [Unreleased]\n\n- Text.\n\n" + OLD, ["v0.10.0"], r"rename it to \[0.10.0\]"),
        ("## [1.0.0]\n\n- Text.\n\n" + OLD, [], "with its date"),
        ("## [1.0.0] - 2026-02-28\n\n" + OLD, ["v1.0.0"], "no entry"),
        (OLD, ["v0.9.2"], "tags are v0.9.2; expected v0.9.1"),
        (OLD, ["v0.9.1", "v0.9.2"], "expected v0.9.1"),
    ],
)
def test_a_commit_without_one_version_is_not_released(changelog, tags, reason):
    with pytest.raises(ReleaseError, match=reason):
        released_version(changelog, tags)


def test_builds_that_differ_are_named(built, tmp_path):
    sdist, wheel = built
    first = {path.name: path for path in built}
    compare(first, first)
    with pytest.raises(ReleaseError, match=r"built \S+gz, \S+whl, then \S+whl$"):
        compare(first, {wheel.name: wheel})
    other = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as read, zipfile.ZipFile(other, "w") as write:
        for member in read.infolist():
            data = read.read(member)
            write.writestr(member, data + b"#" * (member.filename == "dask_tiled/errors.py"))
    with pytest.raises(ReleaseError, match=r"whl differ in dask_tiled/errors.py$"):
        compare(first, {sdist.name: sdist, wheel.name: other})
    other = tmp_path / sdist.name
    with tarfile.open(sdist) as read, tarfile.open(other, "w:gz") as write:
        for member in read:
            member.mode ^= 0o100 * member.name.endswith("/README.md")
            write.addfile(member, read.extractfile(member))
    with pytest.raises(ReleaseError, match=r"differ in \S+/README.md$"):
        compare(first, {sdist.name: other, wheel.name: wheel})
