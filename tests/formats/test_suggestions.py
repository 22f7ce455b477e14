"""Merlin scans with frames left over: shapes that frame times and dark frames suggest."""

import re

import numpy as np
import pytest
from checks import refuses

from dask_tiled import DatasetError, describe, open_dataset
from dask_tiled.formats.mib.dark_frames import find_dark_lines
from dask_tiled.testing import counting_frames, write_mib

pytestmark = [
    pytest.mark.usefixtures("synchronous"),
    pytest.mark.filterwarnings("ignore:.*left out", "ignore:.*in a row", "ignore:.*inferred"),
]

ROWS, LINE = 5, 6


def times_of(lengths):
    """Return the times of frames in lines of these lengths, with fly-backs between them."""
    steps = [step for n in lengths for step in [1_000_000] * (n - 1) + [6_000_000]]
    return np.cumsum([0, *steps[:-1]]).tolist()


def write(folder, lengths, *, hdr=(ROWS, LINE), dark=(), times=True, kind="U16"):
    """Write lines of frames, some of them dark, and a .hdr file with the scan shape."""
    count = sum(lengths)
    frames = counting_frames((count, 8, 16), "uint16", bits=12) % 1000 + 900
    frames[list(dark)] = 0
    options = {"nav_shape": hdr, "scan_keys": True} if hdr else {"hdr": False}
    options["times"] = times_of(lengths) if times else ()
    return write_mib(folder / "scan.mib", frames, kind=kind, **options), frames


SURPLUS = {
    "each line": ([LINE + 2] * ROWS, (ROWS, LINE + 2), 0),
    "at the end": ([LINE] * ROWS + [3], (ROWS, LINE), 0),
    "at the start": ([2] + [LINE] * ROWS, (ROWS, LINE), 2),
    "a line more": ([LINE] * (ROWS + 1), (ROWS + 1, LINE), 0),
}


@pytest.mark.parametrize("where", SURPLUS)
def test_frame_times_suggest_a_shape(tmp_path, where):
    lengths, shape, first = SURPLUS[where]
    path, frames = write(tmp_path, lengths)
    count = len(frames)
    (doubt,) = describe(path).doubts
    start = f" from frame {first} on" if first else ""
    why = f"by the frame times, the beam flies back after every {shape[1]} frames"
    assert f"the {count} frames suggest {shape}{start}: {why}" in doubt.text
    assert doubt.settle.startswith(f"pass nav_shape='auto' for {shape}; or pass nav_shape=")
    row = dict(describe(path).rows())["suggested scans"]
    assert row == f"{count} frames: {shape}{start}: {why}"
    arr = open_dataset(path, nav_shape="auto")
    stop = first + shape[0] * shape[1]
    np.testing.assert_array_equal(arr, frames[first:stop].reshape(*shape, 8, 16))
    (doubt,) = arr.description.doubts
    assert doubt.settle == f"pass nav_shape={shape}"
    assert open_dataset(path).shape[:2] == (ROWS, LINE)  # the .hdr file counts, with the doubt


@pytest.mark.parametrize("kind", ["U08", "U16", "R64"])
@pytest.mark.parametrize("at", [0, LINE])
@pytest.mark.parametrize("hdr", [(ROWS, LINE), None])
def test_dark_frames_suggest_a_shape(tmp_path, kind, at, hdr):
    """One frame in each line is dark: the first or the last one."""
    line = LINE + 1
    dark = range(at, ROWS * line, line)
    if kind == "U08":
        frames = np.full((ROWS * line, 8, 16), 50, "u1")
        frames[list(dark)] = 0
        options = {"nav_shape": hdr, "scan_keys": True} if hdr else {"hdr": False}
        path = write_mib(tmp_path / "scan.mib", frames, kind=kind, **options)
    else:
        path, frames = write(tmp_path, [line] * ROWS, hdr=hdr, dark=dark, times=False, kind=kind)
    desc = describe(path)
    why = f"one frame in every {line} is dark"
    shape = desc.metadata["mib"]["suggested_scans"][0][0]
    assert shape == (ROWS, line)
    assert any(why in one.text for one in desc.doubts)
    arr = open_dataset(path, nav_shape="auto")
    np.testing.assert_array_equal(arr, frames.reshape(ROWS, line, 8, 16))


def test_times_and_dark_frames_agree(tmp_path):
    """Dark frames are looked for unless the frame times settle the scan of all frames."""
    dark = range(LINE, ROWS * (LINE + 1), LINE + 1)
    path, _ = write(tmp_path, [LINE + 1] * ROWS + [3], dark=dark)
    row = dict(describe(path).rows())["suggested scans"]
    assert re.fullmatch(r"38 frames: \(5, 7\): by the frame .*; \(5, 7\): one frame in .*", row)
    path, _ = write(tmp_path, [LINE + 1] * ROWS, dark=dark)
    row = dict(describe(path).rows())["suggested scans"]
    assert re.fullmatch(r"35 frames: \(5, 7\): by the frame times, [^;]*", row)


@pytest.mark.parametrize("dark", [(), (3,), (3, 9), (3, 9, 16), (3, 9, 15, 20)])
def test_other_dark_frames_suggest_nothing(tmp_path, dark):
    path, _ = write(tmp_path, [40], hdr=None, dark=dark, times=False)
    assert "suggested_scans" not in describe(path).metadata["mib"]
    refuses(path, "nothing suggests the shape of the scan", nav_shape="auto")


def test_dark_frames_have_to_last():
    """Some bytes of the frames are read, and of further lines two frames each."""
    sums = np.full(700_000, 100)
    sums[6::7] = 0
    read = []

    def sums_at(first, distance, number):
        read.append(number)
        return sums[first : first + distance * number : distance]

    lines = find_dark_lines(sums_at, len(sums))
    assert tuple(lines) == (0, 7, 100_000)
    assert sum(read) <= 64 + 200_000
    sums[699_999] = 100
    assert find_dark_lines(sums_at, len(sums)) is None


def test_auto_takes_what_files_settle(tmp_path):
    path = write_mib(tmp_path / "scan.mib", counting_frames((3, 4, 8, 16), "u2"))
    assert open_dataset(path, nav_shape="auto", doubts="raise").shape == (3, 4, 8, 16)
    with pytest.raises(DatasetError, match="nav_shape"):
        describe(path, nav_shape="automatic")


@pytest.mark.parametrize("name", ["scan_shape", "shape", "scan_size", "navigation_shape"])
def test_other_names_of_the_shape(tmp_path, name):
    path = write_mib(tmp_path / "scan.mib", counting_frames((3, 4, 8, 16), "u2"))
    refuses(path, r"Pass nav_shape=\.", **{name: (4, 3)})
