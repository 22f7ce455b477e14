"""Inputs on which other readers fail or give wrong pixels, each with the right answer."""

import re
import shutil
import warnings

import numpy as np
import pytest
from checks import opens_or_says_why
from formats_table import TABLE

import dask_tiled
from dask_tiled import open_dataset
from dask_tiled.testing import counting_frames, write_mib, write_mib_series, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")


def assert_reads(arr, expected):
    """Compare dtype, shape and every pixel."""
    found = arr.compute()
    assert found.dtype == arr.dtype == expected.dtype.newbyteorder("=")
    assert found.shape == arr.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("count", [1, 3, 512])
@pytest.mark.parametrize("quad", [False, True])
def test_1_bit_raw_reads_as_uint8_whatever_the_number_of_frames(tmp_path, count, quad):
    """The size of a 1-bit file need not be a multiple of anything but its records."""
    frames = counting_frames((count, 8, 128), "uint8", bits=1)
    path = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=1, quad=quad, hdr=False)
    assert_reads(open_dataset(path), frames)


@pytest.mark.parametrize("quad", [False, True])
def test_24_bit_raw_frames_after_the_first_are_right(tmp_path, quad):
    """A record of 24-bit raw data is twice as long as one of 12 bits: nine frames tell."""
    frames = counting_frames((9, 16, 32), "uint32", bits=24)
    path = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=24, quad=quad)
    arr = open_dataset(path, chunks=(2, -1, -1))
    assert frames.max() > 0xFFFF
    assert_reads(arr, frames)
    assert_reads(arr[8, 3:9, ::5], frames[8, 3:9, ::5])


@pytest.mark.parametrize(("kind", "depth", "quad"), [("U16", 12, False), ("R64", 1, True)])
def test_chunk_across_the_borders_of_many_mib_files(tmp_path, kind, depth, quad):
    """A chunk may begin in one file of a series, run over whole ones, and end in another."""
    frames = counting_frames((11, 4, 128), "uint16" if depth == 12 else "uint8", bits=depth)
    write_mib_series(
        tmp_path / "scan", frames, frames_per_file=2, kind=kind, depth=depth, quad=quad
    )
    arr = open_dataset(tmp_path / "scan.hdr", chunks=((1, 7, 3), (3, 1), (100, 28)))
    assert_reads(arr, frames)
    assert_reads(arr[1:10:4, 1:, 63:66], frames[1:10:4, 1:, 63:66])


def test_mib_opens_with_the_scan_shape_of_the_hdr_beside_it(tmp_path):
    """No format, no nav_shape, nothing but the path of the .mib file."""
    frames = counting_frames((3, 5, 8, 8), "uint16")
    path = write_mib(tmp_path / "x.mib", frames, nav_shape=(3, 5))
    arr = open_dataset(str(path))
    assert_reads(arr, frames)
    assert arr.description.dims == ("scan_y", "scan_x", "y", "x")


@pytest.mark.parametrize("size", [383, 385, 511, 1025, 5000])
@pytest.mark.parametrize(("kind", "depth"), [("U16", 12), ("U32", 24), ("R64", 1), ("R64", 24)])
def test_record_header_of_any_length(tmp_path, size, kind, depth):
    """Headers need not be 384 bytes long, nor leave the pixels on an even byte."""
    frames = counting_frames((3, 4, 64), "uint32" if depth == 24 else "uint16", bits=depth)
    path = write_mib(tmp_path / "scan.mib", frames, kind=kind, depth=depth, header_size=size)
    arr = open_dataset(path, chunks=(2, 3, 40))
    np.testing.assert_array_equal(arr.compute(), frames)
    np.testing.assert_array_equal(arr[1:, 1, 3].compute(), frames[1:, 1, 3])


@pytest.mark.parametrize("dtype", ["<u2", ">u4", "<f8", ">c16"])
@pytest.mark.parametrize("gaps", [(1, 0, 0), (0, 3, 0), (0, 0, 5), (7, 11, 13)])
def test_raw_headers_that_are_no_multiple_of_the_pixel_size(tmp_path, dtype, gaps):
    """Pixels may begin at any byte."""
    frames = counting_frames((6, 4, 5), dtype)
    names = ("file_header", "frame_header", "frame_footer")
    options = dict(zip(names, gaps, strict=True))
    path = write_raw(tmp_path / "scan.raw", frames, **options)
    arr = open_dataset(path, "raw", dtype=dtype, sig_shape=(4, 5), chunks=(4, 3, 5), **options)
    assert_reads(arr, frames)


