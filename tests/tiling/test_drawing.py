"""Pictures of tiling schemes: correct, small and well-formed."""

import dataclasses
import re
import sys
from xml.etree import ElementTree as ET

import pytest

import dask_tiled
from dask_tiled import TilingRequest, negotiate
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Cut


@pytest.fixture(scope="module")
def describe(tmp_path_factory):
    """Return a function that describes a sparse file of given shapes."""
    folder = tmp_path_factory.mktemp("drawing")

    def make(nav, sig):
        path = folder / "hole.raw"
        size = 2
        for n in (*nav, *sig):
            size *= n
        with path.open("wb") as file:
            file.truncate(size)
        shapes = {"nav_shape": nav or (1,), "sig_shape": sig}
        desc = dask_tiled.describe(path, "raw", dtype="u2", **shapes)
        if not nav:
            desc = desc.cut([Cut(0, 1, 1, kept=False)] + [Cut(0, 1, n) for n in sig])
        return desc

    return make


TIMES = " \N{MULTIPLICATION SIGN} "
SHAPES = [
    ((), (8,)),
    ((), (64, 64)),
    ((100,), (1000,)),
    ((256, 256), (64, 64)),
    ((3, 4, 5), (16, 16)),
    ((2, 3, 4, 5), (4, 16, 16)),
    ((1, 5000), (1, 4)),
]


@pytest.mark.parametrize(("nav", "sig"), SHAPES)
@pytest.mark.parametrize("wish", [TilingRequest(), TilingRequest("pixel", nbytes=9999)], ids=str)
def test_pictures_are_well_formed(describe, nav, sig, wish):
    scheme = negotiate(describe(nav, sig), wish, chunk_bytes=100_000)
    page = scheme._repr_html_()
    root = ET.fromstring(page)  # noqa: S314 - trusted
    (svg,) = root.findall("{*}svg")
    _, _, width, height = map(float, svg.get("viewBox").split())
    texts = [text.text for text in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert TIMES.join(map(str, scheme.tile_shape)) in " ".join(texts)
    for shape in svg:
        for x, y in re.findall(r"(-?[\d.]+),(-?[\d.]+)", shape.get("points", "")):
            assert 0 <= float(x) <= width
            assert 0 <= float(y) <= height
    cells = [cell.text for cell in root.iter("td")]
    assert cells == [reason for _, reason in scheme.reasons]


def lines_of(page):
    return page.count("<polyline")


def test_chunks_and_tiles_are_drawn(describe):
    desc = describe((8, 8), (64, 64))
    scheme = negotiate(desc, chunk_bytes=16 * 8192, cache_bytes=1)
    assert scheme.chunks[0] == (2,) * 4
    assert scheme.tile_shape == (16, 64, 64)
    tiles = dataclasses.replace(scheme, tile_shape=(4, 16, 64))
    assert lines_of(scheme._repr_html_()) == 3
    assert scheme._repr_html_().count(' fill-opacity="0.4"') == 2  # one a plane
    assert lines_of(tiles._repr_html_()) == 3 + 3 + 3
    assert "not all cuts" not in tiles._repr_html_()
    many = dataclasses.replace(scheme, tile_shape=(1, 1, 1))
    assert "not all cuts are drawn: chunk" in many._repr_html_()
    assert lines_of(many._repr_html_()) < 100


@pytest.mark.thorough
def test_pictures_of_a_million_chunks_are_small(describe):
    desc = describe((1_000_000,), (4,))
    scheme = negotiate(desc, chunk_bytes=8)
    assert len(scheme.chunks[0]) == 1_000_000
    assert len(scheme._repr_html_()) < 20_000
    assert "1,000,000 chunks" in scheme._repr_html_()
    assert "not all cuts are drawn: navigation" in scheme._repr_html_()


def test_names_are_escaped(describe):
    desc = describe((4, 4), (8, 8))
    axes = (Axis("<script>&"), *desc.axes[1:])
    page = negotiate(dataclasses.replace(desc, axes=axes))._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;&amp;" in page


def test_pictures_use_the_text_colour(describe):
    page = negotiate(describe((4, 4), (8, 8)))._repr_html_()
    assert "currentColor" in page
    assert "black" not in page
    assert "white" not in page


@pytest.mark.parametrize(("nav", "sig"), SHAPES[::3])
def test_plots(describe, nav, sig, tmp_path):
    figure_module = pytest.importorskip("matplotlib.figure")
    scheme = negotiate(describe(nav, sig), chunk_bytes=100_000)
    figure = scheme.plot()
    assert isinstance(figure, figure_module.Figure)
    (axes,) = figure.axes
    texts = {text.get_text(): text.get_ha() for text in axes.texts}
    assert TIMES.join(map(str, scheme.tile_shape)) in " ".join(texts)
    for text, anchor in texts.items():
        beside = re.fullmatch("[0-9,]+ frames?|not all cuts are drawn.*", text)
        assert anchor == ("left" if beside else "center"), text
    for patch in axes.patches:  # bodies and tiles have lines of their colour
        face, line = patch.get_facecolor(), patch.get_edgecolor()
        assert not face[3] or not patch.get_linewidth() or face[:3] == line[:3]
    figure.savefig(tmp_path / "scheme.svg")
    assert (tmp_path / "scheme.svg").stat().st_size > 1000


def test_plots_without_matplotlib(describe, monkeypatch):
    scheme = negotiate(describe((4, 4), (8, 8)))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"dask-tiled\[plot\]"):
        scheme.plot()


def test_plots_have_a_png_repr(describe):
    data, told = negotiate(describe((4, 4), (8, 8))).plot()._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert 300 < told["width"] <= 960
