"""Axes as users describe them: texts, numbers, tuples and Axis objects; invalid ones raise."""

import math
import sys
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pint
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_tiled import Axis, DatasetError
from dask_tiled.model.calibration import USUAL, calibrated, is_unknown, quantity
from dask_tiled.model.units import POWERS, Prefixed, conversion

X = Axis("x")
AXES = Axis("scan", "s", 2.0, 1.0), Axis("y", labels=("a", "b")), X
SHAPE = 5, 2, 4


def described(value, axes=AXES, name="x"):
    after = calibrated(axes, {name: value}, SHAPE, "scan.mib")
    assert [axis for axis in after if axis not in axes] in ([], [after[2]])
    return after[2]


MEANINGS = {
    "0.5 nm": ("nm", 0.5, 0),
    "0.02 1/nm": ("1/nm", 0.02, 0),
    "0.02 nm^-1": ("nm^-1", 0.02, 0),
    "0.02/nm": ("1/nm", 0.02, 0),
    "1/nm": ("1/nm", 1, 0),
    "-3 nm": ("nm", -3, 0),
    "\N{MINUS SIGN}3 nm": ("nm", -3, 0),
    " +3e-1nm ": ("nm", 0.3, 0),
    ".5 µm": ("µm", 0.5, 0),
    "2.eV": ("eV", 2, 0),
    "1e3 eV": ("eV", 1000, 0),
    "0.5": ("", 0.5, 0),
    "0.5 nm from 10 nm": ("nm", 0.5, 10),
    "0.5 nm from -10": ("nm", 0.5, -10),
    "0.02 1/nm from -0.64 1/nm": ("1/nm", 0.02, -0.64),
    0.5: ("", 0.5, 0),
    3: ("", 3, 0),
    np.float32(0.5): ("", 0.5, 0),
    Fraction(1, 2): ("", 0.5, 0),
    (0.5, "nm"): ("nm", 0.5, 0),
    (0.5, "/nm"): ("1/nm", 0.5, 0),
    (np.int16(2), "mrad", -4): ("mrad", 2, -4),
    Axis("x", "nm", 0.5, 3): ("nm", 0.5, 3),
}


@pytest.mark.parametrize("value", MEANINGS, ids=repr)
def test_valid_descriptions(value):
    units, scale, offset = MEANINGS[value]
    found = described(value)
    assert found == Axis("x", units, scale, offset)
    assert {type(found.scale), type(found.offset)} == {float}


NONSENSE = [
    *["nm", "", " ", "0 nm", "nan nm", "inf nm", "1e999 nm", "0,5 nm", "0.5 0.5 nm", "0.5 2nm"],
    *["0.5 nm from", "0.5 nm from x", "0.5 nm from 3 s", "0.5 -nm", "0.5 nm from 1 nm from 2 nm"],
    *[0, -0.0, math.nan, math.inf, 10**400, True, None, 1j, b"0.5 nm", {"scale": 1}, [], (0.5,)],
    *[(0.5, "nm", 1, 2), ("0.5", "nm"), (0.5, None), (0.5, "nm", None), (0.5, "nm", math.nan)],
    *[
        np.array([1, 2]),
        Axis(""),
        Axis(3),
        Axis("x", None),
        Axis("x", "nm", 0),
        Axis("x", "nm", "1"),
    ],
    *[Axis("x", "nm", 1, math.inf), Axis("x", labels="abcd"), Axis("x", labels=(1, 2, 3, 4))],
    *["3 furlongz", (1, "nanometres per tick"), Axis("x", "arb", 2), Axis("y"), Axis("scan", "nm")],
    *[Axis("x", labels=("a", "b"))],
]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_invalid_descriptions_are_refused(value):
    """Errors name the axis, the file, the expected and the found value."""
    with pytest.raises(DatasetError) as caught:
        described(value)
    named = "'y'", "'scan'", "'x'"
    assert any(name in str(caught.value) for name in named)
    assert caught.value.path == "scan.mib"
    assert None not in (caught.value.expected, caught.value.found)


def test_unknown_axis_names_are_refused():
    with pytest.raises(
        DatasetError, match="no such axis; expected one of scan, y, x; found 'scann'"
    ):
        calibrated(AXES, {"scann": 3}, SHAPE, "scan.mib")
    with pytest.raises(DatasetError, match="Do you mean 'scan'"):
        calibrated(AXES, {"scann": 3}, SHAPE, "scan.mib")
    with pytest.raises(DatasetError, match="no such axis"):
        calibrated(AXES, {0: 3}, SHAPE, "scan.mib")


def test_all_axes_may_have_new_names():
    """Axes may be renamed at once, also to each other's names."""
    new = Axis("x", "nm", 2), Axis("scan", "nm", 3), Axis("z")
    assert calibrated(AXES, new, SHAPE, "") == new
    assert calibrated(AXES, [*AXES], SHAPE, "") == AXES
    for wrong in (new[:2], (*new, X), [*new[:2], "0.5 nm"], "0.5 nm", 3, iter(new), None):
        with pytest.raises(DatasetError, match="an Axis for each of scan, y, x"):
            calibrated(AXES, wrong, SHAPE, "")


def test_undescribed_parts_of_axes_are_kept():
    """Names, labels and other axes are kept; an offset in another unit is not."""
    axes = calibrated(AXES, {"scan": "3 nm", "y": 2}, SHAPE, "")
    assert axes == (Axis("scan", "nm", 3), replace(AXES[1], scale=2), X)


def test_usual_units_are_those_of_pint(monkeypatch):
    """Usual units need no pint, other units do, and units of files are never checked."""
    bases = ("m", "s", "eV", "rad", "V", "A", "Hz")
    usual = [f"{one}{x}{base}" for one in ("", "1/") for x in (*POWERS, "u") for base in bases]
    assert all(map(Prefixed.of, usual))
    usual += USUAL
    monkeypatch.setattr("dask_tiled.model.calibration.USUAL", ())
    monkeypatch.setattr(Prefixed, "of", lambda _: None)
    assert [unit for unit in usual if is_unknown(unit)] == []
    assert [
        unit for unit in ("nm^-1", "1/(nm s)", "%", "°", "degC", "Hz") if is_unknown(unit)
    ] == []
    monkeypatch.setattr(pint, "get_application_registry", pytest.fail)
    given = Axis("x", "bananas", 2)
    assert calibrated([given], [replace(given, scale=3)], [4], "") == (Axis("x", "bananas", 3),)


def test_without_pint_units_are_texts(monkeypatch):
    monkeypatch.setitem(sys.modules, "pint", None)
    assert described("3 furlongz").units == "furlongz"
    with pytest.raises(DatasetError, match="invalid unit"):
        described((3, "2 nm"))


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)


@given(NUMBERS.filter(bool), NUMBERS, st.sampled_from(["", "nm", "1/nm", "mrad"]))
def test_axis_texts_are_valid_descriptions(scale, offset, units):
    """Quantities are read exactly; the text of an axis describes it, in any prefix."""
    assert quantity(f"{scale!r} {units} from {offset!r} {units}") == (scale, units, offset)
    axis = Axis("x", units, float(f"{scale:g}"), float(f"{offset:g}"))
    text = axis.steps.removeprefix(" (steps of ").removesuffix(")")
    if text:
        told = described(text)
        factor = conversion(told.units, axis.units)
        assert (told.scale * factor, told.offset * factor) == pytest.approx(
            (axis.scale, axis.offset), rel=1e-12
        )
