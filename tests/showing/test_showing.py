"""`show`: pictures equal NumPy's results for the frames in their note, on named axes."""

import io
import math

import dask.array as da
import numpy as np
import pytest

import dask_tiled
from dask_tiled import DatasetError, show
from dask_tiled.model.axes import Axis
from dask_tiled.showing import panels
from dask_tiled.testing import write_mib, write_nrrd

pytestmark = pytest.mark.thorough

NAV = 12, 16
ROWS, COLUMNS = np.ogrid[:24, :24]
DISK = np.hypot(ROWS - 11, COLUMNS - 13) <= 5


def scan(dtype="uint16"):
    """Return frames with a bright disk."""
    rng = np.random.default_rng(3)
    return rng.poisson(np.where(DISK, rng.uniform(20, 60, (*NAV, 1, 1)), 1)).astype(dtype)


@pytest.fixture
def opened(tmp_path):
    """Return a function that writes an array to a raw file and opens it."""

    def make(pixels, nav_ndim=2, **options):
        path = tmp_path / "pixels.raw"
        pixels.tofile(path)
        shapes = {"nav_shape": pixels.shape[:nav_ndim], "sig_shape": pixels.shape[nav_ndim:]}
        given = {"format": "raw", "dtype": pixels.dtype.str, **shapes, **options}
        return dask_tiled.open_dataset(path, **given)

    return make


def drawn(figure):
    """Return the panels of a figure by title: pixels, or the values of lines."""
    found = {}
    for axes in figure.axes:
        if axes.get_xlabel():
            lines = [line.get_ydata() for line in axes.lines]
            values = axes.images[0].get_array() if axes.images else np.squeeze(lines)
            found[axes.get_title()] = np.ma.filled(values, np.nan)
    return found


def labels(figure):
    return [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes if axes.get_xlabel()]


def check_scan(figure, pixels):
    found = drawn(figure)
    assert [*found] == ["Mean frame", "Bright field", "Dark field"]
    np.testing.assert_allclose(found["Mean frame"], pixels.mean((0, 1)))
    np.testing.assert_allclose(found["Bright field"], pixels[..., DISK].sum(-1))
    np.testing.assert_allclose(found["Dark field"], pixels[..., ~DISK].sum(-1))


def test_scan(tmp_path):
    pixels = scan()
    figure = show(write_mib(tmp_path / "scan.mib", pixels))
    check_scan(figure, pixels)
    assert labels(figure) == [("y", "x"), ("scan_y", "scan_x"), ("scan_y", "scan_x")]
    assert figure.get_suptitle().strip() == "scan.mib"
    assert figure.get_supxlabel() == "all 192 frames"


@pytest.mark.parametrize("dtype", ["float32", "complex64", ">i4"])
def test_types(opened, dtype):
    pixels = scan(dtype)
    check_scan(show(opened(pixels)), abs(pixels).astype(float))


def test_note_describes_the_sample(opened):
    pixels = scan()
    figure = show(opened(pixels), frames=50)
    check_scan(figure, pixels[::2, ::2])
    told = "a sample: 48 of 192 frames, every 2nd along scan_y, every 2nd along scan_x"
    assert figure.get_supxlabel() == told
    left, right = figure.axes[1].images[0].get_extent()[:2]
    assert (left, right) == (-1, 15)  # every 2nd position, 0 to 14


def test_large_files_are_sampled(tmp_path):
    path = tmp_path / "hole.raw"
    with path.open("wb") as file:
        file.truncate(1000 * 800 * 64 * 64)
    options = {"dtype": "u1", "nav_shape": (1000, 800), "sig_shape": (64, 64)}
    figure = show(dask_tiled.open_dataset(path, format="raw", **options))
    assert "12,500 of 800,000 frames, every 8th along scan_y" in figure.get_supxlabel()
    assert drawn(figure)["Sum of each frame"].shape == (125, 100)


def test_computed_arrays_are_sampled(opened):
    pixels = scan()
    figure = show(opened(pixels) * 2.0 + 1, frames=50)
    check_scan(figure, pixels[::2, ::2] * 2.0 + 1)
    assert any("computed from raw" in text.get_text() for text in figure.texts)


def test_missing_frames_are_left_out(opened):
    pixels = scan()
    figure = show(opened(pixels[:5], nav_shape=NAV, missing="fill"))
    found = drawn(figure)
    np.testing.assert_allclose(found["Mean frame"], pixels[:5].mean((0, 1)))
    np.testing.assert_allclose(found["Bright field"][:5], pixels[:5][..., DISK].sum(-1))
    assert np.isnan(found["Bright field"][5:]).all()
    hatched = (
        f"{name} field: 112 of 192 pixels have no value: hatched" for name in ("Bright", "Dark")
    )
    told = "; ".join(["all 192 frames, of which 112 are missing", *hatched])
    assert figure.get_supxlabel() == told


