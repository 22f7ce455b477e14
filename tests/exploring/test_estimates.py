"""Estimates become exact bit for bit, and stop once outdated."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import open_dataset
from dask_tiled.exploring import estimates as module
from dask_tiled.exploring.estimates import Pace, estimates, mean_estimates, spread_out
from dask_tiled.exploring.running import Computing, Outdated
from dask_tiled.testing import write_raw


@pytest.fixture(autouse=True)
def in_steps(monkeypatch):
    """Compute small scans in steps, as large ones."""
    monkeypatch.setattr(module, "LEAST_FRAMES", 1)
    monkeypatch.setattr(Pace, "measured", lambda _, compute, arr, *__: compute(arr))


@pytest.fixture(scope="module")
def compute():
    computing = Computing()
    yield computing
    computing.close()


def slow(frames):
    """Return a pace of `frames` frames in the first step."""
    pace = Pace()
    pace.rate = frames / module.FIRST
    return pace


def opened(folder, pixels):
    path = folder / "scan.raw"
    write_raw(path, pixels)
    nav, sig = pixels.shape[:-2], pixels.shape[-2:]
    return open_dataset(path, "raw", dtype=pixels.dtype, nav_shape=nav, sig_shape=sig)


@given(st.integers(0, 300))
def test_spread_out_covers_rows_evenly(count):
    order = spread_out(count)
    assert sorted(order) == [*range(count)]
    for n in range(2, count):
        gaps = np.diff(np.sort(order[:n]))
        assert gaps.max(initial=1) <= 2 * max(1, (1 << (count - 1).bit_length()) // n) + 1


@pytest.mark.thorough
@settings(max_examples=20)
@given(
    st.tuples(*[st.integers(1, 9)] * 2, *[st.integers(2, 5)] * 2),
    st.sampled_from(["u1", "u2", "i4", "f4"]),
    st.integers(40, 4000),
)
def test_last_estimate_is_exact(tmp_path_factory, compute, shape, dtype, rate):
    rng = np.random.default_rng(0)
    pixels = (rng.random(shape) * 200).astype(dtype)
    arr = opened(tmp_path_factory.mktemp("scan"), pixels)
    mask = rng.random(shape[2:]) < 0.5

    def image(part):
        return (part * mask).sum(axis=(-2, -1))

    found = list(estimates(arr, image, 2, compute, slow(rate), by_rows=dtype != "f4"))
    exact = image(arr).compute()
    *others, last = found
    assert last.exact
    assert last.share == 1
    assert last.values.dtype == exact.dtype
    assert np.array_equal(last.values, exact)
    assert not any(one.exact for one in others)
    shares = [one.share for one in found]
    assert shares == sorted(shares)


@pytest.mark.parametrize("shape", [(40, 30, 4, 4), (600, 4, 4)], ids=str)
def test_estimates_sample_the_whole_scan(tmp_path, compute, shape):
    pixels = np.broadcast_to(np.arange(shape[0]).reshape(-1, *[1] * (len(shape) - 1)), shape)
    arr = opened(tmp_path, pixels.astype("u2"))
    count = len(shape) - 2
    found = estimates(arr, lambda x: x.sum((-2, -1)), count, compute, slow(1600), by_rows=True)
    first, second, *_ = ((one.values.copy(), one.share) for one in found)
    assert 0 < first[1] < second[1] < 1
    rows = first[0].reshape(len(first[0]), -1)[:, 0] / 16
    assert len(rows) > 4
    assert rows.min() < shape[0] / 4
    assert rows.max() > shape[0] * 3 / 4
    assert second[0].shape == shape[:count]
    assert abs(second[0].reshape(shape[0], -1)[:, 0] / 16 - np.arange(shape[0])).max() < 20


def test_means_become_exact(tmp_path, compute):
    pixels = np.random.default_rng(0).integers(0, 99, (20, 30, 4, 4), "u2")
    arr = opened(tmp_path, pixels)
    first, last = mean_estimates(arr, 2, compute, slow(1600))
    assert not first.exact
    assert abs(first.values - last.values).max() < 20
    assert np.array_equal(last.values, arr.mean(axis=(0, 1)).compute())


def test_outdated_computation_stops_between_tasks(compute):
    begun = []

    def check():
        begun.append(1)
        if len(begun) > 3:
            raise Outdated

    arr = da.ones((64, 8), chunks=(1, 8)).map_blocks(np.negative)
    with pytest.raises(Outdated):
        compute(arr, check)
    assert len(begun) == 4


def test_errors_of_tasks_are_raised(compute):
    def fail(_):
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        compute(da.ones(8, chunks=1).map_blocks(fail, dtype=float, meta=np.empty(0)))
