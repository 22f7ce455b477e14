"""Tables of header fields and codes, compared with the tables of other readers."""

import re
import struct
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest

from dask_tiled.formats import blo, edf, mgh, nrrd, seq
from dask_tiled.formats.czi import directory as czi
from dask_tiled.formats.czi import tiles as czi_tiles
from dask_tiled.formats.dm import descriptor as dm
from dask_tiled.formats.dm import tags as dm_tags
from dask_tiled.formats.frms6 import descriptor as frms6_frame
from dask_tiled.formats.frms6 import header as frms6
from dask_tiled.formats.jeol import entries as jeol
from dask_tiled.formats.k2is import sectors as k2is
from dask_tiled.formats.lif import descriptor as lif
from dask_tiled.formats.mrc import header as mrc
from dask_tiled.formats.nd2 import chunks as nd2
from dask_tiled.formats.nd2 import descriptor as nd2_loops
from dask_tiled.formats.nd2 import values as nd2_values
from dask_tiled.formats.nifti import header as nifti
from dask_tiled.formats.ser import descriptor as ser
from dask_tiled.formats.tiff import ifd, lsm, metamorph, pixel_tags, storage
from dask_tiled.formats.tiff import tags as tiff_tags
from dask_tiled.formats.tools.header import record_dtype
from dask_tiled.formats.tvips import descriptor as tvips
from dask_tiled.testing import counting_frames, write_lif

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
    assert [at for at, _ in tvips.FRAME.values()] == [*range(0, 76, 4)]
    assert {*tvips.FACTS.values()} <= {*tvips.FRAME}


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


def values_of(fields, data):
    """Return the values of a header as we read it."""
    return np.frombuffer(data, record_dtype(fields), 1)[0].tolist()


def test_entries_and_codes_of_czi():
    """In czifile, type 13 has integers for Zeiss's floats, and complex numbers have a letter F."""
    theirs = library("czifile.czifile")
    data = struct.pack("<2siqiiBB4si", b"DV", 1, 2, 3, 4, 5, 6, b"", 1)
    data += struct.pack("<4siifi", b"XY", 7, 8, 0.5, 9)
    entry = theirs.DirectoryEntryDV(BytesIO(data))
    (inner,) = entry.dimension_entries
    assert inner.dimension == "XY"
    expected = 1, entry.file_position, entry.file_part, 4, len(entry.dimension_entries)
    assert values_of(czi.ENTRY, data[: czi.ENTRY_BYTES]) == expected
    assert entry.pixel_type == theirs.PIXEL_TYPE[theirs.PIXEL_TYPE[1]] == "Gray16"
    stored = np.frombuffer(data, czi.DIMENSION, 1, czi.ENTRY_BYTES)[0].tolist()
    assert stored == (0x5958, inner.start, inner.size, 0.5, inner.stored_size)
    names = "FileHeader", "SubBlockDirectory", "Metadata", "SubBlock"
    segments = czi.FILE, czi.DIRECTORY, czi.METADATA, czi.TILE
    assert segments == tuple(getattr(theirs, f"{name}Segment").SID for name in names)
    for code, (kind, samples) in czi_tiles.TYPES.items():
        text = theirs.PIXEL_TYPE[code].replace("F8", "c8")
        dtype = np.dtype("<f8" if code == 13 else text.replace("<", ""))
        assert (np.dtype(kind), samples) == (dtype.base, *(dtype.shape or (1,)))
    codes = czi_tiles.PLAIN, czi_tiles.JPEG, czi_tiles.LZW, czi_tiles.JPEG_XR
    names = ["Uncompressed", "JpgFile", "LZW", "JpegXrFile"]
    assert [theirs.COMPRESSION[code] for code in codes] == names


def test_types_of_dm():
    """Half-stored Fourier transforms are of other types there; 64-bit integers are unknown."""
    theirs = library("rsciio.digitalmicrograph._api")
    read = theirs.DigitalMicrographReader(None).get_data_reader
    data = bytes.fromhex("0182838485868788")
    for code, form in dm_tags.SIMPLE.items():
        function, size, _ = read(code)
        assert struct.calcsize(f"<{form}") == size
        if code not in (9, 10):  # bytes, which have no sign there
            assert struct.unpack_from(f"<{form}", data)[0] == function(BytesIO(data), "little")
    assert [read(code)[2] for code in (dm_tags.STRUCT, dm_tags.STRING, dm_tags.ARRAY)] == [
        *("struct", "c", "array")
    ]
    for code in dm.DTYPES.keys() - {5, 39, 40}:
        image = SimpleNamespace(imdict=SimpleNamespace(ImageData=SimpleNamespace(DataType=code)))
        dtype = np.dtype(theirs.ImageObject.dtype.fget(image))
        if dtype.names:
            dtype = dtype[["R", "G", "B", "A"]]
        assert np.dtype(dm.DTYPES[code]) == dtype


