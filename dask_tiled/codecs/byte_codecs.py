"""Bytes-to-bytes codecs of zarr and numcodecs, in one table.

Lengths in compressed data are not trusted: every codec decodes into a buffer of the expected size,
and no more. imagecodecs decodes if installed, which is faster; otherwise numcodecs or Python's own
libraries.

Layout facts: the specifications of the codecs of zarr 3, the sources of numcodecs and Blosc; for
codecs that only HDF5 has, see :mod:`dask_tiled.codecs.hdf5_filters`.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.checksums import seal, without_crc32c, without_fletcher32
from dask_tiled.codecs.hdf5_filters import kernel_of, unbitshuffle, unlz4, unlzf, unszip
from dask_tiled.codecs.image_codecs import PREFIX, library, unpacked
from dask_tiled.codecs.limits import SMALL, most_bytes
from dask_tiled.model.indexing import Bytes

Config = Mapping[str, Any]

SHUFFLES = "noshuffle", "shuffle", "bitshuffle"
"""Blosc shuffles, by number."""
PACKED_BYTES = range(1 << 10, 1 << 30)
"""Sizes of chunks that a kernel encodes; the Blosc library encodes others."""
OF_NUMCODECS = "numcodecs."
"""Prefix of numcodecs codecs in zarr 3."""


class ByteCodec(NamedTuple):
    """A bytes-to-bytes codec."""

    decode: Callable[[Config, Bytes, Bytes], Any]
    """``decode(config, data, out)`` returns the decoded bytes, at the start of ``out`` or
    elsewhere. More bytes than fit into ``out`` are an error."""
    compresses: str = ""
    """Its key in :data:`~dask_tiled.codecs.limits.RATIOS`; empty if it does not compress, or if
    the ``cname`` of its configuration names the compressor."""
    adds: int = 0
    """Bytes of the checksum that the codec appends."""
    encode: Callable[[Config, Bytes, Bytes], Any] | None = None
    """``encode(config, data, out)`` returns the encoded bytes, at the start of ``out``, which
    may overlap ``data``, or elsewhere. None if zarr encodes."""


@cache
def fast() -> Any:
    """Return imagecodecs, or None if it is not installed."""
    try:
        return library()
    except ImportError:
        return None


def _streamed(make: Callable[[Config], Any], config: Config, data: Bytes, out: Bytes) -> Any:
    """Decompress with Python's own library."""
    stream = make(config)
    content = stream.decompress(data.data, len(out) + 1)
    if not stream.eof or len(content) > len(out):
        raise ValueError(f"the data end after {len(content)} bytes, without an end mark")
    return content


def _deflated(name: str, bits: int, config: Config, data: Bytes, out: Bytes) -> Any:
    """Decompress with libdeflate; if it fails, retry with zlib, whose errors are clearer."""
    codecs = fast()
    if codecs is not None and len(out):
        try:
            return getattr(codecs, name)(data, out=out)
        except (ValueError, RuntimeError):
            pass
    return _streamed(lambda _: zlib.decompressobj(bits), config, data, out)


def _lzma(format: int = lzma.FORMAT_XZ, filters: Any = None, **_: Any) -> lzma.LZMADecompressor:
    # Limits the memory that a header can request.
    limit = None if format == lzma.FORMAT_RAW else SMALL
    return lzma.LZMADecompressor(format, limit, filters)


def _unzstd(config: Config, data: Bytes, out: Bytes) -> Any:
    codecs = fast()
    if codecs is not None:
        return codecs.zstd_decode(data, out=out)
    return out[: unzstd(data, out)]


def unzstd(packed: Bytes, out: Bytes) -> int:
    """Decompress Zstandard with numcodecs; return the number of bytes, which numcodecs does not.

    Raise a ValueError or RuntimeError if the data are damaged, or do not fit.
    """
    from numcodecs import Zstd

    Zstd().decode(packed, out)
    head = packed[:18].tobytes()
    single, flag = head[4] >> 5 & 1, head[4] >> 6
    at, length = 6 - single + (0, 1, 2, 4)[head[4] & 3], (single, 2, 4, 8)[flag]
    claimed = int.from_bytes(head[at : at + length], "little") + 256 * (flag == 1)
    if length and claimed == len(out):
        return claimed
    again = ~out  # no stored length, fewer bytes than fit, or several frames
    Zstd().decode(packed, again)
    return int(np.count_nonzero(again == out))


