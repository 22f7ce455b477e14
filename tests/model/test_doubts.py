"""Choices that files leave open are told, once; each code of a doubt has a sample in the table.

Run this module to rewrite the table of the documentation.
"""

import json
import os
import re
import tempfile
import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
import zarr

import dask_tiled
from dask_tiled import Axis, Doubt, DoubtError, DoubtWarning, describe, open_dataset, to_zarr
from dask_tiled.model.doubts import SETTLED_BY
from dask_tiled.testing import (
    counting_frames,
    write_dm,
    write_fits,
    write_mib,
    write_mib_series,
    write_mrc,
    write_ripple,
)

pytestmark = pytest.mark.usefixtures("synchronous")

PAGE = Path(__file__).parents[2] / "docs" / "doubts_table.rst.inc"
FRAMES = counting_frames((12, 4, 8), "u2")


def no_scan(folder):
    return write_mib(folder / "scan.mib", FRAMES, hdr=False)


def fly_backs(folder):
    times = np.arange(12) * 1_000_000 + np.arange(12) // 4 * 5_000_000
    return write_mib(folder / "scan.mib", FRAMES, hdr=False, times=times.tolist())


def lost_file(folder):
    paths = write_mib_series(folder / "scan", FRAMES, frames_per_file=3, hdr=False)
    paths[2].unlink()
    return paths[0]


def lost_frame(folder):
    path = no_scan(folder)
    data, step = path.read_bytes(), path.stat().st_size // 12
    path.write_bytes(data[: 5 * step] + data[6 * step :])
    return path


def two_arrays(folder):
    path = folder / "scan.h5"
    with h5py.File(path, "w") as file:
        file["first"], file["second"], file["small"] = FRAMES, FRAMES, FRAMES[:1, :1]
    return path


def longer_lines(folder):
    return write_mib(folder / "scan.mib", FRAMES, nav_shape=(3, 3), scan_keys=True)


def two_channels(folder):
    path = folder / "scan_master.h5"
    with h5py.File(path, "w") as file:
        for k in (1, 2):
            file[f"entry/data/data_{k:06d}"] = FRAMES.reshape(6, 2, 4, 8)
    return path


def no_units(folder):
    frames, untagged = FRAMES.reshape(3, 4, 4, 8), {"Meta Data": {}}
    return write_dm(folder / "scan.dm4", frames, tags=untagged)


def no_extended_header(folder):
    path = write_mrc(folder / "scan.mrc", FRAMES)
    data = bytearray(path.read_bytes())
    data[92:96] = (100).to_bytes(4, "little")
    path.write_bytes(data)
    return path


def bytes_of_no_sign(folder):
    path = write_mrc(folder / "scan.mrc", FRAMES.astype("i1"))
    data = bytearray(path.read_bytes())
    data[76:88] = np.array([0, -1, -2], "<f4").tobytes()  # no statistics
    data[108:112] = bytes(4)
    path.write_bytes(data)
    return path


def any_byte_order(folder):
    keys = {"byte-order": "dont-care"}
    return write_ripple(folder / "scan.rpl", FRAMES, further=keys)[1]


def square_scan(folder):
    path = folder / "scan_master.h5"
    with h5py.File(path, "w") as file:
        file["entry/data/data_000001"] = FRAMES[:9]
    with h5py.File(folder / "scan.h5", "w") as file:
        file.create_group("STEM Metadata").attrs["Pixel Size"] = 0.5
    return path


def cut_in_a_header(folder):
    path = write_fits(folder / "scan.fits", FRAMES[0], FRAMES[0, 1:2], FRAMES[0])
    with path.open("r+b") as file:
        file.truncate(5 * 2880 - 2800)  # each image takes two blocks
    return path


def not_numbers(folder):
    path = folder / "scan.nxs"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update({"NX_class": "NXdata", "signal": "frames", "axes": ["energy", "y", "x"]})
        data["frames"] = FRAMES
        data["energy"] = np.where(np.arange(12) % 5, np.arange(12.0), np.nan)
    return path


