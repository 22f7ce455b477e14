"""NumPy's own file format, versions 1 to 3, in C and Fortran order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np

from dask_tiled.errors import Guard, check_whole
from dask_tiled.formats import tools
from dask_tiled.formats.tools.frames import count_frames
from dask_tiled.formats.tools.text import parse_literal
from dask_tiled.formats.tools.volume import check_bytes
from dask_tiled.model.axes import nav_axes, sig_axes
from dask_tiled.model.indexing import Cut
from dask_tiled.model.pieces import strides_of

MAGIC = b"\x93NUMPY"
ENCODINGS = {MAGIC + b"\1\0": "latin1", MAGIC + b"\2\0": "latin1", MAGIC + b"\3\0": "utf8"}
"""Text encoding of the header, by magic and version."""
MAX_HEADER = 1 << 16
PYTHON_2 = re.compile(r"(\d)L(?=[,)])")
"""Python 2 on Windows wrote lengths such as 3L, for which NumPy warns."""
OLD_BYTES = re.compile(r"""([:,]\s*['"][|<>=]?)a(?=\d*['"])""")
"""Old name of the bytes dtype, now ``S``, for which NumPy warns."""


class NpyHeader(NamedTuple):
    """The header, and the offset of the array."""

    dtype: np.dtype
    fortran_order: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def is_fortran(self) -> bool:
        """Whether the first axis varies fastest."""
        return self.fortran_order and len(self.shape) > 1

    @property
    def stop(self) -> int:
        """Offset behind the array."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


def sniff(path: str, head: bytes) -> str | None:
    """Check for the magic bytes."""
    return None if head.startswith(MAGIC) else f"does not begin with {MAGIC!r}"


def read_header(path: str) -> NpyHeader:
    """Read the header of a file."""
    return parse_header(path, tools.read_head(path, MAX_HEADER))


def parse_header(path: str, head: bytes) -> NpyHeader:
    """Parse a header, given the first bytes of a file, which may be a member of an archive."""
    start = 10 if head[6:7] == b"\1" else 12
    offset = start + int.from_bytes(head[8:start], "little")
    expected = f"{MAGIC!r}, version 1, 2 or 3, and at most {MAX_HEADER} bytes"
    place = {"where": "byte 0", "expected": expected}
    with Guard(path, "the header cannot be read", place):  # evaluating literals may raise anything
        if head[:8] not in ENCODINGS:
            raise ValueError(f"magic and version {head[:8]!r}")
        if offset > len(head):
            raise EOFError(f"{len(head)} of the {offset} bytes of a header")
        text = PYTHON_2.sub(r"\1 ", head[start:offset].decode(ENCODINGS[head[:8]]))
        text = OLD_BYTES.sub(r"\1S", text)
        # NumPy has no public function for version 3, whose headers can be written as version 2.
        plain = text.rstrip().encode("ascii", "backslashreplace")  # may exceed the header
        parse_literal(plain.decode())  # raises where NumPy would repair the text with a warning
        stream = BytesIO(len(plain).to_bytes(4, "little") + plain)
        shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream, len(plain))
    whole = all(type(n) is int and 0 <= n < 1 << 63 for n in shape)
    if not whole or dtype.shape or not dtype.itemsize:
        found = f"{dtype} of shape {shape}"
        raise tools.CorruptFileError("malformed header", path=path, found=found)
    return NpyHeader(dtype, fortran_order, shape, offset)


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    sig_shape: tuple[int, ...] | None = None,
    sig_dims: int = 2,
) -> tools.Description:
    """Describe one npy file.

    Parameters
    ----------
    nav_shape, sig_shape : tuple of int, optional
        Other shapes for the same elements, read in C order; remaining elements at the end are
        ignored.
    sig_dims : int
        How many of the last axes are signal axes.
    """
    file = tools.File.only(paths, "npy")
    header = read_header(file.path)
    check_objects(file.path, header)
    if not file.grows or header.fortran_order:
        check_bytes(file, header.shape or (1,), header.dtype, header.offset)
    metadata = {"npy": {"shape": header.shape, "fortran_order": header.fortran_order}}
    nav, sig = frames_of(file.path, header, sig_shape, sig_dims)
    decoder = tools.plain(header.dtype)
    if file.grows and nav and sig and not header.is_fortran:
        record = tools.Record(sig, decoder)
        (there,) = count_frames([file], record, header.offset)
        layout = tools.record_layout([file], [min(there, math.prod(nav))], record, header.offset)
        return tools.Description.of("npy", layout, metadata).with_scan(nav, "the header")
    layout = layout_of(file, nav, sig, decoder, header)
    axes = nav_axes(len(nav)) + sig_axes(len(sig))
    return tools.Description("npy", layout, axes, len(nav), metadata)


def check_objects(path: str, header: NpyHeader) -> None:
    """Raise a DatasetError if an array holds Python objects."""
    if header.dtype.hasobject:
        raise tools.DatasetError(
            "arrays of Python objects are pickles, which are never opened",
            path=path,
            where="the field descr",
            expected="a type of numbers",
            found=header.dtype,
        )


def frames_of(
    path: str, header: NpyHeader, sig_shape: tuple[int, ...] | None, sig_dims: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the scan and of a frame.

    Raise a TruncatedFileError if the array is smaller than a frame.
    """
    last = check_whole("sig_dims", sig_dims, least=0, path=path)
    split = max(0, len(header.shape) - last)
    nav, sig = header.shape[:split], header.shape[split:]
    if sig_shape is None or sig_shape == sig or header.is_fortran:
        return nav, sig
    frames = math.prod(header.shape) // math.prod(sig_shape)
    if not frames:
        problem = "the array is smaller than a frame"
        expected, found = (f"{math.prod(n)} elements" for n in (sig_shape, header.shape))
        raise tools.TruncatedFileError(problem, path=path, expected=expected, found=found)
    return (frames,), sig_shape


def layout_of(
    file: tools.File,
    nav: tuple[int, ...],
    sig: tuple[int, ...],
    decoder: tools.Decoder | tools.BlockDecoder,
    header: NpyHeader,
    at: int = 0,
    nbytes: int = 0,
) -> tools.Layout:
    """Return the layout of an array that begins at a byte; ``nbytes`` if it is compressed."""
    grid, frame = nav or (1,), sig or (1,)
    strides = strides_of(grid + frame, header.dtype.itemsize, "F" if header.is_fortran else "C")
    first = at if nbytes else at + header.offset
    piece = tools.Piece(0, (0,) * len(strides), grid + frame, first, strides, nbytes=nbytes)
    layout = tools.Layout([file], grid, frame, [piece], [decoder]).show(nav)
    return layout if sig else layout.cut([*layout.cuts[:-1], Cut(0, 1, 1, kept=False)])


FORMAT = tools.Format(
    name="npy",
    extensions=(".npy",),
    summary="versions 1 to 3, C and Fortran order, any dtype but object",
    nav_shape_from="the header",
    sniff=sniff,
    describe=describe,
    peers=("numpy", "LiberTEM"),
    aliases=("numpy",),
)
