"""What people read when something is mistyped, unknown or broken: what it is, and what to do."""

import os
import pickle

import numpy as np
import pytest

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    StaleFileError,
    TilingError,
    TilingRequest,
    TruncatedFileError,
    UnknownFormatError,
    formats,
    open_dataset,
    scheme_of,
    testing,
)


@pytest.fixture
def pixels():
    return np.arange(12 * 8 * 8, dtype="u2").reshape(12, 8, 8)


@pytest.fixture
def raw(tmp_path, pixels):
    path = tmp_path / "f.bin"
    pixels.tofile(path)
    return path


@pytest.fixture
def mib(tmp_path, pixels):
    path = tmp_path / "scan.mib"
    testing.write_mib(path, pixels)
    return path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("navshape", "nav_shape"),
        ("chunk", "chunks"),
        ("corection", "corrections"),
        ("serie", "series"),
    ],
)
def test_mistyped_options_get_the_nearest(mib, typed, meant):
    with pytest.raises(DatasetError, match=f"no option '{typed}'; .* Do you mean '{meant}'"):
        open_dataset(mib, **{typed: 1})


def test_options_that_are_like_none_get_the_list(mib):
    with pytest.raises(DatasetError, match=r"no option 'xyzzy'; expected one of series$") as caught:
        open_dataset(mib, xyzzy=1)
    assert caught.value.path == str(mib)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nifty", r"found 'nifty'\nDo you mean 'nifti'"),
        *[(3, "mib.*; found 3$"), ([1], "mib"), ("", "mib"), ({"mib"}, "mib")],
    ],
    ids=repr,
)
def test_what_is_no_name_of_a_format(mib, name, says):
    with pytest.raises(UnknownFormatError, match=says) as caught:
        open_dataset(mib, name)
    assert caught.value.found == repr(name)


@pytest.mark.parametrize("name", ["mib", "MIB", ".mib", "Merlin", "quantum detectors"])
def test_formats_are_known_by_what_people_call_them(mib, name):
    assert open_dataset(mib, name).description.format == "mib"


def test_a_suffix_of_several_formats_is_settled_by_the_content(tmp_path, pixels):
    path = tmp_path / "stack.tif"
    pytest.importorskip("tifffile").imwrite(path, pixels)
    assert open_dataset(path, ".tif").description.format == "tiff"


def test_no_two_formats_have_one_name():
    names = [name for one in formats().values() for name in (one.name, *one.aliases)]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and not set(name) & set("-. ") for name in names)


@pytest.mark.parametrize(
    ("content", "look"),
    [
        (b"\x89PNG\r\n\x1a\n" + b"1" * 500, "a PNG image"),
        (b"  <!DOCTYPE html><html>no</html>", "a web page: perhaps a download was refused"),
        (b"hello\n" * 2000, "text"),
        ("größer\n" * 2000, "text"),
        (bytes(9000), "nothing but zeros"),
        (bytes(range(256)) * 10, "binary data"),
        (b"\0", "nothing but zeros"),
        (b"MQ2,", "text"),
        (b"\x93NUMP", "binary data"),
        (b"PK\3\4" + bytes(100), "a ZIP archive"),
    ],
    ids=["png", "html", "ascii", "utf-8", "zeros", "binary", "nul", "mib", "npy", "zip"],
)
def test_an_unknown_file_gives_two_lines(tmp_path, content, look):
    """What it looks like, and what to do; the reasons of all formats are kept beside."""
    path = tmp_path / "file.xyz"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UnknownFormatError) as caught:
        open_dataset(path)
    first, second = str(caught.value).splitlines()
    assert f"looks like {look}" in first
    assert "format=" in second
    assert len(str(caught.value)) < 400
    sniffed = [format.sniff(str(path), path.read_bytes()[:4096]) for format in formats().values()]
    assert caught.value.reasons == dict(zip(formats(), sniffed, strict=True))
    assert ".reasons" in caught.value.__notes__[0]  # below a traceback
    assert pickle.loads(pickle.dumps(caught.value)).reasons == caught.value.reasons


RECORDING = b"0       " + b"patient".ljust(80) + b"recording".ljust(80) + b"01.02.0310.11.12"
OTHERS = {
    "text": b"some words\n" * 1000,
    "binary data": bytes(range(256)) * 40,
    "a MATLAB 5 file": b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1IM" + bytes(9000),
    "an EEG recording (EDF, the European Data Format": RECORDING + b"256     ".ljust(9000),
    "a DICOM file": bytes(128) + b"DICM" + bytes(9000),
}


@pytest.mark.parametrize("look", OTHERS)
def test_no_file_of_another_kind_is_called_corrupt_for_its_suffix(tmp_path, look):
    """Nor truncated, where the content tells what it is; the format says what it found."""
    path = tmp_path / "a"
    for format in formats().values():
        for suffix in format.extensions:
            path = path.rename(tmp_path / f"a{suffix}") if path.exists() else path
            path.write_bytes(OTHERS[look])
            with pytest.raises(DatasetError) as caught:
                open_dataset(path)
            error = caught.value
            if isinstance(error, UnknownFormatError):
                assert f"looks like {look}" in str(error)
                assert error.hint
                named = (error.expected or format.name).removesuffix(", by the suffix")
                assert named in formats()
            else:
                assert not isinstance(error, CorruptFileError)
                assert not look.startswith("a") or type(error) is DatasetError, (suffix, error)


