"""EMPAD scans and series."""

import numpy as np
import pytest
from checks import axes_text, refuses
from libertem_reader import libertem_reads
from manifest import manifest

from dask_tiled import (
    CorruptFileError,
    TruncatedFileError,
    UnknownFormatError,
    describe,
    open_dataset,
)
from dask_tiled.testing import check_format, counting_frames, write_empad

pytestmark = pytest.mark.usefixtures("synchronous")
SCAN = counting_frames((2, 3, 128, 128), "f4")
SERIES = SCAN.reshape(6, 128, 128)
RECORD = 130 * 128 * 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["map4x4.xml", "scan_x4_y4.raw"])
def test_real_file_equals_rosettasciio(data, name):
    row = next(row for row in manifest("EMPAD") if row["file"] == f"empad/{name}")
    path = data / row["file"]
    arr = open_dataset(path)
    assert arr.description.format == "empad"
    assert (arr.shape, arr.dtype) == ((4, 4, 128, 128), np.float32)
    assert arr.compute().sum(dtype=float) == pytest.approx(float(row["sum"]), rel=1e-12)
    reader = pytest.importorskip("rsciio.empad", reason="RosettaSciIO is not installed")
    (signal,) = reader.file_reader(str(data / "empad" / "map4x4.xml"))
    np.testing.assert_array_equal(arr, signal["data"])


@pytest.mark.slow
def test_synthetic_files_equal_libertem(tmp_path):
    """Scans and series open by their .xml file, and by their .raw file alone."""
    options = {"acquire": {}, "search": {"mode": "search"}, "series": {"nav_shape": (6,)}}
    jobs, expected = {}, {}
    for name, given in options.items():
        (tmp_path / name).mkdir()
        frames = SERIES if name == "series" else SCAN
        path = write_empad(tmp_path / name / "a.xml", frames, **given)
        expected[name] = frames
        jobs[name] = ("empad", {"path": path})
        check_format(path, frames, cuts=3)
        (raw,) = path.parent.glob("*.raw")
        check_format(raw, frames, cuts=3)
        path.unlink()
        check_format(raw, frames, cuts=3)  # the shape is in its name
        write_empad(path, frames, **given)
    for name, theirs in libertem_reads(tmp_path, jobs).items():
        np.testing.assert_array_equal(expected[name], theirs["frames"])


def test_name_of_the_raw_file_stands_in_for_scan_parameters(tmp_path):
    path = write_empad(tmp_path / "a.xml", SCAN, mode=None)
    check_format(path, SCAN, cuts=2)
    assert "name" in describe(path).metadata["empad"]["nav_shape_from"]
    path = write_empad(tmp_path / "a.xml", SCAN, mode=None, raw_name="frames.raw")
    with pytest.raises(TruncatedFileError, match="512, 512") as caught:
        open_dataset(path)
    assert "nav_shape" in str(caught.value)
    np.testing.assert_array_equal(open_dataset(path, nav_shape=(2, 3)), SCAN)


def test_version_1_gives_the_field_of_view_of_the_longer_axis(tmp_path):
    path = write_empad(tmp_path / "a.xml", SCAN, field_of_view=None, pixel=None)
    field = "<full_scan_field_of_view><scale_factor>0.5</scale_factor><x>3e-06</x><y>3e-06</y>"
    text = path.read_text().replace(
        "<iom_measurements>", f"<iom_measurements>{field}</full_scan_field_of_view>"
    )
    path.write_text(text)
    assert axes_text(describe(path)) == "scan_y 2000 nm, scan_x 2000 nm, y 1, x 1"


def test_raw_file_is_searched_beside_the_xml_file_only(tmp_path):
    folder = tmp_path / "moved"
    folder.mkdir()
    for name in ("/home/empad/scan.raw", "C:\\data\\scan.raw", "../scan.raw"):
        path = write_empad(folder / "a.xml", SCAN, raw_name="scan.raw", named_as=name)
        assert describe(path).files[0].path == str(folder / "scan.raw")
    (folder / "scan.raw").rename(tmp_path / "scan.raw")
    refuses(path, r"cannot be found.*renamed")
    for name in ("..", "", "/", "a/."):
        text = path.read_text().replace("../scan.raw", name)
        (folder / "b.xml").write_text(text)
        refuses(folder / "b.xml", r"empad.*does not name a file", UnknownFormatError)


def test_raw_file_of_another_name_is_not_empad(tmp_path):
    path = tmp_path / "other.raw"
    path.write_bytes(bytes(2 * RECORD))
    arr = open_dataset(path, dtype="u2", sig_shape=(130, 256))
    assert arr.description.format == "raw"
    assert open_dataset(path, format="empad").shape == (2, 128, 128)


HOSTILE = {
    "half": "<root><raw_file filename=",
    "nothing": "<root/>",
    "another": "<?xml version='1.0' encoding='nonsense'?><root/>",
    "size": "<root>" + " " * (1 << 22),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_xml_raises(tmp_path, name):
    path = tmp_path / "a.xml"
    path.write_text(HOSTILE[name])
    refuses(path, "XML", CorruptFileError, format="empad")
    refuses(path, r"empad.*XML", UnknownFormatError)
    with pytest.raises(UnknownFormatError) as caught:
        describe(path.rename(tmp_path / "a.data"))
    assert "XML" in caught.value.reasons["empad"]


def test_a_raw_file_of_the_size_of_frames_says_so(tmp_path):
    path = tmp_path / "frames.raw"
    np.arange(6 * 130 * 128, dtype="<f4").tofile(path)
    hint = r"The size is that of 6 EMPAD frames: pass format='empad' if it holds them\."
    refuses(path, hint)
    assert open_dataset(path, "empad", nav_shape=(2, 3)).shape == (2, 3, 128, 128)
