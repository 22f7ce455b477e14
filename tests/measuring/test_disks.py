"""The bright disk: planted disks, and frames without one."""

import re

import dask.array as da
import numpy as np
import pytest
from disks import covered

from dask_tiled import Axis, TilingError, open_dataset
from dask_tiled.opened.axes import labelled
from dask_tiled.testing import write_mib
from dask_tiled.tiles import find_disk

Y, X = np.indices((96, 96))


def planted(rng):
    """Return a scan of counts with a disk, its mean centre and its radius."""
    size, counts = int(rng.choice([80, 96, 128])), 10 ** rng.uniform(0, 3)
    radius, middle = rng.uniform(0.15, 0.3) * size, rng.uniform(0.45, 0.55, 2) * size
    along = np.linspace(-1, 1, 8)
    places = np.stack(np.meshgrid(along, along, indexing="ij"), -1).reshape(-1, 2)
    expected = covered(size, middle + places @ rng.uniform(-2, 2, (2, 2)), radius)
    y, x = np.indices((size, size)) - middle[:, None, None]
    expected += 0.05 * np.exp(-np.hypot(y, x) / (size / 4))
    if rng.random() < 0.4:  # a beam stop ends in the disk
        angle = rng.uniform(0, 2 * np.pi)
        across, along = y * np.cos(angle) - x * np.sin(angle), y * np.sin(angle) + x * np.cos(angle)
        expected *= ~((abs(across) < rng.uniform(0.1, 0.25) * radius) & (along > -0.3 * radius))
    return rng.poisson(counts * expected).astype("u2").reshape(8, 8, size, size), middle, radius


@pytest.mark.slow
def test_planted_disks():
    """Noise of 1 to 1000 counts, descan, beam stops: 0.1 px of the centre, 0.5 % of the radius."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        frames, middle, radius = planted(rng)
        disk = find_disk(frames)
        assert np.hypot(*(disk.center - middle)) < 0.1
        assert abs(disk.radius / radius - 1) < 0.005


def disk_at(y, x, radius, height=50.0):
    return height * covered(96, np.array([[y, x]], float), radius)[0]


WHOLE = disk_at(48, 47.5, 20)
STOP = (abs(Y - 48) < 3) & (X < 55)


@pytest.mark.parametrize(("frame", "center", "told", "quality"), [
    (disk_at(48, 5, 20), (48, 5), "of its edge lie outside of the frame", (0.4, 0.75)),
    (np.where((abs(Y - 48) < 9) & (X < 60), 0, WHOLE), (48, 47.5), "as behind a beam stop",
     (0.6, 0.95)),
    (np.where(X == 70, np.nan, WHOLE), (48, 47.5), "", (0.9, 1)),
    (WHOLE + 1e6 * ((Y == 3) & (X == 5)), (48, 47.5), "", (1, 1)),
    (WHOLE - 5, (48, 47.5), "", (1, 1)),
    (WHOLE * (1 + 1j), (48, 47.5), "", (1, 1)),
    (disk_at(48, 47.5, 20) + disk_at(20, 20, 9, 15), (48, 47.5), "", (1, 1)),
    (50.0 * (((Y - 48) / 20) ** 2 + ((X - 47.5) / 21) ** 2 <= 1), (48, 47.5),
     "an ellipse, [456].* % longer along (0|1|179|180) degrees", (0.9, 1)),
    (1000 * np.exp(-((Y - 48) ** 2 + (X - 47.5) ** 2) / 72), (48, 47.5), "hardly a disk", (0.9, 1)),
])  # fmt: skip
@pytest.mark.parametrize("noisy", [False, True])
def test_what_impairs_a_disk_is_told(frame, center, told, quality, noisy):
    if noisy and np.isrealobj(frame):
        there = np.isfinite(frame)
        counts = np.random.default_rng(0).poisson(np.clip(np.where(there, frame, 0), 0, None))
        frame = np.where(there, counts.astype(float), np.nan)
    disk = find_disk(frame)
    assert np.hypot(*(np.array(disk.center) - center)) < 0.35
    assert quality[0] <= disk.quality <= quality[1]
    assert (disk.frames, disk.of) == (1, 1)
    if told:
        assert re.search(told, str(disk)), str(disk)
    else:
        assert not disk.doubts


@pytest.mark.parametrize("frames", [
    np.zeros((5, 5, 96, 96), "u2"), np.full((96, 96), 7.0), np.full((96, 96), np.nan),
    np.random.default_rng(0).poisson(1, (8, 8, 96, 96)), 1.0 * X, 50.0 * (X > 40),
    disk_at(48, 48, 30) - disk_at(48, 48, 26), 1000.0 * ((Y == 40) & (X == 50)), np.ones((2, 2)),
])  # fmt: skip
def test_without_a_disk_an_error_is_raised(frames):
    with pytest.raises(TilingError, match=r"no bright disk is found.*mask="):
        find_disk(frames)


def test_two_disks_saturation_and_invalid_arguments():
    two = disk_at(30, 30, 10) + disk_at(64, 60, 10)
    with pytest.raises(TilingError, match=r"two disks or more.* = \(\d+, \d+\) px and "):
        find_disk(two)
    assert find_disk(two, mask=X < 45).center == pytest.approx((30, 30), abs=0.1)
    counts = np.random.default_rng(0).poisson(8 * WHOLE + 5, (20, 96, 96))
    assert "have 255 counts: saturated" in str(find_disk(np.minimum(counts, 255).astype("u1")))
    assert "saturated" not in str(find_disk(counts))
    with pytest.raises(TilingError, match="mask has another shape"):
        find_disk(WHOLE, mask=np.ones(3))
    with pytest.raises(TilingError, match="size of the sample"):
        find_disk(WHOLE, frames=0)
    with pytest.raises(TilingError, match=r"in images only.*two signal axes"):
        find_disk(np.ones((4, 5, 6)), sig_ndim=1)
    for empty in (np.ones((0, 9, 9)), np.ones((3, 0, 9)), np.ones((0, 0))):
        with pytest.raises(TilingError, match="there are no pixels"):
            find_disk(empty)
    with pytest.raises(TilingError, match="numbers only"):
        find_disk(np.full((9, 9), "a"))


def test_axis_units_and_the_sample(tmp_path):
    """A scan of one row, sampled; missing frames are left out."""
    rng = np.random.default_rng(1)
    frames = rng.poisson(5 * disk_at(40, 50, 15), (1, 40, 96, 96)).astype("u2")
    path = write_mib(tmp_path / "scan.mib", frames.reshape(-1, 96, 96))
    arr = open_dataset(path, nav_shape=(1, 44), missing="fill", fill_value=9999)
    disk = find_disk(
        arr.with_axes(y="0.5 mrad from -20 mrad", x="0.5 mrad from -25 mrad"), frames=20
    )
    assert disk.frames < 20 < disk.of == 44
    assert disk.units == "mrad"
    assert disk.center_in_units == pytest.approx((0, 0), abs=0.1)
    assert disk.radius_in_units == pytest.approx(7.5, rel=0.01)
    assert f"in {disk.frames} of 44 frames" in str(disk)
    assert disk.mask((96, 96)).sum() == pytest.approx(np.pi * 15**2, rel=0.02)
    mixed = labelled(da.from_array(WHOLE), [Axis("y", "mrad", 2.0), Axis("x", "1/nm", 1.0)])
    assert find_disk(mixed).units == "px"