def test_nonfinite_pixels_are_left_out(opened):
    pixels = scan("float32")
    pixels[:, :, 3, 4], pixels[0, 0, 5, 5], pixels[2, 3] = np.nan, np.inf, np.nan
    found = drawn(show(opened(pixels)))
    pixels[np.isinf(pixels)] = np.nan
    with np.errstate(invalid="ignore"):
        counts = np.isfinite(pixels).sum((0, 1))
        np.testing.assert_allclose(found["Mean frame"], np.nansum(pixels, (0, 1)) / counts, 1e-5)
    expected = np.nansum(pixels[..., ~DISK], -1)
    expected[2, 3] = np.nan
    np.testing.assert_allclose(found["Dark field"], expected, 1e-5)


COUNTS = np.random.default_rng(0).integers(0, 200, (6, 5, 4, 7), dtype="uint8")
KINDS = {
    "stack": (COUNTS.reshape(30, 4, 7), 1, ["Mean frame", "Sum of each frame"]),
    "spectra": (COUNTS.reshape(6, 5, 28), 2, ["Mean spectrum", "Sum of each spectrum"]),
    "times": (COUNTS.reshape(2, 3, 5, 4, 7), 3, ["Mean frame", "Sum of each frame"]),
    "line of spectra": (COUNTS.reshape(30, 28), 1, [""]),
    "image": (COUNTS[:1, :1], 2, [""]),
    "spectrum": (COUNTS.reshape(1, 840), 1, [""]),
    "volume": (COUNTS[:1].reshape(1, 5, 4, 7), 1, ["sig_0 = 2", "sig_1 = 2", "x = 3"]),
    "tiny": (COUNTS[:2, :1, :1, :1], 2, [""]),
    "truth": (COUNTS > 99, 2, ["Mean frame", "Sum of each frame"]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(opened, kind):
    pixels, nav_ndim, titles = KINDS[kind]
    figure = show(opened(pixels, nav_ndim))
    found = drawn(figure)
    if kind == "volume":
        z, y, x = found.values()
        volume = pixels[0]
        planes = volume[2], volume[:, 2], volume[:, :, 3]
        assert all(np.array_equal(*both) for both in zip((z, y, x), planes, strict=True))
        return
    assert [*found] == titles
    nav = tuple(range(nav_ndim))
    if len(titles) > 1:
        mean, seen = found.values()
        np.testing.assert_allclose(mean, pixels.mean(nav))
        sums = pixels.sum(tuple(range(nav_ndim, pixels.ndim)))
        np.testing.assert_allclose(seen, sums.mean(0) if nav_ndim > 2 else sums)
    else:
        assert np.array_equal(found[""], pixels.squeeze())
    buffer = io.BytesIO()
    figure.savefig(buffer)  # without warnings, which are errors


def test_remaining_axes_are_named(opened):
    arr = opened(scan())
    assert labels(show(arr.sum((-2, -1)))) == [("scan_y", "scan_x")]
    assert labels(show(arr.mean((0, 1)))) == [("y", "x")]
    assert labels(show(arr[3, :, 5, 5])) == [("", "scan_x")]
    assert labels(show(da.ones((8, 9)))) == labels(show(np.ones((8, 9)))) == [("axis 0", "axis 1")]


def test_images_along_z_are_a_volume(tmp_path):
    pixels = COUNTS.reshape(30, 4, 7)
    header, *_ = write_nrrd(tmp_path / "volume.nrrd", pixels)
    found = drawn(show(header))
    assert [*found] == ["z = 15", "y = 2", "x = 3"]
    assert np.array_equal(found["y = 2"], pixels[:, 2])


@pytest.mark.parametrize("first", [False, True])
def test_colour_images(tmp_path, first):
    tifffile = pytest.importorskip("tifffile")
    pixels = COUNTS.reshape(-1, 7, 3)[:25]
    stored, config = (pixels.transpose(2, 0, 1), "separate") if first else (pixels, "contig")
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", planarconfig=config)
    figure = show(tmp_path / "a.tif")
    assert np.array_equal(figure.axes[0].images[0].get_array(), pixels)
    assert labels(figure) == [("y", "x")]


@pytest.mark.parametrize(
    ("axis", "extent", "expected"),
    [
        (Axis("x", "m", 1e-10), 5e-8, Axis("x", "nm", 0.1)),
        (Axis("x", "1/m", 1e8), 5e9, Axis("x", "1/nm", 0.1)),
        (Axis("x", "nm", 2.0, 1000.0), 5e4, Axis("x", "µm", 0.002, 1.0)),
        (Axis("x", "um", 0.5), 500.0, Axis("x", "µm", 0.5)),
        (Axis("x", "eV", 10.0), 5e3, Axis("x", "keV", 0.01)),
        (Axis("x", "Å", 1e6), 1e9, Axis("x", "Å", 1e6)),
    ],
    ids=str,
)
def test_unit_prefixes_fit_the_extent(axis, extent, expected):
    found = panels.in_units(axis, extent)
    assert found.units == expected.units
    assert math.isclose(found.scale, expected.scale)
    assert math.isclose(found.offset, expected.offset)


@pytest.mark.parametrize(
    ("most", "length"), [(1, 1), (0.19, 0.1), (4.99, 2), (5, 5), (99, 50), (3e-9, 2e-9)]
)
def test_scale_bar_lengths_are_round(most, length):
    assert math.isclose(panels.round_length(most), length)


@pytest.mark.parametrize("value", [np.nan, np.inf, -(2.0**62)])
@pytest.mark.parametrize("shape", [(4, 5, 6, 7), (6, 7), (700,)])
def test_constant_pixels(shape, value):
    assert show(np.full(shape, value))._repr_png_()[0]


def test_structured_colour_pixels():
    pixels = np.zeros((5, 6), [(name, "u1") for name in "RGBA"])
    pixels["G"] = 7
    image = show(da.from_array(pixels)).axes[0].images[0].get_array()
    assert image.tolist() == np.full((5, 6, 3), [0, 7, 0]).tolist()


def test_errors(tmp_path):
    missing = tmp_path / "nothing.mib"  # arguments are checked before the file is opened
    with pytest.raises(DatasetError, match="unsupported file type"):
        show(missing, "picture.mib")
    with pytest.raises(DatasetError, match="frames"):
        show(missing, frames=0)
    with pytest.raises(FileNotFoundError):
        show(missing)
    for pixels, problem in (
        (da.ones(()), "nothing to draw"),
        (da.ones((0, 4)), "nothing to draw"),
        (da.zeros(4, dtype=[("time", "f8")]), "cannot be drawn"),
        (np.array(["a", None]), "cannot be drawn"),
        (da.arange(9)[da.arange(9) > 4], "Call compute_chunk_sizes"),
    ):
        with pytest.raises(DatasetError, match=problem):
            show(pixels)


def test_masked_pixels_are_left_out_of_the_colour_scale():
    pixels = np.ma.masked_greater(np.r_[0:100, 1e6].reshape(1, -1).repeat(40, 0), 1e3)
    assert show(pixels).axes[0].images[0].norm.vmax < 100


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 9, 40), (40, 9, 9)])
def test_picture_layout(tmp_path, shape):
    """Notes lie below the axis labels, and colour bars are as high as their images."""
    pixels, fields = np.arange(math.prod(shape)).reshape(shape), {"spacings": "1 " * len(shape)}
    fields["units"] = '"mm" ' * len(shape)
    header, *_ = write_nrrd(tmp_path / "volume.nrrd", pixels, fields=fields)
    figure = show(header)
    figure.draw_without_rendering()
    notes = figure._supxlabel.get_window_extent()
    for axes in figure.axes:
        (bar,) = axes.child_axes
        image, beside = axes.get_window_extent(), bar.get_window_extent()
        assert (beside.y0, beside.y1) == pytest.approx((image.y0, image.y1))
        assert axes.xaxis.label.get_window_extent().y0 > notes.y1 + 4


