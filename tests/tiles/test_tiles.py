"""`apply_masks` and `center_of_mass`."""

import dask
import dask.array as da
import numpy as np
import pytest
from checks import on_tiles
from hypothesis import given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import TilingError, tiles
from dask_tiled.testing import counting_frames, write_mib, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

NAV, SIG = (4, 5), (12, 16)


@pytest.fixture(scope="module")
def frames():
    return counting_frames(NAV + SIG, "u2", bits=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory, frames):
    return write_raw(tmp_path_factory.mktemp("masks") / "scan.raw", frames, frame_header=6)


def opened(path, **options):
    options = {"dtype": "u2", "nav_shape": NAV, "sig_shape": SIG, "frame_header": 6, **options}
    return dask_tiled.open_dataset(path, "raw", **options)


def under(frames, masks):
    """Return the sums of pixels under masks, in float64."""
    pixels = frames.reshape(-1, masks[0].size).astype("f8")
    return (pixels @ masks.reshape(len(masks), -1).T).reshape(*frames.shape[:-2], len(masks))


def disk(radius, dtype=bool):
    y, x = np.indices(SIG)
    return (((y - 6) ** 2 + (x - 8) ** 2) <= radius**2).astype(dtype)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (bool, "f4"), ("i1", "f4"), ("u2", "f4"), ("i4", "f8"), ("i8", "f8"), ("f2", "f4"),
        ("f4", "f4"), ("f8", "f8"), ("c8", "c8"), ("c16", "c16"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("n", [1, 9])
def test_masks_of_all_types(path, frames, dtype, expected, n):
    rng = np.random.default_rng(n)
    masks = rng.integers(0, 2 if dtype is bool else 9, (n, *SIG)).astype(dtype)
    if np.iscomplexobj(masks):
        masks = masks * (1 - 2j) + 1j
        masks = masks.astype(dtype)
    found = tiles.apply_masks(opened(path), masks)
    assert (found.shape, found.dtype) == ((*NAV, n), expected)
    computed = found.compute()
    assert computed.dtype == expected
    np.testing.assert_allclose(computed, under(frames, masks), rtol=2e-6)


def test_large_masks_leave_frames_whole(path, frames):
    """Masks stay one chunk where dask's chunk size would split the masks and the frames."""
    arr, masks = opened(path), np.random.default_rng(0).random((3, *SIG), "f4")
    with dask.config.set({"array.chunk-size": "1 kiB"}):
        found = tiles.apply_masks(arr, masks)
    assert on_tiles(found)
    np.testing.assert_allclose(found.compute(), under(frames, masks), rtol=2e-6)
    assert found.name == tiles.apply_masks(arr, masks.copy()).name


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "<u2", ">u2", "<i2"])
@pytest.mark.parametrize("n", [1, 5])
def test_sums_under_masks_of_whole_numbers_are_exact(tmp_path, dtype, n):
    """Whatever the pixels: float32 could not hold all parts of these sums."""
    rng, sig = np.random.default_rng(n), (67, 129)  # 8,643 pixels: no multiple of any vector
    least, most = (0, 1) if dtype == "?" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    pixels = rng.integers(least, most, (7, *sig), endpoint=True).astype(dtype)
    pixels[0], pixels[1] = least, most
    masks = rng.integers(-511, 511, (n, *sig), endpoint=True)
    masks[0] = 511
    path = write_raw(tmp_path / "scan.raw", pixels)
    arr = dask_tiled.open_dataset(path, "raw", dtype=dtype, sig_shape=sig)
    exact = np.einsum("fyx,nyx->fn", pixels.astype("i8"), masks)
    single = tiles.apply_masks(arr, masks.astype("f4"))
    together = dask.compute(single, tiles.apply_masks(arr, masks), arr.sum((1, 2)), arr.max(0))
    expected = exact.astype("f4"), exact.astype("f8"), pixels.sum((1, 2)), pixels.max(0)
    for result, wanted in zip((single, *together), (expected[0], *expected), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("most", [512, 32767])
def test_masks_of_larger_whole_numbers(tmp_path, most):
    """Pixels and weights of one sign, whose products do not fit 4 bytes in their hundreds."""
    pixels = np.full((3, 67, 129), 65535, "u2")
    pixels[1], pixels[2] = 0, np.arange(67 * 129).reshape(67, 129)
    arr = dask_tiled.open_dataset(
        write_raw(tmp_path / "scan.raw", pixels), "raw", dtype="u2", sig_shape=(67, 129)
    )
    masks = np.full((2, 67, 129), most)
    masks[1] *= -1
    expected = np.einsum("fyx,nyx->fn", pixels.astype("i8"), masks)
    np.testing.assert_allclose(tiles.apply_masks(arr, masks).compute(), expected, rtol=1e-6)


def test_weights_of_the_least_integer(tmp_path):
    """Its absolute value does not fit its dtype."""
    pixels = np.zeros((2, 4, 8), "u2")
    pixels[0, 1, 2] = 1
    arr = dask_tiled.open_dataset(
        write_raw(tmp_path / "scan.raw", pixels), "raw", dtype="u2", sig_shape=(4, 8)
    )
    weights = np.zeros((4, 8), "i8")
    weights[1, 2] = np.iinfo("i8").min
    found = da.tensordot(arr, weights, axes=((1, 2), (0, 1))).compute()
    np.testing.assert_array_equal(found, [np.iinfo("i8").min, 0])


def test_single_mask_has_an_axis_of_one(path, frames):
    found = tiles.apply_masks(opened(path), disk(4))
    assert found.shape == (*NAV, 1)
    np.testing.assert_array_equal(found[..., 0].compute(), (frames * disk(4)).sum(axis=(2, 3)))
    listed = tiles.apply_masks(opened(path), disk(4).tolist())
    np.testing.assert_array_equal(listed.compute(), found.compute())


INDICES = [
    np.s_[1:3, ::2],
    np.s_[2],
    np.s_[2, 3],
    np.s_[:, :, 2:9, 3:],
    np.s_[..., ::3, 1::4],
    np.s_[1:, 0, 5:6],
]


def test_single_rows_of_the_detector(path, frames):
    """Masks apply to sliced frames of one axis or none."""
    arr = opened(path)
    weights = np.arange(16)
    np.testing.assert_allclose(
        tiles.apply_masks(arr[:, :, 3], weights)[..., 0].compute(), frames[:, :, 3] @ weights
    )
    np.testing.assert_allclose(
        tiles.apply_masks(arr[:, :, 3, 4], [2.0])[..., 0].compute(), 2 * frames[:, :, 3, 4]
    )


def test_missing_frames_and_selections(path, frames):
    masks = np.stack([np.ones(SIG), disk(3)])
    flat = frames.reshape(-1, *SIG)
    late = np.concatenate([np.full((3, *SIG), 5, "u2"), flat[:-3]]).reshape(frames.shape)
    arr = opened(path, sync_offset=-3, fill_value=5)
    np.testing.assert_allclose(tiles.apply_masks(arr, masks).compute(), under(late, masks))
    order = [19, 3, 3, 0, 7]
    arr = opened(path, roi=order)
    np.testing.assert_allclose(tiles.apply_masks(arr, masks).compute(), under(flat[order], masks))


def test_wide_pixels_are_summed_in_float64(tmp_path):
    """Pixels of 4 bytes and more are summed in float64, without loss of small terms."""
    rng = np.random.default_rng(0)
    masks = rng.random((2, 64, 64))
    for dtype in ("u4", "i4", "f8"):
        frames = rng.integers(2**31 - 1000, 2**31 - 1, (3, 64, 64)).astype(dtype)
        arr = dask_tiled.open_dataset(write_npy(tmp_path / f"{dtype}.npy", frames))
        for weights in (masks, masks > 0.5, masks.astype("f4")):
            found = tiles.apply_masks(arr, weights)
            assert found.dtype == "f8"
            np.testing.assert_allclose(found.compute(), under(frames, weights), rtol=1e-13)


def test_sums_of_large_frames(tmp_path):
    frames = np.full((2, 600, 700), 65535, "u2")
    frames[1, 0, 0] = 65534
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames))
    found = tiles.apply_masks(arr, np.ones((600, 700))).compute()[:, 0]
    np.testing.assert_array_equal(found, frames.sum(axis=(1, 2), dtype="f8"))
    single = tiles.apply_masks(arr, np.ones((600, 700), bool)).compute()[:, 0]
    np.testing.assert_allclose(single, found, rtol=1e-6)


