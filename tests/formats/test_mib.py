"""Merlin captures: real ones against independent readers, damage, and scans from times."""

import os
import re

import numpy as np
import pytest
from checks import refused, refuses
from libertem_reader import libertem_reads
from manifest import by_file, expected_of, manifest

import dask_tiled
from dask_tiled import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    describe,
    frame_facts,
    open_dataset,
)
from dask_tiled.formats.mib.descriptor import read_header
from dask_tiled.testing import counting_frames, write_mib, write_mib_series

pytestmark = pytest.mark.usefixtures("synchronous")

ROWS = [row for row in manifest("Merlin MIB") if row["file"].endswith(".mib")]
HDR_ROWS = [row for row in manifest("Merlin MIB") if row["file"].endswith(".hdr")]
PROCESSED_ROWS = [row for row in ROWS if row["reader"].startswith("rsciio")]
RAW_ROWS = [row for row in ROWS if row not in PROCESSED_ROWS]
FRAMES = counting_frames((6, 4, 8), "uint16", bits=12)


def expected_of_capture(row):
    """Return shape, dtype and sum of a row, which for raw data has other types or no shape."""
    if row not in RAW_ROWS:
        return expected_of(row)
    found = re.match(r"(\d+) frames|\((\d+),", row["shape_dtype"])
    side = 512 if "/Quad_" in row["file"] else 256
    return (int(found[1] or found[2]), side, side), np.dtype("u1"), int(row["sum"])


def without_leading_one(shape):
    return shape[1:] if len(shape) > 2 and shape[0] == 1 else shape


def frames_of(path):
    """Return the frames of a file on one axis."""
    pixels = dask_tiled.open_dataset(path).compute()
    return pixels.reshape(-1, *pixels.shape[-2:])


@by_file(HDR_ROWS, "row")
def test_hdr_file_opens_the_mib_file_beside_it(data, row):
    hdr = data / row["file"]
    by_hdr = dask_tiled.open_dataset(hdr)
    by_mib = dask_tiled.open_dataset(hdr.with_suffix(".mib"))
    assert [file.path for file in by_hdr.description.files] == [
        os.path.abspath(hdr.with_suffix(".mib"))
    ]
    assert by_hdr.shape == by_mib.shape
    assert by_hdr.description.layout == by_mib.description.layout


@pytest.mark.slow
@by_file(ROWS, "row")
def test_mib_file_equals_libertem_and_the_manifest(data, tmp_path, row):
    """Processed and raw captures of one chip or four equal LiberTEM's."""
    path = data / row["file"]
    arr = dask_tiled.open_dataset(path)
    shape, dtype, total = expected_of_capture(row)
    assert (arr.description.format, arr.dtype) == ("mib", dtype)
    assert without_leading_one(arr.shape) == without_leading_one(shape)
    nav_shape = shape[:1] if len(shape) == 3 else (1,)
    # Otherwise LiberTEM reads all files whose names start alike.
    alone = {"path": path, "nav_shape": nav_shape, "disable_glob": True}
    theirs = libertem_reads(tmp_path, {"mib": ("mib", alone)})["mib"]["frames"]
    pixels = arr.compute()
    assert pixels.sum(dtype=np.uint64) == total
    np.testing.assert_array_equal(pixels.reshape(theirs.shape), theirs)


@by_file(PROCESSED_ROWS, "row")
def test_processed_mib_file_equals_rosettasciio_upside_down(data, row):
    """RosettaSciIO reads the same pixels, with rows in reverse order."""
    reader = pytest.importorskip("rsciio.quantumdetector", reason="RosettaSciIO is not installed")
    path = data / row["file"]
    (signal,) = reader.file_reader(str(path), lazy=False)
    found = frames_of(path)
    theirs = np.asarray(signal["data"]).reshape(found.shape)
    np.testing.assert_array_equal(found, theirs[:, ::-1])


@by_file(RAW_ROWS, "row")
def test_raw_capture_has_the_orientation_of_the_processed_one(data, row):
    """Pixels that are always on coincide in both captures, but not if one is flipped.

    The captures are different exposures of the same, nearly dark detector, which share its defects.
    """
    path = data / row["file"]
    processed = frames_of(path.with_name(path.name.replace("RAW", ""))).all(axis=0)
    raw = frames_of(path).all(axis=0)
    together = (raw & processed).sum()
    assert together > 0.98 * max(raw.sum(), processed.sum())
    for axes in [(0,), (1,), (0, 1)]:  # in clusters, so that half coincide
        assert (np.flip(raw, axes) & processed).sum() < 0.6 * together


