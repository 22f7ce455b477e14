"""Expressions have NumPy's values, types and shapes, and run on tiles."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from checks import on_tiles
from dask.array import chunk

import dask_tiled
from dask_tiled.engine.folding import FrameSink
from dask_tiled.engine.vectors import Vectors
from dask_tiled.graphs import results
from dask_tiled.graphs.rewriting import optimize
from dask_tiled.plans import plan
from dask_tiled.plans.recipes import Recipe
from dask_tiled.testing import write_mib, write_npy, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (4, 5, 6, 64)
NAV, SIG = SHAPE[:2], SHAPE[2:]
RNG = np.random.default_rng(0)
DISK, RING = RNG.random(SIG) > 0.5, RNG.random(SIG).astype("f4")
SCAN = RNG.random((*NAV, 1, 1))
COUNTS = RNG.integers(0, 90, SHAPE)
HOLES = np.where(COUNTS == 3, np.nan, COUNTS / 7 - 5)
SOURCES = {
    **{dtype: COUNTS.astype(dtype) for dtype in ("u1", "u2", ">u2", ">i4", "c8")},
    "i1": (COUNTS - 40).astype("i1"),
    "?": COUNTS > 40,
    "f4": HOLES.astype("f4"),
    "f8": HOLES,
    "packed": (COUNTS * 40).astype("u2"),
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    found = {
        name: write_npy(folder / f"{np.dtype(x.dtype).name}{k}.npy", x)
        for k, (name, x) in enumerate(SOURCES.items())
    }
    found["packed"] = write_mib(folder / "packed.mib", SOURCES["packed"], kind="R64")
    return found


def opened(paths, name, chunks=(2, 3, 6, 64)):
    options = {"nav_shape": NAV} if name == "packed" else {}
    pixels = SOURCES[name]
    native = pixels.astype(pixels.dtype.newbyteorder("="))
    return dask_tiled.open_dataset(paths[name], chunks=chunks, **options), native


SPELLINGS = {
    "method": lambda x: x.sum(axis=(2, 3)),
    "numpy": lambda x: np.sum(x, axis=(2, 3)),
    "dask": lambda x: da.sum(x, axis=(2, 3)),
    "plain dask": lambda x: da.Array.copy(x).sum(axis=(2, 3)),
    "xarray": lambda x: xr.DataArray(x, dims=tuple("abyx")).sum(["y", "x"]).data,
    "einsum": lambda x: da.einsum("abij,ij->ab", x, np.ones(SIG, "u8")),
    "tensordot": lambda x: da.tensordot(x, np.ones(SIG, "u8"), axes=([2, 3], [0, 1])),
    "product": lambda x: (x * np.ones(SIG, "u8")).sum(axis=(2, 3)),
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_runs_on_tiles(paths, spell):
    arr, pixels = opened(paths, ">u2")
    found = spell(arr)
    assert on_tiles(found)
    np.testing.assert_array_equal(found.compute(), pixels.sum(axis=(2, 3)))


@pytest.mark.parametrize("axes", [(0, 1), (2, 3), None])
@pytest.mark.parametrize("dtype", ["i4", "u8"])
def test_nanmean_as_integers(paths, dtype, axes):
    """NaN is skipped before pixels become integers, which cannot be NaN."""
    arr, pixels = opened(paths, "f8")
    holes = np.where(COUNTS > 88, np.nan, 1)
    found = da.nanmean(arr * holes, axis=axes, dtype=dtype)
    plain = da.from_array(pixels * holes, chunks=arr.chunks)
    expected = da.nanmean(plain, axis=axes, dtype=dtype).compute()
    np.testing.assert_array_equal(found.compute(), expected)


UNEVEN = [-1e4, -3.5, 0, 0.1, 0.1, 2, 7, 50]


@pytest.mark.parametrize("dtype", ["f4", "f8", ">u4", "i8"])
@pytest.mark.parametrize("bins", [1, 300, UNEVEN, [4, 4, 5, 5, 1000]])
def test_histograms_of_many_values(tmp_path, monkeypatch, dtype, bins):
    """Pixels lie on edges, beside them or outside, or are infinite or NaN."""
    monkeypatch.setattr(Recipe, "make", failing)
    pixels = RNG.normal(3, 40, (2, 3, 8, 90))
    limits = (0.1, 77.7) if dtype[0] == "f" else (0, 77)
    edges = np.histogram_bin_edges(pixels, bins, limits)[:200]
    if dtype[0] == "f":
        pixels[0, 0, 0, :4] = np.nan, np.inf, -np.inf, -0.0
    for k, inside in enumerate((edges, np.nextafter(edges, 99), np.nextafter(edges, -99))):
        pixels[1, k, :4].flat[: len(inside)] = inside
    native = np.dtype(dtype).newbyteorder("=")
    pixels = (abs(pixels) if native.kind == "u" else pixels).astype(native)
    path = write_npy(tmp_path / "values.npy", pixels.astype(dtype))
    arr = dask_tiled.open_dataset(path, chunks=(1, 2, 8, 45))
    for found, wanted in [(arr, pixels), (arr[1] * 2, pixels[1] * 2)]:
        counts, _ = da.histogram(found, bins, range=limits)
        expected, _ = np.histogram(wanted, bins, range=limits)
        np.testing.assert_array_equal(counts.compute(), expected, strict=True)
        assert on_tiles(counts)


def failing(*_):
    raise AssertionError("a chunk was made")


MASKS = RNG.integers(0, 5, (5, *SIG))
PRODUCTS = {
    "tensordot": lambda x, w, xp: xp.tensordot(x, w, axes=((2, 3), (1, 2))),
    "masks first": lambda x, w, xp: xp.tensordot(w, x, axes=((2, 1), (3, 2))),
    "two axes": lambda x, w, xp: xp.tensordot(x, xp.stack([w, w]), axes=((2, 3), (2, 3))),
    "einsum": lambda x, w, xp: xp.einsum("abyx,kyx->kba", x, w),
    "einsum last": lambda x, w, xp: xp.einsum("xky,abyx->abk", w.transpose(2, 0, 1), x),
    "rows": lambda x, w, _: x[:, :, 2] @ w[:, 2].T,
    "dot": lambda x, w, xp: xp.dot(x[1:, ::2, 0], w[:, 0].T),
    "part": lambda x, w, xp: xp.tensordot(x[1, 1:, 2:], w[:, 2:], axes=((1, 2), (1, 2))),
    "expression": lambda x, w, xp: xp.tensordot(x * 2 - w[0].real, w, axes=((2, 3), (1, 2))),
    "one": lambda x, w, xp: xp.tensordot(x + SCAN, w[0], axes=2),
}


TYPES = [("u1", "u1"), (">u2", "c8"), ("packed", "f8"), ("f4", "f4")]


@pytest.mark.parametrize(
    ("product", "types"),
    [(name, TYPES[(k + j) % 4]) for k, name in enumerate(PRODUCTS) for j in (0, 1)],
)
def test_matrix_products(monkeypatch, paths, product, types):
    """Integers overflow as in NumPy, with one chunk and with several."""
    monkeypatch.setattr(Recipe, "make", failing)  # products need no chunk of pixels
    (name, dtype), product = types, PRODUCTS[product]
    weights = MASKS.astype(dtype) * (1 - 2j if dtype == "c8" else 1)
    for chunks in ((2, 3, 6, 64), (4, 5, 3, 48)):
        arr, pixels = opened(paths, name, chunks)
        with dask.config.set(array_optimize=da.optimize):
            wanted = product(da.from_array(pixels, chunks=arr.chunks), weights, da).compute()
        found, total = dask.compute(product(arr, weights, da), arr.sum())
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
        np.testing.assert_allclose(total, pixels.sum(), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "f4"])
@pytest.mark.parametrize("scan", [(3,), (1, 2)])
def test_weighted_sums_of_frames(tmp_path, dtype, scan):
    """Sums over the scan have NumPy's values, also where narrow rows are left to NumPy."""
    pixels = RNG.integers(0, 2 if dtype == "?" else 99, (3, 4, 5, 16)).astype(dtype)
    weights = np.array([3, 2, 0]).astype(dtype)
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels))
    for width in ((16,), (1, 15)):
        found = da.tensordot(weights, arr.with_chunks((scan, 4, 5, width)), axes=((0,), (0,)))
        np.testing.assert_array_equal(found, np.tensordot(weights, pixels, ((0,), (0,))))


