"""Empty selections of opened arrays read nothing."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_tiled import explain, open_dataset, to_xarray
from dask_tiled.testing import counting_frames, write_npy

PIXELS = counting_frames((4, 6, 16, 8), "u2")
EMPTY = np.s_[2:2], np.s_[:, :0], np.s_[..., 5:3], np.s_[0, 3:1, 4:9], np.s_[0, 2:2, ::-1]


@pytest.fixture
def arr(tmp_path):
    return open_dataset(write_npy(tmp_path / "scan.npy", PIXELS), chunks=(2, 6, 16, 8))


@pytest.mark.parametrize("index", EMPTY, ids=str)
def test_nothing_is_read(arr, index):
    part, expected = arr[index], PIXELS[index]
    for found, wanted in [
        (part, expected),
        (part + 1, expected + np.uint16(1)),
        (part.sum(), expected.sum()),
        (part.sum(axis=-1), expected.sum(axis=-1)),
    ]:
        np.testing.assert_array_equal(found.compute(), wanted, strict=True)
        told = explain(found, run=True)
        assert told.bytes_read == told.measured.bytes_read == 0
    assert to_xarray(part).dims == arr.dims[arr.ndim - part.ndim :]


def test_other_pixels_are_read(arr):
    """Results of the same graph are computed as ever."""
    empty = arr[2:2]
    with dask.annotate(priority=3):
        joined = da.concatenate([arr[:2], empty, arr[2:]])
    found = dask.compute(empty, arr.max(axis=(2, 3)), joined.sum(axis=0), arr[[3, 1]] - 1)
    expected = (PIXELS[2:2], PIXELS.max(axis=(2, 3)), PIXELS.sum(axis=0), PIXELS[[3, 1]] - 1)
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)
    assert explain(empty, arr).bytes_read == PIXELS.nbytes
