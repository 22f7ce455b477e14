"""MRC files: real and written ones, compared with mrcfile and RosettaSciIO."""

import bz2
import gzip
import lzma
import os
import struct
import warnings

import mrcfile
import numpy as np
import pytest
from checks import axes_text, refuses
from manifest import by_file, expected_of, manifest

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, UnknownFormatError
from dask_tiled.formats.mrc.direct_electron import read_coordinates
from dask_tiled.formats.mrc.header import header_of
from dask_tiled.testing import check_format, counting_frames, write_direct_electron, write_mrc

pytestmark = pytest.mark.usefixtures("synchronous")

ROWS = [row for row in manifest("MRC") if row["reader"].startswith("mrcfile")]
DTYPES = ["i1", "u1", "i2", "u2", "f2", "f4", "c8"]
RASTER = {"Scan - Enable": "Enable", "Scan - Type": "Raster", "Scan - Size X": 3}
RASTER |= {"Scan - Size Y": 4, "Image Size X (pixels)": 6, "Image Size Y (pixels)": 5}
RASTER |= {"Specimen Pixel Size X (nanometers)": 0.5, "Diffraction Pixel Size Y": 0.25}
CUSTOM = RASTER | {"Scan - Type": "XY File"}


def rsciio_pixels(path):
    reader = pytest.importorskip("rsciio.mrc", reason="RosettaSciIO is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # RosettaSciIO leaves files open
        return reader.file_reader(str(path))[0]["data"]


def write_header(path, values, at=0):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(values)


@by_file(ROWS, "row")
def test_file_has_the_numbers_of_the_manifest_and_equals_mrcfile(data, row):
    """Frames equal mrcfile's; the shape of a scan equals RosettaSciIO's."""
    path = data / row["file"]
    arr = dask_tiled.open_dataset(path)
    shape, dtype, total = expected_of(row)
    pixels = arr.compute()
    assert arr.description.format == "mrc"
    assert pixels.reshape(shape).shape == shape
    assert arr.dtype == dtype
    assert pixels.sum(dtype="f8") == pytest.approx(float(total), rel=1e-6)
    with mrcfile.open(path) as theirs:
        np.testing.assert_array_equal(pixels.reshape(shape), theirs.data.reshape(shape))
    if row["reader2"]:
        np.testing.assert_array_equal(pixels.squeeze(), rsciio_pixels(path))


@pytest.mark.parametrize("module", [gzip, bz2, lzma])
def test_compressed_files(tmp_path, module):
    """Compressed files are decompressed once; damaged ones raise when opened or computed."""
    frames = counting_frames((6, 5, 7), ">i2")
    plain = write_mrc(tmp_path / "plain.mrc", frames, byte_order=">").read_bytes()
    path = tmp_path / "packed"
    path.write_bytes(module.compress(plain))
    check_format(path, frames.astype("i2"))
    arr = dask_tiled.open_dataset(path, nav_shape=(2, 3))
    assert arr.npartitions == 1
    np.testing.assert_array_equal(arr[1, 2].compute(), frames[5])
    np.testing.assert_array_equal(arr.sum(axis=(2, 3)).compute().ravel(), frames.sum(axis=(1, 2)))
    path.write_bytes(module.compress(plain[:-20]))
    with pytest.raises(TruncatedFileError, match="inside the pixels"):
        dask_tiled.open_dataset(path).compute()
    path.write_bytes(module.compress(plain)[:-20])
    with pytest.raises(DatasetError, match="packed"):
        dask_tiled.open_dataset(path).compute()
    refuses(path, kind=UnknownFormatError, content=module.compress(b"something else"))


@pytest.mark.parametrize("name", ["movie", "final", "0_Virt 0_sum", "ext1_Ext 1"])
def test_direct_electron_files_have_the_facts_of_the_info_file(data, name):
    facts = dask_tiled.describe(data / f"mrc/rsciio/20241021_00405_{name}.mrc").metadata["mrc"]
    assert facts["direct_electron"]["Camera Model"] == "DESim"
    assert facts["nav_shape_from"].endswith("_info.txt") == (name == "movie")


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_synthetic_file_equals_frames_and_mrcfile(tmp_path, dtype, order):
    frames = counting_frames((6, 5, 7), dtype)
    path = write_mrc(tmp_path / "a.mrc", frames, byte_order=order, extended=bytes(96))
    check_format(path, frames, cuts=5)
    with mrcfile.open(path) as theirs:
        if dtype != "u1":  # mrcfile does not know IMOD's flags
            np.testing.assert_array_equal(theirs.data, frames)
    if order == "<" and dtype != "i1":  # RosettaSciIO reads all bytes as unsigned
        np.testing.assert_array_equal(rsciio_pixels(path), frames)


def test_mode_3_has_an_axis_of_real_and_imaginary_parts(tmp_path):
    frames = counting_frames((3, 5, 7, 2), "i2")
    path = write_mrc(tmp_path / "a.mrc", frames, sig_dims=3, byte_order=">")
    check_format(path, frames, cuts=5)
    assert dask_tiled.describe(path).dims == ("frame", "y", "x", "complex")


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_is_inferred_without_stamp_and_identifier(tmp_path, order):
    frames = counting_frames((3, 5, 7), "i2")
    path = write_mrc(tmp_path / "old.st", frames, byte_order=order, stamp=False)
    check_format(path, frames, cuts=2)
    wrong = write_mrc(tmp_path / "wrong.st", frames, byte_order=order)
    write_header(wrong, b"\x11\x11" if order == "<" else b"DD", at=212)
    check_format(wrong, frames, cuts=2)


@pytest.mark.parametrize(("stamp", "order"), [(b"DD", "<"), (b"DA", "<"), (b"\x11\x11", ">")])
def test_machine_stamp_decides_between_plausible_orders(stamp, order):
    """In the other order the sections are smaller."""
    head = bytearray(1024)
    struct.pack_into(f"{order}3i", head, 0, 0x10000, 0x10100, 1)
    head[212:214] = stamp
    header = header_of(bytes(head), "a.mrc")
    assert (header.order, header.fields["nx"]) == (order, 0x10000)


def test_headers_that_are_short_or_empty_raise():
    with pytest.raises(CorruptFileError, match="too short for an MRC header") as caught:
        header_of(bytes(1023), "a.mrc")
    assert (caught.value.expected, caught.value.found) == ("1024 bytes", "1023 bytes")
    with pytest.raises(CorruptFileError, match="invalid MRC header") as caught:
        header_of(bytes(1024), "a.mrc")
    assert caught.value.found.startswith("nx 0, ny 0, nz 0, mode 0, ")
    head = struct.pack("<4i", 7, 5, 0, 1).ljust(1024, b"\0")
    assert header_of(head, "a.mrc", unfinished=True).fields["nx"] == 7
    with pytest.raises(CorruptFileError, match="nz 0"):
        header_of(head, "a.mrc")


@pytest.mark.parametrize(("dtype", "parts"), [("c8", ()), ("i2", (2,)), ("f4", ())])
def test_fourier_transforms_are_not_calibrated_by_the_cell(tmp_path, dtype, parts):
    frames = counting_frames((2, 5, 7, *parts), dtype)
    path = write_mrc(tmp_path / "a.mrc", frames, sig_dims=2 + len(parts))
    write_header(path, struct.pack("<3i3f", 7, 5, 2, 14, 15, 2), at=28)
    axes = {axis.name: (axis.units, axis.scale) for axis in dask_tiled.describe(path).axes}
    images = {"x": ("Å", 2), "y": ("Å", 3)}
    assert {name: axes[name] for name in "xy"} == (
        images if dtype == "f4" else dict.fromkeys("xy", ("", 1))
    )


def test_labels(tmp_path):
    path = write_mrc(tmp_path / "a.mrc", counting_frames((2, 5, 7), "i2"))
    for number, label in enumerate((b"one label", b"", b"another")):
        write_header(path, label.ljust(80), at=224 + 80 * number)
    header = dask_tiled.describe(path).metadata["mrc"]["header"]
    assert header["labels"] == ("one label", "another")


@pytest.mark.parametrize("order", ["<", ">"])
def test_byte_order_of_bytes_without_stamp_and_axes(tmp_path, order):
    """Modes and axes of 0 are plausible in both orders; the sizes of one are smaller."""
    frames = counting_frames((3, 8, 16), "i1")
    path = write_mrc(tmp_path / "old.st", frames, byte_order=order, stamp=False)
    write_header(path, bytes(12), at=64)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), frames)


