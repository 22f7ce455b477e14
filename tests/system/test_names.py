"""Names that systems lack: the package works without each of them, and uses no other such names."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dask_tiled
from dask_tiled.system.names import NAMES, offered

LACKING = Path(__file__).parents[1] / "lacking"
PACKAGE = Path(dask_tiled.__file__).parent
LISTED = [(module, name) for module, names in NAMES.items() for name in names]
CORE = [f"tests/{name}" for name in ("formats/test_battery.py", "reading/test_runs_of_frames.py")]
MODULES = {"fcntl", "grp", "msvcrt", "pwd", "resource", "termios", "winreg"}
"""Modules that only some systems have."""
# Names that only some systems have, beyond those that are looked up.
OTHERS = {
    "os": {
        *("copy_file_range", "geteuid", "getpgid", "getuid", "memfd_create", "mkfifo", "name"),
        *("pread", "preadv", "pwrite", "sched_getaffinity", "sendfile", "setsid", "startfile"),
    },
    "signal": {"SIGALRM", "SIGKILL", "SIGPROF", "alarm", "pthread_sigmask"},
    "sys": {"platform", "getwindowsversion"},
    "mmap": {"MAP_ANONYMOUS", "MAP_PRIVATE", "PROT_READ"},
}


@pytest.mark.thorough
def test_only_one_package_uses_names_that_systems_lack():
    """Names are those that the system package looks up, and a list of others."""
    of = {module: {*NAMES.get(module, ()), *OTHERS.get(module, ())} for module in {*NAMES, *OTHERS}}
    names = "|".join(rf"{module}\.(?:{'|'.join(some)})" for module, some in of.items())
    some_name = re.compile(rf"\b(?:{names}|{'|'.join(MODULES)})\b")
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text("utf8")
        if path.parent.name == "system" or not some_name.search(text):  # parsing takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.attr not in of.get(node.value.id, ()), (path, node.lineno)
            elif isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & MODULES, (path, node.lineno)
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in MODULES, (path, node.lineno)


def test_missing_names_are_none():
    assert offered("os", "no_such_name") is None
    assert offered("no_such_module", "name") is None


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
def test_results_without_each_name_and_without_all():
    """Reading, exports and the child that reads HDF5 files work, more slowly."""
    listed = [f"{module}.{name}" for module, name in LISTED]
    environment = {"PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{LACKING}"}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", LACKING / "each.py", *listed]
    options = {"capture_output": True, "text": True, "env": os.environ | environment}
    done = subprocess.run(command, check=False, **options)
    lines = [*map(json.loads, done.stdout.splitlines())]
    assert [line["names"] for line in lines] == [*([one] for one in listed), listed], done.stderr
    assert not [line for line in lines if line["failure"]]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
def test_core_of_the_suite_without_all_names():
    """The tests of reading, formats and exports pass, but for those of the missing names."""
    environment = {
        "PYTHONPATH": f"{PACKAGE.parent}{os.pathsep}{LACKING}",
        # Without O_DIRECT io="direct" is refused.
        "DASK_TILED_LACKING": " ".join(f"{m}.{n}" for m, n in LISTED if n != "O_DIRECT"),
    }
    options = ["-q", "-x", "-p", "no:cacheprovider", "--numprocesses=0", "--fast"]
    command = [sys.executable, "-m", "pytest", *options, *CORE]
    done = subprocess.run(
        command,
        cwd=PACKAGE.parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