def test_mib_files_that_share_a_name_prefix_are_not_merged(tmp_path):
    """Each acquisition of a session is a data set of its own, though their names count up."""
    scans = [counting_frames((4, 8, 8), "uint16") + i for i in range(3)]
    names = ["scan1.mib", "scan2.mib", "scan10.mib"]
    for name, frames in zip(names, scans, strict=True):
        write_mib(tmp_path / name, frames, hdr=False)
    write_mib(tmp_path / "scan_b.mib", scans[0], hdr=False, first_sequence=5)
    write_mib(tmp_path / "scan.mib", scans[0], hdr=False, first_sequence=5)
    for name, frames in zip(names, scans, strict=True):
        arr = open_dataset(tmp_path / name)
        assert [file.path for file in arr.description.files] == [str(tmp_path / name)]
        assert_reads(arr, frames)


def test_hdr_opens_the_mib_of_exactly_its_name(tmp_path):
    """A numbered file of another acquisition is not taken for the one that the .hdr describes."""
    frames = counting_frames((6, 8, 8), "uint16")
    write_mib(tmp_path / "scan.mib", frames)
    write_mib(tmp_path / "scan1.mib", frames[:2] + 1)
    arr = open_dataset(tmp_path / "scan.hdr")
    assert [file.path for file in arr.description.files] == [str(tmp_path / "scan.mib")]
    assert_reads(arr, frames)


def test_raw_chips_in_a_row_are_not_taken_for_a_square(tmp_path):
    """Four raw chips that lie otherwise than 2x2 are refused, rather than put in wrong places."""
    frames = counting_frames((2, 8, 256), "uint16", bits=12)
    path = write_mib(tmp_path / "scan.mib", frames, kind="R64", quad=True, layout="Nx1")
    with pytest.raises(dask_tiled.DatasetError, match="Nx1"):
        open_dataset(path)


def test_processed_chips_in_a_row_read_as_the_camera_assembled_them(tmp_path):
    """The camera has put processed pixels into place already, whatever the assembly."""
    frames = counting_frames((2, 8, 256), "uint16", bits=12)
    path = write_mib(tmp_path / "scan.mib", frames, quad=True, layout="Nx1")
    assert_reads(open_dataset(path), frames)


@pytest.mark.parametrize("shape", [(514, 514), (3, 7), (1, 1), (130, 258)])
def test_processed_frames_of_any_shape(tmp_path, shape):
    """Gaps between chips, and regions of interest, give frames of odd shapes."""
    frames = counting_frames((2, *shape), "uint16")
    path = write_mib(tmp_path / "scan.mib", frames, quad=True, layout="2x2G")
    assert_reads(open_dataset(path), frames)


@pytest.mark.parametrize(("quad", "shape"), [(False, (3, 192)), (True, (2, 384)), (True, (6, 128))])
def test_raw_region_of_interest(tmp_path, quad, shape):
    """Raw frames of fewer rows, or other widths, than a chip has."""
    frames = counting_frames((3, *shape), "uint8", bits=1)
    path = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=1, quad=quad)
    assert_reads(open_dataset(path), frames)


@pytest.mark.parametrize("extra", [2, 30])
def test_frames_beyond_the_scan_are_not_shown(tmp_path, extra):
    """Triggers after the end of the scan leave frames that no scan point belongs to."""
    frames = counting_frames((20 + extra, 4, 4), "uint16")
    path = write_mib(tmp_path / "scan.mib", frames, nav_shape=(4, 5))
    assert_reads(open_dataset(path), frames[:20].reshape(4, 5, 4, 4))
    assert_reads(open_dataset(path, nav_shape=(20 + extra,)), frames)


def test_a_file_put_back_under_its_name_gives_another_array(tmp_path):
    """Arrays of different contents never share a name, so no cache confuses them."""
    frames = counting_frames((3, 4, 4), "uint16")
    path = write_mib(tmp_path / "scan.mib", frames)
    before = open_dataset(path)
    shutil.copy(path, tmp_path / "copy.mib")
    path.unlink()
    shutil.move(tmp_path / "copy.mib", path)
    after = open_dataset(path)
    assert before.name != after.name
    assert_reads(after, frames)