@pytest.mark.parametrize(
    ("name", "look", "advice"),
    [
        ("a.mat", "a MATLAB 5 file", "-v7.3"),
        ("a.edf", "an EEG recording (EDF, the European Data Format", "MNE"),
        ("a.map", "text", "Pass format="),
        ("a.img", "binary data", "Pass format="),
    ],
)
def test_sound_files_of_others_are_named(tmp_path, name, look, advice):
    path = tmp_path / name
    path.write_bytes(OTHERS[look])
    with pytest.raises(UnknownFormatError) as caught:
        open_dataset(path)
    first, second = str(caught.value).splitlines()
    assert f"{name}: no format recognises the file, which looks like {look}" in first
    assert "by the suffix; found" in first
    assert first.count(name) < 3
    assert advice in second


@pytest.mark.parametrize("suffix", [".bin", ".xyz", ""])
def test_a_file_of_which_all_is_said_is_raw(raw, pixels, suffix):
    path = raw.rename(raw.with_suffix(suffix))
    arr = open_dataset(path, dtype="u2", sig_shape=(8, 8))
    assert arr.description.format == "raw"
    assert (arr.compute() == pixels).all()
    with pytest.raises(UnknownFormatError):
        open_dataset(path, dtype="u2")


def test_a_wrong_format_says_which_it_looks_like(mib):
    for name in ("blo", "tiff", "hdf5"):
        with pytest.raises(DatasetError, match="looks like mib: pass format='mib', or no format"):
            open_dataset(mib, name)


def test_a_truncated_file_names_the_scan_that_is_there(mib, pixels):
    mib.write_bytes(mib.read_bytes()[:-100])
    for name in ("mib", None):
        with pytest.raises(TruncatedFileError, match=r"Pass nav_shape=\(11,\)") as caught:
            open_dataset(mib, name)
        assert "looks like" not in str(caught.value)
    assert (open_dataset(mib, nav_shape=(11,)).compute() == pixels[:11]).all()


def test_a_changed_file_is_told_in_times_and_sizes(raw, pixels):
    arr = open_dataset(raw, dtype="u2", sig_shape=(8, 8))
    os.utime(raw, (86_400, 86_400))
    with pytest.raises(StaleFileError, match="1536 bytes, written 1970-01-02T00:00:00") as caught:
        arr.compute()
    assert "inode" not in str(caught.value)
    other = raw.with_suffix(".new")
    pixels.tofile(other)
    other.replace(raw)
    with pytest.raises(StaleFileError, match="has been replaced since"):
        arr.compute()


@pytest.mark.parametrize(
    ("given", "shape", "first"),
    [*[(-1, (12,), 0), ((3, -1), (3, 4), 0), ((2, -1, 3), (2, 2, 3), 0)], ((-1, 5), (2, 5), 2)],
)
def test_one_size_of_a_scan_may_be_left_open(raw, pixels, given, shape, first):
    """It counts the frames that are shown."""
    known = {"dtype": "u2", "sig_shape": (8, 8), "sync_offset": first}
    arr = open_dataset(raw, nav_shape=given, **known)
    assert arr.shape == (*shape, 8, 8)
    assert (arr.compute() == pixels[first:].reshape(arr.shape)).all()


@pytest.mark.parametrize("given", [(-1, 5), (-1, 13), (-1, -1), -2, (0, -1)])
def test_frames_that_do_not_fill_a_scan_are_told(raw, given):
    with pytest.raises(DatasetError, match=r"do not fill the scan|must be a whole number"):
        open_dataset(raw, dtype="u2", sig_shape=(8, 8), nav_shape=given)


def test_an_open_size_grows_with_the_file(raw, pixels):
    """By whole rows."""
    arr = open_dataset(raw, "raw", dtype="u2", sig_shape=(8, 8), nav_shape=(-1, 5), follow=True)
    assert arr.shape == (2, 5, 8, 8)
    with raw.open("ab") as stream:
        stream.write(pixels[:3].tobytes())
    grown = arr.refresh()
    assert (grown.compute() == np.concatenate([pixels, pixels[:3]]).reshape(3, 5, 8, 8)).all()


def test_tiling_may_be_a_word(raw):
    known = {"dtype": "u2", "sig_shape": (8, 8)}
    arr = open_dataset(raw, tiling="frame", **known)
    assert scheme_of(arr) == scheme_of(open_dataset(raw, tiling=TilingRequest("frame"), **known))
    with pytest.raises(TilingError, match="frames"):
        open_dataset(raw, tiling="frames", **known)


@pytest.mark.parametrize("field", ["where", "expected", "found"])
def test_messages_never_hold_a_whole_header(field):
    """They tell the beginning, and how much there was; the value itself stays whole."""
    value = "x" * 100_000
    error = DatasetError("wrong", path="a.mib", **{field: value})
    assert len(str(error)) < 500
    assert "100000 characters" in str(error)
    assert getattr(pickle.loads(pickle.dumps(error)), field) == value
