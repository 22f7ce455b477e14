"""Levels are rounded means of two pixels along each axis, or the most frequent pixels."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dask_tiled.export.zarr.levels import halved
from dask_tiled.model.pyramids import Halving

HALF = settings(max_examples=settings.default.max_examples // 2)
WHOLE = ["?", "i1", "u1", "<i2", ">u2", "i4", "u4", "i8", "u8"]

AXES = st.sampled_from([axes for n in (1, 2, 3) for axes in combinations(range(4), n)])


def bins(pixels, axes):
    """Yield each position in the next level, and the pixels whose mean it holds."""
    shape = [-(-n // 2) if axis in axes else n for axis, n in enumerate(pixels.shape)]
    for place in product(*map(range, shape)):
        yield (
            place,
            pixels[
                tuple(
                    slice(2 * k, 2 * k + 2) if axis in axes else k for axis, k in enumerate(place)
                )
            ],
        )


@pytest.mark.thorough
@HALF
@given(st.data())
def test_integers(data):
    """Means are rounded half to even, those of masks half up, and sums do not overflow."""
    dtype = np.dtype(data.draw(st.sampled_from(WHOLE)))
    shape = arrays.array_shapes(min_dims=2, max_dims=4, max_side=4)
    pixels = data.draw(arrays.arrays(dtype, shape))
    axes = data.draw(AXES.filter(lambda axes: axes[-1] < pixels.ndim))
    found = halved(pixels, Halving(axes))
    assert found.dtype == dtype
    for place, some in bins(pixels, axes):
        mean = Fraction(sum(map(int, some.ravel())), some.size)
        # Half of the pixels of a mask are enough.
        assert int(found[place]) == (mean >= Fraction(1, 2) if dtype.kind == "b" else round(mean))


@pytest.mark.parametrize("axes", [(1,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("first", [0, 1])
def test_lines_of_a_mask(axes, first):
    """Lines of one pixel stay in the next level, and in that of the inverse."""
    pixels = np.zeros((4, 6, 8), bool)
    pixels[:, first::2] = True
    assert halved(pixels, Halving(axes)).all()
    pixels[:, :, ::2] = False  # one pixel in four
    assert halved(pixels, Halving(axes)).any() == (axes == (1,))


@HALF
@given(st.data())
def test_floats(data):
    """Means are those in float64, with NaN and infinity, and do not overflow."""
    dtype = np.dtype(data.draw(st.sampled_from(["f2", "f4", "f8", ">f4", "c8", "c16"])))
    shape = arrays.array_shapes(min_dims=2, max_dims=4, max_side=4)
    numbers = arrays.from_dtype(dtype.newbyteorder("="), allow_subnormal=False)
    pixels = data.draw(arrays.arrays(dtype.newbyteorder("="), shape, elements=numbers))
    pixels = pixels.astype(dtype)
    axes = data.draw(AXES.filter(lambda axes: axes[-1] < pixels.ndim))
    found = halved(pixels, Halving(axes))
    assert found.dtype == dtype
    parts = [(pixels, found)]
    if dtype.kind == "c":
        parts = [(pixels.real, found.real), (pixels.imag, found.imag)]
    for given_pixels, means in parts:
        limits = np.finfo(means.dtype)
        for place, some in bins(given_pixels, axes):
            with np.errstate(all="ignore"):
                scaled = np.array(some, np.float64) / some.size
                mean, size = scaled.sum(), np.abs(scaled).sum()
            if np.isfinite(size):
                error = 4 * float(limits.eps) * size + float(limits.tiny)
                assert abs(float(means[place]) - mean) <= error
            else:
                np.testing.assert_array_equal(float(means[place]), mean)


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_pixels_are_not_changed(dtype):
    """Pixels may be read-only and in any order."""
    pixels = np.arange(4 * 6 * 8, dtype=dtype).reshape(8, 6, 4).T[:, ::2]
    pixels.flags.writeable = False
    for place, some in bins(pixels, (1, 2)):
        assert halved(pixels, Halving((1, 2)))[place] == np.rint(some.mean()) or dtype == "f4"


@pytest.mark.parametrize("dtype", ["u2", "c8", "?"])
def test_nearest_pixels(dtype):
    """Labels are never averaged: a pixel is the first of each pair."""
    pixels = np.arange(3 * 5 * 6 * 2).reshape(3, 5, 6, 2).astype(dtype)
    found = halved(pixels, Halving((1, 2), "nearest"))
    np.testing.assert_array_equal(found, pixels[:, ::2, ::2])
    out = np.zeros((3, 3, 2, 3), dtype).transpose(0, 1, 3, 2)
    halved(pixels, Halving((1, 2), "nearest"), out)
    np.testing.assert_array_equal(out, pixels[:, ::2, ::2])


@HALF
@given(st.data())
def test_modes(data):
    """The most frequent pixel of a square or cube, the first of equals, in any order of axes."""
    dtype = np.dtype(data.draw(st.sampled_from(WHOLE)))
    shape = arrays.array_shapes(min_dims=2, max_dims=4, max_side=5)
    elements = st.booleans() if dtype.kind == "b" else st.integers(0, 3).map(dtype.type)
    pixels = data.draw(arrays.arrays(dtype, shape, elements=elements))
    axes = data.draw(AXES.filter(lambda axes: axes[-1] < pixels.ndim))
    found = halved(pixels, Halving(axes, "mode"))
    assert found.dtype == dtype
    for place, some in bins(pixels, axes):
        counted = Counter(some.ravel().tolist())  # the first of equals is the first in the order
        assert found[place] == counted.most_common(1)[0][0]
    out = np.zeros(found.shape[::-1], dtype).T
    np.testing.assert_array_equal(halved(pixels, Halving(axes, "mode"), out), found)
