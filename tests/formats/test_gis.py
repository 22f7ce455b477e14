"""GIS volumes, stored and written ones, compared with their arrays."""

import dask
import numpy as np
import pytest
from checks import axes_text, refuses
from conftest import DATA
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dask_tiled
from dask_tiled import CorruptFileError, TruncatedFileError, UnknownFormatError
from dask_tiled.formats import gis
from dask_tiled.testing import check_format, counting_frames, write_gis

pytestmark = pytest.mark.usefixtures("synchronous")

NAMES = sorted(path.stem for path in (DATA / "gis").glob("*.dim")) or ["no data"]
DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("name", NAMES)
def test_any_file_of_a_volume_opens_it(data, name):
    expected = np.load(data / f"gis/{name}.npy")
    base = data / "gis" / name
    paths = [base, base.with_suffix(".ima"), base.with_suffix(".dim")]
    minf = base.with_suffix(".ima.minf")
    for path in paths + [minf] * minf.is_file():
        check_format(path, expected, cuts=2)
        desc = dask_tiled.describe(path)
        assert desc.format == "gis"
        assert desc.dims[-3:] == ("z", "y", "x")
        assert [file.path for file in desc.files] == [str(base.with_suffix(".ima"))]


SEVERAL = {
    "RGB": ("u1", 3),
    "RGBA": ("u1", 4),
    "HSV": ("u1", 3),
    "POINT2DF": ("f4", 2),
    "POINT3DF": ("f4", 3),
    "VECTOR_OF_3_SHORT": ("i2", 3),
    "VECTOR_OF_6_FLOAT": ("f4", 6),
    "VECTOR_OF_2_U16": ("u2", 2),
}


@pytest.mark.parametrize(("kind", "ascii"), [*zip(SEVERAL, [False, True] * 4, strict=True)])
def test_components_of_pixels_are_the_last_axis(tmp_path, kind, ascii):
    dtype, parts = SEVERAL[kind]
    array = counting_frames((3, 4, 5, parts), dtype, bits=7)
    path, *_ = write_gis(tmp_path / "a.ima", array, kind=kind, order=">", ascii=ascii)
    check_format(path, array, cuts=3)
    desc = dask_tiled.describe(path)
    assert desc.dims == ("z", "y", "x", "s" if dtype == "u1" else "component")
    assert desc.sig_shape == (4, 5, parts)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize(("kind", "letter"), [("LONG", "i"), ("ULONG", "u")])
def test_longs_have_the_length_that_fits_the_file(tmp_path, kind, letter, size):
    array = counting_frames((3, 4, 5), f"{letter}{size}")
    path, *_ = write_gis(tmp_path / "a.ima", array, kind=kind)
    check_format(path, array, cuts=2)


@given(
    array=hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=1, max_dims=8, max_side=3)),
    order=st.sampled_from("<>"),
    ascii=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_volume_of_1_to_8_axes(tmp_path_factory, array, order, ascii, seed):
    rng = np.random.default_rng(seed)
    path, *_ = write_gis(tmp_path_factory.mktemp("any") / "a.ima", array, order=order, ascii=ascii)
    chunks = tuple(int(rng.integers(1, n + 1)) for n in array.shape)
    arr = dask_tiled.open_dataset(path, chunks=chunks)
    np.testing.assert_array_equal(arr, array)
    index = tuple(int(rng.integers(n)) if rng.integers(2) else slice(None) for n in array.shape)
    np.testing.assert_array_equal(arr[index], array[index])


def test_voxel_sizes_are_scales_and_unknown_keys_are_metadata(tmp_path):
    array = counting_frames((2, 2, 3, 4, 5), "u1")
    further = "-patient A. -dx Name -7\nwhat stands -here is kept, -1 or not\n--\ntrailing text"
    sizes = (0.5, 2, 3, 4, 5)
    path, header = write_gis(tmp_path / "a.ima", array, voxel_size=sizes, further=further)
    check_format(path, array, cuts=2)
    desc = dask_tiled.describe(header)
    assert axes_text(desc) == "dim_4 5, t 4, z 3 mm, y 2 mm, x 0.5 mm"
    facts = desc.metadata["gis"]["header"]
    assert facts["patient"] == "A. -dx Name -7"
    assert facts["dx"] == 0.5


def test_keys_come_in_any_order_on_any_lines(tmp_path):
    array = counting_frames((3, 4, 5), ">i2")
    path, header = write_gis(tmp_path / "a.ima", array, order=">")
    header.write_text("  5\t4 3 \r\n-om binar -dx 2\r\n\r\n-bo ABCD -type S16")
    check_format(path, array.astype("i2"), cuts=2)
    assert dask_tiled.describe(path).axes[-1].scale == 2


