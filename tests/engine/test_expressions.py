"""Expressions of many files have NumPy's values and types, in bounded memory."""

import copy
import gc
import operator
import pickle
import re

import dask
import numpy as np
import pytest
import xarray as xr
from checks import on_tiles, peak_memory, recipe_of
from hypothesis import given
from hypothesis import strategies as st
from strategies import basic_indices, chunked

import dask_tiled
from dask_tiled import Corrections, StaleFileError, TilingError
from dask_tiled.engine import evaluation
from dask_tiled.engine.limits import MOST_SOURCES
from dask_tiled.engine.vectors import OWN
from dask_tiled.kernels import fold_functions
from dask_tiled.plans.recipes import Recipe
from dask_tiled.testing import write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (5, 6, 8)
DTYPES = ("?", "u1", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", ">i2", ">f4")


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """Write a file of each type; return the paths and the pixels."""
    folder, rng = tmp_path_factory.mktemp("volumes"), np.random.default_rng(0)
    found = []
    for number, dtype in enumerate(DTYPES):
        pixels = rng.integers(-3, 100, SHAPE).astype(dtype)
        path = write_npy(folder / f"{number}.npy", pixels)
        found.append((path, pixels.astype(pixels.dtype.newbyteorder("="))))
    return found


def opened(volumes, **options):
    options = {"chunks": (2, 4, 8), **options}
    return [dask_tiled.open_dataset(path, **options) for path, _ in volumes]


def steps_of(arr):
    return [step for stage in recipe_of(arr)._program(()).stages for step in stage.steps]


# Values and types

BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv]
BINARY += [operator.mod, operator.pow, operator.and_, operator.or_, operator.xor]
BINARY += [operator.lt, operator.le, operator.eq, operator.ne, operator.ge, operator.gt]
BINARY += [np.maximum, np.hypot, np.arctan2, np.logical_and, np.copysign, np.fmod]
UNARY = [operator.neg, operator.abs, operator.invert, np.sin, np.sqrt, np.isfinite, np.sign, np.exp]
UNARY += [np.square, np.conjugate, np.logical_not]
SCALARS = [0, 1, 2, -1, 300, True, 0.5, 2.5, -0.0, float("nan"), 1j, np.float32(0.1), np.int64(-7)]
SCALARS += [np.uint8(200), np.array(3, "i2"), np.array(1e300), np.bool_(True), 2**40]


@st.composite
def trees(draw):
    """Draw an expression: sources, and operations on sources and earlier operations."""
    count = draw(st.integers(1, 8))
    numbers = draw(st.lists(st.integers(0, len(DTYPES) - 1), min_size=1, max_size=4))
    rows = []
    for k in range(count):
        operand = st.integers(0, len(numbers) + k - 1)
        scalar = st.sampled_from(SCALARS).map(lambda value: ("scalar", value))
        if draw(st.integers(0, 3)):
            pair = st.tuples(operand, operand) | st.tuples(operand, scalar)
            rows.append((draw(st.sampled_from(BINARY)), draw(pair | st.tuples(scalar, operand))))
        else:
            rows.append((draw(st.sampled_from(UNARY)), (draw(operand),)))
    return numbers, rows


def outcome(rows, values):
    """Return the values of all steps of an expression, or the error that is raised."""
    values = list(values)
    for function, operands in rows:
        given = [x[1] if isinstance(x, tuple) else values[x] for x in operands]
        try:
            values.append(function(*given))
            if values[-1] is NotImplemented:
                raise TypeError  # noqa: TRY301
        except (TypeError, ValueError, OverflowError) as error:
            return error
    return values


