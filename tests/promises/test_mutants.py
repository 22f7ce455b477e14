"""``make mutants`` finds changes of a module that its tests do not notice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants.changes import Finder

MODULE = '''"""A module."""
LEAST = 3


def grow(value, step=2):
    """Return a larger number."""
    if value < LEAST:
        raise ValueError(f"below {LEAST}")
    return value + step
'''
TESTS = """import pytest
from dask_tiled.sizes.growing import grow


def test_errors():
    for value in (1, 2):
        with pytest.raises(ValueError):
            grow(value)


def test_numbers():
    assert grow(5) > 5
"""
MAIN = """
import sys
from pathlib import Path
from mutants import __main__ as program
program.ROOT = Path(sys.argv[1])
program.main(["sizes", "--processes", "2"])
"""


def changes_of(text):
    source = text.encode()
    finder = Finder(source)
    changes = [change[:3] for change in finder.changes() if finder.compiles(*change[:3])]
    return [(source[start:end].decode(), new) for start, end, new in changes]


def test_changes_of_a_module():
    assert changes_of(MODULE) == [
        ("3", "4"),
        ("2", "3"),
        ('if value < LEAST:\n        raise ValueError(f"below {LEAST}")', "pass"),
        ("<", "<="),
        ('raise ValueError(f"below {LEAST}")', "pass"),
        ("+", "-"),
    ]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ('a = {"width": (4, ">u2")}', {"'width_'", "5", "'>i2'"}),
        ('a = b"ni1" if not b else "a text of words"', {"b'ni1_'", "(not (not b))", "(b)"}),
        ("a = b is not None and c not in d", {"is", "or", "in"}),
        ("a: int = b - 1 // c", {"+", "2", "*"}),
    ],
)
def test_kinds_of_changes(text, changes):
    assert {new for _, new in changes_of(text)} == changes


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="runs are forks")
def test_changes_that_no_test_notices_are_printed(tmp_path):
    """Neither the limit itself nor the default of the step is tested."""
    for name, text in [
        ("dask_tiled/sizes/growing.py", MODULE),
        ("dask_tiled/sizes/__init__.py", ""),
        ("dask_tiled/__init__.py", ""),
        ("tests/test_growing.py", TESTS),
        ("pyproject.toml", '[tool.pytest]\nmarkers = ["slow"]\n'),
    ]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    command = [sys.executable, "-c", MAIN, str(tmp_path)]
    variables = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *survivors, last = done.stdout.splitlines()
    assert first.startswith("2 tests in ")
    assert first.endswith(" s: tests/test_growing.py")
    path = Path("dask_tiled/sizes/growing.py")
    assert sorted(survivors) == [
        f"{path}:2: '3' -> '4' survives 2 tests",
        f"{path}:5: '2' -> '3' survives 2 tests",
        f"{path}:7: '<' -> '<=' survives 2 tests",
    ]
    assert last == "dask_tiled/sizes: 3 of 6 killed, 50 %"
    assert (tmp_path / path).read_text() == MODULE
