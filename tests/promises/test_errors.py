"""What is wrong is said: a typed error names the file, what was expected and what was found."""

import os
import pickle
import re
import shutil
import subprocess
import sys
import warnings

import dask
import numpy as np
import pytest
from dask.callbacks import Callback
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dask_tiled
from dask_tiled import (
    CorruptFileError,
    DatasetError,
    StaleFileError,
    TilingError,
    TruncatedFileError,
    UnknownFormatError,
    describe,
    open_dataset,
)
from dask_tiled.testing import (
    counting_frames,
    write_dm,
    write_empad,
    write_mib,
    write_npy,
    write_raw,
    write_seq,
)

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((6, 4, 8), "uint16", bits=12)
RAW = {"format": "raw", "dtype": "uint16", "sig_shape": (4, 8)}
WAYS = {"detected": {}, "npy": {"format": "npy"}, "mib": {"format": "mib"}, "raw": RAW}
EVERY_WAY = pytest.mark.parametrize("options", WAYS.values(), ids=list(WAYS))


def assert_names(error, path):
    """Check that an error names the file, what was expected and what was found."""
    assert error.path == str(path)
    assert str(path) in str(error)
    assert error.expected is not None
    assert error.found is not None
    assert f"expected {error.expected}" in str(error)
    assert f"found {error.found}" in str(error)


def write_small(path, kind="U16", **options):
    """Write six small frames without a .hdr file."""
    return write_mib(path, FRAMES, kind=kind, hdr=False, **options)


# What is no file of frames at all


@EVERY_WAY
def test_directory(tmp_path, options):
    """A directory is none, whichever format is asked for."""
    with pytest.raises(DatasetError, match="directory") as caught:
        open_dataset(tmp_path, **options)
    assert_names(caught.value, tmp_path)


@EVERY_WAY
def test_empty_file(tmp_path, options):
    """An empty file lacks at least one frame."""
    path = tmp_path / "scan.mib"
    path.touch()
    with pytest.raises(TruncatedFileError, match="empty") as caught:
        open_dataset(path, **options)
    assert_names(caught.value, path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("name", ["scan.mib", "scan1.mib", "scan.hdr", "scan.npy", "scan"])
@EVERY_WAY
def test_fifo(tmp_path, options, name):
    """Nobody waits for a pipe into which nothing is written."""
    path = tmp_path / name
    os.mkfifo(path)
    with pytest.raises(DatasetError, match="pipe") as caught:
        open_dataset(path, **options)
    assert_names(caught.value, path)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.touch()])
def test_hdr_that_is_no_file_of_text_is_left_alone(tmp_path, make):
    """A .mib file opens, whatever is called like its .hdr file."""
    path = write_small(tmp_path / "scan.mib")
    make(tmp_path / "scan.hdr")
    np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES)


@pytest.mark.timeout(10)
def test_nobody_waits_for_pipes_beside_a_file(tmp_path):
    """What is looked for beside a file, or listed after it, may be anything."""
    raw = write_empad(tmp_path / "scan.xml", np.zeros((2, 3, 128, 128), "f4"))
    raw.rename(tmp_path / "other.xml")
    os.mkfifo(tmp_path / "a.xml")
    assert open_dataset(tmp_path / "scan_x3_y2.raw").shape == (2, 3, 128, 128)
    seq, picture = tmp_path / "scan.seq", tmp_path / "scan.dm4"
    write_seq(seq, FRAMES)
    os.mkfifo(tmp_path / "scan.seq.dark.mrc")
    with pytest.raises(DatasetError, match="pipe"):
        open_dataset(seq, corrections="dataset")
    write_dm(picture, FRAMES[0])
    with pytest.raises(DatasetError, match="pipe"):
        open_dataset([picture, tmp_path / "a.xml"])


@EVERY_WAY
def test_missing_file(tmp_path, options):
    """A file that is not there raises what Python raises, with its name."""
    path = tmp_path / "scan.mib"
    with pytest.raises(FileNotFoundError, match=re.escape(str(path))):
        open_dataset(path, **options)


def test_missing_file_in_a_list(tmp_path):
    """So for a file in a list."""
    present = write_small(tmp_path / "a.mib")
    absent = tmp_path / "b.mib"
    for options in (WAYS["detected"], WAYS["raw"]):
        with pytest.raises(FileNotFoundError, match=re.escape(str(absent))):
            open_dataset([present, absent], **options)


def test_no_files():
    """An empty list opens nothing."""
    with pytest.raises(DatasetError, match="no files"):
        open_dataset([])


