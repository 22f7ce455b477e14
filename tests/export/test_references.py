"""References to files are read by other software, or refused with a reason."""

import json
import os
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import fsspec
import h5py
import icechunk
import numpy as np
import pytest
import xarray
import zarr
from formats_table import TABLE
from hypothesis import given
from hypothesis import strategies as st
from strategies import basic_indices, selections, shown
from zarr.errors import ZarrUserWarning
from zarr_readers import group_of

import dask_tiled
from dask_tiled import (
    Corrections,
    DatasetError,
    Piece,
    StaleFileError,
    from_pieces,
    open_dataset,
    to_references,
)
from dask_tiled.export.virtual import stored_frames
from dask_tiled.formats import tools
from dask_tiled.testing import counting_frames, write_dm, write_mib, write_npy, write_raw

FRAMES = counting_frames((5, 7, 8, 16), "uint16")


@pytest.fixture
def arr(tmp_path):
    """Open a small scan."""
    return open_dataset(write_mib(tmp_path / "scan.mib", FRAMES))


NO_CHUNKS = {
    "mrc gzip", "nifti gzip", "mgh gzip", "gis text", "nrrd gzip", "nrrd hex", "metaimage",
    "edf gzip", "fits tiles", "fits dithered tiles", "npz deflated F", "ndata exported",
}  # fmt: skip
EVENTS = {
    "raw_csr", "hdf5 velox", "hdf5 velox frames", "tpx3", "bcf", "bcf packed", "pts", "pts frames",
}  # fmt: skip
REFUSED = {
    **dict.fromkeys(NO_CHUNKS, "are compressed in blocks"),
    **dict.fromkeys(EVENTS, "are stored as events"),
    "k2is": "of a frame lie in several files",
    "zarr": "of a frame lie in several files",
    **dict.fromkeys(("czi", "czi colours"), "in pieces that overlap"),
    "nifti scaled": "are corrected, scaled or converted",
    "npy F": "are spread over",
    "dm transposed": "are spread over",
    "dm spectra": "are spread over",
    "hdf5 dm5": "are spread over",
    "hdf5 delmic": "are spread over",
    "hdf5 delmic chunks": "in blocks of several frames",
}


@pytest.mark.parametrize("name", TABLE)
def test_every_format_is_read_or_refused(name, sample_of):
    sample = sample_of(name)
    arr = open_dataset(**sample.options)
    if name in REFUSED:
        with pytest.raises(DatasetError, match=REFUSED[name]):
            to_references(arr)
        return
    array = group_of(to_references(arr))["data"]
    np.testing.assert_array_equal(array[...], sample.expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZarrUserWarning)  # of codecs that zarr has from numcodecs
        array = group_of(to_references(arr, zarr_format=3))["data"]
    assert array.metadata.zarr_format == 3
    np.testing.assert_array_equal(array[...], sample.expected)


@pytest.mark.thorough
@given(st.data())
def test_any_part_is_read_or_refused(tmp_path_factory, data):
    """Slices of selections with missing frames, of plain and of packed pixels."""
    folder = tmp_path_factory.mktemp("scan")
    nav_shape, sync_offset, roi = data.draw(selections())
    options = {"nav_shape": nav_shape, "sync_offset": sync_offset, "roi": roi, "fill_value": 7}
    if data.draw(st.booleans()):
        dtype = data.draw(st.sampled_from(["<u2", ">u2", "u1", ">f8", ">c8"]))
        frames = counting_frames((12, 5, 6), dtype)
        gap = data.draw(st.sampled_from([0, 3]))
        path = write_raw(folder / "scan.raw", frames, frame_header=gap)
        options |= {"format": "raw", "dtype": dtype, "sig_shape": (5, 6), "frame_header": gap}
    else:
        frames = counting_frames((12, 4, 64), "uint16", bits=12)
        path = write_mib(folder / "scan.mib", frames, kind="R64", depth=12, hdr=False)
    arr = open_dataset(path, **options)
    expected, _ = shown(frames, nav_shape, sync_offset, roi, 7)
    index = data.draw(basic_indices(arr.shape))
    part = arr[index]
    if 0 in part.shape:
        return
    try:
        refs = to_references(part)
    except DatasetError as error:
        whys = "can only be decoded whole", "are all missing", "are spread over"
        assert any(why in str(error) for why in whys)  # noqa: PT017 - most parts raise nothing
        return
    np.testing.assert_array_equal(group_of(refs)["data"][...], expected[index])


