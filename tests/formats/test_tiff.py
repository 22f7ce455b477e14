"""TIFF files: real and written ones, compared with tifffile pixel for pixel."""

import itertools
import logging
import os
import pickle
import struct
import sys
import threading
import zlib

import dask
import imagecodecs
import numpy as np
import PIL.Image
import pytest
import tifffile
from checks import least_peak, refuses
from hypothesis import given
from hypothesis import strategies as st
from manifest import by_file, expected_of, manifest
from tiff_writer import directory, head

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    as_zarr,
    describe,
    open_dataset,
    to_zarr,
)
from dask_tiled.codecs import chunks
from dask_tiled.formats.tiff import kind as tiff_kind
from dask_tiled.formats.tiff import pages as tiff_pages
from dask_tiled.formats.tiff.ifd import is_ome_tiff
from dask_tiled.testing import counting_frames

pytestmark = pytest.mark.usefixtures("synchronous")

COMPRESSIONS = [None, "zlib", "lzw", "zstd", "packbits", "lzma"]
DTYPES = ["u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8", "c8", "c16"]


def write(path, frames, **options):
    """Write a file, without tifffile's guesses at colours."""
    tifffile.imwrite(path, frames, **{"photometric": "minisblack", **options})
    return path


def check(path, **options):
    """Compare shape, dtype and pixels of each series and level with tifffile; describe the file."""
    with tifffile.TiffFile(path) as other:
        for number, series in enumerate(other.series):
            for level, expected in enumerate(series.levels):
                arr = open_dataset(path, format="tiff", dataset=number, level=level, **options)
                pixels = expected.asarray()
                assert arr.shape == pixels.shape
                assert arr.dtype == pixels.dtype
                np.testing.assert_array_equal(arr.compute(), pixels)
    return describe(path, format="tiff")


# Real files


@by_file(manifest("TIFF") + manifest("TIFF", "more/"), "row")
def test_file_equals_tifffile_and_the_manifest(data, row):
    desc = check(data / row["file"])
    text = row["shape_dtype"].replace("[", " [")  # "(27, 128, 128) u1[IYX]"
    shape, dtype, total = expected_of({**row, "shape_dtype": text.split(" [")[0]})
    assert (desc.shape, desc.dtype) == (shape, dtype)
    assert open_dataset(data / row["file"]).sum(dtype="i8").compute() == total


def test_pattern_is_a_series(data):
    pattern = data / "tiff" / "series_181003" / "P1_T*.tif"
    arr = open_dataset(pattern)
    assert arr.description.dims == ("frame", "y", "x")
    for k in range(10):
        np.testing.assert_array_equal(arr[k], tifffile.imread(str(pattern).replace("*", str(k))))


# Storage of pages


