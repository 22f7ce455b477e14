"""Axes of random computations equal those of xarray or are unknown."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, note
from hypothesis import strategies as st
from strategies import chunked

from dask_tiled import Axis, open_dataset
from dask_tiled.opened.axes import shown_of
from dask_tiled.testing import write_npy

SHAPE = 4, 6, 8
AXES = Axis("z", "s", 3, 10), Axis("y", "nm", 0.5, -1), Axis("x", "mrad", 2)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    path = write_npy(tmp_path_factory.mktemp("axes") / "a.npy", np.arange(192.0).reshape(SHAPE))
    arr = open_dataset(path).with_axes(AXES)
    pairs = zip(AXES, SHAPE, strict=True)
    coords = {axis.name: axis.offset + axis.scale * np.arange(n) for axis, n in pairs}
    return arr, xr.DataArray(np.zeros(SHAPE), coords, list("zyx"))


def new_name(array):
    return next(name for name in map("new{}".format, range(99)) if name not in array.dims)


def part(draw, arr, array, k):
    n, dim = array.shape[k], array.dims[k]
    start, step = draw(st.integers(0, n - 1)), draw(st.integers(-3, 3).filter(bool))
    stop = draw(st.integers(start + 1, n)) if step > 0 else None
    cut = slice(start, stop, step)
    return arr[(slice(None),) * k + (cut,)], array.isel({dim: cut})


def place(draw, arr, array, k):
    at = draw(st.integers(0, array.shape[k] - 1))
    return arr[(slice(None),) * k + (at,)], array.isel({array.dims[k]: at}, drop=True)


def places(draw, arr, array, k):
    n = array.shape[k]
    some = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True))
    return da.take(arr, some, axis=k), array.isel({array.dims[k]: some})


def mask(draw, arr, array, k):
    n = array.shape[k]
    some = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    some[draw(st.integers(0, n - 1))] = True
    return arr[(slice(None),) * k + (some,)], array.isel({array.dims[k]: np.flatnonzero(some)})


def reduced(draw, arr, array, k):
    function = draw(st.sampled_from([da.sum, da.mean, da.max, da.std, da.median, da.argmax]))
    return function(arr, axis=k), array.sum(array.dims[k])


def moved(draw, arr, array, _):
    order = draw(st.permutations(range(array.ndim)))
    return arr.transpose(order), array.transpose(*(array.dims[k] for k in order))


def binned(draw, arr, array, k):
    by = draw(st.integers(1, array.shape[k]))
    dim = array.dims[k]
    found = array.coarsen({dim: by}, boundary="trim").sum()
    return da.coarsen(np.sum, arr, {k: by}, trim_excess=True), found


def differences(_, arr, array, k):
    if array.shape[k] < 2:
        return arr, array
    dim, found = array.dims[k], array.diff(array.dims[k])
    if dim in array.coords:
        numbers = array[dim].values
        found = found.assign_coords({dim: (numbers[1:] + numbers[:-1]) / 2})
    return da.diff(arr, axis=k), found


def added_up(_, arr, array, k):
    return da.cumsum(arr, k), array


def rolled(draw, arr, array, k):
    by = draw(st.integers(-9, 9))
    return da.roll(arr, by, axis=k), array.roll({array.dims[k]: by}, roll_coords=True)


def reversed_(_, arr, array, k):
    return da.flip(arr, k), array.isel({array.dims[k]: slice(None, None, -1)})


def joined(draw, arr, array, k):
    n, dim, index = array.shape[k], array.dims[k], (slice(None),) * k
    ends = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for _ in range(2)]
    cuts = [slice(a, max(b, a + 1)) if a < n else slice(n - 1, n) for a, b in ends]
    found = xr.concat([array.isel({dim: cut}) for cut in cuts], dim)
    return da.concatenate([arr[(*index, cut)] for cut in cuts], axis=k), found


def halves(_, arr, array, k):
    n, dim, index = array.shape[k], array.dims[k], (slice(None),) * k
    cuts = slice(n // 2), slice(n // 2, n)
    found = xr.concat([array.isel({dim: cut}) for cut in cuts], dim)
    return da.concatenate([arr[(*index, cut)] for cut in cuts], axis=k), found


def new(_, arr, array, k):
    return arr[(slice(None),) * k + (None,)], array.expand_dims(new_name(array), axis=k)


def stacked(_, arr, array, k):
    name = new_name(array)
    found = xr.concat([array, array], name).transpose(*array.dims[:k], name, *array.dims[k:])
    return da.stack([arr, arr], axis=k), found


def of_pixels(draw, arr, array, k):
    jobs = [
        lambda a: np.sqrt(abs(a)) + 1,
        lambda a: da.where(a > 3, a, 0),
        lambda a: a - a.mean(axis=k, keepdims=True),
        lambda a: a.map_blocks(np.cbrt),
        lambda a: a.rechunk(draw(chunked(a.shape))),
        lambda a: da.nan_to_num(a).astype("f4"),
        lambda a: a.map_overlap(lambda x: x, depth=1, boundary="nearest"),
        lambda a: a.persist(),
        lambda a: da.isin(a, [1, 2]) * 1.0,
    ]
    return draw(st.sampled_from(jobs))(arr), array


STEPS = [
    *(part, place, places, mask, reduced, moved, binned, differences, added_up, rolled),
    *(reversed_, joined, halves, new, stacked, of_pixels),
]


@pytest.mark.thorough
@given(data=st.data())
def test_random_axes(opened, data):
    arr, array = opened
    arr = arr.rechunk(data.draw(chunked(SHAPE)))
    with dask.config.set(scheduler="synchronous"):
        for _ in range(data.draw(st.integers(1, 5))):
            if not array.ndim:
                break
            step = data.draw(st.sampled_from(STEPS))
            axis = data.draw(st.integers(0, array.ndim - 1))
            arr, array = step(data.draw, arr, array, axis)
            note(f"{step.__name__} of axis {axis}: {array.sizes}")
            assert arr.shape == array.shape
            check(shown_of(arr).axes, array)


def check(axes, array):
    """Compare names and positions of the known axes."""
    for axis, dim, n in zip(axes, array.dims, array.shape, strict=True):
        if axis is None:
            continue
        if dim.startswith("new"):
            assert n == 1
            assert axis == Axis(axis.name)  # an opened array has names for all axes
            continue
        assert axis.name == dim
        if axis.units:
            positions = axis.offset + axis.scale * np.arange(n)
            np.testing.assert_allclose(positions, array[dim], atol=1e-9)
        else:
            assert axis == Axis(dim)
