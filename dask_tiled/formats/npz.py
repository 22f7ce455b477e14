"""NumPy's archives of arrays: zip files of .npy files, stored or deflated.

Layout facts: numpy.lib.format, APPNOTE.TXT of PKWARE (the ZIP File Format Specification).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.limits import most_bytes
from dask_tiled.errors import choose_dataset
from dask_tiled.formats import tools
from dask_tiled.formats.npy import (
    MAX_HEADER,
    NpyHeader,
    check_objects,
    frames_of,
    layout_of,
    parse_header,
)
from dask_tiled.formats.tools.zips import MAGIC, FolderEntry, ZipIndex
from dask_tiled.model.axes import nav_axes, sig_axes
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.doubts import by_size_only, may_be_meant
from dask_tiled.model.indexing import Array
from dask_tiled.model.listing import most_listed

SUFFIX = ".npy"
NAME_LENGTH, NAME = slice(26, 28), 30
"""Bytes of the length of the first member's name, and offset of the name."""


class StoredArray(NamedTuple):
    """An array in a zip file: its member and its header."""

    entry: FolderEntry
    header: NpyHeader

    @classmethod
    def of(cls, entry: FolderEntry) -> StoredArray:
        """Read the header of a member.

        Raise a CorruptFileError if it is invalid, and a TruncatedFileError if the member is shorter
        than the array.
        """
        header = parse_header(entry.path, entry.start(MAX_HEADER))
        most = most_bytes("deflate", entry.nbytes) if entry.deflated else entry.nbytes
        if header.stop > min(entry.size, most):
            problem, found = "a member of the zip file ends inside its array", f"{entry.size} bytes"
            expected = f"{header.stop} bytes"
            raise tools.TruncatedFileError(problem, path=entry.path, expected=expected, found=found)
        return cls(entry, header)

    def layout(self, nav: tuple[int, ...], sig: tuple[int, ...]) -> tools.Layout:
        """Return the layout of the array in the shape ``nav + sig``."""
        entry, header = self
        if 0 in header.shape:
            problem, found = "the array is empty", f"shape {header.shape}"
            raise tools.DatasetError(problem, path=entry.path, found=found)
        decoder = tools.plain(header.dtype)
        if not entry.deflated:
            return layout_of(entry.file, nav, sig, decoder, header, entry.offset)
        options = {"header": header.offset, "stored": header.dtype, "size": entry.size}
        options |= {"crc": entry.crc, "fortran": header.is_fortran}
        packed = tools.BlockDecoder(f"{__name__}:inflate", decoder.dtype, tuple(options.items()))
        return layout_of(entry.file, nav, sig, packed, header, entry.offset, entry.nbytes)

    def described(
        self,
        format: str,
        nav: tuple[int, ...],
        sig: tuple[int, ...],
        facts: Mapping[str, Any],
        axes: tuple[tools.Axis, ...],
    ) -> tools.Description:
        """Describe the array; a deflated one is never cut."""
        check_objects(self.entry.path, self.header)
        layout = self.layout(nav, sig)
        base = tuple(layout.pieces.rows().shape[0].tolist()) if self.entry.deflated else ()
        return tools.Description.of(format, layout, {format: facts}, axes, base_shape=base)


def inflate(
    block: Block,
    fetch: Fetch,
    *,
    header: int,
    stored: np.dtype,
    size: int,
    crc: int,
    fortran: bool,
) -> Array:
    """Inflate a member, and return its array."""
    packed = fetch(block.file, block.offset, block.offset + block.nbytes)
    content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed.data, size + 1)
    if len(content) != size or zlib.crc32(content) != crc:
        raise tools.CorruptFileError(
            "a member of the zip file is damaged",
            path=block.file.path,
            where=f"byte {block.offset}",
            expected=f"{size} bytes with checksum {crc}",
            found=f"{len(content)} bytes with checksum {zlib.crc32(content)}",
        )
    pixels = np.frombuffer(content, stored, math.prod(block.shape), header)
    pixels = pixels.reshape(block.shape, order="F" if fortran else "C")
    return pixels.astype(tools.plain(stored).dtype, copy=False)