FILTERS = {
    "gzip": {"compression": 1},
    "shuffled": {"compression": 4, "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf", "shuffle": True},
    "zstd": ("Zstd", {}),
    "blosc": ("Blosc", {"cname": "zstd", "shuffle": 2}),
    "bzip2": ("BZip2", {}),
    "lz4": ("LZ4", {}),
    "bitshuffle": ("Bitshuffle", {}),
}
COMMON = "gzip", "shuffled", "zstd", "blosc", "bzip2"


def filters(name):
    """Return the options with which h5py applies filters."""
    given = FILTERS[name]
    if isinstance(given, dict):
        return given
    module = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
    return dict(getattr(module, given[0])(**given[1]))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@given(st.data())
def test_compressed_chunks_are_read_by_zarr(tmp_path_factory, data):
    """Slices of selections with missing frames, in chunks that do not divide the array."""
    name = data.draw(st.sampled_from([*FILTERS]))
    dtype = data.draw(st.sampled_from(["<u2", ">i4", "<f8"]))
    frames = (counting_frames((12, 18, 40), "u2") % 2).astype(dtype)
    several = data.draw(st.sampled_from([1, 1, 5]))
    path = tmp_path_factory.mktemp("scan") / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("d", data=frames, chunks=(several, 8, 40), **filters(name))
    nav_shape, sync_offset, roi = data.draw(selections())
    options = {"nav_shape": nav_shape, "sync_offset": sync_offset, "roi": roi, "fill_value": 7}
    expected, _ = shown(frames, nav_shape, sync_offset, roi, 7)
    arr = open_dataset(path, **options)
    index = data.draw(basic_indices(arr.shape))
    part = arr[index]
    if 0 in part.shape:
        return
    try:
        refs = to_references(part)
    except DatasetError as error:
        whys = "can only be decoded whole", "in blocks of several frames"
        assert any(why in str(error) for why in whys)  # noqa: PT017 - others raise nothing
        return
    np.testing.assert_array_equal(group_of(refs)["data"][...], expected[index])


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("name", FILTERS)
def test_common_codecs_are_in_format_2(tmp_path, name):
    """Not all readers of format 3 know the codecs of numcodecs, which format 2 names.

    On request, format 2 has the codecs of this package: writers such as VirtualiZarr name them.
    """
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("d", data=FRAMES % 2, chunks=(2, 3, 8, 16), **filters(name))
    for asked, expected in ((None, 2 if name in COMMON else 3), (2, 2)):
        array = group_of(to_references(open_dataset(path), zarr_format=asked))["data"]
        assert array.metadata.zarr_format == expected
        np.testing.assert_array_equal(array[...], FRAMES % 2)


@pytest.mark.parametrize(("checked", "expected"), [(False, 2), (True, 3)])
def test_combined_codecs_of_zarr_are_in_format_3(tmp_path, checked, expected):
    """Many readers support codecs of zarr on their own in format 2, and combined in format 3."""
    codecs = [zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()][: 1 + checked]
    zarr.create_array(tmp_path / "a.zarr", data=FRAMES, chunks=(1, 7, 8, 16), compressors=codecs)
    array = group_of(to_references(open_dataset(tmp_path / "a.zarr")))["data"]
    assert array.metadata.zarr_format == expected
    np.testing.assert_array_equal(array[...], FRAMES)


