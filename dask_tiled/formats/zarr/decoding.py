"""Chunks of zarr arrays become pixels: their codecs are undone, the usual ones without zarr.

No length that a chunk claims is believed: all get the room that they should need, and no more.

Layout facts: the specifications of the codecs of zarr 3; of Blosc, the header of its chunks.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.tools.codecs import unzstd
from dask_tiled.formats.tools.compression import check_room
from dask_tiled.model.blocks import Block, Fetch

Bytes = npt.NDArray[np.uint8]


def _unblosc(data: Bytes, out: Bytes) -> None:
    from numcodecs.blosc import Blosc

    length, _, claimed = np.frombuffer(data, "<u4", 3, 4).tolist()
    if (length, claimed) != (len(out), len(data)):
        raise ValueError(f"{claimed} bytes that hold {length}")
    Blosc().decode(data, out)


def _ungzip(data: Bytes, out: Bytes) -> None:
    stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
    found = stream.decompress(data.data, len(out) + 1)
    if len(found) != len(out):
        raise ValueError(f"{len(found)} bytes or more")
    out[:] = np.frombuffer(found, np.uint8)


_COMPRESSORS: dict[str, tuple[str, Callable[[Bytes, Bytes], None]]] = {
    "blosc": ("blosc", _unblosc),
    "zstd": ("zstd", unzstd),
    "gzip": ("deflate", _ungzip),
}
"""What makes bytes smaller, and what makes them larger again."""


def unsealed(data: Bytes) -> Bytes:
    """Check the CRC32C that bytes end with, and leave it out.

    Raises
    ------
    ValueError
        It is that of others.
    """
    from google_crc32c import value

    content = data[:-4]
    content.flags.writeable = False  # what it takes
    found, stored = int(value(content)), int.from_bytes(data[-4:].tobytes(), "little")
    if found != stored:
        raise ValueError(f"a CRC32C of {found:#010x}, where {stored:#010x} is stored")
    return content


def decode(
    block: Block, fetch: Fetch, *, document: str, chunk: tuple[int, ...], stored: str
) -> npt.NDArray[Any]:
    """Decode a chunk, of the shape that it has in the file: at the edges larger than the block.

    ``document`` is that of a zarr array of this one chunk, ``stored`` the type of its pixels there.
    """
    data = fetch(block.file, block.offset, block.offset + block.nbytes)
    dtype = np.dtype(stored)
    try:
        pixels = _decoded(data, json.loads(document), chunk, dtype)
    except Exception as error:
        raise CorruptFileError(
            "a chunk cannot be decoded",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{chunk} {dtype.name}",
            found=str(error) or repr(error),
        ) from error
    inside = tuple(slice(n) for n in block.shape)
    return pixels[inside].astype(
        dtype.newbyteorder("="), copy=bool(np.may_share_memory(data, pixels))
    )


def _decoded(
    data: Bytes, document: dict[str, Any], chunk: tuple[int, ...], dtype: np.dtype
) -> npt.NDArray[Any]:
    names = [codec["name"] for codec in document["codecs"]]
    if names[-1] == "crc32c":
        names.pop()
    compressors = names[1:]
    known = names[0] == "bytes" and dtype.kind != "b" and len(compressors) < 2
    if not known or any(name not in _COMPRESSORS for name in compressors):
        return _decoded_by_zarr(data, document, chunk)
    if len(names) < len(document["codecs"]):
        data = unsealed(data)
    size = math.prod(chunk) * dtype.itemsize
    if compressors:
        codec, decompress = _COMPRESSORS[compressors[0]]
        check_room(codec, len(data), size)
        packed, data = data, np.empty(size, np.uint8)
        decompress(packed, data)
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes")
    return data.view(dtype).reshape(chunk)


def _decoded_by_zarr(
    data: Bytes, document: dict[str, Any], chunk: tuple[int, ...]
) -> npt.NDArray[Any]:
    import zarr
    from zarr.core.buffer import default_buffer_prototype

    buffer = default_buffer_prototype().buffer.from_bytes
    contents = {
        "zarr.json": buffer(json.dumps(document).encode()),
        "/".join(["c", *("0" for _ in document["shape"])]): buffer(data.tobytes()),
    }
    array = zarr.open_array(zarr.storage.MemoryStore(contents), mode="r")
    return np.asarray(array[...]).reshape(chunk)
