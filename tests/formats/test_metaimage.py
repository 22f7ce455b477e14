"""MetaImage volumes: written ones against their arrays, a real one against NumPy."""

import gzip
import math
import re
import zlib

import numpy as np
import pytest
from checks import axes_text, peak_memory, refuses
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.formats.metaimage import TYPES
from dask_tiled.testing import check_format, counting_frames, write_metaimage

pytestmark = pytest.mark.usefixtures("synchronous")

VOLUME = counting_frames((4, 5, 6), "u2")
DTYPES = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + ["f4", "f8"]


def test_real_file_equals_numpy(data):
    path = data / "more/metaimage/mha.mha"
    header, _, pixels = path.read_bytes().partition(b"ElementDataFile = LOCAL\n")
    fields = dict(re.findall(r"(\w+) = (.*)", header.decode()))
    shape = tuple(map(int, fields["DimSize"].split()))[::-1]
    expected = np.frombuffer(zlib.decompress(pixels), "<i2").reshape(shape)
    check_format(path, expected, cuts=3)
    desc = dask_tiled.describe(path)
    assert (desc.format, desc.dims, desc.shape) == ("metaimage", ("z", "y", "x"), (37, 64, 64))
    assert [a.scale for a in desc.axes] == pytest.approx([3.8, 3.4375, 3.4375])
    # y is reversed in space
    assert [a.offset for a in desc.axes] == pytest.approx([-47.8356, -82.3795, -108.281])
    assert desc.metadata["metaimage"]["header"] == fields | {"ElementDataFile": "LOCAL"}


def test_names_of_types_and_keys(tmp_path):
    """Longs have four bytes on every machine."""
    for name, dtype in TYPES.items():
        stored = counting_frames((3, 4), np.dtype(dtype).newbyteorder(">"))
        keys = {"ElementType": name, "BinaryDataByteOrderMSB": None, "ElementByteOrderMSB": "T"}
        (path,) = write_metaimage(tmp_path / "a.mha", stored, keys=keys)
        found = dask_tiled.open_dataset(path)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, stored)
    assert TYPES["MET_LONG"] == "i4"
    assert TYPES["MET_ULONG_LONG_ARRAY"] == "u8"


@given(
    array=hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=2, max_side=3)),
    order=st.sampled_from("<>"),
    compressed=st.booleans(),
    channels=st.booleans(),
    files=st.integers(0, 9),
    pattern=st.booleans(),
)
def test_any_volume_of_any_parts(tmp_path_factory, array, order, files, **options):
    stored = array.astype(array.dtype.newbyteorder(order))
    files = math.gcd(files, array.size)
    folder = tmp_path_factory.mktemp("any")
    *_, path = write_metaimage(folder / "a.mhd", stored, files=files, **options)
    try:
        arr = dask_tiled.open_dataset(path)
    except CorruptFileError as error:  # parts that are no boxes of the array
        assert error.problem == "the array cannot be split among the files"  # noqa: PT017
        assert files > 1
    else:
        channels = options["channels"] and array.shape[-1] > 1
        expected = array[..., 0] if options["channels"] and not channels else array
        np.testing.assert_array_equal(arr, expected)
        assert (arr.description.dims[-1] == "component") is channels


@pytest.mark.parametrize(
    ("files", "pattern", "size"),
    [(1, True, 13), (2, False, -1), (2, True, 0), (4, True, -1), (4, False, 13), (20, False, 0)],
)
def test_pixels_in_other_files_with_headers(tmp_path, files, pattern, size):
    options = {"files": files, "pattern": pattern, "keys": {"HeaderSize": size}}
    *members, path = write_metaimage(tmp_path / "a.mhd", VOLUME, **options)
    check_format(path, VOLUME, cuts=1)
    assert [file.path for file in dask_tiled.describe(path).files] == list(map(str, members))


def test_header_sizes_of_the_file_itself(tmp_path):
    (path,) = write_metaimage(tmp_path / "a.mha", VOLUME, keys={"HeaderSize": 1000})
    header, _, _ = path.read_bytes().partition(b"header ")
    for size in (b"1000", b"-1"):
        text = header.replace(b"1000", size).ljust(1000)
        path.write_bytes(text + VOLUME.tobytes())
        np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)


@pytest.mark.parametrize("files", [1, 4])
def test_gzip_without_a_word(tmp_path, files):
    """Files have other sizes than the pixels, and begin like gzip; ITK shows noise."""
    *members, path = write_metaimage(tmp_path / "a.mhd", VOLUME, files=files)
    for member in members:
        member.write_bytes(gzip.compress(member.read_bytes()))
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)


