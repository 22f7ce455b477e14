"""Weighted sums of opened arrays run without a graph and equal those of a graph."""

import os
import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from checks import refused
from dask.callbacks import Callback
from distributed import Client, LocalCluster

import dask_tiled
from dask_tiled import StaleFileError, tiles
from dask_tiled.engine.folding import FrameSink
from dask_tiled.opened.at_once import LateArray
from dask_tiled.opened.axes import shown_of
from dask_tiled.testing import write_npy

FRAME = (9, 14)
SCANS = [(), (7,), (4, 5), (2, 3, 4)]
RANDOM = np.random.default_rng(0)


def opened(folder, nav=(4, 5), dtype="f4", frame=FRAME, **options):
    pixels = RANDOM.normal(100, 40, nav + frame).astype(dtype)
    if pixels.dtype.kind == "f":
        pixels[(0,) * pixels.ndim] = np.nan
    path = write_npy(folder / "scan.npy", pixels)
    return dask_tiled.open_dataset(path, nav_shape=nav, **options)


def masks(n, kind="f4", frame=FRAME):
    weights = RANDOM.normal(0, 2, (n, *frame))
    return (weights * 1j + 1 if kind == "c8" else weights).astype(kind)


def with_a_graph(result):
    seen = []
    with Callback(start=seen.append):
        found = result.compute()
    assert seen
    return found


def plain(function, arr, *args):
    """Return the result that dask builds."""
    with dask.config.set(array_plugins=(*dask.config.get("array_plugins"), lambda _: None)):
        return function(arr, *args)


def check(function, arr, *args):
    result, made = function(arr, *args), plain(function, arr, *args)
    assert type(result) is LateArray
    assert type(made) is da.Array
    wanted = made.compute()
    for options in ({}, {"scheduler": "synchronous"}, {"scheduler": "threads", "num_workers": 3}):
        found = result.compute(**options)
        assert type(found) is np.ndarray
        assert found.flags.c_contiguous
        assert found.flags.writeable
        assert (found.dtype, found.shape, found.tobytes()) == (
            wanted.dtype,
            wanted.shape,
            wanted.tobytes(),
        )
    assert with_a_graph(result).tobytes() == wanted.tobytes()
    assert (result.name, result.chunks, result.dtype) == (made.name, made.chunks, made.dtype)
    assert type(result._meta) is type(made._meta)
    assert shown_of(result) == shown_of(made)


@pytest.mark.parametrize("kind", ["f4", "?", "c8"])
@pytest.mark.parametrize("dtype", [">u2", "f2", "f4", "i8", "c8"])
@pytest.mark.parametrize("n", [1, 5])
def test_sums_equal_those_of_a_graph(tmp_path, kind, dtype, n):
    arr = opened(tmp_path, dtype=dtype, chunks=(3, 5, *FRAME))
    check(tiles.apply_masks, arr, masks(n, kind))


@pytest.mark.parametrize("io", ["buffered", "mmap"])
@pytest.mark.parametrize("nav", SCANS, ids=str)
@pytest.mark.parametrize("size", [2, None])
def test_scans_of_any_number_of_axes(tmp_path, nav, size, io, monkeypatch):
    """Also where the tasks write into the result."""
    monkeypatch.setattr("dask_tiled.graphs.results.LEAST_RESULT_PIXELS", 8)
    chunks = tuple(size or n for n in nav) + FRAME
    arr = opened(tmp_path, nav, chunks=chunks, io=io)
    check(tiles.apply_masks, arr, masks(3))
    check(tiles.apply_masks, arr, masks(1)[0])
    check(tiles.center_of_mass, arr)
    check(tiles.center_of_mass, arr, abs(masks(1)[0]))


def test_large_results_need_no_graph(tmp_path):
    arr = opened(tmp_path, (64, 64), "u2", (1, 2), chunks=(16, 64, 1, 2))
    check(tiles.apply_masks, arr, masks(160, frame=(1, 2)))


@pytest.mark.parametrize("frame", [(40,), (3, 4, 5)])
def test_signals_of_other_numbers_of_axes(tmp_path, frame):
    arr = opened(tmp_path, (6,), "u2", frame, sig_shape=frame)
    check(tiles.apply_masks, arr, masks(2, frame=frame))
    check(tiles.center_of_mass, arr)


