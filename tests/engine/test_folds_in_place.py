"""Folds of undecoded pixels, in either byte order, equal NumPy's bit for bit."""

import dask
import numpy as np
import pytest

from dask_tiled import open_dataset
from dask_tiled.engine.folding import FrameSink

pytestmark = pytest.mark.usefixtures("synchronous")

KINDS = "u2", "u4", "i2", "i8", "f4", "f8"
DTYPES = ["u1", *(f"{order}{kind}" for kind in KINDS for order in "<>")]
SHAPE = 5, 7, 66, 64  # no multiples of what is folded together


@pytest.fixture(params=DTYPES)
def scan(request, tmp_path):
    """Return an opened scan, with bytes between its frames, and its pixels."""
    dtype, rng = np.dtype(request.param), np.random.default_rng(0)
    if dtype.kind == "f":
        pixels = rng.normal(0, 10.0 ** rng.integers(-5, 5, SHAPE)).astype(dtype)
        pixels[0, 0, :2], pixels[3, 3, 1:3] = np.nan, np.inf
    else:
        limits = np.iinfo(dtype)
        native = dtype.newbyteorder("=")
        pixels = rng.integers(limits.min, limits.max, SHAPE, native, endpoint=True).astype(dtype)
    frames = pixels.reshape(len(pixels) * SHAPE[1], -1).view("u1")
    np.pad(frames, ((0, 0), (16, 0))).tofile(tmp_path / "scan.raw")
    options = {"format": "raw", "dtype": request.param, "frame_header": 16}
    arr = open_dataset(tmp_path / "scan.raw", nav_shape=SHAPE[:2], sig_shape=SHAPE[2:], **options)
    return arr, pixels.astype(dtype.newbyteorder("="))


@pytest.fixture
def _in_place(monkeypatch):
    """Make decoding fail."""
    monkeypatch.delattr(FrameSink, "_decode")


def same(found, expected):
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.usefixtures("_in_place")
def test_sums_and_extremes(scan):
    """Floats are added in the order of the frames, in double precision."""
    arr, pixels = scan
    wide = "f8" if pixels.dtype.kind == "f" else None
    for axes in ((0, 1), 0, 1):
        lazy = arr.sum(axes), arr.min(axes), arr.max(axes)
        total, least, greatest = dask.compute(*lazy)
        with np.errstate(all="ignore"):
            same(total, pixels.sum(axes, wide).astype(lazy[0].dtype))
        same(least, pixels.min(axes))
        same(greatest, pixels.max(axes))


@pytest.mark.thorough
@pytest.mark.usefixtures("_in_place")
@pytest.mark.parametrize("axes", [(0, 1), 0, 1])
def test_moments(scan, axes):
    """Variances are computed from differences to the first frame."""
    arr, pixels = scan
    frames = np.moveaxis(pixels.astype("f8"), axes, range(np.size(axes)))
    frames = frames.reshape(-1, *frames.shape[np.size(axes) :])
    with np.errstate(all="ignore"):
        differences = frames - frames[0]
        total, squares = differences.sum(0), (differences * differences).sum(0)
        mean = total / len(frames)
        expected = (squares - len(frames) * mean * mean) / len(frames)
    lazy = arr.var(axes)
    np.testing.assert_allclose(lazy.compute(), expected.astype(lazy.dtype), rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.usefixtures("_in_place")
def test_frames(scan):
    """Integers have sums, extremes, counts and weighted sums of frames in place."""
    arr, pixels = scan
    if pixels.dtype.kind == "f" or pixels.itemsize > 4:
        pytest.skip("other types are decoded first")
    disk, signs = np.arange(64) % 3 == 0, np.arange(-32, 32, dtype="i8")
    axes = (2, 3)
    lazy = [(a.max(axes), (a > 100).sum(axes), (a * disk).sum(axes)) for a in (arr, pixels)]
    for found, expected in zip(dask.compute(*lazy[0]), lazy[1], strict=True):
        same(found, expected)
    if pixels.dtype.kind == "u":
        same(arr.sum(axes).compute(), pixels.sum(axes))
    same((arr * signs).sum(axes).compute(), (pixels * signs).sum(axes))


def test_weights_of_floats(scan):
    arr, pixels = scan
    weights = np.random.default_rng(1).random((3, 66, 64)).astype("f4")
    with np.errstate(all="ignore"):
        expected = np.tensordot(pixels.astype("f8"), weights.astype("f8"), ((2, 3), (1, 2)))
    lazy = dask.array.tensordot(arr, weights, ((2, 3), (1, 2)))
    scale = np.abs(expected[np.isfinite(expected)]).max()
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-5, atol=1e-5 * scale)
