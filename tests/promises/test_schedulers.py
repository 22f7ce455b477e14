"""Threads and processes, however started, return the same pixels."""

import copy
import hashlib
import itertools
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor

import dask
import dask.array as da
import numpy as np
import pytest
import tifffile
import zarr
from checks import write_hdf5
from dask._task_spec import Task

import dask_tiled
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_raw
from dask_tiled.tiles import apply_masks, center_of_mass

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


def with_plain_tuples(thing):
    """Return a task, or what it is called with, without named tuples and mappings but dicts."""
    if isinstance(thing, Task):
        thing = copy.copy(thing)
        thing.args = with_plain_tuples(thing.args)
        return thing
    if isinstance(thing, Mapping):
        return {key: with_plain_tuples(one) for key, one in thing.items()}
    return tuple(map(with_plain_tuples, thing)) if isinstance(thing, tuple) else thing


def as_ray(graph, keys, **_):
    """Run a graph after changing its tasks as Ray's scheduler does."""
    graph = graph if isinstance(graph, Mapping) else graph.__dask_graph__()
    return dask.get(with_plain_tuples(dict(graph)), keys)


JOBS = {
    "sum": lambda arr: arr.sum(),
    "frame sums": lambda arr: arr.sum((2, 3)),
    "mean of a crop": lambda arr: arr.mean((0, 1))[3:9, ::2],
    "std": lambda arr: arr.std(0),
    "argmax": lambda arr: arr.reshape(60, 32, 48).argmax(0),
    "histogram": lambda arr: da.histogram(arr, bins=9, range=(0, 5000))[0],
    "expression": lambda arr: (np.sqrt(arr) + arr.mean((0, 1))).max((2, 3)),
    "masks": lambda arr: apply_masks(arr, np.ones((2, *SIG))),
    "centre of mass": center_of_mass,
    "tiles": lambda arr: dask_tiled.map_tiles(np.sqrt, arr),
    "map_blocks": lambda arr: arr.map_blocks(np.negative),
}


@pytest.mark.parametrize("name", JOBS)
def test_schedulers_that_turn_named_tuples_into_tuples(scans, name):
    arr, _ = scans["mib"]
    lazy = JOBS[name](arr)
    np.testing.assert_array_equal(lazy.compute(scheduler=as_ray), lazy.compute())


def test_exports_by_schedulers_that_turn_named_tuples_into_tuples(scans, tmp_path):
    arr, frames = scans["mib"]
    results = {"mean": arr.mean((0, 1)), "sums": arr.sum((2, 3))}
    with dask.config.set(scheduler=as_ray):
        dask_tiled.to_zarr(arr, tmp_path / "out.zarr", pyramid=1, with_results=results)
    stored = zarr.open_group(tmp_path / "out.zarr", mode="r")
    np.testing.assert_array_equal(stored["data"][:], frames)
    np.testing.assert_array_equal(stored["sums"][:], frames.sum((2, 3)))
    np.testing.assert_allclose(stored["mean"][:], frames.mean((0, 1)))
