"""`isel` and `sel`: parts of arrays by names of axes, labels and coordinates."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import Axis, DatasetError, TiledArray, open_dataset
from dask_tiled.testing import counting_frames, write_nd2

PIXELS = counting_frames((4, 3, 5, 6), "u2")
NAMES = "DAPI", "GFP", "Cy5"


@pytest.fixture(scope="module")
def arr(tmp_path_factory):
    path = tmp_path_factory.mktemp("nd2") / "a.nd2"
    write_nd2(path, PIXELS, "zcyx", channels=NAMES, step=2.0, pixel_size=0.5)
    return open_dataset(path)


def test_positions(arr):
    for found, expected in (
        (arr.isel(z=1), PIXELS[1]),
        (arr.isel(z=-1, x=slice(1, 6, 2)), PIXELS[-1, ..., 1:6:2]),
        (arr.isel(c=[2, 0], z=slice(1, None)), PIXELS[1:, [2, 0]]),
        (arr.isel({"c": [1], "y": 2}), PIXELS[:, [1], 2]),
        (arr.isel(z=[3, 1], c=[0, 2]), PIXELS[[3, 1]][:, [0, 2]]),
        (arr.isel(z=np.array([True, False, True, False])), PIXELS[::2]),
        (arr.isel(), PIXELS),
    ):
        np.testing.assert_array_equal(found.compute(), expected)
        assert isinstance(found, TiledArray)


def test_labels_and_coordinates(arr):
    """As in xarray, but with the nearest position."""
    for found, expected in (
        (arr.sel(c="GFP"), PIXELS[:, 1]),
        (arr.sel(c=["Cy5", "DAPI"]), PIXELS[:, [2, 0]]),
        (arr.sel(c=slice("GFP", "Cy5")), PIXELS[:, 1:]),
        (arr.sel(c=slice("GFP")), PIXELS[:, :2]),
        (arr.sel(z=4), PIXELS[2]),
        (arr.sel(z=4.9), PIXELS[2]),
        (arr.sel(z=-0.9), PIXELS[0]),
        (arr.sel(z=[0, 6]), PIXELS[[0, 3]]),
        (arr.sel(x=slice(0.5, 2), c="DAPI"), PIXELS[:, 0, :, 1:5]),
        (arr.sel(x=slice(0.6, 1.9)), PIXELS[..., 2:4]),
        (arr.sel(x=slice(1, None)), PIXELS[..., 2:]),
        (arr.sel(x=slice(9, 10)), PIXELS[..., :0]),
        (arr[::-1].sel(z=slice(2, None)), PIXELS[1::-1]),
        (arr[::-1].sel(z=slice(4, 0)), PIXELS[2::-1]),
    ):
        np.testing.assert_array_equal(found.compute(), expected)
        assert isinstance(found, TiledArray) or not found.size
    assert arr.sel(c=["Cy5", "DAPI"]).axes[1].labels == ("Cy5", "DAPI")
    assert arr.sel(x=slice(0.5, 2)).axes[3].offset == 0.5


@pytest.mark.thorough
@given(data=st.data())
def test_slices_are_those_of_xarray(arr, data):
    """Ends in any order, beyond the axis, between positions and open, along axes of any order."""
    arr = arr[::-1] if data.draw(st.booleans()) else arr
    step = data.draw(st.sampled_from([None, 2, -1]))
    # pandas returns the whole axis for a negative step from an end beyond it.
    ends = st.none() | (st.integers(0, 6) if step == -1 else st.integers(-2, 8))
    along_z = slice(data.draw(ends), data.draw(ends), step)
    names = st.none() | st.sampled_from(NAMES)
    along_c = slice(data.draw(names), data.draw(names), data.draw(st.sampled_from([None, -1])))
    expected = arr.to_xarray().sel(z=along_z, c=along_c)
    assert isinstance(expected, xr.DataArray)
    np.testing.assert_array_equal(arr.sel(z=along_z, c=along_c), expected)


@pytest.mark.parametrize("step", [1, -1])
def test_slices_against_the_axis_are_empty(arr, step):
    arr = arr[::step]
    assert arr.sel(z=slice(6, 2)).shape[0] == (0 if step > 0 else 3)
    assert arr.sel(z=slice(2, 6)).shape[0] == (3 if step > 0 else 0)


def test_uneven_positions(arr):
    uneven = arr.with_axes(z=Axis("z", coordinates=(0.0, 1.0, 4.0, 9.0), coordinate_units="s"))
    np.testing.assert_array_equal(uneven.sel(z=6), PIXELS[2])
    np.testing.assert_array_equal(uneven.sel(z=slice(1, 5)), PIXELS[1:3])
    with pytest.raises(DatasetError, match="no such position; expected 0 to 9 s; found 12"):
        uneven.sel(z=12)
    turned = arr.with_axes(z=Axis("z", coordinates=(0.0, 9.0, 1.0, 4.0)))
    with pytest.raises(DatasetError, match="not in order"):
        turned.sel(z=slice(0, 2))


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"k": 0}, "no such axis; expected one of z, c, y, x; found 'k'"),
        ({3: 0}, "no such axis"),
        ({"c": "gfp"}, "no position of this name; expected 'DAPI', 'GFP', 'Cy5'; found 'gfp'"),
        ({"z": "GFP"}, "no position of this name; expected no names"),
        ({"z": 8}, "no such position; expected 0 to 6 µm; found 8"),
        ({"z": -1.1}, "no such position"),
        ({"z": float("nan")}, "no such position"),
        ({"c": ["GFP", "gfp"]}, "no position of this name"),
    ],
)
def test_absent_positions(arr, wanted, problem):
    with pytest.raises(DatasetError, match=problem):
        arr.sel(wanted)


def test_repeated_names(arr):
    again = arr.with_axes(c=Axis("c", labels=("GFP", "GFP", "Cy5")))
    with pytest.raises(DatasetError, match="several positions of the axis 'c' have this name"):
        again.sel(c="GFP")
    np.testing.assert_array_equal(again.sel(c="Cy5"), PIXELS[:, 2])
