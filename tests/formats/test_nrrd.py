"""NRRD volumes, compared with pynrrd, or with the written array where pynrrd cannot read it."""

import gzip
import math
import os

import nrrd
import numpy as np
import pytest
from checks import axes_text, refuses
from conftest import DATA
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.codecs import packed_files as compression
from dask_tiled.formats.nrrd import TYPES
from dask_tiled.testing import check_format, counting_frames, write_nrrd

pytestmark = pytest.mark.usefixtures("synchronous")

REAL = sorted(path.name for path in (DATA / "more/nrrd").glob("*.n*")) or ["no data"]
VOLUME = counting_frames((4, 5, 6), "u2")


def read(path):
    """Return the pixels that pynrrd reads, in C order and native byte order."""
    pixels, _ = nrrd.read(str(path), index_order="C")
    return pixels.astype(pixels.dtype.newbyteorder("="))


@pytest.mark.parametrize("name", REAL)
def test_real_file_equals_pynrrd(data, name):
    path = data / "more/nrrd" / name
    check_format(path, read(path), cuts=3)
    desc = dask_tiled.describe(path)
    assert desc.format == "nrrd"
    assert desc.dims[-3:] == ("z", "y", "x")
    assert desc.sig_shape == desc.shape[-2:]


@pytest.mark.parametrize(
    ("suffix", "encoding", "lines", "skip"),
    [
        *((".nrrd", "raw", 3, 7), (".nrrd", "gzip", 0, -1), (".nrrd", "bzip2", 3, 0)),
        *((".nhdr", "raw", 0, -1), (".nhdr", "gzip", 3, 7), (".nhdr", "bzip2", 0, 7)),
        *((".nrrd", "raw", 0, 0), (".nhdr", "bzip2", 3, -1)),
    ],
)
def test_bytes_and_lines_to_skip(tmp_path, suffix, encoding, lines, skip):
    """Lines are skipped before decompression, bytes after it."""
    fields = {"byte skip": -1} if skip < 0 else {}
    *_, path = write_nrrd(
        tmp_path / f"a{suffix}",
        VOLUME,
        encoding=encoding,
        lines=lines,
        skip=skip if skip >= 0 else 100_001,
        files=int(suffix == ".nhdr"),
        fields=fields,
    )
    check_format(path, VOLUME, cuts=1)
    if encoding == "raw" or skip < 1:  # pynrrd skips compressed bytes as well
        np.testing.assert_array_equal(read(path), VOLUME)


@pytest.mark.thorough
@pytest.mark.parametrize(("pattern", "encoding"), [(False, "gzip"), (True, "raw")])
@pytest.mark.parametrize("files", [1, 2, 4, 20])
def test_detached_pixels_by_name_list_and_pattern(tmp_path, files, pattern, encoding):
    """Files hold slabs, slices or rows."""
    options = {"files": files, "pattern": pattern, "encoding": encoding, "lines": 1}
    *members, path = write_nrrd(tmp_path / "a.nhdr", VOLUME, **options)
    check_format(path, VOLUME, cuts=3)
    assert [file.path for file in dask_tiled.describe(path).files] == list(map(str, members))


def test_pattern_with_negative_steps(tmp_path):
    *members, path = write_nrrd(tmp_path / "a.nhdr", VOLUME, files=4)
    for k, member in enumerate(members):
        member.rename(tmp_path / f"b 100%{17 - 5 * k:02}.bin")
    text = path.read_text().partition("data file")[0]
    path.write_text(f"{text}data file: b 100%%%02d.bin 17 2 -5 2\n")
    check_format(path, VOLUME, cuts=1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("middle", ["%d" * 99999, " " * 999999, "%%" * 99999, "1 1 1 " * 99999])
def test_long_names_raise_at_once(tmp_path, middle):
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields={"data file": f"a%d{middle}x"})
    refuses(path, r"a\.nrrd")


@given(
    array=hnp.arrays(
        st.sampled_from(sorted(set(TYPES.values()))), hnp.array_shapes(max_dims=8, max_side=3)
    ),
    order=st.sampled_from("<>"),
    encoding=st.sampled_from(["raw", "gzip", "bzip2"]),
    files=st.integers(0, 9),
)
def test_any_volume_of_any_parts(tmp_path_factory, array, order, encoding, files):
    stored = array.astype(array.dtype.newbyteorder(order))
    files = math.gcd(files, array.size)
    folder = tmp_path_factory.mktemp("any")
    *_, path = write_nrrd(folder / "a.nhdr", stored, encoding=encoding, files=files)
    try:
        found = dask_tiled.open_dataset(path).compute()
    except CorruptFileError as error:  # parts that are no boxes of the array
        assert error.problem == "the array cannot be split among the files"  # noqa: PT017
        assert files > 1
    else:
        np.testing.assert_array_equal(found, array)


