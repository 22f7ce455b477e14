"""Reductions of opened arrays have NumPy's values and types, for all pixels and layouts."""

import pickle
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
from checks import on_tiles
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import part_of, shown

import dask_tiled
from dask_tiled import Description, negotiate
from dask_tiled.engine import reductions
from dask_tiled.files.file import File
from dask_tiled.model.decoders import plain
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece
from dask_tiled.opened.building import build
from dask_tiled.reading import backends, buffered, mapped
from dask_tiled.testing import counting_frames, write_mib, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

NAMES = ("sum", "mean", "min", "max", "any", "all", "var", "std")
AXES = {"nav": (0, 1), "sig": (2, 3), "everything": None}
NAV, SIG = (5, 7), (8, 64)
RTOL = {np.dtype("f4"): 2e-6, np.dtype("f8"): 1e-12}


def check(arr, frames, names=NAMES, axes=((0, 1), (2, 3), None), **options):
    """Compare reductions with NumPy's, in float64 if the pixels are float32."""
    lazy = {
        (name, axis): getattr(arr, name)(axis=axis, **options) for name in names for axis in axes
    }
    (computed,) = dask.compute(lazy)
    precise = frames.astype("f8") if frames.dtype == "f4" else frames
    for (name, axis), found in computed.items():
        label = f"{name} over {axis}"
        with np.errstate(all="ignore"):
            kind = getattr(frames, name)(axis=axis).dtype
            expected = getattr(precise, name)(axis=axis, **options)
        assert lazy[name, axis].dtype == np.asarray(found).dtype == kind, label
        assert lazy[name, axis].shape == np.shape(found) == np.shape(expected), label
        if kind.kind == "f":
            np.testing.assert_allclose(found, expected, rtol=RTOL[kind], atol=1e-9, err_msg=label)
        else:
            np.testing.assert_array_equal(found, expected, err_msg=label)


@pytest.fixture(scope="module")
def frames():
    return counting_frames(NAV + SIG, "u2", bits=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory, frames):
    return write_raw(tmp_path_factory.mktemp("scan") / "scan.raw", frames)


def opened(path, **options):
    options = {"dtype": "u2", "nav_shape": NAV, "sig_shape": SIG, **options}
    return dask_tiled.open_dataset(path, "raw", **options)


# Arguments


ANY_AXES = [None, 0, -2, (0, 1), (1, 0), (-1, -2), (1, 2), (0, 2, 3), (3, -4, 1, 2), [0, 1], ()]


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMES)
def test_any_axes(path, frames, name):
    """Methods, functions of NumPy and functions of dask run on tiles."""
    arr = opened(path, chunks=(2, 3, 4, 64))
    spellings = [
        getattr(arr, name),
        partial(getattr(np, name), arr),
        partial(getattr(da, name), arr),
    ]
    for k, axis in enumerate(ANY_AXES):
        options = {"split_every": 2} if k % 3 == 0 else {}
        found = spellings[k % 3](axis=axis, keepdims=k in (3, 4), **options)
        assert isinstance(found, da.Array)
        assert on_tiles(found), axis
        expected = getattr(frames, name)(
            axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=k in (3, 4)
        )
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.compute(), expected)
    for spelled in spellings:
        assert on_tiles(spelled())
        assert on_tiles(spelled((0, 1)))


@pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
@pytest.mark.parametrize("name", ["var", "std"])
def test_degrees_of_freedom(path, frames, name, axis):
    arr = opened(path, chunks=(2, 3, 4, 64))
    for ddof in (0, 1, 1.5, 2):
        found = getattr(arr, name)(axis=axis, ddof=ddof)
        assert on_tiles(found)
        np.testing.assert_allclose(found.compute(), getattr(frames, name)(axis=axis, ddof=ddof))
    few = arr[:1, :1]
    with np.errstate(all="ignore"), pytest.warns(RuntimeWarning):
        expected = getattr(frames[:1, :1], name)(axis=(0, 1), ddof=1)
    np.testing.assert_array_equal(getattr(few, name)(axis=(0, 1), ddof=1).compute(), expected)


def test_options(path, frames):
    arr = opened(path, chunks=(2, 7, 8, 64))
    for name in ("sum", "mean", "var", "std"):
        found = getattr(arr, name)(axis=(0, 1), dtype="f4")
        assert on_tiles(found)
        assert found.dtype == "f4"
        expected = getattr(frames, name)(axis=(0, 1), dtype="f8")
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-3)
        assert on_tiles(getattr(arr, name)(axis=(0, 1), dtype=None, out=None))
    out = da.zeros(SIG, dtype="u8")
    arr.sum(axis=(0, 1), out=out)
    np.testing.assert_array_equal(out.compute(), frames.sum(axis=(0, 1)))


