"""Exports of frames larger than a shard, which are cut into chunks near squares."""

import h5py
import numpy as np
import pytest
import tifffile
import zarr

from dask_tiled import open_dataset, to_zarr, verify_zarr

pytestmark = pytest.mark.thorough

SIZE = 4160, 3000
"""Of 24 MB, with parts at the ends of axes."""
IMAGE = (np.arange(SIZE[0])[:, None] * 7 + np.arange(SIZE[1]) % 1013).astype("u2")


@pytest.fixture(params=["tiles", "strips", "chunks", "raw"])
def large(request, tmp_path):
    """Return an image, and the shape of its shards."""
    match request.param:
        case "tiles":
            path = tmp_path / "a.tif"
            tifffile.imwrite(path, IMAGE, tile=(256, 256), compression="zlib")
            return open_dataset(path), (4096, 2048)
        case "strips":
            path = tmp_path / "a.tif"
            tifffile.imwrite(path, IMAGE, rowsperstrip=100, compression="zlib")
            return open_dataset(path), (2000, 3000)
        case "chunks":
            with h5py.File(tmp_path / "a.h5", "w") as file:
                file.create_dataset("a", data=IMAGE, chunks=(300, 700), compression="lzf")
            return open_dataset(tmp_path / "a.h5"), (1800, 2800)
    IMAGE.tofile(tmp_path / "a.raw")
    raw = {"dtype": "u2", "nav_shape": (1,), "sig_shape": SIZE}
    return open_dataset(tmp_path / "a.raw", format="raw", **raw)[0], (4096, 2048)


def halved(pixels):
    """Average squares of four pixels, ties to even; the ends of odd axes are repeated."""
    pixels = np.pad(pixels, [(0, n % 2) for n in pixels.shape], mode="edge").astype("f8")
    y, x = pixels.shape
    return np.rint(pixels.reshape(y // 2, 2, x // 2, 2).mean((1, 3))).astype("u2")


def test_default_chunks_and_levels(large, tmp_path):
    """Chunks have 512 to 1024 pixels a side, whole blocks where these are small."""
    arr, shard = large
    to_zarr(arr, tmp_path / "out.zarr", pyramid=True, overwrite=True)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    paths = [one["path"] for one in group.attrs["ome"]["multiscales"][0]["datasets"]]
    levels = [group[path] for path in paths]
    assert levels[0].shards == shard
    expected = IMAGE
    for level in levels:
        np.testing.assert_array_equal(level[:], expected)
        assert all(
            512 <= k <= 1024 or k >= n for k, n in zip(level.chunks, level.shape, strict=True)
        )
        expected = halved(expected)
    assert max(levels[-1].shape) <= 256
    verify_zarr(tmp_path / "out.zarr", arr)
    again = open_dataset(tmp_path / "out.zarr")
    np.testing.assert_array_equal(again, IMAGE)


def test_chunks_of_long_strips_are_lower(tmp_path):
    """Shards that hold whole strips have chunks of about 512 rows, so that tasks hold less."""
    pixels = np.arange(1300 * 9000, dtype="u2").reshape(1300, 9000)
    tifffile.imwrite(tmp_path / "a.tif", pixels, rowsperstrip=100, compression="zlib")
    to_zarr(tmp_path / "a.tif", tmp_path / "out.zarr", pyramid=2)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    levels = [group[one["path"]] for one in group.attrs["ome"]["multiscales"][0]["datasets"]]
    assert levels[0].chunks == (600, 1000)
    assert levels[0].shards == (600, 9000)
    for level in levels:
        np.testing.assert_array_equal(level[:], pixels)
        pixels = halved(pixels)


def test_results_and_given_shards(large, tmp_path):
    """Chunks divide shards that are given, or the chunks of tasks that compute results."""
    arr, _ = large
    to_zarr(arr, tmp_path / "out.zarr", with_results={"rows": arr.sum(1)})
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(group["data"][:], IMAGE)
    np.testing.assert_array_equal(group["rows"][:], IMAGE.sum(1, dtype="u8"))
    to_zarr(arr, tmp_path / "out.zarr", shards=(2048, 3000), overwrite=True)
    stored = zarr.open_group(tmp_path / "out.zarr", mode="r")["data"]
    assert stored.chunks == (1024, 1000)
    np.testing.assert_array_equal(stored[:], IMAGE)


def test_large_volumes_and_colours(tmp_path):
    """Volumes are cut into cubes; colours stay together."""
    volume = np.arange(200 * 210 * 220, dtype="u2").reshape(200, 210, 220)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=volume, chunks=(50, 50, 50), compression="lzf")
    raw = {"format": "raw", "dtype": "u1", "nav_shape": (2,)}
    colours = np.arange(2 * 2600 * 2400 * 3, dtype="u1").reshape(2, 2600, 2400, 3)
    colours.tofile(tmp_path / "a.raw")
    raw["sig_shape"] = colours.shape[1:]
    for arr, pixels, chunk in (
        (open_dataset(tmp_path / "a.h5", sig_dims=3), volume, (100, 100, 100)),
        (open_dataset(tmp_path / "a.raw", **raw), colours, (1, 1024, 1024, 3)),
    ):
        to_zarr(arr, tmp_path / "out.zarr", overwrite=True)
        stored = zarr.open_group(tmp_path / "out.zarr", mode="r")["data"]
        assert stored.chunks == chunk
        np.testing.assert_array_equal(stored[:], pixels)
