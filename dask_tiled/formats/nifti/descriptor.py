"""NIfTI-1 and NIfTI-2 volumes, in one file or a pair, and Analyze 7.5; compressed or not.

Axes are in C order, (t, z, y, x), x fastest. The affine in the metadata gives the orientation.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from dask_tiled.codecs.packed_files import read_start
from dask_tiled.formats import tools
from dask_tiled.formats.nifti.header import (
    HeaderKind,
    intent_of,
    kind_of,
    offset_of,
    read_header,
    scaling_of,
    shape_of,
    transform_of,
    type_of,
    units_of,
)
from dask_tiled.formats.nifti.space import affine_of, slice_times
from dask_tiled.formats.tools.volume import anatomical, axis_names, pixels_beside
from dask_tiled.model.indexing import Array
from dask_tiled.model.instrument import converted

MOST_EXTENSIONS = 1000
MOST_START = 1 << 20
"""Search at most this many bytes before the pixels for extensions."""


def _axes(ndim: int, kind: HeaderKind, header: Any) -> tuple[tools.Axis, ...]:
    """Calibrate the axes by pixdim and the units."""
    space, time = (units_of(header) or ("", "")) if kind.version else ("mm", "")
    start = float(header["toffset"]) if kind.version else 0.0
    units, starts = (*[space] * 3, time, "", "", ""), (0.0, 0.0, 0.0, start, 0.0, 0.0, 0.0)
    sizes = np.abs(header["pixdim"][1:]).tolist()
    names = reversed(axis_names(ndim))
    return tuple(map(tools.Axis.calibrated, names, units, sizes, starts))[::-1]


def _facts(kind: HeaderKind, header: Any) -> dict[str, Any]:
    values = {
        name: _plain(header[name])
        for name in header.dtype.names
        if header[name].dtype.kind != "f" or np.isfinite(header[name]).all()  # NaN breaks equality
    }
    facts: dict[str, Any] = {
        "version": f"NIfTI-{kind.version}" if kind.version else "Analyze 7.5",
        "byte_order": kind.order,
        "header": values,
        "description": values["descrip"],
    }
    affine = affine_of(kind, header)
    if affine is not None and np.isfinite(affine).all():
        facts["affine"] = tuple(map(tuple, affine.tolist()))
    if kind.version:
        codes = {name: int(header[f"{name}_code"]) for name in ("sform", "qform")}
        facts |= {name: transform_of(code) for name, code in codes.items()}
        told_by = next((name for name in codes if codes[name]), None)
        facts["affine_from"] = told_by or "pixdim"
        if told_by and "affine" in facts:
            facts["directions"] = anatomical("xyz", np.array(facts["affine"])[:3, :3].T)
        facts["intent"] = intent_of(header)
    return facts


def _extensions(path: str, kind: HeaderKind, offset: int) -> tuple[tuple[int, int], ...]:
    """List code and size of the extensions between header and pixels."""
    if not kind.version:
        return ()
    end = min(offset, MOST_START) if kind.in_one_file else MOST_START
    at = kind.nbytes + 4
    start = read_start(path, max(end, at))
    if not start[kind.nbytes : kind.nbytes + 1].strip(b"\0"):
        return ()
    found: list[tuple[int, int]] = []
    while at + 8 <= min(end, len(start)) and len(found) < MOST_EXTENSIONS:
        size, code = struct.unpack_from(f"{kind.order}2i", start, at)
        if size < 8:
            break
        found.append((code, size))
        at += size
    return tuple(found)


def _plain(value: Any) -> Any:
    plain = value.tolist()
    if isinstance(plain, bytes):
        return tools.printable(plain.partition(b"\0")[0].decode("latin1"))
    return tuple(plain) if isinstance(plain, list) else plain


PACKED = (".gz", ".bz2", ".xz")


def sniff(path: str, head: bytes) -> str | None:
    """Check for a header in the file, or in the .hdr file beside an .img file."""
    if kind_of(read_start(path, 540, head)) is not None or _header_of(path) is not None:
        return None
    return "no NIfTI or Analyze 7.5 header"


def describe(paths: Sequence[str], *, scaled: bool = False) -> tools.Description:
    """Describe a volume: one file, or either one of a pair.

    Parameters
    ----------
    scaled : bool
        Return ``pixels * scl_slope + scl_inter``, from the header, in float64 or complex128,
        instead of the stored pixels. Colours are never scaled.
    """
    named = tools.File.only(paths, "nifti").path
    path = _header_of(named) or named
    kind, header = read_header(path)
    shape = shape_of(path, kind, header)[::-1]
    dtype, samples = type_of(path, kind, header)
    offset = offset_of(path, kind, header)
    axes, facts, scaling = _axes(len(shape), kind, header), _facts(kind, header), None
    facts["extensions"] = _extensions(path, kind, offset)
    if samples:  # colours are not scaled
        shape, axes = (*shape, samples), (*axes, tools.Axis("s"))
    else:
        facts["scaling"] = scaling = scaling_of(path, kind, header)
    facts["scaled"] = bool(scaled and scaling)
    stem, _, suffixes = _pair(path, ".img")
    one = kind.in_one_file
    file = tools.File.at(path) if one else pixels_beside(f"{stem}.hdr", *suffixes)
    shown, sig_dims = scaling if scaled else None, 3 if samples else 2
    return tools.describe_volume(
        "nifti", file, shape, dtype, axes, facts, sig_dims=sig_dims, skip=offset, scaling=shown
    )


def _header_of(path: str) -> str | None:
    """Return the header beside a file of pixels, or None."""
    stem, own, suffixes = _pair(path, ".hdr")
    header = tools.beside(stem, *suffixes) if own.lower() == ".img" else None
    with suppress(FileNotFoundError, tools.DatasetError):
        if header and kind_of(read_start(header, 540)) is not None:
            return header
    return None


def _pair(path: str, suffix: str) -> tuple[str, str, list[str]]:
    """Split off the suffixes of a file; list those of the other file of the pair."""
    stem, packed = os.path.splitext(path)
    if packed.lower() not in PACKED:
        stem, packed = path, ""
    stem, own = os.path.splitext(stem)
    suffix = suffix.upper() if own.isupper() else suffix
    return stem, own, [suffix + packing for packing in (packed, "", *PACKED)]  # own packing first


def read_headers(desc: tools.Description) -> Array:
    """Return the times of planes: points of the time axis, and slice times."""
    path = _header_of(desc.files[0].path) or desc.files[0].path
    kind, header = read_header(path)
    nav = shape_of(path, kind, header)[:1:-1]
    times = _times(nav, kind, header)
    if not times:
        problem, where = "the header has no times", "pixdim[4] and slice_duration"
        raise tools.DatasetError(problem, path=path, where=where, expected="times with a unit")
    table = np.empty(nav, [(name, "f8") for name in times])
    for name, along in times.items():
        table[name] = along
    return table.ravel()


def _times(nav: tuple[int, ...], kind: HeaderKind, header: Any) -> dict[str, Array]:
    """Return times in seconds, along the last axis of (..., t, z), or the last two."""
    times: dict[str, Array] = {}
    axis = _axes(4, kind, header)[0]
    second = converted(1.0, axis.units, "s")
    if len(nav) > 1 and second:
        at = axis.offset + axis.scale * np.arange(nav[-2])
        times["elapsed_time"] = at[:, None] * second
    known = units_of(header) if kind.version else None
    second = converted(1.0, known[1], "s") if known else None
    taken = slice_times(header, nav[-1]) if nav and second else None
    if taken is not None:
        times["slice_time"] = taken * second
    return times


FORMAT = tools.Format(
    name="nifti",
    extensions=(".nii", ".img"),
    summary="NIfTI-1 and -2, pairs of .hdr and .img, Analyze 7.5, compressed; all types of pixels",
    nav_shape_from="the header: all axes before the last two",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    peers=("nibabel",),
    aliases=("analyze",),
)
