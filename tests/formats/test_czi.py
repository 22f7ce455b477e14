"""Zeiss CZI: tiles, mosaics, scenes, pyramids, compressions, and other readers of real files."""

import struct
import warnings

import numpy as np
import pytest
from checks import axes_text, refused, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of
from numcodecs import Zstd

from dask_tiled import (
    CorruptFileError,
    TruncatedFileError,
    describe,
    frame_facts,
    open_dataset,
)
from dask_tiled.formats.czi import tiles as czi_tiles
from dask_tiled.testing import Tile, check_format, counting_frames, write_czi

FRAMES = counting_frames((2, 3, 4, 12, 16), "u2")
SCALING = {"X": 1e-7, "Y": 2e-7, "Z": 5e-7}
INSTRUMENT = (
    '<Instrument><Microscopes><Microscope Name="Axio"/></Microscopes><Objectives><Objective>'
    "<NominalMagnification>20</NominalMagnification></Objective></Objectives></Instrument>"
)


def tiles_of(frames, letters="TCZ", corner=(0, 0), **place):
    shape = frames.shape[: len(letters)]
    for index in np.ndindex(shape):
        start = {**dict(zip(letters, index, strict=True)), **place}
        yield Tile({**start, "Y": corner[0], "X": corner[1]}, frames[index])


@pytest.fixture
def path(tmp_path):
    options = {"scaling": SCALING, "channels": ["DAPI", "GFP", "BF"], "facts": INSTRUMENT}
    return write_czi(tmp_path / "cells.czi", tiles_of(FRAMES, corner=(30, -40)), **options)


def test_other_readers_read_the_written_files(tmp_path):
    """The first one does not know Zstandard, the second one no times."""
    czifile = pytest.importorskip("czifile", reason="czifile is not installed")
    place, options = {"corner": (30, -40)}, {"times": [0.5, 2.5], "facts": INSTRUMENT}
    path = write_czi(tmp_path / "a.czi", tiles_of(FRAMES, **place), scaling=SCALING, **options)
    with czifile.CziFile(path) as theirs:
        assert (theirs.axes, theirs.start[3:5]) == ("TCZYX0", (30, -40))
        np.testing.assert_array_equal(theirs.asarray()[..., 0], FRAMES)
        (times,) = theirs.attachments()
        assert times.data().tolist() == options["times"]
        assert INSTRUMENT in theirs.metadata()
    czi = pytest.importorskip("pylibCZIrw.czi", reason="pylibCZIrw is not installed")
    for compression in (0, 5, 6):
        path = write_czi(path, tiles_of(FRAMES, **place), compression=compression, channels="abc")
        with czi.open_czi(str(path)) as theirs:
            assert theirs.total_bounding_rectangle == (-40, 30, 16, 12)
            for t, c, z in np.ndindex(FRAMES.shape[:3]):
                plane = theirs.read(plane={"T": t, "C": c, "Z": z})
                np.testing.assert_array_equal(plane[..., 0], FRAMES[t, c, z])


def test_axes_and_facts(path):
    desc = describe(path)
    assert axes_text(desc) == "t 1, c 1, z 0.5 µm, y 0.2+6 µm, x 0.1-4 µm"
    assert desc.axes[1].labels == ("DAPI", "GFP", "BF")
    assert desc.metadata["czi"]["origin"] == (30, -40)
    values = {name: fact.value for name, fact in desc.instrument.items()}
    assert values["microscope"] == "Axio"
    assert values["magnification"] == 20
    assert values["date"].startswith("2024-05-06T07:08:09")


def test_times(tmp_path, path):
    with refused(path, "the file has no times of its frames"):
        frame_facts(path)
    tiles = [*tiles_of(FRAMES)]
    several = write_czi(tmp_path / "a.czi", tiles[:5] + tiles[6:], times=[0.5, 2.5])
    facts = frame_facts(several).compute()
    expected = np.broadcast_to(np.array([0.5, 2.5])[:, None, None], FRAMES.shape[:3]).copy()
    expected[0, 1, 1] = np.nan
    np.testing.assert_array_equal(facts["time"], expected)
    few = write_czi(tmp_path / "b.czi", tiles, times=[0.5])
    with refused(few, "no time for each frame", detailed=True):
        frame_facts(few)


STORED = [(0, "i4"), (0, "f8"), (0, "c8"), (2, "f4"), (5, "u2"), (6, "u1"), (6, "u2")]


@pytest.mark.parametrize(("compression", "dtype"), STORED)
@pytest.mark.parametrize("most_looked", [0, 100])
def test_types_and_compressions(tmp_path, monkeypatch, compression, dtype, most_looked):
    """Headers of up to ``most_looked`` tiles are read at opening, others with the pixels."""
    monkeypatch.setattr(czi_tiles, "MOST_LOOKED", most_looked)
    frames = counting_frames((2, 3, 12, 16), dtype)
    path = write_czi(tmp_path / "a.czi", tiles_of(frames, "CZ"), compression=compression)
    check_format(path, frames, cuts=4)