KINDS = {
    "RGB-color space space space": ("s", 3),
    "space space space list": ("list", 2),
    "vector domain domain domain": ("component", 3),
    "domain domain domain domain": ("t", 2),
    "3-color none none none": ("s", 3),
    "??? ??? ??? time": ("t", 2),
    "complex vector space space": ("complex", 4),
    "time list vector 3D-matrix": ("t", 4),
}


@pytest.mark.parametrize("kinds", KINDS)
def test_axes_before_those_of_space_belong_to_the_pixel(tmp_path, kinds):
    array = counting_frames((2, 3, 4, 5), "u1")
    (path,) = write_nrrd(tmp_path / "a.nrrd", array, fields={"kinds": kinds})
    check_format(path, array, cuts=1)
    name, sig_dims = KINDS[kinds]
    desc = dask_tiled.describe(path)
    assert len(desc.sig_shape) == sig_dims
    assert len(set(desc.dims)) == 4
    assert desc.dims[-1 if sig_dims > 2 else 0] == name
    if sig_dims < 4:
        assert {*desc.dims} == {name, "x", "y", "z"}


def test_spacings_units_and_labels(tmp_path):
    fields = {"spacings": "0.5 nan -3", "units": '"mm" "s" ""', "labels": '"a \\"b\\"" "" "x"'}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields=fields)
    assert axes_text(dask_tiled.describe(path)) == 'x -3, y 1, a "b" 0.5 mm'
    assert dask_tiled.describe(path).metadata["nrrd"]["header"]["spacings"] == "0.5 nan -3"


def test_space_directions_and_origin(tmp_path):
    """The offset of a reversed axis is the place of its first pixel along the axis."""
    fields = {
        "space": "left-posterior-superior",
        "space directions": "none (0,-0.5,0) (0, 0, 2) (3,0,4)",
        "space origin": "(1,10,100)",
        "space units": '"mm" "cm" "µm"',
        "spacings": "0.25 nan nan nan",
        "units": '"s" "" "" ""',
    }
    array = counting_frames((2, 3, 4, 5), "u1")
    (path,) = write_nrrd(tmp_path / "a.nrrd", array, fields=fields)
    desc = dask_tiled.describe(path)
    assert axes_text(desc) == "z 5+80.6 µm, y 2+100 µm, x 0.5-10 cm, component 0.25 s"
    assert desc.sig_shape == (3, 4, 5)


SPACES = {
    "right-anterior-superior": ("LR", "PA", "IS"), "RAS": ("LR", "PA", "IS"),
    "left-anterior-superior": ("RL", "PA", "IS"), "LAS": ("RL", "PA", "IS"),
    "left-posterior-superior": ("RL", "AP", "IS"), "LPS": ("RL", "AP", "IS"),
    "right-anterior-superior-time": ("LR", "PA", "IS"), "LPST": ("RL", "AP", "IS"),
    "scanner-xyz": None, "3D-right-handed": None,
}  # fmt: skip
"""Ends of the axes of each space in Teem's definition: left or right, and so on."""


@pytest.mark.parametrize("space", SPACES)
def test_directions_in_a_body(tmp_path, space):
    """Rows run along the third axis of space, columns against the first one."""
    fields = {"space": space, "space directions": "(0,0,2) (-3,0,0) (0.1,1,0)"}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields=fields)
    found = dask_tiled.describe(path).metadata["nrrd"].get("directions")
    ends = SPACES[space]
    assert found == (ends and {"x": ends[2], "y": ends[0][::-1], "z": ends[1]})


def test_directions_need_three_axes_of_space(tmp_path):
    fields = {"space": "RAS", "space directions": "none (1,0,0) (0,1,0)"}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields=fields)
    assert "directions" not in dask_tiled.describe(path).metadata["nrrd"]


def test_names_of_types_are_those_of_pynrrd():
    theirs = {name: kind for name, kind in nrrd.reader._TYPEMAP_NRRD2NUMPY.items() if kind != "V"}
    assert {name: np.dtype(TYPES[name]).str[1:] for name in theirs} == theirs


