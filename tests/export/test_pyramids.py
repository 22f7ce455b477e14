"""Pyramids are OME-Zarr images, whose levels are computed while the pixels are written."""

import math
import os
import zipfile
from collections import Counter
from functools import partial
from itertools import product

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import yaozarrs
import zarr
from checks import stop_export
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_tiled import Axis, DatasetError, VerificationError, open_dataset, to_zarr, verify_zarr
from dask_tiled.export.zarr import grids, levels
from dask_tiled.export.zarr.encoding import Encoder
from dask_tiled.export.zarr.levels import Level, LevelStack
from dask_tiled.model.pyramids import Halving
from dask_tiled.storing.places import Place
from dask_tiled.testing import counting_frames, write_mib, write_nrrd, write_raw

LAST = {2: (0, 1), 3: (1, 2), 4: (2, 3)}
SCAN = np.random.default_rng(3).poisson(3, (3, 4, 22, 37)).astype("u2")


def expected(pixels, axes, count, method="mean"):
    """Return the levels as NumPy computes them."""
    found = [pixels]
    for _ in range(count):
        one = found[-1]
        if method == "nearest":
            found.append(one[tuple(np.s_[::2] if k in axes else np.s_[:] for k in range(one.ndim))])
            continue
        if method == "mode":
            found.append(modes(one, axes))
            continue
        for axis in axes:
            if one.shape[axis] % 2:  # the mean of a pixel and its copy is the pixel
                one = np.concatenate([one, one.take([-1], axis)], axis)
        halves = [[n // 2, 2] if k in axes else [n, 1] for k, n in enumerate(one.shape)]
        means = one.reshape(np.concatenate(halves)).mean(
            axis=tuple(range(1, 2 * one.ndim, 2)), dtype="f8"
        )
        found.append((np.rint(means) if pixels.dtype.kind in "iu" else means).astype(pixels.dtype))
    return found


def modes(pixels, axes):
    """Return the most frequent pixels, the first of equals, of axes of any length."""
    halves = [range(-(-n // 2)) if k in axes else range(n) for k, n in enumerate(pixels.shape)]
    found = np.empty([len(one) for one in halves], pixels.dtype)
    for place in product(*halves):
        cut = (slice(2 * n, 2 * n + 2) if k in axes else n for k, n in enumerate(place))
        found[place] = Counter(pixels[tuple(cut)].ravel().tolist()).most_common(1)[0][0]
    return found


def stored(place):
    """Validate a group against the specification; return its levels and its image."""
    group = zarr.open_group(place, mode="r" if isinstance(place, os.PathLike) else "r+")
    if isinstance(place, os.PathLike):
        yaozarrs.validate_zarr_store(str(place))
    (image,) = group.attrs["ome"]["multiscales"]
    return [group[level["path"]] for level in image["datasets"]], image


def check(place, arr, pixels, axes, count, method="mean"):
    """Compare all levels with NumPy's, and by verify_zarr."""
    found, image = stored(place)
    assert len(found) == count + 1
    for one, level in zip(found, expected(pixels, axes, count, method), strict=True):
        np.testing.assert_array_equal(one[...], level)
        assert one.dtype == pixels.dtype
        assert one.metadata.dimension_names == tuple(axis["name"] for axis in image["axes"])
    verify_zarr(place, arr)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Return arrays with decoded pixels, with native pixels and of dask, and their pixels."""
    folder = tmp_path_factory.mktemp("scan")
    frames = write_mib(folder / "scan.mib", SCAN[..., :32])
    raw = write_raw(folder / "scan.raw", SCAN)
    return {
        "mib": (open_dataset(frames), SCAN[..., :32]),
        "raw": (open_dataset(raw, nav_shape=(3, 4), sig_shape=(22, 37), dtype="<u2"), SCAN),
        "dask": (da.from_array(SCAN, chunks=(2, 3, 7, 16)), SCAN),
    }


@pytest.mark.thorough
@settings(max_examples=settings.default.max_examples // 4)
@given(data=st.data())
def test_any_chunks(opened, data):
    """Levels are right with any chunks and shards, and in any number of passes."""
    arr, pixels = opened[data.draw(st.sampled_from(sorted(opened)))]
    index = data.draw(st.sampled_from([np.s_[:], np.s_[1], np.s_[:, 2], np.s_[1, 2], np.s_[::2]]))
    arr, pixels = arr[index], pixels[index]
    options = {}
    if data.draw(st.booleans()):
        options["chunks"] = tuple(data.draw(st.integers(1, n)) for n in arr.shape)
        if data.draw(st.booleans()):
            times = [data.draw(st.integers(1, 4)) for _ in arr.shape]
            sizes = zip(options["chunks"], times, arr.shape, strict=True)
            options["shards"] = tuple(min(size, k * n) for k, n, size in sizes)
            axes = zip(options["shards"], options["chunks"], arr.shape, strict=True)
            if any(n % k and n != size for n, k, size in axes):
                del options["shards"]
    count = data.draw(st.integers(1, 5))
    place = zarr.storage.MemoryStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(levels, "BLOCK_BYTES", data.draw(st.sampled_from([1, 1 << 11, 1 << 26])))
        patch.setattr(grids, "LEAST_BYTES", data.draw(st.sampled_from([1, 1 << 7, 1 << 17])))
        to_zarr(arr, place, pyramid=count, **options)
        check(place, arr, pixels, LAST[arr.ndim], count)


@pytest.mark.parametrize(
    ("steps", "units", "axes"),
    [
        ("0.5 0.5 0.6", '"nm" "nm" "nm"', (0, 1, 2)),
        ("0.5 0.5 0.26", '"nm" "nm" "nm"', (0, 1, 2)),
        ("0.5 0.5 1.0", '"nm" "nm" "nm"', (1, 2)),
        ("0.5 0.5 0.25", '"nm" "nm" "nm"', (1, 2)),
        ("0.5 0.5 0.5", '"nm" "nm" "s"', (1, 2)),
        ("NaN NaN NaN", '"" "" ""', (0, 1, 2)),
    ],
)
def test_depths_are_halved_if_their_step_is_near(tmp_path, steps, units, axes):
    """Steps of a volume become alike, or stay so; a series keeps its length."""
    volume = counting_frames((11, 20, 30), "uint16")
    fields = {"spacings": steps, "units": units}
    arr = open_dataset(write_nrrd(tmp_path / "volume.nrrd", volume, fields=fields)[0])
    to_zarr(arr, tmp_path / "out.zarr", pyramid=2)
    check(tmp_path / "out.zarr", arr, volume, axes, 2)


KINDS = {
    "t c z y x": (3, 4),
    "c y x": (1, 2),
    "t z y x": (2, 3),
    "z c y x": (2, 3),
    "p c y x": (2, 3),
    "y x s": (0, 1),
    "s y x": (1, 2),
    "c z y x s": (2, 3),
}
"""Halved axes by dimensions, of 5 planes 2 nm apart."""
SIZES = {"t": 2, "c": 3, "z": 5, "p": 2, "y": 13, "x": 22, "s": 3}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("dims", "method"),
    [*((dims, "mean") for dims in KINDS), ("t z y x", "mode"), ("c z y x s", "nearest")],
)
def test_colours_channels_and_times_are_never_halved(tmp_path, monkeypatch, dims, method):
    names = dims.split()
    pixels = np.random.default_rng(1).integers(0, 4, [SIZES[name] for name in names], "u2")
    steps = {"z": 2.0, "y": 0.5, "x": 0.5}
    axes = [Axis(n, "nm", steps[n]) if n in steps else Axis(n) for n in names]
    monkeypatch.setattr(levels, "BLOCK_BYTES", 1)
    place, arr = tmp_path / "out.zarr", da.from_array(pixels, chunks=6)
    to_zarr(arr, place, pyramid=2, dimension_names=axes, pyramid_method=method)
    found = zarr.open_group(place, mode="r")
    for k, level in enumerate(expected(pixels, KINDS[dims], 2, method)):
        name = f"level_{k}/data" if k else "data"
        np.testing.assert_array_equal(found[name][...], level)
    verify_zarr(place, arr)
    opened = open_dataset(place)
    assert opened.dims == (*names,)
    assert opened.metadata["zarr"]["levels"] == ("data", "level_1/data", "level_2/data")
    # A wrong pixel of a level is found.
    writable = zarr.open_group(place, mode="r+")["level_1/data"]
    first = (0,) * arr.ndim
    writable[first] = writable[first] + 1
    with pytest.raises(VerificationError, match="a pixel differs"):
        verify_zarr(place, arr)


@pytest.mark.thorough
def test_levels_of_labels_lie_at_their_pixels(tmp_path):
    """The first pixel of each pair keeps its place; means lie between their pixels."""
    axes = [Axis("y", "nm", 0.5, 1.0), Axis("x", "nm", 0.5)]
    for method, offset in (("nearest", 1.0), ("mean", 1.25), ("mode", 1.25)):
        path = tmp_path / method
        to_zarr(
            da.ones((8, 8), dtype="u2"),
            path,
            pyramid=1,
            dimension_names=axes,
            pyramid_method=method,
        )
        _, image = stored(path)
        scale, translation = image["datasets"][1]["coordinateTransformations"]
        assert (scale["scale"], translation["translation"]) == ([1, 1], [offset, offset - 1])
        assert image["type"] == method


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["?", "i1", "f4", "c8", "i8"])
def test_other_types(tmp_path, dtype):
    """Levels have the type of the pixels."""
    pixels = counting_frames((2, 13, 18), "uint8").astype(dtype)
    to_zarr(da.from_array(pixels), tmp_path / "out.zarr", pyramid=1)
    found, _ = stored(tmp_path / "out.zarr")
    assert found[1].dtype == pixels.dtype
    verify_zarr(tmp_path / "out.zarr", da.from_array(pixels))


def test_number_of_levels(tmp_path):
    """By default, halved axes of the last level have at most 256 pixels."""
    cases = [((2, 256, 256), True, []), ((2, 257, 100), True, [129])]
    cases += [((600, 2049), True, [300, 150, 75, 38]), ((2, 4, 6), False, []), ((2, 4, 6), 0, [])]
    for number, (shape, asked, lengths) in enumerate(cases):
        to_zarr(da.zeros(shape, dtype="u1"), tmp_path / str(number), pyramid=asked)
        found, _ = stored(tmp_path / str(number))
        assert [one.shape[-2] for one in found[1:]] == lengths


def test_positions(tmp_path):
    """Pixels of a level lie in the middle of the pixels they average, for every reader."""
    volume = counting_frames((4, 6, 8), "uint16")
    fields = {"spacings": "0.5 2 3", "axis mins": "1 0 NaN", "units": '"nm" "nm" "s"'}
    arr = open_dataset(write_nrrd(tmp_path / "volume.nrrd", volume, fields=fields)[0])
    path = tmp_path / "out.zarr"
    to_zarr(arr, path, pyramid=2)
    _, image = stored(path)
    first = image["datasets"][0]["coordinateTransformations"]
    for k, level in enumerate(image["datasets"]):
        scale, translation = level["coordinateTransformations"]
        assert scale["scale"] == [3, 2 * 2**k, 0.5 * 2**k]
        moved = np.subtract(translation["translation"], first[1]["translation"])
        np.testing.assert_allclose(moved, [0, (2**k - 1), (2**k - 1) / 4])
    x = xr.open_zarr(path)["x"]
    halves = xr.open_zarr(path, group="level_1")
    np.testing.assert_allclose(halves["x"], x.values.reshape(-1, 2).mean(1))
    assert halves["x"].attrs["units"] == "nm"
    level = open_dataset(path, dataset="level_1/data")
    np.testing.assert_array_equal(level, expected(volume, (1, 2), 1)[1])
    one, other = (some.description.axes[2] for some in (arr, level))
    assert (other.scale, other.units) == (2 * one.scale, one.units)
    assert open_dataset(path).shape == volume.shape


@pytest.mark.thorough
def test_each_frame_is_read_once(opened, tmp_path, monkeypatch):
    """Levels are computed from the pixels in memory."""
    arr, pixels = opened["dask"]
    read = []

    def counted(block, block_info=None):
        read.append(block_info[0]["chunk-location"])
        return block

    seen = arr.map_blocks(counted, dtype=arr.dtype, meta=pixels[:0])
    monkeypatch.setattr(levels, "BLOCK_BYTES", 1)
    to_zarr(seen, tmp_path / "out.zarr", pyramid=4, dimension_names=["a", "b", "c", "d"])
    assert len(read) == len(set(read)) == math.prod(arr.numblocks)


@pytest.mark.parametrize(("most", "counts"), [(1024, [4]), (256, [3, 2]), (255, [2, 2, 2])])
def test_levels_of_a_pass(monkeypatch, most, counts):
    """Blocks of whole chunks of 2, 3 and 4 levels have 8, 16 and 32 pixels a side."""
    monkeypatch.setattr(levels, "BLOCK_BYTES", most)
    arrays = (
        zarr.create_array({}, shape=(32 >> k,) * 2, chunks=(4, 4), dtype="u1") for k in range(4)
    )
    stack = LevelStack(tuple(Level("", Encoder(one)) for one in arrays), Halving((0, 1)))
    assert [len(one.levels) for one in stack.passes()] == counts


@pytest.mark.thorough
@pytest.mark.parametrize("after", [0, 2, 5])
def test_stopped_exports_are_resumed(opened, tmp_path, monkeypatch, written, after):
    """In any pass, noted chunks are not written again, and damaged chunks are."""
    arr, pixels = opened["mib"]
    monkeypatch.setattr(levels, "BLOCK_BYTES", 1)
    options = {"chunks": (2, 4, 6, 32), "pyramid": 3}
    path = tmp_path / "out.zarr"
    noted = stop_export(monkeypatch, Place, arr, path, after, **options)
    assert not path.exists()
    done = {key for entries in noted for key in entries}
    damaged = sorted(key for key in done if key.startswith("level_1"))[:1]
    for key in damaged:
        (file,) = tmp_path.glob(f"out.zarr.part/*/store/{key}")
        data = bytearray(file.read_bytes())
        data[4] ^= 8
        file.write_bytes(data)
    written.clear()
    to_zarr(arr, path, **options)
    check(path, arr, pixels, (2, 3), 3)
    assert {*damaged} <= {*written}
    if not damaged:
        assert not done & {*written}
    assert sorted(os.listdir(tmp_path)) == ["out.zarr"]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["memory", "zip", "path"])
def test_any_store(opened, tmp_path, monkeypatch, kind):
    """Exports have several passes; later ones read levels that are not visible yet."""
    monkeypatch.setattr(levels, "BLOCK_BYTES", 1)
    arr, pixels = opened["raw"]
    place = tmp_path / "out.zarr"
    if kind != "path":
        make = partial(zarr.storage.ZipStore, tmp_path / "out.zip", mode="w")
        place = zarr.storage.MemoryStore() if kind == "memory" else make()
    options = {"chunks": (1, 4, 6, 6), "pyramid": 3}
    to_zarr(arr, place, **options)
    if kind == "zip":
        place.close()
        assert zipfile.ZipFile(tmp_path / "out.zip").testzip() is None
        place = zarr.storage.ZipStore(tmp_path / "out.zip", mode="r")
        found = zarr.open_group(place, mode="r")
        for k, level in enumerate(expected(pixels, (2, 3), 3)[1:], 1):
            np.testing.assert_array_equal(found[f"level_{k}/data"][...], level)
        return
    check(place, arr, pixels, (2, 3), 3)
    to_zarr(arr, place, overwrite=True)  # removes all levels
    group = zarr.open_group(place, mode="r+")
    assert [*group.group_keys()] == []
    verify_zarr(place, arr)


@pytest.mark.thorough
@pytest.mark.parametrize("number", [1, 2, 3])
def test_damage_of_levels(opened, tmp_path, monkeypatch, number):
    """verify_zarr notices changed pixels, damaged and missing chunks, and missing levels."""
    monkeypatch.setattr(levels, "BLOCK_BYTES", 1)
    arr, _ = opened["raw"]
    path = tmp_path / "out.zarr"
    to_zarr(arr, path, chunks=(3, 4, 6, 6), pyramid=3)
    name = f"level_{number}/data"
    array = zarr.open_group(path, mode="r+")[name]
    array[1, 2, 0, 1] += 1
    with pytest.raises(VerificationError, match="a pixel differs") as caught:
        verify_zarr(path, arr)
    where = caught.value.where
    assert where == f"{name} [1, 2, 0, 1]" or where.startswith(f"level_{number + 1}/data [")
    array[1, 2, 0, 1] -= 1
    verify_zarr(path, arr)
    chunk = path / name / "c/0/0/0/0"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:9] + bytes([data[9] ^ 1]) + data[10:])
    with pytest.raises(VerificationError, match="cannot be decoded"):
        verify_zarr(path, arr)
    chunk.unlink()
    with pytest.raises(VerificationError, match="is missing"):
        verify_zarr(path, arr)
    with pytest.raises(DatasetError):
        open_dataset(path, dataset=name).compute()
    (path / name / "zarr.json").unlink()
    with pytest.raises(VerificationError, match="the store has no such array"):
        verify_zarr(path, arr)


@pytest.mark.parametrize("changed", [{"axes": [-1]}, {"axes": []}, {"method": "median"}])
def test_invalid_metadata_of_pyramids_raise(tmp_path, changed):
    arr, path = da.ones((4, 4), dtype="u1"), tmp_path / "out.zarr"
    to_zarr(arr, path, pyramid=1)
    attributes = zarr.open_group(path, mode="r+").attrs
    mark = attributes["dask_tiled"]
    attributes["dask_tiled"] = mark | {"pyramid": mark["pyramid"] | changed}
    with pytest.raises(VerificationError, match="invalid pyramid metadata of the group"):
        verify_zarr(path, arr)


def test_missing_chunks_of_levels_raise(opened, tmp_path, monkeypatch):
    """An export with incomplete levels is never visible."""
    arr, _ = opened["raw"]
    put = Place.put

    def lost(self, key, data):
        if not key.startswith("level_2/data/c/1"):
            put(self, key, data)

    monkeypatch.setattr(Place, "put", lost)
    with pytest.raises(DatasetError, match="missing") as caught:
        to_zarr(arr, tmp_path / "out.zarr", chunks=(1, 4, 22, 37), pyramid=2)
    assert (caught.value.where, caught.value.found[:2]) == ("level_2/data/c/1/0/0/0", "1 ")
    assert not (tmp_path / "out.zarr").exists()


def test_each_key_is_written_once(opened, tmp_path, monkeypatch, written):
    monkeypatch.setattr(levels, "BLOCK_BYTES", 1 << 12)
    to_zarr(opened["dask"][0], tmp_path / "out.zarr", chunks=(1, 2, 5, 8), pyramid=4)
    assert len(written) == len({*written})


def test_invalid_pyramids_raise(opened, tmp_path):
    """Invalid pyramids are refused before anything is written."""
    arr, _ = opened["raw"]
    line = da.ones(300)
    cases = [
        (arr, {"pyramid": True, "layout": "array"}, "do not form an image"),
        (arr, {"pyramid": True, "dimension_names": ["y", "x", "y", "x"]}, "do not form an image"),
        (line, {"pyramid": 1}, "do not form an image"),
        (arr, {"pyramid": 1, "pyramid_method": "median"}, "invalid pyramid_method"),
        (arr, {"pyramid_method": "median"}, "invalid pyramid_method"),
        (arr, {"pyramid_method": np.array(["mean", "mode"])}, "invalid pyramid_method"),
        (arr.astype("M8[s]"), {"pyramid": 1}, "pixels that are numbers"),
        (arr.astype("f4"), {"pyramid": 1, "pyramid_method": "mode"}, "a method for labels"),
        (arr, {"pyramid": 7}, "whole number"),
        (arr, {"pyramid": -1}, "whole number"),
        (arr, {"pyramid": 1.5}, "whole number"),
        (arr, {"pyramid": "yes"}, "whole number"),
        (arr, {"pyramid": 1, "follow": True}, "a pyramid of growing files cannot be written"),
    ]
    for some, options, message in cases:
        with pytest.raises(DatasetError, match=message):
            to_zarr(some, tmp_path / "out.zarr", **options)
    assert os.listdir(tmp_path) == []
    to_zarr(line, tmp_path / "out.zarr", pyramid=0)  # no level is no pyramid