@pytest.mark.parametrize(
    "content",
    [b"\0", b"hello", b"MQ2,", b"\x93NUMP", bytes(range(256)) * 20],
    ids=["nul", "text", "nearly mib", "nearly npy", "bytes"],
)
def test_unknown_format_says_what_was_tried_and_why_not(tmp_path, content):
    """Every format is named, with its reason to say no."""
    path = tmp_path / "file.unknown"
    path.write_bytes(content)
    with pytest.raises(UnknownFormatError) as caught:
        open_dataset(path)
    assert caught.value.path == str(path)
    for name, format in dask_tiled.formats().items():
        assert f"{name}: {format.sniff(str(path), content[:4096])}" in str(caught.value)


def test_content_is_looked_at_before_the_suffix(tmp_path):
    """A file with another format's suffix opens as what it is."""
    path = write_npy(tmp_path / "array.mib", FRAMES)
    assert open_dataset(path).description.format == "npy"
    path = write_small(tmp_path / "scan.npy")
    assert open_dataset(path).description.format == "mib"


@pytest.mark.parametrize("suffix", [".mib", ".npy", ".hdr"])
def test_suffix_of_a_format_without_its_content(tmp_path, suffix):
    """The suffix decides where the content does not, and what is wrong with the content is said."""
    path = tmp_path / f"scan{suffix}"
    path.write_bytes(b"something else" * 100)
    with pytest.raises(DatasetError) as caught:
        open_dataset(path)
    assert str(tmp_path / "scan") in str(caught.value)


# Arguments that do not suit


@pytest.mark.parametrize("path", [None, 3, b"scan.mib", {"scan.mib"}, {"scan.mib": 1}, "", "a\0b"])
@pytest.mark.parametrize("listed", [False, True])
def test_what_is_no_path(path, listed):
    """A path is text, or says what it is as text; a list of paths has an order."""
    with pytest.raises(DatasetError, match="no path") as caught:
        open_dataset([path] if listed else path)
    assert caught.value.found == repr(path)


def test_open_file_is_no_path(tmp_path):
    """Its lines are no paths either."""
    path = write_small(tmp_path / "scan.mib")
    with path.open("rb") as file, pytest.raises(DatasetError, match="no path"):
        open_dataset(file)


@pytest.mark.parametrize("address", ["s3://bucket/scan.mib", "https://example.org/scan.mib"])
def test_address_is_no_path(address):
    """It is not taken for a folder that is not there."""
    with pytest.raises(DatasetError, match="only files") as caught:
        open_dataset(address)
    assert caught.value.found == address


@pytest.mark.parametrize("format", [1, [1], "", {"mib"}], ids=repr)
def test_what_is_no_name_of_a_format(tmp_path, format):
    """Nothing else is, either."""
    with pytest.raises(UnknownFormatError, match="mib"):
        open_dataset(write_small(tmp_path / "scan.mib"), format)


def test_unknown_format_name(tmp_path):
    """The error names the formats that there are."""
    with pytest.raises(UnknownFormatError, match="mib") as caught:
        open_dataset(write_small(tmp_path / "scan.mib"), "mbi")
    assert caught.value.found == "mbi"


def test_unknown_option(tmp_path):
    """The error names the option, the file, and the options that there are."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    with pytest.raises(DatasetError, match="'header'") as caught:
        open_dataset(path, header=4, **RAW)
    assert caught.value.path == str(path)
    assert "frame_header" in str(caught.value)
    with pytest.raises(DatasetError, match="no option 'frame_header'"):
        open_dataset(write_small(tmp_path / "scan.mib"), frame_header=4)


def test_unknown_backend(tmp_path):
    """The error names the backends that there are."""
    with pytest.raises(DatasetError, match="mmap") as caught:
        open_dataset(write_small(tmp_path / "scan.mib"), io="telepathy")
    assert caught.value.found == "telepathy"


@pytest.mark.parametrize("name", ["nav_shape", "sig_shape"])
@pytest.mark.parametrize(
    "shape",
    [
        *[(0,), (-1,), (2, 0), 0, "ab", ("a",), (1.5, 2), 2.5, (None,), True, (True, 6)],
        *[{2, 3}, np.array([1.5]), np.array([[2, 3]]), np.True_],
    ],
    ids=repr,
)
def test_wrong_shapes(tmp_path, name, shape):
    """A shape is made of positive whole numbers."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    with pytest.raises(DatasetError, match=name):
        open_dataset(path, **{**RAW, name: shape})