@pytest.mark.parametrize("most_looked", [0, 100])
def test_compressed_tiles_as_long_as_their_pixels(tmp_path, monkeypatch, most_looked):
    monkeypatch.setattr(czi_tiles, "MOST_LOOKED", most_looked)
    for zeros in range(256):
        pixels = np.random.default_rng(0).integers(0, 256, (16, 16), "u1")
        pixels.reshape(-1)[:zeros] = 0
        if len(Zstd().encode(pixels)) == pixels.nbytes:
            break
    assert len(Zstd().encode(pixels)) == pixels.nbytes
    path = write_czi(tmp_path / "a.czi", [Tile({"Y": 0, "X": 0}, pixels)], compression=5)
    np.testing.assert_array_equal(open_dataset(path).compute().reshape(16, 16), pixels)


SAMPLES = [(0, 3), (1, 1), (1, 3), (2, 4), (4, 1), (4, 3), (4, 4), (6, 3)]
"""Compressions, and samples of a pixel."""


@pytest.mark.parametrize(("compression", "samples"), SAMPLES)
@pytest.mark.parametrize("most_looked", [0, 100])
def test_colours(tmp_path, monkeypatch, compression, samples, most_looked):
    """Samples are blue, green and red, as stored, with every compression."""
    monkeypatch.setattr(czi_tiles, "MOST_LOOKED", most_looked)
    y, x = np.mgrid[:24, :32]
    colours = [4 * y, 5 * x, 2 * (x + y), 255 - 3 * x][:samples]
    frame = np.stack(colours, axis=-1).astype("u1")[..., slice(None) if samples > 1 else 0]
    path = write_czi(tmp_path / "a.czi", tiles_of(frame[None], "C"), compression=compression)
    arr = open_dataset(path)
    assert arr.shape == frame.shape
    if samples > 1:
        assert describe(path).axes[-1].labels == ("blue", "green", "red", "alpha")[:samples]
    loss = abs(arr.compute().astype(int) - frame).max()
    assert loss <= (12 if compression == 1 else 0)


def test_mosaics(tmp_path):
    """Tiles lie at their positions, higher numbers on top, and zeros between them."""
    rng = np.random.default_rng(0)
    corners = [(0, 0), (-3, 7), (5, 20), (2, 4)]
    pixels = [rng.integers(1, 999, (2, 6, 9), "u2") for _ in corners]
    order = [2, 0, 3, 1]
    tiles = [
        Tile({"C": c, "Y": corners[m][0], "X": corners[m][1], "M": m}, pixels[m][c])
        for m in order
        for c in range(2)
    ]
    path = write_czi(tmp_path / "a.czi", tiles)
    expected = np.zeros((2, 14, 29), "u2")
    for (y, x), tile in zip(corners, pixels, strict=True):
        expected[:, y + 3 : y + 9, x : x + 9] = tile
    check_format(path, expected, cuts=10)
    stored = np.stack(pixels, axis=1)
    check_format(path, stored, cuts=4, mosaic=False)
    assert describe(path, mosaic=False).dims == ("c", "m", "y", "x")


def test_tiles_of_several_sizes(tmp_path):
    tiles = [Tile({"Y": 0, "X": 8 * m, "M": m}, np.full((4 + m, 8), m + 1, "u2")) for m in range(2)]
    path = write_czi(tmp_path / "a.czi", tiles)
    expected = np.zeros((5, 16), "u2")
    expected[:4, :8], expected[:, 8:] = 1, 2
    check_format(path, expected, cuts=4)
    refuses(path, "tiles of several sizes cannot be an axis", mosaic=False)
    for mosaic in (None, 2, "no"):
        refuses(path, "invalid mosaic", mosaic=mosaic)


def test_scenes(tmp_path):
    """Each scene is an array, chosen by number or name."""
    shapes = {3: (6, 8), 5: (4, 10)}
    pictures = {scene: counting_frames((2, *shape), "u2") for scene, shape in shapes.items()}
    tiles = [
        tile
        for scene, frames in pictures.items()
        for tile in tiles_of(frames, "C", corner=(0, 90_000 * scene), S=scene)
    ]
    path = write_czi(tmp_path / "a.czi", tiles, scenes={5: "D7"})
    for number, (name, frames) in enumerate(zip(("scene 3", "D7"), pictures.values(), strict=True)):
        check_format(path, frames, cuts=3, dataset=number)
        np.testing.assert_array_equal(open_dataset(path, dataset=name).compute(), frames)
    refuses(path, "no such dataset", detailed=True, dataset=2)
    path = write_czi(tmp_path / "b.czi", tiles, scenes={3: "D7", 5: "D7"})
    refuses(path, "several datasets have this name; expected one of the numbers 0, 1", dataset="D7")


