"""JEOL images, spectra and lists, compared with RosettaSciIO."""

import struct

import numpy as np
import pytest
from checks import refused, refuses
from kinds import KINDS, assert_equals_row, by_row, path_of, rows_of
from rsciio import jeol

from dask_tiled import CorruptFileError, TruncatedFileError, describe, open_dataset
from dask_tiled.formats.jeol import entries
from dask_tiled.testing import (
    check_format,
    counting_frames,
    write_jeol_image,
    write_jeol_list,
    write_jeol_spectrum,
    write_pts,
)

IMAGE = counting_frames((20, 30), "u2")
COUNTS = np.arange(500, dtype="i4") ** 2


@pytest.mark.parametrize("dtype", ["u1", "u2", "i4", "f4", "f8"])
def test_images(tmp_path, dtype):
    path = write_jeol_image(tmp_path / "a.map", IMAGE.astype(dtype))
    check_format(path, IMAGE.astype(dtype), cuts=3)
    (theirs,) = jeol.file_reader(str(path))
    np.testing.assert_array_equal(theirs["data"], IMAGE.astype(dtype))
    desc = describe(path)
    steps = [axis["scale"] for axis in theirs["axes"]]
    assert [axis.scale for axis in desc.axes] == pytest.approx(steps)
    assert [axis.units for axis in desc.axes] == [axis["units"] for axis in theirs["axes"]]
    found = {name: fact.value for name, fact in desc.instrument.items()}
    assert (found["beam_energy"], found["magnification"]) == (200_000, 4000)
    assert found["date"] == "2020-06-18T12:00:00"


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # RosettaSciIO leaves files open
def test_spectra(tmp_path):
    path = write_jeol_spectrum(tmp_path / "a.EDS", COUNTS)
    check_format(path, COUNTS, cuts=3)
    desc = describe(path)
    assert (desc.axes[0].units, desc.axes[0].scale, desc.axes[0].offset) == ("keV", 0.01, -0.005)
    assert (desc.instrument["live_time"].value, desc.instrument["real_time"].value) == (30, 32.5)
    (theirs,) = jeol.file_reader(str(path))
    np.testing.assert_array_equal(theirs["data"], COUNTS)
    (axis,), header = theirs["axes"], theirs["original_metadata"]["Header"]
    assert (axis["units"], axis["scale"], axis["offset"]) == ("keV", 0.01, -0.005)
    assert (header["live time"], header["real time"]) == (30, 32.5)
    assert desc.instrument["date"].value == header["filedate"].isoformat()


def test_lists(tmp_path):
    counts = np.zeros((1, 16, 16, 4096), "u2")
    counts[0, 3, 4, 5] = 7
    (tmp_path / "Sample").mkdir()
    write_jeol_image(tmp_path / "Sample/a.img", IMAGE)
    write_jeol_spectrum(tmp_path / "Sample/b.EDS", COUNTS)
    write_pts(tmp_path / "Sample/c.pts", counts)
    (tmp_path / "Sample/d.txt").write_text("nothing of JEOL")
    names = [f"Sample/{name}" for name in ("a.img", "b.EDS", "c.pts", "d.txt", "e.img")]
    path = write_jeol_list(tmp_path / "a.ASW", names)
    for number, expected in enumerate([IMAGE, COUNTS, counts[0]]):
        for dataset in {number, names[number]}:
            arr = open_dataset(path, dataset=dataset)
            np.testing.assert_array_equal(arr, expected)
            assert arr.metadata["jeol"]["datasets"] == tuple(names)
    np.testing.assert_array_equal(open_dataset(path), IMAGE)
    with refused(tmp_path / "Sample/d.txt", "not a data set of JEOL", CorruptFileError):
        open_dataset(path, dataset=3)
    refuses(path, "a file that the list names is missing", TruncatedFileError, dataset=4)
    refuses(path, "no such dataset", dataset=5)
    refuses(tmp_path / "Sample/a.img", "no such dataset", dataset=1)
    with refused(write_jeol_list(tmp_path / "none.ASW", []), "names no files"):
        open_dataset(tmp_path / "none.ASW")


def test_damaged_files(tmp_path):
    path = write_jeol_image(tmp_path / "a.img", IMAGE)
    content = path.read_bytes()
    at = content.rindex(b"Size\0") + 5 + 8
    path.write_bytes(content[:at] + struct.pack("<i", 31) + content[at + 4 :])
    refuses(path, "does not fit its size", CorruptFileError, detailed=True)
    refuses(path, kind=TruncatedFileError, content=content[:-300])
    path = write_jeol_spectrum(tmp_path / "a.EDS", COUNTS)
    content = path.read_bytes()
    refuses(path, kind=TruncatedFileError, content=content[:1000])
    path.write_bytes(content[:454] + struct.pack("<i", -1) + content[458:])
    refuses(path, "invalid number of channels", CorruptFileError, detailed=True)


def test_too_many_entries(tmp_path, monkeypatch):
    path = write_jeol_list(tmp_path / "a.ASW", ["a.img"] * 20)
    monkeypatch.setattr(entries, "MOST_ENTRIES", 20)
    refuses(path, "too many entries", CorruptFileError)


ROWS = [row for row in rows_of("jeol", "SERIES") if not row["file"].endswith((".pts", ".ASW"))]


@by_row(ROWS)
def test_real_file_equals_rosettasciio(row):
    path = path_of(row)
    assert_equals_row(open_dataset(path).compute(), row)
    for axis, text in zip(describe(path).axes, row["axes"].split(";"), strict=True):
        _, scale, _, offset, units = text.split()[1:]
        assert axis.units == units
        assert axis.scale == pytest.approx(float(scale), rel=1e-6)
        assert axis.offset == pytest.approx(float(offset), rel=1e-6)


@by_row([row for row in rows_of("jeol") if row["file"].endswith(".ASW")])
def test_real_lists(row):
    """Listed files open by number, as far as they are present."""
    path = path_of(row)
    desc = describe(path)
    names = desc.metadata["jeol"]["datasets"]
    assert len(names) > 2
    for number, name in enumerate(names):
        if (path.parent / name).is_file():
            row = next(row for row in rows_of("jeol") if KINDS / row["file"] == path.parent / name)
            assert int(open_dataset(path, dataset=number).sum().compute()) == int(row["sum"])