def first_name(head: bytes) -> str:
    """Return the name of the first member of a zip file; empty for other files."""
    length = int.from_bytes(head[NAME_LENGTH], "little")
    return head[NAME : NAME + length].decode("latin1") if head.startswith(MAGIC) else ""


def sniff(path: str, head: bytes) -> str | None:
    """Check for a zip file all of whose members are arrays."""
    if not first_name(head).endswith(SUFFIX):
        return "no zip file that begins with a .npy file"
    others = (name for name in ZipIndex(tools.File.at(path)).members if not name.endswith(SUFFIX))
    other = next(others, None)
    return None if other is None else f"not only .npy files in the zip file, but {other!r}"[:200]


def describe(
    paths: Sequence[str],
    *,
    dataset: int | str | None = None,
    sig_shape: tuple[int, ...] | None = None,
    sig_dims: int = 2,
) -> tools.Description:
    """Describe an array of an archive.

    Parameters
    ----------
    dataset : int or str, optional
        Name or number of the array; by default the largest, with two axes or more if there is one.
    sig_shape : tuple of int, optional
        Another shape of frames for the same elements, read in C order; remaining elements at the
        end are ignored.
    sig_dims : int
        How many of the last axes are signal axes.
    """
    file = tools.File.only(paths, "npz")
    index = ZipIndex(file)
    members = {name.removesuffix(SUFFIX): name for name in index.members if name.endswith(SUFFIX)}
    if not members:
        problem, expected = "the zip file holds no array", "a member that ends in .npy"
        raise tools.CorruptFileError(problem, path=file.path, expected=expected)
    names = [*members]
    some = names[: most_listed()]
    listed = dict(zip(some, index.entries([members[name] for name in some]), strict=True))
    shapes = _shapes(listed)
    if dataset is None:
        name = max(shapes or dict.fromkeys(some), key=lambda one: _rank(shapes.get(one, ())))
    else:
        name = names[choose_dataset(file.path, names, dataset)]
    pictures = {one: shape for one, shape in shapes.items() if len(shape) > 1 or one == name}
    (entry,) = index.entries([members[name]])
    array = StoredArray.of(entry)
    nav, sig = frames_of(entry.path, array.header, sig_shape, sig_dims)
    facts = {
        "dataset": name,
        "datasets": {one: {"name": one, "shape": shape} for one, shape in pictures.items()},
        "shape": array.header.shape,
        "fortran_order": array.header.fortran_order,
        "deflated": entry.deflated,
    }
    axes = nav_axes(len(nav)) + sig_axes(len(sig))
    desc = array.described("npz", nav, sig, facts, axes)
    if dataset is not None:
        return desc
    shown = math.prod(shapes.get(name, ()))
    alike = [
        one
        for one, shape in shapes.items()
        if one != name and len(shape) > 1 and may_be_meant(math.prod(shape), shown)
    ]
    return desc.with_doubts(*by_size_only(name, alike, "the largest in the file"))


def _rank(shape: tuple[int, ...]) -> tuple[bool, int]:
    return len(shape) > 1, math.prod(shape)


def _shapes(listed: Mapping[str, FolderEntry]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays that can be opened, by name."""
    shapes = {}
    for name, entry in listed.items():
        header: Any = None
        try:
            header = StoredArray.of(entry).header
        except tools.DatasetError:  # another array may be readable
            continue
        if not header.dtype.hasobject and 0 not in header.shape:
            shapes[name] = header.shape
    return shapes


FORMAT = tools.Format(
    name="npz",
    extensions=(".npz",),
    summary="arrays of numpy.savez and savez_compressed",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    peers=("numpy",),
)
