"""Results computed together read each chunk once and equal separate results bit for bit."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_tiled import open_dataset, reduce_tiles, tiles
from dask_tiled.graphs.one_pass import why_apart
from dask_tiled.reading.counting import counted
from dask_tiled.testing import write_raw

SHAPE = 8, 8, 128, 128
RANDOM = np.random.default_rng(5)
WEIGHTS = RANDOM.random((3, *SHAPE[2:]))
DISK = np.hypot(*np.ogrid[-64:64, -64:64]) < 20
RESULTS = {
    "sum": lambda a: a.sum((2, 3)),
    "mean": lambda a: a.mean((0, 1)),
    "spread": lambda a: a.std((0, 1)),
    "all": lambda a: a.var(),
    "one mask": lambda a: tiles.apply_masks(a, DISK),
    "masks": lambda a: tiles.apply_masks(a, WEIGHTS),
    "product": lambda a: da.tensordot(a, WEIGHTS[0], ((2, 3), (0, 1))),
    "centre": tiles.center_of_mass,
    "call": lambda a: (a * 2.5).sum(0),
}


@pytest.fixture(params=["f4", "f8", "u2", "u4"])
def arr(request, tmp_path):
    """Open a scan of two chunks whose sums are rounded."""
    pixels = (RANDOM.random(SHAPE) * 60000).astype(request.param)
    path = write_raw(tmp_path / "scan.raw", pixels)
    raw = {"format": "raw", "dtype": request.param, "sig_shape": SHAPE[2:], "nav_shape": SHAPE[:2]}
    return open_dataset(path, chunks=(4, -1, -1, -1), io="buffered", **raw)


def test_results_together_equal_results_alone(arr):
    results = [make(arr) for make in RESULTS.values()]
    alone = [result.compute() for result in results]
    with counted() as counter:
        together = dask.compute(*results)
    assert counter.nbytes == arr.nbytes
    for name, one, other in zip(RESULTS, alone, together, strict=True):
        assert one.tobytes() == other.tobytes(), name


def added(state, tile, _):
    return state + tile.sum()


APART = {
    "a part": lambda a, _: a[..., :32].sum(),
    "other chunks": lambda a, _: a.rechunk((2, -1, -1, -1)).max((0, 1)),
    "two passes": lambda a, _: np.abs(a - a.mean((0, 1))).sum((2, 3)),
    "tiles": lambda a, _: reduce_tiles(a, init=0.0, step=added, combine=np.add),
    "another array": lambda *_: da.ones(5).sum(),
    "small chunks": lambda _, small: small.mean((0, 1)),
}


@pytest.mark.parametrize("name", APART)
def test_separate_passes_have_a_reason(arr, name, monkeypatch):
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_TASK_BYTES", arr.nbytes)
    small = arr.rechunk((1, -1, -1, -1))
    shown = small if name == "small chunks" else arr
    assert why_apart(APART[name](arr, small), shown)


def test_one_pass_suffices(arr):
    """Results of opened, computed and plain dask arrays share a pass."""
    whole = arr.rechunk((8, -1, -1, -1))
    computed, plain = whole * 2.0, da.ones(SHAPE, chunks=(4, -1, -1, -1))
    for shown in (whole, computed, plain):
        for name, make in RESULTS.items():
            assert not why_apart(make(shown), shown), name
        assert not why_apart(da.median(shown, axis=(2, 3)), shown)
    assert not why_apart(whole.max((0, 1)), computed)