def test_types_of_jeol():
    theirs = library("rsciio.jeol._api").jTYPE
    numbers = dict(enumerate(jeol.NUMBERS * 2, 1))
    assert {code: np.dtype(kind) for code, kind in numbers.items()} == {
        code: np.dtype(theirs[code]) for code in numbers
    }
    assert {code for code, kind in theirs.items() if kind == "c"} == {*jeol.TEXTS, 20}


def test_types_of_edf():
    """Names that are upper case in fabio are so in files of Fit2D."""
    theirs = library("fabio.edfimage")
    for name, dtype in edf.TYPES.items():
        assert np.dtype(dtype) == theirs.DATA_TYPES[name], name
    missing = {name for name in theirs.DATA_TYPES.keys() - edf.TYPES.keys() if not name.isupper()}
    assert missing == {"FloatIEEE128", "DoubleIEEE128", "QuadrupleValue"}


def test_types_of_nrrd():
    theirs = library("nrrd.reader")._TYPEMAP_NRRD2NUMPY
    assert {name: kind for name, kind in theirs.items() if name != "block"} == nrrd.TYPES


@pytest.mark.parametrize(("name", "version"), [("a.lif", 1), ("a.lif", 2), ("a.lof", 2)])
def test_blocks_and_codes_of_lif(tmp_path, name, version):
    """The numbers of dimensions have letters there."""
    theirs = library("liffile.liffile")
    letters = {
        "emission": "λ", "excitation": "Λ", "rotation": "A", "xt_slice": "N", "t_slice": "Q",
        "loop": "L",
    }  # fmt: skip
    ours = {code: letters.get(name, name.upper()) for code, name in lif.NAMES.items()}
    assert ours == theirs.DIMENSION_ID
    assert theirs.CHANNEL_TAG[lif.BLUE] == "Blue"
    frames = counting_frames((4, 5, 7), "u2")
    path = write_lif(tmp_path / name, {"cells": frames}, "zyx", version=version)
    with theirs.LifFile(path) as other:
        np.testing.assert_array_equal(other.images[0].asarray(), frames)


def test_names_and_codes_of_nd2():
    theirs = library("nd2._parse._chunk_decode")
    names = theirs.ND2_FILE_SIGNATURE, theirs.ND2_FILEMAP_SIGNATURE, theirs.ND2_CHUNKMAP_SIGNATURE
    assert names == (nd2.SIGNATURE, nd2.MAP, nd2.MAP_END)
    head = theirs.START_FILE_CHUNK.pack(nd2.MAGIC, 32, 64, nd2.SIGNATURE, b"Ver3.0")
    assert head.startswith(nd2.START + nd2.SIGNATURE)
    assert values_of(nd2.CHUNK, head[:16]) == theirs.CHUNK_HEADER.unpack(head[:16])
    assert nd2.MAGIC == theirs.ND2_CHUNK_MAGIC
    assert int.from_bytes(nd2.JPEG_2000[:4], "little") == theirs.JP2_MAGIC
    values = library("nd2._parse._clx_lite")
    kinds, data = values.ELxLiteVariantType, bytes.fromhex("8182838485868788")
    for kind, form in nd2_values.NUMBERS.items():
        stream = BytesIO(data)
        assert struct.unpack_from(form, data)[0] == values._PARSERS[kind](stream)
        assert struct.calcsize(form) == stream.tell()
    codes = nd2_values.TEXT, nd2_values.DATA, nd2_values.LEVEL, nd2_values.PACKED
    assert codes == (kinds.STRING, kinds.BYTEARRAY, kinds.LEVEL, kinds.COMPRESS)
    loops = library("nd2.structures").LoopType
    assert loops.SpectLoop == nd2_loops.SPECTRAL
    assert {
        loops.TimeLoop: "t", loops.XYPosLoop: "p", loops.ZStackLoop: "z",
        loops.CustomLoop: "custom", loops.NETimeLoop: "t",
    } == nd2_loops.LOOPS  # fmt: skip


