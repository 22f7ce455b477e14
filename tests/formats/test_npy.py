"""NumPy files: real ones, and damaged or hostile headers."""

import math
import warnings

import numpy as np
import pytest
from checks import refuses
from manifest import by_file, expected_of, manifest

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, describe, open_dataset
from dask_tiled.formats.npy import read_header

pytestmark = pytest.mark.usefixtures("synchronous")


@pytest.mark.filterwarnings("ignore:.*created on Python 2:UserWarning")  # numpy's own reader
@by_file(manifest("NPY"), "row")
def test_npy_file_has_the_shape_dtype_and_sum_of_the_manifest(data, row):
    """Files are read as by NumPy; pickled objects raise."""
    path = data / row["file"]
    if "O" in row["shape_dtype"]:
        with pytest.raises(dask_tiled.DatasetError, match="pickle") as caught:
            dask_tiled.open_dataset(path)
        assert str(path.name) in str(caught.value)
        return
    arr = dask_tiled.open_dataset(path)
    shape, dtype, total = expected_of(row)
    assert arr.description.format == "npy"
    assert arr.shape == shape
    assert arr.dtype == dtype
    pixels = arr.compute()
    np.testing.assert_array_equal(pixels, np.load(path))
    assert pixels.sum() == pytest.approx(total, rel=1e-14)


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0:UserWarning")
def test_names_of_fields_that_need_version_3(tmp_path):
    array = np.arange(6).astype([("µ", "<i4"), ("中", "<f4")]).reshape(2, 3)
    np.save(tmp_path / "array.npy", array)
    found = open_dataset(tmp_path / "array.npy", sig_dims=1)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.compute(), array)


@pytest.mark.parametrize("shape", ["(3L, 4L)", "(3L, 4)", "(12L,)"])
def test_lengths_as_python_2_wrote_them(tmp_path, shape):
    """NumPy's warning is avoided; names of fields may look like such lengths."""
    text = npy_text(descr="[('a3L', '<i4')]", shape=shape)
    path = write_npy_header(tmp_path / "array.npy", text, np.arange(12, dtype="<i4").tobytes())
    found = open_dataset(path, sig_dims=1).compute()
    assert found.dtype.names == ("a3L",)
    np.testing.assert_array_equal(found["a3L"].ravel(), np.arange(12))


@pytest.mark.parametrize("text", ["{}  \n   ", " {}", "{}\n\n\t"])
def test_space_around_a_header(tmp_path, text):
    """Whitespace is ignored, without NumPy's warning."""
    path = write_npy_header(tmp_path / "array.npy", text.format(npy_text()))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")  # an error would count as one of the header
        assert open_dataset(path).shape == (3, 4)
    assert not warned


def test_file_that_numpy_repairs_raises(tmp_path):
    """NumPy reads the file with a warning."""
    text = npy_text(shape="(3 L, 4)")
    path = write_npy_header(tmp_path / "array.npy", text)
    with pytest.warns(UserWarning, match="Python 2"):
        assert np.load(path).shape == (3, 4)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        refuses(path, "header", CorruptFileError)
    assert not warned


def write_npy_header(path, text, content=b"\0" * 96, version=1):
    """Write an npy file with any text as its header."""
    head = text.encode("latin1") if isinstance(text, str) else text
    length = len(head).to_bytes(2 if version == 1 else 4, "little")
    path.write_bytes(b"\x93NUMPY" + bytes([version, 0]) + length + head + content)
    return path


def npy_text(descr="'<f8'", shape="(3, 4)", order="False"):
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"MQ1,000001", r"expected b'\\x93NUMPY', .* at most 65536 bytes; found .*b'MQ1,0000'"),
        (b"\x93NUMPY\x04\x00", r"version 1, 2 or 3, .* found .*NUMPY.*x04"),
        (b"\x93NUMPY\x01\x00\x76\x00{'descr'", "found .*18 of the 128 bytes of a header"),
        (b"\x93NUMPY", "found"),
        (b"\x93NUMPY\x01\x00", "found"),
        (b"\x93NUMPY\x00\x00\x10\x00{}", "version 1, 2 or 3"),
        (b"\x93NUMPY\xff\xff\xff\xff\xff\xff", "version 1, 2 or 3"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "header"),
        (b"\x93NUMPY\x03\x00\x08\x00\x00\x00{'\xff\xfe': 1}", "header"),
    ],
)
def test_invalid_start_of_a_file_raises(tmp_path, content, match):
    """The error names the bytes found instead of the magic ones, or the truncated header."""
    path = tmp_path / "array.npy"
    refuses(path, match, CorruptFileError, format="npy", content=content)


