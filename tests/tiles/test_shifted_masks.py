"""The path of the beam, centres of mass without it, and masks that follow it."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_tiled import Axis, TilingError, open_dataset, tiles
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.testing import write_mib

NAV, SIG = (9, 11), (40, 48)
SLOPES = np.array([[2.0, -1.0], [0.5, 3.0]])  # px from the middle to the ends of the scan


def path_of(slopes=SLOPES, bend=0.0):
    y, x = (np.linspace(-1, 1, n) for n in NAV)
    at = np.stack(np.meshgrid(y, x, indexing="ij"), -1)
    return at @ slopes + bend * at[..., ::-1] ** 2


def scan_of(path, tmp_path, seed=0):
    rng = np.random.default_rng(seed)
    at = path + np.array([19.5, 24.0])
    y, x = (np.indices(SIG)[k] - at[..., k, None, None] for k in (0, 1))
    rates = 40 / (1 + np.exp(2 * (np.hypot(y, x) - 8))) + 0.1
    frames = rng.poisson(rates).astype("u2")
    return frames, open_dataset(
        write_mib(tmp_path / "s.mib", frames.reshape(-1, *SIG)), nav_shape=NAV
    )


@pytest.mark.parametrize(("order", "bend"), [(1, 0.0), (2, 1.5)])
def test_the_path_of_the_beam_without_outliers(tmp_path, order, bend):
    path = path_of(bend=bend)
    frames, _ = scan_of(path, tmp_path)
    frames[2, 3] = frames[7, 1] = 0  # nothing there
    frames[4, 2:6] = np.roll(frames[4, 2:6], 9, -1)  # crystals deflect the beam
    found = tiles.descan(frames, order=order)
    np.testing.assert_allclose(found.shifts(), path - path.mean((0, 1)), atol=0.08)
    assert 0.02 < found.outliers < 0.3
    assert (found.frames, found.of) == (99, 99)
    assert "the beam moves by" in str(found)
    com = tiles.center_of_mass(frames)
    np.testing.assert_allclose(tiles.descan(com).shifts(), path - path.mean((0, 1)),
                               atol=0.2 + abs(bend))  # fmt: skip


def test_centres_of_mass_in_units_without_the_path_and_turned(tmp_path):
    _, arr = scan_of(path_of(), tmp_path)
    inside = tiles.disk(arr, 14, (19.5, 24))
    pixels = tiles.center_of_mass(arr, inside)
    assert shown_of(pixels).units == "px"
    shown = arr.with_axes(y="0.5 mrad from -9.75 mrad", x="0.25 mrad from -6 mrad")
    scaled = tiles.center_of_mass(shown, inside)
    assert shown_of(scaled).units == "mrad"
    expected = pixels.compute() * (0.5, 0.25) - (9.75, 6)
    np.testing.assert_allclose(scaled.compute(), expected)
    with dask.config.set({"array_optimize": None}):
        np.testing.assert_allclose(scaled.compute(), expected)
    path = tiles.descan(arr)
    flat = tiles.center_of_mass(shown, inside, descan=path, rotation=tiles.ScanRotation(90, True))
    assert (shown_of(flat).units, shown_of(flat).axes) == ("mrad", shown_of(scaled).axes)
    y, x = np.moveaxis(expected - path.shifts() * (0.5, 0.25), -1, 0)
    np.testing.assert_allclose(flat.compute(), np.stack([x, y], -1))  # (y, x) -> (x, -(-y))
    assert np.ptp(flat.compute(), (0, 1)).max() < 0.3
    mixed = arr.with_axes(y="0.5 mrad", x="0.25 1/nm")
    assert shown_of(tiles.center_of_mass(mixed)).units == "px"


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["u2", "f4", "f8", "f2", "bool", "i4", ">u2"])
@pytest.mark.parametrize("weights", ["bool", "f8", "i2"])
def test_masks_that_follow_a_shift(dtype, weights):
    """As masks that are moved pixel by pixel, without what leaves the frame."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 9, (*NAV, *SIG)).astype(dtype)
    masks = rng.integers(-3, 4, (3, *SIG)).astype(weights)
    masks[1, :10], masks[2] = 0, 0
    shift = rng.uniform(-13, 13, (*NAV, 2))
    found = tiles.apply_masks(da.from_array(frames, chunks=(4, 5, *SIG)), masks, shift=shift)
    assert found.dtype == np.result_type(frames.dtype, masks.dtype, "f4")
    expected = np.zeros((*NAV, 3))
    for place in np.ndindex(NAV):
        down, across = np.rint(shift[place]).astype(int)
        wide = np.pad(masks, ((0, 0), (20, 20), (20, 20)))
        moved = wide[:, 20 - down : 60 - down, 20 - across : 68 - across]
        expected[place] = (frames[place].astype(float) * moved.astype(float)).sum((1, 2))
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-5, atol=1e-3)


def test_following_masks_of_files_share_their_pass(tmp_path):
    frames, arr = scan_of(path_of(), tmp_path)
    mask = tiles.disk(arr, 9, (19.5, 24))
    path = tiles.descan(arr)
    fixed, moving, total = dask.compute(
        tiles.apply_masks(arr, mask), tiles.apply_masks(arr, mask, shift=path), arr.sum((2, 3))
    )
    np.testing.assert_array_equal(total, frames.sum((2, 3)))
    assert np.std(moving) < 0.6 * np.std(fixed)
    part = tiles.apply_masks(arr[3:6], mask, shift=path.shifts()[3:6])
    np.testing.assert_array_equal(part.compute(), moving[3:6])
    labels = shown_of(tiles.apply_masks(arr, mask, shift=path)).axes
    assert [axis.name for axis in labels] == ["scan_y", "scan_x", "mask"]


def test_invalid_paths_and_shifts_are_refused(tmp_path):
    frames, arr = scan_of(path_of(), tmp_path)
    mask = np.ones(SIG)
    for shift in (np.zeros((3, 2)), np.full(2, np.nan), "x", np.zeros(3)):
        with pytest.raises(TilingError, match="invalid shift"):
            tiles.apply_masks(arr, mask, shift=shift)
    with pytest.raises(TilingError, match="moves the masks out of the frame"):
        tiles.apply_masks(arr, mask, shift=(0, 99))
    with pytest.raises(TilingError, match="cannot follow"):
        tiles.apply_masks(arr.astype("c8"), mask, shift=(0, 1))
    with pytest.raises(TilingError, match="do not have the shape of a frame"):
        tiles.apply_masks(arr, np.ones((3, 4)), shift=(0, 1))
    with pytest.raises(TilingError, match=r"measured on another scan.*this part"):
        tiles.center_of_mass(arr[:3], descan=tiles.descan(arr))
    with pytest.raises(TilingError, match="too few frames"):
        tiles.descan(np.zeros_like(frames))
    with pytest.raises(TilingError, match="too few frames"):
        tiles.descan(frames[0, 0])
    with pytest.raises(TilingError, match="order"):
        tiles.descan(arr, order=3)
    with pytest.raises(TilingError, match="found in images only"):
        tiles.descan(np.zeros((4, 5)), sig_ndim=1)
    with pytest.raises(TilingError, match="invalid rotation"):
        tiles.center_of_mass(arr, rotation="half")
    row = tiles.descan(frames[4:5])  # a scan of one row
    np.testing.assert_allclose(np.ptp(row.shifts(), (0, 1)), 2 * abs(SLOPES[1]), atol=0.2)
    centres = labelled(da.zeros((4, 5, 2)), [None, None, Axis("component")], "mrad")
    with pytest.raises(TilingError, match="not in pixels"):
        tiles.descan(centres)
