"""Zeiss LSM, compared with tifffile and the frames that were written."""

import os
import sys

import numpy as np
import pytest
import tifffile
from checks import axes_text, refused, refuses
from lsm_writer import write_lsm

from dask_tiled import TruncatedFileError, open_dataset
from dask_tiled.formats.tiff import lsm
from dask_tiled.formats.tiff.pages import Pages
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((6, 3, 5, 7), "u2")
NOISE = np.random.default_rng(0).integers(0, 1 << 16, (6, 3, 32, 48)).astype("u2")


@pytest.mark.parametrize("frames", [FRAMES, NOISE], ids=["smooth", "noise"])
@pytest.mark.parametrize("first", ["image", "thumbnail"])
def test_sizes_of_packed_strips_are_those_of_their_pixels(tmp_path, frames, first):
    """Strips of noise are longer than their pixels."""
    path = write_lsm(tmp_path / "a.lsm", frames, lzw=True, first=first)
    arr = open_dataset(path, doubts="raise")
    np.testing.assert_array_equal(arr.compute(), frames)
    np.testing.assert_array_equal(tifffile.imread(path).reshape(frames.shape), frames)
    thumbs = open_dataset(path, dataset=1)
    np.testing.assert_array_equal(thumbs.compute(), [np.arange(12).reshape(4, 3)] * 6)


def test_bits_of_two_samples_are_behind_their_entry(tmp_path):
    """The entry of each page holds an offset, though both numbers would fit."""
    path = write_lsm(tmp_path / "a.lsm", FRAMES[:, :2])
    np.testing.assert_array_equal(open_dataset(path), FRAMES[:, :2])
    np.testing.assert_array_equal(tifffile.imread(path), FRAMES[:, :2])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs files with holes")
def test_offsets_wrap_around_above_4_gib(tmp_path):
    path = write_lsm(tmp_path / "a.lsm", NOISE, gap=(1 << 30) - 99)
    assert path.stat().st_size > 11 << 30
    np.testing.assert_array_equal(open_dataset(path).compute(), NOISE)
    np.testing.assert_array_equal(tifffile.imread(path).reshape(NOISE.shape), NOISE)


@pytest.mark.parametrize("lzw", [False, True])
@pytest.mark.parametrize("first", ["image", "thumbnail"])
def test_offsets_wrap_around_again_and_again(tmp_path, monkeypatch, first, lzw):
    """Offsets of 14 bits, and strips of 3 kB."""
    monkeypatch.setattr(lsm, "WRAP", 1 << 14)
    path = write_lsm(tmp_path / "a.lsm", NOISE, wrap=1 << 14, first=first, lzw=lzw)
    np.testing.assert_array_equal(open_dataset(path).compute(), NOISE)


def test_positions_are_stored_one_time_after_the_other(tmp_path, monkeypatch):
    """Pages are sorted by position, strips by time."""
    monkeypatch.setattr(lsm, "WRAP", 1 << 14)
    order = [3 * place + time for time in range(3) for place in range(2)]
    path = write_lsm(tmp_path / "a.lsm", NOISE, wrap=1 << 14, order=order, info=(2, 3))
    arr = open_dataset(path)
    assert arr.dims == ("p", "t", "s", "y", "x")
    np.testing.assert_array_equal(arr.compute(), NOISE.reshape(2, 3, *NOISE.shape[1:]))


def test_strips_in_no_known_order_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(lsm, "WRAP", 1 << 14)
    path = write_lsm(tmp_path / "a.lsm", NOISE, wrap=1 << 14, order=[5, 0, 4, 1, 3, 2])
    refuses(path, "strips are not in the order of the pages")


@pytest.mark.parametrize(("lzw", "lost"), [(False, 50), (False, 700), (True, 700)])
def test_truncated_files_raise(tmp_path, lzw, lost):
    """Strips end behind the file, or begin there."""
    path = write_lsm(tmp_path / "a.lsm", FRAMES, lzw=lzw)
    os.truncate(path, path.stat().st_size - lost)
    with refused(path, kind=TruncatedFileError):
        open_dataset(path).compute()


def test_axes_and_steps(tmp_path):
    path = write_lsm(tmp_path / "a.lsm", FRAMES, info=(0, 3))
    arr = open_dataset(path, doubts="raise")
    assert axes_text(arr) == "t 1.5 s, z 0.5 µm, s 1, y 0.2 µm, x 0.1 µm"
    np.testing.assert_array_equal(arr.compute(), FRAMES.reshape(3, 2, *FRAMES.shape[1:]))
    with tifffile.TiffFile(path) as file:
        assert (file.series[0].axes, file.series[0].shape) == ("TZCYX", arr.shape)


def test_axes_that_do_not_fit_the_pages_are_ignored(tmp_path):
    path = write_lsm(tmp_path / "a.lsm", FRAMES, info=(0, 4))
    arr = open_dataset(path)
    assert arr.dims == ("frame", "s", "y", "x")
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_files_of_one_series_are_not_searched_for_thumbnails(tmp_path, monkeypatch):
    asked, is_reduced = [], Pages.is_reduced
    monkeypatch.setattr(Pages, "is_reduced", lambda *args: asked.append(0) or is_reduced(*args))
    paths = [tmp_path / f"{k}.tif" for k in range(3)]
    for path, frame in zip(paths, FRAMES[0], strict=True):
        tifffile.imwrite(path, frame)
    open_dataset(paths)
    assert not asked
    open_dataset(write_lsm(tmp_path / "a.lsm", FRAMES))
    assert len(asked) == 1