@pytest.mark.parametrize(
    ("descr", "shape"),
    [("'<f8'", "(-3, 4)"), ("'<f8'", f"({1 << 63}, 0)"), ("'<f8'", "(True, 4)"), ("'S0'", "(3,)")],
)
def test_malformed_shapes_and_types_raise(tmp_path, descr, shape):
    path = write_npy_header(tmp_path / "array.npy", npy_text(descr=descr, shape=shape))
    refuses(path, "malformed header", CorruptFileError)


def test_other_frames(tmp_path):
    """Elements at the end that do not fill a frame are ignored."""
    array = np.arange(24, dtype="<i4").reshape(2, 3, 4)
    np.save(tmp_path / "array.npy", array)

    def opened(**options):
        arr = open_dataset(tmp_path / "array.npy", **options)
        return arr.description.nav_shape, arr.description.sig_shape, arr.compute()

    for options, nav, expected in [
        ({"sig_dims": 0}, (2, 3, 4), array),
        ({"sig_dims": 3}, (), array),
        ({"sig_shape": (3, 4)}, (2,), array),
        ({"sig_shape": (4, 3)}, (2,), array.reshape(2, 4, 3)),
        ({"sig_shape": (5,)}, (4,), array.reshape(-1)[:20].reshape(4, 5)),
    ]:
        found = opened(**options)
        assert found[:2] == (nav, expected.shape[len(nav) :])
        np.testing.assert_array_equal(found[2], expected)
    facts = {"shape": (2, 3, 4), "fortran_order": False}
    assert describe(tmp_path / "array.npy").metadata["npy"] == facts
    with pytest.raises(TruncatedFileError, match="expected 25 elements; found 24 elements"):
        opened(sig_shape=(5, 5))
    with pytest.raises(DatasetError, match=r"sig_dims\b"):
        opened(sig_dims=-1)


@pytest.mark.parametrize("order", ["C", "F"])
def test_growing_arrays(tmp_path, order):
    """The first frames are read while an array in C order is written."""
    array = np.arange(24, dtype="<i4").reshape(2, 3, 4)
    path = tmp_path / "array.npy"
    np.save(path, np.asarray(array, order=order))
    path.write_bytes(path.read_bytes()[:-40])
    for sig_dims in range(4):
        if order == "C" and 0 < sig_dims < 3:
            arr = open_dataset(path, follow=True, sig_dims=sig_dims)
            there = 56 // (4 * math.prod(array.shape[-sig_dims:]))
            assert arr.shape == array.shape
            assert arr.description.layout.n_frames == there
        else:
            refuses(
                path,
                r"reach(es)? beyond the file",
                TruncatedFileError,
                follow=True,
                sig_dims=sig_dims,
            )


def test_arrays_without_elements(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros((0, 3, 4), "<i4"))
    refuses(tmp_path / "array.npy", r"empty; found shape \(0, 3, 4\)")


@pytest.mark.parametrize("version", [1, 2])
def test_long_names_of_fields_that_are_not_ascii(tmp_path, version):
    """Headers within the limit open, however they are passed to NumPy."""
    text = npy_text(descr=f"[('{'é' * 20_000}', '<i2')]")
    path = write_npy_header(tmp_path / "array.npy", text, version=version)
    assert open_dataset(path).dtype.names == ("é" * 20_000,)


@pytest.mark.parametrize("descr", ["('<f8', (2,))", "'(2,2)f4'", "'f4,f4'", "'(3)i2'"])
def test_dtypes_with_a_shape(tmp_path, descr):
    """Arrays as elements are read as by NumPy, or raise a DatasetError."""
    path = write_npy_header(tmp_path / "array.npy", npy_text(descr=descr, shape="(2,)"))
    try:
        found = open_dataset(path).compute()
    except DatasetError as error:
        assert error.path == str(path)  # noqa: PT017 - a typed error is right, too
    else:
        np.testing.assert_array_equal(found, np.load(path))


@pytest.mark.parametrize("old", ["|a8", "a8", "[('n', '<i4'), ('a1', '|a8')]"])
def test_old_names_of_byte_strings(tmp_path, old):
    """``a`` means ``S``; NumPy's warning, which would be an error here, is avoided."""
    kind = old if old.startswith("[") else repr(old)
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': (3,), }}".encode()
    header = read_header(write_npy_header(tmp_path / "a.npy", text))
    assert header.dtype == np.dtype("S8" if old[0] != "[" else [("n", "<i4"), ("a1", "S8")])
