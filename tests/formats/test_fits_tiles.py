"""Tile-compressed FITS images, compared with astropy."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
from astropy.io import fits
from checks import refuses

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.blocks.workers import question_of
from dask_tiled.testing import check_format, counting_frames

SHIPPED = Path(fits.__file__).parent
REAL = (
    "tests/data/comp.fits",
    "tests/data/compressed_float_bzero.fits",
    "tests/data/compressed_image.fits",
    "tests/data/double_ext.fits",
    "hdu/compressed/tests/data/compressed_with_nan.fits",
    "hdu/compressed/tests/data/m13_gzip.fits",
    "hdu/compressed/tests/data/m13_rice.fits",
)
INTEGERS = [("RICE_1", dtype) for dtype in ("u1", "i2", "u2", "i4", "u4")]
INTEGERS += [("GZIP_1", "u2"), ("GZIP_1", "i8"), ("GZIP_2", "i4"), ("NOCOMPRESS", "u4")]
FLOATS = [
    *[("GZIP_1", "f4", "none"), ("GZIP_2", "f8", "none"), ("NOCOMPRESS", "f4", "none")],
    *[("RICE_1", "f4", "no dither"), ("GZIP_2", "f8", "no dither"), ("RICE_1", "f8", "dither 1")],
    *[("NOCOMPRESS", "f4", "dither 1"), ("RICE_1", "f4", "dither 2"), ("GZIP_1", "f8", "dither 2")],
]


def write(path, frames, codec="RICE_1", *, tile=(1, 20, 30), **options):
    """Write the tile-compressed image behind a primary HDU without pixels."""
    packed = fits.CompImageHDU(
        frames, compression_type=codec, tile_shape=tile[-frames.ndim :], name="SCI", **options
    )
    fits.HDUList([fits.PrimaryHDU(), packed]).writeto(path)
    return path


@pytest.mark.parametrize("name", REAL)
def test_real_files_equal_astropy(name):
    path = SHIPPED / name
    if not path.exists():
        pytest.skip("not shipped with this astropy")
    expected = fits.getdata(path, 1)
    arr = dask_tiled.open_dataset(path, dataset=1, scaled=True)
    assert arr.dtype == expected.dtype.newbyteorder("=")
    np.testing.assert_array_equal(arr.compute(), expected)


@pytest.mark.parametrize(("codec", "dtype"), INTEGERS)
def test_integers(tmp_path, codec, dtype):
    """Tiles at the edges are smaller; all bits occur."""
    frames = np.random.default_rng(0).integers(0, 256, (2, 50, 61, np.dtype(dtype).itemsize), "u1")
    frames = np.sort(frames.view(dtype)[..., 0], axis=-1)
    path = write(tmp_path / "a.fits.fz", frames, codec)
    np.testing.assert_array_equal(fits.getdata(path, 1), frames)
    arr = dask_tiled.open_dataset(path, doubts="raise")
    assert arr.description.base_shape == (1, 20, 30)
    check_format(path, frames, cuts=1)


@pytest.mark.parametrize(("codec", "dtype", "method"), FLOATS)
def test_floats(tmp_path, codec, dtype, method):
    """Values that are quantised, dithered or packed as they are, with 0 and NaN among them."""
    options = {"none": {"quantize_level": 0}, "no dither": {"quantize_method": -1}}
    options |= {"dither 1": {"quantize_method": 1}, "dither 2": {"quantize_method": 2}}
    frames = np.random.default_rng(0).normal(100, 20, (2, 150, 161)).astype(dtype)
    frames[0, 3, 4], frames[1, 5, 6:60] = np.nan, 0
    path = write(tmp_path / "a.fits", frames, codec, tile=(1, 120, 130), **options[method])
    expected = fits.getdata(path, 1)
    found = dask_tiled.open_dataset(path).compute()
    assert found.dtype == expected.dtype.newbyteorder("=") == dtype
    np.testing.assert_array_equal(found, expected)
    if method == "none":
        np.testing.assert_array_equal(found, frames)


@pytest.mark.parametrize("ndim", [1, 2, 4])
def test_axes(tmp_path, ndim):
    shape = (2, 3, 7, 11)[-ndim:]
    frames = counting_frames(shape, "i4") if ndim > 2 else np.arange(np.prod(shape), dtype="i4")
    frames = frames.reshape(shape)
    path = write(tmp_path / "a.fits", frames, tile=(2, 2, 4, 5))
    arr = dask_tiled.open_dataset(path)
    assert arr.dims == ("t", "z", "y", "x")[-ndim:]
    np.testing.assert_array_equal(arr.compute(), frames)
    np.testing.assert_array_equal(arr[..., 3:9:2].compute(), frames[..., 3:9:2])


def test_scale_and_units(tmp_path):
    frames = counting_frames((3, 50, 61), "i2", bits=12)
    header = fits.Header({"BSCALE": 0.5, "BZERO": 7.0, "BUNIT": "Jy", "CDELT1": 2.0})
    path = tmp_path / "a.fits"
    write(path, frames)
    with fits.open(path, mode="update", disable_image_compression=True) as hdus:
        hdus[1].header.update(header)
    assert dask_tiled.describe(path).axes[-1].scale == 2.0
    np.testing.assert_array_equal(dask_tiled.open_dataset(path).compute(), frames)
    scaled = dask_tiled.open_dataset(path, scaled=True)
    np.testing.assert_array_equal(scaled.compute(), frames * 0.5 + 7)


def test_other_codecs_are_named(tmp_path):
    for codec in ("HCOMPRESS_1", "PLIO_1"):
        path = write(
            tmp_path / f"{codec}.fits", np.ones((1, 64, 64), "i2"), codec, tile=(1, 32, 64)
        )
        refuses(path, f"ZCMPTYPE.*expected RICE_1 or .*found {codec}.*funpack")


def table_of(path):
    """Return the offset of the table, and the header as text."""
    with fits.open(path, disable_image_compression=True) as hdus:
        return hdus[1].fileinfo()["datLoc"], hdus[1].header


def test_damaged_tables_raise(tmp_path):
    path = write(tmp_path / "a.fits", counting_frames((3, 50, 61), "u2", bits=12))
    whole, (at, header) = path.read_bytes(), table_of(path)
    assert (header["NAXIS1"], header["NAXIS2"]) == (8, 27)

    def changed(key, value):
        place = whole.index(key.ljust(8).encode() + b"=", 2880)
        return whole[: place + 10] + str(value).rjust(20).encode() + whole[place + 30 :]

    for key, value, problem in (
        ("NAXIS2", 26, "another number of tiles"),
        ("ZTILE1", 1, "another number of tiles"),
        ("ZNAXIS1", 1 << 61, "another number of tiles"),
        ("ZBITPIX", 12, "ZBITPIX"),
        ("TFORM1", "'1Y      '", "TFORM1"),
        ("TFORM1", "'9PB     '", "do not fit into a row"),
        ("TTYPE1", "'OTHER   '", "do not fit into a row"),
        ("ZVAL1", 0, "BLOCKSIZE"),
        ("ZVAL2", 3, "BYTEPIX"),
    ):
        refuses(path, problem, content=changed(key, value))
    refuses(path, "inside the table of tiles", TruncatedFileError, content=whole[: at + 100])


@pytest.mark.parametrize("codec", ["RICE_1", "GZIP_1", "NOCOMPRESS"])
def test_damaged_tiles_raise(tmp_path, codec):
    """Other tiles are read."""
    frames = counting_frames((3, 50, 61), "u2", bits=12)
    path = write(tmp_path / "a.fits", frames, codec)
    whole, (at, _) = bytearray(path.read_bytes()), table_of(path)
    for length, place, kind in (
        (0, 0, CorruptFileError),
        (3, 0, CorruptFileError),
        (-1, 0, TruncatedFileError),
        (10, -4, TruncatedFileError),
        (1 << 30, 1 << 30, TruncatedFileError),
    ):
        row = np.array([length, place], ">i4").tobytes()
        path.write_bytes(whole[:at] + row + whole[at + 8 :])
        arr = dask_tiled.open_dataset(path)
        with pytest.raises(kind, match=rf"a\.fits: .*the tile at byte {at}"):
            arr[0, 0, 0].compute()
        np.testing.assert_array_equal(arr[1:].compute(), frames[1:])


def test_a_tile_larger_than_its_bytes_can_hold_takes_no_memory(tmp_path):
    """A few bytes announce 2**40 pixels in one tile."""
    path = write(tmp_path / "a.fits", np.ones((1, 20, 30), "i4"))
    text = path.read_bytes()
    for axis in (1, 2):
        for key, old in ((f"ZNAXIS{axis}", (30, 20)), (f"ZTILE{axis}", (30, 20))):
            card = f"{key:8}= {old[axis - 1]:>20}".encode()
            assert card in text
            text = text.replace(card, f"{key:8}= {1 << 20:>20}".encode())
    refuses(path, "cannot hold a tile", content=text)


def test_tiles_in_a_compressed_file_raise(tmp_path):
    path = write(tmp_path / "a.fits", np.ones((1, 20, 30), "i4"))
    refuses(
        path,
        "tile-compressed images in a compressed file",
        content=gzip.compress(path.read_bytes()),
    )


def test_without_imagecodecs(tmp_path, monkeypatch):
    """It decodes Rice only; a file that needs it is refused when it is opened."""
    frames = counting_frames((2, 20, 30), "i2")
    rice, zipped = (
        write(tmp_path / f"{codec}.fits", frames, codec) for codec in ("RICE_1", "GZIP_1")
    )
    needed = {path: question_of([dask_tiled.describe(path)]).libraries for path in (rice, zipped)}
    assert needed == {rice: ("imagecodecs",), zipped: ()}
    monkeypatch.setitem(sys.modules, "imagecodecs", None)
    with pytest.raises(DatasetError, match=r'pip install "dask-tiled\[tiff\]"') as caught:
        dask_tiled.open_dataset(rice)
    assert caught.value.path == str(rice)
    np.testing.assert_array_equal(dask_tiled.open_dataset(zipped).compute(), frames)
