"""JEOL streams of X-ray events: frames, interrupted scans, and real files against RosettaSciIO."""

import os
import struct

import numpy as np
import pytest
from checks import axes_text, refused, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of

from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, describe, open_dataset
from dask_tiled.errors import MissingFramesWarning
from dask_tiled.files.file import File
from dask_tiled.formats import pts
from dask_tiled.testing import check_format, write_pts

RNG = np.random.default_rng(0)
COUNTS = np.zeros((4, 16, 16, 4096), "u2")
COUNTS[..., RNG.integers(0, 4096, 30)] = RNG.integers(0, 3, (4, 16, 16, 30))
COUNTS[2, 3:9] = COUNTS[:, 5, 7] = 0
SUM = COUNTS.sum(axis=0, dtype="u2")


@pytest.fixture
def path(tmp_path):
    return write_pts(tmp_path / "map.pts", COUNTS)


@pytest.mark.parametrize("frames", [slice(1, 3), slice(1, None, 2), slice(None, 0, -2)], ids=str)
def test_frames(path, frames):
    check_format(path, COUNTS[frames], frames=frames, cuts=3)
    arr = open_dataset(path, frames=frames)
    total = COUNTS[frames].sum(axis=(0, 1, 2))
    np.testing.assert_array_equal(arr.sum(axis=(0, 1, 2)).compute(), total)
    assert arr.axes[0].scale == pytest.approx(0.5e-3 * 256 * (frames.step or 1))


def test_counts_and_axes_equal_those_of_rsciio(path):
    """It returns one frame more than the header counts, as a scan may be interrupted."""
    jeol = pytest.importorskip("rsciio.jeol", reason="RosettaSciIO is not installed")
    arr = open_dataset(path)
    (theirs,) = jeol.file_reader(str(path))
    assert axes_text(arr) == "scan_y 2 µm, scan_x 2 µm, energy 0.01-0.981 keV"
    np.testing.assert_array_equal(arr, theirs["data"])
    for axis, other in zip(arr.axes, theirs["axes"], strict=True):
        found = axis.units, axis.scale, axis.offset
        assert found == (other["units"], *map(pytest.approx, (other["scale"], other["offset"])))
    (theirs,) = jeol.file_reader(str(path), sum_frames=False)
    frames = open_dataset(path, frames=slice(None))
    np.testing.assert_array_equal(frames, theirs["data"])
    assert frames.axes[0].scale == pytest.approx(theirs["axes"][0]["scale"])


def test_interrupted_scan(tmp_path):
    """The incomplete last frame is left out, unless ``cut`` is True."""
    path = write_pts(tmp_path / "map.pts", COUNTS, lines=7)
    every = COUNTS.copy()
    every[3, 7:] = 0
    for options, expected in [({}, COUNTS[:3]), ({"cut": True}, every)]:
        arr = open_dataset(path, frames=slice(None), **options)
        np.testing.assert_array_equal(arr.compute(), expected)
        arr = open_dataset(path, **options)
        np.testing.assert_array_equal(arr.compute(), expected.sum(axis=0))
        assert not arr.metadata["pts"]["complete"]
    path = write_pts(tmp_path / "map.pts", COUNTS[:1], lines=7)
    with pytest.warns(MissingFramesWarning):
        assert not open_dataset(path).any().compute()
    refuses(path, "frames are missing", missing="raise")
    assert len(describe(path).missing) == 256
    refuses(path, "invalid frames", frames=slice(None))


def test_overflowing_counts_raise(tmp_path):
    counts = np.zeros((2, 16, 16, 4096), "u4")
    counts[:, 1, 2, 3] = 40_000
    path = write_pts(tmp_path / "map.pts", counts)
    with refused(path, "more counts in a pixel"):
        open_dataset(path).compute()
    total = counts.sum(axis=0)
    np.testing.assert_array_equal(open_dataset(path, dtype="u4").compute(), total)
    assert open_dataset(path).sum().compute() == 160_000 // 2


WRONG = ["all", 1, slice(9, 12), slice(2, 1), slice("a"), slice(None, None, 0)]


