"""Series of files: members, their order, and warnings and errors about missing ones."""

import os
import shutil

import numpy as np
import pytest
from checks import refused, refuses

from dask_tiled import (
    CorruptFileError,
    DoubtWarning,
    MissingFramesWarning,
    TruncatedFileError,
    describe,
    open_dataset,
    open_volumes,
)
from dask_tiled.formats.tools import File, Record, lay_out, plain
from dask_tiled.testing import counting_frames, write_mib, write_mib_series

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((12, 4, 8), "uint16")


def write_series(prefix, frames=FRAMES, *, frames_per_file=3, hdr=False, **options):
    return write_mib_series(prefix, frames, frames_per_file=frames_per_file, hdr=hdr, **options)


def names(arr):
    """Return the names of the files of an array, in the order of their frames."""
    return [os.path.basename(file.path) for file in arr.description.files]


def test_series_may_start_at_any_number(tmp_path):
    """Neither file numbers nor sequence numbers need to begin with 1."""
    write_series(tmp_path / "scan", digits=2, first_sequence=999_995)
    for number in (4, 3, 2, 1):
        (tmp_path / f"scan0{number}.mib").rename(tmp_path / f"scan{number + 96:02d}.mib")
    arr = open_dataset(tmp_path / "scan99.mib")
    assert names(arr) == ["scan97.mib", "scan98.mib", "scan99.mib", "scan100.mib"]
    np.testing.assert_array_equal(arr.compute(), FRAMES)


def open_in_doubt(path, *texts, **options):
    """Open a part of a series; expect all ``texts`` in one warning, and in the description."""
    with pytest.warns(DoubtWarning) as caught:
        arr = open_dataset(path, **options)
    (warning,) = caught
    assert warning.filename == __file__
    (doubt,) = (one for one in arr.description.doubts if one.code == "lost-files")
    assert doubt.text[1:] in str(warning.message)
    assert doubt.settle[1:] in str(warning.message)
    assert str(doubt) in str(describe(path, **options))
    assert all(str(text) in doubt.text for text in texts), doubt
    with pytest.raises(TruncatedFileError, match="files of the series may be missing"):
        open_dataset(path, missing="raise", **options)
    return arr


def test_gap_ends_the_series(tmp_path):
    """Frames beyond a missing file are left out; the warning names the files on both sides."""
    paths = write_series(tmp_path / "scan")
    paths[2].unlink()
    why = "the sequence goes on from 6 to 10"
    for member in paths[:2]:
        arr = open_in_doubt(member, f"ends with {paths[1].name}, before {paths[3].name}", why)
        np.testing.assert_array_equal(arr.compute(), FRAMES[:6])
    arr = open_in_doubt(paths[3], f"begins with {paths[3].name}, after {paths[1].name}", why)
    np.testing.assert_array_equal(arr.compute(), FRAMES[9:])


def test_requested_part_gives_no_warning(tmp_path):
    """Lists, ``series=False``, a nav_shape, ``missing="fill"`` and ``follow`` ask for a part."""
    paths = write_series(tmp_path / "scan")
    paths[2].write_bytes(b"")
    assert open_dataset(paths[:2]).shape[0] == 6
    assert open_dataset(paths[1], series=False).shape[0] == 3
    assert open_dataset(paths[0], nav_shape=(2, 3), missing="raise").shape[:2] == (2, 3)
    filled = open_dataset(paths[0], missing="fill")
    assert filled.shape[0] == 12
    np.testing.assert_array_equal(filled.description.missing, [6, 7, 8])
    assert open_dataset(paths[0], follow=True).refresh().shape[0] == 6
    open_in_doubt(paths[0], paths[2].name, nav_shape=(-1, 3))
    with pytest.warns(MissingFramesWarning, match="3 of 9 frames") as caught:
        assert not open_dataset(paths[0], nav_shape=(3, 3)).description.doubts
    assert [one.category for one in caught] == [MissingFramesWarning]
    with pytest.warns(DoubtWarning, match=f"{paths[2].name}, as the file is empty"):
        assert open_volumes([paths[0]]).shape[0] == 1


def test_files_beyond_the_frames_of_the_hdr_give_no_warning(tmp_path):
    write_series(tmp_path / "scan", FRAMES[:6], hdr=True)
    (tmp_path / "scan3.mib").write_bytes(b"")
    doubts = open_dataset(tmp_path / "scan1.mib").description.doubts
    assert [one.code for one in doubts] == ["scan-shape"]


@pytest.mark.parametrize("first", [1, 4])
def test_damage_before_a_series(tmp_path, first):
    """Frames are numbered from 1 on: before frame 1 nothing can be missing."""
    write_series(tmp_path / "scan", FRAMES[:6], first_sequence=first)
    (tmp_path / "scan0.mib").write_bytes(b"")
    if first == 1:
        assert open_dataset(tmp_path / "scan2.mib").shape[0] == 6
    else:
        begins = "begins with scan1.mib, after scan0.mib"
        open_in_doubt(tmp_path / "scan2.mib", begins, "the file is empty")


