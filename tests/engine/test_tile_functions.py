"""map_tiles and reduce_tiles call functions of users on tiles."""

from functools import partial

import dask
import dask.array as da
import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import part_of

import dask_tiled
from dask_tiled import DatasetError, TilingError, TilingRequest, map_tiles, reduce_tiles
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_npy

pytestmark = pytest.mark.usefixtures("synchronous")

NAV, SIG = (4, 5), (32, 64)


@pytest.fixture(scope="module")
def frames():
    return counting_frames(NAV + SIG, "u2", bits=12)


@pytest.fixture(scope="module")
def path(tmp_path_factory, frames):
    return write_mib(tmp_path_factory.mktemp("scan") / "scan.mib", frames, kind="R64")


def opened(path, **options):
    return dask_tiled.open_dataset(path, chunks=(3, 5, 32, 64), **options)


def plus_one(tile, _info):
    return tile + 1


def sums(tile, _info):
    return tile.sum(axis=(1, 2), dtype="f8")


def rows(tile, _info):
    return tile.max(axis=2)


@numba.njit
def numba_sums(tile, info):
    found = np.zeros(tile.shape[0], np.float64)
    for i in range(tile.shape[0]):
        found[i] = tile[i].sum() + 0 * info[0][0]
    return found


def look(arr, **options):
    """Return the tiles that a function gets, and the result of returning them unchanged."""
    seen = []

    def keep(tile, info):
        assert not tile.flags.writeable
        assert tile.shape == info.shape
        seen.append((tile.copy(), info))
        return tile

    found = map_tiles(keep, arr, dtype=arr.dtype, sig_shape=arr.shape[-2:], **options)
    return seen, found.compute()


