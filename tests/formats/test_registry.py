"""Formats of other packages: discovery, detection, and failures."""

import importlib.metadata
from dataclasses import replace

import numpy as np
import pytest

import dask_tiled
from dask_tiled import (
    DatasetError,
    Format,
    UnknownFormatError,
    describe,
    formats,
    open_dataset,
    register_format,
)
from dask_tiled.files import file
from dask_tiled.formats.registry import _installed, _registered
from dask_tiled.testing import counting_frames, write_mib

FRAMES = counting_frames((6, 4, 8), "uint16")
MINE = Format(
    name="mine",
    extensions=(".mine",),
    summary="a file that begins with MINE",
    nav_shape_from="nowhere",
    sniff=lambda _path, head: None if head.startswith(b"MINE") else "does not begin with MINE",
    describe=lambda paths: describe(paths[0].replace(".mine", ".mib")),
)


class Entry:
    """An entry point: a name, and the value or the exception of loading it."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def load(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


@pytest.fixture
def install(monkeypatch):
    """Return a function that installs packages with entry points."""

    def install(*entries):
        others = importlib.metadata.entry_points

        def entry_points(*args, **options):  # numba asks for its own
            ours = options == {"group": "dask_tiled.formats"}
            return entries if ours else others(*args, **options)

        monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
        _installed.cache_clear()

    yield install
    _installed.cache_clear()
    _registered.clear()


@pytest.fixture
def path(tmp_path):
    """Write a file of the format ``MINE``."""
    write_mib(tmp_path / "scan.mib", FRAMES)
    (tmp_path / "scan.mine").write_bytes(b"MINE")
    return tmp_path / "scan.mine"


def test_installed_formats_are_found(install, path):
    """Formats are found by their entry points, and named in descriptions."""
    install(Entry("mine", MINE))
    arr = open_dataset(path)
    assert arr.description.format == "mine"
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_registered_formats_replace_installed_ones(install, path):
    install(Entry("mine", MINE))
    register_format(replace(MINE, summary="another one"))
    assert formats()["mine"].summary == "another one"
    assert describe(path).format == "mine"


def test_own_formats_are_not_replaced_by_installed_ones(install):
    """Installing a package does not change how known files are read."""
    own = formats()["mib"]
    install(Entry("mib", MINE))
    assert formats()["mib"] is own


@pytest.mark.parametrize("value", [ImportError("no such library"), "not a format"])
def test_broken_packages_are_named_in_a_warning(install, path, value):
    """Other formats still work."""
    install(Entry("broken", value), Entry("mine", MINE))
    with pytest.warns(UserWarning, match="'broken' cannot be used"):
        assert describe(path).format == "mine"
    assert "broken" not in formats()


def test_failure_of_a_sniff_is_among_the_reasons(install, path, tmp_path):
    """Other formats are still tried."""
    install(
        Entry("careless", replace(MINE, name="careless", sniff=lambda _path, head: head[10**6]))
    )
    register_format(MINE)
    assert describe(path).format == "mine"
    (tmp_path / "unknown").write_bytes(b"something else")
    with pytest.raises(UnknownFormatError) as caught:
        describe(tmp_path / "unknown")
    assert caught.value.reasons["careless"].startswith("failed with IndexError")


@pytest.mark.parametrize(
    "format", [None, "mib", MINE.describe, type(MINE)], ids=["none", "name", "function", "class"]
)
def test_only_formats_are_registered(format):
    with pytest.raises(dask_tiled.DatasetError, match="not a format"):
        register_format(format)


def test_extensions_have_a_dot():
    with pytest.raises(DatasetError, match=r"expected \.spe; found spe"):
        replace(MINE, extensions=("spe",))
    with pytest.raises(DatasetError, match=r"expected \('\.spe',\); found '\.spe'"):
        replace(MINE, extensions=".spe")


def test_describe_must_return_a_description(path, monkeypatch):
    monkeypatch.setitem(_registered, "mine", replace(MINE, describe=lambda *_: None))
    with pytest.raises(DatasetError, match="must return a Description; found NoneType"):
        describe(path, format="mine")


def test_formats_of_the_suffix_are_asked_first(install, path):
    """Files with a known suffix are not shown to every format."""
    asked = []
    other = replace(MINE, name="other", sniff=lambda path, _head: asked.append(path))
    install(Entry("other", replace(other, extensions=(".else",))), Entry("mine", MINE))
    assert describe(path).format == "mine"
    assert not asked


@pytest.mark.parametrize(
    ("content", "most"),
    [(b"a note about the night\n", 1), (b"a note\n" * 1000, 3), (b"\0" * 99, 1)],
)
def test_the_head_of_a_file_is_read_once(tmp_path, monkeypatch, content, most):
    """Of a longer file, HDF5 is looked for behind a user block of 4096 bytes, too."""
    path, opened = tmp_path / "notes.txt", []
    path.write_bytes(content)
    open_regular = file._regular

    def counted(path, *flags):
        opened.append(path)
        return open_regular(path, *flags)

    monkeypatch.setattr(file, "_regular", counted)
    with pytest.raises(UnknownFormatError):
        dask_tiled.describe(path)
    assert opened
    assert len(opened) <= most
