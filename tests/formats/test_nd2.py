"""Nikon ND2: loops, channels, padded rows, missing frames, and real files against nd2."""

import struct

import numpy as np
import pytest
from checks import axes_text, refused, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    TruncatedFileError,
    describe,
    frame_facts,
    open_dataset,
)
from dask_tiled.testing import check_format, counting_frames, write_nd2

FRAMES = counting_frames((3, 2, 4, 2, 5, 7), "u2")
NAMES = {"channels": ["DAPI", "GFP"], "positions": ["A1", "B1"]}


@pytest.fixture
def path(tmp_path):
    return write_nd2(tmp_path / "cells.nd2", FRAMES, "tpzcyx", **NAMES)


@pytest.mark.parametrize("options", [{}, {"compressed": True}, {"padding": 12}], ids=str)
def test_nd2_reads_the_written_files(tmp_path, options):
    nd2 = pytest.importorskip("nd2", reason="nd2 is not installed")
    path = write_nd2(tmp_path / "a.nd2", FRAMES, "tpzcyx", **NAMES, **options)
    with nd2.ND2File(path) as theirs:
        assert tuple(theirs.sizes) == tuple("TPZCYX")
        np.testing.assert_array_equal(theirs.asarray(), FRAMES)
        times, positions, stack = (loop.parameters for loop in theirs.experiment)
        assert (times.periodMs, stack.stepUm) == (500, 2)
        assert [point.name for point in positions.points] == NAMES["positions"]


def test_axes_and_facts(path):
    desc = describe(path)
    assert axes_text(desc) == "t 0.5 s, p 1, z 2 µm, c 1, y 0.25 µm, x 0.25 µm"
    assert desc.axes[1].labels == ("A1", "B1")
    assert desc.axes[3].labels == ("DAPI", "GFP")
    assert desc.metadata["nd2"]["nav_shape_from"] == "the loops of the experiment"
    assert desc.instrument["date"].value.startswith("2023-02-24T18:00")
    facts = frame_facts(path).compute()
    assert facts.shape == FRAMES.shape[:4]
    expected = np.broadcast_to(0.5 * np.arange(24).reshape(3, 2, 4, 1), facts.shape)
    np.testing.assert_array_equal(facts["time"], expected)


@pytest.mark.parametrize(
    ("dtype", "padding", "compressed"),
    [("u1", 0, False), ("u1", 12, True), ("u2", 12, False), ("f4", 0, True), ("f4", 12, False)],
)
def test_storage(tmp_path, dtype, padding, compressed):
    """Types, padded rows and zlib are read; one channel is no axis."""
    frames = counting_frames((4, 3, 6, 5), dtype)
    options = {"padding": padding, "compressed": compressed}
    check_format(write_nd2(tmp_path / "a.nd2", frames, "zcyx", **options), frames, cuts=4)
    frames = counting_frames((4, 6, 5), dtype)
    check_format(write_nd2(tmp_path / "b.nd2", frames, "tyx", **options), frames, cuts=4)


@pytest.mark.parametrize("compressed", [False, True])
def test_colours(tmp_path, compressed):
    frames = counting_frames((4, 6, 5, 3), "u1")
    path = write_nd2(tmp_path / "a.nd2", frames, "tyxs", compressed=compressed)
    check_format(path, frames, cuts=4)
    assert describe(path).dims == ("t", "y", "x", "s")


def test_rows_padded_by_part_of_a_pixel(tmp_path):
    frames = counting_frames((4, 2, 6, 5), "u2")
    path = write_nd2(tmp_path / "a.nd2", frames, "tcyx", padding=2)
    np.testing.assert_array_equal(open_dataset(path).compute(), frames)
    path = write_nd2(tmp_path / "a.nd2", frames, "tcyx", padding=2, compressed=True)
    refuses(path, "padded by part of a pixel")


def test_one_frame(tmp_path):
    frame = counting_frames((6, 5), "u2")
    check_format(write_nd2(tmp_path / "a.nd2", frame, "yx"), frame, cuts=4)