WEIGHTS = {
    "numbers": RING,
    "a part": DISK,
    "row": np.arange(SIG[1]) - 30,
    "column": np.arange(SIG[0], dtype="u1")[:, np.newaxis],
    "large": RNG.integers(-(2**45), 2**45, SIG),
    "unsigned": RNG.integers(0, 2**63, SIG, dtype="u8") * 2,
    "complex": RING - 1j,
}


@pytest.mark.parametrize("name", SOURCES)
def test_sums_of_weighted_pixels(paths, name):
    """Sums that are computed together equal NumPy's; integers overflow as in NumPy."""
    arr, pixels = opened(paths, name)
    for w in WEIGHTS.values():
        w.flags.writeable = False
    found = dask.compute(*((arr * w).sum(axis=(2, 3)) for w in WEIGHTS.values()))
    for one, w in zip(found, WEIGHTS.values(), strict=True):
        wanted = (pixels * w).sum(axis=(2, 3))
        assert one.dtype == wanted.dtype
        exact = wanted.dtype.kind in "iu"
        np.testing.assert_allclose(one, wanted, rtol=0 if exact else 1e-4)


@pytest.mark.parametrize("width", [2, 64])
@pytest.mark.parametrize("axes", [(2, 3), (3,), (0, 3), (0, 1)])
def test_integers_summed_as_floats_do_not_overflow(tmp_path, axes, width):
    pixels = RNG.integers(0, 200, (8, 2, 4, width), "u1")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "bytes.npy", pixels))
    for weights in (
        RNG.integers(0, 2**62, (4, width)),
        RNG.integers(2**62, 2**63, (4, width), "u8"),
    ):
        found, expected = arr * weights, pixels * weights
        for result, wanted in [
            (found.mean(axis=axes), expected.mean(axis=axes)),
            (found.sum(axis=axes, dtype="f8"), expected.sum(axis=axes, dtype="f8")),
            (found.sum(axis=axes), expected.sum(axis=axes)),
        ]:
            np.testing.assert_allclose(result.compute(), wanted, rtol=1e-9)


