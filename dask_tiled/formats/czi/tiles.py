"""The tiles of a CZI file: location, compression and pixel type.

Layout according to public readers, and real files.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.chunks import chunk_decoder
from dask_tiled.codecs.chunks import decode as decode_chunk
from dask_tiled.formats import tools
from dask_tiled.formats.czi.directory import (
    DIMENSION,
    ENTRY_BYTES,
    SEGMENT_BYTES,
    SIZED,
    TILE,
    Tiles,
)
from dask_tiled.formats.tools.header import read_scattered
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array, Index
from dask_tiled.model.pieces import PieceTable, piece_table

SUBBLOCK: tools.Fields = {
    "id": (0, "S16"), "metadata": (32, "i4"), "data": (40, "i8"), "ndim": (76, "i4"),
}  # fmt: skip
"""Header of a tile: the segment header, lengths, and a copy of the directory entry."""
BEFORE_ENTRY, LEAST_BYTES = 16, 256
"""Bytes between the segment header and the entry, and minimum size of a tile's header."""
PACKING: tools.Fields = {"length": (0, "u1"), "kind": (1, "u1"), "flags": (2, "u1")}
"""Header of ``ZSTD_1`` data; only its length is present if that is 1."""
SPLIT = 1
"""Value of ``kind``, and bit of ``flags``, for pixels split into low and high bytes."""
TYPES = {
    0: ("<u1", 1), 1: ("<u2", 1), 2: ("<f4", 1), 3: ("<u1", 3), 4: ("<u2", 3), 8: ("<f4", 3),
    9: ("<u1", 4), 10: ("<c8", 1), 12: ("<i4", 1), 13: ("<f8", 1),
}  # fmt: skip
"""Pixel types: dtype, and samples per pixel: blue, green, red, and possibly alpha."""
PLAIN, JPEG, LZW, JPEG_XR, ZSTD, ZSTD_1 = 0, 1, 2, 4, 5, 6
BYTES = [{"name": "bytes"}]
CODECS = {
    PLAIN: BYTES,
    JPEG: [{"name": "imagecodecs_jpeg"}],
    LZW: [*BYTES, {"name": "imagecodecs_lzw"}],
    JPEG_XR: [{"name": "imagecodecs_jpegxr"}],
    ZSTD: [*BYTES, {"name": "zstd"}],
    ZSTD_1: [*BYTES, {"name": "zstd"}],
}
KINDS = 2, max(TYPES) + 1, max(CODECS) + 1, 3
"""Number of values of each property of a decoder: stored plain, type, compression, split bytes
(unknown, no, yes)."""
SHUFFLE = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 2}}
IMAGES = {JPEG, JPEG_XR}
"""Codecs that decode to red, green, blue."""
MOST_LOOKED = 20_000
"""Maximum number of tiles whose headers are read at opening; otherwise they are read with the
tiles."""


class TileData(NamedTuple):
    """Offsets and lengths of the data of tiles, and whether their bytes are split."""

    offset: Index
    nbytes: Index
    split: Index


def samples_of(file: tools.File, tiles: Tiles) -> int:
    """Check that the tiles are supported; return the samples per pixel.

    Raise a DatasetError if tiles lie in other files, or have an unsupported pixel type or
    compression, and a CorruptFileError if a tile has no pixels.
    """
    told = {
        "part": ((0,), "tiles in other files are not supported"),
        "pixel_type": (TYPES, "unsupported pixel type"),
        "compression": (CODECS, "unsupported compression"),
    }
    for name, (known, what) in told.items():
        strange = sorted({*np.unique(getattr(tiles, name)).tolist()} - {*known})
        if strange:
            expected = ", ".join(map(str, known))
            raise tools.DatasetError(
                what, path=file.path, where=name, expected=expected, found=strange[0]
            )
    samples = {TYPES[kind][1] for kind in np.unique(tiles.pixel_type).tolist()}
    if len(samples) > 1:
        what, found = "mixed grey and colour channels are not supported", sorted(samples)
        raise tools.DatasetError(what, path=file.path, expected="one number", found=found)
    if min(int(tiles.stored[name].min()) for name in SIZED) < 1:
        raise tools.CorruptFileError("a tile has no pixels", path=file.path)
    return samples.pop()


