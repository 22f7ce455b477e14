"""Properties of the negotiation: what holds for every file, every budget and every wish."""

import itertools
import math

import dask
import numpy as np
import pytest
from dask.array.core import normalize_chunks
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import TilingError, TilingRequest, negotiate, scheme_of
from dask_tiled.decoders import Decoder, plain
from dask_tiled.description import Description
from dask_tiled.files import File
from dask_tiled.records import Record, record_layout

MIB = 1 << 20
unhurried = settings(deadline=None, max_examples=200)


def describe(nav, sig, dtype="u2", per_file=None, pixels=1):
    """Describe files that are not there: the negotiation looks at numbers only."""
    n_frames = math.prod(nav)
    whole, rest = divmod(n_frames, per_file or n_frames)
    counts = [per_file or n_frames] * whole + [rest] * (rest > 0)
    one = plain(np.dtype(dtype))
    decoder = Decoder(one.kernel, one.dtype, one.nbytes * pixels, pixels)
    record = Record(sig, decoder)
    files = [File(f"/scan{i}.raw", n * record.nbytes, 0, i) for i, n in enumerate(counts)]
    desc = Description.of("raw", record_layout(files, counts, record), {})
    return desc.with_nav_shape(nav)


@pytest.fixture(autouse=True, scope="module")
def usual_machine():
    """Answers about tiles are those of one machine, wherever the tests run."""
    with dask.config.set({"dask-tiled.tile-bytes": MIB}):
        yield


requests = st.builds(
    TilingRequest,
    by=st.sampled_from(["tile", "frame", "chunk", "pixel"]),
    depth=st.none() | st.integers(1, 100),
    nbytes=st.none() | st.integers(1, 1 << 22),
)