@pytest.mark.parametrize(
    ("frames", "options"),
    [
        (counting_frames((3, 8, 4), "uint16"), {}),
        (counting_frames((3, 4, 8), "uint8"), {"kind": "U08"}),
        (counting_frames((3, 4, 8), "uint16", bits=12), {"kind": "R64"}),
        (counting_frames((3, 4, 8), "uint16"), {"header_size": 512}),
        (counting_frames((3, 4, 8), "uint16"), {"quad": True}),
    ],
    ids=["shape", "type", "raw", "header", "chips"],
)
def test_other_geometry_ends_the_series(tmp_path, frames, options):
    """A file with the next sequence numbers but other frames is another acquisition."""
    write_series(tmp_path / "scan", FRAMES[:6])
    write_mib(tmp_path / "scan3.mib", frames, hdr=False, first_sequence=7, **options)
    for member in (1, 2):
        arr = open_dataset(tmp_path / f"scan{member}.mib")
        np.testing.assert_array_equal(arr.compute(), FRAMES[:6])
    np.testing.assert_array_equal(open_dataset(tmp_path / "scan3.mib").compute(), frames)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"no frames here"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.symlink_to(path.with_name("nowhere.mib")),
        lambda path: path.symlink_to(path),
    ],
    ids=["empty", "text", "directory", "fifo", "dangling-link", "link-to-itself"],
)
@pytest.mark.timeout(60)
def test_invalid_neighbour_ends_the_series(tmp_path, make):
    """Valid files open whatever else is in the folder."""
    write_series(tmp_path / "scan", FRAMES[:6])
    make(tmp_path / "scan3.mib")
    arr = open_in_doubt(tmp_path / "scan1.mib", "scan2.mib", "scan3.mib")
    np.testing.assert_array_equal(arr.compute(), FRAMES[:6])


@pytest.mark.parametrize("order", [1, -1])
def test_number_of_other_width_does_not_hide_a_member(tmp_path, monkeypatch, order):
    """scan2.mib beside scan01.mib, scan02.mib and scan03.mib does not break their series."""
    paths = write_series(tmp_path / "scan", FRAMES[:9], digits=2)
    write_mib(tmp_path / "scan2.mib", FRAMES[:5], hdr=False)
    listing = sorted(os.listdir(tmp_path))[::order]
    monkeypatch.setattr(os, "listdir", lambda _folder: listing)
    for path in paths:
        np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES[:9])


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_list_is_ordered_by_sequence_number(tmp_path, order):
    """Files of a list are ordered by their frames, not by their names."""
    paths = write_series(tmp_path / "scan")
    for path, letter in zip(paths, "dbca", strict=True):
        path.rename(tmp_path / f"{letter}.mib")
    files = [tmp_path / f"{'dbca'[k]}.mib" for k in order]
    arr = open_dataset(files)
    assert names(arr) == ["d.mib", "b.mib", "c.mib", "a.mib"]
    np.testing.assert_array_equal(arr.compute(), FRAMES)


@pytest.mark.parametrize("members", [slice(0, 2), slice(1, 3), slice(1, 2), slice(3, 4)])
def test_list_is_not_continued(tmp_path, members):
    """Files that would continue a list, even a list of one, are left out."""
    paths = write_series(tmp_path / "scan")
    arr = open_dataset(paths[members])
    assert names(arr) == [path.name for path in paths[members]]
    np.testing.assert_array_equal(
        arr.compute(), FRAMES.reshape(4, 3, 4, 8)[members].reshape(-1, 4, 8)
    )


def test_gap_in_a_list_or_pattern_raises(tmp_path):
    """The error names the file after the gap, the frame expected there, and the remedy."""
    paths = write_series(tmp_path / "scan")
    paths.pop(1).unlink()
    for given in (paths[:2], tmp_path / "scan*.mib"):
        with pytest.raises(TruncatedFileError, match="Pass missing='fill'") as caught:
            open_dataset(given)
        assert caught.value.path == str(paths[1])
        assert str(caught.value.expected).startswith("4")
        assert caught.value.found == 7


@pytest.mark.parametrize("copied", [False, True])
def test_list_with_the_same_frames_twice_raises(tmp_path, copied):
    """A file may be listed twice, or with a copy of it."""
    paths = write_series(tmp_path / "scan")
    again = shutil.copy(paths[1], tmp_path / "copy.mib") if copied else paths[1]
    with pytest.raises(CorruptFileError, match="twice") as caught:
        open_dataset([paths[0], paths[1], again])
    assert caught.value.path in {str(paths[1]), str(again)}
    assert caught.value.found == 4