def test_wrong_arguments_raise(path):
    arr = opened(path)
    for name in NAMES:
        method = getattr(arr, name)
        for axis in (4, -5, (0, 4)):
            with pytest.raises(np.exceptions.AxisError):
                method(axis=axis)
        for axis in ("y", 1.0, ("y", "x")):
            with pytest.raises(TypeError):
                method(axis=axis)
        with pytest.raises(TypeError):
            method(nonsense=1)
        with pytest.raises(TypeError):
            getattr(np, name)(arr, initial=1, nonsense=1)


def test_methods_have_names_and_docstrings_of_dask():
    for name in NAMES:
        method = getattr(dask_tiled.TiledArray, name)
        assert method.__name__ == name
        assert method.__doc__ == getattr(da.Array, name).__doc__


@pytest.mark.thorough
def test_empty_chunks(path, frames):
    """Chunks without pixels change no result."""
    arr = opened(path, chunks=((0, 5), (3, 0, 4), (8, 0), (32, 0, 32)))
    check(arr, frames)


def test_empty_arrays(path, frames):
    arr = opened(path)
    for index in (np.s_[:0], np.s_[..., :0], np.s_[:, 3:3]):
        for name in ("sum", "any", "all"):
            for axis in AXES.values():
                found = getattr(arr[index], name)(axis=axis).compute()
                np.testing.assert_array_equal(found, getattr(frames[index], name)(axis=axis))


# Pixels


DTYPES = ["?", "i1", "u1", "u2", "i4", "i8", "u8", "f4", "f8", ">u2", ">f4", "f2", "c8"]


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
def test_types(tmp_path, dtype):
    rng = np.random.default_rng(0)
    kind = np.dtype(dtype)
    shape = (3, 4, 5, 16)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        frames = rng.integers(info.min // 2, info.max // 2, shape, kind.newbyteorder("="))
        frames[0, 0, 0, 0] = info.max // 2
        frames[1] = 0
    else:
        frames = rng.normal(size=shape) * (rng.random(shape) > 0.3)
    frames = frames.astype(dtype)
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=(2, 4, 5, 16))
    native = frames.astype(kind.newbyteorder("="))
    if dtype in ("f2", "c8"):
        for name in NAMES:
            if name not in ("min", "max") or dtype == "f2":
                found = getattr(arr, name)(axis=(0, 1)).compute()
                np.testing.assert_allclose(found, getattr(native, name)(axis=(0, 1)), atol=1e-2)
        return
    assert on_tiles(arr.sum())
    check(arr, native)


@pytest.mark.parametrize("dtype", [">u2", ">i4", ">f4", ">f8"])
@pytest.mark.parametrize("name", ["min", "max", "nanmax", "argmax"])
def test_casts_to_the_other_byte_order(path, frames, name, dtype):
    found = getattr(da, name)(opened(path)[:, 0].astype(dtype), axis=0).compute()
    expected = getattr(np, name)(frames[:, 0].astype(dtype), axis=0)
    np.testing.assert_array_equal(found, expected.astype(found.dtype))


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f8"])
def test_negative_zeros_are_zeros(tmp_path, dtype):
    """In the wrong byte order, a negative zero would be a tiny number."""
    frames = np.full((3, 4, 5, 16), -0.0, dtype)
    frames[1, 2] = 1
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames))
    assert on_tiles(arr.any())
    check(arr, frames.astype(frames.dtype.newbyteorder("=")))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dtype", "first", "value"),
    [("f4", 0, np.nan), ("f4", 1, np.inf), ("f8", 1, np.nan), ("f8", 0, -np.inf)],
)
def test_nan_and_infinity(tmp_path, dtype, first, value):
    frames = np.random.default_rng(0).normal(size=(4, 3, 5, 16)).astype(dtype)
    frames[2 * first, first, first, 7 * first] = value
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=(2, 3, 5, 16))
    with np.errstate(all="ignore"):
        check(arr, frames)
    both = frames.copy()
    both[3, 2, 1] = -value
    both[3, 1, 0, :3] = np.nan
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "both.npy", both), chunks=(2, 3, 5, 16))
    check(arr, both)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**62, "i8"), (-(2**62), "i8"), (2**63, "u8"), (2**32 - 1, "u4"), (65535, "u2"),
        (-128, "i1"),
    ],
)  # fmt: skip
def test_sums_and_means_of_large_numbers(tmp_path, value, dtype):
    """Sums wrap around where NumPy's do; means do not."""
    frames = np.full((3, 4, 5, 16), value, dtype)
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=(2, 3, 5, 16))
    check(arr, frames)
    assert arr.mean().compute() == value
    assert arr.var().compute() == 0