@pytest.mark.parametrize("quad", [False, True])
@pytest.mark.parametrize("kind", ["U08", "U16", "U32", "R64"])
def test_other_readers_read_the_written_headers(tmp_path, kind, quad):
    """Four chips of raw data are side by side in both headers, and LiberTEM stacks them."""
    mib = pytest.importorskip("libertem.io.dataset.mib", reason="LiberTEM is not installed")
    path = tmp_path / "a.mib"
    write_mib(path, np.zeros((2, 16, 16), "u1"), kind=kind, quad=quad, first_sequence=7)
    number, ours = read_header(str(path))
    theirs = mib.MIBHeaderReader(str(path)).fields
    assert (number, ours.nbytes) == (theirs["sequence_first_image"], theirs["header_size_bytes"])
    assert (ours.chips, ours.pixel_bytes) == (theirs["num_chips"], theirs["image_size_bytes"])
    assert ours.width * ours.height == np.prod(theirs["image_size"])
    assert theirs["num_images"] == 2
    assert (ours.depth or theirs["bits_per_pixel"]) == theirs["bits_per_pixel"]
    reader = pytest.importorskip("rsciio.quantumdetector", reason="RosettaSciIO is not installed")
    header = path.read_bytes()[: ours.nbytes]
    facts = frame_facts(path).compute()
    assert reader.parse_exposures(header) == [facts["exposure_time"][0] * 1000]
    assert reader.parse_timestamps(header) == [f"{facts['time_utc'][0]}Z"]


def test_settings_in_a_header(tmp_path):
    path = write_small(tmp_path / "scan.mib")
    data = path.read_bytes()
    for field, value in ((11, b"1"), (12, b"2"), (13, b"3")):
        data = with_field(data[:384], field, value) + data[384:]
    path.write_bytes(data)
    facts = frame_facts(path).compute()[["counter", "colour_mode", "gain_mode"]]
    assert facts.tolist() == [(1, 2, 3), *[(0, 0, 0)] * 5]


# Truncated files, .hdr files, and damaged headers


def write_small(path, kind="U16", **options):
    """Write six small frames without a .hdr file."""
    return write_mib(path, FRAMES, kind=kind, hdr=False, **options)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.touch()])
def test_hdr_without_text_is_ignored(tmp_path, make):
    """A .mib file opens even if its .hdr file is a pipe, a folder, or empty."""
    path = write_small(tmp_path / "scan.mib")
    make(tmp_path / "scan.hdr")
    np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES)


def with_field(head, at, value):
    """Replace a field in the text of a frame header, which keeps its length."""
    fields = head.rstrip(b"\0").split(b",")
    fields[at] = value
    return b",".join(fields).ljust(len(head), b"\0")[: len(head)]


NUMBERS = [b"abc", b"", b" ", b"-1", b"0", b"9" * 25, b"1e3", b"0x10", b"3.5", b"\xb2", b"1_0"]
WRONG_FIELDS = [(2, value) for value in NUMBERS]
WRONG_FIELDS += [(field, value) for field in (1, 3, 4, 5) for value in (b"abc", b"0")[:field]]


@pytest.mark.parametrize(("field", "value"), WRONG_FIELDS, ids=repr)
def test_invalid_number_in_a_header_raises(tmp_path, field, value):
    path = write_small(tmp_path / "scan.mib")
    data = path.read_bytes()
    path.write_bytes(with_field(data[:384], field, value) + data[384:])
    with refused(path, f"field {field}", CorruptFileError, detailed=True) as caught:
        open_dataset(path)
    assert "byte 0" in caught.value.where


@pytest.mark.parametrize(
    ("head", "match"), [(b"MQ2,000001", "MQ1"), (b"MQ1,000001,00384,01,0008", "field 4")]
)
def test_unknown_or_incomplete_header_raises(tmp_path, head, match):
    path = write_small(tmp_path / "scan.mib")
    path.write_bytes(head.ljust(384, b"\0") + path.read_bytes()[384:])
    refuses(path, match, CorruptFileError, detailed=True, format="mib")