@pytest.mark.parametrize("missing", [(5,), (0, 23), tuple(range(20, 24))], ids=str)
def test_missing_frames(tmp_path, missing):
    """Frames keep their places if others were never recorded."""
    path = write_nd2(tmp_path / "cells.nd2", FRAMES, "tpzcyx", missing=missing)
    arr = open_dataset(path, fill_value=7)
    expected = FRAMES.reshape(24, 2, 5, 7).copy()
    expected[list(missing)] = 7
    np.testing.assert_array_equal(arr.compute(), expected.reshape(FRAMES.shape))
    lost = [2 * frame + channel for frame in missing for channel in (0, 1)]
    assert arr.description.missing.tolist() == lost
    with pytest.raises(DatasetError):
        open_dataset(path, missing="raise")


def test_unsupported_versions_raise(tmp_path):
    path = write_nd2(tmp_path / "a.nd2", FRAMES, "tpzcyx", version="2.1")
    refuses(path, "unsupported ND2 version", detailed=True)
    path.write_bytes(b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(200))
    with refused(path, "unsupported ND2 version", detailed=True) as caught:
        open_dataset(path, format="nd2")
    assert caught.value.found == "JPEG 2000"


def patched(path, name, value):
    """Replace a number in the attributes."""
    data = path.read_bytes()
    label = f"{name}\0".encode("utf-16-le")
    at = data.index(label) + len(label)
    path.write_bytes(data[:at] + struct.pack("<I", value) + data[at + 4 :])


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("uiWidth", 0, "invalid attributes"),
        ("uiWidth", 1 << 20, "rows are too short"),
        ("uiHeight", 1 << 20, "a frame is too short"),
        ("uiBpcInMemory", 12, "unsupported frames"),
        ("eCompression", 1, "unsupported frames"),
        ("eCompression", 0, None),
        ("eType", 3, "unsupported loop"),
    ],
)
def test_unsupported_attributes_raise(path, name, value, match):
    patched(path, name, value)
    if match is None:  # frames are marked as compressed, but are not
        with refused(path, "a frame cannot be decoded", CorruptFileError):
            open_dataset(path).compute()
        return
    refuses(path, match, detailed=True)


def test_frames_are_not_compressed_unless_told(path):
    data, name = path.read_bytes(), "eCompression".encode("utf-16-le")
    assert data.count(name) == 1
    path.write_bytes(data.replace(name, "xCompression".encode("utf-16-le")))
    np.testing.assert_array_equal(open_dataset(path), FRAMES)


def test_damaged_maps_raise(path):
    data = path.read_bytes()
    refuses(
        path, "does not end with the offset of its chunk map", TruncatedFileError, content=data[:-1]
    )
    at = data.rindex(b"ImageDataSeq|0!") + len(b"ImageDataSeq|0!")
    path.write_bytes(data[:at] + struct.pack("<Q", 1 << 60) + data[at + 8 :])
    refuses(path, "the chunk map refers to bytes beyond the file", TruncatedFileError)
    path.write_bytes(data[:at] + struct.pack("<Q", 16) + data[at + 8 :])
    refuses(path, "no chunk begins at its offset in the chunk map", CorruptFileError, detailed=True)


@by_row(rows_of("nd2"))
def test_real_file_equals_nd2(row):
    path = path_of(row)
    arr = open_dataset(path)
    assert_equals_row(arr.compute(), row)
    nd2 = pytest.importorskip("nd2", reason="nd2 is not installed")
    with nd2.ND2File(path) as other:
        np.testing.assert_array_equal(arr.compute(), other.asarray())
        assert [axis.name.upper() for axis in arr.description.axes] == list(other.sizes)
        size = other.voxel_size()
    scales = {axis.name: axis.scale for axis in arr.description.axes}
    assert scales["x"] == pytest.approx(size.x)
    assert scales["y"] == pytest.approx(size.y)
    assert scales.get("z", size.z) == pytest.approx(size.z)
