"""Axes calibrated by a disk, by rings, by a scale bar, and by the wavelength."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner
from disks import covered

from dask_tiled import Axis, DoubtWarning, TilingError, calibrate, open_dataset, to_xarray
from dask_tiled.command_line.app import app
from dask_tiled.exploring import server
from dask_tiled.model.beam import acceleration_voltage, on_detector
from dask_tiled.testing import write_mib

GOLD = {"Au 111": "2.355 Å", "Au 200": "0.20394 nm", "Au 220": "1.4421 Å"}
H, M, E, C = 6.62607015e-34, 9.1093837139e-31, 1.602176634e-19, 299792458.0


def de_broglie(volts):
    """Return the wavelength in nm: h / p, with the relativistic momentum of an electron."""
    total = E * volts + M * C**2
    return 1e9 * H * C / math.sqrt(total**2 - (M * C**2) ** 2)


@pytest.fixture
def scan(tmp_path):
    rng = np.random.default_rng(0)
    frames = rng.poisson(20 * covered(96, np.array([[45.25, 50.5]]), 18.0)[0], (4, 5, 96, 96))
    return open_dataset(write_mib(tmp_path / "s.mib", frames.astype("u2").reshape(-1, 96, 96)),
                        nav_shape=(4, 5))  # fmt: skip


def test_a_disk_sets_the_scale_and_the_origin(scan):
    """The beam is at 0, also of slices; the description names the source."""
    arr = scan[:, 1:, 8:].calibrate(disk="20 mrad")
    y, x = arr.axes[2:]
    assert (y.units, x.units, arr.dims) == ("mrad", "mrad", scan.dims)
    assert y.scale == x.scale == pytest.approx(20 / 18, rel=0.003)
    assert -y.offset / y.scale == pytest.approx(45.25 - 8, abs=0.1)
    assert -x.offset / x.scale == pytest.approx(50.5, abs=0.1)
    assert "y, x by the user from the bright disk of 20 mrad, 18" in repr(arr.description)
    assert to_xarray(arr.mean((0, 1))).y.units == "mrad"
    np.testing.assert_array_equal(arr.compute(), scan[:, 1:, 8:].compute())
    plain = calibrate(scan.sum((0, 1)), disk="20 mrad")
    assert abs(to_xarray(plain).x.values[50]) < 1


@pytest.mark.parametrize(("kilovolts", "wavelength"), [
    (60, 0.0048661), (80, 0.0041757), (100, 0.0037014), (200, 0.0025079), (300, 0.0019688),
])  # fmt: skip
def test_the_wavelength_converts_frequencies_to_angles(scan, kilovolts, wavelength):
    """Values of Kirkland, Advanced Computing in Electron Microscopy, and CODATA arithmetic."""
    energy = f"{kilovolts} kV"
    assert de_broglie(1e3 * kilovolts) == pytest.approx(wavelength, rel=3e-5)
    factor = on_detector("1/nm", "mrad", energy, ())
    assert factor == pytest.approx(1e3 * de_broglie(1e3 * kilovolts), rel=1e-9)
    assert on_detector("mrad", "1/nm", 1e3 * kilovolts, ()) == pytest.approx(1 / factor)
    arr = scan.calibrate(disk="20 mrad", units="1/nm", beam_energy=energy)
    assert arr.axes[2].units == "1/nm"
    again = arr.calibrate(units="mrad", beam_energy=energy)
    assert again.axes[3].scale == pytest.approx(scan.calibrate(disk="20 mrad").axes[3].scale)


@pytest.mark.parametrize("energy", [200, -2e5, "200 V", "0.2 keV", "5 MV", "2 nm", True, "fast"])
def test_implausible_energies_are_refused(energy):
    with pytest.raises(TilingError, match="invalid beam_energy") as caught:
        acceleration_voltage(energy, ())
    assert caught.value.found


def ring_pattern(center, scale, sizes, ellipticity=0.0, width=1.5, size=160):
    y, x = np.indices((size, size)) - np.reshape(center, (2, 1, 1))
    away = np.hypot(y, x / (1 + ellipticity))
    frame = 2000.0 * (away < 4) + 40 * np.exp(-away / 25)
    for height, spacing in zip((100, 55, 40), sizes, strict=False):
        frame += height * np.exp(-(((away - 1 / spacing / scale) / width) ** 2) / 2)
    return frame


SPACINGS = 0.2355, 0.20394, 0.14421


@pytest.mark.parametrize("seed", range(12))
def test_rings_within_three_per_mille(seed):
    rng = np.random.default_rng(seed)
    scale, counts = rng.uniform(0.1, 0.16), 10 ** rng.uniform(-1.5, 1)
    frame = ring_pattern(rng.uniform(70, 90, 2), scale, SPACINGS, width=rng.uniform(0.8, 1.8))
    frames = rng.poisson(counts * frame, (20, 160, 160))
    axis = to_xarray(calibrate(frames, rings=GOLD)[0]).x
    assert axis.units == "1/nm"
    assert float(np.diff(axis).mean()) == pytest.approx(scale, rel=0.003)


@pytest.mark.thorough
def test_rings_one_ellipse_and_none(scan):
    frame = ring_pattern((80, 80), 0.12, SPACINGS, ellipticity=0.03)
    with pytest.warns(
        DoubtWarning, match=r"rings are ellipses, (2\.[89]|3\.[012]) % longer along (0|180|179|1) "
    ):
        calibrate(frame, rings=GOLD)
    single = ring_pattern((80, 80), 0.12, SPACINGS)
    with pytest.warns(DoubtWarning, match="pass two rings or more"):
        found = calibrate(single, rings={"Au 111": "2.355 Å"}, units="mrad", beam_energy="200 kV")
    step = float(np.diff(to_xarray(found).x).mean())
    assert step == pytest.approx(0.12 * 1e3 * de_broglie(2e5), rel=0.003)
    with pytest.raises(TilingError, match=r"no diffraction ring"):
        scan.calibrate(rings=GOLD)
    with pytest.raises(TilingError, match=r"ratios 1.000, 1.300"):
        calibrate(single, rings={"a": "2 Å", "b": f"{2 / 1.3} Å"})


def test_a_scale_bar(scan):
    image = calibrate(np.zeros((20, 30)), scale_bar=("212 px", "50 nm"))
    assert float(np.diff(to_xarray(image).x)[0]) == pytest.approx(50 / 212)
    moved = scan.calibrate(scale_bar=("5 px", "10 nm"), axes=("scan_y", "scan_x"))
    assert [(a.units, a.scale) for a in moved.axes[:2]] == [("nm", 2.0)] * 2
    assert moved.axes[2:] == scan.axes[2:]


@pytest.mark.parametrize(("options", "match"), [
    ({}, "one of disk, rings and scale_bar"),
    ({"disk": "20 mrad", "rings": GOLD}, "found disk, rings"),
    ({"disk": "20 nm"}, 'such as "20 mrad"'),
    ({"disk": 20}, "invalid disk"),
    ({"disk": "-3 mrad"}, "invalid disk"),
    ({"disk": "20 mrad", "units": "1/nm"}, r"energy of the beam.*beam_energy="),
    ({"disk": "20 mrad", "units": "nm"}, "invalid units"),
    ({"disk": "20 mrad", "center": (1, 2, 3)}, "invalid center"),
    ({"disk": "20 mrad", "axes": ("y",)}, "only apply to a scale bar"),
    ({"rings": {}}, "invalid rings"),
    ({"rings": {"Au": "3 kg"}}, "invalid Au"),
    ({"rings": {"a": "2 Å", "b": "3 mrad"}}, "different units"),
    ({"scale_bar": ("20 px", "5 nm")}, r"on the detector of a scan.*axes=\('scan_y', 'scan_x'\)"),
    ({"scale_bar": ("20 px", "5 nm"), "axes": ("z",)}, "no such axis"),
    ({"scale_bar": ("20 nm", "5 nm")}, "invalid scale_bar"),
    ({"units": "mrad"}, "invalid units"),
    ({"rings": {"Au": "2 Å"}, "radius": 3}, "radius only applies"),
    ({"disk": "20 mrad", "radius": 0}, "invalid radius"),
])  # fmt: skip
def test_invalid_calibrations_are_refused(scan, options, match):
    with pytest.raises(TilingError, match=match):
        scan.calibrate(**options)


def test_command_line(scan, tmp_path, monkeypatch):
    path = scan.description.files[0].path
    words = [path, str(tmp_path / "out.zarr"), "--nav-shape", "4,5", "--disk", "20 mrad"]
    done = CliRunner().invoke(app, ["convert", *words, "--no-progress"])
    assert done.exit_code == 0, done.output
    stored = open_dataset(tmp_path / "out.zarr")
    assert stored.axes[2].units == "mrad"
    assert stored.axes[2].scale == pytest.approx(20 / 18, rel=0.003)
    done = CliRunner().invoke(app, ["verify", *words])
    assert done.exit_code == 0, done.output
    shown = CliRunner().invoke(app, ["info", words[0], *words[2:], "--json"])
    axes = json.loads(shown.output)["axes"]
    assert (axes[2]["units"], axes[2]["scale"]) == ("mrad", stored.axes[2].scale)
    opened = []
    monkeypatch.setattr(server, "serve", lambda arr, _, source, **__: opened.append((arr, source)))
    done = CliRunner().invoke(app, ["explore", words[0], *words[2:]])
    assert done.exit_code == 0, done.output
    ((arr, source),) = opened
    assert arr.axes == stored.axes
    assert source.endswith(".calibrate(disk='20 mrad')")


def test_a_disk_of_known_place_and_size(scan):
    arr = scan.calibrate(disk="20 mrad", center=(10, 12.5), radius=16)
    assert arr.axes[2:] == (Axis("y", "mrad", 1.25, -12.5), Axis("x", "mrad", 1.25, -15.625))
    found = scan.calibrate(disk="20 mrad", radius=16).axes[2]
    assert found.scale == 1.25
    assert found.offset == pytest.approx(-45.25 * 1.25, abs=0.1 * 1.25)
