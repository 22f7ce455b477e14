"""The VirtualiZarr parser: files as virtual arrays, which its writers store as references."""

import pickle

import h5py
import numpy as np
import pytest
import tifffile
import xarray
import zarr
from formats_table import ONE_OF_EACH
from range_server import serving
from zarr_readers import group_of

import dask_tiled
from dask_tiled import Axis, CorruptFileError, DatasetError, open_dataset
from dask_tiled.testing import counting_frames, write_dm, write_mib

virtualizarr = pytest.importorskip("virtualizarr", reason="VirtualiZarr is not installed")
registries = pytest.importorskip("obspec_utils.registry", reason="VirtualiZarr is not installed")
stores = pytest.importorskip("obstore.store", reason="obstore is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")

FRAMES = counting_frames((5, 7, 8, 16), "uint16") % 300
LOCAL = registries.ObjectStoreRegistry({"file://": stores.LocalStore()})
Parser = dask_tiled.virtual.Parser
REFUSED = "references to this file are not possible"


def read(store):
    return zarr.open_array(store, path="data", mode="r")[...]


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_format_is_an_array_or_refused(name, sample_of):
    """The parser accepts exactly the files that `to_references` accepts."""
    sample = sample_of(name)
    path = sample.options["path"]
    options = {key: value for key, value in sample.options.items() if key != "path"}
    if not isinstance(path, str) and not hasattr(path, "__fspath__"):
        pytest.skip("the parser takes one URL, not several files")
    try:
        dask_tiled.to_references(open_dataset(**sample.options), zarr_format=3)
    except DatasetError as error:
        with pytest.raises(DatasetError) as caught:
            Parser(**options)(str(path), LOCAL)
        assert str(caught.value) == str(error)  # noqa: PT017 - other formats raise no error
        return
    store = Parser(**options)(str(path), LOCAL)
    np.testing.assert_array_equal(read(store), sample.expected)


PACKED = {
    "plain": {},
    "gzip": {"compression": 1, "shuffle": True},
    "lzf": {"compression": "lzf", "shuffle": True},
    "bitshuffle": ("Bitshuffle", {}),
    "blosc": ("Blosc", {"cname": "zstd", "shuffle": 2}),
    "zstd": ("Zstd", {}),
    "tiff lzw": {"compression": "lzw", "tile": (16, 16)},
    "tiff differences": {"compression": "zlib", "predictor": 2, "rowsperstrip": 3},
    "units": None,
}


def written(folder, name):
    """Write the file of a case in `PACKED`; return its path and pixels."""
    given = PACKED[name]
    if given is None:
        frames = counting_frames((5, 7, 8, 64), "uint16", bits=12)
        return write_mib(folder / "scan.mib", frames, kind="R64", depth=12), frames
    if name.startswith("tiff"):
        path, frames = folder / "scan.tif", FRAMES.reshape(-1, 8, 16)
        tifffile.imwrite(path, frames, photometric="minisblack", **given)
        return path, frames
    if isinstance(given, tuple):
        hdf5plugin = pytest.importorskip("hdf5plugin", reason="hdf5plugin is not installed")
        given = dict(getattr(hdf5plugin, given[0])(**given[1]))
    path = folder / "scan.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("other", data=FRAMES[0])
        file.create_dataset("scan", data=FRAMES, chunks=(1, 7, 8, 16), **given)
    return path, FRAMES


# Tiles of 16 rows for images of 8: VirtualiZarr 2.8 warns that such chunks cannot be concatenated.
@pytest.mark.filterwarnings("ignore:Variable.* have a chunk shape larger than their array shape")
@pytest.mark.parametrize("name", PACKED)
def test_written_references_read_the_same_pixels(tmp_path, repository, name):
    path, frames = written(tmp_path, name)
    parser = Parser("hdf5", dataset="scan") if path.suffix == ".h5" else Parser()
    shown = virtualizarr.open_virtual_dataset(str(path), registry=LOCAL, parser=parser)
    assert shown["data"].shape == frames.shape
    np.testing.assert_array_equal(group_of(shown.vz.to_kerchunk(format="dict"))["data"], frames)
    shown.vz.to_kerchunk(str(tmp_path / "scan.json"), format="json")
    found = xarray.open_dataset(f"{tmp_path}/scan.json", engine="kerchunk", mask_and_scale=False)
    np.testing.assert_array_equal(found["data"], frames)
    session = repository.writable_session("main")
    shown.vz.to_icechunk(session.store)
    np.testing.assert_array_equal(read(session.store), frames)