OTHER_VALUES = [
    *[(2, value) for value in (b"00385", b"00383", b"1048576")],
    *[(4, value) for value in (b"0007", b"1048576")],
    *[(5, value) for value in (b"0003", b"0005")],
    *[(6, value) for value in (b"U12", b"", b"\xff\xff")],
    *[(3, value) for value in (b"02", b"16")],
    *[(-2, value) for value in (b"0", b"13", b"twelve", b"9" * 30)],
]


@pytest.mark.parametrize(("field", "value"), OTHER_VALUES, ids=repr)
def test_header_that_does_not_fit_the_file_raises(tmp_path, field, value):
    """Unknown types and depths raise as well, and raw data of assemblies but 1x1 and 2x2."""
    path = write_small(tmp_path / "scan.mib", "R64" if field in {-2, 3} else "U16")
    data = path.read_bytes()
    path.write_bytes(with_field(data[:384], field, value) + data[384:])
    kinds = DatasetError if field == 3 else (CorruptFileError, TruncatedFileError)
    with refused(path, kind=kinds, detailed=True) as caught:
        open_dataset(path)
    assert field > 0 or "depth" in str(caught.value)


def test_two_acquisitions_in_one_file_raise(tmp_path):
    path = write_small(tmp_path / "scan.mib")
    other = write_mib(tmp_path / "other.mib", FRAMES.reshape(6, 8, 4), hdr=False)
    refuses(
        path,
        "differ",
        CorruptFileError,
        detailed=True,
        content=path.read_bytes() + other.read_bytes(),
    )


# Scans inferred from the times of frames


def scan_times(rows, line):
    steps = np.full((rows, line), 102_000_000)
    steps[:, -1] += 20_820  # as in a capture with a trigger for each frame
    return (np.cumsum(steps) - steps.ravel()).tolist()


@pytest.mark.parametrize(("kind", "hdr"), [("U08", None), ("U16", (12, 1)), ("R64", (1, 12))])
def test_scan_from_the_times_of_frames(tmp_path, kind, hdr):
    """Lines are inferred without a .hdr file, or if it counts frames or triggers only."""
    frames = counting_frames((12, 8, 64), "u2", bits=6)
    path = tmp_path / "a.mib"
    options = {"kind": kind, "hdr": hdr is not None, "nav_shape": hdr}
    write_mib(path, frames, **options)
    assert describe(path).nav_shape == (12,)
    write_mib(path, frames, **options, times=scan_times(3, 4))
    desc = describe(path)
    assert desc.nav_shape == (3, 4)
    assert desc.dims == ("scan_y", "scan_x", "y", "x")
    assert "inferred" in desc.metadata["mib"]["nav_shape_from"]
    np.testing.assert_array_equal(open_dataset(path), frames.reshape(3, 4, 8, 64))
    assert describe(path, nav_shape=(12,)).nav_shape == (12,)
    assert describe(path, nav_shape=(6, 2)).nav_shape == (6, 2)


def test_scan_in_the_hdr_file_is_not_inferred(tmp_path):
    frames = counting_frames((12, 8, 8), "u2")
    path = write_mib(tmp_path / "a.mib", frames, nav_shape=(2, 6), times=scan_times(3, 4))
    desc = describe(path)
    assert desc.nav_shape == (2, 6)
    assert desc.metadata["mib"]["nav_shape_from"].endswith(".hdr")


def test_damaged_times_are_ignored(tmp_path):
    frames = counting_frames((12, 8, 8), "u2")
    path = write_mib(tmp_path / "a.mib", frames, hdr=False, times=scan_times(3, 4))
    content = path.read_bytes()
    for wrong in (b"MQ1A,\0\0\0\0", b"MQ1A,021-", b"MQ1A,2021-99-07", b"MQ1A,2021-05-07T16:51:1x"):
        at = content.rindex(b"MQ1A,")
        path.write_bytes(content[:at] + wrong + content[at + len(wrong) :])
        assert describe(path).nav_shape == (12,)


def test_scans_of_several_files_are_not_inferred(tmp_path):
    """The headers of all files would have to be read one by one."""
    frames = counting_frames((12, 8, 8), "u2")
    paths = write_mib_series(tmp_path / "a", frames, frames_per_file=6, hdr=False)
    assert describe(paths[0]).nav_shape == (12,)