def test_bytes_are_signed_unless_the_header_flags_them(tmp_path):
    frames = counting_frames((2, 5, 7), "u1")
    standard = write_mrc(tmp_path / "standard.mrc", frames, imod=False)
    arr = dask_tiled.open_dataset(standard)
    np.testing.assert_array_equal(arr, frames.view("i1"))
    assert arr.description.metadata["mrc"]["dtype_from"] == "MRC2014, where bytes are signed"
    flagged = write_mrc(tmp_path / "flagged.mrc", frames.view("i1"), imod=True)
    assert dask_tiled.open_dataset(flagged).dtype == "i1"
    write_header(flagged, struct.pack("<i", 0), at=156)
    np.testing.assert_array_equal(dask_tiled.open_dataset(flagged), frames)
    write_header(standard, struct.pack("<2f", 0, 250), at=76)
    np.testing.assert_array_equal(dask_tiled.open_dataset(standard), frames)


def test_grid_with_mz_equal_to_nz_keeps_the_sections(tmp_path):
    """LiberTEM #1675: four frames of 8 x 16 became (4, 4, 8, 16)."""
    frames = counting_frames((4, 8, 16), "u2")
    path = write_mrc(tmp_path / "a.mrc", frames, depth=4)
    check_format(path, frames, cuts=2)


