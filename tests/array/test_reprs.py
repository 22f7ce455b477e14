"""What arrays, descriptions and formats say of themselves, as text and in notebooks."""

from dataclasses import replace

import numpy as np
import pytest

import dask_tiled
from dask_tiled import describe
from dask_tiled.testing import write_dm, write_mib

CALIBRATIONS = [(0.0, 2.0, "nm"), (0.0, 2.0, "nm"), (-3.0, 0.5, "mrad"), (-3.0, 0.5, "mrad")]


@pytest.fixture
def arr(tmp_path):
    path = tmp_path / "<scan>.dm4"
    write_dm(path, np.ones((6, 4, 5), "u2"), nav_shape=(2, 3), calibrations=CALIBRATIONS)
    return dask_tiled.open_dataset(path)


def test_arrays_have_what_their_descriptions_have(arr):
    desc = arr.description
    assert arr.dims == desc.dims == ("scan_y", "scan_x", "y", "x")
    assert arr.axes == desc.axes
    assert arr[0].axes == desc.axes[1:]
    assert arr.metadata is desc.metadata
    assert arr.instrument is desc.instrument


def test_what_was_assigned_to_has_no_axes(arr):
    arr[0, 0] = 3
    assert not hasattr(arr, "dims")
    with pytest.raises(AttributeError, match="no axes: items have been assigned"):
        arr.axes  # noqa: B018
    assert "dm" not in arr._repr_html_()


def test_html_of_an_array(arr):
    page = arr._repr_html_()
    assert "<svg" in page  # that of dask
    for text in ("&lt;scan&gt;.dm4", "scan_y 2", "nm", "mrad"):
        assert text in page, text


def test_descriptions_are_tables(arr):
    first, *others = repr(arr.description).splitlines()
    assert first.split() == ["format", "dm"]
    assert len({line.index(line.split(maxsplit=1)[1]) for line in others}) == 1
    assert str(arr.description) == repr(arr.description)


def test_formats_are_a_table():
    known = dask_tiled.formats()
    heads, *lines = repr(known).splitlines()
    assert heads.split("  ")[0] == "format"
    assert [line.split()[0] for line in lines] == [*known]
    assert (
        len({line.index(one.summary) for line, one in zip(lines, known.values(), strict=True)}) == 1
    )
    assert all(one.summary.replace("&", "&amp;") in known._repr_html_() for one in known.values())


HOSTILE = "<b>\x1b[31m\x00\ud800\u202e"


def test_no_text_of_a_file_steers_what_shows_it(tmp_path):
    """Tables and pages have no control characters, no markup of files, and can be encoded."""
    desc = describe(write_mib(tmp_path / "a.mib", np.zeros((2, 3, 4, 5), "u2")))
    axes = [replace(axis, units=HOSTILE) for axis in desc.axes]
    metadata = {HOSTILE: {HOSTILE: HOSTILE}}
    hostile = replace(desc, format=HOSTILE, axes=tuple(axes), metadata=metadata)
    assert repr(hostile).replace("\n", "").isprintable()
    page = hostile._repr_html_()
    assert page.replace("\n", "").isprintable()
    assert "<b>" not in page
    page.encode()


def test_pages_are_short_whatever_a_file_says(tmp_path):
    desc = describe(write_mib(tmp_path / "a.mib", np.zeros((2, 3, 4, 5), "u2")))
    long = {"text": "a" * 10**7, "lines": "b\n" * 10**6, "many": dict.fromkeys(range(10**5), 0)}
    page = replace(desc, metadata=long)._repr_html_()
    assert len(page) < 10**5
    assert page.count("a" * 900) == page.count("</pre>") == 1
    assert page.rstrip().endswith("...</pre></details>")
