"""Thumbnails: small pictures from few bytes, made apart, and kept."""

import io

import dask
import dask.array as da
import numpy as np
import pytest
from matplotlib.image import imread

import dask_tiled
from dask_tiled.apart.calls import EndedError
from dask_tiled.cataloguing import readers, thumbnail_jobs
from dask_tiled.cataloguing.thumbnails import BUDGET, LONGEST, png_of, read_thumbnail, thumbnail
from dask_tiled.testing import counting_frames, write_mib, write_mrc, write_npy


@pytest.fixture
def here(monkeypatch):
    """Read headers and pixels in this process."""
    monkeypatch.setattr(readers.HeaderReaders, "read", lambda _, read, *args, **__: read(*args))


def opened(folder, array, **options):
    return dask_tiled.open_dataset(write_npy(folder / "a.npy", array), **options)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (1, 1), (96, 96)])
def test_png_holds_the_pixels(shape):
    """Another decoder reads the same bytes."""
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype="u1")
    found = np.round(imread(io.BytesIO(png_of(pixels))) * 255).astype("u1")
    np.testing.assert_array_equal(found, pixels)


def test_an_image_is_shrunk_to_means(tmp_path):
    image = np.add.outer(np.arange(300.0), 2 * np.arange(200.0)).astype("f4")
    found = thumbnail(opened(tmp_path, image))
    assert found.dtype == np.uint8
    assert found.shape == (75, 67)  # blocks of 4 and of 3 pixels
    low, high = np.percentile(image, (0.5, 99.5))
    bright = np.clip((image - low) / (high - low), 0, 1)
    np.testing.assert_allclose(found[0, 0] / 255, bright[:4, :3].mean(), atol=1 / 255)
    np.testing.assert_allclose(found[-1, -1] / 255, bright[-4:, -2:].mean(), atol=1 / 255)
    np.testing.assert_allclose(found[40, 30] / 255, bright[160:164, 90:93].mean(), atol=1 / 255)


def test_kinds_of_arrays(tmp_path):
    """A mean frame of a scan, the middle of a volume, a map of spectra; nothing of lines."""
    disk = np.hypot(*np.indices((32, 32)) - 16) < 6
    scan = np.where(disk, 100, 1) * np.ones((4, 5, 1, 1))
    write_mib(tmp_path / "scan.mib", scan.astype("u2"))
    found = thumbnail(dask_tiled.open_dataset(tmp_path / "scan.mib"))
    np.testing.assert_array_equal(found > 128, disk)
    spectra = np.ones((6, 7, 1), "u2") * np.arange(50, dtype="u2")
    spectra[2, 3] *= 9
    found = thumbnail(opened(tmp_path, spectra, sig_dims=1))
    assert found.shape == (6, 7)
    assert np.argmax(found) == 2 * 7 + 3
    large = np.ones((64, 64, 1), "u2") * np.arange(1024, dtype="u2")
    assert thumbnail(opened(tmp_path, large, sig_dims=1)).shape == (64, 64)  # from half of them
    assert thumbnail(opened(tmp_path, np.arange(50.0))) is None
    with pytest.raises(dask_tiled.DatasetError):
        thumbnail(opened(tmp_path, np.zeros((1, 1))))
    values = np.full((8, 8), np.nan)
    values[2, 2] = 5
    assert thumbnail(opened(tmp_path, values)).shape == (8, 8)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(64, 1024, 1024), (1 << 14, 1 << 14), (16, 16, 512, 512)])
def test_few_bytes_are_read(tmp_path, loads, shape):
    """Of files of 128 MiB and more, at most twice the budget; holes of the file take no space."""
    path = tmp_path / "large.npy"
    np.lib.format.open_memmap(path, "w+", "u2", shape)[..., 0, 0] = 1
    found = thumbnail(dask_tiled.open_dataset(path, io="counting"))
    assert max(found.shape) <= LONGEST
    assert 0 < loads.nbytes <= 2 * BUDGET + (1 << 20)


@pytest.mark.usefixtures("here")
def test_rows_have_thumbnails(tmp_path, monkeypatch):
    """They are made once as long as the files do not change."""
    frames = counting_frames((6, 4, 128), "u2", bits=12)
    write_mrc(tmp_path / "a.mrc", frames)
    np.save(tmp_path / "line.npy", np.arange(5.0))
    made = []

    def counted(path, options):
        made.append(path)
        return read_thumbnail(path, options)

    monkeypatch.setattr(thumbnail_jobs, "read_thumbnail", counted)
    keep = tmp_path / ".keep"
    first, line = dask_tiled.catalogue(tmp_path, keep=keep)
    assert first.thumbnail == read_thumbnail(first.path, {})
    assert imread(io.BytesIO(first.thumbnail)).shape[:2] == (4, 64)
    assert line.thumbnail == b""
    assert len(made) == 2
    assert dask_tiled.catalogue(tmp_path, keep=keep)[0].thumbnail == first.thumbnail
    assert len(made) == 2
    write_mrc(tmp_path / "a.mrc", frames[::-1] // 2)
    dask_tiled.catalogue(tmp_path, keep=keep)
    assert len(made) == 3


@pytest.mark.usefixtures("here")
def test_pixels_that_cannot_be_read_are_told(tmp_path, monkeypatch):
    path = write_mrc(tmp_path / "a.mrc", counting_frames((6, 4, 128), "u2"))

    def ends(*_):
        raise EndedError("the process ended with signal 11")

    monkeypatch.setattr(thumbnail_jobs, "read_thumbnail", ends)
    (row,) = dask_tiled.catalogue(path)
    assert row.problem == "its pixels cannot be read: the process ended with signal 11"
    assert row.shape == (6, 4, 128)


@pytest.mark.slow
def test_child_processes_make_thumbnails(tmp_path):
    frames = counting_frames((6, 4, 128), "u2", bits=12)
    path = write_mrc(tmp_path / "a.mrc", frames)
    (row,) = dask_tiled.catalogue(tmp_path)
    assert row.thumbnail == read_thumbnail(str(path), {})


def test_dask_is_left_as_it_is():
    """Its configuration is that of all threads."""
    seen = []

    def noted(block):
        seen.append(dask.config.get("scheduler", None))
        return block

    arr = da.ones((4, 32, 32), chunks=(2, 32, 32)).map_blocks(noted, dtype="f8")
    seen.clear()
    assert thumbnail(arr) is not None
    assert {*seen} == {None}