def test_many_frames_of_two_bytes(tmp_path):
    """The sums need more than 4 bytes."""
    path = tmp_path / "long.raw"
    path.write_bytes(b"\xff" * (70_000 * 2))
    for dtype, chunks, pixel in (("u2", -1, 65535), ("i2", -1, -1), ("u2", (32768, 1, 1), 65535)):
        arr = dask_tiled.open_dataset(path, "raw", dtype=dtype, sig_shape=(1, 1), chunks=chunks)
        assert arr.sum(axis=0).compute()[0, 0] == 70_000 * pixel


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["f4", "f8", "u4"])
@pytest.mark.parametrize("first", ["alike", "zero"])
def test_small_spreads_about_large_means(tmp_path, dtype, first):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 4, (6, 5, 8, 64))
    frames = (noise + {"f4": 2**22, "f8": 1e11, "u4": 4e9}[dtype]).astype(dtype)
    if first == "zero":
        frames[0, 0, 0, 0] = 0
    path = write_npy(tmp_path / "scan.npy", frames)
    for chunks in (-1, (2, 5, 3, 64)):
        arr = dask_tiled.open_dataset(path, chunks=chunks)
        for axis in AXES.values():
            expected = frames.astype(np.longdouble).var(axis=axis).astype("f8")
            np.testing.assert_allclose(arr.var(axis=axis).compute(), expected, rtol=1e-4)
            np.testing.assert_allclose(arr.std(axis=axis).compute(), expected**0.5, rtol=1e-4)
    assert (arr.var(axis=(0, 1)).compute() >= 0).all()


@pytest.mark.thorough
@pytest.mark.parametrize("values", [[1e200, 2e200, 3e200], [1, np.inf, 3], [1, np.nan, 1e200]])
def test_spreads_whose_squares_overflow(tmp_path, values):
    frames = np.resize(np.roll(values, 1), (4, 5, 60))
    path = write_npy(tmp_path / "scan.npy", frames)
    for chunks in (-1, (1, 2, 60), (3, 5, 17)):
        arr = dask_tiled.open_dataset(path, chunks=chunks)
        for name in ("var", "std", "nanvar", "nanstd"):
            for axis in (None, 2, (1, 2)):
                found = getattr(da, name)(arr, axis=axis)
                assert on_tiles(found)
                with np.errstate(all="ignore"):
                    expected = getattr(np, name)(frames, axis=axis)
                    computed = found.compute()
                np.testing.assert_array_equal(computed, expected, name)


def test_spreads_of_constants(tmp_path):
    frames = np.full((5, 4, 8, 64), 0.1, "f8")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "scan.npy", frames), chunks=(2, 4, 3, 64))
    for axis in AXES.values():
        assert (arr.std(axis=axis).compute() < 1e-12).all()


def shifted(frames, offset, fill):
    return shown(frames.reshape(-1, *SIG), NAV, offset, fill_value=fill)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("offset", [-4, 4, -35])
def test_missing_frames_filled_with_nan(tmp_path, offset):
    frames = np.random.default_rng(0).normal(size=NAV + SIG).astype("f4")
    path = write_npy(tmp_path / "scan.npy", frames)
    expected = shifted(frames, offset, np.nan)
    for chunks in (-1, (2, 7, 5, 40)):
        arr = dask_tiled.open_dataset(path, sync_offset=offset, fill_value=np.nan, chunks=chunks)
        check(arr, expected)


@pytest.mark.thorough
def test_converted_pixels(path, frames):
    for dtype in ("f4", "f8", "i4", "u1", "?"):
        mib = write_mib(path.with_suffix(".mib"), frames)
        arr = dask_tiled.open_dataset(
            mib, nav_shape=NAV, dtype=dtype, chunks=(2, 7, 8, 64), sync_offset=-2, fill_value=1
        )
        assert on_tiles(arr.sum())
        check(arr, shifted(frames.astype(dtype), -2, 1))


# Layouts


