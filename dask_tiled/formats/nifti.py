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
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.errors import CorruptFileError, DatasetError, TruncatedFileError, printable, require
from dask_tiled.formats.format import Format
from dask_tiled.formats.tools.compression import is_compressed, read_start
from dask_tiled.formats.tools.volumes import describe_volume
from dask_tiled.model.description import Axis, Description
from dask_tiled.model.files import File

MAGIC = {  # bytes of the header, where its magic begins: of one file, of a pair of files
    348: (344, (b"n+1\0", b"ni1\0")),
    540: (4, (b"n+2\0", b"ni2\0")),
}
ANALYZE_BITS = {2: 8, 4: 16, 8: 32, 16: 32, 32: 64, 64: 64, 128: 24}
"""Bits of a pixel for each data type of Analyze 7.5."""
MOST_EXTENSIONS = 1000
MOST_START = 1 << 20
"""So many bytes before the pixels are looked through for extensions."""
NAMES = ("x", "y", "z", "t", "u", "v", "w")
"""What nifti1_io.h calls the axes, in the order of the file."""
UNITS = {"meter": "m", "micron": "µm", "sec": "s", "msec": "ms", "usec": "µs", "hz": "Hz"}
UNITS |= {"rads": "rad/s", "unknown": ""}


class Kind(NamedTuple):
    """Which header it is: version 1 or 2, or 0 for Analyze 7.5."""

    version: int
    order: str
    nbytes: int
    in_one_file: bool


