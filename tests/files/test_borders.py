"""Names and links in a file lead to files in its folder only."""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple
from urllib.parse import unquote

import h5py
import nibabel
import numpy as np
import pytest
import zarr
from ome_writer import binary_only, document, image, tiff_data, uuid_of, write_pages
from range_server import serving

from dask_tiled import DatasetError, OutsideFolderError, StaleFileError, open_dataset
from dask_tiled.files import file
from dask_tiled.files.file import read_head
from dask_tiled.files.paths import Border, within
from dask_tiled.testing import (
    counting_frames,
    write_direct_electron,
    write_empad,
    write_frms6,
    write_gis,
    write_metaimage,
    write_mib,
    write_mib_series,
    write_nrrd,
    write_raw_csr,
    write_ripple,
    write_seq,
    write_seq_corrections,
    write_ser,
    write_tvips,
)

pytestmark = pytest.mark.usefixtures("synchronous")

PIXELS = counting_frames((3, 4, 5), "u2")
OPENED: list[str] | None = None


@sys.addaudithook
def list_opened_files(event, args):
    if event == "open" and OPENED is not None and isinstance(args[0], (str, bytes, os.PathLike)):
        OPENED.append(os.path.realpath(os.fsdecode(args[0])))


class Naming(NamedTuple):
    """A format whose headers name files."""

    header: Callable[[Path, str], Path]
    """Write a header that names a file into a folder; return the path to open."""
    part: Callable[[Path], object]
    """Write the named file."""
    keeps_folders: bool = True
    """Whether folders in names are kept; otherwise only the last component counts."""


def write_h5(path, fill, name=""):
    if "\0" in name:
        raise ValueError("HDF5 ends names at a NUL")
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def h5_part(path):
    write_h5(path, lambda file: file.create_dataset("d", data=PIXELS))


def h5_link(folder, name):
    return write_h5(
        folder / "a.h5", lambda file: file.update(d=h5py.ExternalLink(name, "/d")), name
    )


def h5_virtual(folder, name):
    layout = h5py.VirtualLayout(PIXELS.shape, "u2")
    layout[:] = h5py.VirtualSource(name, "d", PIXELS.shape)
    return write_h5(folder / "a.h5", lambda file: file.create_virtual_dataset("d", layout), name)


def h5_external(folder, name):
    stored = {"external": [(name.encode(), 0, PIXELS.nbytes)]}

    def fill(file):
        file.create_dataset("d", PIXELS.shape, "u2", **stored)

    here = Path.cwd()
    os.chdir(folder / "empty")  # where the library looks for the storage
    try:
        return write_h5(folder / "a.h5", fill, name)
    finally:
        os.chdir(here)


def raw(path):
    PIXELS.tofile(path)


def csr_header(folder, name, part="data"):
    path = write_raw_csr(folder / "a.toml", PIXELS)
    (folder / f"a.{part}").unlink()
    path.write_text(path.read_text().replace(f'"a.{part}"', json.dumps(name)))
    return path


def csr_part(path, part="data"):
    there = path.parent / "csr"
    there.mkdir(exist_ok=True)
    write_raw_csr(there / "a.toml", PIXELS)
    (there / f"a.{part}").rename(path)


def nrrd_header(folder, name, line="data file: {}\n"):
    *parts, header = write_nrrd(folder / "a.nhdr", PIXELS, files=1)
    text = header.read_bytes().split(b"data file:")[0]
    header.write_bytes(text + line.format(name).encode("utf8", "surrogateescape"))
    for part in parts:
        part.unlink()
    return header


def metaimage_header(folder, name):
    *parts, header = write_metaimage(folder / "a.mhd", PIXELS, files=1)
    text = header.read_bytes().split(b"ElementDataFile")[0]
    header.write_bytes(text + f"ElementDataFile = {name}\n".encode("utf8", "surrogateescape"))
    for part in parts:
        part.unlink()
    return header


def empad_header(folder, name):
    if not name:
        raise ValueError("the writer replaces empty names")
    return write_empad(folder / "a.xml", np.zeros((3, 4, 128, 128), "f4"), named_as=name)