def test_pixels_that_begin_like_gzip_are_raw(tmp_path):
    volume = np.frombuffer(gzip.compress(VOLUME.tobytes()), "u1")
    *_, path = write_metaimage(tmp_path / "a.mhd", volume.reshape(1, 1, -1), files=1)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), volume.reshape(1, 1, -1))


def test_sizes_of_elements_stand_in_for_their_spacing(tmp_path):
    """As in MetaIO, where the spacing is absent."""
    size, spacing = {"ElementSize": (0.5, 2, 5)}, {"ElementSpacing": (1, 3, 7)}
    for keys, steps in ((size, [5, 2, 0.5]), (size | spacing, [7, 3, 1])):
        (path,) = write_metaimage(tmp_path / "a.mha", VOLUME, keys={"ElementSpacing": None} | keys)
        assert [axis.scale for axis in dask_tiled.describe(path).axes] == steps


def test_damaged_streams_raise(tmp_path):
    """Truncated streams and wrong checksums raise; bytes after a stream are ignored."""
    pixels, path = write_metaimage(tmp_path / "a.mhd", VOLUME, files=1, compressed=True)
    whole = pixels.read_bytes()
    for data in (*(whole[:size] for size in range(0, len(whole), 7)), whole[:-1] + b"?", b"?" * 99):
        pixels.write_bytes(data)
        with pytest.raises(DatasetError, match=r"a000\.raw"):
            dask_tiled.open_dataset(path).compute()
    pixels.write_bytes(whole + b"more")
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)


def test_short_streams_raise(tmp_path):
    keys = {"DimSize": f"1000 1000 {2**40}"}
    (path,) = write_metaimage(tmp_path / "a.mha", VOLUME, compressed=True, keys=keys)
    refuses(path, "cannot hold", TruncatedFileError)
    (path,) = write_metaimage(
        tmp_path / "b.mha", VOLUME, compressed=True, keys={"DimSize": "6 5 5"}
    )
    with pytest.raises(TruncatedFileError, match="ends inside the pixels"):
        dask_tiled.open_dataset(path).compute()


@pytest.mark.parametrize("more", [1, 1 << 26])
@pytest.mark.parametrize("library", [zlib, gzip])
def test_streams_longer_than_the_pixels_raise(tmp_path, library, more):
    """At most one byte more than the pixels is decompressed."""
    pixels, path = write_metaimage(tmp_path / "a.mhd", VOLUME, files=1, compressed=True)
    pixels.write_bytes(library.compress(VOLUME.tobytes() + bytes(more)))
    expected = r"a000\.raw: .*expected 240 bytes"
    with pytest.raises(CorruptFileError, match=expected) as caught, peak_memory() as peak:
        dask_tiled.open_dataset(path).compute()
    assert caught.value.found == "more bytes"
    assert peak[0] < 1 << 24


@pytest.mark.parametrize(("told", "unit"), [("um", "µm"), ("mm", "mm"), ("cm", "cm"), ("?", "")])
def test_spacing_offset_and_direction(tmp_path, told, unit):
    keys = {"ElementSpacing": (0.5, 2, 5), "Position": (1, 10, 100), "DistanceUnits": told}
    keys["Orientation"] = (0, -1, 0, 1, 0, 0, 0, 0.6, 0.8)
    (path,) = write_metaimage(tmp_path / "a.mha", VOLUME, keys=keys)
    scales = [f"{scale} {unit}".strip() for scale in ("z 5+86", "y 2+1", "x 0.5-10")]
    assert axes_text(dask_tiled.describe(path)) == ", ".join(scales)


def test_offsets_alone_and_many_axes(tmp_path):
    array = counting_frames((1, 2, 1, 3, 2), "u1")
    (path,) = write_metaimage(tmp_path / "a.mha", array, keys={"Offset": (1, 2, 3, 4, 5)})
    check_format(path, array, cuts=1)
    scales = "dim_4 1+5, t 1+4, z 1+3, y 1+2, x 1+1"
    assert axes_text(dask_tiled.describe(path)) == scales


@pytest.mark.parametrize("size", [b"-2", b"1000", b"%d" % 2**63, b"a", b""])
def test_invalid_header_sizes_raise(tmp_path, size):
    (path,) = write_metaimage(tmp_path / "a.mha", VOLUME)
    refuses(path, r"a\.mha", content=b"HeaderSize = " + size + b"\n" + path.read_bytes())


@pytest.mark.parametrize("name", ["", "none.raw", "LIST", "LIST 2D", "a%d.raw 1 2 1", "../a.raw"])
def test_missing_files_raise(tmp_path, name):
    pixels, path = write_metaimage(tmp_path / "a.mhd", VOLUME, files=1)
    path.write_text(path.read_text().replace(pixels.name, name))
    refuses(path, r"a\.mhd")