@pytest.mark.parametrize("dtype", ["i4", ">u2", "f4"])
def test_rows_in_reverse_order(tmp_path, dtype):
    """One of two chips side by side is stored upside down."""
    frames = np.random.default_rng(0).integers(0, 999, (*NAV, 32, 256)).astype(dtype)
    chips = np.stack([frames[..., :128], frames[..., ::-1, 128:]], axis=2)
    path, kind = tmp_path / "chips.raw", np.dtype(dtype)
    path.write_bytes(chips.astype(dtype).tobytes())  # np.stack has made them native
    row, chip = 128 * kind.itemsize, chips[0, 0, 0].nbytes
    strides = NAV[1] * 2 * chip, 2 * chip
    pieces = [
        dask_tiled.Piece(path, (0, 0, 0, 0), (*NAV, 32, 128), 0, (*strides, row, kind.itemsize)),
        dask_tiled.Piece(
            path, (0, 0, 0, 128), (*NAV, 32, 128), 2 * chip - row, (*strides, -row, kind.itemsize)
        ),
    ]
    arr = dask_tiled.from_pieces(pieces, shape=frames.shape, dtype=dtype)
    native = frames.astype(kind.newbyteorder("="))
    check(arr, native)
    scaled = (arr * 2.0).max(axis=(2, 3)), (arr * 2.0).sum(axis=(0, 1))
    assert all(map(on_tiles, scaled))
    np.testing.assert_array_equal(scaled[0], (native * 2.0).max(axis=(2, 3)))
    np.testing.assert_allclose(scaled[1], (native * 2.0).sum(axis=(0, 1)))


@pytest.mark.thorough
@settings(max_examples=25)
@given(st.data())
def test_random_files(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("anything")
    nav = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=2)))
    sig = data.draw(st.sampled_from([(3, 5), (1, 8), (9, 1), (16, 64)]))
    dtype = data.draw(st.sampled_from(["u2", ">u2", "f4"]))
    frames = np.random.default_rng(0).integers(0, 3000, nav + sig).astype(dtype)
    header, footer = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
    if data.draw(st.booleans()):
        order = data.draw(st.sampled_from("CF"))
        path = write_npy(folder / "scan.npy", frames, order=order)
        options = {"nav_shape": nav}
    else:
        gaps = {"frame_header": header, "frame_footer": footer, "file_header": footer}
        path = write_raw(folder / "scan.raw", frames, **gaps)
        options = {"format": "raw", "dtype": dtype, "nav_shape": nav, "sig_shape": sig, **gaps}
    offset = data.draw(st.integers(-3, 3))
    fill = data.draw(st.sampled_from([0, 7]))
    n = len(nav)
    native = frames.astype(frames.dtype.newbyteorder("="))
    pixels, _ = shown(native.reshape(-1, *sig), nav, offset, fill_value=fill)
    chunks = tuple(data.draw(st.integers((size + 1) // 2, size)) for size in pixels.shape)
    arr = dask_tiled.open_dataset(
        path,
        sync_offset=offset,
        fill_value=fill,
        chunks=chunks,
        io=data.draw(st.sampled_from(["auto", "mmap", "buffered", "direct"])),
        **options,
    )
    index = part_of(data.draw, pixels)
    names = data.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    axes = (tuple(range(n)), (n, n + 1), None)
    check(arr, pixels, names, axes)
    check(arr[index], pixels[index], names, axes, keepdims=data.draw(st.booleans()))


@pytest.mark.parametrize("window", [6, 7, 8, 60])
def test_rows_that_interleave_with_columns(tmp_path, monkeypatch, window):
    """Adjacent pixels of the file are not adjacent in the frame."""
    stored = np.random.default_rng(0).integers(0, 255, 1000).astype("u1")
    path = tmp_path / "lattice.raw"
    stored.tofile(path)
    piece = Piece(0, (0, 0, 0), (1, 2, 50), 0, (0, 5, 4))
    layout = Layout([File.at(path)], (1,), (2, 50), [piece], [plain(np.dtype("u1"))])
    desc = Description.of("lattice", layout, {})
    expected = stored[np.add.outer(5 * np.arange(2), 4 * np.arange(50))]
    monkeypatch.setattr(mapped, "MAPPED_BYTES", window)
    monkeypatch.setattr(mapped, "KEPT_BYTES", 0)
    monkeypatch.setattr(buffered, "BUFFERED_BYTES", window)
    monkeypatch.setattr(buffered, "REQUESTED_BYTES", window)
    for io in backends.BACKENDS:
        arr = build(desc, negotiate(desc), io)
        np.testing.assert_array_equal(arr.sum(axis=0).compute(), expected)
        assert arr.sum(axis=(1, 2)).compute() == expected.sum()
        np.testing.assert_array_equal(arr.compute(), expected[None])


def test_aggregations_pickle_as_their_names():
    rows = [x for x in vars(reductions).values() if isinstance(x, reductions.Aggregation)]
    assert len({row.name for row in rows}) == len(rows) > 15
    assert all(pickle.loads(pickle.dumps(row)) is row for row in rows)
