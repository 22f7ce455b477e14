"""`Axis`: its text, its labels, and scales accepted from files."""

import numpy as np
import pytest

from dask_tiled import Axis
from dask_tiled.model.axes import nav_axes, sig_axes

TEXTS = {
    "x": Axis("x"),
    "x (steps of 2)": Axis("x", scale=2),
    "x (steps of 1 nm)": Axis("x", "nm"),
    "x (steps of -120 pm)": Axis("x", "m", -1.2e-10),
    "x (steps of 0.2 eV from -20 eV)": Axis("x", "eV", 0.2, -20),
    "x (steps of 1 from 5)": Axis("x", offset=5),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text):
    assert str(TEXTS[text]) == text


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), -float("inf")])
def test_invalid_scales_are_ignored(scale):
    """Negative scales count only if `signed`."""
    assert Axis.calibrated("x", "nm", scale, 3.0) == Axis("x")
    expected = Axis("x", "nm", -1, 3) if scale == -1 else Axis("x")
    assert Axis.calibrated("x", "nm", scale, 3.0, signed=True) == expected


EVEN = {
    (0.0, 0.5, 1.0): Axis("x", "nm", 0.5),
    (3.0, 1.0, -1.0): Axis("x", "nm", -2, 3),
    (2.0**99, 2.0**100, 1.5 * 2**100): Axis("x", "nm", 2.0**99, 2.0**99),
}


@pytest.mark.parametrize("points", EVEN)
def test_even_positions(points):
    assert Axis.through("x", "nm", np.array(points)) == EVEN[points]
    nearly = np.array(points) * [1, 1 + 1e-5, 1]
    assert Axis.through("x", "nm", nearly) == EVEN[points]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "bits",
    [
        [0x7F800001, 0, 0x3F800000],  # a signalling NaN
        [0x7FC00000] * 3,
        [0x7F800000, 0, 0x7F800000],  # infinity
        [0xFF800000, 0, 0x7F800000],
        [0, 0x7F7FFFFF, 0],
        [0, 0x3F800000, 0x40400000],  # 0, 1, 3
        [1],
    ],
)
def test_uneven_positions_give_no_axis(bits):
    assert Axis.through("x", "nm", np.array(bits, "u4").view("f4")) is None


def test_labels_of_parts():
    axis = Axis("c", labels=("DAPI", "GFP", "RFP", "Cy5"))
    assert axis.cut(1, 2).labels == ("GFP", "Cy5")
    assert axis.cut(1, 1, 2).labels == ("GFP", "RFP")
    assert axis.cut(3, -1, 2).labels == ("Cy5", "RFP")
    assert axis.cut(-1, 1).labels == axis.binned(2).labels == ()


def test_default_names():
    names = [["frame"], ["scan_y", "scan_x"], ["nav_0", "nav_1", "nav_2"]]
    assert [[axis.name for axis in nav_axes(k)] for k in range(4)] == [[], *names]
    names = [["channel"], ["y", "x"], ["z", "y", "x"], [f"sig_{k}" for k in range(4)]]
    assert [[axis.name for axis in sig_axes(k)] for k in range(5)] == [[], *names]


def test_labels_as_text():
    assert Axis("c", labels=("y", "x")).as_json()["labels"] == ["y", "x"]
    assert Axis("c", labels=("y", "x")).listed == " (y, x)"
    assert Axis("c", labels=tuple("abcdefghij")).listed == " (a, b, c, d, e, f, g, h, ...)"
    assert not Axis("c").listed


def test_colours_of_parts():
    axis = Axis("c", colours=("#ff0000", "#00ff00", ""))
    assert axis.cut(0, 1, 2).colours == ("#ff0000", "#00ff00")
    assert axis.cut(2, -1).colours == ("", "#00ff00", "#ff0000")
    assert axis.binned(1) == axis
    assert axis.cut(-1, 1).colours == axis.binned(3).colours == ()
    assert axis.as_json()["colours"] == ["#ff0000", "#00ff00", ""]
    assert "colours" not in Axis("c").as_json()


def test_repr_has_the_coordinates():
    """A few are evaluated again; of many the first and the last are shown."""
    axis = Axis("E", coordinates=(0.5, 1.0, 4.0), coordinate_units="eV")
    assert eval(repr(axis)) == axis  # noqa: S307 - a repr
    assert repr(Axis("x", "nm", 2.0)) == (
        "Axis(name='x', units='nm', scale=2.0, offset=0.0, labels=())"
    )
    many = Axis("E", coordinates=tuple(float(k * k) for k in range(30_000)))
    assert repr(many).endswith("25.0, 36.0, ..., 899940001.0), coordinate_units='')")
    assert len(repr(many)) < 200
    assert "colours=('#ff0000',)" in repr(Axis("c", colours=("#ff0000",)))
