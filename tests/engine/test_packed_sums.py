"""Sums of packed 12-bit frames equal NumPy's."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import Description, negotiate
from dask_tiled.engine import folding
from dask_tiled.files.file import File
from dask_tiled.model.decoders import Decoder, plain
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece
from dask_tiled.opened.building import build
from dask_tiled.reading import backends
from dask_tiled.tiles import apply_masks

pytestmark = pytest.mark.usefixtures("synchronous")


def packed(pixels):
    """Pack pixels, the lowest bits first."""
    even, odd = pixels.reshape(-1, 2).T
    return np.stack([even & 0xFF, even >> 8 | (odd & 0xF) << 4, odd >> 4], -1).astype("u1").ravel()


def unpack12(pixels):
    return Decoder("unpack12", np.dtype("u2"), pixels * 3 // 2, pixels)


def opened(layout, chunks=None, io="auto"):
    desc = Description.of("packed", layout, {})
    return build(desc, negotiate(desc, chunks=chunks), io)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("packed") / "frames.raw"


@pytest.mark.thorough
@given(st.data())
def test_any_frames(path, data):
    """Frames are blocks of rows in either direction, with and without gaps."""
    frames, rows = data.draw(st.integers(1, 37)), data.draw(st.integers(1, 9))
    blocks, unit = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([16, 32, 64]))
    gap, high = data.draw(st.integers(0, 40)), data.draw(st.sampled_from([1, 4096]))
    # The brightest pixels come closest to overflowing the lanes.
    shape = frames, blocks, rows, unit
    pixels = np.random.default_rng(0).integers(4096 - high, 4096, shape).astype("u2")
    rows_bytes = unit * 3 // 2
    block_bytes = rows * rows_bytes + gap
    stored = np.zeros((frames, blocks, block_bytes), "u1")
    stored[..., : rows * rows_bytes] = packed(pixels).reshape(frames, blocks, -1)
    stored.tofile(path)
    strides = [blocks * block_bytes, rows_bytes, block_bytes]
    starts, shown = [0, 0, 0], pixels.transpose(0, 2, 1, 3)
    for axis in range(3):
        if data.draw(st.booleans()):
            starts[axis] = strides[axis] * (shown.shape[axis] - 1)
            strides[axis] *= -1
            shown = np.flip(shown, axis)
    shown = shown.reshape(frames, rows, blocks * unit)
    piece = Piece(0, (0, 0, 0), shown.shape, sum(starts), tuple(strides))
    layout = Layout([File.at(path)], (frames,), shown.shape[1:], [piece], [unpack12(unit)])
    chunks = (data.draw(st.integers(1, frames)), rows, blocks * unit)
    arr = opened(layout, chunks, data.draw(st.sampled_from([*backends.BACKENDS])))
    narrow = data.draw(st.sampled_from([0, folding.NARROW_FRAMES]))  # sums of 8 or 4 bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folding, "NARROW_FRAMES", narrow)
        found = arr.sum(axis=0).compute()
        mean = arr[::2].mean(axis=0).compute()
    assert found.dtype == np.uint64
    np.testing.assert_array_equal(found, shown.sum(axis=0))
    np.testing.assert_allclose(mean, shown[::2].mean(axis=0))
    np.testing.assert_array_equal(arr.max(axis=(1, 2)), shown.max(axis=(1, 2)))
    masks = np.random.default_rng(0).random((2, *shown.shape[1:]))
    expected = np.einsum("fyx,myx->fm", shown, masks)
    np.testing.assert_allclose(apply_masks(arr, masks).compute(), expected)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("others", ["packed", "plain"])
def test_files_with_different_layouts(tmp_path, first, others):
    """Sums in the order of one file are reordered before those of another file are added."""
    frames, shape = 5, (6, 32)
    pixels = np.random.default_rng(1).integers(0, 4096, (2, frames, *shape)).astype("u2")
    turned = pixels[0].reshape(frames, 6, 2, 16).transpose(0, 2, 1, 3)
    packed(np.ascontiguousarray(turned)).tofile(tmp_path / "blocks.raw")
    if others == "packed":
        packed(pixels[1]).tofile(tmp_path / "rows.raw")
        decoder, strides = unpack12(16), (6 * 48, 48, 24)
    else:
        pixels[1].astype(">u2").tofile(tmp_path / "rows.raw")
        decoder, strides = plain(np.dtype(">u2")), (6 * 64, 64, 2)
    files = [File.at(tmp_path / name) for name in ("blocks.raw", "rows.raw")]
    at = [(first * frames, 0, 0), ((1 - first) * frames, 0, 0)]
    pieces = [
        Piece(0, at[0], (frames, *shape), 0, (12 * 24, 24, 6 * 24), 0),
        Piece(1, at[1], (frames, *shape), 0, strides, 1),
    ]
    layout = Layout(files, (2 * frames,), shape, pieces, [unpack12(16), decoder])
    arr = opened(layout, (2 * frames, *shape))
    for name in ("sum", "max", "std"):
        expected = getattr(pixels.reshape(-1, *shape), name)(axis=0)
        np.testing.assert_allclose(getattr(arr, name)(axis=0).compute(), expected)
    assert math.isclose(arr.sum().compute(), pixels.sum())
