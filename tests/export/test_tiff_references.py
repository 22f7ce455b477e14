"""zarr reads the same pixels from references to strips and tiles of TIFF files."""

import json
import os
import subprocess
import sys
import warnings

import imagecodecs
import numpy as np
import pytest
import tifffile
import zarr
from zarr.errors import ZarrUserWarning
from zarr_readers import group_of

from dask_tiled import CorruptFileError, DatasetError, as_zarr, open_dataset, to_references
from dask_tiled.export.codecs import ReadingCodec
from dask_tiled.export.decoders import PIPELINE, decoder_of
from dask_tiled.testing import counting_frames

TILES, STRIPS, CUT = {"tile": (32, 48)}, {"rowsperstrip": 10}, {"rowsperstrip": 16}
GREY, RGB = {"photometric": "minisblack"}, {"photometric": "rgb"}
PREDICTED = {"predictor": 2}
BIG = {"byteorder": ">"}
# The dtype, options of the writer, and the codecs in zarr format 2; None if it has none.
WAYS = {
    "deflate": ("u2", {"compression": "zlib", **TILES}, ["zlib"]),
    "deflate in strips": ("f4", {"compression": "zlib", **STRIPS, **BIG}, ["zlib"]),
    "deflate of differences": (
        "u2",
        {"compression": "zlib", **PREDICTED, **TILES, **BIG},
        ["imagecodecs_delta", "zlib"],
    ),
    "deflate of bytes of floats": (
        "f4",
        {"compression": "zlib", "predictor": 3, **TILES, **BIG},
        ["imagecodecs_floatpred", "zlib"],
    ),
    "zstd": ("i4", {"compression": "zstd", **TILES}, ["zstd"]),
    "lzma": ("u1", {"compression": "lzma", **STRIPS}, ["lzma"]),
    "lzw": ("u2", {"compression": "lzw", **TILES, **BIG}, ["imagecodecs_lzw"]),
    "lzw of differences": (
        "u1",
        {"compression": "lzw", **PREDICTED, **STRIPS},
        ["imagecodecs_delta", "imagecodecs_lzw"],
    ),
    "packbits": ("u1", {"compression": "packbits", **STRIPS}, ["imagecodecs_packbits"]),
    "jpeg": ("u1", {"compression": "jpeg", **TILES}, ["imagecodecs_jpeg"]),
    "jpeg 2000": ("u2", {"compression": "jpeg2000", **TILES}, ["imagecodecs_jpeg2k"]),
    "deflate, the last strip is shorter": ("u2", {"compression": "zlib", **CUT}, None),
    "lzw of differences, too": ("u2", {"compression": "lzw", **PREDICTED, **CUT, **BIG}, None),
    "jpeg, too": ("u1", {"compression": "jpeg", **CUT}, None),
}


def names_of(refs):
    """List the names of the codecs in format 2."""
    document = json.loads(refs["refs"]["data/.zarray"])
    return [one["id"] for one in (*(document["filters"] or ()), document["compressor"])]


@pytest.fixture
def wrote(tmp_path):
    """Return a function that writes a file."""

    def write(frames, **options):
        path = tmp_path / "scan.tif"
        tifffile.imwrite(path, frames, **{"metadata": None, **GREY, **options})
        return path

    return write


