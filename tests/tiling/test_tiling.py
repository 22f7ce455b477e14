"""Properties of the negotiation for any file, budget and request."""

import dataclasses
import itertools
import math

import dask
import numpy as np
import pytest
from checks import peak_memory
from dask.array.core import normalize_chunks
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import TilingError, TilingRequest, negotiate, scheme_of
from dask_tiled.files.file import File, GrowingFile
from dask_tiled.formats.tools.frames import Record, record_layout
from dask_tiled.model.decoders import BlockDecoder, Decoder, plain
from dask_tiled.model.description import Description
from dask_tiled.model.indexing import Cut
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece, piece_table
from dask_tiled.tiling.bases import Base, bases
from dask_tiled.tiling.limits import MOST_CHUNKS
from dask_tiled.tiling.sizes import divided, least_count

MIB = 1 << 20
unhurried = settings(deadline=None, max_examples=settings.default.max_examples * 2)


def describe(nav, sig, dtype="u2", per_file=None, pixels=1):
    """Return a description of absent files: the negotiation needs only numbers."""
    n_frames = math.prod(nav)
    whole, rest = divmod(n_frames, per_file or n_frames)
    counts = [per_file or n_frames] * whole + [rest] * (rest > 0)
    one = plain(np.dtype(dtype))
    decoder = Decoder(one.kernel, one.dtype, one.nbytes * pixels, pixels)
    record = Record(sig, decoder)
    files = [File(f"/scan{i}.raw", n * record.nbytes, 0, i, 0) for i, n in enumerate(counts)]
    desc = Description.of("raw", record_layout(files, counts, record), {})
    return desc.with_frames(nav)


@pytest.fixture(autouse=True, scope="module")
def usual_machine():
    """Fix the size of tiles, which depends on the machine."""
    with dask.config.set({"dask-tiled.tile-bytes": MIB}):
        yield


requests = st.builds(
    TilingRequest,
    by=st.sampled_from(["tile", "frame", "chunk", "pixel"]),
    depth=st.none() | st.integers(1, 100),
    nbytes=st.none() | st.integers(1, 1 << 22) | st.integers(1, 5000),
)


@st.composite
def cases(draw, n_budgets=1):
    """Draw arguments of `describe`, requests, and budgets near the size of frames and files."""
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


