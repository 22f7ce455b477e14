"""Compressed pieces: valid ones decode, and oversized claims never allocate memory."""

import bz2
import lzma
import zlib

import h5py
import numcodecs
import numpy as np
import pytest
from checks import peak_memory

from dask_tiled.codecs import byte_codecs
from dask_tiled.codecs.byte_codecs import BYTE_CODECS, decoded, unzstd
from dask_tiled.codecs.hdf5_filters import claimed_bytes
from dask_tiled.codecs.limits import RATIOS, SMALL, check_room, most_bytes

imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")

ZEROS = bytes(1 << 20)


def szip_encode(data):
    """Compress bytes with szip through the HDF5 library, if it was built with that."""
    if not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("this HDF5 library has no szip")
    with h5py.File.in_memory() as file:
        made = file.create_dataset(
            "d", data=np.frombuffer(data, "u4"), compression="szip", chunks=True
        )
        return b"".join(
            made.id.read_direct_chunk(made.id.get_chunk_info(k).chunk_offset)[1]
            for k in range(made.id.get_num_chunks())
        )


ENCODERS = {
    "packbits": imagecodecs.packbits_encode,
    "lzf": imagecodecs.lzf_encode,
    "lz4": imagecodecs.lz4_encode,
    "deflate": lambda data: zlib.compress(data, 9),
    "lzw": imagecodecs.lzw_encode,
    "szip": szip_encode,
    "lzma": lzma.compress,
    "zstd": lambda data: imagecodecs.zstd_encode(data, level=19),
    "blosc": lambda data: imagecodecs.blosc_encode(data, compressor="zstd", level=9),
    "bzip2": bz2.compress,
}


def test_each_compressor_has_a_limit():
    compressors = {codec.compresses for codec in BYTE_CODECS.values()} - {""}
    assert compressors <= RATIOS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("codec", RATIOS)
def test_highest_ratios_are_allowed(codec):
    """Zeros, which compress best, stay within the assumed ratio of each codec."""
    packed = ENCODERS[codec](ZEROS)
    check_room(codec, len(packed), len(ZEROS))


def test_ratios_of_the_shortest_codes():
    """Bytes that the codes of each format expand to at most; powers of two are upper bounds."""
    exact = {"packbits": 128 / 2, "lzf": 264 / 3, "lz4": 255, "deflate": 258 / (2 / 8)}
    bounds = {"lzw": 12, "szip": 13, "lzma": 13, "zstd": 15, "blosc": 15, "bzip2": 21}
    assert exact | {codec: 2**bits for codec, bits in bounds.items()} == RATIOS


def test_codecs_without_bounds():
    assert most_bytes("jpegxl", 1) == SMALL == 256 << 20
    assert most_bytes("jpegxl", 1 << 20) == 1 << 37
    with pytest.raises(ValueError, match="at most"):
        check_room("blosc2", 100, SMALL + 1)


CODECS = [{"id": name} for name in ("zlib", "gzip", "bz2", "zstd", "lz4", "blosc", "lzma")]


@pytest.fixture(params=[True, False], ids=["imagecodecs", "numcodecs"])
def library(request, monkeypatch):
    """Decode with and without imagecodecs."""
    if not request.param:
        monkeypatch.setattr(byte_codecs, "fast", lambda: None)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("config", CODECS, ids=lambda config: config["id"])
def test_pieces_of_unexpected_size(config):
    """Fewer or more bytes than expected are never accepted, nor more allocated than expected."""
    rng = np.random.default_rng(0)
    name = f"numcodecs.{config['id']}"
    packed = numcodecs.get_codec(config).encode(bytes(10))
    decoded(name, {}, np.frombuffer(packed, "u1"), 10)  # loads libraries before memory is traced
    for size in (1000, 999, 1001, 1 << 24):
        content = rng.integers(0, 4, min(size, 1001), "u1").tobytes().ljust(size, b"\0")
        packed = numcodecs.get_codec(config).encode(content)
        with peak_memory() as peak:
            try:
                found = decoded(name, {}, np.frombuffer(packed, "u1"), 1000)
                assert (len(found) == 1000) == (size == 1000)
                assert size != 1000 or found.tobytes() == content
            except (ValueError, RuntimeError):
                assert size != 1000
        window = 8 << 20 if config["id"] == "lzma" else 0
        assert peak[0] < window + (1 << 20)