@pytest.mark.thorough
def test_slices_and_axes(tmp_path):
    arr = opened(tmp_path, chunks=(2, 5, *FRAME)).with_axes(scan_y="2 nm")
    for some in (arr[1:, ::2, 2:7], arr[2], arr[1, 3], arr[..., 4], arr[[2, 0]]):
        weights = masks(2, frame=some.shape[some.description.nav_ndim :])
        check(tiles.apply_masks, some, weights)
        check(tiles.center_of_mass, some)
    assert shown_of(tiles.center_of_mass(arr)).units == "px"
    xr = pytest.importorskip("xarray")
    wrapped = xr.DataArray(arr, dims=arr.dims)
    found = tiles.apply_masks(wrapped, masks(1))
    assert found.shape == (4, 5, 1)


@pytest.mark.thorough
def test_further_computation(tmp_path):
    arr, weights = opened(tmp_path, chunks=(3, 5, *FRAME)), masks(2)
    result, made = tiles.apply_masks(arr, weights), plain(tiles.apply_masks, arr, weights)
    wanted = made.compute()
    for further in (lambda x: x[1, 2:], lambda x: x - x.mean(axis=0), lambda x: x.persist()):
        np.testing.assert_array_equal(further(result), further(made))
    both = dask.compute(result, tiles.center_of_mass(arr), arr.sum(axis=(2, 3)))
    np.testing.assert_array_equal(both[0], wanted)
    np.testing.assert_array_equal(both[1], tiles.center_of_mass(arr))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(result)), wanted)
    np.testing.assert_array_equal(result.compute(scheduler="processes"), wanted)


def test_later_changes_do_not_matter(tmp_path):
    arr, weights = opened(tmp_path, chunks=(3, 5, *FRAME)), masks(2)
    results = [tiles.apply_masks(arr, weights) for _ in range(2)]
    wanted = results[0].compute()
    weights[:] = 7
    arr[1] = 0
    np.testing.assert_array_equal(results[0].compute(), wanted)
    np.testing.assert_array_equal(with_a_graph(results[1]), wanted)
    assert type(tiles.apply_masks(arr, weights)) is da.Array
    results[0][1, 1] = 7
    wanted[1, 1] = 7
    np.testing.assert_array_equal(results[0].compute(), wanted)


def test_what_is_observed_is_left_to_dask(tmp_path):
    arr, weights = opened(tmp_path), masks(1)
    with dask.annotate(priority=3):
        assert type(tiles.apply_masks(arr, weights)) is da.Array
    for other in (arr.with_chunks((4, 5, 5, 14)), arr[:0], da.ones(arr.shape)):
        assert type(tiles.apply_masks(other, weights)) is da.Array
        assert type(tiles.center_of_mass(other)) is da.Array
    assert type(tiles.apply_masks(arr, masks(2, frame=FRAME[1:]), sig_ndim=1)) is da.Array
    result = tiles.apply_masks(arr, weights)
    assert result._graph is None
    wanted = result.compute()
    assert result._graph is None
    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=":0"
        ) as cluster,
        Client(cluster),
    ):
        np.testing.assert_array_equal(tiles.apply_masks(arr, weights).compute(), wanted)


@pytest.mark.parametrize("chunks", [(4, 5, *FRAME), (1, 5, *FRAME)])
@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_errors_and_interrupts_of_chunks(tmp_path, monkeypatch, chunks, scheduler):
    arr = opened(tmp_path, chunks=chunks)
    take = FrameSink.take_window

    def interrupted(*_):
        raise KeyboardInterrupt

    with dask.config.set(scheduler=scheduler):
        monkeypatch.setattr(FrameSink, "take_window", interrupted)
        for result in (tiles.apply_masks(arr, masks(1)), plain(tiles.apply_masks, arr, masks(1))):
            with pytest.raises(KeyboardInterrupt):
                result.compute()
        monkeypatch.setattr(FrameSink, "take_window", take)
        path = tmp_path / "scan.npy"
        os.truncate(path, 900)
        for result in (tiles.center_of_mass(arr), plain(tiles.center_of_mass, arr)):
            with refused(path, kind=StaleFileError):
                result.compute()


@pytest.mark.parametrize("dtype", ["f2", "f4", "c8"])
def test_negative_axes(tmp_path, dtype):
    """dask misplaces the axes of chunks: also of those that no kernel computes."""
    arr, weights = opened(tmp_path, dtype=dtype, chunks=(3, 5, *FRAME)), masks(2)
    found = da.tensordot(arr, weights, axes=((-2, -1), (-2, -1))).compute()
    wanted = da.tensordot(arr, weights, axes=((2, 3), (1, 2))).compute()
    assert found.shape == (4, 5, 2)
    np.testing.assert_array_equal(found, wanted)
