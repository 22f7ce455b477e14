"""Headers of NIfTI-1, NIfTI-2 and Analyze 7.5, and the meaning of their fields.

Layout facts: nifti1.h and nifti2.h of the NIfTI Data Format Working Group; for Analyze 7.5, dbh.h
of the Mayo Clinic, with fields of SPM; FreeSurfer, for lengths that do not fit.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dask_tiled.codecs.packed_files import read_start
from dask_tiled.formats import tools
from dask_tiled.formats.tools.header import Order


def _record(fields: str) -> np.dtype:
    """Return the dtype of a header, from alternating names and types."""
    words = fields.split()
    return np.dtype([*zip(words[::2], words[1::2], strict=True)])


NIFTI_1 = _record("""
    sizeof_hdr i4  data_type S10  db_name S18  extents i4  session_error i2  regular S1  dim_info u1
    dim 8i2  intent_p1 f4  intent_p2 f4  intent_p3 f4  intent_code i2  datatype i2  bitpix i2
    slice_start i2  pixdim 8f4  vox_offset f4  scl_slope f4  scl_inter f4  slice_end i2
    slice_code u1  xyzt_units u1  cal_max f4  cal_min f4  slice_duration f4  toffset f4  glmax i4
    glmin i4  descrip S80  aux_file S24  qform_code i2  sform_code i2  quatern_b f4  quatern_c f4
    quatern_d f4  qoffset_x f4  qoffset_y f4  qoffset_z f4  srow_x 4f4  srow_y 4f4  srow_z 4f4
    intent_name S16  magic S4
""")
NIFTI_2 = _record("""
    sizeof_hdr i4  magic S4  eol_check 4i1  datatype i2  bitpix i2  dim 8i8  intent_p1 f8
    intent_p2 f8  intent_p3 f8  pixdim 8f8  vox_offset i8  scl_slope f8  scl_inter f8  cal_max f8
    cal_min f8  slice_duration f8  toffset f8  slice_start i8  slice_end i8  descrip S80
    aux_file S24  qform_code i4  sform_code i4  quatern_b f8  quatern_c f8  quatern_d f8
    qoffset_x f8  qoffset_y f8  qoffset_z f8  srow_x 4f8  srow_y 4f8  srow_z 4f8  slice_code i4
    xyzt_units i4  intent_code i4  intent_name S16  dim_info u1  unused_str S15
""")
ANALYZE = _record("""
    sizeof_hdr i4  data_type S10  db_name S18  extents i4  session_error i2  regular S1  hkey_un0 S1
    dim 8i2  vox_units S4  cal_units S8  unused1 i2  datatype i2  bitpix i2  dim_un0 i2  pixdim 8f4
    vox_offset f4  scl_slope f4  scl_inter f4  funused3 f4  cal_max f4  cal_min f4  compressed i4
    verified i4  glmax i4  glmin i4  descrip S80  aux_file S24  orient S1  origin 5i2  generated S10
    scannum S10  patient_id S10  exp_date S10  exp_time S10  hist_un0 S3  views i4  vols_added i4
    start_field i4  field_skip i4  omax i4  omin i4  smax i4  smin i4