@st.composite
def layouts(draw):
    """Draw pixels, and options of tifffile that store them."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    samples = draw(st.sampled_from([1, 1, 3, 4]))
    shape = draw(st.tuples(*[st.integers(1, n) for n in (4, 50, 50)]))
    planar = draw(st.sampled_from(["contig", "separate"]))
    options = {
        "byteorder": draw(st.sampled_from("<>")),
        "bigtiff": draw(st.booleans()),
        "compression": draw(st.sampled_from(COMPRESSIONS)),
        "metadata": draw(st.sampled_from([None, {}])),
    }
    if samples > 1:
        shape = (*shape, samples) if planar == "contig" else (shape[0], samples, *shape[1:])
        extra = ["unspecified"] * (samples - 1)
        options |= {"planarconfig": planar, "extrasamples": extra}
    if draw(st.booleans()):
        options["tile"] = draw(st.sampled_from([(16, 16), (32, 16), (16, 48)]))
    else:
        options["rowsperstrip"] = draw(st.integers(1, 60))
    predictors = {"u": 2, "i": 2, "f": 3}
    if dtype.kind in predictors and options["compression"] and draw(st.booleans()):
        options["predictor"] = predictors[dtype.kind]
    bits = {2: 10, 4: 24}.get(dtype.itemsize) if dtype.kind == "f" else None
    frames = counting_frames(shape, f"u{min(dtype.itemsize, 8)}", bits=bits)
    return frames.astype(dtype), options


@given(drawn=layouts(), parts=st.integers(1, 3))
def test_layouts(tmp_path_factory, drawn, parts):
    frames, options = drawn
    path = write(tmp_path_factory.mktemp("tiff") / "a.tif", frames, **options)
    arr = open_dataset(path, chunks=tuple(-(-n // parts) for n in describe(path).shape))
    pixels = arr.compute()
    assert pixels.dtype == frames.dtype
    np.testing.assert_array_equal(pixels.reshape(frames.shape), frames)
    np.testing.assert_array_equal(pixels, tifffile.imread(path).reshape(arr.shape))


def pack(frames, bits):
    """Pack samples, the first one in the highest bits; each row begins with a byte."""
    places = np.arange(bits - 1, -1, -1)
    rows = (frames.astype("i8")[..., None] >> places & 1).reshape(*frames.shape[:-1], -1)
    return np.packbits(rows.astype("u1"), axis=-1)


def tiny(path, pixels, shape, *, bits=8, order="<", **more):
    """Write a page by hand, with one strip unless ``more`` has entries of others.

    Entries are given as ``tag_339=(type, value, ...)``; None leaves a tag out.
    """
    entries = {
        256: (4, shape[1]),
        257: (4, shape[0]),
        258: (3, bits),
        259: (3, 1),
        262: (3, 1),
        273: (4, 8),
        277: (3, 1),
        278: (4, shape[0]),
        279: (4, len(pixels)),
        **{int(name[4:]): entry for name, entry in more.items()},
    }
    entries = {tag: entry for tag, entry in entries.items() if entry is not None}
    at = 8 + len(pixels)
    path.write_bytes(head(at, order) + pixels + directory(entries, at, order=order))
    return path


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_only_compressed_pages_are_blocks(tmp_path, compression):
    """Also if no segment is unwritten, whose decoder is that of blocks."""
    frames = counting_frames((3, 16, 24), "uint16")
    options = {"compression": compression, "rowsperstrip": 6}
    desc = describe(write(tmp_path / "a.tif", frames, **options))
    assert desc.layout.has_blocks == bool(compression)
    assert desc.base_shape == ((1, 6, 24) if compression else ())


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 7, 9, 12, 14, 20, 24, 31])
def test_packed_samples(tmp_path, bits, signed):
    """Samples have one to 31 bits; tifffile has no types for signed ones."""
    stored = counting_frames((9, 13), "u4", bits=bits)
    size = 1 if bits <= 8 else 2 if bits <= 16 else 4
    form, dtype, expected = 1, "?" if bits == 1 else f"u{size}", stored
    if signed:
        form, dtype = 2, f"i{size}"
        expected = stored.astype("i8") - ((stored >> (bits - 1)).astype("i8") << bits)
    pixels = pack(stored, bits).tobytes()
    path = tiny(tmp_path / "a.tif", pixels, (9, 13), bits=bits, tag_339=(3, form))
    arr = open_dataset(path)
    assert arr.dtype == dtype
    np.testing.assert_array_equal(arr.compute(), expected.astype(dtype))
    if not signed:
        np.testing.assert_array_equal(arr.compute(), tifffile.imread(path))


def flipped(pixels):
    return np.packbits(np.unpackbits(np.frombuffer(pixels, "u1")), bitorder="little").tobytes()


FRAME, PAIRS = counting_frames((9, 16), "u1"), counting_frames((5, 6, 2), "u1")
SMALL, FLOATS = counting_frames((2, 3), "u1"), counting_frames((6, 15), "u1").tobytes()
HALF, ABSENT = counting_frames((2, 4), "u1"), np.zeros((2, 4), "u1")
STRIPS_2 = {"tag_273": (4, 8, 0), "tag_278": (4, 2), "tag_279": (4, 8, 0)}
FAX = np.zeros((6, 21), bool)
FAX[1:4, 3:15], FAX[2, 5], FAX[5, ::3] = True, False, True
FAXED = {
    2: "2e80fc8c713880fc2e354e9d3a74e9d380",
    3: "0012e00301f800631c4e00180fc0025c004d53a74e9d3a74e0",
    4: "980f9c7e38c9aa2e8ba2e8ba2e8105001001",
}
"""Data of libtiff, as tifffile does not write them."""
PAGES = {
    "reversed bits": (flipped(FRAME), (9, 16), {"tag_266": (3, 2)}, FRAME),
    "4 reversed bits": (
        flipped(FRAME), (9, 32), {"bits": 4, "tag_266": (3, 2)},
        np.stack([FRAME >> 4, FRAME & 15], axis=-1).reshape(9, 32),
    ),
    "a reversed image that is longer than its pixels": (
        flipped(imagecodecs.png_encode(SMALL)), (2, 3),
        {"tag_259": (3, 34933), "tag_266": (3, 2)}, SMALL,
    ),
    "floats of 24 bits": (FLOATS, (6, 5), {"bits": 24, "tag_339": (3, 3)}, None),
    "more numbers than samples, as in LSM files": (
        PAIRS.tobytes(), (5, 6),
        {"tag_258": (3, 8, 8, 16), "tag_277": (3, 2), "tag_339": (3, 1, 1, 3)}, PAIRS,
    ),
    "more numbers than the only sample": (
        PAIRS.tobytes(), (10, 6), {"tag_258": (3, 8, 16)}, PAIRS.reshape(10, 6)
    ),
    "an absent strip": (HALF.tobytes(), (4, 4), STRIPS_2, np.concatenate([HALF, ABSENT])),
    "an absent strip with the value for no data": (
        HALF.tobytes(), (4, 4), {**STRIPS_2, "tag_42113": (2, *b"7\0")},
        np.concatenate([HALF, ABSENT + 7]),
    ),
    **{
        f"fax {code}": (bytes.fromhex(data), FAX.shape, {"bits": 1, "tag_259": (3, code)}, FAX)
        for code, data in FAXED.items()
    },
}  # fmt: skip
"""Pixels as stored, shape, tags, and the pixels; those of tifffile by default."""


@pytest.mark.parametrize("name", PAGES)
def test_written_pages(tmp_path, name):
    stored, shape, tags, expected = PAGES[name]
    path = tiny(tmp_path / "a.tif", stored, shape, **tags)
    if expected is None or name[3:] == "absent strip" or "fax" in name:
        check(path)
    arr = open_dataset(path)
    if expected is None:
        assert arr.dtype == "f4"
    else:
        np.testing.assert_array_equal(arr, expected)


TILES, STRIPS = {"tile": (32, 48)}, {"rowsperstrip": 16}


@pytest.mark.parametrize(
    ("compression", "options", "form"),
    [
        ("webp", TILES, "chunky"),  # WebP images have colours
        ("webp", STRIPS, "chunky"),
        ("jpeg", TILES, "chunky"),
        ("jpeg", STRIPS, "chunky"),
        ("lerc", STRIPS, "chunky"),  # tifffile does not write planes of it
        *(("jpeg2000", TILES, "chunky"), ("jpegxl", STRIPS, "chunky"), ("png", TILES, "chunky")),
        ("jpeg", TILES, "planar"),
        *(("jpeg2000", STRIPS, "planar"), ("jpegxl", TILES, "planar"), ("png", STRIPS, "planar")),
        *((codec, TILES, "grey") for codec in ("jpeg", "jpeg2000", "png", "jpegxl", "lerc")),
    ],
)
def test_image_codecs(tmp_path, compression, options, form):
    """Codecs of images equal tifffile's, JPEG also with RGB and tables."""
    shape = {"chunky": (3, 50, 60, 3), "planar": (3, 3, 50, 60), "grey": (3, 50, 60)}[form]
    colours = {} if form == "grey" else {"photometric": "rgb"}
    if form == "planar":
        colours["planarconfig"] = "separate"
    frames = counting_frames(shape, "u1")
    path = write(tmp_path / "a.tif", frames, compression=compression, **colours, **options)
    check(path)


