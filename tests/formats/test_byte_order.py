"""Byte orders that files do not tell are a doubt, which ``byte_order`` settles."""

import re

import numpy as np
import pytest
from checks import refuses

import dask_tiled
from dask_tiled import describe, open_dataset
from dask_tiled.testing import (
    counting_frames,
    write_edf,
    write_gis,
    write_metaimage,
    write_nrrd,
    write_raw_csr,
    write_ripple,
)

pytestmark = pytest.mark.usefixtures("synchronous")

FRAMES = counting_frames((3, 4, 5), "u2")


def ripple(path, frames):
    return write_ripple(path.with_suffix(".rpl"), frames, further={"byte-order": "dont-care"})[1]


def gis(path, frames):
    order = frames.dtype.str[0].replace("|", "<")
    header = write_gis(path.with_suffix(".ima"), frames, order=order)[1]
    header.write_text(re.sub("-bo .*", "", header.read_text()))
    return header


def metaimage(path, frames):
    (path,) = write_metaimage(
        path.with_suffix(".mha"), frames, keys={"BinaryDataByteOrderMSB": None}
    )
    return path


def edf(path, frames):
    order = frames.dtype.str[0].replace("|", "<")
    path = write_edf(path.with_suffix(".edf"), frames, order=order)
    path.write_bytes(re.sub(rb"ByteOrder = \w+", rb"SomeOther = 1", path.read_bytes()))
    return path


def raw_csr(path, frames):
    path = write_raw_csr(path.with_suffix(".toml"), frames, indptr_dtype="u1", indices_dtype="u1")
    path.write_text(re.sub('data_dtype = "[<>]', 'data_dtype = "', path.read_text()))
    return path


WRITERS = [ripple, gis, metaimage, edf, raw_csr]


@pytest.mark.parametrize("write", WRITERS)
def test_an_untold_order_is_in_doubt(tmp_path, write):
    """Pixels are those of the order that is passed; without it they are little-endian."""
    for order, name in (("<", "little"), (">", "big")):
        path = write(tmp_path / name, FRAMES.astype(f"{order}u2"))
        (doubt,) = describe(path).doubts
        assert doubt.code == "byte-order"
        assert doubt.text.startswith("numbers of 2 bytes are read as little-endian; ")
        assert doubt.settle == "pass byte_order='little', or byte_order='big'"
        expected = FRAMES if order == "<" else FRAMES.byteswap()
        np.testing.assert_array_equal(open_dataset(path, doubts="ignore"), expected)
        arr = open_dataset(path, byte_order=name, doubts="raise")
        assert arr.dtype == "u2"
        np.testing.assert_array_equal(arr, FRAMES)


@pytest.mark.parametrize("write", WRITERS)
def test_single_bytes_leave_no_doubt(tmp_path, write):
    path = write(tmp_path / "a", FRAMES.astype("u1"))
    np.testing.assert_array_equal(open_dataset(path, doubts="raise"), FRAMES.astype("u1"))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_ripple(path / "a.rpl", FRAMES)[1],
        lambda path: write_gis(path / "a.ima", FRAMES, order="<")[1],
        lambda path: write_metaimage(path / "a.mha", FRAMES)[0],
        lambda path: write_edf(path / "a.edf", FRAMES),
        lambda path: write_raw_csr(path / "a.toml", FRAMES, indptr_dtype="u1", indices_dtype="u1"),
        lambda path: write_nrrd(path / "a.nrrd", FRAMES)[0],
    ],
    ids=["ripple", "gis", "metaimage", "edf", "raw_csr", "nrrd"],
)
def test_the_order_of_the_user_replaces_the_told_one(tmp_path, write):
    path = write(tmp_path)
    np.testing.assert_array_equal(open_dataset(path, doubts="raise"), FRAMES)
    swapped = open_dataset(path, byte_order="big", doubts="raise")
    np.testing.assert_array_equal(swapped, FRAMES.byteswap())
    for wrong in (">", "Big", 1, ["big"]):
        refuses(path, r"invalid byte_order; expected 'little' or 'big'", byte_order=wrong)


@pytest.mark.parametrize("encoding", ["raw", "hex"])
def test_nrrd_has_to_tell_the_order(tmp_path, encoding):
    """As the definition of the format requires it, unless the user passes it."""
    stored = FRAMES.astype(">u2")
    path, *_ = write_nrrd(tmp_path / "a.nrrd", stored)
    header = re.sub(rb"\nendian: \w+", b"", path.read_bytes().partition(b"\n\n")[0])
    pixels = stored.tobytes() if encoding == "raw" else stored.tobytes().hex().encode()
    path.write_bytes(header.replace(b"raw", encoding.encode()) + b"\n\n" + pixels)
    refuses(path, r"'endian'.*or the option byte_order")
    arr = open_dataset(path, byte_order="big", doubts="raise")
    np.testing.assert_array_equal(arr, FRAMES)


def test_gis_as_text_has_no_order(tmp_path):
    _, header = write_gis(tmp_path / "a.ima", FRAMES, order=None, ascii=True)
    assert describe(header, doubts="raise").doubts == ()


def test_formats_with_the_option():
    found = {name for name, one in dask_tiled.formats().items() if "byte_order" in one.options()}
    assert found == {one.__name__ for one in WRITERS} | {"nrrd"}
