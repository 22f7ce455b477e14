"""PNDetector FRMS6 sets; without real ones, written sets are compared with LiberTEM."""

import importlib
import sys

import numpy as np
import pytest
from checks import refuses
from libertem_reader import libertem_reads
from scipy.io import savemat

import dask_tiled
from dask_tiled import CorruptFileError, DatasetError, TruncatedFileError, describe, open_dataset
from dask_tiled.testing import check_format, counting_frames, write_frms6, write_mib

pytestmark = pytest.mark.usefixtures("synchronous")
SCAN = (3, 5)
FRAMES = counting_frames((*SCAN, 8, 6), "u2")
DARK = counting_frames((7, 8, 6), "u2", bits=9)
RECORD = 64 + 2 * 48


def write(folder, binning=1, **options):
    options = {"dark": DARK, "scan_shape": SCAN, "frames_per_file": 6, **options}
    return write_frms6(folder / "run 2_b", FRAMES, binning=binning, **options)


def unbinned(frames, binning):
    return frames.repeat(binning, axis=-2)


def test_writer_refuses_an_odd_number_of_rows(tmp_path):
    with pytest.raises(ValueError, match="expected frames of an even number of rows"):
        write(tmp_path, dark=DARK[:, 1:])


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Write a set for each binning; the headers of the second one do not count frames."""
    folders = {n: tmp_path_factory.mktemp(f"bin{n}") for n in (1, 2, 4)}
    return {n: write(folder, n, counted=n != 2) for n, folder in folders.items()}


@pytest.mark.parametrize("binning", [1, 2, 4])
def test_set(sets, binning):
    check_format(sets[binning][1], unbinned(FRAMES, binning))
    check_format(sets[binning][0], unbinned(DARK, binning), dark=True, cuts=3)


@pytest.mark.slow
def test_sets_equal_libertem(sets, tmp_path):
    """Frames and mean dark frames equal LiberTEM's."""
    jobs = {n: ("frms6", {"path": paths[1]}) for n, paths in sets.items()}
    for n, theirs in libertem_reads(tmp_path, jobs).items():
        np.testing.assert_array_equal(open_dataset(sets[n][2]), theirs["frames"])
        ours = describe(sets[n][0], corrections="dataset").conversion.corrections
        np.testing.assert_allclose(ours.dark, theirs["dark"], rtol=1e-6)
        assert ours.gain is None


def test_any_file_opens_the_set(sets):
    layout = describe(sets[4][0]).layout
    hdr = sets[4][0].with_name("run 2_b.hdr")
    assert all(describe(path).layout == layout for path in (*sets[4], hdr, hdr.with_name("*")))
    desc = describe(hdr)
    assert (desc.format, len(desc.files)) == ("frms6", 3)
    facts = desc.metadata["frms6"]
    assert facts["binning"] == 4
    assert facts["hdr"]["stemimagesize"] == SCAN
    assert facts["hdr"]["dwelltimemicroseconds"] == 1000
    assert facts["nav_shape_from"] == facts["binning_from"] == str(hdr)


def test_hdr_files_of_merlin_are_mib(tmp_path):
    write_mib(tmp_path / "a.mib", FRAMES.reshape(-1, 8, 6), nav_shape=SCAN)
    assert describe(tmp_path / "a.hdr").format == "mib"
    (tmp_path / "b.hdr").write_text("nothing that is known")
    refuses(tmp_path / "b.hdr", kind=dask_tiled.UnknownFormatError)


def test_listed_files(sets):
    arr = open_dataset(sets[2][2:0:-1], nav_shape=(12,))
    np.testing.assert_array_equal(arr, unbinned(FRAMES, 2).reshape(15, 16, 6)[:12])
    with pytest.raises(TruncatedFileError, match="are missing"):
        describe([sets[1][1], sets[1][3]])
    with pytest.raises(DatasetError, match="not of one set"):
        describe([sets[1][1], sets[2][1]])


def test_set_without_hdr_file_keeps_stored_rows(tmp_path):
    paths = write(tmp_path, 2)
    (tmp_path / "run 2_b.hdr").unlink()
    desc = describe(paths[1])
    assert desc.shape == (15, 8, 6)
    assert "no .hdr file" in desc.metadata["frms6"]["binning_from"]


