"""Leica LIF and LOF: axes in any order, mosaics, and real files against liffile and readlif."""

import numpy as np
import pytest
from checks import axes_text, refuses
from kinds import assert_equals_row, by_row, path_of, rows_of

from dask_tiled import (
    CorruptFileError,
    DatasetError,
    describe,
    frame_facts,
    open_dataset,
)
from dask_tiled.testing import check_format, counting_frames, write_lif

CELLS = counting_frames((3, 2, 4, 5, 7), "u2")
STAMPS = [132_564_512_000_000_000 + 10_000_000 * k for k in range(24)]
HARDWARE = {"SystemTypeName": "TCS SP8", "Magnification": "63", "ZPosition": "2.5E-6"}


@pytest.fixture
def path(tmp_path):
    options = {"channels": ["Green", "Red"], "stamps": STAMPS, "hardware": HARDWARE}
    lengths = {"t": 6.0, "z": 3e-6, "y": 4e-6, "x": 12e-6}
    return write_lif(tmp_path / "cells.lif", {"cells": CELLS}, "tczyx", lengths=lengths, **options)


def test_pixels_axes_and_times_equal_those_of_liffile(path):
    """It has lengths in metres."""
    liffile = pytest.importorskip("liffile", reason="liffile is not installed")
    arr = open_dataset(path)
    assert axes_text(arr) == "t 3 s, c 1, z 1 µm, y 1 µm, x 2 µm"
    assert arr.axes[1].labels == ("Green", "Red")
    with liffile.LifFile(path) as other:
        (theirs,) = other.images
        assert theirs.dims == tuple(name.upper() for name in arr.dims)
        np.testing.assert_array_equal(arr, theirs.asarray())
        units = {"s": 1, "µm": 1e-6}
        scales = {axis.name.upper(): axis.scale * units.get(axis.units, 1) for axis in arr.axes}
        steps = {name: np.diff(theirs.coords[name])[0] for name in "TZYX"}
        assert {name: scales[name] for name in "TZYX"} == pytest.approx(steps)
        assert len(theirs.timestamps) == len(STAMPS)


def test_time_stamps(path, tmp_path):
    options = {"stamps": STAMPS, "old_stamps": True}
    older = write_lif(tmp_path / "older.lif", {"cells": CELLS}, "tczyx", **options)
    expected = frame_facts(path).compute()
    assert expected.shape == CELLS.shape[:3]
    steps = np.diff(expected["time"].ravel()) / np.timedelta64(1, "s")
    assert (steps == 1).all()
    np.testing.assert_array_equal(frame_facts(older).compute(), expected)
    few = write_lif(tmp_path / "few.lif", {"cells": CELLS}, "tczyx", stamps=STAMPS[:3])
    with pytest.raises(DatasetError, match="no time stamp for each frame"):
        frame_facts(few)


@pytest.mark.parametrize("axes", ["tczyx", "tzyxc", "ctzyx", "tzxyc", "ctzxy"])
def test_order_of_axes(tmp_path, axes):
    """Axes are in stored order, without those of length 1."""
    path = write_lif(tmp_path / "cells.lif", {"cells": CELLS}, axes)
    check_format(path, CELLS, cuts=4)
    names = [name if name != "c" or axes[-1] != "c" else "s" for name in axes]
    assert describe(path).dims == tuple(names)
    short = CELLS[:1, :, :1]
    other = write_lif(tmp_path / "short.lif", {"cells": short}, axes)
    check_format(other, short[0, :, 0], cuts=4)


@pytest.mark.parametrize("dtype", ["u1", "u4", "f4", "f8"])
@pytest.mark.parametrize("name", ["a.lif", "a.lof"])
def test_types_and_files(tmp_path, dtype, name):
    frames = counting_frames((4, 5, 7), dtype)
    check_format(write_lif(tmp_path / name, {"cells": frames}, "eyx"), frames, cuts=4)
    if name == "a.lif":
        old = write_lif(tmp_path / name, {"cells": frames}, "eyx", version=1)
        check_format(old, frames, cuts=4)


def test_colours(tmp_path):
    """Samples are red, green and blue, in whatever order they are stored."""
    frames = counting_frames((4, 5, 7, 3), "u1")
    names = ["Red", "Green", "Blue"]
    for turn in (1, -1):
        options = {"channels": names[::turn], "tags": [1, 2, 3][::turn]}
        path = write_lif(tmp_path / "a.lif", {"cells": frames[..., ::turn]}, "zyxs", **options)
        check_format(path, frames, cuts=4)
        assert describe(path).axes[-1].labels == tuple(names)


def test_several_images(tmp_path):
    images = {"first": CELLS, "second": CELLS[::-1].copy(), "one": CELLS + 1}
    path = write_lif(tmp_path / "cells.lif", images, "tczyx")
    assert describe(path).metadata["lif"]["datasets"] == tuple(images)
    for number, (name, pixels) in enumerate(images.items()):
        for dataset in (name, number):
            arr = open_dataset(path, dataset=dataset)
            np.testing.assert_array_equal(arr.compute(), pixels)
    refuses(path, "no such dataset", detailed=True, dataset="third")