@pytest.mark.parametrize("options", [STRIPS, TILES])
@pytest.mark.parametrize("dtype", ["u1", "i2", "f4"])
def test_predictor_of_lerc(tmp_path, dtype, options):
    """LERC is the only codec of images with predictors."""
    frames = counting_frames((3, 50, 60), "u1").astype(dtype)
    options = {"compression": "lerc", "predictor": 2 if dtype != "f4" else 3, **options}
    check(write(tmp_path / "a.tif", frames, **options))


@pytest.mark.parametrize("dtype", ["<u8", ">u8", "<i8", ">i8"])
def test_pixels_of_8_bytes_have_the_type_that_zarr_knows(tmp_path, dtype):
    """NumPy has two equal types of 8 bytes; tifffile returns the one unknown to zarr."""
    frames = counting_frames((3, 20, 24), "u2").astype(dtype)
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, frames, byteorder=dtype[0], photometric="minisblack")
    arr = open_dataset(path)
    assert type(arr.dtype) is type(np.dtype(dtype[1:]))
    np.testing.assert_array_equal(as_zarr(arr)[...], frames)
    other = to_zarr(arr.astype("q"), tmp_path / "a.zarr")
    np.testing.assert_array_equal(other[...], frames)


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"tag_258": (3, 5, 6, 5)}, "samples of 5, 6, 5 bits in format 1"),
        ({"tag_339": (3, 1, 1, 3)}, "samples of 8 bits in format 1, 1, 3"),
    ],
)
def test_samples_that_differ_are_refused(tmp_path, entry, told):
    path = tiny(tmp_path / "a.tif", bytes(108), (6, 6), tag_277=(3, 3), **entry)
    refuses(path, told)


@pytest.mark.parametrize("ratio", [(1, 1), (2, 1), (1, 2)])
def test_subsampled_colours_without_jpeg_are_refused(tmp_path, ratio):
    tags = {"tag_258": (3, 8, 8, 8), "tag_262": (3, 6), "tag_277": (3, 3), "tag_530": (3, *ratio)}
    frame = counting_frames((6, 8, 3), "u1")
    path = tiny(tmp_path / "a.tif", frame.tobytes(), (6, 8), **tags)
    if ratio == (1, 1):
        np.testing.assert_array_equal(open_dataset(path), frame)
        return
    refuses(path, "subsampled colours without JPEG")


@pytest.mark.parametrize("photometric", [None, (3, 2), (3, 6)])
def test_old_jpeg_without_tags_of_colours(tmp_path, photometric):
    """Pixels are of three samples of 8 bits then, and stored as luma and chroma."""
    shade = np.arange(16, dtype="u1") * 8
    colours = np.stack(np.broadcast_arrays(shade, shade[:, None], np.uint8(99)), axis=-1)
    stored = imagecodecs.jpeg8_encode(colours)
    never = dict.fromkeys(("tag_258", "tag_277"))
    path = tmp_path / "a.tif"
    tiny(path, stored, (16, 16), tag_259=(3, 6), tag_262=photometric, **never)
    pixels = open_dataset(path).compute()
    np.testing.assert_array_equal(pixels, imagecodecs.jpeg8_decode(stored))
    assert abs(pixels.astype(int) - colours).max() < 16


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"compression": "zstd"},
        {"compression": "zlib", "rowsperstrip": 8},
        {"compression": "packbits", "tile": (16, 32)},
    ],
)
@pytest.mark.parametrize("width", [53, 56])
def test_bilevel_colours_of_tifffile(tmp_path, way, width):
    """tifffile packs samples separately, but reads them side by side, as specified."""
    frames = np.random.default_rng(0).random((3, 37, width, 3)) < 0.3
    options = {"photometric": "rgb", **way}
    tifffile.imwrite(tmp_path / "a.tif", frames, **options)
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.tif"), frames)
    tifffile.imwrite(tmp_path / "b.tif", frames[..., :48, :], software="another", **options)
    np.testing.assert_array_equal(
        open_dataset(tmp_path / "b.tif"), tifffile.imread(tmp_path / "b.tif")
    )