@pytest.mark.parametrize(
    "several",
    [
        lambda x: [(x * w).sum(axis=(2, 3)) for w in MASKS.astype("f4")],
        lambda x: [x.max(axis=3), x.min(axis=3), x.argmax(axis=3), (x > 5).sum(axis=3)],
        lambda x: [np.sqrt(x).max(axis=0), (x - 5).min(axis=0)],
    ],
    ids=["weights", "rows", "pixels"],
)
def test_similar_reductions_share_a_sink(monkeypatch, paths, several):
    arr, _ = opened(paths, ">u2")
    shown = []
    take_window = FrameSink.take_window
    monkeypatch.setattr(
        FrameSink, "take_window", lambda x, window: shown.append(x) or take_window(x, window)
    )
    alone = [one.compute() for one in several(arr)]
    once = len(shown) // len(alone)
    del shown[:]
    for one, other in zip(dask.compute(*several(arr)), alone, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert len(shown) == once > 0


def test_variables_of_files_may_return_masked_arrays(paths):
    class Variable:
        shape, dtype, ndim = RING.shape, RING.dtype, RING.ndim

        def __getitem__(self, index):
            return np.ma.masked_greater(RING[index], 0.5)

    arr, pixels = opened(paths, "u2")
    found = (arr * da.from_array(Variable(), inline_array=True)).sum(axis=(2, 3)).compute()
    wanted = (pixels * np.ma.masked_greater(RING, 0.5)).sum(axis=(2, 3))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_masked_operands(paths):
    """Operations with other kinds of arrays are left to dask, which supports them."""
    arr, pixels = opened(paths, "u2")
    masked = np.ma.masked_greater(RING, 0.5)
    made = da.ma.masked_where(arr > 50, arr)
    wanted = np.ma.masked_where(pixels > 50, pixels)
    for found, expected in [
        ((arr * masked).sum(axis=(2, 3)), (pixels * masked).sum(axis=(2, 3))),
        ((arr - masked).mean(), (pixels - masked).mean()),
        (arr + made, pixels + wanted),
        (np.maximum(made, arr).max(axis=0), np.maximum(wanted, pixels).max(axis=0)),
    ]:
        result = found.compute()
        np.testing.assert_allclose(np.ma.filled(result, 7), np.ma.filled(expected, 7), rtol=1e-4)


@pytest.mark.parametrize("axes", [(0, 1), 0])
def test_sums_of_chunks_overflow_no_narrow_type(tmp_path, axes):
    frames = np.full((5, 16_000, 1, 64), 65_535, "u2")
    write_raw(tmp_path / "scan.raw", frames)
    layout = {"dtype": "u2", "sig_shape": (1, 64), "nav_shape": (5, 16_000)}
    arr = dask_tiled.open_dataset(tmp_path / "scan.raw", **layout, chunks=(2, 16_000, 1, 64))
    np.testing.assert_array_equal(arr.sum(axis=axes), frames.sum(axis=axes))


ALONE = {
    "any": lambda x: (x > 7).any(axis=(2, 3)),
    "sum": lambda x: x.sum(axis=(2, 3)),
    "sum of the scan": lambda x: x.sum(axis=(0, 1)),
    "variance": lambda x: x.var(axis=(2, 3)),
    "place": lambda x: x.argmax(axis=3),
    "pixels": lambda x: x * 2,
    "bins": lambda x: da.coarsen(np.sum, x, {2: 2}),
}
BESIDE = {
    **{f"another {name}": one for name, one in ALONE.items()},
    "a variance with ddof=1": lambda x: x.var(axis=(2, 3), ddof=1),
    "its squares": lambda x: (x.var(axis=(2, 3)) ** 2, x.sum(axis=(0, 1)) ** 2),
    "the array": lambda x: x,
}


@pytest.mark.parametrize("other", BESIDE.values(), ids=BESIDE)
@pytest.mark.parametrize("one", ALONE.values(), ids=ALONE)
def test_equal_keys_mean_equal_results(monkeypatch, paths, one, other):
    """Workers may still hold results of another graph."""
    monkeypatch.setattr(results, "LEAST_RESULT_PIXELS", 2)
    arr, _ = opened(paths, "u2", (1, 5, 6, 64))
    monkeypatch.setattr(plan, "LEAST_TASK_BYTES", arr.nbytes // 2)
    beside = other(arr)
    graphs = []

    def scheduler(graph, keys, **_):
        graphs.append(dict(graph.__dask_graph__()))
        return dask.get(graph, keys)

    dask.compute(one(arr), scheduler=scheduler)
    dask.compute(one(arr), beside, scheduler=scheduler)
    for key in graphs[0].keys() & graphs[1].keys():
        values = [dask.get(graph, key) for graph in graphs]
        np.testing.assert_equal(*values)


@pytest.mark.parametrize(("kind", "value", "dtype"), [("i2", -1, "u8"), ("u8", 2**53 + 1, "i8")])
def test_sums_of_chunks_in_several_types(tmp_path, kind, value, dtype):
    """Narrow and wide parts of frames are summed in different ways."""
    pixels, weights = np.full((4, 4, 1, 70), value, kind), np.ones(70, "u1")
    path = write_npy(tmp_path / "a.npy", pixels)
    arr = dask_tiled.open_dataset(path, chunks=(2, 4, 1, 64))
    for axes in ((2, 3), (3,)):
        found = (arr * weights).sum(axis=axes, dtype=dtype).compute()
        np.testing.assert_array_equal(found, (pixels * weights).sum(axis=axes, dtype=dtype))


@pytest.mark.parametrize("axes", [(2, 3), (0, 1), (1, 2)])
def test_cast_pixels_are_not_stored(monkeypatch, paths, axes):
    monkeypatch.setattr(Recipe, "make", failing)
    numbers, counts = opened(paths, "f8"), opened(paths, "i1")
    positive = da.where(numbers[0] > 0, numbers[0], 0), np.where(numbers[1] > 0, numbers[1], 0)
    for (arr, pixels), dtype in ((positive, "u8"), (positive, "i4"), (counts, bool)):
        found = arr.sum(axis=axes, dtype=dtype).compute()
        np.testing.assert_array_equal(found, pixels.sum(axis=axes, dtype=dtype))
    for name in ("any", "all"):
        found = getattr(numbers[0], name)(axis=axes).compute()
        np.testing.assert_array_equal(found, getattr(numbers[1], name)(axis=axes))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "axes"),
    [("u1", (2, 3)), (">i4", (0, 1)), ("i1", None), ("i1", (2, 3)), ("f4", (2, 3)), ("f4", (0, 1))],
)
def test_comparisons_are_reduced(paths, name, axes):
    """Comparisons become extremes or counts, also with numbers beyond the type of the pixels."""
    arr, pixels = opened(paths, name)
    found, wanted = [], []
    ufuncs = np.greater, np.greater_equal, np.less, np.less_equal, np.equal, np.not_equal
    limits = pixels[0, 0, 0, 0], int(np.nanmin(pixels)), 60, 0, -300, 70_000, 2.5, np.nan
    for i, compare in enumerate(ufuncs):
        for k, limit in enumerate(limits):
            # Limits on the left alternate: they are turned round, whatever reduces them.
            for j, reduce in enumerate((np.any, np.all, np.sum)):
                turned = (i + j + k) % 2
                of_arr, of_pixels = (arr, limit), (pixels, limit)
                found += [reduce(compare(*of_arr[:: -1 if turned else 1]), axis=axes)]
                wanted += [reduce(compare(*of_pixels[:: -1 if turned else 1]), axis=axes)]
    for one, other in zip(dask.compute(*found), wanted, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    for alone, other in zip(found[::11], wanted[::11], strict=True):
        np.testing.assert_array_equal(alone.compute(), other)


COUNTED = {
    "count_nonzero": lambda xp, arr: xp.count_nonzero(arr, axis=(2, 3)),
    "not_equal": lambda _, arr: (arr != 0).sum(axis=(2, 3)),
    "equal": lambda _, arr: (arr == 0).sum(axis=(2, 3)),
    "cast": lambda _, arr: (arr != 0).astype("u2").astype("i4").sum(axis=(2, 3)),
    "mean": lambda _, arr: (arr > 7).astype("f4").mean(axis=(2, 3)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_counted_pixels_are_not_stored(monkeypatch, tmp_path, name):
    pixels = RNG.integers(0, 9, (2, 3, 64, 80), "u2")
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels))
    register = Vectors.register

    def without_booleans(vectors, key, dtype):
        assert dtype != np.dtype(bool)
        return register(vectors, key, dtype)

    monkeypatch.setattr(Vectors, "register", without_booleans)
    found, wanted = COUNTED[name](da, arr).compute(), COUNTED[name](np, pixels)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6 * (found.dtype.kind == "f"))


