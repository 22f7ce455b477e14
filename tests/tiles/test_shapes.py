"""`disk` and `ring` in units of the axes, with given or detected centres."""

import dask.array as da
import numpy as np
import pytest

from dask_tiled import Axis, TilingError, open_dataset, tiles
from dask_tiled.opened.axes import labelled
from dask_tiled.testing import write_dm, write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

SIG = (24, 30)
Y, X = np.indices(SIG)


def calibrated(y=("1/nm", 0.5, -6.0), x=("1/nm", 0.25, -3.0)):
    axes = [Axis(name, *values) for name, values in (("y", y), ("x", x))]
    return labelled(da.zeros((4, *SIG)), [None, *axes])


def test_uncalibrated_axes_are_in_pixels():
    arr = da.zeros((4, *SIG))
    distance = np.hypot(Y - 10, X - 12.5)
    np.testing.assert_array_equal(tiles.disk(arr, 6, (10, 12.5)), distance < 6)
    np.testing.assert_array_equal(tiles.disk(arr, "6 px", ("10 px", 12.5)), distance < 6)
    expected = (distance >= 3) & (distance < 6)
    np.testing.assert_array_equal(tiles.ring(arr, 3, 6, (10, 12.5)), expected)
    assert tiles.disk(arr, 6, (10, 12.5)).dtype == bool


def test_disk_and_ring_complement_each_other():
    arr = calibrated()
    for inner, outer in ((0, 2), (1.5, 4), ("2 1/nm", 3.3), (2, 2)):
        around = (0.3, "0.4 1/nm")
        both = tiles.disk(arr, inner, around), tiles.ring(arr, inner, outer, around)
        assert not (both[0] & both[1]).any()
        np.testing.assert_array_equal(both[0] | both[1], tiles.disk(arr, outer, around))


def test_units_of_calibrated_axes():
    """Disks are ellipses of pixels if these are not square, and offsets count."""
    arr = calibrated()
    y, x = -6 + 0.5 * Y, -3 + 0.25 * X
    np.testing.assert_array_equal(tiles.disk(arr, 2.1, (0, 0)), np.hypot(y, x) < 2.1)
    np.testing.assert_array_equal(
        tiles.disk(arr, "2.1 1/nm", (1, 0.5)), np.hypot(y - 1, x - 0.5) < 2.1
    )
    np.testing.assert_array_equal(tiles.disk(arr, 2.1, ("12 px", "12 px")), np.hypot(y, x) < 2.1)
    np.testing.assert_array_equal(tiles.disk(arr, "4 px", (0, 0)), np.hypot(Y - 12, X - 12) < 4)
    flipped = calibrated(y=("1/nm", -0.5, 6.0))
    np.testing.assert_array_equal(tiles.disk(flipped, 2.1, (0, 0)), np.hypot(6 - 0.5 * Y, x) < 2.1)


def test_units_are_converted():
    pytest.importorskip("pint")
    arr = calibrated(("mrad", 2.0, -20.0), ("rad", 0.001, -0.015))
    expected = np.hypot(2 * Y - 20, X - 15) < 9.5
    for radius in ("9.5 mrad", "0.0095 rad"):
        np.testing.assert_array_equal(tiles.disk(arr, radius, ("0 mrad", "0 rad")), expected)
    moved = np.hypot(2 * Y - 24, X - 15) < 9.5
    np.testing.assert_array_equal(tiles.disk(arr, "9.5 mrad", ("0.004 rad", "0 mrad")), moved)
    nm = calibrated(("1/nm", 0.5, 0), ("1/nm", 0.5, 0))
    expected = tiles.disk(nm, 3, (5, 5))
    np.testing.assert_array_equal(tiles.disk(nm, "0.3 1/angstrom", (5, 5)), expected)


def test_pixel_at_the_radius_is_outside_for_any_scale():
    """Rounding, as of five steps of 0.02, does not break the disk's symmetry."""
    for scale in (0.02, 0.1, 1 / 3, 7.0):
        axes = ("mrad", scale, -12 * scale), ("mrad", scale, -12 * scale)
        found = tiles.disk(calibrated(*axes), 5 * scale, (0, 0))
        np.testing.assert_array_equal(found, np.hypot(Y - 12, X - 12) < 5 - 1e-6)


def test_axes_of_files_and_of_slices(tmp_path):
    counts = np.zeros((4, 5, *SIG), "u2")
    nm, per_nm = (0.0, 0.5, "nm"), (12.0, 0.02, "1/nm")
    path = write_dm(tmp_path / "scan.dm4", counts, calibrations=[nm, nm, per_nm, per_nm])
    arr = open_dataset(path)
    y, x = (
        axis.offset + axis.scale * place for axis, place in zip(arr.axes[2:], (Y, X), strict=True)
    )
    expected = np.hypot(y, x) < 0.13
    assert expected.any()
    np.testing.assert_array_equal(tiles.disk(arr, 0.13, (0, 0)), expected)
    np.testing.assert_array_equal(tiles.disk(arr[1, ..., 3:, ::2], 0.13, (0, 0)), expected[3:, ::2])