@pytest.mark.parametrize("name", ["raw", "gz", "gzip", "bz2", "bzip2"])
def test_names_of_encodings(tmp_path, name):
    encoding = {"raw": "raw", "g": "gzip", "b": "bzip2"}[name if name == "raw" else name[0]]
    fields = {"encoding": name}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, encoding=encoding, fields=fields)
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)
    np.testing.assert_array_equal(read(path), VOLUME)


def test_names_of_fields_in_any_case_and_key_value_pairs(tmp_path):
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, lines=1)
    text = path.read_bytes().replace(b"line skip", b"LineSkip")
    text = text.replace(b"type: ", b"units:=%\n# a: comment\ntype:")
    path.write_bytes(text.replace(b"\n", b"\r\n", text.count(b"\n", 0, text.index(b"\n\n")) + 2))
    check_format(path, VOLUME, cuts=1)
    header = dask_tiled.describe(path).metadata["nrrd"]["header"]
    assert header["units"] == "%"
    assert "comment" not in header.values()


def test_key_value_pairs_named_like_fields(tmp_path):
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME)
    path.write_bytes(path.read_bytes().replace(b"\n\n", b"\nsizes:=1 1 1\ntype:=float\n\n", 1))
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)


@pytest.mark.parametrize(
    ("dtype", "files", "skip", "comma"),
    [("i1", 0, None, b""), ("u8", 1, None, b""), ("f4", 0, 40, b""), ("f8", 4, None, b",")],
)
def test_text(tmp_path, dtype, files, skip, comma):
    """Text has no byte order and may have commas; pynrrd reads neither commas nor several files."""
    volume = counting_frames((4, 5, 6), dtype, bits=7)
    volume[-1, -1, -1] = 2**64 - 1 if dtype == "u8" else 1
    fields = {"encoding": "ascii", "endian": None, "byte skip": skip}
    *members, path = write_nrrd(tmp_path / "a.nhdr", volume, files=files, fields=fields)
    for member, part in zip(members or [path], volume.reshape(max(files, 1), -1, 3), strict=True):
        head = b"" if members else path.read_bytes()[: -volume.nbytes]
        lines = (b"%r, %r\t%r\n".replace(b",", comma) % (*row,) for row in part.tolist())
        member.write_bytes(head + b"x" * (skip or 0) + b"".join(lines))
    check_format(path, volume, cuts=1)
    if files < 2:
        np.testing.assert_array_equal(read(path), volume)


@pytest.mark.parametrize(
    ("encoding", "text", "problem"),
    [
        ("text", "1 2 3 4 5 300", "not a number"), ("text", "1 2 3 4 5 -1", "not a number"),
        ("text", "1 2 3 4 5 x", "not a number"), ("text", " " * 11, "not a number"),
        ("text", "1 2 3  4  5", "a different number of pixels"),
        ("text", "1 2 3 4 5 6 7", "a different number of pixels"),
        ("text", "1 2 3 4 5", "cannot hold"), ("hex", "0102030405f", "cannot hold"),
        ("hex", "0102030405fff", "not the digits"), ("hex", "01 02 03 04 05 0g", "not the digits"),
        ("hex", "01020304050607", "not the digits"), ("hex", "0102030405\n\n\n", "not the digits"),
    ],
)  # fmt: skip
def test_text_that_does_not_fit_the_header_raises(tmp_path, encoding, text, problem):
    fields = {"encoding": encoding, "sizes": "2 3", "dimension": 2, "type": "uint8"}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields=fields)
    path.write_bytes(path.read_bytes()[: -VOLUME.nbytes] + text.encode())
    with pytest.raises(DatasetError, match=rf"a\.nrrd: .*{problem}") as caught:
        dask_tiled.open_dataset(path).compute()
    assert encoding == "hex" or "6 numbers" in caught.value.expected


def test_text_at_the_end_of_a_file_raises(tmp_path):
    fields = {"encoding": "text", "byte skip": -1}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields=fields)
    refuses(path, "expected 0 bytes to skip, or more; found -1", CorruptFileError)


