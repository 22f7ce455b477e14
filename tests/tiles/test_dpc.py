"""`phase_from_com` and `scan_rotation`: phase from centres of mass, and detector rotation."""

import dask.array as da
import numpy as np
import pytest

from dask_tiled import Axis, TilingError, open_dataset, tiles
from dask_tiled.model.units import wavelength
from dask_tiled.opened.axes import labelled, shown_of
from dask_tiled.testing import write_dm

pytestmark = pytest.mark.usefixtures("synchronous")

SHAPE = (40, 48)
STEP = 0.25  # nm
BEAM = (12.5, -3.0)
Y, X = (STEP * places for places in np.indices(SHAPE))


def periodic():
    """Return a phase that is periodic in the map, and its gradient (y, x)."""
    ky, kx = 2 * np.pi * 2 / (SHAPE[0] * STEP), 2 * np.pi * 3 / (SHAPE[1] * STEP)
    phase = 0.4 * np.sin(ky * Y) * np.cos(kx * X) + 0.1 * np.cos(2 * kx * X)
    dy = 0.4 * ky * np.cos(ky * Y) * np.cos(kx * X)
    dx = -0.4 * kx * np.sin(ky * Y) * np.sin(kx * X) - 0.2 * kx * np.sin(2 * kx * X)
    return phase, np.stack([dy, dx], axis=-1)


def bounded():
    """Return the phase of atoms on a wedge, which is not periodic, and its gradient (y, x)."""
    phase, gradient = 0.05 * X + 0.03 * Y, np.broadcast_to([0.03, 0.05], (*SHAPE, 2)).copy()
    for y, x in [(2, 3), (5, 5.5), (8.7, 1), (4, 11.4)]:
        atom = np.exp(-((Y - y) ** 2 + (X - x) ** 2) / (2 * 0.8**2))
        phase = phase + atom
        gradient -= np.stack([(Y - y) * atom, (X - x) * atom], axis=-1) / 0.8**2
    return phase, gradient


def maps(gradient, units="1/nm", factor=1 / (2 * np.pi), **axes):
    """Return maps of centres of mass around an off-centre beam."""
    scan = [Axis("scan_y", "nm", STEP), Axis("scan_x", "nm", STEP)]
    axes = [*[None] * (gradient.ndim - 3), *scan, Axis("component", labels=("y", "x"))]
    com = gradient * factor + BEAM
    return labelled(da.from_array(com, chunks=(*[1] * (gradient.ndim - 3), 15, 20, 1)), axes, units)


def error_of(found, phase):
    """Return the largest error relative to the range of the phase."""
    difference = found - (phase - phase.mean())
    return abs(difference).max() / np.ptp(phase)


def test_periodic_phase_is_exact():
    phase, gradient = periodic()
    found = tiles.phase_from_com(maps(gradient), padding="periodic")
    assert (found.shape, found.dtype) == (SHAPE, "f8")
    assert error_of(found.compute(), phase) < 1e-12
    shown = shown_of(found)
    assert shown.units == "rad"
    assert shown.axes == (Axis("scan_y", "nm", STEP), Axis("scan_x", "nm", STEP))


@pytest.mark.parametrize("make", [periodic, bounded])
def test_mirror_padding_is_accurate_to_three_percent(make):
    phase, gradient = make()
    found = tiles.phase_from_com(maps(gradient), center=BEAM).compute()
    assert error_of(found, phase) < 0.03
    inner = found[5:-5, 5:-5] - phase[5:-5, 5:-5]
    assert np.ptp(inner) < 0.02 * np.ptp(phase)


def test_without_center_the_slope_is_lost():
    phase, gradient = bounded()
    found = tiles.phase_from_com(maps(gradient)).compute()
    slope = gradient.mean((0, 1))
    assert error_of(found, phase - slope[0] * Y - slope[1] * X) < 0.03


def test_aperiodic_phase_needs_mirror_padding():
    phase, gradient = bounded()
    found = tiles.phase_from_com(maps(gradient), padding="periodic").compute()
    assert error_of(found, phase) > 0.1