def test_spectra_and_volumes():
    channels = labelled(da.zeros((4, 50)), [None, Axis("energy", "eV", 0.5, 100.0)])
    found = tiles.ring(channels, 1, 3, [110], sig_ndim=1)
    energy = 100 + 0.5 * np.arange(50)
    np.testing.assert_array_equal(found, (abs(energy - 110) >= 1) & (abs(energy - 110) < 3))
    ball = tiles.disk(da.zeros((2, 9, 9, 9)), 3, (4, 4, 4), sig_ndim=3)
    z, y, x = np.indices((9, 9, 9)) - 4
    np.testing.assert_array_equal(ball, z**2 + y**2 + x**2 < 9)


def disk_scan(y, x, radius=6.0):
    rng = np.random.default_rng(0)
    inside = np.hypot(Y - y, X - x) < radius
    return rng.poisson(np.where(inside, 20, 0.5), (6, 7, *SIG)).astype("u2"), inside


@pytest.mark.parametrize("at", [(11, 14), (8.5, 17.25)])
def test_centre_of_the_bright_disk_is_found(tmp_path, at):
    frames, inside = disk_scan(*at)
    middle = np.argwhere(inside).mean(axis=0)
    path = write_npy(tmp_path / "scan.npy", frames)
    for arr in (open_dataset(path), da.from_array(frames, chunks=(2, 7, *SIG))):
        found = tiles.disk(arr, 3)
        assert np.hypot(*(np.argwhere(found).mean(axis=0) - middle)) < 0.5
        expected = np.hypot(Y - middle[0], X - middle[1])
        away = abs(expected - 3) > 0.3
        np.testing.assert_array_equal(found[away], (expected < 3)[away])


def test_missing_frames_and_nan_do_not_move_the_centre(tmp_path):
    frames, _ = disk_scan(11, 14)
    path = write_npy(tmp_path / "scan.npy", frames)
    expected = tiles.disk(open_dataset(path), 4)
    late = open_dataset(path, nav_shape=(8, 7), missing="fill", fill_value=60000)
    np.testing.assert_array_equal(tiles.disk(late, 4), expected)
    holes = frames.astype("f4")
    holes[:, 3, 20:, :2] = np.nan
    np.testing.assert_array_equal(tiles.disk(da.from_array(holes), 4), expected)


def test_without_a_disk_the_centre_is_required():
    flat = da.ones((4, *SIG))
    with pytest.raises(TilingError, match=r"no bright disk.*center="):
        tiles.disk(flat, 3)
    with pytest.raises(TilingError, match=r"found in images"):
        tiles.disk(flat, 3, sig_ndim=1)


@pytest.mark.parametrize(
    "length", [-1, "-2 1/nm", np.nan, np.inf, None, True, "3", "far", "2 kg", [1]]
)
def test_invalid_lengths_are_refused(length):
    arr = calibrated()
    for call in (
        lambda: tiles.disk(arr, length, (0, 0)),
        lambda: tiles.ring(arr, 0, length, (0, 0)),
        lambda: tiles.ring(arr, length, 3, (0, 0)),
        lambda: tiles.radial_profile(arr, (0, 0), length if length is not None else "x"),
    ):
        with pytest.raises(TilingError) as caught:
            call()
        assert caught.value.found is not None


@pytest.mark.parametrize(
    "center", [3, (1,), (1, 2, 3), "1 px", ("a", 2), (None, 2), (1, "2 kg"), {}]
)
def test_invalid_centres_are_refused(center):
    with pytest.raises(TilingError, match=r"center|axis") as caught:
        tiles.disk(calibrated(), 3, center)
    assert caught.value.found is not None


def test_incompatible_units_are_refused():
    with pytest.raises(TilingError, match="different units"):
        tiles.disk(calibrated(x=("mrad", 1, 0)), 3, (0, 0))
    with pytest.raises(TilingError, match=r"axis y;.*mrad or pixels.*found 1/nm"):
        tiles.disk(calibrated(("mrad", 1, 0), ("mrad", 1, 0)), "3 1/nm", (0, 0))
    with pytest.raises(TilingError, match=r"axis axis 1;.*calibrate it"):
        tiles.disk(da.zeros((4, *SIG)), "3 mrad", (0, 0))
    with pytest.raises(TilingError, match="outer is less than inner"):
        tiles.ring(calibrated(), 3, 2, (0, 0))
    with pytest.raises(TilingError, match="not an array"):
        tiles.disk(object(), 3)