def _unblosc(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode Blosc after checking the lengths in its header, which the library trusts."""
    length, block, packed = np.frombuffer(data, "<u4", 3, 4).tolist()
    if length > len(out) or block > length or not 16 <= packed <= len(data):
        raise ValueError(
            f"{len(data)} bytes, with {packed} compressed and {length} decoded bytes in the header"
        )
    codecs = fast()
    if codecs is not None:
        return codecs.blosc_decode(data, out=out[:length])
    from numcodecs import blosc

    blosc.decompress(np.ascontiguousarray(data), out[:length])
    return out[:length]


def _sized_lz4(config: Config, data: Bytes, out: Bytes) -> Any:
    """Decode LZ4 after a length, as numcodecs writes it."""
    from numcodecs import LZ4

    claimed = int.from_bytes(data[:4].tobytes(), "little")
    if claimed > len(out):
        raise ValueError(f"a header with {claimed} bytes, more than {len(out)}")
    return LZ4().decode(np.ascontiguousarray(data))


def _unshuffle(config: Config, data: Bytes, out: Bytes) -> Bytes:
    """Undo a byte shuffle, which stores the k-th bytes of all elements in the k-th row."""
    itemsize = config["elementsize"]
    if not 1 < itemsize <= len(data):
        return data
    count = len(data) // itemsize
    if itemsize == 2 and len(data) == 2 * count:  # most detector counts; faster than byte by byte
        words = data[count:].astype("<u2")
        words <<= 8
        words |= data[:count]
        return words.view(np.uint8)
    out = out[: len(data)]
    elements = out[: count * itemsize].reshape(count, itemsize)
    for k, row in enumerate(data[: count * itemsize].reshape(itemsize, count)):
        elements[:, k] = row
    out[count * itemsize :] = data[count * itemsize :]
    return out


def _by_numcodecs(name: str, config: Config, data: Bytes, out: Bytes) -> Any:
    import numcodecs

    return numcodecs.get_codec({**config, "id": name}).decode(np.ascontiguousarray(data))


def placed(data: Any, out: Bytes) -> Bytes:
    """Copy bytes to the start of a buffer unless they are there already; return them."""
    data = np.frombuffer(data, np.uint8)
    found = out[: len(data)]
    if not np.may_share_memory(data, out):
        found[...] = data
    return found


def _encoded(make: Callable[[Config], Any], config: Config, data: Bytes, out: Bytes) -> Any:
    return make(config).encode(data)


def _sealed(config: Config, data: Bytes, out: Bytes) -> Bytes:
    return seal(out, len(placed(data, out)))


def _zstd(config: Config) -> Any:
    from numcodecs import Zstd

    return Zstd(config["level"], checksum=config.get("checksum", False))


def _gzip(config: Config) -> Any:
    from numcodecs import GZip

    return GZip(config["level"])


def _to_blosc(config: Config, data: Bytes, out: Bytes) -> Any:
    """Encode with Blosc; bit-shuffled LZ4 has a kernel, unless ``data`` overlaps ``out``."""
    if (config["cname"], config["shuffle"], config["blocksize"]) == ("lz4", "bitshuffle", 0):
        size, level, data = config["typesize"], config["clevel"], np.frombuffer(data, np.uint8)
        whole = len(data) in PACKED_BYTES and size in (1, 2, 4, 8) and len(data) % size == 0
        if whole and level and not np.may_share_memory(data, out):
            return out[: kernel_of("packing")(data, size, 10 - level, out)]
    return _encoded(_blosc, config, data, out)


def _blosc(config: Config) -> Any:
    from numcodecs.blosc import Blosc

    sizes = config["blocksize"], config["typesize"]
    return Blosc(config["cname"], config["clevel"], SHUFFLES.index(config["shuffle"]), *sizes)


GZIP = partial(_deflated, "gzip_decode", zlib.MAX_WBITS | 16)
OF_IMAGECODECS = {
    "dask_tiled.lzf": ByteCodec(unlzf, "lzf"),
    "dask_tiled.szip": ByteCodec(unszip, "szip"),
    "dask_tiled.lz4h5": ByteCodec(unlz4, "lz4"),
    "imagecodecs_bitorder": ByteCodec(partial(unpacked, "bitorder")),
    "imagecodecs_lzw": ByteCodec(partial(unpacked, "lzw"), "lzw"),
    "imagecodecs_packbits": ByteCodec(partial(unpacked, "packbits"), "packbits"),
}
"""Codecs that only imagecodecs decodes."""
UNKNOWN_TO_ZARR = {
    **OF_IMAGECODECS,
    "dask_tiled.bitshuffle": ByteCodec(partial(unbitshuffle, _unzstd)),
}
"""Codecs of HDF5 and TIFF that zarr does not have under the same name."""
DEFLATE = "dask_tiled.deflate"
"""Codec of members of zip files: deflate without a header. Only whole pipelines use it."""
CHECKSUMS = "adler32", "crc32", "crc32c", "jenkins_lookup3"
BYTE_CODECS: Mapping[str, ByteCodec] = {
    "crc32c": ByteCodec(lambda _, data, __: without_crc32c(data), "", 4, _sealed),
    "gzip": ByteCodec(GZIP, "deflate", encode=partial(_encoded, _gzip)),
    "zstd": ByteCodec(_unzstd, "zstd", encode=partial(_encoded, _zstd)),
    "blosc": ByteCodec(_unblosc, "blosc", encode=_to_blosc),
    **{f"numcodecs.{name}": ByteCodec(partial(_by_numcodecs, name), adds=4) for name in CHECKSUMS},
    "numcodecs.fletcher32": ByteCodec(lambda _, data, __: without_fletcher32(data), adds=4),
    "numcodecs.shuffle": ByteCodec(_unshuffle),
    "numcodecs.gzip": ByteCodec(GZIP, "deflate"),
    "numcodecs.zlib": ByteCodec(partial(_deflated, "deflate_decode", zlib.MAX_WBITS), "deflate"),
    "numcodecs.bz2": ByteCodec(partial(_streamed, lambda _: bz2.BZ2Decompressor()), "bzip2"),
    "numcodecs.lzma": ByteCodec(partial(_streamed, lambda config: _lzma(**config)), "lzma"),
    "numcodecs.zstd": ByteCodec(_unzstd, "zstd"),
    "numcodecs.lz4": ByteCodec(_sized_lz4, "lz4"),
    "numcodecs.blosc": ByteCodec(_unblosc, "blosc"),
    DEFLATE: ByteCodec(
        partial(_streamed, lambda _: zlib.decompressobj(-zlib.MAX_WBITS)), "deflate"
    ),
    **UNKNOWN_TO_ZARR,
}
"""All supported codecs, by name."""


def byte_codec(name: str) -> ByteCodec:
    """Return a codec by name; unknown names are numcodecs codecs without limits."""
    return BYTE_CODECS.get(name) or ByteCodec(
        partial(_by_numcodecs, name.removeprefix(OF_NUMCODECS)), name
    )


def compressor(name: str, config: Config) -> str:
    """Return the key of a codec in :data:`~dask_tiled.codecs.limits.RATIOS`; "" if it has none."""
    return byte_codec(name).compresses or config.get("cname", "")


def most_encoded(name: str, config: Config, nbytes: int) -> int:
    """Return the largest number of bytes that a codec can encode ``nbytes`` to."""
    # Incompressible data may grow by an eighth with gzip, bzip2 and LZ4.
    return nbytes + (nbytes // 8 + 4096 if compressor(name, config) else byte_codec(name).adds)


def decoded(name: str, config: Config, data: Bytes, most: int, out: Bytes | None = None) -> Bytes:
    """Decode at most ``most`` bytes, into ``out`` if it has that size.

    Raise a ValueError if there are too many or too few bytes. Codecs may raise other errors.
    """
    packs = compressor(name, config)
    most = min(most, most_bytes(packs, len(data)) if packs else len(data))
    if out is None or len(out) != most:
        out = np.empty(most, np.uint8)
    return np.frombuffer(byte_codec(name).decode(config, data, out), np.uint8)


def has_numcodecs(name: str) -> bool:
    """Return whether numcodecs has a codec, built in or as an entry point."""
    from numcodecs import registry

    known = {*registry.codec_registry, *registry.entries}
    return name.startswith(OF_NUMCODECS) and name.removeprefix(OF_NUMCODECS) in known


def as_numcodecs(name: str, config: Config) -> Any:
    """Return the equivalent numcodecs codec, or None."""
    import numcodecs

    if name.startswith(PREFIX):
        from imagecodecs.numcodecs import register_codecs

        register_codecs([name], verbose=False)
    if name == "blosc" and config:  # numcodecs spells its configuration differently
        return _blosc(config)
    name = name.removeprefix(OF_NUMCODECS)
    if name not in {*numcodecs.registry.codec_registry, *numcodecs.registry.entries}:
        return None
    return numcodecs.get_codec({"id": name, **config})