@pytest.mark.parametrize("dtype", [bool, "i1", "f2", "f4", "i8", "c8"])
@pytest.mark.parametrize("opened_from_a_file", [False, True], ids=["dask", "file"])
def test_pixels_of_all_types(tmp_path, dtype, opened_from_a_file):
    frames = (np.arange(3 * 6 * 8).reshape(3, 6, 8) % 5 - 2).astype(dtype)
    masks = np.arange(2 * 6 * 8).reshape(2, 6, 8) % 3
    arr = da.from_array(frames, chunks=(2, 4, 8))
    if opened_from_a_file:
        path = write_npy(tmp_path / "scan.npy", frames)
        arr = dask_tiled.open_dataset(path, nav_shape=(3,), chunks=(2, 4, 8))
    found = tiles.apply_masks(arr, masks).compute()
    expected = np.einsum("nyx,myx->nm", frames.astype("c16"), masks)
    np.testing.assert_allclose(found, expected if dtype == "c8" else expected.real, rtol=1e-6)


def test_nan_and_infinity_propagate(tmp_path):
    frames = np.ones((4, 8, 8), "f4")
    frames[1, 2, 3], frames[2, 0, 0] = np.nan, np.inf
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames))
    found = tiles.apply_masks(arr, np.ones((8, 8))).compute()[:, 0]
    np.testing.assert_array_equal(found, [64, np.nan, np.inf, 64])


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.data())
def test_masks_are_einsum(path, frames, data):
    starts = [data.draw(st.integers(0, n - 1)) for n in frames.shape]
    index = tuple(
        slice(a, data.draw(st.integers(a + 1, n)))
        for a, n in zip(starts, frames.shape, strict=True)
    )
    cut = frames[index]
    chunks = tuple(data.draw(st.integers(1, n)) for n in frames.shape)
    n = data.draw(st.integers(1, 6))
    masks = np.random.default_rng(0).integers(-3, 4, (n, *cut.shape[2:]))
    arr = opened(path, chunks=chunks, io=data.draw(st.sampled_from(["mmap", "buffered"])))
    found = tiles.apply_masks(arr[index], masks.astype("f4")).compute()
    np.testing.assert_allclose(found, under(cut, masks), atol=1)
    sums = tiles.apply_masks(da.from_array(frames, chunks=chunks)[index], masks).compute()
    np.testing.assert_allclose(sums, under(cut, masks), atol=1e-6)