@pytest.mark.parametrize("shape", [6, (2, 3), [2, 3], np.array([2, 3]), np.array(6), np.uint8(6)])
def test_whole_numbers_of_any_kind_are_a_shape(tmp_path, shape):
    """As wherever numpy takes a shape."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    desc = describe(path, **RAW, nav_shape=shape)
    assert desc.nav_shape == tuple(np.atleast_1d(shape))
    assert all(type(n) is int for n in desc.shape)


@pytest.mark.parametrize("sig_dims", [-1, True, 1.0, "2", None])
def test_wrong_numbers_of_signal_axes(tmp_path, sig_dims):
    """A number of axes is a whole number."""
    path = write_npy(tmp_path / "scan.npy", FRAMES)
    assert describe(path, sig_dims=np.int64(1)).nav_ndim == 2
    with pytest.raises(DatasetError, match="sig_dims") as caught:
        open_dataset(path, sig_dims=sig_dims)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("shape", [(7,), (2, 4), (1 << 70,), (1 << 40, 1 << 40)])
@pytest.mark.parametrize("format", ["raw", "mib", "npy"])
def test_nav_shape_of_more_frames_than_there_are(tmp_path, format, shape):
    """Refused where frames must not be missing, or where no array could be so large."""
    path = {
        "raw": lambda: write_raw(tmp_path / "scan.raw", FRAMES),
        "mib": lambda: write_small(tmp_path / "scan.mib"),
        "npy": lambda: write_npy(tmp_path / "scan.npy", FRAMES),
    }[format]()
    options = RAW if format == "raw" else {}
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, nav_shape=shape, missing="raise", **options)
    assert_names(caught.value, path)
    if shape[0] < 8:
        assert "6 frames" in str(caught.value)
        assert isinstance(caught.value, TruncatedFileError)
        assert describe(path, nav_shape=shape, **options).missing.tolist() == [6, 7][: len(shape)]


def test_more_axes_than_an_array_can_have(tmp_path):
    """numpy stops at 64 axes; so does a nav_shape."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    with pytest.raises(DatasetError):
        open_dataset(path, nav_shape=(1,) * 70, **RAW)


