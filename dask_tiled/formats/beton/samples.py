"""Decoders of samples that become Python objects: bytes, text and images."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np

from dask_tiled.errors import CorruptFileError
from dask_tiled.formats.beton.structure import PIXELS, REGION
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.indexing import Array, Index

MOST_BYTES, MOST_GAP = 1 << 20, 1 << 12
"""Regions with smaller gaps are read together, up to this many bytes."""


def regions(block: Block, fetch: Fetch, *, step: int, text: bool) -> Array:
    """Read the regions that the records of some samples point to.

    Records are `step` bytes apart. Texts end with a zero byte.
    """
    rows = np.ndarray(
        block.shape[:1],
        REGION,
        fetch(block.file, block.offset, block.offset + block.nbytes).tobytes(),
        strides=(step,),
    )
    found = np.full(block.shape, b"", object)
    ptr, size = rows["ptr"].astype(np.int64), rows["size"].astype(np.int64)
    for some in _near(ptr, size):
        first, stop = int(ptr[some[0]]), int((ptr[some] + size[some]).max())
        data = fetch(block.file, first, stop).tobytes()
        for i in some.tolist():
            at = int(ptr[i]) - first
            found[i, 0] = data[at : at + int(size[i])]
    if text:
        for i, content in enumerate(found[:, 0]):
            found[i, 0] = _text(content, block, i)
    return found


def _near(ptr: Index, size: Index) -> Iterator[Index]:
    """Group regions that lie near each other; skip empty regions."""
    order = np.flatnonzero(size)
    order = order[np.argsort(ptr[order], kind="stable")]
    low = high = 0
    group: list[int] = []
    for i in order.tolist():
        first, stop = int(ptr[i]), int(ptr[i] + size[i])
        if group and (first > high + MOST_GAP or max(stop, high) > low + MOST_BYTES):
            yield np.array(group)
            group = []
        low, high = (low, max(stop, high)) if group else (first, stop)
        group.append(i)
    if group:
        yield np.array(group)


def _text(content: bytes, block: Block, i: int) -> str:
    try:
        return content.decode().removesuffix("\0")
    except UnicodeDecodeError as error:
        where = f"sample {block.start[0] + i}"
        problem, path = "a text cannot be read", block.file.path
        raise CorruptFileError(
            problem, path=path, where=where, expected="UTF-8", found=repr(content[:40])
        ) from error


def image(block: Block, fetch: Fetch) -> Array:
    """Read the uncompressed image that the record of a sample points to."""
    record = fetch(block.file, block.offset, block.offset + block.nbytes).tobytes()
    (row,) = np.frombuffer(record, PIXELS)
    shape = int(row["height"]), int(row["width"]), 3
    first, nbytes = int(row["ptr"]), shape[0] * shape[1] * 3
    pixels = fetch(block.file, first, first + nbytes) if nbytes else np.empty(0, np.uint8)
    return _one(pixels.reshape(shape).copy())


def jpeg(block: Block, fetch: Fetch) -> Array:
    """Decode a JPEG image of the block's shape."""
    return _decoded(block, fetch, block.shape[2:0:-1]).reshape(block.shape)


def any_jpeg(block: Block, fetch: Fetch) -> Array:
    """Decode a JPEG image of any shape."""
    return _one(_decoded(block, fetch, None))


def _decoded(block: Block, fetch: Fetch, size: tuple[int, ...] | None) -> Array:
    from PIL import Image

    content = fetch(block.file, block.offset, block.offset + block.nbytes).tobytes()
    where, path = f"sample {block.start[0]}", block.file.path
    try:
        opened = Image.open(io.BytesIO(content), formats=["JPEG"])
        found = opened.size
        pixels = np.asarray(opened.convert("RGB")) if size in (None, found) else None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise CorruptFileError(
            "an image cannot be decoded",
            path=path,
            where=where,
            expected=f"JPEG in {block.nbytes} bytes",
            found=str(error),
        ) from error
    if pixels is None:
        problem = "the size of an image differs from its record"
        raise CorruptFileError(problem, path=path, where=where, expected=size, found=found)
    return pixels


def _one(pixels: Array) -> Array:
    found = np.empty((1, 1), object)
    found[0, 0] = pixels
    return found