ARRAYS = {
    "opened": lambda path, _: opened(path),
    "parts of frames": lambda path, _: dask_tiled.open_dataset(path, chunks=(2, 5, 20, 40)),
    "plain": lambda _, frames: da.from_array(frames, chunks=(2, 5, 32, 64)),
    "uneven": lambda _, frames: da.from_array(frames, chunks=((1, 3), (2, 1, 2), (31, 1), 64)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ARRAYS)
def test_results_of_all_shapes(path, frames, name):
    arr = ARRAYS[name](path, frames)
    for func, expected in [
        (plus_one, frames + 1),
        (sums, frames.sum(axis=(2, 3), dtype="f8")),
        (rows, frames.max(axis=3)),
        (numba_sums, frames.sum(axis=(2, 3), dtype="f8")),
        (lambda tile, _: tile[:, :2, :3].astype("c8"), frames[..., :2, :3].astype("c8")),
        (lambda tile, _: np.zeros((len(tile), 2, 0)), np.zeros((*NAV, 2, 0))),
        (lambda tile, _: [[1, 2]] * len(tile), np.broadcast_to([1, 2], (*NAV, 2))),
    ]:
        found = map_tiles(func, arr)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.chunks[:2] == arr.chunks[:2]
        computed = found.compute()
        assert computed.dtype == expected.dtype
        np.testing.assert_array_equal(computed, expected)
        np.testing.assert_array_equal(found[1, 2:].compute(), expected[1, 2:])
    np.testing.assert_array_equal(map_tiles(plus_one, arr, dtype="f4").compute(), frames + 1.0)
    sized = map_tiles(rows, arr, sig_shape=32, dtype="u4")
    np.testing.assert_array_equal(sized.compute(), frames.max(axis=3))


INDICES = [np.s_[2], np.s_[1:, ::2, 5:20:3, 3:]]


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("by", ["tile", "frame", "chunk", "pixel"])
def test_tile_info_locates_tiles(path, frames, name, index, by):
    arr, cut = ARRAYS[name](path, frames)[index], frames[index]
    seen, found = look(arr, tiling=TilingRequest(by, nbytes=5000))
    np.testing.assert_array_equal(found, cut)
    flat = cut.reshape(-1, *cut.shape[-2:])
    count = np.zeros(flat.shape, int)
    for tile, info in seen:
        assert info.frames.dtype == "i8"
        assert info.origin[0] == info.frames[0]
        place = tuple(slice(a, a + n) for a, n in zip(info.origin[1:], info.shape[1:], strict=True))
        np.testing.assert_array_equal(tile, flat[(info.frames, *place)])
        count[(info.frames, *place)] += 1
        if by in ("frame", "chunk"):
            assert tile.shape[1:] == cut.shape[-2:]
    assert (count == 1).all()
    if by == "chunk":
        assert len(seen) == np.prod(arr.numblocks[:-2], dtype=int)


def test_tiles_of_selections(path, frames, tmp_path):
    flat = frames.reshape(-1, *SIG)
    series = write_mib_series(tmp_path / "series", frames, frames_per_file=6, digits=1)
    order = [19, 4, 4, 0, 12]
    late = np.concatenate([np.full((2, *SIG), 3, "u2"), flat])[order]
    for file in (path, series[0]):
        options = {"roi": order, "sync_offset": -2, "fill_value": 3, "nav_shape": NAV}
        arr = dask_tiled.open_dataset(file, chunks=(3, 32, 64), **options)
        seen, found = look(arr)
        np.testing.assert_array_equal(found, late)
        assert sorted(np.concatenate([info.frames for _, info in seen]).tolist()) == [0, 1, 2, 3, 4]
        np.testing.assert_array_equal(map_tiles(sums, arr).compute(), late.sum(axis=(1, 2)))


def test_requests(path, frames):
    for arr in (opened(path), da.from_array(frames, chunks=(3, 5, 32, 64))):
        seen, _ = look(arr, tiling=TilingRequest("frame", depth=4))
        assert {tile.shape[1:] for tile, _ in seen} == {SIG}
        assert max(len(tile) for tile, _ in seen) in (3, 4)
        for depth in (1, 2):
            seen, _ = look(arr, tiling=TilingRequest("tile", depth=depth))
            assert max(len(tile) for tile, _ in seen) == depth
        seen, _ = look(arr, tiling=TilingRequest("frame", nbytes=3 * 32 * 64 * 2))
        assert max(tile.nbytes for tile, _ in seen) <= 3 * 32 * 64 * 2
        seen, _ = look(arr, tiling=TilingRequest("chunk"))
        assert sorted(tile.shape for tile, _ in seen) == [(5, *SIG), (15, *SIG)]
    seen, _ = look(opened(path), tiling=TilingRequest("tile", nbytes=1024))  # parts of frames
    assert max(tile.nbytes for tile, _ in seen) <= 1024


def test_dtype_and_sig_shape_replace_the_trial_call(path):
    def fails(tile, _info):
        if not tile.any():
            raise ZeroDivisionError("nothing there")
        return tile / tile.max()

    arr = opened(path)
    with pytest.raises(TilingError, match="nothing there") as caught:
        map_tiles(fails, arr)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "dtype" in str(caught.value.hint)
    found = map_tiles(fails, arr, dtype="f8", sig_shape=SIG, tiling=TilingRequest("frame", depth=1))
    assert found.max().compute() == 1


def test_errors_of_functions_pass_through(path, frames):
    class MyError(Exception):
        pass

    def fails(tile, _info):
        if tile.any():
            raise MyError("mine")
        return tile

    for arr in (opened(path), da.from_array(frames)):
        with pytest.raises(MyError, match="mine"):
            map_tiles(fails, arr).compute()
        with pytest.raises(MyError, match="mine"):
            reduce_tiles(
                arr, init=0, step=lambda _, tile, info: fails(tile, info), combine=np.add
            ).compute()


def writes(tile, _info):
    tile[:] = 0
    return tile


def test_tiles_cannot_be_written_to(path, frames):
    for arr in (opened(path), da.from_array(frames)):
        with pytest.raises(ValueError, match="read-only"):
            map_tiles(writes, arr, dtype="u2", sig_shape=SIG).compute()


@pytest.mark.parametrize(
    "func",
    [
        lambda tile, _: tile[:, :5] if tile.any() else tile,
        lambda tile, _: None if tile.any() else tile,
        lambda tile, _: tile[:1, 0] if tile.any() else tile[:, 0],
        lambda tile, _: np.zeros((3, len(tile))) if tile.any() else np.zeros((len(tile), 3)),
    ],
    ids=["crop", "nothing", "fewer frames", "swapped"],
)
def test_unexpected_shapes_raise(path, frames, func):
    for arr in (opened(path), da.from_array(frames)):
        with pytest.raises(TilingError, match="shape"):
            map_tiles(func, arr, tiling=TilingRequest("chunk")).compute()


@pytest.mark.parametrize(
    "func",
    [lambda *_: None, lambda *_: 3, lambda t, _: t.sum(), lambda _t, _info, _more: 0],
    ids=["nothing", "number", "sum", "three arguments"],
)
def test_functions_without_a_result_per_frame_raise(path, func):
    with pytest.raises(TilingError):
        map_tiles(func, opened(path))


def optional_info(tile, info=None):
    return tile + info.frames[:, None, None]


@numba.njit
def numba_half(tile):
    return tile // 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (np.sqrt, np.sqrt),
        (np.negative, np.negative),
        (lambda tile: tile + 1, lambda frames: frames + 1),
        (lambda tile, by=3: tile // by, lambda frames: frames // 3),
        (partial(np.add, 2), lambda frames: frames + 2),
        (numba_half, lambda frames: frames // 2),
        (optional_info, lambda frames: frames + np.arange(20).reshape(*NAV, 1, 1)),
        (lambda *values: values[0], lambda frames: frames),
    ],
    ids=["sqrt", "negative", "one", "optional", "partial ufunc", "numba", "info=None", "star"],
)
def test_functions_of_the_tile_alone(path, frames, func, expected):
    for arr in (opened(path), da.from_array(frames, chunks=(3, 5, 32, 64))):
        found = map_tiles(func, arr).compute()
        np.testing.assert_array_equal(found, expected(frames))


@pytest.mark.parametrize("with_default", [False, True])
def test_steps_of_the_state_and_the_tile(path, frames, with_default):
    def step(state, tile):
        state += tile.sum(axis=0)

    def scaled(state, tile, factor=1):
        return state + factor * tile.sum(axis=0)

    function = scaled if with_default else step
    found = reduce_tiles(opened(path), init=np.zeros(SIG), step=function, combine=np.add)
    np.testing.assert_array_equal(found.compute(), frames.sum(axis=(0, 1)))


def test_wrong_arguments_raise(path, frames):
    arr = opened(path)
    for wrong in (frames.tolist(), None, "scan.mib", [1, 2]):
        with pytest.raises(TilingError, match="not an array"):
            map_tiles(plus_one, wrong)
        with pytest.raises(TilingError, match="not an array"):
            reduce_tiles(wrong, init=0, step=plus_one, combine=np.add)
    for tiling in ("frames", 3, [TilingRequest()]):
        with pytest.raises(TilingError, match="tiling"):
            map_tiles(plus_one, arr, tiling=tiling)
        with pytest.raises(TilingError, match="tiling"):
            reduce_tiles(arr, init=0, step=plus_one, combine=np.add, tiling=tiling)
    for sig_shape in ((-1,), (2.5,), "ab", (True,), -3):
        with pytest.raises(DatasetError, match="sig_shape"):
            map_tiles(plus_one, arr, sig_shape=sig_shape)
    for sig_ndim in (-1, 5, 1.0, True, "2"):
        with pytest.raises(TilingError, match="signal axes"):
            map_tiles(plus_one, arr, sig_ndim=sig_ndim)
    unknown = da.from_array(frames.reshape(-1, *SIG), chunks=(3, 32, 64))
    unknown = unknown[unknown.max(axis=(1, 2)) > 0]
    for function in (
        lambda: map_tiles(plus_one, unknown),
        lambda: reduce_tiles(unknown, init=0, step=plus_one, combine=np.add),
        lambda: map_tiles(plus_one, unknown.T),
    ):
        with pytest.raises(TilingError, match="compute_chunk_sizes"):
            function()
    known = unknown.compute_chunk_sizes()
    np.testing.assert_array_equal(map_tiles(plus_one, known).compute(), known.compute() + 1)


@pytest.mark.parametrize("sig_ndim", [0, 1, 3, 4, np.int64(2)])
def test_other_numbers_of_signal_axes(path, frames, sig_ndim):
    for arr in (opened(path), da.from_array(frames, chunks=(2, 3, 20, 64))):
        found = map_tiles(plus_one, arr, sig_ndim=sig_ndim).compute()
        np.testing.assert_array_equal(found, frames + 1)


def test_empty_arrays(path, frames):
    for arr in (opened(path), da.from_array(frames)):
        for index in (np.s_[:0], np.s_[:, :0], np.s_[..., :0], np.s_[:, :, :0]):
            cut = frames[index]
            assert map_tiles(plus_one, arr[index]).compute().shape == cut.shape
            np.testing.assert_array_equal(
                map_tiles(sums, arr[index]).compute(), cut.sum(axis=(2, 3))
            )
        state = reduce_tiles(arr[:0], init=7, step=lambda s, *_: s + 1, combine=np.add)
        assert state.compute() == 7


# reduce_tiles


def count_in_place(state, tile, _info):
    state += np.bincount(tile.ravel() >> 6, minlength=64)


def count(state, tile, _info):
    return state + np.bincount(tile.ravel() >> 6, minlength=64)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("step", [count, count_in_place])
def test_histograms(path, frames, name, step):
    arr = ARRAYS[name](path, frames)
    expected = np.bincount(frames.ravel() >> 6, minlength=64)
    start = np.zeros(64, "i8")
    for init in (start, lambda: np.zeros(64, "i8"), [0] * 64):
        found = reduce_tiles(arr, init=init, step=step, combine=np.add)
        assert (found.shape, found.dtype, found.npartitions) == ((64,), "i8", 1)
        np.testing.assert_array_equal(found.compute(), expected)
        np.testing.assert_array_equal(found.compute(), expected)  # no state of the first remains
    assert not start.any()
    many = arr.with_chunks(((1,) * 4, (1,) * 5, (32,), (64,))) if name == "opened" else arr
    found = reduce_tiles(many, init=start, step=step, combine=np.add)
    np.testing.assert_array_equal(found.compute(scheduler="threads"), expected)


def test_every_frame_counts_once(path):
    def step(state, _tile, info):
        state[info.frames] += 1

    arr, wish = opened(path)[1:, ::2], TilingRequest("frame", depth=1)
    found = reduce_tiles(arr, init=np.zeros(9, int), step=step, combine=np.add, tiling=wish)
    np.testing.assert_array_equal(found.compute(), np.ones(9))
    greatest = reduce_tiles(
        arr, init=-1.0, step=lambda x, tile, _: max(float(x), tile.max()), combine=max, tiling=wish
    )
    assert (greatest.shape, greatest.dtype) == ((), "f8")
    assert greatest.compute() == arr.max().compute()


@pytest.mark.parametrize(
    ("step", "combine"),
    [
        (lambda *_: np.zeros(3), np.add),
        (lambda *_: 0.0, np.add),
        (lambda state, *_: state, lambda *_: None),
        (lambda state, *_: state, lambda *_: np.zeros(3)),
    ],
    ids=["fewer", "number", "nothing combined", "fewer combined"],
)
def test_states_of_another_shape_raise(path, step, combine):
    with pytest.raises(TilingError, match="shape"):
        reduce_tiles(opened(path), init=np.zeros(4), step=step, combine=combine).compute()


@pytest.mark.thorough
@settings(max_examples=20)
@given(st.data())
def test_random_tiling(path, frames, data):
    index = part_of(data.draw, frames)
    cut = frames[index]
    chunks = tuple(data.draw(st.integers((size + 1) // 2, size)) for size in frames.shape)
    wish = TilingRequest(
        data.draw(st.sampled_from(["tile", "frame", "chunk", "pixel"])),
        depth=data.draw(st.none() | st.integers(1, 9)),
        nbytes=data.draw(st.none() | st.integers(1, 20_000)),
    )
    io = data.draw(st.sampled_from(["auto", "buffered", "direct"]))
    arr = dask_tiled.open_dataset(path, chunks=chunks, io=io)[index]
    results = [
        map_tiles(plus_one, arr, tiling=wish),
        map_tiles(sums, arr, tiling=wish),
        reduce_tiles(arr, init=np.zeros(64, int), step=count, combine=np.add, tiling=wish),
    ]
    expected = [cut + 1, cut.sum(axis=(2, 3)), np.bincount(cut.ravel() >> 6, minlength=64)]
    for found, value in zip(dask.compute(*results), expected, strict=True):
        np.testing.assert_array_equal(found, value)


def brighter(state, other):
    """Return the brighter of two frames itself, not a copy."""
    return other if other.sum() > state.sum() else state


@pytest.mark.parametrize("io", ["mmap", "buffered"])
@pytest.mark.parametrize("depth", [1, 12])
def test_states_that_are_views_of_tiles(tmp_path, io, depth):
    """The memory of tiles is reused, so such a state is copied."""
    some = np.array(sorted(counting_frames((24, 6, 8), "u2"), key=np.sum, reverse=True))
    arr = dask_tiled.open_dataset(
        write_npy(tmp_path / "some.npy", some), chunks=(depth * 2, 6, 8), io=io
    )
    found = reduce_tiles(
        arr,
        init=np.zeros((6, 8), "u2"),
        step=lambda state, tile, _info: brighter(state, max(tile, key=np.sum)),
        combine=brighter,
        tiling=TilingRequest("frame", depth=depth),
    ).compute()
    np.testing.assert_array_equal(found, some[0])