def test_sig_shape_that_a_header_contradicts(tmp_path):
    """Where the file knows the shape of a frame, no other is believed."""
    path = write_small(tmp_path / "scan.mib")
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, sig_shape=(8, 4))
    assert_names(caught.value, path)


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": None},
        {"sig_shape": None},
        {"sig_shape": ()},
        {"dtype": "nonsense"},
        {"dtype": object},
        {"dtype": "V0"},
        {"dtype": ("uint16", (2,))},
        {"file_header": -1},
        {"frame_header": 1.5},
        {"frame_footer": "3"},
        {"file_header": True},
    ],
    ids=lambda options: "-".join(f"{k}={v}" for k, v in options.items()),
)
def test_wrong_raw_options(tmp_path, options):
    """What a raw file is said to be has to be possible."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, **{**RAW, **options})
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    "chunks",
    [(3,), (2, 2, 2, 2), ((3, 4), 4, 8), ((-1, 7), 4, 8), 0, (0, 4, 8), "much", (1.5, 4, 8)],
    ids=str,
)
def test_wrong_chunks(tmp_path, chunks):
    """Chunks that do not add up to the array are a TilingError."""
    path = write_small(tmp_path / "scan.mib")
    with pytest.raises(TilingError):
        open_dataset(path, chunks=chunks)


def test_empty_chunks_are_what_they_are_in_dask(tmp_path):
    """dask allows chunks of no frames; they hold none."""
    path = write_small(tmp_path / "scan.mib")
    arr = open_dataset(path, chunks=((0, 2, 0, 4, 0), 4, (8, 0)))
    np.testing.assert_array_equal(arr.compute(), FRAMES)


# Files that end too early


@pytest.mark.parametrize("missing", [1, 63, 64, 65, 383 + 64])
def test_truncated_last_frame_of_a_mib(tmp_path, missing):
    """Nothing is read beyond the end; whole frames open with a nav_shape that they fill."""
    path = write_small(tmp_path / "scan.mib")
    os.truncate(path, path.stat().st_size - missing)
    with pytest.raises(TruncatedFileError, match="nav_shape") as caught:
        open_dataset(path)
    assert_names(caught.value, path)
    arr = open_dataset(path, nav_shape=(5,))
    np.testing.assert_array_equal(arr.compute(), FRAMES[:5])
    arr = open_dataset(path, nav_shape=(6,), fill_value=7)
    np.testing.assert_array_equal(arr.compute(), [*FRAMES[:5], np.full_like(FRAMES[0], 7)])
    assert arr.description.missing.tolist() == [5]
    with pytest.raises(TruncatedFileError):
        open_dataset(path, nav_shape=(6,), missing="raise")


@pytest.mark.parametrize("missing", [1, 7, 8, 64, 71])
def test_truncated_last_frame_of_a_raw_file(tmp_path, missing):
    """So for raw files, gaps included."""
    gaps = {"file_header": 3, "frame_header": 5, "frame_footer": 7}
    path = write_raw(tmp_path / "scan.raw", FRAMES, **gaps)
    os.truncate(path, path.stat().st_size - missing)
    with pytest.raises(TruncatedFileError, match="nav_shape") as caught:
        open_dataset(path, **gaps, **RAW)
    assert_names(caught.value, path)
    arr = open_dataset(path, nav_shape=(5,), **gaps, **RAW)
    np.testing.assert_array_equal(arr.compute(), FRAMES[:5])


def test_truncated_mib_opens_with_a_nav_shape_whatever_its_hdr_says(tmp_path):
    """The user's word counts more than the .hdr file's."""
    path = write_mib(tmp_path / "scan.mib", FRAMES)
    os.truncate(path, path.stat().st_size - 100)
    for target in (path, path.with_suffix(".hdr")):
        with pytest.raises(TruncatedFileError):
            open_dataset(target)
        np.testing.assert_array_equal(open_dataset(target, nav_shape=5).compute(), FRAMES[:5])


def test_truncated_file_in_the_middle_of_a_list(tmp_path):
    """Frames in the middle cannot be left out, whatever nav_shape says."""
    paths = [write_raw(tmp_path / f"{i}.raw", FRAMES) for i in range(3)]
    os.truncate(paths[1], paths[1].stat().st_size - 1)
    for nav_shape in (None, (5,), (17,)):
        with pytest.raises(TruncatedFileError) as caught:
            open_dataset(paths, nav_shape=nav_shape, **RAW)
        assert_names(caught.value, paths[1])
        assert caught.value.hint is None


@pytest.mark.parametrize(
    ("kind", "depth", "quad"), [("U16", 12, False), ("R64", 12, False), ("R64", 24, True)]
)
@pytest.mark.parametrize("hdr", [False, True])
def test_mib_truncated_anywhere(tmp_path, kind, depth, quad, hdr):
    """It opens as fewer whole frames, or not at all: never wrong pixels, nor short of a scan."""
    frames = counting_frames((3, 4, 16), "uint16", bits=12)
    options = {"kind": kind, "depth": depth, "quad": quad, "hdr": hdr}
    path = write_mib(tmp_path / "scan.mib", frames, **options)
    whole = path.read_bytes()
    opened = set()
    lengths = {*np.linspace(0, len(whole) - 1, 40, dtype=int).tolist()}
    for length in sorted(lengths | {len(whole) // 3, 2 * len(whole) // 3}):
        path.write_bytes(whole[:length])
        try:
            pixels = open_dataset(path).compute()
        except (TruncatedFileError, CorruptFileError) as error:
            assert error.path == str(path)  # noqa: PT017 - an error is one of two right outcomes
        else:
            opened.add(length)
            np.testing.assert_array_equal(pixels, frames[: len(pixels)])
    assert opened == (set() if hdr else {len(whole) // 3, 2 * len(whole) // 3})


# Headers of .mib files


def with_field(head, at, value):
    """Put another value into the text of a frame header, and keep its length."""
    fields = head.rstrip(b"\0").split(b",")
    fields[at] = value
    return b",".join(fields).ljust(len(head), b"\0")[: len(head)]


NUMBERS = [b"abc", b"", b" ", b"-1", b"0", b"9" * 25, b"1e3", b"0x10", b"3.5", b"\xb2", b"1_0"]
WRONG_FIELDS = [
    pytest.param(field, value, id=f"{field}-{value!r}")
    for field in (1, 2, 3, 4, 5)
    for value in NUMBERS
    if field != 1 or not value.isdigit()  # a sequence may begin anywhere
]


@pytest.mark.parametrize("kind", ["U16", "R64"])
@pytest.mark.parametrize(("field", "value"), WRONG_FIELDS)
def test_header_number_that_cannot_be(tmp_path, kind, field, value):
    """Fields that must be whole numbers, and sizes that must be positive and fit the file."""
    path = write_small(tmp_path / "scan.mib", kind)
    data = path.read_bytes()
    path.write_bytes(with_field(data[:384], field, value) + data[384:])
    with pytest.raises(CorruptFileError, match=f"field {field}") as caught:
        open_dataset(path)
    assert_names(caught.value, path)
    assert "byte 0" in caught.value.where


@pytest.mark.parametrize("kind", ["U16", "R64"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (2, b"00385"),
        (2, b"00383"),
        (2, b"00010"),
        (2, b"1048576"),
        (4, b"0007"),
        (4, b"0016"),
        (4, b"1048576"),
        (5, b"0003"),
        (5, b"0005"),
        (5, b"1048576"),
    ],
)
def test_header_number_that_contradicts_the_file(tmp_path, kind, field, value):
    """Sizes that are possible, but not those of this file, show in its length or its last frame."""
    path = write_small(tmp_path / "scan.mib", kind)
    data = path.read_bytes()
    path.write_bytes(with_field(data[:384], field, value) + data[384:])
    with pytest.raises((CorruptFileError, TruncatedFileError)) as caught:
        open_dataset(path)
    assert_names(caught.value, path)


@pytest.mark.parametrize("value", [b"U12", b"R32", b"", b"I16", b"u16", b"\xff\xff"], ids=repr)
def test_unknown_pixel_type(tmp_path, value):
    """The error names the pixel types that there are."""
    path = write_small(tmp_path / "scan.mib")
    data = path.read_bytes()
    path.write_bytes(with_field(data[:384], 6, value) + data[384:])
    with pytest.raises(CorruptFileError) as caught:
        open_dataset(path)
    assert_names(caught.value, path)


@pytest.mark.parametrize("value", [b"0", b"2", b"13", b"-12", b"twelve", b"9" * 30], ids=repr)
def test_unknown_counter_depth(tmp_path, value):
    """Raw data of a depth that counters do not have cannot be unpacked."""
    path = write_small(tmp_path / "scan.mib", "R64")
    data = path.read_bytes()
    path.write_bytes(with_field(data[:384], -2, value) + data[384:])
    with pytest.raises(CorruptFileError, match="depth") as caught:
        open_dataset(path)
    assert_names(caught.value, path)


@pytest.mark.parametrize("chips", [b"02", b"03", b"05", b"16"])
def test_number_of_raw_chips_that_cannot_be_arranged(tmp_path, chips):
    """Raw data of other assemblies than 1x1 and 2x2 is refused."""
    path = write_small(tmp_path / "scan.mib", "R64")
    data = path.read_bytes()
    record = len(data) // 6
    path.write_bytes(
        b"".join(
            with_field(data[at : at + 384], 3, chips) + data[at + 384 : at + record]
            for at in range(0, len(data), record)
        )
    )
    with pytest.raises(DatasetError) as caught:
        open_dataset(path)
    assert_names(caught.value, path)


def test_last_frame_of_another_kind(tmp_path):
    """Two acquisitions in one file are not one array."""
    path = write_small(tmp_path / "scan.mib")
    other = write_mib(tmp_path / "other.mib", FRAMES.reshape(6, 8, 4), hdr=False)
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(CorruptFileError, match="differ") as caught:
        open_dataset(path)
    assert_names(caught.value, path)


def opens_or_says_why(path, **options):
    """Open and compute: the only error allowed is a DatasetError that names a file."""
    try:
        arr = open_dataset(path, **options)
        assert arr.nbytes < 1 << 24
        arr.compute()
    except DatasetError as error:
        says = error
    else:
        return
    assert says.path is not None
    assert len(str(says)) < 5000


MIB_KINDS = {
    "U08": {"kind": "U08"},
    "U16": {"kind": "U16"},
    "R1": {"kind": "R64", "depth": 1},
    "R12-quad": {"kind": "R64", "depth": 12, "quad": True},
    "R24": {"kind": "R64", "depth": 24},
}
# Mostly where the numbers are, and mostly digits: other bytes are found out at once.
PLACES = st.integers(0, 45) | st.integers(0, 1535)
BYTES = st.sampled_from(b"0123456789,, R\0") | st.integers(0, 255)


@pytest.mark.parametrize("kind", MIB_KINDS)
@pytest.mark.parametrize("record", [0, -1])
@settings(max_examples=settings.default.max_examples * 2)
@given(changes=st.lists(st.tuples(PLACES, BYTES), min_size=1, max_size=8))
def test_damaged_mib_headers(tmp_path_factory, kind, record, changes):
    """Whatever a header says, the file opens or a DatasetError tells why it does not."""
    frames = counting_frames((2, 2, 128), "uint8", bits=1)
    path = tmp_path_factory.mktemp("damaged") / "scan.mib"
    write_mib(path, frames, **MIB_KINDS[kind])
    data = bytearray(path.read_bytes())
    start = 0 if record == 0 else len(data) // 2
    for at, byte in changes:
        data[min(start + at, len(data) - 1)] = byte
    path.write_bytes(data)
    opens_or_says_why(path, format="mib")


KEYS = ["ScanX", "ScanY", "Frames in Acquisition (Number)", "Frames per Trigger (Number)"]


@given(
    values=st.dictionaries(
        st.sampled_from(KEYS),
        st.integers(-2, 9).map(str)
        | st.integers(0, 10**30).map(str)
        | st.text(st.characters(max_codepoint=255), max_size=6),
    ),
    changes=st.lists(st.tuples(st.integers(4, 2047), st.integers(0, 255)), max_size=8),
)
@example(values={KEYS[2]: "9" * 5000}, changes=[])
@example(values={KEYS[3]: "9" * 5000}, changes=[])
@example(values={KEYS[0]: "9" * 4000, KEYS[1]: "9" * 4000}, changes=[])
@example(values={KEYS[0]: "0", KEYS[1]: "0", KEYS[2]: "0", KEYS[3]: "0"}, changes=[])
@example(values={KEYS[0]: "\u00b2", KEYS[1]: "\u00b2"}, changes=[])
def test_damaged_hdr_files(tmp_path_factory, values, changes):
    """So for the numbers and lines of a .hdr file."""
    path = tmp_path_factory.mktemp("damaged") / "scan.mib"
    write_mib(path, FRAMES)
    hdr = path.with_suffix(".hdr")
    data = bytearray(hdr.read_bytes())
    for at, byte in changes:
        data[at] = byte
    lines = [
        line for line in data.split(b"\r\n") if not line.startswith(tuple(map(str.encode, values)))
    ]
    lines[1:1] = [f"{key}:\t{value}".encode("latin1") for key, value in values.items()]
    hdr.write_bytes(b"\r\n".join(lines))
    opens_or_says_why(path)
    opens_or_says_why(hdr, nav_shape=(2, 3))


# Headers of .npy files


def write_npy_header(path, text, content=b"\0" * 96, version=1):
    """Write an npy file with any text for its header."""
    head = text.encode("latin1") if isinstance(text, str) else text
    length = len(head).to_bytes(2 if version == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + head + content)
    return path


def npy_text(descr="'<f8'", shape="(3, 4)", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


HUGE = "9" * 4000
HOSTILE_NPY = {
    "no text": "",
    "no dict": "[1, 2]",
    "no descr": "{'fortran_order': False, 'shape': (3, 4)}",
    "no shape": "{'descr': '<f8', 'fortran_order': False}",
    "no literal": npy_text(shape="tuple([3, 4])"),
    "code": npy_text(descr="__import__('os').getcwd()"),
    "unclosed": "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4",
    "nul": npy_text() + "\0",
    "only nul": "\0" * 100,
    "parentheses": "(" * 60_000,
    "brackets": "[" * 90 + "]" * 90,
    "minus signs": "-" * 60_000 + "1",
    "sums": "1" + "+1" * 30_000,
    "attributes": "a" + ".a" * 30_000,
    "nested descr": npy_text(descr="[('a'," * 8000 + "'<f8'" + ")]" * 8000),
    "digits": npy_text(shape=f"({'9' * 5000},)"),
    "huge axis": npy_text(shape=f"({1 << 62}, 4)"),
    "huge axes": npy_text(shape=f"({HUGE}, {HUGE}, {HUGE})"),
    "huge axis of none": npy_text(shape=f"(0, {HUGE})"),
    "overflowing shape": npy_text(shape=f"({1 << 32}, {1 << 32})"),
    "100 axes": npy_text(shape=f"({'1, ' * 100})"),
    "negative axis": npy_text(shape="(-3, -4)"),
    "fractional axis": npy_text(shape="(3.0, 4)"),
    "bool axis": npy_text(shape="(True, 4)"),
    "text for shape": npy_text(shape="'34'"),
    "list for shape": npy_text(shape="[3, 4]"),
    "number for shape": npy_text(shape="12"),
    "number for order": npy_text(order="1"),
    "text for order": npy_text(order="'False'"),
    "unknown dtype": npy_text(descr="'nonsense'"),
    "no dtype": npy_text(descr="''"),
    "None for dtype": npy_text(descr="None"),
    "number for dtype": npy_text(descr="5"),
    "bytes for dtype": npy_text(descr="b'<f8'"),
    "nul in dtype": npy_text(descr="'<f8\\0'"),
    "surrogate in dtype": npy_text(descr="'\\ud800'"),
    "huge dtype": npy_text(descr="'V99999999999'"),
    "longest text": npy_text(descr="'<U536870911'"),
    "unknown unit": npy_text(descr="'<M8[parsec]'"),
    "objects": npy_text(descr="'|O'"),
    "objects in a record": npy_text(descr="[('a', '<f8'), ('b', '|O')]"),
    "field twice": npy_text(descr="[('a', '<f8'), ('a', '<f8')]"),
    "field of nothing": npy_text(descr="[('a',)]"),
    "field of huge shape": npy_text(descr="[('a', '<f8', (99999999999,))]"),
    "no fields": npy_text(descr="[]"),
    "empty tuple for dtype": npy_text(descr="()"),
    "empty elements": npy_text(descr="'V0'"),
    "truncated": npy_text(shape="(3, 5)"),
}


@pytest.mark.parametrize("text", HOSTILE_NPY.values(), ids=list(HOSTILE_NPY))
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_hostile_npy_header(tmp_path, text, version):
    """No header makes anything but a DatasetError that names the file."""
    path = write_npy_header(tmp_path / "array.npy", text, version=version)
    with pytest.raises(DatasetError) as caught:
        open_dataset(path)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x00\x00\x10\x00{}",
        b"\x93NUMPY\x04\x00\x10\x00\x00\x00{}",
        b"\x93NUMPY\xff\xff\xff\xff\xff\xff",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}",
        b"\x93NUMPY\x03\x00\x08\x00\x00\x00{'\xff\xfe': 1}",
    ],
)
def test_npy_file_that_is_hardly_begun(tmp_path, head):
    """Unknown versions, and headers that are longer than the file."""
    path = tmp_path / "array.npy"
    path.write_bytes(head)
    with pytest.raises(CorruptFileError) as caught:
        open_dataset(path)
    assert caught.value.path == str(path)


@pytest.mark.parametrize("descr", ["('<f8', (2,))", "'(2,2)f4'", "'f4,f4'", "'(3)i2'"])
def test_npy_dtype_with_a_shape_of_its_own(tmp_path, descr):
    """An array in each element is read as numpy reads it, or refused, but never breaks a graph."""
    path = write_npy_header(tmp_path / "array.npy", npy_text(descr=descr, shape="(2,)"))
    try:
        found = open_dataset(path).compute()
    except DatasetError as error:
        assert error.path == str(path)  # noqa: PT017 - an error is one of two right outcomes
    else:
        np.testing.assert_array_equal(found, np.load(path))


ATOMS = st.sampled_from(
    ["3", "-1", "0", "1.5", "None", "True", "'a'", "()", "(1,)", "9" * 20, "b''"]
)
LITERALS = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=3).flatmap(
        lambda items: st.sampled_from([f"({', '.join(items)},)", f"[{', '.join(items)}]"])
    ),
    max_leaves=5,
)
DESCRS = LITERALS | st.from_regex(r"'[<>|=]?[a-zA-Z?][0-9]{0,3}'", fullmatch=True)


@settings(max_examples=settings.default.max_examples * 4)
@given(
    descr=DESCRS,
    shape=LITERALS | st.sampled_from(["(3, 4)", "(12,)"]),
    order=st.sampled_from(["True", "False"]) | LITERALS,
    changes=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 255)), max_size=3),
)
def test_damaged_npy_headers(tmp_path_factory, descr, shape, order, changes):
    """Whatever a header says, the file opens or a DatasetError tells why it does not."""
    text = bytearray(npy_text(descr, shape, order), "latin1")
    for at, byte in changes:
        text[at % len(text)] = byte
    path = tmp_path_factory.mktemp("damaged") / "array.npy"
    write_npy_header(path, bytes(text))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy and Python warn of some spellings
        opens_or_says_why(path, format="npy")


# Files that change between open and compute


def rewrite(path):
    """Write other content of the same length."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