class Header(NamedTuple):
    """What a header says.

    `shape` has the order of the file, x first, and `axes` are in C order; neither counts `samples`,
    which are those of a pixel of colours, or 0. `dtype` is that of a sample, `offset` the byte of
    the file of the pixels that they begin at. `scaling` is there where it changes anything.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: np.dtype
    samples: int
    offset: int
    axes: tuple[Axis, ...]
    scaling: tuple[float, float] | None
    facts: dict[str, Any]


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


def read_header(path: str) -> Header:
    """Read the header of a file, which may be compressed."""
    start = read_start(path, 540)
    kind = kind_of(start)
    if kind is None:
        raise CorruptFileError(
            "neither a NIfTI nor an Analyze 7.5 header",
            path=path,
            where="byte 0",
            expected="348 or 540, and a magic or a data type that fits",
            found=start[:4],
        )
    parsed = _parsed(path, kind, start[: kind.nbytes])
    told = _told(path, parsed)
    shape = _shape(path, kind, told(parsed.get_data_shape, "dim"))
    dtype, samples = _type(path, told(parsed.get_data_dtype, "datatype"))
    offset = told(parsed.get_data_offset, "vox_offset") or kind.nbytes * kind.in_one_file
    facts = _facts(kind, parsed)
    facts["extensions"] = _extensions(path, kind, offset)
    scaling = None
    if not samples:  # those of colours are to be ignored
        gain, inter = told(parsed.get_slope_inter, "scl_slope")
        scaling = (1.0 if gain is None else float(gain), 0.0 if inter is None else float(inter))
        facts["scaling"] = scaling
    axes = _axes(len(shape), kind, parsed)
    return Header(kind, shape, dtype, samples, offset, axes, scaling, facts)


def _parsed(path: str, kind: Kind, block: bytes) -> Any:
    nib = require("nibabel", "nifti", path)
    known = (nib.Spm2AnalyzeImage.header_class, nib.Nifti1Header, nib.Nifti2Header)
    return known[kind.version](block, kind.order, check=False)


def _told(path: str, parsed: Any) -> Callable[[Callable[[], Any], str], Any]:
    """Ask a header; what nibabel refuses is a field that makes no sense."""

    def told(question: Callable[[], Any], field: str) -> Any:
        try:
            return question()
        except Exception as error:  # nibabel raises its own, numpy's, and those of a dict
            raise CorruptFileError(
                "the header makes no sense",
                path=path,
                where=f"the field {field}",
                found=f"{_plain(parsed[field])}: {error}",
            ) from error

    return told


def _shape(path: str, kind: Kind, shape: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = tuple(map(int, shape))
    if not 1 <= len(sizes) <= 7 or min(sizes) < 1:
        raise CorruptFileError(
            "no shape of a volume",
            path=path,
            where=f"byte {16 if kind.version == 2 else 40} (dim)",
            expected="1 to 7 axes of positive lengths",
            found=sizes,
        )
    return sizes


def _type(path: str, dtype: np.dtype) -> tuple[np.dtype, int]:
    """Give the type of a sample, and how many make a pixel where it has colours."""
    if dtype.names:
        return np.dtype("u1"), len(dtype.names)
    if dtype.kind not in "iufc" or dtype.itemsize > (16 if dtype.kind == "c" else 8):
        raise DatasetError(
            "pixels of this type are not read",
            path=path,
            where="the field datatype",
            expected="integers and floats of up to 8 bytes, complex numbers of up to 16, colours",
            found="bits or an unknown type" if dtype.kind == "V" else dtype,
        )
    return dtype, 0


def _axes(ndim: int, kind: Kind, parsed: Any) -> tuple[Axis, ...]:
    """Calibrate the axes by pixdim and the units."""
    space, time, start = ("mm", "", 0.0) if kind.version == 0 else ("", "", 0.0)
    if kind.version:
        start = float(parsed["toffset"])
        with suppress(KeyError):  # a code without a meaning
            space, time = (UNITS.get(unit, unit) for unit in parsed.get_xyzt_units())
    units = (*[space] * 3, time, "", "", "")
    sizes = [abs(float(size)) for size in parsed["pixdim"][1:]]
    axes = [
        Axis.calibrated(name, unit, size, start if name == "t" else 0.0)
        for name, unit, size in zip(NAMES[:ndim], units, sizes, strict=False)
    ]
    return tuple(reversed(axes))


def _facts(kind: Kind, parsed: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "version": f"NIfTI-{kind.version}" if kind.version else "Analyze 7.5",
        "byte_order": kind.order,
    }
    fields = {name: _plain(value) for name, value in parsed.items()}
    facts["header"] = {name: value for name, value in fields.items() if _is_finite(value)}
    facts["description"] = fields.get("descrip", "")
    affine = _or_none(parsed.get_best_affine)
    if affine is not None and np.isfinite(affine).all():
        facts["affine"] = tuple(map(tuple, affine.tolist()))
    if kind.version:
        from nibabel.nifti1 import xform_codes

        codes = {name: int(parsed[f"{name}_code"]) for name in ("sform", "qform")}
        for name, code in codes.items():
            known = code in xform_codes.value_set("code")
            facts[name] = xform_codes.label[code] if known else f"code {code}"
        facts["affine_from"] = next((name for name in codes if codes[name]), "pixdim")
        intent = _or_none(parsed.get_intent)
        if intent is not None:
            facts["intent"] = dict(zip(("code", "parameters", "name"), intent, strict=True))
    return facts


def _extensions(path: str, kind: Kind, offset: int) -> tuple[tuple[int, int], ...]:
    """List code and size of what stands between header and pixels."""
    if not kind.version:
        return ()
    end = min(offset, MOST_START) if kind.in_one_file else MOST_START
    start = read_start(path, max(end, kind.nbytes + 4))
    found: list[tuple[int, int]] = []
    at = kind.nbytes + 4
    if not start[kind.nbytes : kind.nbytes + 1].strip(b"\0"):
        return ()
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
        return printable(plain.partition(b"\0")[0].decode("latin1"))
    return tuple(plain) if isinstance(plain, list) else plain


def _is_finite(value: Any) -> bool:
    """Tell whether numbers equal themselves, as metadata has to."""
    values = value if isinstance(value, tuple) else (value,)
    return all(not isinstance(v, float) or math.isfinite(v) for v in values)


def _or_none(question: Callable[[], Any]) -> Any:
    """Ask for what is not needed to read pixels."""
    try:
        return question()
    except Exception:  # noqa: BLE001 - nibabel raises its own, numpy's, and those of a dict
        return None


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
