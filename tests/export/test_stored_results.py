"""Results are computed from the tiles that an export writes, and stored beside the array."""

import json
import os
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import yaozarrs
import zarr
from checks import stop_export
from conftest import ANY_PORT
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import (
    DatasetError,
    TilingError,
    open_dataset,
    tiles,
    to_xarray,
    to_zarr,
    verify_zarr,
)
from dask_tiled.export.zarr import grids, levels, relay
from dask_tiled.export.zarr.layout import Settings
from dask_tiled.export.zarr.plan import plan_of
from dask_tiled.export.zarr.results import results_of
from dask_tiled.export.zarr.tile_writer import TileWriter
from dask_tiled.opened.spec import Given
from dask_tiled.opening.stored_results import stored_results
from dask_tiled.reading.counting import counted
from dask_tiled.storing.places import Place
from dask_tiled.testing import write_mib, write_raw

pytestmark = pytest.mark.thorough

RANDOM = np.random.default_rng(8)
COUNTS = RANDOM.poisson(40, (6, 10, 32, 64)).astype("u2")
DISK = np.hypot(*np.ogrid[-16:16, -32:32]) < 8
MAKE = {
    "bright_field": lambda a: (a * DISK).sum((2, 3)),
    "navigator": lambda a: a.sum((2, 3)),
    "mean": lambda a: a.mean((0, 1)),
    "deviation": lambda a: a.std((0, 1)),
    "com": tiles.center_of_mass,
    "top": lambda a: a.max(),
    "median": lambda a: da.median(a, axis=(2, 3)),
}


def results(arr, *names):
    """Return some lazy results of an array, or all of them."""
    return {name: MAKE[name](arr) for name in names or MAKE}


