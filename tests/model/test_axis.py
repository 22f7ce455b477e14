"""What axes say of themselves as text, and which scales they take from files."""

import pytest

from dask_tiled import Axis

TEXTS = {
    "x": Axis("x"),
    "x (steps of 2)": Axis("x", scale=2),
    "x (steps of 1 nm)": Axis("x", "nm"),
    "x (steps of -1.2e-10 m)": Axis("x", "m", -1.2e-10),
    "x (steps of 0.2 eV from -20 eV)": Axis("x", "eV", 0.2, -20),
    "x (steps of 1 from 5)": Axis("x", offset=5),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text(text):
    """Signs and offsets are shown as they are."""
    assert str(TEXTS[text]) == text


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), -float("inf")])
def test_scales_that_are_none(scale):
    """Sizes are positive, and steps along an axis not zero."""
    assert Axis.calibrated("x", "nm", scale, 3.0) == Axis("x")
    expected = Axis("x", "nm", -1, 3) if scale == -1 else Axis("x")
    assert Axis.calibrated("x", "nm", scale, 3.0, signed=True) == expected