@pytest.mark.thorough
@given(tree=trees(), data=st.data())
def test_expressions_equal_those_of_numpy(volumes, tree, data):
    numbers, rows = tree
    some = [volumes[number] for number in numbers]
    chunks = data.draw(chunked(SHAPE))
    with np.errstate(all="ignore"):
        expected = outcome(rows, [pixels for _, pixels in some])
        arr = outcome(rows, opened(some, chunks=chunks))
        if isinstance(expected, ValueError) and not isinstance(arr, Exception):
            with pytest.raises(ValueError, match=re.escape(str(expected))):  # depends on pixels
                dask.compute(arr)
            return
        if isinstance(expected, Exception):
            assert isinstance(arr, Exception)
            return
        expected, arr = expected[-1], arr[-1]
        assert on_tiles(arr)
        assert (arr.dtype, arr.shape, arr.chunks) == (expected.dtype, SHAPE, chunks)
        np.testing.assert_array_equal(arr.compute(), expected)
        for _ in range(data.draw(st.integers(0, 2))):
            index = data.draw(basic_indices(arr.shape))
            before, expected, arr = arr, expected[index], arr[index]
            assert on_tiles(arr) or not expected.size
            if not expected.size:
                return
            np.testing.assert_array_equal(pickle.loads(pickle.dumps(arr)).compute(), expected)
            np.testing.assert_array_equal(arr.compute(), before.compute()[index])


@pytest.mark.parametrize("tile", [1, 7, 100, 1 << 20])
def test_tiles_of_any_size(volumes, monkeypatch, tile):
    monkeypatch.setattr(evaluation, "PROGRAM_BYTES", tile)
    (a, b, c), (x, y, z) = opened(volumes[6:9]), (pixels for _, pixels in volumes[6:9])
    np.testing.assert_array_equal((a - b * (c + a)).compute(), x - y * (z + x))
    np.testing.assert_array_equal((a[1:, ::2, 3] - b[1:, ::2, 3]).compute(), (x - y)[1:, ::2, 3])
    point = (a + b)[1, 2, 3]
    assert (point.shape, point.dtype) == ((), (x + y).dtype)
    np.testing.assert_array_equal((point * 2).compute(), (x + y)[1, 2, 3] * 2)


@pytest.mark.parametrize("ufunc", sorted(OWN, key=str), ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("types", ["f4 f4", "f8 f8", "u2 f4", "u2 f8", "u2 u2", "? ?", "i8 f4"])
def test_primitives_of_floats_are_exact(tmp_path, monkeypatch, ufunc, types):
    special = [np.nan, np.inf, -np.inf, -0.0, 0, 1, 3, -2.5, 1e-40, 1e-310, 1e38, 65535, 1e-7, 7]
    kind, other = map(np.dtype, types.split())
    numbers = [x for x in special if kind.kind == "f" or x in (0, 1, 3, 65535, 7)]
    with np.errstate(all="ignore"):
        pixels = np.resize(np.array(numbers, "f8").astype(kind), (3, 5, 37))
        operand = np.array(numbers, "f8").astype(other)
    operand = np.resize(operand[np.arange(37) * 5 % len(operand)], (5, 37))
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels), chunks=(2, 5, 37))
    used, primitive = [], fold_functions.primitive
    monkeypatch.setattr(fold_functions, "primitive", lambda *x: used.append(x[0]) or primitive(*x))
    monkeypatch.setattr(evaluation, "SHARED", {})

    def call(array):
        return ufunc(array) if ufunc.nin == 1 else ufunc(array, operand)

    try:
        with np.errstate(all="ignore"):
            expected = call(pixels)
    except TypeError:  # booleans are not subtracted
        return
    for found in (call(arr).compute(), call(call(arr)).compute()):
        assert found.dtype == expected.dtype
        signs = np.signbit(found) == np.signbit(expected)  # those of zeros, too
        assert (signs | np.isnan(expected)).all()
        np.testing.assert_array_equal(found, expected)
        with np.errstate(all="ignore"):
            expected = call(expected)
    assert (ufunc.__name__ in used) == (expected.dtype.kind == "f" and expected.itemsize > 2)


