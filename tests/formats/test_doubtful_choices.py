"""Functions that choose among the pictures of a file, or infer a scan, state a doubt."""

import h5py
import numpy as np
import pytest
import tifffile

import dask_tiled
from dask_tiled import ImageField, describe, open_dataset
from dask_tiled.formats.tools.choosing import choose_picture
from dask_tiled.model.doubts import SETTLED_BY
from dask_tiled.testing import (
    Tile,
    counting_frames,
    write_czi,
    write_direct_electron,
    write_dm,
    write_empad,
    write_fits,
    write_frms6,
    write_jeol_image,
    write_jeol_list,
    write_k2is,
    write_lif,
    write_mrc,
    write_nd2,
    write_seq,
    write_ser,
    write_tvips,
)

pytestmark = pytest.mark.usefixtures("synchronous")


NO_CHOICE = {
    "channels": "the header tells the number",
    "cut": "a file that was cut off is refused without it",
    "dark": "the frames are shown without it",
    "dtype": "required",
    "file_header": "a layout that the user describes",
    "frame_footer": "a layout that the user describes",
    "frame_header": "a layout that the user describes",
    "frame_time": "all hits are one frame without it",
    "frames": "the sum that the file's own program shows",
    "gain_map": "for corrections",
    "hysteresis": "rows are shown as they are stored without it",
    "level": "full resolution without it",
    "lines": "all hits are one frame without it",
    "mosaic": "tiles are an axis without it",
    "rebin_energy": "channels are shown as they are stored without it",
    "save_index": "it changes no pixels",
    "scaled": "pixels are shown as they are stored without it",
    "scan": "'none' leaves no doubt about the scan, as nav_shape does",
    "series": "all files of the series; lost ones are a doubt",
    "sig_dims": "it splits the same axes otherwise",
    "sig_shape": "told by the file, or required",
    "squeeze": "it drops axes of length 1",
    "values": "counts without it",
    "winding": "rows are shown as they are stored without it",
}
"""Options of formats that settle no doubt, and why the file leaves no choice open without them."""


def test_each_option_settles_a_doubt_or_is_no_choice():
    """A new option of a format is about a choice: it needs a doubt, or a reason for none."""
    settling = set().union(*SETTLED_BY.values())
    options = {option for one in dask_tiled.formats().values() for option in one.options()}
    assert options - settling == NO_CHOICE.keys()


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


ALIKE = counting_frames((2, 8, 8), "u2")
SCENES = [Tile({"S": k, "Y": 0, "X": 9 * k}, one) for k, one in enumerate(ALIKE)]


def write_series(path):
    with tifffile.TiffWriter(path) as file:
        for page in (*ALIKE, *ALIKE[..., :7]):
            file.write(page, metadata=None, contiguous=False)
    return path


OF_TWO_PICTURES = {
    "czi": lambda path: write_czi(path, SCENES),
    "dm4": lambda path: write_dm(path, ALIKE[0], more={"other": ALIKE[1]}),
    "fits": lambda path: write_fits(path, *ALIKE),
    "lif": lambda path: write_lif(path, {"a": ALIKE[0], "b": ALIKE[1]}, "yx"),
    "tif": write_series,
}


@pytest.mark.parametrize("suffix", OF_TWO_PICTURES)
def test_files_of_two_pictures_of_one_size(tmp_path, suffix):
    path = OF_TWO_PICTURES[suffix](tmp_path / f"a.{suffix}")
    (doubt,) = describe(path).doubts
    assert doubt.code == "default-dataset"
    assert doubt.text.startswith("2 arrays may be meant; ")
    assert open_dataset(path, dataset=1, doubts="raise").shape[-2] == 8


def test_much_smaller_second_series_of_tiff_leave_no_doubt(tmp_path):
    first, second = counting_frames((3, 8, 8), "u2"), counting_frames((2, 5), "u2")
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for page in (*first, second):
            file.write(page, metadata=None, contiguous=False)
    assert describe(tmp_path / "a.tif").doubts == ()


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


@pytest.mark.thorough
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


def test_sequences_of_cameras_that_scan(tmp_path):
    """StreamPix records movies; files of Direct Electron beside a sequence leave the scan open."""
    path = write_seq(tmp_path / "a.seq", counting_frames((6, 8, 8), "u2"))
    assert describe(path).doubts == ()
    write_mrc(tmp_path / "a.seq.dark.mrc", np.zeros((1, 8, 8), "f4"))
    assert one_doubt(path).text.startswith(f"6 {IN_A_ROW}")
    assert open_dataset(path, nav_shape=(2, 3), doubts="raise").shape == (2, 3, 8, 8)


def test_scans_of_raw_files(tmp_path):
    path, layout = tmp_path / "a.raw", {"dtype": "u2", "sig_shape": (8, 10)}
    MOVIE.tofile(path)
    doubt = one_doubt(path, format="raw", **layout)
    assert doubt.text.startswith(f"12 {IN_A_ROW}")
    assert doubt.settle == "pass nav_shape=(rows, columns), or nav_shape=(12,) for a series"
    for nav_shape in ((12,), (3, 4)):
        assert describe(path, "raw", nav_shape=nav_shape, **layout).doubts == ()
    assert describe(path, "raw", dtype="u2", sig_shape=(96, 10)).doubts == ()