def test_saved(tmp_path):
    path = tmp_path / "picture.svg"
    show(da.ones((8, 9)), path)
    assert "<svg" in path.read_text()


def test_stored_results_of_an_export_are_shown(opened, tmp_path, monkeypatch):
    """Stored results are drawn without reading frames, except with `frames` or of a slice."""
    pixels = scan()
    arr = opened(pixels)
    beside = {"bright_field": arr[..., 8:14, 8:18].sum((2, 3)), "mean": arr.mean((0, 1))}
    beside |= {"center_of_mass": dask_tiled.tiles.center_of_mass(arr), "top": arr.max()}
    dask_tiled.to_zarr(arr, tmp_path / "out.zarr", with_results=beside)
    stored = dask_tiled.open_dataset(tmp_path / "out.zarr")
    with monkeypatch.context() as patch:
        patch.setattr("dask_tiled.showing.computing.bright_circle", None)
        for shown in (tmp_path / "out.zarr", stored):
            figure = show(shown)
            assert figure.get_suptitle().strip() == "out.zarr"
            found = drawn(figure)
            assert [*found][:2] == ["Bright field", "Mean"]
            np.testing.assert_array_equal(found["Bright field"], beside["bright_field"].compute())
            np.testing.assert_array_equal(found["Mean"], pixels.mean((0, 1)))
    check_scan(show(stored, frames=1 << 14), pixels)
    check_scan(show(stored[:, 1:]), pixels[:, 1:])