def test_tags_and_codes_of_tiff():
    """Undefined bytes are numbers there."""
    theirs = library("tifffile")
    tags, forms = theirs.TIFF.TAGS, theirs.TIFF.DATA_FORMATS
    sizes = {code: struct.calcsize(f"<{form}") for code, form in forms.items()}
    assert sizes == ifd.SIZES
    assert {code: form[-1] for code, form in forms.items()} == {**ifd.LETTERS, 7: "B"}
    whole = {code: form for code, form in forms.items() if form[0] == "1" and form[1] not in "sfd"}
    assert {code: f"1{form}" for code, form in ifd.INTEGERS.items()} | {7: "1B"} == whole
    unsigned = {code: form for code, form in ifd.INTEGERS.items() if form.isupper()}
    assert unsigned == ifd.UNSIGNED
    places = "TileOffsets", "StripOffsets", "JPEGInterchangeFormat"
    lengths = "TileByteCounts", "StripByteCounts", "JPEGInterchangeFormatLength"
    assert tuple(tuple(map(tags.get, x)) for x in (places, lengths)) == (ifd.OFFSETS, ifd.COUNTS)
    names = "SubIFDs", "ImageDescription", "Software", "CZ_LSMINFO", "BitsPerSample"
    codes = ifd.SUB_IFDS, ifd.DESCRIPTION, storage.SOFTWARE, lsm.LSM_INFO, lsm.BITS_PER_SAMPLE
    assert codes == tuple(map(tags.get, names))
    names = (
        *("ImageWidth", "ImageLength", "BitsPerSample", "Compression", "FillOrder", "Predictor"),
        *("PhotometricInterpretation", "SamplesPerPixel", "RowsPerStrip", "PlanarConfiguration"),
        *("T4Options", "TileWidth", "TileLength", "ExtraSamples", "SampleFormat", "JPEGTables"),
        *("YCbCrSubSampling", "ImageDepth", "TileDepth", "GDAL_NODATA"),
    )
    assert {*map(tags.get, names)} == pixel_tags.LAYOUT_TAGS
    links = {*map(tags.get, ("ExifTag", "GPSTag", "InteroperabilityTag"))}
    assert links == tiff_tags.LINKS - {*ifd.OFFSETS, *ifd.COUNTS, ifd.SUB_IFDS, *metamorph.UIC_TAGS}
    assert tuple(tags.get(f"UIC{k}tag") for k in range(1, 5)) == metamorph.UIC_TAGS
    facts = {k: theirs.TIFF.UIC_TAGS[k][0] for k in metamorph.FACTS}
    assert facts == {4: "XCalibration", 5: "YCalibration", 6: "CalibrationUnits"}


@pytest.mark.parametrize("form", range(8))
def test_dtypes_of_tiff(tmp_path, form):
    """NumPy lacks complex integers; tifffile lacks signed ones of a few bits."""
    known = library("tifffile").TIFF.SAMPLE_DTYPES
    path = tmp_path / "a.tif"
    path.write_bytes(b"II*\0" + bytes(4))
    file = ifd.File.at(path)
    page = ifd.Ifd(ifd.OpenTiff(file, file.read), 8, 8, {})
    for bits in range(130):
        entries = {258: bits, 339: form}
        values = {tag: ((tag, 3, 1, b""), struct.pack("<H", n)) for tag, n in entries.items()}
        found, name = pixel_tags.PixelTags(page, values).dtype, known.get((form, bits))
        if form == 2 and bits < 32 and bits not in {0, 8, 16}:
            assert found == f"i{1 if bits < 8 else 2 if bits < 16 else 4}"
        else:
            assert found == (None if name is None or form == 5 else np.dtype(name))


def test_codecs_of_tiff():
    theirs = library("tifffile")
    ours = {**storage.BYTE_CODECS, **storage.IMAGE_CODECS}
    words = {
        "": "none", "imagecodecs_lzw": "lzw", "numcodecs.zlib": "deflate|pixtiff",
        "imagecodecs_packbits": "packbits", "numcodecs.lzma": "lzma", "numcodecs.zstd": "zstd",
        "jpeg2k": "jpeg_?2000|jp2000", "jpeg": "jpeg$|jpeg_lossy",
    }  # fmt: skip
    for code, name in ours.items():
        assert re.search(words.get(name, name), theirs.COMPRESSION(code).name.lower()), code
    words = {"delta": "HORIZONTAL", "floatpred": "FLOATINGPOINT", "": "NONE"}
    for code, (name, step) in storage.PREDICTORS.items():
        assert theirs.PREDICTOR(code).name == words[name] + (f"X{step}" if step > 1 else "")
    colours = pixel_tags.YCBCR, pixel_tags.RGB, storage.CMYK, storage.GREY
    names = ["YCBCR", "RGB", "SEPARATED", "MINISBLACK"]
    assert [theirs.PHOTOMETRIC(code).name for code in colours] == names


def test_facts_of_lsm():
    theirs = library("tifffile").TIFF
    letters = {code: axes.lower() for code, axes in theirs.CZ_LSMINFO_SCANTYPE.items()}
    assert {code for code, axes in letters.items() if "t" in axes} == lsm.WITH_TIMES
    stacks = {code: axes[:-3] for code, axes in letters.items() if axes.endswith("cyx")}
    assert stacks == lsm.STACKS
