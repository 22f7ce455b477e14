"""`from_pieces`: arrays of boxes in any files, in any order."""

import pickle
import re
import runpy
from pathlib import Path

import dask.array as da
import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import boxes, part_of

import dask_tiled
from dask_tiled import DatasetError, Piece, TruncatedFileError, from_pieces
from dask_tiled.model.box_tree import BoxTree
from dask_tiled.model.coverage import first_overlap
from dask_tiled.model.decoders import Decoder
from dask_tiled.reading import buffered
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

ZLIB = {"id": "zlib", "level": 1}
STORED = ["<u2", ">u2", "<u4", "u1", ("<u2", ZLIB), (">i8", ZLIB)]


@pytest.fixture
def raw(tmp_path):
    """Write 6 x 4 x 5 numbers to a file, and return its path and the numbers."""
    pixels = counting_frames((6, 4, 5), "u2")
    (tmp_path / "a.raw").write_bytes(pixels.tobytes())
    return tmp_path / "a.raw", pixels


def turned(draw, part):
    """Store pixels with permuted, reversed or spread axes; return bytes, offset and strides."""
    order = draw(st.permutations(range(part.ndim)))
    steps = [draw(st.sampled_from([1, -1, 2, -3])) for _ in order]
    sizes = [1 + abs(step) * (part.shape[k] - 1) for k, step in zip(order, steps, strict=True)]
    memory = np.zeros(sizes, part.dtype)
    shown = memory[tuple(slice(None, None, step) for step in steps)].transpose(np.argsort(order))
    shown[...] = part
    first, base = (a.__array_interface__["data"][0] for a in (shown, memory))
    return memory.tobytes(), first - base, shown.strides


@pytest.mark.thorough
@given(data=st.data())
def test_random_boxes_over_random_files(tmp_path_factory, data):
    """Boxes of any dtype and codec read back in any chunks; gaps and overlaps obey the options."""
    folder = tmp_path_factory.mktemp("boxes")
    draw = data.draw
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    pixels = np.random.default_rng(0).integers(1, 250, shape, "u2")
    contents, pieces = [b""] * draw(st.integers(1, 3)), []
    expected, held = np.full(shape, 999, "i4"), np.zeros(shape, int)
    overlap = draw(st.sampled_from(["raise", "first", "last"]))
    for box in draw(boxes(shape)):
        kind, i = draw(st.integers(0, len(STORED) - 1)), draw(st.integers(0, len(contents) - 1))
        if draw(st.integers(0, 5)) == 0:
            continue
        grown = overlap != "raise" and draw(st.booleans())
        place = tuple(slice(max(0, a - grown), b) for a, b in box)
        part = (pixels[place] + (draw(st.integers(0, 5)) if grown else 0)).astype("u2")
        stored, codec = STORED[kind] if isinstance(STORED[kind], tuple) else (STORED[kind], None)
        content, first, strides, nbytes = part.astype(stored).tobytes(), 0, (), 0
        if codec:
            content = numcodecs.get_codec(codec).encode(content)
            nbytes = len(content)
        elif draw(st.booleans()):
            content, first, strides = turned(draw, part.astype(stored))
        start, offset = tuple(s.start for s in place), len(contents[i]) + first
        piece = Piece(folder / f"{i}", start, part.shape, offset, strides, kind, nbytes)
        pieces.append(piece)
        contents[i] += content
        if overlap == "last":
            expected[place] = part
        else:
            expected[place] = np.where(held[place] > 0, expected[place], part)
        held[place] += 1
    for i, content in enumerate(contents):
        (folder / f"{i}").write_bytes(content)
    if not pieces:
        return
    options = {"shape": shape, "dtype": "i4", "decoders": STORED, "overlap": overlap}
    if not held.all():
        with pytest.raises(DatasetError, match="not covered by any piece") as caught:
            from_pieces(pieces, **options)
        pixel = re.search(r"pixel \(([\d, ]+)\)", str(caught.value))[1]
        assert not held[tuple(map(int, pixel.strip(", ").split(",")))]
    sig_ndim = draw(st.integers(1, len(shape)))
    options |= {"uncovered": "fill", "fill_value": 999, "sig_ndim": sig_ndim}
    options["io"] = draw(st.sampled_from(["auto", *BACKENDS]))
    chunks = tuple(draw(st.integers(1, n)) for n in shape)
    arr = from_pieces(pieces, **options, chunks=chunks)
    assert arr.dtype == "i4"
    np.testing.assert_array_equal(arr.compute(), expected)
    index = part_of(draw, expected)
    np.testing.assert_array_equal(arr[index].compute(), expected[index])
    for axes in (tuple(range(arr.ndim - sig_ndim)), None):
        np.testing.assert_array_equal(arr.sum(axis=axes), expected.sum(axis=axes))
        np.testing.assert_array_equal(arr[index].max(axis=axes), expected[index].max(axis=axes))


