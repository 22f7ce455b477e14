"""Scans over time as one array with an axis of scans."""

import h5py
import numpy as np
import pytest

from dask_tiled import Corrections, DatasetError, open_dataset, open_series
from dask_tiled.testing import write_mib

NAV, SIG = (3, 4), (16, 32)
PIXELS = np.random.default_rng(0).integers(0, 4000, (3, 12, *SIG), "u2")
WHOLE = PIXELS.reshape(3, *NAV, *SIG)


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("series")
    return [write_mib(folder / f"{k}.mib", frames) for k, frames in enumerate(PIXELS)]


def test_scans_are_an_axis_of_navigation(scans):
    arr = open_series(scans, nav_shape=NAV, axes={"t": "30 s", "scan_x": "2 nm"})
    assert arr.dims == ("t", "scan_y", "scan_x", "y", "x")
    assert (arr.axes[0].scale, arr.axes[0].units, arr.description.nav_ndim) == (30, "s", 3)
    np.testing.assert_array_equal(arr.compute(), WHOLE)
    np.testing.assert_array_equal(arr[2, 1:, ::2, 3:9].compute(), WHOLE[2, 1:, ::2, 3:9])
    np.testing.assert_array_equal(arr.sum((-2, -1)).compute(), WHOLE.sum((-2, -1)))
    some = np.array([35, 0, 17])
    reshaped = arr.reshape(36, *SIG)[some].compute()
    np.testing.assert_array_equal(reshaped, WHOLE.reshape(36, *SIG)[some])


def test_scans_begin_at_frames_of_their_own(scans):
    """Frames before the first and after the last read as the fill value."""
    options = {"nav_shape": NAV, "fill_value": 7, "missing": "fill"}
    arr = open_series(scans, sync_offset=[0, 2, -1], **options)
    expected = np.stack(
        [
            open_dataset(path, sync_offset=offset, **options).compute()
            for path, offset in zip(scans, (0, 2, -1), strict=True)
        ]
    )
    assert (expected[1, -1, -2:] == 7).all()
    np.testing.assert_array_equal(arr.compute(), expected)


def test_corrections_are_those_of_all(scans):
    dark = np.full(SIG, 3, "f4")
    arr = open_series(scans, nav_shape=NAV, corrections=Corrections(dark=dark))
    np.testing.assert_allclose(arr.compute(), WHOLE - dark)


@pytest.mark.parametrize(
    ("pixels", "options"),
    [
        (WHOLE, {}),
        (WHOLE, {"chunks": (1, 1, *SIG), "compression": "gzip"}),
        (PIXELS, {"chunks": (5, 8, 32), "compression": "gzip"}),
    ],
    ids=["grids", "compressed grids", "compressed frames"],
)
def test_grids_and_compressed_frames(tmp_path, pixels, options):
    for k, scan in enumerate(pixels):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file.create_dataset("data", data=scan, **options)
    arr = open_series(tmp_path / "*.h5", dataset="data", nav_shape=NAV)
    assert arr.shape == WHOLE.shape
    np.testing.assert_array_equal(arr.compute(), WHOLE)
    np.testing.assert_array_equal(arr[1, :, 2].compute(), WHOLE[1, :, 2])


def test_wrong_series(scans, tmp_path):
    with pytest.raises(DatasetError, match=r"one for each of 3 scans.*found 2"):
        open_series(scans, nav_shape=NAV, sync_offset=[0, 1])
    np.save(tmp_path / "a.npy", np.zeros((12, *SIG), "f4"))
    with pytest.raises(DatasetError, match=r"a\.npy.*differs from the first one: dtype"):
        open_series([scans[0], tmp_path / "a.npy"], nav_shape=NAV)
    with pytest.raises(FileNotFoundError):
        open_series([scans[0], tmp_path / "b.mib"], nav_shape=NAV)
