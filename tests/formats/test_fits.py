"""FITS images, compared with astropy."""

import bz2
import gzip
import importlib
import lzma
from pathlib import Path

import numpy as np
import pytest
from astropy.io import fits
from checks import refuses
from click.testing import CliRunner

import dask_tiled
from dask_tiled.command_line.app import app
from dask_tiled.testing import check_format, counting_frames, write_fits

descriptor = importlib.import_module("dask_tiled.formats.fits.descriptor")
SHIPPED = Path(fits.__file__).parent / "tests" / "data"
REAL = ("arange", "checksum", "fixed-1890", "o4sp040b0_raw", "scale", "test0")
TYPES = ["u1", "i1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


@pytest.mark.parametrize("dtype", TYPES)
def test_files_written_by_astropy(tmp_path, dtype):
    frames = np.random.default_rng(0).integers(0, 256, (3, 5, 7, np.dtype(dtype).itemsize), "u1")
    frames = frames.view(dtype)[..., 0] if dtype[0] in "iu" else counting_frames((3, 5, 7), dtype)
    path = tmp_path / "sky.fits"
    fits.HDUList([fits.PrimaryHDU(), fits.ImageHDU(frames, name="SCI")]).writeto(path)

    assert dask_tiled.describe(path).metadata["fits"]["hdu"] == 1
    check_format(path, frames, cuts=5)
    check_format(path, frames, cuts=1, dataset="SCI")
    check_format(path, frames, cuts=1, scaled=True)  # there is nothing to scale


@pytest.mark.parametrize(
    ("module", "dtype"), [(gzip, "u2"), (gzip, "f4"), (gzip, "i1"), (bz2, "u8"), (lzma, "i4")]
)
def test_compressed_files(tmp_path, module, dtype):
    """Compressed files of any suffix equal astropy's; truncated ones raise."""
    frames = counting_frames((2, 5, 7), dtype, bits=7)
    plain = write_fits(tmp_path / "sky.fits", frames, None, frames[0] // 2)
    suffix = {gzip: ".gz", bz2: ".bz2", lzma: ".xz"}[module]
    for path in (tmp_path / f"sky.fits{suffix}", tmp_path / "sky.fit", tmp_path / "sky"):
        path.write_bytes(module.compress(plain.read_bytes()))
        assert dask_tiled.describe(path).format == "fits"
        for number in (0, 2):
            with fits.open(path, uint=True) as hdus:
                stored = hdus[number].data
            check_format(path, stored.astype(dtype), cuts=1, dataset=number)
    path.write_bytes(module.compress(plain.read_bytes()[: 2880 + frames.nbytes - 1]))
    with pytest.raises(dask_tiled.TruncatedFileError, match="inside the pixels"):
        dask_tiled.open_dataset(path).compute()
    refuses(
        path,
        "inside a header",
        dask_tiled.TruncatedFileError,
        content=module.compress(plain.read_bytes()[:2879]),
    )
    path.write_bytes(module.compress(plain.read_bytes())[:-20])
    with pytest.raises(dask_tiled.DatasetError, match="sky"):
        dask_tiled.open_dataset(path).compute()


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_search_for_headers_in_a_compressed_file_is_bounded(tmp_path):
    """A small part is decompressed of the terabytes that a header may announce."""
    path = tmp_path / "sky.fits"
    cards = b"SIMPLE  = T", b"BITPIX  = 8", b"NAXIS   = 0", b"END"
    table = b"XTENSION= 'BINTABLE'", b"BITPIX  = 8", b"NAXIS   = 1", b"NAXIS1  = %d" % 2**50, b"END"
    blocks = (b"".join(card.ljust(80) for card in some).ljust(2880) for some in (cards, table))
    refuses(path, "no pixels", content=bz2.compress(b"".join(blocks) + bytes(1 << 26)))


@pytest.mark.parametrize("name", REAL)
def test_real_files(name):
    """Each image in the files of astropy's own tests equals astropy's."""
    path = SHIPPED / f"{name}.fits"
    if not path.exists():
        pytest.skip("astropy comes without its test files")
    with fits.open(path, uint=True) as hdus:
        images = {k: hdu.data for k, hdu in enumerate(hdus) if hdu.is_image and hdu.size}
        for number, image in images.items():
            found = dask_tiled.open_dataset(path, dataset=number, scaled=True).compute()
            np.testing.assert_allclose(found, image)
    assert dask_tiled.describe(path).metadata["fits"]["hdu"] == min(images)


@pytest.mark.parametrize("kind", ["i2", "u1", "f4"])
def test_scaled(tmp_path, kind):
    stored = counting_frames((5, 7), kind)
    hdu = fits.PrimaryHDU(stored)
    path = tmp_path / "sky.fits"
    hdu.writeto(path)
    with fits.open(path, mode="update", do_not_scale_image_data=True) as hdus:
        hdus[0].header["BSCALE"] = 0.25
        hdus[0].header["BZERO"] = 1e3

    check_format(path, stored, cuts=1)
    with fits.open(path) as hdus:
        expected = hdus[0].data
    found = dask_tiled.open_dataset(path, scaled=True)
    assert found.dtype == "f8"
    np.testing.assert_allclose(found.compute(), expected)
    assert dask_tiled.describe(path, scaled=True).metadata["fits"]["scaled"]


def test_axes(tmp_path):
    cards = {"CTYPE1": "WAVE", "CUNIT1": "nm", "CDELT1": 2.5, "CRPIX1": 3.0, "CRVAL1": "4.0D2"}
    cards |= {"CTYPE2": "RA---TAN", "CUNIT2": "deg", "CDELT2": 0.1}
    path = write_fits(tmp_path / "sky.fits", np.ones((2, 5, 7), "u1"), cards=cards)
    path.write_bytes(path.read_bytes().replace(b"'4.0D2   '", b" 4.0D2    "))

    z, y, x = dask_tiled.describe(path).axes
    assert (x.name, x.units, x.scale, x.offset) == ("x", "nm", 2.5, 395.0)
    with fits.open(path) as hdus:
        assert hdus[0].header["CRVAL1"] == 400
    assert (y.name, y.scale, y.units) == ("y", 1.0, "")  # a projection is no scale
    assert z == dask_tiled.Axis("z")
    write_fits(path, np.ones((5, 7), "u1"), cards={**cards, "CRVAL1": 400, "CDELT1": -2.5})
    assert dask_tiled.describe(path).axes[1] == dask_tiled.Axis("x", "nm", -2.5, 405)
    write_fits(path, np.ones((2, 5, 7), "u1"), cards={**cards, "CRVAL1": 4, "CD1_2": 0.5})
    assert dask_tiled.describe(path).axes[2] == dask_tiled.Axis("x")


def test_keys_without_a_value(tmp_path):
    cards = {"BSCALE": "", "CDELT1": "", "OBJECT": "M 31"}
    path = write_fits(tmp_path / "sky.fits", np.ones((5, 7), "u1"), cards=cards)
    path.write_bytes(path.read_bytes().replace(b"'        '", b"/ unknown "))

    header = dask_tiled.describe(path).metadata["fits"]["header"]
    assert header["OBJECT"] == "M 31"
    assert "BSCALE" not in header
    check_format(path, np.ones((5, 7), "u1"), cuts=1)


@pytest.mark.thorough
def test_hdus_without_images(tmp_path):
    path = tmp_path / "sky.fits"
    table = fits.BinTableHDU.from_columns([fits.Column("a", "J", array=[1, 2, 3])])
    groups = fits.ImageHDU(np.ones((5, 7), "u1"), name="SCI")
    fits.HDUList([fits.PrimaryHDU(), table, groups]).writeto(path)

    assert dask_tiled.describe(path).metadata["fits"]["hdu"] == 2
    for dataset, found in ((0, "no axes"), (1, "BINTABLE")):
        refuses(path, f"no pixels.*HDU {dataset} .*{found}", dataset=dataset)
    refuses(path, "no such dataset", dataset="ERR")


@pytest.mark.parametrize(
    ("card", "value", "error"),
    [
        ("BITPIX", "17", dask_tiled.DatasetError),
        ("NAXIS", "-1", dask_tiled.CorruptFileError),
        ("NAXIS", "4", dask_tiled.CorruptFileError),
        ("NAXIS", "T", dask_tiled.CorruptFileError),
        ("NAXIS1", "9" * 20, dask_tiled.CorruptFileError),
        ("NAXIS1", "4" + "0" * 18, dask_tiled.TruncatedFileError),
        ("NAXIS2", "7.5", dask_tiled.CorruptFileError),
        ("NAXIS2", "''", dask_tiled.CorruptFileError),
        ("BSCALE", "'many'", dask_tiled.CorruptFileError),
    ],
)
def test_invalid_header_raises(tmp_path, card, value, error):
    path = write_fits(tmp_path / "sky.fits", np.ones((2, 5, 7), "u2"))
    data = path.read_bytes()
    at = data.index(f"{card:8}=".encode())
    path.write_bytes(data[: at + 10] + value.rjust(20).encode() + data[at + 30 :])

    refuses(path, "sky", error)


def test_header_without_an_end_raises(tmp_path):
    path = write_fits(tmp_path / "sky.fits", np.ones((2, 5, 7), "u2"))
    data = path.read_bytes().replace(b"END ", b"    ")
    refuses(path, "inside a header", dask_tiled.TruncatedFileError, content=data)
    with path.open("ab") as file:
        file.truncate(1 << 28)  # a hole: it takes no space
    refuses(path, "has no end", dask_tiled.CorruptFileError)


def test_number_of_headers_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(descriptor, "MAX_HEADERS", 100 * 2880)
    path = tmp_path / "sky.fits"
    primary, extension = (
        b"".join(card.ljust(80) for card in (first, b"BITPIX  = 8", b"NAXIS   = 0", b"END"))
        for first in (b"SIMPLE  = T", b"XTENSION= 'IMAGE   '")
    )
    for count, problem in ((10, "no pixels"), (100, "no pixels"), (101, "too many")):
        refuses(path, problem, content=primary.ljust(2880) + count * extension.ljust(2880))


def write_many(path, count, shapes=((4, 5),)):
    """Write a file of images, whose shapes take turns; names are I0, I1, ..."""
    blocks = [("SIMPLE  = T", "BITPIX  = 8", "NAXIS   = 0")]
    for number in range(count):
        rows, columns = shapes[min(number, len(shapes) - 1)]
        sizes = "NAXIS   = 2", f"NAXIS1  = {columns}", f"NAXIS2  = {rows}"
        name = f"EXTNAME = 'I{number}'"
        blocks.append(("XTENSION= 'IMAGE   '", "BITPIX  = 8", *sizes, name))
    with path.open("wb") as file:
        for number, cards in enumerate(blocks):
            text = "".join(card.ljust(80) for card in (*cards, "END"))
            file.write(text.ljust(2880).encode() + bytes([number % 256]) * 2880 * (number > 0))
    return path


@pytest.mark.parametrize(
    ("dataset", "headers", "value"),
    [(None, 101, 1), (1, 2, 1), (300, 301, 44), ("I299", 301, 44), ("I0", 301, 1)],
)
def test_headers_of_a_file_with_300_images(tmp_path, monkeypatch, dataset, headers, value):
    """By default, those that metadata list are enough; that a name is unique takes all headers."""
    path, seen = write_many(tmp_path / "a.fits", 300), []
    read = descriptor._read_hdu
    monkeypatch.setattr(descriptor, "_read_hdu", lambda *args: seen.append(0) or read(*args))
    desc = dask_tiled.describe(path, dataset=dataset)
    assert len(seen) == headers
    arr = dask_tiled.open_dataset(path, dataset=dataset, doubts="ignore")
    assert set(arr.compute().ravel().tolist()) == {value}
    assert [doubt.code for doubt in desc.doubts] == ["default-dataset"] * (dataset is None)
    if dataset is None:
        assert desc.doubts[0].text.startswith("100 arrays or more may be meant; I0 is shown")
        assert desc.doubts[0].text.endswith("others: I1, I2, I3, I4, I5, I6, ...")


def test_images_behind_the_first_of_a_compressed_file(tmp_path, monkeypatch):
    """They are looked for, unless much would have to be decompressed."""
    path = tmp_path / "a.fits.gz"
    path.write_bytes(gzip.compress(write_many(tmp_path / "a.fits", 3).read_bytes()))
    (doubt,) = dask_tiled.describe(path).doubts
    assert doubt.text.startswith("3 arrays may be meant; I0 is shown")
    monkeypatch.setattr(descriptor, "MOST_UNPACKED", 2880)
    assert dask_tiled.describe(path).doubts == ()
    monkeypatch.undo()
    path.write_bytes(gzip.compress((tmp_path / "a.fits").read_bytes())[:-30])
    assert dask_tiled.describe(path).shape == (4, 5)


def test_a_rival_is_found_behind_many_small_images(tmp_path):
    path = write_many(tmp_path / "a.fits", 500, [(40, 50), *[(2, 2)] * 498, (40, 20)])
    (doubt,) = dask_tiled.describe(path).doubts
    assert doubt.text.startswith("2 arrays may be meant; I0 is shown")
    assert doubt.text.endswith("the others: I499")


def test_headers_behind_a_number_are_not_read(tmp_path):
    """By a number, an image opens although a later header is damaged; by a name, all are read."""
    path, frames = tmp_path / "a.fits", counting_frames((3, 4, 5), "i2")
    images = [fits.PrimaryHDU(frames), fits.ImageHDU(frames + 1, name="B"), fits.ImageHDU(frames)]
    fits.HDUList(images).writeto(path)
    data = path.read_bytes()
    at = data.rindex(b"BITPIX")
    path.write_bytes(data[:at] + data[at : at + 80].replace(b" 16 ", b" 17 ") + data[at + 80 :])
    np.testing.assert_array_equal(dask_tiled.open_dataset(path, dataset=1), frames + 1)
    for dataset in (2, "B"):
        refuses(path, "BITPIX", dataset=dataset)


def cut(data, at):
    return data[: at + 100]


def overwritten(data, at):
    noise = np.random.default_rng(5).integers(0, 256, 2880, "u1").tobytes()
    return data[:at] + noise + data[at + 2880 :]


def emptied(data, at):
    return data[:at] + bytes(2880) + data[at + 2880 :]


@pytest.mark.parametrize("damage", [cut, overwritten, emptied])
def test_hdus_behind_damage_are_a_doubt(tmp_path, damage):
    """All that list the HDUs tell that there may be more."""
    path = write_many(tmp_path / "a.fits", 7)  # with the primary one, 8 HDUs
    path.write_bytes(damage(path.read_bytes(), 7 * 2880))
    doubts = dask_tiled.describe(path).doubts
    assert [one.code for one in doubts] == ["default-dataset", "lost-datasets"]
    assert doubts[1].text.startswith("4 HDUs are listed, up to byte 20160; what follows is not")
    with pytest.raises(dask_tiled.DoubtError, match="4 HDUs are listed"):
        dask_tiled.open_datasets(path, missing="raise", doubts="raise")
    with pytest.warns(dask_tiled.DoubtWarning, match="4 HDUs are listed"):
        assert [*dask_tiled.open_datasets(path)] == ["I0", "I1", "I2"]
    assert dask_tiled.describe(path, dataset=3, doubts="raise").shape == (4, 5)
    refuses(path, r"number below 4, or|inside a header", dataset=5)
    for args in (["info", path], ["convert", "--all", path, tmp_path / "a.zarr"]):
        result = CliRunner().invoke(app, [args[0], "--strict", *map(str, args[1:])])
        assert result.exit_code == 3, result.stderr
        assert "4 HDUs are listed" in result.stderr
        assert not (tmp_path / "a.zarr").exists()


@pytest.mark.parametrize("padding", [bytes(28800), b"  \n", b"\x1a" + bytes(2879)])
def test_padding_behind_the_last_hdu_is_no_doubt(tmp_path, padding):
    path = write_many(tmp_path / "a.fits", 1)
    path.write_bytes(path.read_bytes() + padding)
    assert dask_tiled.describe(path).doubts == ()


def test_an_invalid_number_of_hdus_without_names(tmp_path):
    path = write_fits(tmp_path / "a.fits", np.ones((2, 2), "u1"), None, np.ones((2, 2), "u1"))
    refuses(path, "expected a number below 3; found", dataset=3)