def test_volume_stack_has_an_axis_for_the_volumes(tmp_path):
    volumes = counting_frames((3, 4, 5, 6), "f4")
    options = {"space_group": 401, "depth": 4, "pixel_size": (1, 2, 3), "origin": (10, 0, -30)}
    path = write_mrc(tmp_path / "a.mrc", volumes, **options)
    check_format(path, volumes, cuts=5)
    desc = dask_tiled.describe(path)
    assert axes_text(desc) == "volume 1, z 3-30 Å, y 2 Å, x 1+10 Å"
    with mrcfile.open(path) as theirs:
        np.testing.assert_array_equal(theirs.data, volumes)
    write_header(path, struct.pack("<i", 5), at=36)
    refuses(path, "MZ", CorruptFileError)


def test_extended_header_of_fei_is_metadata_of_the_first_section(tmp_path):
    extended = bytearray(2 * 768)
    struct.pack_into("<2i", extended, 0, 768, 0)
    struct.pack_into("<d", extended, 100, 12.5)
    struct.pack_into("<2d", extended, 156, 2e-10, 4e-10)
    extended[435:439] = b"Ceta"
    frames = counting_frames((2, 5, 7), "i2")
    options = {"extended": bytes(extended), "extended_type": b"FEI1"}
    path = write_mrc(tmp_path / "a.mrc", frames, **options)
    check_format(path, frames, cuts=2)
    desc = dask_tiled.describe(path)
    found = desc.metadata["mrc"]["extended_header"]
    assert (found["Alpha tilt"], found["Camera name"]) == (12.5, "Ceta")
    assert [axis.scale for axis in desc.axes] == pytest.approx([1, 4, 2])
    with mrcfile.open(path) as theirs:
        assert theirs.indexed_extended_header["Alpha tilt"][0] == found["Alpha tilt"]