@pytest.mark.thorough
@given(data=st.data())
def test_box_tree_agrees_with_linear_search(data):
    ndim, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 700))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    start = rng.integers(0, data.draw(st.sampled_from([4, 60, 4000])), (count, ndim))
    stop = start + rng.integers(1, data.draw(st.sampled_from([2, 9])), (count, ndim))
    tree = BoxTree(list(start.T), list(stop.T), count)
    for _ in range(5):
        low = rng.integers(0, start.max() + 2, ndim)
        high = low + rng.integers(1, 40, ndim)
        meets = ((start < high) & (stop > low)).all(axis=1)
        np.testing.assert_array_equal(tree.meeting(low, high), np.flatnonzero(meets))
    check_pair(tree.overlap(), start, stop)


def check_pair(found, start, stop):
    """Compare the pair found, or None, with an exhaustive search."""
    common = (start[:, None] < stop) & (stop[:, None] > start)
    pairs = common.all(axis=2) & ~np.eye(len(start), dtype=bool)
    assert (found is not None) == pairs.any()
    if found is not None:
        assert pairs[found]


@pytest.mark.thorough
@settings(max_examples=settings.default.max_examples * 3)
@given(data=st.data())
def test_overlaps_are_found(data):
    """Overlaps are found among boxes that tile a space, some of which were moved or enlarged."""
    draw = data.draw
    ndim = draw(st.integers(1, 3))
    scale = draw(st.sampled_from([1, 1, 7, 1 << 40, 1 << 61]))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    todo, boxes = [((0,) * ndim, tuple(draw(st.integers(1, 40)) for _ in range(ndim)))], []
    while todo:
        box = todo.pop(rng.integers(len(todo)))
        parts = cut(rng, *box) if len(todo) + len(boxes) < 200 and rng.random() < 0.9 else []
        todo += parts
        boxes += [] if parts else [box]
    low, high = np.moveaxis(np.array(boxes)[rng.permutation(len(boxes))], 1, 0)
    for _ in range(draw(st.integers(0, 3))):
        i, axis = rng.integers(len(low)), rng.integers(ndim)
        high[i, axis] += 1
        low[i, axis] += rng.integers(2)
    scale = min(scale, (2**63 - 1) // int(high.max()))
    start, stop = low * scale, high * scale
    columns = [[c[:1] if (c == c[0]).all() else c for c in bounds.T] for bounds in (start, stop)]
    check_pair(first_overlap(*columns, len(start)), start, stop)


def cut(rng, low, high):
    """Cut a box in two, or in a pinwheel of five, which no plane separates."""
    wide = [k for k in range(len(low)) if high[k] - low[k] > 2]
    if len(wide) > 1 and rng.random() < 0.5:
        (x, y), box = rng.permutation(wide)[:2], np.array([low, high])
        (a, c), (b, d) = box[:, x], box[:, y]
        e, f = rng.integers(a + 1, c - 1), rng.integers(b + 1, d - 1)
        around = [(a, e, b, f + 1), (a, e + 1, f + 1, d), (e + 1, c, f, d), (e, c, b, f)]
        parts = []
        for first, stop, left, right in [*around, (e, e + 1, f, f + 1)]:
            part = box.copy()
            part[:, x], part[:, y] = (first, stop), (left, right)
            parts.append(part)
        return parts
    wide = [k for k in range(len(low)) if high[k] - low[k] > 1]
    if not wide:
        return []
    axis = rng.choice(wide)
    at = rng.integers(low[axis] + 1, high[axis])
    below, above = np.array([low, high]), np.array([low, high])
    below[1, axis] = above[0, axis] = at
    return [below, above]


@pytest.mark.thorough
@pytest.mark.parametrize("overlap", ["raise", "last"])
def test_adjacent_pieces_are_read_at_once(tmp_path, monkeypatch, overlap):
    """One read fetches all tiles of a frame, or 2000 pieces of a line."""
    calls, preadv = [], buffered.preadv
    monkeypatch.setattr(buffered, "preadv", lambda *args: calls.append(args) or preadv(*args))
    frames = np.random.default_rng(0).integers(0, 255, (3, 128, 128)).astype("u1")
    tiles = frames.reshape(3, 4, 32, 4, 32).swapaxes(2, 3)
    (tmp_path / "a.raw").write_bytes(tiles.tobytes())
    places = np.indices((3, 4, 4)).reshape(3, -1).T * (1, 32, 32)
    options = {"files": [tmp_path / "a.raw"], "io": "buffered", "overlap": overlap}
    columns = {"start": places, "shape": (1, 32, 32), "offset": 1024 * np.arange(48)}
    arr = from_pieces(columns, shape=frames.shape, dtype="u1", **options, chunks=(1, -1, -1))
    np.testing.assert_array_equal(arr, frames)
    assert len(calls) == 3
    calls.clear()
    columns = {"start": np.arange(2000)[:, None] * 8, "shape": 8, "offset": 8 * np.arange(2000)}
    line = from_pieces(columns, shape=(16000,), dtype="u1", **options)
    np.testing.assert_array_equal(line, tiles.ravel()[:16000])
    assert len(calls) == 1
    columns["offset"] = 24 * np.arange(2000)  # with gaps, which may be read as well
    line = from_pieces(columns, shape=(16000,), dtype="u1", **options)
    np.testing.assert_array_equal(line, tiles.ravel()[:48000].reshape(2000, 24)[:, :8].ravel())


@pytest.mark.parametrize("dtype", ["u2", "f4"])
def test_compressed_pieces_at_the_same_place(tmp_path, dtype):
    """Cached decoded pieces are not confused when several pieces start at the same pixel."""
    pixels = np.random.default_rng(0).integers(0, 60000, (8, 400, 400)).astype("u2")
    parts = [pixels, (pixels + 1)[:, :300], (pixels + 2)[:, :300]]
    stored = [numcodecs.get_codec(ZLIB).encode(np.ascontiguousarray(part)) for part in parts]
    (tmp_path / "a.bin").write_bytes(b"".join(stored))
    ends = np.cumsum([0, *map(len, stored)]).tolist()
    pieces = [
        Piece(tmp_path / "a.bin", (0, 0, 0), part.shape, offset, nbytes=len(content))
        for part, offset, content in zip(parts, ends, stored, strict=False)
    ]
    options = {"shape": pixels.shape, "dtype": dtype, "decoders": [("u2", ZLIB)]}
    arr = from_pieces(pieces, **options, overlap="last")
    expected = np.concatenate([parts[2], pixels[:, 300:]], axis=1)
    np.testing.assert_array_equal(arr, expected)
    np.testing.assert_array_equal(arr.sum(axis=0), expected.sum(axis=0))
    np.testing.assert_array_equal(from_pieces(pieces, **options, overlap="first"), pixels)


def test_hole_between_many_overlapping_pieces(tmp_path, monkeypatch):
    """The uncovered pixel is found without one query per piece."""
    n = 120
    places = np.stack(np.meshgrid(*[9 * np.arange(n)] * 2, indexing="ij"), -1).reshape(-1, 2)
    (tmp_path / "a.raw").write_bytes(bytes(100))
    looks, meeting = [], BoxTree.meeting
    monkeypatch.setattr(BoxTree, "meeting", lambda *box: looks.append(box) or meeting(*box))
    columns = {"shape": (10, 10), "offset": 0}
    options = {"shape": (9 * n + 1,) * 2, "dtype": "u1", "files": [tmp_path / "a.raw"]}
    from_pieces({"start": places, **columns}, **options, overlap="last")
    with pytest.raises(DatasetError, match=r"pixel \(604, 532\)"):
        from_pieces(
            {"start": np.delete(places, 67 * n + 59, 0), **columns}, **options, overlap="last"
        )
    assert len(looks) < 200


@pytest.mark.slow
def test_many_pieces(tmp_path, loads):
    """100,000 shuffled pieces pickle small, and a slice reads only its own bytes."""
    n = 100_000
    order = np.random.default_rng(0).permutation(n)
    numbers = np.arange(4 * n, dtype="<u4").reshape(n, 2, 2)
    numbers[order].tofile(tmp_path / "a.raw")
    start = np.column_stack([order, 0 * order, 0 * order])
    columns = {"start": start, "shape": (1, 2, 2), "offset": 16 * np.arange(n)}
    options = {"dtype": "<u4", "files": [tmp_path / "a.raw"], "io": "counting"}
    arr = from_pieces(columns, shape=numbers.shape, **options)
    assert isinstance(arr, dask_tiled.TiledArray)
    assert len(pickle.dumps(arr)) < 4e6
    np.testing.assert_array_equal(arr[77_000:77_010].compute(), numbers[77_000:77_010])
    assert loads.nbytes == 160
    assert int(arr.sum().compute()) == int(numbers.sum(dtype="u8"))


def test_example_script(capsys):
    example = Path(__file__).parents[2] / "examples" / "pieces.py"
    runpy.run_path(str(example), run_name="__main__")
    assert "all pixels are equal" in capsys.readouterr().out


def test_tables(raw):
    """Structured arrays, lists of pieces and data frames are accepted as tables."""
    pandas = pytest.importorskip("pandas")
    path, pixels = raw
    rows = [((3, 0, 0), (3, 4, 5), 120), ((0, 0, 0), (3, 4, 5), 0)]
    kinds = [("offset", "i8"), ("start", "i8", 3), ("shape", "i8", 3)]
    table = np.array([(offset, start, shape) for start, shape, offset in rows], kinds)
    frame = pandas.DataFrame(rows, columns=["start", "shape", "offset"])
    listed = [Piece(np.int64(0), *row) for row in rows]
    for pieces in (table, listed, frame, frame.assign(file=path)):
        arr = from_pieces(pieces, shape=(6, 4, 5), dtype="u2", files=[path])
        np.testing.assert_array_equal(arr, pixels)


def test_packed_pixels(tmp_path):
    """A Decoder can be passed in place of a dtype."""
    packed = np.frombuffer(bytes([0x21, 0x43, 0x65] * 16), "u1")
    (tmp_path / "a.raw").write_bytes(packed.tobytes())
    unpack = Decoder("unpack12", np.dtype("u2"), 24, 16)
    pieces = [Piece(tmp_path / "a.raw", (0, 0), (2, 16))]
    arr = from_pieces(pieces, shape=(2, 16), dtype="f4", decoders=[unpack])
    np.testing.assert_array_equal(arr, np.tile(np.array([0x321, 0x654], "f4"), (2, 8)))


def test_to_zarr_and_several_threads(raw, tmp_path):
    path, pixels = raw
    pieces = [Piece(path, (k, 0, 0), (1, 4, 5), 40 * k) for k in range(6)]
    arr = from_pieces(pieces, shape=(6, 4, 5), dtype="u2", chunks=(4, 3, 5))
    dask_tiled.to_zarr(arr, tmp_path / "a.zarr")
    np.testing.assert_array_equal(da.from_zarr(tmp_path / "a.zarr", component="data"), pixels)
    np.testing.assert_array_equal(arr.compute(scheduler="threads"), pixels)


WHOLE = {"start": (0, 0, 0), "shape": (6, 4, 5), "offset": 0}


@pytest.mark.parametrize(
    ("columns", "options", "problem"),
    [
        ({}, {"shape": (5, 4, 5)}, "outside of the array"),
        ({"start": (-1, 0, 0)}, {"overlap": "first"}, "outside of the array"),
        ({"start": [(0, 0, 0), (3, 0, 0)]}, {"overlap": "last"}, "piece 1, axis 0"),
        ({"shape": (6, 0, 5)}, {}, "outside of the array"),
        ({"offset": 1}, {}, "beyond the file"),
        ({"offset": 1 << 70}, {}, "not form a table"),
        ({"offset": 1.5}, {}, "whole numbers"),
        ({"offset": np.array([np.nan])}, {}, "whole numbers"),
        ({"start": (0.5, 0, 0)}, {}, "whole numbers"),
        ({"file": 0.5}, {}, "not form a table"),
        ({"offset": [0, 0], "nbytes": [0, 0, 0]}, {}, "different lengths"),
        ({"strides": (40, 10, 1 << 50)}, {}, "beyond the file"),
        ({"strides": (40, 10, 1 << 62)}, {}, "beyond the file"),  # times 4 overflows to 0
        ({"strides": (40, 10, -(1 << 62))}, {}, "beyond the file"),
        ({"start": (0, 0)}, {}, "for each axis"),
        ({"offset": [0, 0]}, {}, "pieces overlap"),
        ({"shape": (5, 4, 5)}, {}, "not covered by any piece"),
        ({"decoder": 1}, {}, "no such decoder"),
        ({"file": 1}, {}, "no such file"),
        ({"color": 1}, {}, "unknown or missing columns"),
        (
            {},
            {"decoders": [("u2", {"id": "no such"})]},
            r"unsupported codec[\s\S]*numcodecs\[zfpy\]",
        ),
        ({}, {"decoders": ["no such"]}, "not a decoder"),
        ({}, {"decoders": ["u2", "i8", "u8"]}, "no integer dtype"),  # NumPy promotes to float64
        ({}, {"dtype": "no such"}, "not a decoder"),
        ({"shape": (1, 1, 5)}, {"dtype": object, "shape": (1, 1, 5)}, "not a decoder"),
        ({}, {"overlap": "later"}, "no such overlap"),
        ({}, {"uncovered": None}, "no such uncovered"),
        ({}, {"sig_ndim": 4}, "too many signal axes"),
        ({}, {"sig_ndim": 0}, "sig_ndim"),
        ({}, {"shape": (6, 4, 0)}, "every size"),
        ({}, {"shape": ()}, "invalid shape"),
        ({}, {"shape": (1 << 70, 4, 5)}, "invalid shape"),
        ({}, {"axes": [dask_tiled.Axis("y")]}, "Axis"),
        ({}, {"axes": [dask_tiled.Axis("y")] * 3}, "Axis"),
        ({}, {"axes": ["z", "y", "x"]}, "Axis"),
        ({}, {"axes": {"z": "3 nm"}}, "no such axis"),
    ],
)
def test_invalid_arguments_are_refused(raw, columns, options, problem):
    path, _ = raw
    options = {"shape": (6, 4, 5), "dtype": "u2", "files": [path], **options}
    with pytest.raises(DatasetError, match=problem):
        from_pieces({**WHOLE, **columns}, **options)


def test_missing_pieces_and_files(tmp_path):
    with pytest.raises(DatasetError, match="no pieces"):
        from_pieces([], shape=(1,), dtype="u1")
    with pytest.raises(FileNotFoundError, match=r"gone\.raw"):
        from_pieces([Piece(tmp_path / "gone.raw", (0,), (1,))], shape=(1,), dtype="u1")


def test_errors_name_the_damaged_piece(tmp_path):
    path, options = tmp_path / "a.bin", {"shape": (4,), "dtype": "u2", "decoders": [("u2", ZLIB)]}
    short = numcodecs.get_codec(ZLIB).encode(b"123")
    for content, problem in ((b"damaged", r"a\.bin"), (short, "found 3 bytes")):
        path.write_bytes(content)
        arr = from_pieces([Piece(path, (0,), (4,), nbytes=len(content))], **options)
        with pytest.raises(dask_tiled.CorruptFileError, match=problem):
            arr.compute()
    with pytest.raises(TruncatedFileError):
        from_pieces([Piece(path, (0,), (4,), nbytes=len(short) + 1)], **options)