def test_pyramids(tmp_path):
    frame = counting_frames((40, 60), "u2")
    corners = [(20 * y, 20 * x) for y, x in np.ndindex(2, 3)]
    tiles = []
    for m, (y, x) in enumerate(corners):
        start = {"C": 0, "Y": 8 + y, "X": 4 + x, "S": 0, "M": m}
        tiles.append(Tile(start, frame[y : y + 20, x : x + 20]))
    small = frame[::2, ::2]
    tiles += [
        Tile({"C": 0, "Y": 8, "X": 4}, small[:, :20], 2),
        Tile({"C": 0, "Y": 8, "X": 44}, small[:, 20:], 2),
        Tile({"C": 0, "Y": 8, "X": 4, "S": 0}, frame[::4, ::4], 4),
    ]
    path = write_czi(tmp_path / "a.czi", tiles, scaling=SCALING)
    check_format(path, frame, cuts=4)
    check_format(path, frame[::4, ::4], cuts=3, level=2)
    assert describe(path).metadata["czi"]["levels"] == (1, 2, 4)
    assert describe(path, level=2).axes[-1].scale == pytest.approx(0.4)
    refuses(path, "no such level", detailed=True, level=3)


def test_missing_frames(tmp_path):
    tiles = [*tiles_of(FRAMES)]
    path = write_czi(tmp_path / "a.czi", tiles[:5] + tiles[6:22])
    expected = FRAMES.reshape(24, 12, 16).copy()
    expected[[5, 22, 23]] = 0
    arr = open_dataset(path)
    np.testing.assert_array_equal(arr.compute().reshape(expected.shape), expected)
    assert arr.description.missing.tolist() == [5, 22, 23]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"compression": 104}, "unsupported compression"),
        ({"part": 1}, "tiles in other files are not supported"),
        ({"schema": b"DE"}, "unsupported directory entry"),
    ],
)
def test_unsupported_files_raise(tmp_path, change, match):
    path = write_czi(tmp_path / "a.czi", tiles_of(FRAMES), **change)
    refuses(path, match, detailed=True)


def test_colours_beside_grey(tmp_path):
    tiles = [Tile({"C": 0, "Y": 0, "X": 0}, np.zeros((4, 4), "u1"))]
    tiles += [Tile({"C": 1, "Y": 0, "X": 0}, np.zeros((4, 4, 3), "u1"))]
    path = write_czi(tmp_path / "a.czi", tiles)
    refuses(path, "mixed grey and colour channels", detailed=True)


def test_damaged_segments(path):
    data = path.read_bytes()
    (directory, metadata) = struct.unpack_from("<qq", data, 84)
    refuses(
        path,
        "the file has no segment ZISRAWDIRECTORY",
        CorruptFileError,
        content=data[:84] + bytes(8) + data[92:],
    )
    refuses(path, content=data[: directory + 200])
    first = data.index(b"ZISRAWSUBBLOCK")
    path.write_bytes(data[: first + 40] + struct.pack("<q", 1 << 40) + data[first + 48 :])
    refuses(path, "a tile reaches beyond the file", TruncatedFileError, detailed=True)
    path.write_bytes(data[:metadata])
    arr = open_dataset(path)
    np.testing.assert_array_equal(arr.compute(), FRAMES)
    assert "the file ends inside a header" in arr.metadata["czi"]["problem"]


@by_row(rows_of("czi"))
def test_real_file(row):
    assert_equals_row(open_dataset(path_of(row), squeeze=False).compute(), row)


@by_row(rows_of("czi", "SERIES"))
def test_real_scenes_equal_pylibczirw(row):
    path, scene = path_of(row), int(row["item"].split()[1])
    arr = open_dataset(path, dataset=scene, squeeze=False)
    assert_equals_row(arr.compute(), row)
    czi = pytest.importorskip("pylibCZIrw.czi", reason="pylibCZIrw is not installed")
    desc = arr.description
    with czi.open_czi(str(path)) as other:
        scenes = [*other.scenes_bounding_rectangle.values()]
        box = scenes[scene] if scenes else other.total_bounding_rectangle
        assert (box.y, box.x) == desc.metadata["czi"]["origin"]
        names = desc.dims[: desc.nav_ndim]
        for index in np.ndindex(desc.nav_shape):
            place = {k.upper(): n for k, n in zip(names, index, strict=True)}
            if place.pop("H", 0) or place.pop("V", 0):
                continue  # pylibCZIrw cannot choose these
            options = {"scene": scene} if scenes else {"roi": tuple(box)}
            theirs = other.read(plane=place, **options)
            pixels = arr[index].compute()
            if pixels.any():
                np.testing.assert_array_equal(theirs.reshape(pixels.shape), pixels)


OLD_READER = "100x100", "FOV7_HV110_P0500510000", "mosaic_test", "nuc_small_new_red", "tiles"


@pytest.mark.parametrize("name", [*OLD_READER, "tiles_z"])
def test_real_files_equal_czifile(name):
    path = path_of({"file": f"czi/{name}.czi"})
    czifile = pytest.importorskip("czifile", reason="czifile is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with czifile.CziFile(path) as other:
            expected = np.squeeze(other.asarray())
            times = [one.data() for one in other.attachments() if "TimeStamps" in str(one)]
    np.testing.assert_array_equal(open_dataset(path).compute(), expected)
    arr = open_dataset(path, squeeze=False)
    if times:
        found = np.unique(frame_facts(arr).compute()["time"])
        np.testing.assert_array_equal(found, times[0][: arr.shape[arr.dims.index("t")]])