@pytest.mark.thorough
@unhurried
@given(cases())
@example((((3,), (1,), "u1", 2, 1), [], 3))
@example((((9,), (1,), "u1", 4, 1), [], 4))
@example((((20, 9), (1,), "u1", 20, 1), [], 4))
def test_chunks(case):
    """Chunks cover the array, are bounded and even; only larger frames are cut, or by="pixel"."""
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    assert tuple(map(sum, scheme.chunks)) == desc.shape
    assert all(size > 0 for axis in scheme.chunks for size in axis)

    sizes, budget = sizes_of(scheme), budget_of(wishes, chunk_bytes)
    within = math.prod(sizes) * desc.dtype.itemsize <= budget
    assert within or math.prod(sizes[: desc.nav_ndim]) == 1
    fits = math.prod(desc.sig_shape) * desc.dtype.itemsize <= budget
    if kinds(wishes) != {"pixel"} and (fits or "frame" in kinds(wishes)):
        assert sizes[desc.nav_ndim :] == desc.sig_shape
    if not fits and "frame" not in kinds(wishes):
        assert within or sizes[-1] <= desc.layout.unit_shape()[-1]

    # A chunk of several positions along a scan axis spans all later scan axes.
    frame = math.prod(sizes[desc.nav_ndim :]) * desc.dtype.itemsize
    for k in range(desc.nav_ndim):
        inner = desc.nav_shape[k:]
        if math.prod(inner) * frame <= budget:
            assert sizes[k : desc.nav_ndim] == inner
        if sizes[k] > 1:
            assert sizes[k + 1 : desc.nav_ndim] == desc.nav_shape[k + 1 :]

    *axes, last = scheme.chunks
    assert all(2 * min(axis) >= max(axis) for axis in axes)
    words = [-(-size // desc.layout.unit_shape()[-1]) for size in last]
    assert 2 * min(words) >= max(words)
    assert all(len(set(axis[:-1])) <= 1 for axis in (*axes, last))


@pytest.mark.thorough
@unhurried
@given(cases(n_budgets=2))
def test_larger_budgets_never_give_smaller_chunks(case):
    file, wishes, *budgets = case
    desc = describe(*file)
    small, large = (
        math.prod(sizes_of(negotiate(desc, wishes, chunk_bytes=n))) for n in sorted(budgets)
    )
    assert small <= large


@pytest.mark.thorough
@unhurried
@given(cases())
def test_tiles(case):
    """Tiles fit the requests in any order, are even, and are explained."""
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    assert negotiate(desc, tuple(wishes), chunk_bytes=chunk_bytes) == scheme
    for order in itertools.permutations(wishes):
        again = negotiate(desc, order, chunk_bytes=chunk_bytes)
        assert (again.chunks, again.tile_shape) == (scheme.chunks, scheme.tile_shape)
    sizes = sizes_of(scheme)
    frames, sig = math.prod(sizes[: desc.nav_ndim]), sizes[desc.nav_ndim :]
    depth, *tile_sig = scheme.tile_shape
    assert 1 <= depth <= frames
    assert len(tile_sig) == len(sig)
    assert all(1 <= n <= m for n, m in zip(tile_sig, sig, strict=True))
    for n, size, unit in zip(
        (frames, *sig), scheme.tile_shape, (1, *desc.layout.unit_shape()), strict=True
    ):
        whole, tile = -(-n // unit), -(-size // unit)
        assert 2 * ((whole - 1) % tile + 1) >= tile

    text = scheme.explain()
    assert str(scheme.tile_shape) in text
    assert str(sig) in text
    assert not desc.nav_shape or str(sizes[: desc.nav_ndim]) in text
    assert len(text.splitlines()) == len(scheme.reasons)
    assert all(name and reason and reason in text for name, reason in scheme.reasons)

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


def borders(nav, scheme):
    """Return the first frame of each chunk, counted in C order."""
    axes = [np.cumsum((0, *axis[:-1])) for axis in scheme.chunks[: len(nav)]]
    sizes = [math.prod(nav[k + 1 :]) for k in range(len(nav))]
    firsts = np.zeros((), int)
    for axis, size in zip(axes, sizes, strict=True):
        firsts = np.add.outer(firsts, axis * size)
    return set(firsts.ravel().tolist())


@pytest.mark.thorough
@unhurried
@given(cases())
@example((((2, 10), (1,), "u1", 5, 1), [], 4))
@example((((3, 10), (1,), "u1", 4, 1), [], 5))
@example((((20, 9), (1,), "u1", 20, 1), [], 4))
def test_reasons_about_files_are_true(case):
    file, wishes, chunk_bytes = case
    desc = describe(*file)
    scheme = negotiate(desc, wishes, chunk_bytes=chunk_bytes)
    text = dict(scheme.reasons).get("navigation", "")
    start = desc.layout.pieces.rows().start
    files = set(start[:, 0].tolist())
    if "in whole files" in text:
        assert borders(desc.nav_shape, scheme) <= files
    if "within files" in text:
        # Each chunk is a run of consecutive frames, as only one axis is cut.
        ends = sorted({*borders(desc.nav_shape, scheme), math.prod(desc.nav_shape)})
        for first, stop in itertools.pairwise(ends):
            assert not files & set(range(first + 1, stop))
    if "scan rows stay whole" in text:
        assert all(first % desc.nav_shape[-1] == 0 for first in borders(desc.nav_shape, scheme))


@unhurried
@given(st.data())
def test_chunks_are_whole_files_that_divide_the_series(data):
    """The budget holds a number of files and a part of another."""
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
def test_chunks_divide_files_larger_than_the_budget(part, n_parts, n_files):
    desc = describe((part * n_parts * n_files,), (8, 8), "u1", part * n_parts)
    scheme = negotiate(desc, chunk_bytes=64 * part)
    assert set(scheme.chunks[0]) == {part}


def test_cropped_rows_do_not_align_with_files():
    """Two rows of seven frames are as many frames as a file, but from several files."""
    whole = describe((10, 10), (1,), "u1", 14)
    part = whole.cut([Cut(0, 1, 10), Cut(0, 1, 7), Cut(0, 1, 1)])
    assert "files" not in dict(negotiate(part, chunk_bytes=14).reasons)["navigation"]


def test_two_files_of_different_length_are_chunks():
    assert negotiate(describe((20,), (8, 8), "u1", 12), chunk_bytes=64 * 12).chunks[0] == (12, 8)


@pytest.mark.parametrize(
    ("nav", "sig", "budget", "chunks"),
    [
        ((144,), (8, 8), 128 * 64, ((72, 72), (8,), (8,))),
        ((144, 10), (8, 8), 128 * 640, ((72, 72), (10,), (8,), (8,))),
        ((256, 256), (256, 256), 128 * MIB, ((8,) * 32, (256,), (256,), (256,))),
        ((1000,), (8, 8), 64 * 64, ((63,) * 15 + (55,), (8,), (8,))),
        ((3,), (8, 8), 2 * 64, ((2, 1), (8,), (8,))),
        ((3,), (8, 8), 63, ((1, 1, 1), (4, 4), (8,))),
        ((), (8, 8), 24, ((3, 3, 2), (8,))),
        ((), (8, 8), 1, ((1,) * 8, (1,) * 8)),
    ],
)
def test_worked_examples(nav, sig, budget, chunks):
    assert negotiate(describe(nav, sig, "u1"), chunk_bytes=budget).chunks == chunks


@pytest.mark.parametrize(
    ("size", "block", "coded", "expected"),
    [
        ((4096, 4096), (512, 512), True, (2048, 2048)),
        ((4096, 8192), (256, 256), True, (2048, 2048)),
        ((4096, 8192), (64, 8192), True, (512, 8192)),  # strips
        ((4096, 4096), (4096, 4096), True, (4096, 4096)),
        ((4096, 8192), (4096, 4096), False, (1024, 4096)),  # parts of pieces can be read
        ((4096, 4096), (512, 512), False, (2048, 2048)),
        ((8192, 2048), (8192, 2048), False, (2048, 2048)),
        ((1000, 9000), (300, 300), True, (1000, 3000)),
        ((4096, 4096, 3), (256, 256, 3), True, (1024, 1024, 3)),
        ((3, 4096, 4096), (1, 256, 256), True, (3, 1024, 1024)),
        ((4096, 4096, 3), (16, 4096, 3), True, (320, 4096, 3)),  # strips
        ((512, 16384, 3), (128, 128, 3), True, (512, 2432, 3)),
    ],
)
def test_parts_of_large_frames(size, block, coded, expected):
    """Parts of 8 MiB near squares, in whole pieces of the file, with all colours of each pixel.

    Of one uncompressed piece, parts are whole rows.
    """
    corners = itertools.product(*map(range, (0,) * len(size), size, block))
    start = np.array([(0, *corner) for corner in corners])
    shape = np.minimum((1, *block), (1, *size) - start)
    decoder = BlockDecoder("a:b", np.dtype("u2")) if coded else plain(np.dtype("u2"))
    table = piece_table(start, shape, 0, 0 * shape)
    layout = Layout([File("/a.raw", 1 << 40, 0, 0, 0)], (1,), size, table, [decoder])
    desc = Description.of("raw", layout, {})
    scheme = negotiate(desc, chunk_bytes=8 * MIB)
    assert sizes_of(scheme) == (1, *expected)
    whole = negotiate(desc, TilingRequest("frame"), chunk_bytes=8 * MIB)
    assert sizes_of(whole) == (1, *size)


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


def test_default_budget_is_dasks():
    desc = describe((1000,), (8, 8), "u1")
    with dask.config.set({"array.chunk-size": "6400 B"}):
        assert set(negotiate(desc).chunks[0]) == {100}
        assert "6.25 KiB" in negotiate(desc).explain()
        assert "array.chunk-size" in negotiate(desc).explain()
    assert negotiate(desc).chunks[0] == (1000,)


@pytest.mark.parametrize(
    ("frames", "size"), [(100, 100), (512, 128), (4096, 128), (8192, 256), (1 << 17, 1024)]
)
def test_chunks_of_compressed_frames(frames, size):
    """Compressed frames get about 32 chunks of 16 MiB or more, up to the usual size."""
    desc = describe((frames,), (256, 256), "u2")
    one = np.ones((frames, 3), np.int64)
    one[:, 1:] = 256
    start = np.zeros((frames, 3), np.int64)
    start[:, 0] = np.arange(frames)
    decoder, table = BlockDecoder("a:b", np.dtype("u2")), piece_table(start, one, 0, 0 * one)
    layout = Layout(desc.files, (frames,), (256, 256), table, [decoder])
    desc = dataclasses.replace(desc, layout=layout, base_shape=(1, 256, 256))
    assert negotiate(desc).chunks[0][0] == size
    assert negotiate(desc, chunk_bytes=1 << 27).chunks[0][0] == min(frames, 1024)


@pytest.mark.parametrize(
    ("mib", "processors", "size"),
    [
        (8, 16, 8), (16, 16, 16), (24, 2, 12), (120, 2, 30), (120, 16, 15), (512, 2, 128),
        (512, 16, 16), (2048, 8, 128), (2048, 16, 64), (8192, 16, 128),
    ],
)  # fmt: skip
def test_processors_have_two_chunks_each(mib, processors, size):
    desc = describe((16 * mib,), (256, 256), "u1")
    scheme = negotiate(desc, processors=processors)
    assert scheme.chunks[0][0] == 16 * size
    told = f"2 chunks for each of {processors} processors, as given"
    assert (told in scheme.explain()) == (size < min(mib, 128))
    assert negotiate(desc, processors=processors, chunk_bytes=1 << 27).chunks[0][0] == min(
        16 * mib, 2048
    )


def test_slices_of_large_frames_end_where_pieces_do():
    """Pieces of 512 x 512 pixels, of which a slice begins with a part."""
    start = np.array([(0, y, x) for y in range(0, 4096, 512) for x in range(0, 4096, 512)])
    table = piece_table(start, np.full_like(start, 512) * [0, 1, 1] + [1, 0, 0], 0, 0 * start)
    files, decoders = [File("/a.raw", 1 << 40, 0, 0, 0)], [BlockDecoder("a:b", np.dtype("u2"))]
    desc = Description.of("raw", Layout(files, (1,), (4096, 4096), table, decoders), {})
    part = desc.cut([Cut(0, 1, 1), Cut(100, 1, 3000), Cut(512, 1, 3000)])
    _, rows, columns = negotiate(part, chunk_bytes=2 * MIB).chunks
    assert {n % 512 for n in np.cumsum(rows)[:-1]} == {412}
    assert {n % 512 for n in np.cumsum(columns)[:-1]} == {0}


@pytest.mark.parametrize(
    ("frames", "processors", "size"),
    [(64, 16, (2, 4096, 4096)), (32, 16, (1, 4096, 4096)), (8, 16, (1, 512, 4096)),
     (64, 2, (4, 4096, 4096))],
)  # fmt: skip
def test_frames_are_cut_for_processors_only_if_they_are_few(frames, processors, size):
    """Frames have 32 MiB: they stay whole if there are enough for two chunks a processor."""
    desc = describe((frames,), (4096, 4096))
    scheme = negotiate(desc, processors=processors, memory_bytes=1 << 30)
    assert sizes_of(scheme) == size
    assert ("parts of frames" in dict(scheme.reasons)["signal"]) == (size[1] < 4096)


def test_parts_of_huge_images_are_larger():
    """An array of large frames has 10,000 chunks at most, as long as a chunk holds no frame."""
    desc = describe((1000,), (16384, 16384), "f4")  # 1000 GiB in frames of 1 GiB
    scheme = negotiate(desc, processors=4, memory_bytes=4 << 30)
    assert math.prod(map(len, scheme.chunks)) <= 10_000
    assert sizes_of(scheme) == (1, 2048, 16384)


def test_default_processors_are_the_machines():
    desc = describe((1920,), (256, 256), "u1")
    assert negotiate(desc).chunks == negotiate(desc, processors=2).chunks
    assert "of 2 processors, of this machine" in negotiate(desc).explain()
    grows = tuple(map(GrowingFile.of, desc.files))
    layout = Layout(grows, (1920,), (256, 256), desc.layout.pieces, desc.layout.decoders)
    assert negotiate(dataclasses.replace(desc, layout=layout)).chunks[0] == (1920,)


@pytest.mark.parametrize(
    ("nav", "frames", "rows"),
    [((40, 48), 1000, 1), ((8193, 2), 9, 3), ((40, 48), 1920, 0), ((1920,), 1000, 0)],
)
def test_chunks_of_arriving_scans_are_rows(nav, frames, rows):
    """At most 4096 chunks; scans that are complete, or have no rows, are divided as others."""
    layout = describe((frames,), (8, 8)).layout
    grows = tuple(map(GrowingFile.of, layout.files))
    layout = Layout(grows, layout.grid, layout.sig_shape, layout.pieces, layout.decoders)
    scheme = negotiate(Description.of("raw", layout.show(nav), {}))
    assert sizes_of(scheme)[: len(nav)] == ((rows, *nav[1:]) if rows else nav)
    assert ("of a scan whose frames are arriving" in scheme.explain()) == (rows > 0)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "by tile"),
        ({"by": "frame", "depth": 3}, "by frame (depth 3)"),
        ({"nbytes": 9, "depth": 2}, "by tile (depth 2, 9 bytes)"),
    ],
)
def test_requests_as_text(options, text):
    assert str(TilingRequest(**options)) == text