def test_virtual_arrays_are_concatenated(tmp_path):
    for k in range(3):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file.create_dataset("d", data=FRAMES + k, chunks=(1, 7, 8, 16), compression=1)
    parts = [
        virtualizarr.open_virtual_dataset(str(tmp_path / f"{k}.h5"), LOCAL, Parser())
        for k in range(3)
    ]
    dim = parts[0]["data"].dims[0]
    whole = xarray.concat(parts, dim=dim, coords="minimal", compat="override")
    expected = np.concatenate([FRAMES + k for k in range(3)])
    found = group_of(whole.vz.to_kerchunk(format="dict"))["data"]
    np.testing.assert_array_equal(found, expected)


def test_axes_are_kept(tmp_path):
    """Attributes keep the axes; coordinates are stored if VirtualiZarr can inline them."""
    axes = [(0.0, 0.5, "nm"), (2.0, 0.5, "nm"), (4.0, 0.25, "1/nm"), (0.0, 0.25, "1/nm")]
    path = write_dm(tmp_path / "scan.dm4", FRAMES, calibrations=axes)
    shown = virtualizarr.open_virtual_dataset(f"file://{path}", LOCAL, Parser())
    assert shown["data"].dims == ("scan_y", "scan_x", "y", "x")
    told = shown["data"].attrs["dask_tiled"]["axes"]
    assert [Axis(**one | {"labels": ()}) for one in told] == [*open_dataset(path).axes]
    if hasattr(virtualizarr.manifests.manifest, "INLINED_CHUNK_PATH"):
        np.testing.assert_array_equal(shown["scan_x"], -1.0 + 0.5 * np.arange(7))
        assert shown["scan_x"].attrs["units"] == "nm"
    else:
        assert list(shown.variables) == ["data"]


@pytest.mark.parametrize("folder", ["a b", "a%20b", "50% ä"])
def test_relative_paths_in_any_folder(tmp_path, monkeypatch, folder):
    """VirtualiZarr quotes the current folder twice, and the name once."""
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    write_mib("my scan.mib", FRAMES)
    for url in ("my scan.mib", str(tmp_path / folder / "my scan.mib")):
        shown = virtualizarr.open_virtual_dataset(url, LOCAL, Parser(nav_shape=(5, 7)))
        found = group_of(shown.vz.to_kerchunk(format="dict"))["data"]
        np.testing.assert_array_equal(found, FRAMES)


def test_missing_frames_have_no_reference(tmp_path):
    path = write_mib(tmp_path / "scan.mib", FRAMES)
    store = Parser(nav_shape=(6, 7), fill_value=9)(str(path), LOCAL)
    manifest = store._group.arrays["data"].manifest
    assert manifest.shape_chunk_grid == (6, 7, 1, 1)
    assert len(manifest.dict()) == 35
    np.testing.assert_array_equal(read(store)[:5], FRAMES)
    np.testing.assert_array_equal(read(store)[5], np.full_like(FRAMES[0], 9))


@pytest.mark.parametrize("prefix", ["", "folder"])
def test_remote_files(tmp_path, prefix):
    """The registry's store reads remote files, for any URL prefix."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path, frames = written(folder, "gzip")
    with serving(tmp_path) as server:
        begin = f"{server.url()}{prefix}"
        http = stores.HTTPStore(begin, client_options={"allow_http": True})
        registry = registries.ObjectStoreRegistry({begin: http})
        store = Parser(dataset="scan")(server.url(path), registry)
        entries = store._group.arrays["data"].manifest.dict().values()
        assert {entry["path"] for entry in entries} == {server.url(path)}
        np.testing.assert_array_equal(read(store), frames)


def test_unreadable_urls_are_refused(tmp_path):
    with pytest.raises(DatasetError, match="the registry has no store for the URL"):
        Parser()("s3://bucket/scan.mib", LOCAL)
    with pytest.raises(DatasetError, match="the stores of the registry"):
        Parser(storage_options={})
    with pytest.raises(FileNotFoundError):
        Parser()(str(tmp_path / "none.mib"), LOCAL)
    damaged = tmp_path / "a.h5"
    damaged.write_bytes(b"\\x89HDF\\r\\n\\x1a\\n" + bytes(100))
    with pytest.raises(CorruptFileError):
        Parser("hdf5")(str(damaged), LOCAL)


def test_parsers_can_be_pickled():
    parser = Parser("mib", nav_shape=(2, 3))
    assert repr(parser) == "Parser(format='mib', nav_shape=(2, 3))"
    assert repr(pickle.loads(pickle.dumps(parser))) == repr(parser)
    assert isinstance(parser, virtualizarr.parsers.typing.Parser)
