"""The phase of `tiles.dpc` beside those of py4DSTEM, and of the simulated sample.

``python benchmarks/phases.py --py4dstem PYTHON`` takes the interpreter of another environment,
since py4DSTEM requires an older NumPy: ``uv venv other; uv pip install --python other py4DSTEM``.
Without it, only the phase of the sample is compared.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np

KILOVOLTS, SIGMA, WAVELENGTH = 200, 7.288e-3, 2.5079e-3
"""Interaction constant in rad/(V nm), Kirkland; wavelength in nm, Williams and Carter."""
ANGLE = 20e-3
WIDTH = 0.25
"""Of the atoms, in nm: py4DSTEM takes differences of positions two steps apart."""
PIXELS, STEP = 64, 0.05
"""Pixels of a wave, and both their size and the step of the scan, in nm."""

PEER = """
import sys
import numpy as np
import py4DSTEM
from py4DSTEM.process.phase import DPC

given = np.load(sys.argv[1])
cube = py4DSTEM.DataCube(given["frames"].astype("f4"))
cube.calibration.set_R_pixel_size(10 * float(given["step"]))
cube.calibration.set_R_pixel_units("A")
cube.calibration.set_Q_pixel_size(float(given["per_nm"]) / 10)
cube.calibration.set_Q_pixel_units("A^-1")
found = DPC(cube, energy=1e3 * float(given["kilovolts"]), verbose=False)
found.preprocess(
    force_com_rotation=0, force_com_transpose=False, fit_function="constant",
    plot_center_of_mass=False, plot_rotation=False,
)
found.reconstruct(
    max_iter=1000, stopping_criterion=1e-12, gaussian_filter=False, butterworth_filter=False,
    progress_bar=False,
)
np.savez(sys.argv[2], phase=found.object_phase, version=py4DSTEM.__version__)
"""


def simulated(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return frames of a scan over Gaussian atoms, and the phase that the probe averages."""
    wrapped = np.fft.fftfreq(PIXELS, 1 / PIXELS) * STEP
    frequency = np.fft.fftfreq(PIXELS, STEP)
    away = np.hypot(frequency[:, None], frequency)
    probe = np.fft.ifft2((away <= ANGLE / WAVELENGTH).astype(float))
    size = count * STEP
    rng = np.random.default_rng(0)
    atoms = [(*rng.uniform(0.3 * size, 0.7 * size, 2), rng.uniform(20, 60)) for _ in range(6)]

    def phase(y: np.ndarray, x: np.ndarray) -> np.ndarray:
        square = [(y - at) ** 2 + (x - along) ** 2 for at, along, _ in atoms]
        volts = (
            v * np.exp(-s / (2 * WIDTH**2)) for s, (_, _, v) in zip(square, atoms, strict=True)
        )
        return SIGMA * sum(volts)

    frames = np.empty((count, count, PIXELS, PIXELS), "f4")
    averaged = np.empty((count, count))
    weights = abs(probe) ** 2 / (abs(probe) ** 2).sum()
    for row, column in np.ndindex(count, count):
        seen = phase(STEP * row + wrapped[:, None], STEP * column + wrapped)
        frames[row, column] = np.fft.fftshift(abs(np.fft.fft2(probe * np.exp(1j * seen))) ** 2)
        averaged[row, column] = (weights * seen).sum()
    return frames, averaged


def difference(found: np.ndarray, other: np.ndarray) -> str:
    """Return the differences of two phases relative to the range of the second, as text."""
    rest = (found - found.mean()) - (other - other.mean())
    size = np.ptp(other)
    return f"at most {100 * abs(rest).max() / size:.2f} %, rms {100 * rest.std() / size:.2f} %"


def main() -> None:
    """Print the differences."""
    from dask_tiled import Axis, tiles
    from dask_tiled.opened.axes import labelled

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--py4dstem", metavar="PYTHON", help="interpreter with py4DSTEM")
    parser.add_argument("--positions", type=int, default=64, help="along each axis of the scan")
    given = parser.parse_args()
    frames, averaged = simulated(given.positions)
    per_nm = 1 / (PIXELS * STEP)
    scan = [Axis(name, "nm", STEP) for name in ("scan_y", "scan_x")]
    detector = [Axis(name, "1/nm", per_nm, -PIXELS / 2 * per_nm) for name in ("y", "x")]
    arr = labelled(da.from_array(frames), [*scan, *detector])
    begun = time.process_time()
    found = tiles.dpc(arr, beam_energy=f"{KILOVOLTS} kV").phase.compute()
    seconds = time.process_time() - begun
    print(f"{given.positions} x {given.positions} frames of {PIXELS} x {PIXELS}")
    print(f"dpc and the sample: {difference(found, averaged)}; {seconds:.2f} s CPU")
    if given.py4dstem is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        told, answer = Path(folder) / "scan.npz", Path(folder) / "phase.npz"
        np.savez(told, frames=frames, step=STEP, per_nm=per_nm, kilovolts=KILOVOLTS)
        command = [given.py4dstem, "-c", PEER, str(told), str(answer)]
        subprocess.run(command, check=True)
        other = np.load(answer)
        # py4DSTEM integrates centres of mass in 1/A: the phase in turns.
        phase = 2 * np.pi * other["phase"].reshape(averaged.shape)
        print(f"dpc and py4DSTEM {other['version']}: {difference(found, phase)}")
        print(f"py4DSTEM and the sample: {difference(phase, averaged)}")


if __name__ == "__main__":
    main()
