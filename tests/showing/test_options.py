"""Options of `show`: several arrays, axes of the user, colours, letters, overlays, publications."""

import re
import zlib
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import tifffile
from matplotlib import pyplot as plt
from matplotlib.colors import LogNorm, PowerNorm
from matplotlib.figure import Figure
from matplotlib.testing.compare import compare_images
from mpl_toolkits.axes_grid1.anchored_artists import AnchoredSizeBar

from dask_tiled import DatasetError, open_dataset, show
from dask_tiled.measuring.disk_fits import Circle
from dask_tiled.model.axes import Axis
from dask_tiled.opened.axes import labelled
from dask_tiled.reading.counting import counted
from dask_tiled.showing.wrapping import wrap
from dask_tiled.testing import write_mib

PICTURES = Path(__file__).parent / "pictures"
TOLERANCE = 12
"""Root mean square of differences, of 255; letters of another FreeType differ by less."""
SCAN = Axis("scan_y", "nm", 0.5), Axis("scan_x", "nm", 0.5)
ROWS, COLUMNS = np.mgrid[:12, :16]
RAMP = labelled(da.from_array(16.0 * ROWS + COLUMNS), SCAN, "counts")
"""0 to 191 on 6 nm x 8 nm."""
CHECKS = labelled(da.from_array((ROWS // 4 + COLUMNS // 4) % 2), SCAN)
AROUND = np.stack([ROWS - 5.5, COLUMNS - 7.5], axis=-1)
VECTORS = labelled(da.from_array(AROUND), [*SCAN, Axis("component", labels=("y", "x"))], "px")
WAVE = np.exp(2j * np.pi * COLUMNS / 16) * (1 + ROWS)


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def letters(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def limits(figure):
    return [axes.images[0].get_clim() for axes in figure.axes]


def bars(figure):
    """Return the lengths of the scale bars, in units of the axes."""
    artists = (one for axes in figure.axes for one in axes.artists)
    found = (one for one in artists if isinstance(one, AnchoredSizeBar))
    return [bar.size_bar.get_children()[0].get_width() for bar in found]


DRAWN = {
    "maps": lambda: show(
        {"Ramp": RAMP, "Checks": CHECKS, "Field": VECTORS, "Wave": WAVE},
        style="publication", columns=2, width=90, cmap={"Ramp": "viridis"},
    ),
    "overlays": lambda: show(
        {"Mask": RAMP, "Disk": CHECKS}, width=120, labels="(ABC)",
        overlay={"Mask": [ROWS + COLUMNS < 6, [(5.0, 6.0)]], "Disk": Circle(6, 8, 4)},
    ),
    "arrows": lambda: show([VECTORS], vectors="arrows", title="Arrows", width=80),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("name", DRAWN)
def test_pictures(name, tmp_path):
    """The pictures were checked by eye; flipped, they would be refused."""
    DRAWN[name]().savefig(tmp_path / f"{name}.png", dpi=100, facecolor="white")
    kept = PICTURES / f"{name}.png"
    assert compare_images(kept, tmp_path / f"{name}.png", TOLERANCE) is None
    plt.imsave(tmp_path / "flipped.png", plt.imread(kept)[::-1])
    assert compare_images(kept, tmp_path / "flipped.png", TOLERANCE) is not None


@pytest.mark.thorough
def test_several_arrays_have_a_panel_each():
    figure = show({"a": RAMP, "b": VECTORS, "c": np.eye(9)})
    assert (titles(figure), letters(figure)) == (["a", "b", "c"], ["a", "b", "c"])
    assert titles(show([RAMP, VECTORS])) == ["", "Direction and length"]
    masks = labelled(da.ones((12, 16, 2)), [*SCAN, Axis("mask", labels=("in", "out"))])
    assert titles(show({"Fields": masks, "ramp": RAMP})) == ["Fields: in", "Fields: out", "ramp"]
    places = [axes.get_subplotspec() for axes in show([RAMP] * 5, columns=4).axes]
    assert [(place.rowspan.start, place.colspan.start) for place in places] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3),
    ]  # fmt: skip


@pytest.mark.thorough
def test_datasets_of_xarray_have_a_panel_for_each_variable():
    xr = pytest.importorskip("xarray")
    maps = xr.Dataset({name: (("y", "x"), np.eye(5) * k) for k, name in enumerate("abc", 1)})
    figure = show(maps)
    assert titles(figure) == ["a", "b", "c"]
    assert [axes.images[0].get_array().max() for axes in figure.axes] == [1, 2, 3]
    assert titles(show([maps["c"], np.eye(4)])) == ["c", ""]


@pytest.mark.thorough
def test_several_results_read_a_file_once(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 99, (6, 7, 16, 16), "u2")
    arr = open_dataset(write_mib(tmp_path / "scan.mib", pixels))
    show([arr.sum((2, 3))])  # compiled, and headers are read
    with counted() as once:
        show([arr.sum((2, 3))])
    with counted() as counter:
        figure = show({"sum": arr.sum((2, 3)), "most": arr.max((2, 3)), "mean": arr.mean((0, 1))})
    assert counter.nbytes == once.nbytes >= pixels.nbytes
    expected = [pixels.sum((2, 3)), pixels.max((2, 3)), pixels.mean((0, 1))]
    for axes, values in zip(figure.axes, expected, strict=True):
        np.testing.assert_allclose(axes.images[0].get_array(), values)
    assert figure.get_suptitle() == "scan.mib"


def test_methods_of_opened_arrays(tmp_path):
    arr = open_dataset(write_mib(tmp_path / "scan.mib", np.ones((6, 7, 16, 16), "u2")))
    figure = arr[2, 3].show(title="Ones", cmap="magma")
    assert figure.get_suptitle().strip() == "Ones"
    assert figure.axes[0].images[0].get_cmap().name == "magma"


def test_axes_of_the_user():
    figure, axes = plt.subplots(1, 2, layout="constrained")
    try:
        assert show([RAMP, VECTORS], ax=axes) is figure
        assert axes[0].images[0].get_array().tolist() == RAMP.compute().tolist()
        assert figure.axes == [*axes]
        assert not figure.get_suptitle()
        (left,) = plt.figure().subplots(1, 1, squeeze=False)[0]
        show(VECTORS, ax=left, title="mine", labels="abc")  # the first picture
        assert left.get_title() == "mine"
        sampled = plt.figure().add_subplot()
        show(np.ones((40, 5, 6)), ax=sampled, frames=10)
        assert "a sample: 10 of 40 frames" in sampled.get_xlabel()
    finally:
        plt.close("all")


LIMITS = {
    "usual": ({}, (0.005 * 191, 0.995 * 191)),
    "percentiles": ({"percentiles": (0, 50)}, (0, 95.5)),
    "both": ({"vmin": -3, "vmax": 7.5}, (-3, 7.5)),
    "one": ({"vmin": 10, "percentiles": (1, 100)}, (10, 191)),
    "below": ({"vmax": -5}, (-6, -5)),
    "log": ({"norm": "log", "percentiles": (0, 100)}, (1, 191)),
    "norm": ({"norm": LogNorm(2, 20)}, (2, 20)),
    "no logarithm": ({"norm": "log", "vmax": 0.5}, (0.05, 0.5)),
    "title": ({"vmax": {"Ramp": 50}, "vmin": {0: 3}}, (3, 50)),
}


@pytest.mark.parametrize("kind", LIMITS)
def test_limits(kind):
    options, expected = LIMITS[kind]
    (found,) = limits(show({"Ramp": RAMP}, **options))
    assert found == pytest.approx(expected)


@pytest.mark.thorough
def test_gamma_needs_open_limits():
    dark = np.where(np.arange(400).reshape(20, 20) % 10 == 0, 1000.0, 1.0)
    bar = show(dark).axes[0].child_axes[0]
    assert "gamma" in bar.get_ylabel()
    for options in ({"vmax": 1000}, {"percentiles": (0, 100)}, {"style": "publication"}):
        bar = show(dark, **options).axes[0].child_axes[0]
        assert "gamma" not in bar.get_ylabel()


@pytest.mark.thorough
def test_colour_maps_of_panels():
    figure = show({"a": RAMP, "b": CHECKS}, cmap={"a": "magma", 1: "RdBu"})
    assert [axes.images[0].get_cmap().name for axes in figure.axes] == ["magma", "RdBu"]
    lines = show(np.arange(1.0, 99), vmin=0.5, vmax=200, norm="log").axes[0]
    assert (lines.get_ylim(), lines.get_yscale()) == ((0.5, 200), "log")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [("ABC", "A B"), ("(abc)", "(a) (b)"), ("123", "1 2"), (["x", "ii"], "x ii"), ("", "")],
)
def test_letters(labels, expected):
    assert " ".join(letters(show([RAMP, CHECKS], labels=labels))) == expected


@pytest.mark.thorough
def test_scale_bars_have_round_lengths():
    """A third of 8 nm at most, of 1, 2 or 5 times a power of ten."""
    assert bars(show(RAMP)) == [2]
    assert bars(show(RAMP, scalebar=False)) == bars(show(np.eye(5))) == []
    figure = show(RAMP, style="publication")
    assert bars(figure) == [2]
    assert not figure.axes[0].xaxis.get_visible()
    assert show(RAMP, style="publication", scalebar=False).axes[0].xaxis.get_visible()
    assert not show(np.eye(5), ticks=False).axes[0].xaxis.get_visible()
    assert show(RAMP, colorbar=False).axes[0].child_axes == []


@pytest.mark.thorough
def test_complex_numbers():
    figure = show(WAVE)
    both, amplitude, phase = figure.axes
    assert titles(figure) == ["Phase and amplitude", "Amplitude", "Phase"]
    np.testing.assert_array_equal(amplitude.images[0].get_array(), np.abs(WAVE))
    np.testing.assert_array_equal(phase.images[0].get_array(), np.angle(WAVE))
    colours = np.asarray(both.images[0].get_array())[-1]  # a turn, along the brightest row
    assert colours[0].tolist() == [255, 25, 25]  # phase 0 is red, at saturation 0.9
    assert colours[8].tolist() == [25, 255, 255]  # phase pi is the opposite colour
    assert np.array_equal(
        np.asarray(show(np.stack([WAVE] * 2, -1)).axes[1].images[0].get_array()), abs(WAVE)
    )
    lines = show(WAVE[3])
    assert titles(lines) == ["Amplitude", "Phase"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("vectors", "colours", "arrows"), [("both", 3, 1), ("colours", 3, 0), ("arrows", 2, 1)]
)
def test_vectors(vectors, colours, arrows):
    first = show(VECTORS, vectors=vectors).axes[0]
    assert (first.images[0].get_array().ndim, len(first.collections)) == (colours, arrows)
    legend = first.child_axes[0]
    told = legend.get_ylabel() if vectors == "arrows" else legend.texts[0].get_text()
    assert told.endswith("px")


def marks(figure):
    """Return the ends of lines, and the positions, over the first picture."""
    axes = figure.axes[0]
    lines = [path.vertices for one in axes.collections for path in one.get_paths()]
    return lines, [line.get_xydata().tolist() for line in axes.lines]


@pytest.mark.thorough
def test_overlays():
    mask = np.zeros((12, 16))
    mask[2:4, 5:8] = 7
    lines, _ = marks(show(RAMP, overlay=mask))
    assert len(lines) == 2 * (2 + 3)  # the edges of the rectangle, in nm
    ends = np.concatenate(lines)
    assert np.allclose(ends.min(0), (2.25, 0.75), atol=0)
    assert np.allclose(ends.max(0), (3.75, 1.75), atol=0)
    (edge,), _ = marks(show(RAMP, overlay=Circle(6, 8, 4)))
    assert np.allclose(np.hypot(edge[:, 0] - 4, edge[:, 1] - 3), 2)
    _, (places,) = marks(show(RAMP, overlay=[(1, 2.5), (3, 4)]))
    assert places == [[2.5, 1], [4, 3]]
    both = show({"a": RAMP, "b": CHECKS}, overlay={"b": [Circle(6, 8, 4), mask]})
    assert [len(axes.collections) for axes in both.axes] == [0, 2]


def test_overlays_on_thinned_pictures(monkeypatch):
    monkeypatch.setattr("dask_tiled.showing.subject.LONGEST", 8)
    mask = np.zeros((12, 16), bool)
    mask[4:8, 4:8] = True
    lines, _ = marks(show(RAMP, overlay=mask))
    assert len(lines) == 8  # 2 x 2 of the pixels that are shown
    (edge,), _ = marks(show(RAMP, overlay=Circle(6, 8, 4)))
    assert np.allclose(np.hypot(edge[:, 0] - 4, edge[:, 1] - 3), 2)


def objects(pdf):
    """Return the dictionaries of objects, and all compressed ones."""
    text = pdf.decode("latin1")
    return re.findall(r"\d+ 0 obj\n(<<.*?>>)\n(?:stream|endobj)", text, re.DOTALL)


@pytest.mark.thorough
def test_publications_as_pdf(tmp_path):
    """Pictures have their own pixels, fonts are embedded as TrueType, and the page has its size."""
    show({"A": RAMP, "B": CHECKS}, tmp_path / "a.pdf", style="publication", width=120)
    pdf = (tmp_path / "a.pdf").read_bytes()
    streams = (part.split(b"endstream")[0].strip(b"\r\n") for part in pdf.split(b"stream")[1:])
    packed = b"".join(map(inflated, streams)).decode("latin1")
    sizes = re.findall(r"/Subtype /Image\b[^>]*", "".join(objects(pdf)), re.DOTALL)
    shapes = [
        tuple(int(re.search(rf"/{name} (\d+)", one)[1]) for name in ("Width", "Height"))
        for one in sizes
    ]
    assert shapes.count((16, 12)) == 2
    assert len(shapes) == 4  # and two colour bars
    fonts = "".join(objects(pdf)) + packed
    assert "/FontFile2" in fonts
    assert "/Type3" not in fonts
    box = re.search(r"/MediaBox \[ ?0 0 ([\d.]+) ([\d.]+)", fonts)
    assert float(box[1]) == pytest.approx(120 / 25.4 * 72, abs=0.1)
    assert 25 < float(box[2]) / 72 * 25.4 < 70


def inflated(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return b""


def test_publications_as_svg(tmp_path):
    figure = show({"A": RAMP}, style="publication", title="T")
    figure.savefig(tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text("utf8")
    assert text.count("<image") == 2  # the picture and its colour bar
    assert {">A<", ">T<", ">2 nm<"} <= {*re.findall(r">[^<>\n]+<", text)}
    assert "an array" not in text
    assert figure.get_facecolor() == (1, 1, 1, 1)
    assert figure.get_figwidth() == pytest.approx(90 / 25.4)


@pytest.mark.thorough
def test_notes_are_kept_for_captions(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 99, (6, 7, 16, 16), "u2")
    path = write_mib(tmp_path / "scan.mib", pixels)
    figure = show(path, frames=12, style="publication")
    assert "a sample: 12 of 42 frames" in figure.notes[0]
    assert not any("sample" in text.get_text() for text in figure.texts)
    nothing = show({"a": RAMP, "b": np.full((4, 5), np.nan)})
    assert nothing.notes == ("b: no finite values",)


WRONG = {
    "unknown colour map.*virid": {"cmap": "viridiss"},
    "unknown norm.*asinh": {"norm": "logg"},
    "limits are given twice": {"norm": LogNorm(), "vmin": 1},
    "vmin below vmax; found vmin=2": {"vmin": 2, "vmax": 1},
    "invalid vmax.*finite": {"vmax": np.inf},
    "invalid vmin.*above 0": {"norm": "log", "vmin": 0},
    "invalid percentiles": {"percentiles": (99, 1)},
    "cmap: no such picture.*'Ramp' or 0": {"cmap": {"Ram": "gray"}},
    "invalid labels.*sequence": {"labels": "xyz"},
    "one for each of 1 pictures": {"labels": ["a", "b"]},
    "invalid vectors": {"vectors": "lines"},
    "unknown style": {"style": "paper"},
    "invalid width.*20 to 2000 mm": {"width": 0},
    "columns": {"columns": 0},
    "invalid ax.*axes of matplotlib; found int": {"ax": 3},
    r"invalid overlay.*shape \(12, 16\).*found shape \(3, 4\)": {"overlay": np.ones((3, 4))},
    "invalid overlay.*found str": {"overlay": "disk"},
    "invalid overlay.*no finite values": {"overlay": np.full((12, 16), np.nan)},
    r"unknown colour map.*found \['gray'\]": {"cmap": ["gray"]},
    "cmap: a picture is named twice": {"cmap": {0: "gray", "Ramp": "magma"}},
    "invalid title.*text; found 3": {"title": 3},
    "invalid target.*a path or a file; found 3": {"target": 3},
    "invalid labels.*found 3": {"labels": 3},
    "invalid scalebar.*found 'no'": {"scalebar": "no"},
    "invalid ticks.*None; found 'x'": {"ticks": "x"},
}


@pytest.mark.parametrize("problem", WRONG)
def test_wrong_options(problem):
    with pytest.raises(DatasetError, match=f"(?s){problem}"):
        show({"Ramp": RAMP}, **WRONG[problem])


LINE = np.arange(1.0, 99)


@pytest.mark.parametrize(
    ("arr", "kind", "options"),
    [
        (LINE, "lines", {"cmap": "gray"}),
        (LINE, "lines", {"percentiles": (1, 2)}),
        (LINE, "lines", {"norm": LogNorm()}),
        ([VECTORS], "directions", {"vmin": 1}),
        ([VECTORS], "directions", {"norm": "log"}),
    ],
)
def test_options_apply_or_are_refused(arr, kind, options):
    with pytest.raises(DatasetError, match=f"does not apply.*a picture of {kind}"):
        show(arr, **options)


@pytest.mark.thorough
def test_options_for_all_apply_to_some(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.ones((12, 16, 3), "u1"), photometric="rgb")
    colours = open_dataset(tmp_path / "a.tif")
    for arr, options in (
        (colours, {"cmap": "gray"}), (colours, {"vmin": 1}), ([RAMP, colours], {"vmin": {1: 1}}),
    ):  # fmt: skip
        with pytest.raises(DatasetError, match=r"does not apply.*a picture of colours"):
            show(arr, **options)
    figure = show([RAMP, colours, LINE], cmap="magma", labels=np.array(["x", "y", "z"]))
    assert figure.axes[0].images[0].get_cmap().name == "magma"
    arrows = show([VECTORS], vectors="arrows", vmin=1, norm="log", width=np.int64(90))
    assert arrows.axes[0].images[0].norm.vmin == 1


@pytest.mark.thorough
def test_zeros_on_a_logarithmic_scale_are_dark():
    values = np.array([[0, -1, 1.0], [10, 100, np.nan]])
    for norm in ("log", LogNorm(1, 100)):
        figure = show({"a": values}, norm=norm, cmap="viridis", percentiles=None)
        (image,) = figure.axes[0].images
        colours = image.to_rgba(image.get_array())
        assert colours[0, 0].tolist() == colours[0, 1].tolist() == [*image.get_cmap()(0)]
        assert colours[1, 2, 3] == 0
        assert figure.axes[0].patch.get_hatch()
        assert figure.notes == (
            "a: 1 of 6 pixels have no value: hatched",
            "a: 2 of 6 pixels are not positive: lowest colour",
        )
    assert show(np.array([0, *LINE]), norm="log").notes == (
        "1 of 99 values are not positive: left out",
    )


@pytest.mark.thorough
def test_axes_that_do_not_fit(tmp_path):
    figure, axes = plt.subplots(1, 2)
    other, (third, _) = plt.subplots(1, 2)
    for given, options, problem in (
        ([axes[0]] * 2, {}, "the same twice"),
        ([axes[0], third], {}, "axes of 2 figures"),
        (axes, {"width": 90}, "width does not apply"),
        (axes, {"columns": 1}, "columns does not apply"),
        (axes, {"title": "T"}, "title does not apply to several"),
    ):
        with pytest.raises(DatasetError, match=problem):
            show([RAMP, RAMP], ax=given, **options)
    show(RAMP, tmp_path / "a.pdf", ax=third, style="publication")
    pdf = (tmp_path / "a.pdf").read_bytes()
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    plt.close(figure)
    plt.close(other)


def test_wrong_content():
    with pytest.raises(DatasetError, match=r"invalid title.*text; found 1"):
        show({1: RAMP})
    for far in ([[1e308, -1e308]], [1e308, -1e308] * 4):
        with pytest.raises(DatasetError, match=r"smaller range; found -1e.308 to 1e.308"):
            show(np.array(far))
    figure, axes = plt.subplots(1, 3)
    with pytest.raises(DatasetError, match=r"2 axes, for 'a', 'b'; found 3 axes"):
        show({"a": RAMP, "b": RAMP}, ax=axes)
    plt.close(figure)
    for nothing in ([], {}):
        with pytest.raises(DatasetError, match="nothing to draw"):
            show(nothing)
    with pytest.raises(DatasetError, match="on images"):
        show(np.arange(9.0), overlay=np.ones((3, 3)))
    with pytest.raises(DatasetError, match="cannot be drawn"):
        show([RAMP, np.zeros(4, [("time", "f8")])])


LONG = "Annular dark field of the sample after annealing at 900 K for two hours"


@pytest.mark.thorough
@pytest.mark.parametrize("style", [None, "publication"])
def test_long_titles_have_lines_beside_each_other(style):
    figure = show({LONG: RAMP, f"{LONG} again": RAMP}, style=style, width=120, title=3 * LONG)
    figure.draw_without_rendering()
    first, second = (axes.title.get_window_extent() for axes in figure.axes)
    assert first.x1 < second.x0
    assert all(x.x0 >= 0 and x.x1 <= figure.bbox.x1 for x in (first, second))
    assert " ".join(figure.axes[0].get_title().split()) == LONG
    assert max(map(len, figure.get_suptitle().splitlines())) < len(LONG)


def test_narrow_figures_have_their_panels_in_a_column():
    figure = show([RAMP, CHECKS], width=60)
    first, second = (axes.get_window_extent() for axes in figure.axes)
    assert first.x0 == pytest.approx(second.x0, abs=1)
    assert second.y1 < first.y0
    assert figure.get_figwidth() == pytest.approx(60 / 25.4)


def test_strips_say_that_they_have_no_scale_bar():
    axes = Axis("y", "nm", 2), Axis("x", "nm", 0.5)
    figure = show(labelled(da.from_array(np.ones((12, 8))), axes))
    assert figure.notes == ("24 by 4 nm, drawn at another ratio, without a scale bar",)
    assert not bars(figure)
    assert bars(show(labelled(da.from_array(np.ones((12, 16))), axes))) == [2]


@pytest.mark.parametrize("dtype", ["bool", "u1", "i4"])
def test_two_levels_are_not_enhanced(dtype):
    """Few pixels of a mask are bright: dark values would be enhanced, of which it has none."""
    figure = show(da.from_array((ROWS + COLUMNS < 2).astype(dtype)))
    assert limits(figure) == [(0, 1)]
    assert not isinstance(figure.axes[0].images[0].norm, PowerNorm)


@pytest.mark.parametrize(
    ("scale", "unit", "expected"),
    [(2e3, "m", "50 km"), (2e6, "m", "50000 km"), (2e-4, "km", "5 m"), (2e-9, "m", "50 nm"),
     (5e3, "s", "100000 s"), (2e3, "1/m", "50 1/mm"), (2e6, "eV", "50 MeV")],
)  # fmt: skip
def test_scale_bars_have_units_in_use(scale, unit, expected):
    figure = show(labelled(da.zeros((100, 100)), [Axis("y", unit, scale), Axis("x", unit, scale)]))
    bar = next(one for one in figure.axes[0].artists if isinstance(one, AnchoredSizeBar))
    assert bar.txt_label.get_text() == expected


def test_titles_keep_their_lines_and_formulas():
    text = Figure().suptitle("one\n" + "long words " * 9, size=9)
    assert wrap(text, 100) == text.get_text().count("\n") + 1 > 3
    assert text.get_text().startswith("one\n")
    text.set_text(r"$\mathrm{a b}$" * 9)
    assert wrap(text, 100) == 1
