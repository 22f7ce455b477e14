"""Examples in the documentation run as shown, and pages list all public names."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from checks import pytorch
from matplotlib.image import imread

import dask_tiled
import dask_tiled.testing
from dask_tiled.formats import registry, tools

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.rst"), *DOCS.glob("developers/*.rst")])
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "dask_tiled").rglob("*.py"))
    if ">>> " in path.read_text("utf8")
]
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.mark.thorough
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_examples_of_a_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # a page registers a format
    assert doctest.testfile(str(page), module_relative=False, optionflags=OPTIONS).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name, tmp_path, monkeypatch):
    if name == "dask_tiled.training.loading":
        pytorch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})  # an example registers a format
    assert doctest.testmod(importlib.import_module(name), optionflags=OPTIONS).failed == 0


def test_every_public_name_is_in_an_example():
    parser = doctest.DocTestParser()
    texts = [page.read_text("utf8") for page in PAGES]
    texts += [getattr(dask_tiled, name).__doc__ for name in dask_tiled.__all__]
    examples = [x for text in texts for x in parser.get_examples(text)]
    shown = set(re.findall(r"\w+", " ".join(x.source + x.want for x in examples)))
    assert set(dask_tiled.__all__) - shown == set()


def test_the_api_page_has_every_public_name():
    modules = "samples", "tiles", "virtual"
    public = {*dask_tiled.__all__, "torch.Frames", "torch.IterableBatches"} - {*modules}
    for module in modules:
        public |= {f"{module}.{name}" for name in getattr(dask_tiled, module).__all__}
    listed = (DOCS / "api.rst").read_text("utf8")
    assert {"open_dataset", "tiles.center_of_mass"} <= public
    assert set(re.findall(r"^   ([\w.]+)$", listed, re.MULTILINE)) == public


def test_the_page_of_tools_has_every_public_name():
    page = (DOCS / "developers" / "tools.rst").read_text("utf8")
    named = re.findall(r"^\.\. (?:auto\w+|data):: (\S+)$", page, re.MULTILINE)
    listed = {name.rpartition(".")[2] for name in named}
    of_api = {"Axis", "Corrections", "Description", "Format", "Piece"}
    of_api |= {"CorruptFileError", "DatasetError", "TruncatedFileError"}
    assert {*dask_tiled.testing.__all__, *tools.__all__} - of_api - listed == set()


def test_each_promise_names_tests_that_exist():
    """Each promise names modules of tests or commands of the Makefile."""
    page = (DOCS / "developers" / "promises.rst").read_text("utf8")
    _, _, table = page.partition("   * - promise\n")
    rows = [row.split("     - ")[-1] for row in table.split("   * - ")]
    commands = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf8"), re.MULTILINE))
    assert len(rows) > 10
    for row in rows[1:]:
        modules, named = re.findall(r"``(tests/\S+)``", row), re.findall(r"``make (\S+)``", row)
        assert modules or named, row
        assert {*named} <= commands
        assert [name for name in modules if not (ROOT / name).is_file()] == []


@pytest.mark.thorough
def test_the_lines_of_the_readme_run(tmp_path, monkeypatch):
    """The lines draw the picture; versions of matplotlib place texts a few pixels apart."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("picture", DOCS / "picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    names = {}
    for lines in picture.lines_of_readme():
        exec(lines, names)  # noqa: S102 - lines of the README
    assert names["image"].shape == names["pixel"].shape == names["centres"].shape[:2] == (60, 64)
    assert np.array_equal(
        zarr.open_group("scan.zarr")["data"][7, 40], names["arr"][7, 40].compute()
    )
    drawn, kept = (imread(path) for path in (picture.DRAWN, picture.PICTURE))
    assert drawn.shape == kept.shape, "run: make picture"
    coarse = [
        image[: len(image) // 96 * 96].reshape(-1, 96, image.shape[1] // 96, 96, 4).mean((1, 3))
        for image in (drawn, kept)
    ]
    assert abs(coarse[0] - coarse[1]).max() < 0.1, "run: make picture"


def test_links_of_the_first_pages_exist():
    for page in ("CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"):
        links = re.findall(r"\]\((?!https:)([^)#]+)", (ROOT / page).read_text("utf8"))
        assert links
        assert [link for link in links if not (ROOT / link).exists()] == []