VECTORS = {
    "short rows": lambda a: a * np.arange(1, 41, dtype="f4")[:, None] * np.array([2, 3, 5], "f4"),
    "sums of short rows": lambda a: (a * np.arange(40, dtype="f4")[:, None]).sum(2),
    "powers": lambda a: a**3,
    "signed powers": lambda a: a.astype("i4") ** np.array([1, 2, 0], "u1"),
}
CASTS = {"f2": ("f4", "f8"), "c8": ("c16",), "c16": ("c8",)}


@pytest.mark.parametrize("make", VECTORS.values(), ids=VECTORS)
def test_no_chunk_is_computed_as_a_whole(tmp_path, monkeypatch, make):
    monkeypatch.setattr(Recipe, "pixels", None)
    pixels = np.random.default_rng(0).integers(0, 100, (6, 40, 3), "u2")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels), chunks=(4, 40, 3))
    found, expected = make(arr).compute(), make(pixels)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("dtype", "to"), [(x, y) for x, some in CASTS.items() for y in some])
def test_half_and_complex_numbers_are_converted_in_vectors(tmp_path, monkeypatch, dtype, to):
    monkeypatch.setattr(Recipe, "pixels", None)
    pixels = np.arange(1 << 16, dtype="u2").view("f2").reshape(4, 64, 256).astype(dtype)
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels))
    with np.errstate(all="ignore"):
        expected = pixels.astype(to) * 2
    found = (arr.astype(to) * 2).compute()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("ufunc", [np.log1p, np.log10, np.tanh], ids=lambda ufunc: ufunc.__name__)
@pytest.mark.parametrize("dtype", ["u2", ">u2", "i2"])
def test_functions_of_few_values_are_looked_up(tmp_path, monkeypatch, ufunc, dtype):
    """The table has every value of a pixel, also those without a logarithm."""
    pixels = np.arange(1 << 16, dtype="u2").reshape(4, 64, 256).view(dtype)
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels))
    used, primitive = [], fold_functions.primitive
    monkeypatch.setattr(fold_functions, "primitive", lambda *x: used.append(x[0]) or primitive(*x))
    monkeypatch.setattr(evaluation, "SHARED", {})
    with np.errstate(all="ignore"):
        expected = ufunc(pixels.astype(arr.dtype))
    found = ufunc(arr).compute()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert "look_up" in used


def test_other_chunks_and_xarray(volumes):
    (a, b), (x, y) = opened([volumes[1], volumes[4]]), (volumes[1][1], volumes[4][1])
    other = dask_tiled.open_dataset(volumes[4][0], chunks=(5, 1, 3))
    np.testing.assert_array_equal((a + other).compute(), x + y)
    aligned = a.with_chunks((5, 1, 3)) + other
    assert on_tiles(aligned)
    np.testing.assert_array_equal(aligned.compute(), x + y)
    data = xr.DataArray(a, dims=("z", "y", "x")) + xr.DataArray(b, dims=("z", "y", "x"))
    assert on_tiles(data.data)
    np.testing.assert_array_equal(data.isel(z=2).compute(), (x + y)[2])
    with pytest.raises(TilingError, match="no tiling scheme"):
        dask_tiled.scheme_of(a + b)


def test_copies_and_names(volumes):
    a, b = opened([volumes[1], volumes[4]])
    arr = a - 2.5 * b
    for made in (pickle.loads(pickle.dumps(arr)), copy.copy(arr), a - 2.5 * b):
        assert on_tiles(made)
        assert (made.name, made.chunks, made.dtype) == (arr.name, arr.chunks, arr.dtype)
        np.testing.assert_array_equal(made.compute(), arr.compute())
    others = [arr, b - 2.5 * a, a - 2 * b, a - 2.0 * b, a + 2.5 * b, arr[1:], arr.rechunk(-1)]
    others += [a - np.float64(2.5) * b, a - np.float32(2.5) * b, a.astype("f4"), a.astype("f8")]
    assert len({made.name for made in others}) == len(others)


# Registers


