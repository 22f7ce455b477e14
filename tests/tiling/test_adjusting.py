"""`adjust_tile`: formats may adjust tile shapes, which are checked and explained."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import dask_tiled
from dask_tiled import Format, TilingError, TilingRequest, describe, negotiate, register_format
from dask_tiled.formats import tools
from dask_tiled.formats.registry import _registered
from dask_tiled.model.indexing import Cut

FRAMES = np.arange(12 * 16 * 8, dtype="u2").reshape(12, 16, 8)
SMALL = TilingRequest("tile", nbytes=4 * 8 * 2)


def describe_mine(paths):
    file = tools.File.only(paths, "mine")
    layout = tools.lay_out([file], tools.Record((16, 8), tools.plain(np.dtype("<u2"))))
    return tools.Description.of("mine", layout, {}, base_shape=(1, 2, 1))


def whole_frames(shape, request):
    """Frames are folded.

    This is no part of the reason.
    """
    return (shape[0], *request.chunk[1:])


MINE = Format("mine", (".mine",), "", "", lambda _path, _head: "no magic", describe_mine)


@pytest.fixture
def path(tmp_path):
    FRAMES.tofile(tmp_path / "run.mine")
    yield tmp_path / "run.mine"
    _registered.clear()


@pytest.fixture
def desc(path):
    register_format(MINE)
    return describe(path)


def answers(answer):
    register_format(replace(MINE, adjust_tile=lambda _shape, _request: answer))


def test_reason_is_the_first_line_of_the_docstring(desc):
    plain = negotiate(desc, SMALL)
    assert plain.tile_shape == (1, 4, 8)
    assert "adjusted tile" not in dict(plain.reasons)

    register_format(replace(MINE, adjust_tile=whole_frames))
    for one in (desc, pickle.loads(pickle.dumps(desc))):
        scheme = negotiate(one, SMALL)
        assert scheme.tile_shape == (1, 16, 8)
        assert scheme.chunks == plain.chunks
        reason = "(1, 16, 8): adjusted by the format mine: Frames are folded, 256 B"
        assert scheme.reasons == (*plain.reasons, ("adjusted tile", reason))


def test_arguments_of_adjust_tile(desc):
    told = []
    register_format(replace(MINE, adjust_tile=lambda shape, request: told.append(request) or shape))
    wishes = [SMALL, TilingRequest("tile", depth=3), TilingRequest("pixel")]
    scheme = negotiate(desc, wishes, chunks=(6, 16, 8))
    assert "adjusted tile" not in dict(scheme.reasons)
    part = desc.cut([Cut(0, 1, 12), Cut(0, 1, 1, kept=False), Cut(0, 1, 8)])
    negotiate(part, [SMALL, "frame"])
    negotiate(desc, ["pixel"])
    whole, line, pixels = told
    assert whole == tools.TileRequest(desc, (6, 16, 8), (1, 2, 1), "tile", 3, 32)
    assert (line.desc, line.chunk, line.blocks, line.by) == (part, (12, 8), (1, 1), "frame")
    assert pixels.by == "pixel"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, "3 whole numbers"),
        (4, "3 whole numbers"),
        ((1, 16), "3 whole numbers"),
        ((1, 16.0, 8), "3 whole numbers"),
        ((True, 16, 8), "3 whole numbers"),
        ("abc", "3 whole numbers"),
        ((0, 16, 8), "1 or more, and at most the chunk (5, 16, 8)"),
        ((1, -4, 8), "1 or more, and at most the chunk (5, 16, 8)"),
        ((6, 16, 8), "1 or more, and at most the chunk (5, 16, 8)"),
        ((1, 16, 9), "1 or more, and at most the chunk (5, 16, 8)"),
        ((1, 3, 8), "multiples of (1, 2, 1), which no tile cuts"),
        ((5, 16, 8), "at most 4 frames, which a consumer requests"),
    ],
)
def test_wrong_answers(path, desc, answer, expected):
    answers(answer)
    with pytest.raises(TilingError) as caught:
        negotiate(desc, [SMALL, TilingRequest("tile", depth=4)], chunks=(5, 16, 8))
    assert str(path) in str(caught.value)
    assert "adjust_tile of the format 'mine' returns an invalid tile shape" in str(caught.value)
    assert expected in str(caught.value)
    assert repr(answer) in str(caught.value)


def test_requested_frames_and_chunks_stay_whole(desc):
    answers((1, 8, 8))
    assert negotiate(desc, SMALL).tile_shape == (1, 8, 8)
    assert negotiate(desc, "chunk").tile_shape == (12, 16, 8)
    with pytest.raises(TilingError, match=r"whole frames of \(16, 8\), which a consumer requests"):
        negotiate(desc, "frame")
    answers((4, 16, 8))
    assert negotiate(desc, TilingRequest("tile", depth=4)).tile_shape == (4, 16, 8)


def test_numpy_integers_and_lists_are_accepted(desc):
    answers([np.int64(2), np.uint8(16), 8])
    tile = negotiate(desc, SMALL).tile_shape
    assert tile == (2, 16, 8)
    assert {*map(type, tile)} == {int}


def test_tiles_have_the_adjusted_shape(path):
    """Slices are adjusted, too; descriptions work without the format, unadjusted."""
    register_format(replace(MINE, adjust_tile=whole_frames))
    arr = dask_tiled.open_dataset(path)
    shapes = set()

    def seen(tile, _info):
        shapes.add(tile.shape)
        return tile

    for part in (arr, arr[:, 2:6]):
        shown = dask_tiled.map_tiles(seen, part, dtype="u2", tiling=SMALL)
        assert np.array_equal(shown.compute(scheduler="synchronous"), part.compute())
        assert shapes == {(1, *part.shape[1:])}
        shapes.clear()
    _registered.clear()
    assert negotiate(arr.description, SMALL).tile_shape == (1, 4, 8)