@pytest.mark.parametrize("repeats", [1, 3])
def test_frames_of_a_custom_scan_are_at_its_coordinates(tmp_path, repeats):
    """Positions that a snake leaves out are zeros, as in RosettaSciIO."""
    snake = [(0, 0), (2, 0), (2, 1), (1, 1), (0, 1), (0, 2), (2, 2)] * repeats
    frames = counting_frames((len(snake), 5, 6), "u2")
    expected = np.zeros((repeats, 3, 3, 5, 6), "u2")
    for i, (x, y) in enumerate(snake):
        expected[i * repeats // len(snake), y, x] = frames[i]
    expected = expected[0] if repeats == 1 else expected
    path = write_direct_electron(tmp_path, frames, CUSTOM, coordinates=snake)
    check_format(path, expected, cuts=5)
    if repeats == 1:  # RosettaSciIO mixes repeats up with rows
        np.testing.assert_array_equal(rsciio_pixels(path), expected)
    assert len(dask_tiled.describe(path).missing) == 2 * repeats
    mask = np.zeros(expected.shape[:-2], bool)
    mask[..., 1, :] = True
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, roi=mask), expected[mask])
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, nav_shape=len(snake)), frames)
    later = dask_tiled.open_dataset(path, sync_offset=1)
    np.testing.assert_array_equal(later[..., 0, 0, :, :].compute().reshape(-1, 5, 6)[0], frames[1])
    assert not later[..., 0, 1, :, :].any()


def test_positions_visited_unequally_keep_the_order_of_frames(tmp_path):
    coordinates = [(0, 0), (1, 0), (1, 0)]
    frames = counting_frames((3, 5, 6), "u2")
    path = write_direct_electron(tmp_path, frames, CUSTOM, coordinates=coordinates)
    check_format(path, frames, cuts=2)
    found = dask_tiled.describe(path).metadata["mrc"]["scan_coordinates"]
    assert found == {"x": (0, 1, 1), "y": (0, 0, 0)}


@pytest.mark.parametrize(
    ("coordinates", "kind"),
    [
        ([(0, 0)] * 2, CorruptFileError),
        ([(0, 0)] * 4, TruncatedFileError),
        ([(0, 0), (1, "b"), (2, 2)], CorruptFileError),
        ([(0, 0), (1, -1), (2, 2)], CorruptFileError),
        ([(0, 0), (99999999, 99999999), (2, 2)], CorruptFileError),
        ([(4000, 4000)] * 3, CorruptFileError),  # three scans of 4001 x 4001
    ],
)
def test_wrong_coordinates_raise_unless_a_nav_shape_is_given(tmp_path, coordinates, kind):
    frames = counting_frames((3, 5, 6), "u2")
    path = write_direct_electron(tmp_path, frames, CUSTOM, coordinates=coordinates)
    with pytest.raises(kind, match="nav_shape"):
        dask_tiled.describe(path)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, nav_shape=(3,)), frames)


@pytest.mark.parametrize("begin", [b"", b"1,2\n", b"#\n" * 9, b"\n" * 5000])
def test_coordinates_are_read_up_to_the_first_invalid_line(tmp_path, begin):
    """The file may have any length, and the scan any number of frames."""
    path = tmp_path / "scan_coordinates.csv"
    path.write_bytes(begin)
    os.truncate(path, 1 << 40)  # a hole: it takes no space
    with pytest.raises(dask_tiled.CorruptFileError, match="coordinates do not match"):
        read_coordinates(str(path), 1 << 30)


def test_movie_without_scan_has_a_time_axis_and_repeated_scans_an_axis_more(tmp_path):
    frames = counting_frames((24, 5, 6), "u2")
    info = {"Frames Per Second": 100, "Autosave Movie Sum Count": 5}
    info |= {"Specimen Pixel Size X (nanometers)": 0.5, "Scan - Enable": "Disable"}
    desc = dask_tiled.describe(write_direct_electron(tmp_path, frames, info))
    assert axes_text(desc) == "time 0.05 s, y 1, x 0.5 nm"
    desc = dask_tiled.describe(write_direct_electron(tmp_path, frames, RASTER, name="b_1"))
    assert (desc.dims[0], desc.nav_shape) == ("repeat", (2, 4, 3))
    signed = counting_frames((12, 5, 6), "i1")
    info = RASTER | {"Autosave Counted Movie Pixel Format": "uint8"}
    path = write_direct_electron(tmp_path, signed, info, name="c_1")
    assert dask_tiled.open_dataset(path).dtype == "u1"


