"""Bitshuffle and LZ4 kernels agree with the libraries and stay inside their buffers."""

import numpy as np
import pytest
from guarded_memory import at_the_end, decode, guarded
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled.kernels.bitshuffle import compiled_kernel
from dask_tiled.kernels.lz4 import SLACK, unlz4

imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")

pytestmark = pytest.mark.thorough


def decompress(packed, size):
    """Decode a block; None if it is damaged."""
    out = guarded(size + SLACK)
    return out[:size] if unlz4(at_the_end(packed), 0, len(packed), out, size) else None


def periodic(seed, period, size):
    """Return repeated noise with some errors, for matches of many distances and lengths."""
    rng = np.random.default_rng(seed)
    data = np.resize(rng.integers(0, 256, period, "u1"), size)
    data[rng.integers(0, size, size // 200)] = 7
    return data.tobytes()


CONTENTS = st.one_of(
    st.builds(periodic, st.integers(0, 9), st.integers(1, 70), st.integers(1, 9000)),
    st.builds(lambda seed, size: np.random.default_rng(seed).bytes(size), st.integers(0, 9),
              st.integers(1, 9000)),
    st.builds(lambda seed, mean, size: np.random.default_rng(seed).poisson(mean, size).astype("u1")
              .tobytes(), st.integers(0, 9), st.floats(0, 3), st.integers(1, 9000)),
)  # fmt: skip


@settings(max_examples=150)
@given(CONTENTS)
def test_blocks_of_lz4(content):
    packed = imagecodecs.lz4_encode(content)
    assert decompress(packed, len(content)).tobytes() == content
    assert decompress(packed, len(content) + 1) is None
    assert decompress(packed, len(content) - 1) is None


@settings(max_examples=300)
@given(CONTENTS, st.data())
def test_damaged_blocks_of_lz4(content, data):
    """Decoding fails or equals the library's, and stays inside the buffers."""
    packed = bytearray(imagecodecs.lz4_encode(content))
    place = st.integers(0, min(20, len(packed)) - 1) | st.integers(0, len(packed) - 1)
    for at in data.draw(st.lists(place, max_size=4)):
        packed[at] = data.draw(st.sampled_from([0, 1, 15, 240, 255]) | st.integers(0, 255))
    packed = bytes(packed[: data.draw(st.just(len(packed)) | place)])
    found = decompress(packed, len(content))
    if found is not None:
        assert imagecodecs.lz4_decode(packed, out=len(content)) == found.tobytes()


def shuffled(pixels, block):
    """Return the bytes of pixels bitshuffled by the library."""
    out = np.empty(pixels.nbytes, "u1")
    imagecodecs.bitshuffle_encode(
        pixels.tobytes(), itemsize=pixels.itemsize, blocksize=block, out=out
    )
    return out


def packed(pixels, block):
    """Return a chunk as the HDF5 filter writes it."""
    size, whole = pixels.itemsize, pixels.size - pixels.size % 8
    content = shuffled(pixels, block)
    parts = [pixels.nbytes.to_bytes(8, "big"), (block * size).to_bytes(4, "big")]
    for first in range(0, whole, block):
        one = content[first * size : min(first + block, whole) * size]
        made = imagecodecs.lz4_encode(one.tobytes())
        parts += [len(made).to_bytes(4, "big"), made]
    return b"".join((*parts, content[whole * size :].tobytes()))


PIXELS = st.sampled_from(["u1", "u2", "i2", "u4", "f4", "u8", "c16", "S3"])


@settings(max_examples=100)
@given(
    *(PIXELS, st.sampled_from([0, 0.01, 0.3, 3, 50]), st.integers(0, 9)),
    *(st.integers(1, 6000), st.sampled_from([8, 64, 72, 1024, 4096]), st.booleans()),
)
def test_chunks(kind, mean, seed, count, block, compressed):
    """Sparse and dense chunks are decoded, several at once."""
    dtype, rng = np.dtype(kind), np.random.default_rng(seed)
    if mean > 10 or dtype.kind == "S":
        made = [rng.bytes(count * dtype.itemsize) for _ in range(3)]
    else:
        made = [rng.poisson(mean, count).astype(dtype).tobytes() for _ in range(3)]
    pixels = [np.frombuffer(one, f"V{dtype.itemsize}") for one in made]
    chunks = [packed(x, block) if compressed else shuffled(x, block).tobytes() for x in pixels]
    nbytes = count * dtype.itemsize
    done, found = decode(
        compiled_kernel, chunks, nbytes, dtype.itemsize, 0 if compressed else block
    )
    assert done == 3
    assert [one.tobytes() for one in found] == made


@settings(max_examples=200)
@given(st.data(), st.sampled_from([2, 4]), st.integers(1, 3000))
def test_damaged_chunks(data, itemsize, count):
    """Chunks before a damaged one are decoded, and decoding stays inside the buffers."""
    pixels = np.random.default_rng(count).poisson(1, count).astype(f"u{itemsize}")
    good, bad = packed(pixels, 512), bytearray(packed(pixels, 512))
    place = st.integers(0, min(24, len(bad)) - 1) | st.integers(0, len(bad) - 1)
    for at in data.draw(st.lists(place, max_size=4)):
        bad[at] = data.draw(st.sampled_from([0, 1, 15, 240, 255]) | st.integers(0, 255))
    bad = bytes(bad[: data.draw(st.just(len(bad)) | place)])
    other = data.draw(st.just(itemsize) | st.integers(1, 2**32))
    done, found = decode(compiled_kernel, [good, bad], pixels.nbytes, itemsize, 0)
    assert done >= 1
    np.testing.assert_array_equal(found[0].view(pixels.dtype), pixels)
    block = data.draw(st.just(0) | st.integers(0, 2**32))
    decode(compiled_kernel, [bad], pixels.nbytes, other, block)


@pytest.mark.parametrize("header", [0, 8, 9 * 2, 2**31, 2**32 - 1])
def test_sizes_of_blocks(header):
    """Block sizes are multiples of 8 pixels; a size beyond the chunk means one block."""
    chunk = bytearray(packed(np.arange(800, dtype="u2"), 800))
    chunk[8:12] = header.to_bytes(4, "big")
    done, found = decode(compiled_kernel, [bytes(chunk)], 1600, 2, 0)
    assert done == (header == 2**31)
    assert not done or (found[0].view("u2") == np.arange(800)).all()
