"""Reductions computed together read each block once, and equal those computed alone."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_tiled import open_dataset
from dask_tiled.engine import folding, run
from dask_tiled.testing import write_raw

pytestmark = pytest.mark.usefixtures("synchronous", "at_rest")

RNG = np.random.default_rng(5)
FRAMES = RNG.integers(0, 1 << 16, (24, 64, 64)).astype("u2")
MASK = RNG.random((64, 64)).astype("f4")


def results_of(arr):
    """Return reductions by frame and by pixel, of integers and of floats."""
    scaled = np.sqrt(arr.astype("f4"))
    return [
        arr.sum(axis=(2, 3)),
        arr.sum(axis=(0, 1)),
        arr.max(),
        arr.std(axis=(0, 1)),
        (arr > 500).sum(axis=(2, 3)),
        da.tensordot(arr, MASK, axes=((2, 3), (0, 1))),
        scaled.sum(axis=(2, 3)),
        scaled.sum(axis=(0, 1)),
        arr.sum(axis=0),
    ]


@pytest.fixture
def merged(monkeypatch):
    """List how many sinks are merged into one."""
    counts, together = [], run.together

    def noted(sinks, ranges):
        found = together(sinks, ranges)
        counts.append(len(sinks) if found is not sinks else 0)
        return found

    monkeypatch.setattr(run, "together", noted)
    return counts


@pytest.mark.parametrize("io", ["auto", "buffered"])
@pytest.mark.parametrize("dtype", ["<u2", ">u2", "<f4"])
@pytest.mark.parametrize("header", [0, 3])
def test_several_results_equal_single_ones(tmp_path, monkeypatch, merged, io, dtype, header):
    """Also for few frames at a time, and for frames that are not aligned."""
    monkeypatch.setattr(folding, "CACHED_BYTES", 5 * FRAMES[0].nbytes)
    path = write_raw(tmp_path / "scan.raw", FRAMES.astype(dtype), frame_header=header)
    raw = {"dtype": dtype, "sig_shape": (64, 64), "frame_header": header, "nav_shape": (4, 6)}
    arr = open_dataset(path, "raw", io=io, chunks=-1, **raw)
    results = results_of(arr)
    single = [result.compute() for result in results]
    for some in (slice(0, 6), slice(0, 2), slice(6, 8), slice(None)):
        merged.clear()
        found = dask.compute(*results[some])
        for one, expected in zip(found, single[some], strict=True):
            np.testing.assert_array_equal(one, expected, strict=True)
        if some == slice(0, 2) and dtype != "<f4":
            assert merged == [2 * (header != 3)]


@pytest.mark.parametrize(("io", "header"), [("auto", 0), ("buffered", 3 * FRAMES[0].nbytes)])
def test_large_frames_are_folded_apart(tmp_path, monkeypatch, merged, io, header):
    """Also frames that lie far apart, which one kernel alone could read itself."""
    monkeypatch.setattr(folding, "CACHED_BYTES", FRAMES[0].nbytes - 1)
    path = write_raw(tmp_path / "scan.raw", FRAMES, frame_header=header)
    raw = {"dtype": "u2", "sig_shape": (64, 64), "frame_header": header}
    arr = open_dataset(path, "raw", io=io, chunks=-1, **raw)
    found = dask.compute(arr.sum(axis=(1, 2)), arr.sum(axis=0))
    np.testing.assert_array_equal(found[0], FRAMES.sum(axis=(1, 2)))
    np.testing.assert_array_equal(found[1], FRAMES.sum(axis=0))
    assert merged == [0]
