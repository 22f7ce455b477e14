"""One lost file of a series, part of a master or source of a virtual dataset; lost frames."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile
from checks import refuses
from eiger_writer import write_eiger

from dask_tiled import (
    CorruptFileError,
    MissingFramesWarning,
    TruncatedFileError,
    describe,
    explain,
    frame_facts,
    open_dataset,
)
from dask_tiled.testing import (
    counting_frames,
    write_frms6,
    write_mib,
    write_mib_series,
    write_tvips,
)

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((12, 6, 8), "uint16")
PLACES = pytest.mark.parametrize("lost", ["first", "middle", "last"])
THIRD = {"first": slice(0, 4), "middle": slice(4, 8), "last": slice(8, 12)}


def expected(lost, fill=0):
    """Return the frames, of which a third is missing."""
    frames = FRAMES.copy()
    frames[THIRD[lost]] = fill
    return frames


def remove(paths, lost):
    """Remove the first, the second or the third of three files."""
    paths[("first", "middle", "last").index(lost)].unlink()


def write_master(folder, *, numbered=False, **announced):
    """Write a master of three files of four frames, and what the master announces."""
    path, paths = write_eiger(folder, np.split(FRAMES, 3), stem="s"), parts_in(folder)
    with h5py.File(path, "r+") as file:
        for name, value in announced.items():
            file[f"entry/instrument/detector/detectorSpecific/{name}"] = value
    for k, one in enumerate(paths if numbered else ()):
        with h5py.File(one, "r+") as file:
            attributes = file["entry/data/data"].attrs
            attributes["image_nr_low"], attributes["image_nr_high"] = 4 * k + 1, 4 * k + 4
    return path, paths


def parts_in(folder):
    return [folder / f"s_data_{k:06d}.h5" for k in (1, 2, 3)]


def write_virtual(folder, *, fill=7):
    """Write a virtual dataset of three sources."""
    write_eiger(folder, np.split(FRAMES, 3), stem="s")
    paths = parts_in(folder)
    layout = h5py.VirtualLayout(FRAMES.shape, FRAMES.dtype)
    for k, path in enumerate(paths):
        source = h5py.VirtualSource(path.name, "entry/data/data", (4, 6, 8), FRAMES.dtype)
        layout[4 * k : 4 * k + 4] = source
    with h5py.File(folder / "v.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout, fillvalue=fill)
    return folder / "v.h5", paths


def check(path, lost, fill=0, *, is_told=True, **options):
    """Check pixels, headers, places and tables of an array of which a third is missing."""
    arr = open_dataset(path, missing="fill", **options)
    np.testing.assert_array_equal(arr, expected(lost, fill))
    desc = arr.description
    np.testing.assert_array_equal(desc.missing, np.arange(12)[THIRD[lost]])
    assert dict(desc.rows())["missing"] == f"4 of 12 frames, shown as {fill}"
    np.testing.assert_array_equal(arr[1::3].sum((1, 2)), expected(lost, fill)[1::3].sum((1, 2)))
    scan = open_dataset(path, missing="fill", nav_shape=(3, 4), **options)
    np.testing.assert_array_equal(scan, expected(lost, fill).reshape(3, 4, 6, 8))
    skipped = open_dataset(path, missing="fill", sync_offset=2, nav_shape=(10,), **options)
    np.testing.assert_array_equal(skipped, expected(lost, fill)[2:])
    chosen = open_dataset(path, missing="fill", roi=[11, 0, 5], **options)
    np.testing.assert_array_equal(chosen, expected(lost, fill)[[11, 0, 5]])
    assert str(explain(arr.sum(0)))
    if is_told:
        with pytest.raises(TruncatedFileError):
            describe(path, missing="raise", **options)
    with pytest.warns(MissingFramesWarning, match="4 of 12 frames are missing"):
        open_dataset(path, nav_shape=(12,), doubts="ignore", **options)
    return arr


def write_scan(folder, **options):
    return write_mib_series(folder / "scan", FRAMES, frames_per_file=4, **options)


@PLACES
def test_a_lost_file_of_a_series_with_a_hdr(tmp_path, lost):
    """The .hdr file announces the number of frames, and the frames have numbers."""
    paths = write_scan(tmp_path, nav_shape=(12, 1))
    remove(paths, lost)
    arr = check(tmp_path / "scan.hdr", lost)
    numbers = np.where(expected(lost).any((1, 2)), np.arange(1, 13), 0)
    np.testing.assert_array_equal(frame_facts(arr).compute()["sequence_number"].ravel(), numbers)


@pytest.mark.parametrize("lost", ["first", "middle"])
def test_a_lost_file_of_a_series_without_a_hdr(tmp_path, lost):
    """A pattern, a list, and any file of the series; after the last file, none is missed."""
    paths = write_scan(tmp_path, hdr=False)
    remove(paths, lost)
    left = [path for path in paths if path.exists()]
    for path in (tmp_path / "scan*.mib", left, left[::-1], *left):
        check(path, lost, is_told=lost == "middle" or path in left)


def test_the_first_file_is_missed_where_its_frames_are_counted(tmp_path):
    """Numbers of frames may go on from the acquisition before."""
    paths = write_scan(tmp_path, hdr=False)
    paths[0].unlink()
    (doubt,) = (one for one in describe(paths[1]).doubts if one.code == "lost-files")
    assert f"it begins with {paths[1].name}, whose first frame has the number 5" in doubt.text
    paths[1].rename(tmp_path / "scan7.mib")
    paths[2].rename(tmp_path / "scan8.mib")
    assert [one.code for one in describe(tmp_path / "scan7.mib").doubts] == ["scan-shape"]
    assert open_dataset(tmp_path / "scan7.mib", missing="fill", doubts="ignore").shape[0] == 8


@pytest.mark.parametrize("empty", [True, False])
def test_several_lost_files(tmp_path, empty):
    """Files that are empty count like lost ones; the last one is told by nothing."""
    paths = write_mib_series(tmp_path / "scan", FRAMES, frames_per_file=1, digits=2, hdr=False)
    for k in (2, 3, 6, 11):
        paths[k].write_bytes(b"") if empty else paths[k].unlink()
    arr = open_dataset(paths[0], missing="fill", doubts="ignore")
    np.testing.assert_array_equal(arr.description.missing, [2, 3, 6])
    np.testing.assert_array_equal(arr[7:], FRAMES[7:11])


@pytest.mark.parametrize("numbered", [True, False])
@PLACES
def test_a_lost_part_of_a_master(tmp_path, lost, numbered):
    """The parts have numbers, or one length; the master announces the number of frames."""
    path, paths = write_master(tmp_path, numbered=numbered, nimages=4, ntrigger=3)
    remove(paths, lost)
    arr = check(path, lost)
    assert not arr.description.doubts
    if lost != "last":
        with pytest.raises(TruncatedFileError, match="show its 4 frames as missing"):
            describe(path)


def test_parts_of_unknown_length_are_refused(tmp_path):
    """Lengths differ, and neither numbers nor announcements tell that of the lost part."""
    path, paths = write_master(tmp_path)
    for name in (paths[0], tmp_path / "s_data_000004.h5"):
        with h5py.File(name, "w") as file:
            file["entry/data/data"] = FRAMES[:3]
    with h5py.File(path, "r+") as file:
        file["entry/data/data_000004"] = h5py.ExternalLink(name.name, "entry/data/data")
    paths[1].unlink()
    refuses(path, r"data_000002$", TruncatedFileError, missing="fill")


@PLACES
def test_a_lost_source_of_a_virtual_dataset(tmp_path, lost):
    """Missing frames have the fill value of the dataset, as in the HDF5 library."""
    path, paths = write_virtual(tmp_path)
    remove(paths, lost)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["data"], expected(lost, 7))
    arr = check(path, lost, 7)
    names = [f"s_data_{k:06d}.h5" for k in (1, 2, 3)]
    named = (names[("first", "middle", "last").index(lost)],)
    assert arr.description.metadata["hdf5"]["missing_files"] == named
    assert open_dataset(path, missing="fill", fill_value=9)[THIRD[lost]].max().compute() == 9


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_source_between_frames_of_another(tmp_path, lost):
    """Sources that take turns are read by the library; the frames of a lost one are missing."""
    layout = h5py.VirtualLayout(FRAMES.shape, FRAMES.dtype)
    for k in (0, 1):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file["d"] = FRAMES[k::2]
        layout[k::2] = h5py.VirtualSource(f"{k}.h5", "d", (6, 6, 8), FRAMES.dtype)
    path = tmp_path / "v.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout, fillvalue=7)
    np.testing.assert_array_equal(open_dataset(path), FRAMES)
    (tmp_path / f"{lost}.h5").unlink()
    refuses(path, rf"expected {lost}\.h5", TruncatedFileError)
    filled = FRAMES.copy()
    filled[lost::2] = 7
    arr = open_dataset(path, missing="fill")
    np.testing.assert_array_equal(arr, filled)
    assert arr.description.missing.tolist() == list(range(lost, 12, 2))
    assert arr.description.metadata["hdf5"]["missing_files"] == (f"{lost}.h5",)
    scan = open_dataset(path, nav_shape=(3, 4), missing="fill", fill_value=9)
    filled[lost::2] = 9
    np.testing.assert_array_equal(scan, filled.reshape(3, 4, 6, 8))
    np.testing.assert_array_equal(scan[1, 1::2].sum(0), filled[5:8:2].sum(0))
    (tmp_path / f"{1 - lost}.h5").unlink()
    refuses(path, "all files that hold the dataset are missing", TruncatedFileError, missing="fill")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("short", "count"), [(0, 3), (1, 1), (2, 2), (1, 0)])
def test_a_source_that_is_shorter_than_mapped(tmp_path, nested, short, count):
    """Frames that it lacks are missing, all others are there; the library fails where they lack."""
    path, paths = write_virtual(tmp_path)
    with h5py.File(paths[short], "r+") as file:
        del file["entry/data/data"]
        file["entry/data/data"] = FRAMES[4 * short :][:count]
    if nested:
        layout = h5py.VirtualLayout(FRAMES.shape, FRAMES.dtype)
        layout[...] = h5py.VirtualSource(path.name, "data", FRAMES.shape, FRAMES.dtype)
        with h5py.File(tmp_path / "outer.h5", "w", libver="latest") as file:
            file.create_virtual_dataset("data", layout, fillvalue=7)
        path = tmp_path / "outer.h5"
    for options in ({}, {"missing": "raise"}):
        with pytest.raises(TruncatedFileError, match=r"shorter than mapped.*Pass missing='fill'"):
            open_dataset(path, **options)
    filled, gone = FRAMES.copy(), np.arange(4 * short + count, 4 * short + 4)
    filled[gone] = 7
    arr = open_dataset(path, missing="fill")
    np.testing.assert_array_equal(arr, filled)
    assert arr.description.missing.tolist() == gone.tolist()
    assert arr.description.metadata["hdf5"]["missing_files"] == (paths[short].name,)
    for frames in (slice(8, 12), slice(0, 4)):
        np.testing.assert_array_equal(arr[frames], filled[frames])


def test_a_lost_module_of_a_detector(tmp_path):
    """Its pixels have the fill value; frames are not missing, but files are."""
    layout = h5py.VirtualLayout((4, 12, 8), "u2")
    for k in range(2):
        with h5py.File(tmp_path / f"m{k}.h5", "w") as file:
            file["data"] = FRAMES[4 * k : 4 * k + 4]
        layout[:, 6 * k : 6 * k + 6] = h5py.VirtualSource(f"m{k}.h5", "data", (4, 6, 8), "u2")
    with h5py.File(tmp_path / "v.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout, fillvalue=3)
    (tmp_path / "m1.h5").unlink()
    arr = open_dataset(tmp_path / "v.h5", missing="fill")
    module = np.full((4, 6, 8), 3, "u2")
    np.testing.assert_array_equal(arr, np.concatenate([FRAMES[:4], module], axis=1))
    assert len(arr.description.missing) == 0
    assert dict(arr.description.rows())["missing files"] == "m1.h5"
    refuses(tmp_path / "v.h5", r"m1\.h5", TruncatedFileError)


def test_a_lost_file_of_external_storage(tmp_path):
    """Missing frames have the fill value of the dataset."""
    for k in range(3):
        FRAMES[4 * k : 4 * k + 4].tofile(tmp_path / f"{k}.bin")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        size = FRAMES[:4].nbytes
        external = [(f"{k}.bin", 0, size) for k in range(3)]
        file.create_dataset("data", FRAMES.shape, "u2", external=external)
    (tmp_path / "1.bin").unlink()
    check(tmp_path / "x.h5", "middle")


@PLACES
def test_a_numbered_series_of_sources_ends_at_a_lost_file(tmp_path, lost):
    """As in the HDF5 library; a file behind the lost one leaves a doubt."""
    from h5py import h5d, h5p, h5s, h5t

    for k in range(3):
        with h5py.File(tmp_path / f"f_{k}.h5", "w") as file:
            file["d"] = FRAMES[4 * k : 4 * k + 4]
    with h5py.File(tmp_path / "v.h5", "w", libver="latest") as file:
        space, free = h5s.create_simple((12, 6, 8), (h5s.UNLIMITED, 6, 8)), h5s.UNLIMITED
        space.select_hyperslab((0, 0, 0), (free, 1, 1), stride=(4, 1, 1), block=(4, 6, 8))
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_virtual(space, b"f_%b.h5", b"d", h5s.create_simple((4, 6, 8)))
        h5d.create(file.id, b"data", h5t.NATIVE_UINT16, space, dcpl=plist)
    assert describe(tmp_path / "v.h5").doubts == ()
    remove([tmp_path / f"f_{k}.h5" for k in range(3)], lost)
    if lost == "first":
        refuses(tmp_path / "v.h5", "empty")
        return
    desc = describe(tmp_path / "v.h5")
    assert desc.shape[0] == {"middle": 4, "last": 8}[lost]
    told = [one.text for one in desc.doubts]
    assert told == ["the series may be longer: f_1.h5 is missing, but f_2.h5 is there"] * (
        lost == "middle"
    )
    assert desc.complete == (lost == "last")


@pytest.mark.parametrize("how", ["gone", "empty"])
def test_a_lost_file_of_a_tvips_series(tmp_path, how):
    """Files are numbered; the lost one had as many frames as the others."""
    paths = write_tvips(tmp_path / "scan", FRAMES, frames_per_file=3)
    paths[1].unlink() if how == "gone" else paths[1].write_bytes(b"")
    arr = open_dataset(paths[0], missing="fill")
    np.testing.assert_array_equal(arr.description.missing, [3, 4, 5])
    expected = FRAMES.copy()
    expected[3:6] = 0
    np.testing.assert_array_equal(arr, expected)


def test_a_lost_file_of_a_tvips_series_of_unknown_length(tmp_path):
    paths = write_tvips(tmp_path / "scan", FRAMES, frames_per_file=3)
    size = (paths[2].stat().st_size) // 3
    with open(paths[2], "r+b") as file:
        file.truncate(2 * size)
    paths[1].unlink()
    with pytest.raises(TruncatedFileError, match="number of frames is unknown"):
        describe(paths[0], missing="fill")


@pytest.mark.parametrize("truncated", [False, True])
def test_a_lost_file_of_an_frms6_set(tmp_path, truncated):
    """Headers have the number of frames; a truncated file in the middle lacks its last ones."""
    frames = counting_frames((3, 4, 8, 8), "u2")
    options = {"dark": frames[0], "scan_shape": (3, 4), "frames_per_file": 4}
    paths = write_frms6(tmp_path / "scan", frames.reshape(12, 8, 8), **options)
    middle = next(path for path in paths if path.name.endswith("_002.frms6"))
    if truncated:
        with open(middle, "r+b") as file:
            file.truncate(middle.stat().st_size - 100)
    else:
        middle.unlink()
    with pytest.raises(TruncatedFileError):
        describe(paths[1])
    arr = open_dataset(paths[1], missing="fill")
    lost = [7] if truncated else [4, 5, 6, 7]
    np.testing.assert_array_equal(arr.description.missing, lost)
    expected = frames.reshape(12, 8, 8).copy()
    expected[lost] = 0
    np.testing.assert_array_equal(arr, expected.reshape(arr.shape))


def test_numbers_before_the_first_file_may_count_nothing(tmp_path):
    """A shape of just the frames shows all, although number 1 of a file may mean a lost file 0."""
    path, *_ = write_mib_series(tmp_path / "m", FRAMES[:2], frames_per_file=1, first_sequence=2)
    arr = open_dataset(path, nav_shape=(2,), doubts="ignore")
    assert not arr.description.missing.size
    np.testing.assert_array_equal(arr, FRAMES[:2])
    longer = open_dataset(path, nav_shape=(3,), missing="fill", doubts="ignore")
    np.testing.assert_array_equal(longer, np.concatenate([0 * FRAMES[:1], FRAMES[:2]]))


def remove_frames(path, frames, numbers):
    """Remove frames from a file of so many frames."""
    records = np.split(np.frombuffer(path.read_bytes(), "u1"), frames)
    path.write_bytes(b"".join(r.tobytes() for k, r in enumerate(records) if k not in numbers))


LOST_FRAMES = {
    "first": [0, 1],
    "middle": [3, 6, 7],
    "last": [11],
    "all of these": [0, 4, 5, 7, 10, 11],
}


@pytest.mark.parametrize("kind", [{}, {"kind": "R64"}, {"kind": "R64", "quad": True}])
@pytest.mark.parametrize("lost", LOST_FRAMES.values(), ids=LOST_FRAMES)
def test_lost_frames_inside_a_file(tmp_path, lost, kind):
    """Frame headers have sequence numbers; the .hdr file tells how many there were."""
    frames = counting_frames((12, 4, 8), "u2", bits=6 if kind else 16)
    path = write_mib(tmp_path / "scan.mib", frames.reshape(3, 4, 4, 8), scan_keys=True, **kind)
    remove_frames(path, 12, lost)
    frames[lost] = 0
    arr = open_dataset(path, missing="fill")
    np.testing.assert_array_equal(arr, frames.reshape(3, 4, 4, 8))
    np.testing.assert_array_equal(arr.description.missing, lost)
    assert [Path(one.path).name for one in arr.description.files] == ["scan.mib"]
    assert arr.description.doubts == ()
    numbers = np.delete(np.arange(1, 13), lost)
    told = frame_facts(arr).compute()["sequence_number"].ravel()
    np.testing.assert_array_equal(told[told > 0], numbers)
    np.testing.assert_array_equal(np.flatnonzero(told == 0), lost)
    again = open_dataset(path, missing="fill", nav_shape=(12,), sync_offset=1)
    np.testing.assert_array_equal(again[:11], frames[1:])
    np.testing.assert_array_equal(arr[1:, ::-2].sum(0), frames.reshape(arr.shape)[1:, ::-2].sum(0))
    refuses(path, "missing", TruncatedFileError)


@pytest.mark.parametrize("lost", [[1], [4, 7], [9, 10], [1, 5, 6, 10]])
def test_lost_frames_inside_files_of_a_series(tmp_path, lost):
    """The files that follow stay at their places; no .hdr file is needed."""
    paths = write_scan(tmp_path, hdr=False)
    for k, path in enumerate(paths):
        remove_frames(path, 4, [n - 4 * k for n in lost])
    arr = open_dataset(paths[1], missing="fill", doubts="ignore")
    frames = FRAMES.copy()
    frames[lost] = 0
    np.testing.assert_array_equal(arr, frames)
    np.testing.assert_array_equal(arr.description.missing, lost)
    with pytest.raises(TruncatedFileError, match="Pass missing='fill'"):
        describe(tmp_path / "scan*.mib")


def test_lost_frames_in_file_order_are_in_doubt(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES, hdr=False)
    remove_frames(path, 12, [3, 6])
    refuses(path, "frames are missing inside.*expected 10; found 12", TruncatedFileError)
    desc = describe(path, nav_shape=(10,))
    (doubt,) = desc.doubts
    text = "their sequence numbers lack 2 inside scan.mib"
    assert doubt.code == "lost-frames"
    assert text in doubt.text
    assert "nav_shape with 2 more positions" in doubt.settle
    np.testing.assert_array_equal(
        open_dataset(path, nav_shape=(10,), doubts="ignore"), np.delete(FRAMES, [3, 6], 0)
    )
    scan = describe(path, nav_shape=(3, 4))
    assert scan.doubts == ()
    np.testing.assert_array_equal(scan.missing, [3, 6])


def test_lost_frames_whose_numbers_go_back(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES, hdr=False)
    remove_frames(path, 12, [3, 6])
    step = path.stat().st_size // 10
    data = bytearray(path.read_bytes())
    data[4 * step + 4 : 4 * step + 10] = b"000002"
    path.write_bytes(data)
    with pytest.raises(CorruptFileError, match=rf"byte {4 * step}.*more than 5.*2") as caught:
        describe(path, missing="fill")
    assert "as many positions as frames" in str(caught.value)
    np.testing.assert_array_equal(
        open_dataset(path, nav_shape=(2, 5), doubts="ignore"),
        np.delete(FRAMES, [3, 6], 0).reshape(2, 5, 6, 8),
    )


@pytest.mark.parametrize("number", [b"001201", b"999999", b"9" * 18])
def test_damaged_last_sequence_number(tmp_path, number):
    """A damaged number does not make a long array of frames that never were."""
    path = write_mib(tmp_path / "scan.mib", FRAMES, hdr=False)
    data = bytearray(path.read_bytes())
    at = len(data) // 12 * 11
    comma = data.index(b",", at + 4)
    grown = len(number) - (comma - at - 4)
    data[at + 4 : comma] = number
    del data[at + 384 : at + 384 + grown]  # padding: the header keeps its length
    path.write_bytes(data)
    with pytest.raises(TruncatedFileError, match=rf"expected 12.*found {int(number)}") as caught:
        describe(path, missing="fill")
    assert "Pass nav_shape=(12,)" in str(caught.value)
    arr = open_dataset(path, missing="fill", nav_shape=(12,), doubts="ignore")
    np.testing.assert_array_equal(arr, FRAMES)


def test_most_frames_that_may_be_lost(tmp_path):
    """One frame in a hundred is there."""
    path = write_mib(tmp_path / "scan.mib", FRAMES, hdr=False)
    data = bytearray(path.read_bytes())
    at = len(data) // 12 * 11
    data[at + 4 : at + 10] = b"001200"
    path.write_bytes(data)
    arr = open_dataset(path, missing="fill", doubts="ignore")
    assert arr.shape[0] == 1200
    shown = np.concatenate([FRAMES[[0, 10]], 0 * FRAMES[:1], FRAMES[11:]])
    np.testing.assert_array_equal(arr[[0, 10, 11, -1]], shown)


def write_numbered(folder, frames, first=1, step=1):
    """Write a TIFF file for each element; return the paths."""
    paths = [folder / f"ser_{first + step * k:03d}.tif" for k in range(len(frames))]
    for k, (path, frame) in enumerate(zip(paths, frames, strict=True)):
        told = {"metadata": None, "datetime": f"2026:01:01 00:00:{k:02d}"}
        tifffile.imwrite(path, frame, photometric="minisblack", **told)
    return paths


@pytest.mark.parametrize("step", [1, 10])
def test_a_lost_file_of_a_tiff_series(tmp_path, step):
    """A jump of the numbers in the names is a doubt; the frame is missing at its place."""
    frames = FRAMES[:10]
    paths = write_numbered(tmp_path, frames, step=step)
    paths[4].unlink()
    found, filled = np.delete(frames, 4, axis=0), frames.copy()
    filled[4] = 0
    pattern, left = tmp_path / "ser_*.tif", [*paths[:4], *paths[5:]]
    for given in (pattern, left):
        (doubt,) = describe(given).doubts
        assert doubt.code == "lost-files"
        assert f"go on from {1 + 3 * step} to {1 + 5 * step}" in doubt.text
        np.testing.assert_array_equal(open_dataset(given, doubts="ignore"), found)
        with pytest.raises(TruncatedFileError, match="may be missing"):
            describe(given, missing="raise")
        arr = open_dataset(given, missing="fill", doubts="raise")
        np.testing.assert_array_equal(arr, filled)
        assert arr.description.missing.tolist() == [4]
        seconds = frame_facts(arr).compute()["time"] - np.datetime64("2026-01-01")
        np.testing.assert_array_equal(np.isnat(seconds), np.arange(10) == 4)
        assert seconds[5] == np.timedelta64(5, "s")
        scan = open_dataset(given, missing="fill", nav_shape=(-1, 5))
        np.testing.assert_array_equal(scan, filled.reshape(2, 5, 6, 8))
        scan = open_dataset(given, nav_shape=(3, 3), doubts="raise")
        np.testing.assert_array_equal(scan, found.reshape(3, 3, 6, 8))


def test_a_lost_file_of_a_tiff_series_of_stacks(tmp_path):
    """It had as many frames as the others, except the last one."""
    paths = write_numbered(tmp_path, FRAMES.reshape(4, 3, 6, 8))
    paths[1].unlink()
    filled = FRAMES.copy()
    filled[3:6] = 0
    arr = open_dataset(tmp_path / "*.tif", missing="fill")
    np.testing.assert_array_equal(arr, filled.reshape(4, 3, 6, 8))
    tifffile.imwrite(paths[3], FRAMES[9:11], photometric="minisblack", metadata=None)
    np.testing.assert_array_equal(open_dataset(tmp_path / "*.tif", missing="fill"), filled[:11])
    tifffile.imwrite(paths[0], FRAMES[:2], photometric="minisblack", metadata=None)
    with pytest.raises(TruncatedFileError, match="its number of frames is unknown"):
        open_dataset(tmp_path / "*.tif", missing="fill")


@pytest.mark.parametrize(
    "names", ["a_1 a_2 b_4", "1 2 4 5.5", "9 7 1", "1 2 9", "1 3 4.4", "1000 1007 1011", "1 4"]
)
def test_names_of_tiff_files_that_are_no_series(tmp_path, names):
    paths = [tmp_path / f"{name}.tif" for name in names.split()]
    for path, frame in zip(paths, FRAMES, strict=False):
        tifffile.imwrite(path, frame)
    arr = open_dataset(paths, missing="fill", doubts="raise")
    np.testing.assert_array_equal(arr, FRAMES[: len(paths)])
    assert describe(paths).doubts == ()