def test_pages_that_differ_in_storage_are_one_series(tmp_path):
    """Each page has a compression, tiles or strips, and a predictor of its own."""
    frames = counting_frames((5, 40, 50), "u2")
    ways = [
        {},
        {"compression": "zlib", "predictor": 2},
        {"tile": (16, 16)},
        {"compression": "lzw", "tile": (32, 16)},
        {"rowsperstrip": 7},
    ]
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        for frame, way in zip(frames, ways, strict=True):
            writer.write(frame, metadata=None, **way)
    arr = open_dataset(path, chunks=(2, 17, 50))
    np.testing.assert_array_equal(arr.compute(), frames)


def test_pages_of_other_shape_or_type_are_other_series(tmp_path):
    path = tmp_path / "a.tif"
    arrays = [counting_frames(s, d) for s, d in [((5, 6), "u2"), ((7, 8), "u2"), ((5, 6), "f4")]]
    with tifffile.TiffWriter(path) as writer:
        for array in (*arrays, *arrays):
            writer.write(array, metadata=None)
    for number, array in enumerate(arrays):
        np.testing.assert_array_equal(open_dataset(path, dataset=number), [array, array])
    listed = describe(path).metadata["tiff"]["datasets"]
    assert [one["shape"] for one in listed] == [(2, 5, 6), (2, 7, 8), (2, 5, 6)]
    check(path)
    refuses(path, "no such dataset", dataset=3)


@pytest.mark.parametrize("truncate", [False, True])
def test_datasets_by_name(tmp_path, truncate):
    path = tmp_path / "a.tif"
    first, second = counting_frames((5, 20, 30), "u2"), counting_frames((7, 8), "f4")
    with tifffile.TiffWriter(path) as writer:
        writer.write(first, truncate=truncate, metadata={"name": "first", "axes": "TYX"})
        writer.write(second, metadata={"name": "second"})
    check(path)
    assert open_dataset(path).description.dims == ("t", "y", "x")
    np.testing.assert_array_equal(open_dataset(path, dataset="second"), second)
    refuses(path, "'first', 'second'", dataset="third")


ALONE = {"truncate": True}
"""All frames follow one page, which tifffile notes."""


@pytest.mark.parametrize(
    "written",
    [
        [(5, ALONE), *[(1, {})] * 4],
        [(5, ALONE), *[(1, {})] * 6],
        [(5, ALONE), (4, {})],
        [(5, ALONE), (5, {})],
        [(3, ALONE)] * 3,
    ],
)
def test_series_behind_one_page(tmp_path, written):
    """Pages of the same shape that follow are no frames of the series."""
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        arrays = [np.full((n, 20, 30), k, "u2") for k, (n, _) in enumerate(written)]
        for array, (_, options) in zip(arrays, written, strict=True):
            writer.write(array, photometric="minisblack", **options)
    for number, array in enumerate(arrays):
        np.testing.assert_array_equal(open_dataset(tmp_path / "a.tif", dataset=number), array)


def test_copied_descriptions(tmp_path):
    """Pages that are followed by no frames are complete, as their description was copied."""
    frames, text = counting_frames((2, 5, 7), "u1"), b'{"shape": [6, 5, 7]}'
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        for frame in frames:
            writer.write(frame, description=text.decode(), metadata=None)
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.tif"), frames)
    path = tiny(tmp_path / "b.tif", frames[0].tobytes(), (5, 7), tag_270=(2, *text, 0))
    np.testing.assert_array_equal(open_dataset(path), frames[0])


def test_last_series_is_cut(tmp_path):
    path = tmp_path / "a.tif"
    frames = counting_frames((5, 20, 30), "u2")
    with tifffile.TiffWriter(path) as writer:
        for some in (frames, frames[:3]):
            writer.write(some, photometric="minisblack", truncate=True)
    os.truncate(path, path.stat().st_size - 2000)
    np.testing.assert_array_equal(open_dataset(path, dataset=0), frames)
    refuses(path, kind=TruncatedFileError, dataset=1)
    found = open_dataset(path, dataset=1, nav_shape=(1,))
    np.testing.assert_array_equal(found, frames[:1])


def test_a_real_page_of_one_strip_without_its_length(data):
    """A CCITT strip without a length ends with the file."""
    path = data.parent / "found" / "CCITT-G4-300dpi-StripByteCounts0.tif"
    if not path.exists():
        pytest.skip("no such file beside the checkout")
    check(path)
    assert open_dataset(path).sum().compute() == 546414


@pytest.mark.parametrize(
    ("compression", "behind"), [(1, b""), (1, b"?" * 50), (8, b""), (8, b"?" * 50), (32773, b"")]
)
def test_one_strip_without_its_length(tmp_path, compression, behind):
    """The strip ends where the next structure begins, or with the file, as in Pillow."""
    frame = counting_frames((6, 7), "u1")
    encode = {1: bytes, 8: zlib.compress, 32773: imagecodecs.packbits_encode}[compression]
    tags = {"tag_259": (3, compression), "tag_279": (4, 0)}
    pixels = encode(frame.tobytes())
    path = tiny(tmp_path / "a.tif", pixels + behind, frame.shape, **tags)
    np.testing.assert_array_equal(open_dataset(path), frame)
    np.testing.assert_array_equal(PIL.Image.open(path), frame)
    last = tiny(tmp_path / "b.tif", b"", frame.shape, **tags)  # behind the entries
    content = last.read_bytes()
    at = content.index(struct.pack("<HHI", 273, 4, 1)) + 8
    content = content[:at] + struct.pack("<I", len(content)) + content[at + 4 :] + pixels
    last.write_bytes(content)
    np.testing.assert_array_equal(open_dataset(last), frame)
    np.testing.assert_array_equal(PIL.Image.open(last), frame)
    last.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=r"b\.tif"):
        open_dataset(last).compute()