def empad_part(path):
    there = path.parent / "empad"
    there.mkdir(exist_ok=True)
    write_empad(there / "a.xml", np.ones((3, 4, 128, 128), "f4"))
    (written,) = there.glob("*.raw")
    written.rename(path)


SIZES = (1, 1, *PIXELS.shape)


def ome_header(folder, name):
    inner = tiff_data(0, len(PIXELS), uuid=uuid_of("x"), name=name)
    path = folder / "a.ome.tif"
    write_pages(path, PIXELS[:1], document(image(SIZES, inner), uuid_of("a")))
    return path


def ome_part(path):
    write_pages(path, PIXELS, document("", uuid_of("x")))


def ome_binary_only(folder, name):
    path = folder / "a.ome.tif"
    write_pages(path, PIXELS, binary_only(name, uuid_of("m"), uuid_of("a")))
    return path


def ome_master(path):
    inner = tiff_data(0, len(PIXELS), uuid=uuid_of("m"), name=path.name)
    write_pages(path, PIXELS, document(image(SIZES, inner), uuid_of("m")))


NAMING = {
    "hdf5: a link": Naming(h5_link, h5_part),
    "hdf5: a source": Naming(h5_virtual, h5_part),
    "hdf5: external storage": Naming(h5_external, raw),
    **{
        f"raw_csr: {part}": Naming(partial(csr_header, part=part), partial(csr_part, part=part))
        for part in ("indptr", "indices", "data")
    },
    "nrrd": Naming(nrrd_header, raw),
    "nrrd: a list": Naming(partial(nrrd_header, line="data file: LIST\n{}\n"), raw),
    "metaimage": Naming(metaimage_header, raw),
    "empad": Naming(empad_header, empad_part, keeps_folders=False),
    "ome_tiff: planes": Naming(ome_header, ome_part),
    "ome_tiff: the XML": Naming(ome_binary_only, ome_master),
}
OUT = {
    "above": "../elsewhere/x",
    "from the root": "{out}/x",
    "above a folder inside": "sub/../../elsewhere/x",
    "a folder that begins alike": "../scan-2/x",
    "a folder in other case": "../SCAN/x",
    "a link": "x",
    "a link with dots": "dots",
    "a linked folder": "way/x",
    "a link to the folder above": "up/elsewhere/x",
    "dots after a link": "deep/../x",
    "the root of the process": "/proc/self/root{out}/x",
}
"""Names that lead to the file `x` outside the folder."""
NOWHERE = {
    "backslashes": "..\\elsewhere\\q",
    "a drive": "C:\\elsewhere\\q",
    "UNC": "\\\\127.0.0.1\\share\\q",
    "file:": "file://{out}/q",
    "s3:": "s3://bucket/q",
    "http:": "http://127.0.0.1:9/q",
    "percents": "%2e%2e/elsewhere/q",
    "a NUL": "{out}/q\0.raw",
    "too long": "n" * 3000,
    "a home": "~/q",
    "a variable": "$HOME/q",
    "a device": "/dev/zero",
    "a link to a device": "zero",
    "the terminal": "/dev/tty",
    "of the process": "/proc/self/environ",
    "a pipe": "pipe",
    "the folder": ".",
    "the folder above": "..",
    "a folder": "sub",
    "the root": "/",
    "nothing": "",
    "a link to nothing": "broken",
    "a link to itself": "ring",
    "dots that are one letter": "‥/elsewhere/q",
    "another form of a letter": unicodedata.normalize("NFD", "é"),
    "another case": "Y",
}
"""Names of no file; the file `q` lies outside the folder."""
INSIDE = {
    "a name": "y",
    "with a dot": "./y",
    "from the root": "{home}/y",
    "a folder": "sub/z",
    "a folder and back": "sub/../y",
    "a hard link": "hard",
    "a link inside": "inner",
    "a linked folder inside": "same/z",
    "a link up to the folder": "self/y",
    "an odd name": "a b%20é",
}


