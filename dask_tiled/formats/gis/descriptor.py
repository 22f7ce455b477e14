"""GIS volumes of AIMS and BrainVISA: pixels in ``.ima``, what they are in ``.dim``.

Axes are shown in C order, (t, z, y, x): the bytes as they lie, x fastest.
:mod:`dask_tiled.formats.gis.header` names the source of the layout.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_tiled.errors import CorruptFileError, TruncatedFileError
from dask_tiled.formats.format import Format
from dask_tiled.formats.gis.header import BEGINNING, Header, read_dim, read_minf
from dask_tiled.formats.tools.volumes import check_bytes, check_shape, volume_layout
from dask_tiled.model.blocks import Block, Fetch
from dask_tiled.model.decoders import BlockDecoder
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File, read_head
from dask_tiled.model.layout import Layout
from dask_tiled.model.pieces import Piece

SUFFIXES = (".ima", ".dim")
NUMBER = re.compile(rb"[^\s(),;]+")
"""Complex numbers may stand in brackets."""


def sniff(path: str, head: bytes) -> str | None:
    """Look for the sizes and keys of a header, in the file or in the ``.dim`` file beside it."""
    base, suffix = _split(path)
    if BEGINNING.match(head) and b"-type" in head:
        return None
    if suffix and suffix != ".dim" and _is_header(base + ".dim"):
        return None
    return "is no header with sizes and -type, and has none beside it"


def describe(paths: Sequence[str]) -> Description:
    """Describe a volume.

    Parameters
    ----------
    paths : sequence of str
        One file: ``.ima``, ``.dim``, ``.ima.minf``, or what their names have in common.
    """
    named = File.only(paths, "gis").path
    base, suffix = _split(named)
    header_path = base + ".dim" if suffix else named
    for path, what in ((header_path, "header"), (base + ".ima", "pixels")):
        if not os.path.isfile(path):
            raise TruncatedFileError(
                f"the file of the {what} is missing",
                path=named,
                expected=os.path.basename(path),
            )
    header = read_dim(header_path)
    file = File.at(base + ".ima")
    shape = tuple(reversed(header.shape))
    nav, sig, axes = shape[:-2], shape[-2:], header.axes
    if header.parts:
        sig, axes = (*sig, header.parts), (*axes, Axis(header.part_name))
    facts: dict[str, Any] = dict(header.facts)
    minf = base + ".ima.minf"
    if os.path.isfile(minf):
        facts["minf"] = read_minf(minf)
    if header.ascii:
        layout = _text_layout(file, nav, sig, header.dtype)
        return Description.of("gis", layout, {"gis": facts}, axes, base_shape=(nav or (1,)) + sig)
    dtype = _settled(file, header, nav + sig)
    layout = volume_layout(file, nav, sig, dtype)
    return Description.of("gis", layout, {"gis": facts | {"dtype": str(dtype)}}, axes)


def _settled(file: File, header: Header, shape: tuple[int, ...]) -> np.dtype:
    """Give the type of the pixels: longs have the length of those of the machine that wrote them.

    Raises
    ------
    TruncatedFileError
        The file is too short.
    CorruptFileError
        It is too long: there are no other bytes in it, so that the header tells something else.
    """
    check_shape(file, shape)
    dtype, count = header.dtype, math.prod(shape)
    if header.facts["header"]["type"].endswith("LONG") and file.size == 4 * count:
        dtype = np.dtype(f"{dtype.kind}4").newbyteorder(dtype.byteorder)
    check_bytes(file, shape, dtype, exact=True)
    return dtype


def _text_layout(file: File, nav: tuple[int, ...], sig: tuple[int, ...], dtype: np.dtype) -> Layout:
    """Lay out numbers that are written as text: one block, as no number says where it lies."""
    numbers = math.prod(nav + sig) * (2 if dtype.kind == "c" else 1)
    check_shape(file, nav + sig)
    if 2 * numbers - 1 > file.size:
        raise TruncatedFileError(
            "the file is too short for so many numbers",
            path=file.path,
            expected=f"{2 * numbers - 1} bytes, at least, for a volume of shape {nav + sig}",
            found=f"{file.size} bytes",
        )
    grid = nav or (1,)
    native = dtype.newbyteorder("=")
    options = (("dtype", native.str),)
    decoder = BlockDecoder("dask_tiled.formats.gis.descriptor:decode", native, options)
    zeros = (0,) * len(grid + sig)
    piece = Piece(0, zeros, grid + sig, 0, zeros, nbytes=file.size)
    layout = Layout([file], grid, sig, [piece], [decoder])
    return layout.show(nav)


def decode(block: Block, fetch: Fetch, *, dtype: str) -> npt.NDArray[Any]:
    """Read numbers that are written as text, separated by any blanks; what follows is left out.

    Where the last number has lost digits, nothing tells.

    Raises
    ------
    TruncatedFileError
        There are fewer than the header promises.
    CorruptFileError
        Something else is written there, or a number that the type cannot hold.
    """
    kind = np.dtype(dtype)
    text = fetch(block.file, block.offset, block.offset + block.nbytes).data
    number: Callable[[bytes], Any] = int if kind.kind in "iu" else float
    part = np.dtype(f"f{kind.itemsize // 2}") if kind.kind == "c" else kind
    count = math.prod(block.shape) * kind.itemsize // part.itemsize
    numbers = (number(match[0]) for match in NUMBER.finditer(text))
    try:
        with np.errstate(over="ignore"):
            values = np.fromiter(islice(numbers, count), part)
    except (ValueError, OverflowError) as error:
        raise CorruptFileError(
            "something else than numbers of the type of the pixels",
            path=block.file.path,
            expected=f"{count} numbers of type {part}",
            found=str(error)[:80],
        ) from error
    if len(values) < count:
        raise TruncatedFileError(
            "the text ends too early",
            path=block.file.path,
            expected=f"{count} numbers",
            found=f"{len(values)} numbers",
        )
    return values.view(kind).reshape(block.shape)


def _split(path: str) -> tuple[str, str]:
    """Split off the suffixes of the files of a volume: nothing where it has another name."""
    base, suffix = os.path.splitext(path.removesuffix(".minf"))
    if suffix in SUFFIXES:
        return base, suffix
    return (path[:-5], ".minf") if path.endswith(".minf") else (path, "")


def _is_header(path: str) -> bool:
    try:
        head = read_head(path, 4096)
    except (OSError, ValueError):
        return False
    return bool(BEGINNING.match(head)) and b"-type" in head


FORMAT = Format(
    name="gis",
    extensions=(".ima", ".dim"),
    summary="volumes of AIMS and BrainVISA: all types, both byte orders, binary and as text",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    implied=".dim",
)
