"""Types of axes in OME-Zarr, by their names and units."""

import pytest

from dask_tiled import Axis
from dask_tiled.model.ome_axes import types_of


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("channel", "c channel s rgb colour component emission excitation RGB"),
        ("time", "t time T"),
        ("space", "z depth Depth"),
    ],
)
def test_names(kind, names):
    for name in names.split():
        assert types_of([Axis(name), Axis("y"), Axis("x")]) == (kind, "space", "space"), name


def test_units_go_before_names():
    for units, kind in (("ms", "time"), ("nm", "space")):
        assert types_of([Axis("t", units), Axis("y"), Axis("x")]) == (kind, "space", "space")