def cases(ways, chosen):
    """Pair kinds with chosen ways, and NRRD with all: one function resolves names."""
    return [(kind, way) for kind in NAMING for way in (ways if kind == "nrrd" else chosen)]


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Make a folder to open, a folder out of reach, and links from one to the other."""
    home, out = tmp_path / "scan", tmp_path / "elsewhere"
    for folder in (
        home / "sub",
        home / "empty",
        out / "deep",
        tmp_path / "scan-2",
        tmp_path / "SCAN",
    ):
        folder.mkdir(parents=True)
    links = {
        "x": out / "x", "dots": "../elsewhere/x", "way": out, "up": "..", "deep": out / "deep",
        "zero": "/dev/zero", "broken": out / "none", "ring": "ring",
        "inner": "sub/z", "same": "sub", "self": home,
    }  # fmt: skip
    for name, target in links.items():
        (home / name).symlink_to(target)
    os.mkfifo(home / "pipe")
    monkeypatch.setenv("HOME", str(out))
    return home, out


def refused(path, **options):
    """Try to open a path; return the files that were opened meanwhile, and the error."""
    global OPENED  # noqa: PLW0603
    OPENED = []
    try:
        with pytest.raises(DatasetError) as caught:
            open_dataset(path, missing="raise", **options)
    finally:
        opened, OPENED = OPENED, None
    return opened, caught.value


def written(naming, folder, name):
    try:
        return naming.header(folder, name)
    except (ValueError, UnicodeError, OSError, RuntimeError) as error:
        pytest.skip(f"such a name cannot be written: {error}"[:99])


@pytest.mark.parametrize(("kind", "way"), cases(OUT, ["above", "a link"]))
def test_names_do_not_lead_outside(folders, kind, way):
    """With outside_folder=True each name is read, which shows that each would be a hole."""
    home, out = folders
    naming = NAMING[kind]
    naming.part(out / "x")
    for other in ("scan-2", "SCAN"):
        os.link(out / "x", home.parent / other / "x")
    path = written(naming, home, OUT[way].format(out=out))
    opened, error = refused(path)
    assert not [
        one
        for one in opened
        if Path(one).is_relative_to(home.parent) and home not in Path(one).parents
    ]
    if naming.keeps_folders or "/" not in OUT[way]:
        assert isinstance(error, OutsideFolderError)
        assert error.path == str(path)
        assert "outside_folder=True" in error.hint
        arr = open_dataset(path, missing="raise", outside_folder=True)
        assert arr.size
        assert any(Path(file.path).samefile(out / "x") for file in arr.description.files) or (
            kind in {"ome_tiff: the XML", "hdf5: external storage"}
        )
        arr.compute()


@pytest.mark.parametrize(("kind", "way"), cases(NOWHERE, ["file:", "a pipe", "the folder"]))
def test_names_are_taken_literally(folders, kind, way):
    """Nothing in a name is expanded, and nothing but a file is opened."""
    home, out = folders
    naming = NAMING[kind]
    for path in (out / "q", home / "y", home / unicodedata.normalize("NFC", "é")):
        naming.part(path)
    path = written(naming, home, NOWHERE[way].format(out=out))
    for options in ({}, {"outside_folder": True}):
        opened, error = refused(path, **options)
        assert not [
            one for one in opened if not Path(one).is_relative_to(home) and "/elsewhere/" in one
        ]
        assert len(str(error)) < 5000


@pytest.mark.parametrize(("kind", "way"), cases(INSIDE, ["a folder", "a link inside"]))
def test_names_inside_are_read(folders, kind, way):
    home, out = folders
    naming = NAMING[kind]
    name = INSIDE[way].format(home=home)
    naming.part(out / "x")
    os.link(out / "x", home / "hard")
    for path in (home / "y", home / "sub/z", home / "a b%20é"):
        naming.part(path)
    path = written(naming, home, name)
    if naming.keeps_folders or "/" not in name:
        assert open_dataset(path, missing="raise").compute().size


@pytest.mark.parametrize("name", [
    "../elsewhere/x", "/elsewhere/x", "sub/../../elsewhere/x", "../scan-2/x", "..\\elsewhere\\x",
    "%2e%2e/elsewhere/x", "..%2felsewhere%2fx", "{url}/elsewhere/x", "//{host}/elsewhere/x",
    "file:///etc/passwd", "y?x", "y#x", "y/../../elsewhere/x",
])  # fmt: skip
def test_urls_have_borders(folders, name):
    """Requests stay below the last slash of the opened URL."""
    home, out = folders
    for path in (out / "x", home / "y", home.parent / "scan-2/x"):
        raw(path)
    with serving(home.parent) as server:
        url = server.url().rstrip("/")
        path = nrrd_header(home, name.format(url=url, host=url.removeprefix("http://")))
        with pytest.raises(DatasetError):
            open_dataset(server.url(path))
        asked = [os.path.normpath(unquote(path)) for path, _ in server.asked]
        assert asked
        assert all(one.startswith("/scan") and not one.startswith("/scan-2") for one in asked)
        nrrd_header(home, "y")
        np.testing.assert_array_equal(open_dataset(server.url(path)), PIXELS)


@pytest.mark.parametrize("swapped", ["sub/z", "sub"])
def test_the_opened_file_is_the_checked_one(folders, monkeypatch, swapped):
    """A link replaces the file, or its folder, only while the file is opened."""
    home, out = folders
    for path in (home / "sub/z", out / "z"):
        path.write_text(path.parent.name)
    open_really = os.open

    def open_swapped(path, *rest):
        (home / swapped).rename(home / "kept")
        (home / swapped).symlink_to(out / "z" if swapped.endswith("z") else out)
        try:
            return open_really(path, *rest)
        finally:
            (home / swapped).unlink()
            (home / "kept").rename(home / swapped)

    with within(Border([str(home / "a.txt")])):
        assert read_head(home / "sub/z", 9) == b"sub"
        monkeypatch.setattr(file, "open_file", open_swapped)
        with pytest.raises(StaleFileError, match="replaced while it was opened"):
            read_head(home / "sub/z", 9)


def test_files_replaced_while_they_are_opened(folders, monkeypatch):
    """A new file, inside, replaces the one that was just opened."""
    home, _ = folders
    (home / "z").write_text("old")
    open_really = os.open

    def open_replaced(path, *rest):
        fd = open_really(path, *rest)
        (home / "new").write_text("new")
        (home / "new").replace(home / "z")
        return fd

    with within(Border([str(home / "a.txt")])):
        monkeypatch.setattr(file, "open_file", open_replaced)
        with pytest.raises(StaleFileError, match="replaced while it was opened"):
            read_head(home / "z", 9)


class Set(NamedTuple):
    """Files that belong together by their names."""

    write: Callable[[Path], object]
    """Write all files into a folder."""
    opened: str
    companion: str
    """The file that becomes a link to its copy in another folder."""
    options: Mapping[str, str] = MappingProxyType({})


def write_pair(folder):
    nibabel.Nifti1Pair(PIXELS.T, np.eye(4)).to_filename(folder / "a.hdr")


def write_spectra(folder):
    write_ripple(folder / "a.rpl", PIXELS)


def write_tia(folder):
    write_ser(folder / "a_1.ser", PIXELS)
    (folder / "a.emi").write_bytes(b"JK\0\2<ObjectInfo><AcquireDate>now</AcquireDate></ObjectInfo>")


def write_master(folder):
    write_h5(
        folder / "a_master.h5", lambda file: file.create_dataset("entry/data/data", data=PIXELS)
    )

    def scan(file):
        group = file.create_group("STEM Metadata")
        group.attrs.update({"Scan Size X": 3, "Scan Size Y": 1})

    write_h5(folder / "a.h5", scan)


def write_movie(folder):
    info = {"Scan - Enable": "Enable", "Scan - Type": "Custom"}
    write_direct_electron(folder, PIXELS, info, coordinates=[(0, 0), (1, 0), (2, 0)], name="a")


def write_zarr(folder):
    group = zarr.open_group(folder / "a.zarr", mode="w")
    named = {"dimension_names": ("t", "y", "x"), "chunks": (1, 4, 5)}
    group.create_array("data", shape=PIXELS.shape, dtype="u2", **named)[...] = PIXELS
    times = group.create_array("t", shape=(3,), dtype="f8", dimension_names=("t",))
    times[...] = [1.0, 2.0, 3.0]


def write_sequence(folder):
    write_seq(folder / "a.seq", PIXELS)
    maps = [{"Rows": 4, "Columns": 5, "defects": [{"Row": 1, "Column": 2}]}]
    dark, gain = np.ones((4, 5), "f4"), np.ones((4, 5), "f4")
    write_seq_corrections(folder / "a.seq", dark=dark, gain=gain, maps=maps, shape=(4, 5))


def write_pnccd(folder):
    frames = counting_frames((3, 4, 8), "u2", bits=12)
    write_frms6(folder / "a", frames, dark=frames[:2], scan_shape=(1, 3), frames_per_file=2)


CORRECTED = {"corrections": "dataset"}
HDR = partial(write_mib, frames=counting_frames((3, 4, 8), "u2"), nav_shape=(1, 3))
EMPAD = np.ones((1, 3, 128, 128), "f4")
SETS = {
    "mib, the .hdr": Set(lambda folder: HDR(folder / "a.mib"), "a.mib", "a.hdr"),
    "mib, of a .hdr": Set(lambda folder: HDR(folder / "a.mib"), "a.hdr", "a.mib"),
    "mib, the next": Set(
        lambda folder: write_mib_series(folder / "a", PIXELS, frames_per_file=1, hdr=False),
        "a1.mib", "a2.mib",
    ),
    "mib, the one before": Set(
        lambda folder: write_mib_series(folder / "a", PIXELS, frames_per_file=1, hdr=False),
        "a3.mib", "a2.mib",
    ),
    "tvips": Set(
        lambda folder: write_tvips(folder / "a", PIXELS, frames_per_file=1),
        "a_000.tvips", "a_001.tvips",
    ),
    "frms6, the .hdr": Set(write_pnccd, "a_001.frms6", "a.hdr"),
    "frms6, of a .hdr": Set(write_pnccd, "a.hdr", "a_002.frms6"),
    "frms6, the dark frames": Set(write_pnccd, "a.hdr", "a_000.frms6", CORRECTED),
    "seq, the dark frame": Set(write_sequence, "a.seq", "a.seq.dark.mrc", CORRECTED),
    "seq, the gain": Set(write_sequence, "a.seq", "a.seq.gain.mrc", CORRECTED),
    "seq, the map": Set(write_sequence, "a.seq", "a.seq.Config.Metadata.xml", CORRECTED),
    "seq, the metadata": Set(write_sequence, "a.seq", "a.seq.metadata", CORRECTED),
    "ser, the .emi": Set(write_tia, "a_1.ser", "a.emi"),
    "ser, of an .emi": Set(write_tia, "a.emi", "a_1.ser"),
    "gis, the .ima": Set(lambda folder: write_gis(folder / "a", PIXELS), "a.dim", "a.ima"),
    "gis, the .dim": Set(lambda folder: write_gis(folder / "a", PIXELS), "a.ima", "a.dim"),
    "gis, the .minf": Set(
        lambda folder: write_gis(folder / "a", PIXELS, minf={"a": 1}), "a.dim", "a.ima.minf"
    ),
    "ripple, the .raw": Set(write_spectra, "a.rpl", "a.raw"),
    "ripple, the .rpl": Set(write_spectra, "a.raw", "a.rpl"),
    "nifti, the .img": Set(write_pair, "a.hdr", "a.img"),
    "nifti, the .hdr": Set(write_pair, "a.img", "a.hdr"),
    "empad, the .xml": Set(
        lambda folder: write_empad(folder / "a.xml", EMPAD, raw_name="b.raw"), "b.raw", "a.xml"
    ),
    "mrc, the movie's text": Set(write_movie, "a_movie.mrc", "a_info.txt"),
    "mrc, the movie's scan": Set(write_movie, "a_movie.mrc", "a_scan_coordinates.csv"),
    "hdf5, the scan": Set(write_master, "a_master.h5", "a.h5"),
    "zarr, a chunk": Set(write_zarr, "a.zarr", "a.zarr/data/c/1/0/0"),
    "zarr, a folder of chunks": Set(write_zarr, "a.zarr", "a.zarr/data/c/1"),
    "zarr, an array": Set(write_zarr, "a.zarr", "a.zarr/data"),
    "zarr, the document": Set(write_zarr, "a.zarr/data", "a.zarr/data/zarr.json"),
    "zarr, that of the group": Set(write_zarr, "a.zarr", "a.zarr/zarr.json"),
    "zarr, an axis": Set(write_zarr, "a.zarr", "a.zarr/t/c/0"),
    "zarr, the folder of an axis": Set(write_zarr, "a.zarr/data", "a.zarr/t"),
}  # fmt: skip


def outcome(path, **options):
    """Return the pixels, shape and axes of a file, or the type of the error."""
    try:
        arr = open_dataset(path, **options)
    except (DatasetError, OSError) as error:
        return type(error)
    return arr.compute().tobytes(), arr.shape, str(arr.description.axes)


@pytest.fixture
def incomplete_set(tmp_path):
    """Return a function that writes a set into two folders, one of which lacks a file."""

    def make(kind):
        home, out = tmp_path / "scan", tmp_path / "elsewhere"
        for folder in (home, out):
            folder.mkdir()
            SETS[kind].write(folder)
        companion = home / SETS[kind].companion
        if companion.is_dir():
            shutil.rmtree(companion)
        else:
            companion.unlink()
        return home / SETS[kind].opened, companion, out / SETS[kind].companion

    return make


@pytest.mark.parametrize("kind", SETS)
def test_links_do_not_lead_outside(incomplete_set, kind):
    """Companion files may be hard links, or links inside the folder."""
    path, companion, target = incomplete_set(kind)
    options = SETS[kind].options
    link = companion.parent / "a link"
    link.symlink_to(os.path.relpath(target, companion.parent))
    other = target.parents[len(Path(SETS[kind].companion).parts) - 1]
    expected = outcome(other / SETS[kind].opened, **options)
    assert not isinstance(expected, type)
    for where in (target, link.name):
        companion.symlink_to(where)
        opened, error = refused(path, **options)
        assert isinstance(error, OutsideFolderError)
        assert "outside_folder=True" in error.hint
        assert not [one for one in opened if Path(one).is_relative_to(target)]
        assert outcome(path, **options, outside_folder=True) == expected
        companion.unlink()
    link.unlink()
    if target.is_file():
        os.link(target, companion)
        assert outcome(path, **options) == expected
        companion.rename(companion.parent / "inside")
        companion.symlink_to("inside")
        assert outcome(path, **options) == expected


@pytest.mark.parametrize("kind", SETS)
def test_companions_that_are_no_files(incomplete_set, kind):
    path, companion, _ = incomplete_set(kind)
    options = SETS[kind].options
    expected = outcome(path, **options)
    for target in ("/dev/zero", "/proc/self/mem", "nothing", companion.name, "pipe"):
        os.mkfifo(companion) if target == "pipe" else companion.symlink_to(target)
        found = outcome(path, **options)
        assert found == expected or (isinstance(found, type) and issubclass(found, Exception)), (
            target
        )
        companion.unlink()


@pytest.mark.parametrize("kind", SETS)
def test_opened_paths_may_be_links(incomplete_set, kind):
    """The user's path may lead anywhere; companions are those beside its target."""
    path, companion, target = incomplete_set(kind)
    options, opened = SETS[kind].options, SETS[kind].opened
    other = target.parents[len(Path(SETS[kind].companion).parts) - 1]
    expected = outcome(other / opened, **options)
    assert not isinstance(expected, type)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(other / opened)
    if not companion.exists():
        companion.symlink_to(target)
    linked = path.parents[len(Path(opened).parts)] / "linked"
    linked.symlink_to(other)
    for link in (path, linked / opened):
        assert outcome(link, **options) == expected


def test_coordinates_with_names_like_urls(tmp_path):
    """fsspec would read ``x::y`` at x, without a check whether x is a link."""
    zarr.save_array(tmp_path / "out" / "points", np.arange(5.0) * 7)
    group = zarr.create_group(tmp_path / "in" / "a.zarr")
    group.create_array("data", data=np.ones((4, 5)), dimension_names=["y", "x::y"])
    (tmp_path / "in" / "a.zarr" / "x").symlink_to(tmp_path / "out" / "points")
    assert open_dataset(tmp_path / "in" / "a.zarr").description.axes[1].scale == 1
