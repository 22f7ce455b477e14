"""zarr in zip files: .zarr.zip, .zspy and .ozx, read in place."""

import json
import shutil
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import zarr
from checks import peak_memory, refused, refuses
from range_server import serving
from zarr.storage import ZipStore

from dask_tiled import (
    Axis,
    CorruptFileError,
    DatasetError,
    StaleFileError,
    TruncatedFileError,
    convert,
    describe,
    open_dataset,
    to_references,
)
from dask_tiled.formats.zarr import descriptor
from dask_tiled.testing import counting_frames

FRAMES = counting_frames((3, 4, 5, 7), "u2")
METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}


def zipped(folder, target, method=zipfile.ZIP_STORED, *, top="", last=False):
    """Zip a folder of zarr, its documents first or last."""
    files = sorted(one for one in folder.rglob("*") if one.is_file())
    files.sort(key=lambda one: (one.suffix != ".json") ^ last)
    with zipfile.ZipFile(target, "w", method) as archive:
        for one in files:
            archive.write(one, f"{top}{one.relative_to(folder)}")
    return target


@pytest.mark.parametrize("suffix", [".zarr.zip", ".zspy"])
def test_exports_open_as_they_were(tmp_path, suffix):
    """The round trip keeps pixels, names, scales and the number of signal axes."""
    np.save(tmp_path / "a.npy", FRAMES)
    axes = {"scan_y": "2 nm", "scan_x": "0.5 nm", "x": "3 mrad"}
    arr = open_dataset(tmp_path / "a.npy", axes=axes)
    convert(arr, tmp_path / f"a{suffix}", progress=False)
    found = open_dataset(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(found.compute(), FRAMES)
    assert found.axes == arr.axes
    assert found.description.nav_ndim == 2
    assert [file.path for file in found.description.files] == [str(tmp_path / f"a{suffix}")]


def test_zspy_of_hyperspy_axes(tmp_path):
    """Axes are in the order of the array, whatever the numbers of their groups."""
    for k, (name, place) in enumerate({"E": 2, "x": 1, "y": 0}.items()):
        group = zarr.create_group(
            tmp_path / "a.zspy", path=f"Experiments/s/axis-{k}", zarr_format=2
        )
        group.attrs.update(
            {"name": name, "units": "eV", "scale": -0.5, "offset": 2, "index_in_array": place}
            | {"navigate": name != "E"}
        )
    array = zarr.create_array(
        tmp_path / "a.zspy", name="Experiments/s/data", data=FRAMES[0], zarr_format=2
    )
    assert array.shape == (4, 5, 7)
    desc = describe(tmp_path / "a.zspy")
    assert desc.axes == tuple(Axis(name, "eV", -0.5, 2.0) for name in "yxE")
    assert desc.nav_ndim == 2
    shutil.rmtree(tmp_path / "a.zspy/Experiments/s/axis-1")
    assert describe(tmp_path / "a.zspy").dims == ("frame", "y", "x")


def test_zspy_axes_that_are_no_scales(tmp_path):
    """Values are coordinates; expressions, and values that are not numbers, are a doubt."""
    told = {"E": [1.0, 2.0, 4.0, 8.0], "t": [0.0, 1.0, np.nan, 3.0, 4.0], "w": None}
    for k, (name, values) in enumerate(told.items()):
        place = f"Experiments/s/axis-{k}"
        group = zarr.create_group(tmp_path / "a.zspy", path=place, zarr_format=2)
        group.attrs.update({"name": name, "units": "eV", "navigate": k < 2})
        if values is None:
            group.attrs["expression"] = "a/x"
        else:
            group.create_array("axis", data=np.array(values))
    array = zarr.create_array(
        tmp_path / "a.zspy", name="Experiments/s/data", data=FRAMES[0], zarr_format=2
    )
    assert array.shape == (4, 5, 7)
    desc = describe(tmp_path / "a.zspy")
    energies = Axis("E", coordinates=(1.0, 2.0, 4.0, 8.0), coordinate_units="eV")
    assert desc.axes == (energies, Axis("t"), Axis("w"))
    assert [doubt.code for doubt in desc.doubts] == ["uneven-axis"] * 2
    for doubt, problem in zip(desc.doubts, ("are not numbers", "from an expression"), strict=True):
        assert problem in doubt.text


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("top", ["", "scan.zarr/"])
@pytest.mark.parametrize("version", [2, 3])
def test_zips_of_other_programs(tmp_path, method, top, version):
    """Stored and deflated members, at the top or in a folder; the largest array opens."""
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    group.create_array("counts", data=FRAMES, chunks=(2, 2, 5, 4))
    group.create_array("small", data=FRAMES[0, 0])
    path = zipped(tmp_path / "a.zarr", tmp_path / "b.ozx", METHODS[method], top=top, last=True)
    shutil.rmtree(tmp_path / "a.zarr")
    arr = open_dataset(path)
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    np.testing.assert_array_equal(arr[1, 2, ::2].compute(), FRAMES[1, 2, ::2])
    assert open_dataset(path, dataset="small").shape == (5, 7)
    with refused(f"{path}/{top}{'zarr.json' if version == 3 else '.zgroup'}", "no such array"):
        open_dataset(path, dataset="none")


@pytest.mark.parametrize("method", METHODS)
def test_shards(tmp_path, method):
    """Deflated shards are inflated as a whole; chunks that a shard lacks are filled."""
    options = {"chunks": (1, 2, 5, 7), "shards": (2, 4, 5, 7), "fill_value": 9}
    array = zarr.create_array(tmp_path / "a.zarr", shape=FRAMES.shape, dtype="u2", **options)
    array[:2, :2] = FRAMES[:2, :2]
    path = zipped(tmp_path / "a.zarr", tmp_path / "a.zarr.zip", METHODS[method])
    expected = np.full_like(FRAMES, 9)
    expected[:2, :2] = FRAMES[:2, :2]
    np.testing.assert_array_equal(open_dataset(path).compute(), expected)


def test_replaced_members(tmp_path):
    """A store that was written twice has two members of a name, of which the last one counts."""
    with ZipStore(tmp_path / "a.zarr.zip", mode="w") as store:
        array = zarr.create_array(store, shape=(5, 7), dtype="u2", compressors=None)
        array[...] = FRAMES[0, 0]
        with pytest.warns(UserWarning, match="Duplicate name"):
            array[...] = FRAMES[1, 1]
    np.testing.assert_array_equal(open_dataset(tmp_path / "a.zarr.zip").compute(), FRAMES[1, 1])


@pytest.mark.parametrize("method", METHODS)
def test_urls_fetch_parts(tmp_path, method):
    """The index and the chunks that are needed are fetched, never the whole file."""
    frames = np.random.default_rng(0).integers(0, 1000, (24, 256, 256), "u2")
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=frames.shape, dtype="u2", chunks=(1, 256, 256)
    )
    array[...] = frames
    path = zipped(tmp_path / "a.zarr", tmp_path / "a.zarr.zip", METHODS[method])
    with serving(tmp_path) as server:
        arr = open_dataset(server.url(path))
        np.testing.assert_array_equal(arr[17].compute(), frames[17])
        assert server.sent < path.stat().st_size / 3
        np.testing.assert_array_equal(arr.compute(), frames)