def registers(arr):
    stages = recipe_of(arr)._program(()).stages
    used = {to for stage in stages for to in [*stage.reads, *(step.to for step in stage.steps)]}
    return len({to.number for to in used} - {-1})


def test_few_registers_in_any_order(volumes):
    (source,) = opened([volumes[8]])
    distinct = [source + k for k in range(9)]  # a register for the source, which all of them need
    left, right = distinct[0], distinct[-1]
    for arr in distinct[1:]:
        left = left + arr
    for arr in distinct[-2::-1]:
        right = arr + right
    assert registers(left) <= 3
    assert registers(right) <= 3


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Write sixteen volumes of 2 MiB; return the paths and the pixels of the first."""
    folder = tmp_path_factory.mktemp("many")
    base = np.arange(1 << 19, dtype="f4").reshape(32, 128, 128) % 1000
    for number in range(16):
        write_npy(folder / f"{number}.npy", base + number)
    return [folder / f"{number}.npy" for number in range(16)], base


def pairwise(volumes):
    while len(volumes) > 1:
        volumes = [sum(volumes[k : k + 2]) for k in range(0, len(volumes), 2)]
    return volumes[0]


def spread(volumes):
    mean = sum(volumes) / len(volumes)
    return sum((volume - mean) ** 2 for volume in volumes)


def peak_of(arr, part=0):
    """Return a computed array, and the peak memory of computing it."""
    arr[part].compute()
    arr.dask  # noqa: B018 - makes the graph
    with peak_memory() as peak:
        found = arr.compute()
    return found, *peak


@pytest.mark.slow
@pytest.mark.parametrize(("make", "io"), [(sum, "auto"), (pairwise, "buffered"), (spread, "auto")])
def test_memory_does_not_grow_with_volumes(many, monkeypatch, make, io):
    """Memory is needed for the result, the registers, and a block of the backend."""
    monkeypatch.setattr(evaluation, "PROGRAM_BYTES", 1 << 19)
    paths, base = many
    arr = make([dask_tiled.open_dataset(path, chunks=-1, io=io) for path in paths])
    assert registers(arr) <= MOST_SOURCES + 6
    found, peak = peak_of(arr)
    copies = 2  # dask copies chunks that are views
    more = 0 if io == "auto" else 2 << 20
    assert peak < copies * base.nbytes + 2 * evaluation.PROGRAM_BYTES + more
    eager = make([base + number for number in range(len(paths))])
    np.testing.assert_allclose(found, eager, rtol=1e-6)


@pytest.mark.slow
def test_memory_does_not_grow_with_converted_volumes(many, monkeypatch):
    monkeypatch.setattr(evaluation, "PROGRAM_BYTES", 1 << 19)
    paths, base = many
    plane = np.ones(base.shape[1:], "f4")
    options = {"dtype": "f8", "corrections": Corrections(dark=plane, gain=plane)}
    peaks = []
    for count in (2, 12):
        arr = sum(dask_tiled.open_dataset(path, chunks=-1, **options) for path in paths[:count])
        found, peak = peak_of(arr)
        peaks.append(peak)
        eager = sum(base + number - 1 for number in range(count))
        np.testing.assert_allclose(found, eager, rtol=1e-6)
    assert peaks[1] < peaks[0] + (1 << 19)


REDUCED = {
    "difference": lambda v: (v[0] - v[1]).sum(),
    "squares": lambda v: ((v[0] - v[1]) ** 2).mean(axis=0),
    "stages": lambda v: (v[0] * v[5] - sum(v) / 6).sum(axis=2),
    "largest": lambda v: sum(v).max(axis=1),
    "flags": lambda v: (v[0] + v[1] > v[2] + 999).any(axis=(0, 2)),
    "rounded": lambda v: (v[0].astype("i4") ** v[5].astype("u1") - v[1]).min(),
}


@pytest.mark.thorough
@pytest.mark.parametrize("make", REDUCED.values(), ids=REDUCED)
def test_reductions_of_volumes(many, monkeypatch, make):
    """No chunk of the reduced expression is stored."""
    monkeypatch.setattr(evaluation, "PROGRAM_BYTES", 1 << 19)
    paths, base = many
    found = make([dask_tiled.open_dataset(path, chunks=-1) for path in paths[:6]])
    assert on_tiles(found)
    some, peak = peak_of(found, ...)
    assert peak < base.nbytes * 3 // 4
    expected = make([base + number for number in range(6)])
    np.testing.assert_allclose(some, expected, rtol=1e-5, atol=1)


def test_a_tile_is_read_once(many, loads):
    paths, base = many
    a, b = (
        dask_tiled.open_dataset(path, chunks=(8, 128, 128), io="counting") for path in paths[:2]
    )
    found = (a + a + a) * b - a * 2
    assert sum(len(stage.reads) for stage in recipe_of(found)._program(()).stages) == 2
    np.testing.assert_array_equal(found.compute(), (base * 3) * (base + 1) - base * 2)
    assert loads.nbytes == 2 * base.nbytes
    del loads[:]
    np.testing.assert_array_equal(
        found[3:5, 7].compute(), ((base * 3) * (base + 1) - base * 2)[3:5, 7]
    )
    assert loads.nbytes == 2 * 2 * 128 * 4


def test_equal_parts_are_computed_once(volumes):
    a, b = opened(volumes[7:9])
    found = (a * b + 1) / (np.sqrt(a * b) + a * b)
    names = [step.function.__name__ for step in steps_of(found)]
    assert names.count("multiply") == 1


@pytest.mark.slow
def test_deep_expressions(volumes):
    """Expressions may be nested more deeply than Python calls."""
    (deep,), pixels = opened([volumes[4]], chunks=-1), volumes[4][1]
    for _ in range(600):
        deep = 1 + (deep + 1)
    again = pickle.loads(pickle.dumps(deep))
    assert again.name == deep.name
    for arr, expected in [(again, pixels), (deep[1:3], pixels[1:3])]:
        assert registers(arr) <= 2
        np.testing.assert_array_equal(arr.compute(), expected + 1200)
    del arr, deep, again  # deletion must not recurse either
    gc.collect()


def test_operators_without_meaning_raise(volumes):
    (flags,) = opened(volumes[:1])
    assert operator.neg(flags) is NotImplemented  # as in dask
    with pytest.raises(TypeError):
        operator.sub(flags, flags)
    with pytest.raises((OverflowError, TypeError)):  # old releases of dask raise TypeError
        flags.astype("u1") + 300


# Files


@pytest.mark.thorough
def test_compressed_volumes(tmp_path):
    """Files are decompressed one at a time."""
    h5py = pytest.importorskip("h5py")
    base = np.arange(1 << 16, dtype="f4").reshape(16, 64, 64)
    volumes = []
    for number in range(12):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file.create_dataset("data", data=base + number, chunks=(4, 64, 64), compression="gzip")
        path = tmp_path / f"{number}.h5"
        volumes.append(dask_tiled.open_dataset(path, chunks=-1, io="mmap"))  # without buffers
    arr = sum(volumes)
    assert on_tiles(arr)
    found, peak = peak_of(arr)
    np.testing.assert_array_equal(found, 12 * base + 66)
    assert peak < 6 * base.nbytes


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_errors_name_the_file(tmp_path, scheduler):
    for number in range(4):
        write_npy(tmp_path / f"volume{number}.npy", np.ones((4, 8, 8)))
    paths = [tmp_path / f"volume{number}.npy" for number in range(4)]
    arr = sum(dask_tiled.open_dataset(path, chunks=(2, 8, 8)) for path in paths) / 4
    with dask.config.set(scheduler=scheduler):
        assert (arr.compute() == 1).all()
        paths[2].unlink()
        with pytest.raises(StaleFileError, match=r"volume2\.npy"):
            arr.compute()