@pytest.mark.parametrize("place", [0, 130, 259])
def test_extremes_of_long_frames(tmp_path, place):
    pixels = RNG.random((2, 3, 4, 65)).astype("f4")
    pixels[0, 0].flat[place], pixels[0, 1].flat[place], pixels[1, 2].flat[place] = 2, -2, np.nan
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "a.npy", pixels))
    for name in ("min", "max"):
        found = getattr(arr, name)(axis=(2, 3)).compute()
        np.testing.assert_array_equal(found, getattr(pixels, name)(axis=(2, 3)))


def test_reductions_of_users(paths):
    arr, _ = opened(paths, "u2", (1, 5, 6, 64))
    for aggregate, combine in ((np.max, None), (np.sum, np.max), (np.max, np.sum)):
        options = {"chunk": chunk.sum, "aggregate": aggregate, "combine": combine}
        with dask.config.set(array_optimize=da.optimize):
            wanted = da.reduction(arr, **options, axis=0, dtype="u8", split_every=2).compute()
        found = da.reduction(arr, **options, axis=0, dtype="u8", split_every=2)
        np.testing.assert_array_equal(found.compute(), wanted)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize("dtype", [None, "f8", "c16"])
def test_variances_of_complex_numbers(paths, dtype):
    arr, _ = opened(paths, "c8")
    arr = arr * (2 - 1j)
    for axes in (None, 0, (2, 3)):
        found = arr.var(axis=axes, dtype=dtype)
        with dask.config.set(array_optimize=da.optimize):
            wanted = found.compute()
        result = found.compute()
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["u1", ">i4", "c8", "f4"])
@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_rounding(paths, name, decimals):
    arr, pixels = opened(paths, name)
    many, wanted = da.round(arr * 1, decimals), np.round(pixels * 1, decimals)
    np.testing.assert_array_equal(many.compute(), wanted, strict=True)
    np.testing.assert_array_equal(arr.round(decimals)[1].compute(), pixels.round(decimals)[1])
    assert on_tiles(many)


