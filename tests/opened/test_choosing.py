"""vindex, reshape and rechunk give dask's results and read only the selected frames."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import dask
import dask.array as da
import numpy as np
import pytest
from checks import on_tiles
from dask.callbacks import Callback
from hypothesis import given
from hypothesis import strategies as st
from strategies import chunked, part_of, selections, shown

import dask_tiled
from dask_tiled import TiledArray
from dask_tiled.graphs import rewriting
from dask_tiled.graphs.results import whole
from dask_tiled.opened import choosing
from dask_tiled.plans.recipes import Recipes
from dask_tiled.testing import write_raw

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = np.arange(12 * 4 * 6, dtype="u2").reshape(12, 4, 6)
SCAN = FRAMES.reshape(3, 4, 4, 6)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_raw(tmp_path_factory.mktemp("scan") / "scan.raw", FRAMES)


def opened(path, chunks=(2, 3, 4, 6), **options):
    options = {"nav_shape": (3, 4)} | options
    return dask_tiled.open_dataset(
        path, "raw", dtype="u2", sig_shape=(4, 6), chunks=chunks, **options
    )


@st.composite
def points(draw, shape):
    """Draw an index of points for some of the axes."""
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    many = draw(st.sampled_from([(1,), (3,), (7,), (2, 3), (2, 1, 2)]))
    count = math.prod(many)
    key = []
    for k, n in enumerate(shape):
        if k in axes:
            places = draw(st.lists(st.integers(-n, n - 1), min_size=count, max_size=count))
            one = np.array(places).reshape(many)
            key.append(one.tolist() if draw(st.booleans()) else one)
        else:
            begin = draw(st.integers(0, n - 1))
            cut = slice(begin, None, draw(st.integers(1, 2)))
            key.append(draw(st.sampled_from([slice(None), cut, begin])))
    return tuple(key)


@st.composite
def shapes(draw, nav, sig):
    """Draw another shape: navigation axes merged and split, sometimes signal axes merged."""
    rest = math.prod(nav)
    sizes = []
    while rest > 1 or not sizes:
        n = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
        sizes.append(n)
        rest //= n
    if draw(st.booleans()):
        sizes[draw(st.integers(0, len(sizes) - 1))] = -1
    return (*sizes, *draw(st.sampled_from([sig, sig, sig, (math.prod(sig),)])))


@st.composite
def new_chunks(draw, shape):
    """Draw chunks in one of the spellings that dask accepts."""
    sizes = [draw(st.sampled_from([-1, None, "auto", n, max(1, n // 2)])) for n in shape]
    axes = draw(st.sets(st.integers(-len(shape), len(shape) - 1)))
    spelled = {axis: sizes[axis] for axis in axes}
    return draw(
        st.sampled_from([draw(chunked(shape)), tuple(sizes), sizes, spelled, -1, 2, "auto"])
    )


@st.composite
def operations(draw, arr):
    """Draw a method call: vindex, reshape or rechunk."""
    name = draw(st.sampled_from(["points", "shape", "chunks"]))
    if name == "points":
        key = draw(points(arr.shape))
        return lambda x: x.vindex[key]
    if name == "shape":
        shape = draw(shapes(arr.description.nav_shape, arr.description.sig_shape))
        options = {"merge_chunks": draw(st.booleans())}
        return lambda x: x.reshape(shape, **options)
    chunks = draw(new_chunks(arr.shape))
    options = {
        "balance": draw(st.booleans()),
        "block_size_limit": draw(st.sampled_from([None, 100, 300])),
        "method": draw(st.sampled_from([None, "tasks"])),
    }
    return lambda x: x.rechunk(chunks, **options)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:chunk size balancing")
@given(data=st.data())
def test_selections_equal_those_of_dask(path, data):
    nav_shape, sync_offset, roi = data.draw(selections())
    options = {"nav_shape": nav_shape, "sync_offset": sync_offset, "roi": roi, "missing": "fill"}
    pixels, _ = shown(FRAMES, nav_shape, sync_offset, roi)
    arr = opened(path, **options, chunks=data.draw(chunked(pixels.shape)))
    for _ in range(data.draw(st.integers(1, 3))):
        index = part_of(data.draw, arr) if data.draw(st.booleans()) else ...
        arr, pixels = arr[index], pixels[index]
        plain = da.from_array(pixels, chunks=arr.chunks)
        operation = data.draw(operations(arr))
        try:
            wanted = operation(plain)
        except (ValueError, NotImplementedError, IndexError) as error:
            with pytest.raises(type(error)):
                operation(arr)
            return
        arr, pixels = operation(arr), wanted.compute()
        assert (arr.chunks, arr.dtype) == (wanted.chunks, wanted.dtype)
        np.testing.assert_array_equal(arr.compute(), pixels)
        if not isinstance(arr, TiledArray):
            return


@pytest.mark.parametrize("chunks", [(12, 4, 1), (2, 1, 6)])
def test_points_of_signal_pixels_of_a_file_not_read_before(tmp_path, chunks):
    arr = dask_tiled.open_dataset(
        write_raw(tmp_path / "new.raw", FRAMES), "raw", dtype="u2", sig_shape=(4, 6), chunks=chunks
    )
    expected = np.moveaxis(FRAMES[:, [0, 1], [1, 5]], -1, 0)
    np.testing.assert_array_equal(arr.vindex[:, [0, 1], [1, 5]].compute(), expected)


MASK = np.arange(12).reshape(3, 4) % 3 == 0
CHOSEN = {
    "points": lambda x: x.vindex[[0, 2, -1], [3, 0, 0]],
    "points of a mask": lambda x: x.vindex[np.nonzero(MASK)],
    "points and a slice": lambda x: x.vindex[[0, 2], [3, 0], :, 1:5],
    "points on one axis": lambda x: x.vindex[:, [1, 0, 1]],
    "points and a number": lambda x: x.vindex[1, [1, 3]],
    "grid of points": lambda x: x.vindex[[[0, 2], [1, 1]], [[3, 0], [0, 2]]],
    "flat scan": lambda x: x.reshape(-1, *x.shape[2:]),
    "flat scan in numpy": lambda x: np.reshape(x, (12, 4, 6)),
    "flat scan, then a mask": lambda x: x.reshape(-1, 4, 6)[MASK.ravel()],
    "split scan": lambda x: x.reshape([3, 2, 2, 4, 6]),
    "slice in another shape": lambda x: x[1:, ::2].reshape((4, 1, 4, 6)),
    "pixels of a scan": lambda x: x[..., 1, 2].ravel(),
    "fewer chunks": lambda x: x.rechunk(-1),
    "other chunks": lambda x: x.rechunk({0: 1, -3: 4}),
}


@pytest.mark.parametrize("choose", CHOSEN.values(), ids=CHOSEN)
def test_only_selected_frames_are_read(path, loads, choose):
    arr = opened(path, io="counting")
    found, wanted = choose(arr), choose(da.from_array(SCAN, chunks=arr.chunks))
    assert type(found) is TiledArray
    assert found.chunks == wanted.chunks
    assert found.name != arr.name
    assert on_tiles(found.sum(axis=0))
    np.testing.assert_array_equal(found.compute(), wanted)
    assert loads.nbytes == found.nbytes


LEFT = {
    "points of frames": lambda x: x.vindex[[0, 2], [3, 0], [1, 1]],
    "no points": lambda x: x.vindex[[], []],
    "frames as vectors": lambda x: x.reshape(3, 4, 24),
    "all pixels": lambda x: x.ravel(),
    "same shape": lambda x: x.reshape(3, 4, -1, 6) + 0,
    "parts of frames": lambda x: x.rechunk({2: 2}),
}


@pytest.mark.parametrize("choose", LEFT.values(), ids=LEFT)
def test_other_selections_are_left_to_dask(path, choose):
    arr = opened(path)
    found, wanted = choose(arr), choose(da.from_array(SCAN, chunks=arr.chunks))
    assert type(found) is da.Array
    assert found.chunks == wanted.chunks
    np.testing.assert_array_equal(found.compute(), wanted)


def test_a_mask_of_a_scan_with_one_column(path):
    arr = dask_tiled.open_dataset(path, sig_shape=(4, 6), dtype="u2", nav_shape=(12, 1))
    mask = np.arange(12)[:, None] == 5
    np.testing.assert_array_equal(arr[mask].compute(), FRAMES[[5]])


def test_operations_that_rechunk_run_on_tiles(path):
    arr = opened(path)
    for make in (
        lambda x: da.coarsen(np.sum, x.rechunk((1, 3, 4, 6)), {0: 2, 1: 2}, trim_excess=True),
        lambda x: (x[1:] - x[:-1]).max(axis=(2, 3)),
        lambda x: x.rechunk((1, 4, 4, 6)).map_overlap(np.copy, depth={0: 1}, boundary="none"),
    ):
        np.testing.assert_array_equal(make(arr).compute(), make(da.from_array(SCAN)).compute())
    assert on_tiles((arr[1:] - arr[:-1]).max(axis=(2, 3)))


def test_stored_blocks_are_not_split(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file.create_dataset("d", data=SCAN, chunks=(2, 2, 4, 6), compression=1)
    arr = dask_tiled.open_dataset(tmp_path / "scan.h5", chunks=(2, 4, 4, 6))
    for chunks, kind in (((2, 2, 4, 6), TiledArray), ((3, 1, 4, 6), da.Array)):
        found = arr.rechunk(chunks)
        assert type(found) is kind
        np.testing.assert_array_equal(found.compute(), SCAN)
    for part, kind in ((arr, TiledArray), (arr.with_chunks((3, 2, 4, 6)), da.Array)):
        flat = part.reshape(12, 4, 6)
        assert type(flat) is kind
        np.testing.assert_array_equal(flat.compute(), FRAMES)
    assert type(arr[[0, 2]].rechunk(1)) is da.Array


@pytest.mark.thorough
def test_changed_and_persisted_arrays(path):
    changed, pixels = opened(path), SCAN.copy()
    changed[1], pixels[1] = 5, 5
    for arr, expected in ((changed, pixels), (opened(path).persist(), SCAN)):
        plain = da.from_array(expected)
        for choose in CHOSEN.values():
            np.testing.assert_array_equal(choose(arr).compute(), choose(plain).compute())


ERRORS = [
    (IndexError, lambda x: x.vindex[[0, 3], [0, 0]]),
    (IndexError, lambda x: x.vindex[[0, 1], [0, 1, 2]]),
    (IndexError, lambda x: x.vindex[None, [0]]),
    (IndexError, lambda x: x.vindex[MASK]),
    (ValueError, lambda x: x.reshape(5, 4, 6)),
    (ValueError, lambda x: x.reshape(-1, -1, 4, 6)),
    (ValueError, lambda x: x.rechunk((2, 2))),
    (IndexError, lambda x: x.rechunk({7: 1})),
    (NotImplementedError, lambda x: x.rechunk((2, 4, 4, 6), method="none")),
]


def test_errors_are_those_of_dask(path):
    for arr in (opened(path), da.from_array(SCAN)):
        for error, call in ERRORS:
            with pytest.raises(error):
                call(arr)


def test_plugins_see_only_returned_arrays(path):
    seen = []
    arr = opened(path)
    with dask.config.set(array_plugins=[seen.append]):
        made = [arr.vindex[[0, 1], [2, 1]], arr.reshape(12, 4, 6), arr.rechunk(-1), arr[[1, 0]]]
    assert [id(x) for x in seen] == [id(x) for x in made]


@pytest.mark.thorough
def test_plugins_survive_indexing_in_several_threads(path):
    arr, seen = opened(path), []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with dask.config.set(array_plugins=[seen.append]), ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: arr[[0, 2]], range(400)))
            assert seen.append in dask.config.get("array_plugins")
    finally:
        sys.setswitchinterval(interval)


def test_plugins_see_arrays_of_other_threads(path):
    arr, seen = opened(path), []
    with dask.config.set(array_plugins=[seen.append]), ThreadPoolExecutor(1) as pool:
        with choosing._unseen():
            made = pool.submit(lambda: arr[1:])
            done, _ = wait([made], timeout=0.05)
        found = made.result()
        assert any(one is found for one in seen)
        assert not done
        assert seen.append in dask.config.get("array_plugins")


def test_one_frame_of_many_is_rechunked(path):
    frame = opened(path, nav_shape=(12,), chunks=(5, 4, 6))[7].rechunk((4, 3))
    assert frame.chunks == ((4,), (3, 3))
    np.testing.assert_array_equal(frame.compute(), FRAMES[7])


def test_a_scan_of_one_frame_is_rechunked(tmp_path):
    path = write_raw(tmp_path / "frame.raw", FRAMES[0])
    frame = opened(path, nav_shape=(), chunks=(4, 6)).reshape(1, 4, 6).rechunk((1, 2, 6))
    assert frame.chunks == ((1,), (2, 2), (6,))
    np.testing.assert_array_equal(frame.compute(), FRAMES[:1])


def test_reductions_of_many_chunks_read_several_in_one_task(path, monkeypatch):
    """Remaining axes keep their chunks; chunks of reduced axes are no tasks."""
    monkeypatch.setattr("dask_tiled.plans.plan.MOST_REDUCED_CHUNKS", 4)
    arr = opened(path, chunks=(1, 1, 4, 6))
    for axes, chunks in [((0, 1), ((4,), (6,))), (0, ((1,) * 4, (4,), (6,))), (None, ())]:
        total = (arr * 2).sum(axis=axes)
        assert total.chunks == chunks
        graph = dask.optimize(total)[0].__dask_graph__()
        assert len(graph) <= 10
        np.testing.assert_array_equal(total.compute(), (SCAN * 2).sum(axis=axes))
    both = dask.compute(arr.sum(), arr.sum(axis=(2, 3)), arr.max(axis=0))
    for found, expected in zip(
        both, (SCAN.sum(), SCAN.sum(axis=(2, 3)), SCAN.max(axis=0)), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


def computed_by(monkeypatch, result):
    """Return a computed result, and the number of chunks that were started for it."""
    made, make = [], Recipes.make
    monkeypatch.setattr(Recipes, "make", lambda *args: made.append(args) or make(*args))
    return result.compute(), len(made)


def test_unseen_chunks_are_merged(path, monkeypatch):
    """Chunks of a computed result are unseen; further work gets the promised chunks."""
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_TASK_BYTES", SCAN[:1].nbytes)
    arr = opened(path, chunks=(1, 1, 2, 6))
    tasks = {"sum": 3, "kept": 3, "mixed": 3, "whole": 3, "shown": 12}
    for name, total, expected in [
        ("sum", arr.sum(axis=(2, 3)), SCAN.sum(axis=(2, 3))),
        ("kept", arr.mean(axis=2, keepdims=True), SCAN.mean(axis=2, keepdims=True)),
        ("mixed", arr.max(axis=(0, 3)), SCAN.max(axis=(0, 3))),
        ("whole", arr.sum(), SCAN.sum()),
        ("shown", np.negative(arr.sum(axis=(2, 3))), -SCAN.sum(axis=(2, 3))),
    ]:
        with monkeypatch.context() as patch:
            found, number = computed_by(patch, total)
        np.testing.assert_array_equal(found, expected)
        assert number == tasks[name]
    total = arr.sum(axis=(2, 3))
    kept, shown = dask.persist(total)[0], dask.compute(total, total + 1)
    assert len(kept.dask) == 12
    np.testing.assert_array_equal(shown, [SCAN.sum(axis=(2, 3)), SCAN.sum(axis=(2, 3)) + 1])


ACROSS = {
    "sum": (lambda x: x.sum(axis=0), 2),
    "mean": (lambda x: x.mean(axis=0, keepdims=True), 2),
    "maximum": (lambda x: x.max(axis=0), 2),
    "positions": (lambda x: x.argmin(axis=0), 2),
    "moved": (lambda x: x.transpose(2, 1, 3, 0).sum(axis=3), 2),
    "with an operand": (lambda x: (x * SCAN[0, 0]).sum(axis=0), 2),
    "by the operand": (lambda x: (x * SCAN[0]).sum(axis=0), 3),
    "of frames": (lambda x: x.reshape(12, 4, 6).sum(axis=0), 2),
    "of frames in one row": (lambda x: x[:, 0].sum(axis=0), 2),
    "of split axes": (lambda x: (x + 1).reshape(3, 2, 2, 4, 6).sum(axis=(0, 2)), 3),
    "of rows": (lambda x: x.sum(axis=(0, 2)), 2),
    "flipped": (lambda x: np.flip(x + 1, 1).sum(axis=0), 2),
    "flipped frames": (lambda x: np.flip(x + 1, (1, 2)).argmax(axis=0), 3),
    "two": (lambda x: (x.sum(axis=0), x.max(axis=0)), 2),
    "two that differ": (lambda x: (x.sum(axis=0), x.sum(axis=1)), 3),
    "shown": (lambda x: np.negative(x.sum(axis=0)), 3),
    "of floats": (lambda x: (x * 2.5).sum(axis=0), 3),  # rounding must not depend on other results
    "greatest of floats": (lambda x: (x * 2.5).max(axis=0), 2),
}
"""Reductions of three chunks, and the number of chunks that are started for each."""


@pytest.mark.parametrize("least", [1, 10**6], ids=["in place", "concatenated"])
@pytest.mark.parametrize("name", ACROSS)
def test_chunks_with_few_pixels_per_result_are_cut_across(path, monkeypatch, name, least):
    """Otherwise the results of chunks would be as large as the pixels."""
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_RUN_BYTES", 1)
    monkeypatch.setattr("dask_tiled.plans.plan.ENOUGH_CHUNKS", 2)
    monkeypatch.setattr("dask_tiled.graphs.results.LEAST_RESULT_PIXELS", least)
    function, number = ACROSS[name]
    arr, made, make = opened(path, chunks=(1, 4, 4, 6)), [], Recipes.make
    graphs, rewritten = [], rewriting.rewritten
    monkeypatch.setattr(Recipes, "make", lambda *args: made.append(args) or make(*args))
    monkeypatch.setattr(
        rewriting, "rewritten", lambda *args: graphs.append(rewritten(*args)) or graphs[-1]
    )
    found, wanted = dask.compute(function(arr)), function(SCAN)
    np.testing.assert_equal(*found, wanted)
    assert len(made) == number
    graphs[0].validate()


@pytest.mark.parametrize(("nbytes", "number"), [(48, 12), (96, 6), (10**3, 3)])
def test_chunks_are_only_cut_where_sums_are_rounded(path, monkeypatch, nbytes, number):
    """Each chunk of 192 bytes has a sum of its own, as in company."""
    monkeypatch.setattr("dask_tiled.plans.plan.LEAST_RUN_BYTES", 1)
    monkeypatch.setattr("dask_tiled.plans.plan.CUT_PART_BYTES", nbytes)
    arr = opened(path, chunks=(1, 4, 4, 6))
    with monkeypatch.context() as patch:
        found, count = computed_by(patch, (arr / 3).sum(axis=0))
    beside, _ = dask.compute((arr / 3).sum(axis=0), arr.sum(axis=(2, 3)))
    assert count == number
    assert found.tobytes() == beside.tobytes()


@pytest.mark.parametrize(
    "name", ["LEAST_RESULT_PIXELS", "LEAST_RUN_BYTES", "ENOUGH_CHUNKS", "MOST_CUT_FILES"]
)
def test_chunks_outside_the_limits_are_not_cut_across(path, monkeypatch, name):
    limits = {
        "LEAST_RESULT_PIXELS": 4,
        "LEAST_RUN_BYTES": 1,
        "ENOUGH_CHUNKS": 2,
        "MOST_CUT_FILES": 1,
    }
    other = {
        "LEAST_RESULT_PIXELS": 1,
        "LEAST_RUN_BYTES": SCAN.nbytes,
        "ENOUGH_CHUNKS": 4,
        "MOST_CUT_FILES": 0,
    }
    total = opened(path, chunks=(1, 4, 4, 6)).sum(axis=0)
    for key, value in limits.items():
        monkeypatch.setattr(f"dask_tiled.plans.plan.{key}", value)
    for value, number in ((limits[name], 2), (other[name], 3)):
        monkeypatch.setattr(f"dask_tiled.plans.plan.{name}", value)
        with monkeypatch.context() as patch:
            found, count = computed_by(patch, total)
        np.testing.assert_array_equal(found, SCAN.sum(axis=0))
        assert count == number


def test_few_pixels_are_one_task(path, monkeypatch):
    monkeypatch.setattr("dask_tiled.graphs.results.FEW_PIXELS", 12)
    arr = opened(path, chunks=(1, 1, 4, 6))[..., 1, 2]
    read = []
    monkeypatch.setattr(
        "dask_tiled.graphs.results.whole", lambda *args: read.append(args) or whole(*args)
    )
    np.testing.assert_array_equal(*dask.compute(arr), SCAN[..., 1, 2])
    assert len(read) == 1


@pytest.mark.parametrize("scheduler", ["threads", "synchronous", None])
def test_one_frame_needs_no_graph(path, monkeypatch, scheduler):
    monkeypatch.setattr(TiledArray, "dask", property(lambda _: pytest.fail("a graph is made")))
    with dask.config.set(scheduler=scheduler):
        found = opened(path)[1, 2].compute()
    np.testing.assert_array_equal(found, SCAN[1, 2])
    assert found.flags.owndata
    assert found.flags.writeable


def test_one_frame_is_seen_by_callbacks(path):
    keys = []
    with Callback(posttask=lambda key, *_: keys.append(key)):
        np.testing.assert_array_equal(opened(path)[1, 2].compute(), SCAN[1, 2])
    assert len(keys) == 1


@pytest.mark.parametrize("name", ["scheduler", "array_optimize"])
def test_one_frame_obeys_the_settings_of_dask(path, name):
    calls = []

    def call(graph, keys, **_):
        calls.append(keys)
        return dask.get(graph, keys) if name == "scheduler" else graph

    with dask.config.set({name: call}):
        np.testing.assert_array_equal(opened(path)[1, 2].compute(), SCAN[1, 2])
    assert len(calls) == 1