def test_frame_lost_inside_a_file(tmp_path):
    """A scan that would be shifted is refused, unless the user says what its shape is."""
    path = write_mib(tmp_path / "scan.mib", counting_frames((6, 4, 8), "uint16"), hdr=False)
    record = 384 + 2 * 4 * 8
    content = path.read_bytes()
    path.write_bytes(content[: 2 * record] + content[3 * record :])
    with pytest.raises(dask_tiled.TruncatedFileError, match="expected 5; found 6"):
        dask_tiled.open_dataset(path)
    assert dask_tiled.open_dataset(path, nav_shape=(5,)).shape == (5, 4, 8)


def test_header_fields_have_names(tmp_path):
    """The metadata of a capture can be read by people, with and without DACs."""
    frames = counting_frames((2, 4, 8), "uint16", bits=12)
    for dacs in (True, False):
        path = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=12, dacs=dacs)
        header = dask_tiled.describe(path).metadata["mib"]["header"]
        assert header["pixel type"] == "R64"
        assert header["layout"] == "1x1"
        assert header["counter depth"] == "12"
        assert header["exposure"].endswith("ns")


def test_masks_of_0_and_255_are_booleans(tmp_path):
    """Every byte but 0 is true, and counts as 1 in a sum."""
    mask = np.arange(24, dtype="u1").reshape(2, 3, 4) % 3 * 255
    path = write_raw(tmp_path / "mask.raw", mask)
    arr = open_dataset(path, "raw", dtype="bool", sig_shape=(3, 4))
    assert_reads(arr, mask != 0)
    np.testing.assert_array_equal(arr.compute().view("u1"), mask != 0)
    np.testing.assert_array_equal(arr.sum(axis=(1, 2)).compute(), (mask != 0).sum(axis=(1, 2)))
    np.testing.assert_array_equal(arr[:, ::2, 1:].sum(axis=0), (mask != 0)[:, ::2, 1:].sum(axis=0))


# What `make fuzz` has found: a sample, its file, and what is put in the place of what

ZARR = "scan.zarr/zarr.json"
DAMAGE = {
    "no chips in a later frame": ("mib u16", "scan.mib", rb"(?<=MQ1,000002,00384,)01,", b"0,0"),
    "chunks of no pixels": ("zarr", ZARR, rb"(?<=\"chunk_shape\": \[)\s*2", b"0"),
    "chunks of too many pixels": ("zarr", ZARR, rb"(?<=\"chunk_shape\": \[)\s*2", b"9" * 20),
    "attributes that are a number": ("zarr", ZARR, rb"(?<=\"attributes\": ){}", b"1e308"),
    "shards of too many pixels": ("zarr shards", ZARR, rb"(?<=\"chunk_shape\": \[)\s*2", b"8" * 20),
}


def test_values_that_are_no_numbers_are_added_up_in_silence(tmp_path):
    """Also signalling ones, where several are for one pixel."""
    sample = TABLE["raw_csr"](tmp_path, "scan")
    path = tmp_path / "scan.data"
    path.write_bytes(bytes.fromhex("0100a07f") * (path.stat().st_size // 4))
    assert np.isnan(open_dataset(**sample.options).compute()).sum() == (sample.expected != 0).sum()


def test_a_signalling_nan_in_an_affine(tmp_path):
    """It is nothing to the pixels, and no reason to warn."""
    sample = TABLE["nifti pair"](tmp_path, "scan")
    header = bytearray((tmp_path / "scan.hdr").read_bytes())
    header[254:256], header[280:284] = b"\0\1", bytes.fromhex("7fa00001")  # sform_code, srow_x
    (tmp_path / "scan.hdr").write_bytes(header)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")  # an error would be taken for one of the affine
        found = open_dataset(**sample.options).compute()
    assert not told
    np.testing.assert_array_equal(found, sample.expected)


@pytest.mark.parametrize(("name", "file", "found", "put"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_that_was_found_by_chance(tmp_path, name, file, found, put):
    """Pixels and facts of frames come back, or an error names a file."""
    sample = TABLE[name](tmp_path, "scan")
    path = tmp_path / file
    damaged, count = re.subn(found, put, path.read_bytes(), count=1)
    assert count == 1
    path.write_bytes(damaged)
    opens_or_says_why(facts=True, **sample.options)
