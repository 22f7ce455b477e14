"""TIA series: real and written files, compared with RosettaSciIO and LiberTEM."""

import struct
from pathlib import Path

import numpy as np
import pytest
from checks import axes_text, refuses
from libertem_reader import libertem_reads
from manifest import by_file, expected_of, manifest

import dask_tiled
from dask_tiled import CorruptFileError, TruncatedFileError
from dask_tiled.testing import check_format, counting_frames, iter_counting_frames, write_ser

pytestmark = pytest.mark.usefixtures("synchronous")

ROWS = [row for row in manifest("SER/EMI") if row["file"].endswith(".ser")]
NOT_BY_LIBERTEM = "no_AcquireDate"  # ncempy, and LiberTEM with it, cannot read the .emi file
DTYPES = ["u1", "u2", "u4", "i1", "i2", "i4", "f4", "f8", "c8", "c16"]


@by_file(ROWS, "row")
def test_file_equals_rosettasciio_and_the_manifest(data, row):
    reader = pytest.importorskip("rsciio.tia", reason="RosettaSciIO is not installed")
    path = data / row["file"]
    arr = dask_tiled.open_dataset(path)
    shape, dtype, total = expected_of(row)
    assert (arr.description.format, arr.shape, arr.dtype) == ("ser", shape, dtype)
    pixels = arr.compute()
    assert pixels.sum(dtype="f8") == pytest.approx(total, rel=1e-12)
    (signal,) = reader.file_reader(str(path))
    np.testing.assert_array_equal(pixels, signal["data"])


@pytest.mark.slow
def test_files_equal_libertem(data, tmp_path):
    """Files are real, or written in both versions, stopped early and unequally spaced."""
    paths = [data / row["file"] for row in ROWS if NOT_BY_LIBERTEM not in row["file"]]
    for k, version in enumerate([0x0210, 0x0220]):
        frames = counting_frames((10, 5, 6), "i2")
        options = {"nav_shape": (3, 4), "version": version, "gaps": (0, 3 * k)}
        paths.append(write_ser(tmp_path / f"written{k}_1.ser", frames, **options))
    theirs = libertem_reads(tmp_path, {path: ("ser", {"path": path}) for path in paths})
    for path in paths:
        found = dask_tiled.open_dataset(path)
        np.testing.assert_array_equal(found, theirs[path]["frames"].reshape(found.shape))


@pytest.mark.parametrize("dtype", DTYPES)
def test_written_files_of_every_type(tmp_path, dtype):
    """Images and spectra are read as by RosettaSciIO."""
    for version, sig_shape in (0x0210, (5, 6)), (0x0220, (7,)):
        frames = counting_frames((3, 4, *sig_shape), dtype)
        options = {"sig_dims": len(sig_shape), "version": version}
        path = write_ser(tmp_path / "map_1.ser", frames, **options)
        check_format(path, frames, cuts=2)
        reader = pytest.importorskip("rsciio.tia", reason="RosettaSciIO is not installed")
        np.testing.assert_array_equal(reader.file_reader(str(path))[0]["data"], frames)


@pytest.mark.parametrize(
    ("nav_shape", "gaps"),
    [
        *(((), (5,)), ((1,), (1, 0, 7)), ((6,), (0,)), ((2, 3), (1, 0, 7)), ((1, 6), (5,))),
        *(((2, 1, 3), (1, 0, 7)), ((2, 3), (0,))),
    ],
)
def test_scan_shapes_and_spacings(tmp_path, nav_shape, gaps):
    """Equally spaced elements are one piece; others are a piece each."""
    for sig_shape in [(5, 6), (7,)]:
        frames = counting_frames((*nav_shape, *sig_shape), "u2")
        path = write_ser(tmp_path / "map_1.ser", frames, sig_dims=len(sig_shape), gaps=gaps)
        expected = frames.reshape(sig_shape) if frames.size == np.prod(sig_shape) else frames
        check_format(path, expected, cuts=2)
        count = int(np.prod(nav_shape))
        pieces = len(dask_tiled.describe(path).layout.pieces)
        assert pieces == (1 if len(gaps) == 1 or count < 3 else count)
        check_format(path, frames.reshape(1, count, *sig_shape), cuts=1, nav_shape=(1, count))


