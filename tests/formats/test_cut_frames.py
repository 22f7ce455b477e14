"""Frames that no chunk can hold are read in parts, by formats with scenes, images and channels."""

import dask
import h5py
import numpy as np
import pytest
import tifffile
import zarr
from checks import least_peak
from zarr_readers import by_zarr

from dask_tiled import as_zarr, open_dataset, show, to_references, to_xarray
from dask_tiled.reading.counting import counted
from dask_tiled.testing import Tile, write_czi, write_ims, write_lif, write_nd2

PIXELS = np.random.default_rng(0).integers(0, 999, (2, 300, 280), "u2")
NAMES = ["one", "two"]


@pytest.fixture(autouse=True)
def small_chunks():
    with dask.config.set({"array.chunk-size": "48 KiB"}):
        yield


def czi(path):
    """Write two scenes that are mosaics of compressed tiles."""
    corners = [(y, x) for y in range(0, 300, 100) for x in range(0, 280, 140)]
    tiles = [
        Tile(
            {"C": c, "S": s, "X": x, "Y": y + 500 * s, "M": m}, plane[y : y + 100, x : x + 140] + s
        )
        for s in (0, 1)
        for c, plane in enumerate(PIXELS)
        for m, (y, x) in enumerate(corners)
    ]
    return write_czi(path / "a.czi", tiles, compression=5, channels=NAMES)


def lif(path):
    return write_lif(path / "a.lif", {"first": PIXELS, "second": PIXELS + 1}, "cyx")


def ome_tiff(path):
    more = {"tile": (64, 64), "compression": "zstd"}
    with tifffile.TiffWriter(path / "a.ome.tif") as file:
        for k in (0, 1):
            metadata = {"axes": "CYX", "Channel": {"Name": NAMES}}
            file.write(PIXELS + np.uint16(k), metadata=metadata, **more)
    return path / "a.ome.tif"


def nd2(path):
    return write_nd2(path / "a.nd2", PIXELS, "cyx", channels=NAMES)


def ims(path):
    return write_ims(path / "a.ims", PIXELS.reshape(1, 2, 1, 300, 280))


WRITERS = {czi: (100, 140), lif: (1, 280), ome_tiff: (64, 64), nd2: (1, 280), ims: (1, 1)}
"""Sizes of the blocks of each format; rows where frames are not compressed."""


@pytest.mark.parametrize("write", WRITERS, ids=lambda one: one.__name__)
def test_parts_of_frames(tmp_path, write):
    path = write(tmp_path)
    for number in (0, 1) if write in (czi, lif, ome_tiff) else (None,):
        arr = open_dataset(path, **({} if number is None else {"dataset": number}))
        expected = (PIXELS + np.uint16(number or 0)).reshape(arr.shape)
        assert arr.chunksize[:-2] == (1,) * (arr.ndim - 2)
        assert np.prod(arr.chunksize) < 300 * 280
        blocks = WRITERS[write]
        ends = zip(arr.chunks[-2:], blocks, strict=True)
        assert not any(n % block for chunks, block in ends for n in chunks[:-1])
        np.testing.assert_array_equal(arr, expected)
        part = np.s_[..., 70:200, 33:250]
        np.testing.assert_array_equal(arr[part], expected[part])
        np.testing.assert_allclose(arr.mean((-2, -1)), expected.mean((-2, -1)))
        stored = as_zarr(arr)
        np.testing.assert_array_equal(stored[:], expected)
        named = to_xarray(arr)
        np.testing.assert_array_equal(named, expected)
        if write in (czi, ome_tiff, nd2):
            assert named.coords["c"].to_numpy().tolist() == NAMES


@pytest.mark.parametrize("write", [lif, nd2])
def test_references_to_cut_frames(tmp_path, write):
    to_references(open_dataset(write(tmp_path)), tmp_path / "a.json")
    np.testing.assert_array_equal(by_zarr(tmp_path / "a.json"), PIXELS)


@pytest.mark.thorough
def test_sparse_images_of_100_gb(tmp_path):
    """Work follows what is stored and needed; nothing grows with the image but the tasks."""
    size = 224_000
    image = {"shape": (size, size), "chunks": (512, 512), "dtype": "u2", "compressors": None}
    made = zarr.create_array(tmp_path / "a.zarr", **image)
    made[:512, :512] = made[512 * 5 : 512 * 6, :512] = 7
    made[102_400:102_912, 102_400:102_912] = 3
    nbytes = 512 * 512 * 2
    with dask.config.set({"array.chunk-size": "128 MiB"}):
        arr = open_dataset(tmp_path / "a.zarr")
    assert arr.npartitions <= 10_000
    assert len(dask.optimize(arr.sum())[0].__dask_graph__()) <= 12_000
    with counted() as counter:
        crop = arr[102_000:103_000, 102_000:103_000].compute()
    assert crop.sum() == 3 * 512 * 512
    assert counter.nbytes == nbytes
    with counted() as counter:
        assert arr[:9000, :9000].sum().compute() == 2 * 7 * 512 * 512
    assert counter.nbytes == 2 * nbytes
    with counted() as counter:
        image = show(arr[:, :512]).axes[0].images[0].get_array()
    assert image.max() == 7
    assert counter.nbytes <= 2 * nbytes


def large_zarr(path, pixels):
    zarr.create_array(path / "a.zarr", data=pixels, chunks=(256, 256), overwrite=True)
    return path / "a.zarr"


def large_tiff(path, pixels):
    tifffile.imwrite(path / "a.tif", pixels, tile=(256, 256), compression="zstd")
    return path / "a.tif"


def large_hdf5(path, pixels):
    with h5py.File(path / "a.h5", "w") as file:
        file.create_dataset("a", data=pixels, chunks=(256, 256), compression=1)
    return path / "a.h5"


def large_npy(path, pixels):
    np.save(path / "a.npy", pixels)
    return path / "a.npy"


@pytest.mark.slow
@pytest.mark.parametrize("write", [large_zarr, large_tiff, large_hdf5, large_npy])
def test_memory_of_large_images(tmp_path, write):
    """It is that of few chunks, whatever the size of the image; each byte is read once."""
    root = np.sqrt(np.arange(1000, dtype="f4"))
    functions = {
        "sum": lambda arr: arr.sum(),
        "roots": lambda arr: arr.map_blocks(lambda x: np.sqrt(x.astype("f4")), dtype="f4").sum(),
    }
    peaks = {name: [] for name in functions}
    with dask.config.set({"array.chunk-size": "1 MiB", "scheduler": "synchronous"}):
        for rows in (1024, 4096):
            pixels = (np.arange(rows * 2048).reshape(rows, 2048) % 1000).astype("u2")
            path = write(tmp_path, pixels)
            arr = open_dataset(path)
            expected = {"sum": pixels.sum(dtype="u8"), "roots": root[pixels].sum(dtype="f8")}
            stored = [path] if path.is_file() else [x for x in path.rglob("*") if x.is_file()]
            for name, function in functions.items():
                with counted() as counter:
                    assert np.allclose(function(arr).compute(), expected[name], rtol=1e-4)
                assert 0 < counter.nbytes <= sum(one.stat().st_size for one in stored)
                peaks[name].append(least_peak(lambda f=function, x=arr: f(x).compute()))
    assert pixels.nbytes == 16 << 20
    for small, large in peaks.values():
        assert large < small + (1 << 19)
    assert max(peaks["sum"]) < 4 << 20
    assert max(peaks["roots"]) < 7 << 20  # a chunk, its floats, and their roots: 5 MiB
