"""Pictures of tiling schemes: correct, small and well-formed."""

import dataclasses
import re
import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import dask_tiled
from dask_tiled import TilingRequest, negotiate
from dask_tiled.model.axes import Axis
from dask_tiled.model.indexing import Cut
from dask_tiled.tiling.pictures import Drawing, Shape, Text, picture


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
    counts = [*map(len, scheme.chunks)]
    panels = [counts[: len(nav)]] * bool(nav) + [counts[len(nav) :]]
    assert texts.count("not cut") == [*map(max, panels)].count(1)
    assert texts.count("one frame") == (not nav)
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


def drawn_by_hand():
    """Return a picture of 2 x 2 scan chunks, 2 parts of frames and tiles of 3 x 1 x 4 pixels.

    Panels of at most 168 points are 46 apart and end 152 points below the top: titles have 40, the
    frames of a chunk 42, and 42 more as they recede by 84 points at 30 degrees.
    """
    z, half = 84 * 3**0.5 / 2, 42 * 3**0.5 / 2
    faces = [
        ((474, 110), (642, 110), (642, 152), (474, 152)),
        ((474, 110), (474 + z, 68), (642 + z, 68), (642, 110)),
        ((642, 110), (642 + z, 68), (642 + z, 110), (642, 152)),
    ]
    parts = [
        Shape("cut", ((46, 96), (214, 96))),
        Shape("cut", ((130, 40), (130, 152))),
        Shape("outline", ((46, 40), (214, 40), (214, 152), (46, 152))),
        Shape("chunk", ((46, 96), (130, 96), (130, 152), (46, 152))),
        Text("navigation", 130, 18, bold=True),
        Text(f"4 chunks of 2{TIMES}3", 130, 184),
        Text("x 6", 130, 168),
        Text(f"y 4{TIMES}0.5 nm", 38, 96, upright=True),
        Shape("cut", ((260, 110), (428, 110))),
        Shape("outline", ((260, 68), (428, 68), (428, 152), (260, 152))),
        Shape("chunk", ((260, 68), (428, 68), (428, 110), (260, 110))),
        Text("signal", 344, 18, bold=True),
        Text(f"2 chunks of 2{TIMES}8", 344, 184),
        Text("kx 8", 344, 168),
        Text("ky 4", 252, 110, upright=True),
        *(Shape("body", points) for points in faces),
        Shape("cut", ((474, 131), (642, 131), (642 + z, 89))),
        Shape("cut", ((558, 152), (558, 110), (558 + z, 68))),
        Shape("cut", ((474 + half, 89), (642 + half, 89), (642 + half, 131))),
        *(Shape("outline", points) for points in faces),
        Shape("tile", ((474, 110), (558, 110), (558, 131), (474, 131))),
        Shape("tile", ((474, 110), (474 + half, 89), (558 + half, 89), (558, 110))),
        Text("6 frames", 648 + half, 145, anchor="start"),
        Text("one chunk, 192 B", 558, 18, bold=True),
        Text(f"8 tiles of 3{TIMES}1{TIMES}4", 558, 184),
        Text("uint16, 24 B", 558, 199),
    ]
    return Drawing(688 + z, 224, parts)


def rounded(value):
    """Return nested tuples with numbers that have one decimal, as SVG does."""
    if isinstance(value, list | tuple):
        return tuple(map(rounded, value))
    return value if isinstance(value, str) else round(float(value), 1)


def test_places_in_pictures():
    axes = Axis("y", "nm", 0.5), Axis("x"), Axis("ky"), Axis("kx")
    chunks, edges = ((2, 2), (3, 3), (2, 2), (8,)), [[0, 3, 6], [0, 1, 2], [0, 4, 8]]
    made = picture(chunks, axes, (1, 0, 0, 0), (3, 1, 4), np.dtype("u2"), edges)
    assert rounded(made) == rounded(drawn_by_hand())


@pytest.mark.parametrize(
    ("chunks", "tile", "edges", "top", "bottom"),
    [
        (((8,),), (1, 8), [[0, 1], [0, 8]], 174.4, 208),  # below a square; ratios are 1:5 at most
        (((5,),), (5,), [[0, 5]], 82, 250),  # a square, and half of its depth
    ],
)
def test_chunks_of_lines_and_points(chunks, tile, edges, top, bottom):
    made = picture(chunks, [Axis("k")], (0,), tile, np.dtype("u2"), edges)
    front = next(one.points for one in made.parts if one[0] == "body")
    assert rounded(front) == ((474, top), (642, top), (642, bottom), (474, bottom))


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
    page = figure.get_size_inches() * 72
    corners = axes.transData.transform([(0, page[1]), (page[0], 0)]) * 72 / figure.dpi
    np.testing.assert_allclose(corners, [(0, 0), page], atol=1e-9)  # points of the page
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