@pytest.mark.parametrize(
    "options",
    [
        {"by": "frames"}, {"by": None}, {"by": ["frame"]}, {"depth": 0}, {"depth": 1.5},
        {"nbytes": 0},
    ],
)  # fmt: skip
def test_invalid_requests_are_refused(options):
    with pytest.raises(TilingError):
        TilingRequest(**options)


@pytest.mark.parametrize("wish", ["frames", ["frames"], [None], 3])
def test_negotiation_refuses_invalid_requests(raw, wish):
    with pytest.raises(TilingError):
        negotiate(describe((9,), (8, 8)), wish)
    with pytest.raises(TilingError):
        open_raw(raw, tiling=wish)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Return the options that open a sparse file of 30 frames."""
    path = tmp_path_factory.mktemp("tiling") / "hole.raw"
    with path.open("wb") as file:
        file.truncate(30 * 64 * 96 * 2)
    return {"path": path, "format": "raw", "dtype": ">u2", "sig_shape": (64, 96)}


def open_raw(raw, **options):
    return dask_tiled.open_dataset(**raw, nav_shape=(5, 6), **options)


@pytest.mark.parametrize(
    "chunks",
    [
        20, (2, 3, 64, 96), (2, 3, 10, 96), ((1, 3, 1), (6,), (64,), (96,)),
        ((1, 3, 1), 4, -1, (90, 6)), -1, (1, -1, None, -1), "auto", (2, "auto", "auto", -1),
        {0: 2, 3: -1}, {1: "auto"}, "100 kB", (100, 100, 100, 100),
    ],
)  # fmt: skip
def test_chunks_mean_what_they_mean_in_dask(raw, chunks):
    arr = open_raw(raw, chunks=chunks)
    assert arr.chunks == normalize_chunks(chunks, shape=(5, 6, 64, 96), dtype=arr.dtype)
    assert scheme_of(arr).chunks == arr.chunks
    assert arr.map_blocks(np.zeros_like, dtype=arr.dtype).compute().shape == arr.shape
    for index in itertools.product(*({0, n - 1} for n in arr.numblocks)):
        sizes = tuple(axis[i] for axis, i in zip(arr.chunks, index, strict=True))
        assert arr.blocks[index].compute().shape == sizes


def test_empty_chunks(raw):
    arr = open_raw(raw, chunks=((0, 5, 0), 6, (64, 0), 96))
    assert arr.chunks == ((0, 5, 0), (6,), (64, 0), (96,))
    assert arr.compute().shape == (5, 6, 64, 96)
    assert arr[1:, ..., 3].sum().compute() == 0


@pytest.mark.parametrize(
    "chunks",
    [
        (2, 3), (1,) * 5, 0, ((1, 2), 6, 64, 96), ((-1, 6), 6, 64, 96), "much", 1.5,
        (1.5, 6, 64, 96), (0, 6, 64, 96),
    ],
)  # fmt: skip
def test_invalid_chunks_are_refused(raw, chunks):
    with pytest.raises(TilingError):
        open_raw(raw, chunks=chunks)


@pytest.mark.parametrize("chunks", [0, (0, 6, 64, 96), {3: 0}])
def test_chunks_of_size_0_are_refused(raw, chunks):
    arr = open_raw(raw)
    for call in (lambda chunks: open_raw(raw, chunks=chunks), arr.with_chunks, arr.rechunk):
        with pytest.raises(TilingError, match="chunks of size 0"):
            call(chunks)


@pytest.mark.parametrize(
    "chunks",
    [
        ((5,), (6,), (64,)),
        ((5,), (6,), (64,), (97,)),
        ((6,), (6,), (64,)),
        ((7, -2), (6,), (64,), (96,)),
        {"frame": 2},
    ],
)
def test_chunks_must_cover_the_array(raw, chunks):
    arr = open_raw(raw)
    with pytest.raises(TilingError):
        negotiate(arr.description, chunks=chunks)
    with pytest.raises(TilingError):
        arr.with_chunks(chunks)


def test_with_chunks(raw):
    arr = open_raw(raw)
    other = arr.with_chunks(((2, 3), (6,), (64,), (90, 6)))
    assert other.description == arr.description
    assert other.blocks[1, 0, 0, 1].compute().shape == (3, 6, 64, 6)


def test_requests_of_open_dataset(raw):
    wish = TilingRequest("frame", depth=3)
    arr = open_raw(raw, tiling=wish)
    assert scheme_of(arr) == negotiate(arr.description, wish)
    assert scheme_of(arr).tile_shape == (3, 64, 96)
    assert scheme_of(open_raw(raw, tiling=[wish, TilingRequest("chunk")])).tile_shape[0] == 30


@pytest.mark.parametrize("chunks", [None, (2, 3, 10, 96)])
@pytest.mark.parametrize("wish", [None, TilingRequest("pixel", nbytes=64)], ids=str)
@pytest.mark.parametrize(
    "index",
    [np.s_[3, 4], np.s_[3, 4, 5, 6], np.s_[..., 40, 60], np.s_[1:4, ::2, 3:50:7, 5:90:11]],
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


def test_only_opened_arrays_have_schemes(raw):
    arr = open_raw(raw)
    copy = arr.copy()
    assert scheme_of(copy) == scheme_of(arr)
    copy[0] = 1
    for other in (copy, arr + 1, arr[..., [0, 1]], np.zeros(3), None):
        with pytest.raises(TilingError):
            scheme_of(other)


# Blocks of files, base shapes, conversions and limits of the machine.


def blocky(draw):
    """Draw a description of a file with blocks, or of a slice."""
    nav = tuple(draw(st.lists(st.integers(1, 30), max_size=2)))
    sig = tuple(draw(st.lists(st.integers(1, 60), min_size=1, max_size=2)))
    pixels = draw(st.sampled_from([1, 1, 4]))
    desc = describe(nav, sig, draw(st.sampled_from(["u1", ">u2", "<f4"])), pixels=pixels)
    grid = draw(st.sampled_from([None, nav or (1,)]))  # as in HDF5 files with scan axes
    if grid is not None:
        desc = on_a_grid(grid, sig, (), desc.dtype)
    base = [draw(st.integers(1, n + 3)) for n in desc.layout.grid + sig]
    desc = dataclasses.replace(desc, base_shape=tuple(base))
    if draw(st.booleans()):
        *cuts, (start, step, count, kept) = [draw(cuts_of(n)) for n in desc.shape]
        if pixels > 1:  # units of several pixels are not sliced with a step
            step, count = 1, min(count, desc.shape[-1] - start)
        desc = desc.cut([*cuts, Cut(start, step, count, kept)])
    return desc


@st.composite
def cuts_of(draw, size):
    start = draw(st.integers(0, size - 1))
    step = draw(st.sampled_from([1, 1, 1, 2, 3]))
    return Cut(start, step, draw(st.integers(1, len(range(start, size, step)))))


@st.composite
def questions(draw):
    """Draw a description with blocks, requests, and all other arguments of `negotiate`."""
    desc = blocky(draw)
    n = desc.nbytes
    options = {
        "chunk_bytes": draw(st.none() | st.integers(1, 2 * n)),
        "memory_bytes": draw(st.none() | st.integers(1, 20 * n)),
        "cache_bytes": draw(st.none() | st.integers(1, 1 << 22)),
        "align_bytes": draw(st.sampled_from([1, 512, 4096])),
        "dtype": draw(st.sampled_from([None, "f4", "f8"])),
    }
    return desc, draw(st.lists(requests, max_size=4)), options


def block_numbers(desc):
    """Return for each axis the number of the file's block at each position."""
    layout = desc.layout
    nav = layout.nav_shape
    units = (1,) * (len(layout.sig_shape) - 1) + (layout.decoders[0].pixels,)
    sizes = np.lcm(desc.base_shape[len(layout.grid) :], units).tolist()
    sizes = [*(desc.base_shape[: len(nav)] if nav == layout.grid else (1,) * len(nav)), *sizes]
    return [
        (cut.start + cut.step * np.arange(cut.length)) // size
        for cut, size in zip(layout.cuts, sizes, strict=True)
    ]


