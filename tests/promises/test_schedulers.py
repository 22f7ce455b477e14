"""Threads and processes, however started, return the same pixels."""

import hashlib
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import dask
import numpy as np
import pytest
import tifffile
from checks import write_hdf5

import dask_tiled
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_raw

pytestmark = pytest.mark.slow

NAV, SIG = (6, 10), (32, 48)
CHUNKS = (2, 7, 32, 48)


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Return opened files of several formats, and their pixels."""
    folder = tmp_path_factory.mktemp("scans")
    floats = counting_frames(NAV + SIG, ">f4")
    packed = counting_frames(NAV + SIG, "u2", bits=12)
    raw = write_raw(folder / "scan.raw", floats, frame_header=3)
    mib = write_mib(folder / "scan.mib", packed, kind="R64", depth=12)
    series = write_mib_series(folder / "series", packed, frames_per_file=17, digits=2)
    tiff, hdf5 = folder / "scan.tif", folder / "scan.h5"
    tifffile.imwrite(tiff, packed, tile=(16, 16), compression="zlib", photometric="minisblack")
    write_hdf5(hdf5, lambda file: file.create_dataset("x", data=packed, chunks=(1, 5, 32, 48)))
    raw_options = {"dtype": ">f4", "nav_shape": NAV, "sig_shape": SIG, "frame_header": 3}
    return {
        "raw": (dask_tiled.open_dataset(raw, "raw", **raw_options, chunks=CHUNKS), floats),
        "mib": (dask_tiled.open_dataset(mib, chunks=CHUNKS), packed),
        "series": (dask_tiled.open_dataset(series[1], chunks=CHUNKS), packed),
        "tiff": (dask_tiled.open_dataset(tiff, chunks=CHUNKS), packed),
        "hdf5": (dask_tiled.open_dataset(hdf5, chunks=CHUNKS), packed),
    }


def checksum(frames):
    return hashlib.blake2b(np.ascontiguousarray(frames).astype("<f8").tobytes()).hexdigest()


PARTS = {
    "whole": lambda arr: arr,
    "crop": lambda arr: arr[1:5, ::3, 3:20, 5:48:7],
    "pixel": lambda arr: arr[..., 10, 20],
    "images": lambda arr: arr.sum(axis=(-2, -1), dtype="f8"),
    "chunks that meet": lambda arr: arr[1:].astype("f8") - arr[:-1],
    "whole scans of pixels": lambda arr: arr.reshape(60, 32, 48).argmax(axis=0),
}


def parts(scans):
    """Return lazy results of every scan, and the expected checksums."""
    lazy, expected = {}, {}
    for (name, (arr, frames)), (part, take) in itertools.product(scans.items(), PARTS.items()):
        lazy[name, part] = take(arr)
        expected[name, part] = checksum(take(frames))
    return lazy, expected


@pytest.mark.parametrize("start", ["fork", "forkserver"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_processes_and_threads(scans, start):
    """Processes start while this one has open files and compiled kernels."""
    lazy, expected = parts(scans)
    found = [dask.compute(lazy, scheduler="threads", num_workers=4)[0]]
    with ProcessPoolExecutor(2, multiprocessing.get_context(start)) as pool:
        found += dask.compute(lazy, scheduler="processes", pool=pool)
    for results in found:
        assert {key: checksum(part) for key, part in results.items()} == expected
