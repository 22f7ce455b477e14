"""How much one unit is in another."""

import sys

import pytest

from dask_tiled.model.units import conversion

KNOWN = [
    ("mrad", "rad", 1e-3), ("nm", "pm", 1e3), ("µm", "um", 1.0), ("\u03bcm", "nm", 1e3),
    ("1/nm", "1/m", 1e9), ("nm^-1", "1/pm", 1e-3), ("kV", "V", 1e3), ("s", "ms", 1e3),
    ("cm", "mm", 10.0), ("GV", "kV", 1e6),
    ("furlong", "furlong", 1.0), ("", "", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("unit", "other", "factor"), KNOWN)
def test_prefixes_need_no_pint(monkeypatch, unit, other, factor):
    monkeypatch.setitem(sys.modules, "pint", None)
    assert conversion(unit, other) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("unit", "other", "factor"), [("deg", "mrad", 17.4532925), ("1/angstrom", "1/nm", 10)]
)
def test_other_units_are_those_of_pint(monkeypatch, unit, other, factor):
    pytest.importorskip("pint")
    assert conversion(unit, other) == pytest.approx(factor)
    monkeypatch.setitem(sys.modules, "pint", None)
    assert conversion(unit, other) is None


@pytest.mark.parametrize(
    ("unit", "other"),
    [
        ("nm", "1/nm"),
        ("nm", "mrad"),
        ("", "nm"),
        ("px", "nm"),
        ("kg", "nm"),
        ("!", "nm"),
        ("nm", "?"),
    ],
)
def test_units_of_other_kinds(unit, other):
    assert conversion(unit, other) is None
