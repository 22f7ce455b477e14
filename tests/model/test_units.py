"""Conversion of units, and readable prefixes."""

import sys

import pytest

from dask_tiled.model.units import conversion, readable, spelled, wavelength

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


SPELLINGS = {
    "um": "µm", "\u03bcm": "µm", "µm": "µm", "micron": "µm", "Microns": "µm", "micrometre": "µm",
    "1/um": "1/µm", "um^-1": "µm^-1", "us": "µs", "urad": "µrad", "uV": "µV",
    "nm": "nm", "umm": "umm", "u": "u", "counts": "counts", "cm": "cm", "um/s": "um/s", "": "",
}  # fmt: skip


@pytest.mark.parametrize(("unit", "expected"), SPELLINGS.items())
def test_micro_is_spelled_alike(unit, expected):
    """U+00B5, as keyboards write it; units that are not recognised stay."""
    assert spelled(unit) == expected


@pytest.mark.parametrize(
    ("unit", "other", "factor"), [("deg", "mrad", 17.4532925), ("1/angstrom", "1/nm", 10)]
)
def test_other_units_need_pint(monkeypatch, unit, other, factor):
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
def test_incompatible_units_have_no_factor(unit, other):
    assert conversion(unit, other) is None


@pytest.mark.parametrize(
    ("unit", "size", "shown", "factor"),
    [
        ("m", 6e-8, "nm", 1e9), ("m", 3e-4, "µm", 1e6), ("1/m", 2e10, "1/nm", 1e-9),
        ("nm", 2e5, "µm", 1e-3), ("nm", 12.0, "nm", 1.0), ("eV", 2e4, "keV", 1e-3),
        ("m", 2e7, "km", 1e-3), ("s", 2e5, "s", 1.0), ("rad", 5e4, "rad", 1.0),
        ("m", 1e-20, "pm", 1e12), ("px", 1e6, "px", 1.0), ("", 1e6, "", 1.0), ("m", 0.0, "m", 1.0),
    ],
)  # fmt: skip
def test_readable_prefixes(unit, size, shown, factor):
    assert readable(unit, size) == (shown, pytest.approx(factor))


@pytest.mark.parametrize(("volts", "pm"), [(60e3, 4.8661), (100e3, 3.7014), (300e3, 1.9687)])
def test_wavelengths_of_electrons(volts, pm):
    """As in tables of electron microscopy."""
    assert wavelength(volts) == pytest.approx(pm / 1000, rel=5e-5)