""")
HEADERS = ANALYZE, NIFTI_1, NIFTI_2
MAGIC = {  # by header size: offset of the magic, magic of one file and of a pair
    348: (344, (b"n+1\0", b"ni1\0")),
    540: (4, (b"n+2\0", b"ni2\0")),
}
ANALYZE_BITS = {2: 8, 4: 16, 8: 32, 16: 32, 32: 64, 64: 64, 128: 24}
"""Bits of a pixel, by data type of Analyze 7.5."""
DTYPES = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 32: "c8", 64: "f8", 128: "u1", 256: "i1", 512: "u2",
    768: "u4", 1024: "i8", 1280: "u8", 1792: "c16", 2304: "u1",
}  # fmt: skip
COLOURS = {128: 3, 2304: 4}
"""Samples of a pixel."""
UNREAD = {0, 1, 255, 1536, 2048}
"""No type, bits, several types, and real and complex numbers of 16 bytes."""
SPACE = {0: "", 1: "m", 2: "mm", 3: "µm"}
TIME = {0: "", 8: "s", 16: "ms", 24: "µs", 32: "Hz", 40: "ppm", 48: "rad/s"}
TRANSFORMS = "unknown", "scanner", "aligned", "talairach", "mni", "template"
INTENTS: Mapping[int, tuple[str, int]] = {
    0: ("none", 0), 2: ("correlation", 1), 3: ("t test", 1), 4: ("f test", 2), 5: ("z score", 0),
    6: ("chi2", 1), 7: ("beta", 2), 8: ("binomial", 2), 9: ("gamma", 2), 10: ("poisson", 1),
    11: ("normal", 2), 12: ("non central f test", 3), 13: ("non central chi2", 2),
    14: ("logistic", 2), 15: ("laplace", 2), 16: ("uniform", 2), 17: ("non central t test", 2),
    18: ("weibull", 2), 19: ("chi", 1), 20: ("inverse gaussian", 2), 21: ("extreme value 1", 2),
    22: ("p value", 0), 23: ("log p value", 0), 24: ("log10 p value", 0), 1001: ("estimate", 0),
    1002: ("label", 0), 1003: ("neuroname", 0), 1004: ("general matrix", 2),
    1005: ("symmetric matrix", 1), 1006: ("displacement vector", 0), 1007: ("vector", 0),
    1008: ("pointset", 0), 1009: ("triangle", 0), 1010: ("quaternion", 0),
    1011: ("dimensionless", 0), 2001: ("time series", 0), 2002: ("node index", 0),
    2003: ("rgb vector", 0), 2004: ("rgba vector", 0), 2005: ("shape", 0),
    2006: ("fnirt disp field", 0), 2007: ("fnirt cubic spline coef", 0),
    2008: ("fnirt dct coef", 0), 2009: ("fnirt quad spline coef", 0),
    2016: ("topup cubic spline coef ", 0), 2017: ("topup quad spline coef", 0),
    2018: ("topup field", 0), 3000: ("ConnUnknown", 0), 3001: ("ConnDense", 0),
    3002: ("ConnDenseSeries", 0), 3003: ("ConnParcels", 0), 3004: ("ConnParcelSries", 0),
    3006: ("ConnDenseScalar", 0), 3007: ("ConnDenseLabel", 0), 3008: ("ConnParcelScalr", 0),
    3009: ("ConnParcelDense", 0), 3010: ("ConnDenseParcel", 0), 3011: ("ConnPPSr", 0),
    3012: ("ConnPPSc", 0),
}  # fmt: skip
"""Statistics that pixels may hold, with their number of parameters, named as in nibabel."""


class HeaderKind(NamedTuple):
    """The kind of header; version 0 is Analyze 7.5."""

    version: int
    order: Order
    nbytes: int
    in_one_file: bool


def kind_of(head: bytes) -> HeaderKind | None:
    """Return the kind of a header, by length and magic; None if it is not recognised."""
    orders: tuple[Order, ...] = "<", ">"
    for order in orders:
        nbytes = int.from_bytes(head[:4], "little" if order == "<" else "big")
        if nbytes not in MAGIC or len(head) < nbytes:
            continue
        at, magic = MAGIC[nbytes]
        if head[at : at + 4] in magic:
            single = head[at : at + 4] == magic[0]
            return HeaderKind(1 if nbytes == 348 else 2, order, nbytes, single)
        if nbytes == 348 and _is_analyze(head, order):
            return HeaderKind(0, order, nbytes, in_one_file=False)
    return None


def _is_analyze(head: bytes, order: str) -> bool:
    """Check for plausible axes, data type and bits, as there is no magic."""
    ndim, datatype, bits = struct.unpack(f"{order}h 28x 2h", head[40:74])
    return 1 <= ndim <= 7 and ANALYZE_BITS.get(datatype) == bits


def read_header(path: str) -> tuple[HeaderKind, Any]:
    """Read the header of a file, which may be compressed, as a NumPy record."""
    start = read_start(path, 540)
    kind = kind_of(start)
    if kind is None:
        problem = "neither a NIfTI nor an Analyze 7.5 header"
        expected = "348 or 540, and a magic or a data type that fits"
        raise tools.CorruptFileError(
            problem, path=path, where="byte 0", expected=expected, found=start[:4]
        )
    return kind, np.frombuffer(start, HEADERS[kind.version].newbyteorder(kind.order), 1)[0]


def invalid_field(path: str, field: str, found: Any) -> tools.CorruptFileError:
    """Return the error that a header field is invalid."""
    problem, where = "invalid header", f"the field {field}"
    return tools.CorruptFileError(problem, path=path, where=where, found=found)


def shape_of(path: str, kind: HeaderKind, header: Any) -> tuple[int, ...]:
    """Return the lengths of the axes, x first."""
    ndim, *sizes = header["dim"].tolist()
    shape = tuple(sizes[:ndim]) if 1 <= ndim <= 7 else ()
    if kind.version == 1 and shape[:3] == (-1, 1, 1):
        shape = (int(header["glmin"]), *shape[1:])
    elif kind.version == 1 and shape[:3] == (27307, 1, 6):
        shape = (163842, 1, 1, *shape[3:])
    if min(shape, default=0) < 1:
        raise tools.CorruptFileError(
            "invalid shape of a volume",
            path=path,
            where=f"byte {16 if kind.version == 2 else 40} (dim)",
            expected="1 to 7 axes of positive lengths",
            found=shape or f"{ndim} axes",
        )
    return shape


def type_of(path: str, kind: HeaderKind, header: Any) -> tuple[np.dtype, int]:
    """Return the dtype of a sample, and the samples of a colour pixel, or 0."""
    code = int(header["datatype"])
    if code in UNREAD:
        problem, where = "unsupported pixel type", "the field datatype"
        known = "integers and floats of up to 8 bytes, complex numbers of up to 16, colours"
        found = "bits or an unknown type"
        raise tools.DatasetError(problem, path=path, where=where, expected=known, found=found)
    if code not in DTYPES:
        raise invalid_field(path, "datatype", code)
    return np.dtype(DTYPES[code]).newbyteorder(kind.order), COLOURS.get(code, 0)


def offset_of(path: str, kind: HeaderKind, header: Any) -> int:
    """Return the offset of the pixels."""
    offset = header["vox_offset"]
    if not np.isfinite(offset):
        raise invalid_field(path, "vox_offset", offset)
    at, behind = int(offset), kind.nbytes * kind.in_one_file
    if at and at < behind:
        problem, where = "the pixels would begin inside the header", "the field vox_offset"
        expected = f"{behind} or more, or 0"
        raise tools.CorruptFileError(problem, path=path, where=where, expected=expected, found=at)
    return at or behind


def scaling_of(path: str, kind: HeaderKind, header: Any) -> tuple[float, float]:
    """Return gain and offset of the pixels."""
    gain, offset = float(header["scl_slope"]), float(header["scl_inter"])
    if gain and math.isfinite(gain):
        if kind.version and not math.isfinite(offset):
            raise invalid_field(path, "scl_inter", offset)
        return gain, offset if math.isfinite(offset) else 0.0
    if not kind.version:  # SPM stores the range of stored values and of real values
        low, high = int(header["glmin"]), int(header["glmax"])
        with np.errstate(all="ignore"):
            shown = float(header["cal_max"] - header["cal_min"])
        if shown and high != low:
            gain = shown / (high - low)
            return gain, float(header["cal_min"]) - gain * low
    return 1.0, 0.0


def units_of(header: Any) -> tuple[str, str] | None:
    """Return the units of space and time; None if a code is unknown."""
    code = int(header["xyzt_units"])
    space, time = SPACE.get(code % 8), TIME.get(code - code % 8)
    return None if space is None or time is None else (space, time)


def intent_of(header: Any) -> dict[str, Any]:
    """Return the statistic that pixels hold, its parameters and name."""
    code = int(header["intent_code"])
    label, count = INTENTS.get(code, (f"unknown code {code}", 0))
    parameters = tuple(float(header[f"intent_p{k + 1}"]) for k in range(count))
    return {"code": label, "parameters": parameters, "name": header["intent_name"].decode("latin1")}


def transform_of(code: int) -> str:
    """Return the name of the space of a transform."""
    return TRANSFORMS[code] if 0 <= code < len(TRANSFORMS) else f"code {code}"
