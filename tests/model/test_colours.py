"""Colours of channels: parsing, and the colours in which channels are drawn."""

import pytest

from dask_tiled import Axis, DatasetError
from dask_tiled.model.calibration import calibrated
from dask_tiled.model.colours import PALETTE, drawn, rgb_in

RED, GREEN, BLUE = "#ff0000", "#00ff00", "#0000ff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FF8000", "#ff8000"), ("#FF8000", "#ff8000"), ("#80FF8000", "#ff8000"),
        (" ff8000 ", "#ff8000"), ("", ""), (None, ""), ("red", ""), ("#FF80", ""), ("#GG8000", ""),
    ],
)  # fmt: skip
def test_parsing(text, expected):
    assert rgb_in(text) == expected


@pytest.mark.parametrize(
    ("colours", "count", "expected"),
    [
        ((), 2, PALETTE[:2]),
        ((RED, GREEN), 2, (RED, GREEN)),
        ((RED, GREEN), 3, PALETTE[:3]),
        (("", RED, GREEN), 3, (PALETTE[0], RED, GREEN)),
        (("", "", PALETTE[0], RED), 4, (PALETTE[1], PALETTE[2], PALETTE[0], RED)),
        (("#ffffff",) * 3, 3, PALETTE[:3]),
        (("#000000", RED, GREEN), 3, (PALETTE[0], RED, GREEN)),
        ((RED, RED, GREEN), 3, (RED, RED, GREEN)),
        ((), 1, ("#ffffff",)),
        ((BLUE,), 1, (BLUE,)),
        (("#000000",), 1, ("#ffffff",)),
        ((), 8, (*PALETTE, *PALETTE[:2])),
    ],
)
def test_colours_that_are_drawn(colours, count, expected):
    """Those of the file, unless all are a default of its writer."""
    assert drawn(colours, count) == [*expected]


@pytest.mark.parametrize(
    ("colours", "problem"),
    [
        (("red", RED), "invalid colours of the axis 'c'; expected a tuple of"),
        ((3, RED), "invalid colours"),
        ([RED, GREEN], "invalid colours"),
        ((RED.upper(), GREEN), "invalid colours"),
        ((RED,), "wrong colours of the axis 'c'; expected 2 colours, or none; found 1"),
    ],
)
def test_invalid_colours_of_users(colours, problem):
    axes = Axis("c"), Axis("x")
    with pytest.raises(DatasetError, match=problem):
        calibrated(axes, {"c": Axis("c", colours=colours)}, (2, 8), "file")
    (axis, _) = calibrated(axes, {"c": Axis("c", colours=(RED, ""))}, (2, 8), "file")
    assert axis.colours == (RED, "")