def edges_of(axis):
    return np.cumsum(axis)[:-1].tolist()


@pytest.mark.thorough
@unhurried
@given(questions())
def test_chunks_and_tiles_cover_and_keep_blocks_whole(question):
    desc, wishes, options = question
    scheme = negotiate(desc, wishes, **options)
    assert tuple(map(sum, scheme.chunks)) == desc.shape
    assert all(size > 0 for axis in scheme.chunks for size in axis)
    numbers = block_numbers(desc)
    for axis, blocks in zip(scheme.chunks, numbers, strict=True):
        assert all(blocks[at - 1] != blocks[at] for at in edges_of(axis))

    last = tuple(len(axis) - 1 for axis in scheme.chunks)
    for block_id in {(0,) * len(last), last}:
        starts = [sum(axis[:i]) for axis, i in zip(scheme.chunks, block_id, strict=True)]
        sizes = [axis[i] for axis, i in zip(scheme.chunks, block_id, strict=True)]
        nav = tuple(sizes[: desc.nav_ndim])
        covered = np.zeros((math.prod(nav), *sizes[desc.nav_ndim :]), int)
        where = [n[s : s + k] for n, s, k in zip(numbers, starts, sizes, strict=True)]
        frames = np.stack(
            [b.ravel() for b in np.meshgrid(*where[: len(nav)], indexing="ij")] or [[0]]
        )
        for part in scheme.tiles(block_id):
            covered[part] += 1
            shape = [p.stop - p.start for p in part]
            assert all(0 < n <= m for n, m in zip(shape, scheme.tile_shape, strict=True))
            cut = part[0].stop
            mine = set(map(tuple, frames[:, part[0]].T.tolist()))
            assert not mine & set(map(tuple, frames[:, cut:].T.tolist()))
            for blocks, ends in zip(where[desc.nav_ndim :], part[1:], strict=True):
                assert ends.start == 0 or blocks[ends.start - 1] != blocks[ends.start]
        assert (covered == 1).all()


