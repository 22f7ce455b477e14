"""NIfTI-1 and NIfTI-2 volumes, in one file or a pair, and Analyze 7.5; compressed or not.

Axes are shown in C order, (t, z, y, x): the bytes as they lie, x fastest. Orientation is left to
the affine in the metadata. :mod:`dask_tiled.formats.nifti.header` names the source of the layout.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dask_tiled.errors import DatasetError, TruncatedFileError
from dask_tiled.formats.format import Format
from dask_tiled.formats.nifti.header import kind_of, read_header
from dask_tiled.formats.tools.compression import is_compressed, read_start
from dask_tiled.formats.tools.volumes import describe_volume
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File

PACKED = (".gz", ".bz2", ".xz")


def sniff(path: str, head: bytes) -> str | None:
    """Look for a header in the file, or in the .hdr file beside an .img file."""
    if is_compressed(head):
        head = read_start(path, 540)
    if kind_of(head) is not None or _header_of(path) is not None:
        return None
    return "has no NIfTI or Analyze 7.5 header"


def describe(paths: Sequence[str], *, scaled: bool = False) -> Description:
    """Describe a volume.

    Parameters
    ----------
    paths : sequence of str
        One file: of a pair, either of the two.
    scaled : bool
        Show ``pixels * scl_slope + scl_inter`` as the header says, in float64 or complex128,
        instead of the pixels as they are stored. Colours are never scaled.
    """
    named = File.only(paths, "nifti").path
    header_path = _header_of(named) or named
    header = read_header(header_path)
    file = File.at(header_path if header.kind.in_one_file else _image_of(header_path))
    shape, axes = header.shape[::-1], header.axes
    if header.samples:
        shape, axes = (*shape, header.samples), (*axes, Axis("s"))
    return describe_volume(
        "nifti",
        file,
        shape,
        header.dtype,
        header.offset,
        axes,
        {**header.facts, "scaled": bool(scaled and header.scaling)},
        sig_dims=3 if header.samples else 2,
        scaling=header.scaling if scaled else None,
    )


def _header_of(path: str) -> str | None:
    """Find the header beside a file of pixels; None where it is none, or has none."""
    if _split(path)[1].lower() != ".img":
        return None
    found = _beside(path, ".hdr")
    try:
        return found if found and kind_of(read_start(found, 540)) is not None else None
    except (OSError, DatasetError):
        return None


def _image_of(path: str) -> str:
    """Find the pixels beside a header."""
    found = _beside(path, ".img")
    if found is None:
        raise TruncatedFileError(
            "the file of the pixels is missing",
            path=path,
            expected=os.path.basename(_split(path)[0]) + ".img",
        )
    return found


def _split(path: str) -> tuple[str, str, str]:
    """Split off the suffix, and before it that of compressed files."""
    stem, packed = os.path.splitext(path)
    if packed.lower() not in PACKED:
        stem, packed = path, ""
    return *os.path.splitext(stem), packed


def _beside(path: str, suffix: str) -> str | None:
    """Find the other file of a pair, in whichever case, compressed or not."""
    stem, own, packed = _split(path)
    if own.isupper():
        suffix = suffix.upper()
    packings = dict.fromkeys((packed, "", *PACKED))  # its own first
    names = (f"{stem}{suffix}{packing}" for packing in packings)
    return next((name for name in names if os.path.isfile(name)), None)


FORMAT = Format(
    name="nifti",
    extensions=(".nii", ".img"),
    summary="NIfTI-1 and -2, pairs of .hdr and .img, Analyze 7.5, compressed; all types of pixels",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    peers=("nibabel",),
)