@pytest.mark.parametrize("way", WAYS)
def test_strips_and_tiles_are_chunks(wrote, way):
    """Format 2 names codecs of numcodecs and imagecodecs, format 3 a codec of this package."""
    dtype, options, names = WAYS[way]
    arr = open_dataset(wrote(counting_frames((3, 50, 60), dtype), **options))
    pixels = arr.compute()
    refs = to_references(arr)
    np.testing.assert_array_equal(group_of(refs)["data"][...], pixels)
    np.testing.assert_array_equal(as_zarr(arr)[...], pixels)
    if names is None:
        assert "data/zarr.json" in refs["refs"]
        with pytest.raises(DatasetError, match="that only zarr format 3 has"):
            to_references(arr, zarr_format=2)
        return
    assert names_of(refs) == names
    refs = to_references(arr, zarr_format=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # of codecs that zarr has from numcodecs
        array = group_of(refs)["data"]
    assert array.metadata.zarr_format == 3
    np.testing.assert_array_equal(array[...], pixels)


@pytest.mark.parametrize(
    ("way", "form"),
    [
        *((way, "contig") for way in ("jpeg", "webp", "jpeg2000", "lzw")),
        *((way, "separate") for way in ("jpeg", "jpeg2000", "lzw")),
    ],
)
def test_colours(wrote, way, form):
    """Colours are interleaved, or in planes."""
    shape = (2, 50, 60, 3) if form == "contig" else (2, 3, 50, 60)
    frames = counting_frames(shape, "u1")
    path = wrote(frames, compression=way, planarconfig=form, **RGB, **TILES)
    arr = open_dataset(path)
    refs = to_references(arr)
    assert "data/.zarray" in refs["refs"]
    np.testing.assert_array_equal(group_of(refs)["data"][...], arr.compute())


def test_jpeg_that_stores_rgb_needs_the_codec_of_this_package(wrote):
    """Headers may state another colour space, which the codecs of imagecodecs do not check."""
    options = {"compression": "jpeg", "compressionargs": {"outcolorspace": "rgb"}, **RGB, **TILES}
    arr = open_dataset(wrote(counting_frames((2, 50, 60, 3), "u1"), **options))
    refs = to_references(arr)
    assert "data/zarr.json" in refs["refs"]
    np.testing.assert_array_equal(group_of(refs)["data"][...], arr.compute())


@pytest.mark.parametrize("bits", [1, 4, 12])
def test_packed_samples(wrote, bits):
    """numcodecs has no codec for packed rows."""
    dtype = "u2" if bits > 8 else "u1"
    frames = counting_frames((2, 8, 10), dtype, bits=bits)
    path = wrote(frames.astype(bool) if bits == 1 else frames, bitspersample=bits)
    arr = open_dataset(path)
    np.testing.assert_array_equal(group_of(to_references(arr))["data"][...], arr.compute())


def test_missing_tiles(tmp_path):
    """Missing tiles have no reference; the fill value is the page's value for no data."""
    path = tmp_path / "scan.tif"
    tile = np.ones((16, 16), "u1")
    with tifffile.TiffWriter(path) as writer:
        encoded = iter([imagecodecs.lzw_encode(tile), b"", b"", b""])
        extra = [(42113, "s", 0, "7", True)]
        options = {"tile": (16, 16), "compression": "lzw", "extratags": extra}
        writer.write(encoded, shape=(32, 32), dtype="u1", metadata=None, **GREY, **options)
    arr = open_dataset(path)
    refs = to_references(arr)
    assert len([key for key in refs["refs"] if "/c/" in key]) == 1
    array = group_of(refs)["data"]
    assert array.fill_value == 7
    np.testing.assert_array_equal(array[...], arr.compute())


def test_pages_that_differ_in_storage_are_refused(tmp_path):
    path = tmp_path / "scan.tif"
    with tifffile.TiffWriter(path) as writer:
        for way in ("zlib", "lzw"):
            writer.write(counting_frames((8, 9), "u2"), compression=way, metadata=None)
    with pytest.raises(DatasetError, match="are stored differently from chunk to chunk"):
        to_references(open_dataset(path))


def test_parts_of_tiles_are_refused(wrote):
    arr = open_dataset(wrote(counting_frames((3, 50, 60), "u2"), compression="lzw", **TILES))
    np.testing.assert_array_equal(group_of(to_references(arr[1:]))["data"][...], arr[1:].compute())
    with pytest.raises(DatasetError, match="blocks that can only be decoded whole"):
        to_references(arr[:, 1:])


def test_icechunk(wrote, repository):
    """Arrays have format 3, also if format 2 has their codecs."""
    path = wrote(counting_frames((3, 50, 60), "u2"), compression="lzw", **PREDICTED, **TILES)
    os.utime(path, (10**9, 10**9))  # no need to wait for the next second
    arr = open_dataset(path)
    session = repository.writable_session("main")
    to_references(arr, session.store)
    array = zarr.open_array(session.store, path="data", mode="r")
    np.testing.assert_array_equal(array[...], arr.compute())


@pytest.mark.thorough
def test_readers_without_this_package(wrote, tmp_path):
    """Readers register the codecs of imagecodecs, as its documentation says."""
    path = wrote(counting_frames((3, 50, 60), "u2"), compression="lzw", **PREDICTED, **TILES)
    arr = open_dataset(path)
    to_references(arr, tmp_path / "scan.json")
    code = """
import sys, zarr
from imagecodecs.numcodecs import register_codecs
register_codecs()
group = zarr.open_group("reference://", storage_options={"fo": sys.argv[1]}, mode="r")
print(int(group["data"][:].astype("i8").sum()), "dask_tiled" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "scan.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{arr.astype('i8').sum().compute()} False\n", done.stderr


@pytest.mark.parametrize(
    "changed",
    [
        *[None, {}, {"codecs": "lzw"}, {"edge": 3}, {"edge": [0, 2]}],
        *[{"dtype": "O"}, {"dtype": 3}, {"shape": [0, 3]}, {"shape": None}],
    ],
    ids=repr,
)
def test_invalid_documents_raise(changed):
    well = {"codecs": [], "shape": [4, 3], "dtype": "uint8"} if changed else {}
    document = {"name": PIPELINE, "configuration": changed and {**well, **changed}}
    with pytest.raises(CorruptFileError, match=r"dask_tiled.pipeline cannot decode"):
        ReadingCodec.from_dict(document)


def test_invalid_chunks_raise():
    """Chunks are whole or as short as at the edge, and their codecs are known."""
    rows = {"name": "dask_tiled.rows", "configuration": {"axis": -1, "bits": 8}}

    def chunk(**configuration):
        return decoder_of(
            PIPELINE, json.dumps({"shape": (4, 3), "dtype": "uint8", **configuration})
        )

    codec = chunk(codecs=[rows], edge=(1, 3))
    whole = np.arange(12, dtype="u1")
    np.testing.assert_array_equal(codec.decode(whole[:3], 12), np.pad(whole[:3], (0, 9)))
    unknown = chunk(codecs=[{"name": "exec"}])
    for one, data, size in [
        *((codec, whole[:6], 12), (codec, whole[:2], 12)),
        *((codec, whole[:3], 24), (unknown, whole, 12)),
    ]:
        with pytest.raises(CorruptFileError, match="cannot decode"):
            one.decode(data, size)