@pytest.mark.parametrize("binning", [1, 4])
@pytest.mark.parametrize("suffix", [".mat", ".csv"])
def test_corrections_of_the_set(tmp_path, binning, suffix):
    paths = write(tmp_path, binning)
    gain = np.random.default_rng(0).uniform(0.5, 2, (8 * binning, 6)).astype("f4")
    path = tmp_path / f"gain{suffix}"
    if suffix == ".mat":
        savemat(path, {"GainMap": gain, "other": [1]})
    else:
        path.write_text("".join(";".join(map(repr, row)) + ";\n" for row in gain.T.tolist()))
    arr = open_dataset(paths[1], corrections="dataset", gain_map=path)
    dark = unbinned(DARK.mean(axis=0, dtype="f8").astype("f4"), binning)
    assert arr.dtype == np.float32
    np.testing.assert_array_equal(arr, (unbinned(FRAMES, binning).astype("f4") - dark) * gain)


def test_dark_frames_are_averaged_in_blocks(tmp_path, monkeypatch):
    paths = write(tmp_path)
    module = importlib.import_module("dask_tiled.formats.frms6.corrections")
    whole = describe(paths[1], corrections="dataset").conversion.corrections
    monkeypatch.setattr(module, "BLOCK_BYTES", 2 * RECORD)
    assert describe(paths[1], corrections="dataset").conversion.corrections == whole


def test_unreadable_corrections_raise(tmp_path, monkeypatch):
    paths = write(tmp_path)
    files = {
        "text.mat": (b"no mat file", "cannot be read"),
        "words.csv": (b"1;2\nthree;4\n", "not a table of numbers"),
        "ragged.csv": (b"1;2\n3\n", "not a table of numbers"),
        "small.csv": (b"1;2\n3;4\n", "shape of a frame"),
        "large.csv": (b"1;" * 50_000, "too large"),
        "gain.txt": (b"1", "not a gain map"),
    }
    for name, (data, problem) in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DatasetError, match=problem):
            open_dataset(paths[1], corrections="dataset", gain_map=tmp_path / name)
    savemat(tmp_path / "other.mat", {"other": [1]})
    with pytest.raises(CorruptFileError, match="GainMap"):
        open_dataset(paths[1], corrections="dataset", gain_map=tmp_path / "other.mat")
    paths[0].unlink()
    with pytest.raises(DatasetError, match="dark frames is missing"):
        open_dataset(paths[1], corrections="dataset")
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DatasetError, match=r"Run: pip install \"dask-tiled\[frms6\]"):
        open_dataset(paths[1], corrections="dataset", gain_map=tmp_path / "other.mat")


def test_missing_files_raise(tmp_path):
    paths = write(tmp_path)
    paths[0].rename(tmp_path / "dark")
    with pytest.raises(TruncatedFileError, match="_000"):
        describe(paths[1], dark=True)
    paths[2].rename(tmp_path / "second")
    with pytest.raises(TruncatedFileError, match="missing"):
        describe(paths[1])
    paths[1].unlink()
    with pytest.raises(TruncatedFileError, match="_001"):
        describe(paths[3])


def test_file_that_was_just_begun(tmp_path):
    """A last file without a frame is left out while a set grows."""
    paths = write(tmp_path)
    content = paths[3].read_bytes()
    for size, held in [(0, 0), (100, 0), (1024, 0), (1023 + RECORD, 0), (1024 + RECORD, 1)]:
        paths[3].write_bytes(content[:size])
        desc = open_dataset(paths[1], follow=True).description
        assert (len(desc.files), desc.missing.size) == (2 + held, 3 - held)


@pytest.mark.parametrize(
    ("old", "new", "where", "expected"),
    [
        ("3x5", "3x0", "STEMImageSize", "as in 64x64"),
        ("3x5", "wide", "STEMImageSize", "as in 64x64"),
        ("STEMImageSize", "Size", "STEMImageSize", "as in 64x64"),
        ("bin: 1", "bin: 3", "readoutMode", "bin: 1, 2 or 4"),
        ("bin: 1", "bin: 16", "readoutMode", "bin: 1, 2 or 4"),
    ],
)
def test_invalid_hdr_files_raise(tmp_path, old, new, where, expected):
    write(tmp_path)
    path = tmp_path / "run 2_b.hdr"
    path.write_text(path.read_text("ascii").replace(old, new), "ascii")
    with pytest.raises(CorruptFileError) as caught:
        describe(path)
    error = caught.value
    assert (error.path, error.where, error.expected) == (str(path), where, expected)


@pytest.mark.parametrize("at", [0, 2, 7, 88, 90, 1020])
@pytest.mark.parametrize("value", [0, 0x7FFF])
def test_hostile_headers(tmp_path, at, value):
    paths = write(tmp_path)
    data = bytearray(paths[2].read_bytes())
    data[at : at + 2] = value.to_bytes(2, "little")
    paths[2].write_bytes(data)
    if at == 1020 and not value:  # no count of frames
        assert describe(paths[1]).layout.n_frames == 15
        return
    with pytest.raises(DatasetError, match="run 2_b_002"):
        describe(paths[1])
