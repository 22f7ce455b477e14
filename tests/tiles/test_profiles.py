"""`radial_profile` equals a loop over frames."""

import pickle

import dask
import dask.array as da
import numpy as np
import pytest
from checks import on_tiles

from dask_tiled import Axis, TilingError, open_dataset, tiles
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.testing import counting_frames, write_mib, write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

NAV, SIG = (4, 5), (24, 30)
Y, X = np.indices(SIG)


@pytest.fixture(scope="module")
def frames():
    return counting_frames(NAV + SIG, "u2", bits=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory, frames):
    return write_npy(tmp_path_factory.mktemp("rings") / "scan.npy", frames)


def profile(frames, distance, step, bins=None, weights=None):
    """Return the profiles, computed frame by frame."""
    rings = np.floor(distance / step * (1 + 1e-12)).astype(int).ravel()
    weights = np.ones(rings.size) if weights is None else weights.ravel()
    bins = rings[weights != 0].max() + 1 if bins is None else bins
    flat = frames.reshape(-1, rings.size)
    with np.errstate(invalid="ignore"):
        rows = [
            (np.bincount(rings, weights * frame, bins) / np.bincount(rings, weights, bins))[:bins]
            for frame in flat
        ]
    return np.reshape(rows, (*frames.shape[: frames.ndim - distance.ndim], bins))


def test_rings_of_one_pixel(path, frames):
    found = tiles.radial_profile(open_dataset(path), (11, 14.5))
    distance = np.hypot(Y - 11, X - 14.5)
    expected = profile(frames, distance, 1)
    assert (found.shape, found.dtype) == (expected.shape, "f4")
    assert on_tiles(found)
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)
    names = [axis.name for axis in shown_of(found).axes]
    assert names == ["scan_y", "scan_x", "radius"]
    assert shown_of(found).axes[-1] == Axis("radius", "px", 1.0, 0.5)


def test_axis_units(frames):
    """Axes may have different scales, and rings may be empty."""
    axes = Axis("y", "mrad", 0.5, -5.0), Axis("x", "mrad", 0.75, -9.0)
    arr = labelled(
        da.from_array(frames, chunks=(2, 5, *SIG)), [Axis("a"), Axis("b", "nm", 2), *axes]
    )
    y, x = -5 + 0.5 * Y, -9 + 0.75 * X
    found = tiles.radial_profile(arr, (0, 1.5))
    np.testing.assert_allclose(
        found.compute(), profile(frames, np.hypot(y, x - 1.5), 0.75), rtol=1e-6
    )
    assert shown_of(found).axes == (
        Axis("a"),
        Axis("b", "nm", 2),
        Axis("radius", "mrad", 0.75, 0.375),
    )
    fine = tiles.radial_profile(arr, (0, 0), 0.2, bins=12)
    expected = profile(frames, np.hypot(y, x), 0.2, 12)
    assert np.isnan(expected).any()
    np.testing.assert_allclose(fine.compute(), expected, rtol=1e-6)
    pixels = tiles.radial_profile(arr, ("10 px", "12 px"), "2 px")
    np.testing.assert_allclose(
        pixels.compute(), profile(frames, np.hypot(Y - 10, X - 12), 2), rtol=1e-6
    )
    assert shown_of(pixels).axes[-1] == Axis("radius", "px", 2.0, 1.0)


def test_mask_weights_pixels(path, frames):
    mask = (abs(X - 14) > 2).astype("f4")
    mask[3:5] = 0.5
    holes = frames.astype("f4")
    holes[..., mask == 0] = np.nan
    expected = profile(np.nan_to_num(holes), np.hypot(Y - 11, X - 14), 1, weights=mask)
    for arr in (open_dataset(path), da.from_array(holes)):
        found = tiles.radial_profile(arr, (11, 14), mask=mask)
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)
    plain = tiles.radial_profile(open_dataset(path), (11, 14))
    assert tiles.radial_profile(open_dataset(path), (11, 14), mask=mask).name != plain.name
    with pytest.raises(TilingError, match="the mask has another shape"):
        tiles.radial_profile(open_dataset(path), (11, 14), mask=mask[1:])


