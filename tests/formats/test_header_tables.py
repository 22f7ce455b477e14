"""Tables of header fields, compared with the tables of other readers."""

import struct

import numpy as np
import pytest

from dask_tiled.formats import blo, mgh, seq
from dask_tiled.formats.frms6 import descriptor as frms6_frame
from dask_tiled.formats.frms6 import header as frms6
from dask_tiled.formats.k2is import sectors as k2is
from dask_tiled.formats.mrc import header as mrc
from dask_tiled.formats.nifti import header as nifti
from dask_tiled.formats.ser import descriptor as ser
from dask_tiled.formats.tvips import descriptor as tvips

MRC_NAMES = {"nstart": "nxstart", "m": "mx", "mapcrs": "mapc"}
MRC_NAMES |= {f"label{k}": f"label/{k}" for k in range(10)}
OLD_FEI_NAMES = {
    "Alpha tilt": "a_tilt", "Beta tilt": "b_tilt", "X-Stage": "x_stage", "Y-Stage": "y_stage",
    "Z-Stage": "z_stage", "Shift X": "x_shift", "Shift Y": "y_shift", "Defocus": "defocus",
    "Exposure time": "exp_time", "Mean intensity": "mean_int", "Tilt axis angle": "tilt_axis",
    "Pixel size": "pixel_size", "Magnification": "magnification",
}  # fmt: skip
TVIPS_NAMES = {
    "ISize": "size", "IVersion": "version", "IXDim": "dimx", "IYDim": "dimy",
    "IBPP": "bitsperpixel", "IXOff": "offsetx", "IYOff": "offsety", "IXBin": "binx",
    "IYBin": "biny", "IPixelSize": "pixelsize", "IHT": "ht", "IMagTotal": "magtotal",
    "IImgHeaderBytes": "frameheaderbytes",
}  # fmt: skip
FRAME_NAMES = {
    "ICounter": "num", "ITime": "timestamp", "IMS": "ms", "LUT_Index": "LUTidx",
    "Faraday": "fcurrent", "TEM_Mag": "mag", "TEM_Mag_mode": "mode", "TEM_Stage_x": "stagex",
    "TEM_Stage_y": "stagey", "TEM_Stage_z": "stagez", "TEM_Stage_alpha": "stagea",
    "TEM_Stage_beta": "stageb", "Index_of_rotator": "rotidx", "DENS_T_measure": "temperature",
    "DENS_T_setpoint": "objective",
}  # fmt: skip
SER_NAMES = {
    "byte_order": "ByteOrder", "series_id": "SeriesID", "version": "SeriesVersion",
    "data_type_id": "DataTypeID", "tag_type_id": "TagTypeID",
    "total_elements": "TotalNumberElements", "valid_elements": "ValidNumberElements",
    "offset_array": "OffsetArrayOffset", "dimensions": "NumberDimensions",
}  # fmt: skip
DIMENSION_NAMES = {
    "size": "Dim-1_DimensionSize", "offset": "Dim-1_CalibrationOffset",
    "delta": "Dim-1_CalibrationDelta", "element": "Dim-1_CalibrationElement",
}  # fmt: skip
SPECTRUM_NAMES = {
    "offset": "CalibrationOffset", "delta": "CalibrationDelta", "element": "CalibrationElement",
    "data_type": "DataType", "size": "ArrayLength",
}  # fmt: skip
IMAGE_NAMES = {
    "offset_x": "CalibrationOffsetX", "delta_x": "CalibrationDeltaX",
    "element_x": "CalibrationElementX", "offset_y": "CalibrationOffsetY",
    "delta_y": "CalibrationDeltaY", "element_y": "CalibrationElementY", "data_type": "DataType",
    "size_x": "ArraySizeX", "size_y": "ArraySizeY",
}  # fmt: skip
FRMS6_NAMES = {
    "header_bytes": "header_size", "frame_header_bytes": "frame_header_size", "text": "comment_1",
    "more_text": "comment_2",
}  # fmt: skip
FRMS6_FRAME_NAMES = {
    "seconds": "timestamp_s", "microseconds": "timestamp_us", "number": "frame_number"
}  # fmt: skip