LENGTHS = {
    "a strip without a length": ((8, 50), (42, 0), "strip 1 at byte 50", "42 bytes", 0),
    "no strip has a length": ((8, 50), (0, 0), "strip 0 at byte 8", "42 bytes", 0),
    "too few bytes": ((8, 50), (8, 42), "strip 0 at byte 8", "42 bytes", 8),
    "a length without a place": (
        (8, 0),
        (42, 42),
        "strip 1 at byte 0",
        "an offset behind the header",
        42,
    ),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_invalid_lengths_of_strips_raise(tmp_path, case):
    """tifffile raises for short strips, or reads zeros."""
    offsets, counts, *place, count = LENGTHS[case]
    problem = r"a\.tif: .*page 0, {}; expected {}.*found a byte count of {}$".format(*place, count)
    frame = counting_frames((12, 7), "u1")
    places = {"tag_273": (4, *offsets), "tag_278": (4, 6), "tag_279": (4, *counts)}
    path = tiny(tmp_path / "a.tif", frame.tobytes(), frame.shape, **places)
    refuses(path, problem, CorruptFileError)


def test_page_of_a_short_strip_is_named(tmp_path):
    path = write(tmp_path / "a.tif", np.ones((3, 6, 8), "u2"), rowsperstrip=3, metadata=None)
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[1].tags["StripByteCounts"].overwrite((48, 46))
    problem = r"page 1, strip 1 at byte .*48 bytes.*found a byte count of 46"
    refuses(path, problem, CorruptFileError)


@pytest.mark.parametrize("shape", [(15, 15), (40, 40)])
def test_absent_tiles(tmp_path, shape):
    """The place that tifffile writes for a single tile is that of the next structure."""
    path, count = tmp_path / "a.tif", (1 + shape[0] // 16) ** 2
    tiles = iter([b"", *[zlib.compress(b"1" * 256)] * 8][:count])
    options = {"shape": shape, "dtype": "u1", "tile": (16, 16), "compression": "zlib"}
    tifffile.imwrite(path, tiles, **options)
    check(path)


def test_old_style_jpeg_raises(tmp_path):
    """Strips without headers raise; whole JPEG files are read under the same number."""
    path = tiny(tmp_path / "a.tif", bytes(range(36)), (6, 6), tag_259=(3, 6))
    with pytest.raises(DatasetError, match=r"old-style JPEG compression \(6\)") as caught:
        open_dataset(path)
    assert type(caught.value) is DatasetError
    assert "Convert" in caught.value.hint
    frame = counting_frames((8, 8), "u1")
    stored = imagecodecs.jpeg_encode(frame, level=95)
    path = tiny(tmp_path / "a.tif", stored, (8, 8), tag_259=(3, 6))
    np.testing.assert_array_equal(open_dataset(path), imagecodecs.jpeg_decode(stored))


@pytest.mark.thorough
def test_pyramid(tmp_path):
    """Levels have scales of their own."""
    path = tmp_path / "a.tif"
    frames = counting_frames((5, 64, 96), "u2")
    options = {"tile": (16, 16), "resolution": (4e4, 2e4), "resolutionunit": "CENTIMETER"}
    with tifffile.TiffWriter(path) as writer:
        writer.write(frames, subifds=2, **options)
        writer.write(frames[:, ::2, ::2], subfiletype=1, compression="zlib")
        writer.write(frames[:, ::4, ::4], subfiletype=1)
    desc = check(path)
    assert desc.metadata["tiff"]["levels"] == 3
    assert [a.scale for a in desc.axes] == pytest.approx([1, 0.5, 0.25])
    desc = describe(path, level=2)
    assert [a.scale for a in desc.axes] == pytest.approx([1, 2, 1])
    assert [a.units for a in desc.axes] == ["", "µm", "µm"]
    refuses(path, "no such level", level=3)


def test_tiles_with_a_depth(tmp_path):
    frames = counting_frames((20, 33, 47), "u2")
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, frames, volumetric=True, tile=(16, 16, 16), photometric="minisblack")
    assert check(path).dims == ("z", "y", "x")


# Descriptions


@pytest.mark.parametrize("axes", ["TZCYX", "ZCYX", "TYX", "ZYX", "CYX", "YX", "TZYX", "TZCYXS"])
def test_imagej(tmp_path, axes):
    sizes = {"T": 2, "Z": 3, "C": 4, "Y": 9, "X": 11, "S": 3}
    dtype = "u1" if "S" in axes else "u2"
    frames = counting_frames(tuple(sizes[axis] for axis in axes), dtype)
    path = tmp_path / "a.tif"
    facts = {"axes": axes, "spacing": 2.5, "unit": "\\u00B5m", "finterval": 0.1}
    tifffile.imwrite(path, frames, imagej=True, resolution=(4, 2), metadata=facts)
    desc = check(path)
    assert "".join(desc.dims).upper() == axes
    scales = {axis.name: (axis.scale, axis.units) for axis in desc.axes if axis.units}
    expected = {"t": (0.1, "s"), "z": (2.5, "µm"), "y": (0.5, "µm"), "x": (0.25, "µm")}
    assert scales == {name: axis for name, axis in expected.items() if name.upper() in axes}


def test_frames_behind_one_page_of_imagej(tmp_path):
    """Files above 4 GiB have one page for all frames, which are one piece."""
    frames = counting_frames((6, 5, 7), ">u2")
    text = b"ImageJ=1.53c\nimages=6\nslices=3\nframes=2\nhyperstack=true\n\0"
    options = {"bits": 16, "order": ">", "tag_279": (4, 70), "tag_270": (2, *text)}
    path = tiny(tmp_path / "a.tif", frames.tobytes(), (5, 7), **options)
    arr = open_dataset(path)
    assert arr.description.dims == ("t", "z", "y", "x")
    assert len(arr.description.layout.pieces) == 1
    np.testing.assert_array_equal(arr, frames.reshape(2, 3, 5, 7))


def test_channels_of_imagej_that_are_samples(tmp_path):
    text = "ImageJ=1.53c\nimages=2\nchannels=3\nslices=2\n"
    frames = counting_frames((2, 5, 7, 3), "u1")
    options = {"photometric": "rgb", "compression": "zlib", "metadata": None}
    path = write(tmp_path / "a.tif", frames, description=text, **options)
    arr = open_dataset(path)
    assert arr.dims == ("z", "y", "x", "s")
    np.testing.assert_array_equal(arr, tifffile.imread(path).reshape(frames.shape))


def test_invalid_counts_of_imagej_are_ignored(tmp_path):
    frames = counting_frames((3, 5, 7), "u2")
    for name, value in itertools.product(("images", "frames", "slices"), ("0", "-1", "many")):
        text = f"ImageJ=1.53c\nimages=3\n{name}={value}\n"
        path = write(tmp_path / "a.tif", frames, description=text, metadata=None)
        np.testing.assert_array_equal(open_dataset(path), frames)


def test_axis_of_one_sample_is_left_out(tmp_path):
    """Other axes keep their names, and other lengths of 1 are those of frames."""
    frames = counting_frames((2, 3, 5, 7, 1), "u2")
    path = write(tmp_path / "a.tif", frames, metadata={"axes": "TZYXS"})
    arr = open_dataset(path)
    assert arr.description.dims == ("t", "z", "y", "x")
    np.testing.assert_array_equal(arr, frames[..., 0])
    with tifffile.TiffWriter(tmp_path / "b.tif") as writer:
        for frame in frames[0, ..., :1, 0]:
            text = '{"shape": [3, 5, 1], "axes": "TYX"}'
            writer.write(frame, description=text, metadata=None)
    arr = open_dataset(tmp_path / "b.tif")
    assert (arr.shape, arr.dims) == ((3, 5, 1), ("t", "y", "x"))


@pytest.mark.parametrize(("count", "dims"), [(1, "y x"), (2, "frame y x")])
def test_shapes_of_other_axes_than_those_of_pages(tmp_path, count, dims):
    frames = counting_frames((count, 5, 7), "u2")
    text = f'{{"shape": [{frames.size}]}}'
    arr = open_dataset(write(tmp_path / "a.tif", frames, description=text, metadata=None))
    assert arr.dims == (*dims.split(),)
    np.testing.assert_array_equal(arr, frames.reshape(arr.shape))


@pytest.mark.parametrize("options", [{"imagej": True}, {"truncate": True}], ids=repr)
def test_truncated_frames_behind_one_page(tmp_path, options):
    """The file raises; with a nav_shape, whole frames are read."""
    frames = counting_frames((6, 5, 7), "u2")
    path = write(tmp_path / "a.tif", frames, **options)
    if "imagej" in options:  # without the IFDs behind the pixels, as in files of more than 4 GiB
        with tifffile.TiffFile(path) as file:
            at = file.pages[0].offset + 2 + 12 * len(file.pages[0].tags)
            stop = file.pages[0].dataoffsets[0] + frames.nbytes
        content = bytearray(path.read_bytes()[:stop])
        content[at : at + 4] = bytes(4)
        path.write_bytes(content)
    np.testing.assert_array_equal(open_dataset(path), frames)
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(TruncatedFileError, match="4 frames") as caught:
        open_dataset(path)
    assert "nav_shape=(6,)" in caught.value.hint
    arr = open_dataset(path, nav_shape=(6,))
    assert arr.description.missing.tolist() == [4, 5]
    np.testing.assert_array_equal(arr[:4].compute(), frames[:4])


def test_millions_of_frames_behind_one_page_take_no_memory(tmp_path):
    """Pages have several strips, in several files; only the last frames are not zero."""
    count = 5_000_000
    text = f"ImageJ=1.53c\nimages={count}\n\0".encode()
    paths = [tmp_path / "a.tif", tmp_path / "b.tif"]
    for path in paths:
        places = {"tag_273": (4, 8, 10, 12), "tag_278": (4, 1), "tag_279": (4, 2, 2, 2)}
        tiny(path, bytes(6), (3, 2), tag_270=(2, *text), **places)
        content = path.read_bytes()  # the pixels go behind all else
        at = len(content)
        where = content.index(struct.pack("<3I", 8, 10, 12))
        content = bytearray(content)
        content[where : where + 12] = struct.pack("<3I", at, at + 2, at + 4)
        with path.open("wb") as file:
            file.write(content)
            file.truncate(at + 6 * count)
            file.seek(at + 6 * (count - 1))
            file.write(bytes(range(6)))
    assert least_peak(lambda: open_dataset(paths)) < 4e6
    arr = open_dataset(paths)
    assert arr.shape == (2, count, 3, 2)
    assert len(arr.description.layout.pieces) == 2
    last = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(arr[:, -2:].compute(), [[last * 0, last]] * 2)


# Several files


@pytest.mark.parametrize("options", [{}, {"compression": "zlib", "metadata": None}])
def test_files_of_several_pages(tmp_path, options):
    """Files are an axis if all have as many pages; else all pages are one axis."""
    frames = counting_frames((10, 5, 7), "u2")
    parts = [frames[:4], frames[4:8]]
    paths = [write(tmp_path / f"{k}.tif", part, **options) for k, part in enumerate(parts)]
    arr = open_dataset(paths)
    assert arr.description.dims == ("file", "frame", "y", "x")
    np.testing.assert_array_equal(arr, parts)
    paths.append(write(tmp_path / "2.tif", frames[8:], **options))
    np.testing.assert_array_equal(open_dataset(paths), frames)
    assert open_dataset(paths).description.dims == ("frame", "y", "x")
    write(paths[0], frames[:, :4])
    with pytest.raises(DatasetError, match="the pages differ"):
        open_dataset(paths)


def test_files_of_one_layout_are_parsed_once(tmp_path, monkeypatch):
    """One file of each byte order is parsed; others are compared with it."""
    frames = counting_frames((20, 5, 7), "u2")
    paths = [write(tmp_path / f"{k}.tif", frame) for k, frame in enumerate(frames)]
    write(paths[3], frames[3], byteorder=">")
    parsed = []
    monkeypatch.setattr(
        tiff_pages, "read_kind", lambda *args: parsed.append(args) or tiff_kind.read_kind(*args)
    )
    np.testing.assert_array_equal(open_dataset(paths), frames)
    assert len(parsed) == 2


def test_kinds_are_looked_up_and_not_compared(tmp_path, monkeypatch):
    """Files may have thousands of kinds."""
    path, compared = tmp_path / "a.tif", []
    with tifffile.TiffWriter(path) as writer:
        for k in range(20):
            writer.write(np.zeros((1, k + 1), "u1"), metadata=None)
    equal = lambda *both: compared.append(both) or tuple.__eq__(*both)  # noqa: E731
    monkeypatch.setattr(tiff_kind.PageLayout, "__eq__", equal)
    assert len(describe(path).metadata["tiff"]["datasets"]) == 20
    assert len(compared) < 20


# Tasks


@pytest.mark.parametrize("compression", ["zlib", "jpeg"])
def test_tasks_need_no_tifffile(tmp_path, compression, monkeypatch):
    """Arrays are small, pickle, hold no lock; two threads decode at the same time."""
    frames = counting_frames((2, 64, 64), "u1")
    path = write(tmp_path / "a.tif", frames, compression=compression)
    expected = tifffile.imread(path)
    arr = open_dataset(path, chunks=(1, 64, 64))
    content = pickle.dumps(arr)
    assert len(content) < 4096
    both = threading.Barrier(2, timeout=30)
    decode = chunks.decode

    def meet(*args, **options):
        both.wait()  # breaks where only one decodes at a time
        return decode(*args, **options)

    monkeypatch.setattr(chunks, "decode", meet)
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with dask.config.set(scheduler="threads", num_workers=2):
        np.testing.assert_array_equal(pickle.loads(content).compute(), expected)


def test_missing_libraries(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tif", counting_frames((3, 8, 9), "u2"), compression="lzw")
    arr = open_dataset(path)
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(DatasetError, match=r'pip install "dask-tiled\[tiff\]"'):
        arr.compute()
    monkeypatch.setitem(sys.modules, "tifffile", None)
    refuses(path, r'pip install "dask-tiled\[tiff\]"')


# Damaged files


def test_circular_chain_raises(tmp_path):
    path = write(tmp_path / "a.tif", counting_frames((2, 8, 9), "u2"))
    with tifffile.TiffFile(path) as file:
        first, second = file.pages
        at = second.offset + 2 + 12 * len(second.tags)
    content = bytearray(path.read_bytes())
    content[at : at + 4] = struct.pack("<I", first.offset)
    refuses(path, "is cyclic", CorruptFileError, content=content)


def test_invalid_number_of_levels(tmp_path):
    """The page itself is read."""
    frame = counting_frames((8, 9), "u2")
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path, bigtiff=True, byteorder="<") as writer:
        writer.write(frame, subifds=1, metadata=None)
        writer.write(frame[::2, ::2], metadata=None)
    with tifffile.TiffFile(path) as file:
        at = file.pages[0].tags[330].offset + 4
    content = bytearray(path.read_bytes())
    content[at : at + 8] = struct.pack("<Q", 2**64 - 1)
    path.write_bytes(content)
    np.testing.assert_array_equal(open_dataset(path), frame)
    refuses(path, level=1)


@pytest.mark.parametrize("shape", ["[]", '["1", 1]', "[1.0, 1]"])
def test_invalid_shapes_are_ignored(tmp_path, shape):
    frame = counting_frames((1, 1), "u1")
    text = f'{{"shape": {shape}}}'
    path = write(tmp_path / "a.tif", frame, description=text, metadata=None)
    np.testing.assert_array_equal(open_dataset(path), frame)


def test_pages_that_share_a_list_of_strips_are_bounded(tmp_path):
    """Each page takes few bytes of the file, but many in memory."""
    pages, strips = 60, 1000
    tags = {256: (4, 1), 257: (4, strips), 258: (3, 8), 259: (3, 8), 262: (3, 1), 277: (3, 1)}
    tags |= {273: (4, {strips: 8}), 278: (4, 1), 279: (4, {strips: 8})}
    size, at = len(directory(tags, 0)), 8 + 4 * strips
    ends = [at + size * k for k in range(1, pages)] + [0]
    links = (directory(tags, 0, following=end) for end in ends)
    path = tmp_path / "a.tif"
    content = head(at) + struct.pack("<I", 8) * strips + b"".join(links)
    refuses(path, "too many strips or tiles", CorruptFileError, content=content)


def test_a_description_that_ends_with_the_file(tmp_path):
    text = b"text " * 1000 + b"\0"
    path = tiny(tmp_path / "a.tif", bytes(6), (2, 3), tag_270=(2, *text))
    assert path.read_bytes().endswith(text)
    found = describe(path).metadata["tiff"]["tags"]["ImageDescription"]
    assert found == tifffile.tiffcomment(path).strip()


@pytest.mark.parametrize(
    ("end", "is_ome"),
    [
        *((b"OME>" + end, True) for end in (b"", b"\0 \t\r\n", b" " * 100, b" " * 5000)),
        *((b"OME>" + end, False) for end in (b"_", b"/" + b" " * 100)),
    ],
)
def test_ends_of_ome_xml(tmp_path, end, is_ome):
    path = tiny(tmp_path / "a.tif", bytes(6), (2, 3), tag_270=(2, *b"<OME></" + end))
    assert is_ome_tiff(str(path), path.read_bytes()[:64]) == is_ome


@pytest.mark.parametrize("tag", [256, 257, 259, 262, 277, 284, 317])
def test_layout_entries_of_several_numbers_raise(tmp_path, tag):
    path = tiny(tmp_path / "a.tif", bytes(6), (2, 3), **{f"tag_{tag}": (3, 1, 1)})
    refuses(path, rf"several numbers.*one in tag {tag}; found \(1, 1\)", CorruptFileError)


def test_entries_of_the_layout_that_are_too_long_raise(tmp_path):
    text = b"1" * (1 << 20)
    for more in (b"", b"\0"):
        entry = (42113, 7, len(text + more), text + more, True)
        path = write(tmp_path / "a.tif", np.zeros((2, 3), "u1"), extratags=[entry])
        if not more:
            assert describe(path).shape == (2, 3)
    refuses(path, "an entry has too many values, .*1048576 bytes; found 1048577", CorruptFileError)


@pytest.mark.parametrize("codec", ["jpeg2000", "jpegxl", "lerc", "png"])
def test_bilevel_images_of_codecs_are_true_or_false(tmp_path, codec):
    """Bytes of booleans are 0 or 1, whatever a codec decodes white to."""
    white = np.random.default_rng(0).integers(0, 2, (16, 24)).astype(bool)
    path = tmp_path / "a.tif"
    lossless = {"reversible": True, "level": 0} if codec == "jpeg2000" else {"lossless": True}
    options = {"compressionargs": lossless} if codec.startswith("jpeg") else {}
    tifffile.imwrite(path, white * np.uint8(255), compression=codec, metadata=None, **options)
    with tifffile.TiffFile(path, mode="r+b") as file:
        file.pages[0].tags["BitsPerSample"].overwrite(1)
    arr = open_dataset(path).compute()
    assert arr.dtype == bool
    np.testing.assert_array_equal(arr.view("u1"), white.view("u1"))


@pytest.mark.parametrize(
    ("text", "bits", "form", "expected"),
    [
        ("7", 8, 1, 7),
        ("-2", 16, 2, -2),
        ("-9999,5", 32, 3, -9999.5),
        ("300", 8, 1, 0),
        ("1e99", 32, 3, 0),
        ("none", 8, 1, 0),
    ],
)
def test_pixels_that_were_never_written_have_the_value_of_gdal(
    tmp_path, text, bits, form, expected
):
    """Values that are no numbers of the type are ignored."""
    never = {"tag_273": (4, 0), "tag_279": (4, 0)}
    told = {"tag_339": (3, form), "tag_42113": (2, *text.encode(), 0)}
    path = tiny(tmp_path / "a.tif", b"", (3, 4), bits=bits, **never, **told)
    assert (open_dataset(path).compute() == expected).all()


def test_values_of_vendors_that_are_damaged(tmp_path, caplog, capfd):
    """Nothing is logged while they are read here."""
    path = tmp_path / "a.tif"
    tag = (51123, 2, 8, b"{damaged", True)
    tifffile.imwrite(path, np.zeros((4, 5), "u2"), metadata=None, extratags=[tag])
    assert "MicroManagerMetadata" in describe(path).metadata["tiff"]["tags"]
    assert not caplog.records
    assert capfd.readouterr().err == ""
    logging.getLogger("tifffile").error("of others")
    assert [record.message for record in caplog.records] == ["of others"]


def test_labels_of_imagej_without_their_reader(tmp_path, monkeypatch):
    """tifffile may rename its function; the tag is then shown as bytes."""
    path = tmp_path / "a.tif"
    frames = counting_frames((3, 8, 9), "u2")
    told = {"axes": "CYX", "Labels": ["a", "b", "c"]}
    tifffile.imwrite(path, frames, imagej=True, metadata=told)
    assert describe(path).axes[0].labels == ("a", "b", "c")
    monkeypatch.delattr("tifffile.tifffile.imagej_metadata")
    desc = describe(path)
    assert desc.axes[0].labels == ()
    stored = bytes.fromhex(desc.metadata["tiff"]["tags"]["IJMetadata"])
    assert stored[:4] in {b"IJIJ", b"JIJI"}