def pieces_of(
    file: tools.File, tiles: Tiles, frame: Index, corners: tuple[Index, Index]
) -> tuple[PieceTable, list[tools.Decoder | tools.BlockDecoder]]:
    """Build a piece for each tile, of shape (frame, y, x), or with a last axis of samples.

    Parameters
    ----------
    frame : int64 array
        Index of the frame of each tile.
    corners : tuple of int64 array
        First row and first column of each tile.
    """
    samples, count = samples_of(file, tiles), len(frame)
    items = np.zeros(max(TYPES) + 1, np.int64)
    for kind, (dtype, _) in TYPES.items():
        items[kind] = np.dtype(dtype).itemsize
    item, (height, width) = items[tiles.pixel_type], (tiles.stored[name] for name in SIZED)
    needed = height * width * samples * item
    looked = count <= MOST_LOOKED
    header = np.full(count, SEGMENT_BYTES + LEAST_BYTES)
    places = TileData(tiles.position, header, np.full(count, -1))
    if looked:
        places = _look(file, tiles)
    plain = looked & (tiles.compression == PLAIN)
    wrong = np.flatnonzero(looked & (tiles.compression == PLAIN) & (places.nbytes != needed))
    if len(wrong):
        what, first = "the size of a tile differs from that of its pixels", int(wrong[0])
        where, expected = f"byte {places.offset[first]}", f"{needed[first]} bytes"
        found = f"{places.nbytes[first]} bytes"
        raise tools.CorruptFileError(
            what, path=file.path, where=where, expected=expected, found=found
        )
    decoders: dict[Any, int] = {}
    numbers = np.zeros(count, np.int64)
    kinds = plain.astype(np.int64), tiles.pixel_type, tiles.compression, places.split + 1
    codes = np.ravel_multi_index(kinds, KINDS)
    same = bool((height == height[0]).all() and (width == width[0]).all())
    alike = (1, int(height[0]), int(width[0]), samples)[: 3 + (samples > 1)] if same else ()
    for code in np.unique(codes).tolist():
        chosen = [int(number) for number in np.unravel_index(code, KINDS)]
        decoder = _decoder(*chosen, looked=looked, samples=samples, shape=alike)
        numbers[codes == code] = decoders.setdefault(decoder, len(decoders))
    shape = [np.ones(count, np.int64), height, width]
    start = [frame, *corners]
    steps = [np.zeros(count, np.int64), width * samples * item, samples * item]
    if samples > 1:
        start, shape = [*start, np.zeros_like(frame)], [*shape, np.full(count, samples)]
        steps.append(item)
    nbytes = np.where(plain, 0, places.nbytes)
    columns = (np.column_stack(axes) for axes in (start, shape, [plain * one for one in steps]))
    starts, shapes, strides = columns
    table = piece_table(starts, shapes, places.offset, strides, decoder=numbers, nbytes=nbytes)
    return table, [*decoders]


def _look(file: tools.File, tiles: Tiles) -> TileData:
    """Read and check the headers of tiles; return the location of their data."""
    header = read_scattered(file.path, SUBBLOCK, tiles.position)
    wrong = np.flatnonzero((header["id"] != TILE.encode()) | (header["ndim"] != tiles.ndim))
    if len(wrong):
        what, where = "no tile begins at its offset in the directory", tiles.position[wrong[0]]
        raise tools.CorruptFileError(what, path=file.path, where=f"byte {where}", expected=TILE)
    offset, nbytes = tiles.position + _header_bytes(header), header["data"].astype(np.int64)
    beyond = (offset < tiles.position) | (nbytes < 0) | (nbytes > file.size - offset)
    if beyond.any():
        first = int(np.flatnonzero(beyond)[0])
        raise tools.TruncatedFileError(
            "a tile reaches beyond the file",
            path=file.path,
            where=f"byte {tiles.position[first]}",
            expected=f"{file.size} bytes at most",
            found=f"{nbytes[first]} bytes of pixels",
        )
    split = np.zeros_like(offset)
    rows = np.flatnonzero(tiles.compression == ZSTD_1)
    packing = read_scattered(file.path, PACKING, offset[rows])
    lengths, split[rows] = _packing(packing)
    if (split[rows] < 0).any():
        raise tools.DatasetError("unsupported header of compressed tiles", path=file.path)
    offset[rows] += lengths
    nbytes[rows] -= lengths
    return TileData(offset, nbytes, split)


