"""Casts to complex and half precision, complex sums, rounding and integer powers run on tiles."""

import dask.array as da
import numpy as np
import pytest

from dask_tiled import explain, open_dataset
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (2, 3, 8, 64)
SUMS = {"frames": (2, 3), "scan": (0, 1), "rows": (3,), "all": (0, 1, 2, 3)}


def opened(folder, dtype):
    """Open random pixels, integers over their whole range, in chunks of a row of the scan."""
    rng, dtype = np.random.default_rng(1), np.dtype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        pixels = rng.integers(limits.min, limits.max, SHAPE, dtype, endpoint=True)
    else:
        pixels = rng.random(SHAPE) * 100 - 50
        pixels = pixels > 0 if dtype.kind == "b" else pixels
        pixels = pixels + 1j * rng.random(SHAPE) if dtype.kind == "c" else pixels
    pixels = pixels.astype(dtype)
    return open_dataset(write_npy(folder / "scan.npy", pixels)).with_chunks((1, *SHAPE[1:])), pixels


def check(found, expected):
    """Check the bits of a result that runs on tiles."""
    assert not explain(found).left
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found.compute(), expected, strict=True)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["u2", "i8", "f4", "?", "c8"])
def test_complex_pixels(tmp_path, dtype):
    arr, pixels = opened(tmp_path, dtype)
    for name in ("c8", "c16"):
        check(arr.astype(name), pixels.astype(name))
        check(arr.astype(name) - 1j, pixels.astype(name) - 1j)
        exact = pixels.astype(name).astype("c16")
        for axes in SUMS.values():
            found = arr.astype(name).sum(axes)
            assert not explain(found).left
            assert found.dtype == name
            bound = 4 * np.finfo(name).eps * np.abs(exact).sum()
            np.testing.assert_allclose(found.compute(), exact.sum(axes), rtol=0, atol=bound)
    check(abs(arr.astype("c16")).max((2, 3)), abs(pixels.astype("c16")).max((2, 3)))


def test_sums_of_complex_pixels_in_double_precision(tmp_path):
    """A sum of a million pixels has the error of one rounding, as other sums have."""
    pixels = np.full((4, 2, 512, 512), 0.1 + 0.7j, "c8")
    arr = open_dataset(write_npy(tmp_path / "scan.npy", pixels))
    found = arr.sum().compute()
    assert found == np.complex64(pixels.astype("c16").sum())


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "i2", "f2"])
def test_half_precision(tmp_path, dtype):
    arr, pixels = opened(tmp_path, dtype)
    with np.errstate(over="ignore"):
        half = pixels.astype("f2")
    check(arr.astype("f2"), half)
    check(arr.astype("f2").max((2, 3)), half.max((2, 3)))


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u8", "i8"])
def test_rounding_of_integers(tmp_path, dtype):
    """Also where the nearest ten does not fit."""
    arr, pixels = opened(tmp_path, dtype)
    for decimals in (-1, -2, -3):
        with np.errstate(invalid="ignore"):
            check(arr.round(decimals), pixels.round(decimals))


def test_powers_of_integers(tmp_path):
    """NumPy refuses negative exponents, whose values only tasks know."""
    arr, pixels = opened(tmp_path, "i8")
    exponents = np.arange(64) % 5
    check(arr ** da.from_array(exponents, chunks=-1), pixels**exponents)
    below = da.from_array(exponents - 1, chunks=-1)
    with pytest.raises(ValueError, match="negative integer powers"):
        (arr**below).compute()
