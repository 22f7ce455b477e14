"""Every example in the documentation gives what it says."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import dask_tiled

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.rst"))
MODULES = ["dask_tiled"] + [
    module.name for module in pkgutil.walk_packages(dask_tiled.__path__, "dask_tiled.")
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testfile(str(page), module_relative=False, optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name), optionflags=OPTIONS).failed == 0
