"""Errors of mistyped, unknown and broken input say what is wrong and what to do."""

import os
import pickle

import numpy as np
import pytest
from checks import refused

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
def test_mistyped_options_suggest_the_nearest(mib, typed, meant):
    with pytest.raises(DatasetError, match=f"no option '{typed}'; .* Do you mean '{meant}'"):
        open_dataset(mib, **{typed: 1})


def test_unknown_options_list_the_known_ones(mib):
    with pytest.raises(DatasetError, match=r"no option 'xyzzy'; expected one of series$") as caught:
        open_dataset(mib, xyzzy=1)
    assert caught.value.path == str(mib)


def test_other_words_are_not_suggested(mib):
    """The word follow begins like foo, but is not near enough."""
    with pytest.raises(DatasetError, match=r"no option 'foo'; expected one of series$"):
        open_dataset(mib, foo=1)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nifty", r"found 'nifty'\nDo you mean 'nifti'"),
        *[(3, "mib.*; found 3$"), ([1], "mib"), ("", "mib"), ({"mib"}, "mib")],
    ],
    ids=repr,
)
def test_unknown_format_names_raise(mib, name, says):
    with pytest.raises(UnknownFormatError, match=says) as caught:
        open_dataset(mib, name)
    assert caught.value.found == repr(name)


@pytest.mark.parametrize("name", ["mib", "MIB", ".mib", "Merlin", "quantum detectors"])
def test_formats_have_other_names(mib, name):
    assert open_dataset(mib, name).description.format == "mib"


def test_content_decides_between_formats_of_a_suffix(tmp_path, pixels):
    path = tmp_path / "stack.tif"
    pytest.importorskip("tifffile").imwrite(path, pixels)
    assert open_dataset(path, ".tif").description.format == "tiff"


OTHER_NAMES = {
    "bcf": "bruker", "beton": "ffcv", "blo": "blockfile nanomegas", "czi": "zeiss zisraw",
    "dm": "digital_micrograph digitalmicrograph gatan", "edf": "esrf", "empad": "cornell",
    "frms6": "pndetector pnccd", "gis": "aims brainvisa",
    "hdf5": "nexus hyperspy eiger velox arina ncem_emd h5oina imaris dm5 delmic",
    "k2is": "gatan_k2 k2", "lif": "leica", "metaimage": "itk", "mgh": "freesurfer",
    "mib": "merlin medipix medipix3 quantum_detectors quantumdetector", "mrc": "ccp4 de",
    "nd2": "nikon", "ndata": "nion nion_swift", "nifti": "analyze", "npy": "numpy",
    "ome_tiff": "ome", "raw": "binary memmap", "raw_csr": "sparse", "ripple": "lispix",
    "seq": "norpix streampix", "ser": "tia fei", "tiff": "imagej", "tpx3": "timepix3 serval",
    "tvips": "temcam", "zarr": "ome_zarr",
}  # fmt: skip


def test_names_of_formats_are_unique():
    """Makers, programs and other readers have the other names; none is lost."""
    other = {one.name: " ".join(one.aliases) for one in formats().values() if one.aliases}
    assert other == OTHER_NAMES
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
def test_unknown_files_raise_two_lines(tmp_path, content, look):
    """The lines say what the file looks like and what to do; `reasons` has those of all formats."""
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
def test_files_of_other_kinds_are_not_called_corrupt(tmp_path, look):
    """Suffixes of formats do not matter; content of a known kind is not called truncated either."""
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
def test_files_of_other_software_are_recognised(tmp_path, name, look, advice):
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
def test_files_with_dtype_and_sig_shape_are_raw(raw, pixels, suffix):
    path = raw.rename(raw.with_suffix(suffix))
    arr = open_dataset(path, dtype="u2", sig_shape=(8, 8))
    assert arr.description.format == "raw"
    assert (arr.compute() == pixels).all()
    with pytest.raises(UnknownFormatError):
        open_dataset(path, dtype="u2")


def test_wrong_formats_name_the_right_one(mib):
    for name in ("blo", "tiff", "hdf5"):
        with pytest.raises(DatasetError, match="looks like mib: pass format='mib', or no format"):
            open_dataset(mib, name)