PLACES = {
    "row": lambda x: x.argmax(axis=3),
    "column": lambda x: np.argmin(x, axis=2, keepdims=True),
    "frame": lambda x: x.reshape(*NAV, -1).argmax(axis=-1),
    "scan": lambda x: x.reshape(-1, *SIG).argmin(axis=0),
    "line of the scan": lambda x: np.argmax(x, axis=0),
    "all": lambda x: x.argmax(),
    "all of frames in another order": lambda x: x[0, 0].T.argmin(),
    "another order": lambda x: x.transpose(2, 0, 3, 1).argmax(axis=3),
    "short rows": lambda x: x[..., 3:7].argmax(axis=3),
    "slice": lambda x: x[1:, ::2, 1].argmin(axis=0),
    "computed": lambda x: (x * RING - SCAN).argmax(axis=3),
    "several": lambda x: (x * 2 + x[:, ::-1]).argmax(axis=1),
}


PLACED = ["u1", ">u2", "i1", "c8", "f4", "packed"]


@pytest.mark.parametrize(
    ("place", "name"), [(x, PLACED[(k + j) % 6]) for k, x in enumerate(PLACES) for j in (0, 1, 3)]
)
def test_argmin_and_argmax(paths, name, place):
    """The first of equal extremes counts, and the first NaN."""
    for chunks in ((2, 3, 6, 64), (1, (2, 0, 3), 6, (32, 32))):
        arr, pixels = opened(paths, name, chunks)
        found, expected = PLACES[place](arr), PLACES[place](pixels)
        np.testing.assert_array_equal(found.compute(), expected, strict=True)
        if place not in ("frame", "scan"):  # their chunks may be merged first
            assert on_tiles(found)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["f4", "i2"])