def test_stopped_scan_has_missing_frames(tmp_path):
    """A map keeps its shape; a series of acquisitions is shorter."""
    frames = counting_frames((7, 5, 6), "u2")
    path = write_ser(tmp_path / "map_1.ser", frames, nav_shape=(3, 4))
    expected = np.zeros((3, 4, 5, 6), "u2")
    expected.reshape(12, 5, 6)[:7] = frames
    check_format(path, expected, cuts=5)
    assert dask_tiled.describe(path).missing.tolist() == [7, 8, 9, 10, 11]
    assert (dask_tiled.open_dataset(path, fill_value=9)[2].compute() == 9).all()
    refuses(path, "missing", TruncatedFileError, missing="raise")
    write_ser(path, frames, nav_shape=(12,), positions=True)
    check_format(path, expected.reshape(12, 5, 6), cuts=2)
    write_ser(path, frames, nav_shape=(12,))
    check_format(path, frames, cuts=2)
    check_format(path, expected.reshape(12, 5, 6), cuts=2, nav_shape=(12,))
    write_ser(path, frames[:1], nav_shape=(12,))
    check_format(path, frames[0], cuts=2)


def test_axes_are_those_of_the_file(tmp_path):
    """Offsets are those of a calibration element; rows are in reverse order of the file."""
    calibrations = [(-2.0, 0.25, 4), (3e-9, 1e-9, 1), (0.0, 2e-9, 0), (5e-9, -3e-9, 2)]
    frames = iter_counting_frames((3, 4, 5, 6), "u2")
    path = write_ser(tmp_path / "a.ser", frames, nav_shape=(3, 4), calibrations=calibrations)
    # Row 0 in the file, at the bottom, is at y = 2e-9.
    scales = "scan_y -3e-09+1.1e-08 m, scan_x 2e-09 m, y -1e-09+6e-09 m, x 0.25-3 m"
    assert axes_text(dask_tiled.describe(path)) == scales
    spectra = counting_frames((3, 8), "i4")
    for calibration, axis in [((-20.0, 0.2, 0), "energy eV"), ((0.0, 1.0, 0), "channel ")]:
        write_ser(path, spectra, sig_dims=1, calibrations=[calibration])
        found = dask_tiled.describe(path).axes[-1]
        assert f"{found.name} {found.units}" == axis


def test_inconsistent_elements_raise(tmp_path):
    """The last element is compared; an element listed twice overlaps."""
    path = write_ser(tmp_path / "a.ser", counting_frames((3, 4, 5), "u2"), gaps=(0, 1))
    content = path.read_bytes()
    (table,) = struct.unpack_from("<Q", content, 22)
    offsets = np.frombuffer(content, "<u8", 3, table)
    spoilt = bytearray(content)
    spoilt[int(offsets[2]) + 42] += 1
    refuses(path, "differ", CorruptFileError, content=spoilt)
    spoilt = bytearray(content)
    spoilt[table + 8 : table + 16] = content[table : table + 8]
    refuses(path, "overlap", CorruptFileError, content=spoilt)


def test_odd_dimensions_and_offsets_beyond_4_gib(tmp_path):
    """Dimensions that do not fit the elements give one axis; offsets have 8 bytes."""
    frames = counting_frames((12, 5, 6), "u2")
    path = write_ser(tmp_path / "a.ser", frames, nav_shape=(3, 4))
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, 34, 5)
    path.write_bytes(content)
    check_format(path, frames, cuts=2)
    assert "do not match" in dask_tiled.describe(path).metadata["ser"]["nav_shape_from"]
    write_ser(path, frames, nav_shape=(12,))
    content = bytearray(path.read_bytes())
    (table,) = struct.unpack_from("<Q", content, 22)
    (last,) = struct.unpack_from("<Q", content, table + 11 * 8)
    far = (5 << 30) + last
    struct.pack_into("<Q", content, table + 11 * 8, far)
    with Path(path).open("wb") as file:  # a sparse file of 5 GiB
        file.write(content)
        file.seek(far)
        file.write(content[last:])
    check_format(path, frames, cuts=2)


def test_too_long_texts_raise(tmp_path):
    path = write_ser(tmp_path / "a.ser", counting_frames((3, 5, 6), "u2"))
    content = bytearray(path.read_bytes())
    struct.pack_into("<I", content, 58, 1 << 24)
    refuses(path, "a text is too long", CorruptFileError, content=content + bytes(1 << 24))
