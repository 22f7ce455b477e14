"""NIfTI-1 and NIfTI-2 volumes, in one file or a pair, and Analyze 7.5; compressed or not.

Axes are shown in C order, (t, z, y, x): the bytes as they lie, x fastest. Orientation is left to
the affine in the metadata.

Layout facts: nifti1.h and nifti2.h of the NIfTI Data Format Working Group; for Analyze 7.5, dbh.h
of the Mayo Clinic.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.formats import tools
from dask_tiled.model.indexing import Array

MAGIC = {  # bytes of the header, where its magic begins: of one file, of a pair of files
    348: (344, (b"n+1\0", b"ni1\0")),
    540: (4, (b"n+2\0", b"ni2\0")),
}
ANALYZE_BITS = {2: 8, 4: 16, 8: 32, 16: 32, 32: 64, 64: 64, 128: 24}
"""Bits of a pixel for each data type of Analyze 7.5."""
MOST_EXTENSIONS = 1000
MOST_START = 1 << 20
"""So many bytes before the pixels are looked through for extensions."""
UNITS = {"meter": "m", "micron": "µm", "sec": "s", "msec": "ms", "usec": "µs", "hz": "Hz"}
UNITS |= {"rads": "rad/s", "unknown": ""}


class Kind(NamedTuple):
    """Which header it is: version 1 or 2, or 0 for Analyze 7.5."""

    version: int
    order: str
    nbytes: int
    in_one_file: bool


def kind_of(head: bytes) -> Kind | None:
    """Recognise a header by its length and its magic; None where it is none of ours."""
    for order in ("<", ">"):
        nbytes = int.from_bytes(head[:4], "little" if order == "<" else "big")
        if nbytes not in MAGIC or len(head) < nbytes:
            continue
        at, magic = MAGIC[nbytes]
        if head[at : at + 4] in magic:
            single = head[at : at + 4] == magic[0]
            return Kind(1 if nbytes == 348 else 2, order, nbytes, single)
        if nbytes == 348 and _is_analyze(head, order):
            return Kind(0, order, nbytes, in_one_file=False)
    return None


def _is_analyze(head: bytes, order: str) -> bool:
    """There is no magic, so that number of axes, data type and bits have to make sense."""
    ndim, datatype, bits = struct.unpack(f"{order}h 28x 2h", head[40:74])
    return 1 <= ndim <= 7 and ANALYZE_BITS.get(datatype) == bits


def read_header(path: str) -> tuple[Kind, Any]:
    """Read the header of a file, which may be compressed, as one of nibabel."""
    start = tools.read_start(path, 540)
    kind = kind_of(start)
    if kind is None:
        problem = "neither a NIfTI nor an Analyze 7.5 header"
        expected = "348 or 540, and a magic or a data type that fits"
        raise tools.CorruptFileError(
            problem, path=path, where="byte 0", expected=expected, found=start[:4]
        )
    nib = tools.require("nibabel", "nifti", path)
    known = (nib.Spm2AnalyzeImage.header_class, nib.Nifti1Header, nib.Nifti2Header)
    return kind, known[kind.version](start[: kind.nbytes], kind.order, check=False)


def _ask(path: str, parsed: Any, field: str, question: Callable[[], Any]) -> Any:
    """Ask a header; what nibabel refuses is a field that makes no sense."""
    try:
        return question()
    except Exception as error:  # nibabel raises its own, numpy's, and those of a dict
        where, found = f"the field {field}", f"{_plain(parsed[field])}: {error}"
        problem = "the header makes no sense"
        raise tools.CorruptFileError(problem, path=path, where=where, found=found) from error


def _shape(path: str, kind: Kind, shape: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = tuple(map(int, shape))
    if not 1 <= len(sizes) <= 7 or min(sizes) < 1:
        problem, where = "no shape of a volume", f"byte {16 if kind.version == 2 else 40} (dim)"
        expected = "1 to 7 axes of positive lengths"
        raise tools.CorruptFileError(
            problem, path=path, where=where, expected=expected, found=sizes
        )
    return sizes


def _type(path: str, dtype: np.dtype) -> tuple[np.dtype, int]:
    """Return the type of a sample, and how many make a pixel of colours, or 0."""
    if dtype.names:
        return np.dtype("u1"), len(dtype.names)
    if dtype.kind not in "iufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        problem, where = "pixels of this type are not read", "the field datatype"
        known = "integers and floats of up to 8 bytes, complex numbers of up to 16, colours"
        found = "bits or an unknown type" if dtype.kind == "V" else dtype
        raise tools.DatasetError(problem, path=path, where=where, expected=known, found=found)
    return dtype, 0


def _axes(ndim: int, kind: Kind, parsed: Any) -> tuple[tools.Axis, ...]:
    """Calibrate the axes by pixdim and the units."""
    space, time, start = ("mm", "", 0.0) if kind.version == 0 else ("", "", 0.0)
    if kind.version:
        start = float(parsed["toffset"])
        with suppress(KeyError):  # a code without a meaning
            space, time = (UNITS.get(unit, unit) for unit in parsed.get_xyzt_units())
    units, starts = (*[space] * 3, time, "", "", ""), (0.0, 0.0, 0.0, start, 0.0, 0.0, 0.0)
    sizes = [abs(float(size)) for size in parsed["pixdim"][1:]]
    names = reversed(tools.axis_names(ndim))
    return tuple(map(tools.Axis.calibrated, names, units, sizes, starts))[::-1]


def _facts(kind: Kind, parsed: Any) -> dict[str, Any]:
    values = {
        name: _plain(value)
        for name, value in parsed.items()
        if value.dtype.kind != "f" or np.isfinite(value).all()  # metadata equal themselves
    }
    facts: dict[str, Any] = {
        "version": f"NIfTI-{kind.version}" if kind.version else "Analyze 7.5",
        "byte_order": kind.order,
        "header": values,
        "description": values.get("descrip", ""),
    }
    # Pixels can be read without the rest; nibabel raises its own errors, numpy's, those of a dict.
    with suppress(Exception):
        affine = parsed.get_best_affine()
        if np.isfinite(affine).all():
            facts["affine"] = tuple(map(tuple, affine.tolist()))
    if kind.version:
        from nibabel.nifti1 import xform_codes

        codes = {name: int(parsed[f"{name}_code"]) for name in ("sform", "qform")}
        for name, code in codes.items():
            known = code in xform_codes.value_set("code")
            facts[name] = xform_codes.label[code] if known else f"code {code}"
        told_by = next((name for name in codes if codes[name]), None)
        facts["affine_from"] = told_by or "pixdim"
        if told_by and "affine" in facts:
            facts["directions"] = tools.anatomical("xyz", np.array(facts["affine"])[:3, :3].T)
        with suppress(Exception):
            names = ("code", "parameters", "name")
            facts["intent"] = dict(zip(names, parsed.get_intent(), strict=True))
    return facts


def _extensions(path: str, kind: Kind, offset: int) -> tuple[tuple[int, int], ...]:
    """List code and size of what stands between header and pixels."""
    if not kind.version:
        return ()
    end = min(offset, MOST_START) if kind.in_one_file else MOST_START
    at = kind.nbytes + 4
    start = tools.read_start(path, max(end, at))
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
    """Look for a header in the file, or in the .hdr file beside an .img file."""
    if tools.is_compressed(head):
        head = tools.read_start(path, 540)
    if kind_of(head) is not None or _header_of(path) is not None:
        return None
    return "has no NIfTI or Analyze 7.5 header"


def describe(paths: Sequence[str], *, scaled: bool = False) -> tools.Description:
    """Describe a volume: one file, or either one of a pair.

    Parameters
    ----------
    scaled : bool
        Show ``pixels * scl_slope + scl_inter`` as the header says, in float64 or complex128,
        instead of the pixels as they are stored. Colours are never scaled.
    """
    named = tools.File.only(paths, "nifti").path
    path = _header_of(named) or named
    kind, parsed = read_header(path)
    ask = partial(_ask, path, parsed)
    shape = _shape(path, kind, ask("dim", parsed.get_data_shape))[::-1]
    dtype, samples = _type(path, ask("datatype", parsed.get_data_dtype))
    offset = ask("vox_offset", parsed.get_data_offset) or kind.nbytes * kind.in_one_file
    axes, facts, scaling = _axes(len(shape), kind, parsed), _facts(kind, parsed), None
    facts["extensions"] = _extensions(path, kind, offset)
    if samples:  # the scaling of colours is to be ignored
        shape, axes = (*shape, samples), (*axes, tools.Axis("s"))
    else:
        gain, inter = ask("scl_slope", parsed.get_slope_inter)
        scaling = (1.0 if gain is None else float(gain), 0.0 if inter is None else float(inter))
        facts["scaling"] = scaling
    facts["scaled"] = bool(scaled and scaling)
    stem, _, suffixes = _pair(path, ".img")
    one = kind.in_one_file
    file = tools.File.at(path) if one else tools.pixels_beside(f"{stem}.hdr", *suffixes)
    shown, sig_dims = scaling if scaled else None, 3 if samples else 2
    return tools.describe_volume(
        "nifti", file, shape, dtype, axes, facts, sig_dims=sig_dims, skip=offset, scaling=shown
    )


def _header_of(path: str) -> str | None:
    """Find the header beside a file of pixels; None where it is none, or has none."""
    stem, own, suffixes = _pair(path, ".hdr")
    header = tools.beside(stem, *suffixes) if own.lower() == ".img" else None
    with suppress(FileNotFoundError, tools.DatasetError):
        if header and kind_of(tools.read_start(header, 540)) is not None:
            return header
    return None


def _pair(path: str, suffix: str) -> tuple[str, str, list[str]]:
    """Take the suffix off a name; list those of the other file of a pair, compressed or not."""
    stem, packed = os.path.splitext(path)
    if packed.lower() not in PACKED:
        stem, packed = path, ""
    stem, own = os.path.splitext(stem)
    suffix = suffix.upper() if own.isupper() else suffix
    return stem, own, [suffix + packing for packing in (packed, "", *PACKED)]  # its own first


def read_headers(desc: tools.Description) -> Array:
    """Tell when planes were taken: the points of the time axis, and the times of slices."""
    path = _header_of(desc.files[0].path) or desc.files[0].path
    kind, parsed = read_header(path)
    nav = _shape(path, kind, parsed.get_data_shape())[:1:-1]
    times = _times(nav, kind, parsed)
    if not times:
        problem, where = "the header says nothing of times", "pixdim[4] and slice_duration"
        raise tools.DatasetError(problem, path=path, where=where, expected="times with a unit")
    table = np.empty(nav, [(name, "f8") for name in times])
    for name, along in times.items():
        table[name] = along
    return table.ravel()


def _times(nav: tuple[int, ...], kind: Kind, parsed: Any) -> dict[str, Array]:
    """Return times in seconds, along the last of the axes (..., t, z), or the last two."""
    times: dict[str, Array] = {}
    axis = _axes(4, kind, parsed)[0]
    second = tools.converted(1.0, axis.units, "s")
    if len(nav) > 1 and second:
        at = axis.offset + axis.scale * np.arange(nav[-2])
        times["elapsed_time"] = at[:, None] * second
    with suppress(Exception):  # as for the facts: nibabel raises what it likes
        first, last, duration = (parsed[f"slice_{name}"] for name in ("start", "end", "duration"))
        second = tools.converted(1.0, UNITS[parsed.get_xyzt_units()[1]], "s")
        along_z = parsed.get_dim_info()[2] == 2 and 0 <= first <= last < nav[-1]
        if second and along_z and 0 < duration < math.inf:
            times["slice_time"] = np.array(parsed.get_slice_times(), "f8") * second
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
