"""Arrays, descriptions and formats as text and as HTML."""

import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import dask_tiled
from dask_tiled import describe
from dask_tiled.testing import write_dm, write_mib

CALIBRATIONS = [(0.0, 2.0, "nm"), (0.0, 2.0, "nm"), (-3.0, 0.5, "mrad"), (-3.0, 0.5, "mrad")]


@pytest.fixture
def arr(tmp_path):
    path = tmp_path / "&lt;scan&gt;.dm4"
    write_dm(path, np.ones((6, 4, 5), "u2"), nav_shape=(2, 3), calibrations=CALIBRATIONS)
    return dask_tiled.open_dataset(path)


def test_arrays_have_the_attributes_of_their_descriptions(arr):
    desc = arr.description
    assert arr.dims == desc.dims == ("scan_y", "scan_x", "y", "x")
    assert arr.axes == desc.axes
    assert arr[0].axes == desc.axes[1:]
    assert arr.metadata is desc.metadata
    assert arr.instrument is desc.instrument


def test_arrays_with_assigned_items_have_no_axes(arr):
    arr[0, 0] = 3
    assert not hasattr(arr, "dims")
    with pytest.raises(AttributeError, match="axes is not available: items have been assigned"):
        arr.axes  # noqa: B018
    assert "dm" not in arr._repr_html_()


def rows_of(page):
    """Return the rows of the only table of a page, and the texts of its drawing."""
    root = ET.fromstring(page)  # noqa: S314 - it is our own
    (table,) = root.iter("table")
    rows = {row[0].text: row[1].text for row in table.iter("tr")}
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    return rows, texts


def test_html_of_an_array(arr):
    rows, drawn = rows_of(arr._repr_html_())
    assert rows["files"].endswith("&lt;scan&gt;.dm4")
    assert rows["navigation"] == "scan_y 2 (steps of 2 nm), scan_x 3 (steps of 2 nm)"
    assert rows["signal"].startswith("y 4 (steps of 0.5 mrad")
    assert (rows["dtype"], rows["size"], rows["io"]) == ("uint16", "240 B", "auto")
    assert (
        rows["chunks"] == "1 of 2 \N{MULTIPLICATION SIGN} 3 \N{MULTIPLICATION SIGN} 4 "
        "\N{MULTIPLICATION SIGN} 5, 240 B"
    )
    assert {"navigation", "signal", "scan_x 3 \N{MULTIPLICATION SIGN} 2 nm"} <= {*drawn}
    assert "picture" not in rows
    assert "corrected" not in rows


def test_html_inherits_the_colours_of_the_page(arr):
    page = arr._repr_html_()
    assert "currentColor" in page
    assert not {"background", "black", "white", "#fff", "#000"} & {*re.findall(r"[#\w]+", page)}


@pytest.mark.parametrize("index", [0, (0, 0), (0, 0, 0, 0), (..., slice(1, 3))])
def test_html_of_slices(arr, index):
    rows, _ = rows_of(arr[index]._repr_html_())
    assert rows["format"] == "dm"


def test_html_shows_corrections_and_missing_frames(tmp_path):
    path = write_mib(tmp_path / "a.mib", np.ones((2, 3, 4, 5), "u2"))
    assert rows_of(dask_tiled.open_dataset(path)._repr_html_())[0]["dtype"] == "uint16, counts"
    done = dask_tiled.Corrections(dark=np.ones((4, 5)), excluded_pixels=[(1, 1), (3, 3)])
    options = {"corrections": done, "nav_shape": (3, 3), "missing": "fill", "chunks": (1, 3, 4, 5)}
    rows, _ = rows_of(dask_tiled.open_dataset(path, **options)._repr_html_())
    assert rows["dtype"] == "float32"
    assert rows["corrected"] == "dark, 2 excluded pixels"
    assert rows["missing"] == "3 of 9 frames, shown as 0.0"
    assert "exposure time 1 ms" in rows["instrument"]
    assert rows["chunks"].startswith("3 of 1")


def test_html_names_the_other_pictures_of_a_file(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "several.h5", "w") as file:
        for k, name in enumerate(["scan", "HAADF", "<b>"]):
            file[f"data/{name}"] = np.ones((9 - k, 4))
    arr = dask_tiled.open_dataset(tmp_path / "several.h5", dataset="data/HAADF")
    picture = rows_of(arr._repr_html_())[0]["picture"]
    assert picture == "2 of 3, HAADF; the others: scan, <b>"
    assert "<b>" not in arr._repr_html_().replace("&lt;b&gt;", "")


def test_descriptions_name_the_other_series_of_a_tiff_file(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    with tifffile.TiffWriter(tmp_path / "several.tif") as file:
        for k in range(2):
            file.write(np.ones((16, 9 + k), "u2"), metadata=None)
    assert "1 of 2, dataset_0; the others: dataset_1" in repr(describe(tmp_path / "several.tif"))


@pytest.mark.thorough
def test_html_of_many_chunks_is_small(tmp_path):
    path = tmp_path / "hole.raw"
    with path.open("wb") as file:
        file.truncate(1_000_000)
    arr = dask_tiled.open_dataset(path, "raw", dtype="u1", sig_shape=(1,), chunks=(1, 1))
    assert len(arr._repr_html_()) < 20_000


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


def test_hostile_text_is_escaped(tmp_path):
    """Tables and pages have no control characters and no markup of files, and can be encoded."""
    desc = describe(write_mib(tmp_path / "a.mib", np.zeros((2, 3, 4, 5), "u2")))
    axes = [replace(axis, units=HOSTILE) for axis in desc.axes]
    metadata = {HOSTILE: {HOSTILE: HOSTILE}}
    hostile = replace(desc, format=HOSTILE, axes=tuple(axes), metadata=metadata)
    assert repr(hostile).replace("\n", "").isprintable()
    page = hostile._repr_html_()
    assert page.replace("\n", "").isprintable()
    assert "<b>" not in page
    page.encode()


def test_pages_of_long_metadata_are_short(tmp_path):
    desc = describe(write_mib(tmp_path / "a.mib", np.zeros((2, 3, 4, 5), "u2")))
    long = {"text": "a" * 10**7, "lines": "b\n" * 10**6, "many": dict.fromkeys(range(10**5), 0)}
    page = replace(desc, metadata=long)._repr_html_()
    assert len(page) < 10**5
    assert page.count("a" * 900) == page.count("</pre>") == 1
    assert page.rstrip().endswith("...</pre></details>")