@pytest.mark.parametrize("dtype", ["?", "i1", "u4", "f2", "f8", "c8"])
def test_pixels_of_all_types(dtype):
    frames = (np.arange(5 * 9 * 11).reshape(5, 9, 11) % 7 - 3).astype(dtype)
    y, x = np.indices((9, 11))
    found = tiles.radial_profile(da.from_array(frames, chunks=(2, 5, 11)), (4, 5))
    wide = frames.astype("c16")
    parts = [profile(part, np.hypot(y - 4, x - 5), 1) for part in (wide.real, wide.imag)]
    assert found.dtype == np.result_type(frames.dtype, "f4")
    expected = parts[0] + 1j * parts[1] if dtype == "c8" else parts[0]
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-6, atol=1e-9)


def test_default_centre_slices_and_expressions(tmp_path):
    rng = np.random.default_rng(0)
    rates = np.where(np.hypot(Y - 12, X - 15) < 5, 30, 2)
    frames = rng.poisson(rates, (*NAV, *SIG)).astype("u2")
    arr = open_dataset(write_mib(tmp_path / "scan.mib", frames[..., :24]))
    found, at = tiles.radial_profile(arr), tiles.find_disk(arr).center
    assert np.hypot(*np.subtract(at, (12, 15))) < 0.1
    y, x = np.indices((24, 24))
    np.testing.assert_allclose(
        found.compute(), profile(frames[..., :24], np.hypot(y - at[0], x - at[1]), 1), rtol=1e-6
    )
    part = 2 * arr[1:3, ::2, 2:, 1:].astype("f8")
    found = tiles.radial_profile(part, (10, 14), 1.5)
    expected = profile(
        2.0 * frames[1:3, ::2, 2:, 1:24], np.hypot(y[2:, 1:] - 12, x[2:, 1:] - 15), 1.5
    )
    np.testing.assert_allclose(found.compute(), expected)


def test_computed_together_with_masks(path, frames):
    arr = open_dataset(path, chunks=(2, 5, 12, 30))
    disk = tiles.disk(arr, 5, (11, 14))
    found = dask.compute(
        tiles.radial_profile(arr, (11, 14)), tiles.apply_masks(arr, disk), arr.sum((0, 1))
    )
    np.testing.assert_allclose(found[0], profile(frames, np.hypot(Y - 11, X - 14), 1), rtol=1e-6)
    np.testing.assert_array_equal(found[1][..., 0], frames[..., disk].sum(-1))
    np.testing.assert_array_equal(found[2], frames.sum((0, 1)))


@pytest.mark.thorough
def test_results_pickle_and_have_names(path):
    """Tasks carry a few numbers, not masks of a frame's size."""
    arr = open_dataset(path)
    one = tiles.radial_profile(arr, (11, 14))
    assert one.name == tiles.radial_profile(arr, (11, 14)).name
    others = [
        tiles.radial_profile(arr, (11, 15)), tiles.radial_profile(arr, (11, 14), 2),
        tiles.radial_profile(arr, (11, 14), bins=3),
    ]  # fmt: skip
    assert len({x.name for x in (one, *others)}) == 4
    again = pickle.loads(pickle.dumps(one))
    np.testing.assert_array_equal(again.compute(), one.compute())
    large = tiles.radial_profile(da.zeros((2, 2048, 2048), chunks=(1, -1, -1)), (1000, 1000))
    assert len(pickle.dumps(large)) < 20_000


def test_spectra_and_volumes(frames):
    flat = da.from_array(frames[..., 0], chunks=(2, 5, 24))
    found = tiles.radial_profile(flat, [7], sig_ndim=1).compute()
    expected = profile(frames[..., 0], abs(np.arange(24) - 7.0), 1)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    whole = tiles.radial_profile(da.from_array(frames), (2, 11, 14), 2, sig_ndim=3).compute()
    b, y, x = np.indices((5, *SIG))
    distance = np.sqrt((b - 2) ** 2 + (y - 11) ** 2 + (x - 14) ** 2)
    np.testing.assert_allclose(whole, profile(frames, distance, 2), rtol=1e-6)


@pytest.mark.parametrize("options", [{"bins": 0}, {"bins": 2.5}, {"step": 0}], ids=str)
def test_invalid_rings_are_refused(path, options):
    with pytest.raises(TilingError, match=r"bins|step"):
        tiles.radial_profile(open_dataset(path), (11, 14), **options)