def test_mosaics(tmp_path):
    """Tiles are an axis, or lie at their positions, later ones on top."""
    tiles = counting_frames((2, 3, 5, 7), "u2")
    positions = [(2e-6, 0.0), (0.0, 4e-6), (2e-6, 5e-6)]
    lengths = {"y": 4e-6, "x": 6e-6}
    options = {"lengths": lengths, "positions": positions}
    path = write_lif(tmp_path / "cells.lif", {"cells": tiles}, "cmyx", **options)
    check_format(path, tiles, cuts=4)
    expected = np.zeros((2, 7, 12), "u2")
    for tile, (y, x) in zip(tiles.swapaxes(0, 1), [(2, 0), (0, 4), (2, 5)], strict=True):
        expected[:, y : y + 5, x : x + 7] = tile
    check_format(path, expected, cuts=4, mosaic=True)
    assert describe(path, mosaic=True).dims == ("c", "y", "x")
    flipped = write_lif(tmp_path / "other.lif", {"cells": tiles}, "cmyx", flipped=True, **options)
    refuses(flipped, "flipped or swapped", mosaic=True)
    few = write_lif(
        tmp_path / "few.lif", {"cells": tiles}, "cmyx", lengths=lengths, positions=positions[:2]
    )
    refuses(few, "invalid tile positions", CorruptFileError, detailed=True, mosaic=True)


def test_mosaic_without_positions_raises(path):
    refuses(path, "the image has no tiles with positions", detailed=True, mosaic=True)
    refuses(path, "invalid mosaic", mosaic="no")


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('Version="2"', 'Version="3"', "unsupported LIF version"),
        ('DataType="0"', 'DataType="1"', "unsupported channels"),
        ('Resolution="16"', 'Resolution="00"', "invalid value"),
        ('NumberOfElements="7"', 'NumberOfElements="0"', "invalid value"),
        ('BytesInc="14"', 'BytesInc="01"', "the stride of an axis is smaller than a pixel"),
        ('BytesInc="14"', 'BytesInc="99"', "the block of the image is too short"),
        ('"MemBlock_0"', '"MemBlock_1"', "the pixels of the image are not in the file"),
        ("<Image>", "<Imago>", "the XML cannot be read"),
    ],
)
def test_unsupported_files_raise(path, old, new, match):
    data = path.read_bytes()
    before, after = (text.encode("utf-16-le") for text in (old, new))
    assert data.count(before)
    refuses(path, match, content=data.replace(before, after, 1))


@pytest.mark.parametrize("place", [0, 8, 17])
def test_damaged_marks_of_a_block_raise(path, place):
    content = bytearray(path.read_bytes())
    block = 13 + 2 * int.from_bytes(content[9:13], "little")  # behind the XML in UTF-16
    assert content[block + place] in {0x70, 0x2A}
    content[block + place] = 1
    refuses(path, kind=CorruptFileError, content=content)


@pytest.mark.parametrize("encoding", ["utf8", "utf-8-sig", "utf-16"])
def test_project_files_raise(tmp_path, encoding):
    path = tmp_path / "project.xlef"
    xml = '<?xml version="1.0"?>\n<LMSDataContainerHeader Version="2"></LMSDataContainerHeader>'
    refuses(path, "XLEF and XLIF files are not supported", content=xml.encode(encoding))


@by_row(rows_of("lif"))
def test_real_file(row):
    assert_equals_row(open_dataset(path_of(row)).compute(), row)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # readlif leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@by_row(rows_of("lif", "SERIES"))
def test_real_images_equal_liffile_and_readlif(row):
    path = path_of(row)
    arr = open_dataset(path, dataset=row["item"])
    assert_equals_row(arr.compute(), row)
    liffile = pytest.importorskip("liffile", reason="liffile is not installed")
    with liffile.LifFile(path) as other:
        image = next(one for one in other.images if one.name == row["item"])
        np.testing.assert_array_equal(arr.compute(), image.asarray())
        letters = {"emission": "λ", "excitation": "Λ"}
        names = [letters.get(name, name.upper()) for name in arr.description.dims]
        assert names == list(image.dims)
        for axis, name in zip(arr.description.axes, names, strict=True):
            points = axis.offset + axis.scale * np.arange(len(image.coords[name]))
            points *= {"µm": 1e-6, "nm": 1e-9}.get(axis.units, 1)
            np.testing.assert_allclose(points, image.coords[name], rtol=1e-6, atol=1e-15)
        times = frame_facts(arr).compute()["time"].astype("M8[ms]").ravel()
        np.testing.assert_array_equal(times, image.timestamps)
    readlif = pytest.importorskip("readlif.reader", reason="readlif is not installed")
    other = next(one for one in readlif.LifFile(path).get_iter_image() if one.name == row["item"])
    frame = np.asarray(other.get_frame(z=0, t=0, c=0))
    assert frame.shape == arr.shape[-2:]
    np.testing.assert_array_equal(arr[(0,) * (arr.ndim - 2)].compute(), frame)
