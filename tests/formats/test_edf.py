"""Files of the ESRF data format, compared with fabio."""

import bz2
import gzip

import fabio
import numpy as np
import pytest
from checks import refuses
from fabio.edfimage import EdfImage

import dask_tiled
from dask_tiled.testing import check_format, counting_frames, write_edf

TYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


@pytest.mark.parametrize(("dtype", "count"), [*zip(TYPES, [1, 3] * 5, strict=True)])
def test_files_written_by_fabio(tmp_path, dtype, count):
    frames = counting_frames((count, 5, 7), dtype)
    path = tmp_path / "scan.edf"
    image = EdfImage(frames[0], {"title": "first"})
    for frame in frames[1:]:
        image.append_frame(data=frame, header={"title": "x" * 600})  # a header of two blocks
    image.write(path)

    desc = dask_tiled.describe(path)
    assert desc.format == "edf"
    assert desc.dims == ("frame", "y", "x")[count == 1 :]
    assert desc.metadata["edf"]["header"]["title"] == "first"
    check_format(path, frames if count > 1 else frames[0], cuts=3)


def test_frames_of_three_axes(tmp_path):
    frames = counting_frames((2, 3, 5, 7), "u2")
    path = write_edf(tmp_path / "scan.edf", frames, sig_dims=3)
    with fabio.open(path) as image:
        np.testing.assert_array_equal(image.get_frame(1).data, frames[1])
    assert dask_tiled.describe(path).dims == ("frame", "z", "y", "x")
    check_format(path, frames, cuts=3)
    write_edf(path, frames[:1], sig_dims=3)
    assert dask_tiled.describe(path).dims == ("z", "y", "x")
    check_format(path, frames[0], cuts=1)


def test_several_files(tmp_path):
    frames = counting_frames((7, 5, 7), "u2")
    parts = np.split(frames, [1, 3])
    paths = [write_edf(tmp_path / f"scan_{k}.edf", part) for k, part in enumerate(parts)]
    check_format(paths, frames, cuts=3)


def test_general_block_holds_for_all_frames(tmp_path):
    frames = counting_frames((2, 5, 7), "u2")
    path = write_edf(tmp_path / "scan.edf", frames, general={"title": "all of them"})
    with fabio.open(path) as image:
        np.testing.assert_array_equal(image.get_frame(1).data, frames[1])
    assert dask_tiled.describe(path).metadata["edf"]["header"]["title"] == "all of them"
    check_format(path, frames, cuts=1)


def test_keys_in_other_case_without_a_size(tmp_path):
    frames = counting_frames((2, 5, 7), "u2")
    path = write_edf(tmp_path / "scan.edf", frames)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"Dim_1", b"DIM_1").replace(b"Size", b"eziS") + b"\r\n")
    check_format(path, frames, cuts=1)


def test_different_frames_raise(tmp_path):
    paths = [write_edf(tmp_path / f"scan_{k}.edf", np.ones((1, 5, 7 + k), "u2")) for k in range(2)]
    with pytest.raises(dask_tiled.CorruptFileError, match=r"scan_1.*frames differ"):
        dask_tiled.describe(paths)


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        ({"Compression": "GZ"}, dask_tiled.DatasetError, "compression.*found GZ"),
        ({"EDF_BinaryFileName": "a.bin"}, dask_tiled.DatasetError, "found a.bin"),
        ({"DataType": "QuadrupleValue"}, dask_tiled.DatasetError, "found QuadrupleValue"),
        ({"ByteOrder": "Upwards"}, dask_tiled.DatasetError, "found Upwards"),
        ({"Dim_2": "0"}, dask_tiled.CorruptFileError, "dim_2.*found 0"),
        ({"Dim_1": "many"}, dask_tiled.CorruptFileError, "dim_1.*found many"),
        ({"Size": "7"}, dask_tiled.CorruptFileError, "too small.*found 7"),
        ({"Size": "-7"}, dask_tiled.CorruptFileError, "size.*found -7"),
        ({"Dim_2": "9" * 18, "Size": ""}, dask_tiled.CorruptFileError, "size"),
        ({"Dim_2": "100"}, dask_tiled.CorruptFileError, "too small"),
        ({"Dim_2": "100", "Size": "1400"}, dask_tiled.TruncatedFileError, "beyond the file"),
    ],
)
def test_invalid_header_raises(tmp_path, keys, error, match):
    path = write_edf(tmp_path / "scan.edf", np.ones((1, 5, 7), "u2"), keys=keys)
    refuses(path, match, error)