def library(name):
    return pytest.importorskip(name, reason=f"{name} is not installed")


def numbers(dtype, at=0):
    """List place, kind and size of all numbers and texts."""
    if dtype.names:
        parts = [dtype.fields[name][:2] for name in dtype.names]
        return [number for part, offset in parts for number in numbers(part, at + offset)]
    if dtype.shape:
        steps = range(0, dtype.itemsize, dtype.base.itemsize)
        return [number for step in steps for number in numbers(dtype.base, at + step)]
    return [(at, dtype.kind, dtype.itemsize)]


def compare(ours, theirs, names=None, extra=frozenset(), signed=frozenset()):
    """Compare the fields of a table, except ``extra``, with the fields of another reader's.

    ``names`` are the other reader's names, and "name/2" is the third number of an array.
    The fields ``signed`` are unsigned there.
    """
    theirs, names = np.dtype(theirs), names or {}
    known = numbers(theirs)
    for name in ours.keys() - extra:
        at, kind = ours[name]
        found = numbers(np.dtype(kind.replace("i", "u") if name in signed else kind), at)
        other, _, index = names.get(name, name).partition("/")
        kind, at = theirs.fields[other][:2]
        assert found[0] == numbers(kind, at)[int(index or 0)], name
        assert set(found) <= set(known), name


def test_main_header_of_mrc():
    """The fields of IMOD and SerialEM, as in IMOD's documentation, are unused space in mrcfile."""
    theirs = library("mrcfile.dtypes").HEADER_DTYPE
    of_others = {
        "nint": (128, "i2"), "nreal": (130, "i2"), "imodStamp": (152, "i4"),
        "imodFlags": (156, "i4"),
    }  # fmt: skip
    compare(mrc.FIELDS, theirs, MRC_NAMES, of_others.keys())
    assert {name: mrc.FIELDS[name] for name in of_others} == of_others
    assert theirs.itemsize == mrc.HEADER_BYTES
    assert int.from_bytes(b"IMOD", "little") == mrc.IMOD_STAMP


@pytest.mark.parametrize("kind", [b"FEI1", b"FEI2"])
def test_extended_headers_of_mrc(kind):
    theirs = library("mrcfile.dtypes").get_ext_header_dtype(kind, "<")
    compare(mrc.FEI, theirs)


def test_old_extended_header_of_mrc():
    theirs = np.dtype(library("rsciio.mrc._api").get_fei_dtype_list())
    compare(mrc.OLD_FEI, theirs, OLD_FEI_NAMES)
    assert theirs.itemsize * 1024 == mrc.OLD_FEI_BYTES


@pytest.mark.parametrize(
    ("ours", "module"),
    [(nifti.NIFTI_1, "nifti1"), (nifti.NIFTI_2, "nifti2"), (nifti.ANALYZE, "spm99analyze")],
)
def test_headers_of_nifti(ours, module):
    """Names of Analyze's unused fields differ, since a field of SPM is among them."""
    theirs = library(f"nibabel.{module}").header_dtype
    names = {"scl_inter": "funused2" if "funused2" in theirs.names else "scl_inter"}
    fields = {name: (ours.fields[name][1], ours.fields[name][0]) for name in ours.names}
    compare(fields, theirs, names)
    assert ours.itemsize == theirs.itemsize


def test_header_of_mgh():
    theirs = library("nibabel.freesurfer.mghformat")
    sizes = ("width", "height", "depth", "nframes")
    names = {name: f"dims/{k}" for k, name in enumerate(sizes)}
    compare(mgh.FIELDS, theirs.header_dtype, names)
    compare(mgh.BEHIND, theirs.footer_dtype, {"TR": "tr"})
    assert theirs.DATA_OFFSET == mgh.PIXELS