def test_argmin_and_argmax_in_long_rows(tmp_path, dtype):
    """Extremes lie in the first vector, in a later one, or everywhere."""
    rows = np.tile(RNG.random((90, 100)) - 0.5, (8, 1, 1))
    flat = rows.reshape(8, -1)
    flat[0], flat[1], flat[2] = np.inf, -np.inf, np.arange(9000)
    flat[3, [200, 8200]], flat[4, [-1, -2]], flat[5, [0, -1]] = 7, -7, np.nan
    flat[6, 300::50], flat[7] = np.nan, np.nan
    pixels = np.nan_to_num(rows, posinf=99, neginf=-99).astype(dtype) if dtype == "i2" else rows
    pixels = pixels.reshape(2, 4, 90, 100).astype(dtype)
    arr = dask_tiled.open_dataset(write_npy(tmp_path / "rows.npy", pixels))
    for some, wanted in ((arr, pixels), (arr[:, 1:, 3:], pixels[:, 1:, 3:]), (arr.T, pixels.T)):
        for name in ("argmin", "argmax"):
            found = getattr(some.reshape(*some.shape[:2], -1), name)(axis=2)
            expected = getattr(wanted.reshape(*wanted.shape[:2], -1), name)(axis=2)
            np.testing.assert_array_equal(found.compute(), expected)
            assert on_tiles(found)
            whole = getattr(some, name)()
            assert whole.compute() == getattr(wanted, name)()


