"""Ripple files, compared with RosettaSciIO."""

import re

import numpy as np
import pytest
from checks import axes_text, refuses
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from manifest import by_file, expected_of, manifest
from rsciio.ripple import file_reader, file_writer

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError
from dask_tiled.testing import check_format, counting_frames, write_ripple

pytestmark = pytest.mark.usefixtures("synchronous")

ROWS = [row for row in manifest("RIPPLE", "more/") if row["file"].endswith(".rpl")]
DTYPES = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + ["f4", "f8"]


def read(path):
    """Return the pixels that RosettaSciIO reads."""
    (found,) = file_reader(str(path))
    data = np.asarray(found["data"])
    return data.astype(data.dtype.newbyteorder("="))


@by_file(ROWS, "row")
def test_either_file_equals_rosettasciio(data, row):
    header = data / row["file"]
    pixels = read(header)
    shape, dtype, total = expected_of(row)
    for path in (header, header.with_suffix(".raw")):
        check_format(path, pixels, cuts=2)
        desc = dask_tiled.describe(path)
        assert (desc.format, desc.shape, desc.dtype) == ("ripple", shape, dtype)
        assert dask_tiled.open_dataset(path).sum().compute() == total
        assert desc.metadata["ripple"]["header"]["title"] == "Test title"


@pytest.mark.parametrize(
    ("dtype", "order", "record_by"),
    [*zip(DTYPES, "<>" * 5, ["image", "vector"] * 5, strict=True)],
)
def test_every_type_equals_rosettasciio(tmp_path, dtype, order, record_by):
    array = counting_frames((3, 4, 5), np.dtype(dtype).newbyteorder(order))
    path, header = write_ripple(tmp_path / "a.raw", array, record_by=record_by, offset=11)
    expected = array.astype(dtype)
    np.testing.assert_array_equal(read(header), expected)
    check_format(path, expected, cuts=1)
    desc = dask_tiled.describe(path)
    assert desc.sig_shape == ((4, 5) if record_by == "image" else (5,))
    image, vector = ("frame", "y", "x"), ("scan_y", "scan_x", "channel")
    assert desc.dims == (image if record_by == "image" else vector)


@pytest.mark.parametrize("sig_dims", [1, 2])
def test_files_written_by_rosettasciio(tmp_path, sig_dims):
    array = counting_frames((3, 4, 5), "f4")
    axes = [
        {"size": n, "name": f"n{n}", "units": "nm", "scale": 4.5 - n, "offset": -n}
        | {"navigate": k < 3 - sig_dims, "index_in_array": k}
        for k, n in enumerate(array.shape)
    ]
    signal = {"data": array, "axes": axes, "metadata": {}}
    file_writer(str(tmp_path / "a.rpl"), signal)
    check_format(tmp_path / "a.rpl", array, cuts=2)
    desc = dask_tiled.describe(tmp_path / "a.rpl")
    assert len(desc.sig_shape) == sig_dims
    assert axes_text(desc) == "n3 1.5-3 nm, n4 0.5-4 nm, n5 -0.5-5 nm"


@given(
    array=hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)),
    record_by=st.sampled_from(["image", "vector"]),
    offset=st.integers(0, 20),
)
def test_any_array(tmp_path_factory, array, record_by, offset):
    """Axes of length 1 are left out."""
    path, _ = write_ripple(
        tmp_path_factory.mktemp("any") / "a.raw", array, record_by=record_by, offset=offset
    )
    arr = dask_tiled.open_dataset(path)
    np.testing.assert_array_equal(arr.compute().reshape(array.shape), array)
    assert 1 not in arr.description.nav_shape


@pytest.mark.parametrize("record_by", ["image", "dont-care"])
def test_one_image_has_no_navigation_axis(tmp_path, record_by):
    array = counting_frames((4, 5), "u2")
    path, _ = write_ripple(tmp_path / "a.rpl", array, further={"record-by": record_by})
    check_format(path, array, cuts=2)
    assert dask_tiled.describe(path).sig_shape == (4, 5)


def test_stack_recorded_by_dont_care_raises(tmp_path):
    """RosettaSciIO reads the first image only."""
    array = counting_frames((3, 4, 5), "u2")
    path, _ = write_ripple(tmp_path / "a.rpl", array, further={"record-by": "dont-care"})
    with pytest.raises(DatasetError, match=r"record-by.*expected image or vector; found dont-care"):
        dask_tiled.describe(path)


def test_undefined_calibration_of_hyperspy_is_ignored(tmp_path):
    further = {"ev-per-chan": 5, "depth-name": "<undefined>", "width-units": "<undefined>"}
    further |= {"width-scale": 2, "height-scale": float("nan"), "height-name": "channel"}
    array = counting_frames((3, 4, 5), "u2")
    path, _ = write_ripple(tmp_path / "a.rpl", array, record_by="vector", further=further)
    assert axes_text(dask_tiled.describe(path)) == "channel 1, scan_x 2, dim_2 5 eV"


def test_keys_in_capitals_and_comments(tmp_path):
    """Bruker's software writes such headers."""
    array = counting_frames((3, 4, 5), "u2")
    path, header = write_ripple(tmp_path / "a.rpl", array)
    text = header.read_text().replace("data-length\t2", "data-Length\t2 ; bytes\r")
    header.write_text(text.replace("record-by\timage", "record-by\tIMAGE"))
    check_format(path, array, cuts=2)
    assert dask_tiled.describe(header).format == "ripple"


def test_lost_digit_of_a_size_raises(tmp_path):
    path, header = write_ripple(tmp_path / "a.rpl", counting_frames((3, 4, 15), "u2"))
    header.write_text(header.read_text().replace("width\t15", "width\t1"))
    refuses(path, r"a\.raw: .*longer than expected from the header", CorruptFileError)


def test_missing_or_short_files_are_named(tmp_path):
    path, header = write_ripple(tmp_path / "a.rpl", counting_frames((3, 4, 5), "u2"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(TruncatedFileError, match=r"a\.raw.*expected 120 bytes.*found 119"):
        dask_tiled.describe(header)
    path.unlink()
    with pytest.raises(TruncatedFileError, match=re.escape("expected a.raw; found no such file")):
        dask_tiled.describe(header)