def check(place, arr, beside, pixels):
    """Compare all arrays bit for bit, with zarr and with xarray."""
    group = zarr.open_group(place, mode="r" if isinstance(place, os.PathLike) else "r+")
    np.testing.assert_array_equal(group["data"][...], pixels)
    for name, result in beside.items():
        expected, found = np.asarray(result.compute()), group[name]
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), name
        assert np.asarray(found[...]).tobytes() == expected.tobytes(), name
    with xr.open_zarr(place, consolidated=True) as opened:
        assert {*opened.data_vars} == {"data", *beside}
        for name in beside:
            np.testing.assert_array_equal(opened[name].values, group[name][...])
    verify_zarr(place, arr)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return scans with decoded and with native pixels, and their pixels."""
    folder = tmp_path_factory.mktemp("scan")
    floats = (COUNTS * 1.1).astype("f4")
    raw = {"format": "raw", "nav_shape": (6, 10), "sig_shape": (32, 64), "io": "buffered"}
    chunks = (2, -1, -1, -1)
    path = write_mib(folder / "scan.mib", COUNTS)
    return {
        "mib": (open_dataset(path, chunks=chunks, io="buffered"), COUNTS),
        "f4": (
            open_dataset(write_raw(folder / "f4", floats), dtype="f4", chunks=chunks, **raw),
            floats,
        ),
        "f8": (
            open_dataset(
                write_raw(folder / "f8", COUNTS / 3), dtype="f8", chunks=(2, 5, -1, -1), **raw
            ),
            COUNTS / 3,
        ),
    }


@pytest.mark.parametrize("pyramid", [False, 2])
@pytest.mark.parametrize(
    ("name", "chunks", "frames"),
    [("mib", (2, 10, 32, 64), 20), ("f4", None, 20), ("f8", (1, 1, 32, 64), 1)],
)
def test_one_pass(opened, name, chunks, frames, pyramid, tmp_path, monkeypatch):
    """The file is read exactly once for all; without levels, rows of chunks are held."""
    arr, pixels = opened[name]
    if name == "mib":  # a task stores several chunks, of several rows each
        arr = arr.with_chunks((4, -1, -1, -1))
    beside, held, result = results(arr), [], TileWriter.result

    def noted(self):
        held.append((*map(len, self.arrays), self.working_bytes(())))
        return result(self)

    monkeypatch.setattr(TileWriter, "result", noted)
    with counted() as counter:
        to_zarr(arr, tmp_path / "out.zarr", chunks=chunks, pyramid=pyramid, with_results=beside)
    assert counter.nbytes == arr.nbytes
    assert pyramid or {*held} == {(frames, 2 * frames * pixels[0, 0].nbytes)}  # and encoded
    check(tmp_path / "out.zarr", arr, beside, pixels)
    yaozarrs.validate_zarr_store(str(tmp_path / "out.zarr"))


@settings(max_examples=settings.default.max_examples // 4)
@given(data=st.data())
def test_any_tiles_and_chunks(opened, data):
    """Results are right with any dask chunks, zarr chunks, shards and tiles."""
    arr, pixels = opened[data.draw(st.sampled_from(sorted(opened)))]
    chunks = [data.draw(st.integers(1, n)) for n in arr.shape[:2]]
    cut = data.draw(st.booleans())
    arr = arr.with_chunks((*chunks, *((16, 24) if cut else (-1, -1))))
    chosen = data.draw(st.sampled_from([None, 1, 2]))
    options = {"pyramid": data.draw(st.sampled_from([False, 1, 3]))}
    if chosen is not None:
        options["chunks"] = tuple(-(-n // chosen) for n in arr.chunksize)
    small = data.draw(st.sampled_from([None, 1 << 12, 1 << 15]))
    beside = results(arr, "navigator", "mean", "com")
    contents = {}
    with pytest.MonkeyPatch.context() as patch, dask.config.set({"dask-tiled.tile-bytes": small}):
        patch.setattr(grids, "SHARD_BYTES", data.draw(st.sampled_from([1 << 13, 1 << 17, 1 << 24])))
        patch.setattr(grids, "CHUNK_BYTES", data.draw(st.sampled_from([1 << 12, 1 << 16])))
        patch.setattr(levels, "BLOCK_BYTES", data.draw(st.sampled_from([1 << 14, 1 << 24])))
        with counted() as counter:
            to_zarr(arr, contents, with_results=beside, progress=False, **options)
        plan = plan_of(Given.of(arr), Settings(**options), results_of(beside, arr))
    assert counter.nbytes == arr.nbytes or any(one.apart for one in plan.results)
    check(zarr.storage.MemoryStore(contents), arr, beside, pixels)


def test_chunks_that_do_not_divide_those_of_the_array(opened, tmp_path):
    """Results need another pass, and the plan says why."""
    arr, pixels = opened["f4"]
    beside = results(arr)
    options = {"chunks": (3, 5, 32, 64)}
    plan = plan_of(Given.of(arr), Settings(**options), results_of(beside, arr))
    assert "computed separately: com: the zarr chunks or shards do not divide" in str(plan)
    to_zarr(arr, tmp_path / "out.zarr", with_results=beside, **options)
    check(tmp_path / "out.zarr", arr, beside, pixels)


def test_results_of_exports_in_two_steps(opened, tmp_path, monkeypatch):
    """Results are computed in the first step, which reads whole frames."""
    monkeypatch.setattr(relay, "MOST_TIMES", 0)
    arr, pixels = opened["f4"]
    beside = results(arr)
    options = {"chunks": (6, 10, 8, 16)}
    plan = plan_of(Given.of(arr), Settings(**options), results_of(beside, arr), relay=True)
    assert [one.passes[0].results for one in plan.steps] == [tuple(beside), ()]
    with counted() as counter:
        to_zarr(arr, tmp_path / "out.zarr", with_results=beside, **options)
    assert counter.nbytes == arr.nbytes
    check(tmp_path / "out.zarr", arr, beside, pixels)


def test_a_plan_lists_results(opened):
    """The text has the shapes of results, and the passes that compute them."""
    arr, _ = opened["f8"]
    beside = results(arr, "com", "mean") | {"part": arr[..., :8].sum((2, 3))}
    plan = plan_of(Given.of(arr), Settings(pyramid=1), results_of(beside, arr))
    text = str(plan)
    assert "com: float64 (6, 10, 2), chunks of (6, 10, 2)" in text
    assert "the array -> data, level_1/data, com, mean: 6 blocks" in text
    assert (
        "computed separately: part: it reads other files, other parts of them, or other chunks"
        in text
    )


def test_results_of_other_arrays(opened, tmp_path):
    """Results may be slices, arrays of dask, NumPy or xarray; other axes get other names."""
    arr, pixels = opened["f8"]
    shown = to_xarray(arr)
    beside = {
        "part": arr[1:4, :, :8, :8].sum((2, 3)),
        "corner": arr[..., :8, :8].mean((0, 1)),
        "ones": da.ones((3, 5), chunks=2),
        "numbers": np.arange(7.0),
        "labelled": shown.mean(shown.dims[:2]),
        "twice": np.abs(arr - arr.mean((0, 1))).sum((2, 3)),
    }
    to_zarr(arr, tmp_path / "out.zarr", with_results=beside)
    arrays = {name: da.asarray(getattr(one, "data", one)) for name, one in beside.items()}
    arrays["numbers"] = da.from_array(beside["numbers"])
    check(tmp_path / "out.zarr", arr, arrays, pixels)
    with xr.open_zarr(tmp_path / "out.zarr") as opened_again:
        dims = {name: opened_again[name].dims for name in beside}
    first, second, *sig = arr.dims
    assert dims["part"] == (f"part_{first}", second)
    assert dims["corner"] == tuple(f"corner_{name}" for name in sig)
    assert dims["labelled"] == tuple(sig)


COMPUTED = {"of a file": lambda a: a * 2.5, "of dask": lambda a: da.from_array(a.compute())}


@pytest.mark.parametrize("name", COMPUTED)
def test_results_of_computed_arrays(opened, name, tmp_path):
    """The exported array may be computed from a file, or a plain dask array."""
    arr, _ = opened["mib"]
    shown = COMPUTED[name](arr)
    beside = results(shown)
    with counted() as counter:
        to_zarr(shown, tmp_path / "out.zarr", with_results=beside)
    assert counter.nbytes in (arr.nbytes, 0)
    check(tmp_path / "out.zarr", shown, beside, shown.compute())


def test_axes_and_units(opened, tmp_path):
    """Results keep calibrations, names passed to the export, and names of components."""
    arr, _ = opened["mib"]
    arr = arr.with_axes({arr.dims[0]: "0.5 nm", arr.dims[2]: "2 mrad"})
    beside = results(arr, "com", "mean", "navigator")
    to_zarr(arr, tmp_path / "out.zarr", with_results=beside)
    with xr.open_zarr(tmp_path / "out.zarr") as found:
        assert found["com"].attrs["units"] == "px"
        assert found["com"].dims == (*arr.dims[:2], "component")
        assert [*found["component"].values] == [*arr.dims[2:]]
        assert found["navigator"][arr.dims[0]].attrs["units"] == "nm"
        np.testing.assert_allclose(found["mean"][arr.dims[2]].values[:3], [0, 2, 4])
    names = ["a", "b", "c", "d"]
    to_zarr(arr, tmp_path / "named.zarr", with_results=beside, dimension_names=names)
    with xr.open_zarr(tmp_path / "named.zarr") as found:
        assert (found["mean"].dims, found["com"].dims) == (("c", "d"), ("a", "b", "component"))


REFUSED = {
    "data": {"data": "sum"},
    "axis": {"scan_y": "sum"},
    "component": {"component": "com"},
    "level": {"level_1": "sum"},
    "path": {"a/b": "sum"},
    "empty": {"": "sum"},
    "dot": {".a": "sum"},
    "document": {"zarr.json": "sum"},
    "backslash": {"a\\b": "sum"},
    "nul": {"a\0b": "sum"},
    "half": {"\ud800": "sum"},
    "long": {"\u00e9" * 128: "sum"},
    "case": {"mean": "sum", "Mean": "com"},
    "data in capitals": {"DATA": "sum"},
    "forms": {"\u00e9": "sum", "e\u0301": "com"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_are_refused(opened, name, tmp_path):
    """Invalid names raise before anything is written."""
    arr, _ = opened["mib"]
    make = {"sum": lambda a: a.sum((2, 3)), "com": tiles.center_of_mass}
    beside = {key: make[one](arr) for key, one in REFUSED[name].items()}
    with pytest.raises(DatasetError, match="invalid name of a result"):
        to_zarr(arr, tmp_path / "out.zarr", with_results=beside, pyramid=1)
    assert not [*tmp_path.iterdir()]


def test_invalid_results_raise(opened, tmp_path):
    """Unknown chunks, masked arrays and other objects raise, and so do some options."""
    arr, _ = opened["mib"]
    mean = arr.mean((0, 1))
    place = tmp_path / "out.zarr"
    for beside, error, options in (
        ({"x": mean[mean > 1]}, TilingError, {}),
        ({"x": da.ma.masked_less(mean, 1)}, DatasetError, {}),
        ({"x": "scan.mib"}, DatasetError, {}),
        ({1: mean}, DatasetError, {}),
        ([mean], DatasetError, {}),
        ({"x": mean}, DatasetError, {"layout": "array"}),
        ({"x": mean}, DatasetError, {"follow": True}),
        ({"x": mean.map_blocks(lambda x: x, dtype=object)}, DatasetError, {}),
    ):
        with pytest.raises(error):
            to_zarr(arr, place, with_results=beside, **options)
        assert not [*tmp_path.iterdir()]


LIES = {
    "fewer": lambda a: a.sum((2, 3)).map_blocks(lambda x: x[:1], dtype="u8"),
    "fewer, of a part": lambda a: a[2:].sum((2, 3)).map_blocks(lambda x: x[:1], dtype="u8"),
    "more": lambda _: da.from_delayed(dask.delayed(np.ones)((3, 5)), (3, 4), "f8"),
    "cut": lambda a: a.sum((2, 3)).map_blocks(lambda x: x + 0.5, dtype="u8"),
}


@pytest.mark.parametrize("name", LIES)
def test_results_that_differ_from_their_dask_arrays(opened, name, tmp_path):
    """Another shape, or numbers that would be truncated, raise and show nothing."""
    arr, _ = opened["mib"]
    with pytest.raises(DatasetError, match="the result lie differs from its dask array"):
        to_zarr(arr, tmp_path / "out.zarr", with_results={"lie": LIES[name](arr)})
    assert not (tmp_path / "out.zarr").exists()


def test_results_of_any_type(opened, tmp_path):
    """All results are stored; only those of numbers are listed."""
    arr, pixels = opened["mib"]
    beside = {
        "sum": arr.sum((2, 3)),
        "times": da.from_array(np.array(["2020-01-01", "NaT"], "M8[s]")),
        "names": da.from_array(np.array(["a", "bcd"])),
        "records": da.from_array(np.zeros(4, [("a", "u2"), ("b", "f4")])),
        "none": arr[:0].sum((2, 3)),
        "many": da.ones((1,) * 40),
    }
    place = tmp_path / "out.zarr"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The data type")  # has no specification yet
        to_zarr(arr, place, with_results=beside)
        check(place, arr, beside, pixels)
    assert [*stored_results(open_dataset(place))] == ["sum", "many"]


def test_a_result_that_fails_leaves_nothing(opened, tmp_path):
    """Results fail in the pass of the export, or in another pass."""
    arr, _ = opened["mib"]

    def fail(_):
        raise ValueError("no such pixels")

    for source in (arr, arr[2:]):
        broken = source.map_blocks(fail, dtype="f8", meta=np.empty((0,) * 4)).sum((2, 3))
        with pytest.raises(ValueError, match="no such pixels"):
            to_zarr(arr, tmp_path / "out.zarr", with_results={"broken": broken})
        assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("after", [1, 2])
def test_stopped_exports_are_resumed(opened, after, tmp_path, monkeypatch):
    """Complete chunks are not written again, and all results are stored."""
    arr, pixels = opened["f4"]
    beside, place = results(arr), tmp_path / "out.zarr"
    with dask.config.set(scheduler="synchronous"):
        noted = stop_export(monkeypatch, Place, arr, place, after, with_results=beside)
        assert not place.exists()
        whole = {key for entries in noted for key in entries}
        put, true = [], Place.put
        with monkeypatch.context() as patch:
            patch.setattr(Place, "put", lambda self, k, x: (put.append(k), true(self, k, x)))
            to_zarr(arr, place, with_results=beside)
    assert whole
    assert not whole & {*put}
    check(place, arr, beside, pixels)


def test_other_results_start_afresh(opened, tmp_path, monkeypatch):
    """Results with another name or shape make another export."""
    arr, pixels = opened["f4"]
    place = tmp_path / "out.zarr"
    with dask.config.set(scheduler="synchronous"):
        stop_export(monkeypatch, Place, arr, place, 1, with_results=results(arr, "mean"))
        with pytest.warns(UserWarning, match="other settings"):
            to_zarr(arr, place, with_results=results(arr, "com"))
    check(place, arr, results(arr, "com"), pixels)


@pytest.mark.slow
def test_on_a_cluster(opened, tmp_path):
    """Worker processes read, compute and write."""
    arr, pixels = opened["f4"]
    beside = results(arr)
    options = {"n_workers": 2, "threads_per_worker": 1, **ANY_PORT}
    with LocalCluster(**options) as cluster, Client(cluster):
        to_zarr(arr, tmp_path / "out.zarr", with_results=beside, pyramid=1)
    check(tmp_path / "out.zarr", arr, beside, pixels)


def test_the_store_lists_results(opened, tmp_path):
    arr, _ = opened["mib"]
    to_zarr(arr, tmp_path / "out.zarr", with_results=results(arr, "mean", "com"))
    document = json.loads((tmp_path / "out.zarr/zarr.json").read_text())
    assert document["attributes"]["dask_tiled"]["results"] == ["mean", "com"]