def test_angles_need_the_wavelength():
    phase, gradient = periodic()
    volts = 300e3
    com = maps(gradient, "mrad", 1e3 * wavelength(volts) / (2 * np.pi))
    for energy in (volts, "300 kV", "300 keV"):
        found = tiles.phase_from_com(com, beam_energy=energy, padding="periodic")
        assert shown_of(found).units == "rad"
        assert error_of(found.compute(), phase) < 1e-12
    with pytest.raises(TilingError, match=r"energy of the beam.*beam_energy="):
        tiles.phase_from_com(com)


@pytest.mark.parametrize(
    ("volts", "picometres"), [(100e3, 3.7014), (200e3, 2.5079), (300e3, 1.9687), (1e6, 0.8719)]
)
def test_wavelengths_are_those_of_textbooks(volts, picometres):
    """Williams and Carter, Transmission Electron Microscopy, table 1.2 (rounded there)."""
    assert wavelength(volts) * 1e3 == pytest.approx(picometres, abs=1e-4)


def test_units_of_scale_and_step():
    phase, gradient = periodic()
    pixels = gradient / (2 * np.pi) / 0.04  # pixels of 0.04 1/nm
    plain = da.from_array(pixels)
    found = tiles.phase_from_com(plain, scale="0.04 1/nm", step="250 pm", padding="periodic")
    assert error_of(found.compute(), phase) < 1e-12
    assert shown_of(found).units == "rad"
    bare = tiles.phase_from_com(plain, scale="1 px", padding="periodic")
    assert shown_of(bare).units == ""
    expected = (phase - phase.mean()) / (2 * np.pi) / 0.04 / STEP
    np.testing.assert_allclose(bare.compute(), expected, atol=1e-10)


def test_different_steps_in_y_and_x():
    phase, gradient = periodic()
    wide = gradient * [1, 0.5]  # the map is twice as wide
    found = tiles.phase_from_com(maps(wide), step=("0.25 nm", "0.5 nm"), padding="periodic")
    assert error_of(found.compute(), phase) < 1e-12


def turned(gradient, degrees, flip):
    """Return the gradient as seen by a detector that a rotation by `degrees` corrects."""
    angle = np.deg2rad(degrees)
    back = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return gradient @ back.T * ([-1, 1] if flip else [1, 1])


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("degrees", [0, 30, -75, 90, 137])
def test_rotated_detectors(degrees, flip):
    _, gradient = bounded()
    com = maps(turned(gradient, degrees, flip))
    straight = tiles.phase_from_com(maps(gradient)).compute()
    found = tiles.phase_from_com(com, rotation=tiles.ScanRotation(degrees, flip)).compute()
    np.testing.assert_allclose(found, straight, atol=1e-10)
    rotation = tiles.scan_rotation(com)
    assert rotation.flip == flip
    assert -90 < rotation.rotation <= 90
    assert abs((rotation.rotation - degrees + 90) % 180 - 90) < 0.1
    by_hand = tiles.phase_from_com(com, rotation=rotation).compute()
    sign = np.sign((by_hand * straight).sum())
    np.testing.assert_allclose(sign * by_hand, straight, atol=0.01)


def test_rotation_agrees_with_libertem():
    """A positive rotation turns vectors clockwise, after the flip."""
    com = pytest.importorskip("libertem.udf.com")
    rng = np.random.default_rng(0)
    y, x = rng.normal(size=(2, *SHAPE))
    for flip in (False, True):
        new = com.apply_correction(y - y.mean(), x - x.mean(), 33.0, flip)
        turn = tiles.ScanRotation(33.0, flip)
        before, after = (da.from_array(np.stack(some, -1)) for some in ((y, x), new[:2]))
        turned = tiles.phase_from_com(before, scale="1 px", rotation=turn)
        expected = tiles.phase_from_com(after, scale="1 px")
        np.testing.assert_allclose(turned.compute(), expected.compute(), atol=1e-10)