def test_list_of_files_of_other_geometry_raises(tmp_path):
    write_series(tmp_path / "scan", FRAMES[:3])
    other = write_mib(
        tmp_path / "b.mib", counting_frames((3, 8, 4), "uint16"), hdr=False, first_sequence=4
    )
    with refused(other, "differ", CorruptFileError) as caught:
        open_dataset([tmp_path / "scan1.mib", other])
    assert caught.value.expected is not None
    assert caught.value.found is not None


@pytest.mark.parametrize("other", ["scan1.mib", "scan_2.mib", "scan 3.mib"])
def test_hdr_of_another_file_is_ignored(tmp_path, other):
    """Beside a .mib file of its own name, a .hdr file does not describe numbered ones."""
    write_mib(tmp_path / "scan.mib", FRAMES[:6].reshape(2, 3, 4, 8))
    path = write_mib(tmp_path / other, FRAMES, hdr=False, first_sequence=100)
    np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES)
    assert open_dataset(tmp_path / "scan.hdr").shape == (2, 3, 4, 8)


def test_hdr_without_a_name_is_ignored(tmp_path):
    """A .mib file named by a number only has no such .hdr file."""
    path = write_mib(tmp_path / "123.mib", FRAMES.reshape(3, 4, 4, 8))
    path.with_suffix(".hdr").rename(tmp_path / ".hdr")
    np.testing.assert_array_equal(open_dataset(path).compute(), FRAMES)


def test_suffixes_in_capitals(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES.reshape(3, 4, 4, 8))
    hdr = path.with_suffix(".hdr").rename(tmp_path / "scan.HDR")
    path = path.rename(tmp_path / "scan.MIB")
    for name in (path, hdr):
        assert open_dataset(name).shape == (3, 4, 4, 8)


@pytest.mark.parametrize(
    "names", [["scan.hdr"], ["scan.mib", "scan.hdr"], ["scan.hdr", "scan.mib"]]
)
def test_hdr_in_a_list_raises(tmp_path, names):
    """A .hdr file holds no frames, and stands for a whole series."""
    write_mib(tmp_path / "scan.mib", FRAMES)
    with refused(tmp_path / "scan.hdr", "holds no frames"):
        open_dataset([tmp_path / name for name in names])
    refuses(tmp_path / "scan.hdr", "series=False", series=False)


def test_hdr_without_any_mib_raises(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES)
    path.unlink()
    refuses(tmp_path / "scan.hdr", r"\.mib")


def test_pattern_opens_the_files_that_it_matches(tmp_path):
    paths = write_series(tmp_path / "scan")
    (tmp_path / "other.mib").write_bytes(b"not a capture")
    arr = open_dataset(str(tmp_path / "scan[12].mib"))
    assert names(arr) == [path.name for path in paths[:2]]
    np.testing.assert_array_equal(open_dataset(tmp_path / "scan*.mib").compute(), FRAMES)
    np.testing.assert_array_equal(open_dataset(tmp_path / "scan?.mib").compute(), FRAMES)


def test_pattern_without_matches_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\*\.mib"):
        open_dataset(tmp_path / "nothing*.mib")


def test_pattern_in_a_folder_with_brackets(tmp_path):
    """Brackets in the name of an existing folder are no pattern."""
    (tmp_path / "run [1]").mkdir()
    write_series(tmp_path / "run [1]" / "scan")
    arr = open_dataset(tmp_path / "run [1]" / "*.mib")
    np.testing.assert_array_equal(arr.compute(), FRAMES)


@pytest.mark.parametrize("prefix", ["scan [1]_", "[12]*", "a.b.c", "-", "x1y2z"])
def test_prefixes_with_numbers_and_patterns(tmp_path, prefix):
    """The number at the end of a name counts; the rest is literal."""
    paths = write_series(tmp_path / prefix, frames_per_file=4, hdr=True)
    for path in (tmp_path / f"{prefix}.hdr", *paths):
        arr = open_dataset(path)
        assert names(arr) == [path.name for path in paths]
        np.testing.assert_array_equal(arr.compute(), FRAMES)


def test_missing_promised_frames_raise(tmp_path):
    """A file that ends between two frames is truncated as well, unless ``settled`` is True."""
    path = tmp_path / "frames"
    path.write_bytes(bytes(3 * 12))
    files, record = [File.at(path)], Record((2, 3), plain(np.dtype("<u2")))
    for promised in (0, 2, 3):
        assert lay_out(files, record, promised=promised).grid == (3,)
    with pytest.raises(TruncatedFileError, match="6 frames, as in byte 8; found 3 frames"):
        lay_out(files, record, promised=6, promised_by="byte 8")
    assert lay_out(files, record, promised=6, settled=True).grid == (3,)
    with pytest.raises(TruncatedFileError, match="holds no frame"):
        lay_out(files, record, 36)
