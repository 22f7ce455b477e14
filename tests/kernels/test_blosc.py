"""The Blosc kernel agrees with the library and stays inside its buffers."""

import numpy as np
import pytest
from guarded_memory import decode
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import Blosc, blosc

from dask_tiled.kernels.blosc import HEADER, compiled_kernel


def made(kind, mean, seed, count):
    """Return sparse counts, or noise, which Blosc stores uncompressed."""
    rng, dtype = np.random.default_rng(seed), np.dtype(kind)
    if mean > 10 or dtype.kind == "S":
        return np.frombuffer(rng.bytes(count * dtype.itemsize), dtype)
    return rng.poisson(mean, count).astype(dtype)


PIXELS = st.sampled_from(["u1", "u2", "i2", "u4", "f4", "u8", "c16", "S3", "S20"])
CODECS = st.builds(
    Blosc,
    cname=st.sampled_from(["lz4", "lz4hc"]),
    clevel=st.sampled_from([0, 1, 5, 9]),
    shuffle=st.sampled_from([Blosc.NOSHUFFLE, Blosc.SHUFFLE, Blosc.BITSHUFFLE]),
    blocksize=st.sampled_from([0, 128, 1000, 4096, 16384]),
)


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(
    *(CODECS, PIXELS, st.sampled_from([0, 0.01, 0.3, 3, 50]), st.integers(0, 9)),
    st.integers(1, 6000) | st.integers(1, 700).map(lambda count: 8 * count),
)
def test_chunks(codec, kind, mean, seed, count):
    """Chunks are decoded; unsupported bitshuffled ones are left to the library."""
    pixels = made(kind, mean, seed, count)
    packed = codec.encode(pixels)
    done, found = decode(compiled_kernel, [packed, packed], pixels.nbytes)
    by_bits = codec.shuffle == Blosc.BITSHUFFLE and not packed[2] & 2
    assert done == 2 or (by_bits and done == 0)
    if done:
        assert [one.tobytes() for one in found] == [pixels.tobytes()] * 2
    if by_bits and codec.blocksize == 0 and count < 100 and count % 8 == 0:  # one block
        assert done == 2


@pytest.mark.thorough
@settings(max_examples=300, deadline=None)
@given(st.data(), CODECS, st.sampled_from(["u2", "u4"]), st.integers(1, 3000))
def test_damaged_chunks(data, codec, kind, count):
    """Chunks before a damaged one are decoded, and decoding stays inside the buffers."""
    pixels = made(kind, 1, count, count)
    good = codec.encode(pixels)
    bad = bytearray(good)
    place = st.integers(0, min(40, len(bad)) - 1) | st.integers(0, len(bad) - 1)
    for at in data.draw(st.lists(place, min_size=1, max_size=4)):
        bad[at] = data.draw(st.sampled_from([0, 1, 15, 127, 240, 255]) | st.integers(0, 255))
    bad = bytes(bad[: data.draw(st.just(len(bad)) | place)])
    done, found = decode(compiled_kernel, [good, bad], pixels.nbytes)
    if done:
        np.testing.assert_array_equal(found[0].view(pixels.dtype), pixels)
    decode(compiled_kernel, [bad], data.draw(st.integers(1, 70000)))


@pytest.mark.parametrize("cname", ["blosclz", "zlib", "zstd"])
def test_other_compressors_are_not_decoded(cname):
    packed = Blosc(cname).encode(np.zeros(4000, "u2"))
    assert decode(compiled_kernel, [packed], 8000)[0] == 0


@pytest.mark.parametrize(("at", "value"), [(4, 9000), (8, 0), (8, 2**31), (8, 2**32 - 1),
                                           (12, 0), (12, HEADER), (12, 2**32 - 1), (16, 0),
                                           (16, 2**31), (16, 2**32 - 1)])  # fmt: skip
def test_wrong_lengths_and_offsets_are_not_decoded(at, value):
    packed = bytearray(blosc.compress(np.arange(4000, dtype="u2"), b"lz4", 5, 1, 4096))
    packed[at : at + 4] = value.to_bytes(4, "little")
    assert decode(compiled_kernel, [bytes(packed)], 8000)[0] == 0