@pytest.mark.parametrize(
    "masks",
    [
        np.ones((16, 12)), np.ones((2, 16, 12)), np.ones((0, 12, 16)), np.ones((1, 2, 12, 16)),
        np.ones(12 * 16), 3.0, [], [[1], [2, 3]], None, "mask", np.full(SIG, "1"),
        np.full(SIG, None), np.full(SIG, np.datetime64("2020-01-01")),
    ],
)  # fmt: skip
def test_wrong_masks(path, masks):
    arr = opened(path)
    for pixels in (arr, da.from_array(np.ones(NAV + SIG, "u2"), chunks=(2, 2, 6, 16))):
        with pytest.raises(TilingError):
            tiles.apply_masks(pixels, masks)
    if masks is not None and np.shape(np.asarray(masks, dtype=object)) != (1, *SIG):
        with pytest.raises(TilingError):
            tiles.center_of_mass(arr, masks)


def test_wrong_arrays(path, frames):
    with pytest.raises(TilingError, match="not an array"):
        tiles.apply_masks(frames.tolist(), np.ones(SIG))
    with pytest.raises(TilingError, match="signal axes"):
        tiles.center_of_mass(opened(path), sig_ndim=5)
    with pytest.raises(TilingError, match="real"):
        tiles.center_of_mass(opened(path), np.ones(SIG) * 1j)
    with pytest.raises(TilingError, match="12, 16"):
        tiles.apply_masks(opened(path), np.ones((3, 12, 15)))
    some = da.from_array(frames, chunks=(2, 2, 6, 16)).reshape(20, 12, 16)
    with pytest.raises(TilingError, match="compute_chunk_sizes"):
        tiles.center_of_mass(some[some.max(axis=(1, 2)) > 0])
    with pytest.raises(TilingError, match="masked"):
        tiles.apply_masks(da.ma.masked_less(some, 3), np.ones(SIG))