@pytest.mark.parametrize("encoding", ["gzip", "bzip2"])
def test_bytes_before_pixels_at_the_end_are_bounded(tmp_path, encoding, monkeypatch):
    monkeypatch.setattr(compression, "MOST_BEFORE", 1000)
    options = {"encoding": encoding, "fields": {"byte skip": -1}}
    for skip in (0, 1, 999, 1000, 1001):
        (path,) = write_nrrd(tmp_path / f"{skip}.nrrd", VOLUME, skip=skip, **options)
        if skip > 1000:
            with pytest.raises(
                CorruptFileError, match=f"too long; expected {1000 + VOLUME.nbytes} bytes"
            ):
                dask_tiled.open_dataset(path).compute()
        else:
            np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)
            np.testing.assert_array_equal(read(path), VOLUME)


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">f4"])
@pytest.mark.parametrize("files", [0, 4])
def test_hexadecimal_digits(tmp_path, dtype, files):
    volume = counting_frames((4, 5, 6), dtype)
    fields = {"encoding": "hex"}
    *members, path = write_nrrd(tmp_path / "a.nhdr", volume, files=files, fields=fields)
    for member, part in zip(members or [path], volume.reshape(max(files, 1), -1), strict=True):
        head = b"" if members else path.read_bytes()[: -volume.nbytes]
        digits = part.tobytes().hex()
        lines = "\n".join(digits[k : k + 35] for k in range(0, len(digits), 35))
        member.write_bytes(head + lines.encode() + b"\n")
    check_format(path, volume.astype(volume.dtype.newbyteorder("=")), cuts=1)


@pytest.mark.parametrize("name", ["axis mins", "axismins"])
def test_axis_mins(tmp_path, name):
    """Positions as in Teem: samples are in the middle of cells unless they are nodes."""
    fields = {name: "10 20 nan", "spacings": "0.5 4 3", "centers": "node cell cell"}
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields=fields)
    assert axes_text(dask_tiled.describe(path)) == "z 3, y 4+22, x 0.5+10"
    fields = {"axis mins": "0 0 0", "axis maxs": "12 12 -12", "centerings": "cell node ???"}
    (path,) = write_nrrd(tmp_path / "b.nrrd", VOLUME, fields=fields)
    assert axes_text(dask_tiled.describe(path)) == "z -3-1.5, y 3, x 2+1"


@pytest.mark.parametrize("encoding", ["zrl"])
def test_unsupported_encodings_raise(tmp_path, encoding):
    (path,) = write_nrrd(tmp_path / "a.nrrd", VOLUME, fields={"encoding": encoding}, encoding="raw")
    refuses(path, f"'encoding'; expected raw or .*; found {encoding}")


def test_names_of_any_bytes(tmp_path):
    pixels, path = write_nrrd(tmp_path / "a.nhdr", VOLUME, files=1)
    os.rename(pixels, os.path.join(os.fsencode(tmp_path), b"\xff\xe4.raw"))
    path.write_bytes(path.read_bytes().replace(pixels.name.encode(), b"\xff\xe4.raw"))
    check_format(path, VOLUME, cuts=1)
    desc = dask_tiled.describe(path)
    assert desc.metadata["nrrd"]["header"]["data file"] == r"\udcff\udce4.raw"
    assert all(value.isprintable() for _, value in desc.rows())


@pytest.mark.parametrize("files", [3, 8, 7, 40])
def test_files_of_unequal_parts_raise(tmp_path, files):
    *members, path = write_nrrd(tmp_path / "a.nhdr", VOLUME, files=4)
    names = "\n".join((files * [member.name for member in members])[:files])
    path.write_text(path.read_text().partition("LIST")[0] + f"LIST\n{names}\n")
    problem = (
        "cannot be split among the files" if files != 40 else "longer than expected from the header"
    )
    with pytest.raises(CorruptFileError, match=problem):
        dask_tiled.describe(path)


def test_missing_file_of_a_list_is_named(tmp_path):
    *members, path = write_nrrd(tmp_path / "a.nhdr", VOLUME, files=4)
    members[2].unlink()
    refuses(path, r"a\.nhdr.*'data file'.*a002\.raw", TruncatedFileError)


def test_several_members_of_gzip_are_one_stream(tmp_path):
    pixels, path = write_nrrd(tmp_path / "a.nhdr", VOLUME, encoding="gzip", files=1)
    half = VOLUME.nbytes // 2
    data = VOLUME.tobytes()
    pixels.write_bytes(gzip.compress(data[:half]) + gzip.compress(data[half:]))
    np.testing.assert_array_equal(dask_tiled.open_dataset(path), VOLUME)


def test_slices_read_their_own_bytes_of_their_own_files(tmp_path, loads):
    volume = counting_frames((40, 30, 20), ">i2")
    *_, path = write_nrrd(tmp_path / "a.nhdr", volume, files=10)
    arr = dask_tiled.open_dataset(path, io="counting")
    np.testing.assert_array_equal(arr[7, 5], volume[7, 5])
    assert 0 < loads.nbytes <= 2 * 20
