"""Encodings of frames, written with NumPy and zlib: pixels known independently of the package."""

import gzip
import zlib
from typing import NamedTuple

import numpy as np

GZIP = b"\x1f\x8b\x08"


class Place(NamedTuple):
    """A frame found in a file, and how it is stored there."""

    name: str
    at: int
    number: int
    nbytes: int
    packing: str
    dtype: np.dtype
    stream: int | None = None
    """Start of the gzip stream whose decompressed bytes ``at`` counts, if any."""

    def changed(self, content, place, bit):
        """Change a bit of the frame; return the file and the bytes of the frame."""
        begin, inner = content[: self.stream or 0], content
        if self.stream is not None:
            inner = zlib.decompress(content[self.stream :], wbits=31)
        data = bytearray(inner)
        data[self.at + place] ^= bit
        raw = bytes(data[self.at : self.at + self.nbytes])
        made = bytes(data)
        if self.stream is not None:
            made = begin + gzip.compress(made, 1, mtime=0)
        return made, raw


def plain(frame):
    return frame.tobytes()


def words(frame):
    """Pack little-endian pixels in words of 64 bits, stored big-endian."""
    raw = frame.tobytes()
    return np.frombuffer(raw, "u1").reshape(-1, 8)[:, ::-1].tobytes() if len(raw) % 8 == 0 else b""


def bits_of_words(frame):
    """Pack a bit per pixel in words of 64 bits, stored big-endian, least significant bit first."""
    bits = np.packbits(frame.ravel() & 1, bitorder="little")
    return b"" if frame.max(initial=0) > 1 else words(bits)


def six_bits(frame):
    """Pack six bits per pixel, most significant first; each row begins with a byte."""
    if frame.dtype.itemsize > 1 or frame.ndim != 2 or frame.max(initial=0) > 63:
        return b""
    bits = np.unpackbits(frame[..., None], axis=-1)[..., 2:].reshape(len(frame), -1)
    return np.packbits(bits, axis=-1).tobytes()


def unpacked(packing, raw, dtype, shape):
    """Decode the bytes of a frame."""
    data = np.frombuffer(raw, "u1")
    if packing == "plain":
        return np.frombuffer(raw, dtype).reshape(shape)
    if packing == "six_bits":
        bits = np.unpackbits(data.reshape(shape[0], -1), axis=-1)[:, : 6 * shape[1]]
        return bits.reshape(*shape, 6) @ (1 << np.arange(6, dtype=dtype)[::-1])
    data = data.reshape(-1, 8)[:, ::-1].ravel()
    if packing == "bits_of_words":
        return np.unpackbits(data, bitorder="little").astype(dtype).reshape(shape)
    return data.view(dtype).reshape(shape)


PACKINGS = {pack.__name__: pack for pack in (plain, words, bits_of_words, six_bits)}


def places_of(files, frames):
    """Yield the places of frames that occur exactly once in a file."""
    contents = []
    for name, content in files.items():
        stream = content.find(GZIP)
        contents.append((name, None, content if stream < 0 else content[:stream]))
        if stream >= 0:
            contents.append((name, stream, zlib.decompressobj(31).decompress(content[stream:])))
    for k, frame in enumerate(frames[:64]):
        for dtype in {frames.dtype.newbyteorder(order) for order in "<>"}:
            for packing, pack in PACKINGS.items():
                if packing != "plain" and (dtype.kind != "u" or dtype.byteorder == ">"):
                    continue
                raw = pack(frame.astype(dtype))
                if not raw or raw.count(raw[:1]) == len(raw):  # constant bytes occur anywhere
                    continue
                for name, stream, content in contents:
                    at = content.find(raw)
                    if at >= 0 and content.find(raw, at + 1) < 0:
                        yield Place(name, at, k, len(raw), packing, dtype, stream)