# Centres of mass


def centre(frames, mask=1):
    y, x = np.indices(frames.shape[-2:])
    weighted = frames * np.asarray(mask, "f8")
    mass = weighted.sum(axis=(-2, -1))
    with np.errstate(all="ignore"):
        return np.stack([(weighted * c).sum(axis=(-2, -1)) / mass for c in (y, x)], axis=-1)


@pytest.mark.parametrize("mask", [None, disk(4), disk(4, "f4") * 0.5, -disk(5, "i4")])
@pytest.mark.parametrize("chunks", [(4, 5, 12, 16), (2, 2, 5, 7)])
def test_centres_of_mass(path, frames, mask, chunks):
    found = tiles.center_of_mass(opened(path, chunks=chunks), mask)
    assert (found.shape, found.dtype) == ((*NAV, 2), "f8")
    expected = centre(frames, 1 if mask is None else mask)
    np.testing.assert_allclose(found.compute(), expected, rtol=1e-6)


def test_single_pixel_is_its_own_centre(tmp_path):
    frames = np.zeros((12, 16, 12, 16), "u2")
    y, x = np.indices(SIG)
    frames[y, x, y, x] = 65535
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames))
    np.testing.assert_array_equal(tiles.center_of_mass(arr).compute(), np.stack([y, x], axis=-1))
    plain = da.from_array(frames, chunks=(5, 16, 7, 9))
    np.testing.assert_array_equal(tiles.center_of_mass(plain).compute(), np.stack([y, x], axis=-1))


def test_centres_are_in_pixels_of_the_crop(path, frames):
    arr = opened(path)
    for index in INDICES:
        found = tiles.center_of_mass(arr[index]).compute()
        np.testing.assert_allclose(found, centre(frames[index]), rtol=1e-6)
    part = arr[:, :, 4:9, 7:12]
    found = tiles.center_of_mass(part).compute()
    assert (found >= 0).all()
    assert (found <= 4).all()


def test_empty_frames_have_no_centre(tmp_path):
    frames = counting_frames(NAV + SIG, "u2", bits=12)
    frames[1, 2] = 0
    arr = dask_tiled.open_dataset(
        write_mib(tmp_path / "scan.mib", frames), sync_offset=-2, chunks=(2, 5, 12, 16)
    )
    found = tiles.center_of_mass(arr).compute()
    late = np.concatenate([np.zeros((2, *SIG)), frames.reshape(-1, *SIG)[:-2]])
    np.testing.assert_allclose(found, centre(late.reshape(frames.shape)), rtol=1e-6)
    np.testing.assert_array_equal(np.argwhere(np.isnan(found[..., 0])), [[0, 0], [0, 1], [1, 4]])
    nothing = tiles.center_of_mass(arr, np.zeros(SIG)).compute()
    assert np.isnan(nothing).all()


def test_other_numbers_of_signal_axes():
    frames = np.random.default_rng(0).random((3, 4, 5, 6))
    arr = da.from_array(frames, chunks=(2, 4, 3, 6))
    found = tiles.center_of_mass(arr, sig_ndim=3).compute()
    axes = np.indices((4, 5, 6))
    expected = [(frames * c).sum(axis=(1, 2, 3)) / frames.sum(axis=(1, 2, 3)) for c in axes]
    np.testing.assert_allclose(found, np.stack(expected, axis=-1))
    line = tiles.center_of_mass(arr, sig_ndim=1).compute()
    np.testing.assert_allclose(line[..., 0], frames @ np.arange(6) / frames.sum(axis=-1))


def test_centres_computed_together(path, frames):
    arr = opened(path, chunks=(2, 5, 12, 16))
    found = dask.compute(
        tiles.center_of_mass(arr),
        tiles.center_of_mass(arr, disk(4)),
        tiles.apply_masks(arr, disk(4)),
    )
    np.testing.assert_allclose(found[0], centre(frames), rtol=1e-6)
    np.testing.assert_allclose(found[1], centre(frames, disk(4)), rtol=1e-6)
    np.testing.assert_array_equal(found[2][..., 0], (frames * disk(4)).sum(axis=(2, 3)))
