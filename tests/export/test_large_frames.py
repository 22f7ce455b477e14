"""Exports of frames larger than a shard, which are cut into chunks near squares."""

import h5py
import numpy as np
import pytest
import tifffile
import zarr

from dask_tiled import open_dataset, to_zarr, verify_zarr
from dask_tiled.export.zarr import grids
from dask_tiled.testing import write_raw

pytestmark = pytest.mark.thorough


def image(rows, columns):
    return (np.arange(rows)[:, None] * 7 + np.arange(columns) % 1013).astype("u2")


@pytest.fixture
def limits(monkeypatch):
    """Return a function that divides the sizes of chunks and shards."""

    def divide(factor):
        for name in ("CHUNK_BYTES", "SHARD_BYTES", "LEAST_BYTES"):
            monkeypatch.setattr(grids, name, getattr(grids, name) // factor)

    return divide


@pytest.fixture(params=["tiles", "strips", "chunks", "raw"])
def large(request, tmp_path, limits):
    """Return an image, its pixels, the shape of its shards, and the least length of chunks.

    Limits are 16 times lower and lengths 4 times shorter, but for the image that is not compressed.
    """
    if request.param == "raw":  # of 24 MB, with parts at the ends of axes
        pixels = image(4160, 3000)
        path = write_raw(tmp_path / "a.raw", pixels)
        raw = open_dataset(path, "raw", dtype="u2", nav_shape=(1,), sig_shape=pixels.shape)
        return raw[0], pixels, (4096, 2048), 512
    limits(16)
    pixels = image(1040, 750)
    if request.param == "chunks":
        path = tmp_path / "a.h5"
        with h5py.File(path, "w") as file:
            file.create_dataset("a", data=pixels, chunks=(75, 175), compression="lzf")
        return open_dataset(path), pixels, (450, 700), 128
    way, shard = {"tile": (64, 64)}, (1024, 512)
    if request.param == "strips":
        way, shard = {"rowsperstrip": 25}, (500, 750)
    tifffile.imwrite(tmp_path / "a.tif", pixels, compression="zlib", **way)
    return open_dataset(tmp_path / "a.tif"), pixels, shard, 128


def halved(pixels):
    """Average squares of four pixels, ties to even; the ends of odd axes are repeated."""
    pixels = np.pad(pixels, [(0, n % 2) for n in pixels.shape], mode="edge").astype("f8")
    y, x = pixels.shape
    return np.rint(pixels.reshape(y // 2, 2, x // 2, 2).mean((1, 3))).astype("u2")


def test_default_chunks_and_levels(large, tmp_path):
    """Chunks have 512 to 1024 pixels a side, whole blocks where these are small."""
    arr, pixels, shard, side = large
    to_zarr(arr, tmp_path / "out.zarr", pyramid=True)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    paths = [one["path"] for one in group.attrs["ome"]["multiscales"][0]["datasets"]]
    levels = [group[path] for path in paths]
    assert levels[0].shards == shard
    expected = pixels
    for level in levels:
        np.testing.assert_array_equal(level[:], expected)
        assert all(
            side <= k <= 2 * side or k >= n for k, n in zip(level.chunks, level.shape, strict=True)
        )
        expected = halved(expected)
    assert max(levels[-1].shape) <= 256
    verify_zarr(tmp_path / "out.zarr", arr)
    np.testing.assert_array_equal(open_dataset(tmp_path / "out.zarr"), pixels)


def test_chunks_of_long_strips_are_lower(tmp_path, limits):
    """Shards that hold whole strips have chunks of about 128 rows, so that tasks hold less."""
    limits(16)
    pixels = np.arange(325 * 2250, dtype="u2").reshape(325, 2250)
    tifffile.imwrite(tmp_path / "a.tif", pixels, rowsperstrip=25, compression="zlib")
    to_zarr(tmp_path / "a.tif", tmp_path / "out.zarr", pyramid=2)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    levels = [group[one["path"]] for one in group.attrs["ome"]["multiscales"][0]["datasets"]]
    assert levels[0].chunks == (150, 250)
    assert levels[0].shards == (150, 2250)
    for level in levels:
        np.testing.assert_array_equal(level[:], pixels)
        pixels = halved(pixels)


def test_results_and_given_shards(large, tmp_path):
    """Chunks divide shards that are given, or the chunks of tasks that compute results."""
    arr, pixels, _, side = large
    to_zarr(arr, tmp_path / "out.zarr", with_results={"rows": arr.sum(1)})
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(group["data"][:], pixels)
    np.testing.assert_array_equal(group["rows"][:], pixels.sum(1, dtype="u8"))
    to_zarr(arr, tmp_path / "out.zarr", shards=(4 * side, arr.shape[1]), overwrite=True)
    stored = zarr.open_group(tmp_path / "out.zarr", mode="r")["data"]
    assert stored.chunks == (2 * side, arr.shape[1] // 3)
    np.testing.assert_array_equal(stored[:], pixels)


def test_volumes_are_cut_into_cubes(tmp_path, limits):
    """Of 2 blocks of the file, as 32 pixels a side have 16 KiB rounded up to a power of two."""
    limits(64)
    pixels = np.arange(50 * 53 * 55, dtype="u2").reshape(50, 53, 55)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=pixels, chunks=(13, 13, 13), compression="lzf")
    arr = open_dataset(tmp_path / "a.h5", sig_dims=3)
    stored = to_zarr(arr, tmp_path / "out.zarr")
    assert stored.chunks == (26, 26, 26)
    np.testing.assert_array_equal(stored[:], pixels)


def test_colours_stay_together(tmp_path, limits):
    limits(16)
    pixels = np.arange(2 * 650 * 600 * 3, dtype="u1").reshape(2, 650, 600, 3)
    raw = {"dtype": "u1", "nav_shape": (2,), "sig_shape": pixels.shape[1:]}
    arr = open_dataset(write_raw(tmp_path / "a.raw", pixels), "raw", **raw)
    stored = to_zarr(arr, tmp_path / "out.zarr")
    assert stored.chunks == (1, 256, 256, 3)
    np.testing.assert_array_equal(stored[:], pixels)
