"""MRC, CCP4 map and IMOD stack files, and the movies of Direct Electron cameras.

Layout after the MRC2014 standard (CCP-EM); :mod:`dask_tiled.formats.mrc.header` has its tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dask_tiled.codecs.packed_files import is_compressed, read_start
from dask_tiled.errors import check_whole
from dask_tiled.formats import tools
from dask_tiled.formats.mrc import direct_electron
from dask_tiled.formats.mrc import header as mrc_header
from dask_tiled.formats.tools.frames import count_frames
from dask_tiled.formats.tools.text import serial_date
from dask_tiled.formats.tools.volume import volume_layout
from dask_tiled.model.doubts import Doubt
from dask_tiled.model.instrument import entries

VOLUME_STACKS = range(401, 631)  # space groups of stacks of volumes


def sniff(path: str, head: bytes) -> str | None:
    """Check for the map identifier, and a plausible header."""
    head = read_start(path, mrc_header.HEADER_BYTES, head)
    if head[208:211] != b"MAP":
        return "no 'MAP ' at byte 208"
    try:
        mrc_header.header_of(head[: mrc_header.HEADER_BYTES], path, unfinished=True)
    except tools.CorruptFileError as error:
        return error.problem
    except tools.DatasetError:  # an MRC file with an unsupported mode
        return None
    return None


def describe(
    paths: Sequence[str],
    *,
    nav_shape: tuple[int, ...] | None = None,
    extended_header: int | None = None,
    signed: bool | None = None,
) -> tools.Description:
    """Describe an MRC file.

    Parameters
    ----------
    paths : sequence of str
        One file, which may be compressed. Beside the movie of a Direct Electron camera,
        ``..._movie.mrc``, ``..._info.txt`` and ``..._scan_coordinates.csv`` supply scan shape and
        calibration. They also calibrate summed images and images of the camera's other detectors.
    nav_shape : tuple of int, optional
        Shape of the scan; by default from the ``_info.txt`` file, or one axis of all sections,
        or two for a stack of volumes. If given, sections are in file order.
    extended_header : int, optional
        Bytes between the header and the first section; by default NSYMBT of the header, or 0 if
        the file is just as long as without these bytes.
    signed : bool, optional
        Whether the bytes of mode 0 are signed; by default by IMOD's flags, DMAX and NVERSION.
    """
    if extended_header is not None:
        check_whole("extended_header", extended_header, least=0, path=paths[0])
    file = tools.File.only(paths, "mrc")
    session = direct_electron.find_session(file.path)
    start = read_start(file.path, mrc_header.HEADER_BYTES)
    header = mrc_header.header_of(start, file.path, unfinished=file.grows)
    if session is not None and session.has_unsigned_bytes and header.fields["mode"] == 0:
        header = header._replace(dtype=np.dtype("u1"), dtype_from=session.info_file)
    header, in_doubt = _of_sign(file, header, signed)
    header, doubts = _without_extended(file, header, extended_header)
    layout, base_shape = _lay_out(file, header)
    extended = mrc_header.read_extended(file.path, header)
    fields = header.fields | {"byte_order": header.order}
    facts = {"header": fields, "dtype_from": header.dtype_from}
    if extended:
        facts["extended_header"] = extended
    axes = _axes(header, extended)
    desc = tools.Description.of("mrc", layout, {"mrc": facts}, axes, base_shape=base_shape)
    desc = desc.with_doubts(*in_doubt, *doubts)
    if nav_shape is None and header.fields["nz"]:
        desc = desc.with_scan((header.fields["nz"],), "the header field NZ")
        desc = _split_volumes(desc, header)
    if session is None:
        return desc
    return direct_electron.show_session(desc, session, scan=nav_shape is None)


def _of_sign(
    file: tools.File, header: mrc_header.MrcHeader, signed: Any
) -> tuple[mrc_header.MrcHeader, tuple[Doubt, ...]]:
    """Return the header with the sign that the user gives to bytes, or a doubt about it."""
    if signed is None:
        text = "bytes are taken as signed, as in MRC2014; the header is older, and does not tell"
        doubt = Doubt("pixel-type", text, "pass signed=False, or signed=True")
        return header, (doubt,) if header.dtype_from == mrc_header.UNTOLD else ()
    if not isinstance(signed, bool) or header.fields["mode"] != 0:
        problem, expected = "invalid signed", "True or False, for bytes, mode 0"
        found = f"signed={signed!r} for mode {header.fields['mode']}"
        raise tools.DatasetError(problem, path=file.path, expected=expected, found=found)
    return header._replace(dtype=np.dtype("i1" if signed else "u1"), dtype_from="signed"), ()


def _without_extended(
    file: tools.File, header: mrc_header.MrcHeader, nbytes: int | None
) -> tuple[mrc_header.MrcHeader, tuple[Doubt, ...]]:
    """Return the header with the length of the extended header that the file has, or in doubt."""
    told, size = header.fields["nsymbt"], mrc_header.HEADER_BYTES
    size += header.fields["nz"] * header.record.nbytes
    doubts: tuple[Doubt, ...] = ()
    if nbytes is None:
        absent = told and file.size == size and not is_compressed(file.path)
        nbytes = 0 if absent else told
        text = f"the {told} bytes of an extended header (NSYMBT) are assumed to be absent, as the "
        text += "file has the size of a header and all sections"
        settle = f"pass extended_header=0, or extended_header={told}"
        doubts = (Doubt("extended-header", text, settle),) if absent else ()
    return header._replace(fields={**header.fields, "nsymbt": nbytes}), doubts


def _lay_out(
    file: tools.File, header: mrc_header.MrcHeader
) -> tuple[tools.Layout, tuple[int, ...]]:
    """Lay out the stored sections; those of a compressed file are one block."""
    record, offset, nz = header.record, header.offset, header.fields["nz"]
    if is_compressed(file.path):
        shape = (nz,), record.sig_shape
        layout = volume_layout(file, *shape, header.dtype, skip=offset, packed=True)
        return layout, layout.shape
    (whole,) = count_frames([file], record, offset, settled=True)
    return tools.record_layout([file], [whole], record, offset), ()


def _axes(header: mrc_header.MrcHeader, extended: dict[str, Any]) -> tuple[tools.Axis, ...]:
    """Name and calibrate the axes; axes of a volume follow its cell."""
    columns, rows, sections = mrc_header.cell_axes(header, extended)
    if header.fields["ispg"] == 0 or not sections.units:
        # In a series of images, the cell does not define a distance between them.
        sections = tools.Axis("frame")
        rows, columns = replace(rows, name="y"), replace(columns, name="x")
    axes = sections, rows, columns
    return (*axes, tools.Axis("complex")) if header.fields["mode"] == 3 else axes


def _split_volumes(desc: tools.Description, header: mrc_header.MrcHeader) -> tools.Description:
    """Split the sections of a stack of volumes into two axes."""
    nz, depth = header.fields["nz"], header.fields["m"][2]
    if header.fields["ispg"] not in VOLUME_STACKS:
        return desc
    if depth < 1 or nz % depth:
        raise tools.CorruptFileError(
            "the sections are not a whole number of volumes",
            path=desc.files[0].path,
            where="byte 36 (MZ)",
            expected=f"a divisor of NZ, {nz}",
            found=depth,
            hint=f"Pass nav_shape=({nz},) to read the sections in file order.",
        )
    volume = tools.Axis("volume"), *desc.axes
    return replace(desc.with_frames((nz // depth, depth)), axes=volume)


def read_headers(desc: tools.Description) -> tools.Headers:
    """Return the extended headers of FEI microscopes and SerialEM, one per section."""
    path, count = desc.files[0].path, desc.layout.n_frames
    if is_compressed(path):
        raise tools.DatasetError("headers in a compressed file are not supported", path=path)
    start = read_start(path, mrc_header.HEADER_BYTES)
    header = mrc_header.header_of(start, path, unfinished=desc.files[0].grows)
    fields, size = mrc_header.extended_fields(header), header.fields["nsymbt"]
    step, units = mrc_header.OLD_FEI_BYTES // 1024, dict[str, float]()
    if header.fields["exttyp"] == "SERI":
        fields, units, step = _serial_em(header)
    elif header.fields["exttyp"]:  # the first field is the length of each header
        step = int(mrc_header.read_extended(path, header).get("Metadata size", 0))
    if not desc.metadata["mrc"]["header"]["nsymbt"]:
        fields = {}
    if not fields or not tools.size_of(fields) <= step <= size // count:
        raise tools.DatasetError(
            "no extended header for each section",
            path=path,
            where="byte 92 (NSYMBT) and 104 (EXTTYP)",
            expected=f"{count} headers of FEI1, FEI2, SERI or older files of FEI",
            found=f"{size} bytes of type {header.fields['exttyp']!r}, {step} for each",
        )
    kind = tools.record_dtype(fields, header.order)
    record = tools.Record((1,), tools.plain(kind), footer=step - kind.itemsize)
    layout = tools.record_layout(desc.files, [count], record, mrc_header.HEADER_BYTES)
    if units:
        dtype = np.dtype([(name, "f8") for name in units])
        return tools.Headers(layout, dtype, partial(_scale, units=units))
    names = {re.sub(r"\W", "_", name.lower()): name for name in fields}
    return tools.stored_headers(layout, names)


def _serial_em(header: mrc_header.MrcHeader) -> tuple[tools.Fields, dict[str, float], int]:
    """Return the fields of a SerialEM section, their units, and the bytes of the section."""
    fields, units = dict[str, tuple[int, str]](), dict[str, float]()
    for bit, (names, unit) in mrc_header.SERIAL_EM.items():
        if header.fields["nreal"] & bit:
            for name in names:
                fields[name], units[name] = (2 * len(fields), "i2"), unit
    return fields, units, header.fields["nint"]


def _scale(records: Any, facts: Any, units: Mapping[str, float]) -> None:
    for name, unit in units.items():
        facts[name] = records[name] * unit


def _metres(length: float) -> float:
    """Convert a length of an old header to metres; above 1, it is in micrometres."""
    return length if abs(length) <= 1 else length * 1e-6


OF_FEI = (
    ("microscope", "Microscope type"),
    ("beam_energy", "HT", "V"),
    ("magnification", "Magnification"),
    ("camera_length", "Camera length", "m"),
    ("convergence_angle", "Convergence angle", "rad"),
    ("defocus", "Defocus", "m", _metres),
    *((f"stage_{k}", f"{k.upper()}-Stage", "m", _metres) for k in "xyz"),
    ("tilt_alpha", "Alpha tilt", "deg"),
    ("tilt_beta", "Beta tilt", "deg"),
    ("detector", "Camera name", "", None, lambda fields: fields["Integration time"] > 0),
    ("exposure_time", "Integration time", "s"),
    ("exposure_time", "Exposure time", "s"),
    ("dwell_time", "Dwell time", "s"),
    ("date", "Timestamp", "", serial_date),
)
"""Facts in FEI's extended header of the first section; scans have a camera name too."""
INSTRUMENT = entries({"mrc/direct_electron": direct_electron.ROWS, "mrc/extended_header": OF_FEI})

FORMAT = tools.Format(
    name="mrc",
    extensions=(".mrc", ".mrcs", ".st", ".map", ".ccp4", ".rec", ".ali"),
    summary="modes 0 to 4, 6 and 12, both byte orders, stacks, gzip; Direct Electron movies",
    nav_shape_from="the header; _info.txt and _scan_coordinates.csv of Direct Electron",
    sniff=sniff,
    describe=describe,
    headers=read_headers,
    instrument=INSTRUMENT,
    peers=("LiberTEM", "RosettaSciIO", "mrcfile", "ncempy"),
    aliases=("ccp4", "de"),
)