def replace(path):
    """Put another file of the same length and time in its place."""
    before = path.stat()
    other = path.with_name("other")
    other.write_bytes(bytes(before.st_size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def grow(path):
    """Append frames."""
    with path.open("ab") as stream:
        stream.write(bytes(1000))


def into_directory(path):
    """Put a directory in its place."""
    path.unlink()
    path.mkdir()


def into_fifo(path):
    """Put a pipe in its place."""
    path.unlink()
    os.mkfifo(path)


def without_folder(path):
    """Remove the folder that it lies in."""
    shutil.rmtree(path.parent)


def folder_into_file(path):
    """Put a file in the place of its folder."""
    shutil.rmtree(path.parent)
    path.parent.write_bytes(b"no folder")


CHANGES = [
    rewrite,
    replace,
    grow,
    os.unlink,
    into_directory,
    into_fifo,
    without_folder,
    folder_into_file,
]


@pytest.fixture
def mib(tmp_path):
    (tmp_path / "folder").mkdir()
    return write_small(tmp_path / "folder" / "scan.mib")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_file_changed_between_open_and_compute(mib, change):
    """Two versions of a file never mix: the array of the old one says that it is gone."""
    arr = open_dataset(mib)
    part = arr[2:4, 1, ::3]
    arr.compute()
    change(mib)
    for stale in (arr, part, arr[0], arr[::-1], arr.sum()):
        with pytest.raises(StaleFileError) as caught:
            stale.compute()
        assert_names(caught.value, mib)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_file_changed_between_load_and_decode(mib, change):
    """Where the two tasks of a chunk are kept apart, the file is looked at in both."""
    arr = open_dataset(mib)
    changed = []

    def change_once(*_task):
        if not changed:
            changed.append(True)
            change(mib)

    with Callback(posttask=change_once), pytest.raises(StaleFileError) as caught:
        arr.compute(optimize_graph=False)
    assert_names(caught.value, mib)


def test_changed_member_of_a_series(tmp_path):
    """The error names the file that changed."""
    paths = [write_raw(tmp_path / f"{i}.raw", FRAMES) for i in range(3)]
    arr = open_dataset(paths, **RAW)
    rewrite(paths[1])
    with pytest.raises(StaleFileError) as caught:
        arr.compute()
    assert_names(caught.value, paths[1])


def test_reopening_a_changed_file_reads_its_new_content(mib):
    """The array is another one, with another name, and holds what is there now."""
    before = open_dataset(mib)
    write_mib(mib, FRAMES[::-1], hdr=False)
    os.utime(mib, ns=(0, mib.stat().st_mtime_ns + 1))
    after = open_dataset(mib)
    assert after.name != before.name
    np.testing.assert_array_equal(after.compute(), FRAMES[::-1])


TRUNCATE = """
import os, sys
import dask
import dask_tiled

dask.config.set(scheduler="synchronous")
for path, size in zip(sys.argv[1::2], sys.argv[2::2]):
    arr = dask_tiled.open_dataset(path)
    os.truncate(path, int(size))
    for part in (arr, arr[-1, -1], arr[..., 3]):
        try:
            part.compute()
        except dask_tiled.StaleFileError as error:
            assert error.path == path
            assert "bytes" in error.found
            print("stale")
"""


def test_file_truncated_between_open_and_compute(tmp_path):
    """The interpreter survives: a mapping past the end of a file would end it with SIGBUS."""
    frames = counting_frames((40, 16, 16), "uint16")
    jobs = []
    for i, keep in enumerate([0, 1, 4096, 17_000, 35_839]):
        path = write_mib(tmp_path / f"scan-{'abcde'[i]}.mib", frames, hdr=False)
        assert keep < path.stat().st_size
        jobs += [str(path), str(keep)]
    command = [sys.executable, "-c", TRUNCATE, *jobs]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["stale"] * 15


# Errors on their way


@pytest.mark.parametrize(
    "kind",
    [
        DatasetError,
        UnknownFormatError,
        CorruptFileError,
        TruncatedFileError,
        StaleFileError,
        TilingError,
    ],
)
def test_errors_pickle(kind):
    """Every error is a DatasetError and a ValueError, and keeps all it says through a pickle."""
    error = kind(
        "problem", path="a/b", where="byte 3", expected=(1, 2), found="nothing", hint="Look."
    )
    assert isinstance(error, DatasetError)
    assert isinstance(error, ValueError)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (
        str(copy) == str(error) == "a/b: problem, at byte 3; expected (1, 2); found nothing. Look."
    )
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("text", [npy_text(shape="(3, 5)"), npy_text(descr="'|O'"), "nonsense"])
def test_errors_of_files_pickle(tmp_path, text):
    """So do those that files cause, with whatever they quote."""
    path = write_npy_header(tmp_path / "array.npy", text)
    with pytest.raises(DatasetError) as caught:
        describe(path)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.path == str(path)


def test_error_crosses_the_boundary_of_a_process(mib):
    """What goes wrong in a worker process arrives as the same type, with the same words."""
    arr = open_dataset(mib)
    rewrite(mib)
    with pytest.raises(StaleFileError, match="has changed") as caught:
        dask.compute(arr, scheduler="processes", num_workers=1)
    assert str(mib) in str(caught.value)
    assert caught.value.path == str(mib)