@st.composite
def cases(draw, n_budgets=1):
    """Draw what `describe` takes, wishes, and budgets that matter for that many frames."""
    nav = tuple(draw(st.lists(st.integers(1, 60), max_size=3)))
    sig = tuple(draw(st.lists(st.integers(1, 200), min_size=1, max_size=3)))
    dtype = draw(st.sampled_from(["u1", ">u2", "<f4", "c16"]))
    n_frames = math.prod(nav)
    shortest = max(1, n_frames // 1000)
    divisors = [n for n in range(shortest, n_frames + 1) if n_frames % n == 0]
    per_file = draw(st.sampled_from(divisors) | st.integers(shortest, n_frames))
    file = (nav, sig, dtype, per_file, draw(st.sampled_from([1, 1, 4, 64])))
    frame = math.prod(sig) * np.dtype(dtype).itemsize
    frames = st.integers(1, n_frames) | st.integers(1, per_file)
    budget = frames.map(lambda n: n * frame) | st.integers(1, 2 * frame) | st.integers(1, 1 << 26)
    return file, draw(st.lists(requests, max_size=3)), *(draw(budget) for _ in range(n_budgets))


def sizes_of(scheme):
    return tuple(max(axis) for axis in scheme.chunks)


def budget_of(wishes, chunk_bytes):
    return min(
        [chunk_bytes, *(w.nbytes for w in wishes if w.by in {"chunk", "pixel"} and w.nbytes)]
    )


def kinds(wishes):
    return {w.by for w in wishes} or {"tile"}


@unhurried
@given(cases())
def test_chunks_cover_the_array_exactly(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    assert tuple(map(sum, scheme.chunks)) == desc.shape
    assert all(size > 0 for axis in scheme.chunks for size in axis)


@unhurried
@given(cases())
def test_chunks_are_bounded(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    sizes = sizes_of(scheme)
    within = math.prod(sizes) * desc.dtype.itemsize <= budget_of(wishes, chunk_bytes)
    assert within or math.prod(sizes[: desc.nav_ndim]) == 1


@unhurried
@given(cases())
def test_frames_are_cut_for_pixels_only(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    sizes = sizes_of(negotiate(desc, wishes, chunk_bytes=chunk_bytes))
    if kinds(wishes) != {"pixel"}:
        assert sizes[desc.nav_ndim :] == desc.sig_shape


@unhurried
@given(cases())
@example((((3,), (1,), "u1", 2, 1), [], 3))
def test_scan_rows_are_whole_whenever_they_fit(case):
    """And so are planes of rows: an axis is cut only if those after it are whole."""
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    sizes = sizes_of(negotiate(desc, wishes, chunk_bytes=chunk_bytes))
    frame = math.prod(sizes[desc.nav_ndim :]) * desc.dtype.itemsize
    for k in range(desc.nav_ndim):
        inner = desc.nav_shape[k:]
        if math.prod(inner) * frame <= budget_of(wishes, chunk_bytes):
            assert sizes[k : desc.nav_ndim] == inner
        if sizes[k] > 1:
            assert sizes[k + 1 : desc.nav_ndim] == desc.nav_shape[k + 1 :]


@unhurried
@given(cases())
@example((((9,), (1,), "u1", 4, 1), [], 4))
@example((((20, 9), (1,), "u1", 20, 1), [], 4))
def test_no_chunk_is_a_stub(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    *axes, last = negotiate(desc, wishes, chunk_bytes=chunk_bytes).chunks
    assert all(2 * min(axis) >= max(axis) for axis in axes)
    words = [-(-size // desc.layout.unit_shape()[-1]) for size in last]
    assert 2 * min(words) >= max(words)
    assert all(len(set(axis[:-1])) <= 1 for axis in (*axes, last))


@unhurried
@given(cases(n_budgets=2))
def test_a_larger_budget_gives_no_smaller_chunks(case):
    file, wishes, *budgets = case
    desc = describe(*file)
    small, large = (
        math.prod(sizes_of(negotiate(desc, wishes, chunk_bytes=n))) for n in sorted(budgets)
    )
    assert small <= large


@unhurried
@given(cases())
def test_the_same_question_gets_the_same_answer(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    assert negotiate(desc, tuple(wishes), chunk_bytes=chunk_bytes) == scheme
    for order in itertools.permutations(wishes):
        again = negotiate(desc, order, chunk_bytes=chunk_bytes)
        assert (again.chunks, again.tile_shape) == (scheme.chunks, scheme.tile_shape)


@unhurried
@given(cases())
def test_tiles(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    sizes = sizes_of(scheme)
    frames, sig = math.prod(sizes[: desc.nav_ndim]), sizes[desc.nav_ndim :]
    depth, *tile_sig = scheme.tile_shape
    assert 1 <= depth <= frames
    assert len(tile_sig) == len(sig)
    assert all(1 <= n <= m for n, m in zip(tile_sig, sig, strict=True))

    nbytes = min([w.nbytes for w in wishes if w.nbytes and w.by != "pixel"], default=MIB)
    tile_bytes = math.prod(scheme.tile_shape) * desc.dtype.itemsize
    row_fits = sig[-1] * desc.dtype.itemsize <= nbytes
    if "chunk" in kinds(wishes):
        assert scheme.tile_shape == (frames, *sig)
        return
    if "frame" in kinds(wishes):
        assert tuple(tile_sig) == sig
        assert tile_bytes <= nbytes or depth == 1
    elif row_fits:
        assert tile_bytes <= nbytes
    else:
        assert math.prod(tile_sig[:-1]) * depth == 1
    if row_fits:
        assert tile_sig[-1] == sig[-1]
    assert all(depth <= w.depth for w in wishes if w.depth)


@unhurried
@given(cases())
def test_tiles_of_a_chunk_are_even(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    sizes = sizes_of(scheme)
    chunk = (math.prod(sizes[: desc.nav_ndim]), *sizes[desc.nav_ndim :])
    units = (1, *desc.layout.unit_shape())
    for n, size, unit in zip(chunk, scheme.tile_shape, units, strict=True):
        whole, tile = -(-n // unit), -(-size // unit)
        assert 2 * ((whole - 1) % tile + 1) >= tile


@unhurried
@given(cases())
def test_every_number_is_explained(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    text = scheme.explain()
    sizes = sizes_of(scheme)
    assert str(scheme.tile_shape) in text
    assert str(sizes[desc.nav_ndim :]) in text
    assert not desc.nav_shape or str(sizes[: desc.nav_ndim]) in text
    assert len(text.splitlines()) == len(scheme.reasons)
    assert all(name and reason and reason in text for name, reason in scheme.reasons)


def borders(nav, scheme):
    """First frames of the chunks, counted in C order."""
    axes = [np.cumsum((0, *axis[:-1])) for axis in scheme.chunks[: len(nav)]]
    sizes = [math.prod(nav[k + 1 :]) for k in range(len(nav))]
    firsts = np.zeros((), int)
    for axis, size in zip(axes, sizes, strict=True):
        firsts = np.add.outer(firsts, axis * size)
    return set(firsts.ravel().tolist())


@unhurried
@given(cases())
@example((((2, 10), (1,), "u1", 5, 1), [], 4))
@example((((3, 10), (1,), "u1", 4, 1), [], 5))
@example((((20, 9), (1,), "u1", 20, 1), [], 4))
def test_what_is_said_about_files_is_true(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    text = dict(scheme.reasons).get("navigation", "")
    start = desc.layout.columns()[3]
    files = set(start[:, 0].tolist())
    if "in whole files" in text:
        assert borders(desc.nav_shape, scheme) <= files
    if "none across files" in text:
        # A chunk is a stretch of frames here: the first axis that is cut is the only one.
        ends = sorted({*borders(desc.nav_shape, scheme), math.prod(desc.nav_shape)})
        for first, stop in itertools.pairwise(ends):
            assert not files & set(range(first + 1, stop))
    if "scan rows stay whole" in text:
        assert all(first % desc.nav_shape[-1] == 0 for first in borders(desc.nav_shape, scheme))


@unhurried
@given(st.data())
def test_chunks_are_whole_files_where_they_divide_the_series(data):
    """Of frames, and of scan rows; the budget is a number of files and a part of one more."""
    row = data.draw(st.integers(1, 6))
    per_file = row * data.draw(st.integers(1, 40))
    per_chunk = per_file * data.draw(st.integers(1, 6))
    n_frames = per_chunk * data.draw(st.integers(2, 9))
    frames = per_chunk + data.draw(st.integers(0, per_file - 1))
    for nav in [(n_frames,), (n_frames // row, row)]:
        scheme = negotiate(describe(nav, (8, 8), "u1", per_file), chunk_bytes=64 * frames)
        assert math.prod(map(max, scheme.chunks[: len(nav)])) == per_chunk
        assert {first % per_chunk for first in borders(nav, scheme)} == {0}


@unhurried
@given(st.integers(1, 10), st.integers(2, 8), st.integers(2, 9))
def test_chunks_do_not_cross_files_that_do_not_fit(part, n_parts, n_files):
    """The budget is a part of a file: a chunk is such a part."""
    desc = describe((part * n_parts * n_files,), (8, 8), "u1", part * n_parts)
    scheme = negotiate(desc, chunk_bytes=64 * part)
    assert set(scheme.chunks[0]) == {part}


def test_files_are_no_borders_in_a_part_of_the_rows():
    """Two rows of seven are a file's worth of frames, but no file."""
    whole = describe((10, 10), (1,), "u1", 14)
    part = whole.cut([(0, 1, 10, True), (0, 1, 7, True), (0, 1, 1, True)])
    assert "files" not in dict(negotiate(part, chunk_bytes=14).reasons)["navigation"]


@pytest.mark.parametrize(
    ("nav", "sig", "budget", "chunks"),
    [
        ((144,), (8, 8), 128 * 64, ((72, 72), (8,), (8,))),
        ((144, 10), (8, 8), 128 * 640, ((72, 72), (10,), (8,), (8,))),
        ((256, 256), (256, 256), 128 * MIB, ((8,) * 32, (256,), (256,), (256,))),
        ((1000,), (8, 8), 64 * 64, ((63,) * 15 + (55,), (8,), (8,))),
        ((3,), (8, 8), 2 * 64, ((2, 1), (8,), (8,))),
        ((3,), (8, 8), 1, ((1, 1, 1), (8,), (8,))),
        ((), (8, 8), 1, ((8,), (8,))),
    ],
)
def test_worked_examples(nav, sig, budget, chunks):
    assert negotiate(describe(nav, sig, "u1"), chunk_bytes=budget).chunks == chunks


def test_worked_tiles():
    desc = describe((256, 256), (256, 256), ">u2")
    assert negotiate(desc).tile_shape == (8, 256, 256)
    assert negotiate(desc, TilingRequest("frame", depth=5)).tile_shape == (5, 256, 256)
    assert negotiate(desc, TilingRequest("chunk")).tile_shape == (1024, 256, 256)
    assert negotiate(desc, TilingRequest(nbytes=100_000)).tile_shape == (1, 128, 256)


def test_pixels_get_all_their_frames():
    desc = describe((100, 100), (64, 64), ">u2")
    scheme = negotiate(desc, TilingRequest("pixel"), chunk_bytes=10 * MIB)
    assert scheme.chunks[:2] == ((100,), (100,))
    assert scheme.chunks[3] == (64,)
    assert math.prod(map(max, scheme.chunks)) * 2 <= 10 * MIB
    together = negotiate(desc, [TilingRequest("pixel"), TilingRequest()], chunk_bytes=10 * MIB)
    assert together.chunks[2:] == ((64,), (64,))


def test_packed_pixels_are_cut_between_words():
    desc = describe((1000,), (4, 256), "u1", pixels=64)
    scheme = negotiate(desc, TilingRequest("pixel"), chunk_bytes=100_000)
    assert scheme.chunks == ((1000,), (1, 1, 1, 1), (64, 64, 64, 64))


def test_the_budget_is_dask_s():
    desc = describe((1000,), (8, 8), "u1")
    with dask.config.set({"array.chunk-size": "6400 B"}):
        assert set(negotiate(desc).chunks[0]) == {100}
        assert "6.25 KiB" in negotiate(desc).explain()
        assert "array.chunk-size" in negotiate(desc).explain()
    assert negotiate(desc).chunks[0] == (1000,)


@pytest.mark.parametrize(
    "options",
    [
        {"by": "frames"},
        {"by": None},
        {"by": ["frame"]},
        {"depth": 0},
        {"depth": -1},
        {"depth": 1.5},
        {"depth": "8"},
        {"nbytes": 0},
        {"nbytes": "1 MiB"},
    ],
)
def test_nonsense_is_no_request(options):
    with pytest.raises(TilingError):
        TilingRequest(**options)


@pytest.mark.parametrize("wish", ["frame", ["frame"], [None], 3])
def test_nonsense_is_not_negotiated(wish):
    with pytest.raises(TilingError):
        negotiate(describe((9,), (8, 8)), wish)


@pytest.mark.parametrize("chunk_bytes", [0, -1, "1 MiB", 1.5])
def test_budgets_that_are_none(chunk_bytes):
    with pytest.raises(TilingError):
        negotiate(describe((9,), (8, 8)), chunk_bytes=chunk_bytes)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Options that open a file of 30 frames which is a hole."""
    path = tmp_path_factory.mktemp("tiling") / "hole.raw"
    with path.open("wb") as file:
        file.truncate(30 * 64 * 96 * 2)
    return {"path": path, "format": "raw", "dtype": ">u2", "sig_shape": (64, 96)}


def open_raw(raw, **options):
    return dask_tiled.open_dataset(**raw, nav_shape=(5, 6), **options)


@pytest.mark.parametrize(
    "chunks",
    [
        20,
        (2, 3, 64, 96),
        (2, 3, 10, 96),
        ((1, 3, 1), (6,), (64,), (96,)),
        ((1, 3, 1), 4, -1, (90, 6)),
        -1,
        (1, -1, None, -1),
        "auto",
        (2, "auto", "auto", -1),
        {0: 2, 3: -1},
        {1: "auto"},
        "100 kB",
        (100, 100, 100, 100),
    ],
)
def test_chunks_mean_what_they_mean_in_dask(raw, chunks):
    arr = open_raw(raw, chunks=chunks)
    assert arr.chunks == normalize_chunks(chunks, shape=(5, 6, 64, 96), dtype=arr.dtype)
    assert scheme_of(arr).chunks == arr.chunks
    assert arr.map_blocks(np.zeros_like, dtype=arr.dtype).compute().shape == arr.shape
    for index in itertools.product(*({0, n - 1} for n in arr.numblocks)):
        sizes = tuple(axis[i] for axis, i in zip(arr.chunks, index, strict=True))
        assert arr.blocks[index].compute().shape == sizes


def test_chunks_of_nothing_between_others(raw):
    arr = open_raw(raw, chunks=((0, 5, 0), 6, (64, 0), 96))
    assert arr.chunks == ((0, 5, 0), (6,), (64, 0), (96,))
    assert arr.compute().shape == (5, 6, 64, 96)
    assert arr[1:, ..., 3].sum().compute() == 0


@pytest.mark.parametrize("chunks", [(2, 3), 0, ((1, 2), 6, 64, 96), "much", 1.5, (0, 6, 64, 96)])
def test_chunks_that_cannot_be(raw, chunks):
    with pytest.raises(TilingError):
        open_raw(raw, chunks=chunks)


@pytest.mark.parametrize(
    "chunks", [(5, 6, 64, 96), ((5,), (6,), (64,)), ((5,), (6,), (64,), (97,)), ((6,), (6,), (64,))]
)
def test_settled_chunks_have_to_cover_the_array(raw, chunks):
    arr = open_raw(raw)
    with pytest.raises(TilingError):
        negotiate(arr.description, chunks=chunks)
    with pytest.raises(TilingError):
        arr.with_chunks(chunks)


def test_other_chunks_of_the_same_array(raw):
    arr = open_raw(raw)
    other = arr.with_chunks(((2, 3), (6,), (64,), (90, 6)))
    assert other.description == arr.description
    assert other.blocks[1, 0, 0, 1].compute().shape == (3, 6, 64, 6)


@pytest.mark.parametrize("wish", ["frame", 3, [None]])
def test_nonsense_at_opening(raw, wish):
    with pytest.raises(TilingError):
        open_raw(raw, tiling=wish)


def test_wishes_at_opening(raw):
    wish = TilingRequest("frame", depth=3)
    arr = open_raw(raw, tiling=wish)
    assert scheme_of(arr) == negotiate(arr.description, wish)
    assert scheme_of(arr).tile_shape == (3, 64, 96)
    assert scheme_of(open_raw(raw, tiling=[wish, TilingRequest("chunk")])).tile_shape[0] == 30


@pytest.mark.parametrize("chunks", [None, (2, 3, 10, 96)])
@pytest.mark.parametrize(
    "wish", [None, TilingRequest("pixel", nbytes=64), TilingRequest(nbytes=64)], ids=str
)
@pytest.mark.parametrize(
    "index",
    [
        np.s_[3],
        np.s_[3, 4],
        np.s_[3, 4, 5],
        np.s_[3, 4, 5, 6],
        np.s_[..., 40, 60],
        np.s_[..., 60],
        np.s_[:, :, 40],
        np.s_[1:4, ::2, 3:50:7, 5:90:11],
    ],
    ids=str,
)
def test_slices_have_schemes(raw, index, wish, chunks):
    arr = open_raw(raw, chunks=chunks, tiling=wish)[index]
    scheme = scheme_of(arr)
    assert scheme.chunks == arr.chunks
    assert len(scheme.tile_shape) == 1 + len(arr.description.sig_shape)
    assert str(scheme.tile_shape) in scheme.explain()
    again = negotiate(arr.description, wish or (), chunk_bytes=1000)
    assert tuple(map(sum, again.chunks)) == arr.shape


def test_schemes_are_of_opened_arrays_only(raw):
    arr = open_raw(raw)
    copy = arr.copy()
    assert scheme_of(copy) == scheme_of(arr)
    copy[0] = 1
    for other in (copy, arr + 1, arr[[0, 1]], np.zeros(3), None):
        with pytest.raises(TilingError):
            scheme_of(other)
