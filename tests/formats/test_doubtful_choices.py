"""Functions that choose among the pictures of a file, or infer a scan, state a doubt."""

import ast
from pathlib import Path

import h5py
import numpy as np
import pytest
import tifffile

import dask_tiled
from dask_tiled import describe, open_dataset
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.testing import (
    counting_frames,
    write_direct_electron,
    write_k2is,
    write_nd2,
    write_seq,
)

pytestmark = pytest.mark.usefixtures("synchronous")

FORMATS = Path(dask_tiled.__file__).parent / "formats"
SETTLED = {
    "beton/descriptor.py": "the fields of a sample belong together; the first is its data",
    "jeol/descriptor.py": "a list names files, and the description names the one that is shown",
    "ser/emi.py": "an .emi file is a list of files, and the description names the one shown",
    "hdf5/choice.py": "only by the number that a user passes",
}
"""Modules that call choose_dataset without a doubt, and why none is needed."""


def calls():
    """Yield the module, the enclosing function and the name of every call in the formats."""
    for path in sorted(FORMATS.rglob("*.py")):
        tree = ast.parse(path.read_text("utf8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                        yield path.relative_to(FORMATS).as_posix(), function, node.func.id


def test_pictures_are_chosen_with_a_doubt():
    """Every format that lets users choose a picture chooses it by the function that doubts."""
    chosen = {module for module, _, name in calls() if name == "choose_dataset"}
    assert chosen == {*SETTLED, "tools/choosing.py"}
    doubted = {module for module, _, name in calls() if name == "choose_picture"}
    assert doubted == {
        f"{name}.py"
        for name in (
            "czi/descriptor", "dm/descriptor", "fits", "lif/descriptor", "ome_tiff/descriptor",
            "tiff/descriptor",
        )
    }  # fmt: skip


def test_options_that_choose_are_known():
    """Each format with an option ``dataset`` is one of those above, or ranks arrays by size."""
    named = {
        name
        for name, one in dask_tiled.formats().items()
        if {"dataset", "field"} & {*one.options()}
    }
    by_rank = {"hdf5", "zarr"}
    modules = {module.split("/")[0].removesuffix(".py") for module in SETTLED}
    doubted = {"czi", "dm", "fits", "lif", "ome_tiff", "tiff"}
    assert named == by_rank | doubted | (modules - {"hdf5"})


def test_inferred_shapes_have_a_doubt():
    """A function whose metadata say "inferred" states a doubt, or returns one."""
    silent = []
    for path in sorted(FORMATS.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text("utf8"))):
            if not isinstance(function, ast.FunctionDef):
                continue
            body = function.body[1:] if ast.get_docstring(function) else function.body
            text = "\n".join(map(ast.unparse, body))
            if "inferred: " in text and "inferred_scan" not in text:
                silent.append(f"{path.name}: {function.name}")
    assert silent == []


@pytest.mark.parametrize("names", [("a", "b", "c"), ("", "", ""), ("a", "a", "b")])
def test_similar_pictures_leave_a_doubt(names):
    """A picture of a tenth of the size or more may be meant; names are used where they tell."""
    assert choose_picture("x", names, None, (100, 9, 3)) == (0, ())
    number, (doubt,) = choose_picture("x", names, None, (100, 9, 10))
    label = "'a'" if names == ("a", "b", "c") else "0"
    assert (number, doubt.code) == (0, "default-dataset")
    assert doubt.settle == f"pass dataset={label}, or the name of another"
    assert doubt.text.startswith("2 arrays may be meant; ")
    assert choose_picture("x", names, 2, (100, 100, 100)) == (2, ())
    assert choose_picture("x", names, None, (0, 5, 5)).doubts == ()


def test_tiff_series_of_similar_size(tmp_path):
    path = tmp_path / "a.tif"
    first, second = counting_frames((3, 8, 8), "u2"), counting_frames((3, 8, 9), "u2")
    with tifffile.TiffWriter(path) as file:
        for page in (*first, *second):
            file.write(page, metadata=None, contiguous=False)
    (doubt,) = describe(path).doubts
    assert "2 arrays may be meant; 0 is shown" in doubt.text
    np.testing.assert_array_equal(open_dataset(path, dataset=1, doubts="raise"), second)
    with tifffile.TiffWriter(path) as file:
        for page in (*first, second[0, :2, :5]):
            file.write(page, metadata=None, contiguous=False)
    assert describe(path).doubts == ()


def test_a_square_scan_of_an_arina_is_in_doubt(tmp_path):
    path = tmp_path / "scan_master.h5"
    with h5py.File(path, "w") as file:
        file["entry/data/data_000001"] = counting_frames((9, 8, 8), "u2")
    with h5py.File(tmp_path / "scan.h5", "w") as file:
        attributes = file.create_group("STEM Metadata").attrs
        attributes["Pixel Size"] = 0.5
    (doubt,) = describe(path).doubts
    assert doubt.settle == "pass nav_shape=(3, 3)"
    with h5py.File(tmp_path / "scan.h5", "r+") as file:
        file["STEM Metadata"].attrs["Scan Size Y"] = 3
        file["STEM Metadata"].attrs["Scan Size X"] = 3
    assert describe(path).doubts == ()


IN_A_ROW = "frames are shown in a row"
DE = {"Scan - Enable": "Enable", "Scan - Size X": 3, "Scan - Size Y": 2}
CUSTOM = DE | {"Scan - Type": "Custom"}
MOVIE = counting_frames((12, 8, 10), "u2")
PLACES = [(x, y) for y in range(2) for x in range(3)]


def one_doubt(path, **options):
    (doubt,) = describe(path, **options).doubts
    return doubt


def test_scans_of_direct_electron_cameras(tmp_path):
    """No coordinates, unequal visits, no sizes, and a number of frames that is a multiple."""
    movie = write_direct_electron(tmp_path, MOVIE, CUSTOM)
    assert IN_A_ROW in one_doubt(movie).text
    movie = write_direct_electron(tmp_path, MOVIE, DE | {"Scan - Size X": -1})
    assert IN_A_ROW in one_doubt(movie).text
    doubt = one_doubt(write_direct_electron(tmp_path, MOVIE, DE))
    assert "(2, 2, 3) is inferred: the number of frames is 2 times that of" in doubt.text
    assert describe(write_direct_electron(tmp_path, MOVIE[:6], DE)).doubts == ()
    movie = write_direct_electron(tmp_path, MOVIE[:6], CUSTOM, coordinates=PLACES)
    assert describe(movie).doubts == ()
    movie = write_direct_electron(tmp_path, MOVIE[:6], CUSTOM, coordinates=[*PLACES[:5], (0, 0)])
    assert IN_A_ROW in one_doubt(movie).text


def test_scans_of_k2_cameras(tmp_path):
    """Frames without a .gtg file, and frames beyond the scan of one."""
    frames = np.zeros((5, 1860, 2048), "u2")
    path, *_ = write_k2is(tmp_path / "a_", frames, gtg=False)
    assert IN_A_ROW in one_doubt(path).text
    path, *_ = write_k2is(tmp_path / "b_", frames, scan_shape=(2, 2))
    assert "takes 4 of 5 frames" in one_doubt(path).text
    path, *_ = write_k2is(tmp_path / "c_", frames)
    assert describe(path).doubts == ()


def test_raw_files_of_empad(tmp_path):
    path = tmp_path / "frames.raw"
    np.zeros((6, 130, 128), "f4").tofile(path)
    assert IN_A_ROW in one_doubt(path, format="empad").text
    assert describe(path, "empad", nav_shape=(2, 3)).doubts == ()


def test_sequences_with_more_frames_than_announced(tmp_path):
    """Space that was reserved, filled with zeros, is no frame."""
    frames = counting_frames((6, 8, 8), "u2") + 1
    path = write_seq(tmp_path / "a.seq", frames, promised=4)
    assert "takes 4 of 6 frames" in one_doubt(path).text
    assert describe(write_seq(tmp_path / "b.seq", frames, room=3)).doubts == ()


def test_nd2_files_with_more_frames_than_their_loops(tmp_path):
    path = write_nd2(tmp_path / "a.nd2", counting_frames((6, 8, 8), "u2"), "tyx")
    data = path.read_bytes()
    assert describe(path).doubts == ()
    count = "uiCount".encode("utf-16-le")
    at = data.index((6).to_bytes(4, "little"), data.index(count))
    path.write_bytes(data[:at] + (4).to_bytes(4, "little") + data[at + 4 :])
    assert "takes 4 of 6 frames" in one_doubt(path).text
    assert open_dataset(path, nav_shape=(6,), doubts="raise").shape == (6, 8, 8)
