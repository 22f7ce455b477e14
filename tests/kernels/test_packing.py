"""The Blosc library reads chunks that the kernel packs, which are hardly larger than its own."""

import math

import numpy as np
import pytest
from guarded_memory import at_the_end, guarded
from numcodecs.blosc import Blosc

from dask_tiled.codecs.byte_codecs import PACKED_BYTES, most_encoded
from dask_tiled.codecs.pipeline import Pipeline
from dask_tiled.kernels.limits import COMPRESSED_BYTES
from dask_tiled.kernels.packing import compiled_kernel

BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": "bitshuffle", "blocksize": 0}
SHAPES = [
    (8, 256, 256),
    (515, 515),  # no multiple of 8 pixels
    (3, 514, 516),
    (COMPRESSED_BYTES + 8,),
    (PACKED_BYTES[0],),
    (PACKED_BYTES[1],),
]


def counts(rng, size):
    return rng.poisson(3, size)


def few(rng, size):
    return np.where(rng.random(size) < 0.001, 200, 0)


def runs(rng, size):
    return np.repeat(rng.poisson(30, size // 50 + 1), 50)[:size]


def steps(_rng, size):
    return np.arange(size) // 7


def zeros(_rng, size):
    return np.zeros(size)


def noise(rng, size):
    return rng.integers(0, 1 << 63, size)


@pytest.mark.parametrize("make", [counts, few, runs, steps, zeros, noise])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4", "u8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packed_chunks(shape, dtype, make):
    size = math.prod(shape)
    pixels = make(np.random.default_rng(0), size).astype(dtype)
    src, itemsize = at_the_end(pixels.tobytes()), pixels.itemsize
    out = guarded(most_encoded("blosc", BLOSC, src.size))
    packed = out[: compiled_kernel()(src, itemsize, 5, out)]
    np.testing.assert_array_equal(np.frombuffer(Blosc().decode(packed), dtype), pixels)
    theirs = len(Blosc("lz4", 5, Blosc.BITSHUFFLE, 0, itemsize).encode(pixels))
    assert len(packed) <= 1.5 * theirs + 1024 * -(-src.size // COMPRESSED_BYTES)


ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


def blosc(typesize):
    return {"name": "blosc", "configuration": {**BLOSC, "typesize": typesize}}


@pytest.mark.parametrize(
    "packers",
    [
        [blosc(4)],  # the bytes are no multiple of it
        [blosc(8)],
        [{"name": "crc32c"}, blosc(2)],  # input and output share memory
        [blosc(2), blosc(2)],
        [blosc(2), {"name": "crc32c"}],
        [ZSTD, blosc(2)],
    ],
)
@pytest.mark.parametrize("make", [counts, noise])
@pytest.mark.parametrize("size", [1029, 4096, COMPRESSED_BYTES // 2 + 1])
def test_packing_after_and_before_other_codecs(size, make, packers):
    pixels = make(np.random.default_rng(0), size).astype("u2")
    codecs = [{"name": "bytes", "configuration": {"endian": "little"}}, *packers]
    pipeline = Pipeline(codecs, pixels.shape, pixels.dtype)
    out = np.empty(pipeline.rooms[-1], "u1")
    stored = out[: pipeline.encode(pixels, out)].copy()
    np.testing.assert_array_equal(pipeline.decode(stored), pixels)