def part_of_a_scan(folder):
    arr = open_dataset(no_scan(folder), nav_shape=(4, 4), missing="fill")
    to_zarr(arr.sum((2, 3)), folder / "sums.zarr")
    return folder / "sums.zarr"


SAMPLES = {
    "axes-order": ("DM4 with four axes, without units", no_units),
    "byte-order": ("Ripple with pixels of two bytes in any order", any_byte_order),
    "default-dataset": ("HDF5 with two arrays of one size", two_arrays),
    "extended-header": ("MRC whose NSYMBT bytes are absent", no_extended_header),
    "first-channel": ("an Eiger master with two thresholds, opened as a scan", two_channels),
    "left-over-frames": ("12 frames, of which a .hdr file describes 3 x 3", longer_lines),
    "lost-datasets": ("FITS that ends inside the header of its third image", cut_in_a_header),
    "lost-files": ("a series of which a file in the middle is missing", lost_file),
    "lost-frames": ("Merlin frames of which one is missing, opened with a shape", lost_frame),
    "pixel-type": ("MRC with bytes, older than MRC2014", bytes_of_no_sign),
    "scan-shape": ("Merlin frames without a .hdr file", no_scan),
    "uneven-axis": ("NeXus positions of which some are not numbers", not_numbers),
    "scan-shape ": ("Merlin frames with a pause after every fourth", fly_backs),
    "scan-shape  ": ("an Arina master and a file about its scan, without lengths", square_scan),
    "unfinished": ("an export of sums, made when frames were lacking", part_of_a_scan),
}
"""What a file of each code looks like, and a function that writes one; blanks make keys differ."""
OPTIONS = {"first-channel": {"nav_shape": (3, 4)}, "lost-frames": {"nav_shape": (11,)}}
"""Options that lead to a doubt."""


def doubt_of(code, folder):
    """Write a sample of a code; return its path and its doubt of this code."""
    folder.mkdir(exist_ok=True)
    path = SAMPLES[code][1](folder)
    (doubt,) = (
        one for one in describe(path, **OPTIONS.get(code, {})).doubts if one.code == code.strip()
    )
    return path, doubt


def table(folder):
    lines = [".. Written by tests/model/test_doubts.py; do not edit.", "", ".. list-table::"]
    lines += ["   :header-rows: 1", "", "   * - code", "     - sample", "     - what is told"]
    lines += ["     - what settles it"]
    for number, (code, (sample, _)) in enumerate(SAMPLES.items()):
        path, doubt = doubt_of(code, folder / str(number))
        text = doubt.text.replace(os.path.join(path.parent, ""), "")
        lines += [f"   * - ``{doubt.code}``", f"     - {sample}", f"     - {text}"]
        lines += [f"     - {doubt.settle}"]
    return "\n".join(lines) + "\n"


def test_the_table_is_up_to_date(tmp_path):
    again = "run python tests/model/test_doubts.py"
    assert PAGE.read_text("utf8") == table(tmp_path), again


def test_every_code_is_in_the_table():
    codes = {code.strip() for code in SAMPLES}
    source = Path(dask_tiled.__file__).parent.rglob("*.py")
    raised = {x for path in source for x in re.findall(r'Doubt\("([^"]+)"', path.read_text("utf8"))}
    assert codes == raised == SETTLED_BY.keys()


@pytest.mark.parametrize("code", SAMPLES)
def test_one_warning_tells_what_was_assumed_and_what_settles_it(tmp_path, code):
    path, doubt = doubt_of(code, tmp_path)
    options = OPTIONS.get(code, {})
    with pytest.warns(DoubtWarning) as caught:
        arr = open_dataset(path, **options)
    (warning,) = caught
    assert warning.filename == __file__
    for part in (doubt.text, doubt.settle):
        assert part[1:] in str(warning.message)
    assert doubt in arr.description.doubts
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arr = open_dataset(path, doubts="ignore", **options)
        assert doubt in arr[1:].description.doubts
    with pytest.raises(DoubtError, match=re.escape(doubt.text[1:])):
        open_dataset(path, doubts="raise", **options)
    with pytest.raises(DoubtError, match=re.escape(doubt.settle[1:])):
        describe(path, doubts="raise", **options)


