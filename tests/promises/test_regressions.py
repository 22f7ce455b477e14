"""Inputs on which other readers fail or return wrong pixels are read correctly."""

import re
import shutil
import warnings

import numpy as np
import pytest
from checks import opens_or_raises
from formats_table import TABLE

import dask_tiled
from dask_tiled import open_dataset
from dask_tiled.testing import counting_frames, write_mib, write_raw

pytestmark = pytest.mark.usefixtures("synchronous")


def assert_reads(arr, expected):
    """Compare dtype, shape and every pixel."""
    found = arr.compute()
    assert found.dtype == arr.dtype == expected.dtype.newbyteorder("=")
    assert found.shape == arr.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def test_mib_files_that_share_a_name_prefix_are_not_merged(tmp_path):
    """Acquisitions of a session are separate data sets, though their names are numbered."""
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
    """A .hdr does not describe the numbered file of another acquisition."""
    frames = counting_frames((6, 8, 8), "uint16")
    write_mib(tmp_path / "scan.mib", frames)
    write_mib(tmp_path / "scan1.mib", frames[:2] + 1)
    arr = open_dataset(tmp_path / "scan.hdr")
    assert [file.path for file in arr.description.files] == [str(tmp_path / "scan.mib")]
    assert_reads(arr, frames)


def test_chips_in_a_row(tmp_path):
    """Processed pixels of the layout Nx1 are in place; raw ones are refused."""
    frames = counting_frames((2, 8, 256), "uint16", bits=12)
    path = write_mib(tmp_path / "scan.mib", frames, quad=True, layout="Nx1")
    assert_reads(open_dataset(path), frames)
    write_mib(path, frames, kind="R64", quad=True, layout="Nx1")
    with pytest.raises(dask_tiled.DatasetError, match="Nx1"):
        open_dataset(path)


def test_frames_beyond_the_scan_are_not_shown(tmp_path):
    """Triggers after the end of the scan leave frames without a scan point."""
    frames = counting_frames((22, 4, 4), "uint16")
    path = write_mib(tmp_path / "scan.mib", frames, nav_shape=(4, 5))
    assert_reads(open_dataset(path), frames[:20].reshape(4, 5, 4, 4))
    assert_reads(open_dataset(path, nav_shape=(22,)), frames)


def test_a_replaced_file_gives_another_array(tmp_path):
    """Arrays of different versions never share a name, so no cache confuses them."""
    frames = counting_frames((3, 4, 4), "uint16")
    path = write_mib(tmp_path / "scan.mib", frames)
    before = open_dataset(path)
    shutil.copy(path, tmp_path / "copy.mib")
    path.unlink()
    shutil.move(tmp_path / "copy.mib", path)
    after = open_dataset(path)
    assert before.name != after.name
    assert_reads(after, frames)


def test_lost_frames_raise(tmp_path):
    """A scan that would be shifted is refused, unless the user passes nav_shape."""
    path = write_mib(tmp_path / "scan.mib", counting_frames((6, 4, 8), "uint16"), hdr=False)
    record = 384 + 2 * 4 * 8
    content = path.read_bytes()
    path.write_bytes(content[: 2 * record] + content[3 * record :])
    with pytest.raises(dask_tiled.TruncatedFileError, match="expected 5; found 6"):
        dask_tiled.open_dataset(path)
    assert dask_tiled.open_dataset(path, nav_shape=(5,)).shape == (5, 4, 8)


def test_header_fields_have_names(tmp_path):
    """Fields of Merlin headers are named in the metadata, with and without DACs."""
    frames = counting_frames((2, 4, 8), "uint16", bits=12)
    for dacs in (True, False):
        path = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=12, dacs=dacs)
        header = dask_tiled.describe(path).metadata["mib"]["header"]
        assert header["pixel type"] == "R64"
        assert header["layout"] == "1x1"
        assert header["counter depth"] == "12"
        assert header["exposure"].endswith("ns")


def test_masks_of_0_and_255_are_booleans(tmp_path):
    """Every byte except 0 is true, and counts as 1 in a sum."""
    mask = np.arange(24, dtype="u1").reshape(2, 3, 4) % 3 * 255
    path = write_raw(tmp_path / "mask.raw", mask)
    arr = open_dataset(path, "raw", dtype="bool", sig_shape=(3, 4))
    assert_reads(arr, mask != 0)
    np.testing.assert_array_equal(arr.compute().view("u1"), mask != 0)
    np.testing.assert_array_equal(arr.sum(axis=(1, 2)).compute(), (mask != 0).sum(axis=(1, 2)))
    np.testing.assert_array_equal(arr[:, ::2, 1:].sum(axis=0), (mask != 0)[:, ::2, 1:].sum(axis=0))


# Found by `make fuzz`: the sample, its file, a pattern, and the replacement

ZARR = "scan.zarr/zarr.json"
DAMAGE = {
    "no chips in a later frame": ("mib u16", "scan.mib", rb"(?<=MQ1,000002,00384,)01,", b"0,0"),
    "the array has empty chunks": ("zarr", ZARR, rb"(?<=\"chunk_shape\": \[)\s*2", b"0"),
    "chunks of too many pixels": ("zarr", ZARR, rb"(?<=\"chunk_shape\": \[)\s*2", b"9" * 20),
    "attributes that are a number": ("zarr", ZARR, rb"(?<=\"attributes\": ){}", b"1e308"),
    "shards of too many pixels": ("zarr shards", ZARR, rb"(?<=\"chunk_shape\": \[)\s*2", b"8" * 20),
}


def test_nan_is_added_up_without_a_warning(tmp_path):
    """Signalling NaN, too, if several values belong to one pixel."""
    sample = TABLE["raw_csr"](tmp_path, "scan")
    path = tmp_path / "scan.data"
    path.write_bytes(bytes.fromhex("0100a07f") * (path.stat().st_size // 4))
    assert np.isnan(open_dataset(**sample.options).compute()).sum() == (sample.expected != 0).sum()


def test_a_signalling_nan_in_an_affine(tmp_path):
    """The pixels are read without a warning."""
    sample = TABLE["nifti pair"](tmp_path, "scan")
    header = bytearray((tmp_path / "scan.hdr").read_bytes())
    header[254:256], header[280:284] = b"\0\1", bytes.fromhex("7fa00001")  # sform_code, srow_x
    (tmp_path / "scan.hdr").write_bytes(header)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")  # an error would count as one of the affine
        found = open_dataset(**sample.options).compute()
    assert not caught
    np.testing.assert_array_equal(found, sample.expected)


@pytest.mark.parametrize(("name", "file", "found", "put"), DAMAGE.values(), ids=list(DAMAGE))
def test_damage_found_by_fuzzing(tmp_path, name, file, found, put):
    """Pixels and frame facts are returned, or an error names the file."""
    sample = TABLE[name](tmp_path, "scan")
    path = tmp_path / file
    damaged, count = re.subn(found, put, path.read_bytes(), count=1)
    assert count == 1
    path.write_bytes(damaged)
    opens_or_raises(facts=True, **sample.options)