def test_header_of_blo():
    theirs = library("rsciio.blockfile._api").get_header_dtype_list()
    names = {"flags": "UNKNOWN1", "Centering": "Centering_N0", "Distortion": "Distortion_N00"}
    compare(blo.FIELDS, theirs, names)
    assert np.dtype(theirs).itemsize == blo.NOTE


def test_headers_of_tvips():
    """RosettaSciIO does not know the last fields of frames."""
    theirs = library("rsciio.tvips._api")
    compare(tvips.SERIES, theirs.TVIPS_RECORDER_GENERAL_HEADER, TVIPS_NAMES, signed={*tvips.SERIES})
    assert np.dtype(theirs.TVIPS_RECORDER_GENERAL_HEADER).itemsize == tvips.HEADER_BYTES
    extra = {"DENS_Power", "TEM_Obj_current", "Scan_x", "Scan_y"}
    compare(tvips.FRAME, theirs.TVIPS_RECORDER_FRAME_HEADER, FRAME_NAMES, extra)


@pytest.mark.parametrize("version", ser.VERSIONS)
def test_headers_of_ser(tmp_path, version):
    theirs = library("rsciio.tia._api")
    path = tmp_path / "a.ser"
    long = version > 528
    start = struct.pack("<3H4I", 0x4949, 0x197, version, 0x4122, 0x4152, 1, 1)
    start += struct.pack("<QI" if long else "<II", 99, 1)
    path.write_bytes(start + bytes(100))
    with path.open("rb") as file:
        dtype = np.dtype(theirs.get_header_dtype_list(file))
    compare({**ser.START, **ser.VERSIONS[version]}, dtype, SER_NAMES)
    at = dtype.fields["Dim-1_DimensionSize"][1]
    fields = {name: (at + offset, kind) for name, (offset, kind) in ser.DIMENSION.items()}
    compare(fields, dtype, DIMENSION_NAMES, signed={"element"})


def test_elements_of_ser(tmp_path):
    theirs = library("rsciio.tia._api")
    path = tmp_path / "a.ser"
    path.write_bytes(
        bytes(20) + struct.pack("<HI", 1, 2) + bytes(14) + struct.pack("<HII", 1, 2, 3)
    )
    with path.open("rb") as file:
        spectrum, _ = theirs.get_data_dtype_list(file, 0, "spectrum")
        image, _ = theirs.get_data_dtype_list(file, 0, "image")
    compare(ser.SPECTRUM, spectrum, SPECTRUM_NAMES, signed={"element"})
    compare(ser.IMAGE, image, IMAGE_NAMES, signed={"element_x", "element_y"})
    assert {str(k + 1): np.dtype(kind) for k, kind in enumerate(ser.DTYPES)} == {
        code: np.dtype(kind) for code, kind in theirs.data_types.items()
    }


def test_headers_of_frms6():
    theirs = library("libertem.io.dataset.frms6")
    compare(frms6.FIELDS, theirs.file_header_dtype, FRMS6_NAMES)
    compare(frms6_frame.FRAME, theirs.frame_header_dtype, FRMS6_FRAME_NAMES)
    assert np.dtype(theirs.file_header_dtype).itemsize == frms6.HEADER_BYTES
    assert np.dtype(theirs.frame_header_dtype).itemsize == frms6.FRAME_HEADER_BYTES


def test_header_of_k2is():
    theirs = library("libertem.io.dataset.k2is")
    names = {"corner": "pixel_x_start", "nbytes": "block_size"}
    compare(k2is.FIELDS, theirs.DataBlock.header_dtype, names)
    assert (
        np.dtype(theirs.DataBlock.header_dtype).itemsize == k2is.HEADER_BYTES == theirs.HEADER_SIZE
    )
    assert theirs.BLOCK_SIZE == k2is.BLOCK


def test_header_of_seq():
    theirs = library("libertem.io.dataset.seq").HEADER_FIELDS
    kinds = {"L": "u4", "l": "i4", "d": "f8", "H": "u2", "24s": "12u2", "512s": "256u2"}
    compare(seq.FIELDS, [(name, kinds[kind]) for name, kind in theirs])