def test_text_with_any_blanks_and_brackets_and_a_tail(tmp_path):
    path, header = write_gis(tmp_path / "a.ima", np.zeros((2, 2), "i2"), ascii=True)
    path.write_bytes(b"\n 1\t2\r\n-3 \x0b +4\n the end")
    assert dask_tiled.open_dataset(path).compute().tolist() == [[1, 2], [-3, 4]]
    header.write_text("2 1 -type CFLOAT -om ascii")
    path.write_bytes(b"(1, 2) (nan,-4e3)")
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), [[1 + 2j, complex("nan-4000j")]])


def test_text_is_read_once_per_chunk(tmp_path, monkeypatch):
    read = []
    decode = gis.decode

    def counted(block, fetch, **options):
        read.append(block.file.path)
        return decode(block, fetch, **options)

    monkeypatch.setattr(gis, "decode", counted)
    array = counting_frames((9, 8, 7, 6), "i2")
    path, *_ = write_gis(tmp_path / "a.ima", array, ascii=True)
    with dask.config.set({"dask-tiled.tile-bytes": 1 << 10}):
        total = dask_tiled.open_dataset(path, dtype="f4").sum(axis=(0, 1))
    np.testing.assert_allclose(total, array.sum(axis=(0, 1)), rtol=1e-6)
    assert read == [str(path)]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (b"1 2 3", TruncatedFileError),
        (b"1    2    3", TruncatedFileError),
        (b"1 2 3 four", CorruptFileError),
        (b"1 2 3 40000", CorruptFileError),
        (b"1 2 3 4.5", CorruptFileError),
        (b"1", TruncatedFileError),
        (b"1 2 3 " + b"9" * 5000, CorruptFileError),
        (b"\x00\xff" * 50, CorruptFileError),
    ],
)
def test_invalid_text_raises(tmp_path, text, kind):
    path, *_ = write_gis(tmp_path / "a.ima", np.zeros((2, 2), "i2"), ascii=True)
    path.write_bytes(text)
    with pytest.raises(kind, match=r"a\.ima"):
        dask_tiled.open_dataset(path).compute()


def test_short_text_raises_at_opening(tmp_path):
    """Four numbers, with blanks between them, take seven bytes or more."""
    path, *_ = write_gis(tmp_path / "a.ima", np.zeros((2, 2), "i2"), ascii=True)
    refuses(path, "too short for its numbers", TruncatedFileError, content=b"1 2 3 ")
    path.write_bytes(b"1 2 3 4")
    assert dask_tiled.open_dataset(path).compute().tolist() == [[1, 2], [3, 4]]


BROKEN = [b"", b"attributes", b"attributes = ", b"attributes = [1]", b"attributes = {1: open('a')}"]
BROKEN += [b"\xff\xfe", b"a = {'a':" + b"[" * 10000, b"a = " + b"-" * 100000 + b"1"]
BROKEN += [b"a = {'a': " + b"1+" * 50000 + b"1}", b"a = {" + b"'a': 1, " * 100000, b"a = {[]: 1}"]
BROKEN += [b"a = {'a': '\\ '}", b"a = {'a': 1}\0", b"a = {'a': " + b"9" * 10000 + b"}"]
BROKEN += [b"a = {'a': 0x" + b"f" * 50000 + b"}", b"a = {'a': 1}" + b" " * gis.MOST_MINF]


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_invalid_minf_file_is_noted_in_the_metadata(tmp_path, text):
    array = counting_frames((3, 4, 5), "i2")
    path, _, minf = write_gis(tmp_path / "a.ima", array, minf={})
    minf.write_bytes(text)
    arr = dask_tiled.open_dataset(path)
    np.testing.assert_array_equal(arr, array)
    assert arr.description.metadata["gis"]["minf"].keys() == {"not_read"}


def test_attributes_become_plain_values(tmp_path):
    minf = {"a": [1, (2.5, "x")], 3: None, "inf": {"c": b"d", "nan": 1e400, "f": {1}}}
    path, *_ = write_gis(tmp_path / "a.ima", np.ones((2, 3), "u1"), minf=minf)
    text = (tmp_path / "a.ima.minf").read_text()
    (tmp_path / "a.ima.minf").write_text(text.replace("inf,", "1e400,"))
    found = dask_tiled.describe(path).metadata["gis"]["minf"]
    assert found["a"] == (1, (2.5, "x"))
    assert found["3"] == "None"
    assert found["inf"] == {"c": "b'd'", "nan": "inf", "f": "{1}"}


def test_missing_files_are_named(tmp_path):
    path, header, minf = write_gis(tmp_path / "a.ima", np.ones((2, 3), "u1"), minf={})
    path.unlink()
    with pytest.raises(TruncatedFileError, match=r"pixels is missing; expected a\.ima"):
        dask_tiled.open_dataset(header)
    path.write_bytes(bytes(6))
    header.unlink()
    with pytest.raises(TruncatedFileError, match=r"header is missing; expected a\.dim"):
        dask_tiled.open_dataset(path)
    with pytest.raises(UnknownFormatError):
        dask_tiled.open_dataset(minf)
    with pytest.raises(FileNotFoundError):
        dask_tiled.open_dataset(tmp_path / "a")