@pytest.mark.parametrize("name", ["final", "0_Virt 0_sum", "virt1_HAADF_mean", "ext2"])
def test_sums_of_another_size_keep_the_scales_of_their_headers(tmp_path, name):
    """The info file holds for images of the size of the scan or of the frames only."""
    info = RASTER | {"Image Size X (pixels)": 6, "Image Size Y (pixels)": 5}
    info |= {"Diffraction Pixel Size X": 0.5, "Diffraction Pixel Size Y": 0.5}
    write_direct_electron(tmp_path, counting_frames((12, 5, 6), "u2"), info, name="a_1")
    whole = (5, 6) if name == "final" else (4, 3)
    for shape, fits in ((whole, True), (whole[::-1], False), ((8, 8), False)):
        frames = counting_frames((1, *shape), "f4")
        options = {"space_group": 1, "pixel_size": (9, 9, 9)}
        desc = dask_tiled.describe(write_mrc(tmp_path / f"a_1_{name}.mrc", frames, **options))
        assert [axis.units == "Å" for axis in desc.axes[1:]] == [not fits] * 2
        assert ("direct_electron" in desc.metadata["mrc"]) == fits


@pytest.mark.parametrize("mode", [16, 101])
def test_unsupported_modes_raise(tmp_path, mode):
    path = write_mrc(tmp_path / "a.mrc", counting_frames((2, 5, 7), "i2"))
    write_header(path, struct.pack("<i", mode), at=12)
    refuses(path, f"mode.*found {mode}")


def test_absent_bytes_of_the_extended_header(tmp_path):
    """The size settles it; the option reads the file either way, and mrcfile refuses it."""
    frames = counting_frames((4, 10, 20), "i2")
    path = write_mrc(tmp_path / "scan.mrc", frames)
    data = bytearray(path.read_bytes())
    data[92:96] = (frames[0].nbytes).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.warns(
        dask_tiled.DoubtWarning, match=r"extended header \(NSYMBT\) are assumed to be absent"
    ):
        np.testing.assert_array_equal(dask_tiled.open_dataset(path), frames)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, extended_header=0), frames)
    refuses(
        path,
        "4 frames, as in the header field NZ",
        TruncatedFileError,
        extended_header=frames[0].nbytes,
    )
    arr = dask_tiled.open_dataset(path, extended_header=frames[0].nbytes, nav_shape=(3,))
    np.testing.assert_array_equal(arr, frames[1:])
    refuses(path, "extended_header", extended_header=-1)
    with open(path, "ab") as file:
        file.write(frames[0].tobytes())  # now the bytes are there
    assert not dask_tiled.describe(path).doubts


def test_more_sections_than_announced_leave_a_doubt(tmp_path):
    frames = counting_frames((4, 10, 20), "i2")
    path = write_mrc(tmp_path / "scan.mrc", frames)
    with open(path, "ab") as file:
        file.write(frames[0].tobytes())
    (doubt,) = dask_tiled.describe(path).doubts
    assert "takes 4 of 5 frames" in doubt.text
    assert dask_tiled.open_dataset(path, nav_shape=(5,)).shape[0] == 5


def test_the_sign_of_bytes_in_older_files_is_in_doubt(tmp_path):
    """Unless statistics tell it, or that all pixels are alike; the standard of 2014 settles it."""
    frames = counting_frames((3, 4, 5), "i1")
    path = write_mrc(tmp_path / "a.mrc", frames)
    data = bytearray(path.read_bytes())
    for version, low, high, doubts in (
        (0, 0, -1, 1),
        (0, 0, 0, 1),
        (0, -3, 90, 0),
        (0, 3, 127, 0),
        (20140, 0, -1, 0),
        (20141, 0, 0, 0),
    ):
        data[76:84], data[108:112] = struct.pack("<2f", low, high), struct.pack("<i", version)
        path.write_bytes(data)
        desc = dask_tiled.describe(path)
        assert [doubt.code for doubt in desc.doubts] == ["pixel-type"] * doubts
        assert desc.dtype == "i1"
    unsigned = dask_tiled.open_dataset(path, signed=False)
    np.testing.assert_array_equal(unsigned, frames.view("u1"))
    refuses(path, "invalid signed", signed="no")
    refuses(
        write_mrc(tmp_path / "b.mrc", frames.astype("i2")),
        "found signed=True for mode 1",
        signed=True,
    )
