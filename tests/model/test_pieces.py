"""Layouts of pieces: strided boxes, blocks that decode as a whole, repeated rows."""

import math
import pickle
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import part_of

from dask_tiled.errors import CorruptFileError, StaleFileError, TruncatedFileError
from dask_tiled.files.file import File
from dask_tiled.model.decoders import BlockDecoder, plain
from dask_tiled.model.description import Description
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece, piece_table, table_of
from dask_tiled.opened.building import build
from dask_tiled.reading.backends import BACKENDS
from dask_tiled.testing import counting_frames
from dask_tiled.tiles import apply_masks
from dask_tiled.tiling.scheme import negotiate

pytestmark = pytest.mark.usefixtures("synchronous")

decoded = []


def inflate(block, fetch, *, factor):
    """Decode a compressed block."""
    decoded.append(block.start)
    data = zlib.decompress(fetch(block.file, block.offset, block.offset + block.nbytes))
    return np.frombuffer(data, "u2").reshape(block.shape) * np.uint16(factor)


def wrong_shape(block, _fetch):
    return np.zeros(math.prod(block.shape), "u2")


INFLATE = BlockDecoder("test_pieces:inflate", np.dtype("u2"), (("factor", 3),))
STORED = [plain(np.dtype("<u2")), plain(np.dtype(">u2"))]


def test_blocks_are_decoded_once_per_chunk(tmp_path):
    """A block is decoded once even if several tiles need it."""
    pixels = counting_frames((8, 64, 64), "u2", bits=12) * np.uint16(3)
    contents, pieces = b"", []
    for first in (0, 4):
        for y in (0, 32):
            part = pixels[first : first + 4, y : y + 32]
            data = zlib.compress((part // 3).tobytes())
            offset = len(contents)
            pieces.append(Piece(0, (first, y, 0), part.shape, offset, (0,) * 3, 0, len(data)))
            contents += data
    (tmp_path / "blocks").write_bytes(contents)
    layout = Layout([File.at(tmp_path / "blocks")], (8,), (64, 64), pieces, [INFLATE])
    desc = Description.of("blocks", layout, {}, base_shape=(4, 32, 64))
    arr = build(desc, negotiate(desc, cache_bytes=8192), "mmap")
    decoded.clear()
    np.testing.assert_array_equal(arr.compute(), pixels)
    assert sorted(decoded) == sorted(piece.start for piece in pieces)
    decoded.clear()
    np.testing.assert_array_equal(
        apply_masks(arr, np.ones((1, 64, 64)))[:, 0].compute(), pixels.sum(axis=(1, 2))
    )
    assert sorted(decoded) == sorted(piece.start for piece in pieces)
    decoded.clear()
    arr[5, 40].compute()
    assert decoded == [(4, 32, 0)]


def test_blocks_of_unexpected_shape_raise(tmp_path):
    """The error names the file, the offset and the expected shape."""
    (tmp_path / "b").write_bytes(b"12345678")
    piece = Piece(0, (0, 0, 0), (1, 2, 2), 4, (0, 0, 0), 0, 4)
    wrong = BlockDecoder("test_pieces:wrong_shape", np.dtype("u2"))
    file = File.at(tmp_path / "b")
    desc = Description.of("b", Layout([file], (1,), (2, 2), [piece], [wrong]), {})
    with pytest.raises(CorruptFileError, match=r"byte 4; expected \(1, 2, 2\) uint16; found"):
        build(desc, negotiate(desc), "auto").compute()
    with pytest.raises(TruncatedFileError, match="beyond the file"):
        Layout([file], (1,), (2, 2), [piece._replace(nbytes=5)], [wrong])


@pytest.mark.parametrize("io", sorted(BACKENDS))
def test_blocks_of_changed_files_raise(tmp_path, io):
    data = zlib.compress(np.zeros(4, "u2").tobytes())
    (tmp_path / "b").write_bytes(data)
    piece = Piece(0, (0, 0, 0), (1, 2, 2), 0, (0, 0, 0), 0, len(data))
    layout = Layout([File.at(tmp_path / "b")], (1,), (2, 2), [piece], [INFLATE])
    desc = Description.of("b", layout, {})
    arr = build(desc, negotiate(desc), io)
    (tmp_path / "b").write_bytes(data + b"!")
    with pytest.raises(StaleFileError):
        arr.compute()


@pytest.mark.thorough
@settings(max_examples=settings.default.max_examples // 2)
@given(data=st.data())
def test_repeated_rows(tmp_path_factory, data):
    """Binned rows of two chips, one of them rotated, are repeated to full height."""
    folder = tmp_path_factory.mktemp("repeats")
    times, n, height, width = (data.draw(st.integers(1, k)) for k in (4, 6, 5, 70))
    raw = counting_frames((n, height, 2, width), "u2")
    raw.tofile(folder / "folded")
    top, bottom = raw[:, :, 0], raw[:, ::-1, 1, ::-1]
    pixels = np.concatenate([top, bottom], axis=1).repeat(times, axis=1)
    frame, row = raw[0].nbytes, 4 * width
    shape = n, height * times, width
    pieces = [
        Piece(0, (0, 0, 0), shape, 0, (frame, row, 2)),
        Piece(0, (0, height * times, 0), shape, frame - 2, (frame, -row, -2)),
    ]
    files, sig = [File.at(folder / "folded")], (2 * height * times, width)
    layout = Layout(files, (n,), sig, pieces, STORED[:1], repeats=(times, 1))
    desc = Description.of("folded", layout, {})
    io = data.draw(st.sampled_from(sorted(BACKENDS)))
    arr = build(desc, negotiate(desc), io)
    np.testing.assert_array_equal(arr.compute(), pixels)
    chunks = tuple(data.draw(st.integers(1, n)) for n in pixels.shape)
    index = part_of(data.draw, pixels)
    some = arr.with_chunks(chunks)[index]
    np.testing.assert_array_equal(some.compute(), pixels[index])
    for axis in (0, (1, 2), None):
        np.testing.assert_array_equal(some.sum(axis=axis).compute(), pixels[index].sum(axis=axis))
    masks = np.random.default_rng(0).integers(0, 9, (2, *some.shape[1:])).astype("f8")
    expected = np.einsum("fyx,myx->fm", pixels[index], masks)
    np.testing.assert_allclose(apply_masks(some, masks).compute(), expected)


def test_tables_of_columns_equal_tables_of_pieces():
    pieces = [Piece(i, (i, 0), (1, 9), 7 + 5 * i, (0, 2), 1, 3) for i in range(4)]
    i = np.arange(4)
    start = np.stack([i, 0 * i], axis=1)
    table = piece_table(start, (1, 9), 7 + 5 * i, (0, 2), file=i, decoder=1, nbytes=3)
    for found, expected in zip(table.rows(), table_of(pieces).rows(), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert list(table.content) == list(table_of(pieces).content)


def test_tables_are_pickled_without_their_caches():
    """A source that was read here is sent to a cluster in as few bytes as before."""
    start = np.random.default_rng(0).permutation(1000)[:, None]
    table = piece_table(start, (1,), 2 * start[:, 0], (2,))
    sent = pickle.dumps(table)
    assert len(table.tree.meeting([5], [6])) == 1
    assert table.decoders == [0]
    assert pickle.dumps(table) == sent
    assert pickle.loads(sent).tree.meeting([5], [6]) == table.tree.meeting([5], [6])