def test_nd2_files_with_more_frames_than_their_loops(tmp_path):
    path = write_nd2(tmp_path / "a.nd2", counting_frames((6, 8, 8), "u2"), "tyx")
    data = path.read_bytes()
    assert describe(path).doubts == ()
    count = "uiCount".encode("utf-16-le")
    at = data.index((6).to_bytes(4, "little"), data.index(count))
    path.write_bytes(data[:at] + (4).to_bytes(4, "little") + data[at + 4 :])
    assert "takes 4 of 6 frames" in one_doubt(path).text
    assert open_dataset(path, nav_shape=(6,), doubts="raise").shape == (6, 8, 8)


def test_nd2_loops_that_take_turns(tmp_path):
    """Frames are in a row, unless their number shows that only the longest loop was recorded."""
    frames = counting_frames((2, 5, 8, 8), "u2")
    path = write_nd2(tmp_path / "a.nd2", frames, "tzyx", in_turn={"p": 2})
    assert describe(path, doubts="raise").shape == (2, 5, 8, 8)
    data = path.read_bytes()
    count = "uiCount".encode("utf-16-le")
    at = data.index((5).to_bytes(4, "little"), data.index(count))
    path.write_bytes(data[:at] + (3).to_bytes(4, "little") + data[at + 4 :])  # of z
    doubt = one_doubt(path)
    assert doubt.code == "scan-shape"
    assert doubt.text.endswith("as loops of the experiment take turns: z of 3 and p of 2")
    np.testing.assert_array_equal(open_dataset(path, doubts="ignore"), frames.reshape(10, 8, 8))
    assert open_dataset(path, nav_shape=(2, 5), doubts="raise").shape == frames.shape
    path = write_nd2(tmp_path / "b.nd2", frames, "tzyx", in_turn={"p": 5})
    assert "z of 5 and p of 5" in one_doubt(path).text
    path = write_nd2(tmp_path / "c.nd2", frames, "tzyx", in_turn={"z": 5})
    assert describe(path, doubts="raise").dims == ("t", "z", "y", "x")


def test_the_first_of_several_image_fields_is_in_doubt(tmp_path):
    """The first field of images is meant, in doubt if there are several; without, the first one."""
    fields = {
        "image": counting_frames((3, 8, 10, 3), "u1"),
        "label": np.arange(3),
        "depth": counting_frames((3, 8, 10), "f4"),
        "mask": counting_frames((3, 8, 10, 3), "u1"),
    }
    shown = {"image label": 0, "label image": 1, "image depth": 0, "depth label image": 2}
    shown |= {"label": 0, "label depth": 0}
    doubtful = {"label image mask": 1, "image label mask": 0}
    for listed, meant in (shown | doubtful).items():
        path = tmp_path / f"{listed}.beton"
        kinds = dict.fromkeys({"image", "mask"} & {*listed.split()}, ImageField("raw"))
        dask_tiled.to_beton(path, {name: fields[name] for name in listed.split()}, kinds)
        desc = describe(path)
        assert desc.metadata["beton"]["field"] == listed.split()[meant]
        found = desc.doubts
        assert len(found) == (listed in doubtful)
        np.testing.assert_array_equal(
            open_dataset(path, doubts="ignore"), fields[listed.split()[meant]]
        )
        for name in listed.split():
            arr = open_dataset(path, field=name, doubts="raise")
            np.testing.assert_array_equal(arr, fields[name])
    assert found[0].text.endswith("image is shown, the first field of images; the others: mask")
    assert found[0].settle == "pass field='image', or the name of another"


FRAMES = counting_frames((10, 4, 6), "u2")


def test_scans_of_frms6_sets(tmp_path):
    """A set without a .hdr file, and one with more frames than the scan in it."""
    path = write_frms6(tmp_path / "a", FRAMES, dark=FRAMES[:3], scan_shape=(3, 3))[1]
    doubt = one_doubt(path)
    assert doubt.text == "the scan (3, 3) of a.hdr takes 9 of 10 frames; 1 are left out"
    np.testing.assert_array_equal(
        open_dataset(path, doubts="ignore"), FRAMES[:9].reshape(3, 3, 4, 6)
    )
    assert open_dataset(path, doubts="raise", nav_shape=(2, 5)).shape == (2, 5, 4, 6)
    (tmp_path / "a.hdr").unlink()
    assert one_doubt(path).text.startswith(f"10 {IN_A_ROW}")
    assert describe(path, dark=True).doubts == ()
    assert describe(path, nav_shape=(10,)).doubts == ()