def test_missing_header_raises(tmp_path):
    path = write_edf(tmp_path / "scan.edf", np.ones((2, 5, 7), "u2"))
    data = path.read_bytes()
    cases = {
        b"0       a recording of the brain".ljust(1024): (dask_tiled.UnknownFormatError, "byte 0"),
        data.replace(b"}\n", b"  "): (dask_tiled.TruncatedFileError, "byte 0"),
        data + b"and more": (dask_tiled.CorruptFileError, f"byte {len(data)}.*and more"),
        b"\n" * 600: (dask_tiled.UnknownFormatError, "no frames"),
        b"{" * (1 << 21): (dask_tiled.UnknownFormatError, "no header"),
    }
    for content, (error, match) in cases.items():
        refuses(path, match, error, content=content)


GE = {"Num_Images": 3, "HeaderID": "EH:000001:000000:000000"}


def write_ge(path, frames, *, announced, pack=bytes):
    """Write one header before many images, as detectors of GE do."""
    first = write_edf(path, frames[:1], keys=GE | {"Num_Images": announced}).read_bytes()
    path.write_bytes(pack(first + frames[1:].tobytes()))
    return path


@pytest.mark.parametrize("name", ["dark.edf.ge5", "dark.edf"])
def test_one_header_before_many_images(tmp_path, name):
    frames = counting_frames((3, 5, 7), "u2")
    path = write_ge(tmp_path / name, frames, announced=3)
    check_format(path, frames, cuts=3)
    assert not dask_tiled.describe(path).doubts


@pytest.mark.parametrize("announced", [1, 2])
def test_more_images_than_announced_leave_a_doubt(tmp_path, announced):
    frames = counting_frames((3, 5, 7), "u2")
    path = write_ge(tmp_path / "dark.edf", frames, announced=announced)
    (doubt,) = dask_tiled.describe(path).doubts
    assert doubt.code == "left-over-frames"
    assert f"takes {announced} of 3 frames" in doubt.text
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, nav_shape=(3,)), frames)


def test_fewer_images_than_announced_are_missing(tmp_path):
    frames = counting_frames((3, 5, 7), "u2")
    path = write_ge(tmp_path / "dark.edf", frames, announced=5)
    refuses(path, "as in the key Num_Images", dask_tiled.TruncatedFileError)
    arr = dask_tiled.open_dataset(path, missing="fill")
    np.testing.assert_array_equal(arr, np.pad(frames, ((0, 2), (0, 0), (0, 0))))
    assert len(arr.description.missing) == 2


def test_more_images_than_a_compressed_file_can_hold(tmp_path):
    """They are refused before a list of them is made."""
    frames = counting_frames((3, 5, 7), "u2")
    path = write_ge(tmp_path / "dark.edf.gz", frames, announced=2**32 - 1, pack=gzip.compress)
    refuses(path, "of this size cannot hold", dask_tiled.TruncatedFileError)


@pytest.mark.parametrize("announced", [None, 3])
def test_files_compressed_by_bzip2(tmp_path, announced):
    frames, path = counting_frames((3, 5, 7), "u2"), tmp_path / "scan.edf.bz2"
    if announced is None:
        write_edf(path, frames)
    else:
        write_ge(path, frames, announced=announced)
    path.write_bytes(bz2.compress(path.read_bytes()))
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), frames)