SETTLED = [
    ("uneven-axis", {"axes": {"energy": "0.5 eV"}}),
    ("uneven-axis", {"axes": [Axis("energy", "eV", 0.5), Axis("y"), Axis("x")]}),
    ("axes-order", {"transposed": True}),
    ("axes-order", {"transposed": False}),
    ("left-over-frames", {"nav_shape": (3, 3)}),
    ("left-over-frames", {"nav_shape": (3, 4)}),
    ("left-over-frames", {"sync_offset": 3}),
    ("default-dataset", {"dataset": "first"}),
    ("default-dataset", {"dataset": 1}),
    ("lost-datasets", {"dataset": 0}),
    ("first-channel", {"nav_shape": (3, 4, 2)}),
    ("first-channel", {}),
    ("lost-files", {"missing": "fill", "nav_shape": (2, 3)}),
    ("lost-files", {"nav_shape": 6}),
    ("extended-header", {"extended_header": 0}),
    ("unfinished", {"missing": "fill"}),
    ("byte-order", {"byte_order": "little"}),
    ("byte-order", {"byte_order": "big"}),
    ("pixel-type", {"signed": True}),
    ("pixel-type", {"signed": False}),
    ("scan-shape  ", {"nav_shape": (9,)}),
    ("scan-shape", {"nav_shape": (3, 4)}),
    ("scan-shape", {"nav_shape": (12,)}),
    ("scan-shape ", {"nav_shape": (3, 4)}),
]