@pytest.mark.parametrize("sized", [True, False])
def test_unzstd_returns_the_number_of_bytes(sized):
    """numcodecs leaves the rest of the buffer unset, and does not return the number."""
    data = np.arange(1000, dtype="u1")
    packed = np.frombuffer(numcodecs.Zstd().encode(data), "u1")
    if not sized:
        stream = imagecodecs.zstd_encode(data.tobytes())
        packed = np.frombuffer(stream, "u1")
    out = np.empty(1000, "u1")
    assert unzstd(packed, out) == 1000
    np.testing.assert_array_equal(out, data)
    assert unzstd(packed, np.empty(1001, "u1")) == 1000
    twice = np.concatenate((packed, packed))
    assert unzstd(twice, np.empty(2500, "u1")) == 2000


@pytest.mark.parametrize(("flag", "number"), [(0, b""), (1, b"\0"), (2, b"\0\0"), (3, bytes(4))])
def test_unzstd_skips_the_number_of_no_dictionary(flag, number):
    """A frame of RFC 8878, section 3.1.1, with its length and one block that is not compressed."""
    content = bytes(range(256)) + b"\7"
    head = (
        (1 << 6 | 1 << 5 | flag).to_bytes(1) + number + (len(content) - 256).to_bytes(2, "little")
    )
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    frame = np.frombuffer(b"\x28\xb5\x2f\xfd" + head + block, "u1")
    assert imagecodecs.zstd_decode(frame) == content
    for size in (257, 512):
        out = np.empty(size, "u1")
        assert unzstd(frame, out) == 257
        assert out[:257].tobytes() == content


@pytest.mark.parametrize(
    ("name", "config", "stored", "nbytes"),
    [
        ("bitshuffle", {"cname": "lz4"}, b"\0\0\0\0\0\1\0\2", 65538),
        ("bitshuffle", {"cname": ""}, b"\0\0\0\0\0\1\0\2", 8),
        ("szip", {}, b"\2\0\1\0", 65538),
        ("lzf", {"nbytes": 7}, b"", 7),
    ],
)
def test_sizes_that_chunks_of_hdf5_claim(name, config, stored, nbytes):
    """The header of bitshuffle with LZ4 is big-endian, that of szip little-endian."""
    data = np.frombuffer(stored, "u1")
    assert claimed_bytes(f"dask_tiled.{name}", config, data) == nbytes
    if nbytes == 65538:
        with pytest.raises(ValueError, match=f"{len(data) - 1} bytes"):
            claimed_bytes(f"dask_tiled.{name}", config, data[:-1])


@pytest.mark.parametrize("checksum", [None, False, True])
def test_checksums_of_zstd(checksum):
    config = {"level": 3} | ({} if checksum is None else {"checksum": checksum})
    data = np.arange(100, dtype="u1")
    found = BYTE_CODECS["zstd"].encode(config, data, np.empty(200, "u1"))
    assert bytes(found) == numcodecs.Zstd(3, checksum=bool(checksum)).encode(data)


@pytest.mark.parametrize(
    ("shuffle", "number"), [("noshuffle", 0), ("shuffle", 1), ("bitshuffle", 2)]
)
def test_shuffles_of_blosc(shuffle, number):
    config = {"cname": "zstd", "clevel": 5, "shuffle": shuffle, "typesize": 2, "blocksize": 0}
    data = np.arange(1000, dtype="u2").view("u1")
    found = BYTE_CODECS["blosc"].encode(config, data, np.empty(4000, "u1"))
    assert bytes(found) == numcodecs.Blosc("zstd", 5, number, 0, 2).encode(data)