def test_references_to_zips(tmp_path):
    """Stored chunks keep their codecs; deflated ones need the codec of the package."""
    for method, number in METHODS.items():
        array = zarr.create_array(tmp_path / f"{method}.zarr", data=FRAMES, chunks=(1, 2, 5, 7))
        path = zipped(tmp_path / f"{method}.zarr", tmp_path / f"{method}.zip", number)
        refs = to_references(open_dataset(path), tmp_path / f"{method}.json")
        told = json.dumps(refs)
        assert ("dask_tiled." in told) == (method == "deflated")
        assert array.shape == FRAMES.shape


def hostile(path, name="zarr.json", content=b"{}", **changes):
    """Write a zip file, and change fields of its last entry in the index."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("zarr.json", json.dumps({"zarr_format": 3, "node_type": "group"}))
        archive.writestr(name, content)
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    for field, value in changes.items():
        place, form = {"flags": (8, "<H"), "method": (10, "<H"), "packed": (20, "<I")}.get(
            field, (34, "<H")
        )
        struct.pack_into(form, data, at + place, value)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("changes", "problem", "kind"),
    [
        ({"name": "../zarr.json"}, "leads out of its folder", CorruptFileError),
        ({"name": "/etc/zarr.json"}, "leads out of its folder", CorruptFileError),
        ({"name": "a/../../b"}, "leads out of its folder", CorruptFileError),
        ({"name": "data/zarr.json", "flags": 1}, "encrypted", DatasetError),
        ({"name": "data/zarr.json", "method": 12}, "unsupported compression", DatasetError),
        ({"name": "data/zarr.json", "disk": 3}, "one of several parts", DatasetError),
        ({"name": "data/zarr.json", "packed": 1 << 20}, "overlap", CorruptFileError),
        ({"name": "data/zarr.json", "packed": 1}, "invalid size", TruncatedFileError),
        ({"name": "data/zarr.json", "content": b""}, "invalid size", TruncatedFileError),
        (
            {"name": "data/zarr.json", "content": b"[" * 100_000},
            "invalid zarr metadata",
            CorruptFileError,
        ),
    ],
)
def test_hostile_zips_raise(tmp_path, changes, problem, kind):
    path = hostile(tmp_path / "a.zarr.zip", **changes)
    with pytest.raises(kind, match=problem) as caught:
        open_dataset(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.thorough
def test_bombs_take_bounded_memory(tmp_path):
    """A long deflated document is refused, a chunk is inflated to the size of its shape."""
    path = tmp_path / "a.zarr.zip"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("zarr.json", "w") as member,
    ):
        for _ in range(64):
            member.write(bytes(1 << 20))
    with peak_memory() as peak, refused(f"{path}/zarr.json", "too long", CorruptFileError):
        open_dataset(path)
    assert peak[0] < 8 << 20
    zarr.create_array(tmp_path / "b.zarr", shape=(64, 64), dtype="u1", compressors=None)
    with zipfile.ZipFile(zipped(tmp_path / "b.zarr", tmp_path / "b.zip"), "a", 8) as archive:
        archive.writestr("c/0/0", bytes(1 << 28))
    arr = open_dataset(tmp_path / "b.zip")
    with peak_memory() as peak, pytest.raises(CorruptFileError, match="cannot be decoded"):
        arr.compute()
    assert peak[0] < 8 << 20


@pytest.mark.slow
def test_members_take_bounded_memory(tmp_path):
    """Less than 850 bytes for each, while the file is described."""
    sizes = {}
    for count in (10, 10_000):
        path = tmp_path / f"{count}.zarr.zip"
        with zarr.storage.ZipStore(path, mode="w") as store:
            zarr.create_array(store, shape=(count, 1), chunks=(1, 1), dtype="u1", compressors=None)
        with zipfile.ZipFile(path, "a") as archive:
            for k in range(count):
                archive.writestr(f"c/{k}/0", b"1")
        describe(path)  # imports
        tracemalloc.start()
        assert describe(path).shape == (count, 1)
        sizes[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert sizes[10_000] - sizes[10] < 850 * 10_000


def test_zips_that_are_replaced_meanwhile_raise(tmp_path, monkeypatch):
    path = hostile(tmp_path / "a.zip", name="a")

    def replaced(*_):
        raise StaleFileError("the file has changed", path=str(path))

    monkeypatch.setattr(descriptor, "holds_documents", replaced)
    refuses(path, kind=StaleFileError)


def test_other_zips_are_named_for_what_they_are(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    refuses(tmp_path / "a.zip", "looks like a ZIP archive")
    refuses(tmp_path / "a.zip", "holds no zarr", format="zarr")
    zarr.create_array(tmp_path / "b.zarr", data=FRAMES)
    whole = zipped(tmp_path / "b.zarr", tmp_path / "b.zip").read_bytes()
    (tmp_path / "b.zip").write_bytes(whole[:-30])  # the copy was not finished
    refuses(tmp_path / "b.zip", "index of the zip file", CorruptFileError)