def test_truncated_files_suggest_a_nav_shape(mib, pixels):
    mib.write_bytes(mib.read_bytes()[:-100])
    for name in ("mib", None):
        with pytest.raises(TruncatedFileError, match=r"Pass nav_shape=\(11,\)") as caught:
            open_dataset(mib, name)
        assert "looks like" not in str(caught.value)
    assert (open_dataset(mib, nav_shape=(11,)).compute() == pixels[:11]).all()


def test_errors_of_changed_files_show_time_and_size(raw, pixels):
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
def test_one_size_of_a_scan_may_be_inferred(raw, pixels, given, shape, first):
    """Frames that sync_offset skips do not count."""
    known = {"dtype": "u2", "sig_shape": (8, 8), "sync_offset": first}
    arr = open_dataset(raw, nav_shape=given, **known)
    assert arr.shape == (*shape, 8, 8)
    assert (arr.compute() == pixels[first:].reshape(arr.shape)).all()


@pytest.mark.parametrize("given", [(-1, 5), (-1, 13), -2, (0, -1)])
def test_frames_that_do_not_fill_a_scan_raise(raw, given):
    with pytest.raises(DatasetError, match=r"do not fill the scan|must be a whole number"):
        open_dataset(raw, dtype="u2", sig_shape=(8, 8), nav_shape=given)


def test_two_open_sizes_of_a_scan_raise(raw):
    problem = r"only one size in nav_shape may be open \(-1\); found \(-1, 2, -1\)"
    with pytest.raises(DatasetError, match=problem):
        open_dataset(raw, dtype="u2", sig_shape=(8, 8), nav_shape=np.array([-1, 2, -1]))


def test_an_inferred_size_grows_with_the_file(raw, pixels):
    """The scan grows by whole rows."""
    arr = open_dataset(raw, "raw", dtype="u2", sig_shape=(8, 8), nav_shape=(-1, 5), follow=True)
    assert arr.shape == (2, 5, 8, 8)
    with raw.open("ab") as stream:
        stream.write(pixels[:3].tobytes())
    grown = arr.refresh()
    assert (grown.compute() == np.concatenate([pixels, pixels[:3]]).reshape(3, 5, 8, 8)).all()


def test_tiling_may_be_a_string(raw):
    known = {"dtype": "u2", "sig_shape": (8, 8)}
    arr = open_dataset(raw, tiling="frame", **known)
    assert scheme_of(arr) == scheme_of(open_dataset(raw, tiling=TilingRequest("frame"), **known))
    with pytest.raises(TilingError, match="frames"):
        open_dataset(raw, tiling="frames", **known)


@pytest.mark.parametrize("field", ["where", "expected", "found"])
def test_messages_shorten_long_values(field):
    """Messages have the beginning and the length; the field of the error keeps the value."""
    value = "x" * 100_000
    error = DatasetError("wrong", path="a.mib", **{field: value})
    assert len(str(error)) < 500
    assert "100000 characters" in str(error)
    assert getattr(pickle.loads(pickle.dumps(error)), field) == value


def test_folders_of_n5_are_named(tmp_path):
    """The container, its dataset and their attributes; TensorStore reads and writes them."""
    tensorstore = pytest.importorskip("tensorstore")
    store = {"driver": "file", "path": str(tmp_path / "a.n5/group/data")}
    metadata = {"dimensions": [4, 3], "blockSize": [4, 3], "dataType": "uint16"}
    metadata["compression"] = {"type": "raw"}
    spec = {"driver": "n5", "kvstore": store, "metadata": metadata, "create": True}
    tensorstore.open(spec).result().write(np.ones((4, 3), "u2")).result()
    (tmp_path / "a.n5/attributes.json").write_text('{"n5": "2.5.1"}')
    for folder in ("a.n5", "a.n5/group/data"):
        with refused(tmp_path / folder, "N5 are not supported.*TensorStore"):
            open_dataset(tmp_path / folder)
        with pytest.raises(UnknownFormatError, match="looks like the attributes of an N5 folder"):
            open_dataset(tmp_path / folder / "attributes.json")
    (tmp_path / "attributes.json").write_text('{"other": 1}')
    with refused(tmp_path, "not a file"):
        open_dataset(tmp_path)