def test_scans_of_tvips_series(tmp_path):
    """Frames without positions, a square by its number of positions, and a part of a row."""
    path = write_tvips(tmp_path / "a", FRAMES)[0]
    assert one_doubt(path).text.startswith(f"10 {IN_A_ROW}")
    assert describe(path, scan="none").doubts == describe(path, nav_shape=(10,)).doubts == ()
    path = write_tvips(tmp_path / "b", FRAMES, rotator=range(1, 10))[0]
    assert one_doubt(path).settle == "pass nav_shape=(3, 3)"
    raster = [(float(y), float(x)) for y, x in np.ndindex(4, 3)]
    path = write_tvips(tmp_path / "c", FRAMES, positions=raster[:9])[0]
    assert describe(path).doubts == ()
    path = write_tvips(tmp_path / "d", FRAMES, positions=[*raster[:4], *raster[6:9]])[0]
    assert "takes 9 of 10 frames" in one_doubt(path).text


def test_dimensions_of_ser_files_that_do_not_fit(tmp_path):
    path = write_ser(tmp_path / "a.ser", FRAMES, nav_shape=(2, 5))
    assert describe(path).doubts == ()
    data = bytearray(path.read_bytes())
    data[34:38] = (7).to_bytes(4, "little")  # the size of the first dimension
    path.write_bytes(data)
    assert IN_A_ROW in one_doubt(path).text


def test_scans_of_empad_that_contradict_each_other(tmp_path):
    frames = np.zeros((2, 3, 128, 128), "f4")
    path = write_empad(tmp_path / "a.xml", frames)
    assert describe(path).doubts == ()
    text = path.read_text().replace("</root>", "<pix_y>3</pix_y><pix_x>2</pix_x></root>")
    path.write_text(text)
    doubt = one_doubt(path)
    assert doubt.settle == "pass nav_shape=(2, 3)"
    assert "the file also says (3, 2)" in doubt.text


def test_series_of_an_emi_file(tmp_path):
    """The doubt is about files of similar size only; a .ser file is settled by its name."""
    (tmp_path / "a.emi").write_bytes(b"JK\0\2")
    frames = counting_frames((10, 64, 64), "u2")
    first = write_ser(tmp_path / "a_1.ser", frames)
    write_ser(tmp_path / "a_2.ser", frames[0, :32])
    assert describe(tmp_path / "a.emi").doubts == ()
    write_ser(tmp_path / "a_3.ser", frames[:5])
    doubt = one_doubt(tmp_path / "a.emi")
    assert (
        doubt.text == "2 arrays may be meant; a_1 is shown, the first in the file; the others: a_3"
    )
    assert describe(first).doubts == describe(tmp_path / "a.emi", dataset="a_1").doubts == ()


def test_lists_of_jeol(tmp_path):
    for name, size in (("a.img", 200), ("b.img", 150), ("c.img", 2)):
        write_jeol_image(tmp_path / name, np.ones((size, size), "u1"))
    path = write_jeol_list(tmp_path / "a.ASW", ["a.img", "b.img", "c.img", "lost.img"])
    doubt = one_doubt(path)
    assert "a.img is shown, the first in the file; the others: b.img" in doubt.text
    assert describe(path, dataset="b.img").doubts == ()
    alone = write_jeol_list(tmp_path / "b.ASW", ["a.img", "c.img"])
    assert describe(alone).doubts == ()


def hyperspy(file, name, frames):
    file[f"Experiments/{name}/data"] = frames


def emd(file, name, frames):
    group = file.create_group(name)
    group.attrs["emd_group_type"] = 1
    group["data"] = frames


def nexus(file, name, frames):
    group = file.create_group(name)
    group.attrs.update({"NX_class": "NXdata", "signal": "counts"})
    group["counts"] = frames


def eiger(file, name, frames):
    file[f"{name}/data_000001"] = frames


@pytest.mark.parametrize("write", [hyperspy, emd, nexus, eiger])
def test_the_largest_of_several_designated_arrays_is_in_doubt(tmp_path, write):
    """A convention that lists several arrays does not tell which one; their sizes may differ."""
    path = tmp_path / "a.h5"
    for names, others in (("a", 0), ("ac", 0), ("abc", 1)):
        with h5py.File(path, "w") as file:
            for name, count in zip("abc", (10, 9, 1), strict=True):
                if name in names:
                    write(file, name, FRAMES[:count, :2] if name == "c" else FRAMES[:count])
        found = describe(path).doubts
        assert [doubt.code for doubt in found] == ["default-dataset"] * others, names
    assert "2 arrays may be meant" in found[0].text
    (chosen,) = {one for one in describe(path).metadata["hdf5"]["datasets"] if "b" in one[-20:]}
    assert describe(path, dataset=chosen).doubts == ()


def test_the_largest_array_of_no_convention_is_in_doubt(tmp_path):
    """One of a tenth of the pixels may be meant."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["a"], file["b"] = FRAMES, FRAMES[:1, 1:]
    assert describe(path).doubts == ()
    with h5py.File(path, "w") as file:
        file["a"], file["b"] = FRAMES, FRAMES[:1]
    assert one_doubt(path).text.endswith("the others: /b")