@pytest.mark.parametrize(("code", "options"), SETTLED)
def test_an_option_that_settles_it_silences_it(tmp_path, code, options):
    path, _ = doubt_of(code, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_dataset(path, doubts="raise", **options).description.doubts == ()


def missing_place(folder):
    """Write a series of which the second file is damaged: the places of its frames are unknown."""
    paths = write_mib_series(folder / "scan", FRAMES, frames_per_file=3, hdr=False)
    paths[1].write_bytes(b"damaged")
    paths[2].write_bytes(b"damaged")
    paths[3].unlink()
    return paths[0]


@pytest.mark.filterwarnings("ignore::dask_tiled.MissingFramesWarning")
def test_lost_files_stay_in_doubt_where_a_shape_has_more_frames(tmp_path):
    """A nav_shape settles the doubt if no frame is missing, or if missing ones have a place."""
    path = missing_place(tmp_path)
    for options in ({}, {"nav_shape": 6}, {"nav_shape": (3, 4)}):
        assert "lost-files" in {one.code for one in describe(path, **options).doubts}, options
    for options in ({"nav_shape": 3}, {"nav_shape": (2, 3), "missing": "fill"}):
        assert describe(path, **options).doubts == ()
    path = lost_file(tmp_path)
    assert describe(path, nav_shape=(3, 4)).missing.tolist() == [6, 7, 8]
    assert describe(path, nav_shape=(3, 4)).doubts == ()


def test_the_calibration_of_another_axis_settles_nothing(tmp_path):
    path = not_numbers(tmp_path)
    (doubt,) = describe(path, axes={"x": "2 nm"}).doubts
    assert doubt.code == "uneven-axis"


def test_one_frame_and_told_scans_leave_no_doubt(tmp_path):
    for number, frames in enumerate((FRAMES[:1], FRAMES.reshape(3, 4, 4, 8))):
        path = write_mib(tmp_path / f"{number}.mib", frames)
        assert describe(path, doubts="raise").doubts == ()


def test_left_over_frames_may_be_one_more_in_each_line(tmp_path):
    _, doubt = doubt_of("left-over-frames", tmp_path)
    assert "9 of 12 frames; 3 are left out" in doubt.text
    assert doubt.settle.endswith("or nav_shape=(3, 4) if each line has 1 more")
    path = write_mib(tmp_path / "b.mib", FRAMES, nav_shape=(5, 2), scan_keys=True)
    (doubt,) = describe(path).doubts
    assert doubt.settle == "pass nav_shape=(5, 2), or sync_offset=2 if they come first"


def test_a_much_smaller_array_leaves_no_doubt(tmp_path):
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        file["data"], file["mask"], file["times"] = FRAMES, FRAMES[0], np.arange(99)
    assert describe(tmp_path / "scan.h5", doubts="raise").doubts == ()


def test_missing_frames_are_refused_with_the_doubts(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES.reshape(3, 4, 4, 8))
    with pytest.raises(DoubtError, match="4 of 16 frames are missing"):
        open_dataset(path, nav_shape=(4, 4), doubts="raise")
    assert open_dataset(path, nav_shape=(4, 4), missing="fill", doubts="raise").shape[0] == 4


def test_the_error_has_all_of_several_doubts(tmp_path):
    """Names of files may be long."""
    folder = tmp_path / ("long-name-" * 20)
    folder.mkdir(parents=True)
    path = lost_file(folder)
    doubts = describe(path).doubts
    with pytest.raises(DoubtError) as caught:
        open_dataset(path, doubts="raise")
    assert len(doubts) == 2
    assert all(text[1:] in str(caught.value) for one in doubts for text in (one.text, one.settle))


@pytest.mark.parametrize("wrong", ["error", None, 3])
def test_unknown_values_of_the_option_raise(tmp_path, wrong):
    with pytest.raises(dask_tiled.DatasetError, match="invalid doubts; expected 'warn' or"):
        open_dataset(no_scan(tmp_path), doubts=wrong)


def test_doubts_are_shown_and_stored(tmp_path):
    """The text, the table of a notebook, explain, xarray, and exports that are opened again."""
    path, doubt = doubt_of("scan-shape", tmp_path)
    arr = open_dataset(path)
    whole = f"{doubt.text}: {doubt.settle}"
    assert whole in repr(arr.description)
    assert doubt.text in arr._repr_html_()
    for one in (arr, arr.sum(0), dask_tiled.to_xarray(arr), dask_tiled.to_xarray(arr).to_dataset()):
        assert dask_tiled.explain(one).doubts == (doubt,)
    assert doubt.text in str(dask_tiled.explain(arr.sum(0)))
    assert dask_tiled.to_xarray(arr).attrs["doubts"] == [whole]
    dask_tiled.to_zarr(arr, tmp_path / "scan.zarr")
    mark = zarr.open_array(tmp_path / "scan.zarr" / "data", mode="r").attrs["dask_tiled"]
    expected = {"code": "scan-shape", "text": doubt.text, "settle": doubt.settle}
    assert mark["doubts"] == [expected]
    assert open_dataset(tmp_path / "scan.zarr").description.doubts == (doubt,)
    with xarray.open_zarr(tmp_path / "scan.zarr", consolidated=False) as stored:
        assert stored["data"].attrs["dask_tiled"]["doubts"] == [expected]


@pytest.mark.parametrize(
    "told", [None, 3, [3], [{"code": "a"}], [{"code": 1, "text": "", "settle": ""}]]
)
def test_damaged_doubts_of_an_export_are_skipped(tmp_path, told):
    path, _ = doubt_of("scan-shape", tmp_path)
    dask_tiled.to_zarr(open_dataset(path), tmp_path / "scan.zarr")
    document = tmp_path / "scan.zarr" / "data" / "zarr.json"
    content = json.loads(document.read_text())
    content["attributes"]["dask_tiled"]["doubts"] = told
    document.write_text(json.dumps(content))
    assert open_dataset(tmp_path / "scan.zarr", dataset="data").description.doubts == ()


def test_text():
    assert str(Doubt("a", "something is assumed", "pass b")) == "something is assumed: pass b"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(table(Path(made)), "utf8")