def test_several_maps_and_empty_frames():
    phase, gradient = periodic()
    both = np.stack([gradient, 2 * gradient])
    found = tiles.phase_from_com(maps(both), padding="periodic")
    assert (found.shape, found.numblocks) == ((2, *SHAPE), (2, 1, 1))
    expected = phase - phase.mean()
    np.testing.assert_allclose(found.compute(), [expected, 2 * expected], atol=1e-12)
    both[0, 3, 4] = np.nan
    holes = tiles.phase_from_com(maps(both), padding="periodic").compute()
    assert np.isfinite(holes).all()
    np.testing.assert_allclose(holes[1], 2 * expected, atol=1e-12)
    assert error_of(holes[0], phase) < 0.05


def test_from_a_file_to_a_phase(tmp_path):
    """A beam shifted by the gradient of a phase gives this phase."""
    phase, gradient = periodic()
    shifts = gradient / (2 * np.pi) / 0.01  # in pixels of 0.01 1/nm
    y, x = np.indices((32, 32))
    at = shifts[..., None, None] + 15.0
    frames = np.exp(-((y - at[:, :, 0]) ** 2 + (x - at[:, :, 1]) ** 2) / 8) * 60000
    nm, per_nm = (0.0, STEP, "nm"), (0.0, 0.01, "1/nm")
    calibrations = [nm, nm, per_nm, per_nm]
    path = write_dm(tmp_path / "scan.dm4", frames.astype("u2"), calibrations=calibrations)
    com = tiles.center_of_mass(open_dataset(path))
    found = tiles.phase_from_com(com, padding="periodic")
    assert error_of(found.compute(), phase) < 0.01
    assert [axis.name for axis in shown_of(found).axes] == ["scan_y", "scan_x"]
    assert shown_of(found).units == "rad"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"padding": "zeros"}, "invalid padding"), ({"rotation": np.nan}, "invalid rotation"),
        ({"scale": 0}, "has a unit already"), ({"scale": "1 mrad"}, "has a unit already"),
        ({"step": (1, 2, 3)}, "not a pair"), ({"method": "magic"}, "invalid method"),
        ({"method": "iterative", "padding": "periodic"}, "need no padding"),
        ({"step": "2 mrad"}, "the unit of step is incompatible"), ({"step": True}, "invalid step"),
        ({"rotation": "x"}, "invalid rotation"), ({"step": 0.5}, "invalid step"),
        ({"center": 3}, "invalid center"),
        ({"center": (1, np.nan)}, "invalid center"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_options_are_refused(options, problem):
    with pytest.raises(TilingError, match=problem):
        tiles.phase_from_com(maps(periodic()[1]), **options)


@pytest.mark.parametrize("shape", [(4, 2), (4, 5, 3), (0, 5, 2)])
def test_invalid_maps_are_refused(shape):
    for call in (tiles.phase_from_com, tiles.scan_rotation):
        with pytest.raises(TilingError, match="not have the shape of maps of centres") as caught:
            call(da.zeros(shape))
        assert caught.value.found is not None
        with pytest.raises(TilingError, match="not hold real numbers"):
            call(da.zeros((4, 5, 2), dtype="c8"))
    with pytest.raises(TilingError, match="too small to compute a curl"):
        tiles.scan_rotation(da.zeros((1, 5, 2)))


@pytest.mark.parametrize(("options", "problem"), [
    ({}, r"scale of com is unknown.*arr.calibrate.*scale="),
    ({"scale": 0.5}, "invalid scale"), ({"scale": "far"}, "invalid scale"),
    ({"scale": "2 kg"}, "unit of com is incompatible"), ({"scale": "2 nm"}, "com is incompatible"),
    ({"scale": "1 mrad"}, r"energy of the beam.*beam_energy="),
    ({"scale": "1 mrad", "beam_energy": 200}, "invalid beam_energy.*1 to 3000 kV"),
    ({"scale": "1 mrad", "beam_energy": "2 nm"}, "invalid beam_energy"),
    ({"scale": "1 px", "step": "0.5 nm"}, "a step without a scale"),
])  # fmt: skip
def test_shifts_in_pixels_need_a_scale(options, problem):
    """Nothing is in rad, V or C that has no scale."""
    com = maps(periodic()[1], "px")
    with pytest.raises(TilingError, match=problem):
        tiles.phase_from_com(com, **options)
    with pytest.raises(TilingError, match=problem):
        tiles.dpc(com, **options)


def test_iterations_have_no_neighbours_beyond_edges_and_bridge_holes():
    phase, gradient = bounded()
    fine = tiles.phase_from_com(maps(gradient), center=BEAM, method="iterative").compute()
    assert error_of(fine, phase) < 0.02
    gradient[10:12, 20:22] = np.nan
    holes = tiles.phase_from_com(maps(gradient), center=BEAM, method="iterative").compute()
    assert error_of(holes, phase) < 0.03
    row = tiles.phase_from_com(maps(bounded()[1][:1]), method="iterative").compute()
    assert row.shape == (1, SHAPE[1])
    assert np.isfinite(row).all()


# Two further values of the interaction constant: Kirkland, Advanced Computing in Electron
# Microscopy, figure 5.6; de Graef, Introduction to Conventional TEM, table 2.2.
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("volts", "sigma"), [(100e3, 9.244e-3), (200e3, 7.288e-3), (300e3, 6.526e-3)]
)
def test_phase_field_and_charge_of_a_known_potential(tmp_path, volts, sigma):
    """A weak phase object, simulated wave by wave: its phase within 1 %, field and charge, too.

    The probe is small, and the potential a wide Gaussian, so that the mean over the probe is the
    potential convolved with the intensity of the probe.
    """
    count, step, size = 24, 0.2, 64  # positions, nm; pixels of a wave
    length, wrapped = size * 0.1, np.fft.fftfreq(size, 1 / size) * 0.1  # nm
    probe = np.exp(-(wrapped[:, None] ** 2 + wrapped**2) / (4 * 0.15**2))
    width, height = 0.6, 30.0  # nm, V nm
    middle = step * (count - 1) / 2

    def square(y, x):
        return (y - middle) ** 2 + (x - middle) ** 2

    frames = np.empty((count, count, size, size))
    for row, column in np.ndindex(count, count):
        y, x = step * row + wrapped[:, None], step * column + wrapped
        wave = probe * np.exp(1j * sigma * height * np.exp(-square(y, x) / (2 * width**2)))
        frames[row, column] = np.fft.fftshift(abs(np.fft.fft2(wave)) ** 2)
    counts = (frames / frames.max() * 2e9).astype("u4")
    per_nm = 1 / length
    nm, k_axis = (0.0, step, "nm"), (size / 2, per_nm, "1/nm")
    path = write_dm(tmp_path / "scan.dm4", counts, calibrations=[nm, nm, k_axis, k_axis])
    found = tiles.dpc(open_dataset(path), beam_energy=volts)
    y, x = np.indices((count, count)) * step
    # The intensity of the probe, a Gaussian of 0.15 nm, blurs the potential.
    broad = width**2 + 0.15**2
    potential = height * width**2 / broad * np.exp(-square(y, x) / (2 * broad))
    assert [shown_of(one).units for one in found] == ["rad", "V", "C/m^2"]
    assert error_of(found.phase.compute(), sigma * potential) < 0.01
    field = np.stack([(y - middle), (x - middle)], -1) * potential[..., None] / broad
    np.testing.assert_allclose(found.electric_field, field, atol=0.01 * abs(field).max())
    laplacian = potential * (square(y, x) / broad**2 - 2 / broad)
    charge = -8.8541878188e-12 * laplacian * 1e9  # V/nm to V/m
    inner = (slice(2, -2),) * 2
    error = abs(found.charge_density.compute() - charge)[inner].max()
    assert error < 0.01 * abs(charge).max()
    thick = tiles.dpc(open_dataset(path), beam_energy=volts, thickness="20 nm")
    np.testing.assert_allclose(
        thick.electric_field, field / 20e-9, atol=0.01 * abs(field).max() / 2e-8
    )
    assert [shown_of(one).units for one in thick] == ["rad", "V/m", "C/m^3"]