def test_argmax_that_tiles_do_not_support(paths):
    arr, pixels = opened(paths, "f4")
    np.testing.assert_array_equal(arr[::-1, 0].argmax(axis=0), pixels[::-1, 0].argmax(axis=0))
    place = arr.argmax(axis=0)
    (name,) = (x for x in place.dask.layers if x.startswith("arg-reduce"))
    parts = da.Array(place.dask, name, ((1, 1), *arr.chunks[1:]), np.int64)
    found = parts.map_blocks(lambda part: part["arg"], dtype=np.int64).compute()
    np.testing.assert_array_equal(found[1], pixels[2:].argmax(axis=0) + 2)
    with pytest.raises(ValueError, match="zero-size"):
        arr[:, :0].argmax(axis=1).compute()


def test_some_chunks_of_one_axis_are_split(tmp_path):
    """A layer that takes chunks of several layers is no slice of one of them."""
    pixels = np.arange(10)
    pixels.tofile(tmp_path / "row.raw")
    piece = dask_tiled.Piece(tmp_path / "row.raw", (0,), (10,))
    arr = dask_tiled.from_pieces([piece], shape=(10,), dtype=int, chunks=((2, 3, 5),))
    found = (arr * 2).rechunk(((2, 3, 3, 2),))
    np.testing.assert_array_equal(found.compute(), pixels * 2)


def plus_one(block):
    return block + 1


def test_functions_of_users_get_arrays(paths):
    arr, pixels = opened(paths, ">u2")
    doubled = (arr * 2).map_blocks(plus_one, dtype="u2")
    assert not on_tiles(arr.map_blocks(plus_one, dtype="u2"))
    a, b = dask.compute(doubled.sum(axis=0), (arr * 2).max())
    np.testing.assert_array_equal(a, (pixels * 2 + 1).sum(axis=0))
    assert b == pixels.max() * 2
    kept = (arr * 2).persist()
    np.testing.assert_array_equal(kept[1].compute(), pixels[1] * 2)


def test_axes_of_length_1_are_broadcast(paths):
    arr, pixels = opened(paths, "u2")
    beside = np.arange(64.0)
    for part, wanted in ((arr[..., :1], pixels[..., :1]), (arr[:1, :1], pixels[:1, :1])):
        found = part * beside
        np.testing.assert_array_equal(found.compute(), wanted * beside)
        np.testing.assert_allclose(found.mean().compute(), (wanted * beside).mean())


def test_array_optimize_keeps_its_setting(paths):
    arr, pixels = opened(paths, "u2")
    assert dask.config.get("array_optimize") is optimize
    for setting in (da.optimize, False):
        with dask.config.set(array_optimize=setting):
            opened(paths, "u2")
            assert dask.config.get("array_optimize") is setting
            np.testing.assert_array_equal((arr + 1).sum(axis=0).compute(), (pixels + 1).sum(axis=0))