@unhurried
@given(questions())
def test_chunks_and_tiles_are_bounded(question):
    """Chunks and tiles stay within their limits, or are a single block."""
    desc, wishes, options = question
    scheme = negotiate(desc, wishes, **options)
    itemsize = scheme.dtype.itemsize
    sizes = sizes_of(scheme)
    limit = options["chunk_bytes"] or (options["memory_bytes"] and options["memory_bytes"] // 8)
    if limit:
        one = all(
            n <= base.size for n, base in zip(sizes, scheme.bases[: desc.nav_ndim], strict=False)
        )
        assert math.prod(sizes) * itemsize <= limit or one or kinds(wishes) == {"pixel"}
    assert scheme.dtype == np.dtype(options["dtype"] or desc.dtype)
    if "chunk" in kinds(wishes):
        return
    usual = MIB
    if options["cache_bytes"]:
        usual = min(max(options["cache_bytes"] // 2, 128 << 10), MIB)
    nbytes = min([w.nbytes or usual for w in wishes if w.by in {"tile", "frame"}], default=usual)
    if math.prod(scheme.tile_shape) * itemsize > nbytes:
        frames = math.prod(sizes[: desc.nav_ndim])
        first = [b.size for b in scheme.bases[: desc.nav_ndim]]
        assert scheme.tile_shape[0] in {1, frames} or any(n > 1 for n in first)


@pytest.mark.thorough
@unhurried
@given(questions())
def test_chunks_are_even(question):
    desc, wishes, options = question
    scheme = negotiate(desc, wishes, **options)
    for axis, base in zip(scheme.chunks, scheme.bases, strict=True):
        count = [-(-size // base.size) for size in axis]
        assert 2 * min(count) >= max(count) - 1
        if len(axis) > 2:
            assert len(set(axis[1:-1])) == 1
            assert axis[0] + base.lead == axis[1]


# Worked results, some taken from the tests of LiberTEM's negotiator.


def with_base(nav, sig, base, dtype="<f4"):
    return dataclasses.replace(describe(nav, sig, dtype), base_shape=base)


SCAN = describe((256, 256), (256, 256), ">u2")
FLOATS, LARGE = (describe((16, 16), (n, n), ">f4") for n in (128, 1024))
BLOCKS = with_base((272,), (1860, 2048), (1, 930, 16), ">u2")
WISHES = [TilingRequest(), TilingRequest("frame"), TilingRequest("chunk")]
TILES = {
    "a tile": (SCAN, {}, (8, 256, 256)),
    "of frames": (SCAN, {"requests": TilingRequest("frame", depth=5)}, (5, 256, 256)),
    "a chunk": (SCAN, {"requests": WISHES[2]}, (1024, 256, 256)),
    "of bytes": (SCAN, {"requests": TilingRequest(nbytes=100_000)}, (1, 128, 256)),
    "converted": (SCAN, {"dtype": "f4"}, (4, 256, 256)),
    "two wishes": (FLOATS, {"requests": WISHES[:2]}, (16, 128, 128)),
    "the strongest": (FLOATS, {"requests": WISHES, "chunk_bytes": 8 * MIB}, (128, 128, 128)),
    "parts of frames": (LARGE, {"requests": WISHES[:1]}, (1, 256, 1024)),
    "whole frames": (LARGE, {"requests": WISHES[:2]}, (1, 1024, 1024)),
    "the smallest": (
        FLOATS,
        {"requests": [TilingRequest(nbytes=n << 16) for n in (8, 2, 4)]},
        (2, 128, 128),
    ),
    "the usual one": (
        FLOATS, {"requests": [TilingRequest(nbytes=4 * MIB), WISHES[0]]}, (16, 128, 128)
    ),
    "depth where it fits": (
        BLOCKS,
        {"requests": TilingRequest(depth=128), "dtype": "f4", "chunk_bytes": 1 << 40},
        (17, 930, 16),
    ),
    "long runs": (BLOCKS, {"dtype": "f4"}, (1, 930, 256)),
    **{
        f"cache of {n} bytes": (describe((4096,), (64, 64), ">u2"), {"cache_bytes": n}, (k, 64, 64))
        for n, k in ((1 << 10, 16), (1 << 18, 16), (1 << 20, 64), (1 << 21, 128), (1 << 30, 128))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", TILES)
def test_worked_tiles(case):
    desc, options, tile = TILES[case]
    assert negotiate(desc, **options).tile_shape == tile


SERIES = describe((40, 48), (64, 64), per_file=480)
PIXELS = {"requests": TilingRequest("pixel"), "chunk_bytes": 16 * MIB}
REASONS = [
    (SERIES, {"requests": TilingRequest(depth=3, nbytes=50_000), "chunk_bytes": 4 * MIB}, """
consumers    by tile (depth 3, 50000 bytes)
chunk limit  4 MiB: the smallest that was requested
signal       (64, 64): whole frames
navigation   (10, 48): 480 of at most 512 frames, in whole files; scan rows stay whole
tile limit   48.83 KiB: the smallest that was requested
tile         (3, 64, 64): whole frames, requested depth 3, 24 KiB"""),
    (BLOCKS, {"dtype": "f4", "chunk_bytes": 64 * MIB}, """
consumers    by tile
base shape   (1, 930, 16): blocks of the file, which are never cut
dtype        float32: converted from uint16; sizes are bytes of the converted pixels
chunk limit  64 MiB: the smallest that was requested
signal       (1860, 2048): whole frames
navigation   (4,): 4 of at most 4 frames, divided evenly
tile limit   1 MiB: dask-tiled.tile-bytes
tile         (1, 930, 256): parts of a row, 930 KiB"""),
    (LARGE, PIXELS, """
consumers    by pixel
chunk limit  16 MiB: the smallest that was requested
signal       (16, 1024): frames are cut, because all frames of a pixel are requested
navigation   (16, 16): 256 of at most 256 frames, divided evenly; scan rows stay whole
tile limit   1 MiB: dask-tiled.tile-bytes
tile         (16, 16, 1024): whole parts of frames, 1 MiB"""),
]  # fmt: skip


def test_blocks_of_parts_of_frames_are_explained():
    told = dict(negotiate(on_a_grid((16,), (4096, 4096), (1, 2, 256)), chunk_bytes=8 * MIB).reasons)
    assert told["signal"].endswith("parts of frames of 32 MiB, in whole blocks of (2, 256)")


@pytest.mark.parametrize(("desc", "options", "text"), REASONS)
def test_worked_reasons(desc, options, text):
    assert negotiate(desc, **options).explain() == text.strip()


def test_the_smallest_tile_limit_is_explained():
    requests = TILES["the smallest"][1]["requests"]
    told = negotiate(FLOATS, requests=requests).explain()
    assert "128 KiB: the smallest that was requested" in told
    assert "requested" not in negotiate(FLOATS).explain()


def test_budgets_count_converted_bytes():
    assert negotiate(SCAN, dtype="f4", chunk_bytes=64 * MIB).chunks[0][0] == 1
    assert "float32" in negotiate(SCAN, dtype="f4").explain()


@pytest.mark.thorough
@unhurried
@given(st.sets(st.integers(0, 999), min_size=1), st.integers(1, 200), st.integers(1, 1000))
def test_chunks_of_scattered_selections(numbers, per_file, frames):
    layout = describe((1000,), (8, 8), "u1", per_file=per_file).layout
    numbers = sorted(numbers)
    desc = Description.of(
        "raw", layout.show((len(numbers),), numbers=np.array(numbers)), {}, base_shape=(16, 8, 8)
    )
    scheme = negotiate(desc, chunk_bytes=64 * frames)
    sizes = scheme.chunks[0]
    assert sum(sizes) == len(numbers)
    assert max(sizes) <= frames
    assert 4 * len(sizes) <= 4 * -(-len(numbers) // frames) * 2 + 4
    if "within files" in scheme.explain():
        for start, stop in itertools.pairwise(np.cumsum((0, *sizes)).tolist()):
            assert len({n // per_file for n in numbers[start:stop]}) == 1


def test_regular_selections_are_cut_between_files():
    layout = describe((1000,), (8, 8), "u1", per_file=100).layout
    desc = Description.of("raw", layout.show((95,), numbers=np.arange(55, 1000, 10)), {})
    scheme = negotiate(desc, chunk_bytes=64 * 25)
    assert scheme.chunks[0] == (15, 20, 20, 20, 20)
    assert "in whole files" in scheme.explain()
    one = Description.of("raw", layout.show((91,), numbers=np.arange(95, 1000, 10)), {})
    assert negotiate(one, chunk_bytes=64 * 25).chunks[0] == (11, 20, 20, 20, 20)
    twice = layout.show((190,), numbers=np.arange(55, 1000, 10).repeat(2))
    assert negotiate(Description.of("raw", twice, {}), chunk_bytes=64 * 50).chunks[0][:2] == (
        30,
        40,
    )
    turned = Description.of("raw", layout.show((95,), numbers=np.arange(995, 50, -10)), {})
    assert "files" not in negotiate(turned, chunk_bytes=64 * 25).explain()


@pytest.mark.parametrize(
    ("first", "rows"),
    [(0, (2,) * 5), (10, (1, 2, 2, 2, 2)), (-10, (1, 2, 2, 2, 2, 1)), (3, (3, 3, 3))],
)
def test_chunks_of_scans_with_an_offset(first, rows):
    """Rows have ten frames, files twenty; with an offset of 3, files begin within rows."""
    layout = describe((100,), (8, 8), "u1", per_file=20).layout
    nav = (sum(rows), 10)
    desc = Description.of("raw", layout.show(nav, first), {})
    scheme = negotiate(desc, chunk_bytes=64 * 35)
    assert scheme.chunks[0] == rows
    assert ("in whole files" in scheme.explain()) == (first != 3)


def test_blocks_of_the_scan():
    desc = on_a_grid((256, 256), (64, 64), (32, 32, 64, 64))
    scheme = negotiate(desc, chunk_bytes=24 * MIB)
    assert sizes_of(scheme) == (32, 96, 64, 64)
    assert "blocks of (32, 32)" in scheme.explain()
    assert "larger than the limit" not in scheme.explain()
    assert scheme.tile_shape[0] == 32 * 96  # the frames of a block are not consecutive
    shifted = desc.cut([Cut(5, 1, 200), Cut(0, 1, 256), Cut(0, 1, 64), Cut(0, 1, 64)])
    rows = negotiate(shifted, chunk_bytes=64 * MIB).chunks[0]
    assert rows == (27, 32, 32, 32, 32, 32, 13)
    tiny = negotiate(desc, chunk_bytes=1)
    assert sizes_of(tiny) == (32, 32, 64, 64)
    assert "larger than the limit" in tiny.explain()


@pytest.mark.parametrize(
    ("block", "start", "step", "size", "lead"),
    [(32, 5, 1, 32, 5), (8, 6, 2, 4, 3), (6, 4, 4, 3, 1), (4, 0, 4, 1, 0), (4, 3, 9, 1, 0)],
)
def test_blocks_of_cut_axes(block, start, step, size, lead):
    """Positions 4, 8, 12, ... of blocks of 6 may be cut at 12, 24, ...: the first group has two."""
    assert Base.of(block, start, step) == (size, lead)


def test_scattered_frames_have_no_blocks():
    layout = describe((1000,), (8, 8), "u1").layout.show((3,), numbers=np.array([1, 500, 700]))
    desc = Description.of("raw", layout, {}, base_shape=(16, 8, 8))
    assert [base.size for base in bases(desc)] == [1, 8, 8]


def test_chunks_are_counted_before_they_are_normalized():
    assert least_count((1, 3), (10, 7), np.dtype("u1")) == 10 + 3
    assert least_count({0: 1}, (10, 7), np.dtype("u1"), ("y", "x")) == 10


def test_tiles_beyond_the_limit_say_so():
    desc = describe((8,), (64, 64), "u1")
    assert "beyond the limit" in negotiate(desc, TilingRequest("frame", nbytes=64)).explain()
    assert "beyond the limit" not in negotiate(desc, TilingRequest("frame", nbytes=4096)).explain()


def on_a_grid(nav, sig, base, dtype=">u2"):
    """Return a description of a file whose frames lie on a grid, in blocks."""
    layout = describe(nav, sig, dtype).layout
    strides = layout.pieces.rows().strides[0].tolist()
    records = [strides[0] * math.prod(nav[k + 1 :]) for k in range(len(nav))]
    piece = Piece(0, (0,) * len(nav + sig), nav + sig, 0, (*records, *strides[1:]))
    grid = Layout(layout.files, nav, sig, [piece], layout.decoders)
    return Description.of("h5", grid, {}, base_shape=base)


def test_tiles_end_with_blocks_of_a_row():
    """Rows of ten frames are blocks of 4, 4 and 2: tiles are whole rows, or blocks of one row."""
    desc = on_a_grid((6, 10), (8, 8), (1, 4, 8, 8))
    wish = TilingRequest(nbytes=128 * 24)
    assert negotiate(desc, wish).tile_shape == (20, 8, 8)
    one_row = negotiate(desc, wish, chunk_bytes=128 * 10)
    assert one_row.chunks[:2] == ((1,) * 6, (10,))
    assert negotiate(desc, TilingRequest(nbytes=128 * 5)).tile_shape == (10, 8, 8)
    assert negotiate(desc, TilingRequest(nbytes=128 * 5), chunk_bytes=1280).tile_shape[0] == 4


@pytest.mark.parametrize("base", [(1, 8), (1, 8, 0), (1, 1, 8, 8)])
def test_invalid_base_shapes_are_refused(base):
    with pytest.raises(TilingError, match="the format raw returns an invalid base_shape"):
        negotiate(with_base((9,), (8, 8), base))


def test_given_chunks_may_cut_blocks():
    desc = with_base((9,), (8, 8), (1, 8, 4))
    chunks = ((9,), (8,), (3, 5))
    scheme = negotiate(desc, chunks=chunks)
    assert scheme.chunks == chunks
    tiles = list(negotiate(desc, TilingRequest(nbytes=4), chunks=chunks).tiles((0, 0, 1)))
    assert {(t[2].start, t[2].stop) for t in tiles} == {(0, 1), (1, 5)}  # a block ends at 3 + 1


def test_chunks_are_aligned_if_their_size_allows():
    frames = describe((1024,), (8, 8), "u1")  # 64 frames are 4096 bytes
    usual = negotiate(frames, chunk_bytes=64 * 300)
    assert set(usual.chunks[0]) == {256}
    assert negotiate(frames, chunk_bytes=64 * 300, align_bytes=4096).chunks == usual.chunks
    odd = describe((1408,), (8, 8), "u1")
    assert negotiate(odd, chunk_bytes=64 * 140).chunks[0] == (128,) * 11
    uneven = describe((1000,), (8, 8), "u1")
    assert (
        negotiate(uneven, chunk_bytes=64 * 70, align_bytes=4096).chunks
        == negotiate(uneven, chunk_bytes=64 * 70).chunks
    )
    better = describe((2240,), (8, 8), "u1")
    assert set(negotiate(better, chunk_bytes=64 * 70).chunks[0]) == {70}
    assert set(negotiate(better, chunk_bytes=64 * 70, align_bytes=4096).chunks[0]) == {64}
    for n, scan in ((64, (767,)), (70, (2, 767))):  # the second row begins between aligned frames
        scheme = negotiate(describe(scan, (8, 8), "u1"), chunk_bytes=64 * 70, align_bytes=4096)
        assert scheme.chunks[len(scan) - 1][0] == n
    for start, step in ((1, 1), (0, 2)):  # begins or goes on between aligned frames
        part = describe((4480,), (8, 8), "u1").cut([Cut(start, step, 2240), *[Cut(0, 1, 8)] * 2])
        assert sizes_of(negotiate(part, chunk_bytes=64 * 70, align_bytes=4096))[0] == 70


def test_memory_limits_default_chunks():
    desc = describe((4096,), (64, 64), ">u2")
    small = negotiate(desc, memory_bytes=8 * MIB)
    assert set(small.chunks[0]) == {128}
    assert "8 chunks have to fit into 8 MiB, as given" in small.explain()
    assert negotiate(desc, memory_bytes=8 * MIB, chunk_bytes=2 * MIB).chunks[0][0] == 256
    assert negotiate(desc, memory_bytes=1 << 40).chunks == negotiate(desc).chunks


def test_tile_bytes_setting():
    desc = describe((4096,), (64, 64), ">u2")
    with dask.config.set({"dask-tiled.tile-bytes": "64 KiB"}):
        assert negotiate(desc).tile_shape == (8, 64, 64)
        assert "dask-tiled.tile-bytes" in negotiate(desc).explain()
        assert negotiate(desc, cache_bytes=1 << 20).tile_shape == (64, 64, 64)


@pytest.mark.parametrize("size", ["much", [], 0, -1])
def test_invalid_tile_bytes_are_refused(size):
    with dask.config.set({"dask-tiled.tile-bytes": size}), pytest.raises(TilingError):
        negotiate(describe((9,), (8, 8)))


@pytest.mark.parametrize(
    "option", ["chunk_bytes", "cache_bytes", "memory_bytes", "processors", "align_bytes"]
)
@pytest.mark.parametrize("value", [0, -1, "1 MiB", 1.5, True])
def test_invalid_sizes_are_refused(option, value):
    with pytest.raises(TilingError, match=option):
        negotiate(describe((9,), (8, 8)), **{option: value})


def test_too_many_explicit_chunks_are_refused():
    frames = 2**22 + 1
    for options in ({"chunks": ((1,) * frames, 4, 4)}, {"chunk_bytes": 16}):
        with pytest.raises(TilingError, match="too many chunks"):
            negotiate(describe((frames,), (4, 4), "u1"), **options)


@pytest.mark.parametrize("frames", [2**50, 10**16])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"requests": TilingRequest("pixel")},
        {"requests": TilingRequest("frame"), "align_bytes": 4096}, {"chunks": "auto"},
        {"chunks": ("auto", 2, -1)}, {"chunks": {"frame": 1000}}, {"chunks": {-3: 1000}},
        {"chunks": 7}, {"chunks": "1MiB"}, {"chunks": [5, 4, 4]},
    ],
    ids=repr,
)  # fmt: skip
def test_too_many_chunks_are_refused_without_memory(frames, options):
    """Huge numbers of frames, from a header or a user, raise before chunks are listed."""
    claimed = describe((frames,), (4, 4), "u1")
    asked = describe((3,), (4, 4), "u1").with_frames((frames // 2**24, 2**24))
    for desc in (claimed, asked):
        if "chunks" in options and desc is asked:
            continue
        with pytest.raises(TilingError, match="too many chunks") as caught, peak_memory() as peak:
            negotiate(desc, **options)
        assert peak[0] < MIB
        assert int(caught.value.found.split(",")[0]) > MOST_CHUNKS
        assert str(desc.shape) in caught.value.found


@pytest.mark.parametrize(("terabytes", "by"), [(1, "tile"), (10, "frame"), (100, "tile")])
def test_chunks_of_large_files_grow(terabytes, by):
    """Chunks of 128 MiB grow where there would be more than 10,000."""
    frames = terabytes * 10**12 // 2**19
    desc = describe((frames,), (512, 512))
    count = len(negotiate(desc, TilingRequest(by), memory_bytes=1 << 40).chunks[0])
    wanted = min(frames / 256, 10_000)
    assert 0.95 * wanted <= count <= min(1.02 * wanted, 10_000)


def test_chunks_of_large_files_grow_to_half_of_the_memory():
    desc = describe((18_000_000,), (512, 512))
    assert 1000 < negotiate(desc, memory_bytes=1 << 30).chunks[0][0] <= 1024


@pytest.mark.parametrize(
    ("sizes", "shape", "whole", "budget", "expected"),
    [
        ((8, 6, 4), (16, 6, 4), 2, 24, (1, 6, 4)),
        ((8, 6, 4), (16, 6, 4), 2, 12, (1, 3, 4)),
        ((10, 6, 4), (10, 6, 4), 1, 100, (4, 6, 4)),  # of 10 frames, parts of 4, 4 and 2
        ((10, 6, 4), (20, 6, 4), 1, 100, (2, 6, 4)),
    ],
)
def test_divided_sizes(sizes, shape, whole, budget, expected):
    assert divided(sizes, shape, whole, budget) == expected


@pytest.mark.thorough
def test_chunks_of_large_series_grow():
    """Files of a series are divided evenly, or combined, into at most 10,000 chunks."""
    for per_file in (100, 1000, 4500, 100_000):
        desc = describe((18_000_000,), (512, 512), per_file=per_file)
        scheme = negotiate(desc, memory_bytes=1 << 40)
        assert 3000 < len(scheme.chunks[0]) <= 10_000
        edges = {*np.cumsum(scheme.chunks[0]).tolist()}
        files = range(per_file, 18_000_000, per_file)
        assert edges.issuperset(files) or {*files}.issuperset(edges - {18_000_000})


def test_chunks_that_are_asked_for_may_be_many():
    assert len(negotiate(describe((10**6,), (4, 4)), chunks=(1, -1, -1)).chunks[0]) == 10**6
    small = negotiate(describe((50, 50, 50), (50, 50)), TilingRequest("pixel", nbytes=1))
    assert math.prod(map(len, small.chunks)) > MOST_CHUNKS
