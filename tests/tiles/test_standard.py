"""The usual maps of a scan, by names."""

import dask
import numpy as np
import pytest

from dask_tiled import TilingError, open_dataset, tiles, to_xarray
from dask_tiled.opened.axes import shown_of
from dask_tiled.testing import write_mib

Y, X = np.indices((64, 72))
AWAY = np.hypot(Y - 30, X - 34)


@pytest.fixture
def scan(tmp_path):
    frames = np.random.default_rng(0).poisson(np.where(AWAY <= 9, 60, 2), (5, 6, 64, 72))
    path = write_mib(tmp_path / "s.mib", frames.astype("u2").reshape(-1, 64, 72))
    return frames, open_dataset(path, nav_shape=(5, 6))


def test_all_maps_by_arithmetic(scan):
    frames, arr = scan
    arr = arr.with_axes(y="0.5 mrad from -15 mrad", x="0.5 mrad from -17 mrad")
    maps = tiles.standard(arr, disk=("0 mrad", "0 mrad", "4.6 mrad"))
    masks = {
        "bright_field": AWAY < 9.2, "annular_bright_field": (AWAY < 9.2) & (AWAY >= 4.6),
        "dark_field": AWAY >= 9.2, "high_angle_dark_field": AWAY >= 27.6,
    }  # fmt: skip
    found = dask.compute(dict(maps))[0]
    assert list(found) == [*masks, "sum", "center_of_mass", "mean", "max"]
    for name, mask in masks.items():
        np.testing.assert_array_equal(found[name], frames[..., mask].sum(-1))
        assert [axis.name for axis in shown_of(maps[name]).axes] == ["scan_y", "scan_x"]
    np.testing.assert_array_equal(found["sum"], frames.sum((2, 3)))
    np.testing.assert_allclose(found["mean"], frames.mean((0, 1)))
    np.testing.assert_array_equal(found["max"], frames.max((0, 1)))
    total = frames.sum((2, 3))
    y, x = ((frames * at).sum((2, 3)) / total for at in (0.5 * Y - 15, 0.5 * X - 17))
    np.testing.assert_allclose(found["center_of_mass"], np.stack([y, x], -1), atol=1e-5)
    assert to_xarray(maps["center_of_mass"]).units == "mrad"


def test_the_disk_is_found_and_told(scan):
    frames, arr = scan
    maps = tiles.standard(arr, "bf, adf")
    assert list(maps) == ["bright_field", "dark_field"]
    assert maps.disk.radius == pytest.approx(9, abs=0.2)
    inside = maps.disk.mask((64, 72))
    np.testing.assert_array_equal(maps["bright_field"], frames[..., inside].sum(-1))
    again = tiles.standard(arr[:, 1:4], ["bf"], disk=maps.disk)
    np.testing.assert_array_equal(again["bright_field"], maps["bright_field"].compute()[:, 1:4])
    crop = arr[..., 20:41, 24:45]  # the frames end before three radii
    assert "high_angle_dark_field" not in tiles.standard(crop, disk=(10, 10, 9))
    with pytest.raises(TilingError, match="no pixel is in the detector haadf"):
        tiles.standard(crop, "haadf", disk=(10, 10, 9))


@pytest.mark.parametrize(("maps", "disk", "match"), [
    ("bff", None, "no such map.*'bf'"), ("sum", (1, 1, 1), "only applies to bf"),
    ("bf", "here", "invalid disk"), ("bf", (500, 500, 2), "no pixel is in the disk"),
    ("bf", (30, 34, "4 mrad"), "calibrate it"),
])  # fmt: skip
def test_invalid_maps_are_refused(scan, maps, disk, match):
    with pytest.raises(TilingError, match=match):
        tiles.standard(scan[1], maps, disk=disk)
    with pytest.raises(TilingError, match="needs a scan of images"):
        tiles.standard(scan[1][0])
    with pytest.raises(TilingError, match=r"no bright disk.*disk=\(y, x, radius\)"):
        tiles.standard(np.ones((4, 5, 16, 16)))