@pytest.mark.parametrize("frames", WRONG, ids=str)
def test_invalid_frames_raise(path, frames):
    refuses(path, "invalid frames", detailed=True, frames=frames)


def test_unsupported_scans_raise(tmp_path):
    for pixels in "512x384", "what", "9999999999x9999999999":
        path = write_pts(tmp_path / "map.pts", COUNTS, pixels=pixels)
        refuses(path, "unsupported scan", detailed=True)


def test_truncated_files(path):
    content = path.read_bytes()
    refuses(path, "the file is cut off", TruncatedFileError, detailed=True, content=content[:-100])
    left = COUNTS.sum() - open_dataset(path, cut=True).sum().compute()
    assert 0 < left < 50
    refuses(path, "the file is cut off", TruncatedFileError, cut=True, content=content[:4000])
    refuses(path, "ends inside the header", TruncatedFileError, content=content[:500])


def test_longer_files(path):
    """Words that are appended would be counts."""
    content = path.read_bytes()
    path.write_bytes(content + struct.pack("<HHH", 0x9000, 0x8000, 0xB007))
    refuses(path, "the file is longer than its header says", CorruptFileError, detailed=True)
    assert open_dataset(path, cut=True).sum().compute() == COUNTS.sum() + 1


def test_length_above_4_gib(path):
    """The header has 4 bytes for it."""
    os.truncate(path, path.stat().st_size + (1 << 32))
    pts._read_header(File.at(path), cut=False)


def test_length_of_the_whole_file(path):
    """In some files the length includes the header."""
    content = path.read_bytes()
    content = content[:32] + struct.pack("<I", len(content)) + content[36:]
    path.write_bytes(content)
    np.testing.assert_array_equal(open_dataset(path).compute(), SUM)
    refuses(
        path,
        "cut off or longer than its header says",
        TruncatedFileError,
        content=content + bytes(6),
    )
    refuses(path, "the file is cut off;", TruncatedFileError, content=content[:-6])
    (data,) = struct.unpack("<I", content[28:32])
    refuses(
        path,
        "the file is cut off;",
        TruncatedFileError,
        content=content[:32] + bytes(4) + content[36:data],
    )


def test_damaged_headers_raise(path):
    content = path.read_bytes()
    path.write_bytes(content[:24] + struct.pack("<I", 1 << 30) + content[28:])
    refuses(path, "invalid header", CorruptFileError, detailed=True)
    at = content.index(b"Params\0") - 4
    path.write_bytes(content[:at] + struct.pack("<I", 1 << 30) + content[at + 4 :])
    refuses(path, "ends inside an entry", TruncatedFileError)


def test_template_without_name(path):
    content = path.read_bytes()
    value = struct.pack("<II", 12, 3) + b"T2\0"
    assert content.count(value) == 1
    path.write_bytes(content.replace(value, value[:8] + bytes(3)))
    arr = open_dataset(path)
    assert arr.metadata["pts"]["zero_channel"] == 0
    np.testing.assert_array_equal(arr.compute(), SUM)


ROWS = [row for row in rows_of("jeol", "SERIES") if row["file"].endswith(".pts")]


@by_row(ROWS)
def test_real_file_equals_rosettasciio(row):
    path = path_of(row)
    cut, each = "'only_valid_data': False" in row["item"], "'sum_frames': False" in row["item"]
    options = {"cut": cut, "frames": slice(None) if each else "sum"}
    if row["shape"].startswith("(0,"):
        with pytest.raises(DatasetError, match="0 frames"):
            open_dataset(path, **options)
        return
    arr = open_dataset(path, **options)
    assert arr.sum().compute() == int(row["sum"])
    if arr.size < 1 << 28:
        assert_equals_row(arr.compute().astype(row["dtype"]), row)
    scale, offset = row["axes"].split("Energy")[1].split(" ")[2::2][:2]
    assert arr.axes[-1].scale == pytest.approx(float(scale), rel=1e-6)
    assert arr.axes[-1].offset == pytest.approx(float(offset), rel=1e-6)
