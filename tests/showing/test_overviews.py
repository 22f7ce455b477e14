"""Pictures of large images read a stored level, or some blocks, whose means they show."""

import dask.array as da
import numpy as np
import pytest
import tifffile
import zarr

from dask_tiled import open_dataset, show, to_zarr
from dask_tiled.model.axes import Axis
from dask_tiled.reading.counting import counted
from dask_tiled.showing.overviews import overview, smallest_level
from dask_tiled.testing import Tile, write_czi, write_ims

PIXELS = np.random.default_rng(0).poisson(20, (2048, 2304)).astype("u2")
PIXELS[:, 1000:] += 100
TILES = {"tile": (256, 256), "compression": "zstd"}


@pytest.fixture
def small_samples(monkeypatch):
    """Let 256 KiB be all that is read of a file completely."""
    monkeypatch.setattr("dask_tiled.measuring.sampling.SAMPLE_BYTES", 1 << 18)


def drawn(figure):
    """Return the first image of a figure, and its extent."""
    image = figure.axes[0].images[0]
    left, right, bottom, top = image.get_extent()
    return np.asarray(image.get_array()), (top, bottom, left, right)


def stored(path, level=0):
    """Return the bytes of the tiles of a page, in rows."""
    with tifffile.TiffFile(path) as file:
        page = file.series[0].levels[level].pages[0]
        counts = [-(-n // size) for n, size in zip(page.shape, (*page.tile, 1)[:2], strict=True)]
        return np.reshape(page.databytecounts, counts)


def write_levels(path, levels):
    """Write an image with its levels, of 0.5 µm."""
    with tifffile.TiffWriter(path) as file:
        first, *lower = levels
        resolution = {"resolution": (20_000, 20_000), "resolutionunit": "CENTIMETER"}
        file.write(first, subifds=len(lower), **resolution, **TILES)
        for level in lower:
            file.write(level, subfiletype=1, **TILES)


@pytest.mark.thorough
def test_a_stored_level_is_shown(tmp_path, monkeypatch):
    """Only the smallest level with 1024 pixels is read, on the axes of the image."""
    monkeypatch.setattr("dask_tiled.measuring.sampling.SAMPLE_BYTES", PIXELS.nbytes // 2)
    path = tmp_path / "a.tif"
    levels = [PIXELS, PIXELS[::2, ::2] + 1, PIXELS[::4, ::4] + 2]
    write_levels(path, levels)
    with counted() as counter:
        figure = show(path)
    found, extent = drawn(figure)
    np.testing.assert_array_equal(found, levels[1])
    assert counter.nbytes == stored(path, 1).sum() < stored(path).sum()
    scale = 0.5e-3  # in mm; the first pixel of a level ends at that of the image
    height, width = (n * scale for n in PIXELS.shape)
    assert np.allclose(extent, (-scale, height - scale, -scale, width - scale), atol=0)
    note = "a level of the pyramid in the file, 2 times smaller"
    assert figure.get_supxlabel() == note
    assert any("2048 \N{MULTIPLICATION SIGN} 2304" in text.get_text() for text in figure.texts)


@pytest.mark.usefixtures("small_samples")
def test_means_of_some_tiles_are_shown(tmp_path):
    """Without levels, every third tile is read, and its mean shown in the place of nine."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PIXELS, **TILES)
    with counted() as counter:
        figure = show(path)
    found, extent = drawn(figure)
    means = PIXELS.reshape(8, 256, 9, 256).mean((1, 3))
    np.testing.assert_allclose(found, means[::3, ::3])
    assert counter.nbytes == stored(path)[::3, ::3].sum()
    assert figure.get_supxlabel() == (
        "the mean of every 3rd block of 256 pixels along y and 3rd block of 256 pixels along x"
    )
    assert extent == (127.5 - 384, 127.5 + 768 * 2 + 384) * 2


@pytest.mark.usefixtures("small_samples")
def test_means_of_some_strips_are_shown(tmp_path):
    """Strips span all columns: rows are averaged, columns kept."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, PIXELS, rowsperstrip=64, compression="zstd")
    with counted() as counter:
        found, _ = drawn(show(path))
    means = PIXELS.reshape(32, 64, 2304).mean(1)
    np.testing.assert_allclose(found, means[::5, ::3])
    with tifffile.TiffFile(path) as file:
        assert counter.nbytes == sum(file.pages[0].databytecounts[::5])


@pytest.mark.thorough
def test_pixels_of_all_tiles_are_shown(tmp_path, monkeypatch):
    """As long as all tiles may be decoded, single pixels of them are taken."""
    monkeypatch.setattr("dask_tiled.measuring.sampling.SAMPLE_BYTES", PIXELS.nbytes // 4)
    tifffile.imwrite(tmp_path / "a.tif", PIXELS, **TILES)
    figure = show(tmp_path / "a.tif")
    np.testing.assert_array_equal(drawn(figure)[0], PIXELS[::2, ::3])
    assert figure.get_supxlabel() == "every 2nd pixel along y and 3rd pixel along x"


@pytest.mark.usefixtures("small_samples")
def test_few_rows_of_uncompressed_images_are_read(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, PIXELS)
    with counted() as counter:
        found, _ = drawn(show(path))
    np.testing.assert_array_equal(found, PIXELS[::2, ::3])
    assert counter.nbytes <= PIXELS.nbytes // 2


@pytest.mark.thorough
@pytest.mark.usefixtures("small_samples")
def test_channels_and_stacks_of_large_images(tmp_path):
    """Each channel is averaged by itself; of a stack, one frame is read."""
    channels = np.stack([PIXELS, PIXELS[::-1]])
    tifffile.imwrite(tmp_path / "c.ome.tif", channels, metadata={"axes": "CYX"}, **TILES)
    figure = show(tmp_path / "c.ome.tif")
    means = channels.reshape(2, 8, 256, 9, 256).mean((2, 4))
    for axes, expected in zip(figure.axes, means, strict=False):
        np.testing.assert_allclose(axes.images[0].get_array(), expected[::3, ::3])
    tifffile.imwrite(tmp_path / "t.ome.tif", channels, metadata={"axes": "TYX"}, **TILES)
    found, _ = drawn(show(tmp_path / "t.ome.tif"))
    np.testing.assert_allclose(found, means[0, ::3, ::3])


@pytest.mark.thorough
def test_levels_keep_calibrations_and_options(tmp_path):
    """Levels of every format, by number or name, on axes whose ends agree."""
    write_levels(tmp_path / "a.tif", [PIXELS, PIXELS[::2, ::2]])
    tiles = [
        Tile({"X": 0, "Y": 0, "C": 0}, PIXELS[:512:ratio, :512:ratio], ratio) for ratio in (1, 2, 4)
    ]
    write_czi(tmp_path / "a.czi", tiles, scaling={"X": 2e-7, "Y": 2e-7})
    write_ims(tmp_path / "a.ims", PIXELS[:64, :64].reshape(1, 1, 1, 64, 64), levels=2)
    arr = da.from_array(PIXELS[:512, :512], chunks=256)
    axes = [Axis("y", "µm", 0.3), Axis("x", "µm", 0.3, 7.0)]
    to_zarr(arr, tmp_path / "a.zarr", dimension_names=axes, pyramid=2, progress=False)
    for name, count in (("a.tif", 2), ("a.czi", 3), ("a.ims", 2), ("a.zarr", 3)):
        whole = open_dataset(tmp_path / name)
        levels = whole.levels()
        assert len(levels) == count
        assert levels[0] is whole
        for level in levels[1:]:
            for axis, n, first, size in zip(
                level.axes[-2:], level.shape[-2:], whole.axes[-2:], whole.shape[-2:], strict=True
            ):
                assert axis.units == first.units
                assert np.isclose(axis.scale * n, first.scale * size)
        assert levels[1].levels()[1:] == [] or levels[1].levels()[1].shape == levels[2].shape
    calibrated = whole.with_axes(x="4 nm", y="4 nm")
    assert [axis.scale for axis in calibrated.levels()[2].axes] == [16, 16]
    assert [axis.offset for axis in calibrated.levels()[2].axes] == [6, 6]


def test_small_images_open_no_levels(tmp_path):
    write_levels(tmp_path / "a.tif", [PIXELS, PIXELS[::2, ::2]])
    arr = open_dataset(tmp_path / "a.tif")
    assert smallest_level(arr, 16) is arr
    assert overview(arr, (0, 1), 4096).arr is arr


@pytest.mark.thorough
@pytest.mark.usefixtures("small_samples")
def test_parts_of_an_array_are_sampled(tmp_path):
    """A slice has no levels: its tiles are averaged."""
    write_levels(tmp_path / "a.tif", [PIXELS, PIXELS[::2, ::2]])
    found, _ = drawn(show(open_dataset(tmp_path / "a.tif")[256:, :2048]))
    means = PIXELS[256:, :2048].reshape(7, 256, 8, 256).mean((1, 3))
    np.testing.assert_allclose(found, means[::2, ::2])


@pytest.mark.thorough
@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("config", ["contig", "separate"])
def test_colours_are_not_averaged_with_each_other(tmp_path, config):
    colours = np.stack([PIXELS, PIXELS[::-1], PIXELS[:, ::-1]], axis=-1).astype("u1")
    written = colours if config == "contig" else colours.transpose(2, 0, 1)
    more = {"photometric": "rgb", "planarconfig": config}
    tifffile.imwrite(tmp_path / "a.tif", written, **more, **TILES)
    found, _ = drawn(show(tmp_path / "a.tif"))
    means = colours.reshape(8, 256, 9, 256, 3).mean((1, 3))[::3, ::3]
    assert found.shape == means.shape
    for k in range(3):
        assert np.corrcoef(found[..., k].ravel(), means[..., k].ravel())[0, 1] > 0.9


@pytest.mark.usefixtures("small_samples")
def test_unwritten_chunks_are_sampled(tmp_path):
    image = {"shape": (8192, 8192), "chunks": (512, 512), "dtype": "u2"}
    made = zarr.create_array(tmp_path / "a.zarr", fill_value=7, **image)
    made[:512, :512] = 9
    found, _ = drawn(show(tmp_path / "a.zarr"))
    assert found[0, 0] == 9
    assert np.unique(found).tolist() == [7, 9]