def test_missing_chunks_are_the_fill_value(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset(
            "d", FRAMES.shape, "u2", chunks=(1, 7, 8, 16), fillvalue=9, **filters("zstd")
        )
        made[1:3] = FRAMES[1:3]
    arr = open_dataset(path)
    refs = to_references(arr)
    assert sum(key.startswith("data/c/") for key in refs["refs"]) == 2
    np.testing.assert_array_equal(group_of(refs)["data"][...], arr.compute())
    with pytest.raises(DatasetError, match="format 3"):
        to_references(arr, zarr_format=2)


@pytest.mark.thorough
def test_consecutive_frames_are_one_chunk(tmp_path, monkeypatch):
    """The number of frames divides the axis; frames that are too large are split."""
    path = write_raw(tmp_path / "scan.raw", FRAMES.astype(">u2"))
    arr = open_dataset(path, "raw", dtype=">u2", nav_shape=(5, 7), sig_shape=(8, 16))
    for most, chunks in [
        (1 << 20, (5, 7, 8, 16)),
        (3 * 7 * 256, (1, 7, 8, 16)),
        (256, (1, 1, 8, 16)),
        (128, (1, 1, 4, 16)),
        (24, (1, 1, 1, 8)),
    ]:
        monkeypatch.setattr(stored_frames, "CHUNK_BYTES", most)
        array = group_of(to_references(arr))["data"]
        assert array.chunks == chunks
        np.testing.assert_array_equal(array[:], FRAMES)


def test_ranges_of_bytes_are_those_of_the_pixels(arr):
    """The byte order is the file's, and no codec of this package is needed."""
    refs = to_references(arr)["refs"]
    path = arr.description.files[0].path
    document = json.loads(refs["data/.zarray"])
    assert (document["dtype"], document["compressor"], document["filters"]) == (">u2", None, None)
    for (y, x), frame in zip(np.ndindex(5, 7), FRAMES.reshape(-1, 8, 16), strict=True):
        url, offset, nbytes = refs[f"data/{y}.{x}.0.0"]
        assert url == f"file://{path}"
        found = Path(path).read_bytes()[offset : offset + nbytes]
        assert found == frame.astype(">u2").tobytes()


def test_xarray_opens_the_file_of_references(tmp_path):
    """xarray sees coordinates, and masks no pixel."""
    axes = [(0.0, 0.5, "nm"), (2.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (0.0, 0.25, "1/nm")]
    path = tmp_path / "scan #1 \u00b5%20.dm4"
    write_dm(path, FRAMES, calibrations=axes)
    arr = open_dataset(path)
    target = tmp_path / "scan.json"
    for zarr_format in (2, 3):
        to_references(arr, target, zarr_format=zarr_format, overwrite=True)
        options = {"fo": str(target)}
        group = xarray.open_zarr("reference://", storage_options=options, consolidated=False)
        fsspec.get_filesystem_class("reference").clear_instance_cache()
        assert group["data"].dtype == "uint16"
        np.testing.assert_array_equal(group["data"], FRAMES)
        for axis, size in zip(arr.description.axes, arr.shape, strict=True):
            numbers = axis.offset + axis.scale * np.arange(size)
            np.testing.assert_array_equal(group[axis.name], numbers)
            assert group[axis.name].attrs == {"units": axis.units}


def test_missing_frames_are_filled(tmp_path):
    """Missing frames have no references; only format 3 has a fill value that masks no pixel."""
    path = write_raw(tmp_path / "scan.raw", FRAMES)
    arr = open_dataset(path, "raw", dtype="u2", nav_shape=(6, 7), sig_shape=(8, 16), fill_value=3)
    refs = to_references(arr)
    assert len([key for key in refs["refs"] if "/c/" in key]) == 5
    np.testing.assert_array_equal(group_of(refs)["data"][:], arr.compute())
    with pytest.raises(DatasetError, match="that only zarr format 3 has"):
        to_references(arr, zarr_format=2)


def test_pixels_without_byte_ranges_are_refused(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES)
    for options, why in (
        ({"dtype": "f4"}, "are corrected, scaled or converted"),
        ({"corrections": Corrections(dark=np.ones((8, 16)))}, "are corrected, scaled or converted"),
        ({"nav_shape": (2, 2), "sync_offset": 50}, "are all missing"),
    ):
        with pytest.raises(DatasetError, match=f"scan.mib: .*{why}.*Use as_zarr"):
            to_references(open_dataset(path, **options))
    packed = counting_frames((3, 4, 64), "uint16", bits=12)
    arr = open_dataset(write_mib(tmp_path / "packed.mib", packed, kind="R64", depth=12))
    with pytest.raises(DatasetError, match="are a part of units that can only be decoded whole"):
        to_references(arr[..., 1:])


def halves(path, distances):
    """Make an array of frames whose halves lie at a distance in the file, by frame."""
    pieces = [
        Piece(path, (k, row, 0), (1, 2, 4), 200 * k + 50 + row // 2 * distance, (8, sign * 4, 1))
        for k, distance in enumerate(distances)
        for row, sign in ((0, 1), (2, -1))
    ]
    return from_pieces(pieces, shape=(len(distances), 4, 4), dtype="u1", sig_ndim=2)


def test_pieces_of_a_frame_are_read_together(tmp_path):
    """Pieces may lie anywhere, but at the same places in all frames."""
    path = write_npy(tmp_path / "a.npy", counting_frames((1000,), "u1"))
    arr = halves(path, [30, 30, 30])
    np.testing.assert_array_equal(group_of(to_references(arr))["data"][:], arr.compute())
    with pytest.raises(DatasetError, match="are stored differently from frame to frame"):
        to_references(halves(path, [30, 31, 30]))


def test_frames_that_differ_are_refused(tmp_path):
    path = write_npy(tmp_path / "a.npy", np.arange(1000, dtype="u1"))
    first = Piece(path, (0, 0, 0), (1, 4, 4), 200, (16, 4, 1))
    turned = Piece(path, (1, 0, 0), (1, 4, 4), 300, (16, -4, 1))
    for pieces, options, why in [
        ([first, first], {"shape": (1, 4, 4), "overlap": "last"}, "overlap"),
        ([first], {"shape": (2, 4, 4), "uncovered": "fill"}, "do not cover the array"),
        ([first, turned], {"shape": (2, 4, 4)}, "are stored differently from frame to frame"),
    ]:
        arr = from_pieces(pieces, dtype="u1", sig_ndim=2, **options)
        with pytest.raises(DatasetError, match=why):
            to_references(arr)


def test_other_decoders_are_refused(tmp_path):
    """zarr would have to call a function that a document names."""
    path = write_npy(tmp_path / "a.npy", np.arange(1000, dtype="u1"))
    decoder = tools.Decoder("dask_tiled.kernels.decoding:copy", np.dtype("u1"), 1)
    arr = from_pieces(
        [Piece(path, (0, 0, 0), (1, 4, 4), 200, (16, 4, 1))],
        shape=(1, 4, 4), dtype="u1", sig_ndim=2, decoders=[decoder],
    )  # fmt: skip
    with pytest.raises(DatasetError, match="decoding:copy, which has no zarr codec"):
        to_references(arr)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_packed_pixels_in_both_formats(tmp_path, zarr_format):
    frames = counting_frames((3, 4, 64), "uint16", bits=12)
    arr = open_dataset(write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=12))
    array = group_of(to_references(arr, zarr_format=zarr_format))["data"]
    assert array.metadata.zarr_format == zarr_format
    np.testing.assert_array_equal(array[...], frames)


def test_unknown_zarr_formats_raise(arr):
    with pytest.raises(DatasetError, match="expected 2 or 3; found 4"):
        to_references(arr, zarr_format=4)


def test_booleans_stay_booleans(tmp_path):
    """Every byte except 0 is true, in zarr as in the array."""
    path = tmp_path / "scan.raw"
    path.write_bytes(bytes([0, 1, 2, 255, 0, 7]))
    arr = open_dataset(path, "raw", dtype="?", sig_shape=(2, 3))
    array = group_of(to_references(arr))["data"]
    np.testing.assert_array_equal(array[:].view("u1"), [[[0, 1, 1], [1, 0, 1]]])


def test_records_keep_the_byte_order_of_each_field(tmp_path):
    records = np.zeros((4, 3, 5), [("a", "<u2"), ("b", ">f4")])
    records["a"], records["b"] = np.arange(5), np.arange(3)[:, None]
    path = write_raw(tmp_path / "scan.raw", records)
    arr = open_dataset(path, "raw", dtype=records.dtype, sig_shape=(3, 5))
    for part, expected in ((arr, records), (arr[..., 1:], records[..., 1:])):
        refs = to_references(part, zarr_format=2)
        assert json.loads(refs["refs"]["data/.zarray"])["dtype"] == [["a", "<u2"], ["b", ">f4"]]
        np.testing.assert_array_equal(group_of(refs)["data"][...], expected)


def test_computed_arrays_have_no_files(arr):
    with pytest.raises(DatasetError, match="only opened arrays"):
        to_references(arr + 1)


def test_a_changed_file_gets_no_references(arr, tmp_path):
    with open(arr.description.files[0].path, "r+b") as file:
        file.write(b"MQ2")
    with pytest.raises(StaleFileError):
        to_references(arr, tmp_path / "scan.json")
    assert sorted(os.listdir(tmp_path)) == ["scan.hdr", "scan.mib"]


def test_only_references_are_replaced(arr, tmp_path):
    target = tmp_path / "scan.json"
    to_references(arr, target)
    with pytest.raises(DatasetError, match="overwrite=True"):
        to_references(arr[:2], target)
    assert to_references(arr[:2], target, overwrite=True) == json.loads(target.read_text("utf8"))
    link = tmp_path / "link.json"
    link.symlink_to(target)
    other = tmp_path / "other.json"
    other.write_text('{"version": 1, "refs": {}}')
    before = sorted(os.listdir(tmp_path))
    for path in (arr.description.files[0].path, tmp_path, link, other):
        with pytest.raises(DatasetError, match="holds other data"):
            to_references(arr, path, overwrite=True)
    for path in ({}, 3, "s3://bucket/scan.json", "a\0b"):
        with pytest.raises(DatasetError, match="invalid path"):
            to_references(arr, path)
    assert sorted(os.listdir(tmp_path)) == before
    assert other.read_text() == '{"version": 1, "refs": {}}'


def test_unwritable_targets_raise(arr, tmp_path):
    target = tmp_path / "file" / "scan.json"
    target.parent.touch()
    with pytest.raises(DatasetError, match="cannot be written") as caught:
        to_references(arr, target)
    assert str(target) in str(caught.value)


def test_folders_are_made(arr, tmp_path):
    target = tmp_path / "new" / "scan.json"
    assert to_references(arr, target) == json.loads(target.read_text("utf8"))
    assert os.listdir(target.parent) == ["scan.json"]


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
def test_icechunk_notices_changed_files(tmp_path, repository, packed):
    """Plain and packed pixels, and missing frames, are read until the file changes."""
    frames = counting_frames((12, 4, 64), "uint16", bits=12)
    options = {"kind": "R64", "depth": 12} if packed else {}
    path = write_mib(tmp_path / "scan.mib", frames, hdr=False, **options)
    arr = open_dataset(path, nav_shape=(4, 4), fill_value=3)
    session = repository.writable_session("main")
    to_references(arr, session.store)
    session.commit("a scan")
    committed = repository.readonly_session("main").store
    array = zarr.open_array(committed, path="data", mode="r")
    np.testing.assert_array_equal(array[:], arr.compute())
    with pytest.raises(DatasetError, match="the icechunk store is not empty"):
        to_references(arr, repository.writable_session("main").store)
    os.utime(path, ns=(0, arr.description.files[0].mtime_ns + 1_100_000_000))
    with pytest.raises(icechunk.IcechunkError, match=r"checksum .* has changed"):
        array[0]


def test_icechunk_needs_a_container_of_the_folder(tmp_path_factory, repository):
    path = write_mib(tmp_path_factory.mktemp("other") / "scan.mib", FRAMES)
    os.utime(path, (10**9, 10**9))  # no need to wait for the next second
    arr = open_dataset(path)[0, 0]
    with pytest.raises(DatasetError, match=r"scan.mib: icechunk has no virtual chunk container"):
        to_references(arr, repository.writable_session("main").store)
    with pytest.raises(
        DatasetError,
        match="the target does not support this zarr_format; expected 3; found zarr_format=2",
    ):
        to_references(arr, repository.writable_session("main").store, zarr_format=2)


def test_files_behind_urls(repository):
    """References hold the URLs of files, which icechunk does not support."""
    fsspec.filesystem("memory").pipe("/references/scan.raw", FRAMES.astype(">u2").tobytes())
    arr = open_dataset("memory://references/scan.raw", "raw", dtype=">u2", sig_shape=(8, 16))
    refs = to_references(arr)
    assert refs["refs"]["data/0.0.0"][0].startswith("memory://")
    np.testing.assert_array_equal(group_of(refs, "memory")["data"][:], FRAMES.reshape(-1, 8, 16))
    with pytest.raises(DatasetError, match=r"scan.raw: icechunk targets support local files only"):
        to_references(arr, repository.writable_session("main").store)


@pytest.mark.slow
def test_zarr_finds_the_codec_by_its_entry_point(tmp_path):
    """The process has not imported the package before."""
    frames = counting_frames((3, 4, 64), "uint16", bits=12)
    path = write_mib(tmp_path / "scan.mib", frames, kind="R64", depth=12)
    to_references(open_dataset(path), tmp_path / "scan.json")
    root = Path(dask_tiled.__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf8"))["project"]
    points = project["entry-points"]["zarr.codecs"]
    known = tmp_path / "site" / "codecs_of_dask_tiled-0.dist-info"
    known.mkdir(parents=True)
    lines = [f"{name} = {place}" for name, place in points.items()]
    (known / "entry_points.txt").write_text("\n".join(["[zarr.codecs]", *lines]))
    (known / "METADATA").write_text("Name: codecs_of_dask_tiled\nVersion: 0\n")
    code = """
import sys, zarr
assert "dask_tiled" not in sys.modules
group = zarr.open_group("reference://", storage_options={"fo": sys.argv[1]}, mode="r")
print(int(group["data"][:].astype("i8").sum()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "scan.json"],
        env=os.environ | {"PYTHONPATH": f"{known.parent}:{root}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"{frames.astype('i8').sum()}\n", done.stderr