def _header_bytes(header: Any) -> Any:
    """Return the length of the headers of tiles, up to their data."""
    entry = BEFORE_ENTRY + ENTRY_BYTES + DIMENSION.itemsize * header["ndim"].astype(np.int64)
    return SEGMENT_BYTES + np.maximum(LEAST_BYTES, entry) + header["metadata"]


def _packing(packing: Any) -> tuple[Index, Index]:
    """Return the lengths of ``ZSTD_1`` headers, and whether bytes are split; -1 if unsupported."""
    length = packing["length"].astype(np.int64)
    flag = (packing["flags"] & SPLIT).astype(np.int64)
    known = (length == 3) & (packing["kind"] == SPLIT)
    return length, np.where(length == 1, 0, np.where(known, flag, -1))


def _decoder(
    plain: int,
    pixel_type: int,
    compression: int,
    known: int,
    *,
    looked: bool,
    samples: int,
    shape: tuple[int, ...],
) -> tools.Decoder | tools.BlockDecoder:
    dtype = np.dtype(TYPES[pixel_type][0])
    if plain:
        return tools.plain(dtype)
    split = known - 1
    codecs = [*BYTES, SHUFFLE, *CODECS[ZSTD][1:]] if split > 0 else CODECS[compression]
    if looked and not (samples > 1 and compression in IMAGES):
        return chunk_decoder(codecs, shape, dtype, called="tile")
    options = {"compression": compression, "split": split, "located": looked, "stored": dtype}
    native = dtype.newbyteorder("=")
    return tools.BlockDecoder(f"{__name__}:decode", native, tuple(options.items()))


def decode(
    block: Block, fetch: Fetch, *, compression: int, split: int, located: bool, stored: np.dtype
) -> Array:
    """Decode a tile, reading its header first if ``located`` is False."""
    file, offset, nbytes = block.file, block.offset, block.nbytes
    if not located:
        data = fetch(file, offset, offset + nbytes).tobytes()
        header = np.frombuffer(data, tools.record_dtype(SUBBLOCK), 1)
        nbytes, known = int(header["data"][0]), header["id"][0] == TILE.encode()
        offset += int(_header_bytes(header)[0])
        if not known or not 0 < nbytes <= file.size - offset:
            what, where = "no tile begins at its offset in the directory", f"byte {block.offset}"
            raise tools.CorruptFileError(what, path=file.path, where=where, expected=TILE)
        if compression == ZSTD_1:
            packing = np.zeros(1, tools.record_dtype(PACKING))
            packing.view(np.uint8)[: min(3, nbytes)] = fetch(file, offset, offset + min(3, nbytes))
            length, flags = (int(numbers[0]) for numbers in _packing(packing))
            offset, nbytes, split = offset + length, nbytes - length, flags
    codecs = [*BYTES, SHUFFLE, *CODECS[ZSTD][1:]] if split > 0 else CODECS[compression]
    pixels = decode_chunk(
        block._replace(offset=offset, nbytes=nbytes),
        fetch,
        codecs=json.dumps(codecs),
        chunk=(),
        stored=stored,
        dtype=stored.newbyteorder("="),
        fill=b"",
        called="tile",
    )
    if len(block.shape) > 3 and compression in IMAGES:
        pixels[..., :3] = pixels[..., 2::-1]
    return pixels
